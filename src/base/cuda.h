/* CUDA's errors as tutti's, the current GPU, and a copy that is waited for. For sources that are
 * built with CUDA. */
#ifndef TUTTI_BASE_CUDA_H_
#define TUTTI_BASE_CUDA_H_

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/os.h"

static inline tuttiResult_t tuttiCudaCheck(cudaError_t err, const char *what) {
  if (err == cudaSuccess) return tuttiSuccess;
  cudaGetLastError(); /* so that no later call of the user finds it */
  return TUTTI_FAIL(tuttiUnhandledCudaError, "%s failed: %s (%s)", what, cudaGetErrorString(err),
                    cudaGetErrorName(err));
}
#define CUDA_CHECK(call) tuttiCudaCheck((call), #call)
#define CUDA_TRY(call)   TUTTI_TRY(tuttiCudaCheck((call), #call))

/* A call of the driver, as CUDA 12.0 has it; NULL: it has none. */
static inline void *tuttiCudaDriver(const char *name) {
  void *call = NULL;
  enum cudaDriverEntryPointQueryResult found;
  cudaError_t err = cudaGetDriverEntryPointByVersion(name, &call, 12000, cudaEnableDefault, &found);
  return err == cudaSuccess && found == cudaDriverEntryPointSuccess ? call : NULL;
}

/* What a thread had before: its GPU, and how strict it is about captures. */
typedef struct {
  int device;
  bool switched, relaxed;
  enum cudaStreamCaptureMode mode;
} tuttiCudaBefore;

/* Makes `device` current as long as `TUTTI_RESTORED tuttiCudaBefore before = {0};` lives. */
static inline tuttiResult_t tuttiCudaSwitch(int device, tuttiCudaBefore *before) {
  CUDA_TRY(cudaGetDevice(&before->device));
  if (before->device == device) return tuttiSuccess;
  CUDA_TRY(cudaSetDevice(device));
  before->switched = !tuttiThreadIsOwn; /* going back makes a context on GPU 0 if it had none */
  return tuttiSuccess;
}
/* The same, and calls that allocate or wait neither fail nor undo what other threads capture. */
static inline tuttiResult_t tuttiCudaEnter(int device, tuttiCudaBefore *before) {
  TUTTI_TRY(tuttiCudaSwitch(device, before));
  before->mode = cudaStreamCaptureModeRelaxed;
  CUDA_TRY(cudaThreadExchangeStreamCaptureMode(&before->mode));
  before->relaxed = true;
  return tuttiSuccess;
}
static inline void tuttiCudaRestore(tuttiCudaBefore *before) {
  if (before->relaxed) cudaThreadExchangeStreamCaptureMode(&before->mode);
  if (before->switched) cudaSetDevice(before->device);
}
#define TUTTI_RESTORED __attribute__((cleanup(tuttiCudaRestore)))

/* To the GPU, by a thread that has entered it; returns when it is there. */
static inline tuttiResult_t tuttiCudaTell(void *to, const void *from, size_t bytes,
                                          cudaStream_t stream) {
  CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
  return CUDA_CHECK(cudaStreamSynchronize(stream));
}

#endif

/* CUDA's errors as tutti's, the current GPU, and a copy that is waited for. For sources that are
 * built with CUDA. */
#ifndef TUTTI_BASE_CUDA_H_
#define TUTTI_BASE_CUDA_H_

#include <cuda_runtime_api.h>

#include "base/error.h"

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

/* Makes `device` the thread's current one as long as `TUTTI_RESTORED int before = -1;` lives. */
static inline tuttiResult_t tuttiCudaEnter(int device, int *before) {
  int current;
  CUDA_TRY(cudaGetDevice(&current));
  if (current == device) return tuttiSuccess;
  CUDA_TRY(cudaSetDevice(device));
  *before = current;
  return tuttiSuccess;
}
static inline void tuttiCudaRestore(const int *before) {
  if (*before >= 0) cudaSetDevice(*before);
}
#define TUTTI_RESTORED __attribute__((cleanup(tuttiCudaRestore)))

/* To the GPU, whatever is running or being captured; returns when it is there. */
static inline tuttiResult_t tuttiCudaTell(void *to, const void *from, size_t bytes,
                                          cudaStream_t stream) {
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  CUDA_TRY(cudaThreadExchangeStreamCaptureMode(&mode));
  cudaError_t err = cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream);
  if (err == cudaSuccess) err = cudaStreamSynchronize(stream);
  cudaThreadExchangeStreamCaptureMode(&mode);
  return tuttiCudaCheck(err, "a copy to the GPU");
}

#endif

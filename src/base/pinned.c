#include "base/pinned.h"

#ifdef TUTTI_HAVE_CUDA

#include "base/cuda.h"

tuttiResult_t tuttiPin(int rank, int device, void *memory, size_t bytes, tuttiPinned *out) {
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  if (device < 0) return tuttiSuccess;
  TUTTI_TRY(tuttiCudaEnter(device, &before)); /* or the default one would be set up */
  cudaError_t err =
      cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (err != cudaSuccess) {
    cudaGetLastError(); /* so that no later call finds it */
    return TUTTI_FAIL(tuttiUnhandledCudaError,
                      "rank %d cannot let its GPU reach %zu bytes of host memory: %s (%s); raise "
                      "`ulimit -l` or lower TUTTI_BUFFSIZE",
                      rank, bytes, cudaGetErrorString(err), cudaGetErrorName(err));
  }
  *out = (tuttiPinned){.memory = memory, .device = device};
  return tuttiSuccess;
}

void tuttiUnpin(tuttiPinned *pinned) {
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  if (pinned->memory && tuttiCudaEnter(pinned->device, &before) == tuttiSuccess)
    cudaHostUnregister(pinned->memory);
  pinned->memory = NULL;
}

#else

/* Without CUDA there is no GPU to do anything for. */
tuttiResult_t tuttiPin(int rank, int device, void *memory, size_t bytes, tuttiPinned *out) {
  (void)rank, (void)device, (void)memory, (void)bytes, (void)out;
  return tuttiSuccess;
}
void tuttiUnpin(tuttiPinned *pinned) {
  (void)pinned;
}

#endif

#ifdef TUTTI_HAVE_CUDA

#include "base/cuda_ipc.h"

#include <pthread.h>
#include <string.h>

#include "base/os.h"

/* The driver counts who has opened a handle, but two threads that open the same one at the same
 * moment meet: one of them gets cudaErrorAlreadyMapped. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

cudaError_t tuttiCudaIpcOpen(const void *handle, void **at) {
  cudaIpcMemHandle_t aligned;
  memcpy(&aligned, handle, sizeof aligned);
  TUTTI_LOCKED(&lock);
  return cudaIpcOpenMemHandle(at, aligned, cudaIpcMemLazyEnablePeerAccess);
}

void tuttiCudaIpcClose(void *at) {
  TUTTI_LOCKED(&lock);
  cudaIpcCloseMemHandle(at);
}

#endif

/* Memory of another process's GPU by CUDA IPC. For sources that are built with CUDA. */
#ifndef TUTTI_BASE_CUDA_IPC_H_
#define TUTTI_BASE_CUDA_IPC_H_

#include <cuda_runtime_api.h>

/* Maps the memory of a cudaIpcMemHandle_t, which need not be aligned, for the current GPU. What
 * several ranks of a process map is mapped once, and stays until all have closed it. One call waits
 * for another thread's, whatever the GPU. */
cudaError_t tuttiCudaIpcOpen(const void *handle, void **at);
void tuttiCudaIpcClose(void *at);

#endif

/* A stand-in for libcuda.so.1 on machines without a GPU. Its memory is that of no CPU: a device
 * pointer leads to pages that nobody may touch, and only copies through the driver's calls reach
 * the bytes. Streams are threads, and their copies take their time. Beside the driver's own names
 * it has calls to make it behave. Thread-safe. */
#pragma once

#include "driver.h"

#ifdef __cplusplus
extern "C" {
#endif

cuResult cuInit(unsigned flags);
cuResult cuMemAlloc_v2(cuPointer *pointer, size_t bytes);
/* Waits for all copies, as the driver does. */
cuResult cuMemFree_v2(cuPointer pointer);
cuResult cuMemcpyHtoD_v2(cuPointer to, const void *from, size_t bytes);
cuResult cuMemcpyDtoH_v2(void *to, cuPointer from, size_t bytes);
/* A descriptor that stands for the memory, and can do nothing. */
cuResult cuMemGetHandleForAddressRange(void *fd, cuPointer pointer, size_t bytes, int type,
                                       unsigned long long flags);

#define X(name, symbol, arguments) cuResult symbol arguments;
CU_CALLS(X)
#undef X

/* Memory that has a descriptor, which stays the caller's, from here or from another process. */
cuResult fakeCudaImport(int fd, size_t bytes, cuPointer *pointer);
/* Each copy on a stream takes between 0 and so many microseconds longer. */
void fakeCudaDelay(unsigned microseconds);
/* While it is set, a kernel fills the GPU: copies that the driver makes by kernels wait. */
void fakeCudaOccupy(int occupied);
/* The next copy that is given to a stream fails. */
void fakeCudaFail(void);
/* While it is set, copies of two dimensions inside a GPU need the driver's own pitch, and fail. */
void fakeCudaPitch(int strict);
/* Copies that were given to streams so far, and those of them that are not done. */
unsigned fakeCudaCopies(void);
unsigned fakeCudaPending(void);
/* Ranges of host memory that are pinned. */
unsigned fakeCudaPinned(void);

#ifdef __cplusplus
}
#endif

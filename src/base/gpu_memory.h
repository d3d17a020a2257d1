/* Memory of a GPU that NICs are to read and write by themselves (GPUDirect RDMA). Without CUDA
 * there is none: allocating fails, all else does nothing. */
#ifndef TUTTI_BASE_GPU_MEMORY_H_
#define TUTTI_BASE_GPU_MEMORY_H_

#include <stdbool.h>
#include <stddef.h>
#include <sys/cdefs.h>

#include "tutti.h"

__BEGIN_DECLS

typedef struct {
  void *memory; /* as kernels and registrations know it; no CPU may touch it. NULL: none */
  size_t bytes;
  int device;    /* that this rank reaches it by */
  bool borrowed; /* from another process, see tuttiGpuBorrow */
} tuttiGpuMemory;

#define TUTTI_GPU_UNIT ((size_t)2 << 20) /* what a driver maps for a NIC at least */
/* Allocates at least `bytes` on CUDA device `device`, in units that a NIC can map. Not while
 * kernels may wait for this rank, for which the allocation could wait in turn. `rank` is for the
 * error. */
tuttiResult_t tuttiGpuAlloc(int rank, int device, size_t bytes, tuttiGpuMemory *out);
void tuttiGpuFree(
    tuttiGpuMemory *m); /* no NIC and no kernel uses it any more; may be called again */

/* Memory of `device` for another process, `bytes` of whole units of a NIC's, which this one does
 * not map: descriptors for tuttiGpuBorrow and of a dma-buf, the caller's to close. It lives as long
 * as somebody has one of them, or has it mapped. NULL, or what the driver does not do and why; then
 * there are none. */
typedef struct {
  int memory, dmabuf;
} tuttiGpuLoan;
const char *tuttiGpuLend(int device, size_t bytes, tuttiGpuLoan *out);
/* Maps such memory, of another GPU, say, for kernels of `device`; `fd` stays the caller's. NULL, or
 * as above. To be freed like other memory, with no kernel at it. */
const char *tuttiGpuBorrow(int device, int fd, size_t bytes, tuttiGpuMemory *out);

/* The allocation of CUDA that holds all of it; false: none does, or none that can be asked for. */
bool tuttiGpuAllocation(const tuttiGpuMemory *m, tuttiGpuMemory *whole);
/* A dma-buf of all of it, which is whole pages, the caller's to close; -1: driver or kernel have
 * none. */
int tuttiGpuExport(const tuttiGpuMemory *m);

/* Copy [at, at + bytes) from and to host memory, and return when that is done. */
tuttiResult_t tuttiGpuRead(const tuttiGpuMemory *m, size_t at, void *to, size_t bytes);
tuttiResult_t tuttiGpuWrite(const tuttiGpuMemory *m, size_t at, const void *from, size_t bytes);

/* What a NIC has written may be invisible to kernels of `device` for a while after the NIC says
 * that it is there, until something is read over the same way: the device's driver does not promise
 * that such writes keep their order for the GPU that owns the memory. */
bool tuttiGpuNeedsFlush(int device);
/* Makes it visible by a call of the driver, slowly. */
tuttiResult_t tuttiGpuFlush(int device);

__END_DECLS

#endif

/* GPU memory by the driver's virtual memory management: physical memory that can be mapped at any
 * address, by any GPU and any process that has been given it. Thin wrappers, for threads that have
 * entered a GPU; each returns a cudaError_t, whose numbers the driver's errors share. */
#ifndef TUTTI_BASE_VMM_H_
#define TUTTI_BASE_VMM_H_

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

/* Physical memory, held; a number that all of the process may use meanwhile. */
typedef uint64_t tuttiVmmHandle;

/* The GPU has it, and its memory can be handed to other processes: that is tried once. */
bool tuttiVmmHas(int device);

/* Makes the context of a GPU that this thread has entered, if there is none yet, and this thread's:
 * the calls below want it. */
cudaError_t tuttiVmmBind(int device);

/* Makes memory of at least *bytes, which becomes what it has, multiples of *unit; all is mapped in
 * such units. */
cudaError_t tuttiVmmCreate(int device, size_t *bytes, tuttiVmmHandle *out);
cudaError_t tuttiVmmUnit(int device, size_t *unit);
/* Lets go; the memory stays as long as somebody holds it or has it mapped. */
void tuttiVmmRelease(tuttiVmmHandle handle);
/* Holds what is mapped at an address, and tells from where to where it is; cudaErrorInvalidValue
 * for memory of another kind. */
cudaError_t tuttiVmmHold(uintptr_t at, tuttiVmmHandle *out, uintptr_t *base, size_t *bytes);

/* A descriptor for another process, the caller's to close, and what has come from one, held. */
cudaError_t tuttiVmmExport(tuttiVmmHandle handle, int *fd);
cudaError_t tuttiVmmImport(int fd, tuttiVmmHandle *out);

/* Addresses without memory. */
cudaError_t tuttiVmmReserve(size_t bytes, uintptr_t *out);
void tuttiVmmUnreserve(uintptr_t at, size_t bytes);
/* Maps all of `handle` at reserved addresses, for `device` to read and write. */
cudaError_t tuttiVmmMap(uintptr_t at, size_t bytes, tuttiVmmHandle handle, int device);
void tuttiVmmUnmap(uintptr_t at, size_t bytes);

/* Memory of the current GPU at an address of its own, for all GPUs of the process that can reach
 * it. */
cudaError_t tuttiVmmAlloc(size_t bytes, void **out);
/* Frees memory of tuttiVmmAlloc when its GPU is idle; cudaErrorInvalidValue for any other. */
cudaError_t tuttiVmmFree(void *memory);
/* The same at once; no kernel may use it. `bytes`: as they were asked for. */
void tuttiVmmFreeIdle(int device, void *memory, size_t bytes);

__END_DECLS

#endif

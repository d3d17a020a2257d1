/* What kernels of the user find windows by: GPU memory of one communicator with a struct
 * tuttiWindow for each window that they can work on, and a list of these by address, in the layout
 * that NCCL's device code looks it up in. Made with the first such window, by the driver's virtual
 * memory management: unlike cudaMalloc it waits for no kernel that may wait for this rank. */
#ifndef TUTTI_DEVICE_CUDA_WINDOW_TABLE_H_
#define TUTTI_DEVICE_CUDA_WINDOW_TABLE_H_

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "device/cuda/flat.h"
#include "tutti.h"

__BEGIN_DECLS

#define TUTTI_WINDOW_ROW 32 /* entries of a piece of the list */

typedef struct {
  uint64_t base, size; /* of this rank's part; 0: there is none */
  uint64_t window;     /* address of its struct tuttiWindow */
} tuttiWindowEntry;

typedef struct {
  tuttiWindowEntry entry[TUTTI_WINDOW_ROW];
  uint64_t next; /* address of the next piece; 0: this is the last */
} tuttiWindowRow;

typedef struct {
  uint8_t *memory; /* NULL: not made yet */
  int device;
  cudaStream_t stream; /* for copies to the GPU, which are waited for */
} tuttiWindowTable;

/* Makes it on the current GPU, unless it is there. */
tuttiResult_t tuttiWindowTableMake(tuttiWindowTable *t, int device, cudaStream_t stream);
/* No kernel looks into it any more. May be called again. */
void tuttiWindowTableFree(tuttiWindowTable *t);

/* How kernels of this rank see the local team's parts of a flat range. `beside`: bytes from the
 * range's base to what they are to see. */
struct tuttiWindow tuttiWindowSeen(const tuttiFlat *flat, size_t beside, const tuttiCommView *v);
/* Tells kernels of window `index` at `buff`; *out: where they see it. */
tuttiResult_t tuttiWindowTableAdd(tuttiWindowTable *t, int index, const struct tuttiWindow *seen,
                                  uintptr_t buff, size_t size, tuttiWindow_t *out);
/* Takes it out of the list; *t may be of a communicator that has failed. */
void tuttiWindowTableRemove(const tuttiWindowTable *t, int index);

__END_DECLS

#endif

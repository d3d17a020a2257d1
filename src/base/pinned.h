/* Host memory that the kernels of a GPU work on. */
#ifndef TUTTI_BASE_PINNED_H_
#define TUTTI_BASE_PINNED_H_

#include <stddef.h>
#include <sys/cdefs.h>

#include "tutti.h"

__BEGIN_DECLS

typedef struct {
  void *memory; /* NULL: none */
  int device;   /* that reaches it */
} tuttiPinned;

/* Lets CUDA device `device` reach host memory, page-aligned, which stays the caller's; does nothing
 * if `device` is -1: there is no GPU to do it for. `rank` is whose memory it is, for the error. */
tuttiResult_t tuttiPin(int rank, int device, void *memory, size_t bytes, tuttiPinned *out);
/* Before the memory goes; no kernel may use it any more. May be called again. */
void tuttiUnpin(tuttiPinned *pinned);

__END_DECLS

#endif

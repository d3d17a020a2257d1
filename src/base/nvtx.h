/* Ranges in the timeline of a tool that listens to NVTX, such as Nsight Systems. */
#ifndef TUTTI_BASE_NVTX_H_
#define TUTTI_BASE_NVTX_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "base/atomic.h"

__BEGIN_DECLS

extern tuttiAtomic32 tuttiRangesUnheard; /* 1: no tool listens, or the build found no NVTX */
uint64_t tuttiRangeStart(const char *name, size_t bytes, int rank, uint64_t tag);
/* Opens a range, which is shown with bytes, rank (-1: not of one rank) and tag, which is the
 * user's. 0 if nobody listens. */
static inline uint64_t tuttiRangeOpen(const char *name, size_t bytes, int rank, uint64_t tag) {
  return tuttiLoadAcquire32(&tuttiRangesUnheard) ? 0 : tuttiRangeStart(name, bytes, rank, tag);
}
/* Closes it, from any thread; 0 is ignored. */
void tuttiRangeClose(uint64_t range);

__END_DECLS

#endif

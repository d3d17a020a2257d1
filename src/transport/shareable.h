/* Host memory of tuttiMemAlloc. It is the process's own until somebody wants to share it, which is
 * when a window is registered in it: then the pages of that become memory of a memfd, at the same
 * address and with the same contents, that neighbours can map. Regions of the network (region.h),
 * as what is promised to stay. */
#ifndef TUTTI_TRANSPORT_SHAREABLE_H_
#define TUTTI_TRANSPORT_SHAREABLE_H_

#include <sys/cdefs.h>

#include "transport/peer_fd.h"
#include "tutti.h"

__BEGIN_DECLS

/* Whole pages, zero at first; thread-safe, as all here. */
tuttiResult_t tuttiShareableAlloc(void **ptr, size_t size);
/* NULL and what is not of Alloc are left alone. */
void tuttiShareableFree(void *ptr);

/* Where some memory is in a memfd; fd.fd is -1 where it is in none. */
typedef struct {
  tuttiPeerFd fd;
  uint64_t offset, bytes; /* of the memory in it; of all of it, shared or not */
} tuttiShareableCard;

/* Shares the pages that hold [at, at + bytes), if that is some of one allocation. Nobody may write
 * to these pages or be sending from them meanwhile; the allocation's others may be in use. */
void tuttiShareableShare(const void *at, size_t bytes, tuttiShareableCard *card);

/* Maps what a process has shared, all of it, after it has been checked; NULL if it cannot be had.
 */
void *tuttiShareableMap(int32_t pid, const tuttiShareableCard *card);
void tuttiShareableUnmap(void *mapped, const tuttiShareableCard *card);

__END_DECLS

#endif

/* Host memory of tuttiMemAlloc. It is the process's own until somebody wants to share it, which is
 * when a window is registered in it: then it becomes memory of a memfd, at the same address and
 * with the same contents, that neighbours can map. Regions of the network (region.h), as what is
 * promised to stay. */
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
  uint64_t offset, bytes; /* of the memory in it; of all of it */
} tuttiShareableCard;

/* Shares the allocation that holds all of [at, at + bytes), if there is one. Nobody may write to it
 * or be sending from it meanwhile. */
void tuttiShareableShare(const void *at, size_t bytes, tuttiShareableCard *card);

/* Maps what a process has shared, all of it, after it has been checked; NULL if it cannot be had.
 */
void *tuttiShareableMap(int32_t pid, const tuttiShareableCard *card);
void tuttiShareableUnmap(void *mapped, const tuttiShareableCard *card);

__END_DECLS

#endif

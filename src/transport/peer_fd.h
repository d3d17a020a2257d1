/* Descriptors of other processes, opened through /proc without a word from their owner: it may be
 * busy, or stopped. The kernel allows it where one process may look into the other (one user, both
 * dumpable) and the numbers of processes mean the same to both; whoever wants one tries. */
#ifndef TUTTI_TRANSPORT_PEER_FD_H_
#define TUTTI_TRANSPORT_PEER_FD_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

/* Its number in its process, and the file that it is of. Numbers of processes and descriptors are
 * reused, and mean others in another namespace: the file tells. */
typedef struct {
  int32_t fd; /* -1: none */
  uint64_t device, inode;
} tuttiPeerFd;

/* Describes a descriptor of this process; 0 or an errno. */
int tuttiPeerFdDescribe(int fd, tuttiPeerFd *out);
/* A descriptor of the same file for reading and writing, close-on-exec. Else a negative errno, and
 * `why` says more: -ESTALE if the number is of another file, -EPERM if that is another user's. */
int tuttiPeerFdOpen(int32_t pid, const tuttiPeerFd *of, char *why, size_t size);

__END_DECLS

#endif

/* The segment of one rank: the memory that holds every FIFO it writes to its neighbours, the other
 * ranks of its host, and nothing of anyone else's. It is a memfd, made before the peer records are
 * exchanged. Neighbours map it when they read from it first, or share the mapping that their
 * process has. Large ones are mapped in parts, each when a FIFO in it is opened first; a neighbour
 * maps what concerns it, and keeps no descriptor.
 *
 *   [header] [control: descriptors and credits of all FIFOs] [data of each FIFO, on its own pages]
 *
 * The header has the token that the owner's peer record has, which only ranks of the communicator
 * know: whatever a neighbour gets, from whom and however, is not believed without it. How large the
 * segment is comes from what all ranks know, but only once they have met, so whoever needs it
 * first, the owner or a neighbour, gives it its size and seals that.
 *
 * For staged kernels between all pairs (kernels/allpairs.h) there is a symmetric block instead.
 * GPUs have, in front of the data, one more FIFO for each neighbour, of TUTTI_RMA_CHANNEL, with
 * descriptors and data together; how much of one-sided operations a rank wants, others do not know.
 * In the control part come first the shared FIFOs (one per channel, a credit per neighbour), then
 * the pair FIFOs (one per channel, TUTTI_P2P_CHANNEL last, and neighbour; one credit), channel by
 * channel. So small messages of many FIFOs touch few pages, and pages that no message touches cost
 * nothing. The data of pair FIFOs come neighbour by neighbour, as each maps its own.
 *
 * Memory is counted once, with the rank that owns the segment: the pages in use, whoever touched
 * them first. Mappings of other ranks' segments add none, so the counts of all ranks add up to what
 * the host has lost. */
#ifndef TUTTI_TRANSPORT_SEGMENT_H_
#define TUTTI_TRANSPORT_SEGMENT_H_

#include <pthread.h>
#include <stdbool.h>
#include <sys/cdefs.h>

#include "transport/transport.h"

__BEGIN_DECLS

typedef struct tuttiSegment tuttiSegment;
typedef struct tuttiHouse tuttiHouse;

struct tuttiShmDesk;

/* What one rank shares with its neighbours. Segments come from attach and go with detach. */
typedef struct tuttiLocal {
  int nlocal;                /* ranks of this host, this one included */
  int32_t *place;            /* [nranks] number among them, in order of rank; -1 on other hosts */
  tuttiSegment *mine;        /* the one this rank writes to */
  bool *sends;               /* [nranks + 1] this rank opened a FIFO for it; the last: for all */
  tuttiHouse *house;         /* where threads of this process find each other's segments */
  pthread_mutex_t lock;      /* of: */
  tuttiSegment **theirs;     /* [nranks] those of other processes, and of GPUs; NULL: none yet */
  int listenFd;              /* shm.c: where neighbours ask for the segment; -1 when closed */
  struct tuttiShmDesk *desk; /* shm.c: who answers there, or NULL */
} tuttiLocal;

/* Makes v->local, and this rank's segment, before peers are exchanged: it keeps the segments of
 * this process from going while this rank may still want one. Attach makes it ready for FIFOs. Do
 * nothing the second time. */
tuttiResult_t tuttiLocalPrepare(tuttiCommView *v);
tuttiResult_t tuttiLocalAttach(tuttiCommView *v);
/* Instead of attach: there is nobody to share a segment with. */
void tuttiLocalAlone(tuttiCommView *v);
/* Lets go of all of it. A segment's memory goes with the last that holds it. */
void tuttiLocalDetach(tuttiCommView *v);
/* Bytes of the segment of a rank of a host with so many, as v has slots and channels. */
size_t tuttiLocalBytes(const tuttiCommView *v, int nlocal);
/* Brings v->memory up to date with the pages in use. */
void tuttiLocalMeasure(tuttiCommView *v);

/* Bytes of payload slots in use, and their return to the system: no message may be under way, and
 * what was sent before must have been read. */
size_t tuttiLocalSlotBytes(const tuttiCommView *v);
void tuttiLocalTrim(tuttiCommView *v);

/* Of this rank's, for its peer record. */
tuttiResult_t tuttiSegmentDescribe(const tuttiCommView *v, tuttiPeer *mine);
/* Of v->local->mine; stays its property. */
int tuttiSegmentFd(const tuttiCommView *v);
/* Of this rank or a neighbour, where it is mapped, behind the header. */
void *tuttiSegmentMemory(const tuttiCommView *v, int rank);

/* It is another rank of this host, and this one is attached. */
bool tuttiSegmentNeighbour(const tuttiCommView *v, int rank);
/* Segments of neighbours in other processes, and of GPUs; any thread. Has: this rank has that of
 * `owner`. Take makes it so: checks that fd, which it leaves open, is the one that the owner's
 * record describes, of the size this communicator has, and of a kind that nobody can shrink. */
bool tuttiSegmentHas(const tuttiCommView *v, int owner);
tuttiResult_t tuttiSegmentTake(tuttiCommView *v, int owner, int fd);
/* There may be messages for `reader` in this rank's segment, and it has not taken it. */
bool tuttiSegmentOwed(const tuttiCommView *v, int reader);

/* Both ranks are threads of one process on host memory: they find each other's segments without a
 * hand-over. The same on both. */
bool tuttiSegmentInProcess(const tuttiPeer *a, const tuttiPeer *b);

/* One endpoint of a FIFO: what open() of P2P and SHM has in common. To receive, this rank must have
 * the peer's segment. An endpoint that was closed before goes on where it was. */
tuttiResult_t tuttiSegmentOpen(tuttiCommView *v, int peer, int channel, tuttiDirection direction,
                               bool shared, tuttiConn *conn);

__END_DECLS

#endif

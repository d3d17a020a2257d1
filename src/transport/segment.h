/* The segment of one rank: the memory that holds every FIFO it writes to its neighbours, the other
 * ranks of its host, and nothing of anyone else's. Neighbours map it, a memfd that comes over a
 * Unix socket (shm.c), or share the mapping that their process has. Large ones are mapped in parts,
 * each when a FIFO in it is opened first.
 *
 *   [control: descriptors and credits of all FIFOs] [data of each FIFO, on pages of its own]
 *
 * For staged kernels between all pairs (kernels/allpairs.h) there is a symmetric block instead.
 * In both parts come first the shared FIFOs (one per channel, a credit per neighbour), then the
 * pair FIFOs (one per channel, TUTTI_P2P_CHANNEL last, and neighbour; one credit). So small
 * messages of many FIFOs touch few pages, and pages that no message touches cost nothing.
 *
 * Memory is counted once, with the rank that owns the segment: the pages in use, whoever touched
 * them first. Mappings of other ranks' segments add none, so the counts of all ranks add up to what
 * the host has lost. */
#ifndef TUTTI_TRANSPORT_SEGMENT_H_
#define TUTTI_TRANSPORT_SEGMENT_H_

#include <sys/cdefs.h>

#include "transport/transport.h"

__BEGIN_DECLS

typedef struct tuttiSegment tuttiSegment;
typedef struct tuttiHouse tuttiHouse;

/* What one rank shares with its neighbours. Segments come from attach and go with detach. */
typedef struct tuttiLocal {
  int listenFd;          /* shm.c: where neighbours hand in their segments; -1 when closed */
  int nlocal;            /* ranks of this host, this one included */
  int32_t *place;        /* [nranks] number among them, in order of rank; -1 on other hosts */
  tuttiSegment *mine;    /* the one this rank writes to */
  tuttiSegment **theirs; /* [nranks] those of other processes, and of GPUs; NULL: none */
  tuttiHouse *house;     /* where threads of this process find each other's segments */
} tuttiLocal;

/* Makes v->local, before peers are exchanged: it keeps the segments of this process from going
 * while this rank may still want one. Attach makes this rank's segment. Do nothing the second time.
 */
tuttiResult_t tuttiLocalPrepare(tuttiCommView *v);
tuttiResult_t tuttiLocalAttach(tuttiCommView *v);
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

/* Fd is of v->local->mine and stays its property; Take checks that fd is a segment of the size this
 * communicator has, of a kind that nobody can shrink, and sets theirs[owner]. Leaves fd open. */
int tuttiSegmentFd(const tuttiCommView *v);
/* Of this rank or a neighbour, where it is mapped. */
void *tuttiSegmentMemory(const tuttiCommView *v, int rank);
tuttiResult_t tuttiSegmentTake(tuttiCommView *v, int owner, int fd);

/* Both ranks are threads of one process on host memory: they find each other's segments without a
 * hand-over. The same on both. */
bool tuttiSegmentInProcess(const tuttiPeer *a, const tuttiPeer *b);

/* One endpoint of a FIFO: what open() of P2P and SHM has in common. An endpoint that was closed
 * before goes on where it was. */
tuttiResult_t tuttiSegmentOpen(tuttiCommView *v, int peer, int channel, tuttiDirection direction,
                               bool shared, tuttiConn *conn);

/* "rank 3 (host a, pid 12), rank 5 (...)": as many of the n ranks as fit; returns buf. */
const char *tuttiLocalNames(const tuttiCommView *v, const int32_t *ranks, int n, char *buf,
                            size_t size);

__END_DECLS

#endif

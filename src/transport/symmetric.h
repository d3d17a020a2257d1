/* The symmetric block of a rank: GPU memory that every neighbour maps, to store into it. Ranks of
 * one process share the address, others get it by CUDA IPC. In a process the memory goes with the
 * last that holds it: a neighbour's last store may be on its way when its owner is done. */
#ifndef TUTTI_TRANSPORT_SYMMETRIC_H_
#define TUTTI_TRANSPORT_SYMMETRIC_H_

#include <sys/cdefs.h>

#include "transport/transport.h"

__BEGIN_DECLS

typedef struct tuttiSymmetric {
  void *mine;       /* zeroed at first */
  void **theirs;    /* [nranks] as this rank maps them; NULL where there is none */
  size_t bytes;     /* of each, but for what is reserved behind them */
  size_t taken;     /* of this rank's memory, all of it */
  void *counts;     /* GPU memory for what this rank alone keeps: mine, unless staged */
  size_t signalsAt; /* in this rank's block: what is reserved for one-sided operations; 0: none */
} tuttiSymmetric;

/* A block holds what kernels between all pairs need, or else FIFOs: the writer of one stores into
 * the reader's block, and the reader into the head in the writer's. For so many GPUs of a host and
 * channels. */
#define TUTTI_SYMMETRIC_LOCAL    16
#define TUTTI_SYMMETRIC_CHANNELS 16
#define TUTTI_SYMMETRIC_CONTROL  4096 /* of a FIFO: descriptors and head, before its data */
static inline size_t tuttiSymmetricFifo(size_t slotBytes) {
  return TUTTI_SYMMETRIC_CONTROL + TUTTI_FIFO_DEPTH * slotBytes;
}
/* Bytes of its FIFOs with such slots, in a communicator of so many ranks. */
static inline size_t tuttiSymmetricFifos(int nranks, size_t slotBytes) {
  size_t most = nranks < TUTTI_SYMMETRIC_LOCAL ? (size_t)nranks : TUTTI_SYMMETRIC_LOCAL;
  return (most - 1) * (TUTTI_SYMMETRIC_CHANNELS + 1) * tuttiSymmetricFifo(slotBytes);
}
/* Slots may become so much larger when it is known that there are several hosts. */
#define TUTTI_SYMMETRIC_GROWTH 4

/* Allocates this rank's block on the current device, of `bytes` or more if FIFOs take more and with
 * `signals` reserved behind them, which may differ among ranks, and describes it in the peer
 * record.
 */
tuttiResult_t tuttiSymmetricPrepare(tuttiCommView *v, tuttiPeer *mine, size_t bytes,
                                    size_t signals);
/* Makes this rank's endpoint of a FIFO between two mapped blocks; nothing that host code may touch.
 */
tuttiResult_t tuttiSymmetricOpen(tuttiCommView *v, int peer, int channel, tuttiDirection direction,
                                 tuttiConn *conn);
/* Maps the block of `peer`. */
tuttiResult_t tuttiSymmetricMap(tuttiCommView *v, int peer);
/* Staged: puts the segments of this rank and its neighbours, attached and pinned, in the place of
 * blocks in GPU memory, with so many bytes of GPU memory for `counts`. */
tuttiResult_t tuttiSymmetricStage(tuttiCommView *v, size_t bytes);
/* Lets go of all blocks. May be called at any time; no kernel of this rank may be running. */
void tuttiSymmetricDetach(tuttiCommView *v);

__END_DECLS

#endif

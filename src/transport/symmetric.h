/* The symmetric block of a rank: GPU memory that every neighbour maps, to store into it. Ranks of
 * one process share the address, others get it by CUDA IPC. The memory goes with the last that
 * holds it: a neighbour's last store may be on its way when its owner is done. */
#ifndef TUTTI_TRANSPORT_SYMMETRIC_H_
#define TUTTI_TRANSPORT_SYMMETRIC_H_

#include <sys/cdefs.h>

#include "transport/transport.h"

__BEGIN_DECLS

typedef struct tuttiSymmetric {
  void *mine;    /* zeroed at first */
  void **theirs; /* [nranks] as this rank maps them; NULL where there is none */
  size_t bytes;  /* of each */
} tuttiSymmetric;

/* Allocates this rank's block on the current device and describes it in the peer record. */
tuttiResult_t tuttiSymmetricPrepare(tuttiWires *w, tuttiPeer *mine, size_t bytes);
/* Maps the block of `peer`. */
tuttiResult_t tuttiSymmetricMap(tuttiWires *w, int peer);
/* Lets go of all blocks. May be called at any time; no kernel of this rank may be running. */
void tuttiSymmetricDetach(tuttiWires *w);

__END_DECLS

#endif

/* One side of a comparison: the same timing loop (peer.c) over the collectives of one library. */
#ifndef TUTTI_BENCH_PEER_H_
#define TUTTI_BENCH_PEER_H_

#include <stddef.h>

typedef enum { peerAllReduce, peerBroadcast, peerAllGather } peerCollective;

/* Sets rank and nranks from what mpirun tells; ends the process on failure. */
void peerStart(int *rank, int *nranks);
/* One call over `count` float32: of the whole buffer, for all-gather of each rank's block. The root
 * of a broadcast is rank 0. */
void peerCall(peerCollective collective, const float *send, float *recv, size_t count);
/* The maximum over all ranks; also a barrier. */
double peerMax(double value);
void peerStop(void);

#endif

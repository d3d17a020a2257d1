/* One side of a comparison: the same timing loop (peer.c) over the collectives of one library. */
#ifndef TUTTI_BENCH_PEER_H_
#define TUTTI_BENCH_PEER_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  peerAllReduce,
  peerBroadcast,
  peerAllGather,
  peerReduceScatter,
  peerAllToAll,
  peerReduce,
  peerGather,
  peerScatter,
  peerBarrier,
  peerCollectives
} peerCollective;

/* Sets rank and nranks from what mpirun tells; ends the process on failure. */
void peerStart(int *rank, int *nranks);
/* One call over `count` float32: of the whole buffer for all-reduce, broadcast and reduce,
 * otherwise of one rank's block; a barrier has none. Roots are rank 0. Buffers are apart, but for
 * broadcasts. */
void peerCall(peerCollective collective, const float *send, float *recv, size_t count);
/* The maximum over all ranks; also a barrier. */
double peerMax(double value);
void peerStop(void);

/* A number that mpirun set, of Open MPI or of MPICH; ends the process where neither did. */
int peerPlace(const char *openMpi, const char *mpich);

#ifdef __cplusplus
}
#endif

#endif

#include <mpi.h>

#include "peer.h"

/* MPI's own error handler ends the job. */
void peerStart(int *rank, int *nranks) {
  MPI_Init(NULL, NULL);
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, nranks);
}

/* MPI's broadcast is in place: the root sends what lies in `recv`. */
void peerCall(peerCollective collective, const float *send, float *recv, size_t count) {
  MPI_Comm all = MPI_COMM_WORLD;
  int n = (int)count;
  switch (collective) {
  case peerAllReduce:
    MPI_Allreduce(send, recv, n, MPI_FLOAT, MPI_SUM, all);
    break;
  case peerBroadcast:
    MPI_Bcast(recv, n, MPI_FLOAT, 0, all);
    break;
  case peerAllGather:
    MPI_Allgather(send, n, MPI_FLOAT, recv, n, MPI_FLOAT, all);
    break;
  case peerReduceScatter:
    MPI_Reduce_scatter_block(send, recv, n, MPI_FLOAT, MPI_SUM, all);
    break;
  case peerAllToAll:
    MPI_Alltoall(send, n, MPI_FLOAT, recv, n, MPI_FLOAT, all);
    break;
  case peerReduce:
    MPI_Reduce(send, recv, n, MPI_FLOAT, MPI_SUM, 0, all);
    break;
  case peerGather:
    MPI_Gather(send, n, MPI_FLOAT, recv, n, MPI_FLOAT, 0, all);
    break;
  case peerScatter:
    MPI_Scatter(send, n, MPI_FLOAT, recv, n, MPI_FLOAT, 0, all);
    break;
  case peerBarrier:
    MPI_Barrier(all);
    break;
  case peerCollectives:
    break;
  }
}

double peerMax(double value) {
  double most;
  MPI_Allreduce(&value, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return most;
}

void peerStop(void) {
  MPI_Finalize();
}

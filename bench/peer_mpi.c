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
  int n = (int)count;
  if (collective == peerAllReduce)
    MPI_Allreduce(send, recv, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else if (collective == peerBroadcast)
    MPI_Bcast(recv, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
  else
    MPI_Allgather(send, n, MPI_FLOAT, recv, n, MPI_FLOAT, MPI_COMM_WORLD);
}

double peerMax(double value) {
  double most;
  MPI_Allreduce(&value, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return most;
}

void peerStop(void) {
  MPI_Finalize();
}

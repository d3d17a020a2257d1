/* Started by mpirun like its rival, with TUTTI_COMM_ID set; calls nothing of MPI. */
#include <stdio.h>
#include <stdlib.h>

#include "peer.h"
#include "tutti.h"

static tuttiComm_t comm;

static void check(tuttiResult_t result) {
  if (result == tuttiSuccess) return;
  fprintf(stderr, "%s: %s\n", tuttiGetErrorString(result), tuttiGetLastError(comm));
  exit(1);
}

void peerStart(int *rank, int *nranks) {
  tuttiUniqueId id;
  *rank = peerPlace("OMPI_COMM_WORLD_RANK", "PMI_RANK");
  *nranks = peerPlace("OMPI_COMM_WORLD_SIZE", "PMI_SIZE");
  check(tuttiGetUniqueId(&id));
  check(tuttiCommInitRank(&comm, *nranks, id, *rank));
}

static tuttiResult_t call(peerCollective collective, const float *send, float *recv, size_t n) {
  static float barrier[2];
  tuttiDataType_t type = tuttiFloat32;
  switch (collective) {
  case peerAllReduce:
    return tuttiAllReduce(send, recv, n, type, tuttiSum, comm, NULL);
  case peerBroadcast:
    return tuttiBcast(recv, n, type, 0, comm, NULL);
  case peerAllGather:
    return tuttiAllGather(send, recv, n, type, comm, NULL);
  case peerReduceScatter:
    return tuttiReduceScatter(send, recv, n, type, tuttiSum, comm, NULL);
  case peerAllToAll:
    return tuttiAlltoAll(send, recv, n, type, comm, NULL);
  case peerReduce:
    return tuttiReduce(send, recv, n, type, tuttiSum, 0, comm, NULL);
  case peerGather:
    return tuttiGather(send, recv, n, type, 0, comm, NULL);
  case peerScatter:
    return tuttiScatter(send, recv, n, type, 0, comm, NULL);
  case peerBarrier:
    return tuttiAllReduce(barrier, barrier + 1, 1, type, tuttiSum, comm, NULL);
  case peerCollectives:
    break;
  }
  return tuttiInternalError;
}

/* Broadcast in place, as MPI's is. There is no barrier: an all-reduce of one element is one. */
void peerCall(peerCollective collective, const float *send, float *recv, size_t count) {
  check(call(collective, send, recv, count));
}

double peerMax(double value) {
  double most;
  check(tuttiAllReduce(&value, &most, 1, tuttiFloat64, tuttiMax, comm, NULL));
  return most;
}

void peerStop(void) {
  check(tuttiCommDestroy(comm));
}

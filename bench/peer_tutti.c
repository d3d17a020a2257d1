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

static int place(const char *variable) {
  const char *text = getenv(variable);
  if (text) return atoi(text);
  fprintf(stderr, "%s is not set: start this program with mpirun\n", variable);
  exit(2);
}

void peerStart(int *rank, int *nranks) {
  tuttiUniqueId id;
  *rank = place("OMPI_COMM_WORLD_RANK");
  *nranks = place("OMPI_COMM_WORLD_SIZE");
  check(tuttiGetUniqueId(&id));
  check(tuttiCommInitRank(&comm, *nranks, id, *rank));
}

/* Broadcast in place, as MPI's is. */
void peerCall(peerCollective collective, const float *send, float *recv, size_t count) {
  if (collective == peerAllReduce)
    check(tuttiAllReduce(send, recv, count, tuttiFloat32, tuttiSum, comm, NULL));
  else if (collective == peerBroadcast)
    check(tuttiBcast(recv, count, tuttiFloat32, 0, comm, NULL));
  else
    check(tuttiAllGather(send, recv, count, tuttiFloat32, comm, NULL));
}

double peerMax(double value) {
  double most;
  check(tuttiAllReduce(&value, &most, 1, tuttiFloat64, tuttiMax, comm, NULL));
  return most;
}

void peerStop(void) {
  check(tuttiCommDestroy(comm));
}

/* P2P: ranks that are threads of one process. They find each other's segments in a table of the
 * process (segment.c); the reader shares the writer's mapping and, because it can dereference the
 * writer's memory, takes large payloads from where they are. */
#include <stdio.h>

#include "base/error.h"
#include "transport/segment.h"
#include "transport/stub.h"
#include "transport/symmetric.h"

/* GPUs of one host: through pointers in one process, else by CUDA IPC. */
static void cudaCanConnect(const tuttiPeer *a, const tuttiPeer *b, tuttiPath *path) {
  bool same = a->process == b->process;
  path->latencyUs = 1.0f;
  path->bandwidthGBs = 300.0f;
  if (!same) snprintf(path->via, sizeof path->via, "P2P/IPC");
  if (a->hostId != b->hostId)
    TUTTI_WHY(path, "different hosts (%s, %s)", a->host, b->host);
  else if (!same && !(a->ipc && b->ipc))
    TUTTI_WHY(path, "rank %d has no CUDA IPC", a->ipc ? b->rank : a->rank);
  else if (a->busId != b->busId && !(a->reaches && b->reaches))
    TUTTI_WHY(path, "the driver gives the GPU of rank %d no peer access",
              a->reaches ? b->rank : a->rank);
  else {
    path->possible = true;
    TUTTI_WHY(path, "GPUs of one host");
  }
}

static void p2pCanConnect(const tuttiPeer *a, const tuttiPeer *b, tuttiPath *path) {
  *path = (tuttiPath){.latencyUs = 0.2f, .bandwidthGBs = 12.0f, .via = "P2P/direct pointer"};
  if (a->p2pDisabled || b->p2pDisabled)
    TUTTI_WHY(path, "TUTTI_P2P_DISABLE=1");
  else if (a->device == tuttiDeviceCuda && b->device == tuttiDeviceCuda)
    cudaCanConnect(a, b, path);
  else if (a->process != b->process || a->hostId != b->hostId)
    TUTTI_WHY(path, "different processes (%d, %d)", a->pid, b->pid);
  else if (!a->shmSocket || !b->shmSocket)
    TUTTI_WHY(path, "rank %d takes no segments", a->shmSocket ? b->rank : a->rank);
  else {
    path->possible = true;
    TUTTI_WHY(path, "threads of one process");
  }
}

/* A shared FIFO may have readers in other processes, who can't follow pointers. */
static bool readersFollow(const tuttiCommView *v, int peer) {
  if (peer >= 0) return true;
  const tuttiPeer *mine = &v->peers[v->rank];
  for (int r = 0; r < v->nranks; r++)
    if (v->local->place[r] >= 0 && v->peers[r].process != mine->process) return false;
  return true;
}

static tuttiResult_t p2pOpen(tuttiCommView *v, int peer, int channel, tuttiDirection direction,
                             bool shared, tuttiConn *conn) {
  if (v->symmetric) return tuttiSymmetricOpen(v, peer, channel, direction, conn);
  TUTTI_TRY(tuttiSegmentOpen(v, peer, channel, direction, shared, conn));
  conn->direct = readersFollow(v, peer);
  conn->transport = &tuttiTransportP2p;
  return tuttiSuccess;
}

const tuttiTransport tuttiTransportP2p = {
    .name = "P2P",
    .canConnect = p2pCanConnect,
    .prepare = tuttiTransportNothingToPrepare,
    .attach = tuttiTransportNothingToAttach,
    .open = p2pOpen,
    .close = tuttiTransportNothingToClose,
    .detach = tuttiTransportNothingToDetach,
    .shared = true,
};

/* P2P: ranks that are threads of one process. They find each other's segments in a table of the
 * process (segment.c); the reader shares the writer's mapping and, because it can dereference the
 * writer's memory, takes large payloads from where they are. */
#include <stdio.h>

#include "transport/segment.h"
#include "transport/stub.h"
#include "transport/symmetric.h"

#define P2P_REASONS(X)                                                                             \
  X(P2P_THREADS, "threads of one process")                                                         \
  X(P2P_GPUS, "GPUs of one host")                                                                  \
  X(P2P_DISABLED, "TUTTI_P2P_DISABLE=1")                                                           \
  X(P2P_PROCESSES, "different processes (%d, %d)", a->pid, b->pid)                                 \
  X(P2P_HOSTS, "different hosts (%s, %s)", a->host, b->host)                                       \
  X(P2P_DEAF, "rank %d takes no segments", who->rank)                                              \
  X(P2P_NO_IPC, "rank %d has no CUDA IPC", who->rank)                                              \
  X(P2P_NO_ACCESS, "the driver gives the GPU of rank %d no peer access", who->rank)
enum { P2P_REASONS(TUTTI_REASON_NAME) };

static void p2pExplain(tuttiReason why, const tuttiPath *path, const tuttiPeer *a,
                       const tuttiPeer *b, char *buf, size_t size) {
  const tuttiPeer *who = tuttiReasonPeer(why, a, b);
  (void)path;
  switch (why.code) { P2P_REASONS(TUTTI_REASON_TEXT) }
}

/* GPUs of one host: through pointers in one process, else by CUDA IPC. */
static tuttiReason judgeGpus(const tuttiPeer *a, const tuttiPeer *b) {
  if (a->hostId != b->hostId) return (tuttiReason){.code = P2P_HOSTS};
  if (a->process != b->process && !(a->ipc && b->ipc))
    return (tuttiReason){.code = P2P_NO_IPC, .side = a->ipc != 0};
  if (a->busId != b->busId && !(a->reaches && b->reaches))
    return (tuttiReason){.code = P2P_NO_ACCESS, .side = a->reaches != 0};
  return (tuttiReason){.code = P2P_GPUS};
}

static tuttiReason judge(const tuttiPeer *a, const tuttiPeer *b) {
  if (a->p2pDisabled || b->p2pDisabled) return (tuttiReason){.code = P2P_DISABLED};
  if (a->device == tuttiDeviceCuda && b->device == tuttiDeviceCuda) return judgeGpus(a, b);
  if (a->process != b->process || a->hostId != b->hostId)
    return (tuttiReason){.code = P2P_PROCESSES};
  if (!a->shmSocket || !b->shmSocket)
    return (tuttiReason){.code = P2P_DEAF, .side = a->shmSocket != 0};
  return (tuttiReason){.code = P2P_THREADS};
}

static bool p2pCanConnect(const tuttiPeer *a, const tuttiPeer *b, tuttiPath *path,
                          tuttiReason *why) {
  *why = judge(a, b);
  bool gpus = why->code == P2P_GPUS, threads = why->code == P2P_THREADS;
  if (!gpus && !threads) return false;
  path->via = a->process == b->process ? "P2P/direct pointer" : "P2P/IPC";
  path->latencyUs = gpus ? 1.0f : 0.2f;
  path->bandwidthGBs = gpus ? 300.0f : 12.0f;
  path->stores = gpus;
  path->sharedFifos = path->direct = threads;
  return true;
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
    .explain = p2pExplain,
    .prepare = tuttiTransportNothingToPrepare,
    .attach = tuttiTransportNothingToAttach,
    .open = p2pOpen,
    .close = tuttiTransportNothingToClose,
    .detach = tuttiTransportNothingToDetach,
};

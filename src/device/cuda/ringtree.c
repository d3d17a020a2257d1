#include "device/cuda/ringtree.h"

#include "base/os.h"

/* ---- the proxies -----------------------------------------------------------------------------
 * Kernels fill and free the slots of network connections without a word to a proxy. Both therefore
 * keep looking while any kernel is under way. The host counts the launches that it makes. A graph
 * may be launched at any time, and nobody tells when it is gone: its kernels count themselves, and
 * the proxies look at that count now and then, always while it may change soon. */

enum { LINGER_NS = 1000000, LOOK_NS = 200000 };

tuttiProxyState tuttiCudaRingTreeServe(void *self, tuttiProxyTurn *turn) {
  tuttiCudaServer *server = self;
  const tuttiCudaRingTree *s = server->ringTree;
  /* First, for what has ended has begun before. The two words of one kernel may become visible in
   * the other order: then the next look sees both, and comes, as there are graphs. */
  uint32_t finished = __atomic_load_n(&s->status->finished, __ATOMIC_ACQUIRE);
  uint32_t started = __atomic_load_n(&s->status->started, __ATOMIC_ACQUIRE);
  /* Once more after an end: connections that had their turn before may not know the last slots. */
  bool busy =
      finished != started + tuttiLoadAcquire32(&s->launched) || finished != server->finished;
  server->finished = finished;
  turn->polled++;
  if (tuttiLoadAcquire32(&s->captured)) {
    uint64_t now = tuttiNow();
    if (busy) server->busyUntil = now + LINGER_NS;
    busy |= now < server->busyUntil;
    tuttiProxyWakeBy(turn, now + LOOK_NS);
  }
  if (!busy) return TUTTI_PROXY_IDLE;
  uint32_t napUs = s->context->napUs;
  tuttiProxyWakeBy(turn, napUs ? tuttiNow() + (uint64_t)napUs * 1000 : 0);
  return TUTTI_PROXY_WAITING;
}

#ifdef TUTTI_HAVE_CUDA

#include <cuda_runtime_api.h>

#include "base/cuda.h"
#include "base/error.h"
#include "transport/net.h"

/* The two, of which the second may be missing. */
static tuttiProxy *proxyOf(const tuttiCommView *v, int i) {
  return i == 0 ? v->proxy : v->receiver;
}

/* ---- life ------------------------------------------------------------------------------------ */

tuttiResult_t tuttiCudaRingTreeInit(tuttiCudaRingTree *s, tuttiCommView *v,
                                    tuttiTaskContext *context, tuttiKernelStatus *status,
                                    tuttiStream_t copies) {
  s->context = context;
  s->view = v;
  s->nranks = v->nranks;
  s->nchannels = v->nchannels;
  s->copies = copies;
  size_t nconns = (size_t)s->nchannels * (size_t)s->nranks, nrings = 2 * nconns;
  size_t nendpoints = 2 * (nconns + (size_t)s->nranks);
  TUTTI_NEW(s->opened, nendpoints + 2 * (size_t)s->nchannels, "connections of kernels", v->memory);
  s->ringKnown = s->opened + nendpoints;
  size_t bytes =
      nendpoints * sizeof *s->endpoints + nrings * sizeof *s->rings + 3 * sizeof *s->args.counts;
  CUDA_TRY(cudaMalloc((void **)&s->endpoints, bytes));
  CUDA_TRY(cudaMemsetAsync(s->endpoints, 0, bytes, copies));
  CUDA_TRY(cudaStreamSynchronize(copies));
  s->rings = (int32_t *)(s->endpoints + nendpoints);
  s->args.counts = (uint32_t *)(s->rings + nrings);
  s->status = status;
  CUDA_TRY(cudaHostGetDevicePointer((void **)&s->args.status, status, 0));
  return CUDA_CHECK((cudaError_t)tuttiRingTreeLoad());
}

void tuttiCudaRingTreeClose(tuttiCudaRingTree *s, tuttiCommView *v) {
  for (int i = 0; i < s->served; i++)
    if (proxyOf(v, i)) tuttiProxyRemove(proxyOf(v, i), &s->servers[i]);
  cudaFree(s->endpoints);
  tuttiFree(s->opened);
}

/* ---- launches announced ---------------------------------------------------------------------- */

/* Once there is a network connection. */
static tuttiResult_t startServing(tuttiCudaRingTree *s) {
  if (!s->context->proxy) return tuttiSuccess;
  for (; s->served < 2; s->served++) {
    tuttiCudaServer *server = &s->servers[s->served];
    tuttiProxyOp op = {.advance = tuttiCudaRingTreeServe,
                       .close = tuttiProxyNothingToClose,
                       .halt = tuttiProxyNothingToHalt,
                       .tell = tuttiProxyNothingToTell,
                       .self = server};
    server->ringTree = s;
    if (proxyOf(s->view, s->served)) TUTTI_TRY(tuttiProxyAdd(proxyOf(s->view, s->served), &op));
  }
  s->args.finished = &s->args.status->finished;
  return tuttiSuccess;
}

/* Before the launch, for threads take their time to wake. */
static void announce(tuttiCudaRingTree *s, bool capturing) {
  s->args.started = capturing ? &s->args.status->started : NULL;
  if (capturing)
    tuttiStoreRelease32(&s->captured, 1);
  else
    tuttiFetchAddAcqRel32(&s->launched, 1);
  for (int i = 0; i < s->served; i++)
    if (proxyOf(s->view, i)) tuttiProxyKick(proxyOf(s->view, i));
}

/* ---- connections ----------------------------------------------------------------------------- */

static size_t rowOf(const tuttiCudaRingTree *s, const tuttiTask *t) {
  int row = t->channel == TUTTI_P2P_CHANNEL ? s->nchannels : t->channel;
  return (size_t)row * 2 * (size_t)s->nranks;
}

/* As this GPU sees host memory; GPU memory is the same to all who map it. */
static tuttiResult_t seen(const tuttiConn *conn, void *at, void **out) {
  *out = at;
  if (conn->transport == &tuttiTransportP2p) return tuttiSuccess;
  return CUDA_CHECK(cudaHostGetDevicePointer(out, at, 0));
}

#define DIRECT_FULL ((size_t)256 << 10) /* a slot that is large enough to be spared */

/* A copy into a slot and out of it costs a GPU little, and spares the kernel the wait until the
 * network has read the user's memory: so only what fills large slots goes without. */
static uint32_t directBytes(const tuttiConn *conn) {
  size_t full = conn->slotBytes < DIRECT_FULL ? conn->slotBytes : DIRECT_FULL;
  return (uint32_t)(full / 2 > conn->smallBytes ? full / 2 : conn->smallBytes);
}

tuttiResult_t tuttiCudaEndpoint(const tuttiConn *conn, tuttiRingTreeEndpoint *out) {
  tuttiRingTreeEndpoint endpoint = {.next = conn->next,
                                    .ndescriptors = conn->ndescriptors,
                                    .slotBytes = (uint32_t)conn->slotBytes,
                                    .directBytes = UINT32_MAX,
                                    .peer = conn->peer};
  TUTTI_TRY(seen(conn, conn->descriptors, (void **)&endpoint.descriptors));
  TUTTI_TRY(seen(conn, conn->readers, (void **)&endpoint.reader));
  /* SHM's small slots are one for each descriptor, for CPUs that share cores. */
  if (conn->gpuData) {
    endpoint.ahead = conn->next;
    if (conn->direction == TUTTI_RECV) TUTTI_TRY(seen(conn, conn->posts, (void **)&endpoint.posts));
    if (conn->direction == TUTTI_RECV || conn->lends) endpoint.directBytes = directBytes(conn);
    endpoint.data = conn->data;
    endpoint.smallBytes = (uint32_t)conn->smallBytes;
    TUTTI_TRY(seen(conn, conn->small, (void **)&endpoint.small));
  } else {
    TUTTI_TRY(seen(conn, conn->data, (void **)&endpoint.data));
  }
  *out = endpoint;
  return tuttiSuccess;
}

static tuttiResult_t openEndpoint(tuttiCudaRingTree *s, const tuttiTask *t, int peer,
                                  tuttiDirection direction) {
  size_t at = rowOf(s, t) + (direction == TUTTI_SEND ? (size_t)s->nranks : 0) + (size_t)peer;
  tuttiConn *conn;
  if (s->opened[at]) return tuttiSuccess;
  TUTTI_TRY(s->context->conn(s->context->comm, peer, t->channel, direction, false, &conn));
  tuttiRingTreeEndpoint endpoint;
  TUTTI_TRY(tuttiCudaEndpoint(conn, &endpoint));
  TUTTI_TRY(tuttiCudaTell(&s->endpoints[at], &endpoint, sizeof endpoint, s->copies));
  s->opened[at] = 1;
  return tuttiSuccess;
}

static tuttiResult_t openBoth(tuttiCudaRingTree *s, const tuttiTask *t, int peer) {
  TUTTI_TRY(openEndpoint(s, t, peer, TUTTI_RECV));
  return openEndpoint(s, t, peer, TUTTI_SEND);
}

/* With a root, data flows to it or from it alone. */
static tuttiResult_t openDirect(tuttiCudaRingTree *s, const tuttiTask *t) {
  const tuttiSchedule *y = &t->schedule;
  bool rooted = t->signature.root >= 0, isRoot = y->rank == y->root;
  bool gathers = y->coll == tuttiCollGather || y->coll == tuttiCollReduce;
  for (int p = 0; p < s->nranks; p++) {
    if (p == y->rank || (rooted && !isRoot && p != y->root)) continue;
    if (!rooted || isRoot == gathers) TUTTI_TRY(openEndpoint(s, t, p, TUTTI_RECV));
    if (!rooted || isRoot != gathers) TUTTI_TRY(openEndpoint(s, t, p, TUTTI_SEND));
  }
  return tuttiSuccess;
}

/* The rank's neighbours in the ring of its host and in that of its place; in an all-to-all, all of
 * these. */
static tuttiResult_t openGrid(tuttiCudaRingTree *s, const tuttiTask *t) {
  const tuttiSchedule *y = &t->schedule;
  for (int inside = 0; inside < 2; inside++) {
    int others = (inside ? y->perHost : y->nranks / y->perHost) - 1;
    if (y->coll != tuttiCollAlltoAll && others > 1) others = 1;
    for (int i = 1; i <= others; i++) {
      int from = y->ring[tuttiGridBehind(y, inside ? 0 : i, inside ? i : 0)];
      int to = y->ring[tuttiGridBehind(y, inside ? 0 : -i, inside ? -i : 0)];
      TUTTI_TRY(openEndpoint(s, t, from, TUTTI_RECV));
      TUTTI_TRY(openEndpoint(s, t, to, TUTTI_SEND));
    }
  }
  return tuttiSuccess;
}

static tuttiResult_t openEnds(tuttiCudaRingTree *s, const tuttiTask *t) {
  const tuttiSchedule *y = &t->schedule;
  if (y->coll == tuttiCollSendRecv)
    return openEndpoint(s, t, y->root, y->sending ? TUTTI_SEND : TUTTI_RECV);
  if (s->nranks == 1) return tuttiSuccess;
  switch (y->algo) {
  case tuttiAlgoRing:
    TUTTI_TRY(openEndpoint(s, t, tuttiRingRank(y, 1), TUTTI_RECV));
    return openEndpoint(s, t, tuttiRingRank(y, y->nranks - 1), TUTTI_SEND);
  case tuttiAlgoHierarchical:
    return openGrid(s, t);
  case tuttiAlgoTree:
    if (y->parent >= 0) TUTTI_TRY(openBoth(s, t, y->parent));
    for (int i = 0; i < y->nchildren; i++)
      TUTTI_TRY(openBoth(s, t, y->children[i]));
    return tuttiSuccess;
  default:
    return openDirect(s, t);
  }
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Which of the task's buffers the network reads and writes by itself; messages that are small take
 * slots all the same. */
static uint32_t reachOf(const tuttiCudaRingTree *s, const tuttiTask *t) {
  const tuttiSchedule *y = &t->schedule;
  const tuttiCollShape *shape = &tuttiCollShapes[y->coll];
  bool isRoot = y->rank == y->root, isMessage = y->coll == tuttiCollSendRecv;
  uint64_t most = y->part < y->chunk ? y->part : y->chunk;
  size_t element = tuttiTypeSize(t->type), block = y->count * element;
  uint32_t reach = 0;
  if (y->nranks == 1 || most * element <= TUTTI_NET_SMALL_MAX) return 0;
  size_t send = block * tuttiShapeBlocks(shape->send, isRoot, y->nranks);
  size_t recv = block * tuttiShapeBlocks(shape->recv, isRoot, y->nranks);
  if (send && !(isMessage && !y->sending) && tuttiNetReaches(s->view, t->sendbuff, send))
    reach |= TUTTI_REACHES_SEND;
  if (recv && !(isMessage && y->sending) && tuttiNetReaches(s->view, t->recvbuff, recv))
    reach |= TUTTI_REACHES_RECV;
  return reach;
}

/* Channels of one collective have the same buffers. */
static bool isAlike(const tuttiTask *a, const tuttiTask *b) {
  return a->signature.coll != tuttiCollSendRecv && a->sendbuff == b->sendbuff &&
         a->recvbuff == b->recvbuff;
}

static tuttiResult_t setTask(tuttiCudaRingTree *s, const tuttiTask *t, uint32_t reaches,
                             tuttiRingTreeTask *out) {
  TUTTI_TRY(openEnds(s, t));
  *out = (tuttiRingTreeTask){.schedule = t->schedule,
                             .sig = t->signature,
                             .send = t->sendbuff,
                             .recv = t->recvbuff,
                             .scalarAt = t->scalarAt,
                             .scalar = t->scalar,
                             .endpoints = s->endpoints + rowOf(s, t),
                             .op = t->op,
                             .divide = t->divide,
                             .premul = (uint32_t)t->premul,
                             .elementBytes = (uint32_t)tuttiTypeSize(t->type),
                             .isUnsigned = tuttiTypeIsUnsigned(t->type),
                             .reaches = reaches};
  bool grid = t->schedule.algo == tuttiAlgoHierarchical;
  if ((t->schedule.algo != tuttiAlgoRing && !grid) || t->schedule.coll == tuttiCollSendRecv)
    return tuttiSuccess;
  size_t row = 2 * (size_t)t->channel + grid;
  int32_t *ring = s->rings + row * (size_t)s->nranks;
  out->schedule.ring = ring;
  if (s->ringKnown[row]) return tuttiSuccess;
  TUTTI_TRY(tuttiCudaTell(ring, t->schedule.ring, (size_t)s->nranks * sizeof *ring, s->copies));
  s->ringKnown[row] = 1;
  return tuttiSuccess;
}

/* Works out the steps of a launch's only task, if they are few. */
static void setSteps(tuttiRingTreeArgs *args, const tuttiTask *t, int n) {
  uint64_t steps = n == 1 ? tuttiScheduleSteps(&t->schedule) : 0, most = 0;
  args->nsteps = steps <= TUTTI_RINGTREE_STEPS ? (uint32_t)steps : 0;
  for (uint32_t k = 0; k < args->nsteps; k++) {
    tuttiScheduleStep(&t->schedule, k, &args->step[k]);
    if (args->step[k].count > most) most = args->step[k].count;
  }
  args->small = args->nsteps > 0 && most * tuttiTypeSize(t->type) <= TUTTI_INLINE_MAX;
}

tuttiResult_t tuttiCudaRingTreeLaunch(tuttiCudaRingTree *s, const tuttiTask *tasks, int n,
                                      bool capturing) {
  cudaStream_t stream = tasks[0].stream;
  setSteps(&s->args, &tasks[0], n);
  s->args.type = tasks[0].type;
  s->args.copies = !tuttiCollReduces(tasks[0].schedule.coll);
  for (int i = 0; i < n; i++) {
    bool alike = i > 0 && isAlike(&tasks[i], &tasks[i - 1]);
    uint32_t reaches = alike ? s->args.task[i - 1].reaches : reachOf(s, &tasks[i]);
    TUTTI_TRY(setTask(s, &tasks[i], reaches, &s->args.task[i]));
  }
  TUTTI_TRY(startServing(s));
  if (s->served) announce(s, capturing);
  int err = tuttiRingTreeLaunch(&s->args, n, stream);
  if (err && s->served && !capturing)
    tuttiFetchAddAcqRel32(&s->launched, UINT32_MAX); /* minus one: it will not end */
  return tuttiCudaCheck((cudaError_t)err, "the launch of a kernel");
}

#endif

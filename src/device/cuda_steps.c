#include "device/cuda_steps.h"

#ifdef TUTTI_HAVE_CUDA

#include <cuda_runtime_api.h>
#include <string.h>

#include "base/cuda.h"
#include "base/error.h"
#include "proxy/proxy.h"

/* ---- life ------------------------------------------------------------------------------------ */

tuttiResult_t tuttiCudaStepsInit(tuttiCudaSteps *s, tuttiWires *w, tuttiTaskHost *host,
                                 tuttiExchangeMail *mail, tuttiStream_t copies) {
  s->host = host;
  s->nranks = w->nranks;
  s->nchannels = w->nchannels;
  s->copies = copies;
  size_t nrings = (size_t)s->nchannels * (size_t)s->nranks;
  size_t nends = 2 * (nrings + (size_t)s->nranks);
  TUTTI_NEW(s->opened, nends + (size_t)s->nchannels, "connections of kernels", w->memory);
  s->ringKnown = s->opened + nends;
  /* One allocation in GPU memory: ends, rings, the count of ended thread blocks. */
  size_t bytes = nends * sizeof *s->ends + nrings * sizeof *s->rings + sizeof *s->args.blocks;
  CUDA_TRY(cudaMalloc((void **)&s->ends, bytes));
  CUDA_TRY(cudaMemsetAsync(s->ends, 0, bytes, copies));
  CUDA_TRY(cudaStreamSynchronize(copies));
  s->rings = (int32_t *)(s->ends + nends);
  s->args.blocks = (uint32_t *)(s->rings + nrings);
  s->mail = mail;
  CUDA_TRY(cudaHostGetDevicePointer((void **)&s->args.mail, mail, 0));
  CUDA_TRY((cudaError_t)tuttiStepsLoad());
  return tuttiSuccess;
}

void tuttiCudaStepsClose(tuttiCudaSteps *s, tuttiWires *w) {
  if (s->served) tuttiProxyRemove(w->proxy, s);
  cudaFree(s->ends);
  tuttiFree(s->opened);
}

/* ---- the proxy -------------------------------------------------------------------------------
 * Kernels fill and free the slots of network connections without a word to the proxy, which
 * therefore keeps looking while any of them is under way. */

static tuttiProxyState serve(void *self, tuttiProxyTurn *turn) {
  const tuttiCudaSteps *s = self;
  uint32_t started = tuttiLoadAcquire32(&s->started);
  if (__atomic_load_n(&s->mail->finished, __ATOMIC_ACQUIRE) == started) return TUTTI_PROXY_IDLE;
  turn->wake = 0;
  return TUTTI_PROXY_WAITING;
}

static void stopServing(void *self) {
  (void)self;
}

static void CUDART_CB announce(void *self) {
  tuttiCudaSteps *s = self;
  tuttiFetchAddAcqRel32(&s->started, 1);
  tuttiProxyKick(s->host->proxy);
}

/* Before the launch; in a graph before each of its launches. */
static tuttiResult_t announceLaunch(tuttiCudaSteps *s, cudaStream_t stream, bool capturing) {
  if (!s->host->proxy) return tuttiSuccess;
  if (!s->served) {
    tuttiProxyOp op = {.advance = serve, .close = stopServing, .self = s};
    TUTTI_TRY(tuttiProxyAdd(s->host->proxy, &op));
    s->args.finished = &s->args.mail->finished;
    s->served = true;
  }
  if (capturing)
    CUDA_TRY(cudaLaunchHostFunc(stream, announce, s));
  else
    announce(s);
  return tuttiSuccess;
}

/* ---- connections ----------------------------------------------------------------------------- */

static size_t rowOf(const tuttiCudaSteps *s, const tuttiTask *t) {
  int row = t->channel == TUTTI_P2P_CHANNEL ? s->nchannels : t->channel;
  return (size_t)row * 2 * (size_t)s->nranks;
}

/* As this GPU sees host memory; GPU memory is the same to all who map it. */
static tuttiResult_t seen(const tuttiConn *conn, void *at, void **out) {
  *out = at;
  if (conn->transport == &tuttiTransportP2p) return tuttiSuccess;
  CUDA_TRY(cudaHostGetDevicePointer(out, at, 0));
  return tuttiSuccess;
}

static tuttiResult_t openEnd(tuttiCudaSteps *s, const tuttiTask *t, int peer,
                             tuttiDirection direction) {
  size_t at = rowOf(s, t) + (direction == TUTTI_SEND ? (size_t)s->nranks : 0) + (size_t)peer;
  tuttiConn *conn;
  if (s->opened[at]) return tuttiSuccess;
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed; /* it may pin memory */
  CUDA_TRY(cudaThreadExchangeStreamCaptureMode(&mode));
  tuttiResult_t result = s->host->conn(s->host->comm, peer, t->channel, direction, false, &conn);
  cudaThreadExchangeStreamCaptureMode(&mode);
  TUTTI_TRY(result);
  tuttiStepsEnd end = {.next = conn->next,
                       .lines = conn->lines,
                       .slotBytes = (uint32_t)conn->slotBytes,
                       .peer = peer};
  TUTTI_TRY(seen(conn, conn->slots, (void **)&end.slots));
  TUTTI_TRY(seen(conn, conn->heads, (void **)&end.head));
  TUTTI_TRY(seen(conn, conn->data, (void **)&end.data));
  TUTTI_TRY(tuttiCudaTell(&s->ends[at], &end, sizeof end, s->copies));
  s->opened[at] = 1;
  return tuttiSuccess;
}

static tuttiResult_t openBoth(tuttiCudaSteps *s, const tuttiTask *t, int peer) {
  TUTTI_TRY(openEnd(s, t, peer, TUTTI_RECV));
  return openEnd(s, t, peer, TUTTI_SEND);
}

/* With a root, data flows to it or from it alone. */
static tuttiResult_t openDirect(tuttiCudaSteps *s, const tuttiTask *t) {
  const tuttiSchedule *y = &t->schedule;
  bool rooted = t->signature.root >= 0, isRoot = y->rank == y->root;
  bool gathers = y->coll == tuttiCollGather || y->coll == tuttiCollReduce;
  for (int p = 0; p < s->nranks; p++) {
    if (p == y->rank || (rooted && !isRoot && p != y->root)) continue;
    if (!rooted || isRoot == gathers) TUTTI_TRY(openEnd(s, t, p, TUTTI_RECV));
    if (!rooted || isRoot != gathers) TUTTI_TRY(openEnd(s, t, p, TUTTI_SEND));
  }
  return tuttiSuccess;
}

static tuttiResult_t openEnds(tuttiCudaSteps *s, const tuttiTask *t) {
  const tuttiSchedule *y = &t->schedule;
  if (y->coll == tuttiCollSendRecv)
    return openEnd(s, t, y->root, y->sending ? TUTTI_SEND : TUTTI_RECV);
  if (s->nranks == 1) return tuttiSuccess;
  switch (y->algo) {
  case tuttiAlgoRing:
    TUTTI_TRY(openEnd(s, t, tuttiRingRank(y, 1), TUTTI_RECV));
    return openEnd(s, t, tuttiRingRank(y, y->nranks - 1), TUTTI_SEND);
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

static tuttiResult_t setTask(tuttiCudaSteps *s, const tuttiTask *t, tuttiStepsTask *out) {
  TUTTI_TRY(openEnds(s, t));
  *out = (tuttiStepsTask){.schedule = t->schedule,
                          .sig = t->signature,
                          .send = t->sendbuff,
                          .recv = t->recvbuff,
                          .scalarAt = t->scalarAt,
                          .scalar = t->scalar,
                          .ends = s->ends + rowOf(s, t),
                          .op = t->op,
                          .divide = t->divide,
                          .premul = (uint32_t)t->premul,
                          .elementBytes = (uint32_t)tuttiTypeSize(t->type)};
  if (t->schedule.algo != tuttiAlgoRing || t->schedule.coll == tuttiCollSendRecv)
    return tuttiSuccess;
  int32_t *ring = s->rings + (size_t)t->channel * (size_t)s->nranks;
  out->schedule.ring = ring;
  if (s->ringKnown[t->channel]) return tuttiSuccess;
  TUTTI_TRY(tuttiCudaTell(ring, t->schedule.ring, (size_t)s->nranks * sizeof *ring, s->copies));
  s->ringKnown[t->channel] = 1;
  return tuttiSuccess;
}

tuttiResult_t tuttiCudaStepsLaunch(tuttiCudaSteps *s, const tuttiTask *tasks, int n,
                                   bool capturing) {
  cudaStream_t stream = tasks[0].stream;
  bool copies = !tuttiCollReduces(tasks[0].schedule.coll);
  for (int i = 0; i < n; i++)
    TUTTI_TRY(setTask(s, &tasks[i], &s->args.task[i]));
  TUTTI_TRY(announceLaunch(s, stream, capturing));
  CUDA_TRY((cudaError_t)tuttiStepsLaunch(&s->args, n, tasks[0].type, copies, stream));
  return tuttiSuccess;
}

#endif

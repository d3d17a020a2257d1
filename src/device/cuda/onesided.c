#ifdef TUTTI_HAVE_CUDA

#include "device/cuda/onesided.h"

#include "base/backoff.h"
#include "base/cuda.h"
#include "base/error.h"
#include "base/os.h"
#include "device/cuda/launch.h"
#include "kernels/onesided.h"
#include "transport/symmetric.h"

/* ---- life ------------------------------------------------------------------------------------ */

static tuttiSignalLayout layoutOf(const tuttiCommView *v) {
  return (tuttiSignalLayout){.contexts = (uint32_t)v->rmaContexts,
                             .signals = (uint32_t)v->rmaSignals,
                             .nranks = (uint32_t)v->nranks};
}

size_t tuttiCudaSignalBytes(const tuttiCommView *v) {
  tuttiSignalLayout layout = layoutOf(v);
  return tuttiSignalBytes(&layout);
}

/* Whether this GPU has atomic operations on the memory of all that it reaches, as over NVLinks. */
static tuttiResult_t lookForAtomics(tuttiCuda *s) {
  int n, reaches, atomics = 1;
  CUDA_TRY(cudaGetDeviceCount(&n));
  for (int other = 0; other < n && atomics; other++) {
    if (other == s->device) continue;
    CUDA_TRY(cudaDeviceCanAccessPeer(&reaches, s->device, other));
    if (reaches)
      CUDA_TRY(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, s->device,
                                         other));
  }
  s->addsSignals = atomics;
  return tuttiSuccess;
}

/* This rank's counters lie in its symmetric block, where others store to them, if it has one. */
static tuttiResult_t makeRows(tuttiCuda *s, const tuttiCommView *v) {
  size_t bytes = tuttiSignalBytes(&s->layout);
  if (v->symmetric && v->symmetric->signalsAt) {
    s->rows = (uint64_t *)((uint8_t *)v->symmetric->mine + v->symmetric->signalsAt);
    return tuttiSuccess;
  }
  CUDA_TRY(cudaMalloc(&s->ownRows, bytes));
  s->rows = s->ownRows;
  CUDA_TRY(cudaMemsetAsync(s->rows, 0, bytes, s->stageStream));
  return CUDA_CHECK(cudaStreamSynchronize(s->stageStream));
}

tuttiResult_t tuttiCudaOneSidedInit(tuttiCuda *s, tuttiCommView *v) {
  int least, greatest;
  s->view = v;
  s->layout = layoutOf(v);
  if (v->rmaContexts == 0) return tuttiSuccess;
  TUTTI_TRY(makeRows(s, v));
  TUTTI_TRY(tuttiCudaRelayInit(&s->relay, v, s->context, s->status));
  TUTTI_TRY(lookForAtomics(s));
  CUDA_TRY((cudaError_t)tuttiOneSidedLoad());
  CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  return CUDA_CHECK(
      cudaStreamCreateWithPriority(&s->signalStream, cudaStreamNonBlocking, greatest));
}

/* ---- puts ------------------------------------------------------------------------------------ */

/* The row of this rank's own counters. */
static uint64_t *rowOf(const tuttiCuda *s, tuttiSignalRow_t row) {
  return s->rows + (size_t)row * tuttiSignalRow(&s->layout);
}
static uint64_t *wordOf(const tuttiCuda *s, tuttiSignalWord_t word) {
  return s->rows + tuttiSignalRows * tuttiSignalRow(&s->layout) + (size_t)word;
}

static void setSignal(const tuttiCuda *s, const tuttiRmaPut *put, tuttiPutArgs *args) {
  const tuttiSignalLayout *l = &s->layout;
  uint64_t *rows = put->peer == s->view->rank ? s->rows : s->windows.signals[put->peer];
  args->counter = rows + tuttiSignalAt(l, s->view->rank, put->context, put->signal);
  if (s->addsSignals) return;
  args->sent = rowOf(s, tuttiSignalsSent) + tuttiSignalAt(l, put->peer, put->context, put->signal);
  args->guard = (uint32_t *)wordOf(s, tuttiSignalGuard);
}

/* Whether the sides are not aligned alike: kernels move such data byte by byte. */
static bool isOdd(const tuttiPutArgs *args) {
  return ((uintptr_t)args->to ^ (uintptr_t)args->from) & 3;
}

static tuttiResult_t launch(const tuttiPutArgs *args, bool mayBeEarly, tuttiStream_t stream) {
  return tuttiCudaCheck((cudaError_t)tuttiPutLaunch(args, mayBeEarly, stream),
                        "the launch of a put");
}

/* Whether a copy's signal goes beside its stream, so that the next copy does not wait for it.
 * Within one GPU it is faster behind the copy, where it may be launched before that ends, but not
 * in a graph. */
static bool goesBeside(const tuttiCuda *s, int peer, bool capturing) {
  const tuttiPeer *peers = s->view->peers;
  return capturing || peers[peer].busId != peers[s->view->rank].busId;
}

/* A node of the graph behind the copy that is the end of the captured stream, and behind the signal
 * before: with a branch for each of 32 puts cudaGraphInstantiate has been seen not to return while
 * another rank's wait for them ran on the same GPU. */
static tuttiResult_t signalInGraph(tuttiCuda *s, const tuttiPutArgs *args, tuttiStream_t stream) {
  tuttiCudaCapture capture = {0};
  TUTTI_TRY(tuttiCudaCaptureOf(stream, &capture));
  cudaGraphNode_t after[] = {capture.ends[0], s->signalNode};
  size_t n = capture.id == s->signalGraph ? 2 : 1;
  TUTTI_TRY(
      tuttiCudaCheck((cudaError_t)tuttiPutAddNode(args, capture.graph, after, n, &s->signalNode),
                     "the signal of a put in a graph"));
  s->signalGraph = capture.id;
  return tuttiSuccess;
}

/* A signal behind a copy that is the last of the stream so far, where what comes next there does
 * not follow it: the copy engine goes on with the next put meanwhile. Signals of later puts may
 * pass this one, but no data, and all that anybody learns of signals is how many have come. */
static tuttiResult_t signalBeside(tuttiCuda *s, const tuttiPutArgs *args, tuttiStream_t stream,
                                  bool capturing) {
  if (capturing) return signalInGraph(s, args, stream);
  CUDA_TRY(cudaStreamWaitEvent(s->signalStream, s->done[0], 0));
  return launch(args, false, s->signalStream);
}

/* Between tuttiCudaBegin and the end of the call. Data that one thread block does not carry with
 * its signal goes ahead of it: by many, or by the copy engine, which does not mind alignment. */
static tuttiResult_t write(tuttiCuda *s, const tuttiRmaPut *put, tuttiStream_t stream,
                           bool capturing) {
  tuttiPutArgs args = {.to = put->mapped, .from = put->data, .bytes = put->bytes};
  tuttiPutArgs signal = {0};
  setSignal(s, put, &signal);
  if (args.to == args.from) args.bytes = 0; /* to itself, where it is already */
  bool odd = isOdd(&args);
  bool alone = args.bytes <= (odd ? TUTTI_PUT_ALONE_ODD : TUTTI_PUT_ALONE);
  bool byEngine = !alone && (odd || args.bytes >= TUTTI_PUT_ENGINE);
  bool beside = byEngine && goesBeside(s, put->peer, capturing);
  if (byEngine) {
    CUDA_TRY(cudaMemcpyAsync(args.to, args.from, args.bytes, cudaMemcpyDefault, stream));
  } else {
    if (alone) setSignal(s, put, &args);
    TUTTI_TRY(launch(&args, s->mayBeEarly, stream));
  }
  if (!alone && !beside) TUTTI_TRY(launch(&signal, s->mayBeEarly, stream));
  TUTTI_TRY(tuttiCudaEnd(s, stream, capturing));
  return beside ? signalBeside(s, &signal, stream, capturing) : tuttiSuccess;
}

/* To a GPU that this one does not store to. */
static tuttiResult_t relay(tuttiCuda *s, const tuttiRmaPut *put, tuttiStream_t stream) {
  bool capturing;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  TUTTI_TRY(tuttiCudaEnter(s->device, &before)); /* a first put opens a connection */
  TUTTI_TRY(tuttiCudaRelayPrepare(&s->relay, put->peer));
  TUTTI_TRY(tuttiCudaBegin(s, stream, &capturing));
  uint32_t counter = tuttiSignalAt(&s->layout, put->peer, put->context, put->signal);
  TUTTI_TRY(tuttiCudaRelayPut(&s->relay, put, counter, stream));
  return tuttiCudaEnd(s, stream, capturing);
}

tuttiResult_t tuttiCudaPut(tuttiTaskContext *context, const tuttiRmaPut *put,
                           tuttiStream_t stream) {
  tuttiCuda *s = context->device;
  bool capturing;
  if (tuttiCudaRelays(&s->relay, put->peer)) return relay(s, put, stream);
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  TUTTI_TRY(tuttiCudaSwitch(s->device, &before)); /* whose stream NULL may be meant */
  TUTTI_TRY(tuttiCudaBegin(s, stream, &capturing));
  return write(s, put, stream, capturing);
}

/* ---- waits ----------------------------------------------------------------------------------- */

/* Nothing but its own stream follows a wait, so there is no event to wait for at the end: one for
 * each of them took longer than a wait for what is there. Waits count themselves. */
static cudaError_t awaitWaits(const tuttiCuda *s) {
  uint64_t ended = 0;
  tuttiBackoff pause = {0};
  cudaError_t err = cudaSuccess;
  while (err == cudaSuccess && ended < s->waits.launched) {
    tuttiBackoffPause(&pause);
    err = cudaMemcpyAsync(&ended, wordOf(s, tuttiSignalsEnded), sizeof ended,
                          cudaMemcpyDeviceToHost, s->signalStream);
    if (err == cudaSuccess) err = cudaStreamSynchronize(s->signalStream);
  }
  return err;
}

cudaError_t tuttiCudaOneSidedAwait(const tuttiCuda *s) {
  cudaError_t err = s->signalStream ? cudaStreamSynchronize(s->signalStream) : cudaSuccess;
  return err == cudaSuccess ? awaitWaits(s) : err;
}

void tuttiCudaOneSidedClose(tuttiCuda *s) {
  tuttiCudaRelayClose(&s->relay);
  cudaFree(s->ownRows);
  if (s->signalStream) cudaStreamDestroy(s->signalStream);
}

static tuttiResult_t launchWait(tuttiCuda *s, const tuttiAwaitArgs *args, tuttiStream_t stream) {
  TUTTI_TRY(tuttiCudaCheck((cudaError_t)tuttiAwaitLaunch(args, s->mayBeEarly, stream),
                           "the launch of a wait for signals"));
  if (args->ended)
    s->waits.launched++;
  else
    s->waits.captured = true;
  s->launched = true;
  return tuttiSuccess;
}

tuttiResult_t tuttiCudaAwaitSignals(tuttiTaskContext *context, const tuttiWaitSignalDesc_t *descs,
                                    int n, tuttiStream_t stream) {
  tuttiCuda *s = context->device;
  enum cudaStreamCaptureStatus status;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  TUTTI_TRY(tuttiCudaSwitch(s->device, &before)); /* whose stream NULL may be meant */
  CUDA_TRY(cudaStreamIsCapturing(stream, &status));
  bool capturing = status != cudaStreamCaptureStatusNone;
  tuttiAwaitArgs args = {.arrived = rowOf(s, tuttiSignalsArrived),
                         .relayed = s->relay.arrivedOnDevice,
                         .taken = rowOf(s, tuttiSignalsTaken),
                         .ended = capturing ? NULL : wordOf(s, tuttiSignalsEnded),
                         .status = s->statusOnDevice};
  for (int i = 0; i < n; i++) {
    const tuttiWaitSignalDesc_t *d = &descs[i];
    args.of[args.n].counter = tuttiSignalAt(&s->layout, d->peer, d->ctx, d->sigIdx);
    args.of[args.n].isRelayed = tuttiCudaRelays(&s->relay, d->peer);
    if (args.of[args.n].isRelayed) TUTTI_TRY(tuttiCudaRelayAnnounce(&s->relay));
    args.of[args.n++].count = (uint32_t)d->opCnt;
    if (args.n < TUTTI_AWAIT_MOST && i < n - 1) continue;
    TUTTI_TRY(launchWait(s, &args, stream));
    args.n = 0;
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiCudaWindowOpen(tuttiTaskContext *context, uint32_t number, void *base,
                                  size_t size, tuttiRmaKeys *keys) {
  tuttiCuda *s = context->device;
  return tuttiCudaRelayOpen(&s->relay, number, base, size, keys);
}

void tuttiCudaWindowClose(tuttiTaskContext *context, uint32_t number) {
  tuttiCuda *s = context->device;
  tuttiCudaRelayShut(&s->relay, number);
}

static void tellLate(const tuttiCuda *s, const tuttiSignalsLate *late, uint64_t wait) {
  const tuttiSignalLayout *l = &s->layout;
  uint64_t amount = __atomic_load_n(&late->amount, __ATOMIC_RELAXED);
  uint32_t counter = (uint32_t)wait, row = counter / l->signals;
  tuttiWaitSignalDesc_t desc = {.opCnt = (int)(uint32_t)amount,
                                .peer = (int)(row / l->contexts),
                                .sigIdx = (int)(counter % l->signals),
                                .ctx = (int)(row % l->contexts)};
  s->context->signalsLate(s->context->comm, &desc, (uint32_t)(amount >> 32), wait >> 32);
}

/* One report at a time, as it may take a while to ask after the rank that is awaited. */
void tuttiCudaSignalsHear(tuttiCuda *s) {
  for (uint32_t i = 0; i < TUTTI_SIGNALS_LATE; i++) {
    uint32_t at = s->hearNext++ % TUTTI_SIGNALS_LATE;
    uint64_t wait = __atomic_load_n(&s->status->late[at].wait, __ATOMIC_ACQUIRE);
    if (wait == s->heard[at]) continue;
    s->heard[at] = wait;
    return tellLate(s, &s->status->late[at], wait);
  }
}

#endif

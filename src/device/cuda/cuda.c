/* CUDA as a device: one exchange kernel per operation, enqueued on the user's stream, and a thread
 * per communicator that listens to what its kernels report and ends them when it fails. */
#include "device/device.h"

#ifdef TUTTI_HAVE_CUDA

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cuda.h"
#include "base/error.h"
#include "base/os.h"
#include "device/cuda/steps.h"
#include "device/cuda/window.h"
#include "kernels/exchange.h"
#include "transport/symmetric.h"

#define MONITOR_MS    20
#define BLOCKS_SPARED 4    /* multiprocessors: or two kernels might keep each other from the last */
#define MAIL_BYTES    4096 /* of s->mail, in front of s->stage */
#define STAGE_BYTES   16384
/* Messages of a group from here on ask for a window, whether there is one or not: unlike a
 * collective, a message may be sent before a window is made and received behind it. */
#define DIRECT_BYTES ((uint64_t)4 << 20)
/* Messages through FIFOs: from here on in so many parts. */
#define STEPS_LARGE ((uint64_t)256 << 10)
#define STEPS_PARTS 4

typedef struct {
  tuttiTaskHost *host;
  int device;
  tuttiExchangeMail *mail; /* as the host sees it */
  tuttiExchangeMail *mailOnDevice;
  tuttiPinned pinned; /* mail and stage */
  bool launched;
  /* The last launch and its stream: of an eager call, and of one captured in `graph`. */
  cudaEvent_t done[2];
  cudaStream_t last[2];
  uint64_t graph; /* id of the capture; 0: none yet */
  cudaEvent_t joined;
  uint8_t *stage; /* STAGE_BYTES for the communicator's own exchanges, on a stream of their own */
  cudaStream_t stageStream;
  pthread_t monitor;
  bool monitoring;
  int stop; /* eventfd: tells the monitor to stop */
  tuttiCudaWindows windows;
  tuttiExchangeArgs args; /* of the next launch; what never changes stays */
  tuttiCudaSteps steps;   /* without exchanges */
  int *rounds;            /* [2 * nranks]: messages of a group so far, by peer and direction */
} cudaState;

/* ---- memory ---------------------------------------------------------------------------------- */

static tuttiResult_t cudaAllocate(void **ptr, size_t size) {
  void *p;
  CUDA_TRY(cudaMalloc(&p, size));
  *ptr = p;
  return tuttiSuccess;
}

static tuttiResult_t cudaRelease(void *ptr) {
  return CUDA_CHECK(cudaFree(ptr));
}

static const char *cudaRefuse(const void *buffer) {
  struct cudaPointerAttributes a;
  if (cudaPointerGetAttributes(&a, buffer) != cudaSuccess) {
    cudaGetLastError();
    return "is no memory that CUDA knows";
  }
  return a.type == cudaMemoryTypeUnregistered
             ? "is plain host memory, which a GPU cannot reach; use cudaMalloc or cudaMallocHost, "
               "or a communicator on host memory (TUTTI_DEVICE=host)"
             : NULL;
}

/* One stream waits for what is on another so far. */
static tuttiResult_t order(cudaState *s, cudaStream_t first, cudaStream_t then) {
  if (first == then) return tuttiSuccess;
  CUDA_TRY(cudaEventRecord(s->joined, first));
  return CUDA_CHECK(cudaStreamWaitEvent(then, s->joined, 0));
}

/* ---- the monitor ----------------------------------------------------------------------------- */

/* What the kernels have reported since the last look. */
static void hear(cudaState *s, uint32_t *heard) {
  tuttiExchangeMail *mail = s->mail;
  uint32_t stalls = __atomic_load_n(&mail->stalls, __ATOMIC_ACQUIRE);
  if (stalls == *heard) return;
  *heard = stalls;
  tuttiSignature sig = mail->sig;
  s->host->stalled(s->host->comm, &sig, mail->peer,
                   mail->disagrees ? TUTTI_DISAGREES : mail->waitedMs);
}

static void *monitorMain(void *arg) {
  cudaState *s = arg;
  uint32_t heard = 0;
  struct pollfd stop = {.fd = s->stop, .events = POLLIN};
  while (poll(&stop, 1, MONITOR_MS) <= 0) {
    hear(s, &heard);
    if (tuttiLoadAcquire32(s->host->failed) || s->host->failure(s->host->comm) != tuttiSuccess)
      __atomic_store_n(&s->mail->abort, 1, __ATOMIC_RELEASE);
  }
  return NULL;
}

/* ---- a communicator's life ------------------------------------------------------------------- */

/* Of the driver; the runtime does not know all of them. */
static bool hasAttribute(int device, CUdevice_attribute attribute) {
  CUresult (*get)(int *value, CUdevice_attribute attribute, CUdevice device) =
      tuttiCudaDriver("cuDeviceGetAttribute");
  int value = 0;
  return get && get(&value, attribute, device) == CUDA_SUCCESS && value;
}

static tuttiResult_t lookAround(int device, int32_t *reaches) {
  int n;
  *reaches = 1;
  CUDA_TRY(cudaGetDeviceCount(&n));
  for (int other = 0; other < n && *reaches; other++)
    if (other != device) CUDA_TRY(cudaDeviceCanAccessPeer(reaches, device, other));
  return tuttiSuccess;
}

/* Without an ordinal: the current device. */
static tuttiResult_t cudaDescribe(int ordinal, tuttiWires *w, tuttiPeer *mine) {
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  int device = ordinal;
  char bus[32];
  if (ordinal < 0) CUDA_TRY(cudaGetDevice(&device));
  TUTTI_TRY(tuttiCudaEnter(device, &before));
  mine->cudaDevice = device;
  w->gdr = hasAttribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
  w->dmabuf = hasAttribute(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
  CUDA_TRY(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
  (void)tuttiBusIdParse(bus, &mine->busId);
  mine->nvlink = tuttiTopologyLinked(w->topology, mine->busId);
  TUTTI_TRY(lookAround(device, &mine->reaches));
  CUDA_TRY(cudaDeviceGetAttribute(&mine->blocks, cudaDevAttrMultiProcessorCount, device));
  mine->blocks -= BLOCKS_SPARED;
  bool few = w->nranks <= TUTTI_EXCHANGE_MAX;
  size_t bytes = few ? tuttiExchangeLayOut(w->nranks, false).bytes : 0;
  return mine->p2pDisabled ? tuttiSuccess : tuttiSymmetricPrepare(w, mine, bytes);
}

/* The blocks of those whom this rank can store to; of all, if there are exchanges. */
static tuttiResult_t mapPeers(tuttiWires *w) {
  tuttiPath path;
  if (w->stagedBytes) return tuttiSymmetricStage(w, sizeof(tuttiExchangeHead));
  for (int p = 0; p < w->nranks; p++)
    if (p != w->rank &&
        tuttiTransportSelect(&w->peers[w->rank], &w->peers[p], &path) == &tuttiTransportP2p)
      TUTTI_TRY(tuttiSymmetricMap(w, p));
  return tuttiSuccess;
}

static tuttiResult_t setUpExchange(cudaState *s, tuttiWires *w) {
  tuttiExchangeArgs *a = &s->args;
  CUDA_TRY((cudaError_t)tuttiExchangeLoad(&a->early));
  a->mail = s->mailOnDevice;
  a->place = w->rank;
  for (int p = 0; p < w->nranks; p++) {
    if (p == w->rank) continue;
    tuttiExchangeLink *link = &a->link[a->nlinks++];
    link->rank = p;
    link->block = w->symmetric->theirs[p];
    link->column = (uint32_t)(w->rank < p ? w->rank : w->rank - 1);
  }
  a->block = w->symmetric->mine;
  a->counts = w->symmetric->counts;
  a->staged = w->stagedBytes > 0;
  tuttiExchangeLayout l = tuttiExchangeLayOut(w->nranks, a->staged);
  a->simpleAt = l.simpleAt;
  a->uniformAt = l.uniformAt;
  a->columns = l.columns;
  return tuttiSuccess;
}

/* The memory is the process's rather than CUDA's: threads go on looking at it when a program that
 * ends without destroying the communicator, or resets the device, has undone all of CUDA. */
static tuttiResult_t makeMail(cudaState *s, tuttiWires *w) {
  _Static_assert(sizeof *s->mail <= MAIL_BYTES, "the stage lies behind it");
  TUTTI_TRY(tuttiMap((void **)&s->mail, MAIL_BYTES + STAGE_BYTES, -1, "the reports of kernels",
                     w->memory));
  TUTTI_TRY(tuttiPin(w, s->mail, MAIL_BYTES + STAGE_BYTES, &s->pinned));
  s->stage = (uint8_t *)s->mail + MAIL_BYTES;
  CUDA_TRY(cudaHostGetDevicePointer((void **)&s->mailOnDevice, s->mail, 0));
  return tuttiSuccess;
}

static tuttiResult_t setUp(cudaState *s, tuttiWires *w) {
  TUTTI_NEW(s->rounds, 2 * (size_t)w->nranks, "rounds of messages", w->memory);
  /* Now, for a later allocation could wait for kernels that wait for this rank. */
  TUTTI_TRY(makeMail(s, w));
  for (int i = 0; i < 2; i++)
    CUDA_TRY(cudaEventCreateWithFlags(&s->done[i], cudaEventDisableTiming));
  CUDA_TRY(cudaEventCreateWithFlags(&s->joined, cudaEventDisableTiming));
  CUDA_TRY(cudaStreamCreateWithFlags(&s->stageStream, cudaStreamNonBlocking));
  TUTTI_TRY(mapPeers(w));
  TUTTI_TRY(s->host->plan->exchange
                ? setUpExchange(s, w)
                : tuttiCudaStepsInit(&s->steps, w, s->host, s->mail, s->stageStream));
  s->stop = eventfd(0, EFD_CLOEXEC);
  if (s->stop < 0)
    return TUTTI_FAIL(tuttiSystemError, "no eventfd: %s; raise the limit on open files (ulimit -n)",
                      tuttiErrnoText(errno));
  TUTTI_TRY(tuttiThreadStart(&s->monitor, "tutti-kernels", monitorMain, s));
  s->monitoring = true;
  return tuttiSuccess;
}

static tuttiResult_t cudaAttach(tuttiWires *w, tuttiTaskHost *host) {
  cudaState *s;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  TUTTI_NEW(s, 1, "a communicator's CUDA state", w->memory);
  host->device = s;
  s->host = host;
  s->device = w->peers[w->rank].cudaDevice;
  s->stop = -1;
  TUTTI_TRY(tuttiCudaEnter(s->device, &before));
  return setUp(s, w);
}

/* Of graphs nobody knows when they run: the whole device is waited for, unlike else, as that call
 * would end all captures under way. */
static cudaError_t awaitLaunches(const cudaState *s) {
  if (s->graph) return cudaDeviceSynchronize();
  return s->launched ? cudaEventSynchronize(s->done[0]) : cudaSuccess;
}

static void cudaDetach(tuttiWires *w, tuttiTaskHost *host) {
  cudaState *s = host->device;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  if (s && s->mail) __atomic_store_n(&s->mail->abort, 1, __ATOMIC_RELEASE);
  if (s && s->monitoring) { /* also where CUDA has been shut down */
    eventfd_write(s->stop, 1);
    pthread_join(s->monitor, NULL);
  }
  if (s) tuttiFdClose(&s->stop);
  if (s && tuttiCudaEnter(s->device, &before) == tuttiSuccess) {
    (void)awaitLaunches(s);
    tuttiCudaWindowsClose(&s->windows);
    tuttiCudaStepsClose(&s->steps, w);
    for (int i = 0; i < 2; i++)
      if (s->done[i]) cudaEventDestroy(s->done[i]);
    if (s->joined) cudaEventDestroy(s->joined);
    if (s->stageStream) cudaStreamDestroy(s->stageStream);
    tuttiUnpin(&s->pinned);
    if (s->mail) tuttiUnmap(s->mail, MAIL_BYTES + STAGE_BYTES, w->memory);
    tuttiFree(s->rounds);
    tuttiFree(s);
  }
  tuttiSymmetricDetach(w);
  host->device = NULL;
}

/* The monitor ends the kernels of a communicator that fails. */
static tuttiResult_t cudaDrain(tuttiTaskHost *host) {
  cudaState *s = host->device;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  if (!s || !s->launched) return tuttiSuccess;
  TUTTI_TRY(tuttiCudaEnter(s->device, &before));
  return tuttiCudaCheck(awaitLaunches(s), "an operation on the GPU");
}

static tuttiResult_t cudaStage(tuttiTaskHost *host, void **memory, size_t *bytes,
                               tuttiStream_t *stream) {
  cudaState *s = host->device;
  *memory = s->stage;
  *bytes = STAGE_BYTES;
  *stream = s->stageStream;
  return tuttiSuccess;
}

static tuttiResult_t cudaSettle(tuttiTaskHost *host) {
  cudaState *s = host->device;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  TUTTI_TRY(tuttiCudaEnter(s->device, &before));
  return CUDA_CHECK(cudaStreamSynchronize(s->stageStream));
}

static tuttiResult_t cudaWindowRegister(tuttiWires *w, tuttiTaskHost *host, void *buff, size_t size,
                                        void **window) {
  cudaState *s = host->device;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  *window = NULL;
  if (!host->plan->exchange || host->plan->staged) return tuttiSuccess; /* of no use */
  TUTTI_TRY(tuttiCudaEnter(s->device, &before));
  return tuttiCudaWindowAdd(&s->windows, w, host, buff, size, s->stageStream,
                            (tuttiCudaWindow **)window);
}

/* ---- launches -------------------------------------------------------------------------------- */

/* A part of a message for each thread block, whole lines but for the last. */
static uint64_t partOf(uint64_t bytes, const tuttiPlan *plan) {
  uint64_t unit = plan->proto == tuttiProtoLL ? TUTTI_EXCHANGE_LINE_PAYLOAD : TUTTI_EXCHANGE_LINE;
  uint64_t units = (bytes + unit - 1) / unit, n = (uint64_t)plan->nblocks;
  return (units + n - 1) / n * unit;
}

static uint64_t greater(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

/* What follows from the messages: how many chunks and lines the longest has. A longer part never
 * has fewer chunks. */
static void setLoops(tuttiExchangeArgs *a, int proto) {
  uint64_t part = a->combine || a->own ? a->part : 0, bytes = a->own ? a->bytes : 0;
  a->operands = a->late = 0;
  for (int i = 0; i < a->nlinks; i++) {
    const tuttiExchangeLink *l = &a->link[i];
    const tuttiExchangeFlow *f = &a->flow[i];
    part = greater(part, greater(f->outPart, greater(f->inPart, f->latePart)));
    bytes = greater(bytes, greater(l->outBytes, greater(l->inBytes, l->lateBytes)));
    a->operands |= (uint32_t)(l->inBytes > 0) << i;
    a->late |= (uint32_t)(l->lateBytes > 0) << i;
  }
  uint64_t chunk = proto == tuttiProtoLL
                       ? TUTTI_EXCHANGE_LL_SLOT / TUTTI_EXCHANGE_LINE * TUTTI_EXCHANGE_LINE_PAYLOAD
                       : tuttiExchangeChunk(part);
  uint64_t line = a->staged ? TUTTI_STAGED_LINE_PAYLOAD : TUTTI_EXCHANGE_LINE_PAYLOAD;
  a->loops = (uint32_t)((part + chunk - 1) / chunk);
  a->lines = (uint32_t)((bytes + line - 1) / line);
}

/* Fills in the exchange of one task, in bytes. */
static void setExchange(tuttiExchangeArgs *a, const tuttiExchange *x, uint64_t size,
                        const tuttiPlan *plan, uint32_t hash) {
  a->combine = x->combine;
  a->own = x->own;
  a->keep = x->keep;
  a->mirror = x->mirror;
  a->bytes = x->count * size;
  a->part = partOf(a->bytes, plan);
  a->ownAt = x->ownAt * size;
  a->keepAt = x->keepAt * size;
  a->spreads = 0;
  for (int i = 0; i < a->nlinks; i++) {
    tuttiExchangeLink *l = &a->link[i];
    const tuttiExchangePeer *p = &x->peer[l->rank];
    l->outAt = p->outAt * size;
    l->outBytes = p->outCount * size;
    l->inBytes = p->inCount * size;
    l->placeAt = p->placeAt * size;
    l->lateBytes = p->lateCount * size;
    l->lateAt = p->lateAt * size;
    l->outHash = l->inHash = hash;
    a->spreads |= (uint32_t)p->spread << i;
    a->flow[i] = (tuttiExchangeFlow){.outPart = partOf(l->outBytes, plan),
                                     .inPart = partOf(l->inBytes, plan),
                                     .latePart = partOf(l->lateBytes, plan)};
  }
  setLoops(a, plan->proto);
}

/* Large messages of a collective go into windows where there are any, but for those to combine. */
static void setWindows(cudaState *s, const tuttiTask *t) {
  tuttiExchangeArgs *a = &s->args;
  const tuttiPlan *plan = &t->plan;
  int coll = t->schedule.coll;
  bool placed = !tuttiCollReduces(coll) && !(coll == tuttiCollBroadcast && plan->twoShot);
  if (!s->windows.any || plan->proto != tuttiProtoSimple) return;
  for (int i = 0; i < a->nlinks; i++) {
    const tuttiExchangeLink *l = &a->link[i];
    tuttiExchangeFlow *f = &a->flow[i];
    const uint64_t out[] = {placed ? l->outBytes : 0, a->spreads >> i & 1 ? a->bytes : 0};
    const uint64_t in[] = {placed ? l->inBytes : 0, l->lateBytes}, at[] = {l->placeAt, l->lateAt};
    for (int k = 0; k < TUTTI_EXCHANGE_KINDS; k++) {
      f->asks[k] = out[k] >= TUTTI_EXCHANGE_DIRECT;
      f->tells[k] = in[k] >= TUTTI_EXCHANGE_DIRECT;
      if (f->tells[k])
        f->where[k] = tuttiCudaWindowWhere(&s->windows, (uint8_t *)t->recvbuff + at[k], in[k]);
    }
  }
}

/* One message to (or from) a neighbour, at an address instead of an offset. */
static void setMessage(cudaState *s, const tuttiTask *t) {
  const tuttiSchedule *y = &t->schedule;
  const tuttiPlan *plan = &t->plan;
  int link = y->root < y->rank ? y->root : y->root - 1;
  tuttiExchangeLink *l = &s->args.link[link];
  tuttiExchangeFlow *f = &s->args.flow[link];
  uint64_t bytes = y->count * tuttiTypeSize(t->type);
  uint64_t part = partOf(bytes, plan);
  bool direct = bytes >= DIRECT_BYTES && plan->proto == tuttiProtoSimple && !s->host->plan->staged;
  if (y->sending) {
    l->outAt = (uintptr_t)t->sendbuff;
    l->outBytes = bytes;
    l->outHash = tuttiSignatureHash(&t->signature);
    f->outPart = part;
    f->asks[0] = direct;
  } else {
    l->placeAt = (uintptr_t)t->recvbuff;
    l->inBytes = bytes;
    l->inHash = tuttiSignatureHash(&t->signature);
    f->inPart = part;
    f->tells[0] = direct;
    f->where[0] = direct ? tuttiCudaWindowWhere(&s->windows, t->recvbuff, bytes) : 0;
  }
}

/* *id tells captures apart. The runtime's call is not the same in all versions. */
static tuttiResult_t captureId(cudaStream_t stream, uint64_t *id) {
  enum cudaStreamCaptureStatus status;
  CUresult (*get)(CUstream stream, CUstreamCaptureStatus * status, cuuint64_t * id, CUgraph * graph,
                  const CUgraphNode **nodes, size_t *n) = tuttiCudaDriver("cuStreamGetCaptureInfo");
  if (get && get(stream, (CUstreamCaptureStatus *)&status, id, NULL, NULL, NULL) == CUDA_SUCCESS)
    return tuttiSuccess;
  return TUTTI_FAIL(tuttiUnhandledCudaError, "cuStreamGetCaptureInfo tells no id of a capture");
}

/* Around each launch on the stream. Kernels of one communicator follow each other, whatever streams
 * they are on: they share FIFOs. So they do within a graph; a graph is ordered by its launch. */
static tuttiResult_t beginLaunch(cudaState *s, cudaStream_t stream, bool *capturing) {
  enum cudaStreamCaptureStatus status;
  uint64_t before = s->graph;
  CUDA_TRY(cudaStreamIsCapturing(stream, &status));
  *capturing = status != cudaStreamCaptureStatusNone;
  if (*capturing) TUTTI_TRY(captureId(stream, &s->graph));
  bool another = s->last[*capturing] != stream || stream == cudaStreamPerThread;
  if (another && (!*capturing || before == s->graph))
    CUDA_TRY(cudaStreamWaitEvent(stream, s->done[*capturing], 0)); /* never recorded: does not */
  return tuttiSuccess;
}
static tuttiResult_t endLaunch(cudaState *s, cudaStream_t stream, bool capturing) {
  s->last[capturing] = stream;
  s->launched = true;
  /* Now, for the user may have destroyed the stream when another one has to wait. */
  return CUDA_CHECK(cudaEventRecord(s->done[capturing], stream));
}

static tuttiResult_t cudaCopy(tuttiTaskHost *host, void *to, tuttiStream_t receiver,
                              const void *from, size_t bytes, tuttiStream_t stream) {
  cudaState *s = host->device;
  bool capturing;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  TUTTI_TRY(tuttiCudaSwitch(s->device, &before)); /* whose stream NULL may be meant */
  TUTTI_TRY(order(s, receiver, stream));
  TUTTI_TRY(beginLaunch(s, stream, &capturing));
  CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
  TUTTI_TRY(endLaunch(s, stream, capturing));
  return order(s, stream, receiver);
}

static tuttiResult_t launch(cudaState *s, const tuttiTask *t, const tuttiPlan *plan) {
  tuttiExchangeArgs *a = &s->args;
  bool capturing, reduces = tuttiCollReduces(t->schedule.coll);
  if (a->loops == 0) return tuttiSuccess;
  a->send = t->sendbuff;
  a->recv = t->recvbuff;
  a->mirror &= a->send != a->recv;
  a->op = t->op;
  a->divide = t->divide;
  a->premul = (uint32_t)t->premul;
  a->scalar = t->scalar;
  a->scalarAt = t->scalarAt;
  a->sig = t->signature;
  TUTTI_TRY(beginLaunch(s, t->stream, &capturing));
  CUDA_TRY((cudaError_t)tuttiExchangeLaunch(a, reduces ? t->type : tuttiUint64, plan->proto,
                                            plan->kernel == tuttiKernelRegions, plan->nblocks,
                                            plan->nthreads, t->stream));
  return endLaunch(s, t->stream, capturing);
}

/* On the stream of the first. */
static tuttiResult_t launchSteps(cudaState *s, const tuttiTask *tasks, int n) {
  bool capturing;
  if (n == 0) return tuttiSuccess;
  TUTTI_TRY(beginLaunch(s, tasks[0].stream, &capturing));
  TUTTI_TRY(tuttiCudaStepsLaunch(&s->steps, tasks, n, capturing));
  return endLaunch(s, tasks[0].stream, capturing);
}

/* The exchanges in which each rank that sends sends the same to all others. */
static uint32_t sharedKinds(int coll, bool twoShot) {
  if (coll == tuttiCollAllReduce) return 1u << twoShot;
  return coll == tuttiCollAllGather || (coll == tuttiCollBroadcast && !twoShot);
}

static tuttiResult_t runCollective(cudaState *s, const tuttiTask *t) {
  tuttiExchange x;
  const tuttiSchedule *y = &t->schedule;
  size_t size = tuttiTypeSize(t->type);
  tuttiExchangeMake(y, TUTTI_EXCHANGE_LINE / size, &x);
  setExchange(&s->args, &x, size, &t->plan, tuttiSignatureHash(&t->signature));
  setWindows(s, t);
  s->args.rooted = t->signature.root >= 0;
  s->args.shared = s->args.staged ? sharedKinds(y->coll, y->twoShot) : 0;
  return launch(s, t, &t->plan);
}

static bool isMessage(const cudaState *s, const tuttiTask *t) {
  return t->host->device == s && t->schedule.coll == tuttiCollSendRecv;
}

/* Streams of one group wait for each other, before its messages and behind them. */
static tuttiResult_t join(cudaState *s, const tuttiTask *tasks, int n, cudaStream_t stream,
                          bool before) {
  for (int i = 0; i < n; i++) {
    cudaStream_t other = tasks[i].stream;
    if (isMessage(s, &tasks[i]))
      TUTTI_TRY(order(s, before ? other : stream, before ? stream : other));
  }
  return tuttiSuccess;
}

/* The messages of a group go in rounds: in round i the i-th of each pair and direction. So the two
 * sides of a message agree on its round, in whatever order they have called. */
static bool inRound(const cudaState *s, const tuttiTask *t, int round) {
  return isMessage(s, t) && t->round == round;
}

/* Those of one protocol. Protocol, thread blocks and so the parts of a message depend on that
 * message alone: its two sides know of no other. */
static tuttiResult_t exchangeRound(cudaState *s, const tuttiTask *tasks, int n, int round,
                                   int proto) {
  tuttiPlan most = {
      .proto = (uint8_t)proto, .kernel = tuttiKernelSlots, .nblocks = 1, .nthreads = 32};
  tuttiExchange nothing;
  memset(&nothing, 0, sizeof nothing);
  setExchange(&s->args, &nothing, 1, &most, 1);
  s->args.shared = 0;
  for (int i = 0; i < n; i++) {
    const tuttiPlan *plan = &tasks[i].plan;
    if (!inRound(s, &tasks[i], round) || plan->proto != proto) continue;
    setMessage(s, &tasks[i]);
    if (plan->nblocks > most.nblocks) most.nblocks = plan->nblocks;
    if (plan->nthreads > most.nthreads) most.nthreads = plan->nthreads;
  }
  setLoops(&s->args, proto);
  tuttiTask t = tasks[0];
  t.sendbuff = t.recvbuff = NULL; /* each message has its own */
  return launch(s, &t, &most);
}

/* Adds a message to a launch: a large one in parts, over FIFOs of several channels. */
static void addMessage(const cudaState *s, const tuttiTask *t, bool large, tuttiTask *tasks,
                       int *n) {
  int parts = large && s->steps.nchannels >= STEPS_PARTS ? STEPS_PARTS : 1;
  for (int p = 0; p < parts; p++) {
    tuttiTask *part = &tasks[*n];
    *part = *t;
    part->channel = p > 0 ? p : TUTTI_P2P_CHANNEL;
    tuttiPlanPart(t->schedule.count, t->type, p, parts, &part->schedule.begin,
                  &part->schedule.part);
    if (part->schedule.part > 0) (*n)++;
  }
}

/* As many as a launch takes: those between ranks that are about as far apart. */
static tuttiResult_t stepsRound(cudaState *s, const tuttiTask *tasks, int n, int round,
                                bool large) {
  tuttiTask parts[TUTTI_STEPS_TASKS];
  int nranks = s->steps.nranks, reach = (int)TUTTI_STEPS_TASKS / 2 / (large ? STEPS_PARTS : 1);
  for (int from = 0; from < nranks; from += reach) {
    int k = 0;
    for (int i = 0; i < n; i++) {
      const tuttiTask *t = &tasks[i];
      if (!inRound(s, t, round)) continue;
      int ahead = t->schedule.root - t->schedule.rank;
      int distance = ((t->schedule.sending ? ahead : -ahead) + nranks) % nranks;
      bool isLarge = t->schedule.count * tuttiTypeSize(t->type) >= STEPS_LARGE;
      if (distance / reach == from / reach && isLarge == large) addMessage(s, t, large, parts, &k);
    }
    parts[0].stream = tasks[0].stream; /* which all others wait for, and it for them */
    TUTTI_TRY(launchSteps(s, parts, k));
  }
  return tuttiSuccess;
}

static tuttiResult_t runMessages(cudaState *s, tuttiTask *tasks, int n) {
  for (; n > 0 && !isMessage(s, tasks); n--)
    tasks++;
  if (n == 0) return tuttiSuccess;
  int rounds = 0;
  memset(s->rounds, 0, 2 * (size_t)tasks[0].schedule.nranks * sizeof *s->rounds);
  for (int i = 0; i < n; i++) {
    tuttiTask *t = &tasks[i];
    if (!isMessage(s, t)) continue;
    t->round = s->rounds[2 * t->schedule.root + t->schedule.sending]++;
    if (t->round >= rounds) rounds = t->round + 1;
  }
  cudaStream_t stream = tasks[0].stream;
  TUTTI_TRY(join(s, tasks, n, stream, true));
  for (int r = 0; r < 2 * rounds; r++) { /* first the small ones of each */
    bool large = r % 2;
    TUTTI_TRY(s->host->plan->exchange
                  ? exchangeRound(s, tasks, n, r / 2, large ? tuttiProtoSimple : tuttiProtoLL)
                  : stepsRound(s, tasks, n, r / 2, large));
  }
  return join(s, tasks, n, stream, false);
}

/* The channels of the collective that tasks[0] begins. */
static tuttiResult_t stepsCollective(cudaState *s, const tuttiTask *tasks, int n) {
  int k = 1;
  while (k < n && k < (int)TUTTI_STEPS_TASKS && tasks[k].host == tasks[0].host &&
         tasks[k].channel == k && !isMessage(s, &tasks[k]))
    k++;
  return tasks[0].schedule.count > 0 ? launchSteps(s, tasks, k) : tuttiSuccess;
}

/* Messages first, on every rank alike: ranks may have called in another order within the group. */
static tuttiResult_t runOf(cudaState *s, tuttiTask *tasks, int n) {
  TUTTI_TRY(runMessages(s, tasks, n));
  for (int i = 0; i < n; i++) {
    const tuttiTask *t = &tasks[i];
    if (t->host->device != s || isMessage(s, t)) continue;
    if (s->host->plan->exchange)
      TUTTI_TRY(runCollective(s, t));
    else if (t->channel == 0)
      TUTTI_TRY(stepsCollective(s, t, n - i));
  }
  return tuttiSuccess;
}

static tuttiResult_t cudaRun(const tuttiTaskSet *set) {
  for (int i = 0; i < set->ntasks; i++) {
    cudaState *s = set->tasks[i].host->device;
    bool done = false;
    for (int j = 0; j < i && !done; j++)
      done = set->tasks[j].host->device == s;
    if (done) continue;
    TUTTI_RESTORED tuttiCudaBefore before = {0};
    /* Steps may open connections; exchanges are spared the time. */
    TUTTI_TRY((s->host->plan->exchange ? tuttiCudaSwitch : tuttiCudaEnter)(s->device, &before));
    TUTTI_TRY(runOf(s, set->tasks + i, set->ntasks - i));
  }
  return tuttiSuccess;
}

static const tuttiDevice table = {
    .name = "CUDA",
    .kind = tuttiDeviceCuda,
    .alloc = cudaAllocate,
    .free = cudaRelease,
    .run = cudaRun,
    .copy = cudaCopy,
    .refuse = cudaRefuse,
    .describe = cudaDescribe,
    .attach = cudaAttach,
    .detach = cudaDetach,
    .drain = cudaDrain,
    .stage = cudaStage,
    .settle = cudaSettle,
    .windowRegister = cudaWindowRegister,
    .windowDeregister = tuttiCudaWindowDrop,
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char missing[160];

static void look(void) {
  int n = 0;
  cudaError_t err = cudaGetDeviceCount(&n);
  /* Where there is a driver, a call that fails says why; host memory might not be what is meant. */
  if (err != cudaSuccess && (err == cudaErrorNoDevice || access("/dev/nvidiactl", F_OK) != 0))
    snprintf(missing, sizeof missing, "%s (%s)", cudaGetErrorString(err), cudaGetErrorName(err));
  else if (err == cudaSuccess && n == 0)
    snprintf(missing, sizeof missing, "the driver shows no GPU to this process");
}

const tuttiDevice *tuttiDeviceCudaTable(const char **why) {
  pthread_once(&once, look);
  *why = missing;
  return missing[0] ? NULL : &table;
}

int tuttiDeviceCudaOrdinal(int ordinal) {
  const char *why;
  int current;
  if (ordinal < 0 && tuttiDeviceCudaTable(&why) && cudaGetDevice(&current) == cudaSuccess)
    return current;
  return ordinal;
}

#else

int tuttiDeviceCudaOrdinal(int ordinal) {
  return ordinal;
}

const tuttiDevice *tuttiDeviceCudaTable(const char **why) {
  *why = "this build of tutti has no CUDA support (cmake found no CUDA compiler)";
  return NULL;
}

#endif

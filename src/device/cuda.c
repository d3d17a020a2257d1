/* CUDA as a device: one exchange kernel per operation, enqueued on the user's stream, and a thread
 * per communicator that listens to what its kernels report and ends them when it fails. */
#include "device/device.h"

#ifdef TUTTI_HAVE_CUDA

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/cuda.h"
#include "base/error.h"
#include "base/log.h"
#include "base/os.h"
#include "collectives/exchange_plan.h"
#include "device/cuda_window.h"
#include "kernels/exchange.h"
#include "transport/symmetric.h"

#define MONITOR_MS  20
#define STAGE_BYTES 16384
/* Messages of a group from here on ask for a window, whether there is one or not: unlike a
 * collective, a message may be sent before a window is made and received behind it. */
#define DIRECT_MESSAGE ((uint64_t)4 << 20)

typedef struct {
  tuttiTaskHost *host;
  int device;
  tuttiExchangeMail *mail; /* as the host sees it */
  tuttiExchangeMail *mailOnDevice;
  cudaStream_t last; /* the stream of the last launch, once `launched` */
  bool launched;
  bool captured; /* it was capturing a graph then; else `done` is behind that launch */
  cudaEvent_t done, joined;
  void *stage; /* STAGE_BYTES for the communicator's own exchanges, on a stream of their own */
  cudaStream_t stageStream;
  pthread_t monitor;
  pthread_mutex_t lock; /* with wake: tells the monitor to stop */
  pthread_cond_t wake;
  bool monitoring, stop;
  tuttiCudaWindows windows;
  tuttiExchangeArgs args; /* of the next launch; what never changes stays */
} cudaState;

/* ---- memory ---------------------------------------------------------------------------------- */

static tuttiResult_t cudaAllocate(void **ptr, size_t size) {
  void *p;
  CUDA_TRY(cudaMalloc(&p, size));
  *ptr = p;
  return tuttiSuccess;
}

static tuttiResult_t cudaRelease(void *ptr) {
  CUDA_TRY(cudaFree(ptr));
  return tuttiSuccess;
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

static tuttiResult_t cudaCopy(void *to, const void *from, size_t bytes, tuttiStream_t stream) {
  CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
  return tuttiSuccess;
}

/* ---- the monitor ----------------------------------------------------------------------------- */

/* What the kernels have reported since the last look. */
static void hear(cudaState *s, uint32_t *heard) {
  tuttiExchangeMail *mail = s->mail;
  uint32_t stalls = __atomic_load_n(&mail->stalls, __ATOMIC_ACQUIRE);
  if (stalls == *heard) return;
  *heard = stalls;
  tuttiSignature sig = mail->sig;
  int peer = mail->peer;
  uint64_t waited = mail->waitedMs;
  if (mail->disagrees) {
    /* The peer's state tells what it called; without it the number of the call must do. */
    if (s->host->stalled(s->host->comm, &sig, peer, UINT32_MAX) == tuttiSuccess)
      s->host->mismatch(s->host->comm, peer, &sig, &sig);
  } else {
    s->host->stalled(s->host->comm, &sig, peer, waited);
  }
}

static void *monitorMain(void *arg) {
  cudaState *s = arg;
  uint32_t heard = 0;
  pthread_mutex_lock(&s->lock);
  while (!s->stop) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += MONITOR_MS * 1000000;
    if (until.tv_nsec >= 1000000000) {
      until.tv_sec++;
      until.tv_nsec -= 1000000000;
    }
    pthread_cond_timedwait(&s->wake, &s->lock, &until);
    pthread_mutex_unlock(&s->lock);
    hear(s, &heard);
    if (tuttiLoadAcquire32(s->host->failed) || s->host->failure(s->host->comm) != tuttiSuccess)
      __atomic_store_n(&s->mail->abort, 1, __ATOMIC_RELEASE);
    pthread_mutex_lock(&s->lock);
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

/* ---- a communicator's life ------------------------------------------------------------------- */

/* Without an ordinal: the current device. */
static tuttiResult_t cudaDescribe(int ordinal, tuttiWires *w, tuttiPeer *mine) {
  TUTTI_RESTORED int before = -1;
  int device = ordinal;
  char bus[32];
  unsigned domain, number, slot;
  if (ordinal < 0) CUDA_TRY(cudaGetDevice(&device));
  TUTTI_TRY(tuttiCudaEnter(device, &before));
  mine->cudaDevice = device;
  tuttiResult_t result =
      tuttiCudaCheck(cudaDeviceGetPCIBusId(bus, sizeof bus, device), "its PCI bus id");
  if (result == tuttiSuccess && sscanf(bus, "%x:%x:%x", &domain, &number, &slot) == 3)
    mine->busId = (uint64_t)domain << 24 | number << 16 | slot << 8;
  if (result == tuttiSuccess)
    result = tuttiSymmetricPrepare(w, mine, tuttiExchangeBlockBytes(w->nranks));
  return result;
}

static tuttiResult_t setUp(cudaState *s, tuttiWires *w) {
  CUDA_TRY(cudaHostAlloc((void **)&s->mail, sizeof *s->mail, cudaHostAllocMapped));
  memset(s->mail, 0, sizeof *s->mail);
  CUDA_TRY(cudaHostGetDevicePointer((void **)&s->mailOnDevice, s->mail, 0));
  CUDA_TRY(cudaEventCreateWithFlags(&s->done, cudaEventDisableTiming));
  CUDA_TRY(cudaEventCreateWithFlags(&s->joined, cudaEventDisableTiming));
  /* Now, for a later allocation could wait for kernels that wait for this rank. */
  CUDA_TRY(cudaHostAlloc(&s->stage, STAGE_BYTES, cudaHostAllocMapped));
  CUDA_TRY(cudaStreamCreateWithFlags(&s->stageStream, cudaStreamNonBlocking));
  CUDA_TRY((cudaError_t)tuttiExchangeLoad());
  for (int p = 0; p < w->nranks; p++)
    if (p != w->rank) TUTTI_TRY(tuttiSymmetricMap(w, p));
  tuttiExchangeArgs *a = &s->args;
  a->mail = s->mailOnDevice;
  a->nlinks = a->place = 0;
  for (int p = 0; p < w->nranks; p++) {
    if (p == w->rank) {
      a->place = a->nlinks;
      continue;
    }
    tuttiExchangeLink *link = &a->link[a->nlinks++];
    link->rank = p;
    link->block = w->symmetric->theirs[p];
    link->column = (uint32_t)(w->rank < p ? w->rank : w->rank - 1);
  }
  a->block = w->symmetric->mine;
  a->simpleAt = tuttiExchangeSimpleAt(w->nranks);
  a->uniformAt = tuttiExchangeUniformAt(w->nranks);
  int err = tuttiThreadStart(&s->monitor, "tutti-kernels", monitorMain, s);
  if (err)
    return TUTTI_FAIL(tuttiSystemError, "no thread to watch kernels: %s; raise `ulimit -u`",
                      tuttiErrnoText(err));
  s->monitoring = true;
  return tuttiSuccess;
}

static tuttiResult_t cudaAttach(tuttiWires *w, tuttiTaskHost *host) {
  cudaState *s;
  TUTTI_RESTORED int before = -1;
  TUTTI_TRY(tuttiAlloc((void **)&s, 1, sizeof *s, "a communicator's CUDA state", w->memory));
  host->device = s;
  s->host = host;
  s->device = w->peers[w->rank].cudaDevice;
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->wake, NULL);
  TUTTI_TRY(tuttiCudaEnter(s->device, &before));
  tuttiResult_t result = setUp(s, w);
  return result;
}

static void stopMonitor(cudaState *s) {
  if (!s->monitoring) return;
  pthread_mutex_lock(&s->lock);
  s->stop = true;
  pthread_cond_signal(&s->wake);
  pthread_mutex_unlock(&s->lock);
  pthread_join(s->monitor, NULL);
}

static void cudaDetach(tuttiWires *w, tuttiTaskHost *host) {
  cudaState *s = host->device;
  TUTTI_RESTORED int before = -1;
  if (s && tuttiCudaEnter(s->device, &before) == tuttiSuccess) {
    if (s->mail) __atomic_store_n(&s->mail->abort, 1, __ATOMIC_RELEASE);
    if (s->launched) cudaDeviceSynchronize();
    stopMonitor(s);
    tuttiCudaWindowsClose(&s->windows);
    tuttiSymmetricDetach(w);
    if (s->done) cudaEventDestroy(s->done);
    if (s->joined) cudaEventDestroy(s->joined);
    if (s->stageStream) cudaStreamDestroy(s->stageStream);
    if (s->stage) cudaFreeHost(s->stage);
    if (s->mail) cudaFreeHost(s->mail);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->wake);
    tuttiFree(s);
  } else {
    tuttiSymmetricDetach(w);
  }
  host->device = NULL;
}

/* Of the whole device, since the user may have destroyed the streams. The monitor ends the kernels
 * of a communicator that fails. */
static tuttiResult_t cudaDrain(tuttiTaskHost *host) {
  cudaState *s = host->device;
  TUTTI_RESTORED int before = -1;
  if (!s || !s->launched) return tuttiSuccess;
  TUTTI_TRY(tuttiCudaEnter(s->device, &before));
  tuttiResult_t result = tuttiCudaCheck(cudaDeviceSynchronize(), "an operation on the GPU");
  return result;
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
  CUDA_TRY(cudaStreamSynchronize(s->stageStream));
  return tuttiSuccess;
}

static tuttiResult_t cudaWindowRegister(tuttiWires *w, tuttiTaskHost *host, void *buff, size_t size,
                                        void **window) {
  cudaState *s = host->device;
  TUTTI_RESTORED int before = -1;
  TUTTI_TRY(tuttiCudaEnter(s->device, &before));
  tuttiResult_t result = tuttiCudaWindowAdd(&s->windows, w, host, buff, size, s->stageStream,
                                            (tuttiCudaWindow **)window);
  return result;
}

/* ---- launches -------------------------------------------------------------------------------- */

/* FNV-1a over what must be equal on both sides; never 0. Numbers are not in it: messages have their
 * own, and a captured operation runs many times. */
static uint32_t hashOf(const tuttiSignature *sig) {
  tuttiSignature key = *sig;
  key.seq = 0;
  uint32_t h = 2166136261u;
  for (size_t i = 0; i < sizeof key; i++)
    h = (h ^ ((const uint8_t *)&key)[i]) * 16777619u;
  return h | 1;
}

/* A part of a message for each of n thread blocks, whole units but for the last. */
static uint64_t partOf(uint64_t bytes, int n, uint64_t unit) {
  uint64_t units = (bytes + unit - 1) / unit;
  return (units + (uint64_t)n - 1) / (uint64_t)n * unit;
}

static uint32_t loopsOf(uint64_t part, int proto) {
  uint64_t chunk = proto == tuttiProtoLL
                       ? TUTTI_EXCHANGE_LL_SLOT / TUTTI_EXCHANGE_LINE * TUTTI_EXCHANGE_LINE_PAYLOAD
                       : tuttiExchangeChunk(part);
  return (uint32_t)((part + chunk - 1) / chunk);
}

static uint64_t unitOf(int proto) {
  return proto == tuttiProtoLL ? TUTTI_EXCHANGE_LINE_PAYLOAD : TUTTI_EXCHANGE_LINE;
}
static uint64_t greater(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}
static uint32_t most(uint32_t a, uint32_t b) {
  return a > b ? a : b;
}

/* What follows from the messages: how many chunks and lines the longest has. */
static void setLoops(tuttiExchangeArgs *a, int proto) {
  uint64_t part = a->combine || a->own ? a->part : 0, bytes = a->own ? a->bytes : 0;
  uint32_t loops = loopsOf(part, proto);
  a->operands = a->late = 0;
  for (int i = 0; i < a->nlinks; i++) {
    const tuttiExchangeLink *l = &a->link[i];
    loops = most(loops, loopsOf(a->flow[i].outPart, proto));
    loops = most(loops, loopsOf(a->flow[i].inPart, proto));
    loops = most(loops, loopsOf(a->flow[i].latePart, proto));
    bytes = greater(bytes, greater(l->outBytes, greater(l->inBytes, l->lateBytes)));
    a->operands |= (uint32_t)(l->inBytes > 0) << i;
    a->late |= (uint32_t)(l->lateBytes > 0) << i;
  }
  a->loops = loops;
  a->lines = (uint32_t)((bytes + TUTTI_EXCHANGE_LINE_PAYLOAD - 1) / TUTTI_EXCHANGE_LINE_PAYLOAD);
}

/* Fills in the exchange of one task, in bytes. */
static void setExchange(tuttiExchangeArgs *a, const tuttiExchange *x, uint64_t size,
                        const tuttiExchangePlan *plan, uint32_t hash) {
  uint64_t unit = unitOf(plan->proto);
  a->combine = x->combine;
  a->own = x->own;
  a->keep = x->keep;
  a->mirror = x->mirror;
  a->bytes = x->count * size;
  a->part = partOf(a->bytes, plan->nblocks, unit);
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
    a->flow[i] = (tuttiExchangeFlow){.outPart = partOf(l->outBytes, plan->nblocks, unit),
                                     .inPart = partOf(l->inBytes, plan->nblocks, unit),
                                     .latePart = partOf(l->lateBytes, plan->nblocks, unit)};
  }
  setLoops(a, plan->proto);
}

/* Large messages of a collective go into windows where there are any, but for those to combine. */
static void setWindows(cudaState *s, const tuttiTask *t, const tuttiExchangePlan *plan) {
  tuttiExchangeArgs *a = &s->args;
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
static void setMessage(cudaState *s, int link, bool in, const tuttiTask *t,
                       const tuttiExchangePlan *plan) {
  tuttiExchangeLink *l = &s->args.link[link];
  tuttiExchangeFlow *f = &s->args.flow[link];
  uint64_t bytes = t->schedule.count * tuttiTypeSize(t->type);
  uint64_t part = partOf(bytes, plan->nblocks, unitOf(plan->proto));
  bool direct = bytes >= DIRECT_MESSAGE && plan->proto == tuttiProtoSimple;
  if (in) {
    l->placeAt = (uintptr_t)t->recvbuff;
    l->inBytes = bytes;
    l->inHash = hashOf(&t->signature);
    f->inPart = part;
    f->tells[0] = direct;
    f->where[0] = direct ? tuttiCudaWindowWhere(&s->windows, t->recvbuff, bytes) : 0;
  } else {
    l->outAt = (uintptr_t)t->sendbuff;
    l->outBytes = bytes;
    l->outHash = hashOf(&t->signature);
    f->outPart = part;
    f->asks[0] = direct;
  }
}

static tuttiResult_t isCapturing(cudaStream_t stream, bool *capturing) {
  enum cudaStreamCaptureStatus status;
  CUDA_TRY(cudaStreamIsCapturing(stream, &status));
  *capturing = status != cudaStreamCaptureStatusNone;
  return tuttiSuccess;
}

/* Kernels of one communicator follow each other, whatever streams they are on: they share FIFOs. A
 * graph is ordered by its launch. */
static tuttiResult_t follow(cudaState *s, cudaStream_t stream, bool capturing) {
  if (!s->launched || s->last == stream || capturing || s->captured) return tuttiSuccess;
  CUDA_TRY(cudaStreamWaitEvent(stream, s->done, 0));
  return tuttiSuccess;
}

static tuttiResult_t launch(cudaState *s, const tuttiTask *t, const tuttiExchangePlan *plan) {
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
  TUTTI_TRY(isCapturing(t->stream, &capturing));
  TUTTI_TRY(follow(s, t->stream, capturing));
  CUDA_TRY((cudaError_t)tuttiExchangeLaunch(a, reduces ? t->type : tuttiUint64, plan->proto,
                                            plan->uniform, plan->nblocks, plan->nthreads,
                                            t->stream));
  s->last = t->stream;
  s->launched = true;
  s->captured = capturing;
  /* Now, for the user may have destroyed the stream when another one has to wait. */
  if (!capturing) CUDA_TRY(cudaEventRecord(s->done, t->stream));
  return tuttiSuccess;
}

static tuttiResult_t runCollective(cudaState *s, const tuttiTask *t) {
  tuttiExchange x;
  tuttiExchangePlan plan;
  tuttiSchedule schedule = t->schedule;
  size_t size = tuttiTypeSize(t->type);
  tuttiExchangeChoose(s->host->plan, &schedule, size, &plan);
  schedule.twoShot = (uint8_t)plan.twoShot;
  tuttiExchangeMake(&schedule, TUTTI_EXCHANGE_LINE / size, &x);
  setExchange(&s->args, &x, size, &plan, hashOf(&t->signature));
  setWindows(s, t, &plan);
  s->args.rooted = t->signature.root >= 0;
  return launch(s, t, &plan);
}

/* The messages of a group go in rounds: in round i the i-th of each pair and direction. So the two
 * sides of a message agree on its round, in whatever order they have called. */
typedef struct {
  const tuttiTask *out[TUTTI_EXCHANGE_MAX], *in[TUTTI_EXCHANGE_MAX]; /* by peer */
  const tuttiTask *first;
} messageRound;

static bool isMessage(const cudaState *s, const tuttiTask *t) {
  return t->host->device == s && t->schedule.coll == tuttiCollSendRecv;
}

/* Those of one protocol. Protocol, thread blocks and so the parts of a message depend on that
 * message alone: its two sides know of no other. */
static tuttiResult_t runRound(cudaState *s, const messageRound *round, int proto) {
  tuttiExchangeArgs *a = &s->args;
  tuttiExchangePlan most = {.proto = proto, .nblocks = 1, .nthreads = 32};
  tuttiExchange nothing;
  memset(&nothing, 0, sizeof nothing);
  setExchange(a, &nothing, 1, &most, 1);
  for (int i = 0; i < 2 * a->nlinks; i++) {
    const tuttiExchangeLink *l = &a->link[i / 2];
    bool in = i % 2;
    const tuttiTask *t = in ? round->in[l->rank] : round->out[l->rank];
    tuttiExchangePlan plan;
    if (!t) continue;
    tuttiExchangeChoose(s->host->plan, &t->schedule, tuttiTypeSize(t->type), &plan);
    if (plan.proto != proto) continue;
    setMessage(s, i / 2, in, t, &plan);
    if (plan.nblocks > most.nblocks) most.nblocks = plan.nblocks;
    if (plan.nthreads > most.nthreads) most.nthreads = plan.nthreads;
  }
  setLoops(a, proto);
  tuttiTask t = *round->first;
  t.sendbuff = t.recvbuff = NULL; /* each message has its own */
  return launch(s, &t, &most);
}

/* Streams of one group wait for each other, before its messages and behind them. */
static tuttiResult_t join(cudaState *s, const tuttiTask *tasks, int n, cudaStream_t stream,
                          bool before) {
  for (int i = 0; i < n; i++) {
    cudaStream_t other = tasks[i].stream;
    if (!isMessage(s, &tasks[i]) || other == stream) continue;
    CUDA_TRY(cudaEventRecord(s->joined, before ? other : stream));
    CUDA_TRY(cudaStreamWaitEvent(before ? stream : other, s->joined, 0));
  }
  return tuttiSuccess;
}

static tuttiResult_t runMessages(cudaState *s, tuttiTask *tasks, int n) {
  int counts[TUTTI_EXCHANGE_MAX][2] = {{0}}, rounds = 0;
  const tuttiTask *first = NULL;
  for (int i = 0; i < n; i++) {
    tuttiTask *t = &tasks[i];
    if (!isMessage(s, t)) continue;
    t->channel = counts[t->schedule.root][t->schedule.sending]++; /* its round */
    if (t->channel >= rounds) rounds = t->channel + 1;
    if (!first) first = t;
  }
  if (!first) return tuttiSuccess;
  TUTTI_TRY(join(s, tasks, n, first->stream, true));
  for (int r = 0; r < rounds; r++) {
    messageRound round = {.first = first};
    for (int i = 0; i < n; i++) {
      const tuttiTask *t = &tasks[i];
      if (!isMessage(s, t) || t->channel != r) continue;
      (t->schedule.sending ? round.out : round.in)[t->schedule.root] = t;
    }
    TUTTI_TRY(runRound(s, &round, tuttiProtoLL));
    TUTTI_TRY(runRound(s, &round, tuttiProtoSimple));
  }
  return join(s, tasks, n, first->stream, false);
}

/* Messages first, on every rank alike: ranks may have called in another order within the group. */
static tuttiResult_t runOf(cudaState *s, tuttiTask *tasks, int n) {
  TUTTI_TRY(runMessages(s, tasks, n));
  for (int i = 0; i < n; i++)
    if (tasks[i].host->device == s && !isMessage(s, &tasks[i]))
      TUTTI_TRY(runCollective(s, &tasks[i]));
  return tuttiSuccess;
}

static tuttiResult_t cudaRun(const tuttiTaskSet *set) {
  for (int i = 0; i < set->ntasks; i++) {
    cudaState *s = set->tasks[i].host->device;
    bool done = false;
    for (int j = 0; j < i && !done; j++)
      done = set->tasks[j].host->device == s;
    if (done) continue;
    TUTTI_RESTORED int before = -1;
    TUTTI_TRY(tuttiCudaEnter(s->device, &before));
    tuttiResult_t result = runOf(s, set->tasks + i, set->ntasks - i);
    TUTTI_TRY(result);
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
  if (err != cudaSuccess)
    snprintf(missing, sizeof missing, "%s (%s)", cudaGetErrorString(err), cudaGetErrorName(err));
  else if (n == 0)
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

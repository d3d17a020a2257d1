/* One-sided puts between GPUs beside messages and plain copies; see onesided.c. */
#include "onesided.h"

#ifdef TUTTI_HAVE_CUDA

#include <cuda_runtime_api.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const bool onesidedGpuBuilt = true;

#define CUDA(call)                                                                                 \
  do {                                                                                             \
    cudaError_t err_ = (call);                                                                     \
    if (err_ != cudaSuccess) {                                                                     \
      fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(err_));                                \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

enum { ITERATIONS = 50, LARGE = 64 << 20, PUTS = 8, REPEATS = 5 };

typedef struct {
  int rank, batches;
  tuttiComm_t comm;
  tuttiWindow_t win;
  char *window, *data;
  char *theirs; /* rank 0: the window of rank 1 */
  cudaStream_t stream;
} Side;

typedef void Work(const Side *);

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- what is measured ------------------------------------------------------------------------ */

static void put(const Side *s, size_t bytes) {
  CHECK(tuttiPutSignal(s->data, bytes, tuttiUint8, 1 - s->rank, s->win, 0, 0, 0, 0, s->comm,
                       s->stream));
}

static void await(const Side *s, int count) {
  tuttiWaitSignalDesc_t desc = {count, 1 - s->rank, 0, 0};
  CHECK(tuttiWaitSignal(1, &desc, s->comm, s->stream));
}

static void putThere(const Side *s) {
  put(s, 8);
}
static void awaitOne(const Side *s) {
  await(s, 1);
}
static void sendThere(const Side *s) {
  CHECK(tuttiSend(s->data, 8, tuttiUint8, 1 - s->rank, s->comm, s->stream));
}
static void receive(const Side *s) {
  CHECK(tuttiRecv(s->window, 8, tuttiUint8, 1 - s->rank, s->comm, s->stream));
}

static void toAndFro(const Side *s, Work *there, Work *back) {
  for (int i = 0; i < ITERATIONS; i++) {
    (s->rank == 0 ? there : back)(s);
    (s->rank == 0 ? back : there)(s);
  }
}
static void putToAndFro(const Side *s) {
  toAndFro(s, putThere, awaitOne);
}
static void sendToAndFro(const Side *s) {
  toAndFro(s, sendThere, receive);
}

/* Rank 0 puts, up to the signal of rank 1 that all have come. */
static void putLarge(const Side *s) {
  for (int i = 0; s->rank == 0 && i < PUTS; i++)
    put(s, LARGE);
  await(s, s->rank == 0 ? 1 : PUTS);
  if (s->rank == 1) CHECK(tuttiSignal(0, 0, 0, 0, s->comm, s->stream));
}
/* Pointers tell the GPUs: the same as cudaMemcpyPeerAsync. */
static void copyLarge(const Side *s) {
  for (int i = 0; s->rank == 0 && i < PUTS; i++)
    CUDA(cudaMemcpyAsync(s->theirs, s->data, LARGE, cudaMemcpyDefault, s->stream));
}

/* ---- how ------------------------------------------------------------------------------------- */

static cudaGraphExec_t capture(const Side *s, Work *work) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA(cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal));
  work(s);
  CUDA(cudaStreamEndCapture(s->stream, &graph));
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaGraphUpload(exec, s->stream));
  return exec;
}

static void start(const Side *s, Work *work, cudaGraphExec_t exec) {
  if (exec)
    CUDA(cudaGraphLaunch(exec, s->stream));
  else
    work(s);
}

/* us one way, of the best batch: what else runs on the machine only ever adds. */
static double oneWay(const Side *s, Work *work, bool inGraph) {
  double best = 1e9;
  cudaGraphExec_t exec = inGraph ? capture(s, work) : NULL;
  for (int b = 0; b < s->batches; b++) {
    CUDA(cudaStreamSynchronize(s->stream));
    double begin = seconds();
    start(s, work, exec);
    CUDA(cudaStreamSynchronize(s->stream));
    double us = (seconds() - begin) / ITERATIONS / 2 * 1e6;
    if (us < best) best = us;
  }
  if (exec) CUDA(cudaGraphExecDestroy(exec));
  return best;
}

/* GB/s of rank 0's stream, of the best repeat; 0 on rank 1. */
static double rate(const Side *s, Work *work, bool inGraph) {
  cudaEvent_t begin, end;
  float ms, best = 1e9f;
  cudaGraphExec_t exec = inGraph && (s->rank == 0 || work != copyLarge) ? capture(s, work) : NULL;
  CUDA(cudaEventCreate(&begin));
  CUDA(cudaEventCreate(&end));
  for (int i = 0; i < REPEATS; i++) {
    CUDA(cudaEventRecord(begin, s->stream));
    start(s, work, exec);
    CUDA(cudaEventRecord(end, s->stream));
    CUDA(cudaStreamSynchronize(s->stream));
    CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (ms < best) best = ms;
  }
  CUDA(cudaEventDestroy(begin));
  CUDA(cudaEventDestroy(end));
  if (exec) CUDA(cudaGraphExecDestroy(exec));
  return s->rank == 0 ? (double)PUTS * LARGE / (best * 1e6) : 0;
}

/* Where rank 0 finds the window of rank 1 for its plain copies. */
static void showWindow(Side *s, onesidedShared *shared) {
  cudaIpcMemHandle_t handle;
  if (s->rank == 1) {
    CUDA(cudaIpcGetMemHandle(&handle, s->window));
    memcpy(shared->handle, &handle, sizeof handle);
    shared->window = s->window;
    __atomic_store_n(&shared->told, 1, __ATOMIC_RELEASE);
    return;
  }
  for (int i = 0; !__atomic_load_n(&shared->told, __ATOMIC_ACQUIRE); i++) {
    if (i == 60000) exit(1);
    usleep(1000);
  }
  s->theirs = shared->window;
  if (shared->threads) return;
  memcpy(&handle, shared->handle, sizeof handle);
  CUDA(cudaIpcOpenMemHandle((void **)&s->theirs, handle, cudaIpcMemLazyEnablePeerAccess));
}

/* What has been put is there. */
static void verify(const Side *s) {
  char byte = 0;
  if (s->rank == 0) return;
  CUDA(cudaMemcpy(&byte, s->window + LARGE - 1, 1, cudaMemcpyDefault));
  if (byte == 1) return;
  fprintf(stderr, "the last byte of the window is %d, not 1\n", byte);
  exit(1);
}

static void setUp(Side *s, onesidedShared *shared) {
  int gpus;
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  CUDA(cudaGetDeviceCount(&gpus));
  if (shared->threads) gpus = 1;
  CUDA(cudaSetDevice(s->rank % gpus));
  s->batches = gpus > 1 || shared->threads ? 100 : 4; /* processes take turns of milliseconds */
  CUDA(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
  CUDA(cudaMalloc((void **)&s->data, LARGE));
  CUDA(cudaMalloc((void **)&s->window, LARGE));
  CUDA(cudaMemset(s->data, 1, LARGE));
  CUDA(cudaMemset(s->window, 0, LARGE));
  CUDA(cudaDeviceSynchronize());
  config.device = tuttiDeviceCuda;
  CHECK(tuttiCommInitRankConfig(&s->comm, 2, shared->id, s->rank, &config));
  CHECK(tuttiCommWindowRegister(s->comm, s->window, LARGE, &s->win, TUTTI_WIN_DEFAULT));
  showWindow(s, shared);
  if (s->rank == 0)
    printf("two %s, %s\n", shared->threads ? "threads" : "processes",
           gpus > 1 ? "a GPU each" : "on one GPU");
}

void onesidedGpu(int rank, onesidedShared *shared, int rounds) {
  Side s = {.rank = rank};
  setUp(&s, shared);
  for (int i = 0; i < rounds; i++) {
    double message[2], signalled[2], puts[2], copies[2];
    for (int graph = 0; graph < 2; graph++) {
      message[graph] = oneWay(&s, sendToAndFro, graph);
      signalled[graph] = oneWay(&s, putToAndFro, graph);
      puts[graph] = rate(&s, putLarge, graph);
      copies[graph] = rate(&s, copyLarge, graph);
    }
    verify(&s);
    for (int graph = 0; rank == 0 && graph < 2; graph++)
      printf("%s 8 bytes: send/recv %.2f us, put with signal %.2f us; 64 MiB: put %.1f GB/s, copy "
             "%.1f GB/s\n",
             graph ? "graph:" : "eager:", message[graph], signalled[graph], puts[graph],
             copies[graph]);
    fflush(stdout);
  }
  CUDA(cudaStreamSynchronize(s.stream));
  CHECK(tuttiCommDestroy(s.comm));
  if (s.theirs && !shared->threads) CUDA(cudaIpcCloseMemHandle(s.theirs));
}

#else

const bool onesidedGpuBuilt = false;

void onesidedGpu(int rank, onesidedShared *shared, int rounds) {
  (void)rank, (void)shared, (void)rounds;
}

#endif

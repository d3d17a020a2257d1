/* What a library of NCCL's ABI costs beside its collectives: the time to make communicators, the
 * GPU memory they keep, and the smallest all-reduce of one process that drives all GPUs.
 *
 *   bench_gpu_init [--ranks N] [--rounds N] LIBRARY...
 * Libraries take turns; each turn runs in processes of its own, whose CUDA contexts are ready
 * before anything is timed. Prints a table of medians over the rounds (default 5). A time is that
 * of the slowest rank, memory that of the GPU that lost most. NCCL_NVLS_ENABLE=0 is set. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tutti.h"

#define MAX_RANKS  8
#define MAX_ROUNDS 100
#define MAX_LIBS   4
#define BYTES      ((size_t)64 << 20)
#define CALLS      2000
#define MIB        1048576.0
#define LIMIT_S    120 /* for a turn of one library */

#define CALL_LIST(X)                                                                               \
  X(GetUniqueId)                                                                                   \
  X(CommInitRank)                                                                                  \
  X(CommInitAll)                                                                                   \
  X(CommDestroy) X(GroupStart) X(GroupEnd) X(AllReduce) X(AllGather) X(ReduceScatter) X(Broadcast)

typedef struct {
#define X(name) __typeof__(&tutti##name) name;
  CALL_LIST(X)
#undef X
} library;

typedef enum { INIT, FIRST, SECOND, MEMORY, MEMORY_SECOND, ONE_PROCESS, FIGURES } figure;
static const char *const titles[] = {
    "first communicator, ms",        "its first all-reduce, ms",
    "second communicator, ms",       "GPU memory after large calls, MiB",
    "of a second communicator, MiB", "one process, all GPUs: 8 B all-reduce, us"};

/* Shared by the processes of a turn. */
typedef struct {
  pthread_barrier_t barrier;
  tuttiUniqueId id;
  double figures[MAX_RANKS][FIGURES];
} turn;

static void fail(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  _exit(1);
}

static void cuda(cudaError_t err, const char *what) {
  if (err != cudaSuccess) fail(what, cudaGetErrorString(err));
}
#define CUDA(call) cuda(call, #call)

static void nccl(tuttiResult_t result, const char *what) {
  char code[32];
  snprintf(code, sizeof code, "result %d", (int)result);
  if (result != tuttiSuccess) fail(what, code);
}
#define NCCL(call) nccl(call, #call)

static library load(const char *path) {
  library l;
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) fail(path, dlerror());
#define X(name)                                                                                    \
  if (!(*(void **)&l.name = dlsym(handle, "nccl" #name))) fail(path, "no nccl" #name);
  CALL_LIST(X)
#undef X
  return l;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static double freeMib(void) {
  size_t left, all;
  CUDA(cudaMemGetInfo(&left, &all));
  return (double)left / MIB;
}

/* ---- a process for each GPU ------------------------------------------------------------------ */

typedef struct {
  const library *lib;
  turn *shared;
  int rank, nranks;
  void *in, *out;
  cudaStream_t stream;
} process;

/* Milliseconds until this rank has its communicator; all begin together. */
static double makeComm(const process *p, tuttiComm_t *comm) {
  pthread_barrier_wait(&p->shared->barrier);
  double begin = now();
  if (p->rank == 0) NCCL(p->lib->GetUniqueId(&p->shared->id));
  pthread_barrier_wait(&p->shared->barrier);
  NCCL(p->lib->CommInitRank(comm, p->nranks, p->shared->id, p->rank));
  return now() - begin;
}

static double reduceSmall(const process *p, tuttiComm_t comm) {
  pthread_barrier_wait(&p->shared->barrier);
  double begin = now();
  NCCL(p->lib->AllReduce(p->in, p->out, 2, tuttiFloat32, tuttiSum, comm, (tuttiStream_t)p->stream));
  CUDA(cudaStreamSynchronize(p->stream));
  return now() - begin;
}

/* So that whatever the library keeps for large calls is there. */
static void callLarge(const process *p, tuttiComm_t comm) {
  size_t all = BYTES / sizeof(float), block = all / (size_t)p->nranks;
  tuttiStream_t stream = (tuttiStream_t)p->stream;
  NCCL(p->lib->AllReduce(p->in, p->out, all, tuttiFloat32, tuttiSum, comm, stream));
  NCCL(p->lib->AllGather(p->in, p->out, block, tuttiFloat32, comm, stream));
  NCCL(p->lib->ReduceScatter(p->in, p->out, block, tuttiFloat32, tuttiSum, comm, stream));
  NCCL(p->lib->Broadcast(p->in, p->out, all, tuttiFloat32, 0, comm, stream));
  CUDA(cudaStreamSynchronize(p->stream));
  pthread_barrier_wait(&p->shared->barrier);
}

static void runRank(const char *path, turn *shared, int rank, int nranks) {
  library lib = load(path);
  process p = {.lib = &lib, .shared = shared, .rank = rank, .nranks = nranks};
  double *figures = shared->figures[rank], before;
  tuttiComm_t first, second;
  CUDA(cudaSetDevice(rank));
  CUDA(cudaMalloc(&p.in, BYTES));
  CUDA(cudaMalloc(&p.out, BYTES));
  CUDA(cudaMemset(p.in, 0, BYTES));
  CUDA(cudaStreamCreate(&p.stream));
  CUDA(cudaDeviceSynchronize());
  before = freeMib();
  figures[INIT] = makeComm(&p, &first);
  figures[FIRST] = reduceSmall(&p, first);
  callLarge(&p, first);
  double one = freeMib();
  figures[SECOND] = makeComm(&p, &second);
  reduceSmall(&p, second);
  callLarge(&p, second);
  figures[MEMORY] = before - one;
  figures[MEMORY_SECOND] = one - freeMib();
  NCCL(lib.CommDestroy(second));
  NCCL(lib.CommDestroy(first));
}

/* ---- one process for all GPUs ---------------------------------------------------------------- */

static void runAll(const char *path, turn *shared, int nranks) {
  library lib = load(path);
  tuttiComm_t comms[MAX_RANKS];
  void *buffers[MAX_RANKS];
  cudaStream_t streams[MAX_RANKS];
  NCCL(lib.CommInitAll(comms, nranks, NULL));
  for (int r = 0; r < nranks; r++) {
    CUDA(cudaSetDevice(r));
    CUDA(cudaMalloc(&buffers[r], 2 * sizeof(float)));
    CUDA(cudaStreamCreate(&streams[r]));
  }
  double begin = 0;
  for (int i = -CALLS / 10; i < CALLS; i++) {
    for (int r = 0; i == 0 && r < nranks; r++)
      CUDA(cudaStreamSynchronize(streams[r]));
    if (i == 0) begin = now();
    NCCL(lib.GroupStart());
    for (int r = 0; r < nranks; r++)
      NCCL(lib.AllReduce(buffers[r], buffers[r], 2, tuttiFloat32, tuttiSum, comms[r],
                         (tuttiStream_t)streams[r]));
    NCCL(lib.GroupEnd());
  }
  for (int r = 0; r < nranks; r++)
    CUDA(cudaStreamSynchronize(streams[r]));
  shared->figures[0][ONE_PROCESS] = (now() - begin) * 1e3 / CALLS;
  for (int r = 0; r < nranks; r++)
    NCCL(lib.CommDestroy(comms[r]));
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* The exit code of all processes; if one fails the others are ended, for they would wait. */
static int await(const pid_t *pids, int n) {
  int failed = 0, status;
  for (int left = n; left > 0; left--) {
    if (wait(&status) < 0) return 1;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    for (int i = 0; code != 0 && !failed && i < n; i++)
      kill(pids[i], SIGKILL);
    failed |= code;
  }
  return failed;
}

/* A process for one rank, or with rank -1 for all; it ends with this one. */
static pid_t begin(const char *path, turn *shared, int rank, int nranks) {
  pid_t pid = fork();
  if (pid < 0) fail("fork", strerror(errno));
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(LIMIT_S); /* a library that hangs fails */
  if (rank >= 0)
    runRank(path, shared, rank, nranks);
  else
    runAll(path, shared, nranks);
  _exit(0);
}

static bool takeTurn(const char *path, turn *shared, int nranks, double *out) {
  pid_t pids[MAX_RANKS];
  memset(shared->figures, 0, sizeof shared->figures);
  for (int r = 0; r < nranks; r++)
    pids[r] = begin(path, shared, r, nranks);
  if (await(pids, nranks) != 0) return false;
  pids[0] = begin(path, shared, -1, nranks);
  if (await(pids, 1) != 0) return false;
  for (int f = 0; f < FIGURES; f++) {
    out[f] = 0;
    for (int r = 0; r < nranks; r++)
      if (shared->figures[r][f] > out[f]) out[f] = shared->figures[r][f];
  }
  return true;
}

static int byValue(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(const double (*rounds)[FIGURES], int nrounds, int f) {
  double column[MAX_ROUNDS];
  for (int i = 0; i < nrounds; i++)
    column[i] = rounds[i][f];
  qsort(column, (size_t)nrounds, sizeof *column, byValue);
  return column[nrounds / 2];
}

static int option(int argc, char **argv, const char *name, int most, int value, int *used) {
  if (*used + 1 >= argc || strcmp(argv[*used], name) != 0) return value;
  value = atoi(argv[*used + 1]);
  *used += 2;
  if (value >= 1 && value <= most) return value;
  fprintf(stderr, "%s: 1 to %d\n", name, most);
  exit(2);
}

int main(int argc, char **argv) {
  static double results[MAX_LIBS][MAX_ROUNDS][FIGURES];
  int used = 1, nranks = option(argc, argv, "--ranks", MAX_RANKS, 4, &used);
  int nrounds = option(argc, argv, "--rounds", MAX_ROUNDS, 5, &used), nlibs = argc - used;
  if (nlibs < 1 || nlibs > MAX_LIBS) {
    fprintf(stderr, "usage: %s [--ranks N] [--rounds N] LIBRARY...\n", argv[0]);
    return 2;
  }
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  turn *shared =
      mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  pthread_barrierattr_t attr;
  pthread_barrierattr_init(&attr);
  pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->barrier, &attr, (unsigned)nranks);
  for (int i = 0; i < nrounds; i++)
    for (int l = 0; l < nlibs; l++)
      if (!takeTurn(argv[used + l], shared, nranks, results[l][i])) return 1;
  printf("| %d ranks, medians of %d rounds |", nranks, nrounds);
  for (int l = 0; l < nlibs; l++)
    printf(" %s |", argv[used + l]);
  printf("\n| --- |");
  for (int l = 0; l < nlibs; l++)
    printf(" ---: |");
  for (int f = 0; f < FIGURES; f++) {
    printf("\n| %s |", titles[f]);
    for (int l = 0; l < nlibs; l++)
      printf(" %.2f |", median((const double(*)[FIGURES])results[l], nrounds, f));
  }
  printf("\n");
  return 0;
}

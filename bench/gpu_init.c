/* What a library of NCCL's ABI costs beside its collectives: the time to make communicators, the
 * GPU memory they keep, and the smallest all-reduce of one process that drives all GPUs.
 *
 *   bench_gpu_init [--ranks N] [--rounds N] LIBRARY...
 * Libraries take turns; each turn runs in processes of its own, whose CUDA contexts are ready
 * before anything is timed. Prints a table of medians over the rounds (default 5). A time is that
 * of the slowest rank, memory that of the GPU that lost most. NCCL_NVLS_ENABLE=0 is set. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "turns.h"

#define BYTES ((size_t)64 << 20)
#define CALLS 2000
#define MIB   1048576.0

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

static library load(const char *path) {
  library l;
  void *handle = turnsOpen(path);
#define X(name) *(void **)&l.name = turnsFind(handle, path, #name);
  CALL_LIST(X)
#undef X
  return l;
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
  double begin = turnsNow();
  if (p->rank == 0) NCCL(p->lib->GetUniqueId(&p->shared->id));
  pthread_barrier_wait(&p->shared->barrier);
  NCCL(p->lib->CommInitRank(comm, p->nranks, p->shared->id, p->rank));
  return turnsNow() - begin;
}

static double reduceSmall(const process *p, tuttiComm_t comm) {
  pthread_barrier_wait(&p->shared->barrier);
  double begin = turnsNow();
  NCCL(p->lib->AllReduce(p->in, p->out, 2, tuttiFloat32, tuttiSum, comm, (tuttiStream_t)p->stream));
  CUDA(cudaStreamSynchronize(p->stream));
  return turnsNow() - begin;
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

static void runRank(const char *path, void *memory, int rank, int nranks) {
  turn *shared = memory;
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

static void runAll(const char *path, void *memory, int rank, int nranks) {
  turn *shared = memory;
  library lib = load(path);
  (void)rank;
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
    if (i == 0) begin = turnsNow();
    NCCL(lib.GroupStart());
    for (int r = 0; r < nranks; r++)
      NCCL(lib.AllReduce(buffers[r], buffers[r], 2, tuttiFloat32, tuttiSum, comms[r],
                         (tuttiStream_t)streams[r]));
    NCCL(lib.GroupEnd());
  }
  for (int r = 0; r < nranks; r++)
    CUDA(cudaStreamSynchronize(streams[r]));
  shared->figures[0][ONE_PROCESS] = (turnsNow() - begin) * 1e3 / CALLS;
  for (int r = 0; r < nranks; r++)
    NCCL(lib.CommDestroy(comms[r]));
}

/* ---- turns ----------------------------------------------------------------------------------- */

static bool takeTurn(const char *path, turn *shared, int nranks, double *out) {
  pid_t pids[MAX_RANKS];
  memset(shared->figures, 0, sizeof shared->figures);
  for (int r = 0; r < nranks; r++)
    pids[r] = turnsBegin(runRank, path, shared, r, nranks);
  if (!turnsAwait(pids, nranks)) return false;
  pids[0] = turnsBegin(runAll, path, shared, 0, nranks);
  if (!turnsAwait(pids, 1)) return false;
  for (int f = 0; f < FIGURES; f++) {
    out[f] = 0;
    for (int r = 0; r < nranks; r++)
      if (shared->figures[r][f] > out[f]) out[f] = shared->figures[r][f];
  }
  return true;
}

static double median(const double (*rounds)[FIGURES], int nrounds, int f) {
  double column[MAX_ROUNDS];
  for (int i = 0; i < nrounds; i++)
    column[i] = rounds[i][f];
  return turnsMedian(column, nrounds);
}

int main(int argc, char **argv) {
  static double results[MAX_LIBS][MAX_ROUNDS][FIGURES];
  int used = 1, nranks = turnsOption(argc, argv, "--ranks", MAX_RANKS, 4, &used);
  int nrounds = turnsOption(argc, argv, "--rounds", MAX_ROUNDS, 5, &used), nlibs = argc - used;
  if (nlibs < 1 || nlibs > MAX_LIBS) {
    fprintf(stderr, "usage: %s [--ranks N] [--rounds N] LIBRARY...\n", argv[0]);
    return 2;
  }
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  turn *shared = turnsShare(sizeof *shared);
  turnsBarrier(&shared->barrier, nranks);
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

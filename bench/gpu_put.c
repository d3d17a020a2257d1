/* One-sided calls between two GPUs, by libraries of NCCL's ABI (2.29 or later): puts with signals,
 * signals alone, messages beside them, and large puts beside a plain copy from GPU to GPU.
 *
 *   bench_gpu_put [--rounds N] LIBRARY...
 * Libraries take turns; each turn is two processes, on GPUs 0 and 1. Prints a table of medians over
 * the rounds (default 5). Latencies are one way, of calls that follow each other on a stream, the
 * best of some batches, which take turns, as cores come to their speed with time. All data of a put
 * of odd size are checked, and that each signal comes behind its data: the exit code is 1 if
 * anything is wrong. NCCL_NVLS_ENABLE=0 is set. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "turns.h"

#define MIB       ((size_t)1 << 20)
#define MOST      (256 * MIB)
#define BATCHES   30
#define CALLS     50 /* of a batch, there and back */
#define TRANSFERS 8  /* of a rate */
#define ORDERED   500
#define ODD       (64 * MIB - 12) /* bytes, at offset 4 */

/* clang-format off */
#define CALL_LIST(X)                                                                               \
  X(GetUniqueId) X(CommInitRank) X(CommDestroy) X(MemAlloc) X(MemFree)                             \
  X(CommWindowRegister) X(CommWindowDeregister) X(GetLastError)                                    \
  X(PutSignal) X(Signal) X(WaitSignal) X(Send) X(Recv)
/* clang-format on */

typedef enum {
  PUT,
  SIGNAL,
  MESSAGE,
  PUT64,
  COPY64,
  SHARE64,
  PUT256,
  COPY256,
  SHARE256,
  WRONG,
  FIGURES
} figure;
static const char *const titles[] = {"8 B put with signal, one way, us",
                                     "signal alone, one way, us",
                                     "8 B send and receive, one way, us",
                                     "puts of 64 MiB, GB/s",
                                     "copies of 64 MiB, GB/s",
                                     "put / copy",
                                     "puts of 256 MiB, GB/s",
                                     "copies of 256 MiB, GB/s",
                                     "put / copy",
                                     "wrong elements"};

/* Shared by the processes of a turn. */
typedef struct {
  turnsPair pair;
  tuttiUniqueId id;
  cudaIpcMemHandle_t handle; /* of memory of rank 1, for plain copies */
} turn;

typedef struct {
#define X(name) __typeof__(&tutti##name) name;
  CALL_LIST(X)
#undef X
  turn *shared;
  int rank, peer;
  tuttiComm_t comm;
  tuttiWindow_t win, dataWin;
  char *window, *data; /* MOST bytes each; puts go from data to the peer's window */
  char *copied;        /* rank 0: of the other one, else its own */
  cudaStream_t cuda;
  tuttiStream_t stream; /* the same */
} side;

static void call(const side *s, tuttiResult_t result, const char *what) {
  if (result != tuttiSuccess) turnsFail(what, s->GetLastError(s->comm));
}

static void meet(const side *s) {
  CUDA(cudaDeviceSynchronize());
  pthread_barrier_wait(&s->shared->pair.barrier);
}

/* ---- one way ----------------------------------------------------------------------------------
 */

static void put(const side *s, size_t from, size_t bytes, size_t to) {
  call(s,
       s->PutSignal(s->data + from, bytes, tuttiUint8, s->peer, s->win, to, 0, 0, 0, s->comm,
                    s->stream),
       "ncclPutSignal");
}

static void putEight(const side *s) {
  put(s, 0, 8, 0);
}

static void signalPeer(const side *s) {
  call(s, s->Signal(s->peer, 0, 0, 0, s->comm, s->stream), "ncclSignal");
}

static void await(const side *s, int signals) {
  tuttiWaitSignalDesc_t desc = {signals, s->peer, 0, 0};
  call(s, s->WaitSignal(1, &desc, s->comm, s->stream), "ncclWaitSignal");
}

static void awaitOne(const side *s) {
  await(s, 1);
}

static void sendEight(const side *s) {
  call(s, s->Send(s->data, 8, tuttiUint8, s->peer, s->comm, s->stream), "ncclSend");
}

static void receiveEight(const side *s) {
  call(s, s->Recv(s->window, 8, tuttiUint8, s->peer, s->comm, s->stream), "ncclRecv");
}

typedef void step(const side *s);

/* us one way, the mean of a batch. */
static double oneWay(const side *s, step *there, step *back) {
  meet(s);
  double begin = turnsNow();
  for (int i = 0; i < CALLS; i++) {
    (s->rank == 0 ? there : back)(s);
    (s->rank == 0 ? back : there)(s);
  }
  CUDA(cudaStreamSynchronize(s->cuda));
  return (turnsNow() - begin) * 1e3 / CALLS / 2;
}

/* Of the best batch: what else runs on the machine only ever adds. */
static void latencies(const side *s, double *figures) {
  static const struct {
    figure at;
    step *there, *back;
  } ways[] = {{PUT, putEight, awaitOne},
              {SIGNAL, signalPeer, awaitOne},
              {MESSAGE, sendEight, receiveEight}};
  for (int b = 0; b < BATCHES; b++)
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
      double us = oneWay(s, ways[i].there, ways[i].back), *best = &figures[ways[i].at];
      if (b == 0 || us < *best) *best = us;
    }
}

/* ---- rates ------------------------------------------------------------------------------------
 */

/* GB/s of puts from rank 0, up to the signal that rank 1 has them all. */
static double putRate(const side *s, size_t bytes) {
  meet(s);
  double begin = turnsNow();
  for (int i = 0; i < TRANSFERS && s->rank == 0; i++)
    put(s, 0, bytes, 0);
  await(s, s->rank == 0 ? 1 : TRANSFERS);
  if (s->rank == 1) signalPeer(s);
  CUDA(cudaStreamSynchronize(s->cuda));
  return TRANSFERS * (double)bytes / (turnsNow() - begin) / 1e6;
}

static double copyRate(const side *s, size_t bytes) {
  meet(s);
  double begin = turnsNow();
  for (int i = 0; i < TRANSFERS && s->rank == 0; i++)
    CUDA(cudaMemcpyAsync(s->copied, s->data, bytes, cudaMemcpyDefault, s->cuda));
  CUDA(cudaStreamSynchronize(s->cuda));
  return TRANSFERS * (double)bytes / (turnsNow() - begin) / 1e6;
}

static void rates(const side *s, size_t bytes, double *puts, double *copies, double *share) {
  *puts = *copies = 0;
  for (int i = 0; i < 6; i++) {
    double ours = putRate(s, bytes), plain = copyRate(s, bytes);
    if (ours > *puts) *puts = ours;
    if (plain > *copies) *copies = plain;
  }
  *share = *puts / *copies;
}

/* ---- data -------------------------------------------------------------------------------------
 */

static unsigned char byteAt(size_t i) {
  return (unsigned char)((uint32_t)i * 2654435761u >> 23 | 1); /* never 0 */
}

/* Wrong bytes of the window at rank 1 after a put of odd size to an odd place. */
static double checkBytes(const side *s) {
  unsigned char *host = malloc(64 * MIB);
  double wrong = 0;
  if (!host) turnsFail("64 MiB", "no memory");
  for (size_t i = 0; i < 64 * MIB; i++)
    host[i] = s->rank == 0 ? byteAt(i) : 0;
  CUDA(cudaMemcpy(s->rank == 0 ? s->data : s->window, host, 64 * MIB, cudaMemcpyDefault));
  meet(s);
  if (s->rank == 0)
    put(s, 1, ODD, 4);
  else
    await(s, 1);
  meet(s);
  if (s->rank == 1) CUDA(cudaMemcpy(host, s->window, 64 * MIB, cudaMemcpyDefault));
  for (size_t i = 0; s->rank == 1 && i < 64 * MIB; i++)
    wrong += host[i] != (i < 4 || i >= 4 + ODD ? 0 : byteAt(i - 3));
  free(host);
  return wrong;
}

/* Signals of rank 0 that came before their data: rank 1 keeps what it finds after each. */
static double checkOrder(const side *s) {
  uint64_t numbers[ORDERED];
  double wrong = 0;
  for (uint64_t i = 0; i < ORDERED; i++)
    numbers[i] = s->rank == 0 ? i + 1 : 0;
  CUDA(cudaMemcpy(s->data, numbers, sizeof numbers, cudaMemcpyDefault));
  meet(s);
  for (size_t i = 0; i < ORDERED; i++) {
    if (s->rank == 0) {
      put(s, 8 * i, 8, 0);
      await(s, 1);
    } else {
      await(s, 1);
      CUDA(cudaMemcpyAsync(s->data + 8 * i, s->window, 8, cudaMemcpyDefault, s->cuda));
      signalPeer(s);
    }
    if (i % CALLS == CALLS - 1) CUDA(cudaStreamSynchronize(s->cuda));
  }
  meet(s);
  CUDA(cudaMemcpy(numbers, s->data, sizeof numbers, cudaMemcpyDefault));
  for (uint64_t i = 0; i < ORDERED; i++)
    wrong += numbers[i] != i + 1;
  return wrong;
}

/* ---- a process --------------------------------------------------------------------------------
 */

static void load(side *s, const char *path) {
  void *handle = turnsOpen(path);
#define X(name) *(void **)&s->name = turnsFind(handle, path, #name);
  CALL_LIST(X)
#undef X
}

static void begin(side *s) {
  turn *shared = s->shared;
  CUDA(cudaSetDevice(s->rank));
  CUDA(cudaStreamCreateWithFlags(&s->cuda, cudaStreamNonBlocking));
  s->stream = (tuttiStream_t)s->cuda;
  if (s->rank == 0) NCCL(s->GetUniqueId(&shared->id));
  if (s->rank == 1) {
    CUDA(cudaMalloc((void **)&s->copied, MOST));
    CUDA(cudaIpcGetMemHandle(&shared->handle, s->copied));
  }
  pthread_barrier_wait(&shared->pair.barrier);
  if (s->rank == 0)
    CUDA(cudaIpcOpenMemHandle((void **)&s->copied, shared->handle, cudaIpcMemLazyEnablePeerAccess));
  NCCL(s->CommInitRank(&s->comm, 2, shared->id, s->rank));
  call(s, s->MemAlloc((void **)&s->window, MOST), "ncclMemAlloc");
  call(s, s->MemAlloc((void **)&s->data, MOST), "ncclMemAlloc");
  CUDA(cudaMemset(s->data, 0x5a, MOST));
  CUDA(cudaMemset(s->window, 0, MOST));
  CUDA(cudaDeviceSynchronize());
  int flags = TUTTI_WIN_COLL_SYMMETRIC;
  call(s, s->CommWindowRegister(s->comm, s->window, MOST, &s->win, flags),
       "ncclCommWindowRegister");
  call(s, s->CommWindowRegister(s->comm, s->data, MOST, &s->dataWin, flags),
       "ncclCommWindowRegister");
}

static void end(side *s) {
  meet(s);
  call(s, s->CommWindowDeregister(s->comm, s->dataWin), "ncclCommWindowDeregister");
  call(s, s->CommWindowDeregister(s->comm, s->win), "ncclCommWindowDeregister");
  NCCL(s->CommDestroy(s->comm));
  NCCL(s->MemFree(s->data));
  NCCL(s->MemFree(s->window));
}

static void runRank(const char *path, void *shared, int rank, int nranks) {
  side s = {.shared = shared, .rank = rank, .peer = nranks - 1 - rank};
  double *figures = s.shared->pair.figures[rank];
  load(&s, path);
  begin(&s);
  figures[WRONG] = checkBytes(&s) + checkOrder(&s);
  latencies(&s, figures);
  rates(&s, 64 * MIB, &figures[PUT64], &figures[COPY64], &figures[SHARE64]);
  rates(&s, 256 * MIB, &figures[PUT256], &figures[COPY256], &figures[SHARE256]);
  end(&s);
}

int main(int argc, char **argv) {
  _Static_assert(FIGURES <= MAX_FIGURES && WRONG == FIGURES - 1, "as turnsMain has them");
  turn *shared = turnsShare(sizeof *shared);
  return turnsMain(argc, argv, runRank, &shared->pair, titles, FIGURES);
}

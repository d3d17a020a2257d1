/* Kernels that communicate by loads and stores between two GPUs (NCCL's LSA), compiled with
 * NVIDIA's nccl_device.h, by libraries of NCCL's ABI: stores of 64 MiB beside a plain copy
 * from GPU to GPU, and barriers.
 *
 *   bench_gpu_lsa [--rounds N] LIBRARY...
 * Libraries take turns; each turn is two processes, on GPUs 0 and 1. Prints a table of medians over
 * the rounds (default 5). Times are the best of some batches. The words that are stored are
 * checked: the exit code is 1 if any is wrong. NCCL_NVLS_ENABLE=0 is set. */
#include <cuda_runtime_api.h>
#include <nccl_device.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "turns.h"

namespace {

constexpr size_t kBytes = (size_t)64 << 20;
constexpr int kBatches = 20, kTransfers = 8, kBarriers = 2000, kBlocks = 64, kThreads = 512;

enum Figure { STORES, COPIES, SHARE, LOADS, BARRIER, BARRIERS, WRONG, FIGURES };
const char *const titles[] = {"stores of 64 MiB by a kernel, GB/s",
                              "copies of 64 MiB (cudaMemcpyAsync), GB/s",
                              "stores / copies",
                              "loads of 64 MiB by a kernel, GB/s",
                              "barrier of one block, us",
                              "barriers of 32 blocks at once, us",
                              "wrong words"};

/* Shared by the processes of a turn. */
struct Turn {
  turnsPair pair;
  ncclUniqueId id;
  cudaIpcMemHandle_t handle; /* of memory of rank 1, for plain copies */
};

struct Side {
  decltype(&ncclGetUniqueId) GetUniqueId;
  decltype(&ncclCommInitRank) CommInitRank;
  decltype(&ncclCommDestroy) CommDestroy;
  decltype(&ncclMemAlloc) MemAlloc;
  decltype(&ncclMemFree) MemFree;
  decltype(&ncclCommWindowRegister) CommWindowRegister;
  decltype(&ncclCommWindowDeregister) CommWindowDeregister;
  decltype(&ncclDevCommCreate) DevCommCreate;
  decltype(&ncclDevCommDestroy) DevCommDestroy;
  decltype(&ncclGetLastError) GetLastError;
  Turn *shared;
  int rank;
  ncclComm_t comm;
  ncclWindow_t win;
  ncclDevComm dev;
  void *window, *data, *copied;
  cudaStream_t stream;
};

__global__ void storeKernel(ncclWindow_t win, int peer, const uint4 *from, size_t n) {
  auto *to = (uint4 *)ncclGetLsaPointer(win, 0, peer);
  size_t step = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
    to[i] = from[i];
}

__global__ void loadKernel(ncclWindow_t win, int peer, uint4 *to, size_t n) {
  auto *from = (const uint4 *)ncclGetLsaPointer(win, 0, peer);
  size_t step = (size_t)gridDim.x * blockDim.x;
  size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + 3 * step < n; i += 4 * step) { /* several on their way */
    uint4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
    to[i] = a;
    to[i + step] = b;
    to[i + 2 * step] = c;
    to[i + 3 * step] = d;
  }
  for (; i < n; i += step)
    to[i] = from[i];
}

__global__ void barrierKernel(ncclDevComm comm, int times) {
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), blockIdx.x);
  for (int i = 0; i < times; i++)
    barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
}

void call(const Side &s, ncclResult_t result, const char *what) {
  if (result != ncclSuccess) turnsFail(what, s.GetLastError(s.comm));
}

void meet(const Side &s) {
  CUDA(cudaDeviceSynchronize());
  pthread_barrier_wait(&s.shared->pair.barrier);
}

/* ms of the best batch; rank 0 alone runs what `single` is. */
template <class Run> double best(const Side &s, bool single, Run run) {
  double least = 1e9;
  for (int b = 0; b < kBatches; b++) {
    meet(s);
    double begin = turnsNow();
    if (!single || s.rank == 0) run();
    CUDA(cudaStreamSynchronize(s.stream));
    double ms = turnsNow() - begin;
    if (ms < least) least = ms;
  }
  return least;
}

double rate(double ms) {
  return kTransfers * (double)kBytes / ms / 1e6;
}

void measure(Side &s, double *figures) {
  size_t n = kBytes / sizeof(uint4);
  auto repeat = [&](auto once) {
    return rate(best(s, true, [&] {
      for (int i = 0; i < kTransfers; i++)
        once();
      CUDA(cudaGetLastError());
    }));
  };
  figures[STORES] = repeat(
      [&] { storeKernel<<<kBlocks, kThreads, 0, s.stream>>>(s.win, 1, (const uint4 *)s.data, n); });
  figures[LOADS] =
      repeat([&] { loadKernel<<<kBlocks, kThreads, 0, s.stream>>>(s.win, 1, (uint4 *)s.data, n); });
  figures[COPIES] =
      repeat([&] { CUDA(cudaMemcpyAsync(s.copied, s.data, kBytes, cudaMemcpyDefault, s.stream)); });
  figures[SHARE] = figures[STORES] / figures[COPIES];
  for (int blocks : {1, 32})
    figures[blocks == 1 ? BARRIER : BARRIERS] =
        best(s, false, [&] { barrierKernel<<<blocks, 128, 0, s.stream>>>(s.dev, kBarriers); }) *
        1e3 / kBarriers;
}

uint32_t wordAt(size_t i) {
  return (uint32_t)i * 2654435761u ^ 0x5bd1e995u;
}

/* Words of the window at rank 1 that are not what rank 0 has stored. */
double check(const Side &s) {
  size_t n = kBytes / 4;
  auto *host = (uint32_t *)malloc(kBytes);
  double wrong = 0;
  if (!host) turnsFail("64 MiB", "no memory");
  for (size_t i = 0; i < n; i++)
    host[i] = s.rank == 0 ? wordAt(i) : 0;
  CUDA(cudaMemcpy(s.rank == 0 ? s.data : s.window, host, kBytes, cudaMemcpyDefault));
  meet(s);
  if (s.rank == 0)
    storeKernel<<<kBlocks, kThreads, 0, s.stream>>>(s.win, 1, (const uint4 *)s.data,
                                                    kBytes / sizeof(uint4));
  CUDA(cudaGetLastError());
  meet(s);
  CUDA(cudaMemcpy(host, s.window, kBytes, cudaMemcpyDefault));
  for (size_t i = 0; s.rank == 1 && i < n; i++)
    wrong += host[i] != wordAt(i);
  free(host);
  meet(s);
  return wrong;
}

void load(Side &s, const char *path) {
  void *handle = turnsOpen(path);
#define FIND(name) s.name = (decltype(s.name))turnsFind(handle, path, #name)
  FIND(GetUniqueId);
  FIND(CommInitRank);
  FIND(CommDestroy);
  FIND(MemAlloc);
  FIND(MemFree);
  FIND(CommWindowRegister);
  FIND(CommWindowDeregister);
  FIND(DevCommCreate);
  FIND(DevCommDestroy);
  FIND(GetLastError);
#undef FIND
}

void begin(Side &s) {
  Turn *shared = s.shared;
  CUDA(cudaSetDevice(s.rank));
  CUDA(cudaStreamCreateWithFlags(&s.stream, cudaStreamNonBlocking));
  if (s.rank == 0) call(s, s.GetUniqueId(&shared->id), "ncclGetUniqueId");
  if (s.rank == 1) {
    CUDA(cudaMalloc(&s.copied, kBytes));
    CUDA(cudaIpcGetMemHandle(&shared->handle, s.copied));
  }
  pthread_barrier_wait(&shared->pair.barrier);
  if (s.rank == 0)
    CUDA(cudaIpcOpenMemHandle(&s.copied, shared->handle, cudaIpcMemLazyEnablePeerAccess));
  CUDA(cudaMalloc(&s.data, kBytes));
  CUDA(cudaMemset(s.data, 0x5a, kBytes));
  call(s, s.CommInitRank(&s.comm, 2, shared->id, s.rank), "ncclCommInitRank");
  call(s, s.MemAlloc(&s.window, kBytes), "ncclMemAlloc");
  CUDA(cudaMemset(s.window, 0, kBytes));
  call(s, s.CommWindowRegister(s.comm, s.window, kBytes, &s.win, NCCL_WIN_COLL_SYMMETRIC),
       "ncclCommWindowRegister");
#if NCCL_VERSION_CODE >= 22900
  ncclDevCommRequirements reqs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  ncclDevCommRequirements reqs = {};
#endif
  reqs.lsaBarrierCount = 32;
  call(s, s.DevCommCreate(s.comm, &reqs, &s.dev), "ncclDevCommCreate");
}

void end(Side &s) {
  meet(s);
  call(s, s.DevCommDestroy(s.comm, &s.dev), "ncclDevCommDestroy");
  call(s, s.CommWindowDeregister(s.comm, s.win), "ncclCommWindowDeregister");
  call(s, s.CommDestroy(s.comm), "ncclCommDestroy");
  call(s, s.MemFree(s.window), "ncclMemFree");
}

void runRank(const char *path, void *shared, int rank, int) {
  Side s = {};
  s.shared = (Turn *)shared;
  s.rank = rank;
  load(s, path);
  begin(s);
  double *figures = s.shared->pair.figures[rank];
  figures[WRONG] = check(s);
  measure(s, figures);
  end(s);
}

} // namespace

int main(int argc, char **argv) {
  static_assert(FIGURES <= MAX_FIGURES && WRONG == FIGURES - 1, "as turnsMain has them");
  auto *shared = (Turn *)turnsShare(sizeof(Turn));
  return turnsMain(argc, argv, runRank, &shared->pair, titles, FIGURES);
}

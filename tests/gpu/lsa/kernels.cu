#include "kernels.h"

namespace {

__device__ uint32_t mixed(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  uint32_t x = a * 2654435761u ^ b * 2246822519u ^ c * 3266489917u ^ d * 668265263u;
  return x ^ x >> 15;
}

__device__ void expect(Wrong *wrong, uint32_t found, uint32_t wanted, uint32_t round,
                       uint32_t where) {
  if (found == wanted) return;
  if (atomicAdd(&wrong->count, 1ull) > 0) return;
  wrong->found = found;
  wrong->wanted = wanted;
  wrong->round = round;
  wrong->where = where;
}

__device__ uint32_t loadWord(const uint32_t *at) {
  return *(const volatile uint32_t *)at;
}

__global__ void storeKernel(ncclDevComm comm, ncclWindow_t win, uint32_t rounds, uint32_t seed,
                            Wrong *wrong) {
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), blockIdx.x);
  int n = comm.lsaSize, me = comm.lsaRank;
  uint32_t place = blockIdx.x * blockDim.x + threadIdx.x, each = gridDim.x * blockDim.x;
  for (uint32_t round = 0; round < rounds; round++) {
    for (int i = 0; i < n; i++) {
      int peer = (me + i) % n;
      auto *at = (uint32_t *)ncclGetLsaPointer(win, ((size_t)me * each + place) * 4, peer);
      *at = mixed(seed + round, me, peer, place);
    }
    barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
    for (int peer = 0; peer < n; peer++) {
      auto *at = (uint32_t *)ncclGetLocalPointer(win, ((size_t)peer * each + place) * 4);
      expect(wrong, loadWord(at), mixed(seed + round, peer, me, place), round, peer);
    }
    barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
  }
}

__global__ void allReduceKernel(ncclDevComm comm, ncclWindow_t in, ncclWindow_t out, size_t count) {
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), blockIdx.x);
  barrier.sync(ncclCoopCta(), cuda::memory_order_acquire);
  int n = comm.lsaSize;
  size_t all = (size_t)gridDim.x * blockDim.x * n;
  size_t first = ((size_t)comm.lsaRank * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
  for (size_t i = first; i < count; i += all) {
    float sum = 0;
    for (int peer = 0; peer < n; peer++)
      sum += ((float *)ncclGetLsaPointer(in, 0, peer))[i];
    for (int peer = 0; peer < n; peer++)
      ((float *)ncclGetLsaPointer(out, 0, peer))[i] = sum;
  }
  barrier.sync(ncclCoopCta(), cuda::memory_order_release);
}

__global__ void resourceKernel(ncclDevComm comm, ncclDevResourceHandle handle, uint32_t words,
                               Wrong *wrong) {
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), 0);
  auto *mine = (uint32_t *)ncclGetResourceBufferLocalPointer(comm, handle);
  for (uint32_t i = threadIdx.x; i < words; i += blockDim.x)
    expect(wrong, loadWord(mine + i), 0, 0, i);
  barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
  for (int peer = threadIdx.x; peer < comm.lsaSize; peer += blockDim.x) {
    ncclSymPtr<char> buffer = ncclGetResourceBuffer(comm, handle);
    auto *byWindow = (uint32_t *)buffer.lsaPtr(peer);
    auto *theirs = (uint32_t *)ncclGetResourceBufferLsaPointer(comm, handle, peer);
    expect(wrong, byWindow == theirs, 1, 1, peer);
    theirs[comm.lsaRank] = comm.lsaRank + 1;
  }
  barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
  for (int peer = threadIdx.x; peer < comm.lsaSize; peer += blockDim.x)
    expect(wrong, loadWord(mine + peer), peer + 1, 2, peer);
}

struct Pair {
  uint32_t a, b, c, d;
};

__global__ void lowLatencyKernel(ncclDevComm comm, ncclLLA2AHandle handle, uint32_t rounds,
                                 Wrong *wrong) {
  int n = comm.lsaSize, me = comm.lsaRank;
  ncclLLA2ASession<ncclCoopCta> session(ncclCoopCta(), comm, ncclTeamLsa(comm), handle, blockIdx.x,
                                        /*maxElts=*/n);
  for (uint32_t round = 0; round < rounds; round++) {
    for (int peer = threadIdx.x; peer < n; peer += blockDim.x) {
      uint32_t x = mixed(round, me, peer, blockIdx.x);
      session.send(peer, me, Pair{x, x + 1, ~x, round});
    }
    for (int peer = threadIdx.x; peer < n; peer += blockDim.x) {
      Pair got = session.recv<Pair>(peer);
      uint32_t x = mixed(round, peer, me, blockIdx.x);
      expect(wrong, got.a, x, round, peer);
      expect(wrong, got.b, x + 1, round, peer);
      expect(wrong, got.c, ~x, round, peer);
      expect(wrong, got.d, round, round, peer);
    }
    session.endEpoch(ncclCoopCta());
  }
}

__global__ void lookUpKernel(ncclDevComm comm, ncclWindow_t win, size_t offset, const void *buff,
                             void **out, ncclWindow_t *found) {
  ncclWindow_t by = ncclFindWindow(ncclCoopCta(), comm, buff);
  if (threadIdx.x == 0) *found = by;
  for (int peer = threadIdx.x; peer < comm.lsaSize; peer += blockDim.x) {
    out[peer] = ncclGetLsaPointer(win, offset, peer);
    int world = comm.rank - comm.lsaRank + peer;
    if (ncclGetPeerPointer(win, offset, world) != out[peer]) out[peer] = nullptr;
    if (ncclGetPeerPointer(win, offset, ncclTeamWorld(comm), world) != out[peer])
      out[peer] = nullptr;
  }
}

__global__ void barrierKernel(ncclDevComm comm, uint32_t times) {
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), blockIdx.x);
  for (uint32_t i = 0; i < times; i++)
    barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
}

/* A barrier of barrierCount; before 2.29.7 the header's own session of these does not compile. */
__device__ void worldBarrier(const ncclDevComm &comm) {
#if NCCL_VERSION_CODE >= 22907
  ncclBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), ncclTeamTagLsa(), comm, 0);
  barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel());
#else
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), 0);
  barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
#endif
}

/* Sessions one after the other, as both may use the same barrier. */
__global__ void bothKernel(ncclDevComm comm, ncclWindow_t win, uint32_t rounds, Wrong *wrong) {
  int n = comm.lsaSize, me = comm.lsaRank, peer = threadIdx.x;
  for (uint32_t round = 0; round < rounds; round++) {
    if (peer < n) *(uint32_t *)ncclGetLsaPointer(win, me * 4, peer) = round + 1;
    worldBarrier(comm);
    if (peer < n)
      expect(wrong, loadWord((const uint32_t *)ncclGetLocalPointer(win, peer * 4)), round + 1,
             round, peer);
    ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), 0);
    barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
  }
}

__global__ void spinKernel(ncclDevComm comm, const uint32_t *stop) {
  auto *mine = (uint32_t *)ncclGetResourceBufferLocalPointer(comm, comm.lsaBarrier.bufHandle);
  while (loadWord(stop) == 0 && loadWord(mine) != 0xffffffffu)
    __nanosleep(1000);
}

} // namespace

cudaError_t storeRounds(const ncclDevComm &comm, ncclWindow_t win, uint32_t rounds, uint32_t seed,
                        Wrong *wrong, cudaStream_t stream) {
  storeKernel<<<kBlocks, kThreads, 0, stream>>>(comm, win, rounds, seed, wrong);
  return cudaGetLastError();
}

cudaError_t allReduce(const ncclDevComm &comm, ncclWindow_t in, ncclWindow_t out, size_t count,
                      int blocks, cudaStream_t stream) {
  allReduceKernel<<<blocks, 256, 0, stream>>>(comm, in, out, count);
  return cudaGetLastError();
}

cudaError_t fillResource(const ncclDevComm &comm, ncclDevResourceHandle handle, uint32_t words,
                         Wrong *wrong, cudaStream_t stream) {
  resourceKernel<<<1, kThreads, 0, stream>>>(comm, handle, words, wrong);
  return cudaGetLastError();
}

cudaError_t lowLatency(const ncclDevComm &comm, ncclLLA2AHandle handle, uint32_t rounds,
                       Wrong *wrong, cudaStream_t stream) {
  lowLatencyKernel<<<kBlocks, 32, 0, stream>>>(comm, handle, rounds, wrong);
  return cudaGetLastError();
}

cudaError_t lookUp(const ncclDevComm &comm, ncclWindow_t win, size_t offset, const void *buff,
                   void **out, ncclWindow_t *found, cudaStream_t stream) {
  lookUpKernel<<<1, 32, 0, stream>>>(comm, win, offset, buff, out, found);
  return cudaGetLastError();
}

cudaError_t bothBarriers(const ncclDevComm &comm, ncclWindow_t win, uint32_t rounds, Wrong *wrong,
                         cudaStream_t stream) {
  bothKernel<<<1, kThreads, 0, stream>>>(comm, win, rounds, wrong);
  return cudaGetLastError();
}

cudaError_t barriers(const ncclDevComm &comm, uint32_t times, cudaStream_t stream) {
  barrierKernel<<<1, kThreads, 0, stream>>>(comm, times);
  return cudaGetLastError();
}

cudaError_t spin(const ncclDevComm &comm, const uint32_t *stop, cudaStream_t stream) {
  spinKernel<<<1, 1, 0, stream>>>(comm, stop);
  return cudaGetLastError();
}

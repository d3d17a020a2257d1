/* Puts with their signals, and waits for signals. */
#include "kernels/onesided.h"

#include "kernels/allpairs_block.cuh"

namespace {

/* ---- puts ------------------------------------------------------------------------------------ */

constexpr int kUnits = 4; /* of one thread on their way at once */

/* A peer may have written it: this GPU's caches are not asked. */
template <typename U> __device__ U loadUnit(const U *at) {
  return *(const volatile U *)at;
}
template <> __device__ tuttiPair loadUnit(const tuttiPair *at) {
  return loadPairVolatile(at);
}

/* `n` units from `from` to `to`, which are aligned to them. */
template <typename U> __device__ void copyUnits(U *to, const U *from, uint64_t n) {
  for (uint64_t at = threadIdx.x; at < n; at += (uint64_t)blockDim.x * kUnits) {
    U v[kUnits];
#pragma unroll
    for (int k = 0; k < kUnits; k++) {
      uint64_t i = at + (uint64_t)k * blockDim.x;
      if (i < n) v[k] = loadUnit(from + i);
    }
#pragma unroll
    for (int k = 0; k < kUnits; k++) {
      uint64_t i = at + (uint64_t)k * blockDim.x;
      if (i < n) to[i] = v[k];
    }
  }
}

/* What does not begin or end with a whole unit of `to` goes byte by byte. */
template <typename U>
__device__ void copyAligned(uint8_t *to, const uint8_t *from, uint64_t bytes) {
  uint64_t ahead = (0 - (uintptr_t)to) % sizeof(U);
  if (ahead > bytes) ahead = bytes;
  uint64_t n = (bytes - ahead) / sizeof(U), done = ahead + n * sizeof(U);
  copyUnits(to, from, ahead);
  copyUnits((U *)(to + ahead), (const U *)(from + ahead), n);
  copyUnits(to + done, from + done, bytes - done);
}

/* By the widest units in which both sides can be aligned. */
__device__ void copyBytes(uint8_t *to, const uint8_t *from, uint64_t bytes) {
  uintptr_t odd = ((uintptr_t)to ^ (uintptr_t)from) & 15;
  if (odd == 0)
    copyAligned<tuttiPair>(to, from, bytes);
  else if (odd % 8 == 0)
    copyAligned<uint64_t>(to, from, bytes);
  else if (odd % 4 == 0)
    copyAligned<uint32_t>(to, from, bytes);
  else
    copyAligned<uint8_t>(to, from, bytes);
}

/* Launches that nothing orders may meet here: the counter never goes back. */
__device__ __noinline__ void storeSignal(const tuttiPutArgs &args) {
  while (atomicCAS(args.guard, 0, 1) != 0) {
  }
  fenceSys();
  storeRelaxedSys(args.counter, ++*(volatile uint64_t *)args.sent);
  fenceSys();
  atomicExch(args.guard, 0);
}

/* One thread, when all that the signal is to follow has been written. */
__device__ void addSignal(const tuttiPutArgs &args) {
  if (args.sent)
    storeSignal(args);
  else
    addReleaseSys(args.counter, 1);
}

/* What is a word for each thread at most, or nothing but the signal: fetching instructions would be
 * most of its time, so there are few. */
__global__ void __launch_bounds__(TUTTI_PUT_THREADS)
    putWords(const __grid_constant__ tuttiPutArgs args) {
  followEarly();
  uint32_t at = threadIdx.x * 4;
  if (at < args.bytes) {
    *(uint32_t *)(args.to + at) = loadUnit((const uint32_t *)(args.from + at));
  }
  __syncthreads();
  if (threadIdx.x == 0) addSignal(args);
}

__global__ void __launch_bounds__(TUTTI_PUT_THREADS)
    put(const __grid_constant__ tuttiPutArgs args) {
  followEarly();
  uint64_t at = blockIdx.x * args.part;
  if (at < args.bytes) {
    uint64_t left = args.bytes - at;
    copyBytes(args.to + at, args.from + at, left < args.part ? left : args.part);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (args.counter)
    addSignal(args);
  else
    fenceSys(); /* the signal is that of a kernel to come */
}

/* ---- waits ----------------------------------------------------------------------------------- */

/* Tells the host now and then of a wait that is long. */
class LongWait {
public:
  /* After some looks in vain: whether the wait is to be given up. */
  __device__ __noinline__ bool over(tuttiKernelStatus *status, uint32_t counter, uint32_t wanted,
                                    uint32_t come) {
    if (loadRelaxedSys32(&status->abort)) return true;
    uint64_t now = nanoseconds();
    if (since == 0) since = told = now;
    if (now - told < kReportNs) return false;
    told = now;
    uint64_t waitedMs = (now - since) / 1000000;
    storePairVolatile(&status->late, {tuttiSignalWait(counter, (uint32_t)waitedMs),
                                      (uint64_t)come << 32 | wanted});
    return false;
  }

private:
  uint64_t since = 0, told = 0;
};

/* Signals are taken before they have come: those behind what earlier waits have taken, of other
 * streams too. That has been done when it is known that kernels before have ended. */
__global__ void __launch_bounds__(TUTTI_AWAIT_MOST)
    await(const __grid_constant__ tuttiAwaitArgs args) {
  bool waits = threadIdx.x < args.n && args.of[threadIdx.x].count > 0;
  uint32_t counter = 0, wanted = 0;
  uint64_t before = 0;
  if (waits) {
    counter = args.of[threadIdx.x].counter;
    wanted = args.of[threadIdx.x].count;
    before = atomicAdd((unsigned long long *)args.taken + counter, wanted);
  }
  followEarly();
  if (!waits) return;
  LongWait wait;
  for (uint32_t looks = 1;; looks++) {
    uint64_t come = loadAcquireSys(args.arrived + counter);
    if (come >= before + wanted) return;
    if (looks % kLooks != 0) continue;
    if (wait.over(args.status, counter, wanted, (uint32_t)(come > before ? come - before : 0)))
      return;
  }
}

} // namespace

extern "C" const void *const tuttiKernelPut = (const void *)put;
extern "C" const void *const tuttiKernelPutWords = (const void *)putWords;
extern "C" const void *const tuttiKernelAwait = (const void *)await;

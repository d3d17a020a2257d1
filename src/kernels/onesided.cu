/* Puts with their signals, and waits for signals. */
#include "kernels/onesided.h"

#include "kernels/allpairs_block.cuh"
#include "kernels/relay.cuh"

namespace {

/* ---- puts ------------------------------------------------------------------------------------ */

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

/* ---- puts by messages ------------------------------------------------------------------------ */

__global__ void __launch_bounds__(TUTTI_PUT_THREADS)
    relay(const __grid_constant__ tuttiRelayArgs args) {
  __shared__ Relay r;
  relayPut(args, r);
}

/* ---- waits ----------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(TUTTI_AWAIT_MOST)
    await(const __grid_constant__ tuttiAwaitArgs args) {
  awaitSignals(args);
}

} // namespace

extern "C" const void *const tuttiKernelPut = (const void *)put;
extern "C" const void *const tuttiKernelPutWords = (const void *)putWords;
extern "C" const void *const tuttiKernelRelay = (const void *)relay;
extern "C" const void *const tuttiKernelAwait = (const void *)await;

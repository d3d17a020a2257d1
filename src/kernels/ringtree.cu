/* The ring/tree kernel. One for all types: most of it depends on none. */
#include "kernels/ringtree.cuh"

namespace {

__shared__ RingTreeState state; /* here, so that all functions know that it is shared memory */

/* Each type apart: all in one function take its compiler four times as long. */
template <typename T, bool COPIES> __device__ __noinline__ void moveAs(tuttiKernelStatus *status) {
  RingTreeMovers<T, COPIES>(state, status).move();
}

__device__ void move(const tuttiRingTreeArgs &args) {
  if (args.copies) return moveAs<Plain<int64_t>, true>(args.status);
  switch (args.type) {
  case tuttiInt8:
  case tuttiUint8:
    return moveAs<Plain<int8_t>, false>(args.status);
  case tuttiInt32:
  case tuttiUint32:
    return moveAs<Plain<int32_t>, false>(args.status);
  case tuttiFloat16:
    return moveAs<Float16, false>(args.status);
  case tuttiBfloat16:
    return moveAs<Bfloat16, false>(args.status);
  case tuttiFloat32:
    return moveAs<Float32, false>(args.status);
  case tuttiFloat64:
    return moveAs<Float64, false>(args.status);
  case tuttiFloat8e4m3:
    return moveAs<E4m3, false>(args.status);
  case tuttiFloat8e5m2:
    return moveAs<E5m2, false>(args.status);
  default: /* 64 bits; the checks of calls let none pass that is no type */
    return moveAs<Plain<int64_t>, false>(args.status);
  }
}

__global__ void __launch_bounds__(kRingTreeThreads)
    ringTree(const __grid_constant__ tuttiRingTreeArgs args) {
  if (args.started && blockIdx.x == 0 && threadIdx.x == 0)
    storeRelaxedSys32(args.started, ++args.counts[1]);
  RingTreeBlock block(state, args.status);
  block.loadTask(args);
  __syncthreads();
  const uint32_t movers = blockDim.x - 2 * kWarp;
  if (threadIdx.x < movers)
    move(args);
  else if (threadIdx.x < movers + kWarp)
    block.wait(args.nsteps);
  else
    block.publish();
  __syncthreads();
  if (!args.finished || threadIdx.x != 0) return;
  fenceSys(); /* whoever sees the launch as ended sees what its blocks have published */
  if (gridDim.x > 1) {
    if (atomicInc(&args.counts[0], gridDim.x - 1) != gridDim.x - 1) return;
    fenceSys();
  }
  storeRelaxedSys32(args.finished, ++args.counts[2]);
}

} // namespace

extern "C" const void *const tuttiKernelRingTree = (const void *)ringTree;

/* The kernels of ringtree.cuh for some element types: TUTTI_GROUP(X) lists them
 * (types.cuh). */
#include <cuda_runtime.h>

#include "kernels/ringtree.cuh"
#include "kernels/types.cuh"

namespace {

template <typename T, bool COPIES>
__global__ void __launch_bounds__(kRingTreeThreads)
    ringTree(const __grid_constant__ tuttiRingTreeArgs args) {
  __shared__ RingTreeState state;
  if (args.started && blockIdx.x == 0 && threadIdx.x == 0)
    storeRelaxedSys32(args.started, ++args.counts[1]);
  RingTree<T, COPIES>(args, state).run();
  __syncthreads();
  if (!args.finished || threadIdx.x != 0) return;
  fenceSys(); /* whoever sees the launch as ended sees what its blocks have published */
  if (atomicInc(&args.counts[0], gridDim.x - 1) != gridDim.x - 1) return;
  fenceSys();
  storeRelaxedSys32(args.finished, ++args.counts[2]);
}

} // namespace

#define KERNEL(NAME, T, REDUCES)                                                                   \
  extern "C" const void *const tuttiRingTree##NAME = (const void *)ringTree<T, !(REDUCES)>;

TUTTI_GROUP(KERNEL)

/* The kernels of steps.cuh for some element types: TUTTI_GROUP(X) lists them
 * (types.cuh). */
#include <cuda_runtime.h>

#include "kernels/steps.cuh"
#include "kernels/types.cuh"

namespace {

template <typename T, bool COPIES>
__global__ void __launch_bounds__(kStepsThreads)
    steps(const __grid_constant__ tuttiStepsArgs args) {
  __shared__ StepsState state;
  if (args.started && blockIdx.x == 0 && threadIdx.x == 0)
    storeRelaxedSys32(args.started, ++args.counts[1]);
  Steps<T, COPIES>(args, state).run();
  __syncthreads();
  if (!args.finished || threadIdx.x != 0) return;
  fenceSys(); /* whoever sees the launch as ended sees what its blocks have published */
  if (atomicInc(&args.counts[0], gridDim.x - 1) != gridDim.x - 1) return;
  fenceSys();
  storeRelaxedSys32(args.finished, ++args.counts[2]);
}

} // namespace

#define KERNEL(NAME, T, REDUCES)                                                                   \
  extern "C" const void *const tuttiSteps##NAME = (const void *)steps<T, !(REDUCES)>;

TUTTI_GROUP(KERNEL)

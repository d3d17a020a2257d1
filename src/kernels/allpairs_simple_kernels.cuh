/* The kernels of allpairs_simple.cuh for some element types: TUTTI_GROUP(X) lists them
 * (types.cuh). */
#include <cuda_runtime.h>

#include "kernels/allpairs_simple.cuh"
#include "kernels/types.cuh"

namespace {

template <typename T>
__global__ void __launch_bounds__(kSimpleThreads)
    allPairsSimple(const __grid_constant__ tuttiAllPairsArgs args) {
  __shared__ SimpleState state;
  AllPairsSimple<T>(args, state).run();
}

} // namespace

#define KERNEL(NAME, T, REDUCES)                                                                   \
  extern "C" const void *const tuttiSimple##NAME = (const void *)allPairsSimple<T>;

TUTTI_GROUP(KERNEL)

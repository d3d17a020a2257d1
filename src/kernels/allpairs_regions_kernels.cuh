/* The kernels of allpairs_regions.cuh for some element types: TUTTI_GROUP(X) lists them
 * (types.cuh). */
#include <cuda_runtime.h>

#include "kernels/allpairs_regions.cuh"
#include "kernels/types.cuh"

namespace {

template <typename T, int N, bool COMBINE, bool ROOTED, bool STAGED>
__global__ void __launch_bounds__(TUTTI_ALLPAIRS_THREADS)
    allPairsRegions(const __grid_constant__ RegionsArgs<N> args) {
  AllPairsRegions<T, N, COMBINE, ROOTED, STAGED>(args).run();
}

} // namespace

#define KERNELS(NAME, T, REDUCES)                                                                  \
  extern "C" const tuttiRegionsKernels tuttiRegions##NAME = {                                      \
      .unrooted = {(const void *)allPairsRegions<T, 3, REDUCES, false, false>,                     \
                   (const void *)allPairsRegions<T, 7, REDUCES, false, false>},                    \
      .rooted = {(const void *)allPairsRegions<T, 3, REDUCES, true, false>,                        \
                 (const void *)allPairsRegions<T, 7, REDUCES, true, false>},                       \
      .staged = (const void *)allPairsRegions<T, 7, REDUCES, false, true>};

TUTTI_GROUP(KERNELS)

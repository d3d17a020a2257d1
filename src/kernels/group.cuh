/* The kernels of some element types: TUTTI_GROUP(X) lists them (types.cuh). */
#ifndef TUTTI_KERNELS_GROUP_CUH_
#define TUTTI_KERNELS_GROUP_CUH_

#include "kernels/allpairs_regions.cuh"
#include "kernels/allpairs_simple.cuh"
#include "kernels/kernels.h"
#include "kernels/types.cuh"

#define TUTTI_KERNELS(NAME, T)                                                                     \
  extern "C" const tuttiKernels tuttiKernels##NAME = {                                             \
      .simple = (const void *)allPairsSimple<T>,                                                   \
      .unrooted = {(const void *)allPairsRegions<T, 3, true, false, false>,                        \
                   (const void *)allPairsRegions<T, 7, true, false, false>},                       \
      .rooted = {(const void *)allPairsRegions<T, 3, true, true, false>,                           \
                 (const void *)allPairsRegions<T, 7, true, true, false>},                          \
      .staged = (const void *)allPairsRegions<T, 7, true, false, true>};
TUTTI_GROUP(TUTTI_KERNELS)

#endif

/* Which of the kernels of allpairs_regions.cuh runs, and its launch. */
#include "kernels/allpairs_regions.cuh"

#include <cuda_runtime.h>

#include "kernels/types.cuh"

#define DECLARE(NAME, T, REDUCES) extern "C" const tuttiRegionsKernels tuttiRegions##NAME;
TUTTI_GROUP_ALL(DECLARE)

namespace {

#define CASE(NAME, T, REDUCES)                                                                     \
  case tutti##NAME:                                                                                \
    return tuttiRegions##NAME;

/* Of what is not reduced: Copies. */
const tuttiRegionsKernels &kernelsOf(tuttiDataType_t type, bool reduces) {
  if (reduces) switch (type) {
      TUTTI_GROUP_TYPES(CASE)
    default: /* no type: the checks of calls let none pass */
      break;
    }
  return tuttiRegionsCopies;
}

template <int N>
int launch(const void *kernel, const tuttiAllPairsArgs *args, int nblocks, int nthreads,
           tuttiStream_t stream) {
  RegionsArgs<N> packed = regionsArgs<N>(args);
  return launchAllPairs(kernel, &packed, nblocks, nthreads, args->early, stream);
}

} // namespace

extern "C" int tuttiRegionsLaunch(const tuttiAllPairsArgs *args, tuttiDataType_t type, int nblocks,
                                  int nthreads, tuttiStream_t stream) {
  bool wide = args->nlinks > 3;
  const tuttiRegionsKernels &of = kernelsOf(type, args->combine || args->premul);
  const void *kernel = args->staged   ? of.staged
                       : args->rooted ? of.rooted[wide]
                                      : of.unrooted[wide];
  return wide || args->staged ? launch<7>(kernel, args, nblocks, nthreads, stream)
                              : launch<3>(kernel, args, nblocks, nthreads, stream);
}

extern "C" int tuttiRegionsLoad(void) {
  cudaFuncAttributes attributes;
  cudaError_t err = cudaSuccess;
  for (int type = 0; type <= tuttiNumTypes; type++) {
    const tuttiRegionsKernels &k = kernelsOf((tuttiDataType_t)type, type < tuttiNumTypes);
    for (const void *f : {k.unrooted[0], k.unrooted[1], k.rooted[0], k.rooted[1], k.staged})
      if (err == cudaSuccess) err = cudaFuncGetAttributes(&attributes, f);
  }
  return err;
}

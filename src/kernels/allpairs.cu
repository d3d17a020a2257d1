/* Which kernel between all pairs runs: one per element type and protocol. Those with regions are in
 * allpairs_regions.cu. */
#include <cuda_runtime.h>

#include "kernels/allpairs_messages.cuh"
#include "kernels/allpairs_simple.cuh"
#include "kernels/types.cuh"

#define DECLARE(NAME, T, REDUCES) extern "C" const void *const tuttiSimple##NAME;
TUTTI_GROUP_TYPES(DECLARE)

namespace {

__global__ void __launch_bounds__(TUTTI_ALLPAIRS_THREADS)
    allPairsMessages(const __grid_constant__ tuttiAllPairsArgs args) {
  __shared__ BlockState state;
  AllPairsMessages(args, state).run();
}

#define CASE(NAME, T, REDUCES)                                                                     \
  case tutti##NAME:                                                                                \
    return tuttiSimple##NAME;

/* Protocol Simple. */
const void *simple(tuttiDataType_t type) {
  switch (type) {
    TUTTI_GROUP_TYPES(CASE)
  default: /* no type: the checks of calls let none pass */
    return tuttiSimpleUint64;
  }
}
static_assert(sizeof(tuttiAllPairsArgs) % 16 == 0, "copied in pairs of words");

} // namespace

extern "C" int tuttiAllPairsLaunch(const tuttiAllPairsArgs *args, tuttiDataType_t type, int proto,
                                   int regions, int nblocks, int nthreads, tuttiStream_t stream) {
  if (regions) return tuttiRegionsLaunch(args, type, nblocks, nthreads, stream);
  bool ll = proto == tuttiProtoLL128, reduces = args->combine || args->premul;
  const void *kernel = ll ? (const void *)allPairsMessages : simple(reduces ? type : tuttiUint64);
  int threads = ll ? nthreads : (int)kSimpleThreads;
  return launchAllPairs(kernel, args, nblocks, threads, args->early, stream);
}

/* Code for older GPUs, that a newer one runs too, does not wait for the kernel before. */
extern "C" int tuttiAllPairsLoad(uint32_t *early) {
  cudaFuncAttributes attributes;
  int driver = 0;
  cudaError_t err = cudaDriverGetVersion(&driver);
  if (err == cudaSuccess) err = cudaFuncGetAttributes(&attributes, allPairsMessages);
  *early = err == cudaSuccess && attributes.ptxVersion >= 90 && driver >= 12030;
  for (int type = 0; type < tuttiNumTypes && err == cudaSuccess; type++)
    err = cudaFuncGetAttributes(&attributes, simple((tuttiDataType_t)type));
  return err != cudaSuccess ? err : tuttiRegionsLoad();
}

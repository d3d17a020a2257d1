/* Which of the kernels of exchange_uniform.cuh runs, and its launch. */
#include "kernels/exchange_uniform.cuh"

#include <cuda_runtime.h>

#include "kernels/types.cuh"

#define DECLARE(NAME, T, REDUCES) extern "C" const tuttiUniformKernels tuttiUniform##NAME;
TUTTI_GROUP_ALL(DECLARE)

namespace {

#define CASE(NAME, T, REDUCES)                                                                     \
  case tutti##NAME:                                                                                \
    return tuttiUniform##NAME;

/* Of what is not reduced: Copies. */
const tuttiUniformKernels &kernelsOf(tuttiDataType_t type, bool reduces) {
  if (reduces) switch (type) {
      TUTTI_GROUP_TYPES(CASE)
    default: /* no type: the checks of calls let none pass */
      break;
    }
  return tuttiUniformCopies;
}

template <int N>
int launch(const void *kernel, const tuttiExchangeArgs *args, int nblocks, int nthreads,
           tuttiStream_t stream) {
  UniformArgs<N> packed = uniformArgs<N>(args);
  return launchExchange(kernel, &packed, nblocks, nthreads, args->early, stream);
}

} // namespace

extern "C" int tuttiUniformLaunch(const tuttiExchangeArgs *args, tuttiDataType_t type, int nblocks,
                                  int nthreads, tuttiStream_t stream) {
  bool wide = args->nlinks > 3;
  const tuttiUniformKernels &of = kernelsOf(type, args->combine || args->premul);
  const void *kernel = args->staged ? of.staged : args->rooted ? of.rooted[wide] : of.uniform[wide];
  return wide || args->staged ? launch<7>(kernel, args, nblocks, nthreads, stream)
                              : launch<3>(kernel, args, nblocks, nthreads, stream);
}

extern "C" int tuttiUniformLoad(void) {
  cudaFuncAttributes attributes;
  cudaError_t err = cudaSuccess;
  for (int type = 0; type <= tuttiNumTypes; type++) {
    const tuttiUniformKernels &k = kernelsOf((tuttiDataType_t)type, type < tuttiNumTypes);
    for (const void *f : {k.uniform[0], k.uniform[1], k.rooted[0], k.rooted[1], k.staged})
      if (err == cudaSuccess) err = cudaFuncGetAttributes(&attributes, f);
  }
  return err;
}

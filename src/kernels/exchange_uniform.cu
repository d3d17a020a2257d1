/* The kernels of exchange_uniform.cuh. */
#include "kernels/exchange_uniform.cuh"

#include <cuda_runtime.h>

namespace {

template <typename T, int N, bool COMBINE, bool ROOTED, bool STAGED>
__global__ void __launch_bounds__(TUTTI_EXCHANGE_THREADS)
    exchangeUniform(const __grid_constant__ UniformArgs<N> args) {
  ExchangeUniform<T, N, COMBINE, ROOTED, STAGED>(args).run();
}

/* Of one element type: for up to 3 and 7 links. */
struct Kernels {
  const void *uniform[2], *rooted[2], *staged;
};
#define KERNELS(T, COMBINE)                                                                        \
  {                                                                                                \
    {(const void *)exchangeUniform<T, 3, COMBINE, false, false>,                                   \
     (const void *)exchangeUniform<T, 7, COMBINE, false, false>},                                  \
        {(const void *)exchangeUniform<T, 3, COMBINE, true, false>,                                \
         (const void *)exchangeUniform<T, 7, COMBINE, true, false>},                               \
        (const void *)exchangeUniform<T, 7, COMBINE, false, true>                                  \
  }
/* By tuttiDataType_t; last, for what is not reduced. */
const Kernels kernels[tuttiNumTypes + 1] = {
    KERNELS(Plain<int8_t>, true),   KERNELS(Plain<uint8_t>, true), KERNELS(Plain<int32_t>, true),
    KERNELS(Plain<uint32_t>, true), KERNELS(Plain<int64_t>, true), KERNELS(Plain<uint64_t>, true),
    KERNELS(Float16, true),         KERNELS(Float32, true),        KERNELS(Float64, true),
    KERNELS(Bfloat16, true),        KERNELS(E4m3, true),           KERNELS(E5m2, true),
    KERNELS(Plain<uint64_t>, false)};

template <int N>
int launch(const void *kernel, const tuttiExchangeArgs *args, int nblocks, int nthreads,
           tuttiStream_t stream) {
  UniformArgs<N> packed = uniformArgs<N>(args);
  return launchExchange(kernel, &packed, nblocks, nthreads, args->early, stream);
}

} // namespace

extern "C" int tuttiUniformLaunch(const tuttiExchangeArgs *args, tuttiDataType_t type, int nblocks,
                                  int nthreads, tuttiStream_t stream) {
  bool reduces = args->combine || args->premul, wide = args->nlinks > 3;
  const Kernels &of = kernels[reduces ? type : tuttiNumTypes];
  const void *kernel = args->staged ? of.staged : args->rooted ? of.rooted[wide] : of.uniform[wide];
  return wide || args->staged ? launch<7>(kernel, args, nblocks, nthreads, stream)
                              : launch<3>(kernel, args, nblocks, nthreads, stream);
}

extern "C" int tuttiUniformLoad(void) {
  cudaFuncAttributes attributes;
  cudaError_t err = cudaSuccess;
  for (const Kernels &k : kernels)
    for (const void *f : {k.uniform[0], k.uniform[1], k.rooted[0], k.rooted[1], k.staged})
      if (err == cudaSuccess) err = cudaFuncGetAttributes(&attributes, f);
  return err;
}

/* The exchange kernels: one per element type and protocol. */
#include <cuda_runtime.h>

#include "kernels/exchange_ll.cuh"
#include "kernels/exchange_simple.cuh"
#include "kernels/exchange_uniform.cuh"

namespace {

__global__ void __launch_bounds__(TUTTI_EXCHANGE_THREADS)
    exchangeLL(const __grid_constant__ tuttiExchangeArgs args) {
  __shared__ BlockState state;
  ExchangeLL(args, state).run();
}

template <typename T>
__global__ void __launch_bounds__(kSimpleThreads)
    exchangeSimple(const __grid_constant__ tuttiExchangeArgs args) {
  __shared__ SimpleState state;
  ExchangeSimple<T>(args, state).run();
}

template <typename T, int N, bool COMBINE, bool ROOTED>
__global__ void __launch_bounds__(TUTTI_EXCHANGE_THREADS)
    exchangeUniform(const __grid_constant__ UniformArgs<N> args) {
  ExchangeUniform<T, N, COMBINE, ROOTED>(args).run();
}

/* Of one element type; uniform for up to 3 and 7 links. */
struct Kernels {
  const void *simple, *uniform[2], *rooted[2];
};
#define UNIFORM(T, COMBINE, ROOTED)                                                                \
  {                                                                                                \
    (const void *)exchangeUniform<T, 3, COMBINE, ROOTED>,                                          \
        (const void *)exchangeUniform<T, 7, COMBINE, ROOTED>                                       \
  }
#define KERNELS(T, COMBINE)                                                                        \
  { (const void *)exchangeSimple<T>, UNIFORM(T, COMBINE, false), UNIFORM(T, COMBINE, true), }
/* By tuttiDataType_t. */
const Kernels reducing[tuttiNumTypes] = {
    KERNELS(Plain<int8_t>, true),   KERNELS(Plain<uint8_t>, true), KERNELS(Plain<int32_t>, true),
    KERNELS(Plain<uint32_t>, true), KERNELS(Plain<int64_t>, true), KERNELS(Plain<uint64_t>, true),
    KERNELS(Float16, true),         KERNELS(Float32, true),        KERNELS(Float64, true),
    KERNELS(Bfloat16, true),        KERNELS(E4m3, true),           KERNELS(E5m2, true),
};
const Kernels placing = KERNELS(Plain<uint64_t>, false);

const void *kernelFor(const tuttiExchangeArgs *args, tuttiDataType_t type, int proto, int uniform) {
  const Kernels &of = args->combine || args->premul ? reducing[type] : placing;
  int wide = args->nlinks > 3;
  if (proto == tuttiProtoSimple) return of.simple;
  if (!uniform) return (const void *)exchangeLL;
  return args->rooted ? of.rooted[wide] : of.uniform[wide];
}
static_assert(sizeof(tuttiExchangeArgs) % 16 == 0, "copied in pairs of words");

} // namespace

extern "C" int tuttiExchangeLaunch(const tuttiExchangeArgs *args, tuttiDataType_t type, int proto,
                                   int uniform, int nblocks, int nthreads, tuttiStream_t stream) {
  UniformArgs<3> few;
  UniformArgs<7> many;
  void *params[] = {(void *)args};
  if (uniform && args->nlinks <= 3) {
    few = uniformArgs<3>(args);
    params[0] = &few;
  } else if (uniform) {
    many = uniformArgs<7>(args);
    params[0] = &many;
  }
  int threads = proto == tuttiProtoLL ? nthreads : (int)kSimpleThreads;
  return cudaLaunchKernel(kernelFor(args, type, proto, uniform), dim3((unsigned)nblocks),
                          dim3((unsigned)threads), params, 0, stream);
}

extern "C" int tuttiExchangeLoad(void) {
  cudaFuncAttributes attributes;
  cudaError_t err = cudaFuncGetAttributes(&attributes, exchangeLL);
  for (int i = 0; i <= tuttiNumTypes; i++) {
    const Kernels &of = i < tuttiNumTypes ? reducing[i] : placing;
    for (int wide = 0; wide < 2; wide++)
      for (const void *kernel : {of.simple, of.uniform[wide], of.rooted[wide]})
        if (err == cudaSuccess) err = cudaFuncGetAttributes(&attributes, kernel);
  }
  return err;
}

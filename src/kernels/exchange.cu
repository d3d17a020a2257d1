/* The exchange kernels: one per element type and protocol. */
#include <cuda_runtime.h>

#include "kernels/exchange_ll.cuh"
#include "kernels/exchange_simple.cuh"
#include "kernels/exchange_uniform.cuh"

namespace {

template <typename T>
__global__ void __launch_bounds__(TUTTI_EXCHANGE_THREADS)
    exchangeLL(const __grid_constant__ tuttiExchangeArgs args) {
  __shared__ BlockState state;
  ExchangeLL<T>(args, state).run();
}

template <typename T>
__global__ void __launch_bounds__(kSimpleThreads)
    exchangeSimple(const __grid_constant__ tuttiExchangeArgs args) {
  __shared__ SimpleState state;
  ExchangeSimple<T>(args, state).run();
}

template <typename T, int N, bool COMBINE>
__global__ void __launch_bounds__(TUTTI_EXCHANGE_THREADS)
    exchangeUniform(const __grid_constant__ tuttiExchangeArgs args) {
  ExchangeUniform<T, N, COMBINE>(args).run();
}

#define KERNELS(T)                                                                                 \
  {                                                                                                \
    (const void *)exchangeLL<T>, (const void *)exchangeSimple<T>,                                  \
        (const void *)exchangeUniform<T, 3, true>, (const void *)exchangeUniform<T, 7, true>       \
  }
/* By tuttiDataType_t and: tuttiProto; uniform for up to 3 and 7 links. */
const void *const kernels[tuttiNumTypes][4] = {
    KERNELS(Plain<int8_t>),   KERNELS(Plain<uint8_t>), KERNELS(Plain<int32_t>),
    KERNELS(Plain<uint32_t>), KERNELS(Plain<int64_t>), KERNELS(Plain<uint64_t>),
    KERNELS(Float16),         KERNELS(Float32),        KERNELS(Float64),
    KERNELS(Bfloat16),        KERNELS(E4m3),           KERNELS(E5m2),
};
const void *const placing[2] = {(const void *)exchangeUniform<Plain<uint64_t>, 3, false>,
                                (const void *)exchangeUniform<Plain<uint64_t>, 7, false>};
static_assert(sizeof(tuttiExchangeArgs) % 16 == 0, "copied in pairs of words");

} // namespace

extern "C" int tuttiExchangeLaunch(const tuttiExchangeArgs *args, tuttiDataType_t type, int proto,
                                   int uniform, int nblocks, int nthreads, tuttiStream_t stream) {
  void *params[] = {(void *)args};
  const void *kernel = kernels[type][proto];
  if (uniform)
    kernel = args->combine ? kernels[type][2 + (args->nlinks > 3)] : placing[args->nlinks > 3];
  int threads = proto == tuttiProtoLL ? nthreads : (int)kSimpleThreads;
  return cudaLaunchKernel(kernel, dim3((unsigned)nblocks), dim3((unsigned)threads), params, 0,
                          stream);
}

extern "C" int tuttiExchangeLoad(void) {
  cudaFuncAttributes attributes;
  cudaError_t err = cudaSuccess;
  for (const auto &row : kernels)
    for (const void *kernel : row)
      if (err == cudaSuccess) err = cudaFuncGetAttributes(&attributes, kernel);
  for (const void *kernel : placing)
    if (err == cudaSuccess) err = cudaFuncGetAttributes(&attributes, kernel);
  return err;
}

/* The exchange kernels: one per element type and protocol. */
#include <cuda_runtime.h>

#include "kernels/exchange_ll.cuh"
#include "kernels/exchange_simple.cuh"

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

#define KERNELS(T)                                                                                 \
  { (const void *)exchangeLL<T>, (const void *)exchangeSimple<T> }
/* By tuttiDataType_t and tuttiProto. */
const void *const kernels[tuttiNumTypes][tuttiProtoCount] = {
    KERNELS(Plain<int8_t>),   KERNELS(Plain<uint8_t>),  KERNELS(Plain<int32_t>),
    KERNELS(Plain<uint32_t>), KERNELS(Plain<int64_t>),  KERNELS(Plain<uint64_t>),
    KERNELS(Float16),         KERNELS(Float32),         KERNELS(Float64),
    KERNELS(Bfloat16),        KERNELS(E4m3),            KERNELS(E5m2),
};
static_assert(sizeof(tuttiExchangeArgs) % 16 == 0, "copied in pairs of words");

} // namespace

extern "C" int tuttiExchangeLaunch(const tuttiExchangeArgs *args, tuttiDataType_t type, int proto,
                                   int nblocks, int nthreads, tuttiStream_t stream) {
  void *params[] = {(void *)args};
  int threads = proto == tuttiProtoLL ? nthreads : (int)kSimpleThreads;
  return cudaLaunchKernel(kernels[type][proto], dim3((unsigned)nblocks), dim3((unsigned)threads),
                          params, 0, stream);
}

extern "C" int tuttiExchangeLoad(void) {
  for (const auto &row : kernels)
    for (const void *kernel : row) {
      cudaFuncAttributes attributes;
      cudaError_t err = cudaFuncGetAttributes(&attributes, kernel);
      if (err != cudaSuccess) return err;
    }
  return cudaSuccess;
}

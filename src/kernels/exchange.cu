/* The exchange kernels: one per element type and protocol. Those with regions are in
 * exchange_uniform.cu, as compiling takes long. */
#include <cuda_runtime.h>

#include "kernels/exchange_ll.cuh"
#include "kernels/exchange_simple.cuh"

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

#define KERNEL(T) (const void *)exchangeSimple<T>
/* Protocol Simple, by tuttiDataType_t. */
const void *const simple[tuttiNumTypes] = {
    KERNEL(Plain<int8_t>),   KERNEL(Plain<uint8_t>), KERNEL(Plain<int32_t>),
    KERNEL(Plain<uint32_t>), KERNEL(Plain<int64_t>), KERNEL(Plain<uint64_t>),
    KERNEL(Float16),         KERNEL(Float32),        KERNEL(Float64),
    KERNEL(Bfloat16),        KERNEL(E4m3),           KERNEL(E5m2),
};
static_assert(sizeof(tuttiExchangeArgs) % 16 == 0, "copied in pairs of words");

} // namespace

extern "C" int tuttiExchangeLaunch(const tuttiExchangeArgs *args, tuttiDataType_t type, int proto,
                                   int uniform, int nblocks, int nthreads, tuttiStream_t stream) {
  if (uniform) return tuttiUniformLaunch(args, type, nblocks, nthreads, stream);
  bool ll = proto == tuttiProtoLL, reduces = args->combine || args->premul;
  const void *kernel = ll ? (const void *)exchangeLL : simple[reduces ? type : tuttiUint64];
  int threads = ll ? nthreads : (int)kSimpleThreads;
  return launchExchange(kernel, args, nblocks, threads, args->early, stream);
}

/* Code for older GPUs, that a newer one runs too, does not wait for the kernel before. */
extern "C" int tuttiExchangeLoad(uint32_t *early) {
  cudaFuncAttributes attributes;
  int driver = 0;
  cudaError_t err = cudaDriverGetVersion(&driver);
  if (err == cudaSuccess) err = cudaFuncGetAttributes(&attributes, exchangeLL);
  *early = err == cudaSuccess && attributes.ptxVersion >= 90 && driver >= 12030;
  for (const void *kernel : simple)
    if (err == cudaSuccess) err = cudaFuncGetAttributes(&attributes, kernel);
  return err != cudaSuccess ? err : tuttiUniformLoad();
}

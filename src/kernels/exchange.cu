/* Which exchange kernel runs: one per element type and protocol. Those with regions are in
 * exchange_uniform.cu. */
#include <cuda_runtime.h>

#include "kernels/exchange_ll.cuh"
#include "kernels/exchange_simple.cuh"
#include "kernels/types.cuh"

#define DECLARE(NAME, T, REDUCES) extern "C" const void *const tuttiSimple##NAME;
TUTTI_GROUP_TYPES(DECLARE)

namespace {

__global__ void __launch_bounds__(TUTTI_EXCHANGE_THREADS)
    exchangeLL(const __grid_constant__ tuttiExchangeArgs args) {
  __shared__ BlockState state;
  ExchangeLL(args, state).run();
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
static_assert(sizeof(tuttiExchangeArgs) % 16 == 0, "copied in pairs of words");

} // namespace

extern "C" int tuttiExchangeLaunch(const tuttiExchangeArgs *args, tuttiDataType_t type, int proto,
                                   int uniform, int nblocks, int nthreads, tuttiStream_t stream) {
  if (uniform) return tuttiUniformLaunch(args, type, nblocks, nthreads, stream);
  bool ll = proto == tuttiProtoLL, reduces = args->combine || args->premul;
  const void *kernel = ll ? (const void *)exchangeLL : simple(reduces ? type : tuttiUint64);
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
  for (int type = 0; type < tuttiNumTypes && err == cudaSuccess; type++)
    err = cudaFuncGetAttributes(&attributes, simple((tuttiDataType_t)type));
  return err != cudaSuccess ? err : tuttiUniformLoad();
}

/* The kernels of exchange_simple.cuh for some element types: TUTTI_GROUP(X) lists them
 * (types.cuh). */
#include <cuda_runtime.h>

#include "kernels/exchange_simple.cuh"
#include "kernels/types.cuh"

namespace {

template <typename T>
__global__ void __launch_bounds__(kSimpleThreads)
    exchangeSimple(const __grid_constant__ tuttiExchangeArgs args) {
  __shared__ SimpleState state;
  ExchangeSimple<T>(args, state).run();
}

} // namespace

#define KERNEL(NAME, T, REDUCES)                                                                   \
  extern "C" const void *const tuttiSimple##NAME = (const void *)exchangeSimple<T>;

TUTTI_GROUP(KERNEL)

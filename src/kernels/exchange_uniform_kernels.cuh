/* The kernels of exchange_uniform.cuh for some element types: TUTTI_GROUP(X) lists them
 * (types.cuh). */
#include <cuda_runtime.h>

#include "kernels/exchange_uniform.cuh"
#include "kernels/types.cuh"

namespace {

template <typename T, int N, bool COMBINE, bool ROOTED, bool STAGED>
__global__ void __launch_bounds__(TUTTI_EXCHANGE_THREADS)
    exchangeUniform(const __grid_constant__ UniformArgs<N> args) {
  ExchangeUniform<T, N, COMBINE, ROOTED, STAGED>(args).run();
}

} // namespace

#define KERNELS(NAME, T, REDUCES)                                                                  \
  extern "C" const tuttiUniformKernels tuttiUniform##NAME = {                                      \
      .uniform = {(const void *)exchangeUniform<T, 3, REDUCES, false, false>,                      \
                  (const void *)exchangeUniform<T, 7, REDUCES, false, false>},                     \
      .rooted = {(const void *)exchangeUniform<T, 3, REDUCES, true, false>,                        \
                 (const void *)exchangeUniform<T, 7, REDUCES, true, false>},                       \
      .staged = (const void *)exchangeUniform<T, 7, REDUCES, false, true>};

TUTTI_GROUP(KERNELS)

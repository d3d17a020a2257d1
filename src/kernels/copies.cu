/* The kernels of what is only moved. */
#include "kernels/allpairs_messages.cuh"
#include "kernels/allpairs_regions.cuh"
#include "kernels/kernels.h"

namespace {

using Moved = Plain<int64_t>;

__global__ void __launch_bounds__(TUTTI_ALLPAIRS_THREADS)
    allPairsMessages(const __grid_constant__ tuttiAllPairsArgs args) {
  __shared__ BlockState state;
  AllPairsMessages(args, state).run();
}

} // namespace

extern "C" const void *const tuttiKernelMessages = (const void *)allPairsMessages;

extern "C" const tuttiKernels tuttiKernelsCopies = {
    .simple = nullptr,
    .unrooted = {(const void *)allPairsRegions<Moved, 3, false, false, false>,
                 (const void *)allPairsRegions<Moved, 7, false, false, false>},
    .rooted = {(const void *)allPairsRegions<Moved, 3, false, true, false>,
               (const void *)allPairsRegions<Moved, 7, false, true, false>},
    .staged = (const void *)allPairsRegions<Moved, 7, false, false, true>};

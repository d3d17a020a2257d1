/* Which ring/tree kernel runs: one per element type, and one for what is only copied. */
#include <cuda_runtime.h>

#include "kernels/ringtree.cuh"
#include "kernels/types.cuh"

#define DECLARE(NAME, T, REDUCES) extern "C" const void *const tuttiRingTree##NAME;
TUTTI_GROUP_ALL(DECLARE)

namespace {

#define CASE(NAME, T, REDUCES)                                                                     \
  case tutti##NAME:                                                                                \
    return tuttiRingTree##NAME;

const void *kernelOf(tuttiDataType_t type, bool copies) {
  if (!copies) switch (type) {
      TUTTI_GROUP_TYPES(CASE)
    default: /* no type: the checks of calls let none pass */
      break;
    }
  return tuttiRingTreeCopies;
}

} // namespace

extern "C" int tuttiRingTreeLaunch(const tuttiRingTreeArgs *args, int ntasks, tuttiDataType_t type,
                                   bool copies, tuttiStream_t stream) {
  void *params[] = {(void *)args};
  return cudaLaunchKernel(kernelOf(type, copies), dim3((unsigned)ntasks), dim3(kRingTreeThreads),
                          params, 0, stream);
}

extern "C" int tuttiRingTreeLoad(void) {
  cudaFuncAttributes attributes;
  cudaError_t err = cudaSuccess;
  for (int type = 0; type <= tuttiNumTypes && err == cudaSuccess; type++)
    err =
        cudaFuncGetAttributes(&attributes, kernelOf((tuttiDataType_t)type, type == tuttiNumTypes));
  return err;
}

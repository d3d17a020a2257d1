/* The steps kernels: one per element type, and one for what is only copied. */
#include <cuda_runtime.h>

#include "kernels/steps.cuh"

namespace {

template <typename T, bool COPIES>
__global__ void __launch_bounds__(kStepsThreads)
    steps(const __grid_constant__ tuttiStepsArgs args) {
  __shared__ StepsState state;
  if (args.started && blockIdx.x == 0 && threadIdx.x == 0)
    storeRelaxedSys32(args.started, ++args.counts[1]);
  Steps<T, COPIES>(args, state).run();
  __syncthreads();
  if (!args.finished || threadIdx.x != 0) return;
  fenceSys(); /* whoever sees the launch as ended sees what its blocks have published */
  if (atomicInc(&args.counts[0], gridDim.x - 1) != gridDim.x - 1) return;
  fenceSys();
  storeRelaxedSys32(args.finished, ++args.counts[2]);
}

/* By tuttiDataType_t. */
const void *const reducing[tuttiNumTypes] = {
    (const void *)steps<Plain<int8_t>, false>,  (const void *)steps<Plain<uint8_t>, false>,
    (const void *)steps<Plain<int32_t>, false>, (const void *)steps<Plain<uint32_t>, false>,
    (const void *)steps<Plain<int64_t>, false>, (const void *)steps<Plain<uint64_t>, false>,
    (const void *)steps<Float16, false>,        (const void *)steps<Float32, false>,
    (const void *)steps<Float64, false>,        (const void *)steps<Bfloat16, false>,
    (const void *)steps<E4m3, false>,           (const void *)steps<E5m2, false>,
};
const void *const copying = (const void *)steps<Plain<uint64_t>, true>;

} // namespace

extern "C" int tuttiStepsLaunch(const tuttiStepsArgs *args, int ntasks, tuttiDataType_t type,
                                bool copies, tuttiStream_t stream) {
  void *params[] = {(void *)args};
  return cudaLaunchKernel(copies ? copying : reducing[type], dim3((unsigned)ntasks),
                          dim3(kStepsThreads), params, 0, stream);
}

extern "C" int tuttiStepsLoad(void) {
  cudaFuncAttributes attributes;
  cudaError_t err = cudaFuncGetAttributes(&attributes, copying);
  for (int i = 0; i < tuttiNumTypes && err == cudaSuccess; i++)
    err = cudaFuncGetAttributes(&attributes, reducing[i]);
  return err;
}

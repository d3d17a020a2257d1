/* Kernels of NVIDIA's nccl_device.h, as a user would write them, and their launches. Each counts
 * what it finds wrong in `wrong`, in GPU memory, and tells the first of it. */
#ifndef TUTTI_TESTS_GPU_LSA_KERNELS_H_
#define TUTTI_TESTS_GPU_LSA_KERNELS_H_

#include <cuda_runtime_api.h>
#include <nccl_device.h>

#include <cstddef>
#include <cstdint>

constexpr int kBlocks = 4, kThreads = 128;

/* The first wrong value. */
struct Wrong {
  unsigned long long count;
  uint32_t found, wanted, round, where;
};

/* In each round every rank stores kThreads words per block into every peer's window, the barrier
 * follows, each looks at what it has got, and the barrier follows again. The window has
 * lsaSize * kBlocks * kThreads words. */
cudaError_t storeRounds(const ncclDevComm &comm, ncclWindow_t win, uint32_t rounds, uint32_t seed,
                        Wrong *wrong, cudaStream_t stream);

/* The sum over all ranks of `count` floats at the start of `in`, into `out` of all. */
cudaError_t allReduce(const ncclDevComm &comm, ncclWindow_t in, ncclWindow_t out, size_t count,
                      int blocks, cudaStream_t stream);

/* Each rank finds `words` words of zero in a resource buffer, then stores its number into its
 * word of each peer's; the barrier; each finds all numbers. `words` >= lsaSize. */
cudaError_t fillResource(const ncclDevComm &comm, ncclDevResourceHandle handle, uint32_t words,
                         Wrong *wrong, cudaStream_t stream);

/* All-to-all of 16 bytes each by the low-latency session, with no barrier between rounds; each of
 * kBlocks blocks for itself. */
cudaError_t lowLatency(const ncclDevComm &comm, ncclLLA2AHandle handle, uint32_t rounds,
                       Wrong *wrong, cudaStream_t stream);

/* Where kernels see byte `offset` of a team's parts: out[lsaSize]; and the window that is found by
 * address, in *found. */
cudaError_t lookUp(const ncclDevComm &comm, ncclWindow_t win, size_t offset, const void *buff,
                   void **out, ncclWindow_t *found, cudaStream_t stream);

/* In each round each rank tells its number of the round to all others by the window, and waits at a
 * barrier of barrierCount, then at one of lsaBarrierCount. */
cudaError_t bothBarriers(const ncclDevComm &comm, ncclWindow_t win, uint32_t rounds, Wrong *wrong,
                         cudaStream_t stream);

/* `times` barriers of one block. */
cudaError_t barriers(const ncclDevComm &comm, uint32_t times, cudaStream_t stream);

/* Spins until *stop is set, in host memory that the GPU reads. */
cudaError_t spin(const ncclDevComm &comm, const uint32_t *stop, cudaStream_t stream);

#endif

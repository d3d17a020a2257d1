/* Bytes of any alignment, by all threads of a block. */
#ifndef TUTTI_KERNELS_COPY_CUH_
#define TUTTI_KERNELS_COPY_CUH_

#include "kernels/ptx.cuh"

namespace {

constexpr int kUnits = 4; /* of one thread on their way at once */

/* A peer may have written it: this GPU's caches are not asked. */
template <typename U> __device__ U loadUnit(const U *at) {
  return *(const volatile U *)at;
}
template <> __device__ tuttiPair loadUnit(const tuttiPair *at) {
  return loadPairVolatile(at);
}

/* `n` units from `from` to `to`, which are aligned to them. */
template <typename U> __device__ void copyUnits(U *to, const U *from, uint64_t n) {
  for (uint64_t at = threadIdx.x; at < n; at += (uint64_t)blockDim.x * kUnits) {
    U v[kUnits];
#pragma unroll
    for (int k = 0; k < kUnits; k++) {
      uint64_t i = at + (uint64_t)k * blockDim.x;
      if (i < n) v[k] = loadUnit(from + i);
    }
#pragma unroll
    for (int k = 0; k < kUnits; k++) {
      uint64_t i = at + (uint64_t)k * blockDim.x;
      if (i < n) to[i] = v[k];
    }
  }
}

/* What does not begin or end with a whole unit of `to` goes byte by byte. */
template <typename U>
__device__ void copyAligned(uint8_t *to, const uint8_t *from, uint64_t bytes) {
  uint64_t ahead = (0 - (uintptr_t)to) % sizeof(U);
  if (ahead > bytes) ahead = bytes;
  uint64_t n = (bytes - ahead) / sizeof(U), done = ahead + n * sizeof(U);
  copyUnits(to, from, ahead);
  copyUnits((U *)(to + ahead), (const U *)(from + ahead), n);
  copyUnits(to + done, from + done, bytes - done);
}

/* By the widest units in which both sides can be aligned. */
__device__ void copyBytes(uint8_t *to, const uint8_t *from, uint64_t bytes) {
  uintptr_t odd = ((uintptr_t)to ^ (uintptr_t)from) & 15;
  if (odd == 0)
    copyAligned<tuttiPair>(to, from, bytes);
  else if (odd % 8 == 0)
    copyAligned<uint64_t>(to, from, bytes);
  else if (odd % 4 == 0)
    copyAligned<uint32_t>(to, from, bytes);
  else
    copyAligned<uint8_t>(to, from, bytes);
}

} // namespace

#endif

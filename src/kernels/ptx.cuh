/* All PTX: loads and stores that other GPUs see, fences, the clock, conversions. (CUDA's headers of
 * the narrow floats take longer to read than what is needed of them.) */
#ifndef TUTTI_KERNELS_PTX_CUH_
#define TUTTI_KERNELS_PTX_CUH_

#include <stdint.h>

/* A pair of words in one access. The lanes of a warp that access one 128-byte line in one
 * instruction see and write it whole: what the flag of protocol LL relies on (as NCCL's LL128
 * does; holds for NVLink on sm_70 and later). */
struct alignas(16) tuttiPair {
  uint64_t x, y;
};

__device__ inline tuttiPair loadPairVolatile(const void *at) {
  tuttiPair v;
  asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(v.x), "=l"(v.y)
               : "l"(at)
               : "memory");
  return v;
}
__device__ inline void storePairVolatile(void *at, tuttiPair v) {
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(v.x), "l"(v.y)
               : "memory");
}
/* From wherever the address points, also a kernel's parameters. */
__device__ inline tuttiPair loadPairGeneric(const void *at) {
  tuttiPair v;
  asm volatile("ld.v2.u64 {%0, %1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(at) : "memory");
  return v;
}
/* Data that is used once: not to push out what is. */
__device__ inline tuttiPair loadPairStreaming(const void *at) {
  tuttiPair v;
  asm volatile("ld.global.L1::no_allocate.v2.u64 {%0, %1}, [%2];"
               : "=l"(v.x), "=l"(v.y)
               : "l"(at)
               : "memory");
  return v;
}
__device__ inline void storePair(void *at, tuttiPair v) {
  asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(v.x), "l"(v.y) : "memory");
}

/* Asks for a line that this block alone writes from now on; nobody waits for it. */
__device__ inline void prefetchCached(const void *at) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(at));
}

__device__ inline uint64_t loadAcquireSys(const uint64_t *at) {
  uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
  return v;
}
__device__ inline uint32_t loadRelaxedSys32(const uint32_t *at) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
  return v;
}
__device__ inline void storeRelaxedSys(uint64_t *at, uint64_t v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
}
/* Behind everything that this thread has seen or written. */
__device__ inline void addReleaseSys(uint64_t *at, uint64_t v) {
  asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
}
__device__ inline void storeRelaxedSys32(uint32_t *at, uint32_t v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(v) : "memory");
}
/* Between threads of one block, in shared memory. A store is an exchange, for compute-sanitizer
 * takes a plain one that others read without a barrier for a race. */
__device__ inline uint32_t sharedAddress(const uint32_t *at) {
  return (uint32_t)__cvta_generic_to_shared(at);
}
__device__ inline uint32_t loadAcquireBlock(const uint32_t *at) {
  uint32_t v;
  asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(v) : "r"(sharedAddress(at)) : "memory");
  return v;
}
__device__ inline void storeReleaseBlock(uint32_t *at, uint32_t v) {
  asm volatile("atom.exch.release.cta.shared.b32 %0, [%1], %0;"
               : "+r"(v)
               : "r"(sharedAddress(at))
               : "memory");
}
__device__ inline void addReleaseBlock(uint32_t *at, uint32_t v) {
  asm volatile("red.release.cta.shared.add.u32 [%0], %1;" ::"r"(sharedAddress(at)), "r"(v)
               : "memory");
}

/* Barrier 1 to 15 of so many threads of a block, of whom those who only arrive do not wait. */
__device__ inline void barrierOf(uint32_t number, uint32_t threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
__device__ inline void arriveAt(uint32_t number, uint32_t threads) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* Programmatic dependent launch, from sm_90 on. Until it returns nothing that the kernel before on
 * the stream has written may be here, and nothing may be written. */
__device__ inline void awaitEarlierKernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* The next kernel on the stream may come to the SMs once all blocks have said so. */
__device__ inline void admitLaterKernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Everything that this thread has seen or written comes before what it writes from now on. */
__device__ inline void fenceSys() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}
__device__ inline uint64_t nanoseconds() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

/* Between floats, rounded to nearest even. 8-bit ones are converted two at a time, here with 0. */
__device__ inline float float16ToFloat(uint16_t e) {
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(e));
  return v;
}
__device__ inline uint16_t floatToFloat16(float v) {
  uint16_t e;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(e) : "f"(v));
  return e;
}
__device__ inline uint16_t floatToBfloat16(float v) {
  uint16_t e;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(e) : "f"(v));
  return e;
}
#if __CUDA_ARCH__ >= 890
__device__ inline uint16_t e4m3ToFloat16(uint8_t e) {
  uint32_t two;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(two) : "h"((uint16_t)e));
  return (uint16_t)two;
}
/* The greatest number for what is greater. */
__device__ inline uint8_t floatToE4m3(float v) {
  uint16_t two;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(v));
  return (uint8_t)two;
}
__device__ inline uint8_t floatToE5m2(float v) {
  uint16_t two;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(v));
  return (uint8_t)two;
}
#endif

#endif

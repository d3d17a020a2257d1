/* Atomics shared by C, C++ tests and, later, CUDA host code. A plain integer inside a struct, so
 * that it cannot be read without naming an order; the order is in each function's name. Valid in
 * memory shared between processes. */
#ifndef TUTTI_BASE_ATOMIC_H_
#define TUTTI_BASE_ATOMIC_H_

#include <stdbool.h>
#include <stdint.h>

typedef struct {
  uint64_t v;
} tuttiAtomic64;

typedef struct {
  uint32_t v;
} tuttiAtomic32;

static inline uint64_t tuttiLoadAcquire(const tuttiAtomic64 *a) {
  return __atomic_load_n(&a->v, __ATOMIC_ACQUIRE);
}
static inline uint64_t tuttiLoadRelaxed(const tuttiAtomic64 *a) {
  return __atomic_load_n(&a->v, __ATOMIC_RELAXED);
}
static inline void tuttiStoreRelease(tuttiAtomic64 *a, uint64_t v) {
  __atomic_store_n(&a->v, v, __ATOMIC_RELEASE);
}
static inline void tuttiStoreRelaxed(tuttiAtomic64 *a, uint64_t v) {
  __atomic_store_n(&a->v, v, __ATOMIC_RELAXED);
}
/* Returns the value before the addition. */
static inline uint64_t tuttiFetchAddAcqRel(tuttiAtomic64 *a, uint64_t v) {
  return __atomic_fetch_add(&a->v, v, __ATOMIC_ACQ_REL);
}

/* True if *a was `expected` and is now `desired`. */
static inline bool tuttiCompareExchange(tuttiAtomic64 *a, uint64_t expected, uint64_t desired) {
  return __atomic_compare_exchange_n(&a->v, &expected, desired, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE);
}

static inline uint32_t tuttiLoadAcquire32(const tuttiAtomic32 *a) {
  return __atomic_load_n(&a->v, __ATOMIC_ACQUIRE);
}
static inline uint32_t tuttiLoadRelaxed32(const tuttiAtomic32 *a) {
  return __atomic_load_n(&a->v, __ATOMIC_RELAXED);
}
static inline void tuttiStoreRelease32(tuttiAtomic32 *a, uint32_t v) {
  __atomic_store_n(&a->v, v, __ATOMIC_RELEASE);
}
static inline uint32_t tuttiFetchAddAcqRel32(tuttiAtomic32 *a, uint32_t v) {
  return __atomic_fetch_add(&a->v, v, __ATOMIC_ACQ_REL);
}
/* Totally ordered among each other: a store is seen by whoever's later load it did not see. */
static inline uint32_t tuttiLoadSeqCst32(const tuttiAtomic32 *a) {
  return __atomic_load_n(&a->v, __ATOMIC_SEQ_CST);
}
static inline void tuttiStoreSeqCst32(tuttiAtomic32 *a, uint32_t v) {
  __atomic_store_n(&a->v, v, __ATOMIC_SEQ_CST);
}
/* True if *a was `expected` and is now `desired`. */
static inline bool tuttiCompareExchange32(tuttiAtomic32 *a, uint32_t expected, uint32_t desired) {
  return __atomic_compare_exchange_n(&a->v, &expected, desired, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE);
}

#endif

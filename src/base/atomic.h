/* Atomics for C, and for C++ where tests and CUDA sources include this. A plain integer inside a
 * struct, so that it cannot be read without naming an order; the order is in each function's name.
 * Valid in memory shared between processes. */
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

/* For both: tuttiLoadAcquire and tuttiLoadAcquire32, ... FetchAdd returns the value before the
 * addition; CompareExchange is true if *a was `expected` and is now `desired`. */
#define TUTTI_ATOMIC(bits, suffix)                                                                 \
  static inline uint##bits##_t tuttiLoadAcquire##suffix(const tuttiAtomic##bits *a) {              \
    return __atomic_load_n(&a->v, __ATOMIC_ACQUIRE);                                               \
  }                                                                                                \
  static inline uint##bits##_t tuttiLoadRelaxed##suffix(const tuttiAtomic##bits *a) {              \
    return __atomic_load_n(&a->v, __ATOMIC_RELAXED);                                               \
  }                                                                                                \
  static inline void tuttiStoreRelease##suffix(tuttiAtomic##bits *a, uint##bits##_t v) {           \
    __atomic_store_n(&a->v, v, __ATOMIC_RELEASE);                                                  \
  }                                                                                                \
  static inline uint##bits##_t tuttiFetchAddAcqRel##suffix(tuttiAtomic##bits *a,                   \
                                                           uint##bits##_t v) {                     \
    return __atomic_fetch_add(&a->v, v, __ATOMIC_ACQ_REL);                                         \
  }                                                                                                \
  static inline bool tuttiCompareExchange##suffix(tuttiAtomic##bits *a, uint##bits##_t expected,   \
                                                  uint##bits##_t desired) {                        \
    return __atomic_compare_exchange_n(&a->v, &expected, desired, false, __ATOMIC_ACQ_REL,         \
                                       __ATOMIC_ACQUIRE);                                          \
  }
TUTTI_ATOMIC(64, )
TUTTI_ATOMIC(32, 32)

static inline void tuttiStoreRelaxed(tuttiAtomic64 *a, uint64_t v) {
  __atomic_store_n(&a->v, v, __ATOMIC_RELAXED);
}
/* Totally ordered among each other: a store is seen by whoever's later load it did not see. */
static inline uint32_t tuttiLoadSeqCst32(const tuttiAtomic32 *a) {
  return __atomic_load_n(&a->v, __ATOMIC_SEQ_CST);
}
static inline uint32_t tuttiFetchAddSeqCst32(tuttiAtomic32 *a, uint32_t v) {
  return __atomic_fetch_add(&a->v, v, __ATOMIC_SEQ_CST);
}
static inline void tuttiStoreSeqCst32(tuttiAtomic32 *a, uint32_t v) {
  __atomic_store_n(&a->v, v, __ATOMIC_SEQ_CST);
}

#endif

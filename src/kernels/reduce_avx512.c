/* Reduction loops for AVX-512; built with these instructions on, see src/CMakeLists.txt. */
#if defined(__x86_64__)

#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) ||                   \
    !defined(__AVX512VL__)
#error "compile this file with -mavx512f -mavx512bw -mavx512dq -mavx512vl"
#endif

#include "kernels/reduce_loops.h"

static bool supported(void) {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

const tuttiReduceLevel tuttiReduceAvx512 = {
    .name = "avx512",
    .supported = supported,
    .reduce = TUTTI_REDUCE_TABLE,
};

#else
typedef int tuttiReduceAvx512Empty; /* ISO C wants a declaration in every file */
#endif

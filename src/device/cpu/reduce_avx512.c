/* Reduction loops for AVX-512; built with these instructions on, see src/CMakeLists.txt. */
#if defined(__x86_64__)

#include "device/cpu/reduce_loops.h"

static bool supported(void) {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

const tuttiReduceLevel tuttiReduceAvx512 = {"avx512", supported, TUTTI_REDUCE_TABLE};

#endif

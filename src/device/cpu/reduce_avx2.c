/* Reduction loops for AVX2 and F16C; built with these instructions on, see src/CMakeLists.txt. */
#if defined(__x86_64__)

#include <cpuid.h>

#include "device/cpu/reduce_loops.h"

static bool supported(void) {
  unsigned eax, ebx, ecx, edx;
  /* clang 14 knows no __builtin_cpu_supports("f16c"). */
  return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) &&
         (ecx & bit_F16C) != 0;
}

const tuttiReduceLevel tuttiReduceAvx2 = {"avx2", supported, TUTTI_REDUCE_TABLE};

#endif

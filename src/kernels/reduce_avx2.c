/* Reduction loops for AVX2 and F16C; built with these instructions on, see src/CMakeLists.txt. */
#if defined(__x86_64__)

#if !defined(__AVX2__) || !defined(__F16C__)
#error "compile this file with -mavx2 -mf16c"
#endif

#include <cpuid.h>

#include "kernels/reduce_loops.h"

static bool supported(void) {
  unsigned eax, ebx, ecx, edx;
  /* clang 14 knows no __builtin_cpu_supports("f16c"). */
  return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) &&
         (ecx & bit_F16C) != 0;
}

const tuttiReduceLevel tuttiReduceAvx2 = {
    .name = "avx2",
    .supported = supported,
    .reduce = TUTTI_REDUCE_TABLE,
};

#else
typedef int tuttiReduceAvx2Empty; /* ISO C wants a declaration in every file */
#endif

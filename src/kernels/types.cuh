/* The element types that kernels are made for, in groups: each group of a kernel's types is
 * compiled by itself (src/CMakeLists.txt), as all of them in one file take minutes. */
#ifndef TUTTI_KERNELS_TYPES_CUH_
#define TUTTI_KERNELS_TYPES_CUH_

#include "kernels/reduce.cuh"
#include "tutti.h"

/* X(end of the enumerator, how it is computed with, reduces): Copies, which is no element type, is
 * what moves 8 bytes and reduces nothing. */
/* clang-format off */
#define TUTTI_GROUP_INT8(X)    X(Int8, Plain<int8_t>, true) X(Uint8, Plain<uint8_t>, true)
#define TUTTI_GROUP_INT32(X)   X(Int32, Plain<int32_t>, true) X(Uint32, Plain<uint32_t>, true)
#define TUTTI_GROUP_INT64(X)   X(Int64, Plain<int64_t>, true) X(Uint64, Plain<uint64_t>, true)
#define TUTTI_GROUP_E4M3(X)    X(Float8e4m3, E4m3, true)
#define TUTTI_GROUP_E5M2(X)    X(Float8e5m2, E5m2, true)
#define TUTTI_GROUP_FLOAT16(X) X(Float16, Float16, true) X(Bfloat16, Bfloat16, true)
#define TUTTI_GROUP_FLOAT32(X) X(Float32, Float32, true) X(Float64, Float64, true)
#define TUTTI_GROUP_COPIES(X)  X(Copies, Plain<uint64_t>, false)
/* clang-format on */
/* Those of elements, and all. */
#define TUTTI_GROUP_TYPES(X)                                                                       \
  TUTTI_GROUP_INT8(X)                                                                              \
  TUTTI_GROUP_INT32(X)                                                                             \
  TUTTI_GROUP_INT64(X)                                                                             \
  TUTTI_GROUP_E4M3(X) TUTTI_GROUP_E5M2(X) TUTTI_GROUP_FLOAT16(X) TUTTI_GROUP_FLOAT32(X)
#define TUTTI_GROUP_ALL(X) TUTTI_GROUP_TYPES(X) TUTTI_GROUP_COPIES(X)

#define TUTTI_KERNEL_COUNT(NAME, T, REDUCES) +1
static_assert(TUTTI_GROUP_TYPES(TUTTI_KERNEL_COUNT) == tuttiNumTypes, "a type has no kernel");

#endif

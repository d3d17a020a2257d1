/* The element types that kernels are made for, in groups: the kernels of each group are compiled by
 * themselves (src/CMakeLists.txt), as all of them in one file take minutes. */
#ifndef TUTTI_KERNELS_TYPES_CUH_
#define TUTTI_KERNELS_TYPES_CUH_

#include "kernels/reduce.cuh"

/* X(end of the enumerator, how it is computed with): for unsigned integers too, see turnedBits. */
/* clang-format off */
#define TUTTI_GROUP_INT8(X)    X(Int8, Plain<int8_t>)
#define TUTTI_GROUP_INT32(X)   X(Int32, Plain<int32_t>)
#define TUTTI_GROUP_INT64(X)   X(Int64, Plain<int64_t>)
#define TUTTI_GROUP_E4M3(X)    X(Float8e4m3, E4m3)
#define TUTTI_GROUP_E5M2(X)    X(Float8e5m2, E5m2)
#define TUTTI_GROUP_FLOAT16(X) X(Float16, Float16) X(Bfloat16, Bfloat16)
#define TUTTI_GROUP_FLOAT32(X) X(Float32, Float32) X(Float64, Float64)
/* clang-format on */

#endif

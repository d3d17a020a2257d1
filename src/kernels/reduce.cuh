/* Arithmetic of one word (8 bytes) of elements, for each element type: the same results as
 * reduce.h's on the host, bit for bit. */
#ifndef TUTTI_KERNELS_REDUCE_CUH_
#define TUTTI_KERNELS_REDUCE_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

#include "collectives/signature.h"

/* How an element is read into what is computed with, and written back. NaN is written as the
 * type's positive quiet NaN. */
template <typename E> struct Plain { /* computed with as it is */
  using Element = E;
  using Value = E;
  static __device__ E get(E e) { return e; }
  static __device__ E put(E v) { return v; }
};
struct Float32 : Plain<float> {
  static __device__ float put(float v) { return v != v ? __int_as_float(0x7fc00000) : v; }
};
struct Float64 : Plain<double> {
  static __device__ double put(double v) {
    return v != v ? __longlong_as_double(0x7ff8000000000000) : v;
  }
};
struct Float16 {
  using Element = uint16_t;
  using Value = float;
  static __device__ float get(uint16_t e) { return __half2float(__ushort_as_half(e)); }
  static __device__ uint16_t put(float v) {
    return v != v ? 0x7e00 : __half_as_ushort(__float2half_rn(v));
  }
};
struct Bfloat16 {
  using Element = uint16_t;
  using Value = float;
  static __device__ float get(uint16_t e) { return __uint_as_float((uint32_t)e << 16); }
  static __device__ uint16_t put(float v) {
    return v != v ? 0x7fc0 : __bfloat16_as_ushort(__float2bfloat16_rn(v));
  }
};
template <__nv_fp8_interpretation_t kind, uint8_t nan> struct Float8 {
  using Element = uint8_t;
  using Value = float;
  static __device__ float get(uint8_t e) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
    /* The headers' way for GPUs without such an instruction has loops, and is long. E5M2 is the
     * upper half of a float16; E4M3 that of one whose exponent is 8 less, subnormal numbers too. */
    if (kind == __NV_E5M2) return __half2float(__ushort_as_half((uint16_t)(e << 8)));
    if ((e & 0x7f) == 0x7f) return __int_as_float(0x7fc00000);
    return 256 * __half2float(__ushort_as_half((uint16_t)((e & 0x80) << 8 | (e & 0x7f) << 7)));
#else
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(e, kind)));
#endif
  }
  static __device__ uint8_t put(float v) {
    return v != v ? nan : __nv_cvt_float_to_fp8(v, __NV_NOSAT, kind);
  }
};

using E4m3 = Float8<__NV_E4M3, 0x7f>;
using E5m2 = Float8<__NV_E5M2, 0x7e>;

/* Integers wrap as unsigned numbers do. */
template <typename V> __device__ inline V addValues(V a, V b) {
  using Wrapping = std::make_unsigned_t<V>;
  return (V)((Wrapping)a + (Wrapping)b);
}
template <typename V> __device__ inline V multiplyValues(V a, V b) {
  using Wrapping = std::make_unsigned_t<V>;
  return (V)((Wrapping)a * (Wrapping)b);
}
/* No fused multiply-add: one rounding each, as on the host. */
__device__ inline float addValues(float a, float b) {
  return __fadd_rn(a, b);
}
__device__ inline double addValues(double a, double b) {
  return __dadd_rn(a, b);
}
__device__ inline float multiplyValues(float a, float b) {
  return __fmul_rn(a, b);
}
__device__ inline double multiplyValues(double a, double b) {
  return __dmul_rn(a, b);
}

template <typename T> struct Word {
  static constexpr int N = 8 / sizeof(typename T::Element);
  using Value = typename T::Value;
  Value v[N];

  static __device__ Word unpack(uint64_t bits) {
    typename T::Element e[N];
    memcpy(e, &bits, sizeof e);
    Word w;
#pragma unroll
    for (int i = 0; i < N; i++)
      w.v[i] = T::get(e[i]);
    return w;
  }
  __device__ uint64_t pack() const {
    typename T::Element e[N];
#pragma unroll
    for (int i = 0; i < N; i++)
      e[i] = T::put(v[i]);
    uint64_t bits;
    memcpy(&bits, e, sizeof bits);
    return bits;
  }
  __device__ void combine(const Word &o, tuttiRedOp_t op) {
    switch (op) {
    case tuttiProd:
#pragma unroll
      for (int i = 0; i < N; i++)
        v[i] = multiplyValues(v[i], o.v[i]);
      break;
    case tuttiMax: /* a NaN in either wins */
#pragma unroll
      for (int i = 0; i < N; i++)
        v[i] = v[i] > o.v[i] || v[i] != v[i] ? v[i] : o.v[i];
      break;
    case tuttiMin:
#pragma unroll
      for (int i = 0; i < N; i++)
        v[i] = v[i] < o.v[i] || v[i] != v[i] ? v[i] : o.v[i];
      break;
    default:
#pragma unroll
      for (int i = 0; i < N; i++)
        v[i] = addValues(v[i], o.v[i]);
    }
  }
  __device__ void scale(Value by) {
#pragma unroll
    for (int i = 0; i < N; i++)
      v[i] = multiplyValues(v[i], by);
  }
  /* Narrow integers in the width that holds both operands. */
  __device__ void divide(int by) {
#pragma unroll
    for (int i = 0; i < N; i++)
      v[i] = (Value)(v[i] / (std::common_type_t<Value, int>)by);
  }
};

#endif

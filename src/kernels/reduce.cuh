/* Arithmetic of one word (8 bytes) of elements, for each element type: the same results as
 * reduce.h's on the host, bit for bit. */
#ifndef TUTTI_KERNELS_REDUCE_CUH_
#define TUTTI_KERNELS_REDUCE_CUH_

#include <stdint.h>
#include <string.h>

#include <type_traits>

#include "collectives/signature.h"
#include "kernels/ptx.cuh"

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
  static __device__ float get(uint16_t e) { return float16ToFloat(e); }
  static __device__ uint16_t put(float v) { return v != v ? 0x7e00 : floatToFloat16(v); }
};
struct Bfloat16 {
  using Element = uint16_t;
  using Value = float;
  static __device__ float get(uint16_t e) { return __uint_as_float((uint32_t)e << 16); }
  static __device__ uint16_t put(float v) { return v != v ? 0x7fc0 : floatToBfloat16(v); }
};

/* Float32 to an 8-bit float, where the GPU cannot; not for NaN. Magnitudes of `overflow` and above,
 * as its code, become that code. */
template <int mantissa, int bias, uint32_t overflow>
__device__ inline uint8_t narrowToFloat8(float v) {
  constexpr int shift = 23 - mantissa;
  uint32_t bits = __float_as_uint(v), magnitude = bits & 0x7fffffff, code;
  if (magnitude < (128 - bias) << 23) {
    /* Added to this power of two, a subnormal is rounded at its own last place. */
    constexpr uint32_t align = (127 - bias + shift + 1) << 23;
    code = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), __uint_as_float(align))) - align;
  } else {
    uint32_t normal = magnitude - ((127 - bias) << 23);
    code = (normal + ((1 << (shift - 1)) - 1) + (normal >> shift & 1)) >> shift;
  }
  return (uint8_t)((code < overflow ? code : overflow) | bits >> 24 & 0x80);
}

/* Of OCP FP8. GPUs narrow to the greatest number, of which the next code is what an overflow gives:
 * NaN, as there is no infinity. */
struct E4m3 {
  using Element = uint8_t;
  using Value = float;
#if __CUDA_ARCH__ >= 890
  static __device__ float get(uint8_t e) {
    return float16ToFloat(e4m3ToFloat16(e));
  }
  static __device__ uint8_t put(float v) {
    if (v != v) return 0x7f;
    return (uint8_t)(floatToE4m3(v) + (fabsf(v) > 464)); /* half way to 480 rounds to even: 448 */
  }
#else
  /* A float16 whose exponent is 8 less, subnormal numbers too. */
  static __device__ float get(uint8_t e) {
    if ((e & 0x7f) == 0x7f) return __int_as_float(0x7fc00000);
    return 256 * float16ToFloat((uint16_t)((e & 0x80) << 8 | (e & 0x7f) << 7));
  }
  static __device__ uint8_t put(float v) {
    return v != v ? 0x7f : narrowToFloat8<3, 7, 0x7f>(v);
  }
#endif
};
struct E5m2 { /* the upper half of a float16 */
  using Element = uint8_t;
  using Value = float;
  static __device__ float get(uint8_t e) { return float16ToFloat((uint16_t)(e << 8)); }
#if __CUDA_ARCH__ >= 890
  static __device__ uint8_t put(float v) {
    if (v != v) return 0x7e;
    return (uint8_t)(floatToE5m2(v) + (fabsf(v) >= 61440)); /* half way to 65536: infinity */
  }
#else
  static __device__ uint8_t put(float v) {
    return v != v ? 0x7e : narrowToFloat8<2, 15, 0x7c>(v);
  }
#endif
};

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

__device__ inline float divideValue(float v, int by, bool) {
  return v / (float)by;
}
__device__ inline double divideValue(double v, int by, bool) {
  return v / (double)by;
}
/* In the width that holds both operands. */
template <typename V> __device__ inline V divideValue(V v, int by, bool isUnsigned) {
  using Wide = std::common_type_t<V, int>;
  using Magnitude = std::make_unsigned_t<Wide>;
  Wide wide = isUnsigned ? (Wide)(std::make_unsigned_t<V>)v : (Wide)v;
  bool negative = !isUnsigned && wide < 0;
  Magnitude quotient = (negative ? -(Magnitude)wide : (Magnitude)wide) / (Magnitude)by;
  return (V)(negative ? -quotient : quotient);
}

/* Unsigned integers are computed with as signed ones of their size: the bits of sums and products
 * are the same. Those to be compared are brought in order by turning their highest bits over, which
 * this has set in a word. */
template <typename T, class Args> __device__ uint64_t turnedBits(const Args &a) {
  if (!std::is_integral_v<typename T::Value>) return 0;
  if (!a.isUnsigned || (a.op != tuttiMax && a.op != tuttiMin)) return 0;
  switch (sizeof(typename T::Element)) {
  case 1:
    return 0x8080808080808080;
  case 4:
    return 0x8000000080000000;
  default:
    return 0x8000000000000000;
  }
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
  /* With isUnsigned the numbers are, though their type here is not. */
  __device__ void divide(int by, bool isUnsigned) {
#pragma unroll
    for (int i = 0; i < N; i++)
      v[i] = divideValue(v[i], by, isUnsigned);
  }
};

#endif

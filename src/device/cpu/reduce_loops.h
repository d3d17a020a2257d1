/* The reduction loops of one level, written with the vector extensions that gcc and clang share:
 * the width is what the including file is compiled for, the source and the bits are the same for
 * all. Included once by each reduce_<level>.c, which must be compiled without contraction of a
 * multiplication and an addition into one (-ffp-contract=off) and with integers that wrap
 * (-fwrapv). */
#ifndef TUTTI_DEVICE_CPU_REDUCE_LOOPS_H_
#define TUTTI_DEVICE_CPU_REDUCE_LOOPS_H_

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/stream.h"
#include "collectives/signature.h"
#include "device/cpu/reduce_level.h"

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
/* gcc 12's -fanalyzer compares what a vector is shifted by to the number of its elements, where the
 * bits of one are meant. */
#pragma GCC diagnostic ignored "-Wanalyzer-shift-count-overflow"
#endif

#if defined(__AVX512F__)
#include <immintrin.h>
#define VECTOR_BYTES 64
#elif defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

#define INLINE           static inline __attribute__((always_inline))
#define VECTOR(t, bytes) __attribute__((vector_size(bytes))) t

#define TILE 4 /* vectors computed side by side, in registers */

/* As many lanes as a vector has floats. */
typedef VECTOR(float, VECTOR_BYTES) floatV;
typedef VECTOR(int32_t, VECTOR_BYTES) intV;
typedef VECTOR(uint32_t, VECTOR_BYTES) wordV;
typedef VECTOR(uint16_t, VECTOR_BYTES / 2) shortV;
typedef VECTOR(uint8_t, VECTOR_BYTES / 4) byteV;

/* mask ? a : b; a mask's lanes are 0 or -1. */
#define SELECT(mask, a, b) (((a) & (mask)) | ((b) & ~(mask)))
/* The mask of the lanes that hold no NaN; isnan() takes no vectors. */
#define IS_NUMBER(v) ((v) == (v)) /* NOLINT(misc-redundant-expression) */

/* ---- what the levels do with different instructions -------------------------------------------
 * Unsigned lanes are extended by zeros; lanes to be truncated fit.
 * fromFloat16: float16 to float32. The portable form takes subnormals through an integer
 * conversion, not through float32 subnormals: like the instruction, it keeps them in flush-to-zero
 * mode. */
#if VECTOR_BYTES == 64
INLINE floatV fromFloat16(shortV h) {
  return (floatV)_mm512_cvtph_ps((__m256i)h);
}
INLINE shortV extend8(byteV b) {
  return (shortV)_mm256_cvtepu8_epi16((__m128i)b);
}
INLINE wordV extend16(shortV h) {
  return (wordV)_mm512_cvtepu16_epi32((__m256i)h);
}
INLINE shortV truncate16(intV x) {
  return (shortV)_mm512_cvtepi32_epi16((__m512i)x);
}
INLINE byteV truncate8(intV x) {
  return (byteV)_mm512_cvtepi32_epi8((__m512i)x);
}
#elif VECTOR_BYTES == 32
INLINE floatV fromFloat16(shortV h) {
  return (floatV)_mm256_cvtph_ps((__m128i)h);
}
INLINE shortV extend8(byteV b) {
  return (shortV)_mm_cvtepu8_epi16(_mm_cvtsi64_si128((int64_t)b));
}
INLINE wordV extend16(shortV h) {
  return (wordV)_mm256_cvtepu16_epi32((__m128i)h);
}
INLINE shortV truncate16(intV x) {
  __m256i halves = _mm256_packus_epi32((__m256i)x, (__m256i)x);
  return (shortV)_mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0x08));
}
INLINE byteV truncate8(intV x) {
  __m128i words = (__m128i)truncate16(x);
  return (byteV)_mm_cvtsi128_si64(_mm_packus_epi16(words, words));
}
#else
INLINE shortV extend8(byteV b) {
  return __builtin_convertvector(b, shortV);
}
INLINE wordV extend16(shortV h) {
  return __builtin_convertvector(h, wordV);
}
INLINE floatV fromFloat16(shortV h) {
  intV x = (intV)extend16(h);
  intV magnitude = x & 0x7fff;
  intV normal = (magnitude << 13) + (112 << 23);
  normal += (magnitude >= 0x7c00) & (112 << 23); /* infinity and NaN keep the highest exponent */
  intV subnormal = (intV)(__builtin_convertvector(magnitude, floatV) * 0x1p-24f);
  intV sign = (intV)(((wordV)x & 0x8000) << 16);
  return (floatV)(SELECT(magnitude < 0x0400, subnormal, normal) | sign);
}
INLINE shortV truncate16(intV x) {
  return __builtin_convertvector(x, shortV);
}
INLINE byteV truncate8(intV x) {
  return __builtin_convertvector(x, byteV);
}
#endif

/* ---- float32 to 16- and 8-bit floats: one rounding to nearest even ----------------------------
 * `mantissa` and `bias` describe the narrow format. Magnitudes of `overflow` and above, as its
 * code, become that code. A NaN becomes `nan`. `drop` brings float32's sign bit to its place. */
INLINE intV narrow(floatV v, int mantissa, int bias, int overflow, int nan, int drop) {
  const int shift = 23 - mantissa;
  intV bits = (intV)v;
  intV magnitude = bits & 0x7fffffff;
  intV normal = magnitude - ((127 - bias) << 23);
  normal = (normal + ((1 << (shift - 1)) - 1) + ((normal >> shift) & 1)) >> shift;
  /* Added to this power of two, a subnormal is rounded by the FPU at its own last place. */
  const intV align = (intV){} + ((127 - bias + shift + 1) << 23);
  intV subnormal = (intV)((floatV)magnitude + (floatV)align) - align;
  intV code = SELECT(magnitude < ((128 - bias) << 23), subnormal, normal);
  code = SELECT(code < overflow, code, (intV){} + overflow);
  code |= (intV)(((wordV)bits & 0x80000000) >> drop);
  return SELECT(magnitude > 0x7f800000, (intV){} + nan, code);
}

INLINE shortV toFloat16(floatV v) {
#if VECTOR_BYTES == 64
  v = (floatV)SELECT(v == v, (intV)v, (intV){} + 0x7fc00000);
  return (shortV)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif VECTOR_BYTES == 32
  v = (floatV)SELECT(v == v, (intV)v, (intV){} + 0x7fc00000);
  return (shortV)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  return truncate16(narrow(v, 10, 15, 0x7c00, 0x7e00, 16));
#endif
}

INLINE floatV fromBfloat16(shortV b) {
  return (floatV)(extend16(b) << 16);
}
INLINE shortV toBfloat16(floatV v) {
  wordV bits = (wordV)v;
  intV rounded = (intV)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  return truncate16(SELECT(v == v, rounded, (intV){} + 0x7fc0));
}

/* As a float16 with the same bits the value is 2^8 times smaller, subnormals too. */
INLINE floatV fromFloat8e4m3(byteV b) {
  shortV x = extend8(b);
  shortV magnitude = (x & 0x7f) << 7;
  shortV isNan = (shortV)(magnitude == (0x7f << 7));
  return fromFloat16(SELECT(isNan, (shortV){} + 0x7e00, magnitude | ((x & 0x80) << 8))) * 256.0f;
}
INLINE byteV toFloat8e4m3(floatV v) {
  return truncate8(narrow(v, 3, 7, 0x7f, 0x7f, 24));
}

/* The upper half of a float16. */
INLINE floatV fromFloat8e5m2(byteV b) {
  return fromFloat16(extend8(b) << 8);
}
INLINE byteV toFloat8e5m2(floatV v) {
  return truncate8(narrow(v, 2, 15, 0x7c, 0x7e, 24));
}

/* ---- one function per type ------------------------------------------------------------------- */

#define IS_FLOAT 0

#define TYPE    Int8
#define ELEMENT int8_t
#include "device/cpu/reduce_type.h"

#define TYPE    Uint8
#define ELEMENT uint8_t
#include "device/cpu/reduce_type.h"

#define TYPE    Int32
#define ELEMENT int32_t
#include "device/cpu/reduce_type.h"

#define TYPE    Uint32
#define ELEMENT uint32_t
#include "device/cpu/reduce_type.h"

#define TYPE    Int64
#define ELEMENT int64_t
#include "device/cpu/reduce_type.h"

#define TYPE    Uint64
#define ELEMENT uint64_t
#include "device/cpu/reduce_type.h"

#undef IS_FLOAT
#define IS_FLOAT 1

#define TYPE    Float32
#define ELEMENT float
#include "device/cpu/reduce_type.h"

#define TYPE    Float64
#define ELEMENT double
#include "device/cpu/reduce_type.h"

/* NARROWED: the element type has its own conversions from and to float32 lanes. */
#define NARROWED

#define TYPE    Float16
#define ELEMENT uint16_t
#include "device/cpu/reduce_type.h"

#define TYPE    Bfloat16
#define ELEMENT uint16_t
#include "device/cpu/reduce_type.h"

#define TYPE    Float8e4m3
#define ELEMENT uint8_t
#include "device/cpu/reduce_type.h"

#define TYPE    Float8e5m2
#define ELEMENT uint8_t
#include "device/cpu/reduce_type.h"

/* By tuttiDataType_t. */
#define REDUCE_ROW(type, name, bytes) [tutti##type] = reduce##type,
#define TUTTI_REDUCE_TABLE                                                                         \
  { TUTTI_TYPES(REDUCE_ROW) }

#endif

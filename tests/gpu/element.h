/* Elements of all types: random ones, and what collectives make of them, in float64 or exact. */
#ifndef TUTTI_TESTS_GPU_ELEMENT_H_
#define TUTTI_TESTS_GPU_ELEMENT_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "collectives/signature.h"
#include "device/cpu/reduce.h"

constexpr int kPreMulHost = tuttiNumOps, kPreMulDevice = tuttiNumOps + 1, kOps = tuttiNumOps + 2;

/* f for float types, i (sign- or zero-extended) for integer types. */
struct Element {
  double f;
  uint64_t i;
};

inline bool isFloat(int type) {
  return type >= tuttiFloat16;
}
inline bool isSigned(int type) {
  return type == tuttiInt8 || type == tuttiInt32 || type == tuttiInt64;
}

inline Element loadElement(int type, const void *at) {
  if (isFloat(type)) return {tuttiFloatToDouble((tuttiDataType_t)type, at), 0};
  size_t size = tuttiTypeSize(type);
  uint64_t v = 0;
  memcpy(&v, at, size);
  unsigned shift = (unsigned)(64 - 8 * size);
  v <<= shift;
  return {0, isSigned(type) ? (uint64_t)((int64_t)v >> shift) : v >> shift};
}
inline void storeElement(int type, Element e, void *at) {
  if (isFloat(type))
    tuttiFloatFromDouble((tuttiDataType_t)type, e.f, at);
  else
    memcpy(at, &e.i, tuttiTypeSize(type));
}
/* As the type keeps it. */
inline Element rounded(int type, Element e) {
  uint64_t bits[1] = {0};
  storeElement(type, e, bits);
  return loadElement(type, bits);
}

inline uint64_t randomBits(uint64_t a, uint64_t b) {
  uint64_t h = (a + 1) * 0x9e3779b97f4a7c15u ^ (b + 1) * 0xc2b2ae3d27d4eb4fu;
  h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
  return h ^ h >> 32;
}

/* Element i of rank r's input. Integers are small where a sum is divided, else any. */
inline Element inputElement(int type, int op, int r, uint64_t i) {
  uint64_t h = randomBits((uint64_t)r * 977 + (uint64_t)type * 31 + (uint64_t)op, i);
  if (!isFloat(type)) {
    if (op != tuttiAvg) return rounded(type, {0, h});
    return {0, isSigned(type) ? h % 15 - 7 : h % 15};
  }
  double unit = (double)(h >> 12) / (double)((uint64_t)1 << 52);
  if (op == tuttiProd) return rounded(type, {(h & 1 ? 1 : -1) * (0.5 + unit), 0});
  return rounded(type, {unit * 4 - 2, 0});
}

/* What PreMulSum multiplies rank r's input with; every type has it. */
inline Element scalarOf(int r) {
  return {(r + 1) * 0.5, (uint64_t)r + 1};
}

struct Reduced {
  Element value;
  double magnitude; /* of the operands, for what float32 and float64 lose on the way */
};

/* The reduction of element i over n ranks. */
inline Reduced reducedElement(int type, int op, int n, uint64_t i) {
  Element sum = {0, 0};
  double magnitude = 0;
  for (int r = 0; r < n; r++) {
    Element x = inputElement(type, op, r, i);
    if (op >= tuttiNumOps) {
      x.f *= scalarOf(r).f;
      x.i *= scalarOf(r).i;
    }
    magnitude += fabs(x.f);
    bool less = isFloat(type)    ? x.f < sum.f
                : isSigned(type) ? (int64_t)x.i < (int64_t)sum.i
                                 : x.i < sum.i;
    if (r == 0)
      sum = x;
    else if (op == tuttiProd)
      sum = {sum.f * x.f, sum.i * x.i};
    else if (op == tuttiMin || op == tuttiMax)
      sum = less == (op == tuttiMin) ? x : sum;
    else
      sum = {sum.f + x.f, sum.i + x.i};
  }
  if (op == tuttiAvg) {
    sum.f /= n;
    sum.i = isSigned(type) ? (uint64_t)((int64_t)sum.i / n) : sum.i / (uint64_t)n;
  }
  if (!isFloat(type)) sum = rounded(type, sum);
  return {sum, magnitude};
}

/* Rounded once to the type, after float32 (float64) has rounded at each operand; operands that were
 * multiplied may travel in the type. */
inline bool nearEnough(int type, int op, Element got, const Reduced &want) {
  if (!isFloat(type)) return got.i == want.value.i;
  double half = 0, least = 0, way = 0x1p-21;
  if (type == tuttiFloat8e5m2) half = 0x1p-3, least = 0x1p-17;
  if (type == tuttiFloat8e4m3) half = 0x1p-4, least = 0x1p-10;
  if (type == tuttiBfloat16) half = 0x1p-8;
  if (type == tuttiFloat16) half = 0x1p-11, least = 0x1p-25;
  if (type == tuttiFloat64) way = 0x1p-50;
  double size = fabs(want.value.f);
  if (op >= tuttiNumOps) way += half;
  return fabs(got.f - want.value.f) <=
         size * half * 1.0001 + least + way * (want.magnitude > size ? want.magnitude : size);
}

#endif

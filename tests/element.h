/* Elements of all types, and what collectives make of them, in float64 or exactly: the oracle for
 * everything that is not a plain number. Shares nothing with the library's own conversions. */
#ifndef TUTTI_TESTS_ELEMENT_H_
#define TUTTI_TESTS_ELEMENT_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "collectives/signature.h"
#include "oracle.h"

/* A narrow float format as the list of its non-negative numbers. */
struct Narrow {
  int mantissa, bias;
  uint32_t greatest; /* code of the greatest finite number */
  uint32_t overflow, nan, sign;
  std::vector<double> numbers; /* by code; the last one is the first too large */

  Narrow(int m, int b, uint32_t g, uint32_t o, uint32_t n, uint32_t s)
      : mantissa(m), bias(b), greatest(g), overflow(o), nan(n), sign(s) {
    for (uint32_t code = 0; code <= greatest + 1; code++) {
      int exponent = (int)(code >> m);
      double fraction = (code & ((1u << m) - 1)) / (double)(1u << m);
      numbers.push_back(exponent == 0 ? std::ldexp(fraction, 1 - b)
                                      : std::ldexp(1 + fraction, exponent - b));
    }
  }
  double decode(uint32_t code) const {
    uint32_t magnitude = code & (sign - 1);
    double v = magnitude <= greatest                      ? numbers[magnitude]
               : magnitude == overflow && overflow != nan ? INFINITY
                                                          : NAN;
    return code & sign ? -v : v;
  }
  uint32_t encode(double v) const {
    if (std::isnan(v)) return nan;
    uint32_t s = std::signbit(v) ? sign : 0;
    double a = std::fabs(v);
    uint32_t up = (uint32_t)(std::lower_bound(numbers.begin(), numbers.end(), a) - numbers.begin());
    if (up > greatest + 1) return s | overflow;
    uint32_t code = up;
    if (up > 0 && numbers[up] != a) {
      double below = a - numbers[up - 1], above = numbers[up] - a;
      if (below < above || (below == above && up % 2 == 1)) code = up - 1;
    }
    return s | (code > greatest ? overflow : code);
  }
};

inline const Narrow &narrowOf(int type) {
  static const Narrow half(10, 15, 0x7bff, 0x7c00, 0x7e00, 0x8000);
  static const Narrow bfloat(7, 127, 0x7f7f, 0x7f80, 0x7fc0, 0x8000);
  static const Narrow e4m3(3, 7, 0x7e, 0x7f, 0x7f, 0x80);
  static const Narrow e5m2(2, 15, 0x7b, 0x7c, 0x7e, 0x80);
  return type == tuttiFloat16      ? half
         : type == tuttiBfloat16   ? bfloat
         : type == tuttiFloat8e4m3 ? e4m3
                                   : e5m2;
}

inline bool isFloat(int type) {
  return type >= tuttiFloat16;
}
inline bool isSigned(int type) {
  return type == tuttiInt8 || type == tuttiInt32 || type == tuttiInt64;
}

/* f for float types, i (sign- or zero-extended) for integer types. */
struct Element {
  double f;
  uint64_t i;
};

inline Element loadElement(int type, const void *at) {
  if (type == tuttiFloat32 || type == tuttiFloat64) {
    float single;
    double f;
    memcpy(&single, at, sizeof single);
    if (type == tuttiFloat32) return {single, 0};
    memcpy(&f, at, sizeof f);
    return {f, 0};
  }
  const size_t size = tuttiTypeSize(type);
  uint64_t v = 0;
  memcpy(&v, at, size);
  if (isFloat(type)) return {narrowOf(type).decode((uint32_t)v), 0};
  const unsigned shift = (unsigned)(64 - 8 * size);
  v <<= shift;
  return {0, isSigned(type) ? (uint64_t)((int64_t)v >> shift) : v >> shift};
}

inline void storeElement(int type, Element e, void *at) {
  const size_t size = tuttiTypeSize(type);
  const float single = (float)e.f;
  if (type == tuttiFloat64) {
    memcpy(at, &e.f, size);
  } else if (type == tuttiFloat32) {
    memcpy(at, &single, size);
  } else {
    if (isFloat(type)) e.i = narrowOf(type).encode(e.f);
    memcpy(at, &e.i, size);
  }
}

inline bool sameElement(int type, Element a, Element b) {
  return isFloat(type) ? a.f == b.f : a.i == b.i;
}

/* As the type keeps it. */
inline Element rounded(int type, Element e) {
  uint64_t bits[1] = {0};
  storeElement(type, e, bits);
  return loadElement(type, bits);
}

/* What a rank of a PreMulSum adds: the product with its own factor. */
inline Element product(Element x, Element factor) {
  return {x.f * factor.f, x.i * factor.i};
}

struct Reduced {
  Element value;    /* floats: not rounded to the type */
  double magnitude; /* of the operands, for what float32 and float64 lose on the way */
};

/* The reduction of `input(rank, index)`, an Element, over all ranks. */
template <typename Input>
Reduced reducedElement(int type, int op, int nranks, size_t index, const Input &input) {
  Reduced all = {{0, 0}, 0};
  if (isFloat(type)) {
    auto f = [&](int r, size_t at) {
      double x = input(r, at).f;
      all.magnitude += std::fabs(x);
      return x;
    };
    all.value.f = oracle::reduced(nranks, index, op, f);
    return all;
  }
  /* Wrapped to the type before it is divided. */
  const int undivided = op == tuttiAvg ? (int)tuttiSum : op;
  auto i = [&](int r, size_t at) { return input(r, at).i; };
  auto s = [&](int r, size_t at) { return (int64_t)input(r, at).i; };
  all.value.i = isSigned(type) ? (uint64_t)oracle::reduced(nranks, index, undivided, s)
                               : oracle::reduced(nranks, index, undivided, i);
  all.value = rounded(type, all.value);
  if (op == tuttiAvg && isSigned(type)) all.value.i = (uint64_t)((int64_t)all.value.i / nranks);
  if (op == tuttiAvg && !isSigned(type)) all.value.i /= (uint64_t)nranks;
  return all;
}

/* The half of a unit in the last place, in parts of the number, and at least. */
struct HalfUlp {
  double part, least;
};
inline HalfUlp halfUlpOf(int type) {
  switch (type) {
  case tuttiFloat8e5m2:
    return {0x1p-3, 0x1p-17};
  case tuttiFloat8e4m3:
    return {0x1p-4, 0x1p-10};
  case tuttiBfloat16:
    return {0x1p-8, 0};
  case tuttiFloat16:
    return {0x1p-11, 0x1p-25};
  default:
    return {0, 0}; /* no more than is lost on the way */
  }
}

/* Rounded so often to the type, after float32 (float64) has rounded at each operand: last of all as
 * the result, before that as what some operands make, which is no larger than all without their
 * signs. Operands that were multiplied may travel in the type. Integers are exact. */
inline bool nearEnough(int type, bool multiplied, Element got, const Reduced &want,
                       int roundings = 1) {
  if (!isFloat(type)) return sameElement(type, got, want.value);
  const HalfUlp half = halfUlpOf(type);
  const double size = std::fabs(want.value.f), most = std::max(want.magnitude, size);
  const double way = (type == tuttiFloat64 ? 0x1p-50 : 0x1p-21) + (multiplied ? half.part : 0);
  const double rounded = size + (roundings - 1) * most;
  return std::fabs(got.f - want.value.f) <=
         rounded * half.part * 1.0001 + roundings * half.least + way * most;
}

#endif

/* The elements that tests on GPUs work with. */
#ifndef TUTTI_TESTS_GPU_OPERANDS_H_
#define TUTTI_TESTS_GPU_OPERANDS_H_

#include <cstdint>

#include "element.h"

constexpr int kPreMulHost = tuttiNumOps, kPreMulDevice = tuttiNumOps + 1, kOps = tuttiNumOps + 2;

inline uint64_t randomBits(uint64_t a, uint64_t b) {
  uint64_t h = (a + 1) * 0x9e3779b97f4a7c15u ^ (b + 1) * 0xc2b2ae3d27d4eb4fu;
  h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
  return h ^ h >> 32;
}

/* Element i of rank r's input. Integers are small where a sum is divided, else
 * any. */
inline Element inputElement(int type, int op, int r, uint64_t i) {
  uint64_t h = randomBits((uint64_t)r * 977 + (uint64_t)type * 31 + (uint64_t)op, i);
  if (!isFloat(type)) {
    /* A sum may wrap before it is divided: where the reference does so too, all bits count. */
    if (op != tuttiAvg || type == tuttiUint64) return rounded(type, {0, h});
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

/* Element i of what rank r adds to a reduction. */
inline Element operandOf(int type, int op, int r, uint64_t i) {
  Element x = inputElement(type, op, r, i);
  return op >= tuttiNumOps ? product(x, scalarOf(r)) : x;
}

#endif

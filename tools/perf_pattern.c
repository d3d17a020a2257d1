/* Inputs of the check, and what a collective must make of them. */
#include <string.h>
#include <strings.h>

#include "collectives/signature.h"
#include "device/cpu/reduce.h"
#include "perf.h"

enum { BLOCK = 512 }; /* elements */

const perfType perfTypes[tuttiNumTypes] = {
    [tuttiInt8] = {{"char"}, 1, PERF_SIGNED, 0},
    [tuttiUint8] = {{"byte"}, 1, PERF_UNSIGNED, 0},
    [tuttiInt32] = {{"int"}, 4, PERF_SIGNED, 0},
    [tuttiUint32] = {{"uint"}, 4, PERF_UNSIGNED, 0},
    [tuttiInt64] = {{"long"}, 8, PERF_SIGNED, 0},
    [tuttiUint64] = {{"ulong"}, 8, PERF_UNSIGNED, 0},
    [tuttiFloat16] = {{"half", "fp16"}, 2, PERF_FLOAT, 10},
    [tuttiFloat32] = {{"float", "fp32"}, 4, PERF_FLOAT, 23},
    [tuttiFloat64] = {{"double", "fp64"}, 8, PERF_FLOAT, 52},
    [tuttiBfloat16] = {{"bf16"}, 2, PERF_FLOAT, 7},
    [tuttiFloat8e4m3] = {{"f8e4m3", "fp8e4m3"}, 1, PERF_FLOAT, 3},
    [tuttiFloat8e5m2] = {{"f8e5m2", "fp8e5m2"}, 1, PERF_FLOAT, 2},
};

int perfTypeFind(const char *name) {
  for (int t = 0; t < tuttiNumTypes; t++) {
    if (strcasecmp(name, tuttiTypeNames[t]) == 0) return t;
    for (int a = 0; a < 3 && perfTypes[t].aliases[a] != NULL; a++)
      if (strcasecmp(name, perfTypes[t].aliases[a]) == 0) return t;
  }
  return -1;
}

/* ---- inputs --------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

/* splitmix64, a stream per (seed, rank); rank -1 is the stream that all ranks share. */
static uint64_t stream(const perfPattern *p, int rank) {
  return mix(p->seed ^ mix((uint64_t)rank + 2));
}

static inline uint64_t draw(uint64_t stream, size_t index) {
  return mix(stream + (uint64_t)index * 0x9e3779b97f4a7c15u);
}

/* 0 <= result < range; range below 2^32. */
static inline uint64_t below(uint64_t random, uint64_t range) {
  return (random >> 32) * range >> 32;
}

static uint64_t toBits(const perfPattern *p, double value) {
  uint64_t bits = 0; /* its first bytes are the low ones */
  tuttiFloatFromDouble((tuttiDataType_t)(p->type - perfTypes), value, &bits);
  return bits;
}

void perfPatternInit(perfPattern *p, tuttiDataType_t type, tuttiRedOp_t op, bool reduces,
                     int nranks, uint64_t seed) {
  const perfType *t = &perfTypes[type];
  bool isFloat = t->kind == PERF_FLOAT;
  *p = (perfPattern){.type = t, .op = op, .reduces = reduces, .nranks = nranks, .seed = seed};
  p->sign = (uint64_t)1 << (8 * t->size - 1);
  p->mask = p->sign | (p->sign - 1);
  p->addends = reduces && (op == tuttiAvg || (op == tuttiSum && isFloat));
  p->factors = reduces && op == tuttiProd && isFloat;
  if (isFloat) p->one = toBits(p, 1);
  uint64_t capacity = isFloat                  ? (uint64_t)2 << t->mantissaBits
                      : t->kind == PERF_SIGNED ? p->sign - 1
                                               : p->mask;
  p->active = capacity < (uint64_t)nranks ? (int)capacity : nranks;
  p->limit = capacity / (uint64_t)p->active;
  if (p->limit > INT32_MAX / 2) p->limit = INT32_MAX / 2;
}

/* Neither infinite nor NaN. */
static inline uint64_t toFinite(const perfPattern *p, uint64_t bits) {
  uint64_t unit = (uint64_t)1 << p->type->mantissaBits, special = (p->sign - 1) & ~(unit - 1);
  return (bits & special) == special ? bits & ~unit : bits;
}

/* One element of `rank` as a number: a small integer if it is an addend, else its bits. */
static inline uint64_t drawNumber(const perfPattern *p, int rank, uint64_t own, uint64_t common,
                                  size_t index) {
  uint64_t random = draw(own, index), n = (uint64_t)p->nranks;
  bool everyone = p->addends && p->active == p->nranks;
  if ((p->addends || p->factors) && !everyone) {
    /* Each element has other ranks that count. */
    uint64_t turn = ((uint64_t)rank + below(draw(common, index), n)) % n;
    if (p->factors && turn > 0) return p->one | (random & p->sign);
    if (p->addends && turn >= (uint64_t)p->active) return 0;
  }
  if (p->addends) {
    uint64_t negatives = p->type->kind == PERF_UNSIGNED ? 0 : p->limit;
    return below(random, negatives + p->limit + 1) - negatives;
  }
  uint64_t bits = random & p->mask;
  if (!p->reduces) return bits;
  if (p->type->kind == PERF_FLOAT) return toFinite(p, bits);
  return p->op == tuttiProd ? bits | 1 : bits; /* a product of even numbers soon is 0 */
}

static void drawNumbers(const perfPattern *p, int rank, size_t first, size_t n, uint64_t *out) {
  uint64_t own = stream(p, rank), common = stream(p, -1);
  for (size_t i = 0; i < n; i++)
    out[i] = drawNumber(p, rank, own, common, first + i);
}

/* ---- the reference of a reduction ----------------------------------------------------------- */

/* Grows with the number whose bits these are. */
static inline uint64_t orderOf(const perfPattern *p, uint64_t bits) {
  if (p->type->kind == PERF_UNSIGNED) return bits;
  if (p->type->kind == PERF_SIGNED) return bits ^ p->sign;
  return bits & p->sign ? ~bits & p->mask : bits | p->sign;
}

static inline uint64_t combine(const perfPattern *p, uint64_t a, uint64_t b) {
  if (p->op == tuttiMax) return orderOf(p, a) < orderOf(p, b) ? b : a;
  if (p->op == tuttiMin) return orderOf(p, a) < orderOf(p, b) ? a : b;
  if (p->op != tuttiProd) return a + b;
  if (!p->factors) return a * b;
  uint64_t magnitude = (a & ~p->sign) == p->one ? b : a; /* the other is 1 or -1 */
  return ((a ^ b) & p->sign) | (magnitude & ~p->sign);
}

/* The bits of an element. An average's sum is exact; float64 is divided as it is, the other floats
 * in float32, then rounded. */
static inline uint64_t elementOf(const perfPattern *p, uint64_t number, int divisor) {
  int64_t whole = (int64_t)number;
  if (!p->addends) return number & p->mask;
  if (p->type->kind == PERF_UNSIGNED) return number / (uint64_t)divisor & p->mask;
  if (p->type->kind == PERF_SIGNED) return (uint64_t)(whole / divisor) & p->mask;
  return toBits(p, p->type->size == 8 ? (double)whole / divisor
                                      : (double)((float)whole / (float)divisor));
}

/* Elements [first, first + n), of one period, of a rank's input, or of the reduction of all. */
static void expected(const perfPattern *p, int rank, size_t first, size_t n, uint64_t *out) {
  uint64_t more[BLOCK];
  bool reduced = rank == PERF_REDUCED;
  first %= PERF_PERIOD;
  drawNumbers(p, reduced ? 0 : rank, first, n, out);
  for (int r = 1; reduced && r < p->nranks; r++) {
    drawNumbers(p, r, first, n, more);
    for (size_t i = 0; i < n; i++)
      out[i] = combine(p, out[i], more[i]);
  }
  int divisor = reduced && p->op == tuttiAvg ? p->nranks : 1;
  for (size_t i = 0; i < n; i++)
    out[i] = elementOf(p, out[i], divisor);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Elements from `index` on that are drawn together: all of one period, at most BLOCK. */
static size_t blockOf(size_t index, size_t left) {
  size_t rest = PERF_PERIOD - index % PERF_PERIOD;
  if (rest < left) left = rest;
  return left < BLOCK ? left : BLOCK;
}

void perfPatternFill(const perfPattern *p, int rank, size_t first, size_t n, void *out) {
  uint64_t bits[BLOCK];
  size_t size = (size_t)p->type->size, drawn = n < PERF_PERIOD ? n : PERF_PERIOD;
  for (size_t i = 0, block; i < drawn; i += block) {
    block = blockOf(first + i, drawn - i);
    expected(p, rank, first + i, block, bits);
    for (size_t k = 0; k < block; k++)
      memcpy((char *)out + (i + k) * size, &bits[k], size);
  }
  for (size_t i = drawn, piece; i < n; i += piece) {
    piece = n - i < PERF_PERIOD ? n - i : PERF_PERIOD;
    memcpy((char *)out + i * size, out, piece * size);
  }
}

/* Elements [at, at + n) of `data`, at most a block, with those that are drawn for it. */
static void compareDrawn(const perfPattern *p, int rank, size_t index, size_t at, size_t n,
                         const char *data, perfMismatch *m) {
  uint64_t want[BLOCK], got = 0;
  size_t size = (size_t)p->type->size;
  /* Of a float's result, zeros of either sign are equal. */
  bool byValue = rank == PERF_REDUCED && p->type->kind == PERF_FLOAT;
  expected(p, rank, index, n, want);
  for (size_t k = 0; k < n; k++) {
    memcpy(&got, data + (at + k) * size, size);
    if (got == want[k] || (byValue && ((got | want[k]) & ~p->sign) == 0)) continue;
    if (m->wrong++ == 0) *m = (perfMismatch){1, at + k, got, want[k]};
  }
}

perfMismatch perfPatternCompare(const perfPattern *p, int rank, size_t first, size_t n,
                                const void *data) {
  perfMismatch m = {0, 0, 0, 0};
  size_t size = (size_t)p->type->size, period = PERF_PERIOD * size;
  for (size_t i = 0, block; i < n; i += block) {
    const char *at = (const char *)data + i * size;
    block = blockOf(first + i, n - i);
    /* As long as all was right, what equals the data a period before is right. */
    if (m.wrong == 0 && i >= PERF_PERIOD && memcmp(at, at - period, block * size) == 0) continue;
    compareDrawn(p, rank, first + i, i, block, data, &m);
  }
  return m;
}

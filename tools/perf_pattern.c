#include "perf_pattern.h"

#include <math.h>
#include <string.h>
#include <strings.h>

enum { BLOCK = 512 };

const perfType perfTypes[tuttiNumTypes] = {
    [tuttiInt8] = {"int8", {"char"}, 1, PERF_SIGNED, 0, 0},
    [tuttiUint8] = {"uint8", {"byte"}, 1, PERF_UNSIGNED, 0, 0},
    [tuttiInt32] = {"int32", {"int"}, 4, PERF_SIGNED, 0, 0},
    [tuttiUint32] = {"uint32", {"uint"}, 4, PERF_UNSIGNED, 0, 0},
    [tuttiInt64] = {"int64", {"long"}, 8, PERF_SIGNED, 0, 0},
    [tuttiUint64] = {"uint64", {"ulong"}, 8, PERF_UNSIGNED, 0, 0},
    [tuttiFloat16] = {"float16", {"half", "fp16"}, 2, PERF_FLOAT, 5, 10},
    [tuttiFloat32] = {"float32", {"float", "fp32"}, 4, PERF_FLOAT, 8, 23},
    [tuttiFloat64] = {"float64", {"double", "fp64"}, 8, PERF_FLOAT, 11, 52},
    [tuttiBfloat16] = {"bfloat16", {"bf16"}, 2, PERF_FLOAT, 8, 7},
    [tuttiFloat8e4m3] = {"float8e4m3", {"f8e4m3", "fp8e4m3"}, 1, PERF_FLOAT, 4, 3},
    [tuttiFloat8e5m2] = {"float8e5m2", {"f8e5m2", "fp8e5m2"}, 1, PERF_FLOAT, 5, 2},
};

const char *const perfOpNames[tuttiNumOps] = {
    [tuttiSum] = "sum", [tuttiProd] = "prod", [tuttiMax] = "max",
    [tuttiMin] = "min", [tuttiAvg] = "avg",
};

int perfTypeFind(const char *name) {
  for (int t = 0; t < tuttiNumTypes; t++) {
    if (strcasecmp(name, perfTypes[t].name) == 0) return t;
    for (int a = 0; a < 3 && perfTypes[t].aliases[a] != NULL; a++)
      if (strcasecmp(name, perfTypes[t].aliases[a]) == 0) return t;
  }
  return -1;
}

int perfOpFind(const char *name) {
  for (int op = 0; op < tuttiNumOps; op++)
    if (strcasecmp(name, perfOpNames[op]) == 0) return op;
  return -1;
}

/* ---- the bits of a number ------------------------------------------------------------------- */

#define DOUBLE_MANTISSA 52
#define DOUBLE_BIAS     1023

static uint64_t lowBits(int n) {
  return n >= 64 ? UINT64_MAX : ((uint64_t)1 << n) - 1;
}

static int bias(const perfType *t) {
  return (1 << (t->exponentBits - 1)) - 1;
}

uint64_t perfEncode(const perfType *t, double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint64_t sign = (bits >> 63) << (t->exponentBits + t->mantissaBits);
  uint64_t mantissa = bits & lowBits(DOUBLE_MANTISSA);
  int exponent = (int)(bits >> DOUBLE_MANTISSA & 0x7ff) - DOUBLE_BIAS + bias(t);
  if (exponent <= 0) return sign | (uint64_t)ldexp(fabs(value), bias(t) - 1 + t->mantissaBits);
  return sign | (uint64_t)exponent << t->mantissaBits |
         mantissa >> (DOUBLE_MANTISSA - t->mantissaBits);
}

/* The greatest exponent means infinity or NaN, but in float8e4m3, which has no infinity and where
 * only the greatest mantissa makes a NaN. */
static double decodeSpecial(const perfType *t, uint64_t sign, uint64_t mantissa) {
  if (t->exponentBits == 4) {
    if (mantissa == lowBits(t->mantissaBits)) return NAN;
    double value = ldexp(1 + ldexp((double)mantissa, -t->mantissaBits), 15 - bias(t));
    return sign ? -value : value;
  }
  if (mantissa != 0) return NAN;
  return sign ? -INFINITY : INFINITY;
}

double perfDecode(const perfType *t, uint64_t bits) {
  uint64_t mantissa = bits & lowBits(t->mantissaBits);
  uint64_t exponent = bits >> t->mantissaBits & lowBits(t->exponentBits);
  uint64_t sign = bits >> (t->exponentBits + t->mantissaBits) & 1;
  if (exponent == 0) {
    double value = ldexp((double)mantissa, 1 - bias(t) - t->mantissaBits);
    return sign ? -value : value;
  }
  if (exponent == lowBits(t->exponentBits)) return decodeSpecial(t, sign, mantissa);
  uint64_t wide = sign << 63 | (exponent - (uint64_t)bias(t) + DOUBLE_BIAS) << DOUBLE_MANTISSA |
                  mantissa << (DOUBLE_MANTISSA - t->mantissaBits);
  double value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

double perfRound(const perfType *t, double value) {
  if (t->mantissaBits == DOUBLE_MANTISSA || value == 0) return value;
  int exponent = ilogb(value), least = 1 - bias(t);
  if (exponent < least) exponent = least;
  return ldexp(nearbyint(ldexp(value, t->mantissaBits - exponent)), exponent - t->mantissaBits);
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

void perfPatternInit(perfPattern *p, tuttiDataType_t type, tuttiRedOp_t op, bool reduces,
                     int nranks, uint64_t seed) {
  const perfType *t = &perfTypes[type];
  *p = (perfPattern){.type = t, .op = op, .reduces = reduces, .nranks = nranks, .seed = seed};
  /* What the addends of one element may sum up to, or the exponents of its factors. */
  uint64_t capacity;
  if (t->kind == PERF_FLOAT && op == tuttiProd)
    capacity = (uint64_t)bias(t) - 1;
  else if (t->kind == PERF_FLOAT)
    capacity = (uint64_t)2 << t->mantissaBits;
  else
    capacity = lowBits(8 * t->size - (t->kind == PERF_SIGNED ? 1 : 0));
  p->active = capacity < (uint64_t)nranks ? (int)capacity : nranks;
  p->limit = capacity / (uint64_t)p->active;
  if (op == tuttiProd) p->limit = 1;
  if (p->limit > INT32_MAX / 2) p->limit = INT32_MAX / 2;
}

/* True for `active` of the ranks, others for each element. */
static inline bool isActive(const perfPattern *p, int rank, uint64_t common, size_t index) {
  if (p->active == p->nranks) return true;
  uint64_t turned = (uint64_t)rank + below(draw(common, index), (uint64_t)p->nranks);
  return turned % (uint64_t)p->nranks < (uint64_t)p->active;
}

/* Small whole numbers become elements of the type. */
static void encodeBlock(const perfType *t, size_t n, uint64_t *bits) {
  if (t->kind == PERF_FLOAT) {
    for (size_t i = 0; i < n; i++)
      bits[i] = perfEncode(t, (double)(int64_t)bits[i]);
  } else {
    for (size_t i = 0; i < n; i++)
      bits[i] &= lowBits(8 * t->size);
  }
}

static void drawAddends(const perfPattern *p, int rank, size_t first, size_t n, uint64_t *bits) {
  uint64_t own = stream(p, rank), common = stream(p, -1);
  uint64_t negatives = p->type->kind == PERF_UNSIGNED ? 0 : p->limit,
           range = negatives + p->limit + 1;
  for (size_t i = 0; i < n; i++)
    bits[i] = below(draw(own, first + i), range) - negatives;
  for (size_t i = 0; i < n && p->active < p->nranks; i++)
    if (!isActive(p, rank, common, first + i)) bits[i] = 0;
  encodeBlock(p->type, n, bits);
}

/* Powers of two with a sign; of each element one rank's factor also has a random mantissa, which
 * the others' leave as it is. */
static void drawFactors(const perfPattern *p, int rank, size_t first, size_t n, uint64_t *bits) {
  const perfType *t = p->type;
  uint64_t own = stream(p, rank), common = stream(p, -1);
  for (size_t i = 0; i < n; i++) {
    uint64_t random = draw(own, first + i), exponent = (uint64_t)bias(t);
    if (isActive(p, rank, common, first + i)) exponent += below(random, 3) - 1;
    bits[i] = (random & 1) << (t->exponentBits + t->mantissaBits) | exponent << t->mantissaBits;
    /* The low half, as isActive uses the high one. */
    if (below(draw(common, first + i) << 32, (uint64_t)p->nranks) == (uint64_t)rank)
      bits[i] |= random >> 1 & lowBits(t->mantissaBits);
  }
}

static void drawBits(const perfPattern *p, int rank, size_t first, size_t n, uint64_t *bits) {
  uint64_t own = stream(p, rank), mask = lowBits(8 * p->type->size);
  for (size_t i = 0; i < n; i++)
    bits[i] = draw(own, first + i) & mask;
  if (!p->reduces) return;
  if (p->op == tuttiProd) { /* odd: a product of even numbers soon is 0 */
    for (size_t i = 0; i < n; i++)
      bits[i] |= 1;
  }
  if (p->type->kind == PERF_FLOAT) { /* neither infinite nor NaN */
    uint64_t special = lowBits(p->type->exponentBits) << p->type->mantissaBits;
    for (size_t i = 0; i < n; i++)
      if ((bits[i] & special) == special) bits[i] &= ~((uint64_t)1 << p->type->mantissaBits);
  }
}

static void drawInput(const perfPattern *p, int rank, size_t first, size_t n, uint64_t *bits) {
  bool isFloat = p->type->kind == PERF_FLOAT;
  if (p->reduces && (p->op == tuttiAvg || (p->op == tuttiSum && isFloat)))
    drawAddends(p, rank, first, n, bits);
  else if (p->reduces && p->op == tuttiProd && isFloat)
    drawFactors(p, rank, first, n, bits);
  else
    drawBits(p, rank, first, n, bits);
}

/* ---- memory --------------------------------------------------------------------------------- */

#define STORE(width)                                                                               \
  do {                                                                                             \
    for (size_t i = 0; i < n; i++)                                                                 \
      ((uint##width##_t *)out)[i] = (uint##width##_t)bits[i];                                      \
  } while (0)

#define LOAD(width)                                                                                \
  do {                                                                                             \
    for (size_t i = 0; i < n; i++)                                                                 \
      bits[i] = ((const uint##width##_t *)data)[i];                                                \
  } while (0)

static void store(int size, const uint64_t *bits, size_t n, void *out) {
  switch (size) {
  case 1:
    STORE(8);
    return;
  case 2:
    STORE(16);
    return;
  case 4:
    STORE(32);
    return;
  default:
    STORE(64);
  }
}

static void load(int size, const void *data, size_t n, uint64_t *bits) {
  switch (size) {
  case 1:
    LOAD(8);
    return;
  case 2:
    LOAD(16);
    return;
  case 4:
    LOAD(32);
    return;
  default:
    LOAD(64);
  }
}

static size_t blockOf(size_t left) {
  return left < BLOCK ? left : BLOCK;
}

void perfPatternFill(const perfPattern *p, int rank, size_t first, size_t n, void *out) {
  uint64_t bits[BLOCK];
  for (size_t i = 0, block; i < n; i += block) {
    block = blockOf(n - i);
    drawInput(p, rank, first + i, block, bits);
    store(p->type->size, bits, block, (char *)out + i * (size_t)p->type->size);
  }
}

static void note(perfMismatch *m, size_t index, uint64_t got, uint64_t want) {
  if (m->wrong++ > 0) return;
  m->first = index;
  m->got = got;
  m->want = want;
}

perfMismatch perfPatternCompare(const perfPattern *p, int rank, size_t first, size_t n,
                                const void *data) {
  perfMismatch m = {0, 0, 0, 0};
  uint64_t want[BLOCK], got[BLOCK];
  for (size_t i = 0, block; i < n; i += block) {
    block = blockOf(n - i);
    drawInput(p, rank, first + i, block, want);
    load(p->type->size, (const char *)data + i * (size_t)p->type->size, block, got);
    for (size_t k = 0; k < block; k++)
      if (got[k] != want[k]) note(&m, i + k, got[k], want[k]);
  }
  return m;
}

/* ---- the reference of a reduction ----------------------------------------------------------- */

/* A number while it is reduced: the value of a float, or an integer in 64 bits, which a sum or
 * product modulo a smaller power of two survives. */
typedef union {
  double real;
  uint64_t whole;
} number;

static void decodeBlock(const perfType *t, size_t n, const uint64_t *bits, number *out) {
  int unused = 64 - 8 * t->size;
  for (size_t i = 0; i < n; i++) {
    if (t->kind == PERF_FLOAT)
      out[i].real = perfDecode(t, bits[i]);
    else if (t->kind == PERF_SIGNED)
      out[i].whole = (uint64_t)((int64_t)(bits[i] << unused) >> unused);
    else
      out[i].whole = bits[i];
  }
}

static inline number combine(const perfPattern *p, number a, number b) {
  bool isFloat = p->type->kind == PERF_FLOAT;
  bool less = isFloat                        ? a.real < b.real
              : p->type->kind == PERF_SIGNED ? (int64_t)a.whole < (int64_t)b.whole
                                             : a.whole < b.whole;
  if (p->op == tuttiMax) return less ? b : a;
  if (p->op == tuttiMin) return less ? a : b;
  if (p->op == tuttiProd)
    return isFloat ? (number){.real = a.real * b.real} : (number){.whole = a.whole * b.whole};
  return isFloat ? (number){.real = a.real + b.real} : (number){.whole = a.whole + b.whole};
}

/* The bits of the result. An average's sum is exact; float64 is divided as it is, the other floats
 * in float32, then rounded. */
static uint64_t encodeResult(const perfPattern *p, number n) {
  const perfType *t = p->type;
  bool average = p->op == tuttiAvg;
  if (t->kind == PERF_FLOAT) {
    if (average && t->size == 8) n.real /= p->nranks;
    if (average && t->size < 8) n.real = perfRound(t, (double)((float)n.real / (float)p->nranks));
    return perfEncode(t, n.real);
  }
  if (average && t->kind == PERF_SIGNED)
    n.whole = (uint64_t)((int64_t)n.whole / p->nranks);
  else if (average)
    n.whole /= (uint64_t)p->nranks;
  return n.whole & lowBits(8 * t->size);
}

perfMismatch perfPatternCompareReduced(const perfPattern *p, size_t first, size_t n,
                                       const void *data) {
  perfMismatch m = {0, 0, 0, 0};
  number acc[BLOCK], values[BLOCK];
  uint64_t bits[BLOCK];
  for (size_t i = 0, block; i < n; i += block) {
    block = blockOf(n - i);
    for (int r = 0; r < p->nranks; r++) {
      drawInput(p, r, first + i, block, bits);
      decodeBlock(p->type, block, bits, r == 0 ? acc : values);
      for (size_t k = 0; k < block && r > 0; k++)
        acc[k] = combine(p, acc[k], values[k]);
    }
    load(p->type->size, (const char *)data + i * (size_t)p->type->size, block, bits);
    for (size_t k = 0; k < block; k++) {
      uint64_t want = encodeResult(p, acc[k]);
      bool same = bits[k] == want;
      if (!same && p->type->kind == PERF_FLOAT) /* zeros of either sign */
        same = perfDecode(p->type, bits[k]) == perfDecode(p->type, want);
      if (!same) note(&m, i + k, bits[k], want);
    }
  }
  return m;
}

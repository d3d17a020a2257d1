/* The reduction loops against a reference that shares nothing with them: narrow floats are looked
 * up in tables, everything else is plain scalar C++. Every comparison is of bits. */
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "collectives/signature.h"
#include "device/cpu/reduce_level.h"
#include "element.h"
#include "sanitized.h"

namespace {

using Bytes = std::vector<uint8_t>;

/* ---- reference ------------------------------------------------------------------------------- */

template <class T> T apply(int op, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    if (op == tuttiProd) return (T)(U)((uint64_t)(U)a * (uint64_t)(U)b);
    if (op == tuttiMin) return std::min(a, b);
    if (op == tuttiMax) return std::max(a, b);
    return (T)(U)((uint64_t)(U)a + (uint64_t)(U)b);
  } else {
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    /* volatile: never contracted with a multiplication before it */
    volatile T r = op == tuttiProd  ? a * b
                   : op == tuttiMin ? (a < b ? a : b)
                   : op == tuttiMax ? (a > b ? a : b)
                                    : a + b;
    return r;
  }
}

template <class T> T scaled(T v, tuttiScalar s) {
  if constexpr (std::is_integral_v<T>) {
    return (T)((uint64_t)v * s.i);
  } else {
    volatile T r = v * (T)s.f;
    return r;
  }
}

template <class T> T divided(T v, int d) {
  if (d <= 1) return v;
  if constexpr (std::is_integral_v<T> && std::is_signed_v<T>)
    return (T)((int64_t)v / d);
  else if constexpr (std::is_integral_v<T>)
    return (T)((uint64_t)v / (uint64_t)d);
  else
    return v / (T)d;
}

template <class T> T load(const void *p, size_t i) {
  T v;
  memcpy(&v, (const uint8_t *)p + i * sizeof(T), sizeof(T));
  return v;
}

/* One result, given how element i of an operand is read as T. */
template <class T, class Read> T reduceOne(const tuttiReduceArgs &a, Read read) {
  T acc = read(0);
  if (a.premul == 1) acc = scaled(acc, a.scalar);
  for (int k = 1; k < a.nin; k++) {
    T x = read(k);
    if (a.premul == k + 1) x = scaled(x, a.scalar);
    acc = apply(a.op, acc, x);
  }
  return divided(acc, a.divide);
}

template <class T> void referenceNative(const tuttiReduceArgs &a, uint8_t *out) {
  for (size_t i = 0; i < a.count; i++) {
    T v = reduceOne<T>(a, [&](int k) { return load<T>(a.in[k], i); });
    if constexpr (std::is_floating_point_v<T>)
      if (std::isnan(v)) v = std::numeric_limits<T>::quiet_NaN();
    memcpy(out + i * sizeof(T), &v, sizeof(T));
  }
}

template <class Code> void referenceNarrow(const tuttiReduceArgs &a, uint8_t *out) {
  const Narrow &f = narrowOf(a.type);
  tuttiReduceArgs plain = a;
  plain.premul = 0; /* its product is rounded */
  for (size_t i = 0; i < a.count; i++) {
    float v = reduceOne<float>(plain, [&](int k) {
      auto x = (float)f.decode(load<Code>(a.in[k], i));
      return a.premul == k + 1 ? (float)f.decode(f.encode(scaled(x, a.scalar))) : x;
    });
    Code code = (Code)f.encode(v);
    memcpy(out + i * sizeof(Code), &code, sizeof(Code));
  }
}

void reference(const tuttiReduceArgs &a, uint8_t *out) {
  switch (a.type) {
  case tuttiInt8:
    return referenceNative<int8_t>(a, out);
  case tuttiUint8:
    return referenceNative<uint8_t>(a, out);
  case tuttiInt32:
    return referenceNative<int32_t>(a, out);
  case tuttiUint32:
    return referenceNative<uint32_t>(a, out);
  case tuttiInt64:
    return referenceNative<int64_t>(a, out);
  case tuttiUint64:
    return referenceNative<uint64_t>(a, out);
  case tuttiFloat32:
    return referenceNative<float>(a, out);
  case tuttiFloat64:
    return referenceNative<double>(a, out);
  case tuttiFloat16:
  case tuttiBfloat16:
    return referenceNarrow<uint16_t>(a, out);
  default:
    return referenceNarrow<uint8_t>(a, out);
  }
}

/* ---- helpers --------------------------------------------------------------------------------- */

std::vector<const tuttiReduceLevel *> levels() {
  std::vector<const tuttiReduceLevel *> usable;
  for (int i = 0; tuttiReduceLevels[i]; i++)
    if (tuttiReduceLevels[i]->supported()) usable.push_back(tuttiReduceLevels[i]);
  return usable;
}

/* Elements of all kinds: any bits (NaN, infinities, subnormals), and numbers of like size. */
Bytes randomElements(int type, size_t count, std::mt19937_64 &rng) {
  size_t size = tuttiTypeSize(type);
  Bytes b(count * size);
  for (size_t i = 0; i < count; i++) {
    uint64_t any = rng();
    memcpy(&b[i * size], &any, size);
    if (isFloat(type) && rng() % 4 != 0)
      tuttiFloatFromDouble((tuttiDataType_t)type, (double)(int64_t)(rng() % 4001) / 128 - 15,
                           &b[i * size]);
  }
  return b;
}

struct Case {
  tuttiReduceArgs args{};
  std::vector<Bytes> inputs;
  std::vector<const void *> in;

  Case(int type, int op, int nin, size_t count, std::mt19937_64 &rng) {
    for (int k = 0; k < nin; k++)
      inputs.push_back(randomElements(type, count, rng));
    for (Bytes &b : inputs)
      in.push_back(b.data());
    args.in = in.data();
    args.nin = nin;
    args.count = count;
    args.type = (tuttiDataType_t)type;
    args.op = (tuttiRedOp_t)op;
  }
  std::string text() const {
    return std::string(tuttiTypeName(args.type)) + " " + tuttiRedOpName(args.op) + " nin " +
           std::to_string(args.nin) + " nout " + std::to_string(args.nout) + " count " +
           std::to_string(args.count) + " premul " + std::to_string(args.premul) + " divide " +
           std::to_string(args.divide);
  }
  /* Runs it into nout guarded buffers; all must equal `want`, and nothing else be touched. */
  template <class Run> void check(const Bytes &want, int nout, const char *name, Run run) {
    constexpr size_t kGuard = 128;
    std::vector<Bytes> outputs(nout, Bytes(want.size() + 2 * kGuard, 0xa5));
    std::vector<void *> out;
    for (Bytes &b : outputs)
      out.push_back(b.data() + kGuard);
    args.out = out.data();
    args.nout = nout;
    run(&args);
    Bytes framed(kGuard, 0xa5);
    framed.insert(framed.end(), want.begin(), want.end());
    framed.resize(framed.size() + kGuard, 0xa5);
    for (const Bytes &b : outputs)
      ASSERT_TRUE(b == framed) << name << ": " << text();
  }
  Bytes expected() const {
    Bytes want(args.count * tuttiTypeSize(args.type));
    reference(args, want.data());
    return want;
  }
};

class Types : public testing::TestWithParam<int> {};

std::string typeName(const testing::TestParamInfo<int> &info) {
  return tuttiTypeName(info.param);
}

/* ---- tests ----------------------------------------------------------------------------------- */

TEST_P(Types, EveryOperationAndShape) {
  std::mt19937_64 rng(GetParam() + 1);
  const size_t counts[] = {0, 1, 2, 3, 7, 15, 16, 17, 31, 65, 127, 129, 255, 257, 1023};
  size_t next = 0;
  for (int op = tuttiSum; op < tuttiNumOps; op++)
    for (int nin = 1; nin <= 9; nin++)
      for (int nout = 0; nout <= 3; nout++)
        for (int variant = 0; variant < 5; variant++) {
          Case c(GetParam(), op, nin, counts[next++ % std::size(counts)], rng);
          if (op == tuttiSum && variant > 0) {
            c.args.premul = 1 + (int)(rng() % (unsigned)nin);
            if (isFloat(GetParam()))
              c.args.scalar.f = std::ldexp((double)(rng() % 1000) - 300, -7);
            else
              c.args.scalar.i = rng();
          }
          if (op == tuttiAvg) c.args.divide = (const int[]){2, 3, 7, 200, 100000}[variant];
          if (nin == 1 && c.args.premul == 0 && c.args.divide == 0) continue; /* Copies */
          Bytes want = c.expected();
          c.args.nstreams = (int)(next % (unsigned)(nout + 1));
          for (const tuttiReduceLevel *level : levels())
            ASSERT_NO_FATAL_FAILURE(c.check(want, nout, level->name, level->reduce[GetParam()]));
          ASSERT_NO_FATAL_FAILURE(c.check(want, nout, "chosen", tuttiReduceCopy));
        }
}

TEST_P(Types, ManyOperands) {
  std::mt19937_64 rng(7);
  for (int op : {tuttiSum, tuttiMax}) {
    Case c(GetParam(), op, 3000, 21, rng);
    Bytes want = c.expected();
    for (const tuttiReduceLevel *level : levels())
      ASSERT_NO_FATAL_FAILURE(c.check(want, 2, level->name, level->reduce[GetParam()]));
  }
}

TEST_P(Types, OutputMayBeAnOperand) {
  std::mt19937_64 rng(8);
  for (const tuttiReduceLevel *level : levels())
    for (int nin = 2; nin <= 4; nin++)
      for (int same = 0; same < nin; same++) {
        Case c(GetParam(), tuttiSum, nin, 1021, rng);
        Bytes want = c.expected(), other(want.size());
        void *out[] = {c.inputs[same].data(), other.data()};
        c.args.out = out;
        c.args.nout = 2;
        level->reduce[GetParam()](&c.args);
        ASSERT_TRUE(c.inputs[same] == want) << level->name << " nin " << nin << " same " << same;
        ASSERT_TRUE(other == want);
      }
}

TEST_P(Types, CopiesAreBytes) {
  std::mt19937_64 rng(9);
  for (size_t count : {1, 5, 4096, 40001}) {
    for (int divide : {0, 1}) {
      Case c(GetParam(), tuttiSum, 1, count, rng);
      c.args.divide = divide;
      Bytes want = c.inputs[0];
      for (int nout = 0; nout <= 3; nout++)
        for (int streams = 0; streams <= nout; streams++) {
          c.args.nstreams = streams;
          ASSERT_NO_FATAL_FAILURE(c.check(want, nout, "copy", tuttiReduceCopy));
        }
      void *out[] = {c.inputs[0].data()};
      c.args.out = out;
      c.args.nout = 1;
      tuttiReduceCopy(&c.args);
      EXPECT_TRUE(c.inputs[0] == want);
    }
  }
}

/* At every distance from a vector's boundary. */
TEST(Copies, PastTheCaches) {
  std::mt19937_64 rng(11);
  Bytes in = randomElements(tuttiUint8, 200, rng);
  for (size_t at = 0; at < 16; at++)
    for (size_t count = 1; count < 100; count++) {
      Bytes out(200, 0xa5), want = out;
      memcpy(&want[at + 8], &in[at / 2], count);
      const void *from[] = {&in[at / 2]};
      void *to[] = {&out[at + 8]};
      tuttiReduceArgs args{};
      args.in = from, args.nin = 1, args.out = to, args.nout = 1;
      args.count = count, args.type = tuttiUint8, args.nstreams = 1;
      tuttiReduceCopy(&args);
      ASSERT_TRUE(out == want) << "at " << at << " count " << count;
    }
}

/* A call over n elements gives the bits of n calls over one. */
TEST_P(Types, BitsDoNotDependOnTheSplit) {
  std::mt19937_64 rng(10);
  Case c(GetParam(), tuttiSum, 3, 517, rng);
  size_t size = tuttiTypeSize(GetParam());
  for (const tuttiReduceLevel *level : levels()) {
    Bytes whole(c.args.count * size), parts(whole.size());
    void *out = whole.data();
    tuttiReduceArgs a = c.args;
    a.out = &out;
    a.nout = 1;
    level->reduce[GetParam()](&a);
    for (size_t i = 0; i < c.args.count; i++) {
      const void *in[3];
      for (int k = 0; k < 3; k++)
        in[k] = c.inputs[k].data() + i * size;
      out = parts.data() + i * size;
      a.in = in;
      a.count = 1;
      level->reduce[GetParam()](&a);
    }
    ASSERT_TRUE(whole == parts) << level->name;
  }
}

INSTANTIATE_TEST_SUITE_P(Reduce, Types, testing::Range(0, (int)tuttiNumTypes), typeName);

class NarrowTypes : public testing::TestWithParam<int> {
protected:
  size_t size() const { return tuttiTypeSize(GetParam()); }
  uint32_t codes() const { return 1u << (8 * size()); }
  Bytes allCodes() const {
    Bytes b(codes() * size());
    for (uint32_t code = 0; code < codes(); code++)
      memcpy(&b[code * size()], &code, size());
    return b;
  }
  /* All codes as operand 0 against `b`, on all levels. */
  void checkAll(int op, uint32_t b, tuttiScalar scalar, bool premul) {
    std::mt19937_64 rng(1);
    Case c(GetParam(), op, premul ? 1 : 2, codes(), rng);
    c.inputs[0] = allCodes();
    c.in[0] = c.inputs[0].data();
    if (premul) {
      c.args.premul = 1;
      c.args.scalar = scalar;
    } else {
      for (uint32_t i = 0; i < codes(); i++)
        memcpy(&c.inputs[1][i * size()], &b, size());
    }
    Bytes want = c.expected();
    for (const tuttiReduceLevel *level : levels())
      ASSERT_NO_FATAL_FAILURE(c.check(want, 1, level->name, level->reduce[GetParam()]))
          << "operand " << b << " scalar " << scalar.f;
  }
};

/* 8 bits: every pair of codes. 16 bits: every code against codes that are special or random. */
TEST_P(NarrowTypes, EveryCode) {
  std::mt19937_64 rng(2);
  const Narrow &f = narrowOf(GetParam());
  std::vector<uint32_t> others;
  if (size() == 1) {
    for (uint32_t b = 0; b < codes(); b++)
      others.push_back(b);
  } else {
    others = {0,
              1,
              2,
              3,
              f.greatest,
              f.greatest - 1,
              f.overflow,
              f.nan,
              f.encode(1),
              f.encode(1.5),
              f.encode(0.5),
              f.encode(-1),
              f.sign,
              f.sign | 1};
    for (int i = 0; i < 10; i++)
      others.push_back((uint32_t)rng() % codes());
  }
  for (uint32_t b : others)
    for (int op : {tuttiSum, tuttiProd, tuttiMin, tuttiMax})
      ASSERT_NO_FATAL_FAILURE(checkAll(op, b, {}, false));
}

/* A product with a float32 has bits below the last place: ties, near-ties, and sticky bits. */
TEST_P(NarrowTypes, Rounding) {
  const double scalars[] = {1,     0.5,      1 + 0x1p-23, 1 - 0x1p-24, 1 + 0x1p-11, 1 + 0x1p-8,
                            1.25,  1.125,    0x1p-10,     0x1p-14,     3 * 0x1p-25, 1.0625,
                            1e-30, 0x1p-140, 1e30,        -1.5,        0,           INFINITY,
                            NAN,   1.0 / 3,  1 + 0x1p-4,  1 + 0x1p-3,  464.0 / 448, 465.0 / 448};
  for (double s : scalars) {
    tuttiScalar scalar;
    scalar.f = s;
    ASSERT_NO_FATAL_FAILURE(checkAll(tuttiSum, 0, scalar, true));
  }
}

#if defined(__x86_64__)
/* A program built with -ffast-math sets flush-to-zero for its threads; float16 subnormals are no
 * float32 subnormals and must survive it on every level. */
class NarrowExponents : public NarrowTypes {};

TEST_P(NarrowExponents, SurviveFlushToZero) {
  const unsigned flushToZeroDenormalsAreZero = 0x8040;
  std::mt19937_64 rng(1);
  Case c(GetParam(), tuttiProd, 2, codes(), rng);
  c.inputs[0] = allCodes();
  c.in[0] = c.inputs[0].data();
  for (uint32_t i = 0; i < codes(); i++)
    tuttiFloatFromDouble(c.args.type, 1, &c.inputs[1][i * size()]);
  Bytes want = c.expected();
  for (const tuttiReduceLevel *level : levels())
    c.check(want, 1, level->name, [&](const tuttiReduceArgs *args) {
      unsigned before = _mm_getcsr();
      _mm_setcsr(before | flushToZeroDenormalsAreZero);
      level->reduce[args->type](args);
      _mm_setcsr(before);
    });
}

INSTANTIATE_TEST_SUITE_P(Reduce, NarrowExponents,
                         testing::Values(tuttiFloat16, tuttiFloat8e4m3, tuttiFloat8e5m2), typeName);
#endif

TEST_P(NarrowTypes, ElementsToAndFromDouble) {
  const Narrow &f = narrowOf(GetParam());
  for (uint32_t code = 0; code < codes(); code++) {
    double want = f.decode(code), got = tuttiFloatToDouble((tuttiDataType_t)GetParam(), &code);
    ASSERT_TRUE(want == got || (std::isnan(want) && std::isnan(got))) << code;
    ASSERT_TRUE(std::isnan(want) || std::signbit(want) == std::signbit(got)) << code;
    if (std::isnan(want)) continue;
    /* The number itself, the tie above it, and both sides of the tie. */
    double up = std::isinf(want) ? want : f.decode(code + 1 == f.overflow ? code : code + 1);
    double tie = want + (up - want) / 2;
    for (double v : {want, tie, std::nextafter(tie, 0), std::nextafter(tie, INFINITY)}) {
      if (std::isnan(v)) continue;
      uint32_t back = 0;
      tuttiFloatFromDouble((tuttiDataType_t)GetParam(), v, &back);
      ASSERT_EQ(back, f.encode(v)) << v;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Reduce, NarrowTypes,
                         testing::Values(tuttiFloat16, tuttiBfloat16, tuttiFloat8e4m3,
                                         tuttiFloat8e5m2),
                         typeName);

/* What the standards say, in numbers a reader can check. */
TEST(Elements, KnownCodes) {
  auto code = [](tuttiDataType_t type, double v) {
    uint64_t bits = 0;
    tuttiFloatFromDouble(type, v, &bits);
    return bits;
  };
  EXPECT_EQ(code(tuttiFloat16, 1), 0x3c00u);
  EXPECT_EQ(code(tuttiFloat16, 65504), 0x7bffu);
  EXPECT_EQ(code(tuttiFloat16, 65519.99), 0x7bffu);
  EXPECT_EQ(code(tuttiFloat16, 65520), 0x7c00u);
  EXPECT_EQ(code(tuttiFloat16, -0x1p-24), 0x8001u);
  EXPECT_EQ(code(tuttiBfloat16, -2), 0xc000u);
  EXPECT_EQ(code(tuttiFloat8e4m3, 448), 0x7eu);
  EXPECT_EQ(code(tuttiFloat8e4m3, 464), 0x7eu);
  EXPECT_EQ(code(tuttiFloat8e4m3, 464.01), 0x7fu);
  EXPECT_EQ(code(tuttiFloat8e4m3, -INFINITY), 0xffu);
  EXPECT_EQ(code(tuttiFloat8e5m2, 57344), 0x7bu);
  EXPECT_EQ(code(tuttiFloat8e5m2, 61440), 0x7cu);
  EXPECT_EQ(code(tuttiFloat8e5m2, NAN), 0x7eu);
  EXPECT_EQ(code(tuttiFloat64, 1.5), 0x3ff8000000000000u);
}

/* The bits above compare levels only if more than one runs here. */
TEST(Levels, LastRunsAnywhere) {
  int n = 0;
  while (tuttiReduceLevels[n])
    n++;
  ASSERT_GE(n, 1);
  EXPECT_TRUE(tuttiReduceLevels[n - 1]->supported());
  EXPECT_STREQ(tuttiReduceLevels[n - 1]->name, "base");
}

} // namespace

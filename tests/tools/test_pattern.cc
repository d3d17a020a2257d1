/* The reference that perf checks against: its numbers, its promise of exactness, and that it sees
 * every kind of wrong element. */
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "collectives/signature.h"
#include "device/cpu/reduce.h"
#include "perf.h"

namespace {

std::vector<tuttiDataType_t> floats() {
  return {tuttiFloat16,  tuttiFloat32,    tuttiFloat64,
          tuttiBfloat16, tuttiFloat8e4m3, tuttiFloat8e5m2};
}

uint64_t bitsAt(const std::vector<char> &bytes, size_t i, int size) {
  uint64_t bits = 0;
  memcpy(&bits, bytes.data() + i * size, size);
  return bits;
}

std::vector<char> input(const perfPattern &p, int rank, size_t first, size_t n) {
  std::vector<char> bytes(n * p.type->size);
  perfPatternFill(&p, rank, first, n, bytes.data());
  return bytes;
}

/* The library's own conversions; tests/device/cpu/reduce.cc has what makes them right. */
double decode(const perfType *t, uint64_t bits) {
  return tuttiFloatToDouble((tuttiDataType_t)(t - perfTypes), &bits);
}

uint64_t encode(const perfType *t, double value) {
  uint64_t bits = 0;
  tuttiFloatFromDouble((tuttiDataType_t)(t - perfTypes), value, &bits);
  return bits;
}

TEST(Names, AreFoundByAnyOfTheirSpellings) {
  for (int t = 0; t < tuttiNumTypes; t++)
    EXPECT_EQ(perfTypeFind(tuttiTypeNames[t]), t);
  EXPECT_EQ(perfTypeFind("half"), tuttiFloat16);
  EXPECT_EQ(perfTypeFind("BF16"), tuttiBfloat16);
  EXPECT_EQ(perfTypeFind("f8e5m2"), tuttiFloat8e5m2);
  EXPECT_EQ(perfTypeFind("float128"), -1);
}

/* Every partial result, forwards, backwards and in a tree's order, is exact in the type. */
TEST(Inputs, PartialResultsAreExact) {
  const size_t count = 200;
  for (auto type : floats())
    for (auto op : {tuttiSum, tuttiAvg, tuttiProd})
      for (int n : {1, 2, 3, 4, 7, 8, 9, 17, 64, 300}) {
        perfPattern p;
        perfPatternInit(&p, type, op, true, n, 42);
        std::vector<std::vector<char>> in;
        for (int r = 0; r < n; r++)
          in.push_back(input(p, r, 0, count));
        for (size_t i = 0; i < count; i++) {
          std::vector<double> v;
          for (auto &bytes : in)
            v.push_back(decode(p.type, bitsAt(bytes, i, p.type->size)));
          for (int order = 0; order < 3; order++) {
            if (order == 1) std::reverse(v.begin(), v.end());
            if (order == 2) std::rotate(v.begin(), v.begin() + n / 2, v.end());
            double acc = op == tuttiProd ? 1 : 0;
            for (double x : v) {
              acc = op == tuttiProd ? acc * x : acc + x;
              ASSERT_EQ(decode(p.type, encode(p.type, acc)), acc)
                  << tuttiTypeNames[p.type - perfTypes] << " n=" << n;
            }
          }
        }
      }
}

TEST(Inputs, IntegersToAverageDoNotOverflow) {
  for (auto type : {tuttiInt8, tuttiUint8, tuttiInt32, tuttiUint32, tuttiInt64, tuttiUint64})
    for (int n : {1, 4, 127, 128, 255, 256, 1000}) {
      perfPattern p;
      perfPatternInit(&p, type, tuttiAvg, true, n, 7);
      std::vector<int64_t> sums(100, 0);
      for (int r = 0; r < n; r++) {
        auto bytes = input(p, r, 0, sums.size());
        for (size_t i = 0; i < sums.size(); i++) {
          uint64_t bits = bitsAt(bytes, i, p.type->size);
          int unused = 64 - 8 * p.type->size;
          sums[i] += p.type->kind == PERF_SIGNED ? (int64_t)(bits << unused) >> unused : bits;
        }
      }
      if (p.type->size == 8) continue;
      int bits = 8 * p.type->size;
      int64_t most = (1ll << (p.type->kind == PERF_SIGNED ? bits - 1 : bits)) - 1;
      for (auto sum : sums)
        ASSERT_LE(std::abs(sum), most) << tuttiTypeNames[p.type - perfTypes] << " n=" << n;
    }
}

TEST(Inputs, DifferBetweenRanksIndicesAndSeeds) {
  for (int type = 0; type < tuttiNumTypes; type++)
    for (int op = 0; op < tuttiNumOps; op++) {
      perfPattern p, other;
      perfPatternInit(&p, (tuttiDataType_t)type, (tuttiRedOp_t)op, true, 4, 1);
      perfPatternInit(&other, (tuttiDataType_t)type, (tuttiRedOp_t)op, true, 4, 2);
      auto a = input(p, 0, 0, 64);
      EXPECT_NE(a, input(p, 1, 0, 64));
      EXPECT_NE(a, input(p, 0, 64, 64));
      EXPECT_NE(a, input(other, 0, 0, 64));
      std::set<uint64_t> values;
      for (size_t i = 0; i < 64; i++)
        values.insert(bitsAt(a, i, p.type->size));
      EXPECT_GE(values.size(), 3u)
          << tuttiTypeNames[p.type - perfTypes] << " " << tuttiRedOpNames[op];
    }
}

/* Any part of the input is the same, however it is cut. */
TEST(Inputs, DoNotDependOnBlocks) {
  perfPattern p;
  perfPatternInit(&p, tuttiBfloat16, tuttiProd, true, 5, 9);
  auto all = input(p, 3, 0, 3000);
  for (size_t first : {1, 511, 512, 513, 2047})
    EXPECT_EQ(memcmp(input(p, 3, first, 700).data(), all.data() + 2 * first, 1400), 0) << first;
}

/* A copy that was moved by any power of two, as slots and chunks are, does not pass for it. */
TEST(Inputs, RepeatAfterAPrime) {
  const size_t n = 2 * PERF_PERIOD + 5;
  perfPattern p;
  perfPatternInit(&p, tuttiInt32, tuttiSum, true, 3, 9);
  auto all = input(p, 1, 0, n);
  EXPECT_EQ(memcmp(&all[0], &all[4 * PERF_PERIOD], n * 4 - 4 * PERF_PERIOD), 0);
  for (size_t by = 1; by < n / 2; by *= 2)
    EXPECT_NE(memcmp(&all[0], &all[4 * by], 4096), 0) << by;
  for (size_t first : {(size_t)7, (size_t)PERF_PERIOD - 3, (size_t)PERF_PERIOD, n - 700})
    EXPECT_EQ(memcmp(input(p, 1, first, 700).data(), &all[4 * first], 2800), 0) << first;
}

/* A right result, by arithmetic of the test's own. */
std::vector<char> reduced(const perfPattern &p, size_t n) {
  std::vector<std::vector<char>> in;
  for (int r = 0; r < p.nranks; r++)
    in.push_back(input(p, r, 0, n));
  std::vector<char> out(n * p.type->size);
  for (size_t i = 0; i < n; i++) {
    long double acc = 0;
    uint64_t wrapped = p.op == tuttiProd ? 1 : 0;
    for (int r = 0; r < p.nranks; r++) {
      uint64_t bits = bitsAt(in[r], i, p.type->size);
      int unused = 64 - 8 * p.type->size;
      long double x = p.type->kind == PERF_FLOAT    ? decode(p.type, bits)
                      : p.type->kind == PERF_SIGNED ? (int64_t)(bits << unused) >> unused
                                                    : (long double)bits;
      wrapped = p.op == tuttiProd ? wrapped * bits : wrapped + bits;
      if (r == 0)
        acc = x;
      else if (p.op == tuttiProd)
        acc *= x;
      else if (p.op == tuttiMax)
        acc = std::max(acc, x);
      else if (p.op == tuttiMin)
        acc = std::min(acc, x);
      else
        acc += x;
    }
    uint64_t bits;
    bool wraps = p.type->kind != PERF_FLOAT && (p.op == tuttiSum || p.op == tuttiProd);
    if (p.op == tuttiAvg)
      acc = p.type->kind == PERF_FLOAT ? acc / p.nranks : truncl(acc / p.nranks);
    if (wraps)
      bits = wrapped;
    else if (p.type->kind == PERF_SIGNED)
      bits = (uint64_t)(int64_t)acc;
    else if (p.type->kind == PERF_UNSIGNED)
      bits = (uint64_t)acc;
    else
      bits = encode(p.type, p.type->size < 8 ? (float)acc : (double)acc);
    memcpy(out.data() + i * p.type->size, &bits, p.type->size);
  }
  return out;
}

TEST(Compare, AcceptsRightAndCountsWrongElements) {
  const size_t n = 700;
  for (int type = 0; type < tuttiNumTypes; type++)
    for (int op = 0; op < tuttiNumOps; op++)
      for (int ranks : {1, 4, 7, 33}) {
        perfPattern p;
        perfPatternInit(&p, (tuttiDataType_t)type, (tuttiRedOp_t)op, true, ranks, 5);
        std::string what =
            std::string(tuttiTypeNames[p.type - perfTypes]) + " " + tuttiRedOpNames[op];
        auto out = reduced(p, n);
        ASSERT_EQ(perfPatternCompare(&p, PERF_REDUCED, 0, n, out.data()).wrong, 0u) << what;
        for (size_t i : {(size_t)0, (size_t)513, n - 1})
          for (int bit = 0; bit < 8 * p.type->size; bit++) {
            char *byte = out.data() + i * p.type->size + bit / 8;
            uint64_t right = bitsAt(out, i, p.type->size);
            *byte ^= 1 << bit % 8;
            uint64_t wrong = bitsAt(out, i, p.type->size);
            perfMismatch m = perfPatternCompare(&p, PERF_REDUCED, 0, n, out.data());
            bool zeros = p.type->kind == PERF_FLOAT && decode(p.type, right) == 0 &&
                         decode(p.type, wrong) == 0;
            ASSERT_EQ(m.wrong, zeros ? 0u : 1u) << what << " element " << i << " bit " << bit;
            if (!zeros) {
              ASSERT_EQ(m.first, i) << what;
            }
            *byte ^= 1 << bit % 8;
          }
      }
}

/* What is long is compared with itself a period before, where that was right. */
TEST(Compare, FindsWhatIsWrongInAnyPeriod) {
  const size_t n = 3 * PERF_PERIOD + 100, second = PERF_PERIOD + 60000, third = 2 * PERF_PERIOD + 9;
  for (int rank : {PERF_REDUCED, 2}) {
    perfPattern p;
    perfPatternInit(&p, tuttiFloat32, tuttiSum, true, 3, 5);
    auto out = rank == PERF_REDUCED ? reduced(p, n) : input(p, rank, 0, n);
    ASSERT_EQ(perfPatternCompare(&p, rank, 0, n, out.data()).wrong, 0u);
    for (auto wrong : std::vector<std::vector<size_t>>{
             {0}, {second}, {n - 1}, {third, third + PERF_PERIOD}, {9, PERF_PERIOD + 9, third}}) {
      for (size_t i : wrong)
        out[4 * i + 1] ^= 1;
      perfMismatch m = perfPatternCompare(&p, rank, 0, n, out.data());
      EXPECT_EQ(m.wrong, wrong.size()) << wrong[0];
      EXPECT_EQ(m.first, wrong[0]);
      for (size_t i : wrong)
        out[4 * i + 1] ^= 1;
    }
  }
}

TEST(Compare, CopiesBitByBit) {
  perfPattern p;
  perfPatternInit(&p, tuttiFloat32, tuttiSum, false, 3, 5);
  auto copy = input(p, 2, 100, 600);
  EXPECT_EQ(perfPatternCompare(&p, 2, 100, 600, copy.data()).wrong, 0u);
  EXPECT_GT(perfPatternCompare(&p, 1, 100, 600, copy.data()).wrong, 590u);
  EXPECT_GT(perfPatternCompare(&p, 2, 101, 600, copy.data()).wrong, 590u);
  copy[4 * 599] ^= 1;
  perfMismatch m = perfPatternCompare(&p, 2, 100, 600, copy.data());
  EXPECT_EQ(m.wrong, 1u);
  EXPECT_EQ(m.first, 599u);
  EXPECT_EQ(m.got ^ m.want, 1u);
}

} // namespace

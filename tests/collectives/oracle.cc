/* The oracle of all suites, against cases worked out by hand. */
#include "oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "element.h"

namespace {

/* Element i of rank r is 10 r + i: three ranks, two elements in a call, root 2. */
int32_t input(int rank, size_t i) {
  return 10 * rank + (int32_t)i;
}

std::vector<int32_t> held(int coll, int rank, tuttiRedOp_t op = tuttiSum) {
  oracle::Call call = {.coll = coll, .nranks = 3, .root = 2, .count = 2};
  std::vector<int32_t> all;
  for (size_t i = 0; i < oracle::receives(call, rank); i++)
    all.push_back(oracle::expected(call, rank, i, op, input));
  return all;
}

using Elements = std::vector<int32_t>;

TEST(Oracle, MovesData) {
  EXPECT_EQ(held(tuttiCollBroadcast, 0), Elements({20, 21}));
  EXPECT_EQ(held(tuttiCollAllGather, 1), Elements({0, 1, 10, 11, 20, 21}));
  EXPECT_EQ(held(tuttiCollGather, 2), Elements({0, 1, 10, 11, 20, 21}));
  EXPECT_EQ(held(tuttiCollGather, 1), Elements());
  EXPECT_EQ(held(tuttiCollScatter, 0), Elements({20, 21}));
  EXPECT_EQ(held(tuttiCollScatter, 1), Elements({22, 23}));
  EXPECT_EQ(held(tuttiCollAlltoAll, 1), Elements({2, 3, 12, 13, 22, 23}));
}

TEST(Oracle, Reduces) {
  EXPECT_EQ(held(tuttiCollAllReduce, 0), Elements({30, 33}));
  EXPECT_EQ(held(tuttiCollReduce, 2), Elements({30, 33}));
  EXPECT_EQ(held(tuttiCollReduce, 0), Elements());
  EXPECT_EQ(held(tuttiCollReduceScatter, 0), Elements({30, 33}));
  EXPECT_EQ(held(tuttiCollReduceScatter, 2), Elements({42, 45}));
  EXPECT_EQ(held(tuttiCollAllReduce, 1, tuttiMax), Elements({20, 21}));
  EXPECT_EQ(held(tuttiCollAllReduce, 1, tuttiMin), Elements({0, 1}));
  EXPECT_EQ(held(tuttiCollAllReduce, 1, tuttiProd), Elements({0, 1 * 11 * 21}));
  EXPECT_EQ(held(tuttiCollAllReduce, 1, tuttiAvg), Elements({10, 11}));
}

/* Integers wrap, and an average is rounded towards zero. */
TEST(Oracle, WrapsAndTruncates) {
  auto large = [](int, size_t) { return INT32_MAX; };
  EXPECT_EQ(oracle::reduced(2, 0, tuttiSum, large), -2);
  EXPECT_EQ(oracle::reduced(2, 0, tuttiProd, large), 1);
  auto negative = [](int rank, size_t) { return rank ? -4 : -3; };
  EXPECT_EQ(oracle::reduced(2, 0, tuttiAvg, negative), -3);
}

TEST(Oracle, Counts) {
  auto call = [](int coll) {
    return oracle::Call{.coll = coll, .nranks = 3, .root = 2, .count = 2};
  };
  EXPECT_EQ(oracle::sends(call(tuttiCollAllReduce), 2), 2u);
  EXPECT_EQ(oracle::sends(call(tuttiCollGather), 2), 2u);
  EXPECT_EQ(oracle::sends(call(tuttiCollScatter), 2), 6u);
  EXPECT_EQ(oracle::sends(call(tuttiCollReduceScatter), 2), 6u);
  EXPECT_EQ(oracle::sends(call(tuttiCollAlltoAll), 2), 6u);
  EXPECT_EQ(oracle::receives(call(tuttiCollAlltoAll), 0), 6u);
  EXPECT_EQ(oracle::receives(call(tuttiCollScatter), 0), 2u);
  EXPECT_EQ(oracle::sends(call(tuttiCollScatter), 1), 0u);
  EXPECT_EQ(oracle::sends(call(tuttiCollBroadcast), 0), 0u);
  EXPECT_EQ(oracle::receives(call(tuttiCollReduce), 2), 2u);
  EXPECT_EQ(oracle::receives(call(tuttiCollReduce), 0), 0u);
  EXPECT_TRUE(oracle::rooted(tuttiCollScatter));
  EXPECT_FALSE(oracle::rooted(tuttiCollAlltoAll));
}

/* Where send and receive buffer start, and how long both are together. */
std::vector<size_t> placed(int coll, int rank, bool inPlace) {
  oracle::Layout at = oracle::layoutOf({coll, 3, 2, 2}, rank, inPlace);
  return {at.send, at.recv, at.all};
}

TEST(Oracle, BuffersInPlace) {
  using Places = std::vector<size_t>;
  EXPECT_EQ(placed(tuttiCollAllReduce, 1, true), Places({0, 0, 2}));
  EXPECT_EQ(placed(tuttiCollAllReduce, 1, false), Places({0, 2, 4}));
  EXPECT_EQ(placed(tuttiCollAllGather, 1, true), Places({2, 0, 6}));
  EXPECT_EQ(placed(tuttiCollReduceScatter, 1, true), Places({0, 2, 6}));
  EXPECT_EQ(placed(tuttiCollGather, 2, true), Places({4, 0, 6}));
  EXPECT_EQ(placed(tuttiCollGather, 1, true), Places({0, 2, 2})) << "nothing to receive";
  EXPECT_EQ(placed(tuttiCollScatter, 2, true), Places({0, 4, 6}));
  EXPECT_EQ(placed(tuttiCollAlltoAll, 1, true), Places({0, 6, 12})) << "never in place";
}

/* The reduction of the elements, one of each rank. */
Reduced reducedOf(int type, int op, const std::vector<Element> &of) {
  return reducedElement(type, op, (int)of.size(), 0, [&](int r, size_t) { return of[r]; });
}

TEST(Oracle, ReducesIntegersOfAllWidths) {
  Element large = {0, 100}, minus = {0, (uint64_t)-3}, most = {0, UINT64_MAX}, one = {0, 1};
  auto i = [](const Reduced &r) { return (int64_t)r.value.i; };
  EXPECT_EQ(i(reducedOf(tuttiInt8, tuttiSum, {large, large})), -56);
  EXPECT_EQ(i(reducedOf(tuttiInt8, tuttiAvg, {large, large})), -28) << "what has wrapped";
  EXPECT_EQ(i(reducedOf(tuttiUint8, tuttiAvg, {large, large})), 100);
  EXPECT_EQ(i(reducedOf(tuttiUint8, tuttiProd, {large, large})), 10000 % 256);
  EXPECT_EQ(i(reducedOf(tuttiInt32, tuttiAvg, {minus, {0, (uint64_t)-4}})), -3);
  EXPECT_EQ(i(reducedOf(tuttiInt64, tuttiMax, {minus, one})), 1);
  EXPECT_EQ(i(reducedOf(tuttiInt64, tuttiMin, {minus, one})), -3);
  EXPECT_EQ(i(reducedOf(tuttiUint64, tuttiMax, {one, most})), -1) << "unsigned: the greatest";
  EXPECT_EQ(i(reducedOf(tuttiUint64, tuttiSum, {one, most})), 0);
  EXPECT_EQ(i(reducedOf(tuttiInt32, tuttiSum, {product(large, minus), one})), -299);
}

TEST(Oracle, BoundsHowFarFloatsMayBe) {
  Reduced sum = reducedOf(tuttiFloat32, tuttiSum, {{-2.5, 0}, {1, 0}});
  EXPECT_EQ(sum.value.f, -1.5);
  EXPECT_EQ(sum.magnitude, 3.5);
  EXPECT_EQ(reducedOf(tuttiFloat64, tuttiAvg, {{1, 0}, {2, 0}}).value.f, 1.5);
  EXPECT_EQ(reducedOf(tuttiBfloat16, tuttiMin, {{1, 0}, {-2, 0}}).value.f, -2);
  const Reduced one = {{1, 0}, 1};
  auto near = [&](int type, double got, int roundings = 1, bool multiplied = false) {
    return nearEnough(type, multiplied, {got, 0}, one, roundings);
  };
  EXPECT_TRUE(near(tuttiFloat32, 1 + 0x1p-22));
  EXPECT_FALSE(near(tuttiFloat32, 1 + 0x1p-20));
  EXPECT_FALSE(near(tuttiFloat64, 1 + 0x1p-49));
  EXPECT_TRUE(near(tuttiBfloat16, 1 + 0x1p-8));
  EXPECT_FALSE(near(tuttiBfloat16, 1 + 0x1p-7));
  EXPECT_TRUE(near(tuttiBfloat16, 1 + 0x1p-7, 2));
  const Reduced cancelled = reducedOf(tuttiBfloat16, tuttiSum, {{4, 0}, {-3, 0}});
  EXPECT_TRUE(nearEnough(tuttiBfloat16, false, {1 + 0x1p-6, 0}, cancelled, 2)) << "a part was 4";
  EXPECT_FALSE(nearEnough(tuttiBfloat16, false, {1 + 0x1p-4, 0}, cancelled, 2));
  EXPECT_TRUE(near(tuttiFloat16, 1 + 0x1p-10, 1, true)) << "the product was rounded as well";
  EXPECT_FALSE(near(tuttiFloat16, 1 + 0x1p-10));
  EXPECT_FALSE(nearEnough(tuttiFloat32, false, {NAN, 0}, one));
}

TEST(Oracle, KeepsElementsAsTheirTypesDo) {
  auto kept = [](int type, double f) { return rounded(type, {f, 0}).f; };
  EXPECT_EQ(kept(tuttiFloat8e5m2, 1.125), 1) << "halfway, to even";
  EXPECT_EQ(kept(tuttiFloat8e5m2, 1.126), 1.25);
  EXPECT_EQ(kept(tuttiFloat8e4m3, 448), 448) << "its greatest";
  EXPECT_TRUE(std::isnan(kept(tuttiFloat8e4m3, 1000))) << "it has no infinity";
  EXPECT_EQ(kept(tuttiFloat16, 65504), 65504);
  EXPECT_EQ(kept(tuttiFloat16, -1e6), -INFINITY);
  EXPECT_EQ(kept(tuttiBfloat16, 1 + 0x1p-7), 1 + 0x1p-7);
  EXPECT_EQ(kept(tuttiFloat32, 1 + 0x1p-30), 1);
  EXPECT_EQ((int64_t)rounded(tuttiInt8, {0, 200}).i, -56);
  EXPECT_EQ(rounded(tuttiUint8, {0, 300}).i, 44u);
}

} // namespace

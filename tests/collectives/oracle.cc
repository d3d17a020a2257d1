/* The oracle of all suites, against cases worked out by hand. */
#include "oracle.h"

#include <gtest/gtest.h>

#include <vector>

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
  EXPECT_EQ(oracle::sends(call(tuttiCollAllReduce)), 2u);
  EXPECT_EQ(oracle::sends(call(tuttiCollGather)), 2u);
  EXPECT_EQ(oracle::sends(call(tuttiCollScatter)), 6u);
  EXPECT_EQ(oracle::sends(call(tuttiCollReduceScatter)), 6u);
  EXPECT_EQ(oracle::sends(call(tuttiCollAlltoAll)), 6u);
  EXPECT_EQ(oracle::receives(call(tuttiCollAlltoAll), 0), 6u);
  EXPECT_EQ(oracle::receives(call(tuttiCollScatter), 0), 2u);
  EXPECT_TRUE(oracle::rooted(tuttiCollScatter));
  EXPECT_FALSE(oracle::rooted(tuttiCollAlltoAll));
}

} // namespace

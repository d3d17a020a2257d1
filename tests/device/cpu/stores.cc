/* Which way payloads are stored, and that both store the same. */
#include "device/cpu/stores.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace {

using Bytes = std::vector<uint8_t>;

constexpr uint32_t kApart = 2 << 20;

TEST(Stores, TwoComparisonsInARowDecide) {
  tuttiStoreWay way{};
  tuttiStoresCompared(&way, 1000, 100);
  EXPECT_EQ(0, way.streams) << "an interrupt, perhaps";
  EXPECT_EQ(0u, way.left) << "the next message tells";
  tuttiStoresCompared(&way, 100, 100);
  EXPECT_EQ(kApart, way.left);
  tuttiStoresCompared(&way, 1000, 100);
  EXPECT_EQ(0, way.streams) << "not in a row";
  tuttiStoresCompared(&way, 1000, 100);
  EXPECT_EQ(1, way.streams);
  EXPECT_EQ(kApart, way.left);
  tuttiStoresCompared(&way, 100, 100);
  EXPECT_EQ(1, way.streams);
  tuttiStoresCompared(&way, 100, 100);
  EXPECT_EQ(0, way.streams);
}

/* What is streamed comes from memory again: a little is not worth it, and to and fro neither. */
TEST(Stores, WhatTakesAboutTheSameStaysAsItIs) {
  for (uint8_t before : {0, 1}) {
    tuttiStoreWay way{};
    way.streams = before;
    for (int i = 0; i < 10; i++)
      tuttiStoresCompared(&way, 250, 100);
    EXPECT_EQ(before, way.streams);
    EXPECT_EQ(kApart, way.left);
  }
}

TEST(Stores, TheWaysGoFirstByTurns) {
  tuttiStoreWay way{};
  uint8_t first = way.turn;
  tuttiStoresCompared(&way, 1, 1);
  EXPECT_NE(first, way.turn);
  tuttiStoresCompared(&way, 1, 1);
  EXPECT_EQ(first, way.turn);
}

/* A sum of two operands, to a result and to two slots. */
struct Sum {
  explicit Sum(size_t count) : a(count), b(count), want(count), result(count), slots{a, a} {
    std::iota(a.begin(), a.end(), 1);
    std::iota(b.begin(), b.end(), 7);
    for (size_t i = 0; i < count; i++)
      want[i] = (uint8_t)(a[i] + b[i]);
    in[0] = a.data(), in[1] = b.data();
    out[0] = result.data(), out[1] = slots[0].data(), out[2] = slots[1].data();
    args.in = in, args.nin = 2, args.out = out, args.nout = 3;
    args.count = count, args.type = tuttiUint8, args.op = tuttiSum;
  }
  bool right() const { return result == want && slots[0] == want && slots[1] == want; }

  Bytes a, b, want, result, slots[2];
  const void *in[2];
  void *out[3];
  tuttiReduceArgs args{};
};

TEST(Stores, EveryElementOnce) {
  for (size_t count : {1u, 4095u, 4096u, 4097u, 8191u, 8192u, 50000u})
    for (uint8_t streams : {0, 1})
      for (uint8_t turn : {0, 1})
        for (uint32_t left : {0u, kApart}) {
          tuttiStoreWay way{};
          way.streams = streams, way.turn = turn, way.left = left;
          Sum sum(count);
          tuttiStoreSlots(&way, &sum.args, sum.in, sum.out, 2);
          ASSERT_TRUE(sum.right()) << count << " bytes, streams " << (int)streams << ", turn "
                                   << (int)turn << ", left " << left;
        }
}

TEST(Stores, ComparedBetweenSoManyBytes) {
  tuttiStoreWay way{};
  way.left = 10000;
  Sum little(TUTTI_STORES_LEAST - 1), some(6000);
  tuttiStoreSlots(&way, &little.args, little.in, little.out, 2);
  EXPECT_EQ(10000u, way.left) << "of so few a comparison tells nothing";
  tuttiStoreSlots(&way, &some.args, some.in, some.out, 2);
  EXPECT_EQ(4000u, way.left);
  uint8_t turn = way.turn;
  Sum more(6000);
  tuttiStoreSlots(&way, &more.args, more.in, more.out, 2);
  EXPECT_NE(turn, way.turn) << "there was one";
}

} // namespace

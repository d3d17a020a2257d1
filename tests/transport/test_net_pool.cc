/* FIFOs of ranks with a GPU: nothing is pinned when a connection is opened, as far as expected. */
#include <gmock/gmock.h>

#include <functional>
#include <vector>

#include "transport/net_pair.h"
#include "transport/pins.h"

using net::Rank;
using net::Setting;
using testing::HasSubstr;

namespace {

constexpr size_t kSlot = 65536;

/* On two hosts. Rank 0 has a GPU, rank 1 has none, unless said otherwise. */
struct Ranks {
  Rank a, b;
  explicit Ranks(bool first = true, bool second = false) {
    prepare(a, 0, first);
    prepare(b, 1, second);
  }
  static void prepare(Rank &r, int rank, bool gpu) {
    r.Prepare(rank, kSlot);
    r.peers[rank].hostId += (uint64_t)rank;
    r.peers[rank].device = gpu ? tuttiDeviceCuda : tuttiDeviceHost;
    r.peers[rank].cudaDevice = gpu ? 0 : -1;
    r.w.neighbours = 3;
    r.w.nchannels = 2;
    r.w.rmaContexts = 1;
  }
  void Meet() {
    a.Meet(b.peers[1]);
    b.Meet(a.peers[0]);
  }
  size_t Each() const { return tuttiPagesUp(tuttiNetHostBytes(&a.w, false)); }
};

std::string LogOf(const std::function<void()> &body) {
  Setting info("TUTTI_DEBUG", "INFO");
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

size_t Lines(const std::string &log, const std::string &what) {
  size_t n = 0;
  for (size_t at = 0; (at = log.find(what, at)) != std::string::npos; at++)
    n++;
  return n;
}

uint64_t Measured(Rank &r) {
  tuttiNetMeasure(&r.w);
  return tuttiLoadRelaxed(&r.memory.bytes);
}

class NetPool : public testing::Test {
protected:
  void SetUp() override {
    pins::made = 0;
    ASSERT_EQ(0, pins::held);
  }
  void TearDown() override {
    pins::refuse = 0;
    EXPECT_EQ(0, pins::held);
  }
};

TEST_F(NetPool, ConnectionsPinNothingWhenTheyAreOpened) {
  Ranks r;
  EXPECT_EQ(0, pins::made);
  r.Meet();
  ASSERT_EQ(1, pins::made) << "for the rank with a GPU alone";
  std::vector<tuttiConn> conns;
  for (int channel : {0, 1, TUTTI_P2P_CHANNEL, TUTTI_RMA_CHANNEL})
    for (tuttiDirection direction : {TUTTI_SEND, TUTTI_RECV})
      conns.push_back(r.a.Open(channel, direction));
  EXPECT_EQ(1, pins::made);
  for (auto &c : conns)
    for (auto &d : conns)
      if (&c != &d) {
        uint8_t *at = c.data, *other = d.data;
        EXPECT_TRUE(at + TUTTI_FIFO_DEPTH * kSlot <= other ||
                    other + TUTTI_FIFO_DEPTH * kSlot <= at);
      }
  for (auto &c : conns)
    r.a.Close(&c);
  EXPECT_EQ(1, pins::made);
}

/* One peer, with which two channels are joined, messages and puts go, in both directions. */
TEST_F(NetPool, HasRoomForAllThatIsExpected) {
  Ranks r;
  r.Meet();
  EXPECT_EQ(8 * r.Each(), pins::last);
  Ranks none;
  none.a.w.rmaContexts = 0;
  none.a.w.neighbours = 0;
  none.Meet();
  EXPECT_EQ(2 * none.Each(), pins::last) << "messages alone";
}

TEST_F(NetPool, OnHostMemoryThereIsNone) {
  Ranks r(false, false);
  uint64_t before = Measured(r.a);
  r.Meet();
  EXPECT_EQ(before, Measured(r.a));
  tuttiConn c = r.a.Open(0, TUTTI_SEND);
  EXPECT_EQ(0, pins::made);
  r.a.Close(&c);
}

TEST_F(NetPool, MessagesGoThroughFifosThatWereOthersBefore) {
  Ranks r(true, true);
  r.Meet();
  for (int round = 0; round < 3; round++) {
    tuttiConn out = r.a.Open(round % 2, TUTTI_SEND), in = r.b.Open(round % 2, TUTTI_RECV);
    for (int i = 0; i < 3 + round * int(TUTTI_FIFO_DEPTH); i++) {
      size_t bytes = kSlot - size_t(100 * round + i);
      ASSERT_TRUE(r.a.Await(&out)) << r.a.Error();
      net::Publish(r.a, &out, bytes);
      ASSERT_TRUE(r.b.Await(&in)) << r.b.Error();
      EXPECT_TRUE(net::Take(r.b, &in, bytes)) << round << " " << i;
    }
    EXPECT_TRUE(r.a.Drain());
    r.a.Close(&out);
    r.b.Close(&in);
  }
  EXPECT_EQ(2, pins::made);
}

TEST_F(NetPool, WhatFindsNoRoomPinsItsOwnAndSaysSoOnce) {
  Ranks r;
  Setting two("TUTTI_NET_PINNED", std::to_string(2 * r.Each() + 4096));
  std::string log = LogOf([&] { r.Meet(); });
  EXPECT_THAT(log, HasSubstr("it is less than these would take"));
  EXPECT_EQ(2 * r.Each() + 4096, pins::last);
  tuttiConn first = r.a.Open(0, TUTTI_SEND), second = r.a.Open(0, TUTTI_RECV), third{}, fourth{};
  EXPECT_EQ(1, pins::held);
  log = LogOf([&] {
    third = r.a.Open(1, TUTTI_SEND);
    fourth = r.a.Open(1, TUTTI_RECV);
  });
  EXPECT_EQ(3, pins::held);
  EXPECT_EQ(1u, Lines(log, "raise TUTTI_NET_PINNED")) << log;
  void *was = first.descriptors;
  r.a.Close(&first);
  r.a.Close(&third);
  EXPECT_EQ(2, pins::held);
  third = r.a.Open(1, TUTTI_SEND);
  EXPECT_EQ(was, third.descriptors);
  EXPECT_EQ(2, pins::held);
  for (tuttiConn *c : {&second, &third, &fourth})
    r.a.Close(c);
  EXPECT_EQ(1, pins::held);
}

TEST_F(NetPool, TheSettingMayForbidIt) {
  Setting none("TUTTI_NET_PINNED", "0");
  Ranks r;
  r.Meet();
  EXPECT_EQ(0, pins::made);
  tuttiConn c = r.a.Open(0, TUTTI_SEND);
  EXPECT_EQ(1, pins::held);
  r.a.Close(&c);
}

TEST_F(NetPool, IsWithinTheLimitOfMemory) {
  Ranks r;
  r.a.w.memTaken = 1000000;
  r.a.w.memLimit = 1000000 + 3 * r.Each();
  r.Meet();
  EXPECT_EQ(3 * r.Each(), pins::last);
  Ranks none;
  none.a.w.memTaken = 2;
  none.a.w.memLimit = 1;
  none.Meet();
  EXPECT_EQ(1, pins::made);
}

TEST_F(NetPool, IsNoTroubleWherePinningIsRefused) {
  Ranks r;
  pins::refuse = r.Each() + 1;
  uint64_t before = Measured(r.a);
  std::string log = LogOf([&] { r.Meet(); });
  EXPECT_THAT(log, HasSubstr("no host memory is pinned for connections: rank 0: "));
  EXPECT_EQ(before, Measured(r.a));
  tuttiConn c = r.a.Open(0, TUTTI_SEND);
  EXPECT_EQ(1, pins::held);
  r.a.Close(&c);
}

/* All of it is counted, as its pages are in use, and no part of it twice. */
TEST_F(NetPool, IsCountedOnce) {
  Ranks r;
  uint64_t before = Measured(r.a);
  r.Meet();
  uint64_t attached = tuttiLoadRelaxed(&r.a.memory.bytes), pool = 8 * r.Each();
  EXPECT_GE(attached, before + pool);
  EXPECT_LE(attached, before + pool + pool / 256) << "and a list of its pages";
  EXPECT_EQ(attached, Measured(r.a));
  tuttiConn c = r.a.Open(0, TUTTI_SEND);
  memset(c.data, 1, TUTTI_FIFO_DEPTH * kSlot);
  size_t some = r.Each() / 4; /* for endpoint and listener */
  EXPECT_LE(Measured(r.a), attached + some) << "its slots are of the pool";
  r.a.Close(&c);
  EXPECT_LE(Measured(r.a), attached + some);
  EXPECT_GE(Measured(r.a), attached);
  Rank alone;
  Ranks::prepare(alone, 0, true);
  alone.peers[1] = r.b.peers[1];
  uint64_t prepared = tuttiLoadRelaxed(&alone.memory.bytes);
  alone.Meet(r.b.peers[1]);
  EXPECT_GT(tuttiLoadRelaxed(&alone.memory.bytes), prepared);
  tuttiTransportNet.detach(&alone.w);
  EXPECT_LT(tuttiLoadRelaxed(&alone.memory.bytes), prepared) << "nothing of it is left";
}

} // namespace

#include <sys/wait.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "holdings.h"
#include "socket/tls.h"
#include "transport/net_pair.h"

using net::Pair;
using net::Rank;
using net::Setting;

namespace {

/* Sends `sizes` from a to b, each rank in its own thread, and checks every byte. `direct`: from
 * user memory, one buffer per message. */
void Exchange(Pair &p, const std::vector<size_t> &sizes, bool direct, unsigned slowUs = 0) {
  tuttiConn out = p.a.Open(0, TUTTI_SEND), in = p.b.Open(0, TUTTI_RECV);
  std::thread sender([&] {
    std::vector<std::vector<uint8_t>> buffers(direct ? sizes.size() : 0);
    for (size_t i = 0; i < sizes.size(); i++) {
      if (!p.a.Await(&out)) {
        ADD_FAILURE() << "send " << i << ": " << p.a.Error();
        return;
      }
      if (direct) buffers[i].resize(sizes[i] + 1);
      net::Publish(p.a, &out, sizes[i], direct ? buffers[i].data() : nullptr);
    }
    EXPECT_TRUE(p.a.Drain());
  });
  for (size_t i = 0; i < sizes.size(); i++) {
    if (!p.b.Await(&in)) {
      ADD_FAILURE() << "recv " << i << ": " << p.b.Error();
      break;
    }
    if (slowUs) usleep(slowUs);
    EXPECT_TRUE(net::Take(p.b, &in, sizes[i])) << "message " << i << " of " << sizes[i] << " bytes";
  }
  sender.join();
  EXPECT_EQ("", p.a.Error());
  EXPECT_EQ("", p.b.Error());
  p.a.Close(&out);
  p.b.Close(&in);
}

/* How many sockets, and whether under TLS. */
class Sockets : public testing::TestWithParam<std::pair<int, bool>> {
protected:
  void SetUp() override {
    if (GetParam().second) NEEDS_TLS();
  }

  KeyFile key_;
  Setting setting_{"TUTTI_SOCKET_NSOCKS", std::to_string(GetParam().first)};
  Setting psk_{"TUTTI_PSK_FILE", key_.path()};
  Setting encrypt_{"TUTTI_ENCRYPT", GetParam().second ? "1" : "0"};
};
INSTANTIATE_TEST_SUITE_P(Net, Sockets,
                         testing::Values(std::pair(1, false), std::pair(2, false),
                                         std::pair(3, false), std::pair(4, false),
                                         std::pair(16, false), std::pair(1, true),
                                         std::pair(3, true)),
                         [](const auto &info) {
                           return std::to_string(info.param.first) +
                                  (info.param.second ? "Secure" : "");
                         });

/* Around what the formats distinguish: nothing, inline, line, read-ahead, stripes, whole slots. */
const std::vector<size_t> kBorders = {0,      1,      7,      8,      79,    80,    81,    127,
                                      128,    129,    3967,   3968,   3969,  4095,  4096,  4097,
                                      8191,   65535,  65536,  65537,  65538, 69632, 69633, 131071,
                                      131072, 131073, 200000, 262143, 262144};

TEST_P(Sockets, AllSizesFromSlots) {
  Pair p(262144);
  ASSERT_TRUE(p.ok());
  Exchange(p, kBorders, false);
}

TEST_P(Sockets, AllSizesFromUserMemory) {
  Pair p(262144);
  ASSERT_TRUE(p.ok());
  Exchange(p, kBorders, true);
}

TEST_P(Sockets, LargeMessagesLandWhereTheyAreWanted) {
  constexpr size_t kBytes = 200000;
  Pair p(262144);
  ASSERT_TRUE(p.ok());
  tuttiConn out = p.a.Open(0, TUTTI_SEND), in = p.b.Open(0, TUTTI_RECV);
  std::vector<uint8_t> at[4];
  for (auto &buffer : at)
    buffer.resize(kBytes);
  auto take = [&](uint64_t m, bool direct) {
    ASSERT_TRUE(p.b.Await(&in)) << p.b.Error();
    tuttiSlotDescriptor *slot = tuttiConnDescriptor(&in);
    ASSERT_EQ(slot->where, uint32_t(direct ? TUTTI_WHERE_DIRECT : TUTTI_WHERE_SLOT)) << m;
    EXPECT_EQ(slot->addr, direct ? reinterpret_cast<uint64_t>(at[m].data()) : 0) << m;
    EXPECT_TRUE(net::Right(direct ? at[m].data() : tuttiConnData(&in, kBytes), m, kBytes)) << m;
    tuttiConnAdvance(&in);
    tuttiProxyFreed(p.b.w.proxy);
  };
  tuttiProxyEnter(p.b.w.proxy); /* as an executor: nobody else runs the loop between two steps */
  tuttiConnPostReceive(&in, in.next, at[0].data(), kBytes);
  net::Publish(p.a, &out, kBytes);
  net::Publish(p.a, &out, kBytes);
  ASSERT_TRUE(p.b.Await(&in)) << p.b.Error();
  for (int i = 0; i < 200; i++) { /* message 1 arrives, and waits to be told where to go */
    tuttiProxyRun(p.b.w.proxy);
    usleep(100);
  }
  take(0, true);
  tuttiConnPostReceive(&in, in.next, at[1].data(), kBytes);
  take(1, true);
  tuttiConnPostReceive(&in, in.next, at[2].data(), kBytes - 1); /* of another size: to its slot */
  net::Publish(p.a, &out, kBytes);
  take(2, false);
  net::Publish(p.a, &out, kBytes);
  take(3, false); /* not wanted */
  tuttiConnPostReceive(&in, in.next, at[0].data(), kBytes);
  tuttiConnPostReceive(&in, in.next + 1, at[1].data(), kBytes);
  for (int m = 4; m < 7; m++)
    net::Publish(p.a, &out, kBytes);
  ASSERT_TRUE(p.b.Await(&in)) << p.b.Error();
  EXPECT_EQ(tuttiConnDescriptor(&in)->addr, reinterpret_cast<uint64_t>(at[0].data()));
  tuttiConnAdvance(&in);
  ASSERT_TRUE(p.b.Await(&in)) << p.b.Error();
  EXPECT_EQ(tuttiConnDescriptor(&in)->addr, reinterpret_cast<uint64_t>(at[1].data()));
  tuttiConnAdvance(&in);
  take(6, false); /* it waits to be told where to go, but not for good */
  tuttiProxyLeave(p.b.w.proxy);
  p.b.Close(&in);
  p.a.Close(&out);
}

TEST_P(Sockets, RandomStress) {
  std::mt19937 random(7u + static_cast<unsigned>(GetParam().first));
  std::vector<size_t> sizes;
  for (int i = 0; i < 3000; i++) {
    unsigned kind = random() % 10;
    sizes.push_back(kind < 6 ? random() % 82 : kind < 9 ? random() % 9000 : random() % 131073);
  }
  Pair p(131072);
  ASSERT_TRUE(p.ok());
  Exchange(p, sizes, false);
  std::shuffle(sizes.begin(), sizes.end(), random);
  sizes.resize(1000);
  Exchange(p, sizes, true); /* the same channel once more, after its first ends were closed */
}

TEST_P(Sockets, SlowReceiver) {
  Pair p(262144);
  ASSERT_TRUE(p.ok());
  Exchange(p, std::vector<size_t>(40, 250000), false, 2000);
}

TEST(Net, SlotsAreReusedInOrderFarPastTheDepth) {
  Pair p(4096);
  ASSERT_TRUE(p.ok());
  std::vector<size_t> sizes;
  for (size_t i = 0; i < 50 * TUTTI_FIFO_DEPTH + 3; i++)
    sizes.push_back(i % 3 ? 8 : 4096);
  Exchange(p, sizes, false);
}

/* The proxy's thread reads while the reader frees slots, at any moment of its turn. */
TEST(Net, SlotsAreFreedWhileTheProxyReads) {
  Pair p(4096);
  ASSERT_TRUE(p.ok());
  constexpr size_t kMessages = 50000;
  tuttiConn out = p.a.Open(0, TUTTI_SEND), in = p.b.Open(0, TUTTI_RECV);
  std::thread sender([&] {
    for (size_t i = 0; i < kMessages && !p.b.Failed() && p.a.Await(&out); i++)
      net::Publish(p.a, &out, 3000);
  });
  for (size_t i = 0; i < kMessages; i++) {
    for (uint64_t end = net::Soon(); !tuttiConnReady(&in) && !p.b.Failed() && tuttiNow() < end;)
      sched_yield();
    if (!tuttiConnReady(&in)) break;
    EXPECT_TRUE(net::Take(p.b, &in, 3000)) << i;
  }
  EXPECT_EQ(kMessages, in.next);
  sender.join();
  EXPECT_EQ("", p.b.Error());
  p.b.Close(&in);
  p.a.Close(&out);
}

TEST(Net, ReceiverMayOpenLongAfterTheSender) {
  Pair p;
  ASSERT_TRUE(p.ok());
  tuttiConn out = p.a.Open(2, TUTTI_SEND);
  tuttiConn other = p.b.Open(1, TUTTI_RECV); /* makes b serve its listener */
  for (unsigned i = 0; i < TUTTI_FIFO_DEPTH; i++)
    net::Publish(p.a, &out, 60000);
  ASSERT_TRUE(p.a.Await(&out)); /* the welcome came and the kernel took some */
  tuttiConn in = p.b.Open(2, TUTTI_RECV);
  for (unsigned i = 0; i < TUTTI_FIFO_DEPTH; i++) {
    ASSERT_TRUE(p.b.Await(&in)) << p.b.Error();
    EXPECT_TRUE(net::Take(p.b, &in, 60000));
  }
  p.b.Close(&in);
  p.b.Close(&other);
  p.a.Close(&out);
}

TEST(Net, MessagesOfAClosedEndStillArrive) {
  Pair p;
  ASSERT_TRUE(p.ok());
  tuttiConn in = p.b.Open(0, TUTTI_RECV);
  tuttiConn out = p.a.Open(0, TUTTI_SEND);
  for (unsigned i = 0; i < 5; i++)
    net::Publish(p.a, &out, 30000);
  ASSERT_TRUE(p.a.Drain());
  p.a.Close(&out);
  p.a.Leave();
  for (unsigned i = 0; i < 5; i++) {
    ASSERT_TRUE(p.b.Await(&in)) << p.b.Error();
    EXPECT_TRUE(net::Take(p.b, &in, 30000));
  }
  /* The end of the stream is no failure when nothing is under way. Nothing tells that it has been
   * seen, so this waits for a time in which it mostly is. */
  usleep(50000);
  while (tuttiProxyRun(p.b.w.proxy)) {
  }
  EXPECT_EQ("", p.b.Error());
  p.b.Close(&in);
}

TEST(Net, TheThreadAloneMovesMessages) {
  Pair p;
  ASSERT_TRUE(p.ok());
  tuttiConn out = p.a.Open(0, TUTTI_SEND), in = p.b.Open(0, TUTTI_RECV);
  for (int i = 0; i < 200; i++) {
    for (uint64_t end = net::Soon(); !tuttiConnReady(&out) && tuttiNow() < end;)
      usleep(20);
    ASSERT_TRUE(tuttiConnReady(&out));
    net::Publish(p.a, &out, static_cast<size_t>(i) * 50);
    for (uint64_t end = net::Soon(); !tuttiConnReady(&in) && tuttiNow() < end;)
      usleep(20);
    ASSERT_TRUE(tuttiConnReady(&in)) << "message " << i << " was forgotten";
    EXPECT_TRUE(net::Take(p.b, &in, static_cast<size_t>(i) * 50));
  }
  p.a.Close(&out);
  p.b.Close(&in);
}

/* As executors do: the thread is told to stay asleep, and takes over what a call leaves behind. */
TEST(Net, LeaveHandsOverWhatIsUnsent) {
  Pair p(262144);
  ASSERT_TRUE(p.ok());
  tuttiConn out = p.a.Open(0, TUTTI_SEND), in = p.b.Open(0, TUTTI_RECV);
  for (int i = 0; i < 50; i++) {
    tuttiProxyEnter(p.a.w.proxy);
    ASSERT_TRUE(p.a.Await(&out)) << p.a.Error();
    net::Publish(p.a, &out, 262144);
    tuttiProxyLeave(p.a.w.proxy);
    tuttiProxyEnter(p.b.w.proxy);
    ASSERT_TRUE(p.b.Await(&in)) << p.b.Error();
    EXPECT_TRUE(net::Take(p.b, &in, 262144));
    tuttiProxyLeave(p.b.w.proxy);
  }
  p.a.Close(&out);
  p.b.Close(&in);
}

/* Sends and receives on four channels. */
void ManyChannels(Rank &r) {
  std::vector<tuttiConn> out, in;
  for (int ch = 0; ch < 4; ch++) {
    out.push_back(r.Open(ch, TUTTI_SEND));
    in.push_back(r.Open(ch, TUTTI_RECV));
  }
  for (size_t i = 0; i < 100; i++) {
    size_t bytes = i % 4 == 0 ? 131072 : i * 10;
    for (int ch = 0; ch < 4; ch++) {
      ASSERT_TRUE(r.Await(&out[ch])) << r.Error();
      net::Publish(r, &out[ch], bytes);
    }
    for (int ch = 0; ch < 4; ch++) {
      ASSERT_TRUE(r.Await(&in[ch])) << r.Error();
      EXPECT_TRUE(net::Take(r, &in[ch], bytes));
    }
  }
  EXPECT_TRUE(r.Drain());
  for (auto &c : out)
    r.Close(&c);
  for (auto &c : in)
    r.Close(&c);
}

TEST(Net, BothDirectionsAndManyChannelsAtOnce) {
  Pair p(131072);
  ASSERT_TRUE(p.ok());
  auto run = [](Rank &r) {
    net::Entered entered(r.w.proxy);
    ManyChannels(r);
  };
  std::thread other([&] { run(p.b); });
  run(p.a);
  other.join();
}

/* ---- two proxies, as on GPUs ----------------------------------------------------------------- */

constexpr uint64_t kPatience = 60000; /* ms */

TEST(NetTwoProxies, AllSizes) {
  for (bool direct : {false, true}) {
    Pair p(262144, kPatience, true);
    ASSERT_TRUE(p.ok());
    Exchange(p, kBorders, direct);
  }
}

TEST(NetTwoProxies, BothDirectionsAndManyChannelsAtOnce) {
  Pair p(131072, kPatience, true);
  ASSERT_TRUE(p.ok());
  std::thread other([&] { ManyChannels(p.b); });
  ManyChannels(p.a);
  other.join();
}

/* Connections come and go while others carry messages; senders also come before their receivers. */
TEST(NetTwoProxies, EndsOpenAndCloseAmongTraffic) {
  Pair p(65536, kPatience, true);
  ASSERT_TRUE(p.ok());
  std::vector<std::thread> threads;
  tuttiConn out[] = {p.a.Open(0, TUTTI_SEND), p.b.Open(0, TUTTI_SEND)};
  tuttiConn in[] = {p.a.Open(0, TUTTI_RECV), p.b.Open(0, TUTTI_RECV)};
  std::atomic<int> running{2};
  for (int i = 0; i < 2; i++)
    threads.emplace_back([&, i] {
      Rank &r = i == 0 ? p.a : p.b;
      for (size_t n = 0; n < 1000; n++) {
        ASSERT_TRUE(r.Await(&out[i])) << r.Error();
        net::Publish(r, &out[i], n % 64 * 1000);
        ASSERT_TRUE(r.Await(&in[i])) << r.Error();
        ASSERT_TRUE(net::Take(r, &in[i], n % 64 * 1000));
      }
      running--;
    });
  for (int round = 0; round < 20 || (running && !HasFailure()); round++) {
    int ch = 1 + round % 3;
    tuttiConn there = p.a.Open(ch, TUTTI_SEND), back = p.b.Open(ch, TUTTI_SEND);
    net::Publish(p.a, &there, 70);
    net::Publish(p.b, &back, 7000);
    if (round % 2) usleep(2000);
    tuttiConn at = p.b.Open(ch, TUTTI_RECV), home = p.a.Open(ch, TUTTI_RECV);
    EXPECT_TRUE(p.b.Await(&at) && net::Take(p.b, &at, 70)) << p.b.Error();
    EXPECT_TRUE(p.a.Await(&home) && net::Take(p.a, &home, 7000)) << p.a.Error();
    p.a.Close(&there), p.a.Close(&home), p.b.Close(&back), p.b.Close(&at);
  }
  for (auto &t : threads)
    t.join();
  for (int i = 0; i < 2; i++) {
    Rank &r = i == 0 ? p.a : p.b;
    r.Close(&out[i]), r.Close(&in[i]);
  }
}

/* With both ways full it closes in mid-message: sending and receiving find out in two threads. */
TEST(NetTwoProxies, APeerThatLeavesFailsBothDirections) {
  for (int round = 0; round < 10; round++) {
    Pair p(131072, kPatience, true);
    ASSERT_TRUE(p.ok());
    tuttiConn out = p.a.Open(0, TUTTI_SEND), back = p.b.Open(0, TUTTI_SEND);
    tuttiConn in = p.a.Open(0, TUTTI_RECV), there = p.b.Open(0, TUTTI_RECV);
    net::Publish(p.a, &out, 131072);
    net::Publish(p.b, &back, 131072);
    /* Both are connected: whoever still tries, and is refused, does so until the deadline. */
    ASSERT_TRUE(Rank::Sleep([&] { return tuttiConnReady(&in) && tuttiConnReady(&there); }));
    for (uint64_t last = tuttiNow(); tuttiNow() < last + net::kSecond / 50;) {
      if (tuttiConnReady(&out)) net::Publish(p.a, &out, 131072), last = tuttiNow();
      if (tuttiConnReady(&back)) net::Publish(p.b, &back, 131072), last = tuttiNow();
    }
    std::thread leaves([&] {
      p.b.Close(&back);
      p.b.Close(&there);
      p.b.Leave();
    });
    EXPECT_TRUE(Rank::Sleep([&] {
      if (tuttiConnReady(&in)) {
        EXPECT_TRUE(net::Take(p.a, &in, 131072));
      }
      /* On a machine that was too busy to fill them both ways may end between two messages, which
       * who only receives learns by the deadline. */
      if (tuttiConnReady(&out)) net::Publish(p.a, &out, 131072);
      return p.a.Failed();
    }));
    leaves.join();
    EXPECT_EQ(tuttiRemoteError, p.a.code);
    p.a.Close(&out);
    p.a.Close(&in);
  }
}

TEST(Net, TwoHundredConnectionsLeakNothing) {
  Pair p(4096);
  ASSERT_TRUE(p.ok());
  auto cycle = [&](int i) {
    tuttiConn out = p.a.Open(i % 4, TUTTI_SEND), in = p.b.Open(i % 4, TUTTI_RECV);
    net::Publish(p.a, &out, 100);
    ASSERT_TRUE(p.b.Await(&in)) << p.b.Error();
    EXPECT_TRUE(net::Take(p.b, &in, 100));
    p.b.Close(&in);
    p.a.Close(&out);
  };
  /* Sockets of a closed end may still be in the listener's queue; let it look at them. */
  auto settle = [&] {
    for (int i = 0; i < 20; i++) {
      tuttiProxyRun(p.b.w.proxy);
      usleep(1000);
    }
  };
  cycle(0);
  uint64_t memory = tuttiLoadRelaxed(&p.a.memory.bytes);
  int fds = openFds();
  for (int i = 0; i < 200; i++)
    cycle(i);
  settle();
  EXPECT_EQ(memory, tuttiLoadRelaxed(&p.a.memory.bytes));
  EXPECT_LE(openFds(), fds + 16);
}

} // namespace

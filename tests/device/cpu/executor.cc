/* The host executor on messages between two ranks: FIFO protocol, checks, waits, lending. */
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "asleep.h"
#include "base/backoff.h"
#include "base/os.h"
#include "fabric.h"
#include "proxy/proxy.h"
#include "transport/region.h"

namespace {

using testing::HasSubstr;

tuttiTask message(Rank &rank, int peer, bool sending, void *buffer, uint64_t count,
                  uint64_t chunk = 128, uint64_t seq = 1) {
  tuttiTask t{};
  t.schedule.coll = tuttiCollSendRecv;
  t.schedule.algo = tuttiAlgoDirect;
  t.schedule.rank = rank.rank;
  t.schedule.nranks = rank.fabric.nranks();
  t.schedule.root = peer;
  t.schedule.sending = sending;
  t.schedule.count = t.schedule.part = count;
  t.schedule.chunk = chunk;
  t.schedule.depth = TUTTI_FIFO_DEPTH;
  t.signature.seq = seq;
  t.signature.count = count;
  t.signature.root = -1;
  t.signature.coll = tuttiCollSendRecv;
  t.signature.type = tuttiInt64;
  t.signature.redop = 0xffff;
  t.channel = 32;
  t.sendbuff = sending ? buffer : nullptr;
  t.recvbuff = sending ? nullptr : buffer;
  t.type = tuttiInt64;
  t.op = tuttiSum;
  t.context = &rank.context;
  return t;
}

tuttiResult_t run(std::vector<tuttiTask *> tasks) {
  return tuttiCpuRun(tasks.data(), (int)tasks.size());
}

std::vector<int64_t> numbers(size_t n, int64_t from = 1) {
  std::vector<int64_t> v(n);
  std::iota(v.begin(), v.end(), from);
  return v;
}

/* slots of 1 KiB: chunks of 128 elements; 5: inline (LL). */
class Messages : public testing::TestWithParam<std::tuple<bool, int>> {};

TEST_P(Messages, OneThreadDrivesBothEnds) {
  auto [direct, chunk] = GetParam();
  for (size_t count : {0, 1, 10, 11, 128, 129, 5000}) {
    Fabric fabric(2, 65536, direct);
    Rank a(fabric, 0), b(fabric, 1);
    std::vector<int64_t> in = numbers(count), out(count);
    tuttiTask send = message(a, 1, true, in.data(), count, chunk);
    tuttiTask recv = message(b, 0, false, out.data(), count, chunk);
    ASSERT_EQ(run({&recv, &send}), tuttiSuccess) << tuttiErrorText();
    EXPECT_EQ(in, out) << count;
  }
}

TEST_P(Messages, ThreadsExchange) {
  auto [direct, chunk] = GetParam();
  constexpr int kRanks = 4, kRounds = 20;
  constexpr size_t kCount = 1500;
  Fabric fabric(kRanks, 65536, direct);
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int me = 0; me < kRanks; me++)
    threads.emplace_back([&, me, chunk = chunk] {
      Rank rank(fabric, me);
      std::vector<std::vector<int64_t>> out(kRanks), in(kRanks, std::vector<int64_t>(kCount));
      for (int round = 1; round <= kRounds; round++) {
        std::vector<tuttiTask> tasks;
        for (int peer = 0; peer < kRanks; peer++) {
          if (peer == me) continue;
          out[peer] = numbers(kCount, me * 1000000 + peer * 10000 + round);
          tasks.push_back(message(rank, peer, true, out[peer].data(), kCount, chunk, round));
          tasks.push_back(message(rank, peer, false, in[peer].data(), kCount, chunk, round));
        }
        std::vector<tuttiTask *> heads;
        for (tuttiTask &t : tasks)
          heads.push_back(&t);
        if (run(heads) != tuttiSuccess) return;
        for (int peer = 0; peer < kRanks; peer++)
          if (peer != me && in[peer] == numbers(kCount, peer * 1000000 + me * 10000 + round))
            right++;
      }
    });
  for (std::thread &t : threads)
    t.join();
  EXPECT_EQ(right, kRanks * (kRanks - 1) * kRounds);
}

INSTANTIATE_TEST_SUITE_P(Host, Messages,
                         testing::Combine(testing::Bool(), testing::Values(5, 128, 1024)));

TEST(Host, ChainsRunInOrder) {
  Fabric fabric(2);
  Rank a(fabric, 0), b(fabric, 1);
  constexpr int kLength = 5;
  std::vector<std::vector<int64_t>> in, out(kLength, std::vector<int64_t>(300));
  std::vector<tuttiTask> sends, recvs;
  for (int i = 0; i < kLength; i++) {
    in.push_back(numbers(300, i * 1000));
    sends.push_back(message(a, 1, true, in[i].data(), 300, 128, i + 1));
    recvs.push_back(message(b, 0, false, out[i].data(), 300, 128, i + 1));
  }
  for (int i = 0; i + 1 < kLength; i++) {
    sends[i].next = &sends[i + 1];
    recvs[i].next = &recvs[i + 1];
  }
  ASSERT_EQ(run({&sends[0], &recvs[0]}), tuttiSuccess) << tuttiErrorText();
  EXPECT_EQ(in, out);
  EXPECT_EQ(a.connects, 1) << "the connection of a chain is asked for once";
}

TEST(Host, NothingToDo) {
  EXPECT_EQ(tuttiCpuRun(nullptr, 0), tuttiSuccess);
}

/* More than fits in the frame of tuttiCpuRun. */
TEST(Host, ManyTasks) {
  constexpr int kRanks = 40;
  Fabric fabric(kRanks);
  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<tuttiTask> tasks;
  std::vector<int64_t> in = numbers(kRanks), out(kRanks);
  for (int r = 0; r < kRanks; r++)
    ranks.push_back(std::make_unique<Rank>(fabric, r));
  for (int r = 0; r < kRanks; r++) {
    tasks.push_back(message(*ranks[r], (r + 1) % kRanks, true, &in[r], 1));
    tasks.push_back(message(*ranks[r], (r + kRanks - 1) % kRanks, false, &out[r], 1));
  }
  std::vector<tuttiTask *> heads;
  for (tuttiTask &t : tasks)
    heads.push_back(&t);
  ASSERT_EQ(run(heads), tuttiSuccess);
  for (int r = 0; r < kRanks; r++)
    EXPECT_EQ(out[r], in[(r + kRanks - 1) % kRanks]);
}

/* ---- what ends a run early ------------------------------------------------------------------- */

TEST(Host, OtherOperationIsAMismatch) {
  Fabric fabric(2);
  Rank a(fabric, 0), b(fabric, 1);
  std::vector<int64_t> in = numbers(8), out(8);
  tuttiTask send = message(a, 1, true, in.data(), 8), recv = message(b, 0, false, out.data(), 8);
  send.signature.count = 9;
  EXPECT_EQ(run({&send, &recv}), tuttiInvalidUsage);
  EXPECT_EQ(b.mismatchPeer, 0);
  EXPECT_EQ(b.mine.count, 8u);
  EXPECT_EQ(b.theirs.count, 9u);
  EXPECT_EQ(out, std::vector<int64_t>(8)) << "written before it was checked";
}

/* A message written by hand for a receive of 16 elements, 128 bytes. */
class Forged : public testing::Test {
protected:
  Forged() : fabric(2, 1024), b(fabric, 1), out(16) {
    recv = message(b, 0, false, out.data(), 16);
    slot = fabric.fifo(0, 1, 32).descriptors.get();
    slot->sig = recv.signature;
    slot->bytes = 128;
    slot->where = TUTTI_WHERE_SLOT;
  }
  tuttiResult_t take() {
    tuttiStoreRelease(&slot->seq, 1);
    return run({&recv});
  }
  void expectRefused(const char *text) {
    EXPECT_EQ(take(), tuttiInvalidUsage);
    EXPECT_THAT(tuttiErrorText(), HasSubstr(text));
    EXPECT_THAT(tuttiErrorText(), HasSubstr("from rank 0 to rank 1 on channel 32"));
    EXPECT_EQ(b.mismatchPeer, -2);
  }
  Fabric fabric;
  Rank b;
  std::vector<int64_t> out;
  tuttiTask recv;
  tuttiSlotDescriptor *slot;
};

TEST_F(Forged, RightOneIsTaken) {
  EXPECT_EQ(take(), tuttiSuccess);
  EXPECT_EQ(tuttiLoadAcquire(&fabric.fifo(0, 1, 32).readers.get()->credit), 1u);
}

/* The message lies in memory of another process, here this one. */
class Fetched : public Forged {
protected:
  Fetched() : from(numbers(16)) {
    b.patienceMs = 100;
    slot->where = TUTTI_WHERE_DIRECT;
    slot->addr = (uintptr_t)from.data();
    writer() = {getpid(), 0, (uintptr_t)&word, word};
    probe = tuttiRemoteReadable(&writer());
  }
  void SetUp() override {
    if (!probe) GTEST_SKIP() << "this kernel forbids process_vm_readv";
  }
  tuttiRemote &writer() { return fabric.fifo(0, 1, 32).recv[0].writer; }
  std::vector<int64_t> from;
  uint64_t word = 4711;
  bool probe;
};

TEST_F(Fetched, IsCopied) {
  EXPECT_EQ(take(), tuttiSuccess);
  EXPECT_EQ(from, out);
}
TEST_F(Fetched, TakenBackMeanwhile) {
  fabric.fifo(0, 1, 32).readers.get()->withdrawn.v = 1;
  EXPECT_EQ(take(), tuttiTimeout) << "waits for the reason";
  EXPECT_EQ(b.stalls.at(0).first, 0);
}
TEST_F(Fetched, WriterIsGone) {
  writer().id++; /* its pid is another process's now */
  EXPECT_EQ(take(), tuttiTimeout);
}
TEST_F(Fetched, Unmapped) {
  slot->addr = 8;
  EXPECT_EQ(take(), tuttiSystemError);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("can't copy 128 bytes"));
  EXPECT_THAT(tuttiErrorText(), HasSubstr("TUTTI_CMA_DISABLE=1"));
}
TEST_F(Fetched, UnmappedAfterItWasTakenBack) {
  slot->addr = 8;
  fabric.fifo(0, 1, 32).readers.get()->withdrawn.v = 1;
  EXPECT_EQ(take(), tuttiTimeout);
}
TEST_F(Fetched, FromAProcessThatCantBeRead) {
  writer() = {};
  expectRefused("(place 2)");
}

TEST_F(Forged, FewerBytes) {
  slot->bytes = 120;
  expectRefused("holds 120 bytes (place 0) instead of 128");
}
TEST_F(Forged, MoreBytes) {
  slot->bytes = UINT32_MAX;
  expectRefused("holds 4294967295 bytes");
}
TEST_F(Forged, TooLargeForTheLine) {
  slot->where = TUTTI_WHERE_INLINE;
  expectRefused("(place 1)");
}
TEST_F(Forged, UnknownPlace) {
  slot->where = 3;
  expectRefused("(place 3)");
}
TEST_F(Forged, AddressInAnotherProcess) {
  slot->where = TUTTI_WHERE_DIRECT;
  slot->addr = (uintptr_t)out.data();
  expectRefused("(place 2)");
}
TEST_F(Forged, NoAddress) {
  fabric.fifo(0, 1, 32).recv[0].direct = 1;
  slot->where = TUTTI_WHERE_DIRECT;
  expectRefused("(place 2)");
}
TEST_F(Forged, TooLargeForTheSlot) {
  recv = message(b, 0, false, out.data(), 16, 16);
  fabric.fifo(0, 1, 32).recv[0].slotBytes = 64;
  expectRefused("(place 0)");
}

TEST(Host, SlotTooSmallForTheChunk) {
  Fabric fabric(2, 128);
  Rank a(fabric, 0);
  std::vector<int64_t> in = numbers(17);
  tuttiTask send = message(a, 1, true, in.data(), 17);
  EXPECT_EQ(run({&send}), tuttiInternalError);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("136 bytes from rank 0 to rank 1"));
}

TEST(Host, ConnectionThatCannotBeOpened) {
  Fabric fabric(2);
  Rank a(fabric, 0);
  a.refuse = true;
  int64_t v = 1;
  tuttiTask send = message(a, 1, true, &v, 1);
  EXPECT_EQ(run({&send}), tuttiSystemError);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("refused"));
}

TEST(Host, FailureEndsTheWait) {
  Fabric fabric(2);
  Rank b(fabric, 1);
  int64_t v = 1;
  tuttiTask recv = message(b, 0, false, &v, 1);
  const std::atomic<pid_t> self{threadId()};
  std::thread announcer([&] {
    waitUntilAsleep(self);
    tuttiStoreRelease32(&b.failed, 1);
  });
  EXPECT_EQ(run({&recv}), tuttiRemoteError);
  announcer.join();
  EXPECT_THAT(tuttiErrorText(), HasSubstr("announced"));
  EXPECT_EQ(run({&recv}), tuttiRemoteError) << "a failed communicator starts nothing";
}

TEST(Host, StalledEndsTheWait) {
  for (uint32_t spins : {0, 20000}) {
    Fabric fabric(3);
    Rank b(fabric, 1);
    b.context.spins = spins;
    b.patienceMs = 300;
    int64_t v = 1, w = 2;
    tuttiTask recv = message(b, 2, false, &v, 1), other = message(b, 0, false, &w, 1);
    uint64_t start = tuttiNow();
    EXPECT_EQ(run({&recv, &other}), tuttiTimeout);
    EXPECT_GE(tuttiNow() - start, 300u * 1000000);
    /* Told of once for each 100 ms, not for each task, and of the first of both. */
    ASSERT_GE(b.stalls.size(), 1u);
    EXPECT_LE(b.stalls.size(), 3u);
    for (size_t i = 0; i < b.stalls.size(); i++) {
      EXPECT_EQ(b.stalls[i].first, 2);
      EXPECT_GE(b.stalls[i].second, (i + 1) * 100);
    }
    EXPECT_EQ(b.mine.coll, tuttiCollSendRecv);
  }
}

/* Who waits long sleeps at the bell of what it waits for, and whoever brings that rings. */
TEST(Host, SleepsUntilItsPeerRings) {
  Fabric fabric(2);
  Rank a(fabric, 0), b(fabric, 1);
  Fifo &fifo = fabric.fifo(0, 1, 32);
  tuttiReader *reader = fifo.readers.get();
  std::vector<int64_t> out = numbers(5 * (TUTTI_FIFO_DESCRIPTORS + 1)), in(out.size());
  tuttiTask recv = message(b, 0, false, in.data(), 5, 5),
            first = message(a, 1, true, out.data(), 5, 5);
  tuttiTask rest = message(a, 1, true, out.data(), out.size(), 5);
  tuttiTask all = message(b, 0, false, in.data(), in.size(), 5);
  auto untilSet = [](tuttiAtomic32 *bell) {
    while (tuttiLoadAcquire32(bell) == 0)
      std::this_thread::yield();
  };
  std::thread receives([&] { EXPECT_EQ(run({&recv}), tuttiSuccess); });
  untilSet(&reader->readerBell);
  EXPECT_EQ(run({&first}), tuttiSuccess);
  receives.join();
  std::thread sends([&] { EXPECT_EQ(run({&rest}), tuttiSuccess); });
  untilSet(&reader->writerBell);
  EXPECT_EQ(run({&all}), tuttiSuccess);
  sends.join();
  EXPECT_EQ(in, out);
  EXPECT_EQ(reader->readerBell.v, 0u) << "awake, nobody leaves a bell set";
  EXPECT_EQ(reader->writerBell.v, 0u);
}

TEST(Host, RingsForWhoeverSleeps) {
  for (bool sends : {false, true}) {
    Fabric fabric(2);
    Rank a(fabric, 0), b(fabric, 1);
    tuttiReader *reader = fabric.fifo(0, 1, 32).readers.get();
    int64_t x = 1, y = 2;
    tuttiTask send = message(a, 1, true, &x, 1), recv = message(b, 0, false, &y, 1);
    if (sends) tuttiBellSet(&reader->readerBell);
    EXPECT_EQ(run({&send}), tuttiSuccess);
    EXPECT_EQ(reader->readerBell.v, 0u);
    if (!sends) tuttiBellSet(&reader->writerBell);
    EXPECT_EQ(run({&recv}), tuttiSuccess);
    EXPECT_EQ(reader->writerBell.v, 0u);
  }
}

/* A send waits for its reader, and the reader is named. */
TEST(Host, StalledSend) {
  for (uint64_t chunk : {5, 128}) {
    uint64_t depth = chunk == 5 ? TUTTI_FIFO_DESCRIPTORS : TUTTI_FIFO_DEPTH;
    Fabric fabric(2);
    Rank a(fabric, 0);
    a.patienceMs = 100;
    std::vector<int64_t> in = numbers(chunk * (depth + 1));
    tuttiTask send = message(a, 1, true, in.data(), in.size(), chunk);
    EXPECT_EQ(run({&send}), tuttiTimeout);
    EXPECT_EQ(a.stalls.at(0).first, 1);
    EXPECT_EQ(fabric.fifo(0, 1, 32).send.next, depth);
  }
}

/* Messages in lines run ahead; one that needs a slot waits until its slot is free again. */
TEST(Host, SlotsAreNotOverwrittenBehindLines) {
  Fabric fabric(2);
  Rank a(fabric, 0), b(fabric, 1);
  a.patienceMs = 100;
  std::vector<int64_t> in = numbers(128), lines = numbers(5 * 20), out(128);
  tuttiTask first = message(a, 1, true, in.data(), 128, 128);
  ASSERT_EQ(run({&first}), tuttiSuccess);
  tuttiTask small = message(a, 1, true, lines.data(), lines.size(), 5, 2);
  ASSERT_EQ(run({&small}), tuttiSuccess) << "20 messages in lines, behind one in a slot";
  std::vector<int64_t> other(128, -1);
  tuttiTask second = message(a, 1, true, other.data(), 128, 128, 3);
  EXPECT_EQ(run({&second}), tuttiTimeout);
  tuttiTask recv = message(b, 0, false, out.data(), 128, 128);
  ASSERT_EQ(run({&recv}), tuttiSuccess);
  EXPECT_EQ(in, out);
}

/* A gather of blocks that a network brings in as many messages as `pieces`. */
struct NetGather {
  static constexpr int kRanks = 4;
  Fabric fabric{kRanks, 65536, true};
  std::vector<tuttiPost> posts[kRanks];
  std::vector<int64_t> out;
  Rank root{fabric, 0};
  tuttiProxy *proxy = nullptr;
  tuttiTask task;

  NetGather(size_t block, size_t pieces) : out(kRanks * block * pieces) {
    auto fail = [](void *, tuttiResult_t, const char *) {};
    EXPECT_EQ(tuttiProxyCreate(&proxy, fail, nullptr), tuttiSuccess);
    root.context.proxy = proxy;
    task = gathers(root, block * pieces, block);
    task.recvbuff = out.data();
    for (int peer = 1; peer < kRanks; peer++) {
      tuttiConn &conn = fabric.fifo(peer, 0, 32).recv[0];
      posts[peer].resize(TUTTI_FIFO_DEPTH);
      conn.network = 1;
      conn.posts = posts[peer].data();
    }
  }
  ~NetGather() { tuttiProxyDestroy(proxy); }
  NetGather(const NetGather &) = delete;
  NetGather &operator=(const NetGather &) = delete;

  static tuttiTask gathers(Rank &rank, size_t count, size_t chunk) {
    static int64_t none[1];
    tuttiTask t = message(rank, 0, true, none, count, chunk);
    t.schedule.coll = tuttiCollGather;
    t.signature.coll = tuttiCollGather;
    t.signature.root = 0;
    return t;
  }
  /* How many of the peer's messages have a place, all of them right. */
  int posted(int peer) {
    int n = 0;
    size_t each = task.schedule.chunk, block = task.schedule.count;
    for (const tuttiPost &post : posts[peer]) {
      if (tuttiLoadAcquire(&post.seq) == 0) continue;
      EXPECT_EQ(post.addr, reinterpret_cast<uintptr_t>(&out[peer * block + n * each]));
      EXPECT_EQ(post.bytes, each * sizeof(int64_t));
      n++;
    }
    return n;
  }
};

/* Peers send at once what the root takes from one after the other. */
TEST(Host, PlacesAreAnnouncedBeforeTheirTurn) {
  for (size_t pieces : {1, 3, 20}) {
    size_t block = 65536 / sizeof(int64_t);
    NetGather g(block, pieces);
    std::vector<int64_t> own = numbers(block * pieces, -7);
    g.task.sendbuff = own.data();
    std::thread receives([&] { EXPECT_EQ(run({&g.task}), tuttiSuccess) << tuttiErrorText(); });
    int expected = (int)std::min<size_t>(pieces, TUTTI_FIFO_DEPTH);
    uint64_t until = tuttiDeadline(60000);
    for (int peer = 1; peer < NetGather::kRanks; peer++) {
      while (g.posted(peer) < expected && tuttiNow() < until)
        std::this_thread::yield();
      EXPECT_EQ(g.posted(peer), expected) << peer;
    }
    std::vector<int64_t> in[NetGather::kRanks];
    std::vector<std::thread> sends;
    for (int peer = 1; peer < NetGather::kRanks; peer++)
      sends.emplace_back([&, peer] {
        Rank rank(g.fabric, peer);
        in[peer] = numbers(block * pieces, peer * 1000000);
        tuttiTask send = NetGather::gathers(rank, block * pieces, block);
        send.sendbuff = in[peer].data();
        EXPECT_EQ(run({&send}), tuttiSuccess) << tuttiErrorText();
      });
    receives.join();
    for (std::thread &t : sends)
      t.join();
    in[0] = own;
    for (size_t peer = 0; peer < NetGather::kRanks; peer++)
      EXPECT_TRUE(std::equal(in[peer].begin(), in[peer].end(),
                             g.out.begin() + (ptrdiff_t)(peer * block * pieces)));
  }
}

/* Without a network there is nothing to halt. */
TEST(Host, AGatherWithinAHostFails) {
  for (int rank : {0, 1})
    for (bool direct : {false, true}) {
      const size_t block = 65536 / sizeof(int64_t), pieces = TUTTI_FIFO_DEPTH + 1;
      Fabric fabric(4, 65536, direct);
      Rank r(fabric, rank);
      r.patienceMs = 100;
      std::vector<int64_t> in(block * pieces), out(4 * in.size());
      tuttiTask t = NetGather::gathers(r, in.size(), block);
      t.sendbuff = in.data();
      t.recvbuff = out.data();
      EXPECT_EQ(run({&t}), tuttiTimeout) << rank;
    }
}

/* Others go on while one is stuck, and the stuck one is still told of. */
TEST(Host, StalledBesideOneThatMoves) {
  Fabric fabric(3);
  Rank a(fabric, 0), b(fabric, 1), c(fabric, 2);
  a.patienceMs = 200;
  int64_t v = 0;
  std::vector<int64_t> in = numbers(1 << 20), out(in.size());
  tuttiTask stuck = message(a, 2, false, &v, 1);
  std::vector<tuttiTask> sends(2000, message(b, 2, true, in.data(), in.size()));
  std::vector<tuttiTask> recvs(2000, message(c, 1, false, out.data(), out.size()));
  for (size_t i = 0; i + 1 < sends.size(); i++) {
    sends[i].next = &sends[i + 1];
    recvs[i].next = &recvs[i + 1];
  }
  EXPECT_EQ(run({&sends[0], &recvs[0], &stuck}), tuttiTimeout);
  EXPECT_EQ(a.stalls.at(0).first, 2);
  EXPECT_EQ(b.stalls.size() + c.stalls.size(), 0u);
  EXPECT_LT(fabric.fifo(1, 2, 32).send.next, sends.size() * in.size() / 128) << "told too late";
}

/* One of the same communicator that has used up its turn is between two steps, and waits for
 * nothing when the stuck one is told of. */
TEST(Host, StalledBesideOneBetweenTwoSteps) {
  Fabric fabric(3);
  Rank a(fabric, 0), b(fabric, 1);
  a.patienceMs = 200;
  int64_t v = 0;
  std::vector<int64_t> in = numbers(1 << 18), out(in.size());
  tuttiTask stuck = message(a, 2, false, &v, 1);
  std::vector<tuttiTask> sends(2000, message(a, 1, true, in.data(), in.size(), 5));
  std::vector<tuttiTask> recvs(2000, message(b, 0, false, out.data(), out.size(), 5));
  for (size_t i = 0; i + 1 < sends.size(); i++) {
    sends[i].next = &sends[i + 1];
    recvs[i].next = &recvs[i + 1];
  }
  EXPECT_EQ(run({&sends[0], &recvs[0], &stuck}), tuttiTimeout);
  EXPECT_EQ(a.stalls.at(0).first, 2);
  const tuttiConn *stuckOn = a.conns[TUTTI_RECV][0][32][2];
  for (const tuttiAwaited &w : a.awaited)
    EXPECT_TRUE(w.conn == stuckOn || w.conn == a.conns[TUTTI_SEND][0][32][1]) << w.conn;
  EXPECT_TRUE(std::any_of(a.awaited.begin(), a.awaited.end(),
                          [&](const tuttiAwaited &w) { return w.conn == stuckOn; }));
}

/* ---- network: a proxy carries the slots -------------------------------------------------------
 */

/* From the sender's FIFO to the receiver's own, as a transport would over a wire. */
struct Wire {
  tuttiConn from, to; /* the proxy's ends */
  std::atomic<uint64_t> carried{0};

  static tuttiProxyState advance(void *self, tuttiProxyTurn *turn) {
    (void)turn;
    Wire *w = static_cast<Wire *>(self);
    if (!tuttiConnReady(&w->from) || !tuttiConnReady(&w->to)) return TUTTI_PROXY_IDLE;
    const tuttiSlotDescriptor *in = tuttiConnDescriptor(&w->from);
    tuttiSlotDescriptor *out = tuttiConnDescriptor(&w->to);
    const void *data = in->where == TUTTI_WHERE_INLINE ? in->inlined
                       : in->where == TUTTI_WHERE_SLOT
                           ? (const void *)tuttiConnData(&w->from, in->bytes)
                           : (const void *)in->addr;
    bool small = in->where == TUTTI_WHERE_INLINE;
    out->bytes = in->bytes;
    out->sig = in->sig;
    out->where = small ? TUTTI_WHERE_INLINE : TUTTI_WHERE_SLOT;
    memcpy(small ? out->inlined : tuttiConnData(&w->to, in->bytes), data, in->bytes);
    tuttiConnAdvance(&w->from);
    tuttiConnAdvance(&w->to);
    w->carried++;
    return TUTTI_PROXY_MOVED;
  }
  static void close(void *) {}
};

/* Each side has a fabric of its own. */
TEST(Host, ProxyCarriesMessages) {
  for (bool direct : {false, true}) {
    Fabric out(2, 65536, direct), in(2, 65536, false);
    Rank a(out, 0), b(in, 1);
    tuttiProxy *proxy = nullptr;
    auto fail = [](void *, tuttiResult_t, const char *) { ADD_FAILURE(); };
    ASSERT_EQ(tuttiProxyCreate(&proxy, fail, nullptr), tuttiSuccess);
    Wire wire;
    wire.from = out.fifo(0, 1, 32).recv[0];
    wire.to = in.fifo(0, 1, 32).send;
    tuttiPost posts[TUTTI_FIFO_DEPTH]{};
    out.fifo(0, 1, 32).send.network = in.fifo(0, 1, 32).recv[0].network = 1;
    in.fifo(0, 1, 32).recv[0].posts = posts;
    tuttiProxyOp op = {Wire::advance,          Wire::close, &wire, false, tuttiProxyNothingToHalt,
                       tuttiProxyNothingToTell};
    ASSERT_EQ(tuttiProxyAdd(proxy, &op), tuttiSuccess);
    a.context.proxy = b.context.proxy = proxy;
    std::vector<int64_t> src = numbers(20000), dst(src.size());
    tuttiTask send = message(a, 1, true, src.data(), src.size(), 1024);
    tuttiTask recv = message(b, 0, false, dst.data(), dst.size(), 1024);
    ASSERT_EQ(run({&send, &recv}), tuttiSuccess) << tuttiErrorText();
    EXPECT_EQ(src, dst);
    EXPECT_EQ(wire.carried, 20u);

    /* Each side by itself: its proxy carries on in the background when the call has returned. */
    tuttiTask last = message(a, 1, true, src.data(), 10, 1024, 2);
    ASSERT_EQ(run({&last}), tuttiSuccess);
    recv = message(b, 0, false, dst.data(), 10, 1024, 2);
    ASSERT_EQ(run({&recv}), tuttiSuccess);
    tuttiProxyRemove(proxy, &wire);
    tuttiProxyDestroy(proxy);
  }
}

/* ---- lending --------------------------------------------------------------------------------- */

/* The reader is this test: it sees the address, and the sender's call lasts until it is done. */
TEST(Host, LentMemoryIsHeldUntilTaken) {
  Fabric fabric(2, 65536, true);
  std::vector<int64_t> in = numbers(1024);
  std::atomic<bool> returned{false};
  std::atomic<pid_t> sends{0};
  std::thread sender([&] {
    Rank a(fabric, 0);
    tuttiTask send = message(a, 1, true, in.data(), 1024, 512);
    sends = threadId();
    EXPECT_EQ(run({&send}), tuttiSuccess);
    returned = true;
  });
  Fifo &fifo = fabric.fifo(0, 1, 32);
  for (uint64_t n = 0; n < 2; n++) {
    tuttiSlotDescriptor *slot = fifo.descriptors.get() + n;
    while (tuttiLoadAcquire(&slot->seq) != n + 1)
      std::this_thread::yield();
    EXPECT_EQ(slot->where, (uint32_t)TUTTI_WHERE_DIRECT);
    EXPECT_EQ(slot->addr, (uintptr_t)(in.data() + n * 512));
    EXPECT_EQ(slot->bytes, 4096u);
  }
  tuttiStoreRelease(&fifo.readers.get()->credit, 1);
  waitUntilAsleep(sends);
  EXPECT_FALSE(returned);
  tuttiStoreRelease(&fifo.readers.get()->credit, 2);
  sender.join();
}

TEST(Host, LentMemoryThatNobodyTakes) {
  Fabric fabric(2, 65536, true);
  Rank a(fabric, 0);
  a.patienceMs = 100;
  std::vector<int64_t> in = numbers(512);
  tuttiTask send = message(a, 1, true, in.data(), 512, 512);
  EXPECT_EQ(run({&send}), tuttiTimeout);
  EXPECT_EQ(a.stalls.at(0).first, 1);
}

/* The lender has failed and the word of it is late: the reader waits, and names the lender. */
TEST(Host, WithdrawnMemoryIsNotRead) {
  Fabric fabric(2, 65536, true);
  Rank a(fabric, 0), b(fabric, 1);
  a.patienceMs = 100;
  b.patienceMs = 250;
  std::vector<int64_t> in = numbers(512), out(512);
  tuttiTask send = message(a, 1, true, in.data(), 512, 512);
  EXPECT_EQ(run({&send}), tuttiTimeout);
  tuttiTask recv = message(b, 0, false, out.data(), 512, 512);
  EXPECT_EQ(run({&recv}), tuttiTimeout);
  ASSERT_GE(b.stalls.size(), 1u);
  for (auto &stall : b.stalls)
    EXPECT_EQ(stall.first, 0);
  EXPECT_EQ(out, std::vector<int64_t>(512));
}

/* After a call has failed its buffers are the caller's: no proxy reads them any more. */
TEST(Host, FailureHaltsTheProxyOfLentMemory) {
  Fabric out(2, 65536, true), in(2, 65536, false);
  Rank a(out, 0);
  tuttiProxy *proxy = nullptr;
  auto fail = [](void *, tuttiResult_t, const char *) { ADD_FAILURE(); };
  ASSERT_EQ(tuttiProxyCreate(&proxy, fail, nullptr), tuttiSuccess);
  Wire wire; /* that nobody reads from: it carries what its own FIFO holds, and stops */
  wire.from = out.fifo(0, 1, 32).recv[0];
  wire.to = in.fifo(0, 1, 32).send;
  out.fifo(0, 1, 32).send.network = 1;
  tuttiProxyOp op = {Wire::advance,          Wire::close, &wire, false, tuttiProxyNothingToHalt,
                     tuttiProxyNothingToTell};
  ASSERT_EQ(tuttiProxyAdd(proxy, &op), tuttiSuccess);
  a.context.proxy = proxy;
  a.enough = [&] { return wire.carried == TUTTI_FIFO_DEPTH; };
  auto src = std::make_unique<std::vector<int64_t>>(numbers(10 * 1024));
  tuttiTask send = message(a, 1, true, src->data(), src->size(), 1024);
  EXPECT_EQ(run({&send}), tuttiTimeout);
  src.reset();
  EXPECT_EQ(wire.carried, TUTTI_FIFO_DEPTH);
  tuttiStoreRelease(&in.fifo(0, 1, 32).readers.get()->credit, TUTTI_FIFO_DEPTH); /* room again */
  tuttiProxyKick(proxy);
  for (int i = 0; i < 20; i++)
    tuttiProxyRun(proxy);
  tuttiProxyRemove(proxy, &wire); /* the thread's passes have ended too */
  EXPECT_EQ(wire.carried, TUTTI_FIFO_DEPTH) << "read memory that was taken back";
  tuttiProxyDestroy(proxy);
}

TEST(Host, FailureHaltsTheProxyThatMayWriteToItsBuffer) {
  Fabric fabric(2, 65536);
  Rank b(fabric, 1);
  b.patienceMs = 100;
  auto fail = [](void *, tuttiResult_t, const char *) { ADD_FAILURE(); };
  ASSERT_EQ(tuttiProxyCreate(&b.context.proxy, fail, nullptr), tuttiSuccess);
  std::atomic<int> turns{0};
  tuttiProxyOp op = {[](void *self, tuttiProxyTurn *) {
                       ++*static_cast<std::atomic<int> *>(self);
                       return TUTTI_PROXY_IDLE;
                     },
                     [](void *) {},
                     &turns,
                     true,
                     tuttiProxyNothingToHalt,
                     tuttiProxyNothingToTell};
  ASSERT_EQ(tuttiProxyAdd(b.context.proxy, &op), tuttiSuccess);
  tuttiConn *in = &fabric.fifo(0, 1, 32).recv[0];
  tuttiPost posts[TUTTI_FIFO_DEPTH]{};
  in->network = 1;
  in->posts = posts;
  std::vector<int64_t> out(1024);
  tuttiTask recv = message(b, 0, false, out.data(), out.size(), out.size());
  EXPECT_EQ(run({&recv}), tuttiTimeout);
  EXPECT_EQ(tuttiPosted(in, 0, out.size() * 8), (uint8_t *)out.data());
  int before = turns;
  tuttiProxyRun(b.context.proxy);
  EXPECT_EQ(before, turns) << "may still write to memory that is the caller's again";
  tuttiProxyRemove(b.context.proxy, &turns);
  tuttiProxyDestroy(b.context.proxy);
}

/* Small or unreachable messages are copied, and the call does not wait for the reader. */
TEST(Host, CopiesAreNotWaitedFor) {
  for (bool direct : {false, true}) {
    Fabric fabric(2, 65536, direct);
    Rank a(fabric, 0);
    std::vector<int64_t> in = numbers(512);
    size_t count = direct ? 511 : 512;
    tuttiTask send = message(a, 1, true, in.data(), count, 512);
    ASSERT_EQ(run({&send}), tuttiSuccess);
    Fifo &fifo = fabric.fifo(0, 1, 32);
    EXPECT_EQ(fifo.descriptors.get()->where, (uint32_t)TUTTI_WHERE_SLOT);
    EXPECT_EQ(memcmp(fifo.data.data(), in.data(), count * 8), 0);
  }
}

/* A network that sends out of registered memory alone is lent nothing else. */
TEST(Host, ANetworkIsLentWhatIsRegistered) {
  for (bool registered : {false, true}) {
    Fabric fabric(2, 65536, true);
    Rank a(fabric, 0);
    a.patienceMs = 100;
    Fifo &fifo = fabric.fifo(0, 1, 32);
    fifo.send.registered = 1;
    std::vector<int64_t> in = numbers(512);
    uint64_t id = 0;
    if (registered) {
      ASSERT_EQ(tuttiRegionAdd(in.data(), in.size() * 8, &id), tuttiSuccess);
    }
    tuttiTask send = message(a, 1, true, in.data(), 512, 512);
    EXPECT_EQ(run({&send}), registered ? tuttiTimeout : tuttiSuccess) << "nobody reads";
    const tuttiSlotDescriptor *slot = fifo.descriptors.get();
    if (registered) {
      EXPECT_EQ(slot->where, (uint32_t)TUTTI_WHERE_DIRECT);
      EXPECT_EQ(slot->addr, (uintptr_t)in.data());
      EXPECT_TRUE(tuttiRegionRemove(id));
    } else {
      EXPECT_EQ(slot->where, (uint32_t)TUTTI_WHERE_SLOT);
      EXPECT_EQ(memcmp(fifo.data.data(), in.data(), in.size() * 8), 0);
    }
  }
}

TEST(Host, SmallMessagesTravelInTheLine) {
  Fabric fabric(2);
  Rank a(fabric, 0);
  std::vector<int64_t> in = numbers(10);
  tuttiTask send = message(a, 1, true, in.data(), 10);
  ASSERT_EQ(run({&send}), tuttiSuccess);
  tuttiSlotDescriptor *slot = fabric.fifo(0, 1, 32).descriptors.get();
  EXPECT_EQ(slot->where, (uint32_t)TUTTI_WHERE_INLINE);
  EXPECT_EQ(memcmp(slot->inlined, in.data(), 80), 0);
}

} // namespace

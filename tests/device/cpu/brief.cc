/* Small operations without the state of a run: what they carry out, and what they leave. */
#include <gtest/gtest.h>

#include <cstring>

#include "device/cpu/brief.h"
#include "fabric.h"

namespace {

/* A rank's part of an all-reduce of `count` elements in messages of at most 512: all send, then all
 * receive. */
struct Side {
  Side(Fabric &fabric, int rank, uint64_t count = 1)
      : rank(fabric, rank), in(count, rank + 1), out(count) {
    task.schedule.coll = tuttiCollAllReduce;
    task.schedule.algo = tuttiAlgoDirect;
    task.schedule.rank = rank;
    task.schedule.nranks = fabric.nranks();
    task.schedule.count = task.schedule.part = count;
    task.schedule.chunk = 512;
    task.schedule.depth = TUTTI_FIFO_DEPTH;
    task.signature.seq = 1;
    task.signature.count = count;
    task.type = tuttiInt32;
    task.op = tuttiSum;
    task.sendbuff = in.data();
    task.recvbuff = out.data();
    task.context = &this->rank.context;
    this->rank.context.spins = 10;
    learn();
    for (int peer = fabric.nranks() - 1; peer >= 0; peer--)
      for (tuttiDirection direction : {TUTTI_RECV, TUTTI_SEND})
        if (peer != rank) Rank::connect(&this->rank, peer, 0, direction, false, &conns[direction]);
  }
  void learn() {
    known.steps = tuttiScheduleSteps(&task.schedule);
    known.scratch = tuttiScheduleScratch(&task.schedule) * sizeof in[0];
    for (uint64_t k = 0; k < known.steps && k < TUTTI_KNOWN_STEPS; k++)
      tuttiScheduleStep(&task.schedule, k, &known.first[k]);
    task.known = &known;
  }
  uint64_t run() { return tuttiCpuRunBriefly(&task, scratch, sizeof scratch); }
  uint64_t taken() { return tuttiLoadAcquire(&conns[TUTTI_RECV]->readers[0].credit); }

  Rank rank;
  std::vector<int32_t> in, out;
  tuttiTask task{};
  tuttiKnownSteps known{};
  uint8_t scratch[256];
  tuttiConn *conns[2]; /* with the lowest other rank */
};

class Brief : public testing::TestWithParam<uint64_t> {};

TEST_P(Brief, CarriesOutAllSteps) {
  Fabric fabric(2, 2048);
  Side a(fabric, 0, GetParam()), b(fabric, 1, GetParam());
  ASSERT_EQ(a.known.steps, 2u);
  EXPECT_EQ(a.run(), 1u) << "without the other it can only send";
  EXPECT_EQ(b.run(), 2u);
  EXPECT_EQ(b.out, std::vector<int32_t>(GetParam(), 3));
  EXPECT_EQ(b.taken(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Brief, testing::Values(1, 20, 21, 512));

/* To the same bits everywhere, as the executor does. */
TEST(Brief, ReducesInTheOrderOfRanks) {
  Fabric fabric(3, 2048);
  const float in[3] = {1e8f, -1e8f, 1.0f};
  std::deque<Side> sides;
  for (int r = 0; r < 3; r++) {
    Side &side = sides.emplace_back(fabric, r);
    side.task.type = tuttiFloat32;
    side.task.sendbuff = &in[r];
    EXPECT_EQ(side.run(), r < 2 ? 1u : 2u);
  }
  float out;
  memcpy(&out, sides[2].out.data(), sizeof out);
  EXPECT_EQ(out, 1.0f);
}

/* Blocks between all pairs: all send theirs, and the last one finds those of all others. */
class BriefPairs : public testing::TestWithParam<int> {};

TEST_P(BriefPairs, AreCarriedOutAsFarAsStepsAreKept) {
  int n = GetParam();
  Fabric fabric(n, 2048);
  std::deque<Side> sides;
  std::vector<int32_t> wanted;
  for (int r = 0; r < n; r++) {
    Side &side = sides.emplace_back(fabric, r);
    side.in.assign(static_cast<size_t>(n), r + 1);
    side.out.resize(static_cast<size_t>(n));
    side.task.schedule.coll = tuttiCollAlltoAll;
    side.task.sendbuff = side.in.data();
    side.task.recvbuff = side.out.data();
    side.learn();
    wanted.push_back(r + 1);
  }
  bool kept = sides[0].known.steps <= TUTTI_KNOWN_STEPS;
  EXPECT_EQ(kept, n <= 16);
  for (int r = 0; r < n; r++) /* all that it sends, its own, and what those before it have sent */
    EXPECT_EQ(sides[r].run(), kept ? static_cast<uint64_t>(n + r) : 0) << r;
  if (kept) {
    EXPECT_EQ(sides[n - 1].out, wanted);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, BriefPairs, testing::Values(5, 16, 17));

/* Ranks that gather along a binomial tree: what inner ones pass on is in scratch memory meanwhile.
 */
struct Gather {
  explicit Gather(int n, uint64_t count) : count(count), fabric(n, 16384) {
    for (int r = 0; r < n; r++) {
      Side &side = sides.emplace_back(fabric, r, count);
      side.task.schedule.coll = tuttiCollGather;
      side.task.schedule.algo = tuttiAlgoDoubling;
      side.task.schedule.chunk = 4096;
      side.out.resize(static_cast<size_t>(n) * count);
      side.task.recvbuff = side.out.data();
      side.learn();
    }
  }
  void execute(int r) {
    tuttiTask *task = &sides[r].task;
    EXPECT_EQ(tuttiCpuRun(&task, 1), tuttiSuccess);
  }
  void expectAll() {
    for (uint64_t i = 0; i < sides[0].out.size(); i++)
      ASSERT_EQ(sides[0].out[i], static_cast<int32_t>(i / count + 1)) << i;
  }

  uint64_t count;
  Fabric fabric;
  std::deque<Side> sides;
};

TEST(Brief, KeepsBlocksInScratchMemory) {
  Gather g(4, 3);
  for (int r : {3, 1, 2, 0})
    EXPECT_EQ(g.sides[r].run(), g.sides[r].known.steps) << r;
  g.expectAll();
}

TEST(Brief, NeedsRoomForThem) {
  Gather g(4, 3);
  g.sides[0].known.scratch = sizeof g.sides[0].scratch + 1;
  EXPECT_EQ(g.sides[0].run(), 0u);
}

/* The root's later messages are too long to be taken briefly. The executor finds the first blocks
 * where they are, and where all that it needs is more than its stack has room for. */
TEST(Brief, HandsThemOver) {
  for (auto [n, count] : {std::pair(4, 300), std::pair(16, 250)}) {
    Gather g(n, static_cast<uint64_t>(count));
    for (int r = n - 1; r >= 0; r--)
      g.execute(r);
    g.expectAll();
  }
}

TEST(Brief, LeavesLargeMessages) {
  Fabric fabric(2, 4096);
  Side a(fabric, 0, 513);
  a.task.schedule.chunk = 1024;
  tuttiScheduleStep(&a.task.schedule, 0, &a.known.first[0]);
  EXPECT_EQ(a.run(), 0u);
  EXPECT_EQ(a.conns[TUTTI_SEND]->next, 0u);
}

TEST(Brief, LeavesSlotsThatAreTooSmall) {
  Fabric fabric(2, 1024);
  Side a(fabric, 0, 512);
  EXPECT_EQ(a.run(), 0u);
}

TEST(Brief, LeavesNetworks) {
  Fabric fabric(2, 2048);
  Side a(fabric, 0);
  a.conns[TUTTI_SEND]->network = 1;
  EXPECT_EQ(a.run(), 0u);
}

TEST(Brief, LeavesConnectionsThatAreNotOpen) {
  Fabric fabric(2, 2048);
  Side a(fabric, 0);
  a.rank.conns[TUTTI_SEND][0][0][1] = nullptr;
  EXPECT_EQ(a.run(), 0u);
  a.rank.conns[TUTTI_SEND][0][0] = nullptr;
  EXPECT_EQ(a.run(), 0u);
  EXPECT_EQ(a.rank.connects, 2);
}

TEST(Brief, TakesConnectionsThatAreOpenedLater) {
  Fabric fabric(2, 2048);
  Side a(fabric, 0);
  tuttiConn *&conn = a.rank.conns[TUTTI_SEND][0][0][1], *opened = conn;
  conn = nullptr;
  EXPECT_EQ(a.run(), 0u);
  conn = opened;
  EXPECT_EQ(a.run(), 1u);
}

TEST(Brief, LooksForItsConnectionsOnce) {
  Fabric fabric(2, 2048);
  Side a(fabric, 0), b(fabric, 1);
  EXPECT_EQ(b.run(), 1u);
  EXPECT_EQ(a.run(), 2u);
  EXPECT_EQ(a.known.found, 2u);
  a.rank.conns[TUTTI_SEND][0][0] = a.rank.conns[TUTTI_RECV][0][0] = nullptr;
  EXPECT_EQ(a.run(), 1u);
}

TEST(Brief, LeavesWhatIsWrong) {
  Fabric fabric(2, 2048);
  Side a(fabric, 0), b(fabric, 1);
  a.task.signature.root = 7;
  ASSERT_EQ(a.run(), 1u);
  EXPECT_EQ(b.run(), 1u);
  EXPECT_EQ(b.taken(), 0u);
  EXPECT_EQ(b.out[0], 0);
}

TEST(Brief, LeavesAForgedPlace) {
  Fabric fabric(2, 2048);
  Side a(fabric, 0), b(fabric, 1);
  ASSERT_EQ(a.run(), 1u);
  for (uint32_t where : {TUTTI_WHERE_SLOT, TUTTI_WHERE_DIRECT}) {
    b.conns[TUTTI_RECV]->descriptors[0].where = where;
    EXPECT_LT(b.run(), 2u);
    EXPECT_EQ(b.taken(), 0u);
  }
}

TEST(Brief, StopsWhereTheCommunicatorHasFailed) {
  Fabric fabric(2, 2048);
  Side a(fabric, 0);
  tuttiStoreRelease32(&a.rank.failed, 1);
  EXPECT_EQ(a.run(), 0u);
}

TEST(Brief, LeavesRunsOfWhichStampsAreAskedFor) {
  Fabric fabric(2, 2048);
  Side a(fabric, 0);
  tuttiAtomic64 first{};
  tuttiIdle idle{&first, 0};
  a.rank.context.idle = &idle;
  EXPECT_EQ(a.run(), 0u);
  idle.first = nullptr;
  EXPECT_EQ(a.run(), 1u);
}

} // namespace

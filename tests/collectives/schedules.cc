#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "simulate.h"

namespace {

class Schedules : public testing::TestWithParam<Way> {
protected:
  bool isDirect() const { return GetParam().algo == tuttiAlgoDirect; }
};

INSTANTIATE_TEST_SUITE_P(Every, Schedules, testing::ValuesIn(allWays()),
                         [](const auto &info) { return nameOf(info.param); });

/* Counts below, at and above the number of ranks; chunks that divide nothing, and that exceed all.
 */
TEST_P(Schedules, EveryNumberOfRanks) {
  std::mt19937 random(1);
  bool manySteps = GetParam().algo == tuttiAlgoDoubling && GetParam().coll == tuttiCollAlltoAll;
  for (int n = 1; n <= 64; n += kSanitized ? 7 : 1) {
    const uint64_t counts[] = {0, 1, static_cast<uint64_t>(n) - 1, static_cast<uint64_t>(n) + 1,
                               1 + random() % (3 * n + 20)};
    for (uint64_t count : counts) {
      if (manySteps && count != counts[n % 5]) continue;
      for (bool inPlace : {false, true}) {
        const int perHost[] = {1, 3, 8, 64};
        tuttiSimulation sim =
            simulationOf(GetParam(), n, perHost[random() % 4], count, 1 + random() % (count + 2));
        sim.root = static_cast<int>(random() % n);
        sim.channel = static_cast<int>(random() % 2);
        sim.inPlace = inPlace;
        sim.seed = random();
        expectGood(sim);
        if (HasFailure()) return;
      }
    }
  }
}

/* Rounds that go round the ranks, folds and trees are others for every number of ranks. Messages of
 * one element, of a few blocks, and of all at once. */
TEST_P(Schedules, DoublingOfEveryNumberOfRanks) {
  if (GetParam().algo != tuttiAlgoDoubling) return;
  std::mt19937 random(2);
  for (int n = 65; n <= 257; n += kSanitized ? 64 : 1) {
    const uint64_t chunks[] = {1 + random() % 8, static_cast<uint64_t>(n), 4096};
    tuttiSimulation sim =
        simulationOf(GetParam(), n, 8, 1 + random() % 3, chunks[n == 257 ? 2 : random() % 3]);
    if (GetParam().coll < tuttiCollAllGather) sim.count = 1 + random() % (2 * n);
    sim.root = static_cast<int>(random() % n);
    sim.inPlace = n % 2 == 0;
    sim.depth = 1 + n % 3;
    sim.seed = random();
    expectGood(sim);
    if (HasFailure()) return;
  }
}

struct FreeGraph {
  void operator()(tuttiGraph *g) const { tuttiGraphFree(g); }
};

/* The graph of hosts with so many ranks, each beside one of as many rails, as far as there are so
 * many. */
std::unique_ptr<tuttiGraph, FreeGraph> gridOf(int nranks, int perHost, int channels) {
  int nrails = std::min(perHost, TUTTI_GRAPH_RAILS);
  std::vector<uint64_t> hosts;
  std::vector<uint8_t> distance;
  for (int r = 0; r < nranks; r++) {
    hosts.push_back(1000 + r / perHost);
    for (int k = 0; k < nrails; k++)
      distance.push_back(r % perHost % nrails == k ? 1 : 4);
  }
  const tuttiGraphRails rails = {nrails, distance.data()};
  tuttiGraph *made = nullptr;
  EXPECT_EQ(tuttiGraphCreate(hosts.data(), nranks, &rails, channels, &made), tuttiSuccess);
  return std::unique_ptr<tuttiGraph, FreeGraph>(made);
}

/* Each number of ranks from 65 to 257 that makes several hosts of several ranks, in all ways in
 * which it does; of all-to-alls, whose messages are many, in one way. */
TEST_P(Schedules, HierarchicalOfEveryGrid) {
  const Way &way = GetParam();
  if (way.algo != tuttiAlgoHierarchical) return;
  std::mt19937 random(3);
  int numbers = 0;
  for (int n = 65; n <= 257; n += kSanitized ? 31 : 1) {
    std::vector<int> ways;
    for (int perHost = 2; perHost <= n / 2; perHost++)
      if (n % perHost == 0) ways.push_back(perHost);
    numbers += !ways.empty();
    if (way.coll == tuttiCollAlltoAll && !ways.empty()) ways = {ways[random() % ways.size()]};
    for (int perHost : ways) {
      auto graph = gridOf(n, perHost, 4);
      ASSERT_TRUE(graph && tuttiGraphIsGrid(graph.get()));
      tuttiSimulation sim = {};
      sim.coll = way.coll;
      sim.algo = way.algo;
      sim.count = 1 + random() % (way.coll < tuttiCollAllGather ? 2 * n : 3);
      sim.chunk = 1 + random() % 3;
      sim.depth = 2 + static_cast<int>(random() % 3);
      sim.channel = static_cast<int>(random() % 4);
      sim.inPlace = random() % 2;
      sim.seed = random();
      sim.graph = graph.get();
      expectGood(sim);
      if (HasFailure()) return;
    }
  }
  EXPECT_EQ(numbers, kSanitized ? 5 : 156);
}

/* An executor has room for so many connections. */
TEST_P(Schedules, NoRankHasMorePeersThanTold) {
  using Peers = std::map<int, std::set<int>>;
  struct Pairs {
    Peers to, from;
  };
  bool pairs = isDirect() || GetParam().coll == tuttiCollAlltoAll;
  bool perRank = GetParam().coll >= tuttiCollAllGather;
  for (int n : {2, 3, 5, 8, 17, 24, 33, 65, 129}) {
    if (pairs && n > 33) break;
    for (int perHost : {1, 3, 8}) {
      Pairs found;
      tuttiSimulation sim = simulationOf(GetParam(), n, perHost, perRank ? 2 : 2 * n, n);
      sim.root = n / 2;
      sim.context = &found;
      sim.sent = [](void *context, int from, int to, uint64_t) {
        if (from == to) return; /* shared */
        static_cast<Pairs *>(context)->to[from].insert(to);
        static_cast<Pairs *>(context)->from[to].insert(from);
      };
      expectGood(sim);
      size_t most = static_cast<size_t>(tuttiSchedulePeers(GetParam().coll, GetParam().algo, n));
      for (const Peers *peers : {&found.to, &found.from})
        for (const auto &[rank, others] : *peers)
          EXPECT_LE(others.size(), most)
              << n << " ranks, " << perHost << " per host, rank " << rank;
      if (HasFailure()) return;
    }
  }
}

/* Long pipelines at every depth from the least, in many orders. The all-reduce and the gathers over
 * a ring, in which every rank first sends, need a depth of 2, and so does a two-shot all-reduce
 * over the FIFOs of pairs, where both phases share a FIFO. */
TEST_P(Schedules, NoDeadlockAtAnyDepth) {
  const Way &way = GetParam();
  bool chain = way.coll == tuttiCollBroadcast || way.coll == tuttiCollReduce;
  bool grid = way.algo == tuttiAlgoHierarchical && way.coll != tuttiCollAlltoAll;
  bool ring = (way.algo == tuttiAlgoRing && !chain) || grid;
  bool twoPhases = way.twoShot && !way.shared && way.coll == tuttiCollAllReduce;
  int least = ring || twoPhases ? 2 : 1;
  const std::pair<int, int> ranksPerHost[] = {{2, 4}, {3, 4}, {4, 4},  {7, 4},
                                              {6, 3}, {8, 2}, {12, 4}, {16, 8}};
  for (auto [n, perHost] : ranksPerHost)
    for (int depth : {1, 2, 3, 4, 5, 8})
      for (unsigned seed = 0; seed < (kSanitized ? 4 : 12); seed++) {
        if (depth < least) continue;
        tuttiSimulation sim = simulationOf(way, n, perHost, 3 * n * 9 + 1, 3);
        sim.depth = depth;
        sim.inPlace = seed % 4 > 1;
        sim.root = static_cast<int>(seed) % n;
        sim.seed = seed;
        expectGood(sim);
        if (HasFailure()) return;
      }
}

/* A channel's part: nothing outside it is touched. Large ranges are cut at aligned elements, but
 * not where that would make one longer than a chunk. */
TEST_P(Schedules, PartOfAChannel) {
  if (gathersTwice(GetParam())) return;
  const std::pair<uint64_t, uint64_t> partsAndChunks[] = {{33333, 2048}, {32 * 1025, 1025}};
  for (auto [part, chunk] : partsAndChunks)
    for (int n : {1, 2, 5, 8})
      for (bool inPlace : {false, true}) {
        tuttiSimulation sim = simulationOf(GetParam(), n, 2, 40000, chunk);
        sim.begin = 1024;
        sim.part = part;
        sim.inPlace = inPlace;
        sim.root = n - 1;
        sim.channel = 1;
        expectGood(sim);
      }
}

/* Samples up to 4,096 ranks; all pairs of ranks, up to 256. */
TEST_P(Schedules, ManyRanks) {
  bool perRank = GetParam().coll >= tuttiCollAllGather;
  std::vector<int> sizes = {100, 128, 255};
  bool pairs = isDirect() || GetParam().coll == tuttiCollAlltoAll;
  if (!pairs || gathersTwice(GetParam())) sizes.insert(sizes.end(), {777, 1024});
  if (!isDirect() && !perRank) sizes.push_back(4096);
  if (kSanitized) sizes = {100, 128};
  for (int n : sizes) {
    tuttiSimulation sim = simulationOf(GetParam(), n, 8, perRank ? 2 : 1000, perRank ? 1 : 64);
    sim.root = n / 3;
    sim.inPlace = true;
    sim.seed = static_cast<uint64_t>(n);
    expectGood(sim);
  }
}

/* However small the count, no rank does more than an even share of it rounded up: the bound of a
 * ring and of the direct two-shot, which cut everything into nranks slices. */
TEST(Balance, SmallCountsSpreadOverRanks) {
  for (int n : {2, 3, 8, 13})
    for (uint64_t count : {1, 2, 7, 8, 12, 100, 1000, 70000}) {
      uint64_t share = (count + n - 1) / n, steps = 2 * (static_cast<uint64_t>(n) - 1);
      for (const Way &way : {Way{tuttiCollAllReduce, tuttiAlgoRing},
                             Way{tuttiCollAllReduce, tuttiAlgoDirect, false, true}}) {
        tuttiSimulationResult r = expectGood(simulationOf(way, n, 8, count, 4096));
        /* Slices of large counts are aligned; each may then be that much longer. */
        uint64_t slack = count > 10000 ? 64 * 3 : 1;
        EXPECT_LE(r.maxSent, steps * (share + slack)) << nameOf(way) << " " << n << " " << count;
        EXPECT_LE(r.maxReceived, steps * (share + slack)) << nameOf(way) << " " << n;
        if (count == static_cast<uint64_t>(n)) {
          EXPECT_EQ(r.maxSent, steps);
        }
      }
    }
}

/* Messages that must follow each other: what latency is made of. */
TEST(Latency, DependentMessages) {
  for (int n : {2, 5, 8, 64}) {
    auto chain = [n](const Way &way) {
      return expectGood(simulationOf(way, n, 8, 1000, 1000)).longestChain;
    };
    uint64_t others = static_cast<uint64_t>(n) - 1;
    uint64_t depth = static_cast<uint64_t>(graphOf(n, 8)->depth[0]);
    EXPECT_EQ(chain({tuttiCollAllReduce, tuttiAlgoRing}), 2 * others);
    EXPECT_EQ(chain({tuttiCollAllGather, tuttiAlgoRing}), others);
    EXPECT_EQ(chain({tuttiCollReduceScatter, tuttiAlgoRing}), others);
    EXPECT_EQ(chain({tuttiCollBroadcast, tuttiAlgoRing}), others);
    EXPECT_EQ(chain({tuttiCollReduce, tuttiAlgoRing}), others);
    EXPECT_EQ(chain({tuttiCollAllReduce, tuttiAlgoTree}), 2 * depth);
    for (bool shared : {false, true}) {
      EXPECT_EQ(chain({tuttiCollAllReduce, tuttiAlgoDirect, shared}), 1u);
      EXPECT_EQ(chain({tuttiCollAllReduce, tuttiAlgoDirect, shared, true}), 2u);
      EXPECT_EQ(chain({tuttiCollAllGather, tuttiAlgoDirect, shared, true}), 2u);
      for (int coll = tuttiCollBroadcast; coll < tuttiCollSendRecv; coll++)
        EXPECT_EQ(chain({coll, tuttiAlgoDirect, shared}), 1u) << coll;
    }
  }
}

TEST(Latency, DoublingHasALogarithmOfRounds) {
  for (int n : {2, 3, 4, 5, 8, 13, 64}) {
    auto run = [n](int coll, bool twoShot = false) {
      uint64_t count = coll >= tuttiCollAllGather ? 3 : 3 * n;
      return expectGood(
          simulationOf({coll, tuttiAlgoDoubling, false, twoShot}, n, 8, count, 3 * n));
    };
    uint64_t rounds = tuttiRounds(n), ranks = static_cast<uint64_t>(n);
    bool power = (n & (n - 1)) == 0;
    uint64_t folded = run(tuttiCollAllReduce).longestChain;
    EXPECT_GE(folded, power ? rounds : rounds - 1) << n;
    EXPECT_LE(folded, power ? rounds : rounds + 1) << n;
    EXPECT_EQ(run(tuttiCollAllReduce, true).longestChain, 2 * rounds) << n;
    EXPECT_EQ(run(tuttiCollAllReduce, true).messages, 2 * rounds * ranks) << n;
    for (int coll : {tuttiCollAllGather, tuttiCollReduceScatter, tuttiCollAlltoAll}) {
      EXPECT_EQ(run(coll).longestChain, rounds) << n << " " << coll;
      EXPECT_EQ(run(coll).messages, rounds * ranks) << n << " " << coll;
    }
    for (int coll : {tuttiCollBroadcast, tuttiCollReduce, tuttiCollGather, tuttiCollScatter}) {
      EXPECT_LE(run(coll).longestChain, rounds) << n << " " << coll;
      EXPECT_EQ(run(coll).messages, ranks - 1) << n << " " << coll;
    }
  }
}

/* What a two-shot all-gather is for. */
TEST(Latency, TwoShotGatherSparesMessages) {
  for (uint64_t n : {2, 3, 4, 8, 64}) {
    Way one = {tuttiCollAllGather, tuttiAlgoDirect}, two = {one.coll, one.algo, false, true};
    EXPECT_EQ(expectGood(simulationOf(one, n, 8, 10, 1000)).messages, n * (n - 1));
    EXPECT_EQ(expectGood(simulationOf(two, n, 8, 10, 1000)).messages, 2 * (n - 1));
  }
}

/* A tree's pieces overlap: a hundred take little longer than one, as parents and children do not
 * wait for each other's round trip. */
TEST(Latency, TreePiecesOverlap) {
  Way way = {tuttiCollAllReduce, tuttiAlgoTree};
  for (int n : {8, 64, 512}) {
    uint64_t one = expectGood(simulationOf(way, n, 1, 64, 64)).longestChain;
    uint64_t many = expectGood(simulationOf(way, n, 1, 64 * 100, 64)).longestChain;
    EXPECT_LE(many, one + 100) << n << " ranks";
  }
}

TEST(Plans, TreeOf16384Ranks) {
  int n = kSanitized ? 1024 : 16384;
  for (int coll : {tuttiCollAllReduce, tuttiCollBroadcast, tuttiCollReduce}) {
    tuttiSimulation sim = simulationOf({coll, tuttiAlgoTree}, n, 8, 64, 8);
    sim.inPlace = true;
    sim.root = coll == tuttiCollAllReduce ? 0 : 5;
    tuttiSimulationResult r = expectGood(sim);
    /* 2 * 15 hops there and back, and 8 pieces behind each other. */
    EXPECT_LT(r.longestChain, 100u);
  }
}

/* Every element once, in order, in messages of at most a chunk. */
void expectCovered(tuttiSchedule *s) {
  uint64_t steps = tuttiScheduleSteps(s), at = s->begin;
  ASSERT_LE(steps, 1000u);
  for (uint64_t k = 0; k < steps; k++) {
    tuttiStep step;
    tuttiScheduleStep(s, k, &step);
    EXPECT_EQ(s->sending ? step.src : step.dst, at);
    EXPECT_LE(step.count, s->chunk);
    EXPECT_GT(step.count, 0u);
    EXPECT_EQ(step.nsend, s->sending ? 1 : 0);
    EXPECT_EQ(step.nrecv, s->sending ? 0 : 1);
    EXPECT_EQ(s->sending ? step.send[0] : step.recv[0], s->root);
    at += step.count;
  }
  EXPECT_EQ(at, s->begin + s->part);
}

TEST(PointToPoint, CoversThePart) {
  for (uint64_t part : {uint64_t{0}, uint64_t{1}, uint64_t{100}, uint64_t{12345}})
    for (uint64_t chunk : {uint64_t{64}, uint64_t{100}, UINT64_MAX})
      for (int sending : {0, 1}) {
        tuttiSchedule s = {};
        s.coll = tuttiCollSendRecv;
        s.algo = tuttiAlgoDirect;
        s.rank = 1;
        s.nranks = 4;
        s.root = 3;
        s.count = s.part = part;
        s.chunk = chunk;
        s.sending = static_cast<uint8_t>(sending);
        expectCovered(&s);
      }
}

/* The last step of a huge operation is still right: nothing overflows on the way. */
TEST_P(Schedules, HugeCounts) {
  const Way &way = GetParam();
  if (gathersTwice(way)) return;
  int n = way.algo == tuttiAlgoHierarchical ? 8 : 7; /* a grid wants equal hosts */
  uint64_t count = (uint64_t{1} << 62) - 12345;
  if (way.coll >= tuttiCollAllGather) count /= n;
  for (int rank = 0; rank < n; rank++) {
    tuttiSchedule s = {};
    s.coll = way.coll;
    s.algo = way.algo;
    s.shared = way.shared;
    s.twoShot = way.twoShot;
    s.root = 2;
    s.count = s.part = count;
    s.chunk = 1 << 17;
    tuttiScheduleSetup(&s, graphOf(n, 4), 0, rank);
    uint64_t steps = tuttiScheduleSteps(&s),
             total = way.coll >= tuttiCollAllGather ? n * count : count;
    ASSERT_GE(steps, count / n / s.chunk);
    bool idle = way.algo == tuttiAlgoDoubling; /* nothing before block 0 */
    if (way.coll == tuttiCollAlltoAll && way.algo == tuttiAlgoHierarchical) idle = true;
    uint64_t moved = 0;
    for (uint64_t k = steps - 8 * n; k < steps; k++) {
      tuttiStep step;
      tuttiScheduleStep(&s, k, &step);
      EXPECT_LE(step.count, s.chunk);
      moved += step.count;
      if (idle && step.count == 0) continue;
      EXPECT_GT(step.count, 0u);
      EXPECT_LE(step.src, total - step.count);
      EXPECT_LE(step.dst, total - step.count);
    }
    EXPECT_GT(moved, 0u);
  }
}

} // namespace

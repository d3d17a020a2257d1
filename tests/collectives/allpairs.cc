/* Every one-shot and two-shot collective as a kernel would run it, chunk by chunk, on vectors. */
#include "collectives/allpairs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "collectives/simulate.h"
#include "oracle.h"

namespace {

constexpr uint64_t kPoison = 0xdeadbeefdeadbeefu;
constexpr uint64_t kCounts[] = {0, 1, 2, 7, 63, 64, 65, 1000};
constexpr uint64_t kWhole = UINT64_MAX; /* a chunk */

/* Element i of rank r's input. Sums of them tell which operands are in, and how often. */
uint64_t value(int r, uint64_t i) {
  uint64_t h = ((uint64_t)r + 1) * 0x9e3779b97f4a7c15u ^ (i + 1) * 0xc2b2ae3d27d4eb4fu;
  return (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
}

struct Case {
  int coll, n, root;
  bool twoShot, inPlace;
  uint64_t count, align, chunk;
};

std::string textOf(const Case &k) {
  return std::string(tuttiCollName(k.coll)) + (k.twoShot ? " two-shot" : "") + " ranks " +
         std::to_string(k.n) + " root " + std::to_string(k.root) + " count " +
         std::to_string(k.count) + " align " + std::to_string(k.align) + " chunk " +
         std::to_string(k.chunk) + (k.inPlace ? " in place" : "");
}

tuttiAllPairs allPairsOf(const Case &k, int rank) {
  tuttiSchedule s = {};
  s.coll = k.coll;
  s.rank = rank;
  s.nranks = k.n;
  s.root = k.root;
  s.twoShot = k.twoShot;
  s.count = k.count;
  tuttiAllPairs x;
  memset(&x, 0xee, sizeof x);
  tuttiAllPairsMake(&s, k.align, &x);
  return x;
}

oracle::Call callOf(const Case &k) {
  return {.coll = k.coll, .nranks = k.n, .root = k.root, .count = k.count};
}

bool rooted(int coll) {
  return coll == tuttiCollBroadcast || coll == tuttiCollReduce || coll == tuttiCollGather ||
         coll == tuttiCollScatter;
}

/* Elements that cross links. */
uint64_t wire(const Case &k) {
  uint64_t n = (uint64_t)k.n, others = n - 1;
  bool two = k.twoShot && n > 2;
  switch (k.coll) {
  case tuttiCollAllReduce:
    return k.twoShot ? 2 * others * k.count : n * others * k.count;
  case tuttiCollReduce:
    return two ? n * k.count : others * k.count;
  case tuttiCollBroadcast:
  case tuttiCollGather:
  case tuttiCollScatter:
    return others * k.count;
  default:
    return n * others * k.count;
  }
}

/* ---- the simulation ---------------------------------------------------------------------------
 */

class Simulation {
public:
  explicit Simulation(const Case &k) : k(k), ranks((size_t)k.n) {
    for (int r = 0; r < k.n; r++) {
      Rank &me = ranks[(size_t)r];
      oracle::Layout layout = oracle::layoutOf(callOf(k), r, k.inPlace);
      me.send = layout.send;
      me.recv = layout.recv;
      me.sendSize = oracle::sends(callOf(k), r);
      me.recvSize = oracle::receives(callOf(k), r);
      me.memory.assign(layout.all, kPoison);
      for (uint64_t i = 0; i < me.sendSize; i++)
        me.memory[me.send + i] = value(r, i);
      me.x = allPairsOf(k, r);
      me.messages.resize((size_t)k.n);
    }
  }

  /* The first thing that is wrong, or "". */
  std::string run() {
    if (!agrees()) return fault;
    uint64_t longest = 0;
    for (auto &me : ranks) {
      longest = std::max(longest, me.x.count);
      for (auto &p : me.x.peer)
        longest = std::max({longest, p.outCount, p.inCount, p.lateCount});
    }
    uint64_t loops = k.chunk == kWhole ? 1 : (longest + k.chunk - 1) / k.chunk;
    uint64_t lag = loops > 1;
    for (uint64_t i = 0; i < loops + 2 * lag && fault.empty(); i++) {
      for (int r = 0; r < k.n && i < loops; r++)
        send(r, i);
      for (int r = 0; r < k.n && i >= lag && i - lag < loops; r++)
        takeFirst(r, i - lag);
      for (int r = 0; r < k.n && i >= 2 * lag; r++)
        takeLate(r, i - 2 * lag);
    }
    if (fault.empty()) checkEnd();
    return fault;
  }

private:
  struct Rank {
    std::vector<uint64_t> memory;
    uint64_t send, recv, sendSize, recvSize;
    tuttiAllPairs x;
    std::vector<std::deque<uint64_t>> messages; /* from each rank, in order */
  };

  bool fail(const std::string &what, int r) {
    if (fault.empty()) fault = what + " on rank " + std::to_string(r) + ": " + textOf(k);
    return false;
  }

  /* Both ends of each message expect the same. */
  bool agrees() {
    for (int p = 0; p < k.n; p++)
      for (int q = 0; q < k.n; q++) {
        const tuttiAllPairs &a = ranks[(size_t)p].x, &b = ranks[(size_t)q].x;
        const tuttiAllPairsPeer &out = a.peer[q], &in = b.peer[p];
        if (p == q && (out.outCount || out.inCount || out.lateCount || out.spread))
          return fail("a message to itself", p);
        if (out.outCount != in.inCount) return fail("sends what is not expected", p);
        if ((out.spread ? a.count : 0) != in.lateCount) return fail("spreads another count", p);
        if (out.spread && !a.combine) return fail("spreads what it has not", p);
        if (b.combine && in.inCount && in.inCount != b.count) return fail("operands differ", q);
      }
    return saysTheSame();
  }

  /* What each rank says of all is so. */
  bool saysTheSame() {
    const tuttiAllPairs &first = ranks[0].x;
    for (int r = 0; r < k.n; r++) {
      const tuttiAllPairs &x = ranks[(size_t)r].x;
      if (x.rooted != first.rooted || x.direct != first.direct || x.shared != first.shared)
        return fail("believes something else of all", r);
      if (x.rooted != rooted(k.coll)) return fail("is wrong about the root", r);
      if (x.direct && x.combine) return fail("combines what was to be placed", r);
      if (x.direct && k.coll == tuttiCollBroadcast)
        return fail("asks where a message is wanted", r);
      if (!x.direct && !x.combine && takes(x) && k.coll != tuttiCollBroadcast)
        return fail("places what was to be combined", r);
      if ((x.shared & 1) && !sendsTheSame(r)) return fail("sends not the same to all", r);
      if ((x.shared & 2) && x.count && !spreadsToAll(r)) return fail("spreads not to all", r);
    }
    return true;
  }
  static bool takes(const tuttiAllPairs &x) {
    return std::any_of(x.peer, x.peer + TUTTI_ALLPAIRS_MAX,
                       [](const tuttiAllPairsPeer &p) { return p.inCount > 0; });
  }
  const tuttiAllPairsPeer &someOther(int r) const { return ranks[(size_t)r].x.peer[r == 0]; }
  bool sendsTheSame(int r) const {
    for (int p = 0; p < k.n; p++) {
      const tuttiAllPairsPeer &e = ranks[(size_t)r].x.peer[p], &other = someOther(r);
      if (p != r && (e.outAt != other.outAt || e.outCount != other.outCount)) return false;
    }
    return true;
  }
  bool spreadsToAll(int r) const {
    for (int p = 0; p < k.n; p++)
      if (p != r && !ranks[(size_t)r].x.peer[p].spread) return false;
    return true;
  }

  /* [begin, end) of chunk i of `size` elements. */
  uint64_t begin(uint64_t size, uint64_t i) const {
    return k.chunk == kWhole ? (i ? size : 0) : std::min(size, i * k.chunk);
  }

  uint64_t *input(int r, uint64_t at) {
    Rank &me = ranks[(size_t)r];
    if (at < me.sendSize) return &me.memory[me.send + at];
    fail("reads beyond its input", r);
    return &nowhere;
  }
  uint64_t *output(int r, uint64_t at) {
    Rank &me = ranks[(size_t)r];
    if (at < me.recvSize) return &me.memory[me.recv + at];
    fail("writes beyond its output", r);
    return &nowhere;
  }
  uint64_t take(int r, int from) {
    auto &queue = ranks[(size_t)r].messages[(size_t)from];
    if (queue.empty()) {
      fail("waits for ever", r);
      return 0;
    }
    uint64_t v = queue.front();
    queue.pop_front();
    return v;
  }
  void give(int r, int to, uint64_t v) {
    ranks[(size_t)to].messages[(size_t)r].push_back(v);
    moved++;
  }

  void send(int r, uint64_t i) {
    for (int p = 0; p < k.n; p++) {
      const tuttiAllPairs &x = ranks[(size_t)r].x;
      const tuttiAllPairsPeer &e = x.peer[p];
      for (uint64_t at = begin(e.outCount, i); at < begin(e.outCount, i + 1); at++) {
        uint64_t v = *input(r, e.outAt + at);
        give(r, p, v);
        if (x.mirror) *output(r, e.outAt + at) = v;
      }
    }
  }

  void takeFirst(int r, uint64_t i) {
    const tuttiAllPairs &x = ranks[(size_t)r].x;
    for (int p = 0; p < k.n && !x.combine; p++)
      for (uint64_t at = begin(x.peer[p].inCount, i); at < begin(x.peer[p].inCount, i + 1); at++)
        *output(r, x.peer[p].placeAt + at) = take(r, p);
    if (!x.combine && !x.own) return;
    for (uint64_t at = begin(x.count, i); at < begin(x.count, i + 1); at++) {
      uint64_t v = x.own ? *input(r, x.ownAt + at) : 0;
      for (int p = 0; p < k.n && x.combine; p++)
        if (x.peer[p].inCount) v += take(r, p);
      for (int p = 0; p < k.n; p++)
        if (x.peer[p].spread) give(r, p, v);
      if (x.keep || !x.combine) *output(r, x.keepAt + at) = v;
    }
  }

  void takeLate(int r, uint64_t i) {
    for (int p = 0; p < k.n; p++) {
      const tuttiAllPairsPeer &e = ranks[(size_t)r].x.peer[p];
      for (uint64_t at = begin(e.lateCount, i); at < begin(e.lateCount, i + 1); at++)
        *output(r, e.lateAt + at) = take(r, p);
    }
  }

  void checkEnd() {
    const oracle::Call call = callOf(k);
    for (int r = 0; r < k.n; r++) {
      Rank &me = ranks[(size_t)r];
      for (auto &queue : me.messages)
        if (!queue.empty()) fail("has not taken all", r);
      for (uint64_t i = 0; i < me.recvSize; i++)
        if (me.memory[me.recv + i] != oracle::expected(call, r, i, tuttiSum, value))
          fail("wrong element " + std::to_string(i), r);
      for (uint64_t i = 0; i < me.sendSize && (!k.inPlace || me.recvSize == 0); i++)
        if (me.memory[me.send + i] != value(r, i)) fail("has changed its input", r);
    }
    if (moved != wire(k)) fail("moves " + std::to_string(moved) + " elements, all together", 0);
  }

  Case k;
  std::vector<Rank> ranks;
  std::string fault;
  uint64_t moved = 0, nowhere = 0;
};

/* ---- tests ------------------------------------------------------------------------------------
 */

class AllPairs : public testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(AllPairs, EveryRankGetsWhatIsWanted) {
  auto [coll, twoShot] = GetParam();
  std::vector<uint64_t> aligns = {1};
  if (twoShot) aligns = {1, 2, 3, 16, 32, 64};
  for (int n = 1; n <= TUTTI_ALLPAIRS_MAX; n++)
    for (int root = 0; root < (oracle::rooted(coll) ? n : 1); root++)
      for (uint64_t count : kCounts)
        for (uint64_t align : aligns)
          for (bool inPlace : {false, true})
            for (uint64_t chunk : {kWhole, (uint64_t)16, (uint64_t)64}) {
              if (inPlace && coll == tuttiCollAlltoAll) continue;
              if (kSanitized && (count == 1000 || (root && root < n - 1))) continue;
              Simulation sim({coll, n, root, twoShot, inPlace, count, align, chunk});
              ASSERT_EQ(sim.run(), "");
            }
}

std::string nameOf(const testing::TestParamInfo<std::tuple<int, bool>> &info) {
  return std::string(tuttiCollName(std::get<0>(info.param))) +
         (std::get<1>(info.param) ? "TwoShot" : "OneShot");
}

INSTANTIATE_TEST_SUITE_P(Collectives, AllPairs,
                         testing::Combine(testing::Range((int)tuttiCollAllReduce,
                                                         (int)tuttiCollSendRecv),
                                          testing::Bool()),
                         nameOf);

TEST(AllPairsSlices, TileWithoutGapOrOverlap) {
  for (int n = 1; n <= TUTTI_ALLPAIRS_MAX; n++)
    for (int without = -1; without < n; without++) {
      if (n == 1 && without == 0) continue;
      for (uint64_t align = 1; align <= 64; align++)
        for (uint64_t count : {0, 1, 2, 7, 63, 64, 65, 1000, 123457}) {
          uint64_t end = 0, least = UINT64_MAX, most = 0;
          for (int r = 0; r < n; r++) {
            uint64_t at = 77, size = 77;
            tuttiAllPairsShare(count, align, n, r, without, &at, &size);
            if (r == without) {
              ASSERT_EQ(size, 0u);
              continue;
            }
            ASSERT_EQ(at, end) << n << " ranks without " << without << " align " << align;
            ASSERT_TRUE(at % align == 0 || size == 0);
            end = at + size;
            least = std::min(least, size);
            most = std::max(most, size);
          }
          ASSERT_EQ(end, count);
          ASSERT_LE(most - least, 2 * align - 1) << "one line at most, and what the last one lacks";
        }
    }
}

/* So that no count that fits a buffer overflows on the way. */
TEST(AllPairsSlices, HugeCounts) {
  for (uint64_t count : {UINT64_MAX / 8, (uint64_t)1 << 60, ((uint64_t)1 << 40) + 1}) {
    uint64_t end = 0;
    for (int r = 0; r < 7; r++) {
      uint64_t at, size;
      tuttiAllPairsShare(count, 128, 7, r, -1, &at, &size);
      ASSERT_EQ(at, end);
      end += size;
    }
    EXPECT_EQ(end, count);
  }
}

} // namespace

/* The host executor on the real schedules: every collective, algorithm and variant, with copies and
 * with lending, all ranks in one thread and each in its own, against results computed here. */
#include <gtest/gtest.h>

#include <cstring>
#include <ostream>
#include <string>
#include <thread>

#include "collectives/graph.h"
#include "fabric.h"
#include "oracle.h"

namespace {

struct Way {
  int coll, algo;
  bool shared, twoShot;
};

std::string nameOf(const Way &w) {
#define ALGO_NAME(name) #name,
  static const char *const algos[] = {TUTTI_ALGORITHMS(ALGO_NAME)};
#undef ALGO_NAME
  return std::string(tuttiCollName(w.coll)) + algos[w.algo] + (w.twoShot ? "TwoShot" : "") +
         (w.shared ? "Shared" : "");
}
void PrintTo(const Way &w, std::ostream *out) {
  *out << nameOf(w);
}

std::vector<Way> allWays() {
  std::vector<Way> ways;
  for (int coll = tuttiCollAllReduce; coll < tuttiCollSendRecv; coll++)
    for (int algo = 0; algo < tuttiAlgoCount; algo++)
      for (bool shared : {false, true})
        for (bool twoShot : {false, true}) {
          bool direct = algo == tuttiAlgoDirect, doubles = algo == tuttiAlgoDoubling;
          bool twice = (coll == tuttiCollAllReduce && (direct || doubles)) ||
                       (coll == tuttiCollAllGather && direct);
          if (!tuttiScheduleExists(coll, algo) || (shared && !direct) || (twoShot && !twice))
            continue;
          ways.push_back({coll, algo, shared, twoShot});
        }
  return ways;
}

/* All blocks go in one message of one channel. */
bool gathersTwice(const Way &w) {
  return w.coll == tuttiCollAllGather && w.twoShot;
}

struct Setting {
  int nranks;
  uint64_t count, chunk;
  bool direct, inPlace, threads;
  int op = tuttiSum; /* tuttiNumOps: PreMulSum */
  bool fetch = false;
  bool known = false; /* one channel, whose first steps are known */
  uint32_t spins = 0;
};

/* One collective on int32, whose reductions are exact in any order. */
class Job {
public:
  Job(const Way &way, const Setting &set) : way_(way), set_(set), root_(set.nranks - 1) {
    std::vector<uint64_t> hosts;
    for (int r = 0; r < n(); r++)
      hosts.push_back(7 + r / 3);
    EXPECT_EQ(tuttiGraphCreate(hosts.data(), n(), nullptr, 2, &graph_), tuttiSuccess);
    oracle::Call whole = call();
    for (int r = 0; r < n(); r++) {
      /* Memory that holds both buffers, apart or one inside the other. */
      std::vector<int32_t> &m = memory_.emplace_back(sends() + receives() + 1, kUntouched);
      /* In place is a matter of the root, but for a broadcast, where all give one buffer. */
      bool overlap = set.inPlace &&
                     (r == root_ || way.coll == tuttiCollBroadcast || !oracle::rooted(way.coll));
      ptrdiff_t shift = oracleInPlace(&whole, r);
      int32_t *send = m.data() + (overlap && shift < 0 ? -shift : 0);
      int32_t *recv = m.data() + (!overlap ? (ptrdiff_t)sends() : shift > 0 ? shift : 0);
      for (uint64_t i = 0; i < sends(); i++)
        send[i] = input(r, i);
      send_.push_back(send);
      recv_.push_back(recv);
    }
  }
  ~Job() { tuttiGraphFree(graph_); }
  Job(const Job &) = delete;

  int n() const { return set_.nranks; }

  /* Both channels of rank r, or the only one. */
  std::vector<tuttiTask> tasks(Rank &rank, uint64_t seq) const {
    std::vector<tuttiTask> list;
    int channels = gathersTwice(way_) || set_.known ? 1 : 2;
    for (int channel = 0; channel < channels; channel++) {
      tuttiTask t{};
      t.schedule.coll = way_.coll;
      t.schedule.algo = way_.algo;
      t.schedule.root = root_;
      t.schedule.shared = way_.shared;
      t.schedule.twoShot = way_.twoShot;
      t.schedule.count = set_.count;
      uint64_t half = set_.count / channels;
      t.schedule.begin = channel * half;
      t.schedule.part = channel == 0 ? half : set_.count - half;
      t.schedule.chunk = set_.chunk;
      t.schedule.rank = rank.rank;
      t.schedule.nranks = n();
      tuttiGraphPlace(graph_, channel, oracle::rooted(way_.coll) ? root_ : -1, &t.schedule);
      t.schedule.depth = TUTTI_FIFO_DEPTH;
      t.signature.seq = seq;
      t.signature.count = set_.count;
      t.signature.coll = (uint8_t)way_.coll;
      t.signature.type = tuttiInt32;
      t.channel = channel;
      t.sendbuff = send_[rank.rank];
      t.recvbuff = recv_[rank.rank];
      t.type = tuttiInt32;
      t.op = set_.op == tuttiNumOps ? tuttiSum : (tuttiRedOp_t)set_.op;
      t.divide = set_.op == tuttiAvg ? n() : 0;
      t.premul = set_.op == tuttiNumOps;
      t.scalar.i = (uint64_t)(rank.rank + 2);
      t.inPlace = set_.inPlace;
      t.plan.fetch = set_.fetch;
      t.context = &rank.context;
      list.push_back(t);
    }
    return list;
  }

  void check() const {
    for (int r = 0; r < n(); r++) {
      for (uint64_t i = 0; i < oracle::receives(call(), r); i++)
        ASSERT_EQ(recv_[r][i], expected(r, i)) << "rank " << r << " element " << i;
      ASSERT_EQ(memory_[r].back(), kUntouched) << "rank " << r << " wrote behind its buffer";
      if (set_.inPlace) continue;
      for (uint64_t i = 0; i < sends(); i++)
        ASSERT_EQ(send_[r][i], input(r, i)) << "rank " << r << " sendbuff " << i;
    }
  }

private:
  static constexpr int32_t kUntouched = 0x7e7e7e7e;

  oracle::Call call() const {
    return {.coll = way_.coll, .nranks = n(), .root = root_, .count = set_.count};
  }
  /* Of the root, where the others send or receive nothing: all have such buffers. */
  uint64_t sends() const { return oracle::sends(call(), root_); }
  uint64_t receives() const { return oracle::receives(call(), root_); }
  int32_t input(int rank, uint64_t i) const { return (int32_t)(i * 7 + 3) * (rank + 1) - 11; }

  /* A PreMulSum is the sum of what each rank has multiplied by its own factor. */
  int32_t expected(int rank, uint64_t i) const {
    bool premul = set_.op == tuttiNumOps;
    auto op = premul ? tuttiSum : (tuttiRedOp_t)set_.op;
    return oracle::expected(call(), rank, i, op, [&](int r, uint64_t at) {
      return (int32_t)((int64_t)input(r, at) * (premul ? r + 2 : 1));
    });
  }

  Way way_;
  Setting set_;
  int root_;
  tuttiGraph *graph_ = nullptr;
  std::vector<std::vector<int32_t>> memory_;
  std::vector<int32_t *> send_, recv_;
};

tuttiResult_t runTasks(std::vector<tuttiTask> tasks) {
  std::vector<tuttiTask *> heads;
  for (tuttiTask &t : tasks)
    heads.push_back(&t);
  return tuttiCpuRun(heads.data(), (int)heads.size());
}

/* The only task of a call, whose steps a communicator keeps. */
tuttiResult_t runKnown(tuttiTask task) {
  tuttiKnownSteps known{};
  known.steps = tuttiScheduleSteps(&task.schedule);
  for (uint64_t k = 0; k < known.steps && k < TUTTI_KNOWN_STEPS; k++)
    tuttiScheduleStep(&task.schedule, k, &known.first[k]);
  task.known = &known;
  return runTasks({task});
}

/* Three times on the same connections, so that what one operation leaves behind meets the next. */
void runJob(const Way &way, Setting set) {
  if (gathersTwice(way)) set.chunk = std::max(set.chunk, set.count * set.nranks);
  Fabric fabric(set.nranks, set.chunk * 4, set.direct, set.fetch);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int r = 0; r < set.nranks; r++)
    ranks.push_back(std::make_unique<Rank>(fabric, r));
  for (auto &rank : ranks)
    rank->context.spins = set.spins;
  for (uint64_t seq = 1; seq <= 3; seq++) {
    Job job(way, set);
    if (set.threads) {
      std::vector<std::thread> threads;
      std::vector<tuttiResult_t> results(set.nranks);
      for (int r = 0; r < set.nranks; r++)
        threads.emplace_back([&, r] {
          std::vector<tuttiTask> tasks = job.tasks(*ranks[r], seq);
          results[r] = set.known ? runKnown(tasks[0]) : runTasks(tasks);
        });
      for (std::thread &t : threads)
        t.join();
      for (tuttiResult_t result : results)
        ASSERT_EQ(result, tuttiSuccess);
    } else {
      std::vector<tuttiTask> all;
      for (auto &rank : ranks)
        for (const tuttiTask &t : job.tasks(*rank, seq))
          all.push_back(t);
      ASSERT_EQ(runTasks(all), tuttiSuccess) << tuttiErrorText();
    }
    ASSERT_NO_FATAL_FAILURE(job.check());
  }
}

class Collectives : public testing::TestWithParam<Way> {
protected:
  void runAll(const Setting &base) {
    for (bool direct : {false, true})
      for (bool inPlace : {false, true}) {
        if (inPlace && GetParam().coll == tuttiCollAlltoAll) continue;
        Setting set = base;
        set.direct = direct;
        set.inPlace = inPlace;
        ASSERT_NO_FATAL_FAILURE(runJob(GetParam(), set))
            << set.nranks << " ranks, count " << set.count << ", chunk " << set.chunk
            << (direct ? ", direct" : "") << (inPlace ? ", in place" : "") << ", op " << set.op;
      }
  }
};

TEST_P(Collectives, OneThread) {
  for (int nranks : kSanitized ? std::vector<int>{1, 3} : std::vector<int>{1, 2, 3, 4, 6, 7, 8, 9})
    for (uint64_t count : {1, 37, 9001})
      for (uint64_t chunk : {16, 1500, 4096}) {
        if (count / chunk > 100) continue;
        ASSERT_NO_FATAL_FAILURE(runAll({nranks, count, chunk, false, false, false}));
      }
}

/* A rank lends its memory to more others than one step can name. */
TEST_P(Collectives, ManyPeers) {
  int algo = GetParam().algo;
  bool many = algo == tuttiAlgoDoubling || algo == tuttiAlgoHierarchical; /* eight hosts of three */
  if (kSanitized || !many) return;
  int nranks = algo == tuttiAlgoDoubling ? 40 : 24;
  ASSERT_NO_FATAL_FAILURE(runAll({nranks, 2100, 4096, false, false, false}));
}

TEST_P(Collectives, Threads) {
  for (int nranks : {2, 5})
    for (uint64_t chunk : {20, 2048})
      ASSERT_NO_FATAL_FAILURE(runAll({nranks, chunk * 31 + 5, chunk, false, false, true}));
}

/* Readers copy large messages out of the writers' memory. */
TEST_P(Collectives, Fetch) {
  if (oracle::reduces(GetParam().coll)) return;
  for (int nranks : {2, 5})
    for (bool inPlace : {false, true})
      for (bool threads : {false, true}) {
        if (inPlace && GetParam().coll == tuttiCollAlltoAll) continue;
        Setting set{nranks, 9001, 4096, false, inPlace, threads};
        set.fetch = true;
        ASSERT_NO_FATAL_FAILURE(runJob(GetParam(), set)) << nranks << " ranks";
      }
}

/* Of few bytes: in descriptors, behind them, and of more than one step; ranks that come late, too.
 */
TEST_P(Collectives, Small) {
  for (int nranks : {2, 3, 9})
    for (uint64_t count : {1, 20, 21, 500})
      for (int op : {tuttiSum, tuttiAvg, tuttiNumOps})
        for (uint32_t spins : {0, 20000}) {
          if (op != tuttiSum && (count != 20 || !oracle::reduces(GetParam().coll))) continue;
          if (nranks == 9 && count != 20) continue; /* its steps have more messages */
          Setting set{nranks, count, 512, false, false, true, op};
          set.known = true;
          set.spins = spins;
          ASSERT_NO_FATAL_FAILURE(runAll(set)) << spins << " spins";
        }
}

class Reductions : public Collectives {};

TEST_P(Reductions, Operations) {
  for (int op : {tuttiMax, tuttiAvg, tuttiNumOps})
    for (int nranks : {1, 2, 5})
      ASSERT_NO_FATAL_FAILURE(runAll({nranks, 5000, 1500, false, false, false, op}));
}

std::vector<Way> reducingWays() {
  std::vector<Way> ways;
  for (const Way &w : allWays())
    if (oracle::reduces(w.coll)) ways.push_back(w);
  return ways;
}

std::string wayName(const testing::TestParamInfo<Way> &info) {
  return nameOf(info.param);
}

INSTANTIATE_TEST_SUITE_P(Host, Collectives, testing::ValuesIn(allWays()), wayName);
INSTANTIATE_TEST_SUITE_P(Host, Reductions, testing::ValuesIn(reducingWays()), wayName);

/* One-shot: all ranks reduce the same operands in the order of ranks, to the same bits. */
TEST(Host, EveryRankHasTheSameBits) {
  constexpr int kRanks = 5;
  constexpr uint64_t kCount = 500;
  Fabric fabric(kRanks, 4096);
  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<std::vector<float>> in(kRanks), out(kRanks, std::vector<float>(kCount));
  std::vector<tuttiTask> tasks;
  for (int r = 0; r < kRanks; r++) {
    ranks.push_back(std::make_unique<Rank>(fabric, r));
    for (uint64_t i = 0; i < kCount; i++)
      in[r].push_back((r % 2 ? -1e8f : 1e8f) + 1.37f * (float)((i * 31 + r * 17) % 101));
  }
  for (int r = 0; r < kRanks; r++) {
    tuttiTask t{};
    t.schedule.coll = tuttiCollAllReduce;
    t.schedule.algo = tuttiAlgoDirect;
    t.schedule.rank = r;
    t.schedule.nranks = kRanks;
    t.schedule.shared = 1;
    t.schedule.count = t.schedule.part = kCount;
    t.schedule.chunk = 1000;
    t.schedule.depth = TUTTI_FIFO_DEPTH;
    t.sendbuff = in[r].data();
    t.recvbuff = out[r].data();
    t.type = tuttiFloat32;
    t.context = &ranks[r]->context;
    tasks.push_back(t);
  }
  ASSERT_EQ(runTasks(tasks), tuttiSuccess);
  for (uint64_t i = 0; i < kCount; i++) {
    volatile float sum = in[0][i];
    for (int r = 1; r < kRanks; r++)
      sum = sum + in[r][i];
    for (int r = 0; r < kRanks; r++)
      ASSERT_EQ(out[r][i], sum) << "rank " << r;
  }
}

} // namespace

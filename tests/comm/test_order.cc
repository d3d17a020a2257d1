/* What must stay in order: operations of a non-blocking communicator, splits of one communicator in
 * one group, reduction handles that are destroyed before their operation runs. */
#include <sys/resource.h>

#include <atomic>

#include "harness.h"

using testing::AllOf;
using testing::HasSubstr;

namespace {

std::string lastError(tuttiComm_t comm = nullptr) {
  return tuttiGetLastError(comm);
}

/* n non-blocking ranks, all driven by the test's one thread. */
class Background : public testing::Test {
protected:
  void start(int n) {
    tuttiUniqueId id;
    ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess) << lastError();
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.blocking = 0;
    comms.resize(n);
    for (int r = 0; r < n; r++)
      ASSERT_EQ(tuttiCommInitRankConfig(&comms[r], n, id, r, &config), tuttiInProgress);
    settleAll();
  }
  void settleAll() {
    for (auto comm : comms)
      ASSERT_EQ(settle(comm), tuttiSuccess) << lastError(comm);
  }
  void TearDown() override {
    for (auto comm : comms)
      EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess) << lastError();
  }
  std::vector<tuttiComm_t> comms;
};

/* Each operation uses what the one before wrote, in other sizes and on other channels; all are
 * queued before the first is waited for. */
TEST_F(Background, LaterOperationsSeeEarlierResults) {
  constexpr int n = 3;
  constexpr size_t count = 300000;
  start(n);
  for (int round = 0; round < 5; round++) {
    std::vector<std::vector<int32_t>> a(n), b(n), c(n), d(n), all(n);
    for (int r = 0; r < n; r++) {
      a[r].assign(count, r + 1 + round);
      b[r].assign(count, -1);
      c[r].assign(count, -1);
      d[r].assign(count, -1);
      all[r].assign(n * 100, -1);
    }
    for (int r = 0; r < n; r++) {
      auto comm = comms[r];
      ASSERT_EQ(
          tuttiAllReduce(a[r].data(), b[r].data(), count, tuttiInt32, tuttiSum, comm, nullptr),
          tuttiInProgress);
      ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
      ASSERT_EQ(tuttiSend(b[r].data(), count, tuttiInt32, (r + 1) % n, comm, nullptr),
                tuttiSuccess);
      ASSERT_EQ(tuttiRecv(c[r].data(), count, tuttiInt32, (r + n - 1) % n, comm, nullptr),
                tuttiSuccess);
      ASSERT_EQ(tuttiGroupEnd(), tuttiInProgress);
      ASSERT_EQ(
          tuttiAllReduce(c[r].data(), d[r].data(), count - 17, tuttiInt32, tuttiMax, comm, nullptr),
          tuttiInProgress);
      ASSERT_EQ(tuttiAllGather(d[r].data() + count - 17 - 100, all[r].data(), 100, tuttiInt32, comm,
                               nullptr),
                tuttiInProgress);
    }
    settleAll();
    const int sum = n * (n + 1) / 2 + n * round;
    for (int r = 0; r < n; r++) {
      ASSERT_EQ(b[r], std::vector<int32_t>(count, sum));
      ASSERT_EQ(c[r], b[r]);
      ASSERT_EQ(std::vector<int32_t>(d[r].begin(), d[r].end() - 17),
                std::vector<int32_t>(count - 17, sum));
      ASSERT_EQ(all[r], std::vector<int32_t>(n * 100, sum));
    }
  }
}

/* A failed operation is never reported as done, however closely its end is watched. */
TEST_F(Background, FailureIsNotTakenForSuccess) {
  for (int round = 0; round < 100; round++) {
    start(1);
    float x = 1;
    ASSERT_EQ(tuttiSend(&x, 1, tuttiFloat32, 0, comms[0], nullptr), tuttiInProgress);
    ASSERT_EQ(settle(comms[0]), tuttiInvalidUsage); /* no receive of its own */
    ASSERT_THAT(lastError(comms[0]), HasSubstr("sends to itself"));
    ASSERT_EQ(tuttiCommDestroy(comms[0]), tuttiSuccess);
    start(1);
    ASSERT_EQ(tuttiSend(&x, 1, tuttiFloat32, 0, comms[0], nullptr), tuttiInProgress);
    ASSERT_EQ(tuttiCommFinalize(comms[0]), tuttiInvalidUsage) << "finalized a failure away";
    ASSERT_EQ(tuttiCommDestroy(comms[0]), tuttiSuccess);
  }
  comms.clear();
}

TEST_F(Background, ReductionHandleMayGoBeforeItsOperationRuns) {
  constexpr int n = 2;
  start(n);
  std::vector<std::vector<float>> in(n, std::vector<float>(50000, 1)), out(n);
  for (int round = 0; round < 20; round++) {
    for (int r = 0; r < n; r++) {
      out[r].assign(50000, -1);
      tuttiRedOp_t op;
      float scalar = (float)(r + 2);
      ASSERT_EQ(
          tuttiRedOpCreatePreMulSum(&op, &scalar, tuttiFloat32, tuttiScalarHostImmediate, comms[r]),
          tuttiSuccess);
      ASSERT_EQ(
          tuttiAllReduce(in[r].data(), out[r].data(), 50000, tuttiFloat32, op, comms[r], nullptr),
          tuttiInProgress);
      ASSERT_EQ(tuttiRedOpDestroy(op, comms[r]), tuttiSuccess);
      scalar = 1000;
      for (int i = 0; i < 9; i++) /* takes its place, then makes the table grow */
        ASSERT_EQ(tuttiRedOpCreatePreMulSum(&op, &scalar, tuttiFloat32, tuttiScalarHostImmediate,
                                            comms[r]),
                  tuttiSuccess);
    }
    settleAll();
    for (int r = 0; r < n; r++)
      ASSERT_EQ(out[r], std::vector<float>(50000, 5));
  }
}

TEST(Group, ReductionHandleMayGoBeforeTheGroupEnds) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    float in = 1, out = 0, scalar = (float)(r + 2);
    tuttiRedOp_t op, other;
    ASSERT_EQ(tuttiRedOpCreatePreMulSum(&op, &scalar, tuttiFloat32, tuttiScalarHostImmediate, comm),
              tuttiSuccess);
    ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
    ASSERT_EQ(tuttiAllReduce(&in, &out, 1, tuttiFloat32, op, comm, nullptr), tuttiSuccess);
    ASSERT_EQ(tuttiRedOpDestroy(op, comm), tuttiSuccess);
    scalar = 100;
    ASSERT_EQ(
        tuttiRedOpCreatePreMulSum(&other, &scalar, tuttiFloat32, tuttiScalarHostImmediate, comm),
        tuttiSuccess);
    ASSERT_EQ(tuttiGroupEnd(), tuttiSuccess) << lastError();
    EXPECT_EQ(out, 5);
  });
}

void expectSum(tuttiComm_t comm, int n) {
  float in = 1, out = 0;
  ASSERT_EQ(tuttiAllReduce(&in, &out, 1, tuttiFloat32, tuttiSum, comm, nullptr), tuttiSuccess)
      << lastError();
  ASSERT_EQ(out, n);
}

/* The parent is in one exchange at a time, in the order of the calls. */
TEST(Split, SeveralOfOneCommunicatorInOneGroup) {
  constexpr int n = 4, splits = 6;
  Ranks ranks(n);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm) {
    tuttiComm_t parts[splits] = {};
    float in = 1, out = 0;
    ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
    for (int i = 0; i < splits; i++)
      ASSERT_EQ(tuttiCommSplit(comm, i % 2 ? r / 2 : r % 2, i % 3 ? r : -r, &parts[i], nullptr),
                tuttiSuccess);
    ASSERT_EQ(tuttiAllReduce(&in, &out, 1, tuttiFloat32, tuttiSum, comm, nullptr), tuttiSuccess);
    ASSERT_EQ(tuttiGroupEnd(), tuttiSuccess) << lastError();
    EXPECT_EQ(out, n);
    for (int i = 0; i < splits; i++) {
      int rank = -1, place = i % 2 ? r % 2 : r / 2;
      ASSERT_EQ(tuttiCommUserRank(parts[i], &rank), tuttiSuccess);
      EXPECT_EQ(rank, i % 3 ? place : 1 - place) << "split " << i;
      expectSum(parts[i], 2);
      ASSERT_EQ(tuttiCommDestroy(parts[i]), tuttiSuccess);
    }
  });
}

/* One thread drives all ranks and splits each twice. */
TEST(Split, SeveralOfSeveralCommunicatorsInOneGroup) {
  constexpr int n = 3;
  tuttiComm_t comms[n], a[n], b[n];
  ASSERT_EQ(tuttiCommInitAll(comms, n, nullptr), tuttiSuccess) << lastError();
  ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
  for (int r = 0; r < n; r++) {
    ASSERT_EQ(tuttiCommSplit(comms[r], 0, -r, &a[r], nullptr), tuttiSuccess);
    ASSERT_EQ(tuttiCommSplit(comms[r], r, 0, &b[r], nullptr), tuttiSuccess);
  }
  ASSERT_EQ(tuttiGroupEnd(), tuttiSuccess) << lastError();
  for (int r = 0; r < n; r++) {
    int rank = -1, count = 0;
    EXPECT_EQ(tuttiCommUserRank(a[r], &rank), tuttiSuccess);
    EXPECT_EQ(rank, n - 1 - r);
    EXPECT_EQ(tuttiCommCount(b[r], &count), tuttiSuccess);
    EXPECT_EQ(count, 1);
    for (auto comm : {a[r], b[r], comms[r]})
      EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
  }
}

TEST(Split, OfASplitAndNoColorEverywhere) {
  Ranks ranks(5);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    tuttiComm_t none = (tuttiComm_t)1, half = nullptr, quarter = nullptr;
    ASSERT_EQ(tuttiCommSplit(comm, TUTTI_SPLIT_NOCOLOR, 0, &none, nullptr), tuttiSuccess);
    EXPECT_EQ(none, nullptr);
    ASSERT_EQ(tuttiCommSplit(comm, r < 3, r, &half, nullptr), tuttiSuccess) << lastError();
    ASSERT_EQ(tuttiCommSplit(half, r % 2, r, &quarter, nullptr), tuttiSuccess) << lastError();
    expectSum(quarter, r < 3 && r % 2 == 0 ? 2 : 1);
    expectSum(half, r < 3 ? 3 : 2);
    ASSERT_EQ(tuttiCommDestroy(half), tuttiSuccess);
    expectSum(quarter, r < 3 && r % 2 == 0 ? 2 : 1); /* lives on without its parent */
    ASSERT_EQ(tuttiCommDestroy(quarter), tuttiSuccess);
  });
}

/* The config's strings are the caller's again once the call has returned. */
TEST(Split, CopiesTheConfig) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.timeoutMs = 60000;
  Ranks ranks(2, &config);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    tuttiComm_t part = nullptr;
    std::string name = "half";
    tuttiConfig_t mine = TUTTI_CONFIG_INITIALIZER;
    mine.commName = name.c_str();
    ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
    ASSERT_EQ(tuttiCommSplit(comm, 0, r, &part, &mine), tuttiSuccess);
    name.assign(4, '?');
    ASSERT_EQ(tuttiGroupEnd(), tuttiSuccess) << lastError();
    float x = 1;
    EXPECT_EQ(tuttiBcast(&x, 1, tuttiFloat32, 7, part, nullptr), tuttiInvalidArgument);
    EXPECT_THAT(lastError(), HasSubstr("comm half"));
    ASSERT_EQ(tuttiCommDestroy(part), tuttiSuccess);
  });
}

int trafficClassOf(tuttiComm_t comm) {
  tuttiCommunicator *c = nullptr;
  EXPECT_EQ(tuttiHandleEnter(comm, "trafficClassOf", &c), tuttiSuccess);
  int found = c->view.trafficClass;
  tuttiHandleLeave(c);
  return found;
}

TEST(Split, InheritsTheTrafficClass) {
  Settings setting(std::map<std::string, std::string>{{"TUTTI_IB_TC", "8"}});
  EXPECT_EQ(trafficClassOf(Ranks(1).comms[0]), 8);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.trafficClass = 104;
  Ranks ranks(2, &config);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    EXPECT_EQ(trafficClassOf(comm), 104);
    tuttiConfig_t other = TUTTI_CONFIG_INITIALIZER;
    for (int expected : {104, 0}) {
      tuttiComm_t part = nullptr;
      if (expected == 0) other.trafficClass = 0;
      ASSERT_EQ(tuttiCommSplit(comm, 0, r, &part, &other), tuttiSuccess) << lastError();
      EXPECT_EQ(trafficClassOf(part), expected);
      ASSERT_EQ(tuttiCommDestroy(part), tuttiSuccess);
    }
  });
}

/* Whoever should have made the new id says that it has none; nobody waits for it. */
TEST(Split, FirstRankOfAColorCannotMakeAnId) {
  Ranks ranks(4);
  ASSERT_TRUE(ranks.ok());
  {
    rlimit before, none;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 3; /* stdin, stdout, stderr */
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    ranks.run([](int r, tuttiComm_t comm) {
      tuttiComm_t part = nullptr;
      int color = r == 3 ? TUTTI_SPLIT_NOCOLOR : 0;
      tuttiResult_t result = tuttiCommSplit(comm, color, r, &part, nullptr);
      if (r == 3) {
        EXPECT_EQ(result, tuttiSuccess) << lastError();
      } else if (r == 0) {
        EXPECT_EQ(result, tuttiSystemError);
        EXPECT_THAT(lastError(), HasSubstr("ulimit -n"));
      } else {
        EXPECT_EQ(result, tuttiRemoteError);
        EXPECT_THAT(lastError(), AllOf(HasSubstr("rank 0"), HasSubstr("tuttiCommSplit")));
      }
    });
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  }
  ranks.run([](int, tuttiComm_t comm) { expectSum(comm, 4); }); /* the parent is unharmed */
}

} // namespace

// Collectives with options of their own.
#include "base/host.h"
#include "harness.h"

using testing::HasSubstr;

namespace {

constexpr int n = 4;
constexpr size_t count = 4096;

std::string lastError(tuttiComm_t comm) {
  return tuttiGetLastError(comm);
}

/* All-reduces with `config` on all ranks, checks the sums, and returns what the planner logs. */
std::string logOf(Ranks &ranks, const tuttiCollConfig_t *config) {
  testing::internal::CaptureStderr();
  ranks.run([&](int r, tuttiComm_t comm) {
    std::vector<int> in(count, r), out(count);
    EXPECT_EQ(tuttiAllReduceConfig(in.data(), out.data(), count, tuttiInt32, tuttiSum, comm,
                                   nullptr, config),
              tuttiSuccess)
        << lastError(comm);
    EXPECT_EQ(out, std::vector<int>(count, n * (n - 1) / 2));
  });
  return testing::internal::GetCapturedStderr();
}

const std::map<std::string, std::string> logged = {{"TUTTI_DEBUG", "INFO"},
                                                   {"TUTTI_DEBUG_SUBSYS", "TUNING"},
                                                   {"TUTTI_MIN_NCHANNELS", "1"},
                                                   {"TUTTI_MAX_NCHANNELS", "4"}};

TEST(Configured, ChoosesAmongWhatIsSelected) {
  Settings settings(logged);
  tuttiConfig_t many = TUTTI_CONFIG_INITIALIZER;
  many.minCTAs = many.maxCTAs = 4;
  Ranks ranks(n, &many);
  ASSERT_TRUE(ranks.ok());
  tuttiCollConfig_t config = TUTTI_COLL_CONFIG_INITIALIZER;
  for (int round = 0; round < 2; round++) { /* what is kept of one must not serve the other */
    config.algSelection = "ring";
    config.minCTAs = config.maxCTAs = 3;
    config.userProfilerTag = 0xbeef;
    std::string log = logOf(ranks, &config);
    EXPECT_THAT(log, HasSubstr("int32: Ring, "));
    EXPECT_THAT(log, HasSubstr(", 3 channels"));
    EXPECT_THAT(log, HasSubstr(", tag 0xbeef"));
    config.algSelection = "tree;allgather:ring";
    config.maxCTAs = 128; /* more than there are */
    config.minCTAs = 100;
    config.userProfilerTag = 0;
    log = logOf(ranks, &config);
    EXPECT_THAT(log, HasSubstr("int32: Tree, "));
    EXPECT_THAT(log, HasSubstr(", 4 channels"));
    EXPECT_THAT(log, testing::Not(HasSubstr("tag")));
    logOf(ranks, nullptr);
  }
}

/* Each with options, against each without. */
TEST(Configured, AllCollectives) {
  Ranks ranks(n);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    tuttiCollConfig_t config = TUTTI_COLL_CONFIG_INITIALIZER;
    config.maxCTAs = 1;
    std::vector<int> in(count * n), with(count * n, -1), without(count * n, -1);
    for (size_t i = 0; i < in.size(); i++)
      in[i] = (int)i * 7 + r * 100003;
    int *a = with.data(), *b = without.data();
    auto same = [&](tuttiResult_t first, tuttiResult_t second, const char *name) {
      EXPECT_EQ(first, tuttiSuccess) << name << lastError(comm);
      EXPECT_EQ(second, tuttiSuccess) << name << lastError(comm);
      EXPECT_EQ(with, without) << name;
    };
#define SAME(name, ...)                                                                            \
  same(tutti##name##Config(in.data(), a, count, tuttiInt32, __VA_ARGS__, comm, nullptr, &config),  \
       tutti##name(in.data(), b, count, tuttiInt32, __VA_ARGS__, comm, nullptr), #name)
#define SAME_PLAIN(name)                                                                           \
  same(tutti##name##Config(in.data(), a, count, tuttiInt32, comm, nullptr, &config),               \
       tutti##name(in.data(), b, count, tuttiInt32, comm, nullptr), #name)
    SAME(AllReduce, tuttiMax);
    SAME(Broadcast, 2);
    SAME(Reduce, tuttiSum, 1);
    SAME_PLAIN(AllGather);
    SAME(ReduceScatter, tuttiSum);
    SAME_PLAIN(AlltoAll);
    SAME(Gather, 3);
    SAME(Scatter, 1);
  });
}

TEST(Configured, BadOptions) {
  Ranks ranks(1);
  ASSERT_TRUE(ranks.ok());
  tuttiComm_t comm = ranks.comms[0];
  int in = 1, out = 0;
  tuttiCollConfig_t config = TUTTI_COLL_CONFIG_INITIALIZER;
  auto expect = [&](tuttiResult_t code, const char *text) {
    EXPECT_EQ(tuttiAllGatherConfig(&in, &out, 1, tuttiInt32, comm, nullptr, &config), code) << text;
    EXPECT_THAT(lastError(comm),
                testing::AllOf(HasSubstr("tuttiAllGatherConfig"), HasSubstr(text)));
    config = TUTTI_COLL_CONFIG_INITIALIZER;
  };
  config.magic = 0;
  expect(tuttiInvalidArgument, "config is not initialized");
  config.size--;
  expect(tuttiInvalidArgument, "config.size is");
  config.minCTAs = 0;
  expect(tuttiInvalidArgument, "config.minCTAs is 0; it must be 1 to 128");
  config.maxCTAs = 129;
  expect(tuttiInvalidArgument, "config.maxCTAs is 129");
  config.minCTAs = 3, config.maxCTAs = 2;
  expect(tuttiInvalidArgument, "config.minCTAs (3) is above config.maxCTAs (2)");
  config.forceAlgSelection = 2;
  expect(tuttiInvalidArgument, "config.forceAlgSelection is 2");
  config.algSelection = "ring,tre";
  expect(tuttiInvalidArgument, "config.algSelection=\"ring,tre\": \"tre\" at character 6");
  config.algSelection = "tree";
  expect(tuttiInvalidArgument, "none of that can be had for AllGather of this communicator, which "
                               "has Ring, Doubling, Direct");
  config.launchCompletionEvent = &in;
  expect(tuttiInvalidUsage, "config.launchCompletionEvent is set");
  config.algSelection = "tree";
  config.forceAlgSelection = 0;
  EXPECT_EQ(tuttiAllGatherConfig(&in, &out, 1, tuttiInt32, comm, nullptr, &config), tuttiSuccess)
      << lastError(comm);
  EXPECT_EQ(out, 1);
}

TEST(Configured, ConfigsOfTheFirstVersionAreTaken) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.size = 64;
  config.numRmaCtx = 12345; /* what that caller has behind it is not read */
  tuttiUniqueId id;
  tuttiComm_t comm = nullptr;
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  EXPECT_EQ(tuttiCommInitRankConfig(&comm, 1, id, 0, &config), tuttiSuccess) << lastError(nullptr);
  EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
  config.size = sizeof config;
  EXPECT_EQ(tuttiCommInitRankConfig(&comm, 1, id, 0, &config), tuttiInvalidArgument);
  EXPECT_THAT(lastError(nullptr), HasSubstr("config.numRmaCtx is 12345; it must be 0 to 64"));
  config.numRmaCtx = 64;
  config.numRmaSig = 1025;
  EXPECT_EQ(tuttiCommInitRankConfig(&comm, 1, id, 0, &config), tuttiInvalidArgument);
  EXPECT_THAT(lastError(nullptr), HasSubstr("config.numRmaSig is 1025; it must be 1 to 1024"));
}

TEST(Configured, Properties) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.numRmaCtx = 3;
  config.numRmaSig = 5;
  Ranks ranks(2, &config);
  ASSERT_TRUE(ranks.ok());
  uint64_t hashes[2];
  for (int r = 0; r < 2; r++) {
    tuttiCommProperties_t p = TUTTI_COMM_PROPERTIES_INITIALIZER;
    ASSERT_EQ(tuttiCommQueryProperties(ranks.comms[r], &p), tuttiSuccess);
    EXPECT_EQ(p.rank, r);
    EXPECT_EQ(p.nRanks, 2);
    EXPECT_EQ(p.numRmaCtx, 3);
    EXPECT_EQ(p.numRmaSig, 5);
    EXPECT_EQ(p.cores, tuttiCpuCount());
    EXPECT_EQ(p.ranksOnCores, 2);
    hashes[r] = p.commHash;
    p.magic = 0;
    EXPECT_EQ(tuttiCommQueryProperties(ranks.comms[r], &p), tuttiInvalidArgument);
    EXPECT_THAT(lastError(nullptr), HasSubstr("properties is not initialized"));
  }
  EXPECT_EQ(hashes[0], hashes[1]);
  EXPECT_EQ(tuttiCommQueryProperties(ranks.comms[0], nullptr), tuttiInvalidArgument);
  Ranks more(3), few(2); /* which share the cores with those */
  tuttiCommProperties_t p = TUTTI_COMM_PROPERTIES_INITIALIZER;
  ASSERT_EQ(tuttiCommQueryProperties(few.comms[1], &p), tuttiSuccess);
  EXPECT_EQ(p.ranksOnCores, 3);
}

} // namespace

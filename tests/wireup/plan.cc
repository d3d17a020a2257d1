// What follows from a survey: for the planner, and for the memory that transports may take.
#include "wireup/plan.h"

#include "comm/harness.h"
#include "kernels/allpairs.h"
#include "kernels/ringtree.h"
#include "transport/symmetric.h"
#include "wireup/world.h"

namespace {
using ::testing::HasSubstr;

struct Plan : testing::Test {
  tuttiSurvey s{};
  tuttiMemAccount memory{};
  tuttiCommView v{};
  tuttiPlanInput in{};
  tuttiSymmetric block{};
  tuttiPeer peer{}; /* this rank's: segments of GPUs have more in them */

  void SetUp() override {
    v.peers = &peer;
    s.nranks = s.maxRanksPerHost = 4;
    s.nhosts = 1;
    s.sharedFifos = s.direct = true;
    v.slotBytes = 65536;
    v.memory = &memory;
  }
  void toGpus() {
    s.gpu = s.stores = s.linked = true;
    s.sharedFifos = s.direct = false;
    s.sharers = 1;
    block.bytes = tuttiAllPairsLayOut(s.nranks, false).bytes;
    v.symmetric = &block;
  }
  tuttiResult_t make(int minChannels = 0, int maxChannels = 0, int channels = 4) {
    std::vector<uint64_t> hosts;
    for (int r = 0; r < s.nranks; r++)
      hosts.push_back((uint64_t)(r * s.nhosts / s.nranks));
    v.nranks = s.nranks;
    tuttiGraph *graph;
    EXPECT_EQ(tuttiSuccess, tuttiGraphCreate(hosts.data(), s.nranks, nullptr, channels, &graph));
    tuttiResult_t result = tuttiPlanInputMake(&s, graph, minChannels, maxChannels, &v, &in);
    tuttiGraphFree(graph);
    return result;
  }
};

TEST_F(Plan, TakesOverWhatTheSurveySays) {
  s.intraLatencyUs = 1;
  s.intraGBs = 2;
  s.interLatencyUs = 3;
  s.interGBs = 4;
  s.nhosts = 2;
  s.maxRanksPerHost = 2;
  s.network = s.oversubscribed = s.fetches = true;
  s.fetch = {1.25f, 0.125f, 0.0625f};
  s.cache = 1 << 20;
  ASSERT_EQ(tuttiSuccess, make()) << tuttiErrorText();
  EXPECT_EQ(1, in.intraLatencyUs);
  EXPECT_EQ(2, in.intraGBs);
  EXPECT_EQ(3, in.interLatencyUs);
  EXPECT_EQ(4, in.interGBs);
  EXPECT_EQ(2, in.maxRanksPerHost);
  EXPECT_TRUE(in.sharedFifos && in.directReads && in.fetches && in.oversubscribed);
  EXPECT_EQ(1.25f, in.fetchUs);
  EXPECT_EQ(0.125f, in.fetchKibUs);
  EXPECT_EQ(0.0625f, in.storeKibUs);
  EXPECT_EQ(1u << 20, in.cacheBytes);
  EXPECT_TRUE(v.oversubscribed);
  EXPECT_FALSE(in.gpu || in.allPairs || in.staged);
  EXPECT_EQ(65536u, in.slotBytes);
  EXPECT_EQ(0u, v.stagedBytes);
}

TEST_F(Plan, LoopbackIsANetworkInsideOneHost) {
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_FALSE(in.loopback);
  s.network = true;
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_TRUE(in.loopback);
  s.nhosts = 2;
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_FALSE(in.loopback);
}

/* GPUs that only a network joins are planned for as those of several hosts. */
TEST_F(Plan, ANetworkInsideOneHostPartsItsGpus) {
  s.intraLatencyUs = 3;
  s.intraGBs = 25;
  s.gpu = true;
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_EQ(1, in.nhosts);
  s.network = true;
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_FALSE(in.loopback);
  EXPECT_EQ(s.nranks, in.nhosts);
  EXPECT_EQ(1, in.maxRanksPerHost);
  EXPECT_EQ(3, in.interLatencyUs);
  EXPECT_EQ(25, in.interGBs);
}

TEST_F(Plan, ChannelsAreWithinWishesAndTheGraph) {
  EXPECT_EQ(2, tuttiWireupChannels(tuttiDeviceHost, 1, 0, 0));
  EXPECT_EQ(4, tuttiWireupChannels(tuttiDeviceHost, 2, 0, 0));
  EXPECT_EQ(6, tuttiWireupChannels(tuttiDeviceHost, 2, 6, 0));
  EXPECT_EQ(3, tuttiWireupChannels(tuttiDeviceHost, 2, 0, 3));
  EXPECT_EQ(TUTTI_SYMMETRIC_CHANNELS, tuttiWireupChannels(tuttiDeviceCuda, 1, 0, 0));
  ASSERT_EQ(tuttiSuccess, make(2, 0, 3));
  EXPECT_EQ(2, in.minChannels);
  EXPECT_EQ(3, in.maxChannels);
  EXPECT_EQ(3, v.nchannels);
  ASSERT_EQ(tuttiSuccess, make(4, 0, 2));
  EXPECT_EQ(2, in.minChannels) << "a graph from a file may have fewer";
}

TEST_F(Plan, SlotsThenChannelsShrinkUntilAllFits) {
  s.nhosts = 4;
  s.maxRanksPerHost = 1;
  s.network = true;
  ASSERT_EQ(tuttiSuccess, make());
  size_t unlimited = v.memTaken;
  EXPECT_EQ(4, v.nchannels);
  v.memLimit = 8 << 20;
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_LT(v.slotBytes, 65536u);
  EXPECT_EQ(v.slotBytes, in.slotBytes);
  EXPECT_EQ(4, v.nchannels) << "slots first";
  EXPECT_LE(v.memTaken, unlimited);
  v.memLimit = 1000000;
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_LT(v.nchannels, 4);
  EXPECT_EQ(v.nchannels, in.maxChannels);
  v.memLimit = 100000;
  EXPECT_EQ(tuttiInvalidUsage, make());
  EXPECT_THAT(tuttiErrorText(), HasSubstr("TUTTI_MEM_LIMIT is 100000"));
}

// More ranks than these are reached by messages alone.
TEST_F(Plan, TransportsLearnHowManyRanksAChannelJoins) {
  s.nranks = 64;
  s.nhosts = 8;
  s.maxRanksPerHost = 8;
  s.network = true;
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_GE(v.neighbours, TUTTI_MAX_FAN + 4) << "of trees, and of the rings of a grid";
  EXPECT_LT(v.neighbours, 32);
  toGpus();
  s.stores = false;
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_GE(v.neighbours, TUTTI_MAX_FAN + 4);
  EXPECT_LT(v.neighbours, 32);
}

TEST_F(Plan, GpusThatStoreIntoEachOther) {
  toGpus();
  s.sharers = 2;
  s.blocks = 100;
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_TRUE(in.gpu && in.allPairs);
  EXPECT_FALSE(in.staged);
  EXPECT_EQ(TUTTI_RINGTREE_FAN + 1, in.widest);
  EXPECT_EQ(2, in.sharers);
  EXPECT_EQ(100, in.maxBlocks);
  EXPECT_TRUE(in.protoMask & 1u << tuttiProtoLL128);
  ASSERT_EQ(tuttiSuccess, make(0, 32));
  EXPECT_EQ(32, in.maxBlocks) << "the user's wish";
  s.linked = false;
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_TRUE(in.allPairs);
  EXPECT_FALSE(in.protoMask & (1u << tuttiProtoLL128 | 1u << tuttiProtoLL)) << "over PCIe";
  block.bytes--;
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_FALSE(in.allPairs) << "the blocks have no room";
  EXPECT_TRUE(in.protoMask & 1u << tuttiProtoLL128);
}

TEST_F(Plan, GpusThatMeetInHostMemory) {
  toGpus();
  s.stores = s.linked = false;
  s.staged = true;
  v.symmetric = nullptr;
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_TRUE(in.staged && in.allPairs);
  EXPECT_EQ(tuttiAllPairsLayOut(4, true).bytes, v.stagedBytes);
  Settings settings(std::map<std::string, std::string>{{"TUTTI_ALGO", "^Direct"}});
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_FALSE(in.staged || in.allPairs);
  EXPECT_EQ(0u, v.stagedBytes);
}

TEST_F(Plan, SelectsByCollective) {
  {
    Settings settings(std::map<std::string, std::string>{
        {"TUTTI_ALGO", "direct;allreduce:tree;reduce:NVLS"}, {"TUTTI_PROTO", "broadcast:^LL"}});
    toGpus();
    ASSERT_EQ(tuttiSuccess, make()) << tuttiErrorText();
    EXPECT_EQ(1u << tuttiAlgoTree, in.algos.of[tuttiCollAllReduce]);
    EXPECT_EQ(1u << tuttiAlgoDirect, in.algos.of[tuttiCollAllGather]);
    EXPECT_EQ((1u << tuttiAlgoCount) - 1, in.algos.of[tuttiCollReduce])
        << "what tutti has not selects nothing";
    EXPECT_FALSE(in.protos.of[tuttiCollBroadcast] & 1u << tuttiProtoLL);
    EXPECT_TRUE(in.protos.of[tuttiCollGather] & 1u << tuttiProtoLL);
    EXPECT_FALSE(in.allPairs) << "one collective must not use them";
  }
  for (const char *name : {"TUTTI_ALGO", "NCCL_ALGO"}) {
    Settings settings(std::map<std::string, std::string>{{name, "allreduce:tre"}});
    EXPECT_EQ(tuttiInvalidArgument, make()) << name;
    EXPECT_THAT(tuttiErrorText(),
                HasSubstr(std::string(name) + "=\"allreduce:tre\": \"tre\" at character 11"));
  }
}

TEST_F(Plan, SlotsOfGpusAreLargerOverNetworks) {
  toGpus();
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_EQ(65536u, v.slotBytes) << "one host";
  s.stores = false;
  s.network = s.apart = true;
  s.nhosts = 4;
  s.maxRanksPerHost = 1;
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_EQ(8 * 65536u, v.slotBytes) << "networks alone";
  v.slotBytes = 65536;
  s.apart = false;
  s.nhosts = s.maxRanksPerHost = 2;
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_EQ(4 * 65536u, v.slotBytes) << "several GPUs on each of several hosts";
}

// So that nothing of it is pinned while kernels run.
TEST_F(Plan, SlotsInAHostAreAsLargeAsPinnedMemoryHasRoomFor) {
  toGpus();
  s.stores = false;
  s.network = s.apart = s.throughHost = true;
  const size_t times[] = {0, 0, 8, 4, 4, 2, 2, 2, 1};
  for (int n = 2; n <= 8; n++) {
    v.slotBytes = 65536;
    s.nranks = s.maxRanksPerHost = n;
    ASSERT_EQ(tuttiSuccess, make(0, 0, TUTTI_SYMMETRIC_CHANNELS));
    EXPECT_EQ(times[n] * 65536u, v.slotBytes) << n;
  }
}

TEST_F(Plan, SlotsBetweenHostsOfSeveralGpusAreAsLargeAsThereIsRoom) {
  toGpus();
  s.stores = false;
  s.network = true;
  s.nhosts = s.maxRanksPerHost = 2;
  block.bytes = tuttiSymmetricFifos(4, 2 * 65536);
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_EQ(2 * 65536u, v.slotBytes) << "in the block";
  v.slotBytes = 65536;
  block.bytes--;
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_EQ(65536u, v.slotBytes);
  block.bytes = SIZE_MAX;
  s.nranks = 256;
  s.nhosts = 32;
  s.maxRanksPerHost = 8;
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_EQ(65536u, v.slotBytes) << "in the slab: 496 connections with other ranks, and more";
}

TEST_F(Plan, OneOrderNeedsDirectWhichGpusHaveForFewRanks) {
  Settings settings(std::map<std::string, std::string>{{"TUTTI_DETERMINISM", "1"}});
  toGpus();
  ASSERT_EQ(tuttiSuccess, make());
  EXPECT_TRUE(in.deterministic);
  s.nranks = TUTTI_RINGTREE_FAN + 2;
  s.stores = false;
  EXPECT_EQ(tuttiInvalidArgument, make());
  EXPECT_THAT(tuttiErrorText(), HasSubstr("TUTTI_DETERMINISM=1 needs the algorithm Direct"));
}

} // namespace

/* Bad input: each wrong argument gives its code and a text that names call, argument and remedy,
 * and leaves the communicator usable. */
#include "harness.h"

using testing::AllOf;
using testing::HasSubstr;

namespace {

std::string lastError() {
  return tuttiGetLastError(nullptr);
}

class Arguments : public testing::Test {
protected:
  Arguments() : ranks(1) { comm = ranks.comms[0]; }
  void TearDown() override { /* whatever was refused, the next call works */
    float one = 1, out = 0;
    EXPECT_EQ(tuttiAllReduce(&one, &out, 1, tuttiFloat32, tuttiSum, comm, nullptr), tuttiSuccess)
        << lastError();
    EXPECT_EQ(out, 1);
  }
  Ranks ranks;
  tuttiComm_t comm;
  float a[8] = {0}, b[8] = {0};
};

#define REFUSED(code, call, ...)                                                                   \
  do {                                                                                             \
    EXPECT_EQ(call, code);                                                                         \
    EXPECT_THAT(lastError(), AllOf(__VA_ARGS__));                                                  \
  } while (0)

TEST_F(Arguments, NullBuffers) {
  REFUSED(tuttiInvalidArgument,
          tuttiAllReduce(nullptr, b, 8, tuttiFloat32, tuttiSum, comm, nullptr),
          HasSubstr("tuttiAllReduce (rank 0 of 1, comm "), HasSubstr("sendbuff is NULL"));
  REFUSED(tuttiInvalidArgument,
          tuttiAllReduce(a, nullptr, 8, tuttiFloat32, tuttiSum, comm, nullptr),
          HasSubstr("recvbuff is NULL"));
  REFUSED(tuttiInvalidArgument, tuttiSend(nullptr, 8, tuttiFloat32, 0, comm, nullptr),
          HasSubstr("tuttiSend"), HasSubstr("sendbuff is NULL"));
  REFUSED(tuttiInvalidArgument, tuttiRecv(nullptr, 8, tuttiFloat32, 0, comm, nullptr),
          HasSubstr("tuttiRecv"), HasSubstr("recvbuff is NULL"));
  EXPECT_EQ(tuttiAllReduce(nullptr, nullptr, 0, tuttiFloat32, tuttiSum, comm, nullptr),
            tuttiSuccess);
}

TEST_F(Arguments, Misaligned) {
  char *odd = (char *)a + 2;
  REFUSED(tuttiInvalidArgument, tuttiAllReduce(odd, b, 1, tuttiFloat32, tuttiSum, comm, nullptr),
          HasSubstr("sendbuff"), HasSubstr("misaligned"), HasSubstr("multiple of 4"));
  REFUSED(tuttiInvalidArgument, tuttiAllGather(a, (char *)b + 1, 1, tuttiInt64, comm, nullptr),
          HasSubstr("recvbuff"), HasSubstr("misaligned"));
}

TEST_F(Arguments, Overlap) {
  REFUSED(tuttiInvalidArgument, tuttiAllReduce(a, a + 1, 4, tuttiFloat32, tuttiSum, comm, nullptr),
          HasSubstr("overlap"), HasSubstr("in place"));
  REFUSED(tuttiInvalidArgument, tuttiAlltoAll(a, a, 4, tuttiFloat32, comm, nullptr),
          HasSubstr("overlap"));
  EXPECT_EQ(tuttiAllReduce(a, a + 4, 4, tuttiFloat32, tuttiSum, comm, nullptr), tuttiSuccess);
}

TEST_F(Arguments, Counts) {
  REFUSED(tuttiInvalidArgument,
          tuttiAllReduce(a, b, (size_t)-1, tuttiFloat32, tuttiSum, comm, nullptr),
          HasSubstr("count"), HasSubstr("negative"));
  REFUSED(tuttiInvalidArgument,
          tuttiAllReduce(a, b, SIZE_MAX / 4, tuttiFloat64, tuttiSum, comm, nullptr),
          HasSubstr("count"));
  REFUSED(tuttiInvalidArgument, tuttiAllGather(a, b, (size_t)1 << 61, tuttiFloat64, comm, nullptr),
          HasSubstr("count"));
}

TEST_F(Arguments, Ranges) {
  REFUSED(tuttiInvalidArgument,
          tuttiAllReduce(a, b, 4, (tuttiDataType_t)12, tuttiSum, comm, nullptr),
          HasSubstr("datatype is 12"), HasSubstr("0 to 11"));
  REFUSED(tuttiInvalidArgument,
          tuttiAllReduce(a, b, 4, (tuttiDataType_t)-1, tuttiSum, comm, nullptr),
          HasSubstr("datatype is -1"));
  REFUSED(tuttiInvalidArgument,
          tuttiAllReduce(a, b, 4, tuttiFloat32, (tuttiRedOp_t)5, comm, nullptr),
          HasSubstr("op is 5"), HasSubstr("tuttiRedOpCreatePreMulSum"));
  REFUSED(tuttiInvalidArgument,
          tuttiAllReduce(a, b, 4, tuttiFloat32, (tuttiRedOp_t)-3, comm, nullptr),
          HasSubstr("op is -3"));
  REFUSED(tuttiInvalidArgument, tuttiBroadcast(a, b, 4, tuttiFloat32, 1, comm, nullptr),
          HasSubstr("root is 1"), HasSubstr("0 to 0"));
  REFUSED(tuttiInvalidArgument, tuttiReduce(a, b, 4, tuttiFloat32, tuttiSum, -1, comm, nullptr),
          HasSubstr("root is -1"));
  REFUSED(tuttiInvalidArgument, tuttiSend(a, 4, tuttiFloat32, 7, comm, nullptr),
          HasSubstr("peer is 7"));
}

TEST_F(Arguments, PreMulSum) {
  tuttiRedOp_t op;
  float two = 2;
  REFUSED(tuttiInvalidArgument,
          tuttiRedOpCreatePreMulSum(nullptr, &two, tuttiFloat32, tuttiScalarHostImmediate, comm),
          HasSubstr("op is NULL"));
  REFUSED(tuttiInvalidArgument,
          tuttiRedOpCreatePreMulSum(&op, nullptr, tuttiFloat32, tuttiScalarHostImmediate, comm),
          HasSubstr("scalar is NULL"));
  REFUSED(tuttiInvalidArgument,
          tuttiRedOpCreatePreMulSum(&op, &two, tuttiFloat32, (tuttiScalarResidence_t)9, comm),
          HasSubstr("residence is 9"));
  ASSERT_EQ(tuttiRedOpCreatePreMulSum(&op, &two, tuttiFloat32, tuttiScalarHostImmediate, comm),
            tuttiSuccess);
  REFUSED(tuttiInvalidArgument, tuttiAllReduce(a, b, 2, tuttiFloat16, op, comm, nullptr),
          HasSubstr("float32"), HasSubstr("float16"));
  EXPECT_EQ(tuttiRedOpDestroy(op, comm), tuttiSuccess);
  REFUSED(tuttiInvalidArgument, tuttiAllReduce(a, b, 4, tuttiFloat32, op, comm, nullptr),
          HasSubstr("live handle"));
  REFUSED(tuttiInvalidArgument, tuttiRedOpDestroy(op, comm), HasSubstr("no live handle"));
}

TEST_F(Arguments, Memory) {
  void *p = nullptr, *handle = nullptr;
  REFUSED(tuttiInvalidArgument, tuttiMemAlloc(nullptr, 8),
          HasSubstr("tuttiMemAlloc: argument ptr"));
  ASSERT_EQ(tuttiMemAlloc(&p, 1 << 20), tuttiSuccess);
  EXPECT_EQ((uintptr_t)p % 4096, 0u);
  ASSERT_EQ(tuttiCommRegister(comm, p, 1 << 20, &handle), tuttiSuccess);
  REFUSED(tuttiInvalidArgument, tuttiCommRegister(comm, nullptr, 8, &handle), HasSubstr("buff"));
  EXPECT_EQ(tuttiCommDeregister(comm, handle), tuttiSuccess);
  REFUSED(tuttiInvalidArgument, tuttiCommDeregister(comm, handle), HasSubstr("no live handle"));
  EXPECT_EQ(tuttiMemFree(p), tuttiSuccess);
  EXPECT_EQ(tuttiMemFree(nullptr), tuttiSuccess);
  void *huge = nullptr;
  EXPECT_EQ(tuttiMemAlloc(&huge, SIZE_MAX / 2), tuttiSystemError);
  EXPECT_EQ(huge, nullptr);
}

TEST_F(Arguments, Queries) {
  int n = -5;
  REFUSED(tuttiInvalidArgument, tuttiCommCount(comm, nullptr), HasSubstr("count is NULL"));
  REFUSED(tuttiInvalidArgument, tuttiCommUserRank(nullptr, &n), HasSubstr("comm is NULL"));
  EXPECT_EQ(n, -5);
  EXPECT_EQ(tuttiCommCuDevice(comm, &n), tuttiSuccess);
  EXPECT_EQ(n, -1);
  EXPECT_EQ(tuttiCommGetAsyncError(comm, nullptr), tuttiInvalidArgument);
  EXPECT_EQ(tuttiGetVersion(nullptr), tuttiInvalidArgument);
}

TEST_F(Arguments, GroupEndWithoutStart) {
  REFUSED(tuttiInvalidUsage, tuttiGroupEnd(), HasSubstr("tuttiGroupEnd"), HasSubstr("no group"));
}

/* A failed check spoils the group: nothing of it runs, and its end tells why. */
TEST_F(Arguments, GroupWithBadCall) {
  float out = 5;
  ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
  EXPECT_EQ(tuttiAllReduce(a, &out, 1, tuttiFloat32, tuttiSum, comm, nullptr), tuttiSuccess);
  EXPECT_EQ(tuttiBroadcast(a, b, 4, tuttiFloat32, 3, comm, nullptr), tuttiInvalidArgument);
  REFUSED(tuttiInvalidArgument, tuttiGroupEnd(), HasSubstr("tuttiBroadcast"),
          HasSubstr("root is 3"));
  EXPECT_EQ(out, 5);
}

TEST_F(Arguments, SelfMessages) {
  REFUSED(tuttiInvalidUsage, tuttiSend(a, 4, tuttiFloat32, 0, comm, nullptr),
          HasSubstr("sends to itself"), HasSubstr("same group"));
  ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
  EXPECT_EQ(tuttiSend(a, 4, tuttiFloat32, 0, comm, nullptr), tuttiSuccess);
  EXPECT_EQ(tuttiRecv(b, 3, tuttiFloat32, 0, comm, nullptr), tuttiSuccess);
  REFUSED(tuttiInvalidUsage, tuttiGroupEnd(), HasSubstr("must match"));
}

TEST(Init, Arguments) {
  tuttiUniqueId id;
  tuttiComm_t comm = nullptr;
  REFUSED(tuttiInvalidArgument, tuttiGetUniqueId(nullptr), HasSubstr("uniqueId is NULL"));
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  REFUSED(tuttiInvalidArgument, tuttiCommInitRank(nullptr, 1, id, 0), HasSubstr("comm is NULL"));
  REFUSED(tuttiInvalidArgument, tuttiCommInitRank(&comm, 0, id, 0), HasSubstr("nranks is 0"));
  REFUSED(tuttiInvalidArgument, tuttiCommInitRank(&comm, -4, id, 0), HasSubstr("nranks is -4"));
  REFUSED(tuttiInvalidArgument, tuttiCommInitRank(&comm, INT_MAX, id, 0),
          HasSubstr("nranks is 2147483647; it must be 1 to "));
  REFUSED(tuttiInvalidArgument, tuttiCommInitRank(&comm, 2, id, 2), HasSubstr("rank is 2"),
          HasSubstr("0 to 1"));
  REFUSED(tuttiInvalidArgument, tuttiCommInitRank(&comm, 2, id, -1), HasSubstr("rank is -1"));
  REFUSED(tuttiInvalidArgument, tuttiCommInitRankScalable(&comm, 2, 0, 3, &id, nullptr),
          HasSubstr("nId is 3"));
  REFUSED(tuttiInvalidArgument, tuttiCommInitRankScalable(&comm, 2, 0, 1, nullptr, nullptr),
          HasSubstr("commIds is NULL"));
  EXPECT_EQ(comm, nullptr);
  EXPECT_EQ(tuttiCommInitRank(&comm, 1, id, 0), tuttiSuccess) << lastError();
  EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
}

TEST(Init, ForgedId) {
  tuttiUniqueId id;
  tuttiComm_t comm = nullptr;
  memset(&id, 0, sizeof id);
  REFUSED(tuttiInvalidArgument, tuttiCommInitRank(&comm, 1, id, 0), HasSubstr("tuttiGetUniqueId"));
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  tuttiUniqueId truncated = id;
  memset(truncated.internal + 20, 0, sizeof truncated.internal - 20);
  EXPECT_EQ(tuttiCommInitRank(&comm, 1, truncated, 0), tuttiInvalidArgument);
  for (size_t i = 0; i < 32; i++) {
    tuttiUniqueId flipped = id;
    flipped.internal[i] ^= 0x10;
    EXPECT_EQ(tuttiCommInitRank(&comm, 1, flipped, 0), tuttiInvalidArgument) << "byte " << i;
  }
  EXPECT_EQ(comm, nullptr);
}

TEST(Init, Config) {
  tuttiUniqueId id;
  tuttiComm_t comm = nullptr;
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  tuttiConfig_t config;
  memset(&config, 0, sizeof config);
  REFUSED(tuttiInvalidArgument, tuttiCommInitRankConfig(&comm, 1, id, 0, &config),
          HasSubstr("TUTTI_CONFIG_INITIALIZER"));
  config = TUTTI_CONFIG_INITIALIZER;
  config.blocking = 2;
  REFUSED(tuttiInvalidArgument, tuttiCommInitRankConfig(&comm, 1, id, 0, &config),
          HasSubstr("config.blocking is 2"));
  config = TUTTI_CONFIG_INITIALIZER;
  config.minCTAs = 4;
  config.maxCTAs = 2;
  REFUSED(tuttiInvalidArgument, tuttiCommInitRankConfig(&comm, 1, id, 0, &config),
          HasSubstr("least number of channels (4)"));
  /* What comes from elsewhere gives way. */
  config.maxCTAs = TUTTI_CONFIG_UNDEF_INT;
  ASSERT_EQ(tuttiCommInitRankConfig(&comm, 1, id, 0, &config), tuttiSuccess) << lastError();
  config = TUTTI_CONFIG_INITIALIZER;
  config.maxCTAs = 2;
  tuttiComm_t part = nullptr;
  EXPECT_EQ(tuttiCommSplit(comm, 0, 0, &part, &config), tuttiSuccess) << lastError();
  EXPECT_EQ(tuttiCommDestroy(part), tuttiSuccess);
  EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  comm = nullptr;
  config = TUTTI_CONFIG_INITIALIZER;
  config.device = tuttiDeviceCuda;
  EXPECT_NE(tuttiCommInitRankConfig(&comm, 1, id, 0, &config), tuttiSuccess);
  EXPECT_THAT(lastError(), HasSubstr("CUDA"));
  config = TUTTI_CONFIG_INITIALIZER;
  config.timeoutMs = -7;
  REFUSED(tuttiInvalidArgument, tuttiCommInitRankConfig(&comm, 1, id, 0, &config),
          HasSubstr("timeoutMs is -7"));
}

/* Rank 0 only hears that rank 1 has failed, and is the first of the group. */
TEST(Init, AGroupTellsWhatARankFailedWith) {
  tuttiUniqueId id;
  tuttiComm_t comms[2];
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.device = tuttiDeviceCuda;
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
  EXPECT_EQ(tuttiCommInitRank(&comms[0], 2, id, 0), tuttiSuccess) << lastError();
  EXPECT_EQ(tuttiCommInitRankConfig(&comms[1], 2, id, 1, &config), tuttiSuccess) << lastError();
  tuttiResult_t result = tuttiGroupEnd();
  EXPECT_NE(result, tuttiSuccess);
  EXPECT_NE(result, tuttiRemoteError);
  EXPECT_THAT(lastError(), HasSubstr("CUDA"));
}

TEST(Init, NetworksInCapitalsOrNot) {
  tuttiUniqueId id;
  tuttiComm_t comms[2];
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  onThreads(2, [&](int r) {
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.netName = r ? "socket" : "Socket";
    EXPECT_EQ(tuttiCommInitRankConfig(&comms[r], 2, id, r, &config), tuttiSuccess) << lastError();
    EXPECT_EQ(tuttiCommDestroy(comms[r]), tuttiSuccess);
    config.netName = "AWS Libfabric";
    REFUSED(tuttiInvalidArgument, tuttiCommInitRankConfig(&comms[r], 1, id, 0, &config),
            HasSubstr("there is no network \"AWS Libfabric\""));
    config.netName = "Socket or whatever else is there";
    REFUSED(tuttiInvalidArgument, tuttiCommInitRankConfig(&comms[r], 1, id, 0, &config),
            HasSubstr("there is no network \"Socket or whate"));
  });
}

/* What others set for NCCL, on a whole machine: its XML is not ours. */
TEST(Init, NcclsFilesAreNotRead) {
  Settings files({{"NCCL_TOPO_FILE", "/nowhere/topo.xml"}, {"NCCL_GRAPH_FILE", "/nowhere/g.xml"}});
  Settings net(std::map<std::string, std::string>{{"NCCL_NET", "AWS Libfabric"}});
  EXPECT_TRUE(Ranks(2).ok());
}

TEST(Handles, DeadOnes) {
  tuttiComm_t dead;
  {
    Ranks ranks(1);
    ASSERT_TRUE(ranks.ok());
    dead = ranks.comms[0];
  }
  float x = 0;
  REFUSED(tuttiInvalidArgument, tuttiAllReduce(&x, &x, 1, tuttiFloat32, tuttiSum, dead, nullptr),
          HasSubstr("destroyed or aborted"));
  REFUSED(tuttiInvalidArgument, tuttiCommDestroy(dead), HasSubstr("destroyed"));
  REFUSED(tuttiInvalidArgument, tuttiCommAbort(dead), HasSubstr("aborted"));
  REFUSED(tuttiInvalidArgument, tuttiCommFinalize(dead), HasSubstr("destroyed"));
  REFUSED(tuttiInvalidArgument, tuttiCommDestroy((tuttiComm_t)0x1234567890),
          HasSubstr("never made"));
  Ranks next(1); /* may reuse the slot: the old handle stays dead */
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(tuttiCommDestroy(dead), tuttiInvalidArgument);
}

TEST(Handles, Finalized) {
  Ranks ranks(1);
  ASSERT_TRUE(ranks.ok());
  float x = 0;
  ASSERT_EQ(tuttiCommFinalize(ranks.comms[0]), tuttiSuccess);
  REFUSED(tuttiInvalidUsage,
          tuttiAllReduce(&x, &x, 1, tuttiFloat32, tuttiSum, ranks.comms[0], nullptr),
          HasSubstr("finalized"));
}

TEST(LastError, NamesNothingAtFirst) {
  std::thread([] { EXPECT_STREQ(tuttiGetLastError(nullptr), ""); }).join();
}

} // namespace

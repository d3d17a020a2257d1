/* Memory of idle communicators: suspend, resume, statistics; and the settings as parameters. */
#include "harness.h"

using testing::HasSubstr;

namespace {

std::string lastError(tuttiComm_t comm = nullptr) {
  return tuttiGetLastError(comm);
}

uint64_t stat(tuttiComm_t comm, tuttiCommMemStat_t which) {
  uint64_t value = 0;
  EXPECT_EQ(tuttiCommMemStats(comm, which, &value), tuttiSuccess) << lastError();
  return value;
}

void expectSums(tuttiComm_t comm, int n) {
  std::vector<float> in(300000, 1), out(300000);
  for (size_t count : {size_t(1), in.size()}) {
    ASSERT_EQ(tuttiAllReduce(in.data(), out.data(), count, tuttiFloat32, tuttiSum, comm, nullptr),
              tuttiSuccess)
        << lastError();
    ASSERT_EQ(out[count - 1], n);
  }
}

TEST(Suspend, GivesMemoryBackAndGoesOn) {
  for (const char *proto : {"", "Simple"}) {
    Settings settings({{"TUTTI_P2P_DISABLE", "1"},
                       {"TUTTI_CMA_DISABLE", "1"},
                       {"TUTTI_PROTO", proto},
                       {"TUTTI_ALGO", "Ring"}});
    Ranks ranks(3);
    ASSERT_TRUE(ranks.ok());
    ranks.run([](int r, tuttiComm_t comm) {
      for (int round = 0; round < 3; round++) {
        expectSums(comm, 3);
        uint64_t total = stat(comm, tuttiStatGpuMemTotal);
        uint64_t slots = stat(comm, tuttiStatGpuMemSuspend);
        EXPECT_GT(slots, 1000u);
        EXPECT_EQ(slots + stat(comm, tuttiStatGpuMemPersist), total);
        EXPECT_EQ(stat(comm, tuttiStatGpuMemSuspended), 0u);
        ASSERT_EQ(tuttiCommSuspend(comm, TUTTI_SUSPEND_MEM), tuttiSuccess) << lastError();
        EXPECT_EQ(stat(comm, tuttiStatGpuMemSuspended), 1u);
        EXPECT_EQ(stat(comm, tuttiStatGpuMemSuspend), 0u);
        EXPECT_LE(stat(comm, tuttiStatGpuMemTotal), total - slots + 4096);
        float x = 0;
        EXPECT_EQ(tuttiAllReduce(&x, &x, 1, tuttiFloat32, tuttiSum, comm, nullptr),
                  tuttiInvalidUsage);
        EXPECT_THAT(lastError(), HasSubstr("suspended; call tuttiCommResume"));
        if (round == 2 && r == 1) break; /* and can be destroyed */
        ASSERT_EQ(tuttiCommResume(comm), tuttiSuccess) << lastError();
        EXPECT_EQ(tuttiCommResume(comm), tuttiInvalidUsage);
        EXPECT_THAT(lastError(), HasSubstr("is not suspended"));
      }
    });
  }
}

/* A send may return before its message is received; the message outlasts the suspension. */
TEST(Suspend, KeepsWhatWasSentAndNotYetReceived) {
  Settings settings({{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_CMA_DISABLE", "1"}});
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    for (int round = 0; round < 2; round++) {
      std::vector<int32_t> message(10000, r == 0 ? 7 + round : -1);
      if (r == 0) {
        ASSERT_EQ(tuttiSend(message.data(), message.size(), tuttiInt32, 1, comm, nullptr),
                  tuttiSuccess)
            << lastError();
      }
      ASSERT_EQ(tuttiCommSuspend(comm, TUTTI_SUSPEND_MEM), tuttiSuccess) << lastError();
      ASSERT_EQ(tuttiCommResume(comm), tuttiSuccess) << lastError();
      if (r == 1) {
        ASSERT_EQ(tuttiRecv(message.data(), message.size(), tuttiInt32, 0, comm, nullptr),
                  tuttiSuccess)
            << lastError();
      }
      EXPECT_EQ(message, std::vector<int32_t>(10000, 7 + round)) << "rank " << r;
    }
    ASSERT_EQ(tuttiCommSuspend(comm, TUTTI_SUSPEND_MEM), tuttiSuccess) << lastError();
    EXPECT_EQ(stat(comm, tuttiStatGpuMemSuspend), 0u); /* all received: now it goes */
    ASSERT_EQ(tuttiCommResume(comm), tuttiSuccess) << lastError();
  });
}

TEST(Suspend, BadArguments) {
  Ranks ranks(1);
  ASSERT_TRUE(ranks.ok());
  uint64_t value = 7;
  EXPECT_EQ(tuttiCommSuspend(ranks.comms[0], 0), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("flags is 0"));
  EXPECT_EQ(tuttiCommMemStats(ranks.comms[0], (tuttiCommMemStat_t)4, &value), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("stat is 4"));
  EXPECT_EQ(tuttiCommMemStats(ranks.comms[0], tuttiStatGpuMemTotal, nullptr), tuttiInvalidArgument);
  EXPECT_EQ(value, 7u);
  EXPECT_EQ(tuttiCommSuspend(nullptr, 1), tuttiInvalidArgument);
}

TEST(Params, AreTheSettings) {
  Settings settings(
      {{"TUTTI_BUFFSIZE", "64K"}, {"NCCL_P2P_DISABLE", "1"}, {"TUTTI_NET", "Socket"}});
  tuttiParamHandle_t h = nullptr;
  int8_t small = 5;
  uint64_t large = 0;
  const char *text = nullptr;
  int length = 0;
  ASSERT_EQ(tuttiParamBind(&h, "NCCL_BUFFSIZE"), tuttiSuccess) << lastError();
  EXPECT_EQ(tuttiParamGetU64(h, &large), tuttiSuccess);
  EXPECT_EQ(large, 65536u);
  EXPECT_EQ(tuttiParamGetI8(h, &small), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("TUTTI_BUFFSIZE is '65536', which is no int8_t"));
  EXPECT_EQ(small, 5);
  ASSERT_EQ(tuttiParamGetStr(h, &text), tuttiSuccess);
  EXPECT_STREQ(text, "65536");
  int64_t number = 0;
  ASSERT_EQ(tuttiParamGet(h, &number, sizeof number, &length), tuttiSuccess);
  EXPECT_EQ(number, 65536);
  EXPECT_EQ(length, 8);
  ASSERT_EQ(tuttiParamBind(&h, "TUTTI_NET"), tuttiSuccess);
  char bytes[8];
  EXPECT_EQ(tuttiParamGet(h, bytes, 6, &length), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("takes 7 bytes"));
  ASSERT_EQ(tuttiParamGet(h, bytes, 7, &length), tuttiSuccess);
  EXPECT_STREQ(bytes, "Socket");
  EXPECT_EQ(tuttiParamGetI64(h, &number), tuttiInvalidArgument);
  ASSERT_EQ(tuttiParamGetParameter("TUTTI_P2P_DISABLE", &text, &length), tuttiSuccess);
  EXPECT_STREQ(text, "1");
  EXPECT_EQ(length, 1);
  const char **keys = nullptr;
  ASSERT_EQ(tuttiParamGetAllParameterKeys(&keys, &length), tuttiSuccess);
  EXPECT_EQ(length, (int)TUTTI_SETTING_COUNT);
  EXPECT_STREQ(keys[0], "TUTTI_DEBUG");
  tuttiParamDumpAll();
}

TEST(Params, BadArguments) {
  tuttiParamHandle_t h = nullptr;
  int32_t value;
  EXPECT_EQ(tuttiParamBind(&h, "TUTTI_NOTHING"), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("TUTTI_NOTHING, no setting"));
  EXPECT_EQ(tuttiParamBind(&h, nullptr), tuttiInvalidArgument);
  EXPECT_EQ(tuttiParamBind(nullptr, "TUTTI_NET"), tuttiInvalidArgument);
  EXPECT_EQ(tuttiParamGetI32(h, &value), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("no handle of tuttiParamBind"));
  EXPECT_EQ(tuttiParamGetAllParameterKeys(nullptr, nullptr), tuttiInvalidArgument);
  EXPECT_EQ(tuttiParamGetParameter("TUTTI_NET", nullptr, nullptr), tuttiInvalidArgument);
}

} // namespace

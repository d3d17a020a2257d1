/* libnccl.so.2 on host memory, by its ABI: configs of every version, refusals, and numbers. */
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "nccl/abi.h"
#include "nccl/device.h"
#include "numbers.h"

using testing::HasSubstr;

extern "C" {
#define SAME(name) decltype(tutti##name) nccl##name, pnccl##name;
SAME(GetVersion)
SAME(GetLastError)
SAME(GetErrorString)
SAME(GetUniqueId)
SAME(CommInitRank)
SAME(CommInitAll)
SAME(CommAbort)
SAME(CommDestroy)
SAME(CommFinalize)
SAME(CommRevoke)
SAME(CommGetAsyncError)
SAME(CommCount)
SAME(CommWindowRegister)
SAME(CommWindowDeregister)
SAME(CommDeregister)
SAME(CommMemStats)
SAME(AllReduce)
SAME(PutSignal)
SAME(WaitSignal)
SAME(CommUserRank)
SAME(AlltoAll)
SAME(Send)
SAME(GroupStart)
SAME(GroupEnd)
SAME(ParamGetParameter)
tuttiResult_t ncclCommInitRankConfig(tuttiComm_t *, int, tuttiUniqueId, int, void *);
tuttiResult_t ncclCommSplit(tuttiComm_t, int, int, tuttiComm_t *, void *);
tuttiResult_t ncclCommShrink(tuttiComm_t, int *, int, tuttiComm_t *, void *, int);
tuttiResult_t ncclGroupSimulateEnd(tuttiNcclSimInfo *);
tuttiResult_t ncclAllReduceConfig(const void *, void *, size_t, tuttiDataType_t, tuttiRedOp_t,
                                  tuttiComm_t, tuttiStream_t, const tuttiNcclCollConfig *);
tuttiResult_t ncclAlltoAllConfig(const void *, void *, size_t, tuttiDataType_t, tuttiComm_t,
                                 tuttiStream_t, const tuttiNcclCollConfig *);
tuttiResult_t ncclCommQueryProperties(tuttiComm_t, tuttiNcclCommProperties *);
tuttiResult_t ncclSetEncryption(const tuttiNcclEncryptionConfig *);
tuttiNcclTeam ncclTeamCft(tuttiComm_t, int);
tuttiResult_t ncclDevCommCreate(tuttiComm_t, const void *, void *);
tuttiResult_t ncclDevCommDestroy(tuttiComm_t, const void *);
tuttiResult_t ncclLsaBarrierCreateRequirement(tuttiNcclTeam, int, tuttiNcclLsaBarrier *,
                                              tuttiNcclResource *);
tuttiResult_t ncclLLA2ACreateRequirement(int, int, tuttiNcclLlA2a *, tuttiNcclResource *);
int ncclLLA2ACalcSlots(int, int);
tuttiResult_t ncclGetLsaMultimemDevicePointer(tuttiWindow_t, size_t, void **);
tuttiResult_t ncclGetMultimemDeviceLeInfo(tuttiWindow_t, size_t, uint32_t *, size_t *);
tuttiResult_t ncclGetPeerDevicePointer(tuttiWindow_t, size_t, int, void **);
tuttiResult_t ncclGetLsaDevicePointer(tuttiWindow_t, size_t, int, void **);
tuttiNcclTeam ncclTeamLsa(tuttiComm_t);
tuttiNcclTeam ncclTeamRail(tuttiComm_t);
int ncclTeamRankToLsa(tuttiComm_t, tuttiNcclTeam, int);
tuttiNcclTeam ncclTeamWorld(tuttiComm_t);
int ncclTeamRankToWorld(tuttiComm_t, tuttiNcclTeam, int);
}

namespace {

std::string lastError(tuttiComm_t comm = nullptr) {
  return ncclGetLastError(comm);
}

/* A config as a caller of that version has it: so many bytes, then poison, as in the padding. */
struct Config {
  Config(unsigned version, size_t size) {
    memset(bytes, 0x5a, sizeof bytes);
    tuttiNcclConfig undefined = {};
    std::fill_n(&undefined.blocking, (sizeof undefined - offsetof(tuttiNcclConfig, blocking)) / 4,
                INT_MIN); /* pointers are undefined as NULL */
    undefined.netName = undefined.commName = nullptr;
    undefined.size = size;
    undefined.magic = TUTTI_NCCL_CONFIG_MAGIC;
    undefined.version = version;
    memcpy(bytes, &undefined, size < sizeof undefined ? size : sizeof undefined);
  }
  tuttiNcclConfig *operator->() { return (tuttiNcclConfig *)bytes; }
  alignas(8) char bytes[256];
};

/* Makes and destroys a communicator of one rank; *name is how errors call it. */
tuttiResult_t tryConfig(void *config, std::string *name = nullptr) {
  tuttiUniqueId id;
  tuttiComm_t comm = nullptr;
  EXPECT_EQ(ncclGetUniqueId(&id), tuttiSuccess) << lastError();
  tuttiResult_t result = ncclCommInitRankConfig(&comm, 1, id, 0, config);
  if (!comm) return result;
  for (tuttiResult_t state = tuttiInProgress; state == tuttiInProgress;)
    EXPECT_EQ(ncclCommGetAsyncError(comm, &state), tuttiSuccess);
  EXPECT_EQ(ncclSend(nullptr, 1, tuttiInt8, 7, comm, nullptr), tuttiInvalidArgument);
  if (name) *name = lastError();
  EXPECT_EQ(ncclCommDestroy(comm), tuttiSuccess);
  return result;
}

TEST(NcclConfig, OfEveryVersion) {
  const std::map<unsigned, size_t> versions = {
      {21400, 24}, {21700, 40}, {21800, 48}, {22600, 48},  {22700, 72},  {22809, 80},
      {22900, 88}, {23003, 96}, {23007, 96}, {23100, 120}, {23203, 120}, {29900, 200}};
  for (auto [version, size] : versions) {
    for (size_t claimed : {size, sizeof(Config::bytes)}) {
      Config config(version, size);
      config->size = claimed; /* what is behind its fields is padding */
      EXPECT_EQ(tryConfig(config.bytes), tuttiSuccess) << version << lastError();
      config->blocking = 0;
      EXPECT_EQ(tryConfig(config.bytes), tuttiInProgress) << version;
      config->blocking = 3;
      EXPECT_EQ(tryConfig(config.bytes), tuttiInvalidArgument) << version;
    }
  }
}

TEST(NcclConfig, FieldsOfLaterVersionsAreIgnored) {
  Config config(21400, 96);
  config->minCTAs = 5;
  config->maxCTAs = 2;
  config->netName = (const char *)1;
  config->commName = (const char *)1;
  EXPECT_EQ(tryConfig(config.bytes), tuttiSuccess) << lastError();
  config->version = 21700;
  config->netName = nullptr;
  EXPECT_EQ(tryConfig(config.bytes), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("least number of channels (5) is above the greatest (2)"));
  config->maxCTAs = 640; /* more than tutti has */
  config->minCTAs = 64;
  EXPECT_EQ(tryConfig(config.bytes), tuttiSuccess) << lastError();
  config->trafficClass = 256;
  EXPECT_EQ(tryConfig(config.bytes), tuttiSuccess) << lastError();
  config->version = 22600;
  EXPECT_EQ(tryConfig(config.bytes), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("config.trafficClass is 256; it must be 0 to 255"));
  config->trafficClass = 255;
  EXPECT_EQ(tryConfig(config.bytes), tuttiSuccess) << lastError();
  std::string name;
  config->version = 22700;
  config->commName = "orchestra";
  EXPECT_EQ(tryConfig(config.bytes, &name), tuttiSuccess) << lastError();
  EXPECT_THAT(name, HasSubstr("comm orchestra"));
  std::string longName(80, 'x'); /* as PyTorch makes of the ranks of a group */
  config->commName = longName.c_str();
  EXPECT_EQ(tryConfig(config.bytes, &name), tuttiSuccess) << lastError();
  EXPECT_THAT(name, HasSubstr("comm " + longName.substr(0, 63)));
  EXPECT_THAT(name, testing::Not(HasSubstr(longName.substr(0, 64))));
}

TEST(NcclConfig, ShorterThanItsVersion) {
  Config config(22809, 24);
  EXPECT_EQ(tryConfig(config.bytes), tuttiSuccess) << lastError();
}

TEST(NcclConfig, ThatIsNone) {
  Config config(22809, 80);
  EXPECT_EQ(tryConfig(nullptr), tuttiSuccess);
  config->magic = 1;
  EXPECT_EQ(tryConfig(config.bytes), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("config is not initialized"));
  config->magic = TUTTI_NCCL_CONFIG_MAGIC;
  config->size = 16;
  EXPECT_EQ(tryConfig(config.bytes), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("config.size"));
}

TEST(Nccl, VersionIsWhatIsSet) {
  const std::pair<const char *, int> versions[] = {
      {"", 23203}, {"2.28.9", 22809}, {"2.32.3", 23203}, {"2.14.0", 21400}, {"2.27.03", 22703}};
  for (auto [text, code] : versions) {
    setenv("TUTTI_NCCL_VERSION", text, 1);
    EXPECT_EQ(tryConfig(nullptr), tuttiSuccess) << text << lastError(); /* which reads settings */
    int version = 0;
    EXPECT_EQ(ncclGetVersion(&version), tuttiSuccess);
    EXPECT_EQ(version, code) << text;
  }
  for (const char *text : {"2.32.4", "2.13.9", "3.1.1", "2.28", "2.28.9.1", "2.28.9a", "2.-1.9",
                           "22809", "2.33.0", " 2.28.9", "2.28.+9"}) {
    setenv("TUTTI_NCCL_VERSION", text, 1);
    tuttiComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitAll(&comm, 1, nullptr), tuttiInvalidArgument) << text;
    EXPECT_THAT(lastError(), HasSubstr("accepted: 2.14.0 to 2.32.3"));
  }
  unsetenv("TUTTI_NCCL_VERSION");
  EXPECT_EQ(tryConfig(nullptr), tuttiSuccess);
}

TEST(Nccl, Collectives) {
  constexpr int n = 3;
  tuttiComm_t comms[n], parts[n], rest[n] = {};
  tuttiWindow_t wins[n];
  float in[n] = {1, 2, 4}, out[n] = {};
  int version = 0, none[] = {0};
  ASSERT_EQ(ncclGetVersion(&version), tuttiSuccess);
  EXPECT_EQ(version, 23203);
  EXPECT_EQ(ncclGetVersion(nullptr), tuttiInvalidArgument);
  ASSERT_EQ(ncclCommInitAll(comms, n, nullptr), tuttiSuccess) << lastError();
  ASSERT_EQ(ncclGroupStart(), tuttiSuccess);
  for (int r = 0; r < n; r++) {
    ASSERT_EQ(pncclAllReduce(&in[r], &out[r], 1, tuttiFloat, tuttiSum, comms[r], nullptr),
              tuttiSuccess);
    ASSERT_EQ(ncclCommSplit(comms[r], 0, -r, &parts[r], nullptr), tuttiSuccess);
    ASSERT_EQ(ncclCommWindowRegister(comms[r], &in[r], 4, &wins[r], 1), tuttiSuccess);
    if (r) {
      ASSERT_EQ(ncclCommShrink(comms[r], none, 1, &rest[r], nullptr, 0), tuttiSuccess);
    }
  }
  ASSERT_EQ(ncclGroupEnd(), tuttiSuccess) << lastError();
  for (int r = 0; r < n; r++) {
    EXPECT_EQ(out[r], 7);
    tuttiNcclTeam team = ncclTeamWorld(parts[r]);
    EXPECT_EQ(team.nRanks, n);
    EXPECT_EQ(team.rank, n - 1 - r);
    EXPECT_EQ(ncclTeamRankToWorld(parts[r], team, 2), 2);
    uint64_t bytes = 0;
    EXPECT_EQ(ncclCommMemStats(comms[r], tuttiStatGpuMemTotal, &bytes), tuttiSuccess);
    EXPECT_GT(bytes, 0u);
    EXPECT_EQ(ncclCommWindowDeregister(comms[r], wins[r]), tuttiSuccess);
    EXPECT_EQ(ncclCommDeregister(comms[r], nullptr), tuttiSuccess);
    for (auto comm : {parts[r], rest[r], comms[r]})
      if (comm) {
        EXPECT_EQ(ncclCommDestroy(comm), tuttiSuccess) << lastError();
      }
  }
}

/* What a rank of no colour does at the end, which has no communicator. */
TEST(Nccl, EndsOfNoCommunicatorSucceed) {
  EXPECT_EQ(ncclCommFinalize(nullptr), tuttiSuccess);
  EXPECT_EQ(ncclCommDestroy(nullptr), tuttiSuccess);
  EXPECT_EQ(ncclCommAbort(nullptr), tuttiSuccess);
  EXPECT_EQ(ncclCommRevoke(nullptr, 0), tuttiSuccess);
  int count;
  EXPECT_EQ(ncclCommCount(nullptr, &count), tuttiInvalidArgument);
}

/* Its data is undefined, as with NCCL, but nothing around it is touched and nothing fails. */
TEST(Nccl, AlltoAllInPlaceReturns) {
  constexpr int n = 2;
  tuttiComm_t comms[n];
  int64_t data[n][n + 1] = {{1, 2, 3}, {4, 5, 6}}, out[n][n] = {};
  ASSERT_EQ(ncclCommInitAll(comms, n, nullptr), tuttiSuccess) << lastError();
  for (bool inPlace : {true, false}) {
    ASSERT_EQ(ncclGroupStart(), tuttiSuccess);
    for (int r = 0; r < n; r++)
      EXPECT_EQ(ncclAlltoAll(data[r], inPlace ? data[r] : out[r], 1, tuttiInt64, comms[r], nullptr),
                tuttiSuccess)
          << lastError();
    ASSERT_EQ(ncclGroupEnd(), tuttiSuccess) << lastError();
    EXPECT_EQ(data[0][n], 3);
    EXPECT_EQ(data[1][n], 6);
    for (int r = 0; r < n && !inPlace; r++)
      for (int s = 0; s < n; s++)
        EXPECT_EQ(out[r][s], data[s][r]);
  }
  EXPECT_EQ(ncclAlltoAll(data, data, 1, (tuttiDataType_t)99, comms[0], nullptr),
            tuttiInvalidArgument);
  EXPECT_EQ(ncclAlltoAll(data, data, 1, tuttiInt64, nullptr, nullptr), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("comm is NULL"));
  for (auto comm : comms)
    EXPECT_EQ(ncclCommDestroy(comm), tuttiSuccess) << lastError();
}

TEST(Nccl, SimulateEnd) {
  tuttiNcclSimInfo sim = {sizeof sim, TUTTI_NCCL_SIM_MAGIC, 22809, -1};
  ASSERT_EQ(ncclGroupStart(), tuttiSuccess);
  EXPECT_EQ(ncclGroupSimulateEnd(&sim), tuttiSuccess) << lastError();
  EXPECT_EQ(sim.estimatedTime, 0);
  sim.magic = 0;
  ASSERT_EQ(ncclGroupStart(), tuttiSuccess);
  EXPECT_EQ(ncclGroupSimulateEnd(&sim), tuttiInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), tuttiInvalidUsage) << "no group is left open";
}

const tuttiNcclCollConfig undefined = {sizeof undefined,
                                       TUTTI_NCCL_CONFIG_MAGIC,
                                       23203,
                                       nullptr,
                                       INT_MIN,
                                       INT_MIN,
                                       INT_MIN,
                                       INT_MIN,
                                       nullptr,
                                       1,
                                       INT_MIN,
                                       0,
                                       nullptr};

TEST(Nccl, OptionsOfACollective) {
  tuttiComm_t comm[1];
  float in = 3, out = 0;
  ASSERT_EQ(ncclCommInitAll(comm, 1, nullptr), tuttiSuccess) << lastError();
  auto sum = [&](const tuttiNcclCollConfig *config) {
    return ncclAllReduceConfig(&in, &out, 1, tuttiFloat, tuttiSum, comm[0], nullptr, config);
  };
  EXPECT_EQ(sum(nullptr), tuttiSuccess) << lastError(comm[0]);
  tuttiNcclCollConfig config = undefined;
  uint64_t someExtension[3] = {0, 0x7fff00000001, 1}; /* of another vendor: passed over */
  config.ext = someExtension;
  config.minCTAs = 640;
  config.userProfilerTag = 7;
  config.algSelection = "tree,nvls";
  EXPECT_EQ(sum(&config), tuttiSuccess) << lastError(comm[0]);
  EXPECT_EQ(out, 3);
  config.algSelection = "nvls";
  EXPECT_EQ(sum(&config), tuttiInvalidArgument);
  EXPECT_THAT(lastError(comm[0]), HasSubstr("config.algSelection is \"nvls\": none of that"));
  config.forceAlgSelection = 0;
  EXPECT_EQ(sum(&config), tuttiSuccess) << lastError(comm[0]);
  config.launchCompletionEvent = &config;
  EXPECT_EQ(sum(&config), tuttiInvalidUsage);
  EXPECT_THAT(lastError(comm[0]), HasSubstr("config.launchCompletionEvent"));
  config = undefined;
  config.magic++;
  EXPECT_EQ(sum(&config), tuttiInvalidArgument);
  config = undefined;
  config.size--;
  EXPECT_EQ(sum(&config), tuttiInvalidArgument);
  EXPECT_EQ(ncclAlltoAllConfig(&in, &in, 1, tuttiFloat, comm[0], nullptr, nullptr), tuttiSuccess);
  EXPECT_EQ(ncclCommDestroy(comm[0]), tuttiSuccess);
}

TEST(Nccl, OneSided) {
  tuttiComm_t comms[2];
  tuttiWindow_t wins[2];
  int64_t window[2] = {}, data = 42;
  tuttiWaitSignalDesc_t desc = {1, 0, 0, 0};
  ASSERT_EQ(ncclCommInitAll(comms, 2, nullptr), tuttiSuccess) << lastError();
  ASSERT_EQ(ncclGroupStart(), tuttiSuccess);
  for (int r = 0; r < 2; r++)
    ASSERT_EQ(ncclCommWindowRegister(comms[r], &window[r], 8, &wins[r], 2), tuttiSuccess);
  ASSERT_EQ(ncclGroupEnd(), tuttiSuccess) << lastError();
  EXPECT_EQ(ncclPutSignal(&data, 1, tuttiInt64, 1, wins[0], 0, 0, 0, 0, comms[0], nullptr),
            tuttiSuccess)
      << lastError(comms[0]);
  EXPECT_EQ(ncclWaitSignal(1, &desc, comms[1], nullptr), tuttiSuccess) << lastError(comms[1]);
  EXPECT_EQ(window[1], 42);
  for (auto comm : comms)
    EXPECT_EQ(ncclCommDestroy(comm), tuttiSuccess);
}

TEST(Nccl, Properties) {
  tuttiComm_t comms[2];
  ASSERT_EQ(ncclCommInitAll(comms, 2, nullptr), tuttiSuccess) << lastError();
  tuttiNcclCommProperties p = {};
  p.size = sizeof p;
  p.magic = TUTTI_NCCL_CONFIG_MAGIC;
  p.version = 23203;
  ASSERT_EQ(ncclCommQueryProperties(comms[1], &p), tuttiSuccess) << lastError(comms[1]);
  EXPECT_EQ(p.rank, 1);
  EXPECT_EQ(p.nRanks, 2);
  EXPECT_EQ(p.cudaDev, -1);
  EXPECT_FALSE(p.deviceApiSupport || p.multimemSupport || p.cftSupport || p.ginType);
  EXPECT_EQ(p.nLsaTeams, 2) << "on host memory each is one of its own";
  EXPECT_NE(p.commHash, 0u);
  tuttiNcclCommProperties older;
  memset(&older, 0x5a, sizeof older);
  older.size = offsetof(tuttiNcclCommProperties, railedGinType);
  older.magic = TUTTI_NCCL_CONFIG_MAGIC;
  ASSERT_EQ(ncclCommQueryProperties(comms[0], &older), tuttiSuccess) << lastError(comms[0]);
  EXPECT_EQ(older.nRanks, 2);
  EXPECT_EQ(older.railedGinType, 0x5a5a5a5a) << "behind what the caller has";
  older.magic = 1;
  EXPECT_EQ(ncclCommQueryProperties(comms[0], &older), tuttiInvalidArgument);
  EXPECT_EQ(ncclCommQueryProperties(comms[0], nullptr), tuttiInvalidArgument);
  for (auto comm : comms)
    EXPECT_EQ(ncclCommDestroy(comm), tuttiSuccess);
}

TEST(Nccl, WhatIsNotServedSaysWhatToUse) {
  tuttiWindow_t win = nullptr;
  for (int flags : {TUTTI_NCCL_WIN_GIN_ONLY, TUTTI_NCCL_WIN_CFT_COUNTED | 1}) {
    EXPECT_EQ(ncclCommWindowRegister(nullptr, nullptr, 0, &win, flags), tuttiInvalidUsage);
    EXPECT_THAT(lastError(), HasSubstr("NCCL_WIN_GIN_ONLY or NCCL_WIN_CFT_COUNTED"));
  }
  EXPECT_EQ(ncclTeamCft(nullptr, 0).nRanks, 1);
  EXPECT_EQ(ncclGetMultimemDeviceLeInfo(nullptr, 0, nullptr, nullptr), tuttiInvalidUsage);
  EXPECT_THAT(lastError(), HasSubstr("tutti has no multicast"));
  int count;
  EXPECT_EQ(ncclCommCount(nullptr, &count), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("comm is NULL")) << "not the refusal of before";
}

/* ---- device communicators, as far as there is no GPU ------------------------------------------
 */

TEST(NcclDevice, ReciprocalsDivide) {
  for (uint64_t y = 1; y < 5000; y++)
    for (uint64_t x : {(uint64_t)0, (uint64_t)1, y - 1, y, y + 1, 7 * y - 1, 7 * y, (uint64_t)99999,
                       (uint64_t)INT32_MAX}) {
      uint64_t rcp = tuttiNcclReciprocal((uint32_t)y); /* as device code goes about it */
      uint64_t q = rcp == 0 ? x : x * rcp >> 32;
      if (x - q * y >= y) q++;
      ASSERT_EQ(q, x / y) << x << " / " << y;
    }
}

TEST(NcclDevice, BuffersAreApartAndAligned) {
  tuttiNcclLayout l = {};
  size_t end = 0;
  for (auto [bytes, align] : {std::pair<size_t, size_t>{1, 0},
                              {128, 4},
                              {129, 16},
                              {7, 4096},
                              {0, 1},
                              {(size_t)3 << 20, (size_t)2 << 20},
                              {64, 128}}) {
    uint64_t at = tuttiNcclPlace(&l, bytes, align);
    ASSERT_NE(at, UINT64_MAX);
    EXPECT_GE(at * 128, end);
    EXPECT_EQ(at * 128 % (align ? align : 1), 0u);
    end = at * 128 + bytes;
    EXPECT_EQ(l.bytes, end);
  }
  tuttiNcclLayout before = l;
  for (auto [bytes, align] : {std::pair<size_t, size_t>{8, 384},
                              {8, (size_t)4 << 20},
                              {SIZE_MAX, 16},
                              {(size_t)1 << 40, 1}}) {
    EXPECT_EQ(tuttiNcclPlace(&l, bytes, align), UINT64_MAX) << bytes << " " << align;
    EXPECT_EQ(l.bytes, before.bytes);
  }
}

TEST(NcclDevice, TagsTellRequirementsApart) {
  auto tag = [](std::vector<std::pair<size_t, size_t>> wishes) {
    tuttiNcclLayout l = {};
    for (auto [bytes, align] : wishes)
      tuttiNcclPlace(&l, bytes, align);
    return l.tag;
  };
  EXPECT_EQ(tag({{8, 4}, {16, 4}}), tag({{8, 4}, {16, 4}}));
  EXPECT_NE(tag({{8, 4}, {16, 4}}), tag({{16, 4}, {8, 4}}));
  EXPECT_NE(tag({{8, 4}}), tag({{8, 8}}));
  EXPECT_NE(tag({{8, 4}}), tag({{9, 4}}));
}

TEST(NcclDevice, Requirements) {
  tuttiNcclLsaBarrier barrier = {99, 99};
  tuttiNcclLlA2a a2a = {};
  tuttiNcclResource wish;
  memset(&wish, 0x5a, sizeof wish);
  ASSERT_EQ(ncclLsaBarrierCreateRequirement({8, 3, 1}, 5, &barrier, &wish), tuttiSuccess);
  EXPECT_EQ(barrier.barriers, 5);
  EXPECT_EQ(wish.bytes, 5u * (3 + 8) * 4);
  EXPECT_EQ(wish.outBuffer, &barrier.buffer);
  EXPECT_FALSE(wish.next || wish.ginSignals || wish.ginCounters || wish.outGinSignals);
  EXPECT_EQ(ncclLLA2ACalcSlots(10, 8), 10);
  EXPECT_EQ(ncclLLA2ACalcSlots(10, 9), 20);
  ASSERT_EQ(ncclLLA2ACreateRequirement(3, 20, &a2a, &wish), tuttiSuccess);
  EXPECT_EQ(a2a.slots, 20u);
  EXPECT_EQ(wish.bytes, 3u * 41 * 16);
  EXPECT_EQ(wish.align, 16u);
  EXPECT_EQ(wish.outBuffer, &a2a.buffer);
  EXPECT_EQ(ncclLsaBarrierCreateRequirement({8, 3, 1}, 5, nullptr, &wish), tuttiInvalidArgument);
  EXPECT_EQ(ncclLLA2ACreateRequirement(-1, 2, &a2a, &wish), tuttiInvalidArgument);
}

/* Refused on all ranks alike, so that none waits for another. */
/* Requirements as programs have them that were compiled with 2.29 or later. */
tuttiNcclDevWishes29 wishesOf(unsigned version) {
  tuttiNcclDevWishes29 w = {};
  w.size = version < 22907 ? 72 : version < 23000 ? 88 : version < 23100 ? 96 : sizeof w;
  w.magic = TUTTI_NCCL_CONFIG_MAGIC;
  w.version = version;
  memset((char *)&w + w.size, 0x55, sizeof w - w.size); /* not the caller's */
  return w;
}

/* What none is served of, whatever the layout; the rest fails as there is no GPU. */
TEST(NcclDevice, RequirementsOfAllVersions) {
  tuttiComm_t comm;
  ASSERT_EQ(ncclCommInitAll(&comm, 1, nullptr), tuttiSuccess) << lastError();
  auto expect = [&](const tuttiNcclDevWishes29 &wishes, tuttiResult_t code, const char *text) {
    tuttiNcclDevComm31 dev;
    EXPECT_EQ(ncclDevCommCreate(comm, &wishes, &dev), code) << wishes.version;
    EXPECT_THAT(lastError(), HasSubstr(text)) << wishes.version;
  };
  for (unsigned version : {22902, 22903, 22907, 23003, 23007, 23102, 23203}) {
    tuttiNcclDevWishes29 w = wishesOf(version);
    expect(w, tuttiInvalidUsage, "it is on host memory");
    w.first.multimem = true;
    expect(w, tuttiInvalidUsage, "no multicast");
    w = wishesOf(version);
    w.ginConnections = 1;
    expect(w, tuttiInvalidUsage, version < 22907 ? "it is on host memory" : "ginConnectionType");
    w = wishesOf(version);
    w.worldBarriers = 1;
    expect(w, tuttiInvalidUsage, version < 23000 ? "it is on host memory" : "barriers, or CFT");
    w = wishesOf(version);
    w.cftCaps = 1;
    expect(w, tuttiInvalidUsage, version < 23100 ? "it is on host memory" : "CFT");
    w = wishesOf(version);
    w.first.barriers = -1;
    expect(w, tuttiInvalidUsage, "negative");
  }
  tuttiNcclDevWishes29 w = wishesOf(22902);
  w.size = 71;
  expect(w, tuttiInvalidArgument, "is below that of 2.29");
  expect(wishesOf(23300), tuttiInvalidUsage, "of 2.33 or later");
  EXPECT_EQ(ncclCommDestroy(comm), tuttiSuccess);
}

/* How much a program allocates whose device code is compiled for the version that is reported. */
TEST(NcclDevice, BytesOfTheReportedVersion) {
  struct {
    const char *version;
    size_t bytes;
  } cases[] = {{"2.28.9", 200}, {"2.29.3", 200}, {"2.29.7", 224},
               {"2.30.7", 240}, {"2.31.2", 248}, {"2.32.3", 248}};
  for (auto &c : cases) {
    tuttiComm_t comm;
    setenv("TUTTI_NCCL_VERSION", c.version, 1);
    ASSERT_EQ(ncclCommInitAll(&comm, 1, nullptr), tuttiSuccess) << lastError();
    tuttiNcclCommProperties p = {};
    p.size = sizeof p;
    p.magic = TUTTI_NCCL_CONFIG_MAGIC;
    EXPECT_EQ(ncclCommQueryProperties(comm, &p), tuttiSuccess) << lastError();
    EXPECT_EQ(p.devCommRuntimeVersionSize, c.bytes) << c.version;
    EXPECT_EQ(ncclCommDestroy(comm), tuttiSuccess);
  }
  unsetenv("TUTTI_NCCL_VERSION");
}

TEST(NcclDevice, HostMemoryHasNoKernels) {
  tuttiComm_t comms[2];
  tuttiWindow_t wins[2];
  int64_t memory[2] = {};
  ASSERT_EQ(ncclCommInitAll(comms, 2, nullptr), tuttiSuccess) << lastError();
  ASSERT_EQ(ncclGroupStart(), tuttiSuccess);
  for (int r = 0; r < 2; r++)
    ASSERT_EQ(ncclCommWindowRegister(comms[r], &memory[r], 8, &wins[r], 0), tuttiSuccess);
  ASSERT_EQ(ncclGroupEnd(), tuttiSuccess) << lastError();
  for (int r = 0; r < 2; r++) {
    tuttiNcclDevWishes wishes = {};
    tuttiNcclDevComm dev = {};
    void *at;
    EXPECT_EQ(ncclDevCommCreate(comms[r], &wishes, &dev), tuttiInvalidUsage);
    EXPECT_THAT(lastError(), HasSubstr("it is on host memory"));
    EXPECT_EQ(ncclDevCommDestroy(comms[r], &dev), tuttiInvalidArgument);
    EXPECT_EQ(ncclGetPeerDevicePointer(wins[r], 0, 0, &at), tuttiInvalidUsage);
    EXPECT_THAT(lastError(), HasSubstr("is none for kernels"));
    EXPECT_EQ(ncclGetLsaDevicePointer(wins[r], 0, 1, &at), tuttiInvalidArgument);
    at = &dev;
    EXPECT_EQ(ncclGetLsaMultimemDevicePointer(wins[r], 0, &at), tuttiSuccess) << lastError();
    EXPECT_EQ(at, nullptr) << "there is none";
    EXPECT_EQ(ncclGetLsaMultimemDevicePointer(wins[r], 0, nullptr), tuttiInvalidArgument);
    EXPECT_EQ(ncclGetPeerDevicePointer((tuttiWindow_t)&dev, 0, 0, &at), tuttiInvalidArgument);
    EXPECT_EQ(ncclTeamLsa(comms[r]).nRanks, 1);
    tuttiNcclTeam rail = ncclTeamRail(comms[r]);
    EXPECT_EQ(rail.nRanks, 2);
    EXPECT_EQ(rail.rank, r);
    EXPECT_EQ(ncclTeamRankToLsa(comms[r], rail, r), 0);
    wishes.barriers = 1;
    EXPECT_EQ(ncclDevCommCreate(comms[r], &wishes, &dev), tuttiInvalidUsage);
    EXPECT_THAT(lastError(), HasSubstr("several local teams"));
    wishes = {};
    wishes.multimem = true;
    EXPECT_EQ(ncclDevCommCreate(comms[r], &wishes, &dev), tuttiInvalidUsage);
    EXPECT_THAT(lastError(), HasSubstr("no multicast"));
    wishes = {};
    wishes.ginSignals = 1;
    EXPECT_EQ(ncclDevCommCreate(comms[r], &wishes, &dev), tuttiInvalidUsage);
    EXPECT_THAT(lastError(), HasSubstr("GIN signals"));
    EXPECT_EQ(ncclDevCommCreate(comms[r], nullptr, &dev), tuttiInvalidArgument);
    EXPECT_EQ(ncclCommWindowDeregister(comms[r], wins[r]), tuttiSuccess);
    EXPECT_EQ(ncclGetPeerDevicePointer(wins[r], 0, 0, &at), tuttiInvalidArgument);
  }
  for (auto comm : comms)
    EXPECT_EQ(ncclCommDestroy(comm), tuttiSuccess);
}

/* As NCCL_ENCRYPTION_CONFIG_INITIALIZER makes it, but for mode and key. */
tuttiNcclEncryptionConfig encryption(int mode, const char *psk) {
  return {sizeof(tuttiNcclEncryptionConfig), TUTTI_NCCL_CONFIG_MAGIC, 23203, mode, psk};
}

TEST(Nccl, EncryptionIsRefusedUnlessItCanBeHad) {
  EXPECT_EQ(ncclSetEncryption(nullptr), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("NCCL_ENCRYPTION_CONFIG_INITIALIZER"));
  for (auto [mode, psk, text] :
       {std::tuple(2, "a key of sixteen bytes or more", "mode is none of ncclEncryptionMode_t"),
        std::tuple(TUTTI_NCCL_ENCRYPTION_PSK, (const char *)nullptr, "psk is NULL"),
        std::tuple(TUTTI_NCCL_ENCRYPTION_PSK, "short", "a key has 16 to 4096 bytes")}) {
    auto config = encryption(mode, psk);
    EXPECT_EQ(ncclSetEncryption(&config), tuttiInvalidArgument);
    EXPECT_THAT(lastError(), HasSubstr(text));
  }
  auto older = encryption(TUTTI_NCCL_ENCRYPTION_NONE, nullptr);
  older.magic = 1;
  EXPECT_EQ(ncclSetEncryption(&older), tuttiInvalidArgument);
  auto none = encryption(TUTTI_NCCL_ENCRYPTION_NONE, nullptr);
  EXPECT_EQ(ncclSetEncryption(&none), tuttiSuccess) << lastError();
}

TEST(Nccl, RanksMeetUnderTheKeyThatWasSet) {
  auto config = encryption(TUTTI_NCCL_ENCRYPTION_PSK, "a key of sixteen bytes or more"),
       none = encryption(TUTTI_NCCL_ENCRYPTION_NONE, nullptr);
  if (ncclSetEncryption(&config) == tuttiSystemError) {
    EXPECT_THAT(lastError(), HasSubstr("install OpenSSL 3"));
    GTEST_SKIP() << lastError();
  }
  tuttiUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), tuttiSuccess) << lastError();
  /* Made with the key, so it is of no use without. */
  ASSERT_EQ(ncclSetEncryption(&none), tuttiSuccess) << lastError();
  tuttiComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 1), tuttiInvalidUsage);
  EXPECT_THAT(lastError(), HasSubstr("encrypts its connections, but rank 1 (host "));
  ASSERT_EQ(ncclSetEncryption(&config), tuttiSuccess) << lastError();
  tuttiComm_t comms[2];
  ASSERT_EQ(ncclCommInitAll(comms, 2, nullptr), tuttiSuccess) << lastError();
  ASSERT_EQ(ncclSetEncryption(&none), tuttiSuccess) << lastError();
  for (auto c : comms)
    EXPECT_EQ(ncclCommDestroy(c), tuttiSuccess);
}

TEST(Nccl, NumbersAreThoseOfNvidia) {
#ifndef NVIDIA_HEADER
  GTEST_SKIP() << "no nccl.h was found; cmake -DTUTTI_NCCL_INCLUDE=... says where it is";
#else
  std::map<std::string, long long> ours;
  for (const Number *n = ourNumbers; n->name; n++)
    ours[n->name] = n->value;
  EXPECT_GE(ours.size(), 120u);
  for (const Number *n = nvidiaNumbers; n->name; n++) {
    ASSERT_EQ(ours.count(n->name), 1u) << n->name;
    EXPECT_EQ(ours[n->name], n->value) << n->name;
  }
#endif
}

} // namespace

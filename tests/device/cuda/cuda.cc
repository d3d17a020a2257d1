/* CUDA as a device where there is no GPU: the reason is told, and all else is as on a host. */
#include "device/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "comm/harness.h"

using testing::AllOf;
using testing::HasSubstr;

namespace {

/* Before anybody looks, so that a machine with GPUs has none here. */
const int hidden = setenv("CUDA_VISIBLE_DEVICES", "-1", 1);

std::map<std::string, std::string> device(const char *kind) {
  return {{"TUTTI_DEVICE", kind}};
}

std::string reason() {
  const char *why = nullptr;
  EXPECT_EQ(tuttiDeviceCudaTable(&why), nullptr);
  return why ? why : "";
}

TEST(CudaDevice, NoneHasAReason) {
  ASSERT_EQ(hidden, 0);
  std::string why = reason();
  EXPECT_GT(why.size(), 10u) << why;
  EXPECT_EQ(reason(), why) << "the second time as well";
}

TEST(CudaDevice, OrdinalsAreOnlyNumbers) {
  for (int ordinal : {-1, 0, 7})
    EXPECT_EQ(tuttiDeviceCudaOrdinal(ordinal), ordinal);
}

TEST(CudaDevice, AskedForFailsWithReasonAndRemedy) {
  tuttiUniqueId id;
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  for (bool bySetting : {false, true}) {
    Settings settings(device(bySetting ? "cuda" : "host"));
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    if (!bySetting) config.device = tuttiDeviceCuda;
    tuttiComm_t comm = nullptr;
    EXPECT_EQ(tuttiCommInitRankConfig(&comm, 1, id, 0, &config), tuttiInvalidArgument);
    EXPECT_EQ(comm, nullptr);
    EXPECT_THAT(tuttiGetLastError(nullptr), AllOf(HasSubstr("no CUDA device: " + reason()),
                                                  HasSubstr("use device host or auto")));
  }
}

/* Also on the ranks that did not ask: nobody waits for one that cannot come. */
TEST(CudaDevice, AskedForFailsOnAllRanks) {
  tuttiUniqueId id;
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  Settings settings(device("cuda"));
  onThreads(3, [&](int r) {
    tuttiComm_t comm = nullptr;
    EXPECT_EQ(tuttiCommInitRank(&comm, 3, id, r), tuttiInvalidArgument);
    EXPECT_THAT(tuttiGetLastError(nullptr), HasSubstr("no CUDA device: "));
  });
}

TEST(CudaDevice, AutoIsHost) {
  Settings settings(device("auto"));
  void *memory = nullptr;
  ASSERT_EQ(tuttiMemAlloc(&memory, 4096), tuttiSuccess);
  memset(memory, 1, 4096);
  EXPECT_EQ(tuttiMemFree(memory), tuttiSuccess);
  Ranks ranks(3);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    int device = 77;
    EXPECT_EQ(tuttiCommCuDevice(comm, &device), tuttiSuccess);
    EXPECT_EQ(device, -1);
    int mine = r + 1, sum = 0;
    EXPECT_EQ(tuttiAllReduce(&mine, &sum, 1, tuttiInt, tuttiSum, comm, nullptr), tuttiSuccess)
        << tuttiGetLastError(comm);
    EXPECT_EQ(sum, 6);
  });
}

} // namespace

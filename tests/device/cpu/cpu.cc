/* Host memory as a device. */
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "device/cpu/sanitized.h"
#include "device/device.h"

namespace {

const tuttiDevice &host = tuttiDeviceCpuTable;

TEST(HostDevice, EveryOperationIsThere) {
  EXPECT_STREQ(host.name, "host");
  EXPECT_EQ(host.kind, tuttiDeviceHost);
  EXPECT_TRUE(host.alloc && host.free && host.run && host.readScalar && host.copy);
  EXPECT_TRUE(host.refuse && host.describe && host.attach && host.detach && host.drain);
  EXPECT_TRUE(host.stage && host.waitStaged && host.windowRegister && host.windowDeregister);
  const tuttiTaskSet none = {};
  EXPECT_EQ(host.run(&none), tuttiSuccess);
}

TEST(HostDevice, AllocatesWholePages) {
  for (size_t size : {0, 1, 4096, 1000003}) {
    void *p = nullptr;
    ASSERT_EQ(host.alloc(&p, size), tuttiSuccess);
    ASSERT_NE(p, nullptr);
    EXPECT_EQ((uintptr_t)p % 4096, 0u);
    memset(p, 1, size);
    EXPECT_EQ(host.free(p), tuttiSuccess);
  }
  EXPECT_EQ(host.free(nullptr), tuttiSuccess);
}

TEST(HostDevice, MoreMemoryThanThereIs) {
  if (kSanitized) GTEST_SKIP() << "sanitizers end the program for it";
  void *p = &p;
  EXPECT_EQ(host.alloc(&p, SIZE_MAX / 2), tuttiSystemError);
  EXPECT_EQ(p, (void *)&p);
  EXPECT_THAT(tuttiErrorText(), testing::HasSubstr("9223372036854775807 bytes"));
}

/* At an odd address, as a scalar may be given by a user. */
template <class T> tuttiScalar read(tuttiDataType_t type, T value) {
  alignas(8) char bytes[16];
  memcpy(bytes + 1, &value, sizeof value);
  tuttiScalar s;
  memset(&s, 0xee, sizeof s);
  const void *later = nullptr;
  EXPECT_EQ(host.readScalar(bytes + 1, type, &s, &later), tuttiSuccess);
  EXPECT_EQ(later, nullptr);
  return s;
}

TEST(HostDevice, ReadsScalars) {
  EXPECT_EQ(read<int8_t>(tuttiInt8, -5).i, (uint64_t)-5);
  EXPECT_EQ(read<uint8_t>(tuttiUint8, 250).i, 250u);
  EXPECT_EQ(read<int32_t>(tuttiInt32, INT32_MIN).i, (uint64_t)(int64_t)INT32_MIN);
  EXPECT_EQ(read<uint32_t>(tuttiUint32, UINT32_MAX).i, UINT32_MAX);
  EXPECT_EQ(read<int64_t>(tuttiInt64, INT64_MIN + 1).i, (uint64_t)(INT64_MIN + 1));
  EXPECT_EQ(read<uint64_t>(tuttiUint64, UINT64_MAX).i, UINT64_MAX);
  EXPECT_EQ(read<uint16_t>(tuttiFloat16, 0x3e00).f, 1.5);
  EXPECT_EQ(read<uint16_t>(tuttiBfloat16, 0xc000).f, -2);
  EXPECT_EQ(read<float>(tuttiFloat32, 0.1f).f, (double)0.1f);
  EXPECT_EQ(read<double>(tuttiFloat64, 0.1).f, 0.1);
  EXPECT_EQ(read<uint8_t>(tuttiFloat8e4m3, 0x7e).f, 448);
  EXPECT_EQ(read<uint8_t>(tuttiFloat8e5m2, 0x7b).f, 57344);
}

} // namespace

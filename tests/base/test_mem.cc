#include "base/mem.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/os.h"

using testing::AllOf;
using testing::HasSubstr;

/* Sanitizers end the program on a refused allocation unless told that the caller looks. */
extern "C" const char *__asan_default_options() {
  return "allocator_may_return_null=1";
}
extern "C" const char *__tsan_default_options() {
  return "allocator_may_return_null=1";
}

namespace {

uint64_t held(const tuttiMemAccount &account) {
  return tuttiLoadRelaxed(&account.bytes);
}

TEST(Alloc, GivesZeroedAlignedMemory) {
  for (size_t size : {0, 1, 63, 64, 65, 4096, 1000003}) {
    void *p = nullptr;
    ASSERT_EQ(tuttiAlloc(&p, size, 1, "bytes", nullptr), tuttiSuccess);
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0u);
    std::vector<char> zeros(size + 1, 0);
    EXPECT_EQ(memcmp(p, zeros.data(), size), 0);
    memset(p, 0xff, size);
    tuttiFree(p);
  }
  tuttiFree(nullptr);
}

TEST(Alloc, AccountHoldsWhatIsNotFreed) {
  tuttiMemAccount account = {};
  void *a = nullptr, *b = nullptr;
  ASSERT_EQ(tuttiAlloc(&a, 10, 100, "a", &account), tuttiSuccess);
  uint64_t afterA = held(account);
  EXPECT_GE(afterA, 1000u);
  EXPECT_LE(afterA, 1000u + 64);
  ASSERT_EQ(tuttiAlloc(&b, 1, 5000, "b", &account), tuttiSuccess);
  EXPECT_EQ(held(account), afterA + 5000 + (afterA - 1000));
  memset(a, 0xff, 1000); /* the caller's bytes do not reach the accounting */
  tuttiFree(b);
  EXPECT_EQ(held(account), afterA);
  tuttiFree(a);
  EXPECT_EQ(held(account), 0u);
}

TEST(Alloc, AccountIsExactBetweenThreads) {
  tuttiMemAccount account = {};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++)
    threads.emplace_back([&account] {
      for (int i = 0; i < 1000; i++) {
        void *p = nullptr;
        ASSERT_EQ(tuttiAlloc(&p, 3, 100, "p", &account), tuttiSuccess);
        tuttiFree(p);
      }
    });
  for (auto &thread : threads)
    thread.join();
  EXPECT_EQ(held(account), 0u);
}

TEST(Alloc, OverflowingProductFails) {
  tuttiMemAccount account = {};
  int untouched;
  for (size_t count : {SIZE_MAX, SIZE_MAX / 8 + 1, SIZE_MAX / 8}) {
    void *p = &untouched;
    EXPECT_EQ(tuttiAlloc(&p, count, 8, "peer table", &account), tuttiSystemError);
    EXPECT_EQ(p, &untouched);
    EXPECT_THAT(tuttiErrorText(), AllOf(HasSubstr("peer table"), HasSubstr("of 8 bytes"),
                                        HasSubstr(std::to_string(count))));
  }
  EXPECT_EQ(held(account), 0u);
}

TEST(Alloc, MemoryThatIsNotThereFails) {
  tuttiMemAccount account = {};
  int untouched;
  void *p = &untouched;
  size_t size = size_t{1} << 50;
  EXPECT_EQ(tuttiAlloc(&p, 1, size, "ring plan", &account), tuttiSystemError);
  EXPECT_EQ(p, &untouched);
  EXPECT_EQ(held(account), 0u);
  EXPECT_THAT(tuttiErrorText(),
              AllOf(HasSubstr("cannot allocate 1125899906842624 bytes for ring plan"),
                    HasSubstr("Cannot allocate memory"), HasSubstr("ulimit")));
}

TEST(Map, AnonymousIsZeroPrivateAndCounted) {
  tuttiMemAccount account = {};
  void *p = nullptr;
  size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  ASSERT_EQ(tuttiMap(&p, page + 1, -1, "scratch", &account), tuttiSuccess);
  EXPECT_EQ(held(account), 2 * page);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % page, 0u);
  char *bytes = static_cast<char *>(p);
  EXPECT_EQ(bytes[0], 0);
  bytes[2 * page - 1] = 1;
  tuttiUnmap(p, page + 1, &account);
  EXPECT_EQ(held(account), 0u);
  tuttiUnmap(nullptr, 100, &account);
  EXPECT_EQ(held(account), 0u);
}

TEST(Map, DescriptorIsShared) {
  int fd = -1;
  ASSERT_EQ(tuttiSharedFd("segment", &fd), tuttiSuccess);
  ASSERT_EQ(tuttiSharedFdSeal(fd, 10000, "segment"), tuttiSuccess);
  void *one = nullptr, *other = nullptr;
  ASSERT_EQ(tuttiMap(&one, 10000, fd, "segment", nullptr), tuttiSuccess);
  ASSERT_EQ(tuttiMap(&other, 10000, fd, "segment", nullptr), tuttiSuccess);
  close(fd);
  static_cast<char *>(one)[9999] = 42;
  EXPECT_EQ(static_cast<char *>(other)[9999], 42);
  tuttiUnmap(one, 10000, nullptr);
  tuttiUnmap(other, 10000, nullptr);
}

/* A peer's descriptor that holds less than the peer says would kill us at the first touch. */
TEST(Map, ShortFileIsRefused) {
  tuttiMemAccount account = {};
  int fd = -1, untouched;
  ASSERT_EQ(tuttiSharedFd("segment", &fd), tuttiSuccess);
  ASSERT_EQ(tuttiSharedFdSeal(fd, 4096, "segment"), tuttiSuccess);
  void *p = &untouched;
  EXPECT_EQ(tuttiMap(&p, 4097, fd, "segment of rank 3", &account), tuttiSystemError);
  EXPECT_THAT(tuttiErrorText(),
              AllOf(HasSubstr("4097 bytes for segment of rank 3"), HasSubstr("only 4096 bytes")));
  close(fd);
  EXPECT_EQ(tuttiMap(&p, 4096, fd, "segment of rank 3", &account), tuttiSystemError);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("Bad file descriptor"));
  EXPECT_EQ(p, &untouched);
  EXPECT_EQ(held(account), 0u);
}

TEST(Map, ImpossibleSizesFail) {
  int untouched;
  void *p = &untouched;
  for (size_t size : {size_t{0}, SIZE_MAX, SIZE_MAX / 2}) {
    EXPECT_EQ(tuttiMap(&p, size, -1, "block", nullptr), tuttiSystemError);
    EXPECT_THAT(tuttiErrorText(), HasSubstr("block"));
  }
  EXPECT_EQ(p, &untouched);
}

/* Pages that nothing touches must cost nothing: 64 GiB are mapped on any machine. */
TEST(Map, LargeMappingsAreNotReserved) {
  void *p = nullptr;
  size_t size = size_t{64} << 30;
  ASSERT_EQ(tuttiMap(&p, size, -1, "sparse block", nullptr), tuttiSuccess) << tuttiErrorText();
  static_cast<char *>(p)[size - 1] = 1;
  tuttiUnmap(p, size, nullptr);
}

} // namespace

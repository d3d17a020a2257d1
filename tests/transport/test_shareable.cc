/* Memory of tuttiMemAlloc that windows are made of. */
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/mem.h"
#include "transport/shareable.h"

namespace {

class Shareable : public testing::Test {
protected:
  const size_t page_ = tuttiPagesUp(1);
  const size_t size_ = 256 * page_;
  uint8_t *memory_ = nullptr;

  void SetUp() override {
    void *memory = nullptr;
    ASSERT_EQ(tuttiSuccess, tuttiShareableAlloc(&memory, size_)) << tuttiErrorText();
    memory_ = static_cast<uint8_t *>(memory);
    for (size_t i = 0; i < size_; i++)
      memory_[i] = static_cast<uint8_t>(i * 7 + i / page_);
  }
  void TearDown() override { tuttiShareableFree(memory_); }

  /* A window there is one and the same for a neighbour, and its contents are what they were. */
  void Share(size_t at, size_t bytes) {
    tuttiShareableCard card;
    std::vector<uint8_t> before(memory_, memory_ + size_);
    tuttiShareableShare(memory_ + at, bytes, &card);
    EXPECT_TRUE(std::equal(before.begin(), before.end(), memory_)) << at;
    void *mapped = tuttiShareableMap(getpid(), &card);
    ASSERT_NE(nullptr, mapped) << at;
    uint8_t *theirs = static_cast<uint8_t *>(mapped) + card.offset;
    for (size_t i : {(size_t)0, bytes / 2, bytes - 1}) {
      EXPECT_EQ(memory_[at + i], theirs[i]) << at << " " << i;
      theirs[i]++;
      EXPECT_EQ(memory_[at + i], theirs[i]) << at << " " << i;
    }
    tuttiShareableUnmap(mapped, &card);
  }
};

TEST_F(Shareable, WindowsMayBeBesideEachOtherAndOverlap) {
  Share(10 * page_ + 100, 50);
  Share(10 * page_ + 200, 10);          /* in the same page */
  Share(10 * page_ + page_ / 2, page_); /* and beyond it */
  Share(5 * page_, 2 * page_);
  Share(20 * page_ - 1, 2);         /* two pages */
  Share(4 * page_ + 1, 30 * page_); /* over all of these */
  Share(0, size_);
  Share(size_ - 1, 1);
}

TEST_F(Shareable, NothingIsSharedOfWhatIsNotInOneAllocation) {
  tuttiShareableCard card;
  uint8_t other[8];
  tuttiShareableShare(memory_ + size_ - 8, 9, &card);
  EXPECT_EQ(-1, card.fd.fd);
  tuttiShareableShare(other, sizeof other, &card);
  EXPECT_EQ(-1, card.fd.fd);
  tuttiShareableShare(memory_, 0, &card);
  EXPECT_EQ(-1, card.fd.fd) << "nothing is there to be shared";
}

/* A network writes to such a window, and would go on writing to the old pages. */
TEST_F(Shareable, WhatCouldNotBeSharedKeepsItsPages) {
  rlimit usual;
  tuttiShareableCard card;
  ASSERT_EQ(0, getrlimit(RLIMIT_FSIZE, &usual));
  rlimit small = {page_, usual.rlim_max};
  ASSERT_EQ(0, setrlimit(RLIMIT_FSIZE, &small));
  tuttiShareableShare(memory_, page_, &card);
  EXPECT_EQ(-1, card.fd.fd);
  ASSERT_EQ(0, setrlimit(RLIMIT_FSIZE, &usual));
  tuttiShareableShare(memory_, page_, &card);
  EXPECT_EQ(-1, card.fd.fd);
}

/* As an operation of another communicator may, while windows are made beside it. */
TEST_F(Shareable, WhatIsWrittenBesideAWindowMeanwhileStays) {
  auto counter = [&](size_t p) -> uint64_t & { return *(uint64_t *)(memory_ + p * page_); };
  const size_t pages = size_ / page_;
  memset(memory_, 0, size_);
  std::atomic<bool> writes{true};
  std::atomic<uint64_t> turns{0};
  std::thread other([&] {
    for (; writes; turns++)
      for (size_t p = 1; p < pages; p += 2)
        counter(p)++;
  });
  while (turns == 0)
    std::this_thread::yield();
  for (size_t p = 0; p < pages; p += 2) {
    tuttiShareableCard card;
    tuttiShareableShare(memory_ + p * page_, page_, &card);
    EXPECT_GE(card.fd.fd, 0);
  }
  writes = false;
  other.join();
  for (size_t p = 1; p < pages; p += 2)
    EXPECT_EQ(turns, counter(p)) << p;
}

} // namespace

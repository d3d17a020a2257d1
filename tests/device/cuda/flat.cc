/* Flat ranges, without a GPU: its memory is that of memfds here. */
#ifdef TUTTI_HAVE_CUDA
#include "device/cuda/flat.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

using testing::HasSubstr;

/* ---- the driver --------------------------------------------------------------------------------
 */

namespace {

constexpr size_t kUnit = (size_t)2 << 20;

struct Handle {
  int fd, holds;
  size_t bytes;
};
std::mutex lock;
std::map<tuttiVmmHandle, Handle> handles;
std::map<uintptr_t, std::pair<size_t, int>> mapped; /* bytes and fd, by address */
std::set<uintptr_t> reserved;
tuttiVmmHandle next = 1;
bool exports = true;

tuttiVmmHandle newHandle(int fd, size_t bytes) {
  handles[next] = {fd, 1, bytes};
  return next++;
}

} // namespace

bool tuttiVmmHas(int) {
  return true;
}
cudaError_t tuttiVmmBind(int) {
  return cudaSuccess;
}
cudaError_t tuttiVmmUnit(int, size_t *unit) {
  *unit = kUnit;
  return cudaSuccess;
}
cudaError_t tuttiVmmCreate(int, size_t *bytes, tuttiVmmHandle *out) {
  std::lock_guard<std::mutex> hold(lock);
  *bytes = (*bytes + kUnit - 1) / kUnit * kUnit;
  int fd = memfd_create("gpu", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, (off_t)*bytes) != 0) return cudaErrorMemoryAllocation;
  *out = newHandle(fd, *bytes);
  return cudaSuccess;
}
void tuttiVmmRelease(tuttiVmmHandle handle) {
  std::lock_guard<std::mutex> hold(lock);
  ASSERT_EQ(handles.count(handle), 1u) << "released too often";
  if (--handles[handle].holds > 0) return;
  close(handles[handle].fd);
  handles.erase(handle);
}
cudaError_t tuttiVmmHold(uintptr_t at, tuttiVmmHandle *out, uintptr_t *base, size_t *bytes) {
  std::lock_guard<std::mutex> hold(lock);
  for (auto &[begin, m] : mapped) {
    if (at < begin || at - begin >= m.first) continue;
    *base = begin;
    *bytes = m.first;
    *out = newHandle(dup(m.second), m.first);
    return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}
cudaError_t tuttiVmmExport(tuttiVmmHandle handle, int *fd) {
  std::lock_guard<std::mutex> hold(lock);
  if (!exports) return cudaErrorNotSupported;
  *fd = fcntl(handles.at(handle).fd, F_DUPFD_CLOEXEC, 0);
  return cudaSuccess;
}
cudaError_t tuttiVmmImport(int fd, tuttiVmmHandle *out) {
  std::lock_guard<std::mutex> hold(lock);
  *out = newHandle(dup(fd), (size_t)lseek(fd, 0, SEEK_END));
  return cudaSuccess;
}
cudaError_t tuttiVmmReserve(size_t bytes, uintptr_t *out) {
  std::lock_guard<std::mutex> hold(lock);
  void *at =
      mmap(nullptr, bytes + kUnit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return cudaErrorMemoryAllocation;
  uintptr_t begin = ((uintptr_t)at + kUnit - 1) / kUnit * kUnit;
  munmap(at, begin - (uintptr_t)at); /* to a multiple of the unit */
  munmap((void *)(begin + bytes), (uintptr_t)at + kUnit - begin);
  reserved.insert(begin);
  *out = begin;
  return cudaSuccess;
}
void tuttiVmmUnreserve(uintptr_t at, size_t bytes) {
  std::lock_guard<std::mutex> hold(lock);
  EXPECT_EQ(reserved.erase(at), 1u);
  munmap((void *)at, bytes);
}
cudaError_t tuttiVmmMap(uintptr_t at, size_t bytes, tuttiVmmHandle handle, int) {
  std::lock_guard<std::mutex> hold(lock);
  if (at % kUnit || handles.count(handle) == 0 || bytes != handles[handle].bytes)
    return cudaErrorInvalidValue;
  int fd = dup(handles[handle].fd);
  if (mmap((void *)at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
    return cudaErrorInvalidValue;
  mapped[at] = {bytes, fd};
  return cudaSuccess;
}
void tuttiVmmUnmap(uintptr_t at, size_t bytes) {
  std::lock_guard<std::mutex> hold(lock);
  ASSERT_EQ(mapped.count(at), 1u);
  EXPECT_EQ(mapped[at].first, bytes);
  close(mapped[at].second);
  mapped.erase(at);
  mmap((void *)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
       0);
}
cudaError_t tuttiVmmAlloc(size_t bytes, void **out) {
  tuttiVmmHandle handle;
  uintptr_t at;
  cudaError_t err = tuttiVmmCreate(0, &bytes, &handle);
  if (err == cudaSuccess) err = tuttiVmmReserve(bytes, &at);
  if (err == cudaSuccess) err = tuttiVmmMap(at, bytes, handle, 0);
  if (err != cudaSuccess) return err;
  tuttiVmmRelease(handle);
  *out = (void *)at;
  return cudaSuccess;
}
cudaError_t tuttiVmmFree(void *memory) {
  size_t bytes = mapped.at((uintptr_t)memory).first;
  tuttiVmmUnmap((uintptr_t)memory, bytes);
  tuttiVmmUnreserve((uintptr_t)memory, bytes);
  return cudaSuccess;
}
void tuttiVmmFreeIdle(int, void *memory, size_t) {
  tuttiVmmFree(memory);
}

/* ---- ranks -------------------------------------------------------------------------------------
 */

namespace {

/* Of one rank, in a thread of its own; ranks of different `process` know no handles of each other.
 */
struct Rank {
  tuttiCommView view = {};
  tuttiFlatPost post = {};
  tuttiFlatOwn own = {};
  tuttiFlat flat = {};
  uint8_t *memory = nullptr, *buff = nullptr;
};

class DeviceFlat : public testing::Test {
protected:
  void SetUp() override { fds = openFds(); }
  void TearDown() override {
    for (auto &r : ranks) {
      tuttiFlatUnmap(&r.flat);
      tuttiFlatPostClose(&r.post);
      if (r.memory) tuttiVmmFree(r.memory);
      tuttiFree((void *)r.view.memory);
    }
    EXPECT_TRUE(handles.empty());
    EXPECT_TRUE(mapped.empty());
    EXPECT_TRUE(reserved.empty());
    EXPECT_EQ(openFds(), fds);
    exports = true;
  }
  static int openFds() {
    int n = 0;
    for (int fd = 0; fd < 1024; fd++)
      n += fcntl(fd, F_GETFD) >= 0;
    return n;
  }
  /* Rank r has memory of `bytes` with its part at offsets[r]; -1: none of this kind. */
  void make(const std::vector<uint64_t> &processes, const std::vector<long> &offsets,
            size_t bytes) {
    size_t n = processes.size();
    peers.resize(n);
    paths.resize(n);
    for (size_t r = 0; r < n; r++) {
      peers[r].process = processes[r];
      paths[r].stores = true;
    }
    ranks = std::vector<Rank>(n);
    for (size_t r = 0; r < n; r++) {
      ranks[r].view.rank = (int)r;
      ranks[r].view.nranks = (int)n;
      ranks[r].view.lsaSize = (int)n;
      ranks[r].view.peers = peers.data();
      ranks[r].view.paths = paths.data();
      ranks[r].view.failed = &failed;
      if (offsets[r] < 0) continue;
      ASSERT_EQ(tuttiVmmAlloc(bytes + (size_t)offsets[r], (void **)&ranks[r].memory), cudaSuccess);
      ranks[r].buff = ranks[r].memory + offsets[r];
    }
  }
  void onThreads(const std::function<void(Rank &)> &body) {
    std::vector<std::thread> threads;
    for (auto &r : ranks)
      threads.emplace_back([&] { body(r); });
    for (auto &t : threads)
      t.join();
  }
  void mapAll() {
    std::vector<tuttiFlatCard> cards(ranks.size());
    onThreads([&](Rank &r) {
      tuttiFlatOffer(&r.post, &r.view, r.buff, &r.own, &cards[(size_t)r.view.rank]);
    });
    onThreads([&](Rank &r) {
      EXPECT_EQ(tuttiFlatMap(&r.post, &r.view, 0, cards.data(), &r.own, &r.flat), tuttiSuccess);
    });
    onThreads([](Rank &r) { tuttiFlatOffered(&r.own); });
  }
  /* What each rank stores by its own flat range is where the others have it. */
  void expectWorks(bool even) {
    int n = (int)ranks.size();
    for (auto &r : ranks) {
      EXPECT_EQ(tuttiFlatComplete(&r.flat, 0, n), even);
      EXPECT_EQ(r.flat.stride % ((size_t)1 << 32), 0u);
      for (int p = 0; p < n; p++) {
        char why[TUTTI_SENTENCE] = "";
        ASSERT_NE(tuttiFlatAt(&r.flat, p), 0u)
            << p << " at " << r.view.rank << ": " << (tuttiFlatExplain(&r.flat, p, why), why);
        auto *at = (uint8_t *)tuttiFlatAt(&r.flat, p);
        if (even) {
          EXPECT_EQ((uintptr_t)at, r.flat.base + (size_t)p * r.flat.stride);
        }
        at[100 + r.view.rank] = (uint8_t)(r.view.rank * 10 + p + 1);
      }
    }
    for (int p = 0; p < n; p++)
      for (int r = 0; r < n; r++)
        EXPECT_EQ(ranks[(size_t)p].buff[100 + r], r * 10 + p + 1) << "of " << r << " to " << p;
  }

  std::vector<tuttiPeer> peers;
  std::vector<tuttiPath> paths;
  std::vector<Rank> ranks;
  tuttiAtomic32 failed = {};
  int fds = 0;
};

TEST_F(DeviceFlat, InOneProcess) {
  make({1, 1, 1}, {0, 0, 0}, 5000);
  mapAll();
  expectWorks(true);
}

TEST_F(DeviceFlat, BetweenProcesses) {
  make({1, 2, 3, 1}, {4096, 4096, 4096, 4096}, (size_t)3 << 20);
  mapAll();
  expectWorks(true);
  for (auto &r : ranks)
    tuttiFlatUnmap(&r.flat);
  /* Boxes are used again, and what somebody has left in one is dropped. */
  tuttiFdLabel label = {.rank = 0, .round = 1};
  int stray = memfd_create("stray", 0);
  EXPECT_EQ(tuttiFdBoxSend(&ranks[0].post.box, &ranks[1].post.box.address, label, stray), 0);
  close(stray);
  mapAll();
  expectWorks(true);
}

TEST_F(DeviceFlat, PartsWholeUnitsApart) {
  make({1, 2, 1}, {512, (long)kUnit + 512, 3 * (long)kUnit + 512}, 5000);
  mapAll();
  expectWorks(true);
}

TEST_F(DeviceFlat, PartsAtOtherOffsetsAreNotEven) {
  make({1, 2, 1}, {0, 4096, 3 * (long)kUnit + 512}, 5000);
  mapAll();
  expectWorks(false);
}

TEST_F(DeviceFlat, OneWithoutSuchMemory) {
  make({1, 2, 3}, {0, -1, 0}, 5000);
  mapAll();
  for (auto &r : ranks) {
    char why[TUTTI_SENTENCE];
    EXPECT_FALSE(tuttiFlatComplete(&r.flat, 0, 3));
    EXPECT_NE(tuttiFlatAt(&r.flat, 0), 0u);
    EXPECT_EQ(tuttiFlatAt(&r.flat, 1), 0u);
    EXPECT_NE(tuttiFlatAt(&r.flat, 2), 0u);
    EXPECT_FALSE(tuttiFlatExplain(&r.flat, 1, why)) << "nothing has failed";
    EXPECT_EQ(tuttiFlatAt(&r.flat, 7), 0u);
  }
}

TEST_F(DeviceFlat, NobodyHasSuchMemory) {
  make({1, 2}, {-1, -1}, 5000);
  mapAll();
  for (auto &r : ranks)
    EXPECT_FALSE(tuttiFlatComplete(&r.flat, 0, 2));
}

TEST_F(DeviceFlat, WhatCannotBeExportedIsForTheProcessAlone) {
  exports = false;
  make({1, 1, 2}, {0, 0, 0}, 5000);
  mapAll();
  char why[TUTTI_SENTENCE];
  EXPECT_TRUE(tuttiFlatComplete(&ranks[0].flat, 0, 2));
  EXPECT_EQ(tuttiFlatAt(&ranks[0].flat, 2), 0u);
  ASSERT_TRUE(tuttiFlatExplain(&ranks[0].flat, 2, why));
  EXPECT_THAT(why, HasSubstr("the memory of rank 2: its export as a file descriptor"));
  EXPECT_NE(tuttiFlatAt(&ranks[2].flat, 2), 0u);
}

/* The range begins with the first that is reached. */
TEST_F(DeviceFlat, RanksThatAreNotReachedAreLeftOut) {
  make({1, 1, 1, 1}, {0, 0, 0, 0}, 5000);
  std::vector<tuttiPath> none(4), own(4);
  own[2].stores = own[3].stores = true;
  ranks[0].view.paths = ranks[1].view.paths = none.data();
  ranks[2].view.paths = ranks[3].view.paths = own.data();
  mapAll();
  EXPECT_EQ(ranks[3].flat.first, 2);
  EXPECT_EQ(ranks[3].flat.n, 2);
  EXPECT_TRUE(tuttiFlatComplete(&ranks[3].flat, 2, 2));
  EXPECT_FALSE(tuttiFlatComplete(&ranks[3].flat, 0, 4));
  EXPECT_EQ(ranks[0].flat.n, 1);
  EXPECT_TRUE(tuttiFlatComplete(&ranks[0].flat, 0, 1));
}

} // namespace
#endif

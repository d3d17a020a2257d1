/* What is told of waits for signals, and where the counters are. No GPU is needed, but CUDA's
 * headers. */
#ifdef TUTTI_HAVE_CUDA
#include "device/cuda/onesided.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "kernels/onesided.h"

using testing::Each;

namespace {

constexpr tuttiSignalLayout kLayouts[] = {{1, 1, 1}, {1, 1, 8}, {3, 5, 4}, {64, 1024, 8}};

/* Each signal of each rank has a word of its own, within its row. */
TEST(CudaSignals, HaveAWordEach) {
  for (const tuttiSignalLayout &l : kLayouts) {
    std::set<uint32_t> seen;
    for (uint32_t r = 0; r < l.nranks; r++)
      for (uint32_t c = 0; c < l.contexts; c++)
        for (uint32_t s = 0; s < l.signals; s++)
          EXPECT_TRUE(seen.insert(tuttiSignalAt(&l, (int)r, (int)c, (int)s)).second);
    EXPECT_EQ(seen.size(), tuttiSignalRow(&l));
    EXPECT_LT(*seen.rbegin(), tuttiSignalRow(&l));
  }
}

TEST(CudaSignals, HaveTheirMemoryReserved) {
  for (const tuttiSignalLayout &l : kLayouts) {
    tuttiCommView v{};
    v.nranks = (int)l.nranks;
    v.rmaContexts = (int)l.contexts;
    v.rmaSignals = (int)l.signals;
    EXPECT_EQ(tuttiCudaSignalBytes(&v), (3 * tuttiSignalRow(&l) + 2) * 8)
        << "the guard, and the count of waits";
    v.rmaContexts = 0;
    EXPECT_EQ(tuttiCudaSignalBytes(&v), 0u);
  }
}

struct Told {
  int times = 0;
  tuttiWaitSignalDesc_t desc{};
  uint32_t come = 0;
  uint64_t waitedMs = 0;
};

tuttiResult_t tell(void *comm, const tuttiWaitSignalDesc_t *desc, uint32_t come,
                   uint64_t waitedMs) {
  Told *told = static_cast<Told *>(comm);
  *told = {told->times + 1, *desc, come, waitedMs};
  return tuttiSuccess;
}

/* Kernels that report, and who hears them. */
struct Waits {
  Told told;
  tuttiTaskContext context{};
  tuttiKernelStatus status{};
  tuttiCuda s{};
  explicit Waits(const tuttiSignalLayout &layout) {
    context.comm = &told;
    context.signalsLate = tell;
    s.context = &context;
    s.status = &status;
    s.layout = layout;
  }
  tuttiSignalsLate &late(uint32_t counter) { return status.late[tuttiSignalLateAt(counter)]; }
  void hear() { tuttiCudaSignalsHear(&s); }
};

/* A kernel's report is told once, by the names that the user has for the signal. */
TEST(CudaSignals, AreToldByRankIndexAndContext) {
  for (const tuttiSignalLayout &l : kLayouts) {
    Waits w(l);
    const Told &told = w.told;
    w.hear();
    EXPECT_EQ(told.times, 0) << "nobody waits";
    int rank = (int)l.nranks - 1, ctx = (int)l.contexts - 1, sig = (int)l.signals / 2;
    uint32_t counter = tuttiSignalAt(&l, rank, ctx, sig);
    w.late(counter) = {tuttiSignalWait(counter, 70000), (uint64_t)3 << 32 | 5};
    for (int look = 0; look < 3; look++)
      w.hear();
    EXPECT_EQ(told.times, 1);
    EXPECT_EQ(told.desc.peer, rank);
    EXPECT_EQ(told.desc.ctx, ctx);
    EXPECT_EQ(told.desc.sigIdx, sig);
    EXPECT_EQ(told.desc.opCnt, 5);
    EXPECT_EQ(told.come, 3u);
    EXPECT_EQ(told.waitedMs, 70000u);
    w.late(counter).wait = tuttiSignalWait(counter, 70100);
    w.hear();
    EXPECT_EQ(told.times, 2) << "still";
  }
}

/* However fast one wait tells: each look goes on behind the last. */
TEST(CudaSignals, OfSeveralWaitsAreAllToldByTurns) {
  Waits w({1, 1, 4});
  int heard[4] = {};
  for (uint32_t look = 1; look <= 40; look++) {
    for (uint32_t counter = 0; counter < 4; counter++)
      w.late(counter) = {tuttiSignalWait(counter, look), 1};
    w.hear();
    EXPECT_EQ(w.told.times, (int)look) << "one at a time";
    heard[w.told.desc.peer]++;
  }
  EXPECT_THAT(heard, Each(10));
}

} // namespace

#endif

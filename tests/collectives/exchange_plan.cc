/* The plans of exchanges on a GPU. */
#include "collectives/exchange_plan.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "collectives/exchange.h"
#include "kernels/exchange.h"

namespace {

constexpr uint32_t kLL = 1u << tuttiProtoLL, kSimple = 1u << tuttiProtoSimple;

std::vector<uint64_t> sizes() { /* in bytes: 0 to 16 GB */
  std::vector<uint64_t> all = {0};
  for (int bit = 0; bit <= 34; bit++)
    for (uint64_t third = 0; third < 3; third++) {
      uint64_t size = (uint64_t)1 << bit;
      all.push_back(size + size / 3 * third);
      all.push_back(size + size / 3 * third + 1);
    }
  return all;
}

tuttiSchedule scheduleOf(int coll, int n, uint64_t count, int rank = 0, int root = 0) {
  tuttiSchedule s = {};
  s.coll = coll;
  s.nranks = n;
  s.rank = rank;
  s.root = root;
  s.count = count;
  return s;
}

tuttiExchangePlan choose(const tuttiSchedule &s, uint32_t protos = kLL | kSimple, size_t size = 4,
                         bool staged = false) {
  tuttiPlanInput in = {};
  in.staged = staged;
  in.nranks = s.nranks;
  in.protoMask = protos;
  tuttiExchangePlan plan;
  memset(&plan, 0xee, sizeof plan);
  tuttiExchangeChoose(&in, &s, size, &plan);
  return plan;
}

bool same(const tuttiExchangePlan &a, const tuttiExchangePlan &b) {
  return a.twoShot == b.twoShot && a.proto == b.proto && a.nblocks == b.nblocks &&
         a.nthreads == b.nthreads && a.uniform == b.uniform;
}

void expectRunnable(const tuttiExchangePlan &plan, int coll, uint32_t protos) {
  bool ll = plan.proto == tuttiProtoLL;
  ASSERT_TRUE(plan.proto == tuttiProtoLL || plan.proto == tuttiProtoSimple);
  /* LL is for what fits in regions, and for messages of any size if nothing else is allowed. */
  ASSERT_TRUE(protos & 1u << plan.proto || (protos == kLL && coll != tuttiCollSendRecv));
  ASSERT_GE(plan.nblocks, 1);
  bool uniform = plan.uniform == 1;
  ASSERT_TRUE(plan.uniform == 0 || (uniform && ll));
  ASSERT_LE(plan.nblocks, (int)(uniform ? TUTTI_UNIFORM_BLOCKS
                                : ll    ? TUTTI_EXCHANGE_LL_BLOCKS
                                        : TUTTI_EXCHANGE_BLOCKS));
  ASSERT_GE(plan.nthreads, 32) << "a thread for each peer, and whole lines";
  ASSERT_LE(plan.nthreads, TUTTI_EXCHANGE_THREADS);
  ASSERT_EQ(plan.nthreads % 32, 0);
  bool forms = coll == tuttiCollAllReduce || coll == tuttiCollReduce || coll == tuttiCollBroadcast;
  ASSERT_TRUE(plan.twoShot == 0 || (plan.twoShot == 1 && forms));
}

TEST(ExchangePlan, EveryPlanCanRun) {
  for (int n = 2; n <= TUTTI_EXCHANGE_MAX; n++)
    for (int coll = tuttiCollAllReduce; coll <= tuttiCollSendRecv; coll++)
      for (uint32_t protos : {kLL, kSimple, kLL | kSimple})
        for (size_t size : {1, 2, 4, 8})
          for (uint64_t bytes : sizes()) {
            expectRunnable(choose(scheduleOf(coll, n, bytes / size), protos, size), coll, protos);
            if (HasFatalFailure())
              FAIL() << tuttiCollName(coll) << " ranks " << n << " bytes " << bytes;
          }
}

/* In a process of its own: a division by zero must not end the other tests. */
TEST(ExchangePlan, OneRankSendsNothing) {
  auto everyPlan = [] {
    for (int coll = tuttiCollAllReduce; coll < tuttiCollSendRecv; coll++)
      for (uint32_t protos : {kLL, kSimple, kLL | kSimple})
        for (uint64_t bytes : sizes())
          expectRunnable(choose(scheduleOf(coll, 1, bytes / 4), protos), coll, protos);
    _exit(HasFatalFailure() ? 1 : 0);
  };
  EXPECT_EXIT(everyPlan(), testing::ExitedWithCode(0), "");
}

/* Else ranks would not understand each other's messages. */
TEST(ExchangePlan, TheSameOnAllRanks) {
  for (int n = 2; n <= TUTTI_EXCHANGE_MAX; n++)
    for (int coll = tuttiCollAllReduce; coll < tuttiCollSendRecv; coll++)
      for (int root = 0; root < n; root++)
        for (uint64_t bytes : sizes()) {
          tuttiExchangePlan first = choose(scheduleOf(coll, n, bytes / 4, 0, root));
          for (int r = 1; r < n; r++)
            ASSERT_TRUE(same(choose(scheduleOf(coll, n, bytes / 4, r, root)), first))
                << tuttiCollName(coll) << " ranks " << n << " bytes " << bytes;
        }
}

TEST(ExchangePlan, BothSidesOfAMessageAgree) {
  for (int n = 2; n <= TUTTI_EXCHANGE_MAX; n++)
    for (uint64_t bytes : sizes()) {
      tuttiSchedule sends = scheduleOf(tuttiCollSendRecv, n, bytes, 0, n - 1);
      tuttiSchedule receives = scheduleOf(tuttiCollSendRecv, n, bytes, n - 1, 0);
      sends.sending = true;
      ASSERT_TRUE(same(choose(sends, kLL | kSimple, 1), choose(receives, kLL | kSimple, 1)))
          << bytes << " bytes";
    }
}

/* In host memory there are fewer slots and smaller regions, and none for LL messages; and LL is for
 * those alone who all send to all. */
TEST(ExchangePlan, StagedPlansFit) {
  for (int n = 2; n <= TUTTI_EXCHANGE_MAX; n++)
    for (int coll = tuttiCollAllReduce; coll <= tuttiCollSendRecv; coll++)
      for (uint32_t protos : {kLL, kSimple, kLL | kSimple})
        for (uint64_t bytes : sizes()) {
          tuttiSchedule s = scheduleOf(coll, n, bytes);
          tuttiExchangePlan plan = choose(s, protos, 1, true);
          s.twoShot = (uint8_t)plan.twoShot;
          tuttiExchange x;
          tuttiExchangeMake(&s, TUTTI_EXCHANGE_LINE, &x);
          uint64_t longest = coll == tuttiCollSendRecv ? bytes : x.count;
          for (const tuttiExchangePeer &p : x.peer)
            longest = std::max({longest, p.outCount, p.inCount, p.lateCount});
          uint64_t lines = (longest + TUTTI_STAGED_LINE_PAYLOAD - 1) / TUTTI_STAGED_LINE_PAYLOAD;
          ASSERT_GE(plan.nblocks, 1);
          if (plan.uniform) {
            ASSERT_FALSE(tuttiCollHasRoot(coll));
            ASSERT_LE(lines * 2 * TUTTI_STAGED_LINE_PAYLOAD, TUTTI_STAGED_REGION);
            ASSERT_LE(plan.nblocks, (int)TUTTI_UNIFORM_BLOCKS);
          } else {
            ASSERT_EQ(plan.proto, tuttiProtoSimple) << tuttiCollName(coll) << " " << bytes;
            ASSERT_LE(plan.nblocks, (int)TUTTI_STAGED_BLOCKS);
          }
        }
}

/* TUTTI_MAX_NCHANNELS and maxCTAs: whoever computes beside it keeps the other multiprocessors. */
TEST(ExchangePlan, TakesNoMoreBlocksThanWanted) {
  for (int coll = tuttiCollAllReduce; coll <= tuttiCollSendRecv; coll++)
    for (uint64_t bytes : sizes()) {
      tuttiPlanInput in = {};
      in.nranks = 4;
      in.protoMask = kLL | kSimple;
      tuttiSchedule s = scheduleOf(coll, in.nranks, bytes);
      tuttiExchangePlan any, few;
      tuttiExchangeChoose(&in, &s, 1, &any);
      in.maxBlocks = 16;
      tuttiExchangeChoose(&in, &s, 1, &few);
      any.nblocks = std::min(any.nblocks, 16);
      ASSERT_TRUE(same(any, few)) << tuttiCollName(coll) << " " << bytes;
    }
}

/* Pure: the fields that it does not name do not matter, and asking changes nothing. */
TEST(ExchangePlan, DependsOnNothingElse) {
  for (uint64_t bytes : sizes()) {
    tuttiSchedule s = scheduleOf(tuttiCollAllReduce, 4, bytes / 4);
    tuttiExchangePlan first = choose(s);
    s.algo = tuttiAlgoTree;
    s.chunk = 12345;
    s.twoShot = 1;
    choose(scheduleOf(tuttiCollBroadcast, 8, 1));
    ASSERT_TRUE(same(choose(s), first)) << bytes << " bytes";
  }
}

/* Bytes count, not elements: float64 and int8 of one size have one plan. */
TEST(ExchangePlan, TypesOfOneSizeHaveOnePlan) {
  for (uint64_t bytes : sizes())
    for (size_t size : {2, 4, 8})
      ASSERT_TRUE(
          same(choose(scheduleOf(tuttiCollAllReduce, 8, bytes / 8 * 8 / size), kLL | kSimple, size),
               choose(scheduleOf(tuttiCollAllReduce, 8, bytes / 8 * 8), kLL | kSimple, 1)))
          << bytes;
}

/* With growing size: one shot before two, and more blocks for the same work on offer. */
TEST(ExchangePlan, NeverGoesBack) {
  for (int n = 2; n <= TUTTI_EXCHANGE_MAX; n++)
    for (int coll = tuttiCollAllReduce; coll <= tuttiCollSendRecv; coll++) {
      tuttiExchangePlan before = choose(scheduleOf(coll, n, 0), kSimple, 1);
      for (uint64_t bytes = 1; bytes < (uint64_t)1 << 34; bytes += bytes / 8 + 1) {
        tuttiExchangePlan plan = choose(scheduleOf(coll, n, bytes), kSimple, 1);
        ASSERT_GE(plan.twoShot, before.twoShot) << tuttiCollName(coll) << " " << bytes;
        if (plan.twoShot == before.twoShot) {
          ASSERT_GE(plan.nblocks, before.nblocks) << tuttiCollName(coll) << " " << bytes;
        }
        before = plan;
      }
    }
}

} // namespace

/* Plans for GPUs that all reach each other. */
#include "collectives/planner.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "collectives/allpairs.h"
#include "collectives/plans.h"
#include "kernels/allpairs.h"

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

tuttiDataType_t typeOf(size_t size) {
  return size == 1 ? tuttiInt8 : size == 2 ? tuttiHalf : size == 4 ? tuttiFloat32 : tuttiFloat64;
}

tuttiSignature op(int coll, uint64_t count, size_t size = 4, int root = 0) {
  tuttiSignature sig = {};
  sig.coll = (uint8_t)coll;
  sig.count = count;
  sig.type = (uint8_t)typeOf(size);
  sig.root = tuttiCollHasRoot(coll) ? root : -1;
  return sig;
}

tuttiPlanInput gpus(int n, uint32_t protos = kLL | kSimple, bool staged = false) {
  tuttiPlanInput in = {};
  in.nranks = in.maxRanksPerHost = n;
  in.nhosts = in.minChannels = in.maxChannels = 1;
  in.algoMask = (1u << tuttiAlgoCount) - 1;
  in.protoMask = protos;
  in.intraLatencyUs = 2;
  in.intraGBs = 100;
  in.slotBytes = 512 << 10;
  in.gpu = in.allPairs = 1;
  in.staged = staged;
  return in;
}

bool same(const tuttiPlan &a, const tuttiPlan &b) {
  return a.twoShot == b.twoShot && a.proto == b.proto && a.nblocks == b.nblocks &&
         a.nthreads == b.nthreads && a.kernel == b.kernel && a.algo == b.algo &&
         a.nchannels == b.nchannels;
}

void expectRunnable(const tuttiPlan &plan, int coll, uint32_t protos) {
  bool ll = plan.proto == tuttiProtoLL128;
  ASSERT_TRUE(plan.proto == tuttiProtoLL128 || plan.proto == tuttiProtoSimple);
  ASSERT_TRUE(plan.fetch == 0 && plan.streams == 0) << "what CPUs do";
  /* LL is for what fits in regions, and for messages of any size if nothing else is allowed. */
  ASSERT_TRUE(protos & (ll ? kLL : kSimple) || (protos == kLL && coll != tuttiCollSendRecv));
  ASSERT_GE(plan.nblocks, 1);
  bool regions = plan.kernel == tuttiKernelRegions;
  ASSERT_TRUE(plan.kernel == tuttiKernelSlots || (regions && ll));
  ASSERT_EQ(plan.algo, tuttiAlgoDirect);
  ASSERT_EQ(plan.nchannels, 1);
  ASSERT_GE(plan.timeUs, 0);
  ASSERT_LE(plan.nblocks, (int)(regions ? TUTTI_REGION_BLOCKS
                                : ll    ? TUTTI_ALLPAIRS_LL_BLOCKS
                                        : TUTTI_ALLPAIRS_BLOCKS));
  ASSERT_GE(plan.nthreads, 32) << "a thread for each peer, and whole lines";
  ASSERT_LE(plan.nthreads, TUTTI_ALLPAIRS_THREADS);
  ASSERT_EQ(plan.nthreads % 32, 0);
  bool forms = coll == tuttiCollAllReduce || coll == tuttiCollReduce || coll == tuttiCollBroadcast;
  ASSERT_TRUE(plan.twoShot == 0 || (plan.twoShot == 1 && forms));
}

TEST(PlannerAllPairs, EveryPlanCanRun) {
  for (int n = 2; n <= TUTTI_ALLPAIRS_MAX; n++)
    for (int coll = tuttiCollAllReduce; coll <= tuttiCollSendRecv; coll++)
      for (uint32_t protos : {kLL, kSimple, kLL | kSimple})
        for (size_t size : {1, 2, 4, 8})
          for (uint64_t bytes : sizes()) {
            expectRunnable(choose(gpus(n, protos), op(coll, bytes / size, size)), coll, protos);
            if (HasFatalFailure())
              FAIL() << tuttiCollName(coll) << " ranks " << n << " bytes " << bytes;
          }
}

/* In a process of its own: a division by zero must not end the other tests. */
TEST(PlannerAllPairs, OneRankSendsNothing) {
  auto everyPlan = [] {
    for (int coll = tuttiCollAllReduce; coll < tuttiCollSendRecv; coll++)
      for (uint32_t protos : {kLL, kSimple, kLL | kSimple})
        for (uint64_t bytes : sizes())
          expectRunnable(choose(gpus(1, protos), op(coll, bytes / 4)), coll, protos);
    _exit(HasFatalFailure() ? 1 : 0);
  };
  EXPECT_EXIT(everyPlan(), testing::ExitedWithCode(0), "");
}

/* Else ranks would not understand each other's messages. The plan is kept for all roots and
 * numbers. */
TEST(PlannerAllPairs, NeitherRootNorNumberMatters) {
  for (int n = 2; n <= TUTTI_ALLPAIRS_MAX; n++)
    for (int coll = tuttiCollAllReduce; coll < tuttiCollSendRecv; coll++)
      for (uint64_t bytes : sizes()) {
        tuttiPlan first = choose(gpus(n), op(coll, bytes / 4));
        for (int root = 1; root < n; root++) {
          tuttiSignature other = op(coll, bytes / 4, 4, root);
          other.seq = (uint64_t)root;
          ASSERT_TRUE(same(choose(gpus(n), other), first))
              << tuttiCollName(coll) << " ranks " << n << " bytes " << bytes;
        }
      }
}

/* The two sides of a message know its count and type, and not of each other's other messages. */
TEST(PlannerAllPairs, MessagesAreOneLaunch) {
  for (int n = 2; n <= TUTTI_ALLPAIRS_MAX; n++)
    for (uint64_t bytes : sizes()) {
      tuttiPlan plan = choose(gpus(n), op(tuttiCollSendRecv, bytes, 1));
      ASSERT_EQ(plan.kernel, tuttiKernelSlots) << bytes << " bytes";
      ASSERT_EQ(plan.twoShot, 0) << bytes << " bytes";
    }
}

tuttiSchedule scheduleOf(int coll, int rank, int n, int root, uint64_t count, bool twoShot) {
  tuttiSchedule s = {};
  s.coll = coll;
  s.rank = rank;
  s.nranks = n;
  s.root = root;
  s.count = count;
  s.twoShot = twoShot;
  return s;
}

/* A slice that began within a line would have two ranks write that line. */
TEST(PlannerAllPairs, SlicesBeginAtWholeLines) {
  for (int n = 2; n <= TUTTI_ALLPAIRS_MAX; n++)
    for (int coll : {tuttiCollAllReduce, tuttiCollReduce, tuttiCollBroadcast})
      for (size_t size : {1, 2, 4, 8})
        for (uint64_t bytes : sizes()) {
          tuttiSchedule s = scheduleOf(coll, n - 1, n, 0, bytes / size, true);
          tuttiAllPairs x;
          memset(&x, 0xee, sizeof x);
          tuttiPlanExchange(&s, typeOf(size), &x);
          if (n == 2 && coll != tuttiCollAllReduce) continue; /* nothing to cut */
          if (x.count > 0) {
            ASSERT_EQ(x.ownAt * size % 128, 0u) << bytes;
          }
          for (const tuttiAllPairsPeer &p : x.peer) {
            ASSERT_TRUE(p.outCount == 0 || p.outAt * size % 128 == 0) << bytes;
            ASSERT_TRUE(p.lateCount == 0 || p.lateAt * size % 128 == 0) << bytes;
          }
        }
}

/* Their sizes and offsets have 32 bits. */
TEST(PlannerAllPairs, RegionsTakeWhatFits) {
  for (int n = 2; n <= TUTTI_ALLPAIRS_MAX; n++)
    for (int coll = tuttiCollAllReduce; coll < tuttiCollSendRecv; coll++)
      for (uint64_t bytes : sizes())
        for (int rank = 0; rank < n; rank++) {
          tuttiPlan plan = choose(gpus(n), op(coll, bytes, 1));
          if (plan.kernel != tuttiKernelRegions) continue;
          tuttiSchedule s = scheduleOf(coll, rank, n, 0, bytes, plan.twoShot);
          tuttiAllPairs x;
          tuttiPlanExchange(&s, tuttiInt8, &x);
          uint64_t longest = x.count, end = x.ownAt + x.count;
          for (const tuttiAllPairsPeer &p : x.peer) {
            longest = std::max({longest, p.outCount, p.inCount, p.lateCount});
            end = std::max({end, p.outAt + p.outCount, p.placeAt + p.inCount, p.lateAt});
          }
          uint64_t lines =
              (longest + TUTTI_ALLPAIRS_LINE_PAYLOAD - 1) / TUTTI_ALLPAIRS_LINE_PAYLOAD;
          ASSERT_GT(lines, 0u) << "every rank takes part, for the others count on it";
          ASSERT_LE(lines * TUTTI_ALLPAIRS_LINE, TUTTI_REGION_BYTES);
          ASSERT_LE(end, UINT32_MAX);
        }
}

/* A plan for messages, or for schedules, says all by itself. */
TEST(PlannerAllPairs, CollectivesBetweenAllPairsAreExchanges) {
  for (int coll = tuttiCollAllReduce; coll <= tuttiCollSendRecv; coll++)
    for (bool allPairs : {false, true}) {
      tuttiPlanInput in = gpus(4);
      in.allPairs = allPairs;
      tuttiPlan plan = choose(in, op(coll, 1000));
      EXPECT_EQ(tuttiPlanExchanges(&plan, coll), allPairs && coll != tuttiCollSendRecv)
          << tuttiCollName(coll);
    }
}

/* In host memory there are fewer slots and smaller regions, and none for LL messages; and LL is for
 * those alone who all send to all. */
TEST(PlannerAllPairs, StagedPlansFit) {
  for (int n = 2; n <= TUTTI_ALLPAIRS_MAX; n++)
    for (int coll = tuttiCollAllReduce; coll <= tuttiCollSendRecv; coll++)
      for (uint32_t protos : {kLL, kSimple, kLL | kSimple})
        for (uint64_t bytes : sizes()) {
          tuttiPlan plan = choose(gpus(n, protos, true), op(coll, bytes, 1));
          tuttiSchedule s = scheduleOf(coll, 0, n, 0, bytes, plan.twoShot);
          tuttiAllPairs x;
          tuttiPlanExchange(&s, tuttiInt8, &x);
          uint64_t longest = coll == tuttiCollSendRecv ? bytes : x.count;
          for (const tuttiAllPairsPeer &p : x.peer)
            longest = std::max({longest, p.outCount, p.inCount, p.lateCount});
          uint64_t lines = (longest + TUTTI_STAGED_LINE_PAYLOAD - 1) / TUTTI_STAGED_LINE_PAYLOAD;
          ASSERT_GE(plan.nblocks, 1);
          if (plan.kernel == tuttiKernelRegions) {
            ASSERT_FALSE(tuttiCollHasRoot(coll));
            ASSERT_LE(lines * 2 * TUTTI_STAGED_LINE_PAYLOAD, TUTTI_STAGED_REGION_BYTES);
            ASSERT_LE(plan.nblocks, (int)TUTTI_REGION_BLOCKS);
          } else {
            ASSERT_EQ(plan.proto, tuttiProtoSimple) << tuttiCollName(coll) << " " << bytes;
            ASSERT_LE(plan.nblocks, (int)TUTTI_STAGED_BLOCKS);
          }
        }
}

/* TUTTI_MAX_NCHANNELS and maxCTAs: whoever computes beside it keeps the other multiprocessors. */
TEST(PlannerAllPairs, TakesNoMoreBlocksThanWanted) {
  for (int coll = tuttiCollAllReduce; coll <= tuttiCollSendRecv; coll++)
    for (uint64_t bytes : sizes()) {
      tuttiPlanInput in = gpus(4);
      tuttiPlan any = choose(in, op(coll, bytes, 1));
      in.maxBlocks = 16;
      tuttiPlan few = choose(in, op(coll, bytes, 1));
      any.nblocks = std::min<uint16_t>(any.nblocks, 16);
      ASSERT_TRUE(same(any, few)) << tuttiCollName(coll) << " " << bytes;
    }
}

/* Thread blocks wait for those of other ranks, so those who share a GPU share its room. */
TEST(PlannerAllPairs, SharersShareTheBlocks) {
  for (int coll = tuttiCollAllReduce; coll <= tuttiCollSendRecv; coll++)
    for (uint64_t bytes : sizes()) {
      tuttiPlanInput in = gpus(4);
      in.maxBlocks = 100;
      int alone = choose(in, op(coll, bytes, 1)).nblocks;
      in.sharers = 3;
      int shared = choose(in, op(coll, bytes, 1)).nblocks;
      ASSERT_EQ(shared, (alone + 2) / 3) << tuttiCollName(coll) << " " << bytes;
    }
}

/* Pure: asking for something else between changes nothing, and all of the plan is set. */
TEST(PlannerAllPairs, SameInputSamePlan) {
  for (uint64_t bytes : sizes()) {
    tuttiPlan first = choose(gpus(4), op(tuttiCollAllReduce, bytes / 4));
    choose(gpus(8), op(tuttiCollBroadcast, 1));
    tuttiPlan second = choose(gpus(4), op(tuttiCollAllReduce, bytes / 4), 0x11);
    ASSERT_TRUE(samePlan(first, second)) << bytes << " bytes";
  }
}

/* Bytes count, not elements: float64 and int8 of one size have one plan. */
TEST(PlannerAllPairs, TypesOfOneSizeHaveOnePlan) {
  for (uint64_t bytes : sizes())
    for (size_t size : {2, 4, 8})
      ASSERT_TRUE(same(choose(gpus(8), op(tuttiCollAllReduce, bytes / 8 * 8 / size, size)),
                       choose(gpus(8), op(tuttiCollAllReduce, bytes / 8 * 8, 1))))
          << bytes;
}

/* With growing size: one shot before two, and more blocks for the same work on offer. */
TEST(PlannerAllPairs, NeverGoesBack) {
  for (int n = 2; n <= TUTTI_ALLPAIRS_MAX; n++)
    for (int coll = tuttiCollAllReduce; coll <= tuttiCollSendRecv; coll++) {
      tuttiPlan before = choose(gpus(n, kSimple), op(coll, 0, 1));
      for (uint64_t bytes = 1; bytes < (uint64_t)1 << 34; bytes += bytes / 8 + 1) {
        tuttiPlan plan = choose(gpus(n, kSimple), op(coll, bytes, 1));
        ASSERT_GE(plan.twoShot, before.twoShot) << tuttiCollName(coll) << " " << bytes;
        if (plan.twoShot == before.twoShot) {
          ASSERT_GE(plan.nblocks, before.nblocks) << tuttiCollName(coll) << " " << bytes;
        }
        before = plan;
      }
    }
}

} // namespace

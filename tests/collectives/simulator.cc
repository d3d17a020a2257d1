/* A check that cannot fail is none: broken schedules must not pass the simulator. */
#include <cstring>

#include "simulate.h"

namespace {

using Edit = void (*)(const tuttiSchedule *, uint64_t, tuttiStep *);

struct Breakage {
  const char *name;
  Way way;
  Edit edit;
  const char *fault; /* "deadlock", or what the simulator must say */
};

void PrintTo(const Breakage &b, std::ostream *out) {
  *out << b.name;
}

const Way kRing = {tuttiCollAllReduce, tuttiAlgoRing};
const Way kTree = {tuttiCollAllReduce, tuttiAlgoTree};
const Way kOneShot = {tuttiCollAllReduce, tuttiAlgoDirect, true};
const Way kTwoShot = {tuttiCollAllReduce, tuttiAlgoDirect, true, true};
const Way kGather = {tuttiCollAllGather, tuttiAlgoDirect, true};
const Way kGatherTwice = {tuttiCollAllGather, tuttiAlgoDirect, true, true};
const Way kAlltoAll = {tuttiCollAlltoAll, tuttiAlgoDirect};
const Way kDoubling = {tuttiCollAllReduce, tuttiAlgoDoubling};
const Way kRounds = {tuttiCollReduceScatter, tuttiAlgoDoubling};

bool victim(const tuttiSchedule *s) {
  return s->rank == 2;
}

const Breakage kBreakages[] = {
    {"MissingFinal", kRing,
     [](const tuttiSchedule *, uint64_t, tuttiStep *step) { step->flags &= ~TUTTI_STEP_FINAL; },
     "wrong result"},
    {"FinalTwice", kTree,
     [](const tuttiSchedule *, uint64_t, tuttiStep *step) { step->flags |= TUTTI_STEP_FINAL; },
     "wrong result"},
    {"OperandLeftOut", kRing,
     [](const tuttiSchedule *s, uint64_t k, tuttiStep *step) {
       if (victim(s) && k == 1) step->flags &= ~TUTTI_STEP_SRC;
     },
     "wrong result"},
    {"WrongSource", kTree,
     [](const tuttiSchedule *s, uint64_t k, tuttiStep *step) {
       if (victim(s) && k == 0) step->src++;
     },
     "wrong result"},
    {"WrongBlock", kAlltoAll,
     [](const tuttiSchedule *s, uint64_t, tuttiStep *step) {
       if (victim(s) && (step->flags & TUTTI_STEP_DST)) step->dst = step->dst >= 3 ? 0 : 3;
     },
     "recvbuff written twice"},
    {"NothingStored", kGather,
     [](const tuttiSchedule *s, uint64_t, tuttiStep *step) {
       if (victim(s)) step->flags &= ~TUTTI_STEP_DST;
     },
     "wrong result"},
    {"OutsideRecvbuff", kGather,
     [](const tuttiSchedule *s, uint64_t, tuttiStep *step) {
       if (victim(s)) step->dst = s->count * static_cast<uint64_t>(s->nranks);
     },
     "writes outside recvbuff"},
    {"OutsideSendbuff", kRing,
     [](const tuttiSchedule *s, uint64_t, tuttiStep *step) {
       if (victim(s)) step->src = s->count;
     },
     "reads outside a buffer"},
    {"MessageNotSent", kRing,
     [](const tuttiSchedule *s, uint64_t k, tuttiStep *step) {
       if (victim(s) && k == 1) step->nsend = 0;
     },
     "deadlock"},
    {"MessageNotTaken", kGather,
     [](const tuttiSchedule *s, uint64_t, tuttiStep *step) {
       if (victim(s) && step->nrecv == 1 && step->recv[0] == 0) step->count = 0;
     },
     "message never taken"},
    {"OtherSize", kTwoShot,
     [](const tuttiSchedule *s, uint64_t, tuttiStep *step) {
       if (victim(s) && step->count > 1 && step->nsend > 0) step->count--;
     },
     "message of another size than its receiver expects"},
    {"LongerThanAChunk", kTree,
     [](const tuttiSchedule *s, uint64_t, tuttiStep *step) {
       if (victim(s)) step->count = s->chunk + 1;
     },
     "step longer than a chunk"},
    {"NotStable", kOneShot,
     [](const tuttiSchedule *, uint64_t, tuttiStep *step) { step->flags |= TUTTI_STEP_STABLE; },
     "message changed in its sender's buffer before all had taken it"},
    {"ReadBeforeWritten", kGatherTwice,
     [](const tuttiSchedule *s, uint64_t k, tuttiStep *step) {
       if (s->rank == 0 && k == 2) step->count = 0;
     },
     "reads what no step has written"},
    {"ReadOutsideRecvbuff", kGatherTwice,
     [](const tuttiSchedule *, uint64_t, tuttiStep *step) {
       if (step->flags & TUTTI_STEP_SRC_WRITTEN) step->src++;
     },
     "reads outside a buffer"},
    {"ReadFromSendbuff", kGatherTwice,
     [](const tuttiSchedule *, uint64_t, tuttiStep *step) {
       step->flags &= ~TUTTI_STEP_SRC_WRITTEN;
     },
     "reads outside a buffer"},
    {"ScratchNotWritten", kDoubling,
     [](const tuttiSchedule *, uint64_t, tuttiStep *step) {
       step->flags &= ~TUTTI_STEP_DST_SCRATCH;
     },
     "reads what no step has written"},
    {"ScratchTooShort", kRounds,
     [](const tuttiSchedule *s, uint64_t, tuttiStep *step) {
       if (step->flags & TUTTI_STEP_DST_SCRATCH) step->dst += static_cast<uint64_t>(s->nranks) * 5;
     },
     "writes outside its scratch memory"},
    {"ReadBehindScratch", kRounds,
     [](const tuttiSchedule *s, uint64_t, tuttiStep *step) {
       if (step->flags & TUTTI_STEP_SRC_SCRATCH) step->src += static_cast<uint64_t>(s->nranks) * 5;
     },
     "reads outside a buffer"},
    {"WrongBlockKept", kRounds,
     [](const tuttiSchedule *s, uint64_t, tuttiStep *step) {
       if (victim(s) && step->nsend == 1) step->src = 0;
     },
     "wrong result"},
    {"SharedNotForAll", kGather,
     [](const tuttiSchedule *s, uint64_t, tuttiStep *step) {
       if (step->nsend != TUTTI_ALL) return;
       step->nsend = 1;
       step->send[0] = (s->rank + 1) % s->nranks;
     },
     "shared message without shared FIFO or not for all"},
    {"SharedOnOneSideOnly", kTwoShot,
     [](const tuttiSchedule *, uint64_t, tuttiStep *step) {
       step->flags &= ~TUTTI_STEP_RECV_SHARED;
     },
     "deadlock"},
    {"SendsToItself", kTree,
     [](const tuttiSchedule *s, uint64_t, tuttiStep *step) { step->send[0] = s->rank; },
     "sends to an invalid rank"},
    {"WaitsForAStranger", kRing,
     [](const tuttiSchedule *s, uint64_t, tuttiStep *step) {
       if (victim(s)) step->recv[0] = (s->rank + 1) % s->nranks;
     },
     "deadlock"},
};

class Simulator : public testing::TestWithParam<Breakage> {};

INSTANTIATE_TEST_SUITE_P(Broken, Simulator, testing::ValuesIn(kBreakages),
                         [](const auto &info) { return info.param.name; });

TEST_P(Simulator, SeesIt) {
  for (uint64_t seed = 0; seed < 8; seed++) {
    tuttiSimulation sim = simulationOf(GetParam().way, 4, 4, 3 * 5, 5);
    if (GetParam().way.coll == tuttiCollAllReduce) sim.count = 4 * 5 * 3;
    sim.inPlace = true;
    sim.seed = seed;
    expectGood(sim);
    sim.edit = GetParam().edit;
    tuttiSimulationResult result = {};
    ASSERT_TRUE(tuttiSimulate(&sim, &result));
    if (strcmp(GetParam().fault, "deadlock") == 0) {
      EXPECT_TRUE(result.deadlock) << result.fault;
      EXPECT_GE(result.stuckRank, 0);
    } else {
      EXPECT_TRUE(result.wrong) << "deadlock: " << result.deadlock;
      EXPECT_STREQ(result.fault, GetParam().fault);
      EXPECT_GE(result.wrongRank, 0);
    }
  }
}

/* Every rank first sends: nothing can move without a second slot. */
TEST(Deadlock, RingOfDepthOne) {
  tuttiSimulation sim = simulationOf(kRing, 4, 4, 100, 10);
  sim.depth = 1;
  tuttiSimulationResult result = {};
  ASSERT_TRUE(tuttiSimulate(&sim, &result));
  EXPECT_TRUE(result.deadlock);
  EXPECT_EQ(result.stuckRank, 0);
  EXPECT_EQ(result.stuckStep, 1u);
  EXPECT_FALSE(result.wrong);
}

/* What the rank waits for, the steps it takes and the order of ranks must not change the figures.
 */
TEST(Figures, DoNotDependOnTheOrder) {
  for (const Way &way : allWays()) {
    tuttiSimulation sim = simulationOf(way, 6, 2, 50, 3);
    tuttiSimulationResult first = expectGood(sim);
    for (sim.seed = 1; sim.seed < 6; sim.seed++) {
      tuttiSimulationResult r = expectGood(sim);
      EXPECT_EQ(r.messages, first.messages);
      EXPECT_EQ(r.longestChain, first.longestChain);
      EXPECT_EQ(r.maxSent, first.maxSent);
      EXPECT_EQ(r.maxReceived, first.maxReceived);
    }
  }
}

} // namespace

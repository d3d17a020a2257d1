/* The operation record by itself: what it tells while and after it is written. */
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/os.h"
#include "base/ticks.h"

extern "C" {
#include "comm/record.h"
}

namespace {

constexpr uint64_t kExact = 200000; /* ns that a stamp may be beside the clock */
constexpr uint64_t kDuration = 3 * TUTTI_MS;

class Record : public testing::Test {
protected:
  Record() { tuttiTicksStart(); }

  /* Operation `seq`, whose count follows from that. */
  void start(uint64_t seq, uint64_t enqueued = 0, bool brief = false) {
    tuttiSignature sig = {};
    sig.seq = seq;
    sig.count = seq * 3;
    sig.root = -1;
    sig.coll = tuttiCollAllReduce;
    sig.type = tuttiFloat32;
    tuttiRecordPlan plan = {};
    plan.channels = (uint16_t)(seq % 7);
    tuttiRecordStart(record.get(), &sig, plan, enqueued, brief);
  }
  void end() { tuttiRecordEnd(record.get()); }
  const tuttiFacts &told() {
    tuttiRecordFacts(record.get(), facts.get());
    return *facts;
  }

  std::unique_ptr<tuttiRecord> record = std::make_unique<tuttiRecord>();
  std::unique_ptr<tuttiFacts> facts = std::make_unique<tuttiFacts>();
};

TEST_F(Record, TimesAreThoseOfTheClock) {
  struct Looks {
    uint64_t before, after;
  };
  std::vector<Looks> looks;
  record->traces = true;
  for (uint64_t seq = 1; seq <= 20; seq++) {
    uint64_t before = tuttiNow();
    start(seq);
    usleep(kDuration / 1000);
    end();
    looks.push_back({before, tuttiNow()});
    usleep(1000);
  }
  ASSERT_EQ(told().nops, 20u);
  for (uint32_t i = 0; i < facts->nops; i++) {
    const tuttiOpFacts &op = facts->ops[i];
    const Looks &look = looks[op.sig.seq - 1];
    EXPECT_EQ(op.enqueued, op.start);
    EXPECT_GE(op.start + kExact, look.before);
    EXPECT_GE(op.end + kExact, op.start + kDuration);
    EXPECT_LE(op.end, look.after + kExact);
  }
}

TEST_F(Record, WhatWasQueuedHasThatTime) {
  record->traces = true;
  uint64_t before = tuttiNow(), queued = tuttiTicks(), after = tuttiNow();
  usleep(kDuration / 1000);
  start(1, queued);
  ASSERT_EQ(told().nops, 1u);
  EXPECT_GE(facts->ops[0].enqueued + kExact, before);
  EXPECT_LE(facts->ops[0].enqueued, after + kExact);
  EXPECT_GE(facts->ops[0].start + kExact, after + kDuration);
  EXPECT_EQ(facts->ops[0].end, 0u) << "it has not ended";
}

/* As an executor does where it waits. */
TEST_F(Record, ABriefOneIsStampedWhileItWaits) {
  record->traces = true;
  start(1, 0, true);
  ASSERT_NE(record->idle.first, nullptr);
  ASSERT_EQ(told().nops, 1u);
  EXPECT_EQ(facts->ops[0].start, 0u) << "it has not waited yet";
  uint64_t first = tuttiNow();
  tuttiStoreRelaxed(record->idle.first, tuttiTicks());
  record->idle.last = tuttiTicks();
  ASSERT_EQ(told().nops, 1u);
  EXPECT_GE(facts->ops[0].start + kExact, first);
  EXPECT_EQ(facts->ops[0].enqueued, facts->ops[0].start);
  EXPECT_EQ(facts->ops[0].end, 0u);
  end();
  EXPECT_EQ(record->idle.first, nullptr);
  ASSERT_EQ(told().nops, 1u);
  EXPECT_GE(facts->ops[0].end, facts->ops[0].start);
  EXPECT_LE(facts->ops[0].end, tuttiNow() + kExact);
}

/* Who has waited so long that it may have slept: the last stamp is of before that. */
TEST_F(Record, TheEndOfALongWaitIsStampedAnew) {
  record->traces = true;
  start(1, 0, true);
  tuttiStoreRelaxed(record->idle.first, tuttiTicks());
  usleep(kDuration / 1000);
  record->idle.last = tuttiTicks();
  usleep(kDuration / 1000);
  uint64_t before = tuttiNow();
  end();
  ASSERT_EQ(told().nops, 1u);
  EXPECT_GE(facts->ops[0].end + kExact, before);
  EXPECT_LE(facts->ops[0].start + 2 * kDuration, facts->ops[0].end + kExact);
}

TEST_F(Record, ABriefOneThatDoesNotWaitHasOneStamp) {
  record->traces = true;
  uint64_t queued = tuttiTicks();
  usleep(kDuration / 1000);
  for (uint64_t enqueued : {uint64_t{0}, queued}) {
    uint64_t before = tuttiNow();
    start(1, enqueued, true);
    end();
    ASSERT_GE(told().nops, 1u);
    const tuttiOpFacts &op = facts->ops[0];
    EXPECT_GE(op.start + kExact, before);
    EXPECT_LE(op.start, tuttiNow() + kExact);
    EXPECT_EQ(op.end, op.start);
    if (enqueued == 0)
      EXPECT_EQ(op.enqueued, op.start);
    else
      EXPECT_LE(op.enqueued + kDuration, before + kExact);
  }
}

TEST_F(Record, ABriefOneThatNobodyAsksForHasNone) {
  for (uint64_t seq = 1; seq < 2 * TUTTI_RECORD_SAMPLE; seq++) {
    start(seq, 0, true);
    EXPECT_EQ(record->idle.first != nullptr, seq == TUTTI_RECORD_SAMPLE) << seq;
    end();
    ASSERT_GE(told().nops, 1u);
    EXPECT_EQ(facts->ops[0].start != 0, seq == TUTTI_RECORD_SAMPLE) << seq;
    EXPECT_EQ(facts->ops[0].end, facts->ops[0].start);
  }
}

TEST_F(Record, WithoutATraceOneInSixteenIsStamped) {
  for (uint64_t seq = 1; seq <= 100; seq++) {
    start(seq);
    end();
  }
  ASSERT_GE(told().nops, TUTTI_RECORD_DEPTH - 1);
  for (uint32_t i = 0; i < facts->nops; i++) {
    const tuttiOpFacts &op = facts->ops[i];
    bool sampled = op.sig.seq % TUTTI_RECORD_SAMPLE == 0;
    EXPECT_EQ(op.start != 0, sampled) << op.sig.seq;
    EXPECT_EQ(op.end != 0, sampled) << op.sig.seq;
    EXPECT_EQ(op.enqueued != 0, sampled) << op.sig.seq;
  }
}

/* As the watch does while the rank runs on. */
TEST_F(Record, IsWholeWhileItIsWritten) {
  constexpr uint64_t kOps = 200000;
  record->traces = true;
  std::atomic<bool> over{false};
  uint64_t begun = tuttiNow();
  std::thread writer([&] {
    for (uint64_t seq = 1; seq <= kOps; seq++) {
      start(seq);
      end();
    }
    over = true;
  });
  for (bool last = false; !last;) {
    last = over;
    told();
    ASSERT_LE(facts->nops, TUTTI_RECORD_DEPTH);
    for (uint32_t i = 0; i < facts->nops; i++) {
      const tuttiOpFacts &op = facts->ops[i];
      ASSERT_EQ(op.sig.seq, facts->started - i);
      ASSERT_EQ(op.sig.count, op.sig.seq * 3);
      ASSERT_EQ(op.channels, op.sig.seq % 7);
      ASSERT_GE(op.start + kExact, begun);
      ASSERT_LE(op.start, tuttiNow() + kExact);
      if (op.sig.seq <= facts->ended) {
        ASSERT_GE(op.end + kExact, op.start);
      }
    }
  }
  writer.join();
  EXPECT_EQ(facts->started, kOps);
  EXPECT_EQ(facts->ended, kOps);
}

} // namespace

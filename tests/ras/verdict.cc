/* Verdicts over facts that are made here: what a live job shows only by chance. */
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/os.h"
#include "ras/report.h"
#include "ras/timeline.h"
#include "ras/verdict.h"

using testing::HasSubstr;
using testing::Not;

namespace {

class Verdict : public testing::Test {
protected:
  void make(int nranks, uint64_t hash = 42) {
    ASSERT_EQ(tuttiSnapshotAdd(&s, hash, 7, nranks, &c), tuttiSuccess);
    snprintf(c->name, sizeof c->name, "train");
    for (int r = 0; r < nranks; r++) {
      tuttiRankView &v = c->ranks[r];
      v.who.pid = 100 + r;
      snprintf(v.who.host, sizeof v.who.host, "node%d", r / 2);
      v.answer.answered = TUTTI_ANSWER_OWN;
      v.told = 1;
      tuttiFacts &f = v.facts;
      f.version = TUTTI_VERSION_CODE;
      f.rank = r;
      f.nranks = nranks;
      f.device = -1;
      f.hash = hash;
      f.hostId = (uint64_t)(r / 2 + 1);
      f.phase = tuttiPhaseUsable;
    }
  }
  void TearDown() override { tuttiSnapshotFree(&s); }

  static tuttiSignature signature(uint64_t seq, tuttiColl coll = tuttiCollAllReduce) {
    tuttiSignature sig = {};
    sig.seq = seq;
    sig.count = 8;
    sig.root = -1;
    sig.coll = (uint8_t)coll;
    sig.type = tuttiFloat32;
    sig.redop = coll == tuttiCollAllReduce ? 0 : 0xffff;
    return sig;
  }
  /* Rank r has called so many collectives, and is in the last one for so long. */
  void called(int r, uint64_t n, uint32_t inMs) {
    tuttiFacts &f = c->ranks[r].facts;
    f.started = n;
    f.ended = inMs ? n - 1 : n;
    f.inMs = inMs;
    f.nops = n < 3 ? (uint32_t)n : 3;
    for (uint32_t i = 0; i < f.nops; i++)
      f.ops[i].sig = signature(n - i);
    f.inside = inMs > 0;
    f.in = f.ops[0].sig;
  }
  /* The newest operation that it has called, and is in, is another one. */
  void calledInstead(int r, const tuttiSignature &sig) {
    tuttiFacts &f = c->ranks[r].facts;
    f.ops[0].sig = f.in = sig;
  }
  /* On GPUs: it has launched so many, and a kernel waits in the one of this number. */
  void launched(int r, uint64_t n, uint64_t in, uint32_t inMs) {
    called(r, n, 0);
    tuttiFacts &f = c->ranks[r].facts;
    f.device = r;
    f.inside = inMs > 0;
    f.inMs = inMs;
    f.in = signature(in);
  }
  std::vector<tuttiFinding> judge() {
    tuttiFinding found[TUTTI_FINDINGS];
    int n = tuttiFindings(c, found);
    return {found, found + n};
  }
  tuttiWaitFacts &waits(int r, int peer) {
    tuttiFacts &f = c->ranks[r].facts;
    tuttiWaitFacts &w = f.waits[f.nwaits++];
    w.peer = peer;
    w.channel = 1;
    w.awaited = 1;
    w.sinceMs = 9000;
    snprintf(w.via, sizeof w.via, "NET/IB");
    return w;
  }

  tuttiSnapshot s = {};
  tuttiCommSnapshot *c = nullptr;
};

TEST_F(Verdict, WhoIsIdleOrRunsIsWell) {
  make(2);
  auto idle = judge();
  ASSERT_EQ(idle.size(), 1u);
  EXPECT_EQ(idle[0].kind, tuttiVerdictIdle);
  EXPECT_FALSE(tuttiFindingIsBad(&idle[0]));
  called(0, 5, 20);
  called(1, 4, 0);
  auto runs = judge();
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].kind, tuttiVerdictRunning);
  EXPECT_FALSE(tuttiFindingIsBad(&runs[0]));
}

TEST_F(Verdict, NamesAllWhoHaveNotEntered) {
  make(8);
  for (int r = 0; r < 8; r++)
    called(r, 5, 12300);
  called(3, 4, 0);
  called(7, 3, 800); /* still in an older one */
  auto f = judge();
  ASSERT_EQ(f.size(), 1u);
  EXPECT_EQ(f[0].kind, tuttiVerdictMissing);
  EXPECT_STREQ(
      f[0].text,
      "6 ranks wait, the longest 12.3 s, in #5 AllReduce(count 8, float32, sum): rank 3 "
      "(host node1, pid 103) answers but has not called it yet; it last finished #4 "
      "AllReduce(count 8, float32, sum); rank 7 (host node3, pid 107) answers but is still "
      "in #3 AllReduce(count 8, float32, sum)");
}

/* What is wrong with a rank's network, in one clause. */
TEST_F(Verdict, ATroubledNetworkIsTold) {
  make(4);
  struct {
    uint16_t down, broken;
    const char *text;
  } const cases[] = {
      {0, 0, ""},
      {1, 0, "; rank 3 (host node1, pid 103): port hca0:1 is down"},
      {0, 1, "; rank 3 (host node1, pid 103): 1 connection is being made anew"},
      {3, 2,
       "; rank 3 (host node1, pid 103): port hca0:1 and 2 more are down, 2 connections are being "
       "made anew"},
  };
  for (const auto &expected : cases) {
    tuttiRankState state = {};
    char text[300];
    state.portsDown = expected.down;
    state.broken = expected.broken;
    if (expected.down) snprintf(state.port, sizeof state.port, "hca0:1");
    EXPECT_STREQ(tuttiTroubleText(&c->ranks[3].who, &state, text, sizeof text), expected.text);
  }
}

/* Who has destroyed its communicator is named where it had not done what others wait in. */
TEST_F(Verdict, WhoHasLeftAfterItsPartKeepsNobodyWaiting) {
  for (uint64_t last : {5, 4}) {
    make(3);
    for (int r = 0; r < 2; r++)
      called(r, 5, 9000);
    waits(0, 1);
    tuttiRankState state = {};
    state.started = state.ended = last;
    state.last[0] = signature(last);
    tuttiRankView &v = c->ranks[2];
    v.told = 0;
    v.answer = {};
    v.answer.answered = TUTTI_ANSWER_LEFT;
    v.answer.bytes = sizeof state;
    memcpy(v.answer.state, &state, sizeof state);
    auto f = judge();
    ASSERT_EQ(f.size(), 1u) << last;
    EXPECT_EQ(f[0].kind, last == 5 ? tuttiVerdictPath : tuttiVerdictLeft) << f[0].text;
    EXPECT_THAT(f[0].text, HasSubstr(last == 5 ? "rank 0 waits for rank 1 on channel"
                                               : "rank 2 (host node1, pid 102) has destroyed its "
                                                 "communicator"));
    tuttiSnapshotFree(&s);
    s = {};
  }
}

TEST_F(Verdict, TheFewDisagreeWithTheMany) {
  make(4);
  for (int r = 0; r < 4; r++)
    called(r, 5, 700);
  tuttiSignature other = signature(5);
  other.count = 9;
  calledInstead(0, other);
  auto f = judge();
  ASSERT_GE(f.size(), 1u);
  EXPECT_EQ(f[0].kind, tuttiVerdictMismatch);
  EXPECT_THAT(f[0].text, HasSubstr("rank 1 (host node0, pid 101) called #5 AllReduce(count 8, "
                                   "float32, sum), rank 0 (host node0, pid 100) called #5 "
                                   "AllReduce(count 9, float32, sum)"));
  EXPECT_THAT(f[0].text, HasSubstr("(3 ranks called what rank 1 did)"));
}

TEST_F(Verdict, APathIsToldWithItsState) {
  make(3);
  for (int r = 0; r < 3; r++)
    called(r, 5, 9000);
  waits(0, 1);
  tuttiWaitFacts &w = waits(2, 1);
  w.sends = 1;
  w.written = 12;
  w.taken = 3;
  snprintf(w.text, sizeof w.text, "port 1 of mlx5_2 of the peer is down");
  auto f = judge();
  ASSERT_EQ(f.size(), 1u);
  EXPECT_EQ(f[0].kind, tuttiVerdictPath);
  EXPECT_THAT(f[0].text,
              HasSubstr("a slow or broken path: rank 2 waits for rank 1 on channel 1 via NET/IB "
                        "since 9.0 s: 12 messages sent, 3 acknowledged; port 1 of mlx5_2 of the "
                        "peer is down; rank 0 waits for rank 1"));
}

TEST_F(Verdict, APeerThatHasNotCalledTheOtherSide) {
  make(3);
  called(0, 1, 3000);
  calledInstead(0, signature(1, tuttiCollSendRecv));
  waits(0, 2);
  auto f = judge();
  ASSERT_EQ(f.size(), 1u);
  EXPECT_EQ(f[0].kind, tuttiVerdictPeer);
  EXPECT_THAT(f[0].text,
              HasSubstr("rank 2 (host node1, pid 102) answers but has not called it yet; "
                        "it last finished nothing"));
}

TEST_F(Verdict, SignalsThatHaveNotCome) {
  make(4);
  called(2, 5, 1200);
  auto wait = [&](int r, int peer, uint32_t ms) {
    tuttiFacts &f = c->ranks[r].facts;
    f.awaitsSignals = 1;
    f.signals = {};
    f.signals.peer = peer;
    f.signals.index = 3;
    f.signals.wanted = 2;
    f.signals.come = 1;
    f.signals.sinceMs = ms;
  };
  wait(0, 2, 2000);
  wait(1, 0, 700);
  wait(3, 1, 300); /* not for long */
  auto f = judge();
  ASSERT_GE(f.size(), 1u);
  EXPECT_EQ(f.back().kind, tuttiVerdictPeer);
  EXPECT_STREQ(f.back().text,
               "rank 0 waits 2.0 s for 2 signals of index 3 and context 0 from rank 2 (host node1, "
               "pid 102), of which 1 has come; that one is in #5 AllReduce(count 8, float32, sum) "
               "since 1.2 s; rank 1 waits 0.7 s for 2 signals of index 3 and context 0 from rank 0 "
               "(host node0, pid 100), of which 1 has come; that one waits itself, for rank 2");
  c->ranks[0].facts.signals.wanted = 0;
  EXPECT_THAT(judge().back().text,
              HasSubstr("rank 0 waits 2.0 s for room to put to rank 2 (host node1, pid 102), which "
                        "does not take what was put before"));
}

TEST_F(Verdict, AKernelWaitsInAnOlderOperationThanTheNewest) {
  make(3);
  launched(0, 9, 7, 2000);
  launched(1, 8, 7, 2100);
  launched(2, 6, 0, 0);
  waits(0, 2);
  waits(1, 2);
  auto f = judge();
  ASSERT_EQ(f.size(), 1u);
  EXPECT_EQ(f[0].kind, tuttiVerdictMissing);
  EXPECT_STREQ(f[0].text,
               "2 ranks wait, the longest 2.1 s, in #7 AllReduce(count 8, float32, sum): "
               "rank 2 (host node1, pid 102) answers but has not called it yet; it last "
               "finished #6 AllReduce(count 8, float32, sum)");
}

TEST_F(Verdict, AKernelThatItsStreamDoesNotComeTo) {
  make(3);
  launched(0, 7, 7, 2000);
  launched(1, 7, 7, 2000);
  launched(2, 7, 0, 0);
  waits(0, 2);
  waits(1, 2);
  auto f = judge();
  ASSERT_EQ(f.size(), 1u);
  EXPECT_EQ(f[0].kind, tuttiVerdictNotBegun);
  EXPECT_THAT(f[0].text, HasSubstr("2 ranks wait, the longest 2.0 s, in #7 AllReduce(count 8, "
                                   "float32, sum): rank 2 (host node1, pid 102) called it, but the "
                                   "kernel has not begun: its stream waits"));
  EXPECT_THAT(f[0].text, Not(HasSubstr("; rank 2")));
  c->ranks[2].process = 'T'; /* says more */
  auto stopped = judge();
  ASSERT_EQ(stopped.size(), 1u);
  EXPECT_EQ(stopped[0].kind, tuttiVerdictStopped);
}

TEST_F(Verdict, AMessageWhoseOtherKernelHasNotBegun) {
  make(2);
  tuttiSignature message = signature(1, tuttiCollSendRecv);
  launched(0, 1, 1, 3000);
  launched(1, 1, 0, 0);
  calledInstead(0, message);
  c->ranks[1].facts.ops[0].sig = message;
  waits(0, 1);
  auto f = judge();
  ASSERT_EQ(f.size(), 1u);
  EXPECT_EQ(f[0].kind, tuttiVerdictNotBegun);
}

TEST_F(Verdict, WhatTheKernelSaysOfAProcess) {
  make(3);
  called(0, 5, 1000);
  for (int r = 1; r < 3; r++) {
    c->ranks[r].told = 0;
    c->ranks[r].answer.answered = TUTTI_ANSWER_NONE;
  }
  auto silent = judge();
  ASSERT_EQ(silent.size(), 1u);
  EXPECT_EQ(silent[0].kind, tuttiVerdictSilent);
  c->ranks[1].process = 'T';
  c->ranks[2].process = 'X';
  auto f = judge();
  ASSERT_EQ(f.size(), 2u);
  EXPECT_EQ(f[0].kind, tuttiVerdictDead);
  EXPECT_THAT(f[0].text, HasSubstr("rank 2 (host node1, pid 102) died"));
  EXPECT_EQ(f[1].kind, tuttiVerdictStopped);
  EXPECT_THAT(f[1].text, HasSubstr("its process is stopped (SIGSTOP, or a debugger)"));
}

/* After a failure nobody waits any more, and it says why others do not answer. */
TEST_F(Verdict, WhatHasFailedWaitsForNothing) {
  make(3);
  for (int r = 0; r < 2; r++) {
    called(r, 4, 8800);
    c->ranks[r].facts.failed = tuttiRemoteError;
    snprintf(c->ranks[r].facts.failure, sizeof c->ranks[r].facts.failure, "rank 2 died");
  }
  called(2, 3, 0);
  c->ranks[2].told = 0;
  c->ranks[2].answer.answered = TUTTI_ANSWER_HEARSAY;
  auto f = judge();
  ASSERT_EQ(f.size(), 1u);
  EXPECT_EQ(f[0].kind, tuttiVerdictFailed);
  EXPECT_STREQ(f[0].text, "it has failed: rank 2 died");
}

TEST_F(Verdict, AnInitWaitsForThoseWhoHaveNotCome) {
  make(3, 0);
  for (int r = 0; r < 2; r++) {
    c->ranks[r].facts.phase = tuttiPhaseJoining;
    c->ranks[r].facts.phaseMs = 4000;
  }
  c->ranks[2] = {};
  c->ranks[2].who.rank = 2;
  auto f = judge();
  ASSERT_EQ(f.size(), 1u);
  EXPECT_EQ(f[0].kind, tuttiVerdictJoining);
  EXPECT_STREQ(f[0].text, "it is being made, 2 of 3 ranks are in its init, the longest for 4.0 s; "
                          "not seen to have called it: rank 2");
}

/* Two hosts whose clocks differ by a second; rank 2 comes 5 ms after the others each time. */
TEST_F(Verdict, ClocksAreAlignedAndTheLastOneIsNamed) {
  make(4);
  for (int r = 0; r < 4; r++) {
    tuttiFacts &f = c->ranks[r].facts;
    called(r, 3, 0);
    f.started = f.ended = f.nops = 6;
    uint64_t clock = r < 2 ? 5000000000 : 6000000000;
    for (uint32_t i = 0; i < 6; i++) {
      f.ops[i].sig = signature(6 - i);
      f.ops[i].start = f.ops[i].enqueued = clock - i * 100000000 + (r == 2 ? 5000000 : 0);
      f.ops[i].end = clock - i * 100000000 + 6000000;
    }
  }
  EXPECT_EQ(tuttiClockOffset(c, 0, 1), 0);
  EXPECT_EQ(tuttiClockOffset(c, 0, 3), -1000000000);
  tuttiFinding found[TUTTI_FINDINGS];
  ASSERT_EQ(tuttiStragglers(c, found, TUTTI_FINDINGS), 1);
  EXPECT_THAT(found[0].text,
              HasSubstr("rank 2 (host node1, pid 102) enters collectives last, in 6 of the 6 that "
                        "are stamped, by a median of 5.0 ms after the others"));
  char *dump = tuttiReportMake(&s, tuttiReportDump);
  ASSERT_NE(dump, nullptr);
  tuttiSnapshot back = {};
  EXPECT_TRUE(tuttiReportDumpTake(dump, strlen(dump), &back));
  ASSERT_EQ(back.ncomms, 1);
  EXPECT_EQ(memcmp(&back.comms[0].ranks[2].facts, &c->ranks[2].facts, sizeof(tuttiFacts)), 0);
  char *trace = tuttiReportMake(&back, tuttiReportTrace);
  /* The last operation, of a rank of the other host, on the clock of rank 0. */
  EXPECT_THAT(trace, HasSubstr("\"pid\": 3, \"tid\": 0, \"ts\": 5000000.000, \"dur\": 6000.000"));
  EXPECT_THAT(trace, HasSubstr("\"pid\": 2, \"tid\": 0, \"ts\": 5005000.000, \"dur\": 1000.000"));
  free(trace);
  tuttiSnapshotFree(&back);
  EXPECT_FALSE(tuttiReportDumpTake(dump, strlen(dump) / 2, &back));
  tuttiSnapshotFree(&back);
  free(dump);
}

TEST_F(Verdict, FactsThatDoNotHoldTogetherAreNotBelieved) {
  make(2);
  called(0, 5, 700);
  tuttiFacts good = c->ranks[0].facts, out;
  EXPECT_TRUE(tuttiFactsParse(&good, sizeof good, &out));
  EXPECT_FALSE(tuttiFactsParse(&good, sizeof good - 1, &out));
  auto spoiled = [&](auto change) {
    tuttiFacts bad = good;
    change(bad);
    return !tuttiFactsParse(&bad, sizeof bad, &out);
  };
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.version++; }));
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.rank = 2; }));
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.phase = 99; }));
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.failed = -1; }));
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.ended = f.started + 1; }));
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.nops = TUTTI_FACTS_OPS + 1; }));
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.nwaits = TUTTI_FACTS_WAITS + 1; }));
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.ops[0].sig.coll = 200; }));
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.in.type = 200; }));
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.nwaits = 1, f.waits[0].peer = 2; }));
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.awaitsSignals = 2; }));
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.awaitsSignals = 1, f.signals.peer = 2; }));
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.awaitsSignals = 1, f.signals.peer = -1; }));
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.now = UINT64_MAX; }));
  EXPECT_TRUE(spoiled([](tuttiFacts &f) { f.realtime = (uint64_t)INT64_MAX; }));
  for (uint64_t tuttiOpFacts::*stamp :
       {&tuttiOpFacts::enqueued, &tuttiOpFacts::start, &tuttiOpFacts::end}) {
    tuttiFacts strange = good;
    strange.ops[0].enqueued = strange.ops[0].start = strange.ops[0].end = 1;
    strange.ops[0].*stamp = 1ull << 63;
    ASSERT_TRUE(tuttiFactsParse(&strange, sizeof strange, &out));
    EXPECT_EQ(out.ops[0].start, 0u) << "it counts as not stamped";
  }
  memset(good.name, '\033', sizeof good.name);
  ASSERT_TRUE(tuttiFactsParse(&good, sizeof good, &out));
  EXPECT_EQ(std::string(out.name), std::string(sizeof good.name - 1, '?'));
}

} // namespace

/* Completions of NET/IB that are lost, repeated or cannot be read, on devices that are made up. */
#ifdef TUTTI_HAVE_VERBS
#include "transport/ib/ib_end.h"

using ib::device;
using ib::IbEnd;
using ib::kRails;

namespace {

TEST_F(IbEnd, ACompletionThatIsRepeatedConfirmsNothingElse) {
  Connect();
  std::deque<ibv_wc> done = SendLarge(3);
  device.done = {done[0], done[0], done[0]};
  tuttiIbPoll(&node_);
  EXPECT_EQ(1u, e_.meet.passed) << "the others may not have been sent";
  device.done = {done[1], done[2], done[2]};
  tuttiIbPoll(&node_);
  EXPECT_EQ(3u, e_.meet.passed);
  EXPECT_EQ(e_.qps[0].posted, e_.qps[0].done);
}

TEST_F(IbEnd, ACompletionThatIsLostIsMadeGoodByTheNext) {
  Connect();
  std::deque<ibv_wc> done = SendLarge(3);
  device.done = {done[2]};
  tuttiIbPoll(&node_);
  EXPECT_EQ(3u, e_.meet.passed);
  EXPECT_EQ(e_.qps[0].posted, e_.qps[0].done);
  SendSmall(3);
}

TEST_F(IbEnd, WhereNoCompletionComesAnotherOneIsAskedFor) {
  Connect();
  SendLarge(1);
  size_t before = device.posted.size();
  Look(1);
  EXPECT_EQ(before, device.posted.size());
  Look(1);
  EXPECT_EQ(before + 1, device.posted.size());
  tuttiIbPoll(&node_);
  EXPECT_EQ(1u, e_.meet.passed);
  Look(10);
  EXPECT_EQ(before + 1, device.posted.size()) << "nothing is awaited any more";
}

TEST_F(IbEnd, WhereNoCompletionComesForLongTheQueuePairsAreGivenUp) {
  Connect();
  SendLarge(1);
  Look(60); /* a quarter of the timeout */
  EXPECT_EQ(TUTTI_IB_RUNNING, e_.state);
  Look(2);
  EXPECT_EQ(TUTTI_IB_BROKEN, e_.state);
  EXPECT_NE(nullptr, strstr(e_.trouble, "no completion has come for 15.")) << e_.trouble;
}

/* The completion that says why was lost. */
TEST_F(IbEnd, AQueuePairWhoseRequestsAreGivenUpHasFailed) {
  Connect();
  std::deque<ibv_wc> done = SendLarge(1);
  done[0].status = IBV_WC_WR_FLUSH_ERR;
  device.done = done;
  tuttiIbPoll(&node_);
  EXPECT_EQ(TUTTI_IB_RUNNING, e_.state) << "it may be on its way";
  Look(2);
  device.done.clear();
  Look(1);
  EXPECT_EQ(TUTTI_IB_BROKEN, e_.state);
  EXPECT_EQ(0u, e_.meet.passed);
  EXPECT_NE(nullptr, strstr(e_.trouble, "requests that were given up")) << e_.trouble;
}

TEST_F(IbEnd, AnImmediateThatIsRepeatedTellsNothingNew) {
  Connect();
  OpenTwin();
  AwaitImmediates();
  device.done = {Immediate(0, 0), Immediate(0, 0), Immediate(1, 1), Immediate(1, 1)};
  tuttiIbPoll(&node_);
  const tuttiIbQueuePair &q = reverse_->qps[0];
  EXPECT_EQ(2u, q.come);
  EXPECT_EQ(2u, q.received);
  EXPECT_EQ(unsigned{TUTTI_IB_RECEIVES}, device.receives.size())
      << "no more than there is room for";
}

TEST_F(IbEnd, AnImmediateThatIsLostIsMadeGoodByTheNext) {
  Connect();
  OpenTwin();
  AwaitImmediates();
  for (uint32_t n = 2; n < 100; n += 2) {
    device.done = {Immediate(n, n)};
    tuttiIbPoll(&node_);
    ASSERT_EQ(n + 1, reverse_->qps[0].come);
    ASSERT_EQ(n + 1, reverse_->qps[0].received);
  }
}

/* Small messages have no share for any but the first queue pair. */
TEST_F(IbEnd, AnImmediateOfAQueuePairThatHadNoneForLongIsUnderstood) {
  Connect();
  OpenTwin();
  AwaitImmediates();
  const uint64_t arrived = (UINT64_C(3) << TUTTI_IB_IMMEDIATE_BITS) + 5;
  tuttiIbQueuePair &q = reverse_->qps[0];
  q.come = 3;
  reverse_->arrived = arrived;
  device.done = {Immediate(0, arrived), Immediate(1, arrived + 2)};
  tuttiIbPoll(&node_);
  EXPECT_EQ(arrived + 3, q.come);
  device.done = {Immediate(2, arrived + 3)}; /* more than has been taken is told */
  tuttiIbPoll(&node_);
  EXPECT_EQ(arrived + 4, q.come);
}

TEST_F(IbEnd, WhatMemoryHasAndNoImmediateTellsIsAskedForAgain) {
  Connect();
  OpenTwin();
  AwaitImmediates();
  Look(100);
  EXPECT_EQ(TUTTI_IB_RUNNING, reverse_->state) << "nothing has come";
  tuttiIbDescriptor *d = &reverse_->control->descriptors[0];
  tuttiStoreRelease(&d->first, 1);
  tuttiStoreRelease(&d->last, 1);
  Look(60);
  EXPECT_EQ(TUTTI_IB_RUNNING, reverse_->state);
  Look(2);
  EXPECT_EQ(TUTTI_IB_BROKEN, reverse_->state);
}

/* The peer has made the queue pairs anew, and the receives of the old ones were given up. */
TEST_F(IbEnd, WhatOldQueuePairsGaveUpSaysNothingOfNewOnes) {
  Connect();
  OpenTwin();
  AwaitImmediates();
  ibv_wc last = Immediate(TUTTI_IB_RECEIVES - 1, 0);
  last.status = IBV_WC_WR_FLUSH_ERR;
  device.done = {last};
  OfferToTwin();
  EXPECT_TRUE(device.done.empty());
  tuttiIbDescriptor *d = &reverse_->control->descriptors[0];
  tuttiStoreRelease(&d->first, 1);
  tuttiStoreRelease(&d->last, 1);
  Look(60); /* a quarter of the timeout: the immediate may be on its way */
  EXPECT_EQ(TUTTI_IB_RUNNING, reverse_->state) << reverse_->trouble;
}

TEST_F(IbEnd, WhatMemoryHasAndNobodyTellsAnyMoreIsAnError) {
  Connect();
  OpenTwin();
  AwaitImmediates();
  reverse_->ran = true;
  reverse_->meet.parts[0].closed = true;
  reverse_->state = TUTTI_IB_BROKEN;
  Look(20);
  tuttiProxyTurn turn{};
  bool moved;
  EXPECT_EQ(tuttiSuccess, tuttiIbMeetStep(reverse_, &turn, &moved)) << "nothing has come";
  tuttiIbDescriptor *d = &reverse_->control->descriptors[0];
  tuttiStoreRelease(&d->first, 1);
  tuttiStoreRelease(&d->last, 1);
  Look(2);
  EXPECT_EQ(tuttiSuccess, tuttiIbMeetStep(reverse_, &turn, &moved)) << "it may be on its way";
  Look(2);
  EXPECT_EQ(tuttiSystemError, tuttiIbMeetStep(reverse_, &turn, &moved));
  EXPECT_NE(nullptr, strstr(tuttiErrorText(), "message 0")) << tuttiErrorText();
  EXPECT_NE(nullptr, strstr(tuttiErrorText(), "made0 port 1 has not said so")) << tuttiErrorText();
}

/* A rail whose port was down at init, and comes up after a turn of the node; one more ends its
 * check. It is not used then. */
class IbLateCheck : public IbEnd {
protected:
  void Fail();
};

void IbLateCheck::Fail() {
  static uint8_t gpu[2 * 65536];
  tuttiVerbs.createCq = [](ibv_context *context, int, void *, ibv_comp_channel *, int) {
    auto *cq = new ibv_cq{};
    cq->context = context;
    return cq;
  };
  tuttiVerbs.destroyCq = [](ibv_cq *cq) {
    delete cq;
    return 0;
  };
  tuttiIbRail *rail = &node_.rails[1];
  rail->context = &context_;
  rail->late = true;
  rail->port.gdr = rail->port.gdrRead = TUTTI_GDR_DOWN;
  rail->port.up = 0;
  rail->probe = tuttiVerbs.regMr(nullptr, nullptr, 0, 0);
  node_.gdr.slab.mr[1] = tuttiVerbs.regMr(nullptr, nullptr, 0, 0);
  node_.gdr.probe.memory = gpu;
  tuttiProxyTurn turn{};
  turn.wake = TUTTI_NO_DEADLINE;
  tuttiIbGdrCheckLate(&node_, &turn);
  EXPECT_TRUE(device.posted.empty()) << "it is not up yet";
  EXPECT_EQ(TUTTI_NO_DEADLINE, turn.wake);
  rail->port.up = 1;
  EXPECT_TRUE(rail->late);
  tuttiIbGdrCheckLate(&node_, &turn);
  EXPECT_EQ(2u, device.posted.size());
  EXPECT_NE(TUTTI_NO_DEADLINE, turn.wake);
  EXPECT_FALSE(rail->late);
  EXPECT_EQ(TUTTI_GDR_BROKEN, node_.mine.ports[1].gdr);
  EXPECT_EQ(TUTTI_GDR_BROKEN, node_.mine.ports[1].gdrRead);
  EXPECT_EQ(nullptr, node_.gdr.slab.mr[1]);
  EXPECT_EQ(nullptr, rail->probe);
  EXPECT_EQ(1u, node_.changes);
  node_.gdr.probe.memory = nullptr;
}

/* The devices that are made up move no bytes, so the pattern does not come back. */
TEST_F(IbLateCheck, APatternThatDoesNotComeBackFailsIt) {
  Fail();
}

TEST_F(IbLateCheck, CompletionsThatCannotBeReadFailIt) {
  device.pollFails = true;
  Fail();
}

TEST_F(IbEnd, ADeviceWhoseCompletionsCannotBeReadIsLeft) {
  device.pollFails = true;
  tuttiIbPoll(&node_);
  for (int i = 0; i < kRails; i++) {
    EXPECT_TRUE(node_.rails[i].gone);
    EXPECT_FALSE(node_.rails[i].port.up);
  }
  EXPECT_EQ((unsigned)kRails, node_.changes);
  tuttiIbPoll(&node_);
  EXPECT_EQ((unsigned)kRails, node_.changes) << "once";
}

} // namespace
#endif

// Shared receive queues, completion channels and inline data.
#include "end.h"

#include <fcntl.h>

#include <cerrno>

namespace {

// Gives an end, which is not connected yet, a completion queue with a channel, and a shared receive
// queue; either may be NULL.
void equip(End &end, ibv_comp_channel *channel, ibv_srq *srq) {
  ASSERT_EQ(ibv_destroy_qp(end.qp) | ibv_destroy_cq(end.cq), 0);
  end.cq = ibv_create_cq(end.context, 64, &end, channel, 0);
  ibv_qp_init_attr init = {};
  init.send_cq = init.recv_cq = end.cq;
  init.srq = srq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {.max_send_wr = 4,
              .max_recv_wr = 4,
              .max_send_sge = 2,
              .max_recv_sge = 2,
              .max_inline_data = 64};
  end.qp = ibv_create_qp(end.pd, &init);
  ASSERT_NE(end.qp, nullptr);
}

void join(End &a, End &b) {
  EXPECT_EQ(a.toInit() | b.toInit(), 0);
  EXPECT_EQ(a.toRtr(b.qp->qp_num) | b.toRtr(a.qp->qp_num), 0);
  EXPECT_EQ(a.toRts() | b.toRts(), 0);
}

int postFlagged(End &end, ibv_wr_opcode opcode, unsigned flags, ibv_sge sge, uint64_t remote = 0,
                uint32_t rkey = 0) {
  ibv_send_wr wr = {}, *bad = nullptr;
  wr.opcode = opcode;
  wr.send_flags = flags;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.wr.rdma.remote_addr = remote;
  wr.wr.rdma.rkey = rkey;
  return ibv_post_send(end.qp, &wr, &bad);
}

// ---- shared receive queues --------------------------------------------------------------------

ibv_srq *createSrq(const End &end, uint32_t requests) {
  ibv_srq_init_attr attr = {};
  attr.attr.max_wr = requests;
  attr.attr.max_sge = 1;
  return ibv_create_srq(end.pd, &attr);
}

int postShared(ibv_srq *srq, End &end, uint64_t id, size_t offset) {
  ibv_sge sge = {end.at(offset), 64, end.mr->lkey};
  ibv_recv_wr wr = {}, *bad = nullptr;
  wr.wr_id = id;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  return ibv_post_srq_recv(srq, &wr, &bad);
}

TEST(SharedReceives, ServeWhoeverComesFirst) {
  End b, c, fromB, fromC;
  ibv_srq *srq = createSrq(b, 8);
  ASSERT_NE(srq, nullptr);
  equip(b, nullptr, srq);
  // Another queue pair of the same device context takes from it, too.
  ibv_qp_init_attr init = {};
  init.send_cq = init.recv_cq = b.cq;
  init.srq = srq;
  init.qp_type = IBV_QPT_RC;
  init.cap.max_send_wr = 4;
  init.cap.max_send_sge = 1;
  std::swap(b.qp, c.qp);
  ASSERT_EQ(ibv_destroy_qp(b.qp), 0); // that which was c's
  b.qp = ibv_create_qp(b.pd, &init);
  ASSERT_NE(b.qp, nullptr);
  join(b, fromB);
  join(c, fromC); // of b's context
  EXPECT_EQ(ibv_destroy_srq(srq), EBUSY);
  EXPECT_EQ(b.postRecv(8), EINVAL) << "it has no receives of its own";
  for (uint64_t id = 1; id <= 4; id++)
    EXPECT_EQ(postShared(srq, b, id, id * 64), 0);
  End *const senders[] = {&fromC, &fromB, &fromB, &fromC};
  for (int i = 0; i < 4; i++) {
    End &from = *senders[i];
    memset(from.memory.data(), 'a' + i, 64);
    EXPECT_EQ(from.post(IBV_WR_SEND, 64), 0);
    EXPECT_EQ(from.next().status, IBV_WC_SUCCESS);
    ibv_wc wc = b.next();
    EXPECT_EQ(wc.wr_id, (uint64_t)i + 1) << "in the order in which they were posted";
    EXPECT_EQ(wc.qp_num, &from == &fromB ? b.qp->qp_num : c.qp->qp_num);
    EXPECT_EQ(b.memory[(size_t)(i + 1) * 64 + 63], 'a' + i);
  }
  EXPECT_EQ(fromB.post(IBV_WR_SEND, 8), 0);
  EXPECT_EQ(fromB.next().status, IBV_WC_RNR_RETRY_EXC_ERR) << "none is left";
  EXPECT_EQ(ibv_destroy_qp(b.qp) | ibv_destroy_qp(c.qp), 0);
  b.qp = c.qp = nullptr;
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

TEST(SharedReceives, TellWhenFewAreLeft) {
  End a, b;
  ibv_srq *srq = createSrq(b, 8);
  equip(b, nullptr, srq);
  join(a, b);
  for (uint64_t id = 0; id < 4; id++)
    EXPECT_EQ(postShared(srq, b, id, 0), 0);
  ibv_srq_attr attr = {};
  attr.srq_limit = 3;
  EXPECT_EQ(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
  EXPECT_EQ(ibv_query_srq(srq, &attr), 0);
  EXPECT_EQ(attr.srq_limit, 3u);
  EXPECT_EQ(fcntl(b.context->async_fd, F_SETFL, O_NONBLOCK), 0);
  for (int left = 3; left >= 1; left--) {
    EXPECT_EQ(a.post(IBV_WR_SEND, 8), 0);
    EXPECT_EQ(a.next().status, IBV_WC_SUCCESS);
    ibv_async_event event = {};
    int none = ibv_get_async_event(b.context, &event);
    EXPECT_EQ(none == 0, left == 2) << "once, with fewer than the limit";
    if (none) continue;
    EXPECT_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
    EXPECT_EQ(event.element.srq, srq);
    ibv_ack_async_event(&event);
  }
  EXPECT_EQ(ibv_destroy_qp(b.qp), 0);
  b.qp = nullptr;
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

TEST(SharedReceives, AreFullAtTheirSize) {
  End b;
  ibv_srq *srq = createSrq(b, 2);
  EXPECT_EQ(postShared(srq, b, 1, 0) | postShared(srq, b, 2, 0), 0);
  EXPECT_EQ(postShared(srq, b, 3, 0), ENOMEM);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

// ---- channels
// -----------------------------------------------------------------------------------

class Channels : public testing::Test {
protected:
  End a_, b_;
  ibv_comp_channel *channel_ = nullptr;

  void SetUp() override {
    channel_ = ibv_create_comp_channel(b_.context);
    ASSERT_NE(channel_, nullptr);
    equip(b_, channel_, nullptr);
    join(a_, b_);
    for (int i = 0; i < 4; i++)
      EXPECT_EQ(b_.postRecv(64), 0);
  }
  void TearDown() override {
    EXPECT_EQ(ibv_destroy_comp_channel(channel_), EBUSY) << "its queue is there";
    EXPECT_EQ(ibv_destroy_qp(b_.qp) | ibv_destroy_cq(b_.cq), 0);
    EXPECT_EQ(ibv_destroy_comp_channel(channel_), 0);
    b_.qp = nullptr;
    b_.cq = ibv_create_cq(b_.context, 1, nullptr, nullptr, 0); // which End destroys
  }
  void send(unsigned flags = 0) {
    ibv_sge sge = {a_.at(), 8, a_.mr->lkey};
    EXPECT_EQ(postFlagged(a_, IBV_WR_SEND, IBV_SEND_SIGNALED | flags, sge), 0);
    EXPECT_EQ(a_.next().status, IBV_WC_SUCCESS); // so the receive is complete, too
  }
  // Nobody polls: what comes is moved by others.
  bool event(int ms) {
    pollfd p = {channel_->fd, POLLIN, 0};
    return poll(&p, 1, ms) == 1;
  }
  void take() {
    ibv_cq *cq = nullptr;
    void *context = nullptr;
    ASSERT_TRUE(event(20000));
    EXPECT_EQ(ibv_get_cq_event(channel_, &cq, &context), 0);
    EXPECT_EQ(cq, b_.cq);
    EXPECT_EQ(context, &b_);
    ibv_ack_cq_events(cq, 1);
  }
};

TEST_F(Channels, HaveOneEventForEachTimeTheQueueWasArmed) {
  send();
  EXPECT_FALSE(event(0)) << "it was not armed";
  EXPECT_EQ(ibv_req_notify_cq(b_.cq, 0), 0);
  EXPECT_FALSE(event(0)) << "what was there before counts for nothing";
  send();
  send();
  take();
  EXPECT_FALSE(event(0));
  EXPECT_EQ(ibv_req_notify_cq(b_.cq, 0), 0);
  send();
  take();
}

TEST_F(Channels, MayWantSolicitedCompletionsOnly) {
  EXPECT_EQ(ibv_req_notify_cq(b_.cq, 1), 0);
  send();
  EXPECT_FALSE(event(0));
  send(IBV_SEND_SOLICITED);
  take();
}

TEST_F(Channels, AnErrorIsSolicited) {
  EXPECT_EQ(ibv_req_notify_cq(b_.cq, 1), 0);
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_ERR;
  EXPECT_EQ(ibv_modify_qp(b_.qp, &attr, IBV_QP_STATE), 0);
  take();
}

TEST_F(Channels, WakeAThreadThatSleeps) {
  EXPECT_EQ(ibv_req_notify_cq(b_.cq, 0), 0);
  ibv_sge sge = {a_.at(), 8, a_.mr->lkey};
  EXPECT_EQ(postFlagged(a_, IBV_WR_SEND, IBV_SEND_SIGNALED, sge), 0);
  take();
  EXPECT_EQ(b_.next().status, IBV_WC_SUCCESS);
}

// ---- inline data ------------------------------------------------------------------------------

// Both ends have more to do than the first request when the buffer is written to again.
TEST(Inline, TheBufferMayBeOverwrittenAtOnce) {
  Pair p;
  char bytes[64];
  for (int i = 0; i < 4; i++) {
    memset(bytes, 'a' + i, sizeof bytes);
    ibv_sge sge = {(uintptr_t)bytes, sizeof bytes, 0}; // and needs no registration
    EXPECT_EQ(postFlagged(p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | IBV_SEND_INLINE, sge,
                          p.b.at((size_t)i * 64), p.b.mr->rkey),
              0);
    memset(bytes, 'x', sizeof bytes);
  }
  for (int i = 0; i < 4; i++)
    EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
  for (size_t i = 0; i < 256; i++)
    ASSERT_EQ(p.b.memory[i], 'a' + (char)(i / 64)) << i;
}

// Sent again, it has the bytes of then still.
TEST(Inline, TheBytesAreKeptUntilTheyAreAcknowledged) {
  if (!configured("fault lost nth=1")) return;
  Pair p;
  char bytes[64];
  memset(bytes, 'a', sizeof bytes);
  ibv_sge sge = {(uintptr_t)bytes, sizeof bytes, 0};
  EXPECT_EQ(postFlagged(p.a, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | IBV_SEND_INLINE, sge, p.b.at(),
                        p.b.mr->rkey),
            0);
  memset(bytes, 'x', sizeof bytes);
  EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(std::string(p.b.memory.data(), 64), std::string(64, 'a'));
}

TEST(Inline, NoMoreThanTheQueuePairTakesAndNothingThatReturns) {
  Pair p;
  ibv_sge sge = {p.a.at(), 65, p.a.mr->lkey};
  EXPECT_EQ(postFlagged(p.a, IBV_WR_SEND, IBV_SEND_INLINE, sge), EINVAL);
  sge.length = 8;
  EXPECT_EQ(postFlagged(p.a, IBV_WR_RDMA_READ, IBV_SEND_INLINE, sge, p.b.at(), p.b.mr->rkey),
            EINVAL);
}

} // namespace

/* Ends and registrations of NET/IB on devices that are made up, one call at a time. */
#ifdef TUTTI_HAVE_VERBS
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <deque>
#include <vector>

#include "transport/ib/wire.h"
#include "transport/net_pair.h"
#include "transport/region.h"
extern "C" {
#include "transport/ib/endpoint.h"
}

namespace {

constexpr int kRails = 2;
constexpr size_t kSlot = 4096;

/* What the devices saw, and are to say. */
struct {
  int registered, access, refusing; /* refusing: the number of registrations that still pass */
  std::vector<int> posted;          /* flags of requests */
  std::deque<ibv_wc> done;
} device;

int postSend(ibv_qp *qp, ibv_send_wr *wr, ibv_send_wr **) {
  for (; wr; wr = wr->next) {
    device.posted.push_back(static_cast<int>(wr->send_flags));
    if (!(wr->send_flags & IBV_SEND_SIGNALED)) continue;
    ibv_wc wc{};
    wc.wr_id = wr->wr_id;
    wc.qp_num = qp->qp_num;
    device.done.push_back(wc);
  }
  return 0;
}

int pollCq(ibv_cq *, int n, ibv_wc *wc) {
  int got = 0;
  for (; got < n && !device.done.empty(); device.done.pop_front())
    wc[got++] = device.done.front();
  return got;
}

/* A send endpoint that has met its peer, to which `peer` is a socket. */
class IbEnd : public testing::Test {
protected:
  tuttiCommView w_{};
  tuttiAtomic32 failed_{};
  tuttiMemAccount memory_{};
  ibv_context context_{};
  ibv_cq cq_{};
  ibv_mr mr_{};
  tuttiIbNode node_{};
  tuttiIbEndpoint e_{};
  tuttiIbEndpoint *reverse_ =
      nullptr; /* by OpenTwin: a receive endpoint for what comes the other way */
  tuttiPeer peers_[2]{};
  tuttiSocketListener listener_{};
  int peer_ = -1;
  const tuttiVerbsTable real_ = tuttiVerbs;
  /* Not a member: what allocates a test need not heed more than the usual alignment. */
  alignas(4096) static inline uint8_t fifo_[4096 + TUTTI_FIFO_DEPTH * kSlot];
  alignas(4096) static inline uint8_t twinFifo_[4096 + TUTTI_FIFO_DEPTH * kSlot];

  void SetUp() override {
    device = {};
    memset(fifo_, 0, sizeof fifo_);
    memset(twinFifo_, 0, sizeof twinFifo_);
    tuttiVerbs.regMr = [](ibv_pd *, void *, size_t, int access) -> ibv_mr * {
      device.access = access;
      if (device.refusing && --device.refusing == 0) {
        errno = ENOMEM;
        return nullptr;
      }
      device.registered++;
      return new ibv_mr{};
    };
    tuttiVerbs.deregMr = [](ibv_mr *mr) {
      device.registered--;
      delete mr;
      return 0;
    };
    tuttiVerbs.createQp = [](ibv_pd *pd, ibv_qp_init_attr *) {
      static uint32_t number = 100;
      auto *qp = new ibv_qp{};
      qp->context = reinterpret_cast<ibv_context *>(pd);
      qp->qp_num = number++;
      return qp;
    };
    tuttiVerbs.modifyQp = [](ibv_qp *, ibv_qp_attr *, int) { return 0; };
    tuttiVerbs.destroyQp = [](ibv_qp *qp) {
      delete qp;
      return 0;
    };
    context_.ops.post_send = postSend;
    context_.ops.poll_cq = pollCq;
    cq_.context = &context_;
    w_.failed = &failed_;
    w_.memory = &memory_;
    w_.peers = peers_;
    w_.timeoutMs = 60000;
    node_.view = &w_;
    node_.nrails = node_.mine.nports = kRails;
    for (int i = 0; i < kRails; i++) {
      tuttiIbRail *rail = &node_.rails[i];
      rail->pd = reinterpret_cast<ibv_pd *>(&context_);
      rail->cq = &cq_;
      rail->cqe = 1 << 20;
      snprintf(rail->port.device, sizeof rail->port.device, "made%d", i);
      rail->port.up = rail->port.port = rail->port.mtu = 1;
      node_.mine.ports[i] = rail->port;
      e_.mr[i] = &mr_;
    }
    e_.theirs = node_.mine;
    e_.node = &node_;
    e_.meet.fifo = Fifo(fifo_, TUTTI_SEND);
    e_.control = reinterpret_cast<tuttiIbControl *>(e_.meet.fifo.readers + 1);
    e_.meet.view = &w_;
    e_.meet.nparts = 1;
    int sv[2];
    ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv));
    e_.meet.parts[0].source.fd = sv[0];
    peer_ = sv[1];
  }
  void TearDown() override {
    if (reverse_) CloseTwin();
    tuttiIbQueuePairsClose(&e_, true);
    close(e_.meet.parts[0].source.fd);
    close(peer_);
    EXPECT_EQ(0, device.registered);
    tuttiVerbs = real_;
  }
  static tuttiConn Fifo(uint8_t *memory, tuttiDirection direction) {
    tuttiConn c{};
    c.descriptors = reinterpret_cast<tuttiSlotDescriptor *>(memory);
    c.readers = reinterpret_cast<tuttiReader *>(c.descriptors + TUTTI_FIFO_DEPTH);
    c.data = memory + 4096;
    c.slotBytes = kSlot;
    c.peer = 1;
    c.channel = 3;
    c.direction = direction;
    return c;
  }
  tuttiProxyState Turn(tuttiIbEndpoint *e, uint64_t *wake = nullptr) {
    tuttiProxyTurn turn{};
    turn.wake = TUTTI_NO_DEADLINE;
    tuttiProxyState state = tuttiNetIb.progress(e, &turn);
    EXPECT_EQ(tuttiSuccess, turn.result) << tuttiErrorText();
    if (wake) *wake = turn.wake;
    return state;
  }
  /* Links as if the peer had answered. */
  static void Run(tuttiIbEndpoint *e) {
    e->nparts = 1;
    e->parts[0] = &e->qps[0];
    e->state = TUTTI_IB_RUNNING;
  }
  void Connect() {
    EXPECT_EQ(3u, Offer());
    Run(&e_);
  }
  void OpenTwin() {
    void *end;
    tuttiConn c = Fifo(twinFifo_, TUTTI_RECV);
    tuttiNetHello hello{};
    ASSERT_EQ(tuttiSuccess, tuttiNetIb.connect(&w_, &node_, &listener_, &hello, &c, &end));
    reverse_ = static_cast<tuttiIbEndpoint *>(end);
    EXPECT_EQ(TUTTI_PROXY_IDLE, Turn(reverse_));
    reverse_->mr[0] = new ibv_mr{};
    device.registered++;
    reverse_->nqps = 1;
    reverse_->qps[0].end = reverse_;
    reverse_->qps[0].qp = tuttiVerbs.createQp(node_.rails[0].pd, nullptr);
    Run(reverse_);
  }
  void CloseTwin() {
    tuttiNetIb.closeEndpoint(reverse_);
    reverse_ = nullptr;
  }
  /* The peer's message m is written, and says that the peer's reader has taken so many; this side's
   * reader takes it. */
  void Receive(uint64_t m, uint64_t taken) {
    tuttiIbDescriptor *d = &reverse_->control->descriptors[m % TUTTI_FIFO_DEPTH];
    d->credit = taken;
    d->where = TUTTI_WHERE_INLINE;
    d->bytes = 8;
    tuttiStoreRelease(&d->first, m + 1);
    tuttiStoreRelease(&d->last, m + 1);
    EXPECT_EQ(TUTTI_PROXY_MOVED, Turn(reverse_));
    tuttiStoreRelease(&reverse_->meet.fifo.readers->credit, m + 1);
  }
  tuttiResult_t Step() {
    tuttiProxyTurn turn{};
    bool moved = false;
    return tuttiIbMeetStep(&e_, &turn, &moved);
  }
  /* Offers qps again; the rails of those in the offered, by bit. */
  unsigned Offer() {
    tuttiIbHandshake offered;
    unsigned rails = 0;
    e_.state = TUTTI_IB_BROKEN;
    EXPECT_EQ(tuttiSuccess, Step()) << tuttiErrorText();
    EXPECT_EQ(static_cast<ssize_t>(sizeof offered),
              recv(peer_, &offered, sizeof offered, MSG_DONTWAIT));
    for (int i = 0; i < offered.nqps; i++)
      if (offered.qps[i].qpn) rails |= 1u << e_.qps[i].rail;
    return rails;
  }
  void Publish(uint64_t m, uint32_t where = TUTTI_WHERE_INLINE) {
    tuttiSlotDescriptor *slot = &e_.meet.fifo.descriptors[m % TUTTI_FIFO_DEPTH];
    slot->where = where;
    slot->bytes = 8;
    tuttiStoreRelease(&slot->seq, m + 1);
  }
  void SendSmall(uint64_t m) {
    Publish(m);
    EXPECT_EQ(TUTTI_PROXY_MOVED, Turn(&e_));
    tuttiIbPoll(&node_);
  }
};

TEST_F(IbEnd, ARailThatHasFailedIsUsedAgainWhenNoOtherIsLeft) {
  EXPECT_EQ(3u, Offer());
  e_.avoid = 1;
  EXPECT_EQ(2u, Offer());
  e_.avoid = 3;
  EXPECT_EQ(3u, Offer());
  EXPECT_EQ(0u, e_.avoid) << "the next one that fails is avoided alone";
  e_.avoid = 2;
  EXPECT_EQ(1u, Offer());
}

TEST_F(IbEnd, OneSmallMessageShowsThatNewLinksWork) {
  Connect();
  e_.deadline = tuttiNow() + net::kSecond;
  SendSmall(0);
  ASSERT_EQ(1u, device.posted.size());
  EXPECT_TRUE(device.posted[0] & IBV_SEND_SIGNALED);
  EXPECT_EQ(0u, e_.deadline);
  SendSmall(1);
  ASSERT_EQ(2u, device.posted.size());
  EXPECT_FALSE(device.posted[1] & IBV_SEND_SIGNALED);
}

TEST_F(IbEnd, AnExchangeCostsEachSideOneRequestForEachMessage) {
  Connect();
  OpenTwin();
  for (uint64_t m = 0; m < 100; m++) {
    SendSmall(m);
    EXPECT_EQ(m, e_.control->descriptors[m % TUTTI_FIFO_DEPTH].credit);
    Receive(m, m);
    EXPECT_EQ(TUTTI_PROXY_IDLE, Turn(reverse_));
  }
  EXPECT_EQ(100u, device.posted.size());
  EXPECT_EQ(99u, e_.credit) << "by the peer's lines alone";
}

TEST_F(IbEnd, WithoutMessagesThatGoTheOtherWayTheSenderIsToldAllTheSame) {
  Connect();
  OpenTwin();
  for (uint64_t m = 0; m < 100; m++) {
    Receive(m, 0);
    EXPECT_EQ(TUTTI_PROXY_IDLE, Turn(reverse_));
    EXPECT_LT(m + 1, reverse_->credit + TUTTI_FIFO_DEPTH / 2 + 1) << "half of the FIFO at most";
    tuttiIbPoll(&node_);
  }
  EXPECT_EQ(25u, device.posted.size());
}

TEST_F(IbEnd, WhatIsBehindAPayloadIsToldBySomethingElse) {
  Connect();
  OpenTwin();
  Publish(0, TUTTI_WHERE_SLOT);
  EXPECT_EQ(TUTTI_PROXY_MOVED, Turn(&e_));
  for (uint64_t m = 0; m < 3; m++)
    Receive(m, 0);
  Publish(1);
  EXPECT_EQ(TUTTI_PROXY_MOVED, Turn(&e_));
  EXPECT_EQ(0u, reverse_->credit);
  tuttiIbPoll(&node_);
  SendSmall(2);
  EXPECT_EQ(3u, reverse_->credit);
}

TEST_F(IbEnd, ALineThatIsWrittenAgainTellsWhatIsKnownThen) {
  Connect();
  OpenTwin();
  SendSmall(0);
  Receive(0, 0);
  e_.posted = 0; /* the peer has not got it, and the qps are new */
  EXPECT_EQ(TUTTI_PROXY_MOVED, Turn(&e_));
  EXPECT_EQ(1u, e_.control->descriptors[0].credit);
  EXPECT_EQ(1u, reverse_->credit);
}

TEST_F(IbEnd, ANumberOfMessagesThatCannotBeIsNotBelieved) {
  Connect();
  OpenTwin();
  for (uint64_t m = 0; m < 4; m++)
    SendSmall(m);
  Receive(0, 2);
  EXPECT_EQ(2u, e_.credit);
  Receive(1, 5);
  Receive(2, UINT64_MAX);
  Receive(3, 1);
  EXPECT_EQ(2u, e_.credit);
  Receive(4, 4);
  EXPECT_EQ(4u, e_.credit);
}

TEST_F(IbEnd, ANumberFromElsewhereDoesNotShowThatNewLinksWork) {
  Connect();
  OpenTwin();
  for (uint64_t m = 0; m < 4; m++)
    SendSmall(m);
  e_.deadline = tuttiNow() + net::kSecond;
  Receive(0, 4);
  EXPECT_EQ(4u, tuttiLoadRelaxed(&e_.confirmed));
  EXPECT_NE(0u, e_.deadline);
}

TEST_F(IbEnd, AnEndThatIsClosedLeavesItsTwinAlone) {
  Connect();
  SendSmall(0);
  EXPECT_EQ(nullptr, e_.reverse);
  OpenTwin();
  EXPECT_EQ(reverse_, e_.reverse);
  EXPECT_EQ(&e_, reverse_->reverse);
  CloseTwin();
  EXPECT_EQ(nullptr, e_.reverse);
  EXPECT_EQ(&e_, node_.endpoints);
  SendSmall(1);
  OpenTwin();
  EXPECT_EQ(reverse_, e_.reverse) << "opened again";
}

TEST_F(IbEnd, AMessageThatWaitsForRoomIsLookedAfter) {
  Connect();
  for (uint64_t m = 0; m < TUTTI_FIFO_DEPTH; m++)
    SendSmall(m);
  uint64_t wake;
  EXPECT_EQ(TUTTI_PROXY_IDLE, Turn(&e_, &wake));
  EXPECT_EQ(TUTTI_NO_DEADLINE, wake);
  Publish(TUTTI_FIFO_DEPTH);
  EXPECT_EQ(TUTTI_PROXY_WAITING, Turn(&e_, &wake)) << "nothing says when the peer has written";
  EXPECT_NE(TUTTI_NO_DEADLINE, wake);
}

TEST_F(IbEnd, AFirstAnswerIsAwaitedButNoMendingIsForLong) {
  e_.state = TUTTI_IB_OFFERED;
  e_.deadline = 1;
  EXPECT_EQ(tuttiSuccess, Step()) << tuttiErrorText();
  EXPECT_GT(e_.deadline, tuttiNow());
  e_.deadline = 1;
  snprintf(e_.trouble, sizeof e_.trouble, "by a test");
  EXPECT_EQ(tuttiRemoteError, Step());
  EXPECT_NE(nullptr, strstr(tuttiErrorText(), "could not be mended")) << tuttiErrorText();
}

/* A device's events, and the port's state by the time they are read. */
struct {
  std::deque<std::pair<ibv_event_type, int>> queue; /* with the number of the port */
  ibv_port_state state;
} news;

TEST_F(IbEnd, APortThatWasDownIsNoticedLater) {
  tuttiVerbs.getAsyncEvent = [](ibv_context *, ibv_async_event *event) {
    if (news.queue.empty()) return -1;
    event->event_type = news.queue.front().first;
    event->element.port_num = news.queue.front().second;
    news.queue.pop_front();
    return 0;
  };
  tuttiVerbs.ackAsyncEvent = [](ibv_async_event *) {};
  tuttiVerbs.queryPort = [](ibv_context *, uint8_t, _compat_ibv_port_attr *attr) {
    reinterpret_cast<ibv_port_attr *>(attr)->state = news.state;
    return 0;
  };
  const struct {
    std::deque<std::pair<ibv_event_type, int>> queue;
    ibv_port_state state;
    bool up;
    uint32_t changes;
  } cases[] = {
      {{{IBV_EVENT_PORT_ERR, 1}, {IBV_EVENT_PORT_ACTIVE, 1}}, IBV_PORT_ACTIVE, true, 2},
      {{{IBV_EVENT_PORT_ERR, 1}}, IBV_PORT_ACTIVE, true, 2}, /* what follows is not here yet */
      {{{IBV_EVENT_PORT_ACTIVE, 1}}, IBV_PORT_ACTIVE, true, 0},
      {{{IBV_EVENT_PORT_ERR, 2}}, IBV_PORT_ACTIVE, true, 0}, /* another port of the device */
      {{{IBV_EVENT_PORT_ERR, 1}}, IBV_PORT_DOWN, false, 1},
      {{{IBV_EVENT_PORT_ERR, 1}}, IBV_PORT_DOWN, false, 0},
      {{{IBV_EVENT_PORT_ACTIVE, 1}}, IBV_PORT_ACTIVE, true, 1},
  };
  for (const auto &c : cases) {
    uint32_t before = node_.changes;
    node_.rails[0].events.readable = true;
    news = {c.queue, c.state};
    EXPECT_TRUE(tuttiIbNodeEvents(&node_));
    EXPECT_EQ(c.up, node_.rails[0].port.up) << &c - cases;
    EXPECT_EQ(c.up, node_.mine.ports[0].up) << &c - cases;
    EXPECT_EQ(c.changes, node_.changes - before) << &c - cases;
    EXPECT_FALSE(node_.rails[0].events.readable);
  }
}

TEST_F(IbEnd, ARegistrationStaysWhileAMessageIsUnderWay) {
  uint8_t memory[100] = {};
  uint64_t first, second;
  tuttiIbRegion *a, *b, *none;
  ASSERT_EQ(tuttiSuccess, tuttiRegionAdd(memory, sizeof memory, &first));
  ASSERT_EQ(tuttiSuccess, tuttiRegionAdd(memory, sizeof memory, &second));
  ASSERT_EQ(tuttiSuccess, tuttiIbBorrow(&node_, memory, 50, &a));
  EXPECT_EQ(kRails, device.registered);
  EXPECT_EQ(0, device.access & IBV_ACCESS_LOCAL_WRITE) << "read-only memory can be sent, too";
  EXPECT_TRUE(tuttiRegionRemove(second)); /* another communicator gives it up */
  ASSERT_EQ(tuttiSuccess, tuttiIbBorrow(&node_, memory, 50, &b));
  EXPECT_NE(a, b);
  EXPECT_EQ(2 * kRails, device.registered) << "a message is under way out of the old one";
  /* It passes with its message. */
  e_.source[0] = a;
  tuttiIbPassTo(&e_, 1);
  EXPECT_EQ(nullptr, e_.source[0]);
  EXPECT_EQ(kRails, device.registered);
  tuttiIbReturn(b);
  EXPECT_EQ(kRails, device.registered) << "for the next message";
  EXPECT_TRUE(tuttiRegionRemove(first));
  ASSERT_EQ(tuttiSuccess, tuttiIbBorrow(&node_, memory, 50, &none));
  EXPECT_EQ(nullptr, none);
}

TEST_F(IbEnd, MemoryThatADeviceRefusesIsNoFailure) {
  uint8_t memory[100] = {};
  uint64_t id;
  tuttiIbRegion *r;
  ASSERT_EQ(tuttiSuccess, tuttiRegionAdd(memory, sizeof memory, &id));
  device.refusing = kRails; /* the last rail does */
  for (int i = 0; i < 2; i++) {
    ASSERT_EQ(tuttiSuccess, tuttiIbBorrow(&node_, memory, 50, &r)) << tuttiErrorText();
    EXPECT_EQ(nullptr, r);
    EXPECT_EQ(0, device.registered) << "by all rails or none, and asked once";
  }
  EXPECT_TRUE(tuttiRegionRemove(id));
  ASSERT_EQ(tuttiSuccess, tuttiIbBorrow(&node_, memory, 50, &r));
}

} // namespace
#endif

/* Ends and registrations of NET/IB on devices that are made up, one call at a time. */
#ifdef TUTTI_HAVE_VERBS
#include <arpa/inet.h>
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
  std::vector<uint64_t> receives;   /* their ids */
  std::deque<ibv_wc> done;
  bool pollFails;
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

int postRecv(ibv_qp *, ibv_recv_wr *wr, ibv_recv_wr **) {
  device.receives.push_back(wr->wr_id);
  return 0;
}

int pollCq(ibv_cq *, int n, ibv_wc *wc) {
  int got = 0;
  if (device.pollFails) return -1;
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
    tuttiVerbs.regMrIova2 = nullptr;
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
    tuttiVerbs.queryPort = [](ibv_context *, uint8_t, _compat_ibv_port_attr *) { return 0; };
    tuttiVerbs.destroyQp = [](ibv_qp *qp) {
      delete qp;
      return 0;
    };
    context_.ops.post_send = postSend;
    context_.ops.post_recv = postRecv;
    context_.ops.poll_cq = pollCq;
    cq_.context = &context_;
    w_.failed = &failed_;
    w_.memory = &memory_;
    w_.peers = peers_;
    w_.nranks = 2;
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
  /* What the peer could tell: all is as it was. */
  tuttiIbHandshake Told(tuttiIbHandshakeKind kind) const {
    tuttiIbHandshake h{};
    h.magic = TUTTI_IB_MAGIC;
    h.kind = kind;
    h.epoch = e_.epoch;
    h.slotBytes = kSlot;
    h.control = h.data = 4096;
    h.nports = e_.theirs.nports;
    std::copy(e_.theirs.ports, e_.theirs.ports + kRails, h.ports);
    return h;
  }
  void Tell(const tuttiIbHandshake &h) {
    ASSERT_EQ(static_cast<ssize_t>(sizeof h), send(peer_, &h, sizeof h, 0));
    e_.meet.parts[0].source.readable = true;
    EXPECT_EQ(tuttiSuccess, Step()) << tuttiErrorText();
  }
  /* Queue pairs of these rails, by bit, fail at the peer; the offer that follows is made at once.
   */
  void FailAtPeer(unsigned rails) {
    tuttiIbHandshake h = Told(TUTTI_IB_AGAIN);
    h.failed = rails;
    Tell(h);
    e_.retryAt = 0;
  }
  /* The peer's ports in the offer that the endpoint makes, by bit; 0: none. Its own are rails_. */
  unsigned Next() {
    tuttiIbHandshake offered;
    unsigned ports = rails_ = 0;
    EXPECT_EQ(tuttiSuccess, Step()) << tuttiErrorText();
    if (recv(peer_, &offered, sizeof offered, MSG_DONTWAIT) < 0) return 0;
    for (int i = 0; i < offered.nqps; i++) {
      rails_ |= 1u << offered.qps[i].port[0];
      ports |= 1u << offered.qps[i].port[1];
    }
    return ports;
  }
  unsigned rails_ = 0;
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
  /* Sends messages with payloads, the first ones; returns their completions, which are kept. */
  std::deque<ibv_wc> SendLarge(uint64_t n) {
    std::deque<ibv_wc> done;
    for (uint64_t m = 0; m < n; m++)
      Publish(m, TUTTI_WHERE_SLOT);
    EXPECT_EQ(TUTTI_PROXY_MOVED, Turn(&e_));
    EXPECT_EQ(n, device.done.size());
    done.swap(device.done);
    return done;
  }
  /* Endpoints are looked at for completions that do not come: a quarter of a second each. */
  void Look(int times) {
    for (; times > 0; times--) {
      node_.stallLook = 0;
      tuttiIbLookForStalls(&node_);
    }
  }
  void AwaitImmediates() {
    reverse_->immediate = true;
    tuttiIbAwaitImmediates(&reverse_->qps[0]);
    EXPECT_EQ(unsigned{TUTTI_IB_RECEIVES}, device.receives.size());
  }
  /* The completion of receive number n, which tells of message m. */
  ibv_wc Immediate(size_t n, uint64_t m) const {
    ibv_wc wc{};
    wc.wr_id = device.receives.at(n);
    wc.qp_num = reverse_->qps[0].qp->qp_num;
    wc.imm_data = htonl(tuttiIbImmediate(false, m));
    return wc;
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

TEST_F(IbEnd, WhoClosesBeforeItWorkedHasNotFinished) {
  EXPECT_EQ(3u, Offer());
  shutdown(peer_, SHUT_RDWR);
  e_.meet.parts[0].source.readable = true;
  EXPECT_EQ(tuttiRemoteError, Step());
  EXPECT_NE(nullptr, strstr(tuttiErrorText(), "closed before they had agreed on RDMA queue pairs"))
      << tuttiErrorText();
}

/* In the step in which it begins to work, too, and if that step breaks it. */
TEST_F(IbEnd, WhoClosesOnceItWorksHasFinished) {
  Connect();
  node_.rails[0].port.up = 0;
  node_.changes++;
  shutdown(peer_, SHUT_RDWR);
  e_.meet.parts[0].source.readable = true;
  EXPECT_EQ(tuttiSuccess, Step()) << tuttiErrorText();
  EXPECT_EQ(TUTTI_IB_BROKEN, e_.state);
  EXPECT_EQ(UINT64_MAX, tuttiLoadAcquire(&e_.confirmed)) << "all had arrived";
}

/* A device's events, and the port by the time they are read. */
struct {
  std::deque<std::pair<ibv_event_type, int>> queue; /* with the number of the port */
  ibv_port_state state;
  uint16_t lid;
  ibv_mtu mtu;
  uint8_t gid; /* the last byte of the only one */
} news;

/* Rail 0's port as in `news`, of which an event tells. */
void TellNews(tuttiIbNode *node) {
  tuttiVerbs.getAsyncEvent = [](ibv_context *, ibv_async_event *event) {
    if (news.queue.empty()) return -1;
    event->event_type = news.queue.front().first;
    event->element.port_num = news.queue.front().second;
    news.queue.pop_front();
    return 0;
  };
  tuttiVerbs.ackAsyncEvent = [](ibv_async_event *) {};
  tuttiVerbs.queryPort = [](ibv_context *, uint8_t, _compat_ibv_port_attr *attr) {
    auto *a = reinterpret_cast<ibv_port_attr *>(attr);
    a->state = news.state;
    a->lid = news.lid;
    a->active_mtu = news.mtu;
    return 0;
  };
  tuttiVerbs.queryGidTable = [](ibv_context *, ibv_gid_entry *rows, size_t, uint32_t, size_t) {
    rows[0] = {};
    rows[0].port_num = 1;
    rows[0].gid.raw[15] = news.gid;
    return ssize_t{1};
  };
  tuttiVerbs.eventText = [](ibv_event_type) { return "made up"; };
  node->rails[0].events.readable = true;
  EXPECT_TRUE(tuttiIbNodeEvents(node));
  EXPECT_FALSE(node->rails[0].events.readable);
}

TEST_F(IbEnd, APortThatWasDownIsNoticedLater) {
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
    news = {c.queue, c.state, 0, IBV_MTU_256, 0};
    TellNews(&node_);
    EXPECT_EQ(c.up, node_.rails[0].port.up) << &c - cases;
    EXPECT_EQ(c.up, node_.mine.ports[0].up) << &c - cases;
    EXPECT_EQ(c.changes, node_.changes - before) << &c - cases;
  }
}

TEST_F(IbEnd, AddressesAreReadAnewAndTold) {
  Connect();
  news = {{{IBV_EVENT_LID_CHANGE, 1}}, IBV_PORT_ACTIVE, 77, IBV_MTU_2048, 9};
  TellNews(&node_);
  EXPECT_EQ(1u, node_.changes);
  EXPECT_EQ(77, node_.mine.ports[0].lid);
  EXPECT_EQ(IBV_MTU_2048, node_.mine.ports[0].mtu);
  ASSERT_EQ(1, node_.mine.ports[0].ngids);
  EXPECT_EQ(9, node_.mine.ports[0].gids[0].gid[15]);
  EXPECT_EQ(3u, Offer());
  EXPECT_EQ(77, e_.out.ports[0].lid);
  EXPECT_EQ(9, e_.out.ports[0].gids[0].gid[15]);
  news.mtu = static_cast<ibv_mtu>(0); /* as a port that is down may say */
  news.queue = {{IBV_EVENT_LID_CHANGE, 1}};
  TellNews(&node_);
  EXPECT_EQ(IBV_MTU_2048, node_.mine.ports[0].mtu);
}

TEST_F(IbEnd, QueuePairsGoWhereThePeersPortsAreUp) {
  Connect();
  tuttiIbHandshake h = Told(TUTTI_IB_NEWS);
  h.ports[0].up = 0;
  Tell(h);
  EXPECT_EQ(2u, Next()) << "rail 0 of this side joins the other port of the peer's";
  EXPECT_EQ(3u, rails_);
  Run(&e_);
  Tell(h);
  EXPECT_EQ(0u, Next()) << "that is known";
  h.ports[0].up = 1;
  Tell(h);
  EXPECT_EQ(3u, Next());
  Run(&e_);
  h.ports[0].up = h.ports[1].up = 0;
  Tell(h);
  EXPECT_EQ(0u, Next()) << "nothing is better: time may help";
}

/* The channel's rail alone, the same at both ends, and others only while it does not work. */
TEST_F(IbEnd, AChannelKeepsToItsRailWhileThatWorks) {
  e_.railed = true;
  e_.rail = tuttiIbPair{{1, 0}, {0, 0}};
  EXPECT_EQ(2u, Offer());
  EXPECT_EQ(1, e_.nqps);
  EXPECT_EQ(0, e_.qps[0].pair.port[1]);
  Run(&e_);
  tuttiIbHandshake h = Told(TUTTI_IB_NEWS);
  h.ports[0].up = 0;
  Tell(h);
  EXPECT_EQ(2u, Next());
  EXPECT_EQ(3u, rails_);
  Run(&e_);
  h.ports[0].up = 1;
  Tell(h);
  EXPECT_EQ(1u, Next());
  EXPECT_EQ(2u, rails_) << "back to it";
  Run(&e_);
  e_.avoid = 1u << 1;
  EXPECT_EQ(1u, Offer()) << "it has failed";
}

TEST_F(IbEnd, ARailThatFailedAtTheReceiverIsAvoided) {
  Connect();
  FailAtPeer(1u << 1);
  EXPECT_NE(0u, Next());
  EXPECT_EQ(1u, rails_);
}

/* A way that has failed while both its ports stay up tells nobody when it is good again. */
TEST_F(IbEnd, ARailThatHasFailedIsTriedAgainAfterAWhile) {
  Connect();
  const auto fail = [&] {
    Run(&e_);
    FailAtPeer(1u << 1);
    EXPECT_NE(0u, Next());
    EXPECT_EQ(1u, rails_);
    Run(&e_);
    EXPECT_EQ(0u, Next()) << "not at once";
  };
  /* It is tried, and works for so long before it fails again. */
  const auto wait = [&](uint64_t more) {
    e_.avoidUntil = tuttiNow() - 1;
    EXPECT_NE(0u, Next());
    EXPECT_EQ(3u, rails_);
    EXPECT_LE(tuttiNow() - e_.avoidUntil, net::kSecond) << "from the try on";
    e_.avoidUntil -= more;
  };
  fail();
  const uint64_t first = e_.avoidNs, longest = (uint64_t)4 * 7 * 4096 << 18; /* by default */
  EXPECT_GE(first, 20 * (longest / 4));
  wait(0);
  fail();
  EXPECT_EQ(2 * first, e_.avoidNs) << "it fails at once again";
  wait(longest + first);
  fail();
  EXPECT_EQ(4 * first, e_.avoidNs) << "that took the device so long";
  wait(longest + 5 * first);
  fail();
  EXPECT_EQ(first, e_.avoidNs) << "it had worked for long";
  for (int i = 0; i < 20; i++) {
    wait(0);
    fail();
  }
  EXPECT_EQ(64 * first, e_.avoidNs) << "now and then, for ever";
}

/* What makes them used again is no try of theirs. */
TEST_F(IbEnd, RailsThatFailInTurnsAreNotAvoidedForLonger) {
  Connect();
  for (int i = 0; i < 6; i++) {
    Run(&e_);
    FailAtPeer(3u);
    EXPECT_NE(0u, Next());
    EXPECT_EQ(3u, rails_) << "no other is left";
  }
  Run(&e_);
  FailAtPeer(1u << 1);
  EXPECT_EQ((uint64_t)20 * 7 * 4096 << 18, e_.avoidNs);
}

/* Its requests end without any news. */
TEST_F(IbEnd, WithoutAnyDeviceAConnectionIsBroken) {
  Connect();
  for (int i = 0; i < kRails; i++) {
    node_.rails[i].gone = true;
    node_.rails[i].port.up = 0;
  }
  node_.changes++;
  EXPECT_EQ(0u, Next());
  EXPECT_EQ(TUTTI_IB_BROKEN, e_.state);
  e_.deadline = 1;
  EXPECT_EQ(tuttiRemoteError, Step());
  EXPECT_NE(nullptr, strstr(tuttiErrorText(), "made0 port 1")) << tuttiErrorText();
  EXPECT_NE(nullptr, strstr(tuttiErrorText(), "was removed")) << tuttiErrorText();
}

ibv_pd *refuses; /* only compared: whose device makes no queue pair */

ibv_qp *CreateUnlessRefused(ibv_pd *pd, ibv_qp_init_attr *) {
  errno = EIO;
  if (pd == refuses) return nullptr;
  auto *qp = new ibv_qp{};
  qp->qp_num = 5;
  return qp;
}

/* Its port answers as nothing does that is there: it is lost to all connections, not unfit for one.
 */
TEST_F(IbEnd, ADeviceThatHasGoneIsLost) {
  refuses = node_.rails[1].pd = reinterpret_cast<ibv_pd *>(&node_);
  tuttiVerbs.queryPort = [](ibv_context *, uint8_t, _compat_ibv_port_attr *) { return EIO; };
  tuttiVerbs.createQp = CreateUnlessRefused;
  EXPECT_EQ(1u, Offer());
  EXPECT_TRUE(node_.rails[1].gone);
  EXPECT_FALSE(node_.rails[0].gone);
  EXPECT_EQ(0u, e_.unfit);
  EXPECT_EQ(0, e_.out.ports[1].up);
}

TEST_F(IbEnd, ADeviceThatRefusesIsDoneWithout) {
  refuses = node_.rails[1].pd = reinterpret_cast<ibv_pd *>(&node_);
  tuttiVerbs.createQp = CreateUnlessRefused;
  EXPECT_EQ(1u, Offer());
  EXPECT_EQ(2u, e_.unfit);
  EXPECT_EQ(0, e_.out.ports[1].up) << "so the peer does not ask for it";
  refuses = node_.rails[0].pd;
  e_.unfit = 0;
  node_.rails[1].port.up = 0;
  e_.state = TUTTI_IB_BROKEN;
  EXPECT_EQ(tuttiSystemError, Step());
  EXPECT_NE(nullptr, strstr(tuttiErrorText(), "made0 port 1")) << tuttiErrorText();
}

TEST_F(IbEnd, AQueuePairOfAPortThatIsDownWaitsForIt) {
  static int destroyed;
  destroyed = 0;
  tuttiVerbs.destroyQp = [](ibv_qp *qp) {
    destroyed++;
    delete qp;
    return 0;
  };
  Connect();
  node_.rails[0].port.up = 0;
  EXPECT_EQ(2u, Offer());
  EXPECT_EQ(1, destroyed) << "of rail 1";
  EXPECT_EQ(2u, Offer()); /* two queue pairs, one for each of the peer's ports */
  EXPECT_EQ(3, destroyed) << "not the one that waits";
  node_.rails[0].port.up = 1;
  EXPECT_EQ(3u, Offer());
  EXPECT_EQ(6, destroyed);
}

TEST_F(IbEnd, AReceiverTellsOfItsPorts) {
  OpenTwin();
  int sv[2];
  tuttiIbHandshake told;
  ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv));
  reverse_->meet.parts[0].source.fd = sv[0];
  reverse_->theirs = node_.mine;
  for (int i = 0; i < kRails; i++)
    reverse_->out.ports[i] = node_.rails[i].port;
  for (bool up : {true, false, true}) {
    node_.rails[1].port.up = up;
    node_.changes++;
    Turn(reverse_);
    EXPECT_EQ(TUTTI_IB_RUNNING, reverse_->state) << "the sender decides";
    ssize_t got = recv(sv[1], &told, sizeof told, MSG_DONTWAIT);
    if (device.posted.empty() && got < 0) continue; /* nothing new at first */
    ASSERT_EQ(static_cast<ssize_t>(sizeof told), got);
    EXPECT_EQ(static_cast<uint32_t>(TUTTI_IB_NEWS), told.kind);
    EXPECT_EQ(up, told.ports[1].up);
    EXPECT_EQ(1, told.ports[0].up);
  }
  reverse_->meet.parts[0].source.fd = -1;
  close(sv[0]);
  close(sv[1]);
}

/* A rail whose port was down at init, and comes up after a turn of the node; one more ends its check.
 * It is not used then. */
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

/* A connection with payloads in GPU memory keeps to the near rail while that works. */
TEST_F(IbEnd, AFarRailIsTheReserveOfANearOne) {
  e_.meet.fifo.gpuData = 1;
  e_.slab = &node_.gdr.slab;
  for (int i = 0; i < kRails; i++) {
    node_.gdr.slab.mr[i] = &mr_;
    node_.rails[i].port.gdr = node_.rails[i].port.gdrRead = i ? TUTTI_GDR_FAR : TUTTI_GDR_YES;
  }
  EXPECT_EQ(1u, Offer());
  node_.rails[0].port.up = 0;
  EXPECT_EQ(2u, Offer());
  node_.rails[1].late = true;
  e_.state = TUTTI_IB_BROKEN;
  e_.retryAt = 0;
  EXPECT_EQ(0u, Next()) << "it is not checked yet";
  e_.slab = nullptr;
  e_.meet.fifo.gpuData = 0;
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

TEST_F(IbEnd, MemoryIsRegisteredWithTheDevicesThatAreLeft) {
  uint8_t memory[100] = {};
  uint64_t id;
  tuttiIbRegion *r;
  for (int gone = 0; gone < kRails; gone++) {
    ASSERT_EQ(tuttiSuccess, tuttiRegionAdd(memory, sizeof memory, &id));
    node_.rails[gone].gone = true;
    ASSERT_EQ(tuttiSuccess, tuttiIbBorrow(&node_, memory, 50, &r)) << tuttiErrorText();
    ASSERT_NE(nullptr, r);
    EXPECT_EQ(nullptr, r->mr[gone]);
    EXPECT_NE(nullptr, r->mr[1 - gone]);
    tuttiIbReturn(r);
    EXPECT_TRUE(tuttiRegionRemove(id));
    tuttiIbForgetRegions(&node_);
    node_.rails[gone].gone = false;
  }
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

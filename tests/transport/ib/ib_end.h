/* An end of NET/IB on devices that are made up, for the tests that take it one call at a time. */
#ifndef TUTTI_TESTS_TRANSPORT_IB_IB_END_H_
#define TUTTI_TESTS_TRANSPORT_IB_IB_END_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <vector>

#include "base/error.h"
#include "base/os.h"
#include "transport/ib/wire.h"
extern "C" {
#include "transport/ib/endpoint.h"
}

namespace ib {

constexpr int kRails = 2;
constexpr size_t kSlot = 4096;

/* What the devices saw, and are to say. */
struct Devices {
  int registered, access, refusing; /* refusing: the number of registrations that still pass */
  std::vector<int> posted;          /* flags of requests */
  std::vector<uint64_t> receives;   /* their ids */
  std::deque<ibv_wc> done;
  bool pollFails;
};
inline Devices device;

inline int postSend(ibv_qp *qp, ibv_send_wr *wr, ibv_send_wr **) {
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

inline int postRecv(ibv_qp *, ibv_recv_wr *wr, ibv_recv_wr **) {
  device.receives.push_back(wr->wr_id);
  return 0;
}

inline int pollCq(ibv_cq *, int n, ibv_wc *wc) {
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
  alignas(4096) static inline uint8_t fifo_[TUTTI_NET_CONTROL_BYTES + TUTTI_FIFO_DEPTH * kSlot];
  alignas(4096) static inline uint8_t twinFifo_[TUTTI_NET_CONTROL_BYTES + TUTTI_FIFO_DEPTH * kSlot];

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
    e_.control = reinterpret_cast<tuttiIbControl *>(e_.meet.fifo.posts + TUTTI_FIFO_DEPTH);
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
    c.posts = reinterpret_cast<tuttiPost *>(c.readers + 1);
    c.data = memory + TUTTI_NET_CONTROL_BYTES;
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
  tuttiNetTrouble Trouble() {
    tuttiNetTrouble trouble{};
    tuttiNetIb.trouble(&node_, &trouble);
    return trouble;
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
  /* The peer offers the twin a queue pair of the first ports, which it takes. */
  void OfferToTwin() {
    int sv[2];
    ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv));
    reverse_->theirs = node_.mine;
    reverse_->meet.parts[0].source.fd = sv[0];
    reverse_->meet.parts[0].source.readable = true;
    reverse_->meet.parts[0].closed = false; /* without a socket nothing could be told to the peer */
    tuttiIbHandshake h = Told(TUTTI_IB_OFFER);
    h.immediate = reverse_->immediate;
    h.nqps = 1;
    h.qps[0].qpn = 7;
    EXPECT_EQ(static_cast<ssize_t>(sizeof h), send(sv[1], &h, sizeof h, 0));
    tuttiProxyTurn turn{};
    bool moved = false;
    EXPECT_EQ(tuttiSuccess, tuttiIbMeetStep(reverse_, &turn, &moved)) << tuttiErrorText();
    EXPECT_EQ(TUTTI_IB_RUNNING, reverse_->state);
    reverse_->meet.parts[0].source.fd = -1;
    close(sv[0]);
    close(sv[1]);
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
    wc.imm_data = htonl(tuttiIbImmediate(TUTTI_IB_SHARE, m));
    return wc;
  }
};

} // namespace ib
#endif

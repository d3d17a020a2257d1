/* Ends and registrations of NET/IB on devices that are made up, one call at a time. */
#ifdef TUTTI_HAVE_VERBS
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <deque>
#include <vector>

#include "transport/net_ib_wire.h"
#include "transport/net_pair.h"
#include "transport/region.h"
extern "C" {
#include "transport/net_ib.h"
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

/* A send end that has met its peer, to which `peer` is a socket. */
class IbEnd : public testing::Test {
protected:
  tuttiWires w_{};
  tuttiAtomic32 failed_{};
  tuttiMemAccount memory_{};
  ibv_context context_{};
  ibv_cq cq_{};
  ibv_mr mr_{};
  tuttiIbNode node_{};
  tuttiIbEnd e_{};
  int peer_ = -1;
  const tuttiVerbsTable real_ = tuttiVerbs;
  /* Not a member: what allocates a test need not heed more than the usual alignment. */
  alignas(4096) static inline uint8_t fifo_[4096 + TUTTI_FIFO_DEPTH * kSlot];

  void SetUp() override {
    device = {};
    memset(fifo_, 0, sizeof fifo_);
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
    w_.timeoutMs = 60000;
    node_.wires = &w_;
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
    tuttiConn *c = &e_.meet.fifo;
    c->slots = reinterpret_cast<tuttiSlot *>(fifo_);
    c->heads = reinterpret_cast<tuttiHead *>(c->slots + TUTTI_FIFO_DEPTH);
    c->data = fifo_ + 4096;
    c->slotBytes = kSlot;
    c->direction = TUTTI_SEND;
    e_.board = reinterpret_cast<tuttiIbBoard *>(c->heads + 1);
    e_.meet.wires = &w_;
    e_.meet.nparts = 1;
    int sv[2];
    ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv));
    e_.meet.parts[0].source.fd = sv[0];
    peer_ = sv[1];
  }
  void TearDown() override {
    tuttiIbLinksClose(&e_, true);
    close(e_.meet.parts[0].source.fd);
    close(peer_);
    EXPECT_EQ(0, device.registered);
    tuttiVerbs = real_;
  }
  tuttiResult_t Step() {
    tuttiProxyTurn turn{};
    bool moved = false;
    return tuttiIbMeetStep(&e_, &turn, &moved);
  }
  /* Offers links again; the rails of those in the card, by bit. */
  unsigned Offer() {
    tuttiIbCard card;
    unsigned rails = 0;
    e_.state = TUTTI_IB_BROKEN;
    EXPECT_EQ(tuttiSuccess, Step()) << tuttiErrorText();
    EXPECT_EQ(static_cast<ssize_t>(sizeof card), recv(peer_, &card, sizeof card, MSG_DONTWAIT));
    for (int i = 0; i < card.nlinks; i++)
      if (card.links[i].qpn) rails |= 1u << e_.links[i].rail;
    return rails;
  }
  void SendSmall(uint64_t m) {
    tuttiSlot *slot = &e_.meet.fifo.slots[m % TUTTI_FIFO_DEPTH];
    slot->where = TUTTI_WHERE_INLINE;
    slot->bytes = 8;
    tuttiStoreRelease(&slot->seq, m + 1);
    tuttiProxyTurn turn{};
    EXPECT_EQ(TUTTI_PROXY_MOVED, tuttiNetIb.progress(&e_, &turn)) << tuttiErrorText();
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
  EXPECT_EQ(3u, Offer());
  e_.nparts = 1;
  e_.parts[0] = &e_.links[0];
  e_.state = TUTTI_IB_RUNNING;
  e_.deadline = tuttiNow() + net::kSecond;
  SendSmall(0);
  ASSERT_EQ(1u, device.posted.size());
  EXPECT_TRUE(device.posted[0] & IBV_SEND_SIGNALED);
  tuttiIbPoll(&node_);
  EXPECT_EQ(0u, e_.deadline);
  SendSmall(1);
  ASSERT_EQ(2u, device.posted.size());
  EXPECT_FALSE(device.posted[1] & IBV_SEND_SIGNALED);
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

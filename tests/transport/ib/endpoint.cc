/* Ends and registrations of NET/IB on devices that are made up, one call at a time. */
#ifdef TUTTI_HAVE_VERBS
#include <atomic>
#include <thread>

#include "transport/ib/ib_end.h"
#include "transport/net_pair.h"
#include "transport/region.h"
#include "transport/shareable.h"

using ib::device;
using ib::IbEnd;
using ib::kRails;

namespace {

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

TEST_F(IbEnd, WhoClosesBeforeItWorkedHasNotFinished) {
  EXPECT_EQ(3u, Offer());
  Publish(0);
  shutdown(peer_, SHUT_RDWR);
  e_.meet.parts[0].source.readable = true;
  EXPECT_EQ(tuttiRemoteError, Step());
  EXPECT_NE(nullptr, strstr(tuttiErrorText(), "closed before they had agreed on RDMA queue pairs"))
      << tuttiErrorText();
}

TEST_F(IbEnd, WhoClosesBeforeItWasUsedMayHaveFinished) {
  EXPECT_EQ(3u, Offer());
  shutdown(peer_, SHUT_RDWR);
  e_.meet.parts[0].source.readable = true;
  EXPECT_EQ(tuttiSuccess, Step()) << tuttiErrorText();
  e_.deadline = 1;
  EXPECT_EQ(tuttiSuccess, Step()) << tuttiErrorText();
  Publish(0);
  EXPECT_EQ(tuttiRemoteError, Step()) << "it is wanted after all";
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
    EXPECT_EQ(c.up ? "" : "made0:1", std::string(Trouble().port)) << &c - cases;
    EXPECT_EQ(c.up ? 0 : 1, Trouble().down) << &c - cases;
  }
}

/* A connection counts once, from when it breaks to when it has carried something again. */
TEST_F(IbEnd, ConnectionsThatAreMadeAnewAreCounted) {
  Connect();
  EXPECT_EQ(0, Trouble().broken);
  for (int times = 0; times < 2; times++) {
    node_.rails[0].port.up = 0;
    node_.changes++;
    EXPECT_EQ(tuttiSuccess, Step()) << tuttiErrorText();
    EXPECT_NE(TUTTI_IB_RUNNING, e_.state);
    EXPECT_EQ(1, Trouble().broken);
  }
  tuttiIbWorks(&e_);
  EXPECT_EQ(0, Trouble().broken);
}

/* A receiver is mended by an offer of its peer, or never, where that has finished. */
TEST_F(IbEnd, ConnectionsThatAreMadeAnewAreCountedByReceiversToo) {
  Connect();
  OpenTwin();
  tuttiIbBreak(reverse_, &reverse_->qps[0], "by a test");
  EXPECT_EQ(1, Trouble().broken);
  OfferToTwin();
  EXPECT_EQ(0, Trouble().broken);
  tuttiIbBreak(reverse_, &reverse_->qps[0], "by a test");
  EXPECT_EQ(1, Trouble().broken);
  reverse_->meet.parts[0].closed = true;
  tuttiProxyTurn turn{};
  bool moved;
  EXPECT_EQ(tuttiSuccess, tuttiIbMeetStep(reverse_, &turn, &moved)) << tuttiErrorText();
  EXPECT_EQ(0, Trouble().broken);
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

/* For one queue pair on each, of 96 requests: twice as much as is needed, or all that there is. */
TEST_F(IbEnd, ACompletionQueueIsWidenedAsFarAsItsDeviceAllows) {
  static std::vector<int> asked;
  asked.clear();
  tuttiVerbs.resizeCq = [](ibv_cq *, int cqe) {
    asked.push_back(cqe);
    return 0;
  };
  for (int i = 0; i < kRails; i++) {
    node_.rails[i].cqe = 95;
    node_.rails[i].mostCqe = i == 0 ? 191 : 500;
  }
  EXPECT_EQ(3u, Offer());
  EXPECT_EQ((std::vector<int>{191, 192}), asked);
  EXPECT_EQ(191, node_.rails[0].cqe);
  EXPECT_EQ(192, node_.rails[1].cqe);
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
  ASSERT_EQ(tuttiSuccess, tuttiIbBorrow(&node_, memory, 50, &a));
  EXPECT_EQ(kRails, device.registered);
  EXPECT_EQ(0, device.access & IBV_ACCESS_LOCAL_WRITE) << "read-only memory can be sent, too";
  EXPECT_TRUE(tuttiRegionRemove(first));
  ASSERT_EQ(tuttiSuccess, tuttiRegionAdd(memory, sizeof memory, &second)); /* maybe other pages */
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
  EXPECT_TRUE(tuttiRegionRemove(second));
  ASSERT_EQ(tuttiSuccess, tuttiIbBorrow(&node_, memory, 50, &none));
  EXPECT_EQ(nullptr, none);
}

/* Several communicators have registered it, and give it up one after the other. */
TEST_F(IbEnd, ARegistrationStaysAsLongAsAnyRegionOfItsTime) {
  uint8_t memory[100] = {};
  uint64_t first, second, third, other;
  tuttiIbRegion *r;
  node_.gdr.reaching = 3; /* where it could not be registered again: a graph has it */
  ASSERT_EQ(tuttiSuccess, tuttiRegionAdd(memory, sizeof memory, &first));
  ASSERT_EQ(tuttiSuccess, tuttiRegionAdd(memory, 50, &second));
  ASSERT_EQ(tuttiSuccess, tuttiRegionAdd(memory, 60, &other));
  EXPECT_TRUE(tuttiIbReaches(&node_, memory, 50)); /* by the newest */
  EXPECT_EQ(kRails, device.registered);
  ASSERT_EQ(tuttiSuccess, tuttiRegionAdd(memory, sizeof memory, &third));
  auto stays = [&](uint64_t removed) {
    EXPECT_TRUE(tuttiRegionRemove(removed));
    EXPECT_EQ(tuttiSuccess, tuttiIbBorrow(&node_, memory, 50, &r));
    if (r) tuttiIbReturn(r);
    return r != nullptr;
  };
  EXPECT_TRUE(stays(second));
  EXPECT_TRUE(stays(other)) << "the first one holds it";
  EXPECT_FALSE(stays(first)) << "the third one may be of other pages at the same place";
  EXPECT_EQ(0, device.registered);
  EXPECT_TRUE(tuttiRegionRemove(third));
  node_.gdr.reaching = 0;
}

/* A region that comes and goes again and again leaves nothing behind where another one stays; and
 * what was registered before it came is kept by it, too. */
TEST_F(IbEnd, MemoryIsRegisteredOnceForRegionsThatComeAndGo) {
  uint8_t memory[100] = {};
  uint64_t stays, comes;
  tuttiIbRegion *r;
  node_.gdr.reaching = 3;
  ASSERT_EQ(tuttiSuccess, tuttiRegionAdd(memory, sizeof memory, &stays));
  for (int i = 0; i < 5; i++) {
    ASSERT_EQ(tuttiSuccess, tuttiRegionAdd(memory, sizeof memory, &comes));
    EXPECT_TRUE(tuttiIbReaches(&node_, memory, 50));
    EXPECT_TRUE(tuttiRegionRemove(comes));
    tuttiIbForgetRegions(&node_);
    EXPECT_EQ(kRails, device.registered);
  }
  ASSERT_EQ(tuttiSuccess, tuttiRegionAdd(memory, sizeof memory, &comes));
  EXPECT_TRUE(tuttiIbReaches(&node_, memory, 50));
  EXPECT_TRUE(tuttiRegionRemove(stays));
  ASSERT_EQ(tuttiSuccess, tuttiIbBorrow(&node_, memory, 50, &r));
  ASSERT_NE(nullptr, r);
  tuttiIbReturn(r);
  EXPECT_EQ(kRails, device.registered);
  EXPECT_TRUE(tuttiRegionRemove(comes));
  tuttiIbForgetRegions(&node_);
  EXPECT_EQ(0, device.registered);
  node_.gdr.reaching = 0;
}

/* A window makes it shared memory while the proxy looks for registrations that are out of date:
 * that of a newer region over the same memory, which stays, is, too. */
TEST_F(IbEnd, MemoryThatGetsOtherPagesIsRegisteredAnew) {
  constexpr size_t bytes = 32 << 20; /* so that the change takes long enough to be looked into */
  void *memory = nullptr;
  uint64_t region;
  tuttiIbRegion *before, *after;
  tuttiShareableCard card;
  ASSERT_EQ(tuttiSuccess, tuttiShareableAlloc(&memory, bytes)) << tuttiErrorText();
  memset(memory, 1, bytes);
  ASSERT_EQ(tuttiSuccess, tuttiRegionAdd(memory, bytes, &region));
  ASSERT_EQ(tuttiSuccess,
            tuttiIbBorrow(&node_, memory, 50, &before)); /* a message stays under way */
  std::atomic<bool> looks{true};
  std::thread proxy([&] {
    while (looks)
      tuttiIbForgetRegions(&node_);
  });
  tuttiShareableShare(memory, bytes, &card);
  looks = false;
  proxy.join();
  EXPECT_GE(card.fd.fd, 0);
  ASSERT_EQ(tuttiSuccess, tuttiIbBorrow(&node_, memory, 50, &after));
  EXPECT_NE(before, after);
  EXPECT_EQ(2 * kRails, device.registered);
  for (tuttiIbRegion *r : {before, after})
    tuttiIbReturn(r);
  EXPECT_TRUE(tuttiRegionRemove(region));
  tuttiShareableFree(memory);
  tuttiIbForgetRegions(&node_);
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

/* Strangers, garbage and floods at the root's and at a rank's port; and messages of the right
 * secret that lie. */
#include <fcntl.h>
#include <sys/resource.h>

#include <atomic>
#include <random>

#include "bootstrap/seat.h"
#include "harness.h"

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

namespace {

class Hostile : public OnLoopback {
protected:
  void SetUp() override {
    ids_ = makeIds();
    ASSERT_EQ(tuttiIdParse(&ids_[0], &id_), tuttiSuccess);
    root_ = id_.roots.a[0];
  }
  void TearDown() override {
    tuttiRootCancel(id_.secret, tuttiSuccess);
    OnLoopback::TearDown();
  }
  tuttiCheckIn checkIn(int r, int n) { return checkInOf(ids_, 0, r, n); }
  std::unique_ptr<Caller> checkInAt(const tuttiCheckIn &in) { return ::checkInAt(ids_[0], in); }
  /* What the root answers to a hello that is sealed as it should be; 0: it hangs up. */
  template <class Hello> int answerTo(Hello in) {
    Caller caller(root_, id_.secret);
    caller.say(&in);
    int kind = caller.hear();
    close(caller.fd);
    return kind;
  }
  void expectJoin(int n) {
    auto ranks = onThreads(n, [&](int r) { return joinAs(ids_, r, n); });
    for (auto &o : ranks)
      EXPECT_EQ(o.result, tuttiSuccess) << o.text;
    closeAll(ranks);
  }
  std::vector<tuttiUniqueId> ids_;
  tuttiId id_;
  tuttiAddress root_;
};

/* ---- the root ------------------------------------------------------------------------------- */

TEST_F(Hostile, GarbageIsDroppedWithoutAWord) {
  std::mt19937 random(1);
  std::string garbage(2000, '\0');
  for (auto &c : garbage)
    c = (char)random();
  std::vector<std::string> messages = {garbage, "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                                       std::string(sizeof(tuttiCheckIn), '\0')};
  for (size_t at : {size_t{0}, sizeof(uint32_t), offsetof(tuttiHello, bytes),
                    offsetof(tuttiHello, mac), sizeof(tuttiHello), sizeof(tuttiCheckIn) - 1}) {
    auto in = checkIn(0, 2);
    tuttiSession session = {id_.secret, {}};
    ASSERT_EQ(tuttiHelloSeal(&in, sizeof(in), &session), tuttiSuccess);
    messages.emplace_back((char *)&in, sizeof(in));
    messages.back()[at] ^= 1;
  }
  for (auto &m : messages) {
    int fd = rawConnect(root_);
    ASSERT_GE(fd, 0);
    rawSend(fd, m.data(), m.size());
    EXPECT_EQ(rawRead(fd, 1), "");
    close(fd);
  }
  expectJoin(3);
}

TEST_F(Hostile, LiesOfTheRightSecretAreDropped) {
  std::vector<std::function<void(tuttiCheckIn *)>> lies = {
      [](tuttiCheckIn *in) { in->peer.hello.kind = tuttiHelloRing; },
      [](tuttiCheckIn *in) { in->peer.hello.kind = 99; },
      [](tuttiCheckIn *in) { in->peer.hello.from = -1; },
      [](tuttiCheckIn *in) { in->peer.hello.from = 2; },
      [](tuttiCheckIn *in) { in->peer.hello.to = 0; },
      [](tuttiCheckIn *in) { in->peer.hello.nranks = 0; },
      [](tuttiCheckIn *in) { in->peer.hello.nranks = -5; },
      [](tuttiCheckIn *in) { in->peer.hello.nranks = INT32_MAX; },
      [](tuttiCheckIn *in) { in->peer.listeners.n = 0; },
      [](tuttiCheckIn *in) { in->peer.listeners.n = 1 << 30; },
      [](tuttiCheckIn *in) { in->peer.listeners.a[0].sa.sa_family = AF_UNIX; },
      [](tuttiCheckIn *in) { in->nroots = 0; },
      [](tuttiCheckIn *in) { in->nroots = INT32_MAX; },
      [](tuttiCheckIn *in) { in->root = 1; },
      [](tuttiCheckIn *in) { in->root = -1; },
      [](tuttiCheckIn *in) { in->bridge = 1; },
      [](tuttiCheckIn *in) { in->bridge = 1, in->nroots = 2; },
      [](tuttiCheckIn *in) { in->bridge = -1, in->nroots = 2; },
  };
  for (size_t i = 0; i < lies.size(); i++) {
    auto in = checkIn(0, 2);
    lies[i](&in);
    EXPECT_EQ(answerTo(in), 0) << i;
  }
  expectJoin(2);
}

TEST_F(Hostile, UnconfirmedCheckInsDoNotCount) {
  for (int i = 0; i < 20; i++) {
    auto in = checkIn(1, 3);
    Caller caller(root_, id_.secret);
    caller.say(&in);
    EXPECT_EQ(caller.hear(), tuttiReplyAccepted);
    if (i % 2) rawSend(caller.fd, std::string(TUTTI_MAC_BYTES, 'x').data(), TUTTI_MAC_BYTES);
    close(caller.fd);
  }
  expectJoin(3);
}

/* Whoever has heard all that a rank says can say it again, but for what the root asks anew. */
TEST_F(Hostile, WhatWasHeardIsNoProof) {
  auto in = checkIn(1, 3);
  Caller rank(root_, id_.secret);
  rank.say(&in);
  ASSERT_EQ(rank.hear(), tuttiReplyAccepted);
  uint8_t confirm[TUTTI_MAC_BYTES];
  tuttiConfirmOf(&rank.session, &rank.reply, confirm);
  tuttiReply heard = rank.reply, reply;
  int fd = rawConnect(root_);
  rawSend(fd, &in, sizeof(in));
  EXPECT_EQ(rawRead(fd, 1), "") << "not while the other is here";
  close(fd);
  close(rank.fd); /* it was heard and did not come, so its place is free */
  std::string got;
  ASSERT_TRUE(eventually([&] {
    fd = rawConnect(root_);
    rawSend(fd, &in, sizeof(in));
    got = rawRead(fd, sizeof(reply));
    if (got.empty()) close(fd);
    return !got.empty();
  }));
  ASSERT_EQ(got.size(), sizeof(reply));
  memcpy(&reply, got.data(), sizeof(reply));
  EXPECT_NE(memcmp(reply.mac, heard.mac, sizeof(reply.mac)), 0);
  rawSend(fd, confirm, sizeof(confirm));
  EXPECT_EQ(rawRead(fd, 1), "");
  close(fd);
  expectJoin(3);
}

/* As many hellos as there are places, all good and none confirmed: for some seconds nobody else
 * gets in, but no longer. */
TEST_F(Hostile, GoodHellosKeepNobodyOutForLong) {
  std::vector<std::unique_ptr<Caller>> heard;
  for (int i = 0; i < TUTTI_GUESTS + 10; i++) {
    auto in = checkIn(i % 300, 300);
    heard.push_back(std::make_unique<Caller>(root_, id_.secret));
    heard.back()->say(&in);
  }
  expectJoin(2);
  for (auto &caller : heard)
    close(caller->fd);
}

/* Nothing of what a rank, a root and those who listen say on the wire is the secret. */
TEST_F(Hostile, TheSecretIsNotSaid) {
  auto in = checkIn(1, 3);
  Caller rank(root_, id_.secret);
  rank.say(&in);
  ASSERT_EQ(rank.hear(), tuttiReplyAccepted);
  std::string said((char *)&in, sizeof(in)), secret((char *)id_.secret, sizeof(id_.secret));
  said += std::string((char *)&rank.reply, sizeof(rank.reply));
  for (size_t i = 0; i + 8 <= secret.size(); i++)
    EXPECT_EQ(said.find(secret.substr(i, 8)), std::string::npos);
  close(rank.fd);
  expectJoin(2);
}

/* On a fixed address whoever connects after the reply means the next communicator. So many ranks
 * that the first has its reply well before the last. */
TEST_F(Hostile, TheRootClosesItsPortBeforeItReplies) {
  const int n = 400;
  std::vector<std::unique_ptr<Caller>> ranks(n);
  for (int r = 0; r < n; r++)
    ranks[r] = checkInAt(checkIn(r, n));
  EXPECT_EQ(ranks[0]->hear(), tuttiReplyNext);
  EXPECT_LT(rawConnect(root_), 0);
  for (auto &rank : ranks)
    close(rank->fd);
}

/* They all meet the root while it serves: one rank comes before them, the other after. */
TEST_F(Hostile, TenThousandGarbageConnections) {
  Outcome first;
  std::thread early([&] { first = joinAs(ids_, 0, 2); });
  std::atomic<int> refused{0};
  std::vector<std::thread> attackers;
  for (int t = 0; t < 4; t++)
    attackers.emplace_back([&, t] {
      std::mt19937 random(t);
      char garbage[300];
      for (auto &c : garbage)
        c = (char)random();
      for (int i = 0; i < 2500; i++) {
        int fd = rawConnect(root_);
        if (fd < 0) refused++;
        if (i % 3) rawSend(fd, garbage, random() % sizeof(garbage));
        /* Most are reset, or all would hold their ports for a minute, which other tests need. */
        linger reset = {1, 0};
        if (i % 10) setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        close(fd);
      }
    });
  for (auto &t : attackers)
    t.join();
  Outcome second = joinAs(ids_, 1, 2);
  early.join();
  EXPECT_EQ(refused.load(), 0);
  EXPECT_EQ(first.result, tuttiSuccess) << first.text;
  EXPECT_EQ(second.result, tuttiSuccess) << second.text;
  tuttiBootstrapClose(first.b);
  tuttiBootstrapClose(second.b);
}

/* The init comes after the attack, which has filled the root's every place and its queue. */
TEST_F(Hostile, HalfOpenConnectionsGiveWay) {
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  int n = limit.rlim_cur < 4000 ? (int)limit.rlim_cur / 4 : 1000;
  std::vector<int> fds;
  uint32_t magic = TUTTI_HELLO_MAGIC;
  for (int i = 0; i < n; i++) {
    int fd = rawConnect(root_);
    ASSERT_GE(fd, 0) << i;
    if (i % 2) rawSend(fd, &magic, sizeof(magic));
    fds.push_back(fd);
  }
  expectJoin(4);
  for (int fd : fds)
    close(fd);
}

TEST_F(Hostile, SilentAndSlowGuestsAreSentAway) {
  int silent = rawConnect(root_), slow = rawConnect(root_);
  auto in = checkIn(0, 2);
  std::atomic<bool> cut{false};
  std::thread drip([&] { /* would take 20 s in all */
                         for (size_t i = 0; i < sizeof(in) && !cut; i++) {
                           cut = send(slow, (char *)&in + i, 1, MSG_NOSIGNAL) < 0;
                           std::this_thread::sleep_for(
                               std::chrono::milliseconds(20000 / sizeof(in)));
                         }
  });
  char byte;
  EXPECT_EQ(recv(silent, &byte, 1, 0), 0);
  drip.join();
  EXPECT_TRUE(cut);
  close(silent), close(slow);
  expectJoin(2);
}

/* Somebody on the way of a rank that has checked in, who can say it has failed, or is done. */
TEST_F(Hostile, WhatARankSaysAtItsSeatIsChecked) {
  for (auto kind : {tuttiReplyFailed, tuttiReplyDone}) {
    auto ids = makeIds();
    auto here = ::checkInAt(ids[0], checkInOf(ids, 0, 0, 3));
    ASSERT_TRUE(arrived(here->fd));
    auto changed = ::checkInAt(ids[0], checkInOf(ids, 0, 1, 3));
    tuttiSession other = changed->session;
    other.hello[0] ^= 1;
    tuttiReplySend(changed->fd, &other, kind, tuttiInternalError, "forged", 6, nullptr);
    EXPECT_EQ(here->hear(), tuttiReplyFailed);
    EXPECT_EQ(here->reply.code, tuttiRemoteError);
    EXPECT_THAT(here->data, AllOf(HasSubstr("what rank 1 (host "), HasSubstr("is not its own")));
    EXPECT_THAT(here->data, Not(HasSubstr("forged")));
    EXPECT_EQ(joinAs(ids, 2, 3).result, tuttiRemoteError); /* lets the root end */
    close(here->fd), close(changed->fd);
  }
}

/* And what a rank hears at its seat. */
TEST(Seat, OnlyTheRootOfTheCheckInIsBelieved) {
  for (auto kind : {tuttiReplyFailed, tuttiReplyRoot, tuttiReplyNext})
    for (bool forged : {false, true}) {
      int pair[2];
      ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
      tuttiSeat seat = {};
      seat.fd = pair[0];
      seat.session.secret = seat.secret;
      tuttiSession root = seat.session;
      if (forged) root.hello[31] ^= 1;
      tuttiNeighbour next = {};
      bool met = false;
      const std::string text(kind == tuttiReplyRoot ? sizeof(tuttiRootName) : sizeof(next), 'w');
      tuttiReplySend(pair[1], &root, kind, tuttiInvalidUsage, text.data(), text.size(), nullptr);
      tuttiResult_t result = tuttiSeatHear(&seat, &next, &met);
      if (forged) {
        EXPECT_EQ(result, tuttiRemoteError) << kind;
        EXPECT_THAT(tuttiErrorText(), HasSubstr("is not its own"));
        EXPECT_EQ(seat.fd, -1);
      } else {
        EXPECT_EQ(result, kind == tuttiReplyFailed ? tuttiInvalidUsage : tuttiSuccess) << kind;
      }
      EXPECT_EQ(met, kind == tuttiReplyNext && !forged);
      EXPECT_EQ(seat.root[0] != '\0', kind == tuttiReplyRoot && !forged);
      tuttiFdClose(&seat.fd);
      close(pair[1]);
    }
}

/* Rank 2 is here before them: so the root stays until it has told rank 0, whenever that comes. */
TEST_F(Hostile, OtherVersionIsToldAndEndsTheInit) {
  int before = rawConnect(root_);
  auto here = checkInAt(checkIn(2, 3));
  ASSERT_TRUE(arrived(here->fd));
  rawSend(before, "rubbish", 7);
  EXPECT_EQ(rawRead(before, 1), ""); /* judged after what had come of rank 2 */
  close(before);
  auto in = checkIn(1, 3);
  in.peer.hello.version = 70305;
  std::thread other([&] {
    struct { /* it may be longer or shorter there */
      tuttiCheckIn in;
      char more[20];
    } hello = {in, {}};
    Caller caller(root_, id_.secret);
    caller.say(&hello);
    EXPECT_EQ(caller.hear(), tuttiReplyFailed);
    EXPECT_THAT(caller.data, AllOf(HasSubstr("tutti 0.1.0"), HasSubstr("7.3.5"),
                                   HasSubstr(tuttiHostname()), HasSubstr("one version")));
    close(caller.fd);
  });
  Outcome o = joinAs(ids_, 0, 3);
  other.join();
  EXPECT_EQ(here->hear(), tuttiReplyFailed);
  close(here->fd);
  EXPECT_EQ(o.result, tuttiInvalidUsage);
  EXPECT_THAT(o.text, AllOf(HasSubstr("tutti 0.1.0"), HasSubstr("7.3.5")));
}

TEST_F(Hostile, OtherVersionOfAStrangerEndsNothing) {
  auto in = checkIn(1, 2);
  in.peer.hello.version = 70305;
  in.peer.hello.bytes = sizeof(in);
  int fd = rawConnect(root_);
  rawSend(fd, &in, sizeof(in)); /* without a MAC */
  EXPECT_EQ(rawRead(fd, 4096), "") << "it learns nothing";
  close(fd);
  expectJoin(2);
}

/* A rank's host name is what its peer says: it ends up in error texts of others. */
TEST_F(Hostile, NamesArePrintable) {
  auto in = checkIn(1, 2);
  memset(in.peer.hello.host, '\n', sizeof(in.peer.hello.host)); /* and not terminated */
  close(checkInAt(in)->fd);                                     /* dies */
  Outcome o = joinAs(ids_, 0, 2);
  EXPECT_EQ(o.result, tuttiRemoteError);
  EXPECT_THAT(o.text, AllOf(HasSubstr("rank 1 (host ????"), testing::Not(HasSubstr("\n"))));
}

/* Random and mutated check-ins for a second; then the root must still serve. */
TEST_F(Hostile, FuzzCheckIns) {
  std::mt19937 random(11);
  uint64_t end = tuttiDeadline(1000);
  while (tuttiNow() < end) {
    auto in = checkIn((int)(random() % 2), 2);
    auto *bytes = (char *)&in;
    size_t keep = random() % 4 ? offsetof(tuttiHello, hash) : 0; /* mostly sealed */
    for (unsigned i = 0, n = 1 + random() % 16; i < n; i++)
      bytes[keep + random() % (sizeof(in) - keep)] = (char)random();
    if (in.peer.hello.version != TUTTI_VERSION_CODE) continue; /* ends the init, rightly */
    Caller caller(root_, id_.secret);
    ASSERT_GE(caller.fd, 0);
    if (keep && random() % 3)
      caller.say(&in);
    else
      rawSend(caller.fd, &in, random() % sizeof(in));
    close(caller.fd); /* never confirmed */
  }
  expectJoin(3);
}

/* ---- a rank's listener ---------------------------------------------------------------------- */

/* Plays rank 1 of 2 by hand; rank 0 is real. */
class HostileRing : public Hostile {
protected:
  void SetUp() override {
    Hostile::SetUp();
    tuttiInterface lo;
    memset(&lo, 0, sizeof(lo));
    lo.address.v4.sin_family = AF_INET;
    lo.address.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(tuttiListenAny(&lo, 1, &mine_, &listener_), tuttiSuccess);
    real_ = std::thread([this] { outcome_ = joinAs(ids_, 0, 2, within(30000)); });
    auto in = checkIn(1, 2);
    in.peer.listeners = mine_;
    in.peer.ticket = 77;
    auto rank = checkInAt(in);
    ASSERT_EQ(rank->hear(), tuttiReplyNext);
    ASSERT_EQ(rank->data.size(), sizeof(peer_));
    memcpy(&peer_, rank->data.data(), sizeof(peer_));
    seat_ = rank->fd;
  }
  void TearDown() override {
    if (real_.joinable()) real_.join();
    tuttiBootstrapClose(outcome_.b);
    close(seat_);
    tuttiListenerClose(&listener_);
    Hostile::TearDown();
  }
  tuttiHello ringHello() {
    tuttiHello h;
    tuttiHelloFill(&h, peer_.ticket, tuttiHelloRing, 1, 0, 2);
    return h;
  }
  /* Rank 1's part: accepts rank 0, connects to it, gathers. */
  void finish() {
    int prev = acceptOne(listener_.fds[0]);
    tuttiSession session;
    tuttiHello h = hearHello<tuttiHello>(prev, id_.secret, &session);
    EXPECT_EQ(h.hash, 77u);
    EXPECT_EQ(h.from, 0);
    EXPECT_EQ(h.to, 1);
    EXPECT_EQ(h.kind, tuttiHelloRing);
    tuttiReplySend(prev, &session, tuttiReplyAccepted, 0, nullptr, 0, nullptr);
    Caller rank(peer_.listeners.a[0], id_.secret);
    int next = rank.fd;
    h = ringHello();
    rank.say(&h);
    ASSERT_EQ(rank.hear(), tuttiReplyAccepted);
    rank.confirm();
    char record[sizeof(tuttiAddressList) + 16 + 8 + 4] = {}; /* with its padding */
    memcpy(record, &record_, sizeof(record_));
    rawSend(next, record, sizeof(record));
    real_.join();
    close(prev), close(next);
  }
  tuttiAddressList mine_, record_ = {};
  tuttiListener listener_ = {};
  int seat_ = -1;
  tuttiNeighbour peer_;
  std::thread real_;
  Outcome outcome_;
};

TEST_F(HostileRing, StrangersDoNotKeepThePreviousRankOut) {
  std::vector<int> fds;
  std::mt19937 random(3);
  for (int i = 0; i < 600; i++) {
    int fd = rawConnect(peer_.listeners.a[0]);
    ASSERT_GE(fd, 0);
    tuttiHello h = ringHello();
    tuttiSession session = {id_.secret, {}};
    switch (i % 5) {
    case 0:
      break; /* half open */
    case 1:
      rawSend(fd, "garbage", 7);
      break;
    case 2:
      h.hash++; /* stale: another ticket */
      break;
    case 3:
      h.from = 0;
      break;
    case 4:
      break;
    }
    if (i % 5 >= 2) {
      ASSERT_EQ(tuttiHelloSeal(&h, sizeof(h), &session), tuttiSuccess);
      if (i % 5 == 4) h.mac[random() % 16] ^= 1;
      rawSend(fd, &h, sizeof(h));
    }
    fds.push_back(fd);
  }
  record_ = mine_;
  finish();
  EXPECT_EQ(outcome_.result, tuttiSuccess) << outcome_.text;
  for (int fd : fds)
    close(fd);
}

TEST_F(HostileRing, TheRecordOfARankIsChecked) {
  record_ = mine_;
  record_.n = 1000;
  finish();
  EXPECT_EQ(outcome_.result, tuttiInternalError);
  EXPECT_THAT(outcome_.text, HasSubstr("rank 1"));
}

TEST_F(HostileRing, ARankThatEndedIsNamed) {
  tuttiListenerClose(&listener_);
  real_.join();
  EXPECT_EQ(outcome_.result, tuttiRemoteError);
  EXPECT_THAT(outcome_.text, AllOf(HasSubstr("rank 1 (host " + std::string(tuttiHostname())),
                                   HasSubstr("Connection refused"), HasSubstr("its init failed")));
}

/* Something else listens at the address of the next rank. */
TEST_F(HostileRing, AWrongListenerIsNotBelieved) {
  for (int i = 0; i < 5; i++) {
    int fd = acceptOne(listener_.fds[0]);
    tuttiSession session; /* read first: closing over unread bytes would reset the connection */
    hearHello<tuttiHello>(fd, id_.secret, &session);
    tuttiReply bad = {
        TUTTI_HELLO_MAGIC, TUTTI_VERSION_CODE, tuttiReplyAccepted, 0, UINT32_MAX, {}, {}};
    if (i == 1) rawSend(fd, std::string(sizeof(bad), 'S').data(), sizeof(bad));
    if (i == 2) rawSend(fd, &bad, sizeof(bad));
    bad.bytes = 0;
    if (i == 3) rawSend(fd, &bad, sizeof(bad)); /* right but for the proof */
    session.hello[0] ^= 1;
    if (i == 4) tuttiReplySend(fd, &session, tuttiReplyAccepted, 0, nullptr, 0, nullptr);
    close(fd);
  }
  record_ = mine_;
  finish();
  EXPECT_EQ(outcome_.result, tuttiSuccess) << outcome_.text;
}

TEST_F(HostileRing, AFailureTextFromAPeerIsMadePrintable) {
  int fd = acceptOne(listener_.fds[0]);
  tuttiSession session;
  hearHello<tuttiHello>(fd, id_.secret, &session);
  tuttiReplySend(fd, &session, tuttiReplyFailed, 4242, "one\ntwo\033[2J", 11, nullptr);
  real_.join();
  EXPECT_EQ(outcome_.result, tuttiRemoteError); /* 4242 is no code */
  EXPECT_EQ(outcome_.text, "one two [2J");
  close(fd);
}

TEST_F(HostileRing, AFailureThatIsNotThePeersIsNotShown) {
  int fd = acceptOne(listener_.fds[0]);
  tuttiSession session;
  hearHello<tuttiHello>(fd, id_.secret, &session);
  session.hello[0] ^= 1;
  tuttiReplySend(fd, &session, tuttiReplyFailed, tuttiInvalidUsage, "send money", 10, nullptr);
  real_.join();
  EXPECT_EQ(outcome_.result, tuttiRemoteError);
  EXPECT_THAT(outcome_.text, AllOf(HasSubstr("not its own"), testing::Not(HasSubstr("money"))));
  close(fd);
}

} // namespace

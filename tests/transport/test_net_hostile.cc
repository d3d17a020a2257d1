/* NET against what may go wrong: strangers on the port, lies, deaths, nobody there. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <random>
#include <thread>
#include <vector>

#include "port.h"
#include "transport/net_pair.h"

using net::Pair;
using net::Rank;
using net::Setting;
using testing::ContainsRegex;
using testing::HasSubstr;

namespace {

void Spin(Rank &r, int ms) {
  net::Entered entered(r.w.proxy);
  for (uint64_t end = tuttiNow() + static_cast<uint64_t>(ms) * 1000000; tuttiNow() < end;) {
    tuttiProxyRun(r.w.proxy);
    usleep(100);
  }
}

/* A plain connection to the data port of `r`. */
int Dial(const Rank &r) {
  tuttiSocketHandle handle;
  memcpy(&handle, r.peers[r.w.rank].net, sizeof handle);
  tuttiAddress to = handle.addresses.a[0];
  int fd = socket(to.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(0, connect(fd, &to.sa, tuttiAddressLength(&to))) << strerror(errno);
  return fd;
}

tuttiNetHello HelloTo(const Rank &r, int channel) {
  tuttiNetHello h{};
  tuttiHelloFill(&h.head, r.w.commHash, tuttiHelloNet, 1 - r.w.rank, r.w.rank, r.w.nranks);
  h.channel = channel;
  h.parts = 1;
  return h;
}

/* Reads until `bytes` have come, or the end (false). */
bool ReadAll(int fd, void *to, size_t bytes) {
  for (size_t got = 0; got < bytes;) {
    pollfd p{fd, POLLIN, 0};
    if (poll(&p, 1, 60000) != 1) return false;
    ssize_t n = read(fd, static_cast<char *>(to) + got, bytes - got);
    if (n <= 0) return false;
    got += static_cast<size_t>(n);
  }
  return true;
}

bool Send(int fd, const void *data, size_t bytes) {
  return send(fd, data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

/* Says hello as a peer of `r` would, and confirms the reply; false: there was none. */
bool Greet(int fd, const Rank &r, tuttiNetHello *h, bool confirmed = true) {
  tuttiSession session = {r.w.secret, {}};
  tuttiReply reply;
  uint8_t confirm[TUTTI_MAC_BYTES];
  EXPECT_EQ(tuttiSuccess, tuttiHelloSeal(h, sizeof *h, &session));
  if (!Send(fd, h, sizeof *h) || !ReadAll(fd, &reply, sizeof reply)) return false;
  EXPECT_EQ(tuttiReplyAccepted, reply.kind);
  EXPECT_TRUE(tuttiReplyGenuine(&session, &reply, nullptr));
  tuttiConfirmOf(&session, &reply, confirm);
  return !confirmed || Send(fd, confirm, sizeof confirm);
}

/* True if the other side has ended the connection without a byte. */
bool Dropped(int fd) {
  char c;
  pollfd p{fd, POLLIN, 0};
  return poll(&p, 1, 60000) == 1 && recv(fd, &c, 1, MSG_DONTWAIT) <= 0;
}

/* The pair still works: one message each on channel 3. */
void StillWorks(Pair &p) {
  tuttiConn out = p.a.Open(3, TUTTI_SEND), in = p.b.Open(3, TUTTI_RECV);
  net::Publish(p.a, &out, 5000);
  ASSERT_TRUE(p.b.Await(&in)) << p.b.Error();
  EXPECT_TRUE(net::Take(p.b, &in, 5000));
  p.a.Close(&out);
  p.b.Close(&in);
  EXPECT_EQ("", p.a.Error());
  EXPECT_EQ("", p.b.Error());
}

TEST(NetHostile, GarbageIsDroppedWithoutAWord) {
  Pair p;
  ASSERT_TRUE(p.ok());
  tuttiConn in = p.b.Open(0, TUTTI_RECV); /* serves the port */
  std::mt19937 random(3);
  for (int i = 0; i < 50; i++) {
    int fd = Dial(p.b);
    uint8_t junk[200];
    for (auto &c : junk)
      c = static_cast<uint8_t>(random());
    (void)Send(fd, junk, sizeof junk);
    EXPECT_TRUE(Dropped(fd));
    close(fd);
  }
  StillWorks(p);
  p.b.Close(&in);
}

TEST(NetHostile, EachFieldOfTheHelloIsChecked) {
  Pair p;
  ASSERT_TRUE(p.ok());
  tuttiConn in = p.b.Open(0, TUTTI_RECV);
  std::vector<std::function<void(tuttiNetHello *)>> lies = {
      [](tuttiNetHello *h) { h->head.magic++; },
      [](tuttiNetHello *h) { h->head.version++; },
      [](tuttiNetHello *h) { h->head.kind = tuttiHelloAsk; },
      [](tuttiNetHello *h) { h->head.hash++; },
      [](tuttiNetHello *h) { h->head.to = 0; },
      [](tuttiNetHello *h) { h->head.from = 1; },
      [](tuttiNetHello *h) { h->head.from = 2; },
      [](tuttiNetHello *h) { h->head.from = -1; },
      [](tuttiNetHello *h) { h->channel = -1; },
      [](tuttiNetHello *h) { h->channel = TUTTI_CHANNELS; },
      [](tuttiNetHello *h) { h->parts = 0; },
      [](tuttiNetHello *h) { h->parts = TUTTI_SOCKET_PARTS + 1; },
      [](tuttiNetHello *h) { h->part = 1; },
      [](tuttiNetHello *h) { h->part = -1; },
  };
  tuttiNetHello good = HelloTo(p.b, 0);
  EXPECT_EQ(nullptr, tuttiSocketHelloCheck(&p.b.w, &good));
  for (size_t i = 0; i < lies.size(); i++) {
    tuttiNetHello h = good;
    lies[i](&h);
    if (i >= 2) { /* the first are for the greeter */
      EXPECT_NE(nullptr, tuttiSocketHelloCheck(&p.b.w, &h)) << "lie " << i;
    }
    int fd = Dial(p.b);
    EXPECT_FALSE(Greet(fd, p.b, &h)) << "lie " << i;
    close(fd);
  }
  int fd = Dial(p.b); /* nothing is wrong but the proof */
  tuttiSession session = {p.b.w.secret, {}};
  EXPECT_EQ(tuttiSuccess, tuttiHelloSeal(&good, sizeof good, &session));
  good.head.mac[0]++;
  EXPECT_TRUE(Send(fd, &good, sizeof good));
  EXPECT_TRUE(Dropped(fd));
  close(fd);
  StillWorks(p);
  p.b.Close(&in);
}

TEST(NetHostile, AFloodOfHalfOpenConnectionsKeepsNobodyOut) {
  Pair p;
  ASSERT_TRUE(p.ok());
  tuttiConn in = p.b.Open(0, TUTTI_RECV);
  std::vector<int> fds;
  for (int i = 0; i < 3 * TUTTI_SOCKET_STRANGERS; i++) {
    fds.push_back(Dial(p.b));
    if (i % 2) (void)Send(fds.back(), "tt", 2);
  }
  StillWorks(p);
  EXPECT_TRUE(Dropped(fds[0])) << "the oldest makes room";
  for (int fd : fds)
    close(fd);
  StillWorks(p);
  p.b.Close(&in);
}

/* Who repeats what a peer has said gets no connection, neither a new one nor another's. */
TEST(NetHostile, WhatWasHeardOpensNothing) {
  Pair p;
  ASSERT_TRUE(p.ok());
  tuttiConn in = p.b.Open(0, TUTTI_RECV);
  tuttiNetHello h = HelloTo(p.b, 0);
  int heard = Dial(p.b);
  ASSERT_TRUE(Greet(heard, p.b, &h, false)); /* it had not come yet */
  int fd = Dial(p.b);
  EXPECT_TRUE(Send(fd, &h, sizeof h));
  EXPECT_TRUE(Dropped(fd)) << "while the other is there, not even a reply";
  close(fd);
  close(heard);
  Spin(p.b, 50);
  fd = Dial(p.b);
  uint8_t confirm[TUTTI_MAC_BYTES] = {1};
  tuttiReply reply;
  EXPECT_TRUE(Send(fd, &h, sizeof h));
  ASSERT_TRUE(ReadAll(fd, &reply, sizeof reply));
  EXPECT_TRUE(Send(fd, confirm, sizeof confirm));
  EXPECT_TRUE(Dropped(fd));
  close(fd);
  StillWorks(p);
  p.b.Close(&in);
}

/* Both for an end that is open and for one that will be. */
TEST(NetHostile, ASecondHelloForAConnectionInUseIsDropped) {
  Pair p;
  ASSERT_TRUE(p.ok());
  tuttiConn in = p.b.Open(0, TUTTI_RECV), out = p.a.Open(0, TUTTI_SEND);
  net::Publish(p.a, &out, 10);
  ASSERT_TRUE(p.b.Await(&in));
  tuttiNetHello h = HelloTo(p.b, 0);
  h.parts = static_cast<int>(tuttiSettingInt(TUTTI_SETTING_SOCKET_NSOCKS));
  int fd = Dial(p.b);
  EXPECT_TRUE(Send(fd, &h, sizeof h));
  EXPECT_TRUE(Dropped(fd));
  close(fd);
  EXPECT_TRUE(net::Take(p.b, &in, 10));
  net::Publish(p.a, &out, 20);
  ASSERT_TRUE(p.b.Await(&in)) << p.b.Error();
  EXPECT_TRUE(net::Take(p.b, &in, 20));
  p.a.Close(&out);
  p.b.Close(&in);
}

/* The first message of a connection that was dialled by hand arrives. */
void Carries(int fd, Rank &to, tuttiConn *in) {
  tuttiSlotDescriptor line{};
  line.seq.v = 1;
  line.where = TUTTI_WHERE_INLINE;
  line.bytes = 3;
  line.sig.seq = 1000;
  net::Fill(line.inlined, 0, 3);
  EXPECT_TRUE(Send(fd, &line, sizeof line));
  ASSERT_TRUE(to.Await(in)) << to.Error();
  EXPECT_TRUE(net::Take(to, in, 3));
}

TEST(NetHostile, ANewerConnectionReplacesOneThatCarriedNothing) {
  for (bool early : {false, true}) {
    Pair p;
    ASSERT_TRUE(p.ok());
    tuttiConn serve = p.b.Open(1, TUTTI_RECV), in{};
    if (!early) in = p.b.Open(0, TUTTI_RECV);
    tuttiNetHello h = HelloTo(p.b, 0);
    int old = Dial(p.b), fresh = Dial(p.b);
    ASSERT_TRUE(Greet(old, p.b, &h));
    ASSERT_TRUE(Greet(fresh, p.b, &h));
    EXPECT_TRUE(Dropped(old));
    if (early) in = p.b.Open(0, TUTTI_RECV);
    Carries(fresh, p.b, &in);
    close(old);
    close(fresh);
    p.b.Close(&in);
    p.b.Close(&serve);
  }
}

/* The hello of a connection that the sender gave up may be read after that of the next one. */
TEST(NetHostile, AnOlderAttemptReplacesNothing) {
  for (bool early : {false, true}) {
    Pair p;
    ASSERT_TRUE(p.ok());
    tuttiConn serve = p.b.Open(1, TUTTI_RECV), in{};
    if (!early) in = p.b.Open(0, TUTTI_RECV);
    tuttiNetHello h = HelloTo(p.b, 0);
    int old = Dial(p.b), fresh = Dial(p.b);
    h.attempt = 2;
    ASSERT_TRUE(Greet(fresh, p.b, &h));
    Spin(p.b, 50); /* its confirm is read */
    h.attempt = 1;
    EXPECT_FALSE(Greet(old, p.b, &h));
    if (early) in = p.b.Open(0, TUTTI_RECV);
    Carries(fresh, p.b, &in);
    close(old);
    close(fresh);
    p.b.Close(&in);
    p.b.Close(&serve);
  }
}

/* A sender that lost patience resets what it gave up: no failure, the next connection is on its
 * way.
 */
TEST(NetHostile, AConnectionGivenUpBeforeItCarriedAnythingIsNoFailure) {
  for (bool early : {false, true}) {
    Pair p;
    ASSERT_TRUE(p.ok());
    tuttiConn serve = p.b.Open(1, TUTTI_RECV), in{};
    if (!early) in = p.b.Open(0, TUTTI_RECV);
    tuttiNetHello h = HelloTo(p.b, 0);
    int old = Dial(p.b);
    ASSERT_TRUE(Greet(old, p.b, &h));
    linger reset = {1, 0};
    setsockopt(old, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    Spin(p.b, 50);
    close(old);
    if (early) in = p.b.Open(0, TUTTI_RECV);
    Spin(p.b, 50);
    EXPECT_FALSE(p.b.Failed()) << p.b.Error();
    int fresh = Dial(p.b);
    ASSERT_TRUE(Greet(fresh, p.b, &h));
    Carries(fresh, p.b, &in);
    close(fresh);
    p.b.Close(&in);
    p.b.Close(&serve);
  }
}

/* Says hello as rank 0 would, then sends `bytes`; returns what rank 1 makes of them. */
std::string Lie(const void *bytes, size_t n, bool closeAfter) {
  Pair p(4096);
  if (!p.ok()) return "";
  tuttiConn in = p.b.Open(0, TUTTI_RECV);
  tuttiNetHello h = HelloTo(p.b, 0);
  int fd = Dial(p.b);
  EXPECT_TRUE(Greet(fd, p.b, &h));
  EXPECT_TRUE(Send(fd, bytes, n));
  if (closeAfter) shutdown(fd, SHUT_WR);
  for (uint64_t end = net::Soon(); !p.b.Failed() && tuttiNow() < end;) {
    tuttiProxyRun(p.b.w.proxy);
    usleep(100);
  }
  EXPECT_EQ(tuttiRemoteError, p.b.code);
  EXPECT_FALSE(tuttiConnReady(&in));
  close(fd);
  p.b.Close(&in);
  return p.b.Error();
}

tuttiSlotDescriptor Line(uint64_t seq, uint32_t where, uint32_t bytes) {
  tuttiSlotDescriptor line{};
  line.seq.v = seq;
  line.where = where;
  line.bytes = bytes;
  return line;
}

TEST(NetHostile, DescriptorsAreChecked) {
  struct {
    tuttiSlotDescriptor line;
    const char *text;
  } lies[] = {
      {Line(2, TUTTI_WHERE_SLOT, 8), "out of order"},
      {Line(0, TUTTI_WHERE_SLOT, 8), "out of order"},
      {Line(1, TUTTI_WHERE_SLOT, 4097), "too long for its slot"},
      {Line(1, TUTTI_WHERE_INLINE, TUTTI_INLINE_MAX + 1), "too long for its descriptor"},
      {Line(1, TUTTI_WHERE_DIRECT, 8), "unknown place"},
      {Line(1, 77, 8), "unknown place"},
  };
  for (auto &lie : lies) {
    std::string text = Lie(&lie.line, sizeof lie.line, false);
    EXPECT_NE(std::string::npos, text.find(lie.text)) << text;
    EXPECT_NE(std::string::npos, text.find("rank 0 (host testhost0, pid ")) << text;
  }
}

TEST(NetHostile, AnEndInsideAMessageIsAFailure) {
  uint8_t half[TUTTI_LINE + 10] = {};
  tuttiSlotDescriptor line = Line(1, TUTTI_WHERE_SLOT, 4096);
  memcpy(half, &line, sizeof line);
  for (size_t n : {size_t{1}, size_t{127}, size_t{128}, sizeof half}) {
    std::string text = Lie(half, n, true);
    EXPECT_NE(std::string::npos, text.find("closed the connection in mid-message")) << text;
    EXPECT_NE(std::string::npos, text.find("rank 0 (host testhost0, pid ")) << text;
  }
}

TEST(NetHostile, FuzzedHellosAndLinesForASecond) {
  Pair p(4096);
  ASSERT_TRUE(p.ok());
  std::mt19937 random(11);
  tuttiNetHello good = HelloTo(p.b, 2);
  tuttiSlotDescriptor line = Line(6, TUTTI_WHERE_SLOT, 100);
  for (uint64_t end = tuttiNow() + net::kSecond; tuttiNow() < end;) {
    tuttiNetHello h = good;
    tuttiSlotDescriptor l = line;
    for (unsigned n = 1 + random() % 4; n; n--) {
      reinterpret_cast<uint8_t *>(&h)[random() % sizeof h] = static_cast<uint8_t>(random());
      reinterpret_cast<uint8_t *>(&l)[random() % 32] = static_cast<uint8_t>(random());
    }
    if (!tuttiSocketHelloCheck(&p.b.w, &h)) {
      ASSERT_EQ(0, h.head.from);
      ASSERT_TRUE(h.channel >= 0 && h.channel < TUTTI_CHANNELS);
      ASSERT_TRUE(h.part >= 0 && h.part < h.parts && h.parts <= TUTTI_SOCKET_PARTS);
    }
    if (!tuttiSocketDescriptorCheck(&l, 5, 4096, false)) {
      ASSERT_TRUE(l.where == TUTTI_WHERE_SLOT || l.where == TUTTI_WHERE_INLINE);
      ASSERT_LE(l.bytes, l.where == TUTTI_WHERE_SLOT ? 4096u : TUTTI_INLINE_MAX);
    }
  }
}

/* Every payload is covered once, by whole pages but for the end. */
TEST(NetHostile, SharesCoverThePayload) {
  for (int parts = 1; parts <= TUTTI_SOCKET_PARTS; parts++)
    for (size_t bytes = 0; bytes < 300000; bytes += bytes < 200 ? 1 : 997) {
      size_t at = 0, begin, share;
      for (int i = 0; i < parts; i++) {
        tuttiSocketShare(bytes, parts, i, &begin, &share);
        ASSERT_EQ(at, begin) << bytes << " over " << parts;
        at += share;
        ASSERT_TRUE(i == 0 || bytes > TUTTI_STRIPE_MIN || share == 0);
      }
      ASSERT_EQ(bytes, at);
    }
}

/* Runs `peer` as rank 0 in a child process and `mine` as rank 1 here. */
void WithProcess(const std::function<void(Rank &)> &peer,
                 const std::function<void(Rank &, pid_t)> &mine, size_t slotBytes = 1 << 18) {
  int sv[2];
  ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv));
  auto meet = [](Rank &r, int fd) {
    tuttiPeer other;
    return Send(fd, &r.peers[r.w.rank], sizeof(tuttiPeer)) && ReadAll(fd, &other, sizeof other) &&
           (r.Meet(other), true);
  };
  pid_t child = fork();
  if (child == 0) {
    alarm(120);
    close(sv[1]);
    {
      Rank r;
      r.Prepare(0, slotBytes);
      if (!r.ok() || !meet(r, sv[0])) _exit(2);
      peer(r);
      (void)ReadAll(sv[0], sv, 1); /* until the parent is done */
    }
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  close(sv[0]);
  {
    Rank r;
    r.Prepare(1, slotBytes);
    ASSERT_TRUE(r.ok());
    ASSERT_TRUE(meet(r, sv[1]));
    mine(r, child);
  }
  close(sv[1]);
  int status;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << status;
}

TEST(NetProcesses, MessagesOfAllSizes) {
  std::vector<size_t> sizes;
  for (size_t i = 0; i < 300; i++)
    sizes.push_back(i * i * 2);
  WithProcess(
      [&](Rank &r) {
        tuttiConn out = r.Open(0, TUTTI_SEND);
        for (size_t bytes : sizes) {
          ASSERT_TRUE(r.Await(&out)) << r.Error();
          net::Publish(r, &out, bytes);
        }
        EXPECT_TRUE(r.Drain());
        r.Close(&out);
      },
      [&](Rank &r, pid_t) {
        tuttiConn in = r.Open(0, TUTTI_RECV);
        for (size_t bytes : sizes) {
          ASSERT_TRUE(r.Await(&in)) << r.Error();
          EXPECT_TRUE(net::Take(r, &in, bytes)) << bytes;
        }
        r.Close(&in);
      });
}

/* Only the test's own threads move anything here. So the peer dies with a part of its last message
 * sent: nobody reads, and it is more than sockets hold. */
TEST(NetProcesses, APeerKilledInMidMessageIsNamed) {
  constexpr int kWhole = 20, kBefore = 2;
  constexpr size_t kBytes = 1000, kHuge = 32 << 20;
  int stopped[2];
  ASSERT_EQ(0, pipe2(stopped, O_CLOEXEC));
  WithProcess(
      [&](Rank &r) {
        char c;
        tuttiProxyEnter(r.w.proxy);
        tuttiConn out = r.Open(0, TUTTI_SEND);
        for (int i = 0; i < kWhole; i++) {
          ASSERT_TRUE(r.Await(&out)) << r.Error();
          net::Publish(r, &out, kBytes);
        }
        ASSERT_TRUE(r.Drain());
        ASSERT_TRUE(ReadAll(stopped[0], &c, 1));
        net::Publish(r, &out, kHuge);
        for (uint64_t end = net::Soon(); !tuttiProxyRun(r.w.proxy) && tuttiNow() < end;) {
        }
        ASSERT_EQ(uint64_t{kWhole}, tuttiConnCredit(&out));
        raise(SIGKILL);
      },
      [&](Rank &r, pid_t child) {
        tuttiProxyEnter(r.w.proxy);
        tuttiConn in = r.Open(0, TUTTI_RECV);
        for (int i = 0; i < kBefore; i++) {
          ASSERT_TRUE(r.Await(&in)) << r.Error();
          EXPECT_TRUE(net::Take(r, &in, kBytes));
        }
        ASSERT_EQ(1, write(stopped[1], "", 1));
        siginfo_t died;
        ASSERT_EQ(0, waitid(P_PID, static_cast<id_t>(child), &died, WEXITED | WNOWAIT));
        EXPECT_EQ(CLD_KILLED, died.si_code);
        /* The end is known while the FIFO is full and more messages wait before it. */
        for (int i = 0; i < 100; i++)
          tuttiProxyRun(r.w.proxy);
        for (int i = kBefore; i < kWhole; i++) {
          ASSERT_TRUE(r.Await(&in)) << r.Error();
          EXPECT_TRUE(net::Take(r, &in, kBytes));
        }
        EXPECT_FALSE(r.Await(&in));
        EXPECT_TRUE(r.Failed());
        EXPECT_EQ(tuttiRemoteError, r.code);
        std::string who = "rank 0 (host testhost0, pid " + std::to_string(child) + ")";
        EXPECT_NE(std::string::npos, r.Error().find(who)) << r.Error();
        r.Close(&in);
      },
      kHuge);
  close(stopped[0]), close(stopped[1]);
}

TEST(NetProcesses, SendingToAKilledPeerFails) {
  WithProcess(
      [&](Rank &r) {
        tuttiConn in = r.Open(0, TUTTI_RECV);
        (void)r.Await(&in);
        pause();
      },
      [&](Rank &r, pid_t child) {
        tuttiConn out = r.Open(0, TUTTI_SEND);
        for (int i = 0; i < 4; i++)
          net::Publish(r, &out, 1000);
        EXPECT_TRUE(r.Drain());
        kill(child, SIGKILL);
        for (uint64_t end = net::Soon(); !r.Failed() && tuttiNow() < end;) {
          if (tuttiConnReady(&out)) net::Publish(r, &out, 1 << 18);
          tuttiProxyRun(r.w.proxy);
        }
        EXPECT_EQ(tuttiRemoteError, r.code);
        EXPECT_NE(std::string::npos, r.Error().find("sending to rank 0")) << r.Error();
        EXPECT_TRUE(tuttiNetDrained(&r.w)) << "a failed end has nothing to wait for";
        r.Close(&out);
      });
}

/* The handle of a rank that is not there (yet): a port that refuses, then listens. */
TEST(NetHostile, RefusedUntilThePeerIsUp) {
  Pair p;
  ASSERT_TRUE(p.ok());
  tuttiSocketHandle lie;
  memcpy(&lie, p.b.peers[1].net, sizeof lie);
  HeldPort held; /* refuses */
  lie.addresses.n = 1;
  lie.addresses.a[0] = held.address;
  memcpy(p.a.peers[1].net, &lie, sizeof lie);
  tuttiConn out = p.a.Open(0, TUTTI_SEND);
  net::Publish(p.a, &out, 5);
  Spin(p.a, 300);
  EXPECT_FALSE(p.a.Failed()) << p.a.Error();
  EXPECT_FALSE(tuttiNetDrained(&p.a.w));
  int fd;
  ASSERT_EQ(tuttiSuccess, tuttiListen(&held.address, &fd)) << tuttiErrorText();
  /* Whoever is up plays the receiver by hand. */
  int got = -1;
  tuttiAddress from;
  for (uint64_t end = net::Soon(); got < 0 && tuttiNow() < end; usleep(1000))
    got = tuttiAcceptNow(fd, &from);
  ASSERT_GE(got, 0) << p.a.Error();
  tuttiNetHello hello;
  ASSERT_TRUE(ReadAll(got, &hello, sizeof hello));
  EXPECT_EQ(0, hello.head.from);
  EXPECT_EQ(1, hello.head.to);
  tuttiSession session = {p.a.w.secret, {}};
  EXPECT_TRUE(tuttiHelloGenuine(&hello, sizeof hello, &session));
  uint8_t confirm[TUTTI_MAC_BYTES], confirmed[TUTTI_MAC_BYTES];
  tuttiReplySend(got, &session, tuttiReplyAccepted, 0, nullptr, 0, confirm);
  ASSERT_TRUE(ReadAll(got, confirmed, sizeof confirmed));
  EXPECT_EQ(0, memcmp(confirm, confirmed, sizeof confirm));
  tuttiSlotDescriptor line;
  ASSERT_TRUE(ReadAll(got, &line, sizeof line));
  EXPECT_EQ(nullptr, tuttiSocketDescriptorCheck(&line, 0, 4096, false));
  EXPECT_EQ(0u, line.addr);
  EXPECT_TRUE(net::Right(line.inlined, 0, 5));
  close(got);
  close(fd);
  p.a.Close(&out);
}

/* An address where somebody else listens, sorted first, must not do harm. */
TEST(NetHostile, ASenderPassesByWhoeverIsNotThePeer) {
  Pair p;
  ASSERT_TRUE(p.ok());
  tuttiAddress wrong{};
  wrong.v4.sin_family = AF_INET;
  wrong.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd;
  ASSERT_EQ(tuttiSuccess, tuttiListen(&wrong, &fd)); /* accepts, and never answers */
  tuttiSocketHandle handle;
  memcpy(&handle, p.b.peers[1].net, sizeof handle);
  handle.addresses.a[1] = handle.addresses.a[0];
  handle.addresses.a[0] = wrong;
  handle.addresses.n = 2;
  memcpy(p.a.peers[1].net, &handle, sizeof handle);
  tuttiConn out = p.a.Open(0, TUTTI_SEND), in = p.b.Open(0, TUTTI_RECV);
  net::Publish(p.a, &out, 60000);
  ASSERT_TRUE(p.b.Await(&in)) << p.b.Error() << p.a.Error();
  EXPECT_TRUE(net::Take(p.b, &in, 60000));
  p.a.Close(&out);
  p.b.Close(&in);
  close(fd);
}

TEST(NetHostile, NobodyThereEndsAtTheTimeout) {
  Pair p(4096, 400);
  ASSERT_TRUE(p.ok());
  HeldPort held;
  tuttiSocketHandle handle;
  memcpy(&handle, p.b.peers[1].net, sizeof handle);
  handle.addresses.n = 1;
  handle.addresses.a[0] = held.address;
  memcpy(p.a.peers[1].net, &handle, sizeof handle);
  tuttiConn out = p.a.Open(0, TUTTI_SEND);
  net::Publish(p.a, &out, 1000);
  for (uint64_t end = net::Soon(); !p.a.Failed() && tuttiNow() < end;)
    usleep(1000); /* the thread */
  EXPECT_EQ(tuttiTimeout, p.a.code);
  for (const char *part : {"rank 0 cannot connect to rank 1 (host testhost1, pid ",
                           "127.0.0.1:", "from lo (127.0.0.1", "Connection refused"})
    EXPECT_NE(std::string::npos, p.a.Error().find(part)) << part << " in: " << p.a.Error();
  p.a.Close(&out);
}

/* A ring's connection on which a broadcast sends nothing, to a peer that is done. */
TEST(NetHostile, WhoHasNothingToSendNeedsNobody) {
  Pair p(4096, 300);
  ASSERT_TRUE(p.ok());
  p.b.Leave();
  tuttiConn out = p.a.Open(0, TUTTI_SEND);
  Spin(p.a, 1000); /* the time is the subject: longer than the timeout */
  EXPECT_FALSE(p.a.Failed()) << p.a.Error();
  net::Publish(p.a, &out, 1000);
  for (uint64_t end = net::Soon(); !p.a.Failed() && tuttiNow() < end;)
    usleep(1000);
  EXPECT_EQ(tuttiTimeout, p.a.code) << p.a.Error();
  p.a.Close(&out);
}

/* Its kernel accepts, but nobody answers before its first call, which comes after the timeout. */
TEST(NetHostile, ALatePeerIsWaitedFor) {
  Pair p(4096, 300);
  ASSERT_TRUE(p.ok());
  tuttiConn out = p.a.Open(0, TUTTI_SEND);
  net::Publish(p.a, &out, 1000);
  Spin(p.a, 1000); /* the time is the subject: longer than the timeout */
  ASSERT_FALSE(p.a.Failed()) << p.a.Error();
  tuttiConn in = p.b.Open(0, TUTTI_RECV);
  ASSERT_TRUE(p.b.Await(&in)) << p.b.Error() << p.a.Error();
  EXPECT_TRUE(net::Take(p.b, &in, 1000));
  p.a.Close(&out);
  p.b.Close(&in);
}

/* A process that stood still for longer than the timeout, and longer than one address is asked. */
TEST(NetHostile, StandingStillIsNoSilenceOfThePeer) {
  Pair p(4096, 300);
  ASSERT_TRUE(p.ok());
  tuttiConn out = p.a.Open(0, TUTTI_SEND);
  net::Publish(p.a, &out, 1000);
  {
    net::Entered entered(p.a.w.proxy); /* so the proxy's thread rests */
    Spin(p.a, 50);
    usleep(1500000);
    Spin(p.a, 50);
  }
  ASSERT_FALSE(p.a.Failed()) << p.a.Error();
  tuttiConn in = p.b.Open(0, TUTTI_RECV);
  ASSERT_TRUE(p.b.Await(&in)) << p.b.Error() << p.a.Error();
  EXPECT_TRUE(net::Take(p.b, &in, 1000));
  p.a.Close(&out);
  p.b.Close(&in);
}

std::string Why(const tuttiPath &path, const Rank &r) {
  char why[TUTTI_SENTENCE];
  return tuttiPathText(&path, &r.peers[0], &r.peers[1], why);
}

std::string Via(const tuttiPath &path, const Rank &r) {
  char via[TUTTI_VIA];
  return tuttiPathVia(&path, &r.peers[0], &r.peers[1], via);
}

TEST(NetHostile, ARecordWithoutAddressIsRefused) {
  Pair p;
  ASSERT_TRUE(p.ok());
  for (int kind = 0; kind < 3; kind++) {
    tuttiSocketHandle handle{};
    if (kind == 1) handle.addresses.n = 1000;
    if (kind == 2) handle.addresses.n = -1;
    memcpy(p.a.peers[1].net, &handle, sizeof handle);
    p.a.FillPath();
    tuttiConn c{};
    EXPECT_EQ(tuttiRemoteError, tuttiTransportNet.open(&p.a.w, 1, 0, TUTTI_SEND, false, &c));
    EXPECT_NE(nullptr, strstr(tuttiErrorText(), "the record of rank 1")) << tuttiErrorText();
    EXPECT_EQ(nullptr, p.a.paths[1].transport);
    EXPECT_THAT(Why(p.a.paths[1], p.a), HasSubstr("no valid network address"));
  }
}

TEST(NetHostile, PathsExplainThemselves) {
  Pair p;
  ASSERT_TRUE(p.ok());
  tuttiPath path, back;
  tuttiTransportSelect(&p.a.peers[0], &p.a.peers[1], &path);
  EXPECT_EQ(&tuttiTransportNet, path.transport);
  EXPECT_EQ(&tuttiNetSocket, path.net);
  EXPECT_TRUE(path.network);
  EXPECT_EQ("NET/Socket/0", Via(path, p.a));
  EXPECT_THAT(Why(path, p.a), HasSubstr("inside host testhost0"));
  p.a.peers[1].hostId++;
  tuttiTransportSelect(&p.a.peers[0], &p.a.peers[1], &path);
  tuttiTransportSelect(&p.a.peers[1], &p.a.peers[0], &back);
  EXPECT_EQ(Why(path, p.a), Why(back, p.a));
  EXPECT_THAT(Why(path, p.a), ContainsRegex("TCP from .* of host testhost0 to .* of host "
                                            "testhost1, [0-9.]+ Gb/s; not P2P: different"));
  EXPECT_GT(path.bandwidthGBs, 0);
  memset(p.a.peers[1].netName, 0, sizeof p.a.peers[1].netName);
  tuttiTransportSelect(&p.a.peers[0], &p.a.peers[1], &path);
  EXPECT_EQ(nullptr, path.transport);
  EXPECT_THAT(Why(path, p.a),
              HasSubstr("not NET: no common network: rank 0 has \"Socket\", rank 1 has none"));
  auto *told = reinterpret_cast<char *>(p.a.peers[1].net);
  snprintf(told, sizeof p.a.peers[1].net, " (NET/IB: no port\n\x1b of hca0)");
  EXPECT_THAT(Why(path, p.a), HasSubstr("rank 1 has none (NET/IB: no port?? of hca0)"));
  memset(told, 'x', sizeof p.a.peers[1].net); /* without an end */
  told[0] = ' ';
  EXPECT_THAT(Why(path, p.a), HasSubstr("rank 1 has none xxx"));
}

TEST(NetHostile, AnUnknownNetworkIsRefusedByName) {
  Rank r;
  tuttiPeer peer{};
  r.w.nranks = 2;
  r.w.netName = "Carrier pigeon";
  EXPECT_EQ(tuttiInvalidArgument, tuttiTransportNet.prepare(&r.w, &peer));
  EXPECT_NE(nullptr, strstr(tuttiErrorText(), "Carrier pigeon")) << tuttiErrorText();
  EXPECT_NE(nullptr, strstr(tuttiErrorText(), "Socket")) << tuttiErrorText();
}

/* Ranks of one host may do without. */
TEST(NetHostile, WithoutAnInterfaceThereIsNoNetwork) {
  Rank r;
  tuttiPeer peer{};
  r.w.nranks = 2;
  Setting wrong("TUTTI_SOCKET_IFNAME", "nosuchinterface");
  ASSERT_EQ(tuttiSuccess, tuttiTransportNet.prepare(&r.w, &peer));
  EXPECT_EQ(nullptr, r.w.net);
  EXPECT_STREQ("", peer.netName);
  EXPECT_NE(nullptr, strstr(tuttiErrorText(), "nosuchinterface")) << tuttiErrorText();
}

/* A peer that has another network as well is met over sockets; the path says why. */
TEST(NetHostile, SocketsServeWhereOnlyOneHasRdma) {
  if (tuttiNets[0] == &tuttiNetSocket) GTEST_SKIP() << "built without NET/IB";
  Pair p;
  ASSERT_TRUE(p.ok());
  tuttiPath path;
  snprintf(p.a.peers[1].netName, sizeof p.a.peers[1].netName, "%s", tuttiNets[0]->name);
  for (int first = 0; first < 2; first++) {
    tuttiTransportSelect(&p.a.peers[first], &p.a.peers[1 - first], &path);
    EXPECT_EQ(&tuttiNetSocket, path.net);
    EXPECT_EQ("NET/Socket/0", Via(path, p.a));
    EXPECT_THAT(Why(path, p.a), HasSubstr("not NET/IB: rank 0 on host testhost0 has only Socket"));
  }
}

} // namespace

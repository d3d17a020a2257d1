// Connections of the ring that are cut while both ranks live, deaths that come after a failure, and
// ranks that give up before they have a watch.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "watch/frame.h"
#include "watch/ring.h"

namespace watchtest {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// Ends a connection under both watches, as something between their hosts may.
void cut(int fd) {
  ASSERT_EQ(shutdown(fd, SHUT_RDWR), 0);
}

// A failure at one rank reaches all others, so the ring is whole, or a chain.
void expectWhole(Ring &ring, int from) {
  tuttiWatchFail(ring.at(from).watch, tuttiInvalidUsage, "told at last");
  for (int r = 0; r < ring.size(); r++) {
    if (r == from) continue;
    EXPECT_EQ(ring.owner(r).waitFailed(), "told at last") << "rank " << r;
  }
}

// What rank r says from now on reaches the next one: over a connection that is made anew, if the
// old one was cut.
bool isHeardByNext(Ring &ring, int r) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  const std::string said = "said after the cut";
  ring.owner(r).setState(said);
  for (std::string heard; heard != said && std::chrono::steady_clock::now() < end;) {
    tuttiAnswer told = {};
    int next = (r + 1) % ring.size();
    std::string bytes = tellListener(ring, next, askHello(ring.at(next).bootstrap, r));
    memcpy(&told, bytes.data(), std::min(bytes.size(), sizeof(told)));
    heard = text(told.previous);
    if (heard == said) return true;
  }
  return false;
}

TEST(WatchCut, IsMendedAndNoDeath) {
  for (int n : {2, 3, 5}) {
    Ring ring(n);
    int fd = ring.at(0).bootstrap.nextFd;
    ring.startAll();
    cut(fd);
    EXPECT_TRUE(isHeardByNext(ring, 0));
    for (int r = 0; r < n; r++)
      EXPECT_EQ(ring.owner(r).failures(), 0) << ring.owner(r).waitFailed();
    expectWhole(ring, 1);
  }
}

// All of them at once: whichever way the news goes, it must come.
TEST(WatchCut, OfAllConnectionsWithAFailureUnderWay) {
  for (int round = 0; round < 20; round++) {
    Ring ring(4);
    std::vector<int> fds;
    for (int r = 0; r < 4; r++)
      fds.push_back(ring.at(r).bootstrap.nextFd);
    ring.startAll();
    for (int fd : fds)
      cut(fd);
    expectWhole(ring, round % 4);
  }
}

TEST(WatchCut, OfARankThatLeavesIsNoDeath) {
  for (int round = 0; round < 20; round++) {
    Ring ring(3);
    ring.startAll();
    for (int r = 0; r < 3; r++)
      ring.stop(r);
    for (int r = 0; r < 3; r++)
      EXPECT_EQ(ring.owner(r).failures(), 0);
  }
}

// Only the previous rank of this communicator may take a link over.
TEST(WatchCut, StrangersDoNotRejoin) {
  Ring ring(3);
  ring.startAll();
  auto rejoin = [&](int from, auto change, bool damaged = false, bool lying = false) {
    tuttiHello hello = askHello(ring.at(1).bootstrap, from); // whose previous rank is 0
    hello.kind = tuttiHelloRejoin;
    change(hello);
    return tellListener(ring, 1, hello, damaged, lying);
  };
  auto same = [](tuttiHello &) {};
  for (int from : {1, 2, 7, -1})
    EXPECT_EQ(rejoin(from, same), "") << from;
  EXPECT_EQ(rejoin(0, [](tuttiHello &h) { h.hash++; }), "");
  EXPECT_EQ(rejoin(0, [](tuttiHello &h) { h.to = 2; }), "");
  EXPECT_EQ(rejoin(0, [](tuttiHello &h) { h.nranks = 4; }), "");
  EXPECT_EQ(rejoin(0, same, true), "") << "who does not know the secret";
  EXPECT_EQ(rejoin(0, same, false, true), "") << "who repeats what he has heard";
  expectWhole(ring, 2);
}

// Among threads of one process nobody listens, and no network cuts anything: the end is believed.
TEST(WatchCut, WhereAllRanksAreTogetherIsADeath) {
  Ring ring(3);
  int fd = ring.at(0).bootstrap.nextFd;
  for (int r = 0; r < 3; r++) {
    ring.at(r).bootstrap.together = true;
    tuttiListenerClose(&ring.at(r).bootstrap.listener);
  }
  ring.startAll();
  cut(fd);
  for (int r = 0; r < 3; r++)
    EXPECT_THAT(ring.owner(r).waitFailed(), HasSubstr("closed without goodbye")) << r;
}

// A rank whose process is gone, as far as the others can see: nothing of it is open.
void die(Ring &ring, int r, const tuttiBootstrap &had) {
  (void)ring.at(r);
  for (int fd : {had.prevFd, had.nextFd})
    shutdown(fd, SHUT_RDWR);
}

TEST(WatchDeath, IsToldAfterAnotherFailureToo) {
  Ring ring(5);
  for (int r : {1, 3}) // they never have a watch, so their ends close with the test's word
    tuttiListenerClose(&ring.at(r).bootstrap.listener);
  const tuttiBootstrap first = ring.at(1).bootstrap, second = ring.at(3).bootstrap;
  for (int r : {0, 2, 4})
    ring.start(r);
  die(ring, 1, first);
  for (int r : {0, 2})
    EXPECT_THAT(ring.owner(r).waitFailed(), HasSubstr("rank 1 (host host1, pid 1001) died"));
  die(ring, 3, second);
  EXPECT_THAT(ring.owner(2).waitDead(2), UnorderedElementsAre(1, 3));
  for (int r : {0, 4})
    EXPECT_THAT(ring.owner(r).waitDead(2), UnorderedElementsAre(1, 3));
  for (int r : {0, 2, 4})
    EXPECT_EQ(ring.owner(r).failures(), 1);
}

// Who listens where a dead rank did, and has heard what is asked there, but does not know the
// secret.
TEST(WatchDeath, SomebodyElseAtItsPortIsNoLife) {
  for (auto kind : {tuttiReplyAccepted, tuttiReplyFailed}) {
    Ring ring(3);
    const tuttiBootstrap had = ring.at(1).bootstrap;
    const uint8_t guessed[16] = {};
    std::atomic<bool> over{false};
    std::thread other([&] {
      while (!over) {
        pollfd p = {had.listener.fds[0], POLLIN, 0};
        int fd = poll(&p, 1, 20) == 1 ? accept4(p.fd, nullptr, nullptr, SOCK_CLOEXEC) : -1;
        if (fd < 0) continue;
        tuttiHello hello = {};
        tuttiSession session = {guessed, {}};
        std::string heard = readSome(fd, sizeof(hello));
        memcpy(&hello, heard.data(), heard.size());
        memcpy(session.hello, hello.mac, sizeof(hello.mac));
        size_t bytes = kind == tuttiReplyFailed ? 6 : 0;
        tuttiReplySend(fd, &session, kind, tuttiInternalError, "forged", bytes, nullptr);
        EXPECT_EQ(readAll(fd), "") << "neither a confirm nor a frame";
        close(fd);
      }
    });
    for (int r : {0, 2})
      ring.start(r);
    die(ring, 1, had);
    for (int r : {0, 2})
      EXPECT_THAT(ring.owner(r).waitFailed(), HasSubstr("rank 1 (host host1, pid 1001) died"));
    over = true;
    other.join();
  }
}

// Its neighbours have their watches, and it fails before it has one.
TEST(WatchDecline, NamesTheCauseAndIsNoDeath) {
  Ring ring(3);
  for (int r : {0, 2})
    ring.start(r);
  tuttiBootstrap &b = ring.at(1).bootstrap;
  b.lastGather = true;
  TUTTI_FAIL(tuttiSystemError, "no memory for the watch");
  tuttiWatchDecline(&b, tuttiSystemError);
  ring.closeSockets(1);
  for (int r : {0, 2}) {
    EXPECT_THAT(ring.owner(r).waitFailed(), HasSubstr("rank 1 (host "));
    EXPECT_THAT(ring.owner(r).waitFailed(), HasSubstr("no memory for the watch"));
    EXPECT_EQ(ring.owner(r).waitDead(0).size(), 0u);
  }
}

} // namespace
} // namespace watchtest

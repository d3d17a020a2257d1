// The watch within one process: every rank of a ring, or one rank among neighbours that the test
// plays itself.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <netinet/tcp.h>
#include <sys/stat.h>

#include <atomic>
#include <random>
#include <thread>

#include "asleep.h"
#include "holdings.h"
#include "watch/frame.h"
#include "watch/ring.h"

namespace watchtest {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string frame(tuttiFrameType type, const std::string &payload = "") {
  char out[TUTTI_FRAME_MAX];
  size_t size = tuttiFrameWrite(out, sizeof(out), type, payload.data(), payload.size());
  return std::string(out, size);
}

std::string failureFrame(int code, int origin, const char *text) {
  tuttiFailureFrame failure;
  size_t size = tuttiFailureFill(&failure, static_cast<tuttiResult_t>(code), origin, -1, text);
  return frame(tuttiFrameFailure, std::string(reinterpret_cast<char *>(&failure), size));
}

// Of rank 1 of a communicator whose hash is 7.
tuttiAnswer someAnswer() {
  tuttiAnswer answer = {};
  answer.hash = 7;
  answer.rank = 1;
  answer.self.answered = 1;
  answer.next.answered = 2;
  return answer;
}

void sendText(int fd, const std::string &bytes) {
  ASSERT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), (ssize_t)bytes.size());
}

// ---- failures, aborts, goodbyes ----

TEST(Watch, FailureReachesEveryOtherRankOnce) {
  for (int n : {2, 3, 5, 16}) {
    Ring ring(n);
    ring.startAll();
    tuttiWatchFail(ring.at(1).watch, tuttiInvalidUsage, "rank 1 calls tuttiBroadcast");
    tuttiWatchFail(ring.at(1).watch, tuttiInternalError, "a second one");
    for (int r = 0; r < n; r++) {
      if (r == 1) continue;
      EXPECT_EQ(ring.owner(r).waitFailed(), "rank 1 calls tuttiBroadcast");
      EXPECT_EQ(ring.owner(r).code(), tuttiInvalidUsage);
    }
    for (int r = 0; r < n; r++)
      ring.stop(r);
    for (int r = 0; r < n; r++)
      EXPECT_EQ(ring.owner(r).failures(), r == 1 ? 0 : 1) << r;
  }
}

TEST(Watch, ConcurrentFailuresEachRankHearsOfOne) {
  Ring ring(9);
  ring.startAll();
  std::vector<std::thread> threads;
  for (int r : {0, 3, 4}) {
    threads.emplace_back(
        [&ring, r] { tuttiWatchFail(ring.at(r).watch, tuttiRemoteError, "one of three"); });
  }
  for (auto &thread : threads)
    thread.join();
  for (int r : {1, 2, 5, 6, 7, 8})
    EXPECT_EQ(ring.owner(r).waitFailed(), "one of three");
  for (int r = 0; r < 9; r++)
    ring.stop(r);
  for (int r : {1, 2, 5, 6, 7, 8})
    EXPECT_EQ(ring.owner(r).failures(), 1);
}

TEST(Watch, LongTextIsCutAndTerminated) {
  Ring ring(2);
  ring.startAll();
  tuttiWatchFail(ring.at(0).watch, tuttiTimeout, std::string(5000, 'x').c_str());
  EXPECT_EQ(ring.owner(1).waitFailed(), std::string(TUTTI_ERROR_TEXT - 1, 'x'));
}

TEST(Watch, FailureOfARankThatStopsAtOnceIsToldToEveryRank) {
  Ring ring(4);
  ring.startAll();
  ring.stop(2, true);
  for (int r : {0, 1, 3}) {
    EXPECT_EQ(ring.owner(r).waitFailed(), "gone");
    EXPECT_EQ(ring.owner(r).code(), tuttiRemoteError);
  }
  EXPECT_EQ(ring.owner(2).failures(), 0);
}

TEST(Watch, GoodbyeIsNoDeathAndFailuresGoTheOtherWayRound) {
  Ring ring(5);
  ring.startAll();
  ring.stop(1);
  tuttiWatchFail(ring.at(2).watch, tuttiTimeout, "after the goodbye");
  for (int r : {0, 3, 4})
    EXPECT_EQ(ring.owner(r).waitFailed(), "after the goodbye");
}

TEST(Watch, AllLeaveAtOnceWithoutFailure) {
  Ring ring(8);
  ring.startAll();
  std::vector<std::thread> threads;
  for (int r = 0; r < 8; r++)
    threads.emplace_back([&ring, r] { ring.stop(r); });
  for (auto &thread : threads)
    thread.join();
  for (int r = 0; r < 8; r++)
    EXPECT_EQ(ring.owner(r).failures(), 0);
}

TEST(Watch, StopOfNothingIsAllowed) {
  tuttiWatchStop(nullptr);
}

// ---- one rank between two connections of the test ----

class WatchAlone : public ::testing::Test {
protected:
  WatchAlone() : ring(3) {
    for (int r : {0, 2})
      tuttiListenerClose(&ring.at(r).bootstrap.listener);
    previous = ring.take(&ring.at(0).bootstrap.nextFd);
    next = ring.take(&ring.at(2).bootstrap.prevFd);
    ring.start(1);
  }
  ~WatchAlone() override {
    if (previous >= 0) close(previous);
    if (next >= 0) close(next);
  }
  void hangUp() {
    close(previous);
    previous = -1;
  }

  Ring ring;
  int previous, next; // the test is ranks 0 and 2
};

TEST_F(WatchAlone, ClosedConnectionIsADeath) {
  hangUp();
  EXPECT_THAT(ring.owner(1).waitFailed(), HasSubstr("rank 0 (host host0, pid 1000) died"));
  EXPECT_EQ(ring.owner(1).code(), tuttiRemoteError);
}

TEST_F(WatchAlone, ResetConnectionIsADeath) {
  const linger now = {1, 0};
  setsockopt(previous, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  hangUp();
  EXPECT_THAT(ring.owner(1).waitFailed(), HasSubstr("rank 0 (host host0, pid 1000) died"));
}

TEST_F(WatchAlone, FailureBeforeTheEndOfTheStreamCounts) {
  sendText(previous, frame(tuttiFrameHeartbeat, "x") + failureFrame(tuttiTimeout, 2, "late"));
  hangUp();
  EXPECT_EQ(ring.owner(1).waitFailed(), "late");
  EXPECT_EQ(ring.owner(1).code(), tuttiTimeout);
}

TEST_F(WatchAlone, FailureIsPassedOnButNotBack) {
  sendText(previous, failureFrame(tuttiTimeout, 2, "late"));
  EXPECT_EQ(ring.owner(1).waitFailed(), "late");
  ring.stop(1);
  EXPECT_THAT(readAll(next), HasSubstr("late"));
  EXPECT_THAT(readAll(previous), Not(HasSubstr("late")));
}

TEST_F(WatchAlone, GoodbyeIsAnsweredAndThenAnEndIsNoDeath) {
  sendText(previous, frame(tuttiFrameGoodbye));
  std::string want = frame(tuttiFrameHeartbeat, "state of 1") + frame(tuttiFrameGoodbyeSeen);
  EXPECT_EQ(readSome(previous, want.size()), want);
  hangUp();
  sendText(next, failureFrame(tuttiTimeout, 2, "the first failure"));
  EXPECT_EQ(ring.owner(1).waitFailed(), "the first failure");
}

TEST_F(WatchAlone, StopDoesNotWaitForEverForASilentNeighbour) {
  ring.stop(1);
  EXPECT_THAT(readAll(next), ::testing::EndsWith(frame(tuttiFrameGoodbye)));
}

TEST_F(WatchAlone, FramesMayArriveBitByBit) {
  for (char c : frame(tuttiFrameHeartbeat, "x") + failureFrame(tuttiInvalidUsage, 0, "bytewise"))
    sendText(previous, std::string(1, c));
  EXPECT_EQ(ring.owner(1).waitFailed(), "bytewise");
}

TEST_F(WatchAlone, ALateAnswerTellsTheLastHeartbeats) {
  sendText(previous, frame(tuttiFrameHeartbeat, "first") + frame(tuttiFrameHeartbeat, "at op 7"));
  std::vector<tuttiWatchAnswer> answers;
  do {
    answers = ring.ask(1, 0);
  } while (answers[0].answered == 0 || text(answers[0]) == "first");
  EXPECT_EQ(answers[0].answered, 2);
  EXPECT_EQ(text(answers[0]), "at op 7");
  EXPECT_EQ(answers[1].answered, 1);
  EXPECT_EQ(answers[2].answered, 0);
}

struct Malformed {
  const char *name;
  std::string bytes;
};

std::vector<Malformed> malformed() {
  tuttiFrameHead tooLong = {TUTTI_FRAME_MARK, tuttiFrameHeartbeat, TUTTI_WATCH_STATE + 1};
  tuttiFrameHead huge = {TUTTI_FRAME_MARK, tuttiFrameFailure, UINT32_MAX};
  tuttiFrameHead unknown = {TUTTI_FRAME_MARK, 99, 0};
  tuttiFrameHead none = {TUTTI_FRAME_MARK, 0, 0};
  auto head = [](const tuttiFrameHead &h) {
    return std::string(reinterpret_cast<const char *>(&h), sizeof(h));
  };
  return {{"garbage", "GET / HTTP/1.1\r\n\r\n"},
          {"too long", head(tooLong)},
          {"huge", head(huge)},
          {"unknown type", head(unknown)},
          {"type 0", head(none)},
          {"bad after good", frame(tuttiFrameHeartbeat, "x") + "garbage!"},
          {"goodbye seen unasked", frame(tuttiFrameGoodbyeSeen)},
          {"two goodbyes", frame(tuttiFrameGoodbye) + frame(tuttiFrameGoodbye)},
          {"answer on the ring", std::string(sizeof(tuttiAnswer), 1)},
          {"success as failure", failureFrame(tuttiSuccess, 0, "fine")},
          {"in progress as failure", failureFrame(tuttiInProgress, 0, "fine")},
          {"unknown code", failureFrame(1000, 0, "x")},
          {"no such rank", failureFrame(tuttiTimeout, 3, "x")},
          {"negative rank", failureFrame(tuttiTimeout, -1, "x")},
          {"no text", failureFrame(tuttiTimeout, 0, "")}};
}

TEST(WatchMalformed, FrameOfANeighbourIsAFailureNamingIt) {
  for (const Malformed &m : malformed()) {
    SCOPED_TRACE(m.name);
    Ring ring(3);
    int previous = ring.take(&ring.at(0).bootstrap.nextFd);
    ring.start(1);
    sendText(previous, m.bytes);
    EXPECT_THAT(ring.owner(1).waitFailed(),
                HasSubstr("rank 0 (host host0, pid 1000) sent rank 1 bytes"));
    close(previous);
    for (int r : {0, 2})
      ring.closeSockets(r); // nobody to wait for at the end
  }
}

// ---- frames ----

TEST(WatchFrame, RoundTrip) {
  tuttiFrame got;
  std::string beat = frame(tuttiFrameHeartbeat, "hello");
  for (size_t have = 0; have < beat.size(); have++)
    EXPECT_EQ(tuttiFrameParse(beat.data(), have, &got), 0);
  ASSERT_EQ(tuttiFrameParse(beat.data(), beat.size(), &got), (int)beat.size());
  EXPECT_EQ(got.type, tuttiFrameHeartbeat);
  EXPECT_EQ(std::string((const char *)got.payload, got.bytes), "hello");

  std::string failure = failureFrame(tuttiTimeout, 4, "why");
  tuttiFailureFrame read;
  ASSERT_EQ(tuttiFrameParse(failure.data(), failure.size(), &got), (int)failure.size());
  ASSERT_TRUE(tuttiFailureRead(&got, 5, &read));
  EXPECT_EQ(read.code, tuttiTimeout);
  EXPECT_EQ(read.origin, 4);
  EXPECT_STREQ(read.text, "why");
}

TEST(WatchFrame, NothingIsWrittenBeyondTheRoom) {
  char out[64];
  memset(out, 0x77, sizeof(out));
  EXPECT_EQ(tuttiFrameWrite(out, 12, tuttiFrameHeartbeat, "hello", 5), 0u);
  EXPECT_EQ(tuttiFrameWrite(out, 7, tuttiFrameGoodbye, nullptr, 0), 0u);
  EXPECT_EQ(std::string(out, sizeof(out)), std::string(64, 0x77));
  EXPECT_EQ(tuttiFrameWrite(out, 13, tuttiFrameHeartbeat, "hello", 5), 13u);
}

TEST(WatchFrame, AnswersOfOthersAreNotBelieved) {
  auto valid = [](auto change) {
    tuttiAnswer answer = someAnswer();
    change(answer);
    return tuttiAnswerValid(&answer, 7, 1);
  };
  EXPECT_TRUE(valid([](tuttiAnswer &) {}));
  EXPECT_FALSE(valid([](tuttiAnswer &a) { a.hash = 8; }));
  EXPECT_FALSE(valid([](tuttiAnswer &a) { a.rank = 2; }));
  EXPECT_FALSE(valid([](tuttiAnswer &a) { a.self.answered = 0; }));
  EXPECT_FALSE(valid([](tuttiAnswer &a) { a.self.answered = 2; }));
  EXPECT_FALSE(valid([](tuttiAnswer &a) { a.previous.answered = 1; }));
  EXPECT_FALSE(valid([](tuttiAnswer &a) { a.next.answered = -2; }));
  EXPECT_FALSE(valid([](tuttiAnswer &a) { a.next.answered = 4; }));
  EXPECT_FALSE(valid([](tuttiAnswer &a) { a.self.bytes = TUTTI_WATCH_STATE + 1; }));
  EXPECT_FALSE(valid([](tuttiAnswer &a) { a.previous.bytes = UINT32_MAX; }));
  EXPECT_FALSE(valid([](tuttiAnswer &a) { a.next.bytes = TUTTI_WATCH_STATE + 1; }));
}

TEST(WatchFrame, FuzzedAnswers) {
  std::mt19937 random(5);
  int accepted = 0;
  for (int round = 0; round < 100000; round++) {
    tuttiAnswer answer = someAnswer();
    for (unsigned i = random() % 4; i > 0; i--)
      reinterpret_cast<char *>(&answer)[random() % sizeof(answer)] = (char)random();
    if (!tuttiAnswerValid(&answer, 7, 1)) continue;
    accepted++;
    std::vector<tuttiWatchAnswer> answers(3);
    tuttiAnswerNote(&answer, 3, answers.data());
    for (const tuttiWatchAnswer &a : answers)
      ASSERT_LE(a.bytes, (unsigned)TUTTI_WATCH_STATE);
  }
  EXPECT_GT(accepted, 50000);
}

// Mutated streams, the same on every run: whatever the parser lets through keeps its promises.
TEST(WatchFrame, FuzzedStreams) {
  std::mt19937 random(20240607);
  const std::string seeds[] = {frame(tuttiFrameHeartbeat, "some state"),
                               failureFrame(tuttiTimeout, 1, "why"), frame(tuttiFrameGoodbye)};
  int accepted = 0;
  for (int round = 0; round < 100000; round++) {
    std::string bytes;
    for (unsigned i = 1 + random() % 4; i > 0; i--)
      bytes += seeds[random() % std::size(seeds)];
    for (unsigned i = random() % 4; i > 0; i--)
      bytes[random() % bytes.size()] = (char)random();
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    std::vector<char> exact(bytes.begin(), bytes.end()); // so that ASan sees every byte beyond
    size_t at = 0;
    tuttiFrame got;
    int size;
    while ((size = tuttiFrameParse(exact.data() + at, exact.size() - at, &got)) > 0) {
      ASSERT_LE(at + (size_t)size, exact.size());
      ASSERT_LE((size_t)size, TUTTI_FRAME_MAX);
      tuttiFailureFrame failure;
      if (tuttiFailureRead(&got, 3, &failure)) {
        ASSERT_LT(strnlen(failure.text, sizeof(failure.text)), sizeof(failure.text));
        ASSERT_TRUE(failure.origin >= 0 && failure.origin < 3);
      }
      at += (size_t)size;
      accepted++;
    }
  }
  EXPECT_GT(accepted, 100000);
}

TEST(WatchMalformed, FuzzedNeighboursDoNoHarm) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; round++) {
    Ring ring(2);
    int previous = ring.take(&ring.at(0).bootstrap.nextFd);
    tuttiListenerClose(&ring.at(0).bootstrap.listener); // as its process ends
    ring.start(1);
    for (int i = 0; i < 20; i++) {
      std::string bytes = round % 2 ? frame(tuttiFrameHeartbeat, "y") : failureFrame(6, 1, "z");
      if (random() % 4 == 0) bytes[random() % bytes.size()] = (char)random();
      if (random() % 8 == 0) bytes.resize(random() % bytes.size());
      send(previous, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
    close(previous);
    EXPECT_NE(ring.owner(1).waitFailed(), "");
    ring.closeSockets(0);
    ring.stop(1);
    EXPECT_EQ(ring.owner(1).failures(), 1);
  }
}

// ---- questions ----

TEST(WatchAsk, EveryRankAnswersForItself) {
  for (int n : {1, 2, 3, 9, 70}) {
    Ring ring(n);
    ring.startAll();
    std::vector<tuttiWatchAnswer> answers = ring.ask(n / 2);
    for (int r = 0; r < n; r++) {
      EXPECT_EQ(answers[r].answered, 1) << r;
      EXPECT_EQ(text(answers[r]), "state of " + std::to_string(r));
      EXPECT_EQ(answers[r].ageMs, 0u);
    }
  }
}

TEST(WatchAsk, AnswersAreFresh) {
  Ring ring(3);
  ring.startAll();
  EXPECT_EQ(text(ring.ask(0)[2]), "state of 2");
  ring.owner(2).setState(std::string(TUTTI_WATCH_STATE, 'n'));
  EXPECT_EQ(text(ring.ask(0)[2]), std::string(TUTTI_WATCH_STATE, 'n'));
}

TEST(WatchAsk, AllAtOnce) {
  Ring ring(12);
  ring.startAll();
  std::vector<std::thread> threads;
  std::atomic<int> answered{0};
  for (int r = 0; r < ring.size(); r++) {
    threads.emplace_back([&, r] {
      for (const tuttiWatchAnswer &answer : ring.ask(r))
        answered += answer.answered == 1;
    });
  }
  for (auto &thread : threads)
    thread.join();
  EXPECT_EQ(answered, 12 * 12);
}

// Rank 1 is not there yet; whoever asks it learns of a failure all the same.
TEST(WatchAsk, AFailureEndsIt) {
  Ring ring(3);
  ring.start(0);
  ring.start(2);
  auto begun = std::chrono::steady_clock::now();
  std::thread asks([&] { ring.ask(0, 60000); });
  pollfd asked = {ring.at(1).bootstrap.listener.fds[0], POLLIN, 0};
  EXPECT_EQ(poll(&asked, 1, 60000), 1);
  tuttiWatchFail(ring.at(2).watch, tuttiInvalidUsage, "told meanwhile");
  asks.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(30));
  EXPECT_EQ(ring.owner(0).waitFailed(), "told meanwhile");
}

TEST(WatchAsk, ARankThatHasLeftDoesNotAnswer) {
  Ring ring(4);
  ring.startAll();
  ring.owner(2).setState("last words of 2");
  ring.stop(2);
  std::vector<tuttiWatchAnswer> answers = ring.ask(0);
  EXPECT_NE(answers[2].answered, 1);
  for (int r : {0, 1, 3})
    EXPECT_EQ(answers[r].answered, 1);
  for (int i = 0; i < 1000 && answers[2].answered != 3; i++) // until its neighbours have heard it
    answers = ring.ask(0);
  EXPECT_EQ(answers[2].answered, 3);
  EXPECT_EQ(text(answers[2]), "last words of 2");
}

// Ranks 0 and 1 of 4 run; the test sends the heartbeats of their other neighbours.
TEST(WatchAsk, EachNeighbourTellsOfBothItsNeighbours) {
  Ring ring(4);
  int two = ring.take(&ring.at(2).bootstrap.prevFd),
      three = ring.take(&ring.at(3).bootstrap.nextFd);
  for (int r : {2, 3})
    ring.closeSockets(r); // refuse questions
  ring.start(0);
  ring.start(1);
  sendText(two, frame(tuttiFrameHeartbeat, "op 2"));
  sendText(three, frame(tuttiFrameHeartbeat, "op 3"));
  while (ring.ask(0, 0)[3].answered == 0 || ring.ask(1, 0)[2].answered == 0)
    std::this_thread::yield();
  for (int asker : {0, 1}) {
    std::vector<tuttiWatchAnswer> answers = ring.ask(asker);
    for (int r : {0, 1})
      EXPECT_EQ(answers[r].answered, 1);
    for (int r : {2, 3}) {
      EXPECT_EQ(answers[r].answered, 2);
      EXPECT_EQ(text(answers[r]), "op " + std::to_string(r));
    }
  }
  close(two);
  close(three);
}

TEST(WatchAsk, TheSecondAddressIsTried) {
  Ring ring(3);
  tuttiAddressList &list = ring.addresses(2);
  list.a[1] = list.a[0];
  list.n = 2;
  int refusing = listenLoopback(&list.a[0]);
  close(refusing);
  ring.startAll();
  EXPECT_EQ(ring.ask(0)[2].answered, 1);
}

TEST(WatchAsk, LiarsAreNotBelieved) {
  Ring ring(3);
  tuttiAddress address;
  int fd = listenLoopback(&address);
  ring.addresses(2).a[0] = address;
  ring.start(0);
  std::thread liar([fd, hash = ring.at(0).bootstrap.hash, secret = ring.at(0).bootstrap.secret] {
    int asker = accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
    std::string hello = readSome(asker, sizeof(tuttiHello));
    tuttiSession session = {secret, {}};
    EXPECT_TRUE(tuttiHelloGenuine(hello.data(), hello.size(), &session));
    tuttiReplySend(asker, &session, tuttiReplyAccepted, 0, nullptr, 0, nullptr);
    readSome(asker, TUTTI_MAC_BYTES);
    tuttiAnswer answer = someAnswer();
    answer.hash = hash;
    answer.rank = 1000000;
    send(asker, &answer, sizeof(answer), MSG_NOSIGNAL);
    close(asker);
  });
  ring.closeSockets(1);       // refuses, so that the question ends before its time
  ring.owner(0).waitFailed(); // and its death is known, which would end the question
  EXPECT_EQ(ring.ask(0)[2].answered, 0);
  liar.join();
  close(fd);
}

// ---- strangers at the listener ----

TEST(WatchListener, OnlyTheRightHelloIsAnswered) {
  Ring ring(2);
  bool damaged = false, lying = false;
  ring.startAll();
  auto reply = [&](auto change) {
    tuttiHello hello = askHello(ring.at(1).bootstrap, 0);
    change(hello);
    return tellListener(ring, 1, hello, damaged, lying).size();
  };
  EXPECT_EQ(reply([](tuttiHello &) {}), sizeof(tuttiAnswer));
  EXPECT_EQ(reply([](tuttiHello &h) { h.magic++; }), 0u);
  EXPECT_EQ(reply([](tuttiHello &h) { h.version++; }), 0u);
  damaged = true;
  EXPECT_EQ(reply([](tuttiHello &) {}), 0u);
  damaged = false;
  lying = true; /* as one who repeats a question that he has heard */
  EXPECT_EQ(reply([](tuttiHello &) {}), 0u);
  lying = false;
  EXPECT_EQ(reply([](tuttiHello &h) { h.to = 0; }), 0u);
  EXPECT_EQ(reply([](tuttiHello &h) { h.hash++; }), 0u);
  EXPECT_EQ(reply([](tuttiHello &h) { h.kind = tuttiHelloRing; }), 0u);
  EXPECT_EQ(reply([](tuttiHello &h) { h.nranks = 3; }), 0u);
  EXPECT_EQ(reply([](tuttiHello &h) { h.from = 2; }), 0u);
  EXPECT_EQ(reply([](tuttiHello &h) { h.from = -1; }), 0u);
}

TEST(WatchListener, FloodsAndHalfOpenConnectionsDoNoHarm) {
  Ring ring(3);
  ring.startAll();
  std::mt19937 random(3);
  int before = openFds();
  std::vector<int> silent;
  for (int i = 0; i < 200; i++) {
    silent.push_back(connectTo(ring.listener(1)));
    int noisy = connectTo(ring.listener(1));
    std::string garbage(1 + random() % 4000, '\0');
    for (char &c : garbage)
      c = (char)random();
    send(noisy, garbage.data(), garbage.size(), MSG_NOSIGNAL);
    close(noisy);
    if (i % 50 == 49) {
      EXPECT_EQ(ring.ask(0)[1].answered, 1);
    }
  }
  EXPECT_LT(openFds() - before, 200 + 100); // the test's, and a bounded number
  EXPECT_EQ(ring.ask(2)[1].answered, 1);
  for (int fd : silent)
    EXPECT_EQ(readAll(fd), ""); // also the last ones are closed, in time
  for (int fd : silent)
    close(fd);
  for (int r = 0; r < 3; r++)
    EXPECT_EQ(ring.owner(r).failures(), 0);
}

// ---- starting and stopping ----

TEST(WatchLife, CyclesLeakNothing) {
  auto cycle = [](bool failed) {
    Ring ring(3);
    ring.startAll();
    EXPECT_GT(tuttiLoadRelaxed(&ring.at(0).memory.bytes), 0u);
    for (int r = 0; r < 3; r++)
      ring.stop(r, failed && r == 1);
    for (int r = 0; r < 3; r++)
      EXPECT_EQ(tuttiLoadRelaxed(&ring.at(r).memory.bytes), 0u);
  };
  cycle(false);
  int fds = openFds(), threads = liveThreads();
  for (int i = 0; i < 200; i++)
    cycle(i % 2);
  EXPECT_EQ(openFds(), fds);
  EXPECT_EQ(liveThreads(), threads);
}

// What makes a vanished host known within 5 s; waiting for it would make a test depend on time.
TEST(WatchLife, TheKernelGivesAVanishedPeerUpInTime) {
  Ring ring(2);
  tuttiBootstrap before = ring.at(0).bootstrap;
  ring.startAll();
  for (int fd : {before.prevFd, before.nextFd}) {
    int ms = 0, alive = 0;
    socklen_t length = sizeof(int);
    EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, &length), 0);
    EXPECT_EQ(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &alive, &length), 0);
    EXPECT_TRUE(ms > 0 && ms <= 30000) << ms;
    EXPECT_EQ(alive, 1);
  }
}

TEST(WatchLife, OneThreadServesAllCommunicators) {
  int threads = liveThreads();
  Ring a(4), b(4);
  a.startAll();
  b.startAll();
  EXPECT_EQ(liveThreads(), threads + 1);
}

TEST(WatchLife, StartsAndStopsRace) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++) {
    threads.emplace_back([t] {
      for (int i = 0; i < 40; i++) {
        Ring ring(2);
        ring.startAll();
        if (i % 4 == t) tuttiWatchFail(ring.at(0).watch, tuttiTimeout, "race");
        ring.stop(i % 2);
        ring.stop(1 - i % 2, i % 3 == 0);
      }
    });
  }
  for (auto &thread : threads)
    thread.join();
}

TEST(WatchLife, FailedStartLeavesTheSocketsToTheCaller) {
  int fds = openFds(), threads = liveThreads();
  {
    Ring ring(2);
    tuttiBootstrap &b = ring.at(0).bootstrap;
    close(b.prevFd);
    b.prevFd = open("/dev/null", O_RDONLY | O_CLOEXEC); // epoll refuses such a file
    tuttiBootstrap before = b;
    EXPECT_EQ(ring.tryStart(0), tuttiSystemError);
    EXPECT_THAT(tuttiErrorText(), HasSubstr("rank 0 of 2 cannot watch its ring sockets"));
    EXPECT_EQ(ring.at(0).watch, nullptr);
    for (int fd : {before.prevFd, before.nextFd, before.listener.fds[0]}) {
      struct stat status;
      EXPECT_EQ(fstat(fd, &status), 0);
    }
    EXPECT_EQ(b.prevFd, before.prevFd);
    EXPECT_EQ(tuttiLoadRelaxed(&ring.at(0).memory.bytes), 0u);
  }
  EXPECT_EQ(openFds(), fds);
  EXPECT_EQ(liveThreads(), threads);
}

// An owner whose callback takes its time: Stop waits for it.
TEST(WatchLife, StopWaitsForARunningCallback) {
  struct Slow {
    std::atomic<bool> entered{false}, left{false};
    std::atomic<pid_t> stops{0}; /* the thread that does */
  } slow;
  Ring ring(2);
  tuttiWatchCalls calls = {&slow, nullptr, nullptr, nullptr, nullptr, nullptr};
  calls.failed = [](void *ctx, tuttiResult_t, const char *) {
    Slow *s = static_cast<Slow *>(ctx);
    s->entered = true;
    waitUntilAsleep(s->stops);
    s->left = true;
  };
  calls.state = [](void *, void *) -> size_t { return 0; };
  Rank &rank = ring.at(0);
  ASSERT_EQ(tuttiWatchStart(&rank.bootstrap, ring.who(), &calls, &rank.memory, &rank.watch),
            tuttiSuccess);
  ring.start(1);
  tuttiWatchFail(ring.at(1).watch, tuttiTimeout, "slow");
  while (!slow.entered)
    std::this_thread::yield();
  slow.stops = threadId();
  ring.stop(0);
  EXPECT_TRUE(slow.left);
}

} // namespace
} // namespace watchtest

// Watches of a job that encrypts.
#include <gmock/gmock.h>

#include <thread>

#include "watch/frame.h"
#include "watch/ring.h"

namespace watchtest {
namespace {

using ::testing::HasSubstr;

class SecureWatch : public testing::Test {
protected:
  void SetUp() override { NEEDS_TLS(); }
};

void expectAllHear(Ring &ring, int from) {
  tuttiWatchFail(ring.at(from).watch, tuttiInvalidUsage, "told at last");
  for (int r = 0; r < ring.size(); r++) {
    if (r == from) continue;
    EXPECT_EQ(ring.owner(r).waitFailed(), "told at last") << "rank " << r;
  }
}

TEST_F(SecureWatch, FailureReachesEveryRank) {
  for (int n : {2, 5}) {
    Ring ring(n, true);
    ring.startAll();
    expectAllHear(ring, 1);
  }
}

TEST_F(SecureWatch, AnswersQuestions) {
  Ring ring(4, true);
  ring.startAll();
  auto answers = ring.ask(2);
  for (int r = 0; r < 4; r++) {
    EXPECT_EQ(answers[r].answered, TUTTI_ANSWER_OWN) << "rank " << r;
    EXPECT_EQ(text(answers[r]), "state of " + std::to_string(r));
  }
}

TEST_F(SecureWatch, AnswersInquiries) {
  Ring ring(3, true);
  for (int r = 0; r < 3; r++)
    ring.owner(r).setReport("all about " + std::to_string(r));
  ring.startAll();
  tuttiInquiry *inquiry = nullptr;
  ASSERT_EQ(tuttiInquiryStart(ring.at(1).watch, 30000, &inquiry), tuttiSuccess);
  tuttiInquiryRun(inquiry);
  const tuttiWatchReport *reports = tuttiInquiryReports(inquiry);
  for (int r = 0; r < 3; r++) {
    EXPECT_EQ(reports[r].answer.answered, TUTTI_ANSWER_OWN) << "rank " << r;
    EXPECT_EQ(std::string((const char *)reports[r].report, reports[r].bytes),
              "all about " + std::to_string(r));
  }
  tuttiInquiryClose(inquiry);
}

TEST_F(SecureWatch, LeavingIsNoDeath) {
  for (int round = 0; round < 20; round++) {
    Ring ring(3, true);
    ring.startAll();
    for (int r = 0; r < 3; r++)
      ring.stop(r);
    for (int r = 0; r < 3; r++)
      EXPECT_EQ(ring.owner(r).failures(), 0) << ring.owner(r).waitFailed();
  }
}

TEST_F(SecureWatch, ACutConnectionIsMended) {
  for (int n : {2, 4}) {
    Ring ring(n, true);
    int fd = ring.at(0).bootstrap.nextFd;
    ring.startAll();
    ASSERT_EQ(shutdown(fd, SHUT_RDWR), 0);
    expectAllHear(ring, 0);
  }
}

// What somebody on the way puts in is no frame, and no death: the connection ends and is made anew.
TEST_F(SecureWatch, WhatIsPutInIsNotBelieved) {
  Ring ring(3, true);
  int fd = ring.at(0).bootstrap.nextFd;
  uint8_t frame[64];
  size_t bytes = tuttiFrameWrite(frame, sizeof frame, tuttiFrameGoodbye, nullptr, 0);
  ring.startAll();
  ASSERT_EQ(send(fd, frame, bytes, MSG_NOSIGNAL), (ssize_t)bytes) << "past TLS";
  expectAllHear(ring, 1);
}

TEST_F(SecureWatch, WhoHasNoKeyGetsNoAnswer) {
  Ring ring(3, true);
  ring.startAll();
  EXPECT_EQ(tellListener(ring, 1, askHello(ring.at(1).bootstrap, 0)), "");
}

// Its sockets close without a goodbye, and nobody listens any more.
TEST_F(SecureWatch, ADeathIsNamed) {
  Ring ring(3, true);
  ring.start(0);
  ring.start(1);
  ring.closeSockets(2);
  for (int r : {0, 1})
    EXPECT_THAT(ring.owner(r).waitFailed(), HasSubstr("rank 2 (host host2, pid 1002) died"));
}

} // namespace
} // namespace watchtest

/* Suspicions: what a proxy found while its rank was in no call. */
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "harness.h"

using testing::HasSubstr;

namespace {

/* The one rank that knows computes, and another waits for it. */
TEST(Failure, ASuspicionReachesOthersThoughItsRankCallsNothing) {
  Ranks ranks(3);
  ASSERT_TRUE(ranks.ok());
  std::atomic<int> left{2};
  ranks.run([&](int rank, tuttiComm_t comm) {
    if (rank == 0) {
      tuttiCommunicator *c = nullptr;
      ASSERT_EQ(tuttiHandleEnter(comm, "test", &c), tuttiSuccess);
      tuttiCommSuspect(c, tuttiRemoteError, "port made0 could not be mended", false);
      tuttiHandleLeave(c);
      while (left > 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    float x;
    setTimeout(comm, 60000);
    EXPECT_EQ(tuttiRecv(&x, 1, tuttiFloat32, 0, comm, nullptr), tuttiRemoteError);
    EXPECT_THAT(tuttiGetLastError(comm), HasSubstr("port made0 could not be mended"));
    left--;
  });
}

/* Both come to the one that waits, the deadline first. */
TEST(Failure, ASuspicionSaysMoreThanADeadline) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  std::atomic<bool> waits{true};
  ranks.run([&](int rank, tuttiComm_t comm) {
    if (rank == 0) {
      while (waits)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    tuttiCommunicator *c = nullptr;
    ASSERT_EQ(tuttiHandleEnter(comm, "test", &c), tuttiSuccess);
    tuttiCommSuspect(c, tuttiRemoteError, "port made0 could not be mended", false);
    tuttiHandleLeave(c);
    float x;
    setTimeout(comm, 200);
    EXPECT_EQ(tuttiRecv(&x, 1, tuttiFloat32, 0, comm, nullptr), tuttiRemoteError);
    EXPECT_THAT(tuttiGetLastError(comm), HasSubstr("port made0 could not be mended"));
    waits = false;
  });
}

/* All ask all: what that takes must stay small beside what they have waited. */
TEST(Failure, OthersAreAskedTheLaterTheLongerThatTakes) {
  tuttiBootstrap b = {};
  auto c = std::make_unique<tuttiCommunicator>();
  c->bootstrap = &b;
  b.nranks = 8;
  struct {
    uint32_t handshakeMs;
    uint64_t firstMs;
    int atMostMs;
  } const cases[] = {{0, 500, 1000},     {2, 500, 1000},        {100, 5600, 1400},
                     {300, 16800, 4200}, {3000, 168000, 10000}, {UINT32_MAX, 240518168520, 10000}};
  for (auto &expected : cases) {
    b.secureMs = expected.handshakeMs;
    EXPECT_EQ(tuttiCommFirstAskMs(c.get()), expected.firstMs) << b.secureMs;
    EXPECT_EQ(tuttiCommAskMs(c.get()), expected.atMostMs) << b.secureMs;
  }
}

} // namespace

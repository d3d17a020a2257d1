/* Suspicions: what a proxy found while its rank was in no call. */
#include <atomic>
#include <chrono>
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

} // namespace

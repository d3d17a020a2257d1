/* Communicators that are aborted or destroyed before their blocking init has ended. */
#include <atomic>
#include <chrono>
#include <random>

#include "harness.h"

using testing::AnyOf;
using testing::HasSubstr;

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/* A handle that a thread waits for while another is inside the init that writes it. */
struct Handle {
  tuttiComm_t comm = nullptr;
  std::atomic<bool> over{false}; /* the init has ended: a failed one leaves nothing behind */
  tuttiComm_t await() {
    for (;;) {
      bool last = over;
      tuttiComm_t seen = __atomic_load_n(&comm, __ATOMIC_ACQUIRE);
      if (seen || last) return seen;
      std::this_thread::yield();
    }
  }
};

tuttiUniqueId newId() {
  tuttiUniqueId id;
  EXPECT_EQ(tuttiGetUniqueId(&id), tuttiSuccess) << tuttiGetLastError(nullptr);
  return id;
}

using End = tuttiResult_t (*)(tuttiComm_t);

class EarlyEnd : public testing::TestWithParam<End> {
protected:
  /* Rank 0 of two, of which the other never comes, is ended by another thread; `around` calls the
   * init. */
  void endWhileWaiting(
      const std::function<tuttiResult_t(const std::function<tuttiResult_t()> &)> &around) {
    Handle handle;
    tuttiUniqueId id = newId();
    std::thread ender([&] { EXPECT_EQ(GetParam()(handle.await()), tuttiSuccess); });
    Clock::time_point start = Clock::now();
    EXPECT_EQ(around([&] { return tuttiCommInitRank(&handle.comm, 2, id, 0); }), tuttiInvalidUsage);
    EXPECT_THAT(tuttiGetLastError(nullptr),
                AnyOf(HasSubstr("aborted by tuttiCommAbort"),
                      HasSubstr("destroyed by tuttiCommDestroy before its init"),
                      HasSubstr("the init has not run")));
    EXPECT_LT(since(start), 60);
    ender.join();
  }
};

TEST_P(EarlyEnd, OfABlockingCall) {
  for (int i = 0; i < 20; i++)
    endWhileWaiting([](auto init) { return init(); });
}

TEST_P(EarlyEnd, OfAGroupThatEnds) {
  for (int i = 0; i < 20; i++)
    endWhileWaiting([](auto init) {
      EXPECT_EQ(tuttiGroupStart(), tuttiSuccess);
      EXPECT_EQ(init(), tuttiSuccess);
      return tuttiGroupEnd();
    });
}

TEST_P(EarlyEnd, BetweenTheCallAndTheEndOfItsGroup) {
  for (int i = 0; i < 20; i++) {
    Handle handle;
    tuttiUniqueId id = newId();
    ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
    ASSERT_EQ(tuttiCommInitRank(&handle.comm, 2, id, 0), tuttiSuccess);
    std::thread([&] { EXPECT_EQ(GetParam()(handle.comm), tuttiSuccess); }).join();
    EXPECT_EQ(tuttiGroupEnd(), tuttiInvalidUsage);
    EXPECT_THAT(tuttiGetLastError(nullptr), HasSubstr("the init has not run"));
  }
}

TEST_P(EarlyEnd, InTheGroupOfTheInit) {
  for (bool fails : {false, true})
    for (int i = 0; i < 20; i++) {
      tuttiComm_t comm = nullptr;
      tuttiUniqueId id = newId();
      float x = 1;
      ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
      ASSERT_EQ(tuttiCommInitRank(&comm, 2, id, 0), tuttiSuccess);
      EXPECT_EQ(GetParam()(comm), tuttiSuccess);
      if (fails) {
        EXPECT_EQ(tuttiAllReduce(&x, &x, 1, tuttiFloat32, tuttiSum, nullptr, nullptr),
                  tuttiInvalidArgument);
      }
      EXPECT_EQ(tuttiGroupEnd(), fails ? tuttiInvalidArgument : tuttiInvalidUsage);
      EXPECT_EQ(tuttiCommDestroy(comm), tuttiInvalidArgument) << "it is dead";
    }
}

/* An error of something else discards the group; its communicators have been ended or not. */
TEST_P(EarlyEnd, OfADiscardedGroup) {
  for (bool ended : {false, true})
    for (int i = 0; i < 20; i++) {
      tuttiComm_t comms[2] = {};
      float x = 1;
      ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
      for (tuttiComm_t &comm : comms)
        ASSERT_EQ(tuttiCommInitRank(&comm, 2, newId(), 0), tuttiSuccess);
      if (ended) {
        std::thread([&] { EXPECT_EQ(GetParam()(comms[1]), tuttiSuccess); }).join();
      }
      EXPECT_EQ(tuttiAllReduce(&x, &x, 1, tuttiFloat32, tuttiSum, nullptr, nullptr),
                tuttiInvalidArgument);
      EXPECT_EQ(tuttiGroupEnd(), tuttiInvalidArgument);
      for (tuttiComm_t comm : comms)
        EXPECT_EQ(tuttiCommDestroy(comm), tuttiInvalidArgument);
    }
}

/* Both ranks come, and at a random moment of the init, or after it, several threads end one of
 * them, while others ask after it. The other rank may have come through by then, or not. */
TEST_P(EarlyEnd, AtAnyMoment) {
  std::mt19937 random(20);
  int through = 0;
  for (int i = 0; i < 100; i++) {
    Handle handles[2];
    tuttiUniqueId id = newId();
    int spins = (int)(random() % 200) * (i % 2);
    std::atomic<int> ends{0};
    Clock::time_point start = Clock::now();
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; r++)
      threads.emplace_back([&, r] {
        tuttiResult_t result = tuttiCommInitRank(&handles[r].comm, 2, id, r);
        handles[r].over = true;
        if (r == 0) through += result == tuttiSuccess;
        if (r == 0) return;
        EXPECT_THAT(result, AnyOf(tuttiSuccess, tuttiRemoteError)) << tuttiGetLastError(nullptr);
        if (result == tuttiSuccess) {
          EXPECT_EQ(tuttiCommAbort(handles[r].comm), tuttiSuccess);
        }
      });
    for (int t = 0; t < 2; t++)
      threads.emplace_back([&] {
        tuttiComm_t comm = handles[0].await();
        for (int k = 0; k < spins; k++)
          std::this_thread::yield();
        tuttiResult_t result = GetParam()(comm);
        EXPECT_THAT(result,
                    AnyOf(tuttiSuccess, tuttiInvalidUsage, tuttiInvalidArgument, tuttiRemoteError))
            << tuttiGetLastError(nullptr);
        ends += result == tuttiSuccess;
      });
    threads.emplace_back([&] {
      tuttiResult_t state;
      tuttiComm_t comm = handles[0].await();
      while (tuttiCommGetAsyncError(comm, &state) == tuttiSuccess) {
        tuttiGetLastError(comm);
        std::this_thread::yield();
      }
    });
    for (auto &t : threads)
      t.join();
    EXPECT_LE(ends, 1);
    EXPECT_LT(since(start), 60);
  }
  RecordProperty("through", through);
}

/* The other rank does not wait for one whose group was discarded. */
TEST(EarlyEnds, OfADiscardedInitAreToldToTheOthers) {
  tuttiUniqueId id = newId();
  std::thread other([&] {
    tuttiComm_t comm = nullptr;
    EXPECT_EQ(tuttiCommInitRank(&comm, 2, id, 0), tuttiRemoteError);
    EXPECT_THAT(tuttiGetLastError(nullptr),
                testing::AllOf(HasSubstr("rank 1 (host "), HasSubstr("its group has ended")));
  });
  tuttiComm_t comm = nullptr;
  float x = 1;
  ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
  ASSERT_EQ(tuttiCommInitRank(&comm, 2, id, 1), tuttiSuccess);
  EXPECT_EQ(tuttiAllReduce(&x, &x, 1, tuttiFloat32, tuttiSum, nullptr, nullptr),
            tuttiInvalidArgument);
  EXPECT_EQ(tuttiGroupEnd(), tuttiInvalidArgument);
  other.join();
}

INSTANTIATE_TEST_SUITE_P(By, EarlyEnd, testing::Values(tuttiCommAbort, tuttiCommDestroy),
                         [](const auto &info) { return info.index ? "Destroy" : "Abort"; });

} // namespace

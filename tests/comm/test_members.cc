/* Communicators that lose and gain ranks: shrink, revoke, grow; and groups that are only simulated.
 */
#include <atomic>
#include <chrono>
#include <future>

#include "asleep.h"
#include "harness.h"

extern "C" {
#include "comm/failure.h"
}

using testing::AllOf;
using testing::HasSubstr;

namespace {

std::string lastError(tuttiComm_t comm = nullptr) {
  return tuttiGetLastError(comm);
}

void expectSum(tuttiComm_t comm, int n) {
  float in = 1, out = 0;
  ASSERT_EQ(tuttiAllReduce(&in, &out, 1, tuttiFloat32, tuttiSum, comm, nullptr), tuttiSuccess)
      << lastError();
  ASSERT_EQ(out, n);
}

void expectPlace(tuttiComm_t comm, int rank, int n) {
  int r = -1, count = -1;
  EXPECT_EQ(tuttiCommUserRank(comm, &r), tuttiSuccess);
  EXPECT_EQ(tuttiCommCount(comm, &count), tuttiSuccess);
  EXPECT_EQ(r, rank);
  EXPECT_EQ(count, n);
}

TEST(Shrink, WithoutTheRanksThatDoNotCall) {
  Ranks ranks(5);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    int gone[] = {0, 3};
    if (r == 0 || r == 3) return;
    for (int round = 0; round < 2; round++) {
      tuttiComm_t rest = nullptr;
      ASSERT_EQ(tuttiCommShrink(comm, gone, 2, &rest, nullptr, TUTTI_SHRINK_DEFAULT), tuttiSuccess)
          << lastError();
      expectPlace(rest, r == 1 ? 0 : r == 2 ? 1 : 2, 3);
      expectSum(rest, 3);
      EXPECT_EQ(tuttiCommDestroy(rest), tuttiSuccess) << lastError();
    }
  });
  ranks.run([](int, tuttiComm_t comm) { expectSum(comm, 5); }); /* the parent goes on */
}

/* The ranks of a shrink need not have been in the same ones before; nor does one that comes early
 * take the last shrink of its first rank for the next. */
TEST(Shrink, WithOtherRanksEachTime) {
  Ranks ranks(3);
  ASSERT_TRUE(ranks.ok());
  std::atomic<pid_t> waits[6] = {}; /* in each shrink the second of its ranks */
  ranks.run([&](int r, tuttiComm_t comm) {
    setTimeout(comm, 20000);
    const int without[] = {2, 0, 2, 2, 1, 0};
    for (int i = 0; i < 6; i++) {
      int gone = without[i];
      tuttiComm_t rest = nullptr;
      if (r == gone) continue;
      if (r == (gone == 0))
        waitUntilAsleep(waits[i]); /* the first comes late */
      else
        waits[i] = threadId();
      ASSERT_EQ(tuttiCommShrink(comm, &gone, 1, &rest, nullptr, 0), tuttiSuccess) << lastError();
      expectPlace(rest, r - (r > gone), 2);
      expectSum(rest, 2);
      EXPECT_EQ(tuttiCommDestroy(rest), tuttiSuccess) << lastError();
    }
  });
}

TEST(Shrink, OfACommunicatorThatHasFailed) {
  Ranks ranks(4);
  std::atomic<pid_t> calls[3] = {}; /* of ranks 0, 1 and 3 */
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm) {
    if (r == 2) { /* leaves while the others are in a collective */
      for (auto &thread : calls)
        waitUntilAsleep(thread);
      EXPECT_EQ(tuttiCommAbort(comm), tuttiSuccess);
      ranks.comms[2] = nullptr;
      return;
    }
    float in = 1, out;
    calls[r < 2 ? r : 2] = threadId();
    EXPECT_NE(tuttiAllReduce(&in, &out, 1, tuttiFloat32, tuttiSum, comm, nullptr), tuttiSuccess);
    int gone[] = {2};
    tuttiComm_t rest = nullptr;
    EXPECT_NE(tuttiCommShrink(comm, gone, 1, &rest, nullptr, TUTTI_SHRINK_DEFAULT), tuttiSuccess);
    ASSERT_EQ(tuttiCommShrink(comm, gone, 1, &rest, nullptr, TUTTI_SHRINK_ABORT), tuttiSuccess)
        << lastError();
    expectPlace(rest, r == 3 ? 2 : r, 3);
    expectSum(rest, 3);
    EXPECT_EQ(tuttiCommDestroy(rest), tuttiSuccess) << lastError();
  });
}

TEST(Shrink, OfOneThreadInAGroup) {
  constexpr int n = 3;
  tuttiComm_t comms[n], rest[n] = {};
  int gone[] = {1};
  ASSERT_EQ(tuttiCommInitAll(comms, n, nullptr), tuttiSuccess) << lastError();
  ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
  for (int r : {0, 2})
    ASSERT_EQ(tuttiCommShrink(comms[r], gone, 1, &rest[r], nullptr, 0), tuttiSuccess);
  ASSERT_EQ(tuttiGroupEnd(), tuttiSuccess) << lastError();
  expectPlace(rest[0], 0, 2);
  expectPlace(rest[2], 1, 2);
  for (int r = 0; r < n; r++) {
    if (rest[r]) {
      EXPECT_EQ(tuttiCommDestroy(rest[r]), tuttiSuccess);
    }
    EXPECT_EQ(tuttiCommDestroy(comms[r]), tuttiSuccess);
  }
}

TEST(Shrink, WithOtherRanksThanTheFirstOneSays) {
  Ranks ranks(3);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    int gone[] = {r == 1 ? 2 : 1};
    tuttiComm_t rest = nullptr;
    if (r == 2) return;
    setTimeout(comm, 700);
    EXPECT_EQ(tuttiCommShrink(comm, gone, 1, &rest, nullptr, 0), tuttiTimeout);
    if (r == 1) {
      EXPECT_THAT(lastError(),
                  AllOf(HasSubstr("rank 0 (host "), HasSubstr("), the first that stays")));
    }
    EXPECT_EQ(rest, nullptr);
  });
}

/* Whoever of the others knows it, or nobody: there is no listener to refuse among threads. */
TEST(Shrink, AfterTheFirstThatStaysHasLeft) {
  for (int stays : {1, 2}) {
    Ranks ranks(4);
    ASSERT_TRUE(ranks.ok());
    std::vector<int> gone;
    for (int r : {3, 1, 2, 0}) {
      if (r == stays) continue;
      if (r > 0) gone.push_back(r);
      EXPECT_EQ(tuttiCommAbort(ranks.comms[r]), tuttiSuccess);
      ranks.comms[r] = nullptr;
    }
    tuttiComm_t rest = nullptr;
    EXPECT_EQ(tuttiCommShrink(ranks.comms[stays], gone.data(), (int)gone.size(), &rest, nullptr,
                              TUTTI_SHRINK_ABORT),
              tuttiRemoteError);
    EXPECT_THAT(lastError(), HasSubstr("rank 0 (host "));
    EXPECT_THAT(lastError(), HasSubstr("has destroyed its communicator"));
    EXPECT_EQ(rest, nullptr);
  }
}

/* A rank that met the failure does not come, and maybe has no communicator to shrink. */
TEST(Shrink, OfOneThatFailsMeanwhile) {
  Ranks ranks(3);
  ASSERT_TRUE(ranks.ok());
  tuttiComm_t all[2] = {};
  onThreads(3, [&](int r) {
    setTimeout(ranks.comms[r], 20000);
    if (r < 2) {
      EXPECT_EQ(tuttiCommShrink(ranks.comms[r], nullptr, 0, &all[r], nullptr, 0), tuttiRemoteError);
      EXPECT_THAT(lastError(), AllOf(HasSubstr("rank 2 lost a connection"),
                                     HasSubstr("in the communicator that this one is made of")));
      return;
    }
    for (auto &comm : all)
      while (!__atomic_load_n(&comm, __ATOMIC_ACQUIRE)) /* until its init is on its way */
        std::this_thread::yield();
    tuttiCommunicator *c;
    ASSERT_EQ(tuttiHandleEnter(ranks.comms[2], "a failure", &c), tuttiSuccess);
    tuttiCommFailText(c, tuttiRemoteError, "rank 2 lost a connection", true);
    tuttiHandleLeave(c);
  });
}

/* A rank that ended the communicator before it came to the shrink will not come. The others are
 * awaiting it by then, and it is in nothing else that could tell them. */
TEST(Shrink, OfOneThatIsAbortedMeanwhile) {
  Ranks ranks(3);
  ASSERT_TRUE(ranks.ok());
  tuttiComm_t all[2] = {};
  onThreads(3, [&](int r) {
    if (r < 2) {
      setTimeout(ranks.comms[r], 60000);
      EXPECT_EQ(tuttiCommShrink(ranks.comms[r], nullptr, 0, &all[r], nullptr, 0), tuttiRemoteError);
      EXPECT_THAT(lastError(), AllOf(HasSubstr("rank 2 will not come: it is rank 2 (host"),
                                     HasSubstr("aborted the communicator")));
      return;
    }
    for (auto &comm : all)
      while (!__atomic_load_n(&comm, __ATOMIC_ACQUIRE)) /* until its init is on its way */
        std::this_thread::yield();
    EXPECT_EQ(tuttiCommAbort(ranks.comms[2]), tuttiSuccess) << lastError();
    ranks.comms[2] = nullptr;
  });
}

TEST(Shrink, BadArguments) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  tuttiComm_t comm = ranks.comms[0], rest = nullptr;
  int self[] = {0}, none[] = {2};
  EXPECT_EQ(tuttiCommShrink(comm, self, 1, &rest, nullptr, 0), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("holds this rank, 0"));
  EXPECT_EQ(tuttiCommShrink(comm, none, 1, &rest, nullptr, 0), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("excludeRanksList[0] is 2"));
  EXPECT_EQ(tuttiCommShrink(comm, nullptr, 1, &rest, nullptr, 0), tuttiInvalidArgument);
  EXPECT_EQ(tuttiCommShrink(comm, none, -1, &rest, nullptr, 0), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("are no list"));
  EXPECT_EQ(tuttiCommShrink(comm, none, 0, nullptr, nullptr, 0), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("newcomm is NULL"));
  EXPECT_EQ(tuttiCommShrink(comm, none, 0, &rest, nullptr, 2), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("shrinkFlags is 0x2"));
}

TEST(Revoke, EndsEveryRanksOperations) {
  Ranks ranks(3);
  std::atomic<pid_t> calls[2] = {}; /* of ranks 1 and 2 */
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm) {
    float in = 1, out;
    if (r == 0) {
      for (auto &thread : calls)
        waitUntilAsleep(thread);
    } else {
      calls[r - 1] = threadId();
      EXPECT_EQ(tuttiAllReduce(&in, &out, 1, tuttiFloat32, tuttiSum, comm, nullptr),
                tuttiInvalidUsage);
      EXPECT_THAT(lastError(), HasSubstr("rank 0 revoked this communicator"));
    }
    EXPECT_EQ(tuttiCommRevoke(comm, 1), tuttiInvalidArgument);
    ASSERT_EQ(tuttiCommRevoke(comm, TUTTI_REVOKE_DEFAULT), tuttiSuccess) << lastError();
    tuttiResult_t state = tuttiInternalError;
    EXPECT_EQ(tuttiCommGetAsyncError(comm, &state), tuttiSuccess);
    EXPECT_EQ(state, tuttiSuccess);
    EXPECT_EQ(tuttiAllReduce(&in, &out, 1, tuttiFloat32, tuttiSum, comm, nullptr),
              tuttiInvalidUsage);
    tuttiComm_t again = nullptr;
    ASSERT_EQ(tuttiCommShrink(comm, nullptr, 0, &again, nullptr, TUTTI_SHRINK_ABORT), tuttiSuccess)
        << lastError();
    expectSum(again, 3);
    EXPECT_EQ(tuttiCommDestroy(again), tuttiSuccess);
  });
}

TEST(Revoke, FromAnotherThread) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  const std::atomic<pid_t> self{threadId()};
  std::thread revoker([&] {
    waitUntilAsleep(self);
    EXPECT_EQ(tuttiCommRevoke(ranks.comms[0], 0), tuttiSuccess) << lastError();
  });
  float in = 1, out; /* rank 1 never comes */
  EXPECT_EQ(tuttiAllReduce(&in, &out, 1, tuttiFloat32, tuttiSum, ranks.comms[0], nullptr),
            tuttiInvalidUsage);
  revoker.join();
}

TEST(Grow, ByTwoRanks) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  tuttiUniqueId id;
  ASSERT_EQ(tuttiCommGetUniqueId(ranks.comms[1], &id), tuttiSuccess) << lastError();
  onThreads(4, [&](int r) {
    tuttiComm_t all = nullptr, old = r < 2 ? ranks.comms[r] : nullptr;
    ASSERT_EQ(tuttiCommGrow(old, 4, r ? &id : nullptr, r < 2 ? -1 : r, &all, nullptr), tuttiSuccess)
        << lastError();
    expectPlace(all, r, 4);
    expectSum(all, 4);
    if (old) expectSum(old, 2);
    EXPECT_EQ(tuttiCommDestroy(all), tuttiSuccess);
  });
}

TEST(Grow, RanksDisagree) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  tuttiUniqueId id;
  ASSERT_EQ(tuttiCommGetUniqueId(ranks.comms[0], &id), tuttiSuccess) << lastError();
  ranks.run([&](int r, tuttiComm_t comm) {
    tuttiComm_t all = nullptr;
    EXPECT_EQ(tuttiCommGrow(comm, 3, nullptr, -1, &all, nullptr), tuttiInvalidUsage);
    EXPECT_THAT(lastError(), HasSubstr("no rank of the communicator passed a uniqueId"));
    EXPECT_EQ(tuttiCommGrow(comm, 3, &id, -1, &all, nullptr), tuttiInvalidUsage);
    EXPECT_THAT(lastError(), HasSubstr("ranks 0 and 1 both passed a uniqueId"));
    EXPECT_EQ(tuttiCommGrow(comm, 3 + r, r ? nullptr : &id, -1, &all, nullptr), tuttiInvalidUsage);
    EXPECT_THAT(lastError(), HasSubstr("disagree on nRanks"));
    EXPECT_EQ(tuttiCommGrow(comm, 2, &id, -1, &all, nullptr), tuttiInvalidArgument);
    EXPECT_THAT(lastError(), HasSubstr("more than the 2 ranks"));
    EXPECT_EQ(tuttiCommGrow(comm, 3, &id, 0, &all, nullptr), tuttiInvalidArgument);
    EXPECT_THAT(lastError(), HasSubstr("rank is 0"));
    EXPECT_EQ(tuttiCommGrow(comm, 3, &id, -1, nullptr, nullptr), tuttiInvalidArgument);
    expectSum(comm, 2);
  });
  EXPECT_EQ(tuttiCommGetUniqueId(ranks.comms[0], nullptr), tuttiInvalidArgument);
}

/* The new rank waits for one that does not come any more, and hears why. */
void expectNewRankHears(tuttiComm_t comm, const char *why,
                        tuttiResult_t (*grow)(tuttiComm_t, const tuttiUniqueId &)) {
  tuttiUniqueId id;
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess) << lastError();
  std::thread newcomer([&] {
    tuttiComm_t all = nullptr;
    EXPECT_NE(tuttiCommGrow(nullptr, 3, &id, 2, &all, nullptr), tuttiSuccess);
    EXPECT_THAT(lastError(), AllOf(HasSubstr("rank 0 (host"), HasSubstr(why)));
  });
  EXPECT_NE(grow(comm, id), tuttiSuccess);
  newcomer.join();
}

TEST(Grow, OfOneThatHasFailed) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  float in = 1, out; /* rank 1 never comes */
  setTimeout(ranks.comms[0], 50);
  EXPECT_EQ(tuttiAllReduce(&in, &out, 1, tuttiFloat32, tuttiSum, ranks.comms[0], nullptr),
            tuttiTimeout);
  expectNewRankHears(ranks.comms[0], "waited", [](tuttiComm_t comm, const tuttiUniqueId &id) {
    tuttiComm_t all = nullptr;
    return tuttiCommGrow(comm, 3, &id, -1, &all, nullptr);
  });
}

/* Its handle tells nothing any more but whose it was. */
TEST(Grow, OfOneThatWasAborted) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  tuttiComm_t dead = ranks.comms[0];
  EXPECT_EQ(tuttiCommAbort(dead), tuttiSuccess);
  ranks.comms[0] = nullptr;
  expectNewRankHears(dead, "is no live communicator",
                     [](tuttiComm_t comm, const tuttiUniqueId &id) {
                       tuttiComm_t all = nullptr;
                       return tuttiCommGrow(comm, 3, &id, -1, &all, nullptr);
                     });
}

/* What the caller can mend ends nothing: the new rank waits on. */
TEST(Grow, WithTheRightArgumentsAtLast) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  tuttiUniqueId id;
  ASSERT_EQ(tuttiCommGetUniqueId(ranks.comms[0], &id), tuttiSuccess) << lastError();
  std::atomic<pid_t> waits{0};
  onThreads(3, [&](int r) {
    tuttiComm_t all = nullptr, old = r < 2 ? ranks.comms[r] : nullptr;
    if (r == 2) waits = threadId();
    if (r == 0) {
      waitUntilAsleep(waits);
      EXPECT_EQ(tuttiCommGrow(old, 3, &id, 7, &all, nullptr), tuttiInvalidArgument);
      EXPECT_EQ(tuttiCommGrow(old, 2, &id, -1, &all, nullptr), tuttiInvalidArgument);
    }
    ASSERT_EQ(tuttiCommGrow(old, 3, r == 1 ? nullptr : &id, r < 2 ? -1 : r, &all, nullptr),
              tuttiSuccess)
        << lastError();
    expectSum(all, 3);
    EXPECT_EQ(tuttiCommDestroy(all), tuttiSuccess);
  });
}

TEST(Grow, InAGroupThatFails) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  expectNewRankHears(
      ranks.comms[0], "its group has ended", [](tuttiComm_t comm, const tuttiUniqueId &id) {
        tuttiComm_t all = nullptr;
        EXPECT_EQ(tuttiGroupStart(), tuttiSuccess);
        EXPECT_EQ(tuttiCommGrow(comm, 3, &id, -1, &all, nullptr), tuttiSuccess);
        EXPECT_EQ(tuttiAllReduce(nullptr, nullptr, 1, tuttiFloat32, tuttiSum, comm, nullptr),
                  tuttiInvalidArgument);
        return tuttiGroupEnd();
      });
}

/* A rank whose exchange has failed does not come: those who wait for it hear of that failure, and
 * nothing else would tell them. */
TEST(Grow, OfOneThatFailsMeanwhile) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  tuttiUniqueId id;
  ASSERT_EQ(tuttiCommGetUniqueId(ranks.comms[0], &id), tuttiSuccess) << lastError();
  tuttiComm_t all[3] = {};
  std::thread failing([&] {
    for (int r = 0; r < 2; r++)
      while (!__atomic_load_n(&all[r], __ATOMIC_ACQUIRE)) /* until the ids are exchanged */
        std::this_thread::yield();
    tuttiCommunicator *c;
    ASSERT_EQ(tuttiHandleEnter(ranks.comms[1], "a failure", &c), tuttiSuccess);
    tuttiCommFailText(c, tuttiRemoteError, "rank 1 lost a connection", true);
    tuttiHandleLeave(c);
  });
  onThreads(3, [&](int r) { /* rank 3 never comes */
                            tuttiComm_t old = r < 2 ? ranks.comms[r] : nullptr;
                            EXPECT_EQ(tuttiCommGrow(old, 4, r == 1 ? nullptr : &id, r < 2 ? -1 : r,
                                                    &all[r], nullptr),
                                      tuttiRemoteError);
                            EXPECT_THAT(
                                lastError(),
                                AllOf(HasSubstr("rank 1 lost a connection"),
                                      HasSubstr("in the communicator that this one is made of")));
  });
  failing.join();
}

/* A rank that has what it wanted may end the old one while others are still on their way. */
TEST(Grow, OfOneThatIsAbortedMeanwhile) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  tuttiUniqueId id;
  ASSERT_EQ(tuttiCommGetUniqueId(ranks.comms[0], &id), tuttiSuccess) << lastError();
  tuttiComm_t all[3] = {};
  onThreads(3, [&](int r) {
    tuttiComm_t old = r < 2 ? ranks.comms[r] : nullptr;
    if (r == 2) {
      for (int k = 0; k < 2; k++)
        while (!__atomic_load_n(&all[k], __ATOMIC_ACQUIRE))
          std::this_thread::yield();
      EXPECT_EQ(tuttiCommAbort(ranks.comms[1]), tuttiSuccess) << lastError();
      ranks.comms[1] = nullptr;
      tuttiResult_t state = tuttiSuccess;
      while (state == tuttiSuccess)
        ASSERT_EQ(tuttiCommGetAsyncError(ranks.comms[0], &state), tuttiSuccess);
    }
    ASSERT_EQ(tuttiCommGrow(old, 3, r == 1 ? nullptr : &id, r < 2 ? -1 : r, &all[r], nullptr),
              tuttiSuccess)
        << lastError();
    expectSum(all[r], 3);
    EXPECT_EQ(tuttiCommDestroy(all[r]), tuttiSuccess);
  });
}

TEST(Simulate, TellsATimeAndDoesNothing) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    std::vector<float> in(1 << 20, 1), out(1 << 20, 0);
    float times[2];
    for (int i = 0; i < 2; i++) {
      tuttiSimInfo_t sim = TUTTI_SIM_INFO_INITIALIZER;
      ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
      for (int k = 0; k <= i; k++)
        ASSERT_EQ(
            tuttiAllReduce(in.data(), out.data(), in.size(), tuttiFloat32, tuttiSum, comm, nullptr),
            tuttiSuccess);
      if (i) {
        ASSERT_EQ(tuttiSend(in.data(), 1, tuttiFloat32, !r, comm, nullptr), tuttiSuccess);
      }
      ASSERT_EQ(tuttiGroupSimulateEnd(&sim), tuttiSuccess) << lastError();
      times[i] = sim.estimatedTime;
    }
    EXPECT_GT(times[0], 0);
    EXPECT_GT(times[1], 2 * times[0]);
    EXPECT_LT(times[1], 1e9f);
    EXPECT_EQ(out[0], 0);
    expectSum(comm, 2); /* no trace of what was simulated */
  });
}

TEST(Simulate, BadUse) {
  tuttiSimInfo_t sim = TUTTI_SIM_INFO_INITIALIZER;
  EXPECT_EQ(tuttiGroupSimulateEnd(&sim), tuttiInvalidUsage);
  EXPECT_THAT(lastError(), HasSubstr("no group is open"));
  EXPECT_EQ(tuttiGroupSimulateEnd(nullptr), tuttiInvalidArgument);
  sim.magic = 0;
  EXPECT_EQ(tuttiGroupSimulateEnd(&sim), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("TUTTI_SIM_INFO_INITIALIZER"));
  Ranks ranks(1);
  ASSERT_TRUE(ranks.ok());
  sim = TUTTI_SIM_INFO_INITIALIZER;
  ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
  EXPECT_EQ(tuttiSend(nullptr, 1, tuttiInt8, 7, ranks.comms[0], nullptr), tuttiInvalidArgument);
  EXPECT_EQ(tuttiGroupSimulateEnd(&sim), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("peer is 7"));
  EXPECT_EQ(sim.estimatedTime, -1);
}

TEST(Simulate, ABadArgumentEndsTheGroupAndFailsTheOneAround) {
  ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
  EXPECT_EQ(tuttiGroupSimulateEnd(nullptr), tuttiInvalidArgument);
  EXPECT_EQ(tuttiGroupEnd(), tuttiInvalidUsage) << "it was left open";
  ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
  ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
  EXPECT_EQ(tuttiGroupSimulateEnd(nullptr), tuttiInvalidArgument);
  EXPECT_EQ(tuttiGroupEnd(), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("simInfo"));
  EXPECT_EQ(tuttiGroupEnd(), tuttiInvalidUsage);
}

} // namespace

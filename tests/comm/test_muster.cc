#include "comm/muster.h"

#include <atomic>
#include <vector>

#include "base/os.h"
#include "comm/harness.h"

using testing::HasSubstr;

namespace {

constexpr uint64_t kSecond = 1000000000;

/* A rank of so many, of which those of one process are as their numbers in `processes` say. */
struct Rank {
  tuttiCommView v{};
  std::vector<tuttiPeer> peers;
  tuttiAtomic32 failed{};
  Rank(int rank, const std::vector<uint64_t> &processes, uint64_t hash = 1)
      : peers(processes.size()) {
    v.rank = rank;
    v.nranks = (int)processes.size();
    v.commHash = hash;
    v.peers = peers.data();
    for (size_t r = 0; r < peers.size(); r++)
      peers[r].process = processes[r];
  }
  tuttiResult_t wait(uint64_t ns = 60 * kSecond) {
    return tuttiMusterWait(&v, {tuttiNow() + ns, &failed, "rank 7 has died"});
  }
};

TEST(Muster, NobodyGoesBeforeAllOfTheProcessHaveCome) {
  const std::vector<uint64_t> processes = {5, 6, 5, 5};
  for (int round = 0; round < 50; round++) {
    std::atomic<int> come{0};
    onThreads(4, [&](int r) {
      Rank rank(r, processes);
      if (r == round % 4) usleep(500);
      come += r != 1;
      EXPECT_EQ(rank.wait(), tuttiSuccess) << tuttiGetLastError(nullptr);
      if (r == 1) return;
      EXPECT_EQ(come, 3);
    });
  }
}

TEST(Muster, WhoIsAloneDoesNotWait) {
  EXPECT_EQ(Rank(0, {1, 2, 3}).wait(0), tuttiSuccess);
}

TEST(Muster, CommunicatorsDoNotMix) {
  Rank one(0, {1, 1}, 10), other(1, {1, 1}, 11);
  std::atomic<int> ended{0};
  onThreads(2, [&](int r) {
    EXPECT_EQ((r ? other : one).wait(kSecond / 20), tuttiTimeout);
    EXPECT_THAT(tuttiGetLastError(nullptr), HasSubstr("of the 2 ranks in its process only 1 have"));
    ended++;
  });
  EXPECT_EQ(ended, 2);
  Rank secret(1, {1, 1}, 10);
  secret.v.secret[3] = 1;
  onThreads(2, [&](int r) { EXPECT_EQ((r ? secret : one).wait(kSecond / 20), tuttiTimeout); });
}

TEST(Muster, AFailureEndsIt) {
  Rank rank(0, {1, 1});
  onThreads(2, [&](int r) {
    if (r == 1) {
      usleep(1000);
      tuttiStoreRelease32(&rank.failed, tuttiRemoteError);
      return;
    }
    EXPECT_EQ(rank.wait(), tuttiRemoteError);
    EXPECT_THAT(tuttiGetLastError(nullptr), HasSubstr("rank 7 has died"));
  });
  /* What is left of that has no part in the next. */
  EXPECT_EQ(Rank(1, {1, 1}).wait(kSecond / 20), tuttiTimeout);
}

} // namespace

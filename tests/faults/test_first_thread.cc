/* A process may end its first thread, with whose number the kernel knows it, before the others. */
#include <sys/syscall.h>

#include <algorithm>
#include <thread>

#include "base/host.h"
#include "processes.h"

namespace {

constexpr int kRanks = 2;
constexpr size_t kLeast = 1 << 14, kMost = 1 << 22;

/* Of many sizes, as the planner has only some of them read where they are, by what it measured. */
void broadcasts(RankProcesses &job, tuttiComm_t comm, int r) {
  std::vector<int32_t> x(kMost);
  for (size_t n = kLeast; n <= kMost && job.report(r).result == tuttiSuccess; n *= 2) {
    int32_t value = (int32_t)n + 1;
    std::fill_n(x.begin(), n, r == 0 ? value : 0);
    job.keep(tuttiBroadcast(x.data(), x.data(), n, tuttiInt32, 0, comm, nullptr), comm);
    EXPECT_EQ(std::count(x.begin(), x.begin() + (ptrdiff_t)n, value), (ptrdiff_t)n);
  }
}

TEST(FirstThread, MayEndWhileOthersBroadcast) {
  RankProcesses job;
  job.start(kRanks, [&](int r) {
    setenv("TUTTI_P2P_DISABLE", "1", 1);
    tuttiComm_t comm = nullptr;
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.timeoutMs = 10000;
    ASSERT_EQ(tuttiCommInitRankConfig(&comm, kRanks, job.id(), r, &config), tuttiSuccess)
        << tuttiGetLastError(nullptr);
    broadcasts(job, comm, r);
    auto rest = [&job, comm, r] {
      for (int i = 0; r == 0 && i < 30000 && tuttiProcessState(getpid()) != 'Z'; i++)
        usleep(1000);
      job.meet(kRanks, 1);
      broadcasts(job, comm, r);
      EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
      fflush(nullptr);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    };
    std::thread(rest).detach();
    if (r == 0) syscall(SYS_exit, 0); /* as pthread_exit, but without C++'s unwinding */
    for (;;)
      pause();
  });
  job.waitAll();
  job.expectCleanEnds();
}

} // namespace

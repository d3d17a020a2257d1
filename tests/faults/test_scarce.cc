/* A rank that lacks what it needs for its part, while the others wait for it. */
#include <fcntl.h>
#include <sys/resource.h>

#include "processes.h"

using testing::AllOf;
using testing::HasSubstr;

namespace {

/* Leaves this process `n` more descriptors than it has. */
void leaveDescriptors(int n) {
  int last = -1;
  std::vector<int> taken;
  for (int i = 0; i < n; i++)
    taken.push_back(last = open("/dev/null", O_RDONLY | O_CLOEXEC));
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = (rlim_t)last + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  for (int fd : taken)
    close(fd);
}

/* Two are enough for its watch to be asked, and none too many for a rendezvous. */
TEST(Scarce, AShrinkWhoseFirstRankHasNoDescriptors) {
  constexpr int n = 3;
  RankProcesses job;
  job.start(n, [&](int r) {
    tuttiComm_t comm = nullptr, rest = nullptr;
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.timeoutMs = 20000;
    tuttiUniqueId id = job.id();
    ASSERT_EQ(tuttiCommInitRankConfig(&comm, n, id, r, &config), tuttiSuccess)
        << tuttiGetLastError(nullptr);
    ASSERT_TRUE(job.meet(n, 1));
    if (r == 0) leaveDescriptors(2);
    int gone = 2;
    if (r < 2) {
      job.keep(tuttiCommShrink(comm, &gone, 1, &rest, nullptr, TUTTI_SHRINK_DEFAULT));
    }
    job.meet(n, 2);
    EXPECT_EQ(tuttiCommAbort(comm), tuttiSuccess);
    job.meet(n, 3);
  });
  job.waitAll();
  job.expectCleanEnds();
  EXPECT_EQ(job.report(0).result, tuttiSystemError) << job.report(0).text;
  EXPECT_EQ(job.report(1).result, tuttiRemoteError) << job.report(1).text;
  EXPECT_THAT(job.report(1).text,
              AllOf(HasSubstr("rank 0 (host "), HasSubstr("could not start the rendezvous")));
}

} // namespace

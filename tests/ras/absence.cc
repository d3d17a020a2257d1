/* A rank that does not come to the init of a communicator which is made of another one is innocent
 * most often: the others are told whom it waits for there. */
#include "ras/job.h"

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

namespace {

constexpr int kMembers = 4, kStopped = 0, kHeld = 3, kCount = 64;

class Absence : public testing::TestWithParam<const char *> {
protected:
  /* All but one shrink, and that one waits in the parent for the rank that they leave behind, or
   * calls nothing; it has the longer patience. */
  void rank(int r, bool waits) {
    static float in[kCount], out[kCount];
    tuttiComm_t comm, less;
    int excluded = kStopped;
    setenv("TUTTI_TIMEOUT", r == kHeld ? "60" : "10", 1);
    tuttiUniqueId id = job.id();
    if (job.keep(tuttiCommInitRank(&comm, kMembers, id, r)) != tuttiSuccess) return;
    if (tuttiAllReduce(in, out, kCount, tuttiFloat32, tuttiSum, comm, nullptr) != tuttiSuccess)
      abort();
    job.setStage(r, 1);
    if (r == kStopped || !job.waitForStage(kStopped, 2))
      for (;;)
        pause();
    if (r != kHeld) {
      job.keep(tuttiCommShrink(comm, &excluded, 1, &less, nullptr, TUTTI_SHRINK_DEFAULT));
      job.meet(kHeld + 1, 2); /* none leaves before all have been told */
      return;
    }
    if (waits) tuttiRecv(out, kCount, tuttiFloat32, kStopped, comm, nullptr);
    for (;;)
      pause();
  }

  /* What ranks 1 and 2 were told. */
  void run(bool waits) {
    rastest::useTransport(GetParam());
    job.start(kMembers, [this, waits](int r) { rank(r, waits); });
    for (int r = 0; r < kMembers; r++)
      ASSERT_TRUE(job.waitForStage(r, 1)) << job.report(r).text;
    kill(job.report(kStopped).pid, SIGSTOP);
    job.setStage(kHeld, 2);
    job.setStage(kStopped, 2);
    for (int r = 1; r < kHeld; r++)
      ASSERT_TRUE(job.waitForStage(r, 2)) << "rank " << r;
  }
  std::string who(int r) { return ", pid " + std::to_string(job.report(r).pid) + ")"; }

  RankProcesses job;
};

TEST_P(Absence, IsLaidToWhomTheMissingWaitFor) {
  run(true);
  for (int r = 1; r < kHeld; r++) {
    EXPECT_EQ(job.report(r).result, tuttiTimeout);
    EXPECT_THAT(job.report(r).text,
                AllOf(HasSubstr("missing ranks: 2 of 3 never came"),
                      HasSubstr("before the deadline: rank 2 is rank 3 (host "),
                      HasSubstr(who(kHeld) + " of communicator "),
                      HasSubstr(", which this one is made of, and there rank 3 waits "),
                      HasSubstr("rank 0 (host "),
                      HasSubstr(who(kStopped) + " does not answer (stopped?)"),
                      Not(HasSubstr("see whether they were started"))));
  }
}

/* Whom nobody waits for has been left behind, and is not to blame. */
TEST_P(Absence, IsNotLaidToTheExcluded) {
  run(false);
  for (int r = 1; r < kHeld; r++) {
    EXPECT_EQ(job.report(r).result, tuttiTimeout);
    EXPECT_THAT(job.report(r).text,
                AllOf(HasSubstr("missing ranks: 2 of 3 never came"),
                      HasSubstr("rank 2 is rank 3 (host "), HasSubstr(who(kHeld)),
                      HasSubstr("and waits for nobody there"), Not(HasSubstr(who(kStopped)))));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Absence, testing::Values("SHM", "Socket"),
                         [](const auto &info) { return std::string(info.param); });

} // namespace

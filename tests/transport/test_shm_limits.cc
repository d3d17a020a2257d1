/* A rank that leaves while its process has no descriptors. */
#include <gmock/gmock.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "base/error.h"
#include "shm_ranks.h"

namespace {
using namespace local;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Somebody closes some while the rank leaves.
TEST(ShmLimits, WhoLeavesWithoutFilesTriesAgain) {
  Ranks ranks = makeProcesses(Shape());
  prepareAll(ranks);
  hideAll(ranks);
  ASSERT_EQ(tuttiSuccess, ranks[0]->attach()) << tuttiErrorText();
  sendOne(*ranks[0], 1, 42);
  auto few = std::make_unique<FewFiles>(0);
  std::thread leaver([&] { ranks[0]->detach(); });
  usleep(50000);
  few.reset();
  leaver.join();
  ASSERT_EQ(tuttiSuccess, ranks[1]->attach()) << tuttiErrorText();
  expectOne(*ranks[1], 0, 42);
}

TEST(ShmLimits, WhoLeavesWithoutFilesSaysSo) {
  Ranks ranks = makeProcesses(Shape());
  prepareAll(ranks);
  ASSERT_EQ(tuttiSuccess, ranks[0]->attach()) << tuttiErrorText();
  sendOne(*ranks[0], 1, 42);
  Setting warn("TUTTI_DEBUG", "WARN");
  testing::internal::CaptureStderr();
  {
    FewFiles few(0);
    ranks[0]->detach();
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("rank 0 leaves with messages that rank 1 has not seen: "),
                    HasSubstr("ulimit -n")));
}

} // namespace

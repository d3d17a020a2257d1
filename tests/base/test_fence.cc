/* What the kernel may say to the seldom half of a fence. */
#include <gtest/gtest.h>
#include <linux/membarrier.h>

#include <cerrno>
#include <vector>

#include "base/fence.h"

namespace {

std::vector<int> answers; /* the next ones, errno values or 0; behind them 0 */
std::vector<int> commands;

long answer(int command) {
  commands.push_back(command);
  if (answers.empty()) return 0;
  errno = answers.front();
  answers.erase(answers.begin());
  return errno == 0 ? 0 : -1;
}

const int enlists = MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED;
const int fences = MEMBARRIER_CMD_PRIVATE_EXPEDITED;

class Fence : public testing::Test {
protected:
  void SetUp() override {
    tuttiFenceReplace(answer);
    answers.clear();
    commands.clear();
    if (!tuttiFenceWorks()) GTEST_SKIP() << "ThreadSanitizer looks on";
  }
  void TearDown() override { tuttiFenceReplace(nullptr); }
};

TEST_F(Fence, IsAskedForOnce) {
  EXPECT_TRUE(tuttiFenceWorks());
  tuttiFenceHeavy();
  EXPECT_EQ(commands, (std::vector<int>{enlists, fences}));
}

TEST_F(Fence, IsNotReliedUponWhereTheKernelRefuses) {
  for (int refusal : {ENOSYS, EINVAL, EPERM}) {
    tuttiFenceReplace(answer);
    answers = {refusal};
    EXPECT_FALSE(tuttiFenceWorks());
    EXPECT_FALSE(tuttiFenceWorks()) << "it is remembered";
  }
}

TEST_F(Fence, IsTriedAgain) {
  answers = {ENOMEM, EPERM, 0}; /* no memory for a moment, then not enlisted */
  tuttiFenceHeavy();
  EXPECT_EQ(commands, (std::vector<int>{enlists, fences, fences, enlists, fences}));
  EXPECT_TRUE(tuttiFenceWorks());
}

TEST_F(Fence, IsNotTriedForEver) {
  answers.assign(10000, ENOMEM);
  tuttiFenceHeavy();
  EXPECT_LT(commands.size(), answers.size());
  EXPECT_FALSE(tuttiFenceWorks());
}

/* A filter of system calls that came when the kernel had promised the fence. */
TEST_F(Fence, IsNotReliedUponAnyMoreWhenItIsRefusedLate) {
  for (std::vector<int> late : {std::vector<int>{ENOSYS}, std::vector<int>{EPERM, EPERM}}) {
    tuttiFenceReplace(answer);
    EXPECT_TRUE(tuttiFenceWorks());
    answers = late;
    tuttiFenceHeavy();
    EXPECT_FALSE(tuttiFenceWorks());
  }
}

} // namespace

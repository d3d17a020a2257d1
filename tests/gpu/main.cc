/* No test may hold up the machine: kernels wait for 20 s at most, and each test has its time. */
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

namespace {

constexpr unsigned kSeconds = 200; /* of one test; SIGALRM ends the program */

class Clock : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo &) override { alarm(kSeconds); }
  void OnTestEnd(const testing::TestInfo &) override { alarm(0); }
};

} // namespace

int main(int argc, char **argv) {
  setenv("TUTTI_TIMEOUT", "20", 0);
  /* Ranks may share a GPU: each stream needs a queue of its own, or kernels wait in line for those
   * that wait for them. */
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new Clock);
  return RUN_ALL_TESTS();
}

/* tuttiCommMemUsed says what the process has really gained. */
#include <malloc.h>

#include <fstream>

#include "comm/harness.h"

namespace {

/* Bytes of real memory of this process; pages mapped several times count once. Pages of files do
 * not count: no communicator maps any, and the share of a program and its libraries that is this
 * process's own grows whenever another that runs them ends. */
size_t realMemory() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  std::string word;
  size_t sum = 0;
  while (rollup >> word)
    if (word == "Pss_Anon:" || word == "Pss_Shmem:") {
      size_t kib;
      rollup >> kib;
      sum += kib * 1024;
    }
  return sum;
}

class Memory : public testing::TestWithParam<const char *> {};

/* Stacks of the library's threads and pages of the C library are not of the communicator. */
constexpr double kSlackBytes = 512 << 10, kSlackPart = 0.05;

TEST_P(Memory, UsedIsWhatTheProcessGained) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer has memory of its own for each page";
#endif
  Settings settings({{"TUTTI_P2P_DISABLE", *GetParam() == 'P' ? "0" : "1"},
                     {"TUTTI_SHM_DISABLE", *GetParam() == 'N' ? "1" : "0"}});
  mallopt(M_ARENA_MAX, 1);
  constexpr int n = 4;
  constexpr size_t count = 4 << 20;
  std::vector<std::vector<float>> in(n, std::vector<float>(count, 1)), out = in;
  auto work = [&](int r, tuttiComm_t comm) {
    EXPECT_EQ(
        tuttiAllReduce(in[r].data(), out[r].data(), count, tuttiFloat32, tuttiSum, comm, nullptr),
        tuttiSuccess)
        << tuttiGetLastError(comm);
  };
  Ranks(n).run(work); /* what the first use of the library costs for ever */
  malloc_trim(0);
  size_t before = realMemory();
  Ranks ranks(n);
  ASSERT_TRUE(ranks.ok());
  size_t atStart = 0, used = 0;
  for (auto comm : ranks.comms) {
    size_t bytes = 0;
    ASSERT_EQ(tuttiCommMemUsed(comm, &bytes), tuttiSuccess);
    atStart += bytes;
  }
  ranks.run(work);
  malloc_trim(0);
  size_t gained = realMemory() - before;
  for (auto comm : ranks.comms) {
    size_t bytes = 0;
    ASSERT_EQ(tuttiCommMemUsed(comm, &bytes), tuttiSuccess);
    used += bytes;
  }
  RecordProperty("used", std::to_string(used));
  EXPECT_GT(used, atStart) << "messages have touched pages";
  EXPECT_NEAR((double)used, (double)gained, kSlackBytes + kSlackPart * (double)gained);
}

INSTANTIATE_TEST_SUITE_P(Transports, Memory, testing::Values("P2P", "SHM", "NET"),
                         [](auto &info) { return std::string(info.param); });

} // namespace

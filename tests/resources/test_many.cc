/* 64 ranks on however few cores there are: they start, work, and the log says what took the time.
 */
#include <fstream>
#include <sstream>

#include "comm/harness.h"
#include "processes.h"

using testing::HasSubstr;

namespace {

constexpr int kMany = 64;

class LogFile {
public:
  LogFile() { close(mkstemp(path)); }
  ~LogFile() { unlink(path); }
  std::string text() {
    std::ostringstream all;
    all << std::ifstream(path).rdbuf();
    return all.str();
  }
  char path[32] = "/tmp/tuttitest.XXXXXX";
};

/* One line of each rank with the times of init's phases. */
void expectPhases(const std::string &log) {
  for (int r = 0; r < kMany; r++)
    EXPECT_THAT(log,
                testing::ContainsRegex("rank " + std::to_string(r) +
                                       " nranks 64 .*init complete in [0-9.]+ ms \\(rendezvous "
                                       "[0-9.]+, peers [0-9.]+, graph [0-9.]+, transports "
                                       "[0-9.]+\\)"));
}

void allReduce(tuttiComm_t comm) {
  std::vector<int> x(1000, 1), y(1000);
  EXPECT_EQ(tuttiAllReduce(x.data(), y.data(), x.size(), tuttiInt32, tuttiSum, comm, nullptr),
            tuttiSuccess)
      << tuttiGetLastError(comm);
  EXPECT_EQ(y[999], kMany);
}

TEST(SlowMany, SixtyFourThreads) {
  LogFile log;
  {
    Settings settings({{"TUTTI_DEBUG", "INFO"}, {"TUTTI_DEBUG_FILE", log.path}});
    Ranks ranks(kMany);
    ASSERT_TRUE(ranks.ok());
    ranks.run([](int, tuttiComm_t comm) { allReduce(comm); });
  }
  expectPhases(log.text());
}

TEST(SlowMany, SixtyFourProcesses) {
  RankProcesses ranks;
  LogFile log;
  std::string path = std::string(log.path) + ".%p";
  ranks.start(kMany, [&](int r) {
    /* Each process has made a name of its own; the report carries it to the test. */
    Settings settings({{"TUTTI_DEBUG", "INFO"}, {"TUTTI_DEBUG_FILE", path}});
    snprintf(ranks.report(r).text, sizeof ranks.report(r).text, "%s", path.c_str());
    tuttiComm_t comm;
    ASSERT_EQ(tuttiCommInitRank(&comm, kMany, ranks.id(), r), tuttiSuccess)
        << tuttiGetLastError(nullptr);
    allReduce(comm);
    EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
    std::string from = std::string(log.path) + "." + std::to_string(getpid());
    std::ifstream in(from);
    for (std::string line; std::getline(in, line);)
      if (line.find("init complete") != std::string::npos)
        snprintf(ranks.report(r).text, sizeof ranks.report(r).text, "%s", line.c_str());
    unlink(from.c_str());
    unlink(log.path);
  });
  ranks.waitAll(300);
  ranks.expectCleanEnds();
  std::string lines;
  for (int r = 0; r < kMany; r++)
    lines += std::string(ranks.report(r).text) + "\n";
  expectPhases(lines);
}

} // namespace

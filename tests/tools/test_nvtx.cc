/* What a tool that listens to NVTX gets to see of a run. */
#include <fstream>
#include <map>

#include "command.h"

namespace {

class Nvtx : public testing::Test {
protected:
  void SetUp() override {
#ifndef NVTX_TOOL
    GTEST_SKIP()
        << "no NVTX headers were found; cmake -DTUTTI_NVTX_INCLUDE=... says where they are";
#endif
  }

  /* Runs `tutti perf` on 2 processes; lines_: how often the tool wrote each line. Every range was
   * closed. */
  void perf(std::vector<std::string> args, std::vector<std::string> env = {}) {
    std::string path = testing::TempDir() + "nvtx_" + std::to_string(getpid());
#ifdef NVTX_TOOL
    env.push_back("NVTX_INJECTION64_PATH=" NVTX_TOOL);
#endif
    env.push_back("NVTX_TOOL_OUT=" + path);
    args.insert(args.begin(), {"perf"});
    args.insert(args.end(), {"--ranks", "2", "--begin", "4K", "--end", "4K", "--iters", "5"});
    Result r = tutti(args, env);
    EXPECT_EQ(r.code, 0) << r.err;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);)
      lines_[line]++;
    unlink(path.c_str());
    int open = 0;
    for (auto &[line, times] : lines_)
      if (line.compare(0, 5, "open ") == 0) {
        open++;
        EXPECT_EQ(times, 1) << line;
        EXPECT_EQ(lines_.count("close " + line.substr(5)), 1u) << line;
      }
    EXPECT_GT(open, 0);
    EXPECT_EQ(lines_.count("domain tutti"), 1u);
  }
  std::map<std::string, int> lines_;
};

TEST_F(Nvtx, CallsAreRangesWithBytesAndRank) {
  perf({"all_reduce"});
  EXPECT_GE(lines_["tuttiAllReduce 4096 0"], 5);
  EXPECT_EQ(lines_["tuttiAllReduce 4096 0"], lines_["tuttiAllReduce 4096 1"]);
}

TEST_F(Nvtx, GroupsAndMessagesAreRanges) {
  perf({"sendrecv"});
  for (const char *rank : {"0", "1"}) {
    int sends = lines_[std::string("tuttiSend 4096 ") + rank];
    EXPECT_GE(sends, 5) << rank;
    EXPECT_EQ(lines_[std::string("tuttiRecv 4096 ") + rank], sends);
  }
  EXPECT_GE(lines_["tuttiGroupEnd 0 -1"], 10);
}

TEST_F(Nvtx, WorkOfTheProxyIsRanges) {
  perf({"all_reduce"}, {"TUTTI_P2P_DISABLE=1", "TUTTI_SHM_DISABLE=1"});
  EXPECT_GT(lines_["proxy 0 -1"], 2);
}

} // namespace

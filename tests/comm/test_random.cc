/* Random programs: every rank of a communicator runs the same random sequence of collectives and
 * grouped messages, over random hosts, algorithms and slot sizes, and checks every element. What
 * can wait in a circle does so sooner or later. Seeds are fixed. */
#include <random>

#include "harness.h"
#include "program.h"

namespace {

const char *pick(std::mt19937 &random, std::initializer_list<const char *> list) {
  return list.begin()[random() % list.size()];
}

class Random : public testing::TestWithParam<int> {};

TEST_P(Random, Program) {
  std::mt19937 random((unsigned)GetParam());
  int n = 1 + (int)(random() % 9);
  std::map<std::string, std::string> settings = {
      {"TUTTI_BUFFSIZE", pick(random, {"8192", "8192", "16384", "65536"})},
      {"TUTTI_ALGO", pick(random, {"", "Ring", "Hierarchical", "Tree", "Direct"})},
      {"TUTTI_PROTO", pick(random, {"", "Simple"})},
      {"TUTTI_MIN_NCHANNELS", pick(random, {"1", "1", "3"})},
      {"TUTTI_P2P_DISABLE", pick(random, {"0", "1"})},
      {"TUTTI_SHM_DISABLE", pick(random, {"0", "0", "1"})},
      {"TUTTI_TIMEOUT", "60"}};
  std::string name = "seed " + std::to_string(GetParam()) + " n " + std::to_string(n);
  for (auto &[key, text] : settings)
    name += " " + key + "=" + text;
  Settings scope(settings);
  Ranks ranks(n);
  ASSERT_TRUE(ranks.ok()) << name;
  std::vector<Step> program = makeProgram(random, n, 40);
  ranks.run([&](int r, tuttiComm_t comm) { Program(n, r, comm, name).run(program); });
}

INSTANTIATE_TEST_SUITE_P(Seeds, Random, testing::Range(1, 41));

/* One program for each of several communicators, each with threads of its own, at once; with the
 * programs' steps in between, new communicators come and go. */
TEST(ManyCommunicators, AtOnce) {
  constexpr int comms = 16, n = 4;
  Settings scope(std::map<std::string, std::string>{{"TUTTI_BUFFSIZE", "8192"}});
  onThreads(comms, [&](int i) {
    std::mt19937 random((unsigned)i + 1000);
    for (int round = 0; round < 2; round++) {
      Ranks ranks(n);
      ASSERT_TRUE(ranks.ok());
      std::vector<Step> program = makeProgram(random, n, 8);
      ranks.run([&](int r, tuttiComm_t comm) {
        Program(n, r, comm, "communicator " + std::to_string(i)).run(program);
      });
    }
  });
}

/* Far more ranks than cores, and counts that no number of ranks divides. */
TEST(ManyRanks, AsThreads) {
  for (int n : {16, 33, 64}) {
    Ranks ranks(n);
    ASSERT_TRUE(ranks.ok());
    std::mt19937 random((unsigned)n);
    std::vector<Step> program;
    for (int kind = 0; kind < 8; kind++)
      for (size_t count : {0, 1, 7, 1001})
        program.push_back({kind, count, n - 1, false, {}});
    program.push_back({9, 100, 0, false, {}});
    for (int r = 0; r < n; r++)
      for (int d : {1, 5})
        program.back().messages.push_back({r, (r + d) % n, (size_t)(r * d)});
    ranks.run([&](int r, tuttiComm_t comm) {
      Program(n, r, comm, std::to_string(n) + " ranks").run(program);
    });
  }
}

} // namespace

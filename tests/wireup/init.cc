// Communicators ask transports while they are made, a number of times that grows with the ranks,
// and never again; and no sentence is made that nobody reads.
#include "comm/harness.h"
#include "wireup/world.h"

namespace {
using namespace world;
using ::testing::HasSubstr;

struct Init : testing::Test {
  const tuttiTransport *table[5] = {&counting, &tuttiTransportP2p, &tuttiTransportShm,
                                    &tuttiTransportNet, nullptr};
  void SetUp() override {
    counts = {};
    tuttiTransportsReplace(table);
  }
  void TearDown() override { tuttiTransportsReplace(nullptr); }
};

void useAll(Ranks &ranks) {
  onThreads((int)ranks.comms.size(), [&](int r) {
    int n = (int)ranks.comms.size(), next = (r + 1) % n, before = (r + n - 1) % n;
    std::vector<float> from(1000, (float)r), to(1000);
    tuttiComm_t comm = ranks.comms[(size_t)r];
    EXPECT_EQ(tuttiSuccess,
              tuttiAllReduce(from.data(), to.data(), 1000, tuttiFloat32, tuttiSum, comm, nullptr));
    EXPECT_EQ((float)(n * (n - 1) / 2), to[999]);
    EXPECT_EQ(tuttiSuccess, tuttiGroupStart());
    tuttiSend(from.data(), 1000, tuttiFloat32, next, comm, nullptr);
    tuttiRecv(to.data(), 1000, tuttiFloat32, before, comm, nullptr);
    EXPECT_EQ(tuttiSuccess, tuttiGroupEnd()) << tuttiGetLastError(comm);
    EXPECT_EQ((float)before, to[999]);
  });
}

TEST_F(Init, AsksOnceAndExplainsNothing) {
  for (bool network : {false, true}) {
    Settings settings({{"TUTTI_P2P_DISABLE", network ? "1" : "0"},
                       {"TUTTI_SHM_DISABLE", network ? "1" : "0"},
                       {"TUTTI_DEBUG", "WARN"}});
    for (int n : {2, 4, 8, 16}) {
      counts = {};
      Ranks ranks(n);
      int asked = counts.asked;
      EXPECT_LE(asked, 3 * n * n) << "of n ranks";
      EXPECT_GE(asked, n * (n - 1)) << "the rows";
      useAll(ranks);
      EXPECT_EQ(asked, counts.asked) << "the table has it";
      EXPECT_EQ(0, counts.explained);
    }
  }
}

TEST_F(Init, TheLogReadsTheTable) {
  std::string log = testing::TempDir() + "tutti-wireup-" + std::to_string(getpid());
  int asked = 0;
  {
    Settings settings({{"TUTTI_DEBUG", "INFO"}, {"TUTTI_DEBUG_FILE", log}});
    Ranks ranks(3);
    asked = counts.asked;
    EXPECT_GT(counts.explained, 0);
    useAll(ranks);
    EXPECT_EQ(asked, counts.asked);
  }
  EXPECT_LE(asked, 3 * 3 * 3);
  std::ifstream file(log);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  unlink(log.c_str());
  EXPECT_THAT(text,
              HasSubstr("0[-1] -> 1[-1] [send] via P2P/direct pointer (threads of one process; "
                        "not COUNTING: reason 7 of rank 1)"));
}

} // namespace

/* A thousand communicators leave nothing behind. */
#include <malloc.h>

#include <fstream>
#include <functional>

#include "comm/harness.h"
#include "holdings.h"

namespace {

/* Within a minute. */
void waitUntil(const std::function<bool()> &condition) {
  for (int i = 0; i < 60000 && !condition(); i++)
    usleep(1000);
}

/* Connections of this network namespace that have ended, but whose ports are taken for a minute. */
int portsInTimeWait() {
  std::ifstream file("/proc/net/sockstat");
  std::string word;
  int n = 0;
  while (file >> word && word != "tw")
    ;
  file >> n;
  return n;
}

struct Holdings {
  int fds, threads;
  size_t mappings, heap;

  static Holdings now() {
    Holdings h;
    waitUntil([] { return rootThreads() == 0; }); /* a root has told its ranks before it ends */
    h.fds = openFds();
    h.threads = liveThreads();
    std::ifstream maps("/proc/self/maps");
    std::string line;
    for (h.mappings = 0; std::getline(maps, line);)
      h.mappings++;
    struct mallinfo2 info = mallinfo2();
    h.heap = info.uordblks + info.hblkhd;
    return h;
  }
};

/* One life: join, some of every kind of connection, leave. */
void live(const std::vector<int> &peers) {
  waitUntil([] { return portsInTimeWait() < 15000; }); /* that they do not run out */
  Ranks ranks((int)peers.size());
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm) {
    std::vector<float> x(5000, 1), y(5000);
    int n = (int)peers.size(), next = (r + 1) % n, before = (r + n - 1) % n;
    EXPECT_EQ(tuttiAllReduce(x.data(), y.data(), x.size(), tuttiFloat32, tuttiSum, comm, nullptr),
              tuttiSuccess)
        << tuttiGetLastError(comm);
    EXPECT_EQ(y[4999], n);
    tuttiGroupStart();
    tuttiSend(x.data(), 100, tuttiFloat32, next, comm, nullptr);
    tuttiRecv(y.data(), 100, tuttiFloat32, before, comm, nullptr);
    EXPECT_EQ(tuttiGroupEnd(), tuttiSuccess) << tuttiGetLastError(comm);
    EXPECT_EQ(y[99], 1);
  });
}

/* The C library keeps stacks, arenas and free lists of its own; they settle in the first lives. The
 * slack is for what is not a leak however many lives there are. */
void expectNoLeak(int cycles) {
  mallopt(M_ARENA_MAX, 1);
  const std::vector<int> peers = {0, 1};
  for (int i = 0; i < 50; i++)
    live(peers);
  Holdings before = Holdings::now();
  for (int i = 0; i < cycles && !testing::Test::HasFailure(); i++)
    live(peers);
  Holdings after = Holdings::now();
  EXPECT_EQ(after.fds, before.fds);
  EXPECT_EQ(after.threads, before.threads);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) /* they map for themselves */
  EXPECT_LE(after.mappings, before.mappings + 8);
#endif
  EXPECT_LE(after.heap, before.heap + 16384);
}

TEST(Leaks, ThousandLivesOverP2p) {
  expectNoLeak(1000);
}

TEST(Leaks, TwoHundredLivesOverShm) {
  Settings settings({{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_SHM_DISABLE", "0"}});
  expectNoLeak(200);
}

TEST(Leaks, TwoHundredLivesOverNet) {
  Settings settings({{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_SHM_DISABLE", "1"}});
  expectNoLeak(200);
}

/* Whatever fails on the way to a communicator is undone. */
TEST(Leaks, FailedInits) {
  mallopt(M_ARENA_MAX, 1);
  auto failing = [] {
    tuttiUniqueId id;
    ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
    onThreads(2, [&](int r) {
      tuttiComm_t comm;
      tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
      config.timeoutMs = 5000;
      config.maxCTAs = 1 + r; /* ranks must agree on it */
      EXPECT_EQ(tuttiCommInitRankConfig(&comm, 2, id, r, &config), tuttiInvalidUsage)
          << tuttiGetLastError(nullptr);
    });
  };
  for (int i = 0; i < 30; i++)
    failing();
  Holdings before = Holdings::now();
  for (int i = 0; i < 100; i++)
    failing();
  Holdings after = Holdings::now();
  EXPECT_EQ(after.fds, before.fds);
  EXPECT_EQ(after.threads, before.threads);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) /* they map for themselves */
  EXPECT_LE(after.mappings, before.mappings + 8);
#endif
  EXPECT_LE(after.heap, before.heap + 16384);
}

} // namespace

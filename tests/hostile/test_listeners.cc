/* Where the ranks of a job listen for TCP connections: only at addresses of the chosen interfaces,
 * only for what they use, and where all ranks are of one process nowhere; but for the RAS port, on
 * the loopback. */
#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "comm/harness.h"
#include "processes.h"

namespace {

bool isLoopback(const std::string &local) {
  std::string address = local.substr(0, local.find(':'));
  return address == "0100007F" || address == "00000000000000000000000001000000";
}

/* 28028, the RAS port. */
bool isRas(const std::string &local) {
  return isLoopback(local) && local.substr(local.find(':')) == ":6D7C";
}

/* The local addresses of this process's listening sockets, as /proc/net/tcp and tcp6 write them;
 * that of RAS apart. */
std::vector<std::string> listening(int *ras = nullptr) {
  std::set<std::string> own;
  DIR *fds = opendir("/proc/self/fd");
  for (dirent *e; (e = readdir(fds));) {
    char target[64] = "";
    if (readlinkat(dirfd(fds), e->d_name, target, sizeof target - 1) < 0) continue;
    if (strncmp(target, "socket:[", 8) == 0)
      own.insert(std::string(target + 8).substr(0, strcspn(target + 8, "]")));
  }
  closedir(fds);
  std::vector<std::string> found;
  for (const char *table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream in(table);
    std::string line, field;
    std::getline(in, line); /* the heads */
    while (std::getline(in, line)) {
      std::istringstream fields(line);
      std::vector<std::string> f;
      while (fields >> field)
        f.push_back(field);
      if (f.size() > 9 && f[3] == "0A" && own.count(f[9])) found.push_back(f[1]);
    }
  }
  auto end = std::remove_if(found.begin(), found.end(), isRas);
  if (ras) *ras = (int)(found.end() - end);
  found.erase(end, found.end());
  return found;
}

TEST(Listeners, ThreadsOfOneProcessHaveNone) {
  const std::map<std::string, std::string> lo = {{"TUTTI_SOCKET_IFNAME", "=lo"}};
  Settings settings(lo);
  ASSERT_EQ(listening().size(), 0u);
  Ranks ranks(4);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    int x = 1, y = 0;
    EXPECT_EQ(tuttiAllReduce(&x, &y, 1, tuttiInt32, tuttiSum, comm, nullptr), tuttiSuccess);
    EXPECT_EQ(y, 4);
    tuttiComm_t half;
    EXPECT_EQ(tuttiCommSplit(comm, r % 2, 0, &half, nullptr), tuttiSuccess)
        << tuttiGetLastError(nullptr);
    EXPECT_EQ(tuttiCommDestroy(half), tuttiSuccess);
  });
  EXPECT_EQ(listening(), std::vector<std::string>{});
}

TEST(Listeners, TheRasPortLivesAsLongAsACommunicator) {
  int ras = 0;
  {
    Ranks ranks(2);
    ASSERT_TRUE(ranks.ok());
    listening(&ras);
    EXPECT_LE(ras, 1); /* another user may hold the port */
  }
  listening(&ras);
  EXPECT_EQ(ras, 0);
  const std::map<std::string, std::string> none = {{"TUTTI_RAS_ENABLE", "0"}};
  Settings off(none);
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  listening(&ras);
  EXPECT_EQ(ras, 0);
}

/* The watches of one process answer each other without a port: a rank that is late is named. */
TEST(Listeners, ThreadsOfOneProcessAreAskedAllTheSame) {
  Ranks ranks(3);
  ASSERT_TRUE(ranks.ok());
  setTimeout(ranks.comms[0], 700);
  int x = 1, y = 0;
  EXPECT_EQ(tuttiAllReduce(&x, &y, 1, tuttiInt32, tuttiSum, ranks.comms[0], nullptr), tuttiTimeout);
  EXPECT_THAT(tuttiGetLastError(ranks.comms[0]),
              testing::HasSubstr("answers but has not called it yet"));
}

/* How many sockets with a port each of two processes has, all of them on the loopback. */
void expectListeners(const std::map<std::string, std::string> &settings, size_t count) {
  RankProcesses ranks;
  ranks.start(2, [&](int r) {
    auto all = settings;
    all["TUTTI_SOCKET_IFNAME"] = "=lo";
    all["TUTTI_SOCKET_FAMILY"] = "AF_INET";
    Settings now(all);
    tuttiComm_t comm;
    ASSERT_EQ(ranks.keep(tuttiCommInitRank(&comm, 2, ranks.id(), r)), tuttiSuccess)
        << ranks.report(r).text;
    int x = 1, y = 0;
    ASSERT_EQ(ranks.keep(tuttiAllReduce(&x, &y, 1, tuttiInt32, tuttiSum, comm, nullptr), comm),
              tuttiSuccess);
    auto found = listening();
    EXPECT_EQ(found.size(), count);
    for (auto &local : found)
      EXPECT_TRUE(isLoopback(local)) << local;
    ASSERT_TRUE(ranks.meet(2, 1));
    EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
  });
  ranks.waitAll();
  ranks.expectCleanEnds();
}

TEST(Listeners, ProcessesOfOneHostHaveThatOfTheWatch) {
  expectListeners({}, 1);
}

TEST(Listeners, RanksOverANetworkHaveADataPortToo) {
  expectListeners({{"TUTTI_SHM_DISABLE", "1"}, {"TUTTI_P2P_DISABLE", "1"}}, 2);
}

} // namespace

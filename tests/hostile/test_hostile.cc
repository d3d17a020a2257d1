/* Jobs whose surroundings or whose ranks are at fault: no crash, no hang, and on every rank an
 * error that says what to do. */
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <fstream>
#include <set>
#include <sstream>

#include "asleep.h"
#include "comm/harness.h"
#include "processes.h"
#include "socket/socket.h"

using testing::AllOf;
using testing::HasSubstr;

namespace {

/* Which transports a job may use, by the best one. */
std::map<std::string, std::string> only(const std::string &transport) {
  return {{"TUTTI_P2P_DISABLE", transport == "P2P" ? "0" : "1"},
          {"TUTTI_SHM_DISABLE", transport == "NET" ? "1" : "0"}};
}

tuttiResult_t join(tuttiComm_t *comm, int nranks, const tuttiUniqueId &id, int rank,
                   int timeoutMs) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.timeoutMs = timeoutMs;
  return tuttiCommInitRankConfig(comm, nranks, id, rank, &config);
}

tuttiResult_t allReduce(tuttiComm_t comm, int nranks, size_t count = 10000) {
  std::vector<int> x(count, 1), y(count);
  tuttiResult_t result =
      tuttiAllReduce(x.data(), y.data(), count, tuttiInt32, tuttiSum, comm, nullptr);
  if (result == tuttiSuccess) {
    EXPECT_EQ(y[0], nranks);
    EXPECT_EQ(y[count - 1], nranks);
  }
  return result;
}

/* This process may open k descriptors more, then no other: the limit is one of numbers, and those
 * of closed descriptors are free below the greatest. */
void leaveFds(int k) {
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  int n = 0;
  for (; k > 0 || fcntl(n, F_GETFD) >= 0; n++)
    k -= fcntl(n, F_GETFD) < 0;
  limit.rlim_cur = (rlim_t)n;
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* ---- /dev/shm ------------------------------------------------------------------------------- */

/* Hides /dev/shm of this process behind a file system of `options`; false without the privilege. */
bool hideDevShm(const char *options) {
  return unshare(CLONE_NEWNS) == 0 &&
         mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", "/dev/shm", "tmpfs", 0, options) == 0;
}

class DevShm : public testing::TestWithParam<const char *> {};

TEST_P(DevShm, IsNotNeeded) {
  RankProcesses ranks;
  ranks.start(2, [&](int r) {
    Settings settings(only("SHM"));
    std::string kind = GetParam();
    if (!hideDevShm(kind == "Tiny" ? "size=64k" : "size=4k")) {
      ranks.setStage(r, 1);
      return;
    }
    if (kind == "Full") {
      int fd = open("/dev/shm/full", O_CREAT | O_WRONLY, 0600);
      char page[4096] = {1};
      while (write(fd, page, sizeof page) > 0) {
      }
      close(fd);
    }
    if (kind == "ReadOnly") {
      EXPECT_EQ(mount("none", "/dev/shm", nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
    }
    tuttiComm_t comm;
    ASSERT_EQ(ranks.keep(join(&comm, 2, ranks.id(), r, 30000)), tuttiSuccess)
        << ranks.report(r).text;
    ASSERT_EQ(ranks.keep(allReduce(comm, 2, 3 << 20), comm), tuttiSuccess) << ranks.report(r).text;
    EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
  });
  ranks.waitAll();
  ranks.expectCleanEnds();
  if (ranks.report(0).stage) GTEST_SKIP() << "no privilege for a mount namespace";
}

INSTANTIATE_TEST_SUITE_P(Kinds, DevShm, testing::Values("Tiny", "Full", "ReadOnly"),
                         [](auto &info) { return std::string(info.param); });

/* ---- descriptors ---------------------------------------------------------------------------- */

class Descriptors : public testing::TestWithParam<const char *> {};

/* Rank 1 may open k descriptors more, for every k until that is enough. */
TEST_P(Descriptors, RunOutDuringInit) {
  constexpr int kRounds = 40;
  RankProcesses ranks;
  ranks.start(2, [&](int r) {
    Settings settings(only(GetParam()));
    for (int k = 0; k < kRounds && !HasFailure(); k++) {
      tuttiUniqueId id = ranks.id(k);
      ASSERT_TRUE(ranks.meet(2, k + 1)); /* one that stands still spoils no round but this */
      rlimit before;
      getrlimit(RLIMIT_NOFILE, &before);
      if (r == 1) leaveFds(k);
      tuttiComm_t comm;
      tuttiResult_t result = join(&comm, 2, id, r, 500);
      bool joined = result == tuttiSuccess;
      if (joined) result = allReduce(comm, 2);
      std::string text = result == tuttiSuccess ? "" : tuttiGetLastError(joined ? comm : nullptr);
      if (joined) tuttiCommDestroy(comm);
      setrlimit(RLIMIT_NOFILE, &before);
      if (result == tuttiSuccess) {
        ranks.report(r).number++;
        continue;
      }
      EXPECT_GE(text.size(), 60u) << "with " << k << " descriptors: " << text;
      if (r == 1 && result == tuttiSystemError) {
        EXPECT_THAT(text, HasSubstr("ulimit -n")) << "with " << k << " descriptors";
      }
    }
  });
  ranks.waitAll(120);
  ranks.expectCleanEnds();
  for (int r = 0; r < 2; r++) {
    EXPECT_GT(ranks.report(r).number, 0u) << "some limit was enough for rank " << r;
    EXPECT_LT(ranks.report(r).number, (size_t)kRounds) << "some limit was too low";
  }
}

/* The limit falls when all is up; connections are opened after that. Those over sockets keep
 * descriptors; shared memory needs some while it is mapped. */
TEST_P(Descriptors, RunOutDuringLazyConnections) {
  constexpr int kRounds = 8;
  RankProcesses ranks;
  ranks.start(3, [&](int r) {
    Settings settings(only(GetParam()));
    for (int k = 0; k < kRounds && !HasFailure(); k++) {
      tuttiComm_t comm;
      ASSERT_EQ(join(&comm, 3, ranks.id(k), r, 60000), tuttiSuccess) << tuttiGetLastError(nullptr);
      setTimeout(comm, 20000);
      rlimit before;
      getrlimit(RLIMIT_NOFILE, &before);
      ASSERT_TRUE(ranks.meet(3, 2 * k + 1)); /* nobody connects before rank 1 has its limit */
      if (r == 1) leaveFds(k);
      if (r == 1 && k == 0) {
        EXPECT_LT(dup(0), 0) << "the limit is none";
      }
      ASSERT_TRUE(ranks.meet(3, 2 * k + 2));
      tuttiResult_t result = allReduce(comm, 3);
      std::string text = tuttiGetLastError(comm);
      setrlimit(RLIMIT_NOFILE, &before);
      ranks.report(r).number += result == tuttiSuccess;
      if (result != tuttiSuccess) {
        EXPECT_THAT(text, HasSubstr("rank 1")) << k;
        if (result == tuttiSystemError) {
          EXPECT_THAT(text, HasSubstr("ulimit -n"));
        }
      }
      tuttiCommDestroy(comm);
    }
  });
  ranks.waitAll(120);
  ranks.expectCleanEnds();
  size_t good = ranks.report(1).number;
  EXPECT_GT(good, 0u) << "some limit was enough";
  EXPECT_LT(good, (size_t)kRounds) << "some limit was too low";
}

INSTANTIATE_TEST_SUITE_P(Transports, Descriptors, testing::Values("SHM", "NET"),
                         [](auto &info) { return std::string(info.param); });

/* ---- ranks that do not fit ------------------------------------------------------------------- */

TEST(Misfits, StaleUniqueId) {
  RankProcesses ranks;
  ranks.start(2, [&](int r) {
    if (r == 0) {
      ranks.id();
      return; /* and with this process the root ends */
    }
    tuttiUniqueId id = ranks.id();
    while (kill(ranks.report(0).pid, 0) == 0 && ranks.report(0).status < 0)
      usleep(1000);
    tuttiComm_t comm;
    EXPECT_NE(ranks.keep(join(&comm, 2, id, 1, 20000)), tuttiSuccess);
  });
  ranks.waitAll();
  ranks.expectCleanEnds();
  EXPECT_THAT(ranks.report(1).text, AllOf(HasSubstr("refused"), HasSubstr("ended")));
}

TEST(Misfits, TwoRanksWithOneNumber) {
  RankProcesses ranks;
  ranks.start(3, [&](int r) {
    tuttiComm_t comm;
    ranks.keep(join(&comm, 3, ranks.id(), r == 2 ? 1 : r, 20000));
    /* The process that made the id stays until all others know, as tutti.h asks. */
    for (int i = 0; r == 0 && i < 20000 && !(ranks.told(1) && ranks.told(2)); i++)
      usleep(1000);
  });
  ranks.waitAll();
  ranks.expectCleanEnds();
  for (int r = 0; r < 3; r++) {
    EXPECT_EQ(ranks.report(r).result, tuttiInvalidUsage);
    for (int culprit : {1, 2})
      EXPECT_THAT(ranks.report(r).text,
                  HasSubstr("pid " + std::to_string(ranks.report(culprit).pid)));
  }
}

TEST(Misfits, DifferentNumbersOfRanks) {
  RankProcesses ranks;
  ranks.start(3, [&](int r) {
    tuttiComm_t comm;
    ranks.keep(join(&comm, r == 2 ? 4 : 3, ranks.id(), r, 20000));
    for (int i = 0; r == 0 && i < 20000 && !(ranks.told(1) && ranks.told(2)); i++)
      usleep(1000);
  });
  ranks.waitAll();
  ranks.expectCleanEnds();
  for (int r = 0; r < 3; r++) {
    EXPECT_EQ(ranks.report(r).result, tuttiInvalidUsage) << ranks.report(r).text;
    EXPECT_THAT(ranks.report(r).text, AllOf(HasSubstr("rank 2 "), HasSubstr("nranks")));
  }
}

TEST(Misfits, DifferentSettings) {
  RankProcesses ranks;
  ranks.start(3, [&](int r) {
    Settings settings({{"TUTTI_BUFFSIZE", r == 2 ? "1M" : "2M"}, {"TUTTI_P2P_DISABLE", "1"}});
    tuttiComm_t comm;
    ranks.keep(join(&comm, 3, ranks.id(), r, 20000));
  });
  ranks.waitAll();
  ranks.expectCleanEnds();
  for (int r = 0; r < 3; r++) {
    EXPECT_EQ(ranks.report(r).result, tuttiInvalidUsage) << ranks.report(r).text;
    EXPECT_THAT(ranks.report(r).text,
                AllOf(HasSubstr("rank 2 "), HasSubstr("settings"), HasSubstr("tutti env")));
  }
}

/* Rank 1 reads a graph with the ring `odd`, or none if that is empty. */
void differInGraphs(const std::string &odd) {
  RankProcesses ranks;
  ranks.start(3, [&](int r) {
    std::string ring = r == 1 ? odd : "0 1 2";
    std::string path = testing::TempDir() + "tutti-graph-" + std::to_string(getpid());
    std::ofstream(path) << "<graph version='1' channels='1' hosts='0 0 0'><channel><ring ranks='"
                        << ring << "'/><tree parents='-1 0 0'/></channel></graph>";
    Settings settings(
        std::map<std::string, std::string>{{"TUTTI_GRAPH_FILE", ring.empty() ? "" : path}});
    tuttiComm_t comm;
    ranks.keep(join(&comm, 3, ranks.id(), r, 20000));
    unlink(path.c_str());
  });
  ranks.waitAll();
  ranks.expectCleanEnds();
  for (int r = 0; r < 3; r++) {
    EXPECT_EQ(ranks.report(r).result, tuttiInvalidUsage) << ranks.report(r).text;
    EXPECT_THAT(ranks.report(r).text,
                AllOf(HasSubstr("rank 1 "), HasSubstr("has \"TUTTI_GRAPH_FILE with hash ")));
  }
}

TEST(Misfits, DifferentGraphFiles) {
  differInGraphs("0 2 1");
}
TEST(Misfits, GraphFileOfSomeRanks) {
  differInGraphs("");
}

/* Whoever stands still for that long is missing too, or cannot tell the others: then again, with
 * more time. The process that made the id stays until all know. */
TEST(Misfits, MissingRanks) {
  const int kTimeouts[] = {1500, 6000, 24000};
  RankProcesses ranks;
  auto right = [&] { /* a bit for each round in which all said it */
                     return ranks.report(0).number & ranks.report(1).number &
                            ranks.report(2).number;
  };
  ranks.start(3, [&](int r) {
    const int number[] = {0, 3, 5};
    for (int k = 0; k < 3 && !right(); k++) {
      tuttiComm_t comm;
      ASSERT_TRUE(ranks.meet(3, 2 * k + 1));
      tuttiResult_t result = ranks.keep(join(&comm, 8, ranks.id(k), number[r], kTimeouts[k]));
      if (result == tuttiTimeout && strstr(ranks.report(r).text, "1-2, 4, 6-7"))
        ranks.report(r).number |= (size_t)1 << k;
      ASSERT_TRUE(ranks.meet(3, 2 * k + 2));
    }
  });
  ranks.waitAll(120);
  ranks.expectCleanEnds();
  for (int r = 0; r < 3; r++)
    EXPECT_NE(right(), 0u) << "rank " << r << ": " << ranks.report(r).text;
}

/* ---- strangers ------------------------------------------------------------------------------ */

/* TCP ports that this process listens on. */
std::set<int> listeningPorts(pid_t pid) {
  std::set<std::string> inodes;
  std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  DIR *d = opendir(folder.c_str());
  for (dirent *e; d && (e = readdir(d)) != nullptr;) {
    char target[64] = "";
    unsigned long inode;
    if (readlink((folder + "/" + e->d_name).c_str(), target, sizeof target - 1) > 0 &&
        sscanf(target, "socket:[%lu]", &inode) == 1)
      inodes.insert(std::to_string(inode));
  }
  if (d) closedir(d);
  std::set<int> ports;
  for (const char *table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(table);
    std::string line, word[10];
    std::getline(in, line);
    while (std::getline(in, line)) {
      std::istringstream words(line);
      for (auto &w : word)
        words >> w;
      if (word[3] == "0A" && inodes.count(word[9]))
        ports.insert((int)strtol(word[1].substr(word[1].rfind(':') + 1).c_str(), nullptr, 16));
    }
  }
  return ports;
}

/* An address of this host that reaches a listener, whichever interface that is bound to. */
int connectTo(int port) {
  std::vector<in_addr_t> addresses = {htonl(INADDR_LOOPBACK)};
  tuttiInterface interfaces[TUTTI_MAX_INTERFACES];
  int n = 0;
  if (tuttiInterfaces(interfaces, TUTTI_MAX_INTERFACES, &n) == tuttiSuccess)
    for (int i = 0; i < n; i++)
      if (interfaces[i].address.sa.sa_family == AF_INET)
        addresses.push_back(interfaces[i].address.v4.sin_addr.s_addr);
  for (in_addr_t address : addresses) {
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_port = htons((uint16_t)port);
    at.sin_addr.s_addr = address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (sockaddr *)&at, sizeof at) == 0) return fd;
    if (fd >= 0) close(fd);
  }
  return -1;
}

/* Garbage, half a hello and silence, some of which stay open to the end. Returns how many got in.
 */
int attack(int port, std::vector<int> &kept) {
  int reached = 0;
  std::string garbage(3000, '\xa5');
  for (int i = 0; i < 60; i++) {
    int fd = connectTo(port);
    if (fd < 0) continue;
    reached++;
    if (i % 3 == 0) (void)!send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL);
    if (i % 3 == 1) (void)!send(fd, "GET", 3, MSG_NOSIGNAL);
    if (i % 2)
      close(fd);
    else
      kept.push_back(fd);
  }
  return reached;
}

/* Every port of a job: the root's while a rank is missing, the ranks' and the network's after. */
TEST(Strangers, DoNotDisturbAJob) {
  RankProcesses ranks;
  ranks.start(3, [&](int r) {
    Settings settings(only("NET"));
    tuttiUniqueId id = ranks.id();
    ranks.setStage(r, 1);
    if (r == 2)
      while (__atomic_load_n(&ranks.report(2).stage, __ATOMIC_ACQUIRE) < 2)
        usleep(1000);
    tuttiComm_t comm;
    ASSERT_EQ(ranks.keep(join(&comm, 3, id, r, 60000)), tuttiSuccess) << ranks.report(r).text;
    /* Rank 0 tells the others when to stop, in the data. */
    for (int round = 3; round > 0;) {
      std::vector<int> x(1000, 1), y(1000);
      x[0] = r == 0 && __atomic_load_n(&ranks.report(0).stage, __ATOMIC_ACQUIRE) == 9;
      ASSERT_EQ(ranks.keep(tuttiAllReduce(x.data(), y.data(), x.size(), tuttiInt32, tuttiSum, comm,
                                          nullptr),
                           comm),
                tuttiSuccess)
          << ranks.report(r).text;
      EXPECT_EQ(y[999], 3);
      round -= y[0];
      if (ranks.report(r).number++ == 3) ranks.setStage(r, 4);
    }
    EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
  });
  std::vector<int> kept;
  for (int r = 0; r < 3; r++)
    ASSERT_TRUE(ranks.waitForStage(r, 1));
  for (int r : {0, 1}) /* they are on their way to the root */
    waitUntilAsleep(ranks.report(r).pid);
  int attacked = 0;
  for (int port : listeningPorts(ranks.report(0).pid))
    attacked += attack(port, kept) > 0;
  EXPECT_GE(attacked, 1) << "the root listens";
  ranks.setStage(2, 2);
  for (int r = 0; r < 3; r++)
    ASSERT_TRUE(ranks.waitForStage(r, 4)) << ranks.report(r).text;
  for (int r = 0; r < 3; r++) {
    attacked = 0;
    for (int port : listeningPorts(ranks.report(r).pid))
      attacked += attack(port, kept) > 0;
    EXPECT_GE(attacked, 2) << "rank " << r << " listens for questions and for the network";
  }
  size_t before = ranks.report(0).number;
  for (int i = 0; i < 30000 && ranks.report(0).number < before + 10; i++)
    usleep(2000);
  EXPECT_GE(ranks.report(0).number, before + 10) << "the job goes on";
  ranks.setStage(0, 9);
  ranks.waitAll();
  ranks.expectCleanEnds();
  for (int fd : kept)
    close(fd);
}

/* ---- what stays ----------------------------------------------------------------------------- */

/* The names in a folder, but for those every folder has. */
std::set<std::string> filesOf(const std::string &folder) {
  std::set<std::string> names;
  DIR *d = opendir(folder.c_str());
  for (dirent *e; d && (e = readdir(d)) != nullptr;)
    if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) names.insert(e->d_name);
  if (d) closedir(d);
  return names;
}

/* Each rank has a /dev/shm of its own, where other tests and programs of the machine leave nothing:
 * what has a name there just before the kill would stay. */
TEST(Files, NoneSurvivesAKill) {
  RankProcesses ranks;
  ranks.start(2, [&](int r) {
    Settings settings(only("SHM"));
    bool apart = hideDevShm("size=64m");
    tuttiComm_t comm;
    ASSERT_EQ(join(&comm, 2, ranks.id(), r, 60000), tuttiSuccess);
    for (int round = 0;; round++) {
      if (allReduce(comm, 2, 100000) != tuttiSuccess) return;
      if (round == 3) ranks.setStage(r, apart ? 1 : 2);
    }
  });
  for (int r = 0; r < 2; r++)
    ASSERT_TRUE(ranks.waitForStage(r, 1));
  bool apart = true;
  for (int r = 0; r < 2; r++) {
    std::string process = "/proc/" + std::to_string(ranks.report(r).pid);
    for (auto &fd : filesOf(process + "/fd")) {
      char target[PATH_MAX] = "";
      if (readlink((process + "/fd/" + fd).c_str(), target, sizeof target - 1) <= 0) continue;
      EXPECT_THAT(target, testing::Not(testing::AnyOf(testing::StartsWith("/dev/shm/"),
                                                      testing::StartsWith("/tmp/tutti"))))
          << "an open file with a name would stay";
    }
    if (ranks.report(r).stage == 1) {
      EXPECT_THAT(filesOf(process + "/root/dev/shm"), testing::IsEmpty());
    } else {
      apart = false;
    }
  }
  for (int r = 0; r < 2; r++)
    ranks.killRank(r);
  if (!apart)
    GTEST_SKIP() << "no privilege for a mount namespace: closed files were not looked for";
}

/* ---- beyond 2^32 ---------------------------------------------------------------------------- */

/* Real memory is only what is written: the receive buffers, about 13 GiB in all. */
struct Sparse {
  explicit Sparse(size_t n) : bytes(n) {
    p = (uint8_t *)mmap(nullptr, n, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) abort();
  }
  ~Sparse() { munmap(p, bytes); }
  size_t bytes;
  uint8_t *p;
};

constexpr size_t kHuge = ((size_t)1 << 32) + 77;

size_t availableBytes() {
  std::ifstream in("/proc/meminfo");
  std::string word;
  while (in >> word)
    if (word == "MemAvailable:") {
      size_t kib;
      in >> kib;
      return kib * 1024;
    }
  return 0;
}

std::vector<size_t> samples() {
  return {0,
          1,
          ((size_t)1 << 31) - 1,
          (size_t)1 << 31,
          ((size_t)1 << 32) - 1,
          (size_t)1 << 32,
          ((size_t)1 << 32) + 1,
          kHuge - 2,
          kHuge - 1};
}

uint8_t mark(int r, size_t i) {
  return (uint8_t)(1 + (i * 31 + (size_t)r * 7 + (i >> 32)) % 250);
}

TEST(SlowHuge, BroadcastOfMoreThan32BitsOfBytes) {
  if (availableBytes() < ((size_t)8 << 30)) GTEST_SKIP() << "needs 8 GiB of free memory";
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  Sparse in(kHuge), out(kHuge);
  for (size_t i : samples())
    in.p[i] = mark(0, i);
  ranks.run([&](int r, tuttiComm_t comm) {
    uint8_t *mine = r == 0 ? in.p : out.p;
    EXPECT_EQ(tuttiBroadcast(mine, mine, kHuge, tuttiInt8, 0, comm, nullptr), tuttiSuccess)
        << tuttiGetLastError(comm);
  });
  for (size_t i : samples())
    EXPECT_EQ(out.p[i], mark(0, i)) << i;
  EXPECT_EQ(out.p[((size_t)1 << 32) - 3], 0);
}

TEST(SlowHuge, AllGatherOfMoreThan32BitsOfBytes) {
  if (availableBytes() < ((size_t)18 << 30)) GTEST_SKIP() << "needs 18 GiB of free memory";
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  Sparse a(2 * kHuge), b(2 * kHuge);
  uint8_t *all[] = {a.p, b.p};
  for (int r = 0; r < 2; r++)
    for (size_t i : samples())
      all[r][(size_t)r * kHuge + i] = mark(r, i);
  ranks.run([&](int r, tuttiComm_t comm) {
    EXPECT_EQ(tuttiAllGather(all[r] + (size_t)r * kHuge, all[r], kHuge, tuttiInt8, comm, nullptr),
              tuttiSuccess)
        << tuttiGetLastError(comm);
  });
  for (int at = 0; at < 2; at++)
    for (int r = 0; r < 2; r++)
      for (size_t i : samples())
        EXPECT_EQ(all[at][(size_t)r * kHuge + i], mark(r, i))
            << "rank " << at << " of " << r << " " << i;
}

} // namespace

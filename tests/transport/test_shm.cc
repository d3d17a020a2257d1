#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <fstream>
#include <set>
#include <sstream>

#include "asleep.h"
#include "local_world.h"

namespace {
using namespace local;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// Wire format of shm.c: what a stranger would have to forge.
struct Hello {
  uint32_t magic = 0x7475736d, version = TUTTI_VERSION_CODE;
  uint64_t commHash;
  uint8_t secret[16];
  int32_t from, to;
  Hello(const Rank &sender, int receiver)
      : commHash(sender.w.commHash), from(sender.w.rank), to(receiver) {
    memcpy(secret, sender.w.secret, sizeof secret);
  }
};

socklen_t addressOf(uint64_t id, sockaddr_un *a) {
  memset(a, 0, sizeof *a);
  a->sun_family = AF_UNIX;
  int n =
      snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "tutti-%016llx", (unsigned long long)id);
  return (socklen_t)(offsetof(sockaddr_un, sun_path) + 1 + (size_t)n);
}

int connectTo(const Rank &r) {
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un a;
  socklen_t n = addressOf(r.mine.shmSocket, &a);
  EXPECT_EQ(0, connect(fd, (sockaddr *)&a, n)) << strerror(errno);
  return fd;
}

void sendTo(int fd, const void *data, size_t size, const std::vector<int> &fds = {}) {
  iovec io = {const_cast<void *>(data), size};
  msghdr m{};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  if (!fds.empty()) {
    m.msg_control = control;
    m.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  }
  EXPECT_EQ((ssize_t)size, sendmsg(fd, &m, MSG_NOSIGNAL)) << strerror(errno);
}

// Each rank is its own process to the library, so that SHM connects the threads of this one.
Ranks makeProcesses(const Shape &s) {
  Ranks ranks;
  for (int r = 0; r < s.nranks; r++)
    ranks.push_back(std::make_unique<Rank>(s, r, 100 + (uint64_t)r));
  return ranks;
}

// ---- traffic -----------------------------------------------------------------------------------

class Shm : public ::testing::TestWithParam<std::pair<int, int>> {}; // ranks, processes

TEST_P(Shm, EveryFifoDeliversEveryMessage) {
  Shape s;
  s.nranks = GetParam().first;
  int each = s.nranks / GetParam().second;
  onProcesses(s, GetParam().second, [each](Rank &r) {
    for (int p = 0; p < r.w.nranks; p++) {
      if (p == r.w.rank) continue;
      bool thread = p / each == r.w.rank / each;
      EXPECT_EQ(thread ? &tuttiTransportP2p : &tuttiTransportShm, r.to(p));
      tuttiConn c = r.open(p, 0, TUTTI_RECV);
      EXPECT_EQ(thread, c.direct);
      EXPECT_EQ(r.to(p), c.transport);
    }
    EXPECT_EQ(0, r.open(-1, 0, TUTTI_SEND, true).direct) << "some readers can't follow pointers";
    traffic(r, 200);
  });
}

// What a reader finds out when it opens its end; the writer then knows it of all.
TEST_P(Shm, ReadersCopyOutOfOtherProcesses) {
  Shape s;
  s.nranks = GetParam().first;
  int each = s.nranks / GetParam().second;
  uint64_t word = 1;
  tuttiRemote self = {getpid(), tuttiRemoteOffer(word), word};
  bool permitted = tuttiRemoteReadable(&self);
  for (bool off : {false, true}) {
    Setting setting("TUTTI_CMA_DISABLE", off ? "1" : "0");
    onProcesses(s, GetParam().second, [=](Rank &r) {
      tuttiConn mine = r.open(-1, 0, TUTTI_SEND, true);
      for (int p = 0; p < r.w.nranks; p++) {
        if (p == r.w.rank) continue;
        bool thread = p / each == r.w.rank / each;
        tuttiConn c = r.open(p, 0, TUTTI_RECV, true);
        EXPECT_EQ(!thread && permitted && !off ? r.peers[(size_t)p].pid : 0, c.writer.pid);
      }
      traffic(r, 20);
      if (each > 1 || off) {
        EXPECT_FALSE(tuttiConnFetched(&mine)) << "a reader can't";
      }
    });
  }
}
INSTANTIATE_TEST_SUITE_P(RanksProcesses, Shm,
                         ::testing::Values(std::make_pair(2, 2), std::make_pair(3, 3),
                                           std::make_pair(5, 5), std::make_pair(4, 2),
                                           std::make_pair(6, 2)));

TEST(ShmThreads, ServeOneProcessWithoutP2p) {
  Setting off("TUTTI_P2P_DISABLE", "1");
  Shape s;
  s.nranks = 4;
  Ranks ranks = makeThreads(s);
  prepareAll(ranks);
  attachAll(ranks);
  EXPECT_EQ(&tuttiTransportShm, ranks[0]->to(1));
  onThreads(ranks, [](Rank &r) { traffic(r, 100); });
}

TEST(ShmThreads, ManyRanksAndLargeSlots) {
  Shape s;
  s.nranks = 24;
  s.nchannels = 4;
  s.slotBytes = 512 * 1024;
  int fds = openFds();
  {
    Ranks ranks = makeProcesses(s);
    prepareAll(ranks);
    attachAll(ranks);
    EXPECT_EQ(0, segmentMappings()) << "before anything is used";
    EXPECT_EQ(fds + 24 * 24, openFds()) << "after attach, one fd for each segment of each rank";
    (void)ranks[0]->open(1, 0, TUTTI_SEND);
    (void)ranks[1]->open(0, 0, TUTTI_RECV);
    // Lines and a window of data, on either side; the kernel joins those that happen to follow each
    // other in memory as in the file.
    EXPECT_LE(segmentMappings(), 4);
    EXPECT_GE(segmentMappings(), 2);
  }
  EXPECT_EQ(fds, openFds());
  EXPECT_EQ(0, segmentMappings());
}

TEST(ShmThreads, CommunicatorsAttachSideBySide) {
  std::vector<Ranks> comms;
  for (int i = 0; i < 4; i++) {
    Shape s;
    s.nranks = 4;
    s.commHash = 0x9000 + (uint64_t)i;
    comms.push_back(i % 2 ? makeProcesses(s) : makeThreads(s));
    prepareAll(comms.back());
  }
  std::vector<std::thread> threads;
  for (auto &ranks : comms)
    threads.emplace_back([&ranks] {
      onThreads(ranks, [](Rank &r) {
        ASSERT_EQ(tuttiSuccess, r.attach()) << tuttiErrorText();
        traffic(r, 20);
      });
    });
  for (auto &t : threads)
    t.join();
}

TEST(ShmThreads, CyclesLeakNothing) {
  int fds = openFds();
  for (int i = 0; i < 200; i++) {
    Shape s;
    s.nranks = 3;
    Ranks ranks = makeProcesses(s);
    prepareAll(ranks);
    onThreads(ranks, [](Rank &r) {
      ASSERT_EQ(tuttiSuccess, r.attach()) << tuttiErrorText();
      traffic(r, 2);
    });
    for (auto &r : ranks) {
      r->detach();
      r->detach();
      ASSERT_EQ(0u, r->bytes());
    }
  }
  EXPECT_EQ(fds, openFds());
  EXPECT_EQ(0, segmentMappings());
}

TEST(ShmThreads, SwitchedOffPreparesNothing) {
  Setting off("TUTTI_SHM_DISABLE", "1"), threads("TUTTI_P2P_DISABLE", "1");
  int fds = openFds();
  Ranks ranks = makeProcesses(Shape());
  prepareAll(ranks);
  attachAll(ranks);
  EXPECT_EQ(0u, ranks[0]->mine.shmSocket);
  EXPECT_EQ(fds, openFds());
  EXPECT_EQ(0, segmentMappings());
}

// ---- the file system ---------------------------------------------------------------------------

// Names of this process's open files.
std::set<std::string> openFiles() {
  std::set<std::string> names;
  DIR *d = opendir("/proc/self/fd");
  while (dirent *e = readdir(d)) {
    char target[256] = "";
    if (readlinkat(dirfd(d), e->d_name, target, sizeof target - 1) > 0) names.insert(target);
  }
  closedir(d);
  return names;
}

TEST(ShmFiles, NothingIsMappedOrOpenInDevShm) {
  Ranks ranks = makeProcesses(Shape());
  prepareAll(ranks);
  attachAll(ranks);
  EXPECT_EQ(4, segmentMappings());
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    EXPECT_EQ(std::string::npos, line.find("/dev/shm")) << line;
  for (const std::string &name : openFiles())
    EXPECT_EQ(std::string::npos, name.find("/dev/shm")) << name;
}

TEST(ShmFiles, WorksWithoutRoomInDevShm) {
  fflush(nullptr);
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) ||
        mount("none", "/dev/shm", "tmpfs", 0, "size=64k"))
      _exit(77);
    onProcesses(Shape(), 2, [](Rank &r) { traffic(r, 50); });
    _exit(HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "may not mount here";
  EXPECT_EQ(0, WEXITSTATUS(status));
}

std::string socketName(uint64_t id) {
  char name[40];
  snprintf(name, sizeof name, "@tutti-%016llx", (unsigned long long)id);
  return name;
}

std::string unixSockets() {
  std::stringstream all;
  all << std::ifstream("/proc/net/unix").rdbuf();
  return all.str();
}

// A child that does `work` with rank 1 and lets rank 0 know its record.
pid_t forkRankOne(const Shape &s, Rank &zero, const std::function<void(Rank &)> &work) {
  int in[2], out[2];
  EXPECT_EQ(0, pipe2(in, O_CLOEXEC));
  EXPECT_EQ(0, pipe2(out, O_CLOEXEC));
  fflush(nullptr);
  pid_t child = fork();
  if (child == 0) {
    alarm(60);
    Rank one(s, 1, 2);
    bool ok = one.prepare() == tuttiSuccess &&
              write(in[1], &one.mine, sizeof one.mine) == sizeof one.mine &&
              read(out[0], one.peers.data(), sizeof(tuttiPeer)) == sizeof(tuttiPeer);
    one.peers[1] = one.mine;
    if (ok) work(one);
    _exit(ok ? 0 : 1);
  }
  EXPECT_EQ((ssize_t)sizeof(tuttiPeer), read(in[0], &zero.peers[1], sizeof(tuttiPeer)));
  zero.peers[0] = zero.mine;
  EXPECT_EQ((ssize_t)sizeof(tuttiPeer), write(out[1], &zero.mine, sizeof zero.mine));
  for (int fd : {in[0], in[1], out[0], out[1]})
    close(fd);
  return child;
}

TEST(ShmDeath, SigkillLeavesNothing) {
  Rank zero(Shape(), 0, 1);
  ASSERT_EQ(tuttiSuccess, zero.prepare());
  pid_t child = forkRankOne(Shape(), zero, [](Rank &one) {
    EXPECT_EQ(tuttiSuccess, one.attach()) << tuttiErrorText();
    pause();
  });
  ASSERT_EQ(tuttiSuccess, zero.attach()) << tuttiErrorText();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  std::string sockets = unixSockets();
  EXPECT_EQ(std::string::npos, sockets.find(socketName(zero.peers[1].shmSocket)));
  EXPECT_EQ(std::string::npos, sockets.find(socketName(zero.mine.shmSocket)));
  // Its memory is still whole: reading what it wrote must not crash the survivor.
  tuttiConn recv = zero.open(1, 0, TUTTI_RECV);
  EXPECT_FALSE(tuttiConnReady(&recv));
  EXPECT_EQ(0, recv.data[TUTTI_FIFO_DEPTH * recv.slotBytes - 1]);
}

TEST(ShmDeath, PeerThatDiedBeforeAttachIsNamed) {
  Rank zero(Shape(), 0, 1);
  ASSERT_EQ(tuttiSuccess, zero.prepare());
  pid_t child = forkRankOne(Shape(), zero, [](Rank &) { raise(SIGKILL); });
  waitpid(child, nullptr, 0);
  EXPECT_EQ(tuttiRemoteError, zero.attach());
  EXPECT_THAT(tuttiErrorText(),
              HasSubstr("rank 1 (host node9, pid " + std::to_string(child) + ")"));
  EXPECT_THAT(tuttiErrorText(), HasSubstr("has died or given up"));
  EXPECT_EQ(0u, zero.bytes());
}

TEST(ShmDeath, PeerThatStopsIsNamedAtTheDeadline) {
  Shape s;
  s.timeoutMs = 300;
  Rank zero(s, 0, 1);
  ASSERT_EQ(tuttiSuccess, zero.prepare());
  pid_t child = forkRankOne(s, zero, [](Rank &) { raise(SIGSTOP); });
  EXPECT_EQ(tuttiTimeout, zero.attach());
  EXPECT_THAT(tuttiErrorText(),
              AllOf(HasSubstr("rank 1 (host node9, pid " + std::to_string(child) + ")"),
                    HasSubstr("nothing came from"), HasSubstr("TUTTI_TIMEOUT")));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(0u, zero.bytes());
  EXPECT_EQ(0, segmentMappings());
}

TEST(ShmDeath, FailedFlagEndsTheWait) {
  Ranks ranks = makeProcesses(Shape());
  prepareAll(ranks);
  std::atomic<pid_t> waits{0};
  std::thread waiter([&] {
    waits = threadId();
    EXPECT_EQ(tuttiRemoteError, ranks[0]->attach());
    EXPECT_THAT(tuttiErrorText(), AllOf(HasSubstr("rank 1"), HasSubstr("has failed")));
  });
  waitUntilAsleep(waits);
  tuttiStoreRelease32(&ranks[0]->failed, 1);
  waiter.join();
}

TEST(ShmDeath, SegmentsOnTheirWaySurviveTheirSender) {
  // Rank 1 hands in and leaves before rank 0 looks; rank 0 must get by with what is in its queue.
  Rank zero(Shape(), 0, 1);
  ASSERT_EQ(tuttiSuccess, zero.prepare());
  int fd = -1;
  Rank one(Shape(), 1, 2);
  ASSERT_EQ(tuttiSuccess, one.prepare());
  zero.peers = one.peers = {zero.mine, one.mine};
  zero.w.peers = zero.peers.data();
  one.w.peers = one.peers.data();
  ASSERT_EQ(tuttiSuccess, tuttiLocalAttach(&one.w));
  Hello hello(one, 0);
  fd = connectTo(zero);
  sendTo(fd, &hello, sizeof hello, {tuttiSegmentFd(&one.w)});
  close(fd);
  // It still listens, until rank 0 has handed in; its segment is gone but for rank 0's hold.
  std::thread leaver([&] {
    pollfd hand{one.w.local->listenFd, POLLIN, 0};
    EXPECT_EQ(1, poll(&hand, 1, 60000));
    hand.fd = accept(hand.fd, nullptr, nullptr);
    EXPECT_EQ(1, poll(&hand, 1, 60000));
    close(hand.fd);
    one.detach();
  });
  EXPECT_EQ(tuttiSuccess, zero.attach()) << tuttiErrorText();
  leaver.join();
}

// ---- strangers ---------------------------------------------------------------------------------

TEST(ShmStrangers, AreDroppedWithoutHarm) {
  int before = openFds();
  {
    Ranks ranks = makeProcesses(Shape());
    prepareAll(ranks);
    std::vector<int> strangers;
    char junk[4096];
    memset(junk, 0x5a, sizeof junk);
    auto say = [&](const void *data, size_t size, std::vector<int> fds = {}) {
      strangers.push_back(connectTo(*ranks[0]));
      sendTo(strangers.back(), data, size, fds);
    };
    for (size_t n : {1, 47, 48, 49, 4096})
      say(junk, n);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    say(junk, 48, {null, null, null, null});
    close(null);
    Rank shape(Shape(), 1, 2);
    Hello wrong(shape, 0);
    wrong.secret[15] ^= 1;
    say(&wrong, sizeof wrong);
    wrong = Hello(shape, 0);
    wrong.commHash++;
    say(&wrong, sizeof wrong);
    wrong = Hello(shape, 0);
    wrong.version++;
    say(&wrong, sizeof wrong);
    for (int from : {-1, 0, 2, INT32_MAX}) {
      wrong = Hello(shape, 0);
      wrong.from = from;
      say(&wrong, sizeof wrong);
    }
    wrong = Hello(shape, 1);
    say(&wrong, sizeof wrong);
    close(connectTo(*ranks[0]));
    for (int i = 0; i < 5; i++)
      strangers.push_back(connectTo(*ranks[0])); // say nothing
    attachAll(ranks);
    onThreads(ranks, [](Rank &r) { traffic(r, 20); });
    for (int fd : strangers)
      close(fd);
  }
  EXPECT_EQ(before, openFds());
}

TEST(ShmStrangers, AFloodDoesNotOutlastTheDeadline) {
  Shape s;
  s.timeoutMs = 300;
  Ranks ranks = makeProcesses(s);
  prepareAll(ranks);
  std::atomic<bool> stop{false};
  std::vector<std::thread> flood;
  for (int i = 0; i < 2; i++)
    flood.emplace_back([&] {
      sockaddr_un a;
      socklen_t n = addressOf(ranks[0]->mine.shmSocket, &a);
      while (!stop) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (connect(fd, (sockaddr *)&a, n) == 0) send(fd, "junk", 4, MSG_NOSIGNAL);
        close(fd);
      }
    });
  EXPECT_EQ(tuttiTimeout, ranks[0]->attach());
  stop = true;
  for (auto &t : flood)
    t.join();
}

TEST(ShmStrangers, SilentOnesCanNotKeepPeersOut) {
  Ranks ranks = makeProcesses(Shape());
  prepareAll(ranks);
  std::vector<int> silent;
  for (int i = 0; i < 40; i++)
    silent.push_back(connectTo(*ranks[0]));
  attachAll(ranks);
  for (int fd : silent)
    close(fd);
}

TEST(ShmStrangers, OtherUsersAreDroppedWhateverTheyKnow) {
  if (geteuid() != 0) GTEST_SKIP() << "may not become another user";
  Ranks ranks = makeProcesses(Shape());
  prepareAll(ranks);
  ASSERT_EQ(tuttiSuccess, tuttiLocalAttach(&ranks[1]->w));
  struct stat st;
  ASSERT_EQ(0, fstat(tuttiSegmentFd(&ranks[1]->w), &st));
  int forged;
  ASSERT_EQ(tuttiSuccess, tuttiSharedFd((size_t)st.st_size, "test", &forged));
  fflush(nullptr);
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Hello hello(*ranks[1], 0);
    if (setuid(65534) != 0) _exit(1);
    sendTo(connectTo(*ranks[0]), &hello, sizeof hello, {forged});
    _exit(HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(0, status);
  close(forged);
  attachAll(ranks);
  tuttiConn send = ranks[1]->open(0, 0, TUTTI_SEND), recv = ranks[0]->open(1, 0, TUTTI_RECV);
  tuttiConnAdvance(&send);
  EXPECT_TRUE(tuttiConnReady(&recv)) << "rank 0 reads the forged segment";
}

// A peer that knows the secret and hands over something that would crash its reader.
void expectRefused(int bad, tuttiResult_t code, const char *text) {
  Ranks ranks = makeProcesses(Shape());
  prepareAll(ranks);
  Hello hello(*ranks[1], 0);
  int fd = connectTo(*ranks[0]);
  sendTo(fd, &hello, sizeof hello, {bad});
  EXPECT_EQ(code, ranks[0]->attach());
  EXPECT_THAT(tuttiErrorText(), AllOf(HasSubstr("rank 1"), HasSubstr(text)));
  EXPECT_EQ(0u, ranks[0]->bytes());
  close(fd);
  close(bad);
}

TEST(ShmStrangers, SegmentsOfAnotherKindAreRefused) {
  int fds = openFds();
  int unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(0, ftruncate(unsealed, 1 << 20));
  expectRefused(unsealed, tuttiRemoteError, "not a sealed segment");
  expectRefused(open("/dev/zero", O_RDWR | O_CLOEXEC), tuttiRemoteError, "not a sealed segment");
  int small;
  ASSERT_EQ(tuttiSuccess, tuttiSharedFd(4096, "test", &small));
  expectRefused(small, tuttiInvalidUsage, "has 4096 bytes");
  EXPECT_EQ(fds, openFds());
}

// ---- limits ------------------------------------------------------------------------------------

TEST(ShmLimits, NoMoreFilesIsAnErrorWithARemedy) {
  // From no fd at all to enough: each limit ends in success or in an error that says what to do.
  bool succeeded = false, failed = false;
  for (int spare = 0; spare < 12; spare++) {
    Ranks ranks = makeProcesses(Shape());
    int fds = openFds();
    int next = dup(0);
    close(next);
    rlimit old, tight;
    ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &old));
    tight = old;
    tight.rlim_cur = (rlim_t)(next + spare);
    ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &tight));
    bool ok = true;
    auto check = [&](Rank &r, tuttiResult_t result) {
      if (result == tuttiSuccess) return;
      ok = false;
      if (result == tuttiSystemError)
        EXPECT_THAT(tuttiErrorText(), HasSubstr("ulimit -n")) << spare;
      else // the other one failed first
        EXPECT_EQ(tuttiRemoteError, result) << tuttiErrorText();
      tuttiStoreRelease32(&ranks[1 - r.w.rank]->failed, 1);
    };
    for (auto &r : ranks)
      if (ok) check(*r, r->prepare());
    if (ok) {
      gather(ranks);
      pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
      onThreads(ranks, [&](Rank &r) {
        tuttiResult_t result = r.attach();
        pthread_mutex_lock(&lock);
        check(r, result);
        pthread_mutex_unlock(&lock);
      });
    }
    for (auto &r : ranks) {
      r->detach();
      EXPECT_EQ(0u, r->bytes());
    }
    ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &old));
    EXPECT_EQ(fds, openFds());
    (ok ? succeeded : failed) = true;
  }
  EXPECT_TRUE(failed);
  EXPECT_TRUE(succeeded);
}

TEST(ShmLimits, MoreFilesOnTheirWayThanAUserMayHave) {
  if (geteuid() != 0) GTEST_SKIP() << "may not become a user without other processes";
  // 800 segments travel at once where a user may have 110 on their way (ETOOMANYREFS). No process
  // ever needs more than 110 open: two for each rank, and three for each thread at work.
  Shape s;
  s.nranks = 40;
  onProcesses(
      s, 2, [](Rank &) {},
      [] {
        rlimit limit;
        ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &limit));
        limit.rlim_cur = 110;
        ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &limit));
        ASSERT_EQ(0, setuid(65534));
      });
}

TEST(ShmLimits, NoAddressSpaceIsAnErrorWithARemedy) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need the address space themselves";
#else
  Shape s;
  s.slotBytes = (size_t)1 << 27;
  Ranks ranks = makeProcesses(s);
  prepareAll(ranks);
  attachAll(ranks);
  tuttiConn conn{};
  rlimit old, tight;
  ASSERT_EQ(0, getrlimit(RLIMIT_AS, &old));
  tight = old;
  tight.rlim_cur = (rlim_t)1 << 30; // less than one FIFO
  ASSERT_EQ(0, setrlimit(RLIMIT_AS, &tight));
  tuttiResult_t result = tuttiSegmentOpen(&ranks[0]->w, 1, 0, TUTTI_SEND, false, &conn);
  ASSERT_EQ(0, setrlimit(RLIMIT_AS, &old));
  EXPECT_EQ(tuttiSystemError, result);
  EXPECT_THAT(tuttiErrorText(), AllOf(HasSubstr("ulimit -v"), HasSubstr("TUTTI_BUFFSIZE")));
#endif
}

} // namespace

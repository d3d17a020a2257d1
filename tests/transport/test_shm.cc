#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <set>
#include <sstream>

#include "asleep.h"
#include "base/mac.h"
#include "shm_ranks.h"

namespace {
using namespace local;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// Wire format of shm.c: what a stranger would have to forge.
enum Kind : uint64_t { kAsk = 1, kGive = 2 };
struct Hello {
  uint32_t magic = 0x7475736e, version = TUTTI_VERSION_CODE;
  uint64_t commHash;
  int32_t from, to;
  uint64_t kind;
  uint8_t mac[TUTTI_MAC_BYTES];
  Hello(const Rank &sender, int receiver, Kind what = kGive)
      : commHash(sender.w.commHash), from(sender.w.rank), to(receiver), kind(what) {
    seal(sender);
  }
  /* As one who knows the secret. */
  void seal(const Rank &sender) {
    const tuttiMacPart parts[] = {{"tutti desk", 10}, {this, offsetof(Hello, mac)}};
    tuttiMac(sender.w.secret, sizeof sender.w.secret, parts, 2, mac);
  }
};
static_assert(sizeof(Hello) == 64, "as it travels");

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
  tuttiRemote self = {getpid(), 0, tuttiRemoteOffer(word), word};
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
    EXPECT_EQ(fds + 24 * 4, openFds()) << "of each rank segment, desk, and two of the proxy";
    (void)ranks[0]->open(1, 0, TUTTI_SEND);
    (void)ranks[1]->open(0, 0, TUTTI_RECV);
    // The writer has lines and a window of data, the reader lines, shared data and its own; the
    // kernel joins those that happen to follow each other in memory as in the file.
    EXPECT_LE(segmentMappings(), 5);
    EXPECT_GE(segmentMappings(), 2);
    for (int p = 1; p < 24; p++)
      (void)ranks[0]->open(p, 0, TUTTI_RECV);
    EXPECT_EQ(fds + 24 * 4, openFds()) << "what is mapped needs no descriptor";
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

TEST(ShmThreads, CyclesOfAskingLeakNothing) {
  int fds = openFds(), threads = liveThreads();
  for (int i = 0; i < 50; i++) {
    Shape s;
    s.nranks = 3;
    Ranks ranks = makeProcesses(s);
    prepareAll(ranks);
    hideAll(ranks);
    onThreads(ranks, [](Rank &r) {
      ASSERT_EQ(tuttiSuccess, r.attach()) << tuttiErrorText();
      traffic(r, 2);
    });
    for (auto &r : ranks) {
      r->detach();
      ASSERT_EQ(0u, r->bytes());
    }
  }
  EXPECT_EQ(fds, openFds());
  EXPECT_EQ(threads, liveThreads());
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
  EXPECT_EQ(2, segmentMappings());
  onThreads(ranks, [](Rank &r) { traffic(r, 2); });
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
  tuttiConn recv = zero.open(1, 0, TUTTI_RECV);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  std::string sockets = unixSockets();
  EXPECT_EQ(std::string::npos, sockets.find(socketName(zero.peers[1].shmSocket)));
  // Its memory is still whole: reading what it wrote must not crash the survivor.
  EXPECT_FALSE(tuttiConnReady(&recv));
  EXPECT_EQ(0, recv.data[TUTTI_FIFO_DEPTH * recv.slotBytes - 1]);
  zero.detach();
  EXPECT_EQ(std::string::npos, unixSockets().find(socketName(zero.mine.shmSocket)));
}

class ShmWays : public ::testing::TestWithParam<bool> {}; // whether ranks have to ask

TEST_P(ShmWays, PeerThatDiedBeforeTheFirstUseIsNamed) {
  Rank zero(Shape(), 0, 1);
  ASSERT_EQ(tuttiSuccess, zero.prepare());
  pid_t child = forkRankOne(Shape(), zero, [](Rank &one) {
    EXPECT_EQ(tuttiSuccess, one.attach()) << tuttiErrorText();
    raise(SIGKILL);
  });
  waitpid(child, nullptr, 0);
  if (GetParam()) hide(zero, 1);
  ASSERT_EQ(tuttiSuccess, zero.attach()) << tuttiErrorText();
  EXPECT_EQ(tuttiSuccess, zero.tryOpen(1, TUTTI_SEND)) << "that needs nobody";
  EXPECT_EQ(tuttiRemoteError, zero.tryOpen(1));
  EXPECT_THAT(tuttiErrorText(),
              AllOf(HasSubstr("rank 1 (host node9, pid " + std::to_string(child) + ")"),
                    HasSubstr("has died or given up")));
  zero.detach();
  EXPECT_EQ(0u, zero.bytes());
}

// A first use long after init: the peer's caller is in none of the library's calls by then.
TEST_P(ShmWays, FirstUseNeedsNoTimeOfThePeers) {
  Rank zero(Shape(), 0, 1);
  ASSERT_EQ(tuttiSuccess, zero.prepare());
  int said[2];
  ASSERT_EQ(0, pipe2(said, O_CLOEXEC));
  pid_t child = forkRankOne(Shape(), zero, [&](Rank &one) {
    EXPECT_EQ(tuttiSuccess, one.attach()) << tuttiErrorText();
    sendOne(one, 0, 42);
    EXPECT_EQ(1, write(said[1], "!", 1));
    for (;;) { // computes
    }
  });
  if (GetParam()) hide(zero, 1);
  ASSERT_EQ(tuttiSuccess, zero.attach()) << tuttiErrorText();
  char c;
  ASSERT_EQ(1, read(said[0], &c, 1));
  expectOne(zero, 1, 42);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(said[0]);
  close(said[1]);
}

// The writer is gone, process and all, before the reader looks.
TEST_P(ShmWays, MessagesOutliveTheirWriter) {
  Rank zero(Shape(), 0, 1);
  ASSERT_EQ(tuttiSuccess, zero.prepare());
  pid_t child = forkRankOne(Shape(), zero, [](Rank &one) {
    EXPECT_EQ(tuttiSuccess, one.attach()) << tuttiErrorText();
    sendOne(one, 0, 42);
    one.detach();
  });
  int status = 1;
  waitpid(child, &status, 0);
  ASSERT_EQ(0, status);
  if (GetParam()) hide(zero, 1);
  ASSERT_EQ(tuttiSuccess, zero.attach()) << tuttiErrorText();
  expectOne(zero, 1, 42);
  EXPECT_EQ(tuttiSuccess, zero.tryOpen(1)) << "and once more";
}

// Who leaves hands in what is owed, and nothing else.
TEST_P(ShmWays, WhatIsReadOrNeverSentIsNotHandedIn) {
  Shape s;
  s.nranks = 4;
  Ranks ranks = makeProcesses(s);
  prepareAll(ranks);
  if (GetParam()) hideAll(ranks);
  for (int r : {0, 2, 3})
    ASSERT_EQ(tuttiSuccess, ranks[(size_t)r]->attach()) << tuttiErrorText();
  // Rank 1's desk is not served, so that it shows what comes.
  sendOne(*ranks[0], 1, 1);
  sendOne(*ranks[0], 2, 2);
  EXPECT_TRUE(tuttiSegmentOwed(&ranks[0]->w, 2));
  expectOne(*ranks[2], 0, 2);
  EXPECT_FALSE(tuttiSegmentOwed(&ranks[0]->w, 2));
  EXPECT_TRUE(tuttiSegmentOwed(&ranks[0]->w, 1));
  EXPECT_FALSE(tuttiSegmentOwed(&ranks[0]->w, 3));
  ranks[3]->detach();
  auto waiting = [&](Rank &r) {
    pollfd desk{r.desk(), POLLIN, 0};
    return poll(&desk, 1, 0) == 1;
  };
  EXPECT_FALSE(waiting(*ranks[1]));
  ranks[0]->detach();
  EXPECT_TRUE(waiting(*ranks[1]));
  ASSERT_EQ(tuttiSuccess, ranks[1]->attach()) << tuttiErrorText();
  expectOne(*ranks[1], 0, 1);
  if (GetParam()) { // else it is still in this process
    EXPECT_EQ(tuttiRemoteError, ranks[1]->tryOpen(3)) << "it has left without a word";
  }
}
INSTANTIATE_TEST_SUITE_P(Asking, ShmWays, ::testing::Bool(),
                         [](auto &info) { return info.param ? "Asking" : "Proc"; });

TEST(ShmDeath, StoppedPeerIsReadAllTheSame) {
  Rank zero(Shape(), 0, 1);
  ASSERT_EQ(tuttiSuccess, zero.prepare());
  pid_t child = forkRankOne(Shape(), zero, [](Rank &one) {
    EXPECT_EQ(tuttiSuccess, one.attach()) << tuttiErrorText();
    sendOne(one, 0, 42);
    raise(SIGSTOP);
  });
  ASSERT_EQ(child, waitpid(child, nullptr, WUNTRACED));
  ASSERT_EQ(tuttiSuccess, zero.attach()) << tuttiErrorText();
  expectOne(zero, 1, 42);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST(ShmDeath, StoppedPeerThatIsAskedIsNamedAtTheDeadline) {
  Shape s;
  s.timeoutMs = 300;
  Rank zero(s, 0, 1);
  ASSERT_EQ(tuttiSuccess, zero.prepare());
  pid_t child = forkRankOne(s, zero, [](Rank &) { raise(SIGSTOP); });
  ASSERT_EQ(child, waitpid(child, nullptr, WUNTRACED));
  hide(zero, 1);
  ASSERT_EQ(tuttiSuccess, zero.attach()) << tuttiErrorText();
  EXPECT_EQ(tuttiTimeout, zero.tryOpen(1));
  EXPECT_THAT(tuttiErrorText(),
              AllOf(HasSubstr("rank 1 (host node9, pid " + std::to_string(child) + ")"),
                    HasSubstr("shows no descriptor"), HasSubstr("did not answer"),
                    HasSubstr("TUTTI_TIMEOUT")));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  zero.detach();
  EXPECT_EQ(0u, zero.bytes());
  EXPECT_EQ(0, segmentMappings());
}

TEST(ShmDeath, FailedFlagEndsTheWait) {
  Ranks ranks = makeProcesses(Shape());
  prepareAll(ranks);
  hideAll(ranks);
  ASSERT_EQ(tuttiSuccess, ranks[0]->attach()) << tuttiErrorText();
  std::thread waiter([&] {
    EXPECT_EQ(tuttiRemoteError, ranks[0]->tryOpen(1));
    EXPECT_THAT(tuttiErrorText(), AllOf(HasSubstr("rank 1"), HasSubstr("has failed")));
  });
  pollfd asked{ranks[1]->desk(), POLLIN, 0};
  EXPECT_EQ(1, poll(&asked, 1, 60000)); // nobody serves it
  tuttiStoreRelease32(&ranks[0]->failed, 1);
  waiter.join();
}

// Nobody reads what a failed communicator has sent.
TEST(ShmDeath, FailedRanksHandInNothing) {
  Ranks ranks = makeProcesses(Shape());
  prepareAll(ranks);
  ASSERT_EQ(tuttiSuccess, ranks[0]->attach()) << tuttiErrorText();
  sendOne(*ranks[0], 1, 1);
  tuttiStoreRelease32(&ranks[0]->failed, 1);
  ranks[0]->detach();
  pollfd desk{ranks[1]->desk(), POLLIN, 0};
  EXPECT_EQ(0, poll(&desk, 1, 0));
}

// ---- what /proc leads to -----------------------------------------------------------------------

// Processes that their own user may not look into.
TEST(ShmProc, UndumpableProcessesAsk) {
  Shape s;
  s.nranks = 6;
  onProcesses(
      s, 3,
      [](Rank &r) {
        char why[160];
        for (int p = 0; p < r.w.nranks; p++) {
          const tuttiPeer &peer = r.peers[(size_t)p];
          if (peer.pid == getpid()) continue;
          EXPECT_EQ(-EACCES, tuttiPeerFdOpen(peer.pid, &peer.segment, why, sizeof why));
        }
        traffic(r, 50);
      },
      [] {
        if (geteuid() == 0) {
          ASSERT_EQ(0, setuid(65534));
        }
        ASSERT_EQ(0, prctl(PR_SET_DUMPABLE, 0));
      });
}

// Numbers of another namespace, or reused ones.
TEST(ShmProc, AnotherFileIsNotBelieved) {
  Ranks ranks = makeProcesses(Shape());
  prepareAll(ranks);
  int other;
  ASSERT_EQ(tuttiSuccess, tuttiSharedFd("test", &other));
  ranks[0]->peers[1].segment.fd = other;
  attachAll(ranks);
  sendOne(*ranks[1], 0, 42);
  expectOne(*ranks[0], 1, 42); // it has asked
  ranks[0]->detach();
  ranks[1]->detach();
  ranks = makeProcesses(Shape());
  prepareAll(ranks);
  ranks[0]->peers[1].segment.fd = other;
  ASSERT_EQ(tuttiSuccess, ranks[0]->attach()) << tuttiErrorText();
  ranks[1]->detach();
  EXPECT_EQ(tuttiRemoteError, ranks[0]->tryOpen(1));
  EXPECT_THAT(tuttiErrorText(), HasSubstr("/fd/" + std::to_string(other) + " is another file"));
  close(other);
}

// What a record says is a file that rank 1 did not make, or not for this.
void expectRefused(int bad, tuttiResult_t code, const char *text) {
  Ranks ranks = makeProcesses(Shape());
  prepareAll(ranks);
  ASSERT_EQ(0, tuttiPeerFdDescribe(bad, &ranks[0]->peers[1].segment));
  attachAll(ranks);
  EXPECT_EQ(code, ranks[0]->tryOpen(1));
  EXPECT_THAT(tuttiErrorText(), AllOf(HasSubstr("rank 1"), HasSubstr(text)));
  EXPECT_EQ(2, segmentMappings()) << "of each rank its own";
  ranks[0]->detach();
  EXPECT_EQ(0u, ranks[0]->bytes());
}

TEST(ShmProc, SegmentsOfAnotherKindAreRefused) {
  int fds = openFds();
  const char *foreign = "is not what that rank made";
  int bad;
  ASSERT_EQ(tuttiSuccess, tuttiSharedFd("test", &bad));
  expectRefused(bad, tuttiRemoteError, foreign);
  ASSERT_EQ(tuttiSuccess, tuttiSharedFdSeal(bad, 1 << 20, "test"));
  expectRefused(bad, tuttiRemoteError, foreign);
  close(bad);
  EXPECT_EQ(fds, openFds());
}

TEST(ShmProc, HeadersAreComparedToTheRecord) {
  for (int wrong : {0, 1, 2, 3}) {
    Ranks ranks = makeProcesses(Shape());
    prepareAll(ranks);
    attachAll(ranks);
    // token, owner, nranks
    uint8_t header[24];
    int fd = tuttiSegmentFd(&ranks[1]->w);
    ASSERT_EQ(24, pread(fd, header, sizeof header, 0));
    EXPECT_EQ(0, memcmp(header, ranks[0]->peers[1].segmentToken, 16));
    if (wrong) header[wrong == 1 ? 15 : wrong == 2 ? 16 : 20] ^= 4;
    ASSERT_EQ(24, pwrite(fd, header, sizeof header, 0));
    EXPECT_EQ(wrong ? tuttiRemoteError : tuttiSuccess, ranks[0]->tryOpen(1)) << wrong;
    if (wrong) {
      EXPECT_THAT(tuttiErrorText(), HasSubstr("is not what that rank made"));
    }
  }
}

// With the header that it should have.
TEST(ShmProc, WrongSizesAreRefused) {
  Ranks ranks = makeProcesses(Shape());
  prepareAll(ranks);
  attachAll(ranks);
  uint8_t header[24];
  ASSERT_EQ(24, pread(tuttiSegmentFd(&ranks[1]->w), header, sizeof header, 0));
  int forged;
  ASSERT_EQ(tuttiSuccess, tuttiSharedFd("test", &forged));
  ASSERT_EQ(24, pwrite(forged, header, sizeof header, 0));
  ASSERT_EQ(0, ftruncate(forged, 4096));
  ASSERT_EQ(0, tuttiPeerFdDescribe(forged, &ranks[0]->peers[1].segment));
  EXPECT_EQ(tuttiRemoteError, ranks[0]->tryOpen(1));
  EXPECT_THAT(tuttiErrorText(), HasSubstr("not a sealed segment"));
  ASSERT_EQ(tuttiSuccess, tuttiSharedFdSeal(forged, 4096, "test"));
  EXPECT_EQ(tuttiInvalidUsage, ranks[0]->tryOpen(1));
  EXPECT_THAT(tuttiErrorText(), HasSubstr("has 4096 bytes"));
  close(forged);
}

int sealsOf(const Rank &r) {
  return fcntl(r.mine.segment.fd, F_GET_SEALS);
}

// Another rank has given it its size a moment ago.
TEST(ShmProc, SegmentsAboutToBeSealedAreSealed) {
  Ranks ranks = makeProcesses(Shape());
  prepareAll(ranks);
  ASSERT_EQ(tuttiSuccess, ranks[0]->attach()) << tuttiErrorText();
  struct stat st;
  ASSERT_EQ(0, fstat(ranks[0]->mine.segment.fd, &st));
  ASSERT_EQ(0, ftruncate(ranks[1]->mine.segment.fd, st.st_size));
  EXPECT_EQ(0, sealsOf(*ranks[1]) & F_SEAL_SHRINK);
  EXPECT_EQ(tuttiSuccess, ranks[0]->tryOpen(1)) << tuttiErrorText();
  EXPECT_NE(0, sealsOf(*ranks[1]) & F_SEAL_SHRINK);
}

// Whoever is first, the reader too, gives a segment its size.
TEST(ShmProc, ReadersDoNotWaitForTheOwnersAttach) {
  Ranks ranks = makeProcesses(Shape());
  prepareAll(ranks);
  ASSERT_EQ(tuttiSuccess, ranks[0]->attach()) << tuttiErrorText();
  tuttiConn recv = ranks[0]->open(1, 0, TUTTI_RECV);
  EXPECT_FALSE(tuttiConnReady(&recv));
  ASSERT_EQ(tuttiSuccess, ranks[1]->attach()) << tuttiErrorText();
  sendOne(*ranks[1], 0, 7);
  EXPECT_TRUE(tuttiConnReady(&recv));
}

// ---- strangers ---------------------------------------------------------------------------------

// What strangers say at a desk, with every mistake one can make; none of them is closed here.
std::vector<int> sayWhatIsWrong(Rank &desk) {
  std::vector<int> strangers;
  char junk[4096];
  memset(junk, 0x5a, sizeof junk);
  auto say = [&](const void *data, size_t size, std::vector<int> fds = {}) {
    strangers.push_back(connectTo(desk));
    sendTo(strangers.back(), data, size, fds);
  };
  for (size_t n : {1, 63, 64, 65, 4096})
    say(junk, n);
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  say(junk, 64, {null, null, null, null});
  Rank shape(Shape(), 1, 2);
  for (Kind kind : {kAsk, kGive}) {
    Hello wrong(shape, 0, kind);
    wrong.mac[31] ^= 1;
    say(&wrong, sizeof wrong, {null});
    wrong = Hello(shape, 0, kind);
    wrong.commHash++;
    wrong.seal(shape);
    say(&wrong, sizeof wrong);
    wrong = Hello(shape, 0, kind);
    wrong.version++;
    wrong.seal(shape);
    say(&wrong, sizeof wrong);
    for (int from : {-1, 0, 2, INT32_MAX}) {
      wrong = Hello(shape, 0, kind);
      wrong.from = from;
      wrong.seal(shape);
      say(&wrong, sizeof wrong);
    }
    wrong = Hello(shape, 1, kind);
    say(&wrong, sizeof wrong);
  }
  Hello gift(shape, 0, kGive); // right but for what it brings
  say(&gift, sizeof gift);
  say(&gift, sizeof gift, {null});
  close(null);
  return strangers;
}

TEST(ShmStrangers, AreDroppedWithoutHarm) {
  int before = openFds();
  {
    Ranks ranks = makeProcesses(Shape());
    prepareAll(ranks);
    hideAll(ranks);
    std::vector<int> strangers = sayWhatIsWrong(*ranks[0]);
    size_t spoke = strangers.size();
    close(connectTo(*ranks[0]));
    for (int i = 0; i < 5; i++)
      strangers.push_back(connectTo(*ranks[0])); // say nothing
    attachAll(ranks);
    onThreads(ranks, [](Rank &r) { traffic(r, 20); });
    for (size_t i = 0; i < spoke; i++) {
      char got[256];
      pollfd dropped{strangers[i], POLLIN, 0};
      EXPECT_EQ(1, poll(&dropped, 1, 60000)) << i;
      EXPECT_EQ(0, recv(strangers[i], got, sizeof got, MSG_DONTWAIT)) << i << " got an answer";
    }
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
  hideAll(ranks);
  ASSERT_EQ(tuttiSuccess, ranks[0]->attach()) << tuttiErrorText();
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
  EXPECT_EQ(tuttiTimeout, ranks[0]->tryOpen(1)) << "whose desk nobody serves";
  stop = true;
  for (auto &t : flood)
    t.join();
}

TEST(ShmStrangers, AFloodIsOneLineOfTheLog) {
  Shape s;
  s.timeoutMs = 2000;
  Ranks ranks = makeProcesses(s);
  prepareAll(ranks);
  hideAll(ranks);
  ASSERT_EQ(tuttiSuccess, ranks[0]->attach()) << tuttiErrorText();
  setenv("TUTTI_DEBUG", "WARN", 1);
  ASSERT_EQ(tuttiSuccess, tuttiSettingsLoad());
  testing::internal::CaptureStderr();
  for (int i = 0; i < 100; i++) {
    int fd = connectTo(*ranks[0]);
    pollfd dropped{fd, POLLIN, 0};
    send(fd, "junk", 4, MSG_NOSIGNAL);
    ASSERT_EQ(1, poll(&dropped, 1, 60000)) << "by the proxy's thread";
    close(fd);
  }
  ranks.clear();
  std::string log = testing::internal::GetCapturedStderr();
  unsetenv("TUTTI_DEBUG");
  ASSERT_EQ(tuttiSuccess, tuttiSettingsLoad());
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 2) << log;
  EXPECT_THAT(log, HasSubstr("rank 0 dropped 1 connection to its Unix socket: not a rank of"));
  EXPECT_THAT(log, HasSubstr("rank 0 dropped 99 more connections to its Unix socket"));
}

TEST(ShmStrangers, SilentOnesCanNotKeepPeersOut) {
  Ranks ranks = makeProcesses(Shape());
  prepareAll(ranks);
  hideAll(ranks);
  std::vector<int> silent;
  for (int i = 0; i < 40; i++)
    silent.push_back(connectTo(*ranks[0]));
  attachAll(ranks);
  EXPECT_EQ(tuttiSuccess, ranks[1]->tryOpen(0)) << tuttiErrorText();
  for (int fd : silent)
    close(fd);
}

// The secret does not help them, to pose as a peer or to get what a peer has written.
TEST(ShmStrangers, OtherUsersAreDroppedWhateverTheyKnow) {
  if (geteuid() != 0) GTEST_SKIP() << "may not become another user";
  Ranks ranks = makeProcesses(Shape());
  prepareAll(ranks);
  hideAll(ranks);
  ASSERT_EQ(tuttiSuccess, ranks[1]->attach()) << tuttiErrorText();
  int real = tuttiSegmentFd(&ranks[1]->w);
  struct stat st;
  uint8_t header[24];
  ASSERT_EQ(0, fstat(real, &st));
  ASSERT_EQ(24, pread(real, header, sizeof header, 0));
  int forged, said[2];
  ASSERT_EQ(tuttiSuccess, tuttiSharedFd("test", &forged));
  ASSERT_EQ(24, pwrite(forged, header, sizeof header, 0));
  ASSERT_EQ(tuttiSuccess, tuttiSharedFdSeal(forged, (size_t)st.st_size, "test"));
  ASSERT_EQ(0, pipe2(said, O_CLOEXEC));
  fflush(nullptr);
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);
    if (setuid(65534) != 0) _exit(1);
    Hello gift(*ranks[1], 0, kGive), question(*ranks[1], 0, kAsk);
    int giver = connectTo(*ranks[0]), asker = connectTo(*ranks[0]);
    sendTo(giver, &gift, sizeof gift, {forged});
    sendTo(asker, &question, sizeof question);
    EXPECT_EQ(1, write(said[1], "!", 1));
    char got[256];
    EXPECT_GE(0, recv(giver, got, sizeof got, 0));
    EXPECT_GE(0, recv(asker, got, sizeof got, 0)) << "an answer";
    _exit(HasFailure() ? 1 : 0);
  }
  char c;
  ASSERT_EQ(1, read(said[0], &c, 1));
  ASSERT_EQ(tuttiSuccess, ranks[0]->attach()) << tuttiErrorText(); // and serves its desk
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(0, status);
  for (int fd : {forged, said[0], said[1]})
    close(fd);
  sendOne(*ranks[1], 0, 42);
  expectOne(*ranks[0], 1, 42);
}

// ---- limits ------------------------------------------------------------------------------------

// Two ranks that read each other, with `spare` descriptors left. False: one of them failed, and
// said what to do.
bool meetWithFiles(int spare, bool asking) {
  Shape s;
  s.timeoutMs = 500; // a desk without descriptors can't answer
  Ranks ranks = makeProcesses(s);
  FewFiles few(spare);
  bool ok = true;
  auto check = [&](tuttiResult_t result) {
    if (!ok || result == tuttiSuccess) return;
    ok = false;
    EXPECT_THAT(tuttiErrorText(), AnyOf(HasSubstr("ulimit -n"), HasSubstr("did not answer")))
        << spare;
  };
  for (auto &r : ranks)
    if (ok) check(r->prepare());
  if (ok) gather(ranks);
  if (asking) hideAll(ranks);
  for (auto &r : ranks)
    if (ok) check(r->attach());
  for (auto &r : ranks)
    if (ok) check(r->tryOpen(1 - r->w.rank));
  for (auto &r : ranks) {
    r->detach();
    EXPECT_EQ(0u, r->bytes());
  }
  return ok;
}

TEST_P(ShmWays, NoMoreFilesIsAnErrorWithARemedy) {
  // From no fd at all to enough: each limit ends in success or in an error that says what to do.
  bool succeeded = false, failed = false;
  int fds = openFds();
  for (int spare = 0; spare < 16; spare++) {
    (meetWithFiles(spare, GetParam()) ? succeeded : failed) = true;
    EXPECT_EQ(fds, openFds());
  }
  EXPECT_TRUE(failed);
  EXPECT_TRUE(succeeded);
}

// The desk has one for the connection, and none for what it brings.
TEST(ShmLimits, WhatIsHandedInWaitsForAFile) {
  Rank zero(Shape(), 0, 1);
  ASSERT_EQ(tuttiSuccess, zero.prepare());
  int go[2];
  ASSERT_EQ(0, pipe2(go, O_CLOEXEC));
  pid_t child = forkRankOne(Shape(), zero, [&](Rank &one) {
    char c;
    EXPECT_EQ(tuttiSuccess, one.attach()) << tuttiErrorText();
    sendOne(one, 0, 42);
    EXPECT_EQ(1, read(go[0], &c, 1));
    one.detach();
  });
  hide(zero, 1);
  ASSERT_EQ(tuttiSuccess, zero.attach()) << tuttiErrorText();
  int fds = openFds(), status = 1;
  Setting warn("TUTTI_DEBUG", "WARN");
  testing::internal::CaptureStderr();
  {
    FewFiles few(1);
    EXPECT_EQ(1, write(go[1], "!", 1));
    waitpid(child, &status, 0);
    EXPECT_EQ(0, status);
    pollfd desk{zero.desk(), POLLIN, 0};
    for (int i = 0; i < 30000 && poll(&desk, 1, 0) == 1; i++)
      usleep(1000); // the proxy's thread takes the connection
    usleep(100000);
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("rank 0 has no file descriptor for the shared memory that rank 1"),
                    HasSubstr("ulimit -n")));
  expectOne(zero, 1, 42);
  EXPECT_EQ(fds, openFds());
  for (int fd : go)
    close(fd);
}

// As many neighbours as there are descriptors for, were it one for each.
TEST_P(ShmWays, NeighboursTakeNoFiles) {
  Shape s;
  s.nranks = 40;
  s.slotBytes = 512 * 1024; // too large to be mapped whole
  bool asking = GetParam();
  onProcesses(
      s, 40,
      [asking](Rank &r) {
        for (int p = 0; p < r.w.nranks; p++) {
          if (p == r.w.rank) continue;
          if (asking) hide(r, p);
          sendOne(r, p, (uint32_t)r.w.rank);
        }
        for (int p = 0; p < r.w.nranks; p++) {
          if (p == r.w.rank) continue;
          tuttiConn recv = r.open(p, 0, TUTTI_RECV);
          uint64_t deadline = tuttiDeadline(60000);
          while (!tuttiConnReady(&recv) && tuttiNow() < deadline)
            sched_yield();
          ASSERT_TRUE(tuttiConnReady(&recv)) << p;
          EXPECT_EQ((uint32_t)p, tuttiConnDescriptor(&recv)->bytes);
        }
      },
      [] {
        rlimit limit;
        ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &limit));
        limit.rlim_cur = (rlim_t)openFds() + 30;
        ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &limit));
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

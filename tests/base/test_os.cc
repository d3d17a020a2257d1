#include "base/host.h"
#include "base/os.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/environment.h"

using testing::AllOf;
using testing::HasSubstr;

namespace {

/* Runs `body` in a child; its exit status, or -1 if it did not exit. */
template <typename Body> int inChild(Body body) {
  pid_t child = fork();
  if (child == 0) _exit(body());
  int status = -1;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

/* ---- time ------------------------------------------------------------------------------------ */

TEST(Time, DeadlinesLieAheadAndSaturate) {
  uint64_t before = tuttiNow();
  uint64_t deadline = tuttiDeadline(2000);
  uint64_t after = tuttiNow();
  EXPECT_GE(deadline, before + 2000000000u);
  EXPECT_LE(deadline, after + 2000000000u);
  for (int64_t none : {int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX})
    EXPECT_EQ(tuttiDeadline(none), TUTTI_NO_DEADLINE) << none;
  EXPECT_NE(tuttiDeadline(INT64_MAX / 1000000), TUTTI_NO_DEADLINE);
}

TEST(Time, PollTimeoutNeverEndsEarly) {
  EXPECT_EQ(tuttiDeadlinePollMs(TUTTI_NO_DEADLINE), -1);
  EXPECT_EQ(tuttiDeadlinePollMs(0), 0);
  EXPECT_EQ(tuttiDeadlinePollMs(tuttiNow()), 0);
  EXPECT_EQ(tuttiDeadlinePollMs(TUTTI_NO_DEADLINE - 1), INT_MAX);
  uint64_t deadline = tuttiNow() + 3600000000000u - 1;
  int ms = tuttiDeadlinePollMs(deadline);
  EXPECT_GT(ms, 0);
  EXPECT_LE(ms, 3600000);
  /* Less than one ms left is still a wait. */
  deadline = tuttiNow() + 900000;
  ms = tuttiDeadlinePollMs(deadline);
  EXPECT_TRUE(ms == 1 || tuttiNow() >= deadline) << ms;
}

/* ---- identity -------------------------------------------------------------------------------- */

TEST(Host, NameHasNoDomain) {
  char name[HOST_NAME_MAX + 1] = "";
  ASSERT_EQ(gethostname(name, sizeof(name)), 0);
  std::string shortName(name, strcspn(name, "."));
  EXPECT_EQ(tuttiHostname(), shortName);
  EXPECT_EQ(tuttiHostname(), tuttiHostname());
}

using HostIdTest = EnvironmentTest;

TEST_F(HostIdTest, IsOneForAllProcessesOfAHost) {
  uint64_t mine = tuttiHostId();
  EXPECT_EQ(tuttiHostId(), mine);
  EXPECT_EQ(inChild([mine] { return tuttiHostId() == mine ? 0 : 1; }), 0);
}

TEST_F(HostIdTest, SettingReplacesIt) {
  uint64_t real = tuttiHostId();
  EXPECT_EQ(load("TUTTI_HOSTID", "east"), "");
  uint64_t east = tuttiHostId();
  EXPECT_EQ(load("TUTTI_HOSTID", "west"), "");
  uint64_t west = tuttiHostId();
  EXPECT_NE(real, east);
  EXPECT_NE(real, west);
  EXPECT_NE(east, west);
  EXPECT_EQ(load("TUTTI_HOSTID", "east"), "");
  EXPECT_EQ(tuttiHostId(), east);
  EXPECT_EQ(load("TUTTI_HOSTID", ""), "");
  EXPECT_EQ(tuttiHostId(), real);
  EXPECT_EQ(load("NCCL_HOSTID", "east"), "");
  EXPECT_EQ(tuttiHostId(), east);
}

TEST_F(HostIdTest, NamespacesAreHostsOfTheirOwn) {
  uint64_t mine = tuttiHostId();
  const int cannot = 77;
  for (int space : {CLONE_NEWNET, CLONE_NEWIPC}) {
    int status = inChild([mine, space] {
      if (unshare(space) != 0) return cannot;
      return tuttiHostId() != mine ? 0 : 1;
    });
    if (status == cannot) GTEST_SKIP() << "needs the right to make namespaces";
    EXPECT_EQ(status, 0) << space;
  }
}

TEST(Cpu, LastCacheHasASize) {
  uint64_t bytes = tuttiCacheBytes();
  if (access("/sys/devices/system/cpu/cpu0/cache/index2/size", R_OK) != 0) GTEST_SKIP();
  EXPECT_GE(bytes, 64u << 10);
  EXPECT_LE(bytes, (uint64_t)64 << 30);
}

TEST(Cpu, CountAndSetFollowTheAffinity) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  EXPECT_LE(tuttiCpuCount(), CPU_COUNT(&all)); /* there may be a quota */
  EXPECT_GE(tuttiCpuCount(), 1);
  uint64_t set = tuttiCpuSet();
  std::thread([&all, set] {
    EXPECT_EQ(tuttiCpuSet(), set);
    int first = 0;
    while (!CPU_ISSET(first, &all))
      first++;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(tuttiCpuCount(), 1);
    EXPECT_EQ(tuttiCpuSet() == set, CPU_COUNT(&all) == 1);
  }).join();
}

TEST(Hash, IsFnv1a) {
  EXPECT_EQ(tuttiHash("", 0), 0xcbf29ce484222325u);
  EXPECT_EQ(tuttiHash("a", 1), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(tuttiHash("foobar", 6), 0x85944171f73967e8u);
}

TEST(Random, FillsEveryByte) {
  const size_t size = 1000;
  std::vector<unsigned char> seen(size, 0);
  for (int i = 0; i < 16; i++) {
    std::vector<unsigned char> bytes(size + 1, 0);
    ASSERT_EQ(tuttiRandom(bytes.data(), size), tuttiSuccess);
    EXPECT_EQ(bytes[size], 0);
    for (size_t j = 0; j < size; j++)
      seen[j] |= bytes[j];
  }
  for (size_t j = 0; j < size; j++)
    EXPECT_NE(seen[j], 0) << j; /* 1 in 2^128 each */
  EXPECT_EQ(tuttiRandom(nullptr, 0), tuttiSuccess);
}

/* ---- files ----------------------------------------------------------------------------------- */

class ReadFileTest : public testing::Test {
protected:
  void SetUp() override {
    int fd = mkstemp(path);
    ASSERT_GE(fd, 0);
    close(fd);
  }
  void TearDown() override { unlink(path); }
  void write(const std::string &text) { std::ofstream(path) << text; }
  char path[32] = "/tmp/tutti-test-file.XXXXXX";
  char buf[8] = "before";
};

TEST_F(ReadFileTest, TrimsTheEnd) {
  write(" 16 \n\n");
  EXPECT_TRUE(tuttiReadFile(path, buf, sizeof(buf)));
  EXPECT_STREQ(buf, " 16");
  write("");
  EXPECT_TRUE(tuttiReadFile(path, buf, sizeof(buf)));
  EXPECT_STREQ(buf, "");
  write("seven77");
  EXPECT_TRUE(tuttiReadFile(path, buf, sizeof(buf)));
  EXPECT_STREQ(buf, "seven77");
}

TEST_F(ReadFileTest, RefusesWhatDoesNotFitOrIsNotThere) {
  write("eight888");
  EXPECT_FALSE(tuttiReadFile(path, buf, sizeof(buf)));
  EXPECT_STREQ(buf, "");
  EXPECT_FALSE(tuttiReadFile("/no/such/file", buf, sizeof(buf)));
  EXPECT_FALSE(tuttiReadFile("/tmp", buf, sizeof(buf)));
  EXPECT_FALSE(tuttiReadFile(path, buf, 0));
}

TEST_F(ReadFileTest, DoesNotWaitForAFifo) {
  unlink(path);
  ASSERT_EQ(mkfifo(path, 0600), 0);
  alarm(20); /* ends the test if it waits for a writer */
  tuttiReadFile(path, buf, sizeof(buf));
  alarm(0);
  EXPECT_STREQ(buf, "");
}

TEST(SharedFd, HasItsSizeAndIsSealed) {
  int fd = -1;
  ASSERT_EQ(tuttiSharedFd("segment", &fd), tuttiSuccess);
  struct stat st;
  ASSERT_EQ(fstat(fd, &st), 0);
  EXPECT_EQ(st.st_size, 0);
  ASSERT_EQ(tuttiSharedFdSeal(fd, 12345, "segment"), tuttiSuccess);
  ASSERT_EQ(fstat(fd, &st), 0);
  EXPECT_EQ(st.st_size, 12345);
  EXPECT_EQ(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  EXPECT_NE(ftruncate(fd, 1), 0) << "a peer could kill us with SIGBUS";
  EXPECT_NE(ftruncate(fd, 20000), 0);
  EXPECT_EQ(tuttiSharedFdSeal(fd, 12345, "segment"), tuttiSuccess) << "another has done it";
  EXPECT_EQ(tuttiSharedFdSeal(fd, 12346, "segment"), tuttiSystemError);
  close(fd);
}

TEST(SharedFd, ManyMaySealItAtOnce) {
  for (int i = 0; i < 200; i++) {
    int fd = -1;
    ASSERT_EQ(tuttiSharedFd("segment", &fd), tuttiSuccess);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
      threads.emplace_back([fd] {
        EXPECT_EQ(tuttiSharedFdSeal(fd, 12345, "segment"), tuttiSuccess) << tuttiErrorText();
      });
    for (auto &t : threads)
      t.join();
    EXPECT_NE(fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK, 0);
    close(fd);
  }
}

TEST(SharedFd, FailureNamesTheObjectAndARemedy) {
  int fd = -1;
  ASSERT_EQ(tuttiSharedFd("segment of rank 2", &fd), tuttiSuccess);
  EXPECT_EQ(tuttiSharedFdSeal(fd, SIZE_MAX, "segment of rank 2"), tuttiSystemError);
  EXPECT_THAT(tuttiErrorText(),
              AllOf(HasSubstr("segment of rank 2"), HasSubstr("18446744073709551615 bytes")));
  EXPECT_EQ(tuttiSharedFdSeal(fd, SIZE_MAX / 2 + 1, "huge"), tuttiSystemError);
  close(fd);
  int status = inChild([] {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_NOFILE, &none);
    int fd = -5;
    if (tuttiSharedFd("segment of rank 2", &fd) != tuttiSystemError || fd != -5) return 1;
    return strstr(tuttiErrorText(), "segment of rank 2: Too many open files; raise the limit of "
                                    "open files (ulimit -n)") != nullptr
               ? 0
               : 2;
  });
  EXPECT_EQ(status, 0);
}

/* Without the look at the limit the child would be ended by a signal. */
TEST(SharedFd, ALimitOnFileSizesIsNamed) {
  int fd;
  ASSERT_EQ(tuttiSharedFd("test", &fd), tuttiSuccess);
  int status = inChild([fd] {
    struct rlimit small = {4096, 4096};
    if (setrlimit(RLIMIT_FSIZE, &small) != 0) return 1;
    if (tuttiSharedFdSeal(fd, 8192, "the segment") != tuttiSystemError) return 2;
    return strstr(tuttiErrorText(), "File too large; raise the limit of file sizes (ulimit -f)")
               ? 0
               : 3;
  });
  EXPECT_EQ(status, 0);
  close(fd);
}

/* ---- threads --------------------------------------------------------------------------------- */

TEST(Thread, ALimitOnAddressSpaceIsNamed) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need the address space themselves";
#endif
  int status = inChild([] {
    struct rlimit space;
    if (getrlimit(RLIMIT_AS, &space) != 0) return 1;
    space.rlim_cur = 1 << 20; /* less than there is already */
    if (setrlimit(RLIMIT_AS, &space) != 0) return 2;
    auto sleep = [](void *p) {
      pause();
      return p;
    };
    pthread_t thread; /* the first ones take stacks of threads that have ended */
    for (int i = 0; tuttiThreadStart(&thread, "test", sleep, nullptr) == tuttiSuccess; i++)
      if (i == 1000) return 3;
    return strstr(tuttiErrorText(), "raise the limit on address space (ulimit -v)") ? 0 : 4;
  });
  EXPECT_EQ(status, 0);
}

/* ---- fork ------------------------------------------------------------------------------------ */

TEST(Fork, ChildKnowsAndParentDoesNot) {
  EXPECT_FALSE(tuttiForked());
  EXPECT_EQ(inChild([] { return tuttiForked() ? 1 : 0; }), 0); /* nothing yet that it cannot use */
  int status = inChild([] {
    tuttiForkForbid();
    return tuttiForked() ? 1 : inChild([] { return tuttiForked() ? 0 : 2; });
  });
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(tuttiForked());
}

/* The peer must see our end close while the forked child lives on. */
TEST(Fork, PeerSeesTheParentsEndWhileTheChildLives) {
  int ends[2], hold[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  ASSERT_EQ(pipe2(hold, O_CLOEXEC), 0);
  tuttiForkCloseAdd(ends[0]);
  pid_t child = fork();
  if (child == 0) {
    close(hold[1]);
    char c;
    ssize_t n = read(hold[0], &c, 1); /* until the parent lets go */
    _exit(n == 0 ? 0 : 1);
  }
  close(hold[0]);
  tuttiForkCloseRemove(ends[0]);
  close(ends[0]); /* as if this process had died */
  struct pollfd peer = {ends[1], POLLIN, 0};
  EXPECT_EQ(poll(&peer, 1, 20000), 1) << "the child still holds the connection";
  char c;
  EXPECT_EQ(recv(ends[1], &c, 1, MSG_DONTWAIT), 0);
  close(hold[1]);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(ends[1]);
}

TEST(Fork, OnlyRegisteredDescriptorsClose) {
  int kept = dup(STDERR_FILENO), closed = dup(STDERR_FILENO), removed = dup(STDERR_FILENO);
  int high = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 700);
  for (int fd : {closed, removed, high})
    tuttiForkCloseAdd(fd);
  tuttiForkCloseRemove(removed);
  auto isOpen = [](int fd) { return fcntl(fd, F_GETFD) >= 0; };
  EXPECT_EQ(inChild([=] {
              if (!isOpen(kept) || !isOpen(removed)) return 1;
              return isOpen(closed) || isOpen(high) ? 2 : 0;
            }),
            0);
  for (int fd : {kept, closed, removed, high})
    EXPECT_TRUE(isOpen(fd));
  tuttiForkCloseRemove(closed);
  tuttiForkCloseRemove(high);
  EXPECT_EQ(inChild([=] { return isOpen(closed) && isOpen(high) ? 0 : 1; }), 0);
  for (int fd : {kept, closed, removed, high})
    close(fd);
}

TEST(Fork, DescriptorsOutsideTheTableAreLeftAlone) {
  for (int fd : {-1, INT_MIN, 1 << 20, INT_MAX}) {
    tuttiForkCloseAdd(fd);
    tuttiForkCloseRemove(fd);
  }
  EXPECT_EQ(inChild([] { return fcntl(STDERR_FILENO, F_GETFD) >= 0 ? 0 : 1; }), 0);
}

/* Threads that share words of the table lose no registration to each other. */
TEST(Fork, TableIsWholeBetweenThreads) {
  const int first = 1000, perThread = 64;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++)
    threads.emplace_back([t] {
      for (int round = 0; round < 201; round++)
        for (int i = 0; i < perThread; i++) {
          int fd = first + i * 4 + t;
          round % 2 ? tuttiForkCloseRemove(fd) : tuttiForkCloseAdd(fd);
        }
    });
  for (auto &thread : threads)
    thread.join();
  int status = inChild([] {
    for (int i = 0; i < 4 * perThread; i++)
      if (dup2(STDERR_FILENO, first + i) != first + i) return 2;
    /* The child's own table is empty, so its child keeps what it has. */
    if (inChild([] { return fcntl(first, F_GETFD) >= 0 ? 0 : 1; }) != 0) return 3;
    return 0;
  });
  EXPECT_EQ(status, 0);
  for (int i = 0; i < 4 * perThread; i++)
    ASSERT_EQ(dup2(STDERR_FILENO, first + i), first + i);
  status = inChild([] {
    for (int i = 0; i < 4 * perThread; i++)
      if (fcntl(first + i, F_GETFD) >= 0) return 1;
    return 0;
  });
  EXPECT_EQ(status, 0);
  for (int i = 0; i < 4 * perThread; i++) {
    tuttiForkCloseRemove(first + i);
    close(first + i);
  }
}

TEST(Thread, WakesInTimeIfItAsksForThat) {
  int before = 0, after = 0;
  std::thread([&] {
    before = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    tuttiThreadWakesInTime();
    after = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
  }).join();
  EXPECT_EQ(1, after) << "ns";
  EXPECT_EQ(before, prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0)) << "that is the user's thread";
}

} // namespace

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <functional>
#include <thread>
#include <vector>

#include "base/host.h"
#include "base/settings.h"
#include "transport/remote.h"

namespace {

constexpr uint64_t kId = 0x1234567890abcdef;

/* A process that waits to be read, and dies with the test. */
class Child {
public:
  explicit Child(const std::function<void()> &wait = [] { pause(); }) {
    int ready[2];
    EXPECT_EQ(0, pipe(ready));
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (write(ready[1], "x", 1) == 1) wait();
      _exit(0);
    }
    char x;
    EXPECT_EQ(1, read(ready[0], &x, 1));
    close(ready[0]);
    close(ready[1]);
  }
  ~Child() { end(); }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    ended_ = pid_;
    pid_ = 0;
  }
  int pid() const { return pid_ ? pid_ : ended_; }

private:
  pid_t pid_ = 0, ended_ = 0;
};

/* What the kernel of this machine forbids altogether is not to be tested on it. */
class Remote : public ::testing::Test {
protected:
  void SetUp() override {
    remote = {child.pid(), 0, offered, kId};
    if (!tuttiRemoteReadable(&remote)) GTEST_SKIP() << "this kernel forbids process_vm_readv";
  }
  uint64_t offered = tuttiRemoteOffer(kId); /* before the fork: the child has it too */
  Child child;
  tuttiRemote remote;
};

TEST_F(Remote, ReadsAnotherProcess) {
  std::vector<uint8_t> bytes(100003);
  for (size_t i = 0; i < bytes.size(); i++)
    bytes[i] = (uint8_t)(i * 31 >> 3);
  std::vector<uint8_t> original = bytes, copy(bytes.size());
  Child later;
  remote.pid = later.pid();
  bytes.assign(bytes.size(), 0); // the child has its own
  EXPECT_EQ(0, tuttiRemoteRead(&remote, copy.data(), (uintptr_t)bytes.data(), copy.size()));
  EXPECT_EQ(original, copy);
}

TEST_F(Remote, BelievesOnlyTheProcessThatOffered) {
  uint8_t byte = 1, copy = 0;
  auto readable = [&](tuttiRemote other) {
    bool reads = tuttiRemoteRead(&other, &copy, (uintptr_t)&byte, 1) == 0;
    EXPECT_EQ(reads, tuttiRemoteReadable(&other));
    return reads;
  };
  EXPECT_TRUE(readable(remote));
  EXPECT_FALSE(readable({remote.pid, 0, remote.offer, kId + 1})) << "another process with this pid";
  EXPECT_FALSE(readable({remote.pid, 0, 0, kId}));
  EXPECT_FALSE(readable({remote.pid, 0, 8, kId})) << "an address that is not mapped";
  EXPECT_FALSE(readable({1, 0, remote.offer, kId}));
}

TEST_F(Remote, SaysWhyNot) {
  uint64_t words[1024];
  EXPECT_EQ(EFAULT, tuttiRemoteRead(&remote, words, 8, sizeof words));
  EXPECT_EQ(0, tuttiRemoteRead(&remote, words, remote.offer, 8));
  child.end();
  EXPECT_EQ(ESRCH, tuttiRemoteRead(&remote, words, remote.offer, 8));
}

TEST_F(Remote, ReadsAndWritesAProcessWhoseFirstThreadHasEnded) {
  uint64_t number = 5, copy = 0, other = 7;
  Child later([] {
    std::thread([] { pause(); }).detach();
    syscall(SYS_exit, 0); /* of this thread alone, without C++'s unwinding */
  });
  remote.pid = later.pid();
  for (int i = 0; i < 30000 && tuttiProcessState(later.pid()) != 'Z'; i++)
    usleep(1000);
  ASSERT_EQ('Z', tuttiProcessState(later.pid()));
  tuttiRemote known = remote;
  EXPECT_EQ(0, tuttiRemoteRead(&known, &copy, (uintptr_t)&number, sizeof copy));
  EXPECT_EQ(5u, copy);
  int thread = known.thread;
  EXPECT_NE(0, thread);
  EXPECT_EQ(0, tuttiRemoteWrite(&known, &other, (uintptr_t)&number, sizeof other));
  EXPECT_EQ(0, tuttiRemoteRead(&known, &copy, (uintptr_t)&number, sizeof copy));
  EXPECT_EQ(7u, copy);
  EXPECT_EQ(thread, known.thread) << "found once";
  EXPECT_TRUE(tuttiRemoteReadable(&remote)) << "by who looks for the first time";
  later.end();
  EXPECT_EQ(ESRCH, tuttiRemoteRead(&known, &copy, (uintptr_t)&number, sizeof copy));
}

TEST_F(Remote, ReportsAMappingThatEndsMidway) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  void *memory =
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(MAP_FAILED, memory);
  ASSERT_EQ(0, munmap((char *)memory + page, page));
  Child later;
  remote.pid = later.pid();
  std::vector<uint8_t> copy(2 * page);
  EXPECT_EQ(EFAULT, tuttiRemoteRead(&remote, copy.data(), (uintptr_t)memory, copy.size()));
  munmap(memory, page);
}

TEST_F(Remote, IsOffByItsSetting) {
  setenv("TUTTI_CMA_DISABLE", "1", 1);
  ASSERT_EQ(tuttiSuccess, tuttiSettingsLoad());
  EXPECT_EQ(0u, tuttiRemoteOffer(kId));
  EXPECT_TRUE(tuttiRemoteReadable(&remote)) << "what was offered before stays";
  unsetenv("TUTTI_CMA_DISABLE");
  ASSERT_EQ(tuttiSuccess, tuttiSettingsLoad());
}

TEST_F(Remote, AnUndumpableProcessOffersNothing) {
  ASSERT_EQ(0, prctl(PR_SET_DUMPABLE, 0));
  EXPECT_EQ(0u, tuttiRemoteOffer(kId));
  prctl(PR_SET_DUMPABLE, 1);
}

/* The order of magnitude, which is all that can be said of any machine. */
TEST_F(Remote, MeasuresWhatACopyTakesOnce) {
  EXPECT_EQ(0, tuttiRemoteMeasure(0, kId).call) << "a process that can't be read";
  uint64_t offer = tuttiRemoteOffer(kId);
  tuttiRemoteCost cost = tuttiRemoteMeasure(offer, kId);
  EXPECT_GT(cost.call, 0.01f);
  EXPECT_LT(cost.call, 1000);
  EXPECT_GT(cost.kib, 0.001f);
  EXPECT_LT(cost.kib, 100);
#if defined(__x86_64__)
  EXPECT_GT(cost.store, 0.001f);
#endif
  EXPECT_LT(cost.store, 100);
  tuttiRemoteCost again = tuttiRemoteMeasure(offer, kId);
  EXPECT_EQ(cost.call, again.call);
  EXPECT_EQ(cost.kib, again.kib);
  EXPECT_EQ(cost.store, again.store);
}

TEST(RemoteCost, IsANumberAndNoAge) {
  auto valid = [](float call, float kib, float store) {
    tuttiRemoteCost cost = {call, kib, store};
    return tuttiRemoteCostValid(&cost);
  };
  EXPECT_TRUE(valid(0, 0, 0));
  EXPECT_TRUE(valid(1.5f, 0.1f, 0.05f));
  EXPECT_FALSE(valid(-1, 0, 0));
  EXPECT_FALSE(valid(0, -1, 0));
  EXPECT_FALSE(valid(0, 0, -1));
  EXPECT_FALSE(valid(NAN, 0, 0));
  EXPECT_FALSE(valid(0, INFINITY, 0));
  EXPECT_FALSE(valid(0, 0, NAN));
}

} // namespace

/* Ranks as processes of their own: the test program, started anew for each, runs the same test up
 * to the same place. So a test may use the library before, and no rank is a forked child. */
#ifndef TUTTI_TESTS_PROCESSES_H_
#define TUTTI_TESTS_PROCESSES_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tutti.h"

/* What a rank tells the test, in memory they share. Stays zero where a rank says nothing. */
struct RankReport {
  pid_t pid;
  int stage; /* whatever the test counts; atomic */
  int result;
  int status; /* of waitpid; -1 while it runs */
  double seconds;
  size_t number;
  char text[1600];
};

class RankProcesses {
public:
  static constexpr int kMaxRanks = 64, kMaxIds = 128;

  RankProcesses() {
    const char *at = getenv("TUTTITEST_PROCESS");
    int fd = -1;
    if (at && sscanf(at, "%d %d", &self_, &fd) != 2) abort();
    if (!at) fd = memfd_create("reports", 0);
    if (fd < 0 || (!at && ftruncate(fd, sizeof(Shared)) != 0)) abort();
    void *p = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) abort();
    shared_ = (Shared *)p;
    fd_ = fd;
  }
  ~RankProcesses() {
    for (int r = 0; r < n_; r++)
      if (report(r).status < 0) {
        kill(report(r).pid, SIGKILL);
        waitpid(report(r).pid, nullptr, 0);
      }
    munmap(shared_, sizeof(Shared));
    close(fd_);
  }
  RankProcesses(const RankProcesses &) = delete;

  /* Starts processes 0 to n - 1, each of which calls body with its number and ends. */
  void start(int n, const std::function<void(int)> &body) {
    if (self_ >= 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      report(self_).pid = getpid();
      body(self_);
      fflush(nullptr);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    auto *info = testing::UnitTest::GetInstance()->current_test_info();
    std::string filter =
        std::string("--gtest_filter=") + info->test_suite_name() + "." + info->name();
    char exe[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", exe, sizeof exe - 1);
    ASSERT_GT(length, 0);
    exe[length] = 0;
    /* Or most of them would run no test at all. */
    for (const char *shards : {"GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX"})
      unsetenv(shards);
    for (n_ = 0; n_ < n; n_++) {
      report(n_).status = -1;
      std::string process = "TUTTITEST_PROCESS=" + std::to_string(n_) + " " + std::to_string(fd_);
      std::vector<char *> env;
      for (char **e = environ; *e; e++)
        env.push_back(*e);
      env.push_back(process.data());
      env.push_back(nullptr);
      char *argv[] = {exe, filter.data(), (char *)"--gtest_brief=1", nullptr};
      pid_t pid = vfork();
      if (pid == 0) {
        execve(exe, argv, env.data());
        _exit(127);
      }
      ASSERT_GT(pid, 0);
      report(n_).pid = pid;
    }
  }

  /* Waits for the ends of all that still run, at most `seconds`. */
  void waitAll(double seconds = 60) {
    auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    for (int r = 0; r < n_; r++) {
      while (report(r).status < 0 && waitpid(report(r).pid, &report(r).status, WNOHANG) == 0) {
        report(r).status = -1;
        ASSERT_LT(std::chrono::steady_clock::now(), end) << "rank " << r << " hangs";
        usleep(2000);
      }
    }
  }
  /* All that were not killed have come to the end of their body. */
  void expectCleanEnds() {
    for (int r = 0; r < n_; r++)
      EXPECT_EQ(report(r).status, 0) << "rank " << r << ": " << report(r).text;
  }
  void killRank(int r) {
    kill(report(r).pid, SIGKILL);
    waitpid(report(r).pid, &report(r).status, 0);
  }
  bool waitForStage(int r, int stage, double seconds = 60) {
    for (int i = 0; i < seconds * 500; i++) {
      if (__atomic_load_n(&report(r).stage, __ATOMIC_ACQUIRE) >= stage) return true;
      usleep(2000);
    }
    return false;
  }
  void setStage(int r, int stage) { __atomic_store_n(&report(r).stage, stage, __ATOMIC_RELEASE); }
  /* This process has come to `stage`, and waits until all n have. */
  bool meet(int n, int stage) {
    setStage(self_, stage);
    for (int r = 0; r < n; r++)
      if (!waitForStage(r, stage)) return false;
    return true;
  }

  RankReport &report(int r) { return shared_->reports[r]; }
  /* Process r has kept a failure. */
  bool told(int r) { return __atomic_load_n(&report(r).result, __ATOMIC_ACQUIRE) != tuttiSuccess; }
  /* The k-th unique id of the job: process 0 makes it, the others wait for it. */
  tuttiUniqueId id(int k = 0) {
    auto &slot = shared_->ids[k];
    if (self_ == 0) {
      EXPECT_EQ(tuttiGetUniqueId(&slot.id), tuttiSuccess) << tuttiGetLastError(nullptr);
      __atomic_store_n(&slot.made, 1, __ATOMIC_RELEASE);
    }
    for (int i = 0; i < 30000 && !__atomic_load_n(&slot.made, __ATOMIC_ACQUIRE); i++)
      usleep(1000);
    return slot.id;
  }
  /* The k-th unique id, which process 0 has made. */
  const tuttiUniqueId &madeId(int k = 0) { return shared_->ids[k].id; }
  /* Keeps what a call returned as this process's report. */
  tuttiResult_t keep(tuttiResult_t result, tuttiComm_t comm = nullptr) {
    report(self_).result = result;
    if (result != tuttiSuccess)
      snprintf(report(self_).text, sizeof report(self_).text, "%s", tuttiGetLastError(comm));
    return result;
  }

private:
  struct Shared {
    RankReport reports[kMaxRanks];
    struct {
      int made;
      tuttiUniqueId id;
    } ids[kMaxIds];
  };
  int self_ = -1, n_ = 0, fd_ = -1;
  Shared *shared_;
};

#endif

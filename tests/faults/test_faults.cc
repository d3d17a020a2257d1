/* Ranks as processes that die, stop or fork in mid-collective: the others end in time with an error
 * that names the culprit. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "comm/harness.h"
#include "port.h"

using testing::AllOf;
using testing::HasSubstr;

namespace {

/* What each rank process leaves behind, in memory shared with the test. */
struct Report {
  pid_t pid;
  pid_t child; /* of the rank, still alive when it dies */
  int rounds;
  int go;    /* from the test: see `gate` */
  int ended; /* from the test: nobody waits for it any more */
  int result;
  double failedAt; /* when its call failed */
  char text[1024];
};

constexpr int kRanks = 4;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Faults : public testing::TestWithParam<const char *> {
protected:
  void SetUp() override {
    reports = (Report *)mmap(nullptr, kRanks * sizeof(Report), PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(reports, MAP_FAILED);
  }
  void TearDown() override {
    for (int r = 0; r < kRanks; r++) {
      if (reports[r].child > 0) kill(reports[r].child, SIGKILL);
      if (reports[r].pid > 0) {
        kill(reports[r].pid, SIGKILL);
        waitpid(reports[r].pid, nullptr, 0);
      }
    }
    munmap(reports, kRanks * sizeof(Report));
  }

  /* Starts the ranks; each runs all-reduces of `count` floats until one fails. The unique id comes
   * from a port that rank 0 listens on, so this process never uses the library. */
  void start(size_t count, int timeoutMs, void (*inRank)(int, Report &) = nullptr) {
    std::string at = "127.0.0.1:" + std::to_string(held.number());
    for (int r = 0; r < kRanks; r++) {
      pid_t pid = fork();
      ASSERT_GE(pid, 0);
      if (pid == 0) {
        setenv("TUTTI_COMM_ID", at.c_str(), 1);
        if (*GetParam() != 'P') setenv("TUTTI_P2P_DISABLE", "1", 1);
        if (*GetParam() == 'N') setenv("TUTTI_SHM_DISABLE", "1", 1);
        rankMain(r, count, timeoutMs, inRank);
      }
      reports[r].pid = pid;
    }
  }

  [[noreturn]] void rankMain(int r, size_t count, int timeoutMs, void (*inRank)(int, Report &)) {
    tuttiUniqueId id;
    tuttiComm_t comm;
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.timeoutMs = timeoutMs;
    Report &report = reports[r];
    tuttiResult_t result = tuttiGetUniqueId(&id);
    if (result == tuttiSuccess) result = tuttiCommInitRankConfig(&comm, kRanks, id, r, &config);
    std::vector<float> x(count), y(gathers ? kRanks * count : count);
    if (result == tuttiSuccess && inRank) inRank(r, report);
    while (result == tuttiSuccess) {
      if (gate && r != 1 && report.rounds == gate) {
        for (int i = 0; i < 60000 && !__atomic_load_n(&report.go, __ATOMIC_ACQUIRE); i++)
          usleep(1000);
        setTimeout(comm, 3000);
      }
      float one = (float)(report.rounds % 1000 + 1), sum = gathers ? one : kRanks * one;
      std::fill(x.begin(), x.end(), one);
      result = gathers ? tuttiAllGather(x.data(), y.data(), count, tuttiFloat32, comm, nullptr)
                       : tuttiAllReduce(x.data(), y.data(), count, tuttiFloat32, tuttiSum, comm,
                                        nullptr);
      report.failedAt = now();
      __atomic_add_fetch(&report.rounds, 1, __ATOMIC_RELEASE);
      if (result == tuttiSuccess && std::count(y.begin(), y.end(), sum) != (ptrdiff_t)y.size())
        _exit(3);
    }
    snprintf(report.text, sizeof report.text, "%s", tuttiGetLastError(nullptr));
    __atomic_store_n(&report.result, (int)result, __ATOMIC_RELEASE);
    /* Who is late with the news would take the end of this rank for the fault. */
    for (int i = 0; i < 60000 && !allEnded(); i++)
      usleep(1000);
    _exit(0);
  }

  bool allEnded() {
    return std::all_of(reports, reports + kRanks, [](Report &report) {
      return __atomic_load_n(&report.ended, __ATOMIC_ACQUIRE) ||
             __atomic_load_n(&report.result, __ATOMIC_ACQUIRE) != tuttiSuccess;
    });
  }

  pid_t strike(int rank, int signal) {
    __atomic_store_n(&reports[rank].ended, 1, __ATOMIC_RELEASE);
    kill(reports[rank].pid, signal);
    return reports[rank].pid;
  }
  pid_t killRank(int rank) {
    pid_t dead = strike(rank, SIGKILL);
    waitpid(dead, nullptr, 0);
    reports[rank].pid = 0;
    return dead;
  }

  void waitForRounds(int rounds) {
    for (int r = 0; r < kRanks; r++)
      while (__atomic_load_n(&reports[r].rounds, __ATOMIC_ACQUIRE) < rounds) {
        ASSERT_EQ(__atomic_load_n(&reports[r].result, __ATOMIC_ACQUIRE), 0) << reports[r].text;
        siginfo_t end = {};
        ASSERT_EQ(waitid(P_PID, (id_t)reports[r].pid, &end, WEXITED | WNOHANG | WNOWAIT), 0);
        ASSERT_EQ(end.si_pid, 0) << "rank " << r << " ended with status " << end.si_status;
        usleep(1000);
      }
  }

  /* Waits for the ends of all ranks but `except`. */
  void waitForEnds(int except) {
    for (int r = 0; r < kRanks; r++) {
      if (r == except) continue;
      int status;
      ASSERT_EQ(waitpid(reports[r].pid, &status, 0), reports[r].pid);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << "rank " << r << " status " << status;
      reports[r].pid = 0;
    }
  }

  /* How long the others took to fail. */
  void killOnce(int rank, size_t count, double *seconds) {
    memset((void *)reports, 0, kRanks * sizeof(Report));
    start(count, 60000);
    ASSERT_NO_FATAL_FAILURE(waitForRounds(3));
    double killedAt = now();
    pid_t dead = killRank(rank);
    ASSERT_NO_FATAL_FAILURE(waitForEnds(rank));
    *seconds = 0;
    for (int r = 0; r < kRanks; r++) {
      if (r == rank) continue;
      EXPECT_EQ(reports[r].result, tuttiRemoteError) << r << ": " << reports[r].text;
      EXPECT_THAT(reports[r].text, AllOf(HasSubstr("rank " + std::to_string(rank) + " (host "),
                                         HasSubstr("pid " + std::to_string(dead))));
      *seconds = std::max(*seconds, reports[r].failedAt - killedAt);
    }
  }

  /* A process may stand still for a while; who waits for a deadline does so every time. */
  void killOne(int rank, size_t count) {
    double seconds = 5;
    for (int i = 0; i < 3 && seconds >= 5; i++)
      ASSERT_NO_FATAL_FAILURE(killOnce(rank, count, &seconds));
    EXPECT_LT(seconds, 5) << "the bound that the documentation promises";
  }

  HeldPort held;
  Report *reports;
  bool gathers = false; /* instead of all-reduces */
  int gate = 0; /* after so many rounds all but rank 1 wait for the test, then have 3 s for each */
};

/* Set in the ranks that are started while it lives. */
class ScopedEnvironment {
public:
  ScopedEnvironment(const char *name, const char *value) : name_(name) { setenv(name, value, 1); }
  ~ScopedEnvironment() { unsetenv(name_); }

private:
  const char *name_;
};

std::string naming(int rank) {
  return "rank " + std::to_string(rank) + " (host ";
}

TEST_P(Faults, KilledRank) {
  for (size_t count : {4, 1 << 20})
    ASSERT_NO_FATAL_FAILURE(killOne(2, count));
}

/* Others may be copying out of the dead process, or waiting for what they lent to it. */
TEST_P(Faults, KilledInLargeGathers) {
  gathers = true;
  for (int dead : {0, 2})
    ASSERT_NO_FATAL_FAILURE(killOne(dead, 1 << 16));
}

TEST_P(Faults, TwoKilledRanks) {
  start(1 << 18, 60000);
  waitForRounds(2);
  strike(0, SIGKILL);
  killRank(2);
  for (int r : {1, 3}) {
    int status;
    ASSERT_EQ(waitpid(reports[r].pid, &status, 0), reports[r].pid);
    reports[r].pid = 0;
    EXPECT_EQ(reports[r].result, tuttiRemoteError) << reports[r].text;
    EXPECT_THAT(reports[r].text, testing::AnyOf(HasSubstr("rank 0"), HasSubstr("rank 2")));
  }
}

/* Its kernel goes on answering, so it is no host that is lost, and it may come back: the others
 * wait for it as long as for any rank that is late, whatever TUTTI_WATCH_SILENCE is. */
TEST_P(Faults, StoppedRank) {
  ScopedEnvironment silence("TUTTI_WATCH_SILENCE", "1");
  gate = 3;
  start(1 << 16, 60000);
  ASSERT_NO_FATAL_FAILURE(waitForRounds(gate));
  pid_t stopped = strike(1, SIGSTOP);
  ASSERT_EQ(waitpid(stopped, nullptr, WUNTRACED), stopped);
  for (int r : {0, 2, 3})
    __atomic_store_n(&reports[r].go, 1, __ATOMIC_RELEASE);
  waitForEnds(1);
  for (int r : {0, 2, 3}) {
    EXPECT_EQ(reports[r].result, tuttiTimeout) << reports[r].text;
    EXPECT_THAT(reports[r].text, AllOf(HasSubstr(naming(1)), HasSubstr("does not answer"),
                                       HasSubstr("pid " + std::to_string(stopped)),
                                       HasSubstr("AllReduce(count 65536")))
        << r;
  }
}

/* For less than TUTTI_WATCH_SILENCE, and for longer than it and than the log waits to tell of hosts
 * that are silent. */
TEST_P(Faults, StoppedRankThatIsContinued) {
  ScopedEnvironment silence("TUTTI_WATCH_SILENCE", "1");
  start(1 << 16, 60000);
  ASSERT_NO_FATAL_FAILURE(waitForRounds(3));
  for (int ms : {400, 4500}) {
    ASSERT_EQ(kill(reports[1].pid, SIGSTOP), 0);
    ASSERT_EQ(waitpid(reports[1].pid, nullptr, WUNTRACED), reports[1].pid);
    usleep((useconds_t)ms * 1000); /* the time is the subject */
    int rounds = __atomic_load_n(&reports[1].rounds, __ATOMIC_ACQUIRE);
    ASSERT_EQ(kill(reports[1].pid, SIGCONT), 0);
    ASSERT_NO_FATAL_FAILURE(waitForRounds(rounds + 10));
  }
}

/* A child that lives on holds copies of all descriptors; the parent's death is seen all the same.
 */
TEST_P(Faults, KilledRankWithLivingChild) {
  start(1 << 16, 60000, [](int r, Report &report) {
    if (r != 3) return;
    pid_t child = fork();
    if (child != 0) {
      report.child = child;
      return;
    }
    for (int i = 0; i < 300; i++)
      usleep(100000); /* the test ends it before */
    _exit(0);
  });
  ASSERT_NO_FATAL_FAILURE(waitForRounds(3));
  pid_t dead = killRank(3);
  waitForEnds(3);
  for (int r : {0, 1, 2}) {
    EXPECT_EQ(reports[r].result, tuttiRemoteError) << reports[r].text;
    EXPECT_THAT(reports[r].text, HasSubstr("pid " + std::to_string(dead)));
  }
}

bool forkedChild; /* this process is one */

/* Children may exit or exec without harm to the parent, and are told that they may do no more. */
TEST_P(Faults, ForkedChildrenDoNoHarm) {
  start(1 << 14, 60000, [](int r, Report &) {
    if (r % 2) return;
    void *ours = nullptr;
    if (tuttiMemAlloc(&ours, 4096) != tuttiSuccess) _exit(5);
    for (int i = 0; i < 3; i++) {
      pid_t pid = fork();
      if (pid == 0) {
        forkedChild = true;
        if (i == 0) exit(0); /* with all exit handlers */
        if (i == 1) execl("/bin/true", "true", (char *)nullptr);
        tuttiUniqueId id;
        bool told = tuttiGetUniqueId(&id) == tuttiInvalidUsage &&
                    strstr(tuttiGetLastError(nullptr), "forked") != nullptr &&
                    tuttiMemAlloc(&ours, 4096) == tuttiInvalidUsage &&
                    tuttiMemFree(ours) == tuttiInvalidUsage;
        _exit(told ? 0 : 1);
      }
      int status = -1;
      waitpid(pid, &status, 0);
      if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) _exit(4);
    }
    if (tuttiMemFree(ours) != tuttiSuccess) _exit(6);
  });
  waitForRounds(20);
  for (int r = 0; r < kRanks; r++)
    EXPECT_EQ(reports[r].result, 0) << reports[r].text;
}

INSTANTIATE_TEST_SUITE_P(Transports, Faults, testing::Values("SHM", "NET"),
                         [](auto &info) { return std::string(info.param); });

} // namespace

#if defined(__SANITIZE_ADDRESS__)
/* LeakSanitizer asks. Its check at a forked child's exit waits for ever if another thread of the
 * parent held a lock of the sanitizer's allocator at the fork. */
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off() { // NOLINT
  return forkedChild;
}
#endif

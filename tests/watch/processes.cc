// The watch between processes that are killed and stopped. Each rank is a child that the test talks
// to over a socket of packets.
#include <gmock/gmock.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include <algorithm>

#include "base/settings.h"
#include "watch/ring.h"

namespace watchtest {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kPatienceMs = 60000;

// One packet, "" at the end or when nothing comes.
std::string receive(int fd, int ms = kPatienceMs) {
  char packet[4096];
  pollfd p = {fd, POLLIN, 0};
  if (poll(&p, 1, ms) != 1) return "";
  ssize_t got = recv(fd, packet, sizeof(packet), 0);
  return got > 0 ? std::string(packet, (size_t)got) : "";
}

void say(int fd, const std::string &packet) {
  send(fd, packet.data(), packet.size(), MSG_NOSIGNAL);
}

// What a child does: carries out orders and tells the failure that it hears of, until the order to
// leave or the end of its parent.
class RankProcess {
public:
  RankProcess(Ring &ring, int rank, int fd) : ring_(ring), rank_(rank), fd_(fd) {}

  void run() {
    if (ring_.tryStart(rank_) != tuttiSuccess) {
      say(fd_, std::string("cannot start: ") + tuttiErrorText());
      return;
    }
    say(fd_, "up");
    bool told = false;
    for (;;) {
      pollfd p = {fd_, POLLIN, 0};
      if (poll(&p, 1, 10) == 1 && !obey(receive(fd_))) return;
      if (!told && ring_.owner(rank_).failures() > 0) {
        told = true;
        say(fd_, "failed: " + ring_.owner(rank_).waitFailed());
      }
    }
  }

private:
  bool obey(const std::string &order) {
    if (order == "ask") {
      say(fd_, lines(ring_.ask(rank_)));
    } else if (order == "ask around one") {
      say(fd_, lines(askAroundOne()));
    } else if (order == "fork") {
      pid_t child = fork();
      if (child == 0) {
        for (;;)
          pause();
      }
      say(fd_, std::to_string(child));
    } else {
      ring_.stop(rank_);
      say(fd_, "left");
      return false;
    }
    return true;
  }

  // One rank never answers, and others may be late: asks until it is the only one.
  std::vector<tuttiWatchAnswer> askAroundOne() {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    for (;;) {
      std::vector<tuttiWatchAnswer> answers = ring_.ask(rank_, 1500);
      auto silent = std::count_if(answers.begin(), answers.end(),
                                  [](const tuttiWatchAnswer &a) { return a.answered != 1; });
      if (silent <= 1 || std::chrono::steady_clock::now() > end) return answers;
    }
  }
  // One line for each rank: who answered for it, and its state.
  static std::string lines(const std::vector<tuttiWatchAnswer> &answers) {
    std::string lines;
    for (const tuttiWatchAnswer &answer : answers)
      lines += std::to_string(answer.answered) + " " + text(answer) + "\n";
    return lines;
  }

  Ring &ring_;
  int rank_, fd_;
};

class Fleet {
public:
  explicit Fleet(int n) : ring_(n), pids_(n, -1), fds_(n, -1) {
    for (int r = 0; r < n; r++)
      spawn(r);
    for (int r = 0; r < n; r++)
      ring_.closeSockets(r);
    const std::string pids((const char *)pids_.data(), sizeof(pid_t) * pids_.size());
    for (int r = 0; r < n; r++) {
      say(fds_[r], pids); // the children wait for all of them
      EXPECT_EQ(receive(fds_[r]), "up") << "rank " << r;
    }
  }
  ~Fleet() {
    for (size_t r = 0; r < pids_.size(); r++) {
      close(fds_[r]);
      if (pids_[r] < 0) continue;
      kill(pids_[r], SIGKILL);
      waitpid(pids_[r], nullptr, 0);
    }
  }
  void signalRank(int r, int signal) { EXPECT_EQ(kill(pids_[r], signal), 0); }
  void order(int r, const std::string &what) { say(fds_[r], what); }
  std::string hear(int r) { return receive(fds_[r]); }
  // Stops the rank and waits until the kernel says so.
  void freeze(int r) {
    signalRank(r, SIGSTOP);
    waitpid(pids_[r], nullptr, WUNTRACED);
  }
  std::string death(int r) const {
    return "rank " + std::to_string(r) + " (host host" + std::to_string(r) + ", pid " +
           std::to_string(pids_[r]) + ") died";
  }

private:
  void spawn(int r) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      close(pair[0]);
      for (int fd : fds_)
        if (fd >= 0) close(fd);
      for (int other = 0; other < ring_.size(); other++)
        if (other != r) ring_.closeSockets(other);
      std::string pids = receive(pair[1]);
      for (int other = 0; other < ring_.size(); other++)
        memcpy(&ring_.who()[other].pid, pids.data() + sizeof(pid_t) * (size_t)other, sizeof(pid_t));
      RankProcess(ring_, r, pair[1]).run();
      _exit(0);
    }
    close(pair[1]);
    pids_[r] = pid;
    fds_[r] = pair[0];
  }

  Ring ring_;
  std::vector<pid_t> pids_;
  std::vector<int> fds_;
};

TEST(WatchProcesses, AKilledRankIsNamedToEverySurvivor) {
  for (int n : {2, 3, 7}) {
    Fleet fleet(n);
    fleet.signalRank(1, SIGKILL);
    for (int r = 0; r < n; r += r == 0 ? 2 : 1)
      EXPECT_THAT(fleet.hear(r), HasSubstr(fleet.death(1))) << "told to rank " << r;
  }
}

TEST(WatchProcesses, SeveralKilledAtOnce) {
  Fleet fleet(8);
  for (int r : {1, 4, 5})
    fleet.signalRank(r, SIGKILL);
  for (int r : {0, 2, 3, 6, 7})
    EXPECT_THAT(fleet.hear(r), AnyOf(HasSubstr(fleet.death(1)), HasSubstr(fleet.death(4)),
                                     HasSubstr(fleet.death(5))));
}

TEST(WatchProcesses, AStoppedRankIsNoDeathAndItsNeighboursKnowItsState) {
  Fleet fleet(4);
  fleet.order(3, "ask");
  EXPECT_EQ(fleet.hear(3), "1 state of 0\n1 state of 1\n1 state of 2\n1 state of 3\n");
  fleet.freeze(1);
  for (int asker : {0, 3}) { // a neighbour of it, and another
    fleet.order(asker, "ask around one");
    EXPECT_EQ(fleet.hear(asker), "1 state of 0\n2 state of 1\n1 state of 2\n1 state of 3\n");
  }
  fleet.signalRank(1, SIGCONT);
  fleet.order(3, "ask");
  EXPECT_EQ(fleet.hear(3), "1 state of 0\n1 state of 1\n1 state of 2\n1 state of 3\n");
  for (int r = 0; r < 4; r++) {
    fleet.order(r, "leave");
    EXPECT_EQ(fleet.hear(r), "left"); // and nothing about a failure before it
  }
}

TEST(WatchProcesses, LeavingNeedsNoPeerAndIsReadLater) {
  Fleet fleet(3);
  fleet.freeze(1);
  for (int r : {0, 2}) {
    fleet.order(r, "leave");
    EXPECT_EQ(fleet.hear(r), "left");
  }
  fleet.signalRank(1, SIGCONT);
  fleet.order(1, "ask");
  EXPECT_THAT(fleet.hear(1), HasSubstr("1 state of 1\n"));
  fleet.order(1, "leave");
  EXPECT_EQ(fleet.hear(1), "left");
}

TEST(WatchProcesses, AForkedChildDoesNotHideTheDeathOfItsParent) {
  Fleet fleet(3);
  fleet.order(1, "fork");
  pid_t child = std::stoi(fleet.hear(1));
  fleet.signalRank(1, SIGKILL);
  for (int r : {0, 2})
    EXPECT_THAT(fleet.hear(r), HasSubstr(fleet.death(1)));
  EXPECT_EQ(kill(child, SIGKILL), 0); // it lived all the while
}

const char kNoNamespaces[] = "no network namespaces here";

// Runs `body` in a child within a network namespace of its own, whose only interface is loopback.
// Returns what it says; kNoNamespaces where these are not to be had.
std::string inNetworkNamespace(void (*body)(int fd)) {
  int pair[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  pid_t pid = fork();
  if (pid == 0) {
    close(pair[0]);
    if (unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0)
      body(pair[1]);
    else
      say(pair[1], kNoNamespaces);
    _exit(0);
  }
  close(pair[1]);
  std::string said = receive(pair[0]);
  close(pair[0]);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  return said;
}

void setLoopback(bool up) {
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request = {};
  strcpy(request.ifr_name, "lo");
  ioctl(fd, SIOCGIFFLAGS, &request);
  request.ifr_flags = (short)(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
  ioctl(fd, SIOCSIFFLAGS, &request);
  close(fd);
}

// For the child of a test: the settings in force from now on.
void set(const char *name, const char *value) {
  setenv(name, value, 1);
  EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess);
}

TEST(WatchProcesses, ALostNetworkIsNamedWithItsInterface) {
  std::string said = inNetworkNamespace([](int fd) {
    set("TUTTI_WATCH_SILENCE", "1");
    setLoopback(true);
    Ring ring(2);
    ring.startAll();
    ring.ask(0);
    setLoopback(false);
    say(fd, ring.owner(0).waitFailed());
  });
  if (said == kNoNamespaces) GTEST_SKIP() << said;
  EXPECT_THAT(said, HasSubstr("lost contact with rank 1 (host host1, pid 1001)"));
  EXPECT_THAT(said, HasSubstr("over lo (127.0.0.1, down)"));
}

// Longer than the log waits to tell: the job goes on, and what fails afterwards is told.
TEST(WatchProcesses, AnOutageThatEndsInTimeIsNoFailure) {
  std::string said = inNetworkNamespace([](int fd) {
    int log[2];
    if (pipe(log) != 0) return;
    set("TUTTI_DEBUG_FILE", ("/proc/self/fd/" + std::to_string(log[1])).c_str());
    set("TUTTI_DEBUG", "WARN");
    setLoopback(true);
    Ring ring(2);
    ring.startAll();
    ring.ask(0);
    setLoopback(false);
    std::string all;
    char buffer[4096];
    while (all.find("TUTTI_WATCH_SILENCE") == std::string::npos) {
      pollfd p = {log[0], POLLIN, 0};
      if (poll(&p, 1, 20000) != 1) break;
      all.append(buffer, (size_t)read(log[0], buffer, sizeof(buffer)));
    }
    setLoopback(true);
    int before = ring.owner(0).failures() + ring.owner(1).failures();
    tuttiWatchFail(ring.at(0).watch, tuttiInvalidUsage, "told after the outage");
    std::string heard = ring.owner(1).waitFailed();
    say(fd, "failures before: " + std::to_string(before) + "; heard: " + heard + "; log: " + all);
  });
  if (said == kNoNamespaces) GTEST_SKIP() << said;
  EXPECT_THAT(said, HasSubstr("failures before: 0; heard: told after the outage"));
  EXPECT_THAT(said, HasSubstr("is taken for lost after 30 s"));
}

} // namespace
} // namespace watchtest

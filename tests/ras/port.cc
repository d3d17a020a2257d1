/* The RAS port of a running job: what NCCL's client asks, and clients that mean no good. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/os.h"
#include "ras/job.h"

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

namespace {

constexpr int kPair = 2;

class Port : public testing::Test {
protected:
  void SetUp() override {
    const char *given = getenv("TUTTITEST_RAS"); /* of the test, in its ranks */
    if (!given) setenv("TUTTITEST_RAS", std::to_string(held_.number()).c_str(), 1);
    port_ = atoi(getenv("TUTTITEST_RAS"));
    setenv("TUTTI_RAS_ADDR", ("127.0.0.1:" + std::to_string(port_)).c_str(), 1);
  }
  void TearDown() override {
    unsetenv("TUTTITEST_RAS");
    unsetenv("TUTTI_RAS_ADDR");
  }

  /* Ranks that sum without end. */
  void start() {
    job.start(kPair, [this](int r) {
      tuttiComm_t comm;
      float x = 1, y = 0;
      tuttiUniqueId id = job.id();
      if (job.keep(tuttiCommInitRank(&comm, kPair, id, r)) != tuttiSuccess) return;
      while (job.keep(tuttiAllReduce(&x, &y, 1, tuttiFloat32, tuttiSum, comm, nullptr)) ==
             tuttiSuccess) {
        __atomic_add_fetch(&job.report(r).number, 1, __ATOMIC_RELEASE);
        job.setStage(r, 1);
        usleep(1000);
      }
    });
    for (int r = 0; r < kPair; r++)
      ASSERT_TRUE(job.waitForStage(r, 1)) << job.report(r).text;
  }

  int connectTo() const {
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_port = htons((uint16_t)port_);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    timeval patience = {30, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(fd, (sockaddr *)&at, sizeof at) == 0) return fd;
    close(fd);
    return -1;
  }
  /* What comes until the other side closes. */
  static std::string rest(int fd) {
    std::string all;
    char buffer[4096];
    ssize_t n;
    while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0)
      all.append(buffer, (size_t)n);
    return all;
  }
  std::string ask(const std::string &lines) const {
    int fd = connectTo();
    if (fd < 0) return "no connection";
    EXPECT_EQ(send(fd, lines.data(), lines.size(), MSG_NOSIGNAL), (ssize_t)lines.size());
    std::string all = rest(fd);
    close(fd);
    return all;
  }
  size_t rounds(int r) { return __atomic_load_n(&job.report(r).number, __ATOMIC_ACQUIRE); }
  bool goesOn() {
    size_t before[kPair];
    for (int r = 0; r < kPair; r++)
      before[r] = rounds(r);
    for (int i = 0; i < 30000; i++) {
      if (rounds(0) > before[0] + 10 && rounds(1) > before[1] + 10) return true;
      usleep(1000);
    }
    return false;
  }
  /* KiB of memory in use by the ranks. */
  long resident() {
    long all = 0;
    for (int r = 0; r < kPair; r++) {
      std::ifstream statm("/proc/" + std::to_string(job.report(r).pid) + "/statm");
      long size = 0, pages = 0;
      statm >> size >> pages;
      all += pages * 4;
    }
    return all;
  }

  /* Descriptors of a rank. */
  int files(int r) {
    std::error_code gone;
    std::filesystem::directory_iterator at("/proc/" + std::to_string(job.report(r).pid) + "/fd",
                                           gone);
    return (int)std::distance(at, {});
  }
  /* Of the rank that has most of them beyond what it had. */
  int filesMore(const int *before) {
    int most = 0;
    for (int r = 0; r < kPair; r++)
      most = std::max(most, files(r) - before[r]);
    return most;
  }
  /* So many that call at once, by turns to say nothing, to ask and not read, a line without end,
   * and what is no line at all; their sockets. */
  std::vector<int> crowd(int n) const {
    const std::string said[] = {"", "verbose status\n", std::string(4096, 'a'), "\x01\n\xff\n\n"};
    std::vector<int> fds;
    for (int i = 0; i < n; i++) {
      int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), small = 1;
      sockaddr_in at = {};
      at.sin_family = AF_INET;
      at.sin_port = htons((uint16_t)port_);
      at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
      (void)!connect(fd, (sockaddr *)&at, sizeof at);
      (void)!send(fd, said[i % 4].data(), said[i % 4].size(), MSG_NOSIGNAL);
      fds.push_back(fd);
    }
    return fds;
  }

  HeldPort held_;
  int port_ = 0;
  RankProcesses job;
};

TEST_F(Port, TellsTheVersionThatLibncclReports) {
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_THAT(ask("set format json\nstatus\n"), HasSubstr("\"nccl_version\": \"2.32.3\""));
}

TEST_F(Port, TellsTheVersionThatIsSet) {
  setenv("TUTTI_NCCL_VERSION", "2.30.4", 1);
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_THAT(ask("set format json\nstatus\n"), HasSubstr("\"nccl_version\": \"2.30.4\""));
  unsetenv("TUTTI_NCCL_VERSION");
}

TEST_F(Port, SpeaksNcclsProtocol) {
  ASSERT_NO_FATAL_FAILURE(start());
  std::string json = ask("CLIENT PROTOCOL 2\r\nTIMEOUT 3\nset format json\nverbose status\n");
  EXPECT_THAT(json, testing::StartsWith("SERVER PROTOCOL 2\nOK\nOK\n{"));
  for (const char *key : {"nccl_version",
                          "cuda_runtime_version",
                          "cuda_driver_version",
                          "timestamp",
                          "communicators_count",
                          "communicators",
                          "hash",
                          "secondary_hash",
                          "size",
                          "ranks_count",
                          "missing_ranks_count",
                          "ranks",
                          "rank",
                          "host",
                          "pid",
                          "cuda_dev",
                          "nvml_dev",
                          "status",
                          "init_state",
                          "async_error",
                          "finalize_called",
                          "destroy_flag",
                          "abort_flag",
                          "collective_counts",
                          "missing_ranks",
                          "ras",
                          "collection_time_sec",
                          "timeouts_count"})
    EXPECT_THAT(json, HasSubstr("\"" + std::string(key) + "\": ")) << key;
  EXPECT_THAT(json, HasSubstr("\"ranks_count\": 2,"));
  EXPECT_THAT(json, HasSubstr("\"missing_ranks_count\": 0,"));
  EXPECT_THAT(json, HasSubstr("\"pid\": " + std::to_string(job.report(1).pid) + ","));
  EXPECT_THAT(json, ContainsRegex("\"AllReduce\": [1-9]"));
  std::string text = ask("status\n");
  EXPECT_THAT(text, testing::StartsWith("communicator "));
  EXPECT_THAT(text, HasSubstr("rank 1 (host "));
  EXPECT_THAT(ask("prometheus\n"),
              ContainsRegex("tutti_operations_total.*rank=\"1\".*collective=\"AllReduce\"} [1-9]"));
  EXPECT_THAT(ask("trace\n"), HasSubstr("\"traceEvents\": ["));
  EXPECT_TRUE(goesOn());
}

TEST_F(Port, AStoppedRankIsMissing) {
  ASSERT_NO_FATAL_FAILURE(start());
  int status;
  kill(job.report(1).pid, SIGSTOP);
  /* All of its threads: one that has yet to stop might say half an answer. */
  ASSERT_EQ(waitpid(job.report(1).pid, &status, WUNTRACED), job.report(1).pid);
  ASSERT_TRUE(WIFSTOPPED(status));
  std::string json; /* the port is held by both: the one that is stopped answers nothing */
  for (int i = 0; i < 100 && json.empty(); i++) {
    int fd = connectTo();
    ASSERT_GE(fd, 0);
    timeval patience = {0, 200000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    char hello[64];
    send(fd, "client protocol 2\n", 18, MSG_NOSIGNAL);
    if (recv(fd, hello, sizeof hello, 0) > 0) {
      patience = {30, 0};
      setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
      send(fd, "set format json\nstatus\n", 23, MSG_NOSIGNAL);
      json = rest(fd);
    }
    close(fd);
  }
  EXPECT_THAT(json, HasSubstr("\"missing_ranks_count\": 1,"));
  EXPECT_THAT(json, ContainsRegex("\"unresponsive\": true"));
  kill(job.report(1).pid, SIGCONT);
  EXPECT_TRUE(goesOn());
}

TEST_F(Port, GarbageAndEndlessLinesAreSentAway) {
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_THAT(ask(std::string(100000, 'a')), HasSubstr("ERROR: Line too long"));
  EXPECT_THAT(ask("\x01\x02\xff\nstatus\n"), HasSubstr("ERROR: Unknown command"));
  EXPECT_TRUE(goesOn());
}

TEST_F(Port, ManyConnectionsAndLazyReadersHarmNobody) {
  ASSERT_NO_FATAL_FAILURE(start());
  rlimit files = {4096, 4096};
  setrlimit(RLIMIT_NOFILE, &files);
  EXPECT_THAT(ask("status\n"), HasSubstr("communicator "));
  long before = resident();
  std::vector<int> idle, slow;
  for (int i = 0; i < 1000; i++) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_port = htons((uint16_t)port_);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int small = 1;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    (void)!connect(fd, (sockaddr *)&at, sizeof at);
    if (i % 2) (void)!send(fd, "status\n", 7, MSG_NOSIGNAL);
    (i % 2 ? slow : idle).push_back(fd);
  }
  EXPECT_TRUE(goesOn());
  std::string text;
  for (int i = 0; i < 100 && text.find("communicator ") == std::string::npos; i++)
    text = ask("status\n");
  EXPECT_THAT(text, HasSubstr("communicator ")) << "nobody else is answered";
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) /* they keep what is freed */
  EXPECT_LT(resident() - before, 16 * 1024) << "KiB more";
#else
  (void)before;
#endif
  for (int fd : idle)
    close(fd);
  for (int fd : slow)
    close(fd);
  EXPECT_TRUE(goesOn());
}

/* Whoever asks on and on and reads nothing of it is sent away before its answers fill the memory.
 */
TEST_F(Port, WhoAsksAndNeverReadsIsSentAway) {
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_THAT(ask("status\n"), HasSubstr("communicator "));
  int fd = connectTo(), small = 1;
  ASSERT_GE(fd, 0);
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  timeval patience = {1, 0}; /* it is read at leisure */
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  long before = resident();
  std::string lines(4096, '\n');
  bool sentAway = false;
  for (uint64_t end = tuttiDeadline(60000); !sentAway && tuttiNow() < end;)
    sentAway = send(fd, lines.data(), lines.size(), MSG_NOSIGNAL) < 0 && errno != EAGAIN;
  EXPECT_TRUE(sentAway);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) /* they keep what is freed */
  EXPECT_LT(resident() - before, 16 * 1024) << "KiB more";
#else
  (void)before;
#endif
  close(fd);
  EXPECT_TRUE(goesOn());
}

/* Few are served at once, and nothing of them stays. */
TEST_F(Port, ManyClientsLeaveNothingBehind) {
  constexpr int kServed = 16, kOwn = 8; /* what a rank takes to ask the others, for a while */
  ASSERT_NO_FATAL_FAILURE(start());
  rlimit limit = {4096, 4096};
  setrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_THAT(ask("status\n"), HasSubstr("communicator "));
  int before[kPair];
  for (int r = 0; r < kPair; r++)
    before[r] = files(r);
  long first = 0, last = 0;
  for (int round = 0; round < 4; round++) {
    std::vector<int> fds = crowd(1000);
    for (int i = 0; i < 50; i++) {
      EXPECT_LE(filesMore(before), kServed + kOwn);
      usleep(10000);
    }
    for (int fd : fds)
      close(fd);
    for (int i = 0; i < 3000 && filesMore(before) > 0; i++)
      usleep(10000);
    EXPECT_EQ(filesMore(before), 0) << "descriptors stay";
    last = resident();
    if (round == 0) first = last; /* what is made once is there */
  }
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) /* they keep what is freed */
  EXPECT_LT(last - first, 1024) << "KiB more with each round";
#endif
  EXPECT_TRUE(goesOn());
}

TEST_F(Port, CanBeSwitchedOff) {
  setenv("TUTTI_RAS_ENABLE", "0", 1);
  start();
  unsetenv("TUTTI_RAS_ENABLE");
  if (HasFatalFailure()) return;
  EXPECT_EQ(ask("status\n"), "no connection");
}

} // namespace

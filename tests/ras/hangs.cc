/* Each way in which a job hangs, by each transport: the verdict names it. */
#include <dlfcn.h>
#include <linux/filter.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <thread>
#include <tuple>

#include "ras/job.h"

using rastest::expectVerdict;
using rastest::jobName;
using rastest::kRanks;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

namespace {

constexpr int kGood = 2;      /* operations of all ranks before the one that hangs */
constexpr int kCulprit = 1;   /* the rank that is to blame */
constexpr size_t kCount = 64; /* elements */

struct Hang {
  const char *name;
  /* What the culprit does instead of the all-reduce of the others. */
  std::function<void(tuttiComm_t)> instead;
  int signal; /* that the culprit gets, when the others wait; 0: none */
  tuttiVerdictKind kind;
  std::vector<const char *> says;
};

float in[8 * kCount], out[8 * kCount];

void reduce(tuttiComm_t comm, size_t count) {
  tuttiAllReduce(in, out, count, tuttiFloat32, tuttiSum, comm, nullptr);
}

void reduceTo(tuttiComm_t comm, int root) {
  tuttiReduce(in, out, kCount, tuttiFloat32, tuttiSum, root, comm, nullptr);
}

void nothing(tuttiComm_t) {}

const Hang kHangs[] = {
    {"Missing",
     nothing,
     0,
     tuttiVerdictMissing,
     {"2 ranks wait, the longest", "in #3 AllReduce(count 64, float32, sum)", "rank 1 (host ",
      "answers but has not called it yet; it last finished #2 AllReduce"}},
    {"OtherCollective",
     [](tuttiComm_t c) { tuttiBroadcast(in, out, kCount, tuttiFloat32, 0, c, nullptr); },
     0,
     tuttiVerdictFailed,
     {"ranks disagree on an operation", "#3 AllReduce(count 64, float32, sum)",
      "#3 Broadcast(count 64, float32, root 0)"}},
    {"OtherSize",
     [](tuttiComm_t c) { reduce(c, kCount + 1); },
     0,
     tuttiVerdictFailed,
     {"ranks disagree on an operation", "#3 AllReduce(count 64, float32, sum)",
      "#3 AllReduce(count 65, float32, sum)"}},
    {"OtherType",
     [](tuttiComm_t c) { tuttiAllReduce(in, out, kCount, tuttiInt32, tuttiSum, c, nullptr); },
     0,
     tuttiVerdictFailed,
     {"ranks disagree on an operation", "#3 AllReduce(count 64, int32, sum)"}},
    {"OtherOperator",
     [](tuttiComm_t c) { tuttiAllReduce(in, out, kCount, tuttiFloat32, tuttiMax, c, nullptr); },
     0,
     tuttiVerdictFailed,
     {"ranks disagree on an operation", "#3 AllReduce(count 64, float32, max)"}},
    {"OtherRoot",
     [](tuttiComm_t c) { reduceTo(c, 1); },
     0,
     tuttiVerdictFailed,
     {"ranks disagree on an operation", "#3 Reduce(count 64, float32, sum, root 0)",
      "#3 Reduce(count 64, float32, sum, root 1)"}},
    {"Dead", nothing, SIGKILL, tuttiVerdictDead, {"rank 1 (host ", "died"}},
    {"Stopped",
     nothing,
     SIGSTOP,
     tuttiVerdictStopped,
     {"2 ranks wait, the longest", "rank 1 (host ", "does not answer (stopped?)", "s ago, said it ",
      "its process is stopped (SIGSTOP, or a debugger)"}},
};

/* Nothing that comes over the rank's connections gets past the kernel's filter any more, and
 * nothing is acknowledged: a firewall that drops. New connections, by which ranks are asked, are
 * let in. */
void dropAll(tuttiComm_t comm) {
  sock_filter none = BPF_STMT(BPF_RET | BPF_K, 0);
  sock_fprog filter = {1, &none};
  for (int fd = 3; fd < 256; fd++) {
    int type = 0;
    socklen_t length = sizeof type;
    sockaddr_storage peer;
    socklen_t size = sizeof peer;
    bool stream = getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM;
    if (!stream || getpeername(fd, (sockaddr *)&peer, &size) != 0) continue;
    if (peer.ss_family != AF_UNIX)
      setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
  }
  reduce(comm, kCount);
}

const Hang kFirewall = {"Firewall",
                        dropAll,
                        0,
                        tuttiVerdictPath,
                        {"a slow or broken path", "rank 1 on channel ", "via NET/Socket",
                         "nothing acknowledged for ", "sent again "}};

/* The only port of all ranks goes down: by TUTTITEST_RDMA, a command, or as the software HCA has
 * it. */
void cutCable() {
  const char *command = getenv("TUTTITEST_RDMA");
  if (command) {
    if (system(command) != 0) abort();
  } else {
    void *hca = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
    auto port = hca ? (void (*)(int, int, int))dlsym(hca, "softHcaPort") : nullptr;
    if (!port) abort();
    port(0, 1, 0);
  }
}

void cutAndReduce(tuttiComm_t comm) {
  cutCable();
  reduce(comm, kCount);
}

const Hang kNicDown = {
    "NicDown",
    cutAndReduce,
    0,
    tuttiVerdictPath,
    {"a slow or broken path", "via NET/IB", "port 1 of ", "0 of this rank is down"}};

using Case = std::tuple<const char *, Hang>;

class Hangs : public testing::TestWithParam<Case> {
protected:
  /* One rank: some good operations, then that one; then it stays. */
  void rank(int r) {
    tuttiComm_t comm;
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    std::string name = jobName();
    config.commName = name.c_str();
    tuttiUniqueId id = job.id();
    if (job.keep(tuttiCommInitRankConfig(&comm, kRanks, id, r, &config)) != tuttiSuccess) return;
    for (int i = 0; i < kGood; i++)
      reduce(comm, kCount);
    job.setStage(r, 1);
    if (r == kCulprit)
      std::get<1>(GetParam()).instead(comm);
    else if (std::string(std::get<1>(GetParam()).name) == "OtherRoot")
      reduceTo(comm, 0);
    else
      reduce(comm, kCount);
    job.setStage(r, 2);
    for (;;)
      pause();
  }

  RankProcesses job;
};

TEST_P(Hangs, AreNamed) {
  const auto &[transport, hang] = GetParam();
#ifndef SOFTHCA_LIBRARY
  if (std::string(transport) == "IB" && !getenv("TUTTITEST_RDMA"))
    GTEST_SKIP() << "needs the software HCA";
#endif
  std::string name = jobName();
  rastest::useTransport(transport);
  job.start(kRanks, [this](int r) { rank(r); });
  for (int r = 0; r < kRanks; r++)
    ASSERT_TRUE(job.waitForStage(r, 1)) << job.report(r).text;
  if (hang.signal == SIGKILL)
    job.killRank(kCulprit);
  else if (hang.signal)
    kill(job.report(kCulprit).pid, hang.signal);
  tuttiVerdictKind kind = hang.signal == SIGKILL ? tuttiVerdictFailed : hang.kind;
  std::vector<std::string> says(hang.says.begin(), hang.says.end());
  if (hang.kind != tuttiVerdictPath)
    says.push_back("pid " + std::to_string(job.report(kCulprit).pid));
  expectVerdict(kind, says);
  unsetenv("TUTTITEST_JOB");
}

/* Two ranks over NET/IB, whose cables are cut. */
class Deadline : public testing::Test {
protected:
  void SetUp() override {
#ifndef SOFTHCA_LIBRARY
    if (!getenv("TUTTITEST_RDMA")) GTEST_SKIP() << "needs the software HCA";
#endif
    rastest::useTransport("IB");
  }
  void TearDown() override {
    unsetenv("TUTTI_TIMEOUT");
  }
  /* In the process of rank r: both are made, and have reduced once. NULL: its error is kept. */
  tuttiComm_t make(int r) {
    tuttiComm_t comm;
    tuttiUniqueId id = job.id();
    if (job.keep(tuttiCommInitRank(&comm, 2, id, r)) != tuttiSuccess) return nullptr;
    reduce(comm, kCount);
    job.meet(2, 1);
    return comm;
  }

  RankProcesses job;
};

/* Nobody is late: the text of a timeout says how the connection is that is waited for. The port
 * goes down when half of the time is over, so that the sender has not given up yet. */
TEST_F(Deadline, TellsHowThePathIs) {
  constexpr auto half = std::chrono::seconds(2);
  setenv("TUTTI_TIMEOUT", "4", 1);
  job.start(2, [&](int r) {
    tuttiComm_t comm = make(r);
    if (!comm) return;
    std::thread cut([&] {
      if (r == 0) return;
      std::this_thread::sleep_for(half);
      cutCable();
      job.setStage(r, 2);
    });
    if (r == 0) job.waitForStage(1, 2);
    reduce(comm, kCount); /* the sender's ends: what it waits for had come before */
    job.keep(tuttiAllReduce(in, out, kCount, tuttiFloat32, tuttiSum, comm, nullptr));
    cut.join();
    job.setStage(r, 3);
  });
  for (int r = 0; r < 2; r++) {
    ASSERT_TRUE(job.waitForStage(r, 3)) << "rank " << r;
    EXPECT_EQ(job.report(r).result, tuttiTimeout);
    EXPECT_THAT(std::string(job.report(r).text),
                AllOf(HasSubstr("which has called it too: a slow or broken path: rank 1 (host "),
                      HasSubstr(" waits for rank 0 on channel "), HasSubstr(" via NET/IB"),
                      HasSubstr("; port 1 of "), HasSubstr("0 of this rank is down")));
  }
}

/* Somebody is late: that the port of a rank is down, which may be why, is told beside it. */
TEST_F(Deadline, TellsWhosePortIsDown) {
  setenv("TUTTI_TIMEOUT", "2", 1);
  job.start(2, [&](int r) {
    tuttiComm_t comm = make(r);
    if (!comm) return;
    if (r == 1) cutCable();
    if (r == 0) job.keep(tuttiAllReduce(in, out, kCount, tuttiFloat32, tuttiSum, comm, nullptr));
    if (r == 1) job.waitForStage(0, 2);
    job.setStage(r, 2);
  });
  for (int r = 0; r < 2; r++)
    ASSERT_TRUE(job.waitForStage(r, 2)) << "rank " << r;
  EXPECT_EQ(job.report(0).result, tuttiTimeout);
  EXPECT_THAT(std::string(job.report(0).text),
              AllOf(ContainsRegex("rank 1 \\(host [^)]*\\) answers but has not called it yet"),
                    ContainsRegex("; rank 1 \\(host [^)]*\\): port [a-z_]*0:1 is down")));
}

/* Waits for signals of one-sided operations. */
class SignalHangs : public testing::TestWithParam<const char *> {};

TEST_P(SignalHangs, AreNamed) {
#ifndef SOFTHCA_LIBRARY
  if (std::string(GetParam()) == "IB" && !getenv("TUTTITEST_RDMA"))
    GTEST_SKIP() << "needs the software HCA";
#endif
  RankProcesses job;
  std::string name = jobName();
  rastest::useTransport(GetParam());
  job.start(kRanks, [&](int r) {
    tuttiComm_t comm;
    tuttiWindow_t window;
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    std::string own = jobName();
    config.commName = own.c_str();
    tuttiUniqueId id = job.id();
    if (job.keep(tuttiCommInitRankConfig(&comm, kRanks, id, r, &config)) != tuttiSuccess) return;
    job.keep(tuttiCommWindowRegister(comm, in, sizeof in, &window, 0));
    job.setStage(r, 1);
    tuttiWaitSignalDesc_t two = {2, kCulprit, 0, 0};
    if (r == kCulprit)
      tuttiSignal(0, 0, 0, 0, comm, nullptr);
    else
      tuttiWaitSignal(1, &two, comm, nullptr);
    for (;;)
      pause();
  });
  for (int r = 0; r < kRanks; r++)
    ASSERT_TRUE(job.waitForStage(r, 1)) << job.report(r).text;
  std::string from = " from rank 1 (host ",
              pid = ", pid " + std::to_string(job.report(kCulprit).pid);
  expectVerdict(tuttiVerdictPeer,
                {"rank 0 waits ", " for 2 signals of index 0 and context 0" + from,
                 pid + "), of which 1 has come; that one answers, and is in no operation",
                 "rank 2 waits ", pid + "), of which 0 have come"});
  unsetenv("TUTTITEST_JOB");
}

INSTANTIATE_TEST_SUITE_P(All, SignalHangs, testing::Values("SHM", "Socket", "IB"),
                         [](const auto &info) { return std::string(info.param); });

std::string caseName(const testing::TestParamInfo<Case> &info) {
  return std::string(std::get<0>(info.param)) + std::get<1>(info.param).name;
}

INSTANTIATE_TEST_SUITE_P(Firewall, Hangs,
                         testing::Combine(testing::Values("Socket"), testing::Values(kFirewall)),
                         caseName);
INSTANTIATE_TEST_SUITE_P(Port, Hangs,
                         testing::Combine(testing::Values("IB"), testing::Values(kNicDown)),
                         caseName);
INSTANTIATE_TEST_SUITE_P(All, Hangs,
                         testing::Combine(testing::Values("SHM", "Socket", "IB"),
                                          testing::ValuesIn(kHangs)),
                         caseName);

} // namespace

/* What a rank writes by itself: the hang report, and its record. */
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/os.h"
#include "ras/job.h"
#include "ras/report.h"
#include "tools/command.h"

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

namespace {

std::string content(const std::string &path) {
  std::ifstream in(path);
  std::stringstream all;
  all << in.rdbuf();
  return all.str();
}

class Reports : public testing::Test {
protected:
  void SetUp() override {
    const char *given = getenv("TUTTITEST_FOLDER"); /* of the test, in its ranks */
    std::string made = "/tmp/tutti-reports-XXXXXX";
    if (!given) setenv("TUTTITEST_FOLDER", mkdtemp(made.data()), 1);
    folder.mine = !given;
    folder.path = getenv("TUTTITEST_FOLDER");
  }
  void TearDown() override {
    unsetenv("TUTTITEST_FOLDER");
    unsetenv("TUTTI_HANG_REPORT");
    unsetenv("TUTTI_HANG_AFTER");
    unsetenv("TUTTI_TRACE");
  }
  std::string report() const { return folder.path + "/hang"; }

  /* All but the last rank sum; that one comes when the test says so, if it does. */
  void start(int timeoutMs) {
    setenv("TUTTI_HANG_REPORT", report().c_str(), 1);
    job.start(rastest::kRanks, [this, timeoutMs](int r) {
      tuttiComm_t comm;
      tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
      config.timeoutMs = timeoutMs;
      config.commName = "late";
      float x = 1, y = 0;
      tuttiUniqueId id = job.id();
      ASSERT_EQ(job.keep(tuttiCommInitRankConfig(&comm, rastest::kRanks, id, r, &config)),
                tuttiSuccess);
      job.setStage(r, 1);
      if (r == rastest::kRanks - 1)
        while (!job.waitForStage(0, 2)) {
        }
      job.keep(tuttiAllReduce(&x, &y, 1, tuttiFloat32, tuttiSum, comm, nullptr), comm);
      job.setStage(r, 3);
      for (;;)
        pause();
    });
    for (int r = 0; r < rastest::kRanks; r++)
      ASSERT_TRUE(job.waitForStage(r, 1)) << job.report(r).text;
  }

  struct Folder {
    ~Folder() {
      if (mine) std::filesystem::remove_all(path);
    }
    std::string path;
    bool mine = false;
  };
  Folder folder; /* before the job, so that no rank is left that writes there as it goes */
  RankProcesses job;
};

TEST_F(Reports, BeforeAWaitTimesOut) {
  ASSERT_NO_FATAL_FAILURE(start(1500));
  ASSERT_TRUE(job.waitForStage(0, 3));
  EXPECT_EQ(job.report(0).result, tuttiTimeout) << job.report(0).text;
  std::string text = content(report());
  EXPECT_THAT(text, testing::StartsWith("communicator late: "));
  EXPECT_THAT(text, HasSubstr("in #1 AllReduce(count 1, float32, sum): rank 2 (host "));
  EXPECT_THAT(text, HasSubstr("answers but has not called it yet; it last finished nothing"));
  EXPECT_THAT(text, ContainsRegex("waits for rank [0-9] on channel 0 via "));
}

TEST_F(Reports, BeforeAWaitForSignalsTimesOut) {
  setenv("TUTTI_HANG_REPORT", report().c_str(), 1);
  job.start(2, [this](int r) {
    static float x[2];
    tuttiComm_t comm;
    tuttiWindow_t window;
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.timeoutMs = 1500;
    config.commName = "late";
    tuttiUniqueId id = job.id();
    ASSERT_EQ(job.keep(tuttiCommInitRankConfig(&comm, 2, id, r, &config)), tuttiSuccess);
    ASSERT_EQ(job.keep(tuttiCommWindowRegister(comm, x, sizeof x, &window, 0)), tuttiSuccess);
    tuttiWaitSignalDesc_t one = {1, 1, 0, 0};
    if (r == 0) job.keep(tuttiWaitSignal(1, &one, comm, nullptr), comm);
    job.setStage(r, 1);
    for (;;)
      pause();
  });
  ASSERT_TRUE(job.waitForStage(0, 1));
  EXPECT_EQ(job.report(0).result, tuttiTimeout) << job.report(0).text;
  EXPECT_THAT(content(report()),
              testing::AllOf(testing::StartsWith("communicator late: rank 0 waits 1."),
                             HasSubstr(" for 1 signal of index 0 and context 0 from rank 1 (host "),
                             HasSubstr("    waits for 1 signal of index 0 and context 0")));
}

TEST_F(Reports, EarlierIfAskedAndNothingEnds) {
  setenv("TUTTI_HANG_AFTER", "0.6", 1);
  ASSERT_NO_FATAL_FAILURE(start(60000));
  for (int i = 0; i < 3000 && content(report()).empty(); i++)
    usleep(10000);
  EXPECT_THAT(content(report()), HasSubstr("rank 2 (host "));
  job.setStage(0, 2); /* the late one comes */
  for (int r = 0; r < rastest::kRanks; r++) {
    ASSERT_TRUE(job.waitForStage(r, 3));
    EXPECT_EQ(job.report(r).result, tuttiSuccess) << job.report(r).text;
  }
}

TEST_F(Reports, RecordsOfRanksMergeIntoOneTrace) {
  setenv("TUTTI_TRACE", "1", 1);
  job.start(rastest::kRanks, [this](int r) {
    tuttiComm_t comm;
    float x = 1, y = 0;
    tuttiUniqueId id = job.id();
    ASSERT_EQ(job.keep(tuttiCommInitRank(&comm, rastest::kRanks, id, r)), tuttiSuccess);
    for (int i = 0; i < 70; i++)
      ASSERT_EQ(tuttiAllReduce(&x, &y, 1, tuttiFloat32, tuttiSum, comm, nullptr), tuttiSuccess);
    EXPECT_EQ(tuttiCommDump(comm, nullptr), tuttiInvalidArgument);
    EXPECT_NE(tuttiCommDump(comm, (folder.path + "/none/such").c_str()), tuttiSuccess);
    EXPECT_THAT(tuttiGetLastError(comm), HasSubstr("/none/such"));
    std::string path = folder.path + "/rank" + std::to_string(r);
    EXPECT_EQ(tuttiCommDump(comm, path.c_str()), tuttiSuccess) << tuttiGetLastError(comm);
    EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
  });
  job.waitAll();
  job.expectCleanEnds();
  Result merged = tutti(
      {"trace", "merge", folder.path + "/rank0", folder.path + "/rank1", folder.path + "/rank2"});
  EXPECT_EQ(merged.code, 0) << merged.err;
  EXPECT_THAT(merged.out, testing::StartsWith("{\"displayTimeUnit\": \"ns\", \"traceEvents\": ["));
  for (int r = 0; r < rastest::kRanks; r++) {
    std::string of = "\"ph\": \"X\", \"pid\": " + std::to_string(r) + ", ";
    size_t events = 0;
    for (size_t at = 0; (at = merged.out.find(of, at)) != std::string::npos; at++)
      events++;
    EXPECT_GE(events, 60u) << "of rank " << r;
    EXPECT_LE(events, 64u) << "of rank " << r;
  }
  EXPECT_THAT(merged.out,
              HasSubstr("\"seq\": 70, \"count\": 1, \"type\": \"float32\", \"bytes\": 4"));
  EXPECT_THAT(merged.out, HasSubstr("\"ended\": true"));
  EXPECT_THAT(merged.out, ContainsRegex("\"algorithm\": \"[A-Z][a-z]+\", \"protocol\": \""));
  if (installed("python3")) {
    Command check(
        {"python3", "-c", "import json,sys; json.load(open(sys.argv[1]))", folder.path + "/rank0"});
    EXPECT_EQ(check.wait(), 0) << check.err();
  }
  EXPECT_EQ(tutti({"trace", "merge", "/etc/hostname"}).code, 1);
  EXPECT_EQ(tutti({"trace", "split"}).code, 2);
}

/* The value behind `key` of the event of operation `seq` on a rank, or -1. */
double ofEvent(const std::string &trace, int rank, int seq, const std::string &key) {
  std::string of = "\"ph\": \"X\", \"pid\": " + std::to_string(rank) + ", ";
  std::string what = "\"seq\": " + std::to_string(seq) + ", ";
  std::istringstream lines(trace);
  for (std::string line; std::getline(lines, line);) {
    size_t at = line.find("\"" + key + "\": ");
    if (line.find(of) == std::string::npos || line.find(what) == std::string::npos) continue;
    return at == std::string::npos ? -1 : std::stod(line.substr(at + key.size() + 4));
  }
  return -1;
}

/* Each rank notes what the clock says around its operations, before which it sleeps; a worker's
 * come from a queue. All times of the ranks are on the clock that they share. */
class Times : public Reports, public testing::WithParamInterface<bool> {};

TEST_P(Times, OfATraceAreThoseOfTheClock) {
  constexpr int kOps = 5, kSleepUs = 20000;
  setenv("TUTTI_TRACE", "1", 1);
  job.start(rastest::kRanks, [this](int r) {
    tuttiComm_t comm;
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.blocking = GetParam() ? 1 : 0;
    tuttiUniqueId id = job.id();
    float x = 1, y = 0;
    auto settled = [&](tuttiResult_t result) {
      while (result == tuttiInProgress && tuttiCommGetAsyncError(comm, &result) == tuttiSuccess)
        usleep(100);
      return result;
    };
    ASSERT_EQ(settled(tuttiCommInitRankConfig(&comm, rastest::kRanks, id, r, &config)),
              tuttiSuccess);
    std::ofstream looks(folder.path + "/looks" + std::to_string(r));
    for (int i = 0; i < kOps; i++) {
      bool late = r == rastest::kRanks - 1 && i == kOps - 1;
      usleep(late ? 4 * kSleepUs : kSleepUs);
      uint64_t before = tuttiNow();
      ASSERT_EQ(settled(tuttiAllReduce(&x, &y, 1, tuttiFloat32, tuttiSum, comm, nullptr)),
                tuttiSuccess);
      looks << before << " " << tuttiNow() << "\n";
    }
    std::string path = folder.path + "/rank" + std::to_string(r);
    EXPECT_EQ(tuttiCommDump(comm, path.c_str()), tuttiSuccess) << tuttiGetLastError(comm);
    EXPECT_EQ(settled(tuttiCommDestroy(comm)), tuttiSuccess);
  });
  job.waitAll();
  job.expectCleanEnds();
  std::string trace = tutti({"trace", "merge", folder.path + "/rank0", folder.path + "/rank1",
                             folder.path + "/rank2"})
                          .out;
  double lastCame = 0; /* us: the last one to its last operation, which ends nowhere before */
  constexpr double kExact = 1000; /* us: a twentieth of what lies between two */
  for (int r = 0; r < rastest::kRanks; r++) {
    std::istringstream looks(content(folder.path + "/looks" + std::to_string(r)));
    for (int seq = 1; seq <= kOps; seq++) {
      uint64_t before = 0, after = 0;
      looks >> before >> after;
      double start = ofEvent(trace, r, seq, "ts"), duration = ofEvent(trace, r, seq, "dur");
      double enqueued = ofEvent(trace, r, seq, "enqueued_us");
      EXPECT_GE(enqueued, (double)before / 1e3 - kExact);
      EXPECT_GE(start, enqueued);
      EXPECT_GE(duration, 0);
      EXPECT_LE(start + duration, (double)after / 1e3 + kExact);
      lastCame = (double)before / 1e3;
    }
  }
  for (int r = 0; r < rastest::kRanks - 1; r++) {
    double start = ofEvent(trace, r, kOps, "ts"), duration = ofEvent(trace, r, kOps, "dur");
    EXPECT_GE(start + duration, lastCame - kExact) << "of rank " << r;
    EXPECT_LE(start, lastCame) << "of rank " << r << ", which came 60 ms before";
  }
}

INSTANTIATE_TEST_SUITE_P(, Times, testing::Bool(), [](const auto &info) {
  return std::string(info.param ? "Blocking" : "Queued");
});

/* Ranks that wait in a call which does not end, asked from outside. */
TEST_F(Reports, ASignalHasTheRecordWritten) {
  std::string path = folder.path + "/record";
  setenv("TUTTI_DUMP_FILE", path.c_str(), 1);
  ASSERT_NO_FATAL_FAILURE(start(60000));
  ASSERT_EQ(kill(job.report(0).pid, SIGUSR2), 0);
  std::string dump, file = path + "." + std::to_string(job.report(0).pid);
  for (int i = 0; i < 3000 && dump.empty(); i++) {
    usleep(10000);
    dump = content(file);
  }
  unsetenv("TUTTI_DUMP_FILE");
  tuttiSnapshot s = {};
  ASSERT_TRUE(tuttiReportDumpTake(dump.data(), dump.size(), &s)) << dump;
  ASSERT_EQ(s.ncomms, 1);
  EXPECT_STREQ(s.comms[0].name, "late");
  EXPECT_EQ(s.comms[0].ranks[0].facts.pid, job.report(0).pid);
  tuttiSnapshotFree(&s);
}

TEST_F(Reports, TheSignalIsGivenBack) {
  setenv("TUTTI_DUMP_FILE", (folder.path + "/record").c_str(), 1);
  job.start(1, [this](int r) {
    struct sigaction now;
    tuttiComm_t comm;
    tuttiUniqueId id = job.id();
    ASSERT_EQ(job.keep(tuttiCommInitRank(&comm, 1, id, r)), tuttiSuccess);
    sigaction(SIGUSR2, nullptr, &now);
    EXPECT_NE(now.sa_handler, SIG_DFL);
    EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
    sigaction(SIGUSR2, nullptr, &now);
    EXPECT_EQ(now.sa_handler, SIG_DFL);
  });
  unsetenv("TUTTI_DUMP_FILE");
  job.waitAll();
  job.expectCleanEnds();
}

/* Its number for the signal is closed there, and soon another file's. */
TEST_F(Reports, TheSignalWritesToNoFileOfAForkedChild) {
  setenv("TUTTI_DUMP_FILE", (folder.path + "/record").c_str(), 1);
  job.start(1, [this](int r) {
    tuttiComm_t comm;
    tuttiUniqueId id = job.id();
    ASSERT_EQ(job.keep(tuttiCommInitRank(&comm, 1, id, r)), tuttiSuccess);
    pid_t child = fork();
    if (child == 0) {
      int pairs[64][2]; /* whatever number it was, it is one of these */
      char byte;
      for (auto &pair : pairs)
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0) _exit(2);
      raise(SIGUSR2);
      for (auto &pair : pairs)
        if (read(pair[0], &byte, 1) > 0 || read(pair[1], &byte, 1) > 0) _exit(1);
      _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
  });
  unsetenv("TUTTI_DUMP_FILE");
  job.waitAll();
  job.expectCleanEnds();
}

volatile sig_atomic_t heard;

TEST_F(Reports, AProgramKeepsItsOwnHandler) {
  std::string path = folder.path + "/record";
  setenv("TUTTI_DUMP_FILE", path.c_str(), 1);
  job.start(1, [this, &path](int r) {
    signal(SIGUSR2, [](int) { heard = 1; });
    tuttiComm_t comm;
    tuttiUniqueId id = job.id();
    ASSERT_EQ(job.keep(tuttiCommInitRank(&comm, 1, id, r)), tuttiSuccess);
    raise(SIGUSR2);
    EXPECT_EQ(heard, 1);
    EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
    heard = 0;
    raise(SIGUSR2);
    EXPECT_EQ(heard, 1);
    EXPECT_FALSE(std::filesystem::exists(path + "." + std::to_string(getpid())));
  });
  unsetenv("TUTTI_DUMP_FILE");
  job.waitAll();
  job.expectCleanEnds();
}

} // namespace

/* Each way in which a job of GPUs comes to hang: the verdict names it, though the ranks' threads
 * have long returned from their calls. */
#include <tuple>

#include "gpu.h"
#include "ras/job.h"

using rastest::expectVerdict;
using rastest::jobName;

namespace {

constexpr int kRanks = 2, kCulprit = 1;
constexpr size_t kCount = 64;

/* Whatever came before on the culprit's stream does not end. */
void CUDART_CB block(void *) {
  for (;;)
    pause();
}

enum Instead { kNothing, kOtherSize, kBehindAnother, kNoSignal };

struct Hang {
  const char *name;
  Instead
      instead; /* what the culprit does of the third operation; or that is a wait for a signal */
  int signal;  /* that it gets when the other waits; 0: none */
  tuttiVerdictKind kind;
  std::vector<const char *> says;
};

const Hang kHangs[] = {
    {"Missing",
     kNothing,
     0,
     tuttiVerdictMissing,
     {"rank 0 waits ", "in #3 AllReduce(count 64, float32, sum): rank 1 (host ",
      "answers but has not called it yet; it last finished #2 AllReduce"}},
    {"TheStreamWaits",
     kBehindAnother,
     0,
     tuttiVerdictNotBegun,
     {"rank 0 waits ", "in #3 AllReduce(count 64, float32, sum): rank 1 (host ",
      "called it, but the kernel has not begun: its stream waits"}},
    {"OtherSize",
     kOtherSize,
     0,
     tuttiVerdictFailed,
     {"ranks disagree on an operation", "#3 AllReduce(count 64, float32, sum)",
      "#3 AllReduce(count 65, float32, sum)"}},
    {"NoSignal",
     kNoSignal,
     0,
     tuttiVerdictPeer,
     {"rank 0 waits ", " for 1 signal of index 0 and context 0 from rank 1 (host ",
      "of which 0 have come; that one answers, and is in no operation"}},
    {"Stopped",
     kNothing,
     SIGSTOP,
     tuttiVerdictStopped,
     {"rank 0 waits ", "rank 1 (host ", "its process is stopped (SIGSTOP, or a debugger)"}},
    {"Dead", kNothing, SIGKILL, tuttiVerdictFailed, {"rank 1 (host ", "died"}},
};

/* By which way they reach each other. */
using Way = std::pair<const char *, std::vector<const char *>>;
const Way kWays[] = {{"P2P", {}},
                     {"SHM", {"TUTTI_P2P_DISABLE"}},
                     {"NET", {"TUTTI_P2P_DISABLE", "TUTTI_SHM_DISABLE"}}};

using Case = std::tuple<Way, Hang>;

class GpuHangs : public GpuTest, public testing::WithParamInterface<Case> {
protected:
  /* Not left to other tests, also where this one has ended early. */
  void TearDown() override {
    for (const char *setting : std::get<0>(GetParam()).second)
      unsetenv(setting);
    unsetenv("TUTTITEST_JOB");
  }

  /* One rank: two good operations, then that one, and what follows it; then it stays. */
  void rank(int r) {
    tuttiComm_t comm;
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    std::string name = jobName();
    config.commName = name.c_str();
    config.device = tuttiDeviceCuda;
    Gpu gpu(r, 1 << 20);
    cudaStream_t s = gpu.streams[0];
    float *x = gpu.put(std::vector<float>(kCount + 1, 1));
    tuttiUniqueId id = job.id();
    if (job.keep(tuttiCommInitRankConfig(&comm, kRanks, id, r, &config)) != tuttiSuccess) return;
    for (int i = 0; i < 2; i++)
      if (job.keep(tuttiAllReduce(x, x, kCount, tuttiFloat32, tuttiSum, comm, s)) != tuttiSuccess ||
          awaitStream(s) != cudaSuccess)
        return;
    job.setStage(r, 1);
    if (std::get<1>(GetParam()).instead == kNoSignal)
      awaitSignal(comm, x, s, r == kCulprit);
    else
      goOn(comm, x, s, r == kCulprit);
    job.setStage(r, 2);
    for (;;)
      pause();
  }

  /* The third operation, or what the culprit does instead. */
  static void goOn(tuttiComm_t comm, float *x, cudaStream_t s, bool culprit) {
    Instead instead = std::get<1>(GetParam()).instead;
    auto reduce = [&](size_t count) {
      tuttiAllReduce(x, x, count, tuttiFloat32, tuttiSum, comm, s);
    };
    if (culprit && instead == kBehindAnother) cudaLaunchHostFunc(s, block, nullptr);
    if (!culprit || instead == kBehindAnother) reduce(kCount);
    if (culprit && instead == kOtherSize) reduce(kCount + 1);
    if (!culprit) reduce(kCount); /* launched behind it, and not what it is in */
  }

  /* A wait in place of the third operation; the culprit sends no signal. */
  void awaitSignal(tuttiComm_t comm, float *x, cudaStream_t s, bool culprit) {
    tuttiWaitSignalDesc_t one = {1, kCulprit, 0, 0};
    tuttiWindow_t window;
    job.keep(tuttiCommWindowRegister(comm, x, kCount * sizeof *x, &window, 0));
    if (!culprit) job.keep(tuttiWaitSignal(1, &one, comm, s));
  }

  RankProcesses job;
};

TEST_P(GpuHangs, AreNamed) {
  const auto &[way, hang] = GetParam();
  std::string name = jobName();
  for (const char *setting : way.second)
    setenv(setting, "1", 1);
  job.start(kRanks, [this](int r) { rank(r); });
  for (int r = 0; r < kRanks; r++)
    ASSERT_TRUE(job.waitForStage(r, 2)) << job.report(r).text;
  if (hang.signal == SIGKILL)
    job.killRank(kCulprit);
  else if (hang.signal)
    kill(job.report(kCulprit).pid, hang.signal);
  std::vector<std::string> says(hang.says.begin(), hang.says.end());
  says.push_back("pid " + std::to_string(job.report(kCulprit).pid));
  expectVerdict(hang.kind, says);
}

INSTANTIATE_TEST_SUITE_P(All, GpuHangs,
                         testing::Combine(testing::ValuesIn(kWays), testing::ValuesIn(kHangs)),
                         [](const testing::TestParamInfo<Case> &info) {
                           return std::string(std::get<0>(info.param).first) +
                                  std::get<1>(info.param).name;
                         });

} // namespace

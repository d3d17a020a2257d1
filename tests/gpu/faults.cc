/* Ranks on GPUs that are wrong, late or dead: everybody is told in time, and no kernel stays. */
#include <atomic>
#include <filesystem>
#include <thread>

#include "gpu/gpu.h"
#include "holdings.h"
#include "processes.h"

extern "C" {
#include "comm/failure.h"
#include "comm/handle.h"
}

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

namespace {

class GpuFaults : public GpuTest {};

TEST_F(GpuFaults, HostMemoryIsRefused) {
  GpuRanks ranks(2);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int, tuttiComm_t comm, Gpu &gpu) {
    std::vector<float> host(16, 1);
    float *device = gpu.put(host);
    EXPECT_EQ(tuttiAllReduce(host.data(), device, 16, tuttiFloat32, tuttiSum, comm, gpu.streams[0]),
              tuttiInvalidArgument);
    EXPECT_THAT(tuttiGetLastError(comm),
                AllOf(HasSubstr("sendbuff"), HasSubstr("plain host memory"),
                      HasSubstr("TUTTI_DEVICE=host")));
    EXPECT_EQ(tuttiAllReduce(device, host.data(), 16, tuttiFloat32, tuttiSum, comm, gpu.streams[0]),
              tuttiInvalidArgument);
    EXPECT_THAT(tuttiGetLastError(comm), HasSubstr("recvbuff"));
    EXPECT_EQ(host, std::vector<float>(16, 1));
    tuttiRedOp_t op;
    EXPECT_EQ(tuttiRedOpCreatePreMulSum(&op, host.data(), tuttiFloat32, tuttiScalarDevice, comm),
              tuttiInvalidArgument);
    EXPECT_THAT(tuttiGetLastError(comm), AllOf(HasSubstr("scalar"), HasSubstr("plain host")));
    /* Nothing was started: the communicator still works. */
    TUTTI(tuttiAllReduce(device, device, 16, tuttiFloat32, tuttiSum, comm, gpu.streams[0]));
    ASSERT_EQ(awaitStream(gpu.streams[0]), cudaSuccess);
    EXPECT_EQ(gpu.get(device, 16), std::vector<float>(16, 2));
  });
}

/* Runs calls that do not fit together, after one that does; all ranks learn of it. */
void mismatch(int n, const std::function<tuttiResult_t(int, tuttiComm_t, float *, cudaStream_t)> &f,
              const std::string &says) {
  GpuRanks ranks(n);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int, tuttiComm_t comm, Gpu &gpu) {
    float *x = gpu.put(std::vector<float>(1, 1));
    TUTTI(tuttiAllReduce(x, x, 1, tuttiFloat32, tuttiSum, comm, gpu.streams[0]));
    ASSERT_EQ(awaitStream(gpu.streams[0]), cudaSuccess) << tuttiGetLastError(comm);
  });
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    float *x = gpu.put(std::vector<float>(100000, 1));
    tuttiResult_t result = f(r, comm, x, gpu.streams[0]);
    ASSERT_TRUE(result == tuttiSuccess || result == tuttiInvalidUsage) << tuttiGetLastError(comm);
    EXPECT_EQ(awaitFailure(comm, 10), tuttiInvalidUsage) << "rank " << r;
    EXPECT_THAT(tuttiGetLastError(comm), AllOf(HasSubstr("disagree"), HasSubstr(says)));
    EXPECT_EQ(awaitStream(gpu.streams[0], 5), cudaSuccess) << "the kernel has ended";
  });
  for (auto &c : ranks.comms)
    EXPECT_EQ(tuttiCommAbort(std::exchange(c[0], nullptr)), tuttiSuccess);
}

TEST_F(GpuFaults, CountsDiffer) {
  for (size_t count : {16, 1000, 90000}) /* one message, two-shot, many chunks */
    mismatch(
        2,
        [&](int r, tuttiComm_t comm, float *x, cudaStream_t s) {
          return tuttiAllReduce(x, x, count + (size_t)r, tuttiFloat32, tuttiSum, comm, s);
        },
        std::to_string(count + 1));
}

TEST_F(GpuFaults, ReductionsDiffer) {
  mismatch(
      3,
      [](int r, tuttiComm_t comm, float *x, cudaStream_t s) {
        return tuttiAllReduce(x, x, 64, tuttiFloat32, r == 1 ? tuttiMax : tuttiSum, comm, s);
      },
      "max");
}

TEST_F(GpuFaults, CollectivesDiffer) {
  mismatch(
      2,
      [](int r, tuttiComm_t comm, float *x, cudaStream_t s) {
        return r ? tuttiAllReduce(x, x, 64, tuttiFloat32, tuttiSum, comm, s)
                 : tuttiAllGather(x, x, 64, tuttiFloat32, comm, s);
      },
      "AllGather");
}

TEST_F(GpuFaults, MessagesDiffer) {
  mismatch(
      2,
      [](int r, tuttiComm_t comm, float *x, cudaStream_t s) {
        return r ? tuttiRecv(x, 17, tuttiFloat32, 0, comm, s)
                 : tuttiSend(x, 16, tuttiFloat32, 1, comm, s);
      },
      "something else");
}

/* The hosts have called so much since that they no longer tell what the kernels are in. */
TEST_F(GpuFaults, CountsDifferLongAgo) {
  mismatch(
      2,
      [](int r, tuttiComm_t comm, float *x, cudaStream_t s) {
        tuttiResult_t result = tuttiSuccess;
        for (int i = 0; i < 12 && result == tuttiSuccess; i++)
          result = tuttiAllReduce(x, x, i ? 16 : 16 + (size_t)r, tuttiFloat32, tuttiSum, comm, s);
        return result;
      },
      "called something else");
}

void awaitState(tuttiComm_t comm, bool (*is)(const tuttiCommunicator *)) {
  tuttiCommunicator *c = nullptr;
  TUTTI(tuttiHandleEnter(comm, "awaitState", &c));
  for (double end = seconds() + 20; !is(c) && seconds() < end;)
    usleep(1000);
  EXPECT_TRUE(is(c));
  tuttiHandleLeave(c);
}

/* Who waits for nothing of a rank that has ended the communicator is told of it by a call. */
void refused(tuttiComm_t comm, Gpu &gpu) {
  awaitState(comm, [](const tuttiCommunicator *c) { return tuttiCommReady(c) != tuttiSuccess; });
  float *x = (float *)gpu.take(64);
  EXPECT_EQ(tuttiAllReduce(x, x, 16, tuttiFloat32, tuttiSum, comm, gpu.streams[0]),
            tuttiRemoteError);
  EXPECT_THAT(tuttiGetLastError(comm), AllOf(HasSubstr("rank 0"), HasSubstr("aborted")));
}

/* In a group all of a GPU's communicators end, whichever is freed first. */
TEST_F(GpuFaults, AbortsInAGroup) {
  Settings settings(std::map<std::string, std::string>{{"TUTTI_TIMEOUT", "20"}});
  GpuRanks ranks(2, (size_t)1 << 20, 2);
  Barrier aborted(2);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t, Gpu &gpu) {
    auto &comms = ranks.comms[(size_t)r];
    if (r == 1) {
      aborted.arrive();
      for (auto &comm : comms)
        refused(comm, gpu);
      return;
    }
    float *x = gpu.put(std::vector<float>(64, 1));
    for (size_t i = 0; i < 2; i++)
      TUTTI(tuttiAllReduce(x, x, 64, tuttiFloat32, tuttiSum, comms[i], gpu.streams[i]));
    double begin = seconds();
    TUTTI(tuttiGroupStart());
    for (auto &comm : comms)
      TUTTI(tuttiCommAbort(std::exchange(comm, nullptr)));
    TUTTI(tuttiGroupEnd());
    EXPECT_LT(seconds() - begin, 5);
    aborted.arrive();
    for (auto s : gpu.streams)
      EXPECT_EQ(awaitStream(s, 5), cudaSuccess);
  });
  for (auto &comm : ranks.comms[1])
    EXPECT_EQ(tuttiCommAbort(std::exchange(comm, nullptr)), tuttiSuccess);
}

/* A kernel that waits for a peer which never calls ends with its communicator. */
TEST_F(GpuFaults, AbortEndsAWaitingKernel) {
  for (size_t count : {16, 90000}) {
    GpuRanks ranks(3);
    Barrier called(2), aborted(2);
    ASSERT_TRUE(ranks.ok());
    ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
      float *x = gpu.put(std::vector<float>(count, 1));
      if (r == 2) { /* has called nothing, and is told when it does */
        aborted.arrive();
        refused(comm, gpu);
        return;
      }
      TUTTI(tuttiAllReduce(x, x, count, tuttiFloat32, tuttiSum, comm, gpu.streams[0]));
      called.arrive();
      usleep(300000);
      EXPECT_EQ(cudaStreamQuery(gpu.streams[0]), cudaErrorNotReady);
      if (r == 1) {
        EXPECT_EQ(awaitFailure(comm, 10), tuttiRemoteError);
      } else {
        double begin = seconds();
        EXPECT_EQ(tuttiCommAbort(comm), tuttiSuccess);
        EXPECT_LT(seconds() - begin, 5);
        aborted.arrive();
      }
      EXPECT_EQ(awaitStream(gpu.streams[0], 5), cudaSuccess) << "rank " << r;
    });
    ranks.comms[0][0] = nullptr;
    for (int r : {1, 2})
      EXPECT_EQ(tuttiCommAbort(std::exchange(ranks.comms[(size_t)r][0], nullptr)), tuttiSuccess);
  }
}

std::atomic<bool> goOn;

/* A rank that ends, as a program does that exits, while another has yet to run what it called: that
 * one has all it needs, neither written over by what the first had enqueued behind it, nor failing
 * for its end. It learns of that when it calls more. */
TEST_F(GpuFaults, AbortLeavesOthersWhatTheyNeed) {
  for (size_t count : {16, 110}) {
    GpuRanks ranks(2);
    Barrier called(2);
    ASSERT_TRUE(ranks.ok());
    goOn = false;
    ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
      float *x = gpu.put(std::vector<float>(count, (float)r + 1)), *more = (float *)gpu.take(64);
      cudaStream_t s = gpu.streams[0];
      auto wait = [](void *) {
        while (!goOn)
          usleep(1000);
      };
      if (r == 1) {
        ASSERT_EQ(cudaLaunchHostFunc(s, wait, nullptr), cudaSuccess);
      }
      TUTTI(tuttiBroadcast(x, x, count, tuttiFloat32, 0, comm, s));
      TUTTI(tuttiAllReduce(x, x, count, tuttiFloat32, tuttiSum, comm, s));
      called.arrive();
      if (r == 0) {
        TUTTI(tuttiAllReduce(more, more, 16, tuttiFloat32, tuttiSum, comm, s));
        usleep(300000); /* what it can send has been sent */
        std::thread later([] {
          usleep(1000000); /* long after its kernels have ended */
          goOn = true;
        });
        EXPECT_EQ(tuttiCommAbort(comm), tuttiSuccess);
        later.join();
        return;
      }
      EXPECT_EQ(awaitStream(s), cudaSuccess) << tuttiGetLastError(comm);
      EXPECT_EQ(gpu.get(x, count), std::vector<float>(count, 2));
      awaitState(comm, [](const tuttiCommunicator *c) { return !tuttiCommWell(c); });
      usleep(1000000); /* a suspicion would be a failure after half of that */
      tuttiResult_t state = tuttiInternalError;
      TUTTI(tuttiCommGetAsyncError(comm, &state));
      EXPECT_EQ(state, tuttiSuccess) << tuttiGetLastError(comm);
      refused(comm, gpu);
    });
    ranks.comms[0][0] = nullptr;
    EXPECT_EQ(tuttiCommAbort(std::exchange(ranks.comms[1][0], nullptr)), tuttiSuccess);
  }
}

/* A rank that is late by seconds does no harm, and after the deadline it is named. */
TEST_F(GpuFaults, LateAndTooLate) {
  Settings settings(std::map<std::string, std::string>{{"TUTTI_TIMEOUT", "4"}});
  GpuRanks ranks(2);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    float *x = gpu.put(std::vector<float>(64, 1));
    if (r == 1) usleep(1500000);
    TUTTI(tuttiAllReduce(x, x, 64, tuttiFloat32, tuttiSum, comm, gpu.streams[0]));
    ASSERT_EQ(awaitStream(gpu.streams[0]), cudaSuccess) << tuttiGetLastError(comm);
    EXPECT_EQ(gpu.get(x, 64), std::vector<float>(64, 2));
    if (r == 0) {
      TUTTI(tuttiAllReduce(x, x, 64, tuttiFloat32, tuttiSum, comm, gpu.streams[0]));
      EXPECT_EQ(awaitFailure(comm, 15), tuttiTimeout);
      EXPECT_THAT(tuttiGetLastError(comm), HasSubstr("rank 1"));
      EXPECT_EQ(awaitStream(gpu.streams[0], 5), cudaSuccess);
    } else {
      EXPECT_NE(awaitFailure(comm, 15), tuttiSuccess) << "everybody is told";
    }
  });
  for (auto &c : ranks.comms)
    EXPECT_EQ(tuttiCommAbort(std::exchange(c[0], nullptr)), tuttiSuccess);
}

/* ---- a dead process ---------------------------------------------------------------------------
 */

constexpr int kProcesses = 4, kDead = 2;
constexpr size_t kFloats = (size_t)1 << 18;

tuttiResult_t join(tuttiComm_t *comm, int n, const tuttiUniqueId &id, int rank) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.device = tuttiDeviceCuda;
  return tuttiCommInitRankConfig(comm, n, id, rank, &config);
}

/* All-reduces until one fails; report().seconds is when that was known. */
void work(RankProcesses &processes, int r) {
  Gpu gpu(r, (size_t)8 << 20);
  float *x = gpu.put(std::vector<float>(kFloats, 1)), *y = (float *)gpu.take(kFloats * 4);
  tuttiComm_t comm;
  if (processes.keep(join(&comm, kProcesses, processes.id(), r))) _exit(2);
  tuttiResult_t state = tuttiSuccess;
  double end = seconds() + 60;
  for (int i = 1; state == tuttiSuccess && seconds() < end; i++) {
    state = tuttiAllReduce(x, y, kFloats, tuttiFloat32, tuttiSum, comm, gpu.streams[0]);
    if (state == tuttiSuccess && awaitStream(gpu.streams[0], 10)) state = tuttiUnhandledCudaError;
    if (state == tuttiSuccess) tuttiCommGetAsyncError(comm, &state);
    processes.setStage(r, i);
  }
  processes.report(r).seconds = seconds();
  processes.keep(state, comm);
  EXPECT_EQ(tuttiCommAbort(comm), tuttiSuccess);
  /* The survivors go on without the dead. */
  int rank = r < kDead ? r : r - 1;
  EXPECT_EQ(join(&comm, kProcesses - 1, processes.id(1), rank), tuttiSuccess)
      << tuttiGetLastError(nullptr);
  if (testing::Test::HasFailure()) _exit(3);
  EXPECT_EQ(tuttiAllReduce(x, y, kFloats, tuttiFloat32, tuttiSum, comm, gpu.streams[0]),
            tuttiSuccess);
  EXPECT_EQ(awaitStream(gpu.streams[0]), cudaSuccess);
  EXPECT_EQ(gpu.get(y, kFloats), std::vector<float>(kFloats, kProcesses - 1));
  EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
}

TEST_F(GpuFaults, KilledProcess) {
  RankProcesses processes;
  processes.start(kProcesses, [&](int r) { work(processes, r); });
  for (int r = 0; r < kProcesses; r++)
    ASSERT_TRUE(processes.waitForStage(r, 5)) << processes.report(r).text;
  double killed = seconds();
  pid_t dead = processes.report(kDead).pid;
  processes.killRank(kDead);
  processes.waitAll(100);
  for (int r = 0; r < kProcesses; r++) {
    if (r == kDead) continue;
    const RankReport &report = processes.report(r);
    EXPECT_EQ(report.status, 0) << "rank " << r;
    EXPECT_EQ(report.result, tuttiRemoteError) << report.text;
    EXPECT_THAT(report.text, AllOf(HasSubstr("rank 2"), HasSubstr("pid " + std::to_string(dead))));
    EXPECT_LT(report.seconds - killed, 5) << "rank " << r;
  }
}

/* Two ranks call what a third, which destroys its communicator instead, had to take part in: both
 * are told. Each has a process, as a destroy may wait for all that its process has on the GPU. */
void expectLeft(size_t count, bool hasWindow,
                const std::function<tuttiResult_t(float *, tuttiComm_t, cudaStream_t)> &wait) {
  constexpr int n = 3, leaver = 2;
  RankProcesses processes;
  processes.start(n, [&](int r) {
    Gpu gpu(r, (size_t)4 << 20);
    float *x = gpu.put(std::vector<float>(count, 1));
    cudaStream_t s = gpu.streams[0];
    tuttiComm_t comm;
    tuttiWindow_t win = nullptr;
    if (processes.keep(join(&comm, n, processes.id(), r))) _exit(2);
    if (hasWindow) {
      EXPECT_EQ(tuttiCommWindowRegister(comm, x, count * sizeof *x, &win, 0), tuttiSuccess);
    }
    EXPECT_EQ(tuttiAllReduce(x, x, count, tuttiFloat32, tuttiSum, comm, s), tuttiSuccess);
    EXPECT_EQ(awaitStream(s), cudaSuccess);
    if (r == leaver) {
      EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
      return;
    }
    EXPECT_EQ(wait(x, comm, s), tuttiSuccess);
    processes.keep(awaitFailure(comm, 20), comm);
    EXPECT_EQ(awaitStream(s, 5), cudaSuccess) << "the kernel has ended";
    EXPECT_EQ(tuttiCommAbort(comm), tuttiSuccess);
    if (testing::Test::HasFailure()) _exit(3);
  });
  processes.waitAll(60);
  for (int r = 0; r < n; r++) {
    const RankReport &report = processes.report(r);
    EXPECT_EQ(report.status, 0) << "rank " << r;
    if (r == leaver) continue;
    EXPECT_EQ(report.result, tuttiRemoteError) << "rank " << r;
    EXPECT_THAT(report.text, AllOf(HasSubstr("rank 2 (host "),
                                   HasSubstr("has destroyed its communicator and will not come")));
  }
}

/* Nor does a kernel wait for a rank that has left by a destroy, whatever the deadline. */
TEST_F(GpuFaults, ARankThatLeavesEndsAWait) {
  for (size_t count : {(size_t)16, kFloats})
    expectLeft(count, false, [&](float *x, tuttiComm_t comm, cudaStream_t s) {
      return tuttiAllReduce(x, x, count, tuttiFloat32, tuttiSum, comm, s);
    });
}

TEST_F(GpuFaults, ARankThatLeavesEndsAWaitForItsSignals) {
  expectLeft(16, true, [](float *, tuttiComm_t comm, cudaStream_t s) {
    tuttiWaitSignalDesc_t desc = {1, 2, 0, 0};
    return tuttiWaitSignal(1, &desc, comm, s);
  });
}

/* Whatever else is waited for: rank 2 is heard of beside one that only is late. */
TEST_F(GpuFaults, ARankThatLeavesEndsAWaitForSignalsOfSeveral) {
  for (int leaverAt : {0, 1})
    expectLeft(16, true, [leaverAt](float *, tuttiComm_t comm, cudaStream_t s) {
      int rank = -1;
      EXPECT_EQ(tuttiCommUserRank(comm, &rank), tuttiSuccess);
      tuttiWaitSignalDesc_t descs[2];
      descs[leaverAt] = {1, 2, 0, 0};
      descs[1 - leaverAt] = {1, 1 - rank, 0, 0};
      return tuttiWaitSignal(2, descs, comm, s);
    });
}

/* The same of waits on several streams, of which each has a kernel. */
TEST_F(GpuFaults, ARankThatLeavesEndsWaitsOnSeveralStreams) {
  expectLeft(16, true, [](float *, tuttiComm_t comm, cudaStream_t s) {
    int rank = -1;
    cudaStream_t other;
    EXPECT_EQ(tuttiCommUserRank(comm, &rank), tuttiSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    tuttiWaitSignalDesc_t left = {1, 2, 0, 0}, late = {1, 1 - rank, 0, 0};
    EXPECT_EQ(tuttiWaitSignal(1, &left, comm, s), tuttiSuccess);
    tuttiResult_t result = tuttiWaitSignal(1, &late, comm, other);
    EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess); /* once its wait has ended */
    return result;
  });
}

/* ---- resources --------------------------------------------------------------------------------
 */

/* Two ranks of a process, on the same GPU, map what a third has at the same moment: its block as
 * the communicator is made, then its window. */
TEST_F(GpuFaults, ThreadsOfAProcessMapTheSameMemory) {
  constexpr int n = 4, rounds = 40, count = 1 << 16;
  RankProcesses processes;
  processes.start(2, [&](int p) {
    for (int round = 0; round < rounds && !testing::Test::HasFailure(); round++) {
      const tuttiUniqueId id = processes.id(round);
      onThreads(2, [&](int t) {
        int r = 2 * p + t;
        Gpu gpu(0, (size_t)2 << 20);
        float *x = gpu.put(std::vector<float>(count, (float)(r + 1)));
        tuttiComm_t comm;
        tuttiWindow_t win = nullptr;
        ASSERT_EQ(join(&comm, n, id, r), tuttiSuccess) << tuttiGetLastError(nullptr);
        EXPECT_EQ(tuttiCommWindowRegister(comm, x, count * sizeof *x, &win, 0), tuttiSuccess)
            << tuttiGetLastError(comm);
        EXPECT_EQ(tuttiAllReduce(x, x, count, tuttiFloat32, tuttiSum, comm, gpu.streams[0]),
                  tuttiSuccess);
        EXPECT_EQ(awaitStream(gpu.streams[0]), cudaSuccess);
        EXPECT_EQ(gpu.get(x, count), std::vector<float>(count, 10));
        EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
      });
    }
    if (testing::Test::HasFailure()) _exit(3);
  });
  processes.waitAll(120);
  for (int p = 0; p < 2; p++)
    EXPECT_EQ(processes.report(p).status, 0) << "process " << p;
}

/* A program ends without a word to its communicators, and CUDA before it. */
TEST_F(GpuFaults, DeviceResetUnderACommunicator) {
  RankProcesses processes;
  processes.start(2, [&](int r) {
    auto *gpu = new Gpu(r, 4096); /* never freed, as the device is reset */
    float *x = gpu->put(std::vector<float>(64, 1));
    tuttiComm_t comm;
    if (processes.keep(join(&comm, 2, processes.id(), r))) _exit(2);
    EXPECT_EQ(tuttiAllReduce(x, x, 64, tuttiFloat32, tuttiSum, comm, gpu->streams[0]),
              tuttiSuccess);
    EXPECT_EQ(awaitStream(gpu->streams[0]), cudaSuccess);
    EXPECT_EQ(cudaDeviceReset(), cudaSuccess);
    usleep(200000); /* ten looks of the thread that watches the kernels */
    exit(testing::Test::HasFailure() ? 3 : 0);
  });
  processes.waitAll(60);
  for (int r = 0; r < 2; r++)
    EXPECT_EQ(processes.report(r).status, 0) << processes.report(r).text;
}

/* Starting the driver, or NVML, costs a process time, descriptors and a thread. */
TEST(GpuUnused, RanksOnHostMemoryDoNotStartTheDriver) {
  if (access("/dev/nvidiactl", F_OK) != 0) GTEST_SKIP() << "no GPU: no driver";
  RankProcesses processes;
  processes.start(2, [&](int r) {
    setenv("TUTTI_DEVICE", "host", 1);
    std::vector<float> x(64, 1);
    tuttiComm_t comm;
    int fds = openFds(), threads = liveThreads();
    if (processes.keep(tuttiCommInitRank(&comm, 2, processes.id(), r))) _exit(2);
    EXPECT_EQ(tuttiAllReduce(x.data(), x.data(), 64, tuttiFloat32, tuttiSum, comm, nullptr),
              tuttiSuccess);
    EXPECT_EQ(x, std::vector<float>(64, 2));
    for (const auto &fd : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      std::string file = std::filesystem::read_symlink(fd.path(), gone);
      EXPECT_THAT(file, testing::Not(testing::StartsWith("/dev/nvidia")));
    }
    EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
    EXPECT_EQ(openFds(), fds);
    EXPECT_EQ(liveThreads(), threads);
    exit(testing::Test::HasFailure() ? 3 : 0);
  });
  processes.waitAll(60);
  for (int r = 0; r < 2; r++)
    EXPECT_EQ(processes.report(r).status, 0) << processes.report(r).text;
}

size_t freeMemory() {
  size_t all = 0, total, sum = 0;
  for (int d = 0; d < gpus(); d++) {
    EXPECT_EQ(cudaSetDevice(d), cudaSuccess);
    EXPECT_EQ(cudaMemGetInfo(&all, &total), cudaSuccess);
    sum += all;
  }
  return sum;
}

TEST_F(GpuFaults, CommunicatorsGiveAllMemoryBack) {
  size_t first = 0;
  for (int i = 0; i < 50; i++) {
    {
      GpuRanks ranks(4, (size_t)1 << 20);
      ASSERT_TRUE(ranks.ok());
      ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
        float *x = gpu.put(std::vector<float>(64, 1));
        TUTTI(tuttiAllReduce(x, x, 64, tuttiFloat32, tuttiSum, comm, gpu.streams[0]));
        ASSERT_EQ(awaitStream(gpu.streams[0]), cudaSuccess);
        if (i % 10 == 9 && r == 0) { /* also those that end in another way */
          EXPECT_EQ(tuttiCommAbort(std::exchange(ranks.comms[0][0], nullptr)), tuttiSuccess);
        } else if (i % 10 == 9) {
          awaitFailure(comm, 10);
          EXPECT_EQ(tuttiCommAbort(std::exchange(ranks.comms[(size_t)r][0], nullptr)),
                    tuttiSuccess);
        }
      });
    }
    if (i == 9) first = freeMemory(); /* what the driver keeps is there by now */
  }
  size_t last = freeMemory();
  EXPECT_GE(last + ((size_t)1 << 20), first) << (double)(first - last) / 1e6 << " MB are gone";
}

} // namespace

/* Life of communicators: split, groups over several communicators in one thread, non-blocking ones,
 * abort, agreement between ranks. */
#include <arpa/inet.h>
#include <linux/sockios.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <utility>

#include "asleep.h"
#include "base/os.h"
#include "harness.h"
#include "port.h"

using testing::AllOf;
using testing::HasSubstr;

namespace {

std::string lastError(tuttiComm_t comm = nullptr) {
  return tuttiGetLastError(comm);
}

/* Returns once a thread is in a collective of this communicator; after 60 s it has failed. */
void waitUntilBusy(tuttiComm_t comm) {
  tuttiCommunicator *c = nullptr;
  ASSERT_EQ(tuttiHandleEnter(comm, "test", &c), tuttiSuccess);
  for (uint64_t end = tuttiDeadline(60000); !tuttiLoadAcquire32(&c->busy) && tuttiNow() < end;)
    std::this_thread::yield();
  tuttiHandleLeave(c);
}

void expectSum(tuttiComm_t comm, int n) {
  float in = 1, out = 0;
  ASSERT_EQ(tuttiAllReduce(&in, &out, 1, tuttiFloat32, tuttiSum, comm, nullptr), tuttiSuccess)
      << lastError();
  ASSERT_EQ(out, n);
}

TEST(Split, ByColorAndKey) {
  Ranks ranks(5);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    tuttiComm_t part = nullptr;
    /* 0,2,4 in reverse order; 1,3 */
    ASSERT_EQ(tuttiCommSplit(comm, r % 2, -r, &part, nullptr), tuttiSuccess) << lastError();
    int n = 0, rank = 0;
    EXPECT_EQ(tuttiCommCount(part, &n), tuttiSuccess);
    EXPECT_EQ(tuttiCommUserRank(part, &rank), tuttiSuccess);
    EXPECT_EQ(n, r % 2 ? 2 : 3);
    EXPECT_EQ(rank, r % 2 ? (3 - r) / 2 : (4 - r) / 2);
    expectSum(part, n);
    expectSum(comm, 5); /* the parent goes on */
    EXPECT_EQ(tuttiCommDestroy(part), tuttiSuccess) << lastError();
  });
}

/* All ids that tuttiGetUniqueId makes are then one; those of the colors must not be. */
TEST(Split, ColorsKeepApartWithAFixedAddress) {
  HeldPort held;
  Settings fixed(
      {{"TUTTI_COMM_ID", "127.0.0.1:" + std::to_string(held.number())}, {"TUTTI_TIMEOUT", "30s"}});
  Ranks ranks(4);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    for (int round = 0; round < 5; round++) {
      tuttiComm_t part = nullptr;
      ASSERT_EQ(tuttiCommSplit(comm, r % 2, r, &part, nullptr), tuttiSuccess) << lastError();
      int bit = 1 << r, sum = 0;
      ASSERT_EQ(tuttiAllReduce(&bit, &sum, 1, tuttiInt32, tuttiSum, part, nullptr), tuttiSuccess)
          << lastError();
      EXPECT_EQ(sum, r % 2 ? 0xa : 0x5) << "rank " << r << " round " << round;
      ASSERT_EQ(tuttiCommDestroy(part), tuttiSuccess) << lastError();
    }
  });
}

TEST(Split, NoColorGetsNull) {
  Ranks ranks(3);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    tuttiComm_t part = (tuttiComm_t)1;
    ASSERT_EQ(tuttiCommSplit(comm, r == 1 ? TUTTI_SPLIT_NOCOLOR : 0, r, &part, nullptr),
              tuttiSuccess)
        << lastError();
    if (r == 1) {
      EXPECT_EQ(part, nullptr);
      return;
    }
    expectSum(part, 2);
    EXPECT_EQ(tuttiCommDestroy(part), tuttiSuccess);
  });
}

TEST(Split, BadColor) {
  Ranks ranks(1);
  ASSERT_TRUE(ranks.ok());
  tuttiComm_t part = nullptr;
  EXPECT_EQ(tuttiCommSplit(ranks.comms[0], -2, 0, &part, nullptr), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("color is -2"));
  EXPECT_EQ(tuttiCommSplit(ranks.comms[0], 0, 0, nullptr, nullptr), tuttiInvalidArgument);
}

TEST(InitAll, OneThreadDrivesAll) {
  constexpr int n = 4;
  tuttiComm_t comms[n];
  ASSERT_EQ(tuttiCommInitAll(comms, n, nullptr), tuttiSuccess) << lastError();
  std::vector<std::vector<float>> out(n, std::vector<float>(100000));
  std::vector<float> in(100000, 1);
  for (int round = 0; round < 3; round++) {
    ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
    for (int r = 0; r < n; r++)
      ASSERT_EQ(tuttiAllReduce(in.data(), out[r].data(), in.size(), tuttiFloat32, tuttiSum,
                               comms[r], nullptr),
                tuttiSuccess);
    ASSERT_EQ(tuttiGroupEnd(), tuttiSuccess) << lastError();
    for (int r = 0; r < n; r++)
      EXPECT_EQ(out[r], std::vector<float>(100000, n));
  }
  tuttiComm_t parts[n];
  ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
  for (int r = 0; r < n; r++)
    ASSERT_EQ(tuttiCommSplit(comms[r], r / 2, r, &parts[r], nullptr), tuttiSuccess);
  ASSERT_EQ(tuttiGroupEnd(), tuttiSuccess) << lastError();
  for (int r = 0; r < n; r++) {
    EXPECT_EQ(tuttiCommDestroy(parts[r]), tuttiSuccess);
    EXPECT_EQ(tuttiCommDestroy(comms[r]), tuttiSuccess);
  }
}

TEST(InitAll, BadDevices) {
  tuttiComm_t comms[2];
  int twice[] = {1, 1}, negative[] = {0, -1};
  EXPECT_EQ(tuttiCommInitAll(comms, 2, twice), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), HasSubstr("devlist[1] is 1"));
  EXPECT_EQ(tuttiCommInitAll(comms, 2, negative), tuttiInvalidArgument);
  EXPECT_EQ(tuttiCommInitAll(nullptr, 2, nullptr), tuttiInvalidArgument);
  EXPECT_EQ(tuttiCommInitAll(comms, 0, nullptr), tuttiInvalidArgument);
}

TEST(InitScalable, SeveralRoots) {
  constexpr int n = 7;
  tuttiUniqueId ids[3];
  for (auto &id : ids)
    ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  onThreads(n, [&](int r) {
    tuttiComm_t comm;
    ASSERT_EQ(tuttiCommInitRankScalable(&comm, n, r, 3, ids, nullptr), tuttiSuccess) << lastError();
    expectSum(comm, n);
    EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
  });
}

/* All-to-all by grouped sends and receives: none may wait for another's turn. */
TEST(Group, ManySendsAndReceives) {
  constexpr int n = 6;
  Ranks ranks(n);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    std::vector<int32_t> out(n * 50000), in(n * 50000, -1);
    for (int p = 0; p < n; p++)
      std::fill_n(out.begin() + p * 50000, 50000, r * 100 + p);
    for (int round = 0; round < 3; round++) {
      ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
      for (int p = 0; p < n; p++) {
        ASSERT_EQ(tuttiRecv(&in[p * 50000], 50000, tuttiInt32, p, comm, nullptr), tuttiSuccess);
        ASSERT_EQ(tuttiSend(&out[p * 50000], 50000, tuttiInt32, p, comm, nullptr), tuttiSuccess);
      }
      ASSERT_EQ(tuttiGroupEnd(), tuttiSuccess) << lastError();
      for (int p = 0; p < n; p++) {
        ASSERT_EQ(in[p * 50000], p * 100 + r);
        ASSERT_EQ(in[p * 50000 + 49999], p * 100 + r);
      }
    }
  });
}

TEST(Group, CollectivesInOrderAndNested) {
  Ranks ranks(3);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    std::vector<double> a(1000, r + 1), b(1000), c(1000);
    ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
    ASSERT_EQ(tuttiAllReduce(a.data(), b.data(), 1000, tuttiFloat64, tuttiSum, comm, nullptr),
              tuttiSuccess);
    ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
    ASSERT_EQ(tuttiAllReduce(b.data(), c.data(), 1000, tuttiFloat64, tuttiSum, comm, nullptr),
              tuttiSuccess);
    ASSERT_EQ(tuttiGroupEnd(), tuttiSuccess);
    ASSERT_EQ(tuttiBcast(a.data(), 1000, tuttiFloat64, 2, comm, nullptr), tuttiSuccess);
    EXPECT_EQ(b[0], 0) << "a nested end must not run the group";
    ASSERT_EQ(tuttiGroupEnd(), tuttiSuccess) << lastError();
    EXPECT_EQ(b, std::vector<double>(1000, 6));
    EXPECT_EQ(c, std::vector<double>(1000, 18));
    EXPECT_EQ(a, std::vector<double>(1000, 3));
  });
}

std::atomic<int> gpuTasks{0};

tuttiResult_t runOnGpu(const tuttiTaskSet *set) {
  for (int i = 0; i < set->ntasks; i++)
    EXPECT_EQ(((tuttiCommunicator *)set->tasks[i].context->comm)->device->kind, tuttiDeviceCuda);
  gpuTasks += set->ntasks;
  return tuttiDeviceCpuTable.run(set);
}

/* A group may hold operations on GPUs (here in name only) and on host memory: each device gets its
 * own. */
TEST(Group, OfSeveralDevices) {
  static tuttiDevice gpu = tuttiDeviceCpuTable;
  gpu.kind = tuttiDeviceCuda;
  gpu.run = runOnGpu;
  Ranks ranks(2), gpus(2);
  ASSERT_TRUE(ranks.ok() && gpus.ok());
  gpus.run([&](int, tuttiComm_t comm) {
    tuttiCommunicator *c = nullptr;
    ASSERT_EQ(tuttiHandleEnter(comm, "test", &c), tuttiSuccess);
    c->device = &gpu;
    tuttiHandleLeave(c);
  });
  ranks.run([&](int r, tuttiComm_t comm) {
    std::vector<float> in(1000, 1), out[4];
    ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
    for (int i = 0; i < 4; i++) {
      out[i].resize(1000);
      ASSERT_EQ(tuttiAllReduce(in.data(), out[i].data(), 1000, tuttiFloat32, tuttiSum,
                               i % 2 ? gpus.comms[r] : comm, nullptr),
                tuttiSuccess);
    }
    ASSERT_EQ(tuttiGroupEnd(), tuttiSuccess) << lastError();
    for (auto &o : out)
      EXPECT_EQ(o, std::vector<float>(1000, 2));
  });
  EXPECT_GE(gpuTasks, 4);
}

TEST(NonBlocking, InitCollectivesDestroy) {
  constexpr int n = 3;
  tuttiUniqueId id;
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.blocking = 0;
  tuttiComm_t comms[n];
  /* One thread drives all ranks, without groups: nothing blocks. */
  for (int r = 0; r < n; r++)
    ASSERT_EQ(tuttiCommInitRankConfig(&comms[r], n, id, r, &config), tuttiInProgress);
  for (int r = 0; r < n; r++)
    ASSERT_EQ(settle(comms[r]), tuttiSuccess) << lastError(comms[r]);
  std::vector<float> in(10000, 2), out[n];
  for (int r = 0; r < n; r++) {
    out[r].resize(10000);
    ASSERT_EQ(
        tuttiAllReduce(in.data(), out[r].data(), 10000, tuttiFloat32, tuttiSum, comms[r], nullptr),
        tuttiInProgress);
  }
  for (int r = 0; r < n; r++)
    ASSERT_EQ(settle(comms[r]), tuttiSuccess) << lastError(comms[r]);
  for (int r = 0; r < n; r++)
    EXPECT_EQ(out[r], std::vector<float>(10000, 6));
  ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
  for (int r = 0; r < n; r++) {
    EXPECT_EQ(tuttiSend(in.data(), 10000, tuttiFloat32, (r + 1) % n, comms[r], nullptr),
              tuttiSuccess);
    EXPECT_EQ(tuttiRecv(out[r].data(), 10000, tuttiFloat32, (r + 2) % n, comms[r], nullptr),
              tuttiSuccess);
  }
  EXPECT_EQ(tuttiGroupEnd(), tuttiInProgress) << lastError();
  for (int r = 0; r < n; r++)
    ASSERT_EQ(settle(comms[r]), tuttiSuccess) << lastError(comms[r]);
  for (int r = 0; r < n; r++)
    EXPECT_EQ(out[r], in);
  for (int r = 0; r < n; r++)
    EXPECT_EQ(tuttiCommDestroy(comms[r]), tuttiSuccess) << lastError();
}

/* As with NCCL: the calls succeed, and the end of the group says that it goes on. */
TEST(NonBlocking, InitInAGroup) {
  constexpr int n = 2;
  tuttiUniqueId id;
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.blocking = 0;
  tuttiComm_t comms[n] = {};
  ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
  for (int r = 0; r < n; r++)
    EXPECT_EQ(tuttiCommInitRankConfig(&comms[r], n, id, r, &config), tuttiSuccess) << lastError();
  EXPECT_EQ(tuttiGroupEnd(), tuttiInProgress);
  for (int r = 0; r < n; r++)
    ASSERT_EQ(settle(comms[r]), tuttiSuccess) << lastError(comms[r]);
  for (int r = 0; r < n; r++)
    EXPECT_EQ(tuttiCommDestroy(comms[r]), tuttiSuccess) << lastError();
}

/* A binding may keep the handle in a variable that is gone when the group ends. */
TEST(Groups, InitWritesTheHandleAtOnce) {
  constexpr int n = 2;
  tuttiUniqueId id;
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  tuttiComm_t written[n] = {}, comms[n];
  ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
  for (int r = 0; r < n; r++) {
    ASSERT_EQ(tuttiCommInitRank(&written[r], n, id, r), tuttiSuccess);
    comms[r] = written[r];
    written[r] = nullptr;
    EXPECT_EQ(tuttiCommDump(comms[r], "/dev/null"), tuttiInvalidUsage) << "nothing has begun";
  }
  ASSERT_EQ(tuttiGroupEnd(), tuttiSuccess) << lastError();
  for (int r = 0; r < n; r++) {
    int rank = -1;
    EXPECT_EQ(written[r], nullptr);
    ASSERT_EQ(tuttiCommUserRank(comms[r], &rank), tuttiSuccess) << lastError();
    EXPECT_EQ(rank, r);
    EXPECT_EQ(tuttiCommDestroy(comms[r]), tuttiSuccess) << lastError();
  }
}

/* Whatever a failed init has left in the variable is no live communicator. */
TEST(Groups, AFailedInitLeavesADeadHandle) {
  constexpr int n = 2;
  tuttiUniqueId id;
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  tuttiComm_t comms[n] = {};
  ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
  for (int r = 0; r < n; r++)
    ASSERT_EQ(tuttiCommInitRank(&comms[r], n, id, 0), tuttiSuccess); /* twice the same rank */
  EXPECT_NE(tuttiGroupEnd(), tuttiSuccess);
  for (int r = 0; r < n; r++) {
    EXPECT_EQ(tuttiCommDestroy(comms[r]), tuttiInvalidArgument);
    EXPECT_THAT(lastError(), HasSubstr("no live communicator"));
  }
  tuttiComm_t alone = (tuttiComm_t)1; /* outside of a group it is NULL then */
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.timeoutMs = 200;
  EXPECT_EQ(tuttiCommInitRankConfig(&alone, 2, id, 0, &config), tuttiTimeout);
  EXPECT_EQ(alone, nullptr);
}

TEST(NonBlocking, UseBeforeInitEnds) {
  tuttiUniqueId id;
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.blocking = 0;
  tuttiComm_t comm;
  ASSERT_EQ(tuttiCommInitRankConfig(&comm, 2, id, 0, &config), tuttiInProgress);
  float x = 1;
  EXPECT_EQ(tuttiAllReduce(&x, &x, 1, tuttiFloat32, tuttiSum, comm, nullptr), tuttiInvalidUsage);
  EXPECT_THAT(lastError(), HasSubstr("init has not ended"));
  EXPECT_EQ(tuttiCommDump(comm, "/dev/null"), tuttiInvalidUsage);
  EXPECT_THAT(lastError(), HasSubstr("no record before the init has succeeded"));
  EXPECT_EQ(tuttiCommAbort(comm), tuttiSuccess); /* needs no peer */
}

/* Connections open on first use, by when the environment may be another communicator's. */
TEST(Life, LaterSettingsDoNotReachOlderCommunicators) {
  for (const char *threads : {"0", "1"}) { /* off: P2P, then SHM */
    Settings scope({{"TUTTI_P2P_DISABLE", threads}, {"TUTTI_SHM_DISABLE", "0"}});
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.timeoutMs = 60000;
    Ranks older(3, &config);
    ASSERT_TRUE(older.ok());
    Settings none({{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_SHM_DISABLE", "1"}});
    Ranks later(3, &config);
    ASSERT_TRUE(later.ok());
    for (Ranks *ranks : {&later, &older})
      ranks->run([](int r, tuttiComm_t comm) {
        for (size_t count : {4, 300000}) {
          std::vector<int32_t> x(count, r + 1);
          EXPECT_EQ(tuttiAllReduce(x.data(), x.data(), count, tuttiInt32, tuttiSum, comm, nullptr),
                    tuttiSuccess)
              << lastError();
          EXPECT_EQ(x, std::vector<int32_t>(count, 6));
        }
      });
  }
}

/* The other rank sits in a collective; abort from another thread ends it, and the peer's. */
TEST(Abort, EndsEveryCallEverywhere) {
  for (auto &settings : std::vector<std::map<std::string, std::string>>{
           {},
           {{"TUTTI_P2P_DISABLE", "1"}},
           {{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_SHM_DISABLE", "1"}}}) {
    Settings scope(settings);
    Ranks ranks(3);
    ASSERT_TRUE(ranks.ok());
    std::atomic<pid_t> calls[2] = {};
    std::thread aborter([&] {
      for (int r : {0, 1}) {
        waitUntilBusy(ranks.comms[r]);
        waitUntilAsleep(calls[r]);
      }
      EXPECT_EQ(tuttiCommAbort(ranks.comms[0]), tuttiSuccess);
      ranks.comms[0] = nullptr;
    });
    ranks.run([&](int r, tuttiComm_t comm) {
      if (r == 2) return; /* never calls: ranks 0 and 1 wait */
      float x = 1;
      calls[r] = threadId();
      tuttiResult_t result = tuttiAllReduce(&x, &x, 1, tuttiFloat32, tuttiSum, comm, nullptr);
      EXPECT_EQ(result, r == 0 ? tuttiInvalidUsage : tuttiRemoteError);
      EXPECT_THAT(lastError(), HasSubstr(r == 0 ? "tuttiCommAbort" : "rank 0")) << r;
    });
    aborter.join();
    for (int r : {1, 2}) {
      auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      tuttiResult_t state = tuttiSuccess;
      while (state == tuttiSuccess && std::chrono::steady_clock::now() < until)
        ASSERT_EQ(tuttiCommGetAsyncError(ranks.comms[r], &state), tuttiSuccess);
      EXPECT_EQ(state, tuttiRemoteError);
      EXPECT_THAT(lastError(ranks.comms[r]), HasSubstr("rank 0"));
    }
  }
}

struct Mismatch {
  const char *name;
  std::function<tuttiResult_t(int, tuttiComm_t, float *, float *)> call;
  std::vector<std::string> texts;
};

/* One rank of three calls something else: every rank ends with both signatures. */
TEST(Mismatch, IsToldToEveryRank) {
  const Mismatch cases[] = {
      {"collective",
       [](int r, tuttiComm_t c, float *a, float *b) {
         return r == 1 ? tuttiBroadcast(a, b, 64, tuttiFloat32, 0, c, nullptr)
                       : tuttiAllReduce(a, b, 64, tuttiFloat32, tuttiSum, c, nullptr);
       },
       {"AllReduce", "Broadcast"}},
      {"count",
       [](int r, tuttiComm_t c, float *a, float *b) {
         return tuttiAllReduce(a, b, r == 1 ? 63 : 64, tuttiFloat32, tuttiSum, c, nullptr);
       },
       {"63", "64"}},
      {"type",
       [](int r, tuttiComm_t c, float *a, float *b) {
         return tuttiAllReduce(a, b, 64, r == 1 ? tuttiInt32 : tuttiFloat32, tuttiSum, c, nullptr);
       },
       {"int32", "float32"}},
      {"reduction",
       [](int r, tuttiComm_t c, float *a, float *b) {
         return tuttiAllReduce(a, b, 64, tuttiFloat32, r == 1 ? tuttiMax : tuttiSum, c, nullptr);
       },
       {"max", "sum"}},
      {"root",
       [](int r, tuttiComm_t c, float *a, float *b) {
         return tuttiReduce(a, b, 64, tuttiFloat32, tuttiSum, r == 1 ? 2 : 0, c, nullptr);
       },
       {"root 2", "root 0"}},
      {"zero count",
       [](int r, tuttiComm_t c, float *a, float *b) {
         return tuttiAllReduce(a, b, r == 1 ? 0 : 64, tuttiFloat32, tuttiSum, c, nullptr);
       },
       {"count 0", "count 64"}},
  };
  for (const char *transport : {"P2P", "SHM", "NET"})
    for (auto &k : cases) {
      SCOPED_TRACE(std::string(transport) + " " + k.name);
      std::map<std::string, std::string> settings;
      if (*transport != 'P') settings["TUTTI_P2P_DISABLE"] = "1";
      if (*transport == 'N') settings["TUTTI_SHM_DISABLE"] = "1";
      Settings scope(settings);
      tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
      config.timeoutMs = 60000;
      config.commName = "train";
      Ranks ranks(3, &config);
      ASSERT_TRUE(ranks.ok());
      ranks.run([&](int r, tuttiComm_t comm) {
        float a[64] = {0}, b[64];
        tuttiResult_t result = k.call(r, comm, a, b);
        /* A rank whose part was done at once learns it from its state. */
        auto until = std::chrono::steady_clock::now() + std::chrono::seconds(50);
        while (result == tuttiSuccess && std::chrono::steady_clock::now() < until)
          ASSERT_EQ(tuttiCommGetAsyncError(comm, &result), tuttiSuccess);
        EXPECT_EQ(result, tuttiInvalidUsage);
        std::string text = lastError(comm);
        EXPECT_THAT(text,
                    AllOf(HasSubstr("communicator train"), HasSubstr("#1 "), HasSubstr("rank 1")));
        for (auto &part : k.texts)
          EXPECT_THAT(text, HasSubstr(part));
      });
    }
}

/* Once more where the watch of a rank stood still for so long that it "does not answer". */
TEST(Timeout, NamesTheRankThatNeverCalled) {
  constexpr int n = 3;
  std::vector<std::string> texts(n);
  bool answered = false;
  for (int round = 0; round < 5 && !answered; round++) {
    Ranks ranks(n);
    ASSERT_TRUE(ranks.ok());
    std::atomic<int> ready{0};
    ranks.run([&](int r, tuttiComm_t comm) {
      float x = 1;
      EXPECT_EQ(tuttiAllReduce(&x, &x, 1, tuttiFloat32, tuttiSum, comm, nullptr), tuttiSuccess);
      for (ready++; ready < n;)
        std::this_thread::yield();
      if (r == 2) return;
      setTimeout(comm, 1500);
      EXPECT_EQ(tuttiAllReduce(&x, &x, 1, tuttiFloat32, tuttiSum, comm, nullptr), tuttiTimeout);
      texts[r] = lastError();
    });
    answered = true;
    for (auto &text : texts)
      answered = answered && text.find("does not answer") == std::string::npos;
  }
  for (int r : {0, 1})
    EXPECT_THAT(texts[r], AllOf(HasSubstr("#2 AllReduce"), HasSubstr("rank 2 (host "),
                                HasSubstr("has not called it"), HasSubstr("TUTTI_TIMEOUT")));
}

/* Ranks that wait for one that has left by a call are told, and at once all others. */
void expectLeft(int n, double most,
                const std::function<tuttiResult_t(int, tuttiComm_t, std::vector<float> &)> &call) {
  Ranks ranks(n);
  std::atomic<int> ready{0};
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm) {
    std::vector<float> x(1 << 18, 1);
    EXPECT_EQ(tuttiAllReduce(x.data(), x.data(), 1, tuttiFloat32, tuttiSum, comm, nullptr),
              tuttiSuccess);
    for (ready++; ready < n;)
      std::this_thread::yield();
    if (r == 2) {
      usleep(700000); /* some have asked already, and heard that it is there */
      EXPECT_EQ(tuttiCommDestroy(std::exchange(ranks.comms[2], nullptr)), tuttiSuccess);
      return;
    }
    uint64_t from = tuttiNow();
    tuttiResult_t result = tuttiSuccess;
    for (int i = 0; i < 1000 && result == tuttiSuccess; i++)
      result = call(r, comm, x);
    EXPECT_EQ(result, tuttiRemoteError) << "rank " << r;
    EXPECT_LT(double(tuttiNow() - from) / 1e9, most) << "rank " << r;
    EXPECT_THAT(lastError(), AllOf(HasSubstr("rank 2 (host "),
                                   HasSubstr("has destroyed its communicator and will not come")));
  });
  for (auto &comm : ranks.comms)
    if (comm) {
      EXPECT_EQ(tuttiCommAbort(std::exchange(comm, nullptr)), tuttiSuccess);
    }
}

TEST(Left, EndsCollectives) {
  for (int n : {3, 4, 7}) {
    expectLeft(n, 10, [](int, tuttiComm_t comm, std::vector<float> &x) {
      return tuttiAllReduce(x.data(), x.data(), 1, tuttiFloat32, tuttiSum, comm, nullptr);
    });
    expectLeft(n, 10, [&](int, tuttiComm_t comm, std::vector<float> &x) {
      std::vector<float> y(x.size() / n);
      return tuttiReduceScatter(x.data(), y.data(), y.size(), tuttiFloat32, tuttiMax, comm,
                                nullptr);
    });
  }
}

/* The root stores once for all ranks of its host, until nobody takes it; the others hear of it. */
TEST(Left, EndsBroadcasts) {
  for (size_t count : {1, 1 << 18})
    expectLeft(4, 10, [&](int, tuttiComm_t comm, std::vector<float> &x) {
      return tuttiBroadcast(x.data(), x.data(), count, tuttiFloat32, 0, comm, nullptr);
    });
}

TEST(Left, EndsMessages) {
  expectLeft(4, 10, [](int r, tuttiComm_t comm, std::vector<float> &x) {
    if (r == 0) return tuttiSend(x.data(), x.size(), tuttiFloat32, 2, comm, nullptr);
    return tuttiRecv(x.data(), x.size(), tuttiFloat32, 2, comm, nullptr);
  });
}

TEST(Left, EndsWaitsOverANetwork) {
  Settings net({{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_SHM_DISABLE", "1"}});
  expectLeft(4, 25, [](int, tuttiComm_t comm, std::vector<float> &x) {
    return tuttiAllReduce(x.data(), x.data(), 1, tuttiFloat32, tuttiSum, comm, nullptr);
  });
}

/* Who has done its part and left is no reason: others are late, and come. */
TEST(Left, HavingDoneItsPart) {
  Ranks ranks(4);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm) {
    std::vector<float> x(1 << 16, 1);
    if (r == 1) usleep(4000000);
    EXPECT_EQ(tuttiBroadcast(x.data(), x.data(), x.size(), tuttiFloat32, 0, comm, nullptr),
              tuttiSuccess)
        << lastError();
    if (r == 0) {
      EXPECT_EQ(tuttiSend(x.data(), 1, tuttiFloat32, 3, comm, nullptr), tuttiSuccess);
      EXPECT_EQ(tuttiCommDestroy(std::exchange(ranks.comms[0], nullptr)), tuttiSuccess);
    } else if (r == 3) {
      EXPECT_EQ(tuttiRecv(x.data(), 1, tuttiFloat32, 1, comm, nullptr), tuttiSuccess)
          << lastError();
      EXPECT_EQ(tuttiRecv(x.data(), 1, tuttiFloat32, 0, comm, nullptr), tuttiSuccess)
          << lastError();
    } else if (r == 1) {
      EXPECT_EQ(tuttiSend(x.data(), 1, tuttiFloat32, 3, comm, nullptr), tuttiSuccess)
          << lastError();
    }
  });
}

/* Bytes that TCP sockets of this process hold back, as their receivers have no room. */
int heldBack() {
  int sum = 0;
  for (int fd = 0, bytes; fd < 1024; fd++)
    if (ioctl(fd, SIOCOUTQNSD, &bytes) == 0) sum += bytes;
  return sum;
}

/* Whether some are held back and stay so: nobody is reading. */
bool isFull() {
  int before = heldBack();
  usleep(200000);
  return before > 0 && heldBack() == before;
}

/* A message is on its way when send returns; the time that counts is that of those who wait. Only
 * the connection has 2 s, and not before it looks for the peer. How much the kernel takes for a
 * receiver that does not come yet depends on buffers that grow, and on TLS. */
TEST(Timeout, NoneForWhatIsSentAndReceivedLate) {
  Settings net({{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_SHM_DISABLE", "1"}});
  Ranks ranks(2);
  std::atomic<int> sends{0};
  std::atomic<bool> full{false};
  const std::vector<char> sent(500000, 7);
  ASSERT_TRUE(ranks.ok());
  onThreads(2, [&](int r) {
    tuttiComm_t comm = ranks.comms[r];
    char x = 1;
    if (r == 0) {
      tuttiCommunicator *c = nullptr;
      ASSERT_EQ(tuttiHandleEnter(comm, "test", &c), tuttiSuccess);
      tuttiHandleLeave(c);
      tuttiProxyEnter(c->view.proxy); /* its thread rests */
      EXPECT_EQ(tuttiSend(&x, 1, tuttiInt8, 1, comm, nullptr), tuttiSuccess);
      c->view.timeoutMs = 2000;
      tuttiProxyLeave(c->view.proxy);
      sends++;
      do {
        EXPECT_EQ(tuttiSend(sent.data(), sent.size(), tuttiInt8, 1, comm, nullptr), tuttiSuccess);
        sends++;
      } while (!isFull());
      full = true;
      return;
    }
    while (sends < 1) /* so it is not connected yet */
      std::this_thread::yield();
    EXPECT_EQ(tuttiRecv(&x, 1, tuttiInt8, 0, comm, nullptr), tuttiSuccess);
    while (!full)
      std::this_thread::yield();
    sleep(7); /* the time is the subject: well beyond that of the connection */
    for (int i = 1; i < sends; i++) {
      std::vector<char> got(sent.size());
      ASSERT_EQ(tuttiRecv(got.data(), got.size(), tuttiInt8, 0, comm, nullptr), tuttiSuccess)
          << lastError();
      EXPECT_EQ(got, sent);
    }
  });
}

TEST(Threads, SecondOneIsRefused) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  Ranks ranks(2, &config);
  ASSERT_TRUE(ranks.ok());
  std::thread first([&] {
    float x = 1;
    EXPECT_EQ(tuttiAllReduce(&x, &x, 1, tuttiFloat32, tuttiSum, ranks.comms[0], nullptr),
              tuttiSuccess)
        << lastError();
  });
  waitUntilBusy(ranks.comms[0]);
  float y = 1;
  EXPECT_EQ(tuttiAllReduce(&y, &y, 1, tuttiFloat32, tuttiSum, ranks.comms[0], nullptr),
            tuttiInvalidUsage);
  EXPECT_THAT(lastError(), HasSubstr("one thread may use at a time"));
  EXPECT_EQ(tuttiAllReduce(&y, &y, 1, tuttiFloat32, tuttiSum, ranks.comms[1], nullptr),
            tuttiSuccess);
  EXPECT_EQ(y, 2);
  first.join();
}

/* A framework registers in the thread that allocates, while another one sums. */
TEST(Threads, AnyOneRegistersAndMakesReductions) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  std::atomic<bool> over{false};
  std::vector<std::thread> others;
  for (auto comm : ranks.comms)
    others.emplace_back([comm, &over] {
      char memory[64];
      float scalar = 3;
      while (!over) {
        void *handle = nullptr;
        tuttiRedOp_t ops[20] = {}; /* more than the first table has */
        ASSERT_EQ(tuttiCommRegister(comm, memory, sizeof memory, &handle), tuttiSuccess);
        for (auto &op : ops)
          ASSERT_EQ(
              tuttiRedOpCreatePreMulSum(&op, &scalar, tuttiFloat32, tuttiScalarHostImmediate, comm),
              tuttiSuccess);
        for (auto &op : ops)
          ASSERT_EQ(tuttiRedOpDestroy(op, comm), tuttiSuccess);
        ASSERT_EQ(tuttiCommDeregister(comm, handle), tuttiSuccess);
      }
    });
  ranks.run([](int, tuttiComm_t comm) {
    char memory[64];
    float scalar = 2, x = 1, y = 0;
    tuttiRedOp_t op;
    ASSERT_EQ(tuttiRedOpCreatePreMulSum(&op, &scalar, tuttiFloat32, tuttiScalarHostImmediate, comm),
              tuttiSuccess);
    for (int i = 0; i < 2000; i++) {
      void *handle = nullptr;
      ASSERT_EQ(tuttiCommRegister(comm, memory, sizeof memory, &handle), tuttiSuccess);
      ASSERT_EQ(tuttiAllReduce(&x, &y, 1, tuttiFloat32, op, comm, nullptr), tuttiSuccess);
      ASSERT_EQ(y, 4);
      ASSERT_EQ(tuttiCommDeregister(comm, handle), tuttiSuccess);
    }
  });
  over = true;
  for (auto &t : others)
    t.join();
}

/* Lists meant for NCCL do not fail; tutti's own name the word and what is accepted. */
TEST(Words, OfAlgorithms) {
  {
    Settings scope({{"NCCL_ALGO", "NVLS,CollNet"}, {"NCCL_PROTO", "LL128"}});
    Ranks ranks(2);
    ASSERT_TRUE(ranks.ok());
    ranks.run([](int, tuttiComm_t comm) { expectSum(comm, 2); });
  }
  std::map<std::string, std::string> bad = {{"TUTTI_ALGO", "Ringg"}};
  Settings scope(bad);
  tuttiUniqueId id;
  tuttiComm_t comm = nullptr;
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  EXPECT_EQ(tuttiCommInitRank(&comm, 1, id, 0), tuttiInvalidArgument);
  EXPECT_THAT(lastError(), AllOf(HasSubstr("TUTTI_ALGO"), HasSubstr("Ringg"), HasSubstr("Direct")));
}

} // namespace

/* In a group they wait for its end, even of one that fails, and the handles are gone behind it. */
TEST(Abort, InAGroup) {
  for (bool fails : {false, true}) {
    Ranks ranks(2), others(2);
    ASSERT_TRUE(ranks.ok() && others.ok());
    float x = 1;
    ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
    for (Ranks *all : {&ranks, &others})
      EXPECT_EQ(tuttiCommAbort(all->comms[0]), tuttiSuccess);
    if (fails) {
      EXPECT_EQ(tuttiAllReduce(&x, &x, 1, tuttiFloat32, tuttiSum, nullptr, nullptr),
                tuttiInvalidArgument);
    }
    EXPECT_EQ(tuttiGroupEnd(), fails ? tuttiInvalidArgument : tuttiSuccess);
    for (Ranks *all : {&ranks, &others}) {
      EXPECT_EQ(tuttiCommAbort(all->comms[0]), tuttiInvalidArgument);
      EXPECT_THAT(lastError(), HasSubstr("aborted"));
      EXPECT_EQ(tuttiCommAbort(all->comms[1]), tuttiSuccess);
      all->comms = {nullptr, nullptr};
    }
  }
}

TEST(Abort, DestroyOfWhatTheGroupAbortsIsRefused) {
  Ranks ranks(1);
  ASSERT_TRUE(ranks.ok());
  tuttiComm_t comm = std::exchange(ranks.comms[0], nullptr);
  ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
  EXPECT_EQ(tuttiCommAbort(comm), tuttiSuccess);
  EXPECT_EQ(tuttiCommDestroy(comm), tuttiInvalidUsage); /* it would wait for the abort for ever */
  EXPECT_THAT(lastError(), HasSubstr("aborted already"));
  EXPECT_EQ(tuttiCommAbort(comm), tuttiInvalidUsage);
  EXPECT_EQ(tuttiGroupEnd(), tuttiSuccess);
  EXPECT_EQ(tuttiCommDestroy(comm), tuttiInvalidArgument);
}

uint32_t spinsOf(int nranks) {
  Ranks ranks(nranks);
  if (!ranks.ok()) return UINT32_MAX;
  tuttiCommunicator *c = nullptr;
  EXPECT_EQ(tuttiHandleEnter(ranks.comms[0], "test", &c), tuttiSuccess);
  uint32_t spins = c->context.spins;
  tuttiHandleLeave(c);
  return spins;
}

/* Where the ranks leave no core free, waiters spin for a moment only: two may be on one core, and
 * the kernel's part of a network needs theirs. */
TEST(Life, WaitersSpinAsLongAsNobodyNeedsTheirCore) {
  cpu_set_t before, two;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "needs two cores";
  CPU_ZERO(&two);
  for (size_t i = 0; CPU_COUNT(&two) < 2; i++)
    if (CPU_ISSET(i, &before)) CPU_SET(i, &two);
  ASSERT_EQ(sched_setaffinity(0, sizeof two, &two), 0);
  EXPECT_EQ(spinsOf(1), 20000u);
  EXPECT_EQ(spinsOf(2), 100u);
  EXPECT_EQ(spinsOf(3), 0u);
  { /* two of three that share the cores, as another communicator shows */
    Ranks crowd(3);
    ASSERT_TRUE(crowd.ok());
    EXPECT_EQ(spinsOf(2), 0u);
    EXPECT_EQ(spinsOf(1), 0u);
  }
  EXPECT_EQ(spinsOf(2), 100u) << "they have gone";
  {
    Settings network({{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_SHM_DISABLE", "1"}});
    EXPECT_EQ(spinsOf(1), 20000u);
    EXPECT_EQ(spinsOf(2), 5u);
    EXPECT_EQ(spinsOf(3), 0u);
  }
  EXPECT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

/* A file may have any number of channels; the settings say how many of them are used. */
TEST(Life, ChannelsOfAGraphFileAreLimitedToo) {
  std::string path = testing::TempDir() + "tutti-channels-" + std::to_string(getpid()), channel;
  channel = "<channel><ring ranks='0 1'/><tree parents='-1 0'/></channel>";
  std::ofstream(path) << "<graph version='1' channels='3' hosts='0 0'>" + channel + channel +
                             channel + "</graph>";
  for (int most : {0, 1, 2, 32}) {
    Settings settings(std::map<std::string, std::string>{
        {"TUTTI_GRAPH_FILE", path}, {"TUTTI_MAX_NCHANNELS", std::to_string(most)}});
    Ranks ranks(2);
    ASSERT_TRUE(ranks.ok());
    tuttiCommunicator *c = nullptr;
    ASSERT_EQ(tuttiHandleEnter(ranks.comms[0], "test", &c), tuttiSuccess);
    EXPECT_EQ(c->wireup.plan.maxChannels, most == 0 ? 3 : std::min(most, 3));
    EXPECT_EQ(c->view.nchannels, c->wireup.plan.maxChannels);
    tuttiHandleLeave(c);
  }
  unlink(path.c_str());
}

/* An executor knows that the peer's message is another operation's; the peers' states may not. */
TEST(Stalled, ByAMessageOfSomethingElse) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  tuttiCommunicator *c;
  ASSERT_EQ(tuttiHandleEnter(ranks.comms[0], "test", &c), tuttiSuccess);
  tuttiSignature mine = {};
  mine.count = 17;
  mine.root = 1;
  mine.coll = tuttiCollSendRecv;
  mine.redop = 0xffff;
  EXPECT_EQ(tuttiCommStalled(c, &mine, 1, TUTTI_DISAGREES), tuttiInvalidUsage);
  EXPECT_THAT(tuttiErrorText(), AllOf(HasSubstr("ranks disagree"), HasSubstr("count 17"),
                                      HasSubstr("called something else")));
  tuttiHandleLeave(c);
  for (auto &comm : ranks.comms)
    EXPECT_EQ(tuttiCommAbort(std::exchange(comm, nullptr)), tuttiSuccess);
}

// Puts, signals and waits.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include "harness.h"
#include "processes.h"

using testing::AllOf;
using testing::HasSubstr;

namespace {

std::string lastError(tuttiComm_t comm = nullptr) {
  return tuttiGetLastError(comm);
}

tuttiResult_t wait(tuttiComm_t comm, int peer, int count = 1, int sig = 0, int ctx = 0) {
  tuttiWaitSignalDesc_t desc = {count, peer, sig, ctx};
  return tuttiWaitSignal(1, &desc, comm, nullptr);
}

/* Sockets, or what TUTTI_TEST_NET says; tests/softhca runs these tests once more over NET/IB. */
std::string networkName() {
  const char *net = getenv("TUTTI_TEST_NET");
  return net ? net : "Socket";
}

using Env = std::map<std::string, std::string>;
const Env threads = {}, processes = {{"TUTTI_P2P_DISABLE", "1"}},
          network = {
              {"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_SHM_DISABLE", "1"}, {"TUTTI_NET", networkName()}};

tuttiConfig_t many(int contexts, int signals) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.numRmaCtx = contexts;
  config.numRmaSig = signals;
  return config;
}

/* How ranks of this one process reach each other. */
class OneSided : public testing::TestWithParam<Env> {
protected:
  Settings settings{GetParam()};
};

/* Every rank writes a block into its place at every rank, itself included, round after round. */
TEST_P(OneSided, DataIsThereWithItsSignal) {
  constexpr int n = 4;
  for (size_t count : {(size_t)1, (size_t)9, (size_t)1000, (size_t)300000}) {
    const int rounds = count < 1000 ? 100 : 5;
    Ranks ranks(n);
    ASSERT_TRUE(ranks.ok());
    ranks.run([&](int r, tuttiComm_t comm) {
      std::vector<uint32_t> window(count * n * 2, 0), mine(count), expected(count);
      tuttiWindow_t win = nullptr;
      ASSERT_EQ(tuttiCommWindowRegister(comm, window.data(), window.size() * 4, &win, 0),
                tuttiSuccess)
          << lastError();
      for (int round = 1; round <= rounds; round++) {
        std::iota(mine.begin(), mine.end(), (uint32_t)(round * 1000003 + r * 7919));
        size_t at = ((size_t)(round % 2) * n + (size_t)r) * count; /* two halves, by turns */
        for (int i = 0; i < n; i++)
          ASSERT_EQ(tuttiPutSignal(mine.data(), count, tuttiUint32, (r + i) % n, win, at * 4, 0, 0,
                                   0, comm, nullptr),
                    tuttiSuccess)
              << lastError(comm);
        std::fill(mine.begin(), mine.end(), 0); /* it is the caller's again */
        for (int p = 0; p < n; p++) {
          ASSERT_EQ(wait(comm, p), tuttiSuccess) << lastError(comm);
          std::iota(expected.begin(), expected.end(), (uint32_t)(round * 1000003 + p * 7919));
          const uint32_t *from = &window[((size_t)(round % 2) * n + (size_t)p) * count];
          ASSERT_EQ(memcmp(from, expected.data(), count * 4), 0) << p << " " << count;
        }
      }
      EXPECT_EQ(tuttiCommWindowDeregister(comm, win), tuttiSuccess);
    });
  }
}

TEST_P(OneSided, SignalsAreCountedByRankIndexAndContext) {
  constexpr int n = 3, contexts = 2, signals = 3;
  tuttiConfig_t config = many(contexts, signals);
  Ranks ranks(n, &config);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm) {
    char window[8];
    tuttiWindow_t win = nullptr;
    ASSERT_EQ(tuttiCommWindowRegister(comm, window, sizeof window, &win, 0), tuttiSuccess);
    auto times = [](int from, int to, int ctx, int sig) { return from + 2 * to + 5 * ctx + sig; };
    for (int p = 0; p < n; p++)
      for (int ctx = 0; ctx < contexts; ctx++)
        for (int sig = 0; sig < signals; sig++)
          for (int i = 0; i < times(r, p, ctx, sig); i++)
            ASSERT_EQ(tuttiSignal(p, sig, ctx, 0, comm, nullptr), tuttiSuccess) << lastError(comm);
    std::vector<tuttiWaitSignalDesc_t> descs; /* more than fit without memory; each in two parts */
    for (int p = 0; p < n; p++)
      for (int ctx = 0; ctx < contexts; ctx++)
        for (int sig = 0; sig < signals; sig++) {
          int all = times(p, r, ctx, sig);
          descs.push_back({all / 3, p, sig, ctx});
          descs.push_back({all - all / 3, p, sig, ctx});
        }
    ASSERT_EQ(tuttiWaitSignal((int)descs.size(), descs.data(), comm, nullptr), tuttiSuccess)
        << lastError(comm);
    ASSERT_EQ(tuttiWaitSignal(0, nullptr, comm, nullptr), tuttiSuccess);
    /* And not one more: a last one, known by its order. */
    for (int p = 0; p < n; p++)
      ASSERT_EQ(tuttiSignal(p, 1, 1, 0, comm, nullptr), tuttiSuccess);
    for (int p = 0; p < n; p++)
      ASSERT_EQ(wait(comm, p, 1, 1, 1), tuttiSuccess);
    setTimeout(comm, 50);
    EXPECT_EQ(wait(comm, (r + 1) % n, 1, 2, 0), tuttiTimeout);
    EXPECT_THAT(lastError(comm), AllOf(HasSubstr("for 1 signal of index 2 and context 0 from"),
                                       HasSubstr("of which 0 have come")));
  });
}

/* Waits are called before the puts that they wait for; one group of two communicators' calls. */
TEST_P(OneSided, InGroups) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  double window[2][2] = {};
  tuttiWindow_t wins[2] = {};
  ranks.run([&](int r, tuttiComm_t comm) {
    ASSERT_EQ(tuttiCommWindowRegister(comm, window[r], sizeof window[r], &wins[r], 0),
              tuttiSuccess);
  });
  for (int round = 1; round < 10; round++) {
    double out[2] = {round + 0.5, round + 0.25};
    float in[2] = {1, 2}, sum[2] = {};
    ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
    for (int r = 0; r < 2; r++) {
      EXPECT_EQ(wait(ranks.comms[r], 1 - r), tuttiSuccess);
      EXPECT_EQ(tuttiPutSignal(&out[r], 1, tuttiDouble, 1 - r, wins[r], 8, 0, 0, 0, ranks.comms[r],
                               nullptr),
                tuttiSuccess);
      EXPECT_EQ(tuttiAllReduce(&in[r], &sum[r], 1, tuttiFloat, tuttiSum, ranks.comms[r], nullptr),
                tuttiSuccess);
    }
    ASSERT_EQ(tuttiGroupEnd(), tuttiSuccess) << lastError();
    for (int r = 0; r < 2; r++) {
      EXPECT_EQ(window[r][1], out[1 - r]);
      EXPECT_EQ(window[r][0], 0);
      EXPECT_EQ(sum[r], 3);
    }
  }
  ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
  EXPECT_EQ(tuttiSignal(1, 0, 0, 0, ranks.comms[0], nullptr), tuttiSuccess);
  EXPECT_EQ(tuttiSignal(7, 0, 0, 0, ranks.comms[0], nullptr), tuttiInvalidArgument);
  EXPECT_EQ(tuttiGroupEnd(), tuttiInvalidArgument) << "and none of it runs";
  setTimeout(ranks.comms[1], 20);
  EXPECT_EQ(wait(ranks.comms[1], 0), tuttiTimeout);
}

/* What is wrong is told at the caller, and nothing is written. */
TEST_P(OneSided, BadArguments) {
  tuttiConfig_t config = many(2, 3);
  Ranks ranks(2, &config);
  ASSERT_TRUE(ranks.ok());
  std::vector<uint32_t> window[2] = {std::vector<uint32_t>(25, 7), std::vector<uint32_t>(25, 7)};
  tuttiWindow_t wins[2] = {};
  tuttiComm_t comm = ranks.comms[0];
  EXPECT_EQ(tuttiSignal(1, 0, 0, 0, comm, nullptr), tuttiInvalidUsage);
  EXPECT_THAT(lastError(comm), HasSubstr("need a first window"));
  ranks.run([&](int r, tuttiComm_t c) {
    ASSERT_EQ(tuttiCommWindowRegister(c, window[r].data(), 100, &wins[r], 0), tuttiSuccess);
  });
  uint32_t data[30] = {};
  auto put = [&](size_t count, size_t offset, int peer = 1, int sig = 0, int ctx = 0,
                 unsigned flags = 0, tuttiDataType_t type = tuttiUint32, const void *from = nullptr,
                 tuttiWindow_t win = nullptr) {
    return tuttiPutSignal(from ? from : data, count, type, peer, win ? win : wins[0], offset, sig,
                          ctx, flags, comm, nullptr);
  };
  auto expect = [&](tuttiResult_t result, const char *text) {
    EXPECT_EQ(result, tuttiInvalidArgument) << text;
    EXPECT_THAT(lastError(comm), HasSubstr(text));
  };
  expect(put(26, 0), "peerWinOffset (0) and count (26 x 4 bytes) reach past the end of window #1, "
                     "which has 100 bytes on rank 1");
  expect(put(1, 97), "reach past the end of window #1");
  expect(put(1, 101), "peerWinOffset (101)");
  expect(put(0, 101), "peerWinOffset (101)");
  expect(put(1, SIZE_MAX - 1), "reach past the end");
  expect(put(SIZE_MAX / 2, 0), "reach past the end");
  expect(put(1, 0, 2), "argument peer is 2; it must be a rank, 0 to 1");
  expect(put(1, 0, -1), "argument peer is -1");
  expect(put(1, 0, 1, 3), "argument sigIdx is 3; it must be 0 to 2, as config.numRmaSig is 3");
  expect(put(1, 0, 1, 0, 2), "argument ctx is 2; it must be 0 to 1, as config.numRmaCtx is 2");
  expect(put(1, 0, 1, 0, 0, 4), "argument flags is 0x4");
  expect(put(1, 0, 1, 0, 0, 0, (tuttiDataType_t)12), "argument datatype is 12");
  expect(put(1, 0, 1, 0, 0, 0, tuttiUint32, nullptr, wins[1]), "is no live window");
  expect(tuttiPutSignal(nullptr, 1, tuttiUint32, 1, wins[0], 0, 0, 0, 0, comm, nullptr),
         "argument localbuff is NULL; count is 1");
  expect(tuttiSignal(1, -1, 0, 0, comm, nullptr), "argument sigIdx is -1");
  expect(tuttiSignal(1, 0, 0, 1, comm, nullptr), "argument flags is 0x1");
  expect(wait(comm, 2), "argument peer is 2");
  expect(wait(comm, 1, -1), "signalDescs[0].opCnt is -1");
  expect(wait(comm, 1, 1, 0, 2), "argument ctx is 2");
  expect(tuttiWaitSignal(-1, nullptr, comm, nullptr), "argument nDesc is -1");
  expect(tuttiWaitSignal(1, nullptr, comm, nullptr), "argument signalDescs is NULL");
  EXPECT_EQ(window[1], std::vector<uint32_t>(25, 7));
  EXPECT_EQ(put(25, 0), tuttiSuccess) << lastError(comm);
  EXPECT_EQ(put(0, 100), tuttiSuccess) << "nothing at the very end: " << lastError(comm);
  EXPECT_EQ(put(1, 96), tuttiSuccess) << lastError(comm);
  EXPECT_EQ(wait(ranks.comms[1], 0, 3), tuttiSuccess) << lastError(ranks.comms[1]);
  EXPECT_EQ(window[1], std::vector<uint32_t>(25, 0));
  EXPECT_EQ(window[0], std::vector<uint32_t>(25, 7));
}

/* Looks as a program may that does not wait: ThreadSanitizer is right that nothing orders it. */
__attribute__((noinline, no_sanitize("thread"))) uint32_t peek(const uint32_t *at) {
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

/* The peer makes no call of the library: it looks at its own memory, as any program may. */
TEST_P(OneSided, ThePeerNeedNotCall) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  constexpr size_t count = 3 << 20; /* more than slots hold */
  std::vector<uint32_t> window(count), data(count, 5);
  ranks.run([&](int r, tuttiComm_t comm) {
    tuttiWindow_t win = nullptr;
    ASSERT_EQ(tuttiCommWindowRegister(comm, window.data(), count * 4, &win, 0), tuttiSuccess);
    if (r == 0) {
      ASSERT_EQ(tuttiPutSignal(data.data(), count, tuttiUint32, 1, win, 0, 0, 0, 0, comm, nullptr),
                tuttiSuccess)
          << lastError(comm);
      return;
    }
    while (peek(&window[count - 1]) != 5)
      std::this_thread::yield();
    EXPECT_EQ(wait(comm, 0), tuttiSuccess);
    EXPECT_EQ(window, data);
  });
}

/* Signals of a rank that has left by a call do not come any more; those that have come count. */
TEST_P(OneSided, ARankThatLeavesEndsAWaitForItsSignals) {
  Ranks ranks(3);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm) {
    uint32_t window = 0, data = 7;
    tuttiWindow_t win = nullptr;
    ASSERT_EQ(tuttiCommWindowRegister(comm, &window, 4, &win, 0), tuttiSuccess);
    if (r == 2) {
      EXPECT_EQ(tuttiPutSignal(&data, 1, tuttiUint32, 0, win, 0, 0, 0, 0, comm, nullptr),
                tuttiSuccess)
          << lastError(comm);
      EXPECT_EQ(tuttiCommDestroy(std::exchange(ranks.comms[2], nullptr)), tuttiSuccess);
      return;
    }
    if (r == 0) {
      EXPECT_EQ(wait(comm, 2), tuttiSuccess) << lastError(comm);
      EXPECT_EQ(peek(&window), 7u);
    }
    EXPECT_EQ(wait(comm, 2, 3, 0), tuttiRemoteError);
    EXPECT_THAT(lastError(comm),
                AllOf(HasSubstr("waits for 3 signals of index 0 and context 0 from rank 2 (host "),
                      HasSubstr("has destroyed its communicator and will not come")));
  });
  for (auto &comm : ranks.comms)
    if (comm) {
      EXPECT_EQ(tuttiCommAbort(std::exchange(comm, nullptr)), tuttiSuccess);
    }
}

/* What had come counts for the next call, which waits no longer than one of one signal. */
TEST_P(OneSided, AWaitThatFailsTakesNothing) {
  Ranks ranks(3);
  ASSERT_TRUE(ranks.ok());
  std::atomic<bool> late{false};
  ranks.run([&](int r, tuttiComm_t comm) {
    uint32_t window = 0;
    tuttiWindow_t win = nullptr;
    ASSERT_EQ(tuttiCommWindowRegister(comm, &window, 4, &win, 0), tuttiSuccess);
    if (r == 2)
      while (!late)
        std::this_thread::yield();
    if (r > 0) {
      EXPECT_EQ(tuttiSignal(0, 0, 0, 0, comm, nullptr), tuttiSuccess) << lastError(comm);
      return;
    }
    tuttiWaitSignalDesc_t both[] = {{1, 1, 0, 0}, {1, 2, 0, 0}};
    setTimeout(comm, 300);
    EXPECT_EQ(tuttiWaitSignal(2, both, comm, nullptr), tuttiTimeout);
    EXPECT_THAT(lastError(comm), HasSubstr("of which 0 have come"));
    late = true;
    setTimeout(comm, 60000);
    EXPECT_EQ(tuttiWaitSignal(2, both, comm, nullptr), tuttiSuccess) << lastError(comm);
    setTimeout(comm, 20);
    EXPECT_EQ(wait(comm, 1), tuttiTimeout) << "it was there twice";
  });
}

/* More windows are made than there are places for them, while one stays open. */
TEST_P(OneSided, AWindowMayStayWhileManyOthersComeAndGo) {
  constexpr uint32_t places = 4096;
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    uint32_t first[2] = {}, others[2] = {}, last[2][2] = {};
    tuttiWindow_t stays = nullptr, comes = nullptr, next[2] = {};
    ASSERT_EQ(tuttiCommWindowRegister(comm, first, 8, &stays, 0), tuttiSuccess) << lastError(comm);
    for (uint32_t w = 2; w <= places; w++) {
      ASSERT_EQ(tuttiCommWindowRegister(comm, others, 8, &comes, 0), tuttiSuccess);
      ASSERT_EQ(tuttiCommWindowDeregister(comm, comes), tuttiSuccess);
    }
    /* These two would be where the first one is, and where that has put the other. */
    for (int w : {0, 1})
      ASSERT_EQ(tuttiCommWindowRegister(comm, last[w], 8, &next[w], 0), tuttiSuccess);
    auto put = [&](uint32_t value, tuttiWindow_t window, size_t at = 0) {
      return tuttiPutSignal(&value, 1, tuttiUint32, 1 - r, window, at, 0, 0, 0, comm, nullptr);
    };
    ASSERT_EQ(put(1, stays), tuttiSuccess) << lastError(comm);
    ASSERT_EQ(put(2, next[0]), tuttiSuccess) << lastError(comm);
    ASSERT_EQ(put(3, next[1]), tuttiSuccess) << lastError(comm);
    ASSERT_EQ(wait(comm, 1 - r, 3), tuttiSuccess) << lastError(comm);
    EXPECT_EQ(first[0], 1u);
    EXPECT_EQ(last[0][0], 2u);
    EXPECT_EQ(last[1][0], 3u);
    /* The first one's place is free then, and the others are found all the same. */
    ASSERT_EQ(tuttiCommWindowDeregister(comm, stays), tuttiSuccess);
    ASSERT_EQ(put(4, next[0], 4), tuttiSuccess) << lastError(comm);
    ASSERT_EQ(wait(comm, 1 - r), tuttiSuccess) << lastError(comm);
    EXPECT_EQ(last[0][1], 4u);
    for (tuttiWindow_t w : next)
      EXPECT_EQ(tuttiCommWindowDeregister(comm, w), tuttiSuccess);
  });
}

TEST_P(OneSided, SayThatTheyServe) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  tuttiCommProperties_t p = TUTTI_COMM_PROPERTIES_INITIALIZER;
  ASSERT_EQ(tuttiCommQueryProperties(ranks.comms[0], &p), tuttiSuccess);
  EXPECT_EQ(p.hostRmaSupport, 1);
}

std::string nameOf(const testing::TestParamInfo<Env> &info) {
  return info.param == threads ? "Threads" : info.param == processes ? "Shm" : networkName();
}
INSTANTIATE_TEST_SUITE_P(Paths, OneSided, testing::Values(threads, processes, network), nameOf);

/* Its operations come before its waits, and so does what they failed with: code and text. */
TEST(OneSidedLife, AGroupTellsOfItsOperationsFirst) {
  Ranks sends(1), waits(1);
  ASSERT_TRUE(sends.ok() && waits.ok());
  float x = 1;
  tuttiWindow_t win = nullptr;
  ASSERT_EQ(tuttiCommWindowRegister(waits.comms[0], &x, sizeof x, &win, 0), tuttiSuccess);
  setTimeout(waits.comms[0], 20);
  ASSERT_EQ(tuttiGroupStart(), tuttiSuccess);
  EXPECT_EQ(tuttiSend(&x, 1, tuttiFloat32, 0, sends.comms[0], nullptr), tuttiSuccess);
  EXPECT_EQ(wait(waits.comms[0], 0), tuttiSuccess);
  EXPECT_EQ(tuttiGroupEnd(), tuttiInvalidUsage);
  EXPECT_THAT(lastError(), HasSubstr("itself"));
}

TEST(OneSidedLife, WindowsOfManyTimes) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    for (int i = 0; i < 300; i++) {
      std::vector<int> window(2, -1);
      tuttiWindow_t win = nullptr;
      ASSERT_EQ(tuttiCommWindowRegister(comm, window.data(), 8, &win, 0), tuttiSuccess);
      ASSERT_EQ(tuttiPutSignal(&i, 1, tuttiInt32, 1 - r, win, 4, 0, 0, 0, comm, nullptr),
                tuttiSuccess)
          << lastError(comm);
      ASSERT_EQ(wait(comm, 1 - r), tuttiSuccess);
      ASSERT_EQ(window[1], i);
      ASSERT_EQ(tuttiCommWindowDeregister(comm, win), tuttiSuccess);
    }
  });
}

TEST(OneSidedLife, AClosedWindowIsNotWrittenTo) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.ok());
  tuttiWindow_t wins[2] = {};
  int window[2] = {5, 5}, data = 1;
  ranks.run([&](int r, tuttiComm_t comm) {
    ASSERT_EQ(tuttiCommWindowRegister(comm, &window[r], 4, &wins[r], 0), tuttiSuccess);
  });
  ASSERT_EQ(tuttiCommWindowDeregister(ranks.comms[1], wins[1]), tuttiSuccess);
  EXPECT_EQ(tuttiPutSignal(&data, 1, tuttiInt32, 1, wins[0], 0, 0, 0, 0, ranks.comms[0], nullptr),
            tuttiInvalidUsage);
  EXPECT_THAT(lastError(ranks.comms[0]), HasSubstr("rank 1 has no window #1 open any more"));
  EXPECT_EQ(window[1], 5);
}

TEST(OneSidedLife, RanksAgreeOnContextsAndSignals) {
  tuttiUniqueId id;
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  onThreads(2, [&](int r) {
    tuttiConfig_t config = many(1, 1 + r);
    tuttiComm_t comm = nullptr;
    ASSERT_EQ(tuttiCommInitRankConfig(&comm, 2, id, r, &config), tuttiSuccess) << lastError();
    char buffer[8];
    tuttiWindow_t win = nullptr;
    EXPECT_EQ(tuttiCommWindowRegister(comm, buffer, 8, &win, 0), tuttiInvalidUsage);
    EXPECT_THAT(lastError(comm), HasSubstr("ranks disagree on one-sided operations"));
    EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
  });
}

TEST(OneSidedLife, NoneWithoutContexts) {
  tuttiConfig_t config = many(0, 1);
  Ranks ranks(2, &config);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm) {
    char buffer[8];
    tuttiWindow_t win = nullptr;
    EXPECT_EQ(tuttiCommWindowRegister(comm, buffer, 8, &win, 0), tuttiSuccess);
    EXPECT_EQ(tuttiSignal(1 - r, 0, 0, 0, comm, nullptr), tuttiInvalidUsage);
    EXPECT_THAT(lastError(comm), HasSubstr("config.numRmaCtx 0"));
    tuttiCommProperties_t p = TUTTI_COMM_PROPERTIES_INITIALIZER;
    EXPECT_EQ(tuttiCommQueryProperties(comm, &p), tuttiSuccess);
    EXPECT_EQ(p.hostRmaSupport, 0);
  });
}

TEST(OneSidedLife, OnANonBlockingCommunicator) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.blocking = 0;
  Ranks ranks(2, &config);
  ranks.run([](int r, tuttiComm_t comm) {
    ASSERT_EQ(settle(comm), tuttiSuccess);
    int window = 0, data = 40 + r;
    float sum = 1;
    tuttiWindow_t win = nullptr;
    ASSERT_EQ(tuttiCommWindowRegister(comm, &window, 4, &win, 0), tuttiSuccess) << lastError(comm);
    EXPECT_EQ(tuttiAllReduce(&sum, &sum, 1, tuttiFloat, tuttiSum, comm, nullptr), tuttiInProgress);
    EXPECT_EQ(tuttiPutSignal(&data, 1, tuttiInt32, 1 - r, win, 0, 0, 0, 0, comm, nullptr),
              tuttiSuccess)
        << lastError(comm);
    EXPECT_EQ(wait(comm, 1 - r), tuttiSuccess);
    EXPECT_EQ(window, 41 - r);
    EXPECT_EQ(sum, 2) << "what was called before has ended";
    ASSERT_EQ(settle(comm), tuttiSuccess);
  });
}

/* Rank 1 dies while rank 0 waits for its signal. */
void expectDeathTold(const Env &env) {
  Settings settings(env);
  RankProcesses ranks;
  ranks.start(2, [&](int r) {
    tuttiComm_t comm = nullptr;
    char window[8];
    tuttiWindow_t win = nullptr;
    ASSERT_EQ(tuttiCommInitRank(&comm, 2, ranks.id(), r), tuttiSuccess);
    ASSERT_EQ(tuttiCommWindowRegister(comm, window, 8, &win, 0), tuttiSuccess);
    ranks.setStage(r, 1);
    if (r == 1) pause();
    EXPECT_EQ(ranks.keep(wait(comm, 1), comm), tuttiRemoteError);
    EXPECT_EQ(tuttiCommAbort(comm), tuttiSuccess);
  });
  ASSERT_TRUE(ranks.waitForStage(0, 1) && ranks.waitForStage(1, 1));
  ranks.killRank(1);
  ranks.waitAll();
  EXPECT_EQ(ranks.report(0).status, 0);
  EXPECT_THAT(ranks.report(0).text, AllOf(HasSubstr("rank 1"), HasSubstr("died")));
}

/* Ranks as processes of their own: memory that is no shared memory, and a death. */
void expectWritten(bool plain) {
  RankProcesses ranks;
  constexpr int n = 3;
  ranks.start(n, [&](int r) {
    tuttiComm_t comm = nullptr;
    ASSERT_EQ(ranks.keep(tuttiCommInitRank(&comm, n, ranks.id(), r)), tuttiSuccess);
    std::vector<uint64_t> data(100000), memory(100000 * n + 2);
    void *shared = nullptr;
    ASSERT_EQ(tuttiMemAlloc(&shared, memory.size() * 8), tuttiSuccess);
    uint64_t *window = plain ? memory.data() : (uint64_t *)shared + 1;
    window[100000 * n] = 77; /* behind it */
    tuttiWindow_t win = nullptr;
    ASSERT_EQ(ranks.keep(tuttiCommWindowRegister(comm, window, 800000 * n, &win, 0)), tuttiSuccess);
    for (uint64_t round = 1; round < 5; round++) {
      std::fill(data.begin(), data.end(), round * 100 + (uint64_t)r);
      for (int p = 0; p < n; p++)
        ASSERT_EQ(ranks.keep(tuttiPutSignal(data.data(), data.size(), tuttiUint64, p, win,
                                            (size_t)r * 800000, 0, 0, 0, comm, nullptr),
                             comm),
                  tuttiSuccess);
      for (int p = 0; p < n; p++) {
        ASSERT_EQ(ranks.keep(wait(comm, p), comm), tuttiSuccess);
        for (size_t i = 0; i < data.size(); i++)
          ASSERT_EQ(window[(size_t)p * data.size() + i], round * 100 + (uint64_t)p);
      }
      /* Nobody overwrites before all have looked. */
      for (int p = 0; p < n; p++)
        ASSERT_EQ(tuttiSignal(p, 0, 0, 0, comm, nullptr), tuttiSuccess);
      for (int p = 0; p < n; p++)
        ASSERT_EQ(ranks.keep(wait(comm, p), comm), tuttiSuccess);
    }
    EXPECT_EQ(window[100000 * n], 77u) << "what was in the memory stays";
    ASSERT_EQ(ranks.keep(tuttiCommDestroy(comm)), tuttiSuccess);
    EXPECT_EQ(tuttiMemFree(shared), tuttiSuccess);
  });
  ranks.waitAll();
  ranks.expectCleanEnds();
}

TEST(OneSidedProcesses, WriteIntoPlainMemory) {
  expectWritten(true);
}

TEST(OneSidedProcesses, WriteIntoSharedMemory) {
  expectWritten(false);
}

/* Whether this process has mapped memory of a window that is not between these two. */
bool hasMappedAnother(const uint8_t *begin, const uint8_t *end) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("tutti memory of a window") == line.npos) continue;
    auto at = reinterpret_cast<const uint8_t *>(std::stoull(line, nullptr, 16));
    if (at < begin || at >= end) return true;
  }
  return false;
}

/* Windows are made one after the other of every second page of some memory, while a thread writes
 * to the pages between them, as an operation of another communicator may. */
TEST(OneSidedProcesses, WhatIsWrittenBesideWindowsMeanwhileStays) {
  RankProcesses ranks;
  constexpr int n = 2, windows = 16;
  ranks.start(n, [&](int r) {
    constexpr size_t page = 4096;
    tuttiComm_t comm = nullptr;
    ASSERT_EQ(ranks.keep(tuttiCommInitRank(&comm, n, ranks.id(), r)), tuttiSuccess);
    void *memory = nullptr;
    ASSERT_EQ(tuttiMemAlloc(&memory, 2 * windows * page), tuttiSuccess);
    auto *pages = static_cast<uint8_t *>(memory);
    auto at = [&](size_t p) -> uint64_t & { return *(uint64_t *)(pages + p * page); };
    std::atomic<bool> writes{true};
    uint64_t turns = 0;
    std::thread other([&] {
      for (; writes; turns++)
        for (size_t p = 1; p < 2 * windows; p += 2)
          at(p)++;
    });
    tuttiWindow_t wins[windows] = {};
    for (size_t w = 0; w < windows; w++)
      ASSERT_EQ(ranks.keep(tuttiCommWindowRegister(comm, &at(2 * w), page, &wins[w], 0)),
                tuttiSuccess);
    writes = false;
    other.join();
    for (uint64_t w = 0; w < windows; w++) {
      EXPECT_EQ(at(2 * w + 1), turns) << w;
      uint64_t value = 100 * w + (uint64_t)r;
      ASSERT_EQ(ranks.keep(tuttiPutSignal(&value, 1, tuttiUint64, 1 - r, wins[w], 8, 0, 0, 0, comm,
                                          nullptr),
                           comm),
                tuttiSuccess);
    }
    ASSERT_EQ(ranks.keep(wait(comm, 1 - r, windows), comm), tuttiSuccess);
    for (uint64_t w = 0; w < windows; w++)
      EXPECT_EQ((&at(2 * w))[1], 100 * w + (uint64_t)(1 - r));
    EXPECT_TRUE(hasMappedAnother(pages, pages + 2 * windows * page));
    ASSERT_EQ(ranks.keep(tuttiCommDestroy(comm)), tuttiSuccess);
    EXPECT_EQ(tuttiMemFree(memory), tuttiSuccess);
  });
  ranks.waitAll();
  ranks.expectCleanEnds();
}

TEST(OneSidedProcesses, ADeadPeerEndsTheWait) {
  expectDeathTold(threads);
}

/* NET/IB writes into windows, as its log says; sockets cannot. */
TEST(OneSidedProcesses, WriteIntoWindowsOverANetwork) {
  char made[] = "/tmp/tuttitest.XXXXXX";
  const char *given = getenv("TUTTITEST_FOLDER"); /* ranks begin here, too */
  if (!given) setenv("TUTTITEST_FOLDER", given = mkdtemp(made), 1);
  const std::string folder = given;
  Env env = network;
  env.insert({{"TUTTI_DEBUG", "INFO"}, {"TUTTI_DEBUG_FILE", folder + "/%p"}});
  {
    Settings settings(env);
    expectWritten(true);
  }
  int said = 0, copied = 0;
  for (const auto &file : std::filesystem::directory_iterator(folder)) {
    std::ostringstream log;
    log << std::ifstream(file.path()).rdbuf();
    said += log.str().find("puts are written into the windows of rank") != log.str().npos;
    copied += log.str().find("puts go through the slots") != log.str().npos;
  }
  unsetenv("TUTTITEST_FOLDER");
  std::filesystem::remove_all(folder);
  EXPECT_EQ(said, networkName() == "IB" ? 3 : 0) << "by so many ranks";
  EXPECT_EQ(copied, 0);
}

TEST(OneSidedProcesses, ADeadPeerEndsTheWaitOverANetwork) {
  expectDeathTold(network);
}

} // namespace

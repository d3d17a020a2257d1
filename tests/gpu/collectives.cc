/* Every collective, type and reduction on GPUs, over threads and over processes. */
#include "gpu/check.h"
#include "processes.h"

namespace {

const std::map<std::string, std::string> both = {{"TUTTI_PROTO", ""}}, ll = {{"TUTTI_PROTO", "LL"}},
                                         simple = {{"TUTTI_PROTO", "Simple"}};

struct Way {
  const char *name;
  const std::map<std::string, std::string> *settings;
  int n;
};
void PrintTo(const Way &way, std::ostream *out) {
  *out << way.name;
}
const Way ways[] = {{"LLx2", &ll, 2},         {"LLx4", &ll, 4},     {"Simplex2", &simple, 2},
                    {"Simplex4", &simple, 4}, {"Bothx3", &both, 3}, {"Bothx8", &both, 8},
                    {"Bothx1", &both, 1}};

class GpuCollectives : public GpuTest, public testing::WithParamInterface<Way> {};

using Body = std::function<void(const Case &)>;

void everyType(int n, const Body &body) {
  for (int coll = tuttiCollAllReduce; coll < tuttiCollSendRecv; coll++)
    for (int type = 0; type < tuttiNumTypes; type++)
      for (int op = 0; op < (oracle::reduces(coll) ? kOps : 1); op++)
        for (bool inPlace : {false, true})
          for (size_t count : {5, 1031})
            body({coll, type, op, (type + op) % n, inPlace, count, (size_t)(op + inPlace) % 2});
}

void everySize(int n, const Body &body) {
  for (int coll = tuttiCollAllReduce; coll < tuttiCollSendRecv; coll++)
    for (int type : {tuttiFloat32, tuttiInt8})
      for (size_t count : {0, 1, 2, 3, 15, 16, 29, 30, 31, 119, 120, 121, 1023, 2047, 4097, 8191,
                           16385, 32769, 65537})
        for (size_t offset : {0, 1, 3})
          body({coll, type, tuttiSum, (int)(count % (size_t)n), offset == 1, count, offset});
}

/* More than what the FIFOs of all blocks hold; odd. */
void largeSizes(int n, const Body &body) {
  for (int coll = tuttiCollAllReduce; coll < tuttiCollSendRecv; coll++)
    for (bool inPlace : {false, true})
      body({coll, tuttiFloat32, tuttiSum, n - 1, inPlace, 300001, (size_t)inPlace});
}

void onAll(const Way &way, void (*cases)(int, const Body &), size_t bytes) {
  Settings settings(*way.settings);
  /* Rings and trees round at each hop, Direct at the end. */
  const int roundings = way.settings->count("TUTTI_ALGO") ? way.n - 1 : 1;
  GpuRanks ranks(way.n, bytes);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    cases(way.n, [&](const Case &k) {
      if (!testing::Test::HasFatalFailure()) check(k, r, way.n, comm, gpu, roundings);
    });
  });
}

TEST_P(GpuCollectives, TypesAndReductions) {
  onAll(GetParam(), everyType, (size_t)4 << 20);
}
TEST_P(GpuCollectives, Sizes) {
  onAll(GetParam(), everySize, (size_t)16 << 20);
}
TEST_P(GpuCollectives, LargeSizes) {
  onAll(GetParam(), largeSizes, (size_t)64 << 20);
}

INSTANTIATE_TEST_SUITE_P(Ways, GpuCollectives, testing::ValuesIn(ways),
                         [](auto &info) { return std::string(info.param.name); });

/* ---- other paths ------------------------------------------------------------------------------
 * GPUs that cannot all store into each other's memory, or are too many for kernels between all
 * pairs: the same staged (SHM), and the ring/tree kernel. */

const std::map<std::string, std::string>
    none = {},
    shm = {{"TUTTI_P2P_DISABLE", "1"}},
    net = {{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_SHM_DISABLE", "1"}},
    shmSimple = {{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_PROTO", "Simple"}},
    shmRing = {{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_ALGO", "Ring"}},
    shmTree = {{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_ALGO", "Tree"}},
    netRing = {{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_SHM_DISABLE", "1"}, {"TUTTI_ALGO", "Ring"}};
const Way ringTree[] = {
    {"P2Px9", &none, 9},        {"SHMx2", &shm, 2},        {"SHMx4", &shm, 4},
    {"SHMx1", &shm, 1},         {"SHMx8", &shm, 8},        {"SHMSimplex3", &shmSimple, 3},
    {"NETx2", &net, 2},         {"NETx3", &net, 3},        {"SHMRingx4", &shmRing, 4},
    {"SHMTreex5", &shmTree, 5}, {"NETRingx3", &netRing, 3}};

class GpuRingTree : public GpuTest, public testing::WithParamInterface<Way> {};

TEST_P(GpuRingTree, TypesAndReductions) {
  onAll(GetParam(), everyType, (size_t)4 << 20);
}
TEST_P(GpuRingTree, Sizes) {
  onAll(GetParam(), everySize, (size_t)16 << 20);
}
TEST_P(GpuRingTree, LargeSizes) {
  onAll(GetParam(), largeSizes, (size_t)64 << 20);
}

/* Who only sends runs ahead of its readers, as far as slots let it. */
TEST_P(GpuRingTree, RootsRunAhead) {
  Settings settings(*GetParam().settings);
  const int n = GetParam().n, rounds = 600;
  GpuRanks ranks(n);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    for (size_t count : {1, 500, 5000}) {
      gpu.reset();
      std::vector<int> mine((size_t)rounds), want((size_t)rounds);
      for (int i = 0; i < rounds; i++)
        want[(size_t)i] = i + 1, mine[(size_t)i] = r == 0 ? i + 1 : 0;
      int *values = gpu.put(mine), *x = gpu.put(std::vector<int>(count, 0));
      int *got = gpu.put(std::vector<int>((size_t)rounds, 0));
      cudaStream_t s = gpu.streams[0];
      for (int i = 0; i < rounds; i++) {
        CUDA(cudaMemcpyAsync(x + count - 1, values + i, 4, cudaMemcpyDeviceToDevice, s));
        TUTTI(tuttiBroadcast(x, x, count, tuttiInt32, 0, comm, s));
        CUDA(cudaMemcpyAsync(got + i, x + count - 1, 4, cudaMemcpyDeviceToDevice, s));
      }
      ASSERT_TRUE(endsWell(s, comm));
      EXPECT_EQ(gpu.get(got, (size_t)rounds), want) << "rank " << r;
    }
  });
}

/* A collective finds its FIFOs as another kind has left them, and slower ranks still reading. */
TEST_P(GpuRingTree, KindsFollowEachOther) {
  Settings settings(*GetParam().settings);
  const int n = GetParam().n, rounds = 150;
  GpuRanks ranks(n, (size_t)64 << 20);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    cudaStream_t s = gpu.streams[0];
    for (size_t count : {3, 700, 9001, 60000}) {
      gpu.reset();
      const size_t all = count * (size_t)n;
      int *x = (int *)gpu.take(all * 4), *y = (int *)gpu.take(all * 4);
      uint8_t *slow = (uint8_t *)gpu.take((size_t)16 << 20);
      std::vector<int> want;
      int *got = gpu.put(std::vector<int>((size_t)rounds * 3, 0));
      for (int i = 0; i < rounds; i++) {
        int root = i % n, value = (i % 50 + 1) * 0x01010101;
        if (i % n == r) {
          CUDA(cudaMemsetAsync(slow, i, (size_t)16 << 20, s));
        }
        CUDA(cudaMemsetAsync(x, r == root ? i % 50 + 1 : 0, all * 4, s));
        TUTTI(tuttiBroadcast(x, x, all, tuttiInt32, root, comm, s));
        TUTTI(tuttiAlltoAll(x, y, count, tuttiInt32, comm, s));
        CUDA(cudaMemcpyAsync(got + 3 * i, y + all - 1, 4, cudaMemcpyDeviceToDevice, s));
        TUTTI(tuttiReduceScatter(y, x, count, tuttiInt32, tuttiMax, comm, s));
        TUTTI(tuttiAllReduce(x, y, count, tuttiInt32, tuttiMin, comm, s));
        CUDA(cudaMemcpyAsync(got + 3 * i + 1, y + count / 2, 4, cudaMemcpyDeviceToDevice, s));
        TUTTI(tuttiAllGather(y, x, count, tuttiInt32, comm, s));
        CUDA(cudaMemcpyAsync(got + 3 * i + 2, x + all / 2, 4, cudaMemcpyDeviceToDevice, s));
        want.insert(want.end(), {value, value, value});
      }
      ASSERT_TRUE(endsWell(s, comm));
      EXPECT_EQ(gpu.get(got, want.size()), want) << "rank " << r << ", " << count << " elements";
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ways, GpuRingTree, testing::ValuesIn(ringTree),
                         [](auto &info) { return std::string(info.param.name); });

/* ---- bits -------------------------------------------------------------------------------------
 */

/* What an element becomes does not depend on how many others there are. */
void sameBits(const std::map<std::string, std::string> &settings, int n) {
  std::map<std::string, std::string> all = settings;
  all["TUTTI_DETERMINISM"] = "1";
  Settings set(all);
  GpuRanks ranks(n, (size_t)16 << 20);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    const size_t most = 1000000;
    std::vector<float> mine(most), reference;
    for (size_t i = 0; i < most; i++)
      mine[i] = (float)((i * 2654435761u + (size_t)r * 40503u) % 1000003) / 997.f;
    float *in = gpu.put(mine), *out = (float *)gpu.take(most * 4);
    for (size_t count : {most, (size_t)300001, (size_t)20000, (size_t)1000, (size_t)7}) {
      TUTTI(tuttiAllReduce(in, out, count, tuttiFloat32, tuttiSum, comm, gpu.streams[0]));
      ASSERT_TRUE(endsWell(gpu.streams[0], comm));
      auto got = gpu.get(out, count);
      if (reference.empty()) reference = got;
      EXPECT_EQ(memcmp(got.data(), reference.data(), count * 4), 0) << count;
    }
  });
}

class GpuBits : public GpuTest {};
TEST_F(GpuBits, TheSameForAnySize) {
  sameBits(none, 4);
}
TEST_F(GpuBits, TheSameForAnySizeOverSharedMemory) {
  sameBits(shm, 4);
}

/* ---- windows ----------------------------------------------------------------------------------
 */

/* Messages that go right into windows, and their neighbours that do not. */
void windowSizes(int n, const Body &body) {
  for (int coll = tuttiCollAllReduce; coll < tuttiCollSendRecv; coll++)
    for (bool inPlace : {false, true})
      for (size_t count : {262144, 1500001})
        body({coll, tuttiFloat32, tuttiSum, n - 1, inPlace, count, inPlace && count == 262144});
}

constexpr size_t kWindowMemory = (size_t)128 << 20;

class GpuWindows : public GpuTest, public testing::WithParamInterface<Way> {};

TEST_P(GpuWindows, Whole) {
  Settings settings(*GetParam().settings);
  GpuRanks ranks(GetParam().n, kWindowMemory);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    tuttiWindow_t window;
    TUTTI(tuttiCommWindowRegister(comm, gpu.memory(), gpu.bytes(), &window, 0));
    windowSizes(GetParam().n, [&](const Case &k) {
      if (!testing::Test::HasFatalFailure()) check(k, r, GetParam().n, comm, gpu);
    });
    TUTTI(tuttiCommWindowDeregister(comm, window));
  });
}

/* Each rank's own business: others learn where it wants messages with each call. */
TEST_P(GpuWindows, OnSomeRanksAndPartly) {
  Settings settings(*GetParam().settings);
  GpuRanks ranks(GetParam().n, kWindowMemory);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    tuttiWindow_t half, again;
    size_t from = gpu.bytes() / 16 * (size_t)r, size = gpu.bytes() / 8;
    TUTTI(tuttiCommWindowRegister(comm, (char *)gpu.memory() + from, size, &half, 0));
    auto body = [&](const Case &k) {
      if (!testing::Test::HasFatalFailure()) check(k, r, GetParam().n, comm, gpu);
    };
    windowSizes(GetParam().n, body);
    if (r % 2) {
      TUTTI(tuttiCommWindowDeregister(comm, half));
    }
    windowSizes(GetParam().n, body);
    TUTTI(tuttiCommWindowRegister(comm, gpu.memory(), gpu.bytes(), &again, 0));
    windowSizes(GetParam().n, body);
  });
}

INSTANTIATE_TEST_SUITE_P(Ways, GpuWindows,
                         testing::Values(Way{"Simplex2", &simple, 2}, Way{"Simplex4", &simple, 4},
                                         Way{"Bothx3", &both, 3}),
                         [](auto &info) { return std::string(info.param.name); });

class GpuProcesses : public GpuTest {};

TEST_F(GpuProcesses, Windows) {
  constexpr int n = 4;
  RankProcesses processes;
  processes.start(n, [&](int r) {
    Gpu gpu(r, kWindowMemory);
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.device = tuttiDeviceCuda;
    tuttiComm_t comm;
    tuttiWindow_t window;
    size_t from = (size_t)(4 * r);
    if (processes.keep(tuttiCommInitRankConfig(&comm, n, processes.id(), r, &config))) _exit(2);
    processes.keep(tuttiCommWindowRegister(comm, (char *)gpu.memory() + from, gpu.bytes() - 64,
                                           &window, TUTTI_WIN_COLL_SYMMETRIC));
    windowSizes(n, [&](const Case &k) {
      if (!testing::Test::HasFatalFailure()) check(k, r, n, comm, gpu);
    });
    processes.keep(tuttiCommWindowDeregister(comm, window));
    processes.keep(tuttiCommDestroy(comm));
    EXPECT_EQ(processes.report(r).result, tuttiSuccess);
  });
  processes.waitAll(150);
  processes.expectCleanEnds();
}

/* n ranks on `hosts` hosts, all of which are this one. */
void typesAndSizes(int hosts, const std::map<std::string, std::string> &settings, int n = 4,
                   int roundings = 1) {
  RankProcesses processes;
  processes.start(n, [&](int r) {
    for (auto &[name, value] : settings)
      setenv(name.c_str(), value.c_str(), 1);
    if (hosts > 1) setenv("TUTTI_HOSTID", std::to_string(r * hosts / n).c_str(), 1);
    Gpu gpu(r, (size_t)16 << 20);
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.device = tuttiDeviceCuda;
    tuttiComm_t comm;
    if (processes.keep(tuttiCommInitRankConfig(&comm, n, processes.id(), r, &config))) _exit(2);
    auto body = [&](const Case &k) {
      if (!testing::Test::HasFatalFailure()) check(k, r, n, comm, gpu, roundings);
    };
    everyType(n, body);
    everySize(n, body);
    processes.keep(tuttiCommDestroy(comm));
    EXPECT_EQ(processes.report(r).result, tuttiSuccess);
  });
  processes.waitAll(150);
  processes.expectCleanEnds();
}

TEST_F(GpuProcesses, TypesAndSizes) {
  typesAndSizes(1, none);
}
TEST_F(GpuProcesses, TypesAndSizesOverSharedMemory) {
  typesAndSizes(1, shm);
}
TEST_F(GpuProcesses, TypesAndSizesOnTwoHosts) {
  typesAndSizes(2, none);
}
TEST_F(GpuProcesses, TypesAndSizesOverAGrid) {
  const int hosts = 3, perHost = 2, hops = perHost - 1 + hosts - 1;
  typesAndSizes(hosts, {{"TUTTI_ALGO", "Hierarchical"}}, hosts * perHost, hops);
}

} // namespace

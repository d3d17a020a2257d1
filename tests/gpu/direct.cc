/* Collectives and messages out of registered memory and into it, without slots, by the software
 * HCA: ranks are threads, of which no two reach each other but by NET/IB. */
#include "gpu/check.h"
#include "gpu/exchange.h"

#include <fstream>
#include <sstream>

namespace {

/* How the ranks' memory becomes known to the network. */
enum Known { kRegistered, kAllocated, kWindow, kNot };

struct Way {
  const char *name;
  int n;
  const char *algo;
  Known known;
};
void PrintTo(const Way &way, std::ostream *out) {
  *out << way.name;
}
const Way ways[] = {
    {"Ringx2", 2, "Ring", kRegistered},     {"Treex2", 2, "Tree", kRegistered},
    {"Directx2", 2, "Direct", kRegistered}, {"Ringx3", 3, "Ring", kRegistered},
    {"Treex4", 4, "Tree", kRegistered},     {"Directx4", 4, "Direct", kRegistered},
    {"Allocatedx2", 2, "Ring", kAllocated}, {"Windowx2", 2, "Ring", kWindow},
    {"NotRegisteredx2", 2, "Ring", kNot},
};

constexpr size_t kBytes = (size_t)48 << 20;

/* What the log says of messages that are large: how many were sent and came, and those without
 * slots. */
struct Counts {
  uint64_t sent = 0, lent = 0, came = 0, placed = 0;
  /* In the log from byte `begin` on. */
  Counts(const std::string &log, std::streamoff begin) {
    std::ifstream file(log);
    file.seekg(begin);
    for (std::string line; std::getline(file, line);) {
      size_t at = line.find("NET/IB: of ");
      unsigned long long a, b, c, d;
      if (at == std::string::npos ||
          sscanf(line.c_str() + at,
                 "NET/IB: of %llu large messages %llu were sent from registered memory, of %llu "
                 "that came %llu were",
                 &a, &b, &c, &d) != 4)
        continue;
      sent += a;
      lent += b;
      came += c;
      placed += d;
    }
  }
};

class GpuDirect : public GpuTest, public testing::WithParamInterface<Way> {
public:
  static void TearDownTestSuite() {
    unlink((testing::TempDir() + "direct." + std::to_string(getpid())).c_str());
  }

protected:
  void SetUp() override {
    const char *net = getenv("TUTTI_TEST_NET");
    GpuTest::SetUp();
    if (!net || strcmp(net, "IB") != 0)
      GTEST_SKIP() << "needs the software HCA: see tests/softhca/CMakeLists.txt";
  }
  using Body = std::function<void(int r, tuttiComm_t comm, Gpu &gpu)>;
  /* On ranks whose memory is known as the way says. */
  Counts run(const Body &body) {
    const Way &way = GetParam();
    /* The library keeps it open. */
    const std::string log = testing::TempDir() + "direct." + std::to_string(getpid());
    std::ifstream before(log, std::ios::ate);
    std::streamoff begin = before ? (std::streamoff)before.tellg() : 0;
    {
      Settings settings({{"TUTTI_NET", "IB"},
                         {"TUTTI_P2P_DISABLE", "1"},
                         {"TUTTI_SHM_DISABLE", "1"},
                         {"TUTTI_NET_GDR", "require"},
                         {"TUTTI_NET_GDR_LEVEL", "SYS"},
                         {"TUTTI_ALGO", way.algo},
                         {"TUTTI_BUFFSIZE", "1M"}, /* slots of 128 KiB */
                         {"TUTTI_MAX_NCHANNELS", "2"},
                         {"TUTTI_DEBUG", "INFO"},
                         {"TUTTI_DEBUG_FILE", log}});
      GpuRanks ranks(way.n, kBytes, 1, TUTTI_CONFIG_INITIALIZER, way.known == kAllocated);
      EXPECT_TRUE(ranks.ok());
      if (ranks.ok()) ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) { on(r, comm, gpu, body); });
    }
    return Counts(log, begin);
  }

private:
  static void on(int r, tuttiComm_t comm, Gpu &gpu, const Body &body) {
    void *handle = nullptr;
    tuttiWindow_t window = nullptr;
    Known known = GetParam().known;
    if (known == kRegistered) {
      TUTTI(tuttiCommRegister(comm, gpu.memory(), gpu.bytes(), &handle));
    } else if (known == kWindow) {
      TUTTI(tuttiCommWindowRegister(comm, gpu.memory(), gpu.bytes(), &window, 0));
    }
    body(r, comm, gpu);
    if (handle) {
      TUTTI(tuttiCommDeregister(comm, handle));
    }
    if (window) {
      TUTTI(tuttiCommWindowDeregister(comm, window));
    }
  }
};

const size_t kCounts[] = {8193, 40000, 300001, 1 << 20};

void everyCollective(int n, const std::function<void(const Case &)> &body) {
  for (int coll = tuttiCollAllReduce; coll < tuttiCollSendRecv; coll++)
    for (bool inPlace : {false, true})
      for (size_t count : kCounts)
        body({coll, tuttiFloat32, tuttiSum, (int)(count % (size_t)n), inPlace, count,
              (size_t)inPlace});
}

/* What is lent is for the kernel to say: not the last steps, nor what is small, nor partial sums;
 * what is placed depends on when the network is told. */
void expectDirect(const Way &way, const Counts &counts) {
  EXPECT_GT(counts.sent, 0u);
  EXPECT_EQ(counts.sent, counts.came);
  if (way.known == kNot) {
    EXPECT_EQ(counts.lent + counts.placed, 0u);
    return;
  }
  EXPECT_GT(counts.lent, counts.sent / 4);
  EXPECT_GT(counts.placed, 0u);
  printf("%s: %llu of %llu lent, %llu of %llu placed\n", way.name, (unsigned long long)counts.lent,
         (unsigned long long)counts.sent, (unsigned long long)counts.placed,
         (unsigned long long)counts.came);
}

TEST_P(GpuDirect, EveryCollective) {
  const int n = GetParam().n;
  Counts counts = run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    everyCollective(n, [&](const Case &k) {
      if (!testing::Test::HasFatalFailure()) check(k, r, n, comm, gpu, n - 1);
    });
  });
  expectDirect(GetParam(), counts);
}

TEST_P(GpuDirect, EveryCollectiveInAGraph) {
  const int n = GetParam().n;
  Counts counts = run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    everyCollective(n, [&](const Case &k) {
      if (!testing::Test::HasFatalFailure())
        Check(k, r, n, comm, gpu, gpu.streams[0], n - 1).replay(3);
    });
  });
  expectDirect(GetParam(), counts);
}

TEST_P(GpuDirect, Messages) {
  const int n = GetParam().n;
  Counts counts = run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    Exchange exchange(gpu, r, n, 5 << 20);
    for (size_t bytes : {1, 32769, 300000, 1 << 20, 5 << 20})
      exchange.rounds(comm, bytes, 3);
    exchange.replay(comm, 1000001, 3);
  });
  expectDirect(GetParam(), counts);
}

/* Divided, or multiplied before: what is sent is not what lies in the user's memory. */
TEST_P(GpuDirect, OtherReductions) {
  const int n = GetParam().n;
  run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    for (int coll : {tuttiCollAllReduce, tuttiCollReduce, tuttiCollReduceScatter})
      for (int op = 0; op < kOps; op++)
        for (bool inPlace : {false, true})
          if (!testing::Test::HasFatalFailure())
            check({coll, tuttiFloat32, op, n - 1, inPlace, 100003, 0}, r, n, comm, gpu, n - 1);
  });
}

/* Memory that is registered no more goes through slots, and may be registered again. */
TEST_P(GpuDirect, RegistrationsComeAndGo) {
  const int n = GetParam().n;
  if (GetParam().known != kNot) GTEST_SKIP() << "it registers by itself";
  Counts counts = run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    for (int round = 0; round < 6 && !testing::Test::HasFatalFailure(); round++) {
      void *handle = nullptr;
      if (round % 2) {
        TUTTI(tuttiCommRegister(comm, gpu.memory(), gpu.bytes(), &handle));
      }
      check({tuttiCollAllGather, tuttiFloat32, tuttiSum, 0, false, 300001, 0}, r, n, comm, gpu);
      if (handle) {
        TUTTI(tuttiCommDeregister(comm, handle));
      }
    }
  });
  EXPECT_GT(counts.lent, 0u);
  EXPECT_LE(counts.lent, counts.sent / 2);
  EXPECT_GT(counts.placed, 0u);
  EXPECT_LE(counts.placed, counts.came / 2);
}

INSTANTIATE_TEST_SUITE_P(Ways, GpuDirect, testing::ValuesIn(ways),
                         [](auto &info) { return std::string(info.param.name); });

} // namespace

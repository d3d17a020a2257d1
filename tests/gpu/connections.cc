/* Connections over a network that are opened in mid-run: kernels of other ranks, on the same GPU
 * where ranks share one, are under way then and wait for this one. */
#include <atomic>

#include "gpu/gpu.h"

namespace {

constexpr int kRanks = 3;
constexpr size_t kMost = (size_t)1 << 20; /* elements of a part */

/* Slots, all of which are staged: 520 KiB of host memory for a connection, or 4.1 MiB. */
struct Slots {
  const char *name;
  std::map<std::string, std::string> settings;
};
void PrintTo(const Slots &slots, std::ostream *out) {
  *out << slots.name;
}
const Slots kSlots[] = {{"Default", {}},
                        {"Large", {{"TUTTI_BUFFSIZE", "32M"}, {"TUTTI_NET_PINNED", "1G"}}}};

/* One rank's part in an operation. All elements of `in` are its number + 1. */
struct Call {
  int *in, *out;
  size_t count;
  tuttiComm_t comm;
  cudaStream_t stream;
};

tuttiResult_t messages(const Call &c) {
  tuttiResult_t result = tuttiGroupStart();
  for (int p = 0; p < kRanks && result == tuttiSuccess; p++) {
    result = tuttiSend(c.in, c.count, tuttiInt32, p, c.comm, c.stream);
    if (result == tuttiSuccess)
      result = tuttiRecv(c.out + (size_t)p * c.count, c.count, tuttiInt32, p, c.comm, c.stream);
  }
  tuttiResult_t ended = tuttiGroupEnd();
  return result == tuttiSuccess ? ended : result;
}

/* By other connections than those before, of channels, peers or directions. */
enum Result {
  kRoots,
  kSums,
  kParts
}; /* what is in `out`: of `count` elements, or of each rank's */
const struct Operation {
  const char *name;
  size_t count;
  Result result;
  tuttiResult_t (*call)(const Call &c);
} kOperations[] = {
    {"a small broadcast", 100, kRoots,
     [](const Call &c) {
       return tuttiBroadcast(c.in, c.out, c.count, tuttiInt32, 0, c.comm, c.stream);
     }},
    {"a small reduction", 100, kSums,
     [](const Call &c) {
       return tuttiAllReduce(c.in, c.out, c.count, tuttiInt32, tuttiSum, c.comm, c.stream);
     }},
    {"small messages", 100, kParts, messages},
    {"a large reduction", kMost, kSums,
     [](const Call &c) {
       return tuttiAllReduce(c.in, c.out, c.count, tuttiInt32, tuttiSum, c.comm, c.stream);
     }},
    {"a large gathering", kMost, kParts,
     [](const Call &c) {
       return tuttiAllGather(c.in, c.out, c.count, tuttiInt32, c.comm, c.stream);
     }},
    {"a large exchange", kMost, kParts,
     [](const Call &c) {
       return tuttiAlltoAll(c.in, c.out, c.count, tuttiInt32, c.comm, c.stream);
     }},
    {"large messages", kMost, kParts, messages},
};

std::vector<int> expected(const Operation &o) {
  std::vector<int> all;
  if (o.result != kParts)
    return std::vector<int>(o.count, o.result == kRoots ? 1 : kRanks * (kRanks + 1) / 2);
  for (int p = 0; p < kRanks; p++)
    all.insert(all.end(), o.count, p + 1);
  return all;
}

/* Ranks that call one after the other. */
class Turns {
public:
  void await(int turn) {
    for (double end = seconds() + 60; now_ < turn;) {
      ASSERT_LT(seconds(), end) << "a rank has not come";
      usleep(50);
    }
  }
  void next() { now_++; }

private:
  std::atomic<int> now_{0};
};

class GpuConnections : public GpuTest, public testing::WithParamInterface<Slots> {};

TEST_P(GpuConnections, AreOpenedWhileKernelsWait) {
  const char *net = getenv("TUTTI_TEST_NET");
  std::map<std::string, std::string> all = GetParam().settings;
  all["TUTTI_P2P_DISABLE"] = all["TUTTI_SHM_DISABLE"] = "1";
  all["TUTTI_NET"] = net ? net : "Socket";
  all["TUTTI_NET_GDR"] = "off";
  Settings settings(all);
  GpuRanks ranks(kRanks, (size_t)64 << 20);
  ASSERT_TRUE(ranks.ok());
  Turns turns;
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    cudaStream_t s = gpu.streams[0];
    cudaEvent_t reached;
    CUDA(cudaEventCreateWithFlags(&reached, cudaEventDisableTiming));
    int *in = gpu.put(std::vector<int>(kRanks * kMost, r + 1));
    int *out = (int *)gpu.take(kRanks * kMost * sizeof *out), turn = 0;
    turns.next(); /* from here on nothing is allocated */
    for (const Operation &o : kOperations) {
      turn += kRanks; /* they take turns to be the first */
      turns.await(turn + (r + turn / kRanks) % kRanks);
      if (HasFatalFailure()) return;
      CUDA(cudaMemsetAsync(out, 0, kRanks * kMost * sizeof *out, s));
      CUDA(cudaEventRecord(reached, s));
      TUTTI(o.call({in, out, o.count, comm, s}));
      for (double end = seconds() + 20; cudaEventQuery(reached) == cudaErrorNotReady;)
        ASSERT_LT(seconds(), end) << o.name;
      usleep(20000); /* the kernel has begun, and waits for those who are yet to come */
      turns.next();
      ASSERT_TRUE(endsWell(s, comm)) << o.name;
      std::vector<int> want = expected(o);
      EXPECT_TRUE(gpu.get(out, want.size()) == want) << o.name << ", rank " << r;
    }
    cudaEventDestroy(reached);
  });
}

INSTANTIATE_TEST_SUITE_P(Slots, GpuConnections, testing::ValuesIn(kSlots),
                         [](auto &info) { return std::string(info.param.name); });

} // namespace

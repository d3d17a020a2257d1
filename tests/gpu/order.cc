/* Groups, messages, streams and graphs: what runs when. */
#include "device/cuda/state.h"
#include "gpu/gpu.h"
#include "processes.h"
#include "transport/symmetric.h"

#include <cuda.h>

#include <algorithm>
#include <random>

extern "C" {
#include "base/cuda.h"
#include "comm/handle.h"
}

namespace {

class GpuGroups : public GpuTest {};
class GpuMessages : public GpuTest {};
class GpuNonBlocking : public GpuTest {};
class GpuNumbers : public GpuTest {};
class GpuStreams : public GpuTest {};
class GpuGraphs : public GpuTest {};

std::vector<uint32_t> values(size_t count, uint32_t seed) {
  std::vector<uint32_t> v(count);
  for (size_t i = 0; i < count; i++)
    v[i] = (seed * 2654435761u) ^ ((uint32_t)i * 40503u + 1);
  return v;
}

std::vector<uint32_t> sumOf(int n, size_t count, uint32_t seed) {
  std::vector<uint32_t> sum(count);
  for (int r = 0; r < n; r++) {
    auto v = values(count, seed + (uint32_t)r);
    for (size_t i = 0; i < count; i++)
      sum[i] += v[i];
  }
  return sum;
}

#define EXPECT_SAME(got, want) EXPECT_TRUE((got) == (want))

/* ---- groups -----------------------------------------------------------------------------------
 */

TEST_F(GpuGroups, OneThreadDrivesAllGpus) {
  int n = std::min(gpus(), 8);
  std::vector<tuttiComm_t> comms((size_t)n);
  std::vector<std::unique_ptr<Gpu>> all;
  std::vector<uint32_t *> in, out;
  constexpr size_t count = 10007;
  for (int r = 0; r < n; r++) {
    all.push_back(std::make_unique<Gpu>(r, (size_t)1 << 20));
    in.push_back(all.back()->put(values(count, (uint32_t)r)));
    out.push_back((uint32_t *)all.back()->take(count * 4));
  }
  TUTTI(tuttiCommInitAll(comms.data(), n, nullptr));
  int before, after;
  CUDA(cudaGetDevice(&before));
  for (int round = 0; round < 20; round++) {
    TUTTI(tuttiGroupStart());
    for (size_t r = 0; r < comms.size(); r++) {
      TUTTI(tuttiAllReduce(in[r], out[r], count, tuttiUint32, tuttiSum, comms[r],
                           all[r]->streams[0]));
      TUTTI(tuttiBroadcast(in[r], in[r], 3, tuttiUint32, 0, comms[r], all[r]->streams[0]));
    }
    TUTTI(tuttiGroupEnd());
    if (round == 0) /* the second call changes what later rounds add */
      for (size_t r = 0; r < comms.size(); r++) {
        ASSERT_TRUE(endsWell(all[r]->streams[0], comms[r]));
        EXPECT_SAME(all[r]->get(out[r], count), sumOf(n, count, 0));
        EXPECT_SAME(all[r]->get(in[r], 3), values(3, 0));
      }
  }
  CUDA(cudaGetDevice(&after));
  EXPECT_EQ(after, before) << "calls leave the current device as it is";
  for (size_t r = 0; r < comms.size(); r++)
    EXPECT_EQ(awaitStream(all[r]->streams[0]), cudaSuccess);
  for (auto c : comms)
    EXPECT_EQ(tuttiCommDestroy(c), tuttiSuccess) << tuttiGetLastError(nullptr);
}

/* ---- messages ---------------------------------------------------------------------------------
 */

struct Message {
  int from, to;
  size_t count;
};
using Pattern = std::vector<Message>;

/* All of a rank's messages in one group, sends before receives or as they come. */
void exchange(const Pattern &pattern, int r, tuttiComm_t comm, Gpu &gpu, bool sendsFirst) {
  std::vector<uint32_t *> buffers(pattern.size());
  gpu.reset();
  for (size_t i = 0; i < pattern.size(); i++) {
    const Message &m = pattern[i];
    if (m.from == r) buffers[i] = gpu.put(values(m.count, (uint32_t)i));
  }
  std::vector<uint32_t *> received(pattern.size());
  for (size_t i = 0; i < pattern.size(); i++)
    if (pattern[i].to == r)
      received[i] = gpu.put(std::vector<uint32_t>(pattern[i].count + 2, 0xa5a5a5a5u));
  auto post = [&](size_t i, bool sends, bool receives) {
    const Message &m = pattern[i];
    if (sends && m.from == r) {
      TUTTI(tuttiSend(buffers[i], m.count, tuttiUint32, m.to, comm, gpu.streams[0]));
    }
    if (receives && m.to == r) {
      TUTTI(tuttiRecv(received[i] + 1, m.count, tuttiUint32, m.from, comm, gpu.streams[0]));
    }
  };
  TUTTI(tuttiGroupStart());
  for (size_t i = 0; i < pattern.size(); i++)
    post(i, true, !sendsFirst);
  for (size_t i = 0; i < pattern.size() && sendsFirst; i++)
    post(i, false, true);
  TUTTI(tuttiGroupEnd());
  ASSERT_TRUE(endsWell(gpu.streams[0], comm));
  for (size_t i = 0; i < pattern.size(); i++) {
    const Message &m = pattern[i];
    if (m.to != r) continue;
    std::vector<uint32_t> want = values(m.count, (uint32_t)i);
    want.insert(want.begin(), 0xa5a5a5a5u);
    want.push_back(0xa5a5a5a5u);
    ASSERT_TRUE(gpu.get(received[i], m.count + 2) == want)
        << "message " << i << " of " << m.count << " from " << m.from << " to " << m.to;
  }
}

void exchangeAll(int n, const std::vector<Pattern> &patterns, size_t bytes = (size_t)32 << 20) {
  GpuRanks ranks(n, bytes);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    for (auto &pattern : patterns)
      for (bool sendsFirst : {false, true})
        if (!testing::Test::HasFatalFailure()) exchange(pattern, r, comm, gpu, sendsFirst);
  });
}

constexpr size_t kCounts[] = {0, 1, 29, 1001, 40003, 300001};

/* The end of a non-blocking init, without which nothing else may be called. */
void awaitInit(tuttiComm_t comm) {
  tuttiResult_t state = tuttiInProgress;
  for (double end = seconds() + 20; state == tuttiInProgress && seconds() < end; usleep(1000))
    TUTTI(tuttiCommGetAsyncError(comm, &state));
  ASSERT_EQ(state, tuttiSuccess) << tuttiGetLastError(comm);
}

/* What is still to be launched, too: with a late peer its kernel waits when destroy is called. */
TEST_F(GpuNonBlocking, DestroyCompletesWhatIsQueued) {
  const int ranks = 2;
  const size_t n = 1 << 20;
  std::unique_ptr<Gpu> gpus[ranks];
  tuttiUniqueId id;
  TUTTI(tuttiGetUniqueId(&id));
  onThreads(ranks, [&](int r) { gpus[r] = std::make_unique<Gpu>(r, (size_t)16 << 20); });
  onThreads(ranks, [&](int r) {
    Gpu &gpu = *gpus[r];
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.device = tuttiDeviceCuda;
    config.blocking = 0;
    tuttiComm_t comm = nullptr;
    gpu.use();
    float *x = gpu.put(std::vector<float>(n, (float)(r + 1)));
    ASSERT_EQ(tuttiCommInitRankConfig(&comm, ranks, id, r, &config), tuttiInProgress);
    awaitInit(comm);
    if (r == 1) usleep(300000);
    ASSERT_EQ(tuttiAllReduce(x, x, n, tuttiFloat32, tuttiSum, comm, gpu.streams[0]),
              tuttiInProgress);
    ASSERT_EQ(tuttiCommDestroy(comm), tuttiSuccess) << tuttiGetLastError(nullptr);
    EXPECT_EQ(gpu.get(x, n), std::vector<float>(n, 3));
  });
}

TEST_F(GpuMessages, RingsAndPairs) {
  for (int n : {2, 4}) {
    std::vector<Pattern> patterns;
    for (size_t count : kCounts)
      for (int step = 0; step < n; step++) { /* step 0: all to themselves */
        Pattern p;
        for (int r = 0; r < n; r++)
          p.push_back({r, (r + step) % n, count});
        patterns.push_back(p);
      }
    exchangeAll(n, patterns);
  }
}

/* The lines of what ring and tree kernels send over are in GPU memory, where no CPU may look. */
TEST_F(GpuMessages, SuspendAndGoOnAfterThem) {
  Settings settings(std::map<std::string, std::string>{{"TUTTI_ALGO", "Ring,Tree"}});
  GpuRanks ranks(2);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm, Gpu &gpu) {
    const size_t n = 1000;
    int *x = gpu.put(std::vector<int>(n, r + 1)), *y = gpu.put(std::vector<int>(n, 0));
    for (int round = 0; round < 2; round++) {
      TUTTI(tuttiGroupStart());
      TUTTI(tuttiSend(x, n, tuttiInt32, 1 - r, comm, gpu.streams[0]));
      TUTTI(tuttiRecv(y, n, tuttiInt32, 1 - r, comm, gpu.streams[0]));
      TUTTI(tuttiGroupEnd());
      endsWell(gpu.streams[0], comm);
      EXPECT_EQ(gpu.get(y, n), std::vector<int>(n, 2 - r));
      TUTTI(tuttiCommSuspend(comm, TUTTI_SUSPEND_MEM));
      TUTTI(tuttiCommResume(comm));
    }
  });
}

/* The receive's stream waits for the send's, and the copy for both. */
TEST_F(GpuMessages, ToOneselfFromStreamToStream) {
  GpuRanks ranks(1);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int, tuttiComm_t comm, Gpu &gpu) {
    const size_t n = 1000;
    int *x = gpu.put(std::vector<int>(n, 7)), *y = gpu.put(std::vector<int>(n, 0));
    int *z = gpu.put(std::vector<int>(n, 0));
    cudaStream_t from = gpu.streams[1], to = gpu.streams[2];
    CUDA(cudaLaunchHostFunc(
        from, [](void *) { usleep(100000); }, nullptr));
    TUTTI(tuttiGroupStart());
    TUTTI(tuttiSend(x, n, tuttiInt32, 0, comm, from));
    TUTTI(tuttiRecv(y, n, tuttiInt32, 0, comm, to));
    TUTTI(tuttiGroupEnd());
    CUDA(cudaMemcpyAsync(z, y, n * sizeof *z, cudaMemcpyDeviceToDevice, to));
    ASSERT_EQ(awaitStream(to), cudaSuccess);
    EXPECT_EQ(gpu.get(z, n), std::vector<int>(n, 7));
  });
}

/* Small and large messages of a group on three streams: what a stream has written before is sent,
 * and what comes is there for what follows on its stream, whichever call is the first. */
void severalStreams(tuttiComm_t comm, Gpu &gpu, int r, bool smallFirst) {
  const size_t small = 1000, large = (size_t)1 << 20;
  cudaStream_t *s = gpu.streams, after = s[r == 0 ? 0 : 2];
  gpu.reset();
  auto *big = gpu.put(std::vector<uint8_t>(large, (uint8_t)(r + 1)));
  auto *little = gpu.put(std::vector<uint8_t>(small, 0));
  auto *other = gpu.put(std::vector<uint8_t>(small, 0));
  auto *in = gpu.put(std::vector<uint8_t>(large, 0)), *copy = (uint8_t *)gpu.take(large);
  /* What rank 0 sends to rank 2 and what it gets from there are late. */
  cudaStream_t late = s[r == 0 ? 2 : 0];
  CUDA(cudaLaunchHostFunc(
      late, [](void *) { usleep(100000); }, nullptr));
  CUDA(cudaMemsetAsync(r == 0 ? other : big, 7, r == 0 ? small : large, late));
  TUTTI(tuttiGroupStart());
  for (int i = 0; r < 2 && i < 2; i++) { /* between two ranks the order is the same */
    bool isSmall = smallFirst == (i == 0);
    void *at = isSmall ? little : r == 0 ? big : in;
    size_t count = isSmall ? small : large;
    TUTTI(r == 0 ? tuttiSend(at, count, tuttiUint8, 1, comm, s[isSmall ? 0 : 1])
                 : tuttiRecv(at, count, tuttiUint8, 0, comm, s[isSmall ? 1 : 2]));
  }
  if (r == 0) {
    TUTTI(tuttiSend(other, small, tuttiUint8, 2, comm, s[2]));
    TUTTI(tuttiRecv(in, large, tuttiUint8, 2, comm, s[0]));
  }
  if (r == 2) {
    TUTTI(tuttiRecv(little, small, tuttiUint8, 0, comm, s[1]));
    TUTTI(tuttiSend(big, large, tuttiUint8, 0, comm, s[0]));
  }
  TUTTI(tuttiGroupEnd());
  CUDA(cudaMemcpyAsync(copy, in, large, cudaMemcpyDeviceToDevice, after));
  for (auto stream : gpu.streams)
    ASSERT_TRUE(endsWell(stream, comm));
  const uint8_t came[] = {7, 1, 0};
  EXPECT_SAME(gpu.get(copy, large), std::vector<uint8_t>(large, came[r]));
  if (r == 2) {
    EXPECT_SAME(gpu.get(little, small), std::vector<uint8_t>(small, 7));
  }
}

TEST_F(GpuMessages, OfSeveralStreamsInOneGroup) {
  for (const char *algo : {"Direct", "Ring"}) { /* with Ring messages go through FIFOs */
    Settings settings(std::map<std::string, std::string>{{"TUTTI_ALGO", algo}});
    GpuRanks ranks(3);
    ASSERT_TRUE(ranks.ok());
    for (bool smallFirst : {false, true})
      ranks.run(
          [&](int r, tuttiComm_t comm, Gpu &gpu) { severalStreams(comm, gpu, r, smallFirst); });
  }
}

TEST_F(GpuMessages, EverybodyToEverybody) {
  std::vector<Pattern> patterns;
  for (size_t count : kCounts) {
    Pattern p;
    for (int a = 0; a < 4; a++)
      for (int b = 0; b < 4; b++)
        p.push_back({a, b, count});
    patterns.push_back(p);
  }
  exchangeAll(4, patterns);
}

TEST_F(GpuMessages, OneToAllAndAllToOne) {
  std::vector<Pattern> patterns;
  for (size_t count : kCounts) {
    Pattern out, in;
    for (int r = 0; r < 4; r++) {
      out.push_back({1, r, count});
      in.push_back({r, 2, count});
    }
    patterns.push_back(out);
    patterns.push_back(in);
  }
  exchangeAll(4, patterns);
}

TEST_F(GpuMessages, SeveralForEachPair) {
  std::vector<Pattern> patterns;
  for (size_t count : {1, 1001, 40003}) {
    Pattern p;
    for (int k = 0; k < 3; k++)
      for (int r = 0; r < 4; r++) {
        p.push_back({r, (r + 1) % 4, count});
        p.push_back({r, r, count});
      }
    patterns.push_back(p);
  }
  exchangeAll(4, patterns);
}

/* Both sides of a message choose the same way for it, whatever else is in their groups. */
TEST_F(GpuMessages, SmallAndLargeInOneGroup) {
  exchangeAll(4, {{{0, 1, 1}, {0, 2, 300001}},
                  {{0, 1, 300001}, {1, 2, 3}, {2, 3, 40003}, {3, 0, 100}},
                  {{0, 1, 0}, {0, 2, 5}, {3, 1, 300001}},
                  {{0, 1, 7}, {0, 1, 300001}, {1, 0, 40003}, {1, 0, 9}}});
}

/* More than all slots of all thread blocks hold: no message may wait for one that is behind it in
 * another rank's group. */
TEST_F(GpuMessages, NoneWaitsInLine) {
  constexpr size_t count = (size_t)12 << 20;
  exchangeAll(2, {{{0, 1, count}, {0, 1, count}, {1, 0, count}}}, (size_t)160 << 20);
}

TEST_F(GpuMessages, RandomGroups) {
  std::mt19937 random(4711);
  std::vector<Pattern> patterns;
  for (int i = 0; i < 40; i++) {
    Pattern p;
    for (unsigned m = random() % 12; m > 0; m--)
      p.push_back({(int)(random() % 4), (int)(random() % 4), kCounts[random() % 6]});
    patterns.push_back(p);
  }
  exchangeAll(4, patterns);
}

void amongCollectives(size_t count, size_t bytes) {
  GpuRanks ranks(4, bytes);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    uint32_t *in = gpu.put(values(count, (uint32_t)r));
    uint32_t *sum = (uint32_t *)gpu.take(count * 4), *got = (uint32_t *)gpu.take(count * 4);
    TUTTI(tuttiGroupStart());
    TUTTI(tuttiSend(in, count, tuttiUint32, (r + 1) % 4, comm, gpu.streams[0]));
    TUTTI(tuttiAllReduce(in, sum, count, tuttiUint32, tuttiSum, comm, gpu.streams[0]));
    TUTTI(tuttiRecv(got, count, tuttiUint32, (r + 3) % 4, comm, gpu.streams[0]));
    TUTTI(tuttiGroupEnd());
    ASSERT_TRUE(endsWell(gpu.streams[0], comm));
    EXPECT_SAME(gpu.get(sum, count), sumOf(4, count, 0));
    EXPECT_SAME(gpu.get(got, count), values(count, (uint32_t)(r + 3) % 4));
  });
}

TEST_F(GpuMessages, AmongCollectivesInOneGroup) {
  amongCollectives(1001, (size_t)1 << 20);
  amongCollectives((size_t)12 << 20, (size_t)160 << 20); /* more than all slots hold */
}

/* ---- numbers ----------------------------------------------------------------------------------
 */

/* As if so many small collectives had run, of which the last had no root. */
void countRegions(tuttiComm_t comm, const Gpu &gpu, uint32_t runs) {
  tuttiCommunicator *c = nullptr;
  TUTTI(tuttiHandleEnter(comm, "countRegions", &c));
  const tuttiCommView *view = static_cast<tuttiCuda *>(c->context.device)->view;
  std::vector<uint32_t> counts(TUTTI_REGION_BLOCKS, runs * 2);
  gpu.write(static_cast<tuttiAllPairsHead *>(view->symmetric->counts)->runs, counts.data(),
            counts.size() * sizeof counts[0]);
  tuttiHandleLeave(c);
}

/* The numbers of small collectives begin again after 2^30, which is an hour of them. */
TEST_F(GpuNumbers, BeginAgain) {
  constexpr int n = 3, rounds = 6;
  for (const char *staged : {"0", "1"}) {
    Settings settings(std::map<std::string, std::string>{{"TUTTI_P2P_DISABLE", staged}});
    GpuRanks ranks(n);
    Barrier counted(n);
    ASSERT_TRUE(ranks.ok());
    ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
      cudaStream_t s = gpu.streams[0];
      countRegions(comm, gpu, (1u << 30) - rounds);
      counted.arrive();
      for (uint32_t i = 0; i < 4 * rounds; i++) {
        const size_t count = i % 3 ? 7 : 2000; /* one block, and several */
        uint32_t *x = gpu.put(values(count, i * 10 + (uint32_t)r));
        TUTTI(tuttiAllReduce(x, x, count, tuttiUint32, tuttiSum, comm, s));
        TUTTI(tuttiBroadcast(x, x, count, tuttiUint32, (int)i % n, comm, s));
        ASSERT_TRUE(endsWell(s, comm));
        EXPECT_SAME(gpu.get(x, count), sumOf(n, count, i * 10)) << "round " << i;
      }
    });
  }
}

/* ---- streams ----------------------------------------------------------------------------------
 */

/* Calls of one communicator on any stream run in the order of the calls. */
TEST_F(GpuStreams, SeveralOfOneCommunicator) {
  constexpr size_t count = 5003;
  constexpr int rounds = 60;
  GpuRanks ranks(4);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    std::vector<uint32_t *> in, out;
    for (int i = 0; i < rounds; i++) {
      in.push_back(gpu.put(values(count, (uint32_t)(i * 10 + r))));
      out.push_back((uint32_t *)gpu.take(count * 4));
    }
    for (int i = 0; i < rounds; i++)
      TUTTI(tuttiAllReduce(in[(size_t)i], out[(size_t)i], count, tuttiUint32, tuttiSum, comm,
                           gpu.streams[i * 7 % Gpu::kStreams]));
    for (auto s : gpu.streams)
      ASSERT_TRUE(endsWell(s, comm));
    for (int i = 0; i < rounds; i++)
      EXPECT_SAME(gpu.get(out[(size_t)i], count), sumOf(4, count, (uint32_t)i * 10));
  });
}

/* A call needs nothing of a stream that an earlier call was on. */
/* Where ranks share a GPU, CUDA may keep the call that destroys a stream until another rank's
 * kernel has ended, which waits for this rank: so they are destroyed while none runs. */
TEST_F(GpuStreams, DestroyedOnes) {
  const int n = 2, rounds = 8;
  GpuRanks ranks(n);
  std::vector<std::unique_ptr<Barrier>> ended, destroyed;
  for (int i = 0; i < rounds; i++) {
    ended.push_back(std::make_unique<Barrier>(n));
    destroyed.push_back(std::make_unique<Barrier>(n));
  }
  Barrier made(n);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int, tuttiComm_t comm, Gpu &gpu) {
    uint32_t *x = gpu.put(std::vector<uint32_t>(100, 1));
    cudaStream_t streams[rounds];
    for (auto &s : streams)
      CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    made.arrive();
    for (int i = 0; i < rounds; i++) {
      TUTTI(tuttiAllReduce(x, x, 100, tuttiUint32, tuttiSum, comm, streams[i]));
      ASSERT_TRUE(endsWell(streams[i], comm));
      ended[(size_t)i]->arrive();
      CUDA(cudaStreamDestroy(streams[i]));
      destroyed[(size_t)i]->arrive();
    }
    TUTTI(tuttiAllReduce(x, x, 100, tuttiUint32, tuttiSum, comm, gpu.streams[0]));
    EXPECT_SAME(gpu.get(x, 100), std::vector<uint32_t>(100, 1 << 9));
  });
}

TEST_F(GpuStreams, TheDefaultStream) {
  GpuRanks ranks(2);
  ASSERT_TRUE(ranks.ok());
  if (gpus() < 2) GTEST_SKIP() << "ranks of one GPU would wait for each other's default stream";
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    uint32_t *in = gpu.put(values(100, (uint32_t)r));
    TUTTI(tuttiAllReduce(in, in, 100, tuttiUint32, tuttiSum, comm, nullptr));
    ASSERT_TRUE(endsWell(nullptr, comm));
    EXPECT_SAME(gpu.get(in, 100), sumOf(2, 100, 0));
  });
}

TEST_F(GpuStreams, EightCommunicators) {
  constexpr size_t count = 3001;
  constexpr int rounds = 50, comms = 8;
  const int n = gpus() > 1 ? 4 : 2; /* a GPU has 32 queues, and each communicator its own stream */
  GpuRanks ranks(n, (size_t)16 << 20, comms);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t, Gpu &gpu) {
    std::vector<uint32_t *> buffers;
    for (int i = 0; i < comms * rounds; i++)
      buffers.push_back(gpu.put(values(count, (uint32_t)(i * 10 + r))));
    for (int i = 0; i < comms * rounds; i++)
      TUTTI(tuttiAllReduce(buffers[(size_t)i], buffers[(size_t)i], count, tuttiUint32, tuttiSum,
                           ranks.comms[(size_t)r][(size_t)i % comms],
                           gpu.streams[i % Gpu::kStreams]));
    for (auto s : gpu.streams)
      ASSERT_EQ(awaitStream(s), cudaSuccess) << tuttiGetLastError(nullptr);
    for (int i = 0; i < comms * rounds; i++)
      EXPECT_SAME(gpu.get(buffers[(size_t)i], count), sumOf(n, count, (uint32_t)i * 10));
  });
}

/* ---- graphs -----------------------------------------------------------------------------------
 */

struct Graph {
  ~Graph() {
    if (exec) cudaGraphExecDestroy(exec);
  }
  cudaGraphExec_t exec = nullptr;
};

/* Of what body enqueues. All ranks have their graphs before one is launched: making one takes GPU
 * memory. */
template <class F>
void capture(cudaStream_t stream, cudaGraphExec_t *exec, Barrier &made, const F &body) {
  Barrier::Arrival arrival(made); /* also on failure */
  cudaGraph_t graph;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  body();
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(exec, graph, 0));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaGraphUpload(*exec, stream));
  ASSERT_EQ(awaitStream(stream), cudaSuccess);
}

/* In place, each all-reduce of equal numbers multiplies them by n: none is lost or runs twice. */
void replays(size_t count, int launches, int eagerEvery) {
  const int n = 3;
  GpuRanks ranks(n);
  Barrier made(n), done(n);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    cudaStream_t s = gpu.streams[0];
    uint32_t *x = gpu.put(std::vector<uint32_t>(count, 1)), *all;
    all = (uint32_t *)gpu.take(count * (size_t)n * 4);
    Graph exec;
    Barrier::Arrival end(done); /* before the graph goes */
    auto multiply = [&] { TUTTI(tuttiAllReduce(x, x, count, tuttiUint32, tuttiSum, comm, s)); };
    capture(s, &exec.exec, made, [&] {
      multiply();
      TUTTI(tuttiAllGather(x, all, count, tuttiUint32, comm, s));
      multiply();
    });
    if (testing::Test::HasFatalFailure()) return;
    uint32_t want = 1, gathered = 1;
    for (int i = 0; i < launches; i++) {
      CUDA(cudaGraphLaunch(exec.exec, s));
      gathered = want * (uint32_t)n;
      want *= (uint32_t)(n * n);
      if (eagerEvery && i % eagerEvery == 0) {
        multiply();
        want *= (uint32_t)n;
      }
    }
    ASSERT_TRUE(endsWell(s, comm));
    EXPECT_SAME(gpu.get(x, count), std::vector<uint32_t>(count, want));
    size_t whole = count * (size_t)n;
    EXPECT_SAME(gpu.get(all, whole), std::vector<uint32_t>(whole, gathered)) << r;
  });
}

TEST_F(GpuGraphs, ThousandReplays) {
  for (size_t count : {1, 100003})
    replays(count, 1000, 0);
}
TEST_F(GpuGraphs, HundredThousandReplays) {
  replays(1001, 100000, 0);
}
TEST_F(GpuGraphs, MixedWithCalls) {
  for (size_t count : {1, 1001, 100003})
    replays(count, 300, 7);
}

/* Calls on several streams of one capture follow each other in the graph, too. */
TEST_F(GpuGraphs, BranchesOfOneCommunicator) {
  const int n = 4;
  for (size_t count : {1, 1001, 100003}) {
    GpuRanks ranks(n);
    Barrier made(n), done(n);
    ASSERT_TRUE(ranks.ok());
    ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
      cudaStream_t s = gpu.streams[0], side = gpu.streams[1];
      uint32_t *x[] = {gpu.put(std::vector<uint32_t>(count, 1)),
                       gpu.put(std::vector<uint32_t>(count, (uint32_t)r))};
      Graph exec;
      Barrier::Arrival end(done); /* before the graph goes */
      capture(s, &exec.exec, made, [&] {
        cudaEvent_t fork, join;
        CUDA(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
        CUDA(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
        CUDA(cudaEventRecord(fork, s));
        CUDA(cudaStreamWaitEvent(side, fork, 0));
        for (int i = 0; i < 6; i++)
          TUTTI(tuttiAllReduce(x[i % 2], x[i % 2], count, tuttiUint32, tuttiSum, comm,
                               i % 2 ? side : s));
        CUDA(cudaEventRecord(join, side));
        CUDA(cudaStreamWaitEvent(s, join, 0));
        CUDA(cudaEventDestroy(fork));
        CUDA(cudaEventDestroy(join));
      });
      if (testing::Test::HasFatalFailure()) return;
      uint32_t want[] = {1, 6 /* 0 + 1 + 2 + 3 */};
      for (int i = 0; i < 50; i++) {
        CUDA(cudaGraphLaunch(exec.exec, s));
        want[0] *= (uint32_t)(n * n * n);
        want[1] *= (uint32_t)(i ? n * n * n : n * n);
      }
      ASSERT_TRUE(endsWell(s, comm));
      for (int k = 0; k < 2; k++)
        EXPECT_SAME(gpu.get(x[k], count), std::vector<uint32_t>(count, want[k]));
    });
  }
}

/* A call follows the one before it on another stream, whatever is captured between. */
TEST_F(GpuGraphs, CaptureBetweenCalls) {
  constexpr size_t count = 1001;
  const int n = 2;
  GpuRanks ranks(n);
  Barrier enqueued(n);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    uint32_t *x = gpu.put(values(count, (uint32_t)r)), *y = gpu.put(values(count, (uint32_t)r + 7));
    uint32_t *z = gpu.put(values(count, (uint32_t)r));
    auto sum = [&](uint32_t *at, int stream) {
      TUTTI(tuttiAllReduce(at, at, count, tuttiUint32, tuttiSum, comm, gpu.streams[stream]));
    };
    if (r > 0) enqueued.arrive(); /* rank 0's kernels are waiting by then */
    sum(x, 0);
    cudaGraph_t graph;
    CUDA(cudaStreamBeginCapture(gpu.streams[1], cudaStreamCaptureModeThreadLocal));
    sum(z, 1);
    CUDA(cudaStreamEndCapture(gpu.streams[1], &graph));
    CUDA(cudaGraphDestroy(graph));
    sum(y, 2);
    if (r == 0) {
      usleep(200000);
      enqueued.arrive();
    }
    for (auto s : gpu.streams)
      ASSERT_TRUE(endsWell(s, comm));
    EXPECT_SAME(gpu.get(x, count), sumOf(n, count, 0));
    EXPECT_SAME(gpu.get(y, count), sumOf(n, count, 7));
  });
}

/* A thread captures in the strictest way while others make, use and destroy a communicator: what is
 * captured stays good. */
TEST_F(GpuGraphs, CommunicatorsLiveBesideACapture) {
  constexpr size_t count = 1001;
  const int n = 2;
  std::unique_ptr<Gpu> gpus[n];
  uint32_t *x[n];
  cudaGraph_t graph;
  Graph exec;
  tuttiUniqueId id;
  for (int r = 0; r < n; r++) {
    gpus[r] = std::make_unique<Gpu>(r, (size_t)1 << 20);
    x[r] = gpus[r]->put(values(count, (uint32_t)r));
  }
  gpus[0]->use();
  uint8_t *bytes = gpus[0]->put(std::vector<uint8_t>(count, 1));
  cudaStream_t stream = gpus[0]->streams[1];
  TUTTI(tuttiGetUniqueId(&id));
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  onThreads(n, [&](int r) {
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.device = tuttiDeviceCuda;
    tuttiComm_t comm = nullptr;
    gpus[r]->use();
    TUTTI(tuttiCommInitRankConfig(&comm, n, id, r, &config));
    EXPECT_EQ(tuttiAllReduce(x[r], x[r], count, tuttiUint32, tuttiSum, comm, gpus[r]->streams[0]),
              tuttiSuccess)
        << tuttiGetLastError(comm);
    EXPECT_EQ(tuttiCommFinalize(comm), tuttiSuccess) << tuttiGetLastError(comm);
    EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess) << tuttiGetLastError(nullptr);
  });
  CUDA(cudaMemsetAsync(bytes, 2, count, stream));
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&exec.exec, graph, 0));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaGraphLaunch(exec.exec, stream));
  ASSERT_EQ(awaitStream(stream), cudaSuccess);
  EXPECT_SAME(gpus[0]->get(bytes, count), std::vector<uint8_t>(count, 2));
  for (int r = 0; r < n; r++)
    EXPECT_SAME(gpus[r]->get(x[r], count), sumOf(n, count, 0));
}

bool hasContext(int device) {
  auto get =
      (CUresult(*)(CUdevice, unsigned *, int *))tuttiCudaDriver("cuDevicePrimaryCtxGetState");
  unsigned flags;
  int active = 0;
  return get && get(device, &flags, &active) == CUDA_SUCCESS && active;
}

/* The library's threads, which never named a GPU, take no memory on the first one. */
TEST_F(GpuNonBlocking, NoContextOnAnotherGpu) {
  if (gpus() < 2) GTEST_SKIP() << "needs two GPUs";
  RankProcesses processes;
  processes.start(2, [&](int r) {
    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
    config.device = tuttiDeviceCuda;
    config.blocking = 0;
    tuttiComm_t comm;
    Gpu gpu(1, 1 << 20);
    float *x = gpu.put(std::vector<float>(1000, 1));
    EXPECT_EQ(tuttiCommInitRankConfig(&comm, 2, processes.id(), r, &config), tuttiInProgress);
    awaitInit(comm);
    EXPECT_EQ(tuttiAllReduce(x, x, 1000, tuttiFloat32, tuttiSum, comm, gpu.streams[0]),
              tuttiInProgress);
    EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess) << tuttiGetLastError(nullptr);
    EXPECT_EQ(gpu.get(x, 1000), std::vector<float>(1000, 2));
    EXPECT_TRUE(hasContext(1));
    EXPECT_FALSE(hasContext(0));
    exit(testing::Test::HasFailure() ? 3 : 0);
  });
  processes.waitAll(60);
  for (int r = 0; r < 2; r++)
    EXPECT_EQ(processes.report(r).status, 0) << processes.report(r).text;
}

TEST_F(GpuGraphs, MessagesAndGroups) {
  constexpr size_t count = 1001;
  const int n = 4;
  GpuRanks ranks(n);
  Barrier made(n), done(n);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    cudaStream_t s = gpu.streams[0];
    uint32_t *in = gpu.put(values(count, (uint32_t)r)), *got = (uint32_t *)gpu.take(count * 4);
    Graph exec;
    Barrier::Arrival end(done); /* before the graph goes */
    capture(s, &exec.exec, made,
            [&] { /* what comes is sent on: after n launches all is home again */
                  TUTTI(tuttiGroupStart());
                  TUTTI(tuttiSend(in, count, tuttiUint32, (r + 1) % n, comm, s));
                  TUTTI(tuttiRecv(got, count, tuttiUint32, (r + n - 1) % n, comm, s));
                  TUTTI(tuttiGroupEnd());
                  CUDA(cudaMemcpyAsync(in, got, count * 4, cudaMemcpyDeviceToDevice, s));
            });
    if (testing::Test::HasFatalFailure()) return;
    for (int i = 0; i < 25 * n + 1; i++)
      CUDA(cudaGraphLaunch(exec.exec, s));
    ASSERT_TRUE(endsWell(s, comm));
    EXPECT_SAME(gpu.get(in, count), values(count, (uint32_t)(r + n - 1) % n));
  });
}

} // namespace

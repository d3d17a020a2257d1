/* Puts, signals and waits between GPUs. */
#include <algorithm>
#include <random>

#include "device/cuda/state.h"
#include "gpu/gpu.h"
#include "processes.h"

using testing::AllOf;
using testing::HasSubstr;

namespace {

using Env = std::map<std::string, std::string>;

tuttiConfig_t many(int contexts, int signals) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.numRmaCtx = contexts;
  config.numRmaSig = signals;
  return config;
}

tuttiResult_t await(tuttiComm_t comm, int peer, cudaStream_t stream, int count = 1, int sig = 0,
                    int ctx = 0) {
  tuttiWaitSignalDesc_t desc = {count, peer, sig, ctx};
  return tuttiWaitSignal(1, &desc, comm, stream);
}

#define EXPECT_ENDS(stream, comm) ASSERT_TRUE(endsWell(stream, comm))

std::vector<uint8_t> noise(size_t n, uint32_t seed) {
  std::vector<uint8_t> v(n);
  for (size_t i = 0; i < n; i++)
    v[i] = (uint8_t)((seed * 2654435761u ^ (uint32_t)i * 40503u) >> 7);
  return v;
}

struct Graph {
  ~Graph() {
    if (exec) cudaGraphExecDestroy(exec);
  }
  cudaGraphExec_t exec = nullptr;
};

/* Ranks that store to each other: kernels between all pairs run beside, or those of schedules. Or
 * such as have messages taken by a proxy of the receiver. */
class GpuOneSided : public GpuTest, public testing::WithParamInterface<Env> {
protected:
  static bool relays() { return GetParam().count("TUTTI_P2P_DISABLE") > 0; }
  Settings settings{GetParam()};
};

/* ---- data -------------------------------------------------------------------------------------
 */

/* Every rank writes a block into its place at every rank, itself included, round after round. */
void everyoneWrites(int n, size_t bytes, int rounds) {
  size_t place = bytes + 5; /* so that places have every alignment, and bytes between them */
  GpuRanks ranks(n, place * (size_t)n * 2 + bytes + 4096);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    cudaStream_t s = gpu.streams[0];
    uint8_t *window = gpu.put(std::vector<uint8_t>(place * (size_t)n * 2, 0xa5));
    uint8_t *mine = (uint8_t *)gpu.take(bytes);
    tuttiWindow_t win;
    TUTTI(tuttiCommWindowRegister(comm, window, place * (size_t)n * 2, &win, 0));
    for (int round = 1; round <= rounds; round++) {
      auto seed = [&](int rank) { return (uint32_t)(round * 1009 + rank); };
      size_t half = (size_t)(round % 2) * (size_t)n; /* two halves, by turns */
      gpu.write(mine, noise(bytes, seed(r)).data(), bytes);
      for (int i = 0; i < n; i++)
        TUTTI(tuttiPutSignal(mine, bytes, tuttiUint8, (r + i) % n, win, (half + (size_t)r) * place,
                             0, 0, 0, comm, s));
      for (int p = 0; p < n; p++)
        TUTTI(await(comm, p, s));
      EXPECT_ENDS(s, comm);
      for (int p = 0; p < n; p++) {
        auto want = noise(bytes, seed(p));
        want.insert(want.end(), place - bytes, 0xa5);
        ASSERT_TRUE(gpu.get(window + (half + (size_t)p) * place, place) == want)
            << bytes << " bytes of rank " << p << " in round " << round;
      }
    }
    TUTTI(tuttiCommWindowDeregister(comm, win));
  });
}

TEST_P(GpuOneSided, DataIsThereWithItsSignal) {
  for (size_t bytes : {1, 8, 17, 4096, 65536, 65537, 300004})
    if (!HasFatalFailure()) everyoneWrites(4, bytes, bytes < 5000 ? 20 : 5);
}

TEST_P(GpuOneSided, MuchData) {
  everyoneWrites(2, ((size_t)4 << 20) - 1, 3);
  everyoneWrites(2, (size_t)4 << 20, 3);
  everyoneWrites(2, ((size_t)64 << 20) + 3, 2);
}

/* Any size, from any address to any other. */
TEST_P(GpuOneSided, AnySizeAndAlignment) {
  constexpr size_t room = (size_t)6 << 20;
  constexpr size_t edges[] = {0, 1, 15, 16, 17, 511, 1 << 14, 1 << 16, 1 << 18, 4 << 20};
  GpuRanks ranks(2, 2 * room + 8192);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    std::mt19937 random(2); /* the same on both ranks, which know what the other does */
    cudaStream_t s = gpu.streams[0];
    std::vector<uint8_t> window[2] = {std::vector<uint8_t>(room, 1), std::vector<uint8_t>(room, 2)};
    uint8_t *at = gpu.put(window[r]), *from = gpu.put(noise(room, 7));
    const auto source = noise(room, 7);
    tuttiWindow_t win;
    TUTTI(tuttiCommWindowRegister(comm, at, room, &win, 0));
    for (int i = 0; i < 150; i++) {
      size_t bytes = edges[random() % std::size(edges)] + random() % 40;
      size_t offset = random() % (room - bytes), begin = random() % (room - bytes);
      int sender = (int)(random() % 2), receiver = (int)(random() % 2);
      if (r == sender) {
        TUTTI(tuttiPutSignal(from + begin, bytes, tuttiUint8, receiver, win, offset, 0, 0, 0, comm,
                             s));
      }
      if (r == receiver) {
        TUTTI(await(comm, sender, s));
      }
      std::copy_n(source.begin() + (long)begin, bytes, window[receiver].begin() + (long)offset);
      /* The next one may write over it from elsewhere: all in order. */
      TUTTI(tuttiSignal(1 - r, 0, 0, 0, comm, s));
      TUTTI(await(comm, 1 - r, s));
    }
    EXPECT_ENDS(s, comm);
    EXPECT_TRUE(gpu.get(at, room) == window[r]);
    EXPECT_TRUE(gpu.get(from, room) == source) << "what is sent stays as it is";
  });
}

TEST_P(GpuOneSided, FromPinnedHostMemory) {
  constexpr size_t most = (size_t)5 << 20;
  uint8_t *host = nullptr;
  CUDA(cudaMallocHost((void **)&host, most));
  const auto source = noise(most, 3);
  std::copy(source.begin(), source.end(), host);
  {
    GpuRanks ranks(2, most + 4096);
    ASSERT_TRUE(ranks.ok());
    ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
      uint8_t *window = gpu.put(std::vector<uint8_t>(most, 0));
      tuttiWindow_t win;
      TUTTI(tuttiCommWindowRegister(comm, window, most, &win, 0));
      for (size_t bytes : {(size_t)8, (size_t)100003, most}) {
        if (r == 0) {
          TUTTI(tuttiPutSignal(host, bytes, tuttiUint8, 1, win, 0, 0, 0, 0, comm, gpu.streams[0]));
          EXPECT_ENDS(gpu.streams[0], comm);
          continue;
        }
        TUTTI(await(comm, 0, gpu.streams[0]));
        EXPECT_ENDS(gpu.streams[0], comm);
        EXPECT_TRUE(std::equal(source.begin(), source.begin() + (long)bytes,
                               gpu.get(window, bytes).begin()));
      }
    });
  }
  CUDA(cudaFreeHost(host));
}

/* No host waits: each copy behind a wait on its stream finds what was put before the signal. */
TEST_P(GpuOneSided, WhatFollowsAWaitOnItsStreamFindsTheData) {
  constexpr int puts = 300;
  constexpr size_t words = 5000; /* of each; they tell which it is */
  GpuRanks ranks(2, (puts + 2) * (words * 4 + 256));
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    cudaStream_t s = gpu.streams[0];
    uint32_t *window = gpu.put(std::vector<uint32_t>(words)),
             *log = gpu.put(std::vector<uint32_t>(puts));
    std::vector<uint32_t> want(puts);
    std::vector<uint32_t *> data;
    tuttiWindow_t win;
    for (uint32_t i = 0; i < puts; i++) {
      want[i] = i + 1;
      if (r == 0) data.push_back(gpu.put(std::vector<uint32_t>(words, i + 1)));
    }
    TUTTI(tuttiCommWindowRegister(comm, window, words * 4, &win, 0));
    for (size_t i = 0; i < puts; i++) {
      if (r == 0) { /* once rank 1 has looked at the one before */
        TUTTI(await(comm, 1, s));
        TUTTI(tuttiPutSignal(data[i], words, tuttiUint32, 1, win, 0, 0, 0, 0, comm, s));
      } else {
        TUTTI(tuttiSignal(0, 0, 0, 0, comm, s));
        TUTTI(await(comm, 0, s));
        CUDA(cudaMemcpyAsync(log + i, window + words - 1, 4, cudaMemcpyDeviceToDevice, s));
      }
    }
    EXPECT_ENDS(s, comm);
    if (r == 0) return;
    EXPECT_EQ(gpu.get(log, puts), want);
  });
}

/* ---- signals ----------------------------------------------------------------------------------
 */

TEST_P(GpuOneSided, SignalsAreCountedByRankIndexAndContext) {
  constexpr int n = 3, contexts = 2, signals = 9;
  tuttiConfig_t config = many(contexts, signals);
  GpuRanks ranks(n, 1 << 16, 1, config);
  Barrier counted(n);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    cudaStream_t s = gpu.streams[0];
    tuttiWindow_t win;
    TUTTI(tuttiCommWindowRegister(comm, gpu.memory(), 8, &win, 0));
    auto times = [](int from, int to, int ctx, int sig) { return from + 2 * to + 5 * ctx + sig; };
    std::vector<tuttiWaitSignalDesc_t> descs; /* more than one launch takes; each in two parts */
    for (int p = 0; p < n; p++)
      for (int ctx = 0; ctx < contexts; ctx++)
        for (int sig = 0; sig < signals; sig++) {
          for (int i = 0; i < times(r, p, ctx, sig); i++)
            TUTTI(tuttiSignal(p, sig, ctx, 0, comm, s));
          int all = times(p, r, ctx, sig);
          descs.push_back({all / 3, p, sig, ctx});
          descs.push_back({all - all / 3, p, sig, ctx});
        }
    TUTTI(tuttiWaitSignal((int)descs.size(), descs.data(), comm, s));
    TUTTI(tuttiWaitSignal(0, nullptr, comm, s));
    EXPECT_ENDS(s, comm);
    counted.arrive();
    if (r > 0) return;
    setTimeout(comm, 500);
    /* And not one more; who waits for it is told what it waits for. */
    TUTTI(await(comm, 2, s, 1, 8, 1));
    EXPECT_EQ(awaitFailure(comm, 20), tuttiTimeout);
    EXPECT_THAT(tuttiGetLastError(comm), AllOf(HasSubstr("rank 0 waited"),
                                               HasSubstr("for 1 signal of index 8 and context "
                                                         "1 from rank 2"),
                                               HasSubstr("of which 0 have come")));
    EXPECT_EQ(awaitStream(s, 5), cudaSuccess) << "the kernel has ended";
  });
  for (auto &c : ranks.comms)
    EXPECT_EQ(tuttiCommAbort(std::exchange(c[0], nullptr)), tuttiSuccess);
}

/* As between GPUs that have no atomic operations on each other's memory, for what is to come. */
void storeSignals(tuttiComm_t comm) {
  tuttiCommunicator *c = nullptr;
  TUTTI(tuttiHandleEnter(comm, "storeSignals", &c));
  static_cast<tuttiCuda *>(c->context.device)->addsSignals = false;
  tuttiHandleLeave(c);
}

/* From several streams and a graph at once, which nothing orders. */
void sendFromManyStreams(bool atomics) {
  constexpr int rounds = 200, launches = 100, inGraph = 3;
  tuttiConfig_t config = many(1, 2);
  GpuRanks ranks(2, 1 << 16, 1, config);
  Barrier made(2), done(2);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    tuttiWindow_t win;
    if (!atomics) storeSignals(comm);
    uint64_t *data = gpu.put(std::vector<uint64_t>(8, 9)),
             *window = gpu.put(std::vector<uint64_t>(8));
    TUTTI(tuttiCommWindowRegister(comm, window, 64, &win, 0));
    cudaGraph_t graph;
    Graph exec;
    Barrier::Arrival end(done); /* before the graph goes */
    CUDA(cudaStreamBeginCapture(gpu.streams[2], cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < inGraph; i++)
      TUTTI(tuttiPutSignal(data, 8, tuttiUint64, 1 - r, win, 0, 0, 0, 0, comm, gpu.streams[2]));
    CUDA(cudaStreamEndCapture(gpu.streams[2], &graph));
    CUDA(cudaGraphInstantiate(&exec.exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaGraphUpload(exec.exec, gpu.streams[2]));
    made.arrive();
    for (int i = 0; i < rounds; i++) {
      TUTTI(tuttiPutSignal(data, 1, tuttiUint64, 1 - r, win, 8, 0, 0, 0, comm, gpu.streams[i % 2]));
      if (i < launches) {
        CUDA(cudaGraphLaunch(exec.exec, gpu.streams[2]));
      }
      if (i % 50 == 49) { /* waits on several streams take from one counter */
        TUTTI(await(comm, 1 - r, gpu.streams[i % 3], 50));
      }
    }
    TUTTI(await(comm, 1 - r, gpu.streams[0], launches * inGraph));
    for (auto s : gpu.streams) {
      EXPECT_ENDS(s, comm);
    }
    EXPECT_EQ(gpu.get(window, 8), std::vector<uint64_t>(8, 9));
  });
}

TEST_P(GpuOneSided, NoSignalIsLost) {
  sendFromManyStreams(true);
}
TEST_P(GpuOneSided, NoSignalIsLostWithoutAtomics) {
  sendFromManyStreams(false);
}

/* A wait holds up its own stream alone. */
TEST_P(GpuOneSided, APutPassesAWaitOfAnotherStream) {
  GpuRanks ranks(2);
  Barrier looked(2);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    tuttiWindow_t win;
    uint64_t *data = gpu.put(std::vector<uint64_t>(1, 5 + (uint64_t)r));
    uint64_t *window = gpu.put(std::vector<uint64_t>(1));
    TUTTI(tuttiCommWindowRegister(comm, window, 8, &win, 0));
    TUTTI(await(comm, 1 - r, gpu.streams[1]));
    TUTTI(await(comm, 1 - r, gpu.streams[0], 0));
    EXPECT_ENDS(gpu.streams[0], comm); /* nor does the wait for none wait for the other */
    looked.arrive();
    TUTTI(tuttiSignal(1 - r, 0, 0, 0, comm, gpu.streams[2]));
    for (int i = 0; i < 20; i++) {
      TUTTI(await(comm, 1 - r, gpu.streams[1]));
      TUTTI(tuttiPutSignal(data, 1, tuttiUint64, 1 - r, win, 0, 0, 0, 0, comm, gpu.streams[2]));
    }
    EXPECT_ENDS(gpu.streams[1], comm);
    EXPECT_ENDS(gpu.streams[2], comm);
    EXPECT_EQ(gpu.get(window, 1), std::vector<uint64_t>(1, 6 - (uint64_t)r));
  });
}

/* The end of a communicator waits for its waits, whatever stream they are on. */
TEST_P(GpuOneSided, FinalizeWaitsForWaits) {
  GpuRanks ranks(2);
  Barrier waiting(2);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    tuttiWindow_t win;
    TUTTI(tuttiCommWindowRegister(comm, gpu.memory(), 8, &win, 0));
    if (r == 1) {
      waiting.arrive();
      usleep(200000);
      for (int i = 0; i < Gpu::kStreams; i++)
        TUTTI(tuttiSignal(0, 0, 0, 0, comm, gpu.streams[0]));
      EXPECT_ENDS(gpu.streams[0], comm);
    } else {
      for (auto s : gpu.streams)
        TUTTI(await(comm, 1, s));
      waiting.arrive();
      EXPECT_EQ(tuttiCommFinalize(comm), tuttiSuccess) << tuttiGetLastError(comm);
      for (auto s : gpu.streams)
        EXPECT_EQ(cudaStreamQuery(s), cudaSuccess);
    }
  });
}

/* So it does for signals of large puts, which between GPUs are beside their stream. */
TEST_P(GpuOneSided, FinalizeWaitsForLargePuts) {
  constexpr size_t bytes = (size_t)8 << 20;
  constexpr int puts = 5;
  GpuRanks ranks(2, 2 * bytes + 4096);
  Barrier ended(2);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    cudaStream_t s = gpu.streams[0];
    const auto source = noise(bytes, 5);
    uint8_t *data = gpu.put(source), *window = gpu.put(std::vector<uint8_t>(bytes));
    tuttiWindow_t win;
    TUTTI(tuttiCommWindowRegister(comm, window, bytes, &win, 0));
    if (r == 0) {
      for (int i = 0; i < puts; i++)
        TUTTI(tuttiPutSignal(data, bytes, tuttiUint8, 1, win, 0, 0, 0, 0, comm, s));
      EXPECT_EQ(tuttiCommFinalize(comm), tuttiSuccess) << tuttiGetLastError(comm);
      EXPECT_EQ(cudaStreamQuery(s), cudaSuccess);
      EXPECT_EQ(tuttiCommDestroy(std::exchange(ranks.comms[0][0], nullptr)), tuttiSuccess);
      ended.arrive();
      return;
    }
    ended.arrive();
    TUTTI(await(comm, 0, s, puts));
    EXPECT_ENDS(s, comm);
    EXPECT_TRUE(gpu.get(window, bytes) == source);
  });
}

/* ---- groups and graphs ------------------------------------------------------------------------
 */

/* One thread's group of two communicators' calls; the waits are called before what they wait for,
 * and all is on one stream of each rank. */
TEST_P(GpuOneSided, InGroups) {
  constexpr int n = 2;
  std::unique_ptr<Gpu> gpus[n];
  GpuRanks ranks(n);
  tuttiWindow_t wins[n] = {};
  double *window[n], *out[n];
  float *in[n], *sum[n];
  ASSERT_TRUE(ranks.ok());
  for (int r = 0; r < n; r++) {
    gpus[r] = std::make_unique<Gpu>(r, 1 << 16);
    window[r] = gpus[r]->put(std::vector<double>(2));
    out[r] = gpus[r]->put(std::vector<double>(1, r + 0.5));
    in[r] = gpus[r]->put(std::vector<float>(1, (float)(r + 1)));
    sum[r] = gpus[r]->put(std::vector<float>(1));
  }
  ranks.run([&](int r, tuttiComm_t comm, Gpu &) {
    TUTTI(tuttiCommWindowRegister(comm, window[r], 16, &wins[r], 0));
  });
  for (int round = 1; round < 10; round++) {
    TUTTI(tuttiGroupStart());
    for (int r = 0; r < n; r++) {
      tuttiComm_t comm = ranks.comms[(size_t)r][0];
      cudaStream_t s = gpus[r]->streams[0];
      TUTTI(await(comm, 1 - r, s));
      TUTTI(tuttiPutSignal(out[r], 1, tuttiDouble, 1 - r, wins[r], 8, 0, 0, 0, comm, s));
      TUTTI(tuttiAllReduce(in[r], sum[r], 1, tuttiFloat, tuttiSum, comm, s));
    }
    TUTTI(tuttiGroupEnd());
    for (int r = 0; r < n; r++) {
      EXPECT_ENDS(gpus[r]->streams[0], ranks.comms[(size_t)r][0]);
    }
    for (int r = 0; r < n; r++) {
      EXPECT_EQ(gpus[r]->get(window[r], 2), (std::vector<double>{0, 1 - r + 0.5}));
      EXPECT_EQ(gpus[r]->get(sum[r], 1), std::vector<float>(1, 3));
    }
  }
  /* One that is wrong, and none of the group runs. */
  tuttiComm_t comm = ranks.comms[0][0];
  TUTTI(tuttiGroupStart());
  TUTTI(tuttiPutSignal(in[0], 1, tuttiDouble, 1, wins[0], 0, 0, 0, 0, comm, gpus[0]->streams[0]));
  EXPECT_EQ(tuttiSignal(7, 0, 0, 0, comm, gpus[0]->streams[0]), tuttiInvalidArgument);
  EXPECT_EQ(tuttiGroupEnd(), tuttiInvalidArgument);
  ASSERT_EQ(awaitStream(gpus[0]->streams[0]), cudaSuccess);
  EXPECT_EQ(gpus[1]->get(window[1], 1), std::vector<double>(1, 0));
}

/* What comes from the left goes to the right with the next launch: a launch that was lost, or did
 * not wait, would show. A second signal, from the right, says that the data may be overwritten. */
void circulate(size_t count, int launches, bool mixed) {
  const int n = 3;
  GpuRanks ranks(n, count * 8 + 8192);
  Barrier made(n), done(n);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    cudaStream_t s = gpu.streams[0];
    int right = (r + 1) % n, left = (r + n - 1) % n;
    uint32_t *mine = gpu.put(std::vector<uint32_t>(count, (uint32_t)r));
    uint32_t *window = (uint32_t *)gpu.take(count * 4);
    tuttiWindow_t win;
    cudaGraph_t graph;
    Graph exec;
    TUTTI(tuttiCommWindowRegister(comm, window, count * 4, &win, 0));
    auto step = [&] {
      TUTTI(await(comm, right, s));
      TUTTI(tuttiPutSignal(mine, count, tuttiUint32, right, win, 0, 0, 0, 0, comm, s));
      TUTTI(await(comm, left, s));
      CUDA(cudaMemcpyAsync(mine, window, count * 4, cudaMemcpyDeviceToDevice, s));
      TUTTI(tuttiSignal(left, 0, 0, 0, comm, s));
    };
    {
      Barrier::Arrival arrival(made); /* making a graph takes memory of the GPU */
      CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
      step();
      CUDA(cudaStreamEndCapture(s, &graph));
      CUDA(cudaGraphInstantiate(&exec.exec, graph, 0));
      CUDA(cudaGraphDestroy(graph));
      CUDA(cudaGraphUpload(exec.exec, s));
      ASSERT_EQ(awaitStream(s), cudaSuccess);
    }
    Barrier::Arrival end(done);                 /* before the graph goes */
    TUTTI(tuttiSignal(left, 0, 0, 0, comm, s)); /* the first may be written */
    int steps = 0;
    for (int i = 0; i < launches; i++, steps++) {
      CUDA(cudaGraphLaunch(exec.exec, s));
      if (!mixed || i % 7) continue;
      step();
      steps++;
    }
    EXPECT_ENDS(s, comm);
    uint32_t origin = (uint32_t)(((r - steps) % n + n) % n);
    EXPECT_TRUE(gpu.get(mine, count) == std::vector<uint32_t>(count, origin)) << r;
  });
}

TEST_P(GpuOneSided, GraphsReplay) {
  for (size_t count : {(size_t)2, (size_t)40003, (size_t)3 << 19})
    if (!HasFatalFailure()) circulate(count, 1000, false);
}
TEST_P(GpuOneSided, GraphsMixedWithCalls) {
  for (size_t count : {2, 40003})
    if (!HasFatalFailure()) circulate(count, 300, true);
}

/* It can be made and launched while the other rank waits for it on the same GPU, however many
 * signals it has beside its stream. */
TEST_P(GpuOneSided, AGraphOfManyLargePutsIsMadeBesideAWait) {
  constexpr size_t bytes = (size_t)4 << 20;
  constexpr int puts = 64, launches = 3;
  GpuRanks ranks(2, 2 * bytes + 8192);
  Barrier waiting(2), done(2);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    cudaStream_t s = gpu.streams[0];
    const auto source = noise(bytes, 7);
    uint8_t *data = gpu.put(source), *window = gpu.put(std::vector<uint8_t>(bytes));
    tuttiWindow_t win;
    TUTTI(tuttiCommWindowRegister(comm, window, bytes, &win, 0));
    if (r == 0) { /* a first put may open a connection */
      TUTTI(tuttiPutSignal(data, 0, tuttiUint8, 1, win, 0, 0, 0, 0, comm, s));
    } else {
      TUTTI(await(comm, 0, s));
    }
    EXPECT_ENDS(s, comm);
    Barrier::Arrival end(done); /* before the graph goes */
    if (r == 1) {
      TUTTI(await(comm, 0, s, puts * launches));
      usleep(100000); /* so that it runs */
      waiting.arrive();
      EXPECT_ENDS(s, comm);
      EXPECT_TRUE(gpu.get(window, bytes) == source);
      return;
    }
    cudaGraph_t graph;
    Graph exec;
    waiting.arrive();
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < puts; i++)
      TUTTI(tuttiPutSignal(data, bytes, tuttiUint8, 1, win, 0, 0, 0, 0, comm, s));
    CUDA(cudaStreamEndCapture(s, &graph));
    CUDA(cudaGraphInstantiate(&exec.exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    for (int i = 0; i < launches; i++)
      CUDA(cudaGraphLaunch(exec.exec, s));
    EXPECT_ENDS(s, comm);
  });
}

/* ---- what is wrong ----------------------------------------------------------------------------
 */

/* It is told at the caller, and nothing is written. */
TEST_P(GpuOneSided, BadArguments) {
  tuttiConfig_t config = many(2, 3);
  GpuRanks ranks(2, 1 << 16, 1, config);
  Barrier looked(2);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    cudaStream_t s = gpu.streams[0];
    EXPECT_EQ(tuttiSignal(1 - r, 0, 0, 0, comm, s), tuttiInvalidUsage);
    EXPECT_THAT(tuttiGetLastError(comm), HasSubstr("need a first window"));
    EXPECT_EQ(await(comm, 1 - r, s), tuttiInvalidUsage);
    const std::vector<uint32_t> sevens(25, 7);
    uint32_t *window = gpu.put(sevens), *data = gpu.put(std::vector<uint32_t>(30));
    std::vector<uint32_t> plain(30);
    tuttiWindow_t win;
    TUTTI(tuttiCommWindowRegister(comm, window, 100, &win, 0));
    auto put = [&](size_t count, size_t offset, int peer = 1, int sig = 0, int ctx = 0,
                   const uint32_t *from = nullptr, tuttiWindow_t to = nullptr) {
      return tuttiPutSignal(from ? from : data, count, tuttiUint32, peer, to ? to : win, offset,
                            sig, ctx, 0, comm, s);
    };
    auto expect = [&](tuttiResult_t result, const char *text) {
      EXPECT_EQ(result, tuttiInvalidArgument) << text;
      EXPECT_THAT(tuttiGetLastError(comm), HasSubstr(text));
    };
    if (r == 0) {
      expect(put(26, 0), "peerWinOffset (0) and count (26 x 4 bytes) reach past the end of window "
                         "#1, which has 100 bytes on rank 1");
      expect(put(1, 97), "reach past the end of window #1");
      expect(put(SIZE_MAX / 2, 0), "reach past the end");
      expect(put(1, 0, 2), "argument peer is 2; it must be a rank, 0 to 1");
      expect(put(1, 0, 1, 3), "argument sigIdx is 3; it must be 0 to 2");
      expect(put(1, 0, 1, 0, 2), "argument ctx is 2; it must be 0 to 1");
      expect(put(1, 0, 1, 0, 0, plain.data()), "is plain host memory");
      expect(put(1, 0, 1, 0, 0, nullptr, (tuttiWindow_t)&win), "is no live window");
      expect(put(10, 40, 0, 0, 0, window + 5), "overlaps what is written of window #1");
      expect(tuttiPutSignal(nullptr, 1, tuttiUint32, 1, win, 0, 0, 0, 0, comm, s),
             "argument localbuff is NULL");
      expect(tuttiSignal(1, 0, 0, 1, comm, s), "argument flags is 0x1");
      expect(await(comm, 1, s, -1), "signalDescs[0].opCnt is -1");
      expect(await(comm, 1, s, 1, 0, 2), "argument ctx is 2");
      looked.arrive();
      EXPECT_EQ(put(25, 0), tuttiSuccess) << tuttiGetLastError(comm);
      EXPECT_EQ(put(0, 100), tuttiSuccess) << "nothing at the very end";
      EXPECT_EQ(put(5, 40, 0, 0, 0, window + 10), tuttiSuccess) << "to where it is already";
      EXPECT_EQ(await(comm, 0, s), tuttiSuccess);
      EXPECT_EQ(await(comm, 0, s, 0), tuttiSuccess) << "none";
      EXPECT_ENDS(s, comm);
      EXPECT_EQ(gpu.get(window, 25), sevens);
      return;
    }
    looked.arrive();
    TUTTI(await(comm, 0, s, 2));
    EXPECT_ENDS(s, comm);
    EXPECT_EQ(gpu.get(window, 25), std::vector<uint32_t>(25));
  });
}

/* Memory that no other GPU can map: signals work, and puts say why not. */
TEST_P(GpuOneSided, WindowsOfHostMemory) {
  constexpr int n = 2;
  uint8_t *host[n] = {};
  for (auto &h : host)
    CUDA(cudaMallocHost((void **)&h, 4096));
  {
    GpuRanks ranks(n);
    ASSERT_TRUE(ranks.ok());
    ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
      cudaStream_t s = gpu.streams[0];
      tuttiWindow_t win;
      TUTTI(tuttiCommWindowRegister(comm, host[r], 4096, &win, 0));
      if (relays()) { /* but what is copied there need not be mapped */
        const auto source = noise(4096, (uint32_t)r);
        TUTTI(tuttiPutSignal(gpu.put(source), 4096, tuttiUint8, 1 - r, win, 0, 0, 0, 0, comm, s));
        TUTTI(await(comm, 1 - r, s));
        EXPECT_ENDS(s, comm);
        EXPECT_TRUE(std::equal(host[r], host[r] + 4096, noise(4096, 1 - (uint32_t)r).begin()));
        return;
      }
      EXPECT_EQ(tuttiPutSignal(gpu.memory(), 8, tuttiUint8, 1 - r, win, 0, 0, 0, 0, comm, s),
                tuttiInvalidUsage);
      EXPECT_THAT(tuttiGetLastError(comm), HasSubstr("cannot store into the part of rank " +
                                                     std::to_string(1 - r) + " of window #1: "));
      TUTTI(tuttiSignal(1 - r, 0, 0, 0, comm, s));
      TUTTI(await(comm, 1 - r, s));
      EXPECT_ENDS(s, comm);
    });
  }
  for (auto &h : host)
    CUDA(cudaFreeHost(h));
}

TEST_P(GpuOneSided, SayThatTheyServe) {
  GpuRanks ranks(2);
  ASSERT_TRUE(ranks.ok());
  tuttiCommProperties_t p = TUTTI_COMM_PROPERTIES_INITIALIZER;
  TUTTI(tuttiCommQueryProperties(ranks.comms[0][0], &p));
  EXPECT_EQ(p.hostRmaSupport, 1);
}

TEST_P(GpuOneSided, WindowsOfManyTimes) {
  GpuRanks ranks(2);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm, Gpu &gpu) {
    cudaStream_t s = gpu.streams[0];
    uint32_t *data = (uint32_t *)gpu.take(4), *window = (uint32_t *)gpu.take(4096);
    for (uint32_t i = 0; i < 100; i++) {
      tuttiWindow_t win;
      TUTTI(tuttiCommWindowRegister(comm, window, 4096, &win, 0));
      gpu.write(data, &i, 4);
      TUTTI(tuttiPutSignal(data, 1, tuttiUint32, 1 - r, win, 4 * i, 0, 0, 0, comm, s));
      TUTTI(await(comm, 1 - r, s));
      EXPECT_ENDS(s, comm);
      ASSERT_EQ(gpu.get(window + i, 1), std::vector<uint32_t>(1, i));
      TUTTI(tuttiCommWindowDeregister(comm, win));
    }
  });
}

TEST_P(GpuOneSided, OnANonBlockingCommunicator) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.blocking = 0;
  GpuRanks ranks(2, 1 << 16, 1, config);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm, Gpu &gpu) {
    cudaStream_t s = gpu.streams[0];
    uint32_t *window = gpu.put(std::vector<uint32_t>(1));
    uint32_t *data = gpu.put(std::vector<uint32_t>(1, 40 + (uint32_t)r));
    float *sum = gpu.put(std::vector<float>(1, 1));
    tuttiWindow_t win;
    ASSERT_EQ(settle(comm), tuttiSuccess) << tuttiGetLastError(comm);
    TUTTI(tuttiCommWindowRegister(comm, window, 4, &win, 0));
    EXPECT_EQ(tuttiAllReduce(sum, sum, 1, tuttiFloat, tuttiSum, comm, s), tuttiInProgress);
    TUTTI(tuttiPutSignal(data, 1, tuttiUint32, 1 - r, win, 0, 0, 0, 0, comm, s));
    TUTTI(await(comm, 1 - r, s));
    EXPECT_ENDS(s, comm);
    EXPECT_EQ(gpu.get(window, 1), std::vector<uint32_t>(1, 41 - (uint32_t)r));
    EXPECT_EQ(gpu.get(sum, 1), std::vector<float>(1, 2));
  });
}

std::string nameOf(const testing::TestParamInfo<Env> &info) {
  bool schedules = info.param.count("TUTTI_ALGO") > 0;
  if (info.param.count("TUTTI_SHM_DISABLE")) return "Network";
  if (info.param.count("TUTTI_P2P_DISABLE")) return schedules ? "Shm" : "Staged";
  return schedules ? "Schedules" : "AllPairs";
}
INSTANTIATE_TEST_SUITE_P(Beside, GpuOneSided,
                         testing::Values(Env{}, Env{{"TUTTI_ALGO", "ring,tree"}}), nameOf);
const Env kStaged{{"TUTTI_P2P_DISABLE", "1"}};
const Env kShm{{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_ALGO", "ring,tree"}};
/* The one that TUTTI_TEST_NET names; else sockets. */
Env network() {
  const char *net = getenv("TUTTI_TEST_NET");
  return {{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_SHM_DISABLE", "1"}, {"TUTTI_NET", net ?: "Socket"}};
}
INSTANTIATE_TEST_SUITE_P(Relayed, GpuOneSided, testing::Values(kStaged, kShm, network()), nameOf);

/* ---- other paths ------------------------------------------------------------------------------
 */

class GpuOneSidedLife : public GpuTest {};

TEST_F(GpuOneSidedLife, NoneWithoutContexts) {
  GpuRanks ranks(2, 1 << 16, 1, many(0, 1));
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int r, tuttiComm_t comm, Gpu &gpu) {
    tuttiWindow_t win;
    TUTTI(tuttiCommWindowRegister(comm, gpu.memory(), 8, &win, 0));
    EXPECT_EQ(tuttiSignal(1 - r, 0, 0, 0, comm, gpu.streams[0]), tuttiInvalidUsage);
    EXPECT_THAT(tuttiGetLastError(comm), HasSubstr("config.numRmaCtx 0"));
  });
}

/* By each way that data goes, and beside it nothing is written. */
TEST_F(GpuOneSidedLife, OneRankToItself) {
  constexpr size_t room = (size_t)5 << 20;
  GpuRanks ranks(1, 2 * room + 4096);
  ASSERT_TRUE(ranks.ok());
  ranks.run([](int, tuttiComm_t comm, Gpu &gpu) {
    cudaStream_t s = gpu.streams[0];
    std::vector<uint8_t> want(room, 0xa5);
    const auto source = noise(room, 1);
    uint8_t *window = gpu.put(want), *data = gpu.put(source);
    tuttiWindow_t win;
    TUTTI(tuttiCommWindowRegister(comm, window, room, &win, 0));
    size_t at = 1;
    for (size_t bytes : {1, 100, 4097, 65536, 300001, 4 << 20})
      for (size_t from : {0, 1, 4}) {
        at = at + bytes < room ? at : at % 32;
        TUTTI(tuttiPutSignal(data + from, bytes, tuttiUint8, 0, win, at, 0, 0, 0, comm, s));
        TUTTI(await(comm, 0, s));
        std::copy_n(source.begin() + (long)from, bytes, want.begin() + (long)at);
        at += bytes + 3;
      }
    EXPECT_ENDS(s, comm);
    EXPECT_TRUE(gpu.get(window, room) == want);
  });
}

void abortAWait() {
  GpuRanks ranks(2);
  Barrier called(2);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    tuttiWindow_t win;
    TUTTI(tuttiCommWindowRegister(comm, gpu.memory(), 8, &win, 0));
    for (int i = 0; i < 2; i++)
      TUTTI(await(comm, 1 - r, gpu.streams[i]));
    called.arrive();
    usleep(100000);
    EXPECT_EQ(cudaStreamQuery(gpu.streams[0]), cudaErrorNotReady);
    if (r == 1) {
      EXPECT_EQ(awaitFailure(comm, 10), tuttiRemoteError);
      EXPECT_THAT(tuttiGetLastError(comm), HasSubstr("rank 0"));
    } else {
      double begin = seconds();
      EXPECT_EQ(tuttiCommAbort(std::exchange(ranks.comms[0][0], nullptr)), tuttiSuccess);
      EXPECT_LT(seconds() - begin, 5);
    }
    for (int i = 0; i < 2; i++)
      EXPECT_EQ(awaitStream(gpu.streams[i], 5), cudaSuccess) << "rank " << r;
  });
  EXPECT_EQ(tuttiCommAbort(std::exchange(ranks.comms[1][0], nullptr)), tuttiSuccess);
}

TEST_F(GpuOneSidedLife, AbortEndsAWait) {
  abortAWait();
}
TEST_F(GpuOneSidedLife, AbortEndsAWaitForMessages) {
  for (const Env &env : {kStaged, kShm, network()}) {
    Settings settings(env);
    abortAWait();
  }
}

/* More than there is room for goes to one that waits for nothing, and is there in the end. */
TEST_F(GpuOneSidedLife, PutsNeedNoWait) {
  constexpr size_t bytes = (size_t)24 << 20;
  for (const Env &env : {kStaged, kShm, network()}) {
    Settings settings(env);
    GpuRanks ranks(2, 2 * bytes + 4096);
    Barrier put(2);
    ASSERT_TRUE(ranks.ok());
    ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
      cudaStream_t s = gpu.streams[0];
      uint8_t *window = gpu.put(std::vector<uint8_t>(bytes)),
              *data = gpu.put(noise(bytes, (uint32_t)r));
      tuttiWindow_t win;
      TUTTI(tuttiCommWindowRegister(comm, window, bytes, &win, 0));
      for (int i = 0; i < 3; i++)
        TUTTI(tuttiPutSignal(data, bytes, tuttiUint8, 1 - r, win, 0, 0, 0, 0, comm, s));
      EXPECT_ENDS(s, comm);
      put.arrive();
      TUTTI(await(comm, 1 - r, s, 3));
      EXPECT_ENDS(s, comm);
      EXPECT_TRUE(gpu.get(window, bytes) == noise(bytes, 1 - (uint32_t)r));
    });
  }
}

/* ---- processes --------------------------------------------------------------------------------
 */

tuttiResult_t join(tuttiComm_t *comm, int n, const tuttiUniqueId &id, int rank) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.device = tuttiDeviceCuda;
  return tuttiCommInitRankConfig(comm, n, id, rank, &config);
}

/* Every rank writes into all others' memory, by CUDA IPC. */
void writeAll(RankProcesses &processes, int r, int n) {
  constexpr size_t place = (size_t)5 << 20; /* by the copy engine */
  Gpu gpu(r, place * (size_t)(n + 1) + 4096);
  uint8_t *mine = (uint8_t *)gpu.take(place), *window = (uint8_t *)gpu.take(place * (size_t)n);
  tuttiComm_t comm;
  tuttiWindow_t win;
  ASSERT_EQ(processes.keep(join(&comm, n, processes.id(), r)), tuttiSuccess);
  ASSERT_EQ(processes.keep(tuttiCommWindowRegister(comm, window, place * (size_t)n, &win, 0), comm),
            tuttiSuccess);
  cudaStream_t s = gpu.streams[0];
  for (size_t bytes : {(size_t)8, (size_t)65537, place}) {
    gpu.write(mine, noise(bytes, (uint32_t)r).data(), bytes);
    for (int p = 0; p < n; p++)
      ASSERT_EQ(processes.keep(tuttiPutSignal(mine, bytes, tuttiUint8, p, win, (size_t)r * place, 0,
                                              0, 0, comm, s),
                               comm),
                tuttiSuccess);
    for (int p = 0; p < n; p++)
      ASSERT_EQ(processes.keep(await(comm, p, s), comm), tuttiSuccess);
    EXPECT_ENDS(s, comm);
    for (int p = 0; p < n; p++)
      EXPECT_TRUE(gpu.get(window + (size_t)p * place, bytes) == noise(bytes, (uint32_t)p)) << p;
    /* Nobody overwrites before all have looked. */
    for (int p = 0; p < n; p++)
      ASSERT_EQ(processes.keep(tuttiSignal(p, 0, 0, 0, comm, s), comm), tuttiSuccess);
    for (int p = 0; p < n; p++)
      ASSERT_EQ(processes.keep(await(comm, p, s), comm), tuttiSuccess);
    EXPECT_ENDS(s, comm);
  }
  EXPECT_EQ(processes.keep(tuttiCommDestroy(comm)), tuttiSuccess);
}

void writeFromProcesses(const Env &env) {
  constexpr int n = 3;
  Settings settings(env);
  RankProcesses processes;
  processes.start(n, [&](int r) { writeAll(processes, r, n); });
  processes.waitAll(100);
  processes.expectCleanEnds();
}

TEST_F(GpuOneSidedLife, Processes) {
  writeFromProcesses({});
}
TEST_F(GpuOneSidedLife, ProcessesStaged) {
  writeFromProcesses(kStaged);
}
TEST_F(GpuOneSidedLife, ProcessesOverShm) {
  writeFromProcesses(kShm);
}
TEST_F(GpuOneSidedLife, ProcessesOverANetwork) {
  writeFromProcesses(network());
}

void killAPeer(const Env &env) {
  Settings settings(env);
  RankProcesses processes;
  processes.start(2, [&](int r) {
    Gpu gpu(r, 4096);
    tuttiComm_t comm;
    tuttiWindow_t win;
    ASSERT_EQ(processes.keep(join(&comm, 2, processes.id(), r)), tuttiSuccess);
    ASSERT_EQ(processes.keep(tuttiCommWindowRegister(comm, gpu.memory(), 8, &win, 0), comm),
              tuttiSuccess);
    if (r == 0) {
      EXPECT_EQ(processes.keep(await(comm, 1, gpu.streams[0]), comm), tuttiSuccess);
      processes.setStage(r, 1);
      EXPECT_EQ(awaitFailure(comm, 15), tuttiRemoteError);
      processes.keep(tuttiRemoteError, comm);
      EXPECT_EQ(awaitStream(gpu.streams[0], 5), cudaSuccess) << "the kernel has ended";
      EXPECT_EQ(tuttiCommAbort(comm), tuttiSuccess);
      return;
    }
    processes.setStage(r, 1);
    pause();
  });
  for (int r = 0; r < 2; r++)
    ASSERT_TRUE(processes.waitForStage(r, 1)) << processes.report(r).text;
  processes.killRank(1);
  processes.waitAll();
  EXPECT_EQ(processes.report(0).status, 0);
  EXPECT_THAT(processes.report(0).text, AllOf(HasSubstr("rank 1"), HasSubstr("died")));
}

TEST_F(GpuOneSidedLife, ADeadPeerEndsAWait) {
  killAPeer({});
}
TEST_F(GpuOneSidedLife, ADeadPeerEndsAWaitStaged) {
  killAPeer(kStaged);
}
TEST_F(GpuOneSidedLife, ADeadPeerEndsAWaitOverANetwork) {
  killAPeer(network());
}

} // namespace

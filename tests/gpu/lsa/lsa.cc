/* Kernels that communicate by loads and stores, compiled with NVIDIA's nccl_device.h, on
 * libnccl.so.2 of this source: threads and processes, ranks that share a GPU where there are
 * fewer. */
#include "lsa.h"

#include <set>

#include "processes.h"

using testing::AllOf;
using testing::HasSubstr;

namespace {

using Env = std::map<std::string, std::string>;

/* Beside kernels between all pairs, and beside those of schedules. */
class Lsa : public GpuTest, public testing::WithParamInterface<Env> {
protected:
  Settings settings{GetParam()};
};
class LsaLife : public GpuTest {};

/* ---- barriers and stores -----------------------------------------------------------------------
 */

/* A barrier that lets somebody through too early shows as a wrong word in some round. */
void storeFor(Side &side, uint32_t rounds) {
  size_t words = (size_t)side.n * kBlocks * kThreads;
  Memory window(side, words * 4);
  ncclDevComm dev = side.create(kBlocks);
  ASSERT_FALSE(testing::Test::HasFatalFailure());
  for (uint32_t seed = 1; seed <= 3; seed++) { /* sessions go on where the ones before ended */
    CUDA(storeRounds(dev, window.win, rounds, seed * 1000, side.wrong, side.stream));
    side.expectRight("stores");
  }
  side.meet();
  NCCL(ncclDevCommDestroy(side.comm, &dev));
}

TEST_P(Lsa, StoresAreThereBehindABarrier) {
  for (int n : {1, 2, 4})
    if (!HasFatalFailure()) threads(n, [](Side &side) { storeFor(side, 2000); });
}

/* ---- an all-reduce -----------------------------------------------------------------------------
 */

float element(int rank, size_t i) {
  return (float)((i * 7 + (size_t)rank * 3) % 1021);
}

void reduceSizes(Side &side, size_t most) {
  Memory in(side, most), out(side, most);
  constexpr int blocks = 16;
  ncclDevComm dev = side.create(blocks);
  ASSERT_FALSE(testing::Test::HasFatalFailure());
  std::vector<float> mine(most / 4), got(most / 4);
  for (size_t i = 0; i < mine.size(); i++)
    mine[i] = element(side.r, i);
  for (size_t bytes = 1024; bytes <= most; bytes *= 4) {
    size_t count = bytes / 4;
    CUDA(cudaMemsetAsync(out.at, 0xff, bytes, side.stream));
    CUDA(cudaMemcpyAsync(in.at, mine.data(), bytes, cudaMemcpyDefault, side.stream));
    side.await();
    side.meet();
    CUDA(allReduce(dev, in.win, out.win, count, blocks, side.stream));
    side.await();
    CUDA(cudaMemcpyAsync(got.data(), out.at, bytes, cudaMemcpyDefault, side.stream));
    side.await();
    for (size_t i = 0; i < count; i++) {
      float sum = 0;
      for (int r = 0; r < side.n; r++)
        sum += element(r, i);
      ASSERT_EQ(got[i], sum) << bytes << " bytes, element " << i << " on rank " << side.r;
    }
    side.meet();
  }
  NCCL(ncclDevCommDestroy(side.comm, &dev));
}

TEST_P(Lsa, AllReduceOfTheUser) {
  for (int n : {2, 4})
    if (!HasFatalFailure()) threads(n, [](Side &side) { reduceSizes(side, (size_t)64 << 20); });
}

/* ---- resources ---------------------------------------------------------------------------------
 */

TEST_P(Lsa, ResourcesAreZeroAlignedAndApart) {
  threads(2, [](Side &side) {
    constexpr size_t sizes[] = {64, 1000, 4096, 7, (size_t)3 << 20, 128},
                     aligns[] = {0, 1, 4096, 16, (size_t)2 << 20, 65536};
    constexpr int count = std::size(sizes);
    ncclDevResourceRequirements list[count] = {};
    ncclDevResourceHandle handles[count];
    for (int i = 0; i < count; i++)
      list[i] = {i + 1 < count ? &list[i + 1] : nullptr,
                 sizes[i] < 64 ? 64 : sizes[i],
                 aligns[i],
                 &handles[i],
                 0,
                 0,
                 nullptr,
                 nullptr};
    ncclDevCommRequirements reqs = requirements();
    reqs.lsaBarrierCount = 1;
    reqs.resourceRequirementsList = list;
    ncclDevComm dev;
    NCCL(ncclDevCommCreate(side.comm, &reqs, &dev));
    size_t end = ncclGetResourceBufferOffset(dev.lsaBarrier.bufHandle) + 4 * (3 + 2);
    for (int i = 0; i < count; i++) {
      size_t at = ncclGetResourceBufferOffset(handles[i]);
      EXPECT_GE(at, end) << "buffer " << i << " begins in the one before";
      size_t where = (size_t)dev.resourceWindow_inlined.lsaFlatBase + at;
      EXPECT_EQ(where % (aligns[i] ? aligns[i] : 1), 0u) << "buffer " << i;
      end = at + list[i].bufferSize;
      CUDA(fillResource(dev, handles[i], (uint32_t)(list[i].bufferSize / 4), side.wrong,
                        side.stream));
      side.expectRight("a resource buffer");
    }
    side.meet();
    NCCL(ncclDevCommDestroy(side.comm, &dev));
  });
}

TEST_P(Lsa, LowLatencyAllToAll) {
  for (int n : {1, 2, 4}) {
    if (HasFatalFailure()) return;
    threads(n, [](Side &side) {
      ncclDevCommRequirements reqs = requirements();
      ncclDevResourceRequirements wish;
      ncclLLA2AHandle handle;
      int slots = ncclLLA2ACalcSlots(side.n, 16);
      EXPECT_EQ(slots, 2 * side.n);
      NCCL(ncclLLA2ACreateRequirement(kBlocks, slots, &handle, &wish));
      reqs.resourceRequirementsList = &wish;
      ncclDevComm dev;
      NCCL(ncclDevCommCreate(side.comm, &reqs, &dev));
      for (int i = 0; i < 3; i++) {
        CUDA(lowLatency(dev, handle, 3000, side.wrong, side.stream));
        side.expectRight("the low-latency all-to-all");
      }
      side.meet();
      NCCL(ncclDevCommDestroy(side.comm, &dev));
    });
  }
}

/* A barrier of a requirement of one's own, among half of the team. */
TEST_P(Lsa, BarrierOfARequirement) {
  threads(2, [](Side &side) {
    ncclDevResourceRequirements wish;
    ncclLsaBarrierHandle handle;
    NCCL(ncclLsaBarrierCreateRequirement(ncclTeamLsa(side.comm), 7, &handle, &wish));
    EXPECT_EQ(handle.nBarriers, 7);
    EXPECT_EQ(wish.bufferSize, 7 * 4 * (3 + (size_t)side.n));
    ncclDevCommRequirements reqs = requirements();
    reqs.resourceRequirementsList = &wish;
    reqs.barrierCount = 2;
    ncclDevComm dev;
    NCCL(ncclDevCommCreate(side.comm, &reqs, &dev));
    EXPECT_EQ(worldBarrier(dev).nBarriers, 2);
    ncclDevComm other = dev; /* the session of the team then uses that barrier */
    other.lsaBarrier = handle;
    CUDA(barriers(other, 5000, side.stream));
    side.await();
    side.meet();
    NCCL(ncclDevCommDestroy(side.comm, &dev));
  });
}

/* The barriers of barrierCount, which are others than those of lsaBarrierCount from 2.30 on. */
TEST_P(Lsa, BarriersOfBothCounts) {
  threads(2, [](Side &side) {
    ncclDevCommRequirements reqs = requirements();
    reqs.barrierCount = 1;
    reqs.lsaBarrierCount = 1;
    ncclDevComm dev;
    NCCL(ncclDevCommCreate(side.comm, &reqs, &dev));
    Memory memory(side, 4096);
    if (HasFatalFailure()) return;
    CUDA(bothBarriers(dev, memory.win, 3000, side.wrong, side.stream));
    side.expectRight("a barrier of both kinds");
    side.meet();
    NCCL(ncclDevCommDestroy(side.comm, &dev));
  });
}

/* ---- windows -----------------------------------------------------------------------------------
 */

TEST_P(Lsa, TheHostSeesWhatKernelsSee) {
  threads(2, [](Side &side) {
    constexpr size_t size = (size_t)5 << 20, offset = 4096;
    Memory first(side, size), second(side, size);
    ncclDevComm dev = side.create(1);
    void **out = nullptr;
    CUDA(cudaMallocHost((void **)&out, 8 * (size_t)(side.n + 1)));
    for (Memory *m : {&first, &second}) {
      CUDA(lookUp(dev, m->win, offset, (char *)m->at + 77, out, (ncclWindow_t *)&out[side.n],
                  side.stream));
      side.await();
      EXPECT_EQ(out[side.n], (void *)m->win) << "found by its address";
      for (int p = 0; p < side.n; p++) {
        void *at = nullptr;
        NCCL(ncclGetLsaDevicePointer(m->win, offset, p, &at));
        EXPECT_EQ(at, out[p]) << "rank " << p;
        NCCL(ncclGetPeerDevicePointer(m->win, offset, p, &at));
        EXPECT_EQ(at, out[p]) << "rank " << p;
      }
      void *user = nullptr;
      NCCL(ncclWinGetUserPtr(side.comm, m->win, &user));
      EXPECT_EQ(user, m->at);
    }
    EXPECT_EQ(ncclGetLsaDevicePointer(first.win, 0, side.n, out), ncclInvalidArgument);
    void *multicast = out;
    NCCL(ncclGetLsaMultimemDevicePointer(first.win, 0, &multicast));
    EXPECT_EQ(multicast, nullptr) << "there is none";
    EXPECT_EQ(ncclGetPeerDevicePointer(first.win, size + 1, 0, out), ncclInvalidArgument);
    EXPECT_EQ(ncclGetPeerDevicePointer(first.win, 0, side.n, out), ncclInvalidArgument);
    EXPECT_EQ(ncclGetPeerDevicePointer((ncclWindow_t)&dev, 0, 0, out), ncclInvalidArgument);
    side.meet();
    CUDA(cudaFreeHost(out));
    NCCL(ncclDevCommDestroy(side.comm, &dev));
  });
}

/* Parts that begin at different distances from the beginnings of their memory. */
TEST_P(Lsa, WindowsAtAnOffset) {
  threads(2, [](Side &side) {
    size_t words = (size_t)side.n * kBlocks * kThreads, unit = (size_t)2 << 20;
    for (bool even : {true, false}) {
      size_t offset = even ? (size_t)side.r * unit + 512 : (size_t)side.r * 4096;
      Memory window(side, words * 4, offset);
      void *at = nullptr;
      ncclResult_t result = ncclGetPeerDevicePointer(window.win, 0, 1 - side.r, &at);
      if (even) {
        ncclDevComm dev = side.create(kBlocks);
        EXPECT_EQ(result, ncclSuccess) << ncclGetLastError(nullptr);
        CUDA(storeRounds(dev, window.win, 100, 1, side.wrong, side.stream));
        side.expectRight("stores into a window at an offset");
        side.meet();
        NCCL(ncclDevCommDestroy(side.comm, &dev));
      } else {
        EXPECT_EQ(result, ncclInvalidUsage);
        EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("same offset in memory of tuttiMemAlloc"));
      }
    }
  });
}

TEST_P(Lsa, OtherMemoryIsNoneForKernels) {
  threads(2, [](Side &side) {
    ncclWindow_t win;
    void *at = &side;
    NCCL(ncclCommWindowRegister(side.comm, side.gpu.memory(), 4096, &win, 0));
    EXPECT_EQ(ncclGetPeerDevicePointer(win, 0, 1 - side.r, &at), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(nullptr),
                AllOf(HasSubstr("is none for kernels"),
                      HasSubstr("use memory of tuttiMemAlloc instead of cudaMalloc")));
    EXPECT_EQ(at, &side);
    side.meet();
    NCCL(ncclCommWindowDeregister(side.comm, win));
    EXPECT_EQ(ncclCommWindowDeregister(side.comm, win), ncclInvalidArgument);
  });
}

/* Operations of the host on the same memory. All ranks have read a result before a peer's put
 * overwrites it. */
void useByHost(Side &side, Memory &in, Memory &out, size_t count) {
  std::vector<float> mine(count), got(count);
  auto settle = [&] {
    side.await();
    side.meet();
  };
  auto copy = [&](void *to, const void *from) {
    CUDA(cudaMemcpyAsync(to, from, count * 4, cudaMemcpyDefault, side.stream));
    settle();
  };
  for (size_t i = 0; i < count; i++)
    mine[i] = element(side.r, i);
  copy(in.at, mine.data());
  NCCL(ncclAllReduce(in.at, out.at, count, ncclFloat, ncclSum, side.comm, side.stream));
  settle();
  copy(got.data(), out.at);
  for (size_t i = 0; i < count; i++) {
    float sum = 0;
    for (int r = 0; r < side.n; r++)
      sum += element(r, i);
    ASSERT_EQ(got[i], sum) << "element " << i << " of " << count << " on rank " << side.r;
  }
  int peer = (side.r + 1) % side.n, from = (side.r + side.n - 1) % side.n;
  tuttiWaitSignalDesc_t desc = {1, from, 0, 0};
  TUTTI(tuttiPutSignal(in.at, count, tuttiFloat, peer, (tuttiWindow_t)out.win, 0, 0, 0, 0,
                       side.tutti(), side.stream));
  TUTTI(tuttiWaitSignal(1, &desc, side.tutti(), side.stream));
  settle();
  copy(got.data(), out.at);
  for (size_t i = 0; i < count; i++)
    ASSERT_EQ(got[i], element(from, i)) << "element " << i << " of a put of " << count;
}

TEST_P(Lsa, TheHostMovesTheSameMemory) {
  for (int n : {2, 4}) {
    if (HasFatalFailure()) return;
    threads(n, [](Side &side) {
      constexpr size_t most = (size_t)16 << 20;
      Memory in(side, most), out(side, most);
      for (size_t count : {(size_t)1, (size_t)1000, most / 4}) {
        useByHost(side, in, out, count);
        if (testing::Test::HasFatalFailure()) return;
        side.meet();
      }
    });
  }
}

std::string nameOf(const testing::TestParamInfo<Env> &info) {
  return info.param.empty() ? "AllPairs" : "Schedules";
}
INSTANTIATE_TEST_SUITE_P(Beside, Lsa, testing::Values(Env{}, Env{{"TUTTI_ALGO", "ring,tree"}}),
                         nameOf);

/* ---- teams and refusals ------------------------------------------------------------------------
 */

TEST_F(LsaLife, TeamsAndProperties) {
  threads(4, [](Side &side) {
    tuttiCommProperties_t p = TUTTI_COMM_PROPERTIES_INITIALIZER;
    TUTTI(tuttiCommQueryProperties(side.tutti(), &p));
    EXPECT_EQ(p.deviceApiSupport, 1);
    EXPECT_EQ(p.nLsaTeams, 1);
    ncclTeam lsa = ncclTeamLsa(side.comm), rail = ncclTeamRail(side.comm),
             world = ncclTeamWorld(side.comm);
    EXPECT_EQ(lsa.nRanks, 4);
    EXPECT_EQ(lsa.rank, side.r);
    EXPECT_EQ(rail.nRanks, 1);
    EXPECT_EQ(rail.rank, 0);
    EXPECT_EQ(rail.stride, 4);
    for (int r = 0; r < 4; r++) {
      EXPECT_EQ(ncclTeamRankToWorld(side.comm, lsa, r), r);
      EXPECT_EQ(ncclTeamRankToLsa(side.comm, world, r), r);
    }
    ncclDevComm dev = side.create(1);
    EXPECT_EQ(dev.rank, side.r);
    EXPECT_EQ(dev.nRanks, 4);
    EXPECT_EQ(dev.lsaRank, side.r);
    EXPECT_EQ(dev.lsaSize, 4);
#if NCCL_VERSION_CODE < 23100 /* there it is for kernels alone */
    EXPECT_EQ(ncclTeamRail(dev).nRanks, 1);
#endif
    EXPECT_EQ(dev.ginContextCount, 0);
    side.meet();
    NCCL(ncclDevCommDestroy(side.comm, &dev));
    EXPECT_EQ(ncclDevCommDestroy(side.comm, &dev), ncclInvalidArgument);
  });
}

TEST_F(LsaLife, WhatIsNotServedIsRefused) {
  threads(2, [](Side &side) {
    ncclDevComm dev;
    ncclDevResourceRequirements wish = {};
    ncclTeamRequirements team = {};
    auto expect = [&](ncclDevCommRequirements reqs, ncclResult_t code, const char *text) {
      EXPECT_EQ(ncclDevCommCreate(side.comm, &reqs, &dev), code);
      EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr(text));
    };
    ncclDevCommRequirements reqs = requirements();
    reqs.lsaMultimem = true;
    expect(reqs, ncclInvalidUsage, "no multicast");
    reqs = requirements();
    team.multimem = true;
    reqs.teamRequirementsList = &team;
    expect(reqs, ncclInvalidUsage, "no multicast");
    reqs = requirements();
    reqs.ginForceEnable = true;
    expect(reqs, ncclInvalidUsage, "ginForceEnable");
    reqs = requirements();
    reqs.ginSignalCount = 1;
    expect(reqs, ncclInvalidUsage, "GIN signals");
    reqs = requirements();
    wish.ginCounterCount = 1;
    reqs.resourceRequirementsList = &wish;
    expect(reqs, ncclInvalidUsage, "counters");
    reqs = requirements();
    wish = {};
    wish.bufferSize = 8;
    wish.bufferAlign = 3;
    reqs.resourceRequirementsList = &wish;
    wish.bufferAlign = 384;
    expect(reqs, ncclInvalidArgument, "no power of two");
    struct {
      size_t size;
      unsigned magic, version;
      char rest[128];
    } later = {144, 0xcafebeef, 23300, {}};
    EXPECT_EQ(ncclDevCommCreate(side.comm, (ncclDevCommRequirements *)&later, &dev),
              ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("of 2.33 or later"));
    EXPECT_EQ(ncclDevCommCreate(side.comm, nullptr, &dev), ncclInvalidArgument);
    side.meet();
  });
}

TEST_F(LsaLife, WithoutP2pThereIsNoTeam) {
  Settings settings(Env{{"TUTTI_P2P_DISABLE", "1"}});
  threads(2, [](Side &side) {
    ncclDevComm dev;
    ncclDevCommRequirements reqs = requirements();
    EXPECT_EQ(ncclTeamLsa(side.comm).nRanks, 1);
    EXPECT_EQ(ncclTeamRail(side.comm).nRanks, 2);
    EXPECT_EQ(ncclDevCommCreate(side.comm, &reqs, &dev), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(nullptr),
                AllOf(HasSubstr("does not reach the memory of that of rank"),
                      HasSubstr("TUTTI_P2P_DISABLE=1")));
    reqs.railGinBarrierCount = 1;
    EXPECT_EQ(ncclDevCommCreate(side.comm, &reqs, &dev), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("several local teams"));
    side.meet();
  });
}

TEST_F(LsaLife, OtherRequirementsFailOnAll) {
  threads(2, [](Side &side) {
    ncclDevComm dev;
    ncclDevCommRequirements reqs = requirements();
    reqs.lsaBarrierCount = 1 + side.r;
    EXPECT_EQ(ncclDevCommCreate(side.comm, &reqs, &dev), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("ranks disagree on memory for kernels"));
    dev = side.create(2); /* nothing is broken by it */
    ASSERT_FALSE(testing::Test::HasFatalFailure());
    CUDA(barriers(dev, 100, side.stream));
    side.await();
    side.meet();
    NCCL(ncclDevCommDestroy(side.comm, &dev));
  });
}

/* ---- life --------------------------------------------------------------------------------------
 */

size_t freeBytes() {
  size_t left = 0, all = 0;
  EXPECT_EQ(cudaMemGetInfo(&left, &all), cudaSuccess);
  return left;
}

TEST_F(LsaLife, ManyTimesWithoutALeak) {
  size_t before[2] = {0, 0};
  threads(2, [&](Side &side) {
    for (int i = 0; i < 60; i++) {
      if (i == 10) {
        side.meet();
        before[side.r] = freeBytes();
        side.meet();
      }
      Memory window(side, (size_t)4 << 20);
      ncclDevComm dev = side.create(kBlocks);
      ASSERT_FALSE(testing::Test::HasFatalFailure()) << "time " << i;
      CUDA(storeRounds(dev, window.win, 10, (uint32_t)i, side.wrong, side.stream));
      side.expectRight("stores");
      side.meet();
      NCCL(ncclDevCommDestroy(side.comm, &dev));
    }
    side.meet();
    EXPECT_GT(freeBytes() + ((size_t)48 << 20), before[side.r]) << "rank " << side.r;
    side.meet();
  });
}

/* Its device communicator, windows and memory are left to it. */
TEST_F(LsaLife, AbortWithALiveDeviceCommunicator) {
  uint32_t *stop = nullptr;
  CUDA(cudaMallocHost((void **)&stop, 4));
  *stop = 0;
  threads(
      2,
      [&](Side &side) {
        ncclDevComm dev = side.create(1);
        ASSERT_FALSE(testing::Test::HasFatalFailure());
        CUDA(spin(dev, stop, side.stream));
        side.meet();
        std::thread end([&] {
          usleep(300000);
          __atomic_store_n(stop, 1, __ATOMIC_RELEASE);
        });
        EXPECT_EQ(ncclCommAbort(side.comm), ncclSuccess); /* waits for the kernel */
        side.ended = true;
        EXPECT_EQ(cudaStreamQuery(side.stream), cudaSuccess) << "unmapped under a kernel";
        end.join();
      },
      true);
  CUDA(cudaFreeHost(stop));
}

TEST_F(LsaLife, DestroyFreesWhatIsLeft) {
  threads(
      2,
      [](Side &side) {
        Memory window(side, 4096);
        ncclDevComm dev = side.create(kBlocks);
        ASSERT_FALSE(testing::Test::HasFatalFailure());
        CUDA(barriers(dev, 10, side.stream));
        side.await();
        side.meet();
        window.win = nullptr; /* left, as is the device communicator */
        EXPECT_EQ(ncclCommDestroy(side.comm), ncclSuccess) << ncclGetLastError(nullptr);
        side.ended = true;
      },
      true);
}

/* One thread with a communicator for each rank. */
TEST_F(LsaLife, InAGroup) {
  constexpr int n = 2;
  constexpr size_t bytes = (size_t)n * kBlocks * kThreads * 4;
  int devices[n];
  ncclComm_t comms[n];
  void *at[n];
  ncclWindow_t wins[n];
  ncclDevComm devs[n];
  cudaStream_t streams[n];
  Wrong *wrong[n];
  for (int r = 0; r < n; r++)
    devices[r] = r % gpus();
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  NCCL(ncclGroupStart()); /* ncclCommInitAll takes no GPU twice */
  for (int r = 0; r < n; r++) {
    CUDA(cudaSetDevice(devices[r]));
    NCCL(ncclCommInitRank(&comms[r], n, id, r));
  }
  NCCL(ncclGroupEnd());
  for (int r = 0; r < n; r++) {
    CUDA(cudaSetDevice(devices[r]));
    CUDA(cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking));
    CUDA(cudaMallocHost((void **)&wrong[r], sizeof(Wrong)));
    *wrong[r] = {};
    NCCL(ncclMemAlloc(&at[r], bytes));
  }
  ncclDevCommRequirements reqs = requirements();
  reqs.lsaBarrierCount = kBlocks;
  NCCL(ncclGroupStart());
  for (int r = 0; r < n; r++) {
    NCCL(ncclCommWindowRegister(comms[r], at[r], bytes, &wins[r], NCCL_WIN_COLL_SYMMETRIC));
    NCCL(ncclDevCommCreate(comms[r], &reqs, &devs[r]));
  }
  NCCL(ncclGroupEnd());
  for (int r = 0; r < n; r++) {
    CUDA(cudaSetDevice(devices[r]));
    CUDA(storeRounds(devs[r], wins[r], 500, 9, wrong[r], streams[r]));
  }
  for (int r = 0; r < n; r++) {
    ASSERT_EQ(awaitStream(streams[r]), cudaSuccess) << "rank " << r;
    EXPECT_EQ(wrong[r]->count, 0u) << "rank " << r;
  }
  for (int r = 0; r < n; r++) {
    NCCL(ncclDevCommDestroy(comms[r], &devs[r]));
    NCCL(ncclCommWindowDeregister(comms[r], wins[r]));
  }
  for (int r = 0; r < n; r++)
    NCCL(ncclCommDestroy(comms[r]));
  for (int r = 0; r < n; r++) {
    CUDA(cudaSetDevice(devices[r]));
    NCCL(ncclMemFree(at[r]));
    CUDA(cudaFreeHost(wrong[r]));
    CUDA(cudaStreamDestroy(streams[r]));
  }
}

/* ---- memory ------------------------------------------------------------------------------------
 */

/* Of every GPU, for every GPU that reaches it. */
TEST_F(LsaLife, MemoryOfMemAlloc) {
  CUDA(cudaSetDevice(0));
  std::set<void *> all;
  for (size_t bytes : {(size_t)1, (size_t)4096, ((size_t)2 << 20) + 1, (size_t)100 << 20}) {
    void *at = nullptr;
    NCCL(ncclMemAlloc(&at, bytes));
    EXPECT_EQ((uintptr_t)at % 4096, 0u);
    EXPECT_TRUE(all.insert(at).second);
    CUDA(cudaMemset(at, 0x5a, bytes));
    for (int device = 0; device < gpus(); device++) {
      int reaches = device == 0;
      unsigned char last = 0;
      if (device > 0) {
        CUDA(cudaDeviceCanAccessPeer(&reaches, device, 0));
      }
      if (!reaches) continue;
      CUDA(cudaSetDevice(device));
      CUDA(cudaMemcpy(&last, (char *)at + bytes - 1, 1, cudaMemcpyDefault));
      EXPECT_EQ(last, 0x5a) << "GPU " << device;
    }
    CUDA(cudaSetDevice(0));
  }
  for (void *at : all)
    NCCL(ncclMemFree(at));
  void *plain = nullptr; /* what older programs gave to it */
  CUDA(cudaMalloc(&plain, 4096));
  NCCL(ncclMemFree(plain));
}

/* ---- processes ---------------------------------------------------------------------------------
 */

void runProcess(RankProcesses &processes, int r, int n, uint32_t rounds) {
  Gpu gpu(r, 4096);
  ncclUniqueId id;
  ncclComm_t comm = nullptr;
  tuttiUniqueId made = processes.id();
  memcpy(&id, &made, sizeof id);
  ASSERT_EQ(processes.keep((tuttiResult_t)ncclCommInitRank(&comm, n, id, r)), tuttiSuccess);
  Side side(r, n, comm, gpu, [&, stage = 0]() mutable {
    EXPECT_TRUE(processes.meet(n, ++stage)) << "a rank has not come";
  });
  storeFor(side, rounds);
  if (!testing::Test::HasFatalFailure()) {
    constexpr size_t most = (size_t)8 << 20;
    Memory in(side, most), out(side, most);
    useByHost(side, in, out, 1000);
    if (!testing::Test::HasFatalFailure()) useByHost(side, in, out, most / 4);
    side.meet();
  }
  if (testing::Test::HasFatalFailure()) processes.keep(tuttiInternalError, (tuttiComm_t)comm);
  EXPECT_EQ(processes.keep((tuttiResult_t)ncclCommDestroy(comm)), tuttiSuccess);
}

/* On GPUs of their own; where they share one, they take turns, which is slow. */
TEST_F(LsaLife, Processes) {
  int n = 2;
  RankProcesses processes;
  processes.start(n, [&](int r) { runProcess(processes, r, n, gpus() >= n ? 1000 : 20); });
  processes.waitAll(150);
  processes.expectCleanEnds();
}

TEST_F(LsaLife, FourProcesses) {
  int n = 4;
  RankProcesses processes;
  processes.start(n, [&](int r) { runProcess(processes, r, n, gpus() >= n ? 1000 : 10); });
  processes.waitAll(150);
  processes.expectCleanEnds();
}

} // namespace

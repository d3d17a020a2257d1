/* Ranks whose kernels communicate, and memory for them. */
#ifndef TUTTI_TESTS_GPU_LSA_LSA_H_
#define TUTTI_TESTS_GPU_LSA_LSA_H_

#include <functional>

#include "gpu/gpu.h"
#include "kernels.h"

/* Of later versions than the header. */
extern "C" {
ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t, size_t, int, void **);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t, size_t, int, void **);
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t, size_t, void **);
ncclResult_t ncclWinGetUserPtr(ncclComm_t, ncclWindow_t, void **);
}

#define NCCL(call) ASSERT_EQ((call), ncclSuccess) << ncclGetLastError(nullptr)

/* Requirements of nothing. */
inline ncclDevCommRequirements requirements() {
#if NCCL_VERSION_CODE >= 22900
  return NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  return {};
#endif
}

/* Those of barrierCount. */
inline ncclLsaBarrierHandle worldBarrier(const ncclDevComm &dev) {
#if NCCL_VERSION_CODE >= 23000
  return dev.hybridLsaBarrier;
#else
  return dev.lsaBarrier;
#endif
}

/* One rank of a test. */
struct Side {
  Side(int r, int n, ncclComm_t comm, Gpu &gpu, std::function<void()> meeting)
      : r(r), n(n), comm(comm), gpu(gpu), stream(gpu.streams[0]), meeting_(std::move(meeting)) {
    EXPECT_EQ(cudaMallocHost((void **)&wrong, sizeof *wrong), cudaSuccess);
    if (wrong) *wrong = {};
  }
  ~Side() { cudaFreeHost(wrong); }
  Side(const Side &) = delete;

  tuttiComm_t tutti() const { return (tuttiComm_t)comm; }
  /* Waits until all ranks have come here. */
  void meet() { meeting_(); }
  void await() const {
    cudaError_t err = awaitStream(stream);
    ASSERT_EQ(err, cudaSuccess) << "rank " << r << ": " << cudaGetErrorString(err)
                                << (err == cudaErrorNotReady ? ": a kernel does not end" : "");
  }
  void expectRight(const char *what) const {
    await();
    ASSERT_EQ(wrong->count, 0u) << what << " on rank " << r << " of " << n << ": first "
                                << wrong->found << " instead of " << wrong->wanted << " in round "
                                << wrong->round << ", place " << wrong->where;
  }
  /* A device communicator with so many barriers and nothing else. */
  ncclDevComm create(int barriers) const {
    ncclDevComm dev = {};
    ncclDevCommRequirements reqs = requirements();
    reqs.lsaBarrierCount = barriers;
    [&] { NCCL(ncclDevCommCreate(comm, &reqs, &dev)); }();
    return dev;
  }

  int r, n;
  ncclComm_t comm;
  Gpu &gpu;
  cudaStream_t stream;
  Wrong *wrong = nullptr; /* in host memory that the GPU writes */
  bool ended = false;     /* the communicator */

private:
  std::function<void()> meeting_;
};

/* Memory of ncclMemAlloc and a window in it, `offset` bytes behind its beginning. */
class Memory {
public:
  Memory(Side &side, size_t bytes, size_t offset = 0) : side_(side) {
    EXPECT_EQ(ncclMemAlloc(&base_, bytes + offset), ncclSuccess) << ncclGetLastError(nullptr);
    at = (char *)base_ + offset;
    side.meet(); /* where ranks share a GPU, none allocates while another's kernel waits for it */
    EXPECT_EQ(ncclCommWindowRegister(side.comm, at, bytes, &win, NCCL_WIN_COLL_SYMMETRIC),
              ncclSuccess)
        << ncclGetLastError(nullptr);
  }
  ~Memory() {
    if (!testing::Test::HasFatalFailure()) side_.meet(); /* no kernel waits, */
    if (win && !side_.ended) {
      EXPECT_EQ(ncclCommWindowDeregister(side_.comm, win), ncclSuccess);
    }
    EXPECT_EQ(ncclMemFree(base_), ncclSuccess) << ncclGetLastError(nullptr);
    if (!testing::Test::HasFatalFailure()) side_.meet(); /* nor will, before all is free */
  }
  Memory(const Memory &) = delete;

  void *at = nullptr;
  ncclWindow_t win = nullptr;

private:
  Side &side_;
  void *base_ = nullptr;
};

/* Where n threads meet again and again; a rank that has failed lets all through. */
class Meeting {
public:
  explicit Meeting(int n) : n_(n) {}
  void come() {
    uint32_t number = __atomic_add_fetch(&come_, 1, __ATOMIC_ACQ_REL);
    uint32_t wanted = (number + n_ - 1) / n_ * n_;
    for (double end = seconds() + 60; __atomic_load_n(&come_, __ATOMIC_ACQUIRE) < wanted;) {
      if (__atomic_load_n(&left_, __ATOMIC_ACQUIRE) > 0) return;
      ASSERT_LT(seconds(), end) << "a rank has not come";
      usleep(50);
    }
  }
  void leave() { __atomic_add_fetch(&left_, 1, __ATOMIC_ACQ_REL); }

private:
  uint32_t n_, come_ = 0, left_ = 0;
};

/* n ranks as threads. `ends`: the bodies end their communicators themselves. */
inline void threads(int n, const std::function<void(Side &)> &body, bool ends = false) {
  GpuRanks ranks(n, (size_t)1 << 20);
  Meeting meeting(n);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    Side side(r, n, (ncclComm_t)comm, gpu, [&] { meeting.come(); });
    side.meet();
    body(side);
    if (testing::Test::HasFatalFailure()) meeting.leave();
    if (ends && side.ended) ranks.comms[(size_t)r][0] = nullptr;
  });
}

#endif

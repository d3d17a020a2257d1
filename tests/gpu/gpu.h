/* Ranks with a GPU each, as threads; ranks share a GPU where there are fewer.
 *
 * All memory of a rank is taken before its communicator works and given back after: cudaMalloc and
 * cudaFree may wait for the kernels of another rank on the same GPU, which wait for this one. */
#ifndef TUTTI_TESTS_GPU_GPU_H_
#define TUTTI_TESTS_GPU_GPU_H_

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <memory>

#include "comm/harness.h"

inline int gpus() {
  int n = 0;
  return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

class GpuTest : public testing::Test {
protected:
  void SetUp() override {
    int n = 0;
    cudaError_t err = cudaGetDeviceCount(&n);
    if (err != cudaSuccess || n == 0)
      GTEST_SKIP() << "no GPU: " << (err ? cudaGetErrorString(err) : "the driver shows none");
  }
};

#define CUDA(call)  ASSERT_EQ((call), cudaSuccess) << cudaGetErrorString(cudaGetLastError())
#define TUTTI(call) ASSERT_EQ((call), tuttiSuccess) << tuttiGetLastError(nullptr)

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/* What the stream ends with; cudaErrorNotReady: it has not. */
inline cudaError_t awaitStream(cudaStream_t stream, double most = 40) {
  double end = seconds() + most;
  cudaError_t err;
  while ((err = cudaStreamQuery(stream)) == cudaErrorNotReady && seconds() < end)
    usleep(20);
  return err;
}

/* A failure ends kernels, whose streams then end well with whatever has been moved: that the stream
 * has ended tells nothing of the data before the communicator has been asked, too. */
inline testing::AssertionResult endsWell(cudaStream_t stream, tuttiComm_t comm) {
  cudaError_t err = awaitStream(stream);
  tuttiResult_t state = tuttiSuccess;
  tuttiCommGetAsyncError(comm, &state);
  if (err == cudaSuccess && state == tuttiSuccess) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << cudaGetErrorString(err) << "; " << tuttiGetErrorString(state) << ": "
         << tuttiGetLastError(comm);
}

/* The state of a communicator once it has failed; tuttiSuccess if it has not after `most` s. */
inline tuttiResult_t awaitFailure(tuttiComm_t comm, double most) {
  double end = seconds() + most;
  tuttiResult_t state = tuttiSuccess;
  while (tuttiCommGetAsyncError(comm, &state) == tuttiSuccess && state == tuttiSuccess &&
         seconds() < end)
    usleep(1000);
  return state;
}

/* One rank's GPU, streams and memory. */
class Gpu {
public:
  static constexpr int kStreams = 3;

  /* ours: the memory is tuttiMemAlloc's. */
  Gpu(int rank, size_t bytes, bool ours = false)
      : device_(rank % gpus()), bytes_(bytes), ours_(ours) {
    use();
    if (ours) {
      EXPECT_EQ(tuttiMemAlloc(&memory_, bytes), tuttiSuccess) << tuttiGetLastError(nullptr);
    } else {
      EXPECT_EQ(cudaMalloc(&memory_, bytes), cudaSuccess);
    }
    for (auto &s : streams)
      EXPECT_EQ(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
  }
  ~Gpu() {
    use();
    for (auto s : streams)
      cudaStreamDestroy(s);
    if (ours_) {
      EXPECT_EQ(tuttiMemFree(memory_), tuttiSuccess) << tuttiGetLastError(nullptr);
    } else {
      cudaFree(memory_);
    }
  }
  Gpu(const Gpu &) = delete;

  void use() const { EXPECT_EQ(cudaSetDevice(device_), cudaSuccess); }
  /* Memory until the next reset(), at a multiple of 256 bytes. */
  void *take(size_t bytes) {
    size_t at = (used_ + 255) / 256 * 256;
    if (at + bytes > bytes_) {
      ADD_FAILURE() << "the test takes more than " << bytes_ << " bytes";
      return memory_;
    }
    used_ = at + bytes;
    return (char *)memory_ + at;
  }
  void reset() { used_ = 0; }
  void *memory() const { return memory_; }
  size_t bytes() const { return bytes_; }
  /* In order of stream 0, to the end. */
  void write(void *to, const void *from, size_t bytes) const { copy(to, from, bytes); }
  void read(void *to, const void *from, size_t bytes) const { copy(to, from, bytes); }
  template <class T> T *put(const std::vector<T> &v) {
    T *p = (T *)take(v.size() * sizeof(T));
    write(p, v.data(), v.size() * sizeof(T));
    return p;
  }
  template <class T> std::vector<T> get(const T *p, size_t n) const {
    std::vector<T> v(n);
    read(v.data(), p, n * sizeof(T));
    return v;
  }

  cudaStream_t streams[kStreams] = {};

private:
  void copy(void *to, const void *from, size_t bytes) const {
    cudaStream_t stream = streams[0];
    if (bytes == 0) return;
    ASSERT_EQ(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), cudaSuccess);
    ASSERT_EQ(awaitStream(stream), cudaSuccess);
  }

  int device_;
  size_t bytes_, used_ = 0;
  bool ours_;
  void *memory_ = nullptr;
};

/* Where n threads wait for each other, once. */
class Barrier {
public:
  explicit Barrier(int n) : missing_(n) {}
  void arrive() {
    __atomic_sub_fetch(&missing_, 1, __ATOMIC_ACQ_REL);
    for (double end = seconds() + 60; __atomic_load_n(&missing_, __ATOMIC_ACQUIRE) > 0;) {
      ASSERT_LT(seconds(), end) << "a rank has not come";
      usleep(50);
    }
  }
  /* Arrives at the end of its scope, however that is left. */
  class Arrival {
  public:
    explicit Arrival(Barrier &b) : b_(b) {}
    ~Arrival() { b_.arrive(); }
    Arrival(const Arrival &) = delete;

  private:
    Barrier &b_;
  };

private:
  int missing_;
};

/* n ranks as threads, and as many communicators for them as asked for. */
class GpuRanks {
public:
  explicit GpuRanks(int n, size_t bytes = (size_t)16 << 20, int ncomms = 1,
                    tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER, bool ours = false)
      : comms((size_t)n), gpus_((size_t)n) {
    config.device = tuttiDeviceCuda;
    onThreads(n, [&](int r) { gpus_[(size_t)r] = std::make_unique<Gpu>(r, bytes, ours); });
    for (int c = 0; c < ncomms; c++) {
      tuttiUniqueId id;
      EXPECT_EQ(tuttiGetUniqueId(&id), tuttiSuccess) << tuttiGetLastError(nullptr);
      onThreads(n, [&](int r) {
        tuttiConfig_t mine = config;
        tuttiComm_t comm = nullptr;
        gpus_[(size_t)r]->use();
        EXPECT_EQ(tuttiCommInitRankConfig(&comm, n, id, r, &mine),
                  mine.blocking == 0 ? tuttiInProgress : tuttiSuccess)
            << tuttiGetLastError(nullptr);
        comms[(size_t)r].push_back(comm);
      });
    }
  }
  /* Communicators that a test has ended are NULL. */
  ~GpuRanks() {
    onThreads((int)comms.size(), [&](int r) {
      gpus_[(size_t)r]->use();
      for (auto s : gpus_[(size_t)r]->streams)
        EXPECT_EQ(awaitStream(s), cudaSuccess) << "rank " << r;
    });
    onThreads((int)comms.size(), [&](int r) {
      for (auto c : comms[(size_t)r])
        if (c && !testing::Test::HasFatalFailure()) {
          EXPECT_EQ(tuttiCommDestroy(c), tuttiSuccess) << tuttiGetLastError(nullptr);
        } else if (c) {
          tuttiCommAbort(c);
        }
    });
  }
  bool ok() const {
    for (auto &all : comms)
      for (auto c : all)
        if (!c) return false;
    return true;
  }
  void run(const std::function<void(int, tuttiComm_t, Gpu &)> &body) {
    onThreads((int)comms.size(), [&](int r) {
      gpus_[(size_t)r]->use();
      gpus_[(size_t)r]->reset();
      body(r, comms[(size_t)r][0], *gpus_[(size_t)r]);
    });
  }

  std::vector<std::vector<tuttiComm_t>> comms; /* [rank][which] */

private:
  std::vector<std::unique_ptr<Gpu>> gpus_;
};

#endif

// Two ranks that sum for as long as a test wants, under which it changes what they sum over.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "control.h"
#include "end.h"
#include "tutti.h"

constexpr size_t kCount = 1 << 17;

inline std::atomic<uint64_t> operations{0}, wrong{0}, failed{0};
inline std::atomic<bool> stop{false};

// Sums until the first rank says that it is enough, in the last element.
inline void runRank(int rank, tuttiUniqueId id) {
  tuttiComm_t comm = nullptr;
  if (tuttiCommInitRank(&comm, 2, id, rank) != tuttiSuccess) {
    failed++;
    return;
  }
  std::vector<float> in(kCount), out(kCount);
  for (uint64_t n = 0; out[kCount - 1] == 0; n++) {
    for (size_t i = 0; i + 1 < kCount; i++)
      in[i] = static_cast<float>((n * 7 + i * 3 + static_cast<size_t>(rank)) % 1024);
    in[kCount - 1] = rank == 0 && stop ? 1 : 0;
    if (tuttiAllReduce(in.data(), out.data(), kCount, tuttiFloat32, tuttiSum, comm, nullptr) !=
        tuttiSuccess) {
      fprintf(stderr, "rank %d: %s\n", rank, tuttiGetLastError(comm));
      failed++;
      tuttiCommAbort(comm);
      return;
    }
    for (size_t i = 0; i + 1 < kCount; i++)
      wrong += out[i] != static_cast<float>((n * 7 + i * 3) % 1024 + (n * 7 + i * 3 + 1) % 1024);
    if (rank == 0) operations++;
  }
  if (tuttiCommDestroy(comm) != tuttiSuccess) failed++;
}

// What a sum with the other rank ends with; "": right.
inline std::string sumOnce(int rank, tuttiUniqueId id) {
  tuttiComm_t comm = nullptr;
  if (tuttiCommInitRank(&comm, 2, id, rank) != tuttiSuccess) return tuttiGetLastError(nullptr);
  float in = 3, out = 0;
  if (tuttiAllReduce(&in, &out, 1, tuttiFloat32, tuttiSum, comm, nullptr) != tuttiSuccess) {
    std::string error = tuttiGetLastError(comm);
    tuttiCommAbort(comm);
    return error;
  }
  tuttiResult_t result = tuttiCommDestroy(comm);
  return result == tuttiSuccess && out == 6 ? "" : "wrong";
}

// Until `what`, for a minute at most, which should never pass.
template <typename What> bool await(What what) {
  auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!what() && !failed && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  return what();
}

// Two ranks that sum until the end, and what they found.
class Summing {
public:
  explicit Summing(const char *debug = "NONE") {
    for (auto [name, value] : {std::pair{"TUTTI_NET", "IB"},
                               {"TUTTI_P2P_DISABLE", "1"},
                               {"TUTTI_SHM_DISABLE", "1"},
                               {"TUTTI_IB_TIMEOUT", "10"},
                               {"TUTTI_DEBUG", debug}})
      setenv(name, value, 1);
    tuttiUniqueId id;
    EXPECT_EQ(tuttiGetUniqueId(&id), tuttiSuccess) << tuttiGetLastError(nullptr);
    for (int r = 0; r < 2; r++)
      ranks_.emplace_back(runRank, r, id);
  }
  ~Summing() {
    stop = true;
    for (auto &t : ranks_)
      t.join();
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(failed, 0u);
  }
  Summing(const Summing &) = delete;
  Summing &operator=(const Summing &) = delete;

private:
  std::vector<std::thread> ranks_;
};

// So many operations end.
inline bool goOn(uint64_t more) {
  uint64_t now = operations;
  return await([&] { return operations >= now + more; });
}

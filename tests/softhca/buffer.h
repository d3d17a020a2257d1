// Memory of a GPU, by the stand-in for libcuda, as the software HCA's checks use it.
#pragma once

#include "end.h"
#include "fakecuda.h"

inline constexpr int ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                           IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

// A buffer on the GPU, registered by dma-buf.
struct Buffer {
  cuPointer at = 0;
  size_t size;
  ibv_mr *mr = nullptr;

  Buffer(ibv_pd *pd, size_t bytes) : size(bytes) {
    int fd = -1;
    EXPECT_EQ(cuInit(0), CU_OK);
    EXPECT_EQ(cuMemAlloc_v2(&at, bytes), CU_OK);
    EXPECT_EQ(cuMemGetHandleForAddressRange(&fd, at, bytes, CU_RANGE_DMABUF, 0), CU_OK);
    mr = ibv_reg_dmabuf_mr(pd, 0, bytes, at, fd, ALL);
    close(fd);
    EXPECT_NE(mr, nullptr);
  }
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;
  ~Buffer() {
    if (mr) {
      EXPECT_EQ(ibv_dereg_mr(mr), 0);
    }
    EXPECT_EQ(cuMemFree_v2(at), CU_OK);
  }

  void fill(const std::vector<char> &bytes) const {
    EXPECT_EQ(cuMemcpyHtoD_v2(at, bytes.data(), bytes.size()), CU_OK);
  }
  void fill(char value) const { fill(std::vector<char>(size, value)); }
  std::vector<char> read(size_t bytes) const {
    std::vector<char> out(bytes);
    EXPECT_EQ(cuMemcpyDtoH_v2(out.data(), at, bytes), CU_OK);
    return out;
  }
  ibv_sge part(size_t bytes) const { return {at, (uint32_t)bytes, mr->lkey}; }
};

inline std::vector<char> pattern(size_t bytes, unsigned seed) {
  std::vector<char> out(bytes);
  for (char &c : out)
    c = (char)(seed = seed * 1103515245 + 12345, seed >> 16);
  return out;
}

// Two ends with a buffer on the GPU each.
struct GpuPair : Pair {
  Buffer from, to;
  explicit GpuPair(size_t bytes, uint8_t rnrRetry = 2, uint8_t retries = 2)
      : Pair(rnrRetry, retries), from(a.pd, bytes), to(b.pd, bytes) {}
};

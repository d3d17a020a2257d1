/* Messages of one rank to every other and from it, in a group, checked to the last byte. */
#ifndef TUTTI_TESTS_GPU_EXCHANGE_H_
#define TUTTI_TESTS_GPU_EXCHANGE_H_

#include "gpu/gpu.h"

class Exchange {
public:
  /* Takes memory of the GPU for messages of up to so many bytes. */
  Exchange(Gpu &g, int rank, int nranks, size_t most) : gpu(g), r(rank), n(nranks) {
    for (int p = 0; p < n; p++) {
      out.push_back((uint8_t *)gpu.take(most));
      in.push_back((uint8_t *)gpu.take(most));
    }
  }
  void fill(size_t bytes, int round) const {
    for (int p = 0; p < n; p++) {
      std::vector<uint8_t> v = pattern(bytes, r, p, round), none(bytes, 0xee);
      gpu.write(out[(size_t)p], v.data(), bytes);
      gpu.write(in[(size_t)p], none.data(), bytes);
    }
  }
  void call(tuttiComm_t comm, size_t bytes) const {
    TUTTI(tuttiGroupStart());
    for (int p = 0; p < n; p++) {
      if (p == r) continue;
      TUTTI(tuttiSend(out[(size_t)p], bytes, tuttiUint8, p, comm, gpu.streams[0]));
      TUTTI(tuttiRecv(in[(size_t)p], bytes, tuttiUint8, p, comm, gpu.streams[0]));
    }
    TUTTI(tuttiGroupEnd());
  }
  void expectRight(size_t bytes, int round) const {
    ASSERT_EQ(awaitStream(gpu.streams[0]), cudaSuccess);
    for (int p = 0; p < n; p++) {
      if (p == r) continue;
      EXPECT_TRUE(gpu.get(in[(size_t)p], bytes) == pattern(bytes, p, r, round))
          << bytes << " bytes from " << p << " to " << r << ", round " << round;
    }
  }
  /* So many rounds, each called anew. */
  void rounds(tuttiComm_t comm, size_t bytes, int times) const {
    for (int round = 0; round < times; round++) {
      fill(bytes, round);
      call(comm, bytes);
      expectRight(bytes, round);
    }
  }
  /* The same by a graph. */
  void replay(tuttiComm_t comm, size_t bytes, int times) const {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(gpu.streams[0], cudaStreamCaptureModeThreadLocal));
    call(comm, bytes);
    CUDA(cudaStreamEndCapture(gpu.streams[0], &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int round = 10; round < 10 + times; round++) {
      fill(bytes, round);
      CUDA(cudaGraphLaunch(exec, gpu.streams[0]));
      expectRight(bytes, round);
    }
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
  }

private:
  static std::vector<uint8_t> pattern(size_t bytes, int from, int to, int round) {
    std::vector<uint8_t> v(bytes);
    for (size_t i = 0; i < bytes; i++)
      v[i] = (uint8_t)(i * 7 + (i >> 8) * 31 + (size_t)(from * 59 + to * 17 + round * 3));
    return v;
  }

  Gpu &gpu;
  int r, n;
  std::vector<uint8_t *> out, in;
};

#endif

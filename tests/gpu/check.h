/* One collective on one rank, checked to the last byte. */
#ifndef TUTTI_TESTS_GPU_CHECK_H_
#define TUTTI_TESTS_GPU_CHECK_H_

#include "collective_call.h"
#include "gpu/gpu.h"
#include "gpu/operands.h"

struct Case {
  int coll, type, op, root;
  bool inPlace;
  size_t count;
  size_t offset; /* elements by which buffers miss an address that is a multiple of 64 */
};

class Check {
public:
  /* roundings: that a reduction may have of one result, by its algorithm. */
  Check(const Case &k, int rank, int n, tuttiComm_t comm, Gpu &gpu, cudaStream_t stream,
        int roundings = 1)
      : k(k), r(rank), n(n), roundings(roundings), comm(comm), gpu(gpu), stream(stream),
        size(tuttiTypeSize(k.type)), whole{k.coll, n, k.root, k.count},
        in(oracle::sends(whole, rank)), out(oracle::receives(whole, rank)) {
    gpu.reset();
    aliases = k.inPlace && in && out && k.coll != tuttiCollAlltoAll;
    oracle::Layout layout = oracle::layoutOf(whole, rank, true);
    sent = place((aliases ? layout.all : in) * size);
    received = aliases ? sent : place(out * size);
    send = data(sent) + (aliases ? layout.send * size : 0);
    recv = data(received) + (aliases ? layout.recv * size : 0);
    fill(in);
  }

  /* To its end. */
  void run() {
    tuttiRedOp_t op = (tuttiRedOp_t)k.op;
    if (oracle::reduces(k.coll) && k.op >= tuttiNumOps) makeOp(&op);
    tuttiResult_t result = call(op);
    ASSERT_EQ(result, tuttiSuccess) << text() << tuttiGetLastError(comm);
    await();
    if (testing::Test::HasFatalFailure()) return;
    if (op >= tuttiNumOps) {
      TUTTI(tuttiRedOpDestroy(op, comm));
    }
    verify();
  }

  /* As a graph that is launched so many times. */
  void replay(int times) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    tuttiResult_t result = call((tuttiRedOp_t)k.op);
    CUDA(cudaStreamEndCapture(stream, &graph));
    ASSERT_EQ(result, tuttiSuccess) << text() << tuttiGetLastError(comm);
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < times && !testing::Test::HasFatalFailure(); i++) {
      if (i > 0) restore();
      CUDA(cudaGraphLaunch(exec, stream));
      await();
      if (!testing::Test::HasFatalFailure()) verify();
    }
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
  }

private:
  static constexpr size_t kGuard = 128;
  static constexpr uint8_t kPoison = 0xa5;

  struct Region {
    uint8_t *at;
    std::vector<uint8_t> before; /* as it was written */
  };

  std::string text() const {
    static const char *const extra[] = {"premulsum of the host", "premulsum of the device"};
    return std::string(tuttiCollName(k.coll)) + " rank " + std::to_string(r) + " of " +
           std::to_string(n) + " " + tuttiTypeName(k.type) + " " +
           (k.op < tuttiNumOps ? tuttiRedOpName(k.op) : extra[k.op - tuttiNumOps]) + " count " +
           std::to_string(k.count) + " offset " + std::to_string(k.offset) + " root " +
           std::to_string(k.root) + (k.inPlace ? " in place: " : ": ");
  }

  size_t front() const { return kGuard + k.offset * size; }
  uint8_t *data(const Region &region) const { return region.at + front(); }
  Region place(size_t bytes) {
    size_t whole = front() + bytes + kGuard;
    return {(uint8_t *)gpu.take(whole), std::vector<uint8_t>(whole, kPoison)};
  }
  void fill(size_t count) {
    for (size_t i = 0; i < count; i++)
      storeElement(k.type, inputElement(k.type, k.op, r, i),
                   &sent.before[(size_t)(send - sent.at) + i * size]);
    if (aliases) received.before = sent.before;
    restore();
  }
  void restore() {
    gpu.write(sent.at, sent.before.data(), sent.before.size());
    if (!aliases) gpu.write(received.at, received.before.data(), received.before.size());
  }
  void await() const { ASSERT_TRUE(endsWell(stream, comm)) << text(); }
  void makeOp(tuttiRedOp_t *op) {
    uint64_t scalar = 0;
    storeElement(k.type, scalarOf(r), &scalar);
    void *at = &scalar;
    if (k.op == kPreMulDevice) {
      at = gpu.take(sizeof scalar);
      gpu.write(at, &scalar, sizeof scalar);
    }
    TUTTI(tuttiRedOpCreatePreMulSum(
        op, at, (tuttiDataType_t)k.type,
        k.op == kPreMulDevice ? tuttiScalarDevice : tuttiScalarHostImmediate, comm));
  }

  tuttiResult_t call(tuttiRedOp_t op) const {
    return callCollective(whole, in ? send : nullptr, out ? recv : nullptr, (tuttiDataType_t)k.type,
                          op, comm, stream);
  }

  void verifyElement(size_t i, const uint8_t *got) const {
    oracle::Source from = oracle::sourceOf(whole, r, i);
    if (from.reduced) {
      Element is = loadElement(k.type, got);
      Reduced want = reducedElement(k.type, k.op, n, from.index, [this](int q, size_t at) {
        return operandOf(k.type, k.op, q, at);
      });
      ASSERT_TRUE(nearEnough(k.type, k.op >= tuttiNumOps, is, want, roundings))
          << text() << "element " << i << " is " << is.f << " / " << is.i << " and should be "
          << want.value.f << " / " << want.value.i;
      return;
    }
    uint64_t want = 0;
    storeElement(k.type, inputElement(k.type, k.op, from.rank, from.index), &want);
    ASSERT_EQ(memcmp(got, &want, size), 0) << text() << "element " << i;
  }

  /* The output is right, and nothing else has changed. */
  void verify() {
    size_t bytes = out * size, at = (size_t)(recv - received.at);
    std::vector<uint8_t> now(received.before.size());
    gpu.read(now.data(), received.at, now.size());
    for (size_t i = 0; i < out; i++) {
      verifyElement(i, &now[at + i * size]);
      if (testing::Test::HasFatalFailure()) return;
    }
    memcpy(&now[at], &received.before[at], bytes);
    ASSERT_TRUE(now == received.before) << text() << "wrote beside its output";
    if (aliases) return;
    now.resize(sent.before.size());
    gpu.read(now.data(), sent.at, now.size());
    ASSERT_TRUE(now == sent.before) << text() << "wrote to its input";
  }

  Case k;
  int r, n, roundings;
  tuttiComm_t comm;
  Gpu &gpu;
  cudaStream_t stream;
  size_t size;
  oracle::Call whole;
  size_t in, out; /* elements */
  bool aliases;   /* the buffers share memory */
  Region sent, received;
  uint8_t *send, *recv;
};

inline void check(const Case &k, int rank, int n, tuttiComm_t comm, Gpu &gpu, int roundings = 1) {
  Check(k, rank, n, comm, gpu, gpu.streams[0], roundings).run();
}

#endif

/* One collective on one rank, checked to the last byte. */
#ifndef TUTTI_TESTS_GPU_CHECK_H_
#define TUTTI_TESTS_GPU_CHECK_H_

#include "gpu/element.h"
#include "gpu/gpu.h"

struct Case {
  int coll, type, op, root;
  bool inPlace;
  size_t count;
  size_t offset; /* elements by which buffers miss an address that is a multiple of 64 */
};

inline bool reduces(int coll) {
  return coll == tuttiCollAllReduce || coll == tuttiCollReduce || coll == tuttiCollReduceScatter;
}

/* Blocks of `count` elements, and where they coincide in place. */
struct Layout {
  size_t in, out, inAt, outAt;
};

inline Layout layoutOf(const Case &k, int r, int n) {
  size_t blocks = (size_t)n, me = (size_t)r;
  bool root = r == k.root;
  switch (k.coll) {
  case tuttiCollAllReduce:
    return {1, 1, 0, 0};
  case tuttiCollBroadcast:
    return {(size_t)root, 1, 0, 0};
  case tuttiCollReduce:
    return {1, (size_t)root, 0, 0};
  case tuttiCollAllGather:
    return {1, blocks, 0, me};
  case tuttiCollReduceScatter:
    return {blocks, 1, me, 0};
  case tuttiCollAlltoAll:
    return {blocks, blocks, 0, 0};
  case tuttiCollGather:
    return {1, root ? blocks : 0, 0, me};
  default: /* Scatter */
    return {root ? blocks : 0, 1, me, 0};
  }
}

class Check {
public:
  Check(const Case &k, int rank, int n, tuttiComm_t comm, Gpu &gpu, cudaStream_t stream)
      : k(k), r(rank), n(n), comm(comm), gpu(gpu), stream(stream), size(tuttiTypeSize(k.type)),
        layout(layoutOf(k, rank, n)) {
    gpu.reset();
    aliases = k.inPlace && layout.in && layout.out && k.coll != tuttiCollAlltoAll;
    size_t in = layout.in * k.count * size, out = layout.out * k.count * size;
    size_t shared = aliases && in > out ? in : out;
    sent = place(aliases ? shared : in);
    received = aliases ? sent : place(out);
    size_t block = k.count * size;
    send = data(sent) + (aliases && in <= out ? layout.outAt * block : 0);
    recv = data(received) + (aliases && in > out ? layout.inAt * block : 0);
    fill(layout.in * k.count);
  }

  /* To its end. */
  void run() {
    tuttiRedOp_t op = (tuttiRedOp_t)k.op;
    if (reduces(k.coll) && k.op >= tuttiNumOps) makeOp(&op);
    tuttiResult_t result = call(op);
    ASSERT_EQ(result, tuttiSuccess) << text() << tuttiGetLastError(comm);
    cudaError_t err = awaitStream(stream);
    ASSERT_EQ(err, cudaSuccess) << text() << cudaGetErrorString(err) << " "
                                << tuttiGetLastError(comm);
    tuttiResult_t state = tuttiSuccess;
    tuttiCommGetAsyncError(comm, &state);
    ASSERT_EQ(state, tuttiSuccess) << text() << tuttiGetLastError(comm);
    if (op >= tuttiNumOps) {
      TUTTI(tuttiRedOpDestroy(op, comm));
    }
    verify();
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
    gpu.write(sent.at, sent.before.data(), sent.before.size());
    if (aliases) received.before = sent.before;
    if (!aliases) gpu.write(received.at, received.before.data(), received.before.size());
  }
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
    tuttiDataType_t type = (tuttiDataType_t)k.type;
    const void *in = layout.in ? send : nullptr;
    void *out = layout.out ? recv : nullptr;
    switch (k.coll) {
    case tuttiCollAllReduce:
      return tuttiAllReduce(in, out, k.count, type, op, comm, stream);
    case tuttiCollBroadcast:
      return tuttiBroadcast(in, out, k.count, type, k.root, comm, stream);
    case tuttiCollReduce:
      return tuttiReduce(in, out, k.count, type, op, k.root, comm, stream);
    case tuttiCollAllGather:
      return tuttiAllGather(in, out, k.count, type, comm, stream);
    case tuttiCollReduceScatter:
      return tuttiReduceScatter(in, out, k.count, type, op, comm, stream);
    case tuttiCollAlltoAll:
      return tuttiAlltoAll(in, out, k.count, type, comm, stream);
    case tuttiCollGather:
      return tuttiGather(in, out, k.count, type, k.root, comm, stream);
    default:
      return tuttiScatter(in, out, k.count, type, k.root, comm, stream);
    }
  }

  void wantCopy(size_t i, size_t *from, size_t *at) const {
    size_t me = (size_t)r;
    bool blocks = layout.out > 1;
    *from = blocks && k.count ? i / k.count : (size_t)k.root;
    *at = blocks && k.count ? i % k.count : i;
    if (k.coll == tuttiCollAlltoAll || k.coll == tuttiCollScatter) *at += me * k.count;
  }

  void verifyElement(size_t i, const uint8_t *got) const {
    if (reduces(k.coll)) {
      size_t at = k.coll == tuttiCollReduceScatter ? (size_t)r * k.count + i : i;
      Element is = loadElement(k.type, got);
      Reduced want = reducedElement(k.type, k.op, n, at);
      ASSERT_TRUE(nearEnough(k.type, k.op, is, want))
          << text() << "element " << i << " is " << is.f << " / " << is.i << " and should be "
          << want.value.f << " / " << want.value.i;
      return;
    }
    size_t from, at;
    uint64_t want = 0;
    wantCopy(i, &from, &at);
    storeElement(k.type, inputElement(k.type, k.op, (int)from, at), &want);
    ASSERT_EQ(memcmp(got, &want, size), 0) << text() << "element " << i;
  }

  /* The output is right, and nothing else has changed. */
  void verify() {
    size_t bytes = layout.out * k.count * size, at = (size_t)(recv - received.at);
    std::vector<uint8_t> now(received.before.size());
    gpu.read(now.data(), received.at, now.size());
    for (size_t i = 0; i < layout.out * k.count; i++) {
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
  int r, n;
  tuttiComm_t comm;
  Gpu &gpu;
  cudaStream_t stream;
  size_t size;
  Layout layout;
  bool aliases; /* the buffers share memory */
  Region sent, received;
  uint8_t *send, *recv;
};

inline void check(const Case &k, int rank, int n, tuttiComm_t comm, Gpu &gpu) {
  Check(k, rank, n, comm, gpu, gpu.streams[0]).run();
}

#endif

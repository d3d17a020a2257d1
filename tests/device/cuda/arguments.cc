/* What kernels between all pairs are told, for every collective, number of ranks and rank. No GPU
 * is needed, but CUDA's headers. */
#ifdef TUTTI_HAVE_CUDA
#include "device/cuda/arguments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "transport/symmetric.h"

namespace {

constexpr uint64_t kCounts[] = {1, 2, 63, 4097, 300001};

/* Addresses that nobody looks at. */
uint8_t *address(uint64_t at) {
  return reinterpret_cast<uint8_t *>(at);
}
uint8_t *blockOf(int rank) {
  return address((uint64_t)(rank + 1) << 40);
}
uint8_t *const kSend = address(0x1000000000), *const kRecv = address(0x2000000000);

/* A rank of a communicator, as far as arguments depend on it. */
struct CudaArguments : testing::Test {
  tuttiCuda s{};
  tuttiCommView wires{};
  tuttiSymmetric symmetric{};
  tuttiKernelStatus status{};
  tuttiPlanInput input{};
  tuttiTaskContext host{};
  tuttiAllPairs exchange{};
  std::vector<void *> theirs;

  void be(int rank, int n, bool staged) {
    s = {};
    wires = {};
    theirs.clear();
    for (int p = 0; p < n; p++)
      theirs.push_back(p == rank ? nullptr : blockOf(p));
    symmetric.mine = blockOf(rank);
    symmetric.theirs = theirs.data();
    symmetric.counts = address(0x3000000000);
    wires.rank = rank;
    wires.nranks = n;
    wires.stagedBytes = staged;
    wires.symmetric = &symmetric;
    input.nranks = n;
    input.nhosts = input.minChannels = input.maxChannels = 1;
    input.algoMask = input.protoMask = ~0u;
    input.gpu = input.allPairs = 1;
    input.staged = staged;
    input.slotBytes = 512 << 10;
    host.plan = &input;
    s.context = &host;
    s.statusOnDevice = &status;
    tuttiCudaArgsInit(&s, &wires);
  }

  tuttiTask task(int coll, uint64_t count, tuttiDataType_t type, int root, bool sending = false) {
    tuttiTask t = {};
    t.schedule.coll = coll;
    t.schedule.rank = wires.rank;
    t.schedule.nranks = wires.nranks;
    t.schedule.root = root;
    t.schedule.count = count;
    t.schedule.sending = sending;
    t.signature.coll = (uint8_t)coll;
    t.signature.type = (uint8_t)type;
    t.signature.count = count;
    t.signature.root = tuttiCollHasRoot(coll) ? root : -1;
    t.signature.redop = tuttiCollReduces(coll) ? (uint16_t)tuttiMax : 0xffff;
    t.type = type;
    t.op = tuttiMax;
    t.sendbuff = kSend;
    t.recvbuff = kRecv;
    t.context = &host;
    tuttiPlanChoose(&input, &t.signature, &t.plan);
    t.schedule.twoShot = t.plan.twoShot;
    if (tuttiPlanExchanges(&t.plan, coll)) {
      tuttiPlanExchange(&t.schedule, type, &exchange);
      t.exchange = &exchange;
    }
    return t;
  }

  const tuttiRegionsFront &front() const {
    return s.regions.isFew ? s.regions.few.front : s.regions.many.front;
  }
  const tuttiRegionsLink &regionsLink(int i) const {
    return (s.regions.isFew ? s.regions.few.link : s.regions.many.link)[i];
  }
  const tuttiRegionsBack &back() const {
    return s.regions.isFew ? s.regions.few.back : s.regions.many.back;
  }

  uint64_t longest(uint64_t size) const {
    uint64_t most = exchange.own ? exchange.count : 0;
    for (const tuttiAllPairsPeer &p : exchange.peer)
      most = std::max({most, p.outCount, p.inCount, p.lateCount});
    return most * size;
  }

  void expectRegions(const tuttiTask &t) {
    uint64_t size = tuttiTypeSize(t.type);
    const tuttiRegionsFront &f = front();
    uint64_t line = input.staged ? TUTTI_STAGED_LINE_PAYLOAD : TUTTI_ALLPAIRS_LINE_PAYLOAD;
    EXPECT_EQ(f.lines, (longest(size) + line - 1) / line);
    EXPECT_EQ(f.send, kSend);
    EXPECT_EQ(f.recv, kRecv);
    EXPECT_EQ(f.bytes, exchange.count * size);
    EXPECT_EQ(f.ownAt, exchange.ownAt * size);
    EXPECT_EQ(f.keepAt, exchange.keepAt * size);
    EXPECT_EQ(f.hash, tuttiSignatureHash(&t.signature));
    EXPECT_EQ(f.isUnsigned, t.type == tuttiUint8);
    EXPECT_EQ(f.shared, input.staged ? exchange.shared : 0);
    EXPECT_EQ(f.mirror, exchange.mirror);
    EXPECT_EQ(s.regions.isRooted, tuttiCollHasRoot(t.schedule.coll));
    EXPECT_EQ(back().sig.count, t.signature.count);
    for (int i = 0; i < f.nlinks; i++) {
      const tuttiRegionsLink &l = regionsLink(i);
      const tuttiAllPairsPeer &p = exchange.peer[l.rank];
      EXPECT_EQ(l.outAt, p.outAt * size);
      EXPECT_EQ(l.outBytes, p.outCount * size);
      EXPECT_EQ(l.placeAt, p.placeAt * size);
      EXPECT_EQ(l.inBytes, p.inCount * size);
      EXPECT_EQ(l.lateAt, p.lateAt * size);
      EXPECT_EQ(l.lateBytes, p.lateCount * size);
      EXPECT_EQ(f.operands >> i & 1, p.inCount > 0);
      EXPECT_EQ(f.spreads >> i & 1, p.spread);
      EXPECT_EQ(f.late >> i & 1, p.lateCount > 0);
    }
  }

  void expectPart(uint64_t part, uint64_t bytes, const tuttiPlan &plan) {
    EXPECT_GE(part * plan.nblocks, bytes) << "all of it has a block";
    EXPECT_TRUE(part % TUTTI_ALLPAIRS_LINE == 0);
    EXPECT_GE(s.args.loops * (uint64_t)TUTTI_ALLPAIRS_SIMPLE_SLOT, part);
  }
  void expectSlots(const tuttiTask &t) {
    uint64_t size = tuttiTypeSize(t.type);
    const tuttiAllPairsArgs &a = s.args;
    EXPECT_EQ(a.operand, kSend + exchange.ownAt * size);
    EXPECT_EQ(a.result, kRecv + exchange.keepAt * size);
    EXPECT_EQ(a.bytes, exchange.count * size);
    EXPECT_EQ(a.mirror, exchange.mirror ? kRecv - kSend : 0);
    EXPECT_EQ(a.shared, input.staged ? exchange.shared : 0u);
    EXPECT_EQ(a.isUnsigned, t.type == tuttiUint8);
    if (exchange.combine || exchange.own) expectPart(a.part, a.bytes, t.plan);
    for (int i = 0; i < a.nlinks; i++) {
      const tuttiAllPairsLink &l = a.link[i];
      const tuttiAllPairsFlow &f = a.flow[i];
      const tuttiAllPairsPeer &p = exchange.peer[l.rank];
      EXPECT_EQ(l.out, kSend + p.outAt * size);
      EXPECT_EQ(l.outBytes, p.outCount * size);
      EXPECT_EQ(l.place, kRecv + p.placeAt * size);
      EXPECT_EQ(l.inBytes, p.inCount * size);
      EXPECT_EQ(l.late, kRecv + p.lateAt * size);
      EXPECT_EQ(l.lateBytes, p.lateCount * size);
      EXPECT_EQ(l.outHash, tuttiSignatureHash(&t.signature));
      EXPECT_EQ(a.operands >> i & 1, (uint32_t)(p.inCount > 0));
      EXPECT_EQ(a.spreads >> i & 1, (uint32_t)p.spread);
      expectPart(f.outPart, l.outBytes, t.plan);
      expectPart(f.inPart, l.inBytes, t.plan);
      expectPart(f.latePart, l.lateBytes, t.plan);
    }
  }
};

TEST_F(CudaArguments, LinksAreTheOthersInOrder) {
  for (int n = 2; n <= TUTTI_ALLPAIRS_MAX; n++)
    for (int rank = 0; rank < n; rank++)
      for (bool staged : {false, true}) {
        be(rank, n, staged);
        tuttiAllPairsLayout layout = tuttiAllPairsLayOut(n, staged);
        size_t region = staged ? TUTTI_STAGED_REGION_BYTES : TUTTI_REGION_BYTES;
        ASSERT_EQ(s.regions.isFew, n <= 4 && !staged);
        ASSERT_EQ(s.args.nlinks, n - 1);
        ASSERT_EQ(front().nlinks, n - 1);
        EXPECT_EQ(front().regions, blockOf(rank) + layout.regionsAt);
        EXPECT_EQ(back().regionsAt, layout.regionsAt);
        for (int i = 0; i < n - 1; i++) {
          int peer = i + (i >= rank), column = rank - (peer < rank);
          EXPECT_EQ(s.args.link[i].rank, peer);
          EXPECT_EQ(s.args.link[i].column, (uint32_t)column);
          EXPECT_EQ(s.args.link[i].block, blockOf(peer));
          EXPECT_EQ(regionsLink(i).rank, peer);
          EXPECT_EQ(regionsLink(i).column, (uint32_t)column);
          EXPECT_EQ(regionsLink(i).regions,
                    blockOf(peer) + layout.regionsAt + (size_t)column * region);
        }
      }
}

/* One after the other, so that what one leaves behind would be seen in the next. */
TEST_F(CudaArguments, SayWhatTheExchangeSays) {
  int regions = 0, slots = 0;
  for (int n = 2; n <= TUTTI_ALLPAIRS_MAX; n++)
    for (int rank = 0; rank < n; rank++)
      for (bool staged : {false, true}) {
        be(rank, n, staged);
        for (int coll = tuttiCollAllReduce; coll < tuttiCollSendRecv; coll++)
          for (uint64_t count : kCounts)
            for (tuttiDataType_t type : {tuttiUint8, tuttiFloat64}) {
              tuttiTask t = task(coll, count, type, n - 1);
              tuttiCudaArgsCollective(&s, &t);
              bool isRegions = t.plan.kernel == tuttiKernelRegions;
              (isRegions ? regions : slots)++;
              isRegions ? expectRegions(t) : expectSlots(t);
              if (HasFailure()) FAIL() << tuttiCollName(coll) << " rank " << rank << " of " << n;
            }
      }
  EXPECT_GT(regions, 1000);
  EXPECT_GT(slots, 1000);
}

/* Behind a collective, of which nothing is left. */
TEST_F(CudaArguments, MessagesHaveTheirAddresses) {
  be(1, 3, false);
  tuttiTask before = task(tuttiCollAllReduce, 1 << 24, tuttiUint8, -1);
  ASSERT_EQ(before.plan.kernel, tuttiKernelSlots);
  tuttiCudaArgsCollective(&s, &before);
  tuttiTask out = task(tuttiCollSendRecv, 100, tuttiFloat32, 2, true);
  tuttiTask in = task(tuttiCollSendRecv, 77, tuttiFloat32, 0, false);
  tuttiCudaArgsBegin(&s);
  tuttiCudaArgsMessage(&s, &out);
  tuttiCudaArgsMessage(&s, &in);
  tuttiCudaArgsEnd(&s, &out, out.plan.proto);
  const tuttiAllPairsArgs &a = s.args;
  EXPECT_EQ(a.link[1].out, kSend);
  EXPECT_EQ(a.link[1].outBytes, 400u);
  EXPECT_EQ(a.link[1].inBytes, 0u);
  EXPECT_EQ(a.link[0].place, kRecv);
  EXPECT_EQ(a.link[0].inBytes, 308u);
  EXPECT_EQ(a.link[0].outBytes, 0u);
  EXPECT_EQ(a.link[0].lateBytes + a.link[1].lateBytes, 0u);
  EXPECT_EQ(a.combine + a.own + a.keep + a.spreads + a.shared, 0u);
  EXPECT_EQ(a.mirror, 0);
  EXPECT_EQ(a.operands, 1u) << "what comes, from link 0 alone";
  EXPECT_EQ(a.loops, 1u);
}

TEST_F(CudaArguments, NothingInAGroupIsNoLaunch) {
  be(0, 2, false);
  tuttiTask none = task(tuttiCollSendRecv, 0, tuttiFloat32, 1, true);
  tuttiCudaArgsBegin(&s);
  tuttiCudaArgsEnd(&s, &none, tuttiProtoSimple);
  EXPECT_EQ(s.args.loops, 0u);
}

} // namespace
#endif

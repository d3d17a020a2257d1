/* The exchange with protocol LL where every rank sends to every other: AllReduce, AllGather,
 * ReduceScatter, AlltoAll. Then no credits are needed. A message's lines lie in one of two regions
 * by turns; who writes to a region for the second time has got an answer to the message between,
 * so its readers have called the next operation and are done with the first. The kernel is short
 * and straight, since at small sizes the time to fetch its instructions is what counts. Eight
 * lanes, a group, send a line to every peer and take the same line of every peer. */
#ifndef TUTTI_KERNELS_EXCHANGE_UNIFORM_CUH_
#define TUTTI_KERNELS_EXCHANGE_UNIFORM_CUH_

#include "kernels/exchange_block.cuh"
#include "kernels/exchange_ll.cuh"

/* N: most links. COMBINE: the messages are operands, else each has a place. */
template <typename T, int N, bool COMBINE> class ExchangeUniform {
public:
  __device__ explicit ExchangeUniform(const tuttiExchangeArgs &args) : a(args) {
    no = *(volatile uint32_t *)counter(blockIdx.x);
  }

  __device__ void run() {
    for (uint32_t g = first(); g < a.lines; g += step())
      send(g);
    for (uint32_t g = first(); g < a.lines; g += step())
      if (!take(g)) return;
    if (a.spreads)
      for (uint32_t g = first(); g < a.lines; g += step())
        if (!takeLate(g)) return;
    __syncthreads(); /* all have read the counter: all counters move on together */
    for (uint32_t b = blockIdx.x + threadIdx.x * gridDim.x; b < TUTTI_UNIFORM_BLOCKS;
         b += blockDim.x * gridDim.x)
      *counter(b) = no + 1;
  }

private:
  const tuttiExchangeArgs &a;
  uint32_t no;

  __device__ uint32_t *counter(uint32_t b) const {
    return ((tuttiExchangeHead *)a.block)->uniform + b;
  }
  __device__ static uint32_t lane() { return threadIdx.x % kLanes; }
  __device__ static uint32_t first() { return (blockIdx.x * blockDim.x + threadIdx.x) / kLanes; }
  __device__ static uint32_t step() { return gridDim.x * blockDim.x / kLanes; }
  __device__ static uint32_t groupMask() { return 0xffu << (threadIdx.x & 24); }

  __device__ uint64_t flag() const { return (uint64_t)a.link[0].outHash << 32 | (no + 1); }
  /* This thread's piece of line g of the region for `column`. */
  __device__ uint8_t *piece(uint8_t *block, int kind, uint32_t column, uint32_t g) const {
    uint32_t region = ((no & 1) * TUTTI_EXCHANGE_KINDS + kind) * a.nlinks + column;
    return block + a.uniformAt + (size_t)region * TUTTI_UNIFORM_REGION + (size_t)g * kLine +
           lane() * 16;
  }
  __device__ static int64_t offset(uint32_t g) { return (int64_t)g * kLinePayload + lane() * 16; }
  __device__ static int32_t clamp(int64_t left) { return left > 16 ? 16 : (int32_t)left; }

  __device__ tuttiPair load(const uint8_t *at, uint64_t bytes, uint32_t g) const {
    int32_t left = clamp((int64_t)bytes - offset(g));
    tuttiPair v;
    v.x = loadWord(at + offset(g), left);
    v.y = lane() < kLanes - 1 ? loadWord(at + offset(g) + 8, left - 8) : 0;
    return v;
  }
  __device__ void store(uint8_t *at, uint64_t bytes, uint32_t g, tuttiPair v) const {
    int32_t left = clamp((int64_t)bytes - offset(g));
    storeWord(at + offset(g), v.x, left);
    if (lane() < kLanes - 1) storeWord(at + offset(g) + 8, v.y, left - 8);
  }
  __device__ void put(int kind, int p, uint32_t g, tuttiPair v) const {
    if (lane() == kLanes - 1) v.y = flag();
    storePairVolatile(piece(a.link[p].block, kind, a.link[p].column, g), v);
  }
  __device__ static bool within(uint32_t g, uint64_t bytes) {
    return (uint64_t)g * kLinePayload < bytes;
  }

  __device__ tuttiPair operand(tuttiPair mine) const {
    return COMBINE && a.premul ? scaled<T>(a, mine) : mine;
  }

  __device__ void send(uint32_t g) const {
    tuttiPair v[N];
#pragma unroll
    for (int p = 0; p < N; p++)
      if (p < a.nlinks && within(g, a.link[p].outBytes))
        v[p] = operand(load(a.send + a.link[p].outAt, a.link[p].outBytes, g));
#pragma unroll
    for (int p = 0; p < N; p++)
      if (p < a.nlinks && within(g, a.link[p].outBytes)) put(kFirst, p, g, v[p]);
  }

  /* Line g from all links of `wanted`; false: given up. */
  __device__ bool get(int kind, uint32_t wanted, uint32_t g, tuttiPair in[N]) const {
    Wait wait;
    for (;;) {
      bool missing = false;
      int last = 0;
      uint64_t seen = 0;
#pragma unroll
      for (int p = 0; p < N; p++)
        if (wanted >> p & 1) in[p] = loadPairVolatile(piece(a.block, kind, p, g));
#pragma unroll
      for (int p = 0; p < N; p++) {
        if (!(wanted >> p & 1)) continue;
        uint64_t there = __shfl_sync(groupMask(), in[p].y, kLanes - 1, kLanes);
        if (there != flag()) {
          missing = true;
          last = p;
          seen = there;
        }
      }
      if (!missing) return true;
      bool over = wait.over(a, a.link[last].rank, flag(), seen);
      if (__any_sync(groupMask(), over)) return false;
    }
  }

  __device__ bool take(uint32_t g) const {
    tuttiPair in[N], mine = {0, 0};
    uint32_t wanted = 0;
#pragma unroll
    for (int p = 0; p < N; p++)
      if (p < a.nlinks && within(g, a.link[p].inBytes)) wanted |= 1u << p;
    bool own = a.own && within(g, a.bytes);
    if (own) mine = operand(load(a.send + a.ownAt, a.bytes, g));
    if (!get(kFirst, wanted, g, in)) return false;
    if (COMBINE) {
      if (own) combine(g, in, mine);
      return true;
    }
    if (own) store(a.recv + a.keepAt, a.bytes, g, mine);
#pragma unroll
    for (int p = 0; p < N; p++)
      if (wanted >> p & 1) store(a.recv + a.link[p].placeAt, a.link[p].inBytes, g, in[p]);
    return true;
  }

  __device__ void combine(uint32_t g, const tuttiPair in[N], tuttiPair mine) const {
    Operands<T> sum;
#pragma unroll
    for (int p = 0; p <= N; p++) {
      if (p == a.place) sum.add(a.op, mine);
      if (p < N && p < a.nlinks) sum.add(a.op, in[p]);
    }
    tuttiPair v = sum.result(a.divide);
    if (a.spreads) {
#pragma unroll
      for (int p = 0; p < N; p++)
        if (p < a.nlinks) put(kLate, p, g, v);
    }
    store(a.recv + a.keepAt, a.bytes, g, v);
  }

  __device__ bool takeLate(uint32_t g) const {
    tuttiPair in[N];
    uint32_t wanted = 0;
#pragma unroll
    for (int p = 0; p < N; p++)
      if (p < a.nlinks && within(g, a.link[p].lateBytes)) wanted |= 1u << p;
    if (!get(kLate, wanted, g, in)) return false;
#pragma unroll
    for (int p = 0; p < N; p++)
      if (wanted >> p & 1) store(a.recv + a.link[p].lateAt, a.link[p].lateBytes, g, in[p]);
    return true;
  }
};

#endif

/* All pairs with lines in regions instead of slots: all collectives, up to a size. No
 * credits are needed where every rank sends to every other. A message's lines lie in one of two
 * regions by turns; who writes to a region for the second time has got an answer to the message
 * between, so its readers have called the next operation and are done with the first. Where the
 * operation between had a root, not everybody has answered. So in such an operation every rank
 * tells all others that it has begun, and in the one that follows waits to have heard it.
 *
 * The kernel is short and straight, since at small sizes the time to fetch its instructions is what
 * counts. Eight lanes, a group, send a line to every peer and take the same line of every peer.
 *
 * Staged, a rank's regions hold what it sends: to each peer, or, where it is the same, to all in
 * those of the first. PCIe keeps no line whole, only words of 8 bytes; so every half of a 16-byte
 * unit holds 4 bytes of payload and a flag: the message's number, and that plus the hash. */
#ifndef TUTTI_KERNELS_ALLPAIRS_REGIONS_CUH_
#define TUTTI_KERNELS_ALLPAIRS_REGIONS_CUH_

#include "kernels/allpairs_block.cuh"
#include "kernels/allpairs_messages.cuh"

template <int N>
using RegionsArgs = std::conditional_t<N == TUTTI_REGIONS_FEW, tuttiRegionsFew, tuttiRegionsMany>;

/* N: most links. COMBINE: the messages are operands, else each has a place. ROOTED: not all send to
 * all, or combine. STAGED: regions are in host memory; never rooted, for who has nothing to send
 * looks at lines all the time, and what is looked at so much is written slowly. */
template <typename T, int N, bool COMBINE, bool ROOTED, bool STAGED = false> class AllPairsRegions {
public:
  __device__ explicit AllPairsRegions(const RegionsArgs<N> &args) : a(args) {
    followEarly();
    count = *(volatile uint32_t *)&a.front.counts->runs[blockIdx.x];
    no = count / 2;
  }

  __device__ void run() {
    if (ROOTED) tell();
    bool unheard = count % 2; /* the operation before had a root */
    if (unheard && !__syncthreads_and(hear())) return countAs(TUTTI_REGIONS_OVER);
    for (uint32_t g = first(); g < a.front.lines; g += step())
      send(g);
    __syncthreads(); /* all have read the counter: all counters move on, while lines are coming */
    countAs(next());
    for (uint32_t g = first(); g < a.front.lines; g += step())
      if (!take(g)) return giveUp();
    if (a.front.spreads || (ROOTED && a.front.late))
      for (uint32_t g = first(); g < a.front.lines; g += step())
        if (!takeLate(g)) return giveUp();
  }

private:
  static constexpr size_t kRegion = STAGED ? TUTTI_STAGED_REGION_BYTES : TUTTI_REGION_BYTES;
  static constexpr uint32_t kPayload = STAGED ? TUTTI_STAGED_LINE_PAYLOAD : kLinePayload;
  static constexpr uint32_t kBytes = STAGED ? 2 * kLine : kLine;
  static constexpr uint32_t kNumbers = 0x3fffffff; /* of 30 bits, so that none looks as OVER does */

  const RegionsArgs<N> &a;
  uint32_t count, no;

  __device__ uint32_t next() const { return (no + 1 & kNumbers) * 2 + ROOTED; }
  /* The counters of the blocks that this one counts for. */
  __device__ void countAs(uint32_t runs) const {
    for (uint32_t b = blockIdx.x + threadIdx.x * gridDim.x; b < TUTTI_REGION_BLOCKS;
         b += blockDim.x * gridDim.x)
      a.front.counts->runs[b] = runs;
  }
  /* A kernel behind this one would put messages in the place of some that peers have yet to read.
   * What other threads of the block count comes before, and other blocks may go on: they have heard
   * of all peers. */
  __device__ __noinline__ void giveUp() const {
    for (uint32_t b = blockIdx.x; b < TUTTI_REGION_BLOCKS; b += gridDim.x) {
      volatile uint32_t *runs = &a.front.counts->runs[b];
      for (uint32_t seen = *runs; seen != next() && seen != TUTTI_REGIONS_OVER;)
        seen = *runs;
      *runs = TUTTI_REGIONS_OVER;
    }
  }

  __device__ void tell() const {
    if (blockIdx.x != 0 || threadIdx.x >= a.front.nlinks) return;
    const tuttiRegionsLink &l = a.link[threadIdx.x];
    uint8_t *block = l.regions - l.column * kRegion - a.back.regionsAt;
    storeRelaxedSys32(&((tuttiAllPairsHead *)block)->begun[l.column], no);
  }
  /* Until all have begun the operation before; false: given up. A rank may be three ahead, or
   * behind by any number of operations that had no root. */
  __device__ __noinline__ bool hear() const {
    Wait wait;
    if (count == TUTTI_REGIONS_OVER) return false;
    for (int p = 0; p < a.front.nlinks; p++)
      while (((loadRelaxedSys32(&a.front.head->begun[p]) - (no - 1)) & kNumbers) > 7)
        if (wait.over(a.back, a.link[p].rank, 0, 0)) return false;
    return true;
  }

  __device__ static uint32_t first() { return (blockIdx.x * blockDim.x + threadIdx.x) / kLanes; }
  __device__ static uint32_t step() { return gridDim.x * blockDim.x / kLanes; }

  __device__ uint64_t flag() const { return (uint64_t)a.front.hash << 32 | (no + 1); }
  /* This thread's piece of line g of the first region at `regions` for this operation. */
  __device__ uint8_t *piece(uint8_t *regions, int kind, uint32_t g) const {
    uint32_t region = ((no & 1) * TUTTI_ALLPAIRS_KINDS + kind) * a.front.nlinks;
    return regions + region * kRegion + g * kBytes + lineLane() * 16;
  }
  __device__ bool shared(int kind) const { return STAGED && (a.front.shared >> kind & 1); }
  __device__ uint8_t *pieceFrom(int p, int kind, uint32_t g) const {
    if (!STAGED) return piece(a.front.regions + p * kRegion, kind, g);
    return piece(a.link[p].regions - (shared(kind) ? a.link[p].column * kRegion : 0), kind, g);
  }
  __device__ void put(int kind, int p, uint32_t g, tuttiPair v) const {
    if (STAGED)
      return putUnits(piece(a.front.regions + (shared(kind) ? 0 : p * kRegion), kind, g), v);
    if (isFlagLane()) v.y = flag();
    storePiece(piece(a.link[p].regions, kind, g), v);
  }
  __device__ static bool within(uint32_t g, uint32_t bytes) { return g * kPayload < bytes; }

  __device__ static tuttiPair load(const uint8_t *at, uint32_t bytes, uint32_t g) {
    if (!STAGED) return loadLine(at, bytes, g);
    uint32_t from = g * kPayload + lineLane() * 16;
    return loadPair(at + from, (int32_t)(bytes - from));
  }
  __device__ static void store(uint8_t *at, uint32_t bytes, uint32_t g, tuttiPair v) {
    if (!STAGED) return storeLine(at, bytes, g, v);
    uint32_t from = g * kPayload + lineLane() * 16;
    storeUserPair(at + from, v, (int32_t)(bytes - from));
  }

  /* ---- staged: this lane's two units of a line ---- */

  __device__ void putUnit(uint8_t *at, uint64_t v) const {
    uint64_t number = no + 1, mark = no + 1 + a.front.hash;
    storePairVolatile(at, {number << 32 | (uint32_t)v, mark << 32 | v >> 32});
  }
  __device__ void putUnits(uint8_t *at, tuttiPair v) const {
    putUnit(at, v.x);
    putUnit(at + kLine, v.y);
  }
  /* As flag() when both halves are there. */
  __device__ static uint64_t flagOf(tuttiPair unit) {
    uint32_t number = (uint32_t)(unit.x >> 32), mark = (uint32_t)(unit.y >> 32);
    return (uint64_t)(mark - number) << 32 | number;
  }
  __device__ static uint64_t valueOf(tuttiPair unit) { return (uint32_t)unit.x | unit.y << 32; }
  __device__ bool getUnits(int kind, uint32_t wanted, uint32_t g, tuttiPair in[N]) const {
    Wait wait;
    while (wanted) {
      tuttiPair low[N], high[N];
      int last = 0;
      uint64_t seen = 0;
#pragma unroll
      for (int p = 0; p < N; p++) {
        if (!(wanted >> p & 1)) continue;
        low[p] = loadPairVolatile(pieceFrom(p, kind, g));
        high[p] = loadPairVolatile(pieceFrom(p, kind, g) + kLine);
      }
#pragma unroll
      for (int p = 0; p < N; p++) {
        if (!(wanted >> p & 1)) continue;
        if (flagOf(low[p]) == flag() && flagOf(high[p]) == flag()) {
          in[p] = {valueOf(low[p]), valueOf(high[p])};
          wanted &= ~(1u << p);
        } else {
          last = p;
          seen = flagOf(low[p]);
        }
      }
      if (wanted && wait.over(a.back, a.link[last].rank, flag(), seen)) return false;
    }
    return true;
  }

  __device__ tuttiPair operand(tuttiPair mine) const {
    return COMBINE && a.front.premul ? scaled<T>(a.back, mine) : mine;
  }

  __device__ void send(uint32_t g) const {
    tuttiPair v[N];
#pragma unroll
    for (int p = 0; p < N; p++)
      if (p < a.front.nlinks && within(g, a.link[p].outBytes))
        v[p] = operand(load(a.front.send + a.link[p].outAt, a.link[p].outBytes, g));
#pragma unroll
    for (int p = 0; p < N; p++)
      if (p < a.front.nlinks && within(g, a.link[p].outBytes)) {
        put(kFirst, p, g, v[p]);
        if (ROOTED && a.front.mirror)
          store(a.front.recv + a.link[p].outAt, a.link[p].outBytes, g, v[p]);
        if (shared(kFirst)) return;
      }
  }

  /* Line g from all links of `wanted`; false: given up. */
  __device__ bool get(int kind, uint32_t wanted, uint32_t g, tuttiPair in[N]) const {
    if (STAGED) return getUnits(kind, wanted, g, in);
    Wait wait;
    for (;;) {
      const bool apart = !together();
      bool missing = false;
      int last = 0;
      uint64_t seen = 0;
      if (apart) beforePieces();
#pragma unroll
      for (int p = 0; p < N; p++)
        if (wanted >> p & 1) in[p] = loadPairVolatile(pieceFrom(p, kind, g));
      if (apart) behindPieces();
#pragma unroll
      for (int p = 0; p < N; p++) {
        if (!(wanted >> p & 1)) continue;
        uint64_t there = __shfl_sync(lineMask(), in[p].y, kLanes - 1, kLanes);
        if (there != flag()) {
          missing = true;
          last = p;
          seen = there;
        }
      }
      if (!missing) return true;
      bool over = wait.over(a.back, a.link[last].rank, flag(), seen);
      if (__any_sync(lineMask(), over)) return false;
    }
  }

  __device__ bool take(uint32_t g) const {
    tuttiPair in[N], mine = {0, 0};
    uint32_t wanted = 0;
#pragma unroll
    for (int p = 0; p < N; p++)
      if (p < a.front.nlinks && within(g, a.link[p].inBytes)) wanted |= 1u << p;
    bool some = within(g, a.front.bytes), own = a.front.own && some;
    if (own) mine = operand(load(a.front.send + a.front.ownAt, a.front.bytes, g));
    if (!get(kFirst, wanted, g, in)) return false;
    if (COMBINE) {
      if (ROOTED ? a.front.combine && some : own) combine(g, in, mine);
      return true;
    }
    if (own) store(a.front.recv + a.front.keepAt, a.front.bytes, g, mine);
#pragma unroll
    for (int p = 0; p < N; p++)
      if (wanted >> p & 1) store(a.front.recv + a.link[p].placeAt, a.link[p].inBytes, g, in[p]);
    return true;
  }

  __device__ bool isOperand(int p) const {
    return ROOTED ? a.front.operands >> p & 1 : p < a.front.nlinks;
  }
  __device__ bool getsResult(int p) const {
    return ROOTED ? a.front.spreads >> p & 1 : p < a.front.nlinks;
  }

  __device__ tuttiPair reduce(const tuttiPair in[N], tuttiPair mine) const {
    Operands<T> sum;
    tuttiRedOp_t op = (tuttiRedOp_t)a.front.op;
    const uint64_t turned = turnedBits<T>(a.front);
    constexpr int kUnroll =
        STAGED ? 1 : N + 1; /* staged, the time to fetch instructions is little */
#pragma unroll kUnroll
    for (int p = 0; p <= N; p++) {
      if (p == a.front.place && (!ROOTED || a.front.own)) sum.add(op, mine, turned);
      if (p < N && isOperand(p)) sum.add(op, in[p], turned);
    }
    return sum.result(a.front.divide, a.front.isUnsigned, turned);
  }
  __device__ void spread(uint32_t g, tuttiPair v) const {
#pragma unroll
    for (int p = 0; p < N; p++)
      if (getsResult(p) && !(p && shared(kLate))) put(kLate, p, g, v);
  }
  __device__ void combine(uint32_t g, const tuttiPair in[N], tuttiPair mine) const {
    tuttiPair v = reduce(in, mine);
    if (a.front.spreads) spread(g, v);
    if (!ROOTED || a.front.keep) store(a.front.recv + a.front.keepAt, a.front.bytes, g, v);
  }

  __device__ bool takeLate(uint32_t g) const {
    tuttiPair in[N];
    uint32_t wanted = 0;
#pragma unroll
    for (int p = 0; p < N; p++)
      if (p < a.front.nlinks && within(g, a.link[p].lateBytes)) wanted |= 1u << p;
    if (!get(kLate, wanted, g, in)) return false;
#pragma unroll
    for (int p = 0; p < N; p++)
      if (wanted >> p & 1) store(a.front.recv + a.link[p].lateAt, a.link[p].lateBytes, g, in[p]);
    return true;
  }
};

namespace {

template <typename T, int N, bool COMBINE, bool ROOTED, bool STAGED>
__global__ void __launch_bounds__(TUTTI_ALLPAIRS_THREADS)
    allPairsRegions(const __grid_constant__ RegionsArgs<N> args) {
  AllPairsRegions<T, N, COMBINE, ROOTED, STAGED>(args).run();
}

} // namespace

#endif

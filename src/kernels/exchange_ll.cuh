/* The exchange with protocol LL: a message is lines of 128 bytes that carry their own flag, written
 * and read by eight lanes of a warp in one access. No fence and no second look, so a message takes
 * one way over the link; 15/16 of its bandwidth. Eight lanes, a group, take line after line.
 *
 * With several chunks the first exchange is one chunk ahead of the combination and two ahead of the
 * second exchange. A rank never has more than three messages of a kind under way that a neighbour
 * one iteration behind has not taken: DEPTH is enough. */
#ifndef TUTTI_KERNELS_EXCHANGE_LL_CUH_
#define TUTTI_KERNELS_EXCHANGE_LL_CUH_

#include "kernels/exchange_block.cuh"

constexpr uint32_t kLine = TUTTI_EXCHANGE_LINE, kLinePayload = TUTTI_EXCHANGE_LINE_PAYLOAD;
constexpr uint32_t kLLSlot = TUTTI_EXCHANGE_LL_SLOT / kLine * kLinePayload;
constexpr uint32_t kLanes = 8;

template <typename T> class ExchangeLL : Block<T, kLLSlot> {
  using Base = Block<T, kLLSlot>;
  using Base::a;
  using Base::s;

public:
  __device__ ExchangeLL(const tuttiExchangeArgs &args, BlockState &state) : Base(state) {
    uint8_t *block = args.block; /* the one look into the constant cache */
    loadArgs(args, state);
    this->loadCounts(block, threadIdx.x);
    __syncthreads();
    if (threadIdx.x < TUTTI_EXCHANGE_KINDS * kPeers) count();
  }

  __device__ void run() {
    uint32_t lag = a.loops > 1;
    for (uint32_t i = 0; i < a.loops + 2 * lag; i++) {
      if (i < a.loops) sendFirst(i);
      if (synchronize()) return; /* in place, what was sent may be overwritten from here on */
      if (i >= lag && i - lag < a.loops) {
        a.combine ? combine(i - lag) : place(kFirst, i - lag);
        if (a.own && !a.combine) copyOwn(i - lag);
      }
      if (i >= 2 * lag) place(kLate, i - 2 * lag);
      if (lag && i + 1 < a.loops + 2) {
        if (synchronize()) return;
        giveBack(i);
      }
    }
  }

private:
  bool dead = false;

  __device__ bool synchronize() { return __syncthreads_or(dead); }
  __device__ static uint32_t lane() { return threadIdx.x % kLanes; }
  __device__ static uint32_t group() { return threadIdx.x / kLanes; }
  __device__ static uint32_t groups() { return blockDim.x / kLanes; }
  __device__ static uint32_t groupMask() { return 0xffu << (threadIdx.x & 24); }
  __device__ static uint32_t linesOf(uint32_t bytes) {
    return (bytes + kLinePayload - 1) / kLinePayload;
  }
  __device__ uint8_t *slot(uint8_t *block, int kind, uint32_t column, uint32_t no) const {
    return block + TUTTI_EXCHANGE_LL_AT + this->slotNo(kind, column, no) * TUTTI_EXCHANGE_LL_SLOT;
  }
  __device__ uint8_t *slotOut(int kind, int p, uint32_t no) const {
    return slot(a.link[p].block, kind, a.link[p].column, no);
  }
  __device__ uint8_t *slotIn(int kind, int p, uint32_t no) const {
    return slot(a.block, kind, p, no);
  }

  /* Thread (kind, p): counts this kernel's messages now, and gives back what the last kernel took:
   * at its own end it would have waited for that to arrive. */
  __device__ void count() const {
    uint32_t k = threadIdx.x / kPeers, p = threadIdx.x % kPeers;
    if (p >= (uint32_t)a.nlinks) return;
    this->own()->sent[blockIdx.x][k][p] = s.sent[k][p] + this->chunksOut(k, p);
    this->own()->taken[blockIdx.x][k][p] = s.taken[k][p] + this->chunksIn(k, p);
    storeRelaxedSys32(&this->theirs(p)->head[blockIdx.x][k][a.link[p].column], s.taken[k][p]);
  }
  /* After iteration i of several, but for the last, all threads have read what it took. */
  __device__ void giveBack(uint32_t i) const {
    if (threadIdx.x >= TUTTI_EXCHANGE_KINDS * kPeers) return;
    uint32_t k = threadIdx.x / kPeers, p = threadIdx.x % kPeers, lag = k + 1;
    if (p >= (uint32_t)a.nlinks || i < lag || i - lag >= this->chunksIn(k, p)) return;
    storeRelaxedSys32(&this->theirs(p)->head[blockIdx.x][k][a.link[p].column],
                      s.taken[k][p] + i - lag + 1);
  }

  /* ---- lines ---- */

  __device__ tuttiPair loadLine(const uint8_t *at, uint32_t line, uint32_t bytes) const {
    uint32_t offset = line * kLinePayload + lane() * 16;
    int32_t left = (int32_t)bytes - (int32_t)offset;
    tuttiPair v;
    v.x = loadWord(at + offset, left);
    v.y = lane() < kLanes - 1 ? loadWord(at + offset + 8, left - 8) : 0;
    return v;
  }
  __device__ void storeLine(uint8_t *at, uint32_t line, uint32_t bytes, tuttiPair v) const {
    uint32_t offset = line * kLinePayload + lane() * 16;
    int32_t left = (int32_t)bytes - (int32_t)offset;
    storeWord(at + offset, v.x, left);
    if (lane() < kLanes - 1) storeWord(at + offset + 8, v.y, left - 8);
  }
  /* Sends a line of message `no` of a kind to p; false: given up. */
  __device__ bool sendLine(int kind, int p, uint32_t no, uint32_t line, tuttiPair v) {
    if ((int32_t)(s.limit[kind][p] - no) <= 0) awaitCredit(kind, p, no);
    dead = __any_sync(groupMask(), dead);
    if (dead) return false;
    if (lane() == kLanes - 1) v.y = this->flagOut(p, no);
    storePairVolatile(slotOut(kind, p, no) + line * kLine + lane() * 16, v);
    return true;
  }
  __device__ __noinline__ void awaitCredit(int kind, int p, uint32_t no) {
    Wait wait;
    uint32_t limit;
    do {
      limit = loadRelaxedSys32(&this->own()->head[blockIdx.x][kind][p]) + kDepth;
      if ((int32_t)(limit - no) > 0) {
        s.limit[kind][p] = limit; /* whoever writes last: it was enough for this message */
        return;
      }
    } while (!wait.over(a, a.link[p].rank, 0, 0));
    dead = true;
  }
  /* Waits for a line of message `no` from each link of `missing`, all looked for at once: their
   * ways overlap. False: given up. */
  __device__ bool takeLines(int kind, uint32_t chunk, uint32_t line, uint32_t missing,
                            tuttiPair in[kPeers]) {
    Wait wait;
    while (missing) {
#pragma unroll
      for (int p = 0; p < kPeers; p++)
        if (missing >> p & 1)
          in[p] = loadPairVolatile(slotIn(kind, p, s.taken[kind][p] + chunk) + line * kLine +
                                   lane() * 16);
      int last = 0;
      uint64_t seen = 0;
#pragma unroll
      for (int p = 0; p < kPeers; p++) {
        if (!(missing >> p & 1)) continue;
        uint64_t there = __shfl_sync(groupMask(), in[p].y, kLanes - 1, kLanes);
        if (there == this->flagIn(p, s.taken[kind][p] + chunk)) {
          missing &= ~(1u << p);
        } else {
          last = p;
          seen = there;
        }
      }
      if (!missing) break;
      dead = wait.over(a, a.link[last].rank, this->flagIn(last, s.taken[kind][last] + chunk), seen);
      dead = __any_sync(groupMask(), dead);
      if (dead) return false;
    }
    return true;
  }

  /* ---- the steps ---- */

  __device__ void sendFirst(uint32_t i) {
    uint32_t most = 0;
    for (int p = 0; p < a.nlinks; p++)
      most = max(most, linesOf(this->outChunk(p, i).bytes));
    for (uint32_t u = group(); u < most * a.nlinks; u += groups()) {
      uint32_t p = u / most, line = u % most;
      Chunk c = this->outChunk(p, i);
      if (line >= linesOf(c.bytes)) continue;
      tuttiPair v = this->operand(loadLine(a.send + a.link[p].outAt + c.at, line, c.bytes));
      if (!sendLine(kFirst, p, s.sent[kFirst][p] + i, line, v)) return;
    }
  }

  __device__ void combine(uint32_t chunk) {
    Chunk c = this->ownChunk(chunk);
    uint32_t lines = linesOf(c.bytes), wanted = 0;
    for (int p = 0; p < a.nlinks; p++)
      if (a.link[p].inBytes) wanted |= 1u << p;
    for (uint32_t line = group(); line < lines; line += groups()) {
      tuttiPair in[kPeers], mine = {0, 0};
      if (a.own) mine = this->operand(loadLine(a.send + a.ownAt + c.at, line, c.bytes));
      if (!takeLines(kFirst, chunk, line, wanted, in)) return;
      tuttiPair v = this->reduced(in, mine);
      for (int p = 0; p < a.nlinks; p++)
        if (a.link[p].spread && !sendLine(kLate, p, s.sent[kLate][p] + chunk, line, v)) return;
      if (a.keep) storeLine(a.recv + a.keepAt + c.at, line, c.bytes, v);
    }
  }

  __device__ void place(int kind, uint32_t chunk) {
    uint32_t most = 0;
    for (int p = 0; p < a.nlinks; p++)
      most = max(most, linesOf(this->inChunk(kind, p, chunk).bytes));
    for (uint32_t line = group(); line < most; line += groups()) {
      uint32_t wanted = 0;
      for (int p = 0; p < a.nlinks; p++)
        if (line < linesOf(this->inChunk(kind, p, chunk).bytes)) wanted |= 1u << p;
      tuttiPair in[kPeers];
      if (!takeLines(kind, chunk, line, wanted, in)) return;
#pragma unroll
      for (int p = 0; p < kPeers; p++) {
        if (!(wanted >> p & 1)) continue;
        Chunk c = this->inChunk(kind, p, chunk);
        uint64_t at = kind == kFirst ? a.link[p].placeAt : a.link[p].lateAt;
        storeLine(a.recv + at + c.at, line, c.bytes, in[p]);
      }
    }
  }

  __device__ void copyOwn(uint32_t chunk) const {
    Chunk c = this->ownChunk(chunk);
    const uint8_t *from = a.send + a.ownAt + c.at;
    uint8_t *to = a.recv + a.keepAt + c.at;
    if (from == to) return;
    for (uint32_t line = group(); line < linesOf(c.bytes); line += groups())
      storeLine(to, line, c.bytes, loadLine(from, line, c.bytes));
  }
};

#endif

/* Messages of a group with protocol LL: lines of 128 bytes that carry their own flag, written and
 * read by eight lanes of a warp in one access. No fence and no second look, so a message takes one
 * way over the link; 15/16 of its bandwidth. Eight lanes, a group, take line after line. */
#ifndef TUTTI_KERNELS_ALLPAIRS_MESSAGES_CUH_
#define TUTTI_KERNELS_ALLPAIRS_MESSAGES_CUH_

#include "kernels/allpairs_block.cuh"

constexpr uint32_t kLine = TUTTI_ALLPAIRS_LINE, kLinePayload = TUTTI_ALLPAIRS_LINE_PAYLOAD;
constexpr uint32_t kLLSlot = TUTTI_ALLPAIRS_LL_SLOT / kLine * kLinePayload;
constexpr uint32_t kLanes = 8;

/* ---- lines: this lane's pair of words of each ------------------------------------------------ */

__device__ inline uint32_t lineLane() {
  return threadIdx.x % kLanes;
}
__device__ inline uint32_t lineMask() {
  return 0xffu << (threadIdx.x & 24);
}
__device__ inline int32_t lineOffset(uint32_t line) {
  return (int32_t)(line * kLinePayload + lineLane() * 16);
}
/* Line by line from and to user memory of `bytes` at `at`. */
__device__ inline tuttiPair loadLine(const uint8_t *at, uint32_t bytes, uint32_t line) {
  int32_t left = (int32_t)bytes - lineOffset(line);
  tuttiPair v;
  v.x = loadWord(at + lineOffset(line), left);
  v.y = lineLane() < kLanes - 1 ? loadWord(at + lineOffset(line) + 8, left - 8) : 0;
  return v;
}
__device__ inline void storeLine(uint8_t *at, uint32_t bytes, uint32_t line, tuttiPair v) {
  int32_t left = (int32_t)bytes - lineOffset(line);
  storeWord(at + lineOffset(line), v.x, left);
  if (lineLane() < kLanes - 1) storeWord(at + lineOffset(line) + 8, v.y, left - 8);
}

/* A line is whole if its lanes store it, and load it, in one instruction. Nothing makes them: a
 * barrier of lanes does not bring together those that have gone different ways, and they have where
 * the user's memory is not aligned to words. So each asks. */
__device__ inline bool together() {
  return (__activemask() & lineMask()) == lineMask();
}
__device__ inline bool isFlagLane() {
  return lineLane() == kLanes - 1;
}
/* This lane's piece of a line, the flag's lane having the flag in v.y. */
__device__ inline void storePiece(uint8_t *at, tuttiPair v) {
  if (together()) {
    storePairVolatile(at, v);
    return;
  }
  if (!isFlagLane()) storePairVolatile(at, v);
  fenceSys();
  __syncwarp(lineMask());
  fenceSys();
  if (isFlagLane()) storePairVolatile(at, v);
}
/* Around loads of a line's pieces by lanes that are not together: that of the flag comes first. */
static __device__ __noinline__ void beforePieces() {
  if (isFlagLane()) return;
  __syncwarp(lineMask());
  fenceSys();
}
static __device__ __noinline__ void behindPieces() {
  if (!isFlagLane()) return;
  fenceSys();
  __syncwarp(lineMask());
}

class AllPairsMessages : Block<Plain<int64_t>, kLLSlot> {
public:
  __device__ AllPairsMessages(const tuttiAllPairsArgs &args, BlockState &state) : Block(state) {
    uint8_t *counts = args.counts; /* the one look into the constant cache */
    loadArgs(args, state);
    followEarly();
    loadCounts(counts, 0, threadIdx.x);
    __syncthreads();
    if (threadIdx.x < kPeers) count(threadIdx.x);
  }

  /* With several chunks, chunk i goes out before chunk i - 1 is taken. */
  __device__ void run() {
    uint32_t lag = a.loops > 1;
    for (uint32_t i = 0; i < a.loops + lag; i++) {
      if (i < a.loops) send(i);
      if (synchronize()) return;
      if (i < lag) continue;
      place(i - lag);
      if (i + 1 == a.loops + lag) return;
      if (threadIdx.x < (uint32_t)a.nlinks) s.limit[kFirst][threadIdx.x] = limit(threadIdx.x);
      if (synchronize()) return;
      giveBack(i - lag);
    }
  }

private:
  bool dead = false;

  __device__ bool synchronize() { return __syncthreads_or(dead); }
  __device__ static uint32_t group() { return threadIdx.x / kLanes; }
  __device__ static uint32_t groups() { return blockDim.x / kLanes; }
  __device__ static uint32_t linesOf(uint32_t bytes) {
    return (bytes + kLinePayload - 1) / kLinePayload;
  }
  __device__ uint8_t *slot(uint8_t *block, uint32_t column, uint32_t no) const {
    return block + TUTTI_ALLPAIRS_LL_AT + slotNo(kFirst, column, no) * TUTTI_ALLPAIRS_LL_SLOT;
  }

  /* Thread p: counts this kernel's messages now, and gives back what the last kernel took: at its
   * own end it would have waited for that to arrive. */
  __device__ void count(uint32_t p) const {
    if (p >= (uint32_t)a.nlinks) return;
    counts()->sent[blockIdx.x][kFirst][p] = s.sent[kFirst][p] + chunksOut(kFirst, p);
    counts()->taken[blockIdx.x][kFirst][p] = s.taken[kFirst][p] + chunksIn(kFirst, p);
    storeRelaxedSys32(&theirs(p)->head[blockIdx.x][kFirst][a.link[p].column], s.taken[kFirst][p]);
  }
  /* All threads have read chunk i. */
  __device__ void giveBack(uint32_t i) const {
    uint32_t p = threadIdx.x;
    if (p < (uint32_t)a.nlinks && i < chunksIn(kFirst, p))
      storeRelaxedSys32(&theirs(p)->head[blockIdx.x][kFirst][a.link[p].column],
                        s.taken[kFirst][p] + i + 1);
  }

  __device__ uint32_t limit(uint32_t p) const {
    return loadRelaxedSys32(&own()->head[blockIdx.x][kFirst][p]) + kDepth;
  }

  /* ---- messages line by line ---- */

  /* Sends a line of message `no` to p; false: given up. */
  __device__ bool sendLine(int p, uint32_t no, uint32_t line, tuttiPair v) {
    if ((int32_t)(s.limit[kFirst][p] - no) <= 0) awaitCredit(p, no);
    dead = __any_sync(lineMask(), dead);
    if (dead) return false;
    if (isFlagLane()) v.y = flagOut(p, no);
    storePiece(slot(a.link[p].block, a.link[p].column, no) + line * kLine + lineLane() * 16, v);
    return true;
  }
  __device__ __noinline__ void awaitCredit(int p, uint32_t no) {
    Wait wait;
    while (!dead && (int32_t)(limit(p) - no) <= 0)
      dead = wait.over(a, a.link[p].rank, 0, 0);
  }
  /* Waits for a line of a message from each link of `missing`, all looked for at once: their ways
   * overlap. False: given up. */
  __device__ bool takeLines(uint32_t chunk, uint32_t line, uint32_t missing, tuttiPair in[kPeers]) {
    Wait wait;
    while (missing) {
      const bool apart = !together();
      if (apart) beforePieces();
#pragma unroll
      for (int p = 0; p < kPeers; p++)
        if (missing >> p & 1)
          in[p] = loadPairVolatile(slot(a.block, p, s.taken[kFirst][p] + chunk) + line * kLine +
                                   lineLane() * 16);
      if (apart) behindPieces();
      int last = 0;
      uint64_t seen = 0;
#pragma unroll
      for (int p = 0; p < kPeers; p++) {
        if (!(missing >> p & 1)) continue;
        uint64_t there = __shfl_sync(lineMask(), in[p].y, kLanes - 1, kLanes);
        if (there == flagIn(p, s.taken[kFirst][p] + chunk)) {
          missing &= ~(1u << p);
        } else {
          last = p;
          seen = there;
        }
      }
      if (!missing) break;
      dead = wait.over(a, a.link[last].rank, flagIn(last, s.taken[kFirst][last] + chunk), seen);
      dead = __any_sync(lineMask(), dead);
      if (dead) return false;
    }
    return true;
  }

  /* ---- what a message takes ---- */

  __device__ void send(uint32_t i) {
    uint32_t most = 0;
    for (int p = 0; p < a.nlinks; p++)
      most = max(most, linesOf(outChunk(p, i).bytes));
    for (uint32_t u = group(); u < most * a.nlinks; u += groups()) {
      uint32_t p = u / most, line = u % most;
      Chunk c = outChunk(p, i);
      if (line >= linesOf(c.bytes)) continue;
      tuttiPair v = loadLine(a.link[p].out + c.at, c.bytes, line);
      if (!sendLine(p, s.sent[kFirst][p] + i, line, v)) return;
    }
  }

  __device__ void place(uint32_t chunk) {
    uint32_t most = 0;
    for (int p = 0; p < a.nlinks; p++)
      most = max(most, linesOf(inChunk(kFirst, p, chunk).bytes));
    for (uint32_t line = group(); line < most; line += groups()) {
      uint32_t wanted = 0;
      for (int p = 0; p < a.nlinks; p++)
        if (line < linesOf(inChunk(kFirst, p, chunk).bytes)) wanted |= 1u << p;
      tuttiPair in[kPeers];
      if (!takeLines(chunk, line, wanted, in)) return;
#pragma unroll
      for (int p = 0; p < kPeers; p++) {
        if (!(wanted >> p & 1)) continue;
        Chunk c = inChunk(kFirst, p, chunk);
        storeLine(a.link[p].place + c.at, c.bytes, line, in[p]);
      }
    }
  }
};

#endif

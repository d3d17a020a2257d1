/* Runs a tuttiExchange. A thread block takes its part of every message, in chunks of a slot, and
 * talks to the same block of the other GPUs only. When there are several chunks, the first exchange
 * is one chunk ahead of the combination and two ahead of the second exchange: while a chunk
 * crosses the link, others are reduced and copied. DEPTH is enough for that lead: a rank has at
 * most three messages under way that a neighbour one iteration behind has not taken. */
#include <cuda_runtime.h>

#include "kernels/exchange.h"
#include "kernels/ptx.cuh"
#include "kernels/reduce.cuh"

namespace {

constexpr int kThreads = TUTTI_EXCHANGE_THREADS;
constexpr int kPeers = TUTTI_EXCHANGE_PEERS;
constexpr uint32_t kDepth = TUTTI_EXCHANGE_DEPTH;
constexpr uint32_t kLine = TUTTI_EXCHANGE_LINE, kLinePayload = TUTTI_EXCHANGE_LINE_PAYLOAD;
constexpr uint32_t kLines = TUTTI_EXCHANGE_LL_SLOT / kLine; /* of a slot */
template <int PROTO>
constexpr uint32_t kSlot = PROTO == tuttiProtoLL ? kLines * kLinePayload : TUTTI_EXCHANGE_SIMPLE_SLOT;
/* Failed looks before a waiting thread looks at the clock and for an abort. */
constexpr uint32_t kLooks = 20000;
constexpr uint64_t kReportNs = 100000000;

struct Shared {
  uint32_t sent[kPeers], taken[kPeers], limit[kPeers];
};

struct Chunk {
  uint64_t at; /* in the message */
  uint32_t bytes;
};

template <int PROTO>
__device__ inline Chunk chunkOf(uint64_t bytes, uint64_t part, uint32_t i) {
  uint64_t from = blockIdx.x * part, to = from + part < bytes ? from + part : bytes;
  from += (uint64_t)i * kSlot<PROTO>;
  uint64_t left = from < to ? to - from : 0;
  return {from, (uint32_t)(left < kSlot<PROTO> ? left : kSlot<PROTO>)};
}

/* ---- waiting ---------------------------------------------------------------------------------
 */

/* One wait of one thread. */
struct Wait {
  uint32_t looks = 0;
  uint64_t since = 0, told = 0;

  /* After a failed look: true if the wait is to be given up. `seen` is the flag that is there. */
  __device__ __noinline__ bool slow(const tuttiExchangeArgs &a, int peer, uint64_t wanted, uint64_t seen) {
    looks = 0;
    tuttiExchangeMail *mail = a.mail;
    if (loadRelaxedSys32(&mail->abort)) return true;
    uint64_t now = nanoseconds();
    if (since == 0) since = told = now;
    bool disagrees = (uint32_t)seen == (uint32_t)wanted && seen != wanted;
    if (!disagrees && now - told < kReportNs) return false;
    told = now;
    mail->sig = a.sig;
    mail->peer = peer;
    mail->waitedMs = (uint32_t)((now - since) / 1000000);
    mail->disagrees = disagrees;
    fenceSys();
    atomicAdd_system(&mail->stalls, 1u);
    return false;
  }
  __device__ bool over(const tuttiExchangeArgs &a, int peer, uint64_t wanted, uint64_t seen) {
    return ++looks >= kLooks && slow(a, peer, wanted, seen);
  }
};

/* ---- user memory -----------------------------------------------------------------------------
 * At least aligned to its element; words and pairs where it allows, else piece by piece. */

__device__ __noinline__ uint64_t loadPieces(const uint8_t *at, uint32_t bytes) {
  uint64_t v = 0;
  if (((uintptr_t)at & 3) == 0 && bytes == 8)
    return *(const uint32_t *)at | (uint64_t)((const uint32_t *)at)[1] << 32;
  for (uint32_t i = 0; i < bytes; i++)
    v |= (uint64_t)at[i] << 8 * i;
  return v;
}
__device__ __noinline__ void storePieces(uint8_t *at, uint64_t v, uint32_t bytes) {
  if (((uintptr_t)at & 3) == 0 && bytes == 8) {
    ((uint32_t *)at)[0] = (uint32_t)v;
    ((uint32_t *)at)[1] = (uint32_t)(v >> 32);
    return;
  }
  for (uint32_t i = 0; i < bytes; i++)
    at[i] = (uint8_t)(v >> 8 * i);
}
/* The word at `at`, of which `left` bytes (possibly none, or more than 8) exist. */
__device__ inline uint64_t loadWord(const uint8_t *at, int32_t left) {
  if (left >= 8 && ((uintptr_t)at & 7) == 0) return *(const uint64_t *)at;
  return left > 0 ? loadPieces(at, left < 8 ? left : 8) : 0;
}
__device__ inline void storeWord(uint8_t *at, uint64_t v, int32_t left) {
  if (left >= 8 && ((uintptr_t)at & 7) == 0)
    *(uint64_t *)at = v;
  else if (left > 0)
    storePieces(at, v, left < 8 ? left : 8);
}
__device__ inline tuttiPair loadPair(const uint8_t *at, int32_t left) {
  if (left >= 16 && ((uintptr_t)at & 15) == 0) return loadPairStreaming(at);
  return {loadWord(at, left), loadWord(at + 8, left - 8)};
}
__device__ inline void storeUserPair(uint8_t *at, tuttiPair v, int32_t left) {
  if (left >= 16 && ((uintptr_t)at & 15) == 0) {
    storePair(at, v);
    return;
  }
  storeWord(at, v.x, left);
  storeWord(at + 8, v.y, left - 8);
}

/* ---- the operands of a pair ------------------------------------------------------------------
 */

template <typename T>
struct Operands {
  Word<T> x, y;
  bool any = false;

  __device__ void add(const tuttiExchangeArgs &a, tuttiPair p) {
    Word<T> px = Word<T>::unpack(p.x), py = Word<T>::unpack(p.y);
    if (any) {
      x.combine(px, a.op);
      y.combine(py, a.op);
    } else {
      x = px;
      y = py;
      any = true;
    }
  }
  __device__ void addOwn(const tuttiExchangeArgs &a, tuttiPair p, typename T::Value scalar) {
    if (!a.premul) {
      add(a, p);
      return;
    }
    Word<T> px = Word<T>::unpack(p.x), py = Word<T>::unpack(p.y);
    px.scale(scalar);
    py.scale(scalar);
    if (any) {
      x.combine(px, a.op);
      y.combine(py, a.op);
    } else {
      x = px;
      y = py;
      any = true;
    }
  }
  __device__ tuttiPair result(const tuttiExchangeArgs &a) {
    if (a.divide > 1) {
      x.divide(a.divide);
      y.divide(a.divide);
    }
    return {x.pack(), y.pack()};
  }
};

template <typename T>
__device__ typename T::Value premulScalar(const tuttiExchangeArgs &a) {
  using Value = typename T::Value;
  if (!a.premul) return Value();
  if (a.scalarAt) return T::get(*(const typename T::Element *)a.scalarAt);
  return (Value)0.5 == (Value)0 ? (Value)a.scalar.i : (Value)a.scalar.f;
}

/* ---- one thread block ------------------------------------------------------------------------
 */

template <typename T, int PROTO>
class Kernel {
 public:
  __device__ Kernel(const tuttiExchangeArgs &args, Shared &shared) : a(args), s(shared) {
    uint32_t p = threadIdx.x;
    if (p < (uint32_t)a.nlinks) {
      s.sent[p] = own()->sent[blockIdx.x][p];
      s.taken[p] = own()->taken[blockIdx.x][p];
      s.limit[p] = loadRelaxedSys32(&own()->head[blockIdx.x][p]) + kDepth;
    }
    scalar = premulScalar<T>(a);
    if (PROTO == tuttiProtoLL) ahead = loadFirst(group());
    __syncthreads();
    /* What the last kernel took: at its end it would have waited for this to arrive. */
    if (p < (uint32_t)a.nlinks) giveBack(p);
  }

  __device__ void run() {
    if (PROTO == tuttiProtoLL && a.loops == 1) {
      runOnce();
      return;
    }
    uint32_t lag = a.loops > 1;
    for (uint32_t i = 0; i < a.loops + 2 * lag; i++) {
      bool first = i < a.loops, middle = i >= lag && i - lag < a.loops, late = i >= 2 * lag;
      if (first) sendFirst(i);
      if (synchronize()) return; /* in place, what was sent may be overwritten from here on */
      if (PROTO == tuttiProtoSimple && first) publish(i, i, true);
      if (middle) a.combine ? combine(i, i - lag) : place(i - lag, true, 0);
      if (a.own && !a.combine && middle) copyOwn(i - lag);
      if (PROTO == tuttiProtoSimple && middle && a.combine) {
        if (synchronize()) return;
        publish(i, i - lag, false);
      }
      if (late) place(i - 2 * lag, false, lag);
      if (synchronize()) return;
      settle(i, lag);
    }
    finish(0, 0);
  }

 private:
  const tuttiExchangeArgs &a;
  Shared &s;
  typename T::Value scalar;
  tuttiPair ahead; /* LL: this thread's first piece of the first exchange */
  bool dead = false;

  /* One chunk: nothing to wait for but the lines. */
  __device__ void runOnce() {
    sendFirst(0);
    if (synchronize()) return;
    uint32_t p = threadIdx.x;
    if (p < (uint32_t)a.nlinks) finish(sentIn(p, 0, 0), takenIn(p, 0, 0));
    a.combine ? combine(0, 0) : place(0, true, 0);
    if (a.own && !a.combine) copyOwn(0);
    place(0, false, 0);
  }

  __device__ tuttiExchangeHead *own() const { return (tuttiExchangeHead *)a.block; }
  __device__ bool synchronize() { return __syncthreads_or(dead); }

  __device__ Chunk firstOut(int p, uint32_t i) const {
    if (i >= a.loops) return {0, 0};
    return chunkOf<PROTO>(a.link[p].outBytes, a.link[p].outPart, i);
  }
  __device__ Chunk firstIn(int p, uint32_t i) const {
    if (i >= a.loops) return {0, 0};
    return chunkOf<PROTO>(a.link[p].inBytes, a.link[p].inPart, i);
  }
  __device__ Chunk combined(uint32_t i) const {
    if (i >= a.loops) return {0, 0};
    return chunkOf<PROTO>(a.bytes, a.part, i);
  }
  __device__ Chunk lateIn(int p, uint32_t i) const {
    if (i >= a.loops) return {0, 0};
    return chunkOf<PROTO>(a.link[p].lateBytes, a.link[p].latePart, i);
  }

  /* Numbers within one iteration: a spread message follows the first exchange's, and so on. */
  __device__ uint32_t spreadNo(int p, uint32_t i) const { return s.sent[p] + (firstOut(p, i).bytes > 0); }
  __device__ uint32_t lateNo(int p, uint32_t i, uint32_t lag) const {
    return s.taken[p] + (firstIn(p, i + lag).bytes > 0);
  }
  __device__ uint64_t flagOut(int p, uint32_t no) const { return (uint64_t)a.link[p].outHash << 32 | (no + 1); }
  __device__ uint64_t flagIn(int p, uint32_t no) const { return (uint64_t)a.link[p].inHash << 32 | (no + 1); }

  __device__ static size_t slotNo(uint32_t no, uint32_t column, int columns) {
    return ((size_t)blockIdx.x * columns + column) * kDepth + no % kDepth;
  }
  __device__ uint8_t *slotAt(uint8_t *block, uint32_t column, uint32_t no) const {
    size_t slot = slotNo(no, column, a.nlinks);
    return PROTO == tuttiProtoLL ? block + TUTTI_EXCHANGE_LL_AT + slot * TUTTI_EXCHANGE_LL_SLOT
                                 : block + a.simpleAt + slot * TUTTI_EXCHANGE_SIMPLE_SLOT;
  }
  __device__ uint8_t *slotOut(int p, uint32_t no) const { return slotAt(a.link[p].block, a.link[p].column, no); }
  __device__ uint8_t *slotIn(int p, uint32_t no) const { return slotAt(a.block, p, no); }

  /* Waits until message `no` may be sent to p. */
  __device__ void credit(int p, uint32_t no) {
    if ((int32_t)(s.limit[p] - no) > 0) return;
    Wait wait;
    uint32_t head;
    while ((int32_t)((head = loadRelaxedSys32(&own()->head[blockIdx.x][p])) + kDepth - no) <= 0)
      if (wait.over(a, a.link[p].rank, 0, 0)) {
        dead = true;
        return;
      }
    s.limit[p] = head + kDepth; /* all threads write what they see: each is right */
  }

  /* ---- LL: a line is one access of eight lanes ---- */

  static constexpr uint32_t kLanes = 8;
  __device__ static uint32_t lane() { return threadIdx.x % kLanes; }
  __device__ static uint32_t group() { return threadIdx.x / kLanes; }
  __device__ static uint32_t groups() { return blockDim.x / kLanes; }
  __device__ static uint32_t groupMask() { return 0xffu << (threadIdx.x & 24); }
  __device__ static uint32_t linesOf(uint32_t bytes) { return (bytes + kLinePayload - 1) / kLinePayload; }

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
  __device__ void sendLine(uint8_t *slot, uint32_t line, tuttiPair v, uint64_t flag) const {
    if (lane() == kLanes - 1) v.y = flag;
    storePairVolatile(slot + line * kLine + lane() * 16, v);
  }
  __device__ bool lineThere(tuttiPair v, uint64_t flag) const {
    return __shfl_sync(groupMask(), v.y, kLanes - 1, kLanes) == flag;
  }
  __device__ tuttiPair takeLine(const uint8_t *slot, uint32_t line, uint64_t flag, int p) {
    const uint8_t *at = slot + line * kLine + lane() * 16;
    tuttiPair v = loadPairVolatile(at);
    Wait wait;
    while (!lineThere(v, flag)) {
      bool over = wait.over(a, a.link[p].rank, flag, __shfl_sync(groupMask(), v.y, kLanes - 1, kLanes));
      if (__any_sync(groupMask(), over)) {
        dead = true;
        break;
      }
      v = loadPairVolatile(at);
    }
    return v;
  }

  /* The lanes of a line go on or give up together. */
  __device__ bool groupCredit(int p, uint32_t no) {
    credit(p, no);
    dead = __any_sync(groupMask(), dead);
    return !dead;
  }

  __device__ uint32_t mostLinesOut(uint32_t i) const {
    uint32_t most = 0;
    for (int p = 0; p < a.nlinks; p++)
      most = max(most, linesOf(firstOut(p, i).bytes));
    return most;
  }
  /* Piece u of the first chunk. */
  __device__ tuttiPair loadFirst(uint32_t u) const {
    uint32_t most = mostLinesOut(0);
    if (u >= most * a.nlinks) return {0, 0};
    uint32_t p = u / most, line = u % most;
    Chunk c = firstOut(p, 0);
    return loadLine(a.send + a.link[p].outAt + c.at, line, c.bytes);
  }

  __device__ void sendFirstLL(uint32_t i) {
    uint32_t most = mostLinesOut(i);
    for (uint32_t u = group(); u < most * a.nlinks; u += groups()) {
      uint32_t p = u / most, line = u % most;
      Chunk c = firstOut(p, i);
      if (line >= linesOf(c.bytes)) continue;
      if (!groupCredit(p, s.sent[p])) return;
      tuttiPair v = i == 0 && u == group() ? ahead : loadLine(a.send + a.link[p].outAt + c.at, line, c.bytes);
      sendLine(slotOut(p, s.sent[p]), line, v, flagOut(p, s.sent[p]));
    }
  }

  /* A line of every operand, all looked for at once: their ways overlap. */
  __device__ bool takeLines(uint32_t line, tuttiPair in[kPeers]) {
    uint32_t missing = 0;
#pragma unroll
    for (int p = 0; p < kPeers; p++)
      if (p < a.nlinks && a.link[p].inBytes) missing |= 1u << p;
    Wait wait;
    while (missing) {
#pragma unroll
      for (int p = 0; p < kPeers; p++)
        if (missing >> p & 1)
          in[p] = loadPairVolatile(slotIn(p, s.taken[p]) + line * kLine + lane() * 16);
      int last = 0;
      uint64_t seen = 0;
#pragma unroll
      for (int p = 0; p < kPeers; p++) {
        if (!(missing >> p & 1)) continue;
        uint64_t there = __shfl_sync(groupMask(), in[p].y, kLanes - 1, kLanes);
        if (there == flagIn(p, s.taken[p])) {
          missing &= ~(1u << p);
        } else {
          last = p;
          seen = there;
        }
      }
      if (!missing) break;
      dead = wait.over(a, a.link[last].rank, flagIn(last, s.taken[last]), seen);
      dead = __any_sync(groupMask(), dead);
      if (dead) return false;
    }
    return true;
  }

  __device__ void combineLL(uint32_t i, uint32_t chunk) {
    Chunk c = combined(chunk);
    uint32_t lines = linesOf(c.bytes);
    for (uint32_t line = group(); line < lines; line += groups()) {
      tuttiPair in[kPeers], mine = {0, 0};
      if (a.own) mine = loadLine(a.send + a.ownAt + c.at, line, c.bytes);
      if (!takeLines(line, in)) return;
      Operands<T> sum;
#pragma unroll
      for (int p = 0; p <= kPeers; p++) {
        if (p == a.place && a.own) sum.addOwn(a, mine, scalar);
        if (p < kPeers && p < a.nlinks && a.link[p].inBytes) sum.add(a, in[p]);
      }
      tuttiPair v = sum.result(a);
      for (int p = 0; p < a.nlinks; p++) {
        if (!a.link[p].spread) continue;
        uint32_t no = spreadNo(p, i);
        if (!groupCredit(p, no)) return;
        sendLine(slotOut(p, no), line, v, flagOut(p, no));
      }
      if (a.keep) storeLine(a.recv + a.keepAt + c.at, line, c.bytes, v);
    }
  }

  __device__ void placeLL(uint32_t chunk, bool first, uint32_t lag) {
    uint32_t most = 0;
    for (int p = 0; p < a.nlinks; p++)
      most = max(most, linesOf(first ? firstIn(p, chunk).bytes : lateIn(p, chunk).bytes));
    for (uint32_t u = group(); u < most * a.nlinks; u += groups()) {
      uint32_t p = u / most, line = u % most;
      Chunk c = first ? firstIn(p, chunk) : lateIn(p, chunk);
      if (line >= linesOf(c.bytes)) continue;
      uint32_t no = first ? s.taken[p] : lateNo(p, chunk, lag);
      tuttiPair v = takeLine(slotIn(p, no), line, flagIn(p, no), p);
      if (dead) return;
      storeLine(a.recv + (first ? a.link[p].placeAt : a.link[p].lateAt) + c.at, line, c.bytes, v);
    }
  }

  /* ---- Simple: data, fence, flag ---- */

  static constexpr int kAhead = 4; /* pairs of one thread under way */

  __device__ static void copyChunk(uint8_t *to, const uint8_t *from, uint32_t bytes, bool slotSource, bool slotTarget) {
    for (uint32_t at = threadIdx.x * 16; at < bytes; at += blockDim.x * 16 * kAhead) {
      tuttiPair v[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; k++) {
        uint32_t o = at + k * blockDim.x * 16;
        if (o < bytes) v[k] = slotSource ? loadPairVolatile(from + o) : loadPair(from + o, bytes - o);
      }
#pragma unroll
      for (int k = 0; k < kAhead; k++) {
        uint32_t o = at + k * blockDim.x * 16;
        if (o >= bytes) break;
        if (slotTarget)
          storePair(to + o, v[k]);
        else
          storeUserPair(to + o, v[k], bytes - o);
      }
    }
  }

  /* Each rank starts with the one behind it, so that no rank is everybody's target at once. */
  __device__ int rotated(int k) const {
    int p = a.place + k;
    return p < a.nlinks ? p : p - a.nlinks;
  }

  __device__ void sendFirstSimple(uint32_t i) {
    for (int k = 0; k < a.nlinks; k++) {
      int p = rotated(k);
      Chunk c = firstOut(p, i);
      if (!c.bytes) continue;
      credit(p, s.sent[p]);
      if (dead) return;
      copyChunk(slotOut(p, s.sent[p]), a.send + a.link[p].outAt + c.at, c.bytes, false, true);
    }
  }

  /* Tells the peers of this iteration's first (or spread) messages, after a synchronization. */
  __device__ void publish(uint32_t i, uint32_t chunk, bool first) {
    uint32_t p = threadIdx.x;
    if (p >= (uint32_t)a.nlinks) return;
    bool sent = first ? firstOut(p, i).bytes > 0 : a.link[p].spread && combined(chunk).bytes > 0;
    if (!sent) return;
    uint32_t no = first ? s.sent[p] : spreadNo(p, i);
    fenceSys();
    tuttiExchangeHead *theirs = (tuttiExchangeHead *)a.link[p].block;
    storeRelaxedSys(&theirs->flag[blockIdx.x][a.link[p].column][no % kDepth], flagOut(p, no));
  }

  /* Thread p waits for message `no` of link p if there is one; all synchronize. */
  __device__ bool await(bool mine, uint32_t no) {
    uint32_t p = threadIdx.x;
    if (mine) {
      const uint64_t *at = &own()->flag[blockIdx.x][p][no % kDepth];
      uint64_t seen, flag = flagIn(p, no);
      Wait wait;
      while ((seen = loadAcquireSys(at)) != flag)
        if (wait.over(a, a.link[p].rank, flag, seen)) {
          dead = true;
          break;
        }
    }
    return !synchronize();
  }

  __device__ void combineSimple(uint32_t i, uint32_t chunk) {
    Chunk c = combined(chunk);
    uint32_t q = threadIdx.x;
    bool mine = q < (uint32_t)a.nlinks && a.link[q].inBytes && c.bytes;
    if (!await(mine, mine ? s.taken[q] : 0)) return;
    for (int p = 0; p < a.nlinks; p++)
      if (a.link[p].spread && c.bytes) credit(p, spreadNo(p, i));
    if (dead) return;
    for (uint32_t at = threadIdx.x * 16; at < c.bytes; at += blockDim.x * 16)
      combinePair(i, c, at);
  }

  __device__ void combinePair(uint32_t i, Chunk c, uint32_t at) {
    tuttiPair in[kPeers], mine = {0, 0};
    int32_t left = (int32_t)(c.bytes - at);
#pragma unroll
    for (int p = 0; p < kPeers; p++)
      if (p < a.nlinks && a.link[p].inBytes) in[p] = loadPairVolatile(slotIn(p, s.taken[p]) + at);
    if (a.own) mine = loadPair(a.send + a.ownAt + c.at + at, left);
    Operands<T> sum;
#pragma unroll
    for (int p = 0; p <= kPeers; p++) {
      if (p == a.place && a.own) sum.addOwn(a, mine, scalar);
      if (p < kPeers && p < a.nlinks && a.link[p].inBytes) sum.add(a, in[p]);
    }
    tuttiPair v = sum.result(a);
    for (int k = 0; k < a.nlinks; k++) {
      int p = rotated(k);
      if (a.link[p].spread) storePair(slotOut(p, spreadNo(p, i)) + at, v);
    }
    if (a.keep) storeUserPair(a.recv + a.keepAt + c.at + at, v, left);
  }

  __device__ void placeSimple(uint32_t chunk, bool first, uint32_t lag) {
    uint32_t q = threadIdx.x;
    bool mine = q < (uint32_t)a.nlinks && (first ? firstIn(q, chunk) : lateIn(q, chunk)).bytes;
    if (!await(mine, !mine ? 0 : first ? s.taken[q] : lateNo(q, chunk, lag))) return;
    for (int p = 0; p < a.nlinks; p++) {
      Chunk c = first ? firstIn(p, chunk) : lateIn(p, chunk);
      uint32_t no = first ? s.taken[p] : lateNo(p, chunk, lag);
      if (c.bytes)
        copyChunk(a.recv + (first ? a.link[p].placeAt : a.link[p].lateAt) + c.at, slotIn(p, no), c.bytes, true, false);
    }
  }

  /* ---- both ---- */

  __device__ void sendFirst(uint32_t i) {
    PROTO == tuttiProtoLL ? sendFirstLL(i) : sendFirstSimple(i);
  }
  __device__ void combine(uint32_t i, uint32_t chunk) {
    PROTO == tuttiProtoLL ? combineLL(i, chunk) : combineSimple(i, chunk);
  }
  __device__ void place(uint32_t chunk, bool first, uint32_t lag) {
    PROTO == tuttiProtoLL ? placeLL(chunk, first, lag) : placeSimple(chunk, first, lag);
  }
  __device__ void copyOwn(uint32_t chunk) {
    Chunk c = combined(chunk);
    const uint8_t *from = a.send + a.ownAt + c.at;
    uint8_t *to = a.recv + a.keepAt + c.at;
    if (from != to) copyChunk(to, from, c.bytes, false, false);
  }

  /* Messages of iteration i to and from link p. */
  __device__ uint32_t sentIn(int p, uint32_t i, uint32_t lag) const {
    uint32_t n = firstOut(p, i).bytes > 0;
    return n + (i >= lag && a.link[p].spread && combined(i - lag).bytes > 0);
  }
  __device__ uint32_t takenIn(int p, uint32_t i, uint32_t lag) const {
    uint32_t n = i >= lag && firstIn(p, i - lag).bytes > 0;
    return n + (i >= 2 * lag && lateIn(p, i - 2 * lag).bytes > 0);
  }
  __device__ void giveBack(int p) const {
    tuttiExchangeHead *theirs = (tuttiExchangeHead *)a.link[p].block;
    storeRelaxedSys32(&theirs->head[blockIdx.x][a.link[p].column], s.taken[p]);
  }

  /* Counts the iteration's messages and gives the slots back, after a synchronization; those of the
   * last iteration are left to the next kernel. */
  __device__ void settle(uint32_t i, uint32_t lag) {
    uint32_t p = threadIdx.x;
    if (p < (uint32_t)a.nlinks) {
      s.sent[p] += sentIn(p, i, lag);
      uint32_t taken = takenIn(p, i, lag);
      s.taken[p] += taken;
      if (taken && i + 1 < a.loops + 2 * lag) giveBack(p);
    }
    __syncthreads();
  }

  __device__ void finish(uint32_t sent, uint32_t taken) {
    uint32_t p = threadIdx.x;
    if (p >= (uint32_t)a.nlinks) return;
    own()->sent[blockIdx.x][p] = s.sent[p] + sent;
    own()->taken[blockIdx.x][p] = s.taken[p] + taken;
  }
};

template <typename T, int PROTO>
__global__ void __launch_bounds__(kThreads)
    exchangeKernel(const __grid_constant__ tuttiExchangeArgs args) {
  __shared__ Shared shared;
  Kernel<T, PROTO>(args, shared).run();
}

#define KERNELS(T)                                                                                 \
  { (const void *)exchangeKernel<T, tuttiProtoLL>, (const void *)exchangeKernel<T, tuttiProtoSimple> }
/* By tuttiDataType_t. */
const void *const kernels[tuttiNumTypes][2] = {
    KERNELS(Plain<int8_t>),
    KERNELS(Plain<uint8_t>),
    KERNELS(Plain<int32_t>),
    KERNELS(Plain<uint32_t>),
    KERNELS(Plain<int64_t>),
    KERNELS(Plain<uint64_t>),
    KERNELS(Float16),
    KERNELS(Float32),
    KERNELS(Float64),
    KERNELS(Bfloat16),
    KERNELS(E4m3),
    KERNELS(E5m2),
};

} // namespace

extern "C" int tuttiExchangeLaunch(const tuttiExchangeArgs *args, tuttiDataType_t type, int proto,
                                   int nblocks, int nthreads, tuttiStream_t stream) {
  void *params[] = {(void *)args};
  return cudaLaunchKernel(kernels[type][proto], dim3(nblocks), dim3(nthreads), params, 0, stream);
}

extern "C" int tuttiExchangeLoad(void) {
  for (const auto &row : kernels)
    for (const void *kernel : row) {
      cudaFuncAttributes attributes;
      cudaError_t err = cudaFuncGetAttributes(&attributes, kernel);
      if (err != cudaSuccess) return err;
    }
  return cudaSuccess;
}

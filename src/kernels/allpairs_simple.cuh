/* All pairs with protocol Simple: data into the neighbour's slot, a fence, then a flag. Full
 * bandwidth of the link.
 *
 * Nothing but data flow orders the warps of a block. The workers move data, each warp the same part
 * of every chunk, and go on without waiting for each other. One warp publishes: when all workers
 * have written a message it fences and sets the flag in the neighbour's memory. One warp polls: it
 * tells the workers which messages have come and how many they may send, and gives slots back. So
 * the fence and the way over the link are hidden behind the chunks that follow, as far as DEPTH
 * goes. A warp sends chunk i before it combines chunk i - 1 and places what was spread of chunk
 * i - 2; that a rank is never more than three messages of a kind ahead of a neighbour one iteration
 * behind is why DEPTH is enough. (Warps that only send beside warps that only take were slower.)
 *
 * Where the receiver's buffer is a window, it says so at first, and large messages go right there
 * instead of into slots: the same flags and credits, and nothing to place.
 *
 * Staged, slots are in the sender's block. What goes to all others is written once, to slots of its
 * own and with numbers of its own, which are the same for all peers. */
#ifndef TUTTI_KERNELS_ALLPAIRS_SIMPLE_CUH_
#define TUTTI_KERNELS_ALLPAIRS_SIMPLE_CUH_

#include "kernels/allpairs_block.cuh"

constexpr uint32_t kWorkers = TUTTI_ALLPAIRS_THREADS;
constexpr uint32_t kWorkerWarps = kWorkers / 32;
constexpr uint32_t kSimpleThreads = TUTTI_ALLPAIRS_SIMPLE_THREADS;
static_assert(kSimpleThreads == kWorkers + 64, "and two warps that talk to the neighbours");
constexpr int kAhead = 4;    /* pairs of one thread under way */
constexpr int kTogether = 2; /* the same of each operand; more cost registers */

struct SimpleState : BlockState {
  uint32_t ready[TUTTI_ALLPAIRS_KINDS][kPeers]; /* messages below it have come */
  /* Warps that are done with the message in a slot, going out and coming in. */
  uint32_t written[TUTTI_ALLPAIRS_KINDS][kPeers][kDepth];
  uint32_t read[TUTTI_ALLPAIRS_KINDS][kPeers][kDepth];
  uint8_t *direct[TUTTI_ALLPAIRS_KINDS][kPeers]; /* where the peer wants messages; NULL: slots */
  uint8_t *out[TUTTI_ALLPAIRS_KINDS][kPeers];    /* slots of messages to the peer, and from it */
  uint8_t *in[TUTTI_ALLPAIRS_KINDS][kPeers];
  uint32_t dead; /* all give up */
};

template <typename T> class AllPairsSimple : Block<T> {
  using Base = Block<T>;
  using Base::a;

public:
  __device__ AllPairsSimple(const tuttiAllPairsArgs &args, SimpleState &state)
      : Base(state), s(state) {
    uint8_t *counts = args.counts;
    uint32_t shared = args.shared;
    loadArgs(args, state);
    followEarly();
    this->loadCounts(counts, shared, threadIdx.x);
    for (uint32_t i = threadIdx.x; i < sizeof(s.written) / 4; i += blockDim.x)
      (&s.written[0][0][0])[i] = (&s.read[0][0][0])[i] = 0;
    if (threadIdx.x == 0) s.dead = 0;
    __syncthreads();
    if (threadIdx.x < TUTTI_ALLPAIRS_KINDS * kPeers) start(threadIdx.x);
    __syncthreads();
  }

  __device__ void run() {
    if (threadIdx.x < kWorkers)
      work();
    else if (threadIdx.x < kWorkers + 32)
      publish();
    else
      poll();
  }

private:
  SimpleState &s;

  /* Thread (kind, p): messages to a peer that has yet to say where it wants them have no credit. */
  __device__ void start(uint32_t thread) {
    uint32_t k = thread / kPeers, p = thread % kPeers;
    s.ready[k][p] = s.taken[k][p];
    s.direct[k][p] = nullptr;
    if (p >= (uint32_t)a.nlinks) return;
    if (shared(k) || a.staged) {
      s.out[k][p] = slots(a.block, k, shared(k) ? a.nlinks : p);
      s.in[k][p] = slots(a.link[p].block, k, shared(k) ? a.nlinks : a.link[p].column);
    } else {
      s.out[k][p] = slots(a.link[p].block, k, a.link[p].column);
      s.in[k][p] = slots(a.block, k, p);
    }
    const tuttiAllPairsFlow &f = a.flow[p];
    if (f.asks[k] && this->chunksOut(k, p)) s.limit[k][p] = s.sent[k][p];
    if (f.tells[k] && this->chunksIn(k, p))
      storePairVolatile(&this->theirs(p)->open[blockIdx.x][k][a.link[p].column],
                        {this->flagIn(p, s.taken[k][p]), f.where[k]});
  }

  __device__ bool shared(int kind) const { return a.shared >> kind & 1; }
  /* The row of its counts. */
  __device__ int row(int kind) const { return shared(kind) ? kToAll : kind; }
  __device__ uint8_t *slots(uint8_t *block, int kind, uint32_t column) const {
    return block + a.simpleAt + this->slotNo(kind, column, 0) * TUTTI_ALLPAIRS_SIMPLE_SLOT;
  }
  /* Where chunk i, which begins at `at` of all that is sent to p, goes. */
  __device__ uint8_t *destination(int kind, int p, uint32_t i, uint64_t at) const {
    uint8_t *direct = s.direct[kind][p];
    uint32_t no = s.sent[kind][p] + i;
    return direct ? direct + at : s.out[kind][p] + no % kDepth * TUTTI_ALLPAIRS_SIMPLE_SLOT;
  }
  /* Where chunk i from p is. */
  __device__ uint8_t *slotIn(int kind, int p, uint32_t i) const {
    uint32_t no = s.taken[kind][p] + i;
    return s.in[kind][p] + no % kDepth * TUTTI_ALLPAIRS_SIMPLE_SLOT;
  }
  /* Each rank starts with the one behind it, so that no rank is everybody's target at once. */
  __device__ int rotated(int k) const {
    int p = a.place + k;
    return p < a.nlinks ? p : p - a.nlinks;
  }

  /* ---- workers ---- */

  /* Until *count is past message `no`; false: given up. */
  __device__ bool await(const uint32_t *count, uint32_t no) const {
    while ((int32_t)(loadAcquireBlock(count) - no) <= 0)
      if (*(volatile uint32_t *)&s.dead) return false;
    return true;
  }
  /* This warp is done with a message. */
  __device__ void done(uint32_t *count) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) addReleaseBlock(count, 1);
  }

  /* Whole pairs, which nearly all copies are of, apart: instructions are what a copy costs. */
  template <bool FROM_SLOT>
  __device__ void copyChunk(uint8_t *to, const uint8_t *from, uint32_t bytes) const {
    bool odd = (((uintptr_t)to | (uintptr_t)from | bytes) & 15) != 0;
    if (odd || (!FROM_SLOT && a.premul))
      copyPieces<FROM_SLOT>(to, from, bytes);
    else
      copyPairs<FROM_SLOT>(to, from, bytes);
  }
  template <bool FROM_SLOT>
  __device__ static void copyPairs(uint8_t *to, const uint8_t *from, uint32_t bytes) {
    for (uint32_t at = threadIdx.x * 16; at < bytes; at += kWorkers * 16 * kAhead) {
      tuttiPair v[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; k++) {
        uint32_t o = at + k * kWorkers * 16;
        if (o < bytes) v[k] = FROM_SLOT ? loadPairVolatile(from + o) : loadPairStreaming(from + o);
      }
#pragma unroll
      for (int k = 0; k < kAhead; k++) {
        uint32_t o = at + k * kWorkers * 16;
        if (o < bytes) storePair(to + o, v[k]);
      }
    }
  }
  template <bool FROM_SLOT>
  __device__ void copyPieces(uint8_t *to, const uint8_t *from, uint32_t bytes) const {
    for (uint32_t at = threadIdx.x * 16; at < bytes; at += kWorkers * 16) {
      tuttiPair v =
          FROM_SLOT ? loadPairVolatile(from + at) : this->operand(loadPair(from + at, bytes - at));
      storeUserPair(to + at, v, bytes - at);
    }
  }

  __device__ void work() {
    for (uint32_t i = 0; i < a.loops + 2; i++) {
      if (i < a.loops) {
        if (!send(i)) return;
        if (a.own && !a.combine) copyOwn(i);
      }
      if (i >= 1 && i - 1 < a.loops && !(a.combine ? combine(i - 1) : place(kFirst, i - 1))) return;
      if (i >= 2 && !place(kLate, i - 2)) return;
    }
  }

  __device__ bool mayPublish(uint32_t i) const {
    for (int p = 0; p < a.nlinks; p++)
      if (this->outChunk(p, i).bytes && !await(&s.limit[kFirst][p], s.sent[kFirst][p] + i))
        return false;
    return true;
  }
  __device__ bool send(uint32_t i) {
    bool once = shared(kFirst);
    if (once && !mayPublish(i)) return false;
    for (int k = 0; k < a.nlinks; k++) {
      int p = rotated(k);
      Chunk c = this->outChunk(p, i);
      uint32_t no = s.sent[kFirst][p] + i;
      if (!c.bytes) continue;
      if (!await(&s.limit[kFirst][p], no)) return false;
      const uint8_t *from = a.link[p].out + c.at;
      if (!once || k == 0) {
        copyChunk<false>(destination(kFirst, p, i, c.at), from, c.bytes);
        if (a.mirror) copyChunk<false>((uint8_t *)from + a.mirror, from, c.bytes);
      }
      done(&s.written[kFirst][p][no % kDepth]);
    }
    return true;
  }

  __device__ bool combine(uint32_t i) {
    Chunk c = this->ownChunk(i);
    if (!c.bytes) return true;
    for (int p = 0; p < a.nlinks; p++) {
      if ((a.operands >> p & 1) && !await(&s.ready[kFirst][p], s.taken[kFirst][p] + i))
        return false;
      if ((a.spreads >> p & 1) && !await(&s.limit[kLate][p], s.sent[kLate][p] + i)) return false;
    }
    for (uint32_t at = threadIdx.x * 16; at < c.bytes; at += kWorkers * 16 * kTogether)
      combinePairs(i, c, at);
    for (int p = 0; p < a.nlinks; p++) {
      if (a.operands >> p & 1) done(&s.read[kFirst][p][(s.taken[kFirst][p] + i) % kDepth]);
      if (a.spreads >> p & 1) done(&s.written[kLate][p][(s.sent[kLate][p] + i) % kDepth]);
    }
    return true;
  }

  /* The operand q in order of rank. */
  __device__ void loadOperand(tuttiPair v[kTogether], int q, uint32_t i, Chunk c, uint32_t at) {
    bool own = q == a.place;
    const uint8_t *from = own ? a.operand + c.at : slotIn(kFirst, q - (q > a.place), i);
#pragma unroll
    for (int k = 0; k < kTogether; k++) {
      uint32_t o = at + k * kWorkers * 16;
      if (o >= c.bytes) break;
      v[k] = own ? this->operand(loadPair(from + o, c.bytes - o)) : loadPairVolatile(from + o);
    }
  }
  __device__ void combinePairs(uint32_t i, Chunk c, uint32_t at) {
    uint32_t before = (1u << a.place) - 1;
    uint32_t left = (a.operands & before) | a.own << a.place | (a.operands & ~before) << 1;
    tuttiPair now[kTogether], next[kTogether];
    Operands<T> sum[kTogether];
    const uint64_t turned = turnedBits<T>(a);
    loadOperand(next, __ffs(left) - 1, i, c, at);
    while (left) { /* the next operand is under way while this one is added */
      left &= left - 1;
#pragma unroll
      for (int k = 0; k < kTogether; k++)
        now[k] = next[k];
      if (left) loadOperand(next, __ffs(left) - 1, i, c, at);
#pragma unroll
      for (int k = 0; k < kTogether; k++)
        sum[k].add(a.op, now[k], turned);
    }
#pragma unroll
    for (int k = 0; k < kTogether; k++) {
      uint32_t o = at + k * kWorkers * 16;
      if (o >= c.bytes) break;
      tuttiPair v = sum[k].result(a.divide, a.isUnsigned, turned);
      for (int r = 0; r < a.nlinks; r++) {
        int p = rotated(r);
        if (!(a.spreads >> p & 1)) continue;
        storeUserPair(destination(kLate, p, i, c.at) + o, v, c.bytes - o);
        if (shared(kLate)) break;
      }
      if (a.keep) storeUserPair(a.result + c.at + o, v, c.bytes - o);
    }
  }

  __device__ bool place(int kind, uint32_t i) {
    for (int k = 0; k < a.nlinks; k++) {
      int p = a.nlinks - 1 - rotated(k); /* roughly in the order in which they come */
      Chunk c = this->inChunk(kind, p, i);
      uint32_t no = s.taken[kind][p] + i;
      if (!c.bytes || a.flow[p].where[kind]) continue;
      if (!await(&s.ready[kind][p], no)) return false;
      uint8_t *to = kind == kFirst ? a.link[p].place : a.link[p].late;
      copyChunk<true>(to + c.at, slotIn(kind, p, i), c.bytes);
      done(&s.read[kind][p][no % kDepth]);
    }
    return true;
  }

  __device__ void copyOwn(uint32_t i) const {
    Chunk c = this->ownChunk(i);
    const uint8_t *from = a.operand + c.at;
    uint8_t *to = a.result + c.at;
    if (from != to) copyChunk<false>(to, from, c.bytes);
  }

  /* ---- the two warps that talk to the neighbours; lane (kind, p) ---- */

  struct Lane {
    uint32_t kind, row, p, next = 0, end = 0;
    bool used = false;
  };
  __device__ Lane lane() const {
    uint32_t l = threadIdx.x % 32;
    uint32_t kind = l / kPeers;
    Lane x;
    x.kind = kind;
    x.row = (uint32_t)row((int)kind);
    x.p = l % kPeers;
    x.used = l < TUTTI_ALLPAIRS_KINDS * kPeers && x.p < (uint32_t)a.nlinks;
    return x;
  }

  __device__ void publish() {
    Lane x = lane();
    if (x.used) {
      x.next = s.sent[x.kind][x.p];
      x.end = x.next + this->chunksOut(x.kind, x.p);
    }
    while (__any_sync(~0u, x.next != x.end)) {
      bool whole = x.next != x.end &&
                   loadAcquireBlock(&s.written[x.kind][x.p][x.next % kDepth]) == kWorkerWarps;
      if (__any_sync(~0u, whole)) fenceSys();
      if (whole) {
        storeReleaseBlock(&s.written[x.kind][x.p][x.next % kDepth], 0);
        storeRelaxedSys(
            &this->theirs(x.p)->flag[blockIdx.x][x.row][a.link[x.p].column][x.next % kDepth],
            this->flagOut(x.p, x.next));
        x.next++;
      }
      if (*(volatile uint32_t *)&s.dead) return;
    }
    if (x.used) this->counts()->sent[blockIdx.x][x.row][x.p] = x.end;
  }

  /* Lane (kind, p) of the polling warp. */
  struct Poll {
    uint32_t seen = 0, taken = 0,
             end = 0; /* messages that have come, were given back, at the end */
    uint32_t credit = 0, need = 0,
             first = 0;             /* messages below it may be sent, at the end, now first */
    bool asks = false;              /* has to hear where the peer wants them */
    uint64_t wanted = 0, there = 0; /* the flag that it waits for, what is in its place */
  };

  /* Each looks for one thing and returns whether it has come. */
  __device__ bool opened(const Lane &x, Poll &w) {
    if (!w.asks) return false;
    tuttiPair open = loadPairVolatile(&this->own()->open[blockIdx.x][x.kind][x.p]);
    w.wanted = this->flagOut(x.p, w.first);
    w.there = open.x;
    if (w.there != w.wanted) return false;
    if (open.y)
      atomicExch_block((unsigned long long *)&s.direct[x.kind][x.p],
                       (uintptr_t)this->own()->window[(open.y >> 48) - 1][x.p] +
                           (open.y & (((uint64_t)1 << 48) - 1)));
    w.asks = false;
    return true;
  }
  __device__ bool credited(const Lane &x, Poll &w) {
    if (w.asks || (int32_t)(w.credit - w.need) >= 0) return false;
    uint32_t limit = loadRelaxedSys32(&this->own()->head[blockIdx.x][x.row][x.p]) + kDepth;
    if (limit == w.credit) return false;
    storeReleaseBlock(&s.limit[x.kind][x.p], w.credit = limit);
    return true;
  }
  __device__ bool arrived(const Lane &x, Poll &w) {
    if (w.seen == w.end) return false;
    w.wanted = this->flagIn(x.p, w.seen);
    w.there = loadAcquireSys(&this->own()->flag[blockIdx.x][x.row][x.p][w.seen % kDepth]);
    if (w.there != w.wanted) return false;
    storeReleaseBlock(&s.ready[x.kind][x.p], ++w.seen);
    return true;
  }
  __device__ bool givenBack(const Lane &x, Poll &w) {
    if (w.taken == w.seen) return false;
    uint32_t *read = &s.read[x.kind][x.p][w.taken % kDepth];
    if (!a.flow[x.p].where[x.kind]) {
      if (loadAcquireBlock(read) != kWorkerWarps) return false;
      storeReleaseBlock(read, 0);
    }
    w.taken++;
    storeRelaxedSys32(&this->theirs(x.p)->head[blockIdx.x][x.row][a.link[x.p].column], w.taken);
    return true;
  }

  __device__ void poll() {
    Lane x = lane();
    Poll w;
    if (x.used) {
      uint32_t chunks = this->chunksOut(x.kind, x.p);
      w.seen = w.taken = s.taken[x.kind][x.p];
      w.end = w.taken + this->chunksIn(x.kind, x.p);
      w.first = s.sent[x.kind][x.p];
      w.need = w.first + chunks;
      w.credit = s.limit[x.kind][x.p];
      w.asks = a.flow[x.p].asks[x.kind] && chunks;
    }
    Wait wait;
    for (;;) {
      bool waits = w.asks || w.taken != w.end || (int32_t)(w.credit - w.need) < 0;
      if (!__any_sync(~0u, waits)) break;
      bool moved = arrived(x, w);
      moved |= opened(x, w);
      moved |= credited(x, w);
      moved |= givenBack(x, w);
      if (moved) wait = Wait();
      if (waits && !moved && wait.over(a, a.link[x.p].rank, w.wanted, w.there)) s.dead = 1;
      __syncwarp();
      if (*(volatile uint32_t *)&s.dead) return;
    }
    if (!x.used) return;
    this->counts()->taken[blockIdx.x][x.row][x.p] = w.end;
    /* For the next kernel, which would have to ask the host's memory. */
    if (a.staged) this->counts()->head[blockIdx.x][x.row][x.p] = w.credit - kDepth;
  }
};

namespace {

template <typename T>
__global__ void __launch_bounds__(kSimpleThreads)
    allPairsSimple(const __grid_constant__ tuttiAllPairsArgs args) {
  __shared__ SimpleState state;
  AllPairsSimple<T>(args, state).run();
}

} // namespace

#endif

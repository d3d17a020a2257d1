/* The exchange with protocol Simple: data into the neighbour's slot, a fence, then a flag. Full
 * bandwidth of the link.
 *
 * Nothing but data flow orders the warps of a block. The workers move data, each warp the same part
 * of every chunk, and go on without waiting for each other. One warp publishes: when all workers
 * have written a message it fences and sets the flag in the neighbour's memory. One warp polls: it
 * tells the workers which messages have come and how many they may send, and gives slots back. So
 * the fence and the way over the link are hidden behind the chunks that follow, as far as DEPTH
 * goes. A warp sends chunk i before it combines chunk i - 1 and places what was spread of chunk
 * i - 2; that a rank is never more than three messages of a kind ahead of a neighbour one iteration
 * behind is why DEPTH is enough. */
#ifndef TUTTI_KERNELS_EXCHANGE_SIMPLE_CUH_
#define TUTTI_KERNELS_EXCHANGE_SIMPLE_CUH_

#include "kernels/exchange_block.cuh"

constexpr uint32_t kWorkers = TUTTI_EXCHANGE_THREADS;
constexpr uint32_t kWorkerWarps = kWorkers / 32;
constexpr uint32_t kSimpleThreads = kWorkers + 64;
constexpr int kAhead = 4; /* pairs of one thread under way */

struct SimpleState : BlockState {
  uint32_t ready[TUTTI_EXCHANGE_KINDS][kPeers]; /* messages below it have come */
  /* Worker warps that are done with the message in a slot, going out and coming in. */
  uint32_t written[TUTTI_EXCHANGE_KINDS][kPeers][kDepth];
  uint32_t read[TUTTI_EXCHANGE_KINDS][kPeers][kDepth];
  uint32_t dead; /* all give up */
};

template <typename T> class ExchangeSimple : Block<T, TUTTI_EXCHANGE_SIMPLE_SLOT> {
  using Base = Block<T, TUTTI_EXCHANGE_SIMPLE_SLOT>;
  using Base::a;

public:
  __device__ ExchangeSimple(const tuttiExchangeArgs &args, SimpleState &state)
      : Base(state), s(state) {
    uint8_t *block = args.block;
    loadArgs(args, state);
    this->loadCounts(block, threadIdx.x);
    for (uint32_t i = threadIdx.x; i < sizeof(s.written) / 4; i += blockDim.x)
      (&s.written[0][0][0])[i] = (&s.read[0][0][0])[i] = 0;
    if (threadIdx.x == 0) s.dead = 0;
    __syncthreads();
    if (threadIdx.x < TUTTI_EXCHANGE_KINDS * kPeers)
      (&s.ready[0][0])[threadIdx.x] = (&s.taken[0][0])[threadIdx.x];
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

  __device__ uint8_t *slot(uint8_t *block, int kind, uint32_t column, uint32_t no) const {
    return block + a.simpleAt + this->slotNo(kind, column, no) * TUTTI_EXCHANGE_SIMPLE_SLOT;
  }
  __device__ uint8_t *slotOut(int kind, int p, uint32_t no) const {
    return slot(a.link[p].block, kind, a.link[p].column, no);
  }
  __device__ uint8_t *slotIn(int kind, int p, uint32_t no) const {
    return slot(a.block, kind, p, no);
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

  template <bool FROM_SLOT>
  __device__ void copyChunk(uint8_t *to, const uint8_t *from, uint32_t bytes) const {
    for (uint32_t at = threadIdx.x * 16; at < bytes; at += kWorkers * 16 * kAhead) {
      tuttiPair v[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; k++) {
        uint32_t o = at + k * kWorkers * 16;
        if (o < bytes)
          v[k] = FROM_SLOT ? loadPairVolatile(from + o) : loadPair(from + o, bytes - o);
      }
#pragma unroll
      for (int k = 0; k < kAhead; k++) {
        uint32_t o = at + k * kWorkers * 16;
        if (o >= bytes) break;
        if (FROM_SLOT)
          storeUserPair(to + o, v[k], bytes - o);
        else
          storePair(to + o, this->operand(v[k]));
      }
    }
  }

  __device__ void work() {
    for (uint32_t i = 0; i < a.loops + 2; i++) {
      if (i < a.loops && !sendFirst(i)) return;
      if (i >= 1 && i - 1 < a.loops) {
        if (!(a.combine ? combine(i - 1) : place(kFirst, i - 1))) return;
        if (a.own && !a.combine) copyOwn(i - 1);
      }
      if (i >= 2 && !place(kLate, i - 2)) return;
    }
  }

  __device__ bool sendFirst(uint32_t i) {
    for (int k = 0; k < a.nlinks; k++) {
      int p = rotated(k);
      Chunk c = this->outChunk(p, i);
      uint32_t no = s.sent[kFirst][p] + i;
      if (!c.bytes) continue;
      if (!await(&s.limit[kFirst][p], no)) return false;
      copyChunk<false>(slotOut(kFirst, p, no), a.send + a.link[p].outAt + c.at, c.bytes);
      done(&s.written[kFirst][p][no % kDepth]);
    }
    return true;
  }

  __device__ bool combine(uint32_t i) {
    Chunk c = this->ownChunk(i);
    if (!c.bytes) return true;
    for (int p = 0; p < a.nlinks; p++) {
      if (a.link[p].inBytes && !await(&s.ready[kFirst][p], s.taken[kFirst][p] + i)) return false;
      if (a.link[p].spread && !await(&s.limit[kLate][p], s.sent[kLate][p] + i)) return false;
    }
    for (uint32_t at = threadIdx.x * 16; at < c.bytes; at += kWorkers * 16)
      combinePair(i, c, at);
    for (int p = 0; p < a.nlinks; p++) {
      if (a.link[p].inBytes) done(&s.read[kFirst][p][(s.taken[kFirst][p] + i) % kDepth]);
      if (a.link[p].spread) done(&s.written[kLate][p][(s.sent[kLate][p] + i) % kDepth]);
    }
    return true;
  }

  __device__ void combinePair(uint32_t i, Chunk c, uint32_t at) {
    tuttiPair in[kPeers], mine = {0, 0};
    int32_t left = (int32_t)(c.bytes - at);
#pragma unroll
    for (int p = 0; p < kPeers; p++)
      if (p < a.nlinks && a.link[p].inBytes)
        in[p] = loadPairVolatile(slotIn(kFirst, p, s.taken[kFirst][p] + i) + at);
    if (a.own) mine = this->operand(loadPair(a.send + a.ownAt + c.at + at, left));
    tuttiPair v = this->reduced(in, mine);
    for (int k = 0; k < a.nlinks; k++) {
      int p = rotated(k);
      if (a.link[p].spread) storePair(slotOut(kLate, p, s.sent[kLate][p] + i) + at, v);
    }
    if (a.keep) storeUserPair(a.recv + a.keepAt + c.at + at, v, left);
  }

  __device__ bool place(int kind, uint32_t i) {
    for (int k = 0; k < a.nlinks; k++) {
      int p = a.nlinks - 1 - rotated(k); /* roughly in the order in which they come */
      Chunk c = this->inChunk(kind, p, i);
      uint32_t no = s.taken[kind][p] + i;
      if (!c.bytes) continue;
      if (!await(&s.ready[kind][p], no)) return false;
      uint64_t at = kind == kFirst ? a.link[p].placeAt : a.link[p].lateAt;
      copyChunk<true>(a.recv + at + c.at, slotIn(kind, p, no), c.bytes);
      done(&s.read[kind][p][no % kDepth]);
    }
    return true;
  }

  __device__ void copyOwn(uint32_t i) const {
    Chunk c = this->ownChunk(i);
    const uint8_t *from = a.send + a.ownAt + c.at;
    uint8_t *to = a.recv + a.keepAt + c.at;
    if (from == to) return;
    for (uint32_t at = threadIdx.x * 16; at < c.bytes; at += kWorkers * 16)
      storeUserPair(to + at, loadPair(from + at, c.bytes - at), c.bytes - at);
  }

  /* ---- the two warps that talk to the neighbours; lane (kind, p) ---- */

  struct Lane {
    uint32_t kind, p, next, end;
    bool used;
  };
  __device__ Lane lane() const {
    uint32_t l = threadIdx.x % 32;
    Lane x = {l / kPeers, l % kPeers, 0, 0, false};
    x.used = l < TUTTI_EXCHANGE_KINDS * kPeers && x.p < (uint32_t)a.nlinks;
    return x;
  }

  __device__ void publish() const {
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
        storeReleaseBlock((uint32_t *)&s.written[x.kind][x.p][x.next % kDepth], 0);
        storeRelaxedSys(
            &this->theirs(x.p)->flag[blockIdx.x][x.kind][a.link[x.p].column][x.next % kDepth],
            this->flagOut(x.p, x.next));
        x.next++;
      }
      if (*(volatile uint32_t *)&s.dead) return;
    }
    if (x.used) this->own()->sent[blockIdx.x][x.kind][x.p] = x.end;
  }

  __device__ void poll() {
    Lane x = lane();
    uint32_t seen = 0, taken = 0, credit = 0; /* messages that have come, were given back */
    if (x.used) {
      seen = taken = s.taken[x.kind][x.p];
      x.next = s.sent[x.kind][x.p] + this->chunksOut(x.kind, x.p); /* credit needed */
      x.end = seen + this->chunksIn(x.kind, x.p);
      credit = s.limit[x.kind][x.p];
    }
    Wait wait;
    for (;;) {
      bool waits = taken != x.end || (int32_t)(credit - x.next) < 0;
      if (!__any_sync(~0u, waits)) break;
      uint64_t flag = 0, there = 0;
      bool moved = false;
      if (x.used && seen != x.end) {
        flag = this->flagIn(x.p, seen);
        there = loadAcquireSys(&this->own()->flag[blockIdx.x][x.kind][x.p][seen % kDepth]);
        if (there == flag) {
          storeReleaseBlock(&s.ready[x.kind][x.p], ++seen);
          moved = true;
        }
      }
      if (x.used && (int32_t)(credit - x.next) < 0) {
        uint32_t limit = loadRelaxedSys32(&this->own()->head[blockIdx.x][x.kind][x.p]) + kDepth;
        moved |= limit != credit;
        if (limit != credit) storeReleaseBlock(&s.limit[x.kind][x.p], credit = limit);
      }
      if (x.used && taken != seen &&
          loadAcquireBlock(&s.read[x.kind][x.p][taken % kDepth]) == kWorkerWarps) {
        storeReleaseBlock(&s.read[x.kind][x.p][taken % kDepth], 0);
        taken++;
        storeRelaxedSys32(&this->theirs(x.p)->head[blockIdx.x][x.kind][a.link[x.p].column], taken);
        moved = true;
      }
      if (moved) wait = Wait();
      if (waits && !moved && wait.over(a, a.link[x.p].rank, flag, there)) s.dead = 1;
      __syncwarp();
      if (*(volatile uint32_t *)&s.dead) return;
    }
    if (x.used) this->own()->taken[blockIdx.x][x.kind][x.p] = x.end;
  }
};

#endif

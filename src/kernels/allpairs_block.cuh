/* What kernels between all pairs share: one thread block's arguments, chunks, slots,
 * waits, the user's memory and the reduction of a pair of words. */
#ifndef TUTTI_KERNELS_ALLPAIRS_BLOCK_CUH_
#define TUTTI_KERNELS_ALLPAIRS_BLOCK_CUH_

#include "kernels/allpairs.h"
#include "kernels/ptx.cuh"
#include "kernels/reduce.cuh"

constexpr int kPeers = TUTTI_ALLPAIRS_PEERS;
constexpr uint32_t kDepth = TUTTI_ALLPAIRS_DEPTH;
constexpr int kFirst = 0, kLate = 1; /* the shots */
constexpr int kToAll = 2;            /* counts what goes to all alike */

/* ---- waiting --------------------------------------------------------------------------------- */

/* Failed looks before a waiting thread looks at the clock and for an abort. */
constexpr uint32_t kLooks = 20000;
constexpr uint64_t kReportNs = 100000000;

/* One wait of one thread. */
struct Wait {
  uint32_t looks = 0;
  uint64_t since = 0, told = 0;
  bool suspected = false;

  /* After a failed look: true if the wait is to be given up. `seen` is the flag that is there. */
  template <class Args>
  __device__ bool over(const Args &a, int peer, uint64_t wanted, uint64_t seen) {
    return ++looks >= kLooks && slow(a.status, a.sig, peer, wanted, seen);
  }

private:
  __device__ __noinline__ bool slow(tuttiKernelStatus *status, const tuttiSignature &sig, int peer,
                                    uint64_t wanted, uint64_t seen) {
    looks = 0;
    if (loadRelaxedSys32(&status->abort)) return true;
    uint64_t now = nanoseconds();
    if (since == 0) since = told = now;
    /* Twice, for a staged unit may be seen half written. */
    bool suspect = (uint32_t)seen == (uint32_t)wanted && seen != wanted;
    bool disagrees = suspect && suspected;
    suspected = suspect;
    if (!disagrees && now - told < kReportNs) return false;
    told = now;
    status->sig = sig;
    status->peer = peer;
    status->waitedMs = (uint32_t)((now - since) / 1000000);
    status->disagrees = disagrees;
    fenceSys();
    storeRelaxedSys32(&status->stalls, (uint32_t)now);
    return false;
  }
};

/* All threads, before anything but the arguments is touched: see TUTTI_ALLPAIRS_EARLY. */
__device__ inline void followEarly() {
  awaitEarlierKernel();
  if (gridDim.x * blockDim.x <= TUTTI_ALLPAIRS_EARLY) admitLaterKernel();
}

/* ---- user memory -----------------------------------------------------------------------------
 * At least aligned to its element; words and pairs where it allows, else piece by piece. */

template <typename U> __device__ inline uint64_t loadUnits(const uint8_t *at, uint32_t bytes) {
  uint64_t v = 0;
  for (uint32_t i = 0; i < bytes; i += sizeof(U))
    v |= (uint64_t) * (const U *)(at + i) << 8 * i;
  return v;
}
template <typename U> __device__ inline void storeUnits(uint8_t *at, uint64_t v, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; i += sizeof(U))
    *(U *)(at + i) = (U)(v >> 8 * i);
}
static __device__ __noinline__ uint64_t loadPieces(const uint8_t *at, uint32_t bytes) {
  uint32_t odd = (uint32_t)(uintptr_t)at | bytes;
  if ((odd & 3) == 0) return loadUnits<uint32_t>(at, bytes);
  return odd & 1 ? loadUnits<uint8_t>(at, bytes) : loadUnits<uint16_t>(at, bytes);
}
static __device__ __noinline__ void storePieces(uint8_t *at, uint64_t v, uint32_t bytes) {
  uint32_t odd = (uint32_t)(uintptr_t)at | bytes;
  if ((odd & 3) == 0)
    storeUnits<uint32_t>(at, v, bytes);
  else if (odd & 1)
    storeUnits<uint8_t>(at, v, bytes);
  else
    storeUnits<uint16_t>(at, v, bytes);
}
/* The word at `at`, of which `left` bytes (possibly none, or more than 8) exist. A lone element of
 * four bytes, as small operations have it, spares the call: whose code a kernel fetches anew. */
__device__ inline bool isHalf(const uint8_t *at, int32_t left) {
  return left == 4 && ((uintptr_t)at & 3) == 0;
}
__device__ inline uint64_t loadWord(const uint8_t *at, int32_t left) {
  if (left >= 8 && ((uintptr_t)at & 7) == 0) return *(const volatile uint64_t *)at;
  if (isHalf(at, left)) return *(const volatile uint32_t *)at;
  return left > 0 ? loadPieces(at, left < 8 ? left : 8) : 0;
}
__device__ inline void storeWord(uint8_t *at, uint64_t v, int32_t left) {
  if (left >= 8 && ((uintptr_t)at & 7) == 0)
    *(uint64_t *)at = v;
  else if (isHalf(at, left))
    *(uint32_t *)at = (uint32_t)v;
  else if (left > 0)
    storePieces(at, v, left < 8 ? left : 8);
}
__device__ inline tuttiPair loadPair(const uint8_t *at, int32_t left) {
  if (left >= 16 && ((uintptr_t)at & 15) == 0) return loadPairStreaming(at);
  return {loadWord(at, left), loadWord(at + 8, left - 8)};
}
/* From memory that need not be global. */
__device__ inline tuttiPair loadPairAnywhere(const uint8_t *at, int32_t left) {
  if (left >= 16 && ((uintptr_t)at & 15) == 0) return loadPairGeneric(at);
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

/* ---- the reduction of a pair of words -------------------------------------------------------- */

template <typename T> struct Operands {
  Word<T> x, y;
  bool any = false;

  __device__ void add(tuttiRedOp_t op, const Word<T> &px, const Word<T> &py) {
    if (any) {
      x.combine(px, op);
      y.combine(py, op);
    } else {
      x = px;
      y = py;
      any = true;
    }
  }
  /* `turned`: see turnedBits. */
  __device__ void add(tuttiRedOp_t op, tuttiPair p, uint64_t turned) {
    add(op, Word<T>::unpack(p.x ^ turned), Word<T>::unpack(p.y ^ turned));
  }
  __device__ tuttiPair result(int divide, bool isUnsigned, uint64_t turned) {
    if (divide > 1) {
      x.divide(divide, isUnsigned);
      y.divide(divide, isUnsigned);
    }
    return {x.pack() ^ turned, y.pack() ^ turned};
  }
};

template <typename T, class Args> __device__ typename T::Value premulScalar(const Args &a) {
  using Value = typename T::Value;
  if (a.scalarAt) return T::get(*(const typename T::Element *)a.scalarAt);
  return (Value)0.5 == (Value)0 ? (Value)a.scalar.i : (Value)a.scalar.f;
}

/* A rank's own operand of PreMulSum, rounded to the element's type as its peers get it. */
template <typename T, class Args>
__device__ __noinline__ tuttiPair scaled(const Args &a, tuttiPair p) {
  Word<T> x = Word<T>::unpack(p.x), y = Word<T>::unpack(p.y);
  x.scale(premulScalar<T>(a));
  y.scale(premulScalar<T>(a));
  return {x.pack(), y.pack()};
}

/* ---- one thread block ------------------------------------------------------------------------ */

struct Chunk {
  uint64_t at; /* in the message */
  uint32_t bytes;
};

/* In shared memory, read by all threads. */
struct BlockState {
  tuttiAllPairsArgs args;
  /* Messages of kernels before; chunk i of this one is message base + i. */
  uint32_t sent[TUTTI_ALLPAIRS_KINDS][kPeers], taken[TUTTI_ALLPAIRS_KINDS][kPeers];
  uint32_t limit[TUTTI_ALLPAIRS_KINDS][kPeers]; /* messages below it may be sent */
};

/* Copies the arguments to shared memory: the constant cache would miss line after line, and each
 * miss takes as long as this. The caller synchronizes. */
__device__ inline void loadArgs(const tuttiAllPairsArgs &args, BlockState &s) {
  const char *from = (const char *)&args;
  for (uint32_t at = threadIdx.x * 16; at < sizeof args; at += blockDim.x * 16)
    *(tuttiPair *)((char *)&s.args + at) = loadPairGeneric(from + at);
}

/* LL_SLOT: the payload of a slot of protocol LL; 0: protocol Simple. */
template <typename T, uint32_t LL_SLOT = 0> class Block {
protected:
  __device__ Block(BlockState &state) : s(state), a(state.args) {}

  BlockState &s;
  const tuttiAllPairsArgs &a;

  __device__ tuttiAllPairsHead *own() const { return (tuttiAllPairsHead *)a.block; }
  __device__ tuttiAllPairsHead *counts() const { return (tuttiAllPairsHead *)a.counts; }
  __device__ tuttiAllPairsHead *theirs(int p) const { return (tuttiAllPairsHead *)a.link[p].block; }

  /* Thread (kind, p) reads the counts of its FIFOs; the caller synchronizes. `counts` and `shared`
   * are those of the arguments. */
  __device__ void loadCounts(uint8_t *counts, uint32_t shared, uint32_t thread) {
    if (thread >= TUTTI_ALLPAIRS_KINDS * kPeers) return;
    const tuttiAllPairsHead *head = (const tuttiAllPairsHead *)counts;
    uint32_t k = thread / kPeers, p = thread % kPeers, c = shared >> k & 1 ? kToAll : k;
    s.sent[k][p] = loadRelaxedSys32(&head->sent[blockIdx.x][c][p]);
    s.taken[k][p] = loadRelaxedSys32(&head->taken[blockIdx.x][c][p]);
    s.limit[k][p] = loadRelaxedSys32(&head->head[blockIdx.x][c][p]) + kDepth;
  }

  __device__ static uint32_t chunkSize(uint64_t part) {
    return LL_SLOT ? LL_SLOT : tuttiAllPairsChunk(part);
  }
  __device__ static Chunk chunkOf(uint64_t bytes, uint64_t part, uint32_t i) {
    uint64_t from = blockIdx.x * part, to = from + part < bytes ? from + part : bytes;
    uint32_t size = chunkSize(part);
    from += (uint64_t)i * size;
    uint64_t left = from < to ? to - from : 0;
    return {from, (uint32_t)(left < size ? left : size)};
  }
  __device__ static uint32_t chunksOf(uint64_t bytes, uint64_t part) {
    uint64_t from = blockIdx.x * part, to = from + part < bytes ? from + part : bytes;
    uint32_t size = chunkSize(part);
    return from < to ? (uint32_t)((to - from + size - 1) / size) : 0;
  }
  /* Chunk i of what goes to p, comes from p, is combined, is spread to this rank by p. */
  __device__ Chunk outChunk(int p, uint32_t i) const {
    return chunkOf(a.link[p].outBytes, a.flow[p].outPart, i);
  }
  __device__ Chunk inChunk(int kind, int p, uint32_t i) const {
    return kind == kFirst ? chunkOf(a.link[p].inBytes, a.flow[p].inPart, i)
                          : chunkOf(a.link[p].lateBytes, a.flow[p].latePart, i);
  }
  __device__ Chunk ownChunk(uint32_t i) const { return chunkOf(a.bytes, a.part, i); }
  __device__ uint32_t chunksOut(int kind, int p) const {
    if (kind == kFirst) return chunksOf(a.link[p].outBytes, a.flow[p].outPart);
    return a.spreads >> p & 1 ? chunksOf(a.bytes, a.part) : 0;
  }
  __device__ uint32_t chunksIn(int kind, int p) const {
    return kind == kFirst ? chunksOf(a.link[p].inBytes, a.flow[p].inPart)
                          : chunksOf(a.link[p].lateBytes, a.flow[p].latePart);
  }

  __device__ uint64_t flagOut(int p, uint32_t no) const {
    return (uint64_t)a.link[p].outHash << 32 | (no + 1);
  }
  __device__ uint64_t flagIn(int p, uint32_t no) const {
    return (uint64_t)a.link[p].inHash << 32 | (no + 1);
  }
  /* The number of a slot in its block, `column` being the sender's. */
  __device__ size_t slotNo(int kind, uint32_t column, uint32_t no) const {
    uint32_t row = blockIdx.x * TUTTI_ALLPAIRS_KINDS + kind;
    return ((size_t)row * a.columns + column) * kDepth + no % kDepth;
  }

  __device__ tuttiPair operand(tuttiPair mine) const {
    return a.premul ? scaled<T>(a, mine) : mine;
  }
};

#endif

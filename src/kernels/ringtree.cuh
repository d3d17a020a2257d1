/* One thread block carries out one schedule. Its steps pass through three hands, so that none waits
 * for the way to host memory of another: the waiter, a warp with a lane for each connection of a
 * step, waits for its messages and for room; the movers, in lockstep, read the operands once and
 * write the value to recvbuff and to every receiver's slot; the publisher, a warp again, tells the
 * receivers what was written and gives back what was read.
 *
 * Where a network reaches the user's buffers, large payloads take no slots. What is to be sent as
 * it is stays where it is: a value in recvbuff is not written twice, and of sendbuff the schedule
 * says whether it may be lent (TUTTI_STEP_STABLE). The block ends when the network has read it. For
 * what will only be stored the waiter posts the place, up to a FIFO's depth of messages ahead; it
 * may come in its slot all the same. The last steps send from slots: those are on their way while
 * the next kernel begins, so that the network does not run dry between the two. */
#ifndef TUTTI_KERNELS_RINGTREE_CUH_
#define TUTTI_KERNELS_RINGTREE_CUH_

#include "kernels/allpairs_block.cuh"
#include "kernels/ringtree.h"

constexpr uint32_t kMovers = TUTTI_ALLPAIRS_THREADS, kWarp = 32;
constexpr uint32_t kRingTreeThreads = TUTTI_RINGTREE_THREADS;
static_assert(kRingTreeThreads == kMovers + 2 * kWarp, "and a waiter and a publisher");
constexpr uint32_t kStages = 4; /* steps that are in some hand */
constexpr int kFan = TUTTI_RINGTREE_FAN;
constexpr uint64_t kSlotted = 2; /* last steps, of which what is sent takes slots */
/* Messages of a step whose descriptors are kept in shared memory: a warp reads so many at once. */
constexpr uint32_t kPairs = sizeof(tuttiSlotDescriptor) / sizeof(tuttiPair), kKept = kWarp / kPairs;
constexpr int kNearRanks = 32; /* of so many the endpoints of all are asked for in advance */

/* A step on its way. */
struct Stage {
  tuttiStep step;
  bool last;      /* there is no such step: the schedule has ended, or waiting was given up */
  uint32_t bytes; /* of a message */
  int nin, nout;  /* operands and outputs */
  int own;        /* the local operand that PreMulSum scales; -1: none */
  tuttiRingTreeEndpoint *endpoint[2 * kFan]; /* received from, then sent to */
  uint64_t number[2 * kFan];                 /* of their messages */
  const uint8_t *lent; /* what a network may read instead of a slot, or NULL */
  const uint8_t *in[kFan + 1];
  uint8_t *out[kFan + 1];
  tuttiSlotDescriptor kept[kKept]; /* of its first messages, which have come */
};

struct RingTreeState {
  tuttiRingTreeTask task;
  tuttiStep known[TUTTI_RINGTREE_STEPS];
  Stage stage[kStages];
};

/* What has been done to a step when it is passed on, by a barrier of its stage. */
enum Done : uint32_t { kAwaited, kMoved, kPublished };

/* What does not depend on the element type, most of the code: the waiter and the publisher. */
class RingTreeBlock {
public:
  __device__ RingTreeBlock(RingTreeState &state, tuttiKernelStatus *status)
      : s(state), t(state.task), report{status, state.task.sig} {}

  /* All threads; the caller synchronizes. */
  __device__ void loadTask(const tuttiRingTreeArgs &args) {
    prefetchEndpoints(args.task[blockIdx.x]);
    copyWords(&s.task, &args.task[blockIdx.x], sizeof s.task);
    copyWords(s.known, args.step, args.nsteps * sizeof *s.known);
  }

  /* `known`: so many steps are all of its schedule. 0: it is to be asked. */
  __device__ void wait(uint32_t known) {
    uint64_t k = 0, ahead = 0, steps = known ? known : tuttiScheduleSteps(&t.schedule);
    bool dead = false;
    for (uint32_t i = 0;; i++) {
      Stage &g = s.stage[i % kStages];
      if (i >= kStages) barrierOf(barrier(kPublished, i), 2 * kWarp);
      if (lane() == 0 && t.reaches & TUTTI_REACHES_RECV) post(ahead);
      if (lane() == 0) load(g, k, steps, known != 0);
      __syncwarp();
      dead = !awaitStep(g);
      bool last = dead || g.last;
      __syncwarp(); /* what each lane has seen comes before what lane 0 says */
      if (lane() == 0) {
        g.last = last;
        if (!last) address(g);
      }
      __syncwarp();
      arriveAt(barrier(kAwaited, i), movers() + kWarp);
      if (last) break;
    }
    if (!dead && t.reaches) awaitLent();
  }
  __device__ void publish() const {
    for (uint32_t i = 0;; i++) {
      const Stage &g = s.stage[i % kStages];
      barrierOf(barrier(kMoved, i), 2 * kWarp);
      if (g.last) return;
      for (int e = (int)lane(); e < endpoints(g); e += kWarp)
        if (e < g.step.nrecv) storeRelaxedSys(&g.endpoint[e]->reader->credit.v, g.number[e] + 1);
      for (int e = (int)lane() + g.step.nrecv; e < endpoints(g); e += kWarp)
        publishMessage(g, e);
      arriveAt(barrier(kPublished, i), 2 * kWarp);
    }
  }

protected:
  RingTreeState &s;
  const tuttiRingTreeTask &t;
  struct { /* what Wait tells the host */
    tuttiKernelStatus *status;
    const tuttiSignature &sig;
  } report;
  /* A flag that Wait takes for that of another operation than 1. */
  static constexpr uint64_t kDisagrees = UINT64_C(1) << 32 | 1;

  __device__ static uint32_t lane() { return threadIdx.x % kWarp; }
  __device__ static uint32_t barrier(Done done, uint32_t step) {
    return 2 + done * kStages + step % kStages; /* 1: of the movers alone */
  }
  /* Threads that move what messages have: of messages that are small there need not be many. */
  __device__ static uint32_t movers() { return blockDim.x - 2 * kWarp; }
  __device__ static int endpoints(const Stage &g) { return g.step.nrecv + g.step.nsend; }
  __device__ static bool inlined(const Stage &g) { return g.bytes <= TUTTI_INLINE_MAX; }
  /* Message i, which is sent, stays where it is. */
  __device__ static bool lends(const Stage &g, int i) {
    return g.lent && g.bytes > g.endpoint[i]->directBytes;
  }
  __device__ static tuttiSlotDescriptor *descriptorOf(const Stage &g, int i) {
    return g.endpoint[i]->descriptors + (g.number[i] & (g.endpoint[i]->ndescriptors - 1));
  }
  __device__ static uint8_t *payloadOf(const Stage &g, int i) {
    if (inlined(g)) return descriptorOf(g, i)->inlined;
    const tuttiRingTreeEndpoint &e = *g.endpoint[i];
    size_t place = g.number[i] % TUTTI_FIFO_DEPTH;
    return g.bytes <= e.smallBytes ? e.small + place * e.smallBytes : e.data + place * e.slotBytes;
  }

private:
  __device__ static void copyWords(void *to, const void *from, uint32_t bytes) {
    for (uint32_t at = threadIdx.x * 8; at < bytes; at += blockDim.x * 8)
      *(uint64_t *)((char *)to + at) = *(const uint64_t *)((const char *)from + at);
  }
  /* Nobody waits for them here, and the first step finds them in the cache. */
  __device__ static void prefetchEndpoints(const tuttiRingTreeTask &task) {
    if (task.schedule.nranks > kNearRanks) return;
    for (int e = (int)threadIdx.x; e < 2 * task.schedule.nranks; e += (int)blockDim.x) {
      prefetchCached(&task.endpoints[e]);
      prefetchCached((const char *)&task.endpoints[e + 1] - 8);
    }
  }

  /* ---- the waiter ---- */

  /* Lane 0: the next step that does anything, and its connections. */
  __device__ void load(Stage &g, uint64_t &k, uint64_t steps, bool known) const {
    do {
      g.last = k == steps;
      if (g.last) return;
      if (known)
        g.step = s.known[k];
      else
        tuttiScheduleStep(&t.schedule, k, &g.step);
      k++;
    } while (g.step.count == 0);
    g.bytes = (uint32_t)(g.step.count * t.elementBytes);
    g.lent = k + kSlotted <= steps ? lendable(g.step) : nullptr;
    findEndpoints(g, g.step.recv, g.step.nrecv, 0, t.endpoints);
    findEndpoints(g, g.step.send, g.step.nsend, g.step.nrecv, t.endpoints + t.schedule.nranks);
  }
  __device__ void findEndpoints(Stage &g, const int32_t *ranks, int32_t &count, int first,
                                tuttiRingTreeEndpoint *endpoints) const {
    bool all = count == TUTTI_ALL;
    if (all) count = t.schedule.nranks - 1;
    for (int i = 0; i < count; i++) {
      tuttiRingTreeEndpoint *endpoint = endpoints + (all ? i + (i >= t.schedule.rank) : ranks[i]);
      g.endpoint[first + i] = endpoint;
      g.number[first + i] = endpoint->next++;
      if (!(t.reaches & TUTTI_REACHES_RECV)) endpoint->ahead = endpoint->next;
    }
  }

  /* All lanes: its messages and room for what it sends. False: given up. */
  __device__ bool awaitStep(Stage &g) const {
    bool dead = false;
    if (g.last) return true;
    for (int e = (int)lane(); e < endpoints(g) && !dead; e += kWarp)
      dead = e < g.step.nrecv ? !awaitMessage(g, e) : !awaitRoom(g, e);
    if (__any_sync(~0u, dead)) return false;
    __syncwarp(); /* what each lane has seen comes before what others read */
    keep(g);
    __syncwarp();
    if (lane() == 0 && g.step.nrecv == 1) dead = !fits(g, &g.kept[0]) && !disagree(g, 0);
    return !__any_sync(~0u, dead);
  }

  /* The value of the step is this piece of a buffer that the network reaches, for good. */
  __device__ const uint8_t *lendable(const tuttiStep &step) const {
    if (step.flags & TUTTI_STEP_DST)
      return t.reaches & TUTTI_REACHES_RECV ? t.recv + step.dst * t.elementBytes : nullptr;
    bool copies = step.nrecv == 0 && !t.premul && !(step.flags & TUTTI_STEP_FINAL);
    if (!copies || !(step.flags & TUTTI_STEP_STABLE)) return nullptr;
    bool written = step.flags & TUTTI_STEP_SRC_WRITTEN;
    uint32_t reaches = written ? TUTTI_REACHES_RECV : TUTTI_REACHES_SEND;
    return t.reaches & reaches ? (written ? t.recv : t.send) + step.src * t.elementBytes : nullptr;
  }

  /* Lane 0: posts places for messages of steps from `k` on, as far as FIFOs have room for them. */
  __device__ void post(uint64_t &k) const {
    uint64_t steps = tuttiScheduleSteps(&t.schedule);
    tuttiStep step;
    for (; k < steps; k++) {
      tuttiScheduleStep(&t.schedule, k, &step);
      if (step.count == 0) continue;
      bool all = step.nrecv == TUTTI_ALL;
      int n = all ? t.schedule.nranks - 1 : step.nrecv;
      for (int i = 0; i < n; i++)
        if (endpointOf(step.recv, all, i)->ahead >=
            endpointOf(step.recv, all, i)->next + TUTTI_FIFO_DEPTH)
          return;
      for (int i = 0; i < n; i++)
        postAt(*endpointOf(step.recv, all, i), step, n);
    }
  }
  __device__ tuttiRingTreeEndpoint *endpointOf(const int32_t *ranks, bool all, int i) const {
    return t.endpoints + (all ? i + (i >= t.schedule.rank) : ranks[i]);
  }
  __device__ void postAt(tuttiRingTreeEndpoint &e, const tuttiStep &step, int nrecv) const {
    uint64_t number = e.ahead++, bytes = step.count * t.elementBytes;
    bool stored = nrecv == 1 && step.flags & TUTTI_STEP_DST && !(step.flags & TUTTI_STEP_SRC) &&
                  !(step.flags & TUTTI_STEP_FINAL && t.divide > 1);
    if (!stored || bytes <= e.directBytes) return;
    tuttiPost *post = &e.posts[number % TUTTI_FIFO_DEPTH];
    post->addr = (uint64_t)(t.recv + step.dst * t.elementBytes);
    post->bytes = (uint32_t)bytes;
    fenceSys();
    storeRelaxedSys(&post->seq.v, number + 1);
  }

  /* One lane per connection: the network has read what was lent to it. */
  __device__ void awaitLent() const {
    bool one = t.schedule.coll == tuttiCollSendRecv; /* others of the row are of other blocks */
    int from = one ? t.schedule.root : 0, to = one ? from + 1 : t.schedule.nranks;
    for (int p = from + (int)lane(); p < to; p += kWarp) {
      Wait wait;
      tuttiRingTreeEndpoint &e = t.endpoints[t.schedule.nranks + p];
      while (e.credit < e.lent) {
        e.credit = loadAcquireSys(&e.reader->credit.v);
        if (e.credit < e.lent && wait.over(report, e.peer, 0, 0)) return;
      }
    }
  }

  /* One lane per connection. False: given up. */
  __device__ bool awaitMessage(const Stage &g, int i) const {
    Wait wait;
    const tuttiSlotDescriptor *d = descriptorOf(g, i);
    while (loadAcquireSys(&d->seq.v) != g.number[i] + 1)
      if (wait.over(report, g.endpoint[i]->peer, 0, 0)) return false;
    /* Of several each at once, as others may never come where ranks disagree. */
    return g.step.nrecv == 1 || fits(g, d) || disagree(g, i);
  }
  /* All lanes, when the first messages are there. Host memory is far: it is asked once, for all. */
  __device__ void keep(Stage &g) const {
    uint32_t i = lane() / kPairs, p = lane() % kPairs;
    if ((int)i >= g.step.nrecv) return;
    ((tuttiPair *)&g.kept[i])[p] = loadPairVolatile((const tuttiPair *)descriptorOf(g, (int)i) + p);
  }
  /* Until the host has found out. */
  __device__ bool disagree(const Stage &g, int i) const {
    Wait wait;
    while (!wait.over(report, g.endpoint[i]->peer, 1, kDisagrees)) {
    }
    return false;
  }
  /* The message is of this operation, whose number a captured graph repeats, and of this step. */
  __device__ bool fits(const Stage &g, const tuttiSlotDescriptor *d) const {
    const tuttiSignature &a = t.sig;
    tuttiSignature b = d->sig;
    bool same = a.count == b.count && a.root == b.root && a.coll == b.coll && a.type == b.type &&
                a.redop == b.redop;
    if (!same || d->bytes != g.bytes) return false;
    if (inlined(g)) return d->where == TUTTI_WHERE_INLINE;
    return d->where == TUTTI_WHERE_SLOT || isPlaced(g, d);
  }
  /* It was brought to where the step stores it. */
  __device__ bool isPlaced(const Stage &g, const tuttiSlotDescriptor *d) const {
    return d->where == TUTTI_WHERE_DIRECT &&
           d->addr == (uint64_t)(t.recv + g.step.dst * t.elementBytes);
  }
  __device__ bool awaitRoom(const Stage &g, int i) const {
    Wait wait;
    tuttiRingTreeEndpoint &e = *g.endpoint[i];
    uint32_t depth = inlined(g) ? e.ndescriptors : TUTTI_FIFO_DEPTH;
    while (g.number[i] >= e.credit + depth) {
      e.credit = loadAcquireSys(&e.reader->credit.v);
      if (g.number[i] >= e.credit + depth && wait.over(report, e.peer, 0, 0)) return false;
    }
    if (lends(g, i)) e.lent = g.number[i] + 1;
    return true;
  }

  __device__ static const uint8_t *messageOf(const Stage &g, int i) {
    return inlined(g) && i < (int)kKept ? g.kept[i].inlined : payloadOf(g, i);
  }
  /* Lane 0: what the movers read and write. */
  __device__ void address(Stage &g) const {
    const tuttiStep &step = g.step;
    uint8_t *dst = step.flags & TUTTI_STEP_DST ? t.recv + step.dst * t.elementBytes : nullptr;
    bool placed = dst && step.nrecv == 1 && isPlaced(g, &g.kept[0]);
    addressOperands(g, placed ? dst : nullptr);
    g.nout = 0;
    if (dst && !placed) g.out[g.nout++] = dst;
    for (int i = step.nrecv; i < endpoints(g); i++)
      if (!lends(g, i)) g.out[g.nout++] = payloadOf(g, i);
  }
  /* In order of rank, so that all ranks that reduce the same get the same. The only message is at
   * `placed`, if that is not NULL. */
  __device__ void addressOperands(Stage &g, const uint8_t *placed) const {
    const tuttiStep &step = g.step;
    bool local = step.flags & TUTTI_STEP_SRC;
    g.nin = 0;
    g.own = -1;
    for (int i = 0; i <= step.nrecv; i++) {
      if (local && (i == step.nrecv || g.endpoint[i]->peer > t.schedule.rank)) {
        if (t.premul) g.own = g.nin;
        const uint8_t *from = step.flags & TUTTI_STEP_SRC_WRITTEN ? t.recv : t.send;
        g.in[g.nin++] = from + step.src * t.elementBytes;
        local = false;
      }
      if (i < step.nrecv) g.in[g.nin++] = placed ? placed : messageOf(g, i);
    }
  }

  /* ---- the publisher ---- */

  __device__ void publishMessage(const Stage &g, int i) const {
    tuttiSlotDescriptor *d = descriptorOf(g, i);
    bool lent = lends(g, i);
    d->addr = lent ? (uint64_t)g.lent : 0;
    d->bytes = g.bytes;
    d->where = inlined(g) ? TUTTI_WHERE_INLINE : lent ? TUTTI_WHERE_DIRECT : TUTTI_WHERE_SLOT;
    d->sig = t.sig;
    fenceSys();
    storeRelaxedSys(&d->seq.v, g.number[i] + 1);
  }
};

/* COPIES: nothing is reduced. */
template <typename T, bool COPIES> class RingTreeMovers : RingTreeBlock {
public:
  __device__ RingTreeMovers(RingTreeState &state, tuttiKernelStatus *status)
      : RingTreeBlock(state, status) {}

  /* Several pairs of words of each operand are on their way at once: host memory is far. */
  static constexpr uint32_t kAtOnce = COPIES ? 8 : sizeof(typename T::Element) == 1 ? 2 : 4;
  static constexpr uint32_t kStride = kMovers * 16;
  static_assert(TUTTI_INLINE_MAX <= kWarp * 16, "one pair of each thread, however few there are");

  __device__ void move() const {
    for (uint32_t i = 0;; i++) {
      const Stage &g = s.stage[i % kStages];
      barrierOf(barrier(kAwaited, i), movers() + kWarp);
      bool last = g.last; /* once it is passed on, the waiter may put another step there */
      if (!last) moveStep(g);
      /* A step may read what the one before has written, or write what it has read. */
      barrierOf(1, movers());
      if (threadIdx.x < kWarp) arriveAt(barrier(kMoved, i), 2 * kWarp);
      if (last) return;
    }
  }

private:
  __device__ void moveStep(const Stage &g) const {
    if (g.nout == 0) return; /* the network moves it all */
    if (inlined(g))
      moveBy<1>(g);
    else
      moveBy<kAtOnce>(g);
  }
  /* N pairs at once; 1: what is inlined, which may be in shared memory. */
  template <uint32_t N> __device__ void moveBy(const Stage &g) const {
    int divide = g.step.flags & TUTTI_STEP_FINAL ? t.divide : 0;
    for (uint32_t from = threadIdx.x * 16; from < g.bytes; from += N * kStride) {
      tuttiPair value[N] = {};
      if (COPIES)
        read<N>(g, 0, from, value);
      else
        reduce<N>(g, from, divide, value);
      for (int o = 0; o < g.nout; o++) {
#pragma unroll
        for (uint32_t u = 0; u < N; u++) {
          uint32_t at = from + u * kStride;
          if (at < g.bytes) storeUserPair(g.out[o] + at, value[u], (int32_t)(g.bytes - at));
        }
      }
    }
  }
  template <uint32_t N>
  __device__ void read(const Stage &g, int i, uint32_t from, tuttiPair *value) const {
#pragma unroll
    for (uint32_t u = 0; u < N; u++) {
      uint32_t at = from + u * kStride;
      if (at >= g.bytes) continue;
      int32_t left = (int32_t)(g.bytes - at);
      value[u] = N == 1 ? loadPairAnywhere(g.in[i] + at, left) : loadPair(g.in[i] + at, left);
    }
  }
  template <uint32_t N>
  __device__ void reduce(const Stage &g, uint32_t from, int divide, tuttiPair *value) const {
    Operands<T> sum[N];
    const uint64_t turned = turnedBits<T>(t);
    for (int i = 0; i < g.nin; i++) {
      read<N>(g, i, from, value);
#pragma unroll
      for (uint32_t u = 0; u < N; u++)
        sum[u].add(t.op, i == g.own ? scaled<T>(t, value[u]) : value[u], turned);
    }
    /* What only passes through keeps its bits. */
    if (g.nin == 1 && g.own < 0 && divide <= 1) return;
#pragma unroll
    for (uint32_t u = 0; u < N; u++)
      value[u] = sum[u].result(divide, t.isUnsigned, turned);
  }
};

#endif

/* One thread block carries out one schedule. Its steps pass through three hands, so that none waits
 * for the way to host memory of another: the waiter, a warp with a lane for each connection of a
 * step, waits for its messages and for room; the movers, in lockstep, read the operands once and
 * write the value to recvbuff and to every receiver's slot; the publisher, a warp again, tells the
 * receivers what was written and gives back what was read. */
#ifndef TUTTI_KERNELS_STEPS_CUH_
#define TUTTI_KERNELS_STEPS_CUH_

#include "kernels/exchange_block.cuh"
#include "kernels/steps.h"

constexpr uint32_t kMovers = 512, kWarp = 32;
constexpr uint32_t kStepsThreads = kMovers + 2 * kWarp;
constexpr uint32_t kStages = 4; /* steps that are in some hand */
constexpr int kFan = TUTTI_STEPS_FAN;

/* A step on its way. */
struct Stage {
  tuttiStep step;
  bool last;      /* there is no such step: the schedule has ended, or waiting was given up */
  uint32_t bytes; /* of a message */
  int nin, nout;  /* operands and outputs */
  int own;        /* the local operand that PreMulSum scales; -1: none */
  tuttiStepsEnd *end[2 * kFan]; /* received from, then sent to */
  uint64_t number[2 * kFan];    /* of their messages */
  /* Where they are; without a flag 0 as flagged units, which the movers await themselves. */
  const uint8_t *in[kFan + 1];
  uint8_t *out[kFan + 1];
  uint32_t inFlag[kFan + 1], outFlag[kFan + 1];
};

/* In shared memory. The counts are of steps that each hand has passed on. */
struct StepsState {
  tuttiStepsTask task;
  uint32_t awaited, moved, published;
  uint32_t checked; /* by the waiter, of what the movers await */
  uint32_t dead;    /* the movers have given up */
  Stage stage[kStages];
};

template <typename T, bool COPIES> class Steps {
public:
  __device__ Steps(const tuttiStepsArgs &args, StepsState &state)
      : s(state), t(state.task), report{args.mail, state.task.sig} {
    const char *from = (const char *)&args.task[blockIdx.x];
    for (uint32_t at = threadIdx.x * 8; at < sizeof s.task; at += blockDim.x * 8)
      *(uint64_t *)((char *)&s.task + at) = *(const uint64_t *)(from + at);
    if (threadIdx.x == 0) s.awaited = s.moved = s.published = s.checked = s.dead = 0;
    __syncthreads();
  }

  __device__ void run() {
    if (threadIdx.x < kMovers)
      move();
    else if (threadIdx.x < kMovers + kWarp)
      wait();
    else
      publish();
  }

private:
  StepsState &s;
  const tuttiStepsTask &t;
  struct { /* what Wait tells the host */
    tuttiExchangeMail *mail;
    const tuttiSignature &sig;
  } report;
  /* A flag that Wait takes for that of another operation than 1. */
  static constexpr uint64_t kDisagrees = UINT64_C(1) << 32 | 1;

  __device__ static uint32_t lane() { return threadIdx.x % kWarp; }
  /* The whole warp: until a hand has passed on so many steps. */
  __device__ static void await(const uint32_t *count, uint32_t steps) {
    while ((int32_t)(loadAcquireBlock(count) - steps) < 0) {
    }
    __syncwarp();
  }
  __device__ static int ends(const Stage &g) { return g.step.nrecv + g.step.nsend; }
  __device__ static bool inlined(const Stage &g) { return g.bytes <= TUTTI_INLINE_MAX; }
  __device__ static tuttiSlot *slotOf(const Stage &g, int i) {
    return g.end[i]->slots + (g.number[i] & (g.end[i]->lines - 1));
  }
  /* Numbers of messages are unique as long as a slot keeps what was in it. */
  __device__ static uint32_t flagOf(const Stage &g, int i) {
    bool flagged = g.bytes <= TUTTI_STEPS_SMALL && g.end[i]->flagged;
    return flagged ? (uint32_t)g.number[i] + 1 : 0;
  }
  __device__ static uint8_t *unitsOf(const Stage &g, int i) {
    return g.end[i]->flagged + (size_t)(g.number[i] % TUTTI_FIFO_DEPTH) * TUTTI_STEPS_FLAGGED;
  }
  __device__ static uint8_t *payloadOf(const Stage &g, int i) {
    if (flagOf(g, i)) return unitsOf(g, i) + 16;
    if (inlined(g)) return slotOf(g, i)->inlined;
    return g.end[i]->data + (size_t)(g.number[i] % TUTTI_FIFO_DEPTH) * g.end[i]->slotBytes;
  }

  /* ---- the waiter ---- */

  __device__ void wait() {
    uint64_t k = 0;
    for (uint32_t i = 0;; i++) {
      Stage &g = s.stage[i % kStages];
      if (i >= kStages) await(&s.published, i - kStages + 1);
      if (__any_sync(~0u, s.dead)) return giveUp(i);
      if (lane() == 0) load(g, k);
      __syncwarp();
      bool dead = false;
      for (int e = (int)lane(); !g.last && e < ends(g) && !dead; e += kWarp)
        dead = e >= g.step.nrecv ? !awaitRoom(g, e) : !flagOf(g, e) && !awaitMessage(g, e);
      bool last = __any_sync(~0u, dead) || g.last;
      if (lane() == 0) {
        g.last = last;
        if (!last) address(g);
        storeReleaseBlock(&s.awaited, i + 1);
      }
      if (last) return;
      for (int e = (int)lane(); e < g.step.nrecv; e += kWarp)
        if (flagOf(g, e)) dead |= !checkUnits(g, e);
      if (__any_sync(~0u, dead)) return giveUp(i + 1);
      if (lane() == 0) storeReleaseBlock(&s.checked, i + 1);
    }
  }
  /* The movers find no further step. */
  __device__ void giveUp(uint32_t i) const {
    if (i >= kStages) await(&s.published, i - kStages + 1);
    if (lane() == 0) {
      s.stage[i % kStages].last = true;
      storeReleaseBlock(&s.awaited, i + 1);
    }
  }

  /* Lane 0: the next step that does anything, and its connections. */
  __device__ void load(Stage &g, uint64_t &k) const {
    uint64_t steps = tuttiScheduleSteps(&t.schedule);
    do {
      g.last = k == steps;
      if (g.last) return;
      tuttiScheduleStep(&t.schedule, k++, &g.step);
    } while (g.step.count == 0);
    g.bytes = (uint32_t)(g.step.count * t.elementBytes);
    findEnds(g, g.step.recv, g.step.nrecv, 0, t.ends);
    findEnds(g, g.step.send, g.step.nsend, g.step.nrecv, t.ends + t.schedule.nranks);
  }
  __device__ void findEnds(Stage &g, const int32_t *ranks, int32_t &count, int first,
                           tuttiStepsEnd *ends) const {
    bool all = count == TUTTI_ALL;
    if (all) count = t.schedule.nranks - 1;
    for (int i = 0; i < count; i++) {
      tuttiStepsEnd *end = ends + (all ? i + (i >= t.schedule.rank) : ranks[i]);
      g.end[first + i] = end;
      g.number[first + i] = end->next++;
    }
  }

  /* One lane per connection. False: given up. */
  __device__ bool awaitMessage(const Stage &g, int i) const {
    Wait wait;
    const tuttiSlot *slot = slotOf(g, i);
    while (loadAcquireSys(&slot->seq.v) != g.number[i] + 1)
      if (wait.over(report, g.end[i]->peer, 0, 0)) return false;
    return fits(g, slot) || disagree(g, i);
  }
  /* Until the host has found out. */
  __device__ bool disagree(const Stage &g, int i) const {
    Wait wait;
    while (!wait.over(report, g.end[i]->peer, 1, kDisagrees)) {
    }
    return false;
  }
  /* The movers may be at the payload already; what is wrong with it ends with an error. */
  __device__ bool checkUnits(const Stage &g, int i) const {
    Wait wait;
    uint64_t hash;
    while (!takeUnit(unitsOf(g, i), flagOf(g, i), &hash))
      if (wait.over(report, g.end[i]->peer, 0, 0)) return false;
    return (uint32_t)hash == t.hash || disagree(g, i);
  }
  /* The message is of this operation, whose number a captured graph repeats, and of this step. */
  __device__ bool fits(const Stage &g, const tuttiSlot *slot) const {
    const tuttiSignature &a = t.sig;
    tuttiSignature b = slot->sig;
    bool same = a.count == b.count && a.root == b.root && a.coll == b.coll && a.type == b.type &&
                a.redop == b.redop;
    return same && slot->bytes == g.bytes &&
           slot->where == (inlined(g) ? TUTTI_WHERE_INLINE : TUTTI_WHERE_SLOT);
  }
  __device__ bool awaitRoom(const Stage &g, int i) const {
    Wait wait;
    tuttiStepsEnd &e = *g.end[i];
    uint32_t depth = inlined(g) && !flagOf(g, i) ? e.lines : TUTTI_FIFO_DEPTH;
    while (g.number[i] >= e.taken + depth) {
      e.taken = loadAcquireSys(&e.head->head.v);
      if (g.number[i] >= e.taken + depth && wait.over(report, e.peer, 0, 0)) return false;
    }
    return true;
  }

  /* Lane 0: operands in order of rank, so that all ranks that reduce the same get the same. */
  __device__ void address(Stage &g) const {
    const tuttiStep &step = g.step;
    bool local = step.flags & TUTTI_STEP_SRC;
    g.nin = g.nout = 0;
    g.own = -1;
    for (int i = 0; i <= step.nrecv; i++) {
      if (local && (i == step.nrecv || g.end[i]->peer > t.schedule.rank)) {
        if (t.premul) g.own = g.nin;
        addIn(g, t.send + step.src * t.elementBytes, 0);
        local = false;
      }
      if (i < step.nrecv) addIn(g, payloadOf(g, i), flagOf(g, i));
    }
    if (step.flags & TUTTI_STEP_DST) addOut(g, t.recv + step.dst * t.elementBytes, 0);
    for (int i = step.nrecv; i < ends(g); i++)
      addOut(g, payloadOf(g, i), flagOf(g, i));
  }
  __device__ static void addIn(Stage &g, const uint8_t *at, uint32_t flag) {
    g.in[g.nin] = at;
    g.inFlag[g.nin++] = flag;
  }
  __device__ static void addOut(Stage &g, uint8_t *at, uint32_t flag) {
    g.out[g.nout] = at;
    g.outFlag[g.nout++] = flag;
  }

  /* ---- the movers ---- */

  /* Several pairs of words of each operand are on their way at once: host memory is far. */
  static constexpr uint32_t kAtOnce = COPIES ? 8 : sizeof(typename T::Element) == 1 ? 2 : 4;
  static constexpr uint32_t kStride = kMovers * 16;

  __device__ void move() const {
    for (uint32_t i = 0;; i++) {
      const Stage &g = s.stage[i % kStages];
      await(&s.awaited, i + 1);
      bool last = g.last; /* once it is passed on, the waiter may put another step there */
      if (!last && g.bytes <= TUTTI_STEPS_SMALL)
        moveSmall(g);
      else if (!last)
        moveStep(g);
      /* A step may read what the one before has written, or write what it has read. */
      barrierOf(1, kMovers);
      if (threadIdx.x == 0) storeReleaseBlock(&s.moved, i + 1);
      if (last) return;
    }
  }
  __device__ void moveStep(const Stage &g) const {
    int divide = g.step.flags & TUTTI_STEP_FINAL ? t.divide : 0;
    for (uint32_t from = threadIdx.x * 16; from < g.bytes; from += kAtOnce * kStride) {
      tuttiPair value[kAtOnce] = {};
      if (COPIES)
        read(g, 0, from, value);
      else
        reduce(g, from, divide, value);
      for (int o = 0; o < g.nout; o++) {
#pragma unroll
        for (uint32_t u = 0; u < kAtOnce; u++) {
          uint32_t at = from + u * kStride;
          if (at < g.bytes) storeUserPair(g.out[o] + at, value[u], (int32_t)(g.bytes - at));
        }
      }
    }
  }
  __device__ void read(const Stage &g, int i, uint32_t from, tuttiPair *value) const {
#pragma unroll
    for (uint32_t u = 0; u < kAtOnce; u++) {
      uint32_t at = from + u * kStride;
      if (at < g.bytes) value[u] = loadPair(g.in[i] + at, (int32_t)(g.bytes - at));
    }
  }
  __device__ void reduce(const Stage &g, uint32_t from, int divide, tuttiPair *value) const {
    Operands<T> sum[kAtOnce];
    for (int i = 0; i < g.nin; i++) {
      read(g, i, from, value);
#pragma unroll
      for (uint32_t u = 0; u < kAtOnce; u++)
        sum[u].add(t.op, i == g.own ? scaled<T>(t, value[u]) : value[u]);
    }
    /* What only passes through keeps its bits. */
    if (g.nin == 1 && g.own < 0 && divide <= 1) return;
#pragma unroll
    for (uint32_t u = 0; u < kAtOnce; u++)
      value[u] = sum[u].result(divide);
  }

  /* ---- flagged units ---- */

  __device__ static bool takeUnit(const uint8_t *at, uint32_t flag, uint64_t *value) {
    tuttiPair unit = loadPairVolatile(at);
    *value = (uint32_t)unit.x | unit.y << 32;
    return unit.x >> 32 == flag && unit.y >> 32 == flag;
  }
  __device__ static void storeUnit(uint8_t *at, uint32_t flag, uint64_t value) {
    uint64_t high = (uint64_t)flag << 32;
    storePairVolatile(at, {high | (uint32_t)value, high | value >> 32});
  }

  /* Operands that are looked for at once: their ways overlap. */
  static constexpr int kAbreast = 4;

  /* A pair of words of operands [first, first + kAbreast); false: given up. */
  __device__ bool take(const Stage &g, int first, uint32_t at, tuttiPair *v) const {
    Wait wait;
    uint32_t missing = 0;
#pragma unroll
    for (int j = 0; j < kAbreast; j++) {
      int i = first + j;
      if (i < g.nin && g.inFlag[i])
        missing |= 1u << j;
      else if (i < g.nin)
        v[j] = loadPair(g.in[i] + at, (int32_t)(g.bytes - at));
    }
    while (missing) {
      tuttiPair a[kAbreast], b[kAbreast];
#pragma unroll
      for (int j = 0; j < kAbreast; j++) {
        if (!(missing >> j & 1)) continue;
        a[j] = loadPairVolatile(g.in[first + j] + 2 * at);
        b[j] = loadPairVolatile(g.in[first + j] + 2 * at + 16);
      }
#pragma unroll
      for (int j = 0; j < kAbreast; j++) {
        uint64_t flag = g.inFlag[first + j];
        if (!(missing >> j & 1) || a[j].x >> 32 != flag || a[j].y >> 32 != flag ||
            b[j].x >> 32 != flag || b[j].y >> 32 != flag)
          continue;
        v[j] = {(uint32_t)a[j].x | a[j].y << 32, (uint32_t)b[j].x | b[j].y << 32};
        missing &= ~(1u << j);
      }
      if (missing && (s.dead || wait.over(report, g.end[0]->peer, 0, 0))) return false;
    }
    return true;
  }

  /* At most one pair of words for each thread. */
  __device__ void moveSmall(const Stage &g) const {
    uint32_t at = threadIdx.x * 16;
    int divide = g.step.flags & TUTTI_STEP_FINAL ? t.divide : 0;
    if (at >= g.bytes) return;
    Operands<T> sum;
    tuttiPair value = {};
    for (int first = 0; first < g.nin; first += kAbreast) {
      tuttiPair v[kAbreast] = {};
      if (!take(g, first, at, v)) {
        s.dead = 1;
        return;
      }
      value = v[0];
#pragma unroll
      for (int j = 0; j < kAbreast && !COPIES; j++)
        if (first + j < g.nin) sum.add(t.op, first + j == g.own ? scaled<T>(t, v[j]) : v[j]);
    }
    if (!COPIES && (g.nin > 1 || g.own >= 0 || divide > 1)) value = sum.result(divide);
    for (int o = 0; o < g.nout; o++) {
      if (g.outFlag[o]) {
        storeUnit(g.out[o] + 2 * at, g.outFlag[o], value.x);
        storeUnit(g.out[o] + 2 * at + 16, g.outFlag[o], value.y);
      } else {
        storeUserPair(g.out[o] + at, value, (int32_t)(g.bytes - at));
      }
    }
  }

  /* ---- the publisher ---- */

  __device__ void publish() const {
    for (uint32_t i = 0;; i++) {
      const Stage &g = s.stage[i % kStages];
      await(&s.moved, i + 1);
      if (__any_sync(~0u, g.last || s.dead) || !awaitCheck(i)) return finish(i);
      for (int e = (int)lane(); e < ends(g); e += kWarp)
        if (e < g.step.nrecv) storeRelaxedSys(&g.end[e]->head->head.v, g.number[e] + 1);
      for (int e = (int)lane() + g.step.nrecv; e < ends(g); e += kWarp)
        publishMessage(g, e);
      __syncwarp();
      if (lane() == 0) storeReleaseBlock(&s.published, i + 1);
    }
  }
  /* Before slots are given back; false: it has failed. */
  __device__ bool awaitCheck(uint32_t i) const {
    bool aborted = false;
    for (uint32_t looks = 1; !aborted && (int32_t)(loadAcquireBlock(&s.checked) - (i + 1)) < 0;
         looks++)
      aborted = looks % kLooks == 0 && loadRelaxedSys32(&report.mail->abort);
    return !__any_sync(~0u, aborted); /* all lanes go the same way */
  }
  /* Nothing waits for what is not published; and nothing is begun any more. */
  __device__ void finish(uint32_t i) const {
    if (lane() != 0) return;
    s.dead = 1;
    storeReleaseBlock(&s.published, i + (1u << 30));
  }
  __device__ void publishMessage(const Stage &g, int i) const {
    if (flagOf(g, i)) return storeUnit(unitsOf(g, i), flagOf(g, i), t.hash);
    tuttiSlot *slot = slotOf(g, i);
    slot->addr = 0;
    slot->bytes = g.bytes;
    slot->where = inlined(g) ? TUTTI_WHERE_INLINE : TUTTI_WHERE_SLOT;
    slot->sig = t.sig;
    fenceSys();
    storeRelaxedSys(&slot->seq.v, g.number[i] + 1);
  }
};

#endif

#include "collectives/simulator.h"

#include <stdlib.h>
#include <string.h>

#include "oracle_sources.h"
#include "transport/fifo.h"

typedef struct {
  const uint64_t *data; /* in the FIFO, or where the writer left it */
  uint64_t count;
  uint64_t sum;   /* of the data when it was sent */
  uint64_t chain; /* messages that had to arrive one after the other for this one to be sent */
  int32_t left;   /* readers that have not taken it yet */
} message;

typedef struct {
  message *slots;    /* [depth]; made on first use */
  uint64_t *payload; /* [depth * capacity] */
  uint64_t *taken;   /* messages taken: [1], of a shared FIFO [nranks] */
  uint64_t sent;
  int32_t reader;  /* -1: not in use yet */
  int32_t waiting; /* first of the ranks that wait for a change, -1: none */
} fifo;

typedef struct {
  tuttiSchedule schedule;
  tuttiStep step;
  uint64_t k, nsteps;
  bool loaded;     /* `step` is step k */
  int32_t met;     /* leading conditions of the step that are known to hold */
  int32_t waiting; /* next rank that waits for the same FIFO */
  uint64_t chain;  /* longest chain that ended here so far */
  uint64_t sent, received;
  uint64_t *memory;  /* sendbuff and recvbuff, overlapping when in place */
  uint8_t *written;  /* [recvLength] */
  uint64_t *scratch; /* [scratchLength] */
  uint8_t *kept;     /* [scratchLength]: what of it a step has written */
  uint64_t scratchLength;
  uint64_t length, sendAt, sendLength, recvAt, recvLength;
} rankState;

typedef struct {
  const tuttiSimulation *in;
  tuttiSimulationResult *out;
  int32_t n;
  uint64_t begin, part;
  bool reduces, inPlace;
  rankState *ranks;
  fifo *fifos; /* [n][width] */
  int32_t width;
  uint64_t capacity; /* elements of the longest message */
  uint64_t *value;   /* [capacity] */
  int32_t *ready;    /* ranks that may advance, in no order */
  int32_t nready, ndone;
  uint64_t random;
  bool outOfMemory;
} simulation;

static uint64_t mix(uint64_t x) { /* the finalizer of splitmix64 */
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

static uint64_t nextRandom(simulation *sim) {
  sim->random += UINT64_C(0x9e3779b97f4a7c15);
  return mix(sim->random);
}

static uint64_t input(const simulation *sim, int rank, uint64_t i) {
  return mix(mix(sim->in->seed + (uint64_t)rank + UINT64_C(0x9e3779b97f4a7c15)) + i);
}

static uint64_t poison(const simulation *sim, int rank, uint64_t i) {
  return ~input(sim, rank, i);
}

/* Stands for what an executor does to a whole reduction (divide it); missing or doubled, it shows.
 */
static uint64_t finish(uint64_t value) {
  return value * 5 + 3;
}

static void fault(simulation *sim, const char *what, int rank, uint64_t element) {
  if (sim->out->wrong) return;
  sim->out->wrong = true;
  sim->out->fault = what;
  sim->out->wrongRank = rank;
  sim->out->wrongElement = element;
}

/* ---- buffers -------------------------------------------------------------------------------- */

static oracleCall callOf(const simulation *sim) {
  return (oracleCall){
      .coll = sim->in->coll, .nranks = sim->n, .root = sim->in->root, .count = sim->in->count};
}

/* Lays out the buffers of a rank as tutti.h has them; a buffer that the rank may not use has length
 * 0. */
static void layout(const simulation *sim, int rank, rankState *r) {
  const oracleCall call = callOf(sim);
  ptrdiff_t shift = oracleInPlace(&call, rank);
  r->sendLength = oracleSends(&call, rank);
  r->recvLength = oracleReceives(&call, rank);
  bool both = r->sendLength > 0 && r->recvLength > 0;
  if (!sim->inPlace || !both) shift = (ptrdiff_t)r->sendLength;
  r->sendAt = shift < 0 ? (uint64_t)-shift : 0;
  r->recvAt = shift > 0 ? (uint64_t)shift : 0;
  uint64_t sendEnd = r->sendAt + r->sendLength, recvEnd = r->recvAt + r->recvLength;
  r->length = sendEnd > recvEnd ? sendEnd : recvEnd;
}

/* What element i of the rank's memory holds before the operation. */
static uint64_t original(const simulation *sim, int rank, uint64_t i) {
  const rankState *r = &sim->ranks[rank];
  bool isInput = i >= r->sendAt && i < r->sendAt + r->sendLength;
  return isInput ? input(sim, rank, i - r->sendAt) : poison(sim, rank, i);
}

/* What element i of recvbuff must hold afterwards; totals[j]: whole reduction of sendbuff[j]. */
static uint64_t expected(const simulation *sim, const oracleCall *call, int rank, uint64_t i,
                         const uint64_t *totals) {
  uint64_t within = i % call->count;
  if (within < sim->begin || within - sim->begin >= sim->part)
    return original(sim, rank, sim->ranks[rank].recvAt + i);
  oracleSource from = oracleSourceOf(call, rank, i);
  return from.reduced ? totals[from.index] : input(sim, from.rank, from.index);
}

static void checkRank(simulation *sim, int rank, const uint64_t *totals) {
  const rankState *r = &sim->ranks[rank];
  const oracleCall call = callOf(sim);
  for (uint64_t i = 0; i < r->length && !sim->out->wrong; i++) {
    bool isResult = i >= r->recvAt && i < r->recvAt + r->recvLength;
    if (isResult && r->memory[i] != expected(sim, &call, rank, i - r->recvAt, totals))
      fault(sim, "wrong result", rank, i - r->recvAt);
    if (!isResult && r->memory[i] != original(sim, rank, i))
      fault(sim, "sendbuff changed", rank, i - r->sendAt);
  }
}

static void checkResults(simulation *sim) {
  uint64_t *totals = NULL;
  if (sim->reduces) {
    uint64_t length = sim->ranks[0].sendLength;
    totals = calloc(length + 1, sizeof *totals);
    if (totals == NULL) {
      sim->outOfMemory = true;
      return;
    }
    for (int rank = 0; rank < sim->n; rank++)
      for (uint64_t i = 0; i < length; i++)
        totals[i] += input(sim, rank, i);
    for (uint64_t i = 0; i < length; i++)
      totals[i] = finish(totals[i]);
  }
  for (int rank = 0; rank < sim->n; rank++)
    checkRank(sim, rank, totals);
  free(totals);
}

/* ---- FIFOs ---------------------------------------------------------------------------------- */

static bool makeFifo(simulation *sim, fifo *f, int32_t reader, bool isShared) {
  uint64_t depth = (uint64_t)sim->in->depth;
  f->slots = calloc(depth, sizeof *f->slots);
  f->payload = calloc(depth * sim->capacity, sizeof *f->payload);
  f->taken = calloc(isShared ? (size_t)sim->n : 1, sizeof *f->taken);
  f->reader = reader;
  return f->slots != NULL && f->payload != NULL && f->taken != NULL;
}

/* The FIFO from one rank to another; from a rank to itself: its shared FIFO. NULL without memory or
 * when the writer has more neighbours than a step has room for. */
static fifo *findFifo(simulation *sim, int32_t from, int32_t to) {
  fifo *row = &sim->fifos[(size_t)from * (size_t)sim->width];
  fifo *f = row;
  if (sim->width == sim->n)
    f = &row[to];
  else
    while (f < row + sim->width && f->reader >= 0 && f->reader != to)
      f++;
  if (f == row + sim->width) {
    fault(sim, "more neighbours than its algorithm has", from, sim->ranks[from].k);
    return NULL;
  }
  if (f->reader < 0 && !makeFifo(sim, f, to, from == to)) {
    sim->outOfMemory = true;
    return NULL;
  }
  return f;
}

static int32_t operands(const simulation *sim, const tuttiStep *step) {
  return step->nrecv == TUTTI_ALL ? sim->n - 1 : step->nrecv;
}

static int32_t results(const simulation *sim, const tuttiStep *step) {
  if (step->flags & TUTTI_STEP_SEND_SHARED) return 1;
  return step->nsend == TUTTI_ALL ? sim->n - 1 : step->nsend;
}

static fifo *operandFifo(simulation *sim, const rankState *r, int32_t i) {
  int32_t self = r->schedule.rank;
  int32_t peer = r->step.nrecv == TUTTI_ALL ? (self + 1 + i) % sim->n : r->step.recv[i];
  return findFifo(sim, peer, r->step.flags & TUTTI_STEP_RECV_SHARED ? peer : self);
}

static fifo *resultFifo(simulation *sim, const rankState *r, int32_t i) {
  int32_t self = r->schedule.rank;
  if (r->step.flags & TUTTI_STEP_SEND_SHARED) return findFifo(sim, self, self);
  return findFifo(sim, self,
                  r->step.nsend == TUTTI_ALL ? (self + 1 + i) % sim->n : r->step.send[i]);
}

static uint64_t *takenBy(fifo *f, const rankState *r) {
  bool isShared = (r->step.flags & TUTTI_STEP_RECV_SHARED) != 0;
  return &f->taken[isShared ? r->schedule.rank : 0];
}

static void wake(simulation *sim, fifo *f) {
  while (f->waiting >= 0) {
    sim->ready[sim->nready++] = f->waiting;
    f->waiting = sim->ranks[f->waiting].waiting;
  }
}

/* ---- steps ---------------------------------------------------------------------------------- */

static bool validPeers(const simulation *sim, const rankState *r, const int32_t *peers, int32_t n) {
  for (int32_t i = 0; i < n; i++)
    if (peers[i] < 0 || peers[i] >= sim->n || peers[i] == r->schedule.rank) return false;
  return n <= TUTTI_MAX_FAN && n >= TUTTI_ALL;
}

static bool within(uint64_t at, uint64_t count, uint64_t length) {
  return at <= length && count <= length - at;
}

/* What is wrong with the local operand, or NULL. */
static const char *operandFault(const rankState *r) {
  const tuttiStep *step = &r->step;
  bool written = (step->flags & TUTTI_STEP_SRC_WRITTEN) != 0;
  bool scratch = (step->flags & TUTTI_STEP_SRC_SCRATCH) != 0;
  uint64_t length = scratch ? r->scratchLength : written ? r->recvLength : r->sendLength;
  const uint8_t *made = scratch ? r->kept : written ? r->written : NULL;
  if (!within(step->src, step->count, length)) return "reads outside a buffer";
  for (uint64_t i = 0; made != NULL && i < step->count; i++)
    if (!made[step->src + i]) return "reads what no step has written";
  return NULL;
}

/* What is wrong with the rank's step in itself, or NULL. */
static const char *stepFault(const simulation *sim, const rankState *r) {
  const tuttiStep *step = &r->step;
  bool local = (step->flags & TUTTI_STEP_SRC) != 0;
  if (step->count > sim->in->chunk) return "step longer than a chunk";
  if (!validPeers(sim, r, step->recv, step->nrecv)) return "receives from an invalid rank";
  if (!validPeers(sim, r, step->send, step->nsend)) return "sends to an invalid rank";
  if (!local && step->nrecv == 0) return "step without operand";
  const char *what = local ? operandFault(r) : NULL;
  if (what != NULL) return what;
  if ((step->flags & TUTTI_STEP_DST) && !within(step->dst, step->count, r->recvLength))
    return "writes outside recvbuff";
  if ((step->flags & TUTTI_STEP_DST_SCRATCH) && !within(step->dst, step->count, r->scratchLength))
    return "writes outside its scratch memory";
  if ((step->flags & TUTTI_STEP_SEND_SHARED) && (!sim->in->shared || step->nsend != TUTTI_ALL))
    return "shared message without shared FIFO or not for all";
  if ((step->flags & TUTTI_STEP_RECV_SHARED) && !sim->in->shared)
    return "receives without shared FIFO";
  if (operands(sim, step) + local > 1 && !sim->reduces)
    return "reduces where nothing is to be reduced";
  return NULL;
}

static const uint64_t *localOperand(const rankState *r) {
  uint64_t from = r->step.flags & TUTTI_STEP_SRC_WRITTEN ? r->recvAt : r->sendAt;
  if (r->step.flags & TUTTI_STEP_SRC_SCRATCH) return r->scratch + r->step.src;
  return r->step.flags & TUTTI_STEP_SRC ? r->memory + from + r->step.src : NULL;
}

static uint64_t sumOf(const uint64_t *data, uint64_t count) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < count; i++)
    sum = sum * 3 + data[i];
  return sum;
}

/* Takes one message and adds it to the value. */
static void take(simulation *sim, rankState *r, fifo *f, bool isFirst) {
  const tuttiStep *step = &r->step;
  uint64_t *taken = takenBy(f, r);
  message *m = &f->slots[*taken % (uint64_t)sim->in->depth];
  if (m->count != step->count) {
    fault(sim, "message of another size than its receiver expects", r->schedule.rank, r->k);
    return;
  }
  if (sumOf(m->data, m->count) != m->sum)
    fault(sim, "message changed in its sender's buffer before all had taken it", r->schedule.rank,
          r->k);
  for (uint64_t i = 0; i < step->count; i++)
    sim->value[i] = (isFirst ? 0 : sim->value[i]) + m->data[i];
  r->received += m->count;
  if (m->chain > r->chain) r->chain = m->chain;
  (*taken)++;
  if (--m->left == 0) wake(sim, f);
}

/* Sends the value; from where it is if an executor could. */
static void send(simulation *sim, rankState *r, fifo *f) {
  const tuttiStep *step = &r->step;
  uint64_t slot = f->sent % (uint64_t)sim->in->depth;
  bool scratch = (step->flags & TUTTI_STEP_SRC_SCRATCH) != 0;
  bool mayStay = !scratch && (!sim->inPlace || (step->flags & TUTTI_STEP_STABLE));
  const uint64_t *operand = localOperand(r);
  message *m = &f->slots[slot];
  if (step->nrecv == 0 && mayStay) {
    m->data = operand;
  } else if (step->flags & TUTTI_STEP_DST) {
    m->data = r->memory + r->recvAt + step->dst;
  } else {
    uint64_t *copy = f->payload + slot * sim->capacity;
    memcpy(copy, sim->value, step->count * sizeof *copy);
    m->data = copy;
  }
  bool isShared = (step->flags & TUTTI_STEP_SEND_SHARED) != 0;
  m->count = step->count;
  m->sum = sumOf(m->data, m->count);
  m->chain = r->chain + 1;
  m->left = isShared ? sim->n - 1 : 1;
  f->sent++;
  if (sim->in->sent) sim->in->sent(sim->in->context, r->schedule.rank, f->reader, step->count);
  r->sent += step->count;
  sim->out->messages++;
  sim->out->wireElements += step->count;
  if (m->chain > sim->out->longestChain) sim->out->longestChain = m->chain;
  wake(sim, f);
}

static void store(simulation *sim, rankState *r) {
  const tuttiStep *step = &r->step;
  if (step->flags & TUTTI_STEP_DST_SCRATCH) {
    memcpy(r->scratch + step->dst, sim->value, step->count * sizeof *r->scratch);
    memset(r->kept + step->dst, 1, step->count);
  }
  if (!(step->flags & TUTTI_STEP_DST)) return;
  uint64_t *to = r->memory + r->recvAt + step->dst;
  for (uint64_t i = 0; i < step->count; i++) {
    if (r->written[step->dst + i])
      fault(sim, "recvbuff written twice", r->schedule.rank, step->dst + i);
    r->written[step->dst + i] = 1;
    to[i] = sim->value[i];
  }
}

static void execute(simulation *sim, rankState *r) {
  const tuttiStep *step = &r->step;
  const uint64_t *operand = localOperand(r);
  if (operand != NULL) memcpy(sim->value, operand, step->count * sizeof *operand);
  for (int32_t i = 0; i < operands(sim, step) && !sim->out->wrong; i++)
    take(sim, r, operandFifo(sim, r, i), i == 0 && operand == NULL);
  if (sim->out->wrong) return;
  if (sim->reduces && (step->flags & TUTTI_STEP_FINAL))
    for (uint64_t i = 0; i < step->count; i++)
      sim->value[i] = finish(sim->value[i]);
  store(sim, r);
  for (int32_t i = 0; i < results(sim, step); i++)
    send(sim, r, resultFifo(sim, r, i));
}

/* True if all messages and all room that the step needs are there; else the rank waits. What once
 * holds stays so until the rank itself acts. */
static bool conditionsMet(simulation *sim, rankState *r) {
  int32_t nrecv = operands(sim, &r->step), nsend = results(sim, &r->step);
  for (; r->met < nrecv + nsend; r->met++) {
    bool isSend = r->met >= nrecv;
    fifo *f = isSend ? resultFifo(sim, r, r->met - nrecv) : operandFifo(sim, r, r->met);
    if (f == NULL) return false;
    bool holds =
        isSend ? f->slots[f->sent % (uint64_t)sim->in->depth].left == 0 : *takenBy(f, r) < f->sent;
    if (!holds) {
      r->waiting = f->waiting;
      f->waiting = r->schedule.rank;
      return false;
    }
  }
  return true;
}

/* Runs up to `most` steps of a rank, as far as they can. */
static void advance(simulation *sim, rankState *r, uint64_t most) {
  for (; r->k < r->nsteps; r->k++, r->loaded = false) {
    if (!r->loaded) {
      tuttiScheduleStep(&r->schedule, r->k, &r->step);
      if (sim->in->edit != NULL) sim->in->edit(&r->schedule, r->k, &r->step);
      r->loaded = true;
      r->met = 0;
      if (r->step.count == 0) continue;
      const char *what = stepFault(sim, r);
      if (what != NULL) {
        fault(sim, what, r->schedule.rank, r->k);
        return;
      }
    }
    if (most-- == 0) {
      sim->ready[sim->nready++] = r->schedule.rank;
      return;
    }
    if (!conditionsMet(sim, r)) return;
    execute(sim, r);
    if (sim->out->wrong) return;
  }
  sim->ndone++;
}

/* ---- a whole run ---------------------------------------------------------------------------- */

static void setupRank(simulation *sim, int32_t rank) {
  const tuttiSimulation *in = sim->in;
  rankState *r = &sim->ranks[rank];
  tuttiSchedule *s = &r->schedule;
  s->coll = in->coll;
  s->algo = in->algo;
  s->root = in->root;
  s->shared = in->shared;
  s->twoShot = in->twoShot;
  s->count = in->count;
  s->begin = sim->begin;
  s->part = sim->part;
  s->chunk = in->chunk;
  tuttiScheduleSetup(s, in->graph, in->channel, rank);
  s->depth = in->depth;
  r->nsteps = tuttiScheduleSteps(s);
  r->scratchLength = tuttiScheduleScratch(s);
  layout(sim, rank, r);
}

static bool allocate(simulation *sim) {
  size_t n = (size_t)sim->n;
  bool doubles = sim->in->algo == tuttiAlgoDoubling;
  bool relays = sim->in->algo == tuttiAlgoHierarchical && sim->in->coll == tuttiCollAlltoAll;
  sim->width = sim->in->algo == tuttiAlgoDirect || relays ? sim->n : TUTTI_MAX_FAN;
  if (doubles) sim->width = 2 * tuttiRounds(sim->n) + 1; /* ahead and behind by powers of two */
  sim->capacity = sim->in->chunk < n * sim->part ? sim->in->chunk : n * sim->part;
  sim->ranks = calloc(n, sizeof *sim->ranks);
  sim->fifos = calloc(n * (size_t)sim->width, sizeof *sim->fifos);
  sim->value = calloc(sim->capacity + 1, sizeof *sim->value);
  sim->ready = calloc(n, sizeof *sim->ready);
  if (sim->ranks == NULL || sim->fifos == NULL || sim->value == NULL || sim->ready == NULL)
    return false;
  for (size_t f = 0; f < n * (size_t)sim->width; f++)
    sim->fifos[f].reader = sim->fifos[f].waiting = -1;
  for (int32_t rank = 0; rank < sim->n; rank++) {
    rankState *r = &sim->ranks[rank];
    setupRank(sim, rank);
    r->memory = calloc(r->length + 1, sizeof *r->memory);
    r->written = calloc(r->recvLength + 1, sizeof *r->written);
    r->scratch = calloc(r->scratchLength + 1, sizeof *r->scratch);
    r->kept = calloc(r->scratchLength + 1, sizeof *r->kept);
    if (!r->memory || !r->written || !r->scratch || !r->kept) return false;
    for (uint64_t i = 0; i < r->length; i++)
      r->memory[i] = original(sim, rank, i);
    sim->ready[sim->nready++] = rank;
  }
  return true;
}

static void release(simulation *sim) {
  for (int32_t rank = 0; sim->ranks != NULL && rank < sim->n; rank++) {
    free(sim->ranks[rank].memory);
    free(sim->ranks[rank].written);
    free(sim->ranks[rank].scratch);
    free(sim->ranks[rank].kept);
  }
  for (size_t f = 0; sim->fifos != NULL && f < (size_t)sim->n * (size_t)sim->width; f++) {
    free(sim->fifos[f].slots);
    free(sim->fifos[f].payload);
    free(sim->fifos[f].taken);
  }
  free(sim->ranks);
  free(sim->fifos);
  free(sim->value);
  free(sim->ready);
}

/* Ranks advance in random order: with an even seed each as far as it can, which lets it run ahead
 * of the others as far as the FIFOs allow; with an odd seed a few steps at a time. */
static void runAll(simulation *sim) {
  while (sim->nready > 0 && !sim->out->wrong && !sim->outOfMemory) {
    int32_t i = (int32_t)(nextRandom(sim) % (uint64_t)sim->nready);
    int32_t rank = sim->ready[i];
    sim->ready[i] = sim->ready[--sim->nready];
    uint64_t most = sim->in->seed % 2 == 0 ? UINT64_MAX : 1 + nextRandom(sim) % 4;
    advance(sim, &sim->ranks[rank], most);
  }
}

static void checkFifos(simulation *sim) {
  for (size_t f = 0; f < (size_t)sim->n * (size_t)sim->width; f++)
    for (int32_t d = 0; sim->fifos[f].slots != NULL && d < sim->in->depth; d++)
      if (sim->fifos[f].slots[d].left != 0) {
        int32_t writer = (int32_t)(f / (size_t)sim->width);
        fault(sim, "message never taken", writer, sim->ranks[writer].nsteps);
      }
}

static void judge(simulation *sim) {
  tuttiSimulationResult *out = sim->out;
  for (int32_t rank = sim->n - 1; rank >= 0; rank--) {
    const rankState *r = &sim->ranks[rank];
    if (r->sent > out->maxSent) out->maxSent = r->sent;
    if (r->received > out->maxReceived) out->maxReceived = r->received;
    if (sim->ndone < sim->n && r->k < r->nsteps && !out->wrong) {
      out->deadlock = true;
      out->stuckRank = rank;
      out->stuckStep = r->k;
    }
  }
  if (out->deadlock || out->wrong) return;
  checkFifos(sim);
  checkResults(sim);
}

bool tuttiSimulate(const tuttiSimulation *in, tuttiSimulationResult *result) {
  tuttiSimulationResult out = {.fault = "", .stuckRank = -1, .wrongRank = -1};
  simulation sim = {.in = in, .out = &out, .n = in->graph->nranks, .random = in->seed};
  sim.begin = in->part == 0 ? 0 : in->begin;
  sim.part = in->part == 0 ? in->count : in->part;
  sim.reduces = oracleReduces(in->coll);
  sim.inPlace = in->inPlace && in->coll != tuttiCollAlltoAll;
  sim.outOfMemory = !allocate(&sim);
  if (!sim.outOfMemory) runAll(&sim);
  if (!sim.outOfMemory) judge(&sim);
  release(&sim);
  if (sim.outOfMemory) return false;
  *result = out;
  return true;
}

/* ---- over a graph --------------------------------------------------------------------------- */

/* Recursive doubling: each of 2^k ranks sends everything k times; each other one sends it once and
 * gets it once. */
static uint64_t recursiveElements(uint64_t n, uint64_t count) {
  uint64_t taking = 1, rounds = 0;
  for (; 2 * taking <= n; taking *= 2)
    rounds++;
  return (taking * rounds + 2 * (n - taking)) * count;
}

/* The binary digits that are 1 in 1 .. n - 1: how often a block moves on its way there. */
static uint64_t digitsSet(uint64_t n) {
  uint64_t digits = 0;
  for (uint64_t i = 1; i < n; i++)
    digits += (uint64_t)__builtin_popcountll(i);
  return digits;
}

/* Every rank but the root moves the blocks of all ranks below it. */
static uint64_t subtreeElements(uint64_t n) {
  uint64_t blocks = 0;
  for (uint64_t v = 1; v < n; v++) {
    uint64_t width = v & -v;
    blocks += width < n - v ? width : n - v;
  }
  return blocks;
}

/* By way of the receiver's place in a grid: blocks for other hosts and places move twice. */
static uint64_t relayedElements(uint64_t n, uint64_t perHost, uint64_t count) {
  uint64_t inside = perHost - 1, across = n / perHost - 1;
  return n * (inside + across * (1 + 2 * inside)) * count;
}

uint64_t tuttiScheduleWireElements(int coll, int algo, bool shared, bool twoShot, int nranks,
                                   int perHost, uint64_t count) {
  uint64_t n = (uint64_t)nranks, others = n - 1;
  bool direct = algo == tuttiAlgoDirect, doubles = algo == tuttiAlgoDoubling && n > 1;
  /* Messages that carry an element to all others. */
  uint64_t toAll = direct && shared && n > 1 ? 1 : others;
  switch (coll) {
  case tuttiCollAllReduce:
    if (doubles && !twoShot) return recursiveElements(n, count);
    if (!direct) return 2 * others * count;
    return twoShot ? (others + toAll) * count : n * toAll * count;
  case tuttiCollAllGather:
    return twoShot ? (others + toAll * n) * count : n * toAll * count;
  case tuttiCollBroadcast:
    return toAll * count;
  case tuttiCollReduceScatter:
    return n * others * count;
  case tuttiCollAlltoAll:
    if (algo == tuttiAlgoHierarchical) return relayedElements(n, (uint64_t)perHost, count);
    return doubles ? n * digitsSet(n) * count : n * others * count;
  case tuttiCollGather:
  case tuttiCollScatter:
    return doubles ? subtreeElements(n) * count : others * count;
  default:
    return others * count;
  }
}

void tuttiScheduleSetup(tuttiSchedule *s, const tuttiGraph *graph, int channel, int rank) {
  s->rank = rank;
  s->nranks = graph->nranks;
  tuttiGraphPlace(graph, channel, oracleRooted(s->coll) ? s->root : -1, s);
  s->depth = (int32_t)TUTTI_FIFO_DEPTH;
}

/* An operation of a few bytes is over in a few hundred nanoseconds, half of which the executor
 * would take to lay out the state of a run and to give each of its parts a turn. So the steps of
 * such an operation are tried without, right from what is known of the schedule. */
#include "device/cpu/brief.h"

#include <string.h>

#include "base/backoff.h"
#include "base/os.h"
#include "device/cpu/reduce.h"
#include "transport/bell.h"

#define WIDTH 16   /* most messages of a step in one direction */
#define BYTES 2048 /* of a message at most; no executor lends one of so few */
#define LOOKS 256u /* at what a step waits for */
#define AHEAD 3    /* steps before a message is received it is asked for */

/* Whose steps are tried, and their scratch memory. */
typedef struct {
  const tuttiTask *task;
  size_t size; /* of an element */
  uint8_t *scratch;
} work;

/* The schedule is known, there is nothing behind it, and nobody asks for stamps, which the executor
 * takes while it waits. */
static bool isAlone(const tuttiTask *task) {
  const tuttiIdle *idle = task->context->idle;
  return task->known && task->known->steps <= TUTTI_KNOWN_STEPS && !task->next &&
         !(idle && idle->first);
}

static inline bool hasRoom(const tuttiKnownSteps *known, int fan) {
  return fan <= WIDTH && known->nconns + fan <= TUTTI_KNOWN_CONNS;
}

/* Adds the connections of one direction to those of the step; false: there are more than WIDTH, or
 * than there is room for, or one that has yet to be opened or goes over a network. */
__attribute__((always_inline)) static inline bool
addConns(const tuttiTask *task, const tuttiStep *step, tuttiDirection direction, int *found) {
  const tuttiSchedule *s = &task->schedule;
  bool sends = direction == TUTTI_SEND;
  bool shared = (step->flags & (sends ? TUTTI_STEP_SEND_SHARED : TUTTI_STEP_RECV_SHARED)) != 0;
  int count = sends ? step->nsend : step->nrecv;
  const int32_t *ranks = sends ? step->send : step->recv;
  bool toAll = sends && shared; /* through one FIFO, the last of its row */
  int fan = toAll && count != 0 ? 1 : count == TUTTI_ALL ? s->nranks - 1 : count;
  tuttiKnownSteps *known = task->known;
  if (!hasRoom(known, fan)) return false;
  tuttiConn **row = task->context->conns[direction][shared][task->channel];
  tuttiConn **conns = &known->pool[known->nconns];
  for (int i = 0; i < fan; i++) {
    int peer = toAll ? s->nranks : count == TUTTI_ALL ? i + (i >= s->rank) : ranks[i];
    conns[i] = row ? row[peer] : NULL;
    if (!conns[i] || conns[i]->network) return false;
  }
  *found = fan;
  known->nconns += fan;
  return true;
}

static bool findAll(const tuttiTask *task, const tuttiStep *step, tuttiStepConns *c) {
  tuttiKnownSteps *known = task->known;
  int before = known->nconns;
  *c = (tuttiStepConns){.conns = &known->pool[before]};
  if (step->count == 0 ||
      (addConns(task, step, TUTTI_RECV, &c->nrecv) && addConns(task, step, TUTTI_SEND, &c->nsend)))
    return true;
  known->nconns = before;
  return false;
}

/* Of step k; NULL: it, or one before, has some for which this is no way. */
static inline const tuttiStepConns *connsOf(const tuttiTask *task, uint64_t k) {
  tuttiKnownSteps *known = task->known;
  for (; known->found <= k; known->found++)
    if (!findAll(task, &known->first[known->found], &known->conns[known->found])) return NULL;
  return &known->conns[k];
}

/* Step k receives: asks for what the steps after it will, each of one peer, as far as they are
 * known. Their messages are on the way or there, and each comes from another core's cache. */
static inline void askAhead(const tuttiTask *task, uint64_t k, size_t size) {
  const tuttiKnownSteps *known = task->known;
  if (k + AHEAD >= known->found) return;
  const tuttiStepConns *c = &known->conns[k + AHEAD];
  if (c->nrecv != 1 || c->nsend > 0) return;
  const tuttiSlotDescriptor *slot = tuttiConnDescriptor(c->conns[0]);
  size_t bytes = known->first[k + AHEAD].count * size;
  bool inlined = bytes <= TUTTI_INLINE_MAX;
  __builtin_prefetch(slot);
  __builtin_prefetch(inlined ? (const uint8_t *)slot + TUTTI_LINE / 2
                             : tuttiConnData(c->conns[0], bytes));
}

static bool canHold(const tuttiConn *conn, size_t bytes) {
  return bytes <= TUTTI_INLINE_MAX || bytes <= conn->slotBytes;
}

/* Is this the message of the step, and where it should be? The slot is memory that a peer writes.
 */
static bool isRight(const tuttiTask *task, const tuttiConn *conn, size_t bytes) {
  const tuttiSlotDescriptor *slot = tuttiConnDescriptor(conn);
  tuttiSignature theirs = slot->sig;
  uint32_t where = bytes <= TUTTI_INLINE_MAX ? TUTTI_WHERE_INLINE : TUTTI_WHERE_SLOT;
  return slot->bytes == bytes && slot->where == where && canHold(conn, bytes) &&
         tuttiSignatureEqual(&task->signature, &theirs);
}

static void *payload(const tuttiConn *conn, size_t bytes) {
  return bytes <= TUTTI_INLINE_MAX ? tuttiConnDescriptor(conn)->inlined
                                   : tuttiConnData(conn, bytes);
}

/* All messages have come, and there is room for those of the step, soon enough. */
static bool comesSoon(const tuttiTask *task, const tuttiStepConns *c, size_t bytes) {
  uint32_t most = task->context->spins < LOOKS ? task->context->spins : LOOKS, looks = 0;
  for (int i = 0; i < c->nrecv + c->nsend; i++) {
    tuttiConn *conn = c->conns[i];
    bool receives = i < c->nrecv;
    uint32_t depth = tuttiConnDepth(conn, bytes);
    for (; !(receives ? tuttiConnReady(conn) : tuttiConnRoom(conn, depth)); looks++) {
      if (looks == most) return false;
      tuttiCpuRelax();
    }
    bool right = receives ? isRight(task, conn, bytes) : canHold(conn, bytes);
    if (!right) return false;
    if (receives && bytes > TUTTI_INLINE_MAX) __builtin_prefetch(tuttiConnData(conn, bytes));
    if (receives && looks == 0) tuttiConnLookAhead(conn); /* its writer is ahead */
  }
  return tuttiLoadAcquire32(task->context->failed) == 0;
}

/* The local operand is no input but what an earlier step has made. */
#define KEPT (TUTTI_STEP_SRC_WRITTEN | TUTTI_STEP_SRC_SCRATCH)

static const void *localOperand(const work *w, const tuttiStep *step) {
  const void *from = step->flags & TUTTI_STEP_SRC_SCRATCH   ? w->scratch
                     : step->flags & TUTTI_STEP_SRC_WRITTEN ? w->task->recvbuff
                                                            : w->task->sendbuff;
  return (const uint8_t *)from + step->src * w->size;
}

/* Where the step's value is stored; NULL: nowhere. */
static void *destination(const work *w, const tuttiStep *step) {
  if (step->flags & TUTTI_STEP_DST_SCRATCH) return w->scratch + step->dst * w->size;
  return step->flags & TUTTI_STEP_DST ? (uint8_t *)w->task->recvbuff + step->dst * w->size : NULL;
}

/* Fills the descriptor of a message; returns where its payload goes. */
static inline void *address(const tuttiTask *task, tuttiConn *conn, size_t bytes) {
  tuttiSlotDescriptor *slot = tuttiConnDescriptor(conn);
  slot->addr = 0;
  slot->bytes = (uint32_t)bytes;
  slot->where = bytes <= TUTTI_INLINE_MAX ? TUTTI_WHERE_INLINE : TUTTI_WHERE_SLOT;
  tuttiSlotSign(slot, &task->signature);
  return payload(conn, bytes);
}

/* The only operand goes on as it is. */
static void copy(const work *w, const tuttiStep *step, const tuttiStepConns *c) {
  size_t bytes = step->count * w->size;
  bool local = (step->flags & TUTTI_STEP_SRC) != 0;
  const void *from = local ? localOperand(w, step) : payload(c->conns[0], bytes);
  for (int i = c->nrecv; i < c->nrecv + c->nsend; i++)
    memcpy(address(w->task, c->conns[i], bytes), from, bytes);
  void *to = destination(w, step);
  if (to && to != from) memcpy(to, from, bytes);
}

/* The operands, the local one at its rank's place among the messages, as the executor has them. */
static int operands(const work *w, const tuttiStep *step, const tuttiStepConns *c, const void **in,
                    int *premul) {
  bool local = (step->flags & TUTTI_STEP_SRC) != 0;
  int n = 0;
  for (int i = 0; i <= c->nrecv; i++) {
    if (local && (i == c->nrecv || c->conns[i]->peer > w->task->schedule.rank)) {
      in[n++] = localOperand(w, step);
      if (w->task->premul && !(step->flags & KEPT)) *premul = n;
      local = false;
    }
    if (i < c->nrecv) in[n++] = payload(c->conns[i], step->count * w->size);
  }
  return n;
}

static void reduce(const work *w, const tuttiStep *step, const tuttiStepConns *c) {
  const tuttiTask *task = w->task;
  size_t bytes = step->count * w->size;
  const void *in[WIDTH + 1];
  void *out[WIDTH + 1], *to = destination(w, step);
  tuttiReduceArgs args = {.in = in,
                          .out = out,
                          .count = step->count,
                          .type = task->type,
                          .op = task->op,
                          .scalar = task->scalar,
                          .divide = step->flags & TUTTI_STEP_FINAL ? task->divide : 0};
  args.nin = operands(w, step, c, in, &args.premul);
  if (to) out[args.nout++] = to;
  for (int i = c->nrecv; i < c->nrecv + c->nsend; i++)
    out[args.nout++] = address(task, c->conns[i], bytes);
  tuttiReduceCopy(&args);
}

static void perform(const work *w, const tuttiStep *step, const tuttiStepConns *c) {
  int noperands = c->nrecv + ((step->flags & TUTTI_STEP_SRC) != 0);
  if (noperands == 1 && !w->task->premul && !w->task->divide)
    copy(w, step, c);
  else
    reduce(w, step, c);
}

/* Receivers wait: sends before releases, and all before somebody is woken. */
static void publish(const tuttiStepConns *c) {
  bool slept = false;
  for (int i = c->nsend - 1; i >= -c->nrecv; i--) {
    tuttiConn *conn = c->conns[c->nrecv + i];
    tuttiConnAdvance(conn);
    slept |= tuttiConnSlept(conn);
  }
  for (int i = 0; slept && i < c->nrecv + c->nsend; i++)
    tuttiConnRing(c->conns[i]);
}

uint64_t tuttiCpuRunBriefly(const tuttiTask *task, uint8_t *scratch, size_t bytes) {
  if (!isAlone(task) || task->known->scratch > bytes) return 0;
  const work w = {.task = task, .size = tuttiTypeSize(task->type), .scratch = scratch};
  uint64_t k = 0;
  for (; k < task->known->steps; k++) {
    const tuttiStep *step = &task->known->first[k];
    if (step->count * w.size > BYTES) break;
    const tuttiStepConns *c = connsOf(task, k);
    if (c && c->nrecv > 0) askAhead(task, k, w.size);
    if (!c || !comesSoon(task, c, step->count * w.size)) break;
    if (step->count == 0) continue;
    perform(&w, step, c);
    publish(c);
  }
  return k;
}

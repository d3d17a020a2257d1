#include "device/cpu/executor.h"
#include "device/cpu/reduce.h"

#include <errno.h>
#include <inttypes.h>

#include "base/backoff.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/ticks.h"
#include "device/cpu/brief.h"
#include "device/cpu/stores.h"
#include "proxy/proxy.h"
#include "transport/bell.h"
#include "transport/region.h"
#include "transport/remote.h"

#define BURST        8   /* most steps of one task before the others have their turn */
#define IDLE_LOOK    8   /* idle passes for one look at the clock, where stamps are asked for */
#define CLOCK_PASSES 256 /* passes between looks at the clock while something moves */
#define STALL_NS     100000000u
#define RING_US      1000  /* how much longer it sleeps where it will be woken */
#define LEND_BYTES   4096  /* below, a copy costs less than another core's cache misses */
#define AHEAD_BYTES  16384 /* below, asking the schedule twice costs more than a copy */
#define STACK_BYTES  16384 /* a run that needs no more than this allocates nothing */

/* A message of which the connection holds only the address: memory lent until the readers have
 * passed message number `upto`. */
typedef struct {
  tuttiConn *conn;
  uint64_t upto;
} loan;

/* One chain of tasks as a state machine: waits for the connections of its step, carries the step
 * out, goes on to the next; at the end of a task waits for the return of what it lent. */
typedef struct {
  tuttiTask *task; /* NULL: the chain has ended */
  uint64_t steps, k;
  size_t elementBytes;   /* of the task */
  size_t bytes;          /* of a message of this step */
  const tuttiStep *step; /* step k, if `loaded`: one that is known, or `asked` */
  tuttiStep asked;
  bool loaded;
  bool announced;    /* the network may put its message where it belongs */
  bool looksAhead;   /* ... and those of later steps: */
  uint64_t looked;   /*   all before this one have been announced */
  int width;         /* most peers that a schedule of the chain has */
  int nrecv, nsend;  /* of this step */
  int ready;         /* so many of conns were ready, and stay so */
  tuttiConn **conns; /* [2 * width]: nrecv, then nsend */
  loan *loans;       /* [width]: at most one for each connection */
  uint8_t *scratch;  /* what the schedules of the chain need most, or NULL */
  int nloans;
  uint64_t moves;       /* counts progress */
  uint64_t movesSeen;   /* `moves` when the clock was last looked at */
  uint64_t since, told; /* when this wait began, and when `stalled` was last told of it */
} runner;

typedef struct {
  runner *runners; /* [live]; those that have ended are dropped */
  int live;
  const void **in; /* operands and outputs of one step */
  void **out;
  struct tuttiProxy **proxies; /* without duplicates */
  int nproxies;
  tuttiIdle *idle; /* NULL: no stamps are asked for */
  uint32_t idles;  /* passes in which nothing moved */
  uint32_t spins, napUs;
  bool waited; /* the first pass has not done it all */
} execution;

/* ---- connections ----------------------------------------------------------------------------- */

/* Finds the connections of one direction of a step, and their number. Inline, as a direction
 * known to the compiler halves it. */
__attribute__((always_inline)) static inline tuttiResult_t
findConns(const runner *r, const tuttiStep *step, tuttiDirection direction, tuttiConn **conns,
          int *found) {
  const tuttiSchedule *s = &r->task->schedule;
  const tuttiTaskContext *context = r->task->context;
  int channel = r->task->channel;
  bool sends = direction == TUTTI_SEND;
  uint32_t flag = sends ? TUTTI_STEP_SEND_SHARED : TUTTI_STEP_RECV_SHARED;
  bool shared = (step->flags & flag) != 0;
  int count = sends ? step->nsend : step->nrecv;
  const int32_t *ranks = sends ? step->send : step->recv;
  bool toAll = sends && shared; /* through one FIFO, whose peer is -1 */
  int fan = toAll ? 1 : count == TUTTI_ALL ? s->nranks - 1 : count;
  if (fan > r->width)
    return TUTTI_FAIL(tuttiInternalError,
                      "a step of %s on rank %d has %d messages, more than the %d of its "
                      "algorithm: a bug in tutti's schedules, please report it",
                      tuttiCollName(s->coll), s->rank, fan, r->width);
  tuttiConn **row = context->conns[direction][shared][channel];
  for (int i = 0; i < fan; i++) {
    int peer = toAll ? -1 : count == TUTTI_ALL ? i + (i >= s->rank) : ranks[i];
    conns[i] = row ? row[toAll ? s->nranks : peer] : NULL;
    if (!conns[i])
      TUTTI_TRY(context->conn(context->comm, peer, channel, direction, shared, &conns[i]));
  }
  *found = fan;
  return tuttiSuccess;
}

/* The step, which receives so many messages, stores one as it is. */
static bool storesOnly(const runner *r, const tuttiStep *step, int nrecv) {
  uint32_t flags = step->flags;
  bool divides = (flags & TUTTI_STEP_FINAL) && r->task->divide > 1;
  bool stores = (flags & (TUTTI_STEP_DST | TUTTI_STEP_DST_SCRATCH)) != 0;
  return nrecv == 1 && !(flags & TUTTI_STEP_SRC) && stores && !divides;
}

/* Where the step's value is stored, if it is. */
static uint8_t *destination(const runner *r, const tuttiStep *step) {
  bool scratch = (step->flags & TUTTI_STEP_DST_SCRATCH) != 0;
  return (scratch ? r->scratch : (uint8_t *)r->task->recvbuff) + step->dst * r->elementBytes;
}

static const tuttiStep *stepOf(const runner *r, uint64_t k, tuttiStep *asked) {
  const tuttiKnownSteps *known = r->task->known;
  if (known && k < TUTTI_KNOWN_STEPS) return &known->first[k];
  tuttiScheduleStep(&r->task->schedule, k, asked);
  return asked;
}

/* A large message from a network that is only stored need not go through a slot. */
static void announce(runner *r) {
  tuttiConn *conn = r->conns[0];
  r->announced = r->bytes >= LEND_BYTES && storesOnly(r, r->step, r->nrecv) && conn->network;
  if (r->announced && r->looked <= r->k)
    tuttiConnPostReceive(conn, conn->next, destination(r, r->step), r->bytes);
  for (int i = 0; i < r->nrecv && !r->announced && r->bytes >= LEND_BYTES; i++)
    if (r->conns[i]->network) tuttiConnPostNone(r->conns[i]);
}

/* Whether places of messages may be announced before their steps come. Others than these, which
 * gather what is only stored, would have the network write where an earlier step still reads. */
static bool mayLookAhead(const tuttiTask *task) {
  const tuttiSchedule *s = &task->schedule;
  uint64_t most = s->part < s->chunk ? s->part : s->chunk;
  bool gathers = s->coll == tuttiCollGather || s->coll == tuttiCollAllGather ||
                 (s->coll == tuttiCollAlltoAll && !task->inPlace);
  return gathers && s->algo != tuttiAlgoDoubling && s->nranks > 2 &&
         most * tuttiTypeSize(task->type) >= AHEAD_BYTES;
}

/* The same for steps to come, as far as FIFOs have room: peers send at once what is taken from one
 * after the other. */
static tuttiResult_t lookAhead(runner *r) {
  if (r->looked < r->k) r->looked = r->k;
  for (; r->looksAhead && r->looked < r->steps; r->looked++) {
    tuttiStep asked;
    const tuttiStep *step = stepOf(r, r->looked, &asked);
    tuttiConn *conn;
    int found;
    if (step->count == 0 || step->nrecv == 0) continue;
    r->looksAhead = step->nrecv == 1;
    if (!r->looksAhead) break;
    TUTTI_TRY(findConns(r, step, TUTTI_RECV, &conn, &found));
    r->looksAhead = conn->network;
    if (!r->looksAhead) break;
    if (conn->ahead < conn->next) conn->ahead = conn->next;
    if (conn->ahead >= conn->next + TUTTI_FIFO_DEPTH) break;
    uint64_t m = conn->ahead++;
    size_t bytes = step->count * r->elementBytes;
    if (storesOnly(r, step, 1) && bytes >= LEND_BYTES)
      tuttiConnPostReceive(conn, m, destination(r, step), bytes);
  }
  return tuttiSuccess;
}

/* Makes `step` the next one that does anything; `loaded` stays false at the end. */
static tuttiResult_t load(runner *r) {
  for (; !r->loaded && r->k < r->steps; r->k++) {
    const tuttiStep *step = stepOf(r, r->k, &r->asked);
    if (step->count == 0) continue;
    r->step = step;
    r->nrecv = r->nsend = 0;
    if (step->nrecv) TUTTI_TRY(findConns(r, step, TUTTI_RECV, r->conns, &r->nrecv));
    if (step->nsend) TUTTI_TRY(findConns(r, step, TUTTI_SEND, r->conns + r->nrecv, &r->nsend));
    r->ready = 0;
    r->bytes = step->count * r->elementBytes;
    r->loaded = true;
    if (r->looksAhead) TUTTI_TRY(lookAhead(r));
    announce(r);
    return tuttiSuccess;
  }
  return tuttiSuccess;
}

/* ---- one step -------------------------------------------------------------------------------- */

/* Is what lies at the head of a receiving connection the message of this step? The slot is memory
 * that a peer writes: nothing in it is used before it was checked. */
static tuttiResult_t checkMessage(const runner *r, const tuttiConn *conn) {
  const tuttiTask *task = r->task;
  const tuttiSlotDescriptor *slot = tuttiConnDescriptor(conn);
  tuttiSignature theirs = slot->sig;
  if (!tuttiSignatureEqual(&task->signature, &theirs))
    return task->context->mismatch(task->context->comm, conn->peer, &task->signature, &theirs);
  bool reachable = conn->direct || (conn->writer.pid != 0 && storesOnly(r, r->step, r->nrecv));
  bool fits = (slot->where == TUTTI_WHERE_INLINE && r->bytes <= TUTTI_INLINE_MAX) ||
              (slot->where == TUTTI_WHERE_SLOT && r->bytes <= conn->slotBytes) ||
              (slot->where == TUTTI_WHERE_DIRECT && reachable && slot->addr != 0);
  if (slot->bytes == r->bytes && fits) return tuttiSuccess;
  char text[160];
  return TUTTI_FAIL(tuttiInvalidUsage,
                    "message %" PRIu64 " from rank %d to rank %d on channel %d, of %s, holds %u "
                    "bytes (place %u) instead of %zu: the ranks split the operation differently. "
                    "Give all ranks the same TUTTI_ settings and the same build of tutti",
                    conn->next, conn->peer, task->schedule.rank, conn->channel,
                    tuttiSignatureText(&task->signature, text, sizeof text), slot->bytes,
                    slot->where, r->bytes);
}

/* *go: all messages that the step needs have come and all slots that it fills are free. */
static tuttiResult_t poll(const execution *e, runner *r, bool *go) {
  int needed = r->nrecv + r->nsend;
  while (r->ready < needed) {
    tuttiConn *conn = r->conns[r->ready];
    bool ready = r->ready < r->nrecv ? tuttiConnReady(conn)
                                     : tuttiConnRoom(conn, tuttiConnDepth(conn, r->bytes));
    if (!ready) break;
    if (r->ready < r->nrecv) {
      TUTTI_TRY(checkMessage(r, conn));
      if (!e->waited) tuttiConnLookAhead(conn); /* which was there before it was asked for */
    }
    r->ready++;
    r->moves++;
  }
  *go = r->ready == needed;
  return tuttiSuccess;
}

static const void *payload(const tuttiConn *conn, size_t bytes) {
  const tuttiSlotDescriptor *slot = tuttiConnDescriptor(conn);
  if (slot->where == TUTTI_WHERE_INLINE) return slot->inlined;
  if (slot->where == TUTTI_WHERE_SLOT) return tuttiConnData(conn, bytes);
  return (const void *)(uintptr_t)slot->addr;
}

/* The local operand is no input but what an earlier step has made. */
#define KEPT (TUTTI_STEP_SRC_WRITTEN | TUTTI_STEP_SRC_SCRATCH)

/* The operands, the local one at its rank's place among the messages: receivers of the same
 * operands reduce them in the same order, to the same bits. */
static void gatherOperands(const runner *r, const void **in, tuttiReduceArgs *args) {
  const tuttiTask *task = r->task;
  const tuttiStep *step = r->step;
  bool local = (step->flags & TUTTI_STEP_SRC) != 0;
  int at = local ? 0 : r->nrecv;
  while (at < r->nrecv && r->conns[at]->peer < task->schedule.rank)
    at++;
  for (int i = 0; i < r->nrecv; i++)
    in[i + (i >= at)] = payload(r->conns[i], r->bytes);
  if (local) {
    const void *from = step->flags & TUTTI_STEP_SRC_SCRATCH   ? r->scratch
                       : step->flags & TUTTI_STEP_SRC_WRITTEN ? task->recvbuff
                                                              : task->sendbuff;
    in[at] = (const uint8_t *)from + step->src * r->elementBytes;
    if (task->premul && !(step->flags & KEPT)) args->premul = at + 1;
  }
  args->in = in;
  args->nin = r->nrecv + local;
}

/* Memory that holds this step's value and keeps it until the end of the task, so that readers who
 * can reach it need no copy; NULL if there is none.
 *
 * - A copy of local memory: sendbuff, which nobody writes unless the operation is in place; in
 *   place, and for recvbuff, the schedule vouches for it with STEP_STABLE.
 * - recvbuff[dst] that this step writes, if it is a result: a schedule has no cause to write over a
 *   whole reduction (STEP_FINAL). Nor over a message that was stored unchanged: this rank's own
 *   input is not in it and could not be added any more, for no step has two local operands. So it
 *   was no partial sum but data that its sender was done with. */
static const void *lendable(const runner *r, const tuttiReduceArgs *args) {
  const tuttiTask *task = r->task;
  uint32_t flags = r->step->flags;
  if (r->bytes < LEND_BYTES) return NULL;
  bool copy = args->nin == 1 && args->premul == 0 && args->divide <= 1;
  if (copy && r->nrecv == 0) {
    bool untouched = (flags & TUTTI_STEP_SRC) && !(flags & KEPT) && !task->inPlace;
    return untouched || (flags & TUTTI_STEP_STABLE) ? args->in[0] : NULL;
  }
  if (!(flags & TUTTI_STEP_DST) || !(copy || (flags & TUTTI_STEP_FINAL))) return NULL;
  return (uint8_t *)task->recvbuff + r->step->dst * r->elementBytes;
}

/* The readers can have the lent memory without a copy made here. (A network that made one itself
 * would keep the memory until the peer has acknowledged the message.) */
static bool reaches(const runner *r, tuttiConn *conn, const void *lent) {
  tuttiRegion region;
  if (conn->direct) return !conn->registered || tuttiRegionFind(lent, r->bytes, &region);
  return r->task->plan.fetch && r->bytes >= TUTTI_FETCH_MIN && tuttiConnFetched(conn);
}

static void lend(runner *r, tuttiConn *conn) {
  loan *l = r->loans;
  while (l < r->loans + r->nloans && l->conn != conn)
    l++;
  if (l == r->loans + r->nloans) r->nloans++;
  *l = (loan){conn, conn->next + 1};
}

/* Fills the slot lines of a step's sends; where the payload is to be written goes to out. */
static tuttiResult_t addressSends(runner *r, const void *lent, void **out, int *nout) {
  size_t bytes = r->bytes;
  for (int i = 0; i < r->nsend; i++) {
    tuttiConn *conn = r->conns[r->nrecv + i];
    tuttiSlotDescriptor *slot = tuttiConnDescriptor(conn);
    slot->bytes = (uint32_t)bytes;
    tuttiSlotSign(slot, &r->task->signature);
    slot->addr = 0;
    if (lent && reaches(r, conn, lent)) {
      slot->where = TUTTI_WHERE_DIRECT;
      slot->addr = (uintptr_t)lent;
      lend(r, conn);
    } else if (bytes <= TUTTI_INLINE_MAX) {
      slot->where = TUTTI_WHERE_INLINE;
      out[(*nout)++] = slot->inlined;
    } else if (bytes <= conn->slotBytes) {
      slot->where = TUTTI_WHERE_SLOT;
      out[(*nout)++] = tuttiConnData(conn, bytes);
    } else {
      return TUTTI_FAIL(tuttiInternalError,
                        "a message of %zu bytes from rank %d to rank %d on channel %d does not fit "
                        "in the %zu of a slot: a bug in tutti's planner, please report it",
                        bytes, r->task->schedule.rank, conn->peer, conn->channel, conn->slotBytes);
    }
  }
  return tuttiSuccess;
}

/* Is a message of the step lent by another thread? */
static bool isLent(const tuttiConn *conn) {
  return conn->direct && !conn->network && tuttiConnDescriptor(conn)->where == TUTTI_WHERE_DIRECT;
}

/* If the step's message is in another process, copies it to its place and makes that the operand.
 * *come is false if the writer is gone: the reason is on its way, and this step is never done. */
static tuttiResult_t fetch(const runner *r, const void **in, void *const *out, bool *come) {
  *come = true;
  if (r->nrecv != 1) return tuttiSuccess;
  tuttiConn *conn = r->conns[0];
  const tuttiSlotDescriptor *slot = tuttiConnDescriptor(conn);
  if (conn->direct || slot->where != TUTTI_WHERE_DIRECT) return tuttiSuccess;
  int err = tuttiRemoteRead(&conn->writer, out[0], slot->addr, r->bytes);
  *come = err == 0 && !tuttiConnWithdrawn(conn);
  if (*come) in[0] = out[0];
  if (err == 0 || err == ESRCH || tuttiConnWithdrawn(conn)) return tuttiSuccess;
  return TUTTI_FAIL(tuttiSystemError,
                    "rank %d can't copy %zu bytes at %#" PRIx64
                    " out of the memory of rank %d (pid %d): %s; keep the buffers until the call "
                    "returns; TUTTI_CMA_DISABLE=1 avoids such copies",
                    r->task->schedule.rank, r->bytes, slot->addr, conn->peer, conn->writer.pid,
                    tuttiErrnoText(err));
}

static void endBorrowing(const runner *r, int borrowed) {
  for (int i = 0; i < borrowed; i++)
    if (isLent(r->conns[i])) tuttiConnReturn(r->conns[i]);
}

/* False if a lender has failed: the reason is on its way, and this step will never be done. */
static bool beginBorrowing(const runner *r) {
  for (int i = 0; i < r->nrecv; i++) {
    if (!isLent(r->conns[i]) || tuttiConnBorrow(r->conns[i])) continue;
    endBorrowing(r, i);
    return false;
  }
  return true;
}

/* Stores the step's value, to where args say: the result, and slots. */
static void store(execution *e, const runner *r, tuttiReduceArgs *args) {
  const tuttiStep *step = r->step;
  int results = (step->flags & (TUTTI_STEP_DST | TUTTI_STEP_DST_SCRATCH)) != 0;
  int slots = args->nout - results;
  tuttiConn *first = NULL; /* which has a slot to fill */
  for (int i = 0; i < r->nsend && slots > 0 && !first; i++) {
    tuttiConn *conn = r->conns[r->nrecv + i];
    if (tuttiConnDescriptor(conn)->where == TUTTI_WHERE_SLOT && !conn->network) first = conn;
  }
  if (first) {
    tuttiStoreSlots(&first->stores, args, e->in, e->out, slots);
    return;
  }
  /* What is passed on may be lent: another core reads it now. */
  bool ends = (step->flags & TUTTI_STEP_DST) && (r->nrecv == 0 || r->nsend == 0);
  bool copy = args->nin == 1 && args->premul == 0 && args->divide <= 1;
  args->nstreams = ends && copy && args->nout == 1 && r->task->plan.streams;
  tuttiReduceCopy(args);
}

/* Carries out the step, all of whose connections are ready, unless it turns out that the writer of
 * a message has gone (*go). */
static tuttiResult_t perform(execution *e, runner *r, bool *go) {
  const tuttiTask *task = r->task;
  const tuttiStep *step = r->step;
  tuttiReduceArgs args = {
      .out = e->out,
      .count = step->count,
      .type = task->type,
      .op = task->op,
      .scalar = task->scalar,
      .divide = step->flags & TUTTI_STEP_FINAL ? task->divide : 0,
  };
  gatherOperands(r, e->in, &args);
  if (step->flags & (TUTTI_STEP_DST | TUTTI_STEP_DST_SCRATCH))
    e->out[args.nout++] = destination(r, step);
  TUTTI_TRY(addressSends(r, lendable(r, &args), e->out, &args.nout));
  TUTTI_TRY(fetch(r, e->in, e->out, go));
  if (!*go) return tuttiSuccess;
  store(e, r, &args);
  endBorrowing(r, r->nrecv);

  bool sent = false, freed = false, slept = false;
  for (int i = r->nsend - 1; i >= -r->nrecv; i--) { /* receivers wait: sends before releases */
    tuttiConn *conn = r->conns[r->nrecv + i];
    tuttiConnAdvance(conn);
    sent |= conn->network && i >= 0;
    freed |= conn->network && i < 0;
    slept |= tuttiConnSlept(conn);
  }
  for (int i = 0; slept && i < r->nrecv + r->nsend; i++)
    tuttiConnRing(r->conns[i]);
  if (sent)
    tuttiProxyKick(task->context->proxy);
  else if (freed)
    tuttiProxyFreed(task->context->proxy);
  r->loaded = r->announced = false;
  r->k++;
  r->moves++;
  return tuttiSuccess;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

static void begin(runner *r, tuttiTask *task) {
  r->task = task;
  r->moves++;
  if (!task) return;
  r->k = 0;
  r->steps = task->known ? task->known->steps : tuttiScheduleSteps(&task->schedule);
  r->elementBytes = tuttiTypeSize(task->type);
  r->looksAhead = mayLookAhead(task);
  r->looked = 0;
}

static bool loansReturned(runner *r) {
  for (; r->nloans > 0; r->nloans--) {
    const loan *l = &r->loans[r->nloans - 1];
    if (tuttiConnCredit(l->conn) < l->upto) return false;
  }
  return true;
}

/* The run waits, so that to look at the clock takes least from it. */
static void stampIdle(tuttiIdle *idle) {
  uint64_t now = tuttiTicks();
  if (idle->last == 0) tuttiStoreRelaxed(idle->first, now);
  idle->last = now;
}

/* The stamp of a run that may not wait at all: it asks for the messages first, and looks at the
 * clock while they are on their way from another core's cache. Behind the load that tells whether
 * they have come, the same look would wait for it. */
static void lookFirst(execution *e, const runner *r) {
  for (int i = 0; i < r->nrecv; i++)
    __builtin_prefetch(tuttiConnDescriptor(r->conns[i]));
  stampIdle(e->idle);
  e->idles = 1;
}

static tuttiResult_t advance(execution *e, runner *r) {
  for (int i = 0; i < BURST && r->task; i++) {
    const tuttiTaskContext *context = r->task->context;
    if (tuttiLoadAcquire32(context->failed) != 0) return context->failure(context->comm);
    if (!r->loaded) TUTTI_TRY(load(r));
    bool go = true;
    if (r->loaded) {
      if (e->idle && r->nrecv > 0 && e->idle->last == 0) lookFirst(e, r);
      TUTTI_TRY(poll(e, r, &go));
      go = go && beginBorrowing(r);
      if (go) TUTTI_TRY(perform(e, r, &go));
    }
    if (!go) break;
    if (r->k < r->steps) continue;
    if (!loansReturned(r)) break;
    begin(r, r->task->next);
  }
  return tuttiSuccess;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Has no other task of the same communicator waited longer? One report tells it all. */
static bool waitsLongest(const execution *e, const runner *r) {
  for (const runner *o = e->runners; o < e->runners + e->live; o++) {
    if (o->task->context->comm == r->task->context->comm && o->moves == o->movesSeen &&
        (o->since < r->since || (o->since == r->since && o < r)))
      return false;
  }
  return true;
}

/* One that has used up its turn may be between two steps, and then waits for nothing. */
static bool waits(const runner *r) {
  return r->loaded || r->nloans > 0;
}

/* The connection that a runner which waits does so for: the first that is not ready; if all are,
 * the lender that has withdrawn; behind the last step, a reader of what was lent. */
static const tuttiConn *awaited(const runner *r) {
  if (!r->loaded) return r->loans[r->nloans - 1].conn;
  if (r->ready < r->nrecv + r->nsend) return r->conns[r->ready];
  int i = 0;
  while (i + 1 < r->nrecv && !(isLent(r->conns[i]) && tuttiConnWithdrawn(r->conns[i])))
    i++;
  return r->conns[i];
}

/* Whether a runner's step waits for this connection, of those that it has not found ready yet. */
static bool awaits(const runner *r, int i) {
  const tuttiConn *conn = r->conns[i];
  if (i == r->ready) return true;
  if (conn->direction == TUTTI_SEND) return conn->next >= conn->credit + TUTTI_FIFO_DEPTH;
  return tuttiLoadAcquire(&tuttiConnDescriptor(conn)->seq) != conn->next + 1;
}

/* Tells the communicator what its runners wait for. */
static void tellWaits(const execution *e, const tuttiTaskContext *context) {
  tuttiAwaited list[TUTTI_AWAITED];
  int n = 0;
  for (const runner *r = e->runners; r < e->runners + e->live; r++) {
    if (r->task->context->comm != context->comm || r->moves != r->movesSeen || !waits(r)) continue;
    int last = r->loaded ? r->nrecv + r->nsend : 0;
    if (n < TUTTI_AWAITED && (r->ready >= last)) list[n++] = (tuttiAwaited){awaited(r), r->since};
    for (int i = r->ready; i < last && n < TUTTI_AWAITED; i++)
      if (awaits(r, i)) list[n++] = (tuttiAwaited){r->conns[i], r->since};
  }
  context->waits(context->comm, list, n);
}

/* Looks at the clock and tells communicators whose tasks have not moved for long. */
static tuttiResult_t watchClock(execution *e) {
  uint64_t now = tuttiNow();
  for (runner *r = e->runners; r < e->runners + e->live; r++) {
    if (r->moves != r->movesSeen) {
      r->movesSeen = r->moves;
      r->since = r->told = now;
    } else if (now - r->told >= STALL_NS && waitsLongest(e, r)) {
      r->told = now;
      const tuttiTaskContext *context = r->task->context;
      tellWaits(e, context);
      TUTTI_TRY(context->stalled(context->comm, &r->task->signature, awaited(r)->peer,
                                 (now - r->since) / 1000000));
    }
  }
  return tuttiSuccess;
}

/* One turn for every runner and proxy. */
static tuttiResult_t pass(execution *e, bool *moved) {
  for (int i = 0; i < e->live;) {
    runner *r = &e->runners[i];
    uint64_t before = r->moves;
    TUTTI_TRY(advance(e, r));
    *moved |= r->moves != before;
    if (r->task)
      i++;
    else if (r != &e->runners[--e->live])
      *r = e->runners[e->live];
  }
  for (int i = 0; i < e->nproxies && e->live > 0; i++) /* the end is Leave's */
    *moved |= tuttiProxyRun(e->proxies[i]);
  return tuttiSuccess;
}

/* Where the thread may sleep: where it is told of what its first task waits for. NULL: nowhere, as
 * only a pass of the proxy shows what comes over a network, or it has to be looked for. */
static tuttiAtomic32 *bellOf(const execution *e) {
  const runner *r = &e->runners[0];
  bool withdrawn = r->loaded && r->ready == r->nrecv + r->nsend; // NOLINT: set as the run begins
  return e->nproxies > 0 || withdrawn ? NULL : tuttiConnBell(awaited(r));
}

/* Sleeps until somebody rings, or a socket has something, or so long. What other tasks wait for,
 * and a failure, ring nowhere. */
static tuttiResult_t sleepFor(execution *e, uint32_t us, bool *moved) {
  tuttiAtomic32 *bell = bellOf(e);
  if (!bell && e->nproxies == 1)
    tuttiProxyNap(e->proxies[0], us);
  else if (!bell)
    tuttiNap(us);
  if (!bell) return tuttiSuccess;
  tuttiBellSet(bell);
  tuttiResult_t result = pass(e, moved);
  if (result == tuttiSuccess && !*moved) tuttiBellSleep(bell, e->live > 1 ? us : us + RING_US);
  tuttiBellUnset(bell);
  return result;
}

static tuttiResult_t drive(execution *e) {
  uint32_t passes = 0;
  tuttiBackoff backoff = {.spins = e->spins, .napUs = e->napUs};
  for (;;) {
    bool moved = false;
    TUTTI_TRY(pass(e, &moved));
    if (e->live == 0) return tuttiSuccess;
    e->waited = true;
    /* Not each time: who looks at the clock sees so much later what has come. */
    if (e->idle && !moved && e->idles++ % IDLE_LOOK == 0) stampIdle(e->idle);
    uint32_t us = moved ? 0 : tuttiBackoffStep(&backoff);
    if (us > 0) TUTTI_TRY(sleepFor(e, us, &moved));
    if (e->live == 0) return tuttiSuccess;
    if (e->idle && us > 0) stampIdle(e->idle);
    if (moved) tuttiBackoffReset(&backoff);
    /* Behind the spins each pause is a system call, next to which the clock costs nothing. */
    if (backoff.round > backoff.spins || ++passes % CLOCK_PASSES == 0) TUTTI_TRY(watchClock(e));
  }
}

static inline int chainWidth(const tuttiTask *task) {
  int width = 1;
  do {
    const tuttiSchedule *s = &task->schedule;
    if (s->coll == tuttiCollSendRecv) continue;
    int v = tuttiSchedulePeers(s->coll, s->algo, s->nranks);
    if (v > width) width = v;
  } while ((task = task->next) != NULL);
  return width;
}

/* Of scratch memory that the tasks of a chain, one after the other, need. */
static inline size_t chainScratch(const tuttiTask *task) {
  size_t most = 0;
  do {
    uint64_t elements = tuttiScheduleScratch(&task->schedule);
    if (elements == 0) continue;
    size_t bytes = elements * tuttiTypeSize(task->type);
    if (bytes > most) most = bytes;
  } while ((task = task->next) != NULL);
  return (most + TUTTI_LINE - 1) / TUTTI_LINE * TUTTI_LINE;
}

/* Bytes of everything that a run of so many tasks needs, none wider than `width`: runners, their
 * connections and loans, operands and outputs of one step, proxies; behind scratch memory. */
static size_t runBytes(size_t ntasks, size_t width) {
  return ntasks * (sizeof(runner) + width * (2 * sizeof(tuttiConn *) + sizeof(loan))) +
         2 * (width + 1) * sizeof(void *) + ntasks * sizeof(struct tuttiProxy *);
}

static void addContext(execution *e, const tuttiTaskContext *context) {
  if (context->spins < e->spins) e->spins = context->spins;
  if (context->napUs > e->napUs) e->napUs = context->napUs;
  if (!context->proxy) return;
  int p = 0;
  while (p < e->nproxies && e->proxies[p] != context->proxy)
    p++;
  if (p == e->nproxies) e->proxies[e->nproxies++] = context->proxy;
}

static inline void layOut(execution *e, uint8_t *memory, tuttiTask **tasks, int ntasks, int width,
                          size_t scratch) {
  size_t n = (size_t)ntasks, v = (size_t)width;
  e->live = ntasks;
  e->runners = (runner *)(void *)(memory + scratch);
  loan *loans = (loan *)(e->runners + n);
  tuttiConn **conns = (tuttiConn **)(loans + n * v);
  e->in = (const void **)(conns + 2 * n * v);
  e->out = (void **)(e->in + v + 1);
  e->proxies = (struct tuttiProxy **)(e->out + v + 1);
  for (runner *r = e->runners; r < e->runners + n; r++, loans += v, conns += 2 * v) {
    r->width = width;
    r->conns = conns;
    r->loans = loans;
    r->scratch = memory;
    if (scratch) memory += chainScratch(*tasks);
    r->nloans = 0;
    r->loaded = r->announced = false;
    r->moves = r->movesSeen = 0; /* unequal below, so the first look at the clock sets the rest */
    begin(r, *tasks);
    addContext(e, (*tasks++)->context);
  }
}

/* Memory for a run that the caller's stack has no room for. What brief steps have kept there,
 * `kept` bytes, goes along. */
static tuttiResult_t moveOut(const uint8_t *stack, size_t kept, size_t bytes, void **heap) {
  TUTTI_TRY(tuttiAlloc(heap, bytes, 1, "state of running operations", NULL));
  memcpy(*heap, stack, kept);
  return tuttiSuccess;
}

/* After a failure: takes back what other threads, or a proxy, may still read or write. */
static void withdrawLoans(const execution *e) {
  for (const runner *r = e->runners; r < e->runners + e->live; r++) {
    struct tuttiProxy *proxy = r->task->context->proxy; /* NULL: no network */
    if (proxy && (r->announced || r->looked > r->k)) tuttiProxyHalt(proxy);
    for (int i = 0; i < r->nloans; i++) {
      if (r->loans[i].conn->network)
        tuttiProxyHalt(proxy);
      else
        tuttiConnWithdraw(r->loans[i].conn);
    }
  }
}

__attribute__((always_inline)) static inline tuttiResult_t runTasks(tuttiTask **tasks, int ntasks) {
  uint8_t stack[STACK_BYTES] __attribute__((aligned(64)));
  execution e = {.spins = UINT32_MAX};
  void *heap = NULL;
  int width = 1;
  size_t scratch = 0;
  uint64_t done = ntasks == 1 ? tuttiCpuRunBriefly(tasks[0], stack, sizeof stack) : 0;
  if (done > 0 && done == tasks[0]->known->steps) return tuttiSuccess;
  for (int i = 0; i < ntasks; i++) {
    int v = chainWidth(tasks[i]);
    if (v > width) width = v;
    scratch += chainScratch(tasks[i]);
  }
  size_t bytes = scratch + runBytes((size_t)ntasks, (size_t)width);
  if (bytes > sizeof stack) TUTTI_TRY(moveOut(stack, done > 0 ? scratch : 0, bytes, &heap));
  layOut(&e, heap ? heap : stack, tasks, ntasks, width, scratch);
  e.runners->k = done;
  if (ntasks == 1) {
    tuttiIdle *idle = tasks[0]->context->idle;
    if (idle && idle->first) e.idle = idle;
  }

  for (int i = 0; i < e.nproxies; i++)
    tuttiProxyEnter(e.proxies[i]);
  tuttiResult_t result = drive(&e);
  if (result != tuttiSuccess) withdrawLoans(&e);
  for (int i = 0; i < e.nproxies; i++)
    tuttiProxyLeave(e.proxies[i]);
  tuttiFree(heap);
  return result;
}

tuttiResult_t tuttiCpuRun(tuttiTask **tasks, int ntasks) {
  return ntasks == 1 ? runTasks(tasks, 1) : runTasks(tasks, ntasks);
}

/* From operations to tasks: signature, plan, one task per channel, and their run on the device. */
#include "comm/operation.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "comm/communicator.h"
#include "comm/failure.h"
#include "comm/handle.h"
#include "comm/record.h"
#include "comm/worker.h"

_Static_assert(sizeof(tuttiTask) <= 256, "compilers copy a task without a call");

/* Small sets live on the stack. */
#define STACK_TASKS 4
/* Up to these, the time to take a stamp is told from that of an operation. */
#define BRIEF_BYTES 4096

/* Everything but the number, which is 0. */
static tuttiSignature describe(const tuttiOp *op) {
  bool reduces = tuttiCollReduces(op->coll);
  return (tuttiSignature){
      .count = op->count,
      .root = tuttiCollHasRoot(op->coll) ? op->root : -1,
      .coll = (uint8_t)op->recorded,
      .type = (uint8_t)op->type,
      .redop = !reduces                  ? 0xffff
               : op->redop < tuttiNumOps ? (uint16_t)op->redop
                                         : tuttiNumOps,
  };
}

static uint64_t number(const tuttiOp *op) {
  tuttiCommunicator *c = op->comm;
  if (op->coll != tuttiCollSendRecv) return ++c->collectives;
  return op->sending ? ++c->sent[op->root] : ++c->received[op->root];
}

static void logPlan(const tuttiOp *op, const tuttiPlan *plan) {
  char shape[80];
  if (plan->kernel == tuttiKernelSchedule)
    snprintf(shape, sizeof shape, "%d channels, chunk %llu", plan->nchannels,
             (unsigned long long)plan->chunk);
  else
    snprintf(shape, sizeof shape, "%d blocks of %d threads", plan->nblocks, plan->nthreads);
  char tag[32] = "";
  if (op->wishes.tag) snprintf(tag, sizeof tag, ", tag %#" PRIx64, op->wishes.tag);
  TUTTI_INFO(TUNING, "%s of %llu %s: %s%s, %s, %s, %.1f us expected%s", tuttiCollName(op->coll),
             (unsigned long long)op->count, tuttiTypeName(op->type), tuttiAlgoNames[plan->algo],
             plan->twoShot ? " two-shot" : "", tuttiProtoNames[plan->proto], shape, plan->timeUs,
             tag);
}

/* Channels are as many as there are connections for, at most. */
static void applyWishes(const tuttiOpWishes *w, int coll, tuttiPlanInput *in) {
  if (w->maxChannels && w->maxChannels < in->maxChannels) in->maxChannels = w->maxChannels;
  if (w->maxChannels && (!in->maxBlocks || w->maxChannels < in->maxBlocks))
    in->maxBlocks = w->maxChannels;
  if (w->minChannels) in->minChannels = w->minChannels;
  if (in->minChannels > in->maxChannels) in->minChannels = in->maxChannels;
  if (w->algos) in->algos.of[coll] = w->algos;
}

static void choosePlan(const tuttiOp *op, const tuttiSignature *sig, tuttiPlan *plan) {
  tuttiSignature asked = *sig;
  asked.coll = (uint8_t)op->coll; /* not what is recorded */
  if (op->wishes.given) {
    tuttiPlanInput in = op->comm->wireup.plan;
    applyWishes(&op->wishes, op->coll, &in);
    tuttiPlanChoose(&in, &asked, plan);
  } else {
    tuttiPlanChoose(&op->comm->wireup.plan, &asked, plan);
  }
  if (op->coll != tuttiCollSendRecv && tuttiLogEnabled(TUTTI_LOG_INFO, TUTTI_SUBSYS(TUNING)))
    logPlan(op, plan);
}

static void setChannel(tuttiTask *t, const tuttiCommunicator *c, const tuttiPlan *p, int channel) {
  tuttiSchedule *s = &t->schedule;
  t->channel = s->coll == tuttiCollSendRecv ? TUTTI_P2P_CHANNEL : channel;
  tuttiPlanPart(s->count, t->type, channel, p->nchannels, &s->begin, &s->part);
  bool oneTree = p->algo == tuttiAlgoTree && p->oneTree;
  tuttiGraphPlace(c->wireup.graph, oneTree ? 0 : channel, t->signature.root, s);
}

/* The task of channel 0, as far as the signature tells it. PreMulSum is a sum of scaled inputs. */
static void setTask(tuttiTask *t, const tuttiOp *op, const tuttiSignature *sig,
                    const tuttiPlan *p) {
  const tuttiCommunicator *c = op->comm;
  *t = (tuttiTask){
      .schedule = {.coll = op->coll,
                   .algo = p->algo,
                   .rank = c->rank,
                   .nranks = c->nranks,
                   .shared = (uint8_t)c->wireup.plan.sharedFifos,
                   .twoShot = (uint8_t)p->twoShot,
                   .count = op->count,
                   .chunk = p->chunk,
                   .depth = TUTTI_FIFO_DEPTH},
      .signature = *sig,
      .type = (uint8_t)op->type,
      .op = (uint8_t)(op->redop < tuttiNumOps ? op->redop : tuttiSum),
      .premul = op->redop >= tuttiNumOps,
      .divide = op->redop == tuttiAvg ? c->nranks : 0,
      .plan = *p,
      .context = &c->context,
  };
  setChannel(t, c, p, 0);
}

static void setExchange(tuttiPrepared *p, const tuttiOp *op) {
  tuttiSchedule s = p->task.schedule;
  s.root = op->root;
  tuttiPlanExchange(&s, op->type, &p->exchange);
}

/* A message has another peer each time. */
static void setKnown(tuttiPrepared *p, const tuttiOp *op) {
  tuttiKnownSteps *known = &p->known;
  known->steps = known->found = 0;
  known->nconns = 0;
  known->scratch = 0;
  if (op->coll == tuttiCollSendRecv || op->comm->device->kind != tuttiDeviceHost) return;
  tuttiSchedule s = p->task.schedule;
  s.root = op->root;
  known->steps = tuttiScheduleSteps(&s);
  known->scratch = tuttiScheduleScratch(&s) * tuttiTypeSize(op->type);
  for (uint64_t k = 0; k < known->steps && k < TUTTI_KNOWN_STEPS; k++)
    tuttiScheduleStep(&s, k, &known->first[k]);
}

/* Not inline: what the compiler keeps in registers for a call that is known it would put in memory
 * for the sake of one that is not. */
static __attribute__((noinline, cold)) void renew(tuttiPrepared *p, const tuttiOp *op, bool used) {
  tuttiSignature sig = describe(op), *kept = &p->task.signature;
  kept->root = sig.root; /* no plan depends on it */
  if (!used || !tuttiSignatureEqual(kept, &sig)) choosePlan(op, &sig, &p->plan);
  setTask(&p->task, op, &sig, &p->plan);
  if (tuttiPlanExchanges(&p->plan, op->coll)) setExchange(p, op);
  setKnown(p, op);
}

/* Programs repeat their calls, so what follows from the signature is kept. */
static inline tuttiPrepared *prepare(const tuttiOp *op) {
  tuttiSignature sig = describe(op);
  uint64_t hash = op->count * 0x9e3779b97f4a7c15u >> 32; /* Fibonacci's: sizes are powers of two */
  tuttiPrepared *p = &op->comm->prepared[(hash + sig.coll + sig.type) % TUTTI_PREPARED];
  if (op->wishes.given) p = &op->comm->prepared[TUTTI_PREPARED];
  bool used = p->plan.nchannels > 0 && !op->wishes.given;
  p->task.signature.seq = 0; /* it may have been run */
  if (!used || !tuttiSignatureEqual(&p->task.signature, &sig)) renew(p, op, used);
  return p;
}

float tuttiOpTime(const tuttiOp *op) {
  return op->comm->nranks == 1 ? 0 : prepare(op)->plan.timeUs;
}

static tuttiResult_t readScalar(tuttiTask *t, const tuttiOp *op) {
  const tuttiDevice *device = op->comm->device;
  const tuttiPreMul *m = &op->premul;
  t->scalar = m->scalar;
  t->scalarAt = NULL;
  if (m->residence != tuttiScalarDevice) return tuttiSuccess;
  return device->readScalar(m->device, m->type, &t->scalar, &t->scalarAt);
}

/* Messages of one FIFO stay in the order of the calls: tasks of one communicator and channel (for
 * point-to-point also peer and direction) form a chain. */
static bool sameFifo(const tuttiTask *a, const tuttiTask *b) {
  if (a->context != b->context || a->channel != b->channel) return false;
  return a->channel != TUTTI_P2P_CHANNEL ||
         (a->schedule.root == b->schedule.root && a->schedule.sending == b->schedule.sending);
}

static void chain(tuttiTaskSet *set, tuttiTask *t) {
  for (tuttiTask *before = t; before-- > set->tasks;) {
    if (!sameFifo(before, t)) continue;
    before->next = t;
    return;
  }
  set->heads[set->nheads++] = t;
}

/* A copy, as of the plan. */
static void addExchange(tuttiTaskSet *set, tuttiTask *t, const tuttiAllPairs *exchange) {
  tuttiAllPairs *copy = &set->exchanges[set->nexchanges++];
  *copy = *exchange;
  t->exchange = copy;
}

/* `alone`: no other operation of the set can replace what is kept of this one, and so if it is one
 * task, that is run where it is kept. */
static inline tuttiResult_t addOp(tuttiTaskSet *set, const tuttiOp *op, bool alone) {
  tuttiCommunicator *c = op->comm;
  tuttiPrepared *p = prepare(op);
  uint64_t seq = number(op);
  bool inPlace = alone && p->plan.nchannels == 1 && c->device->kind == tuttiDeviceHost;
  if (inPlace) set->tasks = &p->task;
  for (int channel = 0; channel < p->plan.nchannels; channel++) {
    tuttiTask *t = &set->tasks[set->ntasks++];
    if (!inPlace) *t = p->task;
    if (channel > 0) setChannel(t, c, &p->plan, channel);
    t->known = alone && channel == 0 && p->known.steps > 0 ? &p->known : NULL;
    t->signature.seq = seq;
    t->schedule.root = op->root;
    t->schedule.sending = op->sending;
    t->sendbuff = op->sendbuff;
    t->recvbuff = op->recvbuff;
    t->inPlace = op->inPlace;
    t->stream = op->stream;
    if (tuttiPlanExchanges(&t->plan, op->coll)) addExchange(set, t, &p->exchange);
    if (t->premul) TUTTI_TRY(readScalar(t, op));
    chain(set, t);
  }
  tuttiRecordPlan plan = {
      .algo = p->plan.algo, .proto = p->plan.proto, .channels = p->plan.nchannels};
  bool brief = inPlace && op->count * tuttiTypeSizes[op->type] <= BRIEF_BYTES;
  tuttiRecordStart(&c->record, &set->tasks[set->ntasks - 1].signature, plan, op->enqueued, brief);
  return tuttiSuccess;
}

static bool isSelf(const tuttiOp *op) {
  return op->coll == tuttiCollSendRecv && op->root == op->comm->rank;
}

/* The k-th message that a communicator's rank sends to (or receives from) itself, or NULL. */
static const tuttiOp *selfMessage(const tuttiOp *ops, int nops, const tuttiCommunicator *c,
                                  bool sending, int k) {
  for (int i = 0; i < nops; i++)
    if (ops[i].comm == c && isSelf(&ops[i]) && ops[i].sending == sending && !k--) return &ops[i];
  return NULL;
}

/* A rank's message to itself is one copy: its k-th send meets its k-th receive. */
static tuttiResult_t copySelf(const tuttiOp *ops, int nops, const tuttiOp *op) {
  int k = 0;
  for (const tuttiOp *before = ops; before < op; before++)
    k += before->comm == op->comm && isSelf(before) && before->sending == op->sending;
  const tuttiOp *other = selfMessage(ops, nops, op->comm, !op->sending, k);
  if (!other)
    return TUTTI_FAIL(
        tuttiInvalidUsage, "rank %d %s itself without a %s of its own in the same group", op->root,
        op->sending ? "sends to" : "receives from", op->sending ? "tuttiRecv" : "tuttiSend");
  if (other->count != op->count || other->type != op->type)
    return TUTTI_FAIL(tuttiInvalidUsage,
                      "rank %d sends itself %llu %s and receives %llu %s; they must match",
                      op->root, (unsigned long long)op->count, tuttiTypeName(op->type),
                      (unsigned long long)other->count, tuttiTypeName(other->type));
  if (!op->sending || op->count == 0) return tuttiSuccess;
  return op->comm->device->copy(&op->comm->context, other->recvbuff, other->stream, op->sendbuff,
                                op->count * tuttiTypeSize(op->type), op->stream);
}

/* Those on GPUs first: they are only enqueued, while those on the host run to their end here. */
static inline tuttiResult_t run(tuttiTaskSet *set, const tuttiOp *ops, int nops) {
  for (int kind = tuttiDeviceCuda; kind >= tuttiDeviceHost; kind--) {
    const tuttiDevice *device = NULL;
    set->ntasks = set->nheads = set->nexchanges = 0;
    for (int i = 0; i < nops; i++) {
      if ((int)ops[i].comm->device->kind != kind || isSelf(&ops[i])) continue;
      device = ops[i].comm->device;
      if (ops[i].wishes.event)
        TUTTI_TRY(device->mark(&ops[i].comm->context, ops[i].stream, ops[i].wishes.event));
      TUTTI_TRY(addOp(set, &ops[i], nops == 1));
    }
    if (device) TUTTI_TRY(device->run(set));
  }
  return tuttiSuccess;
}

/* One all-gather among the ranks, of memory that the device can work on. */
static tuttiResult_t gather(tuttiCommunicator *c, void *all, size_t bytes, tuttiStream_t stream) {
  tuttiOp op = {.comm = c,
                .handle = c->handle,
                .coll = tuttiCollAllGather,
                .recorded = tuttiCollSplit,
                .sendbuff = (char *)all + bytes * (size_t)c->rank,
                .recvbuff = all,
                .count = bytes,
                .type = tuttiUint8,
                .root = -1,
                .inPlace = true,
                .stream = stream};
  return tuttiOpsRun(&op, 1);
}

/* The same of any memory: where the device needs its own, through that, piece by piece. */
static tuttiResult_t gatherAny(tuttiCommunicator *c, char *all, size_t bytes) {
  void *memory = NULL;
  size_t room, n = (size_t)c->nranks, rank = (size_t)c->rank;
  tuttiStream_t stream;
  TUTTI_TRY(c->device->stage(&c->context, &memory, &room, &stream));
  if (!memory) return gather(c, all, bytes, stream);
  char *stage = memory;
  if (room < n)
    return TUTTI_FAIL(tuttiInvalidUsage,
                      "this call works for at most %zu ranks on GPUs, and there are %zu", room, n);
  for (size_t at = 0, piece; at < bytes; at += piece) {
    piece = bytes - at < room / n ? bytes - at : room / n;
    memcpy(stage + rank * piece, all + rank * bytes + at, piece);
    TUTTI_TRY(gather(c, stage, piece, stream));
    TUTTI_TRY(c->device->waitStaged(&c->context));
    TUTTI_TRY(tuttiCommFailure(c)); /* a kernel that was ended has gathered nothing */
    for (size_t r = 0; r < n; r++)
      memcpy(all + r * bytes + at, stage + r * piece, piece);
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiCommExchange(void *comm, void *all, size_t bytes) {
  tuttiCommunicator *c = comm;
  TUTTI_TRY(tuttiWorkerAwait(c));
  bool occupied = tuttiCommOccupied(c);
  TUTTI_TRY(tuttiCommOccupy(c));
  tuttiResult_t result = gatherAny(c, all, bytes);
  if (!occupied) tuttiCommVacate(c);
  return result;
}

__attribute__((always_inline)) static inline tuttiResult_t runOps(const tuttiOp *ops, int nops) {
  tuttiTask stackTasks[STACK_TASKS];
  tuttiTask *stackHeads[STACK_TASKS];
  tuttiAllPairs stackExchanges[STACK_TASKS];
  tuttiTaskSet set = {.tasks = stackTasks, .heads = stackHeads, .exchanges = stackExchanges};
  size_t n = 0, exchanges = 0; /* tasks and exchanges at most */
  for (int i = 0; i < nops; i++) {
    if (!tuttiCommWell(ops[i].comm)) TUTTI_TRY(tuttiCommFailure(ops[i].comm));
    if (isSelf(&ops[i])) TUTTI_TRY(copySelf(ops, nops, &ops[i]));
    n += ops[i].coll == tuttiCollSendRecv ? 1 : (size_t)ops[i].comm->view.nchannels;
    exchanges += ops[i].coll != tuttiCollSendRecv && ops[i].comm->wireup.plan.allPairs;
  }
  TUTTI_FREED tuttiTask *heapTasks = NULL; /* then their heads */
  if (n > STACK_TASKS) {
    TUTTI_TRY(tuttiAlloc((void **)&heapTasks, n, sizeof *heapTasks + sizeof(tuttiTask *),
                         "tasks of a group", NULL));
    set.tasks = heapTasks;
    set.heads = (tuttiTask **)(heapTasks + n);
  }
  TUTTI_FREED tuttiAllPairs *heapExchanges = NULL;
  if (exchanges > STACK_TASKS) {
    TUTTI_NEW(heapExchanges, exchanges, "exchanges of a group", NULL);
    set.exchanges = heapExchanges;
  }
  tuttiResult_t result = run(&set, ops, nops);
  /* A failure of one communicator would leave the others' peers waiting. */
  for (int i = 0; i < nops; i++) {
    if (result == tuttiSuccess)
      tuttiRecordEnd(&ops[i].comm->record);
    else
      tuttiCommFailLate(ops[i].comm, result);
  }
  return result;
}

tuttiResult_t tuttiOpsRun(const tuttiOp *ops, int nops) {
  return nops == 1 ? runOps(ops, 1) : runOps(ops, nops); /* without loops where there is only one */
}

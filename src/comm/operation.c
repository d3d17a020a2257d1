/* From operations to tasks: signature, plan, one task per channel, and their run on the device. */
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "comm/comm.h"

/* Small sets live on the stack. */
#define STACK_TASKS 4

/* Everything but the number. */
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

/* Kept until the next call. No plan depends on the number or the root. */
static const tuttiPlan *plan(tuttiCommunicator *c, const tuttiOp *op, const tuttiSignature *sig) {
  const tuttiSignature *last = &c->planned;
  if (last->count == sig->count && last->coll == op->coll && last->type == sig->type &&
      last->redop == sig->redop && c->lastPlan.nchannels > 0)
    return &c->lastPlan;
  c->planned = *sig;
  c->planned.coll = (uint8_t)op->coll;
  /* Exchanges are planned where they run (exchange_plan.h). */
  if (op->coll == tuttiCollSendRecv || c->plan.exchange) {
    uint64_t chunk = c->wires.slotBytes / tuttiTypeSize(op->type);
    c->lastPlan = (tuttiPlan){
        .algo = tuttiAlgoDirect, .proto = tuttiProtoSimple, .nchannels = 1, .chunk = chunk};
    return &c->lastPlan;
  }
  tuttiPlanChoose(&c->plan, &c->planned, &c->lastPlan);
  TUTTI_INFO(TUNING, "%s of %llu %s: %s, %s, %d channels, chunk %llu, %.1f us expected",
             tuttiCollName(op->coll), (unsigned long long)op->count, tuttiTypeName(op->type),
             tuttiAlgoNames[c->lastPlan.algo], tuttiProtoNames[c->lastPlan.proto],
             c->lastPlan.nchannels, (unsigned long long)c->lastPlan.chunk, c->lastPlan.timeUs);
  return &c->lastPlan;
}

float tuttiOpTime(const tuttiOp *op) {
  const tuttiPlanInput *in = &op->comm->plan;
  if (in->nranks == 1) return 0;
  tuttiSignature sig = describe(op);
  if (op->coll == tuttiCollSendRecv) {
    float GBs = in->nhosts > 1 ? in->interGBs : in->intraGBs;
    float latency = in->nhosts > 1 ? in->interLatencyUs : in->intraLatencyUs;
    return latency + (float)(op->count * tuttiTypeSize(op->type)) / (GBs * 1e3f);
  }
  if (in->exchange) return tuttiPlanTime(in, &sig, tuttiAlgoDirect, tuttiProtoSimple, 1, 0);
  return plan(op->comm, op, &sig)->timeUs;
}

/* *s is all zero. */
static void setSchedule(tuttiSchedule *s, const tuttiOp *op, const tuttiPlan *p, int channel) {
  tuttiCommunicator *c = op->comm;
  s->rank = c->rank;
  s->nranks = c->nranks;
  s->coll = op->coll;
  s->algo = p->algo;
  s->root = op->root;
  s->count = op->count;
  s->chunk = p->chunk;
  s->depth = TUTTI_FIFO_DEPTH;
  s->sending = op->sending;
  if (op->coll == tuttiCollSendRecv) {
    s->part = op->count;
    return;
  }
  s->twoShot = (uint8_t)p->twoShot;
  s->shared = (uint8_t)c->plan.sharedFifos;
  tuttiPlanPart(op->count, op->type, channel, p->nchannels, &s->begin, &s->part);
  size_t row = (size_t)channel * (size_t)c->nranks;
  s->ring = c->graph->ring + row;
  s->position = c->graph->position[row + (size_t)c->rank];
  if (p->algo == tuttiAlgoTree)
    tuttiGraphTree(c->graph, channel, tuttiCollHasRoot(op->coll) ? op->root : -1, c->rank, s);
}

/* The reduction as an executor sees it: PreMulSum is a sum of scaled inputs. */
static tuttiResult_t setReduction(tuttiTask *t, const tuttiOp *op) {
  tuttiCommunicator *c = op->comm;
  t->op = tuttiSum;
  if (!tuttiCollReduces(op->coll)) return tuttiSuccess;
  if (op->redop < tuttiNumOps) {
    t->op = op->redop;
    t->divide = op->redop == tuttiAvg ? c->nranks : 0;
    return tuttiSuccess;
  }
  const tuttiPreMul *m = &op->premul;
  t->premul = 1;
  t->scalar = m->scalar;
  if (m->residence != tuttiScalarDevice) return tuttiSuccess;
  if (c->device->readScalar) return c->device->readScalar(m->device, m->type, &t->scalar);
  t->scalarAt = m->device;
  return tuttiSuccess;
}

static tuttiResult_t addOp(tuttiTaskSet *set, const tuttiOp *op) {
  tuttiCommunicator *c = op->comm;
  tuttiSignature sig = describe(op);
  sig.seq = number(op);
  const tuttiPlan *p = plan(c, op, &sig);
  for (int channel = 0; channel < p->nchannels; channel++) {
    tuttiTask *t = &set->tasks[set->ntasks++];
    memset(t, 0, sizeof *t);
    setSchedule(&t->schedule, op, p, channel);
    t->signature = sig;
    t->proto = p->proto;
    t->channel = op->coll == tuttiCollSendRecv ? TUTTI_P2P_CHANNEL : channel;
    t->sendbuff = op->sendbuff;
    t->recvbuff = op->recvbuff;
    t->type = op->type;
    t->inPlace = op->inPlace;
    t->fetch = p->fetch;
    t->streams = p->streams;
    t->stream = op->stream;
    t->host = &c->host;
    TUTTI_TRY(setReduction(t, op));
  }
  tuttiRecordStart(&c->record, &sig);
  return tuttiSuccess;
}

/* Messages of one FIFO stay in the order of the calls: tasks of one communicator and channel (for
 * point-to-point also peer and direction) form a chain. */
static bool sameFifo(const tuttiTask *a, const tuttiTask *b) {
  if (a->host != b->host || a->channel != b->channel) return false;
  return a->channel != TUTTI_P2P_CHANNEL ||
         (a->schedule.root == b->schedule.root && a->schedule.sending == b->schedule.sending);
}

static void chain(tuttiTaskSet *set) {
  for (int i = 0; i < set->ntasks; i++) {
    tuttiTask *t = &set->tasks[i];
    tuttiTask *before = NULL;
    for (int j = i - 1; j >= 0 && !before; j--)
      if (sameFifo(&set->tasks[j], t)) before = &set->tasks[j];
    if (before)
      before->next = t;
    else
      set->heads[set->nheads++] = t;
  }
}

static bool isSelf(const tuttiOp *op) {
  return op->coll == tuttiCollSendRecv && op->root == op->comm->rank;
}

/* The k-th message that a communicator's rank sends to (or receives from) itself, or NULL. */
static const tuttiOp *selfMessage(const tuttiOp *ops, int nops, const tuttiCommunicator *c,
                                  bool sending, int k) {
  for (int i = 0; i < nops; i++)
    if (ops[i].comm == c && isSelf(&ops[i]) && ops[i].sending == sending && k-- == 0)
      return &ops[i];
  return NULL;
}

/* A rank's message to itself is one copy: its k-th send meets its k-th receive. */
static tuttiResult_t copySelf(const tuttiOp *ops, int nops) {
  for (int i = 0; i < nops; i++) {
    const tuttiOp *op = &ops[i];
    if (!isSelf(op)) continue;
    int k = 0;
    for (int j = 0; j < i; j++)
      k += ops[j].comm == op->comm && isSelf(&ops[j]) && ops[j].sending == op->sending;
    const tuttiOp *other = selfMessage(ops, nops, op->comm, !op->sending, k);
    if (!other)
      return TUTTI_FAIL(tuttiInvalidUsage,
                        "rank %d %s itself without a %s of its own in the same group", op->root,
                        op->sending ? "sends to" : "receives from",
                        op->sending ? "tuttiRecv" : "tuttiSend");
    if (other->count != op->count || other->type != op->type)
      return TUTTI_FAIL(tuttiInvalidUsage,
                        "rank %d sends itself %llu %s and receives %llu %s; they must match",
                        op->root, (unsigned long long)op->count, tuttiTypeName(op->type),
                        (unsigned long long)other->count, tuttiTypeName(other->type));
    if (op->sending && op->count)
      TUTTI_TRY(op->comm->device->copy(other->recvbuff, op->sendbuff,
                                       op->count * tuttiTypeSize(op->type), op->stream));
  }
  return tuttiSuccess;
}

static tuttiResult_t run(tuttiTaskSet *set, const tuttiOp *ops, int nops) {
  for (int i = 0; i < nops; i++)
    if (!isSelf(&ops[i])) TUTTI_TRY(addOp(set, &ops[i]));
  chain(set);
  return ops[0].comm->device->run(set);
}

/* Upper bound of the tasks of these operations. */
static size_t countTasks(const tuttiOp *ops, int nops) {
  size_t n = 0;
  for (int i = 0; i < nops; i++)
    n += ops[i].coll == tuttiCollSendRecv ? 1 : (size_t)ops[i].comm->wires.nchannels;
  return n;
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

/* The same through the device's own memory, piece by piece. */
static tuttiResult_t gatherStaged(tuttiCommunicator *c, char *all, size_t bytes) {
  void *memory;
  size_t room, n = (size_t)c->nranks, rank = (size_t)c->rank;
  tuttiStream_t stream;
  TUTTI_TRY(c->device->stage(&c->host, &memory, &room, &stream));
  char *stage = memory;
  for (size_t at = 0, piece; at < bytes; at += piece) {
    piece = bytes - at < room / n ? bytes - at : room / n;
    memcpy(stage + rank * piece, all + rank * bytes + at, piece);
    TUTTI_TRY(gather(c, stage, piece, stream));
    TUTTI_TRY(c->device->settle(&c->host));
    TUTTI_TRY(tuttiCommFailure(c)); /* a kernel that was ended has gathered nothing */
    for (size_t r = 0; r < n; r++)
      memcpy(all + r * bytes + at, stage + r * piece, piece);
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiCommExchange(void *comm, void *all, size_t bytes) {
  tuttiCommunicator *c = comm;
  TUTTI_TRY(tuttiWorkerAwait(c));
  TUTTI_TRY(tuttiCommOccupy(c));
  tuttiResult_t result =
      c->device->stage ? gatherStaged(c, all, bytes) : gather(c, all, bytes, NULL);
  tuttiCommVacate(c);
  return result;
}

tuttiResult_t tuttiOpsRun(const tuttiOp *ops, int nops) {
  tuttiTask stackTasks[STACK_TASKS];
  tuttiTask *stackHeads[STACK_TASKS];
  tuttiTaskSet set = {stackTasks, stackHeads, 0, 0};
  for (int i = 0; i < nops; i++)
    TUTTI_TRY(tuttiCommFailure(ops[i].comm));
  TUTTI_TRY(copySelf(ops, nops));
  size_t n = countTasks(ops, nops);
  TUTTI_FREED tuttiTask *heapTasks = NULL; /* then their heads */
  if (n > STACK_TASKS) {
    TUTTI_TRY(tuttiAlloc((void **)&heapTasks, n, sizeof *heapTasks + sizeof(tuttiTask *),
                         "tasks of a group", NULL));
    set.tasks = heapTasks;
    set.heads = (tuttiTask **)(heapTasks + n);
  }
  tuttiResult_t result = run(&set, ops, nops);
  /* A failure of one communicator would leave the others' peers waiting. */
  for (int i = 0; i < nops; i++) {
    if (result == tuttiSuccess)
      tuttiRecordEnd(&ops[i].comm->record);
    else
      tuttiCommFail(ops[i].comm, result);
  }
  return result;
}

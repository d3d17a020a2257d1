#include "device/cuda/arguments.h"

#ifdef TUTTI_HAVE_CUDA

#include <string.h>

#include "base/cuda.h"
#include "collectives/allpairs.h"
#include "transport/symmetric.h"

/* Messages of a group from here on ask for a window, whether there is one or not: unlike a
 * collective, a message may be sent before a window is made and received behind it. */
#define DIRECT_BYTES ((uint64_t)4 << 20)

tuttiResult_t tuttiCudaArgsInit(tuttiCuda *s, tuttiCommView *v) {
  tuttiAllPairsArgs *a = &s->args;
  CUDA_TRY((cudaError_t)tuttiAllPairsLoad(&a->early));
  a->mail = s->mailOnDevice;
  a->place = v->rank;
  for (int p = 0; p < v->nranks; p++) {
    if (p == v->rank) continue;
    tuttiAllPairsLink *link = &a->link[a->nlinks++];
    link->rank = p;
    link->block = v->symmetric->theirs[p];
    link->column = (uint32_t)(v->rank < p ? v->rank : v->rank - 1);
  }
  a->block = v->symmetric->mine;
  a->counts = v->symmetric->counts;
  a->staged = v->stagedBytes > 0;
  tuttiAllPairsLayout l = tuttiAllPairsLayOut(v->nranks, a->staged);
  a->simpleAt = l.simpleAt;
  a->regionsAt = l.regionsAt;
  a->columns = l.columns;
  return tuttiSuccess;
}

/* A part of a message for each thread block, whole lines but for the last. */
static uint64_t partOf(uint64_t bytes, const tuttiPlan *plan) {
  uint64_t unit =
      plan->proto == tuttiProtoSimple ? TUTTI_ALLPAIRS_LINE : TUTTI_ALLPAIRS_LINE_PAYLOAD;
  uint64_t units = (bytes + unit - 1) / unit, n = (uint64_t)plan->nblocks;
  return (units + n - 1) / n * unit;
}

static uint64_t greater(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

/* What follows from the messages: how many chunks and lines the longest has. A longer part never
 * has fewer chunks. */
static void setLoops(tuttiAllPairsArgs *a, int proto) {
  uint64_t part = a->combine || a->own ? a->part : 0, bytes = a->own ? a->bytes : 0;
  a->operands = a->late = 0;
  for (int i = 0; i < a->nlinks; i++) {
    const tuttiAllPairsLink *l = &a->link[i];
    const tuttiAllPairsFlow *f = &a->flow[i];
    part = greater(part, greater(f->outPart, greater(f->inPart, f->latePart)));
    bytes = greater(bytes, greater(l->outBytes, greater(l->inBytes, l->lateBytes)));
    a->operands |= (uint32_t)(l->inBytes > 0) << i;
    a->late |= (uint32_t)(l->lateBytes > 0) << i;
  }
  uint64_t chunk = proto == tuttiProtoSimple
                       ? tuttiAllPairsChunk(part)
                       : TUTTI_ALLPAIRS_LL_SLOT / TUTTI_ALLPAIRS_LINE * TUTTI_ALLPAIRS_LINE_PAYLOAD;
  uint64_t line = a->staged ? TUTTI_STAGED_LINE_PAYLOAD : TUTTI_ALLPAIRS_LINE_PAYLOAD;
  a->loops = (uint32_t)((part + chunk - 1) / chunk);
  a->lines = (uint32_t)((bytes + line - 1) / line);
}

/* What x says, in bytes. */
static void setAllPairs(tuttiAllPairsArgs *a, const tuttiAllPairs *x, uint64_t size,
                        const tuttiPlan *plan, uint32_t hash) {
  a->combine = x->combine;
  a->own = x->own;
  a->keep = x->keep;
  a->mirror = x->mirror;
  a->bytes = x->count * size;
  a->part = partOf(a->bytes, plan);
  a->ownAt = x->ownAt * size;
  a->keepAt = x->keepAt * size;
  a->spreads = 0;
  for (int i = 0; i < a->nlinks; i++) {
    tuttiAllPairsLink *l = &a->link[i];
    const tuttiAllPairsPeer *p = &x->peer[l->rank];
    l->outAt = p->outAt * size;
    l->outBytes = p->outCount * size;
    l->inBytes = p->inCount * size;
    l->placeAt = p->placeAt * size;
    l->lateBytes = p->lateCount * size;
    l->lateAt = p->lateAt * size;
    l->outHash = l->inHash = hash;
    a->spreads |= (uint32_t)p->spread << i;
    a->flow[i] = (tuttiAllPairsFlow){.outPart = partOf(l->outBytes, plan),
                                     .inPart = partOf(l->inBytes, plan),
                                     .latePart = partOf(l->lateBytes, plan)};
  }
  setLoops(a, plan->proto);
}

/* Large messages of a collective go into windows where there are any, but for those to combine. */
static void setWindows(tuttiCuda *s, const tuttiTask *t) {
  tuttiAllPairsArgs *a = &s->args;
  const tuttiPlan *plan = &t->plan;
  int coll = t->schedule.coll;
  bool placed = !tuttiCollReduces(coll) && !(coll == tuttiCollBroadcast && plan->twoShot);
  if (!s->windows.any || plan->proto != tuttiProtoSimple) return;
  for (int i = 0; i < a->nlinks; i++) {
    const tuttiAllPairsLink *l = &a->link[i];
    tuttiAllPairsFlow *f = &a->flow[i];
    const uint64_t out[] = {placed ? l->outBytes : 0, a->spreads >> i & 1 ? a->bytes : 0};
    const uint64_t in[] = {placed ? l->inBytes : 0, l->lateBytes}, at[] = {l->placeAt, l->lateAt};
    for (int k = 0; k < TUTTI_ALLPAIRS_KINDS; k++) {
      f->asks[k] = out[k] >= TUTTI_ALLPAIRS_DIRECT;
      f->tells[k] = in[k] >= TUTTI_ALLPAIRS_DIRECT;
      if (f->tells[k])
        f->where[k] = tuttiCudaWindowWhere(&s->windows, (uint8_t *)t->recvbuff + at[k], in[k]);
    }
  }
}

/* The shots in which each rank that sends sends the same to all others. */
static uint32_t sharedKinds(int coll, bool twoShot) {
  if (coll == tuttiCollAllReduce) return 1u << twoShot;
  return coll == tuttiCollAllGather || (coll == tuttiCollBroadcast && !twoShot);
}

/* What any launch has from its task. */
static void setTask(tuttiAllPairsArgs *a, const tuttiTask *t) {
  a->op = t->op;
  a->divide = t->divide;
  a->premul = (uint32_t)t->premul;
  a->scalar = t->scalar;
  a->scalarAt = t->scalarAt;
  a->sig = t->signature;
}

void tuttiCudaArgsCollective(tuttiCuda *s, const tuttiTask *t) {
  tuttiAllPairsArgs *a = &s->args;
  tuttiAllPairs x;
  const tuttiSchedule *y = &t->schedule;
  size_t size = tuttiTypeSize(t->type);
  tuttiAllPairsMake(y, TUTTI_ALLPAIRS_LINE / size, &x);
  setAllPairs(a, &x, size, &t->plan, tuttiSignatureHash(&t->signature));
  setWindows(s, t);
  a->rooted = t->signature.root >= 0;
  a->shared = a->staged ? sharedKinds(y->coll, y->twoShot) : 0;
  a->send = t->sendbuff;
  a->recv = t->recvbuff;
  a->mirror &= a->send != a->recv;
  setTask(a, t);
}

void tuttiCudaArgsBegin(tuttiCuda *s, int proto) {
  const tuttiPlan plan = {.proto = (uint8_t)proto, .nblocks = 1};
  tuttiAllPairs nothing;
  memset(&nothing, 0, sizeof nothing);
  setAllPairs(&s->args, &nothing, 1, &plan, 1);
  s->args.shared = 0;
}

/* One message to (or from) a neighbour, at an address instead of an offset. */
void tuttiCudaArgsMessage(tuttiCuda *s, const tuttiTask *t) {
  const tuttiSchedule *y = &t->schedule;
  const tuttiPlan *plan = &t->plan;
  int link = y->root < y->rank ? y->root : y->root - 1;
  tuttiAllPairsLink *l = &s->args.link[link];
  tuttiAllPairsFlow *f = &s->args.flow[link];
  uint64_t bytes = y->count * tuttiTypeSize(t->type);
  uint64_t part = partOf(bytes, plan);
  bool direct =
      bytes >= DIRECT_BYTES && plan->proto == tuttiProtoSimple && !s->context->plan->staged;
  if (y->sending) {
    l->outAt = (uintptr_t)t->sendbuff;
    l->outBytes = bytes;
    l->outHash = tuttiSignatureHash(&t->signature);
    f->outPart = part;
    f->asks[0] = direct;
  } else {
    l->placeAt = (uintptr_t)t->recvbuff;
    l->inBytes = bytes;
    l->inHash = tuttiSignatureHash(&t->signature);
    f->inPart = part;
    f->tells[0] = direct;
    f->where[0] = direct ? tuttiCudaWindowWhere(&s->windows, t->recvbuff, bytes) : 0;
  }
}

void tuttiCudaArgsEnd(tuttiCuda *s, const tuttiTask *t, int proto) {
  setLoops(&s->args, proto);
  s->args.send = s->args.recv = NULL;
  setTask(&s->args, t);
}

#endif

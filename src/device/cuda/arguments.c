#ifdef TUTTI_HAVE_CUDA

#include "device/cuda/arguments.h"

#include "collectives/allpairs.h"
#include "transport/symmetric.h"

/* Messages of a group from here on ask for a window, whether there is one or not: unlike a
 * collective, a message may be sent before a window is made and received behind it. */
#define DIRECT_BYTES ((uint64_t)4 << 20)

/* The parts of s->regions. */
static tuttiRegionsFront *frontOf(tuttiRegionsArgs *r) {
  return r->isFew ? &r->few.front : &r->many.front;
}
static tuttiRegionsLink *linksOf(tuttiRegionsArgs *r) {
  return r->isFew ? r->few.link : r->many.link;
}
static tuttiRegionsBack *backOf(tuttiRegionsArgs *r) {
  return r->isFew ? &r->few.back : &r->many.back;
}

/* ---- what never changes ---------------------------------------------------------------------- */

static void initSlots(tuttiCuda *s, const tuttiCommView *v, const tuttiAllPairsLayout *l) {
  tuttiAllPairsArgs *a = &s->args;
  for (int p = 0; p < v->nranks; p++) {
    if (p == v->rank) continue;
    tuttiAllPairsLink *link = &a->link[a->nlinks++];
    link->rank = p;
    link->block = v->symmetric->theirs[p];
    link->column = (uint32_t)(v->rank < p ? v->rank : v->rank - 1);
  }
  a->place = v->rank;
  a->block = v->symmetric->mine;
  a->counts = v->symmetric->counts;
  a->status = s->statusOnDevice;
  a->staged = v->stagedBytes > 0;
  a->simpleAt = l->simpleAt;
  a->columns = l->columns;
}

/* From those of the slots. */
static void initRegions(tuttiCuda *s, const tuttiAllPairsLayout *l) {
  const tuttiAllPairsArgs *a = &s->args;
  tuttiRegionsArgs *r = &s->regions;
  size_t region = a->staged ? TUTTI_STAGED_REGION_BYTES : TUTTI_REGION_BYTES;
  r->isStaged = a->staged;
  r->isFew = !r->isStaged && a->nlinks <= TUTTI_REGIONS_FEW;
  tuttiRegionsFront *front = frontOf(r);
  front->regions = a->block + l->regionsAt;
  front->head = (tuttiAllPairsHead *)a->block;
  front->counts = (tuttiAllPairsHead *)a->counts;
  front->nlinks = (uint8_t)a->nlinks;
  front->place = (uint8_t)a->place;
  for (int i = 0; i < a->nlinks; i++) {
    tuttiRegionsLink *link = &linksOf(r)[i];
    link->regions = a->link[i].block + l->regionsAt + a->link[i].column * region;
    link->column = a->link[i].column;
    link->rank = a->link[i].rank;
  }
  tuttiRegionsBack *back = backOf(r);
  back->regionsAt = l->regionsAt;
  back->status = a->status;
}

void tuttiCudaArgsInit(tuttiCuda *s, const tuttiCommView *v) {
  tuttiAllPairsLayout l = tuttiAllPairsLayOut(v->nranks, v->stagedBytes > 0);
  initSlots(s, v, &l);
  initRegions(s, &l);
}

/* ---- through slots --------------------------------------------------------------------------- */

/* Also of no buffer, for which there is no offset. */
static uint8_t *place(const void *buffer, uint64_t offset) {
  return (uint8_t *)((uintptr_t)buffer + offset);
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

/* What follows from the messages: whose are operands, and how many chunks the longest has. A longer
 * part never has fewer chunks. */
static void setLoops(tuttiAllPairsArgs *a, int proto) {
  uint64_t part = a->combine || a->own ? a->part : 0;
  a->operands = 0;
  for (int i = 0; i < a->nlinks; i++) {
    const tuttiAllPairsFlow *f = &a->flow[i];
    part = greater(part, greater(f->outPart, greater(f->inPart, f->latePart)));
    a->operands |= (uint32_t)(a->link[i].inBytes > 0) << i;
  }
  uint64_t chunk = proto == tuttiProtoSimple
                       ? tuttiAllPairsChunk(part)
                       : TUTTI_ALLPAIRS_LL_SLOT / TUTTI_ALLPAIRS_LINE * TUTTI_ALLPAIRS_LINE_PAYLOAD;
  a->loops = (uint32_t)((part + chunk - 1) / chunk);
}

/* What x says of the links, in bytes. */
static void setLinks(tuttiAllPairsArgs *a, const tuttiAllPairs *x, const tuttiTask *t) {
  uint64_t size = tuttiTypeSize(t->type);
  uint32_t hash = tuttiSignatureHash(&t->signature);
  a->spreads = 0;
  for (int i = 0; i < a->nlinks; i++) {
    tuttiAllPairsLink *l = &a->link[i];
    const tuttiAllPairsPeer *p = &x->peer[l->rank];
    l->out = place(t->sendbuff, p->outAt * size);
    l->outBytes = p->outCount * size;
    l->place = place(t->recvbuff, p->placeAt * size);
    l->inBytes = p->inCount * size;
    l->late = place(t->recvbuff, p->lateAt * size);
    l->lateBytes = p->lateCount * size;
    l->outHash = l->inHash = hash;
    a->spreads |= (uint32_t)p->spread << i;
    a->flow[i] = (tuttiAllPairsFlow){.outPart = partOf(l->outBytes, &t->plan),
                                     .inPart = partOf(l->inBytes, &t->plan),
                                     .latePart = partOf(l->lateBytes, &t->plan)};
  }
}

/* Large messages of a collective go into windows where there are any, but for those to combine. */
static void setWindows(tuttiCuda *s, const tuttiAllPairs *x) {
  tuttiAllPairsArgs *a = &s->args;
  for (int i = 0; i < a->nlinks; i++) {
    const tuttiAllPairsLink *l = &a->link[i];
    tuttiAllPairsFlow *f = &a->flow[i];
    const uint64_t out[] = {x->direct ? l->outBytes : 0, a->spreads >> i & 1 ? a->bytes : 0};
    const uint64_t in[] = {x->direct ? l->inBytes : 0, l->lateBytes};
    uint8_t *const to[] = {l->place, l->late};
    for (int k = 0; k < TUTTI_ALLPAIRS_KINDS; k++) {
      f->asks[k] = out[k] >= TUTTI_ALLPAIRS_DIRECT;
      f->tells[k] = in[k] >= TUTTI_ALLPAIRS_DIRECT;
      if (f->tells[k]) f->where[k] = tuttiCudaWindowWhere(&s->windows, to[k], in[k]);
    }
  }
}

/* What any launch has from its task. */
static void setReduction(tuttiAllPairsArgs *a, const tuttiTask *t) {
  a->op = t->op;
  a->divide = t->divide;
  a->premul = (uint32_t)t->premul;
  a->isUnsigned = tuttiTypeIsUnsigned(t->type);
  a->scalar = t->scalar;
  a->scalarAt = t->scalarAt;
  a->sig = t->signature;
}

static void setSlots(tuttiCuda *s, const tuttiTask *t) {
  tuttiAllPairsArgs *a = &s->args;
  const tuttiAllPairs *x = t->exchange;
  uint64_t size = tuttiTypeSize(t->type);
  a->combine = x->combine;
  a->own = x->own;
  a->keep = x->keep;
  a->bytes = x->count * size;
  a->part = partOf(a->bytes, &t->plan);
  a->operand = place(t->sendbuff, x->ownAt * size);
  a->result = place(t->recvbuff, x->keepAt * size);
  a->mirror = x->mirror ? (int64_t)((uintptr_t)t->recvbuff - (uintptr_t)t->sendbuff) : 0;
  a->shared = a->staged ? x->shared : 0;
  setLinks(a, x, t);
  setLoops(a, t->plan.proto);
  if (s->windows.any && t->plan.proto == tuttiProtoSimple) setWindows(s, x);
  setReduction(a, t);
}

/* ---- through regions ------------------------------------------------------------------------- */

/* Returns the bytes of the longest message. */
static uint64_t setRegionsLinks(tuttiRegionsFront *front, tuttiRegionsLink *links,
                                const tuttiAllPairs *x, uint32_t size) {
  uint64_t longest = x->own ? front->bytes : 0;
  front->operands = front->spreads = front->late = 0;
  for (int i = 0; i < front->nlinks; i++) {
    tuttiRegionsLink *l = &links[i];
    const tuttiAllPairsPeer *p = &x->peer[l->rank];
    l->outAt = (uint32_t)p->outAt * size;
    l->outBytes = (uint32_t)p->outCount * size;
    l->inBytes = (uint32_t)p->inCount * size;
    l->placeAt = (uint32_t)p->placeAt * size;
    l->lateBytes = (uint32_t)p->lateCount * size;
    l->lateAt = (uint32_t)p->lateAt * size;
    front->operands |= (uint8_t)((p->inCount > 0) << i);
    front->spreads |= (uint8_t)(p->spread << i);
    front->late |= (uint8_t)((p->lateCount > 0) << i);
    longest = greater(longest, greater(l->outBytes, greater(l->inBytes, l->lateBytes)));
  }
  return longest;
}

static void setRegions(tuttiRegionsArgs *r, const tuttiTask *t) {
  const tuttiAllPairs *x = t->exchange;
  tuttiRegionsFront *front = frontOf(r);
  uint32_t size = (uint32_t)tuttiTypeSize(t->type);
  uint32_t line = r->isStaged ? TUTTI_STAGED_LINE_PAYLOAD : TUTTI_ALLPAIRS_LINE_PAYLOAD;
  r->isRooted = x->rooted;
  front->send = t->sendbuff;
  front->recv = t->recvbuff;
  front->bytes = (uint32_t)x->count * size;
  front->ownAt = (uint32_t)x->ownAt * size;
  front->keepAt = (uint32_t)x->keepAt * size;
  front->hash = tuttiSignatureHash(&t->signature);
  front->op = (uint8_t)t->op;
  front->divide = (uint8_t)t->divide;
  front->own = x->own;
  front->keep = x->keep;
  front->combine = x->combine;
  front->premul = t->premul != 0;
  front->isUnsigned = tuttiTypeIsUnsigned(t->type);
  front->shared = r->isStaged ? x->shared : 0;
  front->mirror = x->mirror && t->sendbuff != t->recvbuff;
  uint64_t longest = setRegionsLinks(front, linksOf(r), x, size);
  front->lines = (uint32_t)((longest + line - 1) / line);
  tuttiRegionsBack *back = backOf(r);
  back->scalarAt = t->scalarAt;
  back->scalar = t->scalar;
  back->sig = t->signature;
}

void tuttiCudaArgsCollective(tuttiCuda *s, const tuttiTask *t) {
  if (t->plan.kernel == tuttiKernelRegions)
    setRegions(&s->regions, t);
  else
    setSlots(s, t);
}

/* ---- messages of a group --------------------------------------------------------------------- */

void tuttiCudaArgsBegin(tuttiCuda *s) {
  tuttiAllPairsArgs *a = &s->args;
  a->combine = a->own = a->keep = 0;
  a->bytes = a->part = 0;
  a->mirror = 0;
  a->shared = a->spreads = 0;
  for (int i = 0; i < a->nlinks; i++) {
    tuttiAllPairsLink *l = &a->link[i];
    l->outBytes = l->inBytes = l->lateBytes = 0;
    l->outHash = l->inHash = 1;
    a->flow[i] = (tuttiAllPairsFlow){0};
  }
}

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
    l->out = t->sendbuff;
    l->outBytes = bytes;
    l->outHash = tuttiSignatureHash(&t->signature);
    f->outPart = part;
    f->asks[0] = direct;
  } else {
    l->place = t->recvbuff;
    l->inBytes = bytes;
    l->inHash = tuttiSignatureHash(&t->signature);
    f->inPart = part;
    f->tells[0] = direct;
    f->where[0] = direct ? tuttiCudaWindowWhere(&s->windows, t->recvbuff, bytes) : 0;
  }
}

void tuttiCudaArgsEnd(tuttiCuda *s, const tuttiTask *t, int proto) {
  setLoops(&s->args, proto);
  setReduction(&s->args, t);
}

#endif

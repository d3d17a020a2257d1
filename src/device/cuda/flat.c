#ifdef TUTTI_HAVE_CUDA

#include "device/cuda/flat.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cuda.h"
#include "base/error.h"
#include "base/log.h"
#include "base/os.h"

#define STRIDE_UNIT  ((size_t)1 << 32) /* in which kernels count */
#define HAND_OVER_MS 10000

static bool elsewhere(const tuttiCommView *v, int rank) {
  return v->peers[rank].process != v->peers[v->rank].process;
}

/* This rank maps that one's memory. */
static bool reaches(const tuttiCommView *v, int rank) {
  return rank == v->rank || v->paths[rank].stores;
}

/* ---- offers ---------------------------------------------------------------------------------- */

static bool hasNeighbours(const tuttiCommView *v) {
  for (int r = 0; r < v->nranks; r++)
    if (reaches(v, r) && elsewhere(v, r)) return true;
  return false;
}

/* Where descriptors for this rank come in, if there can be any. */
static void openPost(tuttiFlatPost *post, tuttiFlatCard *card) {
  int err = 0;
  if (!post->open) {
    err = tuttiFdBoxOpen(&post->box);
    post->open = err == 0;
  }
  if (err)
    TUTTI_INFO(P2P, "no Unix socket for the memory of other processes: %s", tuttiErrnoText(err));
  else
    card->box = post->box.address;
}

void tuttiFlatOfferHeld(tuttiFlatPost *post, const tuttiCommView *v, tuttiVmmHandle handle,
                        size_t bytes, tuttiFlatOwn *own, tuttiFlatCard *card) {
  post->round++;
  *own = (tuttiFlatOwn){.handle = handle, .fd = -1};
  *card = (tuttiFlatCard){.handle = handle, .bytes = bytes};
  if (post->cut || !hasNeighbours(v)) return;
  openPost(post, card);
  if (!handle || !post->open) return;
  cudaError_t err = tuttiVmmExport(handle, &own->fd);
  card->exported = err == cudaSuccess;
  if (err == cudaSuccess) return;
  own->fd = -1;
  TUTTI_INFO(P2P, "no descriptor for GPU memory: %s (%s)", cudaGetErrorString(err),
             cudaGetErrorName(err));
}

void tuttiFlatOffer(tuttiFlatPost *post, const tuttiCommView *v, const void *buff,
                    tuttiFlatOwn *own, tuttiFlatCard *card) {
  tuttiVmmHandle handle = 0;
  uintptr_t base = 0;
  size_t bytes = 0;
  if (!buff || tuttiVmmHold((uintptr_t)buff, &handle, &base, &bytes) != cudaSuccess)
    handle = bytes = 0;
  tuttiFlatOfferHeld(post, v, handle, bytes, own, card);
  if (handle) card->offset = (uintptr_t)buff - base;
}

void tuttiFlatOffered(tuttiFlatOwn *own) {
  tuttiFdClose(&own->fd);
  if (own->handle) tuttiVmmRelease(own->handle);
  own->handle = 0;
}

void tuttiFlatPostClose(tuttiFlatPost *post) {
  if (post->open) tuttiFdBoxClose(&post->box);
  post->open = false;
}

/* ---- the hand-over --------------------------------------------------------------------------- */

typedef struct {
  const tuttiFlatPost *post;
  const tuttiCommView *view;
  const tuttiFlatCard *cards;
  const tuttiFlatOwn *own;
  tuttiFdParcel *due, *owed; /* [nranks], of each rank and for it; one behind the other */
} handOver;

static void begin(handOver *h) {
  const tuttiCommView *v = h->view;
  for (int r = 0; r < v->nranks; r++) {
    bool trades = reaches(v, r) && elsewhere(v, r) && h->post->open;
    h->due[r] = (tuttiFdParcel){.label = {.rank = r, .round = h->post->round},
                                .fd = -1,
                                .open = trades && h->cards[r].exported && h->cards[v->rank].box.id};
    h->owed[r] = (tuttiFdParcel){.to = &h->cards[r].box,
                                 .label = {.rank = v->rank, .round = h->post->round},
                                 .fd = h->own->fd,
                                 .open = trades && h->own->fd >= 0 && h->cards[r].box.id};
  }
}

static void carryOut(handOver *h) {
  const tuttiCommView *v = h->view;
  tuttiFdBoxTrade(&h->post->box, h->due, 2 * v->nranks, HAND_OVER_MS, v->failed);
  for (int r = 0; r < v->nranks; r++)
    if (h->owed[r].error)
      TUTTI_INFO(P2P, "cannot hand GPU memory to rank %d: %s", r, tuttiErrnoText(h->owed[r].error));
}

/* ---- the map --------------------------------------------------------------------------------- */

static void failed(tuttiFlatPart *part, const char *step, int error, bool system) {
  part->step = step;
  part->error = error;
  part->system = system;
}

/* Holds the memory of a rank; false: it cannot be had. */
static bool hold(const handOver *h, int rank, tuttiFlatPart *part, tuttiVmmHandle *out) {
  const tuttiFdParcel *p = &h->due[rank];
  *out = rank == h->view->rank ? h->own->handle : h->cards[rank].handle;
  if (!elsewhere(h->view, rank)) return true;
  if (p->fd < 0) {
    if (h->cards[rank].exported)
      failed(part, "the hand-over of its descriptor by a Unix socket",
             p->open ? ETIMEDOUT : ENOTCONN, true);
    else
      failed(part, "its export as a file descriptor", EOPNOTSUPP, true);
    return false;
  }
  cudaError_t err = tuttiVmmImport(p->fd, out);
  if (err != cudaSuccess) failed(part, "cuMemImportFromShareableHandle", (int)err, false);
  return err == cudaSuccess;
}

/* Its allocation begins `shift` bytes behind the place of its rank. */
static void mapPart(const handOver *h, tuttiFlat *flat, int rank, size_t shift, int device) {
  tuttiFlatPart *part = &flat->part[rank - flat->first];
  const tuttiFlatCard *card = &h->cards[rank];
  tuttiVmmHandle handle;
  if (!hold(h, rank, part, &handle)) return;
  uintptr_t at = flat->reserved + (size_t)(rank - flat->first) * flat->stride + shift;
  cudaError_t err = tuttiVmmMap(at, card->bytes, handle, device);
  if (elsewhere(h->view, rank)) tuttiVmmRelease(handle); /* it stays as long as it is mapped */
  if (err != cudaSuccess) {
    failed(part, "cuMemMap", (int)err, false);
    return;
  }
  part->mapped = at;
  part->bytes = card->bytes;
  part->at = at + card->offset;
}

/* All parts begin equally far behind their places, if their distances from the beginnings of their
 * allocations allow it: whole units are mapped. */
typedef struct {
  size_t unit, deepest; /* the greatest distance of all */
  bool even;
} layout;

static size_t shiftOf(const layout *l, const tuttiFlatCard *card) {
  return (l->deepest - card->offset) / l->unit * l->unit;
}

static bool joins(const tuttiCommView *v, const tuttiFlatCard *cards, int rank) {
  const tuttiFlatCard *card = &cards[rank];
  return reaches(v, rank) && card->handle && card->offset < card->bytes;
}

/* The ranks from the first to the last that this one reaches, and how far apart. */
static void layOut(tuttiFlat *flat, const tuttiCommView *v, const tuttiFlatCard *cards, layout *l) {
  size_t widest = 0;
  int last = v->rank;
  flat->first = v->nranks;
  l->even = true;
  for (int r = 0; r < v->nranks; r++) {
    if (!reaches(v, r)) continue;
    if (flat->first > r) flat->first = r;
    last = r;
    if (joins(v, cards, r) && cards[r].offset > l->deepest) l->deepest = cards[r].offset;
  }
  for (int r = flat->first; r <= last; r++) {
    if (!joins(v, cards, r)) continue;
    size_t end = shiftOf(l, &cards[r]) + cards[r].bytes;
    if (end > widest) widest = end;
    l->even &= (l->deepest - cards[r].offset) % l->unit == 0;
  }
  flat->n = last - flat->first + 1;
  flat->even = l->even;
  flat->stride = (widest + STRIDE_UNIT - 1) / STRIDE_UNIT * STRIDE_UNIT;
  flat->reservedBytes = flat->stride * (size_t)flat->n;
}

static tuttiResult_t mapAll(handOver *h, int device, tuttiFlat *flat) {
  const tuttiCommView *v = h->view;
  layout l = {0};
  cudaError_t err = tuttiVmmBind(device);
  if (err == cudaSuccess) err = tuttiVmmUnit(device, &l.unit);
  if (err != cudaSuccess) l.unit = 1;
  layOut(flat, v, h->cards, &l);
  TUTTI_NEW(flat->part, flat->n, "parts of memory", v->memory);
  if (flat->stride == 0) return tuttiSuccess; /* nobody has such memory */
  if (err == cudaSuccess) err = tuttiVmmReserve(flat->reservedBytes, &flat->reserved);
  if (err != cudaSuccess) flat->reservedBytes = 0;
  flat->base = flat->reserved + l.deepest;
  for (int r = flat->first; r < flat->first + flat->n; r++) {
    if (!joins(v, h->cards, r)) continue;
    if (err == cudaSuccess)
      mapPart(h, flat, r, shiftOf(&l, &h->cards[r]), device);
    else
      failed(&flat->part[r - flat->first], "cuMemAddressReserve", (int)err, false);
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiFlatMap(tuttiFlatPost *post, const tuttiCommView *v, int device,
                           const tuttiFlatCard *cards, const tuttiFlatOwn *own, tuttiFlat *flat) {
  handOver h = {.post = post, .view = v, .cards = cards, .own = own};
  TUTTI_FRESH(tuttiFdParcel, parcels, 2 * (size_t)v->nranks, "memory of other ranks", NULL);
  h.due = parcels;
  h.owed = parcels + v->nranks;
  begin(&h);
  carryOut(&h);
  tuttiResult_t result = mapAll(&h, device, flat);
  for (int r = 0; r < v->nranks; r++) {
    post->cut |= h.due[r].open;
    tuttiFdClose(&h.due[r].fd);
  }
  return result;
}

void tuttiFlatUnmap(tuttiFlat *flat) {
  for (int i = 0; i < flat->n && flat->part; i++)
    if (flat->part[i].mapped) tuttiVmmUnmap(flat->part[i].mapped, flat->part[i].bytes);
  if (flat->reservedBytes) tuttiVmmUnreserve(flat->reserved, flat->reservedBytes);
  tuttiFree(flat->part);
  *flat = (tuttiFlat){0};
}

/* ---- what is there --------------------------------------------------------------------------- */

static const tuttiFlatPart *partOf(const tuttiFlat *flat, int rank) {
  bool within = flat->part && rank >= flat->first && rank - flat->first < flat->n;
  return within ? &flat->part[rank - flat->first] : NULL;
}

uintptr_t tuttiFlatAt(const tuttiFlat *flat, int rank) {
  const tuttiFlatPart *part = partOf(flat, rank);
  return part ? part->at : 0;
}

bool tuttiFlatComplete(const tuttiFlat *flat, int first, int n) {
  bool all = flat->even;
  for (int r = first; r < first + n; r++)
    all &= tuttiFlatAt(flat, r) != 0;
  return all;
}

bool tuttiFlatExplain(const tuttiFlat *flat, int rank, char why[TUTTI_SENTENCE]) {
  const tuttiFlatPart *part = partOf(flat, rank);
  if (!part || !part->step) return false;
  snprintf(why, TUTTI_SENTENCE, "cannot map the memory of rank %d: %s failed: %s", rank, part->step,
           part->system ? tuttiErrnoText(part->error)
                        : cudaGetErrorString((cudaError_t)part->error));
  return true;
}

#endif

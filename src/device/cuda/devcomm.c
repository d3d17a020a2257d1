#include "device/cuda/devcomm.h"

#ifdef TUTTI_HAVE_CUDA

#include <stdio.h>
#include <string.h>

#include "base/cuda.h"
#include "base/error.h"
#include "base/log.h"
#include "device/cuda/state.h"

#define LINE 128 /* the memory ends in what kernels see of it, at a multiple of this */

typedef struct tuttiCudaDevComm {
  struct tuttiCudaDevComm *next;
  tuttiCuda *state;
  tuttiMemAccount *memory;
  tuttiFlat flat;
  size_t bytes; /* of this rank */
} devComm;

/* What ranks tell each other. */
typedef struct {
  tuttiFlatCard card;
  int32_t failed; /* a tuttiResult_t */
  int32_t done;   /* second round: its memory is ready, and that of its team mapped */
} entry;

bool tuttiCudaServesKernels(const tuttiCommView *v, char why[TUTTI_SENTENCE]) {
  char path[TUTTI_SENTENCE];
  int peer = v->rank > 0 ? v->rank - 1 : 1;
  if (!tuttiVmmHas(v->peers[v->rank].cudaDevice)) {
    snprintf(why, TUTTI_SENTENCE,
             "the driver cannot map the memory of this GPU for other processes (virtual memory "
             "management with file descriptors)");
    return false;
  }
  if (v->nranks == 1 || v->lsaSize > 1) return true;
  if (v->paths[peer].stores)
    snprintf(
        why, TUTTI_SENTENCE,
        "ranks whose GPUs reach each other's memory are no teams of equal size with ranks that "
        "follow each other; number the ranks host by host, equally many on each");
  else
    snprintf(why, TUTTI_SENTENCE, "its GPU does not reach the memory of that of rank %d: %.160s",
             peer, tuttiPathText(&v->paths[peer], &v->peers[v->rank], &v->peers[peer], path));
  return false;
}

static void end(devComm *d) {
  if (d->bytes) tuttiFetchAddAcqRel(&d->memory->bytes, -(uint64_t)d->bytes);
  tuttiFlatUnmap(&d->flat);
  tuttiFree(d);
}

/* This rank's memory, held; 0 where it failed. */
static tuttiResult_t allocate(const tuttiCuda *s, size_t *bytes, tuttiVmmHandle *out) {
  *out = 0;
  CUDA_TRY(tuttiVmmBind(s->device));
  return CUDA_CHECK(tuttiVmmCreate(s->device, bytes, out));
}

/* Zeroes it, and writes how kernels see it at its end. */
static tuttiResult_t fill(const devComm *d, const struct tuttiWindow *seen, size_t at, int rank) {
  const tuttiCuda *s = d->state;
  uint8_t *mine = (uint8_t *)tuttiFlatAt(&d->flat, rank); // NOLINT: an address of the GPU
  CUDA_TRY(cudaMemsetAsync(mine, 0, d->bytes, s->stageStream));
  return tuttiCudaTell(mine + at, seen, sizeof *seen, s->stageStream);
}

static tuttiResult_t missing(const devComm *d, const tuttiCommView *v) {
  int first = v->rank - v->rank % v->lsaSize;
  char why[TUTTI_SENTENCE];
  for (int r = first; r < first + v->lsaSize; r++)
    if (tuttiFlatExplain(&d->flat, r, why)) return TUTTI_FAIL(tuttiUnhandledCudaError, "%s", why);
  return TUTTI_FAIL(tuttiInternalError, "the memory of a local team is not mapped; report this");
}

/* Maps the memory of the team, and makes this rank's ready. */
static tuttiResult_t prepare(devComm *d, tuttiCommView *v, const entry *all,
                             const tuttiFlatOwn *own, size_t at, struct tuttiWindow *seen) {
  tuttiCuda *s = d->state;
  TUTTI_FRESH(tuttiFlatCard, cards, v->nranks, "memory of ranks", NULL);
  for (int r = 0; r < v->nranks; r++)
    cards[r] = all[r].card;
  TUTTI_TRY(tuttiFlatMap(&s->windows.post, v, s->device, cards, own, &d->flat));
  if (!tuttiFlatComplete(&d->flat, v->rank - v->rank % v->lsaSize, v->lsaSize))
    return missing(d, v);
  *seen = tuttiWindowSeen(&d->flat, 0, v);
  return fill(d, seen, at, v->rank);
}

/* The failure of this rank, which goes on to tell of it, is the one that it returns. */
typedef struct {
  tuttiResult_t code;
  char text[TUTTI_ERROR_TEXT];
} outcome;

static void note(outcome *o, tuttiResult_t result) {
  if (result == tuttiSuccess || o->code != tuttiSuccess) return;
  o->code = result;
  snprintf(o->text, sizeof o->text, "%s", tuttiErrorText());
}

static tuttiResult_t judge(const outcome *o, const entry *all, int nranks, bool second) {
  if (o->code != tuttiSuccess) return tuttiErrorAdopt(o->code, o->text);
  for (int r = 0; r < nranks; r++)
    if (all[r].failed || (second && all[r].done != 1))
      return TUTTI_FAIL(tuttiRemoteError,
                        "rank %d could not make its memory for kernels; see its log for the reason",
                        r);
  return tuttiSuccess;
}

/* Where kernels see the team's memory: at the end of their own. */
static void describe(const devComm *d, const tuttiCommView *v, size_t at,
                     const struct tuttiWindow *seen, tuttiDevComm_t *out) {
  out->window = (tuttiWindow_t)(tuttiFlatAt(&d->flat, v->rank) + at); // NOLINT: of the GPU
  out->windows = d->state->windows.table.memory;
  out->seen = *seen;
}

static tuttiResult_t make(devComm *d, tuttiCommView *v, tuttiTaskContext *context, size_t bytes,
                          entry *all, tuttiFlatOwn *own, tuttiDevComm_t *out) {
  tuttiCuda *s = d->state;
  entry *mine = &all[v->rank];
  struct tuttiWindow seen = {0};
  tuttiVmmHandle handle = 0;
  outcome o = {.code = tuttiSuccess};
  size_t at = (bytes + LINE - 1) / LINE * LINE, whole = at + LINE;
  note(&o, tuttiWindowTableMake(&s->windows.table, s->device, s->stageStream));
  note(&o, allocate(s, &whole, &handle));
  tuttiFlatOfferHeld(&s->windows.post, v, handle, whole, own, &mine->card);
  mine->failed = (int32_t)o.code;
  TUTTI_TRY(context->exchange(context->comm, all, sizeof *all));
  TUTTI_TRY(judge(&o, all, v->nranks, false));
  d->bytes = whole;
  tuttiFetchAddAcqRel(&d->memory->bytes, whole);
  note(&o, prepare(d, v, all, own, at, &seen));
  mine->done = o.code == tuttiSuccess;
  TUTTI_TRY(context->exchange(context->comm, all, sizeof *all));
  TUTTI_TRY(judge(&o, all, v->nranks, true));
  describe(d, v, at, &seen, out);
  return tuttiSuccess;
}

tuttiResult_t tuttiCudaDevCommCreate(tuttiCommView *v, tuttiTaskContext *context, size_t bytes,
                                     tuttiDevComm_t *out, void **made) {
  tuttiCuda *s = context->device;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  TUTTI_FRESH(entry, all, v->nranks, "memory of ranks", NULL);
  tuttiFlatOwn own = {.fd = -1};
  devComm *d;
  TUTTI_TRY(tuttiCudaEnter(s->device, &before));
  TUTTI_NEW(d, 1, "memory for kernels", v->memory);
  d->state = s;
  d->memory = v->memory;
  tuttiResult_t result = make(d, v, context, bytes, all, &own, out);
  tuttiFlatOffered(&own);
  if (result != tuttiSuccess) {
    end(d);
    return result;
  }
  s->servesKernels = true;
  TUTTI_LINK(s->devComms, d);
  TUTTI_INFO(P2P, "%zu bytes for kernels on each of the %d ranks of the local team, %zu GiB apart",
             d->bytes, v->lsaSize, d->flat.stride >> 30);
  *made = d;
  return tuttiSuccess;
}

void tuttiCudaDevCommDestroy(void *made) {
  devComm *d = made;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  (void)tuttiCudaEnter(d->state->device, &before);
  TUTTI_UNLINK(d->state->devComms, d);
  end(d);
}

void tuttiCudaDevCommsClose(tuttiCuda *s) {
  while (s->devComms) {
    devComm *d = s->devComms;
    s->devComms = d->next;
    end(d);
  }
}

#endif

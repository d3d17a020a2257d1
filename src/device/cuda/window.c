#ifdef TUTTI_HAVE_CUDA

#include "device/cuda/window.h"

#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cuda.h"
#include "base/cuda_ipc.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/region.h"
#include "transport/symmetric.h"

#define MASK_WORDS (TUTTI_ALLPAIRS_WINDOWS / 64)

/* What ranks tell each other about their part of a window. */
typedef struct {
  uint64_t dropped[MASK_WORDS]; /* indices that this rank does not use */
  uint64_t at, offset;          /* the address; its distance from what the handle opens */
  uint64_t signalsAt;           /* in the rank's symmetric block; 0: none */
  tuttiFlatCard card;
  uint8_t handle[sizeof(cudaIpcMemHandle_t)];
  int32_t exported; /* at is of GPU memory, and card or handle valid */
  int32_t mapped;   /* second round: this rank has mapped all others */
  int32_t flat;     /* second round: it has mapped its local team, for kernels of the user */
} WindowPart;

/* The buffer lies in one allocation, which begins at *base; else says what is missing. */
static bool isGpuMemory(const void *buff, size_t size, uintptr_t *base, char *why, size_t room) {
  int (*addressRange)(unsigned long long *base, size_t *size, unsigned long long at) =
      tuttiCudaDriver("cuMemGetAddressRange");
  unsigned long long begin;
  size_t whole;
  if (!addressRange || addressRange(&begin, &whole, (uintptr_t)buff) != 0) {
    snprintf(why, room, "the buffer is no GPU memory");
    return false;
  }
  *base = begin;
  if ((uintptr_t)buff - begin + size <= whole) return true;
  snprintf(why, room, "the range is longer than the allocation that it begins in");
  return false;
}

/* Memory that cannot be mapped where one wants it goes by CUDA IPC. */
static void exportIpc(WindowPart *part, uintptr_t base, char *why, size_t room) {
  cudaIpcMemHandle_t handle;
  cudaError_t err = cudaIpcGetMemHandle(&handle, (void *)base); // NOLINT: an address of the GPU
  if (err == cudaSuccess) {
    memcpy(part->handle, &handle, sizeof handle);
    part->exported = 1;
    return;
  }
  cudaGetLastError();
  snprintf(why, room, "no CUDA IPC handle: %s; use memory of tuttiMemAlloc or cudaMalloc",
           cudaGetErrorString(err));
}

/* Says what is missing if it cannot be exported. */
static void export(tuttiCudaWindows *set, const tuttiCommView *v, tuttiCudaWindow *window,
                   WindowPart *part, tuttiFlatOwn *own) {
  uintptr_t base = 0;
  const void *buff = (void *)window->at; // NOLINT: an address of the GPU
  bool good = isGpuMemory(buff, window->size, &base, window->why, sizeof window->why);
  tuttiFlatOffer(&set->post, v, good ? buff : NULL, own, &part->card);
  if (!good) return;
  part->at = window->at;
  part->offset = window->at - base;
  part->exported = part->card.handle != 0;
  if (!part->exported) exportIpc(part, base, window->why, sizeof window->why);
}

/* Networks do not read and write it any more. */
static void forget(tuttiCudaWindow *window) {
  if (window->region) tuttiRegionRemove(window->region);
  window->region = 0;
}

static void end(tuttiCudaWindow *window) {
  forget(window);
  for (int r = 0; r < window->nranks; r++)
    if (window->part[r].opened) tuttiCudaIpcClose(window->part[r].opened);
  tuttiFlatUnmap(&window->flat);
  tuttiFree(window);
}

/* Maps what rank r has exported. */
static bool mapPart(tuttiCudaWindow *window, const tuttiCommView *v, const WindowPart *part,
                    int r) {
  window->part[r].unexported = !part->exported;
  if (!part->exported || (r != v->rank && !v->paths[r].stores)) return false;
  window->part[r].at = part->at;
  if (r == v->rank) return true;
  if (part->card.handle) {
    window->part[r].at = tuttiFlatAt(&window->flat, r);
    return window->part[r].at != 0;
  }
  if (v->peers[r].process == v->peers[v->rank].process) return true;
  cudaError_t err = tuttiCudaIpcOpen(part->handle, &window->part[r].opened);
  window->part[r].at = err == cudaSuccess ? (uintptr_t)window->part[r].opened + part->offset : 0;
  window->part[r].error = (int)err;
  if (err == cudaSuccess) return true;
  window->part[r].opened = NULL;
  cudaGetLastError();
  return false;
}

/* Maps the parts of all ranks that it can; true if that are all. */
static bool map(tuttiCudaWindow *window, const tuttiCommView *v, const WindowPart *all) {
  bool every = true;
  for (int r = 0; r < v->nranks; r++)
    every &= mapPart(window, v, &all[r], r);
  return every;
}

/* Why a part is not mapped. */
static void explain(const tuttiCudaWindow *window, int r, char why[TUTTI_SENTENCE]) {
  if (window->index < 0)
    snprintf(why, TUTTI_SENTENCE, "there are %u windows already", TUTTI_ALLPAIRS_WINDOWS);
  else if (tuttiFlatExplain(&window->flat, r, why))
    return;
  else if (window->part[r].error)
    snprintf(why, TUTTI_SENTENCE, "cannot map the buffer of rank %d: %s", r,
             cudaGetErrorString((cudaError_t)window->part[r].error));
  else if (r == window->rank && window->part[r].unexported)
    snprintf(why, TUTTI_SENTENCE, "%s", window->why);
  else if (window->part[r].unexported)
    snprintf(why, TUTTI_SENTENCE,
             "rank %d cannot export its buffer, as its log says at INFO; use memory of "
             "tuttiMemAlloc or cudaMalloc",
             r);
  else
    snprintf(why, TUTTI_SENTENCE, "this GPU does not store to that of rank %d", r);
}

/* Whether no rank uses window `index`. */
static bool isUnused(const WindowPart *all, int nranks, int index) {
  for (int r = 0; r < nranks; r++)
    if (!(all[r].dropped[index / 64] >> index % 64 & 1)) return false;
  return true;
}

/* Ends windows that all ranks have dropped. */
static void sweep(tuttiCudaWindows *set, const WindowPart *all, int nranks) {
  for (tuttiCudaWindow **at = &set->list; *at;) {
    tuttiCudaWindow *window = *at;
    if (window->at || (window->index >= 0 && !isUnused(all, nranks, window->index))) {
      at = &window->next;
      continue;
    }
    *at = window->next;
    end(window);
  }
}

static void listDropped(const tuttiCudaWindows *set, WindowPart *part) {
  memset(part->dropped, 0xff, sizeof part->dropped);
  for (const tuttiCudaWindow *x = set->list; x; x = x->next)
    if (x->at && x->index >= 0) part->dropped[x->index / 64] &= ~((uint64_t)1 << x->index % 64);
}

/* Lets the kernels between all pairs know; what they store to is known by link. */
static tuttiResult_t tellKernels(const tuttiCudaWindow *window, const tuttiCommView *v,
                                 tuttiStream_t stream) {
  uint64_t at[TUTTI_ALLPAIRS_PEERS] = {0};
  tuttiAllPairsHead *head = v->symmetric->mine;
  for (int r = 0, link = 0; r < v->nranks; r++)
    if (r != v->rank) at[link++] = window->part[r].at;
  return tuttiCudaTell(head->window[window->index], at, sizeof at, stream);
}

/* With the first window: where this rank finds the counters of the others. */
static tuttiResult_t findSignals(tuttiCudaWindows *set, const tuttiCommView *v,
                                 const WindowPart *all) {
  const tuttiSymmetric *s = v->symmetric;
  if (set->signals) return tuttiSuccess;
  TUTTI_NEW(set->signals, v->nranks, "signals of ranks", v->memory); // NOLINT: pointers
  for (int r = 0; s && r < v->nranks; r++) {
    uint8_t *block = r == v->rank ? s->mine : s->theirs[r];
    if (block && all[r].signalsAt) set->signals[r] = (uint64_t *)(block + all[r].signalsAt);
  }
  return tuttiSuccess;
}

/* What one registration is about. */
typedef struct {
  tuttiCudaWindows *set;
  tuttiCommView *view;
  tuttiTaskContext *context;
  tuttiCudaWindow *window;
  WindowPart *all;
  tuttiFlatOwn own;
  int device;
  tuttiStream_t stream;
} registration;

/* Under the first index that nobody uses; else it stays -1. */
static void takeIndex(const registration *g) {
  int index = 0;
  while (index < (int)TUTTI_ALLPAIRS_WINDOWS && !isUnused(g->all, g->view->nranks, index))
    index++;
  if (index < (int)TUTTI_ALLPAIRS_WINDOWS) g->window->index = index;
}

/* Maps what can be mapped where one wants it. */
static tuttiResult_t mapFlat(const registration *g) {
  const tuttiCommView *v = g->view;
  TUTTI_FRESH(tuttiFlatCard, cards, v->nranks, "memory of ranks", NULL);
  for (int r = 0; r < v->nranks; r++)
    cards[r] = g->all[r].card;
  return tuttiFlatMap(&g->set->post, v, g->device, cards, &g->own, &g->window->flat);
}

static tuttiResult_t take(registration *g) {
  WindowPart *mine = &g->all[g->view->rank];
  listDropped(g->set, mine);
  if (g->view->symmetric) mine->signalsAt = g->view->symmetric->signalsAt;
  export(g->set, g->view, g->window, mine, &g->own);
  TUTTI_TRY(g->context->exchange(g->context->comm, g->all, sizeof *g->all));
  sweep(g->set, g->all, g->view->nranks);
  TUTTI_TRY(findSignals(g->set, g->view, g->all));
  takeIndex(g);
  if (g->window->index < 0) return tuttiSuccess;
  TUTTI_TRY(mapFlat(g));
  mine->mapped = map(g->window, g->view, g->all);
  return tuttiSuccess;
}

/* ---- for kernels of the user ------------------------------------------------------------------
 */

/* Of the local team, and how many they are. */
static int teamFirst(const tuttiCommView *v) {
  return v->rank - v->rank % v->lsaSize;
}

/* Whether this rank could let its kernels see the window. */
static bool isFlat(const registration *g) {
  const tuttiCommView *v = g->view;
  tuttiCudaWindow *window = g->window;
  if (window->index < 0 || !tuttiFlatComplete(&window->flat, teamFirst(v), v->lsaSize))
    return false;
  if (tuttiWindowTableMake(&g->set->table, g->device, g->stream) == tuttiSuccess) return true;
  snprintf(window->unseen, sizeof window->unseen, "%.200s", tuttiErrorText());
  return false;
}

/* Why kernels do not see the window. */
static void explainUnseen(const registration *g) {
  const tuttiCommView *v = g->view;
  tuttiCudaWindow *window = g->window;
  const char *why = NULL;
  if (window->unseen[0]) return;
  for (int r = teamFirst(v); r < teamFirst(v) + v->lsaSize; r++) {
    if (window->index >= 0 && !g->all[r].card.handle) {
      snprintf(window->unseen, sizeof window->unseen,
               "the memory of rank %d cannot be mapped where one wants it; use memory of "
               "tuttiMemAlloc instead of cudaMalloc",
               r);
      return;
    }
    if (!tuttiFlatAt(&window->flat, r)) {
      explain(window, r, window->unseen);
      return;
    }
    if (!g->all[r].flat) why = "another rank of the local team cannot map it, as its log says";
  }
  if (!window->flat.even)
    why = "the ranks' parts begin at different places of pages in their memory; let all begin at "
          "the same offset in memory of tuttiMemAlloc";
  snprintf(window->unseen, sizeof window->unseen, "%s", why ?: "it is not mapped flat");
}

/* Once all have told what they have mapped. */
static tuttiResult_t show(const registration *g) {
  const tuttiCommView *v = g->view;
  tuttiCudaWindow *window = g->window;
  bool all = true;
  for (int r = teamFirst(v); r < teamFirst(v) + v->lsaSize; r++)
    all &= g->all[r].flat == 1;
  if (!all) {
    explainUnseen(g);
    return tuttiSuccess;
  }
  struct tuttiWindow seen = tuttiWindowSeen(&window->flat, 0, v);
  window->table = &g->set->table;
  return tuttiWindowTableAdd(&g->set->table, window->index, &seen, window->at, window->size,
                             &window->seen);
}

/* ---- a registration ---------------------------------------------------------------------------
 */

static void logWindow(const registration *g) {
  const tuttiCudaWindow *window = g->window;
  bool exchanges = g->context->plan->allPairs;
  char why[TUTTI_SENTENCE] = "a rank could not map it";
  if (window->seen)
    TUTTI_INFO(P2P, "the window at %#" PRIxPTR " is one for kernels too, as %p", window->at,
               (void *)window->seen);
  else
    TUTTI_INFO(P2P, "the window at %#" PRIxPTR " is none for kernels: %s", window->at,
               window->unseen);
  if (!exchanges || window->everywhere) {
    TUTTI_INFO(P2P, "window %d: %zu bytes at %#" PRIxPTR "%s", window->index, window->size,
               window->at, exchanges ? ", mapped by all ranks" : ", for one-sided operations");
    return;
  }
  for (int r = window->nranks - 1; r >= 0; r--)
    if (!window->part[r].at) explain(window, r, why);
  TUTTI_INFO(P2P, "the window at %#" PRIxPTR " goes through slots as any memory: %s", window->at,
             why);
}

/* Some have memory that others map where they want it. */
static bool anyFlat(const registration *g) {
  for (int r = 0; r < g->view->nranks; r++)
    if (g->all[r].card.handle) return true;
  return false;
}

static tuttiResult_t agree(registration *g) {
  bool exchanges =
      g->context->plan->allPairs; /* else no operation uses it, but those of one side */
  tuttiCudaWindow *window = g->window;
  WindowPart *mine = &g->all[g->view->rank];
  TUTTI_TRY(take(g));
  mine->flat = isFlat(g);
  if (exchanges && mine->mapped) TUTTI_TRY(tellKernels(window, g->view, g->stream));
  if (exchanges || anyFlat(g))
    TUTTI_TRY(g->context->exchange(g->context->comm, g->all, sizeof *g->all));
  if (exchanges) {
    window->everywhere = true;
    for (int r = 0; r < g->view->nranks; r++)
      window->everywhere &= g->all[r].mapped == 1;
    g->set->any |= window->everywhere;
  }
  TUTTI_TRY(show(g));
  logWindow(g);
  return tuttiSuccess;
}

tuttiResult_t tuttiCudaWindowAdd(tuttiCudaWindows *set, tuttiCommView *v, tuttiTaskContext *context,
                                 void *buff, size_t size, int device, tuttiStream_t stream,
                                 tuttiCudaWindow **out) {
  tuttiCudaWindow *window;
  TUTTI_FRESH(WindowPart, all, v->nranks, "a window's ranks", v->memory);
  TUTTI_TRY(tuttiAlloc((void **)&window, 1,
                       sizeof *window + (size_t)v->nranks * sizeof window->part[0], "a window",
                       v->memory));
  tuttiResult_t added = tuttiRegionAdd(buff, size, &window->region);
  if (added != tuttiSuccess) {
    end(window);
    return added;
  }
  window->at = (uintptr_t)buff;
  window->size = size;
  window->rank = v->rank;
  window->nranks = v->nranks;
  window->index = -1;
  registration g = {.set = set,
                    .view = v,
                    .context = context,
                    .window = window,
                    .all = all,
                    .own = {.fd = -1},
                    .device = device,
                    .stream = stream};
  tuttiResult_t result = agree(&g);
  tuttiFlatOffered(&g.own);
  if (result != tuttiSuccess) {
    end(window);
    return result;
  }
  TUTTI_LINK(set->list, window);
  *out = window;
  return tuttiSuccess;
}

void tuttiCudaWindowDrop(void *window) {
  tuttiCudaWindow *x = window;
  if (!x) return;
  if (x->seen) tuttiWindowTableRemove(x->table, x->index);
  forget(x);
  x->at = 0;
}

void tuttiCudaWindowsClose(tuttiCudaWindows *set) {
  while (set->list) {
    tuttiCudaWindow *window = set->list;
    set->list = window->next;
    end(window);
  }
  tuttiFlatPostClose(&set->post);
  tuttiWindowTableFree(&set->table);
  tuttiFree(set->signals);
  set->signals = NULL;
}

void *tuttiCudaWindowPart(const void *window, int rank, char why[TUTTI_SENTENCE]) {
  const tuttiCudaWindow *x = window;
  if (x && x->part[rank].at) return (void *)x->part[rank].at; // NOLINT: an address of the GPU
  if (x)
    explain(x, rank, why);
  else
    snprintf(why, TUTTI_SENTENCE, "it is mapped nowhere");
  return NULL;
}

void *tuttiCudaWindowFlat(const void *window, int rank, char why[TUTTI_SENTENCE]) {
  const tuttiCudaWindow *x = window;
  if (x && x->seen) return (void *)tuttiFlatAt(&x->flat, rank); // NOLINT: an address of the GPU
  snprintf(why, TUTTI_SENTENCE, "%s", x ? x->unseen : "this GPU reaches no other");
  return NULL;
}

uint64_t tuttiCudaWindowWhere(const tuttiCudaWindows *set, const void *buff, uint64_t bytes) {
  uintptr_t at = (uintptr_t)buff;
  if (at % 16) return 0;
  for (const tuttiCudaWindow *x = set->list; x; x = x->next)
    if (x->at && x->everywhere && at >= x->at && at - x->at <= x->size &&
        bytes <= x->size - (at - x->at))
      return TUTTI_ALLPAIRS_WHERE(x->index, at - x->at);
  return 0;
}

#endif

#include "device/cuda/window.h"

#ifdef TUTTI_HAVE_CUDA

#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cuda.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/symmetric.h"

#define MASK_WORDS (TUTTI_ALLPAIRS_WINDOWS / 64)

/* What ranks tell each other about their part of a window. */
typedef struct {
  uint64_t dropped[MASK_WORDS]; /* indices that this rank does not use */
  uint64_t at, offset;          /* the address; its distance from what the handle opens */
  uint64_t signalsAt;           /* in the rank's symmetric block; 0: none */
  uint8_t handle[sizeof(cudaIpcMemHandle_t)];
  int32_t exported; /* at is of GPU memory, and handle valid */
  int32_t mapped;   /* second round: this rank has mapped all others */
} WindowPart;

/* Says what is missing if it cannot be exported. */
static void export(WindowPart *part, void *buff, size_t size, char *why, size_t room) {
  int (*addressRange)(unsigned long long *base, size_t *size, unsigned long long at) =
      tuttiCudaDriver("cuMemGetAddressRange");
  unsigned long long base; /* of the allocation that `buff` lies in, as `whole` is its size */
  size_t whole;
  cudaIpcMemHandle_t handle;
  cudaError_t err = cudaErrorInvalidValue;
  if (!addressRange || addressRange(&base, &whole, (uintptr_t)buff) != 0) {
    snprintf(why, room, "the buffer is no GPU memory");
  } else if ((uintptr_t)buff - base + size > whole) {
    snprintf(why, room, "the range is longer than the allocation that it begins in");
  } else if ((err = cudaIpcGetMemHandle(&handle, (void *)(uintptr_t)base)) != cudaSuccess) {
    cudaGetLastError();
    snprintf(why, room, "no CUDA IPC handle: %s; use memory of tuttiMemAlloc or cudaMalloc",
             cudaGetErrorString(err));
  } else {
    part->at = (uintptr_t)buff;
    part->offset = (uintptr_t)buff - base;
    memcpy(part->handle, &handle, sizeof handle);
    part->exported = 1;
  }
}

static void end(tuttiCudaWindow *window) {
  for (int r = 0; r < window->nranks; r++)
    if (window->part[r].opened) cudaIpcCloseMemHandle(window->part[r].opened);
  tuttiFree(window);
}

/* Maps what rank r has exported. */
static bool mapPart(tuttiCudaWindow *window, const tuttiCommView *v, const WindowPart *part,
                    int r) {
  cudaIpcMemHandle_t handle;
  window->part[r].unexported = !part->exported;
  if (!part->exported || (r != v->rank && !v->paths[r].stores)) return false;
  window->part[r].at = part->at;
  if (v->peers[r].process == v->peers[v->rank].process) return true;
  memcpy(&handle, part->handle, sizeof handle);
  cudaError_t err =
      cudaIpcOpenMemHandle(&window->part[r].opened, handle, cudaIpcMemLazyEnablePeerAccess);
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

/* Maps the parts, under the first index that nobody uses. */
static tuttiResult_t take(tuttiCudaWindows *set, tuttiCommView *v, tuttiTaskContext *context,
                          tuttiCudaWindow *window, WindowPart *all) {
  WindowPart *mine = &all[v->rank];
  listDropped(set, mine);
  if (v->symmetric) mine->signalsAt = v->symmetric->signalsAt;
  export(mine, (void *)window->at, window->size, window->why, sizeof window->why);
  TUTTI_TRY(context->exchange(context->comm, all, sizeof *all));
  sweep(set, all, v->nranks);
  TUTTI_TRY(findSignals(set, v, all));
  int index = 0;
  while (index < (int)TUTTI_ALLPAIRS_WINDOWS && !isUnused(all, v->nranks, index))
    index++;
  if (index == (int)TUTTI_ALLPAIRS_WINDOWS) return tuttiSuccess;
  window->index = index;
  mine->mapped = map(window, v, all);
  return tuttiSuccess;
}

static void logWindow(const tuttiCudaWindow *window, bool exchanges) {
  char why[TUTTI_SENTENCE] = "a rank could not map it";
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

static tuttiResult_t agree(tuttiCudaWindows *set, tuttiCommView *v, tuttiTaskContext *context,
                           tuttiCudaWindow *window, tuttiStream_t stream) {
  TUTTI_FRESH(WindowPart, all, v->nranks, "a window's ranks", v->memory);
  TUTTI_TRY(take(set, v, context, window, all));
  if (context->plan->allPairs) { /* else no operation uses it, but those of one side */
    if (all[v->rank].mapped) TUTTI_TRY(tellKernels(window, v, stream));
    TUTTI_TRY(context->exchange(context->comm, all, sizeof *all));
    window->everywhere = true;
    for (int r = 0; r < v->nranks; r++)
      window->everywhere &= all[r].mapped == 1;
    set->any |= window->everywhere;
  }
  logWindow(window, context->plan->allPairs);
  return tuttiSuccess;
}

tuttiResult_t tuttiCudaWindowAdd(tuttiCudaWindows *set, tuttiCommView *v, tuttiTaskContext *context,
                                 void *buff, size_t size, tuttiStream_t stream,
                                 tuttiCudaWindow **out) {
  tuttiCudaWindow *window;
  TUTTI_TRY(tuttiAlloc((void **)&window, 1,
                       sizeof *window + (size_t)v->nranks * sizeof window->part[0], "a window",
                       v->memory));
  window->at = (uintptr_t)buff;
  window->size = size;
  window->rank = v->rank;
  window->nranks = v->nranks;
  window->index = -1;
  tuttiResult_t result = agree(set, v, context, window, stream);
  if (result != tuttiSuccess) {
    end(window);
    return result;
  }
  TUTTI_LINK(set->list, window);
  *out = window;
  return tuttiSuccess;
}

void tuttiCudaWindowDrop(void *window) {
  if (window) ((tuttiCudaWindow *)window)->at = 0;
}

void tuttiCudaWindowsClose(tuttiCudaWindows *set) {
  while (set->list) {
    tuttiCudaWindow *window = set->list;
    set->list = window->next;
    end(window);
  }
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

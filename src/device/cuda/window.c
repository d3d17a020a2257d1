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
  for (int r = 0; r < TUTTI_ALLPAIRS_MAX; r++)
    if (window->theirs[r]) cudaIpcCloseMemHandle(window->theirs[r]);
  tuttiFree(window);
}

/* Maps what the others have exported; at[link] is what kernels store to. */
static bool map(tuttiCudaWindow *window, const tuttiCommView *v, const WindowPart *all,
                uint64_t *at, char *why, size_t room) {
  for (int r = 0, link = 0; r < v->nranks; r++) {
    const WindowPart *part = &all[r];
    if (!part->exported) {
      if (!why[0]) snprintf(why, room, "rank %d cannot export its buffer", r);
      return false;
    }
    if (r == v->rank) continue;
    at[link] = part->at;
    if (v->peers[r].process != v->peers[v->rank].process) {
      cudaIpcMemHandle_t handle;
      memcpy(&handle, part->handle, sizeof handle);
      cudaError_t err =
          cudaIpcOpenMemHandle(&window->theirs[r], handle, cudaIpcMemLazyEnablePeerAccess);
      if (err != cudaSuccess) {
        cudaGetLastError();
        snprintf(why, room, "cannot map the buffer of rank %d: %s", r, cudaGetErrorString(err));
        return false;
      }
      at[link] = (uintptr_t)window->theirs[r] + part->offset;
    }
    link++;
  }
  return true;
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

static tuttiResult_t agree(tuttiCudaWindows *set, tuttiCommView *v, tuttiTaskContext *context,
                           tuttiCudaWindow *window, tuttiStream_t stream) {
  char why[TUTTI_SENTENCE] = "";
  uint64_t at[TUTTI_ALLPAIRS_PEERS] = {0};
  TUTTI_FRESH(WindowPart, all, v->nranks, "a window's ranks", v->memory);
  WindowPart *mine = &all[v->rank];
  listDropped(set, mine);
  export(mine, (void *)window->at, window->size, why, sizeof why);
  TUTTI_TRY(context->exchange(context->comm, all, sizeof *all));
  sweep(set, all, v->nranks);
  int index = 0;
  while (index < (int)TUTTI_ALLPAIRS_WINDOWS && !isUnused(all, v->nranks, index))
    index++;
  bool found = index < (int)TUTTI_ALLPAIRS_WINDOWS;
  if (!found) snprintf(why, sizeof why, "there are %u already", TUTTI_ALLPAIRS_WINDOWS);
  mine->mapped = found && map(window, v, all, at, why, sizeof why);
  tuttiAllPairsHead *head = v->symmetric->mine;
  if (mine->mapped) TUTTI_TRY(tuttiCudaTell(head->window[index], at, sizeof at, stream));
  TUTTI_TRY(context->exchange(context->comm, all, sizeof *all));
  bool everywhere = true;
  for (int r = 0; r < v->nranks; r++)
    everywhere &= all[r].mapped == 1;
  window->index = everywhere ? index : -1;
  set->any |= everywhere;
  if (everywhere)
    TUTTI_INFO(P2P, "window %d: %zu bytes at %#" PRIxPTR ", mapped by all ranks", index,
               window->size, window->at);
  else
    TUTTI_INFO(P2P, "the window at %#" PRIxPTR " goes through slots as any memory: %s", window->at,
               why[0] ? why : "a rank could not map it");
  return tuttiSuccess;
}

tuttiResult_t tuttiCudaWindowAdd(tuttiCudaWindows *set, tuttiCommView *v, tuttiTaskContext *context,
                                 void *buff, size_t size, tuttiStream_t stream,
                                 tuttiCudaWindow **out) {
  tuttiCudaWindow *window;
  TUTTI_NEW(window, 1, "a window", v->memory);
  window->at = (uintptr_t)buff;
  window->size = size;
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
}

uint64_t tuttiCudaWindowWhere(const tuttiCudaWindows *set, const void *buff, uint64_t bytes) {
  uintptr_t at = (uintptr_t)buff;
  if (at % 16) return 0;
  for (const tuttiCudaWindow *x = set->list; x; x = x->next)
    if (x->at && x->index >= 0 && at >= x->at && at - x->at <= x->size &&
        bytes <= x->size - (at - x->at))
      return TUTTI_ALLPAIRS_WHERE(x->index, at - x->at);
  return 0;
}

#endif

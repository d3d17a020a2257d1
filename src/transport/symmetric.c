#include "transport/symmetric.h"

#ifdef TUTTI_HAVE_CUDA

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/os.h"

/* A block, held by its owner and by each neighbour in this process. */
typedef struct sharedBlock {
  struct sharedBlock *next;
  uint64_t commHash;
  int rank, device, holders;
  void *memory;
} sharedBlock;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sharedBlock *blocks; /* of all communicators of this process; under lock */

typedef struct {
  tuttiSymmetric public;
  sharedBlock *own;
  sharedBlock **held; /* [nranks] of neighbours in this process; the others are mapped */
} symmetricState;

static tuttiResult_t cudaFailure(const tuttiWires *w, cudaError_t err, const char *what,
                                 const char *remedy) {
  return TUTTI_FAIL(tuttiUnhandledCudaError, "rank %d cannot %s: %s (%s); %s", w->rank, what,
                    cudaGetErrorString(err), cudaGetErrorName(err), remedy);
}

static void freeBlock(sharedBlock *b) {
  int before;
  if (cudaGetDevice(&before) == cudaSuccess && cudaSetDevice(b->device) == cudaSuccess) {
    cudaFree(b->memory);
    cudaSetDevice(before);
  }
  tuttiFree(b);
}

static void letGo(sharedBlock *b) {
  pthread_mutex_lock(&lock);
  bool last = --b->holders == 0;
  if (last) {
    sharedBlock **at = &blocks;
    while (*at != b)
      at = &(*at)->next;
    *at = b->next;
  }
  pthread_mutex_unlock(&lock);
  if (last) freeBlock(b);
}

/* The block that a neighbour in this process has made, now held by the caller too; NULL: gone. */
static sharedBlock *hold(uint64_t commHash, int rank) {
  pthread_mutex_lock(&lock);
  sharedBlock *b = blocks;
  while (b && (b->commHash != commHash || b->rank != rank))
    b = b->next;
  if (b) b->holders++;
  pthread_mutex_unlock(&lock);
  return b;
}

static tuttiResult_t makeBlock(tuttiWires *w, size_t bytes, sharedBlock **out) {
  sharedBlock *b;
  TUTTI_TRY(tuttiAlloc((void **)&b, 1, sizeof *b, "a symmetric block", NULL));
  *b = (sharedBlock){.commHash = w->commHash, .rank = w->rank, .holders = 1};
  cudaError_t err = cudaGetDevice(&b->device);
  if (err == cudaSuccess) err = cudaMalloc(&b->memory, bytes);
  if (err == cudaSuccess) err = cudaMemset(b->memory, 0, bytes);
  if (err == cudaSuccess) err = cudaStreamSynchronize(NULL);
  if (err != cudaSuccess) {
    cudaFree(b->memory);
    tuttiFree(b);
    return cudaFailure(w, err, "allocate its symmetric block on the GPU",
                       "see what else holds its memory (nvidia-smi)");
  }
  pthread_mutex_lock(&lock);
  b->next = blocks;
  blocks = b;
  pthread_mutex_unlock(&lock);
  *out = b;
  return tuttiSuccess;
}

tuttiResult_t tuttiSymmetricPrepare(tuttiWires *w, tuttiPeer *mine, size_t bytes) {
  symmetricState *s;
  size_t n = (size_t)w->nranks;
  TUTTI_TRY(tuttiAlloc((void **)&s, 1, sizeof *s + n * 2 * sizeof(void *), "symmetric blocks",
                       w->memory));
  s->public.theirs = (void **)(s + 1);
  s->held = (sharedBlock **)(s->public.theirs + n);
  s->public.bytes = bytes;
  w->symmetric = &s->public;
  TUTTI_TRY(makeBlock(w, bytes, &s->own));
  s->public.mine = s->own->memory;
  tuttiFetchAddAcqRel(&w->memory->bytes, bytes);
  cudaIpcMemHandle_t handle;
  cudaError_t err = cudaIpcGetMemHandle(&handle, s->public.mine);
  mine->ipc = err == cudaSuccess;
  if (mine->ipc)
    memcpy(mine->ipcHandle, &handle, sizeof mine->ipcHandle);
  else /* only ranks of other processes need it */
    TUTTI_INFO(P2P, "rank %d: no CUDA IPC handle: %s", w->rank, cudaGetErrorString(err));
  return tuttiSuccess;
}

static tuttiResult_t mapShared(tuttiWires *w, symmetricState *s, int peer) {
  s->held[peer] = hold(w->commHash, peer);
  if (!s->held[peer])
    return TUTTI_FAIL(tuttiRemoteError, "rank %d of this process has given up its GPU memory",
                      peer);
  s->public.theirs[peer] = s->held[peer]->memory;
  if (s->held[peer]->device == s->own->device) return tuttiSuccess;
  cudaError_t err = cudaDeviceEnablePeerAccess(s->held[peer]->device, 0);
  if (err == cudaSuccess) return tuttiSuccess;
  cudaGetLastError(); /* so that no later call finds it */
  if (err == cudaErrorPeerAccessAlreadyEnabled) return tuttiSuccess;
  return cudaFailure(w, err, "reach the memory of a GPU of the same process",
                     "TUTTI_P2P_DISABLE=1 avoids direct access");
}

tuttiResult_t tuttiSymmetricMap(tuttiWires *w, int peer) {
  symmetricState *s = (symmetricState *)w->symmetric;
  const tuttiPeer *p = &w->peers[peer];
  if (p->process == w->peers[w->rank].process) return mapShared(w, s, peer);
  cudaIpcMemHandle_t handle;
  memcpy(&handle, p->ipcHandle, sizeof handle);
  cudaError_t err =
      cudaIpcOpenMemHandle(&s->public.theirs[peer], handle, cudaIpcMemLazyEnablePeerAccess);
  if (err == cudaSuccess) return tuttiSuccess;
  cudaGetLastError();
  char what[160];
  snprintf(what, sizeof what, "map the GPU memory of rank %d (host %s, pid %d) by CUDA IPC", peer,
           p->host, p->pid);
  return cudaFailure(w, err, what,
                     "both processes must see both GPUs (CUDA_VISIBLE_DEVICES) and share an IPC "
                     "namespace; TUTTI_P2P_DISABLE=1 avoids direct access");
}

void tuttiSymmetricDetach(tuttiWires *w) {
  symmetricState *s = (symmetricState *)w->symmetric;
  if (!s) return;
  for (int r = 0; r < w->nranks; r++) {
    if (s->held[r])
      letGo(s->held[r]);
    else if (s->public.theirs[r])
      cudaIpcCloseMemHandle(s->public.theirs[r]);
  }
  if (s->own) {
    letGo(s->own);
    tuttiFetchAddAcqRel(&w->memory->bytes, -(uint64_t)s->public.bytes);
  }
  tuttiFree(s);
  w->symmetric = NULL;
}

#endif

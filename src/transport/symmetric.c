#include "transport/symmetric.h"

#ifdef TUTTI_HAVE_CUDA

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/cuda.h"
#include "base/cuda_ipc.h"
#include "base/error.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/segment.h"

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
  bool staged;        /* theirs are in segments */
} symmetricState;

static tuttiResult_t cudaFailure(const tuttiCommView *v, cudaError_t err, const char *what,
                                 const char *remedy) {
  cudaGetLastError(); /* so that no later call finds it */
  return TUTTI_FAIL(tuttiUnhandledCudaError, "rank %d cannot %s: %s (%s); %s", v->rank, what,
                    cudaGetErrorString(err), cudaGetErrorName(err), remedy);
}

static void letGo(sharedBlock *b) {
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  pthread_mutex_lock(&lock);
  bool last = --b->holders == 0;
  if (last) TUTTI_UNLINK(blocks, b);
  pthread_mutex_unlock(&lock);
  if (!last) return;
  if (tuttiCudaEnter(b->device, &before) == tuttiSuccess) cudaFree(b->memory);
  tuttiFree(b);
}

/* The block that a neighbour in this process has made, now held by the caller too; NULL: gone. */
static sharedBlock *hold(uint64_t commHash, int rank) {
  TUTTI_LOCKED(&lock);
  sharedBlock *b = blocks;
  while (b && (b->commHash != commHash || b->rank != rank))
    b = b->next;
  if (b) b->holders++;
  return b;
}

static tuttiResult_t makeBlock(tuttiCommView *v, size_t bytes, sharedBlock **out) {
  sharedBlock *b;
  cudaStream_t stream = NULL;
  TUTTI_NEW(b, 1, "a symmetric block", NULL);
  *b = (sharedBlock){.commHash = v->commHash, .rank = v->rank, .holders = 1};
  cudaError_t err = cudaGetDevice(&b->device);
  if (err == cudaSuccess) err = cudaMalloc(&b->memory, bytes);
  /* Not on a stream of the user, which may be captured, nor on one that waits for others. */
  if (err == cudaSuccess) err = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (err == cudaSuccess) err = cudaMemsetAsync(b->memory, 0, bytes, stream);
  if (err == cudaSuccess) err = cudaStreamSynchronize(stream);
  if (stream) cudaStreamDestroy(stream);
  if (err != cudaSuccess) {
    cudaFree(b->memory);
    tuttiFree(b);
    return cudaFailure(v, err, "allocate its symmetric block on the GPU",
                       "see what else holds its memory (nvidia-smi)");
  }
  TUTTI_LOCKED(&lock);
  TUTTI_LINK(blocks, b);
  *out = b;
  return tuttiSuccess;
}

/* ---- FIFOs ----------------------------------------------------------------------------------- */

/* The FIFO, or the head, of `rank` in the block of `owner`. */
static uint8_t *fifoAt(const tuttiCommView *v, int owner, int rank, int channel) {
  const tuttiSymmetric *s = v->symmetric;
  uint8_t *block = owner == v->rank ? s->mine : s->theirs[owner];
  size_t column = 0;
  for (int r = 0; r < rank; r++)
    column += r != owner && v->peers[r].hostId == v->peers[owner].hostId;
  size_t row = channel == TUTTI_P2P_CHANNEL ? TUTTI_SYMMETRIC_CHANNELS : (size_t)channel;
  size_t each = tuttiSymmetricFifo(v->slotBytes),
         at = (column * (TUTTI_SYMMETRIC_CHANNELS + 1) + row) * each;
  return block && row <= TUTTI_SYMMETRIC_CHANNELS && at + each <= s->bytes ? block + at : NULL;
}

tuttiResult_t tuttiSymmetricOpen(tuttiCommView *v, int peer, int channel, tuttiDirection direction,
                                 tuttiConn *conn) {
  bool sends = direction == TUTTI_SEND;
  int reader = sends ? peer : v->rank, writer = sends ? v->rank : peer;
  uint8_t *fifo = fifoAt(v, reader, writer, channel), *back = fifoAt(v, writer, reader, channel);
  if (!fifo || !back)
    return TUTTI_FAIL(
        tuttiInvalidUsage,
        "rank %d has no FIFO in GPU memory with rank %d on channel %d: %d GPUs of one "
        "host and %d channels are the most; TUTTI_P2P_DISABLE=1 goes through host "
        "memory instead",
        v->rank, peer, channel, TUTTI_SYMMETRIC_LOCAL, TUTTI_SYMMETRIC_CHANNELS);
  *conn =
      (tuttiConn){.descriptors = (tuttiSlotDescriptor *)fifo,
                  .readers = (tuttiReader *)(back + TUTTI_FIFO_DEPTH * sizeof(tuttiSlotDescriptor)),
                  .data = fifo + TUTTI_SYMMETRIC_CONTROL,
                  .slotBytes = v->slotBytes,
                  .ndescriptors = TUTTI_FIFO_DEPTH,
                  .nreaders = 1,
                  .peer = peer,
                  .channel = channel,
                  .direction = (uint8_t)direction,
                  .transport = &tuttiTransportP2p};
  return tuttiSuccess;
}

/* ---- the block ------------------------------------------------------------------------------- */

/* v->symmetric, with GPU memory of `bytes` and `behind` for this rank alone so far. */
static tuttiResult_t newState(tuttiCommView *v, size_t bytes, size_t behind) {
  symmetricState *s;
  size_t n = (size_t)v->nranks;
  TUTTI_TRY(tuttiAlloc((void **)&s, 1, sizeof *s + n * 2 * sizeof(void *), "symmetric blocks",
                       v->memory));
  s->public.theirs = (void **)(s + 1);
  s->held = (sharedBlock **)(s->public.theirs + n);
  s->public.bytes = bytes;
  s->public.signalsAt = behind ? bytes : 0;
  s->public.taken = bytes + behind;
  v->symmetric = &s->public;
  TUTTI_TRY(makeBlock(v, s->public.taken, &s->own));
  s->public.mine = s->public.counts = s->own->memory;
  tuttiFetchAddAcqRel(&v->memory->bytes, s->public.taken);
  return tuttiSuccess;
}

tuttiResult_t tuttiSymmetricStage(tuttiCommView *v, size_t bytes) {
  tuttiSymmetricDetach(v);
  TUTTI_TRY(newState(v, bytes, 0));
  symmetricState *s = (symmetricState *)v->symmetric;
  s->staged = true;
  for (int r = 0; r < v->nranks; r++) {
    void **at = r == v->rank ? &s->public.mine : &s->public.theirs[r];
    cudaError_t err = cudaHostGetDevicePointer(at, tuttiSegmentMemory(v, r), 0);
    if (err != cudaSuccess)
      return cudaFailure(v, err, "reach a segment that it has pinned", "see the CUDA driver's log");
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiSymmetricPrepare(tuttiCommView *v, tuttiPeer *mine, size_t bytes,
                                    size_t signals) {
  size_t fifos, least = (size_t)v->nranks * TUTTI_RANK_BYTES + signals,
                limit = v->memLimit ?: SIZE_MAX;
  do {
    fifos = tuttiSymmetricFifos(v->nranks, v->slotBytes);
  } while (fifos + least > limit && tuttiSlotsShrink(v));
  if (fifos + least > limit) return tuttiMemExceeded(v, fifos + least);
  /* Without kernels between all pairs there may be several hosts, which is not known yet. */
  size_t grown = tuttiSymmetricFifos(v->nranks, TUTTI_SYMMETRIC_GROWTH * v->slotBytes);
  if (bytes == 0 && grown + least <= limit) bytes = grown;
  if (bytes < fifos || bytes + least > limit) bytes = fifos; /* no exchange, if it does not fit */
  TUTTI_TRY(newState(v, (bytes + TUTTI_LINE - 1) / TUTTI_LINE * TUTTI_LINE, signals));
  cudaIpcMemHandle_t handle;
  cudaError_t err = cudaIpcGetMemHandle(&handle, v->symmetric->mine);
  mine->ipc = err == cudaSuccess;
  if (mine->ipc) memcpy(mine->ipcHandle, &handle, sizeof mine->ipcHandle);
  if (mine->ipc) return tuttiSuccess;
  cudaGetLastError();
  TUTTI_INFO(P2P, "rank %d: no CUDA IPC handle: %s", v->rank, cudaGetErrorString(err));
  return tuttiSuccess; /* only ranks of other processes need it */
}

static tuttiResult_t mapShared(tuttiCommView *v, symmetricState *s, int peer) {
  s->held[peer] = hold(v->commHash, peer);
  if (!s->held[peer])
    return TUTTI_FAIL(tuttiRemoteError, "rank %d of this process gave up its GPU memory", peer);
  s->public.theirs[peer] = s->held[peer]->memory;
  if (s->held[peer]->device == s->own->device) return tuttiSuccess;
  cudaError_t err = cudaDeviceEnablePeerAccess(s->held[peer]->device, 0);
  if (err == cudaErrorPeerAccessAlreadyEnabled) cudaGetLastError();
  if (err == cudaSuccess || err == cudaErrorPeerAccessAlreadyEnabled) return tuttiSuccess;
  return cudaFailure(v, err, "reach the memory of a GPU of the same process",
                     "TUTTI_P2P_DISABLE=1 avoids direct access");
}

tuttiResult_t tuttiSymmetricMap(tuttiCommView *v, int peer) {
  symmetricState *s = (symmetricState *)v->symmetric;
  const tuttiPeer *p = &v->peers[peer];
  if (p->process == v->peers[v->rank].process) return mapShared(v, s, peer);
  cudaError_t err = tuttiCudaIpcOpen(p->ipcHandle, &s->public.theirs[peer]);
  if (err == cudaSuccess) return tuttiSuccess;
  char what[160];
  snprintf(what, sizeof what, "map the GPU memory of rank %d (host %s, pid %d) by CUDA IPC", peer,
           p->host, p->pid);
  return cudaFailure(v, err, what,
                     "both processes must see both GPUs (CUDA_VISIBLE_DEVICES) and share an IPC "
                     "namespace; TUTTI_P2P_DISABLE=1 avoids direct access");
}

void tuttiSymmetricDetach(tuttiCommView *v) {
  symmetricState *s = (symmetricState *)v->symmetric;
  if (!s) return;
  for (int r = 0; r < v->nranks; r++) {
    if (s->held[r])
      letGo(s->held[r]);
    else if (s->public.theirs[r] && !s->staged)
      tuttiCudaIpcClose(s->public.theirs[r]);
  }
  if (s->own) {
    letGo(s->own);
    tuttiFetchAddAcqRel(&v->memory->bytes, -(uint64_t)s->public.taken);
  }
  tuttiFree(s);
  v->symmetric = NULL;
}

#else

/* Without CUDA there is no GPU to do anything for. */
tuttiResult_t tuttiSymmetricOpen(tuttiCommView *v, int peer, int channel, tuttiDirection direction,
                                 tuttiConn *conn) {
  (void)v, (void)peer, (void)channel, (void)direction, (void)conn;
  return tuttiInternalError;
}

#endif

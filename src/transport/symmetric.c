#include "transport/symmetric.h"

#ifdef TUTTI_HAVE_CUDA

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/cuda.h"
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

static tuttiResult_t cudaFailure(const tuttiWires *w, cudaError_t err, const char *what,
                                 const char *remedy) {
  cudaGetLastError(); /* so that no later call finds it */
  return TUTTI_FAIL(tuttiUnhandledCudaError, "rank %d cannot %s: %s (%s); %s", w->rank, what,
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

static tuttiResult_t makeBlock(tuttiWires *w, size_t bytes, sharedBlock **out) {
  sharedBlock *b;
  cudaStream_t stream = NULL;
  TUTTI_NEW(b, 1, "a symmetric block", NULL);
  *b = (sharedBlock){.commHash = w->commHash, .rank = w->rank, .holders = 1};
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
    return cudaFailure(w, err, "allocate its symmetric block on the GPU",
                       "see what else holds its memory (nvidia-smi)");
  }
  TUTTI_LOCKED(&lock);
  TUTTI_LINK(blocks, b);
  *out = b;
  return tuttiSuccess;
}

/* ---- FIFOs ----------------------------------------------------------------------------------- */

/* Lines, head, data. */
#define FIFO_CONTROL 4096
static size_t fifoBytes(const tuttiWires *w) {
  return FIFO_CONTROL + TUTTI_FIFO_DEPTH * w->slotBytes;
}

/* The FIFO, or the head, of `rank` in the block of `owner`. */
static uint8_t *fifoAt(const tuttiWires *w, int owner, int rank, int channel) {
  const tuttiSymmetric *s = w->symmetric;
  uint8_t *block = owner == w->rank ? s->mine : s->theirs[owner];
  size_t column = 0;
  for (int r = 0; r < rank; r++)
    column += r != owner && w->peers[r].hostId == w->peers[owner].hostId;
  size_t row = channel == TUTTI_P2P_CHANNEL ? TUTTI_SYMMETRIC_CHANNELS : (size_t)channel;
  size_t at = (column * (TUTTI_SYMMETRIC_CHANNELS + 1) + row) * fifoBytes(w);
  return block && row <= TUTTI_SYMMETRIC_CHANNELS && at + fifoBytes(w) <= s->bytes ? block + at
                                                                                   : NULL;
}

tuttiResult_t tuttiSymmetricOpen(tuttiWires *w, int peer, int channel, tuttiDirection direction,
                                 tuttiConn *conn) {
  bool sends = direction == TUTTI_SEND;
  int reader = sends ? peer : w->rank, writer = sends ? w->rank : peer;
  uint8_t *fifo = fifoAt(w, reader, writer, channel), *back = fifoAt(w, writer, reader, channel);
  if (!fifo || !back)
    return TUTTI_FAIL(
        tuttiInvalidUsage,
        "rank %d has no FIFO in GPU memory with rank %d on channel %d: %d GPUs of one "
        "host and %d channels are the most; TUTTI_P2P_DISABLE=1 goes through host "
        "memory instead",
        w->rank, peer, channel, TUTTI_SYMMETRIC_LOCAL, TUTTI_SYMMETRIC_CHANNELS);
  *conn = (tuttiConn){.slots = (tuttiSlot *)fifo,
                      .heads = (tuttiHead *)(back + TUTTI_FIFO_DEPTH * sizeof(tuttiSlot)),
                      .data = fifo + FIFO_CONTROL,
                      .slotBytes = w->slotBytes,
                      .lines = TUTTI_FIFO_DEPTH,
                      .nreaders = 1,
                      .peer = peer,
                      .channel = channel,
                      .direction = (uint8_t)direction,
                      .transport = &tuttiTransportP2p};
  return tuttiSuccess;
}

/* ---- the block ------------------------------------------------------------------------------- */

/* w->symmetric, with GPU memory of `bytes` for this rank alone so far. */
static tuttiResult_t newState(tuttiWires *w, size_t bytes) {
  symmetricState *s;
  size_t n = (size_t)w->nranks;
  TUTTI_TRY(tuttiAlloc((void **)&s, 1, sizeof *s + n * 2 * sizeof(void *), "symmetric blocks",
                       w->memory));
  s->public.theirs = (void **)(s + 1);
  s->held = (sharedBlock **)(s->public.theirs + n);
  s->public.bytes = bytes;
  w->symmetric = &s->public;
  TUTTI_TRY(makeBlock(w, bytes, &s->own));
  s->public.mine = s->public.counts = s->own->memory;
  tuttiFetchAddAcqRel(&w->memory->bytes, bytes);
  return tuttiSuccess;
}

tuttiResult_t tuttiSymmetricStage(tuttiWires *w, size_t bytes) {
  tuttiSymmetricDetach(w);
  TUTTI_TRY(newState(w, bytes));
  symmetricState *s = (symmetricState *)w->symmetric;
  s->staged = true;
  for (int r = 0; r < w->nranks; r++) {
    void **at = r == w->rank ? &s->public.mine : &s->public.theirs[r];
    cudaError_t err = cudaHostGetDevicePointer(at, tuttiSegmentMemory(w, r), 0);
    if (err != cudaSuccess)
      return cudaFailure(w, err, "reach a segment that it has pinned", "see the CUDA driver's log");
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiSymmetricPrepare(tuttiWires *w, tuttiPeer *mine, size_t bytes) {
  size_t n = (size_t)w->nranks;
  size_t columns = n < TUTTI_SYMMETRIC_LOCAL ? n - 1 : TUTTI_SYMMETRIC_LOCAL - 1;
  size_t fifos, least = n * TUTTI_RANK_BYTES, limit = w->memLimit ?: SIZE_MAX;
  do {
    fifos = columns * (TUTTI_SYMMETRIC_CHANNELS + 1) * fifoBytes(w);
  } while (fifos + least > limit && tuttiSlotsShrink(w));
  if (fifos + least > limit) return tuttiMemExceeded(w, fifos + least);
  if (bytes < fifos || bytes + least > limit) bytes = fifos; /* no exchange, if it does not fit */
  TUTTI_TRY(newState(w, bytes));
  cudaIpcMemHandle_t handle;
  cudaError_t err = cudaIpcGetMemHandle(&handle, w->symmetric->mine);
  mine->ipc = err == cudaSuccess;
  if (mine->ipc) memcpy(mine->ipcHandle, &handle, sizeof mine->ipcHandle);
  if (mine->ipc) return tuttiSuccess;
  cudaGetLastError();
  TUTTI_INFO(P2P, "rank %d: no CUDA IPC handle: %s", w->rank, cudaGetErrorString(err));
  return tuttiSuccess; /* only ranks of other processes need it */
}

static tuttiResult_t mapShared(tuttiWires *w, symmetricState *s, int peer) {
  s->held[peer] = hold(w->commHash, peer);
  if (!s->held[peer])
    return TUTTI_FAIL(tuttiRemoteError, "rank %d of this process gave up its GPU memory", peer);
  s->public.theirs[peer] = s->held[peer]->memory;
  if (s->held[peer]->device == s->own->device) return tuttiSuccess;
  cudaError_t err = cudaDeviceEnablePeerAccess(s->held[peer]->device, 0);
  if (err == cudaErrorPeerAccessAlreadyEnabled) cudaGetLastError();
  if (err == cudaSuccess || err == cudaErrorPeerAccessAlreadyEnabled) return tuttiSuccess;
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
    else if (s->public.theirs[r] && !s->staged)
      cudaIpcCloseMemHandle(s->public.theirs[r]);
  }
  if (s->own) {
    letGo(s->own);
    tuttiFetchAddAcqRel(&w->memory->bytes, -(uint64_t)s->public.bytes);
  }
  tuttiFree(s);
  w->symmetric = NULL;
}

#else

/* Without CUDA there is no GPU to do anything for. */
tuttiResult_t tuttiSymmetricOpen(tuttiWires *w, int peer, int channel, tuttiDirection direction,
                                 tuttiConn *conn) {
  (void)w, (void)peer, (void)channel, (void)direction, (void)conn;
  return tuttiInternalError;
}

#endif

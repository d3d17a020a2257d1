/* The kernel that carries out schedules on a GPU, over FIFOs (transport/fifo.h) that it reaches:
 * those in its own and its neighbours' memory (P2P) and those in host memory (SHM, and NET with a
 * proxy behind it), one like the other. For communicators whose GPUs cannot all store into each
 * other's memory; the others take the kernels between all pairs (allpairs.h). Needs no CUDA header.
 */
#ifndef TUTTI_KERNELS_RINGTREE_H_
#define TUTTI_KERNELS_RINGTREE_H_

#include <stdint.h>
#include <sys/cdefs.h>

#include "collectives/schedule.h"
#include "kernels/allpairs.h"
#include "transport/fifo.h"
#include "tutti.h"

__BEGIN_DECLS

#define TUTTI_RINGTREE_TASKS 32u /* most of one launch: channels, or messages of a group */
#define TUTTI_RINGTREE_FAN   64u /* most receives, and most sends, of one step */
/* Of a block: movers, and two warps. LEAST: where all messages are small. */
#define TUTTI_RINGTREE_THREADS (TUTTI_ALLPAIRS_THREADS + 64)
#define TUTTI_RINGTREE_LEAST   96u

/* Steps of a schedule that the host works out: where few do anything, a GPU takes longer to know
 * them than to carry them out. */
#define TUTTI_RINGTREE_STEPS 8u

/* One endpoint of a connection, in GPU memory: its pointers as this GPU sees them. */
typedef struct {
  tuttiSlotDescriptor *descriptors;
  tuttiReader *reader;
  uint8_t *data;
  uint8_t *small;  /* slots for payloads of up to smallBytes, if that is not 0 */
  uint64_t next;   /* number of the next message; kept by the kernels */
  uint64_t credit; /* send: what the reader said at the last look */
  /* Of payloads above directBytes in memory of the user that the network reaches. Recv: where
   * places for them are posted; number of the next message that may get one. Send: number + 1 of
   * the last one that stayed where it was. */
  tuttiPost *posts;
  uint64_t ahead;
  uint64_t lent;
  uint32_t directBytes; /* UINT32_MAX: none take that way */
  uint32_t ndescriptors, slotBytes, smallBytes;
  int32_t peer;
} tuttiRingTreeEndpoint;

/* Buffers of the user that the network reads and writes by itself. */
#define TUTTI_REACHES_SEND 1u
#define TUTTI_REACHES_RECV 2u

/* What one thread block does. */
typedef struct {
  tuttiSchedule schedule; /* its ring is in GPU memory */
  tuttiSignature sig;
  const uint8_t *send;
  uint8_t *recv;
  const void *scalarAt; /* of the element's type on the device; NULL: `scalar` */
  tuttiScalar scalar;
  tuttiRingTreeEndpoint
      *endpoints; /* of its channel: [nranks] to receive from, [nranks] to send to */
  tuttiRedOp_t op;
  int32_t divide;
  uint32_t premul;
  uint32_t elementBytes;
  uint32_t isUnsigned; /* the elements, of a kernel for signed integers */
  uint32_t reaches;    /* TUTTI_REACHES_* */
} tuttiRingTreeTask;

typedef struct {
  tuttiKernelStatus *status;
  uint32_t *counts;   /* [3] in GPU memory: this launch's ended blocks, and as the two below */
  uint32_t *started;  /* in host memory: launches that have begun; NULL: the host counts this one */
  uint32_t *finished; /* in host memory: launches that have ended; NULL: nobody asks */
  int32_t type;       /* tuttiDataType_t of all tasks */
  uint32_t copies;    /* they reduce nothing: it does not matter */
  uint32_t small;     /* no message of theirs is larger than TUTTI_INLINE_MAX */
  uint32_t nsteps;    /* of the only task, all of them in step[]; 0: its schedule tells */
  tuttiStep step[TUTTI_RINGTREE_STEPS];
  tuttiRingTreeTask task[TUTTI_RINGTREE_TASKS];
} tuttiRingTreeArgs;

/* Enqueues one thread block per task. Returns a cudaError_t. */
int tuttiRingTreeLaunch(const tuttiRingTreeArgs *args, int ntasks, tuttiStream_t stream);
/* Loads the kernel, so that no first call does; a cudaError_t. */
int tuttiRingTreeLoad(void);

__END_DECLS

#endif

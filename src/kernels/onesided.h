/* The kernels of one-sided operations on GPUs. A rank stores into the window of another, which it
 * maps, and behind that adds 1 to a counter of the other's; whoever waits looks at its own
 * counters. To a rank that it does not store to, it writes messages into the slots of a connection,
 * as rma_message.h has them; a proxy of the receiver puts them into the window, and counts their
 * signals in host memory. Needs no CUDA header.
 *
 * Behind the rest of its symmetric block each rank has three rows of counters, of as many words as
 * there are signals from all ranks: how many have arrived, which their senders add to; how many of
 * these waits have taken, which may be more than have arrived; how many this rank has sent, with
 * which it does without atomic operations on the memory of another GPU. All live in GPU memory, so
 * that a captured graph can be replayed.
 */
#ifndef TUTTI_KERNELS_ONESIDED_H_
#define TUTTI_KERNELS_ONESIDED_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "kernels/ringtree.h"
#include "transport/rma_message.h"
#include "tutti.h"

__BEGIN_DECLS

/* ---- counters -------------------------------------------------------------------------------- */

typedef struct {
  uint32_t contexts, signals; /* which all ranks have alike */
  uint32_t nranks;
} tuttiSignalLayout;

/* The word of the signal that is sent from rank `from`; of what this rank has sent, `to`. */
static inline uint32_t tuttiSignalAt(const tuttiSignalLayout *l, int rank, int context,
                                     int signal) {
  return ((uint32_t)rank * l->contexts + (uint32_t)context) * l->signals + (uint32_t)signal;
}
static inline size_t tuttiSignalRow(const tuttiSignalLayout *l) {
  return (size_t)l->nranks * l->contexts * l->signals;
}

typedef enum {
  tuttiSignalsArrived,
  tuttiSignalsTaken,
  tuttiSignalsSent,
  tuttiSignalRows
} tuttiSignalRow_t;
/* Words behind the rows. */
typedef enum {
  tuttiSignalGuard,  /* of the row of signals sent */
  tuttiSignalsEnded, /* counts the waits that have ended, but for those in graphs */
  tuttiSignalWords
} tuttiSignalWord_t;
/* Of the rows and the words behind them. */
static inline size_t tuttiSignalBytes(const tuttiSignalLayout *l) {
  size_t words = tuttiSignalRows * tuttiSignalRow(l) + tuttiSignalWords;
  return l->contexts ? words * sizeof(uint64_t) : 0;
}

/* What a wait for a counter tells of itself after so long, never 0. */
TUTTI_HD static inline uint64_t tuttiSignalWait(uint32_t counter, uint32_t waitedMs) {
  return (uint64_t)waitedMs << 32 | counter;
}

/* Where in tuttiKernelStatus it tells that. */
TUTTI_HD static inline uint32_t tuttiSignalLateAt(uint32_t counter) {
  return counter * 2654435761u >> (32 - TUTTI_SIGNALS_LATE_BITS); /* Fibonacci hashing */
}

/* ---- puts ------------------------------------------------------------------------------------ */

#define TUTTI_PUT_THREADS 512u
/* Data of one thread block, whose last store the signal follows at once; more goes by launches of
 * their own, by so many blocks at most: eight fill an NVLink connection. */
#define TUTTI_PUT_ALONE     ((uint64_t)64 << 10)
#define TUTTI_PUT_ALONE_ODD ((uint64_t)4 << 10)  /* where it moves byte by byte */
#define TUTTI_PUT_PART      ((uint64_t)16 << 10) /* of each block, at least */
#define TUTTI_PUT_BLOCKS    16u
/* From here on the copy engine is faster, however long it takes to begin. */
#define TUTTI_PUT_ENGINE ((uint64_t)4 << 20)

typedef struct {
  uint8_t *to;
  const uint8_t *from;
  uint64_t bytes, part; /* of all, and of each thread block */
  uint64_t *counter;    /* of the receiver; NULL: no signal follows, else there is one block */
  uint64_t *sent;       /* where `counter` is only stored to: what it has been set to so far */
  uint32_t *guard;      /* of `sent` */
} tuttiPutArgs;

struct CUgraph_st; /* what cudaGraph_t and cudaGraphNode_t point to */
struct CUgraphNode_st;

/* Enqueues the copy of args->bytes, and its signal. Returns a cudaError_t. */
int tuttiPutLaunch(const tuttiPutArgs *args, bool mayBeEarly, tuttiStream_t stream);
/* The same as a node of a graph (cudaGraph_t), behind n others. */
int tuttiPutAddNode(const tuttiPutArgs *args, struct CUgraph_st *graph,
                    struct CUgraphNode_st *const *after, size_t n, struct CUgraphNode_st **node);

/* ---- puts by messages ------------------------------------------------------------------------ */

/* Most bytes of data that are in the descriptor, behind its header. */
#define TUTTI_RELAY_INLINE (TUTTI_INLINE_MAX - (uint32_t)sizeof(tuttiRmaHeader))

typedef struct {
  tuttiRingTreeEndpoint *endpoint; /* of the connection */
  uint32_t *guard;                 /* of it: graphs may run beside eager calls */
  const uint8_t *from;
  uint64_t bytes;
  tuttiRmaTarget target; /* of the first byte; header.bytes and header.last are each piece's */
  tuttiKernelStatus *status;
  uint32_t counter; /* by which a wait for room is reported */
} tuttiRelayArgs;

/* Enqueues it: one thread block, which ends when all is in slots. Returns a cudaError_t. */
int tuttiRelayLaunch(const tuttiRelayArgs *args, tuttiStream_t stream);

/* ---- waits ----------------------------------------------------------------------------------- */

#define TUTTI_AWAIT_MOST 32u /* signals of one launch: a lane for each */

typedef struct {
  const uint64_t *arrived;
  const uint64_t *relayed; /* the same of ranks whose signals are messages */
  uint64_t *taken;
  uint64_t *ended; /* is counted up when the kernel ends; NULL: not, as graphs are replayed */
  tuttiKernelStatus *status;
  uint32_t n;
  struct {
    uint32_t counter, count;
    uint32_t isRelayed;
  } of[TUTTI_AWAIT_MOST];
} tuttiAwaitArgs;

/* Enqueues the wait for all of them. Returns a cudaError_t. */
int tuttiAwaitLaunch(const tuttiAwaitArgs *args, bool mayBeEarly, tuttiStream_t stream);

/* Loads the kernels, so that no first call does; a cudaError_t. */
int tuttiOneSidedLoad(void);

__END_DECLS

#endif

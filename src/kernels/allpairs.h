/* The kernels that run a tuttiAllPairs on a GPU, and the memory they work on. Needs no CUDA header.
 *
 * Every rank has a symmetric block that all its neighbours can store into. It holds FIFOs of DEPTH
 * slots, filled by a neighbour: one for each of the kernel's thread blocks, shot and neighbour;
 * and each of these twice: lines that carry their own flag (protocol LL) and plain data whose flag
 * follows a fence (protocol Simple). Both count the same messages. A flag is a message's number and
 * the hash of its operation, so that a neighbour that calls something else is noticed and never
 * believed.
 *
 * GPUs that do not reach each other have their blocks in pinned host memory instead: staged. Every
 * byte then crosses PCIe twice, and the host's memory is what all share; so what is the same for
 * all peers is written once, to the sender's block, and read there by all. */
#ifndef TUTTI_KERNELS_ALLPAIRS_H_
#define TUTTI_KERNELS_ALLPAIRS_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "collectives/allpairs.h"
#include "tutti.h"

__BEGIN_DECLS

#define TUTTI_ALLPAIRS_DEPTH       4u /* what the kernels rely on */
#define TUTTI_ALLPAIRS_LL_SLOT     8192u
#define TUTTI_ALLPAIRS_SIMPLE_SLOT 32768u
#define TUTTI_ALLPAIRS_PEERS       (TUTTI_ALLPAIRS_MAX - 1)
/* Simple: of a block, those that move data and two warps that talk to the neighbours. */
#define TUTTI_ALLPAIRS_SIMPLE_THREADS (TUTTI_ALLPAIRS_THREADS + 64)
/* Simple: messages from here on are written into the receiver's buffer if it is a window. */
#define TUTTI_ALLPAIRS_DIRECT  ((uint64_t)1 << 20)
#define TUTTI_ALLPAIRS_WINDOWS 1024u /* most windows of a communicator */

/* Messages of a collective with LL up to a size have regions of their own instead of slots:
 * allpairs_regions.cuh. */
#define TUTTI_REGION_BYTES ((size_t)2304 << 10)
/* Staged: a line of 128 bytes takes twice as many, as each 8 bytes hold 4 of a flag. */
#define TUTTI_STAGED_LINE_PAYLOAD 128u
#define TUTTI_STAGED_REGION_BYTES ((size_t)256 << 10)
/* In the place of a count of such kernels: one was given up, whose messages may be unread yet, so
 * that none may follow. Odd: as if it had had a root, for what is looked at then is no part of the
 * short way. */
#define TUTTI_REGIONS_OVER 0xffffffffu

/* Chunks of a message of protocol Simple, of which a thread block takes care of `part` bytes:
 * several for the steps to overlap, and not too small for a fence each. */
TUTTI_HD static inline uint32_t tuttiAllPairsChunk(uint64_t part) {
  uint64_t chunk = (part / 4 + 1023) / 1024 * 1024;
  if (chunk < TUTTI_ALLPAIRS_SIMPLE_SLOT / 2) return TUTTI_ALLPAIRS_SIMPLE_SLOT / 2;
  return chunk < TUTTI_ALLPAIRS_SIMPLE_SLOT ? (uint32_t)chunk : TUTTI_ALLPAIRS_SIMPLE_SLOT;
}

/* The two shots: what `out` sends, what is spread. */
#define TUTTI_ALLPAIRS_KINDS 2
/* Messages are counted for each of them, and, staged, those that go to all others alike apart. */
#define TUTTI_ALLPAIRS_COUNTS 3

/* Written and read in one access. */
typedef struct {
  uint64_t flag;  /* of the message */
  uint64_t where; /* window and offset, see TUTTI_ALLPAIRS_WHERE; 0: a slot */
} __attribute__((aligned(16))) tuttiAllPairsOpen;
#define TUTTI_ALLPAIRS_WHERE(window, offset) ((uint64_t)((window) + 1) << 48 | (offset))

/* The head of a symmetric block; zero when new. Peers are in ascending rank without the owner. */
typedef struct {
  uint64_t flag[TUTTI_ALLPAIRS_BLOCKS][TUTTI_ALLPAIRS_COUNTS][TUTTI_ALLPAIRS_PEERS]
               [TUTTI_ALLPAIRS_DEPTH];
  /* Messages that the peer has taken. */
  uint32_t head[TUTTI_ALLPAIRS_BLOCKS][TUTTI_ALLPAIRS_COUNTS][TUTTI_ALLPAIRS_PEERS];
  /* Of this rank alone: messages sent to and taken from each peer by all kernels before. */
  uint32_t sent[TUTTI_ALLPAIRS_BLOCKS][TUTTI_ALLPAIRS_COUNTS][TUTTI_ALLPAIRS_PEERS];
  uint32_t taken[TUTTI_ALLPAIRS_BLOCKS][TUTTI_ALLPAIRS_COUNTS][TUTTI_ALLPAIRS_PEERS];
  /* Launches with regions so far, times 2, and whether the last had a root; all the same, but for
   * TUTTI_REGIONS_OVER. */
  uint32_t runs[TUTTI_REGION_BLOCKS];
  uint32_t begun[TUTTI_ALLPAIRS_PEERS]; /* the last with a root that the peer has begun */
  /* The peer waits for this rank's message and tells where it wants it. */
  tuttiAllPairsOpen open[TUTTI_ALLPAIRS_BLOCKS][TUTTI_ALLPAIRS_KINDS][TUTTI_ALLPAIRS_PEERS];
  /* Where this rank maps the windows of its peers, by index and link; written by the host. */
  uint64_t window[TUTTI_ALLPAIRS_WINDOWS][TUTTI_ALLPAIRS_PEERS];
} tuttiAllPairsHead;

#define TUTTI_ALLPAIRS_LL_AT ((sizeof(tuttiAllPairsHead) + 4095) / 4096 * 4096)
/* Where things are in a symmetric block behind its head: slots of LL (not if staged), of Simple,
 * regions. Slots and regions have a column for each peer: what it has sent, or, staged, what goes
 * to it; and staged slots one more for what goes to all. */
typedef struct {
  size_t simpleAt, regionsAt, bytes;
  uint32_t columns;
} tuttiAllPairsLayout;
static inline tuttiAllPairsLayout tuttiAllPairsLayOut(int nranks, bool staged) {
  size_t peers = (size_t)nranks - 1, columns = peers + staged;
  size_t blocks = staged ? TUTTI_STAGED_BLOCKS : TUTTI_ALLPAIRS_BLOCKS;
  size_t rows = TUTTI_ALLPAIRS_KINDS * TUTTI_ALLPAIRS_DEPTH;
  tuttiAllPairsLayout l;
  l.columns = (uint32_t)columns;
  l.simpleAt = TUTTI_ALLPAIRS_LL_AT;
  if (!staged) l.simpleAt += TUTTI_ALLPAIRS_LL_BLOCKS * rows * peers * TUTTI_ALLPAIRS_LL_SLOT;
  l.regionsAt = l.simpleAt + blocks * rows * columns * TUTTI_ALLPAIRS_SIMPLE_SLOT;
  l.bytes = l.regionsAt + 2 * TUTTI_ALLPAIRS_KINDS * peers *
                              (staged ? TUTTI_STAGED_REGION_BYTES : TUTTI_REGION_BYTES);
  return l;
}

/* What a kernel tells that waits for signals of one-sided operations (onesided.h), in one access,
 * as several may tell at once; zero before the first. */
typedef struct {
  uint64_t wait;   /* which one, and how long so far: tuttiSignalWait() */
  uint64_t amount; /* signals that have come, and below 32 bits those wanted */
} __attribute__((aligned(16))) tuttiSignalsLate;
/* Waits under way at the same time tell in places of their own, most of them: of two in one place
 * the host may hear the same one for good. */
#define TUTTI_SIGNALS_LATE_BITS 5
#define TUTTI_SIGNALS_LATE      (1u << TUTTI_SIGNALS_LATE_BITS)

/* Host memory that the host and the kernels of one communicator share. */
typedef struct {
  uint32_t abort;  /* host: end every wait */
  uint32_t stalls; /* kernel: changes with each report below */
  int32_t peer;    /* whom a kernel waits for */
  uint32_t waitedMs;
  uint32_t disagrees; /* 1: the peer's message is of another operation */
  uint32_t finished;  /* ring/tree kernel: launches that have ended, if asked for */
  uint32_t started;   /* ring/tree kernel in graphs: launches that have begun */
  tuttiSignature sig; /* of the operation that waits */
  /* The last reports of kernels that wait for signals, at tuttiSignalLateAt(). */
  tuttiSignalsLate late[TUTTI_SIGNALS_LATE];
  uint64_t busy; /* kernel: changes while proxies have to look for its messages */
} tuttiKernelStatus;

/* One neighbour. Sizes are in bytes. */
typedef struct {
  uint8_t *block; /* its symmetric block, as this rank maps it */
  const uint8_t *out;
  uint8_t *place, *late; /* of its messages of the two shots */
  uint64_t outBytes, inBytes, lateBytes;
  uint32_t outHash, inHash; /* of the operation, in flags to and from it; not 0 */
  uint32_t column;          /* of this rank in its block */
  int32_t rank;
} tuttiAllPairsLink;

/* More about it, apart, since short kernels do without and fetch less: the parts of messages that
 * one thread block takes care of; by shot: its place for this rank's messages has to be asked
 * for, this rank's place for its messages is told: where[], 0 for slots. */
typedef struct {
  uint64_t outPart, inPart, latePart;
  uint64_t where[TUTTI_ALLPAIRS_KINDS];
  uint8_t asks[TUTTI_ALLPAIRS_KINDS], tells[TUTTI_ALLPAIRS_KINDS];
} tuttiAllPairsFlow;

/* Of the kernels that send through slots. */
typedef struct {
  uint8_t *block;
  uint8_t *counts; /* GPU memory that begins with a head: only what is of this rank alone */
  uint64_t simpleAt;
  const uint8_t *operand; /* own: an operand, or, without combine, what only goes to `result` */
  uint8_t *result;        /* keep: the combined value goes there */
  int64_t mirror;       /* from what goes out in the first shot to where it goes too; 0: nowhere */
  uint64_t bytes, part; /* of the operand and the result */
  uint32_t combine, own, keep;
  uint32_t loops; /* chunks of the longest part */
  int32_t nlinks;
  int32_t place; /* of the own operand among the links: operands are reduced in order of rank */
  uint32_t columns, staged; /* see tuttiAllPairsLayout */
  uint32_t shared;          /* staged: set of shots in which a rank sends the same to all others */
  tuttiRedOp_t op;
  int32_t divide;
  uint32_t premul, isUnsigned; /* isUnsigned: the elements, of a kernel for signed integers */
  /* Sets of links: whose messages are operands; to whom the combined value is spread. */
  uint32_t operands, spreads;
  tuttiScalar scalar;
  const void *scalarAt; /* of the element's type on the device; NULL: `scalar` */
  tuttiKernelStatus *status;
  tuttiSignature sig;
  tuttiAllPairsLink link[TUTTI_ALLPAIRS_PEERS];
  tuttiAllPairsFlow flow[TUTTI_ALLPAIRS_PEERS];
} __attribute__((aligned(16))) tuttiAllPairsArgs;

/* ---- regions ---------------------------------------------------------------------------------
 * What these kernels need and no more, what they need first in front: each cache line of parameters
 * that they touch takes as long as a good part of a small operation. Sizes and offsets in bytes,
 * offsets from `send` for what goes out and from `recv` for what comes. */

typedef struct {
  uint8_t *regions; /* in its block, those of this rank; staged: those for this rank */
  uint32_t outAt, outBytes, inBytes, placeAt, lateBytes, lateAt;
  uint32_t column;
  int32_t rank;
} tuttiRegionsLink;

/* As in tuttiAllPairsArgs, where nothing else is said. */
typedef struct {
  uint8_t *regions; /* in this rank's block */
  tuttiAllPairsHead *head, *counts;
  const uint8_t *send;
  uint8_t *recv;
  uint32_t bytes, ownAt, keepAt; /* of the own operand in `send`, of the result in `recv` */
  uint32_t lines;                /* of the longest message */
  uint32_t hash;
  uint8_t nlinks, place, op, divide, own, keep, combine, premul;
  uint8_t operands, spreads, shared;
  uint8_t late;   /* set of links from which the second shot brings something */
  uint8_t mirror; /* what goes out in the first shot goes to the same place in `recv` too */
  uint8_t isUnsigned;
} tuttiRegionsFront;

typedef struct {
  uint64_t regionsAt; /* in every block */
  tuttiKernelStatus *status;
  const void *scalarAt;
  tuttiScalar scalar;
  tuttiSignature sig;
} tuttiRegionsBack;

#define TUTTI_REGIONS_FEW 3
typedef struct {
  tuttiRegionsFront front;
  tuttiRegionsLink link[TUTTI_REGIONS_FEW];
  tuttiRegionsBack back;
} tuttiRegionsFew;
typedef struct {
  tuttiRegionsFront front;
  tuttiRegionsLink link[TUTTI_ALLPAIRS_PEERS];
  tuttiRegionsBack back;
} tuttiRegionsMany;

/* Which of the kernels, and its arguments. */
typedef struct {
  bool isFew;    /* `few` holds them, else `many` */
  bool isStaged; /* then there is a kernel for `many` only */
  bool isRooted; /* not all send to all */
  union {
    tuttiRegionsFew few;
    tuttiRegionsMany many;
  };
} tuttiRegionsArgs;

/* ---- launches -------------------------------------------------------------------------------- */

/* A kernel of at most so many threads lets the next one on its stream come while it runs, and so
 * hides what a launch costs. Only a small one: the next takes room from others, whose peers this
 * one may wait for. */
#define TUTTI_ALLPAIRS_EARLY 10240u

typedef struct {
  int nblocks, nthreads;
  bool mayBeEarly; /* see tuttiAllPairsLoad */
  tuttiStream_t stream;
} tuttiLaunchShape;

/* Enqueue a kernel for elements of `type`, which do not matter if nothing is reduced: that of
 * `proto` that sends through slots, and that with regions. Return a cudaError_t. */
int tuttiAllPairsLaunch(const tuttiAllPairsArgs *args, tuttiDataType_t type, int proto,
                        const tuttiLaunchShape *shape);
int tuttiRegionsLaunch(const tuttiRegionsArgs *args, tuttiDataType_t type,
                       const tuttiLaunchShape *shape);
/* Loads the kernels between all pairs, so that no first call does; a cudaError_t. *early: kernels
 * and driver know programmatic dependent launches. */
int tuttiAllPairsLoad(bool *early);

__END_DECLS

#endif

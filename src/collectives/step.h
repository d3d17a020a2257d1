/* The steps that schedules (schedule.h) are made of, and what all algorithms compute with.
 *
 * What a step means:
 *     value = reduction over { local operand, one message from each rank of recv }
 *     value -> recvbuff[dst ...] if STEP_DST, -> one message to each rank of send
 * Without several operands the reduction is a copy. A step with count 0 does nothing and moves no
 * message; both sides compute the same counts, so they skip the same messages. Steps of one channel
 * run in order. No element of recvbuff is written twice in an operation: once a step has written
 * it, its address is as good as a copy. What has to be kept otherwise, as a partial reduction, goes
 * to scratch memory, of which each task of a rank has some (tuttiScheduleScratch): steps may write
 * there again and again, so a message of what is there is always a copy. */
#ifndef TUTTI_COLLECTIVES_STEP_H_
#define TUTTI_COLLECTIVES_STEP_H_

#include <stdint.h>

#include "collectives/signature.h"

#if defined(__CUDACC__)
#define TUTTI_HD __host__ __device__
#else
#define TUTTI_HD
#endif

#define TUTTI_ALGORITHMS(X)   X(Ring) X(Hierarchical) X(Tree) X(Doubling) X(Direct)
#define TUTTI_ALGORITHM(name) tuttiAlgo##name,
typedef enum { TUTTI_ALGORITHMS(TUTTI_ALGORITHM) tuttiAlgoCount } tuttiAlgo;

#define TUTTI_PROTOCOLS(X)   X(LL) X(LL128) X(Simple)
#define TUTTI_PROTOCOL(name) tuttiProto##name,
typedef enum { TUTTI_PROTOCOLS(TUTTI_PROTOCOL) tuttiProtoCount } tuttiProto;

#define TUTTI_MAX_FAN 5
#define TUTTI_ALL     (-1) /* as nrecv / nsend: every other rank of the communicator */

enum {
  TUTTI_STEP_SRC = 1u << 0,   /* local operand: sendbuff[src ...] */
  TUTTI_STEP_DST = 1u << 1,   /* the value goes to recvbuff[dst ...] */
  TUTTI_STEP_FINAL = 1u << 2, /* the value is the whole reduction: divide now for avg */
  /* The messages come from (go to) the sender's shared FIFO, one write for all readers, instead of
   * the pair's own. A shared message goes to all other ranks, and each of them receives it. */
  TUTTI_STEP_RECV_SHARED = 1u << 3,
  TUTTI_STEP_SEND_SHARED = 1u << 4,
  /* Even when the operation is in place, no later step of this rank writes the operand's memory
   * before the receivers of this step's messages have used them (the data dependency proves it). An
   * executor may then let the receivers read it where it is. */
  TUTTI_STEP_STABLE = 1u << 5,
  TUTTI_STEP_SRC_WRITTEN = 1u << 6, /* the local operand is recvbuff[src ...], written before */
  TUTTI_STEP_SRC_SCRATCH = 1u << 7, /*   scratch[src ...], written before */
  TUTTI_STEP_DST_SCRATCH = 1u << 8  /* the value goes to scratch[dst ...]; then not to recvbuff */
};

typedef struct {
  uint64_t src, dst; /* element offsets */
  uint64_t count;    /* elements */
  uint32_t flags;
  int32_t nrecv, nsend;        /* entries of recv / send, or TUTTI_ALL */
  int32_t recv[TUTTI_MAX_FAN]; /* ranks; entries from nrecv / nsend on have no meaning */
  int32_t send[TUTTI_MAX_FAN];
} tuttiStep;

/* Everything a schedule depends on, the same on every rank but for `rank` and the rank's own
 * neighbours. Element offsets in steps are relative to the start of the user's buffers. */
typedef struct {
  int32_t coll, algo; /* tuttiColl, tuttiAlgo */
  int32_t rank, nranks;
  int32_t root;        /* of rooted collectives; for SendRecv the peer */
  uint8_t sending;     /* SendRecv: this rank sends */
  uint8_t shared;      /* direct: shared FIFOs may be used */
  uint8_t twoShot;     /* direct: two exchanges instead of one. All-reduce, of doubling too: reduce-
                          scatter, then all-gather; all-gather: gather, then broadcast, of
                          n * count <= chunk */
  uint64_t count;      /* elements: AllReduce, Broadcast, Reduce, SendRecv: all; else per rank */
  uint64_t begin;      /* this channel's part of [0, count): the part of each rank's block where */
  uint64_t part;       /*   `count` is per rank */
  uint64_t chunk;      /* most elements in one message, > 0 */
  const int32_t *ring; /* ring: ring[i] is the rank at position i, nranks entries; hierarchical: */
                       /*   that of place i % perHost on host i / perHost */
  int32_t position;    /* this rank's position in it */
  int32_t perHost;     /* hierarchical: ranks of each host; 1 if they differ */
  int32_t parent;      /* tree: -1 at the tree's root */
  int32_t level;       /* tree: edges to the root of the tree as built */
  int32_t nchildren;
  int32_t children[TUTTI_MAX_FAN];
  int32_t depth; /* FIFO depth that a schedule may rely on */
} tuttiSchedule;

/* Elements that slices are rounded to where that costs no balance, to keep them aligned. */
#define TUTTI_SLICE_SHIFT   6
#define TUTTI_SLICE_ALIGNED 1024

/* Splits `total` into n even ranges; writes range i, offset by `begin`. Range sizes differ by at
 * most one unit, an element or, for large aligned ranges, 2^TUTTI_SLICE_SHIFT; so when total is at
 * most n * chunk, no range is longer than chunk. */
TUTTI_HD static inline void tuttiSplit(uint64_t begin, uint64_t total, uint64_t n, uint64_t i,
                                       unsigned shift, uint64_t *at, uint64_t *count) {
  if (n <= 1) { /* most small operations; saves the division */
    *at = begin;
    *count = total;
    return;
  }
  uint64_t units = (total >> shift) + ((total & ((UINT64_C(1) << shift) - 1)) != 0);
  uint64_t each = units / n, rest = units % n;
  uint64_t from = (each * i + (i < rest ? i : rest)) << shift;
  uint64_t size = (each + (i < rest)) << shift;
  if (from > total) from = total;
  *at = begin + from;
  *count = size < total - from ? size : total - from;
}

TUTTI_HD static inline unsigned tuttiSplitShift(const tuttiSchedule *s, uint64_t n) {
  bool aligned = (s->chunk >> TUTTI_SLICE_SHIFT) << TUTTI_SLICE_SHIFT == s->chunk;
  return aligned && s->part / TUTTI_SLICE_ALIGNED >= n ? TUTTI_SLICE_SHIFT : 0;
}

/* The part in even pieces of at most a chunk. */
TUTTI_HD static inline uint64_t tuttiPieces(const tuttiSchedule *s) {
  if (s->part <= s->chunk) return s->part != 0;
  return s->part / s->chunk + (s->part % s->chunk != 0);
}
TUTTI_HD static inline void tuttiPiece(const tuttiSchedule *s, uint64_t i, uint64_t *at,
                                       uint64_t *count) {
  uint64_t n = tuttiPieces(s);
  tuttiSplit(s->begin, s->part, n, i, n > 1 ? tuttiSplitShift(s, n) : 0, at, count);
}

/* The part in even loops, each of nranks even slices of at most a chunk: whatever the count, every
 * rank has the same share of the work. */
TUTTI_HD static inline uint64_t tuttiSlicedLoops(const tuttiSchedule *s) {
  uint64_t n = (uint64_t)s->nranks;
  uint64_t each = s->part / n + (s->part % n != 0);
  return each / s->chunk + (each % s->chunk != 0);
}
TUTTI_HD static inline void tuttiSlice(const tuttiSchedule *s, uint64_t loop, int32_t slice,
                                       uint64_t *at, uint64_t *count) {
  uint64_t n = (uint64_t)s->nranks, loops = tuttiSlicedLoops(s);
  unsigned shift = tuttiSplitShift(s, n * loops);
  uint64_t begin, size;
  tuttiSplit(s->begin, s->part, loops, loop, shift, &begin, &size);
  tuttiSplit(begin, size, n, (uint64_t)slice, shift, at, count);
}

/* A step without peers yet. */
TUTTI_HD static inline void tuttiStepInit(tuttiStep *step, uint64_t src, uint64_t dst,
                                          uint64_t count, uint32_t flags) {
  step->src = src;
  step->dst = dst;
  step->count = count;
  step->flags = flags;
  step->nrecv = 0;
  step->nsend = 0;
}

#endif

/* Schedules of the ring algorithm.
 *
 * AllReduce is a reduce-scatter followed by an all-gather (Patarasuk, Yuan: "Bandwidth optimal
 * all-reduce algorithms for clusters of workstations", 2009). Each loop handles nranks slices;
 * slice c ends its reduction at position c. Broadcast and Reduce are a pipelined chain: the ring
 * cut open at the root. A ring in which every rank first sends needs a FIFO depth of 2. */
#ifndef TUTTI_COLLECTIVES_RING_H_
#define TUTTI_COLLECTIVES_RING_H_

#include "collectives/step.h"

TUTTI_HD static inline bool tuttiRingHas(int coll) {
  return coll == tuttiCollAllReduce || coll == tuttiCollBroadcast || coll == tuttiCollReduce ||
         coll == tuttiCollAllGather || coll == tuttiCollReduceScatter;
}

TUTTI_HD static inline uint64_t tuttiRingStepsPerLoop(const tuttiSchedule *s) {
  if (s->coll == tuttiCollBroadcast || s->coll == tuttiCollReduce) return 1;
  return s->coll == tuttiCollAllReduce ? 2 * (uint64_t)s->nranks - 1 : (uint64_t)s->nranks;
}

TUTTI_HD static inline uint64_t tuttiRingLoops(const tuttiSchedule *s) {
  return s->coll == tuttiCollAllReduce ? tuttiSlicedLoops(s) : tuttiPieces(s);
}

TUTTI_HD static inline uint64_t tuttiRingSteps(const tuttiSchedule *s) {
  return tuttiRingLoops(s) * tuttiRingStepsPerLoop(s);
}

/* Position, and rank, that lies `back` positions behind this one; 0 <= back < 3 * nranks. */
TUTTI_HD static inline int32_t tuttiRingPosition(const tuttiSchedule *s, int32_t back) {
  int32_t at = s->position - back;
  while (at < 0)
    at += s->nranks;
  return at;
}
TUTTI_HD static inline int32_t tuttiRingRank(const tuttiSchedule *s, int32_t back) {
  return s->ring[tuttiRingPosition(s, back)];
}

/* Step j of a loop works on the slice that is j + 1 positions behind: its reduction started there
 * and is whole after n - 1 hops. The first step is stable: the slice that it sends is written only
 * when its whole reduction, which contains this very message, comes back. */
TUTTI_HD static inline void tuttiRingAllReduceStep(const tuttiSchedule *s, uint64_t loop, int32_t j,
                                                   tuttiStep *step) {
  int32_t last = s->nranks - 1; /* the step at which this rank completes its own slice */
  uint64_t at, count;
  tuttiSlice(s, loop, tuttiRingPosition(s, j + 1), &at, &count);
  tuttiStepInit(step, at, at, count, 0);
  if (j == 0) step->flags |= TUTTI_STEP_STABLE;
  if (j <= last) step->flags |= TUTTI_STEP_SRC;
  if (j == last) step->flags |= TUTTI_STEP_FINAL;
  if (j >= last) step->flags |= TUTTI_STEP_DST;
  step->nrecv = j > 0;
  step->nsend = j < 2 * last;
}

/* Step j receives the block of the rank j positions behind. Stable: the own block is written by no
 * other step. */
TUTTI_HD static inline void tuttiRingAllGatherStep(const tuttiSchedule *s, uint64_t loop, int32_t j,
                                                   tuttiStep *step) {
  uint64_t at, count;
  tuttiPiece(s, loop, &at, &count);
  tuttiStepInit(step, at, (uint64_t)tuttiRingRank(s, j) * s->count + at, count, TUTTI_STEP_DST);
  if (j == 0) step->flags |= TUTTI_STEP_SRC | TUTTI_STEP_STABLE;
  step->nrecv = j > 0;
  step->nsend = j < s->nranks - 1;
}

/* Step j passes on the block for the rank j + 1 positions behind; the last one is for this rank.
 * Stable: blocks for others are never written. */
TUTTI_HD static inline void tuttiRingReduceScatterStep(const tuttiSchedule *s, uint64_t loop,
                                                       int32_t j, tuttiStep *step) {
  bool last = j == s->nranks - 1;
  uint64_t at, count;
  tuttiPiece(s, loop, &at, &count);
  tuttiStepInit(step, (uint64_t)tuttiRingRank(s, j + 1) * s->count + at, at, count, TUTTI_STEP_SRC);
  if (j == 0) step->flags |= TUTTI_STEP_STABLE;
  if (last) step->flags |= TUTTI_STEP_DST | TUTTI_STEP_FINAL;
  step->nrecv = j > 0;
  step->nsend = !last;
}

/* Broadcast starts at the root and ends at the rank before it; Reduce starts at the rank after the
 * root and ends at the root. Stable: a rank that starts a chain never writes what it sends, but for
 * the root's own copy in the same step. */
TUTTI_HD static inline void tuttiRingChainStep(const tuttiSchedule *s, uint64_t k,
                                               tuttiStep *step) {
  bool isRoot = s->rank == s->root;
  uint64_t at, count;
  tuttiPiece(s, k, &at, &count);
  if (s->coll == tuttiCollBroadcast) {
    tuttiStepInit(step, at, at, count, TUTTI_STEP_DST);
    if (isRoot) step->flags |= TUTTI_STEP_SRC | TUTTI_STEP_STABLE;
    step->nrecv = !isRoot;
    step->nsend = tuttiRingRank(s, s->nranks - 1) != s->root;
  } else {
    tuttiStepInit(step, at, at, count, TUTTI_STEP_SRC | TUTTI_STEP_STABLE);
    if (isRoot) step->flags |= TUTTI_STEP_DST | TUTTI_STEP_FINAL;
    step->nrecv = tuttiRingRank(s, 1) != s->root;
    step->nsend = !isRoot;
  }
}

TUTTI_HD static inline void tuttiRingStep(const tuttiSchedule *s, uint64_t k, tuttiStep *step) {
  uint64_t perLoop = tuttiRingStepsPerLoop(s);
  uint64_t loop = k / perLoop;
  int32_t j = (int32_t)(k % perLoop);
  if (s->coll == tuttiCollAllReduce)
    tuttiRingAllReduceStep(s, loop, j, step);
  else if (s->coll == tuttiCollAllGather)
    tuttiRingAllGatherStep(s, loop, j, step);
  else if (s->coll == tuttiCollReduceScatter)
    tuttiRingReduceScatterStep(s, loop, j, step);
  else
    tuttiRingChainStep(s, k, step);
  step->recv[0] = tuttiRingRank(s, 1);
  step->send[0] = tuttiRingRank(s, s->nranks - 1);
}

#endif

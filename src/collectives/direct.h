/* Schedules of the direct algorithm: every rank talks to every other.
 *
 * Data that all others need goes through the sender's shared FIFO where there is one (one write for
 * all readers), else through the FIFO of each pair. What only one rank needs always uses the
 * pair's.
 *
 * Order: a schedule is a row of pieces, each with early steps (sends) and late steps (receives).
 * The early steps of piece i + 1 come before the late steps of piece i, so that a rank's messages
 * are on their way while it waits. Every FIFO carries one message of each piece, hence a depth of 2
 * suffices; with a depth of 1 the pieces follow each other. */
#ifndef TUTTI_COLLECTIVES_DIRECT_H_
#define TUTTI_COLLECTIVES_DIRECT_H_

#include "collectives/step.h"

TUTTI_HD static inline bool tuttiDirectHas(int coll) {
  return coll >= tuttiCollAllReduce && coll <= tuttiCollSendRecv;
}

/* Where a step stands: piece, and index among the piece's early or late steps. */
typedef struct {
  uint64_t piece, index;
  bool late;
} tuttiDirectPlace;

TUTTI_HD static inline tuttiDirectPlace tuttiDirectFind(const tuttiSchedule *s, uint64_t k,
                                                        uint64_t early, uint64_t late) {
  uint64_t ahead = s->depth > 1 ? 1 : 0; /* pieces sent before piece 0 is received */
  tuttiDirectPlace place;
  if (k < ahead * early) {
    place.piece = 0, place.index = k, place.late = false;
    return place;
  }
  k -= ahead * early;
  place.piece = k / (early + late), place.index = k % (early + late);
  bool nothingToSend = place.piece + ahead >= tuttiPieces(s);
  place.late = nothingToSend || place.index >= early;
  if (!place.late)
    place.piece += ahead;
  else if (!nothingToSend)
    place.index -= early;
  return place;
}

/* The i-th rank to send to and to receive from: everyone starts with another, and in the order in
 * which the messages arrive. */
TUTTI_HD static inline int32_t tuttiDirectTo(const tuttiSchedule *s, uint64_t i) {
  uint64_t to = (uint64_t)s->rank + 1 + i, n = (uint64_t)s->nranks;
  return (int32_t)(to < n ? to : to - n);
}
TUTTI_HD static inline int32_t tuttiDirectFrom(const tuttiSchedule *s, uint64_t i) {
  uint64_t from = (uint64_t)s->rank + (uint64_t)s->nranks - 1 - i, n = (uint64_t)s->nranks;
  return (int32_t)(from < n ? from : from - n);
}

TUTTI_HD static inline void tuttiDirectSend(tuttiStep *step, int32_t rank) {
  step->nsend = 1;
  step->send[0] = rank;
}
TUTTI_HD static inline void tuttiDirectRecv(tuttiStep *step, int32_t rank) {
  step->nrecv = 1;
  step->recv[0] = rank;
}
TUTTI_HD static inline void tuttiDirectPublish(const tuttiSchedule *s, tuttiStep *step) {
  step->nsend = TUTTI_ALL;
  if (s->shared) step->flags |= TUTTI_STEP_SEND_SHARED;
}

/* One-shot: everyone publishes its operand, everyone reduces all. Not stable: in place, the
 * result overwrites the operand while others may still read it. */
TUTTI_HD static inline void tuttiDirectOneShotStep(const tuttiSchedule *s, uint64_t k,
                                                   tuttiStep *step) {
  tuttiDirectPlace place = tuttiDirectFind(s, k, 1, 1);
  uint64_t at, count;
  tuttiPiece(s, place.piece, &at, &count);
  tuttiStepInit(step, at, at, count, TUTTI_STEP_SRC);
  if (!place.late) {
    tuttiDirectPublish(s, step);
    return;
  }
  step->flags |= TUTTI_STEP_DST | TUTTI_STEP_FINAL;
  if (s->shared) step->flags |= TUTTI_STEP_RECV_SHARED;
  step->nrecv = TUTTI_ALL;
}

typedef enum { tuttiTwoShotScatter, tuttiTwoShotReduce, tuttiTwoShotGather } tuttiTwoShotPhase;

/* Scatter: sends the slice of peer `index` to it. Stable: in place, the slice is written only when
 * its whole reduction, which contains this very message, comes back.
 * Reduce: reduces the own slice of all ranks, publishes it. Gather: receives a peer's slice. */
TUTTI_HD static inline void tuttiDirectTwoShotPhase(const tuttiSchedule *s, uint64_t loop,
                                                    tuttiTwoShotPhase phase, uint64_t index,
                                                    tuttiStep *step) {
  int32_t owner = s->rank;
  if (phase == tuttiTwoShotScatter) owner = tuttiDirectTo(s, index);
  if (phase == tuttiTwoShotGather) owner = tuttiDirectFrom(s, index);
  uint64_t at, count;
  tuttiSlice(s, loop, owner, &at, &count);
  if (phase == tuttiTwoShotScatter) {
    tuttiStepInit(step, at, at, count, TUTTI_STEP_SRC | TUTTI_STEP_STABLE);
    tuttiDirectSend(step, owner);
  } else if (phase == tuttiTwoShotReduce) {
    tuttiStepInit(step, at, at, count, TUTTI_STEP_SRC | TUTTI_STEP_DST | TUTTI_STEP_FINAL);
    step->nrecv = TUTTI_ALL;
    tuttiDirectPublish(s, step);
  } else {
    tuttiStepInit(step, at, at, count, TUTTI_STEP_DST);
    if (s->shared) step->flags |= TUTTI_STEP_RECV_SHARED;
    tuttiDirectRecv(step, owner);
  }
}

/* Loops overlap: scatter(i + 1), reduce(i), gather(i - 1). The pair's FIFO, if it carries both
 * phases, then holds up to four messages: scatter(i), gather(i - 1), scatter(i + 1), gather(i).
 * With less depth the loops follow each other. Blocks of 2n - 1 steps, m = n - 1:
 *
 *   first     scatter(0) x m, scatter(1) x m, reduce(0)
 *   middle b  scatter(b + 1) x m, reduce(b), gather(b - 1) x m
 *   last b    reduce(b), gather(b - 1) x m, gather(b) x m */
TUTTI_HD static inline void tuttiDirectTwoShotStep(const tuttiSchedule *s, uint64_t k,
                                                   tuttiStep *step) {
  uint64_t m = (uint64_t)s->nranks - 1;
  uint64_t b = k / (2 * m + 1), i = k % (2 * m + 1);
  uint64_t loops = tuttiSlicedLoops(s);
  bool overlap = loops > 1 && s->depth >= (s->shared ? 2 : 4);
  bool first = overlap && b == 0, last = overlap && b == loops - 1;
  uint64_t scatters = first ? 2 * m : last ? 0 : m;
  if (i < scatters) {
    uint64_t loop = !overlap || (first && i < m) ? b : b + 1;
    tuttiDirectTwoShotPhase(s, loop, tuttiTwoShotScatter, i % m, step);
  } else if (i == scatters) {
    tuttiDirectTwoShotPhase(s, b, tuttiTwoShotReduce, 0, step);
  } else {
    i -= scatters + 1;
    uint64_t loop = !overlap || (last && i >= m) ? b : b - 1;
    tuttiDirectTwoShotPhase(s, loop, tuttiTwoShotGather, i % m, step);
  }
}

/* Stable: the own block is written by this step only, with itself. */
TUTTI_HD static inline void tuttiDirectAllGatherStep(const tuttiSchedule *s, uint64_t k,
                                                     tuttiStep *step) {
  tuttiDirectPlace place = tuttiDirectFind(s, k, 1, (uint64_t)s->nranks - 1);
  int32_t owner = place.late ? tuttiDirectFrom(s, place.index) : s->rank;
  uint64_t at, count;
  tuttiPiece(s, place.piece, &at, &count);
  tuttiStepInit(step, at, (uint64_t)owner * s->count + at, count, TUTTI_STEP_DST);
  if (place.late) {
    if (s->shared) step->flags |= TUTTI_STEP_RECV_SHARED;
    tuttiDirectRecv(step, owner);
  } else {
    step->flags |= TUTTI_STEP_SRC | TUTTI_STEP_STABLE;
    tuttiDirectPublish(s, step);
  }
}

/* Rank 0 takes all blocks, one after the other, and sends them to everyone in one message: 2(n - 1)
 * messages instead of n(n - 1). Stable: rank 0 sends what it never writes again; the others' blocks
 * are written only when all of them, for which rank 0 has taken this very message, come back. */
TUTTI_HD static inline void tuttiDirectTwoShotGatherStep(const tuttiSchedule *s, uint64_t k,
                                                         tuttiStep *step) {
  uint64_t n = (uint64_t)s->nranks, all = n * s->count;
  if (s->rank == 0 && k == n) {
    tuttiStepInit(step, 0, 0, all, TUTTI_STEP_SRC | TUTTI_STEP_SRC_WRITTEN | TUTTI_STEP_STABLE);
    tuttiDirectPublish(s, step);
  } else if (s->rank == 0) {
    tuttiStepInit(step, 0, k * s->count, s->count, TUTTI_STEP_DST);
    if (k == 0)
      step->flags |= TUTTI_STEP_SRC;
    else
      tuttiDirectRecv(step, (int32_t)k);
  } else if (k == 0) {
    tuttiStepInit(step, 0, 0, s->count, TUTTI_STEP_SRC | TUTTI_STEP_STABLE);
    tuttiDirectSend(step, 0);
  } else {
    tuttiStepInit(step, 0, 0, all, TUTTI_STEP_DST);
    if (s->shared) step->flags |= TUTTI_STEP_RECV_SHARED;
    tuttiDirectRecv(step, 0);
  }
}

/* Stable: blocks for others are never written. */
TUTTI_HD static inline void tuttiDirectReduceScatterStep(const tuttiSchedule *s, uint64_t k,
                                                         tuttiStep *step) {
  tuttiDirectPlace place = tuttiDirectFind(s, k, (uint64_t)s->nranks - 1, 1);
  int32_t owner = place.late ? s->rank : tuttiDirectTo(s, place.index);
  uint64_t at, count;
  tuttiPiece(s, place.piece, &at, &count);
  tuttiStepInit(step, (uint64_t)owner * s->count + at, at, count, TUTTI_STEP_SRC);
  if (place.late) {
    step->flags |= TUTTI_STEP_DST | TUTTI_STEP_FINAL;
    step->nrecv = TUTTI_ALL;
  } else {
    step->flags |= TUTTI_STEP_STABLE;
    tuttiDirectSend(step, owner);
  }
}

/* Stable: not in place. The own block is the first of the late steps, while messages are on their
 * way. */
TUTTI_HD static inline void tuttiDirectAlltoAllStep(const tuttiSchedule *s, uint64_t k,
                                                    tuttiStep *step) {
  tuttiDirectPlace place = tuttiDirectFind(s, k, (uint64_t)s->nranks - 1, (uint64_t)s->nranks);
  int32_t peer = s->rank;
  if (!place.late) peer = tuttiDirectTo(s, place.index);
  if (place.late && place.index > 0) peer = tuttiDirectFrom(s, place.index - 1);
  uint64_t at, count;
  tuttiPiece(s, place.piece, &at, &count);
  at += (uint64_t)peer * s->count;
  tuttiStepInit(step, at, at, count, 0);
  if (!place.late || place.index == 0) step->flags |= TUTTI_STEP_SRC | TUTTI_STEP_STABLE;
  if (place.late) step->flags |= TUTTI_STEP_DST;
  if (!place.late) tuttiDirectSend(step, peer);
  if (place.late && place.index > 0) tuttiDirectRecv(step, peer);
}

/* One step for each piece: in Broadcast, Reduce, Gather and Scatter of a rank that is not the root,
 * and of either side of a message, whose `root` is the other one. Stable: its sendbuff is not
 * written at all. */
TUTTI_HD static inline void tuttiDirectLeafStep(const tuttiSchedule *s, uint64_t k,
                                                tuttiStep *step) {
  bool sends = s->coll == tuttiCollReduce || s->coll == tuttiCollGather || s->sending;
  uint64_t at, count;
  tuttiPiece(s, k, &at, &count);
  if (sends) {
    tuttiStepInit(step, at, at, count, TUTTI_STEP_SRC | TUTTI_STEP_STABLE);
    tuttiDirectSend(step, s->root);
    return;
  }
  tuttiStepInit(step, at, at, count, TUTTI_STEP_DST);
  if (s->shared && s->coll == tuttiCollBroadcast) step->flags |= TUTTI_STEP_RECV_SHARED;
  tuttiDirectRecv(step, s->root);
}

/* Broadcast, Reduce: the root has one step for each piece. Stable: its sendbuff is written with
 * itself only. */
TUTTI_HD static inline void tuttiDirectRootStep(const tuttiSchedule *s, uint64_t k,
                                                tuttiStep *step) {
  uint64_t at, count;
  tuttiPiece(s, k, &at, &count);
  tuttiStepInit(step, at, at, count, TUTTI_STEP_SRC | TUTTI_STEP_DST);
  if (s->coll == tuttiCollReduce) {
    step->flags |= TUTTI_STEP_FINAL;
    step->nrecv = TUTTI_ALL;
  } else {
    step->flags |= TUTTI_STEP_STABLE;
    tuttiDirectPublish(s, step);
  }
}

/* The root of a gather takes the peers' blocks in turn, and its own first, while their messages are
 * on the way. Stable: its sendbuff is written with itself only. */
TUTTI_HD static inline void tuttiDirectGatherRootStep(const tuttiSchedule *s, uint64_t k,
                                                      tuttiStep *step) {
  uint64_t turns = (uint64_t)s->nranks, turn = k % turns;
  int32_t peer = turn == 0 ? s->rank : tuttiDirectFrom(s, turn - 1);
  uint64_t at, count;
  tuttiPiece(s, k / turns, &at, &count);
  tuttiStepInit(step, at, (uint64_t)peer * s->count + at, count, TUTTI_STEP_DST);
  if (turn == 0)
    step->flags |= TUTTI_STEP_SRC | TUTTI_STEP_STABLE;
  else
    tuttiDirectRecv(step, peer);
}

/* The root of a scatter sends the peers' blocks in turn, and copies its own last, while they are on
 * their way. Stable: its sendbuff is written with itself only. */
TUTTI_HD static inline void tuttiDirectScatterRootStep(const tuttiSchedule *s, uint64_t k,
                                                       tuttiStep *step) {
  uint64_t turns = (uint64_t)s->nranks, turn = k % turns;
  bool own = turn == turns - 1;
  int32_t peer = own ? s->rank : tuttiDirectTo(s, turn);
  uint64_t at, count;
  tuttiPiece(s, k / turns, &at, &count);
  tuttiStepInit(step, (uint64_t)peer * s->count + at, at, count,
                TUTTI_STEP_SRC | TUTTI_STEP_STABLE);
  if (own)
    step->flags |= TUTTI_STEP_DST;
  else
    tuttiDirectSend(step, peer);
}

TUTTI_HD static inline void tuttiDirectRootedStep(const tuttiSchedule *s, uint64_t k,
                                                  tuttiStep *step) {
  if (s->rank != s->root)
    tuttiDirectLeafStep(s, k, step);
  else if (s->coll == tuttiCollGather)
    tuttiDirectGatherRootStep(s, k, step);
  else if (s->coll == tuttiCollScatter)
    tuttiDirectScatterRootStep(s, k, step);
  else
    tuttiDirectRootStep(s, k, step);
}

TUTTI_HD static inline uint64_t tuttiDirectSteps(const tuttiSchedule *s) {
  uint64_t n = (uint64_t)s->nranks, pieces = tuttiPieces(s);
  if (s->coll == tuttiCollAllReduce)
    return s->twoShot ? tuttiSlicedLoops(s) * (2 * n - 1) : pieces * 2;
  if (s->coll == tuttiCollAllGather && s->twoShot) return s->rank == 0 ? n + 1 : 2;
  if (s->coll == tuttiCollBroadcast || s->coll == tuttiCollReduce || s->coll == tuttiCollSendRecv)
    return pieces;
  if (s->coll == tuttiCollGather || s->coll == tuttiCollScatter)
    return s->rank == s->root ? pieces * n : pieces;
  return s->coll == tuttiCollAlltoAll ? pieces * (2 * n - 1) : pieces * n;
}

TUTTI_HD static inline void tuttiDirectStep(const tuttiSchedule *s, uint64_t k, tuttiStep *step) {
  if (s->coll == tuttiCollAllReduce && s->twoShot)
    tuttiDirectTwoShotStep(s, k, step);
  else if (s->coll == tuttiCollAllReduce)
    tuttiDirectOneShotStep(s, k, step);
  else if (s->coll == tuttiCollAllGather && s->twoShot)
    tuttiDirectTwoShotGatherStep(s, k, step);
  else if (s->coll == tuttiCollAllGather)
    tuttiDirectAllGatherStep(s, k, step);
  else if (s->coll == tuttiCollReduceScatter)
    tuttiDirectReduceScatterStep(s, k, step);
  else if (s->coll == tuttiCollAlltoAll)
    tuttiDirectAlltoAllStep(s, k, step);
  else
    tuttiDirectRootedStep(s, k, step);
}

#endif

/* Schedules of the tree algorithm.
 *
 * AllReduce reduces up and broadcasts down, in pieces, on channel trees of a double binary tree.
 * Broadcast and Reduce run on the tree turned towards their root. */
#ifndef TUTTI_COLLECTIVES_TREE_H_
#define TUTTI_COLLECTIVES_TREE_H_

#include "collectives/step.h"

TUTTI_HD static inline bool tuttiTreeHas(int coll) {
  return coll == tuttiCollAllReduce || coll == tuttiCollBroadcast || coll == tuttiCollReduce;
}

/* The tree's root turns a piece around in one step; others meet it twice in an all-reduce. */
TUTTI_HD static inline uint64_t tuttiTreeSteps(const tuttiSchedule *s) {
  bool twice = s->coll == tuttiCollAllReduce && s->parent >= 0;
  return tuttiPieces(s) * (twice ? 2 : 1);
}

/* Reduces a piece of the children and of this rank towards the root. Stable: in an all-reduce a
 * leaf's piece is written only when the whole reduction, which contains this message, comes down;
 * in a reduce it is never written. */
TUTTI_HD static inline void tuttiTreeUp(const tuttiSchedule *s, uint64_t piece, tuttiStep *step) {
  uint64_t at, count;
  tuttiPiece(s, piece, &at, &count);
  tuttiStepInit(step, at, at, count, TUTTI_STEP_SRC | TUTTI_STEP_STABLE);
  step->nrecv = s->nchildren;
  for (int32_t c = 0; c < s->nchildren; c++)
    step->recv[c] = s->children[c];
  if (s->parent >= 0) {
    step->nsend = 1;
    step->send[0] = s->parent;
  } else {
    step->flags |= TUTTI_STEP_DST | TUTTI_STEP_FINAL;
  }
}

TUTTI_HD static inline void tuttiTreeSendDown(const tuttiSchedule *s, tuttiStep *step) {
  step->nsend = s->nchildren;
  for (int32_t c = 0; c < s->nchildren; c++)
    step->send[c] = s->children[c];
}

/* Passes a whole piece from the parent (the root: from sendbuff) on to the children. Stable: only
 * the root has a local operand, and only this step writes the piece. */
TUTTI_HD static inline void tuttiTreeDown(const tuttiSchedule *s, uint64_t piece, tuttiStep *step) {
  uint64_t at, count;
  tuttiPiece(s, piece, &at, &count);
  tuttiStepInit(step, at, at, count, TUTTI_STEP_DST);
  if (s->parent >= 0) {
    step->nrecv = 1;
    step->recv[0] = s->parent;
  } else {
    step->flags |= TUTTI_STEP_SRC | TUTTI_STEP_STABLE;
  }
  tuttiTreeSendDown(s, step);
}

/* Below the root, piece i goes down after piece i + lag has gone up, so that both directions of a
 * link are busy. The lag grows with every level by the pieces that are then on their way between a
 * parent and its child: with equal lags each piece would wait for the round trip between the two.
 *
 * Safe for a growth g < 2 * depth. A child has room for piece m once its parent has taken piece
 * m - depth, up to which the parent sends down no more than piece m - depth - lag + g; for that
 * there is room once the child has taken piece m - 2 * depth - lag + g, and it has taken piece
 * m - 1 - lag before. What the child waits for from above needs no more pieces of it, as its own
 * lag is the greater. */
TUTTI_HD static inline void tuttiTreeAllReduceStep(const tuttiSchedule *s, uint64_t k,
                                                   tuttiStep *step) {
  uint64_t pieces = tuttiPieces(s);
  uint64_t growth = s->depth > 1 ? (uint64_t)s->depth / 2 : 1;
  uint64_t lag = (uint64_t)s->level * growth;
  if (lag > pieces) lag = pieces;
  if (s->parent < 0) {
    tuttiTreeUp(s, k, step);
    tuttiTreeSendDown(s, step);
  } else if (k < lag) {
    tuttiTreeUp(s, k, step);
  } else if (k >= 2 * pieces - lag) {
    tuttiTreeDown(s, k - pieces, step);
  } else if ((k - lag) % 2 == 0) {
    tuttiTreeUp(s, lag + (k - lag) / 2, step);
  } else {
    tuttiTreeDown(s, (k - lag) / 2, step);
  }
}

TUTTI_HD static inline void tuttiTreeStep(const tuttiSchedule *s, uint64_t k, tuttiStep *step) {
  if (s->coll == tuttiCollAllReduce)
    tuttiTreeAllReduceStep(s, k, step);
  else if (s->coll == tuttiCollReduce)
    tuttiTreeUp(s, k, step);
  else
    tuttiTreeDown(s, k, step);
}

#endif

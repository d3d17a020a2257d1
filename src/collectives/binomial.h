/* Schedules of the doubling algorithm for collectives with a root: binomial trees.
 *
 * Ranks are counted from the root on. Rank v of them, the root 0, has below it the ranks up to
 * v + 2^j, j the number of zeros at the end of v, and its children are v + 1, v + 2, v + 4, ... of
 * these (Thakur, Rabenseifner, Gropp: "Optimization of collective communication operations in
 * MPICH", 2005). Gather and Scatter move all blocks of a subtree in one message, which are in
 * scratch memory meanwhile (see doubling.h); Broadcast and Reduce go in pieces, one behind the
 * other. */
#ifndef TUTTI_COLLECTIVES_BINOMIAL_H_
#define TUTTI_COLLECTIVES_BINOMIAL_H_

#include "collectives/doubling.h"

typedef struct {
  int32_t blocks;    /* ranks of its subtree, itself included */
  int32_t nchildren; /* child j is 2^j ranks ahead */
  int32_t parent;    /* rank; -1 of the root */
} tuttiBinomial;

TUTTI_HD static inline void tuttiBinomialFind(const tuttiSchedule *s, tuttiBinomial *b) {
  int32_t n = s->nranks, v = (s->rank - s->root + n) % n, width = 1;
  while (width < n && (v & width) == 0)
    width *= 2;
  b->blocks = width < n - v ? width : n - v;
  b->parent = v == 0 ? -1 : (s->rank - width + n) % n;
  b->nchildren = tuttiRounds(b->blocks);
}

/* Ranks that child j is ahead. The mask changes no j there is: a rank has at most 31 children. */
TUTTI_HD static inline int32_t tuttiChildAhead(int32_t j) {
  return (int32_t)(UINT32_C(1) << (j & 31));
}

/* Blocks of child j. */
TUTTI_HD static inline int32_t tuttiChildBlocks(const tuttiBinomial *b, int32_t j) {
  int32_t width = tuttiChildAhead(j), left = b->blocks - width;
  return width < left ? width : left;
}

/* ---- broadcast, reduce ----------------------------------------------------------------------- */

/* Of a piece: as many as the children need, TUTTI_MAX_FAN in each. */
TUTTI_HD static inline uint64_t tuttiFanSteps(const tuttiBinomial *b) {
  return b->nchildren > TUTTI_MAX_FAN ? tuttiCeil((uint64_t)b->nchildren, TUTTI_MAX_FAN) : 1;
}

/* Stable: a rank's piece is written once, by the first of these steps. */
TUTTI_HD static inline void tuttiBinomialDown(const tuttiSchedule *s, const tuttiBinomial *b,
                                              uint64_t at, uint64_t count, int32_t i,
                                              tuttiStep *step) {
  int32_t left = b->nchildren - i * TUTTI_MAX_FAN; /* the farthest first: most are behind it */
  tuttiStepInit(step, at, at, count, i == 0 ? TUTTI_STEP_DST : 0);
  if (i == 0 && b->parent >= 0) {
    step->nrecv = 1;
    step->recv[0] = b->parent;
  } else {
    step->flags |= TUTTI_STEP_SRC | TUTTI_STEP_STABLE;
    if (i > 0) step->flags |= TUTTI_STEP_SRC_WRITTEN;
  }
  for (int32_t j = left - 1; j >= 0 && step->nsend < TUTTI_MAX_FAN; j--)
    step->send[step->nsend++] = tuttiRankAfter(s, tuttiChildAhead(j));
}

/* Stable: only the root's recvbuff is written, with what contains its operand. */
TUTTI_HD static inline void tuttiBinomialUp(const tuttiSchedule *s, const tuttiBinomial *b,
                                            uint64_t at, uint64_t count, int32_t i,
                                            tuttiStep *step) {
  bool last = (uint64_t)i + 1 == tuttiFanSteps(b);
  tuttiStepInit(step, i > 0 ? 0 : at, last ? at : 0, count, TUTTI_STEP_SRC);
  step->flags |= i > 0 ? TUTTI_STEP_SRC_SCRATCH : TUTTI_STEP_STABLE;
  for (int32_t j = i * TUTTI_MAX_FAN; j < b->nchildren && step->nrecv < TUTTI_MAX_FAN; j++)
    step->recv[step->nrecv++] = tuttiRankAfter(s, tuttiChildAhead(j));
  if (!last) {
    step->flags |= TUTTI_STEP_DST_SCRATCH;
  } else if (b->parent < 0) {
    step->flags |= TUTTI_STEP_DST | TUTTI_STEP_FINAL;
  } else {
    step->nsend = 1;
    step->send[0] = b->parent;
  }
}

/* ---- gather, scatter ------------------------------------------------------------------------- */

/* What a rank does of a loop, in this order for a gather and backwards for a scatter: its own
 * block, its children's, and then its parent's part, or as the root the copy of all of them. Leaves
 * have one phase, without scratch memory. */
TUTTI_HD static inline int32_t tuttiBlocksPhases(const tuttiBinomial *b) {
  return b->blocks == 1 ? 1 : b->nchildren + 2;
}

/* Steps of phase f. */
TUTTI_HD static inline uint64_t tuttiBlocksSteps(const tuttiSchedule *s, const tuttiRow *row,
                                                 const tuttiBinomial *b, int32_t f) {
  if (f == 0) return 1;
  if (f > b->nchildren && b->parent < 0) return tuttiRowSteps(s, row);
  int32_t blocks = f <= b->nchildren ? tuttiChildBlocks(b, f - 1) : b->blocks;
  return tuttiCeil((uint64_t)blocks * row->most, s->chunk);
}

/* Blocks first .. first + n - 1 of scratch memory, from (gather) or to (scatter) a rank. */
TUTTI_HD static inline void tuttiBlocksMove(const tuttiRow *row, int32_t first, int32_t n,
                                            int32_t peer, bool arrives, tuttiMove *m) {
  uint64_t at = (uint64_t)first * row->each, count = (uint64_t)n * row->each;
  tuttiMoveInit(m, at, at, count, arrives ? TUTTI_STEP_DST_SCRATCH : TUTTI_FROM_SCRATCH);
  if (arrives)
    m->from = peer;
  else
    m->to = peer;
}

/* Stable, of a leaf: its sendbuff is not written at all. */
TUTTI_HD static inline void tuttiBlocksOwn(const tuttiSchedule *s, const tuttiRow *row,
                                           const tuttiBinomial *b, tuttiMove *m) {
  bool gathers = s->coll == tuttiCollGather, leaf = b->blocks == 1;
  tuttiMoveInit(m, gathers ? row->at : 0, gathers ? 0 : row->at, row->each, 0);
  if (gathers) {
    m->flags = TUTTI_STEP_SRC | (leaf ? TUTTI_STEP_STABLE : TUTTI_STEP_DST_SCRATCH);
    if (leaf) m->to = b->parent;
  } else {
    m->flags = TUTTI_STEP_DST | (leaf ? 0 : TUTTI_FROM_SCRATCH);
    if (leaf) m->from = b->parent;
  }
}

TUTTI_HD static inline uint64_t tuttiBlocksLoopSteps(const tuttiSchedule *s, const tuttiRow *row,
                                                     const tuttiBinomial *b) {
  uint64_t steps = tuttiBlocksSteps(s, row, b, 0);
  for (int32_t f = tuttiBlocksPhases(b) - 1; f > 0; f--)
    steps += tuttiBlocksSteps(s, row, b, f);
  return steps;
}

TUTTI_HD static inline void tuttiBlocksLoopStep(const tuttiSchedule *s, const tuttiRow *row,
                                                const tuttiBinomial *b, uint64_t i,
                                                tuttiStep *step) {
  bool gathers = s->coll == tuttiCollGather;
  int32_t last = tuttiBlocksPhases(b) - 1, f = gathers ? 0 : last;
  uint64_t steps = tuttiBlocksSteps(s, row, b, f);
  for (; i >= steps; steps = tuttiBlocksSteps(s, row, b, f)) {
    i -= steps;
    f += gathers ? 1 : -1;
  }
  tuttiMove m;
  if (f <= 0) {
    tuttiBlocksOwn(s, row, b, &m);
  } else if (f <= b->nchildren) {
    int32_t ahead = tuttiChildAhead(f - 1);
    tuttiBlocksMove(row, ahead, tuttiChildBlocks(b, f - 1), tuttiRankAfter(s, ahead), gathers, &m);
  } else if (b->parent >= 0) {
    tuttiBlocksMove(row, 0, b->blocks, b->parent, !gathers, &m);
  } else {
    tuttiRowStep(s, row, s->root, gathers, i, step);
    return;
  }
  tuttiMoveStep(&m, i, steps, step);
}

/* ---- all of it ------------------------------------------------------------------------------- */

TUTTI_HD static inline bool tuttiMovesBlocks(const tuttiSchedule *s) {
  return s->coll == tuttiCollGather || s->coll == tuttiCollScatter;
}

/* Elements of scratch memory. */
TUTTI_HD static inline uint64_t tuttiBinomialScratch(const tuttiSchedule *s) {
  tuttiBinomial b;
  tuttiBinomialFind(s, &b);
  if (tuttiMovesBlocks(s)) {
    tuttiRow row;
    tuttiRowLoops(s, &row);
    return b.blocks > 1 ? (uint64_t)b.blocks * row.most : 0;
  }
  bool keeps = s->coll == tuttiCollReduce && tuttiFanSteps(&b) > 1;
  return !keeps ? 0 : s->part < s->chunk ? s->part : s->chunk;
}

TUTTI_HD static inline uint64_t tuttiBinomialSteps(const tuttiSchedule *s) {
  tuttiBinomial b;
  tuttiBinomialFind(s, &b);
  if (!tuttiMovesBlocks(s)) return tuttiPieces(s) * tuttiFanSteps(&b);
  tuttiRow row;
  tuttiRowLoops(s, &row);
  return row.loops == 0 ? 0 : row.loops * tuttiBlocksLoopSteps(s, &row, &b);
}

TUTTI_HD static inline void tuttiBinomialStep(const tuttiSchedule *s, uint64_t k, tuttiStep *step) {
  tuttiBinomial b;
  tuttiBinomialFind(s, &b);
  if (!tuttiMovesBlocks(s)) {
    uint64_t fan = tuttiFanSteps(&b), at, count;
    tuttiPiece(s, k / fan, &at, &count);
    if (s->coll == tuttiCollReduce)
      tuttiBinomialUp(s, &b, at, count, (int32_t)(k % fan), step);
    else
      tuttiBinomialDown(s, &b, at, count, (int32_t)(k % fan), step);
    return;
  }
  tuttiRow row;
  tuttiRowLoops(s, &row);
  uint64_t steps = tuttiBlocksLoopSteps(s, &row, &b);
  tuttiRowFind(s, k / steps, &row);
  tuttiBlocksLoopStep(s, &row, &b, k % steps, step);
}

#endif

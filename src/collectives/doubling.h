/* Schedules of the doubling algorithm between all ranks: in round k each rank talks to those 2^k
 * away, so that ceil(log2(nranks)) rounds do, for any number of ranks.
 *
 * AllReduce, one-shot: recursive doubling; ranks beyond a power of two fold into a neighbour
 * (Thakur, Rabenseifner, Gropp: "Optimization of collective communication operations in MPICH",
 * 2005).
 * AllGather: Bruck et al.: "Efficient algorithms for all-to-all communications in multiport
 * message-passing systems", 1997; AlltoAll: the same article.
 * ReduceScatter: the all-gather backwards; AllReduce, two-shot: one after the other (Rabenseifner:
 * "Optimization of collective reduction operations", 2004, on the circulant graph of Bruck, Ho:
 * "Efficient global combine operations in multi-port message-passing systems", 1993, which needs
 * no power of two).
 *
 * Between rounds blocks are in scratch memory, in which a rank's own comes first and those of the
 * ranks behind it follow: so each round's message is one piece of memory. Loops bound the scratch
 * memory and the messages to about a chunk; with a FIFO depth of 1 nothing waits in a circle, as
 * all ranks go through the same rounds. */
#ifndef TUTTI_COLLECTIVES_DOUBLING_H_
#define TUTTI_COLLECTIVES_DOUBLING_H_

#include "collectives/step.h"

/* Rounds: the least k with 2^k >= n. */
TUTTI_HD static inline int32_t tuttiRounds(int32_t n) {
  int32_t k = 0;
  while (INT32_C(1) << k < n)
    k++;
  return k;
}

/* Most often one message is enough, which saves the division. Nothing is cut by 0. */
TUTTI_HD static inline uint64_t tuttiCeil(uint64_t a, uint64_t b) {
  return a <= b ? a != 0 : b <= 1 ? a : a / b + (a % b != 0);
}

/* ---- rows of blocks ------------------------------------------------------------------------- */

/* What one loop handles: a piece of every rank's block, or in an all-reduce nranks slices of a
 * piece. Message and copy numbers are the same in all loops, as `most` is. */
typedef struct {
  uint64_t loops;
  uint64_t most;       /* elements of a block, in any loop */
  uint64_t at;         /* of the first block in the user's buffer */
  uint64_t each, rest; /* block b has each + (b < rest) elements */
  uint64_t total;      /* of all blocks */
  uint64_t stride;     /* from block to block in the user's buffer, unless `contiguous` */
  bool contiguous;
} tuttiRow;

/* So long that half of all blocks, the most that one message has, is a chunk. */
TUTTI_HD static inline uint64_t tuttiRowMost(const tuttiSchedule *s) {
  uint64_t most = s->chunk / ((uint64_t)s->nranks / 2);
  return most > 0 ? most : 1;
}

/* Loops and `most`, which all else follows from. */
TUTTI_HD static inline void tuttiRowLoops(const tuttiSchedule *s, tuttiRow *row) {
  uint64_t n = s->coll == tuttiCollAllReduce ? (uint64_t)s->nranks : 1;
  uint64_t longest = tuttiRowMost(s);
  row->loops = tuttiCeil(tuttiCeil(s->part, n), longest);
  row->most = s->part;
  if (row->loops > 1) row->most = tuttiCeil(row->most, row->loops);
  row->most = tuttiCeil(row->most, n);
  row->contiguous = n > 1 || (row->loops == 1 && s->part == s->count);
}

TUTTI_HD static inline void tuttiRowFind(const tuttiSchedule *s, uint64_t loop, tuttiRow *row) {
  uint64_t n = (uint64_t)s->nranks, count;
  tuttiSplit(s->begin, s->part, row->loops, loop, 0, &row->at, &count);
  bool sliced = s->coll == tuttiCollAllReduce;
  row->each = sliced ? count / n : count;
  row->rest = sliced ? count % n : 0;
  row->total = sliced ? count : n * count;
  row->stride = s->count;
}

/* Elements before block b of the row, which goes on from the start; b < 2 * nranks. */
TUTTI_HD static inline uint64_t tuttiRowAt(const tuttiSchedule *s, const tuttiRow *row, int32_t b) {
  uint64_t round = b >= s->nranks, x = (uint64_t)(round ? b - s->nranks : b);
  return round * row->total + x * row->each + (x < row->rest ? x : row->rest);
}

/* Where the i-th block from `first` on is in scratch memory that begins with block `first`. */
TUTTI_HD static inline uint64_t tuttiRowBehind(const tuttiSchedule *s, const tuttiRow *row,
                                               int32_t first, int32_t i) {
  return tuttiRowAt(s, row, first + i) - tuttiRowAt(s, row, first);
}

/* ---- phases ---------------------------------------------------------------------------------- */

/* One range that is copied, sent, received or reduced; from and to: ranks, -1: none. */
typedef struct {
  uint64_t src, dst, count;
  uint32_t flags;
  int32_t from, to;
} tuttiMove;

/* Some moves of one kind, in pieces of at most a chunk; of an exchange the two sides. */
typedef struct {
  tuttiMove move, back; /* back: what is received meanwhile, if `exchanges` */
  uint64_t pieces;      /* of each */
  bool exchanges;
} tuttiDoublingPhase;

#define TUTTI_FROM_SCRATCH (TUTTI_STEP_SRC | TUTTI_STEP_SRC_SCRATCH)

TUTTI_HD static inline void tuttiMoveInit(tuttiMove *m, uint64_t src, uint64_t dst, uint64_t count,
                                          uint32_t flags) {
  m->src = src;
  m->dst = dst;
  m->count = count;
  m->flags = flags;
  m->from = m->to = -1;
}

TUTTI_HD static inline void tuttiMoveStep(const tuttiMove *m, uint64_t piece, uint64_t pieces,
                                          tuttiStep *step) {
  uint64_t at, count;
  tuttiSplit(0, m->count, pieces, piece, 0, &at, &count);
  tuttiStepInit(step, m->src + at, m->dst + at, count, m->flags);
  step->nrecv = m->from >= 0;
  step->recv[0] = m->from;
  step->nsend = m->to >= 0;
  step->send[0] = m->to;
}

/* Of an exchange each piece is sent before the one before it is received, if the FIFO has room for
 * two, so that both directions are busy. */
TUTTI_HD static inline void tuttiDoublingPhaseStep(const tuttiSchedule *s,
                                                   const tuttiDoublingPhase *p, uint64_t i,
                                                   tuttiStep *step) {
  if (!p->exchanges) {
    tuttiMoveStep(&p->move, i, p->pieces, step);
    return;
  }
  uint64_t ahead = s->depth > 1 ? 1 : 0, last = 2 * p->pieces - 1;
  bool sends = i == 0 || (i != last && i % 2 == ahead);
  if (sends)
    tuttiMoveStep(&p->move, (i + ahead) / 2, p->pieces, step);
  else
    tuttiMoveStep(&p->back, i == last ? p->pieces - 1 : (i - 2 * ahead) / 2, p->pieces, step);
}

/* The copy of all blocks, in the order of scratch memory that begins with block `first`, between it
 * and the user's buffer. A contiguous row is copied in two parts: what lies from block `first` on,
 * and what lies before it. */
TUTTI_HD static inline uint64_t tuttiRowSteps(const tuttiSchedule *s, const tuttiRow *row) {
  uint64_t n = (uint64_t)s->nranks;
  return row->contiguous ? 2 * tuttiCeil(n * row->most, s->chunk) : n;
}

TUTTI_HD static inline void tuttiRowStep(const tuttiSchedule *s, const tuttiRow *row, int32_t first,
                                         bool unpacks, uint64_t i, tuttiStep *step) {
  uint64_t user, scratch, count, pieces = 1;
  if (row->contiguous) {
    uint64_t before = tuttiRowAt(s, row, first);
    pieces = tuttiCeil((uint64_t)s->nranks * row->most, s->chunk);
    bool rest = i >= pieces;
    if (rest) i -= pieces;
    user = row->at + (rest ? 0 : before);
    scratch = rest ? row->total - before : 0;
    count = rest ? before : row->total - before;
  } else {
    user = (uint64_t)((first + (int32_t)i) % s->nranks) * row->stride + row->at;
    scratch = i * row->each;
    count = row->each;
    i = 0;
  }
  tuttiMove m;
  if (unpacks)
    tuttiMoveInit(&m, scratch, user, count, TUTTI_FROM_SCRATCH | TUTTI_STEP_DST);
  else
    tuttiMoveInit(&m, user, scratch, count, TUTTI_STEP_SRC | TUTTI_STEP_DST_SCRATCH);
  tuttiMoveStep(&m, i, pieces, step);
}

/* ---- gathering and reducing ------------------------------------------------------------------ */

TUTTI_HD static inline int32_t tuttiRankAfter(const tuttiSchedule *s, int32_t distance) {
  return (s->rank + distance) % s->nranks;
}
TUTTI_HD static inline int32_t tuttiRankBefore(const tuttiSchedule *s, int32_t distance) {
  return (s->rank - distance + s->nranks) % s->nranks;
}

/* Blocks that round k moves. */
TUTTI_HD static inline int32_t tuttiRoundBlocks(const tuttiSchedule *s, int32_t k) {
  int32_t has = INT32_C(1) << k, missing = s->nranks - has;
  return has < missing ? has : missing;
}

/* Messages in each direction. */
TUTTI_HD static inline uint64_t tuttiRoundPieces(const tuttiSchedule *s, const tuttiRow *row,
                                                 int32_t k) {
  return tuttiCeil((uint64_t)tuttiRoundBlocks(s, k) * row->most, s->chunk);
}

/* Round k of a gather: the first 2^k blocks are there; they go 2^k ranks back, and those behind
 * come from as far ahead. The first round of an all-gather takes the own block from the user. */
TUTTI_HD static inline void tuttiGatherPhase(const tuttiSchedule *s, const tuttiRow *row, int32_t k,
                                             tuttiDoublingPhase *p) {
  int32_t has = INT32_C(1) << k, blocks = tuttiRoundBlocks(s, k);
  uint64_t at = tuttiRowBehind(s, row, s->rank, has);
  bool own = k == 0 && s->coll == tuttiCollAllGather;
  tuttiMoveInit(&p->move, own ? row->at : 0, 0, tuttiRowBehind(s, row, s->rank, blocks),
                own ? TUTTI_STEP_SRC | TUTTI_STEP_DST_SCRATCH : TUTTI_FROM_SCRATCH);
  tuttiMoveInit(&p->back, 0, at, tuttiRowBehind(s, row, s->rank, has + blocks) - at,
                TUTTI_STEP_DST_SCRATCH);
  p->move.to = tuttiRankBefore(s, has);
  p->back.from = tuttiRankAfter(s, has);
  p->exchanges = true;
  p->pieces = tuttiRoundPieces(s, row, k);
}

/* The same backwards: partial reductions of the blocks from 2^k on go to the rank whose own is the
 * first of them. After round 0 the own block is whole. */
TUTTI_HD static inline void tuttiReducePhase(const tuttiSchedule *s, const tuttiRow *row, int32_t k,
                                             tuttiDoublingPhase *p) {
  int32_t has = INT32_C(1) << k, blocks = tuttiRoundBlocks(s, k);
  uint64_t at = tuttiRowBehind(s, row, s->rank, has);
  bool ends = k == 0 && s->coll == tuttiCollReduceScatter;
  tuttiMoveInit(&p->move, at, 0, tuttiRowBehind(s, row, s->rank, has + blocks) - at,
                TUTTI_FROM_SCRATCH);
  tuttiMoveInit(&p->back, 0, ends ? row->at : 0, tuttiRowBehind(s, row, s->rank, blocks),
                TUTTI_FROM_SCRATCH | (ends ? TUTTI_STEP_DST : TUTTI_STEP_DST_SCRATCH));
  if (k == 0) p->back.flags |= TUTTI_STEP_FINAL;
  p->move.to = tuttiRankAfter(s, has);
  p->back.from = tuttiRankBefore(s, has);
  p->exchanges = true;
  p->pieces = tuttiRoundPieces(s, row, k);
}

/* A loop: packing, rounds of reducing, rounds of gathering, unpacking, as far as the collective has
 * them. */
TUTTI_HD static inline uint64_t tuttiDoublingLoopSteps(const tuttiSchedule *s,
                                                       const tuttiRow *row) {
  bool both = s->coll == tuttiCollAllReduce; /* so all four of them */
  uint64_t pieces = 0;
  for (int32_t k = tuttiRounds(s->nranks) - 1; k >= 0; k--)
    pieces += tuttiRoundPieces(s, row, k);
  return (tuttiRowSteps(s, row) + 2 * pieces) * (both ? 2 : 1);
}

/* Takes the steps of rounds from *i until it is within one, of which it returns the number, counted
 * from `first` in steps of `by`. */
TUTTI_HD static inline int32_t tuttiRoundFind(const tuttiSchedule *s, const tuttiRow *row,
                                              int32_t first, int32_t by, uint64_t *i) {
  int32_t rounds = tuttiRounds(s->nranks), k = first;
  for (; k >= 0 && k < rounds; k += by) {
    uint64_t steps = 2 * tuttiRoundPieces(s, row, k);
    if (*i < steps) break;
    *i -= steps;
  }
  return k;
}

TUTTI_HD static inline void tuttiDoublingLoopStep(const tuttiSchedule *s, const tuttiRow *row,
                                                  uint64_t i, tuttiStep *step) {
  int32_t rounds = tuttiRounds(s->nranks), k = -1;
  tuttiDoublingPhase p;
  if (s->coll != tuttiCollAllGather) {
    if (i < tuttiRowSteps(s, row)) {
      tuttiRowStep(s, row, s->rank, false, i, step);
      return;
    }
    i -= tuttiRowSteps(s, row);
    k = tuttiRoundFind(s, row, rounds - 1, -1, &i);
    if (k >= 0) tuttiReducePhase(s, row, k, &p);
  }
  if (k < 0) {
    k = tuttiRoundFind(s, row, 0, 1, &i);
    if (k == rounds) {
      tuttiRowStep(s, row, s->rank, true, i, step);
      return;
    }
    tuttiGatherPhase(s, row, k, &p);
  }
  tuttiDoublingPhaseStep(s, &p, i, step);
}

/* ---- all-to-all ------------------------------------------------------------------------------ */

/* The block for the rank i ranks ahead goes there by the binary digits of i: in round k all blocks
 * whose digit k is set move on by 2^k ranks, through the other part of the scratch memory, where
 * they lie together. They are runs of 2^k blocks, the last perhaps shorter. */
TUTTI_HD static inline int32_t tuttiDigitBlocks(const tuttiSchedule *s, int32_t k) {
  int32_t full = s->nranks >> (k + 1) << k, rest = s->nranks & ((INT32_C(2) << k) - 1);
  int32_t more = rest - (INT32_C(1) << k);
  return full + (more > 0 ? more : 0);
}

/* Steps of one run that moves in or out, and of all. */
TUTTI_HD static inline uint64_t tuttiRunPieces(const tuttiSchedule *s, const tuttiRow *row,
                                               int32_t k) {
  return tuttiCeil(row->most << k, s->chunk);
}
TUTTI_HD static inline uint64_t tuttiRunSteps(const tuttiSchedule *s, const tuttiRow *row,
                                              int32_t k) {
  uint64_t runs = tuttiCeil((uint64_t)tuttiDigitBlocks(s, k), UINT64_C(1) << k);
  return runs * tuttiRunPieces(s, row, k);
}

TUTTI_HD static inline void tuttiRunStep(const tuttiSchedule *s, const tuttiRow *row, int32_t k,
                                         bool back, uint64_t i, tuttiStep *step) {
  uint64_t pieces = tuttiRunPieces(s, row, k), run = i / pieces;
  uint64_t block = (run << (k + 1)) + (UINT64_C(1) << k), blocks = UINT64_C(1) << k;
  uint64_t n = (uint64_t)s->nranks;
  if (blocks > n - block) blocks = n - block;
  uint64_t here = block * row->each, together = row->total + (run << k) * row->each;
  tuttiMove m;
  tuttiMoveInit(&m, back ? together : here, back ? here : together, blocks * row->each,
                TUTTI_FROM_SCRATCH | TUTTI_STEP_DST_SCRATCH);
  tuttiMoveStep(&m, i % pieces, pieces, step);
}

TUTTI_HD static inline uint64_t tuttiDigitPieces(const tuttiSchedule *s, const tuttiRow *row,
                                                 int32_t k) {
  return tuttiCeil((uint64_t)tuttiDigitBlocks(s, k) * row->most, s->chunk);
}

TUTTI_HD static inline void tuttiDigitPhase(const tuttiSchedule *s, const tuttiRow *row, int32_t k,
                                            tuttiDoublingPhase *p) {
  uint64_t blocks = (uint64_t)tuttiDigitBlocks(s, k);
  tuttiMoveInit(&p->move, row->total, 0, blocks * row->each, TUTTI_FROM_SCRATCH);
  tuttiMoveInit(&p->back, 0, row->total, blocks * row->each, TUTTI_STEP_DST_SCRATCH);
  p->move.to = tuttiRankAfter(s, INT32_C(1) << k);
  p->back.from = tuttiRankBefore(s, INT32_C(1) << k);
  p->exchanges = true;
  p->pieces = tuttiDigitPieces(s, row, k);
}

TUTTI_HD static inline uint64_t tuttiDigitsSteps(const tuttiSchedule *s, const tuttiRow *row) {
  uint64_t steps = (uint64_t)s->nranks + tuttiRowSteps(s, row);
  for (int32_t k = tuttiRounds(s->nranks) - 1; k >= 0; k--)
    steps += 2 * (tuttiDigitPieces(s, row, k) + tuttiRunSteps(s, row, k));
  return steps;
}

/* Step i of round k: the runs are gathered, exchanged, and put back. Returns false, and takes the
 * round's steps from *i, if it is of a later round. */
TUTTI_HD static inline bool tuttiDigitStep(const tuttiSchedule *s, const tuttiRow *row, int32_t k,
                                           uint64_t *i, tuttiStep *step) {
  uint64_t runs = tuttiRunSteps(s, row, k), exchange = 2 * tuttiDigitPieces(s, row, k);
  if (*i < runs) {
    tuttiRunStep(s, row, k, false, *i, step);
  } else if (*i < runs + exchange) {
    tuttiDoublingPhase p;
    tuttiDigitPhase(s, row, k, &p);
    tuttiDoublingPhaseStep(s, &p, *i - runs, step);
  } else if (*i < 2 * runs + exchange) {
    tuttiRunStep(s, row, k, true, *i - runs - exchange, step);
  } else {
    *i -= 2 * runs + exchange;
    return false;
  }
  return true;
}

TUTTI_HD static inline void tuttiDigitsStep(const tuttiSchedule *s, const tuttiRow *row, uint64_t i,
                                            tuttiStep *step) {
  uint64_t packs = tuttiRowSteps(s, row);
  if (i < packs) {
    tuttiRowStep(s, row, s->rank, false, i, step);
    return;
  }
  i -= packs;
  for (int32_t k = 0; k < tuttiRounds(s->nranks); k++)
    if (tuttiDigitStep(s, row, k, &i, step)) return;
  /* What has come i ranks is in block i. */
  uint64_t from = (uint64_t)tuttiRankBefore(s, (int32_t)i);
  tuttiStepInit(step, i * row->each, from * row->stride + row->at, row->each,
                TUTTI_FROM_SCRATCH | TUTTI_STEP_DST);
}

/* ---- recursive doubling ---------------------------------------------------------------------- */

/* Of n ranks 2^k take part, the largest power of two; each of the first 2 * (n - 2^k) ranks with an
 * odd number gives its operand to the rank before it, and gets the result from there. */
typedef struct {
  int32_t rounds, folded; /* folded: how many do not take part */
  bool out, pair;         /* this rank does not; it has the operand of another */
} tuttiFold;

TUTTI_HD static inline void tuttiFoldFind(const tuttiSchedule *s, tuttiFold *f) {
  f->rounds = 0;
  while (INT32_C(2) << f->rounds <= s->nranks)
    f->rounds++;
  f->folded = s->nranks - (INT32_C(1) << f->rounds);
  bool among = s->rank < 2 * f->folded;
  f->out = among && s->rank % 2 == 1;
  f->pair = among && !f->out;
}

TUTTI_HD static inline int32_t tuttiFoldPartner(const tuttiSchedule *s, const tuttiFold *f,
                                                int32_t k) {
  int32_t self = f->pair ? s->rank / 2 : s->rank - f->folded;
  int32_t other = self ^ (INT32_C(1) << k);
  return other < f->folded ? 2 * other : other + f->folded;
}

/* Stable, of a rank that does not take part: what it gets contains what it sent. */
TUTTI_HD static inline void tuttiFoldedStep(const tuttiSchedule *s, uint64_t at, uint64_t count,
                                            uint64_t j, tuttiStep *step) {
  tuttiStepInit(step, at, at, count, j == 0 ? TUTTI_STEP_SRC | TUTTI_STEP_STABLE : TUTTI_STEP_DST);
  step->nsend = j == 0;
  step->nrecv = j == 1;
  step->send[0] = step->recv[0] = s->rank - 1;
}

/* Step j of a piece takes what came in round j - 1, and sends the sum on in round j. */
TUTTI_HD static inline void tuttiRecursiveStep(const tuttiSchedule *s, uint64_t k,
                                               tuttiStep *step) {
  tuttiFold f;
  tuttiFoldFind(s, &f);
  uint64_t steps = f.out ? 2 : (uint64_t)f.rounds + 1, at, count;
  int32_t j = (int32_t)(k % steps);
  tuttiPiece(s, k / steps, &at, &count);
  if (f.out) {
    tuttiFoldedStep(s, at, count, (uint64_t)j, step);
    return;
  }
  bool first = j == 0, last = j == f.rounds, kept = j > (f.pair ? 0 : 1);
  tuttiStepInit(step, kept ? 0 : at, last ? at : 0, count, TUTTI_STEP_SRC);
  if (kept) step->flags |= TUTTI_STEP_SRC_SCRATCH;
  if (last) step->flags |= TUTTI_STEP_DST | TUTTI_STEP_FINAL;
  if (!last && (!first || f.pair)) step->flags |= TUTTI_STEP_DST_SCRATCH;
  step->nrecv = !first || f.pair;
  step->recv[0] = first ? s->rank + 1 : tuttiFoldPartner(s, &f, j - 1);
  step->nsend = !last || f.pair;
  step->send[0] = last ? s->rank + 1 : tuttiFoldPartner(s, &f, j);
}

/* ---- all of it ------------------------------------------------------------------------------- */

TUTTI_HD static inline bool tuttiIsRecursive(const tuttiSchedule *s) {
  return s->coll == tuttiCollAllReduce && !s->twoShot;
}

/* Elements of scratch memory. */
TUTTI_HD static inline uint64_t tuttiDoublingScratch(const tuttiSchedule *s) {
  if (tuttiIsRecursive(s)) return s->part < s->chunk ? s->part : s->chunk;
  tuttiRow row;
  tuttiRowLoops(s, &row);
  uint64_t n = (uint64_t)s->nranks, blocks = s->coll == tuttiCollAlltoAll ? n + n / 2 : n;
  return blocks * row.most;
}

TUTTI_HD static inline uint64_t tuttiDoublingSteps(const tuttiSchedule *s) {
  if (tuttiIsRecursive(s)) {
    tuttiFold f;
    tuttiFoldFind(s, &f);
    return tuttiPieces(s) * (f.out ? 2 : (uint64_t)f.rounds + 1);
  }
  tuttiRow row;
  tuttiRowLoops(s, &row);
  bool digits = s->coll == tuttiCollAlltoAll;
  if (row.loops == 0) return 0;
  return row.loops * (digits ? tuttiDigitsSteps(s, &row) : tuttiDoublingLoopSteps(s, &row));
}

TUTTI_HD static inline void tuttiDoublingStep(const tuttiSchedule *s, uint64_t k, tuttiStep *step) {
  if (tuttiIsRecursive(s)) {
    tuttiRecursiveStep(s, k, step);
    return;
  }
  tuttiRow row;
  tuttiRowLoops(s, &row);
  bool digits = s->coll == tuttiCollAlltoAll;
  uint64_t loop = 0, i = k;
  if (row.loops > 1) {
    uint64_t steps = digits ? tuttiDigitsSteps(s, &row) : tuttiDoublingLoopSteps(s, &row);
    loop = k / steps;
    i = k % steps;
  }
  tuttiRowFind(s, loop, &row);
  if (digits)
    tuttiDigitsStep(s, &row, i, step);
  else
    tuttiDoublingLoopStep(s, &row, i, step);
}

#endif

/* Direct collectives over symmetric blocks, as pure functions: ranks that can all store into each
 * other's memory need no steps, only one or two shots. What one rank does:
 *
 *   1. sends out[p] = sendbuff[outAt, outCount) to every peer p,
 *   2. takes what every peer sent: either places it at recvbuff[placeAt], or, if `combine`, reduces
 *      all of it with its own operand, writes the result and spreads it to some peers,
 *   3. takes what peers have spread and places it at recvbuff[lateAt].
 *
 * One-shot all-reduce is 1 and 2 with the whole buffer; two-shot all-reduce (reduce-scatter, then
 * all-gather: Rabenseifner, 2004) is 1, 2 and 3 with a slice per rank. A large broadcast scatters
 * slices over the other ranks, which spread them (van de Geijn's scatter and all-gather); a large
 * reduce is its mirror. Both then need the links of all ranks instead of the root's alone. */
#ifndef TUTTI_COLLECTIVES_ALLPAIRS_H_
#define TUTTI_COLLECTIVES_ALLPAIRS_H_

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "collectives/schedule.h"

#define TUTTI_ALLPAIRS_MAX 8 /* ranks */
/* Most thread blocks of one launch: protocol Simple, LL, LL with regions, Simple in host memory. */
#define TUTTI_ALLPAIRS_BLOCKS       128u
#define TUTTI_ALLPAIRS_LL_BLOCKS    64u
#define TUTTI_REGION_BLOCKS         128u
#define TUTTI_STAGED_BLOCKS         16u
#define TUTTI_ALLPAIRS_THREADS      512  /* of a block, that move data */
#define TUTTI_ALLPAIRS_LINE_PAYLOAD 120u /* of a line, which takes eight threads */

/* Offsets and counts are in elements. */
typedef struct {
  uint64_t outAt, outCount;   /* shot 1: sendbuff[outAt ...] goes to this peer */
  uint64_t inCount, placeAt;  /* what it sends; its place in recvbuff unless combined */
  uint64_t lateCount, lateAt; /* shot 2: what it spreads to this rank, and its place */
  bool spread;                /* shot 2: it gets this rank's combined value */
} tuttiAllPairsPeer;

typedef struct {
  tuttiAllPairsPeer peer[TUTTI_ALLPAIRS_MAX]; /* by rank; the own entry moves nothing */
  bool combine;                               /* messages of shot 1 are operands */
  bool own;       /* sendbuff[ownAt ...] is an operand; without combine: is copied */
  bool keep;      /* the combined value goes to recvbuff[keepAt ...] */
  bool mirror;    /* what goes out goes to the same place in recvbuff too */
  uint64_t count; /* of the own operand and the combined value */
  uint64_t ownAt, keepAt;
} tuttiAllPairs;

/* The slice that rank r takes care of when all ranks but `without` (-1: all) have one, whole lines
 * of `align` elements but for the last; the ranks behind `without` move up. */
static inline void tuttiAllPairsShare(uint64_t count, uint64_t align, int n, int r, int without,
                                      uint64_t *at, uint64_t *size) {
  *at = *size = 0;
  if (r == without) return;
  bool skips = without >= 0;
  uint64_t lines = count / align + (count % align != 0);
  uint64_t slices = (uint64_t)(n - skips), k = (uint64_t)(r - (skips && r > without));
  uint64_t each = lines / slices, rest = lines % slices;
  uint64_t from = (each * k + (k < rest ? k : rest)) * align;
  uint64_t to = from + (each + (k < rest)) * align;
  *at = from < count ? from : count;
  *size = (to < count ? to : count) - *at;
}

/* All ranks but `without` combine a slice each and spread it to `to` (-1: everybody). */
static inline void tuttiAllPairsTwoShot(tuttiAllPairs *x, const tuttiSchedule *s, uint64_t align,
                                        int without, int to) {
  int n = s->nranks, me = s->rank;
  bool source = s->coll == tuttiCollBroadcast; /* only the root has an operand */
  tuttiAllPairsShare(s->count, align, n, me, without, &x->ownAt, &x->count);
  x->combine = x->count > 0;
  x->own = !source;
  x->keep = to < 0 || to == me;
  x->keepAt = x->ownAt;
  for (int p = 0; p < n; p++) {
    tuttiAllPairsPeer *e = &x->peer[p];
    if (p == me) continue;
    if (!source || me == s->root)
      tuttiAllPairsShare(s->count, align, n, p, without, &e->outAt, &e->outCount);
    if (!source || p == s->root) e->inCount = x->count;
    e->spread = x->count > 0 && (to < 0 || p == to) && !(source && p == s->root);
    if ((to < 0 || me == to) && !(source && me == s->root))
      tuttiAllPairsShare(s->count, align, n, p, without, &e->lateAt, &e->lateCount);
  }
  x->mirror = source && me == s->root; /* its result is what it has */
}

/* Blocks of `count` elements; `from` and `to` say which pairs exchange (-1: all). */
static inline void tuttiAllPairsBlocks(tuttiAllPairs *x, const tuttiSchedule *s, int from, int to,
                                       bool sendsBlocks, bool recvsBlocks) {
  uint64_t me = (uint64_t)s->rank;
  bool sends = from < 0 || from == s->rank, takes = to < 0 || to == s->rank;
  for (int p = 0; p < s->nranks; p++) {
    tuttiAllPairsPeer *e = &x->peer[p];
    if (p == s->rank) continue;
    if (sends && (to < 0 || to == p)) {
      e->outCount = s->count;
      e->outAt = sendsBlocks ? (uint64_t)p * s->count : 0;
    }
    if (takes && (from < 0 || from == p)) {
      e->inCount = s->count;
      e->placeAt = recvsBlocks ? (uint64_t)p * s->count : 0;
    }
  }
  x->own = sends && takes;
  x->count = s->count;
  x->ownAt = sendsBlocks ? me * s->count : 0;
  x->keepAt = recvsBlocks ? me * s->count : 0;
}

/* Writes what rank s->rank does in a collective; s->twoShot chooses among the forms of AllReduce,
 * Broadcast and Reduce. Slices are multiples of `align` elements. s->nranks <= TUTTI_ALLPAIRS_MAX.
 */
static inline void tuttiAllPairsMake(const tuttiSchedule *s, uint64_t align, tuttiAllPairs *x) {
  bool reduce = s->coll == tuttiCollReduce, broadcast = s->coll == tuttiCollBroadcast;
  bool gather = s->coll == tuttiCollGather, scatter = s->coll == tuttiCollScatter;
  bool allToAll = s->coll == tuttiCollAlltoAll;
  int root = s->root, from = broadcast || scatter ? root : -1, to = reduce || gather ? root : -1;
  memset(x, 0, sizeof *x);
  if (s->twoShot && s->coll == tuttiCollAllReduce) {
    tuttiAllPairsTwoShot(x, s, align, -1, -1);
  } else if (s->twoShot && s->nranks > 2 && (reduce || broadcast)) {
    tuttiAllPairsTwoShot(x, s, align, root, to);
  } else {
    tuttiAllPairsBlocks(x, s, from, to, s->coll == tuttiCollReduceScatter || allToAll || scatter,
                        s->coll == tuttiCollAllGather || allToAll || gather);
    x->combine = x->keep = tuttiCollReduces(s->coll) && (to < 0 || to == s->rank);
  }
}

#endif

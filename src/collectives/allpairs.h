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
#define TUTTI_ALLPAIRS_LINE         128u /* bytes, which eight threads take */
#define TUTTI_ALLPAIRS_LINE_PAYLOAD 120u /* LL: then 8 bytes of flag */

/* Offsets and counts are in elements. */
typedef struct {
  uint64_t outAt, outCount;   /* shot 1: sendbuff[outAt ...] goes to this peer */
  uint64_t inCount, placeAt;  /* what it sends; its place in recvbuff unless combined */
  uint64_t lateCount, lateAt; /* shot 2: what it spreads to this rank, and its place */
  bool spread;                /* shot 2: it gets this rank's combined value */
} tuttiAllPairsPeer;

typedef struct {
  tuttiAllPairsPeer peer[TUTTI_ALLPAIRS_MAX]; /* by rank; the own entry moves nothing */
  uint64_t count;                             /* of the own operand and the combined value */
  uint64_t ownAt, keepAt;
  bool combine; /* messages of shot 1 are operands */
  bool own;     /* sendbuff[ownAt ...] is an operand; without combine: is copied */
  bool keep;    /* the combined value goes to recvbuff[keepAt ...] */
  bool mirror;  /* what goes out goes to the same place in recvbuff too */
  /* The same on all ranks. */
  bool rooted;    /* not all send to all */
  bool direct;    /* messages of shot 1 go right to their places where these are in windows */
  uint8_t shared; /* bits 1 << 0, 1: shots in which whoever sends sends all others the same */
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

/* Whether, of those that exchange blocks or whole buffers in one shot, `from` sends to `to`; to
 * itself: that it copies. */
static inline bool tuttiAllPairsSends(const tuttiSchedule *s, int from, int to) {
  switch (s->coll) {
  case tuttiCollBroadcast:
  case tuttiCollScatter:
    return from == s->root;
  case tuttiCollReduce:
  case tuttiCollGather:
    return to == s->root;
  default:
    return true;
  }
}
/* Where in sendbuff the block for rank r is, where in recvbuff that from rank r. */
static inline uint64_t tuttiAllPairsBlockOut(const tuttiSchedule *s, int r) {
  bool blocks = s->coll == tuttiCollReduceScatter || s->coll == tuttiCollAlltoAll ||
                s->coll == tuttiCollScatter;
  return blocks ? (uint64_t)r * s->count : 0;
}
static inline uint64_t tuttiAllPairsBlockIn(const tuttiSchedule *s, int r) {
  bool blocks =
      s->coll == tuttiCollAllGather || s->coll == tuttiCollAlltoAll || s->coll == tuttiCollGather;
  return blocks ? (uint64_t)r * s->count : 0;
}

/* One shot, of `count` elements each. */
static inline void tuttiAllPairsOneShot(tuttiAllPairs *x, const tuttiSchedule *s) {
  int me = s->rank;
  for (int p = 0; p < s->nranks; p++) {
    tuttiAllPairsPeer *e = &x->peer[p];
    if (p == me) continue;
    if (tuttiAllPairsSends(s, me, p)) {
      e->outCount = s->count;
      e->outAt = tuttiAllPairsBlockOut(s, p);
    }
    if (tuttiAllPairsSends(s, p, me)) {
      e->inCount = s->count;
      e->placeAt = tuttiAllPairsBlockIn(s, p);
    }
  }
  x->own = tuttiAllPairsSends(s, me, me);
  x->count = s->count;
  x->ownAt = tuttiAllPairsBlockOut(s, me);
  x->keepAt = tuttiAllPairsBlockIn(s, me);
  x->combine = x->keep = tuttiCollReduces(s->coll) && (s->coll != tuttiCollReduce || me == s->root);
  /* Whoever asks where a message is wanted waits for the answer. Ranks that send and receive at the
   * same time gain more than that; those that only receive have the time to copy out of slots. */
  x->direct = !tuttiCollReduces(s->coll) && s->coll != tuttiCollBroadcast;
  bool same = s->coll == tuttiCollAllReduce || s->coll == tuttiCollAllGather ||
              s->coll == tuttiCollBroadcast;
  x->shared = same ? 1 << 0 : 0;
}

/* Two shots: whether rank r has operands for the others' slices, and whether it gets their results;
 * the root of a broadcast has those. */
static inline bool tuttiAllPairsGives(const tuttiSchedule *s, int r) {
  return s->coll != tuttiCollBroadcast || r == s->root;
}
static inline bool tuttiAllPairsGets(const tuttiSchedule *s, int r) {
  if (s->coll == tuttiCollBroadcast) return r != s->root;
  return s->coll != tuttiCollReduce || r == s->root;
}

/* All ranks, but for the root if there is one, combine a slice each and spread it. */
static inline void tuttiAllPairsTwoShot(tuttiAllPairs *x, const tuttiSchedule *s, uint64_t align) {
  int n = s->nranks, me = s->rank, without = s->coll == tuttiCollAllReduce ? -1 : s->root;
  tuttiAllPairsShare(s->count, align, n, me, without, &x->ownAt, &x->count);
  x->combine = x->count > 0;
  x->own = s->coll != tuttiCollBroadcast;
  x->keep = tuttiAllPairsGets(s, me);
  x->keepAt = x->ownAt;
  for (int p = 0; p < n; p++) {
    tuttiAllPairsPeer *e = &x->peer[p];
    uint64_t at, count;
    if (p == me) continue;
    tuttiAllPairsShare(s->count, align, n, p, without, &at, &count);
    if (tuttiAllPairsGives(s, me)) {
      e->outAt = at;
      e->outCount = count;
    }
    if (tuttiAllPairsGives(s, p)) e->inCount = x->count;
    e->spread = x->count > 0 && tuttiAllPairsGets(s, p);
    if (tuttiAllPairsGets(s, me)) {
      e->lateAt = at;
      e->lateCount = count;
    }
  }
  x->mirror = s->coll == tuttiCollBroadcast && me == s->root; /* its result is what it has */
  x->shared = s->coll == tuttiCollAllReduce ? 1 << 1 : 0;
}

/* Writes what rank s->rank does in a collective; s->twoShot chooses among the forms of AllReduce,
 * Broadcast and Reduce. Slices are multiples of `align` elements. s->nranks <= TUTTI_ALLPAIRS_MAX.
 */
static inline void tuttiAllPairsMake(const tuttiSchedule *s, uint64_t align, tuttiAllPairs *x) {
  bool slices = s->coll == tuttiCollReduce || s->coll == tuttiCollBroadcast;
  memset(x, 0, sizeof *x);
  x->rooted = tuttiCollHasRoot(s->coll);
  if (s->twoShot && (s->coll == tuttiCollAllReduce || (slices && s->nranks > 2)))
    tuttiAllPairsTwoShot(x, s, align);
  else
    tuttiAllPairsOneShot(x, s);
}

#endif

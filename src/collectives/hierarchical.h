/* Schedules of the hierarchical algorithm: inside the hosts, between their ranks of the same place,
 * and inside again.
 *
 * Where every host has `perHost` ranks, they form a grid of hosts and places, in which each rank is
 * in a ring of its host and in a ring of its place. A slice belongs to one rank. It is reduced
 * along the ring of each host towards the owner's place, and, as it gets there, along the ring of
 * that place towards the owner; it is spread the same ways. So only 1 / perHost of what a ring over
 * all ranks brings into a host again and again does cross a border, evenly by all ranks of the
 * host: no less is possible, and each rank's NIC has its share. No intermediate sum is stored, for
 * the two reductions meet in one step.
 *
 * With one rank per host, or one host, what remains is the ring. A FIFO depth of 2 is needed.
 *
 * An all-to-all goes to the receiver's place inside the host and from there along that place, as
 * NCCL's PXN does: no message leaves by one rail and arrives by another, and a rank has connections
 * to its host and its place alone. What passes through goes from slot to slot. A FIFO depth of 1
 * will do. */
#ifndef TUTTI_COLLECTIVES_HIERARCHICAL_H_
#define TUTTI_COLLECTIVES_HIERARCHICAL_H_

#include "collectives/step.h"

TUTTI_HD static inline bool tuttiHierarchicalHas(int coll) {
  return coll == tuttiCollAllReduce || coll == tuttiCollAllGather ||
         coll == tuttiCollReduceScatter || coll == tuttiCollAlltoAll;
}

/* The two phases of a loop: reducing, which ends with the rank's own slice, and gathering, which
 * begins with it; in an all-reduce that is one step. */
TUTTI_HD static inline uint64_t tuttiHierarchicalStepsPerLoop(const tuttiSchedule *s) {
  return s->coll == tuttiCollAllReduce ? 2 * (uint64_t)s->nranks - 1 : (uint64_t)s->nranks;
}

TUTTI_HD static inline uint64_t tuttiHierarchicalLoops(const tuttiSchedule *s) {
  return s->coll == tuttiCollAllReduce ? tuttiSlicedLoops(s) : tuttiPieces(s);
}

/* What lies `hosts` hosts and `places` places behind this rank in the grid, negative ones ahead,
 * neither more than there are: an index of s->ring. */
TUTTI_HD static inline int32_t tuttiGridBehind(const tuttiSchedule *s, int32_t hosts,
                                               int32_t places) {
  int32_t m = s->perHost, h = s->nranks / m;
  int32_t host = (s->position / m - hosts + h) % h, place = (s->position % m - places + m) % m;
  return host * m + place;
}

/* The neighbours from and to which messages go. */
TUTTI_HD static inline void tuttiGridReceive(const tuttiSchedule *s, bool inside, tuttiStep *step) {
  step->recv[step->nrecv++] = s->ring[tuttiGridBehind(s, !inside, inside)];
}
TUTTI_HD static inline void tuttiGridSend(const tuttiSchedule *s, bool inside, tuttiStep *step) {
  step->send[step->nsend++] = s->ring[tuttiGridBehind(s, inside ? 0 : -1, inside ? -1 : 0)];
}

/* Where the slice, or block, of the grid's entry `owner` is in the buffers. */
TUTTI_HD static inline void tuttiGridSlice(const tuttiSchedule *s, uint64_t loop, int32_t owner,
                                           uint64_t *at, uint64_t *within, uint64_t *count) {
  if (s->coll == tuttiCollAllReduce) {
    tuttiSlice(s, loop, owner, at, count);
    *within = *at;
  } else {
    tuttiPiece(s, loop, within, count);
    *at = (uint64_t)s->ring[owner] * s->count + *within;
  }
}

/* Where a partial reduction goes: on inside the host, or on along the rank's place if it is of
 * `mine`; a whole one that is to be gathered both ways. */
TUTTI_HD static inline void tuttiGridReduced(const tuttiSchedule *s, bool mine, bool whole,
                                             tuttiStep *step) {
  bool inside = whole || !mine, across = whole || mine;
  if (inside && s->perHost > 1) tuttiGridSend(s, true, step);
  if (across && s->nranks > s->perHost) tuttiGridSend(s, false, step);
}

/* Step j of the reduction works on what belongs to the place j % perHost + 1 behind, on the host
 * j / perHost + 1 behind: in each round of perHost steps the slices of one host come along the ring
 * inside, and the last of them is of this place and goes on to the next host. */
TUTTI_HD static inline void tuttiGridReduce(const tuttiSchedule *s, uint64_t loop, int32_t j,
                                            tuttiStep *step) {
  int32_t m = s->perHost, places = j % m + 1, behind = j / m + 1;
  bool gathers = s->coll == tuttiCollAllReduce, mine = places == m, whole = j == s->nranks - 1;
  uint64_t at, within, count;
  tuttiGridSlice(s, loop, tuttiGridBehind(s, behind, places), &at, &within, &count);
  tuttiStepInit(step, at, gathers ? at : within, count, TUTTI_STEP_SRC);
  if (places > 1) tuttiGridReceive(s, true, step);
  if (mine && behind > 1) tuttiGridReceive(s, false, step);
  if (step->nrecv == 0) step->flags |= TUTTI_STEP_STABLE;
  if (whole) step->flags |= TUTTI_STEP_FINAL | TUTTI_STEP_DST;
  if (!whole || gathers) tuttiGridReduced(s, mine, whole, step);
}

/* Step i passes on what belongs to the place i % perHost behind, on the host i / perHost behind; 0
 * is the rank's own. It has come along the ring of places if it is of this one. */
TUTTI_HD static inline void tuttiGridGather(const tuttiSchedule *s, uint64_t loop, int32_t i,
                                            tuttiStep *step) {
  int32_t m = s->perHost, hosts = s->nranks / m, places = i % m, behind = i / m;
  uint64_t at, within, count;
  tuttiGridSlice(s, loop, tuttiGridBehind(s, behind, places), &at, &within, &count);
  tuttiStepInit(step, within, at, count, TUTTI_STEP_DST);
  if (i == 0) step->flags |= TUTTI_STEP_SRC | TUTTI_STEP_STABLE;
  if (i > 0) tuttiGridReceive(s, places > 0, step);
  if (places == 0 && behind < hosts - 1) tuttiGridSend(s, false, step);
  if (places < m - 1) tuttiGridSend(s, true, step);
}

/* ---- all-to-all ------------------------------------------------------------------------------ */

/* Each piece has a round for every rank of the grid, in which blocks move on by so many hosts and
 * places, none last, as the way within the host is short. A round is three steps: the block leaves
 * inside the host; the rank of the receiver's place passes it on along that place; it arrives. What
 * needs no such step has one that does nothing. */
typedef struct {
  uint64_t rounds, passed, arrived; /* the latter two come so many rounds after the first */
} tuttiGridRounds;

/* Ranks wait for nobody's later steps as long as what lies in a FIFO is fewer rounds old than it
 * takes to fill it: that between two ranks inside has a message in every perHost rounds, that of a
 * place in each of perHost rounds in a row. */
TUTTI_HD static inline void tuttiGridCountRounds(const tuttiSchedule *s, tuttiGridRounds *r) {
  r->rounds = tuttiPieces(s) * (uint64_t)s->nranks;
  r->passed = (uint64_t)s->perHost - 1;
  r->arrived = r->passed + (uint64_t)s->depth - 1;
}

TUTTI_HD static inline uint64_t tuttiGridAlltoAllSteps(const tuttiSchedule *s) {
  tuttiGridRounds r;
  tuttiGridCountRounds(s, &r);
  return r.rounds == 0 ? 0 : 3 * (r.rounds + r.arrived);
}

/* The block of, or for, the grid's entry `owner`. Stable: sendbuff is not written. */
TUTTI_HD static inline void tuttiGridBlock(const tuttiSchedule *s, uint64_t piece, int32_t owner,
                                           uint32_t flags, tuttiStep *step) {
  uint64_t at, count;
  tuttiPiece(s, piece, &at, &count);
  at += (uint64_t)s->ring[owner] * s->count;
  tuttiStepInit(step, at, at, count, flags);
}

#define TUTTI_GRID_OWN (TUTTI_STEP_SRC | TUTTI_STEP_STABLE)

TUTTI_HD static inline void tuttiGridLeave(const tuttiSchedule *s, uint64_t piece, int32_t hosts,
                                           int32_t places, tuttiStep *step) {
  if (places == 0) return;
  tuttiGridBlock(s, piece, tuttiGridBehind(s, -hosts, -places), TUTTI_GRID_OWN, step);
  step->send[step->nsend++] = s->ring[tuttiGridBehind(s, 0, -places)];
}

/* What stays in the host has arrived. */
TUTTI_HD static inline void tuttiGridPass(const tuttiSchedule *s, uint64_t piece, int32_t hosts,
                                          int32_t places, tuttiStep *step) {
  int32_t from = tuttiGridBehind(s, 0, places), to = tuttiGridBehind(s, -hosts, 0);
  bool own = places == 0;
  tuttiGridBlock(s, piece, own ? to : from, own ? TUTTI_GRID_OWN : 0, step);
  if (!own) step->recv[step->nrecv++] = s->ring[from];
  if (hosts > 0)
    step->send[step->nsend++] = s->ring[to];
  else
    step->flags |= TUTTI_STEP_DST;
}

TUTTI_HD static inline void tuttiGridArrive(const tuttiSchedule *s, uint64_t piece, int32_t hosts,
                                            int32_t places, tuttiStep *step) {
  if (hosts == 0) return;
  tuttiGridBlock(s, piece, tuttiGridBehind(s, hosts, places), TUTTI_STEP_DST, step);
  step->recv[step->nrecv++] = s->ring[tuttiGridBehind(s, hosts, 0)];
}

TUTTI_HD static inline void tuttiGridAlltoAllStep(const tuttiSchedule *s, uint64_t k,
                                                  tuttiStep *step) {
  tuttiGridRounds r;
  tuttiGridCountRounds(s, &r);
  uint64_t round = k / 3, behind = k % 3 == 0 ? 0 : k % 3 == 1 ? r.passed : r.arrived;
  tuttiStepInit(step, 0, 0, 0, 0);
  if (round < behind || round - behind >= r.rounds) return;
  round -= behind;
  uint64_t piece = round / (uint64_t)s->nranks;
  int32_t i = (int32_t)(round % (uint64_t)s->nranks);
  int32_t hosts = (i / s->perHost + 1) % (s->nranks / s->perHost), places = i % s->perHost;
  if (k % 3 == 0)
    tuttiGridLeave(s, piece, hosts, places, step);
  else if (k % 3 == 1)
    tuttiGridPass(s, piece, hosts, places, step);
  else
    tuttiGridArrive(s, piece, hosts, places, step);
}

/* ---- all of it ------------------------------------------------------------------------------- */

TUTTI_HD static inline uint64_t tuttiHierarchicalSteps(const tuttiSchedule *s) {
  if (s->coll == tuttiCollAlltoAll) return tuttiGridAlltoAllSteps(s);
  return tuttiHierarchicalLoops(s) * tuttiHierarchicalStepsPerLoop(s);
}

TUTTI_HD static inline void tuttiHierarchicalStep(const tuttiSchedule *s, uint64_t k,
                                                  tuttiStep *step) {
  if (s->coll == tuttiCollAlltoAll) {
    tuttiGridAlltoAllStep(s, k, step);
    return;
  }
  uint64_t perLoop = tuttiHierarchicalStepsPerLoop(s);
  uint64_t loop = k / perLoop;
  int32_t j = (int32_t)(k % perLoop), n = s->nranks;
  if (s->coll == tuttiCollAllGather)
    tuttiGridGather(s, loop, j, step);
  else if (j < n)
    tuttiGridReduce(s, loop, j, step);
  else
    tuttiGridGather(s, loop, j - n + 1, step);
}

#endif

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
 * With one rank per host, or one host, what remains is the ring. A FIFO depth of 2 is needed. */
#ifndef TUTTI_COLLECTIVES_HIERARCHICAL_H_
#define TUTTI_COLLECTIVES_HIERARCHICAL_H_

#include "collectives/step.h"

TUTTI_HD static inline bool tuttiHierarchicalHas(int coll) {
  return coll == tuttiCollAllReduce || coll == tuttiCollAllGather || coll == tuttiCollReduceScatter;
}

/* The two phases of a loop: reducing, which ends with the rank's own slice, and gathering, which
 * begins with it; in an all-reduce that is one step. */
TUTTI_HD static inline uint64_t tuttiHierarchicalStepsPerLoop(const tuttiSchedule *s) {
  return s->coll == tuttiCollAllReduce ? 2 * (uint64_t)s->nranks - 1 : (uint64_t)s->nranks;
}

TUTTI_HD static inline uint64_t tuttiHierarchicalLoops(const tuttiSchedule *s) {
  return s->coll == tuttiCollAllReduce ? tuttiSlicedLoops(s) : tuttiPieces(s);
}

TUTTI_HD static inline uint64_t tuttiHierarchicalSteps(const tuttiSchedule *s) {
  return tuttiHierarchicalLoops(s) * tuttiHierarchicalStepsPerLoop(s);
}

/* What lies `hosts` hosts and `places` places behind this rank in the grid, both from -1 to how
 * many there are: an index of s->ring. */
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

TUTTI_HD static inline void tuttiHierarchicalStep(const tuttiSchedule *s, uint64_t k,
                                                  tuttiStep *step) {
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

/* A schedule is a pure function: what one rank does at step k of a collective on one channel. No
 * executor holds a second copy of an algorithm; host, simulator and CUDA executors ask these
 * functions. One file per algorithm: ring.h, hierarchical.h, tree.h, direct.h. */
#ifndef TUTTI_COLLECTIVES_SCHEDULE_H_
#define TUTTI_COLLECTIVES_SCHEDULE_H_

#include "collectives/direct.h"
#include "collectives/hierarchical.h"
#include "collectives/ring.h"
#include "collectives/tree.h"

/* True if `algo` has a schedule for `coll`. */
TUTTI_HD static inline bool tuttiScheduleExists(int coll, int algo) {
  if (algo == tuttiAlgoRing) return tuttiRingHas(coll);
  if (algo == tuttiAlgoHierarchical) return tuttiHierarchicalHas(coll);
  if (algo == tuttiAlgoTree) return tuttiTreeHas(coll);
  return algo == tuttiAlgoDirect && tuttiDirectHas(coll);
}

/* One rank alone: every collective is a copy. */
TUTTI_HD static inline void tuttiLocalStep(const tuttiSchedule *s, uint64_t k, tuttiStep *step) {
  uint64_t at, count;
  tuttiPiece(s, k, &at, &count);
  tuttiStepInit(step, at, at, count,
                TUTTI_STEP_SRC | TUTTI_STEP_DST | TUTTI_STEP_FINAL | TUTTI_STEP_STABLE);
}

/* Number of steps of this rank; step numbers are 0 .. n-1. */
TUTTI_HD static inline uint64_t tuttiScheduleSteps(const tuttiSchedule *s) {
  if (s->nranks == 1) return tuttiPieces(s);
  if (s->algo == tuttiAlgoRing) return tuttiRingSteps(s);
  if (s->algo == tuttiAlgoHierarchical) return tuttiHierarchicalSteps(s);
  return s->algo == tuttiAlgoTree ? tuttiTreeSteps(s) : tuttiDirectSteps(s);
}

/* Writes step k to *step (all fields). */
TUTTI_HD static inline void tuttiScheduleStep(const tuttiSchedule *s, uint64_t k, tuttiStep *step) {
  if (s->nranks == 1)
    tuttiLocalStep(s, k, step);
  else if (s->algo == tuttiAlgoRing)
    tuttiRingStep(s, k, step);
  else if (s->algo == tuttiAlgoHierarchical)
    tuttiHierarchicalStep(s, k, step);
  else if (s->algo == tuttiAlgoTree)
    tuttiTreeStep(s, k, step);
  else
    tuttiDirectStep(s, k, step);
}

#endif

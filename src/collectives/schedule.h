/* A schedule is a pure function: what one rank does at step k of a collective on one channel. No
 * executor holds a second copy of an algorithm; host, simulator and CUDA executors ask these
 * functions. One file per algorithm: ring.h, hierarchical.h, tree.h, direct.h, and of doubling
 * doubling.h and, where there is a root, binomial.h. Kernels have no scratch memory, and no
 * doubling (tuttiSchedulesOnGpus). */
#ifndef TUTTI_COLLECTIVES_SCHEDULE_H_
#define TUTTI_COLLECTIVES_SCHEDULE_H_

#include "collectives/binomial.h"
#include "collectives/direct.h"
#include "collectives/doubling.h"
#include "collectives/hierarchical.h"
#include "collectives/ring.h"
#include "collectives/tree.h"

/* True if `algo` has a schedule for `coll`. */
TUTTI_HD static inline bool tuttiScheduleExists(int coll, int algo) {
  if (algo == tuttiAlgoRing) return tuttiRingHas(coll);
  if (algo == tuttiAlgoHierarchical) return tuttiHierarchicalHas(coll);
  if (algo == tuttiAlgoTree) return tuttiTreeHas(coll);
  if (algo == tuttiAlgoDoubling) return coll >= tuttiCollAllReduce && coll < tuttiCollSendRecv;
  return algo == tuttiAlgoDirect && tuttiDirectHas(coll);
}

/* True if the ring/tree kernel can carry out what `algo` has. */
static inline bool tuttiSchedulesOnGpus(int algo) {
  return algo != tuttiAlgoDoubling;
}

/* One rank alone: every collective is a copy. */
TUTTI_HD static inline void tuttiLocalStep(const tuttiSchedule *s, uint64_t k, tuttiStep *step) {
  uint64_t at, count;
  tuttiPiece(s, k, &at, &count);
  tuttiStepInit(step, at, at, count,
                TUTTI_STEP_SRC | TUTTI_STEP_DST | TUTTI_STEP_FINAL | TUTTI_STEP_STABLE);
}

/* No rank sends to more others on a channel, nor receives from more. */
static inline int tuttiSchedulePeers(int coll, int algo, int nranks) {
  if (algo == tuttiAlgoRing) return 1;
  if (algo == tuttiAlgoHierarchical && coll == tuttiCollAlltoAll) return nranks;
  if (algo == tuttiAlgoDoubling) return 2 * tuttiRounds(nranks); /* to both sides */
  return algo == tuttiAlgoDirect ? nranks : TUTTI_MAX_FAN;
}

/* Elements of scratch memory that the steps of this rank need. */
static inline uint64_t tuttiScheduleScratch(const tuttiSchedule *s) {
  if (s->algo != tuttiAlgoDoubling || s->nranks == 1) return 0;
  return tuttiCollHasRoot(s->coll) ? tuttiBinomialScratch(s) : tuttiDoublingScratch(s);
}

/* Number of steps of this rank; step numbers are 0 .. n-1. */
TUTTI_HD static inline uint64_t tuttiScheduleSteps(const tuttiSchedule *s) {
  if (s->nranks == 1) return tuttiPieces(s);
#if !defined(__CUDA_ARCH__)
  if (s->algo == tuttiAlgoDoubling)
    return tuttiCollHasRoot(s->coll) ? tuttiBinomialSteps(s) : tuttiDoublingSteps(s);
#endif
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
#if !defined(__CUDA_ARCH__)
  else if (s->algo == tuttiAlgoDoubling && tuttiCollHasRoot(s->coll))
    tuttiBinomialStep(s, k, step);
  else if (s->algo == tuttiAlgoDoubling)
    tuttiDoublingStep(s, k, step);
#endif
  else
    tuttiDirectStep(s, k, step);
}

#endif

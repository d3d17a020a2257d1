/* Schedules of the ring algorithm. Included by schedule.h only. */
#ifndef TUTTI_COLLECTIVES_RING_H_
#define TUTTI_COLLECTIVES_RING_H_

TUTTI_HD static inline bool tuttiRingHas(int coll) {
  (void)coll;
  return false;
}

TUTTI_HD static inline uint64_t tuttiRingSteps(const tuttiSchedule *s) {
  (void)s;
  return 0;
}

TUTTI_HD static inline void tuttiRingStep(const tuttiSchedule *s, uint64_t k, tuttiStep *step) {
  (void)s, (void)k, (void)step;
}

#endif

/* Schedules of the direct algorithm. Included by schedule.h only. */
#ifndef TUTTI_COLLECTIVES_DIRECT_H_
#define TUTTI_COLLECTIVES_DIRECT_H_

TUTTI_HD static inline bool tuttiDirectHas(int coll) {
  (void)coll;
  return false;
}

TUTTI_HD static inline uint64_t tuttiDirectSteps(const tuttiSchedule *s) {
  (void)s;
  return 0;
}

TUTTI_HD static inline void tuttiDirectStep(const tuttiSchedule *s, uint64_t k, tuttiStep *step) {
  (void)s, (void)k, (void)step;
}

#endif

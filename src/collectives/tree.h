/* Schedules of the tree algorithm. Included by schedule.h only. */
#ifndef TUTTI_COLLECTIVES_TREE_H_
#define TUTTI_COLLECTIVES_TREE_H_

TUTTI_HD static inline bool tuttiTreeHas(int coll) {
  (void)coll;
  return false;
}

TUTTI_HD static inline uint64_t tuttiTreeSteps(const tuttiSchedule *s) {
  (void)s;
  return 0;
}

TUTTI_HD static inline void tuttiTreeStep(const tuttiSchedule *s, uint64_t k, tuttiStep *step) {
  (void)s, (void)k, (void)step;
}

#endif

/* Schedule of one send or receive. Included by schedule.h only. */
#ifndef TUTTI_COLLECTIVES_P2P_H_
#define TUTTI_COLLECTIVES_P2P_H_

TUTTI_HD static inline uint64_t tuttiP2pSteps(const tuttiSchedule *s) {
  return s->count == 0 ? 0 : (s->count + s->chunk - 1) / s->chunk;
}

TUTTI_HD static inline void tuttiP2pStep(const tuttiSchedule *s, uint64_t k, tuttiStep *step) {
  uint64_t at = k * s->chunk;
  uint64_t left = s->count - at;
  step->src = step->dst = at;
  step->count = left < s->chunk ? left : s->chunk;
  step->flags = s->sending ? TUTTI_STEP_SRC | TUTTI_STEP_STABLE : TUTTI_STEP_DST;
  step->nsend = s->sending ? 1 : 0;
  step->nrecv = s->sending ? 0 : 1;
  step->send[0] = step->recv[0] = s->root;
}

#endif

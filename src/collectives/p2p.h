/* Schedule of one send or receive. Included by schedule.h only. */
#ifndef TUTTI_COLLECTIVES_P2P_H_
#define TUTTI_COLLECTIVES_P2P_H_

TUTTI_HD static inline uint64_t tuttiP2pSteps(const tuttiSchedule *s) {
  return tuttiPieces(s);
}

/* Stable: a send writes nothing. */
TUTTI_HD static inline void tuttiP2pStep(const tuttiSchedule *s, uint64_t k, tuttiStep *step) {
  uint64_t at, count;
  tuttiPiece(s, k, &at, &count);
  tuttiStepInit(step, at, at, count,
                s->sending ? TUTTI_STEP_SRC | TUTTI_STEP_STABLE : TUTTI_STEP_DST);
  step->nsend = s->sending ? 1 : 0;
  step->nrecv = s->sending ? 0 : 1;
  step->send[0] = step->recv[0] = s->root;
}

#endif

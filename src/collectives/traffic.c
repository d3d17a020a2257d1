#include "collectives/traffic.h"

#include "collectives/planner.h"
#include "transport/fifo.h"

static void countStep(const tuttiSchedule *s, const tuttiStep *step, int channel, uint64_t bytes,
                      tuttiTrafficSent sent, void *context) {
  int32_t n = step->nsend == TUTTI_ALL ? s->nranks - 1 : step->nsend;
  for (int32_t i = 0; i < n && bytes > 0; i++)
    sent(context, channel, s->rank,
         step->nsend == TUTTI_ALL ? (s->rank + 1 + i) % s->nranks : step->send[i], bytes);
}

void tuttiTrafficCount(const tuttiGraph *g, const tuttiTraffic *traffic, tuttiTrafficSent sent,
                       void *context) {
  const tuttiTraffic *t = traffic;
  for (int c = 0; c < t->nchannels; c++)
    for (int rank = 0; rank < g->nranks; rank++) {
      tuttiSchedule s = {.coll = t->coll,
                         .algo = t->algo,
                         .rank = rank,
                         .nranks = g->nranks,
                         .count = t->count,
                         .chunk = t->chunk,
                         .depth = TUTTI_FIFO_DEPTH};
      tuttiPlanPart(t->count, t->type, c, t->nchannels, &s.begin, &s.part);
      tuttiGraphPlace(g, c, tuttiCollHasRoot(t->coll) ? s.root : -1, &s);
      uint64_t nsteps = tuttiScheduleSteps(&s);
      for (uint64_t k = 0; k < nsteps; k++) {
        tuttiStep step;
        tuttiScheduleStep(&s, k, &step);
        countStep(&s, &step, c, step.count * tuttiElementBytes(t->type), sent, context);
      }
    }
}

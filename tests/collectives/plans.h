/* What the tests of the planner share. */
#ifndef TESTS_COLLECTIVES_PLANS_H_
#define TESTS_COLLECTIVES_PLANS_H_

#include <cstring>
#include <tuple>

#include "collectives/planner.h"

/* All of the plan has to be set: what is left out differs from what was asked for. */
inline tuttiPlan choose(const tuttiPlanInput &in, const tuttiSignature &sig, int before = 0xee) {
  tuttiPlan plan;
  memset(&plan, before, sizeof plan);
  tuttiPlanChoose(&in, &sig, &plan);
  return plan;
}

/* Every field, and none of the bytes between them, which no compiler need copy. */
inline bool samePlan(const tuttiPlan &a, const tuttiPlan &b) {
  auto fields = [](const tuttiPlan &p) {
    return std::make_tuple(p.chunk, p.timeUs, p.nchannels, p.nblocks, p.nthreads, p.algo, p.proto,
                           p.kernel, p.twoShot, p.fetch, p.oneTree, p.streams);
  };
  return fields(a) == fields(b);
}

#endif

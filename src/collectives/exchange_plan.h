/* How an exchange is run on a GPU: form, protocol, thread blocks. */
#ifndef TUTTI_COLLECTIVES_EXCHANGE_PLAN_H_
#define TUTTI_COLLECTIVES_EXCHANGE_PLAN_H_

#include <sys/cdefs.h>

#include "collectives/planner.h"

__BEGIN_DECLS

typedef struct {
  int twoShot, proto;
  int uniform; /* LL in regions: the kernel of exchange_uniform.cuh */
  int nblocks, nthreads;
} tuttiExchangePlan;

/* Chooses for s->coll of s->count elements of `size` bytes. Pure, and the same on all ranks; for
 * SendRecv on the two sides of a message, so from its count alone. */
void tuttiExchangeChoose(const tuttiPlanInput *in, const tuttiSchedule *s, size_t size,
                         tuttiExchangePlan *plan);

__END_DECLS

#endif

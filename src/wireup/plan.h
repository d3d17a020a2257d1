/* From the survey to what the planner is told, and what that takes of memory. */
#ifndef TUTTI_WIREUP_PLAN_H_
#define TUTTI_WIREUP_PLAN_H_

#include <sys/cdefs.h>

#include "collectives/planner.h"
#include "transport/transport.h"
#include "wireup/survey.h"

__BEGIN_DECLS

/* Channels for collectives of ranks on `nhosts` hosts, before what fits into memory. Of minChannels
 * and maxChannels 0 means: no wish. */
int tuttiWireupChannels(tuttiDevice_t device, int nhosts, int minChannels, int maxChannels);

/* Fills *in from the survey, the graph, settings and wishes, then makes it fit: smaller slots, then
 * fewer channels, until all that this rank may take is within v->memLimit. Sets what transports
 * must know of that in *v: channels, slots, memory. The same on all ranks. */
tuttiResult_t tuttiPlanInputMake(const tuttiSurvey *s, const tuttiGraph *graph, int minChannels,
                                 int maxChannels, tuttiCommView *v, tuttiPlanInput *in);

__END_DECLS

#endif

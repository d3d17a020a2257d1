/* The public calls that add ranks to a communicator. */
#include "comm/grow.h"
#include "comm/check.h"
#include "comm/communicator.h"
#include "comm/failure.h"
#include "comm/group.h"
#include "comm/handle.h"
#include "comm/options.h"

static tuttiResult_t check(tuttiComm_t comm, const tuttiUniqueId *uniqueId, int rank,
                           const tuttiConfig_t *config, tuttiGrowJob *g) {
  tuttiId parsed;
  TUTTI_ENTER(c, comm, "tuttiCommGrow");
  /* One that has failed is left to the job, which tells the new ranks. */
  if (tuttiCommFailure(c) == tuttiSuccess) TUTTI_TRY(tuttiCommReady(c));
  TUTTI_TRY(tuttiCheckOutput("newcomm", g->out));
  if (rank != -1)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument rank is %d; its ranks keep theirs and pass -1", rank);
  if (g->mine.nRanks <= c->nranks)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument nRanks is %d; it must be more than the %d ranks there are",
                      g->mine.nRanks, c->nranks);
  if (uniqueId) TUTTI_TRY(tuttiIdParse(uniqueId, &parsed));
  g->rank = c->rank;
  return tuttiOptionsResolve(config, &c->options, &g->options);
}

tuttiResult_t tuttiCommGrow(tuttiComm_t comm, int nRanks, const tuttiUniqueId *uniqueId, int rank,
                            tuttiComm_t *newcomm, tuttiConfig_t *config) {
  tuttiGrowJob g = {.job = {.run = tuttiGrowRun, .discard = tuttiGrowDiscard, .uses = comm},
                    .mine = {.nRanks = nRanks, .hasId = uniqueId != NULL},
                    .rank = tuttiHandleRank(comm),
                    .out = newcomm};
  if (uniqueId) g.mine.id = *uniqueId;
  if (!comm && uniqueId) return tuttiCommInitRankConfig(newcomm, nRanks, *uniqueId, rank, config);
  tuttiResult_t checked = check(comm, uniqueId, rank, config, &g);
  /* Aborted by another thread, say: there is no communicator whose job could tell. */
  if (checked != tuttiSuccess && !tuttiHandleLives(comm)) tuttiGrowDecline(&g, checked);
  return tuttiJobLaunch(checked, &g.job, sizeof g);
}

tuttiResult_t tuttiCommGetUniqueId(tuttiComm_t comm, tuttiUniqueId *uniqueId) {
  TUTTI_ENTER_READY(c, comm, __func__);
  TUTTI_TRY(tuttiCheckOutput("uniqueId", uniqueId));
  return tuttiIdCreate(c->rank, uniqueId); /* ranks of the parent keep their numbers */
}

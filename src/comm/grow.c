/* Growing: one rank hands the id to the others over the communicator itself, and all join with the
 * new ranks, which have it from elsewhere. */
#include "comm/grow.h"

#include "base/mem.h"
#include "comm/communicator.h"
#include "comm/handle.h"
#include "comm/init.h"
#include "comm/job.h"
#include "comm/operation.h"

static tuttiResult_t findId(const tuttiCommunicator *c, const tuttiGrowEntry *all,
                            tuttiUniqueId *id) {
  int root = -1;
  for (int r = 0; r < c->nranks; r++) {
    if (all[r].nRanks != all[c->rank].nRanks)
      return TUTTI_FAIL(tuttiInvalidUsage, "ranks disagree on nRanks: %d on rank %d, %d on rank %d",
                        all[r].nRanks, r, all[c->rank].nRanks, c->rank);
    if (!all[r].hasId) continue;
    if (root >= 0)
      return TUTTI_FAIL(tuttiInvalidUsage,
                        "ranks %d and %d both passed a uniqueId; one rank does, the others pass "
                        "NULL",
                        root, r);
    root = r;
  }
  if (root < 0)
    return TUTTI_FAIL(tuttiInvalidUsage, "no rank of the communicator passed a uniqueId; one must, "
                                         "with what tuttiCommGetUniqueId wrote");
  *id = all[root].id;
  return tuttiSuccess;
}

/* The parent is held for the exchange only: its abort need not wait for the new one's init. */
static tuttiResult_t agree(const tuttiGrowJob *g, tuttiUniqueId *id) {
  TUTTI_ENTER_READY(c, g->job.uses, "tuttiCommGrow");
  TUTTI_FRESH(tuttiGrowEntry, all, c->nranks, "ids of a growth", NULL);
  all[c->rank] = g->mine;
  TUTTI_TRY(tuttiCommExchange(c, all, sizeof *all));
  return findId(c, all, id);
}

/* The new ranks wait at the root of this rank's id, whatever ended the others. */
void tuttiGrowDecline(const tuttiGrowJob *grow, tuttiResult_t why) {
  if (!grow->mine.hasId || grow->rank < 0) return;
  tuttiBootstrapDecline(&grow->mine.id, 1, grow->rank, grow->mine.nRanks, why);
}

tuttiResult_t tuttiGrowRun(tuttiJob *job) {
  tuttiGrowJob *g = (tuttiGrowJob *)job;
  tuttiUniqueId id;
  g->ran = true;
  tuttiResult_t result = agree(g, &id);
  if (result != tuttiSuccess) {
    tuttiGrowDecline(g, result);
    return result;
  }
  return tuttiCommInit("tuttiCommGrow", g->out, g->mine.nRanks, g->rank, 1, &id, &g->options,
                       &(tuttiOrigin){.parent = job->uses, .agreed = true});
}

void tuttiGrowDiscard(tuttiJob *job) {
  tuttiGrowJob *g = (tuttiGrowJob *)job;
  if (!g->ran) {
    bool known = job->text[0] != 0; /* its thread could not start, say */
    tuttiErrorAdopt(tuttiInternalError,
                    known ? job->text : "its group has ended with an error, before the growth ran");
    tuttiGrowDecline(g, tuttiInternalError);
  }
  tuttiFree(g);
}

/* The public calls that go on without some ranks, and that end what all ranks do. */
#include "comm/shrink.h"
#include "comm/check.h"
#include "comm/communicator.h"
#include "comm/failure.h"
#include "comm/group.h"
#include "comm/handle.h"
#include "comm/options.h"

/* Marks the excluded ranks and fills in what follows from them. */
static tuttiResult_t exclude(tuttiCommunicator *c, const int *list, int n, uint8_t *excluded,
                             tuttiShrinkJob *s) {
  for (int i = 0; i < n; i++) {
    if (list[i] < 0 || list[i] >= c->nranks)
      return TUTTI_FAIL(tuttiInvalidArgument,
                        "argument excludeRanksList[%d] is %d; it must be a rank, 0 to %d", i,
                        list[i], c->nranks - 1);
    excluded[list[i]] = 1;
  }
  if (excluded[c->rank])
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument excludeRanksList holds this rank, %d; excluded ranks do not call "
                      "tuttiCommShrink",
                      c->rank);
  tuttiShrinkPlan(c, excluded, s);
  return tuttiSuccess;
}

static tuttiResult_t check(tuttiComm_t comm, const int *list, int n, const tuttiConfig_t *config,
                           int flags, tuttiShrinkJob *s) {
  TUTTI_ENTER(c, comm, "tuttiCommShrink");
  if (flags & ~TUTTI_SHRINK_ABORT)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument shrinkFlags is %#x; it must be TUTTI_SHRINK_DEFAULT or "
                      "TUTTI_SHRINK_ABORT",
                      flags);
  if (tuttiLoadAcquire32(&c->state) != tuttiCommUsable || !s->aborts) TUTTI_TRY(tuttiCommReady(c));
  TUTTI_TRY(tuttiCheckOutput("newcomm", s->out));
  if (n < 0 || (n > 0 && !list))
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "arguments excludeRanksList (%p) and excludeRanksCount (%d) are no list",
                      (const void *)list, n);
  TUTTI_TRY(tuttiOptionsResolve(config, &c->options, &s->options));
  TUTTI_FRESH(uint8_t, excluded, c->nranks, "excluded ranks", NULL);
  TUTTI_TRY(exclude(c, list, n, excluded, s));
  excluded = NULL; /* the job's */
  return tuttiSuccess;
}

tuttiResult_t tuttiCommShrink(tuttiComm_t comm, int *excludeRanksList, int excludeRanksCount,
                              tuttiComm_t *newcomm, tuttiConfig_t *config, int shrinkFlags) {
  tuttiShrinkJob s = {.job = {.run = tuttiShrinkRun, .discard = tuttiShrinkDiscard, .uses = comm},
                      .aborts = (shrinkFlags & TUTTI_SHRINK_ABORT) != 0,
                      .out = newcomm};
  return tuttiJobLaunch(check(comm, excludeRanksList, excludeRanksCount, config, shrinkFlags, &s),
                        &s.job, sizeof s);
}

tuttiResult_t tuttiCommRevoke(tuttiComm_t comm, int revokeFlags) {
  TUTTI_ENTER(c, comm, __func__);
  if (revokeFlags != TUTTI_REVOKE_DEFAULT)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument revokeFlags is %#x; it must be TUTTI_REVOKE_DEFAULT", revokeFlags);
  if (tuttiLoadAcquire32(&c->state) != tuttiCommUsable) TUTTI_TRY(tuttiCommReady(c));
  TUTTI_TRY(tuttiCommEndOperations(c, "revoked this communicator by tuttiCommRevoke"));
  tuttiStoreRelease32(&c->revoked, 1);
  return tuttiSuccess;
}

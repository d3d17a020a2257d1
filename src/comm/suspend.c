/* Suspending: once all ranks have come, nobody reads what was sent before, but for messages of
 * pairs that are yet to be received. Where none of these waits, the slots can go; their lines stay,
 * so that every connection goes on where it was. */
#include "comm/check.h"
#include "comm/comm.h"
#include "transport/segment.h"

/* Has a rank of this host yet to receive what was sent to it? */
static bool sentIsWaiting(const tuttiCommunicator *c) {
  tuttiConn **to = c->conns[TUTTI_SEND][0][TUTTI_P2P_CHANNEL];
  for (int r = 0; to && r < c->nranks; r++)
    if (to[r] && !to[r]->network && tuttiConnTaken(to[r]) < to[r]->next) return true;
  return false;
}

static tuttiResult_t runSuspend(tuttiJob *job) {
  TUTTI_ENTER_READY(c, job->uses, "tuttiCommSuspend");
  TUTTI_FRESH(uint8_t, all, c->nranks, "a meeting of ranks", NULL);
  TUTTI_TRY(tuttiCommExchange(c, all, 1));
  if (!sentIsWaiting(c)) tuttiLocalTrim(&c->wires);
  tuttiStoreRelease32(&c->state, tuttiCommSuspended);
  return tuttiSuccess;
}

static tuttiResult_t check(tuttiComm_t comm, int flags) {
  TUTTI_ENTER_READY(c, comm, "tuttiCommSuspend");
  if (flags == TUTTI_SUSPEND_MEM) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument, "argument flags is %#x; it must be TUTTI_SUSPEND_MEM",
                    flags);
}

tuttiResult_t tuttiCommSuspend(tuttiComm_t comm, int flags) {
  tuttiJob job = {.run = runSuspend, .uses = comm};
  return tuttiJobLaunch(check(comm, flags), &job, sizeof job);
}

tuttiResult_t tuttiCommResume(tuttiComm_t comm) {
  TUTTI_ENTER(c, comm, __func__);
  TUTTI_TRY(tuttiCommFailure(c));
  if (tuttiCompareExchange32(&c->state, tuttiCommSuspended, tuttiCommUsable)) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidUsage, "the communicator is not suspended");
}

tuttiResult_t tuttiCommMemStats(tuttiComm_t comm, tuttiCommMemStat_t stat, uint64_t *value) {
  size_t total;
  TUTTI_TRY(tuttiCommMemUsed(comm, &total));
  TUTTI_ENTER(c, comm, __func__);
  uint32_t state = tuttiLoadAcquire32(&c->state);
  uint64_t slots = state == tuttiCommStarting ? 0 : tuttiLocalSlotBytes(&c->wires);
  if (slots > total) slots = total; /* a worker has made more since */
  const uint64_t values[] = {[tuttiStatGpuMemSuspend] = slots,
                             [tuttiStatGpuMemSuspended] = state == tuttiCommSuspended,
                             [tuttiStatGpuMemPersist] = total - slots,
                             [tuttiStatGpuMemTotal] = total};
  if ((unsigned)stat > tuttiStatGpuMemTotal)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument stat is %d; it must be one of tuttiCommMemStat_t, 0 to %d",
                      (int)stat, tuttiStatGpuMemTotal);
  TUTTI_TRY(tuttiCheckOutput("value", value));
  *value = values[stat];
  return tuttiSuccess;
}

/* Suspending: once all ranks have come, nobody reads what was sent before, and the slots that held
 * it can go. Their lines stay, so that every connection goes on where it was. */
#include "comm/comm.h"
#include "transport/segment.h"

typedef struct {
  tuttiJob job;
  tuttiComm_t comm;
} SuspendJob;

static tuttiResult_t suspend(tuttiCommunicator *c) {
  uint8_t *all;
  TUTTI_TRY(tuttiCommReady(c));
  TUTTI_TRY(tuttiAlloc((void **)&all, (size_t)c->nranks, 1, "a meeting of ranks", NULL));
  tuttiResult_t result = tuttiCommExchange(c, all, 1);
  tuttiFree(all);
  TUTTI_TRY(result);
  tuttiLocalTrim(&c->wires);
  tuttiStoreRelease32(&c->state, tuttiCommSuspended);
  return tuttiSuccess;
}

static tuttiResult_t runSuspend(tuttiJob *job) {
  tuttiCommunicator *c;
  TUTTI_TRY(tuttiHandleEnter(((SuspendJob *)job)->comm, "tuttiCommSuspend", &c));
  tuttiResult_t result = suspend(c);
  tuttiHandleLeave(c);
  return result;
}

tuttiResult_t tuttiCommSuspend(tuttiComm_t comm, int flags) {
  tuttiCommunicator *c;
  SuspendJob s = {{.run = runSuspend, .uses = comm}, comm};
  tuttiResult_t result = tuttiHandleEnter(comm, __func__, &c);
  if (result == tuttiSuccess) {
    result = tuttiCommReady(c);
    if (result == tuttiSuccess && flags != TUTTI_SUSPEND_MEM)
      result = TUTTI_FAIL(tuttiInvalidArgument,
                          "argument flags is %#x; it must be TUTTI_SUSPEND_MEM", flags);
    tuttiHandleLeave(c);
  }
  return tuttiJobLaunch(result, &s.job, sizeof s);
}

tuttiResult_t tuttiCommResume(tuttiComm_t comm) {
  tuttiCommunicator *c;
  TUTTI_TRY(tuttiHandleEnter(comm, __func__, &c));
  tuttiResult_t result = tuttiCommFailure(c);
  if (result == tuttiSuccess &&
      !tuttiCompareExchange32(&c->state, tuttiCommSuspended, tuttiCommUsable))
    result = TUTTI_FAIL(tuttiInvalidUsage, "the communicator is not suspended");
  tuttiHandleLeave(c);
  return result;
}

tuttiResult_t tuttiCommMemStats(tuttiComm_t comm, tuttiCommMemStat_t stat, uint64_t *value) {
  tuttiCommunicator *c;
  size_t total;
  TUTTI_TRY(tuttiCommMemUsed(comm, &total));
  TUTTI_TRY(tuttiHandleEnter(comm, __func__, &c));
  tuttiResult_t result = tuttiSuccess;
  uint32_t state = tuttiLoadAcquire32(&c->state);
  uint64_t slots = state == tuttiCommStarting ? 0 : tuttiLocalSlotBytes(&c->wires);
  if (slots > total) slots = total; /* a worker has made more since */
  const uint64_t values[] = {[tuttiStatGpuMemSuspend] = slots,
                             [tuttiStatGpuMemSuspended] = state == tuttiCommSuspended,
                             [tuttiStatGpuMemPersist] = total - slots,
                             [tuttiStatGpuMemTotal] = total};
  if ((unsigned)stat > tuttiStatGpuMemTotal)
    result = TUTTI_FAIL(tuttiInvalidArgument,
                        "argument stat is %d; it must be one of tuttiCommMemStat_t, 0 to %d",
                        (int)stat, tuttiStatGpuMemTotal);
  else if (!value)
    result = TUTTI_FAIL(tuttiInvalidArgument, "argument value is NULL");
  else
    *value = values[stat];
  tuttiHandleLeave(c);
  return result;
}

/* The public calls that suspend and resume, and tell what that saves. */
#include "comm/suspend.h"
#include "comm/check.h"
#include "comm/communicator.h"
#include "comm/failure.h"
#include "comm/group.h"
#include "comm/handle.h"
#include "comm/job.h"
#include "transport/segment.h"

static tuttiResult_t check(tuttiComm_t comm, int flags) {
  TUTTI_ENTER_READY(c, comm, "tuttiCommSuspend");
  if (flags == TUTTI_SUSPEND_MEM) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument, "argument flags is %#x; it must be TUTTI_SUSPEND_MEM",
                    flags);
}

tuttiResult_t tuttiCommSuspend(tuttiComm_t comm, int flags) {
  tuttiJob job = {.run = tuttiSuspendRun, .uses = comm};
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
  uint64_t slots = state == tuttiCommStarting ? 0 : tuttiLocalSlotBytes(&c->view);
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

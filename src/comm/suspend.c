/* Suspending: once all ranks have come, nobody reads what was sent before, but for messages of
 * pairs that are yet to be received. Where none of these waits, the slots can go; their lines stay,
 * so that every connection goes on where it was. */
#include "comm/suspend.h"

#include "comm/communicator.h"
#include "comm/handle.h"
#include "comm/job.h"
#include "comm/operation.h"
#include "transport/segment.h"

/* Has a rank of this host yet to receive what was sent to it? On host memory: where kernels send,
 * the lines of a connection may be in GPU memory, and this side does not count what they sent. */
static bool sentIsWaiting(const tuttiCommunicator *c) {
  tuttiConn **to = c->conns[TUTTI_SEND][0][TUTTI_P2P_CHANNEL];
  for (int r = 0; to && r < c->nranks; r++)
    if (to[r] && !to[r]->network && tuttiConnCredit(to[r]) < to[r]->next) return true;
  return false;
}

tuttiResult_t tuttiSuspendRun(tuttiJob *job) {
  TUTTI_ENTER_READY(c, job->uses, "tuttiCommSuspend");
  TUTTI_FRESH(uint8_t, all, c->nranks, "a meeting of ranks", NULL);
  TUTTI_TRY(tuttiCommExchange(c, all, 1));
  if (c->device->kind == tuttiDeviceHost && !sentIsWaiting(c)) tuttiLocalTrim(&c->view);
  tuttiStoreRelease32(&c->state, tuttiCommSuspended);
  return tuttiSuccess;
}

#include "comm/end.h"

#include "comm/communicator.h"
#include "comm/failure.h"
#include "comm/group.h"
#include "comm/handle.h"
#include "comm/job.h"
#include "comm/setup.h"
#include "comm/worker.h"
#include "transport/net.h"

static bool isDrained(tuttiCommunicator *c) {
  return tuttiWorkerIdle(c) && tuttiNetDrained(&c->view);
}

tuttiResult_t tuttiCommDrain(tuttiCommunicator *c) {
  TUTTI_TRY(tuttiWorkerAwait(c)); /* what it starts on a GPU is what is drained */
  tuttiStoreRelease32(&c->state, tuttiCommFinalizing);
  TUTTI_TRY(c->device->drain(&c->context));
  return tuttiCommAwait(c, isDrained, true, "messages to peers were not taken",
                        "; a peer is stopped or its network is down");
}

tuttiResult_t tuttiCommEndsAlready(tuttiCommunicator *c) {
  TUTTI_FAIL(tuttiInvalidUsage, "this communicator is being destroyed or aborted already");
  tuttiHandleLeave(c);
  return tuttiInvalidUsage;
}

tuttiResult_t tuttiCommRetire(tuttiCommunicator *c, bool aborted) {
  if (!tuttiHandleRetire(c)) return tuttiCommEndsAlready(c);
  tuttiCommFree(c, aborted);
  return tuttiSuccess;
}

typedef struct {
  tuttiJob job;
  tuttiCommunicator *comm; /* NULL: it was retired */
} AbortJob;

static tuttiResult_t runAbort(tuttiJob *job) {
  tuttiCommunicator *c = ((AbortJob *)job)->comm;
  ((AbortJob *)job)->comm = NULL;
  return c ? tuttiCommRetire(c, true) : tuttiSuccess;
}

/* A group that fails ends its communicators none the less. */
static void discardAbort(tuttiJob *job) {
  (void)runAbort(job);
  tuttiFree(job);
}

tuttiResult_t tuttiCommAbortSubmit(tuttiCommunicator *c) {
  AbortJob *abort;
  if (tuttiAlloc((void **)&abort, 1, sizeof *abort, "an abort", NULL) != tuttiSuccess)
    return tuttiCommRetire(c, true);
  *abort = (AbortJob){.job = {.run = runAbort, .discard = discardAbort}, .comm = c};
  return tuttiJobSubmit(&abort->job);
}

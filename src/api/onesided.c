/* The public one-sided calls. */
#include "comm/onesided.h"

#include <string.h>

#include "comm/check.h"
#include "comm/failure.h"
#include "comm/group.h"
#include "comm/handle.h"
#include "comm/window.h"

#define FEW_DESCS 8 /* whose wait needs no memory */

static tuttiResult_t checkServed(const tuttiCommunicator *c) {
  if (c->device->kind != tuttiDeviceHost)
    return TUTTI_FAIL(
        tuttiInvalidUsage,
        "one-sided operations work on communicators of host memory, and this one is of "
        "GPUs; use tuttiSend and tuttiRecv");
  if (c->options.rmaContexts == 0)
    return TUTTI_FAIL(tuttiInvalidUsage,
                      "this communicator was made with config.numRmaCtx 0, without one-sided "
                      "operations; give it one or more");
  if (c->rma) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidUsage,
                    "one-sided operations need a first window; register one on all ranks "
                    "(tuttiCommWindowRegister)");
}

static tuttiResult_t checkIndex(const char *argument, int value, int n, const char *field) {
  if (value >= 0 && value < n) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "argument %s is %d; it must be 0 to %d, as config.%s is %d", argument, value,
                    n - 1, field, n);
}

static tuttiResult_t checkPeer(const tuttiCommunicator *c, int peer) {
  if (peer >= 0 && peer < c->nranks) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument, "argument peer is %d; it must be a rank, 0 to %d", peer,
                    c->nranks - 1);
}

/* What a signal and its wait have in common. */
static tuttiResult_t checkSignal(const tuttiCommunicator *c, int peer, int sigIdx, int ctx) {
  TUTTI_TRY(checkPeer(c, peer));
  TUTTI_TRY(checkIndex("sigIdx", sigIdx, c->options.rmaSignals, "numRmaSig"));
  return checkIndex("ctx", ctx, c->options.rmaContexts, "numRmaCtx");
}

/* Sets the place of a put, or says the window and its bounds. */
static tuttiResult_t checkPlace(const tuttiCommunicator *c, const void *localbuff, size_t count,
                                tuttiDataType_t type, tuttiWindow_t win, tuttiRmaPut *put) {
  TUTTI_TRY(tuttiCheckType(type));
  if (!tuttiWindowLives(c, win))
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument peerWin (%p) is no live window of tuttiCommWindowRegister of this "
                      "communicator",
                      (void *)win);
  tuttiWindowParts parts = tuttiWindowPartsOf(win);
  size_t size = tuttiTypeSize(type);
  if (put->offset > parts.size || count > (parts.size - put->offset) / size)
    return TUTTI_FAIL(
        tuttiInvalidArgument,
        "arguments peerWinOffset (%llu) and count (%zu x %zu bytes) reach past the end "
        "of window #%u, which has %zu bytes on rank %d",
        (unsigned long long)put->offset, count, size, parts.number, parts.size, put->peer);
  if (count > 0 && !localbuff)
    return TUTTI_FAIL(tuttiInvalidArgument, "argument localbuff is NULL; count is %zu", count);
  put->data = localbuff;
  put->bytes = count * size;
  put->window = parts.number;
  put->at = parts.base[put->peer] + put->offset;
  uint8_t *mapped = tuttiWindowMapped(c, win, put->peer);
  put->mapped = mapped ? mapped + put->offset : NULL;
  return tuttiSuccess;
}

static tuttiResult_t checkFlags(unsigned int flags) {
  if (flags == 0) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument, "argument flags is %#x; it must be 0", flags);
}

/* Runs it now, without memory, or queues a copy for the end of the group. */
static tuttiResult_t launch(tuttiResult_t checked, tuttiJob *job, size_t bytes) {
  if (checked == tuttiSuccess && !tuttiGroupIsOpen()) return job->run(job);
  return tuttiJobLaunch(checked, job, bytes);
}

static tuttiResult_t checkPut(tuttiComm_t comm, const void *localbuff, size_t count,
                              tuttiDataType_t type, tuttiWindow_t win, unsigned int flags,
                              tuttiRmaPut *put) {
  TUTTI_ENTER_READY(c, comm, "tuttiPutSignal");
  TUTTI_TRY(checkServed(c));
  TUTTI_TRY(checkSignal(c, put->peer, put->signal, put->context));
  TUTTI_TRY(checkFlags(flags));
  TUTTI_TRY(checkPlace(c, localbuff, count, type, win, put));
  return tuttiRmaReach(c->rma, put->peer);
}

tuttiResult_t tuttiPutSignal(const void *localbuff, size_t count, tuttiDataType_t datatype,
                             int peer, tuttiWindow_t peerWin, size_t peerWinOffset, int sigIdx,
                             int ctx, unsigned int flags, tuttiComm_t comm, tuttiStream_t stream) {
  (void)stream; /* of host memory */
  tuttiPutJob p = {
      .job = {.run = tuttiPutRun, .uses = comm},
      .put = {.peer = peer, .offset = peerWinOffset, .context = ctx, .signal = sigIdx}};
  tuttiResult_t checked = checkPut(comm, localbuff, count, datatype, peerWin, flags, &p.put);
  return launch(checked, &p.job, sizeof p);
}

static tuttiResult_t checkSend(tuttiComm_t comm, unsigned int flags, const tuttiRmaPut *put) {
  TUTTI_ENTER_READY(c, comm, "tuttiSignal");
  TUTTI_TRY(checkServed(c));
  TUTTI_TRY(checkSignal(c, put->peer, put->signal, put->context));
  TUTTI_TRY(checkFlags(flags));
  return tuttiRmaReach(c->rma, put->peer);
}

tuttiResult_t tuttiSignal(int peer, int sigIdx, int ctx, unsigned int flags, tuttiComm_t comm,
                          tuttiStream_t stream) {
  (void)stream;
  tuttiPutJob p = {.job = {.run = tuttiPutRun, .uses = comm},
                   .put = {.peer = peer, .context = ctx, .signal = sigIdx}};
  return launch(checkSend(comm, flags, &p.put), &p.job, sizeof p);
}

static tuttiResult_t checkWait(tuttiComm_t comm, int n, const tuttiWaitSignalDesc_t *descs) {
  TUTTI_ENTER_READY(c, comm, "tuttiWaitSignal");
  TUTTI_TRY(checkServed(c));
  if (n < 0) return TUTTI_FAIL(tuttiInvalidArgument, "argument nDesc is %d", n);
  if (n > 0) TUTTI_TRY(tuttiCheckOutput("signalDescs", descs));
  for (int i = 0; i < n; i++) {
    TUTTI_TRY(checkSignal(c, descs[i].peer, descs[i].sigIdx, descs[i].ctx));
    if (descs[i].opCnt < 0)
      return TUTTI_FAIL(tuttiInvalidArgument, "signalDescs[%d].opCnt is %d; it must be 0 or more",
                        i, descs[i].opCnt);
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiWaitSignal(int nDesc, tuttiWaitSignalDesc_t *signalDescs, tuttiComm_t comm,
                              tuttiStream_t stream) {
  (void)stream;
  union {
    tuttiWaitJob wait;
    uint8_t room[sizeof(tuttiWaitJob) + FEW_DESCS * sizeof *signalDescs];
  } few;
  tuttiResult_t checked = checkWait(comm, nDesc, signalDescs);
  size_t n = checked == tuttiSuccess ? (size_t)nDesc : 0, descs = n * sizeof *signalDescs;
  TUTTI_FREED tuttiWaitJob *many = NULL;
  if (n > FEW_DESCS)
    TUTTI_TRY(tuttiAlloc((void **)&many, 1, sizeof *many + descs, "a wait for signals", NULL));
  tuttiWaitJob *wait = many ? many : &few.wait;
  wait->job = (tuttiJob){.run = tuttiWaitRun, .uses = comm, .last = true};
  wait->n = (int)n;
  if (n > 0) memcpy(wait->descs, signalDescs, descs);
  return launch(checked, &wait->job, sizeof *wait + descs);
}

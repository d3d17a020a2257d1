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
  if (c->options.rmaContexts == 0)
    return TUTTI_FAIL(tuttiInvalidUsage,
                      "this communicator was made with config.numRmaCtx 0, without one-sided "
                      "operations; give it one or more");
  if (tuttiLoadAcquire32(&c->windowMet)) return tuttiSuccess;
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

/* Where the peer's part of a window is. A GPU that stores to it has to have it mapped. */
static tuttiResult_t findPlace(const tuttiCommunicator *c, tuttiWindowState *win,
                               tuttiRmaPut *put) {
  tuttiWindowParts parts = tuttiWindowPartsOf(win);
  char why[TUTTI_SENTENCE];
  uint8_t *mapped = tuttiWindowMapped(c, win, put->peer, why);
  put->at = parts.base[put->peer] + put->offset;
  put->keys = parts.keys[put->peer];
  put->mapped = mapped ? mapped + put->offset : NULL;
  if (!tuttiOneSidedMaps(c, put->peer) || put->bytes == 0) return tuttiSuccess;
  if (!mapped)
    return TUTTI_FAIL(tuttiInvalidUsage,
                      "rank %d cannot store into the part of rank %d of window #%u: %s", c->rank,
                      put->peer, put->window, why);
  uintptr_t from = (uintptr_t)put->data, to = (uintptr_t)put->mapped;
  if (put->peer != c->rank || from == to || from >= to + put->bytes || to >= from + put->bytes)
    return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "argument localbuff (%p, %zu bytes) overlaps what is written of window #%u of "
                    "this very rank; use separate memory",
                    put->data, put->bytes, put->window);
}

/* Sets the place of a put, or says the window and its bounds. */
static tuttiResult_t checkPlace(tuttiCommunicator *c, const void *localbuff, size_t count,
                                tuttiDataType_t type, tuttiWindow_t win, tuttiRmaPut *put) {
  TUTTI_TRY(tuttiCheckType(type));
  tuttiWindowState *window = tuttiWindowFind(c, win);
  if (!window)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument peerWin (%p) is no live window of tuttiCommWindowRegister of this "
                      "communicator",
                      (void *)win);
  tuttiWindowParts parts = tuttiWindowPartsOf(window);
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
  if (count > 0) TUTTI_TRY(tuttiCheckMemory(c, "localbuff", localbuff));
  TUTTI_TRY(tuttiOneSidedReach(c, put->peer));
  return findPlace(c, window, put);
}

static tuttiResult_t checkFlags(unsigned int flags) {
  if (flags == 0) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument, "argument flags is %#x; it must be 0", flags);
}

static bool enqueues(const tuttiCommunicator *c) {
  return c->device->kind == tuttiDeviceCuda;
}

/* Runs it now, without memory, or queues a copy for the end of the group. */
static tuttiResult_t launch(tuttiResult_t checked, tuttiJob *job, size_t bytes) {
  if (checked == tuttiSuccess && !tuttiGroupIsOpen()) return job->run(job);
  return tuttiJobLaunch(checked, job, bytes);
}

static tuttiResult_t checkPut(tuttiComm_t comm, const void *localbuff, size_t count,
                              tuttiDataType_t type, tuttiWindow_t win, unsigned int flags,
                              tuttiPutJob *p) {
  TUTTI_ENTER_READY(c, comm, "tuttiPutSignal");
  TUTTI_TRY(checkServed(c));
  TUTTI_TRY(checkSignal(c, p->put.peer, p->put.signal, p->put.context));
  TUTTI_TRY(checkFlags(flags));
  p->job.enqueues = enqueues(c);
  TUTTI_TRY(tuttiCommOccupy(c)); /* as tuttiCommWindowDeregister */
  tuttiResult_t result = checkPlace(c, localbuff, count, type, win, &p->put);
  tuttiCommVacate(c);
  return result;
}

tuttiResult_t tuttiPutSignal(const void *localbuff, size_t count, tuttiDataType_t datatype,
                             int peer, tuttiWindow_t peerWin, size_t peerWinOffset, int sigIdx,
                             int ctx, unsigned int flags, tuttiComm_t comm, tuttiStream_t stream) {
  tuttiPutJob p = {
      .job = {.run = tuttiPutRun, .uses = comm},
      .stream = stream,
      .put = {.peer = peer, .offset = peerWinOffset, .context = ctx, .signal = sigIdx}};
  tuttiResult_t checked = checkPut(comm, localbuff, count, datatype, peerWin, flags, &p);
  return launch(checked, &p.job, sizeof p);
}

static tuttiResult_t checkSend(tuttiComm_t comm, unsigned int flags, tuttiPutJob *p) {
  TUTTI_ENTER_READY(c, comm, "tuttiSignal");
  TUTTI_TRY(checkServed(c));
  TUTTI_TRY(checkSignal(c, p->put.peer, p->put.signal, p->put.context));
  TUTTI_TRY(checkFlags(flags));
  p->job.enqueues = enqueues(c);
  return tuttiOneSidedReach(c, p->put.peer);
}

tuttiResult_t tuttiSignal(int peer, int sigIdx, int ctx, unsigned int flags, tuttiComm_t comm,
                          tuttiStream_t stream) {
  tuttiPutJob p = {.job = {.run = tuttiPutRun, .uses = comm},
                   .stream = stream,
                   .put = {.peer = peer, .context = ctx, .signal = sigIdx}};
  return launch(checkSend(comm, flags, &p), &p.job, sizeof p);
}

static tuttiResult_t checkWait(tuttiComm_t comm, int n, const tuttiWaitSignalDesc_t *descs,
                               tuttiJob *job) {
  TUTTI_ENTER_READY(c, comm, "tuttiWaitSignal");
  TUTTI_TRY(checkServed(c));
  job->enqueues = enqueues(c);
  if (n < 0) return TUTTI_FAIL(tuttiInvalidArgument, "argument nDesc is %d", n);
  if (n > 0) TUTTI_TRY(tuttiCheckOutput("signalDescs", descs));
  for (int i = 0; i < n; i++) {
    TUTTI_TRY(checkSignal(c, descs[i].peer, descs[i].sigIdx, descs[i].ctx));
    if (descs[i].opCnt < 0)
      return TUTTI_FAIL(tuttiInvalidArgument, "signalDescs[%d].opCnt is %d; it must be 0 or more",
                        i, descs[i].opCnt);
    if (!c->rma) TUTTI_TRY(tuttiOneSidedReach(c, descs[i].peer)); /* its signals never come */
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiWaitSignal(int nDesc, tuttiWaitSignalDesc_t *signalDescs, tuttiComm_t comm,
                              tuttiStream_t stream) {
  union {
    tuttiWaitJob wait;
    uint8_t room[sizeof(tuttiWaitJob) + FEW_DESCS * sizeof *signalDescs];
  } few;
  tuttiJob job = {.run = tuttiWaitRun, .uses = comm, .last = true};
  tuttiResult_t checked = checkWait(comm, nDesc, signalDescs, &job);
  size_t n = checked == tuttiSuccess ? (size_t)nDesc : 0, descs = n * sizeof *signalDescs;
  TUTTI_FREED tuttiWaitJob *many = NULL;
  if (n > FEW_DESCS)
    TUTTI_TRY(tuttiAlloc((void **)&many, 1, sizeof *many + descs, "a wait for signals", NULL));
  tuttiWaitJob *wait = n > FEW_DESCS ? many : &few.wait;
  wait->job = job;
  wait->stream = stream;
  wait->n = (int)n;
  if (n > 0) memcpy(wait->descs, signalDescs, descs);
  return launch(checked, &wait->job, sizeof *wait + descs);
}

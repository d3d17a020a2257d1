#include "comm/onesided.h"

#include "base/os.h"
#include "comm/failure.h"
#include "comm/group.h"
#include "comm/handle.h"
#include "comm/worker.h"

bool tuttiOneSidedServes(const tuttiCommunicator *c) {
  if (c->device->kind != tuttiDeviceHost || c->options.rmaContexts == 0) return false;
  for (int r = 0; r < c->nranks; r++) {
    const tuttiPath *path = &c->wireup.paths[r];
    if (r != c->rank && !path->direct && !path->fetches) return false;
  }
  return true;
}

tuttiResult_t tuttiPutRun(tuttiJob *job) {
  const tuttiPutJob *p = (tuttiPutJob *)job;
  TUTTI_ENTER_READY(c, job->uses, p->put.window ? "tuttiPutSignal" : "tuttiSignal");
  TUTTI_TRY(tuttiWorkerAwait(c));
  TUTTI_TRY(tuttiCommOccupy(c));
  tuttiResult_t result = tuttiRmaWrite(c->rma, &p->put);
  tuttiCommVacate(c);
  return result;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static uint64_t *taken(tuttiCommunicator *c, const tuttiWaitSignalDesc_t *d) {
  size_t contexts = (size_t)c->options.rmaContexts, signals = (size_t)c->options.rmaSignals;
  size_t row = (size_t)d->peer * contexts + (size_t)d->ctx;
  return &c->awaited[row * signals + (size_t)d->sigIdx];
}

static uint64_t untaken(tuttiCommunicator *c, const tuttiWaitSignalDesc_t *d) {
  return tuttiRmaArrived(c->rma, d->peer, d->ctx, d->sigIdx) - *taken(c, d);
}

static tuttiResult_t tooLate(tuttiCommunicator *c, const tuttiWaitSignalDesc_t *d) {
  const tuttiPeer *p = &c->wireup.peers[d->peer];
  return TUTTI_FAIL(tuttiTimeout,
                    "rank %d waited %.1f s for %d signals of index %d and context %d from rank %d "
                    "(host %s, pid %d), of which %llu have come. Mend or restart the late rank, or "
                    "raise TUTTI_TIMEOUT",
                    c->rank, (double)c->options.timeoutMs / 1e3, d->opCnt, d->sigIdx, d->ctx,
                    d->peer, p->host, p->pid, (unsigned long long)untaken(c, d));
}

/* Spins, then rests, as executors do. What takes long looks at the clock. */
static tuttiResult_t awaitOne(tuttiCommunicator *c, const tuttiWaitSignalDesc_t *d) {
  tuttiBackoff pause = {.spins = c->context.spins, .napUs = c->context.napUs};
  uint64_t deadline = tuttiDeadline(c->options.timeoutMs);
  while (untaken(c, d) < (uint64_t)d->opCnt) {
    tuttiBackoffPause(&pause);
    if (pause.round <= pause.spins && pause.round % 1024 != 0) continue;
    TUTTI_TRY(tuttiCommFailure(c));
    if (tuttiNow() > deadline) return tooLate(c, d);
  }
  *taken(c, d) += (uint64_t)d->opCnt;
  return tuttiSuccess;
}

static tuttiResult_t awaitAll(tuttiCommunicator *c, const tuttiWaitJob *w) {
  size_t rows = (size_t)c->nranks * (size_t)c->options.rmaContexts;
  if (!c->awaited)
    TUTTI_NEW(c->awaited, rows * (size_t)c->options.rmaSignals, "signals waited for", &c->memory);
  for (int i = 0; i < w->n; i++)
    TUTTI_TRY(awaitOne(c, &w->descs[i]));
  return tuttiSuccess;
}

tuttiResult_t tuttiWaitRun(tuttiJob *job) {
  TUTTI_ENTER_READY(c, job->uses, "tuttiWaitSignal");
  TUTTI_TRY(tuttiWorkerAwait(c));
  TUTTI_TRY(tuttiCommOccupy(c));
  tuttiResult_t result = awaitAll(c, (const tuttiWaitJob *)job);
  tuttiCommVacate(c);
  return result;
}

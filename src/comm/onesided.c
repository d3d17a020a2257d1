#include "comm/onesided.h"

#include <stdio.h>

#include "base/backoff.h"
#include "base/os.h"
#include "comm/facts.h"
#include "comm/failure.h"
#include "comm/group.h"
#include "comm/handle.h"
#include "comm/worker.h"
#include "proxy/proxy.h"
#include "ras/verdict.h"

#define CLOCK_PASSES 1024
#define TELL_MS      100 /* between two words of a wait */

/* GPUs store to each other, and so to counters in their symmetric blocks; and to their own. */
static bool stores(const tuttiCommunicator *c, int peer) {
  if (peer == c->rank) return true;
  return c->view.symmetric && !c->wireup.plan.staged && c->wireup.paths[peer].stores;
}

bool tuttiOneSidedMaps(const tuttiCommunicator *c, int peer) {
  return c->device->kind == tuttiDeviceCuda && stores(c, peer);
}

static bool serves(const tuttiCommunicator *c, int peer) {
  const tuttiPath *path = &c->wireup.paths[peer];
  if (c->device->kind == tuttiDeviceCuda)
    return stores(c, peer) || (path->transport && !path->stores);
  return peer == c->rank || path->direct || path->fetches || path->network;
}

bool tuttiOneSidedServes(const tuttiCommunicator *c) {
  bool all = c->options.rmaContexts > 0;
  for (int r = 0; r < c->nranks; r++)
    all &= serves(c, r);
  return all;
}

static tuttiResult_t noWay(const tuttiCommunicator *c, int peer) {
  const tuttiPath *path = &c->wireup.paths[peer];
  const tuttiPeer *mine = &c->wireup.peers[c->rank], *theirs = &c->wireup.peers[peer];
  char why[TUTTI_SENTENCE], via[TUTTI_VIA];
  return TUTTI_FAIL(tuttiInvalidUsage,
                    "there are no one-sided operations between GPUs by the way that rank %d "
                    "reaches rank %d (host %s, pid %d), via %s: %s; use tuttiSend and tuttiRecv",
                    c->rank, peer, theirs->host, theirs->pid, tuttiPathVia(path, mine, theirs, via),
                    tuttiPathText(path, mine, theirs, why));
}

tuttiResult_t tuttiOneSidedReach(tuttiCommunicator *c, int peer) {
  if (c->rma) return tuttiRmaReach(c->rma, peer);
  return serves(c, peer) ? tuttiSuccess : noWay(c, peer);
}

static tuttiResult_t openTo(tuttiCommunicator *c, int peer, tuttiDirection direction) {
  tuttiConn *conn;
  TUTTI_TRY(c->context.conn(c, peer, TUTTI_RMA_CHANNEL, direction, false, &conn));
  return tuttiRmaConnect(c->rma, conn);
}

/* What others send may come at any time. */
static tuttiResult_t listenToAll(tuttiCommunicator *c) {
  for (int p = 0; p < c->nranks; p++)
    if (c->wireup.paths[p].network) TUTTI_TRY(openTo(c, p, TUTTI_RECV));
  return tuttiSuccess;
}

tuttiResult_t tuttiOneSidedPrepare(tuttiCommunicator *c, tuttiRmaCard *card) {
  if (c->rma || c->device->kind != tuttiDeviceHost || c->options.rmaContexts == 0)
    return tuttiSuccess;
  tuttiRmaWishes wishes = {.contexts = c->options.rmaContexts,
                           .signals = c->options.rmaSignals,
                           .failure = tuttiCommFailure,
                           .owner = c};
  TUTTI_TRY(tuttiRmaCreate(&c->view, &wishes, &c->rma, card));
  return listenToAll(c);
}

/* A signal that has failed to go would leave its receiver waiting. */
static tuttiResult_t enqueued(tuttiCommunicator *c, tuttiResult_t result) {
  return result == tuttiSuccess ? result : tuttiCommFailLate(c, result);
}

/* A connection to send is made with the first put. */
static tuttiResult_t put(tuttiCommunicator *c, const tuttiRmaPut *p, tuttiStream_t stream) {
  if (!c->rma) return enqueued(c, c->device->put(&c->context, p, stream));
  if (c->wireup.paths[p->peer].network && !tuttiRmaConnected(c->rma, p->peer))
    TUTTI_TRY(openTo(c, p->peer, TUTTI_SEND));
  return tuttiRmaWrite(c->rma, p);
}

tuttiResult_t tuttiPutRun(tuttiJob *job) {
  const tuttiPutJob *p = (tuttiPutJob *)job;
  TUTTI_ENTER_READY(c, job->uses, p->put.window ? "tuttiPutSignal" : "tuttiSignal");
  TUTTI_TRY(tuttiWorkerAwait(c));
  TUTTI_TRY(tuttiCommOccupy(c));
  tuttiResult_t result = put(c, &p->put, p->stream);
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

/* What the wait is for; returns text. */
static const char *awaitedText(tuttiCommunicator *c, const tuttiWaitSignalDesc_t *d, uint64_t come,
                               char *text, size_t size) {
  tuttiWho who;
  c->told.source.member(c, d->peer, &who);
  const tuttiSignalFacts facts = {.index = (uint32_t)d->sigIdx,
                                  .context = (uint32_t)d->ctx,
                                  .wanted = (uint32_t)d->opCnt,
                                  .come = (uint32_t)come};
  return tuttiSignalsText(&facts, &who, text, size);
}

static tuttiResult_t tooLate(tuttiCommunicator *c, const char *what) {
  return TUTTI_FAIL(tuttiTimeout,
                    "rank %d waited %.1f s %s. Mend or restart the late rank, or raise "
                    "TUTTI_TIMEOUT",
                    c->rank, (double)c->options.timeoutMs / 1e3, what);
}

/* A wait has lasted so long: those who ask are told, and at the deadline it fails, or if what is
 * awaited never comes. */
static tuttiResult_t stillWaits(tuttiCommunicator *c, const tuttiWaitSignalDesc_t *d, uint64_t come,
                                uint64_t waitedMs) {
  bool expired = tuttiCommExpired(c, waitedMs);
  tuttiCommAwaitsSignals(c, d, come, waitedMs);
  if (expired || tuttiCommIsHang(waitedMs)) tuttiCommTellHang(c, waitedMs);
  char signals[300], what[320];
  snprintf(what, sizeof what, "for %s", awaitedText(c, d, come, signals, sizeof signals));
  TUTTI_TRY(tuttiCommFailIfLeft(c, &c->leftOfSignals[d->peer], d->peer, what, waitedMs));
  return expired ? tooLate(c, what) : tuttiSuccess;
}

tuttiResult_t tuttiSignalsLate(void *comm, const tuttiWaitSignalDesc_t *awaited, uint32_t come,
                               uint64_t waitedMs) {
  tuttiCommunicator *c = comm;
  TUTTI_TRY(tuttiCommFailure(c));
  tuttiResult_t result = stillWaits(c, awaited, come, waitedMs);
  return result == tuttiSuccess ? tuttiSuccess : tuttiCommFail(c, result);
}

/* Runs the proxy, if there is one, spins, then rests, as executors do. What takes long looks at the
 * clock: the call has waited since `start`. */
static tuttiResult_t awaitOne(tuttiCommunicator *c, const tuttiWaitSignalDesc_t *d,
                              uint64_t start) {
  tuttiBackoff pause = {.spins = c->context.spins, .napUs = c->context.napUs};
  uint64_t toldMs = 0;
  uint32_t passes = 0;
  while (untaken(c, d) < (uint64_t)d->opCnt) {
    if (c->context.proxy && tuttiProxyRun(c->context.proxy))
      tuttiBackoffReset(&pause);
    else
      tuttiBackoffPause(&pause);
    if (pause.round <= pause.spins && ++passes % CLOCK_PASSES != 0) continue;
    TUTTI_TRY(tuttiCommFailure(c));
    uint64_t waitedMs = (tuttiNow() - start) / TUTTI_MS;
    if (waitedMs < toldMs + TELL_MS && !tuttiCommExpired(c, waitedMs)) continue;
    toldMs = waitedMs;
    TUTTI_TRY(stillWaits(c, d, untaken(c, d), waitedMs));
  }
  if (toldMs > 0) tuttiCommAwaitsNone(c);
  *taken(c, d) += (uint64_t)d->opCnt;
  return tuttiSuccess;
}

/* A wait that fails takes no signal: after a timeout the same call may be made again. */
static tuttiResult_t awaitAll(tuttiCommunicator *c, const tuttiWaitJob *w) {
  size_t rows = (size_t)c->nranks * (size_t)c->options.rmaContexts;
  if (!c->awaited)
    TUTTI_NEW(c->awaited, rows * (size_t)c->options.rmaSignals, "signals waited for", &c->memory);
  if (c->context.proxy) tuttiProxyEnter(c->context.proxy);
  tuttiResult_t result = tuttiSuccess;
  uint64_t start = tuttiNow();
  int n = 0; /* whose signals have been taken */
  while (n < w->n && (result = awaitOne(c, &w->descs[n], start)) == tuttiSuccess)
    n++;
  if (c->context.proxy) tuttiProxyLeave(c->context.proxy);
  if (result == tuttiSuccess) return result;
  while (n-- > 0)
    *taken(c, &w->descs[n]) -= (uint64_t)w->descs[n].opCnt;
  tuttiCommAwaitsNone(c);
  return result;
}

tuttiResult_t tuttiWaitRun(tuttiJob *job) {
  TUTTI_ENTER_READY(c, job->uses, "tuttiWaitSignal");
  TUTTI_TRY(tuttiWorkerAwait(c));
  TUTTI_TRY(tuttiCommOccupy(c));
  const tuttiWaitJob *w = (const tuttiWaitJob *)job;
  tuttiResult_t result =
      c->rma ? awaitAll(c, w)
             : enqueued(c, c->device->awaitSignals(&c->context, w->descs, w->n, w->stream));
  tuttiCommVacate(c);
  return result;
}

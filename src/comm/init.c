/* The init of a communicator as a job, or on its worker. */
#include "comm/init.h"

#include <string.h>

#include "comm/absence.h"
#include "comm/communicator.h"
#include "comm/failure.h"
#include "comm/group.h"
#include "comm/handle.h"
#include "comm/job.h"
#include "comm/options.h"
#include "comm/setup.h"
#include "comm/worker.h"

typedef struct {
  tuttiJob job;
  const char *call;
  tuttiComm_t handle;      /* held while the init runs: until its group ends, abort needs no one */
  tuttiCommunicator *comm; /* of an init that its communicator's worker runs; else NULL */
  bool ran;
  int rank, nranks;
  tuttiOrigin origin;
  int nids;
  tuttiUniqueId ids[]; /* and origin.ranks and origin.excluded behind them */
} InitJob;

/* Those who wait for this rank hear that it does not come. */
static tuttiResult_t decline(const InitJob *init, tuttiResult_t why) {
  tuttiBootstrapDecline(init->ids, init->nids, init->rank, init->nranks, why);
  return why;
}

/* The others hear from this rank why, whether they have a watch or not; before it has joined, that
 * was done there. An abort is the failure of this rank alone. */
static tuttiResult_t fail(tuttiCommunicator *c, tuttiResult_t result) {
  result = tuttiCommFail(c, result);
  if (!c->bootstrap) return result;
  bool ended = tuttiLoadAcquire32(&c->ending) != 0;
  tuttiResult_t told = ended ? tuttiInternalError : result;
  if (!c->watch)
    tuttiWatchDecline(c->bootstrap, told);
  else if (!ended) /* a death that was noticed elsewhere: its ranks may be waiting already */
    tuttiWatchFail(c->watch, result, tuttiErrorText());
  tuttiBootstrapGiveUp(c->bootstrap, told);
  return result;
}

static tuttiResult_t setUp(const InitJob *init, tuttiCommunicator *c) {
  tuttiBirth birth;
  tuttiAbsence absence;
  tuttiBirthBegin(&birth, &init->origin, c);
  const tuttiKin *kin = tuttiAbsenceInit(&absence, &init->origin, c, init->call);
  tuttiErrorScope(init->call, c->options.name, c->rank, c->nranks);
  tuttiResult_t result = tuttiCommSetup(c, init->ids, init->nids, kin);
  tuttiBirthEnd(&birth);
  /* A death or an abort at the very end: nobody else would tell the others of it. */
  if (result == tuttiSuccess) result = tuttiCommFailure(c);
  return result == tuttiSuccess ? tuttiSuccess : fail(c, result);
}

/* Ends a communicator whose init has failed or never runs, if nobody else does. The caller's hold
 * is gone. */
static void giveUp(tuttiCommunicator *c) {
  if (tuttiCompareExchange32(&c->ending, 0, 1) && tuttiHandleRetire(c))
    tuttiCommFree(c, false);
  else
    tuttiHandleLeave(c);
}

static tuttiResult_t runInit(tuttiJob *job) {
  InitJob *init = (InitJob *)job;
  tuttiCommunicator *c;
  init->ran = true;
  if (!tuttiHandleLives(init->handle) ||
      tuttiHandleEnter(init->handle, init->call, &c) != tuttiSuccess) {
    tuttiErrorScope(init->call, NULL, 0, 0);
    return decline(init, TUTTI_FAIL(tuttiInvalidUsage,
                                    "the init has not run: this communicator was aborted or "
                                    "destroyed before the end of its group"));
  }
  tuttiResult_t result = setUp(init, c);
  if (result == tuttiSuccess)
    tuttiHandleLeave(c);
  else
    giveUp(c);
  return result;
}

static void discardInit(tuttiJob *job) {
  InitJob *init = (InitJob *)job;
  tuttiCommunicator *c;
  if (!init->ran && tuttiHandleLives(init->handle) &&
      tuttiHandleEnter(init->handle, init->call, &c) == tuttiSuccess) {
    bool known = job->text[0] != 0; /* its thread could not start, say */
    tuttiErrorAdopt(tuttiInternalError,
                    known ? job->text : "its group has ended with an error, before the init ran");
    (void)decline(init, tuttiInternalError);
    giveUp(c);
  }
  tuttiFree(init);
}

/* Goes on behind the caller's back, on the communicator's worker; destroy and abort wait for its
 * end. */
static void initLater(void *job) {
  InitJob *init = job;
  (void)setUp(init, init->comm);
  tuttiFree(init);
}

/* What a group that starts such an init ends with, and the call itself outside of one. */
static tuttiResult_t isInProgress(tuttiJob *job) {
  (void)job;
  return tuttiInProgress;
}

/* What *origin points to, behind the ids: how many bytes that takes. */
static size_t originBytes(const tuttiOrigin *origin, int nranks) {
  size_t ranks = origin->ranks ? (size_t)nranks * sizeof *origin->ranks : 0;
  return ranks + (origin->excluded ? (size_t)origin->nranks : 0);
}

static void keepOrigin(InitJob *init, const tuttiOrigin *origin) {
  int32_t *ranks = (int32_t *)&init->ids[init->nids];
  size_t n = origin->ranks ? (size_t)init->nranks : 0;
  init->origin = *origin;
  if (n > 0) init->origin.ranks = memcpy(ranks, origin->ranks, n * sizeof *ranks);
  if (origin->excluded)
    init->origin.excluded = memcpy(ranks + n, origin->excluded, (size_t)origin->nranks);
}

tuttiResult_t tuttiCommInit(const char *call, tuttiComm_t *comm, int nranks, int rank, int nids,
                            const tuttiUniqueId *ids, const tuttiOptions *options,
                            const tuttiOrigin *origin) {
  InitJob *init;
  size_t idBytes = (size_t)nids * sizeof *ids;
  size_t more = origin ? originBytes(origin, nranks) : 0;
  tuttiResult_t result = tuttiAlloc((void **)&init, 1, sizeof *init + idBytes + more, "init", NULL);
  if (result != tuttiSuccess) {
    tuttiBootstrapDecline(ids, nids, rank, nranks, result);
    return result;
  }
  *init = (InitJob){.job = {.run = runInit, .discard = discardInit},
                    .call = call,
                    .rank = rank,
                    .nranks = nranks,
                    .nids = nids};
  memcpy(init->ids, ids, idBytes);
  if (origin) keepOrigin(init, origin);
  tuttiCommunicator *c = NULL;
  result = tuttiCommNew(rank, nranks, options, &c);
  tuttiJob background = {.run = isInProgress};
  tuttiComm_t handle = result == tuttiSuccess ? c->handle : NULL;
  init->handle = handle;
  init->comm = c;
  if (result == tuttiSuccess && !options->blocking) result = tuttiWorkerStart(c, initLater, init);
  if (result != tuttiSuccess) {
    if (c) tuttiCommFree(c, false);
    (void)decline(init, result);
    tuttiFree(init);
    return result;
  }
  /* Now, since at the end of a group `comm` may point to nothing; whoever sees it may abort. The
   * worker may be done by now, and `init` with it. */
  __atomic_store_n(comm, handle, __ATOMIC_RELEASE);
  if (!options->blocking) return tuttiJobLaunch(tuttiSuccess, &background, sizeof background);
  result = tuttiJobSubmit(&init->job);
  if (result != tuttiSuccess) __atomic_store_n(comm, NULL, __ATOMIC_RELEASE);
  return result;
}

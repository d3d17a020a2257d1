/* The public calls that make and end communicators. */
#include <stdio.h>
#include <string.h>

#include "base/settings.h"
#include "bootstrap/rendezvous.h"
#include "comm/check.h"
#include "comm/comm.h"
#include "transport/net.h"

static tuttiResult_t enterFree(const char *call) {
  TUTTI_TRY(tuttiCallEnter(call));
  return tuttiSettingsLoad();
}

tuttiResult_t tuttiGetUniqueId(tuttiUniqueId *uniqueId) {
  TUTTI_TRY(enterFree(__func__));
  TUTTI_TRY(tuttiCheckOutput("uniqueId", uniqueId));
  return tuttiIdCreate(uniqueId);
}

/* ---- init ------------------------------------------------------------------------------------ */

typedef struct {
  tuttiJob job;
  const char *call;
  tuttiCommunicator *comm;
  int nids;
  tuttiUniqueId ids[];
} InitJob;

/* Of the communicator that init->comm no longer is then. */
static tuttiResult_t setUp(InitJob *init) {
  tuttiCommunicator *c = init->comm;
  init->comm = NULL;
  tuttiErrorScope(init->call, c->options.name, c->rank, c->nranks);
  tuttiResult_t result = tuttiCommSetup(c, init->ids, init->nids);
  return result == tuttiSuccess ? tuttiSuccess : tuttiCommFail(c, result);
}

static tuttiResult_t runInit(tuttiJob *job) {
  InitJob *init = (InitJob *)job;
  tuttiCommunicator *c = init->comm;
  tuttiResult_t result = setUp(init);
  if (result != tuttiSuccess) tuttiCommFree(c, false);
  return result;
}

static void discardInit(tuttiJob *job) {
  InitJob *init = (InitJob *)job;
  if (init->comm) tuttiCommFree(init->comm, false);
  tuttiFree(init);
}

/* Goes on behind the caller's back, on the communicator's worker; destroy and abort wait for its
 * end. */
static void initLater(void *init) {
  setUp(init);
  tuttiFree(init);
}

/* What a group that starts such an init ends with, and the call itself outside of one. */
static tuttiResult_t isInProgress(tuttiJob *job) {
  (void)job;
  return tuttiInProgress;
}

static tuttiResult_t checkInit(tuttiComm_t *comm, int nranks, int rank, int nids,
                               const tuttiUniqueId *ids) {
  TUTTI_TRY(tuttiCheckOutput("comm", comm));
  if (nranks < 1 || nranks > TUTTI_MAX_RANKS)
    return TUTTI_FAIL(tuttiInvalidArgument, "argument nranks is %d; it must be 1 to %d", nranks,
                      TUTTI_MAX_RANKS);
  if (rank < 0 || rank >= nranks)
    return TUTTI_FAIL(tuttiInvalidArgument, "argument rank is %d; it must be 0 to %d", rank,
                      nranks - 1);
  if (nids < 1 || nids > nranks)
    return TUTTI_FAIL(tuttiInvalidArgument, "argument nId is %d; it must be 1 to nranks, %d", nids,
                      nranks);
  TUTTI_TRY(tuttiCheckOutput("commIds", ids));
  for (int i = 0; i < nids; i++) {
    tuttiId parsed;
    TUTTI_TRY(tuttiIdParse(&ids[i], &parsed));
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiCommInit(const char *call, tuttiComm_t *comm, int nranks, int rank, int nids,
                            const tuttiUniqueId *ids, const tuttiOptions *options) {
  InitJob *init;
  TUTTI_TRY(tuttiAlloc((void **)&init, 1, sizeof *init + (size_t)nids * sizeof *ids, "init", NULL));
  *init = (InitJob){.job = {.run = runInit, .discard = discardInit}, .call = call, .nids = nids};
  memcpy(init->ids, ids, (size_t)nids * sizeof *ids);
  tuttiResult_t result = tuttiCommNew(rank, nranks, options, &init->comm);
  tuttiCommunicator *c = init->comm;
  tuttiJob background = {.run = isInProgress};
  if (result == tuttiSuccess && !options->blocking) result = tuttiWorkerStart(c, initLater, init);
  if (result != tuttiSuccess) {
    discardInit(&init->job);
    return result;
  }
  *comm = c->handle; /* now: at the end of a group `comm` may point to nothing */
  if (!options->blocking) return tuttiJobLaunch(tuttiSuccess, &background, sizeof background);
  result = tuttiJobSubmit(&init->job);
  if (result != tuttiSuccess) *comm = NULL;
  return result;
}

/* The rank's CUDA device is `ordinal`, or with -1 the current one of the caller's thread: the init
 * itself may run in another. */
static tuttiResult_t initRank(const char *call, int ordinal, tuttiComm_t *comm, int nranks,
                              int rank, int nids, const tuttiUniqueId *ids,
                              const tuttiConfig_t *config) {
  tuttiOptions options;
  tuttiResult_t result = enterFree(call);
  if (result == tuttiSuccess) result = checkInit(comm, nranks, rank, nids, ids);
  if (result == tuttiSuccess) result = tuttiOptionsResolve(config, NULL, &options);
  if (result == tuttiSuccess) options.ordinal = tuttiDeviceCudaOrdinal(ordinal);
  if (result == tuttiSuccess) result = tuttiCommInit(call, comm, nranks, rank, nids, ids, &options);
  if (result != tuttiSuccess && result != tuttiInProgress) tuttiGroupFail(result);
  return result;
}

tuttiResult_t tuttiCommInitRank(tuttiComm_t *comm, int nranks, tuttiUniqueId commId, int rank) {
  return initRank(__func__, -1, comm, nranks, rank, 1, &commId, NULL);
}

tuttiResult_t tuttiCommInitRankConfig(tuttiComm_t *comm, int nranks, tuttiUniqueId commId, int rank,
                                      tuttiConfig_t *config) {
  return initRank(__func__, -1, comm, nranks, rank, 1, &commId, config);
}

tuttiResult_t tuttiCommInitRankScalable(tuttiComm_t *newcomm, int nranks, int myrank, int nId,
                                        tuttiUniqueId *commIds, tuttiConfig_t *config) {
  return initRank(__func__, -1, newcomm, nranks, myrank, nId, commIds, config);
}

static tuttiResult_t initAllRanks(tuttiComm_t *comms, int ndev, const int *devlist) {
  tuttiUniqueId id;
  TUTTI_TRY(tuttiIdCreate(&id));
  TUTTI_TRY(tuttiGroupStart());
  for (int i = 0; i < ndev; i++)
    if (initRank("tuttiCommInitAll", devlist ? devlist[i] : i, &comms[i], ndev, i, 1, &id, NULL) !=
        tuttiSuccess)
      break;
  return tuttiGroupEnd();
}

tuttiResult_t tuttiCommInitAll(tuttiComm_t *comms, int ndev, const int *devlist) {
  TUTTI_TRY(enterFree(__func__));
  TUTTI_TRY(tuttiCheckOutput("comms", comms));
  if (ndev < 1)
    return TUTTI_FAIL(tuttiInvalidArgument, "argument ndev is %d; it must be at least 1", ndev);
  for (int i = 0; devlist && i < ndev; i++)
    for (int j = 0; j <= i; j++)
      if (devlist[i] < 0 || (j < i && devlist[i] == devlist[j]))
        return TUTTI_FAIL(tuttiInvalidArgument,
                          "argument devlist[%d] is %d; devices must be distinct and not negative",
                          i, devlist[i]);
  for (int i = 0; i < ndev; i++)
    comms[i] = NULL;
  tuttiResult_t result = initAllRanks(comms, ndev, devlist);
  for (int i = 0; i < ndev && result != tuttiSuccess; i++) {
    if (tuttiHandleLives(comms[i])) tuttiCommAbort(comms[i]); /* its own init has not failed */
    comms[i] = NULL;
  }
  return result;
}

/* ---- end ------------------------------------------------------------------------------------- */

tuttiResult_t tuttiCommReady(const tuttiCommunicator *c) {
  TUTTI_TRY(tuttiCommFailure((tuttiCommunicator *)c));
  tuttiCommState state = (tuttiCommState)tuttiLoadAcquire32(&c->state);
  if (state == tuttiCommUsable) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidUsage, "the communicator%s",
                    state == tuttiCommStarting ? "'s non-blocking init has not ended; wait until "
                                                 "tuttiCommGetAsyncError reports tuttiSuccess"
                    : state == tuttiCommSuspended
                        ? " is suspended; call tuttiCommResume"
                        : " was finalized; only tuttiCommDestroy may follow");
}

static bool isDrained(tuttiCommunicator *c) {
  return tuttiWorkerIdle(c) && tuttiNetDrained(&c->wires);
}

/* Waits until nothing of this rank is under way: queued operations, and messages that the network
 * has not taken yet. */
static tuttiResult_t finalize(tuttiCommunicator *c) {
  TUTTI_TRY(tuttiWorkerAwait(c)); /* what it starts on a GPU is what is drained */
  tuttiStoreRelease32(&c->state, tuttiCommFinalizing);
  if (c->device->drain) TUTTI_TRY(c->device->drain(&c->host));
  return tuttiCommAwait(c, isDrained, true, "messages to peers were not taken",
                        "; a peer is stopped or its network is down");
}

tuttiResult_t tuttiCommFinalize(tuttiComm_t comm) {
  TUTTI_ENTER_READY(c, comm, __func__);
  return finalize(c);
}

static tuttiResult_t endsAlready(tuttiCommunicator *c) {
  TUTTI_FAIL(tuttiInvalidUsage, "this communicator is being destroyed or aborted already");
  tuttiHandleLeave(c);
  return tuttiInvalidUsage;
}

/* Retires the handle and frees; the caller holds it. */
static tuttiResult_t retire(tuttiCommunicator *c, bool aborted) {
  if (!tuttiHandleRetire(c)) return endsAlready(c);
  tuttiCommFree(c, aborted);
  return tuttiSuccess;
}

tuttiResult_t tuttiCommDestroy(tuttiComm_t comm) {
  tuttiCommunicator *c;
  TUTTI_TRY(tuttiHandleEnter(comm, __func__, &c));
  if (tuttiLoadAcquire32(&c->aborted)) return endsAlready(c);  /* in a group, say */
  if (tuttiLoadAcquire32(&c->failed)) return retire(c, false); /* its failure has been told */
  tuttiResult_t result = finalize(c);
  if (result != tuttiSuccess) tuttiCommFail(c, result); /* ends whoever is inside */
  tuttiResult_t retired = retire(c, false);
  return retired != tuttiSuccess ? retired : result;
}

typedef struct {
  tuttiJob job;
  tuttiCommunicator *comm; /* NULL: it was retired */
} AbortJob;

static tuttiResult_t runAbort(tuttiJob *job) {
  tuttiCommunicator *c = ((AbortJob *)job)->comm;
  ((AbortJob *)job)->comm = NULL;
  return c ? retire(c, true) : tuttiSuccess;
}

/* A group that fails ends its communicators none the less. */
static void discardAbort(tuttiJob *job) {
  (void)runAbort(job);
  tuttiFree(job);
}

/* In a group all communicators have failed, and so their kernels end, before the first is freed:
 * that waits for the GPU, with the kernels of all others. */
tuttiResult_t tuttiCommAbort(tuttiComm_t comm) {
  tuttiCommunicator *c;
  AbortJob *abort;
  TUTTI_TRY(tuttiHandleEnter(comm, __func__, &c));
  if (!tuttiCompareExchange32(&c->aborted, 0, 1)) return endsAlready(c);
  tuttiCommFailText(c, tuttiInvalidUsage, "this communicator was aborted by tuttiCommAbort", false);
  if (tuttiAlloc((void **)&abort, 1, sizeof *abort, "an abort", NULL) != tuttiSuccess)
    return retire(c, true);
  *abort = (AbortJob){.job = {.run = runAbort, .discard = discardAbort}, .comm = c};
  return tuttiJobSubmit(&abort->job);
}

/* ---- queries --------------------------------------------------------------------------------- */

tuttiResult_t tuttiCommGetAsyncError(tuttiComm_t comm, tuttiResult_t *asyncError) {
  TUTTI_ENTER(c, comm, __func__);
  TUTTI_TRY(tuttiCheckOutput("asyncError", asyncError));
  /* In this order: what has just ended may have ended by failing. */
  bool busy = tuttiLoadAcquire32(&c->state) == tuttiCommStarting || !tuttiWorkerIdle(c);
  tuttiResult_t state = tuttiLoadAcquire32(&c->revoked) ? tuttiSuccess : tuttiCommFailure(c);
  *asyncError = state == tuttiSuccess && busy ? tuttiInProgress : state;
  return tuttiSuccess;
}

const char *tuttiGetLastError(tuttiComm_t comm) {
  tuttiCommunicator *c;
  char before[TUTTI_ERROR_TEXT];
  if (!comm) return tuttiErrorText();
  snprintf(before, sizeof before, "%s", tuttiErrorText());
  if (tuttiHandleEnter(comm, __func__, &c) != tuttiSuccess) {
    tuttiErrorAdopt(tuttiSuccess, before); /* a dead handle: what this thread saw last */
    return tuttiErrorText();
  }
  tuttiCommFailure(c);
  tuttiHandleLeave(c);
  return tuttiErrorText();
}

#define QUERY(name, output, value)                                                                 \
  tuttiResult_t tuttiComm##name(const tuttiComm_t comm, int *(output)) {                           \
    TUTTI_ENTER(c, comm, __func__);                                                                \
    TUTTI_TRY(tuttiCheckOutput(#output, output));                                                  \
    *(output) = (value);                                                                           \
    return tuttiSuccess;                                                                           \
  }
QUERY(Count, count, c->nranks)
QUERY(UserRank, rank, c->rank)
/* While a non-blocking init runs, the peers are its own. */
QUERY(CuDevice, device,
      tuttiLoadAcquire32(&c->state) == tuttiCommStarting ? -1 : c->peers[c->rank].cudaDevice)

tuttiResult_t tuttiCommMemUsed(const tuttiComm_t comm, size_t *bytes) {
  TUTTI_ENTER(c, comm, __func__);
  TUTTI_TRY(tuttiCheckOutput("bytes", bytes));
  /* A background thread may be making what would be measured; then the last measure stands. */
  if (tuttiLoadAcquire32(&c->state) != tuttiCommStarting && tuttiWorkerIdle(c))
    tuttiTransportsMeasure(&c->wires);
  *bytes = tuttiLoadRelaxed(&c->memory.bytes);
  return tuttiSuccess;
}

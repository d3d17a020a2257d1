/* The public calls that make and end communicators. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/settings.h"
#include "comm/comm.h"
#include "transport/net.h"

static tuttiResult_t enterFree(const char *call) {
  tuttiErrorScope(call, NULL, 0, 0);
  if (tuttiForked())
    return TUTTI_FAIL(tuttiInvalidUsage,
                      "this process was forked from one that uses tutti; a forked "
                      "child may only exit or exec a new program");
  return tuttiSettingsLoad();
}

tuttiResult_t tuttiGetUniqueId(tuttiUniqueId *uniqueId) {
  TUTTI_TRY(enterFree(__func__));
  if (!uniqueId) return TUTTI_FAIL(tuttiInvalidArgument, "argument uniqueId is NULL");
  return tuttiIdCreate(uniqueId);
}

/* ---- init ------------------------------------------------------------------------------------ */

typedef struct {
  tuttiJob job;
  const char *call;
  tuttiCommunicator *comm;
  tuttiComm_t *out;
  int nids;
  tuttiUniqueId ids[];
} InitJob;

static tuttiResult_t setUp(InitJob *init) {
  tuttiCommunicator *c = init->comm;
  tuttiErrorScope(init->call, c->options.name, c->rank, c->nranks);
  tuttiResult_t result = tuttiCommSetup(c, init->ids, init->nids);
  if (result != tuttiSuccess) tuttiCommFail(c, result);
  return result;
}

static tuttiResult_t runInit(tuttiJob *job) {
  InitJob *init = (InitJob *)job;
  tuttiCommunicator *c = init->comm;
  tuttiResult_t result = setUp(init);
  init->comm = NULL;
  if (result != tuttiSuccess) {
    char text[TUTTI_ERROR_TEXT];
    snprintf(text, sizeof text, "%s", tuttiErrorText());
    tuttiCommDrop(c, false);
    return tuttiErrorAdopt(result, text);
  }
  *init->out = c->handle;
  return tuttiSuccess;
}

static void discardInit(tuttiJob *job) {
  InitJob *init = (InitJob *)job;
  if (init->comm) tuttiCommDrop(init->comm, false);
  tuttiFree(init);
}

/* Non-blocking init goes on behind the caller's back; destroy and abort wait for its end. */
static void *backgroundInit(void *arg) {
  InitJob *init = arg;
  setUp(init);
  init->comm = NULL;
  tuttiFree(init);
  return NULL;
}

static tuttiResult_t startBackground(InitJob *init) {
  tuttiCommunicator *c = init->comm;
  tuttiComm_t handle = c->handle;
  tuttiComm_t *out = init->out;
  int err = tuttiThreadStart(&c->starter, "tutti-init", backgroundInit, init);
  if (err) {
    discardInit(&init->job);
    return TUTTI_FAIL(tuttiSystemError, "no thread for a non-blocking init: %s; raise `ulimit -u`",
                      tuttiErrnoText(err));
  }
  c->hasStarter = true;
  *out = handle;
  return tuttiInProgress;
}

static tuttiResult_t checkInit(tuttiComm_t *comm, int nranks, int rank, int nids,
                               const tuttiUniqueId *ids) {
  if (!comm) return TUTTI_FAIL(tuttiInvalidArgument, "argument comm is NULL");
  if (nranks < 1)
    return TUTTI_FAIL(tuttiInvalidArgument, "argument nranks is %d; it must be at least 1", nranks);
  if (rank < 0 || rank >= nranks)
    return TUTTI_FAIL(tuttiInvalidArgument, "argument rank is %d; it must be 0 to %d", rank,
                      nranks - 1);
  if (nids < 1 || nids > nranks)
    return TUTTI_FAIL(tuttiInvalidArgument, "argument nId is %d; it must be 1 to nranks, %d", nids,
                      nranks);
  if (!ids) return TUTTI_FAIL(tuttiInvalidArgument, "argument commIds is NULL");
  for (int i = 0; i < nids; i++) {
    tuttiId parsed;
    TUTTI_TRY(tuttiIdParse(&ids[i], &parsed));
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiCommInit(const char *call, tuttiComm_t *comm, int nranks, int rank, int nids,
                            const tuttiUniqueId *ids, const tuttiOptions *options) {
  tuttiCommunicator *c;
  InitJob *init;
  TUTTI_TRY(tuttiCommNew(rank, nranks, options, &c));
  tuttiResult_t result =
      tuttiAlloc((void **)&init, 1, sizeof *init + (size_t)nids * sizeof *ids, "an init", NULL);
  if (result != tuttiSuccess) {
    tuttiCommDrop(c, false);
    return result;
  }
  init->job.run = runInit;
  init->job.discard = discardInit;
  init->call = call;
  init->comm = c;
  init->out = comm;
  init->nids = nids;
  memcpy(init->ids, ids, (size_t)nids * sizeof *ids);
  return options->blocking ? tuttiJobSubmit(&init->job) : startBackground(init);
}

/* The rank's CUDA device is `ordinal`, or with -1 the current one of the caller's thread: the init
 * itself may run in another. */
static tuttiResult_t initOn(int ordinal, const char *call, tuttiComm_t *comm, int nranks, int rank,
                            int nids, const tuttiUniqueId *ids, const tuttiConfig_t *config) {
  tuttiOptions options;
  tuttiResult_t result = enterFree(call);
  if (result == tuttiSuccess) result = checkInit(comm, nranks, rank, nids, ids);
  if (result == tuttiSuccess) result = tuttiOptionsResolve(config, NULL, &options);
  if (result == tuttiSuccess) options.ordinal = tuttiDeviceCudaOrdinal(ordinal);
  if (result == tuttiSuccess) result = tuttiCommInit(call, comm, nranks, rank, nids, ids, &options);
  if (result != tuttiSuccess && result != tuttiInProgress) tuttiGroupFail(result);
  return result;
}

static tuttiResult_t initRank(const char *call, tuttiComm_t *comm, int nranks, int rank, int nids,
                              const tuttiUniqueId *ids, const tuttiConfig_t *config) {
  return initOn(-1, call, comm, nranks, rank, nids, ids, config);
}

tuttiResult_t tuttiCommInitRank(tuttiComm_t *comm, int nranks, tuttiUniqueId commId, int rank) {
  return initRank(__func__, comm, nranks, rank, 1, &commId, NULL);
}

tuttiResult_t tuttiCommInitRankConfig(tuttiComm_t *comm, int nranks, tuttiUniqueId commId, int rank,
                                      tuttiConfig_t *config) {
  return initRank(__func__, comm, nranks, rank, 1, &commId, config);
}

tuttiResult_t tuttiCommInitRankScalable(tuttiComm_t *newcomm, int nranks, int myrank, int nId,
                                        tuttiUniqueId *commIds, tuttiConfig_t *config) {
  return initRank(__func__, newcomm, nranks, myrank, nId, commIds, config);
}

static tuttiResult_t initAllRanks(tuttiComm_t *comms, int ndev, const int *devlist) {
  tuttiUniqueId id;
  TUTTI_TRY(tuttiIdCreate(&id));
  TUTTI_TRY(tuttiGroupStart());
  for (int i = 0; i < ndev; i++)
    if (initOn(devlist ? devlist[i] : i, "tuttiCommInitAll", &comms[i], ndev, i, 1, &id, NULL) !=
        tuttiSuccess)
      break;
  return tuttiGroupEnd();
}

tuttiResult_t tuttiCommInitAll(tuttiComm_t *comms, int ndev, const int *devlist) {
  TUTTI_TRY(enterFree(__func__));
  if (!comms) return TUTTI_FAIL(tuttiInvalidArgument, "argument comms is NULL");
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
  if (result == tuttiSuccess) return result;
  char text[TUTTI_ERROR_TEXT];
  snprintf(text, sizeof text, "%s", tuttiErrorText());
  for (int i = 0; i < ndev; i++) {
    if (comms[i]) tuttiCommAbort(comms[i]);
    comms[i] = NULL;
  }
  return tuttiErrorAdopt(result, text);
}

/* ---- end ------------------------------------------------------------------------------------- */

tuttiResult_t tuttiCommReady(const tuttiCommunicator *c) {
  TUTTI_TRY(tuttiCommFailure((tuttiCommunicator *)c));
  switch ((tuttiCommState)tuttiLoadAcquire32(&c->state)) {
  case tuttiCommUsable:
    return tuttiSuccess;
  case tuttiCommStarting:
    return TUTTI_FAIL(tuttiInvalidUsage, "the communicator's non-blocking init has not ended; wait "
                                         "until tuttiCommGetAsyncError reports tuttiSuccess");
  case tuttiCommSuspended:
    return TUTTI_FAIL(tuttiInvalidUsage, "the communicator is suspended; call tuttiCommResume");
  default:
    return TUTTI_FAIL(tuttiInvalidUsage,
                      "the communicator was finalized; only tuttiCommDestroy may follow");
  }
}

/* Waits until nothing of this rank is under way: queued operations, and messages that the network
 * has not taken yet. */
static tuttiResult_t drain(tuttiCommunicator *c) {
  if (c->device->drain) TUTTI_TRY(c->device->drain(&c->host));
  uint64_t deadline = tuttiDeadline(c->options.timeoutMs);
  tuttiBackoff pause = {0, 0};
  while (!tuttiWorkerIdle(c) || !tuttiNetDrained(&c->wires)) {
    TUTTI_TRY(tuttiCommFailure(c));
    if (tuttiNow() > deadline)
      return TUTTI_FAIL(tuttiTimeout,
                        "messages to peers were not taken within %.1f s; a peer is "
                        "stopped or its network is down",
                        (double)c->options.timeoutMs / 1e3);
    tuttiBackoffPause(&pause);
  }
  return tuttiCommFailure(c); /* of the last operation, which has made it idle */
}

static tuttiResult_t finalize(tuttiCommunicator *c) {
  if (c->hasStarter) {
    pthread_join(c->starter, NULL);
    c->hasStarter = false;
  }
  TUTTI_TRY(tuttiCommFailure(c));
  tuttiStoreRelease32(&c->state, tuttiCommFinalizing);
  return drain(c);
}

tuttiResult_t tuttiCommFinalize(tuttiComm_t comm) {
  tuttiCommunicator *c;
  TUTTI_TRY(tuttiHandleEnter(comm, __func__, &c));
  tuttiResult_t result = tuttiCommReady(c);
  if (result == tuttiSuccess) result = finalize(c);
  tuttiHandleLeave(c);
  return result;
}

void tuttiCommDrop(tuttiCommunicator *c, bool aborted) {
  if (c->hasStarter) pthread_join(c->starter, NULL);
  tuttiErrorScope(NULL, NULL, 0, 0); /* its name goes with it */
  tuttiHandleFree(c);
  tuttiCommFree(c, aborted);
}

/* Retires the handle and frees; the caller holds it. */
static tuttiResult_t retire(tuttiCommunicator *c, bool aborted) {
  if (!tuttiHandleRetire(c)) {
    TUTTI_FAIL(tuttiInvalidUsage, "another thread is destroying or aborting this communicator");
    tuttiHandleLeave(c);
    return tuttiInvalidUsage;
  }
  tuttiCommDrop(c, aborted);
  return tuttiSuccess;
}

tuttiResult_t tuttiCommDestroy(tuttiComm_t comm) {
  tuttiCommunicator *c;
  TUTTI_TRY(tuttiHandleEnter(comm, __func__, &c));
  if (tuttiLoadAcquire32(&c->failed)) return retire(c, false); /* its failure has been told */
  tuttiResult_t result = finalize(c), retired;
  bool clean = result == tuttiSuccess;
  if (!clean) tuttiCommFail(c, result); /* ends whoever is inside */
  char text[TUTTI_ERROR_TEXT];
  snprintf(text, sizeof text, "%s", tuttiErrorText());
  retired = retire(c, false);
  if (retired != tuttiSuccess) return retired;
  return clean ? tuttiSuccess : tuttiErrorAdopt(result, text);
}

tuttiResult_t tuttiCommAbort(tuttiComm_t comm) {
  tuttiCommunicator *c;
  TUTTI_TRY(tuttiHandleEnter(comm, __func__, &c));
  tuttiCommFailText(c, tuttiInvalidUsage, "this communicator was aborted by tuttiCommAbort", false);
  return retire(c, true);
}

/* ---- queries --------------------------------------------------------------------------------- */

tuttiResult_t tuttiCommGetAsyncError(tuttiComm_t comm, tuttiResult_t *asyncError) {
  tuttiCommunicator *c;
  TUTTI_TRY(tuttiHandleEnter(comm, __func__, &c));
  tuttiResult_t result = tuttiSuccess;
  if (!asyncError) {
    result = TUTTI_FAIL(tuttiInvalidArgument, "argument asyncError is NULL");
  } else {
    /* In this order: what has just ended may have ended by failing. */
    bool busy = tuttiLoadAcquire32(&c->state) == tuttiCommStarting || !tuttiWorkerIdle(c);
    tuttiResult_t state = tuttiLoadAcquire32(&c->revoked) ? tuttiSuccess : tuttiCommFailure(c);
    *asyncError = state == tuttiSuccess && busy ? tuttiInProgress : state;
  }
  tuttiHandleLeave(c);
  return result;
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

/* One number of a communicator. */
static tuttiResult_t query(const char *call, const char *argument, tuttiComm_t comm, int *out,
                           int (*get)(const tuttiCommunicator *c)) {
  tuttiCommunicator *c;
  TUTTI_TRY(tuttiHandleEnter(comm, call, &c));
  tuttiResult_t result = tuttiSuccess;
  if (out)
    *out = get(c);
  else
    result = TUTTI_FAIL(tuttiInvalidArgument, "argument %s is NULL", argument);
  tuttiHandleLeave(c);
  return result;
}

static int getCount(const tuttiCommunicator *c) {
  return c->nranks;
}
static int getRank(const tuttiCommunicator *c) {
  return c->rank;
}
/* While a non-blocking init runs, the peers are its own. */
static int getDevice(const tuttiCommunicator *c) {
  return tuttiLoadAcquire32(&c->state) != tuttiCommStarting ? c->peers[c->rank].cudaDevice : -1;
}

tuttiResult_t tuttiCommCount(const tuttiComm_t comm, int *count) {
  return query(__func__, "count", comm, count, getCount);
}

tuttiResult_t tuttiCommUserRank(const tuttiComm_t comm, int *rank) {
  return query(__func__, "rank", comm, rank, getRank);
}

tuttiResult_t tuttiCommCuDevice(const tuttiComm_t comm, int *device) {
  return query(__func__, "device", comm, device, getDevice);
}

tuttiResult_t tuttiCommMemUsed(const tuttiComm_t comm, size_t *bytes) {
  tuttiCommunicator *c;
  TUTTI_TRY(tuttiHandleEnter(comm, __func__, &c));
  tuttiResult_t result = tuttiSuccess;
  if (bytes) {
    /* A background thread may be making what would be measured; then the last measure stands. */
    if (tuttiLoadAcquire32(&c->state) != tuttiCommStarting && tuttiWorkerIdle(c))
      tuttiTransportsMeasure(&c->wires);
    *bytes = tuttiLoadRelaxed(&c->memory.bytes);
  } else {
    result = TUTTI_FAIL(tuttiInvalidArgument, "argument bytes is NULL");
  }
  tuttiHandleLeave(c);
  return result;
}

/* The public calls that make, end and describe communicators. */
#include <stdio.h>

#include "base/settings.h"
#include "bootstrap/rendezvous.h"
#include "comm/check.h"
#include "comm/communicator.h"
#include "comm/end.h"
#include "comm/failure.h"
#include "comm/group.h"
#include "comm/handle.h"
#include "comm/init.h"
#include "comm/options.h"
#include "comm/worker.h"

static tuttiResult_t enterFree(const char *call) {
  TUTTI_TRY(tuttiCallEnter(call));
  return tuttiSettingsLoad();
}

tuttiResult_t tuttiGetUniqueId(tuttiUniqueId *uniqueId) {
  TUTTI_TRY(enterFree(__func__));
  TUTTI_TRY(tuttiCheckOutput("uniqueId", uniqueId));
  return tuttiIdCreate(-1, uniqueId);
}

/* ---- init ------------------------------------------------------------------------------------ */

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

/* The rank's CUDA device is `ordinal`, or with -1 the current one of the caller's thread: the init
 * itself may run in another. A rank on host memory asks for none, as that starts the driver. */
static tuttiResult_t initRank(const char *call, int ordinal, tuttiComm_t *comm, int nranks,
                              int rank, int nids, const tuttiUniqueId *ids,
                              const tuttiConfig_t *config) {
  tuttiOptions options;
  tuttiResult_t result = enterFree(call);
  if (result == tuttiSuccess) result = checkInit(comm, nranks, rank, nids, ids);
  if (result == tuttiSuccess) result = tuttiOptionsResolve(config, NULL, &options);
  if (result == tuttiSuccess && options.device != tuttiDeviceHost)
    options.ordinal = tuttiDeviceCudaOrdinal(ordinal);
  if (result == tuttiSuccess)
    result = tuttiCommInit(call, comm, nranks, rank, nids, ids, &options, NULL);
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
  TUTTI_TRY(tuttiIdCreate(-1, &id));
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

tuttiResult_t tuttiCommFinalize(tuttiComm_t comm) {
  TUTTI_ENTER_READY(c, comm, __func__);
  return tuttiCommDrain(c);
}

/* Ends `c` in the midst of anything, for the reason given. Whoever is inside sees that before it
 * sees who ends it; *first: nobody has before. */
static void strike(tuttiCommunicator *c, const char *why, bool *first) {
  tuttiCommFailAlone(c, tuttiInvalidUsage, why);
  *first = tuttiCompareExchange32(&c->ending, 0, 1);
}

/* There is nothing of it yet that could be brought to an end in order. A non-blocking init is
 * waited for instead, as one that is queued before. */
static tuttiResult_t destroyEarly(tuttiCommunicator *c) {
  bool first;
  strike(c, "this communicator was destroyed by tuttiCommDestroy before its init had ended",
         &first);
  return first ? tuttiCommRetire(c, true) : tuttiCommEndsAlready(c);
}

tuttiResult_t tuttiCommDestroy(tuttiComm_t comm) {
  tuttiCommunicator *c;
  TUTTI_TRY(tuttiHandleEnter(comm, __func__, &c));
  if (tuttiLoadAcquire32(&c->ending)) return tuttiCommEndsAlready(c); /* in a group, say */
  if (c->options.blocking && tuttiLoadAcquire32(&c->state) == tuttiCommStarting)
    return destroyEarly(c);
  if (tuttiLoadAcquire32(&c->failed))
    return tuttiCommRetire(c, false); /* its failure has been told */
  tuttiResult_t result = tuttiCommDrain(c);
  if (result != tuttiSuccess) tuttiCommFail(c, result); /* ends whoever is inside */
  tuttiResult_t retired = tuttiCommRetire(c, false);
  return retired != tuttiSuccess ? retired : result;
}

/* In a group all communicators have failed, and so their kernels end, before the first is freed:
 * that waits for the GPU, with the kernels of all others. */
tuttiResult_t tuttiCommAbort(tuttiComm_t comm) {
  tuttiCommunicator *c;
  TUTTI_TRY(tuttiHandleEnter(comm, __func__, &c));
  bool first;
  strike(c, "this communicator was aborted by tuttiCommAbort", &first);
  return first ? tuttiCommAbortSubmit(c) : tuttiCommEndsAlready(c);
}

/* ---- queries --------------------------------------------------------------------------------- */

tuttiResult_t tuttiCommGetAsyncError(tuttiComm_t comm, tuttiResult_t *asyncError) {
  TUTTI_ENTER(c, comm, __func__);
  TUTTI_TRY(tuttiCheckOutput("asyncError", asyncError));
  /* In this order: what has just ended may have ended by failing. */
  bool busy = tuttiLoadAcquire32(&c->state) == tuttiCommStarting || !tuttiWorkerIdle(c);
  tuttiResult_t state = tuttiLoadAcquire32(&c->revoked) ? tuttiSuccess : tuttiCommFailureSeen(c);
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
  tuttiCommFailureSeen(c);
  tuttiHandleLeave(c);
  return tuttiErrorText();
}

tuttiResult_t tuttiCommCount(const tuttiComm_t comm, int *count) {
  TUTTI_ENTER(c, comm, __func__);
  TUTTI_TRY(tuttiCheckOutput("count", count));
  *count = c->nranks;
  return tuttiSuccess;
}

tuttiResult_t tuttiCommUserRank(const tuttiComm_t comm, int *rank) {
  TUTTI_ENTER(c, comm, __func__);
  TUTTI_TRY(tuttiCheckOutput("rank", rank));
  *rank = c->rank;
  return tuttiSuccess;
}

tuttiResult_t tuttiCommCuDevice(const tuttiComm_t comm, int *device) {
  TUTTI_ENTER(c, comm, __func__);
  TUTTI_TRY(tuttiCheckOutput("device", device));
  /* While a non-blocking init runs, the peers are its own. */
  bool known = tuttiLoadAcquire32(&c->state) != tuttiCommStarting;
  *device = known ? c->wireup.peers[c->rank].cudaDevice : -1;
  return tuttiSuccess;
}

tuttiResult_t tuttiCommMemUsed(const tuttiComm_t comm, size_t *bytes) {
  TUTTI_ENTER(c, comm, __func__);
  TUTTI_TRY(tuttiCheckOutput("bytes", bytes));
  /* A background thread may be making what would be measured; then the last measure stands. */
  if (tuttiLoadAcquire32(&c->state) != tuttiCommStarting && tuttiWorkerIdle(c))
    tuttiTransportsMeasure(&c->view);
  *bytes = tuttiLoadRelaxed(&c->memory.bytes);
  return tuttiSuccess;
}

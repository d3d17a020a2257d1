/* The collectives with options of their own: see collectives.c, which has those without. */
#include "api/configured.h"

#include <limits.h>
#include <string.h>

#include "collectives/selection.h"

/* ---- options -------------------------------------------------------------------------------- */

static tuttiResult_t checkConfig(const tuttiCollConfig_t *config) {
  if (config->magic != TUTTI_COLL_CONFIG_MAGIC)
    return TUTTI_FAIL(tuttiInvalidArgument, "argument config is not initialized; start it from "
                                            "TUTTI_COLL_CONFIG_INITIALIZER");
  if (config->size >= sizeof *config) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "config.size is %zu, less than the %zu bytes of a tuttiCollConfig_t; start it "
                    "from TUTTI_COLL_CONFIG_INITIALIZER",
                    config->size, sizeof *config);
}

static tuttiResult_t readChannels(const char *field, int value, int *out) {
  if (value == TUTTI_CONFIG_UNDEF_INT) return tuttiSuccess;
  if (value < 1 || value > TUTTI_MAX_BLOCKS)
    return TUTTI_FAIL(tuttiInvalidArgument, "config.%s is %d; it must be 1 to %d, or undefined",
                      field, value, TUTTI_MAX_BLOCKS);
  *out = value;
  return tuttiSuccess;
}

/* What is selected and can be had; without `force` any where nothing of it can. */
static tuttiResult_t readSelection(const tuttiCommunicator *c, tuttiColl coll, const char *text,
                                   bool force, uint32_t *algos) {
  tuttiSelection selection;
  if (!text || text[strspn(text, " ")] == '\0') return tuttiSuccess;
  TUTTI_TRY(tuttiSelectionParse("config.algSelection", text, &tuttiAlgoWords, &selection));
  uint32_t had = tuttiPlanAlgos(&c->wireup.plan, coll);
  *algos = selection.of[coll] & had;
  if (*algos || !force) return tuttiSuccess;
  char names[64] = "";
  for (int algo = 0; algo < tuttiAlgoCount; algo++)
    if (had >> algo & 1)
      tuttiAppend(names, sizeof names, "%s%s", *names ? ", " : "", tuttiAlgoNames[algo]);
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "config.algSelection is \"%s\": none of that can be had for %s of this "
                    "communicator, which has %s; select one of these, or set "
                    "config.forceAlgSelection to 0",
                    text, tuttiCollName(coll), names);
}

tuttiResult_t tuttiCollConfigRead(const tuttiCommunicator *c, tuttiColl coll,
                                  const tuttiCollConfig_t *config, tuttiOpWishes *wishes) {
  tuttiOpWishes w = {
      .given = true, .tag = config->userProfilerTag, .event = config->launchCompletionEvent};
  TUTTI_TRY(checkConfig(config));
  TUTTI_TRY(readChannels("minCTAs", config->minCTAs, &w.minChannels));
  TUTTI_TRY(readChannels("maxCTAs", config->maxCTAs, &w.maxChannels));
  if (w.maxChannels && w.minChannels > w.maxChannels)
    return TUTTI_FAIL(tuttiInvalidArgument, "config.minCTAs (%d) is above config.maxCTAs (%d)",
                      w.minChannels, w.maxChannels);
  if (config->forceAlgSelection != 0 && config->forceAlgSelection != 1)
    return TUTTI_FAIL(tuttiInvalidArgument, "config.forceAlgSelection is %d; it must be 0 or 1",
                      config->forceAlgSelection);
  if (w.event && c->device->kind != tuttiDeviceCuda)
    return TUTTI_FAIL(tuttiInvalidUsage,
                      "config.launchCompletionEvent is set, but a communicator of host memory "
                      "launches nothing; leave it NULL");
  TUTTI_TRY(readSelection(c, coll, config->algSelection, config->forceAlgSelection == 1, &w.algos));
  *wishes = w;
  return tuttiSuccess;
}

/* ---- the calls ------------------------------------------------------------------------------ */

tuttiResult_t tuttiAllReduceConfig(const void *sendbuff, void *recvbuff, size_t count,
                                   tuttiDataType_t datatype, tuttiRedOp_t redop, tuttiComm_t comm,
                                   tuttiStream_t stream, const tuttiCollConfig_t *config) {
  tuttiOp op = tuttiCollectiveOp(tuttiCollAllReduce, sendbuff, recvbuff, count, datatype, stream);
  op.redop = redop;
  return tuttiCollectiveSubmit(__func__, comm, &op, config);
}

tuttiResult_t tuttiBroadcastConfig(const void *sendbuff, void *recvbuff, size_t count,
                                   tuttiDataType_t datatype, int root, tuttiComm_t comm,
                                   tuttiStream_t stream, const tuttiCollConfig_t *config) {
  tuttiOp op = tuttiCollectiveOp(tuttiCollBroadcast, sendbuff, recvbuff, count, datatype, stream);
  op.root = root;
  return tuttiCollectiveSubmit(__func__, comm, &op, config);
}

tuttiResult_t tuttiReduceConfig(const void *sendbuff, void *recvbuff, size_t count,
                                tuttiDataType_t datatype, tuttiRedOp_t redop, int root,
                                tuttiComm_t comm, tuttiStream_t stream,
                                const tuttiCollConfig_t *config) {
  tuttiOp op = tuttiCollectiveOp(tuttiCollReduce, sendbuff, recvbuff, count, datatype, stream);
  op.redop = redop;
  op.root = root;
  return tuttiCollectiveSubmit(__func__, comm, &op, config);
}

tuttiResult_t tuttiAllGatherConfig(const void *sendbuff, void *recvbuff, size_t count,
                                   tuttiDataType_t datatype, tuttiComm_t comm, tuttiStream_t stream,
                                   const tuttiCollConfig_t *config) {
  tuttiOp op = tuttiCollectiveOp(tuttiCollAllGather, sendbuff, recvbuff, count, datatype, stream);
  return tuttiCollectiveSubmit(__func__, comm, &op, config);
}

tuttiResult_t tuttiReduceScatterConfig(const void *sendbuff, void *recvbuff, size_t count,
                                       tuttiDataType_t datatype, tuttiRedOp_t redop,
                                       tuttiComm_t comm, tuttiStream_t stream,
                                       const tuttiCollConfig_t *config) {
  tuttiOp op =
      tuttiCollectiveOp(tuttiCollReduceScatter, sendbuff, recvbuff, count, datatype, stream);
  op.redop = redop;
  return tuttiCollectiveSubmit(__func__, comm, &op, config);
}

tuttiResult_t tuttiAlltoAllConfig(const void *sendbuff, void *recvbuff, size_t count,
                                  tuttiDataType_t datatype, tuttiComm_t comm, tuttiStream_t stream,
                                  const tuttiCollConfig_t *config) {
  tuttiOp op = tuttiCollectiveOp(tuttiCollAlltoAll, sendbuff, recvbuff, count, datatype, stream);
  return tuttiCollectiveSubmit(__func__, comm, &op, config);
}

tuttiResult_t tuttiGatherConfig(const void *sendbuff, void *recvbuff, size_t count,
                                tuttiDataType_t datatype, int root, tuttiComm_t comm,
                                tuttiStream_t stream, const tuttiCollConfig_t *config) {
  tuttiOp op = tuttiCollectiveOp(tuttiCollGather, sendbuff, recvbuff, count, datatype, stream);
  op.root = root;
  return tuttiCollectiveSubmit(__func__, comm, &op, config);
}

tuttiResult_t tuttiScatterConfig(const void *sendbuff, void *recvbuff, size_t count,
                                 tuttiDataType_t datatype, int root, tuttiComm_t comm,
                                 tuttiStream_t stream, const tuttiCollConfig_t *config) {
  tuttiOp op = tuttiCollectiveOp(tuttiCollScatter, sendbuff, recvbuff, count, datatype, stream);
  op.root = root;
  return tuttiCollectiveSubmit(__func__, comm, &op, config);
}

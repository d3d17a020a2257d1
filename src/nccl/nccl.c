/* libnccl.so.2: the calls of NCCL's public API up to 2.32.3, in terms of tutti.h and nothing else.
 * Each call is there as pnccl<Name> and, weak, as nccl<Name>, so that a profiler can put itself in
 * between. What cannot be served, namely multicast and networks from inside kernels, returns
 * tuttiInvalidUsage and says what to use instead. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "nccl/abi.h"
#include "nccl/device.h"
#include "nccl/export.h"

_Thread_local const char *tuttiNcclRefusal;

/* A call that tutti has under the same name. */
#define FORWARD_IF(made, name, parameters, arguments)                                              \
  DEFINE(tuttiResult_t, name, parameters) {                                                        \
    tuttiNcclRefusal = NULL;                                                                       \
    return (made) ? tutti##name arguments : tuttiSuccess;                                          \
  }
#define FORWARD(...) FORWARD_IF(true, __VA_ARGS__)

/* ---- version, errors ------------------------------------------------------------------------- */

tuttiResult_t tuttiNcclReportedVersion(int *version) {
  const char *text;
  int code = 0, part = 0;
  tuttiResult_t result = tuttiParamGetParameter("TUTTI_NCCL_VERSION", &text, NULL);
  if (result != tuttiSuccess) return result;
  for (; *text; text++) {
    bool dot = *text == '.';
    if (dot) code = (code + part) * 100;
    part = dot ? 0 : part * 10 + (*text - '0');
  }
  *version = code + part;
  return tuttiSuccess;
}

DEFINE(tuttiResult_t, GetVersion, (int *version)) {
  tuttiNcclRefusal = NULL;
  int own;
  tuttiResult_t result = tuttiGetVersion(version ? &own : NULL);
  return result == tuttiSuccess && version ? tuttiNcclReportedVersion(version) : result;
}

DEFINE(const char *, GetErrorString, (tuttiResult_t result)) {
  return tuttiGetErrorString(result);
}

DEFINE(const char *, GetLastError, (tuttiComm_t comm)) {
  return tuttiNcclRefusal ? tuttiNcclRefusal : tuttiGetLastError(comm);
}

/* ---- encryption ------------------------------------------------------------------------------ */

DEFINE(tuttiResult_t, SetEncryption, (const tuttiNcclEncryptionConfig *config)) {
  tuttiNcclRefusal = NULL;
  if (!config || config->magic != TUTTI_NCCL_CONFIG_MAGIC || config->size < sizeof *config)
    tuttiNcclRefusal = "ncclSetEncryption: config is NULL or not initialized; start it from "
                       "NCCL_ENCRYPTION_CONFIG_INITIALIZER";
  else if (config->mode != TUTTI_NCCL_ENCRYPTION_NONE && config->mode != TUTTI_NCCL_ENCRYPTION_PSK)
    tuttiNcclRefusal = "ncclSetEncryption: mode is none of ncclEncryptionMode_t";
  else if (config->mode == TUTTI_NCCL_ENCRYPTION_PSK && !config->psk)
    tuttiNcclRefusal = "ncclSetEncryption: mode is NCCL_ENCRYPTION_MODE_PSK, but psk is NULL";
  if (tuttiNcclRefusal) return tuttiInvalidArgument;
  return tuttiSetEncryption(config->mode == TUTTI_NCCL_ENCRYPTION_PSK ? config->psk : NULL);
}

/* tutti reads its settings again whenever a communicator is made. */
DEFINE(void, ResetDebugInit, (void)) {}

/* In no header of NCCL's, but in its library; it has no twin. */
EXPORT void ncclResetDebugInitInternal(void);
EXPORT void ncclResetDebugInitInternal(void) {}

/* ---- communicators --------------------------------------------------------------------------- */

/* The most that tutti takes: of channels that must be, of thread blocks that may be. */
enum { MOST_MIN_CTAS = 32, MOST_MAX_CTAS = 128 };

static int fewer(int ctas, int most) {
  return ctas > most ? most : ctas;
}

/* Reads the caller's config, of whatever version, into *own; NULL stays NULL. What the caller's
 * version did not know is undefined, even where the caller's size covers it: that is padding. What
 * is no config at all tutti will refuse. */
static tuttiConfig_t *readConfig(const tuttiNcclConfig *config, tuttiConfig_t *own) {
  tuttiNcclRefusal = NULL;
  if (!config) return NULL;
  *own = (tuttiConfig_t)TUTTI_CONFIG_INITIALIZER;
  if (config->magic != TUTTI_NCCL_CONFIG_MAGIC) own->magic = 0;
  if (config->size < TUTTI_NCCL_CONFIG_LEAST) own->size = 0;
  if (!own->magic || !own->size) return own;
  tuttiNcclConfig c = {.minCTAs = TUTTI_CONFIG_UNDEF_INT,
                       .maxCTAs = TUTTI_CONFIG_UNDEF_INT,
                       .trafficClass = TUTTI_CONFIG_UNDEF_INT,
                       .numRmaCtx = TUTTI_CONFIG_UNDEF_INT,
                       .numRmaSig = TUTTI_CONFIG_UNDEF_INT};
  memcpy(&c, config, config->size < sizeof c ? config->size : sizeof c);
  own->blocking = c.blocking;
  if (c.version >= 21700) {
    own->minCTAs = fewer(c.minCTAs, MOST_MIN_CTAS);
    own->maxCTAs = fewer(c.maxCTAs, MOST_MAX_CTAS);
    own->netName = c.netName;
  }
  if (c.version >= 22600) own->trafficClass = c.trafficClass;
  if (c.version >= 22700) own->commName = c.commName;
  if (c.version >= 22900) own->numRmaCtx = c.numRmaCtx;
  if (c.version >= 23100) own->numRmaSig = c.numRmaSig;
  return own;
}

/* A call with a parameter `config`; among the arguments it is `read`. */
#define CONFIGURED(name, parameters, arguments)                                                    \
  DEFINE(tuttiResult_t, name, parameters) {                                                        \
    tuttiConfig_t own, *read = readConfig(config, &own);                                           \
    return tutti##name arguments;                                                                  \
  }

FORWARD(GetUniqueId, (tuttiUniqueId * uniqueId), (uniqueId))
FORWARD(CommInitRank, (tuttiComm_t * comm, int nranks, tuttiUniqueId commId, int rank),
        (comm, nranks, commId, rank))
CONFIGURED(CommInitRankConfig,
           (tuttiComm_t * comm, int nranks, tuttiUniqueId commId, int rank,
            tuttiNcclConfig *config),
           (comm, nranks, commId, rank, read))
CONFIGURED(CommInitRankScalable,
           (tuttiComm_t * newcomm, int nranks, int myrank, int nId, tuttiUniqueId *commIds,
            tuttiNcclConfig *config),
           (newcomm, nranks, myrank, nId, commIds, read))
FORWARD(CommInitAll, (tuttiComm_t * comms, int ndev, const int *devlist), (comms, ndev, devlist))
CONFIGURED(CommSplit,
           (tuttiComm_t comm, int color, int key, tuttiComm_t *newcomm, tuttiNcclConfig *config),
           (comm, color, key, newcomm, read))
CONFIGURED(CommShrink,
           (tuttiComm_t comm, int *excludeRanksList, int excludeRanksCount, tuttiComm_t *newcomm,
            tuttiNcclConfig *config, int shrinkFlags),
           (comm, excludeRanksList, excludeRanksCount, newcomm, read, shrinkFlags))
FORWARD(CommGetUniqueId, (tuttiComm_t comm, tuttiUniqueId *uniqueId), (comm, uniqueId))
CONFIGURED(CommGrow,
           (tuttiComm_t comm, int nRanks, const tuttiUniqueId *uniqueId, int rank,
            tuttiComm_t *newcomm, tuttiNcclConfig *config),
           (comm, nRanks, uniqueId, rank, newcomm, read))
/* A rank of no colour has none after a split. */
FORWARD_IF(comm, CommRevoke, (tuttiComm_t comm, int revokeFlags), (comm, revokeFlags))
FORWARD_IF(comm, CommFinalize, (tuttiComm_t comm), (comm))
FORWARD_IF(comm, CommDestroy, (tuttiComm_t comm), (comm))
FORWARD_IF(comm, CommAbort, (tuttiComm_t comm), (comm))
FORWARD(CommGetAsyncError, (tuttiComm_t comm, tuttiResult_t *asyncError), (comm, asyncError))
FORWARD(CommCount, (tuttiComm_t comm, int *count), (comm, count))
FORWARD(CommCuDevice, (tuttiComm_t comm, int *device), (comm, device))
FORWARD(CommUserRank, (tuttiComm_t comm, int *rank), (comm, rank))

FORWARD(CommSuspend, (tuttiComm_t comm, int flags), (comm, flags))
FORWARD(CommResume, (tuttiComm_t comm), (comm))
FORWARD(CommMemStats, (tuttiComm_t comm, tuttiCommMemStat_t stat, uint64_t *value),
        (comm, stat, value))

/* What the caller's version did not know is not written. */
DEFINE(tuttiResult_t, CommQueryProperties, (tuttiComm_t comm, tuttiNcclCommProperties *props)) {
  tuttiCommProperties_t own = TUTTI_COMM_PROPERTIES_INITIALIZER;
  tuttiNcclRefusal = NULL;
  if (props && props->magic != TUTTI_NCCL_CONFIG_MAGIC) own.magic = 0;
  if (props && props->size < TUTTI_NCCL_PROPERTIES_LEAST) own.size = 0;
  int version = 0;
  tuttiResult_t result = tuttiCommQueryProperties(comm, props ? &own : NULL);
  if (result == tuttiSuccess) result = tuttiNcclReportedVersion(&version);
  if (!props || result != tuttiSuccess) return result;
  tuttiNcclCommProperties p = {.size = props->size,
                               .magic = props->magic,
                               .version = props->version,
                               .rank = own.rank,
                               .nRanks = own.nRanks,
                               .cudaDev = own.cudaDev,
                               .nvmlDev = -1,
                               .deviceApiSupport = own.deviceApiSupport != 0,
                               .nLsaTeams = own.nLsaTeams,
                               .hostRmaSupport = own.hostRmaSupport != 0,
                               .commHash = own.commHash,
                               .devCommRuntimeVersionSize = tuttiNcclDevCommBytes(version)};
  memcpy(props, &p, p.size < sizeof p ? p.size : sizeof p);
  return tuttiSuccess;
}

/* ---- memory ---------------------------------------------------------------------------------- */

FORWARD(MemAlloc, (void **ptr, size_t size), (ptr, size))
FORWARD(MemFree, (void *ptr), (ptr))
FORWARD(CommRegister, (tuttiComm_t comm, void *buff, size_t size, void **handle),
        (comm, buff, size, handle))
/* NCCL gives out NULL where it registers nothing, and takes it back. */
FORWARD_IF(handle, CommDeregister, (tuttiComm_t comm, void *handle), (comm, handle))
DEFINE(tuttiResult_t, CommWindowRegister,
       (tuttiComm_t comm, void *buff, size_t size, tuttiWindow_t *win, int winFlags)) {
  tuttiNcclRefusal = NULL;
  if (winFlags & (TUTTI_NCCL_WIN_GIN_ONLY | TUTTI_NCCL_WIN_CFT_COUNTED))
    return tuttiNcclRefuse(tuttiInvalidUsage,
                           "ncclCommWindowRegister: winFlags has NCCL_WIN_GIN_ONLY or "
                           "NCCL_WIN_CFT_COUNTED; kernels reach windows by loads and stores alone, "
                           "leave them out");
  return tuttiCommWindowRegister(comm, buff, size, win, winFlags);
}
FORWARD(CommWindowDeregister, (tuttiComm_t comm, tuttiWindow_t win), (comm, win))
FORWARD(WinGetUserPtr, (tuttiComm_t comm, tuttiWindow_t win, void **outUserPtr),
        (comm, win, outUserPtr))

/* ---- operations ------------------------------------------------------------------------------ */

FORWARD(RedOpCreatePreMulSum,
        (tuttiRedOp_t * op, void *scalar, tuttiDataType_t datatype,
         tuttiScalarResidence_t residence, tuttiComm_t comm),
        (op, scalar, datatype, residence, comm))
FORWARD(RedOpDestroy, (tuttiRedOp_t op, tuttiComm_t comm), (op, comm))

#define BUFFERS const void *sendbuff, void *recvbuff, size_t count, tuttiDataType_t datatype
#define BUFFER  void *buff, size_t count, tuttiDataType_t datatype
#define WHERE   tuttiComm_t comm, tuttiStream_t stream
/* These as arguments. */
#define BUFFERS_ sendbuff, recvbuff, count, datatype
#define BUFFER_  buff, count, datatype
#define WHERE_   comm, stream

FORWARD(AllReduce, (BUFFERS, tuttiRedOp_t op, WHERE), (BUFFERS_, op, WHERE_))
FORWARD(Broadcast, (BUFFERS, int root, WHERE), (BUFFERS_, root, WHERE_))
FORWARD(Bcast, (BUFFER, int root, WHERE), (BUFFER_, root, WHERE_))
FORWARD(Reduce, (BUFFERS, tuttiRedOp_t op, int root, WHERE), (BUFFERS_, op, root, WHERE_))
FORWARD(AllGather, (BUFFERS, WHERE), (BUFFERS_, WHERE_))
FORWARD(ReduceScatter, (BUFFERS, tuttiRedOp_t op, WHERE), (BUFFERS_, op, WHERE_))
/* In place, which tutti refuses, NCCL promises nothing but to return; programs, nccl-tests among
 * them, call it so. Messages in a group do the same. */
DEFINE(tuttiResult_t, AlltoAll, (BUFFERS, WHERE)) {
  static const unsigned char sizes[tuttiNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  int nranks;
  tuttiNcclRefusal = NULL;
  if (sendbuff != recvbuff || count == 0 || (unsigned)datatype >= tuttiNumTypes)
    return tuttiAlltoAll(sendbuff, recvbuff, count, datatype, comm, stream);
  tuttiResult_t result = tuttiCommCount(comm, &nranks), end;
  if (result != tuttiSuccess) return result;
  tuttiGroupStart();
  for (int r = 0; r < nranks && result == tuttiSuccess; r++) {
    void *block = (char *)recvbuff + count * sizes[datatype] * (size_t)r;
    result = tuttiSend(block, count, datatype, r, comm, stream);
    if (result == tuttiSuccess) result = tuttiRecv(block, count, datatype, r, comm, stream);
  }
  end = tuttiGroupEnd();
  return result == tuttiSuccess ? end : result;
}
FORWARD(Gather, (BUFFERS, int root, WHERE), (BUFFERS_, root, WHERE_))
FORWARD(Scatter, (BUFFERS, int root, WHERE), (BUFFERS_, root, WHERE_))
FORWARD(Send, (const BUFFER, int peer, WHERE), (BUFFER_, peer, WHERE_))
FORWARD(Recv, (BUFFER, int peer, WHERE), (BUFFER_, peer, WHERE_))

/* The same calls with options. */

/* Reads the caller's options of a collective into *own; NULL stays NULL. What is none tutti will
 * refuse. */
static const tuttiCollConfig_t *readCollConfig(const tuttiNcclCollConfig *config,
                                               tuttiCollConfig_t *own) {
  tuttiNcclRefusal = NULL;
  if (!config) return NULL;
  *own = (tuttiCollConfig_t)TUTTI_COLL_CONFIG_INITIALIZER;
  if (config->magic != TUTTI_NCCL_CONFIG_MAGIC) own->magic = 0;
  if (config->size < sizeof *config) own->size = 0;
  if (!own->magic || !own->size) return own;
  own->minCTAs = fewer(config->minCTAs, MOST_MAX_CTAS);
  own->maxCTAs = fewer(config->maxCTAs, MOST_MAX_CTAS);
  own->algSelection = config->algSelection;
  own->forceAlgSelection = config->forceAlgSelection;
  own->userProfilerTag = config->userProfilerTag;
  own->launchCompletionEvent = config->launchCompletionEvent;
  return own;
}

#define WITH_CONFIG(name, parameters, arguments)                                                   \
  DEFINE(tuttiResult_t, name, parameters) {                                                        \
    tuttiCollConfig_t own;                                                                         \
    const tuttiCollConfig_t *read = readCollConfig(config, &own);                                  \
    return tutti##name arguments;                                                                  \
  }
#define OPTIONS const tuttiNcclCollConfig *config

WITH_CONFIG(AllReduceConfig, (BUFFERS, tuttiRedOp_t op, WHERE, OPTIONS),
            (BUFFERS_, op, WHERE_, read))
WITH_CONFIG(BroadcastConfig, (BUFFERS, int root, WHERE, OPTIONS), (BUFFERS_, root, WHERE_, read))
WITH_CONFIG(ReduceConfig, (BUFFERS, tuttiRedOp_t op, int root, WHERE, OPTIONS),
            (BUFFERS_, op, root, WHERE_, read))
WITH_CONFIG(AllGatherConfig, (BUFFERS, WHERE, OPTIONS), (BUFFERS_, WHERE_, read))
WITH_CONFIG(ReduceScatterConfig, (BUFFERS, tuttiRedOp_t op, WHERE, OPTIONS),
            (BUFFERS_, op, WHERE_, read))
WITH_CONFIG(GatherConfig, (BUFFERS, int root, WHERE, OPTIONS), (BUFFERS_, root, WHERE_, read))
WITH_CONFIG(ScatterConfig, (BUFFERS, int root, WHERE, OPTIONS), (BUFFERS_, root, WHERE_, read))
/* In place it is messages, for which there is nothing to choose. */
DEFINE(tuttiResult_t, AlltoAllConfig, (BUFFERS, WHERE, OPTIONS)) {
  tuttiCollConfig_t own;
  const tuttiCollConfig_t *read = readCollConfig(config, &own);
  if (sendbuff == recvbuff && count > 0 && !read) return pncclAlltoAll(BUFFERS_, WHERE_);
  return tuttiAlltoAllConfig(BUFFERS_, WHERE_, read);
}

FORWARD(PutSignal,
        (const void *localbuff, size_t count, tuttiDataType_t datatype, int peer,
         tuttiWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags,
         WHERE),
        (localbuff, count, datatype, peer, peerWin, peerWinOffset, sigIdx, ctx, flags, WHERE_))
FORWARD(Signal, (int peer, int sigIdx, int ctx, unsigned int flags, WHERE),
        (peer, sigIdx, ctx, flags, WHERE_))
FORWARD(WaitSignal, (int nDesc, tuttiWaitSignalDesc_t *signalDescs, WHERE),
        (nDesc, signalDescs, WHERE_))

static _Thread_local int groups; /* that this thread is in */

DEFINE(tuttiResult_t, GroupStart, (void)) {
  tuttiNcclRefusal = NULL;
  tuttiResult_t result = tuttiGroupStart();
  groups += result == tuttiSuccess;
  return result;
}

static void leaveGroup(void) {
  if (groups > 0) groups--;
  tuttiNcclDevCommsTell(groups == 0);
}

DEFINE(tuttiResult_t, GroupEnd, (void)) {
  tuttiNcclRefusal = NULL;
  tuttiResult_t result = tuttiGroupEnd();
  leaveGroup();
  return result;
}

DEFINE(tuttiResult_t, GroupSimulateEnd, (tuttiNcclSimInfo * simInfo)) {
  tuttiNcclRefusal = NULL;
  tuttiSimInfo_t own = TUTTI_SIM_INFO_INITIALIZER;
  bool good = simInfo && simInfo->magic == TUTTI_NCCL_SIM_MAGIC && simInfo->size >= sizeof *simInfo;
  tuttiResult_t result = tuttiGroupSimulateEnd(good ? &own : NULL);
  leaveGroup();
  if (good && result == tuttiSuccess) simInfo->estimatedTime = own.estimatedTime;
  return result;
}

/* ---- parameters ------------------------------------------------------------------------------ */

FORWARD(ParamBind, (tuttiParamHandle_t * out, const char *key), (out, key))
FORWARD(ParamGetI8, (tuttiParamHandle_t h, int8_t *out), (h, out))
FORWARD(ParamGetI16, (tuttiParamHandle_t h, int16_t *out), (h, out))
FORWARD(ParamGetI32, (tuttiParamHandle_t h, int32_t *out), (h, out))
FORWARD(ParamGetI64, (tuttiParamHandle_t h, int64_t *out), (h, out))
FORWARD(ParamGetU8, (tuttiParamHandle_t h, uint8_t *out), (h, out))
FORWARD(ParamGetU16, (tuttiParamHandle_t h, uint16_t *out), (h, out))
FORWARD(ParamGetU32, (tuttiParamHandle_t h, uint32_t *out), (h, out))
FORWARD(ParamGetU64, (tuttiParamHandle_t h, uint64_t *out), (h, out))
FORWARD(ParamGetStr, (tuttiParamHandle_t h, const char **out), (h, out))
FORWARD(ParamGet, (tuttiParamHandle_t h, void *out, int maxLen, int *len), (h, out, maxLen, len))
FORWARD(ParamGetParameter, (const char *key, const char **value, int *valueLen),
        (key, value, valueLen))
FORWARD(ParamGetAllParameterKeys, (const char ***table, int *tableLen), (table, tableLen))

DEFINE(void, ParamDumpAll, (void)) {
  tuttiParamDumpAll();
}

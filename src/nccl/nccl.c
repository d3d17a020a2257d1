/* libnccl.so.2: the calls of NCCL's public API up to 2.32.3, in terms of tutti.h and nothing else.
 * Each call is there as pnccl<Name> and, weak, as nccl<Name>, so that a profiler can put itself in
 * between. What cannot be served, namely multicast and networks from inside kernels, returns
 * tuttiInvalidUsage and says what to use instead. */
#include "nccl/abi.h"
#include "nccl/device.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* Set by the last call of this thread if it was refused here; tutti does not know of it. */
static _Thread_local const char *refusal;

/* Defines pnccl<name> and its weak twin; the body follows. */
#define DEFINE(type, name, parameters)                                                             \
  EXPORT type pnccl##name parameters;                                                              \
  EXPORT __attribute__((weak, alias("pnccl" #name))) type nccl##name parameters;                   \
  EXPORT type pnccl##name parameters

/* A call that tutti has under the same name. */
#define FORWARD_IF(made, name, parameters, arguments)                                              \
  DEFINE(tuttiResult_t, name, parameters) {                                                        \
    refusal = NULL;                                                                                \
    return (made) ? tutti##name arguments : tuttiSuccess;                                          \
  }
#define FORWARD(...) FORWARD_IF(true, __VA_ARGS__)

/* A call that tutti has not; its arguments are not looked at. */
#define REFUSE(name, parameters, text)                                                             \
  DEFINE(tuttiResult_t, name, parameters) {                                                        \
    refusal = "nccl" #name ": " text;                                                              \
    return tuttiInvalidUsage;                                                                      \
  }

/* ---- version, errors ------------------------------------------------------------------------- */

/* TUTTI_NCCL_VERSION, which tutti has checked, as a code: 22809 of "2.28.9". */
static tuttiResult_t reportedVersion(int *version) {
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
  refusal = NULL;
  int own;
  tuttiResult_t result = tuttiGetVersion(version ? &own : NULL);
  return result == tuttiSuccess && version ? reportedVersion(version) : result;
}

DEFINE(const char *, GetErrorString, (tuttiResult_t result)) {
  return tuttiGetErrorString(result);
}

DEFINE(const char *, GetLastError, (tuttiComm_t comm)) {
  return refusal ? refusal : tuttiGetLastError(comm);
}

/* ---- encryption ------------------------------------------------------------------------------ */

DEFINE(tuttiResult_t, SetEncryption, (const tuttiNcclEncryptionConfig *config)) {
  refusal = NULL;
  if (!config || config->magic != TUTTI_NCCL_CONFIG_MAGIC || config->size < sizeof *config)
    refusal = "ncclSetEncryption: config is NULL or not initialized; start it from "
              "NCCL_ENCRYPTION_CONFIG_INITIALIZER";
  else if (config->mode != TUTTI_NCCL_ENCRYPTION_NONE && config->mode != TUTTI_NCCL_ENCRYPTION_PSK)
    refusal = "ncclSetEncryption: mode is none of ncclEncryptionMode_t";
  else if (config->mode == TUTTI_NCCL_ENCRYPTION_PSK && !config->psk)
    refusal = "ncclSetEncryption: mode is NCCL_ENCRYPTION_MODE_PSK, but psk is NULL";
  if (refusal) return tuttiInvalidArgument;
  return tuttiSetEncryption(config->mode == TUTTI_NCCL_ENCRYPTION_PSK ? config->psk : NULL);
}

/* tutti reads its settings again whenever a communicator is made. */
DEFINE(void, ResetDebugInit, (void)) {}

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
  refusal = NULL;
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
  refusal = NULL;
  if (props && props->magic != TUTTI_NCCL_CONFIG_MAGIC) own.magic = 0;
  if (props && props->size < TUTTI_NCCL_PROPERTIES_LEAST) own.size = 0;
  tuttiResult_t result = tuttiCommQueryProperties(comm, props ? &own : NULL);
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
                               .commHash = own.commHash};
  memcpy(props, &p, p.size < sizeof p ? p.size : sizeof p);
  return tuttiSuccess;
}

/* ---- memory ---------------------------------------------------------------------------------- */

FORWARD(MemAlloc, (void **ptr, size_t size), (ptr, size))
FORWARD(MemFree, (void *ptr), (ptr))
FORWARD(CommRegister, (tuttiComm_t comm, void *buff, size_t size, void **handle),
        (comm, buff, size, handle))
FORWARD(CommDeregister, (tuttiComm_t comm, void *handle), (comm, handle))
DEFINE(tuttiResult_t, CommWindowRegister,
       (tuttiComm_t comm, void *buff, size_t size, tuttiWindow_t *win, int winFlags)) {
  refusal = NULL;
  if (winFlags & (TUTTI_NCCL_WIN_GIN_ONLY | TUTTI_NCCL_WIN_CFT_COUNTED)) {
    refusal =
        "ncclCommWindowRegister: winFlags has NCCL_WIN_GIN_ONLY or NCCL_WIN_CFT_COUNTED; kernels "
        "reach windows by loads and stores alone, leave them out";
    return tuttiInvalidUsage;
  }
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
  refusal = NULL;
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
  refusal = NULL;
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

FORWARD(GroupStart, (void), ())
FORWARD(GroupEnd, (void), ())

DEFINE(tuttiResult_t, GroupSimulateEnd, (tuttiNcclSimInfo * simInfo)) {
  refusal = NULL;
  tuttiSimInfo_t own = TUTTI_SIM_INFO_INITIALIZER;
  bool good = simInfo && simInfo->magic == TUTTI_NCCL_SIM_MAGIC && simInfo->size >= sizeof *simInfo;
  tuttiResult_t result = tuttiGroupSimulateEnd(good ? &own : NULL);
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

/* ---- kernels of the user --------------------------------------------------------------------- */

static tuttiResult_t refuse(tuttiResult_t code, const char *text) {
  refusal = text;
  return code;
}

/* This rank's numbers, and the size of its local team. */
typedef struct {
  int rank, nRanks, lsaSize, teams;
} places;

static tuttiResult_t findPlaces(tuttiComm_t comm, places *out) {
  tuttiCommProperties_t p = TUTTI_COMM_PROPERTIES_INITIALIZER;
  refusal = NULL;
  tuttiResult_t result = tuttiCommQueryProperties(comm, &p);
  if (result == tuttiSuccess)
    *out = (places){.rank = p.rank,
                    .nRanks = p.nRanks,
                    .lsaSize = p.nRanks / p.nLsaTeams,
                    .teams = p.nLsaTeams};
  return result;
}

DEFINE(tuttiNcclTeam, TeamWorld, (tuttiComm_t comm)) {
  tuttiNcclTeam team = {0, 0, 1};
  refusal = NULL;
  if (tuttiCommCount(comm, &team.nRanks) == tuttiSuccess) tuttiCommUserRank(comm, &team.rank);
  return team;
}

DEFINE(tuttiNcclTeam, TeamLsa, (tuttiComm_t comm)) {
  places at = {.lsaSize = 1};
  (void)findPlaces(comm, &at);
  return (tuttiNcclTeam){at.lsaSize, at.rank % at.lsaSize, 1};
}

/* The ranks of this one's number in their local teams. */
DEFINE(tuttiNcclTeam, TeamRail, (tuttiComm_t comm)) {
  places at = {.lsaSize = 1};
  (void)findPlaces(comm, &at);
  return (tuttiNcclTeam){at.nRanks / at.lsaSize, at.rank / at.lsaSize, at.lsaSize};
}

DEFINE(int, TeamRankToWorld, (tuttiComm_t comm, tuttiNcclTeam team, int rank)) {
  return pncclTeamWorld(comm).rank + (rank - team.rank) * team.stride;
}

DEFINE(int, TeamRankToLsa, (tuttiComm_t comm, tuttiNcclTeam team, int rank)) {
  return pncclTeamLsa(comm).rank + (rank - team.rank) * team.stride;
}

DEFINE(tuttiResult_t, LsaBarrierCreateRequirement,
       (tuttiNcclTeam team, int barriers, tuttiNcclLsaBarrier *outHandle,
        tuttiNcclResource *outRequirement)) {
  refusal = NULL;
  if (!outHandle || !outRequirement || barriers < 0 || team.nRanks < 1)
    return refuse(tuttiInvalidArgument, "ncclLsaBarrierCreateRequirement: outHandle or outReq is "
                                        "NULL, nBarriers negative, or the team without ranks");
  outHandle->barriers = barriers;
  *outRequirement = (tuttiNcclResource){.bytes = tuttiNcclLsaBarrierBytes(team.nRanks, barriers),
                                        .align = sizeof(uint32_t),
                                        .outBuffer = &outHandle->buffer};
  return tuttiSuccess;
}

DEFINE(int, LLA2ACalcSlots, (int maxElements, int maxElementSize)) {
  refusal = NULL;
  return tuttiNcclLlA2aSlots(maxElements, maxElementSize);
}

DEFINE(tuttiResult_t, LLA2ACreateRequirement,
       (int blocks, int slots, tuttiNcclLlA2a *outHandle, tuttiNcclResource *outRequirement)) {
  refusal = NULL;
  if (!outHandle || !outRequirement || blocks < 0 || slots < 0)
    return refuse(tuttiInvalidArgument, "ncclLLA2ACreateRequirement: outHandle or outReq is NULL, "
                                        "or a number negative");
  outHandle->slots = (uint32_t)slots;
  *outRequirement = (tuttiNcclResource){.bytes = tuttiNcclLlA2aBytes(blocks, slots),
                                        .align = TUTTI_NCCL_A2A_SLOT,
                                        .outBuffer = &outHandle->buffer};
  return tuttiSuccess;
}

/* What no tutti has, whatever the communicator; NULL: nothing of it is asked for. */
static const char *unserved(const tuttiNcclDevWishes *w) {
  bool multimem = w->multimem, gin = w->gin || w->ginSignals > 0 || w->ginCounters > 0;
  for (const tuttiNcclResource *r = w->resources; r; r = r->next)
    gin |= r->ginSignals > 0 || r->ginCounters > 0;
  for (const tuttiNcclTeamWish *t = w->teams; t; t = t->next)
    multimem |= t->multimem;
  if (multimem)
    return "ncclDevCommCreate: the requirements have lsaMultimem or a team with multimem; tutti "
           "has "
           "no multicast, let kernels store to each rank";
  if (gin)
    return "ncclDevCommCreate: the requirements have ginForceEnable, GIN signals or counters; "
           "kernels reach GPUs by loads and stores alone, use the host's calls over a network";
  return NULL;
}

/* The magic number is odd, as no address of a requirement is. */
static const char *unknownVersion(const tuttiNcclDevWishes *w) {
  uint32_t second;
  memcpy(&second, (const char *)w + offsetof(tuttiNcclConfig, magic), sizeof second);
  if (second != TUTTI_NCCL_CONFIG_MAGIC) return NULL;
  return "ncclDevCommCreate: the program was compiled with nccl_device.h of 2.29 or later, whose "
         "device communicators have another layout; tutti serves that of 2.28, compile it with "
         "that";
}

static int larger(int a, int b) {
  return a > b ? a : b;
}

/* Shares the memory out, and says where everything is: what goes in front of the memory itself is
 * known before that is there. False: it cannot be. */
static bool shareOut(const tuttiNcclDevWishes *w, const places *at, tuttiNcclLayout *layout,
                     tuttiNcclDevComm *out) {
  int barriers = larger(w->barriers, w->lsaBarriers);
  uint64_t place =
      tuttiNcclPlace(layout, tuttiNcclLsaBarrierBytes(at->lsaSize, barriers), sizeof(uint32_t));
  bool good = place != UINT64_MAX;
  *out = (tuttiNcclDevComm){.rank = at->rank,
                            .nRanks = at->nRanks,
                            .nRanksReciprocal = tuttiNcclReciprocal((uint32_t)at->nRanks),
                            .lsaRank = at->rank % at->lsaSize,
                            .lsaSize = at->lsaSize,
                            .lsaSizeReciprocal = tuttiNcclReciprocal((uint32_t)at->lsaSize),
                            .lsaBarrier = {.buffer = (uint32_t)place, .barriers = barriers}};
  for (const tuttiNcclResource *r = w->resources; r && good; r = r->next) {
    place = tuttiNcclPlace(layout, r->bytes, r->align);
    good = place != UINT64_MAX;
    if (good && r->outBuffer) *r->outBuffer = (uint32_t)place;
  }
  return good;
}

/* NULL, or why these requirements cannot be met by this communicator. */
static const char *impossible(const tuttiNcclDevWishes *w, const places *at) {
  if (w->barriers < 0 || w->lsaBarriers < 0 || w->railBarriers < 0)
    return "ncclDevCommCreate: a number of barriers is negative";
  if ((w->railBarriers > 0 || w->barriers > 0) && at->teams > 1)
    return "ncclDevCommCreate: railGinBarrierCount or barrierCount is above 0, and the ranks are "
           "of "
           "several local teams; kernels reach none over a network, ask for lsaBarrierCount alone";
  return NULL;
}

/* Within a group the memory is made at its end, when the requirements may be gone. */
DEFINE(tuttiResult_t, DevCommCreate,
       (tuttiComm_t comm, const tuttiNcclDevWishes *requirements, tuttiNcclDevComm *out)) {
  tuttiNcclLayout layout = {0};
  places at;
  refusal = NULL;
  if (!requirements || !out)
    return refuse(tuttiInvalidArgument, "ncclDevCommCreate: reqs or outDevComm is NULL");
  const char *why = unknownVersion(requirements);
  if (!why) why = unserved(requirements);
  if (why) return refuse(tuttiInvalidUsage, why);
  tuttiResult_t result = findPlaces(comm, &at);
  if (result != tuttiSuccess) return result;
  why = impossible(requirements, &at);
  if (why) return refuse(tuttiInvalidUsage, why);
  if (!shareOut(requirements, &at, &layout, out))
    return refuse(tuttiInvalidArgument, "ncclDevCommCreate: a requirement's bufferSize is beyond "
                                        "any GPU, or its bufferAlign no power of two up to 2 MiB");
  return tuttiDevCommCreate(comm, layout.bytes, layout.tag, &out->made);
}

DEFINE(tuttiResult_t, DevCommDestroy, (tuttiComm_t comm, const tuttiNcclDevComm *devComm)) {
  refusal = NULL;
  if (!devComm) return refuse(tuttiInvalidArgument, "ncclDevCommDestroy: devComm is NULL");
  return tuttiDevCommDestroy(comm, devComm->made.window);
}

DEFINE(tuttiResult_t, GetPeerDevicePointer,
       (tuttiWindow_t win, size_t offset, int peer, void **out)) {
  refusal = NULL;
  return tuttiWinGetPeerPtr(win, offset, peer, out);
}

DEFINE(tuttiResult_t, GetLsaDevicePointer,
       (tuttiWindow_t win, size_t offset, int rank, void **out)) {
  tuttiComm_t comm;
  places at;
  refusal = NULL;
  tuttiResult_t result = tuttiWinGetComm(win, &comm);
  if (result == tuttiSuccess) result = findPlaces(comm, &at);
  if (result != tuttiSuccess) return result;
  if (rank < 0 || rank >= at.lsaSize)
    return refuse(tuttiInvalidArgument,
                  "ncclGetLsaDevicePointer: lsaRank is no rank of the local team (ncclTeamLsa)");
  return tuttiWinGetPeerPtr(win, offset, at.rank - at.rank % at.lsaSize + rank, out);
}

/* ---- what is not served ---------------------------------------------------------------------- */

#define NO_MULTIMEM                                                                                \
  "tutti has no multicast; let kernels store to each rank by itself (ncclGetLsaPointer), or use "  \
  "the collectives of the host API"
#define NO_NETWORK                                                                                 \
  "tutti's kernels reach no other rank over a network; use the collectives and messages of the "   \
  "host API on a stream"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
/* NOLINTBEGIN(misc-unused-parameters) */

REFUSE(GetLsaMultimemDevicePointer, (tuttiWindow_t win, size_t offset, void **out), NO_MULTIMEM)
REFUSE(GetMultimemDevicePointer,
       (tuttiWindow_t win, size_t offset, tuttiNcclMultimemHandle multimem, void **out),
       NO_MULTIMEM)
REFUSE(GetMultimemDeviceLeInfo, (tuttiWindow_t win, size_t offset, uint32_t *id, size_t *at),
       NO_MULTIMEM)
REFUSE(GetCftDeviceLeInfo,
       (tuttiWindow_t win, size_t offset, int peer, tuttiNcclTeam team, uint32_t *id, size_t *at),
       NO_NETWORK)
REFUSE(GetPeerDeviceLeInfo, (tuttiWindow_t win, size_t offset, int peer, uint32_t *id, size_t *at),
       NO_NETWORK)
REFUSE(GinBarrierCreateRequirement,
       (tuttiComm_t comm, tuttiNcclTeam team, int barriers, void *handle, tuttiNcclResource *out),
       NO_NETWORK)
REFUSE(CftBarrierCreateRequirement,
       (tuttiNcclTeam team, int barriers, void *handle, tuttiNcclResource *out), NO_NETWORK)
REFUSE(GinInboxA2ACreateRequirement, (void), NO_NETWORK)
REFUSE(GinOutboxCreateRequirement, (void), NO_NETWORK)
/* NOLINTEND(misc-unused-parameters) */
#pragma GCC diagnostic pop

/* These return no result: each rank is such a team of its own. */
DEFINE(tuttiNcclTeam, TeamCft, (tuttiComm_t comm, int mode)) {
  (void)comm, (void)mode;
  return (tuttiNcclTeam){1, 0, 1};
}

DEFINE(tuttiNcclTeam, TeamCftMultimem, (tuttiComm_t comm)) {
  return pncclTeamCft(comm, 0);
}

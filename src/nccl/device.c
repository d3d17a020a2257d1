/* The part of libnccl.so.2 that serves kernels of the program: teams, device communicators and
 * pointers into windows. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "nccl/abi.h"
#include "nccl/device.h"
#include "nccl/export.h"

/* ---- teams and requirements ------------------------------------------------------------------ */

/* This rank's numbers, and the size of its local team. */
typedef struct {
  int rank, nRanks, lsaSize, teams;
} places;

static tuttiResult_t findPlaces(tuttiComm_t comm, places *out) {
  tuttiCommProperties_t p = TUTTI_COMM_PROPERTIES_INITIALIZER;
  tuttiNcclRefusal = NULL;
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
  tuttiNcclRefusal = NULL;
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
  tuttiNcclRefusal = NULL;
  if (!outHandle || !outRequirement || barriers < 0 || team.nRanks < 1)
    return tuttiNcclRefuse(tuttiInvalidArgument,
                           "ncclLsaBarrierCreateRequirement: outHandle or outReq is "
                           "NULL, nBarriers negative, or the team without ranks");
  outHandle->barriers = barriers;
  *outRequirement = (tuttiNcclResource){.bytes = tuttiNcclLsaBarrierBytes(team.nRanks, barriers),
                                        .align = sizeof(uint32_t),
                                        .outBuffer = &outHandle->buffer};
  return tuttiSuccess;
}

DEFINE(int, LLA2ACalcSlots, (int maxElements, int maxElementSize)) {
  tuttiNcclRefusal = NULL;
  return tuttiNcclLlA2aSlots(maxElements, maxElementSize);
}

DEFINE(tuttiResult_t, LLA2ACreateRequirement,
       (int blocks, int slots, tuttiNcclLlA2a *outHandle, tuttiNcclResource *outRequirement)) {
  tuttiNcclRefusal = NULL;
  if (!outHandle || !outRequirement || blocks < 0 || slots < 0)
    return tuttiNcclRefuse(tuttiInvalidArgument,
                           "ncclLLA2ACreateRequirement: outHandle or outReq is NULL, "
                           "or a number negative");
  outHandle->slots = (uint32_t)slots;
  *outRequirement = (tuttiNcclResource){.bytes = tuttiNcclLlA2aBytes(blocks, slots),
                                        .align = TUTTI_NCCL_A2A_SLOT,
                                        .outBuffer = &outHandle->buffer};
  return tuttiSuccess;
}

/* ---- what a program asks for ----------------------------------------------------------------- */

/* Layouts of a device communicator, named for the version that began with it. */
typedef enum { layout28, layout29, layout30, layout31 } layoutKind;

#define LATEST 23300 /* a version from which on nothing is known */

static layoutKind layoutOf(unsigned version) {
  if (version < 22907) return layout28;
  if (version < 23000) return layout29;
  return version < 23100 ? layout30 : layout31;
}

size_t tuttiNcclDevCommBytes(int version) {
  static const size_t bytes[] = {sizeof(tuttiNcclDevComm), sizeof(tuttiNcclDevComm29),
                                 sizeof(tuttiNcclDevComm30), sizeof(tuttiNcclDevComm31)};
  return bytes[layoutOf((unsigned)version)];
}

/* Reads requirements of any version into *out, where version 0 is one before 2.29: the magic
 * number, which these had not, is odd, as no address of a requirement is. */
static tuttiResult_t readWishes(const void *requirements, tuttiNcclDevWishes29 *out) {
  *out = (tuttiNcclDevWishes29){0};
  uint32_t magic;
  size_t size;
  memcpy(&size, requirements, sizeof size);
  memcpy(&magic, (const char *)requirements + offsetof(tuttiNcclDevWishes29, magic), sizeof magic);
  if (magic != TUTTI_NCCL_CONFIG_MAGIC) {
    memcpy(&out->first, requirements, sizeof out->first);
    return tuttiSuccess;
  }
  if (size < TUTTI_NCCL_WISHES_LEAST)
    return tuttiNcclRefuse(tuttiInvalidArgument,
                           "ncclDevCommCreate: the size of reqs is below that of 2.29; start it "
                           "from NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER");
  memcpy(out, requirements, size < sizeof *out ? size : sizeof *out);
  if (out->version < 23000) out->worldBarriers = 0; /* that is padding, or not there */
  if (out->version < 23100) out->runtimeVersion = false, out->cftCaps = out->cftBarriers = 0;
  if (out->version >= LATEST)
    return tuttiNcclRefuse(tuttiInvalidUsage,
                           "ncclDevCommCreate: the program was compiled with nccl_device.h of 2.33 "
                           "or later, whose layouts tutti does not know; compile it with 2.32");
  int reported;
  if (!out->runtimeVersion) return tuttiSuccess;
  tuttiResult_t result = tuttiNcclReportedVersion(&reported);
  if (result == tuttiSuccess) out->version = (unsigned)reported;
  return result;
}

/* What no tutti has, whatever the communicator; NULL: nothing of it is asked for. */
static const char *unserved(const tuttiNcclDevWishes29 *w) {
  const tuttiNcclDevWishes *f = &w->first;
  bool multimem = f->multimem, gin = f->gin || f->ginSignals > 0 || f->ginCounters > 0;
  gin |= w->ginConnections != 0 || w->worldBarriers > 0 || w->cftCaps != 0 || w->cftBarriers > 0;
  for (const tuttiNcclResource *r = f->resources; r; r = r->next)
    gin |= r->ginSignals > 0 || r->ginCounters > 0;
  for (const tuttiNcclTeamWish *t = f->teams; t; t = t->next)
    multimem |= t->multimem;
  if (multimem)
    return "ncclDevCommCreate: the requirements have lsaMultimem or a team with multimem; tutti "
           "has no multicast, let kernels store to each rank";
  if (gin)
    return "ncclDevCommCreate: the requirements have ginForceEnable, a ginConnectionType, GIN "
           "signals, counters or barriers, or CFT; kernels reach GPUs by loads and stores alone, "
           "use the host's calls over a network";
  return NULL;
}

/* NULL, or why these requirements cannot be met by this communicator. */
static const char *impossible(const tuttiNcclDevWishes *w, const places *at) {
  if (w->barriers < 0 || w->lsaBarriers < 0 || w->railBarriers < 0)
    return "ncclDevCommCreate: a number of barriers is negative";
  if ((w->railBarriers > 0 || w->barriers > 0) && at->teams > 1)
    return "ncclDevCommCreate: railGinBarrierCount or barrierCount is above 0, and the ranks are "
           "of several local teams; kernels reach none over a network, ask for lsaBarrierCount "
           "alone";
  return NULL;
}

/* ---- what it gets ---------------------------------------------------------------------------- */

/* Of a device communicator, before its memory is there. */
typedef struct {
  layoutKind layout;
  unsigned version;
  tuttiNcclPlaces places;
  tuttiNcclLsaBarrier lsa, hybrid; /* of lsaBarrierCount and barrierCount */
} plan;

static bool placeBarriers(tuttiNcclLayout *layout, int ranks, int n, tuttiNcclLsaBarrier *out) {
  uint64_t place = tuttiNcclPlace(layout, tuttiNcclLsaBarrierBytes(ranks, n), sizeof(uint32_t));
  *out = (tuttiNcclLsaBarrier){.buffer = (uint32_t)place, .barriers = n};
  return place != UINT64_MAX;
}

static int larger(int a, int b) {
  return a > b ? a : b;
}

/* Shares the memory out. Up to 2.29 both kinds of barriers are the same ones. False: it cannot be
 * had. */
static bool shareOut(const tuttiNcclDevWishes *w, const places *at, tuttiNcclLayout *layout,
                     plan *out) {
  bool apart = out->layout >= layout30;
  out->places = (tuttiNcclPlaces){.rank = at->rank,
                                  .nRanks = at->nRanks,
                                  .nRanksReciprocal = tuttiNcclReciprocal((uint32_t)at->nRanks),
                                  .lsaRank = at->rank % at->lsaSize,
                                  .lsaSize = at->lsaSize,
                                  .lsaSizeReciprocal = tuttiNcclReciprocal((uint32_t)at->lsaSize)};
  int lsa = apart ? w->lsaBarriers : larger(w->barriers, w->lsaBarriers);
  bool good = placeBarriers(layout, at->lsaSize, lsa, &out->lsa);
  if (apart) good = good && placeBarriers(layout, at->lsaSize, w->barriers, &out->hybrid);
  for (const tuttiNcclResource *r = w->resources; r && good; r = r->next) {
    uint64_t place = tuttiNcclPlace(layout, r->bytes, r->align);
    good = place != UINT64_MAX;
    if (good && r->outBuffer) *r->outBuffer = (uint32_t)place;
  }
  return good;
}

/* A device communicator of 2.31 and later that waits for its memory: in a group, for its end. */
typedef struct late {
  struct late *next;
  tuttiDevComm_t made;
  tuttiNcclDevComm31 *out;
} late;

static _Thread_local late *lates;

void tuttiNcclDevCommsTell(bool outermost) {
  for (late **at = &lates; *at;) {
    late *l = *at;
    if (l->made.window) {
      l->out->windows = l->made.windows;
      l->out->window = l->made.window;
      l->out->lsaBase = l->made.seen.lsaBase;
      l->out->stride4G = l->made.seen.stride4G;
    }
    if (l->made.window || outermost) {
      *at = l->next;
      free(l);
    } else {
      at = &l->next;
    }
  }
}

static tuttiDevComm_t *addLate(tuttiNcclDevComm31 *out) {
  late *l = calloc(1, sizeof *l);
  if (!l) return NULL;
  l->out = out;
  l->next = lates;
  lates = l;
  return &l->made;
}

/* The last that was added, whose memory will not come. */
static void dropLate(void) {
  late *l = lates;
  lates = l->next;
  free(l);
}

/* Of the rail that its GIN barriers have no peers in. */
static void write31(const plan *p, tuttiNcclDevComm31 *out) {
  *out = (tuttiNcclDevComm31){.magic = TUTTI_NCCL_CONFIG_MAGIC,
                              .version = p->version,
                              .places = p->places,
                              .lsaBarrier = p->lsa,
                              .ginConnectionStride = p->places.lsaSize,
                              .ginContextStride = p->places.lsaSize,
                              .hybridLsaBarrier = p->hybrid,
                              .ginConnectionStrideReciprocal = p->places.lsaSizeReciprocal,
                              .cftSize = 1,
                              .cftMultimemSize = 1,
                              .cftId = UINT32_MAX,
                              .cftMultimemId = UINT32_MAX};
}

/* Writes all that is known so far, and returns where the rest is to be written; NULL: there is no
 * memory for that. */
static tuttiDevComm_t *tell(const plan *p, void *out) {
  const tuttiNcclDevComm first = {.places = p->places, .lsaBarrier = p->lsa};
  if (p->layout == layout31) {
    write31(p, out);
    return addLate(out);
  }
  if (p->layout == layout30) {
    tuttiNcclDevComm30 *c = out;
    *c = (tuttiNcclDevComm30){.magic = TUTTI_NCCL_CONFIG_MAGIC,
                              .version = p->version,
                              .places = p->places,
                              .lsaBarrier = p->lsa,
                              .ginConnectionsRailed = true,
                              .ginContextsRailed = true,
                              .hybridLsaBarrier = p->hybrid};
    return &c->made;
  }
  if (p->layout == layout29)
    *(tuttiNcclDevComm29 *)out = (tuttiNcclDevComm29){.first = first, .ginIsRailed = true};
  else
    *(tuttiNcclDevComm *)out = first;
  return &((tuttiNcclDevComm *)out)->made;
}

/* ---- device communicators -------------------------------------------------------------------- */

/* Within a group the memory is made at its end, when the requirements may be gone. */
DEFINE(tuttiResult_t, DevCommCreate, (tuttiComm_t comm, const void *requirements, void *out)) {
  tuttiNcclLayout layout = {0};
  tuttiNcclDevWishes29 wishes;
  places at;
  tuttiNcclRefusal = NULL;
  if (!requirements || !out)
    return tuttiNcclRefuse(tuttiInvalidArgument, "ncclDevCommCreate: reqs or outDevComm is NULL");
  tuttiResult_t result = readWishes(requirements, &wishes);
  if (result != tuttiSuccess) return result;
  const char *why = unserved(&wishes);
  if (why) return tuttiNcclRefuse(tuttiInvalidUsage, why);
  result = findPlaces(comm, &at);
  if (result != tuttiSuccess) return result;
  why = impossible(&wishes.first, &at);
  if (why) return tuttiNcclRefuse(tuttiInvalidUsage, why);
  plan p = {.layout = layoutOf(wishes.version), .version = wishes.version};
  if (!shareOut(&wishes.first, &at, &layout, &p))
    return tuttiNcclRefuse(tuttiInvalidArgument,
                           "ncclDevCommCreate: a requirement's bufferSize is beyond any GPU, or "
                           "its bufferAlign no power of two up to 2 MiB");
  tuttiDevComm_t *made = tell(&p, out);
  if (!made) return tuttiNcclRefuse(tuttiSystemError, "ncclDevCommCreate: there is no memory");
  result = tuttiDevCommCreate(comm, layout.bytes, layout.tag, made);
  if (result != tuttiSuccess && p.layout == layout31)
    dropLate();
  else
    tuttiNcclDevCommsTell(false); /* outside of a group it is there */
  return result;
}

/* Up to 2.29 it begins with a rank, which is not that number. */
DEFINE(tuttiResult_t, DevCommDestroy, (tuttiComm_t comm, const void *devComm)) {
  tuttiNcclRefusal = NULL;
  if (!devComm) return tuttiNcclRefuse(tuttiInvalidArgument, "ncclDevCommDestroy: devComm is NULL");
  const tuttiNcclDevComm31 *c = devComm;
  if (c->magic != TUTTI_NCCL_CONFIG_MAGIC)
    return tuttiDevCommDestroy(comm, ((const tuttiNcclDevComm *)devComm)->made.window);
  if (layoutOf(c->version) == layout30)
    return tuttiDevCommDestroy(comm, ((const tuttiNcclDevComm30 *)devComm)->made.window);
  return tuttiDevCommDestroy(comm, c->window);
}

DEFINE(tuttiResult_t, GetPeerDevicePointer,
       (tuttiWindow_t win, size_t offset, int peer, void **out)) {
  tuttiNcclRefusal = NULL;
  return tuttiWinGetPeerPtr(win, offset, peer, out);
}

DEFINE(tuttiResult_t, GetLsaDevicePointer,
       (tuttiWindow_t win, size_t offset, int rank, void **out)) {
  tuttiComm_t comm;
  places at;
  tuttiNcclRefusal = NULL;
  tuttiResult_t result = tuttiWinGetComm(win, &comm);
  if (result == tuttiSuccess) result = findPlaces(comm, &at);
  if (result != tuttiSuccess) return result;
  if (rank < 0 || rank >= at.lsaSize)
    return tuttiNcclRefuse(
        tuttiInvalidArgument,
        "ncclGetLsaDevicePointer: lsaRank is no rank of the local team (ncclTeamLsa)");
  return tuttiWinGetPeerPtr(win, offset, at.rank - at.rank % at.lsaSize + rank, out);
}

/* A program asks by this whether there is multicast: NULL says that there is none. */
DEFINE(tuttiResult_t, GetLsaMultimemDevicePointer, (tuttiWindow_t win, size_t offset, void **out)) {
  tuttiComm_t comm;
  (void)offset;
  tuttiNcclRefusal = NULL;
  if (!out)
    return tuttiNcclRefuse(tuttiInvalidArgument, "ncclGetLsaMultimemDevicePointer: outPtr is NULL");
  *out = NULL;
  return tuttiWinGetComm(win, &comm);
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

#include "transport/transport.h"

#include <string.h>

#include "base/error.h"
#include "base/os.h"
#include "transport/net.h"
#include "transport/segment.h"

const tuttiTransport *const tuttiTransports[] = {&tuttiTransportP2p, &tuttiTransportShm,
                                                 &tuttiTransportNet, NULL};
_Static_assert(sizeof tuttiTransports <= (TUTTI_PATH_TRANSPORTS + 1) * sizeof(void *),
               "a path has a reason for each");

/* Those of this process: see tuttiTransportsReplace. */
static const tuttiTransport *const *transports = tuttiTransports;

void tuttiTransportsReplace(const tuttiTransport *const *table) {
  transports = table ? table : tuttiTransports;
}

void tuttiTransportSelect(const tuttiPeer *a, const tuttiPeer *b, tuttiPath *path) {
  const tuttiPeer *low = a->rank < b->rank ? a : b, *high = low == a ? b : a;
  *path = (tuttiPath){0};
  for (int i = 0; transports[i] && !path->transport; i++)
    if (transports[i]->canConnect(low, high, path, &path->why[i])) path->transport = transports[i];
}

const char *tuttiPathText(const tuttiPath *path, const tuttiPeer *a, const tuttiPeer *b,
                          char buf[TUTTI_SENTENCE]) {
  char clause[TUTTI_SENTENCE];
  int own = 0;
  buf[0] = '\0';
  while (transports[own] && transports[own] != path->transport)
    own++;
  if (transports[own]) transports[own]->explain(path->why[own], path, a, b, buf, TUTTI_SENTENCE);
  for (int i = 0; i < own; i++) {
    transports[i]->explain(path->why[i], path, a, b, clause, sizeof clause);
    tuttiAppend(buf, TUTTI_SENTENCE, "%snot %s: %s", buf[0] ? "; " : "", transports[i]->name,
                clause);
  }
  return buf;
}

const char *tuttiPathVia(const tuttiPath *path, const tuttiPeer *a, const tuttiPeer *b,
                         char buf[TUTTI_VIA]) {
  int turned = tuttiPathTurned(a, b);
  const tuttiRail *rail = &path->rails[turned][0];
  snprintf(buf, TUTTI_VIA, "%s", path->via);
  if (path->network) tuttiAppend(buf, TUTTI_VIA, "/%d", rail->port[0]);
  if (path->nrails[turned] && tuttiRailGdr(rail)) tuttiAppend(buf, TUTTI_VIA, "/GDRDMA");
  return buf;
}

const tuttiRail *tuttiChannelRailFind(const tuttiCommView *v, int peer, int channel,
                                      tuttiDirection direction) {
  for (int i = 0; i < v->nchannelRails; i++) {
    const tuttiChannelRail *r = &v->channelRails[i];
    if (r->peer == peer && r->channel == channel && r->direction == direction) return &r->rail;
  }
  return NULL;
}

void tuttiPathOverRail(tuttiPath *path, const tuttiPeer *a, const tuttiPeer *b,
                       const tuttiRail *rail) {
  int turned = tuttiPathTurned(a, b);
  path->nrails[turned] = 1;
  path->rails[turned][0] = *rail;
}

bool tuttiSlotsShrink(tuttiCommView *v) {
  const size_t least = 1024;
  if (v->slotBytes < 2 * least) return false;
  v->slotBytes = v->slotBytes / 2 / TUTTI_LINE * TUTTI_LINE;
  return true;
}

tuttiResult_t tuttiMemExceeded(const tuttiCommView *v, size_t needed) {
  return TUTTI_FAIL(tuttiInvalidUsage,
                    "rank %d of %d needs %zu bytes of buffers, with the smallest slots and the "
                    "fewest channels, and TUTTI_MEM_LIMIT is %zu: raise it, lower "
                    "TUTTI_MIN_NCHANNELS, use fewer ranks, or on GPUs set TUTTI_P2P_DISABLE=1, "
                    "for buffers in host memory",
                    v->rank, v->nranks, needed, v->memLimit);
}

tuttiResult_t tuttiTransportsPrepare(tuttiCommView *v, tuttiPeer *mine) {
  for (int i = 0; transports[i]; i++)
    TUTTI_TRY(transports[i]->prepare(v, mine));
  return tuttiSuccess;
}

tuttiResult_t tuttiTransportsAttach(tuttiCommView *v) {
  for (int i = 0; transports[i]; i++)
    TUTTI_TRY(transports[i]->attach(v));
  return tuttiSuccess;
}

void tuttiTransportsDetach(tuttiCommView *v) {
  int n = 0;
  while (transports[n])
    n++;
  while (n-- > 0)
    transports[n]->detach(v);
}

void tuttiTransportsMeasure(tuttiCommView *v) {
  tuttiLocalMeasure(v);
  tuttiNetMeasure(v);
}

/* ---- peer records ---------------------------------------------------------------------------- */

/* Ends within its array and can be printed without harm. */
static bool cleanText(const char *text, size_t size) {
  for (size_t i = 0; i < size; i++) {
    if (text[i] == '\0') return true;
    if ((unsigned char)text[i] < ' ' || text[i] == 0x7f) return false;
  }
  return false;
}

static bool outside(int64_t value, int64_t least, int64_t most) {
  return value < least || value > most;
}

/* What can't be in a record of ranks that have met; NULL if nothing. */
static const char *findDamage(const tuttiPeer *peer, int rank, const tuttiPeer *mine) {
  bool samePid = peer->pid == mine->pid && peer->hostId == mine->hostId;
  const struct {
    bool wrong;
    const char *what;
  } checks[] = {
      {peer->version != mine->version, "its version"},
      {peer->rank != rank || peer->nranks != mine->nranks, "its rank"},
      {!cleanText(peer->host, sizeof peer->host), "its host name"},
      {!cleanText(peer->netName, sizeof peer->netName), "its network's name"},
      {!cleanText(peer->config, sizeof peer->config), "its settings"},
      {peer->cores < 1, "its number of cores"},
      {outside(peer->p2pDisabled, 0, 1) || outside(peer->shmDisabled, 0, 1),
       "its choice of transports"},
      {outside(peer->device, tuttiDeviceAuto, tuttiDeviceCuda), "its device"},
      {peer->cudaDevice < -1, "its CUDA device number"},
      {outside(peer->reaches, 0, 1) || outside(peer->nvlink, 0, 1) || outside(peer->ipc, 0, 1),
       "what its GPU can do"},
      {peer->pid <= 0, "its process number"},
      {!tuttiRemoteCostValid(&peer->fetch), "the time its copies take"},
      {peer->process == mine->process && !samePid, "its process identity"},
  };
  for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
    if (checks[i].wrong) return checks[i].what;
  return NULL;
}

/* Ranks on GPUs and ranks on host memory would plan apart: with device auto one gets what its host
 * has. */
static tuttiResult_t checkDevice(const tuttiPeer *peer, const tuttiPeer *mine) {
  if (peer->device == mine->device) return tuttiSuccess;
  const tuttiPeer *without = mine->device == tuttiDeviceCuda ? peer : mine;
  const tuttiPeer *with = without == mine ? peer : mine;
  return TUTTI_FAIL(tuttiInvalidUsage,
                    "rank %d on host %s has no GPU that CUDA can use, rank %d on host %s has one; "
                    "all ranks of a communicator need the same: look at the first host's driver "
                    "(`tutti doctor` there says what is wrong), or set TUTTI_DEVICE=host on all",
                    without->rank, without->host, with->rank, with->host);
}

tuttiResult_t tuttiPeerCheck(const tuttiPeer *peer, int expectedRank, const tuttiPeer *mine) {
  const char *damage = findDamage(peer, expectedRank, mine);
  if (damage)
    return TUTTI_FAIL(tuttiRemoteError,
                      "the record of rank %d, as rank %d on host %s got it, is damaged: %s; "
                      "something other than tutti, or a changed tutti of the same version, "
                      "answered",
                      expectedRank, mine->rank, mine->host, damage);
  size_t same = 0, item = 0; /* where the first setting that differs begins */
  for (; peer->config[same] && peer->config[same] == mine->config[same]; same++)
    if (same && mine->config[same] == ' ' && mine->config[same - 1] == ',') item = same + 1;
  if (peer->config[same] != mine->config[same])
    return TUTTI_FAIL(tuttiInvalidUsage,
                      "ranks differ in their settings: rank %d on host %s has \"%s\", rank %d on "
                      "host %s has \"%s\": compare `tutti env` on both hosts, and the "
                      "tuttiConfig_t of both calls",
                      mine->rank, mine->host, mine->config + item, peer->rank, peer->host,
                      peer->config + item);
  return checkDevice(peer, mine);
}

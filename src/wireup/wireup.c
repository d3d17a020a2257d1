#include "wireup/wireup.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/host.h"
#include "base/log.h"
#include "base/os.h"
#include "base/settings.h"
#include "topology/xml.h"
#include "wireup/plan.h"
#include "wireup/team.h"

/* ---- who this rank is ------------------------------------------------------------------------ */

/* Tells long lists apart that are cut where they are shown. */
static uint32_t settingHash(tuttiSettingId id) {
  const char *text = tuttiSettingString(id);
  return (uint32_t)tuttiHash(text, strlen(text));
}

static void describeSelf(const tuttiWireup *w, const tuttiCommView *v, tuttiPeer *p) {
  const tuttiWireupWishes *o = &w->wishes;
  p->cores = tuttiCpuCount();
  p->cache = tuttiCacheBytes();
  p->cpuSet = tuttiCpuSet();
  p->version = TUTTI_VERSION_CODE;
  p->rank = v->rank;
  p->nranks = v->nranks;
  p->device = o->device;
  p->cudaDevice = -1;
  p->pid = getpid();
  p->process = tuttiProcessId();
  p->hostId = tuttiHostId();
  p->p2pDisabled = (int32_t)tuttiSettingInt(TUTTI_SETTING_P2P_DISABLE);
  p->shmDisabled = (int32_t)tuttiSettingInt(TUTTI_SETTING_SHM_DISABLE);
  /* What ranks must agree on, so that they plan alike. */
  snprintf(p->config, sizeof p->config,
           "channels %d-%d, device %d, net '%s', buffsize %" PRId64
           ", algo '%.24s' (%08x), proto '%.16s' (%08x), "
           "p2p_disable %d, shm_disable %d, deterministic %d, nsocks %d, mem_limit %" PRId64 ", "
           "TUTTI_GRAPH_FILE with hash %08x (0: no file)",
           o->minChannels, o->maxChannels, (int)o->asked, v->netName,
           tuttiSettingInt(TUTTI_SETTING_BUFFSIZE), tuttiSettingString(TUTTI_SETTING_ALGO),
           settingHash(TUTTI_SETTING_ALGO), tuttiSettingString(TUTTI_SETTING_PROTO),
           settingHash(TUTTI_SETTING_PROTO), p->p2pDisabled, p->shmDisabled,
           (int)tuttiSettingInt(TUTTI_SETTING_DETERMINISM),
           (int)tuttiSettingInt(TUTTI_SETTING_SOCKET_NSOCKS),
           tuttiSettingInt(TUTTI_SETTING_MEM_LIMIT),
           w->graphText ? (uint32_t)tuttiHash(w->graphText, w->graphSize) : 0);
  snprintf(p->host, sizeof p->host, "%s", tuttiHostname());
}

/* What TUTTI_GRAPH_FILE is called in errors; returns buf. */
#define GRAPH_NAME 512
static const char *graphName(char buf[GRAPH_NAME]) {
  snprintf(buf, GRAPH_NAME, "%s=%s", tuttiSettingOrigin(TUTTI_SETTING_GRAPH_FILE),
           tuttiSettingString(TUTTI_SETTING_GRAPH_FILE));
  return buf;
}

tuttiResult_t tuttiWireupStart(tuttiWireup *w, const tuttiWireupWishes *wishes, tuttiCommView *v) {
  const char *file = tuttiSettingString(TUTTI_SETTING_GRAPH_FILE);
  w->wishes = *wishes;
  TUTTI_NEW(w->peers, v->nranks, "peer records", v->memory);
  TUTTI_NEW(w->paths, v->nranks, "paths to peers", v->memory);
  v->peers = w->peers;
  v->paths = w->paths;
  char name[GRAPH_NAME];
  if (file[0]) TUTTI_TRY(tuttiXmlLoad(file, graphName(name), &w->graphText, &w->graphSize));
  describeSelf(w, v, &w->peers[v->rank]);
  return tuttiSuccess;
}

_Static_assert(sizeof(tuttiPeer) + sizeof(tuttiPath) <= TUTTI_RANK_BYTES, "of each rank");

/* ---- who the others are ---------------------------------------------------------------------- */

tuttiResult_t tuttiWireupMeet(tuttiWireup *w, tuttiCommView *v, tuttiBootstrap *bootstrap,
                              tuttiWait wait) {
  tuttiPeer self = w->peers[v->rank];
  TUTTI_TRY(tuttiTransportsPrepare(v, &self));
  w->peers[v->rank] = self;
  bootstrap->lastGather = true;
  TUTTI_TRY(tuttiBootstrapAllGather(bootstrap, w->peers, sizeof *w->peers, wait));
  for (int r = 0; r < v->nranks; r++)
    TUTTI_TRY(tuttiPeerCheck(&w->peers[r], r, &self));
  return tuttiSuccess;
}

/* Read from TUTTI_GRAPH_FILE, or computed where there is none. */
static tuttiResult_t makeGraph(tuttiWireup *w, int rank, int nranks) {
  const tuttiWireupWishes *o = &w->wishes;
  TUTTI_FRESH(uint64_t, hosts, nranks, "hosts of ranks", NULL);
  int nhosts = 1;
  for (int r = 0; r < nranks; r++) {
    hosts[r] = w->peers[r].hostId;
    if (hosts[r] != hosts[0]) nhosts = 2; /* one or more */
  }
  TUTTI_TRY(tuttiRailsMake(w->peers, hosts, nranks, &w->rails));
  const tuttiGraphRails over = {.nrails = w->rails.nrails, .distance = w->rails.distance};
  int channels = tuttiWireupChannels(o->device, nhosts, o->minChannels, o->maxChannels);
  char name[GRAPH_NAME];
  const char *dump = tuttiSettingString(TUTTI_SETTING_GRAPH_DUMP_FILE);
  TUTTI_TRY(w->graphText
                ? tuttiGraphParseXml(w->graphText, w->graphSize, graphName(name), hosts, nranks,
                                     &w->graph)
                : tuttiGraphCreate(hosts, nranks, over.nrails ? &over : NULL, channels, &w->graph));
  tuttiFree(w->graphText);
  w->graphText = NULL;
  TUTTI_TRY(tuttiRailsOfChannels(&w->rails, w->peers, w->graph, rank));
  return dump[0] && rank == 0
             ? tuttiGraphWriteXml(w->graph, dump, tuttiSettingOrigin(TUTTI_SETTING_GRAPH_DUMP_FILE))
             : tuttiSuccess;
}

tuttiResult_t tuttiWireupFinish(tuttiWireup *w, tuttiCommView *v) {
  TUTTI_TRY(makeGraph(w, v->rank, v->nranks));
  v->channelRails = w->rails.channels;
  v->nchannelRails = w->rails.nchannels;
  tuttiPathsFill(w->peers, v->rank, v->nranks, w->paths);
  TUTTI_TRY(tuttiPxnMake(w->peers, &w->rails, v->rank, v->nranks, &w->pxn));
  v->pxn = w->pxn.to;
  v->lends = w->pxn.lends;
  v->lsaSize = tuttiTeamSizeOf(w->peers, v->nranks);
  TUTTI_TRY(tuttiSurveyMake(w->peers, w->paths, v->rank, w->graph, &w->survey));
  TUTTI_TRY(tuttiPlanInputMake(&w->survey, w->graph, w->wishes.minChannels, w->wishes.maxChannels,
                               v, &w->plan));
  w->graph->nchannels = v->nchannels;
  return tuttiSuccess;
}

/* ---- the log --------------------------------------------------------------------------------- */

static void logPath(const tuttiWireup *w, const tuttiCommView *v, int channel, int from, int to) {
  char gpus[64] = ", ", why[TUTTI_SENTENCE], via[TUTTI_VIA];
  const tuttiPeer *p = &w->peers[from], *q = &w->peers[to];
  bool near = p->busId && p->hostId == q->hostId, sending = from == v->rank;
  int peer = sending ? to : from;
  const tuttiRail *rail = tuttiChannelRailFind(v, peer, channel, sending ? TUTTI_SEND : TUTTI_RECV);
  tuttiPath own = w->paths[peer], *path = &own;
  if (!path->transport) return;
  if (rail) tuttiPathOverRail(path, p, q, rail);
  tuttiTopologyPath(v->topology, p->busId, q->busId, gpus + 2, sizeof gpus - 2);
  TUTTI_INFO(INIT, "Channel %02d/%02d : %d[%d] -> %d[%d] [%s] via %s%s (%s)", channel,
             w->graph->nchannels, from, p->cudaDevice, to, q->cudaDevice,
             sending ? "send" : "receive", tuttiPathVia(path, p, q, via), near ? gpus : "",
             tuttiPathText(path, p, q, why));
}

void tuttiWireupLog(const tuttiWireup *w, const tuttiCommView *v) {
  if (!tuttiLogEnabled(TUTTI_LOG_INFO, TUTTI_SUBSYS(INIT))) return;
  const tuttiGraph *g = w->graph;
  tuttiGraphLog(g, v->rank);
  for (int ch = 0; ch < g->nchannels; ch++) {
    const int32_t *ring = g->ring + (size_t)ch * (size_t)v->nranks;
    int at = g->position[(size_t)ch * (size_t)v->nranks + (size_t)v->rank];
    logPath(w, v, ch, ring[(at + v->nranks - 1) % v->nranks], v->rank);
    logPath(w, v, ch, v->rank, ring[(at + 1) % v->nranks]);
  }
}

void tuttiWireupFree(tuttiWireup *w) {
  tuttiGraphFree(w->graph);
  tuttiRailsFree(&w->rails);
  tuttiPxnFree(&w->pxn);
  tuttiFree(w->graphText);
  tuttiFree(w->paths);
  tuttiFree(w->peers);
  *w = (tuttiWireup){0};
}

#include "base/error.h"
#include "base/mem.h"
#include "base/settings.h"
#include "topo.h"
#include "wireup/wireup.h"

/* The peers of rank v->rank, from its own record: what tells hosts and processes apart differs. */
static void copyPeers(tuttiPeer *peers, const uint64_t *hosts, const tuttiCommView *v) {
  const tuttiPeer self = peers[v->rank];
  for (int r = 0; r < v->nranks; r++) {
    if (r == v->rank) continue;
    peers[r] = self;
    peers[r].rank = r;
    peers[r].pid = self.pid + r - v->rank;
    peers[r].process = self.process + (uint64_t)(r - v->rank);
    if (hosts[r] == hosts[v->rank]) continue;
    peers[r].hostId = self.hostId + ((hosts[r] - hosts[v->rank]) << 32);
    snprintf(peers[r].host, sizeof peers[r].host, "host%d", (int)hosts[r]);
  }
}

static void printPath(const tuttiPath *path, const tuttiPeer *from, const tuttiPeer *to) {
  char via[TUTTI_VIA], why[TUTTI_SENTENCE];
  tuttiPathText(path, from, to, why);
  if (!path->transport)
    printf("Path %d -> %d : none (%s)\n", from->rank, to->rank, why);
  else
    printf("Path %d -> %d : %s, %.3g us, %.3g GB/s (%s)\n", from->rank, to->rank,
           tuttiPathVia(path, from, to, via), (double)path->latencyUs, (double)path->bandwidthGBs,
           why);
}

static void printWorst(const char *where, float latencyUs, float bandwidthGBs) {
  if (bandwidthGBs > 0)
    printf("Worst path %s : %.3g us, %.3g GB/s\n", where, (double)latencyUs, (double)bandwidthGBs);
}

/* Fills the table of v->rank and prints it; what cannot be connected is part of it, then an error.
 */
static tuttiResult_t makeAndPrint(tuttiWireup *w, tuttiCommView *v, const tuttiGraph *g,
                                  const uint64_t *hosts) {
  const tuttiWireupWishes wishes = {.asked = tuttiDeviceHost, .device = tuttiDeviceHost};
  TUTTI_TRY(tuttiWireupStart(w, &wishes, v));
  TUTTI_TRY(tuttiTransportsPrepare(v, &w->peers[v->rank]));
  copyPeers(w->peers, hosts, v);
  tuttiPathsFill(w->peers, v->rank, v->nranks, w->paths);
  for (int r = 0; r < v->nranks; r++)
    if (r != v->rank) printPath(&w->paths[r], &w->peers[v->rank], &w->peers[r]);
  TUTTI_TRY(tuttiSurveyMake(w->peers, w->paths, v->rank, g, &w->survey));
  printWorst("inside a host", w->survey.intraLatencyUs, w->survey.intraGBs);
  printWorst("between hosts", w->survey.interLatencyUs, w->survey.interGBs);
  return tuttiSuccess;
}

tuttiResult_t tuttiTopoPaths(const tuttiGraph *g, const uint64_t *hosts, int rank) {
  tuttiMemAccount memory = {0};
  tuttiWireup w = {0};
  TUTTI_TRY(tuttiSettingsLoad());
  tuttiCommView v = {.rank = rank,
                     .nranks = g->nranks,
                     .memory = &memory,
                     .netName = tuttiSettingString(TUTTI_SETTING_NET)};
  TUTTI_TRY(tuttiTopologyHost(true, &v.topology));
  tuttiResult_t result = makeAndPrint(&w, &v, g, hosts);
  tuttiTransportsDetach(&v);
  tuttiWireupFree(&w);
  return result;
}

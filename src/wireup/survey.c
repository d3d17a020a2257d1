#include "wireup/survey.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/mem.h"
#include "kernels/allpairs.h"
#include "wireup/paths.h"

typedef struct {
  const tuttiPeer *peers;
  const tuttiPath *paths; /* of `rank` */
  int rank;
} table;

/* The row of two ranks: this rank's own where it is one of them; else it is made, in *room. */
static const tuttiPath *pathOf(const table *t, int a, int b, tuttiPath *room) {
  if (a == t->rank || b == t->rank) return &t->paths[a == t->rank ? b : a];
  tuttiTransportSelect(&t->peers[a], &t->peers[b], room);
  return room;
}

/* Payloads go from GPU to GPU, both ways. */
static bool byGdr(const tuttiPath *path) {
  bool all = path->network;
  for (int side = 0; side < 2; side++)
    all &= path->nrails[side] > 0 && tuttiRailGdr(&path->rails[side][0]);
  return all;
}

static tuttiResult_t surveyPair(const table *t, int a, int b, tuttiSurvey *s) {
  tuttiPath room;
  if (a == b) return tuttiSuccess;
  const tuttiPath *path = pathOf(t, a, b, &room);
  if (!path->transport) return tuttiPathMissing(path, &t->peers[a], &t->peers[b]);
  bool inside = t->peers[a].hostId == t->peers[b].hostId;
  float *latency = inside ? &s->intraLatencyUs : &s->interLatencyUs;
  float *bandwidth = inside ? &s->intraGBs : &s->interGBs;
  if (path->latencyUs > *latency) *latency = path->latencyUs;
  if (*bandwidth == 0 || path->bandwidthGBs < *bandwidth) *bandwidth = path->bandwidthGBs;
  s->sharedFifos &= path->sharedFifos;
  s->direct &= path->direct;
  s->fetches &= path->fetches;
  s->network |= path->network;
  s->apart &= !inside || path->network;
  s->throughHost |= inside && !byGdr(path);
  s->oneFlow &= inside || path->oneFlow;
  return tuttiSuccess;
}

typedef struct {
  const tuttiPeer *peer;
} place;

/* What is measured beside other work is too much rather than too little. */
static void surveyFetches(const tuttiPeer *peers, int nranks, tuttiSurvey *s) {
  s->fetch = peers[0].fetch;
  for (int r = 1; r < nranks; r++) {
    const tuttiRemoteCost *cost = &peers[r].fetch;
    if (cost->call < s->fetch.call) s->fetch.call = cost->call;
    if (cost->kib < s->fetch.kib) s->fetch.kib = cost->kib;
    if (cost->store < s->fetch.store) s->fetch.store = cost->store;
  }
}

/* Ranks that share cores stand side by side. */
static int byCores(const void *a, const void *b) {
  const tuttiPeer *p = ((const place *)a)->peer, *q = ((const place *)b)->peer;
  if (p->hostId != q->hostId) return p->hostId < q->hostId ? -1 : 1;
  return (p->cpuSet > q->cpuSet) - (p->cpuSet < q->cpuSet);
}

/* Are there more ranks than cores among those that share these? */
static tuttiResult_t surveyCores(const tuttiPeer *peers, int nranks, tuttiSurvey *s) {
  TUTTI_FRESH(place, sorted, nranks, "ranks by their cores", NULL);
  for (int r = 0; r < nranks; r++)
    sorted[r].peer = &peers[r];
  qsort(sorted, (size_t)nranks, sizeof *sorted, byCores);
  int alike = 0;
  for (int r = 0; r < nranks; r++) {
    alike = r > 0 && byCores(&sorted[r - 1], &sorted[r]) == 0 ? alike + 1 : 1;
    bool last = r + 1 == nranks || byCores(&sorted[r], &sorted[r + 1]) != 0;
    for (int k = 0; last && k < alike; k++)
      s->oversubscribed |= alike > sorted[r - k].peer->cores;
  }
  return tuttiSuccess;
}

static tuttiResult_t surveyHosts(const tuttiPeer *peers, const tuttiGraph *graph, tuttiSurvey *s) {
  TUTTI_FRESH(int, ranks, graph->nhosts, "ranks per host", NULL);
  for (int r = 0; r < graph->nranks; r++) {
    if (++ranks[graph->host[r]] > s->maxRanksPerHost) s->maxRanksPerHost = ranks[graph->host[r]];
    uint64_t cache = peers[r].cache;
    if (cache != 0 && (s->cache == 0 || cache < s->cache)) s->cache = cache;
  }
  return surveyCores(peers, graph->nranks, s);
}

static void surveyGpuPair(const table *t, int a, int b, tuttiSurvey *s) {
  tuttiPath room;
  const tuttiPeer *p = &t->peers[a], *q = &t->peers[b];
  const tuttiPath *path = pathOf(t, a, b, &room);
  s->stores &= path->stores;
  s->staged &= path->staged;
  s->linked &= p->busId == q->busId || (p->nvlink && q->nvlink);
}

static void surveyGpus(const table *t, tuttiSurvey *s) {
  s->stores = s->staged = s->linked = true;
  for (int a = 0; a < s->nranks; a++) {
    const tuttiPeer *p = &t->peers[a];
    int sharers = 0;
    for (int b = 0; b < s->nranks; b++)
      sharers += p->hostId == t->peers[b].hostId && p->busId == t->peers[b].busId;
    for (int b = 0; b < a; b++)
      surveyGpuPair(t, a, b, s);
    if (sharers > s->sharers) s->sharers = sharers;
    if (p->blocks > 0 && (s->blocks == 0 || p->blocks < s->blocks)) s->blocks = p->blocks;
  }
}

tuttiResult_t tuttiSurveyMake(const tuttiPeer *peers, const tuttiPath *paths, int rank,
                              const tuttiGraph *graph, tuttiSurvey *out) {
  table t = {.peers = peers, .paths = paths, .rank = rank};
  int n = graph->nranks;
  tuttiSurvey s = {.nranks = n,
                   .nhosts = graph->nhosts,
                   .sharedFifos = true,
                   .direct = true,
                   .fetches = true,
                   .oneFlow = true,
                   .apart = graph->nhosts == n || (peers[0].p2pDisabled && peers[0].shmDisabled),
                   .gpu = peers[rank].device == tuttiDeviceCuda};
  for (int i = 0; i < n; i++)
    TUTTI_TRY(surveyPair(&t, 0, i, &s));
  for (int c = 0; c < (graph->nrails ? graph->nchannels : 1); c++) {
    const int32_t *ring = graph->ring + (size_t)c * (size_t)n;
    for (int i = 0; i < n; i++)
      TUTTI_TRY(surveyPair(&t, ring[i], ring[(i + 1) % n], &s));
  }
  TUTTI_TRY(surveyHosts(peers, graph, &s));
  if (s.fetches) surveyFetches(peers, n, &s);
  if (s.gpu && n <= TUTTI_ALLPAIRS_MAX) surveyGpus(&t, &s);
  *out = s;
  return tuttiSuccess;
}

/* tutti topo --gpus and --traffic: rails, and how collectives load the NICs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "collectives/planner.h"
#include "collectives/traffic.h"
#include "topo.h"
#include "transport/net.h"
#include "wireup/plan.h"

#define CHUNK ((uint64_t)1 << 20) /* elements; larger messages carry the same bytes */

tuttiResult_t tuttiTopoRailed(const tuttiTopology *t, const uint64_t *hosts, int nranks,
                              tuttiTopoRails *out) {
  int gpu = 0, gpus = tuttiTopoGpus(t);
  TUTTI_NEW(out->peers, nranks, "peer records", NULL);
  for (int r = 0; r < nranks; r++) {
    gpu = r > 0 && hosts[r] == hosts[r - 1] ? gpu + 1 : 0;
    if (gpu == gpus)
      return TUTTI_FAIL(tuttiInvalidArgument,
                        "host %d has more ranks than the topology has GPUs, which are %d",
                        (int)hosts[r], gpus);
    tuttiTopoPeer(t, (int)hosts[r], gpu, r, nranks, &out->peers[r]);
  }
  TUTTI_TRY(tuttiRailsMake(out->peers, hosts, nranks, &out->rails));
  if (out->rails.nrails == 0)
    return TUTTI_FAIL(tuttiInvalidUsage,
                      "there are no rails: it takes several hosts, at least one of them with "
                      "several ranks, NICs that are up and on PCI, and a tutti built with NET/IB");
  return tuttiSuccess;
}

void tuttiTopoRailsFree(tuttiTopoRails *r) {
  tuttiRailsFree(&r->rails);
  tuttiFree(r->peers);
  *r = (tuttiTopoRails){0};
}

/* The name of the NIC by which a rank reaches the rail; NULL: by none. */
static const char *nicOf(const tuttiTopoRails *r, int rank, int rail, tuttiNetPort *room) {
  tuttiNetPort ports[TUTTI_PATH_RAILS];
  int port = r->rails.port[(size_t)rank * (size_t)r->rails.nrails + (size_t)rail];
  int n = tuttiNetFind(r->peers[rank].netName)->ports(&r->peers[rank], ports);
  if (port >= n) return NULL;
  *room = ports[port];
  room->name[strcspn(room->name, ":")] = '\0';
  return room->name;
}

void tuttiTopoPrintRails(const tuttiTopoRails *r, const tuttiGraph *g) {
  tuttiNetPort room;
  for (int k = 0; k < r->rails.nrails; k++)
    for (int rank = 0, host = 0; rank < g->nranks; rank++) {
      if (g->host[rank] != host) continue;
      const char *nic = nicOf(r, rank, k, &room);
      printf("Rail %02d : host %d %s\n", k, host++, nic ? nic : "none");
    }
}

/* ---- traffic --------------------------------------------------------------------------------- */

typedef struct {
  char name[24];
  double sent, received;
} nicLoad;

typedef struct {
  const tuttiTopoRails *rails;
  const tuttiGraph *g;
  nicLoad (*nics)[TUTTI_PATH_RAILS + 1]; /* [nhosts], up to one without name */
} loads;

static nicLoad *loadOf(loads *l, int rank, int rail) {
  tuttiNetPort room;
  const char *name = rail >= 0 ? nicOf(l->rails, rank, rail, &room) : NULL;
  nicLoad *at = l->nics[l->g->host[rank]];
  if (!name) name = "(any)"; /* connections that choose no rail */
  while (at->name[0] && strcmp(at->name, name) != 0)
    at++;
  snprintf(at->name, sizeof at->name, "%s", name);
  return at;
}

static void sent(void *context, int channel, int from, int to, uint64_t bytes) {
  loads *l = context;
  if (l->g->host[from] == l->g->host[to]) return;
  int rail = tuttiGraphRail(l->g, channel, from, to);
  loadOf(l, from, rail)->sent += (double)bytes;
  loadOf(l, to, rail)->received += (double)bytes;
}

/* The least that the busiest host must send or receive, whatever the algorithm. */
static double leastBytes(const tuttiGraph *g, int coll, double bytes) {
  int fewest = g->nranks;
  double pairs = 0; /* of a rank of a host and one elsewhere */
  for (int h = 0; h < g->nhosts; h++) {
    int ranks = 0;
    for (int r = 0; r < g->nranks; r++)
      ranks += g->host[r] == h;
    if (ranks < fewest) fewest = ranks;
    pairs = fmax(pairs, (double)ranks * (g->nranks - ranks));
  }
  if (coll == tuttiCollAllReduce) return 2.0 * (g->nhosts - 1) / g->nhosts * bytes;
  if (coll == tuttiCollAlltoAll) return pairs / g->nranks * bytes;
  return (double)(g->nranks - fewest) / g->nranks * bytes;
}

static void printLoads(const loads *l, const tuttiTraffic *t, double bytes) {
  double busiest = 0, total = 0, host = 0;
  int nnics = 0;
  printf("Traffic of %s, %s, %.6g MiB, %d channels; MiB sent/received by each NIC:\n",
         tuttiCollName(t->coll), tuttiAlgoNames[t->algo], bytes / 1048576, t->nchannels);
  for (int h = 0; h < l->g->nhosts; h++) {
    double out = 0, in = 0;
    printf("  host %d :", h);
    for (const nicLoad *nic = l->nics[h]; nic->name[0]; nic++, nnics++) {
      printf(" %s %.2f/%.2f", nic->name, nic->sent / 1048576, nic->received / 1048576);
      busiest = fmax(busiest, fmax(nic->sent, nic->received));
      total += (nic->sent + nic->received) / 2;
      out += nic->sent;
      in += nic->received;
    }
    putchar('\n');
    host = fmax(host, fmax(in, out));
  }
  printf("  the busiest NIC has %.3f of the mean; the busiest host %.3f of the least possible\n",
         busiest / (total / nnics), host / leastBytes(l->g, t->coll, bytes));
}

tuttiResult_t tuttiTopoTraffic(const tuttiTopoRails *r, const tuttiGraph *g, size_t bytes) {
  static const int colls[] = {tuttiCollAllReduce, tuttiCollAllGather, tuttiCollReduceScatter,
                              tuttiCollAlltoAll};
  loads l = {.rails = r, .g = g};
  for (int i = 0; i < 4 * tuttiAlgoCount; i++) {
    bool perRank = colls[i / tuttiAlgoCount] != tuttiCollAllReduce;
    uint64_t all = bytes / 4 / (uint64_t)g->nranks * (uint64_t)g->nranks;
    tuttiTraffic t = {.coll = colls[i / tuttiAlgoCount],
                      .algo = i % tuttiAlgoCount,
                      .nchannels = g->nchannels,
                      .type = tuttiFloat32,
                      .count = perRank ? all / (uint64_t)g->nranks : all,
                      .chunk = CHUNK};
    if (t.algo == tuttiAlgoDirect || !tuttiSchedulesOnGpus(t.algo)) continue;
    if (!tuttiScheduleExists(t.coll, t.algo)) continue;
    if (t.algo == tuttiAlgoHierarchical && !tuttiGraphIsGrid(g)) continue;
    TUTTI_NEW(l.nics, g->nhosts, "loads of NICs", NULL);
    tuttiTrafficCount(g, &t, sent, &l);
    printLoads(&l, &t, (double)all * 4);
    tuttiFree(l.nics);
  }
  return tuttiSuccess;
}

#include "wireup/rails.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "transport/net.h"

_Static_assert(TUTTI_GRAPH_RAILS >= TUTTI_PATH_RAILS, "each port may be a rail");

/* One rail of a host, by a rank that has it and the port in that rank's record. */
typedef struct {
  char name[sizeof((tuttiNetPort *)0)->name];
  int32_t rank;
  uint8_t port;
} hostRail;

typedef struct {
  int n;
  hostRail rails[TUTTI_GRAPH_RAILS];
} hostRails;

static int portsOf(const tuttiPeer *peer, tuttiNetPort ports[TUTTI_PATH_RAILS]) {
  const tuttiNet *net = tuttiNetFind(peer->netName);
  return net ? net->ports(peer, ports) : 0;
}

/* As tuttiNet has it; ports of two networks do not meet. */
static int join(const tuttiPeer *a, int portOfA, const tuttiPeer *b, int portOfB, tuttiRail *rail) {
  const tuttiNet *net = tuttiNetFind(a->netName);
  return net == tuttiNetFind(b->netName) ? net->join(a, portOfA, b, portOfB, rail) : 0;
}

/* Number of the rail with this name, or -1. */
static int findRail(const hostRails *h, const char *name) {
  for (int i = 0; i < h->n; i++)
    if (strcmp(h->rails[i].name, name) == 0) return i;
  return -1;
}

/* Forgets what is slow. */
static void keepFast(tuttiNetPort *ports, int n) {
  uint32_t fastest = 0;
  for (int i = 0; i < n; i++)
    if (ports[i].usable && ports[i].megabits > fastest) fastest = ports[i].megabits;
  for (int i = 0; i < n; i++) {
    bool fast = ports[i].megabits >= fastest / TUTTI_NET_SLOWEST;
    ports[i].usable &= fast;
    ports[i].later &= fast;
  }
}

/* How far the nearest of the ports is that are usable, now or later. */
static int nearestOf(const tuttiNetPort *ports, int n, bool later) {
  int nearest = TUTTI_RAIL_NONE;
  for (int i = 0; i < n; i++)
    if ((later ? ports[i].later : ports[i].usable) && ports[i].distance < nearest)
      nearest = ports[i].distance;
  return nearest;
}

/* Adds the ports that are nearest to the rank. One that is down is among them where the rank would
 * be left with farther ones: the graph is for good, a cable or a switch may be back in a minute.
 * Until then its connections use other ports. Where another is as near, they use that for good, as
 * many ports never have a cable. */
static void addPorts(const tuttiPeer *peer, hostRails *h) {
  tuttiNetPort ports[TUTTI_PATH_RAILS];
  int n = portsOf(peer, ports);
  keepFast(ports, n);
  int nearest = nearestOf(ports, n, false);
  bool later = nearestOf(ports, n, true) < nearest;
  if (later) nearest = nearestOf(ports, n, true);
  for (int i = 0; i < n; i++) {
    bool wanted = (later ? ports[i].later : ports[i].usable) && ports[i].distance == nearest;
    if (!wanted || h->n == TUTTI_GRAPH_RAILS) continue;
    if (findRail(h, ports[i].name) >= 0) continue;
    hostRail *rail = &h->rails[h->n++];
    memcpy(rail->name, ports[i].name, sizeof rail->name);
    rail->rank = peer->rank;
    rail->port = (uint8_t)i;
  }
}

/* Rails in the order of ports, where all ranks have the same, whatever rank found them first. */
static void sortRails(hostRails *h) {
  for (int i = 1; i < h->n; i++)
    for (int j = i; j > 0 && h->rails[j].port < h->rails[j - 1].port; j--) {
      hostRail swapped = h->rails[j];
      h->rails[j] = h->rails[j - 1];
      h->rails[j - 1] = swapped;
    }
}

/* Pairs each of the model's rails with one of the host's that it reaches better than any other;
 * false if that leaves some out, as in one flat subnet, where addresses mean nothing. */
static bool matchSubnets(const tuttiPeer *peers, const hostRails *model, const hostRails *h,
                         uint8_t *match) {
  int load[TUTTI_GRAPH_RAILS] = {0}, fair = (model->n + h->n - 1) / h->n;
  for (int k = 0; k < model->n; k++) {
    const hostRail *a = &model->rails[k];
    int best = 0, found = 0;
    for (int j = 0; j < h->n; j++) {
      tuttiRail rail;
      const hostRail *b = &h->rails[j];
      int worth = join(&peers[a->rank], a->port, &peers[b->rank], b->port, &rail);
      if (worth <= best) continue;
      best = worth;
      found = j;
    }
    if (best == 0 || ++load[found] > fair) return false;
    match[k] = (uint8_t)found;
  }
  return true;
}

/* By names where the host has no others than the model, as when some of its ports are down; the
 * rest by turns. */
static void matchNames(const hostRails *model, const hostRails *h, uint8_t *match) {
  int load[TUTTI_GRAPH_RAILS] = {0};
  bool namesakes = true;
  for (int j = 0; j < h->n; j++)
    namesakes &= findRail(model, h->rails[j].name) >= 0;
  for (int k = 0; namesakes && k < model->n; k++) {
    int same = findRail(h, model->rails[k].name);
    if (same >= 0) load[same]++;
  }
  for (int k = 0; k < model->n; k++) {
    int found = namesakes ? findRail(h, model->rails[k].name) : -1;
    if (found < 0) {
      found = 0;
      for (int j = 1; j < h->n; j++)
        if (load[j] < load[found]) found = j;
      load[found]++;
    }
    match[k] = (uint8_t)found;
  }
}

/* Fills the rows of all ranks: how each stands to the rails of its host, numbered as the model's.
 */
static void fillRows(const tuttiPeer *peers, const int32_t *host, int nranks,
                     const hostRails *hosts, const uint8_t *match, tuttiRails *out) {
  for (int r = 0; r < nranks; r++) {
    tuttiNetPort ports[TUTTI_PATH_RAILS];
    int n = portsOf(&peers[r], ports);
    for (int k = 0; k < out->nrails; k++) {
      size_t at = (size_t)r * (size_t)out->nrails + (size_t)k;
      int rail = match[(size_t)host[r] * TUTTI_GRAPH_RAILS + (size_t)k];
      const char *name = hosts[host[r]].rails[rail].name;
      int p = 0;
      while (p < n && strcmp(ports[p].name, name) != 0)
        p++;
      bool has = p < n && (ports[p].usable || ports[p].later);
      out->port[at] = has ? (uint8_t)p : TUTTI_RAIL_NONE;
      out->distance[at] = has ? ports[p].distance : TUTTI_RAIL_NONE;
    }
  }
}

tuttiResult_t tuttiRailsMake(const tuttiPeer *peers, const uint64_t *hostIds, int nranks,
                             tuttiRails *out) {
  int nhosts, model = 0;
  for (int r = 0; r < nranks; r++)
    if (tuttiPeerGpu(&peers[r]) < 0) return tuttiSuccess;
  TUTTI_FRESH(int32_t, host, nranks, "hosts of ranks", NULL);
  TUTTI_TRY(tuttiGraphHosts(hostIds, nranks, host, &nhosts));
  if (nhosts == 1 || nhosts == nranks) return tuttiSuccess;
  TUTTI_FRESH(hostRails, hosts, nhosts, "rails of hosts", NULL);
  TUTTI_FRESH(uint8_t, match, (size_t)nhosts * TUTTI_GRAPH_RAILS, "rails of hosts", NULL);
  for (int r = 0; r < nranks; r++)
    addPorts(&peers[r], &hosts[host[r]]);
  for (int h = 0; h < nhosts; h++) {
    if (hosts[h].n == 0) return tuttiSuccess;
    sortRails(&hosts[h]);
    if (hosts[h].n > hosts[model].n) model = h;
  }
  for (int h = 0; h < nhosts; h++) {
    uint8_t *row = match + (size_t)h * TUTTI_GRAPH_RAILS;
    if (h == model || !matchSubnets(peers, &hosts[model], &hosts[h], row))
      matchNames(&hosts[model], &hosts[h], row);
  }
  size_t all = (size_t)nranks * (size_t)hosts[model].n;
  TUTTI_NEW(out->distance, all, "rails of ranks", NULL);
  TUTTI_NEW(out->port, all, "rails of ranks", NULL);
  out->nrails = hosts[model].n;
  fillRows(peers, host, nranks, hosts, match, out);
  return tuttiSuccess;
}

/* Adds the rail of one connection of `rank`, if it has one. */
static void addChannel(tuttiRails *rails, const tuttiPeer *peers, const tuttiGraph *g, int channel,
                       int from, int to, int rank) {
  int k = from >= 0 && to >= 0 ? tuttiGraphRail(g, channel, from, to) : -1;
  if (k < 0 || k >= rails->nrails) return;
  uint8_t a = rails->port[(size_t)from * (size_t)rails->nrails + (size_t)k];
  uint8_t b = rails->port[(size_t)to * (size_t)rails->nrails + (size_t)k];
  tuttiChannelRail row = {.peer = from == rank ? to : from,
                          .channel = (uint8_t)channel,
                          .direction = from == rank ? TUTTI_SEND : TUTTI_RECV};
  if (a == TUTTI_RAIL_NONE || b == TUTTI_RAIL_NONE) return;
  if (join(&peers[from], a, &peers[to], b, &row.rail) == 0) return;
  for (int i = rails->nchannels - 1; i >= 0; i--) {
    const tuttiChannelRail *other = &rails->channels[i];
    if (other->channel != channel) break; /* channels come one after the other */
    if (other->peer == row.peer && other->direction == row.direction) return; /* of two of these */
  }
  rails->channels[rails->nchannels++] = row;
}

tuttiResult_t tuttiRailsOfChannels(tuttiRails *rails, const tuttiPeer *peers,
                                   const tuttiGraph *graph, int rank) {
  int n = graph->nranks;
  if (rails->nrails == 0) return tuttiSuccess;
  /* A ring has one neighbour on either side, a grid all ranks of the place, a tree a parent and
   * children, each both ways. */
  size_t most =
      (size_t)graph->nchannels * (2 + 2 * (size_t)graph->nhosts + 2 * (1 + TUTTI_MAX_FAN));
  TUTTI_NEW(rails->channels, most, "rails of channels", NULL);
  for (int c = 0; c < graph->nchannels; c++) {
    tuttiSchedule ring = {.algo = tuttiAlgoRing, .rank = rank, .nranks = n}, tree = ring;
    tuttiSchedule grid = ring;
    grid.algo = tuttiAlgoHierarchical;
    tree.algo = tuttiAlgoTree;
    tuttiGraphPlace(graph, c, -1, &ring);
    tuttiGraphPlace(graph, c, -1, &tree);
    tuttiGraphPlace(graph, c, -1, &grid);
    addChannel(rails, peers, graph, c, rank, tuttiRingRank(&ring, n - 1), rank);
    addChannel(rails, peers, graph, c, tuttiRingRank(&ring, 1), rank, rank);
    for (int hosts = 1; graph->perHost > 1 && hosts < graph->nhosts; hosts++) {
      addChannel(rails, peers, graph, c, rank, grid.ring[tuttiGridBehind(&grid, -hosts, 0)], rank);
      addChannel(rails, peers, graph, c, grid.ring[tuttiGridBehind(&grid, hosts, 0)], rank, rank);
    }
    addChannel(rails, peers, graph, c, rank, tree.parent, rank);
    addChannel(rails, peers, graph, c, tree.parent, rank, rank);
    for (int i = 0; i < tree.nchildren; i++) {
      addChannel(rails, peers, graph, c, rank, tree.children[i], rank);
      addChannel(rails, peers, graph, c, tree.children[i], rank, rank);
    }
  }
  return tuttiSuccess;
}

void tuttiRailsFree(tuttiRails *rails) {
  tuttiFree(rails->channels);
  tuttiFree(rails->port);
  tuttiFree(rails->distance);
  *rails = (tuttiRails){0};
}

#include "collectives/graph.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "collectives/graph_rails.h"

#define RANKS_IN_LOG_LINE 64

typedef struct {
  uint64_t id;
  int32_t rank;
} hostEntry;

static int compareEntries(const void *a, const void *b) {
  const hostEntry *x = a, *y = b;
  if (x->id != y->id) return x->id < y->id ? -1 : 1;
  return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Sorts the ids, so that equal ones meet. */
tuttiResult_t tuttiGraphHosts(const uint64_t *hostIds, int nranks, int32_t *host, int *nhosts) {
  TUTTI_FRESH(hostEntry, entries, nranks, "host ids of a graph", NULL);
  for (int32_t r = 0; r < nranks; r++)
    entries[r] = (hostEntry){hostIds[r], r};
  qsort(entries, (size_t)nranks, sizeof *entries, compareEntries);
  int32_t first = 0; /* lowest rank of the host at hand */
  for (int i = 0; i < nranks; i++) {
    if (i == 0 || entries[i].id != entries[i - 1].id) first = entries[i].rank;
    host[entries[i].rank] = first;
  }
  *nhosts = 0;
  for (int32_t r = 0; r < nranks; r++)
    host[r] = host[r] == r ? (*nhosts)++ : host[host[r]];
  return tuttiSuccess;
}

/* Where the ranks of each host begin, if all are put in the order of hosts: first[nhosts]. */
static void findFirst(const int32_t *host, int nranks, int nhosts, int32_t *first) {
  memset(first, 0, (size_t)nhosts * sizeof *first);
  for (int r = 0; r < nranks; r++)
    if (host[r] + 1 < nhosts) first[host[r] + 1]++;
  for (int h = 1; h < nhosts; h++)
    first[h] += first[h - 1];
}

/* Ranks of each host; 0: they have different numbers. `first` as above. */
static int evenHosts(const int32_t *first, int nranks, int nhosts) {
  bool even = nhosts > 0 && nranks % nhosts == 0;
  for (int h = 0; h < nhosts; h++)
    even &= first[h] == h * (nranks / nhosts);
  return even ? nranks / nhosts : 0;
}

/* `first` becomes that of the next host. */
static void buildGrid(tuttiGraph *g, int32_t *first) {
  for (int32_t r = 0; r < g->nranks; r++) {
    int32_t at = first[g->host[r]]++;
    g->place[r] = at;
    g->grid[at] = g->grid[2 * g->nranks - 1 - at] = r;
  }
}

tuttiResult_t tuttiGraphNew(const uint64_t *hostIds, int nranks, int nchannels, tuttiGraph **out) {
  if (nranks < 1 || nranks > TUTTI_GRAPH_MAX_RANKS)
    return TUTTI_FAIL(tuttiInvalidArgument, "graph: %d ranks; 1 to %d are possible", nranks,
                      TUTTI_GRAPH_MAX_RANKS);
  if (nchannels < 1 || nchannels > TUTTI_MAX_CHANNELS)
    return TUTTI_FAIL(tuttiInvalidArgument, "graph: %d channels; 1 to %d are possible", nchannels,
                      TUTTI_MAX_CHANNELS);
  TUTTI_FRESH(int32_t, host, nranks, "hosts of a graph", NULL);
  int nhosts;
  TUTTI_TRY(tuttiGraphHosts(hostIds, nranks, host, &nhosts));
  TUTTI_FRESH(int32_t, first, nhosts, "hosts of a graph", NULL);
  findFirst(host, nranks, nhosts, first);
  size_t all = (size_t)nchannels * (size_t)nranks, rails = (size_t)nchannels * ((size_t)nhosts + 1);
  int perHost = evenHosts(first, nranks, nhosts);
  size_t places = (size_t)nchannels * (size_t)perHost;
  size_t numbers = 4 * (size_t)nranks + 3 * all + (size_t)nchannels + rails + places;
  TUTTI_FREED tuttiGraph *g = NULL;
  TUTTI_TRY(tuttiAlloc((void **)&g, 1, sizeof *g + numbers * sizeof *g->host, "graph", NULL));
  g->nranks = nranks;
  g->nchannels = nchannels;
  g->nhosts = nhosts;
  g->host = (int32_t *)(g + 1); /* all arrays lie in the graph's block */
  memcpy(g->host, host, (size_t)nranks * sizeof *host);
  g->ring = g->host + nranks;
  g->position = g->ring + all;
  g->parent = g->position + all;
  g->depth = g->parent + all;
  g->treeRail = g->depth + nchannels;
  g->entry = g->treeRail + nchannels;
  g->placeRail = g->treeRail + rails;
  g->grid = g->placeRail + places;
  g->place = g->grid + 2 * nranks;
  g->perHost = perHost;
  for (size_t i = 0; i < rails + places; i++)
    g->treeRail[i] = -1;
  buildGrid(g, first);
  *out = g;
  g = NULL;
  return tuttiSuccess;
}

void tuttiGraphFree(tuttiGraph *g) {
  tuttiFree(g);
}

/* Parent of node j in the in-order binary tree over 1..n, where the leaves are the odd numbers; 0
 * at the root, which is the greatest power of two. The tree is the complete one with the numbers
 * above n taken out: a node whose parent is out hangs below the next ancestor that is in. */
static int inOrderParent(int j, int n) {
  int bit = j & -j;
  int up = (j ^ bit) | (bit << 1);
  return up <= n ? up : j ^ bit;
}

/* A host is an inner node where its place is even. The second
 * tree gives every host a place of the other parity: mirrored if nhosts is even, shifted by one if
 * it is odd (the last host wraps round from a leaf to a leaf). */
int tuttiGraphHostParent(int h, int nhosts, bool second) {
  bool mirror = second && nhosts % 2 == 0;
  bool shift = second && nhosts % 2 == 1;
  int place = mirror ? nhosts - h : shift ? (h + 1) % nhosts + 1 : h + 1;
  int up = inOrderParent(place, nhosts);
  if (up == 0) return -1;
  return mirror ? nhosts - up : shift ? (up - 2 + nhosts) % nhosts : up - 1;
}

/* Odd channels take the ranks in the opposite order. Then the ring runs the other way, and a rank
 * in the upper half of its host's binary tree is a leaf in the other channel's tree. */
static void buildRing(tuttiGraph *g, int channel, int32_t *first) {
  int32_t *ring = g->ring + (size_t)channel * g->nranks;
  int32_t *position = g->position + (size_t)channel * g->nranks;
  findFirst(g->host, g->nranks, g->nhosts, first);
  for (int32_t r = 0; r < g->nranks; r++) {
    int at = first[g->host[r]]++; /* becomes that of the next host as the ranks are placed */
    position[r] = channel % 2 ? g->nranks - 1 - at : at;
    ring[position[r]] = r;
  }
}

/* The first rank of each host in the ring talks to the other hosts. */
static void buildTree(tuttiGraph *g, int channel, int32_t *first) {
  const int32_t *ring = g->ring + (size_t)channel * g->nranks;
  int32_t *parent = g->parent + (size_t)channel * g->nranks;
  for (int i = g->nranks - 1; i >= 0; i--)
    first[g->host[ring[i]]] = i;
  for (int i = 0; i < g->nranks; i++) {
    int h = g->host[ring[i]], k = i - first[h],
        up = tuttiGraphHostParent(h, g->nhosts, channel % 2 == 1);
    int at = k > 0 ? first[h] + (k - 1) / 2 : up >= 0 ? first[up] : -1;
    parent[ring[i]] = at >= 0 ? ring[at] : -1;
  }
}

tuttiResult_t tuttiGraphMeasureTree(tuttiGraph *g, int channel) {
  const int32_t *parent = g->parent + (size_t)channel * g->nranks;
  /* 1 + edges to the root; 0: not known yet */
  TUTTI_FRESH(int32_t, depth, g->nranks, "tree depths", NULL);
  g->depth[channel] = 0;
  for (int r = 0; r < g->nranks; r++) {
    int32_t up = r, steps = 0;
    while (up >= 0 && depth[up] == 0 && steps <= g->nranks) {
      up = parent[up];
      steps++;
    }
    if (steps > g->nranks) {
      g->depth[channel] = -1;
      break;
    }
    int32_t d = steps + (up >= 0 ? depth[up] : 0);
    if (d - 1 > g->depth[channel]) g->depth[channel] = d - 1;
    for (int32_t v = r; v != up; v = parent[v])
      depth[v] = d--;
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiGraphCreate(const uint64_t *hosts, int nranks, const tuttiGraphRails *rails,
                               int nchannels, tuttiGraph **out) {
  TUTTI_FREED tuttiGraph *g = NULL;
  TUTTI_TRY(tuttiGraphNew(hosts, nranks, nchannels, &g));
  TUTTI_FRESH(int32_t, first, g->nhosts, "hosts of a graph", NULL); /* where their ranks begin */
  if (rails && g->nhosts > 1) TUTTI_TRY(tuttiGraphOverRails(g, rails));
  for (int c = 0; c < nchannels; c++) {
    if (g->nrails == 0) {
      buildRing(g, c, first);
      buildTree(g, c, first);
    }
    TUTTI_TRY(tuttiGraphMeasureTree(g, c));
  }
  *out = g;
  g = NULL;
  return tuttiSuccess;
}

int tuttiGraphRail(const tuttiGraph *g, int channel, int from, int to) {
  size_t row = (size_t)channel * (size_t)g->nranks;
  if (g->host[from] == g->host[to]) return -1;
  int next = (g->position[row + (size_t)from] + 1) % g->nranks;
  if (g->ring[row + (size_t)next] == to)
    return g->entry[(size_t)channel * (size_t)g->nhosts + (size_t)g->host[to]];
  bool joined = g->parent[row + (size_t)from] == to || g->parent[row + (size_t)to] == from;
  if (joined || !g->perHost) return joined ? g->treeRail[channel] : -1;
  int place = g->place[from] % g->perHost;
  bool same = g->place[to] % g->perHost == place;
  return same ? g->placeRail[(size_t)channel * (size_t)g->perHost + (size_t)place] : -1;
}

void tuttiGraphTree(const tuttiGraph *g, int channel, int root, int rank, tuttiSchedule *s) {
  const int32_t *parent = g->parent + (size_t)channel * g->nranks;
  /* Turning reverses the edges between `root` and the root as built; of rank's own edges that is at
   * most the one to `down`, the child below which `root` lies, and the one to its parent. */
  int32_t down = -1, at = root;
  while (at >= 0 && at != rank) {
    down = at;
    at = parent[at];
  }
  bool turned = root >= 0 && at == rank;
  s->parent = turned ? down : parent[rank];
  s->level = 0;
  for (int32_t up = parent[rank]; up >= 0; up = parent[up])
    s->level++;
  s->nchildren = 0;
  for (int32_t r = 0; r < g->nranks; r++) {
    bool child = parent[r] == rank && !(turned && r == down);
    if (child || (turned && r == parent[rank])) s->children[s->nchildren++] = r;
  }
}

void tuttiGraphPlace(const tuttiGraph *g, int channel, int root, tuttiSchedule *s) {
  size_t row = (size_t)channel * (size_t)g->nranks;
  s->ring = g->ring + row;
  s->position = g->position[row + (size_t)s->rank];
  if (s->algo == tuttiAlgoTree) tuttiGraphTree(g, channel, root, s->rank, s);
  if (s->algo != tuttiAlgoHierarchical) return;
  bool odd = channel % 2 == 1; /* goes round the other way */
  s->ring = g->grid + (odd ? g->nranks : 0);
  s->position = odd ? g->nranks - 1 - g->place[s->rank] : g->place[s->rank];
  s->perHost = g->perHost ? g->perHost : 1;
}

/* "parent/self/child,child", -1 where there is none; returns buf. */
static const char *treeText(const tuttiGraph *g, int channel, int rank, char *buf, size_t size) {
  tuttiSchedule s;
  tuttiGraphTree(g, channel, -1, rank, &s);
  snprintf(buf, size, s.nchildren > 0 ? "%d/%d/" : "%d/%d/-1", s.parent, rank);
  for (int i = 0; i < s.nchildren; i++)
    tuttiAppend(buf, size, "%s%d", i > 0 ? "," : "", s.children[i]);
  return buf;
}

/* A ring too long for a line is shown by its part around `rank`. */
static void ringText(const tuttiGraph *g, int channel, int rank, char *buf, size_t size) {
  const int32_t *ring = g->ring + (size_t)channel * g->nranks;
  int n = g->nranks;
  if (n > RANKS_IN_LOG_LINE) {
    int at = g->position[(size_t)channel * n + rank];
    snprintf(buf, size, "%d -> %d -> %d (of %d ranks)", ring[(at + n - 1) % n], rank,
             ring[(at + 1) % n], n);
    return;
  }
  buf[0] = '\0';
  for (int i = 0; i < n; i++)
    tuttiAppend(buf, size, "%s%d", i > 0 ? " " : "", ring[i]);
}

void tuttiGraphLog(const tuttiGraph *g, int rank) {
  if (!tuttiLogEnabled(TUTTI_LOG_INFO, TUTTI_SUBSYS(GRAPH))) return;
  char text[RANKS_IN_LOG_LINE * 12];
  for (int c = 0; c < g->nchannels; c++) {
    ringText(g, c, rank, text, sizeof text);
    TUTTI_INFO(GRAPH, "Ring %02d : %s", c, text);
    TUTTI_INFO(GRAPH, "Tree %02d : %s", c, treeText(g, c, rank, text, sizeof text));
  }
}

void tuttiGraphPrint(const tuttiGraph *g, FILE *out) {
  char text[96];
  fprintf(out, "%d rank%s on %d host%s, %d channel%s\n", g->nranks, g->nranks > 1 ? "s" : "",
          g->nhosts, g->nhosts > 1 ? "s" : "", g->nchannels, g->nchannels > 1 ? "s" : "");
  for (int c = 0; c < g->nchannels; c++) {
    fprintf(out, "Ring %02d :", c);
    for (int i = 0; i < g->nranks; i++)
      fprintf(out, " %d", g->ring[(size_t)c * g->nranks + i]);
    for (int h = 0; g->nrails > 0 && h < g->nhosts; h++)
      fprintf(out, h > 0 ? " %d" : "; enters by rail %d", g->entry[(size_t)c * g->nhosts + h]);
    fputc('\n', out);
  }
  for (int c = 0; c < g->nchannels; c++) {
    if (g->nrails > 0) fprintf(out, "Tree %02d : by rail %d\n", c, g->treeRail[c]);
    for (int r = 0; r < g->nranks; r++)
      fprintf(out, "Tree %02d : %s\n", c, treeText(g, c, r, text, sizeof text));
  }
}

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "topology/internal.h"
#include "transport/transport.h"

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

/* Fills g->host and g->nhosts: sorts the ids, so that equal ones meet, then numbers the hosts in
 * the order of their first ranks. */
static tuttiResult_t numberHosts(tuttiGraph *g, const uint64_t *hostIds) {
  hostEntry *entries = NULL;
  TUTTI_TRY(tuttiAlloc((void **)&entries, (size_t)g->nranks, sizeof *entries, "host ids of a graph",
                       NULL));
  for (int32_t r = 0; r < g->nranks; r++)
    entries[r] = (hostEntry){hostIds[r], r};
  qsort(entries, (size_t)g->nranks, sizeof *entries, compareEntries);
  int32_t first = 0; /* lowest rank of the host at hand */
  for (int i = 0; i < g->nranks; i++) {
    if (i == 0 || entries[i].id != entries[i - 1].id) first = entries[i].rank;
    g->host[entries[i].rank] = first;
  }
  tuttiFree(entries);
  for (int32_t r = 0; r < g->nranks; r++)
    g->host[r] = g->host[r] == r ? g->nhosts++ : g->host[g->host[r]];
  return tuttiSuccess;
}

tuttiResult_t tuttiGraphNew(const uint64_t *hostIds, int nranks, int nchannels, tuttiGraph **out) {
  if (nranks < 1 || nranks > TUTTI_GRAPH_MAX_RANKS)
    return TUTTI_FAIL(tuttiInvalidArgument, "graph: %d ranks; 1 to %d are possible", nranks,
                      TUTTI_GRAPH_MAX_RANKS);
  if (nchannels < 1 || nchannels > TUTTI_MAX_CHANNELS)
    return TUTTI_FAIL(tuttiInvalidArgument, "graph: %d channels; 1 to %d are possible", nchannels,
                      TUTTI_MAX_CHANNELS);
  tuttiGraph *g = NULL;
  int32_t *numbers = NULL;
  size_t perRank = 1 + 3 * (size_t)nchannels;
  tuttiResult_t result;
  TUTTI_TRY(tuttiAlloc((void **)&g, 1, sizeof *g, "graph", NULL));
  g->nranks = nranks;
  g->nchannels = nchannels;
  TUTTI_TRY_GOTO(tuttiAlloc((void **)&numbers, perRank * (size_t)nranks + (size_t)nchannels,
                            sizeof *numbers, "rings and trees", NULL),
                 result, fail);
  size_t all = (size_t)nchannels * (size_t)nranks;
  g->host = numbers;
  g->ring = g->host + nranks;
  g->position = g->ring + all;
  g->parent = g->position + all;
  g->depth = g->parent + all;
  TUTTI_TRY_GOTO(numberHosts(g, hostIds), result, fail);
  *out = g;
  return tuttiSuccess;
fail:
  tuttiGraphFree(g);
  return result;
}

void tuttiGraphFree(tuttiGraph *g) {
  if (g == NULL) return;
  tuttiFree(g->host); /* the block that all arrays lie in */
  tuttiFree(g);
}

/* Parent of node j in the in-order binary tree over 1..n, where the leaves are the odd numbers; 0
 * at the root, which is the greatest power of two. The tree is the complete one with the numbers
 * above n taken out: a node whose parent is out hangs below the next ancestor that is in. */
static int inOrderParent(int j, int n) {
  int bit = j & -j;
  int up = (j ^ bit) | (bit << 1);
  if (up <= n) return up;
  return j ^ bit;
}

/* Parent of host h, -1 at the root. A host is an inner node where its place is even. The second
 * tree gives every host a place of the other parity: mirrored if nhosts is even, shifted by one if
 * it is odd (the last host wraps round from a leaf to a leaf). */
static int hostParent(int h, int nhosts, bool second) {
  bool mirror = second && nhosts % 2 == 0;
  bool shift = second && nhosts % 2 == 1;
  int place = mirror ? nhosts - h : shift ? (h + 1) % nhosts + 1 : h + 1;
  int up = inOrderParent(place, nhosts);
  if (up == 0) return -1;
  return mirror ? nhosts - up : shift ? (up - 2 + nhosts) % nhosts : up - 1;
}

/* Ranks sorted by host: those of host h are order[begin[h]] .. order[begin[h + 1] - 1]. */
typedef struct {
  int32_t *order, *begin;
} hostRanks;

static tuttiResult_t sortByHost(const tuttiGraph *g, hostRanks *out) {
  int32_t *order = NULL;
  size_t nranks = (size_t)g->nranks, nhosts = (size_t)g->nhosts;
  TUTTI_TRY(tuttiAlloc((void **)&order, nranks + nhosts + 1, sizeof *order, "ranks by host", NULL));
  int32_t *next = order + nranks + 1; /* becomes begin + 1 as the ranks are placed */
  for (int r = 0; r < g->nranks; r++)
    if (g->host[r] + 1 < g->nhosts) next[g->host[r] + 1]++;
  for (int h = 1; h < g->nhosts; h++)
    next[h] += next[h - 1];
  for (int32_t r = 0; r < g->nranks; r++)
    order[next[g->host[r]]++] = r;
  *out = (hostRanks){order, order + nranks};
  return tuttiSuccess;
}

/* Odd channels take the ranks in the opposite order. Then the ring runs the other way, and a rank
 * in the upper half of its host's binary tree is a leaf in the other channel's tree. */
static void buildRing(tuttiGraph *g, int channel, const hostRanks *ranks) {
  int32_t *ring = g->ring + (size_t)channel * g->nranks;
  int32_t *position = g->position + (size_t)channel * g->nranks;
  for (int i = 0; i < g->nranks; i++) {
    ring[i] = ranks->order[channel % 2 ? g->nranks - 1 - i : i];
    position[ring[i]] = i;
  }
}

/* Rank at place k in host h's binary tree of `channel`; place 0 talks to the other hosts. */
static int32_t rankAt(const hostRanks *ranks, int channel, int h, int k) {
  return channel % 2 ? ranks->order[ranks->begin[h + 1] - 1 - k]
                     : ranks->order[ranks->begin[h] + k];
}

static void buildTree(tuttiGraph *g, int channel, const hostRanks *ranks) {
  int32_t *parent = g->parent + (size_t)channel * g->nranks;
  for (int h = 0; h < g->nhosts; h++) {
    int up = hostParent(h, g->nhosts, channel % 2 == 1);
    parent[rankAt(ranks, channel, h, 0)] = up < 0 ? -1 : rankAt(ranks, channel, up, 0);
    for (int k = 1; k < ranks->begin[h + 1] - ranks->begin[h]; k++)
      parent[rankAt(ranks, channel, h, k)] = rankAt(ranks, channel, h, (k - 1) / 2);
  }
}

tuttiResult_t tuttiGraphMeasureTree(tuttiGraph *g, int channel, bool *tree) {
  const int32_t *parent = g->parent + (size_t)channel * g->nranks;
  int32_t *depth = NULL; /* 1 + edges to the root; 0: not known yet */
  TUTTI_TRY(tuttiAlloc((void **)&depth, (size_t)g->nranks, sizeof *depth, "tree depths", NULL));
  *tree = true;
  g->depth[channel] = 0;
  for (int r = 0; r < g->nranks && *tree; r++) {
    int32_t up = r, steps = 0;
    while (up >= 0 && depth[up] == 0 && steps <= g->nranks) {
      up = parent[up];
      steps++;
    }
    if (steps > g->nranks) {
      *tree = false;
      break;
    }
    int32_t d = steps + (up >= 0 ? depth[up] : 0);
    if (d - 1 > g->depth[channel]) g->depth[channel] = d - 1;
    for (int32_t v = r; v != up; v = parent[v])
      depth[v] = d--;
  }
  tuttiFree(depth);
  return tuttiSuccess;
}

tuttiResult_t tuttiGraphCreate(const uint64_t *hostIds, int nranks, int nchannels,
                               tuttiGraph **out) {
  tuttiGraph *g = NULL;
  hostRanks ranks = {0};
  tuttiResult_t result;
  TUTTI_TRY(tuttiGraphNew(hostIds, nranks, nchannels, &g));
  TUTTI_TRY_GOTO(sortByHost(g, &ranks), result, fail);
  for (int c = 0; c < nchannels; c++) {
    bool tree; /* by construction */
    buildRing(g, c, &ranks);
    buildTree(g, c, &ranks);
    TUTTI_TRY_GOTO(tuttiGraphMeasureTree(g, c, &tree), result, fail);
  }
  tuttiFree(ranks.order);
  *out = g;
  return tuttiSuccess;
fail:
  tuttiFree(ranks.order);
  tuttiGraphFree(g);
  return result;
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

int tuttiGraphTreeDepth(const tuttiGraph *g, int channel) {
  return g->depth[channel];
}

const char *tuttiGraphTreeText(const tuttiGraph *g, int channel, int rank, char *buf, size_t size) {
  tuttiSchedule s;
  tuttiGraphTree(g, channel, -1, rank, &s);
  size_t used = (size_t)snprintf(buf, size, "%d/%d/", s.parent, rank);
  if (s.nchildren == 0) snprintf(buf + used, size - used, "-1");
  for (int i = 0; i < s.nchildren; i++)
    used += (size_t)snprintf(buf + used, size - used, "%s%d", i > 0 ? "," : "", s.children[i]);
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
  size_t used = 0;
  for (int i = 0; i < n; i++)
    used += (size_t)snprintf(buf + used, size - used, "%s%d", i > 0 ? " " : "", ring[i]);
}

void tuttiGraphLog(const tuttiGraph *g, int rank) {
  if (!tuttiLogEnabled(TUTTI_LOG_INFO, TUTTI_SUBSYS(GRAPH))) return;
  char text[RANKS_IN_LOG_LINE * 12];
  for (int c = 0; c < g->nchannels; c++) {
    ringText(g, c, rank, text, sizeof text);
    TUTTI_INFO(GRAPH, "Ring %02d : %s", c, text);
    TUTTI_INFO(GRAPH, "Tree %02d : %s", c, tuttiGraphTreeText(g, c, rank, text, sizeof text));
  }
}

void tuttiGraphPrint(const tuttiGraph *g, FILE *out) {
  char text[TUTTI_GRAPH_TREE_TEXT];
  fprintf(out, "%d rank%s on %d host%s, %d channel%s\n", g->nranks, g->nranks > 1 ? "s" : "",
          g->nhosts, g->nhosts > 1 ? "s" : "", g->nchannels, g->nchannels > 1 ? "s" : "");
  for (int c = 0; c < g->nchannels; c++) {
    fprintf(out, "Ring %02d :", c);
    for (int i = 0; i < g->nranks; i++)
      fprintf(out, " %d", g->ring[(size_t)c * g->nranks + i]);
    fputc('\n', out);
  }
  for (int c = 0; c < g->nchannels; c++)
    for (int r = 0; r < g->nranks; r++)
      fprintf(out, "Tree %02d : %s\n", c, tuttiGraphTreeText(g, c, r, text, sizeof text));
}

/* Rings and trees that leave each host at the rail of their channel.
 *
 * A ring comes into a host at one rank and leaves it at another, so it needs two near the rail.
 * Where there are, it enters and leaves by the same one; else the borders between hosts alternate:
 * a ring that enters by rail k leaves by rail k + stride, which is how the next host is entered.
 * Both ends of a border are at the same rail, and over all channels each rail has its share of
 * either direction. Trees cross all borders at one rail. */
#include "collectives/graph_rails.h"

#include "base/error.h"
#include "base/mem.h"

/* The ranks of one host, its places, in order, and which of them are at the doors of each rail. */
typedef struct {
  int32_t *ranks;       /* [n], by place */
  int *entries, *exits; /* [n]: how often each has been a door */
  int n;
  int first[TUTTI_GRAPH_RAILS];  /* the place nearest to the rail, */
  int second[TUTTI_GRAPH_RAILS]; /* the next one, not `first` if there are two, */
  bool pair[TUTTI_GRAPH_RAILS];  /*   and whether it is as near */
} hostDoors;

typedef struct {
  tuttiGraph *g;
  const tuttiGraphRails *rails;
  hostDoors *hosts; /* [nhosts] */
  int stride;       /* between the rails by which a ring enters and leaves a host */
} builder;

/* Channels go round all rails, then once more, by turns in either tree and direction. */
static bool isSecond(int round, int rail) {
  return (rail + round) % 2 == 1;
}

static int distanceOf(const builder *b, const hostDoors *h, int place, int rail) {
  return b->rails->distance[(size_t)h->ranks[place] * (size_t)b->rails->nrails + (size_t)rail];
}

/* The place nearest to a rail; of equals one that has had the least to do so far, and of these the
 * one that comes first, or last if `down`. */
static int nearestPlace(const builder *b, const hostDoors *h, int rail, int but, const int *load,
                        bool down) {
  int best = -1, least = 0;
  for (int i = 0; i < h->n; i++) {
    int p = down ? h->n - 1 - i : i, d = distanceOf(b, h, p, rail);
    if (p == but) continue;
    if (best >= 0 && (d > least || (d == least && load[p] >= load[best]))) continue;
    best = p;
    least = d;
  }
  return best;
}

/* Of one round. */
static void findDoors(const builder *b, int round, hostDoors *h) {
  for (int k = 0; k < b->rails->nrails; k++) {
    bool down = isSecond(round, k);
    h->first[k] = h->second[k] = nearestPlace(b, h, k, -1, h->entries, down);
    h->entries[h->first[k]]++;
    if (h->n == 1) continue;
    h->second[k] = nearestPlace(b, h, k, h->first[k], h->exits, !down);
    h->exits[h->second[k]]++;
    h->pair[k] = distanceOf(b, h, h->first[k], k) == distanceOf(b, h, h->second[k], k);
  }
}

/* Whether two ranks of each host, or its only one, are equally near to every rail. */
static bool allPaired(const builder *b) {
  for (int h = 0; h < b->g->nhosts; h++)
    for (int k = 0; k < b->rails->nrails; k++)
      if (b->hosts[h].n > 1 && !b->hosts[h].pair[k]) return false;
  return true;
}

/* Whether rails that are `apart` have different ranks on every host. */
static bool partsDoors(const builder *b, int apart) {
  int n = b->rails->nrails;
  for (int h = 0; h < b->g->nhosts; h++)
    for (int k = 0; k < n; k++)
      if (b->hosts[h].n > 1 && b->hosts[h].first[k] == b->hosts[h].first[(k + apart) % n])
        return false;
  return true;
}

/* An odd circle of hosts needs three rails; there an even stride is the best, with which one round
 * of channels is enough to load all alike, as every other channel goes round the other way. */
static int findStride(const builder *b) {
  int n = b->rails->nrails;
  bool odd = b->g->nhosts % 2 == 1;
  if (allPaired(b)) return 0;
  for (int s = 2; odd && s < n; s += 2)
    if (partsDoors(b, s) && partsDoors(b, 2 * s)) return s;
  for (int s = 1; s < n; s++)
    if (partsDoors(b, s) && (!odd || partsDoors(b, 2 * s))) return s;
  for (int s = 1; s < n; s++)
    if (partsDoors(b, s)) return s;
  return 0;
}

/* The rail by which a ring of rail k enters a host, from either side. */
static int entryRail(const builder *b, int k, int host) {
  int n = b->g->nhosts, times = host == n - 1 && n % 2 == 1 ? 2 : host % 2;
  return (k + times * b->stride) % b->rails->nrails;
}

/* The ranks of a host from the one at `in` to the one at `out`, round by their numbers: the way
 * round on which `out` comes last, or else the channel's. Returns the next position. */
static int walkHost(const hostDoors *h, int in, int out, bool down, int32_t *ring, int at) {
  int n = h->n;
  if (n > 1 && (in + 1) % n == out) down = true;
  if (n > 2 && (out + 1) % n == in) down = false;
  for (int i = 0; i < n; i++) {
    int place = (down ? in - i + n : in + i) % n;
    if (place != out) ring[at++] = h->ranks[place];
  }
  ring[at++] = h->ranks[out];
  return at;
}

static void ringOverRail(const builder *b, int channel, int rail, bool second) {
  tuttiGraph *g = b->g;
  int32_t *ring = g->ring + (size_t)channel * (size_t)g->nranks;
  int32_t *position = g->position + (size_t)channel * (size_t)g->nranks;
  for (int i = 0, at = 0; i < g->nhosts; i++) {
    int host = second ? g->nhosts - 1 - i : i;
    const hostDoors *h = &b->hosts[host];
    int next = second ? host + g->nhosts - 1 : host + 1;
    int from = entryRail(b, rail, host), to = entryRail(b, rail, next % g->nhosts);
    int in = h->first[from], out = h->first[to] == in ? h->second[to] : h->first[to];
    g->entry[(size_t)channel * (size_t)g->nhosts + (size_t)host] = from;
    at = walkHost(h, in, out, second, ring, at);
  }
  for (int i = 0; i < g->nranks; i++)
    position[ring[i]] = i;
}

/* Inside a host its ranks hang in a binary tree below the one at the rail, in the order of their
 * numbers from there, or against it in the second tree. */
static void treeOverRail(const builder *b, int channel, int rail, bool second) {
  tuttiGraph *g = b->g;
  int32_t *parent = g->parent + (size_t)channel * (size_t)g->nranks;
  g->treeRail[channel] = rail;
  for (int host = 0; host < g->nhosts; host++) {
    const hostDoors *h = &b->hosts[host];
    int up = tuttiGraphHostParent(host, g->nhosts, second), root = h->first[rail];
    for (int i = 0; i < h->n; i++) {
      int above = (i - 1) / 2;
      int place = (second ? root - i + h->n : root + i) % h->n;
      int over = (second ? root - above + h->n : root + above) % h->n;
      parent[h->ranks[place]] = h->ranks[over];
    }
    parent[h->ranks[root]] = up >= 0 ? b->hosts[up].ranks[b->hosts[up].first[rail]] : -1;
  }
}

/* The rail of messages between ranks of a place: the channel's own if none is nearer to that place,
 * which roots of its tree may have as well; else the nearest, by turns where there are several. */
static int placeRail(const builder *b, const hostDoors *h, int place, int channel) {
  int n = b->rails->nrails, nearest = TUTTI_RAIL_NONE, count = 0;
  for (int k = 0; k < n; k++)
    if (distanceOf(b, h, place, k) < nearest) nearest = distanceOf(b, h, place, k);
  if (distanceOf(b, h, place, channel % n) == nearest) return channel % n;
  for (int k = 0; k < n; k++)
    count += distanceOf(b, h, place, k) == nearest;
  int turn = (place + channel) % count, k = 0;
  while (distanceOf(b, h, place, k) != nearest || turn-- > 0)
    k++;
  return k;
}

/* Places are taken to be the same on all hosts. */
static void gridOverRails(const builder *b, int channel) {
  tuttiGraph *g = b->g;
  for (int p = 0; p < g->perHost; p++)
    g->placeRail[(size_t)channel * (size_t)g->perHost + (size_t)p] =
        placeRail(b, &b->hosts[0], p, channel);
}

/* Makes each host's lists, in `numbers` of three for each rank. */
static void listRanks(const tuttiGraph *g, int32_t *numbers, hostDoors *hosts) {
  for (int r = 0; r < g->nranks; r++)
    hosts[g->host[r]].n++;
  for (int h = 0; h < g->nhosts; h++) {
    hosts[h].ranks = numbers;
    hosts[h].entries = numbers + hosts[h].n;
    hosts[h].exits = hosts[h].entries + hosts[h].n;
    numbers = hosts[h].exits + hosts[h].n;
    hosts[h].n = 0;
  }
  for (int32_t r = 0; r < g->nranks; r++) {
    hostDoors *h = &hosts[g->host[r]];
    h->ranks[h->n++] = r;
  }
}

tuttiResult_t tuttiGraphOverRails(tuttiGraph *g, const tuttiGraphRails *rails) {
  int n = rails->nrails;
  if (n < 1 || n > TUTTI_GRAPH_RAILS)
    return TUTTI_FAIL(tuttiInvalidArgument, "graph: %d rails; 1 to %d are possible", n,
                      TUTTI_GRAPH_RAILS);
  TUTTI_FRESH(int32_t, numbers, 3 * (size_t)g->nranks, "ranks by host", NULL);
  TUTTI_FRESH(hostDoors, hosts, g->nhosts, "rails of hosts", NULL);
  builder b = {.g = g, .rails = rails, .hosts = hosts};
  listRanks(g, numbers, hosts);
  g->nrails = n;
  for (int c = 0; c < g->nchannels; c++) {
    for (int h = 0; c % n == 0 && h < g->nhosts; h++)
      findDoors(&b, c / n, &hosts[h]);
    if (c == 0) b.stride = findStride(&b);
    ringOverRail(&b, c, c % n, isSecond(c / n, c % n));
    treeOverRail(&b, c, c % n, isSecond(c / n, c % n));
    gridOverRails(&b, c);
  }
  return tuttiSuccess;
}

#include "wireup/pxn.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "transport/net.h"

/* The ranks of one host and how they stand to the rails. */
typedef struct {
  const tuttiPeer *peers;
  const tuttiRails *rails;
  int nranks;
  int32_t *local; /* [nlocal] */
  int nlocal;
  uint8_t *stores; /* [nlocal * nlocal]: the GPU of one stores to the memory of the other */
} host;

/* How far the rails are that the rank is beside. */
static int nearest(const tuttiRails *rails, int rank) {
  int least = TUTTI_RAIL_NONE;
  for (int k = 0; k < rails->nrails; k++) {
    int distance = rails->distance[(size_t)rank * (size_t)rails->nrails + (size_t)k];
    if (distance < least) least = distance;
  }
  return least;
}

static bool isBeside(const tuttiRails *rails, int rank, int rail) {
  int distance = rails->distance[(size_t)rank * (size_t)rails->nrails + (size_t)rail];
  return distance != TUTTI_RAIL_NONE && distance == nearest(rails, rank);
}

static bool shareRail(const tuttiRails *rails, int a, int b) {
  bool any = false;
  for (int k = 0; k < rails->nrails; k++)
    any |= isBeside(rails, a, k) && isBeside(rails, b, k);
  return any;
}

static bool isUp(const host *h, int rank, int port) {
  tuttiNetPort ports[TUTTI_PATH_RAILS];
  const tuttiNet *net = tuttiNetFind(h->peers[rank].netName);
  return net && port < net->ports(&h->peers[rank], ports) && ports[port].up;
}

/* The port by which `from` would send at the lender's rail, as both know it by name; false: it has
 * none there that is up. */
static bool findPort(const host *h, int from, int lender, int rail, int *port) {
  tuttiNetPort theirs[TUTTI_PATH_RAILS], own[TUTTI_PATH_RAILS];
  const tuttiNet *net = tuttiNetFind(h->peers[from].netName);
  if (!net || net != tuttiNetFind(h->peers[lender].netName)) return false;
  int n = net->ports(&h->peers[from], own), at = h->rails->port[lender * h->rails->nrails + rail];
  if (at >= net->ports(&h->peers[lender], theirs)) return false;
  for (*port = 0; *port < n; ++*port)
    if (strcmp(own[*port].name, theirs[at].name) == 0) return own[*port].up;
  return false;
}

/* Whether messages may leave by way of local rank number l, beside a rail of the receiver's. */
static bool serves(const host *h, int from, int l, int to, int rail, tuttiPxnWay *out) {
  const tuttiPeer *sender = &h->peers[h->local[from]], *lender = &h->peers[h->local[l]];
  const tuttiRails *rails = h->rails;
  const tuttiNet *net = tuttiNetFind(sender->netName);
  bool shared = sender->process == lender->process;
  int port;
  if (l == from || !lender->pxnBytes || !h->stores[from * h->nlocal + l]) return false;
  if (!shared && !(sender->loans.id && lender->loans.id)) return false;
  if (!isBeside(rails, lender->rank, rail) || !isBeside(rails, to, rail)) return false;
  if (!findPort(h, sender->rank, lender->rank, rail, &port)) return false;
  tuttiRail lenders;
  int near = rails->port[lender->rank * rails->nrails + rail];
  int there = rails->port[to * rails->nrails + rail];
  if (!isUp(h, to, there)) return false; /* other ports of its would be far from the lender's */
  if (net->join(lender, near, &h->peers[to], there, &lenders) == 0 ||
      lenders.gdr[0] != TUTTI_GDR_YES ||
      net->join(sender, port, &h->peers[to], there, &out->rail) == 0)
    return false;
  out->rail.gdr[0] = lenders.gdr[0];
  out->lender = lender->rank;
  return true;
}

/* Where a message stands among those from this host that ask for the same: those to the ranks of
 * the receiver's host that are beside the same rails. */
static int turnOf(const host *h, int from, int to) {
  int senders = 0, before = 0, receivers = 0;
  for (int i = 0; i < h->nlocal; i++) {
    if (shareRail(h->rails, h->local[i], to)) continue;
    senders++;
    before += i < from;
  }
  for (int r = to - 1; r >= 0 && h->peers[r].hostId == h->peers[to].hostId; r--)
    receivers += shareRail(h->rails, r, to);
  return receivers * senders + before;
}

/* The way number `turn` of all, counted round; *n: how many there are. */
static tuttiPxnWay wayNumber(const host *h, int from, int to, int turn, int *n) {
  tuttiPxnWay way, found = {.lender = -1};
  *n = 0;
  for (int k = 0; k < h->rails->nrails; k++)
    for (int l = 0; l < h->nlocal; l++)
      if (serves(h, from, l, to, k, &way) && (*n)++ == turn) found = way;
  return found;
}

/* How local rank number `from` sends to `to`. Of several GPUs that would do, messages take turns.
 */
static tuttiPxnWay wayTo(const host *h, int from, int to) {
  const tuttiPeer *sender = &h->peers[h->local[from]];
  const tuttiPxnWay none = {.lender = -1};
  int n;
  if (!sender->pxnBytes || sender->hostId == h->peers[to].hostId) return none;
  if (nearest(h->rails, sender->rank) == TUTTI_RAIL_NONE) return none;
  if (shareRail(h->rails, sender->rank, to)) return none;
  (void)wayNumber(h, from, to, -1, &n);
  return n > 0 ? wayNumber(h, from, to, turnOf(h, from, to) % n, &n) : none;
}

/* The rank's host: fills the arrays that *h has. */
static void fillHost(host *h, int rank) {
  for (int r = 0; r < h->nranks; r++)
    if (h->peers[r].hostId == h->peers[rank].hostId) h->local[h->nlocal++] = r;
}

static void fillStores(host *h) {
  for (int i = 0; i < h->nlocal; i++)
    for (int j = 0; j < i; j++) {
      tuttiPath path = {0};
      tuttiTransportSelect(&h->peers[h->local[j]], &h->peers[h->local[i]], &path);
      h->stores[i * h->nlocal + j] = h->stores[j * h->nlocal + i] = path.stores;
    }
}

tuttiResult_t tuttiPxnMake(const tuttiPeer *peers, const tuttiRails *rails, int rank, int nranks,
                           tuttiPxn *pxn) {
  bool any = false;
  host h = {.peers = peers, .rails = rails, .nranks = nranks};
  if (rails->nrails < 2 || !peers[rank].pxnBytes) return tuttiSuccess;
  TUTTI_FRESH(int32_t, local, nranks, "ranks of a host", NULL);
  h.local = local;
  fillHost(&h, rank);
  TUTTI_FRESH(uint8_t, stores, (size_t)h.nlocal * (size_t)h.nlocal, "ranks of a host", NULL);
  h.stores = stores;
  fillStores(&h);
  TUTTI_NEW(pxn->to, nranks, "ways by other GPUs", NULL);
  TUTTI_NEW(pxn->lends, nranks, "ways by this GPU", NULL);
  for (int from = 0; from < h.nlocal; from++)
    for (int to = 0; to < nranks; to++) {
      tuttiPxnWay way = wayTo(&h, from, to);
      if (h.local[from] == rank) pxn->to[to] = way;
      if (way.lender == rank) pxn->lends[h.local[from]]++;
      any |= way.lender == rank || (h.local[from] == rank && way.lender >= 0);
    }
  if (!any) tuttiPxnFree(pxn);
  return tuttiSuccess;
}

void tuttiPxnFree(tuttiPxn *pxn) {
  tuttiFree(pxn->to);
  tuttiFree(pxn->lends);
  *pxn = (tuttiPxn){0};
}

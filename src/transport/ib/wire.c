#include "transport/ib/wire.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"

#define SUBNET_BYTES 8 /* of an InfiniBand GID */

/* ---- addresses ------------------------------------------------------------------------------ */

static bool isV4(const uint8_t gid[16]) {
  static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
  return memcmp(gid, mapped, sizeof mapped) == 0;
}

static bool isLinkLocal(const uint8_t gid[16]) {
  if (isV4(gid)) return gid[12] == 169 && gid[13] == 254;
  return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

static bool isEmpty(const tuttiIbPort *port, const uint8_t gid[16]) {
  uint8_t any = 0;
  for (int i = port->ethernet ? 0 : 8; i < 16; i++)
    any |= gid[i]; /* on InfiniBand the first half is the subnet's, also in empty rows */
  return any == 0;
}

/* Of one port's table: what should be told to peers, if there is not room for all. */
static int worth(const tuttiIbGid *g) {
  return (g->forced ? 8 : 0) + (isLinkLocal(g->gid) ? 0 : 4) + (g->type == TUTTI_GID_ROCE2 ? 2 : 0);
}

static bool isWanted(const tuttiIbGid *gid, const char *family, int version) {
  if (strcmp(family, "AF_INET") == 0 && !isV4(gid->gid)) return false;
  if (strcmp(family, "AF_INET6") == 0 && isV4(gid->gid)) return false;
  return version == 0 || gid->type == (version == 1 ? TUTTI_GID_ROCE1 : TUTTI_GID_ROCE2);
}

bool tuttiIbGidReaches(const tuttiIbGid *gid) {
  return gid->forced || !isLinkLocal(gid->gid);
}

void tuttiIbPortAddGid(tuttiIbPort *port, const tuttiIbGid *gid, const char *family, int version) {
  if (isEmpty(port, gid->gid)) return;
  if (port->ethernet && !gid->forced && !isWanted(gid, family, version)) return;
  int at = port->ngids;
  while (at > 0 && worth(&port->gids[at - 1]) < worth(gid))
    at--;
  if (at == TUTTI_IB_GIDS) return;
  if (port->ngids < TUTTI_IB_GIDS) port->ngids++;
  for (int i = port->ngids - 1; i > at; i--)
    port->gids[i] = port->gids[i - 1];
  port->gids[at] = *gid;
}

bool tuttiIbPortAllowed(const char *list, const char *name, int port) {
  bool exclude = *list == '^', exact, listed = false;
  list += exclude;
  exact = *list == '=';
  list += exact;
  if (*list == '\0') return true;
  for (const char *at = list; *at && !listed;) {
    size_t length = strcspn(at, ","), named = strcspn(at, ":,");
    bool match = strncmp(at, name, named) == 0 && (!exact || name[named] == '\0');
    if (match && named < length) match = atoi(at + named + 1) == port;
    listed = match && named > 0;
    at += length + (at[length] == ',');
  }
  return listed != exclude;
}

/* Bits of common prefix, those of an IPv4 address stretched to 128. */
static int commonPrefix(const uint8_t a[16], const uint8_t b[16]) {
  int first = isV4(a) ? 12 : 0, same = first;
  while (same < 16 && a[same] == b[same])
    same++;
  int bits = 8 * (same - first);
  if (same < 16) bits += __builtin_clz((unsigned)(a[same] ^ b[same])) - 24;
  return bits * 16 / (16 - first);
}

/* How good a pair of addresses is; 0: one cannot reach the other. */
static int pairWorth(const tuttiIbGid *a, const tuttiIbGid *b) {
  if (a->type != b->type || isV4(a->gid) != isV4(b->gid)) return 0;
  if (isLinkLocal(a->gid) != isLinkLocal(b->gid)) return 0;
  if (isLinkLocal(a->gid) && !a->forced && !b->forced) return 0;
  return 1 + (a->type == TUTTI_GID_ROCE2 ? 256 : 0) + commonPrefix(a->gid, b->gid);
}

int tuttiIbGidChoose(const tuttiIbPort *a, const tuttiIbPort *b, int *gidA, int *gidB) {
  int best = 0;
  *gidA = *gidB = 0;
  if (a->ethernet != b->ethernet) return 0;
  if (!a->ethernet) {
    /* Out of its subnet a port reaches another only if there is a router. */
    bool known = a->ngids > 0 && b->ngids > 0;
    return known && memcmp(a->gids[0].gid, b->gids[0].gid, SUBNET_BYTES) == 0 ? 2 : 1;
  }
  for (int i = 0; i < a->ngids; i++) {
    for (int j = 0; j < b->ngids; j++) {
      int worthOf = pairWorth(&a->gids[i], &b->gids[j]);
      if (worthOf <= best) continue;
      best = worthOf;
      *gidA = i;
      *gidB = j;
    }
  }
  return best;
}

bool tuttiIbPortSame(const tuttiIbPort *a, const tuttiIbPort *b) {
  return a->up == b->up && a->lid == b->lid && a->mtu == b->mtu && a->gdr == b->gdr &&
         a->gdrRead == b->gdrRead && a->ngids == b->ngids &&
         memcmp(a->gids, b->gids, a->ngids * sizeof *a->gids) == 0;
}

/* How gladly a port is used: one that is up, then one that reaches the memory of the rank's GPU. */
static int merit(const tuttiIbPort *p, bool sends) {
  return (p->up ? 2 : 0) + ((sends ? p->gdrRead : p->gdr) == TUTTI_GDR_YES);
}

bool tuttiIbPortUsable(const tuttiIbHandle *h, int port, bool sends) {
  int best = 0;
  for (int i = 0; i < h->nports; i++)
    if (merit(&h->ports[i], sends) > best) best = merit(&h->ports[i], sends);
  return merit(&h->ports[port], sends) == best;
}

/* Whether an InfiniBand port that is down is on the part of the network that its address says. One
 * that no subnet manager has seen yet has the prefix with which all begin: then it is so where a
 * port that is up has that, too, or where none is. */
static bool isSettled(const tuttiIbHandle *h, const tuttiIbPort *down) {
  static const uint8_t start[SUBNET_BYTES] = {0xfe, 0x80};
  bool any = false, same = false;
  if (memcmp(down->gids[0].gid, start, SUBNET_BYTES) != 0) return true;
  for (int i = 0; i < h->nports; i++) {
    const tuttiIbPort *p = &h->ports[i];
    if (!p->up || p->ethernet || p->ngids == 0) continue;
    any = true;
    same |= memcmp(p->gids[0].gid, down->gids[0].gid, SUBNET_BYTES) == 0;
  }
  return same || !any;
}

bool tuttiIbPortLater(const tuttiIbHandle *h, int port) {
  const tuttiIbPort *p = &h->ports[port];
  bool reached = false;
  for (int i = 0; i < h->nports; i++)
    reached |= h->ports[i].up && h->ports[i].gdr == TUTTI_GDR_YES;
  if (p->up || p->ngids == 0 || (reached && p->gdr != TUTTI_GDR_DOWN)) return false;
  return p->ethernet ? tuttiIbGidReaches(&p->gids[0]) : isSettled(h, p);
}

/* Returns how many there are. */
static int usablePorts(const tuttiIbHandle *h, bool sends, uint8_t ports[TUTTI_IB_PORTS]) {
  int n = 0;
  for (int i = 0; i < h->nports; i++)
    if (tuttiIbPortUsable(h, i, sends)) ports[n++] = (uint8_t)i;
  return n;
}

/* The ports of two ranks that connections join. */
typedef struct {
  const tuttiIbHandle *send, *recv;
  uint8_t senders[TUTTI_IB_PORTS], receivers[TUTTI_IB_PORTS];
  int nsend, nrecv;
  bool flat; /* the best addresses leave others out, see isFlat */
} fabric;

/* Of so many ports those that are nearest to the rank's GPU, or nearer but slow; returns how many.
 */
static int nearPorts(const tuttiIbHandle *h, const uint8_t *ports, int n, uint8_t *near) {
  uint32_t fastest = 0;
  int least = TUTTI_DISTANCE_COUNT, found = 0;
  for (int i = 0; i < n; i++)
    if (h->ports[ports[i]].megabits > fastest) fastest = h->ports[ports[i]].megabits;
  for (int i = 0; i < n; i++) {
    const tuttiIbPort *p = &h->ports[ports[i]];
    if (p->megabits >= fastest / TUTTI_NET_SLOWEST && p->distance < least) least = p->distance;
  }
  for (int i = 0; i < n; i++)
    if (h->ports[ports[i]].distance <= least) near[found++] = ports[i];
  return found;
}

/* How well the sender's port number `from` of the fabric reaches the receiver's number `to`. */
static int joinPorts(const fabric *f, int from, int to, tuttiIbPair *pair) {
  int gid[2];
  uint8_t a = f->senders[from], b = f->receivers[to];
  int worthOf = tuttiIbGidChoose(&f->send->ports[a], &f->recv->ports[b], &gid[0], &gid[1]);
  *pair = (tuttiIbPair){.port = {a, b}, .gid = {(uint8_t)gid[0], (uint8_t)gid[1]}};
  return worthOf;
}

/* Which of the receiver's ports is reached best, among equals by turns. */
static int nearest(const fabric *f, int from, int turn) {
  int best = 0, found = turn % f->nrecv;
  tuttiIbPair pair;
  for (int i = 0; i < f->nrecv; i++) {
    int to = (turn + i) % f->nrecv, worthOf = joinPorts(f, from, to, &pair);
    if (worthOf <= best) continue;
    best = worthOf;
    found = to;
  }
  return found;
}

/* Whether the nearest ports leave others out: then all are in one subnet, where addresses that look
 * alike mean nothing. */
static bool isFlat(const fabric *f) {
  int load[TUTTI_IB_PORTS] = {0};
  if (f->nrecv == 0) return false; /* as no record has it that was checked */
  int fair = (f->nsend + f->nrecv - 1) / f->nrecv;
  for (int from = 0; from < f->nsend; from++)
    if (++load[nearest(f, from, from)] > fair) return true;
  return false;
}

/* How well the sender's port reaches any of the receivers. */
static int reachOf(const fabric *f, int port) {
  int best = 0, gid[2];
  for (int to = 0; to < f->nrecv; to++) {
    int worthOf = tuttiIbGidChoose(&f->send->ports[port], &f->recv->ports[f->receivers[to]],
                                   &gid[0], &gid[1]);
    if (worthOf > best) best = worthOf;
  }
  return best;
}

/* The ports near both GPUs reach each other as well as any, as far as addresses tell. */
static bool nearWillDo(const fabric *all, const fabric *near) {
  bool alike = true;
  for (int i = 0; i < near->nsend && !all->flat; i++)
    alike &= reachOf(near, near->senders[i]) == reachOf(all, near->senders[i]);
  return alike;
}

/* A GPU's own link carries about what one NIC does, so the ports next to it are enough: what others
 * would carry crosses the CPUs, and takes from the GPUs that these are next to. But where near
 * ports of the two are on different rails, each in a subnet of its own, nobody knows whether there
 * is a way between those, and all ports are used: among them are the ends of the same rail. */
static fabric fabricOf(const tuttiIbHandle *send, const tuttiIbHandle *recv) {
  fabric all = {.send = send, .recv = recv}, near = all;
  all.nsend = usablePorts(send, true, all.senders);
  all.nrecv = usablePorts(recv, false, all.receivers);
  all.flat = isFlat(&all);
  near.nsend = nearPorts(send, all.senders, all.nsend, near.senders);
  near.nrecv = nearPorts(recv, all.receivers, all.nrecv, near.receivers);
  if (!nearWillDo(&all, &near)) return all;
  near.flat = isFlat(&near);
  return near;
}

static bool choosePair(const fabric *f, int qp, tuttiIbPair *pair) {
  int from = qp % f->nsend;
  return (f->flat && joinPorts(f, from, qp % f->nrecv, pair) > 0) ||
         joinPorts(f, from, nearest(f, from, qp), pair) > 0;
}

bool tuttiIbPairChoose(const tuttiIbHandle *send, const tuttiIbHandle *recv, int qp,
                       tuttiIbPair *pair) {
  fabric f = fabricOf(send, recv);
  return choosePair(&f, qp, pair);
}

int tuttiIbPairsChoose(const tuttiIbHandle *send, const tuttiIbHandle *recv, int first, int nqps,
                       tuttiIbPair *pairs) {
  fabric f = fabricOf(send, recv);
  int n = 0;
  for (int qp = first; qp < first + nqps; qp++)
    n += choosePair(&f, qp, &pairs[n]);
  return n;
}

int tuttiIbPairsFull(const tuttiIbHandle *send, const tuttiIbHandle *recv) {
  fabric f = fabricOf(send, recv);
  return f.nsend > f.nrecv ? f.nsend : f.nrecv;
}

const char *tuttiIbGidText(const tuttiIbGid *gid, char *buf, size_t size) {
  static const char *const types[TUTTI_GID_TYPES] = {"IB", "RoCE v1", "RoCE v2"};
  char address[INET6_ADDRSTRLEN] = "?";
  bool v4 = isV4(gid->gid);
  inet_ntop(v4 ? AF_INET : AF_INET6, gid->gid + (v4 ? 12 : 0), address, sizeof address);
  snprintf(buf, size, "%s (%s, index %u)", address, types[gid->type % TUTTI_GID_TYPES], gid->index);
  return buf;
}

const char *tuttiIbPortsText(const tuttiIbPort *ports, int n, char *buf, size_t size) {
  char gid[96];
  buf[0] = '\0';
  for (int i = 0; i < n; i++) {
    const tuttiIbPort *p = &ports[i];
    tuttiAppend(buf, size, "%s%.15s:%u %s", i ? "; " : "", p->device, p->port,
                p->up ? "up" : "down");
    if (!p->ethernet) tuttiAppend(buf, size, ", InfiniBand LID %u", p->lid);
    if (p->ethernet && p->ngids == 0) tuttiAppend(buf, size, ", no GID");
    for (int g = 0; p->ethernet && g < p->ngids; g++)
      tuttiAppend(buf, size, ", %s", tuttiIbGidText(&p->gids[g], gid, sizeof gid));
  }
  return buf;
}

/* ---- what peers say ------------------------------------------------------------------------- */

static const char *portCheck(const tuttiIbPort *p) {
  if (!memchr(p->device, '\0', sizeof p->device)) return "a device's name has no end";
  for (const char *c = p->device; *c; c++)
    if (*c <= ' ' || *c > '~') return "a device's name cannot be printed";
  if (p->mtu < 1 || p->mtu > 5) return "an MTU is out of range";
  if (p->ethernet > 1 || p->up > 1) return "a port's state is out of range";
  if (p->gdr >= TUTTI_GDR_COUNT || p->gdrRead >= TUTTI_GDR_COUNT)
    return "its answer about GPUDirect RDMA is out of range";
  if (p->distance > TUTTI_DISTANCE_COUNT) return "its distance from a GPU is out of range";
  if (p->ngids > TUTTI_IB_GIDS) return "its number of GIDs is out of range";
  for (int i = 0; i < p->ngids; i++)
    if (p->gids[i].type >= TUTTI_GID_TYPES) return "a GID's type is out of range";
  return NULL;
}

const char *tuttiIbPortsCheck(const tuttiIbPort *ports, int n) {
  if (n < 1 || n > TUTTI_IB_PORTS) return "its number of ports is out of range";
  for (int i = 0; i < n; i++) {
    const char *wrong = portCheck(&ports[i]);
    if (wrong) return wrong;
  }
  return NULL;
}

static const char *queuePairCheck(const tuttiIbQueuePairInfo *q, int nsend, int nrecv) {
  if (q->qpn > 0xffffff || q->psn > 0xffffff)
    return "the number of a queue pair or packet is out of range";
  return q->port[0] < nsend && q->port[1] < nrecv ? NULL : "a queue pair joins no port";
}

static const char *memoryCheck(const tuttiIbHandshake *h, size_t slotBytes) {
  if (h->slotBytes != slotBytes) return "its slots have another size";
  if (h->control == 0 || h->data == 0) return "it has no address";
  if (h->smallBytes > slotBytes || (h->smallBytes && h->small == 0)) return "it has no small slots";
  return NULL;
}

static const char *answerCheck(const tuttiIbHandshake *h, const tuttiIbHandshake *offer) {
  if (h->nqps != offer->nqps || h->epoch != offer->epoch) return "it answers another offer";
  if (h->immediate < offer->immediate) return "it forgoes completions that were asked for";
  for (int i = 0; i < h->nqps; i++) {
    if (!h->qps[i].qpn) continue;
    if (!offer->qps[i].qpn) return "it joins a queue pair that is not there";
    if (memcmp(h->qps[i].port, offer->qps[i].port, sizeof h->qps[i].port) != 0)
      return "it joins other ports";
  }
  return NULL;
}

static const char *queuePairsCheck(const tuttiIbHandshake *h, int nsend, int nrecv) {
  if (h->nqps < 1 || h->nqps > TUTTI_IB_QUEUE_PAIRS)
    return "its number of queue pairs is out of range";
  if (h->immediate > 1) return "how it tells what has come is out of range";
  const char *wrong = NULL;
  for (int i = 0; !wrong && i < h->nqps; i++)
    wrong = queuePairCheck(&h->qps[i], nsend, nrecv);
  return wrong;
}

const char *tuttiIbHandshakeCheck(const tuttiIbHandshake *h, size_t slotBytes, const int nports[2],
                                  const tuttiIbHandshake *offer) {
  bool answers = h->kind == TUTTI_IB_ANSWER;
  if (h->magic != TUTTI_IB_MAGIC) return "it is no handshake";
  if (h->kind >= TUTTI_IB_HANDSHAKE_COUNT || answers != (offer != NULL))
    return "it is of another kind";
  if (h->nports != nports[0]) return "it has another number of ports";
  const char *wrong = tuttiIbPortsCheck(h->ports, h->nports);
  if (!wrong) wrong = memoryCheck(h, slotBytes);
  if (wrong || h->kind == TUTTI_IB_AGAIN || h->kind == TUTTI_IB_NEWS) return wrong;
  wrong = queuePairsCheck(h, nports[answers], nports[!answers]);
  return !wrong && offer ? answerCheck(h, offer) : wrong;
}

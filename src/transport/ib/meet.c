/* How NET/IB connections are made, and mended when a port or a path fails.
 *
 * The sender always leads: it makes queue pairs, offers them in a handshake over the socket by
 * which the endpoints met, and gets the receiver's in the answer. To mend a connection both drop
 * their queue pairs and do the same again over the ports that are up; a receiver whose side is
 * broken asks for it (AGAIN), one whose ports have changed tells it (NEWS). Nothing is lost, for a
 * message stays with the sender until the receiver's hardware has acknowledged it; and nothing
 * comes twice, for the receiver first closes the old queue pairs, counts what they have brought,
 * and answers with that number. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/os.h"
#include "base/settings.h"
#include "transport/ib/endpoint.h"

#define DRAIN_NS 100000000u /* for what takes microseconds */
#define RETRY_NS 100000000u /* between offers while a path is broken or the peer has no port */
/* A rail that has failed without a word of its port is tried again. If it is still no good, all
 * stands still until the device gives up: a twentieth of the time since it failed, and less each
 * time. */
#define AVOID_RESENDS 20
#define LEAST_AVOID   5000000000u
#define MOST_AVOIDS   64 /* times the first one */
#define RAIL_GONE     "its device was removed or has failed"

/* ---- queue pairs ---------------------------------------------------------------------------- */

/* What queue pair `q` joins on this side, or on the peer's. */
static const tuttiIbPort *portOf(const tuttiIbEndpoint *e, const tuttiIbQueuePair *q, bool peers,
                                 const tuttiIbGid **gid) {
  int side = tuttiIbSends(e) == peers; /* see tuttiIbPair */
  const tuttiIbHandle *h = peers ? &e->theirs : &e->node->mine;
  const tuttiIbPort *port = &h->ports[q->pair.port[side]];
  *gid = &port->gids[q->pair.gid[side]];
  return port;
}

/* "rxe0 port 1, 10.0.0.1 (RoCE v2, index 1), to its rxe0 port 1, ..."; returns buf. */
static const char *queuePairText(const tuttiIbEndpoint *e, const tuttiIbQueuePair *q, char *buf,
                                 size_t size) {
  const tuttiIbGid *from, *to;
  const tuttiIbPort *mine = portOf(e, q, false, &from), *theirs = portOf(e, q, true, &to);
  char here[96], there[96];
  snprintf(here, sizeof here, "LID %u", mine->lid);
  snprintf(there, sizeof there, "LID %u", theirs->lid);
  if (mine->ethernet) {
    tuttiIbGidText(from, here, sizeof here);
    tuttiIbGidText(to, there, sizeof there);
  }
  snprintf(buf, size, "%s port %u, %s, to its %.15s port %u, %s", mine->device, mine->port, here,
           theirs->device, theirs->port, there);
  return buf;
}

static tuttiResult_t queuePairFailed(const tuttiIbEndpoint *e, const tuttiIbQueuePair *q,
                                     const char *call, int err) {
  const tuttiIbRail *rail = &e->node->rails[q->rail];
  const tuttiIbPort *p = &rail->port;
  if (tuttiIbRailGone(rail))
    return TUTTI_FAIL(tuttiSystemError,
                      "rank %d: %s on %s port %u for the connection with %s failed: %s; the device "
                      "was removed or has failed, see dmesg on this host",
                      e->meet.view->rank, call, p->device, p->port, e->meet.who,
                      tuttiErrnoText(err));
  return TUTTI_FAIL(tuttiSystemError,
                    "rank %d: %s on %s port %u for the connection with %s failed: %s; check "
                    "TUTTI_IB_PKEY, TUTTI_IB_SL and the GIDs (show_gids), limits of the device "
                    "(rdma resource) and locked memory (ulimit -q)",
                    e->meet.view->rank, call, p->device, p->port, e->meet.who, tuttiErrnoText(err));
}

/* Room on the completion queue for one more queue pair, all of whose requests may fail at once. */
static tuttiResult_t widenCq(tuttiIbEndpoint *e, const tuttiIbQueuePair *q) {
  tuttiIbRail *rail = &e->node->rails[q->rail];
  int needed = (rail->qps + 1) * (TUTTI_IB_SENDS + TUTTI_IB_RECEIVES);
  if (needed <= rail->cqe) return tuttiSuccess;
  int size = 2 * needed; /* for those to come, as far as the device goes */
  if (size > rail->mostCqe && needed <= rail->mostCqe) size = rail->mostCqe;
  int err = tuttiVerbs.resizeCq(rail->cq, size);
  if (err) return queuePairFailed(e, q, "ibv_resize_cq", err);
  rail->cqe = size;
  return tuttiSuccess;
}

static void destroyQp(tuttiIbEndpoint *e, int rail, struct ibv_qp *qp) {
  tuttiVerbs.destroyQp(qp);
  e->node->rails[rail].qps--;
}

/* Destroys those that were kept because their port was down; of all rails, if `rail` is -1. */
static void destroyDead(tuttiIbEndpoint *e, int rail) {
  for (tuttiIbDeadQueuePair **at = &e->dead, *d; (d = *at) != NULL;) {
    if (rail >= 0 && d->rail != rail) {
      at = &d->next;
      continue;
    }
    *at = d->next;
    destroyQp(e, d->rail, d->qp);
    tuttiFree(d);
  }
}

static void dropQueuePair(tuttiIbQueuePair *q) {
  if (!q->qp) return;
  tuttiIbEndpoint *e = q->end;
  const tuttiIbRail *rail = &e->node->rails[q->rail];
  tuttiIbDeadQueuePair *dead = NULL;
  if (!rail->port.up && !rail->gone)
    (void)tuttiAlloc((void **)&dead, 1, sizeof *dead, "a queue pair", e->meet.view->memory);
  if (dead) {
    *dead = (tuttiIbDeadQueuePair){.qp = q->qp, .rail = q->rail};
    TUTTI_LINK(e->dead, dead);
  } else {
    destroyQp(e, q->rail, q->qp);
  }
  q->qp = NULL;
}

/* Whether this side asks for completions of all that comes to it. The peer may, too. */
static bool wantsImmediates(const tuttiIbEndpoint *e) {
  const char *order = tuttiSettingString(TUTTI_SETTING_IB_ORDER);
  bool sends = tuttiIbSends(e), onGpu = e->meet.fifo.gpuData;
  if (strcmp(order, "auto") != 0) return strcmp(order, "immediate") == 0;
  if (!sends && (e->relaxed || tuttiIbHostTold() || (onGpu && e->node->gdr.relaxed))) return true;
  return onGpu && !tuttiIbGdrOrdered(e->node);
}

/* The FIFO of a receiver that asks for them, and of no sender: see port.c. */
static tuttiResult_t registerFifo(tuttiIbEndpoint *e, int rail) {
  bool relaxed = tuttiIbRelaxes(!tuttiIbSends(e) && wantsImmediates(e));
  e->relaxed |= relaxed;
  return tuttiIbRegister(e->node, rail, e->meet.fifo.descriptors, e->registered, relaxed,
                         &e->mr[rail]);
}

/* Makes the queue pair proper, on a port of this side that is up. */
static tuttiResult_t makeQueuePair(tuttiIbEndpoint *e, tuttiIbQueuePair *q, const uint8_t port[2]) {
  *q = (tuttiIbQueuePair){.end = e,
                          .pair = {.port = {port[0], port[1]}},
                          .rail = port[tuttiIbSide(e)],
                          .psn = (uint32_t)(tuttiNow() >> 6) & 0xffffff,
                          .maxInline = sizeof(tuttiIbDescriptor)};
  tuttiIbRail *r = &e->node->rails[q->rail];
  const char *call;
  destroyDead(e, q->rail);
  r->carries |= !tuttiIbSends(e) && e->meet.fifo.gpuData;
  if (!e->mr[q->rail]) TUTTI_TRY(registerFifo(e, q->rail));
  TUTTI_TRY(widenCq(e, q));
  int err = tuttiIbQueuePairCreate(r, r->cq, e->node->pkey, IBV_ACCESS_REMOTE_WRITE, &q->qp,
                                   &q->maxInline, &call);
  if (q->qp) r->qps++;
  return err ? queuePairFailed(e, q, call, err) : tuttiSuccess;
}

/* Joins it with the peer's queue pair, by the addresses that both told in offer and answer. *way:
 * false if it cannot be reached for now. */
static tuttiResult_t joinQueuePair(tuttiIbEndpoint *e, tuttiIbQueuePair *q,
                                   const tuttiIbQueuePairInfo *peer, bool *way) {
  int side = tuttiIbSide(e), gid[2];
  const tuttiIbPort *mine = &e->out.ports[q->pair.port[side]];
  const tuttiIbPort *theirs = &e->in.ports[q->pair.port[!side]];
  *way = tuttiIbGidChoose(mine, theirs, &gid[side], &gid[!side]) > 0;
  if (!*way) return tuttiSuccess;
  q->pair.gid[0] = (uint8_t)gid[0];
  q->pair.gid[1] = (uint8_t)gid[1];
  tuttiIbRemote remote = {.mtu = (enum ibv_mtu)(mine->mtu < theirs->mtu ? mine->mtu : theirs->mtu),
                          .qpn = peer->qpn,
                          .psn = peer->psn};
  q->rkey = peer->rkey;
  q->dataRkey = peer->dataRkey;
  /* False: the port has lost the address that the peer knows. */
  *way = tuttiIbAddress(&e->node->rails[q->rail], &mine->gids[gid[side]], theirs,
                        &theirs->gids[gid[!side]], e->meet.view->trafficClass, &remote.address);
  if (!*way) return tuttiSuccess;
  if (e->immediate) tuttiIbAwaitImmediates(q);
  int err = tuttiIbQueuePairReceive(q->qp, &remote);
  /* The kernel asks for the peer's Ethernet address here. */
  *way = err != ETIMEDOUT && err != EHOSTUNREACH && err != ENETUNREACH && err != ENODEV;
  if (!*way) return tuttiSuccess;
  if (err) return queuePairFailed(e, q, "ibv_modify_qp to RTR", err);
  err = tuttiIbQueuePairSend(q->qp, q->psn);
  if (err) return queuePairFailed(e, q, "ibv_modify_qp to RTS", err);
  e->parts[e->nparts++] = q;
  return tuttiSuccess;
}

void tuttiIbQueuePairsStop(void *end) {
  tuttiIbEndpoint *e = end;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
  for (int i = 0; i < e->nqps; i++)
    if (e->qps[i].qp) tuttiVerbs.modifyQp(e->qps[i].qp, &attr, IBV_QP_STATE);
}

/* Takes what has come on stopped queue pairs: behind it come the receives that are given up. A
 * device that does not answer has lost messages that are acknowledged, which resume() finds. */
static void drainReceives(tuttiIbEndpoint *e) {
  uint64_t deadline = tuttiNow() + DRAIN_NS;
  bool left = true;
  while (left && tuttiNow() < deadline) {
    tuttiIbPoll(e->node);
    left = false;
    for (int i = 0; i < e->nqps; i++)
      left |= e->qps[i].qp && e->qps[i].receives != e->qps[i].received &&
              !e->node->rails[e->qps[i].rail].gone;
  }
}

/* Stops first: some drivers wait in ibv_destroy_qp for as long as they resend. */
void tuttiIbQueuePairsClose(tuttiIbEndpoint *e, bool forGood) {
  tuttiIbQueuePairsStop(e);
  if (e->immediate && !forGood) drainReceives(e);
  for (int i = 0; i < e->nqps; i++)
    dropQueuePair(&e->qps[i]);
  if (forGood) destroyDead(e, -1);
  if (e->nqps || forGood) tuttiIbPoll(e->node); /* no completion names this endpoint any more */
  e->nqps = 0;
}

/* ---- handshakes ------ */

/* At most two handshakes are on their way to a peer, which always fit its socket. */
static void sendHandshake(tuttiIbEndpoint *e) {
  tuttiSocketPart *p = &e->meet.parts[0];
  if (tuttiSecureSend(p->source.fd, &e->out, sizeof e->out) != sizeof e->out)
    p->closed = true; /* by a peer that has finished; or if it died, the watch says so */
}

/* This side's ports as this connection can use them now, without those that are `unwanted`, by bit.
 */
static void tellPorts(const tuttiIbEndpoint *e, uint32_t unwanted, tuttiIbPort *ports) {
  const tuttiIbNode *node = e->node;
  for (int i = 0; i < node->nrails; i++) {
    bool reaches = !e->slab || (e->slab->mr[i] && !node->rails[i].late);
    ports[i] = node->rails[i].port;
    if (!reaches || ((e->unfit | unwanted) >> i & 1)) ports[i].up = 0;
  }
}

static void startHandshake(tuttiIbEndpoint *e, tuttiIbHandshakeKind kind, uint32_t epoch) {
  e->out = (tuttiIbHandshake){.magic = TUTTI_IB_MAGIC,
                              .kind = kind,
                              .epoch = epoch,
                              .immediate = wantsImmediates(e),
                              .control = (uintptr_t)e->control,
                              .data = (uintptr_t)e->meet.fifo.data,
                              .small = (uintptr_t)e->meet.fifo.small,
                              .smallBytes = e->meet.fifo.smallBytes,
                              .slotBytes = e->meet.fifo.slotBytes,
                              .nports = e->node->nrails};
  tellPorts(e, 0, e->out.ports);
}

/* Makes a queue pair and puts it into the handshake. */
static tuttiResult_t tellQueuePair(tuttiIbEndpoint *e, int i, const uint8_t port[2]) {
  tuttiIbQueuePair *q = &e->qps[i];
  TUTTI_TRY(makeQueuePair(e, q, port));
  e->out.qps[i] = (tuttiIbQueuePairInfo){.qpn = q->qp->qp_num,
                                         .psn = q->psn,
                                         .rkey = e->mr[q->rail]->rkey,
                                         .dataRkey = tuttiIbDataMr(e, q->rail)->rkey,
                                         .port = {port[0], port[1]}};
  return tuttiSuccess;
}

/* The rail's device has refused something, which is logged, or has gone. False: no other is left to
 * do it. Where the device has gone, ports that are down are waited for, as when it goes later. */
static bool goesWithout(tuttiIbEndpoint *e, int rail) {
  tuttiIbRail *rails = e->node->rails;
  tuttiIbPort ports[TUTTI_IB_PORTS];
  bool left = false, gone = tuttiIbRailGone(&rails[rail]);
  if (gone)
    tuttiIbRailLost(e->node, &rails[rail], TUTTI_IB_SILENT);
  else
    e->unfit |= 1u << rail;
  tellPorts(e, 0, ports);
  for (int i = 0; i < e->node->nrails; i++)
    left |= ports[i].up || (gone && !rails[i].gone);
  if (left)
    TUTTI_WARN(NET, "NET/IB: the connection with %s goes on without %s port %u", e->meet.who,
               ports[rail].device, ports[rail].port);
  return left;
}

/* *whole: a handshake is in e->in. Its content is not checked yet. */
static tuttiResult_t pullHandshake(tuttiIbEndpoint *e, bool *whole) {
  tuttiSocketPart *p = &e->meet.parts[0];
  *whole = false;
  if (p->source.fd < 0 || p->closed) return tuttiSuccess;
  while (e->got < sizeof e->in) {
    ssize_t n = tuttiSecureRecv(p->source.fd, (char *)&e->in + e->got, sizeof e->in - e->got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      p->source.readable = false;
      return tuttiSuccess;
    }
    if (n <= 0 && !tuttiIbSends(e) && !p->carried) {
      /* The sender lost patience before it saw the welcome, and dials again. */
      tuttiSocketCloseFd(e->meet.view->proxy, &p->source);
      return tuttiSuccess;
    }
    if (n <= 0) {
      p->closed = true; /* if it died rather than finished, the watch says so */
      tuttiStoreRelease(&e->confirmed, UINT64_MAX);
      return tuttiSuccess;
    }
    p->carried = true;
    e->got += (size_t)n;
  }
  e->got = 0;
  *whole = true;
  return tuttiSuccess;
}

static tuttiResult_t badHandshake(const tuttiIbEndpoint *e, const char *wrong) {
  return TUTTI_FAIL(
      tuttiRemoteError,
      "rank %d: what %s says about its RDMA queue pairs is not to be believed: %s; its "
      "memory or the network corrupts data, or it is another build of tutti",
      e->meet.view->rank, e->meet.who, wrong);
}

/* How long making or mending the queue pairs may take with a peer that answers: less than an
 * operation may wait, so that the error can name the port. */
static int64_t mendMs(const tuttiIbEndpoint *e) {
  return (int64_t)e->meet.view->timeoutMs / 4 * 3;
}

void tuttiIbCountBroken(tuttiIbEndpoint *e, bool broken) {
  if (e->broken == broken) return;
  tuttiFetchAddAcqRel32(&e->node->broken, broken ? 1 : UINT32_MAX); /* minus one */
  e->broken = broken;
}

/* Other queue pairs are needed; `trouble` tells why. */
static void leaveQueuePairs(tuttiIbEndpoint *e) {
  e->state = TUTTI_IB_BROKEN;
  e->looks = 0;
  e->gaveUp = false;
  tuttiIbCountBroken(e, true);
  if (!e->deadline) e->deadline = tuttiDeadline(mendMs(e));
}

/* `q`: the queue pair that broke, if it was one of them. */
static void setBroken(tuttiIbEndpoint *e, const tuttiIbQueuePair *q, const char *why) {
  char by[320];
  if (q)
    snprintf(e->trouble, sizeof e->trouble, "broke, by %.220s: %s",
             queuePairText(e, q, by, sizeof by), why);
  else
    snprintf(e->trouble, sizeof e->trouble, "broke, as %s", why);
  leaveQueuePairs(e);
}

/* How long a device sends again what is not acknowledged, before it gives up; it may take four
 * times as long. */
static uint64_t resendNs(void) {
  return (uint64_t)(tuttiSettingInt(TUTTI_SETTING_IB_RETRY_CNT) + 1) * 4096
         << tuttiSettingInt(TUTTI_SETTING_IB_TIMEOUT);
}

/* Of a rail that fails now: twice as long as before, if it had been tried because the time was over
 * and has not worked for long since. */
static uint64_t avoidNs(const tuttiIbEndpoint *e, uint64_t now) {
  uint64_t first = AVOID_RESENDS * resendNs();
  if (first < LEAST_AVOID) first = LEAST_AVOID;
  bool tried = e->avoidNs > 0 && now >= e->avoidUntil;
  if (!tried || now > e->avoidUntil + e->avoidNs + 4 * resendNs()) return first;
  return e->avoidNs < MOST_AVOIDS * first ? 2 * e->avoidNs : e->avoidNs;
}

/* The rail is not used for now, if others are left. The sender chooses. */
static void avoidRail(tuttiIbEndpoint *e, int rail) {
  uint64_t now = tuttiNow();
  e->retryAt = now + RETRY_NS;
  if (e->node->nrails == 1 || !tuttiIbSends(e)) return;
  if (!e->avoid) { /* the first of those that fail together */
    e->avoidNs = avoidNs(e, now);
    e->avoidUntil = now + e->avoidNs;
  }
  e->avoid |= 1u << rail;
}

/* ---- the sender ----------------------------------------------------------------------------- */

/* Number of the first queue pair, which carries small messages alone: channels take the ports by
 * turns, and so do peers, the next rank first. */
static int firstPair(const tuttiIbEndpoint *e) {
  const tuttiCommView *v = e->node->view;
  int ahead = (e->meet.fifo.peer - v->rank + v->nranks) % v->nranks;
  return e->meet.hello.channel + ahead - 1;
}

/* What queue pairs are to join now, as far as this side's ports are up; returns how many. */
static int choosePairs(const tuttiIbEndpoint *e, tuttiIbPair pairs[TUTTI_IB_QUEUE_PAIRS]) {
  tuttiIbHandle mine = e->node->mine;
  tellPorts(e, e->avoid, mine.ports);
  int each = (int)tuttiSettingInt(TUTTI_SETTING_IB_QPS_PER_CONNECTION), n = 0;
  if (e->railed && mine.ports[e->rail.port[0]].up && e->theirs.ports[e->rail.port[1]].up) {
    while (n < each)
      pairs[n++] = e->rail;
    return n;
  }
  int count = tuttiIbPairsFull(&mine, &e->theirs) * each;
  if (count > TUTTI_IB_QUEUE_PAIRS) count = TUTTI_IB_QUEUE_PAIRS;
  int found = tuttiIbPairsChoose(&mine, &e->theirs, firstPair(e), count, pairs);
  for (int i = 0; i < found; i++)
    if (mine.ports[pairs[i].port[0]].up) pairs[n++] = pairs[i];
  return n;
}

/* The same; without the rails that have failed, if others are left, else that is long ago for some.
 */
static int choosePairsAnew(tuttiIbEndpoint *e, tuttiIbPair pairs[TUTTI_IB_QUEUE_PAIRS]) {
  int n = choosePairs(e, pairs);
  if (n > 0 || !e->avoid) return n;
  e->avoid = 0;
  return choosePairs(e, pairs);
}

/* Makes queue pairs and puts them into the handshake. None: all ports are down. */
static tuttiResult_t fillOffer(tuttiIbEndpoint *e) {
  tuttiIbPair pairs[TUTTI_IB_QUEUE_PAIRS];
  tuttiResult_t result = tuttiSuccess;
  for (int tries = 0; tries <= e->node->nrails; tries++) {
    int n = choosePairsAnew(e, pairs);
    startHandshake(e, TUTTI_IB_OFFER, e->epoch + 1);
    for (e->nqps = 0; e->nqps < n && result == tuttiSuccess; e->nqps++)
      result = tellQueuePair(e, e->nqps, pairs[e->nqps].port);
    if (result == tuttiSuccess) break;
    int rail = e->qps[e->nqps - 1].rail;
    tuttiIbQueuePairsClose(e, false);
    if (!goesWithout(e, rail)) return result;
    result = tuttiSuccess;
  }
  e->out.nqps = e->nqps;
  return tuttiSuccess;
}

static tuttiResult_t offer(tuttiIbEndpoint *e) {
  tuttiIbQueuePairsClose(e, false);
  e->changes = e->node->changes;
  e->nparts = 0;
  TUTTI_TRY(fillOffer(e));
  if (e->nqps == 0) { /* its port may come back */
    e->retryAt = tuttiNow() + RETRY_NS;
    return tuttiSuccess;
  }
  e->epoch++;
  e->state = TUTTI_IB_OFFERED;
  sendHandshake(e);
  return tuttiSuccess;
}

/* Would other queue pairs be better, as ports have come or gone? */
static void considerPorts(tuttiIbEndpoint *e) {
  tuttiIbPair pairs[TUTTI_IB_QUEUE_PAIRS];
  const tuttiIbQueuePair *down = NULL;
  int n = choosePairs(e, pairs);
  bool same = n == e->nqps;
  if (n == 0 || !e->theirs.ports[pairs[0].port[1]].up) return; /* time may help */
  for (int i = 0; i < e->nqps; i++) {
    const tuttiIbQueuePair *q = &e->qps[i];
    same &= i < n && memcmp(q->pair.port, pairs[i].port, sizeof pairs[i].port) == 0;
    if (!e->node->rails[q->rail].port.up || !e->theirs.ports[q->pair.port[1]].up) down = q;
  }
  if (same || e->state != TUTTI_IB_RUNNING) return;
  if (down) {
    setBroken(e, down, "its port is down");
    return;
  }
  /* What broke and is not mended yet is told of, not what was better on the way. */
  if (!e->trouble[0])
    snprintf(e->trouble, sizeof e->trouble, "was moved, as other ports are better now");
  leaveQueuePairs(e);
}

/* The sender uses again what it has avoided for long enough. */
static void forgiveRails(tuttiIbEndpoint *e) {
  uint64_t now = tuttiNow();
  if (!e->avoid || now < e->avoidUntil) return;
  e->avoidUntil = now; /* where there was nothing to send, that is later */
  e->avoid = 0;
  considerPorts(e);
}

/* The first port of either side that is down, of those that the queue pairs use; NULL: none is. */
static const tuttiIbPort *downPort(const tuttiIbEndpoint *e, bool *theirs) {
  for (int i = 0; i < e->nqps; i++) {
    const tuttiIbQueuePair *q = &e->qps[i];
    const tuttiIbGid *gid;
    for (int side = 0; side < 2; side++) {
      const tuttiIbPort *mine =
          side == 0 ? &e->node->rails[q->rail].port : portOf(e, q, true, &gid);
      *theirs = side == 1;
      if (!mine->up) return mine;
    }
  }
  return NULL;
}

static void stateText(const tuttiIbEndpoint *e, char *buf, size_t size) {
  const tuttiIbQueuePair *q = e->nparts > 0 ? e->parts[0] : NULL;
  bool theirs;
  const tuttiIbPort *down = downPort(e, &theirs);
  char by[320];
  if (down)
    snprintf(buf, size, "port %u of %s of %s is down", down->port, down->device,
             theirs ? "the peer" : "this rank");
  else if (e->state == TUTTI_IB_MEETING)
    snprintf(buf, size, "its queue pairs are not made yet");
  else if (e->state != TUTTI_IB_RUNNING)
    snprintf(buf, size, "its queue pairs are being made anew: %.110s", e->trouble);
  else if (q && q->qp)
    snprintf(buf, size, "queue pair %u, %u requests under way, by %.100s", q->qp->qp_num,
             q->posted - q->done, queuePairText(e, q, by, sizeof by));
}

static void nicText(const tuttiIbPort *port, int more, char *buf, size_t size) {
  snprintf(buf, size, "%.15s:%u", port->device, port->port);
  if (more > 0) tuttiAppend(buf, size, "+%d", more);
}

static void tellRate(const tuttiIbEndpoint *e, tuttiProxyFacts *out) {
  const tuttiIbGid *gid;
  uint32_t used = 0;
  if (!tuttiMeterRate(&e->meet.meter, &out->rate, &out->allRate)) return;
  for (int p = 0; p < e->nparts; p++)
    used |= 1u << e->parts[p]->rail;
  int more = __builtin_popcount(used) - 1; /* of this side; the peer's are not counted */
  nicText(portOf(e, e->parts[0], false, &gid), more, out->nic[0], sizeof out->nic[0]);
  nicText(portOf(e, e->parts[0], true, &gid), 0, out->nic[1], sizeof out->nic[1]);
}

bool tuttiIbTell(void *end, tuttiProxyFacts *out) {
  const tuttiIbEndpoint *e = end;
  const tuttiConn *fifo = &e->meet.fifo;
  bool sends = tuttiIbSends(e);
  uint64_t taken = tuttiLoadAcquire(&fifo->readers->credit),
           written = sends ? taken : e->meet.passed;
  if (sends && e->meet.known > written) written = e->meet.known;
  while (sends && written < taken + TUTTI_FIFO_DEPTH &&
         tuttiLoadAcquire(&fifo->descriptors[written % TUTTI_FIFO_DEPTH].seq) == written + 1)
    written++;
  uint64_t confirmed = sends ? tuttiLoadAcquire(&e->confirmed) : taken;
  if (confirmed > written) confirmed = written; /* all, once the peer has closed its end */
  *out = (tuttiProxyFacts){.peer = fifo->peer,
                           .channel = fifo->channel,
                           .sends = sends,
                           .busy = confirmed < written || e->state != TUTTI_IB_RUNNING,
                           .written = written,
                           .taken = confirmed};
  stateText(e, out->text, sizeof out->text);
  if (sends && e->state == TUTTI_IB_RUNNING) tellRate(e, out);
  return true;
}

void tuttiIbWorks(tuttiIbEndpoint *e) {
  char text[320];
  e->deadline = 0;
  tuttiIbCountBroken(e, false);
  if (e->trouble[0]) tuttiFetchAddAcqRel(&e->meet.view->mended, 1);
  if (e->trouble[0])
    TUTTI_WARN(NET, "NET/IB: the connection with %s %s; it works again, by %s, %d queue pairs",
               e->meet.who, e->trouble, queuePairText(e, e->parts[0], text, sizeof text),
               e->nparts);
  else
    TUTTI_INFO(NET, "NET/IB: %s by %s, %d queue pairs", e->meet.who,
               queuePairText(e, e->parts[0], text, sizeof text), e->nparts);
  e->trouble[0] = '\0';
}

/* Message m was acknowledged by the peer's device, which has not said so to the peer. */
static tuttiResult_t missing(const tuttiIbEndpoint *e, uint64_t m) {
  char by[320];
  return TUTTI_FAIL(tuttiRemoteError,
                    "rank %d: the device of %s has acknowledged message %llu and then lost it, or "
                    "its completion; "
                    "queue pairs by %s; see dmesg on that host, and the firmware of the device",
                    e->meet.view->rank, e->meet.who, (unsigned long long)m,
                    queuePairText(e, &e->qps[0], by, sizeof by));
}

/* Goes on where the receiver says. What it has not got must still be here. */
static tuttiResult_t resume(tuttiIbEndpoint *e) {
  uint64_t at = e->in.resume, passed = e->meet.passed;
  if (at < e->credit || at > e->meet.known || e->in.credit > at)
    return badHandshake(e, "it has another number of messages");
  for (uint64_t m = at; m < passed; m++)
    if (e->meet.payload[m % TUTTI_FIFO_DEPTH]) return missing(e, m);
  memset(e->pending, 0, sizeof e->pending);
  for (int i = 0; i < (int)TUTTI_FIFO_DEPTH; i++) /* it tells anew what it still wants */
    tuttiStoreRelaxed(&e->control->wants[i].first, 0);
  memset(e->heard, 0, sizeof e->heard);
  tuttiIbPassTo(e, at);
  if (e->in.credit > e->credit) e->credit = e->in.credit;
  e->posted = at;
  tuttiStoreRelease(&e->confirmed, at);
  if (at == e->meet.known) tuttiIbWorks(e);
  e->state = TUTTI_IB_RUNNING;
  return tuttiSuccess;
}

/* Joins what the receiver has answered. *failed: NULL, or a queue pair that finds no way. */
static tuttiResult_t joinAnswered(tuttiIbEndpoint *e, const tuttiIbQueuePair **failed) {
  *failed = NULL;
  for (int i = 0; i < e->in.nqps; i++) {
    bool way = true;
    tuttiIbQueuePair *q = &e->qps[i];
    if (e->in.qps[i].qpn) {
      tuttiResult_t result = joinQueuePair(e, q, &e->in.qps[i], &way);
      if (result != tuttiSuccess && !goesWithout(e, q->rail)) return result;
      if (result != tuttiSuccess || !way) *failed = q;
    } else {
      dropQueuePair(q);
      /* Though its port is up: the way between the two is no good. */
      if (e->theirs.ports[q->pair.port[1]].up) avoidRail(e, q->rail);
    }
  }
  return tuttiSuccess;
}

static tuttiResult_t takeAnswer(tuttiIbEndpoint *e) {
  const tuttiIbQueuePair *failed;
  TUTTI_TRY(joinAnswered(e, &failed));
  if (failed) {
    bool gone = e->node->rails[failed->rail].gone;
    setBroken(e, failed, gone ? RAIL_GONE : "the peer's port does not answer");
    avoidRail(e, failed->rail);
    return tuttiSuccess;
  }
  if (e->nparts == 0) {
    tuttiIbPair pairs[TUTTI_IB_QUEUE_PAIRS];
    int n = choosePairs(e, pairs);
    bool other = n > 0 && e->theirs.ports[pairs[0].port[1]].up;
    setBroken(e, NULL, "the peer's ports are down");
    if (!other) e->retryAt = tuttiNow() + RETRY_NS; /* time may help */
    return tuttiSuccess;
  }
  TUTTI_TRY(resume(e));
  considerPorts(e); /* the receiver's may be others than was known */
  return tuttiSuccess;
}

/* ---- the receiver --------------------------------------------------------------------------- */

/* Answers queue pair number i of the offer, if it can be joined. */
static tuttiResult_t answerQueuePair(tuttiIbEndpoint *e, int i) {
  const tuttiIbQueuePairInfo *offered = &e->in.qps[i];
  bool way = true;
  TUTTI_TRY(tellQueuePair(e, i, offered->port));
  TUTTI_TRY(joinQueuePair(e, &e->qps[i], offered, &way));
  if (way) return tuttiSuccess;
  dropQueuePair(&e->qps[i]);
  e->out.qps[i].qpn = 0;
  return tuttiSuccess;
}

static tuttiResult_t takeOffer(tuttiIbEndpoint *e) {
  bool moved;
  tuttiIbQueuePairsClose(e, false); /* what they have brought is all that will come */
  TUTTI_TRY(tuttiIbTakeMessages(e, &moved));
  memset(e->control, 0, sizeof *e->control);
  e->stalled = false;
  e->nparts = 0;
  e->changes = e->node->changes;
  startHandshake(e, TUTTI_IB_ANSWER, e->in.epoch);
  e->out.immediate |= e->in.immediate;
  e->immediate = e->out.immediate != 0;
  e->out.nqps = e->nqps = e->in.nqps;
  e->out.resume = e->joined = e->arrived;
  e->out.credit = e->credit = tuttiLoadAcquire(&e->meet.fifo.readers->credit);
  for (int i = 0; i < e->in.nqps; i++) {
    int rail = e->in.qps[i].port[1];
    if (!e->in.qps[i].qpn || !e->out.ports[rail].up) continue;
    tuttiResult_t result = answerQueuePair(e, i);
    if (result == tuttiSuccess) continue;
    dropQueuePair(&e->qps[i]);
    e->out.qps[i].qpn = 0;
    if (!goesWithout(e, rail)) return result;
    tellPorts(e, 0, e->out.ports);
  }
  e->deadline = 0; /* without any queue pair, the sender asks again */
  e->state = e->nparts ? TUTTI_IB_RUNNING : TUTTI_IB_BROKEN;
  e->looks = 0;
  e->gaveUp = false; /* what the old ones gave up says nothing of these */
  /* That they carry messages the sender alone finds out. */
  if (e->nparts) tuttiIbCountBroken(e, false);
  sendHandshake(e);
  return tuttiSuccess;
}

/* Tells the sender, who chooses, if it does not know. */
static void tellNews(tuttiIbEndpoint *e) {
  tuttiIbPort ports[TUTTI_IB_PORTS];
  bool same = true;
  tellPorts(e, 0, ports);
  for (int i = 0; i < e->node->nrails; i++)
    same &= tuttiIbPortSame(&ports[i], &e->out.ports[i]);
  if (same) return;
  startHandshake(e, TUTTI_IB_NEWS, e->in.epoch);
  sendHandshake(e);
}

/* ---- both ----------------------------------------------------------------------------------- */

void tuttiIbBreak(tuttiIbEndpoint *e, const tuttiIbQueuePair *q, const char *why) {
  if (e->state != TUTTI_IB_RUNNING) return;
  setBroken(e, q, why);
  if (q) avoidRail(e, q->rail);
  if (tuttiIbSends(e)) return;
  startHandshake(e, TUTTI_IB_AGAIN, e->in.epoch);
  if (q) e->out.failed = 1u << (q - e->qps);
  sendHandshake(e);
}

static tuttiResult_t overdue(const tuttiIbEndpoint *e) {
  char ports[360], theirs[360];
  return TUTTI_FAIL(
      tuttiRemoteError,
      "rank %d: the RDMA connection with %s could not be %s within %lld ms%s%s; ports "
      "here: %s; there: %s; check link and cable of these ports, the switch, the GIDs on both "
      "hosts (show_gids), and that TUTTI_IB_PKEY names the same partition on both",
      e->meet.view->rank, e->meet.who, e->trouble[0] ? "mended" : "made", (long long)mendMs(e),
      e->trouble[0] ? "; it " : "", e->trouble,
      tuttiIbPortsText(e->node->mine.ports, e->node->nrails, ports, sizeof ports),
      tuttiIbPortsText(e->theirs.ports, e->theirs.nports, theirs, sizeof theirs));
}

/* Ports of this side have come or gone, or have other addresses. */
static void takeChanges(tuttiIbEndpoint *e) {
  e->changes = e->node->changes;
  e->avoid = e->unfit = 0;
  if (tuttiIbSends(e))
    considerPorts(e);
  else
    tellNews(e);
  /* Such a queue pair says no more than that its requests were given up. */
  for (int i = 0; i < e->nqps && e->state == TUTTI_IB_RUNNING; i++)
    if (e->qps[i].qp && e->node->rails[e->qps[i].rail].gone) setBroken(e, &e->qps[i], RAIL_GONE);
}

static tuttiResult_t meet(tuttiIbEndpoint *e, tuttiProxyTurn *turn) {
  tuttiSocketEndpoint *s = &e->meet;
  bool sends = tuttiIbSends(e);
  if (sends) TUTTI_TRY(tuttiSocketJoinStep(s, turn));
  if (!sends && !s->listed) tuttiSocketAwait(s);
  if (sends ? s->join.part == s->nparts : s->nparts > 0) e->state = TUTTI_IB_BROKEN;
  if (sends) e->deadline = tuttiDeadline(mendMs(e));
  return tuttiSuccess;
}

/* Queue pairs have failed at the receiver. */
static void breakAgain(tuttiIbEndpoint *e) {
  setBroken(e, NULL, "the peer asked for new queue pairs");
  for (int i = 0; i < e->nqps; i++)
    if (e->in.failed >> i & 1) avoidRail(e, e->qps[i].rail);
}

/* A handshake has come. */
static tuttiResult_t takeHandshake(tuttiIbEndpoint *e) {
  bool sends = tuttiIbSends(e), answers = e->in.kind == TUTTI_IB_ANSWER;
  const int nports[2] = {e->theirs.nports, e->node->nrails};
  const char *wrong =
      tuttiIbHandshakeCheck(&e->in, e->meet.fifo.slotBytes, nports, answers ? &e->out : NULL);
  if (!wrong &&
      (sends == (e->in.kind == TUTTI_IB_OFFER) || (answers && e->state != TUTTI_IB_OFFERED)))
    wrong = "it is out of turn";
  if (wrong) return badHandshake(e, wrong);
  memcpy(e->theirs.ports, e->in.ports, sizeof e->theirs.ports);
  e->immediate = answers ? e->in.immediate != 0 : e->immediate;
  if (answers) return takeAnswer(e);
  if (!sends) return takeOffer(e);
  if (e->state != TUTTI_IB_RUNNING) return tuttiSuccess;
  if (e->in.kind == TUTTI_IB_AGAIN) {
    if (e->in.epoch == e->epoch) breakAgain(e);
  } else {
    e->avoid = 0;
    considerPorts(e);
  }
  return tuttiSuccess;
}

/* The peer has closed its socket: there is nobody to mend it with. Who has finished had all that it
 * waited for, and only what acknowledged it was lost; if the peer died, the watch says so. */
static tuttiResult_t giveUp(tuttiIbEndpoint *e) {
  const tuttiCommView *v = e->meet.view;
  const tuttiIbPort *p = &e->node->rails[e->qps[0].rail].port;
  e->deadline = 0;
  tuttiIbCountBroken(e, false);
  if (tuttiIbSends(e)) tuttiIbPassTo(e, e->meet.known);
  tuttiStoreRelease(&e->confirmed, UINT64_MAX);
  if (tuttiIbSends(e) || !e->stalled) return tuttiSuccess;
  return TUTTI_FAIL(
      tuttiSystemError,
      "rank %d (host %s): message %llu of %s is there, but %s port %u has not said so "
      "by a completion, and the peer has finished; see dmesg on this host, and the "
      "firmware of the device",
      v->rank, v->peers[v->rank].host, (unsigned long long)e->arrived, e->meet.who, p->device,
      p->port);
}

/* It had never worked, so that the peer cannot have finished with it, if it was of use. */
static tuttiResult_t cutShort(const tuttiIbEndpoint *e) {
  if (tuttiIbSends(e) && !tuttiSocketIsUsed(&e->meet)) return tuttiSuccess;
  return TUTTI_FAIL(tuttiRemoteError,
                    "rank %d: the connection with %s was closed before they had agreed on RDMA "
                    "queue pairs; see the log of that rank, and what may close connections between "
                    "the hosts (firewalls, address translation)",
                    e->meet.view->rank, e->meet.who);
}

/* Fails when it takes too long, and sees to it that there is another turn before. */
static tuttiResult_t watchDeadline(tuttiIbEndpoint *e, tuttiProxyTurn *turn) {
  /* A peer that never answered may not have come to its first call: no matter of the queue pairs.
   */
  if (e->state == TUTTI_IB_OFFERED && !e->trouble[0]) e->deadline = tuttiDeadline(mendMs(e));
  if (e->state == TUTTI_IB_RUNNING || e->deadline == 0) return tuttiSuccess;
  if (tuttiNow() >= e->deadline) return overdue(e);
  uint64_t next = tuttiNow() + RETRY_NS;
  tuttiProxyWakeBy(turn, next < e->deadline ? next : e->deadline);
  return tuttiSuccess;
}

tuttiResult_t tuttiIbMeetStep(tuttiIbEndpoint *e, tuttiProxyTurn *turn, bool *moved) {
  tuttiIbState before = e->state;
  bool whole = false;
  if (e->state == TUTTI_IB_MEETING) TUTTI_TRY(meet(e, turn));
  if (e->state == TUTTI_IB_MEETING) return tuttiSuccess;
  if (e->meet.parts[0].source.readable) TUTTI_TRY(pullHandshake(e, &whole));
  if (whole) TUTTI_TRY(takeHandshake(e));
  e->ran |= e->state == TUTTI_IB_RUNNING;
  if (e->state == TUTTI_IB_RUNNING && e->changes != e->node->changes) takeChanges(e);
  if (e->state == TUTTI_IB_RUNNING) forgiveRails(e);
  if (e->meet.parts[0].closed && e->state != TUTTI_IB_RUNNING) {
    if (!e->ran) return cutShort(e);
    return giveUp(e);
  }
  if (e->state == TUTTI_IB_BROKEN && tuttiIbSends(e) && tuttiNow() >= e->retryAt)
    TUTTI_TRY(offer(e));
  *moved |= whole || e->state != before;
  return watchDeadline(e, turn);
}

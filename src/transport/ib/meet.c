/* How NET/IB connections are made, and mended when a port or a path fails.
 *
 * The sender always leads: it makes queue pairs, offers them in a card over the socket by which the
 * ends met, and gets the receiver's in the answer. To mend a connection both drop their queue pairs
 * and do the same again over the ports that are up; a receiver whose side is broken asks for it
 * (AGAIN). Nothing is lost, for a message stays with the sender until the receiver's hardware has
 * acknowledged it; and nothing comes twice, for the receiver first closes the old queue pairs,
 * counts what they have brought, and answers with that number. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/os.h"
#include "base/settings.h"
#include "transport/ib/endpoint.h"

#define RETRY_NS 100000000u /* between offers while a path is broken or the peer has no port */

/* ---- queue pairs ---------------------------------------------------------------------------- */

/* What link `l` joins on this side, or on the peer's. */
static const tuttiIbPort *portOf(const tuttiIbEnd *e, const tuttiIbLink *l, bool peers,
                                 const tuttiIbGid **gid) {
  int side = tuttiIbSends(e) == peers; /* see tuttiIbPair */
  const tuttiIbHandle *h = peers ? &e->theirs : &e->node->mine;
  const tuttiIbPort *port = &h->ports[l->pair.port[side]];
  *gid = &port->gids[l->pair.gid[side]];
  return port;
}

/* "rxe0 port 1, 10.0.0.1 (RoCE v2, index 1), to its rxe0 port 1, ..."; returns buf. */
static const char *linkText(const tuttiIbEnd *e, const tuttiIbLink *l, char *buf, size_t size) {
  const tuttiIbGid *from, *to;
  const tuttiIbPort *mine = portOf(e, l, false, &from), *theirs = portOf(e, l, true, &to);
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

static tuttiResult_t linkFailed(const tuttiIbEnd *e, const tuttiIbLink *l, const char *call,
                                int err) {
  const tuttiIbPort *p = &e->node->rails[l->rail].port;
  return TUTTI_FAIL(tuttiSystemError,
                    "rank %d: %s on %s port %u for the connection with %s failed: %s; check "
                    "TUTTI_IB_PKEY, TUTTI_IB_SL and the GIDs (show_gids), limits of the device "
                    "(rdma resource) and locked memory (ulimit -l)",
                    e->meet.wires->rank, call, p->device, p->port, e->meet.who,
                    tuttiErrnoText(err));
}

/* Room on the completion queue for one more link, all of whose requests may fail at once. */
static tuttiResult_t widenCq(tuttiIbEnd *e, const tuttiIbLink *l) {
  tuttiIbRail *rail = &e->node->rails[l->rail];
  int needed = (rail->links + 1) * TUTTI_IB_SENDS;
  if (needed <= rail->cqe) return tuttiSuccess;
  int err = tuttiVerbs.resizeCq(rail->cq, 2 * needed);
  if (err) return linkFailed(e, l, "ibv_resize_cq", err);
  rail->cqe = 2 * needed;
  return tuttiSuccess;
}

static void destroyQp(const tuttiIbLink *l, struct ibv_qp **qp) {
  if (!*qp) return;
  tuttiVerbs.destroyQp(*qp);
  *qp = NULL;
  l->end->node->rails[l->rail].links--;
}

/* Makes the queue pair of a link whose pair is chosen and whose port is up. */
static tuttiResult_t makeLink(tuttiIbEnd *e, tuttiIbLink *l) {
  destroyQp(l, &l->dead);
  *l = (tuttiIbLink){.end = e,
                     .pair = l->pair,
                     .rail = l->pair.port[!tuttiIbSends(e)],
                     .psn = (uint32_t)(tuttiNow() >> 6) & 0xffffff};
  tuttiIbRail *r = &e->node->rails[l->rail];
  size_t control = (size_t)(e->meet.fifo.data - (uint8_t *)e->meet.fifo.slots);
  if (!e->mr[l->rail])
    TUTTI_TRY(tuttiIbRegister(e->node, l->rail, e->meet.fifo.slots,
                              control + TUTTI_FIFO_DEPTH * e->meet.fifo.slotBytes,
                              &e->mr[l->rail]));
  TUTTI_TRY(widenCq(e, l));
  struct ibv_qp_init_attr init = {.send_cq = r->cq,
                                  .recv_cq = r->cq,
                                  .qp_type = IBV_QPT_RC,
                                  .cap = {.max_send_wr = TUTTI_IB_SENDS,
                                          .max_recv_wr = 1,
                                          .max_send_sge = 1,
                                          .max_recv_sge = 1,
                                          .max_inline_data = sizeof(tuttiIbLine)}};
  l->qp = tuttiVerbs.createQp(r->pd, &init);
  if (!l->qp) {
    init.cap.max_inline_data = 0; /* not every device has it */
    l->qp = tuttiVerbs.createQp(r->pd, &init);
  }
  if (!l->qp) return linkFailed(e, l, "ibv_create_qp", errno);
  r->links++;
  l->maxInline = init.cap.max_inline_data;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                             .pkey_index = e->node->pkey,
                             .port_num = r->port.port,
                             .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
  int err = tuttiVerbs.modifyQp(
      l->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  return err ? linkFailed(e, l, "ibv_modify_qp to INIT", err) : tuttiSuccess;
}

/* False: the port has lost the address that the peer knows. */
static bool addressOf(const tuttiIbEnd *e, const tuttiIbLink *l, struct ibv_ah_attr *ah) {
  const tuttiIbGid *from, *to;
  const tuttiIbPort *mine = portOf(e, l, false, &from), *theirs = portOf(e, l, true, &to);
  *ah = (struct ibv_ah_attr){.dlid = theirs->lid,
                             .sl = (uint8_t)tuttiSettingInt(TUTTI_SETTING_IB_SL),
                             .port_num = mine->port};
  /* Within one InfiniBand subnet the LID is all that is needed. */
  bool subnet = mine->ngids && theirs->ngids && memcmp(from->gid, to->gid, 8) == 0;
  if (!mine->ethernet && (subnet || !theirs->ngids)) return true;
  int row = tuttiIbGidRow(&e->node->rails[l->rail], from);
  ah->is_global = 1;
  ah->grh.sgid_index = (uint8_t)row;
  ah->grh.hop_limit = 255;
  ah->grh.traffic_class = e->meet.wires->trafficClass;
  memcpy(ah->grh.dgid.raw, to->gid, sizeof to->gid);
  return row >= 0;
}

/* Joins the link with the peer's queue pair. *way: false if it cannot be reached for now. */
static tuttiResult_t joinLink(tuttiIbEnd *e, tuttiIbLink *l, const tuttiIbLinkCard *peer,
                              bool *way) {
  const tuttiIbGid *gid;
  int mine = portOf(e, l, false, &gid)->mtu, theirs = portOf(e, l, true, &gid)->mtu;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                             .path_mtu = (enum ibv_mtu)(mine < theirs ? mine : theirs),
                             .dest_qp_num = peer->qpn,
                             .rq_psn = peer->psn,
                             .max_dest_rd_atomic = 1,
                             .min_rnr_timer = 12};
  l->rkey = peer->rkey;
  *way = addressOf(e, l, &attr.ah_attr);
  if (!*way) return tuttiSuccess;
  int err =
      tuttiVerbs.modifyQp(l->qp, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  /* The kernel asks for the peer's Ethernet address here. */
  *way = err != ETIMEDOUT && err != EHOSTUNREACH && err != ENETUNREACH && err != ENODEV;
  if (!*way) return tuttiSuccess;
  if (err) return linkFailed(e, l, "ibv_modify_qp to RTR", err);
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                              .sq_psn = l->psn,
                              .timeout = (uint8_t)tuttiSettingInt(TUTTI_SETTING_IB_TIMEOUT),
                              .retry_cnt = (uint8_t)tuttiSettingInt(TUTTI_SETTING_IB_RETRY_CNT),
                              .rnr_retry = 7,
                              .max_rd_atomic = 1};
  err = tuttiVerbs.modifyQp(l->qp, &attr,
                            IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  if (err) return linkFailed(e, l, "ibv_modify_qp to RTS", err);
  e->parts[e->nparts++] = l;
  return tuttiSuccess;
}

static void dropLink(tuttiIbLink *l) {
  if (l->qp && !l->end->node->rails[l->rail].port.up) {
    l->dead = l->qp;
    l->qp = NULL;
  }
  destroyQp(l, &l->qp);
}

void tuttiIbLinksStop(void *end) {
  tuttiIbEnd *e = end;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
  for (int i = 0; i < e->nlinks; i++)
    if (e->links[i].qp) tuttiVerbs.modifyQp(e->links[i].qp, &attr, IBV_QP_STATE);
}

/* Stops first: some drivers wait in ibv_destroy_qp for as long as they resend. */
void tuttiIbLinksClose(tuttiIbEnd *e, bool forGood) {
  tuttiIbLinksStop(e);
  for (int i = 0; i < e->nlinks; i++)
    dropLink(&e->links[i]);
  for (int i = 0; i < TUTTI_IB_LINKS && forGood; i++)
    destroyQp(&e->links[i], &e->links[i].dead);
  if (e->nlinks || forGood) tuttiIbPoll(e->node); /* no completion names this end any more */
  e->nlinks = 0;
}

/* ---- cards ---------------------------------------------------------------------------------- */

/* At most two cards are on their way to a peer, which always fit its socket. */
static void sendCard(tuttiIbEnd *e) {
  tuttiSocketPart *p = &e->meet.parts[0];
  if (send(p->source.fd, &e->out, sizeof e->out, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof e->out)
    p->closed = true; /* by a peer that has finished; or if it died, the watch says so */
}

static void startCard(tuttiIbEnd *e, tuttiIbCardKind kind, uint32_t epoch) {
  e->out = (tuttiIbCard){.magic = TUTTI_IB_MAGIC,
                         .kind = kind,
                         .epoch = epoch,
                         .board = (uintptr_t)e->board,
                         .data = (uintptr_t)e->meet.fifo.data,
                         .slotBytes = e->meet.fifo.slotBytes};
}

/* Makes a link and puts it into the card. */
static tuttiResult_t tellLink(tuttiIbEnd *e, int i) {
  tuttiIbLink *l = &e->links[i];
  TUTTI_TRY(makeLink(e, l));
  e->out.links[i] =
      (tuttiIbLinkCard){.qpn = l->qp->qp_num, .psn = l->psn, .rkey = e->mr[l->rail]->rkey};
  return tuttiSuccess;
}

/* Chooses what link number i joins. False: it can't be used now, as this side's port is down or
 * `unwanted` (by bit). */
static bool chooseLink(tuttiIbEnd *e, int i, uint32_t unwanted) {
  bool sends = tuttiIbSends(e);
  tuttiIbPair *pair = &e->links[i].pair;
  const tuttiIbHandle *mine = &e->node->mine;
  if (!tuttiIbPairChoose(sends ? mine : &e->theirs, sends ? &e->theirs : mine,
                         i + e->meet.hello.channel, pair))
    return false;
  int rail = pair->port[!sends];
  return e->node->rails[rail].port.up && !(unwanted >> rail & 1);
}

/* *whole: a card is in e->in. Its content is not checked yet. */
static tuttiResult_t pullCard(tuttiIbEnd *e, bool *whole) {
  tuttiSocketPart *p = &e->meet.parts[0];
  *whole = false;
  if (p->source.fd < 0 || p->closed) return tuttiSuccess;
  while (e->got < sizeof e->in) {
    ssize_t n = recv(p->source.fd, (char *)&e->in + e->got, sizeof e->in - e->got, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      p->source.readable = false;
      return tuttiSuccess;
    }
    if (n <= 0 && !tuttiIbSends(e) && !p->carried) {
      /* The sender lost patience before it saw the welcome, and dials again. */
      tuttiSocketCloseFd(e->meet.wires->proxy, &p->source);
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

static tuttiResult_t badCard(const tuttiIbEnd *e, const char *wrong) {
  return TUTTI_FAIL(tuttiRemoteError,
                    "rank %d: what %s says about its RDMA links is not to be believed: %s; its "
                    "memory or the network corrupts data, or it is another build of tutti",
                    e->meet.wires->rank, e->meet.who, wrong);
}

/* How long making or mending the links may take with a peer that answers: less than an operation
 * may wait, so that the error can name the port. */
static int64_t mendMs(const tuttiIbEnd *e) {
  return (int64_t)e->meet.wires->timeoutMs / 4 * 3;
}

/* Without a link: what works is given up for something better. */
static void setBroken(tuttiIbEnd *e, const tuttiIbLink *link, const char *why) {
  char by[320];
  if (link) {
    snprintf(e->trouble, sizeof e->trouble, "by %.220s: %s", linkText(e, link, by, sizeof by), why);
    e->retryAt = tuttiNow() + RETRY_NS;
    if (e->node->nrails > 1) e->avoid |= 1u << link->rail;
  } else {
    snprintf(e->trouble, sizeof e->trouble, "%s", why);
  }
  e->state = TUTTI_IB_BROKEN;
  if (!e->deadline) e->deadline = tuttiDeadline(mendMs(e));
}

/* ---- the sender ----------------------------------------------------------------------------- */

static tuttiResult_t offer(tuttiIbEnd *e) {
  int ports = e->theirs.nports > e->node->nrails ? e->theirs.nports : e->node->nrails, made = 0;
  int count = ports * (int)tuttiSettingInt(TUTTI_SETTING_IB_QPS_PER_CONNECTION);
  tuttiIbLinksClose(e, false);
  e->changes = e->node->changes;
  e->nparts = 0;
  startCard(e, TUTTI_IB_OFFER, e->epoch + 1);
  e->out.nlinks = e->nlinks = count < TUTTI_IB_LINKS ? count : TUTTI_IB_LINKS;
  /* Without the rails that have failed, if others are left; else that is long ago for some. */
  for (int tries = 2; tries > 0 && made == 0; tries--) {
    for (int i = 0; i < e->nlinks; i++) {
      if (!chooseLink(e, i, e->avoid)) continue;
      TUTTI_TRY(tellLink(e, i));
      made++;
    }
    if (made == 0) e->avoid = 0;
  }
  if (made == 0) { /* its port may come back */
    e->retryAt = tuttiNow() + RETRY_NS;
    return tuttiSuccess;
  }
  e->epoch++;
  e->state = TUTTI_IB_OFFERED;
  sendCard(e);
  return tuttiSuccess;
}

void tuttiIbWorks(tuttiIbEnd *e) {
  char text[320];
  e->deadline = 0;
  if (e->trouble[0])
    TUTTI_WARN(NET,
               "NET/IB: the connection with %s broke, %s; it works again, by %s, %d queue pairs",
               e->meet.who, e->trouble, linkText(e, e->parts[0], text, sizeof text), e->nparts);
  else
    TUTTI_INFO(NET, "NET/IB: %s by %s, %d queue pairs", e->meet.who,
               linkText(e, e->parts[0], text, sizeof text), e->nparts);
  e->trouble[0] = '\0';
}

/* Goes on where the receiver says. What it has not got must still be here. */
static tuttiResult_t resume(tuttiIbEnd *e) {
  uint64_t at = e->in.resume, passed = e->meet.passed;
  if (at < e->credit || at > e->meet.known || e->in.taken > at)
    return badCard(e, "it has another number of messages");
  for (uint64_t m = at; m < passed; m++)
    if (e->meet.payload[m % TUTTI_FIFO_DEPTH])
      return badCard(e, "a message is missing that it had acknowledged");
  memset(e->pending, 0, sizeof e->pending);
  tuttiIbPassTo(e, at);
  if (e->in.taken > e->credit) e->credit = e->in.taken;
  e->posted = at;
  tuttiStoreRelease(&e->confirmed, at);
  if (at == e->meet.known) tuttiIbWorks(e);
  e->state = TUTTI_IB_RUNNING;
  return tuttiSuccess;
}

static tuttiResult_t takeAnswer(tuttiIbEnd *e) {
  for (int i = 0; i < e->in.nlinks; i++) {
    bool way = true;
    tuttiIbLink *l = &e->links[i];
    if (!e->in.links[i].qpn)
      dropLink(l);
    else
      TUTTI_TRY(joinLink(e, l, &e->in.links[i], &way));
    if (!way) {
      setBroken(e, l, "the peer's port does not answer");
      return tuttiSuccess;
    }
  }
  if (e->nparts) return resume(e);
  setBroken(e, NULL, "the peer's ports are down"); /* time may help */
  e->retryAt = tuttiNow() + RETRY_NS;
  return tuttiSuccess;
}

/* ---- the receiver --------------------------------------------------------------------------- */

static tuttiResult_t takeOffer(tuttiIbEnd *e) {
  bool moved;
  tuttiIbLinksClose(e, false); /* what they have brought is all that will come */
  TUTTI_TRY(tuttiIbTakeMessages(e, &moved));
  memset(e->board, 0, sizeof *e->board);
  e->nparts = 0;
  e->changes = e->node->changes;
  startCard(e, TUTTI_IB_ANSWER, e->in.epoch);
  e->out.nlinks = e->nlinks = e->in.nlinks;
  e->out.resume = e->meet.passed;
  e->out.taken = e->credit = tuttiLoadAcquire(&e->meet.fifo.heads->head);
  for (int i = 0; i < e->in.nlinks; i++) {
    bool way;
    if (!chooseLink(e, i, 0) || !e->in.links[i].qpn) continue;
    TUTTI_TRY(tellLink(e, i));
    TUTTI_TRY(joinLink(e, &e->links[i], &e->in.links[i], &way));
    if (way) continue;
    dropLink(&e->links[i]);
    e->out.links[i].qpn = 0;
  }
  e->deadline = 0; /* without any link, the sender asks again */
  e->state = e->nparts ? TUTTI_IB_RUNNING : TUTTI_IB_BROKEN;
  sendCard(e);
  return tuttiSuccess;
}

/* ---- both ----------------------------------------------------------------------------------- */

void tuttiIbBreak(tuttiIbEnd *e, const tuttiIbLink *link, const char *why) {
  if (e->state != TUTTI_IB_RUNNING) return;
  setBroken(e, link, why);
  if (tuttiIbSends(e)) return;
  startCard(e, TUTTI_IB_AGAIN, e->in.epoch);
  sendCard(e);
}

static tuttiResult_t overdue(const tuttiIbEnd *e) {
  char ports[360];
  return TUTTI_FAIL(
      tuttiRemoteError,
      "rank %d: the RDMA connection with %s could not be %s within %lld ms%s%s; ports "
      "here: %s; check link and cable of these ports and of the peer's, the switch, "
      "and the GIDs on both hosts (show_gids)",
      e->meet.wires->rank, e->meet.who, e->trouble[0] ? "mended" : "made", (long long)mendMs(e),
      e->trouble[0] ? "; it broke " : "", e->trouble,
      tuttiIbPortsText(e->node->mine.ports, e->node->nrails, ports, sizeof ports));
}

/* Have ports come or gone, so that other links would be better? */
static void considerPorts(tuttiIbEnd *e) {
  const tuttiIbLink *down = NULL;
  bool left = false, more = false;
  e->changes = e->node->changes;
  e->avoid = 0;
  for (int i = 0; i < e->nlinks; i++) {
    bool usable = chooseLink(e, i, 0), used = e->links[i].qp != NULL;
    if (used && !usable) down = &e->links[i];
    left |= used && usable;
    more |= !used && usable;
  }
  if (more || (down && left)) tuttiIbBreak(e, down, down ? "its port is down" : "a port is back");
}

static tuttiResult_t meet(tuttiIbEnd *e, tuttiProxyTurn *turn) {
  tuttiSocketEnd *s = &e->meet;
  bool sends = tuttiIbSends(e);
  if (sends) TUTTI_TRY(tuttiSocketJoinStep(s, turn));
  if (!sends && !s->listed) tuttiSocketAwait(s);
  if (sends ? s->join.part == s->nparts : s->nparts > 0) e->state = TUTTI_IB_BROKEN;
  if (sends) e->deadline = tuttiDeadline(mendMs(e));
  return tuttiSuccess;
}

/* A card has come. */
static tuttiResult_t takeCard(tuttiIbEnd *e) {
  bool sends = tuttiIbSends(e), answers = e->in.kind == TUTTI_IB_ANSWER;
  const char *wrong = tuttiIbCardCheck(&e->in, e->meet.fifo.slotBytes, answers ? &e->out : NULL);
  if (!wrong &&
      (sends == (e->in.kind == TUTTI_IB_OFFER) || (answers && e->state != TUTTI_IB_OFFERED)))
    wrong = "it is out of turn";
  if (wrong) return badCard(e, wrong);
  if (answers) return takeAnswer(e);
  if (!sends) return takeOffer(e);
  e->avoid = 0;
  if (e->state == TUTTI_IB_RUNNING) tuttiIbBreak(e, NULL, "the peer asked for new links");
  return tuttiSuccess;
}

tuttiResult_t tuttiIbMeetStep(tuttiIbEnd *e, tuttiProxyTurn *turn, bool *moved) {
  tuttiIbState before = e->state;
  bool whole = false;
  if (e->state == TUTTI_IB_MEETING) TUTTI_TRY(meet(e, turn));
  if (e->state == TUTTI_IB_MEETING) return tuttiSuccess;
  if (e->meet.parts[0].source.readable) TUTTI_TRY(pullCard(e, &whole));
  if (whole) TUTTI_TRY(takeCard(e));
  if (e->state == TUTTI_IB_RUNNING && e->changes != e->node->changes) considerPorts(e);
  if (e->meet.parts[0].closed && e->state != TUTTI_IB_RUNNING) {
    /* There is nobody to mend it with. Who has finished had all that it waited for, and only what
     * acknowledged it was lost; if the peer died, the watch says so. */
    e->deadline = 0;
    if (tuttiIbSends(e)) tuttiIbPassTo(e, e->meet.known);
    tuttiStoreRelease(&e->confirmed, UINT64_MAX);
    return tuttiSuccess;
  }
  if (e->state == TUTTI_IB_BROKEN && tuttiIbSends(e) && tuttiNow() >= e->retryAt)
    TUTTI_TRY(offer(e));
  *moved |= whole || e->state != before;
  /* A peer that never answered may not have come to its first call: no matter of the links. */
  if (e->state == TUTTI_IB_OFFERED && !e->trouble[0]) e->deadline = tuttiDeadline(mendMs(e));
  if (e->state == TUTTI_IB_RUNNING || e->deadline == 0) return tuttiSuccess;
  if (tuttiNow() >= e->deadline) return overdue(e);
  uint64_t next = tuttiNow() + RETRY_NS;
  tuttiProxyWakeBy(turn, next < e->deadline ? next : e->deadline);
  return tuttiSuccess;
}

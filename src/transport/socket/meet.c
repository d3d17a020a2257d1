/* How the two endpoints of a connection over a network find each other: the sender dials an address
 * of the receiver, and after the handshake (bootstrap/handshake.h) the first message follows.
 *
 * The reply is why a wrong address does no harm (two hosts with the same private address, a port
 * that was taken over by somebody else): whoever is there won't know the secret, and the next
 * address is tried. The sender has one connection per part in this state at a time; if it tries
 * another, the receiver takes the newer one as long as the older has carried nothing. It may read
 * their hellos in any order, so they are numbered. */
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "transport/socket/endpoint.h"

enum { PAUSE_MS = 1000, MAX_NAP_MS = 64 };

void tuttiSocketCloseFd(tuttiProxy *proxy, tuttiProxySource *source) {
  if (source->fd < 0) return;
  tuttiProxyUnwatch(proxy, source);
  tuttiFdClose(&source->fd);
}

void tuttiSocketEndpointInit(tuttiSocketEndpoint *e, tuttiCommView *v,
                             tuttiSocketListener *listener, const tuttiNetHello *hello,
                             const tuttiConn *fifo, int nparts) {
  e->view = v;
  e->listener = listener;
  e->hello = *hello;
  e->fifo = *fifo;
  const tuttiPeer *p = &v->peers[fifo->peer];
  snprintf(e->who, sizeof e->who, "rank %d (host %s, pid %d), channel %d", e->fifo.peer, p->host,
           p->pid, fifo->channel);
  for (int i = 0; i < TUTTI_SOCKET_PARTS; i++)
    e->parts[i].source.fd = -1;
  if (e->fifo.direction == TUTTI_RECV) return;
  e->nparts = e->hello.parts = nparts;
  e->join.deadline = tuttiDeadline((int64_t)v->timeoutMs);
  memcpy(&e->join.targets, p->net, sizeof e->join.targets); /* they begin each handle */
}

void tuttiSocketEndpointFree(void *end) {
  tuttiSocketEndpoint *e = end;
  tuttiDialClose(&e->join.dial);
  if (e->listed) TUTTI_UNLINK(e->listener->endpoints, e);
  for (int i = 0; i < TUTTI_SOCKET_PARTS; i++)
    tuttiSocketCloseFd(tuttiNetProxy(e->view, e->fifo.direction), &e->parts[i].source);
  tuttiFree(e);
}

/* ---- the receiver: listener and hellos ------------------------------------------------------ */

const char *tuttiSocketHelloCheck(const tuttiCommView *v, const tuttiNetHello *h) {
  if (h->head.kind != tuttiHelloNet) return "it does not speak this protocol";
  if (h->head.hash != v->commHash) return "it belongs to another communicator";
  if (h->head.to != v->rank) return "it is looking for another rank";
  if (h->head.from < 0 || h->head.from >= v->nranks || h->head.from == v->rank)
    return "its rank is out of range";
  if (h->channel < 0 || h->channel >= TUTTI_CHANNELS) return "its channel is out of range";
  if (h->parts < 1 || h->parts > TUTTI_SOCKET_PARTS || h->part < 0 || h->part >= h->parts)
    return "its number of sockets is out of range";
  return NULL;
}

static bool canBind(const tuttiSocketEndpoint *e, const tuttiNetHello *h) {
  if (e->nparts && h->parts != e->nparts) return false;
  const tuttiSocketPart *p = &e->parts[h->part];
  return p->source.fd < 0 || (!p->carried && h->attempt >= p->attempt);
}

/* True if the fd was taken. */
static bool bindPart(tuttiSocketEndpoint *e, const tuttiNetHello *h, int fd) {
  if (!canBind(e, h)) return false;
  tuttiSocketPart *p = &e->parts[h->part];
  if (p->source.fd >= 0) tuttiSocketCloseFd(tuttiNetProxy(e->view, TUTTI_RECV), &p->source);
  p->source.fd = fd;
  p->attempt = h->attempt;
  p->closed = false;
  if (tuttiProxyWatch(tuttiNetProxy(e->view, TUTTI_RECV), &p->source) != tuttiSuccess) {
    p->source.fd = -1;
    return false;
  }
  e->nparts = h->parts;
  return true;
}

static bool sameEnd(const tuttiNetHello *a, const tuttiNetHello *b) {
  return a->head.from == b->head.from && a->channel == b->channel;
}

/* The socket with the same end and part that has come before; or NULL. */
static tuttiSocketEarly *findEarly(const tuttiSocketListener *l, const tuttiNetHello *h) {
  tuttiSocketEarly *m = l->early;
  while (m && !(sameEnd(&m->hello, h) && m->hello.part == h->part))
    m = m->next;
  return m;
}

/* Keeps a socket whose end is not open yet; they are bounded by what the check of hellos lets pass:
 * one per peer, channel and part. True if the fd was taken. */
static bool keepEarly(tuttiSocketListener *l, const tuttiNetHello *h, int fd) {
  tuttiSocketEarly *m = findEarly(l, h);
  if (m && h->attempt < m->hello.attempt) return false;
  if (m) {
    tuttiFdClose(&m->fd);
    m->fd = fd;
    m->hello = *h;
    return true;
  }
  if (tuttiAlloc((void **)&m, 1, sizeof *m, "an early network connection", l->view->memory) !=
      tuttiSuccess)
    return false;
  *m = (tuttiSocketEarly){.hello = *h, .fd = fd, .next = l->early};
  l->early = m;
  return true;
}

static tuttiSocketEndpoint *findEndpoint(const tuttiSocketListener *l, const tuttiNetHello *h) {
  tuttiSocketEndpoint *e = l->endpoints;
  while (e && !sameEnd(&e->hello, h))
    e = e->next;
  return e;
}

/* Whether what a hello asks for can be: so that the sender tries again where it cannot. */
static tuttiVerdict judge(void *listener, const void *hello) {
  const tuttiSocketListener *l = listener;
  const tuttiNetHello *h = hello;
  const char *wrong = tuttiSocketHelloCheck(l->view, h);
  if (!wrong) {
    const tuttiSocketEndpoint *e = findEndpoint(l, h);
    const tuttiSocketEarly *m = findEarly(l, h);
    bool possible = e ? canBind(e, h) : !m || h->attempt >= m->hello.attempt;
    if (!possible) wrong = "that connection exists already";
  }
  if (!wrong) return TUTTI_GUEST_ACCEPT;
  TUTTI_TRACE(NET, "dropped a connection to the data port: %s", wrong);
  return TUTTI_GUEST_DROP;
}

/* A peer has come. What was possible when it was judged may be no more, if it tried twice: then it
 * waits for the other try. */
static void welcome(void *listener, const void *hello, int fd) {
  tuttiSocketListener *l = listener;
  const tuttiNetHello *h = hello;
  tuttiSocketEndpoint *e = findEndpoint(l, h);
  l->met = e ? bindPart(e, h, fd) : keepEarly(l, h, fd);
  if (!l->met) tuttiFdClose(&fd);
}

static tuttiResult_t openGreeter(tuttiSocketListener *l) {
  TUTTI_TRY(tuttiGreeterOpen(&l->greeter, l->view->memory));
  l->source.fd = l->greeter.epollFd;
  return tuttiProxyWatch(tuttiNetProxy(l->view, TUTTI_RECV), &l->source);
}

tuttiProxyState tuttiSocketAccept(tuttiSocketListener *l, tuttiProxyTurn *turn) {
  if (l->source.fd < 0) {
    turn->result = openGreeter(l);
    if (turn->result != tuttiSuccess) return TUTTI_PROXY_FAILED;
  }
  l->met = false;
  bool due = l->due != TUTTI_NO_DEADLINE && tuttiNow() >= l->due;
  if (due || (l->source.readable && !l->paused)) {
    l->paused = tuttiGreeterStep(&l->greeter) != tuttiSuccess; /* which is logged */
    l->due = l->paused ? tuttiDeadline(PAUSE_MS) : tuttiGreeterNext(&l->greeter);
    /* The proxy tells of what is new only; the greeter may stop before the end of it. */
    struct pollfd more = {.fd = l->source.fd, .events = POLLIN};
    l->source.readable = poll(&more, 1, 0) > 0;
  }
  tuttiProxyWakeBy(turn, l->due);
  if (l->met) return TUTTI_PROXY_MOVED;
  return l->due == TUTTI_NO_DEADLINE ? TUTTI_PROXY_IDLE : TUTTI_PROXY_WAITING;
}

void tuttiSocketAwait(tuttiSocketEndpoint *e) {
  tuttiSocketListener *l = e->listener;
  TUTTI_LINK(l->endpoints, e);
  e->listed = true;
  for (tuttiSocketEarly **m = &l->early; *m;) {
    tuttiSocketEarly *early = *m;
    if (!sameEnd(&early->hello, &e->hello)) {
      m = &early->next;
      continue;
    }
    *m = early->next;
    if (!bindPart(e, &early->hello, early->fd)) tuttiFdClose(&early->fd);
    tuttiFree(early);
  }
}

/* Of an interface, in Mb/s; 0: not known. */
static uint32_t speedOf(const tuttiTopology *host, const char *name) {
  int nic = host ? tuttiTopologyFind(host, name) : -1;
  float speed = nic >= 0 ? host->nodes[nic].linkGBs * 8000 : 0;
  return strcmp(name, "lo") == 0 ? 24000 : (uint32_t)speed;
}

tuttiResult_t tuttiSocketListen(tuttiCommView *v, uint8_t handle[TUTTI_NET_HANDLE],
                                tuttiSocketListener **listener) {
  tuttiInterface interfaces[TUTTI_MAX_INTERFACES];
  int n;
  if (tuttiInterfaces(interfaces, TUTTI_MAX_INTERFACES, &n) != tuttiSuccess) {
    TUTTI_INFO(NET, "NET is not used: %s", tuttiErrorText());
    return tuttiSuccess;
  }
  TUTTI_FRESH(tuttiSocketListener, l, 1, "the network listener", v->memory);
  tuttiSocketHandle mine = {.megabits = speedOf(v->topology, interfaces[0].name)};
  TUTTI_TRY(tuttiListenerBind(interfaces, n, &mine.addresses, &l->listener));
  l->view = v;
  l->source.fd = l->greeter.epollFd = -1;
  l->due = TUTTI_NO_DEADLINE;
  l->greeter.listener = &l->listener;
  l->greeter.what = "the data port of a rank";
  l->greeter.helloBytes = sizeof(tuttiNetHello);
  l->greeter.nguests = TUTTI_SOCKET_STRANGERS;
  l->greeter.secret = v->secret;
  l->greeter.tls = &v->tls;
  l->greeter.ctx = l;
  l->greeter.check = judge;
  l->greeter.welcome = welcome;
  memcpy(mine.interface, interfaces[0].name, sizeof mine.interface);
  _Static_assert(sizeof mine <= TUTTI_NET_HANDLE, "the handle travels in the peer record");
  memcpy(handle, &mine, sizeof mine);
  *listener = l;
  l = NULL;
  return tuttiSuccess;
}

tuttiResult_t tuttiSocketListenerStart(tuttiSocketListener *l) {
  return tuttiListenerStart(&l->listener);
}

void tuttiSocketCloseListener(tuttiSocketListener *l) {
  if (!l) return;
  if (l->source.fd >= 0) tuttiProxyUnwatch(tuttiNetProxy(l->view, TUTTI_RECV), &l->source);
  tuttiGreeterClose(&l->greeter);
  while (l->early) {
    tuttiSocketEarly *m = l->early;
    l->early = m->next;
    tuttiFdClose(&m->fd);
    tuttiFree(m);
  }
  tuttiListenerClose(&l->listener);
  tuttiFree(l);
}

/* ---- the sender: dialling ------------------------------------------------------------------- */

/* Inside a host there is no congestion to control. Where the default is BBR, its pacing by timers
 * costs such a connection half its bandwidth; Reno, which every kernel has and lets everybody use,
 * sends as fast as the receiver reads. */
static void avoidPacing(const tuttiSocketEndpoint *e, int fd) {
  static const char reno[] = "reno";
  const tuttiCommView *v = e->view;
  if (v->peers[v->rank].hostId == v->peers[e->fifo.peer].hostId)
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, reno, sizeof reno - 1);
}

static void startDial(tuttiSocketEndpoint *e) {
  tuttiSocketJoin *j = &e->join;
  e->hello.part = j->part;
  tuttiDialInit(&j->dial, &j->targets, &e->hello, sizeof e->hello, e->view->secret, &e->view->tls,
                e->who);
  j->dial.patienceMs = TUTTI_SOCKET_PATIENCE_MS;
  j->napMs = 1;
  j->dialling = true;
}

/* The peer has been found. From here on only the address that led to it is used. */
static tuttiResult_t takePart(tuttiSocketEndpoint *e) {
  tuttiSocketJoin *j = &e->join;
  tuttiSocketPart *p = &e->parts[j->part++];
  p->source.fd = j->dial.fd;
  tuttiConnectorStop(&j->dial.connector);
  j->dialling = false;
  avoidPacing(e, p->source.fd);
  j->targets.n = 1;
  j->targets.a[0] = j->dial.connector.attempts[j->dial.index].target;
  return tuttiProxyWatch(tuttiNetProxy(e->view, TUTTI_SEND), &p->source);
}

static tuttiResult_t unreachable(tuttiSocketEndpoint *e) {
  char tried[600];
  return TUTTI_FAIL(tuttiTimeout,
                    "rank %d cannot connect to %s until the deadline (%llu ms): tried %s. It may "
                    "still be in its init: see its log",
                    e->view->rank, e->who, (unsigned long long)e->view->timeoutMs,
                    tuttiConnectorText(&e->join.dial.connector, tried, sizeof tried));
}

/* Somebody listens at the address, and has not answered yet. */
static bool hasReached(const tuttiDial *dial) {
  return dial->state == TUTTI_DIAL_SECURING || dial->state == TUTTI_DIAL_ASKING;
}

tuttiResult_t tuttiSocketJoinStep(tuttiSocketEndpoint *e, tuttiProxyTurn *turn) {
  tuttiSocketJoin *j = &e->join;
  if (!j->dialling) startDial(e);
  bool asked = hasReached(&j->dial);         /* its hello is sealed by then */
  if (!asked) e->hello.attempt = tuttiNow(); /* grows from one end to its successor, too */
  TUTTI_TRY(tuttiDialStep(&j->dial, (tuttiWait){.deadline = TUTTI_NO_DEADLINE}));
  if (j->dial.state == TUTTI_DIAL_DONE) TUTTI_TRY(takePart(e));
  if (j->part == e->nparts) return tuttiSuccess;
  /* Who has not answered yet can be reached: it may not have come to its first call. */
  if (asked || hasReached(&j->dial) || !tuttiSocketIsUsed(e))
    j->deadline = tuttiDeadline((int64_t)e->view->timeoutMs);
  if (tuttiNow() >= j->deadline) return unreachable(e);
  /* Connecting is rare and mostly short: looked at now and then rather than watched. */
  tuttiProxyWakeBy(turn, tuttiNow() + j->napMs * TUTTI_MS);
  j->napMs = j->napMs < MAX_NAP_MS ? j->napMs * 2 : MAX_NAP_MS;
  return tuttiSuccess;
}

/* How the two ends of a NET/Socket connection find each other: the sender dials an address of the
 * receiver and says hello, the receiver answers welcome, the first message follows.
 *
 * The welcome is why a wrong address does no harm (two hosts with the same private address, a port
 * that was taken over by somebody else): whoever is there won't know the secret, and the next
 * address is tried. The sender has one connection per part in this state at a time; if it tries
 * another, the receiver takes the newer one as long as the older has carried nothing. */
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "transport/net_socket.h"

#define MS 1000000ull

enum { ACCEPTS_PER_TURN = 16, PAUSE_MS = 100, MAX_NAP_MS = 64 };

void tuttiSocketCloseFd(tuttiProxy *proxy, tuttiProxySource *source) {
  if (source->fd < 0) return;
  tuttiProxyUnwatch(proxy, source);
  tuttiForkCloseRemove(source->fd);
  close(source->fd);
  source->fd = -1;
}

const char *tuttiSocketWho(const tuttiSocketEnd *e, char *buf, size_t size) {
  const tuttiPeer *peer = &e->wires->peers[e->peer];
  snprintf(buf, size, "rank %d (host %s, pid %d), channel %d", e->peer, peer->host, peer->pid,
           e->hello.channel);
  return buf;
}

/* ---- the receiver: listener and hellos ------------------------------------------------------ */

const char *tuttiSocketHelloCheck(const tuttiWires *w, const tuttiNetHello *h) {
  if (h->magic != TUTTI_NET_MAGIC) return "it does not speak this protocol";
  if (h->version != TUTTI_VERSION_CODE) return "it is of another version";
  uint8_t differs = 0; /* in constant time: how far a guess was right is nobody's business */
  for (size_t i = 0; i < sizeof h->secret; i++)
    differs |= h->secret[i] ^ w->secret[i];
  if (differs) return "it does not know the communicator's secret";
  if (h->commHash != w->commHash) return "it belongs to another communicator";
  if (h->to != w->rank) return "it is looking for another rank";
  if (h->from < 0 || h->from >= w->nranks || h->from == w->rank) return "its rank is out of range";
  if (h->channel < 0 || h->channel >= TUTTI_CHANNELS) return "its channel is out of range";
  if (h->parts < 1 || h->parts > TUTTI_SOCKET_PARTS || h->part < 0 || h->part >= h->parts)
    return "its number of sockets is out of range";
  return NULL;
}

/* True if the fd was taken. */
static bool bindPart(tuttiSocketEnd *e, const tuttiNetHello *h, int fd) {
  if (e->nparts && h->parts != e->nparts) return false;
  tuttiSocketPart *p = &e->parts[h->part];
  if (p->source.fd >= 0) {
    if (p->carried) return false;
    tuttiSocketCloseFd(e->wires->proxy, &p->source);
  }
  p->source.fd = fd;
  p->closed = false;
  if (tuttiProxyWatch(e->wires->proxy, &p->source) != tuttiSuccess) {
    p->source.fd = -1;
    return false;
  }
  e->nparts = h->parts;
  return true;
}

static bool sameEnd(const tuttiNetHello *a, const tuttiNetHello *b) {
  return a->from == b->from && a->channel == b->channel;
}

/* Keeps a socket whose end is not open yet; it is bounded by what the check of hellos lets pass:
 * one per peer, channel and part. True if the fd was taken. */
static bool keepEarly(tuttiSocketListener *l, const tuttiNetHello *h, int fd) {
  for (tuttiSocketEarly *m = l->early; m; m = m->next) {
    if (!sameEnd(&m->hello, h) || m->hello.part != h->part) continue;
    tuttiForkCloseRemove(m->fd);
    close(m->fd);
    m->fd = fd;
    m->hello = *h;
    return true;
  }
  tuttiSocketEarly *m;
  if (tuttiAlloc((void **)&m, 1, sizeof *m, "an early network connection", l->wires->memory) !=
      tuttiSuccess)
    return false;
  *m = (tuttiSocketEarly){.hello = *h, .fd = fd, .next = l->early};
  l->early = m;
  return true;
}

/* Judges a complete hello; the stranger is gone afterwards. */
static void judge(tuttiSocketListener *l, tuttiSocketStranger *s) {
  const char *wrong = tuttiSocketHelloCheck(l->wires, &s->hello);
  int fd = s->source.fd;
  tuttiNetWelcome welcome = {
      .magic = TUTTI_NET_WELCOME, .rank = l->wires->rank, .commHash = l->wires->commHash};
  bool taken = false;
  tuttiProxyUnwatch(l->wires->proxy, &s->source);
  s->source.fd = -1;
  if (!wrong) {
    tuttiSocketEnd *e = l->ends;
    while (e && !sameEnd(&e->hello, &s->hello))
      e = e->next;
    taken = e ? bindPart(e, &s->hello, fd) : keepEarly(l, &s->hello, fd);
    if (!taken) wrong = "that connection exists already";
  }
  if (taken) {
    /* 16 bytes always fit an unused socket; a sender that is gone will be noticed by the end. */
    (void)!send(fd, &welcome, sizeof welcome, MSG_NOSIGNAL | MSG_DONTWAIT);
    return;
  }
  TUTTI_TRACE(NET, "dropped a connection to the data port: %s", wrong);
  tuttiForkCloseRemove(fd);
  close(fd);
}

static void readHello(tuttiSocketListener *l, tuttiSocketStranger *s) {
  ssize_t n =
      recv(s->source.fd, (char *)&s->hello + s->got, sizeof s->hello - s->got, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    s->source.readable = errno == EINTR;
    return;
  }
  if (n <= 0) {
    tuttiSocketCloseFd(l->wires->proxy, &s->source);
    return;
  }
  s->got += (size_t)n;
  if (s->got == sizeof s->hello) judge(l, s);
}

static void addStranger(tuttiSocketListener *l, int fd) {
  tuttiSocketStranger *s = &l->strangers[0];
  for (int i = 0; i < TUTTI_SOCKET_STRANGERS; i++) {
    tuttiSocketStranger *t = &l->strangers[i];
    if (t->source.fd < 0) {
      s = t;
      break;
    }
    if (t->until < s->until) s = t;
  }
  tuttiSocketCloseFd(l->wires->proxy, &s->source);
  *s = (tuttiSocketStranger){.source.fd = fd, .until = tuttiDeadline(TUTTI_SOCKET_HELLO_MS)};
  tuttiForkCloseAdd(fd);
  if (tuttiProxyWatch(l->wires->proxy, &s->source) != tuttiSuccess) {
    tuttiForkCloseRemove(fd);
    close(fd);
    s->source.fd = -1;
    return;
  }
  readHello(l, s); /* a peer's hello is usually there already */
}

/* Accepts what has come; true if anything has. */
static bool acceptSome(tuttiSocketListener *l) {
  for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
    int fd = tuttiAcceptNow(l->source.fd);
    if (fd == -EAGAIN) {
      l->source.readable = false;
      return i > 0;
    }
    if (fd < 0) {
      char remedy[128];
      if (!l->complained)
        TUTTI_WARN(NET, "cannot accept connections of peers for now: %s; %s", tuttiErrnoText(-fd),
                   tuttiSocketRemedy(-fd, remedy, sizeof remedy));
      l->complained = true;
      l->pauseUntil = tuttiDeadline(PAUSE_MS);
      return i > 0;
    }
    addStranger(l, fd);
  }
  return true;
}

static void wakeBy(tuttiProxyTurn *turn, uint64_t when) {
  if (when < turn->wake) turn->wake = when;
}

tuttiProxyState tuttiSocketAccept(void *listener, tuttiProxyTurn *turn) {
  tuttiSocketListener *l = listener;
  if (!l->watched) {
    turn->result = tuttiProxyWatch(l->wires->proxy, &l->source);
    if (turn->result != tuttiSuccess) return TUTTI_PROXY_FAILED;
    l->watched = true;
  }
  bool moved = false, waiting = false;
  if (l->source.readable) {
    if (!l->pauseUntil || tuttiNow() >= l->pauseUntil) {
      l->pauseUntil = 0;
      moved = acceptSome(l);
    }
    if (l->pauseUntil) {
      wakeBy(turn, l->pauseUntil);
      waiting = true;
    }
  }
  for (int i = 0; i < TUTTI_SOCKET_STRANGERS; i++) {
    tuttiSocketStranger *s = &l->strangers[i];
    if (s->source.fd >= 0 && s->source.readable) readHello(l, s);
    if (s->source.fd < 0) continue;
    if (tuttiNow() >= s->until) {
      tuttiSocketCloseFd(l->wires->proxy, &s->source);
      continue;
    }
    wakeBy(turn, s->until);
    waiting = true;
  }
  return moved ? TUTTI_PROXY_MOVED : waiting ? TUTTI_PROXY_WAITING : TUTTI_PROXY_IDLE;
}

tuttiResult_t tuttiSocketAwait(tuttiSocketEnd *e) {
  tuttiSocketListener *l = e->listener;
  e->next = l->ends;
  l->ends = e;
  e->listed = true;
  for (tuttiSocketEarly **m = &l->early; *m;) {
    tuttiSocketEarly *early = *m;
    if (!sameEnd(&early->hello, &e->hello)) {
      m = &early->next;
      continue;
    }
    *m = early->next;
    if (!bindPart(e, &early->hello, early->fd)) {
      tuttiForkCloseRemove(early->fd);
      close(early->fd);
    }
    tuttiFree(early);
  }
  return tuttiSuccess;
}

void tuttiSocketForget(tuttiSocketEnd *e) {
  if (!e->listed) return;
  tuttiSocketEnd **m = &e->listener->ends;
  while (*m != e)
    m = &(*m)->next;
  *m = e->next;
}

uint32_t tuttiSocketSpeed(const char *name) {
  char path[64 + IF_NAMESIZE], text[32];
  int megabits = 0;
  if (strcmp(name, "lo") == 0) return 24000;
  snprintf(path, sizeof path, "/sys/class/net/%.15s/speed", name);
  if (!tuttiReadFile(path, text, sizeof text) || sscanf(text, "%d", &megabits) != 1) return 10000;
  return megabits > 0 ? (uint32_t)megabits : 10000;
}

tuttiResult_t tuttiSocketListen(tuttiWires *w, uint8_t handle[TUTTI_NET_HANDLE], void **listener) {
  tuttiInterface interfaces[TUTTI_MAX_INTERFACES];
  int n;
  TUTTI_TRY(tuttiInterfaces(interfaces, TUTTI_MAX_INTERFACES, &n));
  tuttiSocketListener *l;
  TUTTI_TRY(tuttiAlloc((void **)&l, 1, sizeof *l, "the network listener", w->memory));
  tuttiSocketHandle mine = {.megabits = tuttiSocketSpeed(interfaces[0].name)};
  tuttiResult_t result = tuttiListenAny(interfaces, n, &mine.addresses, &l->source.fd);
  if (result != tuttiSuccess) {
    tuttiFree(l);
    return result;
  }
  l->wires = w;
  for (int i = 0; i < TUTTI_SOCKET_STRANGERS; i++)
    l->strangers[i].source.fd = -1;
  tuttiForkCloseAdd(l->source.fd);
  memcpy(mine.interface, interfaces[0].name, sizeof mine.interface);
  _Static_assert(sizeof mine <= TUTTI_NET_HANDLE, "the handle travels in the peer record");
  memset(handle, 0, TUTTI_NET_HANDLE);
  memcpy(handle, &mine, sizeof mine);
  *listener = l;
  return tuttiSuccess;
}

void tuttiSocketCloseListener(void *listener) {
  tuttiSocketListener *l = listener;
  for (int i = 0; i < TUTTI_SOCKET_STRANGERS; i++)
    tuttiSocketCloseFd(l->wires->proxy, &l->strangers[i].source);
  while (l->early) {
    tuttiSocketEarly *m = l->early;
    l->early = m->next;
    tuttiForkCloseRemove(m->fd);
    close(m->fd);
    tuttiFree(m);
  }
  if (l->watched) tuttiProxyUnwatch(l->wires->proxy, &l->source);
  tuttiForkCloseRemove(l->source.fd);
  close(l->source.fd);
  tuttiFree(l);
}

/* ---- the sender: dialling ------------------------------------------------------------------- */

/* A kernel that gets no answer gives up after this, so that a pulled cable ends in an error. */
static void setUserTimeout(int fd, uint64_t timeoutMs) {
  unsigned ms = timeoutMs < INT32_MAX ? (unsigned)timeoutMs : INT32_MAX;
  if (ms) setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

/* Inside a host there is no congestion to control. Where the default is BBR, its pacing by timers
 * costs such a connection half its bandwidth; Reno, which every kernel has and lets everybody use,
 * sends as fast as the receiver reads. */
static void avoidPacing(const tuttiSocketEnd *e, int fd) {
  static const char reno[] = "reno";
  const tuttiWires *w = e->wires;
  if (w->peers[w->rank].hostId == w->peers[e->peer].hostId)
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, reno, sizeof reno - 1);
}

static void startConnector(tuttiSocketJoin *j) {
  tuttiConnectorInit(&j->connector, &j->targets);
  j->napMs = 1;
}

/* The connection of the current part leads nowhere. */
static void reject(tuttiSocketEnd *e, int err) {
  tuttiSocketJoin *j = &e->join;
  tuttiSocketCloseFd(e->wires->proxy, &e->parts[j->part].source);
  tuttiConnectorReject(&j->connector, err);
  j->greeting = false;
  j->napMs = 1;
}

static tuttiResult_t sayHello(tuttiSocketEnd *e, int fd) {
  tuttiSocketJoin *j = &e->join;
  tuttiSocketPart *p = &e->parts[j->part];
  p->source.fd = fd;
  tuttiForkCloseAdd(fd);
  setUserTimeout(fd, e->wires->timeoutMs);
  avoidPacing(e, fd);
  tuttiResult_t result = tuttiProxyWatch(e->wires->proxy, &p->source);
  if (result != tuttiSuccess) {
    tuttiForkCloseRemove(fd);
    close(fd);
    p->source.fd = -1;
    return result;
  }
  tuttiNetHello hello = e->hello;
  hello.part = j->part;
  j->greeting = true;
  j->until = j->connector.n > 1 ? tuttiDeadline(j->patienceMs) : TUTTI_NO_DEADLINE;
  ssize_t n = send(fd, &hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n != sizeof hello) reject(e, n < 0 ? errno : EPIPE);
  return tuttiSuccess;
}

/* From here on only the address that led to the peer is used. */
static void nextPart(tuttiSocketEnd *e) {
  tuttiSocketJoin *j = &e->join;
  j->targets.n = 1;
  j->targets.a[0] = j->connector.attempts[j->index].target;
  tuttiConnectorStop(&j->connector);
  j->greeting = false;
  if (++j->part < e->nparts) startConnector(j);
}

static void readWelcome(tuttiSocketEnd *e) {
  tuttiSocketJoin *j = &e->join;
  tuttiProxySource *source = &e->parts[j->part].source;
  tuttiNetWelcome welcome;
  /* It is sent in one piece as the first bytes of its connection, so it comes in one. */
  ssize_t n = recv(source->fd, &welcome, sizeof welcome, MSG_DONTWAIT);
  if (n == sizeof welcome && welcome.magic == TUTTI_NET_WELCOME && welcome.rank == e->peer &&
      welcome.commHash == e->wires->commHash) {
    nextPart(e);
  } else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    source->readable = errno == EINTR;
  } else {
    reject(e, n < 0 ? errno : ECONNRESET);
  }
}

static tuttiResult_t unreachable(tuttiSocketEnd *e) {
  char who[128 + TUTTI_HOSTNAME], tried[600];
  return TUTTI_FAIL(tuttiTimeout, "rank %d cannot connect to %s, within %llu ms: tried %s",
                    e->wires->rank, tuttiSocketWho(e, who, sizeof who),
                    (unsigned long long)e->wires->timeoutMs,
                    tuttiConnectorText(&e->join.connector, tried, sizeof tried));
}

tuttiResult_t tuttiSocketJoinStep(tuttiSocketEnd *e, tuttiProxyTurn *turn) {
  tuttiSocketJoin *j = &e->join;
  if (j->connector.n == 0) startConnector(j);
  if (!j->greeting) {
    char who[128 + TUTTI_HOSTNAME];
    int fd;
    TUTTI_TRY(
        tuttiConnectorStep(&j->connector, tuttiSocketWho(e, who, sizeof who), &fd, &j->index));
    if (fd >= 0) TUTTI_TRY(sayHello(e, fd));
  }
  if (j->greeting && e->parts[j->part].source.readable) readWelcome(e);
  if (j->part == e->nparts) return tuttiSuccess;
  uint64_t now = tuttiNow();
  if (now >= j->deadline) return unreachable(e);
  if (j->greeting && now >= j->until) {
    j->patienceMs *= 2; /* the receiver may be busy: in the end any address gets its time */
    reject(e, ETIMEDOUT);
  }
  wakeBy(turn, j->deadline);
  if (j->greeting) {
    wakeBy(turn, j->until);
  } else {
    /* Connecting is rare and mostly short: looked at now and then rather than watched. */
    wakeBy(turn, now + j->napMs * MS);
    j->napMs = j->napMs < MAX_NAP_MS ? j->napMs * 2 : MAX_NAP_MS;
  }
  return tuttiSuccess;
}

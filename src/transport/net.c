#include "transport/net.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/settings.h"
#include "transport/pool.h"
#include "transport/socket/endpoint.h"
#include "transport/stub.h"

const tuttiNet *const tuttiNets[] = {
#ifdef TUTTI_HAVE_VERBS
    &tuttiNetIb,
#endif
    &tuttiNetSocket, NULL};

/* One end: the local FIFO and what the backend keeps for it. */
typedef struct netEndpoint {
  const tuttiNet *net;
  void *end;
  void *fifo;
  uint8_t *gpuData; /* its payloads, of the net; NULL: they are in the FIFO */
  size_t fifoBytes;
  bool pooled; /* the FIFO is of the pool; else it is its own, as the next two say */
  tuttiPinned pinned;
  size_t counted; /* bytes of it on the account */
  bool sends;
  struct netEndpoint *next;
} netEndpoint;

/* tuttiCommView.net */
typedef struct {
  tuttiSocketListener *listener;
  const tuttiNet *net; /* the best that can serve here */
  void *node;          /* of net */
  bool serving;        /* listener and node are with the proxy, since the first open */
  tuttiPool pool;      /* for the FIFOs of a rank with a GPU */
  bool full;           /* it had no room left, which has been said */
  netEndpoint *endpoints;
} netState;

const tuttiNet *tuttiNetFind(const char *name) {
  for (int i = 0; tuttiNets[i]; i++)
    if (strcasecmp(tuttiNets[i]->name, name) == 0) return tuttiNets[i];
  return NULL;
}

/* The last three leave it to path->net to say more. */
#define NET_REASONS(X)                                                                             \
  X(NET_NONE, "no common network: rank %d has %s, rank %d has %s", a->rank,                        \
    lackText(a, mine, sizeof mine), b->rank, lackText(b, theirs, sizeof theirs))                   \
  X(NET_OWN, "%s", clause)                                                                         \
  X(NET_LACKS, "%s; not NET/%s: rank %d on host %s has only %s", clause, otherName, who->rank,     \
    who->host, who->netName)                                                                       \
  X(NET_PASSED, "%s; not NET/%s: %s", clause, otherName, passed)
enum { NET_REASONS(TUTTI_REASON_NAME) };

/* A rank without a network tells why, where the others tell how to reach them. */
static const char *lackText(const tuttiPeer *peer, char *buf, size_t size) {
  if (peer->netName[0]) {
    snprintf(buf, size, "\"%.15s\"", peer->netName);
    return buf;
  }
  bool told = peer->net[0] == ' ';
  snprintf(buf, size, "none%.*s", told ? (int)sizeof peer->net : 0, (const char *)peer->net);
  for (char *c = buf; *c; c++)
    if (*c < ' ' || *c > '~') *c = '?';
  return buf;
}

static void netExplain(tuttiReason why, const tuttiPath *path, const tuttiPeer *a,
                       const tuttiPeer *b, char *buf, size_t size) {
  char clause[TUTTI_SENTENCE] = "", passed[TUTTI_SENTENCE] = "", mine[192], theirs[192];
  const tuttiPeer *who = tuttiReasonPeer(why, a, b);
  const tuttiNet *other = tuttiNetFind(who == a ? b->netName : a->netName);
  const char *otherName = other ? other->name : "?"; /* which it is not where the reason says it */
  if (path->net) path->net->explain(path->netWhy, path, a, b, clause, sizeof clause);
  if (why.code == NET_PASSED && other)
    other->explain(path->netWhyNot, path, a, b, passed, sizeof passed);
  switch (why.code) { NET_REASONS(TUTTI_REASON_TEXT) }
}

/* By the first network that both have, down to sockets, which all have. */
static bool netCanConnect(const tuttiPeer *a, const tuttiPeer *b, tuttiPath *path,
                          tuttiReason *why) {
  const tuttiNet *first = tuttiNetFind(a->netName), *second = tuttiNetFind(b->netName);
  *why = (tuttiReason){.code = NET_NONE};
  if (!first || !second) return false;
  *why = (tuttiReason){.code = NET_LACKS, .side = first != &tuttiNetSocket};
  tuttiNetAnswer answer = tuttiNetPasses;
  if (first == second) {
    *why = (tuttiReason){.code = NET_OWN};
    path->net = first;
    answer = first->canConnect(a, b, path, &path->netWhy);
  }
  if (answer == tuttiNetPasses) {
    if (first == second) why->code = NET_PASSED;
    path->netWhyNot = path->netWhy;
    path->net = &tuttiNetSocket;
    answer = tuttiNetSocket.canConnect(a, b, path, &path->netWhy);
  }
  path->network = answer == tuttiNetConnects;
  return path->network;
}

/* The first network that can serve here, in s; the sentences of those that cannot are logged, the
 * last of which is in `lack`. */
static tuttiResult_t openNet(tuttiCommView *v, netState *s, const char *only, tuttiPeer *mine,
                             char lack[TUTTI_SENTENCE]) {
  for (int i = 0; tuttiNets[i] && !s->net; i++) {
    const tuttiNet *net = tuttiNets[i];
    char why[TUTTI_SENTENCE] = "";
    if (*only && strcmp(only, net->name) != 0) continue;
    TUTTI_TRY(net->open(v, mine, &s->node, why));
    if (!why[0])
      s->net = net;
    else
      TUTTI_INFO(NET, "NET/%s is not used: %s", net->name, why);
    if (why[0]) snprintf(lack, TUTTI_SENTENCE, " (NET/%s: %.200s)", net->name, why);
  }
  return tuttiSuccess;
}

static tuttiResult_t unknownNet(const char *name) {
  char known[128] = "";
  for (int i = 0; tuttiNets[i]; i++)
    tuttiAppend(known, sizeof known, "%s%s", i ? ", " : "", tuttiNets[i]->name);
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "there is no network \"%.63s\"; TUTTI_NET and config.netName accept: %s", name,
                    known);
}

static void closeState(void *state) {
  netState *s = state;
  if (s->node) s->net->close(s->node);
  tuttiPoolDrop(&s->pool);
  tuttiSocketCloseListener(s->listener);
  tuttiFree(s);
}

static tuttiResult_t netPrepare(tuttiCommView *v, tuttiPeer *mine) {
  const char *only = v->netName ? v->netName : "";
  memset(mine->net, 0, sizeof mine->net);
  memset(mine->netName, 0, sizeof mine->netName);
  if (*only && !tuttiNetFind(only)) return unknownNet(only);
  if (v->nranks == 1) return tuttiSuccess;

  netState *s;
  TUTTI_NEW(s, 1, "the network state", v->memory);
  tuttiResult_t result = tuttiSocketListen(v, mine->net, &s->listener);
  char lack[TUTTI_SENTENCE] = "";
  if (result == tuttiSuccess && s->listener) result = openNet(v, s, only, mine, lack);
  if (result != tuttiSuccess || !s->net) {
    closeState(s);
    snprintf((char *)mine->net, sizeof mine->net, "%s", lack);
    return result;
  }
  if (s->node) { /* endpoints of both directions share it */
    tuttiProxyDestroy(v->receiver);
    v->receiver = NULL;
  }
  snprintf(mine->netName, sizeof mine->netName, "%s", s->net->name);
  v->net = s;
  return tuttiSuccess;
}

/* Peers by a network, or by any if it is NULL. */
static int peersBy(const tuttiCommView *v, const tuttiNet *net) {
  int n = 0;
  for (int p = 0; p < v->nranks; p++)
    n += v->paths[p].transport == &tuttiTransportNet && (!net || v->paths[p].net == net);
  return n;
}

/* Connections of either direction that a rank with so many peers is expected to open: for
 * collectives on each channel, for messages and for puts. */
static int connections(const tuttiCommView *v, int npeers) {
  int joined = npeers < v->neighbours ? npeers : v->neighbours;
  return joined * v->nchannels + npeers * (1 + (v->rmaContexts > 0));
}

/* Most that the pool may have. */
static size_t poolLimit(const tuttiCommView *v) {
  size_t most = (size_t)tuttiSettingInt(TUTTI_SETTING_NET_PINNED), left = SIZE_MAX;
  if (v->memLimit) left = v->memLimit > v->memTaken ? v->memLimit - v->memTaken : 0;
  return left < most ? left : most;
}

/* It is no trouble if there is none: see takeFifo. */
static void makePool(tuttiCommView *v, netState *s) {
  if (tuttiPeerGpu(&v->peers[v->rank]) < 0) return;
  int half = connections(v, peersBy(v, NULL)), own = connections(v, peersBy(v, s->net)),
      inGpu = s->net->room(s->node, own, own);
  size_t small = tuttiPagesUp(tuttiNetHostBytes(v, true)),
         whole = tuttiPagesUp(tuttiNetHostBytes(v, false)), most = poolLimit(v),
         wanted = (size_t)inGpu * small + (size_t)(2 * half - inGpu) * whole,
         bytes = wanted < most ? wanted : most;
  if (bytes < small) return;
  if (tuttiPoolMake(v, bytes, &s->pool) == tuttiSuccess) {
    TUTTI_INFO(NET,
               "NET: pinned %zu MiB of host memory, for %d connections with payloads in GPU memory "
               "(%zu KiB) and %d without (%zu KiB)%s",
               s->pool.bytes >> 20, inGpu, small >> 10, 2 * half - inGpu, whole >> 10,
               bytes < wanted ? "; it is less than these would take" : "");
  } else {
    TUTTI_INFO(NET, "NET: no host memory is pinned for connections: %s", tuttiErrorText());
    tuttiErrorClear();
  }
}

/* Kernels run from the first operation on: what must be made before is made now. */
static tuttiResult_t netAttach(tuttiCommView *v) {
  netState *s = v->net;
  if (!s) return tuttiSuccess;
  int npeers = peersBy(v, NULL);
  /* Until now the port was only held: where nobody will come, nobody listens. */
  if (npeers > 0)
    TUTTI_TRY(tuttiSocketListenerStart(s->listener));
  else
    tuttiListenerClose(&s->listener->listener);
  TUTTI_TRY(s->net->attach(v, s->node, npeers));
  makePool(v, s);
  return tuttiSuccess;
}

size_t tuttiNetEndpointBytes(const tuttiCommView *v) {
  return TUTTI_NET_ENDPOINT_BYTES + TUTTI_FIFO_DEPTH * v->slotBytes;
}

/* Of slots beside the GPU's: the NIC reads and writes host memory with less delay than the GPU's,
 * and a small message is nothing but delay. */
static size_t smallBytes(const tuttiCommView *v) {
  return v->slotBytes < TUTTI_NET_SMALL_MAX ? v->slotBytes : TUTTI_NET_SMALL_MAX;
}

size_t tuttiNetHostBytes(const tuttiCommView *v, bool gpuData) {
  return TUTTI_NET_CONTROL_BYTES + TUTTI_FIFO_DEPTH * (gpuData ? smallBytes(v) : v->slotBytes);
}

void *tuttiNetExpose(const tuttiCommView *v, void *base, size_t bytes, tuttiRmaKeys *keys) {
  const netState *s = v->net;
  return s && s->node && bytes > 0 ? s->net->expose(s->node, base, bytes, keys) : NULL;
}

void tuttiNetWithdraw(const tuttiCommView *v, void *exposed) {
  const netState *s = v->net;
  if (exposed) s->net->withdraw(s->node, exposed);
}

bool tuttiNetReaches(const tuttiCommView *v, const void *addr, size_t bytes) {
  const netState *s = v->net;
  return s && s->node && s->net->reaches(s->node, addr, bytes);
}

void tuttiNetTroubleOf(const tuttiCommView *v, tuttiNetTrouble *out) {
  const netState *s = v->net;
  *out = (tuttiNetTrouble){0};
  if (s && s->node) s->net->trouble(s->node, out);
}

tuttiResult_t tuttiNetWithoutGdr(const tuttiCommView *v, const char *what) {
  if (strcmp(tuttiSettingString(TUTTI_SETTING_NET_GDR), "require") != 0) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidUsage, "rank %d: %s=require, and %s", v->rank,
                    tuttiSettingOrigin(TUTTI_SETTING_NET_GDR), what);
}

/* What finds no room in the pool is pinned now, and may wait for kernels. */
static tuttiResult_t takeFifo(tuttiCommView *v, netEndpoint *end) {
  netState *s = v->net;
  int gpu = tuttiPeerGpu(&v->peers[v->rank]);
  end->fifo = tuttiPoolTake(&s->pool, end->fifoBytes);
  end->pooled = end->fifo != NULL;
  if (end->pooled) {
    memset(end->fifo, 0, TUTTI_NET_CONTROL_BYTES); /* it may have been another's */
    return tuttiSuccess;
  }
  if (gpu >= 0 && !s->full) {
    TUTTI_INFO(
        NET,
        "NET: no room for %zu KiB of a connection is left in the %zu MiB of pinned host "
        "memory: it is pinned now, and so will others be, which can wait for kernels of this "
        "process that in turn wait for this rank, for ever; raise TUTTI_NET_PINNED",
        end->fifoBytes >> 10, s->pool.bytes >> 20);
    s->full = true;
  }
  TUTTI_TRY(tuttiMap(&end->fifo, end->fifoBytes, -1, "the FIFO of a network connection", NULL));
  return tuttiPin(v->rank, gpu, end->fifo, end->fifoBytes, &end->pinned);
}

/* Undone by dropEndpoint, also after a failure. */
static tuttiResult_t makeFifo(tuttiCommView *v, netEndpoint *end, tuttiConn *conn) {
  netState *s = v->net;
  TUTTI_TRY(end->net->takeData(s->node, conn, &end->gpuData));
  end->fifoBytes = tuttiNetHostBytes(v, end->gpuData != NULL);
  TUTTI_TRY(takeFifo(v, end));
  conn->descriptors = end->fifo;
  conn->readers = (tuttiReader *)(conn->descriptors + TUTTI_FIFO_DEPTH);
  conn->posts = (tuttiPost *)(conn->readers + 1);
  uint8_t *payloads = (uint8_t *)end->fifo + TUTTI_NET_CONTROL_BYTES;
  conn->data = end->gpuData ? end->gpuData : payloads;
  if (end->gpuData) {
    conn->small = payloads;
    conn->smallBytes = smallBytes(v);
  }
  conn->gpuData = end->gpuData != NULL;
  conn->direct = !end->gpuData;
  conn->slotBytes = v->slotBytes;
  conn->ndescriptors = TUTTI_FIFO_DEPTH;
  conn->nreaders = 1;
  return tuttiSuccess;
}

static void dropEndpoint(tuttiCommView *v, netEndpoint *end) {
  netState *s = v->net;
  if (end->gpuData) end->net->giveData(s->node, end->gpuData);
  tuttiFetchAddAcqRel(&v->memory->bytes, -(uint64_t)end->counted);
  tuttiUnpin(&end->pinned);
  if (end->pooled)
    tuttiPoolGive(&s->pool, end->fifo);
  else
    tuttiUnmap(end->fifo, end->fifoBytes, NULL);
  tuttiFree(end);
}

static tuttiResult_t findNet(const tuttiCommView *v, int peer, const tuttiNet **out) {
  const tuttiPeer *mine = &v->peers[v->rank], *theirs = &v->peers[peer];
  const tuttiPath *path = &v->paths[peer];
  char why[TUTTI_SENTENCE];
  *out = path->net;
  if (path->transport == &tuttiTransportNet) return tuttiSuccess;
  return TUTTI_FAIL(tuttiRemoteError,
                    "the record of rank %d (host %s, pid %d) does not let rank %d connect: %s; "
                    "see the log of that rank",
                    peer, theirs->host, theirs->pid, v->rank,
                    tuttiPathText(path, mine, theirs, why));
}

static tuttiResult_t startEndpoint(tuttiCommView *v, netEndpoint *end, tuttiConn *conn) {
  netState *s = v->net;
  bool sends = conn->direction == TUTTI_SEND;
  tuttiNetHello hello = {.channel = conn->channel};
  tuttiHelloFill(&hello.head, v->commHash, tuttiHelloNet, sends ? v->rank : conn->peer,
                 sends ? conn->peer : v->rank, v->nranks);
  const tuttiNet *net = end->net;
  TUTTI_TRY(net->connect(v, s->node, s->listener, &hello, conn, &end->end));
  tuttiProxyOp op = {.advance = net->progress,
                     .close = net->closeEndpoint,
                     .halt = net->haltEndpoint,
                     .tell = net->tell,
                     .self = end->end,
                     .lazy = !sends};
  tuttiResult_t result = tuttiProxyAdd(tuttiNetProxy(v, conn->direction), &op);
  if (result != tuttiSuccess) net->closeEndpoint(end->end);
  return result;
}

static tuttiProxyState serve(void *state, tuttiProxyTurn *turn) {
  netState *s = state;
  tuttiProxyState met = tuttiSocketAccept(s->listener, turn);
  if (!s->node || met == TUTTI_PROXY_FAILED) return met;
  if (met == TUTTI_PROXY_IDLE) turn->polled++;
  tuttiProxyState served = s->net->serve(s->node, turn);
  return served == TUTTI_PROXY_IDLE ? met : served;
}

static tuttiResult_t netOpen(tuttiCommView *v, int peer, int channel, tuttiDirection direction,
                             bool shared, tuttiConn *conn) {
  netState *s = v->net;
  if (!s || shared || peer < 0 || peer >= v->nranks || peer == v->rank)
    return TUTTI_FAIL(tuttiInternalError,
                      "rank %d: NET was asked for a %sconnection with rank %d that it cannot make; "
                      "report this",
                      v->rank, shared ? "shared " : "", peer);
  /* Peers that connect before anybody serves the listener wait in its queue in the kernel. */
  tuttiProxyOp op = {.advance = serve,
                     .close = closeState,
                     .halt = tuttiProxyNothingToHalt,
                     .tell = tuttiProxyNothingToTell,
                     .self = s};
  if (!s->serving) TUTTI_TRY(tuttiProxyAdd(tuttiNetProxy(v, TUTTI_RECV), &op));
  s->serving = true;
  size_t bytes = tuttiNetEndpointBytes(v);
  if (v->memLimit && v->memTaken + bytes > v->memLimit)
    return tuttiMemExceeded(v, v->memTaken + bytes);
  const tuttiNet *net;
  TUTTI_TRY(findNet(v, peer, &net));
  netEndpoint *end;
  TUTTI_NEW(end, 1, "the endpoint of a network connection", v->memory);
  end->net = net;
  end->sends = direction == TUTTI_SEND;
  tuttiConn made = {.peer = peer,
                    .channel = channel,
                    .direction = (uint8_t)direction,
                    .network = 1,
                    .transport = &tuttiTransportNet,
                    .endpoint = end};
  tuttiResult_t result = makeFifo(v, end, &made);
  if (result == tuttiSuccess) result = startEndpoint(v, end, &made);
  if (result == tuttiSuccess) {
    TUTTI_LINK(s->endpoints, end);
    v->memTaken += bytes;
    *conn = made;
  } else {
    dropEndpoint(v, end);
  }
  return result;
}

static void netClose(tuttiCommView *v, tuttiConn *conn) {
  netState *s = v->net;
  netEndpoint *end = conn->endpoint;
  TUTTI_UNLINK(s->endpoints, end);
  tuttiProxyRemove(tuttiNetProxy(v, conn->direction), end->end);
  dropEndpoint(v, end);
  v->memTaken -= tuttiNetEndpointBytes(v);
  *conn = (tuttiConn){.peer = -1};
}

static void netDetach(tuttiCommView *v) {
  netState *s = v->net;
  if (!s) return;
  if (s->serving)
    tuttiProxyRemove(tuttiNetProxy(v, TUTTI_RECV), s);
  else
    closeState(s);
  v->net = NULL;
}

bool tuttiNetDrained(const tuttiCommView *v) {
  const netState *s = v->net;
  bool all = true; /* each is asked, for that makes it confirm what it has sent */
  for (const netEndpoint *end = s ? s->endpoints : NULL; end; end = end->next)
    if (end->sends && !end->net->drained(end->end)) all = false;
  return all;
}

void tuttiNetMeasure(tuttiCommView *v) {
  netState *s = v->net;
  if (!s) return;
  tuttiPoolMeasure(&s->pool);
  for (netEndpoint *end = s->endpoints; end; end = end->next) {
    if (end->pooled) continue;
    size_t now = tuttiResident(end->fifo, end->fifoBytes);
    tuttiFetchAddAcqRel(&v->memory->bytes, now - end->counted); /* wraps when it is less */
    end->counted = now;
  }
}

const tuttiTransport tuttiTransportNet = {
    .name = "NET",
    .canConnect = netCanConnect,
    .explain = netExplain,
    .prepare = netPrepare,
    .attach = netAttach,
    .open = netOpen,
    .close = netClose,
    .detach = netDetach,
};

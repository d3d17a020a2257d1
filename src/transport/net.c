#include "transport/net.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"

const tuttiNet *const tuttiNets[] = {&tuttiNetSocket, NULL};

/* One end: the local FIFO and what the backend keeps for it. */
typedef struct netEnd {
  const tuttiNet *net;
  void *end;
  void *fifo;
  size_t fifoBytes;
  size_t counted; /* bytes of it on the account */
  bool sends;
  struct netEnd *next;
} netEnd;

/* tuttiWires.net */
typedef struct {
  const tuttiNet *net;
  void *listener;
  bool serving; /* the listener is with the proxy, since the first open */
  netEnd *ends;
} netState;

static const tuttiNet *findNet(const char *name) {
  for (int i = 0; tuttiNets[i]; i++)
    if (strcmp(tuttiNets[i]->name, name) == 0) return tuttiNets[i];
  return NULL;
}

static void netCanConnect(const tuttiPeer *a, const tuttiPeer *b, tuttiPath *path) {
  *path = (tuttiPath){.possible = false};
  const tuttiNet *net = findNet(a->netName);
  if (!net || strcmp(a->netName, b->netName) != 0)
    snprintf(path->why, sizeof path->why,
             "no common network: rank %d has \"%.15s\", rank %d has \"%.15s\"", a->rank, a->netName,
             b->rank, b->netName);
  else
    net->canConnect(a, b, path);
  float slower = a->nicGBs < b->nicGBs ? a->nicGBs : b->nicGBs;
  if (slower > 0 && slower < path->bandwidthGBs) path->bandwidthGBs = slower;
}

/* The first backend that can serve here; the sentences of those that cannot are logged. */
static const tuttiNet *chooseNet(const char *only) {
  for (int i = 0; tuttiNets[i]; i++) {
    char why[TUTTI_SENTENCE] = "";
    tuttiNetDevice device;
    if (*only && strcmp(only, tuttiNets[i]->name) != 0) continue;
    if (tuttiNets[i]->devices(&device, 1, why) > 0) return tuttiNets[i];
    TUTTI_INFO(NET, "NET/%s is not used: %s", tuttiNets[i]->name, why);
  }
  return NULL;
}

static tuttiResult_t unknownNet(const char *name) {
  char known[128] = "";
  for (int i = 0; tuttiNets[i]; i++) {
    size_t used = strlen(known);
    snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", tuttiNets[i]->name);
  }
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "there is no network \"%.63s\"; TUTTI_NET and config.netName accept: %s", name,
                    known);
}

static tuttiResult_t netPrepare(tuttiWires *w, tuttiPeer *mine) {
  const char *only = w->netName ? w->netName : "";
  memset(mine->net, 0, sizeof mine->net);
  memset(mine->netName, 0, sizeof mine->netName);
  if (*only && !findNet(only)) return unknownNet(only);
  const tuttiNet *net = w->nranks > 1 ? chooseNet(only) : NULL;
  if (!net) return tuttiSuccess;

  netState *s;
  TUTTI_TRY(tuttiAlloc((void **)&s, 1, sizeof *s, "the network state", w->memory));
  s->net = net;
  tuttiResult_t result = net->listen(w, mine->net, &s->listener);
  if (result != tuttiSuccess) {
    tuttiFree(s);
    return result;
  }
  snprintf(mine->netName, sizeof mine->netName, "%s", net->name);
  w->net = s;
  return tuttiSuccess;
}

static tuttiResult_t netAttach(tuttiWires *w) {
  (void)w; /* what peers said is checked when they are connected */
  return tuttiSuccess;
}

static size_t pageUp(size_t bytes) {
  return (bytes + 4095) / 4096 * 4096;
}

static tuttiResult_t makeFifo(tuttiWires *w, netEnd *end, tuttiConn *conn) {
  size_t control = pageUp(tuttiFifoControlBytes(TUTTI_FIFO_DEPTH, 1));
  end->fifoBytes = control + TUTTI_FIFO_DEPTH * w->slotBytes;
  TUTTI_TRY(tuttiMap(&end->fifo, end->fifoBytes, -1, "the FIFO of a network connection", NULL));
  conn->slots = end->fifo;
  conn->heads = (tuttiHead *)(conn->slots + TUTTI_FIFO_DEPTH);
  conn->data = (uint8_t *)end->fifo + control;
  conn->slotBytes = w->slotBytes;
  conn->lines = TUTTI_FIFO_DEPTH;
  conn->nreaders = 1;
  return tuttiSuccess;
}

/* Brings the account up to date with the pages of the FIFO that messages have touched. */
static void countFifo(tuttiWires *w, netEnd *end) {
  size_t now = tuttiResident(end->fifo, end->fifoBytes);
  tuttiFetchAddAcqRel(&w->memory->bytes, now - end->counted); /* wraps when it is less */
  end->counted = now;
}

static void dropFifo(tuttiWires *w, netEnd *end) {
  tuttiFetchAddAcqRel(&w->memory->bytes, -(uint64_t)end->counted);
  tuttiUnmap(end->fifo, end->fifoBytes, NULL);
}

static tuttiResult_t startEnd(tuttiWires *w, netEnd *end, const tuttiConn *conn) {
  netState *s = w->net;
  bool sends = conn->direction == TUTTI_SEND;
  tuttiNetHello hello = {.magic = TUTTI_NET_MAGIC,
                         .version = TUTTI_VERSION_CODE,
                         .commHash = w->commHash,
                         .from = sends ? w->rank : conn->peer,
                         .to = sends ? conn->peer : w->rank,
                         .channel = conn->channel};
  memcpy(hello.secret, w->secret, sizeof hello.secret);
  if (sends)
    TUTTI_TRY(s->net->connect(w, s->listener, w->peers[conn->peer].net, &hello, conn, &end->end));
  else
    TUTTI_TRY(s->net->expect(w, s->listener, &hello, conn, &end->end));
  tuttiProxyOp op = {
      .advance = s->net->progress, .close = s->net->closeEnd, .self = end->end, .lazy = !sends};
  tuttiResult_t result = tuttiProxyAdd(w->proxy, &op);
  if (result != tuttiSuccess) s->net->closeEnd(end->end);
  return result;
}

/* Peers that connect before anybody serves the listener wait in its queue in the kernel. */
static tuttiResult_t serveListener(tuttiWires *w) {
  netState *s = w->net;
  if (s->serving) return tuttiSuccess;
  tuttiProxyOp op = {
      .advance = s->net->accept, .close = s->net->closeListener, .self = s->listener};
  TUTTI_TRY(tuttiProxyAdd(w->proxy, &op));
  s->serving = true;
  return tuttiSuccess;
}

static tuttiResult_t netOpen(tuttiWires *w, int peer, int channel, tuttiDirection direction,
                             bool shared, tuttiConn *conn) {
  netState *s = w->net;
  if (!s || shared || peer < 0 || peer >= w->nranks || peer == w->rank)
    return TUTTI_FAIL(tuttiInternalError,
                      "rank %d: NET was asked for a %sconnection with rank %d that it cannot make; "
                      "report this",
                      w->rank, shared ? "shared " : "", peer);
  TUTTI_TRY(serveListener(w));
  netEnd *end;
  TUTTI_TRY(
      tuttiAlloc((void **)&end, 1, sizeof *end, "the end of a network connection", w->memory));
  end->net = s->net;
  end->sends = direction == TUTTI_SEND;
  tuttiConn made = {.peer = peer,
                    .channel = channel,
                    .direction = (uint8_t)direction,
                    .direct = 1,
                    .network = 1,
                    .transport = &tuttiTransportNet,
                    .end = end};
  tuttiResult_t result;
  TUTTI_TRY_GOTO(makeFifo(w, end, &made), result, noFifo);
  TUTTI_TRY_GOTO(startEnd(w, end, &made), result, noEnd);
  end->next = s->ends;
  s->ends = end;
  *conn = made;
  return tuttiSuccess;

noEnd:
  dropFifo(w, end);
noFifo:
  tuttiFree(end);
  return result;
}

static void netClose(tuttiWires *w, tuttiConn *conn) {
  netState *s = w->net;
  netEnd *end = conn->end, **at = &s->ends;
  while (*at != end)
    at = &(*at)->next;
  *at = end->next;
  tuttiProxyRemove(w->proxy, end->end);
  dropFifo(w, end);
  tuttiFree(end);
  *conn = (tuttiConn){.peer = -1};
}

static void netDetach(tuttiWires *w) {
  netState *s = w->net;
  if (!s) return;
  if (s->serving)
    tuttiProxyRemove(w->proxy, s->listener);
  else
    s->net->closeListener(s->listener);
  tuttiFree(s);
  w->net = NULL;
}

bool tuttiNetDrained(const tuttiWires *w) {
  const netState *s = w->net;
  for (const netEnd *end = s ? s->ends : NULL; end; end = end->next)
    if (end->sends && !end->net->drained(end->end)) return false;
  return true;
}

void tuttiNetMeasure(tuttiWires *w) {
  netState *s = w->net;
  for (netEnd *end = s ? s->ends : NULL; end; end = end->next)
    countFifo(w, end);
}

const tuttiTransport tuttiTransportNet = {
    .name = "NET",
    .canConnect = netCanConnect,
    .prepare = netPrepare,
    .attach = netAttach,
    .open = netOpen,
    .close = netClose,
    .detach = netDetach,
    .shared = false,
};

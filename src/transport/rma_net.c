#include "transport/rma_net.h"

#include <stdio.h>
#include <string.h>

#include "base/backoff.h"
#include "base/error.h"
#include "base/os.h"
#include "transport/net.h"
#include "transport/rma_message.h"

#define MESSAGES_PER_TURN 16 /* of a connection, so that the proxy comes round to others */
/* After a message the proxy looks so often for so long, though nobody waits: some networks tell
 * nobody that something has come. */
#define LOOK_MS    1
#define LOOKING_MS 100

typedef struct openWindow {
  uint32_t number;
  uint8_t *base;
  size_t size;
  void *exposed; /* of the network; NULL: peers cannot write there by themselves */
  struct openWindow *next;
} openWindow;

struct tuttiRmaNet {
  tuttiRmaHome home;
  pthread_mutex_t lock; /* guards what follows; held while a message is taken */
  openWindow *windows;
  tuttiConn **receiving; /* [nranks] NULL: none */
  bool serving;          /* it is with the proxy */
  uint64_t lookUntil;    /* tuttiNow() clock */
};

tuttiResult_t tuttiRmaNetCreate(const tuttiRmaHome *home, tuttiRmaNet **out) {
  TUTTI_FRESH(tuttiRmaNet, n, 1, "one-sided operations over a network", home->view->memory);
  const tuttiCommView *v = home->view;
  TUTTI_NEW(n->receiving, v->nranks, "connections of ranks", v->memory); // NOLINT: pointers
  n->home = *home;
  pthread_mutex_init(&n->lock, NULL);
  *out = n;
  n = NULL;
  return tuttiSuccess;
}

void tuttiRmaNetFree(tuttiRmaNet *n) {
  if (!n) return;
  if (n->serving) tuttiProxyRemove(n->home.taker, n);
  while (n->windows)
    tuttiRmaNetWindowClose(n, n->windows->number);
  pthread_mutex_destroy(&n->lock);
  tuttiFree(n->receiving);
  tuttiFree(n);
}

tuttiResult_t tuttiRmaNetWindowOpen(tuttiRmaNet *n, uint32_t number, void *base, size_t size,
                                    tuttiRmaKeys *keys) {
  openWindow *w;
  TUTTI_NEW(w, 1, "a window", n->home.view->memory);
  *w = (openWindow){.number = number, .base = base, .size = size};
  w->exposed = tuttiNetExpose(n->home.view, base, size, keys);
  TUTTI_LOCKED(&n->lock);
  TUTTI_LINK(n->windows, w);
  return tuttiSuccess;
}

void tuttiRmaNetWindowClose(tuttiRmaNet *n, uint32_t number) {
  TUTTI_LOCKED(&n->lock);
  openWindow *w = n->windows;
  while (w && w->number != number)
    w = w->next;
  if (!w) return;
  TUTTI_UNLINK(n->windows, w);
  tuttiNetWithdraw(n->home.view, w->exposed);
  tuttiFree(w);
}

/* ---- the receiver ---------------------------------------------------------------------------- */

static const openWindow *findWindow(const tuttiRmaNet *n, const tuttiRmaHeader *h) {
  const openWindow *w = n->windows;
  while (w && w->number != h->window)
    w = w->next;
  return w;
}

static tuttiResult_t broken(const tuttiRmaNet *n, const tuttiConn *conn, const char *what) {
  const tuttiPeer *p = &n->home.view->peers[conn->peer];
  return TUTTI_FAIL(tuttiRemoteError,
                    "a one-sided message of rank %d (host %s, pid %d) cannot be taken: %s",
                    conn->peer, p->host, p->pid, what);
}

/* Puts the data where the header says; NULL: it is there. */
static tuttiResult_t deliver(const tuttiRmaNet *n, const tuttiConn *conn, const tuttiRmaHeader *h,
                             const uint8_t *data) {
  char text[160];
  if (h->bytes == 0) return tuttiSuccess;
  const openWindow *w = findWindow(n, h);
  if (!w) {
    snprintf(text, sizeof text,
             "rank %d has no window #%u open; deregister a window when all have written to it",
             n->home.view->rank, h->window);
    return broken(n, conn, text);
  }
  if (h->offset > w->size || h->bytes > w->size - h->offset)
    return broken(n, conn, "it reaches past the end of its window");
  if (!data) return tuttiSuccess;
  return n->home.store(n->home.owner, w->base + h->offset, data, h->bytes);
}

/* What is wrong with a message, or NULL. The header is h. */
static const char *wrongWith(const tuttiRmaNet *n, const tuttiConn *conn,
                             const tuttiSlotDescriptor *slot, const tuttiRmaHeader *h) {
  bool inlined = slot->where == TUTTI_WHERE_INLINE;
  size_t before = inlined ? sizeof *h : 0;
  if (slot->bytes < before || slot->bytes > (inlined ? TUTTI_INLINE_MAX : conn->slotBytes))
    return "it has no header";
  if (h->counter >= n->home.used || h->last > 1) return "its header is malformed";
  return slot->bytes - before == h->bytes ? NULL
                                          : "its data is of another size than its header says";
}

/* Where the data is; NULL: in its window. */
static const uint8_t *dataOf(const tuttiConn *conn, const tuttiSlotDescriptor *slot) {
  if (slot->where == TUTTI_WHERE_WINDOW) return NULL;
  return slot->where == TUTTI_WHERE_INLINE ? slot->inlined + sizeof(tuttiRmaHeader)
                                           : tuttiConnData(conn, slot->bytes);
}

/* Takes the next message of a connection that has one. */
static tuttiResult_t takeMessage(tuttiRmaNet *n, tuttiConn *conn) {
  const tuttiSlotDescriptor *slot = tuttiConnDescriptor(conn);
  tuttiRmaHeader h;
  memcpy(&h, slot->inlined, sizeof h);
  const char *wrong = wrongWith(n, conn, slot, &h);
  if (wrong) return broken(n, conn, wrong);
  TUTTI_TRY(deliver(n, conn, &h, dataOf(conn, slot)));
  size_t counter = (size_t)conn->peer * n->home.row + h.counter;
  if (h.last) tuttiFetchAddAcqRel(&n->home.counters[counter], 1);
  tuttiConnAdvance(conn);
  return tuttiSuccess;
}

static tuttiResult_t takeAll(tuttiRmaNet *n, bool *moved) {
  TUTTI_LOCKED(&n->lock);
  for (int p = 0; p < n->home.view->nranks; p++) {
    tuttiConn *conn = n->receiving[p];
    for (int m = 0; conn && m < MESSAGES_PER_TURN && tuttiConnReady(conn); m++) {
      TUTTI_TRY(takeMessage(n, conn));
      *moved = true;
    }
  }
  return tuttiSuccess;
}

static tuttiProxyState advance(void *self, tuttiProxyTurn *turn) {
  tuttiRmaNet *n = self;
  bool moved = false;
  turn->polled++;
  if (tuttiLoadAcquire32(n->home.view->failed)) return TUTTI_PROXY_IDLE; /* windows may be gone */
  turn->result = takeAll(n, &moved);
  if (turn->result != tuttiSuccess) return TUTTI_PROXY_FAILED;
  uint64_t now = tuttiNow();
  if (moved) n->lookUntil = now + LOOKING_MS * TUTTI_MS;
  if (now < n->lookUntil)
    tuttiProxyWakeBy(turn, now + LOOK_MS * TUTTI_MS);
  else if (n->home.lookMs)
    tuttiProxyWakeBy(turn, now + n->home.lookMs * TUTTI_MS);
  if (moved) tuttiProxyFreed(tuttiNetProxy(n->home.view, TUTTI_RECV));
  return moved ? TUTTI_PROXY_MOVED : TUTTI_PROXY_IDLE;
}

tuttiResult_t tuttiRmaNetListen(tuttiRmaNet *n, tuttiConn *conn) {
  pthread_mutex_lock(&n->lock);
  n->receiving[conn->peer] = conn;
  pthread_mutex_unlock(&n->lock);
  if (n->serving) return tuttiSuccess;
  tuttiProxyOp op = {.advance = advance,
                     .close = tuttiProxyNothingToClose,
                     .halt = tuttiProxyNothingToHalt,
                     .tell = tuttiProxyNothingToTell,
                     .self = n,
                     .lazy = true};
  TUTTI_TRY(tuttiProxyAdd(n->home.taker, &op));
  n->serving = true;
  return tuttiSuccess;
}

/* ---- the sender ------------------------------------------------------------------------------ */

static tuttiResult_t awaitRoom(const tuttiRmaNet *n, tuttiConn *conn, tuttiProxy *proxy,
                               size_t bytes) {
  const tuttiCommView *v = n->home.view;
  tuttiBackoff pause = {0};
  uint64_t deadline = tuttiDeadline((int64_t)v->timeoutMs);
  while (!tuttiConnRoom(conn, tuttiConnDepth(conn, bytes))) {
    TUTTI_TRY(n->home.failure(n->home.owner));
    if (tuttiProxyRun(proxy)) {
      tuttiBackoffReset(&pause);
      continue;
    }
    if (tuttiNow() > deadline)
      return TUTTI_FAIL(tuttiTimeout,
                        "rank %d waited %.1f s for room to put to rank %d (host %s, pid %d), whose "
                        "proxy does not take what was put before. Mend or restart it, or raise "
                        "TUTTI_TIMEOUT",
                        v->rank, (double)v->timeoutMs / 1e3, conn->peer, v->peers[conn->peer].host,
                        v->peers[conn->peer].pid);
    tuttiBackoffPause(&pause);
  }
  return tuttiSuccess;
}

/* Fills the next slot with a piece of a put. Its data stays where it is if that is `lent`. */
static void fillSlot(tuttiConn *conn, const tuttiRmaTarget *target, const uint8_t *data,
                     bool lent) {
  tuttiSlotDescriptor *slot = tuttiConnDescriptor(conn);
  const tuttiRmaHeader *h = &target->header;
  bool inlined = sizeof *h + h->bytes <= TUTTI_INLINE_MAX;
  slot->bytes = h->bytes + (inlined ? sizeof *h : 0);
  slot->sig = (tuttiSignature){.count = slot->bytes, .root = -1, .coll = tuttiCollSendRecv};
  slot->sig.type = tuttiUint8;
  slot->addr = 0;
  memcpy(slot->inlined, target, inlined ? sizeof *h : sizeof *target);
  slot->where = inlined ? TUTTI_WHERE_INLINE : lent ? TUTTI_WHERE_DIRECT : TUTTI_WHERE_SLOT;
  if (slot->where == TUTTI_WHERE_DIRECT)
    slot->addr = (uintptr_t)data;
  else if (h->bytes > 0)
    memcpy(inlined ? slot->inlined + sizeof *h : tuttiConnData(conn, h->bytes), data, h->bytes);
}

static tuttiResult_t sendPieces(const tuttiRmaNet *n, tuttiConn *conn, tuttiProxy *proxy,
                                const tuttiRmaPut *put, size_t counter) {
  const uint8_t *data = put->data;
  size_t at = 0, piece;
  do {
    piece = put->bytes - at < conn->slotBytes ? put->bytes - at : conn->slotBytes;
    tuttiRmaTarget target = {.header = {.offset = put->offset + at,
                                        .window = put->window,
                                        .bytes = (uint32_t)piece,
                                        .counter = (uint32_t)counter,
                                        .last = at + piece == put->bytes},
                             .to = put->at + at,
                             .keys = put->keys};
    TUTTI_TRY(awaitRoom(n, conn, proxy, piece));
    fillSlot(conn, &target, data + at, false);
    tuttiConnAdvance(conn);
    tuttiProxyKick(proxy);
    at += piece;
  } while (at < put->bytes);
  return tuttiSuccess;
}

tuttiResult_t tuttiRmaNetSend(tuttiRmaNet *n, tuttiConn *conn, const tuttiRmaPut *put,
                              size_t counter) {
  tuttiProxy *proxy = tuttiNetProxy(n->home.view, TUTTI_SEND);
  tuttiProxyEnter(proxy);
  tuttiResult_t result = sendPieces(n, conn, proxy, put, counter);
  tuttiProxyLeave(proxy);
  return result;
}

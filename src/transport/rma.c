#include "transport/rma.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/backoff.h"
#include "base/error.h"
#include "base/os.h"
#include "transport/net.h"
#include "transport/remote.h"
#include "transport/rma_net.h"

/* The area of one rank. */
typedef struct {
  uint8_t token[16]; /* as on the card */
  struct {
    tuttiAtomic32 live;    /* the number of the window that is open here; 0: none */
    tuttiAtomic32 writers; /* threads of this process that are in it */
  } windows[TUTTI_RMA_WINDOWS];
  tuttiAtomic64 counters[] __attribute__((aligned(TUTTI_LINE))); /* a row for each rank */
} Area;

struct tuttiRma {
  tuttiCommView *view;
  int contexts, signals;
  size_t row, bytes; /* counters of a rank, in whole lines; of an area */
  int fd;
  Area *mine;
  Area **theirs; /* [nranks] mapped when first written to */
  tuttiRmaCard *cards;
  tuttiRmaNet *net;
  tuttiConn **sending; /* [nranks] over a network; NULL: none yet */
};

#define NOWHERE SIZE_MAX /* no place of an area */

/* The areas that this process has mapped. Its ranks share one mapping of each: threads then meet at
 * one address, and the memory stays as long as any of them may write to it. */
typedef struct mapping {
  uint64_t device, inode;
  void *area;
  size_t bytes;
  int holders;
  struct mapping *next;
} mapping;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards: */
static mapping *mappings;

static Area *mapArea(tuttiRma *r, int fd) {
  tuttiPeerFd file;
  if (tuttiPeerFdDescribe(fd, &file) != 0) return NULL;
  TUTTI_LOCKED(&lock);
  mapping *m = mappings;
  while (m && (m->device != file.device || m->inode != file.inode || m->bytes != r->bytes))
    m = m->next;
  if (!m) {
    if (tuttiAlloc((void **)&m, 1, sizeof *m, "a mapping", NULL) != tuttiSuccess) return NULL;
    *m = (mapping){.device = file.device, .inode = file.inode, .bytes = r->bytes};
    if (tuttiMap(&m->area, r->bytes, fd, "signals of one-sided operations", NULL) != tuttiSuccess) {
      tuttiFree(m);
      return NULL;
    }
    TUTTI_LINK(mappings, m);
  }
  m->holders++;
  return m->area;
}

static void dropArea(const Area *area) {
  TUTTI_LOCKED(&lock);
  mapping *m = mappings;
  while (m && m->area != area)
    m = m->next;
  if (!m || --m->holders > 0) return;
  TUTTI_UNLINK(mappings, m);
  tuttiUnmap(m->area, m->bytes, NULL);
  tuttiFree(m);
}

static tuttiResult_t makeArea(tuttiRma *r, tuttiRmaCard *card) {
  TUTTI_TRY(tuttiSharedFd("signals of one-sided operations", &r->fd));
  tuttiForkCloseAdd(r->fd);
  TUTTI_TRY(tuttiSharedFdSeal(r->fd, r->bytes, "signals of one-sided operations"));
  r->mine = mapArea(r, r->fd);
  if (!r->mine) return tuttiSystemError;
  TUTTI_TRY(tuttiRandom(card->token, sizeof card->token));
  memcpy(r->mine->token, card->token, sizeof card->token);
  int err = tuttiPeerFdDescribe(r->fd, &card->fd);
  if (err == 0) return tuttiSuccess;
  return TUTTI_FAIL(tuttiSystemError, "cannot describe the memory of signals: %s",
                    tuttiErrnoText(err));
}

static tuttiResult_t storeHere(void *owner, void *to, const void *from, size_t bytes) {
  (void)owner;
  memcpy(to, from, bytes);
  return tuttiSuccess;
}

static tuttiResult_t fill(tuttiRma *r, const tuttiRmaWishes *wishes, tuttiRmaCard *card) {
  const tuttiCommView *v = r->view;
  TUTTI_NEW(r->theirs, v->nranks, "signals of ranks", v->memory); // NOLINT: pointers
  TUTTI_NEW(r->cards, v->nranks, "cards of ranks", v->memory);
  TUTTI_NEW(r->sending, v->nranks, "connections of ranks", v->memory); // NOLINT: pointers
  TUTTI_TRY(makeArea(r, card));
  tuttiRmaHome home = {.view = r->view,
                       .taker = tuttiNetProxy(r->view, TUTTI_RECV),
                       .counters = r->mine->counters,
                       .row = r->row,
                       .used = (size_t)r->contexts * (size_t)r->signals,
                       .failure = wishes->failure,
                       .store = storeHere,
                       .owner = wishes->owner};
  return tuttiRmaNetCreate(&home, &r->net);
}

tuttiResult_t tuttiRmaCreate(tuttiCommView *v, const tuttiRmaWishes *wishes, tuttiRma **out,
                             tuttiRmaCard *card) {
  tuttiRma *r;
  size_t n = (size_t)v->nranks, words = TUTTI_LINE / sizeof(tuttiAtomic64);
  TUTTI_NEW(r, 1, "one-sided operations", v->memory);
  r->view = v;
  r->fd = -1;
  r->contexts = wishes->contexts;
  r->signals = wishes->signals;
  r->row = ((size_t)r->contexts * (size_t)r->signals + words - 1) / words * words;
  r->bytes = sizeof(Area) + n * r->row * sizeof(tuttiAtomic64);
  tuttiResult_t result = fill(r, wishes, card);
  if (result == tuttiSuccess)
    *out = r;
  else
    tuttiRmaFree(r);
  return result;
}

tuttiResult_t tuttiRmaConnect(tuttiRma *r, tuttiConn *conn) {
  if (conn->direction == TUTTI_RECV) return tuttiRmaNetListen(r->net, conn);
  r->sending[conn->peer] = conn;
  return tuttiSuccess;
}

bool tuttiRmaConnected(const tuttiRma *r, int peer) {
  return r->sending[peer] != NULL;
}

tuttiResult_t tuttiRmaMeet(tuttiRma *r, const tuttiRmaCard *cards) {
  memcpy(r->cards, cards, (size_t)r->view->nranks * sizeof *cards);
  return tuttiSuccess;
}

void tuttiRmaFree(tuttiRma *r) {
  if (!r) return;
  tuttiRmaNetFree(r->net);
  for (int p = 0; r->theirs && p < r->view->nranks; p++)
    if (r->theirs[p] && r->theirs[p] != r->mine) dropArea(r->theirs[p]);
  if (r->mine) dropArea(r->mine);
  tuttiFdClose(&r->fd);
  tuttiFree(r->sending);
  tuttiFree(r->cards);
  tuttiFree(r->theirs);
  tuttiFree(r);
}

/* ---- windows of this rank -------------------------------------------------------------------- */

/* A window is at its own place, or the next that was free if an older window is open there. This
 * finds the first from its own on at which `live` is: the window's number, or 0 where none is open.
 */
static size_t placeOf(const Area *area, uint32_t window, uint32_t live) {
  for (uint32_t i = 0; i < TUTTI_RMA_WINDOWS; i++) {
    size_t place = (window + i) % TUTTI_RMA_WINDOWS;
    if (tuttiLoadAcquire32(&area->windows[place].live) == live) return place;
  }
  return NOWHERE;
}

tuttiResult_t tuttiRmaWindowOpen(tuttiRma *r, uint32_t number, void *base, size_t size,
                                 tuttiRmaKeys *keys) {
  TUTTI_TRY(tuttiRmaNetWindowOpen(r->net, number, base, size, keys));
  size_t place = placeOf(r->mine, number, 0);
  if (place != NOWHERE) tuttiStoreRelease32(&r->mine->windows[place].live, number);
  return tuttiSuccess;
}

/* Writers announce themselves, then look whether it is open; this rank closes it, then looks
 * whether anyone is there: at least one sees the other. */
void tuttiRmaWindowClose(tuttiRma *r, uint32_t number) {
  size_t place = placeOf(r->mine, number, number);
  tuttiRmaNetWindowClose(r->net, number);
  if (place == NOWHERE) return;
  tuttiStoreSeqCst32(&r->mine->windows[place].live, 0);
  while (tuttiLoadSeqCst32(&r->mine->windows[place].writers) != 0)
    tuttiCpuRelax();
}

/* ---- writing to others ----------------------------------------------------------------------- */

static tuttiRemote processOf(const tuttiPeer *p) {
  return (tuttiRemote){.pid = p->pid, .offer = p->offer, .id = p->process};
}

static tuttiResult_t takeArea(tuttiRma *r, int peer) {
  const tuttiPeer *p = &r->view->peers[peer];
  char why[TUTTI_SENTENCE];
  TUTTI_CLOSED int fd = tuttiPeerFdOpen(p->pid, &r->cards[peer].fd, why, sizeof why);
  if (fd < 0)
    return TUTTI_FAIL(
        tuttiInvalidUsage,
        "rank %d cannot open the signals of rank %d (host %s, pid %d): %s; let "
        "processes of one user look into each other, or set TUTTI_SHM_DISABLE=1, with "
        "which they talk over the network",
        r->view->rank, peer, p->host, p->pid, why);
  Area *area = mapArea(r, fd);
  if (!area) return tuttiSystemError;
  if (memcmp(area->token, r->cards[peer].token, sizeof area->token) == 0) {
    r->theirs[peer] = area;
    return tuttiSuccess;
  }
  dropArea(area);
  return TUTTI_FAIL(tuttiRemoteError,
                    "what rank %d (host %s, pid %d) shows as its signals is something else; is a "
                    "process of another job in its place?",
                    peer, p->host, p->pid);
}

tuttiResult_t tuttiRmaReach(tuttiRma *r, int peer) {
  const tuttiPath *path = &r->view->paths[peer];
  const tuttiPeer *p = &r->view->peers[peer];
  if (peer == r->view->rank) {
    r->theirs[peer] = r->mine;
    return tuttiSuccess;
  }
  if (r->theirs[peer] || path->network) return tuttiSuccess;
  tuttiRemote process = processOf(p);
  if (!path->direct && !tuttiRemoteReadable(&process))
    return TUTTI_FAIL(tuttiInvalidUsage,
                      "rank %d cannot write into the memory of rank %d (host %s, pid %d): the "
                      "system or TUTTI_CMA_DISABLE forbids process_vm_writev; allow it, or set "
                      "TUTTI_SHM_DISABLE=1, with which they talk over the network",
                      r->view->rank, peer, p->host, p->pid);
  return takeArea(r, peer);
}

static tuttiResult_t closedWindow(const tuttiRma *r, const tuttiRmaPut *put) {
  return TUTTI_FAIL(tuttiInvalidUsage,
                    "rank %d has no window #%u open any more to which rank %d puts; deregister a "
                    "window when all have written to it",
                    put->peer, put->window, r->view->rank);
}

/* Into the memory of another thread, which cannot take it away meanwhile. */
static tuttiResult_t storeAt(const tuttiRma *r, const tuttiRmaPut *put) {
  Area *area = r->theirs[put->peer];
  size_t place = placeOf(area, put->window, put->window);
  if (place == NOWHERE) return closedWindow(r, put);
  tuttiFetchAddSeqCst32(&area->windows[place].writers, 1);
  bool open = tuttiLoadSeqCst32(&area->windows[place].live) == put->window;
  if (open) memmove((void *)(uintptr_t)put->at, put->data, put->bytes); // NOLINT: its address
  tuttiFetchAddSeqCst32(&area->windows[place].writers, UINT32_MAX);
  return open ? tuttiSuccess : closedWindow(r, put);
}

/* Into the memory of another process: where it is shared, else by the kernel. */
static tuttiResult_t copyTo(const tuttiRma *r, const tuttiRmaPut *put) {
  const tuttiPeer *p = &r->view->peers[put->peer];
  Area *area = r->theirs[put->peer];
  if (placeOf(area, put->window, put->window) == NOWHERE) return closedWindow(r, put);
  if (put->mapped) {
    memcpy(put->mapped, put->data, put->bytes);
    return tuttiSuccess;
  }
  tuttiRemote process = processOf(p);
  int err = tuttiRemoteWrite(&process, put->data, put->at, put->bytes);
  if (err == 0) return tuttiSuccess;
  return TUTTI_FAIL(err == ESRCH ? tuttiRemoteError : tuttiSystemError,
                    "rank %d cannot write %zu bytes at offset %llu of window #%u of rank %d (host "
                    "%s, pid %d): %s",
                    r->view->rank, put->bytes, (unsigned long long)put->offset, put->window,
                    put->peer, p->host, p->pid,
                    err == ESRCH ? "that process is gone" : tuttiErrnoText(err));
}

static size_t counterOf(const tuttiRma *r, int from, int context, int signal) {
  return (size_t)from * r->row + (size_t)context * (size_t)r->signals + (size_t)signal;
}

tuttiResult_t tuttiRmaWrite(tuttiRma *r, const tuttiRmaPut *put) {
  tuttiConn *conn = r->sending[put->peer];
  if (conn) return tuttiRmaNetSend(r->net, conn, put, counterOf(r, 0, put->context, put->signal));
  bool near = put->peer == r->view->rank || r->view->paths[put->peer].direct;
  if (put->bytes > 0) TUTTI_TRY((near ? storeAt : copyTo)(r, put));
  size_t counter = counterOf(r, r->view->rank, put->context, put->signal);
  tuttiFetchAddAcqRel(&r->theirs[put->peer]->counters[counter], 1);
  return tuttiSuccess;
}

uint64_t tuttiRmaArrived(const tuttiRma *r, int peer, int context, int signal) {
  return tuttiLoadAcquire(&r->mine->counters[counterOf(r, peer, context, signal)]);
}

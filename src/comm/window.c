/* Windows: the ranks compare what they were given, then the device makes the ranges known to each
 * other. */
#include "comm/window.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>

#include "base/os.h"
#include "comm/check.h"
#include "comm/communicator.h"
#include "comm/group.h"
#include "comm/handle.h"
#include "comm/job.h"
#include "comm/onesided.h"
#include "comm/operation.h"
#include "comm/worker.h"
#include "transport/shareable.h"

struct tuttiWindowState {
  struct tuttiWindowState *next;
  struct tuttiWindowState *nextOfAll; /* of the process */
  tuttiWindow_t name; /* for the user: what kernels know it by, or else its own address */
  tuttiComm_t owner;
  void *buff;
  void *handle; /* the device's */
  uint32_t number;
  size_t size;
  uint64_t *base;             /* [nranks] */
  tuttiRmaKeys *keys;         /* [nranks] by which networks write there */
  tuttiShareableCard *memory; /* [nranks] where that is shared */
  void **mapped;              /* [nranks] that, when it was first written to; NULL: not yet */
};
typedef struct tuttiWindowState Window;

/* Some calls of the user name a window alone. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Window *allWindows; /* of all communicators of this process; under lock */

static void list(Window *window) {
  TUTTI_LOCKED(&lock);
  window->nextOfAll = allWindows;
  allWindows = window;
}

static void unlist(const Window *window) {
  TUTTI_LOCKED(&lock);
  Window **at = &allWindows;
  while (*at && *at != window)
    at = &(*at)->nextOfAll;
  if (*at) *at = window->nextOfAll;
}

tuttiComm_t tuttiWindowOwner(tuttiWindow_t win) {
  TUTTI_LOCKED(&lock);
  const Window *window = allWindows;
  while (window && window->name != win)
    window = window->nextOfAll;
  return win && window ? window->owner : NULL;
}

/* What the ranks compare. */
typedef struct {
  uint64_t size, base;
  int32_t flags, refused; /* the rank cannot take part: its tuttiResult_t */
  int32_t contexts, signals;
  tuttiRmaCard card; /* with the first window */
  tuttiRmaKeys keys;
  tuttiShareableCard memory;
} WindowEntry;

static tuttiResult_t checkEntries(const tuttiCommunicator *c, const WindowEntry *all) {
  const WindowEntry *mine = &all[c->rank];
  for (int r = 0; r < c->nranks; r++) {
    if (all[r].refused)
      return TUTTI_FAIL(tuttiRemoteError,
                        "rank %d could not register its part of the window; see its log for the "
                        "reason",
                        r);
    if (all[r].size != mine->size || all[r].flags != mine->flags)
      return TUTTI_FAIL(tuttiInvalidUsage,
                        "ranks disagree on a window: rank %d called with size %" PRIu64
                        " and winFlags %d, rank %d with size %" PRIu64
                        " and winFlags %d; call it on all ranks with the same",
                        c->rank, mine->size, mine->flags, r, all[r].size, all[r].flags);
    if (all[r].contexts != mine->contexts || all[r].signals != mine->signals)
      return TUTTI_FAIL(tuttiInvalidUsage,
                        "ranks disagree on one-sided operations: rank %d has numRmaCtx %d and "
                        "numRmaSig %d, rank %d has %d and %d; make the communicator with the same",
                        c->rank, mine->contexts, mine->signals, r, all[r].contexts, all[r].signals);
    if (all[r].base > UINT64_MAX - all[r].size)
      return TUTTI_FAIL(tuttiInternalError, "the window of rank %d wraps around; report this", r);
  }
  return tuttiSuccess;
}

static tuttiResult_t checkOwn(tuttiCommunicator *c, const tuttiWindowJob *w, WindowEntry *mine) {
  uint32_t number = c->windowsMade + 1;
  TUTTI_TRY(tuttiCheckMemory(c, "buff", w->buff));
  TUTTI_TRY(tuttiOneSidedPrepare(c, &mine->card));
  /* Before the others can know of it: one that returns first may put at once. */
  if (!c->rma) return c->device->windowOpen(&c->context, number, w->buff, w->size, &mine->keys);
  tuttiShareableShare(w->buff, w->size, &mine->memory);
  return tuttiRmaWindowOpen(c->rma, number, w->buff, w->size, &mine->keys);
}

static void closeWindow(tuttiCommunicator *c, uint32_t number) {
  if (c->rma)
    tuttiRmaWindowClose(c->rma, number);
  else
    c->device->windowClose(&c->context, number);
}

/* After a failure: nobody has been told of the window, or nobody will use it. */
static void takeBack(tuttiCommunicator *c, uint32_t number, bool first) {
  closeWindow(c, number);
  if (!first || !c->rma) return;
  tuttiRmaFree(c->rma); /* all begin anew with the next window */
  c->rma = NULL;
}

/* A rank that cannot take part says so, for the others would wait for it. All ranks count the
 * windows alike. */
static tuttiResult_t compare(tuttiCommunicator *c, const tuttiWindowJob *w, WindowEntry *all) {
  char why[TUTTI_ERROR_TEXT];
  bool first = c->rma == NULL;
  uint32_t number = c->windowsMade + 1;
  WindowEntry *mine = &all[c->rank];
  tuttiResult_t refused = checkOwn(c, w, mine);
  snprintf(why, sizeof why, "%s", tuttiErrorText());
  mine->size = w->size;
  mine->base = (uint64_t)(uintptr_t)w->buff;
  mine->flags = w->flags;
  mine->refused = (int32_t)refused;
  mine->contexts = c->options.rmaContexts;
  mine->signals = c->options.rmaSignals;
  tuttiResult_t result = tuttiCommExchange(c, all, sizeof *all);
  if (result == tuttiSuccess) {
    c->windowsMade++;
    result = refused ? tuttiErrorAdopt(refused, why) : checkEntries(c, all);
  }
  if (result != tuttiSuccess) takeBack(c, number, first);
  return result;
}

static tuttiResult_t meet(tuttiCommunicator *c, const WindowEntry *all) {
  TUTTI_FRESH(tuttiRmaCard, cards, c->nranks, "cards of ranks", NULL);
  for (int r = 0; r < c->nranks; r++)
    cards[r] = all[r].card;
  return tuttiRmaMeet(c->rma, cards);
}

/* What this rank knows of the others' parts. */
static tuttiResult_t openParts(tuttiCommunicator *c, Window *window, const WindowEntry *all,
                               bool first) {
  window->number = c->windowsMade;
  window->size = all[c->rank].size;
  TUTTI_NEW(window->base, c->nranks, "addresses of a window", &c->memory);
  TUTTI_NEW(window->keys, c->nranks, "keys of a window", &c->memory);
  for (int r = 0; r < c->nranks; r++) {
    window->base[r] = all[r].base;
    window->keys[r] = all[r].keys;
  }
  if (!c->rma) return tuttiSuccess;
  TUTTI_NEW(window->memory, c->nranks, "the memory of a window", &c->memory);
  TUTTI_NEW(window->mapped, c->nranks, "the memory of a window", &c->memory);
  for (int r = 0; r < c->nranks; r++)
    window->memory[r] = all[r].memory;
  return first ? meet(c, all) : tuttiSuccess;
}

static void freeWindow(const tuttiCommunicator *c, Window *window) {
  for (int r = 0; window->mapped && r < c->nranks; r++)
    tuttiShareableUnmap(window->mapped[r], &window->memory[r]);
  tuttiFree(window->mapped);
  tuttiFree(window->memory);
  tuttiFree(window->keys);
  tuttiFree(window->base);
  tuttiFree(window);
}

static tuttiResult_t makeWindow(tuttiCommunicator *c, const tuttiWindowJob *w) {
  bool first = c->rma == NULL;
  TUTTI_FRESH(WindowEntry, all, c->nranks, "a window's ranks", &c->memory);
  TUTTI_TRY(compare(c, w, all));
  Window *window;
  TUTTI_NEW(window, 1, "a window", &c->memory);
  window->buff = w->buff;
  tuttiResult_t result = openParts(c, window, all, first);
  if (result == tuttiSuccess)
    result = c->device->windowRegister(&c->view, &c->context, w->buff, w->size, &window->handle,
                                       &window->name);
  if (result != tuttiSuccess) {
    closeWindow(c, window->number);
    freeWindow(c, window);
    return result;
  }
  window->next = c->windows;
  c->windows = window;
  if (!window->name) window->name = (tuttiWindow_t)window;
  window->owner = c->handle;
  list(window);
  *w->out = window->name;
  tuttiStoreRelease32(&c->windowMet, 1);
  return tuttiSuccess;
}

tuttiResult_t tuttiWindowRun(tuttiJob *job) {
  TUTTI_ENTER_READY(c, job->uses, "tuttiCommWindowRegister");
  TUTTI_TRY(tuttiWorkerAwait(c));
  TUTTI_TRY(tuttiCommOccupy(c)); /* what it has of windows is another thread's, too */
  tuttiResult_t result = makeWindow(c, (tuttiWindowJob *)job);
  tuttiCommVacate(c);
  return result;
}

tuttiWindowParts tuttiWindowPartsOf(const Window *window) {
  return (tuttiWindowParts){
      .number = window->number, .size = window->size, .base = window->base, .keys = window->keys};
}

void *tuttiWindowFlat(const tuttiCommunicator *c, const Window *window, int rank,
                      char why[TUTTI_SENTENCE]) {
  return c->device->windowFlat(window->handle, rank, why);
}

void *tuttiWindowMapped(const tuttiCommunicator *c, Window *window, int peer,
                        char why[TUTTI_SENTENCE]) {
  if (!c->rma) return c->device->windowPart(window->handle, peer, why);
  const tuttiShareableCard *m = &window->memory[peer];
  if (m->fd.fd < 0 || !c->wireup.paths[peer].fetches) return NULL;
  if (m->offset > m->bytes || window->size > m->bytes - m->offset) return NULL;
  if (!window->mapped[peer]) window->mapped[peer] = tuttiShareableMap(c->wireup.peers[peer].pid, m);
  if (!window->mapped[peer]) window->memory[peer].fd.fd = -1; /* once is enough */
  return window->mapped[peer] ? (uint8_t *)window->mapped[peer] + m->offset : NULL;
}

Window *tuttiWindowFind(const tuttiCommunicator *c, tuttiWindow_t win) {
  Window *live = c->windows;
  while (live && live->name != win)
    live = live->next;
  return live;
}

void *tuttiWindowBuffer(const Window *window) {
  return window->buff;
}

void tuttiWindowRemove(tuttiCommunicator *c, Window *window) {
  TUTTI_UNLINK(c->windows, window);
  unlist(window);
  closeWindow(c, window->number);
  c->device->windowDeregister(window->handle);
  freeWindow(c, window);
}

void tuttiCommWindowsFree(tuttiCommunicator *c) {
  while (c->windows)
    tuttiWindowRemove(c, c->windows);
}

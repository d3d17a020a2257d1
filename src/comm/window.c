/* The public calls about windows. The ranks compare what they were given, then the device makes the
 * ranges known to each other. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

#include "comm/check.h"
#include "comm/comm.h"

#define FLAGS (TUTTI_WIN_COLL_SYMMETRIC | TUTTI_WIN_STRICT_ORDERING)

typedef struct tuttiWindow {
  struct tuttiWindow *next;
  void *buff;
  void *handle; /* the device's */
} Window;

typedef struct {
  tuttiJob job;
  void *buff;
  size_t size;
  int flags;
  tuttiWindow_t *out;
} WindowJob;

/* What the ranks compare. */
typedef struct {
  uint64_t size;
  int32_t flags, refused; /* the rank cannot take part: its tuttiResult_t */
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
  }
  return tuttiSuccess;
}

/* A rank that cannot take part says so, for the others would wait for it. */
static tuttiResult_t compare(tuttiCommunicator *c, const WindowJob *w) {
  char why[TUTTI_ERROR_TEXT];
  tuttiResult_t refused = tuttiCheckMemory(c, "buff", w->buff);
  snprintf(why, sizeof why, "%s", tuttiErrorText());
  TUTTI_FRESH(WindowEntry, all, c->nranks, "a window's ranks", &c->memory);
  all[c->rank] = (WindowEntry){w->size, w->flags, (int32_t)refused};
  TUTTI_TRY(tuttiCommExchange(c, all, sizeof *all));
  return refused ? tuttiErrorAdopt(refused, why) : checkEntries(c, all);
}

static tuttiResult_t runWindow(tuttiJob *job) {
  const WindowJob *w = (WindowJob *)job;
  TUTTI_ENTER_READY(c, job->uses, "tuttiCommWindowRegister");
  TUTTI_TRY(compare(c, w));
  TUTTI_FRESH(Window, window, 1, "a window", &c->memory);
  window->buff = w->buff;
  if (c->device->windowRegister)
    TUTTI_TRY(c->device->windowRegister(&c->wires, &c->host, w->buff, w->size, &window->handle));
  window->next = c->windows;
  *w->out = c->windows = window;
  window = NULL;
  return tuttiSuccess;
}

static tuttiResult_t check(tuttiComm_t comm, const WindowJob *w) {
  TUTTI_ENTER_READY(c, comm, "tuttiCommWindowRegister");
  TUTTI_TRY(tuttiCheckOutput("win", w->out));
  TUTTI_TRY(tuttiCheckRange(w->buff, w->size));
  if ((w->flags & ~FLAGS) == 0) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "argument winFlags is %#x; it must be a sum of TUTTI_WIN_*", w->flags);
}

tuttiResult_t tuttiCommWindowRegister(tuttiComm_t comm, void *buff, size_t size, tuttiWindow_t *win,
                                      int winFlags) {
  WindowJob w = {{.run = runWindow, .uses = comm}, buff, size, winFlags, win};
  return tuttiJobLaunch(check(comm, &w), &w.job, sizeof w);
}

static tuttiResult_t checkLive(const tuttiCommunicator *c, tuttiWindow_t win) {
  for (const Window *live = c->windows; live; live = live->next)
    if (live == win) return tuttiSuccess;
  return TUTTI_FAIL(
      tuttiInvalidArgument,
      "argument win (%p) is no live window of tuttiCommWindowRegister of this communicator",
      (void *)win);
}

static void removeWindow(tuttiCommunicator *c, Window *window) {
  TUTTI_UNLINK(c->windows, window);
  if (c->device->windowDeregister) c->device->windowDeregister(window->handle);
  tuttiFree(window);
}

void tuttiCommWindowsFree(tuttiCommunicator *c) {
  while (c->windows)
    removeWindow(c, c->windows);
}

tuttiResult_t tuttiCommWindowDeregister(tuttiComm_t comm, tuttiWindow_t win) {
  TUTTI_ENTER(c, comm, __func__);
  if (!win) return tuttiSuccess;
  TUTTI_TRY(checkLive(c, win));
  removeWindow(c, win);
  return tuttiSuccess;
}

tuttiResult_t tuttiWinGetUserPtr(tuttiComm_t comm, tuttiWindow_t win, void **outUserPtr) {
  TUTTI_ENTER(c, comm, __func__);
  TUTTI_TRY(checkLive(c, win));
  TUTTI_TRY(tuttiCheckOutput("outUserPtr", outUserPtr));
  *outUserPtr = win->buff;
  return tuttiSuccess;
}

/* Windows: the ranks compare what they were given, then the device makes the ranges known to each
 * other. */
#include "comm/window.h"

#include <inttypes.h>
#include <stdio.h>

#include "comm/check.h"
#include "comm/communicator.h"
#include "comm/handle.h"
#include "comm/job.h"
#include "comm/operation.h"

typedef struct tuttiWindow {
  struct tuttiWindow *next;
  void *buff;
  void *handle; /* the device's */
} Window;

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
static tuttiResult_t compare(tuttiCommunicator *c, const tuttiWindowJob *w) {
  char why[TUTTI_ERROR_TEXT];
  tuttiResult_t refused = tuttiCheckMemory(c, "buff", w->buff);
  snprintf(why, sizeof why, "%s", tuttiErrorText());
  TUTTI_FRESH(WindowEntry, all, c->nranks, "a window's ranks", &c->memory);
  all[c->rank] = (WindowEntry){.size = w->size, .flags = w->flags, .refused = (int32_t)refused};
  TUTTI_TRY(tuttiCommExchange(c, all, sizeof *all));
  return refused ? tuttiErrorAdopt(refused, why) : checkEntries(c, all);
}

tuttiResult_t tuttiWindowRun(tuttiJob *job) {
  const tuttiWindowJob *w = (tuttiWindowJob *)job;
  TUTTI_ENTER_READY(c, job->uses, "tuttiCommWindowRegister");
  TUTTI_TRY(compare(c, w));
  TUTTI_FRESH(Window, window, 1, "a window", &c->memory);
  window->buff = w->buff;
  TUTTI_TRY(c->device->windowRegister(&c->view, &c->context, w->buff, w->size, &window->handle));
  window->next = c->windows;
  *w->out = c->windows = window;
  window = NULL;
  return tuttiSuccess;
}

bool tuttiWindowLives(const tuttiCommunicator *c, tuttiWindow_t win) {
  for (const Window *live = c->windows; live; live = live->next)
    if (live == win) return true;
  return false;
}

void *tuttiWindowBuffer(tuttiWindow_t win) {
  return win->buff;
}

void tuttiWindowRemove(tuttiCommunicator *c, Window *window) {
  TUTTI_UNLINK(c->windows, window);
  c->device->windowDeregister(window->handle);
  tuttiFree(window);
}

void tuttiCommWindowsFree(tuttiCommunicator *c) {
  while (c->windows)
    tuttiWindowRemove(c, c->windows);
}

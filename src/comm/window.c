/* The public calls about windows. The ranks compare what they were given, then the device makes the
 * ranges known to each other. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

#include "comm/comm.h"

#define FLAGS (TUTTI_WIN_COLL_SYMMETRIC | TUTTI_WIN_STRICT_ORDERING)

typedef struct tuttiWindow {
  struct tuttiWindow *next;
  void *buff;
  void *handle; /* the device's */
} Window;

typedef struct {
  tuttiJob job;
  tuttiComm_t comm;
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

static tuttiResult_t compare(tuttiCommunicator *c, const WindowJob *w, tuttiResult_t refused) {
  WindowEntry *all;
  TUTTI_TRY(
      tuttiAlloc((void **)&all, (size_t)c->nranks, sizeof *all, "a window's ranks", &c->memory));
  all[c->rank] = (WindowEntry){w->size, w->flags, (int32_t)refused};
  tuttiResult_t result = tuttiCommExchange(c, all, sizeof *all);
  if (result == tuttiSuccess && !refused) result = checkEntries(c, all);
  tuttiFree(all);
  return result;
}

static tuttiResult_t refuse(const tuttiCommunicator *c, const void *buff) {
  const char *why = c->device->refuse ? c->device->refuse(buff) : NULL;
  if (why) return TUTTI_FAIL(tuttiInvalidArgument, "argument buff (%p) %s", buff, why);
  return tuttiSuccess;
}

static tuttiResult_t addWindow(tuttiCommunicator *c, const WindowJob *w) {
  Window *window;
  char why[TUTTI_ERROR_TEXT];
  TUTTI_TRY(tuttiCommReady(c));
  /* A rank that cannot take part says so, for the others would wait for it. */
  tuttiResult_t refused = refuse(c, w->buff);
  snprintf(why, sizeof why, "%s", tuttiErrorText());
  TUTTI_TRY(compare(c, w, refused));
  if (refused) return tuttiErrorAdopt(refused, why);
  TUTTI_TRY(tuttiAlloc((void **)&window, 1, sizeof *window, "a window", &c->memory));
  window->buff = w->buff;
  tuttiResult_t result = tuttiSuccess;
  if (c->device->windowRegister)
    result = c->device->windowRegister(&c->wires, &c->host, w->buff, w->size, &window->handle);
  if (result != tuttiSuccess) {
    tuttiFree(window);
    return result;
  }
  window->next = c->windows;
  c->windows = window;
  *w->out = window;
  return tuttiSuccess;
}

static tuttiResult_t runWindow(tuttiJob *job) {
  const WindowJob *w = (WindowJob *)job;
  tuttiCommunicator *c;
  TUTTI_TRY(tuttiHandleEnter(w->comm, "tuttiCommWindowRegister", &c));
  tuttiResult_t result = addWindow(c, w);
  tuttiHandleLeave(c);
  return result;
}

static tuttiResult_t check(const tuttiCommunicator *c, const void *buff, size_t size,
                           const tuttiWindow_t *win, int winFlags) {
  TUTTI_TRY(tuttiCommReady(c));
  if (!win) return TUTTI_FAIL(tuttiInvalidArgument, "argument win is NULL");
  if (!buff || size == 0 || (uintptr_t)buff > UINTPTR_MAX - size)
    return TUTTI_FAIL(tuttiInvalidArgument, "arguments buff (%p) and size (%zu) describe no memory",
                      buff, size);
  if (winFlags & ~FLAGS)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument winFlags is %#x; it must be a sum of TUTTI_WIN_*", winFlags);
  return tuttiSuccess;
}

tuttiResult_t tuttiCommWindowRegister(tuttiComm_t comm, void *buff, size_t size, tuttiWindow_t *win,
                                      int winFlags) {
  tuttiCommunicator *c;
  WindowJob w = {.job = {.run = runWindow, .uses = comm},
                 .comm = comm,
                 .buff = buff,
                 .size = size,
                 .flags = winFlags,
                 .out = win};
  tuttiResult_t result = tuttiHandleEnter(comm, __func__, &c);
  if (result == tuttiSuccess) {
    result = check(c, buff, size, win, winFlags);
    tuttiHandleLeave(c);
  }
  return tuttiJobLaunch(result, &w.job, sizeof w);
}

/* The place of a live window in the list; NULL, with an error, if it is none. */
static Window **find(tuttiCommunicator *c, tuttiWindow_t win) {
  for (Window **at = &c->windows; *at; at = &(*at)->next)
    if (*at == win) return at;
  TUTTI_FAIL(tuttiInvalidArgument,
             "argument win (%p) is no live window of tuttiCommWindowRegister of this communicator",
             (void *)win);
  return NULL;
}

static void removeWindow(tuttiCommunicator *c, Window **at) {
  Window *window = *at;
  *at = window->next;
  if (c->device->windowDeregister) c->device->windowDeregister(window->handle);
  tuttiFree(window);
}

void tuttiCommWindowsFree(tuttiCommunicator *c) {
  while (c->windows)
    removeWindow(c, &c->windows);
}

tuttiResult_t tuttiCommWindowDeregister(tuttiComm_t comm, tuttiWindow_t win) {
  tuttiCommunicator *c;
  TUTTI_TRY(tuttiHandleEnter(comm, __func__, &c));
  tuttiResult_t result = tuttiSuccess;
  if (win) {
    Window **at = find(c, win);
    if (at)
      removeWindow(c, at);
    else
      result = tuttiInvalidArgument;
  }
  tuttiHandleLeave(c);
  return result;
}

tuttiResult_t tuttiWinGetUserPtr(tuttiComm_t comm, tuttiWindow_t win, void **outUserPtr) {
  tuttiCommunicator *c;
  TUTTI_TRY(tuttiHandleEnter(comm, __func__, &c));
  Window **at = find(c, win);
  tuttiResult_t result = at ? tuttiSuccess : tuttiInvalidArgument;
  if (at && !outUserPtr) result = TUTTI_FAIL(tuttiInvalidArgument, "argument outUserPtr is NULL");
  if (result == tuttiSuccess) *outUserPtr = (*at)->buff;
  tuttiHandleLeave(c);
  return result;
}

/* The public calls about windows. */
#include "comm/window.h"
#include "comm/check.h"
#include "comm/communicator.h"
#include "comm/group.h"
#include "comm/handle.h"

#define FLAGS (TUTTI_WIN_COLL_SYMMETRIC | TUTTI_WIN_STRICT_ORDERING)

static tuttiResult_t check(tuttiComm_t comm, const tuttiWindowJob *w) {
  TUTTI_ENTER_READY(c, comm, "tuttiCommWindowRegister");
  TUTTI_TRY(tuttiCheckOutput("win", w->out));
  TUTTI_TRY(tuttiCheckRange(w->buff, w->size));
  if ((w->flags & ~FLAGS) == 0) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "argument winFlags is %#x; it must be a sum of TUTTI_WIN_*", w->flags);
}

tuttiResult_t tuttiCommWindowRegister(tuttiComm_t comm, void *buff, size_t size, tuttiWindow_t *win,
                                      int winFlags) {
  tuttiWindowJob w = {.job = {.run = tuttiWindowRun, .uses = comm},
                      .buff = buff,
                      .size = size,
                      .flags = winFlags,
                      .out = win};
  return tuttiJobLaunch(check(comm, &w), &w.job, sizeof w);
}

static tuttiResult_t find(const tuttiCommunicator *c, tuttiWindow_t win, tuttiWindowState **out) {
  *out = tuttiWindowFind(c, win);
  if (*out) return tuttiSuccess;
  return TUTTI_FAIL(
      tuttiInvalidArgument,
      "argument win (%p) is no live window of tuttiCommWindowRegister of this communicator",
      (void *)win);
}

static tuttiResult_t removeWindow(tuttiCommunicator *c, tuttiWindow_t win) {
  tuttiWindowState *window;
  TUTTI_TRY(find(c, win, &window));
  tuttiWindowRemove(c, window);
  return tuttiSuccess;
}

/* Another thread may be making a window of it, or taking one away: also where one is looked up. */
tuttiResult_t tuttiCommWindowDeregister(tuttiComm_t comm, tuttiWindow_t win) {
  TUTTI_ENTER(c, comm, __func__);
  if (!win) return tuttiSuccess;
  TUTTI_TRY(tuttiCommOccupy(c));
  tuttiResult_t result = removeWindow(c, win);
  tuttiCommVacate(c);
  return result;
}

static tuttiResult_t tellBuffer(const tuttiCommunicator *c, tuttiWindow_t win, void **out) {
  tuttiWindowState *window;
  TUTTI_TRY(find(c, win, &window));
  TUTTI_TRY(tuttiCheckOutput("outUserPtr", out));
  *out = tuttiWindowBuffer(window);
  return tuttiSuccess;
}

tuttiResult_t tuttiWinGetUserPtr(tuttiComm_t comm, tuttiWindow_t win, void **outUserPtr) {
  TUTTI_ENTER(c, comm, __func__);
  TUTTI_TRY(tuttiCommOccupy(c));
  tuttiResult_t result = tellBuffer(c, win, outUserPtr);
  tuttiCommVacate(c);
  return result;
}

/* The public calls about kernels of the user that communicate by themselves. */
#include "comm/devcomm.h"
#include "comm/check.h"
#include "comm/communicator.h"
#include "comm/group.h"
#include "comm/handle.h"
#include "comm/window.h"

#define MOST_BYTES ((size_t)1 << 38) /* more than any GPU has */

static tuttiResult_t check(tuttiComm_t comm, const tuttiDevCommJob *d) {
  TUTTI_ENTER_READY(c, comm, "tuttiDevCommCreate");
  TUTTI_TRY(tuttiCheckOutput("devComm", d->out));
  if (d->bytes > MOST_BYTES)
    return TUTTI_FAIL(tuttiInvalidArgument, "argument bytes is %zu; no GPU has more than %zu",
                      d->bytes, MOST_BYTES);
  return tuttiDevCommServed(c);
}

tuttiResult_t tuttiDevCommCreate(tuttiComm_t comm, size_t bytes, uint64_t tag,
                                 tuttiDevComm_t *devComm) {
  tuttiDevCommJob d = {
      .job = {.run = tuttiDevCommRun, .uses = comm}, .bytes = bytes, .tag = tag, .out = devComm};
  return tuttiJobLaunch(check(comm, &d), &d.job, sizeof d);
}

tuttiResult_t tuttiDevCommDestroy(tuttiComm_t comm, tuttiWindow_t window) {
  TUTTI_ENTER(c, comm, __func__);
  return tuttiDevCommRemove(c, window);
}

static tuttiResult_t ownerOf(tuttiWindow_t win, tuttiComm_t *out) {
  *out = tuttiWindowOwner(win);
  if (*out) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "argument win (%p) is no live window of tuttiCommWindowRegister", (void *)win);
}

tuttiResult_t tuttiWinGetComm(tuttiWindow_t win, tuttiComm_t *comm) {
  TUTTI_TRY(tuttiCallEnter(__func__));
  TUTTI_TRY(tuttiCheckOutput("comm", comm));
  return ownerOf(win, comm);
}

static tuttiResult_t tellPart(const tuttiCommunicator *c, tuttiWindow_t win, size_t offset,
                              int peer, void **out) {
  char why[TUTTI_SENTENCE];
  const tuttiWindowState *window = tuttiWindowFind(c, win);
  TUTTI_TRY(tuttiCheckOutput("outPtr", out));
  if (!window)
    return TUTTI_FAIL(tuttiInvalidArgument, "argument win (%p) has just been deregistered",
                      (void *)win);
  if (peer < 0 || peer >= c->nranks)
    return TUTTI_FAIL(tuttiInvalidArgument, "argument peer is %d; it must be 0 to %d", peer,
                      c->nranks - 1);
  size_t size = tuttiWindowPartsOf(window).size;
  if (offset > size)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument offset is %zu, past the end of the window of %zu bytes", offset,
                      size);
  bool near = c->rank / c->view.lsaSize == peer / c->view.lsaSize;
  uint8_t *at = tuttiWindowFlat(c, window, near ? peer : c->rank, why);
  if (!at)
    return TUTTI_FAIL(tuttiInvalidUsage, "window #%u is none for kernels: %s",
                      tuttiWindowPartsOf(window).number, why);
  *out = near ? at + offset : NULL;
  return tuttiSuccess;
}

tuttiResult_t tuttiWinGetPeerPtr(tuttiWindow_t win, size_t offset, int peer, void **outPtr) {
  tuttiComm_t comm;
  TUTTI_TRY(tuttiCallEnter(__func__));
  TUTTI_TRY(ownerOf(win, &comm));
  TUTTI_ENTER_READY(c, comm, __func__);
  TUTTI_TRY(tuttiCommOccupy(c)); /* as tuttiCommWindowDeregister */
  tuttiResult_t result = tellPart(c, win, offset, peer, outPtr);
  tuttiCommVacate(c);
  return result;
}

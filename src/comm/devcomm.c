#include "comm/devcomm.h"

#include <inttypes.h>

#include "comm/handle.h"
#include "comm/operation.h"

typedef struct tuttiDevCommMade {
  struct tuttiDevCommMade *next;
  tuttiWindow_t window;
  void *handle; /* the device's */
} DevComm;

/* What the ranks compare. */
typedef struct {
  uint64_t bytes, tag;
} Wish;

tuttiResult_t tuttiDevCommServed(const tuttiCommunicator *c) {
  char why[TUTTI_SENTENCE];
  if (c->device->servesKernels(&c->view, why)) return tuttiSuccess;
  return TUTTI_FAIL(
      tuttiInvalidUsage,
      "kernels of rank %d cannot communicate by themselves: %s. The calls of the host "
      "can, on a stream",
      c->rank, why);
}

static tuttiResult_t compare(tuttiCommunicator *c, const tuttiDevCommJob *d) {
  TUTTI_FRESH(Wish, all, c->nranks, "the wishes of ranks", NULL);
  Wish *mine = &all[c->rank];
  *mine = (Wish){.bytes = d->bytes, .tag = d->tag};
  TUTTI_TRY(tuttiCommExchange(c, all, sizeof *all));
  for (int r = 0; r < c->nranks; r++)
    if (all[r].bytes != mine->bytes || all[r].tag != mine->tag)
      return TUTTI_FAIL(tuttiInvalidUsage,
                        "ranks disagree on memory for kernels: rank %d called with %" PRIu64
                        " bytes and tag %#" PRIx64 ", rank %d with %" PRIu64
                        " bytes and tag %#" PRIx64 "; call it on all ranks with the same "
                        "requirements",
                        c->rank, mine->bytes, mine->tag, r, all[r].bytes, all[r].tag);
  return tuttiSuccess;
}

tuttiResult_t tuttiDevCommRun(tuttiJob *job) {
  const tuttiDevCommJob *d = (tuttiDevCommJob *)job;
  TUTTI_ENTER_READY(c, job->uses, "tuttiDevCommCreate");
  tuttiDevComm_t told = {0};
  TUTTI_FRESH(DevComm, made, 1, "memory for kernels", &c->memory);
  TUTTI_TRY(compare(c, d));
  TUTTI_TRY(c->device->devCommCreate(&c->view, &c->context, d->bytes, &told, &made->handle));
  made->window = told.window;
  made->next = c->devComms;
  c->devComms = made;
  made = NULL;
  *d->out = told;
  return tuttiSuccess;
}

tuttiResult_t tuttiDevCommRemove(tuttiCommunicator *c, tuttiWindow_t window) {
  for (DevComm *at = c->devComms; at; at = at->next) {
    if (at->window != window) continue;
    TUTTI_UNLINK(c->devComms, at);
    c->device->devCommDestroy(at->handle);
    tuttiFree(at);
    return tuttiSuccess;
  }
  return TUTTI_FAIL(
      tuttiInvalidArgument,
      "argument window (%p) is not that of a live tuttiDevComm_t of this communicator",
      (void *)window);
}

void tuttiDevCommsForget(tuttiCommunicator *c) {
  while (c->devComms) {
    DevComm *at = c->devComms;
    c->devComms = at->next;
    tuttiFree(at);
  }
}

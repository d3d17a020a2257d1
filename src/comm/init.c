/* The init of a communicator as a job, or on its worker. */
#include "comm/init.h"

#include <string.h>

#include "comm/communicator.h"
#include "comm/failure.h"
#include "comm/group.h"
#include "comm/job.h"
#include "comm/options.h"
#include "comm/setup.h"
#include "comm/worker.h"

typedef struct {
  tuttiJob job;
  const char *call;
  tuttiCommunicator *comm;
  int nids;
  tuttiUniqueId ids[];
} InitJob;

/* Of the communicator that init->comm no longer is then. */
static tuttiResult_t setUp(InitJob *init) {
  tuttiCommunicator *c = init->comm;
  init->comm = NULL;
  tuttiErrorScope(init->call, c->options.name, c->rank, c->nranks);
  tuttiResult_t result = tuttiCommSetup(c, init->ids, init->nids);
  return result == tuttiSuccess ? tuttiSuccess : tuttiCommFail(c, result);
}

static tuttiResult_t runInit(tuttiJob *job) {
  InitJob *init = (InitJob *)job;
  tuttiCommunicator *c = init->comm;
  tuttiResult_t result = setUp(init);
  if (result != tuttiSuccess) tuttiCommFree(c, false);
  return result;
}

static void discardInit(tuttiJob *job) {
  InitJob *init = (InitJob *)job;
  if (init->comm) tuttiCommFree(init->comm, false);
  tuttiFree(init);
}

/* Goes on behind the caller's back, on the communicator's worker; destroy and abort wait for its
 * end. */
static void initLater(void *init) {
  setUp(init);
  tuttiFree(init);
}

/* What a group that starts such an init ends with, and the call itself outside of one. */
static tuttiResult_t isInProgress(tuttiJob *job) {
  (void)job;
  return tuttiInProgress;
}

tuttiResult_t tuttiCommInit(const char *call, tuttiComm_t *comm, int nranks, int rank, int nids,
                            const tuttiUniqueId *ids, const tuttiOptions *options) {
  InitJob *init;
  TUTTI_TRY(tuttiAlloc((void **)&init, 1, sizeof *init + (size_t)nids * sizeof *ids, "init", NULL));
  *init = (InitJob){.job = {.run = runInit, .discard = discardInit}, .call = call, .nids = nids};
  memcpy(init->ids, ids, (size_t)nids * sizeof *ids);
  tuttiResult_t result = tuttiCommNew(rank, nranks, options, &init->comm);
  tuttiCommunicator *c = init->comm;
  tuttiJob background = {.run = isInProgress};
  if (result == tuttiSuccess && !options->blocking) result = tuttiWorkerStart(c, initLater, init);
  if (result != tuttiSuccess) {
    discardInit(&init->job);
    return result;
  }
  *comm = c->handle; /* now: at the end of a group `comm` may point to nothing */
  if (!options->blocking) return tuttiJobLaunch(tuttiSuccess, &background, sizeof background);
  result = tuttiJobSubmit(&init->job);
  if (result != tuttiSuccess) *comm = NULL;
  return result;
}

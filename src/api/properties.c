#include <stddef.h>
#include <string.h>

#include "comm/check.h"
#include "comm/communicator.h"
#include "comm/handle.h"
#include "comm/onesided.h"

#define LEAST offsetof(tuttiCommProperties_t, deviceApiSupport) /* bytes, of the first version */

static tuttiResult_t checkStart(const tuttiCommProperties_t *p) {
  TUTTI_TRY(tuttiCheckOutput("properties", p));
  if (p->magic == TUTTI_COMM_PROPERTIES_MAGIC && p->size >= LEAST) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "argument properties is not initialized (size %zu); start it from "
                    "TUTTI_COMM_PROPERTIES_INITIALIZER",
                    p->size);
}

tuttiResult_t tuttiCommQueryProperties(tuttiComm_t comm, tuttiCommProperties_t *properties) {
  TUTTI_ENTER_READY(c, comm, __func__);
  TUTTI_TRY(checkStart(properties));
  char why[TUTTI_SENTENCE];
  tuttiCommProperties_t p = {.size = properties->size,
                             .magic = properties->magic,
                             .version = properties->version,
                             .rank = c->rank,
                             .nRanks = c->nranks,
                             .cudaDev = c->wireup.peers[c->rank].cudaDevice,
                             .hostRmaSupport = tuttiOneSidedServes(c),
                             .numRmaCtx = c->options.rmaContexts,
                             .numRmaSig = c->options.rmaSignals,
                             .commHash = c->bootstrap->hash,
                             .deviceApiSupport = c->device->servesKernels(&c->view, why),
                             .nLsaTeams = c->nranks / c->view.lsaSize,
                             .cores = c->wireup.peers[c->rank].cores,
                             .ranksOnCores = c->ranksOnCores};
  memcpy(properties, &p, p.size < sizeof p ? p.size : sizeof p);
  return tuttiSuccess;
}

/* The init of a communicator. */
#ifndef TUTTI_COMM_INIT_H_
#define TUTTI_COMM_INIT_H_

#include "comm/deaths.h"
#include "comm/options.h"

/* Makes a communicator and sets *comm. Its init runs as a job (blocking) or in the background, then
 * with tuttiInProgress. `call`, a literal, names the public call in errors. `origin`, which is
 * copied, may be NULL. */
tuttiResult_t tuttiCommInit(const char *call, tuttiComm_t *comm, int nranks, int rank, int nids,
                            const tuttiUniqueId *ids, const tuttiOptions *options,
                            const tuttiOrigin *origin);

#endif

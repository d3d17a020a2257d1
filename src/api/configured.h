/* What the collectives share, with options of their own or without. For the files of src/api. */
#ifndef TUTTI_API_CONFIGURED_H_
#define TUTTI_API_CONFIGURED_H_

#include "comm/communicator.h"
#include "comm/operation.h"

/* The operation of such a call on its buffers; where it has a reduction, root or peer the call adds
 * them. */
static inline tuttiOp tuttiCollectiveOp(tuttiColl coll, const void *sendbuff, void *recvbuff,
                                        size_t count, tuttiDataType_t type, tuttiStream_t stream) {
  return (tuttiOp){.coll = coll,
                   .sendbuff = sendbuff,
                   .recvbuff = recvbuff,
                   .count = count,
                   .type = type,
                   .redop = tuttiSum,
                   .root = -1,
                   .stream = stream};
}

/* What all collectives and messages end in; `name` is the public call, `config` may be NULL. A call
 * that is refused lets its group fail. */
tuttiResult_t tuttiCollectiveSubmit(const char *name, tuttiComm_t comm, tuttiOp *op,
                                    const tuttiCollConfig_t *config);

/* Checks the options of a collective, and sets *wishes. */
tuttiResult_t tuttiCollConfigRead(const tuttiCommunicator *c, tuttiColl coll,
                                  const tuttiCollConfig_t *config, tuttiOpWishes *wishes);

#endif

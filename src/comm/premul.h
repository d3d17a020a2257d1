/* Reductions with a factor that a user has made of a communicator (PreMulSum). For the thread that
 * uses it. */
#ifndef TUTTI_COMM_PREMUL_H_
#define TUTTI_COMM_PREMUL_H_

#include "comm/communicator.h"

/* Copies *m; sets *op to its handle. */
tuttiResult_t tuttiPreMulAdd(tuttiCommunicator *c, const tuttiPreMul *m, tuttiRedOp_t *op);

/* That of a live handle, until the next one is added; NULL if `op` is none. Its handle is free
 * again once `used` is false. */
tuttiPreMul *tuttiPreMulOf(const tuttiCommunicator *c, tuttiRedOp_t op);

#endif

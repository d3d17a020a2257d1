/* Reductions with a factor that a user has made of a communicator (PreMulSum). Thread-safe: one
 * thread may make a handle while another's call, or a worker's, uses an older one. */
#ifndef TUTTI_COMM_PREMUL_H_
#define TUTTI_COMM_PREMUL_H_

#include "comm/communicator.h"

/* Copies *m; sets *op to its handle. */
tuttiResult_t tuttiPreMulAdd(tuttiCommunicator *c, const tuttiPreMul *m, tuttiRedOp_t *op);

/* Copies that of a live handle; false if `op` is none. */
bool tuttiPreMulFind(const tuttiCommunicator *c, tuttiRedOp_t op, tuttiPreMul *m);

/* The handle is free for another one; false if `op` is no live one. */
bool tuttiPreMulRemove(tuttiCommunicator *c, tuttiRedOp_t op);

#endif

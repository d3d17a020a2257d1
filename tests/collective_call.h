/* Calls a collective by its number, as the oracle names it. */
#ifndef TUTTI_TESTS_COLLECTIVE_CALL_H_
#define TUTTI_TESTS_COLLECTIVE_CALL_H_

#include "oracle.h"
#include "tutti.h"

/* `in` and `out` may be NULL where the oracle says that the rank has no such buffer. */
inline tuttiResult_t callCollective(const oracle::Call &k, const void *in, void *out,
                                    tuttiDataType_t type, tuttiRedOp_t op, tuttiComm_t comm,
                                    tuttiStream_t stream) {
  switch (k.coll) {
  case tuttiCollAllReduce:
    return tuttiAllReduce(in, out, k.count, type, op, comm, stream);
  case tuttiCollBroadcast:
    return tuttiBroadcast(in, out, k.count, type, k.root, comm, stream);
  case tuttiCollReduce:
    return tuttiReduce(in, out, k.count, type, op, k.root, comm, stream);
  case tuttiCollAllGather:
    return tuttiAllGather(in, out, k.count, type, comm, stream);
  case tuttiCollReduceScatter:
    return tuttiReduceScatter(in, out, k.count, type, op, comm, stream);
  case tuttiCollAlltoAll:
    return tuttiAlltoAll(in, out, k.count, type, comm, stream);
  case tuttiCollGather:
    return tuttiGather(in, out, k.count, type, k.root, comm, stream);
  default:
    return tuttiScatter(in, out, k.count, type, k.root, comm, stream);
  }
}

#endif

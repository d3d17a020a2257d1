/* The public collectives: argument checks, then one operation each. */
#include <inttypes.h>
#include <stdint.h>

#include "comm/comm.h"

/* The parts of a call that are checked alike. Blocks: how many times `count` a buffer holds; 0
 * where this rank does not use it. */
typedef struct {
  const char *name;
  tuttiColl coll;
  const void *sendbuff;
  void *recvbuff;
  size_t count;
  tuttiDataType_t type;
  tuttiRedOp_t redop;
  int root;
  tuttiStream_t stream;
} Call;

static tuttiResult_t checkType(tuttiDataType_t type) {
  if ((int)type < 0 || type >= tuttiNumTypes)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument datatype is %d; it must be one of tuttiDataType_t, 0 to %d",
                      (int)type, tuttiNumTypes - 1);
  return tuttiSuccess;
}

static tuttiResult_t checkRank(const tuttiCommunicator *c, const char *argument, int rank) {
  if (rank < 0 || rank >= c->nranks)
    return TUTTI_FAIL(tuttiInvalidArgument, "argument %s is %d; it must be a rank, 0 to %d",
                      argument, rank, c->nranks - 1);
  return tuttiSuccess;
}

static tuttiResult_t checkRedOp(const tuttiCommunicator *c, tuttiRedOp_t op, tuttiDataType_t type) {
  if ((int)op >= 0 && op < tuttiNumOps) return tuttiSuccess;
  int i = (int)op < 0 ? -1 : (int)op - tuttiNumOps;
  if (i < 0 || i >= c->npremul || !c->premul[i].used)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument op is %d; it must be tuttiSum to tuttiAvg or a live handle of "
                      "tuttiRedOpCreatePreMulSum of this communicator",
                      (int)op);
  if (c->premul[i].type != type)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument op is a PreMulSum made for %s, but datatype is %s; make one for %s",
                      tuttiTypeName(c->premul[i].type), tuttiTypeName(type), tuttiTypeName(type));
  return tuttiSuccess;
}

static tuttiResult_t checkBuffer(const char *argument, const void *buffer, size_t count,
                                 size_t blocks, tuttiDataType_t type, size_t *bytes) {
  size_t size = tuttiTypeSize(type), total;
  *bytes = 0;
  if (blocks == 0 || count == 0) return tuttiSuccess;
  if (__builtin_mul_overflow(count, blocks, &total) ||
      __builtin_mul_overflow(total, size, &total) || total > PTRDIFF_MAX)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument count is %zu: %zu x %zu elements of %zu bytes are more than the "
                      "address space holds (a negative count?)",
                      count, blocks, count, size);
  if (buffer == NULL)
    return TUTTI_FAIL(tuttiInvalidArgument, "argument %s is NULL, but count is %zu", argument,
                      count);
  if ((uintptr_t)buffer & (size - 1))
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument %s (%p) is misaligned: %s needs a multiple of %zu bytes", argument,
                      buffer, tuttiTypeName(type), size);
  if ((uintptr_t)buffer > UINTPTR_MAX - total)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument %s (%p) with count %zu reaches past the end of memory", argument,
                      buffer, count);
  *bytes = total;
  return tuttiSuccess;
}

/* How many blocks of `count` this rank's buffers hold, and where in place begins: sendbuff +
 * *sendAt == recvbuff + *recvAt. In place is not defined where *canAlias is false. */
static void layout(const tuttiCommunicator *c, const Call *call, size_t *sendBlocks,
                   size_t *recvBlocks, size_t *sendAt, size_t *recvAt, bool *canAlias) {
  size_t n = (size_t)c->nranks, rank = (size_t)c->rank;
  bool isRoot = call->root == c->rank;
  *sendBlocks = *recvBlocks = 1;
  *sendAt = *recvAt = 0;
  *canAlias = true;
  switch (call->coll) {
  case tuttiCollBroadcast:
    *sendBlocks = isRoot;
    break;
  case tuttiCollReduce:
    *recvBlocks = isRoot;
    break;
  case tuttiCollAllGather:
    *recvBlocks = n, *recvAt = rank;
    break;
  case tuttiCollReduceScatter:
    *sendBlocks = n, *sendAt = rank;
    break;
  case tuttiCollAlltoAll:
    *sendBlocks = *recvBlocks = n, *canAlias = false;
    break;
  case tuttiCollGather:
    *recvBlocks = isRoot ? n : 0, *recvAt = rank;
    break;
  case tuttiCollScatter:
    *sendBlocks = isRoot ? n : 0, *sendAt = rank;
    break;
  default:
    break;
  }
}

/* What this communicator's device cannot work on. */
static tuttiResult_t checkMemory(const tuttiCommunicator *c, const char *argument,
                                 const void *buffer, size_t bytes) {
  const char *why = c->device->refuse && bytes > 0 ? c->device->refuse(buffer) : NULL;
  if (why) return TUTTI_FAIL(tuttiInvalidArgument, "argument %s (%p) %s", argument, buffer, why);
  return tuttiSuccess;
}

static tuttiResult_t checkBuffers(const tuttiCommunicator *c, const Call *call, bool *inPlace) {
  size_t sendBlocks, recvBlocks, sendAt, recvAt, sendBytes, recvBytes;
  bool canAlias;
  layout(c, call, &sendBlocks, &recvBlocks, &sendAt, &recvAt, &canAlias);
  TUTTI_TRY(
      checkBuffer("sendbuff", call->sendbuff, call->count, sendBlocks, call->type, &sendBytes));
  TUTTI_TRY(
      checkBuffer("recvbuff", call->recvbuff, call->count, recvBlocks, call->type, &recvBytes));
  TUTTI_TRY(checkMemory(c, "sendbuff", call->sendbuff, sendBytes));
  TUTTI_TRY(checkMemory(c, "recvbuff", call->recvbuff, recvBytes));
  *inPlace = false;
  if (sendBytes == 0 || recvBytes == 0) return tuttiSuccess;
  size_t block = call->count * tuttiTypeSize(call->type);
  uintptr_t s = (uintptr_t)call->sendbuff, r = (uintptr_t)call->recvbuff;
  if (canAlias && s + sendAt * block == r + recvAt * block) {
    *inPlace = true;
    return tuttiSuccess;
  }
  if (s < r + recvBytes && r < s + sendBytes)
    return TUTTI_FAIL(
        tuttiInvalidArgument,
        "arguments sendbuff (%p, %zu bytes) and recvbuff (%p, %zu bytes) overlap; use "
        "separate buffers%s",
        call->sendbuff, sendBytes, call->recvbuff, recvBytes,
        canAlias ? ", or coincide exactly as tutti.h says for in place" : "");
  return tuttiSuccess;
}

static bool usesRoot(tuttiColl coll) {
  return coll == tuttiCollBroadcast || coll == tuttiCollReduce || coll == tuttiCollGather ||
         coll == tuttiCollScatter;
}

static tuttiResult_t check(const tuttiCommunicator *c, const Call *call, bool *inPlace) {
  TUTTI_TRY(tuttiCommReady(c));
  TUTTI_TRY(checkType(call->type));
  if (usesRoot(call->coll)) TUTTI_TRY(checkRank(c, "root", call->root));
  if (tuttiCollReduces(call->coll)) TUTTI_TRY(checkRedOp(c, call->redop, call->type));
  return checkBuffers(c, call, inPlace);
}

static tuttiResult_t submit(const Call *call, tuttiComm_t comm) {
  tuttiCommunicator *c;
  bool inPlace;
  tuttiResult_t result = tuttiHandleEnter(comm, call->name, &c);
  if (result != tuttiSuccess) {
    tuttiGroupFail(result);
    return result;
  }
  TUTTI_TRY_GOTO(check(c, call, &inPlace), result, refused);
  tuttiOp op = {.comm = c,
                .handle = comm,
                .coll = call->coll,
                .recorded = call->coll,
                .sendbuff = call->sendbuff,
                .recvbuff = call->recvbuff,
                .count = call->count,
                .type = call->type,
                .redop = call->redop,
                .root = call->root,
                .inPlace = inPlace,
                .stream = call->stream};
  if (call->redop >= tuttiNumOps) op.premul = c->premul[call->redop - tuttiNumOps];
  return tuttiOpSubmit(&op);
refused:
  tuttiGroupFail(result);
  tuttiHandleLeave(c);
  return result;
}

tuttiResult_t tuttiAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                             tuttiDataType_t datatype, tuttiRedOp_t op, tuttiComm_t comm,
                             tuttiStream_t stream) {
  Call call = {__func__, tuttiCollAllReduce, sendbuff, recvbuff, count, datatype, op, -1, stream};
  return submit(&call, comm);
}

tuttiResult_t tuttiBroadcast(const void *sendbuff, void *recvbuff, size_t count,
                             tuttiDataType_t datatype, int root, tuttiComm_t comm,
                             tuttiStream_t stream) {
  Call call = {__func__, tuttiCollBroadcast, sendbuff, recvbuff, count,
               datatype, tuttiSum,           root,     stream};
  return submit(&call, comm);
}

tuttiResult_t tuttiBcast(void *buff, size_t count, tuttiDataType_t datatype, int root,
                         tuttiComm_t comm, tuttiStream_t stream) {
  Call call = {__func__, tuttiCollBroadcast, buff, buff, count, datatype, tuttiSum, root, stream};
  return submit(&call, comm);
}

tuttiResult_t tuttiReduce(const void *sendbuff, void *recvbuff, size_t count,
                          tuttiDataType_t datatype, tuttiRedOp_t op, int root, tuttiComm_t comm,
                          tuttiStream_t stream) {
  Call call = {__func__, tuttiCollReduce, sendbuff, recvbuff, count, datatype, op, root, stream};
  return submit(&call, comm);
}

tuttiResult_t tuttiAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                             tuttiDataType_t datatype, tuttiComm_t comm, tuttiStream_t stream) {
  Call call = {__func__, tuttiCollAllGather, sendbuff, recvbuff, sendcount,
               datatype, tuttiSum,           -1,       stream};
  return submit(&call, comm);
}

tuttiResult_t tuttiReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                                 tuttiDataType_t datatype, tuttiRedOp_t op, tuttiComm_t comm,
                                 tuttiStream_t stream) {
  Call call = {__func__, tuttiCollReduceScatter, sendbuff, recvbuff, recvcount, datatype, op, -1,
               stream};
  return submit(&call, comm);
}

tuttiResult_t tuttiAlltoAll(const void *sendbuff, void *recvbuff, size_t count,
                            tuttiDataType_t datatype, tuttiComm_t comm, tuttiStream_t stream) {
  Call call = {__func__, tuttiCollAlltoAll, sendbuff, recvbuff, count,
               datatype, tuttiSum,          -1,       stream};
  return submit(&call, comm);
}

tuttiResult_t tuttiGather(const void *sendbuff, void *recvbuff, size_t count,
                          tuttiDataType_t datatype, int root, tuttiComm_t comm,
                          tuttiStream_t stream) {
  Call call = {__func__, tuttiCollGather, sendbuff, recvbuff, count,
               datatype, tuttiSum,        root,     stream};
  return submit(&call, comm);
}

tuttiResult_t tuttiScatter(const void *sendbuff, void *recvbuff, size_t count,
                           tuttiDataType_t datatype, int root, tuttiComm_t comm,
                           tuttiStream_t stream) {
  Call call = {__func__, tuttiCollScatter, sendbuff, recvbuff, count,
               datatype, tuttiSum,         root,     stream};
  return submit(&call, comm);
}

/* Send and receive share everything but the buffer's direction. */
static tuttiResult_t sendRecv(const char *name, const void *sendbuff, void *recvbuff, bool sending,
                              size_t count, tuttiDataType_t type, int peer, tuttiComm_t comm,
                              tuttiStream_t stream) {
  tuttiCommunicator *c;
  size_t bytes;
  tuttiResult_t result = tuttiHandleEnter(comm, name, &c);
  if (result != tuttiSuccess) {
    tuttiGroupFail(result);
    return result;
  }
  TUTTI_TRY_GOTO(tuttiCommReady(c), result, refused);
  TUTTI_TRY_GOTO(checkType(type), result, refused);
  TUTTI_TRY_GOTO(checkRank(c, "peer", peer), result, refused);
  TUTTI_TRY_GOTO(checkBuffer(sending ? "sendbuff" : "recvbuff", sending ? sendbuff : recvbuff,
                             count, 1, type, &bytes),
                 result, refused);
  tuttiOp op = {.comm = c,
                .handle = comm,
                .coll = tuttiCollSendRecv,
                .recorded = tuttiCollSendRecv,
                .sendbuff = sendbuff,
                .recvbuff = recvbuff,
                .count = count,
                .type = type,
                .root = peer,
                .sending = sending,
                .stream = stream};
  return tuttiOpSubmit(&op);
refused:
  tuttiGroupFail(result);
  tuttiHandleLeave(c);
  return result;
}

tuttiResult_t tuttiSend(const void *sendbuff, size_t count, tuttiDataType_t datatype, int peer,
                        tuttiComm_t comm, tuttiStream_t stream) {
  return sendRecv(__func__, sendbuff, NULL, true, count, datatype, peer, comm, stream);
}

tuttiResult_t tuttiRecv(void *recvbuff, size_t count, tuttiDataType_t datatype, int peer,
                        tuttiComm_t comm, tuttiStream_t stream) {
  return sendRecv(__func__, NULL, recvbuff, false, count, datatype, peer, comm, stream);
}

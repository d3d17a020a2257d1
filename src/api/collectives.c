/* The collectives and messages: each call checks its arguments, holds its communicator and submits
 * one operation. */
#include <stdint.h>

#include "api/configured.h"
#include "base/nvtx.h"
#include "comm/check.h"
#include "comm/communicator.h"
#include "comm/failure.h"
#include "comm/group.h"
#include "comm/handle.h"
#include "comm/operation.h"
#include "comm/premul.h"

static tuttiResult_t checkRank(const tuttiCommunicator *c, const char *argument, int rank) {
  if (rank >= 0 && rank < c->nranks) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument, "argument %s is %d; it must be a rank, 0 to %d", argument,
                    rank, c->nranks - 1);
}

/* Keeps what a handle stands for, which may be gone when the operation runs. */
static tuttiResult_t checkRedOp(const tuttiCommunicator *c, tuttiOp *op) {
  if ((int)op->redop >= 0 && op->redop < tuttiNumOps) return tuttiSuccess;
  if (!tuttiPreMulFind(c, op->redop, &op->premul))
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument op is %d; it must be tuttiSum to tuttiAvg or a live handle of "
                      "tuttiRedOpCreatePreMulSum of this communicator",
                      (int)op->redop);
  if (op->premul.type == op->type) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "argument op is a PreMulSum made for %s, but datatype is %s; make one for %s",
                    tuttiTypeName(op->premul.type), tuttiTypeName(op->type),
                    tuttiTypeName(op->type));
}

/* *bytes: of so many blocks; 0 for a buffer that is not used. */
static inline tuttiResult_t checkBuffer(const tuttiCommunicator *c, const char *argument,
                                        const void *buffer, const tuttiOp *op, size_t blocks,
                                        size_t *bytes) {
  size_t size = tuttiTypeSizes[op->type], count = op->count, total;
  *bytes = 0;
  if (blocks == 0 || count == 0) return tuttiSuccess;
  if (__builtin_mul_overflow(count, blocks * size, &total) || total > PTRDIFF_MAX)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument count is %zu: %zu x %zu elements of %zu bytes are more than the "
                      "address space holds (a negative count?)",
                      count, blocks, count, size);
  if (buffer == NULL)
    return TUTTI_FAIL(tuttiInvalidArgument, "argument %s is NULL; count is %zu", argument, count);
  if ((uintptr_t)buffer & (size - 1))
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument %s (%p) is misaligned: %s needs a multiple of %zu bytes", argument,
                      buffer, tuttiTypeName(op->type), size);
  if ((uintptr_t)buffer > UINTPTR_MAX - total)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument %s (%p) with count %zu reaches past the end of memory", argument,
                      buffer, count);
  *bytes = total;
  return tuttiCheckMemory(c, argument, buffer);
}

/* Where this rank's own block lies in a buffer of that shape. */
static uintptr_t ownBlock(const tuttiCommunicator *c, const tuttiOp *op, const void *buffer,
                          tuttiBufferShape shape) {
  size_t before = op->count * tuttiTypeSizes[op->type] * (size_t)c->rank;
  return (uintptr_t)buffer + (shape.perRank ? before : 0);
}

/* Both buffers are used and checked: sets inPlace, or fails where they overlap in any other way. */
static tuttiResult_t checkOverlap(const tuttiCommunicator *c, tuttiOp *op, size_t sendBytes,
                                  size_t recvBytes) {
  tuttiBufferShape send = tuttiCollShapes[op->coll].send, recv = tuttiCollShapes[op->coll].recv;
  bool canAlias = !(send.perRank && recv.perRank);
  if (canAlias && ownBlock(c, op, op->sendbuff, send) == ownBlock(c, op, op->recvbuff, recv)) {
    op->inPlace = true;
    return tuttiSuccess;
  }
  uintptr_t s = (uintptr_t)op->sendbuff, r = (uintptr_t)op->recvbuff;
  if (s >= r + recvBytes || r >= s + sendBytes) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "arguments sendbuff (%p, %zu bytes) and recvbuff (%p, %zu bytes) overlap; use "
                    "separate buffers%s",
                    op->sendbuff, sendBytes, op->recvbuff, recvBytes,
                    canAlias ? ", or coincide exactly as tutti.h says for in place" : "");
}

static tuttiResult_t checkBuffers(const tuttiCommunicator *c, tuttiOp *op) {
  bool isRoot = op->root == c->rank;
  size_t sendBlocks = tuttiShapeBlocks(tuttiCollShapes[op->coll].send, isRoot, c->nranks);
  size_t recvBlocks = tuttiShapeBlocks(tuttiCollShapes[op->coll].recv, isRoot, c->nranks);
  if (op->coll == tuttiCollSendRecv) {
    sendBlocks = op->sending ? 1 : 0;
    recvBlocks = op->sending ? 0 : 1;
  }
  size_t sendBytes, recvBytes;
  TUTTI_TRY(checkBuffer(c, "sendbuff", op->sendbuff, op, sendBlocks, &sendBytes));
  TUTTI_TRY(checkBuffer(c, "recvbuff", op->recvbuff, op, recvBlocks, &recvBytes));
  if (sendBytes == 0 || recvBytes == 0) return tuttiSuccess;
  return checkOverlap(c, op, sendBytes, recvBytes);
}

static tuttiResult_t check(const tuttiCommunicator *c, tuttiOp *op) {
  TUTTI_TRY(tuttiCommReady(c));
  TUTTI_TRY(tuttiCheckType(op->type));
  if (tuttiCollHasRoot(op->coll)) TUTTI_TRY(checkRank(c, "root", op->root));
  if (op->coll == tuttiCollSendRecv) TUTTI_TRY(checkRank(c, "peer", op->root));
  if (tuttiCollReduces(op->coll)) TUTTI_TRY(checkRedOp(c, op));
  return checkBuffers(c, op);
}

/* Of a communicator that is held. `regular`: occupied, too, and outside of any group. */
static inline tuttiResult_t submitHeld(tuttiCommunicator *c, const char *name, tuttiOp *op,
                                       const tuttiCollConfig_t *config, bool regular) {
  TUTTI_TRY(check(c, op));
  if (config) TUTTI_TRY(tuttiCollConfigRead(c, op->coll, config, &op->wishes));
  op->comm = c;
  op->handle = c->handle;
  op->recorded = op->coll;
  uint64_t range =
      tuttiRangeOpen(name, op->count * tuttiTypeSize(op->type), c->rank, op->wishes.tag);
  tuttiResult_t result = regular ? tuttiOpsRun(op, 1) : tuttiOpSubmit(op);
  tuttiRangeClose(range);
  return result;
}

tuttiResult_t tuttiCollectiveSubmit(const char *name, tuttiComm_t comm, tuttiOp *op,
                                    const tuttiCollConfig_t *config) {
  tuttiCommunicator *regular = tuttiGroupIsOpen() ? NULL : tuttiHandleEnterRegular(comm, name);
  if (regular) {
    tuttiResult_t result = submitHeld(regular, name, op, config, true);
    tuttiHandleLeaveRegular();
    return result;
  }
  TUTTI_HELD tuttiCommunicator *c = NULL;
  tuttiResult_t result = tuttiHandleEnter(comm, name, &c);
  if (result == tuttiSuccess) result = submitHeld(c, name, op, config, false);
  if (result != tuttiSuccess) tuttiGroupFail(result);
  return result;
}

static tuttiResult_t submit(const char *name, tuttiComm_t comm, tuttiOp *op) {
  return tuttiCollectiveSubmit(name, comm, op, NULL);
}

/* ---- the calls ------------------------------------------------------------------------------ */

tuttiResult_t tuttiAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                             tuttiDataType_t datatype, tuttiRedOp_t redop, tuttiComm_t comm,
                             tuttiStream_t stream) {
  tuttiOp op = tuttiCollectiveOp(tuttiCollAllReduce, sendbuff, recvbuff, count, datatype, stream);
  op.redop = redop;
  return submit(__func__, comm, &op);
}

tuttiResult_t tuttiBroadcast(const void *sendbuff, void *recvbuff, size_t count,
                             tuttiDataType_t datatype, int root, tuttiComm_t comm,
                             tuttiStream_t stream) {
  tuttiOp op = tuttiCollectiveOp(tuttiCollBroadcast, sendbuff, recvbuff, count, datatype, stream);
  op.root = root;
  return submit(__func__, comm, &op);
}

tuttiResult_t tuttiBcast(void *buff, size_t count, tuttiDataType_t datatype, int root,
                         tuttiComm_t comm, tuttiStream_t stream) {
  tuttiOp op = tuttiCollectiveOp(tuttiCollBroadcast, buff, buff, count, datatype, stream);
  op.root = root;
  return submit(__func__, comm, &op);
}

tuttiResult_t tuttiReduce(const void *sendbuff, void *recvbuff, size_t count,
                          tuttiDataType_t datatype, tuttiRedOp_t redop, int root, tuttiComm_t comm,
                          tuttiStream_t stream) {
  tuttiOp op = tuttiCollectiveOp(tuttiCollReduce, sendbuff, recvbuff, count, datatype, stream);
  op.redop = redop;
  op.root = root;
  return submit(__func__, comm, &op);
}

tuttiResult_t tuttiAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                             tuttiDataType_t datatype, tuttiComm_t comm, tuttiStream_t stream) {
  tuttiOp op =
      tuttiCollectiveOp(tuttiCollAllGather, sendbuff, recvbuff, sendcount, datatype, stream);
  return submit(__func__, comm, &op);
}

tuttiResult_t tuttiReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                                 tuttiDataType_t datatype, tuttiRedOp_t redop, tuttiComm_t comm,
                                 tuttiStream_t stream) {
  tuttiOp op =
      tuttiCollectiveOp(tuttiCollReduceScatter, sendbuff, recvbuff, recvcount, datatype, stream);
  op.redop = redop;
  return submit(__func__, comm, &op);
}

tuttiResult_t tuttiAlltoAll(const void *sendbuff, void *recvbuff, size_t count,
                            tuttiDataType_t datatype, tuttiComm_t comm, tuttiStream_t stream) {
  tuttiOp op = tuttiCollectiveOp(tuttiCollAlltoAll, sendbuff, recvbuff, count, datatype, stream);
  return submit(__func__, comm, &op);
}

tuttiResult_t tuttiGather(const void *sendbuff, void *recvbuff, size_t count,
                          tuttiDataType_t datatype, int root, tuttiComm_t comm,
                          tuttiStream_t stream) {
  tuttiOp op = tuttiCollectiveOp(tuttiCollGather, sendbuff, recvbuff, count, datatype, stream);
  op.root = root;
  return submit(__func__, comm, &op);
}

tuttiResult_t tuttiScatter(const void *sendbuff, void *recvbuff, size_t count,
                           tuttiDataType_t datatype, int root, tuttiComm_t comm,
                           tuttiStream_t stream) {
  tuttiOp op = tuttiCollectiveOp(tuttiCollScatter, sendbuff, recvbuff, count, datatype, stream);
  op.root = root;
  return submit(__func__, comm, &op);
}

tuttiResult_t tuttiSend(const void *sendbuff, size_t count, tuttiDataType_t datatype, int peer,
                        tuttiComm_t comm, tuttiStream_t stream) {
  tuttiOp op = tuttiCollectiveOp(tuttiCollSendRecv, sendbuff, NULL, count, datatype, stream);
  op.root = peer;
  op.sending = true;
  return submit(__func__, comm, &op);
}

tuttiResult_t tuttiRecv(void *recvbuff, size_t count, tuttiDataType_t datatype, int peer,
                        tuttiComm_t comm, tuttiStream_t stream) {
  tuttiOp op = tuttiCollectiveOp(tuttiCollSendRecv, NULL, recvbuff, count, datatype, stream);
  op.root = peer;
  return submit(__func__, comm, &op);
}

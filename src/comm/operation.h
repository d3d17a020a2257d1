/* Operations: what a call asks for, and how several run together. */
#ifndef TUTTI_COMM_OPERATION_H_
#define TUTTI_COMM_OPERATION_H_

#include "comm/communicator.h"

/* What the options of one collective ask for; all 0: nothing. */
typedef struct {
  bool given;
  int minChannels, maxChannels; /* 0: as the communicator */
  uint32_t algos;               /* to choose from, one or more that can be had; 0: any */
  uint64_t tag;
  void *event; /* recorded when the operation is launched */
} tuttiOpWishes;

/* One collective or message, as its call asks for it. */
typedef struct tuttiOp {
  tuttiColl coll;
  tuttiColl recorded; /* what the signature says: coll, or tuttiCollSplit */
  const void *sendbuff;
  void *recvbuff;
  uint64_t count;
  tuttiDataType_t type;
  tuttiRedOp_t redop;
  int root;     /* SendRecv: the peer */
  bool sending; /* SendRecv */
  bool inPlace;
  tuttiStream_t stream;
  tuttiOpWishes wishes;
  uint64_t enqueued;  /* ticks when a worker's operation was queued, if that is traced; else 0 */
  tuttiPreMul premul; /* of redop at the call: its handle may be gone when the operation runs */
  tuttiCommunicator *comm; /* held by the caller while the operation runs */
  tuttiComm_t handle;      /* what a group keeps until its end, when it may be dead */
} tuttiOp;

/* What the planner expects of an operation, in us; for the thread that uses the communicator. */
float tuttiOpTime(const tuttiOp *op);
/* Runs operations together, to their end on this rank. */
tuttiResult_t tuttiOpsRun(const tuttiOp *ops, int nops);
/* All-gathers `bytes` of plain host memory over the communicator, on any device, and waits for the
 * end. A collective like any other, for what ranks must tell each other in a split or the like. */
tuttiResult_t tuttiCommExchange(void *comm, void *all, size_t bytes);

#endif

/* One-sided operations: puts and signals to other ranks, and waits for theirs. */
#ifndef TUTTI_COMM_ONESIDED_H_
#define TUTTI_COMM_ONESIDED_H_

#include "comm/communicator.h"
#include "comm/job.h"
#include "transport/rma.h"

/* A put or a signal, as a job; its run is tuttiPutRun. */
typedef struct {
  tuttiJob job;
  tuttiRmaPut put;
  tuttiStream_t stream;
} tuttiPutJob;

/* A wait, as a job; its run is tuttiWaitRun. */
typedef struct {
  tuttiJob job;
  tuttiStream_t stream;
  int n;
  tuttiWaitSignalDesc_t descs[];
} tuttiWaitJob;

/* For the thread that uses the communicator, which the job holds while it runs. Arguments have been
 * checked. On GPUs they are enqueued on the stream. */
tuttiResult_t tuttiPutRun(tuttiJob *job);
tuttiResult_t tuttiWaitRun(tuttiJob *job);

/* Makes what this rank needs for them, before others know of its first window: *card is for these.
 * tuttiSuccess and no c->rma where they are not served. */
tuttiResult_t tuttiOneSidedPrepare(tuttiCommunicator *c, tuttiRmaCard *card);

/* Do they work between all ranks, as far as the paths tell? */
bool tuttiOneSidedServes(const tuttiCommunicator *c);

/* This rank has to have the peer's part of a window mapped to write to it. */
bool tuttiOneSidedMaps(const tuttiCommunicator *c, int peer);

/* tuttiSuccess if this rank can write to `peer`, and that to this one; else why not. After a first
 * window. */
tuttiResult_t tuttiOneSidedReach(tuttiCommunicator *c, int peer);

/* See tuttiTaskContext; with opCnt 0 a put waits for room. */
tuttiResult_t tuttiSignalsLate(void *comm, const tuttiWaitSignalDesc_t *awaited, uint32_t come,
                               uint64_t waitedMs);

#endif

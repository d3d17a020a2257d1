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
} tuttiPutJob;

/* A wait, as a job; its run is tuttiWaitRun. */
typedef struct {
  tuttiJob job;
  int n;
  tuttiWaitSignalDesc_t descs[];
} tuttiWaitJob;

/* For the thread that uses the communicator, which the job holds while it runs. Arguments have been
 * checked. */
tuttiResult_t tuttiPutRun(tuttiJob *job);
tuttiResult_t tuttiWaitRun(tuttiJob *job);

/* Makes what this rank needs for them, before others know of its first window: *card is for these.
 * tuttiSuccess and no c->rma where they are not served. */
tuttiResult_t tuttiOneSidedPrepare(tuttiCommunicator *c, tuttiRmaCard *card);

/* Do they work between all ranks, as far as the paths tell? */
bool tuttiOneSidedServes(const tuttiCommunicator *c);

#endif

/* Splitting a communicator by colors. */
#ifndef TUTTI_COMM_SPLIT_H_
#define TUTTI_COMM_SPLIT_H_

#include "comm/job.h"
#include "comm/options.h"

/* A split, as a job; its run is tuttiSplitRun. The arguments are good. */
typedef struct {
  tuttiJob job;
  int color, key;
  tuttiComm_t *out;
  tuttiOptions options;
} tuttiSplitJob;

/* Waits for all ranks of job->uses. Sets *out to this rank's new communicator, or to NULL without a
 * color. */
tuttiResult_t tuttiSplitRun(tuttiJob *job);

#endif

/* Growing a communicator by new ranks. */
#ifndef TUTTI_COMM_GROW_H_
#define TUTTI_COMM_GROW_H_

#include "comm/job.h"
#include "comm/options.h"

/* What each of its ranks tells the others. */
typedef struct {
  int32_t nRanks, hasId;
  tuttiUniqueId id;
} tuttiGrowEntry;

/* A growth on a rank of the communicator, as a job; its run is tuttiGrowRun. */
typedef struct {
  tuttiJob job;
  tuttiGrowEntry mine;
  tuttiComm_t *out;
  tuttiOptions options;
} tuttiGrowJob;

/* Waits for all ranks of job->uses, then for the new ones. Sets *out. */
tuttiResult_t tuttiGrowRun(tuttiJob *job);

#endif

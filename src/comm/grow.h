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

/* A growth on a rank of the communicator, as a job: its run is tuttiGrowRun, its discard
 * tuttiGrowDiscard. */
typedef struct {
  tuttiJob job;
  tuttiGrowEntry mine;
  int rank; /* -1: not known */
  bool ran;
  tuttiComm_t *out;
  tuttiOptions options;
} tuttiGrowJob;

/* Waits for all ranks of job->uses, then for the new ones. Sets *out. Where that ends before they
 * are asked for, and where the job is discarded without having run, those who wait at this rank's
 * id are told why. */
tuttiResult_t tuttiGrowRun(tuttiJob *job);
void tuttiGrowDiscard(tuttiJob *job);
/* Tells those who wait at this rank's id that nothing comes of this growth, because of `why` and
 * this thread's last error, which stays. Takes two seconds at most, where the root is in another
 * process that does not answer. */
void tuttiGrowDecline(const tuttiGrowJob *grow, tuttiResult_t why);

#endif

/* Going on without some ranks, and ending what all ranks do. */
#ifndef TUTTI_COMM_SHRINK_H_
#define TUTTI_COMM_SHRINK_H_

#include "comm/communicator.h"
#include "comm/job.h"

/* A shrink, as a job; its run is tuttiShrinkRun. The call sets aborts, out, options and job, and
 * tuttiShrinkPlan the rest. */
typedef struct {
  tuttiJob job;
  bool aborts;
  int leader;         /* first rank that stays */
  int place, members; /* rank and size of the new communicator */
  uint64_t purpose;   /* who stays, and the leader's count of shrinks: 40 + 8 bits */
  uint8_t *excluded;  /* [nranks] of the job; tuttiShrinkDiscard frees it */
  int nranks;
  tuttiComm_t *out;
  tuttiOptions options;
} tuttiShrinkJob;

/* Who leads and where this rank comes, if those r with excluded[r] != 0 do not stay; *s keeps the
 * list. Counts one shrink of `c`. */
void tuttiShrinkPlan(tuttiCommunicator *c, uint8_t *excluded, tuttiShrinkJob *s);
void tuttiShrinkDiscard(tuttiJob *job);

/* Needs nothing of the excluded ranks, and waits for all others. Sets *out. */
tuttiResult_t tuttiShrinkRun(tuttiJob *job);

/* Makes a communicator that the caller ends fail everywhere, with "rank 2 `what`", and waits until
 * nothing of this rank is under way. */
tuttiResult_t tuttiCommEndOperations(tuttiCommunicator *c, const char *what);

#endif

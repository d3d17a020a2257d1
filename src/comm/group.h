/* What one thread collects between tuttiGroupStart and tuttiGroupEnd, and how a call joins it. Each
 * thread has its own group; these are for the calling thread's. */
#ifndef TUTTI_COMM_GROUP_H_
#define TUTTI_COMM_GROUP_H_

#include "comm/job.h"
#include "comm/operation.h"

/* Runs `op` now, or a copy of it with its group. */
tuttiResult_t tuttiOpSubmit(tuttiOp *op);
/* Runs the job now, or queues it for the end of the group; frees it in the end. */
tuttiResult_t tuttiJobSubmit(tuttiJob *job);
/* The end of a public call that leads to a job: submits a copy of the `bytes` that begin with *job,
 * or lets the group fail with what the checks said. */
tuttiResult_t tuttiJobLaunch(tuttiResult_t checked, const tuttiJob *job, size_t bytes);
/* Makes this thread's outermost tuttiGroupEnd fail with `code` and this thread's last error. */
void tuttiGroupFail(tuttiResult_t code);
/* This thread has one. */
bool tuttiGroupIsOpen(void);
/* Opens a level of this thread's group. */
void tuttiGroupOpen(void);
/* Ends one level; if it was the outermost, runs what was collected, and returns the first failure.
 * tuttiInvalidUsage if none is open. */
tuttiResult_t tuttiGroupRun(void);
/* The same, but nothing runs: *us is what the planner expects of the operations, in us. It is set
 * only where the outermost level ends, and on success. */
tuttiResult_t tuttiGroupExpect(float *us);

#endif

/* Giving back memory while a communicator is not used. */
#ifndef TUTTI_COMM_SUSPEND_H_
#define TUTTI_COMM_SUSPEND_H_

#include "comm/job.h"

/* The run of a job that suspends job->uses: waits for all of its ranks. */
tuttiResult_t tuttiSuspendRun(tuttiJob *job);

#endif

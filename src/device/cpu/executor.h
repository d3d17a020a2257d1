/* The CPU executor: carries out tasks on host memory. */
#ifndef TUTTI_DEVICE_CPU_EXECUTOR_H_
#define TUTTI_DEVICE_CPU_EXECUTOR_H_

#include <sys/cdefs.h>

#include "collectives/task.h"

__BEGIN_DECLS

/* Runs all tasks and the chains that hang on them, of one or several communicators, side by side in
 * the calling thread, and returns when all are done: results are in place, and no peer will look at
 * the buffers any more. While it waits it runs the communicators' proxies.
 *
 * On failure it returns at once and leaves the other tasks where they are, so that none of their
 * communicators can be used any further; the caller makes them all fail. */
tuttiResult_t tuttiCpuRun(tuttiTask **tasks, int ntasks); /* heads of chains */

__END_DECLS

#endif

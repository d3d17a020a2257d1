/* Non-blocking communicators: a thread of their own runs what is called, in order. */
#ifndef TUTTI_COMM_WORKER_H_
#define TUTTI_COMM_WORKER_H_

#include "comm/operation.h"

/* Starts the worker, whose first work is begin(argument); it has not run after a failure. */
tuttiResult_t tuttiWorkerStart(tuttiCommunicator *c, void (*begin)(void *), void *argument);
/* Queues copies of operations, which run together, after all that were queued before. */
tuttiResult_t tuttiWorkerQueue(tuttiCommunicator *c, const tuttiOp *ops, int nops);
/* Has everything queued ended? True without a worker; from any thread. */
bool tuttiWorkerIdle(tuttiCommunicator *c);
/* Waits until it is, the communicator has failed or the timeout has passed. */
tuttiResult_t tuttiWorkerAwait(tuttiCommunicator *c);
/* Runs what is queued to its end, ends the thread and frees the worker, if there is one. */
void tuttiWorkerStop(tuttiCommunicator *c);

#endif

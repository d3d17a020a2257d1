/* The end of a communicator, orderly or not. The caller holds it. */
#ifndef TUTTI_COMM_END_H_
#define TUTTI_COMM_END_H_

#include "comm/communicator.h"

/* Lets no operation start any more, and waits until nothing of this rank is under way: queued
 * operations, and messages that the network has not taken yet. */
tuttiResult_t tuttiCommDrain(tuttiCommunicator *c);

/* Retires the handle and frees everything, when all calls but the caller's have left. The caller's
 * hold is gone, whatever this returns: tuttiInvalidUsage if another thread ends it already. */
tuttiResult_t tuttiCommRetire(tuttiCommunicator *c, bool aborted);

/* Leaves it, and fails because it is being ended already. */
tuttiResult_t tuttiCommEndsAlready(tuttiCommunicator *c);

/* Retires a communicator that has failed, at once or at the end of the group. The caller's hold is
 * gone. */
tuttiResult_t tuttiCommAbortSubmit(tuttiCommunicator *c);

#endif

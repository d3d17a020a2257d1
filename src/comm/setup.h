/* A communicator is made, set up and freed. */
#ifndef TUTTI_COMM_SETUP_H_
#define TUTTI_COMM_SETUP_H_

#include "comm/communicator.h"

/* Joins and sets everything up; undoes all of it on failure but the allocation of *c itself. `kin`
 * may be NULL. */
tuttiResult_t tuttiCommSetup(tuttiCommunicator *c, const tuttiUniqueId *ids, int nids,
                             const tuttiKin *kin);
/* A new communicator in state "not set up", with a handle. */
tuttiResult_t tuttiCommNew(int rank, int nranks, const tuttiOptions *options,
                           tuttiCommunicator **out);
/* Frees everything, when the worker has ended; no other thread is inside. This thread's last error
 * stays. */
void tuttiCommFree(tuttiCommunicator *c, bool aborted);

#endif

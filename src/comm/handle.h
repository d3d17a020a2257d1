/* Handles of communicators. A handle is a number, not an address: one that was destroyed is
 * recognized for ever. */
#ifndef TUTTI_COMM_HANDLE_H_
#define TUTTI_COMM_HANDLE_H_

#include "comm/communicator.h"
#include "comm/failure.h"

/* Sets c->handle. */
tuttiResult_t tuttiHandleCreate(tuttiCommunicator *c);
/* The communicator of a handle, held until tuttiHandleLeave. `call` names the public function in
 * errors of this thread until it leaves. tuttiInvalidArgument for NULL and dead handles. */
tuttiResult_t tuttiHandleEnter(tuttiComm_t handle, const char *call, tuttiCommunicator **c);
/* The same for a call without a communicator. */
tuttiResult_t tuttiCallEnter(const char *call);
/* Is it open? Only a hint, since another thread may destroy it meanwhile. */
bool tuttiHandleLives(tuttiComm_t handle);
/* The rank that its communicator has or, if it is dead, had; -1: it was never made, or so long ago
 * that another has its place. */
int tuttiHandleRank(tuttiComm_t handle);
/* Ends the hold of one tuttiHandleEnter, and with it the scope of errors; `c` may be gone then. */
void tuttiHandleLeave(tuttiCommunicator *c);
/* `TUTTI_HELD tuttiCommunicator *c = NULL;` is left where its block ends, if it was entered. */
#define TUTTI_HELD __attribute__((cleanup(tuttiHandleLeaveAt)))
static inline void tuttiHandleLeaveAt(tuttiCommunicator **c) {
  if (*c) tuttiHandleLeave(*c);
}
/* Declares `c` and enters it, or returns the failure. */
#define TUTTI_ENTER(c, handle, call)                                                               \
  TUTTI_HELD tuttiCommunicator *(c) = NULL;                                                        \
  TUTTI_TRY(tuttiHandleEnter(handle, call, &(c)))
#define TUTTI_ENTER_READY(c, handle, call)                                                         \
  TUTTI_ENTER(c, handle, call);                                                                    \
  TUTTI_TRY(tuttiCommReady(c))

/* Marks `c` as in use by this thread; refuses if it is in use by another. Vacate is for the thread
 * that occupies; it may be called more often than needed. */
tuttiResult_t tuttiCommOccupy(tuttiCommunicator *c);
void tuttiCommVacate(tuttiCommunicator *c);
/* This thread occupies it already, for more than the call it is in now. */
bool tuttiCommOccupied(const tuttiCommunicator *c);
/* Some thread does. What the caller has stored before is seen by whoever occupies it later. */
bool tuttiCommInUse(tuttiCommunicator *c);

/* A thread that has occupied a blocking communicator so often, and no other in between, becomes its
 * regular, until another thread occupies it. */
#define TUTTI_REGULAR_CALLS 100u
/* tuttiHandleEnter and tuttiCommOccupy in one, without a locked instruction. NULL, with nothing
 * done, unless this thread is the regular of a live communicator and not inside one as such. */
tuttiCommunicator *tuttiHandleEnterRegular(tuttiComm_t handle, const char *call);
/* Vacates and leaves it; the communicator may be gone then. */
void tuttiHandleLeaveRegular(void);

/* From now on no call gets in; returns when all that were in have left, but for the caller's own
 * hold. False if another thread is retiring it already. */
bool tuttiHandleRetire(tuttiCommunicator *c);
/* Frees the slot of a handle that was retired or never given out. */
void tuttiHandleFree(tuttiCommunicator *c);

#endif

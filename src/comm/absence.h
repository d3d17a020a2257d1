/* What keeps ranks that do not come to the init of a communicator which is made of another one. At
 * the deadline these ranks, innocent most often, are all that the rendezvous knows; what they wait
 * for, in the other communicator, can be asked there. Before it, once the other communicator has
 * failed or was ended, whoever has left that without coming is not awaited: nobody else would tell
 * the others of it. */
#ifndef TUTTI_COMM_ABSENCE_H_
#define TUTTI_COMM_ABSENCE_H_

#include "comm/deaths.h"

typedef struct {
  const tuttiOrigin *origin;
  tuttiCommunicator *child;
  const char *call;
  tuttiKin kin;
} tuttiAbsence;

/* What the rendezvous of `child` asks; NULL: it is made of no communicator that lives. *a is a
 * variable of that init, whose `call` is that of its errors. Asks by the watch of the parent, for
 * tuttiCommAskMs at most, and stops when either communicator fails. */
const tuttiKin *tuttiAbsenceInit(tuttiAbsence *a, const tuttiOrigin *origin,
                                 tuttiCommunicator *child, const char *call);

#endif

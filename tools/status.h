/* `tutti status`: where it finds processes that run tutti, and what they tell. */
#ifndef TUTTI_TOOLS_STATUS_H_
#define TUTTI_TOOLS_STATUS_H_

#include "ras/facts.h"

/* Asks the processes of this host that belong to this user (all, for root), through their Unix
 * sockets; each communicator is asked about through one process that answers, the others only for
 * what that one does not know. What is known of a process without its answer (it is stopped, or
 * gone) is added. Takes `ms` at most. False: there is no such process; *silent counts those that
 * have not answered. */
bool tuttiStatusHost(int ms, tuttiSnapshot *s, int *silent);
/* Asks whoever answers at host:port for what `command` says, in the protocol of the RAS port. The
 * answer is for free(); NULL: `why` (of 256 bytes) says why there is none. A process that is
 * stopped holds its share of connections to the port, so another is tried when the first says
 * nothing. */
char *tuttiStatusPort(const char *host, const char *port, const char *const *lines, int ms,
                      size_t *bytes, char *why);

#endif

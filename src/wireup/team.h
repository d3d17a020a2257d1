/* Local teams: ranks whose GPUs all load from and store to each other's memory, as kernels of the
 * user know them. Such kernels find a rank's team and its place there by dividing its number, so
 * all teams are equally large and have ranks that follow each other, from a multiple of that size
 * on. */
#ifndef TUTTI_WIREUP_TEAM_H_
#define TUTTI_WIREUP_TEAM_H_

#include <sys/cdefs.h>

#include "transport/transport.h"

__BEGIN_DECLS

/* Whether two ranks reach each other; a < b. */
typedef bool tuttiTeamReaches(const void *ranks, int a, int b);

/* The size of the largest such teams; at least 1. */
int tuttiTeamSize(const void *ranks, int nranks, tuttiTeamReaches *reaches);
/* Of ranks with these records. The same on every rank. */
int tuttiTeamSizeOf(const tuttiPeer *peers, int nranks);

__END_DECLS

#endif

/* The stamped operations of all ranks on one clock: the trace, and who is slow. */
#ifndef TUTTI_RAS_TIMELINE_H_
#define TUTTI_RAS_TIMELINE_H_

#include <stdio.h>
#include <sys/cdefs.h>

#include "ras/facts.h"

__BEGIN_DECLS

/* What to add to the stamps of a rank to have them on the clock of rank `base`'s host, in ns. Ranks
 * of one host have one clock. Between hosts: an operation that no rank ends before all have begun
 * it ends at about the same time everywhere, and the median over those of the record is taken;
 * where there is none, the clocks of the hosts are believed. */
int64_t tuttiClockOffset(const tuttiCommSnapshot *c, int base, int rank);

/* The events of one communicator, each but the very first preceded by a comma. */
void tuttiTraceEvents(const tuttiCommSnapshot *c, bool *first, FILE *out);

__END_DECLS

#endif

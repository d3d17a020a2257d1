/* Two waiting threads on one core while another core is idle: the system puts them there when many
 * wake at once, and leaves them there; as we read it, for tens of milliseconds, as it moves nobody
 * who ran within the last half millisecond. Both did, as long as they yield to each other. Each
 * step of such a pair takes all the time that both look for what they wait for. */
#ifndef TUTTI_BASE_OWN_CORE_H_
#define TUTTI_BASE_OWN_CORE_H_

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

/* To be told of each yield of a thread that waits, where there is a core for each: from when to
 * when it took, by tuttiNow. If another thread had the core in all of the last ones, this one looks
 * for a core of its own; soon again where it found one, else after 5 ms and more. */
void tuttiOwnCoreYielded(uint64_t from, uint64_t to);

/* Looks for it now: goes from core to core of those that the thread may run on, which takes some 10
 * us on each that another one is waiting on, until it is alone. Ends on the first whose thread
 * computes. True if it was alone where it is; which cores it may run on is as before. (Cores that
 * its control group gets later are not among them, as after any sched_setaffinity.) */
bool tuttiOwnCoreSeek(void);

__END_DECLS

#endif

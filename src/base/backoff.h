/* How a thread waits for another one. */
#ifndef TUTTI_BASE_BACKOFF_H_
#define TUTTI_BASE_BACKOFF_H_

#include <stdint.h>
#include <sys/cdefs.h>

#include "base/atomic.h"

__BEGIN_DECLS

static inline void tuttiCpuRelax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield" ::: "memory");
#endif
}

/* One waiter's back-off: spins, then yields the core (300 us), then naps (50 us, or `napUs` if that
 * is more). `spins` is how often to spin before the first yield; 0 when there are more ranks than
 * cores, else the thread has a core of its own, or looks for one (own_core.h). A thread of which
 * two yields in a row took long does not yield for a while, and hardly spins: whoever got the core
 * keeps it for all of his time slice, and a thread that has slept gets it back sooner than one that
 * gave it away. */
typedef struct {
  uint32_t spins, napUs, round;
  uint64_t napFrom;
} tuttiBackoff;
/* Spins or yields and returns 0, or says for how many microseconds it is time to sleep. */
uint32_t tuttiBackoffStep(tuttiBackoff *b);
void tuttiNap(uint32_t us);
/* tuttiBackoffStep, and the nap. */
void tuttiBackoffPause(tuttiBackoff *b);
static inline void tuttiBackoffReset(tuttiBackoff *b) {
  b->round = 0;
}

/* Where one thread sleeps until another thread, perhaps of another process that has this memory
 * too, has something for it: sets the bell, looks once more whether there is something, and sleeps.
 * Whoever has something stores it and then rings. That needs no fence between the two: he may
 * overlook a bell that is set at the same moment, and a ring that got lost costs no more than `us`.
 * A bell is 1 while it is set, else 0; a peer that writes something else disturbs the sleep. */
void tuttiBellSet(tuttiAtomic32 *bell);
void tuttiBellSleep(tuttiAtomic32 *bell, uint32_t us);
/* Awake, or not asleep at all. */
void tuttiBellUnset(tuttiAtomic32 *bell);
void tuttiBellRing(tuttiAtomic32 *bell);

__END_DECLS

#endif

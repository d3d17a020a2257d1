/* A fence in two unequal halves. Two threads each store one thing and then load what the other
 * stores; with a full fence between store and load on either side, at least one sees the other.
 * Where one side does so in each of its calls and the other hardly ever, the first needs no more
 * than an order to the compiler, if the second has the kernel execute a fence on every core that
 * runs a thread of this process (membarrier(2)). */
#ifndef TUTTI_BASE_FENCE_H_
#define TUTTI_BASE_FENCE_H_

#include <stdbool.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

/* Asks the kernel, once per process, whether it does its part. In a process of several threads that
 * takes it some 10 ms, and so a thread of its own asks. */
void tuttiFenceAsk(void);
/* Whether tuttiFenceLight may be relied upon: the kernel does its part, and no ThreadSanitizer
 * looks on, which does not know that it does. False also while it is being asked; asks if nobody
 * has. What has relied on it may go on, even if this is false later. */
bool tuttiFenceWorks(void);

/* The frequent side's, between its store and its load. */
static inline void tuttiFenceLight(void) {
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
}
/* The seldom side's, for microseconds. */
void tuttiFenceHeavy(void);

/* For tests: what stands in for the system call, with its results; NULL: the call. Forgets what the
 * kernel has said so far; it must not be being asked. */
void tuttiFenceReplace(long (*membarrier)(int command));

__END_DECLS

#endif

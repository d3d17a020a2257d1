/* Where a thread says, by plain stores, which communicator it is in: one record per thread that has
 * asked for one, in memory that stays for ever, so that anybody may look at it at any time. Nobody
 * else writes it, so that a store which comes late overwrites nothing of another thread. */
#ifndef TUTTI_COMM_PRESENCE_H_
#define TUTTI_COMM_PRESENCE_H_

#include "base/atomic.h"

typedef struct {
  tuttiAtomic64 inside; /* a handle, or 0 */
  tuttiAtomic32 thread; /* whose it is; 0: nobody's */
} __attribute__((aligned(128))) tuttiPresence;

/* This thread's; NULL: it has asked for none. */
extern _Thread_local tuttiPresence *tuttiPresenceOwn;
/* The same, and asks for one if there is none; NULL: all are taken. */
tuttiPresence *tuttiPresenceTake(void);

/* This thread's id, never 0 and below TUTTI_THREAD_LIMIT. */
#define TUTTI_THREAD_LIMIT (1u << 30) /* the kernel's own is less: PID_MAX_LIMIT */
uint32_t tuttiThreadSelf(void);

#endif

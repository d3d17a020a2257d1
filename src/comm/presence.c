#include "comm/presence.h"

#include <errno.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fence.h"
#include "base/log.h"
#include "base/os.h"

#define RECORDS 256

_Thread_local tuttiPresence *tuttiPresenceOwn;

static tuttiPresence records[RECORDS];
static pthread_mutex_t takeLock = PTHREAD_MUTEX_INITIALIZER;

uint32_t tuttiThreadSelf(void) {
  static _Thread_local uint32_t id;
  if (id == 0) id = (uint32_t)tuttiThreadId();
  return id;
}

/* Threads do not say when they end: a library that is unloaded before them could not hear it. */
static bool hasEnded(uint32_t thread) {
  return syscall(SYS_tgkill, getpid(), thread, 0) != 0 && errno == ESRCH;
}

/* A communicator may still know a record as that of the thread before, and then takes this one for
 * it. That does no harm: all that the other did comes before all that this one does. */
static bool take(tuttiPresence *p, uint32_t self) {
  uint32_t thread = tuttiLoadAcquire32(&p->thread);
  if (thread != 0 && thread != self && !hasEnded(thread)) return false;
  if (thread != 0) tuttiFenceHeavy();
  tuttiStoreRelease(&p->inside, 0); /* it may have been cancelled in a call */
  tuttiStoreRelease32(&p->thread, self);
  tuttiPresenceOwn = p;
  return true;
}

tuttiPresence *tuttiPresenceTake(void) {
  if (tuttiPresenceOwn) return tuttiPresenceOwn;
  TUTTI_LOCKED(&takeLock);
  uint32_t self = tuttiThreadSelf();
  for (int i = 0; i < RECORDS && !tuttiPresenceOwn; i++)
    if (tuttiLoadAcquire32(&records[i].thread) == 0) take(&records[i], self);
  for (int i = 0; i < RECORDS && !tuttiPresenceOwn; i++)
    take(&records[i], self);
  return tuttiPresenceOwn;
}

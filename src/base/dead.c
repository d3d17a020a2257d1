#include "base/dead.h"

#include "base/atomic.h"

/* Processes that have died lately; the oldest gives way. */
#define KEPT 256

static tuttiAtomic64 dead[KEPT];
static tuttiAtomic32 ndead;

void tuttiDeadNote(uint64_t process) {
  if (process == 0 || tuttiDeadKnown(process)) return;
  tuttiStoreRelease(&dead[tuttiFetchAddSeqCst32(&ndead, 1) % KEPT], process);
}

bool tuttiDeadKnown(uint64_t process) {
  for (unsigned i = 0; process != 0 && i < KEPT; i++)
    if (tuttiLoadAcquire(&dead[i]) == process) return true;
  return false;
}

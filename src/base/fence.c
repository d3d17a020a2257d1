#include "base/fence.h"
#include "base/backoff.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/os.h"

#if defined(__SANITIZE_THREAD__)
#define TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TSAN 1
#endif
#endif
#ifndef TSAN
#define TSAN 0
#endif

#define LATE_US 20000
#define TRIES   100 /* where it has no memory for a moment */

enum { UNKNOWN, ASKED, WORKS, REFUSED };

static tuttiAtomic32 state;
static pthread_t asker;
static bool asks; /* there is such a thread, to be joined */

static long callKernel(int command) {
  return syscall(SYS_membarrier, command, 0, 0);
}

static long (*membarrier)(int command) = callKernel;

static bool enlist(void) {
  return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
}

static void *ask(void *unused) {
  tuttiStoreRelease32(&state, !TSAN && enlist() ? WORKS : REFUSED);
  return unused;
}

void tuttiFenceAsk(void) {
  if (TSAN || !tuttiCompareExchange32(&state, UNKNOWN, ASKED)) return;
  asks = tuttiThreadStart(&asker, "tutti-fence", ask, NULL) == tuttiSuccess;
  if (!asks) ask(NULL);
}

/* The library may be unloaded now, or the process ends. A forked child does not have the thread. */
__attribute__((destructor)) static void joinAsker(void) {
  if (asks && !tuttiForked()) pthread_join(asker, NULL);
}

bool tuttiFenceWorks(void) {
  if (tuttiLoadAcquire32(&state) == UNKNOWN && tuttiCompareExchange32(&state, UNKNOWN, ASKED))
    ask(NULL);
  return tuttiLoadAcquire32(&state) == WORKS;
}

/* The call is a full fence of its caller too. */
void tuttiFenceHeavy(void) {
  for (int tries = 0; tries < TRIES; tries++) {
    if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return;
    if (errno == ENOMEM)
      tuttiNap(1);
    else if (errno != EPERM || !enlist())
      break;
  }
  /* The kernel has promised it; but a filter of system calls may have come since. No core keeps a
   * store to itself for so long. */
  tuttiStoreRelease32(&state, REFUSED);
  tuttiNap(LATE_US);
}

void tuttiFenceReplace(long (*stand)(int command)) {
  membarrier = stand ? stand : callKernel;
  tuttiStoreRelease32(&state, UNKNOWN);
}

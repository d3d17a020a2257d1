#include "comm/muster.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/os.h"

#define NAP_NS 100000

/* Of one communicator, as long as somebody waits there. */
typedef struct muster {
  struct muster *next;
  uint64_t commHash;
  uint8_t secret[16];
  int come, waiting;
} muster;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static muster *musters;

static tuttiResult_t come(const tuttiCommView *v, muster **out) {
  TUTTI_LOCKED(&lock);
  muster *m = musters;
  while (m && (m->commHash != v->commHash || memcmp(m->secret, v->secret, sizeof m->secret) != 0))
    m = m->next;
  if (!m) {
    TUTTI_NEW(m, 1, "the ranks of this process", NULL);
    m->commHash = v->commHash;
    memcpy(m->secret, v->secret, sizeof m->secret);
    TUTTI_LINK(musters, m);
  }
  m->come++;
  m->waiting++;
  *out = m;
  return tuttiSuccess;
}

static int howMany(const muster *m) {
  TUTTI_LOCKED(&lock);
  return m->come;
}

static void leave(muster *m) {
  TUTTI_LOCKED(&lock);
  if (--m->waiting > 0) return;
  TUTTI_UNLINK(musters, m);
  tuttiFree(m);
}

static tuttiResult_t await(const tuttiCommView *v, const muster *m, int ranks, tuttiWait wait) {
  const struct timespec nap = {.tv_nsec = NAP_NS};
  for (int n; (n = howMany(m)) < ranks; nanosleep(&nap, NULL)) {
    uint32_t failed = wait.failed ? tuttiLoadAcquire32(wait.failed) : 0;
    if (failed) return tuttiErrorAdopt((tuttiResult_t)failed, wait.why ? wait.why : "it has ended");
    if (tuttiNow() >= wait.deadline)
      return TUTTI_FAIL(tuttiTimeout,
                        "rank %d: of the %d ranks in its process only %d have ended their init in "
                        "time; see the log of the others, or raise TUTTI_TIMEOUT",
                        v->rank, ranks, n);
  }
  return tuttiSuccess;
}

tuttiResult_t tuttiMusterWait(const tuttiCommView *v, tuttiWait wait) {
  int ranks = 0;
  muster *m;
  for (int r = 0; r < v->nranks; r++)
    ranks += v->peers[r].process == v->peers[v->rank].process;
  if (ranks == 1) return tuttiSuccess;
  TUTTI_TRY(come(v, &m));
  tuttiResult_t result = await(v, m, ranks, wait);
  leave(m);
  return result;
}

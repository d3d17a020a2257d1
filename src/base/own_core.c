#include "base/own_core.h"

#include <sched.h>
#include <string.h>

#include "base/os.h"
#include "base/settings.h"

#define SWITCH_NS   1000u          /* a yield to nobody takes less; to another thread, twice that */
#define IN_ROW      16u            /* such yields in a row */
#define TRIED       10             /* yields to nobody that tell that a core is free */
#define BUSY_NS     200000u        /* whoever keeps a core for so long computes: no more is tried */
#define FOUND_NS    (1 * TUTTI_MS) /* from one search to the next, at least */
#define VAIN_MIN_NS (5 * TUTTI_MS) /* the same if it was in vain; twice that if it is again */
#define VAIN_MAX_NS (10000 * TUTTI_MS)

static __thread struct {
  uint64_t next;     /* no search before */
  uint64_t vain;     /* what was waited after the last one; 0: that found a core */
  uint64_t switches; /* when the row began */
  uint32_t row;
} seek;

typedef enum { CORE_FREE, CORE_SHARED, CORE_BUSY } coreUse;

/* Of the core that this thread is on. Who has just come may be owed some time before others. */
static coreUse tryCore(void) {
  uint64_t before = tuttiSwitches();
  for (int i = 0; i < TRIED; i++) {
    uint64_t from = tuttiNow();
    sched_yield();
    if (tuttiNow() - from > BUSY_NS) return CORE_BUSY;
    if (tuttiSwitches() != before) return CORE_SHARED;
  }
  return CORE_FREE;
}

static bool moveTo(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  return sched_setaffinity(0, sizeof one, &one) == 0;
}

/* Whatever has become of the cores meanwhile: of all that there are the system takes those that
 * this thread's control group leaves it. */
static void moveFreely(const cpu_set_t *cores) {
  cpu_set_t any;
  memset(&any, 0xff, sizeof any);
  if (sched_setaffinity(0, sizeof *cores, cores) != 0) sched_setaffinity(0, sizeof any, &any);
}

bool tuttiOwnCoreSeek(void) {
  cpu_set_t cores;
  int here = sched_getcpu();
  if (here < 0 || sched_getaffinity(0, sizeof cores, &cores) != 0) return false;
  coreUse use = CORE_SHARED;
  for (int i = 1; i < CPU_SETSIZE && use == CORE_SHARED; i++) {
    int cpu = (here + i) % CPU_SETSIZE;
    if (!CPU_ISSET(cpu, &cores)) continue;
    if (!moveTo(cpu)) break;
    use = tryCore();
  }
  moveFreely(&cores);
  return use == CORE_FREE;
}

void tuttiOwnCoreYielded(uint64_t from, uint64_t to) {
  if (to - from < SWITCH_NS) seek.row = 0;
  if (to - from < SWITCH_NS || to < seek.next) return;
  if (seek.row++ == 0) seek.switches = tuttiSwitches();
  if (seek.row <= IN_ROW) return;
  seek.row = 0;
  if (!tuttiSettingInt(TUTTI_SETTING_CORE_SEARCH)) return;
  if (tuttiSwitches() - seek.switches < IN_ROW) return; /* the machine itself is slow */
  uint64_t more = seek.vain ? 2 * seek.vain : VAIN_MIN_NS;
  seek.vain = tuttiOwnCoreSeek() ? 0 : more < VAIN_MAX_NS ? more : VAIN_MAX_NS;
  seek.next = to + (seek.vain ? seek.vain : FOUND_NS);
}

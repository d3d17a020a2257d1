#include "base/backoff.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"
#include "base/own_core.h"

/* Longer than a peer needs that is running, so that only a waiter with nothing to come soon pays
 * for the wake-up from a nap. */
#define YIELD_NS 300000u
#define NAP_US   50

/* A yield among waiters takes microseconds; one that somebody uses to compute takes his time slice,
 * of milliseconds. Two of these with little between them are no chance: the next will be long, too.
 * After a while it is tried again; after a longer one, if that was in vain. But a virtual machine
 * may lose the core in a yield as at any other time, and then nobody here has it: such yields tell
 * nothing of the next one. */
#define LONG_YIELD_NS 200000u
#define BETWEEN_NS    (1 * TUTTI_MS)
#define KEPT_MIN_NS   (10 * TUTTI_MS)
#define KEPT_MAX_NS   (1000 * TUTTI_MS)
#define SPINS_KEPT    100 /* meanwhile: the peer may be behind somebody, too, and on this core */

static __thread struct {
  uint64_t longEnded; /* the last long yield */
  uint64_t from;      /* no yields before this */
  uint64_t kept;      /* how long there were none */
  uint64_t switches;  /* to other threads, by the last of all that took long */
} yields;

/* Another thread has had this one's core since the last time that this was asked. */
static bool wasSwitched(void) {
  uint64_t switches = tuttiSwitches();
  bool more = switches != yields.switches;
  yields.switches = switches;
  return more;
}

static void yield(uint64_t now, bool coreEach) {
  sched_yield();
  uint64_t back = tuttiNow();
  if (coreEach) tuttiOwnCoreYielded(now, back);
  if (back - now < LONG_YIELD_NS || !wasSwitched()) return;
  if (now - yields.longEnded < BETWEEN_NS) {
    yields.kept = now - yields.from < yields.kept ? yields.kept * 2 : KEPT_MIN_NS;
    if (yields.kept > KEPT_MAX_NS) yields.kept = KEPT_MAX_NS;
    yields.from = back + yields.kept;
  }
  yields.longEnded = back;
}

uint32_t tuttiBackoffStep(tuttiBackoff *b) {
  if (b->round < b->spins) {
    tuttiCpuRelax();
    if (++b->round == SPINS_KEPT && tuttiNow() < yields.from) b->round = b->spins;
    return 0;
  }
  uint64_t now = tuttiNow();
  if (b->round == b->spins) {
    b->round++;
    b->napFrom = now + YIELD_NS;
  }
  if (now >= b->napFrom || now < yields.from) return b->napUs > NAP_US ? b->napUs : NAP_US;
  yield(now, b->spins > 0);
  return 0;
}

static struct timespec span(uint32_t us) {
  return (struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
}

void tuttiNap(uint32_t us) {
  struct timespec time = span(us);
  nanosleep(&time, NULL);
}

void tuttiBackoffPause(tuttiBackoff *b) {
  uint32_t us = tuttiBackoffStep(b);
  if (us > 0) tuttiNap(us);
}

void tuttiBellSet(tuttiAtomic32 *bell) {
  tuttiStoreSeqCst32(bell, 1);
}

void tuttiBellUnset(tuttiAtomic32 *bell) {
  tuttiStoreRelease32(bell, 0);
}

void tuttiBellSleep(tuttiAtomic32 *bell, uint32_t us) {
  struct timespec time = span(us);
  syscall(SYS_futex, &bell->v, FUTEX_WAIT, 1, &time, NULL, 0);
}

void tuttiBellRing(tuttiAtomic32 *bell) {
  tuttiStoreRelease32(bell, 0);
  syscall(SYS_futex, &bell->v, FUTEX_WAKE, 1, NULL, NULL, 0);
}

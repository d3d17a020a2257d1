#include "base/ticks.h"

#include <pthread.h>
#include <string.h>

#define CLOCK_SOURCE "/sys/devices/system/clocksource/clocksource0/current_clocksource"

/* What the kernel calls the counter. It makes it its clock only if it has one rate, never stops and
 * is the same on all cores; other names, as those of hypervisors' clocks, promise less. */
#if defined(__x86_64__)
#define COUNTER "tsc"
#elif defined(__aarch64__)
#define COUNTER "arch_sys_counter"
#else
#define COUNTER "none that is known here"
#endif

bool tuttiTicksOfCounter;

static tuttiMoment started;
static pthread_once_t startOnce = PTHREAD_ONCE_INIT;

/* Both clocks at once: of some tries the one in which the least time passed in between, so that an
 * interrupt does not matter. */
static tuttiMoment readBoth(void) {
  tuttiMoment best = {0};
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < 8; i++) {
    uint64_t before = tuttiTicks(), ns = tuttiNow(), passed = tuttiTicks() - before;
    if (passed >= least) continue;
    least = passed;
    best = (tuttiMoment){.ticks = before + passed / 2, .ns = ns};
  }
  return best;
}

static void start(void) {
  char source[64];
  tuttiTicksOfCounter =
      tuttiReadFile(CLOCK_SOURCE, source, sizeof source) && strcmp(source, COUNTER) == 0;
  started = readBoth();
}

void tuttiTicksStart(void) {
  pthread_once(&startOnce, start);
}

tuttiTickScale tuttiTickScaleOf(tuttiMoment first, tuttiMoment last) {
  tuttiTickScale scale = {.last = last};
  if (last.ticks > first.ticks)
    scale.nsPerTick = (double)(int64_t)(last.ns - first.ns) / (double)(last.ticks - first.ticks);
  return scale;
}

tuttiTickScale tuttiTickScaleNow(void) {
  return tuttiTickScaleOf(started, readBoth());
}

uint64_t tuttiTicksToNs(const tuttiTickScale *scale, uint64_t ticks) {
  /* Differences are small enough for a double to hold each nanosecond of some months. */
  double ns = (double)(int64_t)(ticks - scale->last.ticks) * scale->nsPerTick;
  return scale->last.ns + (uint64_t)(int64_t)ns;
}

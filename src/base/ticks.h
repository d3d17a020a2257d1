/* Stamps of time for what is itself not much longer than a call of tuttiNow().
 *
 * A tick is one of the counter that the kernel's own clock is made of: the time stamp counter of
 * x86-64, the virtual counter of aarch64. It is read without a fence, so what is around it goes on
 * meanwhile, while tuttiNow() first waits for all that has begun. The price is that a stamp may be
 * some tens of nanoseconds early, by what the processor did ahead. Where the kernel does not trust
 * the counter, or it cannot be known, ticks are those of tuttiNow(). */
#ifndef TUTTI_BASE_TICKS_H_
#define TUTTI_BASE_TICKS_H_

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "base/os.h"

__BEGIN_DECLS

/* Decides what a tick is and notes the moment, once for the process; any thread, before any other
 * call here. */
void tuttiTicksStart(void);
/* Of this file: ticks are the counter's. Does not change after tuttiTicksStart. */
extern bool tuttiTicksOfCounter;

static inline uint64_t tuttiTicks(void) {
#if defined(__x86_64__)
  if (tuttiTicksOfCounter) return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  if (tuttiTicksOfCounter) {
    uint64_t ticks;
    __asm__ __volatile__("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
  }
#endif
  return tuttiNow();
}

/* One moment, in ticks and on the tuttiNow() clock. */
typedef struct {
  uint64_t ticks, ns;
} tuttiMoment;

/* How ticks become values of the tuttiNow() clock: by the straight line through two moments. */
typedef struct {
  tuttiMoment last;
  double nsPerTick;
} tuttiTickScale;

/* A counter that did not advance from `first` to `last` tells nothing: all is `last` then. */
tuttiTickScale tuttiTickScaleOf(tuttiMoment first, tuttiMoment last);
/* From the start until now. Stamps between the two are as exact as the two are, some tens of
 * nanoseconds, but for what the kernel has changed of its clock's rate meanwhile (NTP). */
tuttiTickScale tuttiTickScaleNow(void);
/* Keeps the order of stamps that one scale converts. */
uint64_t tuttiTicksToNs(const tuttiTickScale *scale, uint64_t ticks);

__END_DECLS

#endif

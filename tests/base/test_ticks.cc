#include "base/ticks.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace {

constexpr uint64_t kSecond = 1000000000;

int64_t apart(uint64_t a, uint64_t b) {
  return std::llabs((int64_t)(a - b));
}

/* Counters of 25 MHz to 5 GHz, over a second, and over 100 days after which the last hour is asked
 * for: each stamp is right to the tick and the nanosecond. */
TEST(Ticks, BecomeNanosecondsAtAnyRate) {
  for (uint64_t hz :
       std::vector<uint64_t>{25000000, 100000000, 1000000000, 2596125000, 4999999999}) {
    for (uint64_t seconds : {1, 100 * 86400}) {
      tuttiMoment first = {uint64_t{1} << 40, 7 * kSecond};
      tuttiMoment last = {first.ticks + hz * seconds, first.ns + kSecond * seconds};
      tuttiTickScale scale = tuttiTickScaleOf(first, last);
      int64_t tick = (int64_t)(kSecond / hz) + 1;
      for (uint64_t part = 0; part <= 8; part++) {
        uint64_t span = seconds < 3600 ? seconds : 3600;
        uint64_t ticks = last.ticks - hz * span * part / 8;
        uint64_t ns = last.ns - kSecond * span * part / 8;
        EXPECT_LE(apart(tuttiTicksToNs(&scale, ticks), ns), tick) << hz << " Hz, part " << part;
      }
      EXPECT_LE(apart(tuttiTicksToNs(&scale, last.ticks + hz / 1000), last.ns + kSecond / 1000),
                tick)
          << "taken while the record was copied";
    }
  }
}

TEST(Ticks, ACounterThatWentBackTellsNothing) {
  tuttiMoment first = {1000, 5 * kSecond}, last = {1000, 9 * kSecond};
  tuttiTickScale stands = tuttiTickScaleOf(first, last);
  EXPECT_EQ(tuttiTicksToNs(&stands, 900), last.ns);
  last.ticks = 10;
  tuttiTickScale back = tuttiTickScaleOf(first, last);
  EXPECT_EQ(tuttiTicksToNs(&back, 1000), last.ns);
}

/* Whatever a tick is here. Between two looks at the clock there may be any time, so a slow machine
 * fails nothing. */
TEST(Ticks, StampsAreWhereTheClockWas) {
  constexpr uint64_t kExact = 100000; /* ns */
  struct Stamp {
    uint64_t before, ticks, after;
  };
  tuttiTicksStart();
  std::vector<Stamp> stamps;
  for (int i = 0; i < 50; i++) {
    uint64_t before = tuttiNow(), ticks = tuttiTicks();
    stamps.push_back({before, ticks, tuttiNow()});
    usleep(2000);
  }
  tuttiTickScale scale = tuttiTickScaleNow();
  for (const Stamp &s : stamps) {
    uint64_t ns = tuttiTicksToNs(&scale, s.ticks);
    EXPECT_GE(ns + kExact, s.before);
    EXPECT_LE(ns, s.after + kExact);
  }
}

} // namespace

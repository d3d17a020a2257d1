/* What a connection's meter makes of the marks that its endpoint sets. */
#include <gtest/gtest.h>

#include "transport/meter.h"

namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kMs = 1000000;

/* Marks of a connection that gets 1 MiB in each of so many stretches. */
class Meter : public testing::Test {
protected:
  void stretch(uint64_t ms, uint64_t bytes = kMiB, uint64_t others = 0) {
    tuttiMeterMark(&meter, now, mine, all);
    now += ms * kMs;
    mine += bytes;
    all += bytes + others;
    tuttiMeterMark(&meter, now, mine, all);
    tuttiMeterBreak(&meter);
  }

  tuttiMeter meter = {};
  uint64_t now = 5 * kMs, mine = 123, all = 456;
  uint32_t rate = 0, allRate = 0;
};

TEST_F(Meter, SaysNothingOfLittle) {
  EXPECT_FALSE(tuttiMeterRate(&meter, &rate, &allRate));
  for (uint32_t i = 0; i + 1 < TUTTI_METER_LEAST; i++)
    stretch(10);
  EXPECT_FALSE(tuttiMeterRate(&meter, &rate, &allRate));
  stretch(10, kMiB - 1);
  EXPECT_FALSE(tuttiMeterRate(&meter, &rate, &allRate)) << "a byte is missing";
  stretch(10, 1);
  EXPECT_TRUE(tuttiMeterRate(&meter, &rate, &allRate));
}

TEST_F(Meter, CountsNoTimeBetweenStretches) {
  for (int i = 0; i < 8; i++) {
    stretch(10, kMiB / 2);
    now += 1000 * kMs;
    mine += kMiB;
    all += kMiB;
  }
  ASSERT_TRUE(tuttiMeterRate(&meter, &rate, &allRate));
  EXPECT_EQ(rate, kMiB / 20); /* bytes per ms are kB/s */
  EXPECT_EQ(allRate, rate);
}

TEST_F(Meter, AMarkEndsOneStretchAndBeginsTheNext) {
  for (int i = 0; i < 9; i++) {
    tuttiMeterMark(&meter, now, mine, all);
    now += 10 * kMs;
    mine += kMiB;
    all += 3 * kMiB;
  }
  ASSERT_TRUE(tuttiMeterRate(&meter, &rate, &allRate));
  EXPECT_EQ(rate, kMiB / 10);
  EXPECT_EQ(allRate, 3 * kMiB / 10);
}

TEST_F(Meter, TellsTheBestOfTheLastSamples) {
  for (uint32_t i = 0; i < TUTTI_METER_LEAST; i++)
    stretch(i == 1 ? 10 : 100);
  ASSERT_TRUE(tuttiMeterRate(&meter, &rate, &allRate));
  EXPECT_EQ(rate, kMiB / 10) << "the others had no core, say";
  EXPECT_EQ(allRate, kMiB / 10);
  for (uint32_t i = TUTTI_METER_LEAST; i < 2 * TUTTI_METER_SAMPLES; i++)
    stretch(100);
  ASSERT_TRUE(tuttiMeterRate(&meter, &rate, &allRate));
  EXPECT_EQ(rate, kMiB / 10) << "it is one of the last";
  stretch(100);
  ASSERT_TRUE(tuttiMeterRate(&meter, &rate, &allRate));
  EXPECT_EQ(rate, kMiB / 100) << "what is older is forgotten";
  EXPECT_EQ(allRate, kMiB / 100);
}

TEST_F(Meter, KnowsWhatSharesTheNic) {
  for (int i = 0; i < 4; i++)
    stretch(10, kMiB, 6 * kMiB);
  ASSERT_TRUE(tuttiMeterRate(&meter, &rate, &allRate));
  EXPECT_EQ(rate, kMiB / 10);
  EXPECT_EQ(allRate, 7 * kMiB / 10);
}

TEST_F(Meter, RatesBeyondTheirFieldAreTheHighest) {
  for (int i = 0; i < 4; i++)
    stretch(0);
  ASSERT_TRUE(tuttiMeterRate(&meter, &rate, &allRate));
  EXPECT_EQ(rate, UINT32_MAX);
}

} // namespace

#include <chrono>
#include <random>

#include "simulate.h"

namespace {

class Schedules : public testing::TestWithParam<Way> {};

INSTANTIATE_TEST_SUITE_P(Every, Schedules, testing::ValuesIn(allWays()),
                         [](const auto &info) { return nameOf(info.param); });

/* Counts below, at and above the number of ranks; chunks that divide nothing, and that exceed all.
 */
TEST_P(Schedules, EveryNumberOfRanks) {
  std::mt19937 random(1);
  for (int n = 1; n <= 64; n += kSanitized ? 7 : 1) {
    const uint64_t counts[] = {0, 1, static_cast<uint64_t>(n) - 1, static_cast<uint64_t>(n) + 1,
                               1 + random() % (5 * n + 20)};
    for (uint64_t count : counts)
      for (bool inPlace : {false, true}) {
        const int perHost[] = {1, 3, 8, 64};
        tuttiSimulation sim =
            simulationOf(GetParam(), n, perHost[random() % 4], count, 1 + random() % (count + 2));
        sim.root = static_cast<int>(random() % n);
        sim.channel = static_cast<int>(random() % 2);
        sim.inPlace = inPlace;
        sim.seed = random();
        expectGood(sim);
        if (HasFailure()) return;
      }
  }
}

} // namespace

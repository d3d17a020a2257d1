/* Threads that look for a core of their own. They need one that is idle, or busy, so these run
 * alone. */
#include "base/backoff.h"
#include "base/own_core.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/os.h"

namespace {

using std::chrono::steady_clock;

std::vector<int> coresOf(const cpu_set_t &set) {
  std::vector<int> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &set)) cores.push_back(cpu);
  return cores;
}

std::vector<int> cores() {
  cpu_set_t set;
  EXPECT_EQ(0, sched_getaffinity(0, sizeof set, &set));
  return coresOf(set);
}

void runOn(const std::vector<int> &cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cores)
    CPU_SET(cpu, &set);
  EXPECT_EQ(0, sched_setaffinity(0, sizeof set, &set));
}

/* Waits on one core, as a rank would, or computes there. */
class Occupant {
public:
  Occupant(int cpu, bool computes)
      : thread_([this, cpu, computes] {
          runOn({cpu});
          for (there_ = true; !stop_;)
            if (!computes) sched_yield();
        }) {
    while (!there_)
      std::this_thread::yield();
  }
  ~Occupant() {
    stop_ = true;
    thread_.join();
  }
  Occupant(const Occupant &) = delete;
  Occupant &operator=(const Occupant &) = delete;

private:
  std::atomic<bool> there_{false}, stop_{false};
  std::thread thread_;
};

class OwnCore : public testing::Test {
protected:
  void SetUp() override {
    all_ = cores();
    if (all_.size() < 2) GTEST_SKIP() << "needs two cores";
    pair_ = {all_[0], all_[1]};
  }
  void TearDown() override { runOn(all_); }

  /* Whether the search succeeds, of many: other programs have these cores, too, now and then. */
  static bool seeks() {
    for (auto end = steady_clock::now() + std::chrono::seconds(60); steady_clock::now() < end;)
      if (tuttiOwnCoreSeek()) return true;
    return false;
  }

  std::vector<int> all_, pair_;
};

TEST_F(OwnCore, SlowFindsTheIdleOne) {
  Occupant waiter(pair_[0], false);
  runOn({pair_[0]});
  runOn(pair_); /* it stays where it is meanwhile */
  EXPECT_TRUE(seeks());
  EXPECT_EQ(pair_, cores()) << "it may run where it could";
}

TEST_F(OwnCore, SlowLeavesThoseWhoComputeAlone) {
  Occupant waiter(pair_[0], false), worker(pair_[1], true);
  int found = 0; /* now and then the system owes the searcher more time than it yields */
  for (int i = 0; i < 20; i++) {
    runOn({pair_[0]});
    runOn(pair_);
    found += sched_getcpu() == pair_[0] && tuttiOwnCoreSeek();
    EXPECT_EQ(pair_, cores());
  }
  EXPECT_LE(found, 2);
}

TEST_F(OwnCore, SlowStaysWhereItMustBe) {
  Occupant waiter(pair_[0], false);
  runOn({pair_[0]});
  EXPECT_FALSE(tuttiOwnCoreSeek());
  EXPECT_EQ(std::vector<int>{pair_[0]}, cores());
}

/* The same by waiting, which tells of its yields. */
TEST_F(OwnCore, SlowWaitersPart) {
  Occupant waiter(pair_[0], false);
  runOn({pair_[0]});
  runOn(pair_);
  bool parted = false;
  for (auto end = steady_clock::now() + std::chrono::seconds(60);
       !parted && steady_clock::now() < end;) {
    tuttiBackoff backoff = {.spins = 1, .napUs = 0, .round = 0, .napFrom = 0};
    for (int i = 0; i < 100; i++)
      tuttiBackoffPause(&backoff);
    parted = sched_getcpu() != pair_[0];
  }
  EXPECT_TRUE(parted);
  EXPECT_EQ(pair_, cores());
}

} // namespace

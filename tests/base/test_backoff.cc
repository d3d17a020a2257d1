/* How threads wait for each other. */
#include "base/backoff.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "asleep.h"
#include "base/os.h"

namespace {

TEST(Backoff, SpinsThenYieldsThenNaps) {
  tuttiBackoff backoff = {.spins = 100, .napUs = 0, .round = 0, .napFrom = 0};
  for (int i = 0; i < 100; i++)
    tuttiBackoffPause(&backoff);
  EXPECT_EQ(backoff.napFrom, 0u) << "spins ask no clock";
  uint64_t before = tuttiNow();
  tuttiBackoffPause(&backoff);
  EXPECT_GE(backoff.napFrom, before + 300000);
  EXPECT_EQ(backoff.round, 101u);
  while (tuttiNow() < backoff.napFrom)
    tuttiBackoffPause(&backoff);
  uint32_t round = backoff.round;
  before = tuttiNow();
  for (int i = 0; i < 20; i++)
    tuttiBackoffPause(&backoff);
  EXPECT_GE(tuttiNow() - before, 20u * 50000) << "naps last 50 us at least";
  backoff.napUs = 3000;
  before = tuttiNow();
  for (int i = 0; i < 5; i++)
    tuttiBackoffPause(&backoff);
  EXPECT_GE(tuttiNow() - before, 5u * 3000000) << "or as long as it is told";
  EXPECT_EQ(backoff.round, round);
  tuttiBackoffReset(&backoff);
  EXPECT_EQ(backoff.round, 0u);
  EXPECT_EQ(backoff.spins, 100u);
}

/* How many steps there are before the first that says to sleep. */
int stepsBeforeSleep(tuttiBackoff *b, uint32_t spins) {
  int steps = 0;
  tuttiBackoffReset(b);
  b->spins = spins;
  while (tuttiBackoffStep(b) == 0)
    steps++;
  return steps;
}

/* Beside a thread that computes, whoever yields waits for its time slice. So the thread sleeps
 * instead, and hardly spins; it tries to yield again from time to time, and so does this. */
TEST(Backoff, SleepsInsteadOfYieldingToWhoeverComputes) {
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&one);
  for (size_t i = 0; CPU_COUNT(&one) < 1; i++)
    if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
  std::atomic<bool> stop{false};
  auto compute = [&] {
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    while (!stop) {
    }
  };
  auto wait = [&] { /* in a thread of its own: what it learns is of this thread alone */
                    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
                    tuttiBackoff backoff = {.spins = 0, .napUs = 0, .round = 0, .napFrom = 0};
                    bool seen = false;
                    for (uint64_t until = tuttiDeadline(60000); !seen && tuttiNow() < until;)
                      seen = stepsBeforeSleep(&backoff, 0) == 0 &&
                             stepsBeforeSleep(&backoff, 1000) == 100;
                    EXPECT_TRUE(seen);
  };
  std::thread computes(compute), waits(wait);
  waits.join();
  stop = true;
  computes.join();
}

/* As a machine that loses its core for a while, where no other thread gets it. */
void holdUp(int) {
  for (uint64_t until = tuttiNow() + 400000; tuttiNow() < until;) {
  }
}

/* Signals that hold this thread up, again and again. */
struct HeldUp {
  struct sigaction before = {};
  timer_t timer = {};
  HeldUp() {
    struct sigaction action = {};
    action.sa_handler = holdUp;
    EXPECT_EQ(sigaction(SIGUSR1, &action, &before), 0);
    sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGUSR1;
    event._sigev_un._tid = threadId();
    EXPECT_EQ(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
    const itimerspec often = {{0, 600000}, {0, 600000}};
    EXPECT_EQ(timer_settime(timer, 0, &often, nullptr), 0);
  }
  ~HeldUp() {
    timer_delete(timer);
    sigaction(SIGUSR1, &before, nullptr);
  }
};

long switches() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw + usage.ru_nivcsw;
}

/* Yields that took long though nobody else had the core do not end the yielding. */
TEST(Backoff, GoesOnToYieldWhereTheCoreItselfIsSlow) {
  bool alone = false;
  auto wait = [&] {
    const sched_param first = {.sched_priority = 1};
    sched_setscheduler(0, SCHED_FIFO, &first); /* where it may, others do not take the core */
    tuttiBackoff backoff = {.spins = 0, .napUs = 0, .round = 0, .napFrom = 0};
    long before = switches();
    uint64_t end = tuttiNow() + 3000000;
    for (HeldUp held; tuttiNow() < end;)
      stepsBeforeSleep(&backoff, 0);
    int steps = stepsBeforeSleep(&backoff, 0);
    alone = switches() == before;
    EXPECT_TRUE(steps > 0 || !alone); /* the first of them yields, however long that takes */
  };
  for (uint64_t until = tuttiDeadline(20000); !alone && tuttiNow() < until;)
    std::thread(wait).join(); /* each of its own, for the same reason */
  if (!alone) GTEST_SKIP() << "others wanted this core all the time";
}

TEST(Bell, RingEndsTheSleep) {
  tuttiAtomic32 bell = {0};
  const uint32_t minute = 60000000;
  tuttiBellSleep(&bell, minute); /* is not set */
  tuttiBellSet(&bell);
  tuttiBellRing(&bell);
  tuttiBellSleep(&bell, minute); /* has been rung */
  tuttiBellSet(&bell);
  tuttiBellSleep(&bell, 1);
  EXPECT_EQ(bell.v, 1u) << "nobody rang";
  std::atomic<pid_t> sleeper{0};
  std::thread sleeps([&] {
    sleeper = threadId();
    tuttiBellSleep(&bell, minute);
    EXPECT_EQ(tuttiLoadAcquire32(&bell), 0u) << "it slept all the time";
  });
  while (sleeper == 0)
    std::this_thread::yield();
  waitUntilAsleep(sleeper);
  tuttiBellRing(&bell);
  sleeps.join();
  tuttiBellSet(&bell);
  tuttiBellUnset(&bell);
  EXPECT_EQ(bell.v, 0u);
}

} // namespace

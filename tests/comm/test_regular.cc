/* The regular of a communicator, which enters without a locked instruction, against all that must
 * not run beside its calls: the end of the communicator and calls of other threads. */
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <utility>

#include "base/backoff.h"
#include "base/fence.h"
#include "base/os.h"
#include "harness.h"

using testing::AnyOf;
using testing::HasSubstr;

namespace {

const std::map<std::string, std::string> noLog = {{"TUTTI_DEBUG", "NONE"}};

/* No more of a communicator than its handle looks at. */
struct Bare {
  Bare() : c(std::make_unique<tuttiCommunicator>()) {
    c->nranks = 1;
    c->options.blocking = 1;
    snprintf(c->options.name, sizeof c->options.name, "bare");
    tuttiStoreRelease32(&c->state, tuttiCommUsable);
    EXPECT_EQ(tuttiHandleCreate(c.get()), tuttiSuccess);
  }
  ~Bare() {
    if (tuttiHandleLives(c->handle)) retire();
    tuttiHandleFree(c.get());
  }
  void retire() {
    tuttiCommunicator *held;
    EXPECT_EQ(tuttiHandleEnter(c->handle, "test", &held), tuttiSuccess);
    EXPECT_TRUE(tuttiHandleRetire(held));
  }
  std::unique_ptr<tuttiCommunicator> c;
};

/* So often that this thread is the regular then, if no other comes between. */
void becomeRegular(tuttiCommunicator *c) {
  for (uint32_t i = 0; i < TUTTI_REGULAR_CALLS; i++) {
    ASSERT_EQ(tuttiCommOccupy(c), tuttiSuccess);
    tuttiCommVacate(c);
  }
}

bool enters(tuttiComm_t comm) {
  bool inside = tuttiHandleEnterRegular(comm, "test") != nullptr;
  if (inside) tuttiHandleLeaveRegular();
  return inside;
}

void spin(uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    tuttiCpuRelax();
}

class Regular : public testing::Test {
protected:
  void SetUp() override {
    for (uint64_t end = tuttiDeadline(500); !tuttiFenceWorks() && tuttiNow() < end;)
      std::this_thread::yield(); /* another test's communicator may have it asked for */
    if (!tuttiFenceWorks()) GTEST_SKIP() << "the kernel refuses the fence, or ThreadSanitizer runs";
  }
};

TEST_F(Regular, IsWhoHasOccupiedItLongEnough) {
  Bare bare;
  EXPECT_FALSE(enters(bare.c->handle));
  becomeRegular(bare.c.get());
  EXPECT_TRUE(enters(bare.c->handle));
  ASSERT_NE(tuttiHandleEnterRegular(bare.c->handle, "test"), nullptr);
  EXPECT_TRUE(tuttiCommInUse(bare.c.get()));
  EXPECT_FALSE(enters(bare.c->handle)) << "it is inside already";
  std::thread([&] {
    EXPECT_TRUE(tuttiCommInUse(bare.c.get()));
    EXPECT_EQ(tuttiCommOccupy(bare.c.get()), tuttiInvalidUsage);
    EXPECT_THAT(tuttiErrorText(), HasSubstr("is inside a call of communicator bare"));
    EXPECT_FALSE(enters(bare.c->handle));
  }).join();
  tuttiHandleLeaveRegular();
  EXPECT_FALSE(tuttiCommInUse(bare.c.get()));
  EXPECT_TRUE(enters(bare.c->handle)) << "the other thread was refused";
  std::thread([&] {
    EXPECT_EQ(tuttiCommOccupy(bare.c.get()), tuttiSuccess);
    tuttiCommVacate(bare.c.get());
  }).join();
  EXPECT_FALSE(enters(bare.c->handle)) << "the other thread was let in";
  becomeRegular(bare.c.get());
  EXPECT_TRUE(enters(bare.c->handle));
  bare.retire();
  EXPECT_FALSE(enters(bare.c->handle));
}

/* One record per thread, of which there are 256: they come back. */
TEST_F(Regular, CanBeAnyNumberOfThreads) {
  Bare bare;
  for (int i = 0; i < 600; i++)
    std::thread([&] {
      becomeRegular(bare.c.get());
      EXPECT_TRUE(enters(bare.c->handle)) << i;
    }).join();
}

TEST_F(Regular, IsNoneOfANonBlockingCommunicator) {
  Bare bare;
  bare.c->options.blocking = 0;
  becomeRegular(bare.c.get());
  EXPECT_FALSE(enters(bare.c->handle));
}

/* Whoever is inside when the handle is retired is waited for; whoever comes then is not let in. */
TEST_F(Regular, IsNotInsideWhenTheEndHasCome) {
  uint32_t seed = 1, late = 0, calls = 0;
  for (uint64_t end = tuttiDeadline(5000); tuttiNow() < end;) {
    Bare bare;
    std::atomic<bool> regular{false}, gone{false};
    std::thread loop([&] {
      becomeRegular(bare.c.get());
      regular = true;
      while (tuttiHandleEnterRegular(bare.c->handle, "test")) {
        for (int i = 0; i < 30; i++)
          late += gone.load(std::memory_order_relaxed);
        calls++;
        tuttiHandleLeaveRegular();
      }
    });
    while (!regular)
      std::this_thread::yield();
    seed = seed * 1664525u + 1013904223u;
    spin(seed >> 24);
    bare.retire();
    gone = true;
    loop.join();
  }
  EXPECT_EQ(late, 0u);
  EXPECT_GT(calls, 0u);
}

std::atomic<int> fences{0};

long countFence(int command) {
  fences += command == MEMBARRIER_CMD_PRIVATE_EXPEDITED;
  return syscall(SYS_membarrier, command, 0, 0);
}

/* What the test before finds by chance alone: the store before the look may be in the core still.
 */
TEST_F(Regular, IsFencedFromWhoeverEndsIt) {
  tuttiFenceReplace(countFence);
  ASSERT_TRUE(tuttiFenceWorks());
  for (bool itself : {false, true}) {
    Bare bare;
    becomeRegular(bare.c.get());
    ASSERT_TRUE(enters(bare.c->handle));
    fences = 0;
    if (itself)
      bare.retire();
    else
      std::thread([&] { bare.retire(); }).join();
    EXPECT_EQ(fences, itself ? 0 : 1);
  }
  tuttiFenceReplace(nullptr);
}

/* For each of two threads: what it calls, and whether it was alone inside. */
class Alone {
public:
  explicit Alone(tuttiCommunicator *c) : c_(c) {}
  void call(int self) {
    if (tuttiHandleEnterRegular(c_->handle, "test")) {
      look(self);
      regular++;
      tuttiHandleLeaveRegular();
      return;
    }
    tuttiCommunicator *held;
    ASSERT_EQ(tuttiHandleEnter(c_->handle, "test", &held), tuttiSuccess);
    if (tuttiCommOccupy(held) == tuttiSuccess) {
      look(self);
      occupied++;
      tuttiCommVacate(held);
    } else {
      refused++;
    }
    tuttiHandleLeave(held);
  }
  std::atomic<uint32_t> regular{0}, occupied{0}, refused{0}, together{0};

private:
  void look(int self) {
    who_.store(self, std::memory_order_relaxed);
    for (int i = 0; i < 30; i++)
      if (who_.load(std::memory_order_relaxed) != self) {
        together++;
        return;
      }
  }
  tuttiCommunicator *c_;
  std::atomic<int> who_{0};
};

void callFromTwoThreads(Alone *alone, int seconds) {
  std::atomic<bool> stop{false};
  std::thread loop([&] {
    while (!stop)
      alone->call(1);
  });
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  for (uint32_t seed = 1; std::chrono::steady_clock::now() < end;) {
    alone->call(2);
    seed = seed * 1664525u + 1013904223u;
    spin(seed >> 18);
  }
  stop = true;
  loop.join();
}

TEST_F(Regular, IsAloneInsideWhenAnotherThreadComes) {
  Settings quiet(noLog);
  Bare bare;
  Alone alone(bare.c.get());
  callFromTwoThreads(&alone, 3);
  EXPECT_EQ(alone.together, 0u);
  EXPECT_GT(alone.regular, 0u);
  EXPECT_GT(alone.occupied, 0u);
}

/* Calls as fast as can be on both ranks, while others call and end them: no call hangs, and none
 * uses what is gone (AddressSanitizer would tell). */
void callsUntilTheEnd(bool destroys) {
  Settings quiet(noLog);
  for (int round = 0; round < 10; round++) {
    Ranks ranks(2);
    ASSERT_TRUE(ranks.ok());
    std::vector<tuttiComm_t> comms = {std::exchange(ranks.comms[0], nullptr),
                                      std::exchange(ranks.comms[1], nullptr)};
    std::atomic<int> calls{0};
    auto loop = [&](int r) {
      float in = 1, out = 0;
      tuttiResult_t result = tuttiSuccess;
      /* A call that another thread's keeps out is made again. */
      while (result == tuttiSuccess ||
             (result == tuttiInvalidUsage && strstr(tuttiErrorText(), "is inside a call"))) {
        result = tuttiAllReduce(&in, &out, 1, tuttiFloat32, tuttiSum, comms[r], nullptr);
        if (result != tuttiSuccess) continue;
        EXPECT_EQ(out, 2);
        calls++;
      }
      EXPECT_THAT(result, AnyOf(tuttiInvalidUsage, tuttiInvalidArgument, tuttiRemoteError));
    };
    std::thread first(loop, 0), second(loop, 1);
    while (calls < 2000)
      std::this_thread::yield();
    for (int i = 0; i < 10; i++) { /* in vain, or in place of one of the loop's calls */
      float in = 1, out = 0;
      tuttiResult_t result =
          tuttiAllReduce(&in, &out, 1, tuttiFloat32, tuttiSum, comms[0], nullptr);
      EXPECT_THAT(result, AnyOf(tuttiSuccess, tuttiInvalidUsage));
      spin(1000);
    }
    EXPECT_EQ(tuttiCommAbort(comms[0]), tuttiSuccess);
    if (destroys) {
      EXPECT_THAT(tuttiCommDestroy(comms[1]), AnyOf(tuttiSuccess, tuttiRemoteError));
    } else {
      EXPECT_EQ(tuttiCommAbort(comms[1]), tuttiSuccess);
    }
    first.join();
    second.join();
  }
}

TEST(Calls, EndByAnAbort) {
  callsUntilTheEnd(false);
}

TEST(Calls, EndByADestroy) {
  callsUntilTheEnd(true);
}

TEST_F(Regular, IsRefusedInAForkedChild) {
  Ranks ranks(1);
  ASSERT_TRUE(ranks.ok());
  float in = 1, out = 0;
  auto call = [&] {
    return tuttiAllReduce(&in, &out, 1, tuttiFloat32, tuttiSum, ranks.comms[0], nullptr);
  };
  for (uint32_t i = 0; i <= TUTTI_REGULAR_CALLS; i++)
    ASSERT_EQ(call(), tuttiSuccess);
  ASSERT_TRUE(enters(ranks.comms[0]));
  pid_t child = fork();
  if (child == 0) _exit(call());
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), tuttiInvalidUsage);
  EXPECT_EQ(call(), tuttiSuccess);
}

std::atomic<bool> refuses{false};

long mayRefuse(int) {
  errno = ENOSYS;
  return refuses ? -1 : 0;
}

/* Without the kernel's part of the fence all calls count themselves, as they did before. */
TEST(Refused, FenceLeavesNoRegular) {
  refuses = true;
  tuttiFenceReplace(mayRefuse);
  ASSERT_FALSE(tuttiFenceWorks());
  {
    Bare bare;
    becomeRegular(bare.c.get());
    EXPECT_FALSE(enters(bare.c->handle));
    Settings quiet(noLog);
    Alone alone(bare.c.get());
    callFromTwoThreads(&alone, 1);
    EXPECT_EQ(alone.together, 0u);
    EXPECT_EQ(alone.regular, 0u);
    EXPECT_GT(alone.occupied, 0u);
  }
  callsUntilTheEnd(false);
  tuttiFenceReplace(nullptr);
}

/* One that is refused when there is a regular: it is the last. */
TEST_F(Regular, IsTheLastWhenTheFenceIsRefusedLate) {
  refuses = false;
  tuttiFenceReplace(mayRefuse);
  ASSERT_TRUE(tuttiFenceWorks());
  Bare bare;
  becomeRegular(bare.c.get());
  ASSERT_TRUE(enters(bare.c->handle));
  refuses = true;
  std::thread([&] {
    EXPECT_EQ(tuttiCommOccupy(bare.c.get()), tuttiSuccess);
    tuttiCommVacate(bare.c.get());
  }).join();
  EXPECT_FALSE(enters(bare.c->handle));
  becomeRegular(bare.c.get());
  EXPECT_FALSE(enters(bare.c->handle));
  tuttiFenceReplace(nullptr);
}

} // namespace

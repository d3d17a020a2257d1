#include "proxy/proxy.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "asleep.h"
#include "base/atomic.h"
#include "base/backoff.h"
#include "base/error.h"
#include "base/os.h"

namespace {

constexpr uint64_t kSecond = 1000000000ull;

std::atomic<int> naps;   /* that threads have begun */
std::atomic<bool> looks; /* the thread may look twice a second: that would hide a lost wake-up */

/* True once `done` does, at the latest after a minute. */
bool Eventually(const std::function<bool()> &done) {
  for (uint64_t end = tuttiNow() + 60 * kSecond; tuttiNow() < end; usleep(200))
    if (done()) return true;
  return done();
}

struct Fixture : testing::Test {
  tuttiProxy *proxy = nullptr;
  std::atomic<int> failures{0};
  std::string text;

  static void Fail(void *ctx, tuttiResult_t code, const char *text) {
    Fixture *f = static_cast<Fixture *>(ctx);
    EXPECT_EQ(tuttiRemoteError, code);
    f->text = text;
    f->failures++;
  }
  void SetUp() override {
    looks = false;
    ASSERT_EQ(tuttiSuccess, tuttiProxyCreate(&proxy, Fail, this));
  }
  void TearDown() override { tuttiProxyDestroy(proxy); }
};
using Proxy = Fixture;

/* An operation made of a function. */
struct Op {
  std::function<tuttiProxyState(tuttiProxyTurn *)> advance;
  std::atomic<int> turns{0};
  std::atomic<bool> closed{false}, inside{false};

  tuttiProxyOp Row() {
    return {[](void *self, tuttiProxyTurn *turn) {
              Op *op = static_cast<Op *>(self);
              op->inside = true;
              tuttiProxyState s = op->advance(turn);
              op->turns++;
              op->inside = false;
              return s;
            },
            [](void *self) { static_cast<Op *>(self)->closed = true; },
            this,
            false,
            tuttiProxyNothingToHalt,
            tuttiProxyNothingToTell};
  }
  void Add(tuttiProxy *p) {
    tuttiProxyOp row = Row();
    ASSERT_EQ(tuttiSuccess, tuttiProxyAdd(p, &row)) << tuttiErrorText();
  }
};

TEST_F(Proxy, CallsUntilNothingMovesThenSleeps) {
  Op op;
  op.advance = [&](tuttiProxyTurn *) {
    return op.turns < 10 ? TUTTI_PROXY_MOVED : TUTTI_PROXY_IDLE;
  };
  op.Add(proxy);
  EXPECT_TRUE(Eventually([&] { return op.turns >= 11; }));
  int before = naps;
  tuttiProxyKick(proxy); /* it sleeps, or is about to */
  EXPECT_TRUE(Eventually([&] { return naps > before; })) << "calls an idle operation for ever";
  EXPECT_LE(op.turns, 14) << "the thread goes on calling an idle operation";
  tuttiProxyRemove(proxy, &op);
  EXPECT_TRUE(op.closed);
}

/* For what no descriptor tells: a device gives up on a message that nobody waits for. */
TEST_F(Proxy, TheThreadLooksNowAndThen) {
  looks = true;
  Op op;
  op.advance = [](tuttiProxyTurn *) { return TUTTI_PROXY_IDLE; };
  op.Add(proxy);
  EXPECT_TRUE(Eventually([&] { return op.turns >= 5; }));
  tuttiProxyRemove(proxy, &op);
}

TEST_F(Proxy, WhatFailedIsNotCalledAgain) {
  Op failed;
  failed.advance = [](tuttiProxyTurn *turn) {
    turn->result = TUTTI_FAIL(tuttiRemoteError, "rank 7 is gone");
    return TUTTI_PROXY_FAILED;
  };
  failed.Add(proxy);
  EXPECT_TRUE(Eventually([&] { return failures == 1; }));
  for (int i = 0; i < 100; i++) {
    tuttiProxyKick(proxy);
    tuttiProxyRun(proxy);
  }
  EXPECT_EQ(1, failed.turns);
  EXPECT_EQ(1, failures);
  EXPECT_NE(std::string::npos, text.find("rank 7 is gone"));
  tuttiProxyRemove(proxy, &failed);
}

TEST_F(Proxy, WakesByTheClock) {
  Op op;
  std::atomic<uint64_t> due{0};
  op.advance = [&](tuttiProxyTurn *turn) {
    if (!due) due = tuttiNow() + kSecond / 20;
    if (tuttiNow() >= due) return TUTTI_PROXY_IDLE;
    if (due < turn->wake) turn->wake = due;
    return TUTTI_PROXY_WAITING;
  };
  op.Add(proxy);
  EXPECT_TRUE(Eventually([&] { return due && tuttiNow() > due + kSecond / 100; }));
  EXPECT_TRUE(Eventually([&] { return op.turns >= 2; }));
  EXPECT_LE(op.turns, 10) << "waiting for the clock must not spin";
  tuttiProxyRemove(proxy, &op);
}

/* ---- the way to sleep -------------------------------------------------------------------------
 * The thread looks, finds nothing, and goes to sleep. A test does something at one place of this
 * way, while the thread stands there, and then waits for what it did to be noticed. */

enum Place {
  kInAPass,      /* it has looked already, and is still in its pass */
  kBehindAPass,  /* it has let go of the lock, and has not said that it sleeps */
  kBeforeItsNap, /* it has said that it sleeps, and is about to call ppoll(2) */
  kAsleep,       /* it has called it, or is just about to */
};

class WayToSleep : public testing::TestWithParam<Place> {
public:
  /* Of the one that runs. */
  static WayToSleep *now;
  /* A thread is about to nap. */
  void Nap() {
    if (GetParam() == kBeforeItsNap) Stand();
  }
  /* A thread has unlocked a mutex. */
  void Unlocked() {
    if (GetParam() == kBehindAPass && std::exchange(passes, false)) Stand();
  }

protected:
  void SetUp() override {
    looks = false;
    now = this;
    ASSERT_EQ(tuttiSuccess, tuttiProxyCreate(&proxy, Fixture::Fail, nullptr));
    tester = std::this_thread::get_id();
    op.advance = [this](tuttiProxyTurn *turn) { return Advance(turn); };
    row = op.Row();
  }
  void TearDown() override {
    act = false;
    if (proxy) tuttiProxyRemove(proxy, &op);
    tuttiProxyDestroy(proxy);
    now = nullptr;
  }

  /* Starts the thread and calls `what` while it stands at the place; it goes on behind that. */
  void There(const std::function<void()> &what) {
    act = GetParam() != kAsleep;
    int before = naps;
    ASSERT_EQ(tuttiSuccess, tuttiProxyAdd(proxy, &row)) << tuttiErrorText();
    ASSERT_TRUE(Eventually([&] { return act ? standing.load() : naps > before; })) << "not there";
    what();
    act = standing = false;
  }

  /* What the proxy has to do: serve the last that was wanted, not before it is due. */
  tuttiProxyState Advance(tuttiProxyTurn *turn) {
    uint64_t want = tuttiLoadAcquire(&wanted), at = tuttiLoadAcquire(&due);
    bool mine = std::this_thread::get_id() == tester;
    if (!mine && GetParam() == kInAPass) Stand();
    if (!mine) passes = true;
    if (want == tuttiLoadAcquire(&served)) return TUTTI_PROXY_IDLE;
    if (tuttiNow() < at) return tuttiProxyWakeBy(turn, at), TUTTI_PROXY_WAITING;
    tuttiStoreRelease(&served, want);
    return TUTTI_PROXY_MOVED;
  }
  void Want(uint64_t notBefore = 0) {
    tuttiStoreRelease(&due, notBefore);
    tuttiStoreRelease(&wanted, 1);
  }
  bool Served() {
    return Eventually([&] { return tuttiLoadAcquire(&served) == 1; });
  }

  tuttiProxy *proxy = nullptr;
  Op op;
  tuttiProxyOp row;

private:
  /* Stands here until the test has acted. */
  void Stand() {
    if (!act) return;
    standing = true;
    EXPECT_TRUE(Eventually([&] { return !act; }));
  }

  static thread_local bool passes; /* and holds the lock */
  tuttiAtomic64 wanted{}, served{}, due{};
  std::thread::id tester;
  std::atomic<bool> act{false}, standing{false};
};
WayToSleep *WayToSleep::now;
thread_local bool WayToSleep::passes;

/* The heart of the matter: whatever is kicked is seen, wherever the kick meets the thread. */
TEST_P(WayToSleep, NoKickIsLost) {
  There([&] { Want(), tuttiProxyKick(proxy); });
  EXPECT_TRUE(Served()) << "a kick was lost";
}

TEST_P(WayToSleep, NoRoomIsLost) {
  There([&] { Want(), tuttiProxyFreed(proxy); });
  EXPECT_TRUE(Served()) << "news of a free slot were lost";
}

/* The kick is left to whoever has entered, who leaves. */
TEST_P(WayToSleep, NoKickIsLostAtLeave) {
  There([&] {
    tuttiProxyEnter(proxy);
    Want(), tuttiProxyKick(proxy);
    tuttiProxyLeave(proxy);
  });
  EXPECT_TRUE(Served()) << "a kick was lost";
}

/* The same for lazy work, which a pass of whoever leaves passes by. */
TEST_P(WayToSleep, NoRoomIsLostAtLeave) {
  row.lazy = true;
  There([&] {
    tuttiProxyEnter(proxy);
    Want(), tuttiProxyFreed(proxy);
    tuttiProxyLeave(proxy);
  });
  EXPECT_TRUE(Served()) << "news of a free slot were lost";
}

/* Work that waits for the clock only, begun in a pass of whoever has entered: the thread is to
 * sleep for as long as an older pass of its own has said, which is for ever. */
TEST_P(WayToSleep, NoTimeIsLostAtLeave) {
  There([&] {
    tuttiProxyEnter(proxy);
    Want(tuttiNow() + kSecond / 50), tuttiProxyKick(proxy);
    tuttiProxyRun(proxy);
    tuttiProxyLeave(proxy);
  });
  EXPECT_TRUE(Served()) << "overslept";
}

#if defined(__SANITIZE_THREAD__) /* it has to see each mutex itself */
const Place places[] = {kInAPass, kBeforeItsNap, kAsleep};
#else
const Place places[] = {kInAPass, kBehindAPass, kBeforeItsNap, kAsleep};
#endif
std::string placeName(const testing::TestParamInfo<Place> &info) {
  const char *const names[] = {"InAPass", "BehindAPass", "BeforeItsNap", "Asleep"};
  return names[info.param];
}
INSTANTIATE_TEST_SUITE_P(Places, WayToSleep, testing::ValuesIn(places), placeName);

/* At places that no test can name. The thread alone serves; a lost wake-up hangs the loop and fails
 * it. */
TEST_F(Proxy, NoKickIsLost) {
  tuttiAtomic64 wanted{}, served{};
  Op op;
  op.advance = [&](tuttiProxyTurn *) {
    uint64_t w = tuttiLoadAcquire(&wanted);
    if (w == tuttiLoadRelaxed(&served)) return TUTTI_PROXY_IDLE;
    tuttiStoreRelease(&served, w);
    return TUTTI_PROXY_MOVED;
  };
  op.Add(proxy);
  unsigned seed = 1;
  for (uint64_t i = 1; i <= 5000; i++) {
    for (unsigned spin = rand_r(&seed) % 2000; spin; spin--)
      tuttiCpuRelax();
    tuttiStoreRelease(&wanted, i);
    tuttiProxyKick(proxy);
    for (uint64_t end = tuttiNow() + 60 * kSecond; tuttiLoadAcquire(&served) != i;) {
      ASSERT_LT(tuttiNow(), end) << "kick " << i << " was lost";
      sched_yield();
    }
  }
  tuttiProxyRemove(proxy, &op);
}

/* Kicks of one thread while another enters and leaves: the last Leave must not drop them. */
TEST_F(Proxy, NoKickIsLostAtLeave) {
  tuttiAtomic64 wanted{}, served{};
  std::atomic<bool> stop{false};
  Op op;
  op.advance = [&](tuttiProxyTurn *) {
    uint64_t w = tuttiLoadAcquire(&wanted);
    if (w == tuttiLoadRelaxed(&served)) return TUTTI_PROXY_IDLE;
    tuttiStoreRelease(&served, w);
    return TUTTI_PROXY_MOVED;
  };
  op.Add(proxy);
  std::thread other([&] {
    unsigned seed = 2;
    while (!stop) {
      tuttiProxyEnter(proxy);
      for (unsigned n = rand_r(&seed) % 4; n; n--)
        tuttiProxyRun(proxy);
      tuttiProxyLeave(proxy);
      for (unsigned spin = rand_r(&seed) % 500; spin; spin--)
        tuttiCpuRelax();
    }
  });
  bool lost = false;
  for (uint64_t i = 1; i <= 3000 && !lost; i++) {
    tuttiStoreRelease(&wanted, i);
    tuttiProxyKick(proxy);
    for (uint64_t end = tuttiNow() + 60 * kSecond; tuttiLoadAcquire(&served) != i && !lost;) {
      lost = tuttiNow() > end;
      sched_yield();
    }
  }
  stop = true;
  other.join();
  EXPECT_FALSE(lost);
  tuttiProxyRemove(proxy, &op);
}

/* Work that waits for the clock only, begun in a pass of ours while the thread was on its way to
 * sleep from a pass before it: Leave must not let it oversleep. */
TEST_F(Proxy, NoTimeIsLostAtLeave) {
  tuttiAtomic64 due{}, begun{}, ended{};
  auto me = std::this_thread::get_id();
  Op op;
  op.advance = [&](tuttiProxyTurn *turn) {
    uint64_t at = tuttiLoadAcquire(&due);
    if (at == 0) return TUTTI_PROXY_IDLE;
    if (std::this_thread::get_id() == me) tuttiStoreRelease(&begun, at);
    if (tuttiNow() < at) return tuttiProxyWakeBy(turn, at), TUTTI_PROXY_WAITING;
    tuttiStoreRelease(&due, 0);
    tuttiStoreRelease(&ended, at);
    return TUTTI_PROXY_IDLE;
  };
  op.Add(proxy);
  for (int i = 0; i < 10000; i++) {
    uint64_t at = tuttiNow() + 20000, end = at + 60 * kSecond;
    tuttiProxyEnter(proxy);
    tuttiStoreRelease(&due, at);
    while (tuttiLoadAcquire(&begun) != at && tuttiLoadAcquire(&ended) != at) {
      ASSERT_LT(tuttiNow(), end) << "not run at " << i;
      tuttiProxyRun(proxy);
    }
    tuttiProxyLeave(proxy);
    while (tuttiLoadAcquire(&ended) != at)
      ASSERT_LT(tuttiNow(), end) << "overslept at " << i;
  }
  tuttiProxyRemove(proxy, &op);
}

TEST_F(Proxy, EnterKeepsTheThreadAsleepAndLeaveHandsOver) {
  Op op;
  std::atomic<int> passes{0}; /* of the thread */
  std::atomic<pid_t> thread{0};
  std::atomic<bool> work{false};
  auto me = std::this_thread::get_id();
  op.advance = [&](tuttiProxyTurn *) {
    if (std::this_thread::get_id() != me) passes++, thread = threadId();
    return work ? TUTTI_PROXY_WAITING : TUTTI_PROXY_IDLE;
  };
  op.Add(proxy);
  ASSERT_TRUE(Eventually([&] { return op.turns > 0; }));
  tuttiProxyEnter(proxy);
  int before = passes;
  for (int i = 0; i < 200; i++) {
    tuttiProxyKick(proxy);
    waitUntilAsleep(thread); /* again, if it was woken */
  }
  EXPECT_LE(passes, before + 1) /* one may have begun before */
      << "the thread ran although somebody had promised to";
  before = passes;
  work = true;
  tuttiProxyRun(proxy);
  tuttiProxyLeave(proxy); /* work is left: the thread must take it up */
  EXPECT_TRUE(Eventually([&] { return passes > before; }));
  tuttiProxyRemove(proxy, &op);
}

/* What leaves is what others wait for; what may come is left to the next caller, or the thread. */
TEST_F(Proxy, TheLastToLeaveDoesWhatIsUrgent) {
  Op lazy, urgent;
  std::string calls; /* of this thread */
  auto me = std::this_thread::get_id();
  auto note = [&](char who) {
    if (std::this_thread::get_id() == me) calls += who;
    return TUTTI_PROXY_IDLE;
  };
  lazy.advance = [&](tuttiProxyTurn *) { return note('l'), TUTTI_PROXY_WAITING; };
  urgent.advance = [&](tuttiProxyTurn *) { return note('u'); };
  tuttiProxyOp row = lazy.Row();
  row.lazy = true;
  ASSERT_EQ(tuttiSuccess, tuttiProxyAdd(proxy, &row));
  urgent.Add(proxy);
  ASSERT_TRUE(Eventually([&] { return lazy.turns && urgent.turns; }));
  tuttiProxyEnter(proxy);
  ASSERT_TRUE(Eventually([&] { return tuttiProxyRun(proxy), !calls.empty(); }));
  EXPECT_EQ("ul", calls.substr(0, 2));
  calls.clear();
  int turns = lazy.turns;
  tuttiProxyFreed(proxy);
  tuttiProxyLeave(proxy);
  EXPECT_EQ("", calls);
  EXPECT_TRUE(Eventually([&] { return lazy.turns > turns; })) << "nobody ever does lazy work";
  EXPECT_TRUE(Eventually([&] {
    tuttiProxyEnter(proxy);
    tuttiProxyKick(proxy);
    tuttiProxyLeave(proxy); /* gives up where the thread is in a pass */
    return !calls.empty();
  }));
  EXPECT_EQ("u", calls);
  tuttiProxyRemove(proxy, &lazy);
  tuttiProxyRemove(proxy, &urgent);
}

/* Operations of a thread that waits for none: how many there have been, and how many a pass saw. */
struct Stream {
  tuttiAtomic64 sent{}, seen{};
  Op op;

  explicit Stream(tuttiProxy *proxy) : proxy(proxy) {
    op.advance = [this](tuttiProxyTurn *) {
      uint64_t now = tuttiLoadAcquire(&sent);
      bool moved = now != tuttiLoadRelaxed(&seen);
      tuttiStoreRelease(&seen, now);
      return moved ? TUTTI_PROXY_MOVED : TUTTI_PROXY_IDLE;
    };
    op.Add(proxy);
  }
  ~Stream() { tuttiProxyRemove(proxy, &op); }
  void Send(bool waits = false) {
    tuttiProxyEnter(proxy);
    if (waits) tuttiProxyRun(proxy);
    tuttiStoreRelease(&sent, tuttiLoadRelaxed(&sent) + 1);
    tuttiProxyKick(proxy);
    tuttiProxyLeave(proxy);
  }
  bool IsSeen() { return tuttiLoadAcquire(&seen) == tuttiLoadRelaxed(&sent); }

private:
  tuttiProxy *proxy;
};

TEST_F(Proxy, WhatAStreamSendsIsSeenTogetherAndWithoutAnotherCall) {
  Stream stream(proxy);
  unsigned seed = 3;
  int later = 0; /* operations that left what they sent to a pass behind them */
  for (int round = 0; round < 300; round++) {
    for (unsigned n = 1 + rand_r(&seed) % 100; n; n--) {
      stream.Send();
      later += !stream.IsSeen();
    }
    if (round % 2) usleep(rand_r(&seed) % 1500); /* while the thread lingers, or has ceased to */
    ASSERT_TRUE(Eventually([&] { return stream.IsSeen(); })) << "round " << round;
  }
  if (later == 0) GTEST_SKIP() << "each operation takes too long here to be one of a stream";
}

TEST_F(Proxy, WhoWaitsLeavesNothingBehind) {
  Stream stream(proxy);
  int now = 0, all = 1000;
  for (int i = 0; i < all; i++) {
    stream.Send(true);
    now += stream.IsSeen(); /* the thread may have been in a pass */
    ASSERT_TRUE(Eventually([&] { return stream.IsSeen(); }));
  }
  EXPECT_GT(now, all / 2);
}

TEST_F(Proxy, AfterRemoveAnOperationIsNotCalled) {
  Op background;
  background.advance = [](tuttiProxyTurn *) { return TUTTI_PROXY_MOVED; }; /* keeps it running */
  background.Add(proxy);
  std::atomic<bool> stop{false};
  std::thread runner([&] {
    while (!stop)
      tuttiProxyRun(proxy);
  });
  for (int i = 0; i < 300; i++) {
    auto op = std::make_unique<Op>();
    op->advance = [](tuttiProxyTurn *) { return TUTTI_PROXY_MOVED; };
    op->Add(proxy);
    for (int j = 0; i % 3 == 0 && op->turns == 0 && j < 1000; j++) /* some get a turn first */
      sched_yield();
    tuttiProxyRemove(proxy, op.get());
    EXPECT_TRUE(op->closed);
    EXPECT_FALSE(op->inside);
    op.reset(); /* a later call would be a use after free */
  }
  stop = true;
  runner.join();
  tuttiProxyRemove(proxy, &background);
}

TEST_F(Proxy, AfterHaltNothingIsCalled) {
  Op op, dropped;
  op.advance = dropped.advance = [](tuttiProxyTurn *) { return TUTTI_PROXY_MOVED; };
  op.Add(proxy);
  dropped.Add(proxy);
  ASSERT_TRUE(Eventually([&] { return op.turns > 0 && dropped.turns > 0; }));
  tuttiProxyHalt(proxy);
  int turns = op.turns, others = dropped.turns;
  for (int i = 0; i < 100; i++) {
    tuttiProxyKick(proxy);
    EXPECT_FALSE(tuttiProxyRun(proxy));
  }
  tuttiProxyRemove(proxy, &op);
  EXPECT_TRUE(op.closed);
  tuttiProxyDestroy(proxy); /* the thread has ended, whatever it did */
  proxy = nullptr;
  EXPECT_EQ(turns, op.turns);
  EXPECT_EQ(others, dropped.turns);
}

/* A descriptor's news wake the sleeping thread and set the flags. */
TEST_F(Proxy, WatchedSocketsWake) {
  int sv[2];
  ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv));
  tuttiProxySource source{sv[0], false, false, false};
  std::atomic<int> bytes{0};
  std::atomic<bool> ended{false};
  bool watched = false;
  Op op;
  op.advance = [&](tuttiProxyTurn *turn) {
    if (!watched) {
      EXPECT_EQ(tuttiSuccess, tuttiProxyWatch(proxy, &source));
      watched = true;
    }
    if (!source.readable && !turn->eager) return TUTTI_PROXY_IDLE;
    char c;
    ssize_t n = read(source.fd, &c, 1);
    if (n < 0) {
      source.readable = false;
      return TUTTI_PROXY_IDLE;
    }
    if (n == 0) {
      ended = true;
      return TUTTI_PROXY_IDLE;
    }
    bytes++;
    return TUTTI_PROXY_MOVED;
  };
  op.Add(proxy);
  for (int i = 1; i <= 500; i++) {
    ASSERT_EQ(1, write(sv[1], "x", 1));
    ASSERT_TRUE(Eventually([&] { return bytes == i; })) << i;
  }
  close(sv[1]);
  EXPECT_TRUE(Eventually([&] { return ended.load(); }));
  EXPECT_TRUE(source.hangup);
  tuttiProxyRemove(proxy, &op);
  close(sv[0]);
}

/* What ends a nap is known to the next pass, though it is one that would not ask. */
TEST_F(Proxy, PassesBehindANapSeeWhatEndedIt) {
  int sv[2];
  ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv));
  tuttiProxySource source{sv[0], false, false, false};
  Op op;
  op.advance = [&](tuttiProxyTurn *) {
    if (op.turns == 0) {
      EXPECT_EQ(tuttiSuccess, tuttiProxyWatch(proxy, &source));
    }
    return TUTTI_PROXY_WAITING;
  };
  tuttiProxyEnter(proxy); /* before there is work: the thread never makes a pass */
  op.Add(proxy);
  tuttiProxyRun(proxy);
  ASSERT_EQ(1, op.turns);
  for (int round = 0; round < 5; round++) {
    source.readable = false;
    ASSERT_EQ(1, write(sv[1], "x", 1));
    tuttiProxyNap(proxy, 60000000);
    tuttiProxyRun(proxy);
    EXPECT_TRUE(source.readable) << round;
  }
  tuttiProxyLeave(proxy);
  tuttiProxyRemove(proxy, &op);
  close(sv[0]);
  close(sv[1]);
}

/* Who waits long naps 50 us and more between its passes: what a descriptor says must not wait for
 * thousands of them, though nothing but operations that look for themselves is there. */
TEST_F(Proxy, PassesOfWhoPollsSeeDescriptorsToo) {
  int sv[2];
  ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv));
  tuttiProxySource source{sv[0], false, false, false};
  Op op;
  op.advance = [&](tuttiProxyTurn *turn) {
    if (op.turns == 0) {
      EXPECT_EQ(tuttiSuccess, tuttiProxyWatch(proxy, &source));
    }
    turn->polled++;
    return TUTTI_PROXY_WAITING;
  };
  tuttiProxyEnter(proxy); /* before there is work: the thread never makes a pass */
  op.Add(proxy);
  tuttiProxyRun(proxy);
  ASSERT_EQ(1, op.turns);
  for (int round = 0; round < 5; round++) {
    source.readable = false;
    ASSERT_EQ(1, write(sv[1], "x", 1));
    int passes = 0;
    for (; !source.readable && passes < 100000; passes++)
      tuttiProxyRun(proxy);
    EXPECT_LE(passes, 1000) << round;
  }
  tuttiProxyLeave(proxy);
  tuttiProxyRemove(proxy, &op);
  close(sv[0]);
  close(sv[1]);
}

/* While kernels are looked after there are no naps; and what a descriptor says is heard. */
TEST_F(Proxy, TheThreadSpinsForWhoWantsItsTurnAtOnce) {
  int sv[2];
  ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv));
  tuttiProxySource source{sv[0], false, false, false};
  std::atomic<bool> busy{true}, heard{false};
  Op op;
  op.advance = [&](tuttiProxyTurn *turn) {
    if (op.turns == 0) {
      EXPECT_EQ(tuttiSuccess, tuttiProxyWatch(proxy, &source));
    }
    heard = heard || source.readable;
    turn->polled++;
    if (!busy) return TUTTI_PROXY_IDLE;
    tuttiProxyWakeBy(turn, 0);
    return TUTTI_PROXY_WAITING;
  };
  op.Add(proxy);
  EXPECT_TRUE(Eventually([&] { return op.turns > 10; }));
  int before = naps;
  EXPECT_TRUE(Eventually([&] { return op.turns > 20000; }));
  EXPECT_EQ(before, naps);
  ASSERT_EQ(1, write(sv[1], "x", 1));
  EXPECT_TRUE(Eventually([&] { return heard.load(); }));
  busy = false;
  EXPECT_TRUE(Eventually([&] { return naps > before; }));
  tuttiProxyRemove(proxy, &op);
  close(sv[0]);
  close(sv[1]);
}

/* The thread holds the lock nearly all the time then. */
TEST_F(Proxy, ASpinningThreadMakesWay) {
  std::atomic<bool> busy{true};
  Op spins, others;
  spins.advance = [&](tuttiProxyTurn *turn) {
    for (uint64_t end = tuttiNow() + 20000; tuttiNow() < end;) {
    } /* long enough that nobody gets the lock by luck */
    if (busy) tuttiProxyWakeBy(turn, 0);
    return busy ? TUTTI_PROXY_WAITING : TUTTI_PROXY_IDLE;
  };
  others.advance = [](tuttiProxyTurn *) { return TUTTI_PROXY_IDLE; };
  spins.Add(proxy);
  int late = 0, rounds = 300;
  for (int i = 0; i < rounds; i++) {
    int before = spins.turns;
    while (spins.turns == before)
      std::this_thread::yield();
    before = spins.turns;
    others.Add(proxy);
    late += spins.turns > before + 3; /* it may be interrupted before it says that it waits */
    tuttiProxyRemove(proxy, &others);
  }
  EXPECT_LT(late, rounds / 2);
  busy = false;
  tuttiProxyRemove(proxy, &spins);
}

/* In a pass that another is sure to follow nobody says when he wants the next one. */
TEST_F(Proxy, WhoWaitedWhileTheThreadSpanIsNotForgotten) {
  Op spins, waits;
  std::atomic<bool> done{false};
  std::atomic<uint64_t> due{0};
  spins.advance = [&](tuttiProxyTurn *turn) {
    turn->polled++;
    if (spins.turns % 100 == 99) return TUTTI_PROXY_IDLE;
    tuttiProxyWakeBy(turn, 0);
    return TUTTI_PROXY_WAITING;
  };
  waits.advance = [&](tuttiProxyTurn *turn) {
    turn->polled++;
    if (!due) due = tuttiNow() + kSecond / 50;
    done = tuttiNow() > due;
    if (done) return TUTTI_PROXY_IDLE;
    if (!turn->eager) tuttiProxyWakeBy(turn, due);
    return TUTTI_PROXY_WAITING;
  };
  waits.Add(proxy);
  spins.Add(proxy);
  EXPECT_TRUE(Eventually([&] { return done.load(); }));
  tuttiProxyRemove(proxy, &waits);
  tuttiProxyRemove(proxy, &spins);
}

/* Proxies of one thread: what one of them adds, ends or loses is nothing to the others. */
class Shared : public Fixture {
protected:
  tuttiProxy *other = nullptr;
  std::atomic<int> otherFailures{0};
  Op mine, theirs;
  std::atomic<std::thread::id> myThread, theirThread;

  void SetUp() override {
    Fixture::SetUp();
    auto fail = [](void *count, tuttiResult_t, const char *) {
      ++*static_cast<std::atomic<int> *>(count);
    };
    ASSERT_EQ(tuttiSuccess, tuttiProxyCreate(&other, fail, &otherFailures));
    tuttiProxyShare(proxy);
    tuttiProxyShare(other);
    mine.advance = [this](tuttiProxyTurn *) {
      myThread = std::this_thread::get_id();
      return TUTTI_PROXY_IDLE;
    };
    theirs.advance = [this](tuttiProxyTurn *) {
      theirThread = std::this_thread::get_id();
      return TUTTI_PROXY_IDLE;
    };
    mine.Add(proxy);
    theirs.Add(other);
    EXPECT_TRUE(Eventually([&] { return mine.turns > 0 && theirs.turns > 0; }));
  }
  void TearDown() override {
    tuttiProxyDestroy(other);
    Fixture::TearDown();
  }
  bool Runs(tuttiProxy *p, const Op &op) {
    int before = op.turns;
    tuttiProxyKick(p);
    return Eventually([&] { return op.turns > before; });
  }
};

TEST_F(Shared, OneThreadServesAll) {
  EXPECT_EQ(myThread.load(), theirThread.load());
  EXPECT_TRUE(Runs(other, mine));
  EXPECT_TRUE(Runs(proxy, theirs));
}

TEST_F(Shared, AFailureIsToldToItsOwner) {
  Op failed;
  failed.advance = [](tuttiProxyTurn *turn) {
    turn->result = TUTTI_FAIL(tuttiRemoteError, "rank 7 is gone");
    return TUTTI_PROXY_FAILED;
  };
  failed.Add(other);
  EXPECT_TRUE(Eventually([&] { return otherFailures == 1; }));
  EXPECT_EQ(0, failures);
  EXPECT_TRUE(Runs(proxy, mine));
  tuttiProxyRemove(other, &failed);
}

TEST_F(Shared, HaltEndsItsOwnAlone) {
  tuttiProxyHalt(other);
  int before = theirs.turns;
  for (int i = 0; i < 20; i++)
    EXPECT_TRUE(Runs(proxy, mine));
  EXPECT_EQ(before, theirs.turns);
}

TEST_F(Shared, DestroyTakesItsOwnAlong) {
  tuttiProxyDestroy(other);
  other = nullptr;
  int before = theirs.turns;
  for (int i = 0; i < 20; i++)
    EXPECT_TRUE(Runs(proxy, mine));
  EXPECT_EQ(before, theirs.turns);
  EXPECT_FALSE(theirs.closed);
}

TEST_F(Shared, EachTellsOfItsOwn) {
  Op told;
  told.advance = [](tuttiProxyTurn *) { return TUTTI_PROXY_IDLE; };
  tuttiProxyOp row = told.Row();
  row.tell = [](void *, tuttiProxyFacts *facts) {
    facts->peer = 5;
    return true;
  };
  ASSERT_EQ(tuttiSuccess, tuttiProxyAdd(other, &row));
  tuttiProxyFacts facts[4];
  EXPECT_EQ(1, tuttiProxyTell(other, facts, 4));
  EXPECT_EQ(5, facts[0].peer);
  EXPECT_EQ(0, tuttiProxyTell(proxy, facts, 4));
  tuttiProxyRemove(other, &told);
}

TEST_F(Shared, WhatHasWorkKeepsItsThread) {
  tuttiProxy *late = nullptr;
  Op op;
  std::atomic<std::thread::id> thread;
  op.advance = [&](tuttiProxyTurn *) {
    thread = std::this_thread::get_id();
    return TUTTI_PROXY_IDLE;
  };
  ASSERT_EQ(tuttiSuccess, tuttiProxyCreate(&late, Fail, this));
  op.Add(late);
  tuttiProxyShare(late);
  EXPECT_TRUE(Runs(late, op));
  EXPECT_NE(myThread.load(), thread.load());
  tuttiProxyRemove(late, &op);
  EXPECT_TRUE(op.closed);
  tuttiProxyDestroy(late);
}

TEST_F(Shared, TheLastOneEndsTheThreadAndAnotherBegins) {
  tuttiProxyDestroy(other);
  tuttiProxyDestroy(proxy);
  proxy = other = nullptr;
  Fixture::SetUp();
  tuttiProxyShare(proxy);
  Op op;
  op.advance = [](tuttiProxyTurn *) { return TUTTI_PROXY_IDLE; };
  op.Add(proxy);
  EXPECT_TRUE(Runs(proxy, op));
  tuttiProxyRemove(proxy, &op);
}

double CpuSeconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

TEST_F(Proxy, IdleUsesNoCpu) {
  int sv[2];
  ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv));
  tuttiProxySource source{sv[0], false, false, false};
  bool watched = false;
  Op op;
  op.advance = [&](tuttiProxyTurn *) {
    /* Writable all the time, and with unread data: neither may keep the thread awake. */
    if (!watched) watched = tuttiProxyWatch(proxy, &source) == tuttiSuccess;
    EXPECT_TRUE(watched);
    return TUTTI_PROXY_WAITING;
  };
  op.Add(proxy);
  int last = naps;
  ASSERT_EQ(1, write(sv[1], "x", 1));
  EXPECT_TRUE(Eventually([&] { return naps > last; }));
  double before = CpuSeconds();
  usleep(1000000); /* the time is the subject, here and below */
  EXPECT_LT(CpuSeconds() - before, 0.2);
  EXPECT_LE(op.turns, 8) << "one for each piece of news, however late it came";
  /* The same when somebody has entered and does nothing. */
  tuttiProxyEnter(proxy);
  before = CpuSeconds();
  usleep(500000);
  EXPECT_LT(CpuSeconds() - before, 0.2);
  tuttiProxyLeave(proxy);
  tuttiProxyRemove(proxy, &op);
  close(sv[0]);
  close(sv[1]);
}

TEST_F(Proxy, ManyOperationsAndThreadsAtOnce) {
  std::vector<std::unique_ptr<Op>> ops;
  for (int i = 0; i < 100; i++) {
    ops.push_back(std::make_unique<Op>());
    Op *op = ops.back().get();
    op->advance = [op](tuttiProxyTurn *) {
      return op->turns % 3 ? TUTTI_PROXY_MOVED : TUTTI_PROXY_IDLE;
    };
    op->Add(proxy);
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++)
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; i++) {
        tuttiProxyEnter(proxy);
        tuttiProxyRun(proxy);
        tuttiProxyKick(proxy);
        tuttiProxyLeave(proxy);
      }
    });
  for (auto &t : threads)
    t.join();
  for (auto &op : ops) {
    EXPECT_TRUE(Eventually([&] { return op->turns > 0; })); /* a pass may be under way */
    tuttiProxyRemove(proxy, op.get());
  }
}

} // namespace

/* What the proxy's thread sleeps in. Tests set the clock for less than 100 ms. */
extern "C" int ppoll(pollfd *fds, nfds_t n, const timespec *most, const sigset_t *mask) {
  naps++;
  if (WayToSleep::now) WayToSleep::now->Nap();
  bool look = most->tv_sec > 0 || most->tv_nsec >= 100000000;
  return (int)syscall(SYS_ppoll, fds, n, look && !looks ? nullptr : most, mask, _NSIG / 8);
}

#if !defined(__SANITIZE_THREAD__)
/* What the thread does last before it decides whether to sleep. */
extern "C" int pthread_mutex_unlock(pthread_mutex_t *mutex) noexcept {
  static auto libcs = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_unlock");
  int result = libcs(mutex);
  if (WayToSleep::now) WayToSleep::now->Unlocked();
  return result;
}
#endif

/* When the proxy looks at the slots of kernels, without a GPU: the test counts launches as kernels
 * and the host would. */
#include "device/cuda/ringtree.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <functional>

#include "base/error.h"
#include "base/os.h"

namespace {

constexpr uint64_t kSecond = 1000000000ull, kLook = 200000;

bool Eventually(const std::function<bool()> &done) {
  for (uint64_t end = tuttiNow() + 60 * kSecond; tuttiNow() < end; usleep(200))
    if (done()) return true;
  return done();
}

struct CudaRingTree : testing::Test {
  tuttiKernelStatus status{};
  tuttiTaskContext context{};
  tuttiCudaRingTree ringTree{};
  tuttiCudaServer server{};
  tuttiProxyTurn turn{};
  std::atomic<tuttiProxyState> state{TUTTI_PROXY_IDLE}; /* that the proxy's thread was told last */

  CudaRingTree() {
    ringTree.status = &status;
    ringTree.context = &context;
    server.ringTree = &ringTree;
  }
  tuttiProxyState Serve() {
    turn = tuttiProxyTurn{};
    turn.wake = TUTTI_NO_DEADLINE;
    return tuttiCudaRingTreeServe(&server, &turn);
  }
  void Kernel(uint32_t *count) { __atomic_fetch_add(count, 1, __ATOMIC_ACQ_REL); }
  bool AtOnce() { return Serve() == TUTTI_PROXY_WAITING && turn.wake == 0; }
};

TEST_F(CudaRingTree, LaunchesOfTheHostKeepTheProxyLooking) {
  EXPECT_EQ(TUTTI_PROXY_IDLE, Serve());
  EXPECT_EQ(TUTTI_NO_DEADLINE, turn.wake);
  for (int i = 0; i < 3; i++) {
    tuttiFetchAddAcqRel32(&ringTree.launched, 2);
    EXPECT_TRUE(AtOnce());
    Kernel(&status.finished);
    EXPECT_TRUE(AtOnce()) << "one of two has ended";
    Kernel(&status.finished);
    EXPECT_TRUE(AtOnce())
        << "the last slots may have been published since endpoints had their turns";
    EXPECT_EQ(TUTTI_PROXY_IDLE, Serve());
    EXPECT_EQ(TUTTI_NO_DEADLINE, turn.wake) << "no graph: nothing comes unannounced";
  }
}

TEST_F(CudaRingTree, WhereCoresAreFewTheProxyNapsBetweenLooks) {
  context.napUs = 20;
  EXPECT_EQ(TUTTI_PROXY_IDLE, Serve());
  tuttiFetchAddAcqRel32(&ringTree.launched, 1);
  uint64_t before = tuttiNow();
  EXPECT_EQ(TUTTI_PROXY_WAITING, Serve());
  EXPECT_GE(turn.wake, before + 20000);
  EXPECT_LE(turn.wake, tuttiNow() + 20000);
}

TEST_F(CudaRingTree, LaunchesOfGraphsAreFoundByLooking) {
  tuttiStoreRelease32(&ringTree.captured, 1);
  for (int i = 0; i < 3; i++) {
    uint64_t before = tuttiNow();
    EXPECT_EQ(TUTTI_PROXY_IDLE, Serve());
    EXPECT_GE(turn.wake, before + kLook);
    EXPECT_LE(turn.wake, tuttiNow() + kLook);
    Kernel(&status.started);
    EXPECT_TRUE(AtOnce());
    tuttiFetchAddAcqRel32(&ringTree.launched, 1); /* one of the host behind it */
    Kernel(&status.finished);
    before = tuttiNow();
    EXPECT_TRUE(AtOnce());
    Kernel(&status.finished);
    bool lingers = AtOnce();
    EXPECT_TRUE(lingers || tuttiNow() > before + kSecond / 1000) << "the next is soon to come";
    EXPECT_TRUE(Eventually([&] { return Serve() == TUTTI_PROXY_IDLE; }));
  }
}

/* Nobody kicks: the thread finds out, and rests between its looks. */
TEST_F(CudaRingTree, TheThreadLooksByItself) {
  tuttiProxy *proxy;
  std::atomic<uint64_t> turns{0};
  ASSERT_EQ(tuttiSuccess, tuttiProxyCreate(&proxy, nullptr, nullptr));
  tuttiStoreRelease32(&ringTree.captured, 1);
  tuttiProxyOp serve = {[](void *self, tuttiProxyTurn *at) {
                          auto *test = static_cast<CudaRingTree *>(self);
                          return test->state = tuttiCudaRingTreeServe(&test->server, at);
                        },
                        [](void *) {},
                        this,
                        false,
                        tuttiProxyNothingToHalt,
                        tuttiProxyNothingToTell};
  tuttiProxyOp count = {[](void *self, tuttiProxyTurn *) {
                          static_cast<std::atomic<uint64_t> *>(self)->fetch_add(1);
                          return TUTTI_PROXY_IDLE;
                        },
                        [](void *) {},
                        &turns,
                        false,
                        tuttiProxyNothingToHalt,
                        tuttiProxyNothingToTell};
  ASSERT_EQ(tuttiSuccess, tuttiProxyAdd(proxy, &serve)) << tuttiErrorText();
  ASSERT_EQ(tuttiSuccess, tuttiProxyAdd(proxy, &count)) << tuttiErrorText();
  for (int i = 0; i < 3; i++) {
    Kernel(&status.started);
    uint64_t begun = tuttiNow(), before = turns;
    EXPECT_TRUE(Eventually([&] { return turns > before + (tuttiNow() - begun) / kLook + 100; }))
        << "looks no more often than while nothing happens";
    uint64_t last = turns;
    Kernel(&status.finished);
    EXPECT_TRUE(Eventually([&] { return state == TUTTI_PROXY_IDLE; }));
    EXPECT_LE(turns - last, 20000u) << "a millisecond, at 50 ns and more for each";
    begun = tuttiNow(); /* first: what is counted lies within the time */
    before = turns;
    usleep(100000);
    uint64_t after = turns;
    EXPECT_LE(after - before, (tuttiNow() - begun) / kLook + 2) << "must not spin";
    EXPECT_TRUE(Eventually([&] { return turns > after + 10; }));
  }
  tuttiProxyRemove(proxy, &turns);
  tuttiProxyRemove(proxy, this);
  tuttiProxyDestroy(proxy);
}

} // namespace

/* Places that a reader wants messages at, on devices that are made up, one call at a time. */
#ifdef TUTTI_HAVE_VERBS
#include <gmock/gmock.h>

#include "transport/ib/ib_end.h"
#include "transport/region.h"

using ib::device;
using ib::IbEnd;

namespace {

class IbWants : public IbEnd {
protected:
  static constexpr size_t kBytes = 2000;
  alignas(64) uint8_t place_[TUTTI_FIFO_DEPTH][kBytes];
  uint64_t region_ = 0;

  /* The twin's payloads are in memory of a GPU, and its user's memory is registered. */
  void OpenGpuTwin() {
    Connect();
    OpenTwin();
    device.posted.clear();
    node_.gdr.reaching = 1;
    reverse_->meet.fifo.gpuData = 1;
    ASSERT_EQ(tuttiSuccess, tuttiRegionAdd(place_, sizeof place_, &region_));
    EXPECT_TRUE(tuttiIbReaches(&node_, place_, sizeof place_));
  }
  void TearDown() override {
    if (reverse_) CloseTwin();
    if (region_) tuttiRegionRemove(region_);
    tuttiIbRegionsClose(&node_);
    IbEnd::TearDown();
  }
  void Post(uint64_t m, size_t bytes = kBytes) {
    tuttiPost *post = &reverse_->meet.fifo.posts[m % TUTTI_FIFO_DEPTH];
    post->addr = reinterpret_cast<uintptr_t>(place_[m % TUTTI_FIFO_DEPTH]);
    post->bytes = static_cast<uint32_t>(bytes);
    tuttiStoreRelease(&post->seq, m + 1);
  }
  const tuttiIbWant &Told(uint64_t m) const {
    return reverse_->control->wants[m % TUTTI_FIFO_DEPTH];
  }
  /* The peer's message m says that its payload is at its place. */
  tuttiProxyState ReceiveAtPlace(uint64_t m, size_t bytes = kBytes) {
    tuttiIbDescriptor *d = &reverse_->control->descriptors[m % TUTTI_FIFO_DEPTH];
    d->where = TUTTI_WHERE_DIRECT;
    d->bytes = static_cast<uint32_t>(bytes);
    tuttiStoreRelease(&d->first, m + 1);
    tuttiStoreRelease(&d->last, m + 1);
    tuttiProxyTurn turn{};
    turn.wake = TUTTI_NO_DEADLINE;
    return tuttiNetIb.progress(reverse_, &turn);
  }
};

/* Before that the sender's queue pair may drop what comes. */
TEST_F(IbWants, AreNotToldBeforeAMessageHasCome) {
  OpenGpuTwin();
  for (uint64_t m = 1; m < 5; m++)
    Post(m);
  EXPECT_EQ(TUTTI_PROXY_IDLE, Turn(reverse_));
  EXPECT_EQ(0u, device.posted.size());
  Receive(0, 0);
  EXPECT_EQ(4u, device.posted.size());
  EXPECT_EQ(2u, tuttiLoadRelaxed(&Told(1).first));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(place_[1]), Told(1).addr);
  EXPECT_EQ(kBytes, Told(1).bytes);
  EXPECT_EQ(TUTTI_PROXY_IDLE, Turn(reverse_));
  EXPECT_EQ(4u, device.posted.size()) << "each is told once";
}

TEST_F(IbWants, AreToldAgainWhenQueuePairsAreNew) {
  OpenGpuTwin();
  Post(1);
  Receive(0, 0);
  EXPECT_EQ(1u, device.posted.size());
  tuttiIbRegion *region = reverse_->source[1];
  ASSERT_NE(nullptr, region);
  uint32_t uses = region->uses;
  /* As when an offer has come: see takeOffer. */
  memset(reverse_->control, 0, sizeof *reverse_->control);
  reverse_->joined = reverse_->arrived;
  EXPECT_EQ(TUTTI_PROXY_IDLE, Turn(reverse_));
  EXPECT_EQ(1u, device.posted.size()) << "not before a message has come";
  Post(2);
  Receive(1, 0);
  EXPECT_EQ(nullptr, reverse_->source[1]) << "it came in its slot";
  EXPECT_EQ(2u, device.posted.size());
  EXPECT_EQ(3u, tuttiLoadRelaxed(&Told(2).first));
  EXPECT_EQ(uses, region->uses) << "one message has taken the other's place";
}

TEST_F(IbWants, AMessageAtItsPlaceIsTaken) {
  OpenGpuTwin();
  Post(1);
  Receive(0, 0);
  EXPECT_EQ(TUTTI_PROXY_MOVED, ReceiveAtPlace(1));
  EXPECT_EQ(TUTTI_WHERE_DIRECT, reverse_->meet.fifo.descriptors[1].where);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(place_[1]), reverse_->meet.fifo.descriptors[1].addr);
  EXPECT_EQ(nullptr, reverse_->source[1]);
}

TEST_F(IbWants, APlaceThatNobodyToldIsNotBelieved) {
  OpenGpuTwin();
  Receive(0, 0);
  EXPECT_EQ(TUTTI_PROXY_FAILED, ReceiveAtPlace(1));
  EXPECT_THAT(tuttiErrorText(), testing::HasSubstr("its payload is at an unknown place"));
}

TEST_F(IbWants, NorOneForAnotherSize) {
  OpenGpuTwin();
  Post(1);
  Receive(0, 0);
  EXPECT_EQ(TUTTI_PROXY_FAILED, ReceiveAtPlace(1, kBytes - 1));
  EXPECT_THAT(tuttiErrorText(), testing::HasSubstr("its payload is at an unknown place"));
}

/* The sender's side. */
TEST_F(IbWants, TheSenderHeedsThoseThatAreWholeAndFit) {
  Connect();
  tuttiIbWant *want = &e_.control->wants[0];
  e_.meet.payload[0] = kBytes;
  EXPECT_EQ(nullptr, tuttiIbWantOf(&e_, 0));
  want->bytes = kBytes;
  want->key[0] = want->key[1] = 7;
  tuttiStoreRelease(&want->first, 1);
  EXPECT_EQ(nullptr, tuttiIbWantOf(&e_, 0)) << "its end is still to come";
  tuttiStoreRelease(&want->last, 1);
  EXPECT_EQ(want, tuttiIbWantOf(&e_, 0));
  e_.meet.payload[0] = kBytes + 1;
  EXPECT_EQ(nullptr, tuttiIbWantOf(&e_, 0));
  e_.meet.payload[0] = kBytes;
  want->key[e_.parts[0]->pair.port[1]] = 0;
  EXPECT_EQ(nullptr, tuttiIbWantOf(&e_, 0)) << "a port in use has no key";
  want->key[e_.parts[0]->pair.port[1]] = 7;
  EXPECT_EQ(nullptr, tuttiIbWantOf(&e_, 8)) << "of the slot's message before";
  e_.immediate = true;
  EXPECT_EQ(nullptr, tuttiIbWantOf(&e_, 0)) << "no completion has told of it";
  e_.heard[0] = 1;
  EXPECT_EQ(want, tuttiIbWantOf(&e_, 0));
}

} // namespace
#endif

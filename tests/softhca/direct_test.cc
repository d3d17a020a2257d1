// Payloads that go from registered memory of one GPU to that of another without slots: what kernels
// leave where it is, and what they post a place for.
#include "gdr_ranks.h"

#include <functional>
#include <random>

#include "fault_scenario.h"
#include "transport/region.h"
extern "C" {
#include "transport/ib/endpoint.h"
}

namespace {

constexpr uint64_t kPlaces =
    2 * TUTTI_FIFO_DEPTH; // none is used again while a message is under way

// Memory of the user on the GPU, with a place for each of some messages.
struct Places {
  tuttiGpuMemory memory{};
  uint64_t region = 0;
  Places() {
    EXPECT_EQ(tuttiGpuAlloc(0, 0, kPlaces * kSlot, &memory), tuttiSuccess);
    EXPECT_EQ(tuttiRegionAdd(memory.memory, memory.bytes, &region), tuttiSuccess);
  }
  ~Places() {
    deregister();
    tuttiGpuFree(&memory);
  }
  Places(const Places &) = delete;
  Places &operator=(const Places &) = delete;
  void deregister() {
    if (region) tuttiRegionRemove(region);
    region = 0;
  }
  uint8_t *at(uint64_t m) const {
    return static_cast<uint8_t *>(memory.memory) + m % kPlaces * kSlot;
  }
  bool reaches(Rank &r) const { return tuttiNetReaches(&r.view, memory.memory, memory.bytes); }
};

void write(uint8_t *at, const std::vector<uint8_t> &bytes) {
  cuMemcpyHtoD_v2(pointerOf(at), bytes.data(), bytes.size());
}

// As publish, of a message that stays where it is.
void lend(Rank &r, tuttiConn &c, uint8_t *at, size_t bytes) {
  std::vector<uint8_t> payload(bytes);
  for (size_t i = 0; i < bytes; i++)
    payload[i] = byteOf(c.next, i);
  write(at, payload);
  tuttiSlotDescriptor *slot = tuttiConnDescriptor(&c);
  slot->bytes = static_cast<uint32_t>(bytes);
  slot->where = TUTTI_WHERE_DIRECT;
  slot->addr = reinterpret_cast<uintptr_t>(at);
  slot->sig = tuttiSignature{};
  tuttiConnAdvance(&c);
  tuttiProxyKick(r.view.proxy);
}

// As a kernel posts a place for message m.
void post(tuttiConn &c, uint64_t m, uint8_t *at, size_t bytes) {
  tuttiPost *post = &c.posts[m % TUTTI_FIFO_DEPTH];
  post->addr = reinterpret_cast<uintptr_t>(at);
  post->bytes = static_cast<uint32_t>(bytes);
  tuttiStoreRelease(&post->seq, m + 1);
}

// As take; *direct counts a message that is at its place, where others are left.
bool takeAny(Rank &r, tuttiConn &c, uint8_t *place, size_t bytes, int *direct) {
  const tuttiSlotDescriptor *slot = tuttiConnDescriptor(&c);
  if (slot->where != TUTTI_WHERE_DIRECT) return take(r, c, bytes);
  std::vector<uint8_t> payload(bytes);
  bool right = slot->bytes == bytes && slot->addr == reinterpret_cast<uintptr_t>(place);
  cuMemcpyDtoH_v2(payload.data(), pointerOf(place), bytes);
  for (size_t i = 0; i < bytes; i++)
    right &= payload[i] == byteOf(c.next, i);
  write(place, std::vector<uint8_t>(bytes, 0xee));
  ++*direct;
  tuttiConnAdvance(&c);
  tuttiProxyKick(r.view.proxy);
  return right;
}

// The sender's proxy runs until it is told where message m is wanted, for so long at most.
bool awaitWant(Rank &r, const tuttiConn &c, uint64_t m, uint64_t ns = kLongNs) {
  const auto *posts = reinterpret_cast<const tuttiPost *>(c.readers + 1);
  const auto *control = reinterpret_cast<const tuttiIbControl *>(posts + TUTTI_FIFO_DEPTH);
  const tuttiIbWant *want = &control->wants[m % TUTTI_FIFO_DEPTH];
  tuttiProxyEnter(r.view.proxy);
  uint64_t end = tuttiNow() + ns;
  auto there = [&] {
    return tuttiLoadAcquire(&want->first) == m + 1 && tuttiLoadAcquire(&want->last) == m + 1;
  };
  while (!there() && !tuttiLoadAcquire32(&r.failed) && tuttiNow() < end)
    if (!tuttiProxyRun(r.view.proxy)) sched_yield();
  tuttiProxyRun(r.view.proxy); // for the completion, if that tells of it
  tuttiProxyLeave(r.view.proxy);
  return there();
}

// What the two sides do with message m.
struct Plan {
  size_t bytes = kSlot;
  bool lends = true, posts = true;
  size_t posted = 0;  // bytes that are expected there; 0: as many as come
  bool waits = false; // the sender, for the want
  bool hopes = false; // the same, but goes on without it after a while
};
using Plans = std::function<Plan(uint64_t m)>;

struct Result {
  int wrong, direct; // wrong -1: not all came
};

Result exchangePlanned(Ranks &r, tuttiConn &from, tuttiConn &to, const Places &out,
                       const Places &in, uint64_t messages, const Plans &plans) {
  Result result{};
  uint64_t first = to.next, posted = first, end = first + messages;
  std::thread sender([&] {
    for (; from.next < end && r.a.await(from);) {
      Plan p = plans(from.next);
      /* Nothing is told before the first message has come. */
      if (p.waits && from.next > 0 && !awaitWant(r.a, from, from.next)) break;
      if (p.hopes) awaitWant(r.a, from, from.next, 5000000);
      if (p.lends)
        lend(r.a, from, out.at(from.next), p.bytes);
      else
        publish(r.a, from, p.bytes);
    }
  });
  auto postAhead = [&] {
    for (; posted < end && posted < to.next + TUTTI_FIFO_DEPTH; posted++) {
      Plan p = plans(posted);
      if (p.posts) post(to, posted, in.at(posted), p.posted ? p.posted : p.bytes);
    }
    tuttiProxyKick(r.b.view.proxy);
  };
  for (postAhead(); to.next < end && r.b.await(to); postAhead()) {
    Plan p = plans(to.next);
    result.wrong += !takeAny(r.b, to, in.at(to.next), p.bytes, &result.direct);
  }
  if (to.next < end) {
    result.wrong = -1;
    tuttiStoreRelease32(&r.a.failed, 1); // nor need the sender wait
  }
  sender.join();
  return result;
}

struct Link {
  Ranks r;
  Places out, in;
  tuttiConn from, to;
  Link() {
    r.attach();
    from = r.a.open(0, TUTTI_SEND);
    to = r.b.open(0, TUTTI_RECV);
    EXPECT_TRUE(from.lends);
    EXPECT_TRUE(out.reaches(r.a) && in.reaches(r.b));
  }
  ~Link() { closeBoth(r, from, to); }
  Result exchange(uint64_t messages, const Plans &plans) {
    return exchangePlanned(r, from, to, out, in, messages, plans);
  }
  std::string errors() const { return r.a.error + r.b.error; }
};

Plan waiting(uint64_t) {
  Plan p;
  p.waits = true;
  return p;
}

TEST(Direct, FromMemoryOfTheUserToMemoryOfTheUser) {
  if (!configured("movers 1")) return;
  {
    Link l;
    fakeCudaDelay(200);
    Result got = l.exchange(200, waiting);
    EXPECT_EQ(got.wrong, 0) << l.errors();
    EXPECT_EQ(got.direct, 199);
  }
  EXPECT_EQ(allocations, 0);
  EXPECT_EQ(softHcaRegistrations(), 0);
}

// One side alone has registered its memory, by turns; messages that are small take slots anyway.
TEST(Direct, SidesAndSizesMix) {
  if (!configured("movers 1")) return;
  Link l;
  const size_t sizes[] = {kSlot, 8, 32768, 32769, 40000, kSlot - 1, 81};
  Result got = l.exchange(500, [&](uint64_t m) {
    Plan p;
    p.bytes = sizes[m % 7];
    bool large = p.bytes > 32768;
    p.lends = large && m & 1;
    p.posts = large && m & 2;
    p.waits = p.posts;
    return p;
  });
  int expected = 0;
  for (uint64_t m = 0; m < 500; m++)
    expected += sizes[m % 7] > 32768 && m & 2;
  EXPECT_EQ(got.wrong, 0) << l.errors();
  EXPECT_EQ(got.direct, expected);
}

// Nobody waits for a want: whichever comes first, the data is right.
TEST(Direct, APostMayComeTooLate) {
  if (!configured("movers 1")) return;
  Link l;
  Result got = l.exchange(1000, [](uint64_t) { return Plan{}; });
  EXPECT_EQ(got.wrong, 0) << l.errors();
}

TEST(Direct, AMessageOfAnotherSizeThanThePostsTakesItsSlot) {
  if (!configured("movers 1")) return;
  Link l;
  Result got = l.exchange(100, [](uint64_t m) {
    Plan p = waiting(m);
    p.bytes = 50000;
    p.posted = m % 2 ? 50001 : 50000;
    return p;
  });
  EXPECT_EQ(got.wrong, 0) << l.errors();
  EXPECT_EQ(got.direct, 49);
}

// A place that is no registered memory is posted: nothing is told of it.
TEST(Direct, MemoryThatIsNotRegisteredIsNotWrittenTo) {
  if (!configured("movers 1")) return;
  Link l;
  l.in.deregister();
  EXPECT_FALSE(l.in.reaches(l.r.b));
  Result got = l.exchange(100, [](uint64_t) { return Plan{}; });
  EXPECT_EQ(got.wrong, 0) << l.errors();
  EXPECT_EQ(got.direct, 0);
}

TEST(Direct, WhatIsDeregisteredBeforeItIsSentIsAnError) {
  if (!configured("movers 1")) return;
  Link l;
  ASSERT_EQ(l.exchange(10, waiting).wrong, 0) << l.errors();
  l.out.deregister();
  lend(l.r.a, l.from, l.out.at(l.from.next), kSlot);
  tuttiProxyEnter(l.r.a.view.proxy);
  for (uint64_t end = tuttiNow() + kLongNs; !tuttiLoadAcquire32(&l.r.a.failed);) {
    tuttiProxyRun(l.r.a.view.proxy);
    ASSERT_LT(tuttiNow(), end);
  }
  tuttiProxyLeave(l.r.a.view.proxy);
  EXPECT_THAT(l.r.a.error, testing::HasSubstr("is not registered any more"));
}

// The registration stays until the message has come, and goes then.
TEST(Direct, MemoryThatIsDeregisteredStaysAsLongAsItIsInUse) {
  if (!configured("movers 1")) return;
  Link l;
  ASSERT_EQ(l.exchange(10, waiting).wrong, 0) << l.errors();
  uint64_t m = l.from.next;
  post(l.to, m, l.in.at(m), kSlot);
  std::atomic<bool> told{false};
  std::thread receiver([&] {
    while (!told && !tuttiLoadAcquire32(&l.r.b.failed))
      tuttiProxyKick(l.r.b.view.proxy);
  });
  EXPECT_TRUE(awaitWant(l.r.a, l.from, m)) << l.errors();
  told = true;
  receiver.join();
  int before = softHcaRegistrations();
  l.in.deregister();
  lend(l.r.a, l.from, l.out.at(m), kSlot);
  int direct = 0;
  ASSERT_TRUE(l.r.b.await(l.to)) << l.errors();
  EXPECT_TRUE(takeAny(l.r.b, l.to, l.in.at(m), kSlot, &direct));
  EXPECT_EQ(direct, 1);
  for (uint64_t end = tuttiNow() + kLongNs;
       softHcaRegistrations() != before - 1 && tuttiNow() < end;) {
    tuttiProxyKick(l.r.b.view.proxy);
    sched_yield();
  }
  EXPECT_EQ(softHcaRegistrations(), before - 1);
}

// One of the two devices refuses the user's memory: it goes through slots, which is logged.
TEST(Direct, MemoryThatADeviceRefusesGoesThroughSlots) {
  if (!configured("device softhca0\ndevice softhca1")) return;
  Ranks r;
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  Places out, in;
  EXPECT_TRUE(out.reaches(r.a));
  // The ends have met then: no proxy registers memory while the table is another one.
  auto bySlot = [](uint64_t) { return Plan{.lends = false, .posts = false}; };
  EXPECT_EQ(exchangePlanned(r, from, to, out, in, 1, bySlot).wrong, 0) << r.a.error << r.b.error;
  uint64_t region = 0; // which is no allocation, so that there is no dma-buf of it
  ASSERT_EQ(tuttiRegionAdd(nullptr, 1 << 20, &region), tuttiSuccess);
  set("TUTTI_DEBUG", "WARN");
  const tuttiVerbsTable real = tuttiVerbs;
  tuttiVerbs.regMrIova2 = nullptr;
  tuttiVerbs.regMr = [](ibv_pd *, void *, size_t, int) -> ibv_mr * {
    errno = ENOMEM;
    return nullptr;
  };
  testing::internal::CaptureStderr();
  EXPECT_FALSE(tuttiNetReaches(&r.a.view, reinterpret_cast<void *>(4096), 4096));
  EXPECT_FALSE(tuttiNetReaches(&r.a.view, reinterpret_cast<void *>(4096), 4096));
  std::string log = testing::internal::GetCapturedStderr();
  tuttiVerbs = real;
  EXPECT_THAT(log, testing::HasSubstr("refused 1048576 bytes of registered memory"));
  EXPECT_EQ(log.find("refused"), log.rfind("refused")) << "it is asked once";
  tuttiRegionRemove(region);
  EXPECT_EQ(exchangePlanned(r, from, to, out, in, 50, [](uint64_t) { return Plan{}; }).wrong, 0)
      << r.a.error << r.b.error;
  closeBoth(r, from, to);
}

// What is at its place must be flushed like what is in slots.
TEST(Direct, AFlushComesBeforeTheReader) {
  if (!configured("invisible_ms 1000")) return;
  Link l;
  Result got = l.exchange(200, waiting);
  EXPECT_EQ(got.wrong, 0) << l.errors();
  EXPECT_EQ(got.direct, 199);
}

#ifndef __SANITIZE_THREAD__
TEST(Direct, WithoutAFlushOldBytesAreRead) {
  if (!configured("invisible_ms 1000")) return;
  set("TUTTI_NET_GDR_FLUSH", "off");
  Link l;
  EXPECT_GT(l.exchange(50, waiting).wrong, 0) << "or the test before could not fail";
}
#endif

// Wants are told by completions, too, where writes are placed in any order.
TEST(Direct, WritesMayBePlacedInAnyOrder) {
  if (!configured("reorder_us 300")) return;
  set("TUTTI_IB_QPS_PER_CONNECTION", "3");
  Link l;
  Result got = l.exchange(1000, waiting);
  EXPECT_EQ(got.wrong, 0) << l.errors();
  EXPECT_GT(got.direct, 500);
}

// Devices that take nothing inline read the want's memory later.
TEST(Direct, NothingIsSentInline) {
  if (!configured("device softhca0 max_inline=0")) return;
  Link l;
  Result got = l.exchange(1000, [](uint64_t) { return Plan{}; });
  EXPECT_EQ(got.wrong, 0) << l.errors();
}

// Ports fail and come back: what was under way goes on over others, to the same place or its slot.
TEST(Direct, APortThatFailsIsMended) {
  if (!configured("invisible_ms 1000\ndevice softhca0 ports=2\n"
                  "port softhca0/1 down_frames=300 up_ms=500"))
    return;
  Link l;
  Plan hoping;
  hoping.hopes = true; /* the receiver tells nothing by new queue pairs before a message has come */
  Result got = l.exchange(2000, [&](uint64_t m) { return m % 3 ? Plan{} : hoping; });
  EXPECT_EQ(got.wrong, 0) << l.errors();
  EXPECT_GT(got.direct, 0);
}

// Faults by seed, after which there is always a way; messages go any way by turns.
class DirectFaults : public testing::TestWithParam<unsigned> {};

TEST_P(DirectFaults, PayloadsArriveWhole) {
  Scenario s;
  for (unsigned seed = GetParam() * 1000; s.devices.empty() || s.ending != Ending::Right; seed++)
    s = ScenarioMaker(seed).make();
  const char *visible[] = {"", "invisible_ms 1000\n"};
  if (!configured(visible[GetParam() % 2] + s.devices + s.faults[0])) return;
  for (auto &[name, value] : s.settings)
    set(name.c_str(), value.c_str());
  Link l;
  std::mt19937 random(GetParam());
  std::vector<Plan> plans(400);
  for (Plan &p : plans) {
    p.bytes = random() % 3 ? kSlot - random() % 20000 : 1 + random() % kSlot;
    bool large = p.bytes > 32768;
    p.lends = large && random() % 4;
    p.posts = large && random() % 4;
    p.posted = random() % 10 ? 0 : p.bytes + 1;
  }
  Result got = l.exchange(plans.size(), [&](uint64_t m) { return plans[m]; });
  EXPECT_EQ(got.wrong, 0) << l.errors() << s.text;
}

INSTANTIATE_TEST_SUITE_P(Seeds, DirectFaults, testing::Range(1u, 33u));

} // namespace

// GPUDirect RDMA where writes are placed in any order, and puts into windows of GPUs.
#include <functional>

#include "gdr_ranks.h"
#include "transport/rma_message.h"
#include "transport/rma_net.h"

namespace {

// ---- order
// ----------------------------------------------------------------------------------------

const std::vector<size_t> kLarge = {kSlot, 81, 40000, 100, 3, kSlot - 1};

// Parts of messages, too, as there are two ports.
TEST(Gdr, DeliveryOutOfOrderIsToldByCompletions) {
  if (!configured("reorder_us 5000\ndevice softhca0 ports=2")) return;
  set("TUTTI_IB_QPS_PER_CONNECTION", "2");
  set("TUTTI_NET_GDR_FLUSH", "off"); // a read waits for the writes before it
  Ranks r(true, true, 4 * kSlot);
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  tuttiConn back = r.a.open(0, TUTTI_RECV), forth = r.b.open(0, TUTTI_SEND);
  std::vector<size_t> sizes = kLarge;
  sizes.push_back(4 * kSlot); // is cut
  EXPECT_EQ(exchange(r, from, to, 500, sizes), 0) << r.a.error << r.b.error;
  closeBoth(r, from, to);
  closeBoth(r, back, forth);
}

/* ThreadSanitizer sees that the bytes are read while they come, which is what is shown here. */
#ifndef __SANITIZE_THREAD__
TEST(Gdr, OnlyCompletionsTellWhatComesOutOfOrder) {
  if (!configured("reorder_us 5000")) return;
  set("TUTTI_IB_ORDER", "writes");
  set("TUTTI_NET_GDR_FLUSH", "off"); // a read waits for the writes before it
  Ranks r;
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_NE(exchange(r, from, to, 200, {kSlot}), 0) << "or the test before could not fail";
  closeBoth(r, from, to);
}
#endif

TEST(Gdr, HostMemoryHasCompletionsWhereTheyAreAskedFor) {
  if (!configured("reorder_us 500")) return;
  set("TUTTI_IB_ORDER", "immediate");
  Ranks r(false, false);
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_EQ(exchange(r, from, to, 500, kLarge), 0) << r.a.error << r.b.error;
  closeBoth(r, from, to);
}

TEST(Gdr, WhatOneSideAsksForBothDo) {
  if (!configured("reorder_us 500")) return;
  for (bool first : {true, false}) { // auto: on GPUs alone
    Ranks r(first, !first);
    r.attach();
    tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
    EXPECT_EQ(exchange(r, from, to, 200, kLarge), 0) << r.a.error << r.b.error;
    closeBoth(r, from, to);
  }
}

TEST(Gdr, APortThatFailsOutOfOrderIsMended) {
  if (!configured("reorder_us 300\ninvisible_ms 1000\ndevice softhca0 ports=2\n"
                  "port softhca0/1 down_frames=300 up_ms=500"))
    return;
  Ranks r;
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_EQ(exchange(r, from, to, 3000, kSizes), 0) << r.a.error << r.b.error;
  closeBoth(r, from, to);
}

// ---- relaxed ordering
// ----------------------------------------------------------------------------------------

// Sends between two ranks on GPUs or hosts, both ways, and puts; all must come right.
void relaxedTraffic(bool onGpu) {
  Ranks r(onGpu, onGpu);
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  tuttiConn back = r.a.open(0, TUTTI_RECV), forth = r.b.open(0, TUTTI_SEND);
  EXPECT_EQ(to.gpuData != 0, onGpu);
  EXPECT_EQ(exchange(r, from, to, 100, kLarge), 0) << r.a.error << r.b.error;
  closeBoth(r, from, to);
  closeBoth(r, back, forth);
}

// Placed late is what goes to memory that is registered so, even behind what comes later on its
// queue pair: a flag would be believed too early. The flush is off, as it waits for the writes.
TEST(Relaxed, MemoryHasCompletionsForItsPayloads) {
  for (bool onGpu : {true, false}) {
    if (!configured("relaxed_us 5000")) return;
    set("TUTTI_IB_PCI_RELAXED_ORDERING", "1");
    set("TUTTI_NET_GDR_FLUSH", "off");
    uint64_t before = softHcaRelaxed();
    relaxedTraffic(onGpu);
    EXPECT_GT(softHcaRelaxed(), before);
  }
}

// The device promises order, which holds for other memory alone.
TEST(Relaxed, MemoryIsNotWhereFlagsAreBelieved) {
  if (!configured("relaxed_us 5000")) return;
  set("TUTTI_NET_GDR_FLUSH", "off");
  const char *const settings[][2] = {{"auto", "auto"}, {"0", "auto"},      {"auto", "writes"},
                                     {"1", "writes"},  {"0", "immediate"}, {"2", "auto"}};
  for (auto [relaxed, order] : settings)
    for (bool onGpu : {true, false}) {
      set("TUTTI_IB_PCI_RELAXED_ORDERING", relaxed);
      set("TUTTI_IB_ORDER", order);
      relaxedTraffic(onGpu);
      EXPECT_EQ(softHcaRelaxed(), 0u) << relaxed << order;
    }
}

// What has completions anyway.
TEST(Relaxed, MemoryIsWhatHasCompletionsAnyway) {
  if (!configured("relaxed_us 5000")) return;
  set("TUTTI_NET_GDR_FLUSH", "off");
  set("TUTTI_IB_ORDER", "immediate");
  for (bool onGpu : {true, false}) {
    uint64_t before = softHcaRelaxed();
    relaxedTraffic(onGpu);
    EXPECT_GT(softHcaRelaxed(), before);
  }
}

TEST(Relaxed, GpuMemoryIsWhereTheDeviceDoesNotPromiseOrder) {
  if (!configured("reorder_us 500")) return;
  set("TUTTI_NET_GDR_FLUSH", "off");
  relaxedTraffic(true);
  EXPECT_GE(softHcaRelaxed(), 2 + 2u) << "the slabs, and the FIFOs of who receives";
}

TEST(Relaxed, DevicesThatRefuseGoWithout) {
  if (!configured("relaxing no")) return;
  set("TUTTI_IB_PCI_RELAXED_ORDERING", "1");
  relaxedTraffic(true);
  relaxedTraffic(false);
  EXPECT_EQ(softHcaRelaxed(), 0u);
}

TEST(Relaxed, APortThatFailsIsMended) {
  if (!configured("relaxed_us 300\ninvisible_ms 1000\ndevice softhca0 ports=2\n"
                  "port softhca0/1 down_frames=300 up_ms=500"))
    return;
  set("TUTTI_IB_PCI_RELAXED_ORDERING", "1");
  Ranks r;
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_EQ(exchange(r, from, to, 3000, kSizes), 0) << r.a.error << r.b.error;
  closeBoth(r, from, to);
}

TEST(Relaxed, OtherWordsAreRefused) {
  for (const char *wrong : {"3", "yes", "12", "-1"}) {
    setenv("TUTTI_IB_PCI_RELAXED_ORDERING", wrong, 1);
    EXPECT_EQ(tuttiSettingsLoad(), tuttiInvalidArgument) << wrong;
    EXPECT_THAT(tuttiErrorText(), testing::HasSubstr("accepted: 0, 1 or auto"));
  }
  unsetenv("TUTTI_IB_PCI_RELAXED_ORDERING");
  EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess);
}

// ---- one-sided operations
// ----------------------------------------------------------------------------------------

constexpr uint32_t kWindow = 3;

// Who takes puts into a window of the GPU, by copies of the driver as the library's.
struct Taker {
  Rank &rank;
  tuttiConn &conn;
  cuPointer window = 0;
  size_t bytes;
  tuttiRmaKeys keys{};
  std::atomic<int> stores{0};
  tuttiAtomic64 counters[4]{}; // two for each rank
  tuttiRmaNet *net = nullptr;

  static tuttiResult_t store(void *self, void *to, const void *from, size_t n) {
    Taker *t = static_cast<Taker *>(self);
    std::vector<uint8_t> data(n);
    t->stores++;
    const uint8_t *at = static_cast<const uint8_t *>(from);
    bool onGpu = t->conn.gpuData && at >= t->conn.data &&
                 at < t->conn.data + TUTTI_FIFO_DEPTH * t->conn.slotBytes;
    if (onGpu)
      cuMemcpyDtoH_v2(data.data(), pointerOf(from), n);
    else
      memcpy(data.data(), from, n);
    return cuMemcpyHtoD_v2(pointerOf(to), data.data(), n) == CU_OK ? tuttiSuccess
                                                                   : tuttiUnhandledCudaError;
  }
  Taker(Rank &r, tuttiConn &c, size_t size) : rank(r), conn(c), bytes(size) {
    EXPECT_EQ(tuttiProxyCreate(&r.view.taker, Rank::fail, &r), tuttiSuccess);
    EXPECT_EQ(cuMemAlloc_v2(&window, bytes), CU_OK);
    tuttiRmaHome home{};
    home.view = &r.view;
    home.taker = r.view.taker;
    home.counters = counters;
    home.row = home.used = 2;
    home.store = store;
    home.owner = this;
    home.lookMs = 1;
    EXPECT_EQ(tuttiRmaNetCreate(&home, &net), tuttiSuccess);
    void *base = reinterpret_cast<void *>(window); // NOLINT: the ABI's integer
    EXPECT_EQ(tuttiRmaNetWindowOpen(net, kWindow, base, bytes, &keys), tuttiSuccess);
    EXPECT_EQ(tuttiRmaNetListen(net, &conn), tuttiSuccess);
  }
  ~Taker() {
    tuttiRmaNetFree(net);
    tuttiProxyDestroy(rank.view.taker);
    rank.view.taker = nullptr;
    EXPECT_EQ(cuMemFree_v2(window), CU_OK);
  }
  // Runs the network's loop, as the thread of a proxy that a waiting kernel keeps looking.
  bool await(uint64_t signals) {
    tuttiProxyEnter(rank.view.proxy);
    uint64_t end = tuttiNow() + kLongNs;
    while (tuttiLoadAcquire(&counters[1]) < signals && !tuttiLoadAcquire32(&rank.failed) &&
           tuttiNow() < end)
      if (!tuttiProxyRun(rank.view.proxy)) sched_yield();
    tuttiProxyLeave(rank.view.proxy);
    return tuttiLoadAcquire(&counters[1]) == signals;
  }
  std::vector<uint8_t> look() const {
    std::vector<uint8_t> data(bytes);
    cuMemcpyDtoH_v2(data.data(), window, bytes);
    return data;
  }
};

// A put as kernels/relay.cuh writes it, with signal 1, into a window that begins at `base`.
bool put(Rank &r, tuttiConn &c, const std::vector<uint8_t> &data, size_t offset, uint64_t base,
         const tuttiRmaKeys &keys) {
  size_t at = 0, piece;
  do {
    piece = std::min(data.size() - at, c.slotBytes);
    bool inlined = piece <= TUTTI_INLINE_MAX - sizeof(tuttiRmaHeader);
    if (!r.await(c)) return false;
    tuttiSlotDescriptor *slot = tuttiConnDescriptor(&c);
    tuttiRmaTarget target{};
    target.header = {offset + at, kWindow, static_cast<uint32_t>(piece), 1,
                     at + piece == data.size()};
    target.to = base + offset + at;
    target.keys = keys;
    memcpy(slot->inlined, &target, sizeof target);
    slot->bytes = static_cast<uint32_t>(piece + (inlined ? sizeof target.header : 0));
    slot->where = inlined ? TUTTI_WHERE_INLINE : TUTTI_WHERE_SLOT;
    slot->sig = tuttiSignature{};
    uint8_t *to = inlined ? slot->inlined + sizeof target.header : tuttiConnData(&c, piece);
    if (!inlined && c.gpuData && piece > c.smallBytes)
      cuMemcpyHtoD_v2(pointerOf(to), data.data() + at, piece);
    else
      std::copy_n(data.begin() + static_cast<long>(at), piece, to);
    tuttiConnAdvance(&c);
    tuttiProxyKick(r.view.proxy);
    at += piece;
  } while (at < data.size());
  return true;
}

// Puts of sizes by turns, each into the next place; none may be missing or mixed up when the last
// signal has come. `straight`: with the keys of the window. Returns how often the taker had to
// copy.
int putAll(Ranks &r, int puts, bool straight) {
  const std::vector<size_t> sizes = {0,    1,     56,        57,        80,    81,
                                     5000, kSlot, kSlot + 1, 32 * 1024, 32769, 3 * kSlot + 77};
  tuttiConn from = r.a.open(TUTTI_RMA_CHANNEL, TUTTI_SEND),
            to = r.b.open(TUTTI_RMA_CHANNEL, TUTTI_RECV);
  size_t room = 4 * kSlot;
  int stores = 0;
  {
    Taker taker(r.b, to, room * sizes.size());
    tuttiRmaKeys keys = straight ? taker.keys : tuttiRmaKeys{};
    std::vector<uint8_t> want = taker.look();
    std::vector<std::vector<uint8_t>> data;
    for (int i = 0; i < puts; i++) {
      size_t n = static_cast<size_t>(i) % sizes.size();
      data.emplace_back(sizes[n]);
      for (size_t k = 0; k < sizes[n]; k++)
        data.back()[k] = byteOf(static_cast<uint64_t>(i), k);
      std::copy(data.back().begin(), data.back().end(),
                want.begin() + static_cast<long>(n * room + 3));
    }
    std::thread sender([&] {
      for (size_t i = 0; i < data.size(); i++)
        if (!put(r.a, from, data[i], i % sizes.size() * room + 3, taker.window, keys)) return;
    });
    EXPECT_TRUE(taker.await(static_cast<uint64_t>(puts))) << r.a.error << r.b.error;
    EXPECT_TRUE(taker.look() == want);
    EXPECT_EQ(tuttiLoadAcquire(&taker.counters[0]), 0u);
    if (tuttiLoadAcquire(&taker.counters[1]) < static_cast<uint64_t>(puts))
      tuttiStoreRelease32(&r.a.failed, 1);
    sender.join();
    stores = taker.stores;
  }
  closeBoth(r, from, to);
  return stores;
}

// Of so many puts, the pieces whose data is in their descriptor: of 1 and 56 bytes, and the last
// one of kSlot + 1.
int inlined(int puts) {
  return puts / 12 * 3;
}

TEST(GdrPuts, GoIntoWindowsWhereverTheirSlotsAre) {
  if (!configured("movers 1")) return;
  for (bool first : {true, false})
    for (bool second : {true, false}) {
      Ranks r(first, second);
      r.attach();
      EXPECT_GT(putAll(r, 60, false), inlined(60));
    }
  EXPECT_EQ(allocations, 0);
}

TEST(GdrPuts, GoStraightIntoTheWindow) {
  if (!configured("movers 1")) return;
  for (bool first : {true, false}) {
    Ranks r(first, true);
    r.attach();
    EXPECT_EQ(putAll(r, 60, true), inlined(60)) << "nothing else is copied";
  }
}

// Some ports of the receiver have no key: what goes by them takes the slots.
TEST(GdrPuts, GoThroughSlotsWhereAKeyIsMissing) {
  if (!configured("movers 1\ndevice softhca0 ports=2")) return;
  for (int missing : {0, 1}) {
    Ranks r;
    r.attach();
    tuttiConn from = r.a.open(TUTTI_RMA_CHANNEL, TUTTI_SEND),
              to = r.b.open(TUTTI_RMA_CHANNEL, TUTTI_RECV);
    {
      Taker taker(r.b, to, kSlot);
      tuttiRmaKeys keys = taker.keys;
      EXPECT_NE(keys.key[0], 0u);
      EXPECT_NE(keys.key[1], 0u);
      keys.key[missing] = 0;
      std::vector<uint8_t> data(kSlot, 7);
      std::thread sender([&] { EXPECT_TRUE(put(r.a, from, data, 0, taker.window, keys)); });
      EXPECT_TRUE(taker.await(1)) << r.a.error << r.b.error;
      sender.join();
      EXPECT_EQ(taker.stores, 1);
      EXPECT_TRUE(taker.look() == data);
    }
    closeBoth(r, from, to);
  }
}

// What lies in a window that was closed, or beyond its end, is not for peers to write to.
TEST(GdrPuts, AClosedWindowIsNotWrittenTo) {
  if (!configured("movers 1")) return;
  for (bool closed : {false, true}) {
    Ranks r;
    r.attach();
    tuttiConn from = r.a.open(TUTTI_RMA_CHANNEL, TUTTI_SEND),
              to = r.b.open(TUTTI_RMA_CHANNEL, TUTTI_RECV);
    {
      Taker taker(r.b, to, kSlot);
      std::vector<uint8_t> before = taker.look(), data(kSlot, 7);
      if (closed) tuttiRmaNetWindowClose(taker.net, kWindow);
      std::thread sender([&] { put(r.a, from, data, closed ? 0 : 1, taker.window, taker.keys); });
      sender.join();
      tuttiProxyEnter(r.a.view.proxy);
      uint64_t end = tuttiNow() + kLongNs;
      while (!tuttiLoadAcquire32(&r.a.failed) && tuttiNow() < end)
        if (!tuttiProxyRun(r.a.view.proxy)) sched_yield();
      tuttiProxyLeave(r.a.view.proxy);
      EXPECT_THAT(r.a.error, testing::HasSubstr("remote access error"));
      EXPECT_TRUE(taker.look() == before);
      EXPECT_EQ(tuttiLoadAcquire(&taker.counters[1]), 0u);
    }
    closeBoth(r, from, to);
  }
}

TEST(GdrPuts, AreFlushedBeforeTheyAreTaken) {
  if (!configured("invisible_ms 1000")) return;
  for (bool straight : {false, true}) {
    Ranks r;
    r.attach();
    int stores = putAll(r, 60, straight);
    EXPECT_EQ(stores == inlined(60), straight);
  }
}

// The window, too; and on the host as on the GPU.
TEST(GdrPuts, GoIntoRelaxedWindows) {
  if (!configured("relaxed_us 2000")) return;
  set("TUTTI_IB_PCI_RELAXED_ORDERING", "1");
  set("TUTTI_NET_GDR_FLUSH", "off");
  Ranks r;
  r.attach();
  uint64_t before = softHcaRelaxed();
  EXPECT_EQ(putAll(r, 120, true), inlined(120));
  EXPECT_GE(softHcaRelaxed(), before + 2) << "window and FIFO";
}

TEST(GdrPuts, AreNotLostWithAPort) {
  for (bool straight : {false, true}) {
    if (!configured("reorder_us 300\ninvisible_ms 1000\ndevice softhca0 ports=2\n"
                    "port softhca0/1 down_frames=300 up_ms=500"))
      return;
    Ranks r;
    r.attach();
    putAll(r, 400, straight);
  }
}

} // namespace

/* One-sided operations by messages: the kernel that writes them, run by threads of the CPU, over
 * the library's own connections, to the proxy that takes them. No GPU is needed, but CUDA's
 * headers. */
#ifdef TUTTI_HAVE_CUDA
#include "device/cuda/relay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "transport/local_world.h"
#include "transport/net_pair.h"

/* ---- a GPU of CPU threads --------------------------------------------------------------------
 * What kernels/relay.cuh takes from CUDA and from headers of PTX. */

namespace {

struct Index {
  unsigned x;
};
thread_local Index threadIdx, blockDim;
thread_local pthread_barrier_t *block;

void __syncthreads() { // NOLINT: CUDA's name
  pthread_barrier_wait(block);
}

struct alignas(16) tuttiPair {
  uint64_t x, y;
};
tuttiPair loadPairVolatile(const void *at) {
  return *static_cast<const tuttiPair *>(at);
}
void storePairVolatile(void *at, tuttiPair v) {
  uint64_t *words = static_cast<uint64_t *>(at);
  __atomic_store_n(&words[1], v.y, __ATOMIC_RELEASE);
  __atomic_store_n(&words[0], v.x, __ATOMIC_RELEASE);
}
uint64_t loadAcquireSys(const uint64_t *at) {
  sched_yield(); /* there are few cores */
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}
uint32_t loadRelaxedSys32(const uint32_t *at) {
  return __atomic_load_n(at, __ATOMIC_RELAXED);
}
/* Where a fence is in front of it: stronger, for ThreadSanitizer knows no fences. */
void storeRelaxedSys(uint64_t *at, uint64_t v) {
  __atomic_store_n(at, v, __ATOMIC_RELEASE);
}
void fenceSys() {}
uint64_t nanoseconds() {
  return tuttiNow();
}
uint32_t atomicCAS(uint32_t *at, uint32_t wanted, uint32_t v) {
  sched_yield();
  __atomic_compare_exchange_n(at, &wanted, v, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return wanted;
}
unsigned long long atomicAdd(unsigned long long *at, unsigned long long v) {
  return __atomic_fetch_add(at, v, __ATOMIC_ACQ_REL);
}
void followEarly() {}
void atomicExch(uint32_t *at, uint32_t v) {
  __atomic_store_n(at, v, __ATOMIC_RELEASE);
}
constexpr uint32_t kLooks = 200;
constexpr uint64_t kReportNs = 1000000;

} // namespace

#define __device__                                 // NOLINT: CUDA's names
#define __noinline__ __attribute__((__noinline__)) // NOLINT
#define TUTTI_KERNELS_ALLPAIRS_BLOCK_CUH_
#define TUTTI_KERNELS_PTX_CUH_
#include "kernels/relay.cuh"

namespace {

using testing::HasSubstr;

/* A launch of a kernel, to its end. */
void launch(unsigned nthreads, const std::function<void()> &kernel) {
  pthread_barrier_t barrier;
  std::vector<std::thread> threads;
  pthread_barrier_init(&barrier, nullptr, nthreads);
  for (unsigned i = 0; i < nthreads; i++)
    threads.emplace_back([&, i] {
      threadIdx = {i};
      blockDim = {nthreads};
      block = &barrier;
      kernel();
    });
  for (auto &t : threads)
    t.join();
  pthread_barrier_destroy(&barrier);
}

/* ---- two ranks ------------------------------------------------------------------------------- */

constexpr int kContexts = 2, kSignals = 3, kUsed = kContexts * kSignals;
constexpr uint32_t kWindow = 7;

/* The sender's GPU. */
struct Sender {
  tuttiTaskContext context{};
  tuttiKernelStatus status{};
  tuttiCudaRelay relay{};
  tuttiRingTreeEndpoint endpoint{};
  uint32_t guard = 0;

  explicit Sender(tuttiConn &conn) {
    relay.context = &context;
    relay.status = &status;
    endpoint.descriptors = conn.descriptors;
    endpoint.reader = conn.readers;
    endpoint.data = conn.data;
    endpoint.next = conn.next;
    endpoint.ndescriptors = conn.ndescriptors;
    endpoint.slotBytes = (uint32_t)conn.slotBytes;
  }
  /* As tuttiCudaRelayAnnounce, with one proxy. */
  void serve(tuttiProxy *proxy) {
    relay.servers[0].relay = &relay;
    tuttiProxyOp op{};
    op.advance = tuttiCudaRelayServe;
    op.close = tuttiProxyNothingToClose;
    op.halt = tuttiProxyNothingToHalt;
    op.tell = tuttiProxyNothingToTell;
    op.self = &relay.servers[0];
    ASSERT_EQ(tuttiProxyAdd(proxy, &op), tuttiSuccess);
  }
  void put(const uint8_t *from, size_t bytes, size_t offset, int context = 0, int signal = 0) {
    tuttiRelayArgs args{};
    args.endpoint = &endpoint;
    args.guard = &guard;
    args.from = from;
    args.bytes = bytes;
    args.target.header = {offset, bytes ? kWindow : 0, 0, (uint32_t)(context * kSignals + signal),
                          0};
    args.status = &status;
    args.counter = 42;
    Relay shared;
    launch(5, [&] { relayPut(args, shared); });
  }
};

/* Who takes messages, into a window of the memory that `store` alone writes to. */
struct Receiver {
  tuttiCommView &view;
  tuttiAtomic64 counters[2 * kUsed]{};
  tuttiRmaNet *net = nullptr;
  std::vector<uint8_t> window;
  std::mutex lock;
  std::string error;

  static tuttiResult_t store(void *, void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
    return tuttiSuccess;
  }
  static void fail(void *self, tuttiResult_t, const char *text) {
    Receiver *r = static_cast<Receiver *>(self);
    std::lock_guard<std::mutex> guard(r->lock);
    r->error = text;
  }
  Receiver(tuttiCommView &v, tuttiConn &conn, size_t bytes) : view(v), window(bytes, 0xa5) {
    EXPECT_EQ(tuttiProxyCreate(&view.taker, fail, this), tuttiSuccess);
    tuttiRmaHome home{};
    home.view = &view;
    home.taker = view.taker;
    home.counters = counters;
    home.row = home.used = kUsed;
    home.store = store;
    home.owner = this;
    home.lookMs = 1;
    EXPECT_EQ(tuttiRmaNetCreate(&home, &net), tuttiSuccess);
    tuttiRmaKeys keys{};
    EXPECT_EQ(tuttiRmaNetWindowOpen(net, kWindow, window.data(), bytes, &keys), tuttiSuccess);
    EXPECT_EQ(tuttiRmaNetListen(net, &conn), tuttiSuccess);
  }
  ~Receiver() {
    tuttiRmaNetFree(net);
    tuttiProxyDestroy(view.taker);
    view.taker = nullptr;
  }
  uint64_t come(int context = 0, int signal = 0) {
    return tuttiLoadAcquire(&counters[context * kSignals + signal]); /* of rank 0 */
  }
  bool await(uint64_t signals, int context = 0, int signal = 0) {
    return net::Rank::Sleep([&] { return come(context, signal) >= signals; });
  }
  std::string awaitError() {
    std::string text;
    net::Rank::Sleep([&] {
      std::lock_guard<std::mutex> guard(lock);
      text = error;
      return !text.empty();
    });
    return text;
  }
};

std::vector<uint8_t> noise(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> v(n);
  for (auto &b : v)
    b = (uint8_t)random();
  return v;
}

/* Any size, from and to any alignment, each with a signal of its own behind it. */
void putAll(Sender &from, Receiver &to, size_t slotBytes) {
  std::mt19937 random(5);
  const auto source = noise(6 * slotBytes, 1);
  auto want = to.window;
  uint64_t sent[kContexts][kSignals] = {};
  for (size_t base : {(size_t)0, (size_t)TUTTI_RELAY_INLINE, (size_t)TUTTI_INLINE_MAX, (size_t)1000,
                      slotBytes, 5 * slotBytes})
    for (size_t bytes = base ? base - 2 : 0; bytes <= base + 2; bytes++) {
      size_t at = random() % 64, begin = random() % 64;
      int context = (int)(random() % kContexts), signal = (int)(random() % kSignals);
      from.put(source.data() + begin, bytes, at, context, signal);
      std::copy_n(source.begin() + (long)begin, bytes, want.begin() + (long)at);
      ASSERT_TRUE(to.await(++sent[context][signal], context, signal)) << bytes << to.error;
      ASSERT_TRUE(to.window == want) << bytes << " bytes from " << begin << " to " << at;
    }
  for (int c = 0; c < kContexts; c++)
    for (int s = 0; s < kSignals; s++)
      EXPECT_EQ(to.come(c, s), sent[c][s]);
  for (int i = kUsed; i < 2 * kUsed; i++)
    EXPECT_EQ(tuttiLoadAcquire(&to.counters[i]), 0u) << "of nobody's";
}

/* Launches that nothing orders: a graph beside eager calls. None has part of another's messages. */
void putFromMany(Sender &from, Receiver &to, size_t slotBytes) {
  constexpr int puts = 30;
  constexpr size_t n = 3;
  size_t bytes = 2 * slotBytes + 100;
  std::vector<std::thread> streams;
  for (size_t i = 0; i < n; i++)
    streams.emplace_back([&, i] {
      const auto source = noise(bytes, (unsigned)i);
      for (int k = 0; k < puts; k++) {
        from.put(source.data(), bytes, i * bytes);
        from.put(nullptr, 0, 0, 1, (int)i);
      }
    });
  for (auto &s : streams)
    s.join();
  ASSERT_TRUE(to.await(n * puts)) << to.error;
  for (size_t i = 0; i < n; i++) {
    const auto source = noise(bytes, (unsigned)i);
    EXPECT_TRUE(to.await(puts, 1, (int)i));
    EXPECT_TRUE(std::equal(source.begin(), source.end(), to.window.begin() + (long)(i * bytes)));
  }
  EXPECT_EQ(to.come(), n * puts);
}

/* ---- over sockets ---------------------------------------------------------------------------- */

constexpr size_t kSlot = 8192;

struct OverSockets {
  net::Rank a, b;
  tuttiConn out{}, in{};
  std::unique_ptr<Sender> sender;
  std::unique_ptr<Receiver> receiver;

  OverSockets() {
    a.Prepare(0, kSlot, 60000, true);
    b.Prepare(1, kSlot, 60000, true);
    a.Meet(b.peers[1]);
    b.Meet(a.peers[0]);
    in = b.Open(TUTTI_RMA_CHANNEL, TUTTI_RECV);
    out = a.Open(TUTTI_RMA_CHANNEL, TUTTI_SEND);
    sender = std::make_unique<Sender>(out);
    sender->serve(a.w.proxy);
    receiver = std::make_unique<Receiver>(b.w, in, 10 * kSlot);
  }
  ~OverSockets() {
    tuttiProxyRemove(a.w.proxy, &sender->relay.servers[0]);
    receiver.reset();
    a.Close(&out);
    b.Close(&in);
  }
};

TEST(CudaRelay, PutsGoOverSockets) {
  OverSockets w;
  putAll(*w.sender, *w.receiver, kSlot);
}

TEST(CudaRelay, PutsThatNothingOrdersGoOverSockets) {
  OverSockets w;
  putFromMany(*w.sender, *w.receiver, kSlot);
}

/* A window that has been closed, or is too small. */
TEST(CudaRelay, WhatFitsNoWindowIsToldByTheReceiver) {
  for (bool closed : {false, true}) {
    OverSockets w;
    const auto source = noise(1000, 1);
    if (closed) tuttiRmaNetWindowClose(w.receiver->net, kWindow);
    w.sender->put(source.data(), 1000, closed ? 0 : 10 * kSlot - 999);
    EXPECT_THAT(w.receiver->awaitError(),
                HasSubstr(closed ? "has no window #7 open" : "past the end of its window"));
    EXPECT_EQ(w.receiver->come(), 0u);
    for (uint8_t b : w.receiver->window)
      ASSERT_EQ(b, 0xa5);
  }
}

/* A message as it should never be written. */
void send(tuttiConn &c, const void *inlined, tuttiWhere where, size_t bytes) {
  tuttiSlotDescriptor *slot = tuttiConnDescriptor(&c);
  slot->bytes = (uint32_t)bytes;
  slot->where = where;
  memcpy(slot->inlined, inlined, TUTTI_INLINE_MAX);
  tuttiConnAdvance(&c);
}

TEST(CudaRelay, MalformedMessagesAreRefused) {
  const tuttiRmaHeader good = {0, kWindow, 40, 0, 1};
  const char *const size = "its data is of another size than its header says";
  struct {
    tuttiRmaHeader header;
    tuttiWhere where;
    size_t bytes;
    const char *text;
  } cases[] = {
      {good, TUTTI_WHERE_INLINE, sizeof good - 1, "it has no header"},
      {good, TUTTI_WHERE_INLINE, sizeof good, size},
      {good, TUTTI_WHERE_INLINE, sizeof good + 41, size},
      {good, TUTTI_WHERE_SLOT, 39, size},
      {{0, kWindow, 40, kUsed, 1}, TUTTI_WHERE_SLOT, 40, "its header is malformed"},
      {{0, kWindow, 40, 0, 2}, TUTTI_WHERE_INLINE, sizeof good + 40, "its header is malformed"}};
  for (auto &c : cases) {
    OverSockets w;
    uint8_t bytes[TUTTI_INLINE_MAX] = {};
    memcpy(bytes, &c.header, sizeof c.header);
    send(w.out, bytes, c.where, c.bytes);
    tuttiProxyKick(w.a.w.proxy);
    EXPECT_THAT(w.receiver->awaitError(), HasSubstr(c.text));
    EXPECT_EQ(w.receiver->come(), 0u);
    for (uint8_t b : w.receiver->window)
      ASSERT_EQ(b, 0xa5);
  }
}

/* ---- over shared memory ---------------------------------------------------------------------- */

/* Ranks with a GPU have a FIFO for puts in their segment; staged ones have no other. */
struct OverShm {
  local::Ranks ranks;
  tuttiConn out{}, in{};
  std::unique_ptr<Sender> sender;
  std::unique_ptr<Receiver> receiver;

  OverShm(int nranks, size_t stagedBytes) {
    local::Shape shape;
    shape.nranks = nranks;
    shape.slotBytes = kSlot;
    ranks = local::makeThreads(shape);
    for (auto &r : ranks) {
      r->mine.device = tuttiDeviceCuda; /* but no GPU to pin for */
      r->mine.p2pDisabled = 1;
      r->w.stagedBytes = stagedBytes;
    }
    local::prepareAll(ranks);
    for (auto &r : ranks)
      EXPECT_EQ(r->attach(), tuttiSuccess) << tuttiErrorText();
    out = ranks[0]->open(1, TUTTI_RMA_CHANNEL, TUTTI_SEND);
    in = ranks[1]->open(0, TUTTI_RMA_CHANNEL, TUTTI_RECV);
    sender = std::make_unique<Sender>(out);
    receiver = std::make_unique<Receiver>(ranks[1]->w, in, 10 * kSlot);
  }
  ~OverShm() { receiver.reset(); }
};

TEST(CudaRelay, PutsGoOverShm) {
  for (size_t staged : {0, 100000})
    for (int nranks : {2, 4}) {
      OverShm w(nranks, staged);
      if (!testing::Test::HasFatalFailure()) putAll(*w.sender, *w.receiver, kSlot);
    }
}

TEST(CudaRelay, PutsThatNothingOrdersGoOverShm) {
  OverShm w(2, 100000);
  putFromMany(*w.sender, *w.receiver, kSlot);
}

/* No FIFO for puts touches another, nor the symmetric block of staged GPUs. */
TEST(CudaRelay, EachPairHasAFifoOfItsOwn) {
  constexpr int n = 4;
  constexpr size_t staged = 100000;
  OverShm w(n, staged);
  std::vector<std::pair<uint8_t *, uint8_t *>> ranges;
  for (int r = 0; r < n; r++) {
    uint8_t *block = (uint8_t *)tuttiSegmentMemory(&w.ranks[(size_t)r]->w, r);
    ranges.push_back({block, block + staged});
    for (int p = 0; p < n; p++) {
      if (p == r) continue;
      tuttiConn c = w.ranks[(size_t)r]->open(p, TUTTI_RMA_CHANNEL, TUTTI_SEND);
      uint8_t *at = (uint8_t *)c.descriptors;
      ranges.push_back({at, at + tuttiFifoControlBytes(c.ndescriptors, 1)});
      ranges.push_back({c.data, c.data + TUTTI_FIFO_DEPTH * c.slotBytes});
      EXPECT_EQ((uintptr_t)c.data % TUTTI_LINE, 0u);
    }
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); i++)
    EXPECT_LE(ranges[i - 1].second, ranges[i].first);
  for (auto &range : ranges)
    memset(range.first, 0, (size_t)(range.second - range.first)); /* all of it is there */
}

/* ---- without a receiver ---------------------------------------------------------------------- */

/* A put that waits for room says so, keeps proxies looking, and ends with its communicator. */
TEST(CudaRelay, AnAbortEndsAPutThatHasNoRoom) {
  OverShm w(2, 100000);
  Sender s(w.out);
  w.receiver.reset(); /* nobody takes anything */
  const auto source = noise(20 * kSlot, 1);
  std::atomic<bool> ended{false};
  std::thread launched([&] {
    s.put(source.data(), 20 * kSlot, 0);
    ended = true;
  });
  auto told = [&] {
    return __atomic_load_n(&s.status.late[tuttiSignalLateAt(42)].wait, __ATOMIC_ACQUIRE);
  };
  EXPECT_TRUE(net::Rank::Sleep([&] { return told() != 0; }));
  EXPECT_EQ((uint32_t)told(), 42u);
  EXPECT_EQ(s.status.late[tuttiSignalLateAt(42)].amount, 0u) << "no signals are waited for";
  EXPECT_FALSE(ended);
  uint64_t busy = loadAcquireSys(&s.status.busy);
  EXPECT_TRUE(net::Rank::Sleep([&] { return loadAcquireSys(&s.status.busy) != busy; }));
  std::thread second([&] { s.put(source.data(), 8, 0); }); /* which waits for the first */
  __atomic_store_n(&s.status.abort, 1, __ATOMIC_RELEASE);
  launched.join();
  second.join();
}

/* ---- waits ----------------------------------------------------------------------------------- */

/* Signals of both kinds at once. Only those that proxies bring keep proxies looking. */
TEST(CudaRelay, AWaitLooksWhereTheSignalsOfEachPeerCome) {
  constexpr uint32_t n = 4;
  uint64_t arrived[n] = {}, relayed[n] = {}, taken[n] = {}, count = 0;
  tuttiKernelStatus status{};
  tuttiAwaitArgs args{};
  args.arrived = arrived;
  args.relayed = relayed;
  args.taken = taken;
  args.ended = &count;
  args.status = &status;
  args.n = 3;
  args.of[0] = {1, 2, 0};
  args.of[1] = {2, 3, 1};
  args.of[2] = {3, 0, 1}; /* none */
  auto add = [](uint64_t &counter) { __atomic_fetch_add(&counter, 1, __ATOMIC_RELEASE); };
  auto busy = [&] { return loadAcquireSys(&status.busy); };
  for (int round = 1; round <= 3; round++) {
    std::atomic<bool> ended{false};
    std::thread wait([&] {
      launch(TUTTI_AWAIT_MOST, [&] { awaitSignals(args); });
      ended = true;
    });
    EXPECT_TRUE(net::Rank::Sleep([&] { return busy() != 0; }));
    for (int i = 0; i < 3; i++)
      add(relayed[2]);
    add(arrived[2]); /* of a peer that has none there */
    add(relayed[1]);
    add(arrived[1]);
    usleep(2000);
    EXPECT_FALSE(ended) << "one is missing";
    EXPECT_EQ(loadAcquireSys(&count), (uint64_t)round - 1);
    auto isQuiet = [&] {
      uint64_t before = busy();
      usleep(2000);
      return busy() == before;
    };
    EXPECT_TRUE(net::Rank::Sleep(isQuiet)) << "what is missing comes without a proxy";
    add(arrived[1]);
    wait.join();
    EXPECT_EQ(taken[1], 2u * (unsigned)round);
    EXPECT_EQ(taken[2], 3u * (unsigned)round);
    EXPECT_EQ(taken[3], 0u);
    EXPECT_EQ(count, (uint64_t)round) << "it counts itself once";
    status.busy = 0;
  }
}

TEST(CudaRelay, AWaitTellsWhatIsMissingUntilItsAbort) {
  uint64_t arrived[1] = {}, relayed[1] = {2}, taken[1] = {};
  tuttiKernelStatus status{};
  tuttiAwaitArgs args{};
  args.arrived = arrived;
  args.relayed = relayed;
  args.taken = taken;
  args.status = &status;
  args.n = 1;
  args.of[0] = {0, 5, 1};
  std::thread wait([&] { launch(TUTTI_AWAIT_MOST, [&] { awaitSignals(args); }); });
  auto told = [&] { return __atomic_load_n(&status.late[0].wait, __ATOMIC_ACQUIRE); };
  EXPECT_TRUE(net::Rank::Sleep([&] { return told() >> 32 > 2; }));
  EXPECT_EQ(status.late[0].amount, (uint64_t)2 << 32 | 5);
  __atomic_store_n(&status.abort, 1, __ATOMIC_RELEASE);
  wait.join();
}

/* ---- proxies --------------------------------------------------------------------------------- */

/* Its proxies look for a while after the last word of a kernel, then now and then. */
TEST(CudaRelay, ProxiesLookWhileKernelsSayThatTheyHaveMessages) {
  tuttiConn none{};
  Sender s(none);
  tuttiCudaRelayServer server{};
  server.relay = &s.relay;
  auto turn = [&](uint64_t *wake) {
    tuttiProxyTurn t{};
    t.wake = UINT64_MAX;
    tuttiProxyState state = tuttiCudaRelayServe(&server, &t);
    *wake = t.wake;
    return state;
  };
  uint64_t wake;
  EXPECT_EQ(turn(&wake), TUTTI_PROXY_IDLE);
  EXPECT_LT(wake, tuttiNow() + 10000000) << "and looks again";
  s.status.busy = 5;
  EXPECT_EQ(turn(&wake), TUTTI_PROXY_WAITING);
  EXPECT_EQ(wake, 0u) << "at once";
  usleep(2000);
  EXPECT_EQ(turn(&wake), TUTTI_PROXY_IDLE);
  EXPECT_LT(wake, tuttiNow() + 1000000) << "and soon again, as there was something";
  tuttiStoreRelease(&s.relay.busyUntil, tuttiNow() + 1000000000);
  EXPECT_EQ(turn(&wake), TUTTI_PROXY_WAITING) << "a launch was announced";
}

} // namespace

#endif

// A communicator's worth of ranks without the layers above: records are exchanged in memory, and
// only the transports of one host take part.
#ifndef TUTTI_TESTS_TRANSPORT_LOCAL_WORLD_H_
#define TUTTI_TESTS_TRANSPORT_LOCAL_WORLD_H_

#include <gtest/gtest.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/backoff.h"
#include "base/error.h"
#include "base/os.h"
#include "base/settings.h"
#include "holdings.h"
#include "proxy/proxy.h"
#include "transport/segment.h"

namespace local {

struct Shape {
  int nranks = 2;
  int nchannels = 2;
  size_t slotBytes = 1024;
  uint64_t timeoutMs = 60000;
  uint64_t commHash = 0x1234;
  uint8_t secret = 7;
  bool oversubscribed = true;
};

// One rank: what the comm layer would hold.
struct Rank {
  tuttiCommView w{};
  tuttiPeer mine{};
  tuttiMemAccount memory{};
  tuttiAtomic32 failed{};
  std::vector<tuttiPeer> peers;
  std::vector<tuttiPath> paths;

  Rank(const Shape &s, int rank, uint64_t process = 1, uint64_t hostId = 0xabcdef0123456789) {
    w.rank = rank;
    w.nranks = s.nranks;
    w.commHash = s.commHash;
    memset(w.secret, s.secret, sizeof w.secret);
    w.nchannels = s.nchannels;
    w.slotBytes = s.slotBytes;
    w.oversubscribed = s.oversubscribed;
    w.timeoutMs = s.timeoutMs;
    w.failed = &failed;
    w.memory = &memory;
    w.netName = "";
    mine.version = TUTTI_VERSION_CODE;
    mine.rank = rank;
    mine.nranks = s.nranks;
    mine.device = tuttiDeviceHost;
    mine.cudaDevice = -1;
    mine.cores = 1;
    mine.p2pDisabled = (int32_t)tuttiSettingInt(TUTTI_SETTING_P2P_DISABLE);
    mine.shmDisabled = (int32_t)tuttiSettingInt(TUTTI_SETTING_SHM_DISABLE);
    mine.pid = getpid();
    mine.process = process;
    mine.hostId = hostId;
    snprintf(mine.host, sizeof mine.host, "node%d", (int)(hostId & 0xf));
    peers.resize((size_t)s.nranks);
    w.peers = peers.data();
  }
  Rank(const Rank &) = delete;
  ~Rank() { detach(); }

  // As src/wireup does.
  void fillPaths() {
    paths.assign(peers.size(), tuttiPath{});
    for (size_t r = 0; r < peers.size(); r++)
      if ((int)r != w.rank) tuttiTransportSelect(&peers[(size_t)w.rank], &peers[r], &paths[r]);
    w.paths = paths.data();
  }
  tuttiResult_t prepare() { return tuttiTransportShm.prepare(&w, &mine); }
  static void proxyFailed(void *, tuttiResult_t, const char *text) { ADD_FAILURE() << text; }
  tuttiResult_t attach() {
    fillPaths();
    tuttiResult_t r = tuttiSuccess;
    if (mine.shmSocket != 0) r = tuttiProxyCreate(&w.proxy, proxyFailed, this);
    if (r == tuttiSuccess) r = tuttiTransportShm.attach(&w);
    if (r != tuttiSuccess) detach();
    return r;
  }
  void detach() {
    tuttiTransportShm.detach(&w);
    tuttiProxyDestroy(w.proxy);
    w.proxy = nullptr;
  }
  const tuttiTransport *to(int peer) {
    if (paths.empty()) fillPaths();
    return paths[(size_t)peer].transport;
  }
  tuttiResult_t tryOpen(int peer, tuttiDirection d = TUTTI_RECV) {
    tuttiConn c{};
    return tuttiTransportShm.open(&w, peer, 0, d, false, &c);
  }
  tuttiConn open(int peer, int channel, tuttiDirection d, bool shared = false) {
    tuttiConn c{};
    int other = peer >= 0 ? peer : w.rank == 0 ? 1 : 0;
    EXPECT_EQ(tuttiSuccess, to(other)->open(&w, peer, channel, d, shared, &c)) << tuttiErrorText();
    return c;
  }
  int desk() { return w.local->listenFd; }
  uint64_t bytes() { return tuttiLoadAcquire(&memory.bytes); }
};

using Ranks = std::vector<std::unique_ptr<Rank>>;

inline Ranks makeThreads(const Shape &s) {
  Ranks ranks;
  for (int r = 0; r < s.nranks; r++)
    ranks.push_back(std::make_unique<Rank>(s, r));
  return ranks;
}

inline void gather(Ranks &ranks) {
  for (auto &r : ranks)
    for (auto &p : ranks)
      r->peers[(size_t)p->w.rank] = p->mine;
}

inline void prepareAll(Ranks &ranks) {
  for (auto &r : ranks)
    ASSERT_EQ(tuttiSuccess, r->prepare()) << tuttiErrorText();
  gather(ranks);
}

// Runs f on every rank, each in a thread of its own.
inline void onThreads(Ranks &ranks, const std::function<void(Rank &)> &f) {
  std::vector<std::thread> threads;
  for (auto &r : ranks)
    threads.emplace_back([&f, &r] { f(*r); });
  for (auto &t : threads)
    t.join();
}

inline void attachAll(Ranks &ranks) {
  onThreads(ranks, [](Rank &r) { EXPECT_EQ(tuttiSuccess, r.attach()) << tuttiErrorText(); });
}

// Ranks spread over forked processes.
struct Meeting {
  pthread_barrier_t barrier;
  tuttiPeer peers[64];
};

// Forks `nprocesses` children with nranks / nprocesses ranks each, neighbours in number, attaches
// them and runs f on each rank in a thread. A child fails by gtest's checks. `before` runs in each
// child before anything else.
inline void onProcesses(
    const Shape &s, int nprocesses, const std::function<void(Rank &)> &f,
    const std::function<void()> &before = [] {}) {
  auto *m = static_cast<Meeting *>(
      mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(MAP_FAILED, (void *)m);
  pthread_barrierattr_t attr;
  pthread_barrierattr_init(&attr);
  pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&m->barrier, &attr, (unsigned)nprocesses);
  int each = s.nranks / nprocesses;
  std::vector<pid_t> pids; /* in shared memory each child would write its 0 over the parent's */
  fflush(nullptr);
  for (int p = 0; p < nprocesses; p++) {
    pids.push_back(fork());
    ASSERT_GE(pids.back(), 0);
    if (pids.back() > 0) continue;
    alarm(120);
    {
      before();
      Ranks ranks;
      for (int i = 0; i < each; i++)
        ranks.push_back(std::make_unique<Rank>(s, p * each + i, 100 + (uint64_t)p));
      for (auto &r : ranks) {
        EXPECT_EQ(tuttiSuccess, r->prepare()) << tuttiErrorText();
        m->peers[r->w.rank] = r->mine;
      }
      pthread_barrier_wait(&m->barrier);
      for (auto &r : ranks)
        std::copy_n(m->peers, s.nranks, r->peers.begin());
      onThreads(ranks, [&](Rank &r) {
        EXPECT_EQ(tuttiSuccess, r.attach()) << tuttiErrorText();
        if (!::testing::Test::HasFailure()) f(r);
      });
      for (auto &r : ranks) {
        r->detach();
        EXPECT_EQ(0u, r->bytes());
      }
    }
    fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  for (int p = 0; p < nprocesses; p++) {
    int status = 0;
    waitpid(pids[(size_t)p], &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "process " << p << " of " << nprocesses << ": status " << status;
  }
  munmap(m, sizeof(Meeting));
}

// A setting, until the end of the scope.
struct Setting {
  const char *name;
  Setting(const char *n, const char *value) : name(n) {
    setenv(name, value, 1);
    EXPECT_EQ(tuttiSuccess, tuttiSettingsLoad());
  }
  ~Setting() {
    unsetenv(name);
    EXPECT_EQ(tuttiSuccess, tuttiSettingsLoad());
  }
};

inline int segmentMappings() {
  int n = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    n += line.find("memfd:tutti") != std::string::npos;
  return n;
}

// ---- traffic: every FIFO of a rank at once, each message checked byte by byte ------------------

inline uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

// One endpoint of a FIFO under test, and the messages that both ends know from its name.
struct End {
  tuttiConn c;
  uint32_t name;
  uint64_t messages;
  std::vector<uint8_t> direct[TUTTI_FIFO_DEPTH];
  bool done() const { return c.next == messages; }
  size_t size() const { return mix(name ^ (uint32_t)c.next) % (c.slotBytes + 1); }
  uint8_t at(size_t i) const { return (uint8_t)mix(name + (uint32_t)(c.next * 977 + i)); }

  void send() {
    tuttiSlotDescriptor *slot = tuttiConnDescriptor(&c);
    size_t n = size();
    auto &own = direct[c.next % TUTTI_FIFO_DEPTH];
    uint8_t *to = tuttiConnData(&c, n);
    slot->where = TUTTI_WHERE_SLOT;
    if (n <= TUTTI_INLINE_MAX) {
      to = slot->inlined;
      slot->where = TUTTI_WHERE_INLINE;
    } else if (c.direct && c.next % 2) {
      own.assign(n, 0);
      to = own.data();
      slot->where = TUTTI_WHERE_DIRECT;
      slot->addr = (uint64_t)(uintptr_t)to;
    }
    for (size_t i = 0; i < n; i++)
      to[i] = at(i);
    slot->bytes = (uint32_t)n;
    slot->sig.seq = c.next;
    slot->sig.count = name;
  }
  void receive() {
    tuttiSlotDescriptor *slot = tuttiConnDescriptor(&c);
    ASSERT_EQ(size(), slot->bytes);
    ASSERT_EQ(c.next, slot->sig.seq);
    ASSERT_EQ(name, slot->sig.count);
    const uint8_t *from = slot->where == TUTTI_WHERE_INLINE ? slot->inlined
                          : slot->where == TUTTI_WHERE_DIRECT
                              ? reinterpret_cast<uint8_t *>((uintptr_t)slot->addr)
                              : tuttiConnData(&c, slot->bytes);
    for (size_t i = 0; i < slot->bytes; i++)
      ASSERT_EQ(at(i), from[i]) << "byte " << i;
  }
};

inline uint32_t fifoName(int from, int to, int channel, bool shared) {
  return mix((uint32_t)(from * 65 + (shared ? 64 : to)) * 128 + (uint32_t)channel);
}

// Opens every FIFO between this rank and the others and moves `messages` on each.
inline void traffic(Rank &r, uint64_t messages) {
  std::vector<End> ends;
  auto add = [&](int peer, int channel, tuttiDirection d, bool shared) {
    int from = d == TUTTI_SEND ? r.w.rank : peer, to = d == TUTTI_SEND ? peer : r.w.rank;
    ends.push_back(
        {r.open(peer, channel, d, shared), fifoName(from, to, channel, shared), messages, {}});
  };
  for (int c = 0; c <= r.w.nchannels; c++) {
    bool last = c == r.w.nchannels;
    int channel = last ? TUTTI_P2P_CHANNEL : c;
    if (!last) add(-1, c, TUTTI_SEND, true);
    for (int p = 0; p < r.w.nranks; p++) {
      if (p == r.w.rank) continue;
      add(p, channel, TUTTI_SEND, false);
      add(p, channel, TUTTI_RECV, false);
      if (!last) add(p, c, TUTTI_RECV, true);
    }
  }
  uint64_t deadline = tuttiDeadline(60000);
  tuttiBackoff backoff{};
  for (size_t left = ends.size(); left > 0;) {
    ASSERT_LT(tuttiNow(), deadline) << "rank " << r.w.rank << ": " << left << " FIFOs unfinished";
    left = 0;
    bool moved = false;
    for (auto &e : ends) {
      if (!e.done() && tuttiConnReady(&e.c)) {
        e.c.direction == TUTTI_SEND ? e.send() : e.receive();
        if (::testing::Test::HasFatalFailure()) return;
        tuttiConnAdvance(&e.c);
        moved = true;
      }
      // Payloads that are read where they are live until all readers have them.
      left += !e.done() || (e.c.direction == TUTTI_SEND && tuttiConnCredit(&e.c) < e.messages);
    }
    moved ? tuttiBackoffReset(&backoff) : tuttiBackoffPause(&backoff);
  }
  for (auto &e : ends)
    e.c.transport->close(&r.w, &e.c);
}

} // namespace local

#endif

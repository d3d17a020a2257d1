/* Two ranks joined by NET, in one process or in two, for the tests of net*.c. */
#ifndef TUTTI_TESTS_TRANSPORT_NET_PAIR_H_
#define TUTTI_TESTS_TRANSPORT_NET_PAIR_H_

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>

#include "base/error.h"
#include "base/host.h"
#include "base/os.h"
#include "base/settings.h"
#include "transport/net.h"
#include "transport/socket/endpoint.h"

namespace net {

constexpr uint64_t kSecond = 1000000000ull;
/* Bound of every wait of these tests; never expected to pass. */
inline uint64_t Soon() {
  return tuttiNow() + 60 * kSecond;
}

/* In a call, for those who run the loop. */
struct Entered {
  tuttiProxy *proxy;
  explicit Entered(tuttiProxy *p) : proxy(p) { tuttiProxyEnter(p); }
  ~Entered() { tuttiProxyLeave(proxy); }
};

/* One rank's side. With two proxies, as on GPUs, nobody but their threads runs the loop. */
struct Rank {
  tuttiCommView w{};
  tuttiPeer peers[2]{};
  tuttiPath paths[2]{};
  tuttiAtomic32 failed{};
  tuttiMemAccount memory{};
  std::mutex lock;
  tuttiResult_t code = tuttiSuccess;
  std::string error;

  static void Fail(void *ctx, tuttiResult_t code, const char *text) {
    Rank *r = static_cast<Rank *>(ctx);
    std::lock_guard<std::mutex> guard(r->lock);
    r->code = code;
    r->error = text;
    tuttiStoreRelease32(&r->failed, 1);
  }
  bool Failed() { return tuttiLoadAcquire32(&failed) != 0; }
  std::string Error() {
    std::lock_guard<std::mutex> guard(lock);
    return error;
  }

  void Prepare(int rank, size_t slotBytes = 1 << 16, uint64_t timeoutMs = 60000, bool two = false) {
    w.rank = rank;
    w.nranks = 2;
    w.commHash = 0x1234abcd;
    memset(w.secret, 0x5a, sizeof w.secret);
    ASSERT_EQ(tuttiSuccess, tuttiTlsKeyMake(w.secret, &w.tls)) << tuttiErrorText();
    w.peers = peers;
    w.paths = paths;
    w.nchannels = 4;
    w.slotBytes = slotBytes;
    w.timeoutMs = timeoutMs;
    w.failed = &failed;
    w.memory = &memory;
    w.netName = "Socket";
    tuttiPeer *mine = &peers[rank];
    mine->rank = rank;
    mine->nranks = 2;
    mine->pid = getpid();
    mine->hostId = tuttiHostId();
    snprintf(mine->host, sizeof mine->host, "testhost%d", rank);
    ASSERT_EQ(tuttiSuccess, tuttiProxyCreate(&w.proxy, Fail, this)) << tuttiErrorText();
    if (two) {
      ASSERT_EQ(tuttiSuccess, tuttiProxyCreate(&w.receiver, Fail, this)) << tuttiErrorText();
    }
    ASSERT_EQ(tuttiSuccess, tuttiTransportNet.prepare(&w, mine)) << tuttiErrorText();
    ASSERT_STREQ("Socket", mine->netName);
  }
  bool ok() const { return w.net != nullptr; }
  /* The row of the peer, as src/wireup fills it. */
  void FillPath() { tuttiTransportSelect(&peers[w.rank], &peers[1 - w.rank], &paths[1 - w.rank]); }
  void Meet(const tuttiPeer &other) {
    peers[other.rank] = other;
    FillPath();
    EXPECT_EQ(tuttiSuccess, tuttiTransportNet.attach(&w)) << tuttiErrorText();
  }
  tuttiConn Open(int channel, tuttiDirection direction) {
    tuttiConn c{};
    EXPECT_EQ(tuttiSuccess, tuttiTransportNet.open(&w, 1 - w.rank, channel, direction, false, &c))
        << tuttiErrorText();
    return c;
  }
  void Close(tuttiConn *c) { tuttiTransportNet.close(&w, c); }
  bool Drain() {
    if (w.receiver) return Sleep([&] { return tuttiNetDrained(&w); });
    Entered entered(w.proxy);
    for (uint64_t end = Soon(); !tuttiNetDrained(&w);) {
      if (tuttiNow() > end) return false;
      tuttiProxyRun(w.proxy);
    }
    return true;
  }
  static bool Sleep(const std::function<bool()> &done) {
    for (uint64_t end = Soon(); !done() && tuttiNow() < end;)
      usleep(20);
    return done();
  }
  void Leave() {
    if (!w.proxy) return;
    tuttiTransportNet.detach(&w);
    tuttiProxyDestroy(w.receiver);
    tuttiProxyDestroy(w.proxy);
    w.proxy = w.receiver = nullptr;
  }
  ~Rank() { Leave(); }

  /* Runs the loop until the connection is ready; false on failure or after a long time. */
  bool Await(tuttiConn *c) {
    if (w.receiver)
      return Sleep([&] { return tuttiConnReady(c) || Failed(); }) && tuttiConnReady(c);
    Entered entered(w.proxy);
    uint64_t end = 0;
    while (!tuttiConnReady(c)) {
      if (!tuttiProxyRun(w.proxy)) sched_yield();
      if (Failed()) return tuttiConnReady(c);
      if (end == 0) end = Soon();
      if (tuttiNow() > end) return false;
    }
    return true;
  }
};

inline uint8_t Pattern(uint64_t message, size_t i) {
  return static_cast<uint8_t>((message * 131 + i * 7 + (i >> 8) * 31 + 5) & 0xff);
}
inline void Fill(uint8_t *p, uint64_t message, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    p[i] = Pattern(message, i);
}
inline bool Right(const uint8_t *p, uint64_t message, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    if (p[i] != Pattern(message, i)) return false;
  return true;
}

/* Publishes one message, whose slot is free. `user` (or null) is memory for a direct one. */
inline void Publish(Rank &r, tuttiConn *c, size_t bytes, uint8_t *user = nullptr) {
  tuttiSlotDescriptor *slot = tuttiConnDescriptor(c);
  slot->bytes = static_cast<uint32_t>(bytes);
  slot->sig = tuttiSignature{};
  slot->sig.seq = c->next + 1000;
  uint8_t *to;
  if (user) {
    slot->where = TUTTI_WHERE_DIRECT;
    slot->addr = reinterpret_cast<uint64_t>(user);
    to = user;
  } else if (bytes <= TUTTI_INLINE_MAX) {
    slot->where = TUTTI_WHERE_INLINE;
    to = slot->inlined;
  } else {
    slot->where = TUTTI_WHERE_SLOT;
    to = tuttiConnData(c, bytes);
  }
  Fill(to, c->next, bytes);
  tuttiConnAdvance(c);
  tuttiProxyKick(r.w.proxy);
}

/* Checks and takes the message that is there. */
inline bool Take(Rank &r, tuttiConn *c, size_t bytes) {
  tuttiSlotDescriptor *slot = tuttiConnDescriptor(c);
  const uint8_t *at = slot->where == TUTTI_WHERE_INLINE ? slot->inlined : tuttiConnData(c, bytes);
  bool ok = slot->bytes == bytes && slot->where != TUTTI_WHERE_DIRECT &&
            slot->sig.seq == c->next + 1000 && Right(at, c->next, bytes);
  tuttiConnAdvance(c);
  tuttiProxyKick(tuttiNetProxy(&r.w, TUTTI_RECV));
  return ok;
}

/* Settings for one test: set in the environment and loaded; undone at the end. */
class Setting {
public:
  Setting(const char *name, const std::string &value) : name_(name) {
    setenv(name, value.c_str(), 1);
    EXPECT_EQ(tuttiSuccess, tuttiSettingsLoad()) << tuttiErrorText();
  }
  ~Setting() {
    unsetenv(name_);
    EXPECT_EQ(tuttiSuccess, tuttiSettingsLoad());
  }

private:
  const char *name_;
};

/* Both ranks in this process. */
struct Pair {
  Rank a, b;
  explicit Pair(size_t slotBytes = 1 << 16, uint64_t timeoutMs = 60000, bool two = false) {
    a.Prepare(0, slotBytes, timeoutMs, two);
    b.Prepare(1, slotBytes, timeoutMs, two);
    a.Meet(b.peers[1]);
    b.Meet(a.peers[0]);
  }
  bool ok() const { return a.ok() && b.ok(); }
};

} // namespace net

#endif

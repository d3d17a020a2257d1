// Rings of watches for tests: the sockets that bootstrap would have made, over loopback TCP, and a
// recorder of what the watch tells its owner.
#ifndef TUTTI_TESTS_BOOTSTRAP_WATCH_RING_H_
#define TUTTI_TESTS_BOOTSTRAP_WATCH_RING_H_

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/os.h"
#include "bootstrap/handshake.h"
#include "socket/tls.h"
#include "watch/watch.h"

namespace watchtest {

// Far beyond what anything takes; only a hang gets there.
constexpr auto kPatience = std::chrono::seconds(30);

inline int listenLoopback(tuttiAddress *address) {
  *address = {};
  address->v4.sin_family = AF_INET;
  address->v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t length = sizeof(address->v4);
  EXPECT_EQ(bind(fd, &address->sa, length), 0) << strerror(errno);
  EXPECT_EQ(listen(fd, 128), 0);
  EXPECT_EQ(getsockname(fd, &address->sa, &length), 0);
  return fd;
}

inline int connectTo(const tuttiAddress &address) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, &address.sa, sizeof(address.v4)), 0) << strerror(errno);
  return fd;
}

inline void tcpPair(int *a, int *b) {
  tuttiAddress address;
  int listener = listenLoopback(&address);
  *a = connectTo(address);
  *b = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  EXPECT_GE(*b, 0);
  close(listener);
}

// What a rank's watch told its owner, and what the owner says when asked for its state.
class Owner {
public:
  tuttiWatchCalls calls() { return {this, failed, failed, died, state, report}; }
  void setReport(const std::string &text) {
    std::lock_guard<std::mutex> guard(mutex_);
    report_ = text;
  }
  void setState(const std::string &text) {
    std::lock_guard<std::mutex> guard(mutex_);
    state_ = text;
  }
  // The text of the failure, "" if none came.
  std::string waitFailed(std::chrono::milliseconds patience = kPatience) {
    std::unique_lock<std::mutex> guard(mutex_);
    changed_.wait_for(guard, patience, [&] { return failures_ > 0; });
    return text_;
  }
  int failures() {
    std::lock_guard<std::mutex> guard(mutex_);
    return failures_;
  }
  // The ranks whose death it was told of, once there are so many.
  std::vector<int> waitDead(size_t n) {
    std::unique_lock<std::mutex> guard(mutex_);
    changed_.wait_for(guard, kPatience, [&] { return dead_.size() >= n; });
    return dead_;
  }
  tuttiResult_t code() {
    std::lock_guard<std::mutex> guard(mutex_);
    return code_;
  }

private:
  static void failed(void *ctx, tuttiResult_t code, const char *text) {
    Owner *owner = static_cast<Owner *>(ctx);
    std::lock_guard<std::mutex> guard(owner->mutex_);
    owner->failures_++;
    owner->code_ = code;
    owner->text_ = text;
    owner->changed_.notify_all();
  }
  static void died(void *ctx, int rank, const char *) {
    Owner *owner = static_cast<Owner *>(ctx);
    std::lock_guard<std::mutex> guard(owner->mutex_);
    owner->dead_.push_back(rank);
    owner->changed_.notify_all();
  }
  static size_t state(void *ctx, void *out) {
    Owner *owner = static_cast<Owner *>(ctx);
    std::lock_guard<std::mutex> guard(owner->mutex_);
    memcpy(out, owner->state_.data(), owner->state_.size());
    return owner->state_.size();
  }

  static size_t report(void *ctx, void *out) {
    Owner *owner = static_cast<Owner *>(ctx);
    std::lock_guard<std::mutex> guard(owner->mutex_);
    memcpy(out, owner->report_.data(), owner->report_.size());
    return owner->report_.size();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int failures_ = 0;
  tuttiResult_t code_ = tuttiSuccess;
  std::string text_, state_, report_;
  std::vector<int> dead_;
};

// One rank: its bootstrap as Join leaves it, its owner, and its watch once started.
struct Rank {
  tuttiBootstrap bootstrap = {};
  Owner owner;
  tuttiMemAccount memory = {};
  tuttiWatch *watch = nullptr;
};

class Ring {
public:
  explicit Ring(int n, bool encrypts = false) : listeners_(n), who_(n) {
    for (int r = 0; r < n; r++) {
      auto rank = std::make_unique<Rank>();
      tuttiBootstrap &b = rank->bootstrap;
      b.rank = r;
      b.nranks = n;
      b.hash = 0x1234567890abcdefull;
      memset(b.secret, 0x5a, sizeof(b.secret));
      memset(b.tls.psk, 0xa5, sizeof(b.tls.psk));
      b.tls.on = encrypts;
      b.prevFd = b.nextFd = -1;
      listeners_[r].n = 1;
      b.listener = {1, {listenLoopback(&listeners_[r].a[0])}};
      fcntl(b.listener.fds[0], F_SETFL, fcntl(b.listener.fds[0], F_GETFL) | O_NONBLOCK);
      b.listeners = listeners_.data();
      snprintf(who_[r].host, sizeof(who_[r].host), "host%d", r);
      who_[r].rank = r;
      who_[r].pid = 1000 + r;
      rank->owner.setState("state of " + std::to_string(r));
      ranks_.push_back(std::move(rank));
    }
    for (int r = 0; n > 1 && r < n; r++) {
      int *next = &at(r).bootstrap.nextFd, *prev = &at((r + 1) % n).bootstrap.prevFd;
      tcpPair(next, prev);
      if (encrypts) encrypt(*next, *prev);
    }
  }
  void encrypt(int next, int prev) {
    for (int fd : {next, prev}) {
      fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
      ASSERT_EQ(tuttiSecureStart(fd, fd == prev, &at(0).bootstrap.tls), tuttiSuccess)
          << tuttiErrorText();
    }
    ASSERT_EQ(shakeHands(next, prev), std::make_pair(1, 1));
  }
  ~Ring() {
    for (int r = 0; r < size(); r++) {
      stop(r);
      closeSockets(r);
    }
  }
  Ring(const Ring &) = delete;
  Ring &operator=(const Ring &) = delete;

  int size() const { return static_cast<int>(ranks_.size()); }
  Rank &at(int r) { return *ranks_[r]; }
  Owner &owner(int r) { return at(r).owner; }
  tuttiWho *who() { return who_.data(); }
  const tuttiAddress &listener(int r) const { return listeners_[r].a[0]; }
  tuttiAddressList &addresses(int r) { return listeners_[r]; }

  tuttiResult_t tryStart(int r) {
    tuttiWatchCalls calls = owner(r).calls();
    return tuttiWatchStart(&at(r).bootstrap, who_.data(), &calls, &at(r).memory, &at(r).watch);
  }
  void start(int r) { ASSERT_EQ(tryStart(r), tuttiSuccess) << tuttiErrorText(); }
  void startAll() {
    for (int r = 0; r < size(); r++)
      start(r);
  }
  void stop(int r, bool failed = false) {
    if (failed) tuttiWatchFail(at(r).watch, tuttiRemoteError, "gone");
    tuttiWatchStop(at(r).watch);
    at(r).watch = nullptr;
  }
  std::vector<tuttiWatchAnswer> ask(int r, int ms = 30000) {
    std::vector<tuttiWatchAnswer> answers(ranks_.size());
    EXPECT_EQ(tuttiWatchAsk(at(r).watch, -1, ms, answers.data()), tuttiSuccess);
    return answers;
  }
  // Closes what the watch has not taken.
  void closeSockets(int r) {
    tuttiBootstrap &b = at(r).bootstrap;
    for (int *fd : {&b.prevFd, &b.nextFd})
      tuttiFdClose(fd);
    tuttiListenerClose(&b.listener);
  }
  // Gives the test one end of a ring connection of a rank that has no watch.
  int take(int *fd) {
    int taken = *fd;
    *fd = -1;
    return taken;
  }

private:
  std::vector<tuttiAddressList> listeners_;
  std::vector<tuttiWho> who_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

inline std::string text(const tuttiWatchAnswer &answer) {
  return std::string(reinterpret_cast<const char *>(answer.state), answer.bytes);
}

inline tuttiHello askHello(const tuttiBootstrap &b, int from) {
  tuttiHello hello;
  tuttiHelloFill(&hello, b.hash, tuttiHelloAsk, from, b.rank, b.nranks);
  return hello;
}

// Reads until the peer closes; what a test must not hang on fails it.
inline std::string readAll(int fd) {
  std::string all;
  char buffer[4096];
  for (;;) {
    pollfd p = {fd, POLLIN, 0};
    if (poll(&p, 1, 60000) != 1) {
      ADD_FAILURE() << "the peer neither sends nor closes";
      return all;
    }
    ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
    if (got <= 0) return all;
    all.append(buffer, static_cast<size_t>(got));
  }
}

// Reads exactly so many bytes, or what comes before the end.
inline std::string readSome(int fd, size_t bytes) {
  std::string all;
  while (all.size() < bytes) {
    char buffer[4096];
    pollfd p = {fd, POLLIN, 0};
    if (poll(&p, 1, 60000) != 1) break;
    ssize_t got = recv(fd, buffer, std::min(sizeof(buffer), bytes - all.size()), 0);
    if (got <= 0) break;
    all.append(buffer, static_cast<size_t>(got));
  }
  return all;
}

// Says a hello to the listener of rank r, `damaged` or not, and confirms what is accepted, `lying`
// or not. Returns what comes then, up to the end of the connection.
inline std::string tellListener(Ring &ring, int r, tuttiHello hello, bool damaged = false,
                                bool lying = false) {
  tuttiSession session = {ring.at(r).bootstrap.secret, {}};
  EXPECT_EQ(tuttiHelloSeal(&hello, sizeof(hello), &session), tuttiSuccess);
  if (damaged) hello.mac[31] ^= 1;
  int fd = connectTo(ring.listener(r));
  EXPECT_EQ(send(fd, &hello, sizeof(hello), MSG_NOSIGNAL), (ssize_t)sizeof(hello));
  tuttiReply reply;
  uint8_t confirm[TUTTI_MAC_BYTES];
  std::string got = readSome(fd, sizeof(reply));
  if (got.size() == sizeof(reply)) {
    memcpy(&reply, got.data(), sizeof(reply));
    tuttiConfirmOf(&session, &reply, confirm);
    if (lying) confirm[0] ^= 1;
    EXPECT_EQ(send(fd, confirm, sizeof(confirm), MSG_NOSIGNAL), (ssize_t)sizeof(confirm));
    got = readAll(fd);
  }
  close(fd);
  return got;
}

} // namespace watchtest

#endif

/* Settings for the length of a test, ranks as threads, and raw peers that behave badly. */
#ifndef TUTTI_TESTS_BOOTSTRAP_HARNESS_H_
#define TUTTI_TESTS_BOOTSTRAP_HARNESS_H_

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/dead.h"
#include "base/error.h"
#include "base/os.h"
#include "base/settings.h"
#include "bootstrap/rendezvous.h"
#include "holdings.h"

/* An environment variable while it lives. */
class WithSetting {
public:
  WithSetting(const char *name, const std::string &value) : name_(name) {
    const char *old = getenv(name);
    had_ = old != nullptr;
    before_ = old ? old : "";
    setenv(name, value.c_str(), 1);
    EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess) << tuttiErrorText();
  }
  ~WithSetting() {
    if (had_)
      setenv(name_, before_.c_str(), 1);
    else
      unsetenv(name_);
    EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess);
  }

private:
  const char *name_;
  bool had_;
  std::string before_;
};

inline tuttiWait within(int64_t ms, const tuttiAtomic32 *failed = nullptr) {
  return {tuttiDeadline(ms), failed, nullptr};
}

/* True once `condition` holds, at the latest after 20 s. */
inline bool eventually(const std::function<bool()> &condition) {
  for (int i = 0; i < 4000; i++) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

/* What one rank got. */
struct Outcome {
  tuttiResult_t result = tuttiInternalError;
  std::string text;
  tuttiBootstrap *b = nullptr;
};

inline Outcome joinAs(const std::vector<tuttiUniqueId> &ids, int rank, int nranks,
                      tuttiWait wait = within(60000), const tuttiKin *kin = nullptr) {
  Outcome o;
  o.result = tuttiBootstrapJoin(ids.data(), (int)ids.size(), rank, nranks, wait, kin, &o.b);
  if (o.result != tuttiSuccess) o.text = tuttiErrorText();
  return o;
}

inline std::vector<Outcome> onThreads(int n, const std::function<Outcome(int)> &body) {
  std::vector<Outcome> outcomes(n);
  std::vector<std::thread> threads;
  for (int i = 0; i < n; i++)
    threads.emplace_back([&, i] { outcomes[i] = body(i); });
  for (auto &t : threads)
    t.join();
  return outcomes;
}

inline std::vector<tuttiUniqueId> makeIds(int n = 1) {
  std::vector<tuttiUniqueId> ids(n);
  for (auto &id : ids)
    EXPECT_EQ(tuttiIdCreate(-1, &id), tuttiSuccess) << tuttiErrorText();
  return ids;
}

/* Ends the roots of these ids: those that wait, and those that linger to tell of a failure. */
inline void endRoots(const std::vector<tuttiUniqueId> &ids) {
  for (auto &id : ids) {
    tuttiId parsed;
    ASSERT_EQ(tuttiIdParse(&id, &parsed), tuttiSuccess);
    tuttiRootCancel(parsed.secret, tuttiSuccess);
  }
}

inline void closeAll(std::vector<Outcome> &outcomes) {
  for (auto &o : outcomes)
    tuttiBootstrapClose(o.b);
  outcomes.clear();
}

/* Interfaces: only the loopback one, so that the tests need and touch no network. */
class OnLoopback : public testing::Test {
protected:
  void TearDown() override {
    EXPECT_TRUE(eventually([] { return rootThreads() == 0; }));
  }
  WithSetting lo_{"TUTTI_SOCKET_IFNAME", "=lo"};
};

/* Connects to the first of `targets` that answers: the connector until the wait ends. */
inline tuttiResult_t connectAny(const tuttiAddress *targets, int n, const char *who, tuttiWait wait,
                                int *fd) {
  tuttiConnector c;
  tuttiAddressList list = {};
  list.n = n;
  std::copy(targets, targets + n, list.a);
  tuttiConnectorInit(&c, &list);
  tuttiResult_t result;
  int index, ready;
  while ((result = tuttiConnectorStep(&c, who, fd, &index)) == tuttiSuccess && *fd < 0) {
    char tried[600];
    pollfd wanted;
    if (tuttiNow() >= wait.deadline) {
      result = TUTTI_FAIL(tuttiTimeout, "cannot connect to %s: tried %s", who,
                          tuttiConnectorText(&c, tried, sizeof(tried)));
      break;
    }
    uint64_t until = tuttiConnectorWaitOn(&c, &wanted);
    result = tuttiPollSlice(&wanted, 1, who, wait, until, &ready);
    if (result != tuttiSuccess) break;
  }
  tuttiConnectorStop(&c);
  return result;
}

/* The next connection to a listener, within 20 s; -1 if none comes. */
inline int acceptOne(int listener) {
  int fd = -EAGAIN;
  tuttiAddress from;
  EXPECT_TRUE(eventually([&] { return (fd = tuttiAcceptNow(listener, &from)) != -EAGAIN; }));
  EXPECT_GE(fd, 0);
  return fd;
}

/* A connected blocking socket to the first address of a list, or -1. What it waits for comes within
 * a minute. */
inline int rawConnect(const tuttiAddress &a) {
  int fd = socket(a.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  timeval limit = {60, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  if (connect(fd, &a.sa, tuttiAddressLength(&a)) == 0) return fd;
  close(fd);
  return -1;
}

/* Reads up to n bytes until the peer closes; what came. */
inline std::string rawRead(int fd, size_t n) {
  std::string got;
  char buf[4096];
  while (got.size() < n) {
    ssize_t k = recv(fd, buf, std::min(sizeof(buf), n - got.size()), 0);
    if (k <= 0) break;
    got.append(buf, (size_t)k);
  }
  return got;
}

inline void rawSend(int fd, const void *data, size_t n) {
  send(fd, data, n, MSG_NOSIGNAL);
}

/* True once all that was sent has come to the other socket, at the latest after 20 s. */
inline bool arrived(int fd) {
  int left;
  return eventually([&] { return ioctl(fd, TIOCOUTQ, &left) == 0 && left == 0; });
}

/* A well-formed check-in of rank r of n with root number `root` of these ids; not sealed. */
inline tuttiCheckIn checkInOf(const std::vector<tuttiUniqueId> &ids, int root, int r, int n) {
  tuttiCheckIn in;
  memset(&in, 0, sizeof(in));
  tuttiId id;
  uint64_t hash = 0;
  for (size_t i = 0; i < ids.size(); i++) { /* what ranks with these ids say */
    EXPECT_EQ(tuttiIdParse(&ids[i], &id), tuttiSuccess);
    hash = tuttiIdHash(hash, id.secret);
  }
  EXPECT_EQ(tuttiIdParse(&ids[root], &id), tuttiSuccess);
  tuttiHelloFill(&in.peer.hello, hash, tuttiHelloCheckIn, r, -1, n);
  in.peer.listeners = id.roots;
  in.peer.ticket = 77;
  in.root = root;
  in.nroots = (int)ids.size();
  in.remainingMs = UINT64_MAX;
  return in;
}

/* A caller that plays by the rules: says a hello, and what came as the reply; then confirms. */
class Caller {
public:
  Caller(const tuttiAddress &to, const uint8_t secret[16]) : fd(rawConnect(to)) {
    memcpy(secret_, secret, sizeof(secret_));
    session.secret = secret_;
  }
  Caller(const Caller &) = delete;

  /* Seals it first. */
  template <class Hello> void say(Hello *hello) {
    EXPECT_EQ(tuttiHelloSeal(hello, sizeof(*hello), &session), tuttiSuccess);
    rawSend(fd, hello, sizeof(*hello));
  }
  /* The kind of the next reply, but for where a root is; 0: the connection was closed. */
  int hear() {
    do {
      std::string got = rawRead(fd, sizeof(reply));
      if (got.size() < sizeof(reply)) return 0;
      memcpy(&reply, got.data(), sizeof(reply));
      data = rawRead(fd, reply.bytes);
      EXPECT_TRUE(tuttiReplyGenuine(&session, &reply, data.data()));
    } while (reply.kind == tuttiReplyRoot);
    return reply.kind;
  }
  void confirm() {
    uint8_t mac[TUTTI_MAC_BYTES];
    tuttiConfirmOf(&session, &reply, mac);
    rawSend(fd, mac, sizeof(mac));
  }

  int fd;
  tuttiSession session;
  tuttiReply reply = {};
  std::string data; /* that came with the reply */

private:
  uint8_t secret_[16];
};

/* Takes a hello from a connection, and replies; *session is for what is said later. */
template <class Hello>
inline Hello hearHello(int fd, const uint8_t secret[16], tuttiSession *session) {
  Hello hello = {};
  EXPECT_EQ(tuttiRecvAll(fd, &hello, sizeof(hello), "the caller", within(20000)), tuttiSuccess);
  session->secret = secret;
  EXPECT_TRUE(tuttiHelloGenuine(&hello, sizeof(hello), session));
  return hello;
}

/* Checks a rank in with the root at this address; what the root has to say comes to the caller. */
inline std::unique_ptr<Caller> checkInAt(const tuttiAddress &root, const uint8_t secret[16],
                                         tuttiCheckIn in) {
  auto caller = std::make_unique<Caller>(root, secret);
  caller->say(&in);
  EXPECT_EQ(caller->hear(), tuttiReplyAccepted);
  caller->confirm();
  return caller;
}

inline std::unique_ptr<Caller> checkInAt(const tuttiUniqueId &root, const tuttiCheckIn &in) {
  tuttiId id;
  EXPECT_EQ(tuttiIdParse(&root, &id), tuttiSuccess);
  return checkInAt(id.roots.a[0], id.secret, in);
}

#endif

/* Two ends of a loopback connection under TLS, driven by turns in one thread: every wait is for an
 * event of the other end. */
#include "socket/secure.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/environment.h"
#include "base/os.h"
#include "socket/ktls.h"
#include "socket/tls.h"

namespace {

using testing::HasSubstr;

const uint8_t kSecret[16] = {1, 2, 3};

int endsAtSend = -1; /* this descriptor's connection ends before what is sent next over it goes */

/* Two connected, non-blocking sockets of one loopback connection. */
struct Pair {
  Pair() {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at = {};
    socklen_t length = sizeof at;
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener, (sockaddr *)&at, sizeof at), 0);
    EXPECT_EQ(listen(listener, 1), 0);
    EXPECT_EQ(getsockname(listener, (sockaddr *)&at, &length), 0);
    caller = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(connect(caller, (sockaddr *)&at, sizeof at), 0);
    listens = accept(listener, nullptr, nullptr);
    for (int fd : {caller, listens}) {
      int on = 1;
      EXPECT_EQ(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
      EXPECT_EQ(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), 0);
    }
    close(listener);
  }
  ~Pair() {
    tuttiFdClose(&caller);
    tuttiFdClose(&listens);
  }
  Pair(const Pair &) = delete;

  int caller, listens;
};

/* Two ends, caller() and listener(), whose connection somebody in the middle hands on. */
class Middle {
public:
  int caller() const { return first_.caller; }
  int listener() const { return second_.listens; }
  /* All that the caller has sent, as it is on the wire. */
  std::string take(size_t least) {
    std::string all;
    pollfd waits = {first_.listens, POLLIN, 0};
    while (all.size() < least && poll(&waits, 1, 10000) > 0) {
      char some[4096];
      ssize_t n = recv(first_.listens, some, sizeof some, MSG_DONTWAIT);
      if (n <= 0) break;
      all.append(some, (size_t)n);
    }
    return all;
  }
  void give(const std::string &bytes) {
    EXPECT_EQ(send(second_.caller, bytes.data(), bytes.size(), 0), (ssize_t)bytes.size());
  }
  /* Hands on both ways until *over. */
  void carry(const std::atomic<bool> *over) {
    const int ends[2] = {first_.listens, second_.caller};
    while (!*over) {
      pollfd waits[] = {{ends[0], POLLIN, 0}, {ends[1], POLLIN, 0}};
      poll(waits, 2, 1);
      for (int i = 0; i < 2; i++) {
        char some[4096];
        ssize_t n = recv(ends[i], some, sizeof some, MSG_DONTWAIT);
        if (n > 0) {
          EXPECT_EQ(send(ends[!i], some, (size_t)n, 0), n);
        }
      }
    }
  }

private:
  Pair first_, second_;
};

bool ready(int fd, short events) {
  pollfd p = {fd, events, 0};
  return poll(&p, 1, 10000) > 0;
}

/* The outcome of both handshakes: 1, or -errno. */
std::pair<int, int> shake(const Pair &p) {
  return shakeHands(p.caller, p.listens);
}

std::string received(int fd, size_t bytes) {
  std::string out(bytes, '\0');
  size_t got = 0;
  while (got < bytes) {
    ssize_t n = tuttiSecureRecv(fd, &out[got], bytes - got);
    if (n > 0) got += (size_t)n;
    if (n == 0 || (n < 0 && errno != EAGAIN)) break;
    if (n < 0 && !ready(fd, POLLIN)) break;
  }
  out.resize(got);
  return out;
}

std::string pattern(size_t bytes) {
  std::string out(bytes, '\0');
  for (size_t i = 0; i < bytes; i++)
    out[i] = (char)(i * 131 + i / 251);
  return out;
}

/* What has come on the wire, undecrypted. */
std::string raw(int fd) {
  std::string out(1 << 16, '\0');
  EXPECT_TRUE(ready(fd, POLLIN));
  ssize_t n = recv(fd, &out[0], out.size(), MSG_PEEK | MSG_DONTWAIT);
  out.resize(n > 0 ? (size_t)n : 0);
  return out;
}

/* The parameter: the kernel may encrypt, where it can. */
class Secure : public EnvironmentTest, public testing::WithParamInterface<bool> {
protected:
  void SetUp() override {
    EnvironmentTest::SetUp();
    NEEDS_TLS();
    ASSERT_EQ(load("TUTTI_KTLS_DISABLE", GetParam() ? "0" : "1"), "");
    if (GetParam()) {
      Pair p;
      if (!tuttiKtlsAttach(p.caller)) GTEST_SKIP() << "this kernel has no TLS (modprobe tls)";
    }
    ASSERT_EQ(load("TUTTI_ENCRYPT", "1"), "");
    ASSERT_EQ(load("TUTTI_PSK_FILE", file_.path()), "");
    ASSERT_EQ(tuttiTlsKeyMake(kSecret, &key_), tuttiSuccess) << tuttiErrorText();
    ASSERT_TRUE(key_.on);
  }

  void start(int caller, int listener) {
    ASSERT_EQ(tuttiSecureStart(caller, false, &key_), tuttiSuccess) << tuttiErrorText();
    ASSERT_EQ(tuttiSecureStart(listener, true, &key_), tuttiSuccess) << tuttiErrorText();
    ASSERT_EQ(shakeHands(caller, listener), std::make_pair(1, 1));
    for (int fd : {caller, listener})
      ASSERT_STREQ(tuttiSecureText(fd), GetParam() ? "under TLS by the kernel" : "under TLS");
  }
  void start(const Pair &p) { start(p.caller, p.listens); }
  void start(Middle *m) {
    std::atomic<bool> over{false};
    std::thread carries([&] { m->carry(&over); });
    start(m->caller(), m->listener());
    over = true;
    carries.join();
  }
  /* Sends `text` as one record, and takes it from the wire. */
  std::string record(Middle *m, const std::string &text) {
    EXPECT_EQ(tuttiSecureSend(m->caller(), text.data(), text.size()), (ssize_t)text.size());
    return m->take(5 + text.size() + 1 + 16); /* header, type and tag of TLS 1.3 */
  }
  /* What has come is not what was sent, and stays so. */
  static void expectForged(int fd) {
    char room[64];
    ASSERT_TRUE(ready(fd, POLLIN));
    for (int turn = 0; turn < 3; turn++) {
      EXPECT_EQ(tuttiSecureRecv(fd, room, sizeof room), -1);
      EXPECT_EQ(errno, EBADMSG) << "turn " << turn;
      pollfd known = {fd, POLLIN, 0};
      EXPECT_TRUE(tuttiSecurePending(fd) || poll(&known, 1, 0) == 1) << "it is there to be read";
    }
  }

  KeyFile file_;
  tuttiTlsKey key_;
};

INSTANTIATE_TEST_SUITE_P(Ways, Secure, testing::Bool(), [](const auto &info) {
  return info.param ? std::string("Kernel") : std::string("Library");
});

TEST_P(Secure, CarriesBothWaysAndHidesWhat) {
  Pair p;
  start(p);
  const std::string text = "the payload that nobody else is to read";
  for (int turn = 0; turn < 3; turn++) {
    ASSERT_EQ(tuttiSecureSend(p.caller, text.data(), text.size()), (ssize_t)text.size());
    EXPECT_EQ(received(p.listens, text.size()), text);
    ASSERT_EQ(tuttiSecureSend(p.listens, text.data(), text.size()), (ssize_t)text.size());
    if (!GetParam()) {
      EXPECT_THAT(raw(p.caller), testing::Not(HasSubstr("payload")));
    }
    EXPECT_EQ(received(p.caller, text.size()), text);
  }
  char none;
  EXPECT_EQ(tuttiSecureRecv(p.caller, &none, 1), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_P(Secure, KeepsTheOrderThroughFullBuffers) {
  Pair p;
  int small = 8192;
  ASSERT_EQ(setsockopt(p.caller, SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
  start(p);
  const std::string out = pattern(3000001);
  std::string in;
  size_t sent = 0, refused = 0, partial = 0;
  auto sendSome = [&] {
    /* Two pieces, cut anew at each try: it is the same bytes all the same. */
    size_t left = out.size() - sent, cut = left / 3;
    iovec pieces[] = {{(void *)(out.data() + sent), cut},
                      {(void *)(out.data() + sent + cut), left - cut}};
    ssize_t n = left ? tuttiSecureSendPieces(p.caller, pieces, 2) : 0;
    EXPECT_TRUE(n >= 0 || errno == EAGAIN) << errno;
    refused += n < 0;
    partial += n > 0 && (size_t)n < left;
    sent += n > 0 ? (size_t)n : 0;
    return n > 0;
  };
  while (in.size() < out.size() && !HasFailure()) {
    while (sendSome()) {
    }
    char head[777];
    std::vector<char> tail(50000);
    iovec room[] = {{head, sizeof head}, {tail.data(), tail.size()}};
    ssize_t n = tuttiSecureRecvPieces(p.listens, room, 2);
    if (n < 0) {
      ASSERT_EQ(errno, EAGAIN);
    }
    if (n > 0) in.append(head, n < 777 ? (size_t)n : 777);
    if (n > 777) in.append(tail.data(), (size_t)n - 777);
  }
  EXPECT_TRUE(in == out);
  EXPECT_GT(refused, 0u) << "the buffers were never full";
  EXPECT_GT(partial, 0u);
}

TEST_P(Secure, TellsWhatPollDoesNotKnow) {
  Pair p;
  start(p);
  ASSERT_EQ(tuttiSecureSend(p.caller, "0123456789", 10), 10);
  char room[16];
  ASSERT_TRUE(ready(p.listens, POLLIN));
  EXPECT_FALSE(tuttiSecurePending(p.listens)) << "nothing was read yet";
  EXPECT_EQ(tuttiSecurePeek(p.listens, room, sizeof room), 10);
  EXPECT_EQ(tuttiSecureRecv(p.listens, room, 4), 4);
  pollfd known = {p.listens, POLLIN, 0};
  EXPECT_TRUE(tuttiSecurePending(p.listens) || poll(&known, 1, 0) == 1);
  if (!GetParam()) {
    EXPECT_EQ(poll(&known, 1, 0), 0) << "then it is no test";
  }
  EXPECT_EQ(tuttiSecureRecv(p.listens, room, sizeof room), 6);
  EXPECT_EQ(memcmp(room, "456789", 6), 0);
  EXPECT_FALSE(tuttiSecurePending(p.listens));
}

TEST_P(Secure, EndsAsTcpDoes) {
  Pair p;
  start(p);
  ASSERT_EQ(tuttiSecureSend(p.caller, "last", 4), 4);
  tuttiFdClose(&p.caller);
  EXPECT_EQ(received(p.listens, 100), "last");
  char none;
  EXPECT_EQ(tuttiSecureRecv(p.listens, &none, 1), 0);
  EXPECT_EQ(tuttiSecureRecv(p.listens, &none, 1), 0) << "and stays so";
}

TEST_P(Secure, DeliversWhatWasTakenBeforeTheEnd) {
  const std::string out = pattern(8 << 20);
  for (size_t chunk : {777, 10000, 16384, 70000, 300000}) {
    Pair p;
    int small = 8192;
    ASSERT_EQ(setsockopt(p.caller, SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    ASSERT_EQ(setsockopt(p.listens, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
    start(p);
    size_t sent = 0;
    ssize_t n;
    while ((n = tuttiSecureSend(p.caller, out.data() + sent, chunk)) > 0)
      sent += (size_t)n;
    ASSERT_EQ(errno, EAGAIN) << "after " << sent;
    tuttiFdClose(&p.caller);
    const std::string in = received(p.listens, out.size());
    EXPECT_EQ(in.size(), sent) << "in sends of " << chunk;
    EXPECT_TRUE(in == out.substr(0, in.size()));
  }
}

TEST_P(Secure, EndsWhenTheProcessOfThePeerDies) {
  Pair p;
  start(p);
  shutdown(p.caller, SHUT_WR); /* without a word of TLS, as the kernel does it for the dead */
  char none;
  ASSERT_TRUE(ready(p.listens, POLLIN));
  EXPECT_EQ(tuttiSecureRecv(p.listens, &none, 1), 0);
}

/* Nor is it blamed for what nobody has done. */
TEST_P(Secure, RaisesNoSignalWhenThePeerIsGone) {
  const std::string data = pattern(100000);
  for (bool full : {false, true}) {
    Pair p;
    start(p);
    while (full && tuttiSecureSend(p.caller, data.data(), data.size()) > 0) {
    }
    linger now = {1, 0};
    ASSERT_EQ(setsockopt(p.listens, SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
    close(p.listens);
    ASSERT_TRUE(ready(p.caller, POLLRDHUP | POLLERR));
    ssize_t n = tuttiSecureSend(p.caller, data.data(), data.size());
    EXPECT_EQ(n, -1) << "full: " << full;
    EXPECT_THAT(errno, testing::AnyOf(EPIPE, ECONNRESET)) << "full: " << full;
    char none;
    n = tuttiSecureRecv(p.caller, &none, 1);
    EXPECT_TRUE(n == 0 || (n < 0 && (errno == EPIPE || errno == ECONNRESET)))
        << n << ", errno " << errno << ", full: " << full;
  }
}

/* At once: it may be the last send before an answer is waited for. */
TEST_P(Secure, FailsToSendWhatCannotGo) {
  Pair p;
  start(p);
  shutdown(p.caller, SHUT_RDWR);
  EXPECT_EQ(tuttiSecureSend(p.caller, "lost", 4), -1);
  EXPECT_EQ(errno, EPIPE);
  char none;
  EXPECT_EQ(tuttiSecureRecv(p.caller, &none, 1), 0);
}

/* As above, but nobody could have known of it before. */
TEST_P(Secure, FailsToSendWhatIsCutAtThatMoment) {
  Pair p;
  start(p);
  endsAtSend = p.caller;
  EXPECT_EQ(tuttiSecureSend(p.caller, "lost", 4), -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_EQ(endsAtSend, -1);
}

TEST_P(Secure, HidesWhatItCarries) {
  Middle m;
  start(&m);
  const std::string text = "the payload that nobody else is to read";
  const std::string wire = record(&m, text);
  EXPECT_EQ(wire.size(), 5 + text.size() + 1 + 16);
  EXPECT_EQ(wire.substr(0, 3), "\x17\x03\x03") << "no record of application data";
  EXPECT_THAT(wire, testing::Not(HasSubstr("payload")));
  m.give(wire);
  EXPECT_EQ(received(m.listener(), text.size()), text);
}

TEST_P(Secure, NoticesWhatWasChanged) {
  std::vector<size_t> places = {1, 2, 3, 4, 5, 30}; /* version, length, the first byte, the tag */
  /* The type in the header is that of data, whatever a record is. Linux does not look at it. */
  if (!GetParam()) places.push_back(0);
  for (size_t at : places) {
    Middle m;
    start(&m);
    std::string wire = record(&m, "some bytes");
    wire[at] ^= (char)(at == 3 ? 0x80 : 1);
    m.give(wire);
    SCOPED_TRACE(at);
    expectForged(m.listener());
  }
}

TEST_P(Secure, NoticesWhatWasRepeated) {
  Middle m;
  start(&m);
  const std::string wire = record(&m, "once");
  m.give(wire);
  EXPECT_EQ(received(m.listener(), 4), "once");
  m.give(wire);
  expectForged(m.listener());
}

TEST_P(Secure, NoticesWhatWasLeftOut) {
  Middle m;
  start(&m);
  record(&m, "first");
  m.give(record(&m, "second"));
  expectForged(m.listener());
}

TEST_P(Secure, NoticesWhatWasPutIn) {
  Middle m;
  start(&m);
  m.give("\x17\x03\x03" + std::string("\0\x20", 2) + "these 32 bytes are no ciphertext");
  expectForged(m.listener());
}

TEST_P(Secure, RefusesAnotherKey) {
  KeyFile other("another key that the listener does not have");
  tuttiTlsKey theirs;
  ASSERT_EQ(load("TUTTI_PSK_FILE", other.path()), "");
  ASSERT_EQ(tuttiTlsKeyMake(kSecret, &theirs), tuttiSuccess);
  Pair p;
  ASSERT_EQ(tuttiSecureStart(p.caller, false, &theirs), tuttiSuccess);
  ASSERT_EQ(tuttiSecureStart(p.listens, true, &key_), tuttiSuccess);
  EXPECT_EQ(shake(p), std::make_pair(-EKEYREJECTED, -EKEYREJECTED));
  char none;
  EXPECT_EQ(tuttiSecureSend(p.caller, "x", 1), -1);
  EXPECT_EQ(errno, ENOTCONN);
  EXPECT_EQ(tuttiSecureRecv(p.listens, &none, 1), -1);
  EXPECT_EQ(errno, ENOTCONN);
}

TEST_P(Secure, RefusesTheSameKeyForAnotherSecret) {
  uint8_t other[16] = {9};
  tuttiTlsKey theirs;
  ASSERT_EQ(tuttiTlsKeyMake(other, &theirs), tuttiSuccess);
  Pair p;
  ASSERT_EQ(tuttiSecureStart(p.caller, false, &theirs), tuttiSuccess);
  ASSERT_EQ(tuttiSecureStart(p.listens, true, &key_), tuttiSuccess);
  EXPECT_EQ(shake(p), std::make_pair(-EKEYREJECTED, -EKEYREJECTED));
}

/* What a listener makes of bytes that are no handshake. */
TEST_P(Secure, RefusesGarbage) {
  const std::string texts[] = {"ttut, a hello in the clear", std::string(64, '\0'),
                               std::string("\x16\x03\x01\xff\xff", 5) + std::string(300, 'x'),
                               std::string("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", 10)};
  for (size_t i = 0; i < 4; i++) {
    Pair p;
    ASSERT_EQ(tuttiSecureStart(p.listens, true, &key_), tuttiSuccess);
    ASSERT_EQ(send(p.caller, texts[i].data(), texts[i].size(), 0), (ssize_t)texts[i].size());
    short events = 0;
    int done = 0;
    while (done == 0 && ready(p.listens, POLLIN))
      done = tuttiSecureHandshake(p.listens, &events);
    EXPECT_EQ(done, i < 2 ? -EPROTO : -EKEYREJECTED) << "text " << i;
    EXPECT_EQ(tuttiSecureHandshake(p.listens, &events) < 0, true);
  }
}

TEST_P(Secure, WaitsForARestThatNeverComes) {
  Pair p;
  ASSERT_EQ(tuttiSecureStart(p.listens, true, &key_), tuttiSuccess);
  ASSERT_EQ(send(p.caller, "\x16\x03\x01\x02", 4, 0), 4);
  short events = 0;
  ASSERT_TRUE(ready(p.listens, POLLIN));
  EXPECT_EQ(tuttiSecureHandshake(p.listens, &events), 0);
  EXPECT_EQ(events, POLLIN);
  pollfd spent = {p.listens, POLLIN, 0};
  EXPECT_EQ(poll(&spent, 1, 0), 0) << "else who waits for it would go round and round";
  shutdown(p.caller, SHUT_WR);
  ASSERT_TRUE(ready(p.listens, POLLIN));
  EXPECT_EQ(tuttiSecureHandshake(p.listens, &events), -ECONNRESET);
}

TEST_P(Secure, GoesFromThreadToThread) {
  Pair p;
  std::thread([&] { start(p); }).join();
  std::thread([&] { ASSERT_EQ(tuttiSecureSend(p.caller, "abc", 3), 3); }).join();
  EXPECT_EQ(received(p.listens, 3), "abc");
}

TEST_P(Secure, LeavesADescriptorInTheClearOnceClosed) {
  int reused;
  {
    Pair p;
    start(p);
    reused = p.caller;
    tuttiFdClose(&p.caller);
  }
  EXPECT_FALSE(tuttiSecureIsOn(reused));
  Pair next; /* gets the lowest numbers, those of before */
  EXPECT_FALSE(tuttiSecureIsOn(next.caller) || tuttiSecureIsOn(next.listens));
  ASSERT_EQ(tuttiSecureSend(next.caller, "in the clear", 12), 12);
  EXPECT_EQ(raw(next.listens), "in the clear");
  EXPECT_STREQ(tuttiSecureText(next.caller), "in the clear");
}

TEST_P(Secure, AForkedChildHasNoneOfIt) {
  Pair p;
  start(p);
  pid_t child = fork();
  if (child == 0) _exit(tuttiSecureIsOn(p.caller) || tuttiSecureIsOn(p.listens));
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(tuttiSecureSend(p.caller, "abc", 3), 3) << "and the parent's goes on";
  EXPECT_EQ(received(p.listens, 3), "abc");
}

/* ---- keys ----------------------------------------------------------------------------------- */

class Key : public EnvironmentTest {
protected:
  void TearDown() override {
    EnvironmentTest::TearDown();
    EXPECT_EQ(tuttiKeySet(nullptr), tuttiSuccess);
  }
  tuttiTlsKey key_;
};

TEST_F(Key, IsNotUsedUnlessAsked) {
  KeyFile file;
  ASSERT_EQ(load("TUTTI_PSK_FILE", file.path()), "");
  ASSERT_EQ(tuttiTlsKeyMake(kSecret, &key_), tuttiSuccess);
  EXPECT_FALSE(key_.on);
}

TEST_F(Key, IsMissed) {
  NEEDS_TLS();
  ASSERT_EQ(load("TUTTI_ENCRYPT", "1"), "");
  EXPECT_EQ(tuttiTlsKeyMake(kSecret, &key_), tuttiInvalidUsage);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("needs a key: set TUTTI_PSK_FILE"));
  ASSERT_EQ(load("TUTTI_PSK_FILE", "/nowhere"), "");
  EXPECT_EQ(tuttiTlsKeyMake(kSecret, &key_), tuttiInvalidArgument);
}

TEST_F(Key, OfACallIsThatOfAFile) {
  NEEDS_TLS();
  KeyFile file("sixteen bytes or more\n");
  ASSERT_EQ(load("TUTTI_ENCRYPT", "1"), "");
  ASSERT_EQ(load("TUTTI_PSK_FILE", file.path()), "");
  ASSERT_EQ(tuttiTlsKeyMake(kSecret, &key_), tuttiSuccess) << tuttiErrorText();
  clear();
  ASSERT_EQ(tuttiSettingsLoad(), tuttiSuccess);
  tuttiTlsKey called;
  ASSERT_EQ(tuttiKeySet("sixteen bytes or more"), tuttiSuccess) << tuttiErrorText();
  ASSERT_EQ(tuttiTlsKeyMake(kSecret, &called), tuttiSuccess) << tuttiErrorText();
  EXPECT_TRUE(called.on);
  EXPECT_EQ(memcmp(called.psk, key_.psk, sizeof key_.psk), 0);
  ASSERT_EQ(tuttiKeySet(nullptr), tuttiSuccess);
  ASSERT_EQ(tuttiTlsKeyMake(kSecret, &called), tuttiSuccess);
  EXPECT_FALSE(called.on);
}

TEST_F(Key, IsRefusedWhenItIsNone) {
  EXPECT_EQ(tuttiKeySet("short"), tuttiInvalidArgument);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("16 to 4096 bytes"));
  EXPECT_EQ(tuttiKeySet(std::string(5000, 'x').c_str()), tuttiInvalidArgument);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("more than 4096"));
  ASSERT_EQ(load("TUTTI_ENCRYPT", "1"), "");
  EXPECT_EQ(tuttiKeySet(nullptr), tuttiInvalidUsage);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("TUTTI_ENCRYPT=1 asks for it"));
  clear();
  ASSERT_EQ(tuttiSettingsLoad(), tuttiSuccess);
}

TEST(TrafficKey, IsThatOfRfc8448) {
  /* Section 3, "derive write traffic keys for application data" of the server. */
  const uint8_t secret[32] = {0xa1, 0x1a, 0xf9, 0xf0, 0x55, 0x31, 0xf8, 0x56, 0xad, 0x47, 0x11,
                              0x6b, 0x45, 0xa9, 0x50, 0x32, 0x82, 0x04, 0xb4, 0xf4, 0x4b, 0xfb,
                              0x6b, 0x3a, 0x4b, 0x4f, 0x1f, 0x3f, 0xcb, 0x63, 0x16, 0x43};
  const uint8_t key[16] = {0x9f, 0x02, 0x28, 0x3b, 0x6c, 0x9c, 0x07, 0xef,
                           0xc2, 0x6b, 0xb9, 0xf2, 0xac, 0x92, 0xe3, 0x56};
  const uint8_t iv[12] = {0xcf, 0x78, 0x2b, 0x88, 0xdd, 0x83, 0x54, 0x9a, 0xad, 0xf1, 0xe9, 0x84};
  tuttiTrafficKey made;
  tuttiTrafficKeyOf(secret, &made);
  EXPECT_EQ(memcmp(made.key, key, sizeof key), 0);
  EXPECT_EQ(memcmp(made.iv, iv, sizeof iv), 0);
}

} // namespace

/* In place of libc's, for the library too. */
extern "C" ssize_t send(int fd, const void *data, size_t bytes, int flags) {
  static const auto real = (decltype(&send))dlsym(RTLD_NEXT, "send");
  if (fd == endsAtSend) {
    endsAtSend = -1;
    shutdown(fd, SHUT_RDWR);
  }
  return real(fd, data, bytes, flags);
}

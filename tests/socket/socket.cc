#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>

#include "asleep.h"
#include "bootstrap/harness.h"
#include "port.h"
#include "socket/socket.h"

using testing::AllOf;
using testing::HasSubstr;

namespace {

tuttiAddress loopback(int family = AF_INET) {
  tuttiAddress a;
  memset(&a, 0, sizeof(a));
  a.sa.sa_family = (sa_family_t)family;
  if (family == AF_INET)
    a.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  else
    a.v6.sin6_addr = in6addr_loopback;
  return a;
}

std::string text(const tuttiAddress &a) {
  char buf[80];
  return tuttiAddressText(&a, buf, sizeof(buf));
}

/* A listener on the loopback, and the ends of connections to it. */
class Socket : public testing::Test {
protected:
  void SetUp() override {
    address_ = loopback();
    ASSERT_EQ(tuttiListen(&address_, &listener_), tuttiSuccess) << tuttiErrorText();
  }
  void TearDown() override {
    for (int fd : {listener_, client_, server_})
      if (fd >= 0) close(fd);
    EXPECT_EQ(openFds(), before_);
  }
  void connectBoth() {
    ASSERT_EQ(connectAny(&address_, 1, "the server", within(10000), &client_), tuttiSuccess);
    server_ = acceptOne(listener_);
  }
  int before_ = openFds();
  tuttiAddress address_;
  int listener_ = -1, client_ = -1, server_ = -1;
};

TEST(Address, Text) {
  tuttiAddress a = loopback();
  a.v4.sin_port = htons(4711);
  EXPECT_EQ(text(a), "127.0.0.1:4711");
  a = loopback(AF_INET6);
  a.v6.sin6_port = htons(80);
  EXPECT_EQ(text(a), "[::1]:80");
  a.sa.sa_family = AF_UNIX;
  EXPECT_EQ(text(a), "(no address)");
  char tiny[6];
  a = loopback();
  EXPECT_STREQ(tuttiAddressText(&a, tiny, sizeof(tiny)), "127.0");
}

TEST(Address, ParseGood) {
  for (const char *good :
       {"127.0.0.1:4711", "10.1.2.3:1", "[::1]:65535", "[2001:db8::7]:80", "[fe80::1%lo]:4711"}) {
    tuttiAddress a;
    ASSERT_EQ(tuttiAddressParse(good, &a), tuttiSuccess) << tuttiErrorText();
    EXPECT_EQ(text(a), good);
    EXPECT_TRUE(tuttiAddressValid(&a));
  }
  tuttiAddress a;
  ASSERT_EQ(tuttiAddressParse("localhost:99", &a), tuttiSuccess) << tuttiErrorText();
}

TEST(Address, ParseBad) {
  for (const char *bad : {"",
                          ":",
                          "host",
                          "10.0.0.1",
                          "10.0.0.1:",
                          "10.0.0.1:0",
                          "10.0.0.1:65536",
                          "10.0.0.1:99999999",
                          "10.0.0.1:-1",
                          "10.0.0.1:80 ",
                          "10.0.0.1:x",
                          ":80",
                          "[::1]",
                          "[::1",
                          "[]:80",
                          "::1:80",
                          "[::1]80",
                          "10.0.0.256:80",
                          "no such host:80",
                          "[fe80::1%nosuchif]:80"}) {
    tuttiAddress a = loopback(), same = a;
    EXPECT_EQ(tuttiAddressParse(bad, &a), tuttiInvalidArgument) << bad;
    EXPECT_EQ(memcmp(&a, &same, sizeof(a)), 0) << bad;
    EXPECT_THAT(tuttiErrorText(), HasSubstr("\"" + std::string(bad) + "\""));
  }
  std::string longHost(5000, 'a');
  tuttiAddress a;
  EXPECT_EQ(tuttiAddressParse((longHost + ":80").c_str(), &a), tuttiInvalidArgument);
}

TEST(Address, ListsFromPeersAreChecked) {
  tuttiAddressList list;
  memset(&list, 0, sizeof(list));
  EXPECT_FALSE(tuttiAddressListValid(&list));
  for (auto &a : list.a) {
    a = loopback();
    a.v4.sin_port = htons(1);
  }
  for (int n : {-1, 0, 4, INT32_MAX}) {
    list.n = n;
    EXPECT_FALSE(tuttiAddressListValid(&list)) << n;
  }
  list.n = 3;
  EXPECT_TRUE(tuttiAddressListValid(&list));
  list.a[2].v4.sin_port = 0;
  EXPECT_FALSE(tuttiAddressListValid(&list));
  list.a[2].sa.sa_family = AF_UNIX;
  EXPECT_FALSE(tuttiAddressListValid(&list));
}

TEST_F(Socket, FdsAreNonBlockingCloseOnExecNoDelay) {
  connectBoth();
  for (int fd : {listener_, client_, server_}) {
    EXPECT_TRUE(fcntl(fd, F_GETFL) & O_NONBLOCK);
    EXPECT_TRUE(fcntl(fd, F_GETFD) & FD_CLOEXEC);
  }
  for (int fd : {client_, server_}) {
    int on = 0;
    socklen_t length = sizeof(on);
    EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, &length), 0);
    EXPECT_TRUE(on);
  }
}

TEST_F(Socket, MovesExactly) {
  connectBoth();
  std::string sent(8 << 20, '\0'), got(sent.size(), '\0');
  for (size_t i = 0; i < sent.size(); i++)
    sent[i] = (char)(i * 31 >> 3);
  std::thread sender([&] {
    for (size_t at = 0; at < sent.size();) {
      ssize_t n = send(client_, sent.data() + at, sent.size() - at, MSG_NOSIGNAL);
      ASSERT_TRUE(n > 0 || errno == EAGAIN);
      if (n > 0) at += (size_t)n;
    }
  });
  EXPECT_EQ(tuttiRecvAll(server_, &got[0], got.size(), "the client", within(30000)), tuttiSuccess);
  sender.join();
  EXPECT_TRUE(sent == got);
}

TEST_F(Socket, EndsAtTheDeadline) {
  connectBoth();
  char byte;
  uint64_t begin = tuttiNow();
  EXPECT_EQ(tuttiRecvAll(server_, &byte, 1, "rank 7", within(120)), tuttiTimeout);
  EXPECT_GE(tuttiNow() - begin, 120000000u); /* never early */
  EXPECT_THAT(tuttiErrorText(), HasSubstr("rank 7"));
  EXPECT_EQ(tuttiRecvAll(server_, &byte, 1, "rank 7", {1, nullptr, nullptr}),
            tuttiTimeout); /* long past */
}

TEST_F(Socket, EndsAtTheFlag) {
  connectBoth();
  tuttiAtomic32 failed = {0};
  const std::atomic<pid_t> self{threadId()};
  std::thread setter([&] {
    waitUntilAsleep(self);
    tuttiStoreRelease32(&failed, 1);
  });
  char byte;
  tuttiWait wait = {TUTTI_NO_DEADLINE, &failed, nullptr};
  EXPECT_EQ(tuttiRecvAll(server_, &byte, 1, "rank 7", wait), tuttiRemoteError);
  setter.join();
}

TEST_F(Socket, PeerThatClosesIsNamed) {
  connectBoth();
  close(client_);
  client_ = -1;
  char byte;
  EXPECT_EQ(tuttiRecvAll(server_, &byte, 1, "rank 7 (host a, pid 3)", within(10000)),
            tuttiRemoteError);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("rank 7 (host a, pid 3)"));
}

TEST_F(Socket, SignalsDoNotEndAWait) {
  connectBoth();
  struct sigaction action = {}, before;
  action.sa_handler = [](int) {};
  sigaction(SIGUSR1, &action, &before);
  pthread_t self = pthread_self();
  const std::atomic<pid_t> waiting{threadId()};
  std::thread pest([&] {
    for (int i = 0; i < 20; i++) {
      waitUntilAsleep(waiting);
      pthread_kill(self, SIGUSR1);
    }
    EXPECT_EQ(send(client_, "k", 1, MSG_NOSIGNAL), 1);
  });
  char byte = 0;
  EXPECT_EQ(tuttiRecvAll(server_, &byte, 1, "the client", within(30000)), tuttiSuccess);
  EXPECT_EQ(byte, 'k');
  pest.join();
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_F(Socket, ConnectTriesAllAddresses) {
  HeldPort held;
  tuttiAddress refused = held.address;
  /* a multicast address: connecting to it fails at once */
  tuttiAddress unreachable = loopback();
  unreachable.v4.sin_addr.s_addr = htonl(0xe0000001);
  unreachable.v4.sin_port = htons(9);
  tuttiAddress targets[] = {refused, unreachable, address_};
  ASSERT_EQ(connectAny(targets, 3, "rank 1", within(20000), &client_), tuttiSuccess)
      << tuttiErrorText();
  server_ = acceptOne(listener_);
}

/* A listener whose queue is full swallows the packets of those who connect. */
TEST_F(Socket, AnAddressThatSwallowsPacketsIsPassedBy) {
  tuttiAddress black = loopback();
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(bind(fd, &black.sa, sizeof(black.v4)), 0);
  ASSERT_EQ(listen(fd, 0), 0);
  socklen_t length = sizeof(black);
  getsockname(fd, &black.sa, &length);
  std::vector<int> fillers;
  for (int i = 0; i < 4; i++) {
    fillers.push_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    connect(fillers.back(), &black.sa, sizeof(black.v4));
  }
  tuttiAddress targets[] = {black, address_};
  EXPECT_EQ(connectAny(targets, 2, "rank 1", within(60000), &client_), tuttiSuccess)
      << tuttiErrorText();
  EXPECT_EQ(connectAny(&black, 1, "rank 1", within(300), &server_), tuttiTimeout);
  EXPECT_THAT(tuttiErrorText(),
              AllOf(HasSubstr("rank 1"), HasSubstr(text(black)), HasSubstr("no answer"),
                    HasSubstr("from lo (127.0.0.1, up)"), HasSubstr("firewall")));
  for (int filler : fillers)
    close(filler);
  close(fd);
}

TEST_F(Socket, ConnectErrorNamesAddressesInterfaceAndErrno) {
  HeldPort held[2];
  tuttiAddress refused[2] = {held[0].address, held[1].address};
  int fd;
  EXPECT_EQ(connectAny(refused, 2, "rank 5 (host b, pid 9)", within(700), &fd), tuttiTimeout);
  EXPECT_THAT(tuttiErrorText(),
              AllOf(HasSubstr("rank 5 (host b, pid 9)"), HasSubstr(text(refused[0])),
                    HasSubstr(text(refused[1])), HasSubstr("from lo (127.0.0.1, up)"),
                    HasSubstr("Connection refused"), HasSubstr("nobody listens there")));
}

TEST_F(Socket, ConnectWaitsForAListenerThatComesLate) {
  HeldPort held;
  tuttiAddress late = held.address;
  int fd;
  const std::atomic<pid_t> self{threadId()};
  std::thread opener([&, late]() mutable {
    waitUntilAsleep(self); /* it has been refused */
    EXPECT_EQ(tuttiListen(&late, &fd), tuttiSuccess) << tuttiErrorText();
  });
  EXPECT_EQ(connectAny(&late, 1, "rank 1", within(30000), &client_), tuttiSuccess);
  opener.join();
  close(fd);
}

TEST_F(Socket, ConnectEndsAtTheFlag) {
  HeldPort held;
  int fd;
  tuttiAtomic32 failed = {1};
  EXPECT_EQ(connectAny(&held.address, 1, "rank 1", {TUTTI_NO_DEADLINE, &failed, nullptr}, &fd),
            tuttiRemoteError);
}

TEST_F(Socket, ListenErrors) {
  tuttiAddress taken = address_;
  int fd = 12345;
  EXPECT_EQ(tuttiListen(&taken, &fd), tuttiSystemError);
  EXPECT_THAT(tuttiErrorText(), AllOf(HasSubstr(text(address_)), HasSubstr("in use"),
                                      HasSubstr("another process listens there")));
  tuttiAddress foreign = loopback();
  foreign.v4.sin_addr.s_addr = htonl(0xc6336401); /* 198.51.100.1, of nobody */
  EXPECT_EQ(tuttiListen(&foreign, &fd), tuttiSystemError);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("no interface of this host"));
  EXPECT_EQ(fd, 12345);
}

TEST_F(Socket, ListenAnyIsReachableByEachAddress) {
  tuttiInterface interfaces[2];
  memset(interfaces, 0, sizeof(interfaces));
  interfaces[0].address = loopback();
  interfaces[1].address = loopback(AF_INET6);
  bool v6 = access("/proc/net/if_inet6", F_OK) == 0;
  tuttiAddressList list;
  tuttiListener listener;
  ASSERT_EQ(tuttiListenAny(interfaces, v6 ? 2 : 1, &list, &listener), tuttiSuccess)
      << tuttiErrorText();
  ASSERT_EQ(listener.n, list.n);
  ASSERT_EQ(list.n, v6 ? 2 : 1);
  EXPECT_TRUE(tuttiAddressListValid(&list));
  for (int i = 0; i < list.n; i++) {
    int a, b;
    ASSERT_EQ(connectAny(&list.a[i], 1, "myself", within(10000), &a), tuttiSuccess);
    EXPECT_EQ(list.a[i].v4.sin_port, list.a[0].v4.sin_port);
    b = acceptOne(listener.fds[i]);
    close(a), close(b);
  }
  tuttiListenerClose(&listener);
  EXPECT_EQ(listener.n, 0);
}

/* 127.0.0.2 is an address of this host, too, and nobody has asked for it. */
TEST_F(Socket, NobodyListensElsewhere) {
  tuttiInterface lo;
  memset(&lo, 0, sizeof(lo));
  lo.address = loopback();
  tuttiAddressList list;
  tuttiListener listener;
  ASSERT_EQ(tuttiListenerBind(&lo, 1, &list, &listener), tuttiSuccess) << tuttiErrorText();
  EXPECT_LT(rawConnect(list.a[0]), 0) << "the port is only held";
  ASSERT_EQ(tuttiListenerStart(&listener), tuttiSuccess);
  int fd = rawConnect(list.a[0]);
  EXPECT_GE(fd, 0);
  close(fd);
  tuttiAddress other = list.a[0];
  other.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  EXPECT_LT(rawConnect(other), 0);
  EXPECT_EQ(errno, ECONNREFUSED);
  tuttiListenerClose(&listener);
}

/* A port that is taken at the second address only: another is found for both. */
TEST_F(Socket, OnePortIsFreeAtAllAddresses) {
  tuttiInterface two[2];
  memset(two, 0, sizeof(two));
  two[0].address = two[1].address = loopback();
  two[1].address.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  for (int i = 0; i < 20; i++) {
    tuttiAddressList list;
    tuttiListener listener;
    ASSERT_EQ(tuttiListenAny(two, 2, &list, &listener), tuttiSuccess) << tuttiErrorText();
    EXPECT_EQ(list.n, 2);
    EXPECT_EQ(list.a[0].v4.sin_port, list.a[1].v4.sin_port);
    tuttiListenerClose(&listener);
  }
  two[1].address.v4.sin_addr.s_addr = htonl(0xc6336401); /* of nobody: it is left out */
  tuttiAddressList list;
  tuttiListener listener;
  ASSERT_EQ(tuttiListenAny(two, 2, &list, &listener), tuttiSuccess) << tuttiErrorText();
  EXPECT_EQ(list.n, 1);
  tuttiListenerClose(&listener);
  EXPECT_EQ(tuttiListenAny(two + 1, 1, &list, &listener), tuttiSystemError);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("cannot listen on 198.51.100.1"));
}

/* Leaves this process `n` free fds while it lives. */
class FewFds {
public:
  explicit FewFds(int n) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    int next = dup(0); /* the lowest free number */
    close(next);
    few.rlim_cur = (rlim_t)(next + n);
    setrlimit(RLIMIT_NOFILE, &few);
    limit = (int)few.rlim_cur;
  }
  ~FewFds() { setrlimit(RLIMIT_NOFILE, &before_); }
  int limit;

private:
  rlimit before_;
};

TEST_F(Socket, OutOfFdsSaysSo) {
  connectBoth();
  FewFds none(0);
  std::string remedy = "raise `ulimit -n` (now " + std::to_string(none.limit) + ")";
  tuttiAddress a = loopback();
  int fd;
  EXPECT_EQ(tuttiListen(&a, &fd), tuttiSystemError);
  EXPECT_THAT(tuttiErrorText(), AllOf(HasSubstr("Too many open files"), HasSubstr(remedy)));
  EXPECT_EQ(connectAny(&address_, 1, "rank 1", within(10000), &fd), tuttiSystemError);
  EXPECT_THAT(tuttiErrorText(), AllOf(HasSubstr("rank 1"), HasSubstr(remedy)));
  tuttiAddress from;
  EXPECT_EQ(tuttiAcceptNow(listener_, &from), -EMFILE);
}

} // namespace

/* What somebody who sees the packets of a job can read: all that its sockets carry is captured, in
 * a network namespace of the test, and searched. Without a key what is looked for must be found, or
 * the test would look for the wrong things. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>

#include "bootstrap/handshake.h"
#include "comm/harness.h"
#include "processes.h"
#include "socket/tls.h"
#include "watch/frame.h"

namespace {

const char kHost[] = "host-that-is-nobodys-business";
const char kPayload[] = "PAYLOAD-THAT-NOBODY-ELSE-MAY-SEE"; /* 32 bytes */

/* Of this thread, and of processes that it starts: a network of its own, with a loopback, and a
 * name of the host. */
class Namespace {
public:
  Namespace() {
    net_ = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    uts_ = open("/proc/thread-self/ns/uts", O_RDONLY | O_CLOEXEC);
    made_ = net_ >= 0 && uts_ >= 0 && unshare(CLONE_NEWNET | CLONE_NEWUTS) == 0;
    if (!made_) return;
    EXPECT_EQ(sethostname(kHost, strlen(kHost)), 0);
    ifreq lo = {};
    strcpy(lo.ifr_name, "lo");
    lo.ifr_flags = IFF_UP | IFF_RUNNING;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    EXPECT_EQ(ioctl(fd, SIOCSIFFLAGS, &lo), 0);
    close(fd);
  }
  ~Namespace() {
    if (made_) {
      EXPECT_EQ(setns(net_, CLONE_NEWNET), 0);
      EXPECT_EQ(setns(uts_, CLONE_NEWUTS), 0);
    }
    close(net_);
    close(uts_);
  }
  Namespace(const Namespace &) = delete;
  bool made() const { return made_; }

private:
  int net_ = -1, uts_ = -1;
  bool made_ = false;
};

/* All packets on this thread's loopback while it lives. */
class Capture {
public:
  Capture() {
    fd_ = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL));
    int room = 256 << 20;
    ok_ = fd_ >= 0 && setsockopt(fd_, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room) == 0;
    thread_ = std::thread([this] { run(); });
  }
  ~Capture() { stop(); }
  /* What has come until now; "" if packets were missed. */
  std::string stop() {
    if (thread_.joinable()) {
      stopping_ = true;
      thread_.join();
      tpacket_stats stats = {};
      socklen_t length = sizeof stats;
      EXPECT_EQ(getsockopt(fd_, SOL_PACKET, PACKET_STATISTICS, &stats, &length), 0);
      EXPECT_EQ(stats.tp_drops, 0u);
      close(fd_);
    }
    return std::move(all_);
  }
  bool ok() const { return ok_; }

private:
  /* Ends when it is to stop and everything was read. */
  void run() {
    std::vector<char> packet(1 << 18);
    pollfd p = {fd_, POLLIN, 0};
    for (;;) {
      bool last = stopping_;
      while (poll(&p, 1, 0) > 0) {
        ssize_t n = recv(fd_, packet.data(), packet.size(), MSG_DONTWAIT);
        if (n > 0) all_.append(packet.data(), (size_t)n);
      }
      if (last) return;
      poll(&p, 1, 20);
    }
  }

  int fd_;
  bool ok_;
  std::atomic<bool> stopping_{false};
  std::string all_;
  std::thread thread_;
};

/* One rank: collectives large and small, a message, a communicator made of it, a late rank that is
 * asked what it does. */
void work(tuttiComm_t comm, int rank) {
  int nranks = 0;
  ASSERT_EQ(tuttiCommCount(comm, &nranks), tuttiSuccess);
  std::string data;
  while (data.size() < 300000)
    data += kPayload;
  std::string all(data.size() * (size_t)nranks, '\0');
  ASSERT_EQ(tuttiAllGather(data.data(), &all[0], data.size(), tuttiInt8, comm, nullptr),
            tuttiSuccess)
      << tuttiGetLastError(comm);
  ASSERT_EQ(all.substr(all.size() - data.size()), data);
  ASSERT_EQ(tuttiAllGather(data.data(), &all[0], 32, tuttiInt8, comm, nullptr), tuttiSuccess);
  tuttiComm_t part;
  ASSERT_EQ(tuttiCommSplit(comm, 0, rank, &part, nullptr), tuttiSuccess) << tuttiGetLastError(comm);
  if (rank == 1) usleep(700000); /* long enough to be asked about, if nothing holds up the others */
  ASSERT_EQ(tuttiBroadcast(&data[0], &data[0], 32, tuttiInt8, 0, part, nullptr), tuttiSuccess)
      << tuttiGetLastError(part);
  ASSERT_EQ(tuttiCommDestroy(part), tuttiSuccess);
}

struct Kind {
  const char *name;
  int processes, threads; /* ranks of each process */
  std::map<std::string, std::string> settings;
  bool payload; /* goes over sockets */
};

void PrintTo(const Kind &kind, std::ostream *out) {
  *out << kind.name;
}

class Captured : public testing::TestWithParam<Kind> {
protected:
  /* What the wire carries of a job of this kind. */
  void capture(bool encrypts, std::string *seen) {
    RankProcesses ranks;
    std::unique_ptr<Namespace> ns;
    std::unique_ptr<Capture> wire;
    std::unique_ptr<KeyFile> key; /* the test's own: its processes end without destructors */
    if (!getenv("TUTTITEST_PROCESS")) {
      ns = std::make_unique<Namespace>();
      if (!ns->made()) GTEST_SKIP() << "needs the right to make a network namespace (root)";
      wire = std::make_unique<Capture>();
      if (!wire->ok()) GTEST_SKIP() << "needs the right to capture packets (root)";
      key = std::make_unique<KeyFile>();
    }
    const int n = GetParam().processes, each = GetParam().threads;
    auto all = GetParam().settings;
    all["TUTTI_SOCKET_IFNAME"] = "=lo";
    all["TUTTI_ENCRYPT"] = encrypts ? "1" : "0";
    if (key) all["TUTTI_PSK_FILE"] = key->path(); /* processes have it from here */
    Settings now(all);
    ranks.start(n, [&](int process) {
      tuttiUniqueId id = ranks.id();
      onThreads(each, [&](int t) {
        int rank = process * each + t;
        tuttiComm_t comm;
        ASSERT_EQ(tuttiCommInitRank(&comm, n * each, id, rank), tuttiSuccess)
            << tuttiGetLastError(nullptr);
        work(comm, rank);
        EXPECT_EQ(tuttiCommDestroy(comm), tuttiSuccess);
      });
    });
    ranks.waitAll();
    ranks.expectCleanEnds();
    tuttiId made;
    tuttiUniqueId id = ranks.madeId();
    ASSERT_EQ(tuttiIdParse(&id, &made), tuttiSuccess);
    id_.assign((const char *)made.secret, sizeof made.secret);
    *seen = wire->stop();
  }
  std::string id_;
};

template <class T> std::string bytesOf(T value) {
  return std::string((const char *)&value, sizeof value);
}

bool holds(const std::string &all, const std::string &what) {
  return all.find(what) != std::string::npos;
}

TEST_P(Captured, InTheClearHoldsWhatIsLookedFor) {
  std::string seen;
  capture(false, &seen);
  if (IsSkipped()) return;
  EXPECT_EQ(holds(seen, kPayload), GetParam().payload);
  EXPECT_TRUE(holds(seen, kHost));
  EXPECT_TRUE(holds(seen, bytesOf(TUTTI_HELLO_MAGIC) + bytesOf((uint32_t)TUTTI_VERSION_CODE)));
  EXPECT_TRUE(holds(seen, bytesOf((uint16_t)TUTTI_FRAME_MARK) +
                              bytesOf((uint16_t)tuttiFrameGoodbye) + bytesOf((uint32_t)0)));
  EXPECT_FALSE(holds(seen, id_)) << "the secret is not said in any case";
}

TEST_P(Captured, WithAKeyHoldsNothing) {
  NEEDS_TLS();
  std::string seen;
  capture(true, &seen);
  if (IsSkipped()) return;
  EXPECT_GT(seen.size(), GetParam().payload ? 600000u : 2000u) << "the job's packets were not seen";
  EXPECT_FALSE(holds(seen, std::string(kPayload).substr(0, 12)));
  EXPECT_FALSE(holds(seen, kHost));
  EXPECT_FALSE(holds(seen, bytesOf(TUTTI_HELLO_MAGIC)));
  EXPECT_FALSE(holds(seen, bytesOf((uint16_t)TUTTI_FRAME_MARK) +
                               bytesOf((uint16_t)tuttiFrameGoodbye) + bytesOf((uint32_t)0)));
  EXPECT_FALSE(holds(seen, id_));
}

const std::map<std::string, std::string> kSockets = {{"TUTTI_SHM_DISABLE", "1"},
                                                     {"TUTTI_P2P_DISABLE", "1"},
                                                     {"TUTTI_NET", "Socket"},
                                                     {"TUTTI_SOCKET_NSOCKS", "2"}};

#ifdef SOFTHCA_LIBRARY
/* What moves by RDMA no socket carries; how its ends meet goes over them. */
const std::map<std::string, std::string> kRdma = {{"TUTTI_SHM_DISABLE", "1"},
                                                  {"TUTTI_P2P_DISABLE", "1"},
                                                  {"TUTTI_NET", "IB"},
                                                  {"LD_LIBRARY_PATH", SOFTHCA_LIBRARY}};

INSTANTIATE_TEST_SUITE_P(Ib, Captured, testing::Values(Kind{"Rdma", 3, 1, kRdma, false}),
                         [](const auto &info) { return std::string(info.param.name); });
#endif

INSTANTIATE_TEST_SUITE_P(Jobs, Captured,
                         testing::Values(Kind{"Sockets", 3, 1, kSockets, true},
                                         Kind{"SharedMemory", 3, 1, {}, false},
                                         Kind{"Threads", 1, 3, {}, false}),
                         [](const auto &info) { return std::string(info.param.name); });

} // namespace

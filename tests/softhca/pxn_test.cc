// Messages that leave by the NIC beside another GPU of the host: four ranks on two hosts, ranks 0
// and 2 beside the first NIC of theirs, 1 and 3 beside the second, all in memory of the stand-in.
#include <fstream>
#include <functional>
#include <memory>
#include <thread>

#include <gmock/gmock.h>

#include "control.h"
#include "end.h"
#include "fault_scenario.h"
#include "gpu_rank.h"
#include "processes.h"
#include "wireup/pxn.h"

namespace {

constexpr int kRanks = 4, kNics = 2;
const char kTwo[] = "device softhca0\ndevice softhca1\n";
const std::vector<size_t> kSizes = {1, 80, 81, 200, 4096, 32769, 40001, kSlot};

uint64_t hostOf(int rank) {
  return 100 + static_cast<uint64_t>(rank) / 2;
}
int nicOf(int rank) {
  return rank % kNics;
}

// What the topology would say, of which the software HCA has none: a rank is beside one NIC and far
// from the other.
void place(tuttiPeer &p) {
  tuttiIbHandle h;
  memcpy(&h, p.net, sizeof h);
  p.hostId = hostOf(p.rank);
  p.busId = static_cast<uint64_t>(p.rank) + 1;
  p.reaches = p.ipc = 1;
  for (int i = 0; i < h.nports; i++) {
    bool near = h.ports[i].device == "softhca" + std::to_string(nicOf(p.rank));
    h.ports[i].distance = near ? TUTTI_DISTANCE_PIX : TUTTI_DISTANCE_SYS;
    if (!near && h.ports[i].gdr == TUTTI_GDR_YES)
      h.ports[i].gdr = h.ports[i].gdrRead = TUTTI_GDR_FAR;
  }
  memcpy(p.net, &h, sizeof h);
}

size_t memLimit = 0; // of ranks from now on

// One rank from its record to its memory.
struct Member : Rank {
  tuttiRails rails{};
  tuttiPxn pxn{};

  void begin(int rank, size_t slotBytes = kSlot) {
    set("TUTTI_NET_GDR_LEVEL", "SYS"); // the software HCA has no place on PCI
    view.lsaSize = 2;
    view.memLimit = memLimit;
    ASSERT_EQ(prepare(rank, true, slotBytes, kRanks), tuttiSuccess) << tuttiErrorText();
    view.memLimit = 0; // as src/wireup leaves it for GPUs
    mine().process = tuttiProcessId();
    place(mine());
  }
  void meetAll(const std::vector<tuttiPeer> &records) {
    std::vector<uint64_t> hosts;
    for (int r = 0; r < kRanks; r++) {
      hosts.push_back(hostOf(r));
      if (r != view.rank) meet(records[static_cast<size_t>(r)]);
    }
    EXPECT_EQ(tuttiRailsMake(peers.data(), hosts.data(), kRanks, &rails), tuttiSuccess);
    EXPECT_EQ(tuttiPxnMake(peers.data(), &rails, view.rank, kRanks, &pxn), tuttiSuccess);
    view.pxn = pxn.to;
    view.lends = pxn.lends;
  }
  void attach() { EXPECT_EQ(tuttiTransportNet.attach(&view), tuttiSuccess) << tuttiErrorText(); }
  int lenderFor(int peer) { return pxn.to ? pxn.to[peer].lender : -1; }
  ~Member() {
    tuttiTransportNet.detach(&view);
    tuttiPxnFree(&pxn);
    tuttiRailsFree(&rails);
  }
};

// All of them as threads of one process.
struct Cluster {
  std::vector<std::unique_ptr<Member>> members;
  explicit Cluster(const std::function<void(int, tuttiPeer &)> &edit = nullptr,
                   size_t slotBytes = kSlot) {
    std::vector<tuttiPeer> records;
    for (int r = 0; r < kRanks; r++) {
      members.push_back(std::make_unique<Member>());
      members.back()->begin(r, slotBytes);
      if (edit) edit(r, members.back()->mine());
      records.push_back(members.back()->mine());
    }
    for (auto &m : members)
      m->meetAll(records);
    std::vector<std::thread> threads;
    for (auto &m : members)
      threads.emplace_back([&m] { m->attach(); });
    for (std::thread &t : threads)
      t.join();
  }
  Member &operator[](int r) { return *members[static_cast<size_t>(r)]; }
};

// One connection for messages from a rank to another, whose wrong bytes are counted; -1: not all
// came.
struct Messages {
  Member &from, &to;
  tuttiConn out, in;
  Messages(Cluster &c, int a, int b, int channel = TUTTI_P2P_CHANNEL)
      : from(c[a]), to(c[b]), out(from.open(b, channel, TUTTI_SEND)),
        in(to.open(a, channel, TUTTI_RECV)) {}
  ~Messages() {
    tuttiTransportNet.close(&from.view, &out);
    tuttiTransportNet.close(&to.view, &in);
  }
  int exchange(int n) {
    int wrong = 0, got = 0;
    std::thread sender([&] {
      for (int i = 0; i < n && from.await(out); i++)
        publish(from, out, kSizes[out.next % kSizes.size()]);
    });
    for (; got < n && to.await(in); got++)
      wrong += !take(to, in, kSizes[in.next % kSizes.size()]);
    if (got < n) tuttiStoreRelease32(&from.failed, 1); /* nor need the sender wait */
    sender.join();
    return got == n ? wrong : -1;
  }
  std::string errors() { return from.error + to.error; }
};

// What is logged meanwhile.
std::string logOf(const std::function<void()> &body) {
  set("TUTTI_DEBUG", "INFO");
  testing::internal::CaptureStderr();
  body();
  std::string log = testing::internal::GetCapturedStderr();
  set("TUTTI_DEBUG", "WARN");
  return log;
}
bool says(const std::string &log, const std::string &what) {
  return log.find(what) != std::string::npos;
}

// ---- threads
// -------------------------------------------------------------------------------------

TEST(Pxn, LeavesByTheNicBesideTheReceiversRail) {
  if (!configured(kTwo)) return;
  {
    Cluster c;
    for (int from = 0; from < kRanks; from++)
      for (int to = 0; to < kRanks; to++) {
        bool crosses = hostOf(from) != hostOf(to) && nicOf(from) != nicOf(to);
        EXPECT_EQ(c[from].lenderFor(to), crosses ? from ^ 1 : -1) << from << " to " << to;
      }
    std::string log = logOf([&] {
      Messages m(c, 0, 3);
      EXPECT_TRUE(m.out.gpuData);
      uint64_t first = softHcaFrames(0, 1), second = softHcaFrames(1, 1);
      EXPECT_EQ(m.exchange(100), 0) << m.errors();
      EXPECT_EQ(softHcaFrames(0, 1), first) << "nothing crosses the rails";
      EXPECT_GE(softHcaFrames(1, 1), second + 100);
    });
    EXPECT_TRUE(says(log, "rank 0 -> rank 3 [send] via NET/IB/1/GDRDMA by rank 1, whose GPU is "
                          "beside softhca1"))
        << log;
  }
  EXPECT_EQ(allocations, 0);
}

TEST(Pxn, IsForMessagesBetweenRailsAlone) {
  if (!configured(kTwo)) return;
  Cluster c;
  std::string log = logOf([&] {
    Messages same(c, 0, 2), collective(c, 0, 3, 1);
    EXPECT_EQ(same.exchange(20), 0);
    EXPECT_EQ(collective.exchange(20), 0);
  });
  EXPECT_FALSE(says(log, "GDRDMA by rank")) << log;
}

TEST(Pxn, AllPairsAtOnce) {
  if (!configured(kTwo + std::string("movers 2"))) return;
  Cluster c;
  std::vector<std::unique_ptr<Messages>> all;
  for (int from = 0; from < kRanks; from++)
    for (int to = 0; to < kRanks; to++)
      if (hostOf(from) != hostOf(to)) all.push_back(std::make_unique<Messages>(c, from, to));
  std::vector<std::thread> threads;
  for (auto &m : all)
    threads.emplace_back([&m] { EXPECT_EQ(m->exchange(30), 0) << m->errors(); });
  for (std::thread &t : threads)
    t.join();
}

TEST(Pxn, CanBeSwitchedOff) {
  if (!configured(kTwo)) return;
  set("TUTTI_PXN_DISABLE", "1");
  Cluster c;
  EXPECT_EQ(c[0].lenderFor(3), -1);
  Messages m(c, 0, 3);
  uint64_t first = softHcaFrames(0, 1);
  EXPECT_EQ(m.exchange(20), 0);
  EXPECT_GT(softHcaFrames(0, 1), first);
}

// A loan that has no room for one connection is none.
TEST(Pxn, WhatFindsNoRoomGoesFromTheOwnGpu) {
  if (!configured(kTwo)) return;
  set("TUTTI_PXN_SLAB", "1M"); // of eight slots that are twice as large
  std::string log = logOf([&] {
    Cluster c(nullptr, 4 * kSlot);
    EXPECT_EQ(c[0].lenderFor(3), 1);
    Messages m(c, 0, 3);
    EXPECT_TRUE(m.out.gpuData);
    EXPECT_EQ(m.exchange(20), 0) << m.errors();
  });
  EXPECT_TRUE(says(log,
                   "no messages by way of the GPU of rank 1: TUTTI_PXN_SLAB or TUTTI_MEM_LIMIT "
                   "here or there leaves no room for one connection, 2048 KiB"))
      << log;
  EXPECT_FALSE(says(log, "by way of rank")) << log;
  EXPECT_FALSE(says(log, "GDRDMA by rank")) << log;
}

// Loans are counted where they are used, and limited where they are taken from, with what that rank
// has there itself.
TEST(Pxn, LoansAreCountedAndLimited) {
  if (!configured(kTwo)) return;
  constexpr uint64_t kMiB = 1 << 20;
  memLimit = 13 * kMiB;
  Cluster c(nullptr, 2 * kSlot); // so that a connection takes 1 MiB, and a loan the GPU's unit
  for (int r = 0; r < kRanks; r++) {
    EXPECT_EQ(c[r].mine().pxnBytes, 2 * kMiB) << "of a half, for three others";
    EXPECT_EQ(tuttiLoadRelaxed(&c[r].memory.bytes) / kMiB, 12u)
        << "10 of its own, as 2 are lent, and 2 borrowed";
  }
  for (auto &m : c.members)
    tuttiTransportNet.detach(&m->view);
  for (int r = 0; r < kRanks; r++)
    EXPECT_LT(tuttiLoadRelaxed(&c[r].memory.bytes), kMiB);
}

TEST(Pxn, NeedsAGpuWithRoom) {
  if (!configured(kTwo)) return;
  std::string log = logOf([&] {
    std::vector<tuttiPeer> records;
    std::vector<std::unique_ptr<Member>> members;
    for (int r = 0; r < kRanks; r++) {
      members.push_back(std::make_unique<Member>());
      members.back()->begin(r);
      records.push_back(members.back()->mine());
    }
    for (auto &m : members)
      m->meetAll(records);
    limit = allocations + 1; // the slab of rank 0 itself, and no loan
    members[0]->attach();
    limit = INT_MAX;
    for (int r = 1; r < kRanks; r++)
      members[static_cast<size_t>(r)]->attach();
    Member &a = *members[0], &b = *members[3];
    tuttiConn out = a.open(3, TUTTI_P2P_CHANNEL, TUTTI_SEND);
    tuttiConn in = b.open(0, TUTTI_P2P_CHANNEL, TUTTI_RECV);
    EXPECT_TRUE(out.gpuData);
    publish(a, out, kSlot);
    EXPECT_TRUE(b.await(in) && take(b, in, kSlot)) << a.error << b.error;
    tuttiTransportNet.close(&a.view, &out);
    tuttiTransportNet.close(&b.view, &in);
  });
  EXPECT_TRUE(says(log, "messages do not go by way of rank 1's GPU: rank 0: the GPU is full"))
      << log;
  EXPECT_FALSE(says(log, "GDRDMA by rank 1, ")) << log;
}

// The port beside the lender fails: the message goes on from the same memory by another, and comes
// back to it.
TEST(Pxn, APortThatFailsIsMendedByOthers) {
  if (!configured(kTwo)) return;
  set("TUTTI_IB_TIMEOUT", "10");
  Cluster c;
  Messages m(c, 0, 3);
  EXPECT_EQ(m.exchange(100), 0) << m.errors();
  softHcaPort(1, 1, 0);
  uint64_t first = softHcaFrames(0, 1);
  EXPECT_EQ(m.exchange(100), 0) << m.errors();
  EXPECT_GT(softHcaFrames(0, 1), first);
  softHcaPort(1, 1, 1);
  bool back = false;
  for (uint64_t end = tuttiNow() + kLongNs; !back && tuttiNow() < end;) {
    uint64_t frames = softHcaFrames(1, 1);
    ASSERT_EQ(m.exchange(50), 0) << m.errors();
    back = softHcaFrames(1, 1) > frames + 50;
  }
  EXPECT_TRUE(back);
}

// A NIC that is down at init is a rail all the same. Nobody sends by way of the GPU beside it, nor
// to that of the other host; that one does by way of another. All arrives, before it is up and
// after.
TEST(Pxn, ARailMayBeDownAtInit) {
  if (!configured(kTwo)) return;
  softHcaPort(1, 1, 0);
  Cluster c;
  for (int r = 0; r < kRanks; r++) {
    EXPECT_EQ(c[r].rails.nrails, kNics);
    EXPECT_EQ(c[r].rails.distance[r * kNics + nicOf(r)], TUTTI_DISTANCE_PIX);
    for (int to = 0; to < kRanks; to++) {
      bool crosses = hostOf(r) != hostOf(to) && nicOf(r) == 1 && nicOf(to) == 0;
      EXPECT_EQ(c[r].lenderFor(to), crosses ? r ^ 1 : -1) << r << " to " << to;
    }
  }
  Messages to(c, 0, 3), from(c, 1, 2), same(c, 1, 3);
  for (int up = 0; up < 2; up++) {
    softHcaPort(1, 1, up);
    for (Messages *m : {&to, &from, &same})
      EXPECT_EQ(m->exchange(50), 0) << m->errors();
  }
}

TEST(Pxn, OutOfOrderAndLateMemory) {
  if (!configured(kTwo + std::string("reorder_us 300\ninvisible_ms 1000"))) return;
  Cluster c;
  Messages m(c, 1, 2);
  EXPECT_EQ(m.exchange(300), 0) << m.errors();
}

// The nth frame, the pattern of a check, is garbled: that NIC then does not reach the GPU or does
// not send from the loan, and what is sent is right all the same.
class PxnFlip : public testing::TestWithParam<int> {};

TEST_P(PxnFlip, ALoanIsChecked) {
  if (!configured(kTwo + std::string("fault flip nth=") + std::to_string(GetParam()))) return;
  std::unique_ptr<Cluster> c;
  std::string log = logOf([&] {
    c = std::make_unique<Cluster>();
    Messages m(*c, 0, 3);
    EXPECT_EQ(m.exchange(50), 0) << m.errors();
  });
  EXPECT_TRUE(says(log, "the data that come out are wrong")) << log;
}

// Init sends 8 frames of patterns for the NICs of each rank, then one for each NIC and loan.
INSTANTIATE_TEST_SUITE_P(Pxn, PxnFlip, testing::Range(1, 17));

// A registration is refused, of the loan or of anything else.
class PxnRefusals : public testing::TestWithParam<int> {};

TEST_P(PxnRefusals, MessagesGoAnotherWay) {
  if (!configured(kTwo + std::string("fault refuse nth=") + std::to_string(GetParam()))) return;
  Cluster c;
  Messages m(c, 0, 3), other(c, 1, 2);
  EXPECT_EQ(m.exchange(50), 0) << m.errors();
  EXPECT_EQ(other.exchange(50), 0) << other.errors();
}

INSTANTIATE_TEST_SUITE_P(Pxn, PxnRefusals, testing::Range(1, 41));

// A device goes away at some command of init, of the loan or of connecting.
class PxnRemovals : public testing::TestWithParam<int> {};

TEST_P(PxnRemovals, TheOtherDeviceIsUsed) {
  if (!configured("device softhca0\ndevice softhca1 removed_calls=" + std::to_string(GetParam())))
    return;
  Cluster c;
  Messages m(c, 0, 3);
  EXPECT_EQ(m.exchange(50), 0) << m.errors();
}

INSTANTIATE_TEST_SUITE_P(Pxn, PxnRemovals, testing::Range(1, 121, 4));

class PxnFaults : public testing::TestWithParam<unsigned> {};

TEST_P(PxnFaults, PayloadsArriveWhole) {
  Scenario s;
  for (unsigned seed = GetParam() * 1000;
       s.devices.find("hca1") == std::string::npos || s.ending != Ending::Right; seed++)
    s = ScenarioMaker(seed).make();
  std::string renamed = s.devices + s.faults[0];
  for (size_t at = 0; (at = renamed.find("hca", at)) != std::string::npos; at += 7)
    renamed.insert(at, "soft");
  if (!configured(renamed)) return;
  for (auto &[name, value] : s.settings)
    set(name.c_str(), value.c_str());
  Cluster c;
  Messages m(c, 0, 3), back(c, 3, 0);
  EXPECT_EQ(m.exchange(100), 0) << m.errors() << s.text;
  EXPECT_EQ(back.exchange(100), 0) << back.errors() << s.text;
}

INSTANTIATE_TEST_SUITE_P(Seeds, PxnFaults, testing::Range(1u, 17u));

// ---- processes
// -----------------------------------------------------------------------------------

// Where processes of a test leave their records for each other.
struct Board {
  std::string folder = testing::TempDir() + "pxn." + std::to_string(getppid()) + ".";
  void put(int rank, const tuttiPeer &p) {
    std::string path = folder + std::to_string(rank);
    std::ofstream(path + ".new", std::ios::binary)
        .write(reinterpret_cast<const char *>(&p), sizeof p);
    rename((path + ".new").c_str(), path.c_str());
  }
  tuttiPeer get(int rank) {
    tuttiPeer p{};
    std::string path = folder + std::to_string(rank);
    for (uint64_t end = tuttiNow() + kLongNs; tuttiNow() < end; usleep(1000)) {
      std::ifstream file(path, std::ios::binary);
      if (file.read(reinterpret_cast<char *>(&p), sizeof p)) return p;
    }
    ADD_FAILURE() << "no record of rank " << rank;
    return p;
  }
  static void clear() {
    for (int r = 0; r < kRanks; r++)
      unlink((testing::TempDir() + "pxn." + std::to_string(getpid()) + "." + std::to_string(r))
                 .c_str());
  }
};

constexpr int kRounds = 10, kEach = 30;

// Rank 0 sends to rank 3 in rounds; after each it waits until the test says go on. What rank 1 does
// meanwhile is up to `lender`.
void work(RankProcesses &processes, int r, const std::function<void(Member &)> &change = nullptr,
          size_t slotBytes = kSlot) {
  RankReport &report = processes.report(r);
  Board board;
  Member me;
  me.begin(r, slotBytes);
  if (change) change(me);
  board.put(r, me.mine());
  std::vector<tuttiPeer> records;
  for (int other = 0; other < kRanks; other++)
    records.push_back(board.get(other));
  me.meetAll(records);
  snprintf(report.text, sizeof report.text, "%s", logOf([&] { me.attach(); }).c_str());
  report.number = static_cast<size_t>(me.lenderFor(3) + 1);
  __atomic_store_n(&report.stage, 1, __ATOMIC_RELEASE);
  if (r == 0) {
    tuttiConn out = me.open(3, TUTTI_P2P_CHANNEL, TUTTI_SEND);
    for (int i = 0; i < kRounds * kEach; i++) {
      if (i % kEach == 0) __atomic_store_n(&report.stage, 2 + i / kEach, __ATOMIC_RELEASE);
      ASSERT_TRUE(me.await(out)) << me.error;
      publish(me, out, kSizes[out.next % kSizes.size()]);
      usleep(1000);
    }
    while (!tuttiNetDrained(&me.view))
      tuttiProxyRun(me.view.proxy);
    report.seconds = static_cast<double>(softHcaFrames(1, 1));
    tuttiTransportNet.close(&me.view, &out);
  } else if (r == 3) {
    tuttiConn in = me.open(0, TUTTI_P2P_CHANNEL, TUTTI_RECV);
    int wrong = 0;
    for (int i = 0; i < kRounds * kEach; i++) {
      ASSERT_TRUE(me.await(in)) << me.error;
      wrong += !take(me, in, kSizes[in.next % kSizes.size()]);
    }
    EXPECT_EQ(wrong, 0);
    tuttiTransportNet.close(&me.view, &in);
  }
  report.result = 1;
}

TEST(PxnProcesses, TheLenderHandsMemoryOverAndDoesNoMore) {
  if (!configured(kTwo)) return;
  RankProcesses processes;
  processes.start(kRanks, [&](int r) { work(processes, r); });
  processes.waitAll(100);
  processes.expectCleanEnds();
  EXPECT_EQ(processes.report(0).number, 2u) << "by way of rank 1";
  EXPECT_GE(processes.report(0).seconds, kRounds * kEach) << "frames by the NIC beside it";
  Board::clear();
}

TEST(PxnProcesses, OneThatDiesTakesNothingAway) {
  if (!configured(kTwo)) return;
  RankProcesses processes;
  processes.start(kRanks, [&](int r) {
    work(processes, r);
    if (r == 1) usleep(60000000);
  });
  ASSERT_TRUE(processes.waitForStage(0, 4));
  processes.killRank(1);
  processes.waitAll(100);
  for (int r : {0, 2, 3})
    EXPECT_EQ(processes.report(r).status, 0) << r << processes.report(r).text;
  EXPECT_GE(processes.report(0).seconds, kRounds * kEach);
  Board::clear();
}

// It has none: no room, or what it hands over is of no memory.
TEST(PxnProcesses, ALenderWithoutMemorySaysSo) {
  if (!configured(kTwo)) return;
  RankProcesses processes;
  processes.start(kRanks,
                  [&](int r) { work(processes, r, [&](Member &) { lendsNothing = r == 1; }); });
  processes.waitAll(100);
  processes.expectCleanEnds();
  EXPECT_LT(processes.report(0).seconds, kRounds * kEach) << "frames by the NIC beside it";
  Board::clear();
}

// Where processes cannot hand descriptors over, nobody waits for any.
TEST(PxnProcesses, WithoutABoxThereIsNoLender) {
  if (!configured(kTwo)) return;
  RankProcesses processes;
  processes.start(kRanks, [&](int r) {
    work(processes, r, [&](Member &m) {
      if (r == 1) m.mine().loans = tuttiFdAddress{};
    });
  });
  processes.waitAll(100);
  processes.expectCleanEnds();
  EXPECT_EQ(processes.report(0).number, 0u);
  Board::clear();
}

// Lender and borrower have other limits, and some no room for a connection: a loan is as large as
// both allow, and nobody waits for one that does not come.
struct Limits {
  const char *lender, *borrower;
  bool lends;
};
void PrintTo(const Limits &l, std::ostream *to) {
  *to << l.lender << " to " << l.borrower;
}
class PxnLimits : public testing::TestWithParam<Limits> {};

TEST_P(PxnLimits, MayDiffer) {
  if (!configured(kTwo)) return;
  RankProcesses processes;
  processes.start(kRanks, [&](int r) {
    set("TUTTI_PXN_SLAB", r == 1 ? GetParam().lender : GetParam().borrower);
    work(processes, r, nullptr, 4 * kSlot);
  });
  processes.waitAll(100);
  processes.expectCleanEnds();
  std::string lender = processes.report(1).text, borrower = processes.report(0).text;
  EXPECT_EQ(says(borrower, "1 connections by way of rank 1's GPU, in 2 MiB"), GetParam().lends);
  EXPECT_NE(says(borrower, "no messages by way of the GPU of rank 1"), GetParam().lends);
  EXPECT_FALSE(says(lender + borrower, "hand")) << "who waits in vain says that nothing was handed "
                                                   "over\n"
                                                << lender << borrower;
  if (GetParam().lends)
    EXPECT_GE(processes.report(0).seconds, kRounds * kEach) << "frames by the NIC beside it";
  else
    EXPECT_LT(processes.report(0).seconds, kRounds * kEach);
  Board::clear();
}

INSTANTIATE_TEST_SUITE_P(Pxn, PxnLimits,
                         testing::Values(Limits{"32M", "4M", true}, Limits{"4M", "32M", true},
                                         Limits{"32M", "1M", false}, Limits{"1M", "32M", false}));

} // namespace

// A row of the table says what connects two ranks and why, for every transport and every reason.
#include <functional>

#include "wireup/world.h"

namespace {
using namespace world;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Case {
  const char *name;
  std::function<void(tuttiPeer &a, tuttiPeer &b)> make; // from rank 2 and 5, one process
  const tuttiTransport *transport;
  const tuttiNet *net;
  const char *via;
  std::vector<const char *> says; // in messages from a to b
};

void PrintTo(const Case &c, std::ostream *to) {
  *to << c.name;
}

class Reasons : public ::testing::TestWithParam<Case> {};

TEST_P(Reasons, AreInTheRowAndInItsSentence) {
  const Case &c = GetParam();
  tuttiPeer a = peer(2, 1, 1), b = peer(5, 1, 1);
  c.make(a, b);
  tuttiPath row{}, back{};
  tuttiTransportSelect(&a, &b, &row);
  tuttiTransportSelect(&b, &a, &back);
  EXPECT_EQ(0, memcmp(&row, &back, sizeof row)) << "the same on both ranks";
  EXPECT_EQ(c.transport, row.transport);
  EXPECT_EQ(c.net, row.net);
  if (c.via) {
    char via[TUTTI_VIA];
    EXPECT_STREQ(c.via, tuttiPathVia(&row, &a, &b, via));
    EXPECT_GT(row.latencyUs, 0);
    EXPECT_GT(row.bandwidthGBs, 0);
  } else {
    EXPECT_EQ(nullptr, row.via);
  }
  for (const char *part : c.says)
    EXPECT_THAT(text(row, a, b), HasSubstr(part));
}

void toHosts(tuttiPeer &a, tuttiPeer &b) {
  a.hostId = (uint64_t)0x12 << 32;
  b = peer(5, 2, 0x34);
}
void toGpus(tuttiPeer &a, tuttiPeer &b, uint64_t processOfB = 1) {
  a = gpu(2, 1, 1, 0x10);
  b = gpu(5, processOfB, 1, 0x20);
}
[[maybe_unused]] void toIb(tuttiPeer &a, tuttiPeer &b, const std::vector<Port> &ofA,
                           const std::vector<Port> &ofB) {
  toHosts(a, b);
  giveIb(a, ofA);
  giveIb(b, ofB);
}

const tuttiTransport *const kP2p = &tuttiTransportP2p, *const kShm = &tuttiTransportShm,
                            *const kNet = &tuttiTransportNet;

INSTANTIATE_TEST_SUITE_P(
    Paths, Reasons,
    ::testing::Values(
        Case{"Threads",
             [](tuttiPeer &, tuttiPeer &) {},
             kP2p,
             nullptr,
             "P2P/direct pointer",
             {"threads of one process"}},
        Case{"GpusOfAProcess",
             [](tuttiPeer &a, tuttiPeer &b) { toGpus(a, b); },
             kP2p,
             nullptr,
             "P2P/direct pointer",
             {"GPUs of one host"}},
        Case{"GpusOfProcesses",
             [](tuttiPeer &a, tuttiPeer &b) { toGpus(a, b, 2); },
             kP2p,
             nullptr,
             "P2P/IPC",
             {"GPUs of one host"}},
        Case{"NoIpc",
             [](tuttiPeer &a, tuttiPeer &b) {
               toGpus(a, b, 2);
               b.ipc = 0;
             },
             kShm,
             nullptr,
             "SHM/direct",
             {"pinned memory of one host; not P2P: rank 5 has no CUDA IPC"}},
        Case{"NoAccess",
             [](tuttiPeer &a, tuttiPeer &b) {
               toGpus(a, b);
               a.reaches = 0;
             },
             kShm,
             nullptr,
             "SHM/direct",
             {"not P2P: the driver gives the GPU of rank 2 no peer access"}},
        Case{"P2pDisabled",
             [](tuttiPeer &a, tuttiPeer &) { a.p2pDisabled = 1; },
             kShm,
             nullptr,
             "SHM/direct",
             {"shared memory of one host; not P2P: TUTTI_P2P_DISABLE=1"}},
        Case{"Processes",
             [](tuttiPeer &, tuttiPeer &b) { b = peer(5, 2, 1); },
             kShm,
             nullptr,
             "SHM/direct",
             {"not P2P: different processes (1001, 1002)"}},
        Case{"Hosts",
             toHosts,
             kNet,
             &tuttiNetSocket,
             "NET/Socket/0",
             {"TCP from eth0 of host node1 to eth0 of host node52, 25 Gb/s",
              "not P2P: different processes (1001, 1002)",
              "not SHM: different hosts (node1/00000012, node52/00000034)"}},
        Case{"GpusOfHosts",
             [](tuttiPeer &a, tuttiPeer &b) {
               toGpus(a, b);
               b = gpu(5, 2, 3, 0x20);
             },
             kNet,
             &tuttiNetSocket,
             "NET/Socket/0",
             {"not P2P: different hosts (node1, node3)"}},
        Case{"ShmDisabled",
             [](tuttiPeer &, tuttiPeer &b) { b.p2pDisabled = b.shmDisabled = 1; },
             kNet,
             &tuttiNetSocket,
             "NET/Socket/0",
             {"TCP inside host node1, which can always connect", "not SHM: TUTTI_SHM_DISABLE=1"}},
        Case{"Deaf",
             [](tuttiPeer &, tuttiPeer &b) { b.shmSocket = 0; },
             kNet,
             &tuttiNetSocket,
             "NET/Socket/0",
             {"not P2P: rank 5 takes no segments", "not SHM: rank 5 takes no segments"}},
        Case{"NoNetwork",
             [](tuttiPeer &a, tuttiPeer &b) {
               toHosts(a, b);
               memset(b.netName, 0, sizeof b.netName);
             },
             nullptr,
             nullptr,
             nullptr,
             {"not P2P: ", "; not SHM: ",
              "; not NET: no common network: rank 2 has \"Socket\", rank 5 has none"}},
        Case{"NoAddress",
             [](tuttiPeer &a, tuttiPeer &b) {
               toHosts(a, b);
               memset(b.net, 0, sizeof b.net);
             },
             nullptr,
             &tuttiNetSocket,
             nullptr,
             {"not NET: rank 2 or rank 5 has no valid network address"}}),
    [](const auto &info) { return info.param.name; });

#ifdef TUTTI_HAVE_VERBS
INSTANTIATE_TEST_SUITE_P(
    Ib, Reasons,
    ::testing::Values(
        Case{"Rdma",
             [](tuttiPeer &a, tuttiPeer &b) {
               toIb(a, b, {{"mlx5_0", "10.0.1.1"}}, {{"mlx5_3", "10.0.1.2"}});
             },
             kNet,
             &tuttiNetIb,
             "NET/IB/0",
             {"RoCE from mlx5_0 to mlx5_3 of host node52, 1 and 1 ports, 100 Gb/s; not GDRDMA: the "
              "buffers are host memory; not P2P"}},
        Case{"GpuDirect",
             [](tuttiPeer &a, tuttiPeer &b) {
               toIb(a, b, {{"mlx5_0", "10.0.1.1", true, TUTTI_GDR_YES}},
                    {{"mlx5_3", "10.0.1.2", true, TUTTI_GDR_YES}});
             },
             kNet,
             &tuttiNetIb,
             "NET/IB/0/GDRDMA",
             {"1 and 1 ports, 100 Gb/s; not P2P"}},
        Case{"FarGpu",
             [](tuttiPeer &a, tuttiPeer &b) {
               toIb(a, b, {{"mlx5_0", "10.0.1.1"}}, {{"mlx5_3", "10.0.1.2", true, TUTTI_GDR_FAR}});
             },
             kNet,
             &tuttiNetIb,
             "NET/IB/0",
             {"not GDRDMA: GPU and NIC are too far apart (rank 5)"}},
        Case{"OnlyOneHasRdma",
             [](tuttiPeer &a, tuttiPeer &b) {
               toHosts(a, b);
               giveIb(a, {{"mlx5_0", "10.0.1.1"}});
             },
             kNet,
             &tuttiNetSocket,
             "NET/Socket/0",
             {"not NET/IB: rank 5 on host node52 has only Socket"}},
        Case{"Unlike",
             [](tuttiPeer &a, tuttiPeer &b) {
               toIb(a, b, {{"mlx5_0", "10.0.1.1"}}, {{"mlx5_3", "10.0.1.2", false}});
             },
             kNet,
             &tuttiNetSocket,
             "NET/Socket/0",
             {"not NET/IB: RoCE and InfiniBand do not meet"}},
        Case{"UnlikeAndNothingElseWanted",
             [](tuttiPeer &a, tuttiPeer &b) {
               toHosts(a, b);
               giveIb(a, {{"mlx5_0", "10.0.1.1"}}, true);
               giveIb(b, {{"mlx5_3", "10.0.1.2", false}}, true);
             },
             nullptr,
             &tuttiNetIb,
             nullptr,
             {"not NET: RoCE and InfiniBand do not meet"}},
        Case{"NoGids",
             [](tuttiPeer &a, tuttiPeer &b) {
               toIb(a, b, {{"mlx5_0", "10.0.1.1"}}, {{"mlx5_3", "169.254.1.2"}});
             },
             nullptr,
             &tuttiNetIb,
             nullptr,
             {"not NET: no GIDs fit, rank 2: mlx5_0:1 up, 10.0.1.1", "rank 5: mlx5_3:1 up"}},
        Case{"NoRdmaAddress",
             [](tuttiPeer &a, tuttiPeer &b) {
               toIb(a, b, {{"mlx5_0", "10.0.1.1"}}, {{"mlx5_3", "10.0.1.2"}});
               memset(a.net, 0, sizeof a.net);
             },
             nullptr,
             &tuttiNetIb,
             nullptr,
             {"not NET: rank 2 or rank 5 has no valid RDMA address"}}),
    [](const auto &info) { return info.param.name; });

/* Rails are those of either direction, each named by its sender; so are the devices in the log. */
TEST(Paths, NameTheRailsOfEitherSide) {
  tuttiPeer a, b;
  toIb(a = peer(2, 1, 1), b, {{"mlx5_0", "10.0.1.1"}, {"mlx5_1", "10.0.2.1"}},
       {{"mlx5_9", "10.0.2.9", true, TUTTI_GDR_DETOUR}});
  tuttiPath row{};
  tuttiTransportSelect(&b, &a, &row);
  ASSERT_EQ(&tuttiNetIb, row.net);
  ASSERT_EQ(2, row.nrails[0]);
  EXPECT_EQ(0, row.rails[0][0].port[0]);
  EXPECT_EQ(1, row.rails[0][1].port[0]);
  ASSERT_GE(row.nrails[1], 1);
  EXPECT_EQ(0, row.rails[1][0].port[0]);
  EXPECT_EQ(1, row.rails[1][0].port[1]) << "the port in the same subnet";
  EXPECT_EQ(TUTTI_GDR_NOT_ASKED, row.rails[0][0].gdr[0]);
  EXPECT_EQ(TUTTI_GDR_DETOUR, row.rails[0][0].gdr[1]);
  EXPECT_EQ(TUTTI_GDR_DETOUR, row.rails[1][0].gdr[0]);
  char via[TUTTI_VIA];
  EXPECT_STREQ("NET/IB/0", tuttiPathVia(&row, &a, &b, via));
  EXPECT_THAT(text(row, a, b), StartsWith("RoCE from mlx5_0 to mlx5_9 of host node52, 2 and 1"));
  EXPECT_THAT(text(row, b, a), StartsWith("RoCE from mlx5_9 to mlx5_1 of host node1, 1 and 2"));
  EXPECT_THAT(text(row, b, a), HasSubstr("IOMMU or ACS is in the way (rank 5)"));
}
#endif

TEST(Paths, HaveCapabilities) {
  tuttiPeer a = peer(0, 1, 1), b = peer(1, 1, 1);
  tuttiPath threads, processes, gpus, staged, hosts;
  tuttiTransportSelect(&a, &b, &threads);
  b = peer(1, 2, 1);
  a.offer = b.offer = 1;
  tuttiTransportSelect(&a, &b, &processes);
  b = peer(1, 2, 2);
  tuttiTransportSelect(&a, &b, &hosts);
  toGpus(a, b);
  tuttiTransportSelect(&a, &b, &gpus);
  a.p2pDisabled = 1;
  tuttiTransportSelect(&a, &b, &staged);
  auto bits = [](const tuttiPath &p) {
    return std::string(p.sharedFifos ? "F" : "") + (p.direct ? "D" : "") + (p.fetches ? "C" : "") +
           (p.stores ? "S" : "") + (p.staged ? "H" : "") + (p.network ? "N" : "");
  };
  EXPECT_EQ("FD", bits(threads));
  EXPECT_EQ("FC", bits(processes));
  EXPECT_EQ("S", bits(gpus));
  EXPECT_EQ("H", bits(staged));
  EXPECT_EQ("N", bits(hosts));
}

TEST(Paths, OneRowPerPeerAlikeOnBothSides) {
  std::vector<tuttiPeer> peers;
  for (int r = 0; r < 12; r++) // 3 hosts, 2 processes on each, 2 threads in each
    peers.push_back(peer(r, (uint64_t)r / 2 + 1, (uint64_t)r / 4 + 1));
  for (int r = 0; r < 12; r++) {
    std::vector<tuttiPath> mine = rows(peers, r);
    EXPECT_EQ(nullptr, mine[(size_t)r].transport) << "none to itself";
    for (int p = 0; p < 12; p++) {
      if (p == r) continue;
      std::vector<tuttiPath> theirs = rows(peers, p);
      EXPECT_EQ(0, memcmp(&mine[(size_t)p], &theirs[(size_t)r], sizeof(tuttiPath)));
      EXPECT_EQ(p / 2 == r / 2 ? kP2p : p / 4 == r / 4 ? kShm : kNet, mine[(size_t)p].transport);
    }
  }
}

TEST(Paths, AMissingOneIsAnErrorThatSaysWhy) {
  tuttiPeer a = peer(0, 1, 1), b = peer(1, 2, 2);
  memset(a.netName, 0, sizeof a.netName);
  tuttiPath row;
  tuttiTransportSelect(&a, &b, &row);
  EXPECT_EQ(tuttiSystemError, tuttiPathMissing(&row, &a, &b));
  EXPECT_THAT(tuttiErrorText(),
              HasSubstr("no transport connects rank 0 (host node1) and rank 1 (host node2): not "
                        "P2P: different processes (1001, 1002); not SHM: different hosts"));
}

} // namespace

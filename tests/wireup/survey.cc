// The survey comes to the same on every rank, whatever the hosts are like, in time that grows with
// the number of ranks.
#include <algorithm>
#include <tuple>

#include "transport/ib/wire.h"
#include "wireup/machines.h"
#include "wireup/world.h"

namespace {
using namespace world;
using ::testing::HasSubstr;

struct Surveyed {
  tuttiResult_t result;
  tuttiSurvey s{};
};

Surveyed survey(const std::vector<tuttiPeer> &peers, int rank, int channels = 2) {
  std::vector<uint64_t> hosts;
  for (const tuttiPeer &p : peers)
    hosts.push_back(p.hostId);
  tuttiGraph *graph;
  EXPECT_EQ(tuttiSuccess,
            tuttiGraphCreate(hosts.data(), (int)hosts.size(), nullptr, channels, &graph));
  std::vector<tuttiPath> paths = rows(peers, rank);
  Surveyed out;
  counts = {};
  out.result = tuttiSurveyMake(peers.data(), paths.data(), rank, graph, &out.s);
  tuttiGraphFree(graph);
  return out;
}

auto values(const tuttiSurvey &s) {
  return std::make_tuple(s.nranks, s.nhosts, s.maxRanksPerHost, s.oversubscribed, s.intraLatencyUs,
                         s.intraGBs, s.interLatencyUs, s.interGBs, s.oneFlow, s.sharedFifos,
                         s.direct, s.fetches, s.fetch.call, s.fetch.kib, s.fetch.store, s.network,
                         s.apart, s.throughHost, s.gpu, s.stores, s.staged, s.linked, s.sharers,
                         s.blocks, s.cache);
}

// The survey of all ranks, which must be one.
tuttiSurvey agreed(const std::vector<tuttiPeer> &peers) {
  Surveyed first = survey(peers, 0);
  EXPECT_EQ(tuttiSuccess, first.result) << tuttiErrorText();
  for (int r = 1; r < (int)peers.size(); r++) {
    Surveyed other = survey(peers, r);
    EXPECT_EQ(tuttiSuccess, other.result) << tuttiErrorText();
    EXPECT_EQ(values(first.s), values(other.s)) << "rank " << r;
  }
  return first.s;
}

std::vector<tuttiPeer> threads(int n) {
  std::vector<tuttiPeer> peers;
  for (int r = 0; r < n; r++)
    peers.push_back(peer(r, 1, 1));
  return peers;
}

TEST(Survey, ThreadsShareEverything) {
  tuttiSurvey s = agreed(threads(5));
  EXPECT_TRUE(s.sharedFifos && s.direct);
  EXPECT_FALSE(s.fetches || s.network || s.oversubscribed || s.gpu || s.stores || s.staged);
  EXPECT_EQ(1, s.nhosts);
  EXPECT_EQ(5, s.maxRanksPerHost);
  EXPECT_FLOAT_EQ(0.2f, s.intraLatencyUs);
  EXPECT_EQ(0, s.interGBs);
}

/* A rank that was held up while it measured says nothing of the machine. */
TEST(Survey, CopiesTakeWhatTheyTookTheFastestRank) {
  std::vector<tuttiPeer> peers;
  for (int r = 0; r < 3; r++) {
    peers.push_back(peer(r, 10 + (uint64_t)r, 1));
    peers[(size_t)r].offer = 1;
    peers[(size_t)r].fetch = {2, 0.5f, 0.25f};
  }
  peers[1].fetch.call = 1.5f;
  peers[2].fetch.kib = 0.25f;
  peers[0].fetch.store = 0.125f;
  tuttiSurvey s = agreed(peers);
  EXPECT_TRUE(s.fetches);
  EXPECT_EQ(1.5f, s.fetch.call);
  EXPECT_EQ(0.25f, s.fetch.kib);
  EXPECT_EQ(0.125f, s.fetch.store);
  peers[1].offer = 0;
  EXPECT_FALSE(agreed(peers).fetches);
}

TEST(Survey, TheSmallestCacheThatIsKnownCounts) {
  auto peers = threads(3);
  EXPECT_EQ(0u, agreed(peers).cache);
  peers[0].cache = 64 << 20;
  peers[2].cache = 32 << 20;
  EXPECT_EQ(32u << 20, agreed(peers).cache);
}

TEST(Survey, ARankAloneHasNoPath) {
  tuttiSurvey s = agreed(threads(1));
  EXPECT_TRUE(s.sharedFifos && s.direct);
  EXPECT_FALSE(s.network);
  EXPECT_EQ(0, s.intraGBs);
}

TEST(Survey, RanksAreApartWhereNetworksAloneJoinThem) {
  auto peers = threads(4);
  EXPECT_FALSE(agreed(peers).apart);
  for (auto &p : peers)
    p.p2pDisabled = p.shmDisabled = 1;
  EXPECT_TRUE(agreed(peers).apart) << "on one host";
  EXPECT_TRUE(agreed(peers).throughHost);
  for (auto &p : peers) {
    p.p2pDisabled = p.shmDisabled = 0;
    p.hostId = p.process = 7 + (uint64_t)p.rank / 2;
  }
  EXPECT_FALSE(agreed(peers).apart) << "two on each host";
  for (auto &p : peers)
    p.hostId = p.process = 7 + (uint64_t)p.rank;
  EXPECT_TRUE(agreed(peers).apart);
  EXPECT_FALSE(agreed(peers).throughHost) << "no two are on one host";
}

/* All ports of the rank do GPUDirect RDMA, or none. */
void setGdr(tuttiPeer &p, tuttiGdr gdr) {
  tuttiIbHandle h;
  memcpy(&h, p.net, sizeof h);
  for (int i = 0; i < h.nports; i++)
    h.ports[i].gdr = h.ports[i].gdrRead = static_cast<uint8_t>(gdr);
  memcpy(p.net, &h, sizeof h);
}

TEST(Survey, GpusOfOneHostGoThroughItWhereOneLacksGpuDirectRdma) {
  machines::Cluster cluster({{"dgx", 8}});
  auto peers = cluster.peers;
  for (auto &p : peers) {
    p.p2pDisabled = p.shmDisabled = 1;
    setGdr(p, TUTTI_GDR_YES);
  }
  EXPECT_TRUE(agreed(peers).apart);
  EXPECT_FALSE(agreed(peers).throughHost);
  setGdr(peers[5], TUTTI_GDR_OFF);
  EXPECT_TRUE(agreed(peers).apart);
  EXPECT_TRUE(agreed(peers).throughHost);
}

TEST(Survey, RanksWithCoresOfTheirOwnShareNone) {
  auto peers = threads(4);
  for (auto &p : peers)
    p.cores = 1;
  EXPECT_TRUE(agreed(peers).oversubscribed);
  for (auto &p : peers) /* bound to one each, as mpirun does it */
    p.cpuSet = (uint64_t)p.rank + 7;
  EXPECT_FALSE(agreed(peers).oversubscribed);
  peers[3].cpuSet = peers[1].cpuSet;
  EXPECT_TRUE(agreed(peers).oversubscribed);
  peers[3].hostId++; /* the same cores of another host are others */
  peers[3].process++;
  EXPECT_FALSE(agreed(peers).oversubscribed);
}

TEST(Survey, MixedHostsComeToTheSameEverywhere) {
  std::vector<tuttiPeer> peers;
  uint64_t process = 1;
  for (int r = 0; r < 13; r++) { // hosts take turns; some ranks are threads of one process
    uint64_t host = (uint64_t)(r % 3) + 1;
    peers.push_back(peer(r, r % 2 == 0 ? 100 + host : process++, host));
    peers.back().offer = (uint64_t)r + 1;
  }
  peers[4].cores = 2; /* of a host with four ranks */
  tuttiSocketHandle slow = socketHandle("eth1", 1000);
  memcpy(peers[7].net, &slow, sizeof slow);
  tuttiSurvey s = agreed(peers);
  EXPECT_EQ(3, s.nhosts);
  EXPECT_EQ(5, s.maxRanksPerHost);
  EXPECT_TRUE(s.oversubscribed && s.network);
  EXPECT_FALSE(s.sharedFifos || s.direct || s.fetches);
  EXPECT_FLOAT_EQ(15, s.interLatencyUs);
  EXPECT_FLOAT_EQ(0.125f, s.interGBs) << "the slowest";
  EXPECT_FLOAT_EQ(0.3f, s.intraLatencyUs);
  EXPECT_FLOAT_EQ(12, s.intraGBs) << "of threads";
}

TEST(Survey, OneConnectionHasAllOfASlowLine) {
  for (auto [megabits, GBs, one] : {std::tuple{1000u, 0.125f, true},
                                    {10000u, 1.25f, true},
                                    {25000u, 3.125f, false},
                                    {0u, 1.25f, false}}) {
    std::vector<tuttiPeer> peers;
    for (int r = 0; r < 4; r++) {
      peers.push_back(peer(r, (uint64_t)r + 1, (uint64_t)r / 2 + 1));
      tuttiSocketHandle handle = socketHandle("eth0", megabits);
      memcpy(peers[(size_t)r].net, &handle, sizeof handle);
    }
    tuttiSurvey s = agreed(peers);
    EXPECT_EQ(one, s.oneFlow) << megabits;
    EXPECT_FLOAT_EQ(GBs, s.interGBs) << megabits;
  }
}

#ifdef TUTTI_HAVE_VERBS
TEST(Survey, MixedNetworksComeToTheSameEverywhere) {
  std::vector<tuttiPeer> peers;
  for (int r = 0; r < 6; r++) {
    peers.push_back(peer(r, (uint64_t)r + 1, (uint64_t)r + 1));
    std::string address = "10.0.1." + std::to_string(r + 1);
    if (r != 3) giveIb(peers.back(), {{"mlx5_0", address.c_str()}});
  }
  tuttiSurvey s = agreed(peers);
  EXPECT_FLOAT_EQ(15, s.interLatencyUs) << "that of sockets, which rank 3 needs";
  EXPECT_FLOAT_EQ(3.125f, s.interGBs);
  EXPECT_FALSE(s.oneFlow) << "of 25 Gb/s";
  giveIb(peers[3], {{"mlx5_0", "10.0.1.9"}});
  s = agreed(peers);
  EXPECT_FLOAT_EQ(3, s.interLatencyUs);
  EXPECT_TRUE(s.oneFlow);
}
#endif

TEST(Survey, OfGpus) {
  std::vector<tuttiPeer> peers;
  for (int r = 0; r < 4; r++) {
    peers.push_back(gpu(r, (uint64_t)r + 1, 1, 0x10 * ((uint64_t)r + 1)));
    peers.back().blocks = 100 + r;
  }
  tuttiSurvey s = agreed(peers);
  EXPECT_TRUE(s.gpu && s.stores && s.linked);
  EXPECT_FALSE(s.staged || s.sharedFifos);
  EXPECT_EQ(100, s.blocks);
  EXPECT_EQ(1, s.sharers);
  peers[2].nvlink = 0;
  peers[3].busId = peers[1].busId;
  s = agreed(peers);
  EXPECT_FALSE(s.linked);
  EXPECT_EQ(2, s.sharers);
  peers[2].ipc = 0;
  s = agreed(peers);
  EXPECT_FALSE(s.stores || s.staged);
  for (tuttiPeer &p : peers)
    p.p2pDisabled = 1;
  s = agreed(peers);
  EXPECT_TRUE(s.staged);
  EXPECT_FALSE(s.stores);
}

TEST(Survey, OfGpusSeesEveryPair) {
  for (int x = 0; x < 4; x++) {
    for (int y = 0; y < 4; y++) {
      if (x == y) continue;
      std::vector<tuttiPeer> peers; // y alone is in another process, and x alone has no IPC
      for (int r = 0; r < 4; r++)
        peers.push_back(gpu(r, r == y ? 2 : 1, 1, 0x10 * ((uint64_t)r + 1)));
      EXPECT_TRUE(agreed(peers).stores);
      peers[(size_t)x].ipc = 0;
      EXPECT_FALSE(agreed(peers).stores) << x << " and " << y;
      for (int r = 0; r < 4; r++) // x alone has no NVLink, and shares its GPU with all but y
        peers[(size_t)r].busId = r == y ? 0x20 : 0x10;
      EXPECT_TRUE(agreed(peers).linked);
      peers[(size_t)x].nvlink = 0;
      EXPECT_FALSE(agreed(peers).linked) << x << " and " << y;
    }
  }
}

TEST(Survey, OfMoreGpusThanKernelsBetweenAllPairsHave) {
  std::vector<tuttiPeer> peers;
  for (int r = 0; r < 9; r++)
    peers.push_back(gpu(r, 1, 1, 0x10 * ((uint64_t)r + 1)));
  tuttiSurvey s = agreed(peers);
  EXPECT_TRUE(s.gpu);
  EXPECT_FALSE(s.stores || s.staged);
}

TEST(Survey, FailsWhereNoTransportConnects) {
  std::vector<tuttiPeer> peers = threads(4);
  peers[3] = peer(3, 2, 2);
  memset(peers[3].netName, 0, sizeof peers[3].netName);
  for (int r = 0; r < 4; r++) {
    EXPECT_EQ(tuttiSystemError, survey(peers, r).result);
    EXPECT_THAT(tuttiErrorText(), HasSubstr("no transport connects rank"));
    EXPECT_THAT(tuttiErrorText(), HasSubstr("rank 3 (host node2)"));
  }
}

TEST(Survey, AsksForFewPairs) {
  const tuttiTransport *table[] = {&counting, &tuttiTransportP2p, nullptr};
  tuttiTransportsReplace(table);
  for (int n : {3, 8, 64, 200}) {
    std::vector<tuttiPeer> peers = threads(n);
    int most = 0;
    for (int r = 0; r < n; r += std::max(1, n / 8)) {
      EXPECT_EQ(tuttiSuccess, survey(peers, r).result);
      most = std::max(most, counts.asked);
    }
    EXPECT_LE(most, 2 * n) << "beyond its own rows";
    counts = {};
    rows(peers, n / 2);
    EXPECT_EQ(n - 1, counts.asked);
    EXPECT_EQ(0, counts.explained);
  }
  tuttiTransportsReplace(nullptr);
}

} // namespace

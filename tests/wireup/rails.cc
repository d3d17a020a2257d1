// Rails: which NIC is which on hosts that differ, and which one each connection of a channel takes.
#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <set>

#include "base/mem.h"
#include "base/settings.h"
#include "wireup/machines.h"
#include "wireup/wireup.h"
#include "wireup/world.h"

#ifdef TUTTI_HAVE_VERBS
namespace {
using machines::Cluster;
using machines::machine;
using ::testing::HasSubstr;
using world::Port;

// What a rank's record tells of its ports.
void change(tuttiPeer &p, const std::function<void(tuttiIbHandle &)> &edit) {
  tuttiIbHandle h;
  memcpy(&h, p.net, sizeof h);
  edit(h);
  memcpy(p.net, &h, sizeof h);
}

// Hosts of as many GPUs as NICs, GPU i beside NIC i; NIC i of host h has the address of `address`.
using Address = std::function<std::string(int host, int nic)>;
std::vector<tuttiPeer> hostsOf(int nhosts, int gpus, const Address &address) {
  std::vector<tuttiPeer> peers;
  for (int h = 0; h < nhosts; h++)
    for (int gpu = 0; gpu < gpus; gpu++) {
      tuttiPeer p =
          world::gpu((int)peers.size(), peers.size() + 1, (uint64_t)h + 1, (uint64_t)gpu + 1);
      std::vector<std::string> names, addresses;
      for (int i = 0; i < gpus; i++) {
        names.push_back("mlx5_" + std::to_string(i));
        addresses.push_back(address(h, i));
      }
      std::vector<Port> ports;
      for (int i = 0; i < gpus; i++)
        ports.push_back({names[(size_t)i].c_str(), addresses[(size_t)i].c_str()});
      world::giveIb(p, ports);
      change(p, [&](tuttiIbHandle &handle) {
        for (int i = 0; i < gpus; i++) {
          handle.ports[i].distance = i == gpu ? TUTTI_DISTANCE_PIX : TUTTI_DISTANCE_SYS;
          handle.ports[i].megabits = 100000;
        }
      });
      peers.push_back(p);
    }
  return peers;
}
std::string railed(int host, int nic) {
  return "10.0." + std::to_string(nic) + "." + std::to_string(host + 1);
}
std::string flat(int host, int nic) {
  return "10.0.0." + std::to_string(16 * host + nic + 1);
}

// The NICs of a host by rail, as the first of its ranks has them that has any.
std::vector<std::string> nics(const Cluster &c, int host) {
  std::vector<std::string> names((size_t)c.rails.nrails);
  for (int r = c.n() - 1; r >= 0; r--)
    for (int k = 0; c.graph->host[r] == host && k < c.rails.nrails; k++)
      if (c.nic(r, k) != "") names[(size_t)k] = c.nic(r, k);
  return names;
}

using Names = std::vector<std::string>;

TEST(Rails, AreThePortsInTheirOrder) {
  const Names order = {"mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1"};
  for (const Address &address : {Address(railed), Address(flat)}) {
    Cluster c(hostsOf(3, 4, address));
    ASSERT_EQ(4, c.rails.nrails);
    for (int h = 0; h < 3; h++)
      EXPECT_EQ(order, nics(c, h));
    for (int r = 0; r < c.n(); r++)
      for (int k = 0; k < 4; k++)
        EXPECT_EQ(r % 4 == k ? TUTTI_DISTANCE_PIX : TUTTI_DISTANCE_SYS,
                  c.rails.distance[r * 4 + k]);
  }
}

TEST(Rails, MeetInTheirSubnetsWhateverTheNames) {
  Cluster c(hostsOf(2, 4, [](int h, int i) { return railed(h, h == 1 ? 3 - i : i); }));
  EXPECT_EQ((Names{"mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1"}), nics(c, 0));
  EXPECT_EQ((Names{"mlx5_3:1", "mlx5_2:1", "mlx5_1:1", "mlx5_0:1"}), nics(c, 1));
}

// NIC 1 of the second host is down, and has changed as the edit says.
std::vector<tuttiPeer> withOneDown(const Address &address,
                                   const std::function<void(tuttiIbPort &)> &edit = nullptr) {
  std::vector<tuttiPeer> peers = hostsOf(2, 4, address);
  for (int r = 4; r < 8; r++)
    change(peers[(size_t)r], [&](tuttiIbHandle &h) {
      h.ports[1].up = 0;
      if (edit) edit(h.ports[1]);
    });
  return peers;
}

// In one flat subnet names tell the others apart; the missing one is another's turn.
TEST(Rails, ThatAreDownWithoutAnAddressLeaveTheOthersTheirNumbers) {
  Cluster c(withOneDown(flat, [](tuttiIbPort &p) { p.ngids = 0; }));
  ASSERT_EQ(4, c.rails.nrails);
  EXPECT_EQ((Names{"mlx5_0:1", "mlx5_0:1", "mlx5_2:1", "mlx5_3:1"}), nics(c, 1));
}

// A cable that is out while ranks begin costs no rail for good: rails, graph and the rails of its
// connections are those that all ports have when they are up.
TEST(Rails, ThatAreDownAreRails) {
  const Names all = {"mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1"};
  for (const Address &address : {Address(railed), Address(flat)}) {
    Cluster up(hostsOf(2, 4, address)), down(withOneDown(address));
    EXPECT_EQ(all, nics(down, 1));
    ASSERT_EQ(up.graph->nchannels, down.graph->nchannels);
    for (int i = 0; i < up.graph->nchannels * up.n(); i++)
      EXPECT_EQ(up.graph->ring[i], down.graph->ring[i]) << i;
    for (int rank = 0; rank < up.n(); rank++) {
      tuttiRails a = up.rails, b = down.rails;
      a.channels = b.channels = nullptr;
      ASSERT_EQ(tuttiSuccess, tuttiRailsOfChannels(&a, up.peers.data(), up.graph, rank));
      ASSERT_EQ(tuttiSuccess, tuttiRailsOfChannels(&b, down.peers.data(), down.graph, rank));
      EXPECT_EQ(a.nchannels, b.nchannels);
      for (int i = 0; i < a.nchannels && i < b.nchannels; i++)
        for (int side = 0; side < 2; side++)
          EXPECT_EQ(a.channels[i].rail.port[side], b.channels[i].rail.port[side]);
      tuttiFree(a.channels);
      tuttiFree(b.channels);
    }
  }
}

// The ranks of a host need not have seen the port in one state.
TEST(Rails, ThatSomeRanksSawDownAreRails) {
  std::vector<tuttiPeer> peers = withOneDown(flat);
  for (int r : {4, 5})
    change(peers[(size_t)r], [](tuttiIbHandle &h) { h.ports[1].up = 1; });
  EXPECT_EQ((Names{"mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1"}), nics(Cluster(peers), 1));
}

// Of a NIC with two ports one may never have had a cable; nor is a slow port a rail when it comes
// up.
TEST(Rails, ThatAreDownAreNoneWhereAnotherWillDo) {
  std::vector<tuttiPeer> peers = withOneDown(flat);
  for (int r = 4; r < 8; r++)
    change(peers[(size_t)r], [&](tuttiIbHandle &h) {
      if (r == 5) h.ports[2].distance = TUTTI_DISTANCE_PIX;
    });
  EXPECT_EQ((Names{"mlx5_0:1", "mlx5_0:1", "mlx5_2:1", "mlx5_3:1"}), nics(Cluster(peers), 1));
  Cluster slow(withOneDown(flat, [](tuttiIbPort &p) { p.megabits = 10000; }));
  EXPECT_EQ((Names{"mlx5_0:1", "mlx5_0:1", "mlx5_2:1", "mlx5_3:1"}), nics(slow, 1));
}

// Where ports reach the GPU, what comes up must, too: those that are to be checked may.
TEST(Rails, ThatAreDownAreThoseThatMayReachTheGpu) {
  for (tuttiGdr answer : {TUTTI_GDR_DOWN, TUTTI_GDR_FAR}) {
    std::vector<tuttiPeer> peers = withOneDown(flat);
    for (tuttiPeer &p : peers)
      change(p, [&](tuttiIbHandle &h) {
        for (int i = 0; i < 4; i++)
          h.ports[i].gdr = h.ports[i].gdrRead = (uint8_t)(h.ports[i].up ? TUTTI_GDR_YES : answer);
      });
    const char *second = answer == TUTTI_GDR_DOWN ? "mlx5_1:1" : "mlx5_0:1";
    EXPECT_EQ((Names{"mlx5_0:1", second, "mlx5_2:1", "mlx5_3:1"}), nics(Cluster(peers), 1))
        << answer;
  }
}

// All of a host, where no other network is allowed.
TEST(Rails, MayAllBeDown) {
  std::vector<tuttiPeer> peers = hostsOf(2, 4, railed);
  for (int r = 4; r < 8; r++)
    change(peers[(size_t)r], [](tuttiIbHandle &h) {
      for (int i = 0; i < 4; i++)
        h.ports[i].up = 0;
    });
  EXPECT_EQ((Names{"mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1"}), nics(Cluster(peers), 1));
}

TEST(Rails, MayBeOnePortOfEachRank) { // as where a launcher sets TUTTI_IB_HCA for each
  std::vector<tuttiPeer> peers = hostsOf(2, 4, railed);
  for (int r = 0; r < 8; r++)
    change(peers[(size_t)r], [&](tuttiIbHandle &h) {
      h.ports[0] = h.ports[r % 4];
      h.nports = 1;
    });
  Cluster c(peers);
  ASSERT_EQ(4, c.rails.nrails);
  for (int r = 0; r < 8; r++)
    for (int k = 0; k < 4; k++)
      EXPECT_EQ(k == r % 4 ? 0 : TUTTI_RAIL_NONE, c.rails.port[r * 4 + k]);
}

TEST(Rails, AreNeitherFarNorSlowNorUnusable) {
  std::vector<tuttiPeer> peers = hostsOf(2, 4, railed);
  for (tuttiPeer &p : peers)
    change(p, [&](tuttiIbHandle &h) {
      h.ports[2].distance = TUTTI_DISTANCE_SYS; // near to nobody: two GPUs have others nearer
      h.ports[3].megabits = 10000;
      for (int i = 0; i < 4; i++)
        if (p.busId >= 3) h.ports[i].distance = i < 2 ? TUTTI_DISTANCE_PHB : TUTTI_DISTANCE_SYS;
    });
  Cluster c(peers);
  EXPECT_EQ((Names{"mlx5_0:1", "mlx5_1:1"}), nics(c, 0));
  for (tuttiPeer &p : peers)
    change(p, [](tuttiIbHandle &h) { h.ports[1].gdr = h.ports[1].gdrRead = TUTTI_GDR_YES; });
  Cluster gdr(peers);
  EXPECT_EQ((Names{"mlx5_1:1"}), nics(gdr, 0)) << "ports that reach the GPU are used alone";
}

// Of all connections between ranks of two hosts that have no rail: queue pairs of one, those that
// reach a NIC across sockets, and the most that a NIC of the senders' has, all over the fewest.
struct Spread {
  int perConnection, across;
  double most;
};
Spread spreadOf(const std::vector<tuttiPeer> &peers) {
  Spread s{0, 0, 0};
  std::map<int, int> load;
  int connections = 0, all = 0;
  for (const tuttiPeer &from : peers)
    for (const tuttiPeer &to : peers) {
      tuttiIbHandle a, b;
      if (from.hostId >= to.hostId) continue;
      memcpy(&a, from.net, sizeof a);
      memcpy(&b, to.net, sizeof b);
      tuttiIbPair pairs[TUTTI_IB_QUEUE_PAIRS];
      int first = to.rank - from.rank - 1, n = tuttiIbPairsFull(&a, &b);
      EXPECT_EQ(n, tuttiIbPairsChoose(&a, &b, first, n, pairs));
      connections++;
      for (int i = 0; i < n; i++, all++) {
        load[pairs[i].port[0]]++;
        s.across += a.ports[pairs[i].port[0]].distance == TUTTI_DISTANCE_SYS ||
                    b.ports[pairs[i].port[1]].distance == TUTTI_DISTANCE_SYS;
      }
    }
  s.perConnection = all / connections;
  for (auto [port, n] : load)
    s.most = std::max(s.most, (double)n * 8 / all);
  return s;
}

// Whose payloads are staged uses the NIC beside its GPU, where all reach each other alike; where
// rails have subnets, only the two ends of one do for sure, and all are used.
TEST(Rails, ConnectionsWithoutOneKeepToTheNicsBesideTheirGpus) {
  Spread s = spreadOf(hostsOf(2, 8, flat));
  EXPECT_EQ(1, s.perConnection);
  EXPECT_EQ(0, s.across);
  EXPECT_DOUBLE_EQ(1, s.most);
  std::vector<tuttiPeer> subnets = hostsOf(2, 8, railed);
  s = spreadOf(subnets);
  EXPECT_DOUBLE_EQ(1, s.most);
  tuttiIbHandle a, b;
  memcpy(&a, subnets[1].net, sizeof a);
  memcpy(&b, subnets[9].net, sizeof b);
  EXPECT_EQ(1, tuttiIbPairsFull(&a, &b)) << "one rail";
  memcpy(&b, subnets[10].net, sizeof b);
  EXPECT_EQ(8, tuttiIbPairsFull(&a, &b)) << "two";
  a.ports[1].up = 0;
  memcpy(&b, subnets[9].net, sizeof b);
  EXPECT_EQ(8, tuttiIbPairsFull(&a, &b)) << "its NIC is down";
}

TEST(Rails, AreNoMatterWhereConnectionsHaveNoChoice) {
  auto count = [](const std::vector<tuttiPeer> &peers) { return Cluster(peers).rails.nrails; };
  std::vector<tuttiPeer> peers = hostsOf(2, 4, railed);
  EXPECT_EQ(4, count(peers));
  EXPECT_EQ(0, count(hostsOf(1, 4, railed))) << "one host";
  EXPECT_EQ(0, count({peers[0], peers[4]})) << "a rank for each host";
  std::vector<tuttiPeer> other = peers;
  other[5].device = tuttiDeviceHost;
  EXPECT_EQ(0, count(other)) << "a rank on host memory";
  other = peers;
  for (int r = 4; r < 8; r++)
    other[(size_t)r] = world::gpu(r, (uint64_t)r + 1, 2, 1);
  EXPECT_EQ(0, count(other)) << "a host with sockets alone";
  other = peers;
  for (tuttiPeer &p : other)
    change(p, [](tuttiIbHandle &h) { h.ports[0].distance = TUTTI_DISTANCE_COUNT + 1; });
  EXPECT_EQ(0, count(other)) << "records that are not to be believed";
}

// Every connection between hosts has a rail, the same one to both of its ranks, in its own subnet.
TEST(Rails, OfChannelsAreAlikeOnBothSides) {
  for (int nhosts : {2, 3}) {
    std::vector<tuttiPeer> peers =
        hostsOf(nhosts, 4, [](int h, int i) { return railed(h, h == 1 ? 3 - i : i); });
    Cluster c(peers);
    using Key = std::tuple<int, int, int>; // channel, from, to
    std::map<Key, std::vector<uint8_t>> ends[2];
    for (int rank = 0; rank < c.n(); rank++) {
      tuttiRails mine{};
      mine = c.rails;
      mine.channels = nullptr;
      ASSERT_EQ(tuttiSuccess, tuttiRailsOfChannels(&mine, peers.data(), c.graph, rank));
      for (int i = 0; i < mine.nchannels; i++) {
        const tuttiChannelRail &row = mine.channels[i];
        bool sends = row.direction == TUTTI_SEND;
        Key key{row.channel, sends ? rank : row.peer, sends ? row.peer : rank};
        EXPECT_TRUE(ends[sends].count(key) == 0) << "told twice";
        ends[sends][key] = {row.rail.port[0], row.rail.port[1], row.rail.gid[0], row.rail.gid[1]};
        auto subnet = [&](int r, int port) { return c.graph->host[r] == 1 ? 3 - port : port; };
        EXPECT_EQ(subnet(std::get<1>(key), row.rail.port[0]),
                  subnet(std::get<2>(key), row.rail.port[1]));
      }
      tuttiFree(mine.channels);
    }
    EXPECT_EQ(ends[0], ends[1]);
    size_t expected = 0;
    for (int ch = 0; ch < c.graph->nchannels; ch++) {
      std::set<std::pair<int, int>> pairs;
      for (int i = 0; i < c.n(); i++) {
        const int32_t *ring = c.graph->ring + ch * c.n();
        int up = c.graph->parent[ch * c.n() + i];
        for (int host = 1; host < nhosts; host++) /* its place, for all-to-alls */
          pairs.insert({c.graph->grid[i], c.graph->grid[(i + 4 * host) % c.n()]});
        pairs.insert({ring[i], ring[(i + 1) % c.n()]});
        if (up >= 0) pairs.insert({{i, up}, {up, i}});
      }
      for (auto [from, to] : pairs)
        expected += c.graph->host[from] != c.graph->host[to];
    }
    EXPECT_EQ(expected, ends[1].size());
  }
}

// What rank logs of its channels.
std::string logOf(Cluster &c, int rank) {
  std::vector<tuttiPath> paths = world::rows(c.peers, rank);
  tuttiWireup w{};
  w.peers = c.peers.data();
  w.paths = paths.data();
  w.graph = c.graph;
  w.rails = c.rails;
  w.rails.channels = nullptr;
  EXPECT_EQ(tuttiSuccess, tuttiRailsOfChannels(&w.rails, w.peers, w.graph, rank));
  tuttiCommView v{};
  v.rank = rank;
  v.nranks = c.n();
  v.topology = machine("dgx");
  v.channelRails = w.rails.channels;
  v.nchannelRails = w.rails.nchannels;
  testing::internal::CaptureStderr();
  tuttiWireupLog(&w, &v);
  tuttiFree(w.rails.channels);
  return testing::internal::GetCapturedStderr();
}

// "via NET/IB/3/GDRDMA" for the channels that use NIC 3, which are those of GPU 3.
TEST(Rails, AreInTheLinesOfTheirChannels) {
  const char *before = getenv("TUTTI_DEBUG");
  std::string old = before ? before : "";
  std::vector<tuttiPeer> peers = hostsOf(2, 8, railed);
  for (tuttiPeer &p : peers)
    change(p, [](tuttiIbHandle &h) {
      for (int i = 0; i < h.nports; i++)
        h.ports[i].gdr = h.ports[i].gdrRead = TUTTI_GDR_YES;
    });
  Cluster c(peers);
  setenv("TUTTI_DEBUG", "INFO", 1);
  ASSERT_EQ(tuttiSuccess, tuttiSettingsLoad());
  for (int rank : {2, 3}) {
    std::string nic = std::to_string(rank), name = "mlx5_" + nic;
    std::istringstream lines(logOf(c, rank));
    int network = 0;
    for (std::string line; std::getline(lines, line);) {
      if (line.find("via NET") == std::string::npos) continue;
      network++;
      EXPECT_THAT(line, HasSubstr("via NET/IB/" + nic + "/GDRDMA"));
      EXPECT_THAT(line, HasSubstr("RoCE from " + name + " to " + name + " of host node"));
    }
    EXPECT_EQ(4, network) << "of 16 channels on 8 rails: two enter here and two leave";
  }
  setenv("TUTTI_DEBUG", old.c_str(), 1);
  if (!before) unsetenv("TUTTI_DEBUG");
  ASSERT_EQ(tuttiSuccess, tuttiSettingsLoad());
}

} // namespace
#endif

// Bytes per NIC: collectives on recorded machines, all channels of them in the simulator.
#include <algorithm>
#include <map>
#include <tuple>

#include "collectives/planner.h"
#include "collectives/simulator.h"
#include "collectives/traffic.h"
#include "wireup/machines.h"

#ifdef TUTTI_HAVE_VERBS
namespace {
using machines::Cluster;
using machines::Host;

struct Load {
  uint64_t sent, received;
  bool operator==(const Load &other) const {
    return sent == other.sent && received == other.received;
  }
};
void PrintTo(const Load &l, std::ostream *out) {
  *out << l.sent << " sent, " << l.received << " received";
}

// By host and NIC; what no rail carries is of the NIC "".
struct Loads {
  const Cluster &cluster;
  std::map<std::pair<int, std::string>, Load> nics{};
  int channel = 0;

  void add(int c, int from, int to, uint64_t amount) {
    const tuttiGraph *g = cluster.graph;
    if (g->host[from] == g->host[to]) return;
    int rail = tuttiGraphRail(g, c, from, to);
    nics[{g->host[from], cluster.nic(from, rail)}].sent += amount;
    nics[{g->host[to], cluster.nic(to, rail)}].received += amount;
  }
};

constexpr int kChannels = 16;
constexpr uint64_t kChunk = 32;

// Through the simulator, which checks the data.
Loads simulated(const Cluster &cluster, int coll, int algo, uint64_t count) {
  Loads loads{cluster};
  for (int c = 0; c < kChannels; c++) {
    tuttiSimulation sim{};
    tuttiSimulationResult result{};
    sim.coll = coll;
    sim.algo = algo;
    sim.count = count;
    sim.chunk = kChunk;
    sim.depth = 8;
    sim.channel = loads.channel = c;
    sim.graph = cluster.graph;
    sim.context = &loads;
    sim.sent = [](void *context, int from, int to, uint64_t elements) {
      Loads *l = static_cast<Loads *>(context);
      l->add(l->channel, from, to, elements);
    };
    tuttiPlanPart(count, tuttiFloat32, c, kChannels, &sim.begin, &sim.part);
    EXPECT_TRUE(tuttiSimulate(&sim, &result));
    EXPECT_FALSE(result.wrong) << result.fault << ", rank " << result.wrongRank;
    EXPECT_FALSE(result.deadlock) << "rank " << result.stuckRank;
  }
  return loads;
}

// What `tutti topo --traffic` counts: without data.
Loads counted(const Cluster &cluster, int coll, int algo, uint64_t count) {
  Loads loads{cluster};
  tuttiTraffic traffic{coll, algo, kChannels, tuttiFloat32, count, kChunk};
  tuttiTrafficCount(
      cluster.graph, &traffic,
      [](void *context, int channel, int from, int to, uint64_t bytes) {
        static_cast<Loads *>(context)->add(channel, from, to, bytes / 4);
      },
      &loads);
  return loads;
}

// Elements that an algorithm brings into and out of each host, all channels together.
double bound(int coll, int algo, double n, double hosts, double count) {
  if (algo == tuttiAlgoTree) return hosts == 2 ? count : -1; // of more hosts they differ
  if (coll == tuttiCollAlltoAll) return n / hosts * (n - n / hosts) * count;
  if (algo == tuttiAlgoHierarchical) // the least possible
    return coll == tuttiCollAllReduce ? 2 * (hosts - 1) / hosts * count : (n - n / hosts) * count;
  return coll == tuttiCollAllReduce ? 2 * (n - 1) / n * count : (n - 1) * count;
}

// Elements of which every channel has as many, without leaving the simulator much to do.
uint64_t countOf(int coll, int n) {
  return (uint64_t)kChannels * 32 * (coll == tuttiCollAllReduce ? (uint64_t)n / 4 + 1 : 1);
}

void expectEven(const Loads &loads, const std::vector<int> &nicsOf, double perHost,
                const std::string &what) {
  std::map<int, std::vector<Load>> byHost;
  for (const auto &[where, load] : loads.nics) {
    EXPECT_NE("", where.second) << what << ": some connection has no rail";
    byHost[where.first].push_back(load);
  }
  for (const auto &[host, list] : byHost) {
    int nics = nicsOf[(size_t)host];
    ASSERT_EQ((size_t)nics, list.size()) << what << ", host " << host;
    double mean = 0, least = 1e30, most = 0;
    for (const Load &l : list)
      for (uint64_t x : {l.sent, l.received}) {
        mean += (double)x / 2 / nics;
        least = std::min(least, (double)x);
        most = std::max(most, (double)x);
      }
    EXPECT_LE(most, 1.05 * mean) << what << ", host " << host;
    EXPECT_GE(least, 0.95 * mean) << what << ", host " << host;
    if (perHost < 0) continue;
    EXPECT_LE(most, 1.05 * perHost / nics) << what << ", host " << host;
    EXPECT_GE(least, 0.95 * perHost / nics) << what << ", host " << host;
  }
}

struct Case {
  const char *name;
  std::vector<Host> hosts;
  std::vector<int> nics; // that each of them uses
};
void PrintTo(const Case &c, std::ostream *out) {
  *out << c.name;
}

class Traffic : public ::testing::TestWithParam<Case> {};

TEST_P(Traffic, LoadsAllNicsAlike) {
  const Case &param = GetParam();
  Cluster cluster(param.hosts);
  for (int coll :
       {tuttiCollAllReduce, tuttiCollAllGather, tuttiCollReduceScatter, tuttiCollAlltoAll})
    for (int algo = 0; algo < tuttiAlgoCount; algo++) {
      if (algo == tuttiAlgoDirect || !tuttiSchedulesOnGpus(algo)) continue;
      if (!tuttiScheduleExists(coll, algo)) continue;
      if (algo == tuttiAlgoHierarchical && !tuttiGraphIsGrid(cluster.graph)) continue;
      uint64_t count = countOf(coll, cluster.n());
      std::string what = std::string(tuttiCollName(coll)) + " " + tuttiAlgoNames[algo];
      Loads loads = simulated(cluster, coll, algo, count);
      EXPECT_EQ(loads.nics, counted(cluster, coll, algo, count).nics) << what;
      double hosts = (double)param.hosts.size();
      expectEven(loads, param.nics, bound(coll, algo, cluster.n(), hosts, (double)count), what);
    }
}

// A single GPU has two NICs beside it, and so have four GPUs of eight four.
INSTANTIATE_TEST_SUITE_P(
    Recorded, Traffic,
    ::testing::Values(
        Case{"TwoHosts8", {{"dgx", 8}, {"dgx", 8}}, {8, 8}},
        Case{"ThreeHosts8", {{"dgx", 8}, {"dgx", 8}, {"dgx", 8}}, {8, 8, 8}},
        Case{"FourHosts8", {{"dgx", 8}, {"dgx", 8}, {"dgx", 8}, {"dgx", 8}}, {8, 8, 8, 8}},
        Case{"TwoHosts4", {{"hgx_4nics", 8}, {"hgx_4nics", 8}}, {4, 4}},
        Case{"ThreeHosts4", {{"hgx_4nics", 8}, {"hgx_4nics", 8}, {"hgx_4nics", 8}}, {4, 4, 4}},
        Case{"FourHosts4",
             {{"hgx_4nics", 8}, {"hgx_4nics", 8}, {"hgx_4nics", 8}, {"hgx_4nics", 8}},
             {4, 4, 4, 4}},
        Case{"TwoHosts1", {{"hgx_1nic", 8}, {"hgx_1nic", 8}}, {1, 1}},
        Case{"ThreeHosts1", {{"hgx_1nic", 8}, {"hgx_1nic", 8}, {"hgx_1nic", 8}}, {1, 1, 1}},
        Case{"FourHosts1",
             {{"hgx_1nic", 8}, {"hgx_1nic", 8}, {"hgx_1nic", 8}, {"hgx_1nic", 8}},
             {1, 1, 1, 1}},
        Case{"SevenAndEightGpus", {{"dgx", 7}, {"dgx", 8}}, {8, 8}},
        Case{"EightSevenEightGpus", {{"dgx", 8}, {"dgx", 7}, {"dgx", 8}}, {8, 8, 8}},
        Case{"OneAndEightGpus", {{"dgx", 1}, {"dgx", 8}}, {2, 8}},
        Case{"UnlikeNics", {{"dgx", 8}, {"hgx_4nics", 8}, {"hgx_1nic", 8}}, {8, 4, 1}},
        Case{"FourGpusOfEight", {{"dgx", 4}, {"dgx", 4}}, {4, 4}}),
    [](const auto &info) { return info.param.name; });

} // namespace
#endif

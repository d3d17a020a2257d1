/* Rings and trees that leave their hosts at the rails of their channels. */
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "base/error.h"
#include "collectives/graph.h"

namespace {

struct Free {
  void operator()(tuttiGraph *g) const { tuttiGraphFree(g); }
};
using Graph = std::unique_ptr<tuttiGraph, Free>;

/* Hosts, and how far each rank is from each rail. */
struct World {
  std::vector<uint64_t> hosts;
  int nrails;
  std::vector<uint8_t> distance;
  int n() const { return static_cast<int>(hosts.size()); }
  int at(int rank, int rail) const { return distance[rank * nrails + rail]; }
};

/* Each host has counts[h] GPUs, GPU i of it nearest to rail i * nics / 8, as far as it has so many;
 * rails of hosts with fewer NICs repeat. */
World world(const std::vector<int> &counts, const std::vector<int> &nics) {
  World w{{}, *std::max_element(nics.begin(), nics.end()), {}};
  for (size_t h = 0; h < counts.size(); h++)
    for (int gpu = 0; gpu < counts[h]; gpu++) {
      w.hosts.push_back(100 + h);
      for (int k = 0; k < w.nrails; k++)
        w.distance.push_back(gpu * nics[h] / 8 == k % nics[h] ? 1 : 4);
    }
  return w;
}

Graph create(const World &w, int channels) {
  tuttiGraphRails rails{w.nrails, w.distance.data()};
  tuttiGraph *g = nullptr;
  EXPECT_EQ(tuttiGraphCreate(w.hosts.data(), w.n(), &rails, channels, &g), tuttiSuccess)
      << tuttiErrorText();
  return Graph(g);
}

int ringAt(const tuttiGraph *g, int channel, int i) {
  return g->ring[channel * g->nranks + (i + g->nranks) % g->nranks];
}
int parentOf(const tuttiGraph *g, int channel, int rank) {
  return g->parent[channel * g->nranks + rank];
}

/* The shortest distance from any rank of the rank's host to the rail. */
int nearest(const World &w, const tuttiGraph *g, int rank, int rail) {
  int best = 255;
  for (int r = 0; r < w.n(); r++)
    if (g->host[r] == g->host[rank]) best = std::min(best, w.at(r, rail));
  return best;
}

/* One way in and out of each host, and a tree within the fan whose hosts have one edge up each. */
void expectWellFormed(const tuttiGraph *g, int channel) {
  std::set<int> seen;
  int changes = 0, roots = 0, crossings = 0;
  std::vector<int> neighbours(g->nranks);
  for (int i = 0; i < g->nranks; i++) {
    int r = ringAt(g, channel, i), up = parentOf(g, channel, r);
    EXPECT_TRUE(seen.insert(r).second);
    EXPECT_EQ(g->position[channel * g->nranks + r], i);
    changes += g->host[r] != g->host[ringAt(g, channel, i + 1)];
    roots += up < 0;
    if (up < 0) continue;
    crossings += g->host[r] != g->host[up];
    neighbours[r]++;
    neighbours[up]++;
  }
  EXPECT_EQ(changes, g->nhosts);
  EXPECT_EQ(roots, 1);
  EXPECT_EQ(crossings, g->nhosts - 1);
  EXPECT_LE(*std::max_element(neighbours.begin(), neighbours.end()), TUTTI_MAX_FAN);
  EXPECT_GE(g->depth[channel], 0) << "a circle";
}

/* What crosses borders: of each (host, rail), rings in and out, and edges of trees. */
struct Loads {
  std::map<std::pair<int, int>, int> in, out, tree;
};

/* All that crosses a border does it between ranks that no rank of their hosts is nearer to the rail
 * than; `strict`: also what leaves. */
void expectAtRails(const World &w, const tuttiGraph *g, int channel, bool strict, Loads *loads) {
  for (int i = 0; i < g->nranks; i++) {
    int from = ringAt(g, channel, i), to = ringAt(g, channel, i + 1);
    if (g->host[from] == g->host[to]) {
      EXPECT_EQ(tuttiGraphRail(g, channel, from, to), -1);
      continue;
    }
    int rail = tuttiGraphRail(g, channel, from, to);
    ASSERT_GE(rail, 0);
    ASSERT_LT(rail, w.nrails);
    EXPECT_EQ(w.at(to, rail), nearest(w, g, to, rail)) << "enters at " << to;
    if (strict) {
      EXPECT_EQ(w.at(from, rail), nearest(w, g, from, rail)) << "leaves at " << from;
    }
    loads->out[{g->host[from], rail}]++;
    loads->in[{g->host[to], rail}]++;
  }
  for (int r = 0; r < g->nranks; r++) {
    int up = parentOf(g, channel, r), rail = g->treeRail[channel];
    if (up < 0 || g->host[up] == g->host[r]) continue;
    ASSERT_EQ(rail, channel % w.nrails);
    EXPECT_EQ(w.at(r, rail), nearest(w, g, r, rail));
    EXPECT_EQ(w.at(up, rail), nearest(w, g, up, rail));
    loads->tree[{g->host[r], rail}]++;
    loads->tree[{g->host[up], rail}]++;
  }
}

Loads check(const World &w, int channels, bool strict) {
  Loads loads;
  Graph g = create(w, channels);
  if (!g) return loads;
  EXPECT_EQ(g->nrails, w.nrails);
  for (int c = 0; c < channels; c++) {
    SCOPED_TRACE("channel " + std::to_string(c));
    expectWellFormed(g.get(), c);
    expectAtRails(w, g.get(), c, strict, &loads);
  }
  return loads;
}

void expectEven(const std::map<std::pair<int, int>, int> &loads, int nrails, const char *what) {
  for (const auto &[where, load] : loads)
    EXPECT_EQ(load, loads.at({where.first, 0}))
        << what << " of host " << where.first << " rail " << where.second << " of " << nrails;
}

/* As many channels as rails load every rail of every host with one ring in and one out; twice as
 * many load them with the same edges of trees. */
TEST(GraphRails, EveryRailHasTheSameShare) {
  for (int nhosts : {2, 3, 4, 5})
    for (int nics : {8, 4, 2, 1})
      for (int gpus : {8, 4, 1}) {
        SCOPED_TRACE(testing::Message() << nhosts << " hosts, " << nics << " NICs, " << gpus);
        World w = world(std::vector<int>(nhosts, gpus), std::vector<int>(nhosts, nics));
        bool hasAll = gpus == 8 || gpus == 1;
        /* Of a circle of three hosts with two rails one leaves by the other GPU of a rail. */
        Loads loads = check(w, 2 * nics, hasAll);
        EXPECT_EQ(loads.in.size(), static_cast<size_t>(nhosts * nics));
        expectEven(loads.in, nics, "rings into");
        expectEven(loads.out, nics, "rings out");
        expectEven(loads.tree, nics, "trees");
      }
}

/* Hosts of 7 and 8 GPUs: the rail without a GPU of its own is served by another. */
TEST(GraphRails, UnequalHosts) {
  for (const std::vector<int> &counts :
       std::vector<std::vector<int>>{{7, 8}, {8, 7, 8}, {1, 8}, {8, 4, 1}, {2, 7, 8, 3}}) {
    SCOPED_TRACE(testing::PrintToString(counts));
    Loads loads = check(world(counts, std::vector<int>(counts.size(), 8)), 16, false);
    expectEven(loads.in, 8, "rings into");
    expectEven(loads.out, 8, "rings out");
    expectEven(loads.tree, 8, "trees");
  }
  check(world({8, 8}, {8, 4}), 16, true);
  check(world({8, 8, 8}, {8, 4, 1}), 16, false);
}

/* Whatever the distances and the placement of ranks, it is a ring and a tree that enter where the
 * rail is nearest. */
TEST(GraphRails, AnyDistances) {
  std::mt19937 random(16);
  for (int round = 0; round < 300; round++) {
    World w{{}, 1 + static_cast<int>(random() % TUTTI_GRAPH_RAILS), {}};
    int n = 2 + static_cast<int>(random() % 40), nhosts = 2 + static_cast<int>(random() % (n - 1));
    for (int r = 0; r < n; r++)
      w.hosts.push_back(r < nhosts ? r : random() % nhosts);
    std::shuffle(w.hosts.begin(), w.hosts.end(), random);
    for (int i = 0; i < n * w.nrails; i++)
      w.distance.push_back(random() % 5 == 0 ? TUTTI_RAIL_NONE : random() % 4);
    SCOPED_TRACE(testing::PrintToString(w.hosts));
    check(w, 1 + static_cast<int>(random() % TUTTI_MAX_CHANNELS), false);
    if (testing::Test::HasFailure()) return;
  }
}

/* One NIC that is equally near to all: the doors change, so that no GPU does it all; the first two
 * channels are as without rails. */
TEST(GraphRails, OneRailThatIsNearToAll) {
  World w{{}, 1, std::vector<uint8_t>(16, 3)};
  for (int r = 0; r < 16; r++)
    w.hosts.push_back(r / 8);
  Graph g = create(w, 16), plain;
  tuttiGraph *made = nullptr;
  ASSERT_EQ(tuttiGraphCreate(w.hosts.data(), 16, nullptr, 2, &made), tuttiSuccess);
  plain.reset(made);
  EXPECT_EQ(std::vector<int>(g->ring, g->ring + 32), std::vector<int>(made->ring, made->ring + 32));
  EXPECT_EQ(std::vector<int>(g->parent, g->parent + 32),
            std::vector<int>(made->parent, made->parent + 32));
  std::map<int, int> entries, exits, roots;
  for (int c = 0; c < 16; c++)
    for (int i = 0; i < 16; i++) {
      int from = ringAt(g.get(), c, i), to = ringAt(g.get(), c, i + 1),
          up = parentOf(g.get(), c, to);
      if (g->host[from] != g->host[to]) {
        exits[from]++;
        entries[to]++;
      }
      if (up < 0 || g->host[up] != g->host[to]) roots[to]++;
    }
  for (int r = 0; r < 16; r++) {
    EXPECT_EQ(entries[r], 2) << r;
    EXPECT_EQ(exits[r], 2) << r;
    EXPECT_EQ(roots[r], 2) << r;
  }
}

TEST(GraphRails, OneHostIsAsWithout) {
  World w = world({8}, {8});
  Graph g = create(w, 4), plain;
  tuttiGraph *made = nullptr;
  ASSERT_EQ(tuttiGraphCreate(w.hosts.data(), 8, nullptr, 4, &made), tuttiSuccess);
  plain.reset(made);
  EXPECT_EQ(g->nrails, 0);
  EXPECT_EQ(std::vector<int>(g->ring, g->ring + 32), std::vector<int>(made->ring, made->ring + 32));
  EXPECT_EQ(std::vector<int>(g->parent, g->parent + 32),
            std::vector<int>(made->parent, made->parent + 32));
}

TEST(GraphRails, BadNumbers) {
  World w = world({2, 2}, {8, 8});
  tuttiGraph *g = nullptr;
  for (int nrails : {0, -1, TUTTI_GRAPH_RAILS + 1}) {
    tuttiGraphRails rails{nrails, w.distance.data()};
    EXPECT_EQ(tuttiGraphCreate(w.hosts.data(), 4, &rails, 1, &g), tuttiInvalidArgument);
    EXPECT_THAT(tuttiErrorText(), testing::HasSubstr("1 to 16 are possible"));
  }
}

} // namespace

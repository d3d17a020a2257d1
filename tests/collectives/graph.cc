#include "collectives/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/settings.h"

namespace {

struct Free {
  void operator()(tuttiGraph *g) const { tuttiGraphFree(g); }
};
using Graph = std::unique_ptr<tuttiGraph, Free>;

Graph create(const std::vector<uint64_t> &hosts, int channels) {
  tuttiGraph *g = nullptr;
  EXPECT_EQ(tuttiGraphCreate(hosts.data(), static_cast<int>(hosts.size()), nullptr, channels, &g),
            tuttiSuccess);
  return Graph(g);
}

/* counts[h] ranks on host h, ranks of a host in a row. */
std::vector<uint64_t> blocks(const std::vector<int> &counts) {
  std::vector<uint64_t> hosts;
  for (size_t h = 0; h < counts.size(); h++)
    hosts.insert(hosts.end(), counts[h], 0x9e3779b97f4a7c15u * (h + 1));
  return hosts;
}

int log2Floor(int n) {
  return 31 - __builtin_clz(n);
}

const int32_t *parents(const tuttiGraph *g, int channel) {
  return g->parent + static_cast<size_t>(channel) * g->nranks;
}

void expectHosts(const tuttiGraph *g, const std::vector<uint64_t> &hosts) {
  std::vector<uint64_t> seen;
  for (int r = 0; r < g->nranks; r++) {
    ASSERT_LE(g->host[r], static_cast<int>(seen.size()));
    if (g->host[r] == static_cast<int>(seen.size())) seen.push_back(hosts[r]);
    ASSERT_EQ(seen[g->host[r]], hosts[r]);
  }
  EXPECT_EQ(static_cast<int>(seen.size()), g->nhosts);
  EXPECT_EQ(std::set<uint64_t>(seen.begin(), seen.end()).size(), seen.size());
}

void expectRings(const tuttiGraph *g) {
  size_t n = g->nranks;
  for (int c = 0; c < g->nchannels; c++) {
    const int32_t *ring = g->ring + c * n;
    std::vector<int> sorted(ring, ring + n);
    std::sort(sorted.begin(), sorted.end());
    int changes = 0;
    for (size_t i = 0; i < n; i++) {
      ASSERT_EQ(sorted[i], static_cast<int>(i));
      ASSERT_EQ(g->position[c * n + ring[i]], static_cast<int>(i));
      changes += g->host[ring[i]] != g->host[ring[(i + 1) % n]];
      if (c > 0) {
        ASSERT_EQ(ring[i], g->ring[(c - 1) * n + n - 1 - i]);
      }
    }
    EXPECT_EQ(changes, g->nhosts > 1 ? g->nhosts : 0) << "every host has one way in, one out";
  }
}

int depthOf(const tuttiGraph *g, int channel, int rank) {
  int depth = 0;
  for (int up = parents(g, channel)[rank]; up >= 0; up = parents(g, channel)[up])
    if (++depth > g->nranks) return -1;
  return depth;
}

void expectTrees(const tuttiGraph *g) {
  std::vector<int> ranksOf(g->nhosts);
  for (int r = 0; r < g->nranks; r++)
    ranksOf[g->host[r]]++;
  int most = *std::max_element(ranksOf.begin(), ranksOf.end());
  for (int c = 0; c < g->nchannels; c++) {
    std::vector<int> neighbours(g->nranks), crossings(g->nhosts);
    int roots = 0, deepest = 0;
    for (int r = 0; r < g->nranks; r++) {
      int depth = depthOf(g, c, r), up = parents(g, c)[r];
      ASSERT_GE(depth, 0) << "a circle";
      deepest = std::max(deepest, depth);
      if (up < 0) {
        roots++;
        continue;
      }
      neighbours[r]++;
      neighbours[up]++;
      if (g->host[up] != g->host[r]) crossings[g->host[r]]++;
    }
    EXPECT_EQ(roots, 1);
    EXPECT_LE(*std::max_element(neighbours.begin(), neighbours.end()), TUTTI_MAX_FAN);
    EXPECT_EQ(deepest, g->depth[c]);
    EXPECT_LE(deepest, log2Floor(g->nhosts) + log2Floor(most));
    EXPECT_EQ(std::accumulate(crossings.begin(), crossings.end(), 0), g->nhosts - 1)
        << "each host but the root's has one edge up";
  }
}

/* The bandwidth of a double tree rests on this: who forwards in one tree only receives in the
 * other. */
void expectNoRankInnerTwice(const tuttiGraph *g) {
  ASSERT_GE(g->nchannels, 2);
  std::vector<int> innerRank(g->nranks);
  std::vector<std::set<int>> innerHost(g->nhosts);
  for (int c = 0; c < 2; c++) {
    std::set<int> inner;
    for (int r = 0; r < g->nranks; r++) {
      int up = parents(g, c)[r];
      if (up < 0) continue;
      inner.insert(up);
      if (g->host[up] != g->host[r]) innerHost[g->host[up]].insert(c);
    }
    for (int r : inner)
      innerRank[r]++;
  }
  for (int r = 0; r < g->nranks; r++)
    ASSERT_LE(innerRank[r], 1) << "rank " << r;
  for (int h = 0; h < g->nhosts; h++)
    ASSERT_LE(innerHost[h].size(), 1u) << "host " << h;
}

void expectGood(const std::vector<uint64_t> &hosts, int channels) {
  Graph g = create(hosts, channels);
  ASSERT_TRUE(g);
  ASSERT_EQ(g->nranks, static_cast<int>(hosts.size()));
  ASSERT_EQ(g->nchannels, channels);
  expectHosts(g.get(), hosts);
  expectRings(g.get());
  expectTrees(g.get());
  if (channels > 1) expectNoRankInnerTwice(g.get());
}

/* tuttiGraphTree of every rank: both ends agree on each edge, only `root` has no parent, and the
 * edges are those of the tree as built. */
void expectTurnedTree(const tuttiGraph *g, int channel, int root) {
  std::vector<tuttiSchedule> s(g->nranks);
  for (int r = 0; r < g->nranks; r++)
    tuttiGraphTree(g, channel, root, r, &s[r]);
  for (int r = 0; r < g->nranks; r++) {
    ASSERT_EQ(s[r].parent == -1, root < 0 ? parents(g, channel)[r] == -1 : r == root);
    ASSERT_LE(s[r].nchildren, TUTTI_MAX_FAN);
    for (int i = 0; i < s[r].nchildren; i++) {
      int child = s[r].children[i];
      ASSERT_EQ(s[child].parent, r);
      ASSERT_TRUE(parents(g, channel)[child] == r || parents(g, channel)[r] == child);
    }
    int up = s[r].parent, steps = 0;
    if (up >= 0) {
      ASSERT_EQ(std::count(s[up].children, s[up].children + s[up].nchildren, r), 1);
    }
    while (up >= 0 && steps++ <= g->nranks)
      up = s[up].parent;
    ASSERT_LE(steps, g->nranks);
  }
}

TEST(Graph, OneRankPerHost) {
  for (int n = 1; n <= 64; n++)
    expectGood(blocks(std::vector<int>(n, 1)), 4);
}

TEST(Graph, OneHost) {
  for (int n = 1; n <= 64; n++)
    expectGood(blocks({n}), 4);
}

TEST(Graph, EvenHosts) {
  for (int hosts = 2; hosts <= 16; hosts++)
    for (int ranks = 2; ranks <= 8; ranks++)
      expectGood(blocks(std::vector<int>(hosts, ranks)), 2);
}

TEST(Graph, AnyPlacementOfRanks) {
  std::mt19937 random(2009);
  for (int round = 0; round < 500; round++) {
    int n = 1 + static_cast<int>(random() % 64), nhosts = 1 + static_cast<int>(random() % n);
    std::vector<uint64_t> hosts(n);
    for (uint64_t &h : hosts)
      h = 1000 - random() % nhosts;
    SCOPED_TRACE(testing::PrintToString(hosts));
    expectGood(hosts, 1 + static_cast<int>(random() % 4));
    if (HasFatalFailure()) return;
  }
}

TEST(Graph, HostsInTurns) {
  Graph g = create({7, 3, 7, 3}, 2);
  EXPECT_EQ(std::vector<int>(g->host, g->host + 4), (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(std::vector<int>(g->ring, g->ring + 4), (std::vector<int>{0, 2, 1, 3}));
  EXPECT_EQ(std::vector<int>(g->ring + 4, g->ring + 8), (std::vector<int>{3, 1, 2, 0}));
}

TEST(Graph, ManyRanks) {
  expectGood(blocks(std::vector<int>(512, 8)), 2);
  expectGood(blocks(std::vector<int>(4096, 1)), 2);
  expectGood(blocks(std::vector<int>(2048, 8)), 4);
  std::vector<uint64_t> hosts(16384); /* as far from blocks as can be */
  for (size_t r = 0; r < hosts.size(); r++)
    hosts[r] = r % 2049;
  expectGood(hosts, 2);
}

TEST(Graph, TreeTurnedToAnyRoot) {
  for (const std::vector<int> &counts : std::vector<std::vector<int>>{
           {1}, {2}, {9}, {1, 1}, {1, 1, 1}, {4, 4, 2}, {5, 1, 3, 8, 2}, {3, 3, 3, 3, 3, 3, 3}}) {
    Graph g = create(blocks(counts), 2);
    for (int root = -1; root < g->nranks; root++)
      for (int c = 0; c < 2; c++)
        expectTurnedTree(g.get(), c, root);
  }
}

std::string logged(const std::vector<uint64_t> &hosts, int rank) {
  Graph g = create(hosts, 1);
  testing::internal::CaptureStderr();
  tuttiGraphLog(g.get(), rank);
  return testing::internal::GetCapturedStderr();
}

TEST(Graph, LogLines) {
  const char *before = getenv("TUTTI_DEBUG");
  std::string old = before != nullptr ? before : "";
  setenv("TUTTI_DEBUG", "INFO", 1);
  ASSERT_EQ(tuttiSettingsLoad(), tuttiSuccess);
  EXPECT_THAT(logged(blocks({2, 2}), 2),
              testing::AllOf(testing::HasSubstr("TUTTI INFO Ring 00 : 0 1 2 3\n"),
                             testing::HasSubstr("TUTTI INFO Tree 00 : -1/2/0,3\n")));
  std::string all = "Ring 00 : 0";
  for (int r = 1; r < 64; r++)
    all += " " + std::to_string(r);
  EXPECT_THAT(logged(blocks({64}), 0), testing::HasSubstr(all + "\n"));
  EXPECT_THAT(logged(blocks({65}), 64),
              testing::HasSubstr("Ring 00 : 63 -> 64 -> 0 (of 65 ranks)\n"));
  setenv("TUTTI_DEBUG", old.c_str(), 1);
  if (before == nullptr) unsetenv("TUTTI_DEBUG");
  ASSERT_EQ(tuttiSettingsLoad(), tuttiSuccess);
}

TEST(Graph, BadArguments) {
  uint64_t host = 1;
  tuttiGraph *g = nullptr;
  EXPECT_EQ(tuttiGraphCreate(&host, 0, nullptr, 1, &g), tuttiInvalidArgument);
  EXPECT_EQ(tuttiGraphCreate(&host, -3, nullptr, 1, &g), tuttiInvalidArgument);
  EXPECT_THAT(tuttiErrorText(), testing::HasSubstr("-3 ranks"));
  EXPECT_EQ(tuttiGraphCreate(&host, 1, nullptr, 0, &g), tuttiInvalidArgument);
  EXPECT_EQ(tuttiGraphCreate(&host, 1, nullptr, 33, &g), tuttiInvalidArgument);
  EXPECT_THAT(tuttiErrorText(), testing::HasSubstr("33 channels"));
  EXPECT_EQ(g, nullptr);
}

/* Each rank once in the rings' panel and once in that of each different tree. */
TEST(Picture, ShowsEveryRankAndEdge) {
  char path[] = "/tmp/tutti-picture-XXXXXX";
  close(mkstemp(path));
  Graph g = create(blocks({3, 2, 1}), 4);
  ASSERT_EQ(tuttiGraphWriteSvg(g.get(), path, "--svg"), tuttiSuccess) << tuttiErrorText();
  std::ifstream file(path);
  std::string svg((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  unlink(path);
  auto count = [&](const std::string &what) {
    int n = 0;
    for (size_t at = 0; (at = svg.find(what, at)) != std::string::npos; at++)
      n++;
    return n;
  };
  EXPECT_EQ(count("<circle "), 3 * 6);
  EXPECT_EQ(count("class=\"host\""), 3 * 3);
  EXPECT_EQ(count("marker-end="), 4 * 6);
  EXPECT_EQ(count("class=\"inside\"") + count("class=\"between\""), 2 * 5);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
}

} // namespace

/* What the tests of schedules share: graphs and checked simulations. */
#ifndef TESTS_COLLECTIVES_SIMULATE_H_
#define TESTS_COLLECTIVES_SIMULATE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "collectives/graph.h"
#include "collectives/simulator.h"

/* Sanitized builds run a sample. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#else
constexpr bool kSanitized = false;
#endif

/* The graph of `nranks` ranks, `perHost` on each host; 2 channels; kept for the whole run. */
inline const tuttiGraph *graphOf(int nranks, int perHost) {
  struct Free {
    void operator()(tuttiGraph *g) const { tuttiGraphFree(g); }
  };
  static std::map<std::pair<int, int>, std::unique_ptr<tuttiGraph, Free>> graphs;
  auto &graph = graphs[{nranks, perHost}];
  if (!graph) {
    std::vector<uint64_t> hosts;
    for (int r = 0; r < nranks; r++)
      hosts.push_back(1000 + r / perHost);
    tuttiGraph *made = nullptr;
    EXPECT_EQ(tuttiGraphCreate(hosts.data(), nranks, nullptr, 2, &made), tuttiSuccess);
    graph.reset(made);
  }
  return graph.get();
}

/* A collective by one algorithm and its variants. */
struct Way {
  int coll, algo;
  bool shared = false, twoShot = false;
};

inline std::string nameOf(const Way &way) {
#define ALGO_NAME(name) #name,
  static const char *const algos[] = {TUTTI_ALGORITHMS(ALGO_NAME)};
#undef ALGO_NAME
  std::string name = std::string(tuttiCollName(way.coll)) + algos[way.algo];
  if (way.twoShot) name += "TwoShot";
  if (way.shared) name += "Shared";
  return name;
}
inline void PrintTo(const Way &way, std::ostream *out) {
  *out << nameOf(way);
}

/* All ways that there are. */
inline std::vector<Way> allWays() {
  std::vector<Way> ways;
  for (int coll = tuttiCollAllReduce; coll < tuttiCollSendRecv; coll++)
    for (int algo = 0; algo < tuttiAlgoCount; algo++) {
      if (!tuttiScheduleExists(coll, algo)) continue;
      bool direct = algo == tuttiAlgoDirect;
      ways.push_back({coll, algo});
      if (algo == tuttiAlgoDoubling && coll == tuttiCollAllReduce)
        ways.push_back({coll, algo, false, true});
      if (direct) ways.push_back({coll, algo, true});
      if (direct && (coll == tuttiCollAllReduce || coll == tuttiCollAllGather)) {
        ways.push_back({coll, algo, false, true});
        ways.push_back({coll, algo, true, true});
      }
    }
  return ways;
}

/* All blocks go in one message of one channel. */
inline bool gathersTwice(const Way &way) {
  return way.coll == tuttiCollAllGather && way.twoShot;
}

inline tuttiSimulation simulationOf(const Way &way, int nranks, int perHost, uint64_t count,
                                    uint64_t chunk) {
  tuttiSimulation sim = {};
  sim.coll = way.coll;
  sim.algo = way.algo;
  sim.shared = way.shared;
  sim.twoShot = way.twoShot;
  sim.count = count;
  sim.chunk = gathersTwice(way) ? std::max(chunk, count * nranks) : chunk;
  sim.depth = 8;
  sim.graph = graphOf(nranks, perHost);
  return sim;
}

/* Simulates and expects the right data, no deadlock, and the elements on the wire that theory says.
 */
inline tuttiSimulationResult expectGood(const tuttiSimulation &sim) {
  tuttiSimulationResult result = {};
  Way way = {sim.coll, sim.algo, sim.shared, sim.twoShot};
  testing::Message where;
  where << nameOf(way) << " ranks " << sim.graph->nranks << " count " << sim.count << " chunk "
        << sim.chunk << " root " << sim.root << " in place " << sim.inPlace << " depth "
        << sim.depth << " channel " << sim.channel << " begin " << sim.begin << " part " << sim.part
        << " seed " << sim.seed;
  EXPECT_TRUE(tuttiSimulate(&sim, &result)) << where;
  EXPECT_FALSE(result.wrong) << result.fault << ", rank " << result.wrongRank << " element "
                             << result.wrongElement << ": " << where;
  EXPECT_FALSE(result.deadlock) << "rank " << result.stuckRank << " at step " << result.stuckStep
                                << ": " << where;
  if (!result.wrong && !result.deadlock) {
    uint64_t moved = sim.part != 0 ? sim.part : sim.count;
    EXPECT_EQ(result.wireElements,
              tuttiScheduleWireElements(sim.coll, sim.algo, sim.shared, sim.twoShot,
                                        sim.graph->nranks, std::max(sim.graph->perHost, 1), moved))
        << where;
  }
  return result;
}

#endif

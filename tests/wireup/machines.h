// GPU ranks on recorded machines, as their records would tell of them.
#ifndef TUTTI_TESTS_WIREUP_MACHINES_H_
#define TUTTI_TESTS_WIREUP_MACHINES_H_

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "topo.h"
#include "topology/sysfs_tree.h"
#include "transport/net.h"
#include "wireup/rails.h"

namespace machines {

inline const tuttiTopology *machine(const std::string &name) {
  struct Free {
    void operator()(tuttiTopology *t) const { tuttiTopologyFree(t); }
  };
  static std::map<std::string, std::unique_ptr<tuttiTopology, Free>> all;
  auto &kept = all[name];
  if (!kept) {
    SysfsTree tree(name);
    tuttiTopology *t = nullptr;
    EXPECT_EQ(tuttiSuccess, tuttiTopologyDetect(tree.root().c_str(), &t));
    kept.reset(t);
  }
  return kept.get();
}

struct Host {
  const char *machine;
  int gpus;
};

// The ranks of these hosts, their rails, and the graph over them.
struct Cluster {
  std::vector<tuttiPeer> peers;
  std::vector<uint64_t> hosts;
  tuttiRails rails{};
  tuttiGraph *graph = nullptr;

  explicit Cluster(const std::vector<Host> &of, int channels = 16) {
    int nranks = 0;
    for (const Host &h : of)
      nranks += h.gpus;
    for (size_t h = 0; h < of.size(); h++)
      for (int gpu = 0; gpu < of[h].gpus; gpu++) {
        tuttiPeer p;
        tuttiTopoPeer(machine(of[h].machine), (int)h, gpu, (int)peers.size(), nranks, &p);
        peers.push_back(p);
        hosts.push_back(p.hostId);
      }
    make(channels);
  }
  explicit Cluster(const std::vector<tuttiPeer> &records, int channels = 16) : peers(records) {
    for (const tuttiPeer &p : peers)
      hosts.push_back(p.hostId);
    make(channels);
  }
  ~Cluster() {
    tuttiGraphFree(graph);
    tuttiRailsFree(&rails);
  }
  Cluster(const Cluster &) = delete;

  int n() const { return (int)peers.size(); }
  // The NIC by which a rank reaches the rail: "mlx5_0:1"; "" if by none.
  std::string nic(int rank, int rail) const {
    tuttiNetPort ports[TUTTI_PATH_RAILS];
    int port = rail < 0 ? TUTTI_RAIL_NONE : rails.port[rank * rails.nrails + rail];
    if (port == TUTTI_RAIL_NONE) return "";
    EXPECT_LT(port, tuttiNetFind("IB")->ports(&peers[(size_t)rank], ports));
    return ports[port].name;
  }

private:
  void make(int channels) {
    EXPECT_EQ(tuttiSuccess, tuttiRailsMake(peers.data(), hosts.data(), n(), &rails))
        << tuttiErrorText();
    tuttiGraphRails over{rails.nrails, rails.distance};
    EXPECT_EQ(tuttiSuccess, tuttiGraphCreate(hosts.data(), n(), rails.nrails ? &over : nullptr,
                                             channels, &graph));
  }
};

} // namespace machines

#endif

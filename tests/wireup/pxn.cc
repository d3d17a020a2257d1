// Which messages leave by way of another GPU of the host, and which one it is, on recorded machines
// and on hosts that differ.
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>

#include "wireup/machines.h"
#include "wireup/pxn.h"
#include "wireup/world.h"

#ifdef TUTTI_HAVE_VERBS
namespace {
using machines::Cluster;
using machines::Host;

using Edit = std::function<void(tuttiPeer &)>;

void editPorts(tuttiPeer &p, const std::function<void(tuttiIbPort &, int)> &edit) {
  tuttiIbHandle h;
  memcpy(&h, p.net, sizeof h);
  for (int i = 0; i < h.nports; i++)
    edit(h.ports[i], i);
  memcpy(p.net, &h, sizeof h);
}

// The records that ranks on such machines would have with GPUDirect RDMA by the NICs beside them.
std::vector<tuttiPeer> records(const std::vector<Host> &hosts, const Edit &edit = nullptr) {
  std::vector<tuttiPeer> peers = Cluster(hosts).peers;
  for (tuttiPeer &p : peers) {
    int nearest = TUTTI_DISTANCE_COUNT;
    editPorts(p, [&](tuttiIbPort &port, int) { nearest = std::min(nearest, (int)port.distance); });
    editPorts(p, [&](tuttiIbPort &port, int) {
      port.gdr = port.gdrRead = port.distance == nearest ? TUTTI_GDR_YES : TUTTI_GDR_FAR;
    });
    p.reaches = p.ipc = 1;
    p.pxnBytes = 1 << 20;
    p.process = (uint64_t)p.rank + 1;
    p.loans.id = (uint64_t)p.rank + 1;
    if (edit) edit(p);
  }
  return peers;
}

struct Ways {
  Cluster cluster;
  std::vector<tuttiPxn> of;
  explicit Ways(const std::vector<tuttiPeer> &peers) : cluster(peers) {
    for (int r = 0; r < cluster.n(); r++) {
      tuttiPxn pxn{};
      EXPECT_EQ(tuttiSuccess,
                tuttiPxnMake(cluster.peers.data(), &cluster.rails, r, cluster.n(), &pxn));
      of.push_back(pxn);
    }
  }
  ~Ways() {
    for (tuttiPxn &p : of)
      tuttiPxnFree(&p);
  }
  Ways(const Ways &) = delete;
  int n() const { return cluster.n(); }
  const tuttiPeer &peer(int r) const { return cluster.peers[(size_t)r]; }
  int lender(int from, int to) const {
    const tuttiPxn &p = of[(size_t)from];
    return p.to ? p.to[to].lender : -1;
  }
  int count() const {
    int n = 0;
    for (int from = 0; from < this->n(); from++)
      for (int to = 0; to < this->n(); to++)
        n += lender(from, to) >= 0;
    return n;
  }
  // The NIC at the sender's or the receiver's end: "mlx5_0:1".
  std::string nic(int from, int to, int side) const {
    tuttiNetPort ports[TUTTI_PATH_RAILS];
    tuttiNetFind("IB")->ports(&peer(side ? to : from), ports);
    return ports[of[(size_t)from].to[to].rail.port[side]].name;
  }
  bool isBeside(int rank, const std::string &nic) const {
    bool beside = false;
    for (int k = 0; k < cluster.rails.nrails; k++)
      beside |= cluster.nic(rank, k) == nic;
    return beside;
  }
  // What all ranks come to by themselves is one thing.
  void expectSame() const {
    for (int lender = 0; lender < n(); lender++)
      for (int from = 0; from < n(); from++) {
        int by = 0;
        for (int to = 0; to < n(); to++)
          by += this->lender(from, to) == lender;
        EXPECT_EQ(by, of[(size_t)lender].lends ? of[(size_t)lender].lends[from] : 0)
            << from << " by " << lender;
      }
  }
};

struct Recorded {
  const char *machine;
  int nics;
  std::vector<int> gpus; // of the hosts
};
void PrintTo(const Recorded &r, std::ostream *to) {
  *to << r.machine << ", " << r.gpus.size() << " hosts";
}
class PxnOn : public ::testing::TestWithParam<Recorded> {
protected:
  static std::vector<Host> hosts() {
    std::vector<Host> out;
    for (int gpus : GetParam().gpus)
      out.push_back({GetParam().machine, gpus});
    return out;
  }
  static bool alike() {
    const std::vector<int> &gpus = GetParam().gpus;
    return std::count(gpus.begin(), gpus.end(), gpus.front()) == (ptrdiff_t)gpus.size();
  }
};

// A message crosses no rail: it leaves by a NIC beside the lender and comes in by one beside the
// receiver, of one rail; whoever is beside that rail needs no lender.
TEST_P(PxnOn, NoMessageCrossesRails) {
  Ways w(records(hosts()));
  w.expectSame();
  for (int from = 0; from < w.n(); from++)
    for (int to = 0; to < w.n(); to++) {
      bool shared = false;
      for (int k = 0; k < w.cluster.rails.nrails; k++)
        shared |= w.cluster.nic(from, k) != "" && w.cluster.nic(to, k) != "";
      if (w.peer(from).hostId == w.peer(to).hostId || shared) {
        EXPECT_EQ(-1, w.lender(from, to)) << from << " to " << to;
        continue;
      }
      int lender = w.lender(from, to);
      ASSERT_GE(lender, 0) << from << " to " << to;
      EXPECT_EQ(w.peer(lender).hostId, w.peer(from).hostId);
      EXPECT_NE(lender, from);
      EXPECT_TRUE(w.isBeside(lender, w.nic(from, to, 0))) << from << " to " << to;
      EXPECT_TRUE(w.isBeside(to, w.nic(from, to, 1))) << from << " to " << to;
      bool one = false;
      for (int k = 0; k < w.cluster.rails.nrails; k++)
        one |= w.cluster.nic(lender, k) == w.nic(from, to, 0) &&
               w.cluster.nic(to, k) == w.nic(from, to, 1);
      EXPECT_TRUE(one) << "of one rail";
    }
  EXPECT_EQ(GetParam().nics > 1, w.count() > 0) << "all are beside the only one";
}

// An all-to-all of equal blocks loads the NICs of hosts that are alike alike.
TEST_P(PxnOn, AllToAllLoadsAllNicsAlike) {
  constexpr int kBlock = 840; // of parts for up to eight NICs
  Ways w(records(hosts()));
  std::map<std::string, int> sent; // by host and NIC
  for (int from = 0; from < w.n(); from++)
    for (int to = 0; to < w.n(); to++) {
      if (w.peer(from).hostId == w.peer(to).hostId) continue;
      std::vector<std::string> nics;
      if (w.lender(from, to) >= 0) nics.push_back(w.nic(from, to, 0));
      for (int k = 0; w.lender(from, to) < 0 && k < w.cluster.rails.nrails; k++)
        if (w.cluster.nic(from, k) != "") nics.push_back(w.cluster.nic(from, k));
      for (const std::string &nic : nics)
        sent[std::to_string(w.peer(from).hostId) + nic] += kBlock / (int)nics.size();
    }
  if (!alike()) return;
  for (auto &[nic, n] : sent)
    EXPECT_EQ(n, sent.begin()->second) << nic;
  EXPECT_EQ(sent.size(), GetParam().gpus.size() * (size_t)GetParam().nics);
}

// Where several GPUs are beside a rail, peers take turns among them.
TEST_P(PxnOn, LendersTakeTurns) {
  if (!alike()) return;
  Ways w(records(hosts()));
  std::map<int, int> by;
  for (int from = 0; from < w.n(); from++)
    for (int to = 0; to < w.n(); to++)
      if (w.lender(from, to) >= 0) by[w.lender(from, to)]++;
  if (by.empty()) return;
  EXPECT_EQ(by.size(), (size_t)w.n());
  for (auto &[lender, n] : by)
    EXPECT_EQ(n, w.count() / w.n()) << lender;
}

INSTANTIATE_TEST_SUITE_P(
    Recorded, PxnOn,
    ::testing::Values(Recorded{"dgx", 8, {8, 8}}, Recorded{"dgx", 8, {8, 8, 8}},
                      Recorded{"hgx_4nics", 4, {8, 8}}, Recorded{"hgx_4nics", 4, {8, 8, 8, 8}},
                      Recorded{"hgx_1nic", 1, {8, 8}}, Recorded{"dgx", 8, {7, 8}},
                      Recorded{"dgx", 8, {8, 7, 8}}, Recorded{"hgx_4nics", 4, {7, 8}},
                      Recorded{"hgx_1nic", 1, {7, 8}}));

const std::vector<Host> kTwo = {{"dgx", 8}, {"dgx", 8}};

// From rank 0 to rank 11, to whose rails ranks 2 and 3 are near.
int lenderWith(const Edit &edit) {
  return Ways(records(kTwo, edit)).lender(0, 11);
}
Edit of(const std::vector<int> &ranks, const Edit &edit) {
  return [=](tuttiPeer &p) {
    for (int rank : ranks)
      if (p.rank == rank) edit(p);
  };
}

TEST(Pxn, TakesWhatTheRecordsOfBothAllow) {
  const std::vector<Edit> hindrances = {
      [](tuttiPeer &p) { p.pxnBytes = 0; }, [](tuttiPeer &p) { p.loans.id = 0; },
      [](tuttiPeer &p) { p.ipc = 0; }, [](tuttiPeer &p) { p.reaches = 0; },
      [](tuttiPeer &p) { p.p2pDisabled = 1; }};
  EXPECT_EQ(2, lenderWith(nullptr));
  for (const Edit &edit : hindrances) {
    EXPECT_EQ(-1, lenderWith(of({0}, edit)));
    EXPECT_EQ(3, lenderWith(of({2}, edit))) << "the other one";
    EXPECT_EQ(-1, lenderWith(of({2, 3}, edit)));
  }
  EXPECT_EQ(2, lenderWith(of({11}, [](tuttiPeer &p) { p.pxnBytes = p.loans.id = 0; })))
      << "the receiver has no part in it";
}

TEST(Pxn, ThreadsOfAProcessNeedNoBox) {
  EXPECT_EQ(2, lenderWith([](tuttiPeer &p) {
              p.process = p.hostId;
              p.loans.id = 0;
            }));
}

// The sender must have a port at one of these NICs itself, up, whatever else it is good for.
TEST(Pxn, TheSenderPostsAtThatNicItself) {
  auto change = [](const std::function<void(tuttiIbPort &)> &edit) {
    return of({0}, [=](tuttiPeer &p) {
      editPorts(p, [&](tuttiIbPort &port, int) {
        if (port.gdr == TUTTI_GDR_FAR) edit(port);
      });
    });
  };
  EXPECT_EQ(-1, lenderWith(change([](tuttiIbPort &port) { port.up = 0; })));
  EXPECT_EQ(-1, lenderWith(change([](tuttiIbPort &port) { port.device[0] = 'x'; })));
  EXPECT_EQ(2, lenderWith(change([](tuttiIbPort &port) { port.gdr = TUTTI_GDR_BROKEN; })));
}

// Until it is up, what would leave for it by way of the lender would go the long way there.
TEST(Pxn, TheReceiversNicIsUp) {
  const Edit down = [](tuttiPeer &p) {
    editPorts(p, [&](tuttiIbPort &port, int) {
      port.gids[port.ngids++].gid[15] = 1;
      if (port.gdr != TUTTI_GDR_YES || p.rank != 11) return;
      port.up = 0;
      port.gdr = port.gdrRead = TUTTI_GDR_DOWN;
    });
  };
  Ways w(records(kTwo, down));
  w.expectSame();
  EXPECT_EQ(8, w.cluster.rails.nrails);
  for (int from = 0; from < 8; from++)
    EXPECT_EQ(-1, w.lender(from, 11)) << from;
  EXPECT_EQ(4, w.lender(0, 13)) << "others have theirs";
}

TEST(Pxn, TheLendersNicReachesItsGpu) {
  EXPECT_EQ(-1, lenderWith([](tuttiPeer &p) {
    editPorts(p, [](tuttiIbPort &port, int) { port.gdrRead = TUTTI_GDR_NO_READ; });
  }));
}

TEST(Pxn, IsNothingWithoutRails) {
  for (const std::vector<Host> &hosts :
       {std::vector<Host>{{"dgx", 8}}, std::vector<Host>{{"dgx", 1}, {"dgx", 1}}}) {
    Ways w(records(hosts));
    for (const tuttiPxn &p : w.of)
      EXPECT_TRUE(p.to == nullptr && p.lends == nullptr);
  }
}

} // namespace
#endif

/* What NET/IB ends tell each other, without verbs: the choice of addresses, and that nothing is
 * believed unchecked. */
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "transport/ib/wire.h"
#include "transport/region.h"

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

namespace {

tuttiIbGid Gid(const char *text, int type, int index, bool forced = false) {
  tuttiIbGid g{};
  if (strchr(text, ':')) {
    EXPECT_EQ(1, inet_pton(AF_INET6, text, g.gid)) << text;
  } else {
    g.gid[10] = g.gid[11] = 0xff;
    EXPECT_EQ(1, inet_pton(AF_INET, text, g.gid + 12)) << text;
  }
  g.type = static_cast<uint8_t>(type);
  g.index = static_cast<uint16_t>(index);
  g.forced = forced;
  return g;
}

tuttiIbPort Port(const char *device, const std::vector<tuttiIbGid> &gids, bool ethernet = true) {
  tuttiIbPort p{};
  snprintf(p.device, sizeof p.device, "%s", device);
  p.port = 1;
  p.ethernet = ethernet;
  p.mtu = 5;
  p.up = 1;
  for (const tuttiIbGid &g : gids)
    tuttiIbPortAddGid(&p, &g, "", 0);
  return p;
}

constexpr int kV1 = TUTTI_GID_ROCE1, kV2 = TUTTI_GID_ROCE2;

/* Indexes in the tables of the pair that is chosen; -1, -1 if none fits. */
std::pair<int, int> Choose(const tuttiIbPort &a, const tuttiIbPort &b) {
  int i, j;
  if (!tuttiIbGidChoose(&a, &b, &i, &j)) return {-1, -1};
  return {a.gids[i].index, b.gids[j].index};
}

TEST(IbGid, PrefersVersion2AndTheSameSubnet) {
  tuttiIbPort a =
      Port("a", {Gid("fe80::1", kV1, 0), Gid("fe80::1", kV2, 1), Gid("10.0.1.1", kV1, 2),
                 Gid("10.0.1.1", kV2, 3), Gid("192.168.7.1", kV2, 5)});
  tuttiIbPort b = Port("b", {Gid("fe80::2", kV2, 1), Gid("192.168.7.2", kV1, 4),
                             Gid("192.168.7.2", kV2, 7), Gid("10.0.9.2", kV2, 9)});
  EXPECT_EQ(std::make_pair(5, 7), Choose(a, b));
  EXPECT_EQ(std::make_pair(7, 5), Choose(b, a));
}

TEST(IbGid, FamiliesAndVersionsDoNotMix) {
  tuttiIbPort v4 = Port("a", {Gid("10.0.1.1", kV2, 1), Gid("fe80::1", kV2, 0)});
  tuttiIbPort v6 = Port("b", {Gid("fd77::2", kV2, 6), Gid("fe80::2", kV2, 0)});
  EXPECT_EQ(std::make_pair(-1, -1), Choose(v4, v6)) << "link-local ones are no common ground";
  tuttiIbPort old = Port("c", {Gid("10.0.1.3", kV1, 2)});
  EXPECT_EQ(std::make_pair(-1, -1), Choose(v4, old));
  tuttiIbPort both = Port("d", {Gid("10.0.1.4", kV1, 3), Gid("fd77::4", kV2, 4)});
  EXPECT_EQ(std::make_pair(2, 3), Choose(old, both));
  EXPECT_EQ(std::make_pair(6, 4), Choose(v6, both));
}

TEST(IbGid, ForcedRowsMayBeLinkLocal) {
  tuttiIbPort a = Port("a", {Gid("fe80::1", kV2, 0, true)});
  tuttiIbPort b = Port("b", {Gid("fe80::2", kV2, 3), Gid("10.0.1.2", kV2, 1)});
  EXPECT_EQ(std::make_pair(0, 3), Choose(a, b));
}

TEST(IbGid, InfinibandNeedsNone) {
  tuttiIbPort a = Port("a", {}, false), b = Port("b", {}, false);
  int i, j;
  EXPECT_TRUE(tuttiIbGidChoose(&a, &b, &i, &j));
  tuttiIbPort roce = Port("c", {Gid("10.0.1.1", kV2, 1)});
  EXPECT_FALSE(tuttiIbGidChoose(&a, &roce, &i, &j));
}

TEST(IbGid, KeepsTheBestOfALongTable) {
  tuttiIbPort p{};
  p.ethernet = 1;
  tuttiIbGid none{};
  tuttiIbPortAddGid(&p, &none, "", 0);
  EXPECT_EQ(0, p.ngids);
  for (int i = 0; i < 40; i++) {
    tuttiIbGid g = Gid(("fe80::" + std::to_string(i + 1)).c_str(), kV1, i);
    tuttiIbPortAddGid(&p, &g, "", 0);
  }
  tuttiIbGid v1 = Gid("10.0.0.1", kV1, 50), v2 = Gid("10.0.0.1", kV2, 51);
  tuttiIbPortAddGid(&p, &v1, "", 0);
  tuttiIbPortAddGid(&p, &v2, "", 0);
  EXPECT_EQ(TUTTI_IB_GIDS, p.ngids);
  EXPECT_EQ(51, p.gids[0].index);
  EXPECT_EQ(50, p.gids[1].index);
}

TEST(IbGid, SettingsLeaveRowsOut) {
  for (auto [family, version, index] :
       {std::tuple("AF_INET6", 0, 3), std::tuple("AF_INET", 1, 1), std::tuple("AF_INET", 2, 2)}) {
    tuttiIbPort p{};
    p.ethernet = 1;
    for (const tuttiIbGid &g :
         {Gid("10.0.1.1", kV1, 1), Gid("10.0.1.1", kV2, 2), Gid("fd77::1", kV2, 3)})
      tuttiIbPortAddGid(&p, &g, family, version);
    ASSERT_EQ(1, p.ngids) << family << version;
    EXPECT_EQ(index, p.gids[0].index);
  }
}

tuttiIbHandle Handle(const std::vector<tuttiIbPort> &ports) {
  tuttiIbHandle h{};
  h.nports = static_cast<int16_t>(ports.size());
  std::copy(ports.begin(), ports.end(), h.ports);
  return h;
}

TEST(IbPort, RailsMeetTheirLike) {
  std::vector<tuttiIbPort> mine, theirs;
  for (int i = 0; i < 4; i++) {
    std::string net = "10.0." + std::to_string(i);
    mine.push_back(Port("m", {Gid((net + ".1").c_str(), kV2, 1)}));
    theirs.push_back(Port("t", {Gid((net + ".2").c_str(), kV2, 1)}));
  }
  tuttiIbPair pair;
  for (int qp = 0; qp < 9; qp++) {
    const tuttiIbHandle send = Handle(mine), recv = Handle(theirs);
    ASSERT_TRUE(tuttiIbPairChoose(&send, &recv, qp, &pair));
    EXPECT_EQ(qp % 4, pair.port[0]);
    EXPECT_EQ(qp % 4, pair.port[1]);
  }
  const tuttiIbHandle one = Handle({mine[2]}), all = Handle(theirs);
  ASSERT_TRUE(tuttiIbPairChoose(&one, &all, 1, &pair));
  EXPECT_EQ(0, pair.port[0]);
  EXPECT_EQ(2, pair.port[1]);
  for (tuttiIbPort &p : theirs)
    p = Port("t", {}, false);
  const tuttiIbHandle ib = Handle({Port("m", {}, false)}), others = Handle(theirs);
  EXPECT_FALSE(tuttiIbPairChoose(&one, &others, 0, &pair)) << "RoCE and InfiniBand";
  for (int qp = 0; qp < 4; qp++) {
    ASSERT_TRUE(tuttiIbPairChoose(&ib, &others, qp, &pair));
    EXPECT_EQ(qp, pair.port[1]) << "among equals by turns";
  }
}

/* Ports of two hosts with these addresses, and what each of the first host's is joined with. */
std::vector<int> Joined(const std::vector<std::string> &a, const std::vector<std::string> &b) {
  std::vector<tuttiIbPort> mine, theirs;
  for (const std::string &address : a)
    mine.push_back(Port("m", {Gid(address.c_str(), kV2, 1)}));
  for (const std::string &address : b)
    theirs.push_back(Port("t", {Gid(address.c_str(), kV2, 1)}));
  const tuttiIbHandle send = Handle(mine), recv = Handle(theirs);
  std::vector<int> with;
  for (int qp = 0; qp < static_cast<int>(a.size()); qp++) {
    tuttiIbPair pair;
    EXPECT_TRUE(tuttiIbPairChoose(&send, &recv, qp, &pair));
    EXPECT_EQ(pair.port[0], qp);
    with.push_back(pair.port[1]);
  }
  return with;
}

TEST(IbPort, NoRailIsLeftOutInAFlatSubnet) {
  std::vector<std::string> first, second;
  std::vector<int> like;
  for (int i = 0; i < TUTTI_IB_PORTS; i++) {
    first.push_back("10.0.0." + std::to_string(i + 1));
    second.push_back("10.0.0." + std::to_string(TUTTI_IB_PORTS + i + 1));
    like.push_back(i);
  }
  EXPECT_EQ(Joined(first, second), like);
  EXPECT_EQ(Joined(second, first), like);
  /* The last of the one host lies beside the first of the other. */
  EXPECT_EQ(Joined({"10.0.0.1", "10.0.0.8"}, {"10.0.0.9", "10.0.0.10"}), (std::vector<int>{0, 1}));
}

TEST(IbPort, RailsAreToldApartByTheirSubnets) {
  EXPECT_EQ(Joined({"10.0.1.1", "10.0.2.1"}, {"10.0.2.2", "10.0.1.2"}), (std::vector<int>{1, 0}))
      << "devices of other names";
  EXPECT_EQ(Joined({"10.0.1.1", "10.0.1.2", "10.0.2.1", "10.0.2.2"}, {"10.0.1.3", "10.0.2.3"}),
            (std::vector<int>{0, 0, 1, 1}));
}

TEST(IbPort, InfinibandPortsMeetInTheirSubnet) {
  auto port = [](const char *gid) { return Port("m", {Gid(gid, TUTTI_GID_IB, 0)}, false); };
  const tuttiIbHandle send = Handle({port("fe80:0:0:1::1"), port("fe80:0:0:2::1")});
  const tuttiIbHandle recv = Handle({port("fe80:0:0:2::2"), port("fe80:0:0:1::2")});
  for (int qp = 0; qp < 4; qp++) {
    tuttiIbPair pair;
    ASSERT_TRUE(tuttiIbPairChoose(&send, &recv, qp, &pair));
    EXPECT_NE(pair.port[0], pair.port[1]) << qp;
  }
}

TEST(IbPort, RailsThatReachTheGpuAreUsedAlone) {
  std::vector<tuttiIbPort> mine, theirs;
  for (int i = 0; i < 4; i++) {
    mine.push_back(Port("m", {}, false));
    theirs.push_back(Port("t", {}, false));
  }
  mine[1].gdr = mine[2].gdr = mine[1].gdrRead = mine[2].gdrRead = TUTTI_GDR_YES;
  mine[3].gdr = mine[3].gdrRead = TUTTI_GDR_FAR;
  theirs[3].gdr = theirs[3].gdrRead = TUTTI_GDR_YES;
  tuttiIbPair pair;
  for (int qp = 0; qp < 8; qp++) {
    const tuttiIbHandle send = Handle(mine), recv = Handle(theirs);
    ASSERT_TRUE(tuttiIbPairChoose(&send, &recv, qp, &pair));
    EXPECT_EQ(qp % 2 ? 2 : 1, pair.port[0]);
    EXPECT_EQ(3, pair.port[1]);
    ASSERT_TRUE(tuttiIbPairChoose(&recv, &send, qp, &pair));
    EXPECT_EQ(3, pair.port[0]);
    EXPECT_EQ(qp % 2 ? 2 : 1, pair.port[1]) << "among equals by turns";
  }
}

/* A port that writes the GPU's memory need not read it well. */
TEST(IbPort, SendersLookForReadsAndReceiversForWrites) {
  std::vector<tuttiIbPort> ports(3, Port("m", {}, false));
  for (tuttiIbPort &p : ports)
    p.gdr = TUTTI_GDR_YES;
  ports[0].gdrRead = ports[2].gdrRead = TUTTI_GDR_NO_READ;
  ports[1].gdrRead = TUTTI_GDR_YES;
  tuttiIbHandle a = Handle(ports), b = Handle(ports);
  tuttiIbPair pairs[3];
  EXPECT_EQ(3, tuttiIbPairsFull(&a, &b));
  ASSERT_EQ(3, tuttiIbPairsChoose(&a, &b, 0, 3, pairs));
  for (int qp = 0; qp < 3; qp++) {
    EXPECT_EQ(1, pairs[qp].port[0]);
    EXPECT_EQ(qp, pairs[qp].port[1]);
  }
  for (int i = 0; i < 3; i++) {
    EXPECT_EQ(i == 1, tuttiIbPortUsable(&a, i, true));
    EXPECT_TRUE(tuttiIbPortUsable(&a, i, false));
  }
  ports[1].up = 0;
  a = Handle(ports);
  EXPECT_TRUE(tuttiIbPortUsable(&a, 0, true)) << "slow reads are better than none";
}

/* Near ones before far ones, as long as they are up; and what is down is used if all are. */
TEST(IbPort, PortsThatAreUpComeFirst) {
  tuttiIbHandle a, b;
  const struct {
    int up[3], gdr[3]; /* of the sender's */
    std::vector<int> used;
  } cases[] = {
      {{1, 1, 1}, {0, 0, 0}, {0, 1, 2}}, {{1, 0, 1}, {0, 0, 0}, {0, 2}},
      {{0, 0, 0}, {0, 0, 0}, {0, 1, 2}}, {{1, 1, 1}, {1, 1, 0}, {0, 1}},
      {{0, 1, 1}, {1, 1, 0}, {1}},       {{0, 0, 1}, {1, 1, 0}, {2}},
      {{0, 0, 0}, {1, 1, 0}, {0, 1}},
  };
  for (const auto &c : cases) {
    std::vector<tuttiIbPort> mine, theirs(2, Port("t", {}, false));
    for (int i = 0; i < 3; i++) {
      mine.push_back(Port("m", {}, false));
      mine[i].up = static_cast<uint8_t>(c.up[i]);
      mine[i].gdr = mine[i].gdrRead = c.gdr[i] ? TUTTI_GDR_YES : TUTTI_GDR_FAR;
    }
    theirs[1].up = 0;
    a = Handle(mine);
    b = Handle(theirs);
    tuttiIbPair pairs[3];
    EXPECT_EQ(static_cast<int>(c.used.size()), tuttiIbPairsFull(&a, &b));
    ASSERT_EQ(3, tuttiIbPairsChoose(&a, &b, 0, 3, pairs));
    for (size_t qp = 0; qp < 3; qp++) {
      EXPECT_EQ(c.used[qp % c.used.size()], pairs[qp].port[0]) << &c - cases;
      EXPECT_EQ(0, pairs[qp].port[1]);
    }
    ASSERT_EQ(1, tuttiIbPairsChoose(&a, &b, 1, 1, &pairs[2]));
    EXPECT_EQ(0, memcmp(&pairs[1], &pairs[2], sizeof *pairs)) << "numbers go on";
  }
}

/* A port that is down would be used if it were up: it says where it is, and may reach the GPU if
 * others do. */
TEST(IbPort, OneThatIsDownMayBeUsedLater) {
  tuttiIbHandle h{};
  h.nports = 3;
  for (int i = 0; i < 3; i++)
    h.ports[i] = Port(i == 0 ? "a" : i == 1 ? "b" : "c", {Gid("10.0.0.1", kV2, 3)});
  h.ports[1].up = 0;
  for (int i = 0; i < 3; i++)
    EXPECT_EQ(i == 1, tuttiIbPortLater(&h, i)) << i;
  h.ports[0].gdr = TUTTI_GDR_YES;
  EXPECT_FALSE(tuttiIbPortLater(&h, 1)) << "it does not reach the GPU";
  h.ports[1].gdr = TUTTI_GDR_DOWN;
  EXPECT_TRUE(tuttiIbPortLater(&h, 1)) << "that is to be seen";
  h.ports[1] = Port("b", {Gid("fe80::1", kV2, 1)});
  h.ports[1].up = 0;
  h.ports[0].gdr = TUTTI_GDR_NOT_ASKED;
  EXPECT_FALSE(tuttiIbPortLater(&h, 1)) << "peers have no use for that address";
  h.ports[1].ngids = 0;
  EXPECT_FALSE(tuttiIbPortLater(&h, 1));
}

/* Until a subnet manager has seen it, an InfiniBand port has the prefix that all begin with. */
TEST(IbPort, InfinibandPortsThatAreDownAreLaterWhereTheySayTheyAre) {
  const char *start = "fe80::1", *own = "fe80:0:0:1::1", *other = "fe80:0:0:2::1";
  struct {
    const char *up, *down;
    bool later;
  } cases[] = {
      {start, start, true}, {other, start, false}, {other, own, true}, {nullptr, start, true}};
  for (auto &c : cases) {
    tuttiIbHandle h{};
    h.nports = 2;
    h.ports[0] = Port("a", {Gid(c.up ? c.up : start, TUTTI_GID_IB, 0)}, false);
    h.ports[1] = Port("b", {Gid(c.down, TUTTI_GID_IB, 0)}, false);
    h.ports[0].up = c.up != nullptr;
    h.ports[1].up = 0;
    EXPECT_EQ(c.later, tuttiIbPortLater(&h, 1)) << (c.up ? c.up : "none") << " " << c.down;
  }
}

/* The nearest to the GPU, if that is known and they are no slower than they may be. */
TEST(IbPort, NearPortsComeBeforeFarOnes) {
  const struct {
    int distance[3];
    uint32_t megabits[3];
    std::vector<int> used;
  } cases[] = {
      {{TUTTI_DISTANCE_COUNT, TUTTI_DISTANCE_COUNT, TUTTI_DISTANCE_COUNT}, {1, 1, 1}, {0, 1, 2}},
      {{TUTTI_DISTANCE_SYS, TUTTI_DISTANCE_PIX, TUTTI_DISTANCE_SYS}, {1, 1, 1}, {1}},
      {{TUTTI_DISTANCE_PXB, TUTTI_DISTANCE_COUNT, TUTTI_DISTANCE_PXB}, {1, 1, 1}, {0, 2}},
      {{TUTTI_DISTANCE_SYS, TUTTI_DISTANCE_PIX, TUTTI_DISTANCE_NODE}, {400, 100, 400}, {1}},
      {{TUTTI_DISTANCE_SYS, TUTTI_DISTANCE_PIX, TUTTI_DISTANCE_NODE}, {400, 99, 400}, {1, 2}},
  };
  for (const auto &c : cases) {
    std::vector<tuttiIbPort> mine;
    for (int i = 0; i < 3; i++) {
      mine.push_back(Port("m", {}, false));
      mine[i].distance = static_cast<uint8_t>(c.distance[i]);
      mine[i].megabits = c.megabits[i];
    }
    tuttiIbHandle a = Handle(mine), b = Handle({Port("t", {}, false)});
    tuttiIbPair pairs[3];
    EXPECT_EQ(static_cast<int>(c.used.size()), tuttiIbPairsFull(&a, &b)) << &c - cases;
    ASSERT_EQ(3, tuttiIbPairsChoose(&a, &b, 0, 3, pairs));
    for (size_t qp = 0; qp < 3; qp++)
      EXPECT_EQ(c.used[qp % c.used.size()], pairs[qp].port[0]) << &c - cases;
    ASSERT_EQ(3, tuttiIbPairsChoose(&b, &a, 0, 3, pairs));
    for (size_t qp = 0; qp < 3; qp++)
      EXPECT_EQ(c.used[qp % c.used.size()], pairs[qp].port[1]) << &c - cases;
    for (int i = 0; i < 3; i++)
      EXPECT_TRUE(tuttiIbPortUsable(&a, i, true)) << "rails may be far from some ranks";
  }
}

TEST(IbPort, PairsOfAllQueuePairsAreThoseOfEach) {
  auto rails = [](const char *host, int n, bool flat) {
    std::vector<tuttiIbPort> ports;
    for (int i = 0; i < n; i++) {
      std::string address = "10.0." + std::to_string(flat ? 1 : i) + "." + host;
      if (flat) address += std::to_string(i);
      ports.push_back(Port("mlx", {Gid(address.c_str(), kV2, i)}));
    }
    return Handle(ports);
  };
  for (bool flat : {false, true}) {
    for (int n = 1; n <= TUTTI_IB_PORTS; n += 3) {
      tuttiIbHandle a = rails("1", n, flat), b = rails("2", (n + 1) / 2, flat);
      tuttiIbPair all[TUTTI_IB_PORTS], one;
      ASSERT_EQ(n, tuttiIbPairsChoose(&a, &b, 0, n, all));
      for (int qp = 0; qp < n; qp++) {
        ASSERT_TRUE(tuttiIbPairChoose(&a, &b, qp, &one));
        EXPECT_EQ(0, memcmp(&one, &all[qp], sizeof one));
      }
    }
  }
  tuttiIbHandle here = Handle({Port("a", {Gid("10.0.1.1", kV2, 1)}), Port("b", {})});
  tuttiIbHandle there = Handle({Port("c", {Gid("10.0.1.2", kV2, 1)})});
  tuttiIbPair all[2];
  EXPECT_EQ(1, tuttiIbPairsChoose(&here, &there, 0, 1, all));
  EXPECT_EQ(0, tuttiIbPairsChoose(&here, &there, 0, 0, all));
}

TEST(IbPort, WhatPeersSayIsChecked) {
  auto wrong = [](auto change) {
    tuttiIbHandle h = Handle({Port("rxe0", {Gid("10.0.1.1", kV2, 1)})});
    change(h);
    return tuttiIbPortsCheck(h.ports, h.nports);
  };
  EXPECT_EQ(nullptr, wrong([](tuttiIbHandle &) {}));
  EXPECT_THAT(wrong([](tuttiIbHandle &h) { h.nports = 0; }), HasSubstr("number of ports"));
  EXPECT_THAT(wrong([](tuttiIbHandle &h) { h.nports = TUTTI_IB_PORTS + 1; }),
              HasSubstr("number of ports"));
  EXPECT_THAT(wrong([](tuttiIbHandle &h) { h.ports[0].mtu = 6; }), HasSubstr("MTU"));
  EXPECT_THAT(wrong([](tuttiIbHandle &h) { h.ports[0].ngids = 5; }), HasSubstr("number of GIDs"));
  EXPECT_THAT(wrong([](tuttiIbHandle &h) { h.ports[0].gids[0].type = 3; }), HasSubstr("type"));
  EXPECT_THAT(wrong([](tuttiIbHandle &h) { h.ports[0].up = 2; }), HasSubstr("state"));
  EXPECT_THAT(wrong([](tuttiIbHandle &h) { h.ports[0].gdr = TUTTI_GDR_COUNT; }),
              HasSubstr("GPUDirect RDMA"));
  EXPECT_THAT(wrong([](tuttiIbHandle &h) { h.ports[0].gdrRead = TUTTI_GDR_COUNT; }),
              HasSubstr("GPUDirect RDMA"));
  EXPECT_THAT(wrong([](tuttiIbHandle &h) { memset(h.ports[0].device, 'x', 16); }),
              HasSubstr("no end"));
  EXPECT_THAT(wrong([](tuttiIbHandle &h) { h.ports[0].device[0] = '\n'; }), HasSubstr("printed"));
}

#ifdef TUTTI_HAVE_VERBS
/* Two ranks on two hosts whose ports have these answers. */
std::string lineOf(tuttiGdr first, tuttiGdr second, bool turned = false, std::string *via = nullptr,
                   tuttiGdr read = TUTTI_GDR_YES) {
  tuttiPeer peers[2]{};
  for (int r = 0; r < 2; r++) {
    tuttiIbHandle h = Handle({Port("mlx5_0", {Gid(r ? "10.0.1.2" : "10.0.1.1", kV2, 1)})});
    h.ports[0].gdr = static_cast<uint8_t>(r ? second : first);
    h.ports[0].gdrRead = h.ports[0].gdr == TUTTI_GDR_YES ? (uint8_t)read : h.ports[0].gdr;
    h.megabits = 100000;
    h.socket.addresses.n = 1;
    h.socket.addresses.a[0].v4.sin_family = AF_INET;
    h.socket.addresses.a[0].v4.sin_port = 1;
    memcpy(peers[r].net, &h, sizeof h);
    peers[r].rank = r;
    peers[r].hostId = 1 + static_cast<uint64_t>(r);
    strcpy(peers[r].netName, "IB");
  }
  tuttiPath path{};
  char why[TUTTI_SENTENCE];
  tuttiTransportSelect(&peers[turned], &peers[!turned], &path);
  EXPECT_EQ(&tuttiNetIb, path.net);
  EXPECT_EQ(&tuttiTransportNet, path.transport);
  EXPECT_EQ(first == TUTTI_GDR_YES ? read : first, path.rails[0][0].gdr[0]);
  EXPECT_EQ(second, path.rails[0][0].gdr[1]);
  EXPECT_EQ(first, path.rails[1][0].gdr[1]);
  char word[TUTTI_VIA];
  if (via) *via = tuttiPathVia(&path, &peers[turned], &peers[!turned], word);
  std::string text = tuttiPathText(&path, &peers[turned], &peers[!turned], why);
  return text.substr(0, text.find("; not P2P"));
}

TEST(IbPort, TheLineSaysWhyItIsNotGdrdma) {
  EXPECT_THAT(lineOf(TUTTI_GDR_NOT_ASKED, TUTTI_GDR_NOT_ASKED),
              EndsWith("; not GDRDMA: the buffers are host memory"));
  std::string via;
  EXPECT_THAT(lineOf(TUTTI_GDR_YES, TUTTI_GDR_YES, false, &via), Not(HasSubstr("GDRDMA")));
  EXPECT_EQ(via, "NET/IB/0/GDRDMA");
  lineOf(TUTTI_GDR_YES, TUTTI_GDR_FAR, false, &via);
  EXPECT_EQ(via, "NET/IB/0");
  for (bool turned : {false, true}) {
    EXPECT_THAT(lineOf(TUTTI_GDR_YES, TUTTI_GDR_YES, turned, &via, TUTTI_GDR_NO_READ),
                EndsWith("; not GDRDMA: what is sent is staged, see TUTTI_NET_GDR_READ (rank " +
                         std::to_string(turned) + ")"));
    EXPECT_EQ(via, "NET/IB/0");
    EXPECT_THAT(lineOf(TUTTI_GDR_YES, TUTTI_GDR_FAR, turned),
                EndsWith("; not GDRDMA: GPU and NIC are too far apart (rank 1)"));
    EXPECT_THAT(lineOf(TUTTI_GDR_DETOUR, TUTTI_GDR_NO_DRIVER, turned),
                EndsWith("; not GDRDMA: IOMMU or ACS is in the way (rank 0)"));
  }
}
#endif

TEST(IbPort, Text) {
  tuttiIbPort ports[] = {Port("mlx5_0", {Gid("10.0.1.1", kV2, 3), Gid("fd77::1", kV1, 5)}),
                         Port("mlx5_1", {}), Port("mlx5_2", {}, false)};
  ports[1].up = 0;
  ports[2].lid = 17;
  char text[512];
  EXPECT_STREQ(
      "mlx5_0:1 up, 10.0.1.1 (RoCE v2, index 3), fd77::1 (RoCE v1, index 5); mlx5_1:1 down, "
      "no GID; mlx5_2:1 up, InfiniBand LID 17",
      tuttiIbPortsText(ports, 3, text, sizeof text));
  char small[20];
  EXPECT_EQ(19u, strlen(tuttiIbPortsText(ports, 3, small, sizeof small)));
}

/* ---- cards ---------------------------------------------------------------------------------- */

constexpr size_t kSlot = 65536;
constexpr int kPorts[] = {3, 2}, kTurned[] = {2, 3}; /* of sender and receiver */

tuttiIbHandshake Offer() {
  tuttiIbHandshake c{};
  c.magic = TUTTI_IB_MAGIC;
  c.kind = TUTTI_IB_OFFER;
  c.epoch = 3;
  c.nqps = 4;
  c.slotBytes = kSlot;
  c.control = c.data = 4096;
  for (int i = 0; i < 3; i++) {
    c.qps[i].qpn = static_cast<uint32_t>(17 + i);
    c.qps[i].psn = 99;
    c.qps[i].port[0] = static_cast<uint8_t>(i);
    c.qps[i].port[1] = static_cast<uint8_t>(i % 2);
  }
  c.nports = kPorts[0];
  for (int i = 0; i < c.nports; i++)
    c.ports[i] = Port("m", {Gid("10.0.1.1", kV2, 1)});
  return c;
}

tuttiIbHandshake Answer(const tuttiIbHandshake &offer) {
  tuttiIbHandshake c = offer;
  c.kind = TUTTI_IB_ANSWER;
  c.nports = kPorts[1];
  c.qps[2] = {};
  return c;
}

const char *CheckOffer(const tuttiIbHandshake &c) {
  return tuttiIbHandshakeCheck(&c, kSlot, kPorts, nullptr);
}
const char *CheckAnswer(const tuttiIbHandshake &c, const tuttiIbHandshake &offer) {
  return tuttiIbHandshakeCheck(&c, kSlot, kTurned, &offer);
}

TEST(IbHandshake, GoodOnesPass) {
  EXPECT_EQ(nullptr, CheckOffer(Offer()));
  EXPECT_EQ(nullptr, CheckAnswer(Answer(Offer()), Offer()));
}

TEST(IbHandshake, EachFieldIsChecked) {
  auto offer = [](auto change) {
    tuttiIbHandshake c = Offer();
    change(c);
    return CheckOffer(c);
  };
  auto answer = [](auto change) {
    tuttiIbHandshake c = Answer(Offer());
    change(c);
    return CheckAnswer(c, Offer());
  };
  EXPECT_THAT(offer([](tuttiIbHandshake &c) { c.magic++; }), HasSubstr("no handshake"));
  EXPECT_THAT(offer([](tuttiIbHandshake &c) { c.kind = 7; }), HasSubstr("kind"));
  EXPECT_THAT(offer([](tuttiIbHandshake &c) { c.kind = TUTTI_IB_ANSWER; }), HasSubstr("kind"));
  EXPECT_THAT(offer([](tuttiIbHandshake &c) { c.nqps = 17; }), HasSubstr("number of queue pairs"));
  EXPECT_THAT(offer([](tuttiIbHandshake &c) { c.nqps = -1; }), HasSubstr("number of queue pairs"));
  EXPECT_THAT(offer([](tuttiIbHandshake &c) { c.slotBytes = 1; }), HasSubstr("slots"));
  EXPECT_THAT(offer([](tuttiIbHandshake &c) { c.control = 0; }), HasSubstr("no address"));
  EXPECT_THAT(offer([](tuttiIbHandshake &c) {
                c.small = 4096;
                c.smallBytes = c.slotBytes + 1;
              }),
              HasSubstr("small slots"));
  EXPECT_THAT(offer([](tuttiIbHandshake &c) { c.smallBytes = 64; }), HasSubstr("small slots"));
  EXPECT_THAT(offer([](tuttiIbHandshake &c) { c.qps[2].qpn = 1 << 24; }),
              HasSubstr("out of range"));
  EXPECT_THAT(offer([](tuttiIbHandshake &c) { c.qps[2].psn = 1 << 24; }),
              HasSubstr("out of range"));
  EXPECT_THAT(answer([](tuttiIbHandshake &c) { c.kind = TUTTI_IB_OFFER; }), HasSubstr("kind"));
  EXPECT_THAT(answer([](tuttiIbHandshake &c) { c.epoch--; }), HasSubstr("another offer"));
  EXPECT_THAT(answer([](tuttiIbHandshake &c) { c.nqps = 3; }), HasSubstr("another offer"));
  EXPECT_THAT(answer([](tuttiIbHandshake &c) { c.data = 0; }), HasSubstr("no address"));
  EXPECT_THAT(answer([](tuttiIbHandshake &c) { c.qps[3].qpn = 5; }), HasSubstr("is not there"));
  EXPECT_THAT(offer([](tuttiIbHandshake &c) { c.immediate = 2; }), HasSubstr("out of range"));
  EXPECT_THAT(offer([](tuttiIbHandshake &c) { c.nports = 2; }), HasSubstr("number of ports"));
  EXPECT_THAT(offer([](tuttiIbHandshake &c) { c.ports[2].mtu = 6; }), HasSubstr("MTU"));
  EXPECT_THAT(offer([](tuttiIbHandshake &c) { c.qps[1].port[0] = 3; }), HasSubstr("no port"));
  EXPECT_THAT(offer([](tuttiIbHandshake &c) { c.qps[1].port[1] = 2; }), HasSubstr("no port"));
  EXPECT_THAT(answer([](tuttiIbHandshake &c) { c.nports = 3; }), HasSubstr("number of ports"));
  EXPECT_THAT(answer([](tuttiIbHandshake &c) { c.qps[1].port[1] = 0; }), HasSubstr("other ports"));
  EXPECT_EQ(nullptr, answer([](tuttiIbHandshake &c) { c.qps[1] = {}; })) << "not joined";
}

TEST(IbHandshake, NewsAreCheckedToo) {
  for (auto kind : {TUTTI_IB_AGAIN, TUTTI_IB_NEWS}) {
    tuttiIbHandshake c = Offer();
    c.kind = kind;
    c.nqps = 0;
    EXPECT_EQ(nullptr, CheckOffer(c));
    c.ports[0].up = 2;
    EXPECT_THAT(CheckOffer(c), HasSubstr("state"));
    c.ports[0].up = 1;
    c.data = 0;
    EXPECT_THAT(CheckOffer(c), HasSubstr("no address"));
  }
}

TEST(IbHandshake, WhoAsksForCompletionsGetsThem) {
  tuttiIbHandshake offer = Offer();
  tuttiIbHandshake answer = Answer(offer);
  answer.immediate = 1;
  EXPECT_EQ(nullptr, CheckAnswer(answer, offer)) << "the receiver asks for them";
  offer.immediate = 1;
  EXPECT_EQ(nullptr, CheckAnswer(answer, offer));
  answer.immediate = 0;
  EXPECT_THAT(CheckAnswer(answer, offer), HasSubstr("forgoes completions"));
}

TEST(IbImmediate, LowBitsAreEnough) {
  const uint64_t half = uint64_t{1} << (TUTTI_IB_IMMEDIATE_BITS - 1);
  for (uint64_t least :
       {uint64_t{0}, half - 3, half, 2 * half - 1, 37 * half - 2, uint64_t{1} << 50})
    for (uint64_t ahead : {0, 1, 7, 8})
      for (auto kind : {TUTTI_IB_SHARE, TUTTI_IB_CREDIT, TUTTI_IB_WANT}) {
        uint32_t immediate = tuttiIbImmediate(kind, least + ahead);
        EXPECT_EQ(kind, tuttiIbImmediateKindOf(immediate));
        EXPECT_EQ(least + ahead, tuttiIbImmediateNumber(immediate, least));
      }
}

/* Whatever bytes come: what passes leads to no place outside of the tables. */
TEST(IbHandshake, FuzzedBytes) {
  std::mt19937_64 random(7);
  int passed = 0;
  const tuttiIbHandshake offer = Offer();
  for (int round = 0; round < 200000; round++) {
    tuttiIbHandshake c = round % 2 ? Answer(offer) : offer;
    auto *bytes = reinterpret_cast<uint8_t *>(&c);
    for (uint64_t n = 1 + random() % 4; n > 0; n--) {
      /* The fields in front, or any byte. */
      size_t at = random() % (random() % 2 ? sizeof c : offsetof(tuttiIbHandshake, qps));
      bytes[at] = static_cast<uint8_t>(random() % 3 ? random() : random() % 4);
    }
    if (round % 2 ? CheckAnswer(c, offer) : CheckOffer(c)) continue;
    passed++;
    for (int i = 0; i < c.nports; i++)
      ASSERT_LE(c.ports[i].ngids, TUTTI_IB_GIDS);
    if (c.kind == TUTTI_IB_AGAIN || c.kind == TUTTI_IB_NEWS) continue;
    ASSERT_TRUE(c.nqps >= 1 && c.nqps <= TUTTI_IB_QUEUE_PAIRS);
    for (int i = 0; i < c.nqps; i++) {
      ASSERT_LT(c.qps[i].qpn, 1u << 24);
      ASSERT_TRUE(round % 2 == 0 || !c.qps[i].qpn || offer.qps[i].qpn);
      ASSERT_LT(c.qps[i].port[0], kPorts[0]);
      ASSERT_LT(c.qps[i].port[1], kPorts[1]);
    }
  }
  EXPECT_GT(passed, 1000);
}

/* ---- regions -------------------------------------------------------------------------------- */

TEST(Region, FoundWholeAndUntilRemoved) {
  uint8_t memory[4096];
  uint64_t outer, inner, removals = tuttiRegionsRemoved();
  tuttiRegion found;
  ASSERT_EQ(tuttiSuccess, tuttiRegionAdd(memory, 2048, &outer));
  ASSERT_EQ(tuttiSuccess, tuttiRegionAdd(memory, 100, &inner));
  EXPECT_EQ(outer, tuttiRegionAt(memory)) << "the oldest";
  EXPECT_TRUE(tuttiRegionFind(memory + 2000, 48, &found));
  EXPECT_EQ(outer, found.id);
  EXPECT_FALSE(tuttiRegionFind(memory + 2000, 49, &found));
  EXPECT_FALSE(tuttiRegionFind(memory + 4000, 1, &found));
  EXPECT_TRUE(tuttiRegionRemove(outer));
  EXPECT_FALSE(tuttiRegionRemove(outer));
  EXPECT_FALSE(tuttiRegionFind(memory + 2000, 48, &found));
  EXPECT_TRUE(tuttiRegionFind(memory, 100, &found));
  EXPECT_EQ(inner, found.id);
  EXPECT_TRUE(tuttiRegionRemove(inner));
  EXPECT_EQ(removals + 2, tuttiRegionsRemoved());
}

} // namespace

#include <gmock/gmock.h>

#include <cmath>
#include <functional>

#include "local_world.h"

namespace {
using namespace local;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

tuttiPeer peerOf(int rank, uint64_t process, uint64_t hostId) {
  Shape s;
  s.nranks = 4;
  Rank r(s, rank, process, hostId);
  r.mine.shmSocket = 1;
  return r.mine;
}

struct Choice {
  const tuttiTransport *transport;
  tuttiPath path;
  std::string why;
};
Choice choose(const tuttiPeer &a, const tuttiPeer &b) {
  Choice c;
  tuttiTransportSelect(&a, &b, &c.path);
  c.transport = c.path.transport;
  char why[TUTTI_SENTENCE];
  c.why = tuttiPathText(&c.path, &a, &b, why);
  tuttiPath back;
  tuttiTransportSelect(&b, &a, &back);
  EXPECT_EQ(0, memcmp(&c.path, &back, sizeof back)) << "the same on both ranks";
  return c;
}

TEST(Select, TableIsInOrderOfPriority) {
  const char *names[] = {"P2P", "SHM", "NET"};
  for (int i = 0; i < 3; i++)
    EXPECT_STREQ(names[i], tuttiTransports[i]->name);
  EXPECT_EQ(nullptr, tuttiTransports[3]);
}

TEST(Select, ThreadsUseP2p) {
  Choice c = choose(peerOf(0, 1, 1), peerOf(1, 1, 1));
  ASSERT_EQ(&tuttiTransportP2p, c.transport);
  EXPECT_STREQ("P2P/direct pointer", c.path.via);
  EXPECT_EQ("threads of one process", c.why);
}

TEST(Select, GpusWithoutPeerAccessSayWhose) {
  tuttiPeer a = peerOf(0, 1, 1), b = peerOf(1, 1, 1);
  a.device = b.device = tuttiDeviceCuda;
  a.busId = 0x10000;
  b.busId = 0x20000;
  a.reaches = 1;
  Choice c = choose(a, b);
  EXPECT_EQ(&tuttiTransportShm, c.transport);
  EXPECT_THAT(c.why, HasSubstr("not P2P: the driver gives the GPU of rank 1 no peer access"));
  b.reaches = 1;
  EXPECT_EQ(&tuttiTransportP2p, choose(a, b).transport);
  a.reaches = b.reaches = 0;
  b.busId = a.busId; /* one GPU needs none */
  EXPECT_EQ(&tuttiTransportP2p, choose(a, b).transport);
}

TEST(Select, ProcessesOfAHostUseShmAndSayWhyNotP2p) {
  Choice c = choose(peerOf(0, 1, 1), peerOf(1, 2, 1));
  ASSERT_EQ(&tuttiTransportShm, c.transport);
  EXPECT_STREQ("SHM/direct", c.path.via);
  EXPECT_THAT(c.why, HasSubstr("not P2P: different processes"));
}

TEST(Select, HostsSayWhyNeitherP2pNorShm) {
  Choice c = choose(peerOf(0, 1, 0x1200000000000001), peerOf(1, 2, 0x3400000000000002));
  EXPECT_NE(&tuttiTransportP2p, c.transport);
  EXPECT_NE(&tuttiTransportShm, c.transport);
  EXPECT_THAT(c.why, HasSubstr("not P2P: different processes"));
  EXPECT_THAT(c.why, HasSubstr("not SHM: different hosts (node1/12000000, node2/34000000)"));
}

TEST(Select, EqualProcessIdsOfTwoHostsAreNotOneProcess) {
  Choice c = choose(peerOf(0, 1, 1), peerOf(1, 1, 2));
  EXPECT_NE(&tuttiTransportP2p, c.transport);
  EXPECT_NE(&tuttiTransportShm, c.transport);
}

TEST(Select, EitherRankSwitchesTransportsOff) {
  tuttiPeer a = peerOf(0, 1, 1), b = peerOf(1, 1, 1);
  a.p2pDisabled = 1;
  Choice c = choose(a, b);
  EXPECT_EQ(&tuttiTransportShm, c.transport);
  EXPECT_THAT(c.why, HasSubstr("not P2P: TUTTI_P2P_DISABLE=1"));
  b.shmDisabled = 1;
  c = choose(a, b);
  EXPECT_NE(&tuttiTransportShm, c.transport);
  EXPECT_THAT(c.why, HasSubstr("not SHM: TUTTI_SHM_DISABLE=1"));
}

/* Records are of the time of init; what a later communicator is told changes nothing. */
TEST(Select, LaterSettingsChangeNothing) {
  tuttiPeer a = peerOf(0, 1, 1), b = peerOf(1, 1, 1), c = peerOf(2, 2, 1);
  Setting p2p("TUTTI_P2P_DISABLE", "1"), shm("TUTTI_SHM_DISABLE", "1");
  EXPECT_EQ(&tuttiTransportP2p, choose(a, b).transport);
  EXPECT_EQ(&tuttiTransportShm, choose(a, c).transport);
}

TEST(Select, RankThatTakesNoSegmentsIsNamed) {
  tuttiPeer deaf = peerOf(3, 2, 1);
  deaf.shmSocket = 0;
  EXPECT_THAT(choose(peerOf(0, 1, 1), deaf).why, HasSubstr("rank 3 takes no segments"));
}

// ---- peer records ------------------------------------------------------------------------------

struct Damage {
  const char *name;
  std::function<void(tuttiPeer &)> make;
  tuttiResult_t code;
  const char *text;
};

class PeerCheck : public ::testing::TestWithParam<Damage> {};

TEST_P(PeerCheck, NamesWhatIsWrong) {
  tuttiPeer mine = peerOf(0, 1, 0x11), peer = peerOf(2, 2, 0x12);
  strcpy(mine.config, "a 5");
  strcpy(peer.config, "a 5");
  ASSERT_EQ(tuttiSuccess, tuttiPeerCheck(&peer, 2, &mine)) << tuttiErrorText();
  GetParam().make(peer);
  EXPECT_EQ(GetParam().code, tuttiPeerCheck(&peer, 2, &mine));
  EXPECT_THAT(tuttiErrorText(), AllOf(HasSubstr(GetParam().text), HasSubstr("rank 0 on host node1"),
                                      HasSubstr("rank 2")));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, PeerCheck,
    ::testing::Values(
        Damage{"Version", [](tuttiPeer &p) { p.version = 10203; }, tuttiRemoteError,
               "damaged: its version"},
        Damage{"Host", [](tuttiPeer &p) { memset(p.host, 'x', sizeof p.host); }, tuttiRemoteError,
               "damaged: its host name"},
        Damage{"HostWithEscape", [](tuttiPeer &p) { strcpy(p.host, "a\033[2Jb"); },
               tuttiRemoteError, "damaged: its host name"},
        Damage{"Network", [](tuttiPeer &p) { memset(p.netName, 'x', sizeof p.netName); },
               tuttiRemoteError, "damaged: its network's name"},
        Damage{"DeviceAbove", [](tuttiPeer &p) { p.device = 3; }, tuttiRemoteError, "its device"},
        Damage{"DeviceBelow", [](tuttiPeer &p) { p.device = -1; }, tuttiRemoteError, "its device"},
        Damage{"CudaDevice", [](tuttiPeer &p) { p.cudaDevice = -2; }, tuttiRemoteError,
               "its CUDA device number"},
        Damage{"Gpu", [](tuttiPeer &p) { p.nvlink = 2; }, tuttiRemoteError,
               "damaged: what its GPU can do"},
        Damage{"Pid", [](tuttiPeer &p) { p.pid = 0; }, tuttiRemoteError, "its process number"},
        Damage{"Process", [](tuttiPeer &p) { p.process = 1; }, tuttiRemoteError,
               "its process identity"},
        Damage{"Rank", [](tuttiPeer &p) { p.rank = 1; }, tuttiRemoteError, "damaged: its rank"},
        Damage{"Nranks", [](tuttiPeer &p) { p.nranks = 8; }, tuttiRemoteError, "damaged: its rank"},
        Damage{"Config", [](tuttiPeer &p) { strcpy(p.config, "a 6"); }, tuttiInvalidUsage,
               "differ in their settings: rank 0 on host node1 has \"a 5\", rank 2 on host node2 "
               "has \"a 6\""},
        Damage{"ConfigEndsEarlier", [](tuttiPeer &p) { strcpy(p.config, "a"); }, tuttiInvalidUsage,
               "rank 2 on host node2 has \"a\""},
        Damage{"OtherDevice", [](tuttiPeer &p) { p.device = tuttiDeviceCuda; }, tuttiInvalidUsage,
               "has no GPU that CUDA can use, rank 2 on host node2 has one"},
        Damage{"Settings", [](tuttiPeer &p) { memset(p.config, 'x', sizeof p.config); },
               tuttiRemoteError, "damaged: its settings"},
        Damage{"CopiesBelowNothing", [](tuttiPeer &p) { p.fetch.call = -1; }, tuttiRemoteError,
               "the time its copies take"},
        Damage{"StoresOfNoTime", [](tuttiPeer &p) { p.fetch.store = NAN; }, tuttiRemoteError,
               "the time its copies take"},
        Damage{"CopiesOfNoTime", [](tuttiPeer &p) { p.fetch.kib = NAN; }, tuttiRemoteError,
               "the time its copies take"},
        Damage{"Cores", [](tuttiPeer &p) { p.cores = 0; }, tuttiRemoteError, "its number of cores"},
        Damage{"P2pDisabled", [](tuttiPeer &p) { p.p2pDisabled = 2; }, tuttiRemoteError,
               "its choice of transports"},
        Damage{"ShmDisabled", [](tuttiPeer &p) { p.shmDisabled = -1; }, tuttiRemoteError,
               "its choice of transports"}),
    [](const auto &info) { return info.param.name; });

} // namespace

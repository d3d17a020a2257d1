#include "wireup/team.h"

#include <gtest/gtest.h>

#include <vector>

namespace {

/* Ranks reach those of their group. */
bool sameGroup(const void *ranks, int a, int b) {
  auto &group = *static_cast<const std::vector<int> *>(ranks);
  EXPECT_LT(a, b);
  return group[(size_t)a] == group[(size_t)b];
}

int sizeOf(const std::vector<int> &group) {
  return tuttiTeamSize(&group, (int)group.size(), sameGroup);
}

TEST(WireupTeam, IsTheLargestOfEqualOnes) {
  EXPECT_EQ(sizeOf({0}), 1);
  EXPECT_EQ(sizeOf({0, 0}), 2);
  EXPECT_EQ(sizeOf({0, 0, 0, 0, 0, 0, 0, 0}), 8);
  EXPECT_EQ(sizeOf({0, 0, 0, 0, 1, 1, 1, 1}), 4);
  EXPECT_EQ(sizeOf({0, 0, 0, 0, 1, 1}), 2) << "hosts of different sizes are cut";
  EXPECT_EQ(sizeOf({0, 0, 0, 0, 0, 0, 1, 1, 1}), 3);
}

TEST(WireupTeam, IsOneWhereRanksDoNotFollowEachOther) {
  EXPECT_EQ(sizeOf({0, 1, 0, 1}), 1);
  EXPECT_EQ(sizeOf({0, 1, 1, 0}), 1);
  EXPECT_EQ(sizeOf({0, 0, 1, 2}), 1);
  EXPECT_EQ(sizeOf({0, 0, 1}), 1);
  EXPECT_EQ(sizeOf({0, 1}), 1);
}

/* Not transitive: 1 reaches 0 and 2, which do not reach each other. */
bool neighbours(const void *, int a, int b) {
  return b - a == 1;
}

TEST(WireupTeam, HasOnlyRanksThatAllReachEachOther) {
  EXPECT_EQ(tuttiTeamSize(nullptr, 3, neighbours), 1);
  EXPECT_EQ(tuttiTeamSize(nullptr, 4, neighbours), 2);
}

tuttiPeer gpu(int rank, uint64_t host, uint64_t process) {
  tuttiPeer p = {};
  p.rank = rank;
  p.device = tuttiDeviceCuda;
  p.cudaDevice = rank;
  p.hostId = host;
  p.process = process;
  p.busId = (uint64_t)rank + 1;
  p.reaches = 1;
  p.ipc = 1;
  return p;
}

TEST(WireupTeam, OfPeers) {
  std::vector<tuttiPeer> peers;
  for (int r = 0; r < 8; r++)
    peers.push_back(gpu(r, (uint64_t)r / 4 + 1, (uint64_t)r + 1));
  EXPECT_EQ(tuttiTeamSizeOf(peers.data(), 8), 4);
  peers[5].p2pDisabled = 1;
  EXPECT_EQ(tuttiTeamSizeOf(peers.data(), 8), 1);
  peers[5].p2pDisabled = 0;
  for (int r : {2, 3, 6, 7})
    peers[(size_t)r].reaches = 0; /* pairs of one GPU, say */
  EXPECT_EQ(tuttiTeamSizeOf(peers.data(), 8), 1);
  for (int r = 0; r < 8; r++) { /* all on one GPU */
    peers[(size_t)r].reaches = 0;
    peers[(size_t)r].busId = (uint64_t)r / 4 + 1;
  }
  EXPECT_EQ(tuttiTeamSizeOf(peers.data(), 8), 4);
  for (auto &p : peers) {
    p.device = tuttiDeviceHost;
    p.cudaDevice = -1;
  }
  EXPECT_EQ(tuttiTeamSizeOf(peers.data(), 8), 1) << "host memory has no kernels";
}

} // namespace

// Peer records as ranks would have exchanged them, without ranks: whatever transports add is made
// up.
#ifndef TUTTI_TESTS_WIREUP_WORLD_H_
#define TUTTI_TESTS_WIREUP_WORLD_H_

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/ib/wire.h"
#include "transport/net.h"
#include "transport/socket/endpoint.h"
#include "wireup/paths.h"
#include "wireup/survey.h"

namespace world {

inline tuttiSocketHandle socketHandle(const char *interface, uint32_t megabits) {
  tuttiSocketHandle h{};
  h.addresses.n = 1;
  h.addresses.a[0].v4.sin_family = AF_INET;
  h.addresses.a[0].v4.sin_port = htons(1);
  snprintf(h.interface, sizeof h.interface, "%s", interface);
  h.megabits = megabits;
  return h;
}

// A rank on host memory with sockets; pids are 1000 + process.
inline tuttiPeer peer(int rank, uint64_t process, uint64_t host) {
  tuttiPeer p{};
  p.rank = rank;
  p.device = tuttiDeviceHost;
  p.cudaDevice = -1;
  p.process = process;
  p.pid = 1000 + (int32_t)process;
  p.hostId = host << 32;
  p.cores = 8;
  p.shmSocket = 1;
  snprintf(p.host, sizeof p.host, "node%d", (int)host);
  snprintf(p.netName, sizeof p.netName, "Socket");
  tuttiSocketHandle h = socketHandle("eth0", 25000);
  memcpy(p.net, &h, sizeof h);
  return p;
}

inline tuttiPeer gpu(int rank, uint64_t process, uint64_t host, uint64_t bus) {
  tuttiPeer p = peer(rank, process, host);
  p.device = tuttiDeviceCuda;
  p.cudaDevice = 0;
  p.busId = bus;
  p.reaches = p.ipc = p.nvlink = 1;
  return p;
}

struct Port {
  const char *device, *address;
  bool ethernet = true;
  tuttiGdr gdr = TUTTI_GDR_NOT_ASKED;
};

inline void giveIb(tuttiPeer &p, const std::vector<Port> &ports, bool forced = false) {
  tuttiIbHandle h{};
  h.socket = socketHandle("eth0", 25000);
  h.megabits = 100000 * (uint32_t)ports.size();
  h.forced = forced;
  for (const Port &port : ports) {
    tuttiIbPort &to = h.ports[h.nports++];
    tuttiIbGid gid{};
    snprintf(to.device, sizeof to.device, "%s", port.device);
    to.port = to.up = 1;
    to.mtu = 5;
    to.ethernet = port.ethernet;
    to.gdr = to.gdrRead = (uint8_t)port.gdr;
    gid.type = TUTTI_GID_ROCE2;
    gid.gid[10] = gid.gid[11] = 0xff;
    EXPECT_EQ(1, inet_pton(AF_INET, port.address, gid.gid + 12));
    tuttiIbPortAddGid(&to, &gid, "", 0);
  }
  memcpy(p.net, &h, sizeof h);
  snprintf(p.netName, sizeof p.netName, "IB");
}

inline std::string text(const tuttiPath &path, const tuttiPeer &a, const tuttiPeer &b) {
  char buf[TUTTI_SENTENCE];
  return tuttiPathText(&path, &a, &b, buf);
}

inline std::vector<tuttiPath> rows(const std::vector<tuttiPeer> &peers, int rank) {
  std::vector<tuttiPath> paths(peers.size());
  memset(paths.data(), 0x5a, paths.size() * sizeof paths[0]);
  tuttiPathsFill(peers.data(), rank, (int)peers.size(), paths.data());
  return paths;
}

// In front of the real transports: connects nobody, and counts how often it is asked and explains.
struct Counts {
  int asked, explained;
};
extern Counts counts;
extern const tuttiTransport counting;

} // namespace world

#endif

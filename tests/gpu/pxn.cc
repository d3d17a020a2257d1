/* Messages that leave by the NIC beside another GPU of the host, over the software HCA: ranks 0 and
 * 2 are beside the first NIC of their host, 1 and 3 beside the second, as a file of the topology
 * tells each, whatever GPUs there are. */
#include "gpu/exchange.h"
#include "processes.h"

#include <fstream>
#include <sstream>

namespace {

constexpr int kRanks = 4;
const size_t kSizes[] = {1, 8, 1000, 100001, 1 << 20, 9 << 20};

class GpuPxn : public GpuTest {
protected:
  void SetUp() override {
    const char *net = getenv("TUTTI_TEST_NET");
    GpuTest::SetUp();
    if (!net || strcmp(net, "IB") != 0)
      GTEST_SKIP() << "needs the software HCA with two devices: see tests/softhca/CMakeLists.txt";
  }
};

/* The GPU below one switch with a NIC, the other NIC below another. */
std::string topologyOf(int rank) {
  char bus[32] = "";
  EXPECT_EQ(cudaDeviceGetPCIBusId(bus, sizeof bus, rank % gpus()), cudaSuccess);
  auto nic = [](int k) {
    return "<node kind=\"Nic\" name=\"softhca" + std::to_string(k) + "\" up=\"1\" bus=\"00f" +
           std::to_string(k) + ":01:00.0\"/>";
  };
  auto below = [](int k, const std::string &what) {
    std::string place = "00f" + std::to_string(k) + ":00:00.0";
    return "<node kind=\"Switch\" name=\"" + place + "\" bus=\"" + place +
           "\" class=\"0x060400\">" + what + "</node>";
  };
  std::string path = testing::TempDir() + "pxn." + std::to_string(getpid()) + ".xml";
  std::ofstream(path) << "<topology version=\"1\" host=\"test\">"
                         "<node kind=\"Numa\" name=\"numa0\" numa=\"0\">"
                         "<node kind=\"HostBridge\" name=\"pci0000:00\">"
                      << below(rank % 2, nic(rank % 2) + "<node kind=\"Gpu\" name=\"" + bus +
                                             "\" bus=\"" + bus + "\"/>")
                      << below(1 - rank % 2, nic(1 - rank % 2)) << "</node></node></topology>";
  return path;
}

void work(RankProcesses &processes, int r) {
  std::string topology = topologyOf(r), log = topology + ".log";
  setenv("TUTTI_TOPO_FILE", topology.c_str(), 1);
  setenv("TUTTI_HOSTID", std::to_string(r / 2).c_str(), 1);
  setenv("TUTTI_NET", "IB", 1);
  setenv("SOFTHCA_MORE", "device softhca0;device softhca1", 1);
  setenv("TUTTI_NET_GDR", "require", 1);
  setenv("TUTTI_DEBUG", "INFO", 1);
  setenv("TUTTI_DEBUG_FILE", log.c_str(), 1);
  Gpu gpu(r, (size_t)96 << 20);
  Exchange exchange(gpu, r, kRanks, 9 << 20);
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.device = tuttiDeviceCuda;
  tuttiComm_t comm;
  if (processes.keep(tuttiCommInitRankConfig(&comm, kRanks, processes.id(), r, &config))) _exit(2);
  for (size_t bytes : kSizes)
    exchange.rounds(comm, bytes, 3);
  exchange.replay(comm, 100001, 3);
  processes.keep(tuttiCommDestroy(comm));
  std::ifstream file(log);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::ostringstream line;
  int crossing = 3 - r;
  line << "rank " << r << " -> rank " << crossing << " [send] via NET/IB/" << crossing % 2
       << "/GDRDMA by rank " << (r ^ 1) << ", whose GPU is beside softhca" << crossing % 2;
  EXPECT_THAT(text, testing::HasSubstr(line.str()));
  unlink(log.c_str());
  unlink(topology.c_str());
}

TEST_F(GpuPxn, MessagesCrossNoRail) {
  RankProcesses processes;
  processes.start(kRanks, [&](int r) { work(processes, r); });
  processes.waitAll(150);
  processes.expectCleanEnds();
}

} // namespace

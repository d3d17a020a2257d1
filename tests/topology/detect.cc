#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "sysfs_tree.h"
#include "topology/topology.h"

namespace {

struct Free {
  void operator()(tuttiTopology *t) const { tuttiTopologyFree(t); }
};
using Topology = std::unique_ptr<tuttiTopology, Free>;

Topology detect(const std::string &sysfs) {
  tuttiTopology *t = nullptr;
  EXPECT_EQ(tuttiTopologyDetect(sysfs.c_str(), &t), tuttiSuccess);
  return Topology(t);
}

const tuttiNode &node(const Topology &t, const char *name) {
  int i = tuttiTopologyFind(t.get(), name);
  EXPECT_GE(i, 0) << name;
  return t->nodes[i < 0 ? 0 : i];
}

std::string distance(const Topology &t, const char *a, const char *b) {
  int i = tuttiTopologyFind(t.get(), a), j = tuttiTopologyFind(t.get(), b);
  EXPECT_GE(i, 0) << a;
  EXPECT_GE(j, 0) << b;
  tuttiDistance d = tuttiTopologyDistance(t.get(), i, j);
  EXPECT_EQ(tuttiTopologyDistance(t.get(), j, i), d) << "the way back is as far";
  std::string text = tuttiDistanceTexts[d];
  return text.substr(0, text.find(" ("));
}

std::string parent(const Topology &t, const char *name) {
  return t->nodes[node(t, name).parent].name;
}

int count(const Topology &t, tuttiNodeKind kind) {
  int n = 0;
  for (int i = 0; i < t->count; i++)
    n += t->nodes[i].kind == kind;
  return n;
}

/* Depth first: each node's parent is the node before it or one of that node's ancestors. */
void expectTree(const Topology &t) {
  ASSERT_GE(t->count, 1);
  EXPECT_EQ(t->nodes[0].kind, tuttiNodeSystem);
  EXPECT_EQ(t->nodes[0].parent, -1);
  for (int i = 1; i < t->count; i++) {
    int up = i - 1;
    while (up >= 0 && up != t->nodes[i].parent)
      up = t->nodes[up].parent;
    EXPECT_GE(up, 0) << t->nodes[i].name;
  }
}

TEST(Detect, EightGpusAndNicsBehindSwitches) {
  SysfsTree tree("dgx");
  Topology t = detect(tree.root());
  expectTree(t);
  EXPECT_EQ(count(t, tuttiNodeNuma), 2);
  EXPECT_EQ(count(t, tuttiNodeGpu), 8) << "the management controller's display is none";
  EXPECT_EQ(count(t, tuttiNodeSwitch), 4);
  EXPECT_EQ(count(t, tuttiNodeNic), 8 + 8 + 2) << "net and infiniband, eno1, docker0; not lo";
  const char *gpu = "0000:18:00.0", *farGpu = "0000:9a:00.0";
  EXPECT_EQ(distance(t, gpu, gpu), "SELF");
  EXPECT_EQ(distance(t, gpu, "mlx5_0"), "PIX");
  EXPECT_EQ(distance(t, "ib0", "mlx5_0"), "PIX") << "one device";
  EXPECT_EQ(distance(t, "mlx5_0", "mlx5_1"), "PIX");
  EXPECT_EQ(distance(t, gpu, "mlx5_2"), "NODE");
  EXPECT_EQ(distance(t, gpu, farGpu), "SYS");
  EXPECT_EQ(distance(t, farGpu, "mlx5_4"), "PIX");
  EXPECT_EQ(distance(t, gpu, "docker0"), "SYS");

  const tuttiNode &nic = node(t, "mlx5_4");
  EXPECT_EQ(nic.numa, 1);
  EXPECT_TRUE(nic.up);
  EXPECT_FLOAT_EQ(nic.linkGBs, 50);
  EXPECT_STREQ(nic.driver, "mlx5_core");
  EXPECT_EQ(nic.busId, 0x9b0000u);
  const tuttiNode &card = node(t, gpu);
  EXPECT_EQ(card.class_, 0x030200u);
  EXPECT_EQ(card.vendor, 0x10deu);
  EXPECT_EQ(card.device, 0x2330u);
  EXPECT_FLOAT_EQ(card.linkGBs, 63.015f) << "32 GT/s, 16 lanes, 128b/130b";
  EXPECT_FLOAT_EQ(node(t, "0000:02:00.0").linkGBs, 0.25f) << "2.5 GT/s, 1 lane, 8b/10b";
  EXPECT_STREQ(node(t, "numa1").cpus, "56-111,168-223");
  EXPECT_FALSE(node(t, "docker0").up);
  EXPECT_EQ(tuttiTopologyFind(t.get(), "0000:03:00.0"), -1) << "leads to no NIC or GPU";
}

TEST(Detect, NicBehindTheOtherSocket) {
  SysfsTree tree("two_sockets");
  Topology t = detect(tree.root());
  expectTree(t);
  EXPECT_EQ(distance(t, "0000:18:00.0", "ens2f0"), "SYS");
  EXPECT_EQ(distance(t, "0000:18:00.0", "ens1"), "NODE");
  EXPECT_EQ(distance(t, "0000:40:00.0", "ens1"), "PXB") << "a switch behind a switch";
  EXPECT_EQ(distance(t, "ens2f0", "ens2f1"), "PIX") << "two functions behind one port";
  EXPECT_EQ(distance(t, "ens2f0", "bond0"), "SYS");
  EXPECT_EQ(node(t, "ens2f0").numa, 1);
  EXPECT_FLOAT_EQ(node(t, "ens1").linkGBs, 6.25f);
  EXPECT_FLOAT_EQ(node(t, "ens2f1").linkGBs, 0) << "speed -1";
  EXPECT_FALSE(node(t, "ens2f1").up);
  EXPECT_EQ(parent(t, "rxe0"), "system");
  EXPECT_EQ(node(t, "rxe0").kind, tuttiNodeNic);
  EXPECT_EQ(tuttiTopologyFind(t.get(), "bonding_masters"), -1);
}

TEST(Detect, FlatVirtualMachine) {
  SysfsTree tree("flat_vm");
  Topology t = detect(tree.root());
  expectTree(t);
  EXPECT_EQ(parent(t, "pci0000:00"), "numa0") << "numa_node -1, but there is only one";
  EXPECT_EQ(node(t, "ens5").numa, 0);
  EXPECT_EQ(distance(t, "0000:00:04.0", "ens5"), "PHB");
  EXPECT_EQ(distance(t, "ens5", "eth1"), "PHB");
  EXPECT_EQ(distance(t, "ens5", "ens9"), "NODE");
  EXPECT_FLOAT_EQ(node(t, "ens5").linkGBs, 0);
  EXPECT_FLOAT_EQ(node(t, "0000:00:04.0").linkGBs, 0);
  EXPECT_EQ(parent(t, "eth1"), "0000:00:06.0") << "below a virtio device below the function";
  EXPECT_FALSE(node(t, "eth1").up);
  EXPECT_EQ(node(t, "10000:e1:00.0").busId, 0x10000e10000u);
  EXPECT_EQ(node(t, "10000:e1:00.0").linkGBs, 0);
  EXPECT_FLOAT_EQ(node(t, "ens9").linkGBs, 0) << "speed 2^32 - 1 stands for unknown";
}

TEST(Detect, VirtualMachineWithoutPci) {
  SysfsTree tree("no_pci_vm");
  Topology t = detect(tree.root());
  expectTree(t);
  EXPECT_EQ(t->count, 4);
  EXPECT_STREQ(node(t, "numa0").cpus, "0-1");
  EXPECT_EQ(parent(t, "eth0"), "system");
  EXPECT_TRUE(node(t, "eth0").up);
  EXPECT_FALSE(node(t, "ifb0").up);
}

TEST(Detect, NothingToRead) {
  TempDir empty;
  for (const std::string &path : {empty.path().string(), empty.path().string() + "/none"}) {
    Topology t = detect(path);
    expectTree(t);
    ASSERT_EQ(t->count, 2);
    EXPECT_STREQ(t->nodes[1].name, "numa0");
  }
}

TEST(Detect, BrokenLinksAndStrangeNames) {
  TempDir dir;
  std::filesystem::create_directories(dir.path() / "class/net");
  std::filesystem::create_symlink("../../nowhere", dir.path() / "class/net/eth0");
  std::filesystem::create_symlink("loop", dir.path() / "class/net/loop");
  std::filesystem::create_symlink("/", dir.path() / "class/net/outside");
  std::filesystem::create_directories(dir.path() / "class/net/a\x1b[31m\xff");
  std::filesystem::create_directories(dir.path() / "devices/system/node/node0x");
  std::filesystem::create_directories(dir.path() / "devices/system/node/node99999999999999999999");
  Topology t = detect(dir.path().string());
  expectTree(t);
  ASSERT_EQ(t->count, 3);
  EXPECT_STREQ(t->nodes[1].name, "numa0");
  EXPECT_STREQ(t->nodes[2].name, "a?[31m?") << "names go to terminals";
}

TEST(Detect, ThisMachine) {
  Topology t = detect("/sys");
  expectTree(t);
  EXPECT_GE(count(t, tuttiNodeNuma), 1);
}

TEST(Detect, PrintedTree) {
  SysfsTree tree("two_sockets");
  Topology t = detect(tree.root());
  char *text = nullptr;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  tuttiTopologyPrint(t.get(), out);
  fclose(out);
  EXPECT_THAT(text, testing::HasSubstr("\n  numa1  CPUs 16-31\n    pci0000:85  PCI host bridge\n"
                                       "      0000:85:00.0  PCI port 8086:2030, 7.88 GB/s "
                                       "(pcieport)\n"));
  EXPECT_THAT(text, testing::HasSubstr("ens2f0  NIC, up, 3.12 GB/s (mlx5_core)\n"));
  free(text);
}

} // namespace

/* GPUDirect RDMA on recorded machines: the answer, and that the sentence says what to mend. */
#include "topology/gdr.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/settings.h"
#include "sysfs_tree.h"

using testing::HasSubstr;

namespace {

constexpr uint64_t kDgxGpu = 0x180000; /* beside mlx5_0 */

struct Question {
  std::string machine;
  uint64_t gpu = kDgxGpu;
  std::string nic = "mlx5_0", level = "PXB";
  bool able = true, dmabuf = false;
  std::string read = "auto";
  bool preAmpere = false;
};

struct Answer {
  tuttiGdr answer, read;
  std::string why;
};

/* A recorded machine, detected once. */
struct Machine {
  SysfsTree tree;
  tuttiTopology *t = nullptr;
  explicit Machine(const std::string &name) : tree(name) {
    EXPECT_EQ(tuttiTopologyDetect(tree.root().c_str(), &t), tuttiSuccess);
  }
  ~Machine() { tuttiTopologyFree(t); }
};

Answer ask(const Question &question) {
  static std::map<std::string, std::unique_ptr<Machine>> machines;
  std::unique_ptr<Machine> &machine = machines[question.machine];
  if (!machine) machine = std::make_unique<Machine>(question.machine);
  tuttiGdrQuestion q{};
  q.gpu = question.gpu;
  q.nic = question.nic.c_str();
  q.level = question.level.c_str();
  q.able = question.able;
  q.dmabuf = question.dmabuf;
  q.read = question.read.c_str();
  q.preAmpere = question.preAmpere;
  char why[TUTTI_GDR_SENTENCE];
  tuttiGdrAnswer answer = tuttiGdrDecide(machine->t, machine->tree.root().c_str(), &q, why);
  return {answer.write, answer.read, why};
}

void expect(const Question &question, tuttiGdr answer, const std::string &why) {
  Answer a = ask(question);
  bool staged = a.why.find("what is sent is staged") != std::string::npos;
  EXPECT_EQ(a.read, staged ? TUTTI_GDR_NO_READ : answer) << question.machine << ": " << a.why;
  EXPECT_EQ(a.answer, answer) << question.machine << ": " << a.why;
  EXPECT_EQ(a.why, why) << question.machine;
}

const char kUnread[] = ", unless ACS redirects it, which only root can see";
const char kPix[] = "PIX (at most one PCIe switch)";

/* From mlx5_0 to its neighbour. */
std::string yes(const std::string &how, const std::string &level = "PXB") {
  return std::string("GPUDirect RDMA from mlx5_0 to GPU 0000:18:00.0, distance ") + kPix +
         ", TUTTI_NET_GDR_LEVEL=" + level + ": by " + how;
}
std::string no(const std::string &why) {
  return std::string("no GPUDirect RDMA from mlx5_0 to GPU 0000:18:00.0, distance ") + kPix +
         ", TUTTI_NET_GDR_LEVEL=PXB: " + why;
}

TEST(Gdr, NextToTheGpu) {
  expect({"dgx_acs_off"}, TUTTI_GDR_YES, yes("nvidia_peermem"));
  expect({.machine = "dgx_acs_off", .dmabuf = true}, TUTTI_GDR_YES, yes("dma-buf"));
  expect({.machine = "dgx", .dmabuf = true}, TUTTI_GDR_YES, yes(std::string("dma-buf") + kUnread));
}

TEST(Gdr, EachGpuOfEightHasANicOfItsOwn) {
  const uint64_t gpus[] = {0x180000, 0x1a0000, 0x3a0000, 0x3c0000,
                           0x9a0000, 0x9c0000, 0xda0000, 0xdc0000};
  for (int g = 0; g < 8; g++)
    for (int n = 0; n < 8; n++) {
      Answer a = ask(
          {.machine = "dgx", .gpu = gpus[g], .nic = "mlx5_" + std::to_string(n), .dmabuf = true});
      EXPECT_EQ(a.answer, g / 2 == n / 2 ? TUTTI_GDR_YES : TUTTI_GDR_FAR) << a.why;
      EXPECT_THAT(a.why, HasSubstr(g / 2 == n / 2   ? kPix
                                   : g / 4 == n / 4 ? "NODE (two host bridges of one NUMA node)"
                                                    : "SYS (two CPU sockets)"));
    }
}

TEST(Gdr, NoModule) {
  expect(
      {"dgx"}, TUTTI_GDR_NO_DRIVER,
      no("no dma-buf (open kernel modules of the NVIDIA driver, Linux 5.12, rdma-core 34) and no "
         "module in its place: modprobe nvidia-peermem"));
  expect({.machine = "dgx_acs_off", .able = false, .dmabuf = true}, TUTTI_GDR_NO_DRIVER,
         no("this model of GPU does not support it"));
}

TEST(Gdr, OldNamesOfTheModule) {
  expect({"dgx_old_module"}, TUTTI_GDR_YES, yes(std::string("nv_peer_mem") + kUnread));
  expect({"dgx_container"}, TUTTI_GDR_YES, yes(std::string("the memory peer nv_mem") + kUnread));
}

TEST(Gdr, NicBehindTheOtherSocket) {
  expect({.machine = "two_sockets_rdma", .nic = "mlx5_1"}, TUTTI_GDR_FAR,
         "no GPUDirect RDMA from mlx5_1 to GPU 0000:18:00.0, distance SYS (two CPU sockets), "
         "TUTTI_NET_GDR_LEVEL=PXB: use a nearer NIC (TUTTI_IB_HCA), or raise the level");
  expect(
      {.machine = "two_sockets_rdma", .nic = "mlx5_1", .level = "SYS"}, TUTTI_GDR_YES,
      "GPUDirect RDMA from mlx5_1 to GPU 0000:18:00.0, distance SYS (two CPU sockets), "
      "TUTTI_NET_GDR_LEVEL=SYS: by nvidia_peermem; what is sent is staged: NICs are slow to read "
      "across sockets (TUTTI_NET_GDR_READ=1 lets them)");
  Answer a = ask({.machine = "two_sockets_rdma", .gpu = 0x400000});
  EXPECT_EQ(a.answer, TUTTI_GDR_YES);
  EXPECT_THAT(a.why, HasSubstr("PXB (several PCIe switches)"));
  a = ask({.machine = "two_sockets_rdma", .gpu = 0x400000, .level = "PIX"});
  EXPECT_EQ(a.answer, TUTTI_GDR_FAR) << a.why;
}

TEST(Gdr, SoftwareAndUnknownDevices) {
  expect({.machine = "two_sockets_rdma", .nic = "rxe0"}, TUTTI_GDR_NO_PATH,
         "no GPUDirect RDMA from rxe0 to GPU 0000:18:00.0, distance unknown, "
         "TUTTI_NET_GDR_LEVEL=PXB: no PCI path between them in sysfs (software? hidden /sys?); see "
         "TUTTI_TOPO_FILE");
  EXPECT_EQ(ask({.machine = "dgx", .nic = "mlx5_9"}).answer, TUTTI_GDR_NO_PATH);
  EXPECT_EQ(ask({.machine = "dgx", .gpu = 0x990000000}).answer, TUTTI_GDR_NO_PATH);
  EXPECT_EQ(ask({.machine = "no_pci_vm"}).answer, TUTTI_GDR_NO_PATH);
  EXPECT_EQ(ask({.machine = "two_sockets_rdma", .nic = "rxe0", .level = "SYS"}).answer,
            TUTTI_GDR_YES)
      << "any distance will do";
}

TEST(Gdr, ReadsAreForTheSettingToSay) {
  expect({.machine = "dgx_acs_off", .read = "0"}, TUTTI_GDR_YES,
         yes("nvidia_peermem; what is sent is staged: TUTTI_NET_GDR_READ=0"));
  expect({.machine = "dgx_acs_off", .read = "1"}, TUTTI_GDR_YES, yes("nvidia_peermem"));
  Question across{.machine = "two_sockets_rdma", .nic = "mlx5_1", .level = "SYS", .read = "1"};
  EXPECT_EQ(ask(across).read, TUTTI_GDR_YES);
  across.read = "0";
  EXPECT_EQ(ask(across).read, TUTTI_GDR_NO_READ);
  Question software{.machine = "two_sockets_rdma", .nic = "rxe0", .level = "SYS", .read = "0"};
  EXPECT_EQ(ask(software).answer, TUTTI_GDR_YES);
  EXPECT_EQ(ask(software).read, TUTTI_GDR_NO_READ);
  software.level = "PXB";
  EXPECT_EQ(ask(software).read, TUTTI_GDR_NO_PATH) << "where nothing works, that is the answer";
}

/* As NCCL has it: of several GPUs without NVLinks, which machines from sysfs are. */
TEST(Gdr, GpusBeforeAmpereAreNotRead) {
  Answer a = ask({.machine = "dgx_acs_off", .preAmpere = true});
  EXPECT_EQ(a.read, TUTTI_GDR_NO_READ);
  EXPECT_THAT(a.why, HasSubstr("slow to read this GPU, which has no NVLinks"));
  EXPECT_EQ(ask({.machine = "dgx_acs_off", .read = "1", .preAmpere = true}).read, TUTTI_GDR_YES);
  EXPECT_EQ(
      ask({.machine = "flat_vm_rdma", .gpu = 0x000400, .level = "PHB", .preAmpere = true}).read,
      TUTTI_GDR_YES)
      << "it is the only one";
  Machine machine("dgx_acs_off");
  tuttiTopology *t = machine.t;
  int gpu = tuttiTopologyFind(t, "0000:18:00.0"), other = tuttiTopologyFind(t, "0000:1a:00.0");
  tuttiNode link{};
  link.kind = tuttiNodeNvlink;
  link.parent = gpu;
  std::vector<tuttiNode> nodes(t->nodes, t->nodes + t->count);
  nodes.push_back(link); // out of order, which only those mind who walk the tree
  tuttiTopology linked = *t;
  linked.nodes = nodes.data();
  linked.count++;
  tuttiGdrQuestion q{};
  q.nic = "mlx5_0";
  q.level = "PXB";
  q.read = "auto";
  q.able = q.dmabuf = q.preAmpere = true;
  char why[TUTTI_GDR_SENTENCE];
  q.gpu = t->nodes[gpu].busId;
  EXPECT_EQ(tuttiGdrDecide(&linked, machine.tree.root().c_str(), &q, why).read, TUTTI_GDR_YES);
  q.gpu = t->nodes[other].busId;
  EXPECT_EQ(tuttiGdrDecide(&linked, machine.tree.root().c_str(), &q, why).read, TUTTI_GDR_NO_READ);
}

TEST(Gdr, OtherWordsForReadsAreRefused) {
  for (const char *wrong : {"2", "yes", "-1", "Auto"}) {
    setenv("TUTTI_NET_GDR_READ", wrong, 1);
    EXPECT_EQ(tuttiSettingsLoad(), tuttiInvalidArgument) << wrong;
    EXPECT_THAT(tuttiGetLastError(nullptr), HasSubstr("accepted: 0, 1 or auto"));
  }
  unsetenv("TUTTI_NET_GDR_READ");
  setenv("NCCL_NET_GDR_READ", "0", 1);
  EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess);
  EXPECT_STREQ(tuttiSettingString(TUTTI_SETTING_NET_GDR_READ), "0");
  unsetenv("NCCL_NET_GDR_READ");
  EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess);
}

TEST(Gdr, FlatVirtualMachine) {
  const uint64_t gpu = 0x000400;
  expect({.machine = "flat_vm_rdma", .gpu = gpu}, TUTTI_GDR_FAR,
         "no GPUDirect RDMA from mlx5_0 to GPU 0000:00:04.0, distance PHB (a host bridge of the "
         "CPU), TUTTI_NET_GDR_LEVEL=PXB: show the PCIe switches that a virtual machine hides in "
         "TUTTI_TOPO_FILE, or raise the level");
  EXPECT_EQ(ask({.machine = "flat_vm_rdma", .gpu = gpu, .level = "PHB"}).answer, TUTTI_GDR_YES);
}

TEST(Gdr, IommuTranslates) {
  const std::string mend =
      "the IOMMU translates (group type DMA-FQ), through the CPU: boot with iommu=pt";
  expect({"dgx_iommu"}, TUTTI_GDR_DETOUR, no(mend));
  expect({.machine = "dgx_iommu", .level = "PHB"}, TUTTI_GDR_YES,
         yes("nvidia_peermem, but slowly: " + mend, "PHB"));
}

TEST(Gdr, AcsRedirects) {
  expect({"dgx_acs_on"}, TUTTI_GDR_DETOUR,
         no("ACS of the bridge 0000:17:04.0 redirects to the CPU: switch it off in the BIOS or by "
            "setpci -s 0000:17:04.0 ECAP_ACS+6.w=0"));
  Answer a = ask({.machine = "dgx_acs_on", .level = "SYS"});
  EXPECT_EQ(a.answer, TUTTI_GDR_YES);
  EXPECT_THAT(a.why, HasSubstr("but slowly: ACS of"));
  a = ask({.machine = "dgx_acs_on", .nic = "mlx5_4", .level = "SYS"});
  EXPECT_EQ(a.answer, TUTTI_GDR_YES);
  EXPECT_THAT(a.why, Not(HasSubstr("ACS"))) << "the way is through the CPU in any case";
}

TEST(Gdr, LevelsAreThoseOfNccl) {
  auto far = [](const char *level, uint64_t gpu, const char *nic) {
    return ask({.machine = "dgx", .gpu = gpu, .nic = nic, .level = level, .dmabuf = true}).answer ==
           TUTTI_GDR_FAR;
  };
  const char *nics[] = {"mlx5_0", "mlx5_2", "mlx5_4"}; /* PIX, NODE, SYS */
  const struct {
    const char *name, *number;
    int nics;
  } levels[] = {
      {"LOC", "0", 0}, {"PIX", "1", 1}, {"PXB", "2", 1}, {"PHB", "3", 2}, {"SYS", "4", 3}};
  for (const auto &level : levels)
    for (int n = 0; n < 3; n++) {
      EXPECT_EQ(far(level.name, kDgxGpu, nics[n]), n >= level.nics) << level.name << nics[n];
      EXPECT_EQ(far(level.number, kDgxGpu, nics[n]), n >= level.nics) << level.number << nics[n];
    }
  EXPECT_FALSE(far("7", kDgxGpu, "mlx5_4"));
}

TEST(Gdr, OtherLevelsAreRefused) {
  for (const char *wrong : {"NODE", "pix", "PIX ", "C P", "10", "-1", "LOCPIX"}) {
    setenv("TUTTI_NET_GDR_LEVEL", wrong, 1);
    EXPECT_EQ(tuttiSettingsLoad(), tuttiInvalidArgument) << wrong;
    EXPECT_THAT(tuttiGetLastError(nullptr), HasSubstr("accepted: LOC, PIX, PXB, PHB or SYS"));
  }
  for (const char *right : {"LOC", "SYS", "0", "4"}) {
    setenv("TUTTI_NET_GDR_LEVEL", right, 1);
    EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess) << right;
  }
  unsetenv("TUTTI_NET_GDR_LEVEL");
  EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess);
  EXPECT_STREQ(tuttiSettingString(TUTTI_SETTING_NET_GDR_LEVEL), "PXB");
}

TEST(Gdr, ClausesForTheLineOfAChannel) {
  EXPECT_STREQ(tuttiGdrClauses[TUTTI_GDR_NOT_ASKED], "the buffers are host memory");
  EXPECT_STREQ(tuttiGdrClauses[TUTTI_GDR_OFF], "TUTTI_NET_GDR=off");
}

} // namespace

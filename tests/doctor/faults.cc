/* Recorded machines: of healthy ones the doctor says no warning, and of one with a fault it names
 * that fault and no other. */
#include <gmock/gmock.h>

#include <functional>

#include "recorded.h"

using testing::HasSubstr;
using testing::Not;

namespace {

const char *const kHealthy[] = {"dgx", "switches", "sockets", "roce", "cpu", "container", "soft"};

class Healthy : public testing::TestWithParam<const char *> {};

TEST_P(Healthy, NothingIsWrong) {
  Examined e{Recorded(GetParam())};
  EXPECT_EQ(e.text(TUTTI_FOUND_WARNING), "");
  EXPECT_GT(e.findings()->n, 0) << "something was looked at";
}

INSTANTIATE_TEST_SUITE_P(Machines, Healthy, testing::ValuesIn(kHealthy),
                         [](const auto &info) { return info.param; });

struct Fault {
  const char *name, *machine;
  std::function<void(Recorded &r)> make;
  tuttiSeverity severity;
  const char *id, *subject, *sentence, *remedy; /* parts of them; the subject is whole */
};

void PrintTo(const Fault &fault, std::ostream *out) {
  *out << fault.name;
}

const char kEightGpus[] = "0000:18:00.0, 0000:1a:00.0, 0000:3a:00.0, 0000:3c:00.0, 0000:9a:00.0, "
                          "0000:9c:00.0, 0000:da:00.0, 0000:dc:00.0";
const char kAcsOn[] = "34:40 40:10 100:01 00 82 14 148:0d 00 01 00 1f 00 1d";

const Fault kFaults[] = {
    /* GPUs */
    {"GpuWithoutDriver", "dgx", [](Recorded &r) { r.drop("*0000:1a:00.0/driver"); },
     TUTTI_FOUND_FAILURE, "gpu.driver", "0000:1a:00.0", "it has no driver", "modprobe nvidia"},
    {"GpuDrivenByNouveau", "sockets",
     [](Recorded &r) {
       r.link("*0000:17:00.0/driver", "../../../../bus/pci/drivers/nouveau");
       r.link("*0000:98:00.0/driver", "../../../../bus/pci/drivers/nouveau");
       r.silent("nvml.*").silent("cuda.*").drop("dev/nvidia*").drop("proc/driver/nvidia/version");
       r.answer("nvml.state", "missing").answer("cuda.state", "missing");
     },
     TUTTI_FOUND_FAILURE, "gpu.driver", "0000:17:00.0, 0000:98:00.0", "it is driven by nouveau",
     "blacklist nouveau"},
    {"DriverUpdatedAndNotReloaded", "dgx",
     [](Recorded &r) {
       r.silent("nvml.*").silent("cuda.0*");
       r.answer("nvml.state", "Driver/library version mismatch");
       r.answer("cuda.state",
                "803: system has unsupported display driver / cuda driver combination");
     },
     TUTTI_FOUND_FAILURE, "gpu.library", "NVML", "Driver/library version mismatch; the driver was",
     "reboot"},
    {"LibrariesOfTheDriverMissing", "dgx",
     [](Recorded &r) {
       r.silent("nvml.*").silent("cuda.0*");
       r.answer("nvml.state", "missing").answer("cuda.state", "missing");
     },
     TUTTI_FOUND_FAILURE, "gpu.library", "NVML", "libnvidia-ml.so.1", "nvidia-smi"},
    {"CudaDoesNotStart", "sockets",
     [](Recorded &r) { r.silent("cuda.0*").answer("cuda.state", "999: unknown error"); },
     TUTTI_FOUND_FAILURE, "gpu.cuda", "CUDA", "error 999: unknown error", "nvidia-smi"},
    {"CudaDevicesHidden", "sockets",
     [](Recorded &r) {
       r.silent("cuda.0*").answer("cuda.state", "100: no CUDA-capable device is detected");
       r.answer("env.CUDA_VISIBLE_DEVICES", "");
     },
     TUTTI_FOUND_WARNING, "gpu.cuda", "CUDA", "CUDA_VISIBLE_DEVICES hides all GPUs",
     "unset CUDA_VISIBLE_DEVICES"},
    {"GpuFellOffTheBus", "dgx",
     [](Recorded &r) {
       r.silent("nvml.0000:3c:00.0.*").silent("cuda.0000:3c:00.0.*");
       r.answer("nvml.count", "7").answer("xid.00", "0000:3c:00.0 79");
     },
     TUTTI_FOUND_FAILURE, "gpu.lost", "0000:3c:00.0", "fallen off the bus", "dmesg"},
    {"Xid", "dgx", [](Recorded &r) { r.answer("xid.00", "0000:18:00.0 48"); }, TUTTI_FOUND_WARNING,
     "gpu.xid", "0000:18:00.0", "Xid 48", "dmesg"},
    {"MemoryErrors", "dgx", [](Recorded &r) { r.answer("nvml.0000:da:00.0.ecc", "3"); },
     TUTTI_FOUND_WARNING, "gpu.memory", "0000:da:00.0", "3 errors of its memory",
     "nvidia-smi -r -i 0000:da:00.0"},
    {"RowsToBeReplaced", "switches",
     [](Recorded &r) { r.answer("nvml.0000:23:00.0.rows.pending", "1"); }, TUTTI_FOUND_WARNING,
     "gpu.memory", "0000:23:00.0", "will be replaced", "nvidia-smi -r"},
    {"NoSpareRows", "switches", [](Recorded &r) { r.answer("nvml.0000:23:00.0.rows.failed", "1"); },
     TUTTI_FOUND_FAILURE, "gpu.memory", "0000:23:00.0", "must be exchanged", "ROW_REMAPPER"},
    {"GpuTooHot", "dgx", [](Recorded &r) { r.answer("nvml.0000:9c:00.0.slowed", "72"); },
     TUTTI_FOUND_WARNING, "gpu.slowed", "0000:9c:00.0", "heat", "PERFORMANCE"},
    {"PowerBrake", "dgx", [](Recorded &r) { r.answer("nvml.0000:9c:00.0.slowed", "128"); },
     TUTTI_FOUND_WARNING, "gpu.slowed", "0000:9c:00.0", "power brake", "PERFORMANCE"},
    {"ComputeModeProhibited", "roce", [](Recorded &r) { r.answers("nvml.*.compute", "2"); },
     TUTTI_FOUND_FAILURE, "gpu.compute", "0000:43:00.0, 0000:83:00.0", "forbids all programs",
     "-c DEFAULT"},
    {"FabricManagerNotRunning", "dgx",
     [](Recorded &r) {
       r.answers("nvml.*.fabric", "2").silent("cuda.0*");
       r.answer("cuda.state", "802: system not yet initialized");
     },
     TUTTI_FOUND_FAILURE, "gpu.fabric", kEightGpus, "fabric manager",
     "restart nvidia-fabricmanager"},
    {"NvlinksDown", "dgx",
     [](Recorded &r) {
       r.answer("nvml.0000:3a:00.0.links",
                "switch/6 switch/6 switch/6 switch/6 switch/6 switch/6 switch/6 switch/6 switch/6 "
                "switch/6 switch/6 switch/6 switch/6 switch/6 switch/6 down down switch/6");
     },
     TUTTI_FOUND_WARNING, "gpu.nvlink", "0000:3a:00.0",
     "16 of its NVLinks are up, where others of "
     "this host have 18",
     "nvlink -s"},
    {"PeerToPeerForbidden", "switches", [](Recorded &r) { r.answers("nvml.*.peers", "4 4 4 4"); },
     TUTTI_FOUND_WARNING, "gpu.p2p", "0000:23:00.0, 0000:24:00.0, 0000:a3:00.0, 0000:a4:00.0",
     "the driver's settings forbid it", "topo -p2p"},
    /* links */
    {"GpuOnHalfTheLanes", "dgx",
     [](Recorded &r) { r.file("*0000:dc:00.0/current_link_width", "8"); }, TUTTI_FOUND_WARNING,
     "pcie.width", "0000:dc:00.0", "8 lanes of the 16", "lspci"},
    {"NicOnHalfTheLanes", "sockets",
     [](Recorded &r) { r.file("*0000:31:00.0/current_link_width", "8"); }, TUTTI_FOUND_WARNING,
     "pcie.width", "mlx5_0", "8 lanes of the 16", "lspci"},
    {"NicAtGen3", "roce",
     [](Recorded &r) { r.file("*0000:44:00.0/current_link_speed", "8.0 GT/s PCIe"); },
     TUTTI_FOUND_WARNING, "pcie.speed", "mlx5_0", "8.0 GT/s of the 16.0", "lspci"},
    {"WrongDataBetweenGpus", "roce",
     [](Recorded &r) {
       r.answer("copy.0000:43:00.0.0000:83:00.0", "wrong data");
       r.answer("copy.0000:83:00.0.0000:43:00.0", "24.1 direct");
     },
     TUTTI_FOUND_FAILURE, "gpu.copy", "0000:43:00.0 to 0000:83:00.0", "brings wrong data",
     "topo -p2p"},
    {"SlowNvlink", "switches",
     [](Recorded &r) {
       r.answer("copy.0000:23:00.0.0000:24:00.0", "262.3 direct");
       r.answer("copy.0000:24:00.0.0000:23:00.0", "261.0 direct");
       r.answer("copy.0000:a3:00.0.0000:a4:00.0", "65.1 direct");
       r.answer("copy.0000:a4:00.0.0000:a3:00.0", "262.2 direct");
       r.answer("copy.0000:a4:00.0.0000:23:00.0", "17.0 staged");
     },
     TUTTI_FOUND_WARNING, "gpu.copy", "0000:a3:00.0 to 0000:a4:00.0",
     "run at 65 GB/s, where others over NV12 (NVLink) run at 262", "nvlink -e"},
    {"AllNvlinksSlow", "switches",
     [](Recorded &r) {
       r.answer("copy.0000:23:00.0.0000:24:00.0", "66.0 direct");
       r.answer("copy.0000:24:00.0.0000:23:00.0", "66.0 direct");
     },
     TUTTI_FOUND_WARNING, "gpu.copy",
     "0000:23:00.0 to 0000:24:00.0, 0000:24:00.0 to 0000:23:00.0",
     "run at 66 GB/s, where NV12 (NVLink) carries 300", "nvlink -s"},
    {"NvlinkWithoutPeerAccess", "switches",
     [](Recorded &r) {
       r.answer("copy.0000:23:00.0.0000:24:00.0", "17.3 staged");
       r.answer("copy.0000:24:00.0.0000:23:00.0", "17.0 staged");
     },
     TUTTI_FOUND_WARNING, "gpu.p2p", "0000:23:00.0, 0000:24:00.0", "CUDA says", "topo -p2p"},
    /* GPUDirect RDMA */
    {"NoPeermemAndClosedModules", "switches",
     [](Recorded &r) {
       r.drop("sys/module/nvidia_peermem/version")
           .drop("sys/kernel/mm/memory_peers/nv_mem/version");
     },
     TUTTI_FOUND_WARNING, "gdr.driver", "0000:23:00.0, 0000:24:00.0, 0000:a3:00.0, 0000:a4:00.0",
     "modprobe nvidia-peermem; no dma-buf because the closed kernel modules of the NVIDIA driver",
     "sudo modprobe nvidia-peermem"},
    {"KernelTooOldForDmabuf", "roce",
     [](Recorded &r) {
       r.answers("cuda.0*.dmabuf", "0").answer("host.release", "5.4.0-216-generic");
     },
     TUTTI_FOUND_WARNING, "gdr.driver", "0000:43:00.0, 0000:83:00.0",
     "no dma-buf because the kernel is older than Linux 5.12", "sudo modprobe nvidia-peermem"},
    {"KernelTooOldForDmabufAndNoCuda", "roce",
     [](Recorded &r) {
       r.silent("cuda.*").answer("host.release", "5.11.22-7-pve");
     },
     TUTTI_FOUND_WARNING, "gdr.driver", "0000:43:00.0, 0000:83:00.0",
     "no dma-buf because the kernel is older than Linux 5.12", "sudo modprobe nvidia-peermem"},
    {"RdmaCoreTooOldForDmabuf", "roce", [](Recorded &r) { r.answers("verbs.*.dmabuf", "0"); },
     TUTTI_FOUND_WARNING, "gdr.driver", "0000:43:00.0, 0000:83:00.0",
     "no dma-buf because libibverbs or the NIC's driver", "sudo modprobe nvidia-peermem"},
    {"IommuTranslates", "roce", [](Recorded &r) { r.file("*iommu_groups/21/type", "DMA-FQ"); },
     TUTTI_FOUND_WARNING, "gdr.iommu", "0000:43:00.0", "the IOMMU translates (group type DMA-FQ)",
     "iommu=pt"},
    {"AcsRedirects", "dgx", [](Recorded &r) { r.bytes("*/0000:39:04.0/config", kAcsOn); },
     TUTTI_FOUND_WARNING, "gdr.acs", "0000:3a:00.0, 0000:3c:00.0",
     "ACS of the bridge 0000:39:04.0 redirects", "sudo setpci -s 0000:39:04.0 ECAP_ACS+6.w=0"},
    {"PeermemOfAnotherDriver", "dgx",
     [](Recorded &r) { r.file("sys/module/nvidia_peermem/version", "575.57.08"); },
     TUTTI_FOUND_WARNING, "module.version", "nvidia_peermem", "of version 575.57.08",
     "modprobe nvidia-peermem"},
    {"TwoPeerModules", "switches",
     [](Recorded &r) { r.add("sys/module/nv_peer_mem/version", "1.3"); }, TUTTI_FOUND_WARNING,
     "module.twice", "nv_peer_mem", "both nvidia_peermem and the older", "rmmod nv_peer_mem"},
    /* RDMA devices */
    {"NoVerbsModule", "cpu",
     [](Recorded &r) {
       r.drop("dev/infiniband/*").silent("verbs.mlx5_0.*").drop("sys/module/ib_uverbs/refcnt");
     },
     TUTTI_FOUND_FAILURE, "module.uverbs", "/dev/infiniband", "the module ib_uverbs is not loaded",
     "modprobe ib_uverbs"},
    {"NoVerbsModuleBesideGpus", "roce",
     [](Recorded &r) {
       r.drop("dev/infiniband/*").silent("verbs.mlx5_*").drop("sys/module/ib_uverbs/refcnt");
     },
     TUTTI_FOUND_FAILURE, "module.uverbs", "/dev/infiniband", "there are 2 RDMA devices",
     "modprobe ib_uverbs"},
    {"NoLibraryBesideGpus", "roce",
     [](Recorded &r) { r.silent("verbs.*").answer("verbs.state", "it is not there; install rdma-core"); },
     TUTTI_FOUND_FAILURE, "rdma.library", "libibverbs", "install rdma-core", "install rdma-core"},
    {"NoLibrary", "cpu",
     [](Recorded &r) {
       r.silent("verbs.*").answer("verbs.state",
                                  "libibverbs.so.1: cannot open shared object file: No such file "
                                  "or directory; install rdma-core");
     },
     TUTTI_FOUND_FAILURE, "rdma.library", "libibverbs", "install rdma-core", "install rdma-core"},
    {"NoProvider", "cpu", [](Recorded &r) { r.silent("verbs.mlx5_0.*"); }, TUTTI_FOUND_FAILURE,
     "rdma.provider", "mlx5_0", "user-space driver for mlx5_core", "ibverbs-providers"},
    {"NoRights", "switches",
     [](Recorded &r) {
       r.deny("dev/infiniband/uverbs*").silent("verbs.*.dmabuf");
       r.answers("verbs.*.open", "Permission denied");
     },
     TUTTI_FOUND_FAILURE, "rdma.rights", "mlx5_0, mlx5_1",
     "Permission denied; see the rights on /dev/infiniband", "chmod"},
    {"NoPortOfTheSetting", "dgx", [](Recorded &r) { r.answer("setting.IB_HCA", "=bnxt_re0"); },
     TUTTI_FOUND_FAILURE, "setting.hca", "TUTTI_IB_HCA",
     "none of the 8 RDMA devices here can be used", "unset TUTTI_IB_HCA"},
    {"NicOfAGpuDown", "switches",
     [](Recorded &r) {
       r.file("*mlx5_1/ports/1/state", "1: DOWN").file("*mlx5_1/ports/1/phys_state", "2: Polling");
     },
     TUTTI_FOUND_WARNING, "nic.down", "mlx5_1", "a GPU has no other NIC near: nothing answers",
     "ibstat mlx5_1 1"},
    {"AllPortsDown", "cpu",
     [](Recorded &r) {
       r.drop("*mlx5_0/ports/2/*").file("*mlx5_0/ports/1/state", "1: DOWN");
       r.file("*mlx5_0/ports/1/phys_state", "3: Disabled");
     },
     TUTTI_FOUND_FAILURE, "nic.down", "mlx5_0",
     "no port of mlx5_0 is active (ibv_devinfo): it is switched off", "ibstat"},
    {"NoSubnetManager", "cpu",
     [](Recorded &r) { r.file("*mlx5_0/ports/1/state", "2: INIT").file("*ports/1/lid", "0xffff"); },
     TUTTI_FOUND_FAILURE, "nic.subnet", "mlx5_0 port 1", "waits for a subnet manager", "opensm"},
    {"CableHalfAlive", "dgx",
     [](Recorded &r) { r.file("*mlx5_6/ports/1/rate", "200 Gb/sec (2X NDR)"); },
     TUTTI_FOUND_WARNING, "nic.rate", "mlx5_6",
     "200 Gb/sec (2X NDR), where others of the same "
     "board run at 400 Gb/sec (4X NDR)",
     "ibstat mlx5_6 1"},
    {"NoAddress", "roce",
     [](Recorded &r) { r.drop("*mlx5_1/ports/1/*/2").drop("*mlx5_1/ports/1/*/3"); },
     TUTTI_FOUND_WARNING, "nic.address", "mlx5_1", "no row of its GID table", "dev ens2np0"},
    {"OldRoceOnly", "roce",
     [](Recorded &r) { r.drop("*mlx5_0/ports/1/*/3").drop("*mlx5_0/ports/1/*/1"); },
     TUTTI_FOUND_WARNING, "nic.roce1", "mlx5_0", "RoCE v1 only", "show_gids"},
    {"SmallMtu", "roce", [](Recorded &r) { r.file("*/ens2np0/mtu", "1500"); }, TUTTI_FOUND_WARNING,
     "nic.mtu", "mlx5_1", "is 1500, where others of the same board have 9000",
     "ip link set ens2np0 mtu 9000"},
    {"OldFirmware", "dgx", [](Recorded &r) { r.file("*/mlx5_3/fw_ver", "28.36.1010"); },
     TUTTI_FOUND_WARNING, "nic.firmware", "mlx5_3",
     "28.36.1010, where 7 of the same board have 28.39.1002", "mlxfwmanager"},
    {"DirtyCable", "dgx", [](Recorded &r) { r.file("*mlx5_2/*/symbol_error", "48211"); },
     TUTTI_FOUND_WARNING, "nic.errors", "mlx5_2", "48211 in 336 hours: symbol errors",
     "counters/symbol_error"},
    {"FlappingLink", "dgx", [](Recorded &r) { r.file("*mlx5_2/*/link_downed", "121"); },
     TUTTI_FOUND_WARNING, "nic.errors", "mlx5_2", "losses of the link", "link_downed"},
    {"LossyRoce", "roce", [](Recorded &r) { r.file("*mlx5_0/*/out_of_sequence", "91827364"); },
     TUTTI_FOUND_WARNING, "nic.errors", "mlx5_0", "see to PFC and ECN", "out_of_sequence"},
    /* host */
    {"LittleLockedMemory", "switches", [](Recorded &r) { r.answer("limit.memlock", "8388608"); },
     TUTTI_FOUND_FAILURE, "host.memlock", "RDMA", "now 8192 KiB", "limits.d"},
    {"FewFiles", "cpu", [](Recorded &r) { r.answer("limit.nofile", "256"); }, TUTTI_FOUND_WARNING,
     "host.files", "this process", "256 files", "ulimit -n"},
    {"FewMappings", "cpu", [](Recorded &r) { r.file("proc/sys/vm/max_map_count", "8192"); },
     TUTTI_FOUND_WARNING, "host.mappings", "this host", "8192", "sysctl"},
    {"LowestClock", "switches", [](Recorded &r) { r.file("*/scaling_governor", "powersave"); },
     TUTTI_FOUND_WARNING, "host.governor", "CPU", "powersave of acpi-cpufreq", "cpupower"},
    {"FewCoresForGpus", "dgx", [](Recorded &r) { r.answer("cores.allowed", "4"); },
     TUTTI_FOUND_WARNING, "host.cores", "CPU", "4 of 224 cores, fewer than the 8 GPUs", "taskset"},
    {"QuotaOfCores", "container", [](Recorded &r) { r.answer("cores.quota", "150"); },
     TUTTI_FOUND_WARNING, "host.cores", "CPU", "1.50 cores", "cpu.max"},
    {"NoInterface", "cpu",
     [](Recorded &r) { r.answer("net.001", "eno1 none").silent("probe.eno1 v4"); },
     TUTTI_FOUND_WARNING, "host.interfaces", "lo", "only the loopback interface", "ip -br addr"},
    {"WrongInterfaceName", "cpu", [](Recorded &r) { r.answer("setting.SOCKET_IFNAME", "=ens7"); },
     TUTTI_FOUND_FAILURE, "host.interfaces", "TUTTI_SOCKET_IFNAME",
     "matches TUTTI_SOCKET_IFNAME==ens7; this host has: lo", "unset TUTTI_SOCKET_IFNAME"},
    {"Firewall", "roce", [](Recorded &r) { r.answer("probe.ens2np0 v4", "Connection timed out"); },
     TUTTI_FOUND_FAILURE, "host.firewall", "ens2np0", "fails (Connection timed out)", "nft"},
    {"AddressOfAnotherHost", "roce",
     [](Recorded &r) { r.answer("probe.ens2np0 v6-link", "Cannot assign requested address"); },
     TUTTI_FOUND_WARNING, "host.interfaces", "ens2np0", "another host has it", "ip addr"},
    /* containers */
    {"ContainerWithoutVerbs", "container",
     [](Recorded &r) { r.drop("dev/infiniband/*").silent("verbs.mlx5_*"); }, TUTTI_FOUND_WARNING,
     "container.rdma", "/dev/infiniband", "the host has 2 RDMA devices",
     "--device=/dev/infiniband"},
    {"ContainerWithoutGpus", "container",
     [](Recorded &r) {
       r.drop("dev/nvidia*").silent("nvml.*").silent("cuda.*").silent("env.*");
       r.answer("nvml.state", "missing").answer("cuda.state", "missing");
     },
     TUTTI_FOUND_WARNING, "container.gpu", "/dev/nvidiactl", "the host has 2 GPUs", "--gpus all"},
    {"ContainerHidesGpus", "container",
     [](Recorded &r) {
       r.silent("nvml.*").silent("cuda.*").answer("env.NVIDIA_VISIBLE_DEVICES", "void");
       r.answer("nvml.state", "Unknown Error").answer("cuda.state", "100: no device");
     },
     TUTTI_FOUND_WARNING, "container.gpu", "NVIDIA_VISIBLE_DEVICES",
     "NVIDIA_VISIBLE_DEVICES=void hides the host's 2 GPUs", "--gpus all"},
    {"ContainerWithoutCompute", "container",
     [](Recorded &r) { r.silent("cuda.0*").answer("cuda.state", "missing"); }, TUTTI_FOUND_FAILURE,
     "gpu.cuda", "CUDA", "libcuda.so.1", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"},
    {"ContainerMasksSysfs", "container",
     [](Recorded &r) { r.drop("sys/class/*").drop("sys/bus/*"); }, TUTTI_FOUND_WARNING,
     "container.sysfs", "/sys", "there are GPUs and RDMA devices", "-v /sys:/sys:ro"},
    {"ContainerWithoutIpcLock", "container",
     [](Recorded &r) { r.answer("cap.ipc_lock", "0").answer("limit.memlock", "67108864"); },
     TUTTI_FOUND_FAILURE, "host.memlock", "RDMA", "now 65536 KiB", "--cap-add=IPC_LOCK"},
    {"ContainerOfAnotherNetwork", "roce",
     [](Recorded &r) {
       r.answer("host.container", "Docker");
       for (const char *what : {"gids", "gid_attrs/types", "gid_attrs/ndevs"})
         r.drop(std::string("*mlx5_?/ports/1/") + what + "/*");
       r.drop("sys/class/net/ens*");
       r.answer("net.001", "eth0 v4 up carrier").answer("net.002", "lo v6 up carrier loopback");
       r.silent("probe.*");
     },
     TUTTI_FOUND_WARNING, "nic.address", "mlx5_0, mlx5_1", "not in this container's network",
     "--network=host"},
};

/* Kernel and modules alone, as where no CUDA was asked, tell of dma-buf, too. */
TEST(Notes, DmabufWithoutCuda) {
  Recorded r("roce");
  r.silent("cuda.*");
  EXPECT_EQ(Examined(r).text(TUTTI_FOUND_NOTE), "");
  r.answer("host.release", "5.12.0");
  EXPECT_EQ(Examined(r).text(TUTTI_FOUND_NOTE), "");
}

/* Root sees the device control of a NIC. */
TEST(Notes, RelaxedOrdering) {
  Recorded r("roce");
  const char *place = "sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:01.0/0000:44:00.0/";
  r.add(std::string(place) + "config", "")
      .bytes(std::string(place) + "config", "34:60 60:05 48 48:10 50:20 100:01 02");
  EXPECT_THAT(Examined(r).text(TUTTI_FOUND_NOTE), HasSubstr("note pcie.ordering mlx5_0: relaxed"));
  r.bytes(std::string(place) + "config", "34:60 60:05 48 48:10 50:30 100:01 02");
  EXPECT_EQ(Examined(r).text(TUTTI_FOUND_NOTE), "");
}

/* Copies that were all tried and found right are said to be so, and only then. */
TEST(Notes, CopiesBetweenAllGpus) {
  Recorded r("roce");
  r.answer("copy.0000:43:00.0.0000:83:00.0", "24.1 direct");
  EXPECT_THAT(Examined(r).text(TUTTI_FOUND_OK), Not(HasSubstr("gpu.copy")));
  r.answer("copy.0000:83:00.0.0000:43:00.0", "23.8 direct");
  EXPECT_THAT(Examined(r).text(TUTTI_FOUND_OK),
              HasSubstr("ok gpu.copy copies between GPUs: right data from each to "
                        "each other one, at 24 to 24 GB/s"));
  r.answer("copy.0000:83:00.0.0000:43:00.0", "wrong data");
  EXPECT_THAT(Examined(r).text(TUTTI_FOUND_OK), Not(HasSubstr("ok gpu.copy")));
}

TEST(Notes, CongestionControl) {
  Recorded r("roce");
  std::string place =
      "sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:01.0/0000:44:00.0/net/"
      "ens1np0/ecn/";
  for (const char *side : {"roce_np", "roce_rp"})
    for (int priority = 0; priority < 8; priority++)
      r.add(place + side + "/enable/" + std::to_string(priority), priority == 3 ? "1" : "0");
  EXPECT_EQ(Examined(r).text(TUTTI_FOUND_NOTE), "");
  r.file(place + "roce_rp/enable/3", "0");
  EXPECT_THAT(Examined(r).text(TUTTI_FOUND_NOTE), HasSubstr("note nic.ecn mlx5_0: its congestion"));
}

TEST(Notes, DevicesThatAreNeitherInfiniBandNorRoce) {
  Recorded r("roce");
  r.file("*/mlx5_1/node_type", "4: RNIC");
  std::string text = Examined(r).text(TUTTI_FOUND_NOTE);
  EXPECT_THAT(text, HasSubstr("note rdma.kind mlx5_1: it is neither"));
  EXPECT_THAT(text, HasSubstr("note gdr.far 0000:83:00.0")) << "the other NIC is left";
}

TEST(Notes, WhatIsSentIsStaged) {
  Recorded r("roce");
  EXPECT_EQ(Examined(r).text(TUTTI_FOUND_NOTE), "");
  r.answer("setting.NET_GDR_READ", "0");
  EXPECT_THAT(Examined(r).text(TUTTI_FOUND_NOTE),
              HasSubstr("GPUDirect RDMA of what comes alone: by dma-buf"));
  r.answer("setting.NET_GDR_READ", "auto").answer("cuda.0000:43:00.0.preampere", "1");
  EXPECT_THAT(Examined(r).text(TUTTI_FOUND_NOTE), HasSubstr("slow to read this GPU"));
}

/* Two of eight GPUs are a job's own: NVML counts these, and the control group denies the others. */
Recorded twoOfEight() {
  Recorded r("dgx");
  for (const char *bus : {"3a", "3c", "9a", "9c", "da", "dc"}) {
    std::string gpu = "0000:" + std::string(bus) + ":00.0";
    r.silent("nvml." + gpu + ".*").silent("cuda." + gpu + ".*").answer("device." + gpu, "denied");
  }
  r.answers("nvml.*.peers", "- 0").answer("nvml.count", "2").answer("cores.allowed", "4");
  return r;
}

TEST(Notes, GpusOfOtherJobs) {
  Recorded r = twoOfEight();
  std::string text = Examined(r).text(TUTTI_FOUND_NOTE);
  EXPECT_THAT(text, HasSubstr("note gpu.hidden 0000:3a:00.0, 0000:3c:00.0, 0000:9a:00.0, "
                              "0000:9c:00.0, 0000:da:00.0, 0000:dc:00.0: it is on this host, and "
                              "this process may not use it"));
  EXPECT_EQ(Examined(r).text(TUTTI_FOUND_WARNING), "") << "nothing is lost, and cores suffice";
  /* Errors of its own GPUs are still told. */
  r.answer("xid.00", "0000:18:00.0 48").answer("cuda.state", "999: unknown error");
  text = Examined(r).text(TUTTI_FOUND_WARNING);
  EXPECT_THAT(text, HasSubstr("gpu.xid 0000:18:00.0"));
  EXPECT_THAT(text, HasSubstr("gpu.cuda CUDA"));
  /* One whose device is open to it is lost. */
  r.answer("device.0000:da:00.0", "ok");
  EXPECT_THAT(Examined(r).text(TUTTI_FOUND_FAILURE), HasSubstr("gpu.lost 0000:da:00.0"));
}

/* NVML may count GPUs and refuse to open them. */
TEST(Notes, GpusThatNvmlDenies) {
  Recorded r = twoOfEight();
  r.silent("device.*").answer("nvml.count", "8");
  EXPECT_THAT(Examined(r).text(TUTTI_FOUND_FAILURE), HasSubstr("gpu.lost"));
  for (int i = 2; i < 8; i++)
    r.answer("nvml.denied." + std::to_string(i), "Insufficient Permissions");
  EXPECT_EQ(Examined(r).text(TUTTI_FOUND_WARNING), "");
}

TEST(Notes, CoresOfAPodWithOneOfEightGpus) {
  Recorded r = twoOfEight();
  r.silent("nvml.0000:1a:00.0.*").silent("cuda.0000:1a:00.0.*").silent("device.*");
  r.answer("host.container", "Kubernetes").answer("cores.quota", "150");
  EXPECT_EQ(Examined(r).text(TUTTI_FOUND_WARNING), "");
  r.answer("cores.quota", "50");
  EXPECT_THAT(Examined(r).text(TUTTI_FOUND_WARNING), HasSubstr("less than one for each GPU (1)"));
}

class Faults : public testing::TestWithParam<Fault> {};

TEST_P(Faults, IsNamedAndNoOther) {
  const Fault &fault = GetParam();
  Recorded r(fault.machine);
  fault.make(r);
  Examined e(r);
  auto found = e.found(TUTTI_FOUND_WARNING);
  ASSERT_EQ(found.size(), 1u) << e.text(TUTTI_FOUND_NOTE);
  EXPECT_STREQ(found[0]->id, fault.id);
  EXPECT_EQ(found[0]->severity, fault.severity);
  EXPECT_STREQ(found[0]->subject, fault.subject);
  EXPECT_THAT(found[0]->sentence, HasSubstr(fault.sentence));
  EXPECT_THAT(found[0]->remedy, HasSubstr(fault.remedy));
}

INSTANTIATE_TEST_SUITE_P(Machines, Faults, testing::ValuesIn(kFaults),
                         [](const auto &info) { return std::string(info.param.name); });

} // namespace

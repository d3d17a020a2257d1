/* Machines for tests: a small text in data/ becomes a directory tree with the files and links that
 * detection reads, laid out as the kernel does. One device per line, paths below devices/:
 *   numa NUMBER CPULIST
 *   pci PATH CLASS VENDOR DEVICE NUMA GT/S LANES DRIVER   (- leaves a file out)
 *   net NAME PATH SPEED CARRIER OPERSTATE                 (path -: a virtual device)
 *   infiniband NAME PATH RATE STATE
 *   file PATH TEXT                                        (path below the root)
 *   iommu BUSID GROUP TYPE                                (of functions above)
 *   acs BUSID CONTROL                                     (what root reads of a bridge)
 *   include MACHINE */
#ifndef TUTTI_TESTS_TOPOLOGY_SYSFS_TREE_H_
#define TUTTI_TESTS_TOPOLOGY_SYSFS_TREE_H_

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#ifndef TUTTI_TEST_MACHINES
#define TUTTI_TEST_MACHINES TUTTI_TEST_DATA
#endif

/* In memory where there is such a file system: a disk takes seconds for hundreds of small files. */
class TempDir {
public:
  TempDir() {
    const std::filesystem::path memory = "/dev/shm";
    bool usable = access(memory.c_str(), W_OK | X_OK) == 0;
    std::string name =
        ((usable ? memory : std::filesystem::temp_directory_path()) / "tutti-test-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir &) = delete;
  TempDir &operator=(const TempDir &) = delete;
  const std::filesystem::path &path() const { return path_; }

private:
  std::filesystem::path path_;
};

class SysfsTree {
public:
  explicit SysfsTree(const std::string &machine) { addAll(machine); }
  std::string root() const { return dir_.path().string(); }

private:
  void addAll(const std::string &machine) {
    std::ifstream in(std::filesystem::path(TUTTI_TEST_MACHINES) / (machine + ".sysfs"));
    EXPECT_TRUE(in) << "no machine " << machine;
    for (std::string line; std::getline(in, line);)
      if (!line.empty() && line[0] != '#') add(line);
  }
  void put(const std::string &path, const std::string &text) {
    std::filesystem::path file = dir_.path() / path;
    std::filesystem::create_directories(file.parent_path());
    /* A directory fails to be read like a file that gives EINVAL. */
    if (text == "unreadable")
      std::filesystem::create_directory(file);
    else if (text != "-")
      std::ofstream(file) << text << "\n";
  }
  void link(const std::string &path, const std::string &target) {
    std::filesystem::path from = dir_.path() / path, to = dir_.path() / target;
    std::filesystem::create_directories(from.parent_path());
    std::filesystem::create_directories(to);
    std::filesystem::create_symlink(std::filesystem::relative(to, from.parent_path()), from);
  }
  /* The configuration of a PCI Express bridge with Advanced Error Reporting and, behind it, ACS. */
  void putAcs(const std::string &path, unsigned control) {
    std::string config(4096, '\0');
    const uint32_t aer = 0x14820001, acs = 0x0001000d;
    memcpy(&config[0x100], &aer, sizeof aer);
    memcpy(&config[0x148], &acs, sizeof acs);
    config[0x148 + 4] = 0x1f;
    config[0x148 + 6] = static_cast<char>(control);
    std::ofstream(dir_.path() / path, std::ios::binary) << config;
  }
  void add(const std::string &line) {
    std::istringstream in(line);
    std::string kind, a, b, c, d, e, f, g, h;
    in >> kind >> a >> b >> c >> d >> e >> f >> g >> h;
    std::string path = "devices/" + a + "/";
    if (kind == "numa") {
      put("devices/system/node/node" + a + "/cpulist", b);
    } else if (kind == "pci") {
      put(path + "class", "0x" + b);
      put(path + "vendor", "0x" + c);
      put(path + "device", "0x" + d);
      put(path + "numa_node", e);
      put(path + "current_link_speed", f == "-" ? f : f + " GT/s PCIe");
      put(path + "current_link_width", g);
      link("bus/pci/devices/" + std::filesystem::path(a).filename().string(), path);
      link(path + "driver", "bus/pci/drivers/" + h);
    } else if (kind == "file") {
      put(a, b);
    } else if (kind == "include") {
      addAll(a);
    } else if (kind == "iommu") {
      put("kernel/iommu_groups/" + b + "/type", c);
      link("bus/pci/devices/" + a + "/iommu_group", "kernel/iommu_groups/" + b);
    } else if (kind == "acs") {
      putAcs("bus/pci/devices/" + a + "/config", std::stoul(b, nullptr, 16));
    } else {
      std::string parent = b == "-" ? "virtual" : b;
      std::string device = "devices/" + parent + "/" + kind + "/" + a;
      bool net = kind == "net";
      put(device + (net ? "/speed" : "/ports/1/rate"), c);
      put(device + (net ? "/carrier" : "/ports/1/state"), d);
      if (net) put(device + "/operstate", e);
      link("class/" + kind + "/" + a, device);
      if (b != "-") link(device + "/device", "devices/" + parent);
    }
  }

  TempDir dir_;
};

#endif

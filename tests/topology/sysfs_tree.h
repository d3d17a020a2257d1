/* Machines for tests: a small text in data/ becomes a directory tree with the files and links that
 * detection reads, laid out as the kernel does. One device per line, paths below devices/:
 *   numa NUMBER CPULIST
 *   pci PATH CLASS VENDOR DEVICE NUMA GT/S LANES DRIVER   (- leaves a file out)
 *   net NAME PATH SPEED CARRIER OPERSTATE                 (path -: a virtual device)
 *   infiniband NAME PATH RATE STATE
 *   file PATH TEXT                                        (path below the root) */
#ifndef TUTTI_TESTS_TOPOLOGY_SYSFS_TREE_H_
#define TUTTI_TESTS_TOPOLOGY_SYSFS_TREE_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

class TempDir {
public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "tutti-test-XXXXXX").string();
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
  explicit SysfsTree(const std::string &machine) {
    std::ifstream in(std::filesystem::path(TUTTI_TEST_DATA) / (machine + ".sysfs"));
    EXPECT_TRUE(in) << "no machine " << machine;
    for (std::string line; std::getline(in, line);)
      if (!line.empty() && line[0] != '#') add(line);
  }
  std::string root() const { return dir_.path().string(); }

private:
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

/* Limits of control groups, as trees of files show them. */
#include "base/quota.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

class Quota : public testing::Test {
protected:
  Quota() {
    std::string made = "/tmp/tutti-quota-XXXXXX";
    root_ = mkdtemp(made.data());
  }
  ~Quota() override { std::filesystem::remove_all(root_); }

  void write(const std::string &path, const std::string &text) {
    std::filesystem::path at = root_ + path;
    std::filesystem::create_directories(at.parent_path());
    std::ofstream(at) << text;
  }
  void group(const std::string &lines) { write("/proc/self/cgroup", lines); }
  tuttiCpuQuota read() { return tuttiCpuQuotaRead(root_.c_str()); }

  std::string root_;
};

TEST_F(Quota, NoneWithoutGroupsOrLimits) {
  EXPECT_EQ(read().cores, 0);
  group("0::/user.slice/job\n");
  EXPECT_EQ(read().cores, 0) << "nothing is mounted";
  write("/sys/fs/cgroup/user.slice/job/cpu.max", "max 100000\n");
  EXPECT_EQ(read().cores, 0);
  EXPECT_EQ(read().set, 0u);
}

TEST_F(Quota, IsRoundedUp) {
  group("0::/\n"); /* as in a container with a namespace of its own */
  struct {
    const char *text;
    int cores;
  } cases[] = {{"400000 100000\n", 4}, {"150000 100000", 2}, {"1000 100000", 1},
               {"50000 25000", 2},     {"0 100000", 0},      {"-1 100000", 0},
               {"200000 0", 0},        {"garbage", 0},       {"", 0}};
  for (auto &c : cases) {
    write("/sys/fs/cgroup/cpu.max", c.text);
    EXPECT_EQ(read().cores, c.cores) << c.text;
  }
}

TEST_F(Quota, TheLeastOfTheGroupAndThoseAbove) {
  group("0::/a/b/c\n");
  write("/sys/fs/cgroup/a/b/c/cpu.max", "800000 100000");
  EXPECT_EQ(read().cores, 8);
  write("/sys/fs/cgroup/a/cpu.max", "300000 100000");
  EXPECT_EQ(read().cores, 3);
  write("/sys/fs/cgroup/cpu.max", "200000 100000");
  EXPECT_EQ(read().cores, 2);
}

TEST_F(Quota, OfVersionOne) {
  group("5:memory:/job\n4:cpu,cpuacct:/job\n1:cpuset:/job\n0::/job\n");
  write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "250000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/cpuset/job/cpu.cfs_quota_us", "100000\n"); /* not its controller */
  EXPECT_EQ(read().cores, 3);
  write("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(read().cores, 0);
}

TEST_F(Quota, TellsGroupsApart) {
  group("0::/a\n");
  write("/sys/fs/cgroup/a/cpu.max", "200000 100000");
  write("/sys/fs/cgroup/b/cpu.max", "200000 100000");
  uint64_t a = read().set;
  EXPECT_NE(a, 0u);
  EXPECT_EQ(read().set, a);
  group("0::/b\n");
  EXPECT_NE(read().set, a);
}

TEST_F(Quota, LinesThatMakeNoSense) {
  write("/sys/fs/cgroup/cpu.max", "100000 100000");
  for (const char *lines : {"", "\n\n", "0", "0:", "4:cpu", "0:cpuset,cpux:/"}) {
    group(lines);
    EXPECT_EQ(read().cores, 0) << lines;
  }
  group("0::relative");
  EXPECT_EQ(read().cores, 1);
  group("0::/" + std::string(6000, 'x') + "\n");
  EXPECT_LE(read().cores, 1);
}

} // namespace

/* RDMA ports are tried: on the software HCA, which can lose and change what passes through it. */
#include <gmock/gmock.h>

#include <filesystem>

#include "recorded.h"
#include "tools/command.h"
#include "topology/sysfs_tree.h"

using testing::HasSubstr;
using testing::Not;

namespace {

#ifdef SOFTHCA_LIBRARY

Result doctor(const std::string &configuration, std::vector<std::string> args = {}) {
  args.insert(args.begin(), "doctor");
  return tutti(args, {"LD_LIBRARY_PATH=" SOFTHCA_LIBRARY, "SOFTHCA_MORE=" + configuration});
}

TEST(DoctorLive, PortsSendToThemselves) {
  Result r = doctor("device softhca0 link=roce; device softhca1");
  EXPECT_THAT(r.out, HasSubstr("ok       softhca0, softhca1: it reads and writes host memory"));
  EXPECT_THAT(doctor("", {"--quick"}).out, Not(HasSubstr("softhca0")));
}

TEST(DoctorLive, WrongDataAreAFailure) {
  Result r = doctor("fault flip p=1");
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.out,
              HasSubstr("failure  softhca0: a pattern sent through it from host memory to host "
                        "memory does not arrive: the data that come out are wrong"));
}

TEST(DoctorLive, WhatDoesNotComeIsAFailure) {
  Result r = tutti({"doctor"}, {"LD_LIBRARY_PATH=" SOFTHCA_LIBRARY, "SOFTHCA_MORE=fault cut nth=1",
                                "TUTTI_IB_TIMEOUT=10", "TUTTI_IB_RETRY_CNT=1"});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.out,
              HasSubstr("failure  softhca0: a pattern sent through it from host memory to host "
                        "memory does not arrive: "));
}

TEST(DoctorLive, RefusedMemoryIsAFailure) {
  Result r = doctor("fault refuse nth=1");
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.out, HasSubstr("failure  softhca0: ibv_reg_mr failed: Cannot allocate memory"));
}

#endif

/* As a user whom the rights of a device keep out; those of root let it in everywhere. */
class AsNobody {
public:
  AsNobody() { EXPECT_EQ(root_ ? seteuid(65534) : 0, 0); }
  ~AsNobody() { EXPECT_EQ(root_ ? seteuid(0) : 0, 0); }

private:
  bool root_ = geteuid() == 0;
};

TEST(DoctorLive, GpusAreOpenedThatNvmlDoesNotTellOf) {
  TempDir dir;
  namespace fs = std::filesystem;
  fs::permissions(dir.path(), fs::perms(0755));
  fs::create_directories(dir.path() / "dev");
  const std::pair<std::string, int> gpus[] = {{"18", 0}, {"1a", 3}, {"3a", 1}, {"3c", 2}};
  for (const auto &[bus, number] : gpus) {
    fs::path of = dir.path() / "proc/driver/nvidia/gpus" / ("0000:" + bus + ":00.0");
    fs::create_directories(of);
    std::ofstream(of / "information") << "Model: \t\t NVIDIA H100\nDevice Minor: \t " << number;
  }
  std::ofstream(dir.path() / "dev/nvidia2");
  std::ofstream(dir.path() / "dev/nvidia3");
  fs::permissions(dir.path() / "dev/nvidia2", fs::perms(0666));
  fs::permissions(dir.path() / "dev/nvidia3", fs::perms(0));
  tuttiMachine m{};
  snprintf(m.root, sizeof m.root, "%s", dir.path().c_str());
  ASSERT_EQ(tuttiMachineTell(&m, "ok", "nvml.state"), tuttiSuccess);
  ASSERT_EQ(tuttiMachineTell(&m, "0", "nvml.0000:18:00.0.index"), tuttiSuccess);
  {
    AsNobody nobody;
    EXPECT_EQ(tuttiAskGpus(&m), tuttiSuccess);
  }
  EXPECT_EQ(tuttiMachineAnswer(&m, "device.0000:18:00.0"), nullptr) << "which NVML has told of";
  EXPECT_STREQ(tuttiMachineAnswer(&m, "device.0000:1a:00.0"), "denied");
  EXPECT_STREQ(tuttiMachineAnswer(&m, "device.0000:3a:00.0"), "No such file or directory");
  EXPECT_STREQ(tuttiMachineAnswer(&m, "device.0000:3c:00.0"), "ok");
  tuttiMachineClose(&m);
}

TEST(DoctorLive, NvmlDeniesOneGpuAndLosesAnother) {
  RecordingFile file("");
  Result r =
      tutti({"doctor", "--quick", "--record", file.path()}, {"LD_LIBRARY_PATH=" NVML_LIBRARY});
  ASSERT_EQ(r.code, 0) << r.err;
  std::stringstream text;
  text << std::ifstream(file.path()).rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("? nvml.denied.1 = Insufficient Permissions\n"));
  EXPECT_THAT(text.str(), HasSubstr("? nvml.lost.0 = GPU is lost\n"));
  EXPECT_THAT(text.str(), HasSubstr("? nvml.0000:18:00.0.index = 0\n"));
  EXPECT_THAT(text.str(), Not(HasSubstr("nvml.lost.1")));
}

TEST(DoctorLive, ARecordingTells) {
  Recorded r("roce");
  r.answer("live.mlx5_0.1", "ok").answer("live.mlx5_1.1", "ok");
  r.answer("live.mlx5_0.1.0000:43:00.0", "ok");
  r.answer("live.mlx5_1.1.0000:83:00.0",
           "the device does not register memory of the GPU: Bad address");
  Examined e(r);
  EXPECT_EQ(e.text(TUTTI_FOUND_WARNING),
            "warning gdr.broken 0000:83:00.0: no GPUDirect RDMA by mlx5_1 port 1, though it should "
            "work: the "
            "device does not register memory of the GPU: Bad address; payloads are staged in host "
            "memory or go by other ports\n");
}

} // namespace

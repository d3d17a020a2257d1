/* RDMA ports are tried: on the software HCA, which can lose and change what passes through it. */
#include <gmock/gmock.h>

#include "recorded.h"
#include "tools/command.h"

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

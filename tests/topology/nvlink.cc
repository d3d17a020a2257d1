/* NVLinks as a made-up NVML tells them, on recorded machines. */
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/environment.h"
#include "sysfs_tree.h"
#include "topology/internal.h"

#if __has_include(<nvml.h>)
#include <nvml.h>
static_assert(sizeof(tuttiNvmlPci) == sizeof(nvmlPciInfo_t), "");
static_assert(offsetof(tuttiNvmlPci, busId) == offsetof(nvmlPciInfo_t, busId), "");
static_assert(NVML_NVLINK_DEVICE_TYPE_GPU == 0 && NVML_NVLINK_DEVICE_TYPE_SWITCH == 2, "");
static_assert(NVML_ERROR_INVALID_ARGUMENT == 2 && NVML_ERROR_NOT_SUPPORTED == 3, "");
static_assert(NVML_FEATURE_ENABLED == 1, "");
#endif

using testing::HasSubstr;
using testing::Not;

namespace {

constexpr int kNotSupported = 3, kLost = 15, kUnknown = 999;

struct FakeLink {
  unsigned type = 2; /* a switch */
  std::string remote;
  unsigned up = 1, version = 6; /* NVML's number of 4.0 */
  int state = 0, ofType = 0, ofRemote = 0, ofVersion = 0;
};

struct FakeNvml {
  int init = 0, shutdowns = 0;
  std::map<std::string, int> handle; /* errors */
  std::map<std::string, std::vector<FakeLink>> links;
} fake;

const std::string kGpus[] = {"0000:18:00.0", "0000:1a:00.0", "0000:3a:00.0", "0000:9a:00.0"};

const FakeLink *linkOf(void *device, unsigned link) {
  auto &links = *(std::vector<FakeLink> *)device;
  return link < links.size() ? &links[link] : nullptr;
}

const tuttiNvml kCalls = {[]() { return fake.init; },
                          []() { return fake.shutdowns++, 0; },
                          [](int code) { return code == kLost ? "GPU is lost" : "Unknown Error"; },
                          [](const char *bus, void **device) {
                            *device = &fake.links[bus];
                            return fake.handle[bus];
                          },
                          [](void *device, unsigned link, unsigned *up) {
                            const FakeLink *l = linkOf(device, link);
                            if (l) *up = l->up;
                            return l ? l->state : kNotSupported;
                          },
                          [](void *device, unsigned link, unsigned *version) {
                            *version = linkOf(device, link)->version;
                            return linkOf(device, link)->ofVersion;
                          },
                          [](void *device, unsigned link, unsigned *type) {
                            *type = linkOf(device, link)->type;
                            return linkOf(device, link)->ofType;
                          },
                          [](void *device, unsigned link, tuttiNvmlPci *pci) {
                            const FakeLink *l = linkOf(device, link);
                            memset(pci, 'A', sizeof *pci); /* not even terminated */
                            if (!l->remote.empty())
                              snprintf(pci->busId, sizeof pci->busId, "%s", l->remote.c_str());
                            return l->ofRemote;
                          }};

std::string slurp(const std::string &path) {
  std::ostringstream all;
  all << std::ifstream(path).rdbuf();
  return all.str();
}

class Nvlink : public EnvironmentTest {
public:
  void SetUp() override {
    EnvironmentTest::SetUp();
    fake = FakeNvml();
    ASSERT_EQ(load("TUTTI_DEBUG", "INFO"), "");
    ASSERT_EQ(load("TUTTI_DEBUG_FILE", (dir.path() / "log").string()), "");
    ASSERT_EQ(tuttiTopologyDetect(tree.root().c_str(), &t), tuttiSuccess);
    before = t->count;
  }
  void TearDown() override {
    tuttiTopologyFree(t);
    EnvironmentTest::TearDown();
  }
  void read() { ASSERT_EQ(tuttiNvlinkRead(t, &kCalls), tuttiSuccess) << tuttiErrorText(); }
  std::string log() { return slurp((dir.path() / "log").string()); }
  std::string path(int a, int b) {
    char buf[64];
    return tuttiTopologyPath(t, busOf(kGpus[a]), busOf(kGpus[b]), buf, sizeof buf);
  }
  uint64_t busOf(const std::string &name) { return t->nodes[find(name)].busId; }
  int find(const std::string &name) { return tuttiTopologyFind(t, name.c_str()); }
  std::string xml(const tuttiTopology *of) {
    std::string file = (dir.path() / "t.xml").string();
    EXPECT_EQ(tuttiTopologyWriteXml(of, file.c_str(), "--dump"), tuttiSuccess) << tuttiErrorText();
    return slurp(file);
  }
  std::string printed() {
    char *text = nullptr;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    tuttiTopologyPrint(t, out);
    fclose(out);
    std::string all = text;
    free(text);
    return all;
  }
  TempDir dir;
  SysfsTree tree{"dgx"};
  tuttiTopology *t = nullptr;
  int before = 0;
};

TEST_F(Nvlink, FourGpusThroughNvswitch) {
  for (auto &gpu : kGpus)
    fake.links[gpu].assign(18, FakeLink());
  read();
  EXPECT_EQ(fake.shutdowns, 1);
  for (int a = 0; a < 4; a++)
    for (int b = 0; b < 4; b++)
      EXPECT_EQ(path(a, b), a == b ? "SELF (one device)" : "NV18 (NVLink, NVSwitch)");
  for (auto &gpu : kGpus)
    EXPECT_TRUE(tuttiTopologyLinked(t, busOf(gpu)));
  EXPECT_FALSE(tuttiTopologyLinked(t, busOf("mlx5_0")));
  EXPECT_EQ(t->count, before + 4) << "one node for all links to switches";
  EXPECT_THAT(printed(), HasSubstr("    NVLink-NVSwitch  18 links, v4.0\n"));
  EXPECT_THAT(log(), Not(HasSubstr("NVML")));
  char buf[64];
  EXPECT_STREQ(tuttiTopologyPath(t, busOf(kGpus[0]), busOf("mlx5_0"), buf, sizeof buf),
               "SYS (two CPU sockets)");

  std::string text = xml(t);
  tuttiTopology *back = nullptr;
  ASSERT_EQ(tuttiTopologyParseXml(text.c_str(), text.size(), "t.xml", &back), tuttiSuccess)
      << tuttiErrorText();
  EXPECT_EQ(xml(back), text);
  EXPECT_STREQ(tuttiTopologyPath(back, busOf(kGpus[0]), busOf(kGpus[3]), buf, sizeof buf),
               "NV18 (NVLink, NVSwitch)");
  tuttiTopologyFree(back);
}

TEST_F(Nvlink, TwoGpusJoinedDirectly) {
  fake.links[kGpus[0]].assign(4, {0, "00000000:9A:00.0"});
  fake.links[kGpus[3]].assign(4, {0, "00000000:18:00.0"});
  read();
  EXPECT_EQ(path(0, 3), "NV4 (NVLink)");
  EXPECT_EQ(path(3, 0), "NV4 (NVLink)");
  EXPECT_EQ(path(0, 1), "PIX (at most one PCIe switch)") << "the other two have none";
  EXPECT_EQ(path(1, 3), "SYS (two CPU sockets)");
  for (auto &gpu : kGpus)
    EXPECT_FALSE(tuttiTopologyLinked(t, busOf(gpu))) << "not with all";
  EXPECT_GE(find("NVLink-0000:9a:00.0"), 0);
}

TEST_F(Nvlink, EveryPairJoinedDirectly) {
  std::vector<std::string> gpus;
  for (int i = 0; i < t->count; i++)
    if (t->nodes[i].kind == tuttiNodeGpu) gpus.push_back(t->nodes[i].name);
  for (auto &gpu : gpus)
    for (auto &other : gpus)
      if (gpu != other) fake.links[gpu].push_back({0, "0000" + other});
  read();
  EXPECT_EQ(path(1, 2), "NV1 (NVLink)");
  for (auto &gpu : gpus)
    EXPECT_TRUE(tuttiTopologyLinked(t, busOf(gpu)));
}

TEST_F(Nvlink, NoneAtAll) {
  read();
  for (auto &gpu : kGpus)
    EXPECT_FALSE(tuttiTopologyLinked(t, busOf(gpu)));
  EXPECT_EQ(t->count, before);
  EXPECT_EQ(path(0, 3), "SYS (two CPU sockets)");
  EXPECT_THAT(log(), Not(HasSubstr("NVML")));
}

TEST_F(Nvlink, LinksThatAreDownDoNotCount) {
  fake.links[kGpus[0]].assign(18, FakeLink());
  fake.links[kGpus[1]].assign(18, FakeLink());
  fake.links[kGpus[2]].assign(18, FakeLink());
  for (int i = 0; i < 5; i++)
    fake.links[kGpus[1]][2 * i].up = 0;
  for (auto &link : fake.links[kGpus[2]])
    link.up = 0;
  read();
  EXPECT_EQ(path(0, 1), "NV13 (NVLink, NVSwitch)");
  EXPECT_EQ(path(1, 0), "NV13 (NVLink, NVSwitch)");
  EXPECT_EQ(path(0, 2), "NODE (two host bridges of one NUMA node)");
  EXPECT_THAT(log(), Not(HasSubstr("NVML")));
}

TEST_F(Nvlink, WithoutNvmlTheyStayUnknown) {
  EXPECT_EQ(tuttiNvlinkDetect(t, "/none/libnvidia-ml.so.1"), tuttiSuccess);
  EXPECT_THAT(log(), HasSubstr("NVLinks stay unknown, without NVML: /none/libnvidia-ml.so.1"));
  EXPECT_EQ(tuttiNvlinkDetect(t, "libm.so.6"), tuttiSuccess);
  EXPECT_THAT(log(), HasSubstr("undefined symbol: nvmlInit_v2"));
  fake.init = kUnknown;
  read();
  EXPECT_THAT(log(), HasSubstr("all of the NVLinks: nvmlInit_v2 of system: Unknown Error"));
  EXPECT_EQ(fake.shutdowns, 0);
  EXPECT_EQ(t->count, before);
}

TEST_F(Nvlink, AHostWithoutGpusIsNotAskedFor) {
  SysfsTree none("no_pci_vm");
  tuttiTopology *other = nullptr;
  ASSERT_EQ(tuttiTopologyDetect(none.root().c_str(), &other), tuttiSuccess);
  EXPECT_EQ(tuttiNvlinkDetect(other, "/none/libnvidia-ml.so.1"), tuttiSuccess);
  EXPECT_THAT(log(), Not(HasSubstr("NVLinks")));
  tuttiTopologyFree(other);
}

TEST_F(Nvlink, WhatFailsHalfWayIsLeftOut) {
  for (auto &gpu : kGpus)
    fake.links[gpu].assign(6, FakeLink());
  fake.handle[kGpus[3]] = kLost;
  fake.links[kGpus[0]][1].state = kUnknown;
  fake.links[kGpus[1]][2].ofType = kUnknown;
  fake.links[kGpus[2]][3] = {0, kGpus[0], 1, 4, 0, 0, kUnknown, 0};
  fake.links[kGpus[2]][4].ofVersion = kUnknown;
  read();
  EXPECT_EQ(path(0, 1), "NV5 (NVLink, NVSwitch)");
  EXPECT_EQ(path(0, 2), "NV5 (NVLink, NVSwitch)");
  EXPECT_EQ(path(0, 3), "SYS (two CPU sockets)");
  std::string line = "nvmlDeviceGetNvLinkState of 0000:18:00.0: Unknown Error";
  EXPECT_THAT(log(), HasSubstr("NVML does not tell all of the NVLinks: " + line));
}

TEST_F(Nvlink, HostileAnswers) {
  FakeLink odd[] = {{255, ""}, {0, ""}, {0, "0000:77:00.0"}, {0, "../../etc"}, {2, "", 7}};
  for (int i = 0; i < 99; i++) /* more links than any GPU has */
    fake.links[kGpus[0]].push_back(odd[i % 5]);
  fake.links[kGpus[1]].assign(99, {2, "", 1, 0xffffffff});
  for (int i = 0; i < 99; i++)
    fake.links[kGpus[2]].push_back({0, kGpus[i % 4]});
  read();
  EXPECT_EQ(path(0, 1), "PIX (at most one PCIe switch)");
  EXPECT_EQ(find("NVLink-0000:77:00.0"), -1) << "no GPU of sysfs";
  EXPECT_EQ(t->nodes[find("NVLink-NVSwitch")].links, 36);
  EXPECT_EQ(t->nodes[find("NVLink-NVSwitch")].version, 0);
  EXPECT_THAT(log(), HasSubstr("a link of 0000:18:00.0 leads to a device of type 255 at ''"));
  std::string text = xml(t);
  tuttiTopology *back = nullptr;
  EXPECT_EQ(tuttiTopologyParseXml(text.c_str(), text.size(), "t.xml", &back), tuttiSuccess);
  tuttiTopologyFree(back);
}

TEST_F(Nvlink, XmlIsChecked) {
  for (const char *wrong : {"links='256'", "links='-1'", "links='x'", "version='100'"}) {
    std::string text = "<topology version='1'><node kind='Gpu' name='g'><node kind='Nvlink' "
                       "name='n' " +
                       std::string(wrong) + "/></node></topology>";
    tuttiTopology *none = nullptr;
    EXPECT_EQ(tuttiTopologyParseXml(text.c_str(), text.size(), "t.xml", &none),
              tuttiInvalidArgument)
        << wrong;
  }
}

} // namespace

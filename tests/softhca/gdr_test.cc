// GPUDirect RDMA: which ports do it, what is staged where they do not, and ports that fail.
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <fstream>

#include "fault_scenario.h"
#include "gdr_ranks.h"
#include "transport/symmetric.h"

namespace {

// ---- the tests
// ------------------------------------------------------------------------------------

TEST(Gdr, PayloadsGoFromGpuMemoryToGpuMemory) {
  if (!configured("movers 1")) return;
  {
    Ranks r;
    r.attach();
    EXPECT_EQ(r.a.answer(), TUTTI_GDR_YES);
    EXPECT_EQ(r.via(), "NET/IB/0/GDRDMA");
    tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
    EXPECT_TRUE(from.gpuData);
    EXPECT_TRUE(to.gpuData);
    fakeCudaDelay(200);
    EXPECT_EQ(exchange(r, from, to, 100, kSizes), 0) << r.a.error << r.b.error;
    closeBoth(r, from, to);
  }
  EXPECT_EQ(allocations, 0);
}

TEST(Gdr, EachSideDecidesForItself) {
  if (!configured("movers 1")) return;
  for (bool first : {true, false}) {
    Ranks r(first, !first);
    r.attach();
    EXPECT_EQ(r.via(), "NET/IB/0");
    tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
    EXPECT_EQ(from.gpuData != 0, first);
    EXPECT_EQ(to.gpuData != 0, !first);
    EXPECT_EQ(exchange(r, from, to, 30, kSizes), 0) << r.a.error << r.b.error;
    closeBoth(r, from, to);
  }
}

// NICs write the GPU's memory and do not read it. The slab is for what comes alone: with room for
// two, both connections that receive have theirs, though those that send were there first.
TEST(Gdr, WhatIsSentIsStagedWhereReadsAreOff) {
  if (!configured("movers 1")) return;
  set("TUTTI_NET_GDR_READ", "0");
  set("TUTTI_NET_GDR_SLAB", "1M");
  Ranks r;
  r.attach();
  for (Rank *rank : {&r.a, &r.b}) {
    EXPECT_EQ(rank->answer(), TUTTI_GDR_YES);
    EXPECT_EQ(rank->answer(0, true), TUTTI_GDR_NO_READ);
  }
  EXPECT_EQ(r.via(), "NET/IB/0");
  tuttiConn from[2], to[2], forth[2], back[2];
  for (int i = 0; i < 2; i++) {
    from[i] = r.a.open(i, TUTTI_SEND);
    forth[i] = r.b.open(i, TUTTI_SEND);
    EXPECT_FALSE(from[i].gpuData || forth[i].gpuData);
  }
  for (int i = 0; i < 2; i++) {
    to[i] = r.b.open(i, TUTTI_RECV);
    back[i] = r.a.open(i, TUTTI_RECV);
    EXPECT_TRUE(to[i].gpuData && back[i].gpuData) << i;
    EXPECT_EQ(exchange(r, from[i], to[i], 30, kSizes), 0) << r.a.error << r.b.error;
  }
  for (int i = 0; i < 2; i++) {
    closeBoth(r, from[i], to[i]);
    closeBoth(r, back[i], forth[i]);
  }
}

TEST(Gdr, AFlushComesBeforeTheReader) {
  if (!configured("invisible_ms 1000")) return;
  Ranks r;
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_EQ(exchange(r, from, to, 200, kSizes), 0) << r.a.error << r.b.error;
  closeBoth(r, from, to);
}

/* ThreadSanitizer sees that the bytes are read while they come, which is what is shown here. */
#ifndef __SANITIZE_THREAD__
TEST(Gdr, WithoutAFlushOldBytesAreRead) {
  if (!configured("invisible_ms 1000")) return;
  set("TUTTI_NET_GDR_FLUSH", "off");
  Ranks r;
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_GT(exchange(r, from, to, 50, {kSlot}), 0) << "or the test before could not fail";
  closeBoth(r, from, to);
}

// Where the GPU says that it needs none, the setting decides.
TEST(Gdr, AFlushIsForTheSettingToSay) {
  if (!configured("invisible_ms 1000")) return;
  needsFlush = false;
  for (const char *flush : {"on", "auto", "off"}) {
    set("TUTTI_NET_GDR_FLUSH", flush);
    Ranks r;
    r.attach();
    tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
    int wrong = exchange(r, from, to, 50, {kSlot});
    EXPECT_GE(wrong, 0) << r.a.error << r.b.error;
    EXPECT_EQ(wrong == 0, std::string(flush) == "on") << flush;
    closeBoth(r, from, to);
  }
}
#endif

TEST(Gdr, ANicThatGarblesBytesFailsItsCheck) {
  if (!configured("fault flip nth=1")) return;
  Ranks r;
  EXPECT_EQ(r.a.answer(), TUTTI_GDR_BROKEN);
  EXPECT_EQ(r.b.answer(), TUTTI_GDR_YES) << "the fault has passed";
  EXPECT_EQ(r.via(), "NET/IB/0");
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_FALSE(from.gpuData);
  EXPECT_TRUE(to.gpuData);
  EXPECT_EQ(exchange(r, from, to, 20, kSizes), 0) << r.a.error << r.b.error;
  closeBoth(r, from, to);
}

TEST(Gdr, ACheckWhoseCompletionsCannotBeReadHasFailed) {
  if (!configured("fault poll nth=1")) return;
  set("TUTTI_DEBUG", "WARN");
  testing::internal::CaptureStderr();
  Ranks r;
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("does not arrive: its completion queue failed"));
  EXPECT_EQ(r.a.answer(), TUTTI_GDR_BROKEN);
  EXPECT_EQ(r.b.answer(), TUTTI_GDR_YES) << "the fault has passed";
}

// Of some n it is a flush's, which the driver then makes; of others that of a rail, which goes.
class PollFailsAt : public testing::TestWithParam<int> {};

TEST_P(PollFailsAt, AndPayloadsArriveWhole) {
  if (!configured("device softhca0\ndevice softhca1\nfault poll nth=" + std::to_string(GetParam())))
    return;
  Ranks r;
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_EQ(exchange(r, from, to, 50, kSizes), 0) << r.a.error << r.b.error;
  closeBoth(r, from, to);
}

INSTANTIATE_TEST_SUITE_P(Gdr, PollFailsAt, testing::Values(9, 10, 11, 12, 13, 15, 17, 20, 30, 50));

TEST(Gdr, WhatIsRequiredAndBrokenFailsInit) {
  if (!configured("fault flip nth=1")) return;
  set("TUTTI_NET_GDR", "require");
  Rank r;
  set("TUTTI_NET_GDR_LEVEL", "SYS");
  tuttiResult_t result = r.prepare(0, true);
  tuttiPeer other = r.mine();
  other.rank = 1;
  other.hostId++;
  r.meet(other);
  if (result == tuttiSuccess) result = tuttiTransportNet.attach(&r.view);
  EXPECT_NE(result, tuttiSuccess);
  EXPECT_NE(std::string(tuttiErrorText()).find("TUTTI_NET_GDR=require"), std::string::npos)
      << tuttiErrorText();
}

// The error of attaching where GPUDirect RDMA is required and the first port fails.
std::string requiredOf(const std::string &config) {
  if (!configured(config)) return "";
  set("TUTTI_NET_GDR", "require");
  Ranks r;
  EXPECT_EQ(r.b.answer(0), TUTTI_GDR_YES);
  EXPECT_EQ(r.b.answer(1), TUTTI_GDR_YES);
  EXPECT_NE(tuttiTransportNet.attach(&r.a.view), tuttiSuccess);
  std::string text = tuttiErrorText();
  EXPECT_EQ(tuttiTransportNet.attach(&r.b.view), tuttiSuccess) << tuttiErrorText();
  return text;
}

// Though the other one would carry it all.
TEST(Gdr, ABrokenPortOfSeveralIsNotWhatWasRequired) {
  std::string text = requiredOf("fault flip nth=1\ndevice softhca0 ports=2");
  if (text.empty()) return;
  EXPECT_THAT(text, testing::HasSubstr("rank 0: TUTTI_NET_GDR=require, and softhca0 port 1 does no "
                                       "GPUDirect RDMA: it was tried at init"));
}

// The ninth registration is the first of a slab: the check needs two of each port and rank.
TEST(Gdr, APortThatRefusesTheSlabIsNotWhatWasRequired) {
  std::string text = requiredOf("fault refuse nth=9\ndevice softhca0 ports=2");
  if (text.empty()) return;
  EXPECT_THAT(text, testing::HasSubstr("softhca0 port 1 does no GPUDirect RDMA: it did not take"));
}

TEST(Gdr, ABrokenPortIsNoMatterWhereNobodyIsFar) {
  if (!configured("fault flip nth=1")) return;
  set("TUTTI_NET_GDR", "require");
  set("TUTTI_NET_GDR_LEVEL", "SYS");
  Rank r;
  ASSERT_EQ(r.prepare(0, true), tuttiSuccess) << tuttiErrorText();
  EXPECT_EQ(r.answer(), TUTTI_GDR_BROKEN);
  EXPECT_EQ(tuttiTransportNet.attach(&r.view), tuttiSuccess) << tuttiErrorText();
}

TEST(Gdr, AConnectionWithoutABlockIsNotWhatWasRequired) {
  if (!configured("movers 1")) return;
  set("TUTTI_NET_GDR", "require");
  set("TUTTI_NET_GDR_SLAB", "1M"); // two connections
  Ranks r;
  r.attach();
  tuttiConn from[2], third{};
  for (int i = 0; i < 2; i++)
    from[i] = r.a.open(i, TUTTI_SEND);
  EXPECT_EQ(tuttiTransportNet.open(&r.a.view, 1, 2, TUTTI_RECV, false, &third), tuttiInvalidUsage);
  EXPECT_THAT(tuttiErrorText(),
              testing::HasSubstr("rank 0: TUTTI_NET_GDR=require, and its connection from rank 1, "
                                 "channel 2, finds none of the 2 blocks of GPU memory free"));
  tuttiTransportNet.close(&r.a.view, &from[0]);
  third = r.a.open(2, TUTTI_RECV);
  EXPECT_TRUE(third.gpuData);
  tuttiTransportNet.close(&r.a.view, &from[1]);
  tuttiTransportNet.close(&r.a.view, &third);
}

TEST(Gdr, ASlabWithoutRoomIsNotWhatWasRequired) {
  if (!configured("movers 1")) return;
  set("TUTTI_NET_GDR", "require");
  set("TUTTI_NET_GDR_SLAB", "1M");
  Ranks r(true, true, 1 << 20);
  EXPECT_EQ(tuttiTransportNet.attach(&r.a.view), tuttiInvalidUsage);
  EXPECT_THAT(tuttiErrorText(), testing::HasSubstr("TUTTI_NET_GDR_SLAB has no room"));
}

// What the slab takes of the GPU is told, and is within what the limit leaves beside the symmetric
// block.
TEST(Gdr, TheSlabIsCountedAndLimited) {
  if (!configured("movers 1")) return;
  set("TUTTI_NET_GDR_LEVEL", "SYS");
  constexpr size_t kMiB = 1 << 20;
  struct {
    size_t limit, block, slab;
  } cases[] = {{0, 5 * kMiB, 6 * kMiB}, // for ten connections
               {20 * kMiB, 5 * kMiB, 6 * kMiB},
               {10 * kMiB, 5 * kMiB, 4 * kMiB},
               {6 * kMiB, 5 * kMiB, 0},
               {5 * kMiB, 6 * kMiB, 0}};
  for (auto &c : cases) {
    Rank r, other;
    tuttiSymmetric block{};
    block.taken = c.block;
    r.view.memLimit = c.limit;
    r.view.symmetric = &block;
    ASSERT_EQ(r.prepare(0, true), tuttiSuccess) << tuttiErrorText();
    ASSERT_EQ(other.prepare(1, true), tuttiSuccess) << tuttiErrorText();
    r.meet(other.mine());
    r.view.memLimit = 0; // as wireup leaves it: what is taken of host memory is not limited
    uint64_t before = tuttiLoadRelaxed(&r.memory.bytes);
    ASSERT_EQ(tuttiTransportNet.attach(&r.view), tuttiSuccess) << tuttiErrorText();
    uint64_t taken = tuttiLoadRelaxed(&r.memory.bytes) - before; // with a flag for each block
    EXPECT_EQ(taken / kMiB, c.slab / kMiB) << c.limit;
    tuttiTransportNet.detach(&r.view);
    EXPECT_LE(tuttiLoadRelaxed(&r.memory.bytes), before);
  }
  EXPECT_EQ(allocations, 0);
  set("TUTTI_NET_GDR", "require");
  Rank r, other;
  r.view.memLimit = kMiB;
  ASSERT_EQ(r.prepare(0, true), tuttiSuccess) << tuttiErrorText();
  ASSERT_EQ(other.prepare(1, true), tuttiSuccess) << tuttiErrorText();
  r.meet(other.mine());
  EXPECT_EQ(tuttiTransportNet.attach(&r.view), tuttiInvalidUsage);
  EXPECT_THAT(tuttiErrorText(), testing::HasSubstr("TUTTI_MEM_LIMIT leaves no room"));
}

// With payloads in GPU memory or without, as takeData will say: no connection pins its own.
TEST(Gdr, FifosOfBothKindsArePinnedAtAttach) {
  if (!configured("movers 1")) return;
  const struct {
    const char *slab, *read;
    int neighbours;
    size_t all, inGpu; // connections that are expected
  } cases[] = {{"512M", "1", 1, 10, 10}, {"512M", "0", 1, 10, 5}, {"1M", "1", 1, 10, 2},
               {"1M", "0", 1, 10, 2},    {"512M", "1", 0, 2, 2},  {"512M", "0", 0, 2, 1}};
  for (const auto &c : cases) {
    set("TUTTI_NET_GDR_SLAB", c.slab);
    set("TUTTI_NET_GDR_READ", c.read);
    Ranks r(true, false);
    r.a.view.neighbours = c.neighbours;
    int before = pins;
    r.attach();
    EXPECT_EQ(pins, before + 1);
    EXPECT_EQ(pinned, c.inGpu * tuttiPagesUp(tuttiNetHostBytes(&r.a.view, true)) +
                          (c.all - c.inGpu) * tuttiPagesUp(tuttiNetHostBytes(&r.a.view, false)));
    std::vector<tuttiConn> conns;
    for (int channel : {0, 1, 2, 3, TUTTI_P2P_CHANNEL})
      for (tuttiDirection direction : {TUTTI_SEND, TUTTI_RECV})
        if (conns.size() < c.all) conns.push_back(r.a.open(channel, direction));
    EXPECT_EQ(pins, before + 1) << c.slab << " " << c.read;
    tuttiConn to = r.b.open(0, TUTTI_RECV);
    EXPECT_EQ(exchange(r, conns[0], to, 20, kSizes), 0) << r.a.error << r.b.error;
    tuttiTransportNet.close(&r.b.view, &to);
    for (auto &conn : conns)
      tuttiTransportNet.close(&r.a.view, &conn);
  }
}

// Reads across sockets are slow, and asked for all the same where nothing may be staged; but for
// what was to be.
TEST(Gdr, WhatIsSentAcrossSocketsIsStaged) {
  if (!configured("movers 1")) return;
  topology = acrossSockets();
  const struct {
    const char *gdr, *read;
    bool staged;
  } cases[] = {{"auto", "auto", true},     {"auto", "1", false},   {"auto", "0", true},
               {"require", "auto", false}, {"require", "0", true}, {"require", "1", false}};
  for (const auto &c : cases) {
    set("TUTTI_NET_GDR", c.gdr);
    set("TUTTI_NET_GDR_READ", c.read);
    Ranks r;
    r.attach();
    EXPECT_EQ(r.a.answer(), TUTTI_GDR_YES);
    EXPECT_EQ(r.a.answer(0, true), c.staged ? TUTTI_GDR_NO_READ : TUTTI_GDR_YES);
    tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
    EXPECT_EQ(from.gpuData != 0, !c.staged) << c.gdr << c.read;
    EXPECT_TRUE(to.gpuData);
    EXPECT_EQ(exchange(r, from, to, 20, kSizes), 0) << r.a.error << r.b.error;
    closeBoth(r, from, to);
  }
}

TEST(Gdr, WithoutDmabufAndPeermemPayloadsAreStaged) {
  if (!configured("dmabuf no")) return;
  Ranks r;
  EXPECT_EQ(r.a.answer(), TUTTI_GDR_NO_DRIVER);
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_FALSE(from.gpuData);
  EXPECT_EQ(exchange(r, from, to, 20, kSizes), 0) << r.a.error << r.b.error;
  closeBoth(r, from, to);
}

// Then bytes that the NIC garbles are the user's.
TEST(Gdr, WithoutTheCheckABrokenNicIsUsed) {
  if (!configured("fault flip nth=1")) return;
  set("TUTTI_NET_GDR_CHECK", "0");
  Ranks r;
  r.attach();
  EXPECT_EQ(r.a.answer(), TUTTI_GDR_YES);
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_TRUE(from.gpuData && to.gpuData);
  EXPECT_EQ(exchange(r, from, to, 20, {kSlot}), 1) << r.a.error << r.b.error;
  closeBoth(r, from, to);
}

TEST(Gdr, WithoutDmabufByTheSettingPayloadsAreStaged) {
  if (!configured("dmabuf yes")) return;
  set("TUTTI_DMABUF_ENABLE", "0");
  Ranks r;
  EXPECT_EQ(r.a.answer(), TUTTI_GDR_NO_DRIVER);
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_FALSE(from.gpuData || to.gpuData);
  EXPECT_EQ(exchange(r, from, to, 20, kSizes), 0) << r.a.error << r.b.error;
  closeBoth(r, from, to);
}

// This process sees nvidia_peermem among the modules from now on; false: it may not change that.
bool loadPeermem() {
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("tmpfs", "/sys/module", "tmpfs", 0, nullptr) != 0)
    return false;
  EXPECT_EQ(mkdir("/sys/module/nvidia_peermem", 0755), 0);
  std::ofstream("/sys/module/nvidia_peermem/version") << "580.95.05\n";
  return true;
}

// Whether that can be done, tried in another process.
bool mayLoadPeermem() {
  int status = -1;
  pid_t child = fork();
  if (child == 0) _exit(loadPeermem() ? 0 : 1);
  waitpid(child, &status, 0);
  return status == 0;
}

// By the plain address: no dma-buf is exported. Flags of relaxed ordering are refused, too.
void byPeermem(bool dmabuf) {
  ASSERT_TRUE(loadPeermem());
  set("TUTTI_DMABUF_ENABLE", dmabuf ? "1" : "0");
  set("TUTTI_IB_PCI_RELAXED_ORDERING", "1");
  set("TUTTI_DEBUG", "INFO");
  testing::internal::CaptureStderr();
  Ranks r;
  r.attach();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr(": by nvidia_peermem"));
  EXPECT_EQ(r.a.answer(), TUTTI_GDR_YES);
  EXPECT_EQ(r.via(), "NET/IB/0/GDRDMA");
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_TRUE(from.gpuData && to.gpuData);
  EXPECT_EQ(exchange(r, from, to, 50, kSizes), 0) << r.a.error << r.b.error;
  closeBoth(r, from, to);
}

TEST(Gdr, PeermemAloneWillDo) {
  if (!mayLoadPeermem()) GTEST_SKIP() << "no mount namespace here";
  if (configured("dmabuf no\npeermem yes\nrelaxing no")) byPeermem(true);
}

TEST(Gdr, PeermemIsUsedWhereTheSettingForbidsDmabuf) {
  if (!mayLoadPeermem()) GTEST_SKIP() << "no mount namespace here";
  if (configured("peermem yes")) byPeermem(false);
}

// The module is there, and the NIC's driver does not know it.
TEST(Gdr, PeermemThatRefusesIsTold) {
  if (!mayLoadPeermem()) GTEST_SKIP() << "no mount namespace here";
  if (!configured("dmabuf no\npeermem no")) return;
  ASSERT_TRUE(loadPeermem());
  set("TUTTI_DEBUG", "WARN");
  testing::internal::CaptureStderr();
  Ranks r;
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("the device does not register memory of the GPU"));
  EXPECT_EQ(r.a.answer(), TUTTI_GDR_BROKEN);
  EXPECT_EQ(r.via(), "NET/IB/0");
}

// Eleven queue pairs have 1056 requests, and twice as much is not to be had.
TEST(Gdr, ACompletionQueueGrowsAsFarAsItsDeviceAllows) {
  if (!configured("device softhca0 max_cqe=1100")) return;
  set("TUTTI_IB_QPS_PER_CONNECTION", "11");
  Ranks r(false, false);
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_EQ(exchange(r, from, to, 50, kSizes), 0) << r.a.error << r.b.error;
  closeBoth(r, from, to);
}

TEST(Gdr, WhatFindsNoRoomIsStagedAndGetsItLater) {
  if (!configured("movers 1")) return;
  set("TUTTI_NET_GDR_SLAB", "1M"); // two connections
  Ranks r;
  r.attach();
  tuttiConn from[3], to[3];
  for (int i = 0; i < 3; i++) {
    from[i] = r.a.open(i, TUTTI_SEND);
    to[i] = r.b.open(i, TUTTI_RECV);
    EXPECT_EQ(from[i].gpuData != 0, i < 2);
  }
  for (int i = 0; i < 3; i++)
    EXPECT_EQ(exchange(r, from[i], to[i], 20, kSizes), 0) << r.a.error << r.b.error;
  closeBoth(r, from[0], to[0]);
  from[0] = r.a.open(3, TUTTI_SEND);
  to[0] = r.b.open(3, TUTTI_RECV);
  EXPECT_TRUE(from[0].gpuData && to[0].gpuData);
  EXPECT_EQ(exchange(r, from[0], to[0], 20, kSizes), 0) << r.a.error << r.b.error;
  for (int i = 0; i < 3; i++)
    closeBoth(r, from[i], to[i]);
}

// Of twenty ports, the first two are down; the last two find no room.
TEST(Gdr, PortsThatAreDownMakeRoomForPortsThatAreUp) {
  std::string config = "movers 1\ndevice hca0 ports=2 down_ms=1\n";
  for (int i = 1; i < 10; i++)
    config += "device hca" + std::to_string(i) + " ports=2\n";
  if (!configured(config)) return;
  ibv_device **list = ibv_get_device_list(nullptr);
  ibv_context *context = ibv_open_device(list[0]);
  ibv_free_device_list(list);
  for (int port : {1, 2}) {
    ibv_port_attr attr{};
    for (uint64_t end = tuttiNow() + kLongNs; tuttiNow() < end && attr.state != IBV_PORT_DOWN;)
      EXPECT_EQ(ibv_query_port(context, static_cast<uint8_t>(port), &attr), 0);
    EXPECT_EQ(attr.state, IBV_PORT_DOWN);
  }
  Rank r;
  set("TUTTI_NET_GDR_LEVEL", "SYS");
  ASSERT_EQ(r.prepare(0, true), tuttiSuccess) << tuttiErrorText();
  ibv_close_device(context); // its ports have failed for as long as a device is open
  tuttiIbHandle h;
  memcpy(&h, r.mine().net, sizeof h);
  ASSERT_EQ(h.nports, TUTTI_IB_PORTS);
  for (int i = 0; i < h.nports; i++) {
    EXPECT_TRUE(h.ports[i].up) << i;
    EXPECT_EQ(h.ports[i].device, "hca" + std::to_string(1 + i / 2));
    EXPECT_EQ(h.ports[i].port, 1 + i % 2);
  }
}

// Both flushes and payloads go on, over the other port and then over both.
TEST(Gdr, APortThatFailsIsMended) {
  if (!configured("invisible_ms 1000\ndevice softhca0 ports=2\n"
                  "port softhca0/1 down_frames=300 up_ms=500"))
    return;
  Ranks r;
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_TRUE(to.gpuData);
  EXPECT_EQ(exchange(r, from, to, 2000, kSizes), 0) << r.a.error << r.b.error;
  closeBoth(r, from, to);
}

// What a device says once more of one flush is not taken for the next.
TEST(Gdr, ACompletionThatIsRepeatedIsNoFlush) {
  if (!configured("invisible_ms 1000\nfault completion_again p=1")) return;
  Ranks r;
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_TRUE(to.gpuData);
  EXPECT_EQ(exchange(r, from, to, 500, kSizes), 0) << r.a.error << r.b.error;
  EXPECT_EQ(driverFlushes, 0);
  closeBoth(r, from, to);
}

TEST(Gdr, AFlushWhoseCompletionIsLostIsMadeByTheDriver) {
  if (!configured("invisible_ms 1000\nfault completion_lost p=0.02")) return;
  Ranks r;
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_TRUE(to.gpuData);
  /* Whose completion is lost is left to chance: until it is a flush's. */
  for (uint64_t end = tuttiNow() + kLongNs; driverFlushes == 0 && tuttiNow() < end;)
    ASSERT_EQ(exchange(r, from, to, 100, kSizes), 0) << r.a.error << r.b.error;
  EXPECT_GT(driverFlushes, 0);
  closeBoth(r, from, to);
}

// A rail reads back what it has written once its port is there again; until then the driver does.
TEST(Gdr, AFlushGoesByItsRailAgainAfterItsPortWasDown) {
  if (!configured("device softhca0 ports=2")) return;
  set("TUTTI_IB_TIMEOUT", "10");
  Ranks r;
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_EQ(exchange(r, from, to, 50, {kSlot}), 0) << r.a.error << r.b.error;
  EXPECT_EQ(driverFlushes, 0);
  softHcaPort(0, 1, 0);
  for (uint64_t end = tuttiNow() + kLongNs; driverFlushes == 0 && tuttiNow() < end;)
    ASSERT_EQ(exchange(r, from, to, 50, {kSlot}), 0) << r.a.error << r.b.error;
  EXPECT_GT(driverFlushes, 0);
  softHcaPort(0, 1, 1);
  bool again = false;
  for (uint64_t end = tuttiNow() + kLongNs; !again && tuttiNow() < end;) {
    uint64_t frames = softHcaFrames(0, 1);
    driverFlushes = 0;
    ASSERT_EQ(exchange(r, from, to, 50, {kSlot}), 0) << r.a.error << r.b.error;
    again = driverFlushes == 0 && softHcaFrames(0, 1) > frames + 50;
  }
  EXPECT_TRUE(again) << "it has no queue pair to read by";
  closeBoth(r, from, to);
}

// A port that was down at init is checked when it comes up, and then carries payloads, too.
TEST(Gdr, APortThatComesUpLaterIsCheckedAndUsed) {
  if (!configured("device softhca0 ports=2")) return;
  softHcaPort(0, 2, 0);
  {
    Ranks r;
    EXPECT_EQ(r.a.answer(0), TUTTI_GDR_YES);
    EXPECT_EQ(r.a.answer(1), TUTTI_GDR_DOWN);
    r.attach();
    tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
    EXPECT_EQ(exchange(r, from, to, 50, {kSlot}), 0) << r.a.error << r.b.error;
    EXPECT_EQ(softHcaFrames(0, 2), 0u);
    softHcaPort(0, 2, 1);
    bool used = false;
    for (uint64_t end = tuttiNow() + kLongNs; !used && tuttiNow() < end;) {
      uint64_t frames = softHcaFrames(0, 2);
      ASSERT_EQ(exchange(r, from, to, 50, {kSlot}), 0) << r.a.error << r.b.error;
      used = softHcaFrames(0, 2) > frames + 50;
    }
    EXPECT_TRUE(used);
    softHcaPort(0, 1, 0);
    EXPECT_EQ(exchange(r, from, to, 50, {kSlot}), 0) << r.a.error << r.b.error;
    closeBoth(r, from, to);
  }
  EXPECT_EQ(allocations, 0);
}

// The speed of a port that is down is that of others of its model, which it would have; then its
// own.
TEST(Gdr, APortThatIsDownIsAsFastAsItsLike) {
  if (!configured("device softhca0 gbps=50\ndevice softhca1 gbps=25\n"
                  "device softhca2 model=1 gbps=50\ndevice softhca3 model=2 gbps=12.5"))
    return;
  for (int device : {1, 2})
    softHcaPort(device, 1, 0);
  Rank r;
  ASSERT_EQ(r.prepare(0, false), tuttiSuccess) << tuttiErrorText();
  tuttiIbHandle h;
  memcpy(&h, r.mine().net, sizeof h);
  EXPECT_EQ(h.ports[0].megabits, 400000u);
  EXPECT_EQ(h.ports[1].megabits, h.ports[0].megabits);
  EXPECT_EQ(h.ports[2].megabits, 10000u) << "nothing is known of it";
  EXPECT_EQ(h.ports[3].megabits, 100000u);
  EXPECT_EQ(h.megabits, 500000u) << "of those that are up";
}

// Where no port could be checked at init, none that comes up is: what waits for it is staged.
TEST(Gdr, WhereAllPortsAreDownAtInitPayloadsAreStaged) {
  if (!configured("device softhca0")) return;
  softHcaPort(0, 1, 0);
  {
    Ranks r;
    EXPECT_EQ(r.a.answer(), TUTTI_GDR_DOWN);
    r.attach();
    tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
    EXPECT_FALSE(from.gpuData || to.gpuData);
    softHcaPort(0, 1, 1);
    EXPECT_EQ(exchange(r, from, to, 50, kSizes), 0) << r.a.error << r.b.error;
    closeBoth(r, from, to);
  }
  EXPECT_EQ(allocations, 0);
}

// The nth frame, and all behind it on its queue pair, are lost: of some n that is a flush.
class CutAt : public testing::TestWithParam<int> {};

TEST_P(CutAt, AFlushThatFailedIsNotTheLastByItsRail) {
  if (!configured("fault cut nth=" + std::to_string(GetParam()))) return;
  set("TUTTI_IB_TIMEOUT", "8");
  set("TUTTI_IB_RETRY_CNT", "1");
  Ranks r;
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  bool again = false;
  for (uint64_t end = tuttiNow() + kLongNs; !again && tuttiNow() < end;) {
    driverFlushes = 0;
    ASSERT_EQ(exchange(r, from, to, 50, {kSlot}), 0) << r.a.error << r.b.error;
    again = driverFlushes == 0;
  }
  EXPECT_TRUE(again) << "it has no queue pair to read by";
  EXPECT_EQ(exchange(r, from, to, 50, {kSlot}), 0) << r.a.error << r.b.error;
  EXPECT_EQ(driverFlushes, 0);
  closeBoth(r, from, to);
}

INSTANTIATE_TEST_SUITE_P(Gdr, CutAt, testing::Range(20, 26));

// Faults by seed, after which there is always a way; with every driver, and with none.
class GdrFaults : public testing::TestWithParam<unsigned> {};

TEST_P(GdrFaults, PayloadsArriveWhole) {
  Scenario s;
  for (unsigned seed = GetParam() * 1000; s.devices.empty() || s.ending != Ending::Right; seed++)
    s = ScenarioMaker(seed).make();
  const char *drivers[] = {"", "dmabuf no\n", "peermem yes\n", "dmabuf no\npeermem yes\n"};
  const char *visible[] = {"", "invisible_ms 1000\n"};
  if (!configured(drivers[GetParam() % 4] + std::string(visible[GetParam() % 2]) + s.devices +
                  s.faults[0]))
    return;
  for (auto &[name, value] : s.settings)
    set(name.c_str(), value.c_str());
  Ranks r;
  r.attach();
  ASSERT_NE(r.a.paths[1].transport, nullptr) << r.via();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  tuttiConn back = r.a.open(0, TUTTI_RECV), forth = r.b.open(0, TUTTI_SEND);
  EXPECT_EQ(exchange(r, from, to, 200, kSizes), 0) << r.a.error << r.b.error << s.text;
  closeBoth(r, from, to);
  closeBoth(r, back, forth);
}

INSTANTIATE_TEST_SUITE_P(Seeds, GdrFaults, testing::Range(1u, 25u));

// A device goes away at some command of init, of the check, of the slab or of connecting.
class GdrRemovals : public testing::TestWithParam<int> {};

TEST_P(GdrRemovals, TheOtherDeviceIsUsed) {
  if (!configured("device softhca0 removed_calls=" + std::to_string(GetParam()) +
                  "\ndevice softhca1"))
    return;
  Ranks r;
  r.attach();
  ASSERT_NE(r.a.paths[1].transport, nullptr) << r.via();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_EQ(exchange(r, from, to, 50, kSizes), 0) << r.a.error << r.b.error;
  closeBoth(r, from, to);
}

INSTANTIATE_TEST_SUITE_P(Gdr, GdrRemovals, testing::Range(1, 61));

// ---- rails
// ----------------------------------------------------------------------------------------

// Gives channel 0 from a to b the rail from port number `from` to port number `to`.
void giveRail(Ranks &r, int from, int to) {
  static tuttiChannelRail rails[2];
  tuttiRail rail{};
  EXPECT_GT(r.a.paths[1].net->join(&r.a.peers[0], from, &r.a.peers[1], to, &rail), 0);
  for (Rank *rank : {&r.a, &r.b}) {
    bool sends = rank == &r.a;
    rails[sends] = {1 - rank->view.rank, 0, (uint8_t)(sends ? TUTTI_SEND : TUTTI_RECV), rail};
    rank->view.channelRails = &rails[sends];
    rank->view.nchannelRails = 1;
  }
}

// What is logged while so many messages go over that rail and arrive whole; and as many while the
// port of device number `fails` is down, and after it came back.
std::string overRail(int from, int to, uint64_t messages, int fails = -1) {
  set("TUTTI_DEBUG", "INFO");
  Ranks r;
  giveRail(r, from, to);
  r.attach();
  testing::internal::CaptureStderr();
  tuttiConn out = r.a.open(0, TUTTI_SEND), in = r.b.open(0, TUTTI_RECV);
  int wrong = exchange(r, out, in, messages, kSizes);
  for (int up = 0; fails >= 0 && up < 2; up++) {
    softHcaPort(fails, 1, up);
    wrong += exchange(r, out, in, messages, kSizes);
  }
  std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(wrong, 0) << r.a.error << r.b.error << log;
  closeBoth(r, out, in);
  set("TUTTI_DEBUG", "WARN");
  return log;
}

bool says(const std::string &log, const std::string &what) {
  return log.find(what) != std::string::npos;
}

// All queue pairs of a channel join its rail, and those of another channel all ports.
TEST(Rail, IsWhatTheConnectionOfItsChannelUses) {
  if (!configured("device softhca0\ndevice softhca1\ndevice softhca2")) return;
  set("TUTTI_IB_QPS_PER_CONNECTION", "2");
  for (int from = 0; from < 3; from++)
    for (int to = 0; to < 3; to++) {
      std::string log = overRail(from, to, 50);
      EXPECT_TRUE(says(log, " by softhca" + std::to_string(from) + " port 1, ")) << log;
      EXPECT_TRUE(says(log, ", to its softhca" + std::to_string(to) + " port 1, ")) << log;
      EXPECT_TRUE(says(log, ", 2 queue pairs")) << log;
    }
}

// The port fails of both ranks, of the receiver, or of the sender: other ports take over, until it
// is back.
TEST(Rail, ThatFailsIsMendedByOthers) {
  if (!configured("device softhca0\ndevice softhca1\ndevice softhca2")) return;
  set("TUTTI_IB_TIMEOUT", "10");
  const std::pair<int, int> rails[] = {{1, 1}, {0, 1}, {1, 0}};
  for (auto [from, to] : rails) {
    std::string log = overRail(from, to, 300, 1);
    EXPECT_TRUE(says(log, "it works again, by ")) << log;
  }
}

// One whose port is down at init is used as soon as that is up, and alone; others carry until then.
TEST(Rail, ThatIsDownAtInitIsUsedWhenItComesUp) {
  if (!configured("device softhca0\ndevice softhca1\ndevice softhca2")) return;
  set("TUTTI_NET_GDR_FLUSH", "off"); // which is a frame of every port that has carried
  softHcaPort(1, 1, 0);
  Ranks r;
  EXPECT_EQ(r.a.answer(1), TUTTI_GDR_DOWN);
  giveRail(r, 1, 1);
  r.attach();
  tuttiConn out = r.a.open(0, TUTTI_SEND), in = r.b.open(0, TUTTI_RECV);
  EXPECT_EQ(exchange(r, out, in, 50, kSizes), 0) << r.a.error << r.b.error;
  EXPECT_EQ(softHcaFrames(1, 1), 0u);
  EXPECT_GE(softHcaFrames(0, 1) + softHcaFrames(2, 1), 50u);
  softHcaPort(1, 1, 1);
  bool alone = false;
  for (uint64_t end = tuttiNow() + kLongNs; !alone && tuttiNow() < end;) {
    uint64_t frames = softHcaFrames(1, 1), others = softHcaFrames(0, 1) + softHcaFrames(2, 1);
    ASSERT_EQ(exchange(r, out, in, 50, {kSlot}), 0) << r.a.error << r.b.error;
    alone =
        softHcaFrames(1, 1) >= frames + 50 && softHcaFrames(0, 1) + softHcaFrames(2, 1) == others;
  }
  EXPECT_TRUE(alone);
  closeBoth(r, out, in);
}

} // namespace

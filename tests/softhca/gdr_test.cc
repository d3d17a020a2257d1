// NET/IB between two ranks whose payloads lie in GPU memory that no CPU may touch: the stand-in's.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "control.h"
#include "end.h"
#include "fault_scenario.h"
#include "gpu_rank.h"
#include "transport/ib/wire.h"
#include "transport/rma_message.h"
#include "transport/rma_net.h"

namespace {

struct Ranks {
  Rank a, b;
  explicit Ranks(bool first = true, bool second = true, size_t slotBytes = kSlot) {
    set("TUTTI_NET_GDR_LEVEL", "SYS"); // the software HCA has no place on PCI
    EXPECT_EQ(a.prepare(0, first, slotBytes), tuttiSuccess) << tuttiErrorText();
    EXPECT_EQ(b.prepare(1, second, slotBytes), tuttiSuccess) << tuttiErrorText();
    a.meet(b.mine());
    b.meet(a.mine());
  }
  void attach() {
    EXPECT_EQ(tuttiTransportNet.attach(&a.view), tuttiSuccess) << tuttiErrorText();
    EXPECT_EQ(tuttiTransportNet.attach(&b.view), tuttiSuccess) << tuttiErrorText();
  }
  std::string via() {
    const tuttiPath *path = &a.paths[1];
    char via[TUTTI_VIA], why[TUTTI_SENTENCE];
    return path->transport ? tuttiPathVia(path, &a.peers[0], &a.peers[1], via)
                           : tuttiPathText(path, &a.peers[0], &a.peers[1], why);
  }
};

// ---- messages
// -------------------------------------------------------------------------------------

// Sends so many messages of sizes by turns, and returns how many came with wrong bytes; -1: not all
// came.
int exchange(Ranks &r, tuttiConn &from, tuttiConn &to, uint64_t messages,
             const std::vector<size_t> &sizes) {
  int wrong = 0;
  uint64_t got = 0;
  std::thread sender([&] {
    for (uint64_t i = 0; i < messages && r.a.await(from); i++)
      publish(r.a, from, sizes[i % sizes.size()]);
  });
  for (; got < messages && r.b.await(to); got++)
    wrong += !take(r.b, to, sizes[got % sizes.size()]);
  if (got < messages) tuttiStoreRelease32(&r.a.failed, 1); /* nor need the sender wait */
  sender.join();
  return got == messages ? wrong : -1;
}

const std::vector<size_t> kSizes = {1, 80, 81, 200, 4096, 5001, kSlot};

void closeBoth(Ranks &r, tuttiConn &from, tuttiConn &to) {
  tuttiTransportNet.close(&r.a.view, &from);
  tuttiTransportNet.close(&r.b.view, &to);
}

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

TEST(Gdr, WithoutAFlushOldBytesAreRead) {
  if (!configured("invisible_ms 1000")) return;
  set("TUTTI_NET_GDR_FLUSH", "off");
  Ranks r;
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_GT(exchange(r, from, to, 50, {kSlot}), 0) << "or the test before could not fail";
  closeBoth(r, from, to);
}

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

// ---- order
// ----------------------------------------------------------------------------------------

const std::vector<size_t> kLarge = {kSlot, 81, 40000, 100, 3, kSlot - 1};

// Parts of messages, too, as there are two ports.
TEST(Gdr, DeliveryOutOfOrderIsToldByCompletions) {
  if (!configured("reorder_us 5000\ndevice softhca0 ports=2")) return;
  set("TUTTI_IB_QPS_PER_CONNECTION", "2");
  set("TUTTI_NET_GDR_FLUSH", "off"); // a read waits for the writes before it
  Ranks r(true, true, 4 * kSlot);
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  tuttiConn back = r.a.open(0, TUTTI_RECV), forth = r.b.open(0, TUTTI_SEND);
  std::vector<size_t> sizes = kLarge;
  sizes.push_back(4 * kSlot); // is cut
  EXPECT_EQ(exchange(r, from, to, 500, sizes), 0) << r.a.error << r.b.error;
  closeBoth(r, from, to);
  closeBoth(r, back, forth);
}

/* ThreadSanitizer sees that the bytes are read while they come, which is what is shown here. */
#ifndef __SANITIZE_THREAD__
TEST(Gdr, OnlyCompletionsTellWhatComesOutOfOrder) {
  if (!configured("reorder_us 5000")) return;
  set("TUTTI_IB_ORDER", "writes");
  set("TUTTI_NET_GDR_FLUSH", "off"); // a read waits for the writes before it
  Ranks r;
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_NE(exchange(r, from, to, 200, {kSlot}), 0) << "or the test before could not fail";
  closeBoth(r, from, to);
}
#endif

TEST(Gdr, HostMemoryHasCompletionsWhereTheyAreAskedFor) {
  if (!configured("reorder_us 500")) return;
  set("TUTTI_IB_ORDER", "immediate");
  Ranks r(false, false);
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_EQ(exchange(r, from, to, 500, kLarge), 0) << r.a.error << r.b.error;
  closeBoth(r, from, to);
}

TEST(Gdr, WhatOneSideAsksForBothDo) {
  if (!configured("reorder_us 500")) return;
  for (bool first : {true, false}) { // auto: on GPUs alone
    Ranks r(first, !first);
    r.attach();
    tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
    EXPECT_EQ(exchange(r, from, to, 200, kLarge), 0) << r.a.error << r.b.error;
    closeBoth(r, from, to);
  }
}

TEST(Gdr, APortThatFailsOutOfOrderIsMended) {
  if (!configured("reorder_us 300\ninvisible_ms 1000\ndevice softhca0 ports=2\n"
                  "port softhca0/1 down_frames=300 up_ms=500"))
    return;
  Ranks r;
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_EQ(exchange(r, from, to, 3000, kSizes), 0) << r.a.error << r.b.error;
  closeBoth(r, from, to);
}

// ---- relaxed ordering
// ----------------------------------------------------------------------------------------

// Sends between two ranks on GPUs or hosts, both ways, and puts; all must come right.
void relaxedTraffic(bool onGpu) {
  Ranks r(onGpu, onGpu);
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  tuttiConn back = r.a.open(0, TUTTI_RECV), forth = r.b.open(0, TUTTI_SEND);
  EXPECT_EQ(to.gpuData != 0, onGpu);
  EXPECT_EQ(exchange(r, from, to, 100, kLarge), 0) << r.a.error << r.b.error;
  closeBoth(r, from, to);
  closeBoth(r, back, forth);
}

// Placed late is what goes to memory that is registered so, even behind what comes later on its
// queue pair: a flag would be believed too early. The flush is off, as it waits for the writes.
TEST(Relaxed, MemoryHasCompletionsForItsPayloads) {
  for (bool onGpu : {true, false}) {
    if (!configured("relaxed_us 5000")) return;
    set("TUTTI_IB_PCI_RELAXED_ORDERING", "1");
    set("TUTTI_NET_GDR_FLUSH", "off");
    uint64_t before = softHcaRelaxed();
    relaxedTraffic(onGpu);
    EXPECT_GT(softHcaRelaxed(), before);
  }
}

// The device promises order, which holds for other memory alone.
TEST(Relaxed, MemoryIsNotWhereFlagsAreBelieved) {
  if (!configured("relaxed_us 5000")) return;
  set("TUTTI_NET_GDR_FLUSH", "off");
  const char *const settings[][2] = {{"auto", "auto"}, {"0", "auto"},      {"auto", "writes"},
                                     {"1", "writes"},  {"0", "immediate"}, {"2", "auto"}};
  for (auto [relaxed, order] : settings)
    for (bool onGpu : {true, false}) {
      set("TUTTI_IB_PCI_RELAXED_ORDERING", relaxed);
      set("TUTTI_IB_ORDER", order);
      relaxedTraffic(onGpu);
      EXPECT_EQ(softHcaRelaxed(), 0u) << relaxed << order;
    }
}

// What has completions anyway.
TEST(Relaxed, MemoryIsWhatHasCompletionsAnyway) {
  if (!configured("relaxed_us 5000")) return;
  set("TUTTI_NET_GDR_FLUSH", "off");
  set("TUTTI_IB_ORDER", "immediate");
  for (bool onGpu : {true, false}) {
    uint64_t before = softHcaRelaxed();
    relaxedTraffic(onGpu);
    EXPECT_GT(softHcaRelaxed(), before);
  }
}

TEST(Relaxed, GpuMemoryIsWhereTheDeviceDoesNotPromiseOrder) {
  if (!configured("reorder_us 500")) return;
  relaxedTraffic(false);
  EXPECT_EQ(softHcaRelaxed(), 0u);
  relaxedTraffic(true);
  EXPECT_GE(softHcaRelaxed(), 2 + 2u) << "the slabs, and the FIFOs of who receives";
}

TEST(Relaxed, DevicesThatRefuseGoWithout) {
  if (!configured("relaxing no")) return;
  set("TUTTI_IB_PCI_RELAXED_ORDERING", "1");
  relaxedTraffic(true);
  relaxedTraffic(false);
  EXPECT_EQ(softHcaRelaxed(), 0u);
}

TEST(Relaxed, APortThatFailsIsMended) {
  if (!configured("relaxed_us 300\ninvisible_ms 1000\ndevice softhca0 ports=2\n"
                  "port softhca0/1 down_frames=300 up_ms=500"))
    return;
  set("TUTTI_IB_PCI_RELAXED_ORDERING", "1");
  Ranks r;
  r.attach();
  tuttiConn from = r.a.open(0, TUTTI_SEND), to = r.b.open(0, TUTTI_RECV);
  EXPECT_EQ(exchange(r, from, to, 3000, kSizes), 0) << r.a.error << r.b.error;
  closeBoth(r, from, to);
}

TEST(Relaxed, OtherWordsAreRefused) {
  for (const char *wrong : {"3", "yes", "12", "-1"}) {
    setenv("TUTTI_IB_PCI_RELAXED_ORDERING", wrong, 1);
    EXPECT_EQ(tuttiSettingsLoad(), tuttiInvalidArgument) << wrong;
    EXPECT_THAT(tuttiErrorText(), testing::HasSubstr("accepted: 0, 1 or auto"));
  }
  unsetenv("TUTTI_IB_PCI_RELAXED_ORDERING");
  EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess);
}

// ---- one-sided operations
// ----------------------------------------------------------------------------------------

constexpr uint32_t kWindow = 3;

// Who takes puts into a window of the GPU, by copies of the driver as the library's.
struct Taker {
  Rank &rank;
  tuttiConn &conn;
  cuPointer window = 0;
  size_t bytes;
  tuttiRmaKeys keys{};
  std::atomic<int> stores{0};
  tuttiAtomic64 counters[4]{}; // two for each rank
  tuttiRmaNet *net = nullptr;

  static tuttiResult_t store(void *self, void *to, const void *from, size_t n) {
    Taker *t = static_cast<Taker *>(self);
    std::vector<uint8_t> data(n);
    t->stores++;
    const uint8_t *at = static_cast<const uint8_t *>(from);
    bool onGpu = t->conn.gpuData && at >= t->conn.data &&
                 at < t->conn.data + TUTTI_FIFO_DEPTH * t->conn.slotBytes;
    if (onGpu)
      cuMemcpyDtoH_v2(data.data(), pointerOf(from), n);
    else
      memcpy(data.data(), from, n);
    return cuMemcpyHtoD_v2(pointerOf(to), data.data(), n) == CU_OK ? tuttiSuccess
                                                                   : tuttiUnhandledCudaError;
  }
  Taker(Rank &r, tuttiConn &c, size_t size) : rank(r), conn(c), bytes(size) {
    EXPECT_EQ(tuttiProxyCreate(&r.view.taker, Rank::fail, &r), tuttiSuccess);
    EXPECT_EQ(cuMemAlloc_v2(&window, bytes), CU_OK);
    tuttiRmaHome home{};
    home.view = &r.view;
    home.taker = r.view.taker;
    home.counters = counters;
    home.row = home.used = 2;
    home.store = store;
    home.owner = this;
    home.lookMs = 1;
    EXPECT_EQ(tuttiRmaNetCreate(&home, &net), tuttiSuccess);
    void *base = reinterpret_cast<void *>(window); // NOLINT: the ABI's integer
    EXPECT_EQ(tuttiRmaNetWindowOpen(net, kWindow, base, bytes, &keys), tuttiSuccess);
    EXPECT_EQ(tuttiRmaNetListen(net, &conn), tuttiSuccess);
  }
  ~Taker() {
    tuttiRmaNetFree(net);
    tuttiProxyDestroy(rank.view.taker);
    rank.view.taker = nullptr;
    EXPECT_EQ(cuMemFree_v2(window), CU_OK);
  }
  // Runs the network's loop, as the thread of a proxy that a waiting kernel keeps looking.
  bool await(uint64_t signals) {
    tuttiProxyEnter(rank.view.proxy);
    uint64_t end = tuttiNow() + kLongNs;
    while (tuttiLoadAcquire(&counters[1]) < signals && !tuttiLoadAcquire32(&rank.failed) &&
           tuttiNow() < end)
      if (!tuttiProxyRun(rank.view.proxy)) sched_yield();
    tuttiProxyLeave(rank.view.proxy);
    return tuttiLoadAcquire(&counters[1]) == signals;
  }
  std::vector<uint8_t> look() const {
    std::vector<uint8_t> data(bytes);
    cuMemcpyDtoH_v2(data.data(), window, bytes);
    return data;
  }
};

// A put as kernels/relay.cuh writes it, with signal 1, into a window that begins at `base`.
bool put(Rank &r, tuttiConn &c, const std::vector<uint8_t> &data, size_t offset, uint64_t base,
         const tuttiRmaKeys &keys) {
  size_t at = 0, piece;
  do {
    piece = std::min(data.size() - at, c.slotBytes);
    bool inlined = piece <= TUTTI_INLINE_MAX - sizeof(tuttiRmaHeader);
    if (!r.await(c)) return false;
    tuttiSlotDescriptor *slot = tuttiConnDescriptor(&c);
    tuttiRmaTarget target{};
    target.header = {offset + at, kWindow, static_cast<uint32_t>(piece), 1,
                     at + piece == data.size()};
    target.to = base + offset + at;
    target.keys = keys;
    memcpy(slot->inlined, &target, sizeof target);
    slot->bytes = static_cast<uint32_t>(piece + (inlined ? sizeof target.header : 0));
    slot->where = inlined ? TUTTI_WHERE_INLINE : TUTTI_WHERE_SLOT;
    slot->sig = tuttiSignature{};
    uint8_t *to = inlined ? slot->inlined + sizeof target.header : tuttiConnData(&c, piece);
    if (!inlined && c.gpuData && piece > c.smallBytes)
      cuMemcpyHtoD_v2(pointerOf(to), data.data() + at, piece);
    else
      std::copy_n(data.begin() + static_cast<long>(at), piece, to);
    tuttiConnAdvance(&c);
    tuttiProxyKick(r.view.proxy);
    at += piece;
  } while (at < data.size());
  return true;
}

// Puts of sizes by turns, each into the next place; none may be missing or mixed up when the last
// signal has come. `straight`: with the keys of the window. Returns how often the taker had to
// copy.
int putAll(Ranks &r, int puts, bool straight) {
  const std::vector<size_t> sizes = {0,    1,     56,        57,        80,    81,
                                     5000, kSlot, kSlot + 1, 32 * 1024, 32769, 3 * kSlot + 77};
  tuttiConn from = r.a.open(TUTTI_RMA_CHANNEL, TUTTI_SEND),
            to = r.b.open(TUTTI_RMA_CHANNEL, TUTTI_RECV);
  size_t room = 4 * kSlot;
  int stores = 0;
  {
    Taker taker(r.b, to, room * sizes.size());
    tuttiRmaKeys keys = straight ? taker.keys : tuttiRmaKeys{};
    std::vector<uint8_t> want = taker.look();
    std::vector<std::vector<uint8_t>> data;
    for (int i = 0; i < puts; i++) {
      size_t n = static_cast<size_t>(i) % sizes.size();
      data.emplace_back(sizes[n]);
      for (size_t k = 0; k < sizes[n]; k++)
        data.back()[k] = byteOf(static_cast<uint64_t>(i), k);
      std::copy(data.back().begin(), data.back().end(),
                want.begin() + static_cast<long>(n * room + 3));
    }
    std::thread sender([&] {
      for (size_t i = 0; i < data.size(); i++)
        if (!put(r.a, from, data[i], i % sizes.size() * room + 3, taker.window, keys)) return;
    });
    EXPECT_TRUE(taker.await(static_cast<uint64_t>(puts))) << r.a.error << r.b.error;
    EXPECT_TRUE(taker.look() == want);
    EXPECT_EQ(tuttiLoadAcquire(&taker.counters[0]), 0u);
    if (tuttiLoadAcquire(&taker.counters[1]) < static_cast<uint64_t>(puts))
      tuttiStoreRelease32(&r.a.failed, 1);
    sender.join();
    stores = taker.stores;
  }
  closeBoth(r, from, to);
  return stores;
}

// Of so many puts, the pieces whose data is in their descriptor: of 1 and 56 bytes, and the last
// one of kSlot + 1.
int inlined(int puts) {
  return puts / 12 * 3;
}

TEST(GdrPuts, GoIntoWindowsWhereverTheirSlotsAre) {
  if (!configured("movers 1")) return;
  for (bool first : {true, false})
    for (bool second : {true, false}) {
      Ranks r(first, second);
      r.attach();
      EXPECT_GT(putAll(r, 60, false), inlined(60));
    }
  EXPECT_EQ(allocations, 0);
}

TEST(GdrPuts, GoStraightIntoTheWindow) {
  if (!configured("movers 1")) return;
  for (bool first : {true, false}) {
    Ranks r(first, true);
    r.attach();
    EXPECT_EQ(putAll(r, 60, true), inlined(60)) << "nothing else is copied";
  }
}

// Some ports of the receiver have no key: what goes by them takes the slots.
TEST(GdrPuts, GoThroughSlotsWhereAKeyIsMissing) {
  if (!configured("movers 1\ndevice softhca0 ports=2")) return;
  for (int missing : {0, 1}) {
    Ranks r;
    r.attach();
    tuttiConn from = r.a.open(TUTTI_RMA_CHANNEL, TUTTI_SEND),
              to = r.b.open(TUTTI_RMA_CHANNEL, TUTTI_RECV);
    {
      Taker taker(r.b, to, kSlot);
      tuttiRmaKeys keys = taker.keys;
      EXPECT_NE(keys.key[0], 0u);
      EXPECT_NE(keys.key[1], 0u);
      keys.key[missing] = 0;
      std::vector<uint8_t> data(kSlot, 7);
      std::thread sender([&] { EXPECT_TRUE(put(r.a, from, data, 0, taker.window, keys)); });
      EXPECT_TRUE(taker.await(1)) << r.a.error << r.b.error;
      sender.join();
      EXPECT_EQ(taker.stores, 1);
      EXPECT_TRUE(taker.look() == data);
    }
    closeBoth(r, from, to);
  }
}

// What lies in a window that was closed, or beyond its end, is not for peers to write to.
TEST(GdrPuts, AClosedWindowIsNotWrittenTo) {
  if (!configured("movers 1")) return;
  for (bool closed : {false, true}) {
    Ranks r;
    r.attach();
    tuttiConn from = r.a.open(TUTTI_RMA_CHANNEL, TUTTI_SEND),
              to = r.b.open(TUTTI_RMA_CHANNEL, TUTTI_RECV);
    {
      Taker taker(r.b, to, kSlot);
      std::vector<uint8_t> before = taker.look(), data(kSlot, 7);
      if (closed) tuttiRmaNetWindowClose(taker.net, kWindow);
      std::thread sender([&] { put(r.a, from, data, closed ? 0 : 1, taker.window, taker.keys); });
      sender.join();
      tuttiProxyEnter(r.a.view.proxy);
      uint64_t end = tuttiNow() + kLongNs;
      while (!tuttiLoadAcquire32(&r.a.failed) && tuttiNow() < end)
        if (!tuttiProxyRun(r.a.view.proxy)) sched_yield();
      tuttiProxyLeave(r.a.view.proxy);
      EXPECT_THAT(r.a.error, testing::HasSubstr("remote access error"));
      EXPECT_TRUE(taker.look() == before);
      EXPECT_EQ(tuttiLoadAcquire(&taker.counters[1]), 0u);
    }
    closeBoth(r, from, to);
  }
}

TEST(GdrPuts, AreFlushedBeforeTheyAreTaken) {
  if (!configured("invisible_ms 1000")) return;
  for (bool straight : {false, true}) {
    Ranks r;
    r.attach();
    int stores = putAll(r, 60, straight);
    EXPECT_EQ(stores == inlined(60), straight);
  }
}

// The window, too; and on the host as on the GPU.
TEST(GdrPuts, GoIntoRelaxedWindows) {
  if (!configured("relaxed_us 2000")) return;
  set("TUTTI_IB_PCI_RELAXED_ORDERING", "1");
  set("TUTTI_NET_GDR_FLUSH", "off");
  Ranks r;
  r.attach();
  uint64_t before = softHcaRelaxed();
  EXPECT_EQ(putAll(r, 120, true), inlined(120));
  EXPECT_GE(softHcaRelaxed(), before + 2) << "window and FIFO";
}

TEST(GdrPuts, AreNotLostWithAPort) {
  for (bool straight : {false, true}) {
    if (!configured("reorder_us 300\ninvisible_ms 1000\ndevice softhca0 ports=2\n"
                    "port softhca0/1 down_frames=300 up_ms=500"))
      return;
    Ranks r;
    r.attach();
    putAll(r, 400, straight);
  }
}

} // namespace

// What goes wrong on purpose: each fault is seen, and only as its rule says.
#include "buffer.h"

#include <cerrno>
#include <chrono>

namespace {

// The next messages, one at a time; how many of them succeeded, and how the first one failed.
struct Outcome {
  int good = 0;
  ibv_wc_status bad = IBV_WC_SUCCESS;
};

Outcome writes(Pair &p, int n) {
  Outcome o;
  for (int i = 0; i < n && o.bad == IBV_WC_SUCCESS; i++) {
    EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, 5000, p.b.at(), p.b.mr->rkey), 0);
    o.bad = p.a.next().status;
    o.good += o.bad == IBV_WC_SUCCESS;
  }
  return o;
}

double milliseconds() {
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

TEST(Faults, LostFramesAreRepeated) {
  if (!configured("fault lost p=0.2")) return;
  Pair p;
  for (int i = 0; i < 30; i++) {
    memset(p.a.memory.data(), i, 100000);
    EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, 100000, p.b.at(), p.b.mr->rkey), 0);
    ibv_wc_status status = p.a.next().status;
    if (status == IBV_WC_RETRY_EXC_ERR) return; // three losses in a row, as may be
    EXPECT_EQ(status, IBV_WC_SUCCESS);
    EXPECT_EQ(p.b.memory[99999], (char)i);
  }
}

TEST(Faults, TheNthLostFrameCostsATimeout) {
  if (!configured("fault lost nth=3")) return;
  Pair p;
  EXPECT_EQ(writes(p, 2).good, 2);
  double start = milliseconds();
  EXPECT_EQ(writes(p, 1).good, 1);
  EXPECT_GE(milliseconds() - start, 16); // 4.096 us << 12
}

TEST(Faults, ACutConnectionCostsTheRetries) {
  if (!configured("fault cut nth=4")) return;
  Pair p, q;
  Outcome o = writes(p, 10);
  EXPECT_EQ(o.good, 3);
  EXPECT_EQ(o.bad, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(p.a.state(), IBV_QPS_ERR);
  EXPECT_EQ(writes(q, 3).good, 3) << "other queue pairs go on";
}

TEST(Faults, ReceiversSeemNotReady) {
  if (!configured("fault rnr p=1")) return;
  Pair p;
  EXPECT_EQ(p.b.postRecv(8), 0);
  EXPECT_EQ(p.a.post(IBV_WR_SEND, 8), 0);
  EXPECT_EQ(p.a.next().status, IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST(Faults, AReceiverIsNotReadyOnce) {
  if (!configured("fault rnr nth=1")) return;
  Pair p;
  EXPECT_EQ(p.b.postRecv(8), 0);
  EXPECT_EQ(p.a.post(IBV_WR_SEND, 8), 0);
  EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(p.b.next().status, IBV_WC_SUCCESS);
}

TEST(Faults, CompletionsAreLate) {
  if (!configured("fault completion nth=2 us=50000")) return;
  Pair p;
  EXPECT_EQ(writes(p, 1).good, 1);
  double start = milliseconds();
  EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, 8, p.b.at(), p.b.mr->rkey), 0);
  EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, 9, p.b.at(), p.b.mr->rkey), 0);
  EXPECT_EQ(p.a.next().byte_len, 8u);
  EXPECT_GE(milliseconds() - start, 50);
  EXPECT_EQ(p.a.next().byte_len, 9u) << "completions stay in order";
}

TEST(Faults, ACompletionIsLost) {
  if (!configured("fault completion_lost nth=2")) return;
  Pair p;
  for (uint32_t bytes = 1; bytes <= 4; bytes++)
    EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, bytes, p.b.at(), p.b.mr->rkey), 0);
  for (uint32_t bytes : {1u, 3u, 4u})
    EXPECT_EQ(p.a.next().byte_len, bytes);
  EXPECT_EQ(writes(p, 4).good, 4) << "the later ones free its place, too";
}

TEST(Faults, ACompletionIsRepeated) {
  if (!configured("fault completion_again nth=2")) return;
  Pair p;
  for (uint32_t bytes = 1; bytes <= 4; bytes++)
    EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, bytes, p.b.at(), p.b.mr->rkey), 0);
  for (uint32_t bytes : {1u, 2u, 2u, 3u, 4u})
    EXPECT_EQ(p.a.next().byte_len, bytes);
  EXPECT_EQ(writes(p, 4).good, 4);
}

TEST(Faults, RepeatedCompletionsDoNotOverrunTheirQueue) {
  if (!configured("fault completion_again p=1")) return;
  Pair p;
  EXPECT_EQ(ibv_resize_cq(p.a.cq, 4), 0);
  for (uint32_t bytes = 1; bytes <= 4; bytes++)
    EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, bytes, p.b.at(), p.b.mr->rkey), 0);
  for (uint32_t bytes : {1u, 1u, 2u, 2u, 3u, 3u, 4u, 4u})
    EXPECT_EQ(p.a.next().byte_len, bytes);
}

TEST(Faults, FramesAreLate) {
  if (!configured("fault late p=1 us=20000")) return;
  Pair p;
  double start = milliseconds();
  EXPECT_EQ(writes(p, 1).good, 1);
  EXPECT_GE(milliseconds() - start, 40); // and the acknowledgement, too
}

TEST(Faults, TheNthRegistrationIsRefused) {
  if (!configured("fault refuse nth=2")) return;
  End end;
  errno = 0;
  EXPECT_EQ(ibv_reg_mr(end.pd, end.memory.data(), 8, 0), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  ibv_mr *mr = ibv_reg_mr(end.pd, end.memory.data(), 8, 0);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

int differences(const Pair &p) {
  int n = 0;
  for (size_t i = 0; i < 5000; i++)
    n += __builtin_popcount((unsigned char)(p.a.memory[i] ^ p.b.memory[i]));
  return n;
}

TEST(Faults, ABitIsFlippedUnseen) {
  if (!configured("fault flip nth=2")) return;
  Pair p;
  memset(p.a.memory.data(), 0x5a, 5000);
  EXPECT_EQ(writes(p, 1).good, 1);
  EXPECT_EQ(differences(p), 0);
  EXPECT_EQ(writes(p, 1).good, 1);
  EXPECT_EQ(differences(p), 1);
}

TEST(Faults, ABitThatIsFlippedIsFoundByTheIcrc) {
  if (!configured("fault flip nth=2 icrc=yes")) return;
  Pair p;
  memset(p.a.memory.data(), 0x5a, 5000);
  EXPECT_EQ(writes(p, 1).good, 1);
  double start = milliseconds();
  EXPECT_EQ(writes(p, 1).good, 1);
  EXPECT_EQ(differences(p), 0);
  EXPECT_GE(milliseconds() - start, 16) << "the frame was not dropped";
}

TEST(Faults, ABitIsFlippedOnItsWayToAGpu) {
  if (!configured("fault flip nth=1")) return;
  fakeCudaDelay(500);
  GpuPair p(5000);
  p.from.fill(0);
  EXPECT_EQ(p.a.postFrom(p.from.part(5000), IBV_WR_RDMA_WRITE, p.to.at, p.to.mr->rkey), 0);
  EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
  int n = 0;
  for (char c : p.to.read(5000))
    n += __builtin_popcount((unsigned char)c);
  EXPECT_EQ(n, 1);
}

TEST(Faults, APortGoesDownAndUp) {
  if (!configured("device softhca0 down_frames=5 up_ms=100")) return;
  Pair p;
  writes(p, 10); // they fail, or are repeated when the port is up again
  EXPECT_EQ(p.a.nextEvent(), IBV_EVENT_PORT_ERR);
  EXPECT_EQ(p.a.nextEvent(), IBV_EVENT_PORT_ACTIVE);
  ibv_port_attr a = {};
  EXPECT_EQ(ibv_query_port(p.a.context, 1, &a), 0);
  EXPECT_EQ(a.state, IBV_PORT_ACTIVE);
  Pair q;
  EXPECT_EQ(writes(q, 5).good, 5);
}

TEST(Faults, APortStaysDown) {
  if (!configured("device softhca0 down_frames=5")) return;
  Pair p;
  Outcome o = writes(p, 10); // a frame for each, and one for its acknowledgement
  EXPECT_EQ(o.good, 2);
  EXPECT_EQ(o.bad, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(p.a.nextEvent(), IBV_EVENT_PORT_ERR);
  ibv_port_attr a = {};
  EXPECT_EQ(ibv_query_port(p.a.context, 1, &a), 0);
  EXPECT_EQ(a.state, IBV_PORT_DOWN);
}

TEST(Faults, ADeviceIsRemoved) {
  if (!configured("device softhca0 removed_frames=5")) return;
  Pair p;
  Outcome o = writes(p, 10);
  EXPECT_EQ(o.good, 2);
  EXPECT_EQ(o.bad, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(p.a.nextEvent(), IBV_EVENT_DEVICE_FATAL);
  EXPECT_EQ(p.b.nextEvent(), IBV_EVENT_DEVICE_FATAL);
  ibv_port_attr a = {};
  EXPECT_EQ(ibv_query_port(p.a.context, 1, &a), EIO);
  EXPECT_EQ(p.a.toInit(), EIO);
  EXPECT_EQ(ibv_reg_mr(p.a.pd, p.a.memory.data(), 8, 0), nullptr);
  EXPECT_EQ(errno, EIO);
  EXPECT_EQ(ibv_create_cq(p.a.context, 8, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(errno, EIO);
}

TEST(Faults, RulesMayComeFromTheEnvironment) {
  setenv("SOFTHCA_MORE", "fault refuse nth=2; seed 4", 1);
  if (!configured("")) {
    unsetenv("SOFTHCA_MORE");
    return;
  }
  End end;
  EXPECT_EQ(ibv_reg_mr(end.pd, end.memory.data(), 8, 0), nullptr);
}

// A wrong configuration ends the process before anything runs with another network.
TEST(Config, WhatIsNotUnderstoodEndsTheProcess) {
  for (const char *line :
       {"fault nonsense p=1", "fault lost p=2", "fault lost p=", "device a ports=3", "movers 9",
        "port softhca0/1 mtu=4096", "device a speed=fast", "dmabuf maybe", "seed -1", "seed",
        "device a pci", "device a pkeys=0", "device a pkeys=1,2,3,4,5", "device a pkeys=ffff,",
        "reorder_us nan", "unknown 1", "device a link=ib extra"})
    EXPECT_EXIT(
        {
          setenv("SOFTHCA_MORE", line, 1);
          ibv_get_device_list(nullptr);
        },
        testing::ExitedWithCode(2), "not understood")
        << line;
}

} // namespace

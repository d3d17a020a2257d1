// Ports and devices as the configuration has them, and delivery that is weaker than programs like.
#include "buffer.h"
#include "control.h"

#include <endian.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

namespace {

double seconds() {
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// ---- devices and ports ------------------------------------------------------------------------

TEST(Ports, AreWhatTheConfigurationSays) {
  if (!configured("device first ports=2 lid=7 width=8 speed=ndr mtu=1024 max_inline=64\n"
                  "port first/2 lid=9 width=1 speed=sdr subnet=fe80000000000001\n"
                  "device second link=roce gids=4"))
    return;
  int n = 0;
  ibv_device **list = ibv_get_device_list(&n);
  ibv_free_device_list(list);
  ASSERT_EQ(n, 2);
  End first(0), second(1);
  ibv_port_attr a = {};
  EXPECT_EQ(ibv_query_port(first.context, 1, &a), 0);
  EXPECT_EQ(a.lid, 7);
  EXPECT_EQ(a.active_width, 4);
  EXPECT_EQ(a.active_speed, 128);
  EXPECT_EQ(a.active_mtu, IBV_MTU_1024);
  EXPECT_EQ(a.gid_tbl_len, 1);
  EXPECT_EQ(a.link_layer, IBV_LINK_LAYER_INFINIBAND);
  EXPECT_EQ(ibv_query_port(first.context, 2, &a), 0);
  EXPECT_EQ(a.lid, 9);
  EXPECT_EQ(a.active_width, 1);
  EXPECT_EQ(a.active_speed, 1);
  ibv_gid one = {}, two = {};
  EXPECT_EQ(ibv_query_gid(first.context, 1, 0, &one), 0);
  EXPECT_EQ(ibv_query_gid(first.context, 2, 0, &two), 0);
  EXPECT_NE(one.global.subnet_prefix, two.global.subnet_prefix);
  EXPECT_EQ(ibv_query_port(second.context, 1, &a), 0);
  EXPECT_EQ(a.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(a.gid_tbl_len, 4);
  const int types[] = {IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_GID_TYPE_ROCE_V1,
                       IBV_GID_TYPE_ROCE_V2};
  for (uint32_t i = 0; i < 4; i++) {
    ibv_gid_entry entry = {};
    EXPECT_EQ(ibv_query_gid_ex(second.context, 1, i, &entry, 0), 0);
    EXPECT_EQ(entry.gid_type, (uint32_t)types[i]);
    EXPECT_EQ(entry.gid.raw[10] == 0xff, i >= 2) << "an IPv4 address";
  }
}

TEST(Ports, RefuseAPathMtuAboveTheirs) {
  if (!configured("device softhca0 mtu=512")) return;
  End end;
  EXPECT_EQ(end.toInit(), 0);
  EXPECT_EQ(end.toRtr(1), EINVAL); // 1024
}

TEST(Ports, HaveAMaximumOfInlineData) {
  if (!configured("device softhca0 max_inline=0")) return;
  ibv_device **list = ibv_get_device_list(nullptr);
  ibv_context *context = ibv_open_device(list[0]);
  ibv_free_device_list(list);
  ibv_pd *pd = ibv_alloc_pd(context);
  ibv_cq *cq = ibv_create_cq(context, 4, nullptr, nullptr, 0);
  ibv_qp_init_attr init = {};
  init.send_cq = init.recv_cq = cq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {1, 1, 1, 1, 8};
  EXPECT_EQ(ibv_create_qp(pd, &init), nullptr);
  init.cap.max_inline_data = 0;
  ibv_qp *qp = ibv_create_qp(pd, &init);
  ASSERT_NE(qp, nullptr);
  EXPECT_EQ(ibv_destroy_qp(qp) | ibv_destroy_cq(cq) | ibv_dealloc_pd(pd), 0);
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST(Ports, HaveAMaximumOfCompletions) {
  if (!configured("device softhca0 max_cqe=100")) return;
  End end; // its queue has 64
  ibv_device_attr attr = {};
  EXPECT_EQ(ibv_query_device(end.context, &attr), 0);
  EXPECT_EQ(attr.max_cqe, 100);
  EXPECT_EQ(ibv_create_cq(end.context, 101, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(ibv_resize_cq(end.cq, 101), EINVAL);
  EXPECT_EQ(ibv_resize_cq(end.cq, 100), 0);
}

TEST(Ports, SubnetsDoNotReachEachOther) {
  if (!configured("device a ports=2\nport a/2 subnet=fe80000000000002")) return;
  End a, b;
  EXPECT_EQ(a.toInit() | b.toInit(), 0);
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = b.qp->qp_num;
  attr.max_dest_rd_atomic = 4;
  attr.ah_attr.dlid = 2; // port 2, of another subnet
  attr.ah_attr.port_num = 1;
  EXPECT_EQ(ibv_modify_qp(a.qp, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
            0);
  EXPECT_EQ(b.toRtr(a.qp->qp_num) | a.toRts() | b.toRts(), 0);
  EXPECT_EQ(a.post(IBV_WR_RDMA_WRITE, 8, b.at(), b.mr->rkey), 0);
  EXPECT_EQ(a.next().status, IBV_WC_RETRY_EXC_ERR);
}

TEST(Ports, HavePartitionKeys) {
  if (!configured("device a ports=2 pkeys=ffff,8001,7fff\nport a/2 pkeys=8001")) return;
  End end;
  ibv_port_attr a = {};
  __be16 key = 0;
  EXPECT_EQ(ibv_query_port(end.context, 1, &a), 0);
  EXPECT_EQ(a.pkey_tbl_len, 3);
  EXPECT_EQ(ibv_query_pkey(end.context, 1, 1, &key), 0);
  EXPECT_EQ(key, htobe16(0x8001));
  EXPECT_EQ(ibv_query_pkey(end.context, 2, 0, &key), 0);
  EXPECT_EQ(key, htobe16(0x8001));
  EXPECT_NE(ibv_query_pkey(end.context, 2, 1, &key), 0);
  EXPECT_EQ(ibv_get_pkey_index(end.context, 1, htobe16(0x7fff)), 2);
  EXPECT_EQ(ibv_get_pkey_index(end.context, 2, htobe16(0xffff)), -1);
  EXPECT_EQ(end.toInit(3), EINVAL);
  EXPECT_EQ(end.toInit(2), 0);
}

// Of two members, one must be a full one.
TEST(Ports, QueuePairsOfOtherPartitionsDoNotMeet) {
  if (!configured("device a pkeys=ffff,8001,7fff,1")) return;
  const struct {
    uint16_t a, b;
    bool meet;
  } cases[] = {{0, 0, true},  {1, 1, true},  {0, 2, true},  {1, 3, true},
               {0, 1, false}, {2, 2, false}, {3, 3, false}, {2, 3, false}};
  for (auto &c : cases) {
    End a, b;
    EXPECT_EQ(a.toInit(c.a) | b.toInit(c.b), 0);
    EXPECT_EQ(a.toRtr(b.qp->qp_num) | b.toRtr(a.qp->qp_num), 0);
    EXPECT_EQ(a.toRts() | b.toRts(), 0);
    EXPECT_EQ(a.post(IBV_WR_RDMA_WRITE, 8, b.at(), b.mr->rkey), 0);
    EXPECT_EQ(a.next().status, c.meet ? IBV_WC_SUCCESS : IBV_WC_RETRY_EXC_ERR) << c.a << c.b;
  }
}

TEST(Ports, GetOtherAddresses) {
  if (!configured("device a pkeys=ffff,8001\ndevice b link=roce")) return;
  End a, b(1);
  ibv_port_attr attr = {};
  ibv_gid before = {}, after = {};
  __be16 key = 0;
  softHcaLid(0, 1, 77);
  EXPECT_EQ(a.nextEvent(), IBV_EVENT_LID_CHANGE);
  EXPECT_EQ(ibv_query_port(a.context, 1, &attr), 0);
  EXPECT_EQ(attr.lid, 77);
  softHcaPkey(0, 1, 1, 0x8002);
  EXPECT_EQ(a.nextEvent(), IBV_EVENT_PKEY_CHANGE);
  EXPECT_EQ(ibv_query_pkey(a.context, 1, 1, &key), 0);
  EXPECT_EQ(key, htobe16(0x8002));
  softHcaManager(0, 1);
  EXPECT_EQ(a.nextEvent(), IBV_EVENT_SM_CHANGE);
  EXPECT_EQ(ibv_query_gid(b.context, 1, 1, &before), 0);
  softHcaGid(1, 1, 9);
  EXPECT_EQ(b.nextEvent(), IBV_EVENT_GID_CHANGE);
  EXPECT_EQ(ibv_query_gid(b.context, 1, 1, &after), 0);
  EXPECT_EQ(memcmp(before.raw, after.raw, 15), 0);
  EXPECT_EQ(after.raw[15], 9);
}

TEST(Ports, AreNotFoundByTheLidThatTheyHad) {
  if (!configured("device a")) return;
  Pair p;
  softHcaLid(0, 1, 77);
  EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, 8, p.b.at(), p.b.mr->rkey), 0);
  EXPECT_EQ(p.a.next().status, IBV_WC_RETRY_EXC_ERR);
}

// Never faster than the rate; how much slower depends on the machine.
void sendAtRate(Pair &p, int messages) {
  for (int i = 0; i < messages; i++) {
    EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, 100000, p.b.at(), p.b.mr->rkey), 0);
    EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
  }
}

TEST(Ports, KeepToTheirRate) {
  if (!configured("device softhca0 gbps=0.01")) return;
  Pair p;
  double start = seconds();
  sendAtRate(p, 10); // 1 MB
  EXPECT_GE(seconds() - start, 0.095);
}

TEST(Ports, ShareTheirRateAmongProcesses) {
  if (!configured("device softhca0 gbps=0.01")) return;
  double start = seconds();
  int status[3];
  pid_t children[3];
  for (pid_t &child : children)
    if ((child = fork()) == 0) {
      {
        Pair p;
        sendAtRate(p, 5);
      }
      _exit(testing::Test::HasFailure());
    }
  for (int i = 0; i < 3; i++) {
    waitpid(children[i], &status[i], 0);
    EXPECT_EQ(status[i], 0);
  }
  EXPECT_GE(seconds() - start, 0.145); // 1.5 MB in all
  struct stat st;
  std::string fabric = std::to_string(getppid()), name = "/dev/shm/softhca-" + fabric + "-";
  EXPECT_NE(stat((name + std::to_string(getuid())).c_str(), &st), 0) << "nothing is left behind";
}

TEST(Ports, AreAsFarAwayAsTheyShould) {
  if (!configured("device softhca0 latency_us=30000")) return;
  Pair p;
  double start = seconds();
  EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, 8, p.b.at(), p.b.mr->rkey), 0);
  EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
  EXPECT_GE(seconds() - start, 0.06); // there and back
}

// ---- order --------------------------------------------------------------------------------------

bool claimsOrder(const End &end) {
  return ibv_query_qp_data_in_order(end.qp, IBV_WR_RDMA_WRITE, 0);
}

// A byte that the HCA may be writing at the same time.
__attribute__((no_sanitize("thread"))) char peek(const char *byte) {
  return *static_cast<const volatile char *>(byte);
}

// Memory of an end that is registered with relaxed ordering.
struct Relaxed {
  std::vector<char> memory;
  ibv_mr *mr;
  Relaxed(ibv_pd *pd, size_t bytes) : memory(bytes) {
    mr = ibv_reg_mr(pd, memory.data(), memory.size(), ALL | IBV_ACCESS_RELAXED_ORDERING);
    EXPECT_NE(mr, nullptr);
  }
  ~Relaxed() { EXPECT_EQ(ibv_dereg_mr(mr), 0); }
};

// How often a flag, written after its data on the same queue pair, was there before all of them.
// The data go to memory of its own, or to the flag's.
int overtakings(Pair &p, int rounds, const Relaxed *own = nullptr) {
  size_t last = 100000;
  const char *data = own ? own->memory.data() : p.b.memory.data();
  uint32_t rkey = own ? own->mr->rkey : p.b.mr->rkey;
  auto *flag = reinterpret_cast<std::atomic<uint64_t> *>(p.b.memory.data() + (1 << 17) - 8);
  int n = 0;
  for (int i = 1; i <= rounds; i++) {
    memset(p.a.memory.data(), i, p.a.memory.size());
    uint64_t value;
    memcpy(&value, p.a.memory.data(), 8);
    EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, (uint32_t)last, (uintptr_t)data, rkey), 0);
    EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, 8, p.b.at((1 << 17) - 8), p.b.mr->rkey), 0);
    ibv_wc wc;
    while (flag->load() != value)
      EXPECT_EQ(ibv_poll_cq(p.b.cq, 1, &wc), 0);
    n += peek(&data[last - 1]) != (char)i;
    EXPECT_EQ(p.a.next().wr_id, 7u);
    EXPECT_EQ(p.a.next().wr_id, 7u);
    EXPECT_EQ(data[last - 1], (char)i);
  }
  return n;
}

TEST(Order, IsKeptAndClaimed) {
  Pair p;
  EXPECT_TRUE(claimsOrder(p.a));
  EXPECT_EQ(overtakings(p, 50), 0);
}

TEST(Order, IsWeakInTheModeReorder) {
  if (!configured("reorder_us 500")) return;
  Pair p;
  EXPECT_FALSE(claimsOrder(p.a));
  int seen = 0; // none, while others have this core whenever it happens
  for (int i = 0; i < 100 && seen == 0; i++)
    seen = overtakings(p, 50);
  EXPECT_GT(seen, 0);
}

TEST(Order, ACompletionFollowsAllDataBeforeItEvenSo) {
  if (!configured("reorder_us 500")) return;
  Pair p;
  for (char i = 1; i < 60; i++) {
    memset(p.a.memory.data(), i, p.a.memory.size());
    EXPECT_EQ(p.b.postRecv(0), 0);
    EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, 100000, p.b.at(), p.b.mr->rkey), 0);
    EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE_WITH_IMM, 0, p.b.at(), p.b.mr->rkey), 0);
    EXPECT_EQ(p.b.next().opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(std::vector<char>(p.b.memory.begin(), p.b.memory.begin() + 100000),
              std::vector<char>(100000, i));
    EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
  }
}

TEST(Order, CompletionsStayInOrderEvenSo) {
  if (!configured("reorder_us 300")) return;
  Pair p;
  for (int round = 0; round < 20; round++) {
    for (uint32_t i = 0; i < 4; i++)
      EXPECT_EQ(p.b.postRecv(i + 1), 0);
    for (uint32_t i = 0; i < 4; i++)
      EXPECT_EQ(p.a.post(IBV_WR_SEND, i + 1), 0);
    for (uint32_t i = 0; i < 4; i++) {
      EXPECT_EQ(p.b.next().byte_len, i + 1);
      EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
    }
  }
}

TEST(Order, AFlagBehindRelaxedDataMayBeEarly) {
  if (!configured("relaxed_us 500")) return;
  Pair p;
  EXPECT_TRUE(claimsOrder(p.a));
  EXPECT_EQ(overtakings(p, 50), 0) << "other memory is as ever";
  Relaxed data(p.b.pd, 1 << 20);
  int seen = 0;
  for (int i = 0; i < 100 && seen == 0; i++)
    seen = overtakings(p, 50, &data);
  EXPECT_GT(seen, 0);
}

TEST(Order, ACompletionFollowsRelaxedDataToo) {
  if (!configured("relaxed_us 500")) return;
  Pair p;
  Relaxed data(p.b.pd, 1 << 20);
  for (char i = 1; i < 60; i++) {
    memset(p.a.memory.data(), i, p.a.memory.size());
    EXPECT_EQ(p.b.postRecv(0), 0);
    EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, 100000, (uintptr_t)data.memory.data(), data.mr->rkey), 0);
    EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE_WITH_IMM, 0, p.b.at(), p.b.mr->rkey), 0);
    EXPECT_EQ(p.b.next().opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(std::vector<char>(data.memory.begin(), data.memory.begin() + 100000),
              std::vector<char>(100000, i));
    EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
  }
}

TEST(Order, WithoutTheModeRelaxedMemoryIsAsOther) {
  Pair p;
  Relaxed data(p.b.pd, 1 << 20);
  EXPECT_EQ(overtakings(p, 50, &data), 0);
}

TEST(Order, ADeviceMayRefuseToRelax) {
  if (!configured("relaxing no")) return;
  End end;
  EXPECT_EQ(ibv_reg_mr(end.pd, end.memory.data(), 64, ALL | IBV_ACCESS_RELAXED_ORDERING), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

// ---- memory of the host that movers copy ------------------------------------------------------

constexpr char kOffload[] = "offload yes\nmovers 4\nstaging_mib 1";

TEST(Offload, AFlagStaysBehindItsData) {
  if (!configured(kOffload)) return;
  Pair p;
  EXPECT_EQ(overtakings(p, 200), 0);
}

TEST(Offload, WhatIsWrittenSentAndReadIsRight) {
  if (!configured(kOffload)) return;
  Pair p;
  for (uint32_t length : {8U, 16383U, 16384U, 16385U, 100000U, 131072U})
    for (char round = 1; round < 20; round++) {
      memset(p.a.memory.data(), round, length);
      memset(p.b.memory.data(), 0, p.b.memory.size());
      EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, length, p.b.at(), p.b.mr->rkey), 0);
      EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
      EXPECT_TRUE(std::equal(p.a.memory.begin(), p.a.memory.begin() + length, p.b.memory.begin()));
      memset(p.b.memory.data(), -round, length);
      EXPECT_EQ(p.a.post(IBV_WR_RDMA_READ, length, p.b.at(), p.b.mr->rkey), 0);
      EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
      EXPECT_EQ(p.a.memory[length - 1], -round);
      memset(p.a.memory.data(), round + 50, length);
      EXPECT_EQ(p.b.postRecv(length), 0);
      EXPECT_EQ(p.a.post(IBV_WR_SEND, length), 0);
      EXPECT_EQ(p.b.next().byte_len, length);
      EXPECT_EQ(p.b.memory[length - 1], round + 50);
      EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
    }
}

TEST(Offload, MemoryMayGoWithItsCompletion) {
  if (!configured(kOffload)) return;
  Pair p;
  for (int round = 0; round < 100; round++) {
    std::vector<char> memory(100000, 3);
    ibv_mr *mr = ibv_reg_mr(p.a.pd, memory.data(), memory.size(), 0);
    ibv_sge all = {(uintptr_t)memory.data(), 100000, mr->lkey};
    EXPECT_EQ(p.a.postFrom(all, IBV_WR_RDMA_WRITE, p.b.at(), p.b.mr->rkey), 0);
    EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
  }
  EXPECT_EQ(p.b.memory[99999], 3);
}

// ---- what a GPU sees
// ------------------------------------------------------------------------------

// A write with immediate, until it is complete on both sides.
void writeAll(GpuPair &p, char value) {
  p.from.fill(value);
  EXPECT_EQ(p.b.postRecv(0), 0);
  EXPECT_EQ(p.a.postFrom(p.from.part(100000), IBV_WR_RDMA_WRITE_WITH_IMM, p.to.at, p.to.mr->rkey),
            0);
  EXPECT_EQ(p.b.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
}

// What the GPU has then.
char seenAfter(GpuPair &p, char value, bool flush) {
  writeAll(p, value);
  if (flush) { // a byte, over a queue pair connected to itself
    End self;
    ibv_mr *mr = ibv_reg_dmabuf_mr(self.pd, 0, p.to.size, p.to.at, 0, ALL);
    EXPECT_EQ(self.toInit() | self.toRtr(self.qp->qp_num) | self.toRts(), 0);
    EXPECT_EQ(self.post(IBV_WR_RDMA_READ, 1, p.to.at, mr->rkey), 0);
    EXPECT_EQ(self.next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
  }
  return p.to.read(100000)[99999];
}

TEST(Invisible, BytesOnAGpuShowAfterARead) {
  if (!configured("invisible_ms 600000")) return;
  fakeCudaDelay(2000);
  GpuPair p(100000);
  p.to.fill(0);
  EXPECT_EQ(seenAfter(p, 1, false), 0) << "the mode does nothing";
  EXPECT_EQ(seenAfter(p, 2, true), 2);
  EXPECT_EQ(seenAfter(p, 3, false), 2);
}

TEST(Invisible, BytesOnAGpuShowInTheEnd) {
  if (!configured("invisible_ms 200")) return;
  GpuPair p(100000);
  p.to.fill(0);
  unsigned before = fakeCudaCopies(); // then come the sender's, and the one that makes it visible
  writeAll(p, 4);
  for (double until = seconds() + 30;
       (fakeCudaCopies() < before + 2 || fakeCudaPending()) && seconds() < until;)
    std::this_thread::yield();
  EXPECT_EQ(p.to.read(100000)[99999], 4);
}

TEST(Invisible, BytesInTheHostsMemoryShowAtOnce) {
  if (!configured("invisible_ms 600000")) return;
  Pair p;
  EXPECT_EQ(overtakings(p, 10), 0);
}

TEST(Invisible, DeregistrationLeavesNothingBehind) {
  if (!configured("invisible_ms 600000")) return;
  GpuPair p(100000);
  p.to.fill(0);
  seenAfter(p, 5, false);
  EXPECT_EQ(ibv_dereg_mr(p.to.mr), 0);
  p.to.mr = nullptr;
  EXPECT_EQ(p.to.read(100000)[99999], 5);
}

TEST(Counters, TellWhatEachPortSent) {
  std::string path = testing::TempDir() + "softhca.counters." + std::to_string(getpid());
  if (configured("counters " + path + "\ndevice used\ndevice unused")) {
    Pair p;
    for (int i = 0; i < 3; i++) {
      EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, 5000, p.b.at(), p.b.mr->rkey), 0);
      EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
    }
    return;
  }
  std::ifstream file(path);
  std::string pid, port, more;
  uint64_t frames = 0, bytes = 0;
  file >> pid >> port >> frames >> bytes;
  EXPECT_EQ(port, "used/1");
  EXPECT_GE(frames, 6U) << "with the acknowledgements";
  EXPECT_EQ(bytes, 15000U);
  EXPECT_FALSE(file >> more) << "nothing went by the other device";
  unlink(path.c_str());
}

} // namespace

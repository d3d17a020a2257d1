// The software HCA's own checks: states, statuses of errors, dead peers. It is linked against the
// library itself, so no other libibverbs can be meant.
#include <infiniband/verbs.h>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace {

struct End {
  ibv_context *context = nullptr;
  ibv_pd *pd = nullptr;
  ibv_cq *cq = nullptr;
  ibv_qp *qp = nullptr;
  ibv_mr *mr = nullptr;
  std::vector<char> memory = std::vector<char>(1 << 17);

  explicit End(int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                            IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC) {
    ibv_device **list = ibv_get_device_list(nullptr);
    context = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 64, nullptr, nullptr, 0);
    mr = ibv_reg_mr(pd, memory.data(), memory.size(), access);
    ibv_qp_init_attr init = {};
    init.send_cq = init.recv_cq = cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {.max_send_wr = 4,
                .max_recv_wr = 4,
                .max_send_sge = 2,
                .max_recv_sge = 2,
                .max_inline_data = 64};
    qp = ibv_create_qp(pd, &init);
  }

  End(const End &) = delete;
  End &operator=(const End &) = delete;

  ~End() {
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
    EXPECT_EQ(ibv_dealloc_pd(pd), 0);
    EXPECT_EQ(ibv_close_device(context), 0);
  }

  int toInit() const {
    ibv_qp_attr a = {};
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    return ibv_modify_qp(qp, &a,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  }

  int toRtr(uint32_t peer) const {
    ibv_qp_attr a = {};
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = IBV_MTU_1024;
    a.dest_qp_num = peer;
    a.max_dest_rd_atomic = 4;
    a.min_rnr_timer = 1;
    a.ah_attr.dlid = 1;
    a.ah_attr.port_num = 1;
    return ibv_modify_qp(qp, &a,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  }

  int toRts(uint8_t rnrRetry = 2) const { // 3 times 16.8 ms until it gives up
    ibv_qp_attr a = {};
    a.qp_state = IBV_QPS_RTS;
    a.timeout = 12;
    a.retry_cnt = 2;
    a.rnr_retry = rnrRetry;
    a.max_rd_atomic = 4;
    return ibv_modify_qp(qp, &a,
                         IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                             IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  }

  int post(ibv_wr_opcode opcode, uint32_t length, uint64_t remote = 0, uint32_t rkey = 0,
           uint32_t lkey = 0, uint64_t operand = 0, uint64_t swap = 0) {
    ibv_sge sge = {(uintptr_t)memory.data(), length, lkey ? lkey : mr->lkey};
    ibv_send_wr wr = {}, *bad = nullptr;
    wr.wr_id = 7;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.imm_data = 99;
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      wr.wr.atomic.remote_addr = remote;
      wr.wr.atomic.rkey = rkey;
      wr.wr.atomic.compare_add = operand;
      wr.wr.atomic.swap = swap;
    } else {
      wr.wr.rdma.remote_addr = remote;
      wr.wr.rdma.rkey = rkey;
    }
    return ibv_post_send(qp, &wr, &bad);
  }

  int postRecv(uint32_t length) {
    ibv_sge sge = {(uintptr_t)memory.data(), length, mr->lkey};
    ibv_recv_wr wr = {}, *bad = nullptr;
    wr.wr_id = 8;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    return ibv_post_recv(qp, &wr, &bad);
  }

  ibv_wc next() const {
    ibv_wc wc = {};
    while (ibv_poll_cq(cq, 1, &wc) == 0) {
    }
    return wc;
  }
  ibv_qp_state state() const {
    ibv_qp_attr a = {};
    ibv_qp_init_attr i = {};
    ibv_query_qp(qp, &a, IBV_QP_STATE, &i);
    return a.qp_state;
  }
  uint64_t at(size_t offset = 0) const { return (uintptr_t)memory.data() + offset; }
};

struct Pair {
  End a, b;
  explicit Pair(uint8_t rnrRetry = 2) {
    EXPECT_EQ(a.toInit() | b.toInit(), 0);
    EXPECT_EQ(a.toRtr(b.qp->qp_num) | b.toRtr(a.qp->qp_num), 0);
    EXPECT_EQ(a.toRts(rnrRetry) | b.toRts(rnrRetry), 0);
  }
};

TEST(SoftHca, TheLibraryIsOurs) {
  End end;
  EXPECT_STREQ(ibv_get_device_name(end.context->device), "softhca0");
}

TEST(SoftHca, StatesGoInOrder) {
  End end;
  EXPECT_EQ(end.toRtr(1), EINVAL);
  EXPECT_EQ(end.toRts(), EINVAL);
  EXPECT_EQ(end.toInit(), 0);
  EXPECT_EQ(end.toRts(), EINVAL);
  EXPECT_EQ(end.toRtr(1), 0);
  EXPECT_EQ(end.toInit(), EINVAL);
  ibv_qp_attr a = {};
  a.qp_state = IBV_QPS_RESET;
  EXPECT_EQ(ibv_modify_qp(end.qp, &a, IBV_QP_STATE), 0);
  EXPECT_EQ(end.state(), IBV_QPS_RESET);
}

TEST(SoftHca, AttributesThatLackOrDoNotBelongAreRefused) {
  End end;
  ibv_qp_attr a = {};
  a.qp_state = IBV_QPS_INIT;
  a.port_num = 1;
  int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  EXPECT_EQ(ibv_modify_qp(end.qp, &a, mask & ~IBV_QP_PORT), EINVAL);
  EXPECT_EQ(ibv_modify_qp(end.qp, &a, mask | IBV_QP_SQ_PSN), EINVAL);
  a.port_num = 9;
  EXPECT_EQ(ibv_modify_qp(end.qp, &a, mask), EINVAL);
}

TEST(SoftHca, RequestsNeedAState) {
  End end;
  EXPECT_EQ(end.postRecv(8), EINVAL);
  EXPECT_EQ(end.toInit(), 0);
  EXPECT_EQ(end.postRecv(8), 0);
  EXPECT_EQ(end.post(IBV_WR_SEND, 8), EINVAL);
}

TEST(SoftHca, FullQueuesRefuse) {
  Pair p;
  for (int i = 0; i < 4; i++)
    EXPECT_EQ(p.a.postRecv(8), 0);
  EXPECT_EQ(p.a.postRecv(8), ENOMEM);
  for (int i = 0; i < 4; i++)
    EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, 8, p.b.at(), p.b.mr->rkey), 0);
  EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, 8, p.b.at(), p.b.mr->rkey), ENOMEM);
  EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, 8, p.b.at(), p.b.mr->rkey), 0);
}

TEST(SoftHca, SendsArrive) {
  Pair p;
  memset(p.a.memory.data(), 5, 100000);
  EXPECT_EQ(p.b.postRecv(100000), 0);
  EXPECT_EQ(p.a.post(IBV_WR_SEND_WITH_IMM, 100000), 0);
  ibv_wc wc = p.b.next();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_RECV);
  EXPECT_EQ(wc.byte_len, 100000u);
  EXPECT_EQ(wc.imm_data, 99u);
  EXPECT_EQ(p.a.next().opcode, IBV_WC_SEND);
  EXPECT_EQ(p.b.memory, p.a.memory);
}

TEST(SoftHca, WritesWithImmediateTakeARequest) {
  Pair p;
  memset(p.a.memory.data(), 6, 100000);
  EXPECT_EQ(p.b.postRecv(0), 0);
  EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE_WITH_IMM, 100000, p.b.at(), p.b.mr->rkey), 0);
  EXPECT_EQ(p.b.next().opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(p.a.next().opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(p.b.memory, p.a.memory);
}

TEST(SoftHca, ReadsAndAtomicsReturn) {
  Pair p;
  memset(p.b.memory.data(), 3, 100000);
  EXPECT_EQ(p.a.post(IBV_WR_RDMA_READ, 100000, p.b.at(), p.b.mr->rkey), 0);
  EXPECT_EQ(p.a.next().opcode, IBV_WC_RDMA_READ);
  EXPECT_EQ(p.a.memory, p.b.memory);
  uint64_t value = 0, was = 0;
  memcpy(&was, p.b.memory.data(), 8);
  EXPECT_EQ(p.a.post(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, p.b.at(), p.b.mr->rkey, 0, 4), 0);
  EXPECT_EQ(p.a.next().opcode, IBV_WC_FETCH_ADD);
  memcpy(&value, p.a.memory.data(), 8);
  EXPECT_EQ(value, was);
  EXPECT_EQ(p.a.post(IBV_WR_ATOMIC_CMP_AND_SWP, 8, p.b.at(), p.b.mr->rkey, 0, was + 4, 1), 0);
  EXPECT_EQ(p.a.next().opcode, IBV_WC_COMP_SWAP);
  memcpy(&value, p.b.memory.data(), 8);
  EXPECT_EQ(value, 1u);
}

TEST(SoftHca, ErrorsHaveTheirStatus) {
  struct {
    ibv_wr_opcode opcode;
    uint64_t offset;
    uint32_t length;
    bool badRkey, badLkey;
    ibv_wc_status status;
  } const cases[] = {
      {IBV_WR_RDMA_WRITE, 0, 8, true, false, IBV_WC_REM_ACCESS_ERR},
      {IBV_WR_RDMA_READ, 0, 8, true, false, IBV_WC_REM_ACCESS_ERR},
      {IBV_WR_RDMA_WRITE, (1 << 17) - 4, 8, false, false, IBV_WC_REM_ACCESS_ERR},
      {IBV_WR_RDMA_WRITE, 0, 8, false, true, IBV_WC_LOC_PROT_ERR},
      {IBV_WR_ATOMIC_FETCH_AND_ADD, 4, 8, false, false, IBV_WC_REM_INV_REQ_ERR},
      {IBV_WR_SEND, 0, 8, false, false, IBV_WC_RNR_RETRY_EXC_ERR},
  };
  for (auto &c : cases) {
    Pair p;
    EXPECT_EQ(p.a.post(c.opcode, c.length, p.b.at(c.offset), p.b.mr->rkey + c.badRkey,
                       c.badLkey ? 12345 : 0),
              0);
    p.a.post(IBV_WR_RDMA_WRITE, 8, p.b.at(), p.b.mr->rkey);
    EXPECT_EQ(p.a.next().status, c.status);
    EXPECT_EQ(p.a.next().status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(p.a.state(), IBV_QPS_ERR);
    EXPECT_EQ(p.a.postRecv(8), 0);
    EXPECT_EQ(p.a.next().status, IBV_WC_WR_FLUSH_ERR);
  }
}

TEST(SoftHca, AReceiveThatIsTooShortFailsOnBothSides) {
  Pair p;
  EXPECT_EQ(p.b.postRecv(4), 0);
  EXPECT_EQ(p.a.post(IBV_WR_SEND, 8), 0);
  EXPECT_EQ(p.a.next().status, IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(p.b.next().status, IBV_WC_LOC_LEN_ERR);
}

TEST(SoftHca, AWaitingSendGetsItsReceive) {
  Pair p(7);
  EXPECT_EQ(p.a.post(IBV_WR_SEND, 8), 0);
  usleep(1000);
  EXPECT_EQ(p.b.postRecv(8), 0);
  EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(p.b.next().status, IBV_WC_SUCCESS);
}

TEST(SoftHca, APeerThatIsNotReadyCostsTheRetries) {
  Pair p;
  ibv_qp_attr a = {};
  a.qp_state = IBV_QPS_RESET;
  EXPECT_EQ(ibv_modify_qp(p.b.qp, &a, IBV_QP_STATE), 0);
  EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, 8, p.b.at(), p.b.mr->rkey), 0);
  EXPECT_EQ(p.a.next().status, IBV_WC_RETRY_EXC_ERR);
}

// The child connects to the parent's queue pair and is killed; the parent finds that out.
TEST(SoftHca, ADeadPeerCostsTheRetries) {
  int up[2], down[2];
  uint32_t mine = 0, theirs = 0;
  ASSERT_EQ(pipe(up) | pipe(down), 0);
  pid_t child = fork();
  if (child == 0) {
    End end;
    if (write(up[1], &end.qp->qp_num, 4) != 4 || read(down[0], &mine, 4) != 4) _exit(1);
    if (end.toInit() || end.toRtr(mine) || end.toRts()) _exit(1);
    if (write(up[1], &mine, 4) == 4) pause();
    _exit(1);
  }
  End end;
  ASSERT_EQ(read(up[0], &theirs, 4), 4);
  ASSERT_EQ(write(down[1], &end.qp->qp_num, 4), 4);
  ASSERT_EQ(read(up[0], &mine, 4), 4);
  EXPECT_EQ(end.toInit() | end.toRtr(theirs) | end.toRts(), 0);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(end.post(IBV_WR_SEND, 8), 0);
  EXPECT_EQ(end.next().status, IBV_WC_RETRY_EXC_ERR);
  for (int fd : {up[0], up[1], down[0], down[1]})
    close(fd);
}

} // namespace

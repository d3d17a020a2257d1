// The software HCA's own checks: states, statuses of errors, dead peers. It is linked against the
// library itself, so no other libibverbs can be meant.
#include "end.h"

#include <signal.h>

#include <cerrno>

namespace {

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

TEST(SoftHca, ValuesBeyondTheirLimitsAreRefused) {
  End end;
  EXPECT_EQ(end.toInit(), 0);
  EXPECT_EQ(end.toRtr(1), 0);
  EXPECT_EQ(end.toRts(8), EINVAL);
  EXPECT_EQ(end.toRts(7, 8), EINVAL);
  EXPECT_EQ(end.toRts(7, 7), 0);
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

// The child connects to the parent's queue pair and is killed; the parent finds that out. A child
// that is stopped before has not answered what was sent to it.
void killPeer(bool afterTheRequest) {
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
  int status = 0;
  if (afterTheRequest) {
    kill(child, SIGSTOP);
    waitpid(child, &status, WUNTRACED);
    EXPECT_EQ(end.post(IBV_WR_SEND, 8), 0);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  if (!afterTheRequest) {
    EXPECT_EQ(end.post(IBV_WR_SEND, 8), 0);
  }
  EXPECT_EQ(end.next().status, IBV_WC_RETRY_EXC_ERR);
  for (int fd : {up[0], up[1], down[0], down[1]})
    close(fd);
}

TEST(SoftHca, ADeadPeerCostsTheRetries) {
  killPeer(false);
}

TEST(SoftHca, APeerThatDiesBeforeItAnswersCostsTheRetries) {
  killPeer(true);
}

} // namespace

// What the software HCA's own checks share: one end of a connection, and tests with a configuration
// of their own.
#pragma once

#include <infiniband/verbs.h>

#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

struct End {
  ibv_context *context = nullptr;
  ibv_pd *pd = nullptr;
  ibv_cq *cq = nullptr;
  ibv_qp *qp = nullptr;
  ibv_mr *mr = nullptr;
  std::vector<char> memory = std::vector<char>(1 << 17);

  explicit End(int device = 0) {
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                 IBV_ACCESS_REMOTE_ATOMIC;
    ibv_device **list = ibv_get_device_list(nullptr);
    context = ibv_open_device(list[device]);
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
    if (qp) {
      EXPECT_EQ(ibv_destroy_qp(qp), 0);
    }
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
    EXPECT_EQ(ibv_dealloc_pd(pd), 0);
    EXPECT_EQ(ibv_close_device(context), 0);
  }

  int toInit(uint16_t pkey = 0) const {
    ibv_qp_attr a = {};
    a.qp_state = IBV_QPS_INIT;
    a.pkey_index = pkey;
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

  int toRts(uint8_t rnrRetry = 2, uint8_t retries = 2) const { // 3 times 16.8 ms until it gives up
    ibv_qp_attr a = {};
    a.qp_state = IBV_QPS_RTS;
    a.timeout = 12;
    a.retry_cnt = retries;
    a.rnr_retry = rnrRetry;
    a.max_rd_atomic = 4;
    return ibv_modify_qp(qp, &a,
                         IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                             IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  }

  int post(ibv_wr_opcode opcode, uint32_t length, uint64_t remote = 0, uint32_t rkey = 0,
           uint32_t lkey = 0, uint64_t operand = 0, uint64_t swap = 0) {
    return postFrom({at(), length, lkey ? lkey : mr->lkey}, opcode, remote, rkey, operand, swap);
  }

  int postFrom(ibv_sge sge, ibv_wr_opcode opcode, uint64_t remote = 0, uint32_t rkey = 0,
               uint64_t operand = 0, uint64_t swap = 0) {
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

  int postRecv(uint32_t length) { return postRecvTo({at(), length, mr->lkey}); }

  int postRecvTo(ibv_sge sge) {
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
  // The next asynchronous event; the HCA is moved meanwhile.
  ibv_event_type nextEvent() const {
    ibv_async_event event = {};
    pollfd p = {context->async_fd, POLLIN, 0};
    EXPECT_EQ(poll(&p, 1, 20000), 1);
    EXPECT_EQ(ibv_get_async_event(context, &event), 0);
    ibv_ack_async_event(&event);
    return event.event_type;
  }
  uint64_t at(size_t offset = 0) const { return (uintptr_t)memory.data() + offset; }
};

struct Pair {
  End a, b;
  explicit Pair(uint8_t rnrRetry = 2, uint8_t retries = 2) {
    EXPECT_EQ(a.toInit() | b.toInit(), 0);
    EXPECT_EQ(a.toRtr(b.qp->qp_num) | b.toRtr(a.qp->qp_num), 0);
    EXPECT_EQ(a.toRts(rnrRetry, retries) | b.toRts(rnrRetry, retries), 0);
  }
};

// Runs the test that calls it again, in a process whose HCA is configured so: a process reads its
// configuration once. True in that process.
inline bool configured(const std::string &text) {
  if (getenv("SOFTHCA_TEST")) return true;
  const auto *info = testing::UnitTest::GetInstance()->current_test_info();
  std::string name = std::string(info->test_suite_name()) + "." + info->name();
  std::string path = testing::TempDir() + "softhca." + std::to_string(getpid());
  std::ofstream(path) << text << "\nfabric " << getpid() << "\n";
  std::string filter = "--gtest_filter=" + name;
  char program[] = "/proc/self/exe";
  char *argv[] = {program, filter.data(), nullptr};
  /* It runs this test, whosever turn that is. */
  for (const char *shards : {"GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX"})
    unsetenv(shards);
  setenv("SOFTHCA_TEST", "1", 1);
  setenv("SOFTHCA_CONFIG", path.c_str(), 1);
  pid_t child = -1;
  int status = -1;
  EXPECT_EQ(posix_spawn(&child, program, nullptr, nullptr, argv, environ), 0);
  unsetenv("SOFTHCA_TEST");
  unsetenv("SOFTHCA_CONFIG");
  if (child > 0) waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << "in a process with the configuration\n" << text;
  unlink(path.c_str());
  return false;
}

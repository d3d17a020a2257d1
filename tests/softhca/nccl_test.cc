// What NCCL asks of libibverbs, which it loads at run time and by versions of symbols.
#include "end.h"

#include <dlfcn.h>

#include <cerrno>

namespace {

TEST(Nccl, FindsBothNamesOfTheLibrary) {
  Dl_info info = {};
  ASSERT_NE(dladdr(reinterpret_cast<void *>(&ibv_open_device), &info), 0);
  std::string folder = info.dli_fname;
  folder.resize(folder.rfind('/'));
  for (const char *name : {"/libibverbs.so", "/libibverbs.so.1"})
    EXPECT_EQ(access((folder + name).c_str(), R_OK), 0) << name;
}

TEST(Nccl, FindsTheVersionsOfItsSymbols) {
  void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  for (const char *name :
       {"ibv_get_device_list", "ibv_free_device_list", "ibv_get_device_name", "ibv_open_device",
        "ibv_close_device",    "ibv_get_async_event",  "ibv_ack_async_event", "ibv_event_type_str",
        "ibv_query_device",    "ibv_query_port",       "ibv_query_gid",       "ibv_query_qp",
        "ibv_alloc_pd",        "ibv_dealloc_pd",       "ibv_reg_mr",          "ibv_dereg_mr",
        "ibv_create_cq",       "ibv_destroy_cq",       "ibv_create_qp",       "ibv_modify_qp",
        "ibv_destroy_qp",      "ibv_fork_init"})
    EXPECT_NE(dlvsym(library, name, "IBVERBS_1.1"), nullptr) << name;
  EXPECT_NE(dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.8"), nullptr);
  EXPECT_NE(dlvsym(library, "ibv_query_ece", "IBVERBS_1.10"), nullptr);
  EXPECT_NE(dlvsym(library, "ibv_set_ece", "IBVERBS_1.10"), nullptr);
  EXPECT_NE(dlvsym(library, "ibv_reg_dmabuf_mr", "IBVERBS_1.12"), nullptr);
  dlclose(library);
}

TEST(Nccl, HasItsQueuePairs) {
  End end;
  EXPECT_GE(end.context->cmd_fd, 0);
  EXPECT_NE(end.mr->rkey, 0u);
  int mark = 0;
  ibv_cq *cq = ibv_create_cq(end.context, 2048, &mark, nullptr, 0);
  ASSERT_NE(cq, nullptr);
  EXPECT_EQ(cq->cq_context, &mark);
  ibv_qp_init_attr init = {};
  init.qp_context = &mark;
  init.send_cq = init.recv_cq = cq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {512, 256, 1, 1, 0};
  ibv_qp *qp = ibv_create_qp(end.pd, &init);
  ASSERT_NE(qp, nullptr);
  EXPECT_EQ(qp->qp_context, &mark);
  ibv_ece ece = {};
  EXPECT_EQ(ibv_query_ece(qp, &ece), EOPNOTSUPP);
  EXPECT_EQ(ibv_set_ece(qp, &ece), EOPNOTSUPP);
  EXPECT_EQ(ibv_destroy_qp(qp) | ibv_destroy_cq(cq), 0);
}

// Drivers' libraries look behind what they take for their own device.
TEST(Nccl, FindsNothingBehindADevice) {
  ibv_device **list = ibv_get_device_list(nullptr);
  const char *behind = reinterpret_cast<const char *>(list[0] + 1);
  for (int i = 0; i < 1000; i++)
    EXPECT_EQ(behind[i], 0);
  ibv_free_device_list(list);
}

TEST(Nccl, ReceivesNotificationsWithoutData) {
  Pair p;
  ibv_recv_wr wr = {}, *bad = nullptr;
  wr.wr_id = 5;
  for (int i = 0; i < 4; i++)
    EXPECT_EQ(ibv_post_recv(p.b.qp, &wr, &bad), 0);
  ibv_send_wr send = {}, *badSend = nullptr;
  send.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  send.send_flags = IBV_SEND_SIGNALED;
  send.imm_data = 1234;
  EXPECT_EQ(ibv_post_send(p.a.qp, &send, &badSend), 0);
  ibv_wc wc = p.b.next();
  EXPECT_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(wc.imm_data, 1234u);
  EXPECT_EQ(wc.wr_id, 5u);
  EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
}

} // namespace

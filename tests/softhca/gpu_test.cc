// Memory of GPUs, with a stand-in for libcuda: registration, all operations, and that nothing
// counts as done before its copy is.
#include "buffer.h"

#include <atomic>
#include <cerrno>
#include <memory>

namespace {

void everyOperation(GpuPair &p, size_t bytes) {
  std::vector<char> data = pattern(bytes, (unsigned)bytes);
  p.from.fill(data);
  p.to.fill(0);
  EXPECT_EQ(p.b.postRecv(0), 0);
  EXPECT_EQ(p.a.postFrom(p.from.part(bytes), IBV_WR_RDMA_WRITE_WITH_IMM, p.to.at, p.to.mr->rkey),
            0);
  EXPECT_EQ(p.b.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(p.to.read(bytes), data);
  EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);

  p.to.fill(0);
  EXPECT_EQ(p.a.postFrom(p.from.part(bytes), IBV_WR_RDMA_WRITE, p.to.at, p.to.mr->rkey), 0);
  EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(p.to.read(bytes), data);

  p.to.fill(0);
  EXPECT_EQ(p.b.postRecvTo(p.to.part(bytes)), 0);
  EXPECT_EQ(p.a.postFrom(p.from.part(bytes), IBV_WR_SEND), 0);
  EXPECT_EQ(p.b.next().byte_len, bytes);
  EXPECT_EQ(p.to.read(bytes), data);
  EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);

  p.from.fill(0);
  EXPECT_EQ(p.a.postFrom(p.from.part(bytes), IBV_WR_RDMA_READ, p.to.at, p.to.mr->rkey), 0);
  EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(p.from.read(bytes), data);
}

void everySize() {
  fakeCudaDelay(300);
  GpuPair p(3000001);
  for (size_t bytes : {1u, 2u, 3u, 8u, 4097u, 100001u, 131072u, 131073u, 3000001u})
    everyOperation(p, bytes);
}

TEST(Gpu, RegularRegistrationNeedsAPeerMemoryModule) {
  End end;
  Buffer buffer(end.pd, 4096);
  void *address = (void *)(uintptr_t)buffer.at; // NOLINT: the ABI's integer
  errno = 0;
  EXPECT_EQ(ibv_reg_mr(end.pd, address, 4096, ALL), nullptr);
  EXPECT_EQ(errno, EFAULT);
}

TEST(Gpu, APeerMemoryModuleLetsAddressesBeRegistered) {
  if (!configured("peermem yes\ndmabuf no")) return;
  cuPointer at = 0;
  End end;
  EXPECT_EQ(cuInit(0), CU_OK);
  EXPECT_EQ(cuMemAlloc_v2(&at, 4096), CU_OK);
  ibv_mr *mr = ibv_reg_mr(end.pd, (void *)(uintptr_t)at, 4096, ALL); // NOLINT
  ASSERT_NE(mr, nullptr);
  EXPECT_NE(mr->rkey, 0u);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  errno = 0;
  EXPECT_EQ(ibv_reg_dmabuf_mr(end.pd, 0, 0, 0, -1, 0), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(cuMemFree_v2(at), CU_OK);
}

TEST(Gpu, DmabufIsProbedWithABadDescriptor) {
  End end;
  errno = 0;
  EXPECT_EQ(ibv_reg_dmabuf_mr(end.pd, 0, 0, 0, -1, 0), nullptr);
  EXPECT_EQ(errno, EBADF);
}

TEST(Gpu, EveryOperationMovesTheBytesBeforeItIsDone) {
  everySize();
}

TEST(Gpu, SeveralMoversMoveThem) {
  if (!configured("movers 4")) return;
  std::vector<std::unique_ptr<GpuPair>> pairs;
  fakeCudaDelay(1000);
  for (int i = 0; i < 6; i++) {
    pairs.push_back(std::make_unique<GpuPair>(500000));
    pairs[i]->from.fill((char)(i + 1));
    EXPECT_EQ(pairs[i]->a.postFrom(pairs[i]->from.part(500000), IBV_WR_RDMA_WRITE, pairs[i]->to.at,
                                   pairs[i]->to.mr->rkey),
              0);
  }
  for (int i = 0; i < 6; i++) {
    EXPECT_EQ(pairs[i]->a.next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(pairs[i]->to.read(500000), std::vector<char>(500000, (char)(i + 1)));
  }
}

TEST(Gpu, ThreadsGoByAddressWhereTheyMay) {
  if (!configured("direct yes")) return;
  everySize();
}

TEST(Gpu, ThreadsGoByAddressWithoutTwoDimensions) {
  if (!configured("direct yes")) return;
  fakeCudaPitch(1);
  everySize();
}

TEST(Gpu, DirectCopiesNeedNoStaging) {
  if (!configured("direct yes")) return;
  GpuPair p(1 << 20);
  p.from.fill(7);
  unsigned before = fakeCudaCopies();
  EXPECT_EQ(p.a.postFrom(p.from.part(1 << 20), IBV_WR_RDMA_WRITE, p.to.at, p.to.mr->rkey), 0);
  EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(fakeCudaCopies() - before, 1u);
}

TEST(Gpu, HostAndGpuMeetInEitherDirection) {
  for (const char *direct : {"direct no", "direct yes"}) {
    if (!configured(direct)) continue;
    fakeCudaDelay(500);
    GpuPair p(100000);
    std::vector<char> data = pattern(100000, 1);
    p.from.fill(data);
    EXPECT_EQ(p.a.postFrom(p.from.part(100000), IBV_WR_RDMA_WRITE, p.b.at(), p.b.mr->rkey), 0);
    EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(memcmp(p.b.memory.data(), data.data(), 100000), 0);
    EXPECT_EQ(p.b.post(IBV_WR_RDMA_WRITE, 100000, p.from.at + 0, p.from.mr->rkey), 0);
    EXPECT_EQ(p.b.next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(p.from.read(100000), data);
  }
}

TEST(Gpu, AtomicsWorkOnTheGpu) {
  fakeCudaDelay(500);
  GpuPair p(4096);
  uint64_t value = 40, old = 0;
  EXPECT_EQ(cuMemcpyHtoD_v2(p.to.at + 8, &value, 8), CU_OK);
  EXPECT_EQ(
      p.a.postFrom(p.from.part(8), IBV_WR_ATOMIC_FETCH_AND_ADD, p.to.at + 8, p.to.mr->rkey, 2), 0);
  EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(
      p.a.postFrom(p.from.part(8), IBV_WR_ATOMIC_CMP_AND_SWP, p.to.at + 8, p.to.mr->rkey, 42, 7),
      0);
  EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoH_v2(&old, p.from.at, 8), CU_OK);
  EXPECT_EQ(cuMemcpyDtoH_v2(&value, p.to.at + 8, 8), CU_OK);
  EXPECT_EQ(old, 42u);
  EXPECT_EQ(value, 7u);
  EXPECT_EQ(
      p.a.postFrom(p.from.part(8), IBV_WR_ATOMIC_CMP_AND_SWP, p.to.at + 8, p.to.mr->rkey, 42, 9),
      0);
  EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoH_v2(&value, p.to.at + 8, 8), CU_OK);
  EXPECT_EQ(value, 7u);
}

// The flag lies in memory of the host, which needs no copy that takes time.
TEST(Gpu, AFlagInTheHostsMemoryDoesNotOvertakeItsData) {
  fakeCudaDelay(3000);
  GpuPair p(100000);
  auto *flag = reinterpret_cast<std::atomic<uint64_t> *>(p.b.memory.data());
  for (char round = 1; round < 8; round++) {
    p.from.fill(round);
    p.a.memory[0] = round;
    EXPECT_EQ(p.a.postFrom(p.from.part(100000), IBV_WR_RDMA_WRITE, p.to.at, p.to.mr->rkey), 0);
    EXPECT_EQ(p.a.post(IBV_WR_RDMA_WRITE, 8, p.b.at(), p.b.mr->rkey), 0);
    ibv_wc wc;
    while (flag->load() != (uint64_t)round)
      EXPECT_EQ(ibv_poll_cq(p.b.cq, 1, &wc), 0);
    EXPECT_EQ(p.to.read(100000), std::vector<char>(100000, round));
    EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
  }
}

// Small copies to a GPU are made by kernels, which wait for room among other kernels, if they are
// not written so that an engine makes them.
TEST(Gpu, SmallWritesPassAKernelThatFillsTheGpu) {
  for (const char *direct : {"direct no", "direct yes"}) {
    if (!configured(direct)) continue;
    GpuPair p(8192);
    p.from.fill(9);
    p.to.fill(0);
    fakeCudaOccupy(1);
    for (size_t bytes : {2, 3, 8, 8191}) {
      EXPECT_EQ(p.a.postFrom(p.from.part(bytes), IBV_WR_RDMA_WRITE, p.to.at, p.to.mr->rkey), 0);
      EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
      EXPECT_EQ(p.to.read(bytes), std::vector<char>(bytes, 9));
      EXPECT_EQ(p.to.read(bytes + 1)[bytes], 0);
    }
    fakeCudaOccupy(0);
  }
}

TEST(Gpu, AQueuePairConnectedToItselfReads) {
  End end;
  Buffer buffer(end.pd, 4096);
  buffer.fill(5);
  EXPECT_EQ(end.toInit() | end.toRtr(end.qp->qp_num) | end.toRts(), 0);
  EXPECT_EQ(end.post(IBV_WR_RDMA_READ, 1, buffer.at, buffer.mr->rkey), 0);
  EXPECT_EQ(end.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(end.memory[0], 5);
  EXPECT_EQ(end.memory[1], 0);
}

TEST(Gpu, DeregistrationWaitsForCopies) {
  fakeCudaDelay(20000);
  Pair p;
  Buffer from(p.a.pd, 1 << 20);
  auto to = std::make_unique<Buffer>(p.b.pd, 1 << 20);
  unsigned before =
      fakeCudaCopies(); // then come 8 of the sender, while those of the receiver begin
  EXPECT_EQ(p.a.postFrom(from.part(1 << 20), IBV_WR_RDMA_WRITE, to->at, to->mr->rkey), 0);
  while (fakeCudaCopies() < before + 10) {
    ibv_wc wc;
    EXPECT_GE(ibv_poll_cq(p.b.cq, 1, &wc), 0);
  }
  ibv_mr *mr = to->mr;
  to->mr = nullptr;
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  // What is pending now belongs to the sender; nothing of it writes to the buffer.
  to->fill(3);
  ibv_qp_attr reset = {};
  reset.qp_state = IBV_QPS_RESET;
  EXPECT_EQ(ibv_modify_qp(p.a.qp, &reset, IBV_QP_STATE), 0);
  while (fakeCudaPending())
    usleep(100);
  EXPECT_EQ(to->read(1 << 20), std::vector<char>(1 << 20, 3));
}

// Whoever owned the memory may write to it then.
TEST(Gpu, AQueuePairThatWasStoppedTouchesNoMemory) {
  for (const char *how : {"error", "reset", "destroyed"}) {
    fakeCudaDelay(20000);
    GpuPair p(1 << 20);
    unsigned before =
        fakeCudaCopies(); // then come 8 of the sender, and those of the receiver begin
    EXPECT_EQ(p.a.postFrom(p.from.part(1 << 20), IBV_WR_RDMA_WRITE, p.to.at, p.to.mr->rkey), 0);
    while (fakeCudaCopies() < before + 10) {
      ibv_wc wc;
      EXPECT_GE(ibv_poll_cq(p.b.cq, 1, &wc), 0);
    }
    for (End *end : {&p.a, &p.b}) {
      ibv_qp_attr stop = {};
      stop.qp_state = how[0] == 'e' ? IBV_QPS_ERR : IBV_QPS_RESET;
      if (how[0] != 'd') {
        EXPECT_EQ(ibv_modify_qp(end->qp, &stop, IBV_QP_STATE), 0);
        continue;
      }
      EXPECT_EQ(ibv_destroy_qp(end->qp), 0);
      end->qp = nullptr;
    }
    EXPECT_EQ(fakeCudaPending(), 0u) << how;
  }
}

TEST(Gpu, ASourceThatIsReadByAddressStaysUntilThen) {
  if (!configured("direct yes")) return;
  fakeCudaDelay(50000);
  GpuPair p(1 << 20);
  unsigned before = fakeCudaCopies();
  EXPECT_EQ(p.a.postFrom(p.from.part(1 << 20), IBV_WR_RDMA_WRITE, p.to.at, p.to.mr->rkey), 0);
  while (fakeCudaCopies() == before) {
    ibv_wc wc;
    EXPECT_EQ(ibv_poll_cq(p.b.cq, 1, &wc), 0);
  }
  EXPECT_EQ(ibv_dereg_mr(p.from.mr), 0);
  p.from.mr = nullptr;
  EXPECT_EQ(fakeCudaPending(), 0u);
}

TEST(Gpu, AFailedCopyFailsTheRequest) {
  GpuPair p(4096);
  fakeCudaFail(); // the sender's
  EXPECT_EQ(p.a.postFrom(p.from.part(4096), IBV_WR_RDMA_WRITE, p.to.at, p.to.mr->rkey), 0);
  EXPECT_EQ(p.a.next().status, IBV_WC_LOC_PROT_ERR);
  GpuPair q(4096);
  fakeCudaFail(); // the receiver's: the sender's memory is the host's
  EXPECT_EQ(q.a.post(IBV_WR_RDMA_WRITE, 4096, q.to.at, q.to.mr->rkey), 0);
  EXPECT_EQ(q.a.next().status, IBV_WC_REM_OP_ERR);
}

TEST(Gpu, StagingIsPinnedWhileThereIsMemoryOfGpus) {
  unsigned pinned;
  {
    GpuPair p(4096);
    EXPECT_EQ(p.a.postFrom(p.from.part(4096), IBV_WR_RDMA_WRITE, p.to.at, p.to.mr->rkey), 0);
    EXPECT_EQ(p.a.next().status, IBV_WC_SUCCESS);
    pinned = fakeCudaPinned();
  }
  EXPECT_EQ(pinned, 2u); // both sides of one stream
  EXPECT_EQ(fakeCudaPinned(), 0u);
}

// What two processes tell each other.
struct Address {
  uint32_t qpn, rkey;
  uint64_t at;
};

void tell(int fd, const Address &a) {
  ASSERT_EQ(write(fd, &a, sizeof a), (ssize_t)sizeof a);
}
Address hear(int fd) {
  Address a = {};
  EXPECT_EQ(read(fd, &a, sizeof a), (ssize_t)sizeof a);
  return a;
}

// The child writes into the parent's GPU memory, and reads it back into other memory of its own.
void child(int in, int out) {
  End end;
  Buffer from(end.pd, 1000001), back(end.pd, 1000001);
  fakeCudaDelay(300);
  from.fill(pattern(1000001, 3));
  tell(out, {end.qp->qp_num, 0, 0});
  Address to = hear(in);
  EXPECT_EQ(end.toInit() | end.toRtr(to.qpn) | end.toRts(), 0);
  hear(in);
  EXPECT_EQ(end.postFrom(from.part(1000001), IBV_WR_RDMA_WRITE_WITH_IMM, to.at, to.rkey), 0);
  EXPECT_EQ(end.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(end.postFrom(back.part(1000001), IBV_WR_RDMA_READ, to.at, to.rkey), 0);
  EXPECT_EQ(end.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(back.read(1000001), pattern(1000001, 3));
  tell(out, {});
}

void twoProcesses() {
  int up[2], down[2], status = -1;
  ASSERT_EQ(pipe(up) | pipe(down), 0);
  pid_t pid = fork();
  if (pid == 0) {
    child(down[0], up[1]);
    _exit(testing::Test::HasFailure());
  }
  {
    End end;
    Buffer to(end.pd, 1000001);
    fakeCudaDelay(300);
    Address peer = hear(up[0]);
    tell(down[1], {end.qp->qp_num, to.mr->rkey, to.at});
    EXPECT_EQ(end.toInit() | end.toRtr(peer.qpn) | end.toRts(), 0);
    EXPECT_EQ(end.postRecv(0), 0);
    tell(down[1], {});
    EXPECT_EQ(end.next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(to.read(1000001), pattern(1000001, 3));
    hear(up[0]);
  }
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  for (int fd : {up[0], up[1], down[0], down[1]})
    close(fd);
}

TEST(Gpu, ProcessesReachEachOthersMemory) {
  if (configured("")) twoProcesses();
}

TEST(Gpu, ProcessesReachEachOthersMemoryByIpc) {
  if (configured("direct yes")) twoProcesses();
}

} // namespace

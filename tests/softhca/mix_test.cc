// Many operations at once, of all kinds, between memory of hosts and GPUs, in each mode: every byte
// is where it belongs when its completion has come.
#include "buffer.h"

#include <memory>
#include <random>

namespace {

constexpr int DEPTH = 4, LANES = 4, ROUNDS = 25;
constexpr size_t HOST_SLOT = (1 << 17) / (2 * DEPTH), GPU_SLOT = 1 << 19;

struct Operation {
  ibv_wr_opcode opcode;
  bool fromGpu, toGpu; // of the poster's memory and the peer's, whichever way the bytes go
  size_t length;
  std::vector<char> data;
};

// One connection. A slot of each memory belongs to each operation under way.
struct Lane : GpuPair {
  std::mt19937 random;
  std::vector<Operation> operations;
  explicit Lane(unsigned seed) : GpuPair(DEPTH * GPU_SLOT, 7, 7), random(seed) {}

  static ibv_sge slot(const End &end, const Buffer &buffer, bool gpu, int i, size_t length) {
    if (gpu) return {buffer.at + i * GPU_SLOT, (uint32_t)length, buffer.mr->lkey};
    return {end.at(i * HOST_SLOT), (uint32_t)length, end.mr->lkey};
  }
  ibv_sge mine(int i) const {
    return slot(a, from, operations[i].fromGpu, i, operations[i].length);
  }
  ibv_sge theirs(int i) const { return slot(b, to, operations[i].toGpu, i, operations[i].length); }

  static void put(const ibv_sge &at, bool gpu, const std::vector<char> &data) {
    if (gpu)
      EXPECT_EQ(cuMemcpyHtoD_v2(at.addr, data.data(), data.size()), CU_OK);
    else
      memcpy((void *)(uintptr_t)at.addr, data.data(), data.size()); // NOLINT: the ABI's integer
  }
  static std::vector<char> get(const ibv_sge &at, bool gpu) {
    std::vector<char> data(at.length);
    if (gpu)
      EXPECT_EQ(cuMemcpyDtoH_v2(data.data(), at.addr, data.size()), CU_OK);
    else
      memcpy(data.data(), (void *)(uintptr_t)at.addr, data.size()); // NOLINT
    return data;
  }

  Operation invent() {
    constexpr ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
                                         IBV_WR_RDMA_READ};
    Operation o = {opcodes[random() % 4], random() % 2 == 0, random() % 2 == 0, 0, {}};
    size_t most = o.fromGpu && o.toGpu ? GPU_SLOT : HOST_SLOT;
    o.length = 1 + random() % (random() % 2 ? 64 : most);
    o.data = pattern(o.length, random());
    return o;
  }

  // Fills the memory that bytes come from, and begins.
  void begin() {
    operations.clear();
    for (int i = 0; i < DEPTH; i++) {
      operations.push_back(invent());
      const Operation &o = operations.back();
      bool reads = o.opcode == IBV_WR_RDMA_READ;
      put(reads ? theirs(i) : mine(i), reads ? o.toGpu : o.fromGpu, o.data);
      put(reads ? mine(i) : theirs(i), reads ? o.fromGpu : o.toGpu,
          std::vector<char>(o.length, (char)0xee));
      if (o.opcode == IBV_WR_SEND || o.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
        EXPECT_EQ(b.postRecvTo(theirs(i)), 0);
      }
    }
    for (int i = 0; i < DEPTH; i++)
      EXPECT_EQ(a.postFrom(mine(i), operations[i].opcode, theirs(i).addr,
                           operations[i].toGpu ? to.mr->rkey : b.mr->rkey),
                0);
  }

  void end() const {
    for (int i = 0; i < DEPTH; i++) {
      const Operation &o = operations[i];
      bool notifies = o.opcode == IBV_WR_SEND || o.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
      if (notifies) {
        ibv_wc wc = b.next();
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        EXPECT_EQ(wc.byte_len, o.length);
      }
      EXPECT_EQ(a.next().status, IBV_WC_SUCCESS);
      bool reads = o.opcode == IBV_WR_RDMA_READ;
      EXPECT_TRUE(get(reads ? mine(i) : theirs(i), reads ? o.fromGpu : o.toGpu) == o.data)
          << "operation " << o.opcode << " of " << o.length << " bytes";
    }
  }
};

void mix() {
  fakeCudaDelay(200);
  std::vector<std::unique_ptr<Lane>> lanes;
  for (unsigned i = 0; i < LANES; i++)
    lanes.push_back(std::make_unique<Lane>(i + 1));
  for (int round = 0; round < ROUNDS && !testing::Test::HasFailure(); round++) {
    for (auto &lane : lanes)
      lane->begin();
    for (auto &lane : lanes)
      lane->end();
  }
}

TEST(Mix, ArrivesWhole) {
  if (configured("")) mix();
}
TEST(Mix, ArrivesWholeByManyMovers) {
  if (configured("movers 4")) mix();
}
TEST(Mix, ArrivesWholeWithoutStaging) {
  if (configured("direct yes\nmovers 2")) mix();
}
TEST(Mix, ArrivesWholeThroughLittleStaging) {
  if (configured("staging_mib 1")) mix();
}
TEST(Mix, ArrivesWholeOutOfOrder) {
  if (configured("reorder_us 300")) mix();
}
TEST(Mix, ArrivesWholeWhereFramesGetLost) {
  if (configured("fault lost p=0.03\nfault rnr p=0.1\nfault flip p=0.02 icrc=yes")) mix();
}
TEST(Mix, ArrivesWholeWhereAllIsLateAndSlow) {
  if (configured("device softhca0 gbps=2 latency_us=50\nfault late p=0.1 us=500\n"
                 "fault completion p=0.1 us=300"))
    mix();
}

} // namespace

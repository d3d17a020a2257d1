/* Every collective over every (transport, algorithm, number of ranks), with guard zones and
 * poisoned outputs, against the definition in tutti.h. */
#include <cstring>
#include <random>

#include "collectives/signature.h"
#include "device/cpu/reduce.h"
#include "harness.h"

namespace {

struct Way {
  const char *name;
  std::map<std::string, std::string> settings;
};

const Way ways[] = {
    {"P2pAuto", {}},
    {"P2pRing", {{"TUTTI_ALGO", "Ring"}}},
    {"P2pTree", {{"TUTTI_ALGO", "Tree"}}},
    {"P2pDirect", {{"TUTTI_ALGO", "Direct"}}},
    {"ShmAuto", {{"TUTTI_P2P_DISABLE", "1"}}},
    {"ShmRing", {{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_ALGO", "Ring"}}},
    {"ShmTree", {{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_ALGO", "Tree"}}},
    {"ShmDirectLL", {{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_ALGO", "Direct"}, {"TUTTI_PROTO", "LL"}}},
    {"NetAuto", {{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_SHM_DISABLE", "1"}}},
    {"NetRing", {{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_SHM_DISABLE", "1"}, {"TUTTI_ALGO", "Ring"}}},
    {"NetRingFourSockets",
     {{"TUTTI_P2P_DISABLE", "1"},
      {"TUTTI_SHM_DISABLE", "1"},
      {"TUTTI_ALGO", "Ring"},
      {"TUTTI_SOCKET_NSOCKS", "4"}}},
    {"NetTree", {{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_SHM_DISABLE", "1"}, {"TUTTI_ALGO", "Tree"}}},
    {"NetDirect",
     {{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_SHM_DISABLE", "1"}, {"TUTTI_ALGO", "Direct"}}},
};

/* Small slots, so that small counts already need many chunks. */
const std::map<std::string, std::string> smallSlots = {{"TUTTI_BUFFSIZE", "8192"}};

constexpr size_t kGuard = 64;

bool isFloat(tuttiDataType_t t) {
  return t >= tuttiFloat16;
}

void setElement(tuttiDataType_t type, double value, void *element) {
  int64_t whole = (int64_t)value;
  if (isFloat(type))
    tuttiFloatFromDouble(type, value, element);
  else
    memcpy(element, &whole, tuttiTypeSize(type));
}

/* Integers are small here, and not negative. */
double getElement(tuttiDataType_t type, const void *element) {
  int64_t whole = 0;
  if (isFloat(type)) return tuttiFloatToDouble(type, element);
  memcpy(&whole, element, tuttiTypeSize(type));
  return (double)whole;
}

/* A buffer of elements between guard zones, poisoned. */
class Buffer {
public:
  Buffer(tuttiDataType_t type, size_t count)
      : type_(type), size_(tuttiTypeSize(type)), bytes_(count * size_ + 2 * kGuard, 0xa5) {}
  void *data() { return bytes_.data() + kGuard; }
  void *at(size_t i) { return bytes_.data() + kGuard + i * size_; }
  void set(size_t i, double v) { setElement(type_, v, at(i)); }
  double get(size_t i) { return getElement(type_, at(i)); }
  bool guarded() const {
    for (size_t i = 0; i < kGuard; i++)
      if (bytes_[i] != 0xa5 || bytes_[bytes_.size() - 1 - i] != 0xa5) return false;
    return true;
  }

private:
  tuttiDataType_t type_;
  size_t size_;
  std::vector<uint8_t> bytes_;
};

/* Input element i of rank r: small enough that every type, operation and order is exact. */
double value(int r, size_t i, tuttiRedOp_t op) {
  unsigned h = (unsigned)(r * 7919 + i * 104729 + 13) % 97;
  if (op == tuttiProd) return h % 5 == 0 && r < 3 ? 2 : 1;
  if (op == tuttiSum || op == tuttiAvg) return h % 4 == 0 ? 1 : 0;
  return h % 9;
}

double reduced(int n, size_t i, tuttiRedOp_t op) {
  double v = value(0, i, op);
  for (int r = 1; r < n; r++) {
    double x = value(r, i, op);
    if (op == tuttiSum || op == tuttiAvg) v += x;
    if (op == tuttiProd) v *= x;
    if (op == tuttiMax) v = std::max(v, x);
    if (op == tuttiMin) v = std::min(v, x);
  }
  return v;
}

/* What the average of an exact sum is in a type. */
double average(double sum, int n, tuttiDataType_t type) {
  double v = isFloat(type) ? sum / n : (double)((long long)sum / n);
  if (type == tuttiFloat64 || !isFloat(type)) return v;
  char element[8];
  tuttiFloatFromDouble(type, (double)(float)v, element);
  return tuttiFloatToDouble(type, element);
}

/* Ring and tree may round an average's operands elsewhere than the reference: one ulp. */
void expectNear(double got, double want, tuttiDataType_t type, const std::string &what) {
  double slack = 0;
  if (type == tuttiFloat8e5m2) slack = 0.25;
  if (type == tuttiFloat8e4m3) slack = 0.125;
  if (type == tuttiBfloat16) slack = 1.0 / 128;
  if (type == tuttiFloat16) slack = 1.0 / 1024;
  if (type == tuttiFloat32) slack = 1e-6;
  ASSERT_LE(std::abs(got - want), slack * std::abs(want)) << what;
}

struct Case {
  int n;
  size_t count;
  tuttiDataType_t type;
  tuttiRedOp_t op;
  int root;
  bool inPlace;
  std::string text(const char *call) const {
    return std::string(call) + " n=" + std::to_string(n) + " count=" + std::to_string(count) + " " +
           tuttiTypeName(type) + " " + tuttiRedOpName(op) + " root=" + std::to_string(root) +
           (inPlace ? " in place" : "");
  }
};

#define RUN(call) ASSERT_EQ((call), tuttiSuccess) << what << ": " << tuttiGetLastError(comm)

void checkReduced(Buffer &out, const Case &k, size_t first, const std::string &what) {
  for (size_t i = 0; i < k.count; i++) {
    double want = reduced(k.n, first + i, k.op);
    if (k.op == tuttiAvg)
      expectNear(out.get(i), average(want, k.n, k.type), k.type, what);
    else
      ASSERT_EQ(out.get(i), want) << what << " element " << i;
  }
  ASSERT_TRUE(out.guarded()) << what;
}

void allReduce(int r, tuttiComm_t comm, const Case &k) {
  std::string what = k.text("AllReduce");
  Buffer in(k.type, k.count), out(k.type, k.count);
  Buffer &source = k.inPlace ? out : in;
  for (size_t i = 0; i < k.count; i++)
    source.set(i, value(r, i, k.op));
  RUN(tuttiAllReduce(source.data(), out.data(), k.count, k.type, k.op, comm, nullptr));
  checkReduced(out, k, 0, what);
}

void reduce(int r, tuttiComm_t comm, const Case &k) {
  std::string what = k.text("Reduce");
  Buffer in(k.type, k.count), out(k.type, k.count);
  Buffer &source = k.inPlace ? out : in;
  for (size_t i = 0; i < k.count; i++)
    source.set(i, value(r, i, k.op));
  RUN(tuttiReduce(source.data(), r == k.root || k.inPlace ? out.data() : nullptr, k.count, k.type,
                  k.op, k.root, comm, nullptr));
  if (r == k.root) return checkReduced(out, k, 0, what);
  for (size_t i = 0; i < k.count; i++)
    ASSERT_EQ(source.get(i), value(r, i, k.op)) << what;
}

void reduceScatter(int r, tuttiComm_t comm, const Case &k) {
  std::string what = k.text("ReduceScatter");
  Buffer in(k.type, k.count * k.n), out(k.type, k.count);
  for (size_t i = 0; i < k.count * k.n; i++)
    in.set(i, value(r, i, k.op));
  void *to = k.inPlace ? in.at(k.count * r) : out.data();
  RUN(tuttiReduceScatter(in.data(), to, k.count, k.type, k.op, comm, nullptr));
  if (k.inPlace && k.count) memcpy(out.data(), to, k.count * tuttiTypeSize(k.type));
  checkReduced(out, k, k.count * r, what);
  ASSERT_TRUE(in.guarded()) << what;
}

void broadcast(int r, tuttiComm_t comm, const Case &k) {
  std::string what = k.text("Broadcast");
  Buffer in(k.type, k.count), out(k.type, k.count);
  Buffer &source = k.inPlace ? out : in;
  for (size_t i = 0; i < k.count; i++)
    source.set(i, value(r, i, tuttiMax));
  const void *from = r == k.root ? in.data() : nullptr;
  RUN(k.inPlace ? tuttiBcast(out.data(), k.count, k.type, k.root, comm, nullptr)
                : tuttiBroadcast(from, out.data(), k.count, k.type, k.root, comm, nullptr));
  for (size_t i = 0; i < k.count; i++)
    ASSERT_EQ(out.get(i), value(k.root, i, tuttiMax)) << what;
  ASSERT_TRUE(out.guarded()) << what;
}

void allGather(int r, tuttiComm_t comm, const Case &k) {
  std::string what = k.text("AllGather");
  Buffer in(k.type, k.count), out(k.type, k.count * k.n);
  for (size_t i = 0; i < k.count; i++)
    (k.inPlace ? out : in).set(k.inPlace ? k.count * r + i : i, value(r, i, tuttiMax));
  RUN(tuttiAllGather(k.inPlace ? out.at(k.count * r) : in.data(), out.data(), k.count, k.type, comm,
                     nullptr));
  for (int s = 0; s < k.n; s++)
    for (size_t i = 0; i < k.count; i++)
      ASSERT_EQ(out.get(s * k.count + i), value(s, i, tuttiMax)) << what << " of rank " << s;
  ASSERT_TRUE(out.guarded()) << what;
}

void allToAll(int r, tuttiComm_t comm, const Case &k) {
  std::string what = k.text("AlltoAll");
  Buffer in(k.type, k.count * k.n), out(k.type, k.count * k.n);
  for (size_t i = 0; i < k.count * k.n; i++)
    in.set(i, value(r, i, tuttiMax));
  RUN(tuttiAlltoAll(in.data(), out.data(), k.count, k.type, comm, nullptr));
  for (int s = 0; s < k.n; s++)
    for (size_t i = 0; i < k.count; i++)
      ASSERT_EQ(out.get(s * k.count + i), value(s, r * k.count + i, tuttiMax)) << what;
  ASSERT_TRUE(out.guarded()) << what;
}

void gather(int r, tuttiComm_t comm, const Case &k) {
  std::string what = k.text("Gather");
  bool isRoot = r == k.root;
  Buffer in(k.type, k.count), out(k.type, isRoot ? k.count * k.n : 0);
  bool inPlace = k.inPlace && isRoot;
  for (size_t i = 0; i < k.count; i++)
    (inPlace ? out : in).set(inPlace ? k.count * r + i : i, value(r, i, tuttiMax));
  RUN(tuttiGather(inPlace ? out.at(k.count * r) : in.data(), isRoot ? out.data() : nullptr, k.count,
                  k.type, k.root, comm, nullptr));
  for (int s = 0; isRoot && s < k.n; s++)
    for (size_t i = 0; i < k.count; i++)
      ASSERT_EQ(out.get(s * k.count + i), value(s, i, tuttiMax)) << what;
  ASSERT_TRUE(out.guarded()) << what;
}

void scatter(int r, tuttiComm_t comm, const Case &k) {
  std::string what = k.text("Scatter");
  bool isRoot = r == k.root;
  Buffer in(k.type, isRoot ? k.count * k.n : 0), out(k.type, k.count);
  for (size_t i = 0; isRoot && i < k.count * k.n; i++)
    in.set(i, value(r, i, tuttiMax));
  void *to = k.inPlace && isRoot ? in.at(k.count * r) : out.data();
  RUN(tuttiScatter(isRoot ? in.data() : nullptr, to, k.count, k.type, k.root, comm, nullptr));
  if (k.count && to != out.data()) memcpy(out.data(), to, k.count * tuttiTypeSize(k.type));
  for (size_t i = 0; i < k.count; i++)
    ASSERT_EQ(out.get(i), value(k.root, r * k.count + i, tuttiMax)) << what;
  ASSERT_TRUE(out.guarded()) << what;
}

/* Every rank sends to the next and receives from the one before, and to and from itself. */
void sendRecv(int r, tuttiComm_t comm, const Case &k) {
  std::string what = k.text("SendRecv");
  int next = (r + 1) % k.n, before = (r + k.n - 1) % k.n;
  Buffer in(k.type, k.count), out(k.type, k.count), self(k.type, k.count);
  for (size_t i = 0; i < k.count; i++)
    in.set(i, value(r, i, tuttiMax));
  RUN(tuttiGroupStart());
  RUN(tuttiSend(in.data(), k.count, k.type, next, comm, nullptr));
  RUN(tuttiRecv(out.data(), k.count, k.type, before, comm, nullptr));
  RUN(tuttiSend(in.data(), k.count, k.type, r, comm, nullptr));
  RUN(tuttiRecv(self.data(), k.count, k.type, r, comm, nullptr));
  RUN(tuttiGroupEnd());
  /* One rank alone: both messages are its own, in order. */
  for (size_t i = 0; i < k.count; i++) {
    ASSERT_EQ(out.get(i), value(before, i, tuttiMax)) << what;
    ASSERT_EQ(self.get(i), value(r, i, tuttiMax)) << what;
  }
  ASSERT_TRUE(out.guarded() && self.guarded()) << what;
}

void everyCall(int r, tuttiComm_t comm, const Case &k) {
  allReduce(r, comm, k);
  reduce(r, comm, k);
  reduceScatter(r, comm, k);
  broadcast(r, comm, k);
  allGather(r, comm, k);
  allToAll(r, comm, k);
  gather(r, comm, k);
  scatter(r, comm, k);
  sendRecv(r, comm, k);
}

class Collectives : public testing::TestWithParam<std::tuple<Way, int>> {};

std::string nameOf(const testing::TestParamInfo<std::tuple<Way, int>> &info) {
  return std::string(std::get<0>(info.param).name) + "x" + std::to_string(std::get<1>(info.param));
}

TEST_P(Collectives, SizesAroundBorders) {
  auto [way, n] = GetParam();
  Settings small(smallSlots), settings(way.settings);
  Ranks ranks(n);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&, n = n](int r, tuttiComm_t comm) {
    /* 1 KiB slots of float32: inline, slot, chunk and loop borders. */
    for (size_t count : {0, 1, 2, 19, 20, 21, 31, 255, 256, 257, 511, 777, 2049, 5000})
      for (bool inPlace : {false, true}) {
        Case k = {n, count, tuttiFloat32, tuttiSum, (int)(count % n), inPlace};
        everyCall(r, comm, k);
        if (testing::Test::HasFatalFailure()) return;
      }
  });
}

TEST_P(Collectives, TypesAndOperations) {
  auto [way, n] = GetParam();
  Settings small(smallSlots), settings(way.settings);
  Ranks ranks(n);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&, n = n](int r, tuttiComm_t comm) {
    for (int type = 0; type < tuttiNumTypes; type++)
      for (int op = 0; op < tuttiNumOps; op++)
        for (size_t count : {3, 300}) {
          Case k = {n,          count, (tuttiDataType_t)type, (tuttiRedOp_t)op, (type + op) % n,
                    op % 2 == 1};
          allReduce(r, comm, k);
          reduce(r, comm, k);
          reduceScatter(r, comm, k);
          if (op == 0) {
            broadcast(r, comm, k);
            allGather(r, comm, k);
            allToAll(r, comm, k);
            gather(r, comm, k);
            scatter(r, comm, k);
            sendRecv(r, comm, k);
          }
          if (testing::Test::HasFatalFailure()) return;
        }
  });
}

INSTANTIATE_TEST_SUITE_P(Ways, Collectives,
                         testing::Combine(testing::ValuesIn(ways), testing::Values(1, 2, 3, 4, 7)),
                         nameOf);

/* Messages that are worth more than a slot: lent, copied out of the other process, or in pieces. */
TEST(LargeMessages, BetweenProcesses) {
  for (const char *noCopies : {"0", "1"})
    for (int n : {2, 3}) {
      Settings shm({{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_CMA_DISABLE", noCopies}});
      Ranks ranks(n);
      ASSERT_TRUE(ranks.ok());
      ranks.run([n](int r, tuttiComm_t comm) {
        for (size_t count : {5000, 40000, 300001})
          for (bool inPlace : {false, true}) {
            Case k = {n, count, tuttiFloat32, tuttiSum, (int)(count % n), inPlace};
            everyCall(r, comm, k);
            if (testing::Test::HasFatalFailure()) return;
          }
      });
    }
}

/* The scalar may differ between ranks and is applied once, whatever the algorithm. */
TEST_P(Collectives, PreMulSum) {
  auto [way, n] = GetParam();
  Settings small(smallSlots), settings(way.settings);
  Ranks ranks(n);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&, n = n, name = way.name](int r, tuttiComm_t comm) {
    std::string what = "PreMulSum";
    for (tuttiDataType_t type : {tuttiFloat32, tuttiInt32, tuttiBfloat16}) {
      for (auto residence : {tuttiScalarHostImmediate, tuttiScalarDevice}) {
        alignas(8) char scalar[8];
        setElement(type, r + 1, scalar);
        tuttiRedOp_t op;
        RUN(tuttiRedOpCreatePreMulSum(&op, scalar, type, residence, comm));
        if (residence == tuttiScalarDevice) setElement(type, r + 2, scalar);
        Buffer in(type, 700), out(type, 700);
        for (size_t i = 0; i < 700; i++)
          in.set(i, (double)(i % 3));
        RUN(tuttiAllReduce(in.data(), out.data(), 700, type, op, comm, nullptr));
        double factor = 0;
        for (int s = 0; s < n; s++)
          factor += s + (residence == tuttiScalarDevice ? 2 : 1);
        for (size_t i = 0; i < 700; i++)
          ASSERT_EQ(out.get(i), (double)(i % 3) * factor) << name;
        RUN(tuttiRedOpDestroy(op, comm));
      }
    }
  });
}

/* Also where products are not exact: what a rank adds of its own is what the others got of it. */
TEST_P(Collectives, PreMulSumGivesAllRanksTheSameBits) {
  auto [way, n] = GetParam();
  if (n > 3) return;
  Settings small(smallSlots), settings(way.settings);
  Ranks ranks(n);
  ASSERT_TRUE(ranks.ok());
  for (tuttiDataType_t type : {tuttiFloat16, tuttiBfloat16})
    for (size_t count : {19, 700, 5000}) {
      std::vector<std::vector<uint8_t>> bits(n);
      ranks.run([&](int r, tuttiComm_t comm) {
        alignas(8) char third[8];
        setElement(type, 1.0 / 3, third);
        tuttiRedOp_t op;
        ASSERT_EQ(tuttiRedOpCreatePreMulSum(&op, third, type, tuttiScalarHostImmediate, comm),
                  tuttiSuccess);
        Buffer in(type, count), out(type, count);
        for (size_t i = 0; i < count; i++)
          in.set(i, 1 + (double)((i * 37 + r * 101) % 113) / 128);
        ASSERT_EQ(tuttiAllReduce(in.data(), out.data(), count, type, op, comm, nullptr),
                  tuttiSuccess);
        auto *from = (const uint8_t *)out.data();
        bits[r].assign(from, from + 2 * count);
        ASSERT_EQ(tuttiRedOpDestroy(op, comm), tuttiSuccess);
      });
      for (int r = 1; r < n; r++)
        EXPECT_EQ(bits[r], bits[0]) << way.name << ", rank " << r << ", " << count << " elements";
    }
}

} // namespace

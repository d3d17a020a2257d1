/* Every collective over every (transport, algorithm, number of ranks), with guard zones and
 * poisoned outputs, against the definition in tutti.h. */
#include "collective_call.h"
#include "element.h"
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

/* The element that stands for a whole number, which is not negative. */
Element elementOf(double value) {
  return {value, (uint64_t)value};
}

/* Elements between guard zones, poisoned; knows what it held. */
class Buffer {
public:
  Buffer(tuttiDataType_t type, size_t count)
      : type_(type), size_(tuttiTypeSize(type)), bytes_(count * size_ + 2 * kGuard, 0xa5) {}
  void *at(size_t i) { return bytes_.data() + kGuard + i * size_; }
  void set(size_t i, Element e) { storeElement(type_, e, at(i)); }
  Element get(size_t i) { return loadElement(type_, at(i)); }
  void remember() { before_ = bytes_; }
  /* Nothing has changed but `count` elements from `first` on. */
  bool unchangedBut(size_t first, size_t count) const {
    auto from = before_.begin() + (ptrdiff_t)(kGuard + first * size_);
    auto to = from + (ptrdiff_t)(count * size_);
    return std::equal(before_.begin(), from, bytes_.begin()) &&
           std::equal(to, before_.end(), bytes_.begin() + (to - before_.begin()));
  }

private:
  tuttiDataType_t type_;
  size_t size_;
  std::vector<uint8_t> bytes_, before_;
};

/* Input element i of rank r: small enough that every type, operation and order is exact. */
double value(int r, size_t i, tuttiRedOp_t op) {
  unsigned h = (unsigned)(r * 7919 + i * 104729 + 13) % 97;
  if (op == tuttiProd) return h % 5 == 0 && r < 3 ? 2 : 1;
  if (op == tuttiSum || op == tuttiAvg) return h % 4 == 0 ? 1 : 0;
  return h % 9;
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

/* Sums and products are exact here. Ring and tree may round an average's operands elsewhere. */
bool isRight(Element got, const Case &k, oracle::Source from) {
  auto input = [&](int r, size_t i) { return value(r, i, k.op); };
  if (!from.reduced) return sameElement(k.type, got, elementOf(input(from.rank, from.index)));
  if (k.op != tuttiAvg)
    return sameElement(k.type, got, elementOf(oracle::reduced(k.n, from.index, k.op, input)));
  auto element = [&](int r, size_t i) { return elementOf(input(r, i)); };
  return nearEnough(k.type, false, got, reducedElement(k.type, k.op, k.n, from.index, element), 2);
}

/* Elements [first, first + count) of `out` are those that `sourceOf` says, from 0 on. */
template <class SourceOf>
void checkElements(Buffer &out, size_t first, size_t count, const Case &k, const std::string &what,
                   const SourceOf &sourceOf) {
  size_t i = 0;
  while (i < count && isRight(out.get(first + i), k, sourceOf(i)))
    i++;
  if (i == count) return;
  Element got = out.get(first + i);
  oracle::Source from = sourceOf(i);
  FAIL() << what << " element " << i << " is " << got.f << " / " << got.i << ", made of rank "
         << from.rank << " (-1: all), " << from.index;
}

/* One collective on one rank: the result is right, and nothing else has changed. */
void collective(int coll, int r, tuttiComm_t comm, const Case &k) {
  const std::string what = k.text(tuttiCollName(coll));
  const oracle::Call call = {coll, k.n, k.root, k.count};
  const size_t in = oracle::sends(call, r), out = oracle::receives(call, r);
  const bool aliases = k.inPlace && in && out && coll != tuttiCollAlltoAll;
  const oracle::Layout at = oracle::layoutOf(call, r, k.inPlace);
  Buffer memory(k.type, aliases ? at.all : in), other(k.type, aliases ? 0 : out);
  Buffer &result = aliases ? memory : other;
  const size_t first = aliases ? at.recv : 0;
  for (size_t i = 0; i < in; i++)
    memory.set(at.send + i, elementOf(value(r, i, k.op)));
  memory.remember();
  other.remember();
  /* Who has no such buffer gives none, or, in place, the other one. */
  void *send = memory.at(at.send), *recv = result.at(first);
  if (k.count && !in) send = k.inPlace ? recv : nullptr;
  if (k.count && !out) recv = k.inPlace ? send : nullptr;
  bool bcast = coll == tuttiCollBroadcast && k.inPlace;
  RUN(bcast ? tuttiBcast(recv, k.count, k.type, k.root, comm, nullptr)
            : callCollective(call, send, recv, k.type, k.op, comm, nullptr));
  checkElements(result, first, out, k, what,
                [&](size_t i) { return oracle::sourceOf(call, r, i); });
  ASSERT_TRUE(memory.unchangedBut(at.recv, aliases ? out : 0)) << what;
  ASSERT_TRUE(other.unchangedBut(0, aliases ? 0 : out)) << what;
}

/* Every rank sends to the next and receives from the one before, and to and from itself. One rank
 * alone: both messages are its own, in order. */
void sendRecv(int r, tuttiComm_t comm, const Case &k) {
  std::string what = k.text("SendRecv");
  int next = (r + 1) % k.n, before = (r + k.n - 1) % k.n;
  Buffer in(k.type, k.count), out(k.type, k.count), self(k.type, k.count);
  for (size_t i = 0; i < k.count; i++)
    in.set(i, elementOf(value(r, i, k.op)));
  for (Buffer *b : {&in, &out, &self})
    b->remember();
  RUN(tuttiGroupStart());
  RUN(tuttiSend(in.at(0), k.count, k.type, next, comm, nullptr));
  RUN(tuttiRecv(out.at(0), k.count, k.type, before, comm, nullptr));
  RUN(tuttiSend(in.at(0), k.count, k.type, r, comm, nullptr));
  RUN(tuttiRecv(self.at(0), k.count, k.type, r, comm, nullptr));
  RUN(tuttiGroupEnd());
  checkElements(out, 0, k.count, k, what, [&](size_t i) {
    return oracle::Source{false, before, i};
  });
  checkElements(self, 0, k.count, k, what + " to itself", [&](size_t i) {
    return oracle::Source{false, r, i};
  });
  ASSERT_TRUE(in.unchangedBut(0, 0)) << what;
  ASSERT_TRUE(out.unchangedBut(0, k.count) && self.unchangedBut(0, k.count)) << what;
}

void everyCall(int r, tuttiComm_t comm, const Case &k, bool reducing = true, bool moving = true) {
  for (int coll = 0; coll < tuttiCollSendRecv; coll++)
    if ((oracle::reduces(coll) ? reducing : moving) && !testing::Test::HasFatalFailure())
      collective(coll, r, comm, k);
  if (moving && !testing::Test::HasFatalFailure()) sendRecv(r, comm, k);
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
          everyCall(r, comm, k, true, op == 0);
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
        storeElement(type, elementOf(r + 1), scalar);
        tuttiRedOp_t op;
        RUN(tuttiRedOpCreatePreMulSum(&op, scalar, type, residence, comm));
        const bool late = residence == tuttiScalarDevice; /* read when the operation runs */
        if (late) storeElement(type, elementOf(r + 2), scalar);
        Buffer in(type, 700), out(type, 700);
        for (size_t i = 0; i < 700; i++)
          in.set(i, elementOf((double)(i % 3)));
        RUN(tuttiAllReduce(in.at(0), out.at(0), 700, type, op, comm, nullptr));
        auto operand = [&](int q, size_t i) {
          return product(elementOf((double)(i % 3)), elementOf(q + (late ? 2 : 1)));
        };
        for (size_t i = 0; i < 700; i++) {
          Element got = out.get(i), want = reducedElement(type, tuttiSum, n, i, operand).value;
          ASSERT_TRUE(sameElement(type, got, want)) << name << " element " << i;
        }
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
        storeElement(type, {1.0 / 3, 0}, third);
        tuttiRedOp_t op;
        ASSERT_EQ(tuttiRedOpCreatePreMulSum(&op, third, type, tuttiScalarHostImmediate, comm),
                  tuttiSuccess);
        Buffer in(type, count), out(type, count);
        for (size_t i = 0; i < count; i++)
          in.set(i, {1 + (double)((i * 37 + r * 101) % 113) / 128, 0});
        ASSERT_EQ(tuttiAllReduce(in.at(0), out.at(0), count, type, op, comm, nullptr),
                  tuttiSuccess);
        auto *from = (const uint8_t *)out.at(0);
        bits[r].assign(from, from + 2 * count);
        ASSERT_EQ(tuttiRedOpDestroy(op, comm), tuttiSuccess);
      });
      for (int r = 1; r < n; r++)
        EXPECT_EQ(bits[r], bits[0]) << way.name << ", rank " << r << ", " << count << " elements";
    }
}

} // namespace

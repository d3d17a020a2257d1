/* What a communicator keeps of an operation must not leak into the next one that looks alike: calls
 * that differ in one respect only follow each other in random order, more shapes than are kept. */
#include <random>
#include <type_traits>

#include "harness.h"
#include "oracle.h"

namespace {

constexpr int n = 4; /* averages of small integers are exact */

struct Call {
  int kind; /* 0 broadcast, 1 reduce, 2 all-reduce, 3 all-gather, 4 message to the next rank */
  size_t count;
  int root, op; /* op >= tuttiNumOps: PreMulSum */
  bool inPlace, isDouble;
};

double element(unsigned call, int r, size_t i) {
  return 1 + (call * 5 + (unsigned)r * 3 + i) % 4;
}

bool begun(tuttiResult_t result) {
  return result == tuttiSuccess || result == tuttiInProgress;
}

template <typename T> class Side {
public:
  Side(const Call &c, unsigned call, int r, tuttiComm_t comm)
      : c(c), call(call), r(r), comm(comm), in(c.count), out(c.count * n, -1) {
    for (size_t i = 0; i < c.count; i++)
      in[i] = (T)element(call, r, i);
    if (c.inPlace && c.kind < 3) std::copy(in.begin(), in.end(), out.begin());
    if (c.inPlace && c.kind == 3) std::copy(in.begin(), in.end(), out.begin() + r * c.count);
  }

  tuttiResult_t start(tuttiRedOp_t op) {
    tuttiDataType_t type = std::is_same_v<T, double> ? tuttiFloat64 : tuttiFloat32;
    T *to = out.data(), *from = !c.inPlace ? in.data() : c.kind == 3 ? to + r * c.count : to;
    if (c.kind == 0) return tuttiBroadcast(from, to, c.count, type, c.root, comm, nullptr);
    if (c.kind == 1) return tuttiReduce(from, to, c.count, type, op, c.root, comm, nullptr);
    if (c.kind == 2) return tuttiAllReduce(from, to, c.count, type, op, comm, nullptr);
    if (c.kind == 3) return tuttiAllGather(from, to, c.count, type, comm, nullptr);
    tuttiSend(in.data(), c.count, type, (r + 1 + c.root % 3) % n, comm, nullptr);
    return tuttiRecv(to, c.count, type, (r + 3 - c.root % 3) % n, comm, nullptr);
  }

  void check(double factor) const {
    constexpr int colls[] = {tuttiCollBroadcast, tuttiCollReduce, tuttiCollAllReduce,
                             tuttiCollAllGather};
    bool message = c.kind == 4, premul = c.op >= tuttiNumOps;
    oracle::Call k = {message ? tuttiCollBroadcast : colls[c.kind], n, c.root, c.count};
    if (message) k.root = (r + 3 - c.root % 3) % n; /* as from there */
    auto input = [&](int q, size_t i) {
      bool multiplied = premul && oracle::reduces(k.coll); /* by a factor of its own each */
      return element(call, q, i) * (multiplied ? factor + q : 1);
    };
    for (size_t i = 0; i < oracle::receives(k, r); i++) {
      double expected = oracle::expected(k, r, i, premul ? (int)tuttiSum : c.op, input);
      ASSERT_EQ(out[i], (T)expected) << "call " << call << " kind " << c.kind << " op " << c.op
                                     << " count " << c.count << " root " << c.root << " i " << i;
    }
  }

private:
  Call c;
  unsigned call;
  int r;
  tuttiComm_t comm;
  std::vector<T> in, out;
};

template <typename T>
void runCall(const Call &c, unsigned call, int r, tuttiComm_t comm, bool twice) {
  double factor = 1 + call % 3;
  T scalar = (T)(factor + r);
  auto op = (tuttiRedOp_t)c.op;
  if (c.op >= tuttiNumOps) { /* the handle's number is the same each time */
    auto type = std::is_same_v<T, double> ? tuttiFloat64 : tuttiFloat32;
    ASSERT_EQ(tuttiRedOpCreatePreMulSum(&op, &scalar, type, tuttiScalarHostImmediate, comm),
              tuttiSuccess);
  }
  Side<T> a(c, call, r, comm), b(c, call + 1, r, comm);
  bool grouped = twice || c.kind == 4;
  if (grouped) tuttiGroupStart();
  EXPECT_TRUE(begun(a.start(op))) << tuttiGetLastError(comm);
  EXPECT_TRUE(!twice || begun(b.start(op))) << tuttiGetLastError(comm);
  EXPECT_TRUE(c.op < tuttiNumOps || tuttiRedOpDestroy(op, comm) == tuttiSuccess);
  EXPECT_TRUE(!grouped || begun(tuttiGroupEnd())) << tuttiGetLastError(comm);
  ASSERT_EQ(settle(comm), tuttiSuccess) << tuttiGetLastError(comm);
  a.check(factor);
  if (twice) b.check(factor);
}

void alternate(const char *noThreads, const char *algo, int blocking) {
  Settings settings({{"TUTTI_P2P_DISABLE", noThreads}, {"TUTTI_ALGO", algo}});
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.blocking = blocking;
  Ranks ranks(n, &config);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm) {
    ASSERT_EQ(settle(comm), tuttiSuccess);
    std::mt19937 random(7); /* the same on every rank */
    const size_t counts[] = {1, 2, 3, 64, 3000};
    for (unsigned call = 0; call < 400 && !testing::Test::HasFatalFailure(); call++) {
      Call c = {(int)(random() % 5), counts[random() % 5],
                (int)(random() % n), (int)(random() % (tuttiNumOps + 2)),
                random() % 2 == 0,   random() % 4 == 0};
      bool twice = random() % 4 == 0;
      (c.isDouble ? runCall<double> : runCall<float>)(c, call, r, comm, twice);
    }
  });
}

TEST(Repeated, BetweenThreads) {
  alternate("0", "", 1);
}
TEST(Repeated, OverSharedMemory) {
  alternate("1", "", 1);
}
TEST(Repeated, Tree) {
  alternate("1", "Tree", 1);
}
TEST(Repeated, NonBlocking) {
  alternate("0", "", 0);
}

} // namespace

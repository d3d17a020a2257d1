/* Lines that carry their own flag come whole: whatever their places held before, no rank takes a
 * part of that for the message. Other tests send the same data again and again, which hides it. */
#include "collective_call.h"
#include "gpu/gpu.h"

namespace {

struct Way {
  const char *name;
  std::map<std::string, std::string> settings;
  int n;
};
void PrintTo(const Way &way, std::ostream *out) {
  *out << way.name;
}
const Way kWays[] = {{"LLx2", {{"TUTTI_PROTO", "LL"}}, 2},
                     {"LLx3", {{"TUTTI_PROTO", "LL"}}, 3},
                     {"LLx4", {{"TUTTI_PROTO", "LL"}}, 4},
                     {"Bothx3", {}, 3}};

constexpr int kRounds = 24;
constexpr size_t kMost = 524288, kOffset = 1; /* elements */

struct Shape {
  int coll;
  size_t count, offset; /* elements, and by how many buffers miss a multiple of 256 bytes */
};

class GpuLines : public GpuTest, public testing::WithParamInterface<Way> {};

/* Bytes of which sums of the ranks' elements carry nothing, other ones in each round. */
uint8_t byteOf(int round) {
  return (uint8_t)(1 + round % 31);
}

/* The first stretches of bytes that are not `want`. */
std::string wrong(const std::vector<uint8_t> &got, uint8_t want) {
  if (got.empty() || (got[0] == want && memcmp(&got[0], &got[1], got.size() - 1) == 0)) return "";
  std::string text;
  size_t all = 0;
  int told = 0;
  for (size_t i = 0; i < got.size(); i++) {
    if (got[i] == want) continue;
    size_t from = i;
    while (i < got.size() && got[i] != want)
      i++;
    all += i - from;
    if (told++ < 8)
      text += " " + std::to_string(from) + "+" + std::to_string(i - from) + " is " +
              std::to_string(got[from]);
  }
  return all ? std::to_string(all) + " bytes are not " + std::to_string(want) + ":" + text : "";
}

void repeat(const Shape &shape, int r, int n, tuttiComm_t comm, Gpu &gpu) {
  gpu.reset();
  cudaStream_t stream = gpu.streams[0];
  const size_t room = (kMost + kOffset) * 4 * (size_t)n;
  auto *in = (uint32_t *)gpu.take(room) + shape.offset;
  auto *out = (uint32_t *)gpu.take(room) + shape.offset;
  for (int round = 0; round < kRounds; round++) {
    oracle::Call call = {shape.coll, n, round / 2 % n, shape.count};
    size_t sent = oracle::sends(call, r) * 4, received = oracle::receives(call, r) * 4;
    uint8_t want = (uint8_t)(byteOf(round) * (oracle::reduces(shape.coll) ? n : 1));
    CUDA(cudaMemsetAsync(in, byteOf(round), sent, stream));
    TUTTI(callCollective(call, sent ? in : nullptr, received ? out : nullptr, tuttiUint32, tuttiSum,
                         comm, stream));
    ASSERT_TRUE(endsWell(stream, comm));
    std::vector<uint8_t> got(received);
    gpu.read(got.data(), out, received);
    EXPECT_EQ(wrong(got, want), "")
        << tuttiCollName(shape.coll) << " rank " << r << " of " << n << " count " << shape.count
        << " offset " << shape.offset << " root " << call.root << " round " << round;
  }
}

/* One buffer of `kMost` elements at most, or one of all ranks' blocks. */
size_t countOf(int coll, size_t count, int n) {
  bool whole = coll == tuttiCollAllReduce || coll == tuttiCollBroadcast || coll == tuttiCollReduce;
  return whole ? count : count / (size_t)n;
}

TEST_P(GpuLines, AreWholeWhateverWasThere) {
  const int n = GetParam().n;
  Settings settings(GetParam().settings);
  GpuRanks ranks(n, (size_t)64 << 20);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm, Gpu &gpu) {
    for (int coll = tuttiCollAllReduce; coll < tuttiCollSendRecv; coll++)
      for (size_t count : {(size_t)97, (size_t)8191, (size_t)65537, (size_t)262144, kMost})
        for (size_t offset : {(size_t)0, kOffset})
          if (!HasFatalFailure()) repeat({coll, countOf(coll, count, n), offset}, r, n, comm, gpu);
  });
}

INSTANTIATE_TEST_SUITE_P(Ways, GpuLines, testing::ValuesIn(kWays),
                         [](auto &info) { return std::string(info.param.name); });

} // namespace

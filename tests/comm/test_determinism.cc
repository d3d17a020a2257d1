// Sums of floats that come out with the same bits, whatever the library chooses beside.
#include <cstring>

#include "harness.h"

namespace {

constexpr int n = 5;
constexpr size_t count = 40000;

using Env = std::map<std::string, std::string>;

/* Of many magnitudes, so that another order of additions gives other bits. */
float element(int r, size_t i) {
  uint32_t x = (uint32_t)(i * 2654435761u) ^ (uint32_t)(r + 1) * 0x9e3779b9u;
  x ^= x >> 15;
  x *= 0x2c1b3c6du;
  x ^= x >> 12;
  return ldexpf((float)(x & 0xffffff) - 8388608.0f, (int)(x >> 27) - 16);
}

/* The bits of an all-reduce (reduce: of a reduce to rank 2) in pieces of `piece` elements. */
std::vector<uint32_t> bitsOf(const Env &env, size_t piece = count, bool reduce = false) {
  Settings settings(env);
  std::vector<std::vector<float>> out(n, std::vector<float>(count));
  {
    Ranks ranks(n);
    EXPECT_TRUE(ranks.ok());
    ranks.run([&](int r, tuttiComm_t comm) {
      std::vector<float> in(count);
      for (size_t i = 0; i < count; i++)
        in[i] = element(r, i);
      for (size_t at = 0; at < count; at += piece) {
        size_t some = std::min(piece, count - at);
        EXPECT_EQ(
            reduce
                ? tuttiReduce(&in[at], &out[r][at], some, tuttiFloat32, tuttiSum, 2, comm, nullptr)
                : tuttiAllReduce(&in[at], &out[r][at], some, tuttiFloat32, tuttiSum, comm, nullptr),
            tuttiSuccess)
            << tuttiGetLastError(comm);
      }
    });
  }
  for (int r = 0; r < n && !reduce; r++)
    EXPECT_EQ(memcmp(out[r].data(), out[0].data(), count * sizeof(float)), 0) << r;
  std::vector<uint32_t> bits(count);
  memcpy(bits.data(), out[2].data(), count * sizeof(float));
  return bits;
}

TEST(Determinism, TreeAloneWhateverTheChannels) {
  Env env = {{"TUTTI_ALGO", "ring;allreduce:tree;reduce:tree"}};
  for (bool reduce : {false, true}) {
    env["TUTTI_MIN_NCHANNELS"] = env["TUTTI_MAX_NCHANNELS"] = "1";
    auto one = bitsOf(env, count, reduce);
    for (const char *channels : {"2", "3", "8"}) {
      env["TUTTI_MIN_NCHANNELS"] = env["TUTTI_MAX_NCHANNELS"] = channels;
      EXPECT_EQ(bitsOf(env, count, reduce), one) << channels << " channels";
      EXPECT_EQ(bitsOf(env, 12345, reduce), one) << channels << " channels, in pieces";
    }
  }
}

TEST(Determinism, TwoTreesAddInTwoOrders) { /* or the test above would show nothing */
  Env env = {{"TUTTI_ALGO", "tree"}, {"TUTTI_MAX_NCHANNELS", "1"}};
  auto tree = bitsOf(env);
  EXPECT_NE(bitsOf({{"TUTTI_ALGO", "ring"}}), tree);
}

TEST(Determinism, SameBitsWhateverElseIsSet) {
  std::vector<uint32_t> expected(count);
  for (size_t i = 0; i < count; i++) { /* in the order of the ranks */
    float sum = element(0, i);
    for (int r = 1; r < n; r++)
      sum += element(r, i);
    memcpy(&expected[i], &sum, sizeof sum);
  }
  const Env environments[] = {
      {},
      {{"TUTTI_ALGO", "ring"}, {"TUTTI_MIN_NCHANNELS", "2"}},
      {{"TUTTI_ALGO", "allreduce:tree;reduce:ring"}, {"TUTTI_PROTO", "simple"}},
      {{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_MIN_NCHANNELS", "3"}},
      {{"TUTTI_P2P_DISABLE", "1"}, {"TUTTI_SHM_DISABLE", "1"}, {"TUTTI_NET", "Socket"}},
  };
  for (Env env : environments) {
    env["TUTTI_DETERMINISM"] = "1";
    for (size_t piece : {count, (size_t)7777}) {
      EXPECT_EQ(bitsOf(env, piece), expected);
      EXPECT_EQ(bitsOf(env, piece, true), expected);
    }
  }
}

} // namespace

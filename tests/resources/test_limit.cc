/* TUTTI_MEM_LIMIT: buffers stay below it, data stays right, and what cannot fit fails everywhere.
 */
#include "comm/harness.h"
#include "oracle.h"

using testing::HasSubstr;

namespace {

std::map<std::string, std::string> settingsFor(char transport, size_t limit) {
  return {{"TUTTI_P2P_DISABLE", transport == 'P' ? "0" : "1"},
          {"TUTTI_SHM_DISABLE", transport == 'N' ? "1" : "0"},
          {"TUTTI_MEM_LIMIT", std::to_string(limit)}};
}

size_t used(tuttiComm_t comm) {
  size_t bytes = 0;
  EXPECT_EQ(tuttiCommMemUsed(comm, &bytes), tuttiSuccess);
  return bytes;
}

int32_t element(int r, size_t i) {
  return (int32_t)(i * 7 + (size_t)r);
}

/* Large collectives, one of each way of data, and messages of everybody to everybody. */
tuttiResult_t work(int r, int n, tuttiComm_t comm, size_t count = 1 << 18) {
  std::vector<int32_t> in(count * n), out(count * n);
  for (size_t i = 0; i < in.size(); i++)
    in[i] = element(r, i);
  for (int kind = 0; kind < 3; kind++) {
    std::fill(out.begin(), out.end(), -1);
    tuttiResult_t result = tuttiSuccess;
    if (kind == 0)
      result = tuttiAllReduce(in.data(), out.data(), count, tuttiInt32, tuttiSum, comm, nullptr);
    else if (kind == 1)
      result = tuttiAlltoAll(in.data(), out.data(), count, tuttiInt32, comm, nullptr);
    else {
      tuttiGroupStart();
      for (int p = 0; p < n; p++) {
        tuttiSend(&in[count * p], count, tuttiInt32, p, comm, nullptr);
        tuttiRecv(&out[count * p], count, tuttiInt32, p, comm, nullptr);
      }
      result = tuttiGroupEnd();
    }
    if (result != tuttiSuccess) return result;
    /* Messages of everybody to everybody move what an all-to-all does. */
    oracle::Call call = {kind ? tuttiCollAlltoAll : tuttiCollAllReduce, n, 0, count};
    for (size_t i = 0; i < oracle::receives(call, r); i++) {
      int32_t want = oracle::expected(call, r, i, tuttiSum, element);
      if (out[i] != want) {
        ADD_FAILURE() << "kind " << kind << ", rank " << r << ", element " << i;
        return tuttiInternalError;
      }
    }
  }
  return tuttiSuccess;
}

class Limit : public testing::TestWithParam<const char *> {};

TEST_P(Limit, BuffersStayBelowIt) {
  constexpr int n = 4;
  size_t free = 0, before = SIZE_MAX;
  for (size_t limit : {(size_t)0, (size_t)2 << 20, (size_t)1 << 20}) {
    Settings settings(settingsFor(*GetParam(), limit));
    Ranks ranks(n);
    ASSERT_TRUE(ranks.ok());
    ranks.run([&](int r, tuttiComm_t comm) {
      EXPECT_EQ(work(r, n, comm), tuttiSuccess) << tuttiGetLastError(comm);
    });
    size_t most = 0;
    for (auto comm : ranks.comms)
      most = std::max(most, used(comm));
    if (limit == 0) free = most;
    EXPECT_LE(most, limit ? limit : SIZE_MAX);
    EXPECT_TRUE(*GetParam() == 'P' || most < before) << "limit " << limit;
    before = most;
  }
  /* Or the limits were none. Between threads large messages need no slots. */
  EXPECT_TRUE(*GetParam() == 'P' || free > (size_t)2 << 20);
}

/* The bytes that inits of n ranks say they need where the limit is too small. Whoever fails first
 * tells the others. */
size_t neededBy(int n, const std::map<std::string, std::string> &values) {
  Settings settings(values);
  tuttiUniqueId id;
  std::vector<size_t> needed(n, 0);
  EXPECT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  onThreads(n, [&](int r) {
    tuttiComm_t comm = nullptr;
    EXPECT_EQ(tuttiCommInitRank(&comm, n, id, r), tuttiInvalidUsage);
    std::string text = tuttiGetLastError(nullptr), before = " of " + std::to_string(n) + " needs ";
    EXPECT_THAT(text, HasSubstr(before));
    EXPECT_THAT(text, HasSubstr("TUTTI_MEM_LIMIT is " + values.at("TUTTI_MEM_LIMIT") + ": raise"));
    needed[r] = std::strtoull(text.substr(text.find(before) + before.size()).c_str(), nullptr, 10);
    EXPECT_GT(needed[r], std::stoull(values.at("TUTTI_MEM_LIMIT")));
  });
  for (int r = 1; r < n; r++)
    EXPECT_EQ(needed[r], needed[0]);
  return needed[0];
}

TEST_P(Limit, TooSmallFailsOnAllRanksAndSaysWhatIsNeeded) {
  auto values = settingsFor(*GetParam(), 100000);
  size_t needed = neededBy(4, values);
  EXPECT_LT(needed, 1000000u);
  values["TUTTI_MAX_NCHANNELS"] = "1";
  EXPECT_EQ(neededBy(4, values), needed) << "channels have gone";
  values["TUTTI_MAX_NCHANNELS"] = values["TUTTI_MIN_NCHANNELS"] = "2";
  EXPECT_GT(neededBy(4, values), needed) << "but not those that the user wants";
}

/* The least that the text names is enough, and one byte less is not. */
TEST_P(Limit, TheTextNamesTheLeast) {
  constexpr int n = 2;
  size_t least = neededBy(n, settingsFor(*GetParam(), 1));
  EXPECT_EQ(neededBy(n, settingsFor(*GetParam(), least - 1)), least);
  Settings settings(settingsFor(*GetParam(), least));
  Ranks ranks(n);
  ASSERT_TRUE(ranks.ok());
  ranks.run([&](int r, tuttiComm_t comm) {
    EXPECT_EQ(work(r, n, comm, 1 << 14), tuttiSuccess) << tuttiGetLastError(comm);
    EXPECT_LE(used(comm), least);
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, Limit, testing::Values("P2P", "SHM", "NET"),
                         [](auto &info) { return std::string(info.param); });

/* Rings and trees fit, but not a connection with each of many ranks. */
TEST(LimitLater, TheFirstCallThatNeedsMoreFailsEverywhere) {
  constexpr int n = 12;
  auto values = settingsFor('N', 1);
  values["TUTTI_ALGO"] = "ring,tree,direct"; /* the others join nearly as many as there are */
  size_t least = neededBy(n, values);
  values["TUTTI_MEM_LIMIT"] = std::to_string(least);
  Settings settings(values);
  tuttiUniqueId id;
  ASSERT_EQ(tuttiGetUniqueId(&id), tuttiSuccess);
  onThreads(n, [&](int r) {
    tuttiComm_t comm = nullptr;
    ASSERT_EQ(tuttiCommInitRank(&comm, n, id, r), tuttiSuccess) << tuttiGetLastError(nullptr);
    tuttiResult_t result = tuttiSuccess;
    for (int i = 0; i < 2 && result == tuttiSuccess; i++)
      result = work(r, n, comm, 1 << 14);
    EXPECT_NE(result, tuttiSuccess);
    EXPECT_THAT(tuttiGetLastError(comm), HasSubstr("TUTTI_MEM_LIMIT is " + std::to_string(least)));
    EXPECT_EQ(tuttiCommAbort(comm), tuttiSuccess);
  });
}

} // namespace

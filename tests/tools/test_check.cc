/* perf's check of buffers: what a right collective leaves is accepted, any single fault is seen. */
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "perf.h"

namespace {

using testing::HasSubstr;

/* One rank's buffers and row. */
class Rank {
public:
  Rank(const perfRow &row, const perfPattern &pattern) : row_(row), pattern_(pattern) {
    size_t bytes = perfRowBytes(&row);
    for (auto *b : {&buffers_.send, &buffers_.recv}) {
      memory_.emplace_back(bytes + 2 * PERF_GUARD);
      *b = memory_.back().data();
    }
    perfPrepare(&row_, &pattern_, &buffers_);
  }
  Rank(const Rank &) = delete;
  char *send() { return (char *)perfSendPointer(&row_, &buffers_); }
  char *recv() { return (char *)perfRecvPointer(&row_, &buffers_); }
  uint64_t verify() { return perfVerify(&row_, &pattern_, &buffers_, fault); }
  uint64_t verifyWith(char *byte) { /* one byte flipped */
    *byte ^= 1;
    uint64_t wrong = verify();
    *byte ^= 1;
    return wrong;
  }
  char fault[PERF_FAULT_TEXT];
  perfBuffers buffers_;

private:
  perfRow row_;
  perfPattern pattern_;
  std::vector<std::vector<unsigned char>> memory_;
};

struct World {
  World(const char *name, int n, size_t count, tuttiDataType_t type, bool inPlace, int root = 1) {
    perfPatternInit(&pattern, type, tuttiSum, perfCollectiveFind(name)->reduces, n, 3);
    for (int r = 0; r < n; r++) {
      rows.push_back({perfCollectiveFind(name), type, tuttiSum, root, r, n, count, inPlace});
      ranks.push_back(std::make_unique<Rank>(rows.back(), pattern));
    }
    chunk = count * perfTypes[type].size;
  }
  std::vector<int32_t> sum(size_t first, size_t count) { /* of int32 */
    std::vector<int32_t> total(count, 0), one(count);
    for (int r = 0; r < (int)rows.size(); r++) {
      perfPatternFill(&pattern, r, first, count, one.data());
      for (size_t i = 0; i < count; i++)
        total[i] = (int32_t)((uint32_t)total[i] + (uint32_t)one[i]);
    }
    return total;
  }
  /* What the collective is, by its definition in tutti.h, on copies of the inputs. */
  void run() {
    int n = (int)rows.size(), root = rows[0].root;
    std::string name = rows[0].collective->name;
    std::vector<std::string> in;
    for (int r = 0; r < n; r++)
      in.emplace_back(perfSendBytes(&rows[r]) ? ranks[r]->send() : "", perfSendBytes(&rows[r]));
    for (int r = 0; r < n; r++) {
      if (perfRecvBytes(&rows[r]) == 0) continue;
      char *out = ranks[r]->recv();
      if (name == "broadcast") memcpy(out, in[root].data(), chunk);
      if (name == "scatter") memcpy(out, in[root].data() + r * chunk, chunk);
      if (name == "sendrecv" || name == "put_signal")
        memcpy(out, in[(r + n - 1) % n].data(), chunk);
      for (int s = 0; s < n; s++) {
        if (name == "all_gather" || name == "gather") memcpy(out + s * chunk, in[s].data(), chunk);
        if (name == "alltoall") memcpy(out + s * chunk, in[s].data() + r * chunk, chunk);
      }
      if (rows[0].collective->reduces) {
        size_t first = name == "reduce_scatter" ? r * rows[0].count : 0;
        memcpy(out, sum(first, rows[0].count).data(), chunk);
      }
    }
  }
  perfPattern pattern;
  size_t chunk;
  std::vector<perfRow> rows;
  std::vector<std::unique_ptr<Rank>> ranks;
};

/* body(name, inPlace) for every form of every collective. */
void everyForm(const std::function<void(const char *, bool)> &body) {
  for (int c = 0; c < perfCollectiveCount; c++)
    for (bool inPlace : {false, true})
      if (perfCollectives[c].inPlace || !inPlace) body(perfCollectives[c].name, inPlace);
}

void faultsAreSeen(const char *name, bool inPlace) {
  for (int n : {1, 3, 4}) {
    World w(name, n, 10, tuttiInt32, inPlace, n - 1);
    w.run();
    for (int r = 0; r < n; r++) {
      Rank &rank = *w.ranks[r];
      ASSERT_EQ(rank.verify(), 0u) << name << " rank " << r << ": " << rank.fault;
      size_t used = perfRowBytes(&w.rows[r]), got = perfRecvBytes(&w.rows[r]);
      char *data = (char *)rank.buffers_.recv + PERF_GUARD;
      for (size_t i = 0; i < got; i += 4) {
        ASSERT_EQ(rank.verifyWith(rank.recv() + i), 1u) << name;
        EXPECT_THAT(rank.fault, HasSubstr("element " + std::to_string(i / 4) + " of the output"));
      }
      for (char *guard : {data - 1, data - PERF_GUARD, data + used, data + used + PERF_GUARD - 1})
        ASSERT_EQ(rank.verifyWith(guard), 1u) << name;
      EXPECT_THAT(rank.fault, HasSubstr("outside the output, was overwritten"));
    }
  }
}

TEST(Check, RightDataPassesAndEachFaultIsSeen) {
  everyForm(faultsAreSeen);
}

void missingResultIsSeen(const char *name, bool inPlace) {
  World w(name, 4, 10, tuttiInt32, inPlace);
  for (int r = 0; r < 4; r++) {
    bool fromSelf = inPlace && w.rows[0].collective->fromRoot && r == 1;
    if (perfRecvBytes(&w.rows[r]) && !fromSelf) {
      EXPECT_GE(w.ranks[r]->verify(), 10u) << name;
    }
  }
}

TEST(Check, MissingResultIsSeen) {
  everyForm(missingResultIsSeen);
}

void changesAreSeen(const char *name, bool inPlace) {
  if (inPlace) return; /* the input is the output */
  World w(name, 4, 10, tuttiInt32, false);
  w.run();
  for (int r = 0; r < 4; r++) {
    Rank &rank = *w.ranks[r];
    ASSERT_EQ(rank.verifyWith((char *)rank.buffers_.send + PERF_GUARD), 1u) << name;
    EXPECT_THAT(rank.fault, HasSubstr(perfSendBytes(&w.rows[r]) ? "must not change" : "input"));
    ASSERT_EQ(rank.verifyWith((char *)rank.buffers_.send + PERF_GUARD - 1), 1u) << name;
    if (perfRecvBytes(&w.rows[r]) > 0) continue;
    ASSERT_EQ(rank.verifyWith((char *)rank.buffers_.recv + PERF_GUARD + 5), 1u) << name;
    EXPECT_THAT(rank.fault, HasSubstr("byte 5 of the output buffer"));
  }
}

TEST(Check, ChangedInputAndStrayOutputAreSeen) {
  everyForm(changesAreSeen);
}

TEST(Check, SwappedChunksAreSeen) {
  World w("all_gather", 3, 10, tuttiFloat64, false);
  w.run();
  std::string first(w.ranks[0]->recv(), w.chunk);
  memcpy(w.ranks[0]->recv(), w.ranks[0]->recv() + w.chunk, w.chunk);
  memcpy(w.ranks[0]->recv() + w.chunk, first.data(), w.chunk);
  EXPECT_EQ(w.ranks[0]->verify(), 20u);
}

TEST(Rows, SizesAreThoseOfNcclTests) {
  perfRow row = {perfCollectiveFind("all_gather"), tuttiFloat32, tuttiSum, 0, 1, 4, 0, false};
  row.count = perfRowCount(&row, 1024);
  EXPECT_EQ(row.count, 64u);
  EXPECT_EQ(perfRowBytes(&row), 1024u);
  EXPECT_EQ(perfSendBytes(&row), 256u);
  EXPECT_EQ(perfRecvBytes(&row), 1024u);
  row.collective = perfCollectiveFind("reduce-scatter");
  EXPECT_EQ(perfSendBytes(&row), 1024u);
  EXPECT_EQ(perfRecvBytes(&row), 256u);
  row.collective = perfCollectiveFind("gather");
  EXPECT_EQ(perfRecvBytes(&row), 0u);
  row.collective = perfCollectiveFind("all_reduce");
  EXPECT_EQ(perfRowCount(&row, 1024), 256u);
  row.collective = perfCollectiveFind("alltoall");
  row.type = tuttiFloat64;
  EXPECT_EQ(perfRowCount(&row, 8), 1u);
  EXPECT_DOUBLE_EQ(perfBusFactor(perfCollectiveFind("all_reduce"), 4), 1.5);
  EXPECT_DOUBLE_EQ(perfBusFactor(perfCollectiveFind("alltoall"), 4), 0.75);
  EXPECT_DOUBLE_EQ(perfBusFactor(perfCollectiveFind("broadcast"), 4), 1);
  EXPECT_DOUBLE_EQ(perfBusFactor(perfCollectiveFind("sendrecv"), 4), 1);
}

} // namespace

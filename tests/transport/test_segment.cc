#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "local_world.h"

namespace {
using namespace local;
using ::testing::HasSubstr;

struct Span {
  uintptr_t begin, end;
};

void addConn(std::vector<Span> &spans, const tuttiConn &c) {
  auto at = [&](const void *p, size_t n) { spans.push_back({(uintptr_t)p, (uintptr_t)p + n}); };
  at(c.descriptors, sizeof(tuttiSlotDescriptor) * c.ndescriptors);
  at(c.readers, sizeof(tuttiReader) * (size_t)c.nreaders);
  at(c.data, c.slotBytes * TUTTI_FIFO_DEPTH);
  at(c.small, c.ndescriptors * c.smallBytes);
}

class SegmentLayout : public ::testing::TestWithParam<std::tuple<int, int, size_t>> {};

TEST_P(SegmentLayout, FifosAreApartAndAligned) {
  Shape s;
  std::tie(s.nranks, s.nchannels, s.slotBytes) = GetParam();
  Ranks ranks = makeThreads(s);
  prepareAll(ranks);
  attachAll(ranks);
  for (auto &r : ranks) {
    std::vector<Span> spans;
    for (int c = 0; c <= s.nchannels; c++) {
      bool last = c == s.nchannels;
      if (!last) addConn(spans, r->open(-1, c, TUTTI_SEND, true));
      for (int p = 0; p < s.nranks; p++)
        if (p != r->w.rank) addConn(spans, r->open(p, last ? TUTTI_P2P_CHANNEL : c, TUTTI_SEND));
    }
    std::sort(spans.begin(), spans.end(), [](Span a, Span b) { return a.begin < b.begin; });
    for (size_t i = 0; i < spans.size(); i++) {
      EXPECT_EQ(0u, spans[i].begin % TUTTI_LINE);
      if (i) {
        EXPECT_LE(spans[i - 1].end, spans[i].begin);
      }
    }
    struct stat st;
    ASSERT_EQ(0, fstat(tuttiSegmentFd(&r->w), &st));
    EXPECT_LE(spans.back().end - spans.front().begin, (size_t)st.st_size);
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, SegmentLayout,
                         ::testing::Values(std::make_tuple(2, 1, 128), std::make_tuple(3, 2, 8192),
                                           std::make_tuple(5, 32, 128 * 33),
                                           std::make_tuple(9, 3, 512 * 1024)));

TEST(Segment, SmallMessagesOfManyFifosTouchFewPages) {
  Shape s;
  s.nranks = 8;
  s.slotBytes = 512 * 1024;
  Ranks ranks = makeThreads(s);
  prepareAll(ranks);
  attachAll(ranks);
  for (int p = 1; p < s.nranks; p++) {
    tuttiConn c = ranks[0]->open(p, 0, TUTTI_SEND);
    tuttiConnDescriptor(&c)->where = TUTTI_WHERE_INLINE;
    tuttiConnAdvance(&c);
  }
  struct stat st;
  ASSERT_EQ(0, fstat(tuttiSegmentFd(&ranks[0]->w), &st));
  size_t lines = 7 * tuttiFifoControlBytes(4 * TUTTI_FIFO_DESCRIPTORS, 1),
         page = (size_t)sysconf(_SC_PAGESIZE);
  EXPECT_LE((size_t)st.st_blocks * 512, (lines / page + 2) * page);
}

TEST(Segment, CountIsWhatTheHostHasLost) {
  Shape s;
  s.nranks = 3;
  s.slotBytes = 64 * 1024;
  Ranks ranks = makeThreads(s);
  prepareAll(ranks);
  attachAll(ranks);
  uint64_t before = ranks[0]->bytes(), reader = ranks[1]->bytes();
  tuttiConn send = ranks[0]->open(1, 0, TUTTI_SEND), recv = ranks[1]->open(0, 0, TUTTI_RECV);
  tuttiTransportsMeasure(&ranks[0]->w);
  uint64_t opened = ranks[0]->bytes();
  EXPECT_GE(opened, before);
  EXPECT_LE(opened,
            before + tuttiFifoControlBytes(send.ndescriptors, 1) + (uint64_t)sysconf(_SC_PAGESIZE));
  memset(recv.data, 1, TUTTI_FIFO_DEPTH * s.slotBytes);
  memset(send.data, 1, TUTTI_FIFO_DEPTH * s.slotBytes);
  for (auto &r : ranks)
    tuttiTransportsMeasure(&r->w);
  EXPECT_EQ(opened + TUTTI_FIFO_DEPTH * s.slotBytes, ranks[0]->bytes());
  EXPECT_EQ(reader, ranks[1]->bytes());
  for (auto &r : ranks) {
    r->detach();
    EXPECT_EQ(0u, r->bytes());
  }
}

/* Whoever waits sleeps where the peer that it waits for will ring. */
TEST(Segment, BellsOfAFifo) {
  tuttiReader readers[3]{};
  tuttiConn send{}, recv{};
  send.direction = TUTTI_SEND;
  send.readers = readers;
  send.nreaders = 3;
  recv.direction = TUTTI_RECV;
  recv.readers = &readers[2];
  recv.nreaders = 1;
  for (uint64_t credit : {5, 4, 6})
    tuttiStoreRelease(&readers[(credit + 1) % 3].credit, credit);
  EXPECT_EQ(tuttiConnBell(&send), &readers[2].writerBell) << "the last of them";
  EXPECT_EQ(tuttiConnBell(&recv), &readers[2].readerBell);
  EXPECT_FALSE(tuttiConnSlept(&send) || tuttiConnSlept(&recv));
  tuttiBellSet(tuttiConnBell(&recv));
  EXPECT_TRUE(tuttiConnSlept(&send));
  EXPECT_FALSE(tuttiConnSlept(&recv));
  tuttiBellUnset(tuttiConnBell(&recv));
  tuttiBellSet(tuttiConnBell(&send));
  EXPECT_FALSE(tuttiConnSlept(&send));
  EXPECT_TRUE(tuttiConnSlept(&recv));
  send.network = recv.network = 1;
  EXPECT_EQ(tuttiConnBell(&send), nullptr);
  EXPECT_EQ(tuttiConnBell(&recv), nullptr);
}

/* A payload has one place on both sides, which no other message of its depth has. */
TEST(Segment, PayloadsOfAllSizesAreApart) {
  for (size_t slotBytes : {TUTTI_LINE, 16384, 65536, 1 << 20}) {
    Shape s;
    s.nranks = 2;
    s.slotBytes = slotBytes;
    Ranks ranks = makeThreads(s);
    prepareAll(ranks);
    attachAll(ranks);
    tuttiConn send = ranks[0]->open(1, 0, TUTTI_SEND), recv = ranks[1]->open(0, 0, TUTTI_RECV);
    EXPECT_EQ(std::min(slotBytes / 64 / TUTTI_LINE * TUTTI_LINE, (size_t)TUTTI_SMALL_MAX),
              send.smallBytes);
    for (size_t bytes : {(size_t)1, send.smallBytes, send.smallBytes + 1, slotBytes}) {
      std::vector<Span> spans;
      bool small = bytes <= send.smallBytes;
      uint32_t depth =
          small || bytes <= TUTTI_INLINE_MAX ? 4 * TUTTI_FIFO_DESCRIPTORS : TUTTI_FIFO_DEPTH;
      EXPECT_EQ(depth, tuttiConnDepth(&send, bytes));
      if (!small) depth = TUTTI_FIFO_DEPTH;
      for (uint32_t i = 0; i < depth; i++, send.next++, recv.next++) {
        EXPECT_EQ(tuttiConnData(&send, bytes) - send.data, tuttiConnData(&recv, bytes) - recv.data);
        auto at = (uintptr_t)tuttiConnData(&send, bytes);
        for (const Span &other : spans)
          EXPECT_TRUE(at >= other.end || at + bytes <= other.begin) << bytes << " bytes, no " << i;
        spans.push_back({at, at + bytes});
        auto from = (uintptr_t)(small ? send.small : send.data);
        EXPECT_GE(at, from);
        EXPECT_LE(at + bytes, from + (small ? send.ndescriptors * send.smallBytes
                                            : TUTTI_FIFO_DEPTH * send.slotBytes));
      }
    }
  }
}

/* With a core for each rank they would only miss their caches more often. */
TEST(Segment, NoSmallPayloadsWithoutNeed) {
  Shape s;
  s.slotBytes = 1 << 20;
  s.oversubscribed = false;
  Ranks ranks = makeThreads(s);
  prepareAll(ranks);
  attachAll(ranks);
  tuttiConn send = ranks[0]->open(1, 0, TUTTI_SEND);
  EXPECT_EQ(0u, send.smallBytes);
  EXPECT_EQ(TUTTI_FIFO_DESCRIPTORS, tuttiConnDepth(&send, TUTTI_INLINE_MAX));
  EXPECT_EQ(TUTTI_FIFO_DEPTH, tuttiConnDepth(&send, TUTTI_INLINE_MAX + 1));
  EXPECT_EQ(send.data, tuttiConnData(&send, TUTTI_INLINE_MAX + 1));
}

TEST(Segment, OnlyRanksOfTheHostHaveAPlace) {
  Shape s;
  s.nranks = 6;
  Ranks ranks;
  for (int r = 0; r < s.nranks; r++) {
    uint64_t host = r == 0 || r == 3 || r == 5 ? 1 : r == 4 ? 2 : 3;
    ranks.push_back(std::make_unique<Rank>(s, r, host, host));
  }
  prepareAll(ranks);
  attachAll(ranks);
  EXPECT_EQ(3, ranks[3]->w.local->nlocal);
  EXPECT_EQ(1, ranks[3]->w.local->place[3]);
  EXPECT_EQ(2, ranks[0]->w.local->place[5]);
  EXPECT_EQ(-1, ranks[3]->w.local->place[4]);
  EXPECT_EQ(nullptr, ranks[4]->w.local->mine) << "alone on its host, it needs no memory";
  EXPECT_EQ(2, ranks[5]->open(-1, 0, TUTTI_SEND, true).nreaders);
  tuttiConn send = ranks[5]->open(3, 1, TUTTI_SEND), recv = ranks[3]->open(5, 1, TUTTI_RECV);
  EXPECT_EQ(send.descriptors, recv.descriptors);
}

TEST(Segment, SizesBeyondTheAddressSpaceAreRefused) {
  Shape s;
  s.nranks = 512;
  s.nchannels = TUTTI_MAX_CHANNELS;
  for (size_t slotBytes :
       {(size_t)128 << 20, SIZE_MAX / 128 * 128, SIZE_MAX / 8 / 128 * 128 + 128}) {
    s.slotBytes = slotBytes;
    Rank r(s, 0);
    for (int i = 0; i < s.nranks; i++)
      r.peers[(size_t)i] = r.mine;
    EXPECT_EQ(tuttiInvalidArgument, tuttiLocalAttach(&r.w));
    EXPECT_THAT(tuttiErrorText(), HasSubstr("TUTTI_BUFFSIZE"));
    EXPECT_THAT(tuttiErrorText(), HasSubstr("512 ranks of host node9"));
    r.detach();
    EXPECT_EQ(0u, r.bytes());
  }
}

TEST(Segment, OpenRefusesWhatIsNotThere) {
  Shape s;
  s.nranks = 3;
  Ranks ranks;
  for (int r = 0; r < 3; r++)
    ranks.push_back(std::make_unique<Rank>(s, r, 1, r < 2 ? 1 : 2));
  prepareAll(ranks);
  tuttiCommView *w = &ranks[0]->w;
  tuttiConn c{};
  c.next = 99;
  auto refused = [&](int peer, int channel, tuttiDirection d, bool shared) {
    return tuttiSegmentOpen(w, peer, channel, d, shared, &c) == tuttiInternalError && c.next == 99;
  };
  EXPECT_TRUE(refused(1, 0, TUTTI_SEND, false)) << "before attach";
  attachAll(ranks);
  EXPECT_TRUE(refused(0, 0, TUTTI_SEND, false)) << "itself";
  EXPECT_TRUE(refused(2, 0, TUTTI_SEND, false)) << "other host";
  EXPECT_TRUE(refused(2, 0, TUTTI_RECV, false));
  EXPECT_TRUE(refused(3, 0, TUTTI_RECV, false)) << "no such rank";
  EXPECT_TRUE(refused(-1, 0, TUTTI_RECV, true));
  EXPECT_TRUE(refused(-1, 0, TUTTI_SEND, false));
  EXPECT_TRUE(refused(1, 0, TUTTI_SEND, true));
  EXPECT_TRUE(refused(1, s.nchannels, TUTTI_SEND, false));
  EXPECT_TRUE(refused(1, -1, TUTTI_SEND, false));
  EXPECT_TRUE(refused(1, TUTTI_CHANNELS, TUTTI_SEND, false));
  EXPECT_TRUE(refused(-1, TUTTI_P2P_CHANNEL, TUTTI_SEND, true));
  EXPECT_EQ(tuttiSuccess, tuttiSegmentOpen(w, 1, 0, TUTTI_SEND, false, &c));
}

/* What GPUs exchange through host memory: one block instead of FIFOs. */
TEST(Segment, StagedBlocksAreSharedWhole) {
  Shape s;
  s.nranks = 3;
  Ranks ranks = makeThreads(s);
  for (auto &r : ranks)
    r->w.stagedBytes = (size_t)1 << 20;
  prepareAll(ranks);
  attachAll(ranks);
  for (auto &r : ranks) {
    uint8_t *mine = (uint8_t *)tuttiSegmentMemory(&r->w, r->w.rank);
    EXPECT_EQ(mine[0], 0);
    mine[0] = mine[((size_t)1 << 20) - 1] = (uint8_t)(r->w.rank + 1);
  }
  for (auto &r : ranks) {
    tuttiLocalTrim(&r->w); /* nothing of it can go while it is in use */
    EXPECT_EQ(tuttiLocalSlotBytes(&r->w), 0u);
    for (int p = 0; p < s.nranks; p++) {
      const uint8_t *theirs = (const uint8_t *)tuttiSegmentMemory(&r->w, p);
      EXPECT_EQ(theirs[0], p + 1);
      EXPECT_EQ(theirs[((size_t)1 << 20) - 1], p + 1);
    }
    tuttiConn conn;
    EXPECT_EQ(tuttiSegmentOpen(&r->w, (r->w.rank + 1) % 3, 0, TUTTI_SEND, false, &conn),
              tuttiInternalError);
  }
}

TEST(Segment, AnEndThatOpensAgainGoesOn) {
  Ranks ranks = makeThreads(Shape());
  prepareAll(ranks);
  attachAll(ranks);
  std::mt19937 random(1);
  uint64_t sent = 0, got = 0;
  tuttiConn send = ranks[0]->open(1, 0, TUTTI_SEND), recv = ranks[1]->open(0, 0, TUTTI_RECV);
  while (got < 200) {
    switch (random() % 4) {
    case 0:
      send = ranks[0]->open(1, 0, TUTTI_SEND);
      break;
    case 1:
      recv = ranks[1]->open(0, 0, TUTTI_RECV);
      break;
    case 2:
      if (!tuttiConnReady(&send)) break;
      tuttiConnDescriptor(&send)->addr = sent++;
      tuttiConnAdvance(&send);
      break;
    default:
      if (!tuttiConnReady(&recv)) break;
      ASSERT_EQ(got++, tuttiConnDescriptor(&recv)->addr);
      tuttiConnAdvance(&recv);
    }
    ASSERT_LE(sent - got, TUTTI_FIFO_DEPTH);
  }
}

} // namespace

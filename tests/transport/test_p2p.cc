#include <gmock/gmock.h>

#include <random>

#include "local_world.h"

namespace {
using namespace local;
using ::testing::HasSubstr;

class P2pThreads : public ::testing::TestWithParam<int> {};

TEST_P(P2pThreads, EveryFifoDeliversEveryMessage) {
  Shape s;
  s.nranks = GetParam();
  Ranks ranks = makeThreads(s);
  prepareAll(ranks);
  attachAll(ranks);
  EXPECT_EQ(&tuttiTransportP2p, ranks[0]->to(1));
  onThreads(ranks, [](Rank &r) { traffic(r, 100); });
}
INSTANTIATE_TEST_SUITE_P(N, P2pThreads, ::testing::Values(2, 3, 5, 8));

TEST(P2p, EndsOfAFifoAreTheSameMemoryAndDirect) {
  Shape s;
  s.nranks = 3;
  Ranks ranks = makeThreads(s);
  prepareAll(ranks);
  attachAll(ranks);
  tuttiConn send = ranks[2]->open(0, TUTTI_P2P_CHANNEL, TUTTI_SEND);
  tuttiConn recv = ranks[0]->open(2, TUTTI_P2P_CHANNEL, TUTTI_RECV);
  EXPECT_EQ(send.descriptors, recv.descriptors);
  EXPECT_EQ(send.readers, recv.readers);
  EXPECT_EQ(send.data, recv.data);
  EXPECT_EQ(1, send.direct);
  EXPECT_EQ(1, recv.direct);
  EXPECT_EQ(&tuttiTransportP2p, send.transport);
  tuttiConn all = ranks[1]->open(-1, 1, TUTTI_SEND, true);
  EXPECT_EQ(2, all.nreaders);
  EXPECT_EQ(1, all.direct);
  EXPECT_EQ(all.readers + 1, ranks[2]->open(1, 1, TUTTI_RECV, true).readers);
}

TEST(P2p, AttachHoldsUntilAllHaveTakenTheSegment) {
  // Some leave at once, others come late: nobody may find a neighbour's segment gone.
  for (unsigned round = 0; round < 30; round++) {
    Shape s;
    s.nranks = 4;
    s.commHash = 100 + round;
    Ranks ranks = makeThreads(s);
    prepareAll(ranks);
    onThreads(ranks, [&](Rank &r) {
      std::mt19937 random(round * 64 + (unsigned)r.w.rank);
      usleep(random() % 3000);
      EXPECT_EQ(tuttiSuccess, r.attach()) << tuttiErrorText();
      r.detach();
    });
  }
  EXPECT_EQ(0, segmentMappings());
}

TEST(P2p, MessagesOutliveTheirWritersDetach) {
  Ranks ranks = makeThreads(Shape());
  prepareAll(ranks);
  attachAll(ranks);
  tuttiConn send = ranks[0]->open(1, 0, TUTTI_SEND), recv = ranks[1]->open(0, 0, TUTTI_RECV);
  tuttiConnDescriptor(&send)->bytes = 42;
  tuttiConnAdvance(&send);
  ranks[0]->detach();
  EXPECT_EQ(0u, ranks[0]->bytes());
  ASSERT_TRUE(tuttiConnReady(&recv));
  EXPECT_EQ(42u, tuttiConnDescriptor(&recv)->bytes);
  tuttiConnAdvance(&recv);
}

TEST(P2p, NobodyWaitsForAThreadThatIsLate) {
  Shape s;
  s.nranks = 3;
  Ranks ranks = makeThreads(s);
  prepareAll(ranks);
  ASSERT_EQ(tuttiSuccess, ranks[0]->attach()) << tuttiErrorText();
  tuttiConn recv = ranks[0]->open(1, 0, TUTTI_RECV); // makes what rank 1 will write to
  EXPECT_FALSE(tuttiConnReady(&recv));
  ASSERT_EQ(tuttiSuccess, ranks[1]->attach()) << tuttiErrorText();
  tuttiConn send = ranks[1]->open(0, 0, TUTTI_SEND);
  tuttiConnDescriptor(&send)->bytes = 42;
  tuttiConnAdvance(&send);
  ranks[1]->detach();
  ASSERT_TRUE(tuttiConnReady(&recv));
  EXPECT_EQ(42u, tuttiConnDescriptor(&recv)->bytes);
}

TEST(P2p, MessagesWaitForAReaderThatComesWhenTheirWriterHasGone) {
  Ranks ranks = makeThreads(Shape());
  prepareAll(ranks);
  ASSERT_EQ(tuttiSuccess, ranks[0]->attach()) << tuttiErrorText();
  tuttiConn send = ranks[0]->open(1, 0, TUTTI_SEND);
  tuttiConnDescriptor(&send)->bytes = 42;
  tuttiConnAdvance(&send);
  ranks[0]->detach();
  EXPECT_EQ(0u, ranks[0]->bytes());
  ASSERT_EQ(tuttiSuccess, ranks[1]->attach()) << tuttiErrorText();
  tuttiConn recv = ranks[1]->open(0, 0, TUTTI_RECV);
  ASSERT_TRUE(tuttiConnReady(&recv));
  EXPECT_EQ(42u, tuttiConnDescriptor(&recv)->bytes);
}

TEST(P2p, ManyRanksMapWhatTheyUse) {
  Shape s;
  s.nranks = 64;
  s.slotBytes = 512 * 1024;
  Ranks ranks = makeThreads(s);
  prepareAll(ranks);
  attachAll(ranks);
  EXPECT_EQ(0, segmentMappings());
  tuttiConn send = ranks[0]->open(63, 0, TUTTI_SEND), recv = ranks[63]->open(0, 0, TUTTI_RECV);
  EXPECT_EQ(send.data, recv.data);
  // Lines and a window of data, of one segment; the kernel may have joined them.
  EXPECT_LE(segmentMappings(), 2);
  EXPECT_GE(segmentMappings(), 1);
  tuttiConnDescriptor(&send)->bytes = 42;
  tuttiConnAdvance(&send);
  ASSERT_TRUE(tuttiConnReady(&recv));
  send.data[TUTTI_FIFO_DEPTH * s.slotBytes - 1] = 1; // all of it is there
  for (auto &r : ranks)
    r->detach();
  EXPECT_EQ(0, segmentMappings());
}

TEST(P2p, OneRankTwiceIsRefused) {
  Shape s;
  Ranks ranks = makeThreads(s);
  ranks.push_back(std::make_unique<Rank>(s, 0));
  prepareAll(ranks);
  ASSERT_EQ(tuttiSuccess, tuttiLocalAttach(&ranks[0]->w)) << tuttiErrorText(); // holds the name
  EXPECT_EQ(tuttiInvalidUsage, ranks[2]->attach());
  EXPECT_THAT(tuttiErrorText(), HasSubstr("twice"));
}

TEST(P2p, CommunicatorsWithOneHashOrOneSecretDoNotMix) {
  Shape a, b, c;
  b.secret = 8;
  c.commHash = 0x1235;
  std::vector<Ranks> comms;
  for (const Shape &s : {a, b, c}) {
    comms.push_back(makeThreads(s));
    prepareAll(comms.back());
  }
  for (auto &ranks : comms)
    attachAll(ranks);
  for (size_t i = 0; i < comms.size(); i++) {
    tuttiConn send = comms[i][0]->open(1, 0, TUTTI_SEND);
    tuttiConnDescriptor(&send)->bytes = (uint32_t)i;
    tuttiConnAdvance(&send);
  }
  for (size_t i = 0; i < comms.size(); i++) {
    tuttiConn recv = comms[i][1]->open(0, 0, TUTTI_RECV);
    ASSERT_TRUE(tuttiConnReady(&recv));
    EXPECT_EQ(i, tuttiConnDescriptor(&recv)->bytes);
  }
}

TEST(P2p, CyclesLeakNothing) {
  int fds = openFds();
  for (int i = 0; i < 200; i++) {
    Shape s;
    s.nranks = 3;
    Ranks ranks = makeThreads(s);
    prepareAll(ranks);
    onThreads(ranks, [](Rank &r) {
      ASSERT_EQ(tuttiSuccess, r.attach()) << tuttiErrorText();
      traffic(r, 2);
    });
    for (auto &r : ranks) {
      r->detach();
      r->detach();
      ASSERT_EQ(0u, r->bytes());
    }
  }
  EXPECT_EQ(fds, openFds());
  EXPECT_EQ(0, segmentMappings());
}

} // namespace

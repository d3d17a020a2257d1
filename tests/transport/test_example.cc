// A transport made by the recipe of CONTRIBUTING.md takes its place among the others.
#include <gtest/gtest.h>

#include "local_world.h"
#include "transport/example.h"
#include "transport/net.h"

namespace {
using namespace local;

struct Example : testing::Test {
  const tuttiTransport *table[3] = {&tuttiTransportExample, &tuttiTransportP2p, nullptr};
  void SetUp() override {
    exampleCounts = {};
    tuttiTransportsReplace(table);
  }
  void TearDown() override { tuttiTransportsReplace(nullptr); }
};

TEST_F(Example, LivesAsTransportsDo) {
  Shape s;
  Rank a(s, 0), b(s, 1);
  ASSERT_EQ(tuttiSuccess, tuttiTransportsPrepare(&a.w, &a.mine)) << tuttiErrorText();
  a.peers = {a.mine, b.mine};
  a.w.peers = a.peers.data();
  ASSERT_EQ(tuttiSuccess, tuttiTransportsAttach(&a.w)) << tuttiErrorText();
  tuttiPath path;
  char why[TUTTI_SENTENCE];
  tuttiTransportSelect(&a.peers[0], &a.peers[1], &path);
  const tuttiTransport *t = path.transport;
  ASSERT_EQ(&tuttiTransportExample, t);
  EXPECT_STREQ("an example", tuttiPathText(&path, &a.peers[0], &a.peers[1], why));
  tuttiConn conn;
  ASSERT_EQ(tuttiSuccess, t->open(&a.w, 1, 0, TUTTI_SEND, false, &conn)) << tuttiErrorText();
  EXPECT_EQ(t, conn.transport);
  conn.transport->close(&a.w, &conn);
  EXPECT_EQ(tuttiInternalError, t->open(&a.w, 0, 0, TUTTI_SEND, false, &conn));
  tuttiTransportsDetach(&a.w);
  EXPECT_EQ(1, exampleCounts.prepared);
  EXPECT_EQ(1, exampleCounts.attached);
  EXPECT_EQ(1, exampleCounts.opened);
  EXPECT_EQ(1, exampleCounts.closed);
  EXPECT_EQ(1, exampleCounts.detached);
}

TEST_F(Example, ExplainsItself) {
  Shape s;
  Rank a(s, 0, 1, 1), b(s, 1, 2, 2);
  tuttiPath path;
  char why[TUTTI_SENTENCE];
  tuttiTransportSelect(&a.mine, &b.mine, &path);
  EXPECT_EQ(nullptr, path.transport);
  EXPECT_EQ(0, strncmp(tuttiPathText(&path, &a.mine, &b.mine, why),
                       "not EXAMPLE: different hosts (node1, node2); not P2P: ", 53))
      << why;
}

TEST(Transports, NoEntryIsNull) {
  for (int i = 0; tuttiTransports[i]; i++) {
    const tuttiTransport *t = tuttiTransports[i];
    EXPECT_TRUE(t->canConnect && t->explain && t->prepare && t->attach && t->open && t->close &&
                t->detach)
        << t->name;
  }
  for (int i = 0; tuttiNets[i]; i++) {
    const tuttiNet *n = tuttiNets[i];
    EXPECT_TRUE(n->open && n->canConnect && n->explain && n->connect && n->serve && n->progress &&
                n->drained && n->haltEndpoint && n->tell && n->closeEndpoint && n->close)
        << n->name;
  }
}

} // namespace

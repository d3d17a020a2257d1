#include "transport/example.h"

#include <stdio.h>

#include "base/error.h"

exampleCalls exampleCounts;

#define EXAMPLE_REASONS(X)                                                                         \
  X(EXAMPLE_CONNECTS, "an example")                                                                \
  X(EXAMPLE_HOSTS, "different hosts (%s, %s)", a->host, b->host)
enum { EXAMPLE_REASONS(TUTTI_REASON_NAME) };

static void exampleExplain(tuttiReason why, const tuttiPath *path, const tuttiPeer *a,
                           const tuttiPeer *b, char *buf, size_t size) {
  (void)path;
  switch (why.code) { EXAMPLE_REASONS(TUTTI_REASON_TEXT) }
}

static bool exampleCanConnect(const tuttiPeer *a, const tuttiPeer *b, tuttiPath *path,
                              tuttiReason *why) {
  bool near = a->hostId == b->hostId;
  *why = (tuttiReason){.code = near ? EXAMPLE_CONNECTS : EXAMPLE_HOSTS};
  if (!near) return false;
  path->via = "Example";
  path->latencyUs = 1.0f;
  path->bandwidthGBs = 1.0f;
  return true;
}

static tuttiResult_t examplePrepare(tuttiCommView *w, tuttiPeer *mine) {
  (void)w, (void)mine;
  exampleCounts.prepared++;
  return tuttiSuccess;
}

static tuttiResult_t exampleAttach(tuttiCommView *w) {
  (void)w;
  exampleCounts.attached++;
  return tuttiSuccess;
}

static tuttiResult_t exampleOpen(tuttiCommView *w, int peer, int channel, tuttiDirection direction,
                                 bool shared, tuttiConn *conn) {
  if (shared || peer == w->rank)
    return TUTTI_FAIL(tuttiInternalError, "rank %d: the example has no such connection", w->rank);
  *conn = (tuttiConn){.peer = peer,
                      .channel = channel,
                      .direction = (uint8_t)direction,
                      .transport = &tuttiTransportExample};
  exampleCounts.opened++;
  return tuttiSuccess;
}

static void exampleClose(tuttiCommView *w, tuttiConn *conn) {
  (void)w;
  *conn = (tuttiConn){.peer = -1};
  exampleCounts.closed++;
}

static void exampleDetach(tuttiCommView *w) {
  (void)w;
  exampleCounts.detached++;
}

const tuttiTransport tuttiTransportExample = {
    .name = "EXAMPLE",
    .canConnect = exampleCanConnect,
    .explain = exampleExplain,
    .prepare = examplePrepare,
    .attach = exampleAttach,
    .open = exampleOpen,
    .close = exampleClose,
    .detach = exampleDetach,
};

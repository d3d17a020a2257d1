#include "transport/example.h"

#include <stdio.h>

#include "base/error.h"

exampleCalls exampleCounts;

static void exampleCanConnect(const tuttiPeer *a, const tuttiPeer *b, tuttiPath *path) {
  *path = (tuttiPath){.latencyUs = 1.0f, .bandwidthGBs = 1.0f, .via = "Example"};
  if (a->hostId != b->hostId) {
    TUTTI_WHY(path, "different hosts (%s, %s)", a->host, b->host);
    return;
  }
  path->possible = true;
  TUTTI_WHY(path, "an example");
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
    .prepare = examplePrepare,
    .attach = exampleAttach,
    .open = exampleOpen,
    .close = exampleClose,
    .detach = exampleDetach,
};

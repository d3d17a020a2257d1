#include "wireup/world.h"

#include "transport/stub.h"

namespace world {

Counts counts;

static bool canConnect(const tuttiPeer *, const tuttiPeer *, tuttiPath *, tuttiReason *why) {
  __atomic_fetch_add(&counts.asked, 1, __ATOMIC_RELAXED);
  *why = tuttiReason{7, 1};
  return false;
}
static void explain(tuttiReason why, const tuttiPath *, const tuttiPeer *a, const tuttiPeer *b,
                    char *buf, size_t size) {
  __atomic_fetch_add(&counts.explained, 1, __ATOMIC_RELAXED);
  snprintf(buf, size, "reason %d of rank %d", why.code, tuttiReasonPeer(why, a, b)->rank);
}
static tuttiResult_t open(tuttiCommView *, int, int, tuttiDirection, bool, tuttiConn *) {
  return TUTTI_FAIL(tuttiInternalError, "it connects nobody");
}

const tuttiTransport counting = {"COUNTING",
                                 canConnect,
                                 explain,
                                 tuttiTransportNothingToPrepare,
                                 tuttiTransportNothingToAttach,
                                 open,
                                 tuttiTransportNothingToClose,
                                 tuttiTransportNothingToDetach};

} // namespace world

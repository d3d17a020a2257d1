#include "wireup/paths.h"

#include "base/error.h"

void tuttiPathsFill(const tuttiPeer *peers, int rank, int nranks, tuttiPath *paths) {
  for (int r = 0; r < nranks; r++) {
    paths[r] = (tuttiPath){0};
    if (r != rank) tuttiTransportSelect(&peers[rank], &peers[r], &paths[r]);
  }
}

tuttiResult_t tuttiPathMissing(const tuttiPath *path, const tuttiPeer *a, const tuttiPeer *b) {
  char why[TUTTI_SENTENCE];
  return TUTTI_FAIL(tuttiSystemError,
                    "no transport connects rank %d (host %s) and rank %d (host %s): %s", a->rank,
                    a->host, b->rank, b->host, tuttiPathText(path, a, b, why));
}

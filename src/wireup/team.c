#include "wireup/team.h"

/* All that is in one team reach each other. */
static bool isTeam(const void *ranks, int first, int size, tuttiTeamReaches *reaches) {
  for (int a = first; a < first + size; a++)
    for (int b = a + 1; b < first + size; b++)
      if (!reaches(ranks, a, b)) return false;
  return true;
}

static bool areTeams(const void *ranks, int nranks, int size, tuttiTeamReaches *reaches) {
  for (int first = 0; first < nranks; first += size) /* cheap first: the ends are on other hosts */
    if (!reaches(ranks, first, first + size - 1)) return false;
  for (int first = 0; first < nranks; first += size)
    if (!isTeam(ranks, first, size, reaches)) return false;
  return true;
}

int tuttiTeamSize(const void *ranks, int nranks, tuttiTeamReaches *reaches) {
  for (int size = nranks; size > 1; size--)
    if (nranks % size == 0 && areTeams(ranks, nranks, size, reaches)) return size;
  return 1;
}

static bool stores(const void *ranks, int a, int b) {
  const tuttiPeer *peers = ranks;
  tuttiPath path = {0};
  if (peers[a].hostId != peers[b].hostId) return false;
  tuttiTransportSelect(&peers[a], &peers[b], &path);
  return path.stores;
}

int tuttiTeamSizeOf(const tuttiPeer *peers, int nranks) {
  bool gpus = tuttiPeerGpu(&peers[0]) >= 0;
  return gpus ? tuttiTeamSize(peers, nranks, stores) : 1;
}

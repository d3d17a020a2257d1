/* Splitting: the ranks exchange color and key over the communicator itself; the first rank of each
 * color makes a unique id of its own, whatever TUTTI_COMM_ID says, a second exchange spreads the
 * ids, and each color joins as usual. */
#include "comm/split.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/group.h"
#include "comm/handle.h"
#include "comm/init.h"
#include "comm/job.h"
#include "comm/operation.h"
#include "comm/options.h"
#include "comm/worker.h"

typedef struct {
  int32_t color, key;
  int32_t noId; /* the rank should have made an id and could not: its tuttiResult_t */
  tuttiUniqueId id;
} SplitEntry;

/* What the exchanges tell about the new communicator. */
typedef struct {
  int place, members; /* rank and size; members 0: none */
  int32_t *ranks;     /* [members] of the parent; the caller frees it */
  tuttiUniqueId id;
  char name[TUTTI_COMM_NAME]; /* what the user gave, else one that follows from the parent's */
} Agreement;

/* The color of `rank`: its members by key, then by rank. Returns the first; *place is rank's. */
static int gatherColor(const SplitEntry *entries, int nranks, int rank, int *place, int *members) {
  int leader = -1;
  *place = *members = 0;
  for (int r = 0; r < nranks; r++) {
    if (entries[r].color != entries[rank].color) continue;
    int key = entries[r].key, mine = entries[rank].key;
    if (leader < 0 || key < entries[leader].key) leader = r;
    *place += key < mine || (key == mine && r < rank);
    ++*members;
  }
  return leader;
}

/* The order of the members of a color: by key, then by rank. */
static int compareMembers(const void *a, const void *b, void *entries) {
  const SplitEntry *all = entries;
  int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  if (all[x].key != all[y].key) return all[x].key < all[y].key ? -1 : 1;
  return x < y ? -1 : x > y;
}

static tuttiResult_t listMembers(SplitEntry *entries, int nranks, int color, Agreement *agreed) {
  int n = 0;
  TUTTI_NEW(agreed->ranks, agreed->members, "ranks of a color", NULL);
  for (int r = 0; r < nranks; r++)
    if (entries[r].color == color) agreed->ranks[n++] = r;
  qsort_r(agreed->ranks, (size_t)n, sizeof *agreed->ranks, compareMembers, entries);
  return tuttiSuccess;
}

static tuttiResult_t exchange(tuttiCommunicator *parent, const tuttiSplitJob *split,
                              Agreement *agreed) {
  TUTTI_FRESH(SplitEntry, entries, parent->nranks, "colors of a split", NULL);
  SplitEntry *mine = &entries[parent->rank];
  parent->splits++;
  *mine = (SplitEntry){.color = split->color, .key = split->key};
  TUTTI_TRY(tuttiCommExchange(parent, entries, sizeof *entries));
  int leader = gatherColor(entries, parent->nranks, parent->rank, &agreed->place, &agreed->members);
  bool takesPart = split->color != TUTTI_SPLIT_NOCOLOR;
  /* A leader without an id says so, for the others would wait for it. */
  uint64_t purpose = (uint64_t)parent->splits << 32 | (uint32_t)split->color;
  if (takesPart && leader == parent->rank)
    mine->noId = (int32_t)tuttiIdOffer(parent->bootstrap, purpose, &mine->id, &(uint16_t){0});
  char why[TUTTI_ERROR_TEXT];
  snprintf(why, sizeof why, "%s", tuttiErrorText());
  tuttiResult_t result = tuttiCommExchange(parent, entries, sizeof *entries);
  if (result != tuttiSuccess) {
    if (leader == parent->rank && takesPart && !mine->noId) tuttiIdCancel(&mine->id, result);
    return result;
  }
  if (!takesPart) {
    agreed->members = 0;
    return tuttiSuccess;
  }
  if (mine->noId) return tuttiErrorAdopt((tuttiResult_t)mine->noId, why);
  if (entries[leader].noId)
    return TUTTI_FAIL(tuttiRemoteError,
                      "rank %d, the first of color %d, could not start the rendezvous of the new "
                      "communicator; see its log for the reason",
                      leader, split->color);
  agreed->id = entries[leader].id;
  /* Only for what may be said of them. */
  if (listMembers(entries, parent->nranks, split->color, agreed) != tuttiSuccess) tuttiErrorClear();
  if (!agreed->name[0])
    snprintf(agreed->name, sizeof agreed->name, "%.40s/%u.%d", parent->options.name, parent->splits,
             split->color);
  return tuttiSuccess;
}

/* The parent is held for the exchange only: its abort need not wait for the new one's init. */
static tuttiResult_t agree(const tuttiSplitJob *split, Agreement *agreed) {
  TUTTI_ENTER_READY(parent, split->job.uses, "tuttiCommSplit");
  TUTTI_TRY(tuttiWorkerAwait(parent));
  TUTTI_TRY(tuttiCommOccupy(parent)); /* another thread may split it, too */
  tuttiResult_t result = exchange(parent, split, agreed);
  tuttiCommVacate(parent);
  return result;
}

tuttiResult_t tuttiSplitRun(tuttiJob *job) {
  const tuttiSplitJob *split = (const tuttiSplitJob *)job;
  tuttiOptions options = split->options;
  Agreement agreed = {0};
  memcpy(agreed.name, options.name, sizeof agreed.name);
  tuttiResult_t result = agree(split, &agreed);
  TUTTI_FREED int32_t *ranks = agreed.ranks;
  TUTTI_TRY(result);
  if (agreed.members == 0) {
    *split->out = NULL;
    return tuttiSuccess;
  }
  memcpy(options.name, agreed.name, sizeof options.name);
  return tuttiCommInit("tuttiCommSplit", split->out, agreed.members, agreed.place, 1, &agreed.id,
                       &options,
                       &(tuttiOrigin){.parent = job->uses, .ranks = ranks, .agreed = true});
}

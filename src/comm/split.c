/* Splitting: the ranks exchange color and key over the communicator itself; the first rank of each
 * color makes a unique id of its own, whatever TUTTI_COMM_ID says, a second exchange spreads the
 * ids, and each color joins as usual. */
#include <stdio.h>

#include "comm/check.h"
#include "comm/comm.h"

typedef struct {
  int32_t color, key;
  int32_t noId; /* the rank should have made an id and could not: its tuttiResult_t */
  tuttiUniqueId id;
} SplitEntry;

typedef struct {
  tuttiJob job;
  int color, key;
  tuttiComm_t *out;
  tuttiOptions options;
  /* What the exchange tells about the new communicator. */
  int place, members; /* rank and size; members 0: none */
  tuttiUniqueId id;
} SplitJob;

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

/* The parent is held for the exchange only: its abort need not wait for the new one's init. */
static tuttiResult_t agree(SplitJob *split) {
  TUTTI_ENTER_READY(parent, split->job.uses, "tuttiCommSplit");
  TUTTI_FRESH(SplitEntry, entries, parent->nranks, "colors of a split", NULL);
  SplitEntry *mine = &entries[parent->rank];
  parent->splits++;
  *mine = (SplitEntry){.color = split->color, .key = split->key};
  TUTTI_TRY(tuttiCommExchange(parent, entries, sizeof *entries));
  int leader = gatherColor(entries, parent->nranks, parent->rank, &split->place, &split->members);
  bool takesPart = split->color != TUTTI_SPLIT_NOCOLOR;
  /* A leader without an id says so, for the others would wait for it. */
  uint64_t purpose = (uint64_t)parent->splits << 32 | (uint32_t)split->color;
  if (takesPart && leader == parent->rank)
    mine->noId = (int32_t)tuttiIdOffer(parent->bootstrap, purpose, &mine->id, &(uint16_t){0});
  char why[TUTTI_ERROR_TEXT];
  snprintf(why, sizeof why, "%s", tuttiErrorText());
  TUTTI_TRY(tuttiCommExchange(parent, entries, sizeof *entries));
  if (!takesPart) {
    split->members = 0;
    return tuttiSuccess;
  }
  if (mine->noId) return tuttiErrorAdopt((tuttiResult_t)mine->noId, why);
  if (entries[leader].noId)
    return TUTTI_FAIL(tuttiRemoteError,
                      "rank %d, the first of color %d, could not start the rendezvous of the new "
                      "communicator; see its log for the reason",
                      leader, split->color);
  split->id = entries[leader].id;
  char *name = split->options.name;
  if (!name[0])
    snprintf(name, TUTTI_COMM_NAME, "%.40s/%u.%d", parent->options.name, parent->splits,
             split->color);
  return tuttiSuccess;
}

static tuttiResult_t runSplit(tuttiJob *job) {
  SplitJob *split = (SplitJob *)job;
  TUTTI_TRY(agree(split));
  if (split->members == 0) {
    *split->out = NULL;
    return tuttiSuccess;
  }
  return tuttiCommInit("tuttiCommSplit", split->out, split->members, split->place, 1, &split->id,
                       &split->options);
}

static tuttiResult_t check(tuttiComm_t comm, const tuttiConfig_t *config, SplitJob *split) {
  TUTTI_ENTER_READY(c, comm, "tuttiCommSplit");
  TUTTI_TRY(tuttiCheckOutput("newcomm", split->out));
  if (split->color < 0 && split->color != TUTTI_SPLIT_NOCOLOR)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument color is %d; it must be at least 0, or TUTTI_SPLIT_NOCOLOR",
                      split->color);
  return tuttiOptionsResolve(config, &c->options, &split->options);
}

tuttiResult_t tuttiCommSplit(tuttiComm_t comm, int color, int key, tuttiComm_t *newcomm,
                             tuttiConfig_t *config) {
  SplitJob split = {
      .job = {.run = runSplit, .uses = comm}, .color = color, .key = key, .out = newcomm};
  return tuttiJobLaunch(check(comm, config, &split), &split.job, sizeof split);
}

/* Splitting: the ranks exchange color and key over the communicator itself; the first rank of each
 * color makes a unique id, a second exchange spreads the ids, and each color joins as usual. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"

typedef struct {
  int32_t color, key, rank;
  int32_t noId; /* the rank should have made an id and could not: its tuttiResult_t */
  tuttiUniqueId id;
} SplitEntry;

typedef struct {
  tuttiJob job;
  tuttiComm_t parent;
  int color, key;
  tuttiComm_t *out;
  tuttiOptions options;
  bool named; /* by the config */
} SplitJob;

static int compareEntries(const void *a, const void *b) {
  const SplitEntry *x = a, *y = b;
  if (x->color != y->color) return x->color < y->color ? -1 : 1;
  if (x->key != y->key) return x->key < y->key ? -1 : 1;
  return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* Place of this rank among the sorted entries of its color; [*first, *first + *n) is the color. */
static int placeOf(const SplitEntry *sorted, int nranks, int rank, int *first, int *n) {
  int at = 0;
  while (sorted[at].rank != rank)
    at++;
  for (*first = at; *first > 0 && sorted[*first - 1].color == sorted[at].color;)
    (*first)--;
  for (*n = at - *first; *first + *n < nranks && sorted[*first + *n].color == sorted[at].color;)
    (*n)++;
  return at - *first;
}

/* What the exchange tells a rank about its new communicator. */
typedef struct {
  int place, members; /* rank and size; members 0: none */
  tuttiUniqueId id;
  tuttiOptions options;
} Share;

/* Exchanges entries; each comes back at its rank's place, with that rank's number, whatever a peer
 * has sent. */
static tuttiResult_t exchange(tuttiCommunicator *parent, SplitEntry *entries, SplitEntry mine) {
  entries[parent->rank] = mine;
  TUTTI_TRY(tuttiCommExchange(parent, entries, sizeof *entries));
  for (int r = 0; r < parent->nranks; r++)
    entries[r].rank = r;
  return tuttiSuccess;
}

static tuttiResult_t agree(tuttiCommunicator *parent, const SplitJob *split, SplitEntry *entries,
                           Share *share) {
  int first;
  TUTTI_TRY(exchange(parent, entries, (SplitEntry){.color = split->color, .key = split->key}));
  qsort(entries, (size_t)parent->nranks, sizeof *entries, compareEntries);
  share->place = placeOf(entries, parent->nranks, parent->rank, &first, &share->members);
  int leader = entries[first].rank;
  SplitEntry mine = entries[first + share->place];
  bool takesPart = split->color != TUTTI_SPLIT_NOCOLOR;
  /* A leader without an id says so, for the others would wait for it. */
  if (takesPart && leader == parent->rank) mine.noId = (int32_t)tuttiIdCreate(&mine.id);
  char why[TUTTI_ERROR_TEXT];
  snprintf(why, sizeof why, "%s", tuttiErrorText());
  TUTTI_TRY(exchange(parent, entries, mine));
  if (!takesPart) {
    share->members = 0;
    return tuttiSuccess;
  }
  if (mine.noId) return tuttiErrorAdopt((tuttiResult_t)mine.noId, why);
  if (entries[leader].noId)
    return TUTTI_FAIL(tuttiRemoteError,
                      "rank %d, the first of color %d, could not start the rendezvous of the new "
                      "communicator; see its log for the reason",
                      leader, split->color);
  share->id = entries[leader].id;
  share->options = split->options;
  if (!split->named)
    snprintf(share->options.name, sizeof share->options.name, "%.40s/%u.%d", parent->options.name,
             parent->splits, split->color);
  return tuttiSuccess;
}

/* The parent is held for the exchange only: its abort need not wait for the new one's init. */
static tuttiResult_t agreeOver(const SplitJob *split, Share *share) {
  tuttiCommunicator *parent;
  SplitEntry *entries = NULL;
  TUTTI_TRY(tuttiHandleEnter(split->parent, "tuttiCommSplit", &parent));
  tuttiResult_t result = tuttiCommReady(parent);
  if (result == tuttiSuccess)
    result = tuttiAlloc((void **)&entries, (size_t)parent->nranks, sizeof *entries,
                        "colors of a split", NULL);
  parent->splits++;
  if (result == tuttiSuccess) result = agree(parent, split, entries, share);
  tuttiFree(entries);
  tuttiHandleLeave(parent);
  return result;
}

static tuttiResult_t runSplit(tuttiJob *job) {
  SplitJob *split = (SplitJob *)job;
  Share share;
  TUTTI_TRY(agreeOver(split, &share));
  if (share.members == 0) {
    *split->out = NULL;
    return tuttiSuccess;
  }
  return tuttiCommInit("tuttiCommSplit", split->out, share.members, share.place, 1, &share.id,
                       &share.options);
}

static tuttiResult_t check(const tuttiCommunicator *c, int color, const tuttiComm_t *newcomm,
                           const tuttiConfig_t *config, tuttiOptions *options) {
  TUTTI_TRY(tuttiCommReady(c));
  if (!newcomm) return TUTTI_FAIL(tuttiInvalidArgument, "argument newcomm is NULL");
  if (color < 0 && color != TUTTI_SPLIT_NOCOLOR)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument color is %d; it must be at least 0, or TUTTI_SPLIT_NOCOLOR", color);
  return tuttiOptionsResolve(config, &c->options, options);
}

tuttiResult_t tuttiCommSplit(tuttiComm_t comm, int color, int key, tuttiComm_t *newcomm,
                             tuttiConfig_t *config) {
  tuttiCommunicator *c;
  SplitJob split = {.job = {.run = runSplit, .uses = comm},
                    .parent = comm,
                    .color = color,
                    .key = key,
                    .out = newcomm,
                    .named = config && config->commName};
  tuttiResult_t result = tuttiHandleEnter(comm, __func__, &c);
  if (result == tuttiSuccess) {
    result = check(c, color, newcomm, config, &split.options);
    tuttiHandleLeave(c);
  }
  return tuttiJobLaunch(result, &split.job, sizeof split);
}

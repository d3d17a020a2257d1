/* Growing: one rank hands the id to the others over the communicator itself, and all join with the
 * new ranks, which have it from elsewhere. */
#include "comm/check.h"
#include "comm/comm.h"

typedef struct {
  int32_t nRanks, hasId;
  tuttiUniqueId id;
} GrowEntry;

typedef struct {
  tuttiJob job;
  GrowEntry mine;
  tuttiComm_t *out;
  tuttiOptions options;
} GrowJob;

static tuttiResult_t findId(const tuttiCommunicator *c, const GrowEntry *all, tuttiUniqueId *id) {
  int root = -1;
  for (int r = 0; r < c->nranks; r++) {
    if (all[r].nRanks != all[c->rank].nRanks)
      return TUTTI_FAIL(tuttiInvalidUsage, "ranks disagree on nRanks: %d on rank %d, %d on rank %d",
                        all[r].nRanks, r, all[c->rank].nRanks, c->rank);
    if (!all[r].hasId) continue;
    if (root >= 0)
      return TUTTI_FAIL(tuttiInvalidUsage,
                        "ranks %d and %d both passed a uniqueId; one rank does, the others pass "
                        "NULL",
                        root, r);
    root = r;
  }
  if (root < 0)
    return TUTTI_FAIL(tuttiInvalidUsage, "no rank of the communicator passed a uniqueId; one must, "
                                         "with what tuttiCommGetUniqueId wrote");
  *id = all[root].id;
  return tuttiSuccess;
}

/* The parent is held for the exchange only: its abort need not wait for the new one's init. */
static tuttiResult_t agree(const GrowJob *g, tuttiUniqueId *id, int *rank) {
  TUTTI_ENTER_READY(c, g->job.uses, "tuttiCommGrow");
  TUTTI_FRESH(GrowEntry, all, c->nranks, "ids of a growth", NULL);
  all[c->rank] = g->mine;
  TUTTI_TRY(tuttiCommExchange(c, all, sizeof *all));
  *rank = c->rank;
  return findId(c, all, id);
}

static tuttiResult_t runGrow(tuttiJob *job) {
  const GrowJob *g = (GrowJob *)job;
  tuttiUniqueId id;
  int rank;
  TUTTI_TRY(agree(g, &id, &rank));
  return tuttiCommInit("tuttiCommGrow", g->out, g->mine.nRanks, rank, 1, &id, &g->options);
}

static tuttiResult_t check(tuttiComm_t comm, const tuttiUniqueId *uniqueId, int rank,
                           const tuttiConfig_t *config, GrowJob *g) {
  tuttiId parsed;
  TUTTI_ENTER_READY(c, comm, "tuttiCommGrow");
  TUTTI_TRY(tuttiCheckOutput("newcomm", g->out));
  if (rank != -1)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument rank is %d; its ranks keep theirs and pass -1", rank);
  if (g->mine.nRanks <= c->nranks)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument nRanks is %d; it must be more than the %d ranks there are",
                      g->mine.nRanks, c->nranks);
  if (uniqueId) TUTTI_TRY(tuttiIdParse(uniqueId, &parsed));
  return tuttiOptionsResolve(config, &c->options, &g->options);
}

tuttiResult_t tuttiCommGrow(tuttiComm_t comm, int nRanks, const tuttiUniqueId *uniqueId, int rank,
                            tuttiComm_t *newcomm, tuttiConfig_t *config) {
  GrowJob g = {.job = {.run = runGrow, .uses = comm},
               .mine = {.nRanks = nRanks, .hasId = uniqueId != NULL},
               .out = newcomm};
  if (uniqueId) g.mine.id = *uniqueId;
  if (!comm && uniqueId) return tuttiCommInitRankConfig(newcomm, nRanks, *uniqueId, rank, config);
  return tuttiJobLaunch(check(comm, uniqueId, rank, config, &g), &g.job, sizeof g);
}

tuttiResult_t tuttiCommGetUniqueId(tuttiComm_t comm, tuttiUniqueId *uniqueId) {
  TUTTI_ENTER_READY(c, comm, __func__);
  TUTTI_TRY(tuttiCheckOutput("uniqueId", uniqueId));
  return tuttiIdCreate(uniqueId);
}

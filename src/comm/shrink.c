/* Shrinking, revoking and growing. The ranks of a shrink cannot use the parent's connections: some
 * ranks don't call, and it may have failed. So the first of those that stay starts a rendezvous and
 * shows its port in what its watch answers; the others ask until they see it, and all join. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/os.h"
#include "comm/comm.h"

#define ASK_MS       1000
#define ASK_AGAIN_NS 5000000

typedef struct {
  tuttiJob job;
  tuttiComm_t parent;
  bool aborts;
  int leader;         /* first rank that stays */
  int place, members; /* rank and size of the new communicator */
  uint64_t purpose;   /* which shrink of the parent, and who stays; 48 bits */
  tuttiComm_t *out;
  tuttiOptions options;
} ShrinkJob;

tuttiResult_t tuttiCommQuiesce(tuttiCommunicator *c) {
  uint64_t deadline = tuttiDeadline(c->options.timeoutMs);
  tuttiBackoff pause = {0, 0};
  while (tuttiLoadAcquire32(&c->busy) || !tuttiWorkerIdle(c)) {
    if (tuttiNow() > deadline)
      return TUTTI_FAIL(tuttiTimeout, "operations of this rank did not end within %.1f s",
                        (double)c->options.timeoutMs / 1e3);
    tuttiBackoffPause(&pause);
  }
  return c->device->drain ? c->device->drain(&c->host) : tuttiSuccess;
}

/* Ends what is under way; an abort elsewhere is told apart by the dead handle. */
static tuttiResult_t endOperations(tuttiComm_t parent) {
  tuttiCommunicator *c;
  TUTTI_TRY(tuttiHandleEnter(parent, "tuttiCommShrink", &c));
  char text[160];
  snprintf(text, sizeof text, "rank %d ended this communicator by tuttiCommShrink", c->rank);
  tuttiCommFailText(c, tuttiInvalidUsage, text, true);
  tuttiResult_t result = tuttiCommQuiesce(c);
  tuttiHandleLeave(c);
  return result;
}

static tuttiResult_t offer(const ShrinkJob *s, tuttiUniqueId *id) {
  tuttiCommunicator *c;
  uint16_t port;
  TUTTI_TRY(tuttiHandleEnter(s->parent, "tuttiCommShrink", &c));
  tuttiResult_t result = tuttiIdOffer(c->bootstrap, s->purpose, id, &port);
  if (result == tuttiSuccess) tuttiStoreRelease(&c->offer, s->purpose << 16 | port);
  tuttiHandleLeave(c);
  return result;
}

/* One look at what the leader shows; *found if it is this shrink. */
static tuttiResult_t look(const ShrinkJob *s, tuttiCommunicator *c, tuttiUniqueId *id,
                          bool *found) {
  tuttiWatchAnswer *answers;
  tuttiRankState state;
  if (!s->aborts) TUTTI_TRY(tuttiCommFailure(c));
  TUTTI_TRY(tuttiAlloc((void **)&answers, (size_t)c->nranks, sizeof *answers, "answers of ranks",
                       &c->memory));
  tuttiResult_t result = tuttiWatchAsk(c->watch, s->leader, ASK_MS, answers);
  const tuttiWatchAnswer *a = &answers[s->leader];
  *found = result == tuttiSuccess && a->answered &&
           tuttiRankStateParse(a->state, a->bytes, &state) && state.offer >> 16 == s->purpose;
  if (*found) tuttiIdFollow(c->bootstrap, s->leader, s->purpose, (uint16_t)state.offer, id);
  tuttiFree(answers);
  return result;
}

/* The parent is held for single looks only: its abort need not wait. */
static tuttiResult_t follow(const ShrinkJob *s, tuttiUniqueId *id) {
  uint64_t deadline = tuttiDeadline(s->options.timeoutMs);
  for (bool found = false;;) {
    tuttiCommunicator *c;
    TUTTI_TRY(tuttiHandleEnter(s->parent, "tuttiCommShrink", &c));
    tuttiResult_t result = look(s, c, id, &found);
    if (result == tuttiSuccess && !found && tuttiNow() > deadline)
      result = TUTTI_FAIL(tuttiTimeout,
                          "rank %d, the first that stays, did not call tuttiCommShrink with the "
                          "same ranks within %.1f s; every rank that stays must",
                          s->leader, (double)s->options.timeoutMs / 1e3);
    tuttiHandleLeave(c);
    if (result != tuttiSuccess || found) return result;
    nanosleep(&(struct timespec){.tv_nsec = ASK_AGAIN_NS}, NULL);
  }
}

static tuttiResult_t runShrink(tuttiJob *job) {
  const ShrinkJob *s = (ShrinkJob *)job;
  tuttiUniqueId id;
  if (s->aborts) TUTTI_TRY(endOperations(s->parent));
  TUTTI_TRY(s->place == 0 ? offer(s, &id) : follow(s, &id));
  return tuttiCommInit("tuttiCommShrink", s->out, s->members, s->place, 1, &id, &s->options);
}

/* Marks the excluded ranks and fills in what follows from them. */
static tuttiResult_t exclude(tuttiCommunicator *c, const int *list, int n, uint8_t *excluded,
                             ShrinkJob *s) {
  for (int i = 0; i < n; i++) {
    if (list[i] < 0 || list[i] >= c->nranks)
      return TUTTI_FAIL(tuttiInvalidArgument,
                        "argument excludeRanksList[%d] is %d; it must be a rank, 0 to %d", i,
                        list[i], c->nranks - 1);
    excluded[list[i]] = 1;
  }
  if (excluded[c->rank])
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument excludeRanksList holds this rank, %d; excluded ranks do not call "
                      "tuttiCommShrink",
                      c->rank);
  s->leader = -1;
  for (int r = 0; r < c->nranks; r++) {
    if (excluded[r]) continue;
    if (s->leader < 0) s->leader = r;
    if (r < c->rank) s->place++;
    s->members++;
  }
  s->purpose = tuttiHash(excluded, (size_t)c->nranks) >> 16 ^ ++c->shrinks;
  return tuttiSuccess;
}

static tuttiResult_t checkShrink(tuttiCommunicator *c, const int *list, int n,
                                 const tuttiComm_t *newcomm, const tuttiConfig_t *config, int flags,
                                 ShrinkJob *s) {
  uint8_t *excluded;
  if (flags & ~TUTTI_SHRINK_ABORT)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument shrinkFlags is %#x; it must be TUTTI_SHRINK_DEFAULT or "
                      "TUTTI_SHRINK_ABORT",
                      flags);
  if (tuttiLoadAcquire32(&c->state) != tuttiCommUsable || !(flags & TUTTI_SHRINK_ABORT))
    TUTTI_TRY(tuttiCommReady(c));
  if (!newcomm) return TUTTI_FAIL(tuttiInvalidArgument, "argument newcomm is NULL");
  if (n < 0 || (n > 0 && !list))
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "arguments excludeRanksList (%p) and excludeRanksCount (%d) are no list",
                      (const void *)list, n);
  TUTTI_TRY(tuttiOptionsResolve(config, &c->options, &s->options));
  if (!config || !config->commName) s->options.name[0] = 0; /* after its hash */
  TUTTI_TRY(tuttiAlloc((void **)&excluded, (size_t)c->nranks, 1, "excluded ranks", NULL));
  tuttiResult_t result = exclude(c, list, n, excluded, s);
  tuttiFree(excluded);
  return result;
}

tuttiResult_t tuttiCommShrink(tuttiComm_t comm, int *excludeRanksList, int excludeRanksCount,
                              tuttiComm_t *newcomm, tuttiConfig_t *config, int shrinkFlags) {
  tuttiCommunicator *c;
  ShrinkJob s = {.job = {.run = runShrink, .uses = comm},
                 .parent = comm,
                 .aborts = (shrinkFlags & TUTTI_SHRINK_ABORT) != 0,
                 .out = newcomm};
  tuttiResult_t result = tuttiHandleEnter(comm, __func__, &c);
  if (result == tuttiSuccess) {
    result = checkShrink(c, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags, &s);
    tuttiHandleLeave(c);
  }
  return tuttiJobLaunch(result, &s.job, sizeof s);
}

tuttiResult_t tuttiCommRevoke(tuttiComm_t comm, int revokeFlags) {
  tuttiCommunicator *c;
  TUTTI_TRY(tuttiHandleEnter(comm, __func__, &c));
  tuttiResult_t result = tuttiSuccess;
  if (revokeFlags != TUTTI_REVOKE_DEFAULT)
    result =
        TUTTI_FAIL(tuttiInvalidArgument,
                   "argument revokeFlags is %#x; it must be TUTTI_REVOKE_DEFAULT", revokeFlags);
  else if (tuttiLoadAcquire32(&c->state) != tuttiCommUsable)
    result = tuttiCommReady(c);
  if (result == tuttiSuccess) {
    char text[160];
    snprintf(text, sizeof text, "rank %d revoked this communicator by tuttiCommRevoke", c->rank);
    tuttiCommFailText(c, tuttiInvalidUsage, text, true);
    result = tuttiCommQuiesce(c);
  }
  if (result == tuttiSuccess) tuttiStoreRelease32(&c->revoked, 1);
  tuttiHandleLeave(c);
  return result;
}

/* Shrinking, revoking and growing. The ranks of a shrink cannot use the parent's connections: some
 * ranks don't call, and it may have failed. So the first of those that stay starts a rendezvous and
 * shows its port in what its watch answers; the others ask until they see it, and all join. They
 * may have taken part in different shrinks before: only the leader counts, and the others tell what
 * it shows now from what they have followed already. */
#include <stdio.h>
#include <time.h>

#include "base/os.h"
#include "comm/check.h"
#include "comm/comm.h"

#define ASK_MS       1000
#define ASK_AGAIN_NS 5000000

typedef struct {
  tuttiJob job;
  bool aborts;
  int leader;         /* first rank that stays */
  int place, members; /* rank and size of the new communicator */
  uint64_t purpose;   /* who stays, and the leader's count of shrinks: 40 + 8 bits */
  tuttiComm_t *out;
  tuttiOptions options;
} ShrinkJob;

static bool isQuiet(tuttiCommunicator *c) {
  return !tuttiLoadAcquire32(&c->busy) && tuttiWorkerIdle(c);
}

/* Makes a communicator that the caller ends fail everywhere, and waits until nothing of this rank
 * is under way. */
static tuttiResult_t endOperations(tuttiCommunicator *c, const char *what) {
  char text[160];
  snprintf(text, sizeof text, "rank %d %s", c->rank, what);
  tuttiCommFailText(c, tuttiInvalidUsage, text, true);
  TUTTI_TRY(tuttiCommAwait(c, isQuiet, false, "operations of this rank did not end", ""));
  return c->device->drain ? c->device->drain(&c->host) : tuttiSuccess;
}

/* An abort elsewhere is told apart by the dead handle. */
static tuttiResult_t offer(const ShrinkJob *s, tuttiUniqueId *id) {
  uint16_t port;
  TUTTI_ENTER(c, s->job.uses, "tuttiCommShrink");
  TUTTI_TRY(tuttiIdOffer(c->bootstrap, s->purpose, id, &port));
  tuttiStoreRelease(&c->offer, s->purpose << 16 | port);
  return tuttiSuccess;
}

/* One look at what the leader shows; *found if it is this shrink. The parent is held for that only:
 * its abort need not wait. */
static tuttiResult_t look(const ShrinkJob *s, uint64_t deadline, tuttiUniqueId *id, bool *found) {
  tuttiRankState state;
  TUTTI_ENTER(c, s->job.uses, "tuttiCommShrink");
  if (!s->aborts) TUTTI_TRY(tuttiCommFailure(c));
  TUTTI_FRESH(tuttiWatchAnswer, answers, c->nranks, "answers of ranks", &c->memory);
  TUTTI_TRY(tuttiWatchAsk(c->watch, s->leader, ASK_MS, answers));
  const tuttiWatchAnswer *a = &answers[s->leader];
  *found = a->answered == 1 && tuttiRankStateParse(a->state, a->bytes, &state) &&
           (state.offer >> 16 ^ s->purpose) < 256 && state.offer != c->followed[s->leader];
  if (*found) {
    c->followed[s->leader] = state.offer;
    tuttiIdFollow(c->bootstrap, s->leader, state.offer >> 16, (uint16_t)state.offer, id);
  }
  if (*found || tuttiNow() <= deadline) return tuttiSuccess;
  return TUTTI_FAIL(tuttiTimeout,
                    "rank %d, the first that stays, did not call tuttiCommShrink with the same "
                    "ranks within %.1f s; every rank that stays must",
                    s->leader, (double)s->options.timeoutMs / 1e3);
}

static tuttiResult_t follow(const ShrinkJob *s, tuttiUniqueId *id) {
  uint64_t deadline = tuttiDeadline(s->options.timeoutMs);
  for (bool found = false;;) {
    TUTTI_TRY(look(s, deadline, id, &found));
    if (found) return tuttiSuccess;
    nanosleep(&(struct timespec){.tv_nsec = ASK_AGAIN_NS}, NULL);
  }
}

static tuttiResult_t runShrink(tuttiJob *job) {
  const ShrinkJob *s = (ShrinkJob *)job;
  tuttiUniqueId id;
  if (s->aborts) {
    TUTTI_ENTER(c, job->uses, "tuttiCommShrink");
    TUTTI_TRY(endOperations(c, "ended this communicator by tuttiCommShrink"));
  }
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
  s->purpose = tuttiHash(excluded, (size_t)c->nranks) >> 24 << 8 | ++c->shrinks;
  return tuttiSuccess;
}

static tuttiResult_t check(tuttiComm_t comm, const int *list, int n, const tuttiConfig_t *config,
                           int flags, ShrinkJob *s) {
  TUTTI_ENTER(c, comm, "tuttiCommShrink");
  if (flags & ~TUTTI_SHRINK_ABORT)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument shrinkFlags is %#x; it must be TUTTI_SHRINK_DEFAULT or "
                      "TUTTI_SHRINK_ABORT",
                      flags);
  if (tuttiLoadAcquire32(&c->state) != tuttiCommUsable || !s->aborts) TUTTI_TRY(tuttiCommReady(c));
  TUTTI_TRY(tuttiCheckOutput("newcomm", s->out));
  if (n < 0 || (n > 0 && !list))
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "arguments excludeRanksList (%p) and excludeRanksCount (%d) are no list",
                      (const void *)list, n);
  TUTTI_TRY(tuttiOptionsResolve(config, &c->options, &s->options));
  TUTTI_FRESH(uint8_t, excluded, c->nranks, "excluded ranks", NULL);
  return exclude(c, list, n, excluded, s);
}

tuttiResult_t tuttiCommShrink(tuttiComm_t comm, int *excludeRanksList, int excludeRanksCount,
                              tuttiComm_t *newcomm, tuttiConfig_t *config, int shrinkFlags) {
  ShrinkJob s = {.job = {.run = runShrink, .uses = comm},
                 .aborts = (shrinkFlags & TUTTI_SHRINK_ABORT) != 0,
                 .out = newcomm};
  return tuttiJobLaunch(check(comm, excludeRanksList, excludeRanksCount, config, shrinkFlags, &s),
                        &s.job, sizeof s);
}

tuttiResult_t tuttiCommRevoke(tuttiComm_t comm, int revokeFlags) {
  TUTTI_ENTER(c, comm, __func__);
  if (revokeFlags != TUTTI_REVOKE_DEFAULT)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument revokeFlags is %#x; it must be TUTTI_REVOKE_DEFAULT", revokeFlags);
  if (tuttiLoadAcquire32(&c->state) != tuttiCommUsable) TUTTI_TRY(tuttiCommReady(c));
  TUTTI_TRY(endOperations(c, "revoked this communicator by tuttiCommRevoke"));
  tuttiStoreRelease32(&c->revoked, 1);
  return tuttiSuccess;
}

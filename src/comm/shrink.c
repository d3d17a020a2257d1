/* Shrinking and revoking. The ranks of a shrink cannot use the parent's connections: some
 * ranks don't call, and it may have failed. So the first of those that stay starts a rendezvous and
 * shows its port in what its watch answers; the others ask until they see it, and all join. They
 * may have taken part in different shrinks before: only the leader counts, and the others tell what
 * it shows now from what they have followed already. */
#include "comm/shrink.h"

#include <stdio.h>

#include "base/backoff.h"
#include "base/os.h"
#include "comm/communicator.h"
#include "comm/deaths.h"
#include "comm/failure.h"
#include "comm/handle.h"
#include "comm/init.h"
#include "comm/job.h"
#include "comm/record.h"
#include "comm/worker.h"

#define ASK_AGAIN_US 5000
#define NO_OFFER     0           /* in place of a port: the leader could not start the rendezvous */
#define GONE_NS      1000000000u /* a listener that refuses so long is no moment of overload */

static bool isQuiet(tuttiCommunicator *c) {
  return !tuttiCommInUse(c) && tuttiWorkerIdle(c);
}

tuttiResult_t tuttiCommEndOperations(tuttiCommunicator *c, const char *what) {
  char who[160], text[400];
  int dead = tuttiCommDead(c);
  if (dead >= 0) { /* another communicator has shown it before this one did */
    snprintf(text, sizeof text, "%s died, and rank %d %s",
             tuttiCommRankText(c, dead, who, sizeof who), c->rank, what);
    tuttiCommFailText(c, tuttiRemoteError, text, true);
  } else {
    snprintf(text, sizeof text, "rank %d %s", c->rank, what);
    tuttiCommEndText(c, tuttiInvalidUsage, text);
  }
  TUTTI_TRY(tuttiCommAwait(c, isQuiet, false, "operations of this rank did not end", ""));
  return c->device->drain(&c->context);
}

/* An abort elsewhere is told apart by the dead handle. */
static tuttiResult_t offer(const tuttiShrinkJob *s, tuttiUniqueId *id) {
  uint16_t port;
  TUTTI_ENTER(c, s->job.uses, "tuttiCommShrink");
  tuttiResult_t result = tuttiIdOffer(c->bootstrap, s->purpose, id, &port);
  if (result != tuttiSuccess) port = NO_OFFER;
  tuttiStoreRelease(&c->offer, s->purpose << 16 | port);
  return result;
}

/* What a rank that follows waits for. */
typedef struct {
  const tuttiShrinkJob *shrink;
  uint64_t deadline;
  uint64_t refusedSince; /* the leader's watch listens no more; 0: it does */
  uint64_t pauseUs;      /* until the next look */
  tuttiUniqueId *id;
  bool found; /* *id is set */
} Lookout;

/* Its process has ended, or it has left the communicator: it will show nothing any more. */
static tuttiResult_t leaderGone(const tuttiCommunicator *c, const Lookout *l) {
  char who[160];
  return TUTTI_FAIL(tuttiRemoteError,
                    "%s, the first that stays, died or has destroyed its communicator: nobody "
                    "listens there any more. Remedy: see its log, and shrink without it",
                    tuttiCommRankText(c, l->shrink->leader, who, sizeof who));
}

static tuttiResult_t leaderCannot(const tuttiCommunicator *c, int leader) {
  char who[160];
  return TUTTI_FAIL(tuttiRemoteError,
                    "%s, the first that stays, could not start the rendezvous of the new "
                    "communicator; see its log for the reason",
                    tuttiCommRankText(c, leader, who, sizeof who));
}

/* One look at what the leader shows. The parent is held for that only: its abort need not wait. */
static tuttiResult_t look(Lookout *l) {
  const tuttiShrinkJob *s = l->shrink;
  tuttiRankState state;
  TUTTI_ENTER(c, s->job.uses, "tuttiCommShrink");
  if (!s->aborts) TUTTI_TRY(tuttiCommFailure(c));
  TUTTI_TRY(tuttiCommComplete(c, s->excluded));
  TUTTI_FRESH(tuttiWatchAnswer, answers, c->nranks, "answers of ranks", &c->memory);
  uint64_t from = tuttiNow();
  TUTTI_TRY(tuttiWatchAsk(c->watch, s->leader, tuttiCommAskMs(c), answers));
  /* Under TLS each look costs the leader something: it has as long without. */
  uint64_t took = c->bootstrap->tls.on ? (tuttiNow() - from) / 1000 : 0;
  l->pauseUs = took > ASK_AGAIN_US ? took : ASK_AGAIN_US;
  const tuttiWatchAnswer *a = &answers[s->leader];
  l->found = a->answered == TUTTI_ANSWER_OWN && tuttiRankStateParse(a->state, a->bytes, &state) &&
             (state.offer >> 16 ^ s->purpose) < 256 && state.offer != c->followed[s->leader];
  if (l->found) {
    c->followed[s->leader] = state.offer;
    if ((uint16_t)state.offer == NO_OFFER) return leaderCannot(c, s->leader);
    tuttiIdFollow(c->bootstrap, s->leader, state.offer >> 16, (uint16_t)state.offer, l->id);
    return tuttiSuccess;
  }
  uint64_t now = tuttiNow();
  char who[160];
  if (!tuttiAnswerIsGone(a))
    l->refusedSince = 0;
  else if (l->refusedSince == 0)
    l->refusedSince = now;
  if (l->refusedSince && now - l->refusedSince > GONE_NS) return leaderGone(c, l);
  if (now <= l->deadline) return tuttiSuccess;
  return TUTTI_FAIL(tuttiTimeout,
                    "%s, the first that stays, did not call tuttiCommShrink with the same "
                    "ranks within %.1f s; every rank that stays must",
                    tuttiCommRankText(c, s->leader, who, sizeof who),
                    (double)s->options.timeoutMs / 1e3);
}

/* In steps: a parent that is aborted meanwhile is seen at once. */
static void awaitNextLook(const Lookout *l) {
  uint64_t until = tuttiNow() + l->pauseUs * 1000;
  do
    tuttiNap(ASK_AGAIN_US);
  while (tuttiNow() < until && tuttiHandleLives(l->shrink->job.uses));
}

static tuttiResult_t follow(const tuttiShrinkJob *s, tuttiUniqueId *id) {
  Lookout l = {.shrink = s, .deadline = tuttiDeadline(s->options.timeoutMs), .id = id};
  for (;;) {
    TUTTI_TRY(look(&l));
    if (l.found) return tuttiSuccess;
    awaitNextLook(&l);
  }
}

tuttiResult_t tuttiShrinkRun(tuttiJob *job) {
  const tuttiShrinkJob *s = (tuttiShrinkJob *)job;
  tuttiUniqueId id;
  if (s->aborts) {
    TUTTI_ENTER(c, job->uses, "tuttiCommShrink");
    TUTTI_TRY(tuttiCommEndOperations(c, "ended this communicator by tuttiCommShrink"));
  }
  TUTTI_TRY(s->place == 0 ? offer(s, &id) : follow(s, &id));
  return tuttiCommInit(
      "tuttiCommShrink", s->out, s->members, s->place, 1, &id, &s->options,
      &(tuttiOrigin){
          .parent = job->uses, .excluded = s->excluded, .nranks = s->nranks, .agreed = !s->aborts});
}

void tuttiShrinkDiscard(tuttiJob *job) {
  tuttiFree(((tuttiShrinkJob *)job)->excluded);
  tuttiFree(job);
}

void tuttiShrinkPlan(tuttiCommunicator *c, uint8_t *excluded, tuttiShrinkJob *s) {
  s->excluded = excluded;
  s->nranks = c->nranks;
  s->leader = -1;
  for (int r = 0; r < c->nranks; r++) {
    if (excluded[r]) continue;
    if (s->leader < 0) s->leader = r;
    if (r < c->rank) s->place++;
    s->members++;
  }
  s->purpose = tuttiHash(excluded, (size_t)c->nranks) >> 24 << 8 | ++c->shrinks;
}

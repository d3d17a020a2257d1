#include "comm/absence.h"

#include <stdio.h>

#include "base/backoff.h"
#include "base/os.h"
#include "comm/communicator.h"
#include "comm/failure.h"
#include "comm/handle.h"
#include "ras/verdict.h"

#define STEP_US 1000 /* between two looks at what has come */
#define WAIT_MS 500  /* in one operation for so long: it waits */
#define LEFT_MS 250  /* for asking one rank whether it has left */
#define REMEDY  ". Mend or restart what holds it up, or raise TUTTI_TIMEOUT"

/* What is asked about, and what all ranks of the parent have said. */
typedef struct {
  const tuttiOrigin *origin;
  const int32_t *ranks; /* [n] of the child */
  int n;
  tuttiCommSnapshot *parent;
} inquest;

/* Whether this rank of the parent is one of those that are missing. */
static bool isMissing(const inquest *q, int rank) {
  for (int i = 0; i < q->n; i++)
    if (tuttiOriginRank(q->origin, q->ranks[i]) == rank) return true;
  return false;
}

/* A missing rank waits for others in the parent. */
static bool anyWaits(const inquest *q) {
  for (int r = 0; r < q->parent->nranks; r++) {
    const tuttiRankView *v = &q->parent->ranks[r];
    if (isMissing(q, r) && v->told && v->facts.inside && v->facts.inMs >= WAIT_MS) return true;
  }
  return false;
}

/* Some other rank has answered. */
static bool anyAnswers(const inquest *q) {
  for (int r = 0; r < q->parent->nranks; r++)
    if (r != q->parent->asker && q->parent->ranks[r].told) return true;
  return false;
}

/* Ranks that were excluded do not keep anybody who is not in an operation with them: they may well
 * have been excluded because they are dead or stopped. */
static void forgetExcluded(const inquest *q) {
  const uint8_t *excluded = q->origin->excluded;
  for (int r = 0; excluded && r < q->parent->nranks; r++) {
    tuttiRankView *v = &q->parent->ranks[r];
    if (excluded[r] && !v->told) v->answer = (tuttiWatchAnswer){.answered = TUTTI_ANSWER_LEFT};
  }
}

/* The finding that tells most: who does not answer keeps those who do. What a shrink has made is no
 * cause: that it ended the parent, or excluded ranks. NULL: there is none. */
static const tuttiFinding *choose(const tuttiFinding *found, int n, bool waits) {
  static const tuttiVerdictKind first[] = {tuttiVerdictDead, tuttiVerdictStopped,
                                           tuttiVerdictSilent};
  for (size_t k = 0; k < sizeof first / sizeof *first; k++)
    for (int i = 0; i < n; i++)
      if (found[i].kind == first[k]) return &found[i];
  for (int i = 0; i < n; i++) {
    tuttiVerdictKind kind = found[i].kind;
    bool made = kind == tuttiVerdictFailed || (kind == tuttiVerdictLeft && !waits);
    if (tuttiFindingIsBad(&found[i]) && !made) return &found[i];
  }
  return NULL;
}

/* "rank 2 is rank 4 (host a, pid 17) of ...", of those that are members of the parent; returns how
 * many these are. */
static int nameMissing(const inquest *q, char *text, size_t size) {
  int named = 0;
  for (int i = 0; i < q->n; i++) {
    char who[160];
    int rank = tuttiOriginRank(q->origin, q->ranks[i]);
    if (rank < 0 || rank >= q->parent->nranks) continue;
    tuttiAppend(text, size, "%srank %d is %s", named++ ? ", " : "", q->ranks[i],
                tuttiWhoText(&q->parent->ranks[rank].who, who, sizeof who));
  }
  if (named > 0)
    tuttiAppend(text, size, " of communicator %s, which this one is made of", q->parent->name);
  return named;
}

static void write(const inquest *q, char *text, size_t size) {
  tuttiFinding found[TUTTI_FINDINGS];
  if (!anyAnswers(q)) return;
  if (nameMissing(q, text, size) == 0) return; /* newcomers of a growth */
  bool waits = anyWaits(q);
  if (!waits) forgetExcluded(q);
  const tuttiFinding *f = choose(found, tuttiFindings(q->parent, found), waits);
  if (f)
    tuttiAppend(text, size, ", and there %.500s" REMEDY, f->text);
  else
    tuttiAppend(text, size,
                ", and waits for nobody there. See what it does, or raise TUTTI_TIMEOUT");
}

static bool hasFailed(const tuttiCommunicator *c) {
  return tuttiLoadAcquire32(&c->failed) != 0;
}

/* False: it was cut short, and of those who have not answered nothing is known. */
static bool ask(const tuttiAbsence *a, tuttiCommunicator *parent, tuttiSnapshot *all) {
  tuttiInquiry *q = NULL;
  bool over = false, failed = hasFailed(parent); /* a shrink goes on after that */
  if (!parent->watch || tuttiInquiryStart(parent->watch, a->kin.askMs, &q) != tuttiSuccess)
    return false;
  while (!hasFailed(a->child) && hasFailed(parent) == failed && !(over = tuttiInquiryStep(q)))
    tuttiNap(STEP_US);
  tuttiResult_t result = over ? tuttiRasCollect(&parent->told.source, q, all) : tuttiInternalError;
  tuttiInquiryClose(q);
  return result == tuttiSuccess && all->ncomms == 1;
}

static bool enter(const tuttiOrigin *origin, tuttiCommunicator **parent) {
  return tuttiHandleLives(origin->parent) &&
         tuttiHandleEnter(origin->parent, "the init of a communicator", parent) == tuttiSuccess;
}

/* Holding the parent has ended the scope of the init's errors. */
static void resume(const tuttiAbsence *a) {
  const tuttiCommunicator *c = a->child;
  tuttiErrorScope(a->call, c->options.name, c->rank, c->nranks);
}

static void explain(void *ctx, const int32_t *ranks, int n, char *text, size_t size) {
  const tuttiAbsence *a = ctx;
  tuttiCommunicator *parent;
  tuttiSnapshot all = {0};
  text[0] = 0;
  if (enter(a->origin, &parent)) {
    if (ask(a, parent, &all)) write(&(inquest){a->origin, ranks, n, &all.comms[0]}, text, size);
    tuttiSnapshotFree(&all);
    tuttiHandleLeave(parent);
  }
  tuttiErrorClear();
  resume(a);
}

/* By failures too: whoever has met one may have left because of it, and not have come. */
static bool doubts(void *ctx) {
  const tuttiAbsence *a = ctx;
  tuttiCommunicator *parent;
  bool ended = enter(a->origin, &parent);
  if (ended) {
    ended = hasFailed(parent);
    tuttiHandleLeave(parent);
  }
  tuttiErrorClear();
  resume(a);
  return ended;
}

/* The first of these ranks of the child that has left; -1: none. */
static int firstWhoLeft(const tuttiAbsence *a, tuttiCommunicator *parent, const int32_t *ranks,
                        int n) {
  tuttiWatchAnswer *answers;
  int found = -1;
  if (!parent->watch || tuttiAlloc((void **)&answers, (size_t)parent->nranks, sizeof *answers,
                                   "answers of ranks", &parent->memory) != tuttiSuccess)
    return -1;
  for (int i = 0; i < n && found < 0 && !hasFailed(a->child); i++) {
    int rank = tuttiOriginRank(a->origin, ranks[i]);
    if (rank >= 0 && rank < parent->nranks && tuttiCommHasLeft(parent, rank, LEFT_MS, answers))
      found = ranks[i];
  }
  tuttiFree(answers);
  return found;
}

static int leaves(void *ctx, const int32_t *ranks, int n, char *text, size_t size) {
  const tuttiAbsence *a = ctx;
  tuttiCommunicator *parent;
  char who[160];
  int rank = -1;
  if (enter(a->origin, &parent)) {
    if (hasFailed(parent)) rank = firstWhoLeft(a, parent, ranks, n);
    if (rank >= 0)
      snprintf(text, size,
               "rank %d will not come: it is %s of the communicator that this one is made of, and "
               "has left that by an abort or destroy; there, %.600s",
               rank, tuttiCommRankText(parent, tuttiOriginRank(a->origin, rank), who, sizeof who),
               parent->failure);
    tuttiHandleLeave(parent);
  }
  tuttiErrorClear();
  resume(a);
  return rank;
}

const tuttiKin *tuttiAbsenceInit(tuttiAbsence *a, const tuttiOrigin *origin,
                                 tuttiCommunicator *child, const char *call) {
  tuttiCommunicator *parent;
  *a = (tuttiAbsence){.origin = origin, .child = child, .call = call};
  if (!enter(origin, &parent)) return NULL;
  a->kin = (tuttiKin){.ctx = a,
                      .askMs = tuttiCommAskMs(parent),
                      .explain = explain,
                      .doubts = doubts,
                      .leaves = leaves};
  tuttiHandleLeave(parent);
  resume(a);
  return &a->kin;
}

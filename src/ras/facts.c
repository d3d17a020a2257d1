#include "ras/facts.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"

#define PHASE_TEXT(name, text) [tuttiPhase##name] = (text),
static const char *const phaseTexts[tuttiPhaseCount] = {TUTTI_PHASES(PHASE_TEXT)};

_Static_assert(sizeof(tuttiFacts) <= TUTTI_WATCH_REPORT, "a report carries the facts");
_Static_assert(sizeof(tuttiRankState) <= TUTTI_WATCH_STATE, "a heartbeat carries the state");

const char *tuttiPhaseText(int phase) {
  return phase >= 0 && phase < tuttiPhaseCount ? phaseTexts[phase] : "?";
}

static bool isSignature(const tuttiSignature *sig) {
  return sig->coll < tuttiCollCount && sig->type < tuttiNumTypes;
}

/* Ends a text, and takes out of it what a terminal would obey. */
static void tame(char *text, size_t size) {
  text[size - 1] = 0;
  for (char *c = text; *c; c++)
    if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?';
}

bool tuttiRankStateParse(const void *bytes, size_t size, tuttiRankState *out) {
  tuttiRankState s;
  if (size != sizeof s) return false;
  memcpy(&s, bytes, sizeof s);
  if (s.ended > s.started) return false;
  for (uint64_t i = 0; i < TUTTI_STATE_SIGS && i < s.started; i++)
    if (!isSignature(&s.last[i])) return false;
  tame(s.port, sizeof s.port);
  *out = s;
  return true;
}

/* Nanoseconds that can be: 18 years since a boot, and until the year 2079. Of such numbers all sums
 * and differences that clocks are compared by fit in an int64_t (ras/timeline.c). */
#define MOST_MONOTONIC (1ull << 59)
#define MOST_REALTIME  (6ull << 59)

/* Takes out of it stamps that cannot be; without a start it counts as not stamped. */
static void tameStamps(tuttiOpFacts *op) {
  bool hold =
      op->enqueued <= MOST_MONOTONIC && op->start <= MOST_MONOTONIC && op->end <= MOST_MONOTONIC;
  if (!hold) op->enqueued = op->start = op->end = 0;
}

static bool numbersHold(const tuttiFacts *f) {
  bool ranks = f->nranks > 0 && f->rank >= 0 && f->rank < f->nranks;
  bool codes =
      f->phase >= 0 && f->phase < tuttiPhaseCount && f->failed >= 0 && f->failed < tuttiNumResults;
  bool counts = f->nops <= TUTTI_FACTS_OPS && f->nwaits <= TUTTI_FACTS_WAITS &&
                f->nlinks <= TUTTI_FACTS_LINKS && f->ended <= f->started && f->nops <= f->started;
  bool clocks = f->now <= MOST_MONOTONIC && f->realtime <= MOST_REALTIME;
  return f->version == TUTTI_VERSION_CODE && ranks && codes && counts && clocks;
}

static bool signalsHold(const tuttiFacts *f) {
  if (f->awaitsSignals == 0) return true;
  return f->awaitsSignals == 1 && f->signals.peer >= 0 && f->signals.peer < f->nranks;
}

static bool tameLinks(tuttiFacts *f) {
  for (uint32_t i = 0; i < f->nlinks; i++) {
    tuttiLinkFacts *l = &f->links[i];
    bool holds = l->peer >= 0 && l->peer < f->nranks && l->peer != f->rank && l->rate > 0 &&
                 l->sends <= 1 && l->atLeast <= 1;
    if (!holds) return false;
    tame(l->via, sizeof l->via);
    for (int side = 0; side < 2; side++)
      tame(l->nic[side], sizeof l->nic[side]);
  }
  return true;
}

bool tuttiFactsParse(const void *bytes, size_t size, tuttiFacts *out) {
  if (size != sizeof *out) return false;
  memcpy(out, bytes, sizeof *out);
  if (!numbersHold(out)) return false;
  for (uint32_t i = 0; i < out->nops; i++) {
    if (!isSignature(&out->ops[i].sig)) return false;
    tameStamps(&out->ops[i]);
  }
  if (out->inside && !isSignature(&out->in)) return false;
  for (uint32_t i = 0; i < out->nwaits; i++) {
    tuttiWaitFacts *w = &out->waits[i];
    if (w->peer < -1 || w->peer >= out->nranks) return false;
    tame(w->via, sizeof w->via);
    tame(w->text, sizeof w->text);
  }
  if (!tameLinks(out) || !signalsHold(out)) return false;
  tame(out->name, sizeof out->name);
  tame(out->host, sizeof out->host);
  tame(out->failure, sizeof out->failure);
  return true;
}

tuttiResult_t tuttiSnapshotAdd(tuttiSnapshot *s, uint64_t hash, uint64_t key, int nranks,
                               tuttiCommSnapshot **out) {
  TUTTI_TRY(tuttiGrow((void **)&s->comms, s->ncomms, &s->capacity, sizeof *s->comms,
                      "what is known of communicators", NULL));
  tuttiCommSnapshot *c = &s->comms[s->ncomms];
  *c = (tuttiCommSnapshot){.hash = hash, .key = key, .nranks = nranks};
  TUTTI_NEW(c->ranks, nranks, "what is known of ranks", NULL);
  for (int r = 0; r < nranks; r++)
    c->ranks[r].who.rank = r;
  s->ncomms++;
  *out = c;
  return tuttiSuccess;
}

void tuttiSnapshotFree(tuttiSnapshot *s) {
  for (int i = 0; i < s->ncomms; i++)
    tuttiFree(s->comms[i].ranks);
  tuttiFree(s->comms);
  *s = (tuttiSnapshot){0};
}

void tuttiRankViewMerge(tuttiRankView *to, const tuttiRankView *from) {
  if (from->who.host[0]) to->who = from->who;
  if (from->process) to->process = from->process;
  if (from->told && (!to->told || from->facts.now > to->facts.now)) {
    to->told = 1;
    to->facts = from->facts;
  }
  const tuttiWatchAnswer *a = &from->answer;
  bool better = a->answered != TUTTI_ANSWER_NONE && to->answer.answered != TUTTI_ANSWER_OWN;
  if (a->answered == TUTTI_ANSWER_HEARSAY && to->answer.answered == TUTTI_ANSWER_HEARSAY)
    better = a->ageMs < to->answer.ageMs;
  if (better) to->answer = *a;
}

bool tuttiRankViewState(const tuttiRankView *r, tuttiRankState *out) {
  const tuttiFacts *f = &r->facts;
  if (!r->told)
    return r->answer.answered != TUTTI_ANSWER_NONE &&
           tuttiRankStateParse(r->answer.state, r->answer.bytes, out);
  *out = (tuttiRankState){.started = f->started, .ended = f->ended, .offer = f->offer};
  for (uint32_t i = 0; i < TUTTI_STATE_SIGS && i < f->nops; i++)
    out->last[i] = f->ops[i].sig;
  return true;
}

#include "ras/verdict.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

#define HANG_MS 500 /* in one operation for so long: it waits */
#define NAMED   4   /* ranks that a sentence names */
#define PATHS   3   /* waits that a sentence tells */

#define VERDICT_WORD(name, word) [tuttiVerdict##name] = (word),
const char *const tuttiVerdictWords[tuttiVerdictCount] = {TUTTI_VERDICTS(VERDICT_WORD)};

/* ---- sentences ------------------------------------------------------------------------------ */

const char *tuttiWhoText(const tuttiWho *who, char *buf, size_t size) {
  if (who->host[0])
    snprintf(buf, size, "rank %d (host %.63s, pid %d)", who->rank, who->host, who->pid);
  else
    snprintf(buf, size, "rank %d", who->rank); /* nobody who was asked has met it */
  return buf;
}

void tuttiMismatchText(const char *name, uint64_t hash, const tuttiWho *a,
                       const tuttiSignature *mine, const tuttiWho *b, const tuttiSignature *theirs,
                       char *buf, size_t size) {
  char me[160], them[160], mySig[160], theirSig[160];
  snprintf(buf, size,
           "ranks disagree on an operation of communicator %s (%016" PRIx64 "): %s called %s, %s "
           "called %s. Every rank must call the same collectives in the same order with the same "
           "count, type, reduction and root",
           name, hash, tuttiWhoText(a, me, sizeof me),
           tuttiSignatureText(mine, mySig, sizeof mySig), tuttiWhoText(b, them, sizeof them),
           theirs ? tuttiSignatureText(theirs, theirSig, sizeof theirSig) : "something else");
}

/* For a message of a pair the numbers are the pair's own and tell nothing here. */
bool tuttiStateDisagrees(const tuttiSignature *mine, const tuttiRankState *state,
                         tuttiSignature *theirs) {
  if (mine->coll == tuttiCollSendRecv) return false;
  for (uint64_t i = 0; i < TUTTI_STATE_SIGS && i < state->started; i++) {
    const tuttiSignature *s = &state->last[i];
    if (s->coll == tuttiCollSendRecv || s->seq != mine->seq) continue;
    if (tuttiSignatureEqual(s, mine)) return false;
    *theirs = *s;
    return true;
  }
  return false;
}

/* Number of the last collective a rank has called, as far as its state tells. */
static uint64_t lastCollective(const tuttiRankState *state) {
  for (uint64_t i = 0; i < TUTTI_STATE_SIGS && i < state->started; i++)
    if (state->last[i].coll != tuttiCollSendRecv) return state->last[i].seq;
  return 0;
}

bool tuttiStateIsLate(const tuttiSignature *mine, int peer, int rank, const tuttiRankState *state) {
  return mine->coll == tuttiCollSendRecv ? rank == peer : lastCollective(state) < mine->seq;
}

bool tuttiLateText(const tuttiSignature *mine, int peer, const tuttiWho *who,
                   const tuttiWatchAnswer *answer, const tuttiRankState *state, char *buf,
                   size_t size) {
  char name[160], sig[160];
  tuttiWhoText(who, name, sizeof name);
  bool inside = state && state->started > state->ended;
  const char *last =
      state && state->started ? tuttiSignatureText(&state->last[0], sig, sizeof sig) : NULL;
  switch (answer->answered) {
  case TUTTI_ANSWER_LEFT:
    if (state && mine->coll != tuttiCollSendRecv && !tuttiStateIsLate(mine, peer, who->rank, state))
      return false; /* it had done its part */
    snprintf(buf, size, "%s has destroyed its communicator", name);
    return true;
  case TUTTI_ANSWER_OWN:
    if (!state || !tuttiStateIsLate(mine, peer, who->rank, state)) return false;
    snprintf(buf, size, "%s answers but %s %s", name,
             inside ? "is still in" : "has not called it yet; it last finished", last ?: "nothing");
    return true;
  default:
    if (state)
      snprintf(buf, size,
               "%s does not answer (stopped?); its last heartbeat, %.1f s ago, said it %s %s", name,
               answer->ageMs / 1e3, inside ? "was in" : "had done", last ?: "nothing yet");
    else
      snprintf(buf, size, "%s does not answer (stopped, or its host is overloaded)", name);
    return true;
  }
}

const char *tuttiTroubleText(const tuttiWho *who, const tuttiRankState *state, char *buf,
                             size_t size) {
  char name[160];
  int down = state->portsDown, broken = state->broken;
  buf[0] = '\0';
  if (down == 0 && broken == 0) return buf;
  snprintf(buf, size, "; %s: ", tuttiWhoText(who, name, sizeof name));
  if (down == 1) tuttiAppend(buf, size, "port %s is down", state->port);
  if (down > 1) tuttiAppend(buf, size, "port %s and %d more are down", state->port, down - 1);
  if (broken)
    tuttiAppend(buf, size, "%s%d connection%s being made anew", down ? ", " : "", broken,
                broken == 1 ? " is" : "s are");
  return buf;
}

void tuttiWaitText(const tuttiWaitFacts *w, char *buf, size_t size) {
  char peer[48] = "all ranks of its host", since[32] = "";
  if (w->peer >= 0) snprintf(peer, sizeof peer, "rank %d", w->peer);
  if (w->sinceMs > 0) snprintf(since, sizeof since, " since %.1f s", w->sinceMs / 1e3);
  const char *verb = w->awaited ? "waits for" : w->sends ? "is sending to" : "is receiving from";
  snprintf(buf, size, "%s %s on channel %d via %s%s: %" PRIu64 " messages %s, %" PRIu64 " %s%s%s",
           verb, peer, w->channel, w->via, since, w->written, w->sends ? "sent" : "come", w->taken,
           w->sends ? "acknowledged" : "taken", w->text[0] ? "; " : "", w->text);
}

const char *tuttiSignalsText(const tuttiSignalFacts *s, const tuttiWho *peer, char *buf,
                             size_t size) {
  char who[160];
  tuttiWhoText(peer, who, sizeof who);
  if (s->wanted == 0)
    snprintf(buf, size, "room to put to %s, which does not take what was put before", who);
  else
    snprintf(buf, size,
             "%" PRIu32 " signal%s of index %" PRIu32 " and context %" PRIu32
             " from %s, of which %" PRIu32 " ha%s come",
             s->wanted, s->wanted == 1 ? "" : "s", s->index, s->context, who, s->come,
             s->come == 1 ? "s" : "ve");
  return buf;
}

/* ---- what the ranks are at ------------------------------------------------------------------ */

/* A communicator, and what its findings are made of. */
typedef struct {
  const tuttiCommSnapshot *c;
  tuttiFinding *out;
  int n;
  tuttiSignature sig; /* what the waiting ranks are in: that of the highest number */
  int waiting,
      first; /* how many are in it for HANG_MS and more, and the first of these; -1: none */
  uint32_t longestMs;
} judgement;

static tuttiFinding *addFinding(judgement *j, tuttiVerdictKind kind) {
  if (j->n == TUTTI_FINDINGS) return NULL;
  tuttiFinding *f = &j->out[j->n++];
  *f = (tuttiFinding){.kind = kind};
  return f;
}

/* A list of ranks for a sentence: "ranks 1, 2 and 5 more". */
typedef struct {
  int n;
  char text[800];
} clauses;

static void addClause(clauses *list, const char *clause) {
  if (list->n++ >= NAMED) return;
  tuttiAppend(list->text, sizeof list->text, "%s%s", list->text[0] ? "; " : "", clause);
}

static void endClauses(clauses *list) {
  if (list->n > NAMED) tuttiAppend(list->text, sizeof list->text, "; and %d more", list->n - NAMED);
}

static bool isInside(const tuttiRankView *r) {
  return r->told && r->facts.inside;
}

/* Stopped, or gone, as its host's /proc says. */
static bool isStopped(const tuttiRankView *r) {
  return r->process == 'T' || r->process == 't';
}
static bool isGone(const tuttiRankView *r) {
  bool zombie = r->process == 'X' || r->process == 'Z';
  bool left = r->answer.answered == TUTTI_ANSWER_LEFT;
  return !left && (zombie || r->answer.answered == TUTTI_ANSWER_REFUSED);
}
static bool answers(const tuttiRankView *r) {
  return r->told && !isStopped(r) && !isGone(r);
}

static bool hasFailed(const tuttiRankView *r) {
  return r->told && r->facts.failed != tuttiSuccess;
}

/* What has failed waits for nothing more: its calls have returned, or are about to. */
static bool waits(const tuttiRankView *r) {
  return isInside(r) && r->facts.inMs >= HANG_MS && answers(r) && !hasFailed(r);
}

static void findWaiting(judgement *j) {
  j->first = -1;
  for (int r = 0; r < j->c->nranks; r++) {
    const tuttiRankView *v = &j->c->ranks[r];
    if (!waits(v)) continue;
    const tuttiSignature *sig = &v->facts.in;
    bool message = sig->coll == tuttiCollSendRecv;
    bool newer = j->first < 0 || (j->sig.coll == tuttiCollSendRecv && !message) ||
                 (!message && sig->seq > j->sig.seq);
    if (newer) {
      j->sig = *sig;
      j->first = r;
    }
  }
  for (int r = 0; j->first >= 0 && r < j->c->nranks; r++) {
    const tuttiRankView *v = &j->c->ranks[r];
    if (!waits(v)) continue;
    if (!tuttiSignatureEqual(&v->facts.in, &j->sig)) continue;
    j->waiting++;
    if (v->facts.inMs > j->longestMs) j->longestMs = v->facts.inMs;
  }
}

/* "3 ranks wait 12.3 s in #12 AllReduce(...)". */
static void waitingText(const judgement *j, char *buf, size_t size) {
  char sig[160];
  if (j->waiting == 1)
    snprintf(buf, size, "rank %d waits %.1f s in %s", j->first, j->longestMs / 1e3,
             tuttiSignatureText(&j->sig, sig, sizeof sig));
  else
    snprintf(buf, size, "%d ranks wait, the longest %.1f s, in %s", j->waiting, j->longestMs / 1e3,
             tuttiSignatureText(&j->sig, sig, sizeof sig));
}

/* ---- findings ------------------------------------------------------------------------------- */

static bool findFailure(judgement *j) {
  for (int r = 0; r < j->c->nranks; r++) {
    const tuttiRankView *v = &j->c->ranks[r];
    tuttiFinding *f = hasFailed(v) ? addFinding(j, tuttiVerdictFailed) : NULL;
    if (!f) continue;
    snprintf(f->text, sizeof f->text, "it has failed: %s", v->facts.failure);
    return true;
  }
  return false;
}

static void findDead(judgement *j) {
  clauses list = {0};
  char who[160];
  for (int r = 0; r < j->c->nranks; r++)
    if (isGone(&j->c->ranks[r]))
      addClause(&list, tuttiWhoText(&j->c->ranks[r].who, who, sizeof who));
  endClauses(&list);
  tuttiFinding *f = list.n > 0 ? addFinding(j, tuttiVerdictDead) : NULL;
  if (f)
    snprintf(f->text, sizeof f->text,
             "%s died: the process is gone, or nobody listens there any more (killed, crashed, or "
             "exited without tuttiCommDestroy)",
             list.text);
}

/* Those who have called what the waiting ranks are in, and those who called something else by the
 * same number: how many, the first of each, and what that was. */
typedef struct {
  int same, others, one, other;
  tuttiSignature theirs;
} sides;

static sides takeSides(const judgement *j) {
  sides s = {.one = -1, .other = -1};
  for (int r = 0; r < j->c->nranks; r++) {
    tuttiRankState state;
    tuttiSignature found;
    if (!tuttiRankViewState(&j->c->ranks[r], &state)) continue;
    if (tuttiStateDisagrees(&j->sig, &state, &found)) {
      if (s.others++ > 0) continue;
      s.other = r;
      s.theirs = found;
    } else if (lastCollective(&state) >= j->sig.seq && s.same++ == 0) {
      s.one = r;
    }
  }
  return s;
}

static void findMismatch(judgement *j) {
  if (j->first < 0) return;
  sides s = takeSides(j);
  tuttiFinding *f = s.other >= 0 && s.one >= 0 ? addFinding(j, tuttiVerdictMismatch) : NULL;
  if (!f) return;
  const tuttiCommSnapshot *c = j->c;
  const tuttiWho *one = &c->ranks[s.one].who, *other = &c->ranks[s.other].who;
  bool turned = s.others > s.same; /* the few are named second */
  if (turned)
    tuttiMismatchText(c->name, c->hash, other, &s.theirs, one, &j->sig, f->text, sizeof f->text);
  else
    tuttiMismatchText(c->name, c->hash, one, &j->sig, other, &s.theirs, f->text, sizeof f->text);
  int alike = turned ? s.others : s.same;
  if (alike > 1)
    tuttiAppend(f->text, sizeof f->text, " (%d ranks called what rank %d did)", alike,
                turned ? other->rank : one->rank);
}

/* A kind of rank that others wait for, or would: its clauses, and if somebody waits, who. */
static void findLate(judgement *j, tuttiVerdictKind kind,
                     bool (*is)(const judgement *, const tuttiRankView *)) {
  clauses list = {0};
  for (int r = 0; r < j->c->nranks; r++) {
    const tuttiRankView *v = &j->c->ranks[r];
    tuttiRankState state;
    char clause[400];
    if (!is(j, v)) continue;
    bool known = tuttiRankViewState(v, &state);
    bool told = kind != tuttiVerdictMissing;
    tuttiWatchAnswer answer = v->answer;
    if (told && answer.answered == TUTTI_ANSWER_OWN) answer.answered = TUTTI_ANSWER_HEARSAY;
    if (!tuttiLateText(&j->sig, -1, &v->who, &answer, known ? &state : NULL, clause, sizeof clause))
      continue;
    if (isStopped(v))
      tuttiAppend(clause, sizeof clause, "; its process is stopped (SIGSTOP, or a debugger)");
    addClause(&list, clause);
  }
  endClauses(&list);
  tuttiFinding *f = list.n > 0 ? addFinding(j, kind) : NULL;
  if (!f) return;
  if (j->first >= 0) waitingText(j, f->text, sizeof f->text);
  tuttiAppend(f->text, sizeof f->text, "%s%s", f->text[0] ? ": " : "", list.text);
}

static bool isMissing(const judgement *j, const tuttiRankView *r) {
  tuttiRankState state;
  return j->first >= 0 && j->sig.coll != tuttiCollSendRecv && answers(r) &&
         r->answer.answered == TUTTI_ANSWER_OWN && tuttiRankViewState(r, &state) &&
         lastCollective(&state) < j->sig.seq;
}

static bool isStoppedRank(const judgement *j, const tuttiRankView *r) {
  (void)j;
  return isStopped(r);
}

static bool isSilent(const judgement *j, const tuttiRankView *r) {
  (void)j;
  bool silent =
      r->answer.answered == TUTTI_ANSWER_NONE || r->answer.answered == TUTTI_ANSWER_HEARSAY;
  return silent && !r->told && !isStopped(r) && !isGone(r);
}

/* One who has left keeps nobody waiting, unless somebody waits. */
static bool hasLeft(const judgement *j, const tuttiRankView *r) {
  return j->first >= 0 && r->answer.answered == TUTTI_ANSWER_LEFT;
}

static bool hasCalled(const tuttiFacts *f, const tuttiSignature *sig) {
  for (uint32_t i = 0; i < f->nops; i++)
    if (tuttiSignatureEqual(&f->ops[i].sig, sig)) return true;
  return false;
}

/* The rank that a kernel of `v` waits for, if it has called what `v` is in and no kernel of its own
 * waits for anything; NULL: there is none. */
static const tuttiRankView *notBegunFor(const judgement *j, const tuttiRankView *v) {
  for (uint32_t i = 0; i < v->facts.nwaits; i++) {
    const tuttiWaitFacts *w = &v->facts.waits[i];
    if (!w->awaited || w->peer < 0) continue;
    const tuttiRankView *p = &j->c->ranks[w->peer];
    bool onGpu = v->facts.device >= 0 && answers(p) && p->facts.device >= 0;
    if (onGpu && !isInside(p) && hasCalled(&p->facts, &v->facts.in)) return p;
  }
  return NULL;
}

/* Kernels begin when their stream comes to them. */
static void findNotBegun(judgement *j) {
  clauses list = {0};
  const tuttiRankView *named = NULL;
  char who[160];
  for (int r = 0; j->first >= 0 && r < j->c->nranks; r++) {
    const tuttiRankView *v = &j->c->ranks[r], *p = waits(v) ? notBegunFor(j, v) : NULL;
    if (!p || p == named) continue;
    named = p;
    addClause(&list, tuttiWhoText(&p->who, who, sizeof who));
  }
  endClauses(&list);
  tuttiFinding *f = list.n > 0 ? addFinding(j, tuttiVerdictNotBegun) : NULL;
  if (!f) return;
  waitingText(j, f->text, sizeof f->text);
  tuttiAppend(
      f->text, sizeof f->text,
      ": %s called it, but the kernel has not begun: its stream waits for what was enqueued "
      "before (a copy, a kernel, an event or a host function), or other kernels fill the GPU",
      list.text);
}

/* The peer of the first message that a rank waits in, if that peer itself waits for nothing. */
static void findPeer(judgement *j) {
  if (j->first < 0 || j->sig.coll != tuttiCollSendRecv) return;
  if (j->n > 0 && j->out[j->n - 1].kind == tuttiVerdictNotBegun) return; /* it has come */
  for (int r = 0; r < j->c->nranks; r++) {
    const tuttiRankView *v = &j->c->ranks[r];
    if (!isInside(v) || v->facts.inMs < HANG_MS || v->facts.nwaits == 0) continue;
    int peer = v->facts.waits[0].peer;
    if (peer < 0 || !answers(&j->c->ranks[peer]) || waits(&j->c->ranks[peer])) continue;
    const tuttiRankView *p = &j->c->ranks[peer];
    tuttiRankState state;
    char sig[160], clause[400];
    const tuttiSignature *mine = &v->facts.in;
    if (!tuttiRankViewState(p, &state) ||
        !tuttiLateText(mine, peer, &p->who, &p->answer, &state, clause, sizeof clause))
      continue;
    tuttiFinding *f = addFinding(j, tuttiVerdictPeer);
    if (f)
      snprintf(f->text, sizeof f->text, "rank %d waits %.1f s in %s: %s", r, v->facts.inMs / 1e3,
               tuttiSignatureText(mine, sig, sizeof sig), clause);
    return;
  }
}

/* What a rank is at that others wait for, as a clause; "" where a finding of its own says it. */
static void peerText(const tuttiRankView *p, char *buf, size_t size) {
  char sig[160];
  buf[0] = 0;
  if (!answers(p)) return;
  const tuttiFacts *f = &p->facts;
  if (f->inside)
    snprintf(buf, size, "; that one is in %s since %.1f s",
             tuttiSignatureText(&f->in, sig, sizeof sig), f->inMs / 1e3);
  else if (f->awaitsSignals)
    snprintf(buf, size, "; that one waits itself, for rank %d", f->signals.peer);
  else
    snprintf(buf, size, "; that one answers, and is in no operation");
}

/* Ranks that wait for signals. */
static void findSignals(judgement *j) {
  clauses list = {0};
  for (int r = 0; r < j->c->nranks; r++) {
    const tuttiRankView *v = &j->c->ranks[r];
    const tuttiSignalFacts *s = &v->facts.signals;
    char clause[700], text[300], peer[240] = "";
    if (!answers(v) || !v->facts.awaitsSignals || s->sinceMs < HANG_MS) continue;
    const tuttiRankView *p = &j->c->ranks[s->peer];
    if (p != v) peerText(p, peer, sizeof peer);
    snprintf(clause, sizeof clause, "rank %d waits %.1f s for %s%s", r, s->sinceMs / 1e3,
             tuttiSignalsText(s, &p->who, text, sizeof text), peer);
    addClause(&list, clause);
  }
  endClauses(&list);
  tuttiFinding *f = list.n > 0 ? addFinding(j, tuttiVerdictPeer) : NULL;
  if (f) snprintf(f->text, sizeof f->text, "%s", list.text);
}

/* All are in it, or what they wait for is not said yet: what the ranks wait for themselves, first
 * those endpoints that have something to say. */
static void findPath(judgement *j) {
  clauses list = {0};
  if (j->first < 0 || j->n > 0) return;
  for (int pass = 0; pass < 2 && list.n < PATHS; pass++) {
    for (int r = 0; r < j->c->nranks && list.n < PATHS; r++) {
      const tuttiFacts *f = &j->c->ranks[r].facts;
      for (uint32_t i = 0; j->c->ranks[r].told && i < f->nwaits && list.n < PATHS; i++) {
        char wait[400], clause[440];
        if ((f->waits[i].text[0] == 0) != (pass == 1)) continue;
        tuttiWaitText(&f->waits[i], wait, sizeof wait);
        snprintf(clause, sizeof clause, "rank %d %s", r, wait);
        addClause(&list, clause);
      }
    }
  }
  tuttiFinding *f = addFinding(j, tuttiVerdictPath);
  if (!f) return;
  waitingText(j, f->text, sizeof f->text);
  tuttiAppend(f->text, sizeof f->text, ": every rank is in it: a slow or broken path%s%s",
              list.text[0] ? ": " : "", list.text);
}

/* Its ranks have not all met: who of them is known to have come. */
static void findJoining(judgement *j) {
  const tuttiCommSnapshot *c = j->c;
  clauses missing = {0};
  int joining = 0;
  uint32_t longest = 0;
  for (int r = 0; r < c->nranks; r++) {
    const tuttiRankView *v = &c->ranks[r];
    char who[160];
    bool joins = v->told && v->facts.phase <= tuttiPhaseConnecting;
    joining += joins;
    if (joins && v->facts.phaseMs > longest) longest = v->facts.phaseMs;
    if (!v->told) addClause(&missing, tuttiWhoText(&v->who, who, sizeof who));
  }
  endClauses(&missing);
  tuttiFinding *f = joining > 0 ? addFinding(j, tuttiVerdictJoining) : NULL;
  if (!f) return;
  snprintf(f->text, sizeof f->text,
           "it is being made, %d of %d ranks are in its init, the longest for %.1f s", joining,
           c->nranks, longest / 1e3);
  if (missing.n > 0)
    tuttiAppend(f->text, sizeof f->text, "; not seen to have called it: %s", missing.text);
}

static void findNothing(judgement *j) {
  uint64_t most = 0;
  bool inside = false;
  for (int r = 0; r < j->c->nranks; r++) {
    const tuttiRankView *v = &j->c->ranks[r];
    tuttiRankState state;
    if (!tuttiRankViewState(v, &state)) continue;
    if (state.started > most) most = state.started;
    inside |= v->told ? isInside(v) : state.started > state.ended;
  }
  tuttiFinding *f = addFinding(j, inside ? tuttiVerdictRunning : tuttiVerdictIdle);
  if (!f) return;
  if (inside)
    snprintf(f->text, sizeof f->text,
             "it runs: no rank has been in one operation for %.1f s or more; %" PRIu64
             " operations so far",
             HANG_MS / 1e3, most);
  else
    snprintf(f->text, sizeof f->text, "it is idle: no rank is in an operation; %" PRIu64 " so far",
             most);
}

int tuttiFindings(const tuttiCommSnapshot *c, tuttiFinding out[TUTTI_FINDINGS]) {
  judgement j = {.c = c, .out = out, .first = -1};
  findWaiting(&j);
  bool failed = findFailure(&j);
  findDead(&j);
  findMismatch(&j);
  if (c->hash != 0) {
    findLate(&j, tuttiVerdictMissing, isMissing);
    findLate(&j, tuttiVerdictStopped, isStoppedRank);
    if (!failed) findLate(&j, tuttiVerdictSilent, isSilent); /* else that says why */
    findLate(&j, tuttiVerdictLeft, hasLeft);
  }
  findNotBegun(&j);
  findPeer(&j);
  findSignals(&j);
  findPath(&j);
  findJoining(&j);
  if (j.n == 0) findNothing(&j);
  return j.n;
}

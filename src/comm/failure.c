/* How a communicator fails: the first failure wins, reaches every rank through the watch, and ends
 * every wait. Also what an executor asks when nothing moves: is one late, does one disagree. */
#include "comm/failure.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/backoff.h"
#include "base/log.h"
#include "base/os.h"
#include "base/settings.h"
#include "comm/communicator.h"
#include "comm/deaths.h"
#include "comm/facts.h"
#include "ras/verdict.h"

/* First question after so much waiting, then at every doubling; the log speaks from WARN_MS on. */
#define FIRST_ASK_MS  500
#define WARN_MS       10000
#define GRACE_NS      500000000u
#define ASK_MS        1000 /* at most, and where TLS makes it long, no more than MAX_ASK_MS */
#define MAX_ASK_MS    10000
#define ASK_TIMES     8  /* who asks has waited so many times as long as asking takes */
#define ASK_ALL_RANKS 64 /* larger communicators ask everyone only at the deadline */
/* So many times as long as before the first question passes between two about an awaited rank. */
#define LEFT_TIMES 4
/* What a rank has sent over a network before it left may be on its way for so long. */
#define LEFT_NETWORK_MS 10000

/* True if that is the first failure; *watch is what the others can be told with, or NULL. */
static bool setFailure(tuttiCommunicator *c, tuttiResult_t code, const char *text, bool ended,
                       tuttiWatch **watch) {
  TUTTI_LOCKED(&c->failureLock);
  *watch = c->watch;
  if (tuttiLoadRelaxed32(&c->failed) != 0) return false;
  snprintf(c->failure, sizeof c->failure, "%s", text);
  c->ended = ended;
  tuttiStoreRelease32(&c->failed, (uint32_t)code);
  return true;
}

void tuttiCommFailText(tuttiCommunicator *c, tuttiResult_t code, const char *text, bool tell) {
  tuttiWatch *watch;
  if (!setFailure(c, code, text, false, &watch)) return;
  if (tell && watch) tuttiWatchFail(watch, code, text);
  tuttiBirthsFail(c, code, text);
}

void tuttiCommEndText(tuttiCommunicator *c, tuttiResult_t code, const char *text) {
  tuttiWatch *watch;
  if (setFailure(c, code, text, true, &watch) && watch) tuttiWatchEnd(watch, code, text);
}

void tuttiCommFailAlone(tuttiCommunicator *c, tuttiResult_t code, const char *text) {
  tuttiWatch *watch;
  setFailure(c, code, text, true, &watch);
}

tuttiResult_t tuttiCommFail(tuttiCommunicator *c, tuttiResult_t code) {
  tuttiCommFailText(c, code, tuttiErrorText(), true);
  return tuttiCommFailure(c);
}

void tuttiCommSuspect(tuttiCommunicator *c, tuttiResult_t code, const char *text, bool ended) {
  TUTTI_LOCKED(&c->failureLock);
  if (tuttiLoadRelaxed(&c->suspectedAt) != 0) return;
  c->suspectsEnd = ended;
  snprintf(c->suspicion, sizeof c->suspicion, "%s", text);
  c->suspicionCode = code;
  tuttiStoreRelease(&c->suspectedAt, tuttiNow());
}

tuttiResult_t tuttiCommFailLate(tuttiCommunicator *c, tuttiResult_t code) {
  tuttiBackoff pause = {0};
  if (code != tuttiRemoteError) return tuttiCommFail(c, code);
  tuttiCommSuspect(c, code, tuttiErrorText(), false);
  while ((code = tuttiCommFailure(c)) == tuttiSuccess)
    tuttiBackoffPause(&pause);
  return code;
}

/* Nothing with a better cause has come. */
static void failAsSuspected(tuttiCommunicator *c) {
  tuttiWatch *watch;
  if (!c->suspectsEnd)
    tuttiCommFailText(c, c->suspicionCode, c->suspicion, true);
  else if (setFailure(c, c->suspicionCode, c->suspicion, true, &watch) && watch)
    tuttiWatchFail(watch, c->suspicionCode, c->suspicion);
}

tuttiResult_t tuttiCommFailure(void *comm) {
  tuttiCommunicator *c = comm;
  uint64_t suspectedAt = tuttiLoadAcquire(&c->suspectedAt);
  if (suspectedAt != 0 && tuttiNow() - suspectedAt > GRACE_NS) failAsSuspected(c);
  tuttiResult_t code = (tuttiResult_t)tuttiLoadAcquire32(&c->failed);
  if (code == tuttiSuccess) return tuttiSuccess;
  return tuttiErrorAdopt(code, c->failure); /* never written again once `failed` is set */
}

tuttiResult_t tuttiCommFailureSeen(void *comm) {
  const tuttiCommunicator *c = comm;
  bool left = tuttiLoadAcquire(&c->suspectedAt) != 0 && c->suspectsEnd;
  /* The watch has told, so there is a device; before, an init may be choosing it. */
  bool goesOn = left && c->device->kind == tuttiDeviceCuda;
  if (goesOn && tuttiLoadAcquire32(&c->failed) == 0) return tuttiSuccess;
  return tuttiCommFailure(comm);
}

tuttiResult_t tuttiCommAwait(tuttiCommunicator *c, bool (*what)(tuttiCommunicator *c), bool fails,
                             const char *late, const char *why) {
  uint64_t deadline = tuttiDeadline(c->options.timeoutMs);
  tuttiBackoff pause = {0};
  while (!what(c)) {
    if (fails) TUTTI_TRY(tuttiCommFailure(c));
    if (tuttiNow() > deadline)
      return TUTTI_FAIL(tuttiTimeout, "%s within %.1f s%s", late,
                        (double)c->options.timeoutMs / 1e3, why);
    tuttiBackoffPause(&pause);
  }
  return fails ? tuttiCommFailure(c) : tuttiSuccess; /* what has ended may have ended by failing */
}

static const tuttiWho *whoIs(const tuttiCommunicator *c, int rank, tuttiWho *out) {
  const tuttiPeer *peer = &c->wireup.peers[rank];
  *out = (tuttiWho){.rank = rank, .pid = peer->pid};
  snprintf(out->host, sizeof out->host, "%s", peer->host);
  return out;
}

const char *tuttiCommRankText(const tuttiCommunicator *c, int rank, char *buf, size_t size) {
  tuttiWho who;
  return tuttiWhoText(whoIs(c, rank, &who), buf, size);
}

void tuttiCommTellAbort(tuttiCommunicator *c) {
  char who[160], whoDied[160], text[400];
  pthread_mutex_lock(&c->failureLock); /* an init under way may be making it */
  tuttiWatch *watch = c->watch;
  pthread_mutex_unlock(&c->failureLock);
  if (!watch) return;
  tuttiCommRankText(c, c->rank, who, sizeof who);
  int dead = tuttiCommDead(c);
  if (dead >= 0) /* as another communicator has shown: that is why */
    snprintf(text, sizeof text, "%s died, and %s aborted the communicator",
             tuttiCommRankText(c, dead, whoDied, sizeof whoDied), who);
  else
    snprintf(text, sizeof text, "%s aborted the communicator. Remedy: see its log for why", who);
  if (dead >= 0)
    tuttiWatchFail(watch, tuttiRemoteError, text);
  else
    tuttiWatchEnd(watch, tuttiRemoteError, text);
}

tuttiResult_t tuttiCommMismatch(void *comm, int peer, const tuttiSignature *mine,
                                const tuttiSignature *theirs) {
  tuttiCommunicator *c = comm;
  char text[TUTTI_ERROR_TEXT];
  tuttiWho me, them;
  tuttiMismatchText(c->options.name, c->view.commHash, whoIs(c, c->rank, &me), mine,
                    whoIs(c, peer, &them), theirs, text, sizeof text);
  TUTTI_FAIL(tuttiInvalidUsage, "%s", text);
  return tuttiCommFail(c, tuttiInvalidUsage);
}

/* No rank is late: what is known of the path. */
static void tellPath(tuttiCommunicator *c, int peer, char *text, size_t size) {
  char who[160], path[600];
  if (peer >= 0)
    snprintf(text, size, "it waits for %s, which has called it too: a slow or broken path",
             tuttiCommRankText(c, peer, who, sizeof who));
  else
    snprintf(text, size, "every rank is in it: a slow or broken path");
  tuttiCommPathText(c, peer, path, sizeof path);
  if (path[0]) tuttiAppend(text, size, ": %s", path);
}

/* Whose network is being mended, which holds up others until it is given up: into text. */
static void listTrouble(tuttiCommunicator *c, const tuttiWatchAnswer *answers, char *text,
                        size_t size) {
  int n = 0;
  text[0] = 0;
  for (int r = 0; r < c->nranks; r++) {
    tuttiWho who;
    tuttiRankState state = {0};
    char clause[300];
    if (r == c->rank)
      tuttiCommFillState(c, &state);
    else if (answers[r].answered == TUTTI_ANSWER_NONE ||
             !tuttiRankStateParse(answers[r].state, answers[r].bytes, &state))
      continue;
    tuttiTroubleText(whoIs(c, r, &who), &state, clause, sizeof clause);
    if (clause[0] && n++ < 2) tuttiAppend(text, size, "%s", clause);
  }
  if (n > 2) tuttiAppend(text, size, "; and the networks of %d more", n - 2);
}

/* The list of late ranks, into text. */
static void listLate(tuttiCommunicator *c, const tuttiSignature *mine, int peer,
                     const tuttiWatchAnswer *answers, char *text, size_t size) {
  int late = 0;
  text[0] = 0;
  for (int r = 0; r < c->nranks; r++) {
    char clause[400];
    tuttiWho who;
    tuttiRankState state;
    bool known = answers[r].answered != TUTTI_ANSWER_NONE &&
                 tuttiRankStateParse(answers[r].state, answers[r].bytes, &state);
    if (r == c->rank || !tuttiLateText(mine, peer, whoIs(c, r, &who), &answers[r],
                                       known ? &state : NULL, clause, sizeof clause))
      continue;
    if (late++ >= 4) continue;
    tuttiAppend(text, size, "%s%s", text[0] ? "; " : "", clause);
  }
  if (late > 4) tuttiAppend(text, size, "; and %d more", late - 4);
  if (late == 0) tellPath(c, peer, text, size);
}

/* The first rank whose state shows another collective of the number of `mine`; -1: none does. */
static int findDisagreeing(const tuttiCommunicator *c, const tuttiSignature *mine,
                           const tuttiWatchAnswer *answers, tuttiSignature *theirs) {
  for (int r = 0; r < c->nranks; r++) {
    tuttiRankState state;
    if (r == c->rank || answers[r].answered == TUTTI_ANSWER_NONE) continue;
    if (!tuttiRankStateParse(answers[r].state, answers[r].bytes, &state)) continue;
    if (tuttiStateDisagrees(mine, &state, theirs)) return r;
  }
  return -1;
}

int tuttiCommAskMs(const tuttiCommunicator *c) {
  int64_t ms = 2 * tuttiBootstrapAskingMs(c->bootstrap);
  return ms < ASK_MS ? ASK_MS : ms > MAX_ASK_MS ? MAX_ASK_MS : (int)ms;
}

uint64_t tuttiCommFirstAskMs(const tuttiCommunicator *c) {
  uint64_t ms = ASK_TIMES * (uint64_t)tuttiBootstrapAskingMs(c->bootstrap);
  return ms < FIRST_ASK_MS ? FIRST_ASK_MS : ms;
}

/* Whether a rank that has waited so long asks the others now; then it does not before twice that
 * time. */
static bool shouldAsk(tuttiCommunicator *c, uint64_t waitedMs, bool expired) {
  if (waitedMs < c->stallAskAt / 2) c->stallAskAt = 0; /* a new wait */
  if (c->stallAskAt == 0) c->stallAskAt = tuttiCommFirstAskMs(c);
  bool due = waitedMs >= c->stallAskAt && c->nranks <= ASK_ALL_RANKS;
  if (!due && !expired) return false;
  c->stallAskAt = waitedMs * 2;
  return true;
}

bool tuttiCommHasLeft(tuttiCommunicator *c, int rank, int ms, tuttiWatchAnswer *answers) {
  int n = c->nranks, ask[] = {(rank + 1) % n, (rank + n - 1) % n, rank};
  for (int i = tuttiCommWell(c) ? 0 : 2; i < 3; i++) {
    if (tuttiWatchAsk(c->watch, ask[i], ms, answers) != tuttiSuccess) return false;
    int32_t answered = answers[rank].answered;
    if (answered == TUTTI_ANSWER_LEFT) return true;
    if (answered == TUTTI_ANSWER_OWN || answered == TUTTI_ANSWER_HEARSAY) return false;
  }
  return answers[rank].answered == TUTTI_ANSWER_REFUSED;
}

/* The first rank of this host that has left and not called what this one is in; -1: none. */
static int whoLeftHere(tuttiCommunicator *c, const tuttiSignature *mine,
                       tuttiWatchAnswer *answers) {
  tuttiRankState state;
  const tuttiPeer *peers = c->wireup.peers;
  if (c->nranks > ASK_ALL_RANKS ||
      tuttiWatchAsk(c->watch, -1, tuttiCommAskMs(c) / 4, answers) != tuttiSuccess)
    return -1;
  for (int r = 0; r < c->nranks; r++)
    if (answers[r].answered == TUTTI_ANSWER_LEFT && peers[r].hostId == peers[c->rank].hostId &&
        tuttiRankStateParse(answers[r].state, answers[r].bytes, &state) &&
        tuttiStateIsLate(mine, -1, r, &state))
      return r;
  return -1;
}

/* Whether a rank was seen to have left, not long ago. */
static bool suspects(const tuttiCommunicator *c, const tuttiLeftLook *look, uint64_t now) {
  uint64_t most = 2 * LEFT_TIMES * tuttiCommFirstAskMs(c) * TUTTI_MS;
  return look->seen != 0 && now - look->seenAt < most;
}

/* Whether it is time to ask if the awaited rank, -1: any of this host, has left. One that was seen
 * to have is asked about again soon, whatever other waits there are. */
static bool shouldLook(const tuttiCommunicator *c, tuttiLeftLook *look, int peer,
                       uint64_t waitedMs) {
  uint64_t now = tuttiNow(), first = tuttiCommFirstAskMs(c) * TUTTI_MS;
  bool network = peer >= 0 && c->wireup.paths[peer].network;
  if (waitedMs < (network ? LEFT_NETWORK_MS : tuttiCommFirstAskMs(c))) return false;
  bool again = suspects(c, look, now) && (peer < 0 || look->seen == peer + 1);
  if (now < (again ? look->seenAt + first : look->next)) return false;
  look->next = now + LEFT_TIMES * first;
  return true;
}

/* Rank `left` (-1: none) was found to have left: the communicator fails at the second time. */
static tuttiResult_t failAtSecond(tuttiCommunicator *c, tuttiLeftLook *look, int left,
                                  const char *what) {
  char who[160];
  TUTTI_TRY(tuttiCommFailure(c)); /* because of which it may have left */
  /* Or it has ended the communicator by an abort, which is being told: that says more. */
  if (left < 0 || !tuttiCommWell(c)) return tuttiSuccess;
  uint64_t now = tuttiNow();
  if (!suspects(c, look, now) || look->seen != left + 1) {
    look->seen = left + 1;
    look->seenAt = now;
    return tuttiSuccess;
  }
  TUTTI_FAIL(tuttiRemoteError,
             "rank %d waits %s: %s has destroyed its communicator and will not come. Remedy: see "
             "why it ended before the others (its log, its exception); all ranks must make the "
             "same calls",
             c->rank, what, tuttiCommRankText(c, left, who, sizeof who));
  return tuttiCommFail(c, tuttiRemoteError);
}

tuttiResult_t tuttiCommFailIfLeft(tuttiCommunicator *c, tuttiLeftLook *look, int peer,
                                  const char *what, uint64_t waitedMs) {
  if (peer == c->rank || !shouldLook(c, look, peer, waitedMs)) return tuttiSuccess;
  TUTTI_FRESH(tuttiWatchAnswer, answers, c->nranks, "answers of ranks", &c->memory);
  bool left = tuttiCommHasLeft(c, peer, tuttiCommAskMs(c) / 4, answers);
  return failAtSecond(c, look, left ? peer : -1, what);
}

/* The same for an operation; `peer` -1: any rank of this host is awaited, which takes a message for
 * all of them. */
static tuttiResult_t failIfLeft(tuttiCommunicator *c, const tuttiSignature *mine, int peer,
                                uint64_t waitedMs) {
  char sig[160], what[200];
  tuttiLeftLook *look = &c->leftOfOperations;
  snprintf(what, sizeof what, "in %s", tuttiSignatureText(mine, sig, sizeof sig));
  if (peer >= 0) return tuttiCommFailIfLeft(c, look, peer, what, waitedMs);
  if (!shouldLook(c, look, peer, waitedMs)) return tuttiSuccess;
  TUTTI_FRESH(tuttiWatchAnswer, answers, c->nranks, "answers of ranks", &c->memory);
  return failAtSecond(c, look, whoLeftHere(c, mine, answers), what);
}

/* Says who is late: to the log, or if the deadline has passed as the failure of `c`. */
static tuttiResult_t tellLate(tuttiCommunicator *c, const tuttiSignature *mine, int peer,
                              const tuttiWatchAnswer *answers, uint64_t waitedMs, bool expired) {
  char sig[160], late[700], trouble[400];
  double seconds = (double)waitedMs / 1e3;
  tuttiSignatureText(mine, sig, sizeof sig);
  listLate(c, mine, peer, answers, late, sizeof late);
  listTrouble(c, answers, trouble, sizeof trouble);
  if (!expired) {
    TUTTI_WARN(COLL, "rank %d waited %.1f s in %s: %s%s", c->rank, seconds, sig, late, trouble);
    return tuttiSuccess;
  }
  TUTTI_FAIL(tuttiTimeout,
             "rank %d waited %.1f s in %s: %s%s. Mend or restart the late rank, or raise "
             "TUTTI_TIMEOUT (now %.1f s)",
             c->rank, seconds, sig, late, trouble, (double)c->options.timeoutMs / 1e3);
  return tuttiCommFail(c, tuttiTimeout);
}

bool tuttiCommExpired(const tuttiCommunicator *c, uint64_t waitedMs) {
  int timeoutMs = c->options.timeoutMs;
  return timeoutMs > 0 && waitedMs >= (uint64_t)timeoutMs && tuttiCommWell(c);
}

bool tuttiCommIsHang(uint64_t waitedMs) {
  int64_t after = tuttiSettingInt(TUTTI_SETTING_HANG_AFTER);
  return after > 0 && waitedMs >= (uint64_t)after;
}

tuttiResult_t tuttiCommStalled(void *comm, const tuttiSignature *mine, int peer,
                               uint64_t waitedMs) {
  tuttiCommunicator *c = comm;
  TUTTI_TRY(tuttiCommFailure(c));
  bool told = waitedMs == TUTTI_DISAGREES;
  bool expired = told || tuttiCommExpired(c, waitedMs);
  tuttiCommStalls(c, mine, peer, waitedMs);
  bool hangs = expired || tuttiCommIsHang(waitedMs);
  if (hangs && !told) tuttiCommTellHang(c, waitedMs);
  if (!told) TUTTI_TRY(failIfLeft(c, mine, peer, waitedMs));
  if (!shouldAsk(c, waitedMs, expired)) return tuttiSuccess;

  TUTTI_FRESH(tuttiWatchAnswer, answers, c->nranks, "answers of ranks", &c->memory);
  TUTTI_TRY(tuttiWatchAsk(c->watch, -1, tuttiCommAskMs(c), answers));
  tuttiSignature theirs;
  int other = findDisagreeing(c, mine, answers, &theirs);
  if (other >= 0) return tuttiCommMismatch(c, other, mine, &theirs);
  TUTTI_TRY(tuttiCommFailure(c));
  if (told) return tuttiCommMismatch(c, peer, mine, NULL);
  if (!expired && waitedMs < WARN_MS) return tuttiSuccess;
  return tellLate(c, mine, peer, answers, waitedMs, expired);
}

tuttiResult_t tuttiCommNotReady(const tuttiCommunicator *c) {
  TUTTI_TRY(tuttiCommFailure((tuttiCommunicator *)c));
  tuttiCommState state = (tuttiCommState)tuttiLoadAcquire32(&c->state);
  if (state == tuttiCommUsable) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidUsage, "the communicator%s",
                    state == tuttiCommStarting ? "'s non-blocking init has not ended; wait until "
                                                 "tuttiCommGetAsyncError reports tuttiSuccess"
                    : state == tuttiCommSuspended
                        ? " is suspended; call tuttiCommResume"
                        : " was finalized; only tuttiCommDestroy may follow");
}

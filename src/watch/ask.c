/* Asking ranks what they are doing, in the thread that wants to know: a bounded number of
 * conversations at a time, each of them connect, hello, answer. Every answer also tells what the
 * answerer's two neighbours last said, which is how a stopped rank's state is found. The watch
 * thread answers; whoever else connects to the listener is the greeter's business. */
#include <errno.h>

#include "base/os.h"
#include "bootstrap/handshake.h"
#include "watch/frame.h"

#define TALKS   64
#define TALK_MS 1000 /* at most, of a rank that makes others wait, or an inquiry for its end */
#define LOOK_MS 100  /* between two looks whether asking is over */

/* A question on its way. */
typedef struct {
  int rank; /* -1: none */
  uint64_t until;
  tuttiHello hello;
  tuttiDial dial;
  tuttiReportAnswer answer; /* the first part, or all of it */
} talk;

/* The ranks from `next` to before `end` have not been asked yet. Half a megabyte, and mapped so
 * that it goes back: malloc would keep it, after a stall or for strangers who ask. */
typedef struct {
  const tuttiBootstrap *b;
  tuttiWatchAnswer *answers; /* one of the two */
  tuttiWatchReport *reports;
  int next, end, talkMs;
  uint64_t deadline;
  talk talks[TALKS];
  struct pollfd polls[TALKS];
  int npolls;
} asking;

struct tuttiInquiry {
  asking a;
  tuttiWatchReport *reports;
  tuttiMemAccount *memory;
};

static void endTalk(talk *t) {
  if (t->rank < 0) return;
  t->rank = -1;
  tuttiDialClose(&t->dial);
  tuttiFdClose(&t->dial.fd);
}

static void noteAnswer(asking *a, const talk *t) {
  if (!a->reports && tuttiAnswerValid(&t->answer.answer, a->b->hash, t->rank))
    tuttiAnswerNote(&t->answer.answer, a->b->nranks, a->answers);
  if (a->reports && tuttiReportValid(&t->answer, a->b->hash, t->rank))
    tuttiReportNote(&t->answer, a->b->nranks, a->reports);
}

/* One turn of one talk; returns when to have the next even without an event. A rank that refuses
 * has ended or is leaving. */
static uint64_t goOn(asking *a, talk *t, struct pollfd *wanted) {
  tuttiDial *d = &t->dial;
  tuttiResult_t result = tuttiDialStep(d, (tuttiWait){.deadline = TUTTI_NO_DEADLINE});
  bool refused = d->state == TUTTI_DIAL_CONNECTING && tuttiConnectorRefused(&d->connector, 0);
  if (result == tuttiSuccess && d->state != TUTTI_DIAL_DONE && !refused)
    return tuttiDialWaitOn(d, wanted);
  tuttiWatchAnswer *answer = a->reports ? &a->reports[t->rank].answer : &a->answers[t->rank];
  if (d->state == TUTTI_DIAL_DONE)
    noteAnswer(a, t);
  else if (d->state == TUTTI_DIAL_CONNECTING && answer->answered == TUTTI_ANSWER_NONE)
    answer->answered = TUTTI_ANSWER_REFUSED;
  endTalk(t);
  return TUTTI_NO_DEADLINE;
}

static void beginTalk(asking *a, talk *t) {
  t->rank = a->next++;
  t->until = tuttiDeadline(a->talkMs);
  tuttiHelloFill(&t->hello, a->b->hash, a->reports ? tuttiHelloReport : tuttiHelloAsk, a->b->rank,
                 t->rank, a->b->nranks);
  tuttiDialInit(&t->dial, &a->b->listeners[t->rank], &t->hello, sizeof(t->hello), a->b->secret,
                &a->b->tls, "a rank");
  t->dial.neverFails = true;
  t->dial.answer = &t->answer;
  t->dial.answerBytes = a->reports ? sizeof(t->answer) : sizeof(t->answer.answer);
}

/* Ends a talk whose time is over, and begins one with the next rank where there is none. */
static void renewTalk(asking *a, talk *t, uint64_t now) {
  bool over = now >= a->deadline;
  bool late = t->rank >= 0 && now >= t->until && (a->reports || a->next < a->end);
  if (late || over) endTalk(t);
  a->next += a->next == a->b->rank;
  if (t->rank < 0 && a->next < a->end && !over) beginTalk(a, t);
}

/* A turn of all talks; a rank whose turn is over makes room for the next. *until: when to have the
 * next turn even without an event; false: there is nothing left to ask. */
static bool askStep(asking *a, uint64_t *until) {
  uint64_t now = tuttiNow();
  *until = a->deadline;
  a->npolls = 0;
  for (talk *t = a->talks; t < a->talks + TALKS; t++) {
    renewTalk(a, t, now);
    if (t->rank < 0) continue;
    struct pollfd *wanted = &a->polls[a->npolls];
    wanted->fd = -1;
    uint64_t due = goOn(a, t, wanted);
    if (t->rank < 0) {
      *until = now; /* the next one begins at once */
      continue;
    }
    a->npolls++;
    if (t->until < due) due = t->until;
    if (due < *until) *until = due;
  }
  return a->npolls > 0 || (a->next < a->end && now < a->deadline);
}

/* Steps to the end; `failed` may be NULL. */
static void askRun(asking *a, const tuttiAtomic32 *failed) {
  uint64_t until;
  while (!(failed && tuttiLoadAcquire32(failed)) && askStep(a, &until)) {
    int ms = tuttiDeadlinePollMs(until);
    if (failed && (ms < 0 || ms > LOOK_MS)) ms = LOOK_MS;
    if (poll(a->polls, (nfds_t)a->npolls, ms) < 0 && errno != EINTR) break;
  }
}

static void askEnd(asking *a) {
  for (int i = 0; i < TALKS; i++)
    endTalk(&a->talks[i]);
}

static void askInit(asking *a, const tuttiBootstrap *b, int first, int end, int ms) {
  a->b = b;
  a->next = first;
  a->end = end;
  a->deadline = tuttiDeadline(ms);
  int turns = (end - first + TALKS - 1) / TALKS;
  a->talkMs = turns > 0 && ms / turns < TALK_MS ? ms / turns + 1 : TALK_MS;
  for (int i = 0; i < TALKS; i++)
    a->talks[i].rank = -1;
}

tuttiResult_t tuttiAskOthers(const tuttiBootstrap *b, int first, int end, int ms,
                             const tuttiAtomic32 *failed, tuttiMemAccount *memory,
                             tuttiWatchAnswer *answers) {
  asking *a;
  TUTTI_TRY(tuttiMap((void **)&a, sizeof *a, -1, "the questions to other ranks", memory));
  askInit(a, b, first, end, ms);
  a->answers = answers;
  askRun(a, failed);
  askEnd(a);
  tuttiUnmap(a, sizeof *a, memory);
  return tuttiSuccess;
}

/* Where all ranks are together none listens: there is nobody to ask. */
tuttiResult_t tuttiInquiryNew(const tuttiBootstrap *b, int ms, tuttiMemAccount *memory,
                              tuttiInquiry **out) {
  tuttiInquiry *q;
  TUTTI_TRY(tuttiMap((void **)&q, sizeof *q, -1, "an inquiry", memory));
  tuttiResult_t result = tuttiAlloc((void **)&q->reports, (size_t)b->nranks, sizeof *q->reports,
                                    "reports of ranks", memory);
  if (result != tuttiSuccess) {
    tuttiUnmap(q, sizeof *q, memory);
    return result;
  }
  q->memory = memory;
  askInit(&q->a, b, 0, b->together ? 0 : b->nranks, ms);
  q->a.reports = q->reports;
  *out = q;
  return tuttiSuccess;
}

bool tuttiInquiryStep(tuttiInquiry *q) {
  uint64_t until;
  return !askStep(&q->a, &until);
}

void tuttiInquiryRun(tuttiInquiry *q) {
  askRun(&q->a, NULL);
}

tuttiWatchReport *tuttiInquiryReports(tuttiInquiry *q) {
  return q->reports;
}

void tuttiInquiryClose(tuttiInquiry *q) {
  if (q == NULL) return;
  askEnd(&q->a);
  tuttiFree(q->reports);
  tuttiUnmap(q, sizeof *q, q->memory);
}

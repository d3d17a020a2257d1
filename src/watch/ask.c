/* Asking ranks what they are doing, in the thread that wants to know: a bounded number of
 * conversations at a time, each of them connect, hello, answer. Every answer also tells what the
 * answerer's two neighbours last said, which is how a stopped rank's state is found. The watch
 * thread answers; whoever else connects to the listener is the greeter's business. */
#include <errno.h>

#include "base/os.h"
#include "bootstrap/handshake.h"
#include "watch/frame.h"

#define TALKS 64

/* A question on its way. */
typedef struct {
  bool over;
  tuttiHello hello;
  tuttiDial dial;
  tuttiAnswer answer;
} talk;

typedef struct {
  const tuttiBootstrap *b;
  tuttiWatchAnswer *answers;
  talk talks[TALKS];
  struct pollfd polls[TALKS];
} asking;

static void endTalk(talk *t) {
  t->over = true;
  tuttiDialClose(&t->dial);
  tuttiFdClose(&t->dial.fd);
}

/* One turn of one talk; returns when to have the next even without an event. A rank that refuses
 * has ended or is leaving. */
static uint64_t goOn(asking *a, talk *t, int rank, struct pollfd *wanted) {
  tuttiDial *d = &t->dial;
  tuttiResult_t result = tuttiDialStep(d, (tuttiWait){.deadline = TUTTI_NO_DEADLINE});
  if (result != tuttiSuccess || d->state == TUTTI_DIAL_DONE ||
      (d->state == TUTTI_DIAL_CONNECTING && tuttiConnectorRefused(&d->connector, 0))) {
    tuttiWatchAnswer *answer = &a->answers[rank];
    if (d->state == TUTTI_DIAL_DONE && tuttiAnswerValid(&t->answer, a->b->hash, rank))
      tuttiAnswerNote(&t->answer, a->b->nranks, a->answers);
    else if (d->state == TUTTI_DIAL_CONNECTING && answer->answered == TUTTI_ANSWER_NONE)
      answer->answered = TUTTI_ANSWER_REFUSED;
    endTalk(t);
    return TUTTI_NO_DEADLINE;
  }
  return tuttiDialWaitOn(d, wanted);
}

/* Asks n ranks at once, until all have answered or the deadline. */
static void askSome(asking *a, int first, int n, uint64_t deadline) {
  int left = n;
  for (int i = 0; i < n; i++) {
    talk *t = &a->talks[i];
    t->over = first + i == a->b->rank;
    tuttiHelloFill(&t->hello, a->b->hash, tuttiHelloAsk, a->b->rank, first + i, a->b->nranks);
    tuttiDialInit(&t->dial, &a->b->listeners[first + i], &t->hello, sizeof(t->hello), a->b->secret,
                  &a->b->tls, "a rank");
    t->dial.neverFails = true;
    t->dial.answer = &t->answer;
    t->dial.answerBytes = sizeof(t->answer);
  }
  while (left > 0 && tuttiNow() < deadline) {
    uint64_t until = deadline;
    left = 0;
    for (int i = 0; i < n; i++) {
      a->polls[left].fd = -1;
      if (a->talks[i].over) continue;
      uint64_t due = goOn(a, &a->talks[i], first + i, &a->polls[left]);
      if (due < until) until = due;
      left += !a->talks[i].over;
    }
    if (left > 0 && poll(a->polls, (nfds_t)left, tuttiDeadlinePollMs(until)) < 0 && errno != EINTR)
      break;
  }
  for (int i = 0; i < n; i++)
    endTalk(&a->talks[i]);
}

tuttiResult_t tuttiAskOthers(const tuttiBootstrap *b, int first, int end, int ms,
                             tuttiMemAccount *memory, tuttiWatchAnswer *answers) {
  uint64_t deadline = tuttiDeadline(ms);
  TUTTI_FRESH(asking, a, 1, "the questions to other ranks", memory);
  a->b = b;
  a->answers = answers;
  for (; first < end; first += TALKS) {
    uint64_t now = tuttiNow(), turns = (uint64_t)(end - first + TALKS - 1) / TALKS;
    uint64_t turn = now < deadline ? (deadline - now) / turns : 0;
    askSome(a, first, end - first < TALKS ? end - first : TALKS, now + turn);
  }
  return tuttiSuccess;
}

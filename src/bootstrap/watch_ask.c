/* Asking all ranks what they are doing, in the thread that wants to know: a bounded number of
 * conversations at a time, each of them connect, hello, answer. Every answer also tells what the
 * answerer's two neighbours last said, which is how a stopped rank's state is found. The watch
 * thread answers; whoever else connects to the listener is the greeter's business. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "bootstrap/watch_internal.h"

#define ASK_TALKS 64

/* A question on its way. */
typedef struct {
  int rank; /* -1: free */
  int fd;   /* -1: not connected yet */
  tuttiConnector connector;
  uint64_t turnEnds; /* time for the next rank, if one waits */
  size_t have;
  uint8_t in[sizeof(tuttiFrameHead) + sizeof(tuttiAnswerFrame)];
} talk;

typedef struct {
  const tuttiWatch *w;
  tuttiWatchAnswer *answers;
  uint64_t deadline, turn; /* turn: ns for one conversation while others wait */
  int nextRank, endRank;   /* those not asked yet */
  tuttiHello hello;
  struct pollfd polls[ASK_TALKS]; /* [npolls] */
  nfds_t npolls;
  talk talks[ASK_TALKS];
} asking;

/* ---- answering ------------------------------------------------------------------------------ */

void tuttiReportSelf(const tuttiWatch *w, tuttiStateReport *out) {
  *out = (tuttiStateReport){.rank = w->rank, .known = 1};
  size_t bytes = w->calls.state(w->calls.ctx, out->state);
  out->bytes = (uint32_t)(bytes < sizeof(out->state) ? bytes : sizeof(out->state));
}

tuttiVerdict tuttiWatchAnswerTo(void *watch, const void *hello, int fd) {
  const tuttiWatch *w = watch;
  tuttiHello h;
  memcpy(&h, hello, sizeof(h));
  if (h.kind != tuttiHelloAsk || h.hash != w->hash || h.nranks != w->nranks || h.from < 0 ||
      h.from >= w->nranks)
    return TUTTI_GUEST_DROP;
  tuttiAnswerFrame frame = {.hash = w->hash};
  tuttiReportSelf(w, &frame.self);
  tuttiReportLink(&w->links[0], &frame.previous);
  tuttiReportLink(&w->links[1], &frame.next);
  uint8_t out[sizeof(tuttiFrameHead) + sizeof(frame)];
  size_t bytes = tuttiFrameWrite(out, sizeof(out), tuttiFrameAnswer, &frame, sizeof(frame));
  /* Fits the empty buffer of a fresh socket; if it does not, the asker has gone. */
  ssize_t sent = send(fd, out, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  TUTTI_TRACE(BOOTSTRAP, "watch: rank %d answers rank %d: %zd of %zu bytes", w->rank, h.from, sent,
              bytes);
  return TUTTI_GUEST_DROP;
}

/* ---- asking --------------------------------------------------------------------------------- */

/* A rank's own answer beats a neighbour's report, a younger report an older one. */
static void note(tuttiWatchAnswer *answers, const tuttiStateReport *report, int answered) {
  tuttiWatchAnswer *answer = &answers[report->rank];
  if (!report->known || answer->answered == 1) return;
  if (answered == 2 && answer->answered == 2 && answer->ageMs <= report->ageMs) return;
  answer->answered = answered;
  answer->ageMs = report->ageMs;
  answer->bytes = report->bytes;
  memcpy(answer->state, report->state, sizeof(answer->state));
}

static void endTalk(talk *t) {
  if (t->rank < 0) return;
  tuttiConnectorStop(&t->connector);
  if (t->fd >= 0) close(t->fd);
  t->rank = t->fd = -1;
}

static void nextTalk(asking *a, talk *t) {
  const tuttiAddressList *list = &a->w->listeners[a->nextRank];
  *t = (talk){.rank = a->nextRank++, .fd = -1, .turnEnds = tuttiNow() + a->turn};
  if (a->nextRank == a->w->rank) a->nextRank++;
  tuttiConnectorInit(&t->connector, list);
}

/* Says hello once the connection is there; it fits its empty buffer. */
static void connectTalk(asking *a, talk *t) {
  int index;
  bool ended = tuttiConnectorStep(&t->connector, "a rank", &t->fd, &index) != tuttiSuccess ||
               tuttiConnectorRefused(&t->connector, 0);
  if (t->fd >= 0) {
    tuttiConnectorStop(&t->connector);
    ended = send(t->fd, &a->hello, sizeof(a->hello), MSG_NOSIGNAL | MSG_DONTWAIT) !=
            (ssize_t)sizeof(a->hello);
  }
  if (ended) endTalk(t);
}

static void readAnswer(asking *a, talk *t) {
  ssize_t got = recv(t->fd, t->in + t->have, sizeof(t->in) - t->have, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    endTalk(t);
    return;
  }
  t->have += (size_t)got;
  tuttiFrame frame;
  tuttiAnswerFrame answer;
  int size = tuttiFrameParse(t->in, t->have, &frame);
  if (size == 0 && t->have < sizeof(t->in)) return;
  if (size > 0 && tuttiAnswerRead(&frame, a->w->hash, t->rank, a->w->nranks, &answer)) {
    note(a->answers, &answer.self, 1);
    note(a->answers, &answer.previous, 2);
    note(a->answers, &answer.next, 2);
  }
  endTalk(t);
}

static bool ranksWait(const asking *a) {
  return a->nextRank < a->endRank;
}

/* Adds what the conversation waits for; returns when to go on even without that. */
static uint64_t waitFor(asking *a, const talk *t) {
  uint64_t until = ranksWait(a) ? t->turnEnds : a->deadline;
  if (t->fd >= 0) {
    a->polls[a->npolls++] = (struct pollfd){.fd = t->fd, .events = POLLIN};
    return until;
  }
  struct pollfd wanted;
  uint64_t next = tuttiConnectorWaitOn(&t->connector, &wanted);
  if (wanted.fd >= 0) a->polls[a->npolls++] = wanted;
  return next < until ? next : until;
}

/* One turn of all conversations; false when there are none. */
static bool talkAll(asking *a) {
  bool any = false;
  uint64_t until = a->deadline, now = tuttiNow();
  a->npolls = 0;
  for (int i = 0; i < ASK_TALKS; i++) {
    talk *t = &a->talks[i];
    if (t->fd >= 0) readAnswer(a, t);
    if (ranksWait(a) && now >= t->turnEnds) endTalk(t);
    if (t->rank >= 0 && t->fd < 0) connectTalk(a, t);
    while (t->rank < 0 && ranksWait(a)) {
      nextTalk(a, t);
      connectTalk(a, t);
    }
    if (t->rank < 0) continue;
    any = true;
    uint64_t due = waitFor(a, t);
    if (due < until) until = due;
  }
  return any && (poll(a->polls, a->npolls, tuttiDeadlinePollMs(until)) >= 0 || errno == EINTR);
}

static void askOthers(asking *a, int ms) {
  const tuttiWatch *w = a->w;
  int rounds = (w->nranks + ASK_TALKS - 1) / ASK_TALKS;
  a->deadline = tuttiDeadline(ms);
  a->turn = (uint64_t)ms * 1000000 / (uint64_t)rounds;
  tuttiHelloFill(&a->hello, w->secret, w->hash, tuttiHelloAsk, w->rank, w->nranks);
  for (int i = 0; i < ASK_TALKS; i++)
    a->talks[i].rank = a->talks[i].fd = -1;
  while (tuttiNow() < a->deadline && talkAll(a)) {
  }
  for (int i = 0; i < ASK_TALKS; i++)
    endTalk(&a->talks[i]);
}

/* Of the ranks from `first` to before `end`, and of what the neighbours say. */
static tuttiResult_t ask(tuttiWatch *w, int first, int end, int ms, tuttiWatchAnswer *answers) {
  asking *a = NULL;
  if (ms > 0 && w->nranks > 1)
    TUTTI_TRY(tuttiAlloc((void **)&a, 1, sizeof(*a), "the questions to other ranks", w->memory));
  memset(answers, 0, (size_t)w->nranks * sizeof(*answers));
  tuttiStateReport report;
  tuttiReportSelf(w, &report);
  note(answers, &report, 1);
  for (int i = 0; i < 2; i++) {
    tuttiReportLink(&w->links[i], &report);
    note(answers, &report, 2);
  }
  if (a != NULL) {
    a->w = w;
    a->answers = answers;
    a->nextRank = first;
    a->endRank = end;
    askOthers(a, ms);
    tuttiFree(a);
  }
  int answered = 0;
  for (int i = 0; i < w->nranks; i++)
    answered += answers[i].answered == 1;
  TUTTI_INFO(BOOTSTRAP, "watch: rank %d asked %d ranks for their state; %d answered", w->rank,
             w->nranks, answered);
  return tuttiSuccess;
}

tuttiResult_t tuttiWatchAsk(tuttiWatch *w, int ms, tuttiWatchAnswer *answers) {
  return ask(w, 0, w->nranks, ms, answers);
}

tuttiResult_t tuttiWatchAskRank(tuttiWatch *w, int rank, int ms, tuttiWatchAnswer *answers) {
  return ask(w, rank, rank + 1, ms, answers);
}

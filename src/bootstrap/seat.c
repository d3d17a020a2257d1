#include "bootstrap/seat.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/dead.h"
#include "base/os.h"

/* How long the root's word is waited for: it has seen what this rank has, or is about to. */
#define VERDICT_MS 1000

/* ---- messages ------------------------------------------------------------------------------- */

static bool hasEnded(int fd) {
  struct pollfd p = {.fd = fd, .events = POLLRDHUP};
  return poll(&p, 1, 0) > 0;
}

int tuttiMessageTake(int fd, const tuttiSession *session, tuttiReply *head, void *data) {
  uint8_t message[sizeof *head + TUTTI_ERROR_TEXT];
  bool ended = hasEnded(fd); /* before looking: then nothing comes behind what is seen */
  ssize_t n = tuttiSecurePeek(fd, message, sizeof message);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (n <= 0) return -1;
  if ((size_t)n >= sizeof *head) {
    memcpy(head, message, sizeof *head);
    if (!tuttiReplyValid(head)) return -2;
    size_t whole = sizeof *head + head->bytes;
    if ((size_t)n >= whole && tuttiSecureRecv(fd, message, whole) == (ssize_t)whole) {
      memcpy(data, message + sizeof *head, head->bytes);
      ((char *)data)[head->bytes] = 0;
      return tuttiReplyGenuine(session, head, data) ? 1 : -2;
    }
  }
  return ended ? -1 : 0;
}

void tuttiSeatTake(tuttiSeat *seat, const tuttiDial *dial) {
  seat->fd = dial->fd;
  seat->left = -1;
  memcpy(seat->secret, dial->session.secret, sizeof(seat->secret));
  seat->session = dial->session;
  seat->session.secret = seat->secret;
  snprintf(seat->root, sizeof seat->root, "%s", dial->who);
}

/* ---- hearing -------------------------------------------------------------------------------- */

/* "rank 0 (host a, pid 17)", or of a process that is no rank, or whose rank has not come yet. */
static void keepRoot(tuttiSeat *seat, const tuttiReply *head, const void *data) {
  tuttiRootName name;
  tuttiHello h = {0};
  char text[sizeof seat->root];
  if (head->bytes != sizeof name) return;
  memcpy(&name, data, sizeof name);
  h.from = name.rank;
  h.pid = name.pid;
  memcpy(h.host, name.host, sizeof h.host);
  tuttiHelloName(&h, text, sizeof text);
  seat->named = true;
  seat->ranked = name.rank >= 0;
  if (seat->ranked)
    snprintf(seat->root, sizeof seat->root, "%s", text);
  else
    snprintf(seat->root, sizeof seat->root, "the process that made the unique id %s",
             strchr(text, '('));
}

/* For other communicators of this process, in which that death may not have shown yet. */
static void keepDead(const tuttiReply *head, const void *data) {
  uint64_t process;
  if (head->bytes != sizeof process) return;
  memcpy(&process, data, sizeof process);
  tuttiDeadNote(process);
}

/* In answer to this rank's doubt, or at the deadline: the first time that counts. */
static void keepMissing(tuttiSeat *seat, const tuttiReply *head, const void *data) {
  tuttiMissing missing;
  if (head->bytes != sizeof missing) return;
  memcpy(&missing, data, sizeof missing);
  if (missing.n < 1 || missing.n > TUTTI_KIN_RANKS || missing.graceMs > TUTTI_GRACE_MS) return;
  if (missing.graceMs == 0) {
    seat->absent = missing;
    seat->told = true;
  } else if (seat->missing.n == 0) {
    seat->missing = missing;
    seat->asked = true;
  }
}

static void end(tuttiSeat *seat) {
  seat->ended = true;
  tuttiFdClose(&seat->fd);
}

static tuttiResult_t rootGone(tuttiSeat *seat) {
  end(seat);
  seat->lost = !seat->ranked;
  if (!seat->named)
    return TUTTI_FAIL(tuttiRemoteError,
                      "%s closed the connection: it has ended or given up; its own log says why",
                      seat->root);
  return TUTTI_FAIL(tuttiRemoteError,
                    "%s died: the rendezvous of this communicator, in its process, closed the "
                    "connection without a word (killed, crashed, or exited before the init had "
                    "ended). Remedy: see the log of that process, and the kernel log of its host",
                    seat->root);
}

/* A text that goes to logs, of a failure elsewhere. */
static tuttiResult_t adopt(tuttiSeat *seat, const tuttiReply *head, char *text) {
  end(seat);
  for (char *p = text; *p; p++)
    if ((unsigned char)*p < ' ') *p = ' ';
  bool known = head->code > tuttiSuccess && head->code < tuttiNumResults;
  return tuttiErrorAdopt(known ? (tuttiResult_t)head->code : tuttiRemoteError, text);
}

static tuttiResult_t garbage(tuttiSeat *seat) {
  end(seat);
  return TUTTI_FAIL(tuttiRemoteError,
                    "what the root of the unique id answered is not its own; see what "
                    "listens there, or changes what it says");
}

tuttiResult_t tuttiSeatHear(tuttiSeat *seat, tuttiNeighbour *next, bool *met) {
  tuttiReply head;
  char data[TUTTI_ERROR_TEXT + 1];
  while (seat->fd >= 0) {
    int took = tuttiMessageTake(seat->fd, &seat->session, &head, data);
    if (took == 0) return tuttiSuccess;
    if (took == -1) return rootGone(seat);
    if (took < 0) return garbage(seat);
    if (head.kind == tuttiReplyFailed) return adopt(seat, &head, data);
    if (head.kind == tuttiReplyRoot) {
      keepRoot(seat, &head, data);
    } else if (head.kind == tuttiReplyDead) {
      keepDead(&head, data);
    } else if (head.kind == tuttiReplyMissing) {
      keepMissing(seat, &head, data);
    } else if (head.kind == tuttiReplyNext && met && head.bytes == sizeof *next) {
      memcpy(next, data, sizeof *next);
      *met = true;
      return tuttiSuccess;
    } else {
      return garbage(seat);
    }
  }
  return tuttiSuccess;
}

void tuttiSeatsWaitOn(const tuttiSeat *seats, struct pollfd *fds) {
  for (int i = 0; i < TUTTI_SEATS; i++)
    fds[i] = (struct pollfd){.fd = seats[i].fd, .events = POLLIN | POLLRDHUP};
}

tuttiResult_t tuttiSeatsHear(tuttiSeat *seats, const struct pollfd *fds) {
  for (int i = 0; i < TUTTI_SEATS; i++)
    if (fds[i].revents) TUTTI_TRY(tuttiSeatHear(&seats[i], NULL, NULL));
  return tuttiSuccess;
}

tuttiResult_t tuttiSeatsJudge(tuttiSeat *seats, tuttiResult_t result, tuttiWait wait) {
  struct pollfd fds[TUTTI_SEATS];
  char text[TUTTI_ERROR_TEXT];
  uint64_t until = tuttiDeadline(VERDICT_MS);
  bool lost = seats[0].lost || seats[1].lost;
  if (result != tuttiRemoteError || (!lost && (seats[0].ended || seats[1].ended))) return result;
  snprintf(text, sizeof text, "%s", tuttiErrorText());
  while (tuttiNow() < until && (lost || seats[0].fd >= 0 || seats[1].fd >= 0)) {
    int ready;
    tuttiSeatsWaitOn(seats, fds);
    TUTTI_TRY(tuttiPollSlice(fds, TUTTI_SEATS, "the root of the unique id", wait, until, &ready));
    TUTTI_TRY(tuttiSeatsHear(seats, fds));
  }
  return tuttiErrorAdopt(result, text);
}

/* ---- leaving -------------------------------------------------------------------------------- */

void tuttiSeatsGiveUp(tuttiSeat *seats, tuttiResult_t code, const char *text) {
  tuttiReply head;
  char data[TUTTI_ERROR_TEXT + 1];
  uint64_t until = tuttiDeadline(VERDICT_MS);
  for (int i = 0; i < TUTTI_SEATS; i++)
    if (seats[i].fd >= 0)
      tuttiReplySend(seats[i].fd, &seats[i].session, tuttiReplyFailed, code, text, strlen(text),
                     NULL);
  for (int i = 0; i < TUTTI_SEATS; i++) {
    int took = 0;
    while (seats[i].fd >= 0 && took >= 0 && tuttiNow() < until) {
      struct pollfd p = {.fd = seats[i].fd, .events = POLLIN | POLLRDHUP};
      if (poll(&p, 1, tuttiDeadlinePollMs(until)) < 0 && errno != EINTR) break;
      took = tuttiMessageTake(seats[i].fd, &seats[i].session, &head, data);
      if (took > 0 && head.kind == tuttiReplyFailed) break;
    }
    tuttiFdClose(&seats[i].fd);
  }
}

void tuttiSeatsDone(tuttiSeat *seats) {
  for (int i = 0; i < TUTTI_SEATS; i++) {
    if (seats[i].fd < 0) continue;
    tuttiReplySend(seats[i].fd, &seats[i].session, tuttiReplyDone, 0, NULL, 0, NULL);
    tuttiFdClose(&seats[i].fd);
  }
}

/* A rank's seat at a root: the connection by which it checked in, which stays as long as its init
 * runs. Over it a rank that gives up says why, and the root tells all others: why, or that a rank's
 * connection closed without a word, which is a death. So nobody has to guess from the end of a
 * connection to a neighbour, who may only have heard of a third rank's death before. */
#ifndef TUTTI_BOOTSTRAP_SEAT_H_
#define TUTTI_BOOTSTRAP_SEAT_H_

#include <poll.h>
#include <sys/cdefs.h>

#include "bootstrap/handshake.h"
#include "bootstrap/rendezvous.h"

__BEGIN_DECLS

/* The own root, and as a bridge that of the slice before. */
#define TUTTI_SEATS 2

typedef struct tuttiSeat {
  int fd; /* -1: none, or left */
  uint8_t secret[16];
  tuttiSession session; /* of the check-in */
  bool ended;           /* the root has told a failure, or is gone */
  bool lost;            /* gone before it had said which rank it is */
  bool named, ranked;   /* `root` is what it has said: its host and process; and its rank */
  bool asked;           /* about those who are missing, and has not answered yet */
  tuttiMissing missing; /* n 0: it was not asked yet */
  bool told;            /* who is absent, to one who doubts, and has not heeded it yet */
  tuttiMissing absent;
  int32_t left;   /* of these one who had left the kin; -1: none */
  char root[192]; /* "rank 0 (host a, pid 17)"; at first what is known by the id */
} tuttiSeat;

/* Takes one whole message that has come over a connection to or from a root, without waiting:
 * *head, and its bytes in `data` of TUTTI_ERROR_TEXT + 1, with a 0 behind them. Returns 1; 0 when
 * there is none yet; -1 when the connection has ended; -2 for what is none, or not of the other end
 * of this session. */
int tuttiMessageTake(int fd, const tuttiSession *session, tuttiReply *head, void *data);

/* Takes the connection of a check-in that is DONE. */
void tuttiSeatTake(tuttiSeat *seat, const tuttiDial *dial);

/* Takes what the root has said. Fails with what it tells, or when it is gone; *next is filled and
 * *met set by the message that ends the rendezvous; both may be NULL after that. */
tuttiResult_t tuttiSeatHear(tuttiSeat *seat, tuttiNeighbour *next, bool *met);
/* Fills TUTTI_SEATS entries; one with events is to be heard. */
void tuttiSeatsWaitOn(const tuttiSeat *seats, struct pollfd *fds);
/* Hears those with events. */
tuttiResult_t tuttiSeatsHear(tuttiSeat *seats, const struct pollfd *fds);

/* What to make of `result`, of this thread's last error: trouble with a neighbour may be the echo
 * of what the root is about to tell, so that is waited for, a second at most, and adopted. So is
 * the flag of `wait` if the root is gone before it has said which rank it is: whoever sets that may
 * know. */
tuttiResult_t tuttiSeatsJudge(tuttiSeat *seats, tuttiResult_t result, tuttiWait wait);

/* Leaves the seats, because of a failure with this code and text, of which all other ranks whose
 * init runs hear. Returns when the roots have told them, but for
 * roots that take longer than a second. */
void tuttiSeatsGiveUp(tuttiSeat *seats, tuttiResult_t code, const char *text);
/* Leaves the seats in order. */
void tuttiSeatsDone(tuttiSeat *seats);

__END_DECLS

#endif

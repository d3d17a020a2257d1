/* How a communicator fails: once, with the same text on all ranks, and every wait ends. */
#ifndef TUTTI_COMM_FAILURE_H_
#define TUTTI_COMM_FAILURE_H_

#include "comm/communicator.h"

/* Makes `code` and this thread's last error the failure of `c`, and tells every other rank. Returns
 * `code`. */
tuttiResult_t tuttiCommFail(tuttiCommunicator *c, tuttiResult_t code);
/* The same of an operation, whose trouble with a peer may be the echo of a death elsewhere: waits
 * for a better cause as long as a suspicion does, see below. */
tuttiResult_t tuttiCommFailLate(tuttiCommunicator *c, tuttiResult_t code);
/* The same for a text that came from elsewhere; `tell` says whether other ranks need to hear it.
 * Communicators that are being made of `c`, but for those of a shrink that aborts, fail with it. */
void tuttiCommFailText(tuttiCommunicator *c, tuttiResult_t code, const char *text, bool tell);
/* The same of a rank that ends the communicator by a call: the others wait a moment whether a death
 * was the cause. What is being made of it goes on. */
void tuttiCommEndText(tuttiCommunicator *c, tuttiResult_t code, const char *text);
/* The same without a word to anybody: others hear of it in another way, or need not. */
void tuttiCommFailAlone(tuttiCommunicator *c, tuttiResult_t code, const char *text);
/* How long other ranks are waited for that were asked something, in ms. */
int tuttiCommAskMs(const tuttiCommunicator *c);
/* How long an operation waits before its rank asks the others, in ms. Where all ranks wait, all
 * ask: under TLS, and with slow processors, that may be more work than what they wait for, and must
 * not keep them from it. */
uint64_t tuttiCommFirstAskMs(const tuttiCommunicator *c);
/* "rank 2 (host node7, pid 4242)"; returns buf. */
const char *tuttiCommRankText(const tuttiCommunicator *c, int rank, char *buf, size_t size);
/* Tells every other rank that this one aborts, if there is a watch to tell it with. */
void tuttiCommTellAbort(tuttiCommunicator *c);
/* Notes trouble on a data connection, or that another rank has `ended` the communicator by a call,
 * which becomes the failure of `c` if none with a better cause comes within half a second. The
 * first one counts; from any thread. */
void tuttiCommSuspect(tuttiCommunicator *c, tuttiResult_t code, const char *text, bool ended);
/* tuttiSuccess, or the failure, whose text becomes this thread's last error. */
tuttiResult_t tuttiCommFailure(void *comm);
/* The same for who only looks. Operations on a GPU go on when their calls have returned, and may
 * need nothing more of a rank that has ended the communicator by a call: to look does not make that
 * a failure of theirs. It is one of what waits, which asks, and of the next call. */
tuttiResult_t tuttiCommFailureSeen(void *comm);
/* It would say tuttiSuccess. */
static inline bool tuttiCommWell(const tuttiCommunicator *c) {
  return tuttiLoadAcquire32(&c->failed) == 0 && tuttiLoadAcquire(&c->suspectedAt) == 0;
}
/* Callbacks of executors, as is tuttiCommFailure. */
tuttiResult_t tuttiCommMismatch(void *comm, int peer, const tuttiSignature *mine,
                                const tuttiSignature *theirs);
/* A wait has met its deadline, and no trouble is suspected, which would say more and has half a
 * second to become the failure. */
bool tuttiCommExpired(const tuttiCommunicator *c, uint64_t waitedMs);
/* A wait has lasted for as long as the user wants to hear of before its deadline. */
bool tuttiCommIsHang(uint64_t waitedMs);
tuttiResult_t tuttiCommStalled(void *comm, const tuttiSignature *mine, int peer, uint64_t waitedMs);
/* Whether a rank has left the communicator: its neighbours on the ring know, one of which at least
 * answers if it is there; who refuses itself, with both gone, has ended. Of a communicator that has
 * failed neighbours may have gone, and what they know is old: only the rank itself is asked. Each
 * for at most `ms`; answers[nranks] is room. */
bool tuttiCommHasLeft(tuttiCommunicator *c, int rank, int ms, tuttiWatchAnswer *answers);
/* What is awaited of a rank that has left by a call never comes. Its exit may be that of a program
 * that has met an error of its own, while the others have hours until their deadline: fails the
 * communicator with "rank 0 waits `what`: rank 2 ... has destroyed its communicator ..." if the
 * awaited rank was found to have left in two looks, as it may have said why. Asks now and then. */
tuttiResult_t tuttiCommFailIfLeft(tuttiCommunicator *c, tuttiLeftLook *look, int peer,
                                  const char *what, uint64_t waitedMs);
/* Waits for what(c), at most the timeout, then fails with "`late` within 5 s`why`". If `fails`, a
 * failure of `c` ends it, before or after. */
tuttiResult_t tuttiCommAwait(tuttiCommunicator *c, bool (*what)(tuttiCommunicator *c), bool fails,
                             const char *late, const char *why);
/* Success if operations may start: set up, not failed, not finalized. */
tuttiResult_t tuttiCommNotReady(const tuttiCommunicator *c); /* if they may not */
static inline tuttiResult_t tuttiCommReady(const tuttiCommunicator *c) {
  bool usable = tuttiLoadAcquire32(&c->state) == tuttiCommUsable;
  return usable && tuttiCommWell(c) ? tuttiSuccess : tuttiCommNotReady(c);
}

#endif

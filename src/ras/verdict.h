/* What is wrong with a communicator: sentences over what its ranks have told. Pure functions; the
 * same sentences are those of the log and of errors. */
#ifndef TUTTI_RAS_VERDICT_H_
#define TUTTI_RAS_VERDICT_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "ras/facts.h"

__BEGIN_DECLS

/* Kinds of findings, the worst first, and their words in JSON. */
/* clang-format off */
#define TUTTI_VERDICTS(X)                                                                          \
  X(Failed, "failed") X(Dead, "dead") X(Mismatch, "mismatch") X(Missing, "not_entered")            \
  X(Stopped, "stopped") X(Silent, "no_answer") X(Left, "left") X(NotBegun, "not_begun")            \
  X(Peer, "peer_late") X(Path, "path") X(Joining, "joining") X(Straggler, "straggler")             \
  X(SlowLink, "slow_link") X(Running, "running") X(Idle, "idle")
/* clang-format on */
#define TUTTI_VERDICT(name, word) tuttiVerdict##name,
typedef enum { TUTTI_VERDICTS(TUTTI_VERDICT) tuttiVerdictCount } tuttiVerdictKind;
extern const char *const tuttiVerdictWords[tuttiVerdictCount];

#define TUTTI_FINDINGS 8
typedef struct {
  tuttiVerdictKind kind;
  char text[1200];
} tuttiFinding;

/* The findings, the verdict first: at least one, at most TUTTI_FINDINGS. */
int tuttiFindings(const tuttiCommSnapshot *c, tuttiFinding out[TUTTI_FINDINGS]);
/* Whether it says that something is wrong: not for what joins, is slow, runs or is idle. */
static inline int tuttiFindingIsBad(const tuttiFinding *f) {
  return f->kind < tuttiVerdictJoining;
}

/* "rank 2 (host node7, pid 4242)"; returns buf. */
const char *tuttiWhoText(const tuttiWho *who, char *buf, size_t size);
/* "ranks disagree on an operation of communicator ...: A called X, B called Y. ..."; theirs may be
 * NULL: something else. */
void tuttiMismatchText(const char *name, uint64_t hash, const tuttiWho *a,
                       const tuttiSignature *mine, const tuttiWho *b, const tuttiSignature *theirs,
                       char *buf, size_t size);
/* Whether a rank's state holds a collective of the number of `mine` that is not `mine`: that is
 * *theirs then. */
bool tuttiStateDisagrees(const tuttiSignature *mine, const tuttiRankState *state,
                         tuttiSignature *theirs);
/* Whether a rank that is in such a state holds up `mine`, in which others wait, for `peer` if it is
 * a message. */
bool tuttiStateIsLate(const tuttiSignature *mine, int peer, int rank, const tuttiRankState *state);
/* One clause about a rank that holds up others, who wait in `mine` (for `peer`, if it is a
 * message); false if it does not, as far as is known. */
bool tuttiLateText(const tuttiSignature *mine, int peer, const tuttiWho *who,
                   const tuttiWatchAnswer *answer, const tuttiRankState *state, char *buf,
                   size_t size);
/* What is wrong with the network of a rank, which holds up others without being late: "; rank 3
 * (host a, pid 17): port mlx5_0:1 is down, 2 connections are being made anew". "": nothing. Returns
 * buf. */
const char *tuttiTroubleText(const tuttiWho *who, const tuttiRankState *state, char *buf,
                             size_t size);
/* "waits for rank 6 on channel 1 via NET/IB since 9.0 s: 12 messages sent, 3 acknowledged; ..." */
void tuttiWaitText(const tuttiWaitFacts *w, char *buf, size_t size);

/* "2 signals of index 0 and context 1 from rank 3 (host a, pid 17), of which 1 has come", or "room
 * to put to ..."; `peer` is that rank. Returns buf. */
const char *tuttiSignalsText(const tuttiSignalFacts *s, const tuttiWho *peer, char *buf,
                             size_t size);

/* Who enters collectives last, over the operations that ranks have stamped: one sentence for each
 * rank that is the last in most of them and later than the median by more than a tenth of a
 * millisecond. Returns how many of out[max]. */
int tuttiStragglers(const tuttiCommSnapshot *c, tuttiFinding *out, int max);

/* Links that carry less than half of what three quarters of their siblings do, the slowest first,
 * one sentence for each pair of ranks. Siblings are links of other pairs, of the same transport,
 * and within hosts or between them alike; there must be three. A rate that may be a share of a NIC,
 * as other links use that too, is not held against the link. Returns how many of out[max]. */
int tuttiSlowLinks(const tuttiCommSnapshot *c, tuttiFinding *out, int max);

/* Both, as all that is slow: at most TUTTI_SLOW of them. */
#define TUTTI_SLOW (2 * TUTTI_FINDINGS)
static inline int tuttiSlowness(const tuttiCommSnapshot *c, tuttiFinding out[TUTTI_SLOW]) {
  int n = tuttiStragglers(c, out, TUTTI_FINDINGS);
  return n + tuttiSlowLinks(c, out + n, TUTTI_FINDINGS);
}

__END_DECLS

#endif

/* What ranks and roots say to each other, and the root itself. */
#ifndef TUTTI_BOOTSTRAP_RENDEZVOUS_H_
#define TUTTI_BOOTSTRAP_RENDEZVOUS_H_

#include <sys/cdefs.h>

#include "bootstrap/handshake.h"

__BEGIN_DECLS

#define TUTTI_MAX_RANKS (1 << 20)

/* A rank as its predecessor in the ring must know it. */
typedef struct {
  tuttiHello hello;
  tuttiAddressList listeners;
  uint64_t ticket; /* what a ring hello to these listeners must carry as its hash */
} tuttiNeighbour;

/* A check-in that comes in the clear though its sender encrypts is there to say so: it goes no
 * further, and holds neither host nor addresses. So is one under the open secret, without a key,
 * whose sender has one. */
typedef enum {
  tuttiEncryptsNot = 0,
  tuttiEncryptsYes = 1,
  tuttiEncryptsOtherwise = 2 /* yes, and the root has refused its key */
} tuttiEncrypts;

/* Rank r of n checks in with root r * nroots / n, which thereby serves a slice of neighbours. The
 * first rank of each slice also checks in, as a bridge, with the root of the slice before, whose
 * last rank it follows; it waits for its own root only. So a root's work grows with its slice
 * alone, and roots need not meet. */
typedef struct {
  tuttiNeighbour peer;
  int32_t root, nroots;
  int32_t bridge;       /* 1: this is the slice before the sender's own */
  int32_t encrypts;     /* tuttiEncrypts: whether the sender's job does */
  int32_t keyed;        /* 1: TUTTI_COMM_ID, and the sender has a key */
  int32_t askMs;        /* tuttiKin's, at most TUTTI_KIN_MS; 0: the sender has no kin */
  uint64_t remainingMs; /* until the sender's deadline; UINT64_MAX: none */
  uint64_t process;     /* tuttiProcessId(); 0: not told */
} tuttiCheckIn;

/* Who has not come, at the deadline of a rendezvous; it is asked of ranks with kin, and tells all
 * others that the root waits so much longer for an answer. Before the deadline, in answer to a rank
 * that doubts whether all will come, graceMs is 0. */
typedef struct {
  int32_t n; /* of ranks[], at least one: the first of them */
  int32_t ranks[TUTTI_KIN_RANKS];
  uint32_t graceMs; /* at most TUTTI_GRACE_MS */
} tuttiMissing;
#define TUTTI_GRACE_MS (TUTTI_KIN_MS + 1000)

/* Where a root is. */
typedef struct {
  int32_t rank; /* whose process it is in; -1: none, as far as is known */
  int32_t pid;
  char host[64];
} tuttiRootName;

static inline int tuttiRootOfRank(int rank, int nroots, int nranks) {
  return (int)((int64_t)rank * nroots / nranks);
}
/* The first rank of root's slice; for root == nroots it is nranks. */
static inline int tuttiFirstOfRoot(int root, int nroots, int nranks) {
  return (int)(((int64_t)root * nranks + nroots - 1) / nroots);
}

/* The name of a list of ids, or of a communicator, on the wire: made of one secret after the other,
 * about which it tells nothing. */
uint64_t tuttiIdHash(uint64_t before, const uint8_t secret[16]);

/* The secret of TUTTI_COMM_ID for ranks without a key, by which those whose keys differ can tell
 * each other so; false: there is no TUTTI_COMM_ID here. */
bool tuttiIdOpenSecret(uint8_t secret[16]);

/* Starts the thread of a root that serves one communicator and ends by itself: when all ranks are
 * done with their init or one has failed, with the first of the deadlines that ranks bring, and
 * after TUTTI_TIMEOUT if none comes; takes the listener. `rank`: this process's; -1: known when it
 * checks in. A root that is not `fixed` stays for a while after a failure, to tell it to those who
 * come late. */
tuttiResult_t tuttiRootStart(tuttiListener listener, const tuttiAddress *shown,
                             const uint8_t secret[16], bool fixed, int rank);
/* Ends the roots of this process that have this secret and still wait. With tuttiSuccess at once
 * and without a word, as nobody else has its id, or needs it any more; else `why` and this thread's
 * last error are told to those who have come, and to those who come in the next two seconds. */
void tuttiRootCancel(const uint8_t secret[16], tuttiResult_t why);
/* Starts the root of a fixed id, on whose address an earlier root may still be ending; on every
 * address if TUTTI_COMM_ID is a name that means loopback on this host. */
tuttiResult_t tuttiRootStartFixed(const tuttiId *id, tuttiWait wait);

__END_DECLS

#endif

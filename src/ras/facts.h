/* What one rank tells of itself, and what is known of all ranks of a communicator at one moment.
 * Plain data of fixed size, which travels between processes of one version; nothing of it is
 * believed before tuttiFactsParse or tuttiRankStateParse has looked at it. */
#ifndef TUTTI_RAS_FACTS_H_
#define TUTTI_RAS_FACTS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "collectives/signature.h"
#include "watch/watch.h"

__BEGIN_DECLS

/* What a heartbeat says: TUTTI_WATCH_STATE bytes at most. */
#define TUTTI_STATE_SIGS 4
typedef struct {
  uint64_t started, ended;               /* as in the operation record */
  tuttiSignature last[TUTTI_STATE_SIGS]; /* last[0] is the newest; started of them, at most 4 */
  uint64_t offer;                        /* of the rank's last shrink, see shrink.c; 0: none */
  uint16_t portsDown, broken; /* of its network, and connections that are being made anew */
  char port[24];              /* the first of those that are down, "mlx5_0:1", or "" */
  uint32_t unused;
} tuttiRankState;

/* Checks bytes that came over a socket. */
bool tuttiRankStateParse(const void *bytes, size_t size, tuttiRankState *out);

/* An operation of the record. */
typedef struct {
  tuttiSignature sig;
  /* tuttiNow() clock of the rank's host; 0: it was not stamped, or has not ended. */
  uint64_t enqueued, start, end;
  uint8_t algo, proto; /* UINT8_MAX: not known */
  uint16_t channels;
  uint32_t unused;
} tuttiOpFacts;

/* An endpoint that waits for its peer, or of which messages are under way. */
typedef struct {
  int32_t peer; /* -1: all ranks of the host */
  int16_t channel;
  uint8_t sends;
  uint8_t awaited;  /* the rank's operation waits for it */
  uint32_t sinceMs; /* of that wait; 0: not known */
  uint32_t unused;
  uint64_t written, taken; /* messages: sent and acknowledged, or come and taken by this rank */
  char via[16];            /* "SHM", "NET/Socket" */
  char text[160];          /* the state of its sockets or queue pairs; "" */
} tuttiWaitFacts;

/* Signals of one-sided operations that a rank waits for, or its kernel; or room to put. */
typedef struct {
  int32_t peer;            /* from which, or to which */
  uint32_t index, context; /* of the signals */
  uint32_t wanted, come;   /* wanted 0: it waits for room */
  uint32_t sinceMs;
} tuttiSignalFacts;

/* How fast the link of a connection is: as the end that can tell has measured it, or what the other
 * end has at least seen. Of several channels that lead to one peer, the slowest. */
typedef struct {
  int32_t peer;
  int16_t channel;
  uint8_t sends;    /* the link leads to the peer; else from it */
  uint8_t atLeast;  /* it may be faster */
  uint32_t rate;    /* kB/s that it carries while nothing else holds it up; never 0 */
  uint32_t allRate; /* of all connections of this rank and NIC meanwhile, in that direction */
  char via[16];
  char nic[2][24]; /* the sender's and the receiver's: a port or an interface; "": not known */
} tuttiLinkFacts;

/* How far a communicator's life has got. */
#define TUTTI_PHASES(X)                                                                            \
  X(Joining, "joins: its ranks meet")                                                              \
  X(Connecting, "joins: its ranks have met and set up their paths")                                \
  X(Usable, "usable") X(Finalizing, "finalized") X(Suspended, "suspended") X(Ending, "ends")
#define TUTTI_PHASE(name, text) tuttiPhase##name,
typedef enum { TUTTI_PHASES(TUTTI_PHASE) tuttiPhaseCount } tuttiPhase;
const char *tuttiPhaseText(int phase);

/* What is counted of a communicator on a rank. */
#define TUTTI_COUNTERS(X)                                                                          \
  X(Stalls, "stalls", "Times that an operation waited for more than 0.1 s.")                       \
  X(Mended, "mended_connections", "Network connections that were made anew after trouble.")        \
  X(Memory, "memory_bytes", "Bytes of memory that the communicator holds.")
#define TUTTI_COUNTER(name, word, help) tuttiCounter##name,
typedef enum { TUTTI_COUNTERS(TUTTI_COUNTER) tuttiCounterCount } tuttiCounter;

#define TUTTI_FACTS_OPS   64
#define TUTTI_FACTS_WAITS 8
#define TUTTI_FACTS_LINKS 8
typedef struct {
  uint32_t version;                  /* TUTTI_VERSION_CODE */
  int32_t rank, nranks, pid, device; /* device: ordinal of the GPU, or -1 */
  int32_t phase;                     /* tuttiPhase */
  int32_t failed;                    /* tuttiResult_t */
  uint32_t phaseMs, inMs; /* since when in this phase, and in the operation that has not ended */
  uint32_t aborted;
  uint64_t hash, key;     /* of the communicator, 0 before its ranks have met; of its unique id */
  uint64_t now, realtime; /* ns, when this was told: tuttiNow(), and since 1970 */
  uint64_t hostId;        /* ranks of equal ones have one clock */
  uint64_t offer;
  uint64_t counts[tuttiCollCount],
      bytes[tuttiCollCount]; /* operations, and bytes of their buffers */
  uint64_t counters[tuttiCounterCount];
  uint64_t started, ended; /* as in the operation record: on GPUs an operation ends there when it
                              has been launched */
  tuttiSignature in;       /* what it is in, if `inside`: the newest operation, or that in which a
                              kernel waits */
  uint32_t nops, nwaits, inside, nlinks;
  uint32_t awaitsSignals, unused; /* 1: for a tenth of a second, of which `signals` tells */
  tuttiSignalFacts signals;
  char name[64], host[64], failure[640];
  tuttiWaitFacts waits[TUTTI_FACTS_WAITS];
  tuttiLinkFacts links[TUTTI_FACTS_LINKS]; /* those that are measured first, the slowest of these
                                              and of the others first; more are left out */
  tuttiOpFacts ops[TUTTI_FACTS_OPS];       /* the newest first */
} tuttiFacts;

/* Copies what a rank has told, once it holds together: enums and numbers are in their bounds, texts
 * end and are printable. */
bool tuttiFactsParse(const void *bytes, size_t size, tuttiFacts *out);

/* What is known of a rank. */
typedef struct {
  tuttiWho who;
  tuttiWatchAnswer answer; /* the state is a tuttiRankState */
  uint32_t told;           /* its facts are here */
  uint32_t process; /* a letter of /proc/PID/stat, if somebody has looked: 'T' is stopped; 'X':
                       there is no such process; 0: nobody has */
  tuttiFacts facts;
} tuttiRankView;

/* A communicator at one moment. */
typedef struct {
  uint64_t hash, key;
  int32_t nranks, asker; /* asker: the rank that has asked the others */
  char name[64];
  tuttiRankView *ranks; /* [nranks] */
} tuttiCommSnapshot;

/* All communicators that were asked about. */
typedef struct {
  uint64_t realtime; /* ns since 1970, when it was complete */
  double seconds;    /* that it took */
  int ncomms, capacity;
  tuttiCommSnapshot *comms;
} tuttiSnapshot;

/* Adds a communicator without ranks' facts; *out is valid until the next one is added. */
tuttiResult_t tuttiSnapshotAdd(tuttiSnapshot *s, uint64_t hash, uint64_t key, int nranks,
                               tuttiCommSnapshot **out);
void tuttiSnapshotFree(tuttiSnapshot *s);
/* Takes over what is known better of one rank of one communicator than `to` has. */
void tuttiRankViewMerge(tuttiRankView *to, const tuttiRankView *from);

/* The state of a rank from whatever is known of it; false: nothing is. */
bool tuttiRankViewState(const tuttiRankView *r, tuttiRankState *out);

__END_DECLS

#endif

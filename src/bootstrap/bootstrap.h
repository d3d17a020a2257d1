/* Rendezvous and out-of-band exchange over TCP: who is there, and small all-gathers at init. Then
 * the watch keeps the ring of sockets for the life of the communicator. */
#ifndef TUTTI_BOOTSTRAP_BOOTSTRAP_H_
#define TUTTI_BOOTSTRAP_BOOTSTRAP_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "base/mem.h"
#include "socket/socket.h"
#include "tutti.h"

__BEGIN_DECLS

/* What a tuttiUniqueId holds. Checked by tuttiIdParse: magic, version, checksum, addresses. */
typedef struct {
  uint32_t magic, version;
  uint8_t secret[16];
  uint64_t check;         /* tuttiHash over the other fields */
  int32_t fixed;          /* 1: of TUTTI_COMM_ID, where rank 0 starts the root at init */
  tuttiAddressList roots; /* of the root, best first */
  int32_t reserved;       /* 0; no byte of an id is padding, whose value a copy may lose */
} tuttiId;

/* Starts a root (a detached thread that ends by itself) and describes it. With TUTTI_COMM_ID set,
 * starts none: rank 0 does so at init. */
tuttiResult_t tuttiIdCreate(tuttiUniqueId *out);
/* tuttiInvalidArgument says what is wrong: not made by tuttiGetUniqueId, of another version, ... */
tuttiResult_t tuttiIdParse(const tuttiUniqueId *in, tuttiId *out);

/* What Join makes, constant but for the fds, which are non-blocking, close on exec, and registered
 * with tuttiForkCloseAdd. */
typedef struct {
  int rank, nranks;
  uint64_t hash; /* of this one communicator: the same on all its ranks, different even from another
                    that was made with the same TUTTI_COMM_ID */
  uint8_t secret[16];          /* as the hash */
  int listenFd;                /* accepts ring and ask connections; -1 when taken by the watch */
  tuttiAddressList *listeners; /* [nranks] of every rank */
  int prevFd, nextFd;          /* ring sockets; -1 when nranks == 1 or taken by the watch */
  char prevName[96], nextName[96]; /* "rank 3 (host a, pid 17)", for errors */
  /* Those this rank chose, best first; interfaces[0] carries its listeners. */
  tuttiInterface interfaces[TUTTI_MAX_INTERFACES];
  int ninterfaces;
} tuttiBootstrap;

/* Joins: checks in with the root (one of nids: rank r with root r * nids / nranks; ids past the
 * first nranks are not used), learns the next rank's address, forms a ring of sockets. On expiry
 * the root knows who never came, and tells those who did: the error lists the missing ranks. Two
 * ranks with one number, and ranks that disagree on nranks, fail on all ranks with a text that
 * names both (host, pid). */
tuttiResult_t tuttiBootstrapJoin(const tuttiUniqueId *ids, int nids, int rank, int nranks,
                                 tuttiWait wait, tuttiBootstrap **out);
/* all[rank * size ...] holds this rank's part on entry; every rank's on return. Ring all-gather. */
tuttiResult_t tuttiBootstrapAllGather(tuttiBootstrap *b, void *all, size_t size, tuttiWait wait);
/* Closes everything that the watch has not taken. NULL is allowed. */
void tuttiBootstrapClose(tuttiBootstrap *b);

/* A rendezvous of some ranks of a communicator, without the others: the leader of them offers it,
 * which starts its root in this process, and the others follow; both then have an id. *port is what
 * they must be told; `purpose` keeps apart what differs in anything else. */
tuttiResult_t tuttiIdOffer(const tuttiBootstrap *b, uint64_t purpose, tuttiUniqueId *out,
                           uint16_t *port);
void tuttiIdFollow(const tuttiBootstrap *b, int leader, uint64_t purpose, uint16_t port,
                   tuttiUniqueId *out);

/* ---- the watch ------------------------------------------------------------------------------
 * One thread per process serves the watches of all its communicators: it notices that a ring
 * neighbour died (its socket closed without a goodbye, or its host fell silent), passes failures
 * round the ring in both directions, and answers questions about this rank's state. */

#define TUTTI_WATCH_STATE 128
typedef struct {
  int32_t rank;
  char host[64];
  int32_t pid;
} tuttiWho;

typedef struct {
  void *ctx;
  /* Called from the watch thread; they must not block, nor call a watch. */
  /* A failure that another rank reported or that the watch noticed: code and full text. Called at
   * most once, and not after this rank's own tuttiWatchFail has gone out. */
  void (*failed)(void *ctx, tuttiResult_t code, const char *text);
  /* Writes up to TUTTI_WATCH_STATE bytes of this rank's state (what it is doing); sent with every
   * heartbeat and as answer to questions. Also called within tuttiWatchStart and tuttiWatchAsk, by
   * their thread. */
  size_t (*state)(void *ctx, void *out);
} tuttiWatchCalls;

typedef struct tuttiWatch tuttiWatch;

/* Takes over the ring sockets and the listener; reads the rest of `b` as long as it lives. `who`
 * has nranks entries and is copied. */
tuttiResult_t tuttiWatchStart(tuttiBootstrap *b, const tuttiWho *who, const tuttiWatchCalls *calls,
                              tuttiMemAccount *memory, tuttiWatch **out);
/* Tells every other rank: their `failed` is called with this code and text, unless another failure
 * has reached them before. Any thread but the watch's; the text is then with the kernel, so that a
 * process which exits at once still tells its reason, but for a neighbour that has read nothing for
 * long. Only the first failure of a watch counts. */
void tuttiWatchFail(tuttiWatch *w, tuttiResult_t code, const char *text);

/* What is known of the state of one rank. */
typedef struct {
  int32_t answered; /* 1: by the rank itself; 2: by its last heartbeat to a neighbour; 3: likewise,
                       and it has left since; 0: nothing */
  uint32_t ageMs;   /* of the state */
  uint32_t bytes;
  uint8_t state[TUTTI_WATCH_STATE];
} tuttiWatchAnswer;
/* Asks one rank, or with -1 every rank at once, for its state, for at most `ms`; answers[nranks]. A
 * stopped rank does not answer; its ring neighbours then tell what its last heartbeat said. */
tuttiResult_t tuttiWatchAsk(tuttiWatch *w, int rank, int ms, tuttiWatchAnswer *answers);

/* Says goodbye to the neighbours (so that they don't take the closing sockets for a death) and
 * frees. Waits for no peer longer than 100 ms. After it returns no callback runs; no other call on
 * the watch may be running. NULL is allowed. */
void tuttiWatchStop(tuttiWatch *w);

__END_DECLS

#endif

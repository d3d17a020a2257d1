/* Rendezvous and out-of-band exchange over TCP: who is there, and small all-gathers at init. Then
 * the watch (watch/watch.h) keeps the ring of sockets for the life of the communicator. */
#ifndef TUTTI_BOOTSTRAP_BOOTSTRAP_H_
#define TUTTI_BOOTSTRAP_BOOTSTRAP_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "base/mem.h"
#include "socket/key.h"
#include "socket/socket.h"
#include "tutti.h"

__BEGIN_DECLS

/* What a tuttiUniqueId holds. Checked by tuttiIdParse: magic, version, checksum, addresses. */
typedef struct {
  uint32_t magic, version;
  uint8_t secret[16];
  uint64_t check;         /* tuttiHash over the other fields */
  uint8_t fixed;          /* 1: of TUTTI_COMM_ID, where rank 0 starts the root at init */
  uint8_t keyed;          /* 1: fixed, and the secret comes from TUTTI_PSK_FILE */
  uint16_t pidSpace;      /* tuttiPidSpace() of the root's process; 0: not told */
  tuttiAddressList roots; /* of the root, best first */
  int32_t pid;            /* of the root's process; 0: not told. No byte of an id is padding, whose
                             value a copy may lose */
} tuttiId;

/* Starts a root (a detached thread that ends by itself) and describes it; `rank`: this process's
 * in the communicator to be, -1 if it is not known yet. With TUTTI_COMM_ID set, starts none: rank 0
 * does so at init. */
tuttiResult_t tuttiIdCreate(int rank, tuttiUniqueId *out);
/* Ends the root of an id that this process has made and will not use: `why`, with this thread's
 * last error, is told to those who have got the id all the same. */
void tuttiIdCancel(const tuttiUniqueId *id, tuttiResult_t why);
/* tuttiInvalidArgument says what is wrong: not made by tuttiGetUniqueId, of another version, ... */
tuttiResult_t tuttiIdParse(const tuttiUniqueId *in, tuttiId *out);
/* Whom a rank checks in with, before that has said who it is: "the process that made the unique id
 * (pid 17, at 10.0.0.1:4711)". Returns buf. */
const char *tuttiIdRootText(const tuttiId *id, char *buf, size_t size);
/* That process is known to have ended: it was one of this host and PID namespace. False of one
 * elsewhere, of which this process cannot know. */
bool tuttiIdRootGone(const tuttiId *id);

/* What Join makes, constant but for the fds, which are non-blocking, close on exec, and registered
 * with tuttiForkCloseAdd. */
typedef struct {
  int rank, nranks;
  uint64_t hash; /* of this one communicator: the same on all its ranks, different even from another
                    that was made with the same TUTTI_COMM_ID */
  uint8_t secret[16]; /* as the hash */
  tuttiTlsKey tls;    /* likewise, of all connections that are made from now on */
  uint32_t secureMs; /* the handshake of TLS took so long on the ring, where all made one at once */
  /* Accepts ring and ask connections; closed when taken by the watch, and where `together`. */
  tuttiListener listener;
  bool together; /* all ranks are threads of one process, in which nobody listens any more */
  tuttiAddressList *listeners;     /* [nranks] of every rank */
  int prevFd, nextFd;              /* ring sockets; -1 when nranks == 1 or taken by the watch */
  char prevName[96], nextName[96]; /* "rank 3 (host a, pid 17)", for errors */
  /* Those this rank chose, best first; interfaces[0] carries its listeners. */
  tuttiInterface interfaces[TUTTI_MAX_INTERFACES];
  int ninterfaces;
  bool lastGather;         /* set before the last one: the ring then belongs to the watches */
  struct tuttiSeat *seats; /* at the roots, until Done or GiveUp (bootstrap/seat.h); NULL: none */
} tuttiBootstrap;

/* A communicator, other than the one that is being made, of which ranks of the latter are members:
 * it has a watch, by which they can be asked what keeps them. */
#define TUTTI_KIN_RANKS 4     /* that are asked about */
#define TUTTI_KIN_MS    10000 /* the most that askMs may be */
typedef struct {
  void *ctx;
  int askMs; /* for asking, at most; 0: nobody can be asked */
  /* Writes what keeps those of the ranks, numbered as in the new communicator, that are members;
   * "": nothing is known. Ends early when the wait of the join fails. */
  void (*explain)(void *ctx, const int32_t *ranks, int n, char *text, size_t size);
  /* Whether some may never come, as the other communicator was ended. While that is so, those who
   * are missing are shown to `leaves` now and then, which returns the first of them that has left
   * it, with a text on that; -1: none has. It takes two seconds at most. */
  bool (*doubts)(void *ctx);
  int (*leaves)(void *ctx, const int32_t *ranks, int n, char *text, size_t size);
} tuttiKin;

/* Joins: checks in with the root (one of nids: rank r with root r * nids / nranks; ids past the
 * first nranks are not used), learns the next rank's address, forms a ring of sockets. On expiry
 * the root knows who never came, and tells those who did: the error lists the missing ranks, and
 * says what keeps them if a rank that has come knows it by its kin (NULL: it has none): for that
 * all wait TUTTI_KIN_MS and two seconds longer at most. A missing rank that has left the kin of one
 * that waits is not awaited: all fail at once. Two ranks with one number, and ranks that
 * disagree on nranks, fail on all ranks with a text that names both (host, pid). */
tuttiResult_t tuttiBootstrapJoin(const tuttiUniqueId *ids, int nids, int rank, int nranks,
                                 tuttiWait wait, const tuttiKin *kin, tuttiBootstrap **out);
/* all[rank * size ...] holds this rank's part on entry; every rank's on return. Twice round the
 * ring. A failure ends the others' too: see GiveUp. */
tuttiResult_t tuttiBootstrapAllGather(tuttiBootstrap *b, void *all, size_t size, tuttiWait wait);
/* What other ranks are told of `code` and this thread's last error: returns their code; a text that
 * names this rank unless it is of another, as with tuttiRemoteError. */
tuttiResult_t tuttiBootstrapAccount(const tuttiBootstrap *b, tuttiResult_t code, char *text,
                                    size_t size);
/* How long it takes, in ms, if all ranks ask all others something, each over a connection of its
 * own; 0 in the clear, where that is next to nothing. */
int64_t tuttiBootstrapAskingMs(const tuttiBootstrap *b);
/* This rank needs no all-gather any more, and deaths are noticed by the watch from now on. */
void tuttiBootstrapDone(tuttiBootstrap *b);
/* This rank's init fails with `code` and this thread's last error, which stays: all ranks that are
 * not done hear of it. Takes a second at most. Does nothing when it was called or done before. */
void tuttiBootstrapGiveUp(tuttiBootstrap *b, tuttiResult_t code);
/* The same for a rank that does not join: it checks in to say so. Roots that can't be reached
 * within a second are left to wait. */
void tuttiBootstrapDecline(const tuttiUniqueId *ids, int nids, int rank, int nranks,
                           tuttiResult_t code);
/* Closes everything that the watch has not taken; done with the init, unless it has given up. NULL
 * is allowed. */
void tuttiBootstrapClose(tuttiBootstrap *b);

/* A rendezvous of some ranks of a communicator, without the others: the leader of them offers it,
 * which starts its root in this process and will be rank 0, and the others follow; both then have
 * an id. *port is what they must be told; `purpose` keeps apart what differs in anything else. */
tuttiResult_t tuttiIdOffer(const tuttiBootstrap *b, uint64_t purpose, tuttiUniqueId *out,
                           uint16_t *port);
void tuttiIdFollow(const tuttiBootstrap *b, int leader, uint64_t purpose, uint16_t port,
                   tuttiUniqueId *out);

__END_DECLS

#endif

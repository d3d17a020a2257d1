/* How two ends of a connection find that they mean each other, and prove that they know the secret
 * of their unique id or communicator, without saying it. Three messages, since a caller may try
 * several addresses of one listener and must be able to drop a try without harm:
 *
 *   caller -> listener   hello: begins with tuttiHello; its size depends on the kind
 *   listener -> caller   reply: Accepted, or Failed with a text
 *   caller -> listener   confirm: from now on a closed connection means a dead process
 *
 * Each ends in, or has, a MAC under the secret. That of the hello is over all of it: who calls, for
 * what, whom and in which communicator. A copy of it is no proof, as anybody may have heard it; but
 * whoever has none gets no byte in return. That of the reply is over the hello's, which is never
 * the same twice, and so proves the listener; the confirm is the MAC over the reply's, and so
 * proves the caller. Nothing is done for a caller before. What follows on the connection is not
 * protected, unless the job encrypts: then all of this, and what follows, goes through TLS
 * (socket/secure.h), whose handshake comes first and is the caller's first proof. */
#ifndef TUTTI_BOOTSTRAP_HANDSHAKE_H_
#define TUTTI_BOOTSTRAP_HANDSHAKE_H_

#include <poll.h>
#include <sys/cdefs.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mac.h"
#include "bootstrap/bootstrap.h"
#include "socket/secure.h"

__BEGIN_DECLS

/* First bytes on every connection: of rendezvous, ring, watch and networks. The fields up to `mac`
 * stay where they are in every version. */
typedef struct {
  uint32_t magic;   /* TUTTI_HELLO_MAGIC */
  uint32_t version; /* TUTTI_VERSION_CODE */
  uint32_t bytes;   /* of the whole hello */
  int32_t kind;     /* tuttiHelloKind */
  uint8_t nonce[16];
  uint8_t mac[TUTTI_MAC_BYTES]; /* over the whole hello, itself zero */
  uint64_t hash;    /* which communicator; in a ring hello: the ticket of the listener */
  int32_t from, to; /* ranks; to -1: a root */
  int32_t nranks;   /* the sender's idea of it */
  int32_t pid;
  char host[64];
} tuttiHello;
#define TUTTI_HELLO_MAGIC 0x74757474u
#define TUTTI_HELLO_MAX   512 /* bytes of any */

typedef enum {
  tuttiHelloCheckIn = 1, /* rank -> root */
  tuttiHelloRing = 2,    /* rank -> next rank of the ring */
  tuttiHelloAsk = 3,     /* watch -> watch: a question about state */
  tuttiHelloNet = 4,     /* NET: sender -> receiver (transport/net.h) */
  tuttiHelloRejoin = 5,  /* watch -> watch of the next rank: their connection was cut */
  tuttiHelloReport = 6   /* watch -> watch: a question about everything */
} tuttiHelloKind;

typedef enum {
  tuttiReplyAccepted = 1,
  tuttiReplyFailed = 2, /* `bytes` of text follow */
  tuttiReplyNext = 3,   /* root -> rank at the end; a tuttiNeighbour follows */
  /* Between a root and those who are seated, which also say Failed to each other: */
  tuttiReplyRoot = 4,    /* root -> rank: a tuttiRootName follows */
  tuttiReplyDone = 5,    /* rank -> root: its init is over, or far enough */
  tuttiReplyDead = 6,    /* root -> rank, before Failed: tuttiProcessId() of whose death it comes */
  tuttiReplyMissing = 7, /* root -> rank: a tuttiMissing follows; and what a rank that has kin
                            answers to it: a text about them, or nothing */
  tuttiReplyWho = 8      /* rank -> root: who is missing? It is told by a Missing without a grace */
} tuttiReplyKind;

/* The same in every version, so that a mix of versions can be told. */
typedef struct {
  uint32_t magic, version;
  int32_t kind;   /* tuttiReplyKind */
  int32_t code;   /* Failed: the tuttiResult_t */
  uint32_t bytes; /* that follow, at most TUTTI_ERROR_TEXT */
  uint8_t nonce[16];
  uint8_t mac[TUTTI_MAC_BYTES]; /* over the hello's, the reply with this zero, and what follows */
} tuttiReply;

/* What all messages of one connection are bound to. The secret is the owner's. */
typedef struct {
  const uint8_t *secret;          /* [16] */
  uint8_t hello[TUTTI_MAC_BYTES]; /* the mac of its hello */
} tuttiSession;

/* Makes a hello of `bytes`, at most TUTTI_HELLO_MAX, a new one: its nonce and what follows. */
tuttiResult_t tuttiHelloSeal(void *hello, size_t bytes, tuttiSession *session);
/* Whether the whole hello, of whatever version, is of one who knows session->secret. */
bool tuttiHelloGenuine(const void *hello, size_t bytes, tuttiSession *session);
/* True if a reply is well-formed. */
bool tuttiReplyValid(const tuttiReply *reply);
/* Whether it and what follows it, `data`, are of one who knows the secret and got this hello. */
bool tuttiReplyGenuine(const tuttiSession *session, const tuttiReply *reply, const void *data);
/* What confirms an Accepted reply. */
void tuttiConfirmOf(const tuttiSession *session, const tuttiReply *reply,
                    uint8_t confirm[TUTTI_MAC_BYTES]);
/* Sends without waiting; replies are small and first on their connection, so they fit the socket's
 * buffer. A peer that has gone is no failure of ours. `confirm` is NULL or gets what the caller
 * must answer. */
void tuttiReplySend(int fd, const tuttiSession *session, tuttiReplyKind kind, int code,
                    const void *data, size_t bytes, uint8_t confirm[TUTTI_MAC_BYTES]);
/* Fills what is the same in all hellos of this process. */
void tuttiHelloFill(tuttiHello *h, uint64_t hash, tuttiHelloKind kind, int from, int to,
                    int nranks);
/* "rank 3 (host a, pid 17)"; whatever the bytes are, the result is printable. */
const char *tuttiHelloName(const tuttiHello *h, char *buf, size_t size);
/* The path this library was loaded from. */
const char *tuttiLibraryPath(void);

/* ---- connecting -----------------------------------------------------------------------------
 * Attempts at several addresses by turns, round after round, without blocking. One that swallows
 * packets costs the others 250 ms in the first round. */

/* Addresses of a peer and, for link-local ones, each local interface they may be behind. */
#define TUTTI_MAX_TARGETS 8

typedef struct {
  tuttiAddress target, local; /* local: the source of the last attempt; family 0: none */
  int error;                  /* errno of the last attempt; 0 before the first ended */
  uint64_t refusedSince;      /* no attempt has met anything but ECONNREFUSED since; 0: not so */
} tuttiAttempt;

typedef struct {
  int n;
  tuttiAttempt attempts[TUTTI_MAX_TARGETS];
  int current, fd; /* the address whose turn it is, and the attempt in flight; -1: none */
  uint32_t attemptMs, backoffMs; /* in this round, and after it */
  uint64_t due; /* when the attempt in flight is given up, or the next one begins */
} tuttiConnector;

/* `targets` may hold link-local addresses with the scope of another host: they are tried on each of
 * this host's interfaces of that kind too. */
void tuttiConnectorInit(tuttiConnector *c, const tuttiAddressList *targets);
/* Starts and ends attempts. *fd is the connection, of attempts[*index], or -1 when there is none
 * yet; it is for tuttiFdClose, and closed in a forked child. Fails only when this process can't
 * make sockets. */
tuttiResult_t tuttiConnectorStep(tuttiConnector *c, const char *who, int *fd, int *index);
/* Fills one entry and returns when to step next even without an event. */
uint64_t tuttiConnectorWaitOn(const tuttiConnector *c, struct pollfd *fd);
/* Abandons the attempt in flight. Does nothing to a connector of zeros. */
void tuttiConnectorStop(tuttiConnector *c);
/* The attempt in flight, or the connection that came of the last one, proved useless: the next
 * address has its turn. */
void tuttiConnectorReject(tuttiConnector *c, int error);
/* True when every address has refused for `ms`: nobody is listening any more. */
bool tuttiConnectorRefused(const tuttiConnector *c, uint32_t ms);
/* "10.0.0.1:4711 from eth0 (10.0.0.2, up): Connection refused; ... <remedy>"; returns buf. */
const char *tuttiConnectorText(const tuttiConnector *c, char *buf, size_t size);

/* ---- the calling end ------------------------------------------------------------------------ */

typedef enum {
  TUTTI_DIAL_CONNECTING,
  TUTTI_DIAL_SECURING,  /* by TLS */
  TUTTI_DIAL_ASKING,    /* for the reply */
  TUTTI_DIAL_LISTENING, /* to the answer */
  TUTTI_DIAL_DONE
} tuttiDialState;

typedef struct {
  tuttiConnector connector;
  const char *who;
  void *hello;
  tuttiSession session; /* of the attempt in flight */
  size_t helloBytes, sent, got;
  tuttiDialState state;
  int fd, index;          /* fd: the connection, from SECURING on */
  const tuttiTlsKey *tls; /* the owner's; NULL, or not on: in the clear */
  tuttiReply reply;
  void *answer; /* NULL, or what comes when it is confirmed: then it is done */
  size_t answerBytes;
  uint64_t askUntil;
  uint32_t patienceMs; /* for the next reply, while other addresses could be tried */
  uint32_t refusedMs;  /* give up when everything refuses this long; 0: never */
  bool hungUp;         /* the last attempt ended so, after the hello or its handshake of TLS */
  uint64_t securedAt;  /* when the handshake of TLS began */
  uint32_t securedMs;  /* and how long it took in the end */
  short secureEvents;  /* that the handshake of TLS waits for */
  int unsecured;       /* errno of the last of these that failed; 0: none since this was cleared */
  bool neverFails;     /* the listener says no Failed: who does is none, and is not waited for */
  const char *remedy;  /* ends the error's text */
} tuttiDial;

/* `hello`, `who`, the secret and the key must stay valid until the dial is done or closed; the
 * hello is sealed for each attempt. Goes through TLS if the key is on. Never gives up on a refusal,
 * has no remedy and awaits no answer, until those fields are set. */
void tuttiDialInit(tuttiDial *d, const tuttiAddressList *targets, void *hello, size_t helloBytes,
                   const uint8_t secret[16], const tuttiTlsKey *tls, const char *who);
/* Goes on as far as it can without waiting; done when d->state is DONE, then d->fd is the
 * caller's. */
tuttiResult_t tuttiDialStep(tuttiDial *d, tuttiWait wait);
/* Fills one entry; returns when to step next even without an event. */
uint64_t tuttiDialWaitOn(const tuttiDial *d, struct pollfd *fd);
/* The connection is not the peer's, or not any more: back to connecting, with another address if
 * there is one. Returns tuttiSuccess. */
tuttiResult_t tuttiDialReject(tuttiDial *d, int error);
/* Closes what is not DONE. */
void tuttiDialClose(tuttiDial *d);
/* Reads the text that follows a Failed reply and adopts it if it is genuine; else that is the
 * error. */
tuttiResult_t tuttiReplyAdopt(int fd, const tuttiSession *session, const tuttiReply *reply,
                              const char *who, tuttiWait wait);

/* ---- the listening end ---------------------------------------------------------------------- */

typedef enum {
  TUTTI_GUEST_DROP,   /* close without a word */
  TUTTI_GUEST_ACCEPT, /* reply Accepted, wait for the confirm */
  TUTTI_GUEST_REFUSE  /* reply Failed with refuseCode and refuseText */
} tuttiVerdict;

#define TUTTI_GUESTS 256 /* for `nguests`, while a communicator is made */

typedef enum {
  TUTTI_GUEST_CLEAR,    /* in the clear */
  TUTTI_GUEST_UNKNOWN,  /* its first bytes say whether it is, where both are let in */
  TUTTI_GUEST_SECURING, /* in the handshake of TLS */
  TUTTI_GUEST_ANSWERED, /* likewise, and it was answered: it has the key, or repeats what was heard
                         */
  TUTTI_GUEST_SECURE
} tuttiGuestCover;

typedef struct {
  int fd; /* -1: free */
  tuttiGuestCover cover;
  bool accepted;                    /* its confirm is awaited */
  uint32_t got;                     /* bytes of the message */
  uint64_t until;                   /* dropped then */
  tuttiAddress from;                /* where it comes from */
  uint8_t confirm[TUTTI_MAC_BYTES]; /* what is awaited */
  /* The hello and the confirm; aligned as any kind of hello is. */
  uint8_t message[TUTTI_HELLO_MAX + TUTTI_MAC_BYTES] __attribute__((aligned(8)));
} tuttiGuest;

typedef struct {
  /* Of the owner, who sets them before Open and keeps the listener. */
  const tuttiListener *listener;
  const char *what; /* "the root of a unique id", for the log */
  size_t helloBytes;
  /* Unfinished connections at a time; beyond, the oldest one of the address that has most of them
   * is dropped. */
  int nguests;
  const uint8_t *secret;
  const tuttiTlsKey *tls; /* NULL, or not on: all guests come in the clear */
  bool clearToo;          /* if it is on, others may come as well; tuttiSecureIsOn tells */
  void *ctx;
  /* Judges a genuine hello of this version, which anybody may have heard before: it does nothing
   * for the caller. */
  tuttiVerdict (*check)(void *ctx, const void *hello);
  /* A guest that has confirmed; takes the fd. */
  void (*welcome)(void *ctx, const void *hello, int fd);
  /* A hello with the right secret but of another version; it was refused with refuseText. NULL:
   * those of other versions are dropped. */
  void (*otherVersion)(void *ctx);
  tuttiResult_t refuseCode;
  char refuseText[TUTTI_ERROR_TEXT];
  /* NULL, or another secret: who knows that one alone gets no further than to hear the text that
   * `stray` writes, with which he fails (tuttiInvalidUsage). False: he hears nothing. */
  const uint8_t *openSecret;
  bool (*stray)(void *ctx, const void *hello, const tuttiAddress *from,
                char text[TUTTI_ERROR_TEXT]);

  int epollFd; /* -1: not open */
  bool full;   /* all guests seem to know the secret: no more are let in for now */
  tuttiGuest *guests;
  tuttiLogRate strangers; /* that were dropped */
} tuttiGreeter;

/* Memory goes on the account, which may be NULL. A greeter that is not open has epollFd -1. */
tuttiResult_t tuttiGreeterOpen(tuttiGreeter *g, tuttiMemAccount *memory);
/* Handles what is ready on epollFd (poll it for POLLIN) and drops who is too slow. Never waits, and
 * answers at most one guest in a handshake of TLS, the one that has waited longest: that takes long
 * where processors are slow, and the caller has other things to do. The rest stays ready.
 * Fails only when this process has no fd left and no guest to drop. */
tuttiResult_t tuttiGreeterStep(tuttiGreeter *g);
/* When to step next even without an event. */
uint64_t tuttiGreeterNext(const tuttiGreeter *g);
/* Drops all guests. Does nothing to a greeter that is not open. */
void tuttiGreeterClose(tuttiGreeter *g);

__END_DECLS

#endif

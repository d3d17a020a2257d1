/* What the files of the watch share; nobody else includes this.
 *
 *   watch.c          start, stop, requests of other threads, and the thread's loop
 *   watch_link.c     the sockets to the two ring neighbours: frames, heartbeats, deaths, failures
 *   watch_ask.c      asking others, in the caller's thread, and answering them
 *
 * The watch thread alone touches the sockets and everything else here that is not marked; it never
 * blocks on one. What other threads want or read is marked "under the lock": tuttiWatchLock, one
 * for the process, held for a few copies only and never around a callback. */
#ifndef TUTTI_BOOTSTRAP_WATCH_INTERNAL_H_
#define TUTTI_BOOTSTRAP_WATCH_INTERNAL_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/os.h"
#include "bootstrap/handshake.h"
#include "bootstrap/watch_frame.h"

#define WATCH_HEARTBEAT_NS 500000000ull
#define WATCH_CONTACT_MS   3000 /* unacknowledged for so long: the kernel gives the peer up */
#define WATCH_FAREWELL_NS  100000000ull /* a leaving watch waits so long for its neighbours */
#define WATCH_GUESTS       32           /* connections that have not yet said what they want */
#define WATCH_NEVER        UINT64_MAX

typedef enum { tuttiSourceWake, tuttiSourceLink, tuttiSourceGreeter } tuttiSourceKind;

/* What epoll points at; the first member of what it belongs to. An event only says "look": all
 * decisions come from what the socket calls return, so that a stale event does no harm. */
typedef struct {
  tuttiSourceKind kind;
  int fd;          /* -1: closed */
  bool registered; /* with epoll, for `events` */
  uint32_t events;
  tuttiWatch *watch; /* NULL for the wake-up */
} tuttiSource;

/* A ring neighbour. */
typedef struct {
  tuttiSource source;
  int rank;
  bool left; /* it said goodbye: nothing but the answer is sent to it, its closing is no death */
  bool released;       /* it has seen our goodbye */
  int sendError;       /* errno of a failed send: the stream is read to its end, then it is lost */
  unsigned unanswered; /* heartbeats sent since one came, at most TUTTI_HEARTBEAT_LIMIT */
  uint64_t heardAt;    /* under the lock; 0: never */
  uint32_t heardBytes; /* under the lock */
  uint8_t heard[TUTTI_WATCH_STATE]; /* under the lock: its last heartbeat */
  size_t inBytes, outBytes;
  uint8_t in[TUTTI_FRAME_MAX];
  /* Holds a heartbeat (queued only when it is empty), one failure, both goodbyes. */
  uint8_t out[2 * TUTTI_FRAME_MAX];
} tuttiLink;

typedef enum {
  tuttiWatchJoining, /* waits for the thread to take it over */
  tuttiWatchActive,
  tuttiWatchLeaving, /* goodbyes are on their way */
  tuttiWatchGone     /* the thread has forgotten it */
} tuttiWatchPhase;

struct tuttiWatch {
  int rank, nranks;
  uint64_t hash;
  uint8_t secret[16];
  tuttiMemAccount *memory;
  tuttiWho *who;               /* [nranks] */
  tuttiAddressList *listeners; /* [nranks] */
  tuttiWatchCalls calls;

  tuttiWatch *sibling;  /* next one of the thread's list */
  tuttiLink links[2];   /* previous, next */
  tuttiGreeter greeter; /* of those who come to ask */
  tuttiSource guests;   /* its epoll */
  bool guestsPaused;    /* out of descriptors: not looked at until the next heartbeat */
  bool failed;          /* a failure was told or sent; there is no second one */
  uint64_t heartbeatAt;
  uint64_t leaveBy; /* 0: stays */

  /* Under the lock. */
  tuttiWatchPhase phase;
  int joinError; /* errno */
  bool stopWanted, stopAborted;
  bool failWanted, failTaken, failSent;
  tuttiFailureFrame failure; /* of tuttiWatchFail; constant once failWanted is set */
};

void tuttiWatchLock(void);
void tuttiWatchUnlock(void);

/* Adds the source to the thread's epoll, or changes what it waits for; false sets errno. */
bool tuttiSourceWatch(tuttiSource *source, uint32_t events);
/* Takes the source off epoll without closing it: a copy of the fd in a forked child would keep it
 * there. */
void tuttiSourceForget(tuttiSource *source);
/* Forgets and closes it. */
void tuttiSourceClose(tuttiSource *source);

/* Socket options of a ring connection. */
void tuttiLinkPrepare(tuttiLink *link);
void tuttiLinkReady(tuttiLink *link);
void tuttiLinkHeartbeat(tuttiLink *link, const void *state, size_t bytes);
void tuttiLinkGoodbye(tuttiLink *link);
/* No more is to be done before it can be closed. */
bool tuttiLinkFinished(const tuttiLink *link);
/* Reads and drops what has come, so that closing does not reset the connection under a frame that
 * the neighbour has not read yet; then closes. */
void tuttiLinkClose(tuttiLink *link);
/* The first failure wins: it is passed on to the neighbours but for `from` (may be NULL), and with
 * `tell` the owner's `failed` is called. */
void tuttiWatchSpread(tuttiWatch *w, const tuttiFailureFrame *failure, const tuttiLink *from,
                      bool tell);

/* Answers the right question; the greeter's `check`. */
tuttiVerdict tuttiWatchAnswerTo(void *watch, const void *hello, int fd);

/* This rank's state, asked of its owner: from the watch thread, or from within tuttiWatchAsk. */
void tuttiReportSelf(const tuttiWatch *w, tuttiStateReport *out);
/* What the neighbour's last heartbeat said. Takes the lock. */
void tuttiReportLink(const tuttiLink *link, tuttiStateReport *out);

#endif

/* The watch: the ring of sockets on which neighbours tell each other their state, their leaving,
 * and every failure; and one thread for all watches of the process, started with the first and
 * joined with the last.
 *
 * A neighbour that only falls silent is not dead: it may be stopped or busy, and its kernel still
 * acknowledges. Nor is one whose connection has ended without a goodbye, as something between the
 * hosts may have cut it: its listener is tried then. If nobody listens, the process is gone, at
 * once. If the watch there answers, the connection is made anew, by the rank before. If nothing
 * comes for TUTTI_WATCH_SILENCE, or the kernel has had no acknowledgement for so long, the host is
 * taken for lost.
 *
 * Once a rank has left, the ring is a chain, and failures travel it from both ends: any one rank
 * may have left and all others still hear of each other's failures. With two ranks gone, one part
 * may not hear of a failure in the other, and ends at its deadline.
 *
 * One lock for the process guards all watches. The thread holds it except while it sleeps; Start,
 * Fail and Stop do their part under it themselves. Nothing under it waits for a peer, and the
 * owner's calls are made under it. */
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/log.h"
#include "base/os.h"
#include "base/settings.h"
#include "bootstrap/handshake.h"
#include "watch/frame.h"

#define HEARTBEAT_MS   500
#define TELL_MS        3000 /* unacknowledged for so long: the log tells */
#define PROBE_MS       500  /* between two looks whether a neighbour that is cut off lives */
#define SEEK_MS        5    /* between two steps of making a connection anew */
#define GONE_BACKOFF   100  /* of a connector that has been turned away for some rounds, ms */
#define FAREWELL_NS    100000000ull /* a leaving watch waits so long for its neighbours */
#define GUESTS         32           /* connections that have not yet said what they want */
#define SERVICE_EVENTS 64
/* Frames of any sensible size are here within a few reads; level-triggered epoll comes back. */
#define LINK_READS 16
/* Of the lodger, after each turn. */
#define REST_TIMES  40
#define REST_MIN_NS TUTTI_MS
#define REST_MAX_NS (500 * TUTTI_MS) /* who is well-behaved waits for no longer */

/* What a Rejoin is answered with. */
typedef struct {
  uint64_t hash; /* of the communicator */
} rejoinAnswer;

/* Making the connection to a neighbour anew: the next rank is asked to take it, the previous one
 * only whether it lives, for it is the one that connects. */
typedef struct {
  bool on, told;
  tuttiAddress local;     /* of the connection that has ended */
  uint64_t since, nextAt; /* when the connection ended; when to step next */
  int error;              /* of which it ended; 0: closed */
  tuttiDial dial;
  tuttiHello hello;
  tuttiAnswer alive;
  rejoinAnswer taken;
} seeking;

/* A ring neighbour. */
typedef struct {
  int fd; /* -1: closed */
  tuttiWho who;
  bool left; /* it said goodbye: nothing but the answer is sent to it, its closing is no death */
  bool released;       /* it has seen our goodbye */
  int sendError;       /* errno of a failed send: the stream is read to its end, then it is lost */
  unsigned unanswered; /* heartbeats sent since one came, at most TUTTI_HEARTBEAT_LIMIT */
  /* Where it listens: on the way that the ring's connection took, if that is known. None: there is
   * no trying whether it lives. */
  tuttiAddressList listeners;
  seeking seek;
  bool toldSilent;
  uint64_t heardAt;
  tuttiWatchAnswer heard; /* its last heartbeat, but for the age */
  size_t inBytes, outBytes;
  uint8_t in[TUTTI_FRAME_MAX];
  /* Holds a heartbeat (queued only when it is empty), one failure, both goodbyes. */
  uint8_t out[2 * TUTTI_FRAME_MAX];
} ringLink;

/* All but what is constant is under the lock. */
struct tuttiWatch {
  const tuttiBootstrap *bootstrap; /* constant, as what the watch reads of it */
  tuttiMemAccount *memory;         /* constant */
  tuttiWatchCalls calls;           /* constant */
  tuttiWho who;
  ringLink links[2]; /* previous, next */
  tuttiListener listener;
  tuttiGreeter greeter;      /* of those who come to ask, or to make a connection anew */
  bool guestsPaused;         /* out of descriptors: not looked at until the next heartbeat */
  tuttiAtomic32 failed;      /* a failure was told or sent; there is no second one. Who asks looks
                                without the lock */
  bool leaving;              /* goodbyes are on their way */
  tuttiFailureFrame failure; /* the first, for a connection that is made anew */
  bool *dead;                /* [nranks] told of or noticed here */
  bool *gone;                /* [nranks] `together`: its watch has stopped */
  tuttiWatch *next;          /* of the process */
};

static struct {
  /* Serializes starting and joining the thread; taken before `lock`, never by the thread. */
  pthread_mutex_t life;
  int users;           /* under life */
  pthread_t thread;    /* under life */
  int epollFd, wakeFd; /* constant while there are users; an event's data is its watch */
  pthread_mutex_t lock;
  pthread_cond_t served;           /* the thread has done what there was to do */
  tuttiWatch *watches;             /* under lock */
  int seekers;                     /* links that seek; under lock */
  tuttiWatchLodger lodger;         /* under lock; without `serve`: there is none */
  uint64_t lodgerDue, lodgerRests; /* his next turn at the latest, and not before that one */
  bool lodgerHeard, lodgerLooks;   /* there is something to read; or he is on epoll, to tell so */
  bool quit;                       /* under lock */
} service = {.life = PTHREAD_MUTEX_INITIALIZER,
             .epollFd = -1,
             .wakeFd = -1,
             .lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP,
             .served = PTHREAD_COND_INITIALIZER}; /* initServed makes it anew */

static bool lookAt(int op, int fd, bool on, tuttiWatch *w) {
  struct epoll_event event = {.events = on ? EPOLLIN : 0, .data.ptr = w};
  return epoll_ctl(service.epollFd, op, fd, &event) == 0;
}

/* Off epoll first: a copy of the fd in a forked child would keep it there. */
static void linkClose(ringLink *link) {
  if (link->fd >= 0) lookAt(EPOLL_CTL_DEL, link->fd, false, NULL);
  tuttiFdClose(&link->fd);
}

/* ---- sending -------------------------------------------------------------------------------- */

/* What does not fit the socket's buffer goes with the next heartbeat. A send that fails does not
 * end the link: what the neighbour said before (a goodbye, a failure) may still be unread, and
 * linkReady finds out why it went. */
static void linkFlush(ringLink *link) {
  while (link->outBytes > 0) {
    ssize_t sent = tuttiSecureSend(link->fd, link->out, link->outBytes);
    if (sent > 0) {
      link->outBytes -= (size_t)sent;
      memmove(link->out, link->out + sent, link->outBytes);
    } else if (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM) {
      return;
    } else if (errno != EINTR) {
      link->sendError = errno;
      link->outBytes = 0;
    }
  }
}

static void linkSend(ringLink *link, tuttiFrameType type, const void *payload, size_t bytes) {
  if (link->fd < 0 || link->sendError != 0) return;
  link->outBytes += tuttiFrameWrite(link->out + link->outBytes, sizeof(link->out) - link->outBytes,
                                    type, payload, bytes); /* 0 when there is no room */
  linkFlush(link);
}

/* The first failure wins: it is passed on to the neighbours but for `from` (may be NULL), and with
 * `tell` the owner hears of it. So is the first that tells of a death, whatever came before. */
static void spread(tuttiWatch *w, const tuttiFailureFrame *failure, const ringLink *from,
                   bool tell) {
  bool first = !tuttiLoadRelaxed32(&w->failed),
       death = failure->dead >= 0 && !w->dead[failure->dead];
  if (!first && !death) return;
  if (first) w->failure = *failure;
  tuttiStoreRelease32(&w->failed, 1);
  if (death) w->dead[failure->dead] = true;
  TUTTI_INFO(BOOTSTRAP, "watch: rank %d passes on a failure noticed by rank %d: %s", w->who.rank,
             failure->origin, failure->text);
  size_t bytes = offsetof(tuttiFailureFrame, text) + strlen(failure->text) + 1;
  for (int i = 0; i < 2; i++)
    if (&w->links[i] != from) linkSend(&w->links[i], tuttiFrameFailure, failure, bytes);
  if (w->leaving) return;
  if (death) w->calls.died(w->calls.ctx, failure->dead, failure->text);
  if (!first || !tell) return;
  void (*told)(void *, tuttiResult_t, const char *) =
      failure->dead == TUTTI_DEAD_MAYBE ? w->calls.ended : w->calls.failed;
  told(w->calls.ctx, (tuttiResult_t)failure->code, failure->text);
}

static void spreadText(tuttiWatch *w, tuttiResult_t code, int dead, const char *text, bool tell) {
  tuttiFailureFrame failure;
  tuttiFailureFill(&failure, code, w->who.rank, dead, text);
  spread(w, &failure, NULL, tell);
}

/* ---- receiving ------------------------------------------------------------------------------ */

/* This thread's last error tells of a death: born and logged here, and all other ranks adopt it.
 * After another failure of the communicator it explains nothing, and the log is spared. */
static void tellDeath(tuttiWatch *w, const ringLink *link) {
  spreadText(w, tuttiRemoteError, link->who.rank, tuttiErrorText(), true);
}

static int silenceMs(void) {
  return (int)tuttiSettingInt(TUTTI_SETTING_WATCH_SILENCE);
}

static void linkSilent(tuttiWatch *w, const ringLink *link, const tuttiAddress *local, int error) {
  const tuttiWho *who = &link->who;
  char interface[128] = "an unknown interface";
  if (local->sa.sa_family != AF_UNSPEC) tuttiInterfaceOf(local, interface, sizeof(interface));
  TUTTI_FAIL(tuttiRemoteError,
             "lost contact with rank %d (host %s, pid %d): no answer to rank %d (host %s) for %d "
             "s over %s: %s. Remedy: check that host %s is up, and the network between the two "
             "hosts, or raise TUTTI_WATCH_SILENCE",
             who->rank, who->host, who->pid, w->who.rank, w->who.host, silenceMs() / 1000,
             interface, tuttiErrnoText(error), who->host);
  tellDeath(w, link);
}

static void linkDied(tuttiWatch *w, const ringLink *link, int error) {
  const tuttiWho *who = &link->who;
  if (tuttiLoadRelaxed32(&w->failed) && w->failure.dead != TUTTI_DEAD_MAYBE) {
    char text[300];
    snprintf(text, sizeof(text), "rank %d (host %s, pid %d) died, after another failure", who->rank,
             who->host, who->pid);
    spreadText(w, tuttiRemoteError, who->rank, text, false);
    return;
  }
  TUTTI_FAIL(tuttiRemoteError,
             "rank %d (host %s, pid %d) died: its connection to rank %d closed without goodbye"
             "%s%s (killed, crashed, or exited without tuttiCommDestroy). Remedy: see the log of "
             "that process, and the kernel log of host %s for its out-of-memory killer",
             who->rank, who->host, who->pid, w->who.rank, error != 0 ? ": " : "",
             error != 0 ? tuttiErrnoText(error) : "", who->host);
  tellDeath(w, link);
}

/* Heartbeats give the kernel something to be acknowledged; keep-alive probes take over when a
 * stopped neighbour has had all its heartbeats. */
static void setOptions(int fd) {
  const struct {
    int level, name, value;
  } options[] = {{IPPROTO_TCP, TCP_NODELAY, 1},
                 {IPPROTO_TCP, TCP_USER_TIMEOUT, silenceMs()},
                 {IPPROTO_TCP, TCP_KEEPIDLE, 1},
                 {IPPROTO_TCP, TCP_KEEPINTVL, 1},
                 {SOL_SOCKET, SO_KEEPALIVE, 1}};
  for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
    if (setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int)) != 0)
      TUTTI_INFO(BOOTSTRAP, "watch: option %d of a ring socket: %s", options[i].name,
                 tuttiErrnoText(errno));
}

/* ---- making a connection anew --------------------------------------------------------------- */

static void seekAgain(const tuttiWatch *w, ringLink *link) {
  seeking *s = &link->seek;
  const tuttiBootstrap *b = w->bootstrap;
  bool next = link == &w->links[1];
  tuttiHelloFill(&s->hello, b->hash, next ? tuttiHelloRejoin : tuttiHelloAsk, b->rank,
                 link->who.rank, b->nranks);
  tuttiDialInit(&s->dial, &link->listeners, &s->hello, sizeof(s->hello), b->secret, &b->tls,
                "a neighbour");
  s->dial.neverFails = true;
  s->dial.answer = next ? (void *)&s->taken : (void *)&s->alive;
  s->dial.answerBytes = next ? sizeof(s->taken) : sizeof(s->alive);
}

static void seekEnd(ringLink *link) {
  if (!link->seek.on) return;
  link->seek.on = false;
  service.seekers--;
  tuttiDialClose(&link->seek.dial);
}

/* Nobody listens where the neighbour did: refused, or somebody else turns the hello away. */
static bool isGone(const tuttiDial *d, int listeners) {
  if (d->state == TUTTI_DIAL_DONE || d->fd >= 0 || d->connector.fd >= 0) return false;
  for (int i = 0; i < listeners; i++) {
    int error = d->connector.attempts[i].error;
    bool turnedAway =
        error == ECONNRESET || error == EPIPE || error == EPROTO || error == EKEYREJECTED;
    if (error != ECONNREFUSED && !(turnedAway && d->connector.backoffMs > GONE_BACKOFF))
      return false;
  }
  return true;
}

/* The connection lives again; what the neighbour may have missed is told once more. */
static void linkResume(tuttiWatch *w, ringLink *link, int fd) {
  if (link->fd >= 0) linkClose(link);
  TUTTI_WARN(BOOTSTRAP,
             "watch: the connection of rank %d to rank %d (host %s, pid %d) was cut%s%s, and is "
             "made anew: both live. Remedy: see what ends connections between the two hosts",
             w->who.rank, link->who.rank, link->who.host, link->who.pid,
             link->seek.error ? ": " : "",
             link->seek.error ? tuttiErrnoText(link->seek.error) : "");
  seekEnd(link);
  link->fd = fd;
  link->sendError = 0;
  link->inBytes = link->outBytes = 0;
  link->unanswered = 0;
  setOptions(fd);
  lookAt(EPOLL_CTL_ADD, fd, true, w);
  if (!tuttiLoadRelaxed32(&w->failed)) return;
  size_t bytes = offsetof(tuttiFailureFrame, text) + strlen(w->failure.text) + 1;
  linkSend(link, tuttiFrameFailure, &w->failure, bytes);
}

/* The neighbour's watch has answered. */
static void seekAnswered(tuttiWatch *w, ringLink *link) {
  seeking *s = &link->seek;
  const tuttiBootstrap *b = w->bootstrap;
  int fd = s->dial.fd;
  bool next = link == &w->links[1];
  if (next && s->taken.hash == b->hash) {
    linkResume(w, link, fd);
    return;
  }
  bool lives = !next && tuttiAnswerValid(&s->alive, b->hash, link->who.rank);
  tuttiFdClose(&fd);
  s->nextAt = tuttiDeadline(PROBE_MS);
  if (lives) s->since = tuttiNow(); /* that is contact */
  seekAgain(w, link);
}

static void seekStep(tuttiWatch *w, ringLink *link) {
  seeking *s = &link->seek;
  uint64_t now = tuttiNow();
  if (!s->on || now < s->nextAt) return;
  s->nextAt = now + SEEK_MS * TUTTI_MS;
  tuttiResult_t result = tuttiDialStep(&s->dial, (tuttiWait){.deadline = TUTTI_NO_DEADLINE});
  if (result == tuttiSuccess && s->dial.state == TUTTI_DIAL_DONE) {
    seekAnswered(w, link);
  } else if (result == tuttiSuccess && isGone(&s->dial, link->listeners.n)) {
    seekEnd(link);
    linkDied(w, link, s->error);
  } else if (now - s->since > (uint64_t)silenceMs() * TUTTI_MS) {
    seekEnd(link);
    linkSilent(w, link, &s->local, s->error ? s->error : ETIMEDOUT);
  } else if (now - s->since > TELL_MS * TUTTI_MS && !s->told) {
    s->told = true;
    TUTTI_WARN(
        BOOTSTRAP,
        "watch: the connection of rank %d to rank %d (host %s, pid %d) was cut, and its host "
        "has not answered for %.1f s; it is taken for lost after %d s (TUTTI_WATCH_SILENCE)",
        w->who.rank, link->who.rank, link->who.host, link->who.pid, TELL_MS / 1e3,
        silenceMs() / 1000);
  }
}

/* The connection has ended; error 0: the neighbour closed it. */
static void linkLost(tuttiWatch *w, ringLink *link, int error) {
  tuttiAddress local = {0};
  socklen_t length = sizeof(local);
  if (getsockname(link->fd, &local.sa, &length) != 0) local.sa.sa_family = AF_UNSPEC;
  linkClose(link);
  if (link->left || link->released || w->leaving) {
    TUTTI_INFO(BOOTSTRAP, "watch: rank %d: the connection to rank %d has ended", w->who.rank,
               link->who.rank);
  } else if (error == ETIMEDOUT) { /* the silence has lasted already */
    linkSilent(w, link, &local, error);
  } else if (link->listeners.n == 0) {
    linkDied(w, link, error);
  } else {
    link->seek = (seeking){.on = true, .local = local, .since = tuttiNow(), .error = error};
    service.seekers++;
    seekAgain(w, link);
    seekStep(w, link);
  }
}

/* What came is no frame: nothing after it can be believed either. */
static void linkBroken(tuttiWatch *w, ringLink *link) {
  if (!tuttiLoadRelaxed32(&w->failed)) {
    TUTTI_FAIL(
        tuttiRemoteError,
        "rank %d (host %s, pid %d) sent rank %d bytes over their ring connection that are no "
        "frame of this protocol. Remedy: look for corrupted memory or a different build of "
        "tutti in that process",
        link->who.rank, link->who.host, link->who.pid, w->who.rank);
    spreadText(w, tuttiRemoteError, TUTTI_DEAD_NONE, tuttiErrorText(), true);
  }
  linkClose(link);
}

/* False: the frame's type or content has no place on the ring. */
static bool takeFrame(tuttiWatch *w, ringLink *link, const tuttiFrame *frame) {
  tuttiFailureFrame failure;
  switch (frame->type) {
  case tuttiFrameHeartbeat:
    link->heardAt = tuttiNow();
    link->heard.answered = TUTTI_ANSWER_HEARSAY;
    link->heard.bytes = (uint32_t)frame->bytes;
    memcpy(link->heard.state, frame->payload, frame->bytes);
    link->unanswered = 0;
    return true;
  case tuttiFrameFailure:
    if (!tuttiFailureRead(frame, w->bootstrap->nranks, &failure)) return false;
    spread(w, &failure, link, true);
    return true;
  case tuttiFrameGoodbye:
    if (link->left) return false;
    link->left = true;
    TUTTI_TRACE(BOOTSTRAP, "watch: rank %d says goodbye to rank %d", link->who.rank, w->who.rank);
    linkSend(link, tuttiFrameGoodbyeSeen, NULL, 0);
    return true;
  case tuttiFrameGoodbyeSeen:
    link->released = w->leaving;
    return link->released;
  }
  return false;
}

/* False: what came is no frame, or has no place here. */
static bool takeFrames(tuttiWatch *w, ringLink *link) {
  size_t at = 0;
  tuttiFrame frame;
  int size;
  while ((size = tuttiFrameParse(link->in + at, link->inBytes - at, &frame)) > 0) {
    if (!takeFrame(w, link, &frame)) return false;
    at += (size_t)size;
  }
  link->inBytes -= at;
  memmove(link->in, link->in + at, link->inBytes);
  return size == 0;
}

static void linkReady(tuttiWatch *w, ringLink *link) {
  for (int reads = 0; link->fd >= 0 && (reads < LINK_READS || tuttiSecurePending(link->fd));
       reads++) {
    ssize_t got =
        tuttiSecureRecv(link->fd, link->in + link->inBytes, sizeof(link->in) - link->inBytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN && link->sendError == 0) return;
    if (got <= 0) {
      /* A failed send has taken the reason away from the socket. */
      linkLost(w, link, got < 0 && errno != EAGAIN ? errno : link->sendError);
      return;
    }
    link->inBytes += (size_t)got;
    if (!takeFrames(w, link)) linkBroken(w, link);
  }
}

/* ---- answering ------------------------------------------------------------------------------ */

static void reportSelf(const tuttiWatch *w, tuttiWatchAnswer *out) {
  *out = (tuttiWatchAnswer){.answered = TUTTI_ANSWER_OWN};
  size_t bytes = w->calls.state(w->calls.ctx, out->state);
  out->bytes = (uint32_t)(bytes < sizeof(out->state) ? bytes : sizeof(out->state));
}

/* What the neighbour's last heartbeat said, and whether it has left since. */
static void reportLink(const ringLink *link, tuttiWatchAnswer *out) {
  *out = link->heard;
  if (out->answered != TUTTI_ANSWER_NONE)
    out->ageMs = (uint32_t)((tuttiNow() - link->heardAt) / 1000000);
  if (!link->left) return;
  out->answered = TUTTI_ANSWER_LEFT;
  out->ageMs = 0;
}

static void reportAll(const tuttiWatch *w, tuttiAnswer *out) {
  *out = (tuttiAnswer){.hash = w->bootstrap->hash, .rank = w->who.rank};
  reportSelf(w, &out->self);
  reportLink(&w->links[0], &out->previous);
  reportLink(&w->links[1], &out->next);
}

/* Whether the connection of the previous rank is to be had: it may have noticed the end of the old
 * one before this rank does. */
static bool mayRejoin(const tuttiWatch *w, int from) {
  const ringLink *link = &w->links[0];
  bool known = link->fd >= 0 || link->seek.on;
  return from == link->who.rank && known && !link->left && !w->leaving;
}

/* Whether it is a question to this rank, or its previous one; the greeter's `check`. */
static tuttiVerdict checkGuest(void *watch, const void *hello) {
  const tuttiWatch *w = watch;
  tuttiHello h;
  memcpy(&h, hello, sizeof(h));
  bool ours = h.hash == w->bootstrap->hash && h.to == w->who.rank &&
              h.nranks == w->bootstrap->nranks && h.from >= 0 && h.from < h.nranks;
  bool asks = h.kind == tuttiHelloAsk || h.kind == tuttiHelloReport;
  bool wanted = asks || (h.kind == tuttiHelloRejoin && mayRejoin(w, h.from));
  return ours && wanted ? TUTTI_GUEST_ACCEPT : TUTTI_GUEST_DROP;
}

static void rejoin(tuttiWatch *w, const tuttiHello *h, int fd) {
  rejoinAnswer taken = {.hash = w->bootstrap->hash};
  if (mayRejoin(w, h->from) && tuttiSecureSend(fd, &taken, sizeof(taken)) == sizeof(taken))
    linkResume(w, &w->links[0], fd);
  else
    tuttiFdClose(&fd);
}

static void answerTo(const tuttiWatch *w, const tuttiHello *h, int fd) {
  tuttiAnswer answer;
  reportAll(w, &answer);
  /* Fits the empty buffer of a fresh socket; if it does not, the asker has gone. */
  ssize_t sent = tuttiSecureSend(fd, &answer, sizeof(answer));
  TUTTI_TRACE(BOOTSTRAP, "watch: rank %d answers rank %d: %zd of %zu bytes", w->who.rank, h->from,
              sent, sizeof(answer));
  tuttiFdClose(&fd);
}

static void reportEverything(const tuttiWatch *w, tuttiReportAnswer *out) {
  memset(out, 0, sizeof(*out));
  reportAll(w, &out->answer);
  out->bytes = (uint32_t)w->calls.report(w->calls.ctx, out->report);
}

static void reportTo(const tuttiWatch *w, int fd) {
  tuttiReportAnswer answer;
  int room = 4 * (int)sizeof(answer); /* the kernel counts its own bytes, too */
  reportEverything(w, &answer);
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
  tuttiSecureSend(fd, &answer, sizeof(answer));
  tuttiFdClose(&fd);
}

/* The greeter's `welcome`. */
static void welcome(void *watch, const void *hello, int fd) {
  tuttiHello h;
  memcpy(&h, hello, sizeof(h));
  if (h.kind == tuttiHelloRejoin)
    rejoin(watch, &h, fd);
  else if (h.kind == tuttiHelloReport)
    reportTo(watch, fd);
  else
    answerTo(watch, &h, fd);
}

/* ---- the thread ----------------------------------------------------------------------------- */

static void greet(tuttiWatch *w) {
  /* Out of descriptors: the connection stays in the backlog and would wake the thread at once. */
  if (tuttiGreeterStep(&w->greeter) != tuttiSuccess)
    w->guestsPaused = lookAt(EPOLL_CTL_MOD, w->greeter.epollFd, false, w);
}

/* What the sockets hold; an event only says "look". */
static void serve(tuttiWatch *w) {
  for (int i = 0; i < 2; i++)
    linkReady(w, &w->links[i]);
  if (w->greeter.epollFd >= 0 && !w->guestsPaused) greet(w);
}

/* A neighbour's host that acknowledges nothing: a process that is stopped does not keep its kernel
 * from that. */
static void tellSilence(const tuttiWatch *w, ringLink *link) {
  struct tcp_info info;
  socklen_t length = sizeof(info);
  if (link->left || getsockopt(link->fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return;
  bool silent = info.tcpi_last_ack_recv >= TELL_MS;
  if (silent && !link->toldSilent)
    TUTTI_WARN(
        BOOTSTRAP,
        "watch: the host of rank %d (host %s, pid %d) has acknowledged nothing to rank %d for "
        "%.1f s; it is taken for lost after %d s (TUTTI_WATCH_SILENCE)",
        link->who.rank, link->who.host, link->who.pid, w->who.rank, info.tcpi_last_ack_recv / 1e3,
        silenceMs() / 1000);
  if (!silent && link->toldSilent)
    TUTTI_WARN(BOOTSTRAP, "watch: the host of rank %d (host %s, pid %d) answers rank %d again",
               link->who.rank, link->who.host, link->who.pid, w->who.rank);
  link->toldSilent = silent;
}

static void heartbeat(tuttiWatch *w) {
  tuttiWatchAnswer self;
  if (w->leaving) return;
  reportSelf(w, &self);
  for (int i = 0; i < 2; i++) {
    ringLink *link = &w->links[i];
    if (link->sendError != 0) linkReady(w, link);
    if (link->fd < 0) continue;
    tellSilence(w, link);
    if (link->outBytes > 0) {
      linkFlush(link);
    } else if (!link->left && link->unanswered < TUTTI_HEARTBEAT_LIMIT) {
      link->unanswered++;
      linkSend(link, tuttiFrameHeartbeat, self.state, self.bytes);
    }
  }
  if (w->guestsPaused) w->guestsPaused = !lookAt(EPOLL_CTL_MOD, w->greeter.epollFd, true, w);
  if (w->greeter.epollFd >= 0 && !w->guestsPaused) greet(w); /* the slow are sent away */
}

/* Each event of his takes him off epoll. */
static bool lookForLodger(int op, int fd) {
  struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.ptr = &service.lodger};
  return epoll_ctl(service.epollFd, op, fd, &event) == 0;
}

/* Whoever reaches the lodger's port decides how much there is to do for him, and the cores are the
 * ranks'. So after each turn he is not heard for REST_TIMES as long as it took. */
static void serveLodger(bool ready) {
  uint64_t begun = tuttiNow();
  service.lodgerHeard |= ready;
  if (!service.lodger.serve || begun < service.lodgerRests) return;
  if (service.lodgerHeard || begun >= service.lodgerDue) {
    service.lodgerDue = service.lodger.serve(service.lodger.ctx);
    uint64_t end = tuttiNow(), rest = (end - begun) * REST_TIMES;
    if (rest < REST_MIN_NS) rest = REST_MIN_NS;
    if (rest > REST_MAX_NS) rest = REST_MAX_NS;
    service.lodgerRests = end + rest;
    service.lodgerHeard = false;
    service.lodgerLooks = false;
  } else if (!service.lodgerLooks) {
    service.lodgerLooks = lookForLodger(EPOLL_CTL_MOD, service.lodger.fd);
  }
}

/* When he has his next turn, or is to be heard again. */
static uint64_t lodgerTurn(void) {
  if (!service.lodger.serve) return TUTTI_NO_DEADLINE;
  uint64_t due = service.lodgerLooks ? service.lodgerDue : service.lodgerRests;
  return due > service.lodgerRests ? due : service.lodgerRests;
}

/* When there is something to do even without an event. */
static uint64_t nextTurn(uint64_t beatAt) {
  uint64_t wake = service.seekers ? tuttiDeadline(SEEK_MS) : beatAt;
  if (beatAt < wake) wake = beatAt;
  uint64_t lodger = lodgerTurn();
  return lodger < wake ? lodger : wake;
}

/* What the events are of; that of the lodger has the address of its entry. */
static void serveEvents(const struct epoll_event *events, int n) {
  bool lodger = false;
  for (int i = 0; i < n; i++) {
    if (events[i].data.ptr == &service.lodger)
      lodger = true;
    else
      serve(events[i].data.ptr);
  }
  serveLodger(lodger);
}

static void *watchMain(void *unused) {
  struct epoll_event events[SERVICE_EVENTS];
  struct pollfd any = {.fd = service.epollFd, .events = POLLIN};
  uint64_t beatAt = tuttiDeadline(HEARTBEAT_MS);
  pthread_mutex_lock(&service.lock);
  while (!service.quit) {
    /* Taken under the lock, so that no event is of a watch that has gone. */
    int n = epoll_wait(service.epollFd, events, SERVICE_EVENTS, 0);
    serveEvents(events, n);
    if (tuttiNow() >= beatAt) {
      beatAt = tuttiDeadline(HEARTBEAT_MS);
      for (tuttiWatch *w = service.watches; w != NULL; w = w->next)
        heartbeat(w);
    }
    for (tuttiWatch *w = service.seekers ? service.watches : NULL; w != NULL; w = w->next)
      for (int i = 0; i < 2; i++)
        seekStep(w, &w->links[i]);
    uint64_t wake = nextTurn(beatAt);
    pthread_cond_broadcast(&service.served);
    pthread_mutex_unlock(&service.lock);
    poll(&any, 1, tuttiDeadlinePollMs(wake));
    pthread_mutex_lock(&service.lock);
  }
  pthread_mutex_unlock(&service.lock);
  return unused;
}

/* Deadlines are those of the monotonic clock, which no initializer says. */
static void initServed(void) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&service.served, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

static tuttiResult_t startThread(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, initServed);
  service.quit = false;
  service.epollFd = epoll_create1(EPOLL_CLOEXEC);
  service.wakeFd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (service.epollFd < 0 || service.wakeFd < 0 ||
      !lookAt(EPOLL_CTL_ADD, service.wakeFd, true, NULL))
    return TUTTI_FAIL(tuttiSystemError,
                      "the watch gets no files to wait at: %s; raise the limit on open files "
                      "(ulimit -n)",
                      tuttiErrnoText(errno));
  tuttiForkCloseAdd(service.epollFd);
  tuttiForkCloseAdd(service.wakeFd);
  return tuttiThreadStart(&service.thread, "tutti-watch", watchMain, NULL);
}

static void closeService(void) {
  tuttiFdClose(&service.wakeFd);
  tuttiFdClose(&service.epollFd);
}

/* One more user of the thread. */
static tuttiResult_t hireThread(void) {
  TUTTI_LOCKED(&service.life);
  tuttiResult_t result = service.users == 0 ? startThread() : tuttiSuccess;
  if (result == tuttiSuccess)
    service.users++;
  else
    closeService();
  return result;
}

static void dismissThread(void) {
  TUTTI_LOCKED(&service.life);
  if (--service.users == 0) {
    pthread_mutex_lock(&service.lock);
    service.quit = true;
    pthread_mutex_unlock(&service.lock);
    eventfd_write(service.wakeFd, 1);
    pthread_join(service.thread, NULL);
    closeService();
  }
}

tuttiResult_t tuttiWatchLodge(const tuttiWatchLodger *lodger) {
  TUTTI_TRY(hireThread());
  pthread_mutex_lock(&service.lock);
  bool looks = lookForLodger(EPOLL_CTL_ADD, lodger->fd);
  int error = errno;
  if (looks) service.lodger = *lodger;
  service.lodgerDue = service.lodgerRests = 0;
  service.lodgerHeard = false;
  service.lodgerLooks = true;
  pthread_mutex_unlock(&service.lock);
  if (looks) return tuttiSuccess;
  dismissThread();
  return TUTTI_FAIL(tuttiSystemError, "the watch cannot look at one more file: %s",
                    tuttiErrnoText(error));
}

void tuttiWatchEvict(void) {
  pthread_mutex_lock(&service.lock);
  lookForLodger(EPOLL_CTL_DEL, service.lodger.fd);
  service.lodger = (tuttiWatchLodger){0};
  pthread_mutex_unlock(&service.lock);
  dismissThread();
}

/* ---- watches -------------------------------------------------------------------------------- */

/* But for port and scope, which hosts number each in its own way. */
static bool isSameAddress(const tuttiAddress *a, const tuttiAddress *b) {
  if (a->sa.sa_family != b->sa.sa_family) return false;
  if (a->sa.sa_family == AF_INET) return a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
  return memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr, sizeof(a->v6.sin6_addr)) == 0;
}

/* Of the neighbour's listeners the one at the far end of `fd`; all if it listens elsewhere. */
static void findListeners(ringLink *link, int fd, const tuttiAddressList *all) {
  tuttiAddress far = {0};
  socklen_t length = sizeof(far);
  link->listeners = *all;
  if (getpeername(fd, &far.sa, &length) != 0) return;
  for (int i = 0; i < all->n; i++) {
    if (!isSameAddress(&far, &all->a[i])) continue;
    far.v4.sin_port = all->a[i].v4.sin_port;
    link->listeners = (tuttiAddressList){.n = 1, .a[0] = far};
    return;
  }
}

static void initLink(ringLink *link, int fd, const tuttiWho *who, const tuttiBootstrap *b) {
  link->fd = fd;
  link->who = *who;
  if (fd < 0) return;
  /* Nothing between the threads of one process cuts connections, and nobody listens there. */
  if (!b->together) findListeners(link, fd, &b->listeners[who->rank]);
  setOptions(fd);
}

/* Makes the thread look at the watch; errno on failure, and then its sockets are the maker's. */
static int enlist(tuttiWatch *w) {
  const int fds[] = {w->links[0].fd, w->links[1].fd, w->greeter.epollFd};
  for (int i = 0; i < 3; i++) {
    if (fds[i] < 0 || lookAt(EPOLL_CTL_ADD, fds[i], true, w)) continue;
    int error = errno;
    while (--i >= 0)
      lookAt(EPOLL_CTL_DEL, fds[i], false, NULL);
    return error;
  }
  for (int i = 0; i < 3; i++)
    if (fds[i] >= 0) tuttiForkCloseAdd(fds[i]);
  for (int i = 0; i < w->listener.n; i++)
    tuttiForkCloseAdd(w->listener.fds[i]); /* a queue that nobody serves would look like life */
  TUTTI_LINK(service.watches, w);
  heartbeat(w);
  return 0;
}

tuttiResult_t tuttiWatchStart(tuttiBootstrap *b, const tuttiWho *who, const tuttiWatchCalls *calls,
                              tuttiMemAccount *memory, tuttiWatch **out) {
  tuttiWatch *w;
  int previous = (b->rank + b->nranks - 1) % b->nranks, next = (b->rank + 1) % b->nranks, error;
  size_t size = sizeof(*w) + 2 * (size_t)b->nranks * sizeof(bool);
  TUTTI_TRY(tuttiAlloc((void **)&w, 1, size, "the watch of a communicator", memory));
  w->dead = (bool *)(w + 1);
  w->gone = w->dead + b->nranks;
  w->bootstrap = b;
  w->memory = memory;
  w->calls = *calls;
  w->who = who[b->rank];
  initLink(&w->links[0], b->prevFd, &who[previous], b);
  initLink(&w->links[1], b->nextFd, &who[next], b);
  w->listener = b->listener;
  w->greeter = (tuttiGreeter){.listener = &w->listener,
                              .what = "the watch of a communicator",
                              .helloBytes = sizeof(tuttiHello),
                              .nguests = GUESTS,
                              .secret = b->secret,
                              .tls = &b->tls,
                              .ctx = w,
                              .check = checkGuest,
                              .welcome = welcome,
                              .epollFd = -1};
  tuttiResult_t result = b->listener.n > 0 ? tuttiGreeterOpen(&w->greeter, memory) : tuttiSuccess;
  if (result == tuttiSuccess) result = hireThread();
  if (result != tuttiSuccess) goto freeAll;
  pthread_mutex_lock(&service.lock);
  error = enlist(w);
  pthread_mutex_unlock(&service.lock);
  if (error == 0) {
    TUTTI_INFO(BOOTSTRAP, "watch: rank %d of %d watches ranks %d and %d", b->rank, b->nranks,
               previous, next);
    b->prevFd = b->nextFd = -1;
    b->listener.n = 0;
    *out = w;
    return tuttiSuccess;
  }
  result = TUTTI_FAIL(tuttiSystemError,
                      "rank %d of %d cannot watch its ring sockets: %s. Remedy: raise "
                      "fs.epoll.max_user_watches (sysctl)",
                      b->rank, b->nranks, tuttiErrnoText(error));
  dismissThread();
freeAll:
  tuttiGreeterClose(&w->greeter);
  tuttiFree(w);
  return result;
}

/* A neighbour that has a watch has all records; what comes from the next rank is for the watch in
 * any case. */
void tuttiWatchDecline(const tuttiBootstrap *b, tuttiResult_t code) {
  char text[TUTTI_ERROR_TEXT], drop[4096];
  uint8_t bytes[2 * TUTTI_FRAME_MAX];
  tuttiFailureFrame failure;
  const int fds[] = {b->prevFd, b->lastGather ? b->nextFd : -1};
  code = tuttiBootstrapAccount(b, code, text, sizeof(text));
  size_t size = tuttiFailureFill(&failure, code, b->rank, TUTTI_DEAD_NONE, text);
  size = tuttiFrameWrite(bytes, sizeof(bytes), tuttiFrameFailure, &failure, size);
  size += tuttiFrameWrite(bytes + size, sizeof(bytes) - size, tuttiFrameGoodbye, NULL, 0);
  for (int i = 0; i < 2; i++) {
    if (fds[i] < 0) continue;
    tuttiSecureSend(fds[i], bytes, size);
    /* Closing over unread bytes would reset the connection. */
    for (int reads = 0; reads < LINK_READS; reads++)
      if (tuttiSecureRecv(fds[i], drop, sizeof(drop)) <= 0) break;
  }
}

void tuttiWatchFail(tuttiWatch *w, tuttiResult_t code, const char *text) {
  TUTTI_LOCKED(&service.lock);
  spreadText(w, code, TUTTI_DEAD_NONE, text, false);
}

void tuttiWatchEnd(tuttiWatch *w, tuttiResult_t code, const char *text) {
  TUTTI_LOCKED(&service.lock);
  spreadText(w, code, TUTTI_DEAD_MAYBE, text, false);
}

/* Whether two watches are of one communicator that has all its ranks in this process. */
static bool areTogether(const tuttiWatch *a, const tuttiWatch *b) {
  return a->bootstrap->together && a->bootstrap->hash == b->bootstrap->hash;
}

/* No more is to be done before it can be closed. */
static bool finished(const ringLink *link) {
  return link->fd < 0 || link->sendError != 0 || (link->released && link->outBytes == 0);
}

/* A last heartbeat: by it the neighbours know whether this rank had done what others wait in. */
static void lastWords(tuttiWatch *w) {
  tuttiWatchAnswer self;
  reportSelf(w, &self);
  for (int i = 0; i < 2; i++)
    if (!w->links[i].left && w->links[i].outBytes == 0)
      linkSend(&w->links[i], tuttiFrameHeartbeat, self.state, self.bytes);
}

void tuttiWatchStop(tuttiWatch *w) {
  if (w == NULL) return;
  pthread_mutex_lock(&service.lock);
  lastWords(w);
  w->leaving = true;
  for (int i = 0; i < 2; i++) {
    seekEnd(&w->links[i]);
    w->links[i].released = w->links[i].left; /* one that is leaving itself waits for none of ours */
    if (!w->links[i].left) linkSend(&w->links[i], tuttiFrameGoodbye, NULL, 0);
  }
  if (w->greeter.epollFd >= 0) lookAt(EPOLL_CTL_DEL, w->greeter.epollFd, false, NULL);
  tuttiGreeterClose(&w->greeter);
  tuttiListenerClose(&w->listener);
  uint64_t until = tuttiNow() + FAREWELL_NS;
  struct timespec deadline = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
  int waited = 0;
  while (waited == 0 && !(finished(&w->links[0]) && finished(&w->links[1])))
    waited = pthread_cond_timedwait(&service.served, &service.lock, &deadline);
  for (int i = 0; i < 2; i++) {
    ringLink *link = &w->links[i];
    /* Drops what has come, so that closing does not reset the connection under a frame that the
     * neighbour has not read yet. */
    for (int reads = 0; reads < LINK_READS && link->fd >= 0; reads++)
      if (tuttiSecureRecv(link->fd, link->in, sizeof(link->in)) <= 0) break;
    linkClose(link);
  }
  TUTTI_UNLINK(service.watches, w);
  for (const tuttiWatch *o = service.watches; o != NULL; o = o->next)
    if (areTogether(o, w)) o->gone[w->who.rank] = true;
  pthread_mutex_unlock(&service.lock);
  tuttiFree(w);
  dismissThread();
}

tuttiResult_t tuttiWatchAsk(tuttiWatch *w, int rank, int ms, tuttiWatchAnswer *answers) {
  int n = w->bootstrap->nranks, answered = 0;
  bool together = w->bootstrap->together;
  tuttiAnswer own;
  memset(answers, 0, (size_t)n * sizeof(*answers));
  pthread_mutex_lock(&service.lock);
  for (const tuttiWatch *o = service.watches; o != NULL; o = o->next) {
    /* Where all ranks are together none listens: what the process knows is all there is. */
    if (o != w && !areTogether(o, w)) continue;
    reportAll(o, &own);
    tuttiAnswerNote(&own, n, answers);
  }
  for (int i = 0; i < n; i++)
    if (w->gone[i]) answers[i].answered = TUTTI_ANSWER_LEFT;
  bool failed = tuttiLoadRelaxed32(&w->failed);
  pthread_mutex_unlock(&service.lock);
  if (ms > 0 && n > 1 && !together)
    TUTTI_TRY(tuttiAskOthers(w->bootstrap, rank < 0 ? 0 : rank, rank < 0 ? n : rank + 1, ms,
                             failed ? NULL : &w->failed, w->memory, answers));
  for (int i = 0; i < n; i++)
    answered += answers[i].answered == TUTTI_ANSWER_OWN;
  TUTTI_INFO(BOOTSTRAP, "watch: rank %d has the state of %d of %d ranks from themselves",
             w->who.rank, answered, n);
  return tuttiSuccess;
}

tuttiResult_t tuttiInquiryStart(tuttiWatch *w, int ms, tuttiInquiry **out) {
  int n = w->bootstrap->nranks;
  TUTTI_FRESH(tuttiReportAnswer, own, 1, "a report", w->memory);
  TUTTI_TRY(tuttiInquiryNew(w->bootstrap, ms, w->memory, out));
  tuttiWatchReport *reports = tuttiInquiryReports(*out);
  pthread_mutex_lock(&service.lock);
  for (const tuttiWatch *o = service.watches; o != NULL; o = o->next) {
    if (o != w && !areTogether(o, w)) continue;
    reportEverything(o, own);
    tuttiReportNote(own, n, reports);
  }
  for (int i = 0; i < n; i++)
    if (w->gone[i]) reports[i].answer.answered = TUTTI_ANSWER_LEFT;
  pthread_mutex_unlock(&service.lock);
  return tuttiSuccess;
}

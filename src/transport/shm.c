/* SHM: ranks that are processes of one host. A rank maps a neighbour's segment (a memfd) when it
 * reads from it first: it opens the neighbour's descriptor through /proc, which takes no message
 * and no time of the neighbour's. Where the kernel forbids that, or numbers of processes mean
 * something else (a container), it asks at the neighbour's desk: an abstract Unix socket, named in
 * the peer record, that the neighbour's proxy serves whatever its caller is doing. Nothing of this
 * has a name in a file system, so /dev/shm may be tiny or absent and a SIGKILL leaves nothing
 * behind.
 *
 * Messages outlive their writer: a rank that leaves hands its segment in at the desk of every
 * neighbour that may have messages in it and has not mapped it. It does so before it closes its own
 * desk, so whoever finds a neighbour gone finds the segment in its own queue, or there is none.
 *
 * Who waits for an answer serves its own desk meanwhile, so no two can wait for each other. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mac.h"
#include "base/os.h"
#include "proxy/proxy.h"
#include "transport/fd_box.h"
#include "transport/remote.h"
#include "transport/segment.h"
#include "transport/stub.h"

/* What a message at a desk wants. */
typedef enum {
  HELLO_ASK = 1, /* the segment of the rank that it goes to */
  HELLO_GIVE = 2 /* nothing: it brings the segment of the rank that it comes from */
} helloKind;

/* Checked before anything is believed. */
typedef struct {
  uint32_t magic, version;
  uint64_t commHash;
  int32_t from, to;
  uint64_t kind;                /* helloKind */
  uint8_t mac[TUTTI_MAC_BYTES]; /* under the communicator's secret, over all before it */
} shmHello;
#define SHM_MAGIC 0x7475736eu

/* The hello and room for one fd. */
typedef struct {
  shmHello hello;
  struct iovec io;
  _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
} parcel;

static struct msghdr messageOf(parcel *p) {
  p->io = (struct iovec){.iov_base = &p->hello, .iov_len = sizeof p->hello};
  return (struct msghdr){.msg_iov = &p->io,
                         .msg_iovlen = 1,
                         .msg_control = p->control,
                         .msg_controllen = sizeof p->control};
}

/* Connections accepted that have not said anything yet, or whose segment waits for a descriptor. A
 * neighbour speaks at once, so when all are taken, one that has been silent for a second makes
 * room. */
#define MAX_SILENT 32
/* Connections accepted in a row before anything else gets a turn, the deadline above all. */
#define MAX_ACCEPTED 64
#define SILENT_NS    1000000000ull
/* Milliseconds: between attempts at a full neighbour; between looks at the failed flag, and at
 * connections that are silent; until a desk that is out of descriptors looks again; that a leaving
 * rank waits for full neighbours. */
#define RETRY_MS 1
#define LOOK_MS  20
#define PAUSE_MS 100
#define LEAVE_MS 1000

typedef struct {
  int fd;
  uint64_t since;
} silentPeer;

/* Where this rank's neighbours ask for its segment, or hand in theirs. */
typedef struct tuttiShmDesk {
  tuttiCommView *view;
  tuttiProxySource source;       /* of the listener; its flags are the proxy's */
  bool served, watched;          /* by the proxy; watched is the proxy's too */
  pthread_mutex_t lock;          /* held by whoever serves; guards what follows */
  silentPeer silent[MAX_SILENT]; /* in order of arrival */
  int nsilent;
  uint64_t pausedUntil; /* out of descriptors */
  tuttiLogRate dropped, scarce;
} shmDesk;

#define SHM_REASONS(X)                                                                             \
  X(SHM_SHARED, "shared memory of one host")                                                       \
  X(SHM_PINNED, "pinned memory of one host")                                                       \
  X(SHM_DISABLED, "TUTTI_SHM_DISABLE=1")                                                           \
  X(SHM_HOSTS, "different hosts (%s/%08" PRIx32 ", %s/%08" PRIx32 ")", a->host,                    \
    (uint32_t)(a->hostId >> 32), b->host, (uint32_t)(b->hostId >> 32))                             \
  X(SHM_DEAF, "rank %d takes no segments", who->rank)
enum { SHM_REASONS(TUTTI_REASON_NAME) };

static void shmExplain(tuttiReason why, const tuttiPath *path, const tuttiPeer *a,
                       const tuttiPeer *b, char *buf, size_t size) {
  const tuttiPeer *who = tuttiReasonPeer(why, a, b);
  (void)path;
  switch (why.code) { SHM_REASONS(TUTTI_REASON_TEXT) }
}

static tuttiReason judge(const tuttiPeer *a, const tuttiPeer *b) {
  if (a->shmDisabled || b->shmDisabled) return (tuttiReason){.code = SHM_DISABLED};
  if (a->hostId != b->hostId) return (tuttiReason){.code = SHM_HOSTS};
  if (!a->shmSocket || !b->shmSocket)
    return (tuttiReason){.code = SHM_DEAF, .side = a->shmSocket != 0};
  bool gpus = a->device == tuttiDeviceCuda || b->device == tuttiDeviceCuda;
  return (tuttiReason){.code = gpus ? SHM_PINNED : SHM_SHARED};
}

static bool shmCanConnect(const tuttiPeer *a, const tuttiPeer *b, tuttiPath *path,
                          tuttiReason *why) {
  *why = judge(a, b);
  bool gpus = why->code == SHM_PINNED;
  if (!gpus && why->code != SHM_SHARED) return false;
  path->via = "SHM/direct";
  path->latencyUs = gpus ? 3.0f : 0.3f;
  path->bandwidthGBs = gpus ? 40.0f : 13.0f;
  path->staged = gpus;
  path->sharedFifos = !gpus;
  path->fetches = a->offer && b->offer;
  return true;
}

/* ---- sockets --------------------------------------------------------------------------------- */

static tuttiResult_t openSocket(const tuttiCommView *v, int *fd) {
  *fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (*fd >= 0) return tuttiSuccess;
  return TUTTI_FAIL(tuttiSystemError, "rank %d can't open a Unix socket for shared memory: %s%s",
                    v->rank, tuttiErrnoText(errno),
                    errno == EMFILE || errno == ENFILE ? "; raise the limit of open files (ulimit "
                                                         "-n, fs.file-max)"
                                                       : "");
}

/* The process at the other end runs as this user or as root. */
static bool trusted(int fd) {
  struct ucred cred;
  socklen_t n = sizeof cred;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) == 0 &&
         (cred.uid == geteuid() || cred.uid == 0);
}

static tuttiResult_t listenAt(const tuttiCommView *v, uint64_t id, int *out) {
  TUTTI_CLOSED int fd = -1;
  TUTTI_TRY(openSocket(v, &fd));
  struct sockaddr_un address;
  socklen_t length = tuttiUnixAddress(id, &address);
  int backlog = v->nranks < 64 ? 64 : v->nranks;
  if (bind(fd, (struct sockaddr *)&address, length) != 0 || listen(fd, backlog) != 0)
    return TUTTI_FAIL(tuttiSystemError, "rank %d can't listen on the Unix socket @%s: %s", v->rank,
                      address.sun_path + 1, tuttiErrnoText(errno));
  tuttiForkCloseAdd(fd);
  *out = tuttiFdTake(&fd);
  return tuttiSuccess;
}

/* Who takes such a message away from where it was meant to go has the rights of its user. */
static void helloMac(const tuttiCommView *v, const shmHello *hello, uint8_t mac[TUTTI_MAC_BYTES]) {
  const tuttiMacPart pieces[] = {{"tutti desk", 10}, {hello, offsetof(shmHello, mac)}};
  tuttiMac(v->secret, sizeof v->secret, pieces, 2, mac);
}

/* Sends a hello, and this rank's segment if it is to have that; returns 0 or an errno. */
static int sendHello(const tuttiCommView *v, int fd, int to, helloKind kind) {
  parcel p = {.hello = {.magic = SHM_MAGIC,
                        .version = TUTTI_VERSION_CODE,
                        .commHash = v->commHash,
                        .from = v->rank,
                        .to = to,
                        .kind = kind}};
  helloMac(v, &p.hello, p.hello.mac);
  struct msghdr message = messageOf(&p);
  if (kind == HELLO_GIVE) {
    tuttiFdAttach(&message, tuttiSegmentFd(v));
  } else {
    message.msg_control = NULL;
    message.msg_controllen = 0;
  }
  ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  return n == (ssize_t)sizeof p.hello ? 0 : n < 0 ? errno : EIO;
}

/* Connects to the desk of `to` and says hello; returns 0, or an errno and *fd stays -1. */
static int greet(const tuttiCommView *v, int to, helloKind kind, int *fd) {
  TUTTI_CLOSED int made = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  struct sockaddr_un address;
  socklen_t length = tuttiUnixAddress(v->peers[to].shmSocket, &address);
  if (made < 0 || connect(made, (struct sockaddr *)&address, length) != 0) return errno;
  int err = trusted(made) ? sendHello(v, made, to, kind) : EPERM;
  if (err) return err;
  *fd = tuttiFdTake(&made);
  return 0;
}

/* The neighbour can't take it now: its backlog is full, or too many fds of this user are on their
 * way (ETOOMANYREFS). Both pass when somebody accepts. */
static bool passing(int err) {
  return err == EAGAIN || err == EINTR || err == ETOOMANYREFS || err == ENOBUFS || err == ENOMEM;
}

/* This process, or the host, has no descriptors left. */
static bool outOfFiles(int err) {
  return err == EMFILE || err == ENFILE;
}

/* What a message says; *segment: what it brings, or -1. Returns its bytes, or -1 and errno. With
 * MSG_PEEK in `flags` the message stays, too, and brings the same again. */
static ssize_t receiveHello(int fd, int flags, shmHello *hello, int *segment) {
  parcel p;
  struct msghdr message = messageOf(&p);
  ssize_t n = recvmsg(fd, &message, flags | MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  *segment = n >= 0 ? tuttiFdDetach(&message) : -1;
  if (n >= 0 && (n != (ssize_t)sizeof p.hello || message.msg_flags & MSG_TRUNC))
    p.hello = (shmHello){0};
  *hello = p.hello;
  return n;
}

/* It is of a neighbour, for this rank. */
static bool validHello(const tuttiCommView *v, const shmHello *hello) {
  uint8_t mac[TUTTI_MAC_BYTES];
  helloMac(v, hello, mac);
  return hello->magic == SHM_MAGIC && hello->version == TUTTI_VERSION_CODE &&
         hello->commHash == v->commHash && hello->to == v->rank && tuttiMacSame(hello->mac, mac) &&
         tuttiSegmentNeighbour(v, hello->from);
}

/* Takes the segment that a valid hello brought. */
static tuttiResult_t takeIn(tuttiCommView *v, int owner, int segment) {
  if (segment >= 0) return tuttiSegmentTake(v, owner, segment);
  return TUTTI_FAIL(tuttiSystemError,
                    "rank %d got no file descriptor for the segment of rank %d: raise the limit of "
                    "open files (ulimit -n)",
                    v->rank, owner);
}

/* ---- the desk -------------------------------------------------------------------------------- */

/* A connection was dropped: `why` for the last of those that the line stands for. */
static void tellDropped(shmDesk *d, const char *why) {
  uint32_t n = tuttiLogCount(&d->dropped);
  if (n > 0)
    TUTTI_WARN(SHM,
               "rank %d dropped %u connection%s to its Unix socket: %s; for a minute there will be "
               "no more lines about this",
               d->view->rank, n, n > 1 ? "s" : "", why);
}

/* A segment was handed in, and this process has no descriptor left for it. */
static void tellScarce(shmDesk *d, int owner) {
  if (tuttiLogCount(&d->scarce) > 0)
    TUTTI_WARN(SHM,
               "rank %d has no file descriptor for the shared memory that rank %d handed in, and "
               "tries again: raise the limit of open files (ulimit -n)",
               d->view->rank, owner);
}

/* Does what a connection asks for. *silent: nothing yet. Whoever is no neighbour is dropped and
 * harms nobody; who asks and gets no answer asks again. Who hands in counts on it and may be gone:
 * the message stays where it is until there is a descriptor for what it brings. */
static void attend(shmDesk *d, int fd, bool *silent) {
  tuttiCommView *v = d->view;
  shmHello hello;
  TUTTI_CLOSED int segment = -1;
  ssize_t n = receiveHello(fd, MSG_PEEK, &hello, &segment);
  bool valid = n > 0 && validHello(v, &hello);
  bool brings = valid && hello.kind != HELLO_ASK && !tuttiSegmentHas(v, hello.from);
  bool scarce = brings && segment < 0;
  *silent = scarce || (n < 0 && (errno == EAGAIN || errno == EINTR));
  if (scarce) tellScarce(d, hello.from);
  if (*silent) return;
  (void)recv(fd, NULL, 0, MSG_DONTWAIT); /* or the asker would get a reset instead of the answer */
  if (!valid)
    tellDropped(d, "not a rank of this communicator");
  else if (hello.kind == HELLO_ASK)
    (void)sendHello(v, fd, hello.from, HELLO_GIVE);
  else if (brings)
    (void)takeIn(v, hello.from, segment); /* what is wrong is in the log */
}

/* Listens to the silent connections again, and drops the oldest if no more fit. */
static void attendSilent(shmDesk *d) {
  int left = 0;
  for (int i = 0; i < d->nsilent; i++) {
    bool silent;
    attend(d, d->silent[i].fd, &silent);
    if (silent)
      d->silent[left++] = d->silent[i];
    else
      close(d->silent[i].fd);
  }
  d->nsilent = left;
  if (left == MAX_SILENT && tuttiNow() - d->silent[0].since > SILENT_NS) {
    close(d->silent[0].fd);
    memmove(d->silent, d->silent + 1, sizeof(silentPeer) * (size_t)--d->nsilent);
    tellDropped(d, "it was silent");
  }
}

static void welcome(shmDesk *d, int fd) {
  bool silent = false;
  if (trusted(fd))
    attend(d, fd, &silent);
  else
    tellDropped(d, "of another user");
  if (silent)
    d->silent[d->nsilent++] = (silentPeer){.fd = fd, .since = tuttiNow()};
  else
    close(fd);
}

/* One turn; never waits. False: connections may be left in the queue. */
static bool serve(shmDesk *d) {
  TUTTI_LOCKED(&d->lock);
  attendSilent(d);
  if (tuttiNow() < d->pausedUntil) return false;
  for (int n = 0; n < MAX_ACCEPTED && d->nsilent < MAX_SILENT; n++) {
    int fd = accept4(d->source.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && errno == EAGAIN) return true;
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0) {
      TUTTI_WARN(SHM,
                 "rank %d can't accept who asks for its shared memory: %s; raise the limit of open "
                 "files (ulimit -n)",
                 d->view->rank, tuttiErrnoText(errno));
      d->pausedUntil = tuttiDeadline(PAUSE_MS);
      return false;
    }
    welcome(d, fd);
  }
  return false;
}

static bool hasSilent(shmDesk *d) {
  TUTTI_LOCKED(&d->lock);
  return d->nsilent > 0;
}

/* ---- the proxy's part ------------------------------------------------------------------------ */

static tuttiProxyState advanceDesk(void *self, tuttiProxyTurn *turn) {
  shmDesk *d = self;
  if (!d->watched) {
    turn->result = tuttiProxyWatch(d->view->proxy, &d->source);
    if (turn->result != tuttiSuccess) return TUTTI_PROXY_FAILED;
    d->watched = d->source.readable = true;
  }
  if (!d->source.readable && !hasSilent(d)) return TUTTI_PROXY_IDLE;
  d->source.readable = !serve(d);
  if (!d->source.readable && !hasSilent(d)) return TUTTI_PROXY_IDLE;
  tuttiProxyWakeBy(turn, tuttiDeadline(LOOK_MS));
  return TUTTI_PROXY_WAITING;
}

static void leaveProxy(void *self) {
  shmDesk *d = self;
  if (d->watched) tuttiProxyUnwatch(d->view->proxy, &d->source);
}

static tuttiResult_t openDesk(tuttiCommView *v, uint64_t id) {
  TUTTI_FRESH(shmDesk, d, 1, "the exchange of shared memory", v->memory);
  d->view = v;
  TUTTI_TRY(listenAt(v, id, &v->local->listenFd));
  d->source.fd = v->local->listenFd;
  pthread_mutex_init(&d->lock, NULL);
  v->local->desk = d;
  d = NULL;
  return tuttiSuccess;
}

static tuttiResult_t serveDesk(tuttiCommView *v) {
  shmDesk *d = v->local->desk;
  const tuttiProxyOp op = {.advance = advanceDesk,
                           .close = leaveProxy,
                           .self = d,
                           .lazy = true,
                           .halt = tuttiProxyNothingToHalt,
                           .tell = tuttiProxyNothingToTell};
  TUTTI_TRY(tuttiProxyAdd(v->proxy, &op));
  d->served = true;
  return tuttiSuccess;
}

static void closeDesk(tuttiCommView *v) {
  shmDesk *d = v->local ? v->local->desk : NULL;
  if (v->local && !d) tuttiFdClose(&v->local->listenFd);
  if (!d) return;
  if (d->served) tuttiProxyRemove(v->proxy, d);
  for (int i = 0; i < d->nsilent; i++)
    close(d->silent[i].fd);
  uint32_t untold = tuttiLogRest(&d->dropped);
  if (untold > 0)
    TUTTI_WARN(SHM, "rank %d dropped %u more connections to its Unix socket", v->rank, untold);
  tuttiFdClose(&v->local->listenFd);
  pthread_mutex_destroy(&d->lock);
  tuttiFree(d);
  v->local->desk = NULL;
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* One rank's wait for the segment of `peer`. */
typedef struct {
  tuttiCommView *view;
  int peer, fd; /* fd: where the answer comes; -1: not asked yet */
  uint64_t deadline;
  const char *why; /* it has to ask */
} asking;

static tuttiResult_t refused(const asking *a, int err) {
  const tuttiCommView *v = a->view;
  const tuttiPeer *p = &v->peers[a->peer];
  bool gone = err == ECONNREFUSED || err == EPIPE || err == ECONNRESET;
  struct sockaddr_un address;
  tuttiUnixAddress(p->shmSocket, &address);
  return TUTTI_FAIL(gone ? tuttiRemoteError : tuttiSystemError,
                    "rank %d can't reach the shared memory of rank %d (host %s, pid %d): %s; nor "
                    "over the Unix socket @%s: %s; %s",
                    v->rank, a->peer, p->host, p->pid, a->why, address.sun_path + 1,
                    tuttiErrnoText(err),
                    err == EPERM                     ? "run all ranks as one user"
                    : err == EMFILE || err == ENFILE ? "raise the limit of open files (ulimit -n, "
                                                       "fs.file-max)"
                    : gone ? "that rank has died or given up (see its log), or TUTTI_HOSTID "
                             "joins ranks of different network namespaces"
                           : "TUTTI_SHM_DISABLE=1 avoids shared memory");
}

static tuttiResult_t checkTime(const asking *a) {
  const tuttiCommView *v = a->view;
  const tuttiPeer *p = &v->peers[a->peer];
  if (tuttiLoadAcquire32(v->failed))
    return TUTTI_FAIL(tuttiRemoteError,
                      "rank %d gave up asking rank %d (host %s, pid %d) for its shared memory: the "
                      "communicator has failed",
                      v->rank, a->peer, p->host, p->pid);
  if (tuttiNow() < a->deadline) return tuttiSuccess;
  return TUTTI_FAIL(tuttiTimeout,
                    "rank %d can't reach the shared memory of rank %d (host %s, pid %d): %s; and "
                    "it did not answer within %llu ms: see whether it runs and what its log says, "
                    "or raise TUTTI_TIMEOUT",
                    v->rank, a->peer, p->host, p->pid, a->why, (unsigned long long)v->timeoutMs);
}

/* Sleeps until there is an answer or something at the own desk, or it is time to look around. */
static void rest(const asking *a) {
  struct pollfd fds[] = {{.fd = a->fd, .events = POLLIN},
                         {.fd = a->view->local->listenFd, .events = POLLIN}};
  int left = tuttiDeadlinePollMs(a->deadline), most = a->fd < 0 ? RETRY_MS : LOOK_MS;
  (void)poll(fds, a->fd < 0 ? 0 : 2, left >= 0 && left < most ? left : most);
}

/* Looks for the answer. Without one the connection is over: the neighbour was short of something,
 * or leaves. */
static tuttiResult_t takeAnswer(asking *a) {
  shmHello hello;
  TUTTI_CLOSED int segment = -1;
  ssize_t n = receiveHello(a->fd, 0, &hello, &segment);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return tuttiSuccess;
  tuttiFdClose(&a->fd);
  bool answer =
      n > 0 && validHello(a->view, &hello) && hello.from == a->peer && hello.kind == HELLO_GIVE;
  return answer ? takeIn(a->view, a->peer, segment) : tuttiSuccess;
}

/* The neighbour has left, and so handed in its segment at this rank's desk if it owes any. */
static tuttiResult_t lookAtDesk(const asking *a, int err) {
  while (!serve(a->view->local->desk) && !tuttiSegmentHas(a->view, a->peer)) {
    TUTTI_TRY(checkTime(a));
    rest(a);
  }
  return tuttiSegmentHas(a->view, a->peer) ? tuttiSuccess : refused(a, err);
}

static tuttiResult_t ask(asking *a) {
  while (!tuttiSegmentHas(a->view, a->peer)) {
    int err = a->fd < 0 ? greet(a->view, a->peer, HELLO_ASK, &a->fd) : 0;
    if (err == ECONNREFUSED || err == EPIPE || err == ECONNRESET) return lookAtDesk(a, err);
    if (err && !passing(err)) return refused(a, err);
    if (a->fd >= 0) TUTTI_TRY(takeAnswer(a));
    (void)serve(a->view->local->desk);
    if (tuttiSegmentHas(a->view, a->peer)) break;
    TUTTI_TRY(checkTime(a));
    rest(a);
  }
  return tuttiSuccess;
}

/* Gets the segment of a neighbour in another process. */
static tuttiResult_t attachTo(tuttiCommView *v, int peer) {
  char why[160];
  const tuttiPeer *p = &v->peers[peer];
  if (tuttiSegmentHas(v, peer)) return tuttiSuccess;
  TUTTI_CLOSED int fd = tuttiPeerFdOpen(p->pid, &p->segment, why, sizeof why);
  if (fd >= 0) return tuttiSegmentTake(v, peer, fd);
  asking a = {.view = v,
              .peer = peer,
              .fd = -1,
              .deadline = tuttiDeadline((int64_t)v->timeoutMs),
              .why = why};
  if (outOfFiles(-fd)) return refused(&a, -fd); /* to ask takes some, too */
  TUTTI_INFO(SHM, "rank %d asks rank %d for its shared memory: %s", v->rank, peer, why);
  tuttiResult_t result = ask(&a);
  tuttiFdClose(&a.fd);
  return result;
}

/* ---- leaving --------------------------------------------------------------------------------- */

/* Hands this rank's segment to a neighbour that may have messages in it. An errno: not now, for a
 * reason that may pass; 0: it has it, or is gone and needs none. */
static int handIn(const tuttiCommView *v, int to) {
  TUTTI_CLOSED int fd = -1;
  int err = greet(v, to, HELLO_GIVE, &fd);
  return passing(err) || outOfFiles(err) ? err : 0;
}

/* Nobody reads any more where the communicator has failed. */
static void handInOwed(const tuttiCommView *v) {
  uint64_t deadline = tuttiDeadline(LEAVE_MS);
  const tuttiPeer *mine = &v->peers[v->rank];
  for (int r = 0; r < v->nranks && !tuttiLoadAcquire32(v->failed); r++) {
    int err;
    if (!tuttiSegmentOwed(v, r) || tuttiSegmentInProcess(mine, &v->peers[r])) continue;
    while ((err = handIn(v, r)) != 0 && tuttiSegmentOwed(v, r)) {
      if (tuttiNow() >= deadline) {
        TUTTI_WARN(SHM, "rank %d leaves with messages that rank %d has not seen: %s%s", v->rank, r,
                   tuttiErrnoText(err),
                   outOfFiles(err) ? "; raise the limit of open files (ulimit -n, fs.file-max)"
                                   : "");
        break;
      }
      (void)poll(NULL, 0, RETRY_MS);
    }
  }
}

/* ---- the transport --------------------------------------------------------------------------- */

static tuttiResult_t shmPrepare(tuttiCommView *v, tuttiPeer *mine) {
  mine->shmSocket = mine->offer = 0;
  mine->segment.fd = -1;
  bool threads = mine->device != tuttiDeviceCuda && !mine->p2pDisabled;
  if (v->nranks == 1 || (!threads && mine->shmDisabled)) return tuttiSuccess;
  uint64_t id = 0;
  while (id == 0)
    TUTTI_TRY(tuttiRandom(&id, sizeof id));
  TUTTI_TRY(tuttiLocalPrepare(v));
  TUTTI_TRY(tuttiSegmentDescribe(v, mine));
  TUTTI_TRY(openDesk(v, id));
  mine->shmSocket = id;
  if (mine->device == tuttiDeviceCuda) return tuttiSuccess;
  mine->offer = tuttiRemoteOffer(mine->process);
  mine->fetch = tuttiRemoteMeasure(mine->offer, mine->process);
  return tuttiSuccess;
}

/* What a rank has of another: nothing, the process, or need of its segment. */
typedef enum { NO_NEIGHBOUR, IN_PROCESS, FOREIGN } neighbour;

/* Ranks that SHM connects with this one, or P2P but for GPUs (symmetric.c), are neighbours. */
static neighbour neighbourOf(const tuttiCommView *v, int r) {
  const tuttiPeer *mine = &v->peers[v->rank];
  const tuttiTransport *t = v->paths[r].transport;
  bool threads = t == &tuttiTransportP2p && mine->device != tuttiDeviceCuda;
  if (t != &tuttiTransportShm && !threads) return NO_NEIGHBOUR;
  return v->stagedBytes || !tuttiSegmentInProcess(mine, &v->peers[r]) ? FOREIGN : IN_PROCESS;
}

static tuttiResult_t shmAttach(tuttiCommView *v) {
  bool any = false, foreign = false;
  for (int r = 0; r < v->nranks && !foreign; r++) {
    neighbour kind = neighbourOf(v, r);
    any |= kind != NO_NEIGHBOUR;
    foreign = kind == FOREIGN;
  }
  if (any) TUTTI_TRY(tuttiLocalAttach(v));
  if (!any) tuttiLocalAlone(v);
  if (!foreign) closeDesk(v);
  if (!foreign) return tuttiSuccess;
  TUTTI_TRY(serveDesk(v));
  /* What a GPU works on is pinned before anything is captured into a graph. */
  bool now = v->stagedBytes || v->peers[v->rank].device == tuttiDeviceCuda;
  for (int r = 0; r < v->nranks && now; r++)
    if (neighbourOf(v, r) == FOREIGN) TUTTI_TRY(attachTo(v, r));
  return tuttiSuccess;
}

static tuttiResult_t shmOpen(tuttiCommView *v, int peer, int channel, tuttiDirection direction,
                             bool shared, tuttiConn *conn) {
  bool reads = direction == TUTTI_RECV && tuttiSegmentNeighbour(v, peer);
  if (reads && !tuttiSegmentInProcess(&v->peers[v->rank], &v->peers[peer]))
    TUTTI_TRY(attachTo(v, peer));
  TUTTI_TRY(tuttiSegmentOpen(v, peer, channel, direction, shared, conn));
  conn->transport = &tuttiTransportShm;
  if (direction == TUTTI_RECV) {
    const tuttiPeer *p = &v->peers[peer];
    tuttiRemote writer = {.pid = p->pid, .offer = p->offer, .id = p->process};
    bool fetches = v->peers[v->rank].offer && tuttiRemoteReadable(&writer);
    if (fetches) conn->writer = writer;
    tuttiStoreRelease32(&conn->readers[0].fetches, fetches);
  }
  return tuttiSuccess;
}

static void shmDetach(tuttiCommView *v) {
  if (v->local && v->local->desk && v->local->desk->served) handInOwed(v);
  closeDesk(v);
  tuttiLocalDetach(v);
}

const tuttiTransport tuttiTransportShm = {.name = "SHM",
                                          .canConnect = shmCanConnect,
                                          .explain = shmExplain,
                                          .prepare = shmPrepare,
                                          .attach = shmAttach,
                                          .open = shmOpen,
                                          .close = tuttiTransportNothingToClose,
                                          .detach = shmDetach};

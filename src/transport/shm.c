/* SHM: ranks that are processes of one host. Each rank listens on an abstract Unix socket, named in
 * its peer record; attach hands this rank's segment (a memfd) to every neighbour and takes theirs.
 * Nothing of this has a name in a file system, so /dev/shm may be tiny or absent and a SIGKILL
 * leaves nothing behind.
 *
 * Handing in needs only the neighbour's listener, which is there since before the all-gather of the
 * peer records; handing in and taking in advance together without blocking, so no order of ranks,
 * threads and communicators can wait in a circle. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/os.h"
#include "transport/remote.h"
#include "transport/segment.h"
#include "transport/stub.h"

/* Goes with the fd; checked before anything is believed. */
typedef struct {
  uint32_t magic, version;
  uint64_t commHash;
  uint8_t secret[16];
  int32_t from, to;
} shmHello;
#define SHM_MAGIC 0x7475736du

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

/* Connections accepted that have not said anything yet. A neighbour speaks at once, so when all are
 * taken, one that has been silent for a second makes room. */
#define MAX_SILENT 32
/* Connections accepted in a row before anything else gets a turn, the deadline above all. */
#define MAX_ACCEPTED 64
#define SILENT_NS    1000000000ull
/* Milliseconds: between attempts at a full neighbour, and between looks at the failed flag. */
#define RETRY_MS 1
#define LOOK_MS  20

typedef struct {
  int fd;
  uint64_t since;
} silentPeer;

/* The state of one attach. */
typedef struct {
  tuttiCommView *v;
  uint64_t deadline;
  int32_t *unsent, *missing; /* ranks that have not got mine; whose I have not got */
  int nunsent, nmissing;
  silentPeer silent[MAX_SILENT];
  int nsilent;
} exchangeState;

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

/* The abstract address ("@tutti-..." in ss -x) of a rank's listener. */
static socklen_t socketAddress(uint64_t id, struct sockaddr_un *out) {
  memset(out, 0, sizeof *out);
  out->sun_family = AF_UNIX;
  int n = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "tutti-%016" PRIx64, id);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

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

static tuttiResult_t listenFor(tuttiCommView *v, uint64_t id) {
  TUTTI_CLOSED int fd = -1;
  TUTTI_TRY(openSocket(v, &fd));
  struct sockaddr_un address;
  socklen_t length = socketAddress(id, &address);
  int backlog = v->nranks < 64 ? 64 : v->nranks;
  if (bind(fd, (struct sockaddr *)&address, length) != 0 || listen(fd, backlog) != 0)
    return TUTTI_FAIL(tuttiSystemError, "rank %d can't listen on the Unix socket @%s: %s", v->rank,
                      address.sun_path + 1, tuttiErrnoText(errno));
  tuttiForkCloseAdd(fd);
  v->local->listenFd = fd;
  fd = -1;
  return tuttiSuccess;
}

static tuttiResult_t shmPrepare(tuttiCommView *v, tuttiPeer *mine) {
  mine->shmSocket = mine->offer = 0;
  bool threads = mine->device != tuttiDeviceCuda && !mine->p2pDisabled;
  if (v->nranks == 1 || (!threads && mine->shmDisabled)) return tuttiSuccess;
  uint64_t id = 0;
  while (id == 0)
    TUTTI_TRY(tuttiRandom(&id, sizeof id));
  TUTTI_TRY(tuttiLocalPrepare(v));
  TUTTI_TRY(listenFor(v, id));
  mine->shmSocket = id;
  if (mine->device != tuttiDeviceCuda) mine->offer = tuttiRemoteOffer(mine->process);
  return tuttiSuccess;
}

/* ---- handing in ------------------------------------------------------------------------------ */

/* Sends the hello with the fd of this rank's segment; returns 0 or an errno. */
static int sendSegment(const tuttiCommView *v, int fd, int to) {
  parcel p = {.hello = {.magic = SHM_MAGIC,
                        .version = TUTTI_VERSION_CODE,
                        .commHash = v->commHash,
                        .from = v->rank,
                        .to = to}};
  memcpy(p.hello.secret, v->secret, sizeof p.hello.secret);
  struct msghdr message = messageOf(&p);
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  *c = (struct cmsghdr){
      .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
  int segment = tuttiSegmentFd(v);
  memcpy(CMSG_DATA(c), &segment, sizeof segment);
  ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  return n == (ssize_t)sizeof p.hello ? 0 : n < 0 ? errno : EIO;
}

/* The neighbour can't take it now: its backlog is full, or too many fds of this user are on their
 * way (ETOOMANYREFS). Both pass when somebody accepts. */
static bool passing(int err) {
  return err == EAGAIN || err == EINTR || err == ETOOMANYREFS || err == ENOBUFS || err == ENOMEM;
}

/* Tries once; *done tells whether `to` has it. */
static tuttiResult_t handIn(const tuttiCommView *v, int to, bool *done) {
  int fd;
  TUTTI_TRY(openSocket(v, &fd));
  struct sockaddr_un address;
  socklen_t length = socketAddress(v->peers[to].shmSocket, &address);
  int err = connect(fd, (struct sockaddr *)&address, length) == 0 ? 0 : errno;
  if (!err) err = trusted(fd) ? sendSegment(v, fd, to) : EPERM;
  close(fd);
  *done = err == 0;
  if (!err || passing(err)) return tuttiSuccess;
  const tuttiPeer *p = &v->peers[to];
  bool gone = err == ECONNREFUSED || err == EPIPE || err == ECONNRESET;
  return TUTTI_FAIL(gone ? tuttiRemoteError : tuttiSystemError,
                    "rank %d can't hand its shared memory to rank %d (host %s, pid %d) over the "
                    "Unix socket @%s: %s; %s",
                    v->rank, to, p->host, p->pid, address.sun_path + 1, tuttiErrnoText(err),
                    err == EPERM ? "run all ranks as one user"
                    : gone       ? "that rank has died or given up (see its log), or TUTTI_HOSTID "
                                   "joins ranks of different network namespaces"
                                 : "TUTTI_SHM_DISABLE=1 avoids shared memory");
}

static tuttiResult_t handInAll(exchangeState *x) {
  int left = 0;
  tuttiResult_t result = tuttiSuccess;
  for (int i = 0; i < x->nunsent; i++) {
    bool done = false;
    if (result == tuttiSuccess) result = handIn(x->v, x->unsent[i], &done);
    if (!done) x->unsent[left++] = x->unsent[i];
  }
  x->nunsent = left;
  return result;
}

/* ---- taking in ------------------------------------------------------------------------------- */

/* The number in x->missing of the neighbour that says this; -1 for anyone else. */
static int findSender(const exchangeState *x, const shmHello *hello) {
  const tuttiCommView *v = x->v;
  if (hello->magic != SHM_MAGIC || hello->version != TUTTI_VERSION_CODE ||
      hello->commHash != v->commHash || hello->to != v->rank ||
      memcmp(hello->secret, v->secret, sizeof hello->secret) != 0)
    return -1;
  for (int i = 0; i < x->nmissing; i++)
    if (x->missing[i] == hello->from) return i;
  return -1;
}

/* Takes the first fd out of a message and closes any other; -1 if there is none. */
static int takeFd(struct msghdr *message) {
  int first = -1;
  for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < n; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      if (first < 0)
        first = fd;
      else
        close(fd);
    }
  }
  return first;
}

/* Reads what a connection has to say and maps the segment it brings. *silent: nothing yet. Whoever
 * is not an awaited neighbour is dropped and harms nobody. */
static tuttiResult_t takeIn(exchangeState *x, int fd, bool *silent) {
  parcel p;
  struct msghdr message = messageOf(&p);
  ssize_t n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  *silent = n < 0 && (errno == EAGAIN || errno == EINTR);
  if (*silent) return tuttiSuccess;
  int segment = n >= 0 ? takeFd(&message) : -1;
  int i = n == (ssize_t)sizeof p.hello && !(message.msg_flags & MSG_TRUNC) ? findSender(x, &p.hello)
                                                                           : -1;
  tuttiResult_t result = tuttiSuccess;
  if (i < 0)
    TUTTI_WARN(SHM,
               "rank %d dropped a connection to its Unix socket: not a rank of this communicator",
               x->v->rank);
  else if (segment < 0)
    result = TUTTI_FAIL(tuttiSystemError,
                        "rank %d got no file descriptor for the segment of rank %d: raise the "
                        "limit of open files (ulimit -n)",
                        x->v->rank, p.hello.from);
  else
    result = tuttiSegmentTake(x->v, p.hello.from, segment);
  if (i >= 0 && result == tuttiSuccess) x->missing[i] = x->missing[--x->nmissing];
  if (segment >= 0) close(segment);
  return result;
}

/* Listens to the silent connections again, and drops the oldest if no more fit. */
static tuttiResult_t takeInSilent(exchangeState *x) {
  int left = 0;
  tuttiResult_t result = tuttiSuccess;
  for (int i = 0; i < x->nsilent; i++) {
    bool silent = true;
    if (result == tuttiSuccess) result = takeIn(x, x->silent[i].fd, &silent);
    if (silent)
      x->silent[left++] = x->silent[i];
    else
      close(x->silent[i].fd);
  }
  x->nsilent = left;
  /* In order of arrival: the first is the oldest. */
  if (left == MAX_SILENT && tuttiNow() - x->silent[0].since > SILENT_NS) {
    close(x->silent[0].fd);
    memmove(x->silent, x->silent + 1, sizeof(silentPeer) * (size_t)--x->nsilent);
    TUTTI_WARN(SHM, "rank %d dropped a silent connection to its Unix socket", x->v->rank);
  }
  return result;
}

static tuttiResult_t takeInAll(exchangeState *x) {
  TUTTI_TRY(takeInSilent(x));
  for (int n = 0; n < MAX_ACCEPTED && x->nsilent < MAX_SILENT; n++) {
    int fd = accept4(x->v->local->listenFd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && errno == EAGAIN) return tuttiSuccess;
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0)
      return TUTTI_FAIL(tuttiSystemError,
                        "rank %d can't accept the segments of its neighbours: %s; raise the limit "
                        "of open files (ulimit -n)",
                        x->v->rank, tuttiErrnoText(errno));
    bool silent = false;
    tuttiResult_t result = tuttiSuccess;
    if (trusted(fd))
      result = takeIn(x, fd, &silent);
    else
      TUTTI_WARN(SHM, "rank %d dropped another user's connection to its Unix socket", x->v->rank);
    if (silent)
      x->silent[x->nsilent++] = (silentPeer){.fd = fd, .since = tuttiNow()};
    else
      close(fd);
    TUTTI_TRY(result);
  }
  return tuttiSuccess;
}

/* ---- attach ---------------------------------------------------------------------------------- */

static tuttiResult_t checkTime(const exchangeState *x) {
  const tuttiCommView *v = x->v;
  bool failed = tuttiLoadAcquire32(v->failed);
  if (!failed && tuttiNow() < x->deadline) return tuttiSuccess;
  char names[640];
  bool sent = x->nmissing > 0;
  tuttiLocalNames(v, sent ? x->missing : x->unsent, sent ? x->nmissing : x->nunsent, names,
                  sizeof names);
  if (failed)
    return TUTTI_FAIL(tuttiRemoteError,
                      "rank %d gave up exchanging shared memory with %s: the communicator has "
                      "failed",
                      v->rank, names);
  return TUTTI_FAIL(tuttiTimeout,
                    "rank %d could not exchange shared memory within %llu ms: %s %s; see whether "
                    "it runs and what its log says, or raise TUTTI_TIMEOUT",
                    v->rank, (unsigned long long)v->timeoutMs,
                    sent ? "nothing came from" : "nothing was taken by", names);
}

/* Sleeps until there is something to take in, or it is time to look around. */
static void rest(const exchangeState *x) {
  struct pollfd fds[MAX_SILENT + 1];
  nfds_t n = 0;
  for (int i = 0; i < x->nsilent; i++)
    fds[n++] = (struct pollfd){.fd = x->silent[i].fd, .events = POLLIN};
  if (x->nsilent < MAX_SILENT)
    fds[n++] = (struct pollfd){.fd = x->v->local->listenFd, .events = POLLIN};
  int left = tuttiDeadlinePollMs(x->deadline);
  int most = x->nunsent ? RETRY_MS : LOOK_MS;
  (void)poll(fds, n, left >= 0 && left < most ? left : most);
}

static tuttiResult_t exchange(exchangeState *x) {
  for (;;) {
    TUTTI_TRY(handInAll(x));
    TUTTI_TRY(takeInAll(x));
    if (x->nunsent == 0 && x->nmissing == 0) return tuttiSuccess;
    TUTTI_TRY(checkTime(x));
    rest(x);
  }
}

/* Ranks that SHM connects with this one, or P2P but for GPUs (symmetric.c): those of them that need
 * a hand-over, and whether there are any. */
static int findNeighbours(const tuttiCommView *v, int32_t *ranks, bool *any) {
  int n = 0;
  const tuttiPeer *mine = &v->peers[v->rank];
  for (int r = 0; r < v->nranks; r++) {
    const tuttiTransport *t = v->paths[r].transport;
    bool threads = t == &tuttiTransportP2p && mine->device != tuttiDeviceCuda;
    if (t != &tuttiTransportShm && !threads) continue;
    *any = true;
    if (v->stagedBytes || !tuttiSegmentInProcess(mine, &v->peers[r])) ranks[n++] = r;
  }
  return n;
}

static tuttiResult_t shmAttach(tuttiCommView *v) {
  TUTTI_FRESH(int32_t, ranks, 2 * (size_t)v->nranks, "ranks of this host", NULL);
  exchangeState x = {.v = v,
                     .deadline = tuttiDeadline((int64_t)v->timeoutMs),
                     .unsent = ranks,
                     .missing = ranks + v->nranks};
  bool any = false;
  x.nunsent = x.nmissing = findNeighbours(v, ranks, &any);
  memcpy(x.missing, ranks, sizeof *ranks * (size_t)x.nmissing);
  if (any) TUTTI_TRY(tuttiLocalAttach(v));
  tuttiResult_t result = x.nunsent > 0 ? exchange(&x) : tuttiSuccess;
  for (int i = 0; i < x.nsilent; i++)
    close(x.silent[i].fd);
  if (result == tuttiSuccess && v->local) tuttiFdClose(&v->local->listenFd);
  return result;
}

static tuttiResult_t shmOpen(tuttiCommView *v, int peer, int channel, tuttiDirection direction,
                             bool shared, tuttiConn *conn) {
  TUTTI_TRY(tuttiSegmentOpen(v, peer, channel, direction, shared, conn));
  conn->transport = &tuttiTransportShm;
  if (direction == TUTTI_RECV) {
    tuttiRemote writer = {v->peers[peer].pid, v->peers[peer].offer, v->peers[peer].process};
    bool fetches = v->peers[v->rank].offer && tuttiRemoteReadable(&writer);
    if (fetches) conn->writer = writer;
    tuttiStoreRelease32(&conn->readers[0].fetches, fetches);
  }
  return tuttiSuccess;
}

const tuttiTransport tuttiTransportShm = {.name = "SHM",
                                          .canConnect = shmCanConnect,
                                          .explain = shmExplain,
                                          .prepare = shmPrepare,
                                          .attach = shmAttach,
                                          .open = shmOpen,
                                          .close = tuttiTransportNothingToClose,
                                          .detach = tuttiLocalDetach};

/* Streams between processes, and the engine that serves them.
 *
 * Each process listens on an abstract Unix socket, which the kernel removes with it. The socket's
 * name holds the process's slot, and a queue pair's number begins with it: so whoever knows a queue
 * pair's number can reach it, two processes never have the same, and nothing has to be cleaned up.
 */
#include "hca.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
  IN_BYTES = 1 << 18,
  OUT_BYTES = 1 << 17, /* above this, messages wait in their queues */
  ROUNDS = 8,          /* of reading one stream before others have their turn */
};
static const uint64_t AHEAD_NS = 500000;  /* a port with a rate sends so much ahead of time */
static const uint64_t POLLED_NS = 200000; /* a thread that polled so lately will poll again */

uint64_t softNow(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t draw(void) {
  hca.random ^= hca.random << 13; /* Marsaglia's xorshift64 */
  hca.random ^= hca.random >> 7;
  hca.random ^= hca.random << 17;
  return hca.random;
}

uint64_t softRandom(uint64_t below) {
  return below ? draw() % below : 0;
}

bool softStrikes(softFault *fault) {
  if (fault->nth && ++fault->count == fault->nth) return true;
  return fault->p > 0 && (double)(draw() >> 11) * 0x1p-53 < fault->p;
}

/* ---- staging -------------------------------------------------------------------------------- */

/* From the first memory of a GPU on, staging is pinned for its copies. */
static void pin(softStaging *staging) {
  if (!hca.gpus || staging->pinned) return;
  staging->pinned = true;
  softMoverSubmit(&(softJob){.move = SOFT_PIN, .staging = staging}, 0);
}

void softPinAll(void) {
  hca.gpus = true;
  for (softConn *conn = hca.conns; conn; conn = conn->next)
    if (conn->staging) pin(conn->staging);
}

static void unmap(softStaging *staging) {
  if (staging->pinned)
    softMoverSubmit(&(softJob){.move = SOFT_UNPIN, .staging = staging}, 0);
  else
    softStagingUnmap(staging);
}

/* ---- connections ---------------------------------------------------------------------------- */

static socklen_t nameOf(uint32_t slot, struct sockaddr_un *name) {
  *name = (struct sockaddr_un){.sun_family = AF_UNIX};
  int n = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "softhca/%s/%u",
                   hca.config.fabric, slot);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static softConn *addConn(int fd, uint32_t slot, bool outgoing, softStaging *staging) {
  softConn *conn = calloc(1, sizeof *conn);
  if (conn) conn->in.bytes = malloc(IN_BYTES);
  if (!conn || !conn->in.bytes) {
    free(conn);
    return NULL;
  }
  conn->fd = fd;
  conn->slot = slot;
  conn->outgoing = outgoing;
  conn->staging = staging;
  conn->in.cap = IN_BYTES;
  conn->next = hca.conns;
  hca.conns = conn;
  if (staging) pin(staging);
  return conn;
}

/* What a stream begins with: a descriptor of its staging comes along. */
typedef struct {
  uint32_t version, ringBytes;
} Hello;

enum { VERSION = 2 };

typedef union {
  struct cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
} Control;

static bool sendHello(int fd, int staging) {
  Hello hello = {.version = VERSION, .ringBytes = (uint32_t)hca.config.staging};
  struct iovec part = {.iov_base = &hello, .iov_len = sizeof hello};
  Control control = {.bytes = {0}};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof staging);
  memcpy(CMSG_DATA(c), &staging, sizeof staging);
  return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof hello;
}

static int descriptorOf(struct msghdr *message) {
  int fd = -1;
  struct cmsghdr *c = CMSG_FIRSTHDR(message);
  if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
      c->cmsg_len == CMSG_LEN(sizeof fd))
    memcpy(&fd, CMSG_DATA(c), sizeof fd);
  return fd;
}

/* A stream's first bytes; false: they have not come yet, or are none of ours. */
static bool receiveHello(softConn *conn) {
  Hello hello = {0};
  struct iovec part = {.iov_base = &hello, .iov_len = sizeof hello};
  Control control;
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t n = recvmsg(conn->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  int fd = n > 0 ? descriptorOf(&message) : -1;
  if (fd >= 0 && n == sizeof hello && hello.version == VERSION)
    conn->staging = softStagingAccept(fd, hello.ringBytes);
  if (fd >= 0) close(fd);
  conn->dead = !conn->staging;
  if (conn->staging) pin(conn->staging);
  return conn->staging;
}

static softConn *open_(int fd, uint32_t slot) {
  int memory;
  softStaging *staging = softStagingCreate((uint32_t)hca.config.staging, &memory);
  if (!staging) return NULL;
  bool sent = sendHello(fd, memory);
  close(memory);
  softConn *conn = sent ? addConn(fd, slot, true, staging) : NULL;
  if (!conn) softStagingUnmap(staging);
  return conn;
}

softConn *softConnTo(uint32_t slot) {
  struct sockaddr_un name;
  for (softConn *conn = hca.conns; conn; conn = conn->next)
    if (conn->outgoing && conn->slot == slot && !conn->dead) return conn;
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return NULL;
  softConn *conn = NULL;
  if (connect(fd, (struct sockaddr *)&name, nameOf(slot, &name)) == 0) conn = open_(fd, slot);
  if (!conn) close(fd);
  return conn;
}

bool softConnRoom(const softConn *conn) {
  return conn->out.tail - conn->out.head < OUT_BYTES;
}

void softConnFlush(softConn *conn) {
  softBuffer *out = &conn->out;
  while (out->head < out->tail && !conn->dead) {
    ssize_t n =
        send(conn->fd, out->bytes + out->head, out->tail - out->head, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0)
      out->head += (size_t)n;
    else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      break;
    else if (n < 0 && errno != EINTR)
      conn->dead = true;
  }
  if (out->head == out->tail)
    out->head = out->tail = 0;
  else
    hca.backlog = true;
}

static bool reserve(softBuffer *b, size_t size) {
  if (b->head > 0 && b->tail + size > b->cap) {
    memmove(b->bytes, b->bytes + b->head, b->tail - b->head);
    b->tail -= b->head;
    b->head = 0;
  }
  if (b->tail + size <= b->cap) return true;
  size_t cap = 2 * (b->tail + size);
  uint8_t *bytes = realloc(b->bytes, cap);
  if (!bytes) return false;
  b->bytes = bytes;
  b->cap = cap;
  return true;
}

static const softPortConfig *portOf(uint16_t id) {
  return &hca.config.devices[id / SOFT_MAX_PORTS].ports[id % SOFT_MAX_PORTS];
}

/* A frame may name a port that this configuration lacks. */
static bool portExists(uint16_t id) {
  return id / SOFT_MAX_PORTS < hca.config.ndevices;
}

bool softPortBusy(uint16_t id, uint64_t now) {
  return portExists(id) && portOf(id)->gbps > 0 && softRateFree(id) > now + AHEAD_NS;
}

static uint64_t dueOf(uint16_t id, size_t payload) {
  softFault *late = &hca.config.faults.late;
  const softPortConfig *port = portExists(id) ? portOf(id) : &(softPortConfig){.gbps = 0};
  uint64_t now = softNow(), due = port->latency ? now : 0;
  if (portExists(id)) softPortCount(id, payload);
  if (port->gbps > 0) due = softRateSend(id, port->gbps, sizeof(softFrame) + payload, now);
  due += port->latency;
  return softStrikes(late) ? now + port->latency + late->by : due;
}

bool softConnSend(softConn *conn, softFrame *frame, uint16_t portId) {
  softBuffer *out = &conn->out;
  if (!reserve(out, sizeof *frame)) return false;
  frame->due = frame->kind == SOFT_ROOM ? 0 : dueOf(portId, frame->length);
  memcpy(out->bytes + out->tail, frame, sizeof *frame);
  out->tail += sizeof *frame;
  return true;
}

/* ---- receiving ------------------------------------------------------------------------------ */

/* The chunk that a frame names, or NULL; false: the frame is not from one of us. */
static bool chunkOf(const softConn *conn, const softFrame *f, uint8_t **chunk) {
  uint32_t limit = f->flags & SOFT_BY_ADDRESS ? SOFT_DIRECT : SOFT_PAYLOAD;
  uint32_t bytes = f->flags & SOFT_BY_ADDRESS ? sizeof(softDirect) : f->length;
  *chunk = NULL;
  if (f->length > limit) return false;
  if (f->chunk == 0) return f->length <= sizeof f->operand; /* an atomic's value is in the frame */
  *chunk = softChunkFind(conn->staging, f->chunk, bytes);
  return *chunk;
}

static void handleOne(softConn *conn, const softFrame *f, uint8_t *chunk) {
  softQp *qp = f->kind == SOFT_REQUEST ? NULL : softQpFind(f->toQpn);
  if (f->kind == SOFT_REQUEST)
    softResponderTake(conn, f, chunk);
  else if (qp)
    softRequesterAnswer(qp, conn, f, chunk);
  else
    softRelease(conn, chunk);
}

/* The frames that have come whole and are due. */
static bool handle(softConn *conn) {
  softBuffer *in = &conn->in;
  bool moved = false;
  softFrame f;
  uint8_t *chunk;
  for (; in->tail - in->head >= sizeof f; in->head += sizeof f) {
    memcpy(&f, in->bytes + in->head, sizeof f);
    if (f.due && f.due > softNow()) {
      softNext(f.due);
      break;
    }
    if (!chunkOf(conn, &f, &chunk)) {
      conn->dead = true;
      break;
    }
    handleOne(conn, &f, chunk);
    moved = true;
  }
  return moved;
}

static bool receive(softConn *conn) {
  softBuffer *in = &conn->in;
  if (!conn->staging && !receiveHello(conn)) return conn->dead;
  bool moved = handle(conn);
  for (int round = 0; round < ROUNDS && !conn->dead; round++) {
    if (in->head > 0) {
      memmove(in->bytes, in->bytes + in->head, in->tail - in->head);
      in->tail -= in->head;
      in->head = 0;
    }
    if (in->tail == in->cap) break; /* all of it is not yet due */
    ssize_t n = recv(conn->fd, in->bytes + in->tail, in->cap - in->tail, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n <= 0) {
      conn->dead = true;
      break;
    }
    in->tail += (size_t)n;
    moved = handle(conn) || moved;
  }
  return moved;
}

static void greet(void) {
  for (int fd; (fd = accept4(hca.listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;)
    if (!addConn(fd, 0, false, NULL)) close(fd);
}

/* A broken stream: what was sent and not answered may be lost, what it was to be answered is of no
 * use. */
static void breakDown(const softConn *conn) {
  for (softQp *qp = hca.qps; qp; qp = qp->next)
    if (conn->outgoing && qp->attr.dest_qp_num >> SOFT_INDEX_BITS == conn->slot)
      softRequesterLost(qp);
}

static void bury(softConn **at) {
  softConn *conn = *at;
  *at = conn->next;
  close(conn->fd);
  if (conn->staging) unmap(conn->staging);
  free(conn->in.bytes);
  free(conn->out.bytes);
  free(conn);
}

/* ---- progress ------------------------------------------------------------------------------- */

void softNext(uint64_t when) {
  if (when < hca.next) hca.next = when;
}

static bool runQp(softQp *qp, uint64_t now) {
  bool moved = softRequesterRun(qp, now);
  moved = softResponderRun(qp) || moved;
  if (qp->resendAt) softNext(qp->resendAt);
  if ((qp->next_ == qp->tail && !qp->in.flights.first) || !softQpSends(qp)) return moved;
  uint64_t free =
      softRateFree(softPortId(softDeviceOf(qp->ibv.qp_base.context), qp->attr.port_num));
  if (free > now + AHEAD_NS) softNext(free - AHEAD_NS / 2);
  return moved;
}

static bool runConns(void) {
  bool moved = false;
  for (softConn **at = &hca.conns; *at;) {
    softConn *conn = *at;
    size_t left = conn->out.tail - conn->out.head;
    softConnFlush(conn);
    /* Who found no room before has some now, and nothing else would tell. */
    moved = moved || conn->out.tail - conn->out.head < left;
    if (conn->dead) breakDown(conn);
    if (conn->dead && conn->users == 0)
      bury(at);
    else
      at = &conn->next;
  }
  return moved;
}

/* hca.next is when there is something to do again, as far as that is known. */
bool softProgress(void) {
  uint64_t now = softNow();
  hca.backlog = false;
  hca.next = UINT64_MAX;
  softTimeline(now);
  softCqReveal(now);
  softRevealDue(now);
  bool moved = softFlightsReap();
  for (softConn *conn = hca.conns; conn; conn = conn->next)
    moved = (!conn->dead && receive(conn)) || moved;
  for (softQp *qp = hca.qps; qp; qp = qp->next)
    moved = runQp(qp, now) || moved;
  return runConns() || moved;
}

/* ---- the engine ----------------------------------------------------------------------------- */

void softEngineWake(void) {
  eventfd_write(hca.wake, 1);
}

typedef struct {
  struct pollfd *fds;
  size_t cap;
} PollList;

/* What the engine waits for: 0 and 1 are always there, streams only while nobody polls. */
static nfds_t listFds(PollList *list, bool streams) {
  nfds_t n = 2;
  list->fds[0] = (struct pollfd){.fd = hca.wake, .events = POLLIN};
  list->fds[1] = (struct pollfd){.fd = hca.listener, .events = POLLIN};
  for (softConn *conn = hca.conns; conn && streams; conn = conn->next) {
    if (conn->dead) continue; /* it waits for the end of copies */
    if (n == list->cap) {
      struct pollfd *fds = realloc(list->fds, 2 * list->cap * sizeof *fds);
      if (!fds) break;
      list->fds = fds;
      list->cap *= 2;
    }
    short events = conn->in.tail - conn->in.head < conn->in.cap ? POLLIN : 0;
    if (conn->out.head < conn->out.tail) events |= POLLOUT;
    list->fds[n++] = (struct pollfd){.fd = conn->fd, .events = events};
  }
  return n;
}

static void waitUntil(const PollList *list, nfds_t n, uint64_t next) {
  uint64_t now = softNow(), wait = next > now ? next - now : 0;
  struct timespec t = {.tv_sec = (time_t)(wait / 1000000000), .tv_nsec = (long)(wait % 1000000000)};
  eventfd_t count;
  ppoll(list->fds, n, next == UINT64_MAX ? NULL : &t, NULL);
  if (list->fds[0].revents) eventfd_read(hca.wake, &count);
}

static void *engine(void *unused) {
  PollList list = {.fds = malloc(64 * sizeof *list.fds), .cap = 64};
  (void)unused;
  pthread_mutex_lock(&hca.lock);
  while (!hca.stop && list.fds) {
    uint64_t polled = atomic_load_explicit(&hca.polledAt, memory_order_relaxed);
    greet();
    /* What moved may have made room for more. */
    uint64_t next = softProgress() ? 0 : hca.next;
    /* Threads that poll do all that is to be done; the engine looks after them from time to time.
     */
    bool alone = softNow() - polled > POLLED_NS;
    if (!alone && polled + POLLED_NS < next) next = polled + POLLED_NS + 1;
    nfds_t n = listFds(&list, alone);
    pthread_mutex_unlock(&hca.lock);
    waitUntil(&list, n, next);
    pthread_mutex_lock(&hca.lock);
  }
  pthread_mutex_unlock(&hca.lock);
  free(list.fds);
  return NULL;
}

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

/* A slot of one's own: whichever name is free. 0 or an errno. */
static int listenSomewhere(void) {
  struct sockaddr_un name;
  uint32_t slots = (1u << (24 - SOFT_INDEX_BITS)) - 1, start = (uint32_t)getpid();
  hca.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (hca.listener < 0) return errno;
  for (uint32_t i = 0; i < slots; i++) {
    hca.slot = 1 + (start + i) % slots;
    if (bind(hca.listener, (struct sockaddr *)&name, nameOf(hca.slot, &name)) == 0)
      return listen(hca.listener, 1024) ? errno : 0;
    if (errno != EADDRINUSE) return errno;
  }
  return EADDRINUSE;
}

static int startEngine(void) {
  sigset_t all, before;
  int error = listenSomewhere();
  hca.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (!error && hca.wake < 0) error = errno;
  hca.stop = false;
  hca.gpus = false;
  memset(hca.portFrames, 0, sizeof hca.portFrames);
  memset(hca.portFell, 0, sizeof hca.portFell);
  memset(hca.deviceFrames, 0, sizeof hca.deviceFrames);
  memset(hca.deviceGone, 0, sizeof hca.deviceGone);
  memset(hca.deviceCalls, 0, sizeof hca.deviceCalls);
  hca.cores = sysconf(_SC_NPROCESSORS_ONLN);
  hca.opened = softNow();
  softRateStart();
  sigfillset(&all); /* the application's signals are for its own threads */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  if (!error) error = pthread_create(&hca.thread, NULL, engine, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (!error) return 0;
  softRateStop();
  if (hca.listener >= 0) close(hca.listener);
  if (hca.wake >= 0) close(hca.wake);
  return error;
}

int softEngineStart(void) {
  pthread_mutex_lock(&starting);
  int error = hca.users ? 0 : startEngine();
  if (!error) hca.users++;
  pthread_mutex_unlock(&starting);
  return error;
}

/* Nobody but movers is there any more. What a copy that does not end touches stays for ever. */
static void cleanUp(void) {
  pthread_mutex_lock(&hca.lock);
  softReveal(-1);
  pthread_mutex_unlock(&hca.lock);
  softRateStop();
  if (softMoverDrain()) {
    pthread_mutex_lock(&hca.lock);
    softFlightsReap();
    for (softConn **at = &hca.conns; *at;)
      if ((*at)->users == 0)
        bury(at);
      else
        at = &(*at)->next;
    pthread_mutex_unlock(&hca.lock);
    softMoverStop();
  }
  close(hca.listener);
  close(hca.wake);
}

void softEngineStop(void) {
  pthread_mutex_lock(&starting);
  if (--hca.users == 0) {
    pthread_mutex_lock(&hca.lock);
    hca.stop = true;
    pthread_mutex_unlock(&hca.lock);
    softEngineWake();
    pthread_join(hca.thread, NULL);
    cleanUp();
  }
  pthread_mutex_unlock(&starting);
}

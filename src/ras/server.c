/* Who asks: the port, the Unix socket, and their clients. All of it is served by the watch's
 * thread, one turn after the other; a client costs a few hundred bytes until it asks, and the
 * answers of all clients come of one inquiry at a time. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/settings.h"
#include "ras/protocol.h"
#include "ras/report.h"
#include "ras/signal.h"
#include "ras/source.h"
#include "socket/socket.h"

#define CLIENTS     16    /* beyond, the one that has waited longest gives way */
#define IDLE_MS     10000 /* for its next line, or to read what it asked for */
#define UNREAD      4096  /* bytes of answers that a client may leave unread and ask on */
#define STEP_MS     2     /* between two steps of an inquiry */
#define MONITOR_MS  500   /* between two looks for what happens */
#define TURN_EVENTS 32
#define TURN_READS  4 /* of one client in one turn */
#define LISTENERS   2
#define SIGNAL      (CLIENTS + LISTENERS) /* the tag of its events */

typedef struct {
  int fd; /* -1: free */
  uint64_t until;
  tuttiRasRequest request;
  size_t have;
  char in[TUTTI_RAS_LINE];
  char *out; /* of malloc */
  size_t outBytes, outAt;
  uint64_t seen; /* events that it was told of */
} client;

/* The last things that happened, for clients that monitor. */
typedef struct {
  char text[200];
} happening;
#define HAPPENINGS 32u

static struct {
  pthread_mutex_t life; /* serializes opening and closing; taken before `lock` */
  int users;            /* under life */
  pthread_mutex_t lock; /* guards what follows; taken within the watch's */
  tuttiRasSource *sources;
  bool open;
  int epollFd, listeners[LISTENERS]; /* the port, the Unix socket; -1: none */
  int signalFd;                      /* or -1 */
  client clients[CLIENTS];
  bool inquiring;
  uint64_t inquirySince;
  happening happenings[HAPPENINGS];
  uint64_t happened;
} ras = {.life = PTHREAD_MUTEX_INITIALIZER,
         .lock = PTHREAD_MUTEX_INITIALIZER,
         .epollFd = -1,
         .listeners = {-1, -1},
         .signalFd = -1};

/* ---- clients -------------------------------------------------------------------------------- */

static bool lookAt(int op, int fd, uint32_t events, uint32_t tag) {
  struct epoll_event event = {.events = events, .data.u32 = tag};
  return epoll_ctl(ras.epollFd, op, fd, &event) == 0;
}

static void dropClient(client *c) {
  if (c->fd < 0) return;
  lookAt(EPOLL_CTL_DEL, c->fd, 0, 0);
  tuttiFdClose(&c->fd);
  free(c->out);
  *c = (client){.fd = -1};
}

/* Adds to what is on its way; what comes of no memory is the end of the client. */
static void say(client *c, const char *text, size_t bytes) {
  char *out = realloc(c->out, c->outBytes + bytes);
  if (!out) {
    dropClient(c);
    return;
  }
  memcpy(out + c->outBytes, text, bytes);
  c->out = out;
  c->outBytes += bytes;
}

/* Writes what the socket takes; one that has it all and was to have no more is sent away. */
static void flush(client *c) {
  while (c->fd >= 0 && c->outAt < c->outBytes) {
    ssize_t n = send(c->fd, c->out + c->outAt, c->outBytes - c->outAt, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      c->outAt += (size_t)n;
      c->until = tuttiDeadline(IDLE_MS);
    } else if (errno == EAGAIN) {
      lookAt(EPOLL_CTL_MOD, c->fd, EPOLLIN | EPOLLOUT, (uint32_t)(c - ras.clients));
      return;
    } else if (errno != EINTR) {
      dropClient(c);
      return;
    }
  }
  if (c->fd < 0) return;
  if (c->outBytes > 0) lookAt(EPOLL_CTL_MOD, c->fd, EPOLLIN, (uint32_t)(c - ras.clients));
  free(c->out);
  c->out = NULL;
  c->outBytes = c->outAt = 0;
  if (c->request.wish == tuttiRasEnd) {
    shutdown(c->fd, SHUT_WR);
    dropClient(c);
  }
}

/* Sends away who asks on and does not read what it is answered; false if so. */
static bool reads(client *c) {
  if (c->outBytes > UNREAD) flush(c);
  if (c->outBytes > UNREAD) dropClient(c);
  return c->fd >= 0;
}

/* Takes a client's lines as far as they have come. */
static void takeLines(client *c) {
  char answer[TUTTI_RAS_LINE + 64];
  int used;
  while (c->fd >= 0 && c->request.wish == tuttiRasNothing &&
         (used = tuttiRasLineFind(c->in, c->have)) != 0) {
    if (used < 0) {
      static const char tooLong[] = "ERROR: Line too long\n";
      c->request.wish = tuttiRasEnd;
      say(c, tooLong, sizeof tooLong - 1);
      return;
    }
    if (!reads(c)) return;
    tuttiRasLineTake(c->in, &c->request, answer);
    say(c, answer, strlen(answer));
    c->have -= (size_t)used;
    memmove(c->in, c->in + used, c->have);
    c->until = tuttiDeadline(IDLE_MS);
    if (c->request.wish == tuttiRasEvents) c->seen = ras.happened;
  }
}

static void readClient(client *c) {
  for (int i = 0; i < TURN_READS && c->fd >= 0; i++) {
    char drop[TUTTI_RAS_LINE];
    bool listens = c->request.wish == tuttiRasNothing;
    ssize_t n = listens ? recv(c->fd, c->in + c->have, sizeof c->in - c->have, MSG_DONTWAIT)
                        : recv(c->fd, drop, sizeof drop, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
      dropClient(c);
      return;
    }
    if (!listens) continue;
    c->have += (size_t)n;
    takeLines(c);
    if (c->fd >= 0) flush(c);
  }
}

/* The place for one more: a free one, or that of whoever has waited longest of those whom no answer
 * is being made for; -1: there is none. */
static int findPlace(void) {
  int longest = -1;
  for (int i = 0; i < CLIENTS; i++) {
    const client *c = &ras.clients[i];
    if (c->fd < 0) return i;
    if (c->request.wish == tuttiRasReport) continue;
    if (longest < 0 || c->until < ras.clients[longest].until) longest = i;
  }
  if (longest >= 0) dropClient(&ras.clients[longest]);
  return longest;
}

/* Through the Unix socket comes only who may end this process, too. */
static bool isOurs(int fd) {
  struct ucred peer;
  socklen_t size = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == geteuid() || peer.uid == 0;
}

static void letIn(int listener) {
  for (int i = 0; i < CLIENTS; i++) {
    int fd = accept4(ras.listeners[listener], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    int place = listener == 0 || isOurs(fd) ? findPlace() : -1;
    if (place < 0 || !lookAt(EPOLL_CTL_ADD, fd, EPOLLIN, (uint32_t)place)) {
      close(fd);
      continue;
    }
    tuttiForkCloseAdd(fd);
    ras.clients[place] = (client){.fd = fd,
                                  .until = tuttiDeadline(IDLE_MS),
                                  .request = {.timeoutMs = TUTTI_RAS_TIMEOUT * 1000}};
    readClient(&ras.clients[place]);
  }
}

/* ---- answers -------------------------------------------------------------------------------- */

static uint64_t realtime(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void answer(client *c, const tuttiSnapshot *s) {
  static void (*const writers[])(const tuttiSnapshot *,
                                 FILE *) = {[tuttiRasText] = tuttiReportText,
                                            [tuttiRasJson] = tuttiReportJson,
                                            [tuttiRasPrometheus] = tuttiReportPrometheus,
                                            [tuttiRasTrace] = tuttiReportTrace,
                                            [tuttiRasFacts] = tuttiReportFacts};
  size_t bytes;
  char *text = tuttiReportMakeSized(s, writers[c->request.format], &bytes);
  c->request.wish = tuttiRasEnd;
  c->until = tuttiDeadline(IDLE_MS);
  if (text) say(c, text, bytes);
  free(text);
  if (c->fd >= 0) flush(c);
}

/* What all sources have: of their inquiries, or without any. */
static void collect(tuttiSnapshot *s) {
  for (tuttiRasSource *source = ras.sources; source; source = source->next)
    if (tuttiRasCollect(source, source->inquiry, s) != tuttiSuccess) break; /* as much as fits */
  s->realtime = realtime();
}

static void answerLocal(client *c) {
  tuttiSnapshot s = {0};
  collect(&s);
  answer(c, &s);
  tuttiSnapshotFree(&s);
}

/* What the signal asked for. */
static void dumpLocal(void) {
  tuttiSnapshot s = {0};
  char path[4096];
  collect(&s);
  snprintf(path, sizeof path, "%s.%d", tuttiSettingString(TUTTI_SETTING_DUMP_FILE), (int)getpid());
  if (tuttiReportSave(&s, path, "TUTTI_DUMP_FILE") == tuttiSuccess) {
    TUTTI_INFO(COLL, "SIGUSR2: the record is in %s", path);
  } else {
    TUTTI_WARN(COLL, "SIGUSR2: %s", tuttiErrorText());
    tuttiErrorClear();
  }
  tuttiSnapshotFree(&s);
}

/* Asks the ranks of each communicator once, however many of them this process has. */
static void startInquiry(int ms) {
  ras.inquiring = true;
  ras.inquirySince = tuttiNow();
  for (tuttiRasSource *source = ras.sources; source; source = source->next)
    if (source->watch && tuttiInquiryStart(source->watch, ms, &source->inquiry) != tuttiSuccess)
      source->inquiry = NULL;
}

static bool stepInquiry(void) {
  bool over = true;
  for (tuttiRasSource *source = ras.sources; source; source = source->next)
    if (source->inquiry && !tuttiInquiryStep(source->inquiry)) over = false;
  return over;
}

static void endInquiry(void) {
  tuttiSnapshot s = {0};
  collect(&s);
  s.seconds = tuttiMs(ras.inquirySince, tuttiNow()) / 1e3;
  for (tuttiRasSource *source = ras.sources; source; source = source->next) {
    tuttiInquiryClose(source->inquiry);
    source->inquiry = NULL;
  }
  ras.inquiring = false;
  for (client *c = ras.clients; c < ras.clients + CLIENTS; c++)
    if (c->fd >= 0 && c->request.wish == tuttiRasReport) answer(c, &s);
  tuttiSnapshotFree(&s);
}

/* ---- events --------------------------------------------------------------------------------- */

static void happen(const char *what, const tuttiRasSource *s) {
  happening *h = &ras.happenings[ras.happened++ % HAPPENINGS];
  snprintf(h->text, sizeof h->text,
           "{\"timestamp\": %llu, \"group\": \"LIFECYCLE\", \"event\": \"%s\", \"details\": \"rank "
           "%d of %d, "
           "pid %d\"}\n",
           (unsigned long long)(realtime() / 1000000000u), what, s->rank, s->nranks, (int)getpid());
}

static void tellEvents(client *c) {
  if (ras.happened - c->seen > HAPPENINGS) c->seen = ras.happened - HAPPENINGS;
  for (; c->seen < ras.happened && c->fd >= 0; c->seen++) {
    const char *text = ras.happenings[c->seen % HAPPENINGS].text;
    if (c->outBytes > HAPPENINGS * sizeof(happening))
      dropClient(c); /* it does not read */
    else
      say(c, text, strlen(text));
  }
  if (c->fd >= 0) flush(c);
}

/* ---- a turn --------------------------------------------------------------------------------- */

static void serveEvents(void) {
  struct epoll_event events[TURN_EVENTS];
  int n = epoll_wait(ras.epollFd, events, TURN_EVENTS, 0);
  for (int i = 0; i < n; i++) {
    uint32_t tag = events[i].data.u32;
    if (tag == SIGNAL) {
      if (tuttiRasSignalTake(ras.signalFd)) dumpLocal();
      continue;
    }
    if (tag >= CLIENTS) {
      letIn((int)(tag - CLIENTS));
      continue;
    }
    client *c = &ras.clients[tag];
    if (c->fd >= 0 && events[i].events & EPOLLOUT) flush(c);
    if (c->fd >= 0 && events[i].events & ~(uint32_t)EPOLLOUT) readClient(c);
  }
}

/* Gives a client what it waits for, if that is there; returns when it must be looked at again. */
static uint64_t serveClient(client *c, uint64_t now) {
  if (c->request.wish == tuttiRasReport) return TUTTI_NO_DEADLINE; /* the inquiry's end */
  if (c->request.wish == tuttiRasLocal) answerLocal(c);
  if (c->fd >= 0 && c->request.wish == tuttiRasEvents) tellEvents(c);
  bool monitors = c->request.wish == tuttiRasEvents && c->outBytes == 0;
  if (c->fd >= 0 && monitors) return now + MONITOR_MS * TUTTI_MS;
  if (c->fd >= 0 && now >= c->until) dropClient(c);
  return c->fd >= 0 ? c->until : TUTTI_NO_DEADLINE;
}

/* Returns when one of them must be looked at. */
static uint64_t serveClients(void) {
  uint64_t due = TUTTI_NO_DEADLINE, now = tuttiNow();
  int longest = 0;
  for (client *c = ras.clients; c < ras.clients + CLIENTS; c++) {
    if (c->fd < 0) continue;
    uint64_t next = serveClient(c, now);
    if (next < due) due = next;
    bool waits = c->fd >= 0 && c->request.wish == tuttiRasReport;
    if (waits && c->request.timeoutMs > longest) longest = c->request.timeoutMs;
  }
  if (longest > 0 && !ras.inquiring) startInquiry(longest);
  return due;
}

static uint64_t serve(void *unused) {
  (void)unused;
  TUTTI_LOCKED(&ras.lock);
  if (!ras.open) return TUTTI_NO_DEADLINE;
  serveEvents();
  uint64_t due = serveClients();
  if (ras.inquiring && stepInquiry()) endInquiry();
  uint64_t step = tuttiDeadline(STEP_MS);
  return ras.inquiring && step < due ? step : due;
}

/* ---- opening and closing -------------------------------------------------------------------- */

static int listenAt(int family, const struct sockaddr *address, socklen_t length) {
  int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;
  if (fd < 0) return -errno;
  if (family != AF_UNIX) {
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one,
               sizeof one); /* any process of the host answers */
  }
  if (bind(fd, address, length) == 0 && listen(fd, CLIENTS) == 0) {
    tuttiForkCloseAdd(fd);
    return fd;
  }
  int error = errno;
  close(fd);
  return -error;
}

static void openPort(void) {
  const char *at = tuttiSettingString(TUTTI_SETTING_RAS_ADDR);
  tuttiAddress address = {0};
  if (tuttiAddressParse(at, &address) != tuttiSuccess) {
    TUTTI_WARN(INIT, "RAS: %s=%s is no host:port, and nobody listens there: %s",
               tuttiSettingOrigin(TUTTI_SETTING_RAS_ADDR), at, tuttiErrorText());
    tuttiErrorClear();
    return;
  }
  int fd = listenAt(address.sa.sa_family, &address.sa, tuttiAddressLength(&address));
  if (fd >= 0)
    ras.listeners[0] = fd;
  else
    TUTTI_INFO(INIT,
               "RAS: cannot listen at %s: %s. TUTTI_RAS_ADDR moves the port; tutti status "
               "works without",
               at, tuttiErrnoText(-fd));
}

static void openLocal(void) {
  struct sockaddr_un name = {.sun_family = AF_UNIX};
  int n = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "tutti.ras.%d.%016llx",
                   (int)getpid(), (unsigned long long)tuttiProcessId());
  socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
  int fd = listenAt(AF_UNIX, (struct sockaddr *)&name, length);
  if (fd >= 0)
    ras.listeners[1] = fd;
  else
    TUTTI_INFO(INIT, "RAS: no Unix socket for tutti status: %s", tuttiErrnoText(-fd));
}

static void closeAll(void) {
  for (client *c = ras.clients; c < ras.clients + CLIENTS; c++)
    dropClient(c);
  for (int i = 0; i < LISTENERS; i++)
    tuttiFdClose(&ras.listeners[i]);
  tuttiRasSignalClose(&ras.signalFd);
  tuttiFdClose(&ras.epollFd);
  ras.open = false;
}

/* True: there is something to serve. */
static bool openAll(void) {
  TUTTI_LOCKED(&ras.lock);
  for (client *c = ras.clients; c < ras.clients + CLIENTS; c++)
    c->fd = -1;
  ras.epollFd = epoll_create1(EPOLL_CLOEXEC);
  if (ras.epollFd < 0) return false;
  tuttiForkCloseAdd(ras.epollFd);
  openPort();
  openLocal();
  for (uint32_t i = 0; i < LISTENERS; i++) {
    if (ras.listeners[i] >= 0 && lookAt(EPOLL_CTL_ADD, ras.listeners[i], EPOLLIN, CLIENTS + i))
      ras.open = true;
  }
  ras.signalFd = tuttiRasSignalOpen();
  if (ras.signalFd >= 0 && lookAt(EPOLL_CTL_ADD, ras.signalFd, EPOLLIN, SIGNAL)) ras.open = true;
  return ras.open;
}

static void start(void) {
  tuttiWatchLodger lodger = {.serve = serve};
  if (!tuttiSettingInt(TUTTI_SETTING_RAS_ENABLE)) return;
  bool opened = openAll();
  lodger.fd = ras.epollFd;
  if (opened && tuttiWatchLodge(&lodger) == tuttiSuccess) return;
  tuttiErrorClear();
  TUTTI_LOCKED(&ras.lock);
  closeAll();
}

static void stop(void) {
  if (!ras.open) return;
  tuttiWatchEvict();
  TUTTI_LOCKED(&ras.lock);
  closeAll();
}

void tuttiRasEnter(tuttiRasSource *s) {
  TUTTI_LOCKED(&ras.life);
  if (ras.users++ == 0) start();
  pthread_mutex_lock(&ras.lock);
  TUTTI_LINK(ras.sources, s);
  pthread_mutex_unlock(&ras.lock);
}

void tuttiRasMeet(tuttiRasSource *s, tuttiWatch *watch) {
  TUTTI_LOCKED(&ras.lock);
  s->watch = watch;
  happen("COMM_INIT", s);
}

void tuttiRasLeave(tuttiRasSource *s) {
  if (!s->facts) return;
  TUTTI_LOCKED(&ras.life);
  pthread_mutex_lock(&ras.lock);
  TUTTI_UNLINK(ras.sources, s);
  tuttiInquiryClose(s->inquiry);
  s->inquiry = NULL;
  happen("COMM_END", s);
  pthread_mutex_unlock(&ras.lock);
  s->facts = NULL;
  if (--ras.users == 0) stop();
}

/* The watch's life: one thread for all watches of the process, started with the first and joined
 * with the last. Start, Fail and Stop only leave a request and wake the thread, which does the
 * work; Start and Stop wait until it is done, which takes the thread no peer. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/os.h"
#include "bootstrap/watch_internal.h"

#define SERVICE_EVENTS 64

static struct {
  /* Serializes starting and joining the thread; taken before `lock`, never by the thread. */
  pthread_mutex_t life;
  int users;        /* under life */
  pthread_t thread; /* under life */
  tuttiSource wake; /* an eventfd; constant while there are users */
  int epollFd;      /* constant while there are users */
  pthread_mutex_t lock;
  pthread_cond_t changed; /* a watch's phase */
  bool quit;              /* under lock */
  tuttiWatch *joining;    /* under lock: not yet taken over by the thread */
} service = {.life = PTHREAD_MUTEX_INITIALIZER,
             .wake = {.kind = tuttiSourceWake, .fd = -1},
             .epollFd = -1,
             .lock = PTHREAD_MUTEX_INITIALIZER,
             .changed = PTHREAD_COND_INITIALIZER};

void tuttiWatchLock(void) {
  pthread_mutex_lock(&service.lock);
}

void tuttiWatchUnlock(void) {
  pthread_mutex_unlock(&service.lock);
}

/* ---- sources ---- */

bool tuttiSourceWatch(tuttiSource *source, uint32_t events) {
  if (source->registered && source->events == events) return true;
  struct epoll_event event = {.events = events, .data.ptr = source};
  int op = source->registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  if (epoll_ctl(service.epollFd, op, source->fd, &event) != 0) return false;
  source->registered = true;
  source->events = events;
  return true;
}

void tuttiSourceForget(tuttiSource *source) {
  if (!source->registered) return;
  epoll_ctl(service.epollFd, EPOLL_CTL_DEL, source->fd, NULL);
  source->registered = false;
}

void tuttiSourceClose(tuttiSource *source) {
  if (source->fd < 0) return;
  tuttiSourceForget(source);
  tuttiFdClose(&source->fd);
}

static void greet(tuttiWatch *w) {
  /* Out of descriptors: the connection stays in the backlog and would wake the thread at once. */
  if (tuttiGreeterStep(&w->greeter) != tuttiSuccess)
    w->guestsPaused = tuttiSourceWatch(&w->guests, 0);
}

static void sourceReady(tuttiSource *source) {
  uint64_t count;
  if (source->fd < 0) return; /* closed by an earlier event of this turn */
  switch (source->kind) {
  case tuttiSourceWake:
    /* Empty when another turn has taken it already. */
    while (read(source->fd, &count, sizeof(count)) < 0 && errno == EINTR) {
    }
    return;
  case tuttiSourceLink:
    tuttiLinkReady((tuttiLink *)source);
    return;
  case tuttiSourceGreeter:
    greet(source->watch);
    return;
  }
}

static void wakeThread(void) {
  const uint64_t one = 1;
  /* Fails only when the counter is full, and then the thread is awake. */
  while (write(service.wake.fd, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

/* ---- the thread ---- */

static void setPhase(tuttiWatch *w, tuttiWatchPhase phase, int joinError) {
  tuttiWatchLock();
  w->phase = phase;
  w->joinError = joinError;
  pthread_cond_broadcast(&service.changed);
  tuttiWatchUnlock();
}

/* False: nothing of the watch is registered, and its descriptors are still its maker's. */
static bool takeOver(tuttiWatch *w) {
  tuttiSource *sources[3] = {&w->links[0].source, &w->links[1].source, &w->guests};
  for (int i = 0; i < 3; i++) {
    if (sources[i]->fd < 0 || tuttiSourceWatch(sources[i], EPOLLIN)) continue;
    int error = errno;
    for (int j = 0; j < i; j++)
      tuttiSourceForget(sources[j]);
    setPhase(w, tuttiWatchGone, error);
    return false;
  }
  for (int i = 0; i < 3; i++)
    if (sources[i]->fd >= 0) tuttiForkCloseAdd(sources[i]->fd);
  setPhase(w, tuttiWatchActive, 0);
  return true;
}

static void heartbeat(tuttiWatch *w, uint64_t now) {
  tuttiStateReport self;
  w->heartbeatAt = now + WATCH_HEARTBEAT_NS;
  tuttiReportSelf(w, &self);
  for (int i = 0; i < 2; i++)
    tuttiLinkHeartbeat(&w->links[i], self.state, self.bytes);
  if (w->guestsPaused) w->guestsPaused = !tuttiSourceWatch(&w->guests, EPOLLIN);
}

static void startLeaving(tuttiWatch *w, uint64_t now, bool aborted) {
  if (aborted) {
    const tuttiWho *who = &w->who[w->rank];
    tuttiFailureFrame failure;
    char text[256];
    snprintf(text, sizeof(text),
             "rank %d (host %s, pid %d) aborted the communicator. Remedy: see the log of that "
             "process for why",
             w->rank, who->host, who->pid);
    tuttiFailureFill(&failure, tuttiRemoteError, w->rank, text);
    tuttiWatchSpread(w, &failure, NULL, false);
  }
  w->leaveBy = now + WATCH_FAREWELL_NS;
  for (int i = 0; i < 2; i++)
    tuttiLinkGoodbye(&w->links[i]);
  tuttiSourceForget(&w->guests);
  w->guests.fd = -1;
  tuttiGreeterClose(&w->greeter);
  tuttiFdClose(&w->greeter.listenFd);
  setPhase(w, tuttiWatchLeaving, 0);
}

static void takeRequests(tuttiWatch *w, uint64_t now) {
  tuttiWatchLock();
  bool fail = w->failWanted && !w->failTaken;
  bool stop = w->stopWanted, aborted = w->stopAborted;
  w->failTaken = w->failWanted;
  tuttiWatchUnlock();
  if (fail) {
    tuttiWatchSpread(w, &w->failure, NULL, false);
    tuttiWatchLock();
    w->failSent = true;
    pthread_cond_broadcast(&service.changed);
    tuttiWatchUnlock();
  }
  if (stop && w->leaveBy == 0) startLeaving(w, now, aborted);
}

/* One turn of one watch: what others want of it, and what is due. Returns when the next thing is
 * due; 0: the watch has gone, and its maker may free it at any moment. */
static uint64_t serveWatch(tuttiWatch *w) {
  uint64_t now = tuttiNow();
  takeRequests(w, now);
  if (w->leaveBy == 0) {
    if (now >= w->heartbeatAt) heartbeat(w, now);
    if (now >= tuttiGreeterNext(&w->greeter)) greet(w);
    uint64_t guests = tuttiGreeterNext(&w->greeter);
    return guests < w->heartbeatAt ? guests : w->heartbeatAt;
  }
  bool finished = tuttiLinkFinished(&w->links[0]) && tuttiLinkFinished(&w->links[1]);
  if (!finished && now < w->leaveBy) return w->leaveBy;
  for (int i = 0; i < 2; i++)
    tuttiLinkClose(&w->links[i]);
  setPhase(w, tuttiWatchGone, 0);
  return 0;
}

/* Returns when the next thing of any watch is due. */
static uint64_t serve(tuttiWatch **watches) {
  tuttiWatchLock();
  tuttiWatch *joining = service.joining;
  service.joining = NULL;
  tuttiWatchUnlock();
  while (joining != NULL) {
    tuttiWatch *w = joining;
    joining = w->sibling;
    if (!takeOver(w)) continue;
    w->sibling = *watches;
    *watches = w;
  }
  uint64_t next = WATCH_NEVER;
  for (tuttiWatch **at = watches; *at != NULL;) {
    tuttiWatch *w = *at, *sibling = w->sibling;
    uint64_t due = serveWatch(w);
    if (due == 0) {
      *at = sibling;
      continue;
    }
    if (due < next) next = due;
    at = &w->sibling;
  }
  return next;
}

static bool quitWanted(void) {
  tuttiWatchLock();
  bool quit = service.quit;
  tuttiWatchUnlock();
  return quit;
}

static void *watchMain(void *unused) {
  (void)unused;
  pthread_setname_np(pthread_self(), "tutti-watch");
  tuttiWatch *watches = NULL;
  struct epoll_event events[SERVICE_EVENTS];
  while (!quitWanted()) {
    uint64_t next = serve(&watches);
    int n = epoll_wait(service.epollFd, events, SERVICE_EVENTS, tuttiDeadlinePollMs(next));
    for (int i = 0; i < n; i++)
      sourceReady(events[i].data.ptr);
  }
  return NULL;
}

/* ---- start and stop of the thread ---- */

static int startThread(void) {
  service.epollFd = epoll_create1(EPOLL_CLOEXEC);
  if (service.epollFd < 0) return errno;
  service.wake.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  int error = service.wake.fd < 0 || !tuttiSourceWatch(&service.wake, EPOLLIN) ? errno : 0;
  if (error == 0) {
    service.quit = false;
    error = tuttiThreadStart(&service.thread, "tutti-watch", watchMain, NULL);
  }
  return error;
}

static void closeService(void) {
  tuttiSourceForget(&service.wake);
  if (service.wake.fd >= 0) close(service.wake.fd);
  service.wake.fd = -1;
  if (service.epollFd >= 0) close(service.epollFd);
  service.epollFd = -1;
}

/* One more user of the thread. */
static tuttiResult_t hireThread(void) {
  int error = 0;
  pthread_mutex_lock(&service.life);
  if (service.users == 0) {
    error = startThread();
    if (error != 0) closeService();
  }
  if (error == 0) service.users++;
  pthread_mutex_unlock(&service.life);
  if (error == 0) return tuttiSuccess;
  return TUTTI_FAIL(tuttiSystemError,
                    "cannot start the watch thread: %s. Remedy: raise the limits on threads and "
                    "open files (`ulimit -u`, `ulimit -n`)",
                    tuttiErrnoText(error));
}

static void dismissThread(void) {
  pthread_mutex_lock(&service.life);
  if (--service.users == 0) {
    tuttiWatchLock();
    service.quit = true;
    tuttiWatchUnlock();
    wakeThread();
    pthread_join(service.thread, NULL);
    closeService();
  }
  pthread_mutex_unlock(&service.life);
}

/* ---- watches ---- */

/* Closes none of the sockets it was given. */
static void freeWatch(tuttiWatch *w) {
  if (w == NULL) return;
  tuttiGreeterClose(&w->greeter);
  tuttiFree(w->listeners);
  tuttiFree(w->who);
  tuttiFree(w);
}

static void initLink(tuttiWatch *w, int side, int fd, int rank) {
  tuttiLink *link = &w->links[side];
  link->source = (tuttiSource){.kind = tuttiSourceLink, .fd = fd, .watch = w};
  link->rank = rank;
  if (fd >= 0) tuttiLinkPrepare(link);
}

static tuttiResult_t newWatch(const tuttiBootstrap *b, const tuttiWho *who,
                              const tuttiWatchCalls *calls, tuttiMemAccount *memory,
                              tuttiWatch **out) {
  tuttiWatch *w = NULL;
  size_t n = (size_t)b->nranks;
  tuttiResult_t result;
  TUTTI_TRY(tuttiAlloc((void **)&w, 1, sizeof(*w), "the watch of a communicator", memory));
  w->greeter.epollFd = -1;
  TUTTI_TRY_GOTO(tuttiAlloc((void **)&w->who, n, sizeof(*who), "the list of ranks", memory), result,
                 freeAll);
  TUTTI_TRY_GOTO(
      tuttiAlloc((void **)&w->listeners, n, sizeof(*w->listeners), "the list of listeners", memory),
      result, freeAll);
  w->rank = b->rank;
  w->nranks = b->nranks;
  w->hash = b->hash;
  memcpy(w->secret, b->secret, sizeof(w->secret));
  w->memory = memory;
  memcpy(w->who, who, n * sizeof(*who));
  for (size_t i = 0; i < n; i++)
    w->who[i].host[sizeof(w->who[i].host) - 1] = '\0';
  memcpy(w->listeners, b->listeners, n * sizeof(*w->listeners));
  w->calls = *calls;
  initLink(w, 0, b->prevFd, (b->rank + b->nranks - 1) % b->nranks);
  initLink(w, 1, b->nextFd, (b->rank + 1) % b->nranks);
  w->greeter = (tuttiGreeter){.listenFd = b->listenFd,
                              .helloBytes = sizeof(tuttiHello),
                              .nguests = b->listenFd >= 0 ? WATCH_GUESTS : 0,
                              .secret = w->secret,
                              .ctx = w,
                              .check = tuttiWatchAnswerTo,
                              .epollFd = -1};
  if (b->listenFd >= 0) TUTTI_TRY_GOTO(tuttiGreeterOpen(&w->greeter, memory), result, freeAll);
  w->guests = (tuttiSource){.kind = tuttiSourceGreeter, .fd = w->greeter.epollFd, .watch = w};
  *out = w;
  return tuttiSuccess;
freeAll:
  freeWatch(w);
  return result;
}

/* Hands the watch to the thread; returns errno, and then it is the caller's again. */
static int handOver(tuttiWatch *w) {
  tuttiWatchLock();
  w->sibling = service.joining;
  service.joining = w;
  tuttiWatchUnlock();
  wakeThread();
  tuttiWatchLock();
  while (w->phase == tuttiWatchJoining)
    pthread_cond_wait(&service.changed, &service.lock);
  int error = w->joinError;
  tuttiWatchUnlock();
  return error;
}

tuttiResult_t tuttiWatchStart(tuttiBootstrap *b, const tuttiWho *who, const tuttiWatchCalls *calls,
                              tuttiMemAccount *memory, tuttiWatch **out) {
  tuttiWatch *w = NULL;
  tuttiResult_t result;
  TUTTI_TRY(newWatch(b, who, calls, memory, &w));
  TUTTI_TRY_GOTO(hireThread(), result, freeAll);
  int error = handOver(w);
  if (error != 0) {
    result = TUTTI_FAIL(tuttiSystemError,
                        "rank %d of %d cannot watch its ring sockets: %s. Remedy: raise "
                        "fs.epoll.max_user_watches (sysctl)",
                        w->rank, w->nranks, tuttiErrnoText(error));
    goto dismiss;
  }
  TUTTI_INFO(BOOTSTRAP, "watch: rank %d of %d watches ranks %d and %d", w->rank, w->nranks,
             w->links[0].rank, w->links[1].rank);
  b->prevFd = b->nextFd = b->listenFd = -1;
  *out = w;
  return tuttiSuccess;
dismiss:
  dismissThread();
freeAll:
  freeWatch(w);
  return result;
}

void tuttiWatchFail(tuttiWatch *w, tuttiResult_t code, const char *text) {
  tuttiWatchLock();
  if (!w->failWanted) {
    tuttiFailureFill(&w->failure, code, w->rank, text);
    w->failWanted = true;
  }
  wakeThread();
  uint64_t until = tuttiNow() + WATCH_FAREWELL_NS;
  struct timespec deadline = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
  int waited = 0;
  while (!w->failSent && waited == 0)
    waited = pthread_cond_clockwait(&service.changed, &service.lock, CLOCK_MONOTONIC, &deadline);
  tuttiWatchUnlock();
}

void tuttiWatchStop(tuttiWatch *w, bool aborted) {
  if (w == NULL) return;
  tuttiWatchLock();
  w->stopWanted = true;
  w->stopAborted = aborted;
  tuttiWatchUnlock();
  wakeThread();
  tuttiWatchLock();
  while (w->phase != tuttiWatchGone)
    pthread_cond_wait(&service.changed, &service.lock);
  tuttiWatchUnlock();
  freeWatch(w);
  dismissThread();
}

/* Waking without losing a wake-up. Everything that decides whether the thread may sleep is in one
 * word, `state`, changed only by atomic read-modify-writes; so its changes have one total order and
 * each sees the one before, and whatever was stored before a change is seen after it:
 *
 *   Kick    publishes in a FIFO, then sets KICKED. If the value before had SLEEPING and nobody
 *           entered, it rings the bell.
 *   a pass  clears KICKED, then looks at the FIFOs.
 *   thread  sets SLEEPING only by a compare-and-swap from a value without KICKED (or with somebody
 *           entered), then sleeps.
 *   Freed   is a Kick that sets FREED instead of KICKED: there is room for what may come.
 *   Leave   counts down, and if it was the last and KICKED or BUSY is set, runs a pass or two and
 *           if something is still on its way sets KICKED and rings the bell; or if FREED is set
 *           and the thread would not look up by itself.
 *
 * A Kick ordered before a pass's clearing is seen by that pass. One ordered after it leaves KICKED
 * set: the thread's swap then fails; or it comes after the swap, sees SLEEPING, and rings. If
 * somebody was entered at that moment, the last Leave is ordered after the Kick and sees KICKED.
 * The bell is an eventfd, which keeps its ring until it is read, so ringing before poll(2) is
 * enough.
 *
 * While somebody is entered the thread parks: it does not listen to the sockets, or each arriving
 * message would wake it for nothing. It looks up after a while (1 ms, doubling up to 16) to see
 * whether that somebody has left for good, nobody having entered since and nothing being on its
 * way, and then serves peers in the background.
 *
 * Who does one small operation after the other and waits for none, as the leaves of a gather do and
 * the root of a broadcast, would make a system call for each message. So after some such operations
 * Leave asks the thread to LINGER, to look up often, and from then on leaves messages to a pass
 * that sends several together: every few operations its own, or the thread's. The thread ceases to
 * LINGER by the swap with which it goes to sleep, which fails if a Leave has left something KICKED
 * since; so what was left while it did is seen by it. */
#include "proxy/proxy.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/backoff.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/nvtx.h"
#include "base/os.h"

/* `state`: how many have entered, and these. */
#define ENTERED  0x0000ffffu
#define KICKED   0x00010000u /* a FIFO changed since the last pass began */
#define SLEEPING 0x00020000u /* the thread sleeps or is about to: ring to wake it */
#define BUSY     0x00040000u /* the last pass left work that waits for a descriptor or the clock */
#define FREED    0x00080000u /* a slot became free since the last pass over all operations began */
#define PARKED   0x00100000u /* SLEEPING, and will look up by itself */
#define USED     0x00200000u /* somebody has entered since the thread last went to sleep */
#define LINGERS  0x00400000u /* it looks up every LINGER_US: Leave may leave it something */

enum { PARK_MIN_MS = 1, PARK_MAX_MS = 16, LOOK_MS = 500, EVENTS_PER_PASS = 64, TELL_MS = 20 };
/* Eager passes: with at most so many operations (two listeners, two ways out and two in), where one
 * failing recv(2) each is cheaper than epoll_wait(2) and a recv; and epoll every so many passes,
 * for what is not tried eagerly. Operations that look for themselves count for neither; when there
 * are no others, descriptors only tell of rare things, as of a port that went down. Who waits long
 * naps between its passes, so there must not be many of them before it hears of that. */
enum { EAGER_OPS = 6, EAGER_PASSES = 32, POLLED_PASSES = 512 };

/* So many operations, none longer than that after the one before, that waited for nothing, and
 * one that waited takes back so many: the thread lingers, for so many looks behind the last of
 * them; and every so many make a pass, before a FIFO is full. */
enum { STREAK = 16, STREAK_NS = 10000, WAIT_COSTS = 4 };
enum { LINGER_US = 200, LINGER_LOOKS = 5, TOGETHER = 6 };

typedef struct {
  tuttiProxyOp op;
  tuttiProxy *owner;
  tuttiProxyState state;
  uint64_t range; /* of NVTX, while it has work; 0: none */
} proxyItem;

/* The loop of one proxy, or of all that share a thread. */
typedef struct {
  tuttiAtomic32 state;
  tuttiAtomic32 stop;   /* the thread ends */
  tuttiAtomic32 told;   /* epoll has ended a nap: until a pass has asked it, it would end each */
  tuttiAtomic32 wanted; /* by so many: the lock, which the thread lets go for a moment only */
  tuttiAtomic32 waited; /* somebody has made a pass since he entered */
  tuttiAtomic32 streak; /* operations that waited for nothing, of late */
  tuttiAtomic32 behind; /* those since a pass */
  tuttiAtomic64 left;   /* when the last of them ended */
  tuttiAtomic32 linger; /* the thread is asked to */
  pthread_mutex_t lock; /* held by whoever runs the loop or changes the list; guards what follows */
  proxyItem *items;     /* lazy ones last: what leaves is what others wait for */
  int count, capacity;
  int polled; /* in the last pass: see tuttiProxyTurn */
  bool busy, threaded;
  unsigned eagerPasses; /* since the last look at epoll */
  pthread_t thread;
  int epoll, bell;
  int users; /* of the common one, guarded by `commonLock` */
} proxyLoop;

struct tuttiProxy {
  proxyLoop *loop;
  void (*fail)(void *ctx, tuttiResult_t code, const char *text);
  void *ctx;
  bool shared; /* the loop is the common one */
  bool halted; /* guarded by the loop's lock */
};

static pthread_mutex_t commonLock = PTHREAD_MUTEX_INITIALIZER;
static proxyLoop *common; /* of those that share a thread; NULL: there is none yet */

/* Sets and clears bits of `state`; returns the value before. */
static uint32_t changeState(proxyLoop *p, uint32_t set, uint32_t clear) {
  for (;;) {
    uint32_t old = tuttiLoadRelaxed32(&p->state);
    if (tuttiCompareExchange32(&p->state, old, (old | set) & ~clear)) return old;
  }
}

/* `HELD(p);` holds the lock to the end of the block. For all but the thread, which makes way. */
#define HELD(p)                                                                                    \
  pthread_mutex_t *const held __attribute__((cleanup(tuttiUnlockAt), unused)) = takeLock(p)
static pthread_mutex_t *takeLock(proxyLoop *p) {
  tuttiFetchAddAcqRel32(&p->wanted, 1);
  pthread_mutex_lock(&p->lock);
  tuttiFetchAddAcqRel32(&p->wanted, UINT32_MAX); /* minus one */
  return &p->lock;
}

/* Wakes the thread if it sleeps; of several wakers one pays for the system call. KICKED is for a
 * thread that is about to sleep until a time it took from an older pass. */
static void wakeThread(proxyLoop *p) {
  if (changeState(p, KICKED, SLEEPING) & SLEEPING) eventfd_write(p->bell, 1);
}

static void kick(proxyLoop *p, uint32_t how) {
  uint32_t before = changeState(p, how, 0);
  if (before & SLEEPING && !(before & ENTERED)) wakeThread(p);
}

/* Notes what the kernel has to say of the descriptors. */
static void collectEvents(proxyLoop *p) {
  struct epoll_event events[EVENTS_PER_PASS];
  p->eagerPasses = 0;
  int n = epoll_wait(p->epoll, events, EVENTS_PER_PASS, 0);
  for (int i = 0; i < n; i++) {
    tuttiProxySource *source = events[i].data.ptr;
    uint32_t ev = events[i].events;
    if (ev & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) source->hangup = true;
    if (ev & EPOLLIN || source->hangup) source->readable = true;
    if (ev & EPOLLOUT || source->hangup) source->writable = true;
  }
}

/* Spinning: there will be another at once. Leaving: lazy ones rest. */
typedef enum { PASS_THREAD, PASS_SPINNING, PASS_LEAVING } passKind;

/* Whether a pass tries descriptors instead of asking epoll of them: see EAGER_OPS, and Nap. */
static bool passIsEager(proxyLoop *p, passKind kind) {
  if (tuttiLoadRelaxed32(&p->told)) {
    tuttiStoreRelease32(&p->told, 0);
    return false;
  }
  int watching = p->count - p->polled;
  bool eager = kind == PASS_LEAVING || (kind == PASS_SPINNING && watching <= EAGER_OPS);
  return eager && ++p->eagerPasses < (watching ? EAGER_PASSES : POLLED_PASSES);
}

/* Gives an operation its turn. True: it has work left. */
static bool advanceItem(proxyItem *item, tuttiProxyTurn *turn) {
  item->state = item->op.advance(item->op.self, turn);
  if (item->state == TUTTI_PROXY_MOVED || item->state == TUTTI_PROXY_WAITING) {
    if (!item->range) item->range = tuttiRangeOpen("proxy", 0, -1, 0);
    return true;
  }
  tuttiRangeClose(item->range);
  item->range = 0;
  if (item->state == TUTTI_PROXY_FAILED)
    item->owner->fail(item->owner->ctx, turn->result, tuttiErrorText());
  return false;
}

/* One pass; the lock is held. *wake: when the thread must make the next one at the latest. */
static bool passOver(proxyLoop *p, passKind kind, uint64_t *wake) {
  tuttiProxyTurn turn = {.wake = TUTTI_NO_DEADLINE, .result = tuttiSuccess};
  bool moved = false, busy = false, leaving = kind == PASS_LEAVING;
  uint32_t seen = leaving ? KICKED : KICKED | FREED;
  if (tuttiLoadRelaxed32(&p->state) & seen) changeState(p, 0, seen);
  turn.eager = passIsEager(p, kind);
  turn.attended = kind != PASS_THREAD;
  if (!turn.eager) collectEvents(p);
  for (int i = 0; i < p->count; i++) {
    proxyItem *item = &p->items[i];
    bool lazy = item->op.lazy, ended = item->state == TUTTI_PROXY_FAILED || item->owner->halted;
    if (ended || (lazy && leaving)) continue;
    busy |= advanceItem(item, &turn) && !lazy;
    moved |= item->state == TUTTI_PROXY_MOVED;
  }
  if (busy != p->busy) changeState(p, busy ? BUSY : 0, busy ? 0 : BUSY);
  p->busy = busy;
  if (!leaving) p->polled = turn.polled; /* lazy ones were not asked */
  *wake = turn.wake;
  return moved;
}

/* How long the thread sleeps: when it parks, and so many times more for a short while. */
typedef struct {
  int parkMs, looks;
} sleeper;

/* Until `wake` at the latest, and no longer than there is reason for. */
static struct timespec sleepTime(sleeper *s, uint64_t wake, bool parked, bool lingers) {
  uint64_t now = tuttiNow(), ns = wake > now ? wake - now : 0;
  uint64_t most = (uint64_t)(parked ? s->parkMs : LOOK_MS) * TUTTI_MS;
  if (lingers) {
    most = (uint64_t)LINGER_US * 1000;
    s->looks--;
  } else {
    s->parkMs = !parked ? PARK_MIN_MS : s->parkMs < PARK_MAX_MS ? s->parkMs * 2 : PARK_MAX_MS;
  }
  if (ns > most) ns = most;
  return (struct timespec){(time_t)(ns / (1000 * TUTTI_MS)), (long)(ns % (1000 * TUTTI_MS))};
}

/* Says that the thread sleeps, and whether it parks; false: there is something to do. */
static bool saySleeping(proxyLoop *p, bool passed, bool lingers, bool *parked) {
  uint32_t state, how;
  do {
    state = tuttiLoadAcquire32(&p->state);
    *parked = state & ENTERED || (state & (USED | BUSY)) == USED;
    if (!(state & ENTERED) && (!passed || state & (KICKED | FREED))) return false;
    how = SLEEPING | (*parked || lingers ? PARKED : 0) | (lingers ? LINGERS : 0);
  } while (!tuttiCompareExchange32(&p->state, state, (state & ~(USED | LINGERS)) | how));
  return true;
}

/* Sleeps until there is something to do: see the top. `passed`: a pass that moved nothing has just
 * been made, and said `wake`. Not for ever: a queue pair that gives up on what was sent before its
 * rank left says so where only a look finds it. */
static void sleepThread(proxyLoop *p, bool passed, uint64_t wake, sleeper *s) {
  if (tuttiLoadRelaxed32(&p->linger)) {
    tuttiStoreRelease32(&p->linger, 0);
    s->looks = LINGER_LOOKS;
  }
  bool parked, lingers = s->looks > 0;
  if (!saySleeping(p, passed, lingers, &parked)) return;

  struct pollfd fds[] = {{.fd = p->bell, .events = POLLIN}, {.fd = p->epoll, .events = POLLIN}};
  struct timespec time = sleepTime(s, wake, parked, lingers);
  int n = ppoll(fds, parked ? 1 : 2, &time, NULL);
  eventfd_t rings;
  if (n > 0 && fds[0].revents) eventfd_read(p->bell, &rings);
  changeState(p, 0, SLEEPING | PARKED);
}

/* Operations that look for what kernels do want their next turn at once: while they do, the thread
 * makes no system call between its passes. Only behind one that has asked epoll it sleeps, since
 * what an eager pass leaves waiting counts on another. */
static void *proxyThread(void *arg) {
  proxyLoop *p = arg;
  sleeper sleeps = {.parkMs = PARK_MIN_MS};
  bool spins = false;
  tuttiThreadWakesInTime(); /* naps between two looks are short */
  while (!tuttiLoadAcquire32(&p->stop)) {
    uint64_t wake = TUTTI_NO_DEADLINE;
    bool passed = false, moved = false, spun = spins;
    spins = false;
    if (!(tuttiLoadAcquire32(&p->state) & ENTERED)) {
      TUTTI_LOCKED(&p->lock);
      moved = passOver(p, spun ? PASS_SPINNING : PASS_THREAD, &wake);
      passed = true;
      spins = wake == 0;
    }
    while (spins && tuttiLoadAcquire32(&p->wanted))
      sched_yield();
    if (!moved && !spins && !spun) sleepThread(p, passed, wake, &sleeps);
  }
  return NULL;
}

static tuttiResult_t makeLoop(proxyLoop **out) {
  proxyLoop *p;
  TUTTI_NEW(p, 1, "the network proxy", NULL);
  p->epoll = epoll_create1(EPOLL_CLOEXEC);
  p->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (p->epoll >= 0 && p->bell >= 0) {
    pthread_mutex_init(&p->lock, NULL);
    tuttiForkCloseAdd(p->epoll);
    tuttiForkCloseAdd(p->bell);
    *out = p;
    return tuttiSuccess;
  }

  int err = errno;
  if (p->bell >= 0) close(p->bell);
  if (p->epoll >= 0) close(p->epoll);
  tuttiFree(p);
  return TUTTI_FAIL(tuttiSystemError,
                    "no file descriptor for the network proxy: %s; raise the limit on open files "
                    "(ulimit -n)",
                    tuttiErrnoText(err));
}

static void destroyLoop(proxyLoop *p) {
  if (p->threaded) {
    tuttiStoreRelease32(&p->stop, 1);
    eventfd_write(p->bell, 1);
    pthread_join(p->thread, NULL);
  }
  pthread_mutex_destroy(&p->lock);
  tuttiFdClose(&p->bell);
  tuttiFdClose(&p->epoll);
  tuttiFree(p->items);
  tuttiFree(p);
}

tuttiResult_t tuttiProxyCreate(tuttiProxy **proxy,
                               void (*fail)(void *ctx, tuttiResult_t code, const char *text),
                               void *ctx) {
  tuttiProxy *made;
  TUTTI_NEW(made, 1, "the network proxy", NULL);
  made->fail = fail;
  made->ctx = ctx;
  tuttiResult_t result = makeLoop(&made->loop);
  if (result == tuttiSuccess)
    *proxy = made;
  else
    tuttiFree(made);
  return result;
}

void tuttiProxyShare(tuttiProxy *proxy) {
  TUTTI_LOCKED(&commonLock);
  if (proxy->shared || proxy->loop->threaded) return;
  if (common == NULL) {
    common = proxy->loop;
  } else {
    destroyLoop(proxy->loop);
    proxy->loop = common;
  }
  common->users++;
  proxy->shared = true;
}

/* Takes the proxy's operations off the list that it has in common with others. */
static void dropItems(const tuttiProxy *proxy) {
  proxyLoop *p = proxy->loop;
  HELD(p);
  int kept = 0;
  for (int i = 0; i < p->count; i++)
    if (p->items[i].owner != proxy) p->items[kept++] = p->items[i];
  p->count = kept;
}

/* Whether it was the last one to use it. */
static bool leaveCommon(const tuttiProxy *proxy) {
  TUTTI_LOCKED(&commonLock);
  dropItems(proxy);
  if (--common->users > 0) return false;
  common = NULL;
  return true;
}

void tuttiProxyDestroy(tuttiProxy *proxy) {
  if (!proxy) return;
  if (!proxy->shared || leaveCommon(proxy)) destroyLoop(proxy->loop);
  tuttiFree(proxy);
}

tuttiResult_t tuttiProxyAdd(tuttiProxy *proxy, const tuttiProxyOp *op) {
  proxyLoop *p = proxy->loop;
  HELD(p);
  TUTTI_TRY(tuttiGrow((void **)&p->items, p->count, &p->capacity, sizeof *p->items,
                      "operations of the proxy", NULL));
  if (!p->threaded) TUTTI_TRY(tuttiThreadStart(&p->thread, "tutti-proxy", proxyThread, p));
  p->threaded = true;
  int i = p->count++;
  for (; i > 0 && !op->lazy && p->items[i - 1].op.lazy; i--)
    p->items[i] = p->items[i - 1];
  p->items[i] = (proxyItem){.op = *op, .owner = proxy, .state = TUTTI_PROXY_IDLE};
  kick(p, KICKED);
  return tuttiSuccess;
}

void tuttiProxyRemove(tuttiProxy *proxy, void *self) {
  proxyLoop *p = proxy->loop;
  HELD(p);
  for (int i = 0; i < p->count; i++) {
    if (p->items[i].op.self != self) continue;
    proxyItem item = p->items[i];
    for (p->count--; i < p->count; i++)
      p->items[i] = p->items[i + 1];
    tuttiRangeClose(item.range);
    item.op.close(self);
    break;
  }
}

void tuttiProxyNothingToClose(void *self) {
  (void)self;
}

void tuttiProxyNothingToHalt(void *self) {
  (void)self;
}

bool tuttiProxyNothingToTell(void *self, tuttiProxyFacts *out) {
  (void)self;
  (void)out;
  return false;
}

/* A thread that is stopped, or computes, may hold the lock for ever. */
static bool lockSoon(proxyLoop *p) {
  uint64_t until = tuttiDeadline(TELL_MS);
  tuttiBackoff pause = {0};
  tuttiFetchAddAcqRel32(&p->wanted, 1);
  bool locked = pthread_mutex_trylock(&p->lock) == 0;
  while (!locked && tuttiNow() < until) {
    tuttiBackoffPause(&pause);
    locked = pthread_mutex_trylock(&p->lock) == 0;
  }
  tuttiFetchAddAcqRel32(&p->wanted, UINT32_MAX); /* minus one */
  return locked;
}

int tuttiProxyTell(tuttiProxy *proxy, tuttiProxyFacts *out, int max) {
  proxyLoop *p = proxy->loop;
  int n = 0;
  if (!lockSoon(p)) return 0;
  for (int pass = 0; pass < 3; pass++) {
    for (int i = 0; i < p->count && n < max; i++) {
      tuttiProxyFacts facts = {0};
      const proxyItem *item = &p->items[i];
      bool tells = item->owner == proxy && item->op.tell(item->op.self, &facts);
      int place = facts.busy ? 0 : facts.rate ? 1 : 2;
      if (tells && place == pass) out[n++] = facts;
    }
  }
  pthread_mutex_unlock(&p->lock);
  return n;
}

void tuttiProxyHalt(tuttiProxy *proxy) {
  proxyLoop *p = proxy->loop;
  HELD(p);
  for (int i = 0; i < p->count && !proxy->halted; i++)
    if (p->items[i].owner == proxy) p->items[i].op.halt(p->items[i].op.self);
  proxy->halted = true;
}

tuttiResult_t tuttiProxyWatch(tuttiProxy *proxy, tuttiProxySource *source) {
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                              .data.ptr = source};
  source->readable = source->writable = source->hangup = false;
  if (epoll_ctl(proxy->loop->epoll, EPOLL_CTL_ADD, source->fd, &event) == 0) return tuttiSuccess;
  return TUTTI_FAIL(tuttiSystemError,
                    "cannot watch socket %d: %s; see /proc/sys/fs/epoll/max_user_watches",
                    source->fd, tuttiErrnoText(errno));
}

void tuttiProxyUnwatch(tuttiProxy *proxy, tuttiProxySource *source) {
  /* Explicit, as close() does not do it when a forked child has the descriptor too. */
  epoll_ctl(proxy->loop->epoll, EPOLL_CTL_DEL, source->fd, NULL);
}

static bool run(proxyLoop *p, passKind kind) {
  if (pthread_mutex_trylock(&p->lock) != 0) return false;
  uint64_t wake;
  bool moved = passOver(p, kind, &wake);
  pthread_mutex_unlock(&p->lock);
  return moved;
}

bool tuttiProxyRun(tuttiProxy *proxy) {
  if (!tuttiLoadRelaxed32(&proxy->loop->waited)) tuttiStoreRelease32(&proxy->loop->waited, 1);
  return run(proxy->loop, PASS_SPINNING);
}

void tuttiProxyNap(tuttiProxy *proxy, uint32_t us) {
  proxyLoop *p = proxy->loop;
  struct pollfd fd = {.fd = p->epoll, .events = POLLIN};
  struct timespec time = {(time_t)(us / 1000000), (long)(us % 1000000 * 1000)};
  if (ppoll(&fd, 1, &time, NULL) > 0) tuttiStoreRelease32(&p->told, 1);
}

void tuttiProxyKick(tuttiProxy *proxy) {
  kick(proxy->loop, KICKED);
}

void tuttiProxyFreed(tuttiProxy *proxy) {
  kick(proxy->loop, FREED);
}

void tuttiProxyEnter(tuttiProxy *proxy) {
  proxyLoop *p = proxy->loop;
  uint32_t old;
  do {
    old = tuttiLoadRelaxed32(&p->state);
  } while (!tuttiCompareExchange32(&p->state, old, (old + 1) | USED));
}

/* Counts the operation that ends; true: nearly all of late have waited for nothing. */
static bool isStream(proxyLoop *p) {
  uint64_t now = tuttiNow(), before = tuttiLoadRelaxed(&p->left);
  uint32_t streak = tuttiLoadRelaxed32(&p->streak);
  if (tuttiLoadRelaxed32(&p->waited)) {
    tuttiStoreRelease32(&p->waited, 0);
    tuttiStoreRelease32(&p->behind, 0); /* its passes have sent what there was */
    streak -= streak > WAIT_COSTS ? WAIT_COSTS : streak;
  } else if (now - before > STREAK_NS) {
    streak = 0;
  } else if (streak < 2 * STREAK) {
    streak++;
  }
  tuttiStoreRelaxed(&p->left, now);
  tuttiStoreRelease32(&p->streak, streak);
  return streak >= STREAK;
}

/* What was sent is left to a pass that comes soon. `state`: as this Leave has found it. */
static bool leavesIt(proxyLoop *p, uint32_t state) {
  if (!isStream(p) || state & BUSY) return false;
  if (!tuttiLoadRelaxed32(&p->linger)) {
    tuttiStoreRelease32(&p->linger, 1);
    if (!(state & LINGERS)) {
      wakeThread(p);
      sched_yield(); /* it may need this core, where all have the same real-time priority */
    }
  }
  uint32_t behind = tuttiLoadRelaxed32(&p->behind) + 1;
  bool leaves = state & LINGERS && behind < TOGETHER;
  tuttiStoreRelease32(&p->behind, leaves ? behind : 0);
  return leaves;
}

void tuttiProxyLeave(tuttiProxy *proxy) {
  proxyLoop *p = proxy->loop;
  uint32_t now = tuttiFetchAddAcqRel32(&p->state, UINT32_MAX); /* minus one */
  if ((now & ENTERED) != 1) return;
  if (now & KICKED && leavesIt(p, now)) return;
  if (now & (KICKED | BUSY)) {
    if (run(p, PASS_LEAVING)) run(p, PASS_LEAVING); /* the first mostly moves all there is */
    tuttiStoreRelaxed(&p->left, tuttiNow());
    now = tuttiLoadAcquire32(&p->state);
    if (now & ENTERED) return;
  }
  if (now & (KICKED | BUSY) || (now & FREED && !(now & PARKED))) wakeThread(p);
}

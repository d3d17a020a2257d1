#include "base/os.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/error.h"
#include "base/log.h"

#define NS_PER_S 1000000000ull

/* ---- time ----------------------------------------------------------------------------------- */

uint64_t tuttiNow(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t tuttiDeadline(int64_t ms) {
  uint64_t ns, deadline;
  if (ms <= 0 || __builtin_mul_overflow((uint64_t)ms, TUTTI_MS, &ns) ||
      __builtin_add_overflow(tuttiNow(), ns, &deadline))
    return TUTTI_NO_DEADLINE;
  return deadline;
}

int tuttiDeadlinePollMs(uint64_t deadline) {
  if (deadline == TUTTI_NO_DEADLINE) return -1;
  uint64_t now = tuttiNow();
  if (now >= deadline) return 0;
  uint64_t left = deadline - now;
  uint64_t ms = left / TUTTI_MS + (left % TUTTI_MS != 0); /* up: never poll(0) before the time */
  return ms < INT_MAX ? (int)ms : INT_MAX;
}

uint64_t tuttiSwitches(void) {
  struct rusage usage;
  if (getrusage(RUSAGE_THREAD, &usage) != 0) return 0;
  return (uint64_t)usage.ru_nvcsw + (uint64_t)usage.ru_nivcsw;
}

/* ---- numbers -------------------------------------------------------------------------------- */

uint64_t tuttiHash(const void *data, size_t bytes) {
  const unsigned char *p = data;
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < bytes; i++) {
    hash ^= p[i];
    hash *= 0x100000001b3u;
  }
  return hash;
}

tuttiResult_t tuttiRandom(void *out, size_t bytes) {
  char *p = out;
  while (bytes > 0) {
    ssize_t n = getrandom(p, bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return TUTTI_FAIL(tuttiSystemError, "getrandom of %zu bytes failed: %s", bytes,
                        tuttiErrnoText(errno));
    p += n;
    bytes -= (size_t)n;
  }
  return tuttiSuccess;
}

uint64_t tuttiProcessId(void) {
  static tuttiAtomic64 id;
  uint64_t v = tuttiLoadAcquire(&id);
  if (v) return v;
  if (tuttiRandom(&v, sizeof(v)) != tuttiSuccess || v == 0)
    v = tuttiNow() ^ (uint64_t)getpid() << 32 ^ 1;
  return tuttiCompareExchange(&id, 0, v) ? v : tuttiLoadAcquire(&id);
}

/* ---- files ---------------------------------------------------------------------------------- */

ssize_t tuttiReadAll(int fd, void *buf, size_t size) {
  size_t used = 0;
  while (used < size) {
    ssize_t n = read(fd, (char *)buf + used, size - used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -1;
    if (n == 0) break;
    used += (size_t)n;
  }
  return (ssize_t)used;
}

bool tuttiReadFile(const char *path, char *buf, size_t size) {
  if (size == 0) return false;
  buf[0] = '\0';
  TUTTI_CLOSED int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* no waiting for a FIFO */
  ssize_t n = fd < 0 ? -1 : tuttiReadAll(fd, buf, size);
  bool fits = n >= 0 && (size_t)n < size; /* else no room for the terminator: it may go on */
  while (fits && n > 0 && isspace((unsigned char)buf[n - 1]))
    n--;
  buf[fits ? n : 0] = '\0';
  return fits;
}

int tuttiOpenRegular(const char *path, size_t most, size_t *size, char why[TUTTI_WHY]) {
  struct stat st;
  /* Looked at before it is opened as well: to open some devices is to use them. */
  bool there = stat(path, &st) == 0;
  TUTTI_CLOSED int fd =
      there && S_ISREG(st.st_mode) ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
  if (!there || (fd < 0 && S_ISREG(st.st_mode)) || (fd >= 0 && fstat(fd, &st) != 0))
    snprintf(why, TUTTI_WHY, ": %s", tuttiErrnoText(errno));
  else if (!S_ISREG(st.st_mode))
    snprintf(why, TUTTI_WHY, " is not a regular file");
  else if (st.st_size < 0 || (uint64_t)st.st_size > most)
    snprintf(why, TUTTI_WHY, " has %lld bytes; at most %zu are accepted", (long long)st.st_size,
             most);
  else {
    *size = (size_t)st.st_size;
    return tuttiFdTake(&fd);
  }
  return -1;
}

bool tuttiPrivileged(void) {
  return getauxval(AT_SECURE) != 0;
}

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u /* Linux 6.3 */
#endif

static int createMemfd(const char *name) {
  unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  /* Hosts with vm.memfd_noexec=2 demand it; older kernels do not know it. */
  int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
  return fd < 0 && errno == EINVAL ? memfd_create(name, flags) : fd;
}

static const char *memfdRemedy(int err) {
  if (err == EMFILE) return "raise the limit of open files (ulimit -n)";
  if (err == ENFILE) return "raise fs.file-max";
  if (err == EFBIG) return "raise the limit of file sizes (ulimit -f), or set TUTTI_SHM_DISABLE=1";
  return err == ENOSYS || err == EPERM
             ? "this kernel or sandbox has no memfd_create; set TUTTI_SHM_DISABLE=1"
             : "check the memory limits (cgroup), or set TUTTI_SHM_DISABLE=1";
}

tuttiResult_t tuttiSharedFd(const char *what, int *fd) {
  char name[128]; /* shown in /proc/<pid>/maps */
  snprintf(name, sizeof(name), "tutti %s", what);
  int made = createMemfd(name);
  if (made < 0)
    return TUTTI_FAIL(tuttiSystemError, "memfd_create for %s: %s; %s", what, tuttiErrnoText(errno),
                      memfdRemedy(errno));
  *fd = made;
  return tuttiSuccess;
}

/* 0, or an errno. */
static int sealAt(int fd, size_t size) {
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  struct rlimit limit;
  if (size > INT64_MAX) return EFBIG;
  /* Whoever passes this limit gets a signal that ends the process. */
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && size > limit.rlim_cur) return EFBIG;
  if (ftruncate(fd, (off_t)size) != 0) return errno; /* EPERM: it is sealed at another size */
  if (fcntl(fd, F_ADD_SEALS, seals) == 0) return 0;
  int err = errno; /* EPERM: somebody else has just done it */
  int have = err == EPERM ? fcntl(fd, F_GET_SEALS) : -1;
  return have >= 0 && (have & seals) == seals ? 0 : err;
}

tuttiResult_t tuttiSharedFdSeal(int fd, size_t size, const char *what) {
  int err = sealAt(fd, size);
  if (!err) return tuttiSuccess;
  return TUTTI_FAIL(tuttiSystemError, "cannot size the shared memory of %s to %zu bytes: %s; %s",
                    what, size, tuttiErrnoText(err), memfdRemedy(err));
}

/* ---- fork ----------------------------------------------------------------------------------- */

/* Whether a forked child closes a descriptor: one word each, so that the table is whole at whatever
 * moment another thread forks. Pages of it that no descriptor touches cost nothing. */
#define FORK_FDS (1 << 20) /* the usual hard limit (fs.nr_open) */
static tuttiAtomic32 forkFds[FORK_FDS];
static tuttiAtomic32 forkEnd; /* all registered ones are below */

static tuttiAtomic32 forked, forkForbidden;
static pthread_once_t forkOnce = PTHREAD_ONCE_INIT;

/* Runs in the child of fork, where only async-signal-safe calls are allowed. */
static void afterForkInChild(void) {
  int savedErrno = errno;
  tuttiStoreRelease32(&forked, tuttiLoadAcquire32(&forkForbidden));
  uint32_t end = tuttiLoadAcquire32(&forkEnd);
  for (uint32_t fd = 0; fd < end; fd++) {
    if (tuttiLoadAcquire32(&forkFds[fd]) == 0) continue;
    close((int)fd);
    tuttiStoreRelease32(&forkFds[fd], 0);
  }
  errno = savedErrno;
}

static void registerForkHandler(void) {
  pthread_atfork(NULL, NULL, afterForkInChild);
}

bool tuttiForked(void) {
  return tuttiLoadAcquire32(&forked) != 0;
}

void tuttiForkForbid(void) {
  pthread_once(&forkOnce, registerForkHandler);
  if (!tuttiForked()) tuttiStoreRelease32(&forkForbidden, 1);
}

void tuttiForkCloseAdd(int fd) {
  pthread_once(&forkOnce, registerForkHandler);
  if (fd < 0 || fd >= FORK_FDS) {
    TUTTI_WARN(INIT, "fd %d is out of the table of %d that a forked child closes", fd, FORK_FDS);
    return;
  }
  uint32_t end;
  while ((end = tuttiLoadAcquire32(&forkEnd)) <= (uint32_t)fd &&
         !tuttiCompareExchange32(&forkEnd, end, (uint32_t)fd + 1)) {
  }
  tuttiStoreRelease32(&forkFds[fd], 1);
}

void tuttiForkCloseRemove(int fd) {
  if (fd >= 0 && fd < FORK_FDS) tuttiStoreRelease32(&forkFds[fd], 0);
}

static tuttiAtomic64 onClose; /* a function, or 0 */

void tuttiFdOnClose(void (*closing)(int fd)) {
  tuttiStoreRelease(&onClose, (uintptr_t)closing);
}

void tuttiFdClose(int *fd) {
  if (*fd < 0) return;
  void (*closing)(int) = (void (*)(int))(uintptr_t)tuttiLoadAcquire(&onClose);
  if (closing) closing(*fd);
  tuttiForkCloseRemove(*fd);
  close(*fd);
  *fd = -1;
}

__thread bool tuttiThreadIsOwn;

/* EAGAIN is all that is told, also where there is no address space for the thread's stack. */
static const char *threadRemedy(void) {
  struct rlimit space;
  bool limited = getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY;
  return limited
             ? "the limit on address space (ulimit -v), on threads (ulimit -u) or of the cgroup "
               "(pids.max)"
             : "the limit on threads (ulimit -u) or of the cgroup (pids.max)";
}

void tuttiThreadWakesInTime(void) {
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
}

tuttiResult_t tuttiThreadStart(pthread_t *out, const char *name, void *(*run)(void *), void *arg) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int err = pthread_create(out, NULL, run, arg);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (err)
    return TUTTI_FAIL(tuttiSystemError, "cannot start the thread %s: %s; raise %s", name,
                      tuttiErrnoText(err), threadRemedy());
  pthread_setname_np(*out, name);
  return tuttiSuccess;
}

#include "base/os.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/error.h"
#include "base/log.h"
#include "base/settings.h"

#define NS_PER_S  1000000000ull
#define NS_PER_MS 1000000ull

/* ---- time ----------------------------------------------------------------------------------- */

uint64_t tuttiNow(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t tuttiDeadline(int64_t ms) {
  uint64_t ns, deadline;
  if (ms <= 0 || __builtin_mul_overflow((uint64_t)ms, NS_PER_MS, &ns) ||
      __builtin_add_overflow(tuttiNow(), ns, &deadline))
    return TUTTI_NO_DEADLINE;
  return deadline;
}

int tuttiDeadlinePollMs(uint64_t deadline) {
  if (deadline == TUTTI_NO_DEADLINE) return -1;
  uint64_t now = tuttiNow();
  if (now >= deadline) return 0;
  uint64_t left = deadline - now;
  uint64_t ms = left / NS_PER_MS + (left % NS_PER_MS != 0); /* up: never poll(0) before the time */
  return ms < INT_MAX ? (int)ms : INT_MAX;
}

/* About 1 ms of yields on an idle core: longer than a peer needs that is running, so that only a
 * waiter with nothing to come soon pays for the wake-up from a nap. */
#define YIELDS 2000u
#define NAP_NS 50000

void tuttiBackoffPause(tuttiBackoff *b) {
  if (b->round < b->spins) {
    b->round++;
    tuttiCpuRelax();
  } else if (b->round - b->spins < YIELDS) {
    b->round++;
    sched_yield();
  } else {
    const struct timespec nap = {.tv_nsec = NAP_NS};
    nanosleep(&nap, NULL);
  }
}

/* ---- identity ------------------------------------------------------------------------------- */

static char hostname[HOST_NAME_MAX + 1];
static pthread_once_t hostnameOnce = PTHREAD_ONCE_INIT;

static void readHostname(void) {
  if (gethostname(hostname, sizeof(hostname)) != 0 || hostname[0] == '\0')
    strcpy(hostname, "unknown");
  hostname[sizeof(hostname) - 1] = '\0';
  hostname[strcspn(hostname, ".")] = '\0';
}

const char *tuttiHostname(void) {
  pthread_once(&hostnameOnce, readHostname);
  return hostname;
}

/* The inode is the identity of a namespace on this kernel; 0 if it cannot be read. */
static uint64_t namespaceInode(const char *name) {
  char path[64];
  struct stat st;
  snprintf(path, sizeof(path), "/proc/self/ns/%s", name);
  return stat(path, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

uint64_t tuttiHostId(void) {
  const char *chosen = tuttiSettingString(TUTTI_SETTING_HOSTID);
  if (chosen[0] != '\0') return tuttiHash(chosen, strlen(chosen));
  struct {
    char boot[128];
    uint64_t namespaces[3];
  } id;
  memset(&id, 0, sizeof(id));
  if (!tuttiReadFile("/proc/sys/kernel/random/boot_id", id.boot, sizeof(id.boot))) {
    char machine[64];
    if (!tuttiReadFile("/etc/machine-id", machine, sizeof(machine))) machine[0] = '\0';
    snprintf(id.boot, sizeof(id.boot), "%s %s", machine, tuttiHostname());
  }
  /* What lies behind the terminator of a shorter text must not make a difference. */
  size_t length = strlen(id.boot);
  memset(id.boot + length, 0, sizeof(id.boot) - length);
  id.namespaces[0] = namespaceInode("pid");
  id.namespaces[1] = namespaceInode("ipc");
  id.namespaces[2] = namespaceInode("net");
  return tuttiHash(&id, sizeof(id));
}

int tuttiCpuCount(void) {
  /* The kernel refuses a set that is smaller than its own, so grow until it fits. */
  for (int cpus = CPU_SETSIZE; cpus <= 1 << 20; cpus *= 2) {
    cpu_set_t *set = CPU_ALLOC(cpus);
    if (set == NULL) break;
    size_t size = CPU_ALLOC_SIZE(cpus);
    bool read = sched_getaffinity(0, size, set) == 0;
    bool tooSmall = !read && errno == EINVAL;
    int n = read ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (n > 0) return n;
    if (!tooSmall) break;
  }
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? (int)online : 1;
}

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
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* no waiting for a FIFO's writer */
  if (fd < 0) return false;
  ssize_t n = tuttiReadAll(fd, buf, size);
  close(fd);
  if (n < 0 || (size_t)n == size) { /* no room for the terminator: it may go on */
    buf[0] = '\0';
    return false;
  }
  while (n > 0 && isspace((unsigned char)buf[n - 1]))
    n--;
  buf[n] = '\0';
  return true;
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
  switch (err) {
  case EMFILE:
    return "raise the limit of open files (ulimit -n)";
  case ENFILE:
    return "raise fs.file-max";
  case ENOSYS:
  case EPERM:
    return "this kernel or sandbox has no memfd_create; set TUTTI_SHM_DISABLE=1";
  default:
    return "check the memory limits (cgroup), or set TUTTI_SHM_DISABLE=1";
  }
}

tuttiResult_t tuttiSharedFd(size_t size, const char *what, int *fd) {
  char name[128]; /* shown in /proc/<pid>/maps */
  snprintf(name, sizeof(name), "tutti %s", what);
  int made = createMemfd(name);
  if (made < 0)
    return TUTTI_FAIL(tuttiSystemError, "memfd_create for %s (%zu bytes): %s; %s", what, size,
                      tuttiErrnoText(errno), memfdRemedy(errno));
  if (size > INT64_MAX || ftruncate(made, (off_t)size) != 0 ||
      fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    int err = size > INT64_MAX ? EFBIG : errno;
    close(made);
    return TUTTI_FAIL(tuttiSystemError, "cannot size the shared memory of %s to %zu bytes: %s; %s",
                      what, size, tuttiErrnoText(err), memfdRemedy(err));
  }
  *fd = made;
  return tuttiSuccess;
}

/* ---- fork ----------------------------------------------------------------------------------- */

/* The descriptors a forked child closes: one bit each, changed by atomic operations only, so that
 * the table is whole at whatever moment another thread forks. Pages of it that no descriptor
 * touches cost nothing. */
#define FORK_FDS     (1 << 20) /* the usual hard limit (fs.nr_open) */
#define FDS_PER_WORD 32
static tuttiAtomic32 forkFds[FORK_FDS / FDS_PER_WORD];
static tuttiAtomic32 forkWords; /* words in use, from the start */

static tuttiAtomic32 forked;
static pthread_once_t forkOnce = PTHREAD_ONCE_INIT;

/* Runs in the child of fork, where only async-signal-safe calls are allowed. */
static void afterForkInChild(void) {
  int savedErrno = errno;
  tuttiStoreRelease32(&forked, 1);
  uint32_t words = tuttiLoadAcquire32(&forkWords);
  for (uint32_t w = 0; w < words; w++) {
    uint32_t bits = tuttiLoadAcquire32(&forkFds[w]);
    for (; bits != 0; bits &= bits - 1)
      close((int)(w * FDS_PER_WORD) + __builtin_ctz(bits));
    tuttiStoreRelease32(&forkFds[w], 0);
  }
  errno = savedErrno;
}

static void registerForkHandler(void) {
  pthread_atfork(NULL, NULL, afterForkInChild);
}

bool tuttiForked(void) {
  pthread_once(&forkOnce, registerForkHandler);
  return tuttiLoadAcquire32(&forked) != 0;
}

static void changeForkFd(int fd, bool set) {
  tuttiAtomic32 *word = &forkFds[fd / FDS_PER_WORD];
  uint32_t bit = 1u << (fd % FDS_PER_WORD), old;
  do {
    old = tuttiLoadAcquire32(word);
  } while (!tuttiCompareExchange32(word, old, set ? old | bit : old & ~bit));
}

void tuttiForkCloseAdd(int fd) {
  pthread_once(&forkOnce, registerForkHandler);
  if (fd < 0 || fd >= FORK_FDS) {
    TUTTI_WARN(INIT, "fd %d is out of the table of %d that a forked child closes", fd, FORK_FDS);
    return;
  }
  uint32_t needed = (uint32_t)fd / FDS_PER_WORD + 1, words;
  while ((words = tuttiLoadAcquire32(&forkWords)) < needed &&
         !tuttiCompareExchange32(&forkWords, words, needed)) {
  }
  changeForkFd(fd, true);
}

void tuttiForkCloseRemove(int fd) {
  if (fd >= 0 && fd < FORK_FDS) changeForkFd(fd, false);
}

void tuttiFdClose(int *fd) {
  if (*fd < 0) return;
  tuttiForkCloseRemove(*fd);
  close(*fd);
  *fd = -1;
}

int tuttiThreadStart(pthread_t *thread, const char *name, void *(*run)(void *), void *arg) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int err = pthread_create(thread, NULL, run, arg);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (err == 0) pthread_setname_np(*thread, name);
  return err;
}

#include "transport/remote.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/settings.h"
#include "base/stream.h"

#define MEASURED (64 << 10) /* bytes, which any core's cache holds */
#define ROUNDS   8

/* Reads itself, as what forbids the call altogether (seccomp, an old kernel) forbids that too. */
uint64_t tuttiRemoteOffer(uint64_t id) {
  static tuttiAtomic64 word;
  char scope[16];
  bool restricted =
      tuttiReadFile("/proc/sys/kernel/yama/ptrace_scope", scope, sizeof scope) && scope[0] != '0';
  if (tuttiSettingInt(TUTTI_SETTING_CMA_DISABLE) || restricted || prctl(PR_GET_DUMPABLE) != 1)
    return 0;
  tuttiStoreRelease(&word, id);
  tuttiRemote self = {.pid = getpid(), .offer = (uint64_t)(uintptr_t)&word, .id = id};
  return tuttiRemoteReadable(&self) ? self.offer : 0;
}

bool tuttiRemoteReadable(tuttiRemote *process) {
  return process->offer != 0 && tuttiRemoteRead(process, NULL, 0, 0) == 0;
}

/* One call reads from one process, so the word vouches for what comes with it. Returns the bytes
 * that came, or a negative errno; -ESRCH: the process was not found by this number. */
static ssize_t readBy(const tuttiRemote *process, int thread, void *to, uint64_t from,
                      size_t bytes) {
  uint64_t word;
  struct iovec local[] = {{&word, sizeof word}, {to, bytes}};
  struct iovec remote[] = {{(void *)(uintptr_t)process->offer, sizeof word}, // NOLINT
                           {(void *)(uintptr_t)from, bytes}};                // NOLINT
  ssize_t n = process_vm_readv(thread, local, 2, remote, 2, 0);
  if (n < 0 && errno != EFAULT) return -errno;
  if (n < (ssize_t)sizeof word || word != process->id) return -ESRCH;
  return n - (ssize_t)sizeof word;
}

static int threadOf(const tuttiRemote *process) {
  return process->thread ? process->thread : process->pid;
}

/* The number of a process is that of its first thread, by which the kernel finds no memory once
 * that thread has ended (pthread_exit). By the others it does. */
static ssize_t readByAny(tuttiRemote *process, void *to, uint64_t from, size_t bytes) {
  ssize_t n = readBy(process, threadOf(process), to, from, bytes);
  if (n != -ESRCH) return n;
  char path[32];
  snprintf(path, sizeof path, "/proc/%d/task", process->pid);
  DIR *threads = opendir(path);
  const struct dirent *entry;
  while (threads && n == -ESRCH && (entry = readdir(threads)) != NULL) {
    int thread = (int)strtol(entry->d_name, NULL, 10);
    if (thread > 0) n = readBy(process, thread, to, from, bytes);
    if (n != -ESRCH) process->thread = thread;
  }
  if (threads) closedir(threads);
  return n;
}

int tuttiRemoteRead(tuttiRemote *process, void *to, uint64_t from, size_t bytes) {
  do {
    ssize_t n = readByAny(process, to, from, bytes);
    if (n < 0) return (int)-n;
    if (n == 0 && bytes > 0) return EFAULT;
    to = (uint8_t *)to + n;
    from += (uint64_t)n;
    bytes -= (size_t)n;
  } while (bytes > 0);
  return 0;
}

/* The word vouches for the process a moment before, which is as near as the kernel lets come. */
int tuttiRemoteWrite(tuttiRemote *process, const void *from, uint64_t to, size_t bytes) {
  int err = tuttiRemoteRead(process, NULL, 0, 0);
  while (err == 0 && bytes > 0) {
    struct iovec local = {(void *)(uintptr_t)from, bytes},
                 remote = {(void *)(uintptr_t)to, bytes}; // NOLINT
    ssize_t n = process_vm_writev(threadOf(process), &local, 1, &remote, 1, 0);
    if (n < 0 && errno == ESRCH) { /* the thread has ended meanwhile, if not the process */
      err = tuttiRemoteRead(process, NULL, 0, 0);
      continue;
    }
    if (n <= 0) return n < 0 ? errno : EFAULT;
    from = (const uint8_t *)from + n;
    to += (uint64_t)n;
    bytes -= (size_t)n;
  }
  return err;
}

/* The least of some rounds, in us: whatever else the machine does only takes longer. */
static float leastUs(tuttiRemote *self, void *to, const void *from, size_t bytes) {
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < ROUNDS; i++) {
    uint64_t begin = tuttiNow();
    if (tuttiRemoteRead(self, to, (uint64_t)(uintptr_t)from, bytes) != 0) return 0;
    uint64_t took = tuttiNow() - begin;
    if (took < least) least = took;
  }
  return (float)least / 1e3f;
}

/* The same of stores past the caches, which end in memory. */
static float leastStoreUs(void *to, const void *from, size_t bytes) {
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < ROUNDS; i++) {
    uint64_t begin = tuttiNow();
    tuttiStreamBytes(to, from, bytes);
    tuttiStreamEnd();
    uint64_t took = tuttiNow() - begin;
    if (took < least) least = took;
  }
  return (float)least / 1e3f;
}

/* The kernel looks up and holds page by page what it copies, of this process as of any other. */
static tuttiRemoteCost measure(tuttiRemote *self) {
  TUTTI_FREED uint8_t *memory = NULL;
  if (tuttiAlloc((void **)&memory, 2, MEASURED, "bytes to measure copies", NULL) != tuttiSuccess)
    return (tuttiRemoteCost){0};
  memset(memory, 1, 2 * (size_t)MEASURED);
  tuttiRemoteCost cost = {.call = leastUs(self, NULL, NULL, 0)};
  float all = leastUs(self, memory, memory + MEASURED, MEASURED);
  if (all > cost.call) cost.kib = (all - cost.call) / (MEASURED >> 10);
#if defined(__x86_64__)
  cost.store = leastStoreUs(memory, memory + MEASURED, MEASURED) / (MEASURED >> 10);
#endif
  return cost;
}

tuttiRemoteCost tuttiRemoteMeasure(uint64_t offer, uint64_t id) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static tuttiRemoteCost cost;
  static bool measured;
  tuttiRemote self = {.pid = getpid(), .offer = offer, .id = id};
  if (offer == 0) return (tuttiRemoteCost){0};
  pthread_mutex_lock(&lock);
  if (!measured) {
    cost = measure(&self);
    measured = true;
  }
  tuttiRemoteCost found = cost;
  pthread_mutex_unlock(&lock);
  return found;
}

bool tuttiRemoteCostValid(const tuttiRemoteCost *cost) {
  const float most = 1e6f;
  return cost->call >= 0 && cost->call <= most && cost->kib >= 0 && cost->kib <= most &&
         cost->store >= 0 && cost->store <= most;
}

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/text.h"
#include "tutti.h"

/* The longest line: a pipe takes that much in one piece, so lines of processes do not mix. */
#define LINE_SIZE PIPE_BUF

/* What is logged, in one word: level in the low bits, CONFIGURED, subsystems above. */
#define LEVEL_MASK   0x7u
#define CONFIGURED   0x8u
#define SUBSYS_SHIFT 4
#define ALL_SUBSYS   ((1u << TUTTI_SUBSYS_COUNT) - 1)
static tuttiAtomic32 filter;

/* Where lines go. A file keeps its descriptor number for ever: another file is put in its place
 * with dup3, so that a thread that is just writing never hits a number that was given away. */
static tuttiAtomic32 outputFd = {STDERR_FILENO};

static const char *const levelNames[] = {
    [TUTTI_LOG_NONE] = "NONE", [TUTTI_LOG_VERSION] = "VERSION", [TUTTI_LOG_WARN] = "WARN",
    [TUTTI_LOG_INFO] = "INFO", [TUTTI_LOG_TRACE] = "TRACE",
};

#define SUBSYS_NAME(name) #name,
static const char *const subsysNames[] = {TUTTI_LOG_SUBSYSTEMS(SUBSYS_NAME)};

static void (*configurator)(void);

void tuttiLogConfigurator(void (*configure)(void)) {
  configurator = configure;
}

bool tuttiLogEnabled(tuttiLogLevel level, unsigned subsys) {
  uint32_t now = tuttiLoadRelaxed32(&filter);
  if ((now & CONFIGURED) == 0) {
    if (configurator) configurator();
    now = tuttiLoadRelaxed32(&filter);
  }
  if ((uint32_t)level > (now & LEVEL_MASK)) return false;
  return level <= TUTTI_LOG_WARN || (now >> SUBSYS_SHIFT & subsys) != 0;
}

/* write(2) to a pipe that nobody reads raises SIGPIPE, and a library must not kill its process. */
static void writeWithoutSignal(int fd, const char *data, size_t bytes) {
  sigset_t sigpipe, saved, pending;
  sigemptyset(&sigpipe);
  sigaddset(&sigpipe, SIGPIPE);
  sigemptyset(&pending);
  sigpending(&pending);
  bool wasPending = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &sigpipe, &saved);
  ssize_t n;
  do {
    n = write(fd, data, bytes);
  } while (n < 0 && errno == EINTR);
  /* A log that cannot be written (full disk, closed stderr) is no reason to fail. */
  if (n < 0 && errno == EPIPE && !wasPending) {
    const struct timespec zero = {0, 0};
    while (sigtimedwait(&sigpipe, NULL, &zero) < 0 && errno == EINTR) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &saved, NULL);
}

/* Makes the text one printable line: a peer's text must not forge a line of its own. */
static void flatten(char *text) {
  for (; *text != '\0'; text++) {
    unsigned char c = (unsigned char)*text;
    if (c < 0x20 || c == 0x7f) *text = ' ';
  }
}

pid_t tuttiThreadId(void) {
  return (pid_t)syscall(SYS_gettid);
}

void tuttiLogWrite(tuttiLogLevel level, const char *fmt, ...) {
  int savedErrno = errno;
  char line[LINE_SIZE];
  int used = snprintf(line, sizeof(line), "%s:%d:%d TUTTI %s ", tuttiHostname(), (int)getpid(),
                      (int)tuttiThreadId(), levelNames[level]);
  va_list args;
  va_start(args, fmt);
  int n = vsnprintf(line + used, sizeof(line) - (size_t)used, fmt, args);
  va_end(args);
  if (n >= 0) {
    flatten(line + used);
    size_t length = strlen(line);
    line[length] = '\n'; /* in place of the terminator */
    writeWithoutSignal((int)tuttiLoadAcquire32(&outputFd), line, length + 1);
  }
  errno = savedErrno;
}

/* ---- lines that strangers can cause ---------------------------------------------------------- */

#define QUIET_S 60

uint32_t tuttiLogRest(tuttiLogRate *rate) {
  uint32_t events = rate->events;
  rate->events = 0;
  return events;
}

uint32_t tuttiLogCount(tuttiLogRate *rate) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  uint64_t ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
  rate->events++;
  if (ns < rate->quietUntil) return 0;
  rate->quietUntil = ns + QUIET_S * UINT64_C(1000000000);
  return tuttiLogRest(rate);
}

/* ---- configuration, under the lock of the settings ------------------------------------------ */

/* -1 if it is no level. "" is none; ABORT is NCCL's word for a level next to INFO. */
static int parseLevel(const char *text) {
  if (text[0] == '\0') return TUTTI_LOG_NONE;
  if (strcasecmp(text, "ABORT") == 0) return TUTTI_LOG_INFO;
  for (int level = TUTTI_LOG_NONE; level <= TUTTI_LOG_TRACE; level++)
    if (strcasecmp(text, levelNames[level]) == 0) return level;
  return -1;
}

static uint32_t subsysBit(const char *name, size_t length) {
  if (length == 3 && strncasecmp(name, "ALL", 3) == 0) return ALL_SUBSYS;
  for (int i = 0; i < TUTTI_SUBSYS_COUNT; i++)
    if (strlen(subsysNames[i]) == length && strncasecmp(name, subsysNames[i], length) == 0)
      return 1u << i;
  return 0;
}

/* A list of names; with ^ in front, all but those. False if a name is unknown. */
static bool parseSubsystems(const char *text, uint32_t *mask) {
  bool negate = text[0] == '^';
  uint32_t named = 0;
  for (const char *p = text + negate;;) {
    size_t length = strcspn(p, ",");
    uint32_t bit = subsysBit(p, length);
    if (bit == 0) return false;
    named |= bit;
    if (p[length] == '\0') break;
    p += length + 1;
  }
  *mask = negate ? ALL_SUBSYS & ~named : named;
  return true;
}

const char *tuttiLogCheckLevel(const char *level) {
  return parseLevel(level) >= 0 ? NULL : "accepted: NONE, VERSION, WARN, INFO, ABORT or TRACE";
}

const char *tuttiLogCheckSubsystems(const char *list) {
  uint32_t mask;
  if (parseSubsystems(list, &mask)) return NULL;
#define X(name) " " #name
  return "accepted: ALL, or a list with commas of" TUTTI_LOG_SUBSYSTEMS(X) ", with ^ in front to "
                                                                           "leave these out";
#undef X
}

/* %h: host, %p: process id; any other % stands for itself. False if the path gets too long. */
static bool expandPath(const char *pattern, char *path, size_t size) {
  size_t used = 0;
  char pid[16];
  snprintf(pid, sizeof(pid), "%d", (int)getpid());
  for (const char *p = pattern; *p != '\0' && used < size; p++) {
    bool host = p[0] == '%' && p[1] == 'h', process = p[0] == '%' && p[1] == 'p';
    const char *piece = host ? tuttiHostname() : process ? pid : p;
    p += host || process;
    used += (size_t)snprintf(path + used, size - used, piece == p ? "%.1s" : "%s", piece);
  }
  return used < size;
}

/* Opens the file for appending, above the standard descriptors; -errno on failure. Non-blocking, so
 * that a FIFO without a reader is refused and not waited for. */
static int openFile(const char *path) {
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0644);
  if (fd < 0) return -errno;
  int high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  int err = errno;
  close(fd);
  return high >= 0 ? high : -err;
}

/* Points the log at a file, or at stderr if `pattern` is "" or cannot be opened. Returns the errno
 * of that failure, once for each pattern. */
static int selectOutput(const char *pattern) {
  static const char *current = "";
  static int fileFd = -1;
  if (strcmp(pattern, current) == 0) return 0;
  current = pattern;
  char path[PATH_MAX];
  int fd = -ENAMETOOLONG;
  if (pattern[0] != '\0' && expandPath(pattern, path, sizeof(path))) fd = openFile(path);
  if (fd < 0) {
    tuttiStoreRelease32(&outputFd, STDERR_FILENO);
    return pattern[0] != '\0' ? -fd : 0;
  }
  if (fileFd < 0) {
    fileFd = fd;
  } else {
    dup3(fd, fileFd, O_CLOEXEC);
    close(fd);
  }
  tuttiStoreRelease32(&outputFd, (uint32_t)fileFd);
  return 0;
}

void tuttiLogConfigure(const char *level, const char *subsystems, const char *file) {
  static bool versionShown;
  uint32_t mask = 0;
  parseSubsystems(subsystems, &mask);
  int parsed = parseLevel(level);
  uint32_t newLevel = parsed > 0 ? (uint32_t)parsed : TUTTI_LOG_NONE;
  int err = newLevel != TUTTI_LOG_NONE ? selectOutput(file) : 0;
  tuttiStoreRelease32(&filter, newLevel | CONFIGURED | mask << SUBSYS_SHIFT);
  if (newLevel >= TUTTI_LOG_VERSION && !versionShown) {
    versionShown = true;
    tuttiLogWrite(TUTTI_LOG_VERSION, "tutti %d.%d.%d", TUTTI_MAJOR, TUTTI_MINOR, TUTTI_PATCH);
  }
  if (err != 0 && tuttiLogEnabled(TUTTI_LOG_WARN, 0))
    tuttiLogWrite(TUTTI_LOG_WARN,
                  "cannot open the log file \"%s\": %s; logging to stderr. Check TUTTI_DEBUG_FILE",
                  file, tuttiErrnoText(err));
}

/* Local ranks as processes. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "perf.h"
#include "tool.h"

/* How long the others may take to notice a failed rank and say so, and to end when asked to. */
enum { NOTICE_SECONDS = 8, END_SECONDS = 2, CANNOT_RUN = 127 };

typedef struct {
  int nranks, running;
  pid_t *pids; /* 0: ended */
  bool failed;
  int signal;      /* that the launcher was ended by; 0: none */
  int asked;       /* the strongest signal that was sent to those still running */
  double deadline; /* of the next step, once failed or signalled */
} launch;

static sigset_t awaited, before; /* signals; the mask of before they were blocked */

void perfLaunchPrepare(void) {
  static const int signals[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
  sigemptyset(&awaited);
  for (int i = 0; i < 4; i++)
    sigaddset(&awaited, signals[i]);
  sigprocmask(SIG_BLOCK, &awaited, &before);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- starting ------------------------------------------------------------------------------- */

/* In the child, where only async-signal-safe calls are allowed: another thread may have held a
 * lock at the fork. */
static void becomeRank(pid_t launcher, char **argv, char **environment) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(CANNOT_RUN); /* it died before the prctl */
  sigprocmask(SIG_SETMASK, &before, NULL);
  execve("/proc/self/exe", argv, environment);
  _exit(CANNOT_RUN);
}

/* Starts the ranks; environment[last] is the slot for each rank's place. */
static bool startRanks(launch *l, const tuttiUniqueId *id, char **argv, char **environment,
                       size_t last) {
  pid_t self = getpid();
  for (int r = 0; r < l->nranks; r++) {
    char *place = perfPlaceVariable(r, l->nranks, id);
    environment[last] = place;
    pid_t pid = place != NULL ? fork() : -1;
    if (pid == 0) becomeRank(self, argv, environment);
    int error = errno;
    free(place);
    if (pid < 0) {
      fprintf(stderr, PERF_COMMAND ": cannot start rank %d of %d: %s\n", r, l->nranks,
              strerror(error));
      return false;
    }
    l->pids[r] = pid;
    l->running++;
  }
  return true;
}

/* ---- ending --------------------------------------------------------------------------------- */

static void endRemaining(launch *l, int signal, int seconds) {
  for (int r = 0; r < l->nranks; r++)
    if (l->pids[r] > 0) kill(l->pids[r], signal);
  l->asked = signal;
  l->deadline = now() + seconds;
}

/* A rank that ended with 1 has said why itself. */
static void report(const launch *l, int rank, pid_t pid, int status) {
  if (l->asked != 0) return; /* the launcher's own doing */
  if (WIFSIGNALED(status))
    fprintf(stderr, PERF_COMMAND ": rank %d (pid %d) was killed by signal %d (%s)\n", rank,
            (int)pid, WTERMSIG(status), strsignal(WTERMSIG(status)));
  else if (WEXITSTATUS(status) == CANNOT_RUN)
    fprintf(stderr, PERF_COMMAND ": rank %d (pid %d) could not run this program again\n", rank,
            (int)pid);
  else if (WEXITSTATUS(status) != TUTTI_EXIT_FAILED)
    fprintf(stderr, PERF_COMMAND ": rank %d (pid %d) ended with exit code %d\n", rank, (int)pid,
            WEXITSTATUS(status));
}

static void reap(launch *l) {
  int status;
  pid_t pid;
  while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
    int rank = 0;
    while (rank < l->nranks && l->pids[rank] != pid)
      rank++;
    if (rank == l->nranks) continue;
    l->pids[rank] = 0;
    l->running--;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    report(l, rank, pid, status);
    if (!l->failed && l->asked == 0) l->deadline = now() + NOTICE_SECONDS;
    l->failed = true;
  }
}

static void reportRemaining(const launch *l) {
  fputs(PERF_COMMAND ": ending what still runs: rank", stderr);
  for (int r = 0; r < l->nranks; r++)
    if (l->pids[r] > 0) fprintf(stderr, " %d", r);
  fputs("\n", stderr);
}

/* The next, stronger step against ranks that still run after the deadline. */
static void pressOn(launch *l) {
  if ((!l->failed && l->signal == 0) || l->running == 0 || now() < l->deadline) return;
  if (l->asked == 0) {
    reportRemaining(l);
    endRemaining(l, SIGTERM, END_SECONDS);
  } else {
    endRemaining(l, SIGKILL, END_SECONDS);
  }
}

static void await(launch *l) {
  while (l->running > 0) {
    struct timespec tick = {.tv_sec = 0, .tv_nsec = 200 * 1000 * 1000};
    int signal = sigtimedwait(&awaited, NULL, &tick);
    if (signal > 0 && signal != SIGCHLD) {
      l->signal = signal;
      endRemaining(l, l->asked == 0 ? SIGTERM : SIGKILL, END_SECONDS);
    }
    reap(l);
    pressOn(l);
  }
}

/* Dies of the signal that the launcher got, so that a shell sees it. */
static void dieOf(int signal) {
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, signal);
  kill(getpid(), signal);
  sigprocmask(SIG_UNBLOCK, &only, NULL);
}

static size_t environmentLength(void) {
  size_t n = 0;
  while (environ[n] != NULL)
    n++;
  return n;
}

int perfLaunch(int nranks, const tuttiUniqueId *id, char **argv) {
  launch l = {.nranks = nranks};
  size_t n = environmentLength();
  char **environment = calloc(n + 2, sizeof *environment);
  l.pids = calloc((size_t)nranks, sizeof *l.pids);
  if (environment == NULL || l.pids == NULL) {
    fputs(PERF_COMMAND ": out of memory\n", stderr);
    free(environment);
    free(l.pids);
    return TUTTI_EXIT_FAILED;
  }
  memcpy(environment, environ, n * sizeof *environment);
  fflush(NULL);
  if (!startRanks(&l, id, argv, environment, n)) {
    l.failed = true;
    endRemaining(&l, SIGKILL, END_SECONDS);
  }
  await(&l);
  free(environment);
  free(l.pids);
  if (l.signal != 0) dieOf(l.signal);
  return l.failed ? TUTTI_EXIT_FAILED : TUTTI_EXIT_OK;
}

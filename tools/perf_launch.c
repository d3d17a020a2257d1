/* Local ranks as processes. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"
#include "perf.h"
#include "tool.h"

/* How long the others may take to notice a failed rank and say so, and to end when asked to. */
enum { NOTICE_MS = 8000, END_MS = 2000 };

typedef struct {
  int nranks, running;
  pid_t *pids; /* 0: ended */
  bool failed;
  int signal;        /* that the launcher was ended by; 0: none */
  int asked;         /* the strongest signal that was sent to those still running */
  uint64_t deadline; /* of the next step, once failed or signalled */
} launch;

static void endRemaining(launch *l, int signal) {
  for (int r = 0; r < l->nranks; r++)
    if (l->pids[r] > 0) kill(l->pids[r], signal);
  l->asked = signal;
  l->deadline = tuttiDeadline(END_MS);
}

/* ---- starting ------------------------------------------------------------------------------- */

/* What the ranks share with the launcher. */
typedef struct {
  tuttiUniqueId id;
  int gate[2]; /* a pipe, closed by the launcher once the id is there */
} meeting;

static int beRank(const perfOptions *options, perfPlace place, const meeting *m, pid_t launcher) {
  char nothing;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) return TUTTI_EXIT_FAILED; /* it died before the prctl */
  close(m->gate[1]);
  while (read(m->gate[0], &nothing, 1) < 0)
    continue;
  close(m->gate[0]);
  place.id = m->id;
  return perfRunRank(options->library, options, &place);
}

/* A forked process must not use a library that its parent has used: first come the ranks, then the
 * id. */
static bool startRanks(launch *l, const perfOptions *options, perfPlace place, meeting *m,
                       const sigset_t *mask) {
  pid_t self = getpid();
  for (int r = 0; r < l->nranks; r++) {
    place.rank = place.localRank = r;
    pid_t pid = fork();
    if (pid == 0) {
      sigprocmask(SIG_SETMASK, mask, NULL);
      exit(beRank(options, place, m, self));
    }
    if (pid < 0) return PERF_FAIL("cannot start rank %d/%d: %s\n", r, l->nranks, strerror(errno));
    l->pids[r] = pid;
    l->running++;
  }
  return perfMakeId(options->library, &m->id);
}

/* ---- ending --------------------------------------------------------------------------------- */

/* A rank that ended with 1 has said why itself. */
static void report(const launch *l, int rank, pid_t pid, int status) {
  if (l->asked != 0) return; /* the launcher's own doing */
  if (WIFSIGNALED(status))
    fprintf(stderr, PERF_COMMAND ": rank %d (pid %d) was killed by signal %d (%s)\n", rank,
            (int)pid, WTERMSIG(status), strsignal(WTERMSIG(status)));
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
    if (!l->failed && l->asked == 0) l->deadline = tuttiDeadline(NOTICE_MS);
    l->failed = true;
  }
}

/* The next, stronger step against ranks that still run after the deadline. */
static void pressOn(launch *l) {
  if ((!l->failed && l->signal == 0) || l->running == 0 || tuttiNow() < l->deadline) return;
  if (l->asked != 0) {
    endRemaining(l, SIGKILL);
    return;
  }
  fputs(PERF_COMMAND ": ending what still runs: rank", stderr);
  for (int r = 0; r < l->nranks; r++)
    if (l->pids[r] > 0) fprintf(stderr, " %d", r);
  fputs("\n", stderr);
  endRemaining(l, SIGTERM);
}

static void await(launch *l, const sigset_t *awaited) {
  while (l->running > 0) {
    struct timespec tick = {.tv_sec = 0, .tv_nsec = 200 * 1000 * 1000};
    int signal = sigtimedwait(awaited, NULL, &tick);
    if (signal > 0 && signal != SIGCHLD) {
      l->signal = signal;
      endRemaining(l, l->asked == 0 ? SIGTERM : SIGKILL);
    }
    reap(l);
    pressOn(l);
  }
}

/* Runs the ranks with the signals blocked that it waits for, before there is any other thread. */
static void run(launch *l, const perfOptions *options, const perfPlace *place, meeting *m) {
  static const int signals[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
  sigset_t awaited, before;
  sigemptyset(&awaited);
  for (int i = 0; i < 4; i++)
    sigaddset(&awaited, signals[i]);
  sigprocmask(SIG_BLOCK, &awaited, &before);
  signal(SIGCHLD, SIG_DFL); /* ignored, as a parent may hand it down, no rank's end would be told */
  fflush(NULL);
  if (!startRanks(l, options, *place, m, &before)) {
    l->failed = true;
    endRemaining(l, SIGKILL);
  }
  close(m->gate[0]);
  close(m->gate[1]);
  await(l, &awaited);
}

int perfLaunch(const perfOptions *options, const perfPlace *place) {
  launch l = {.nranks = place->nranks, .pids = calloc((size_t)place->nranks, sizeof *l.pids)};
  meeting *m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (l.pids == NULL || m == MAP_FAILED || pipe2(m->gate, O_CLOEXEC) != 0) {
    fprintf(stderr, PERF_COMMAND ": cannot start ranks: %s\n", strerror(errno));
    l.failed = true;
  } else {
    run(&l, options, place, m);
  }
  free(l.pids);
  if (m != MAP_FAILED) munmap(m, sizeof *m);
  if (l.signal != 0) { /* dies of it, so that a shell sees it */
    sigset_t none;
    sigemptyset(&none);
    kill(getpid(), l.signal);
    sigprocmask(SIG_SETMASK, &none, NULL);
  }
  return l.failed ? TUTTI_EXIT_FAILED : TUTTI_EXIT_OK;
}

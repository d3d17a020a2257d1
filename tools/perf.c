/* tutti perf: places the ranks and lets them run. */
#include "perf.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tool.h"

/* How long the other threads may take to notice that one failed. */
enum { NOTICE_SECONDS = 8 };

/* ---- ranks as threads ----------------------------------------------------------------------- */

typedef struct {
  const perfOptions *options;
  pthread_mutex_t lock;
  pthread_cond_t ended;
  int running;
  bool failed;
} crew;

typedef struct {
  crew *crew;
  perfPlace place;
  pthread_t thread;
} member;

static void *runMember(void *argument) {
  member *m = argument;
  int code = perfRunRank(m->crew->options->library, m->crew->options, &m->place);
  pthread_mutex_lock(&m->crew->lock);
  m->crew->running--;
  if (code != TUTTI_EXIT_OK) m->crew->failed = true;
  pthread_cond_signal(&m->crew->ended);
  pthread_mutex_unlock(&m->crew->lock);
  return NULL;
}

/* Waits until all have ended, after a failure only for so long; false if some still run. */
static bool awaitMembers(crew *c) {
  struct timespec deadline;
  int result = 0;
  pthread_mutex_lock(&c->lock);
  while (c->running > 0 && !c->failed)
    pthread_cond_wait(&c->ended, &c->lock);
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += NOTICE_SECONDS;
  while (c->running > 0 && result != ETIMEDOUT)
    result = pthread_cond_timedwait(&c->ended, &c->lock, &deadline);
  bool all = c->running == 0;
  pthread_mutex_unlock(&c->lock);
  return all;
}

static int startMembers(crew *c, member *members, const perfPlace *first) {
  for (int r = 0; r < first->nranks; r++) {
    members[r].crew = c;
    members[r].place = *first;
    members[r].place.rank = members[r].place.localRank = r;
    pthread_mutex_lock(&c->lock);
    c->running++;
    pthread_mutex_unlock(&c->lock);
    int error = pthread_create(&members[r].thread, NULL, runMember, &members[r]);
    if (error == 0) continue;
    fprintf(stderr, PERF_COMMAND ": cannot start the thread of rank %d of %d: %s\n", r,
            first->nranks, strerror(error));
    return TUTTI_EXIT_FAILED;
  }
  return TUTTI_EXIT_OK;
}

static int runThreads(const perfOptions *options, const perfPlace *first) {
  crew c = {
      .options = options, .lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};
  member *members = calloc((size_t)first->nranks, sizeof *members);
  if (members == NULL) {
    fputs(PERF_COMMAND ": out of memory\n", stderr);
    return TUTTI_EXIT_FAILED;
  }
  /* Threads that wait for a rank that will not come end with the process. */
  if (startMembers(&c, members, first) != TUTTI_EXIT_OK || !awaitMembers(&c)) {
    fflush(NULL);
    _exit(TUTTI_EXIT_FAILED);
  }
  for (int r = 0; r < first->nranks; r++)
    pthread_join(members[r].thread, NULL);
  free(members);
  return c.failed ? TUTTI_EXIT_FAILED : TUTTI_EXIT_OK;
}

/* ---- local ranks ---------------------------------------------------------------------------- */

/* Before any thread is made, so that a signal meets no thread but this one. */
static void blockSignals(sigset_t *before) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGHUP);
  sigprocmask(SIG_BLOCK, &set, before);
}

static int startLocal(const perfOptions *options, perfPlace *place, char **argv) {
  sigset_t before;
  if (options->ranks == 0)
    fprintf(stderr, PERF_COMMAND ": --ranks is not given; starting %d ranks\n", place->nranks);
  if (!options->threads) blockSignals(&before);
  const perfLibrary *library = options->library;
  tuttiResult_t result = library->GetUniqueId(&place->id);
  if (result != tuttiSuccess) {
    fprintf(stderr, PERF_COMMAND ": %s: %s\n", library->GetErrorString(result),
            library->GetLastError(NULL));
    return TUTTI_EXIT_FAILED;
  }
  place->hasId = true;
  if (options->threads) return runThreads(options, place);
  return perfLaunch(place->nranks, &place->id, argv, &before);
}

int tuttiToolPerf(int argc, char **argv) {
  perfOptions options;
  perfPlace place;
  perfLibrary library = perfTutti;
  /* getopt_long permutes argv; the ranks are given it as it was. */
  char **original = calloc((size_t)argc + 2, sizeof *original);
  if (original == NULL) {
    fputs(PERF_COMMAND ": out of memory\n", stderr);
    return TUTTI_EXIT_FAILED;
  }
  original[0] = (char[]){"tutti"};
  memcpy(original + 1, argv, (size_t)argc * sizeof *original);
  int code = perfParse(argc, argv, &options);
  options.library = &library;
  if (code < 0 && options.lib != NULL && !perfLibraryOpen(options.lib, &library))
    code = TUTTI_EXIT_FAILED;
  if (code < 0) code = perfFindPlace(&options, &place);
  if (code < 0 && options.root >= place.nranks) {
    fprintf(stderr, PERF_COMMAND ": --root %d is not one of the %d ranks\n", options.root,
            place.nranks);
    code = TUTTI_EXIT_USAGE;
  }
  if (code < 0)
    code = place.placed ? perfRunRank(&library, &options, &place)
                        : startLocal(&options, &place, original);
  free(original);
  return code;
}

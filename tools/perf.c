/* tutti perf: places the ranks and lets them run. */
#include "perf.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic.h"
#include "tool.h"

/* How long the other threads may take to notice that one failed. */
enum { NOTICE_SECONDS = 8 };

/* ---- ranks as threads ----------------------------------------------------------------------- */

typedef struct {
  const perfOptions *options;
  perfPlace place;
  pthread_t thread;
  tuttiAtomic32 *failed;
  sem_t *ended;
} member;

static void *runMember(void *argument) {
  member *m = argument;
  if (perfRunRank(m->options->library, m->options, &m->place) != TUTTI_EXIT_OK)
    tuttiStoreRelease32(m->failed, 1);
  sem_post(m->ended);
  return NULL;
}

/* Waits until all have ended, after a failure only for so long; false if some still run. */
static bool awaitMembers(sem_t *ended, int n, const tuttiAtomic32 *failed) {
  struct timespec deadline;
  while (n > 0 && tuttiLoadAcquire32(failed) == 0)
    n -= sem_wait(ended) == 0;
  clock_gettime(CLOCK_MONOTONIC, &deadline);
  deadline.tv_sec += NOTICE_SECONDS;
  while (n > 0) {
    if (sem_clockwait(ended, CLOCK_MONOTONIC, &deadline) == 0)
      n--;
    else if (errno != EINTR)
      return false;
  }
  return true;
}

static int runThreads(const perfOptions *options, const perfPlace *first) {
  member *members = calloc((size_t)first->nranks, sizeof *members);
  tuttiAtomic32 failed = {0};
  sem_t ended;
  int started = 0, error = members == NULL ? ENOMEM : 0;
  sem_init(&ended, 0, 0);
  for (int r = 0; r < first->nranks && error == 0; r++) {
    member *m = &members[r];
    *m = (member){.options = options, .place = *first, .failed = &failed, .ended = &ended};
    m->place.rank = m->place.localRank = r;
    error = pthread_create(&m->thread, NULL, runMember, m);
    if (error == 0) started++;
  }
  if (error != 0)
    fprintf(stderr, PERF_COMMAND ": cannot start the thread of rank %d of %d: %s\n", started,
            first->nranks, strerror(error));
  /* Threads that wait for a rank that will not come end with the process. */
  if (error != 0 || !awaitMembers(&ended, started, &failed)) {
    fflush(NULL);
    _exit(TUTTI_EXIT_FAILED);
  }
  for (int r = 0; r < first->nranks; r++)
    pthread_join(members[r].thread, NULL);
  free(members);
  return tuttiLoadAcquire32(&failed) ? TUTTI_EXIT_FAILED : TUTTI_EXIT_OK;
}

/* ---- local ranks ---------------------------------------------------------------------------- */

static int startLocal(const perfOptions *options, perfPlace *place, char **argv) {
  if (options->ranks == 0)
    fprintf(stderr, PERF_COMMAND ": --ranks is not given; starting %d ranks\n", place->nranks);
  if (!options->threads) perfLaunchPrepare();
  const perfLibrary *library = options->library;
  tuttiResult_t result = library->GetUniqueId(&place->id);
  if (result != tuttiSuccess) {
    fprintf(stderr, PERF_COMMAND ": %s: %s\n", library->GetErrorString(result),
            library->GetLastError(NULL));
    return TUTTI_EXIT_FAILED;
  }
  place->hasId = true;
  if (options->threads) return runThreads(options, place);
  return perfLaunch(place->nranks, &place->id, argv);
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

/* tutti perf: places the ranks and lets them run. */
#include "perf.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "tool.h"

/* How long the other threads may take to notice that one failed. */
enum { NOTICE_SECONDS = 8 };

/* ---- ranks as threads ----------------------------------------------------------------------- */

typedef struct {
  const perfOptions *options;
  perfLibrary library;
  perfPlace place;
  pthread_t thread;
  tuttiAtomic32 *failed;
} member;

/* Threads that wait for a rank that will not come end with the process. */
static void giveUp(int signal) {
  (void)signal;
  _exit(TUTTI_EXIT_FAILED);
}

static void *runMember(void *argument) {
  member *m = argument;
  if (perfRunRank(&m->library, m->options, &m->place) != TUTTI_EXIT_OK &&
      tuttiCompareExchange32(m->failed, 0, 1))
    alarm(NOTICE_SECONDS);
  return NULL;
}

/* False: a library of its own cannot be had for one of them; that is said on stderr. */
static bool makeMembers(member *members, const perfOptions *options, const perfPlace *first,
                        tuttiAtomic32 *failed) {
  for (int r = 0; r < first->nranks; r++) {
    member *m = &members[r];
    *m = (member){.options = options, .library = *options->library, .place = *first};
    m->place.rank = m->place.localRank = r;
    m->failed = failed;
    if (options->apart && !perfLibraryOpenApart(options->lib, r, &m->library)) return false;
  }
  return true;
}

static int runThreads(const perfOptions *options, const perfPlace *first) {
  member *members = calloc((size_t)first->nranks, sizeof *members);
  tuttiAtomic32 failed = {0};
  int started = 0, error = members == NULL ? ENOMEM : 0;
  signal(SIGALRM, giveUp);
  if (error == 0 && !makeMembers(members, options, first, &failed)) {
    free(members);
    return TUTTI_EXIT_FAILED;
  }
  while (started < first->nranks && error == 0) {
    member *m = &members[started];
    error = pthread_create(&m->thread, NULL, runMember, m);
    started += error == 0;
  }
  if (error != 0) {
    fprintf(stderr, PERF_COMMAND ": cannot start the thread of rank %d of %d: %s\n", started,
            first->nranks, strerror(error));
    giveUp(0);
  }
  for (int r = 0; r < first->nranks; r++)
    pthread_join(members[r].thread, NULL);
  alarm(0);
  free(members);
  return tuttiLoadAcquire32(&failed) ? TUTTI_EXIT_FAILED : TUTTI_EXIT_OK;
}

/* ---- local ranks ---------------------------------------------------------------------------- */

bool perfMakeId(const perfLibrary *library, tuttiUniqueId *id) {
  tuttiResult_t result = library->GetUniqueId(id);
  return result == tuttiSuccess ||
         PERF_FAIL("%s: %s\n", library->GetErrorString(result), library->GetLastError(NULL));
}

static int startLocal(const perfOptions *options, perfPlace *place) {
  if (options->ranks == 0)
    fprintf(stderr, PERF_COMMAND ": --ranks is not given; starting %d ranks\n", place->nranks);
  if (!options->threads) return perfLaunch(options, place);
  if (!perfMakeId(options->library, &place->id)) return TUTTI_EXIT_FAILED;
  return runThreads(options, place);
}

int tuttiToolPerf(int argc, char **argv) {
  perfOptions options;
  perfPlace place;
  perfLibrary library = perfTutti;
  int code = perfParse(argc, argv, &options);
  options.library = &library;
  if (code < 0 && options.lib != NULL && !perfLibraryOpen(options.lib, &library))
    code = TUTTI_EXIT_FAILED;
  if (code < 0) code = perfFindPlace(&options, &place);
  if (code >= 0) return code;
  if (options.root >= place.nranks)
    return tuttiUsage(PERF_COMMAND, "--root %d is not one of the %d ranks", options.root,
                      place.nranks);
  return place.placed ? perfRunRank(&library, &options, &place) : startLocal(&options, &place);
}

/* Times how long N ranks of one host take to make a communicator, and what that takes: address
 * space, memory, descriptors; then the first all-reduce, which makes connections, and those after
 * it. Every result is checked. One JSON line.
 *
 *   bench_init_scale threads|processes N [SECONDS]
 * Fails with 1 if a rank fails or its result is wrong, and with 3 after SECONDS (120). Raises its
 * own limit of open files as far as it may: a rank as a thread takes about ten. */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tutti.h"

#define COUNT 16
#define MORE  8 /* all-reduces after the first */
#define STACK (256 << 10)

/* Shared by all ranks, processes too. Times in seconds of CLOCK_MONOTONIC. */
typedef struct {
  tuttiUniqueId id;
  atomic_int haveId, ready, failed;
  int nranks;
  double began;
  _Atomic double ended, reduced, repeated; /* when the last rank was done */
  /* The most of one process: added to VmSize and VmRSS by init and all-reduces, and descriptors. */
  _Atomic long mappedKb, residentKb, files;
} meeting;

typedef struct {
  long mappedKb, residentKb;
} holdings;

typedef struct {
  meeting *m;
  int rank;
  bool alone; /* in its process */
} rankJob;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static holdings look(void) {
  char line[128];
  holdings h = {0, 0};
  FILE *f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof line, f))
    if (sscanf(line, "VmSize: %ld", &h.mappedKb) != 1)
      (void)sscanf(line, "VmRSS: %ld", &h.residentKb);
  if (f) fclose(f);
  return h;
}

static long openFiles(void) {
  long n = -1; /* the one that looks */
  DIR *d = opendir("/proc/self/fd");
  for (struct dirent *e; d && (e = readdir(d));)
    n += e->d_name[0] != '.';
  if (d) closedir(d);
  return n;
}

static void raiseTo(_Atomic double *most, double value) {
  double seen = atomic_load(most);
  while (seen < value && !atomic_compare_exchange_weak(most, &seen, value)) {
  }
}

static void raiseLong(_Atomic long *most, long value) {
  long seen = atomic_load(most);
  while (seen < value && !atomic_compare_exchange_weak(most, &seen, value)) {
  }
}

static void note(meeting *m, holdings before) {
  holdings now = look();
  raiseLong(&m->mappedKb, now.mappedKb - before.mappedKb);
  raiseLong(&m->residentKb, now.residentKb - before.residentKb);
  raiseLong(&m->files, openFiles());
}

static void check(meeting *m, int rank, tuttiComm_t comm, tuttiResult_t result) {
  if (result == tuttiSuccess) return;
  if (atomic_exchange(&m->failed, 1) == 0)
    fprintf(stderr, "rank %d: %s: %s\n", rank, tuttiGetErrorString(result),
            tuttiGetLastError(comm));
  _exit(1);
}

static void reduce(const rankJob *job, tuttiComm_t comm) {
  int n = job->m->nranks;
  float values[COUNT], sum[COUNT];
  for (int i = 0; i < COUNT; i++)
    values[i] = (float)(job->rank % 7 + i);
  check(job->m, job->rank, comm,
        tuttiAllReduce(values, sum, COUNT, tuttiFloat32, tuttiSum, comm, NULL));
  for (int i = 0; i < COUNT; i++) {
    float expected = (float)(n * i);
    for (int r = 0; r < n; r++)
      expected += (float)(r % 7); /* whole numbers far below 2^24, so in any order exact */
    if (sum[i] == expected) continue;
    fprintf(stderr, "rank %d: element %d is %g, not %g\n", job->rank, i, sum[i], expected);
    _exit(1);
  }
}

static void *runRank(void *arg) {
  const rankJob *job = arg;
  meeting *m = job->m;
  tuttiComm_t comm = NULL;
  holdings before = {0, 0};
  if (job->alone) before = look();
  check(m, job->rank, comm, tuttiCommInitRank(&comm, m->nranks, m->id, job->rank));
  raiseTo(&m->ended, now());
  reduce(job, comm);
  raiseTo(&m->reduced, now());
  for (int i = 0; i < MORE; i++)
    reduce(job, comm);
  raiseTo(&m->repeated, now());
  if (job->alone) note(m, before);
  atomic_fetch_add(&m->ready, 1);
  check(m, job->rank, comm, tuttiCommDestroy(comm));
  return NULL;
}

static int startThreads(meeting *m) {
  pthread_t *threads = calloc((size_t)m->nranks, sizeof *threads);
  rankJob *jobs = calloc((size_t)m->nranks, sizeof *jobs);
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, STACK);
  if (!threads || !jobs || tuttiGetUniqueId(&m->id) != tuttiSuccess) return 1;
  holdings before = look();
  m->began = now();
  for (int r = 0; r < m->nranks; r++) {
    jobs[r] = (rankJob){.m = m, .rank = r};
    if (pthread_create(&threads[r], &attr, runRank, &jobs[r]) != 0) return 1;
  }
  while (atomic_load(&m->ready) < m->nranks)
    usleep(1000);
  note(m, before);
  for (int r = 0; r < m->nranks; r++)
    pthread_join(threads[r], NULL);
  free(jobs);
  free(threads);
  return 0;
}

/* The id is made after the forks: a child has no use for threads of its parent. */
static int startProcesses(meeting *m) {
  int gate[2]; /* its end tells that there is an id, or that the parent is gone */
  if (pipe(gate) != 0) return 1;
  for (int r = 0; r < m->nranks; r++) {
    pid_t pid = fork();
    if (pid < 0) return 1;
    if (pid > 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char none;
    close(gate[1]);
    if (read(gate[0], &none, 1) != 0 || !atomic_load(&m->haveId)) _exit(1);
    close(gate[0]);
    rankJob job = {.m = m, .rank = r, .alone = true};
    runRank(&job);
    _exit(0);
  }
  if (tuttiGetUniqueId(&m->id) != tuttiSuccess) return 1;
  m->began = now();
  atomic_store(&m->haveId, 1);
  close(gate[1]);
  int bad = 0, status;
  while (wait(&status) > 0)
    bad |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  return bad;
}

static double cpuSeconds(void) {
  double sum = 0;
  for (int i = 0; i < 2; i++) {
    struct rusage u;
    getrusage(i ? RUSAGE_CHILDREN : RUSAGE_SELF, &u);
    sum += (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec);
    sum += (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
  }
  return sum;
}

static void tooLate(int signal) {
  (void)signal;
  _exit(3);
}

int main(int argc, char **argv) {
  bool threads = argc > 1 && strcmp(argv[1], "threads") == 0;
  int n = argc > 2 ? atoi(argv[2]) : 0;
  if (n < 2 || (!threads && strcmp(argv[1], "processes") != 0)) {
    fprintf(stderr, "usage: %s threads|processes N [SECONDS]\n", argv[0]);
    return 2;
  }
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  meeting *m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (m == MAP_FAILED) return 1;
  m->nranks = n;
  signal(SIGALRM, tooLate);
  alarm(argc > 3 ? (unsigned)atoi(argv[3]) : 120);
  int failed = threads ? startThreads(m) : startProcesses(m);
  double ended = atomic_load(&m->ended), reduced = atomic_load(&m->reduced);
  double repeated = atomic_load(&m->repeated);
  printf("{\"as\": \"%s\", \"ranks\": %d, \"init_s\": %.3f, \"first_all_reduce_s\": %.3f, "
         "\"next_all_reduce_ms\": %.2f, \"cpu_s\": %.2f, \"per\": \"process\", "
         "\"mapped_mib\": %ld, \"resident_kib\": %ld, \"files\": %ld, \"failed\": %d}\n",
         argv[1], n, ended - m->began, reduced - ended, (repeated - reduced) * 1e3 / MORE,
         cpuSeconds(), atomic_load(&m->mappedKb) / 1024, atomic_load(&m->residentKb),
         atomic_load(&m->files), failed);
  return failed;
}

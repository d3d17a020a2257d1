/* Times how long N ranks of one host take to make a communicator, and how much address space that
 * maps; then runs one all-reduce and checks it. One JSON line.
 *
 *   bench_init_scale threads|processes N [SECONDS]
 * Fails with 1 if a rank fails or its result is wrong, and with 3 after SECONDS (120). Raises its
 * own limit of open files as far as it may: a rank as a thread takes about ten. */
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
#define STACK (256 << 10)

/* Shared by all ranks, processes too. Times in seconds of CLOCK_MONOTONIC. */
typedef struct {
  tuttiUniqueId id;
  atomic_int haveId, ready, failed;
  int nranks;
  double began;
  _Atomic double ended, reduced; /* when the last rank was done */
  _Atomic long mappedKb;         /* the most that init added to one process's VmSize */
} meeting;

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

static long virtualKb(void) {
  char line[128];
  long kb = 0;
  FILE *f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof line, f))
    if (sscanf(line, "VmSize: %ld", &kb) == 1) break;
  if (f) fclose(f);
  return kb;
}

static void raiseTo(_Atomic double *most, double value) {
  double seen = atomic_load(most);
  while (seen < value && !atomic_compare_exchange_weak(most, &seen, value)) {
  }
}

static void noteMapped(meeting *m, long kb) {
  long seen = atomic_load(&m->mappedKb);
  while (seen < kb && !atomic_compare_exchange_weak(&m->mappedKb, &seen, kb)) {
  }
}

static void check(meeting *m, int rank, tuttiComm_t comm, tuttiResult_t result) {
  if (result == tuttiSuccess) return;
  if (atomic_exchange(&m->failed, 1) == 0)
    fprintf(stderr, "rank %d: %s: %s\n", rank, tuttiGetErrorString(result),
            tuttiGetLastError(comm));
  _exit(1);
}

static void *runRank(void *arg) {
  const rankJob *job = arg;
  meeting *m = job->m;
  int n = m->nranks;
  float values[COUNT], sum[COUNT];
  tuttiComm_t comm = NULL;
  long before = job->alone ? virtualKb() : 0;
  check(m, job->rank, comm, tuttiCommInitRank(&comm, n, m->id, job->rank));
  raiseTo(&m->ended, now());
  if (job->alone) noteMapped(m, virtualKb() - before);
  for (int i = 0; i < COUNT; i++)
    values[i] = (float)(job->rank % 7 + i);
  check(m, job->rank, comm, tuttiAllReduce(values, sum, COUNT, tuttiFloat32, tuttiSum, comm, NULL));
  raiseTo(&m->reduced, now());
  for (int i = 0; i < COUNT; i++) {
    float expected = (float)(n * i);
    for (int r = 0; r < n; r++)
      expected += (float)(r % 7); /* whole numbers far below 2^24, so in any order exact */
    if (sum[i] == expected) continue;
    fprintf(stderr, "rank %d: element %d is %g, not %g\n", job->rank, i, sum[i], expected);
    _exit(1);
  }
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
  long before = virtualKb();
  m->began = now();
  for (int r = 0; r < m->nranks; r++) {
    jobs[r] = (rankJob){.m = m, .rank = r};
    if (pthread_create(&threads[r], &attr, runRank, &jobs[r]) != 0) return 1;
  }
  while (atomic_load(&m->ready) < m->nranks)
    usleep(1000);
  noteMapped(m, virtualKb() - before);
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
  printf("{\"as\": \"%s\", \"ranks\": %d, \"init_s\": %.3f, \"all_reduce_s\": %.3f, "
         "\"cpu_s\": %.2f, \"mapped_mib\": %ld, \"per\": \"process\", \"failed\": %d}\n",
         argv[1], n, ended - m->began, reduced - ended, cpuSeconds(),
         atomic_load(&m->mappedKb) / 1024, failed);
  return failed;
}

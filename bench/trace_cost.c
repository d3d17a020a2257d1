/* What a trace costs an all-reduce of 8 bytes.
 *
 *     bench_trace_cost [--jobs N] [--blocks N] [--iters N] [--limit PERCENT]
 *
 * Two processes make a communicator and run blocks of all-reduces, in turn without a trace, with
 * one, and without one again; then two others do the same. Between two jobs a message's way differs
 * by tens of percent, with the cores they are on and where their memory lies, and by little within
 * one, so the blocks of a job are compared with each other: prints what the median block with a
 * trace takes longer than the median one without, and what the second kind without does, as means
 * over the jobs and their spread. The exit code is 1 if the trace adds more than the limit (2 %).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os.h"
#include "comm/handle.h"
#include "tutti.h"

enum { WITHOUT, WITH, AGAIN, KINDS };
#define MOST_BLOCKS 10000
#define MOST_JOBS   1000

typedef struct {
  int jobs, blocks, iters;
  double limit;
} Options;

/* Between the ranks of a job. */
typedef struct {
  tuttiUniqueId id;
  double us[KINDS][MOST_BLOCKS]; /* of one all-reduce, in each block */
} Shared;

static void need(tuttiResult_t result, const char *what) {
  if (result == tuttiSuccess) return;
  fprintf(stderr, "%s: %s\n", what, tuttiGetLastError(NULL));
  exit(2);
}

/* As TUTTI_TRACE=1 does it when the communicator is made. */
static void setTrace(tuttiComm_t comm, bool traces) {
  tuttiCommunicator *c;
  need(tuttiHandleEnter(comm, "bench_trace_cost", &c), "the communicator");
  c->record.traces = traces;
  tuttiHandleLeave(c);
}

static double block(tuttiComm_t comm, int iters) {
  float in[2] = {1, 2}, out[2];
  uint64_t start = tuttiNow();
  for (int i = 0; i < iters; i++)
    if (tuttiAllReduce(in, out, 2, tuttiFloat32, tuttiSum, comm, NULL) != tuttiSuccess)
      need(tuttiInternalError, "tuttiAllReduce");
  return (double)(tuttiNow() - start) / 1e3 / iters;
}

/* A rank of a job, in a process of its own. */
static void run(Shared *shared, const Options *o, int rank) {
  tuttiComm_t comm;
  need(tuttiCommInitRank(&comm, 2, shared->id, rank), "tuttiCommInitRank");
  block(comm, o->iters);
  for (int b = 0; b < o->blocks; b++)
    for (int k = 0; k < KINDS; k++) {
      int kind = (b + k) % KINDS; /* none always follows the same one */
      setTrace(comm, kind == WITH);
      double us = block(comm, o->iters);
      if (rank == 0) shared->us[kind][b] = us;
    }
  need(tuttiCommDestroy(comm), "tuttiCommDestroy");
}

static void runJob(Shared *shared, const Options *o) {
  pid_t pids[2];
  int status;
  for (int r = 0; r < 2; r++) {
    pids[r] = fork();
    if (pids[r] < 0) need(tuttiSystemError, "fork");
    if (pids[r] > 0) continue;
    run(shared, o, r);
    _exit(0);
  }
  for (int r = 0; r < 2; r++)
    if (waitpid(pids[r], &status, 0) < 0 || status != 0) exit(2);
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *v, int n) {
  qsort(v, (size_t)n, sizeof *v, compare);
  return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static double mean(const double *v, int n) {
  double sum = 0;
  for (int i = 0; i < n; i++)
    sum += v[i];
  return sum / n;
}

static int number(const char *text, int most) {
  char *end;
  long n = strtol(text, &end, 10);
  if (*end || n < 1 || n > most) {
    fprintf(stderr, "%s: want a number from 1 to %d\n", text, most);
    exit(2);
  }
  return (int)n;
}

static Options parse(int argc, char **argv) {
  Options o = {.jobs = 21, .blocks = 60, .iters = 5000, .limit = 2};
  for (int i = 1; i < argc; i += 2) {
    const char *value = i + 1 < argc ? argv[i + 1] : "";
    if (strcmp(argv[i], "--jobs") == 0)
      o.jobs = number(value, MOST_JOBS);
    else if (strcmp(argv[i], "--blocks") == 0)
      o.blocks = number(value, MOST_BLOCKS);
    else if (strcmp(argv[i], "--iters") == 0)
      o.iters = number(value, 100000000);
    else if (strcmp(argv[i], "--limit") == 0)
      o.limit = number(value, 100);
    else {
      fprintf(stderr, "%s: want --jobs, --blocks, --iters or --limit\n", argv[i]);
      exit(2);
    }
  }
  return o;
}

int main(int argc, char **argv) {
  Options o = parse(argc, argv);
  double us[MOST_JOBS], added[KINDS][MOST_JOBS];
  Shared *shared =
      mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) need(tuttiSystemError, "mmap");
  setenv("TUTTI_TRACE", "0", 1);
  setenv("TUTTI_DEVICE", "host", 1);
  for (int j = 0; j < o.jobs; j++) {
    need(tuttiGetUniqueId(&shared->id), "tuttiGetUniqueId");
    runJob(shared, &o);
    us[j] = median(shared->us[WITHOUT], o.blocks);
    for (int k = WITH; k < KINDS; k++)
      added[k][j] = 100 * (median(shared->us[k], o.blocks) / us[j] - 1);
  }
  double with = mean(added[WITH], o.jobs), again = mean(added[AGAIN], o.jobs);
  qsort(added[WITH], (size_t)o.jobs, sizeof(double), compare);
  printf("8 bytes, 2 processes, %d jobs: %.3f us; a trace adds %+.2f %% (%+.2f to %+.2f), no trace "
         "again %+.2f %%\n",
         o.jobs, median(us, o.jobs), with, added[WITH][0], added[WITH][o.jobs - 1], again);
  return with > o.limit;
}

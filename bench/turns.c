#include "turns.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void turnsFail(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  _exit(1);
}

void turnsCuda(cudaError_t err, const char *call) {
  if (err != cudaSuccess) turnsFail(call, cudaGetErrorString(err));
}

void turnsNccl(tuttiResult_t result, const char *call) {
  char code[32];
  snprintf(code, sizeof code, "result %d", (int)result);
  if (result != tuttiSuccess) turnsFail(call, code);
}

void *turnsOpen(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) turnsFail(path, dlerror());
  return library;
}

void *turnsFind(void *library, const char *path, const char *name) {
  char symbol[64];
  snprintf(symbol, sizeof symbol, "nccl%s", name);
  void *found = dlsym(library, symbol);
  if (!found) turnsFail(path, dlerror());
  return found;
}

double turnsNow(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

void *turnsShare(size_t size) {
  void *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) turnsFail("shared memory", strerror(errno));
  return shared;
}

void turnsBarrier(pthread_barrier_t *barrier, int n) {
  pthread_barrierattr_t attr;
  pthread_barrierattr_init(&attr);
  pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(barrier, &attr, (unsigned)n);
}

pid_t turnsBegin(turnsRun *run, const char *path, void *shared, int rank, int nranks) {
  pid_t pid = fork();
  if (pid < 0) turnsFail("fork", strerror(errno));
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(LIMIT_S);
  run(path, shared, rank, nranks);
  _exit(0);
}

bool turnsAwait(const pid_t *pids, int n) {
  bool failed = false;
  int status;
  for (int left = n; left > 0; left--) {
    if (wait(&status) < 0) return false;
    bool bad = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    for (int i = 0; bad && !failed && i < n; i++)
      kill(pids[i], SIGKILL);
    failed |= bad;
  }
  return !failed;
}

static int byValue(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double turnsMedian(double *values, int n) {
  qsort(values, (size_t)n, sizeof *values, byValue);
  return values[n / 2];
}

int turnsOption(int argc, char **argv, const char *name, int most, int value, int *used) {
  if (*used + 1 >= argc || strcmp(argv[*used], name) != 0) return value;
  value = atoi(argv[*used + 1]);
  *used += 2;
  if (value >= 1 && value <= most) return value;
  fprintf(stderr, "%s: 1 to %d\n", name, most);
  exit(2);
}

/* ---- programs whose turns are two processes ---------------------------------------------------
 */

static bool takeTurn(turnsRun *run, const char *path, turnsPair *shared, int n, double *out) {
  pid_t pids[2];
  memset(shared->figures, 0, sizeof shared->figures);
  for (int r = 0; r < 2; r++)
    pids[r] = turnsBegin(run, path, shared, r, 2);
  if (!turnsAwait(pids, 2)) return false;
  memcpy(out, shared->figures[0], sizeof shared->figures[0]);
  out[n - 1] += shared->figures[1][n - 1];
  return true;
}

static double medianOf(double (*rounds)[MAX_FIGURES], int nrounds, int figure) {
  double column[MAX_ROUNDS];
  for (int i = 0; i < nrounds; i++)
    column[i] = rounds[i][figure];
  return turnsMedian(column, nrounds);
}

/* A library of which a turn failed has no figures. */
static double results[MAX_LIBS][MAX_ROUNDS][MAX_FIGURES];
static bool failed[MAX_LIBS];

static void printTable(int nlibs, char **paths, int nrounds, const char *const *titles, int n) {
  printf("| medians of %d rounds |", nrounds);
  for (int l = 0; l < nlibs; l++)
    printf(" %s |", paths[l]);
  printf("\n| --- |");
  for (int l = 0; l < nlibs; l++)
    printf(" ---: |");
  for (int f = 0; f < n; f++) {
    printf("\n| %s |", titles[f]);
    for (int l = 0; l < nlibs; l++) {
      if (failed[l])
        printf(" - |");
      else
        printf(" %.2f |", medianOf(results[l], nrounds, f));
    }
  }
  printf("\n");
}

int turnsMain(int argc, char **argv, turnsRun *run, turnsPair *shared, const char *const *titles,
              int n) {
  int used = 1, nrounds = turnsOption(argc, argv, "--rounds", MAX_ROUNDS, 5, &used),
      nlibs = argc - used;
  bool bad = false;
  if (nlibs < 1 || nlibs > MAX_LIBS) {
    fprintf(stderr, "usage: %s [--rounds N] LIBRARY...\n", argv[0]);
    return 2;
  }
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  turnsBarrier(&shared->barrier, 2);
  for (int i = 0; i < nrounds; i++)
    for (int l = 0; l < nlibs; l++) {
      failed[l] = failed[l] || !takeTurn(run, argv[used + l], shared, n, results[l][i]);
      bad |= failed[l] || results[l][i][n - 1] > 0;
      if (failed[l]) turnsBarrier(&shared->barrier, 2); /* somebody may have died at it */
    }
  printTable(nlibs, argv + used, nrounds, titles, n);
  return bad;
}

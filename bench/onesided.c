/* One-sided puts beside messages, between two processes of this host: the time one way of 8 bytes,
 * by puts with their signals and by sends and receives, in turns, and the rate of large puts beside
 * that of a plain copy. Settings choose the path, as TUTTI_SHM_DISABLE=1 the network.
 *
 * Windows are of tuttiMemAlloc, or with the word plain of malloc. On GPUs, --device cuda, each
 * process has one of its own where there are two, and calls are eager and in a graph. With the word
 * threads the ranks are threads of one process, on one GPU, where processes would take turns of
 * milliseconds.
 *
 * Usage: onesided [rounds [plain]]
 *        onesided --device cuda [rounds [threads]] */
#include "onesided.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BATCHES = 200, ITERATIONS = 20, LARGE = 64 << 20, PUTS = 4 };

typedef struct {
  int rank;
  tuttiComm_t comm;
  tuttiWindow_t win;
  char *window, *data;
} Side;

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static onesidedShared *onesidedShare(void) {
  void *p =
      mmap(NULL, sizeof(onesidedShared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p != MAP_FAILED) return p;
  perror("mmap");
  exit(1);
}

static void put(const Side *s, size_t bytes) {
  CHECK(tuttiPutSignal(s->data, bytes, tuttiUint8, 1 - s->rank, s->win, 0, 0, 0, 0, s->comm, NULL));
}

static void await(const Side *s) {
  tuttiWaitSignalDesc_t desc = {1, 1 - s->rank, 0, 0};
  CHECK(tuttiWaitSignal(1, &desc, s->comm, NULL));
}

static void putFirst(const Side *s) {
  put(s, 8);
  await(s);
}

static void putSecond(const Side *s) {
  await(s);
  put(s, 8);
}

static void sendFirst(const Side *s) {
  CHECK(tuttiSend(s->data, 8, tuttiUint8, 1 - s->rank, s->comm, NULL));
  CHECK(tuttiRecv(s->window, 8, tuttiUint8, 1 - s->rank, s->comm, NULL));
}

static void sendSecond(const Side *s) {
  CHECK(tuttiRecv(s->window, 8, tuttiUint8, 1 - s->rank, s->comm, NULL));
  CHECK(tuttiSend(s->data, 8, tuttiUint8, 1 - s->rank, s->comm, NULL));
}

/* us one way, of the best batch: what else runs on the machine only ever adds. */
static double oneWay(const Side *s, void (*first)(const Side *), void (*second)(const Side *)) {
  double best = 1e9;
  for (int b = 0; b < BATCHES; b++) {
    double begin = seconds();
    for (int i = 0; i < ITERATIONS; i++)
      (s->rank == 0 ? first : second)(s);
    double us = (seconds() - begin) / ITERATIONS / 2 * 1e6;
    if (us < best) best = us;
  }
  return best;
}

/* GB/s of puts from rank 0, up to the signal that rank 1 has them all. */
static double rate(const Side *s) {
  double begin = seconds();
  for (int i = 0; i < PUTS; i++)
    if (s->rank == 0)
      put(s, LARGE);
    else
      await(s);
  if (s->rank == 0)
    await(s);
  else
    CHECK(tuttiSignal(0, 0, 0, 0, s->comm, NULL));
  return (double)PUTS * LARGE / (seconds() - begin) / 1e9;
}

static double copyRate(const Side *s) {
  double begin = seconds();
  for (int i = 0; i < PUTS; i++)
    memcpy(s->window, s->data, LARGE);
  return (double)PUTS * LARGE / (seconds() - begin) / 1e9;
}

static void run(Side *s, const tuttiUniqueId *id, int rounds, bool plain) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.device = tuttiDeviceHost;
  CHECK(tuttiCommInitRankConfig(&s->comm, 2, *id, s->rank, &config));
  s->data = malloc(LARGE);
  if (!s->data) exit(1);
  if (plain)
    s->window = malloc(LARGE);
  else
    CHECK(tuttiMemAlloc((void **)&s->window, LARGE));
  memset(s->window, 0, LARGE);
  memset(s->data, 1, LARGE);
  CHECK(tuttiCommWindowRegister(s->comm, s->window, LARGE, &s->win, TUTTI_WIN_DEFAULT));
  for (int i = 0; i < rounds; i++) {
    double message = oneWay(s, sendFirst, sendSecond), signalled = oneWay(s, putFirst, putSecond);
    double puts = rate(s), copies = s->rank == 0 ? copyRate(s) : 0;
    if (s->rank == 0)
      printf(
          "8 bytes: send/recv %.2f us, put with signal %.2f us; 64 MiB: put %.2f GB/s, copy %.2f "
          "GB/s\n",
          message, signalled, puts, copies);
  }
  CHECK(tuttiCommDestroy(s->comm));
}

typedef struct {
  onesidedShared *shared;
  int rounds;
} Second;

static void *secondThread(void *arg) {
  const Second *second = arg;
  onesidedGpu(1, second->shared, second->rounds);
  return NULL;
}

/* Both ranks in this process. */
static void runThreads(onesidedShared *shared, int rounds) {
  Second second = {shared, rounds};
  pthread_t thread;
  shared->threads = true;
  if (pthread_create(&thread, NULL, secondThread, &second)) exit(1);
  onesidedGpu(0, shared, rounds);
  pthread_join(thread, NULL);
}

int main(int argc, char **argv) {
  bool gpu = argc > 2 && strcmp(argv[1], "--device") == 0 && strcmp(argv[2], "cuda") == 0;
  int at = gpu ? 3 : 1, rounds = argc > at ? atoi(argv[at]) : 5, status = 0;
  if (rounds < 1 || (gpu && !onesidedGpuBuilt)) {
    fprintf(stderr, gpu && !onesidedGpuBuilt
                        ? "onesided: built without CUDA\n"
                        : "usage: onesided [--device cuda] [rounds [plain|threads]]\n");
    return 2;
  }
  onesidedShared *shared = onesidedShare();
  CHECK(tuttiGetUniqueId(&shared->id));
  if (gpu && argc > at + 1 && strcmp(argv[at + 1], "threads") == 0) {
    runThreads(shared, rounds);
    return 0;
  }
  pid_t child = fork(); /* which an id alone allows */
  Side s = {.rank = child == 0};
  if (gpu)
    onesidedGpu(s.rank, shared, rounds);
  else
    run(&s, &shared->id, rounds, argc > 2 && strcmp(argv[2], "plain") == 0);
  if (child > 0) waitpid(child, &status, 0);
  return status ? 1 : 0;
}

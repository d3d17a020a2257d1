/* Times collectives of one library: the mean time of one call over many, maximum over ranks, after
 * a warm-up. One JSON line for each size. Linked once with each library that is compared; started
 * with others at the same time they take turns, size by size (baton.h).
 *
 *   mpirun -n N bench_peer_LIBRARY COLLECTIVE SECONDS SIZE...
 * COLLECTIVE: one of `names`. SECONDS: time spent on each size. Sizes in bytes, of the larger
 * buffer; where it is made of ranks' blocks, these have at least one element. A barrier has the
 * size 0. */
#include "peer.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "baton.h"

#define ALIGNMENT      4096
#define WARM_UP        5
#define MIN_ITERATIONS 3
#define MAX_ITERATIONS 100000
#define SETTLE_US      100000 /* for what a library goes on with after its init, as threads do */

static const char *const names[peerCollectives] = {"all_reduce",     "broadcast", "all_gather",
                                                   "reduce_scatter", "alltoall",  "reduce",
                                                   "gather",         "scatter",   "barrier"};

typedef struct {
  peerCollective collective;
  float *send, *recv;
  size_t count;
} job;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double timeCalls(const job *j, int iterations) {
  peerMax(0);
  double begin = now();
  for (int i = 0; i < iterations; i++)
    peerCall(j->collective, j->send, j->recv, j->count);
  return peerMax((now() - begin) / iterations);
}

/* Separate buffers whose pages are all in memory before anything is timed. */
static float *touchedBuffer(size_t bytes) {
  float *buffer = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  if (!buffer) {
    fprintf(stderr, "no memory for a buffer of %zu bytes\n", bytes);
    exit(1);
  }
  for (size_t i = 0; i < bytes / sizeof *buffer; i++)
    buffer[i] = 0;
  return buffer;
}

static void timeSize(job *j, size_t bytes, double seconds, int rank, int nranks) {
  size_t all = bytes / sizeof(float);
  bool whole = j->collective == peerAllReduce || j->collective == peerBroadcast ||
               j->collective == peerReduce;
  j->count = whole ? all : all / (size_t)nranks;
  if (j->count == 0) j->count = 1;
  timeCalls(j, WARM_UP);
  double once = timeCalls(j, MIN_ITERATIONS), wanted = seconds / once;
  int iterations = wanted < MIN_ITERATIONS   ? MIN_ITERATIONS
                   : wanted > MAX_ITERATIONS ? MAX_ITERATIONS
                                             : (int)wanted;
  double mean = timeCalls(j, iterations);
  if (rank != 0) return;
  printf("{\"collective\": \"%s\", \"size\": %zu, \"iterations\": %d, \"time_us\": %.4f}\n",
         names[j->collective], bytes, iterations, mean * 1e6);
  fflush(stdout);
}

int peerPlace(const char *openMpi, const char *mpich) {
  const char *text = getenv(openMpi);
  if (!text) text = getenv(mpich);
  if (text) return atoi(text);
  fprintf(stderr, "%s is not set: start this program with mpirun\n", openMpi);
  exit(2);
}

/* peerCollectives if there is none of this name. */
static peerCollective collectiveOf(const char *name) {
  for (int i = 0; i < peerCollectives; i++)
    if (strcmp(name, names[i]) == 0) return (peerCollective)i;
  return peerCollectives;
}

static void usage(const char *program) {
  fprintf(stderr, "usage: %s COLLECTIVE SECONDS SIZE..., of which", program);
  for (int i = 0; i < peerCollectives; i++)
    fprintf(stderr, " %s", names[i]);
  fprintf(stderr, "\n");
}

int main(int argc, char **argv) {
  peerCollective collective = argc > 3 ? collectiveOf(argv[1]) : peerCollectives;
  if (collective == peerCollectives) {
    usage(argv[0]);
    return 2;
  }
  int rank, nranks;
  peerStart(&rank, &nranks);
  usleep(SETTLE_US);
  size_t largest = sizeof(float) * (size_t)nranks;
  for (int i = 3; i < argc; i++) {
    size_t bytes = strtoull(argv[i], NULL, 10);
    if (bytes > largest) largest = bytes;
  }
  job j = {
      .collective = collective, .send = touchedBuffer(largest), .recv = touchedBuffer(largest)};
  batonJoin(nranks);
  for (int i = 3; i < argc; i++) {
    batonTake();
    timeSize(&j, strtoull(argv[i], NULL, 10), atof(argv[2]), rank, nranks);
    batonPass();
  }
  batonLeave();
  free(j.send);
  free(j.recv);
  peerStop();
  return 0;
}

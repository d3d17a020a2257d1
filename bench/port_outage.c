/* Sums over two ports of the software HCA while one of them is down now and then.
 *
 *     bench_port_outage [--device D] [--outages N] [--down-ms T] [--up-ms T] [--size B] [--calls N]
 *
 * Two ranks, threads of this process, sum without end, in batches of calls, and compare each result
 * with what it must be. Meanwhile the ports of the first device take turns to be down, and after
 * each outage both are up for a while; with --outages 0 none is, for the configuration to take a
 * device away. The environment says the rest (bench/port_outage). Prints a JSON line for each span
 * of time: which, at what time, how fast sums went in it, and the longest batch that ended in it,
 * as calls wait for messages to find another way; and one of all. The exit code is 1 if anything
 * was wrong or a call failed. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/os.h"
#include "control.h"
#include "perf.h"
#include "tool.h"

enum { RANKS = 2, MOST_CALLS = 16, SETS = 2, MOST_SPANS = 4096, SPAN_MS = 250 };

typedef struct {
  uint64_t begin, end; /* ns */
} Span;

static int device = tuttiDeviceHost, outages = 20, downMs = 2000, upMs = 2000, calls = 4;
static size_t bytes = 4 << 20;

static pthread_barrier_t both;
static tuttiAtomic32 stop, failed, ready;
static bool goOn; /* by rank 0, between two barriers */
static tuttiAtomic64 wrong;
static tuttiUniqueId id;
/* Rank 0's, read once the ranks have ended. */
static Span *batches;
static size_t nbatches, room;

/* ---- the ranks ------------------------------------------------------------------------------- */

typedef struct {
  int rank;
  perfDevice device;
  tuttiComm_t comm;
  perfPattern patterns[SETS][MOST_CALLS];
  void *in[SETS][MOST_CALLS], *out[MOST_CALLS];
  void *host; /* what goes to a GPU or comes from it */
  pthread_t thread;
} Rank;

static bool succeeded(const Rank *r, tuttiResult_t result) {
  if (result == tuttiSuccess) return true;
  fprintf(stderr, "rank %d: %s\n", r->rank, tuttiGetLastError(r->comm));
  return false;
}

/* Two sets of inputs: a result that stays from the batch before is wrong. */
static bool prepare(Rank *r) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.device = device;
  if (!perfDeviceOpen(&r->device, (tuttiDevice_t)device, r->rank)) return false;
  if (!succeeded(r, tuttiCommInitRankConfig(&r->comm, RANKS, id, r->rank, &config))) return false;
  r->host = malloc(bytes);
  for (int k = 0; k < calls; k++) {
    r->out[k] = perfDeviceAlloc(&r->device, bytes);
    for (int s = 0; s < SETS; s++) {
      r->in[s][k] = perfDeviceAlloc(&r->device, bytes);
      if (!r->host || !r->in[s][k] || !r->out[k]) return false;
      perfPattern *p = &r->patterns[s][k];
      perfPatternInit(p, tuttiFloat32, tuttiSum, true, RANKS, (uint64_t)(SETS * k + s));
      perfPatternFill(p, r->rank, 0, bytes / sizeof(float), r->host);
      if (!perfDeviceCopy(&r->device, r->in[s][k], r->host, bytes)) return false;
    }
  }
  return true;
}

static bool sum(const Rank *r, int set) {
  for (int k = 0; k < calls; k++)
    if (!succeeded(r, tuttiAllReduce(r->in[set][k], r->out[k], bytes / sizeof(float), tuttiFloat32,
                                     tuttiSum, r->comm, r->device.stream)))
      return false;
  return perfDeviceSync(&r->device);
}

static bool compare(const Rank *r, int set) {
  for (int k = 0; k < calls; k++) {
    if (!perfDeviceCopy(&r->device, r->host, r->out[k], bytes)) return false;
    perfMismatch m =
        perfPatternCompare(&r->patterns[set][k], PERF_REDUCED, 0, bytes / sizeof(float), r->host);
    if (m.wrong > 0) fprintf(stderr, "rank %d: element %zu is wrong\n", r->rank, m.first);
    tuttiFetchAddAcqRel(&wrong, m.wrong);
  }
  return true;
}

static void keep(uint64_t begin, uint64_t end) {
  if (nbatches == room) {
    room = room ? 2 * room : 1024;
    batches = realloc(batches, room * sizeof *batches);
    if (!batches) abort();
  }
  batches[nbatches++] = (Span){begin, end};
}

static void *runRank(void *argument) {
  Rank *r = argument;
  bool good = prepare(r);
  for (int set = 0; good; set = 1 - set) {
    pthread_barrier_wait(&both);
    if (r->rank == 0) goOn = tuttiLoadAcquire32(&stop) == 0;
    pthread_barrier_wait(&both);
    if (!goOn) break;
    uint64_t begin = tuttiNow();
    good = sum(r, set);
    if (r->rank == 0) keep(begin, tuttiNow());
    good = good && compare(r, set);
    tuttiStoreRelease32(&ready, 1);
  }
  if (good) good = succeeded(r, tuttiCommDestroy(r->comm));
  if (good) return NULL;
  tuttiStoreRelease32(&failed, 1); /* the other one waits at the barrier */
  return NULL;
}

/* ---- the outages ----------------------------------------------------------------------------- */

static Span spans[MOST_SPANS];
static const char *names[MOST_SPANS];
static int ports[MOST_SPANS], nspans;

/* Lets so much time pass, as one span. */
static void pass(const char *name, int port, int ms) {
  uint64_t begin = tuttiNow(), end = begin + (uint64_t)ms * 1000000;
  while (tuttiNow() < end && !tuttiLoadAcquire32(&failed))
    usleep(1000);
  if (nspans == MOST_SPANS) return;
  names[nspans] = name;
  ports[nspans] = port;
  spans[nspans++] = (Span){begin, tuttiNow()};
}

static void takeTurns(void) {
  if (outages > 0) pass("before", 0, upMs);
  for (int i = 0; i < outages && !tuttiLoadAcquire32(&failed); i++) {
    int port = 1 + i % 2;
    fprintf(stderr, "outage %d of %d\n", i + 1, outages);
    softHcaPort(0, port, 0);
    pass("down", port, downMs);
    softHcaPort(0, port, 1);
    pass("after", port, upMs);
  }
  for (int i = 0; outages == 0 && i < (downMs + upMs) / SPAN_MS; i++)
    pass("span", 0, SPAN_MS);
}

/* Of the batches that end within it, in ms. */
static double longestOf(Span s) {
  uint64_t longest = 0;
  for (size_t k = 0; k < nbatches; k++) {
    uint64_t ns = batches[k].end - batches[k].begin;
    if (batches[k].end > s.begin && batches[k].end <= s.end && ns > longest) longest = ns;
  }
  return (double)longest / 1e6;
}

/* Speed is that of the batches that lie within it, by the time that they took. */
static void tell(int i, uint64_t zero) {
  const Span *s = &spans[i];
  double took = 0, done = 0;
  for (size_t k = 0; k < nbatches; k++) {
    if (batches[k].begin < s->begin || batches[k].end > s->end) continue;
    took += (double)(batches[k].end - batches[k].begin);
    done += (double)bytes * calls;
  }
  printf("{\"span\":\"%s\",\"port\":%d,\"at_ms\":%.0f,\"gbps\":%.4f,\"longest_ms\":%.1f}\n",
         names[i], ports[i], (double)(s->begin - zero) / 1e6, took > 0 ? done / took : 0,
         longestOf(*s));
}

/* ---- the program ------------------------------------------------------------------------------
 */

static int parse(int argc, char **argv) {
  static const char *const words[] = {
      [tuttiDeviceAuto] = "auto", [tuttiDeviceHost] = "host", [tuttiDeviceCuda] = "cuda"};
  const tuttiOption options[] = {
      {"device", "D", "auto, host (default) or cuda", .number = &device, .words = words,
       .nwords = 3},
      {"outages", "N", "20", .number = &outages, .max = 1000},
      {"down-ms", "T", "2000", .number = &downMs, .min = 1, .max = 600000},
      {"up-ms", "T", "2000", .number = &upMs, .min = 1, .max = 600000},
      {"size", "B", "4M", .size = &bytes},
      {"calls", "N", "of a batch (4)", .number = &calls, .min = 1, .max = MOST_CALLS},
  };
  return tuttiParseOptions("bench_port_outage", "Usage: bench_port_outage [OPTION]...\n", options,
                           sizeof options / sizeof *options, "", argc, argv);
}

int main(int argc, char **argv) {
  static Rank ranks[RANKS];
  int code = parse(argc, argv);
  if (code >= 0) return code;
  if (tuttiGetUniqueId(&id) != tuttiSuccess) {
    fprintf(stderr, "%s\n", tuttiGetLastError(NULL));
    return TUTTI_EXIT_FAILED;
  }
  pthread_barrier_init(&both, NULL, RANKS);
  for (int r = 0; r < RANKS; r++) {
    ranks[r].rank = r;
    pthread_create(&ranks[r].thread, NULL, runRank, &ranks[r]);
  }
  while (!tuttiLoadAcquire32(&ready) && !tuttiLoadAcquire32(&failed))
    usleep(1000);
  takeTurns();
  tuttiStoreRelease32(&stop, 1);
  for (int r = 0; r < RANKS && !tuttiLoadAcquire32(&failed); r++)
    pthread_join(ranks[r].thread, NULL);
  bool bad = tuttiLoadAcquire32(&failed) != 0;
  for (int i = 0; i < nspans && !bad; i++)
    tell(i, spans[0].begin);
  printf("{\"calls\":%zu,\"wrong\":%llu,\"failed\":%s,\"longest_ms\":%.1f}\n",
         nbatches * (size_t)calls * RANKS, (unsigned long long)tuttiLoadAcquire(&wrong),
         bad ? "true" : "false", bad ? 0 : longestOf((Span){0, UINT64_MAX}));
  fflush(stdout);
  _exit(bad || tuttiLoadAcquire(&wrong) != 0); /* a rank may wait for the other */
}

/* Runs a schedule on simulated ranks, on any number of them and without any device: every rank
 * advances as its FIFOs allow. Checks what no machine at hand could: data, deadlock, bytes.
 *
 * Data are hashes of rank and index, reduced by a wrapping sum. Messages that an executor may leave
 * where they are (fifo.h, direct) are left there, so a writer that changes them too early shows. */
#ifndef TUTTI_COLLECTIVES_SIMULATOR_H_
#define TUTTI_COLLECTIVES_SIMULATOR_H_

#include <stdbool.h>
#include <stdint.h>

#include "collectives/graph.h"
#include "collectives/schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  int coll, algo, root;
  bool shared, twoShot, inPlace;
  uint64_t count, chunk;
  uint64_t begin, part; /* the channel's part of [0, count); part 0: all */
  int depth;            /* FIFO depth; executors use TUTTI_FIFO_DEPTH */
  int channel;          /* of the graph */
  const tuttiGraph *graph;
  uint64_t seed; /* order in which ranks advance, and their data */
  /* NULL, or changes steps before they run: for tests that the simulator sees a broken schedule. */
  void (*edit)(const tuttiSchedule *s, uint64_t k, tuttiStep *step);
  /* NULL, or told of each message; of a shared one `to` is `from`. */
  void (*sent)(void *context, int from, int to, uint64_t elements);
  void *context;
} tuttiSimulation;

typedef struct {
  bool deadlock;
  int stuckRank; /* a rank that could not go on, and the step it was at */
  uint64_t stuckStep;
  bool wrong; /* some rank ended with other bytes than the definition gives, or broke a rule */
  const char *fault; /* what is wrong first, a constant text; "" if nothing */
  int wrongRank;
  uint64_t wrongElement; /* of recvbuff; for a broken rule the number of the step */
  uint64_t wireElements; /* moved over all connections; a shared message counts once */
  uint64_t maxSent,
      maxReceived; /* elements, most of any one rank; shared: received by each reader */
  uint64_t messages,
      longestChain; /* all messages; most messages of which each had to wait for the one before */
} tuttiSimulationResult;

/* False only when memory ran out. */
bool tuttiSimulate(const tuttiSimulation *sim, tuttiSimulationResult *result);

/* What an algorithm moves over all connections, in elements, for `count` as in the signature; a
 * shared message counts once. The simulator's wireElements must equal it. perHost: of a grid, else
 * 1. */
uint64_t tuttiScheduleWireElements(int coll, int algo, bool shared, bool twoShot, int nranks,
                                   int perHost, uint64_t count);

/* Places `rank` in the graph: fills rank, nranks, depth (TUTTI_FIFO_DEPTH) and what tuttiGraphPlace
 * does. coll, algo and root must be set; the rest is the caller's. */
void tuttiScheduleSetup(tuttiSchedule *s, const tuttiGraph *graph, int channel, int rank);

#ifdef __cplusplus
}
#endif

#endif

/* Runs a schedule on simulated ranks, on any number of them and without any device: every rank
 * advances as its FIFOs allow. Checks what no machine at hand could: data, deadlock, bytes. */
#ifndef TUTTI_COLLECTIVES_SIMULATOR_H_
#define TUTTI_COLLECTIVES_SIMULATOR_H_

#include <stdbool.h>
#include <stdint.h>

#include "collectives/schedule.h"
#include "topology/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  int coll, algo, root;
  bool shared, twoShot, inPlace;
  uint64_t count, chunk;
  int depth;   /* FIFO depth; executors use TUTTI_FIFO_DEPTH */
  int channel; /* of the graph */
  const tuttiGraph *graph;
  uint64_t seed; /* order in which ranks advance, and their data */
} tuttiSimulation;

typedef struct {
  bool deadlock;
  int stuckRank; /* a rank that could not go on, and the step it was at */
  uint64_t stuckStep;
  bool wrong; /* some rank ended with other bytes than the definition gives */
  int wrongRank;
  uint64_t wrongElement;
  uint64_t wireElements; /* moved over all connections; a shared message counts once */
  uint64_t maxSent,
      maxReceived; /* elements, most of any one rank; shared: received by each reader */
  uint64_t messages,
      longestChain; /* all messages; length of the longest dependency chain of messages */
} tuttiSimulationResult;

/* False only when memory ran out. */
bool tuttiSimulate(const tuttiSimulation *sim, tuttiSimulationResult *result);

/* Bytes-on-the-wire bound of an algorithm, in elements: what wireElements must equal. */
uint64_t tuttiScheduleWireElements(int coll, int algo, bool shared, bool twoShot, int nranks,
                                   uint64_t count);

/* Sets up what the planner and the simulator both need: rank's schedule over the graph. */
void tuttiScheduleSetup(tuttiSchedule *s, const tuttiGraph *graph, int channel, int rank);

#ifdef __cplusplus
}
#endif

#endif

/* The one planner: from an operation to all that an executor needs (tuttiPlan), for schedules by a
 * cost model over what the transports say of the communicator's paths, for GPUs that reach each
 * other by measured sizes (planner_allpairs.c). Pure: the same answer on every rank. */
#ifndef TUTTI_COLLECTIVES_PLANNER_H_
#define TUTTI_COLLECTIVES_PLANNER_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "collectives/allpairs.h"
#include "collectives/schedule.h"
#include "collectives/selection.h"
#include "tutti.h"

__BEGIN_DECLS

/* What the cost model knows of a communicator; equal on all ranks. */
typedef struct {
  int nranks, nhosts, maxRanksPerHost;
  int minChannels, maxChannels;   /* after settings and config; max is what connections exist for */
  uint32_t algoMask, protoMask;   /* allowed at all: bits 1 << tuttiAlgo.. */
  tuttiSelection algos, protos;   /* of these for each collective; 0: all */
  int sharedFifos;                /* all pairs share memory: shared FIFOs exist */
  int directReads;                /* all pairs can dereference each other's memory (threads) */
  int fetches;                    /* all pairs can copy out of each other's memory (processes), */
  float fetchUs, fetchKibUs;      /*   which takes so long, and so long for each KiB; */
  float storeKibUs;               /*   one stored past the caches takes so long; 0: not known */
  float intraLatencyUs, intraGBs; /* worst path inside a host */
  float interLatencyUs, interGBs; /* worst path between hosts; 0 with one host */
  int oneFlow;                    /* there one connection has all of interGBs, at any rate */
  int treeDepth;                  /* of channel 0's tree */
  int grid;                       /* several hosts with as many ranks each, more than one */
  int rails;                      /* that rings and trees take by turns; 0: each has them all */
  size_t slotBytes;
  uint64_t cacheBytes; /* of the last cache of the ranks' cores; 0: not known */
  int oversubscribed;  /* some host has more ranks than cores */
  int loopback;        /* ranks of one host that only reach each other over the network */
  int gpu;             /* thread blocks do the work, one for each channel */
  int allPairs;        /* GPUs that all store into each other's memory: see planner_allpairs.c; */
  int staged;          /*   or, all of one host, into host memory */
  int maxBlocks;       /* most thread blocks wanted of a kernel between all pairs; 0: any number */
  int sharers;         /* most ranks that share one of them; 0 as 1 */
  int widest;          /* most ranks that Direct may connect at all; 0: any number */
  int deterministic;   /* reduce with Direct, which has one order: that of the ranks */
} tuttiPlanInput;

/* What carries a plan out. */
typedef enum {
  tuttiKernelSchedule = 0, /* step by step: the CPU's executor, the simulator, or the ring/tree
                              kernel, a channel each */
  tuttiKernelSlots = 1,    /* between all pairs of GPUs, through slots */
  tuttiKernelRegions = 2,  /*   the same with regions of lines that carry their flags */
} tuttiKernel;

/* All that an executor, on any device, need be told; it decides nothing. What a group's message
 * gets depends on its count and type alone, as its two sides know of no more. */
typedef struct {
  uint64_t chunk;             /* elements: most in one message of a schedule */
  float timeUs;               /* what the model expects */
  uint16_t nchannels;         /* 1 but for schedules; 0: no plan */
  uint16_t nblocks, nthreads; /* of a kernel between all pairs; 0 for schedules */
  uint8_t algo, proto;
  uint8_t kernel; /* tuttiKernel */
  uint8_t twoShot;
  uint8_t fetch;   /* readers copy large messages straight out of the writers' memory */
  uint8_t oneTree; /* all channels use the tree of channel 0, so that all elements are added in one
                      order whatever the channels: where Tree alone may reduce */
  uint8_t streams; /* the result is too large for the caches: it is stored past them */
} tuttiPlan;

extern const char *const tuttiAlgoNames[tuttiAlgoCount];
extern const char *const tuttiProtoNames[tuttiProtoCount];

/* Chooses for one operation, SendRecv included; its number and root do not matter. Where the
 * allowed algorithms have no schedule for the collective the best existing one is taken (and said
 * at INFO once): a setting never breaks a call. Sets all of *plan. */
void tuttiPlanChoose(const tuttiPlanInput *in, const tuttiSignature *op, tuttiPlan *plan);
/* The algorithms that can be had for `coll`, as a mask: where several ways are chosen from, these.
 */
uint32_t tuttiPlanAlgos(const tuttiPlanInput *in, int coll);
/* Doubling is a candidate for `coll` where others are allowed, too. It is not with three ranks or
 * fewer, where no message has more than one block; nor for what is only copied in shared memory,
 * where a message more costs little beside a round more; nor where ranks share cores, as all their
 * messages count, of which it has n log n, and each round waits until all ranks have had their
 * turn. But over the loopback network of such ranks it is one where other ways have n^2 messages,
 * or with a root, where it has no more of them than any, and the root fewer; and in shared memory
 * with a root, but for a broadcast, which is one store there. */
bool tuttiPlanDoubles(const tuttiPlanInput *in, int coll);
/* Its part for in->allPairs: form, protocol, kernel, thread blocks and threads, in *plan, of which
 * the rest is set. */
void tuttiPlanAllPairs(const tuttiPlanInput *in, const tuttiSignature *op, tuttiPlan *plan);

/* Whether a plan for `coll` is carried out between all pairs, by an exchange. */
static inline bool tuttiPlanExchanges(const tuttiPlan *plan, int coll) {
  return plan->kernel != tuttiKernelSchedule && coll != tuttiCollSendRecv;
}
/* Then who sends what to whom: of s, which is as the plan says and has its root, for elements of
 * `type`. */
void tuttiPlanExchange(const tuttiSchedule *s, int type, tuttiAllPairs *exchange);

/* The model's time of a candidate, in us; INFINITY if it cannot run. For tests and `tutti topo`. */
float tuttiPlanTime(const tuttiPlanInput *in, const tuttiSignature *op, int algo, int proto,
                    int nchannels, int twoShot);

/* Channel c's part [*begin, *begin + *part) of `count` elements over n channels; multiples of 128
 * bytes of `type` but for the last. */
void tuttiPlanPart(uint64_t count, int type, int c, int n, uint64_t *begin, uint64_t *part);

__END_DECLS

#endif

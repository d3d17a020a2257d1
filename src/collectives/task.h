/* A task: one operation's work on one channel of one communicator, with everything an executor
 * needs. Made from the plan by the communicator, run by a device. */
#ifndef TUTTI_COLLECTIVES_TASK_H_
#define TUTTI_COLLECTIVES_TASK_H_

#include <stdbool.h>
#include <sys/cdefs.h>

#include "base/atomic.h"
#include "collectives/planner.h"
#include "collectives/schedule.h"
#include "transport/transport.h"
#include "tutti.h"

__BEGIN_DECLS

struct tuttiProxy;

/* A connection that a task waits for, and since when (tuttiNow() clock). */
typedef struct {
  const tuttiConn *conn;
  uint64_t since;
} tuttiAwaited;
#define TUTTI_AWAITED 8 /* that are told of */

/* Stamps of a run that takes hardly longer than to look at the clock does: they are taken when it
 * first asks for messages and while it waits, where that costs least. In ticks (base/ticks.h). */
typedef struct {
  tuttiAtomic64 *first; /* where the first goes; NULL: nobody asks */
  uint64_t last;        /* 0: it has asked for none */
} tuttiIdle;

/* What an executor asks of the communicator while it waits. Calls up the layers go through here. */
typedef struct tuttiTaskContext {
  void *comm;
  const tuttiAtomic32 *failed; /* nonzero: stop now */
  /* The connections so far, by direction, shared and channel: rows by peer, or NULL. */
  tuttiConn **(*conns)[2][TUTTI_CHANNELS];
  /* The connection of (peer, channel, direction, shared), opened on first use. peer -1: the send
   * endpoint of the shared FIFO, the last in its row. */
  tuttiResult_t (*conn)(void *comm, int peer, int channel, tuttiDirection direction, bool shared,
                        tuttiConn **conn);
  /* A message of another operation than this task's came from `peer`. Returns the failure. */
  tuttiResult_t (*mismatch)(void *comm, int peer, const tuttiSignature *mine,
                            const tuttiSignature *theirs);
  /* Called about every 100 ms while a task makes no progress, `waitedMs` long so far, on `peer`
   * (-1: unknown). Looks for the reason; a failure ends the wait (deadline passed, peers disagree).
   * TUTTI_DISAGREES: the peer's message is of another operation, which only the peer can name. */
#define TUTTI_DISAGREES UINT64_MAX
  tuttiResult_t (*stalled)(void *comm, const tuttiSignature *mine, int peer, uint64_t waitedMs);
  /* Called before: the connections that the communicator's tasks wait for, some of them at least.
   */
  void (*waits)(void *comm, const tuttiAwaited *list, int n);
  /* Called about every 100 ms while a kernel waits for these signals of one-sided operations, of
   * which `come` are there, or, of 0 signals, while a put waits for room. A failure, of the
   * communicator, ends the wait (deadline passed). */
  tuttiResult_t (*signalsLate)(void *comm, const tuttiWaitSignalDesc_t *awaited, uint32_t come,
                               uint64_t waitedMs);
  /* The failure that `failed` announced. */
  tuttiResult_t (*failure)(void *comm);
  /* All-gathers `bytes` of each rank, in plain host memory: all[rank * bytes ...]. For device calls
   * that every rank makes; not for executors. */
  tuttiResult_t (*exchange)(void *comm, void *all, size_t bytes);
  struct tuttiProxy *proxy; /* NULL until a connection needs one */
  void *device;             /* the device's own state of this communicator, or NULL */
  const tuttiPlanInput *plan;
  tuttiIdle *idle; /* of a run that is one task; written by the executor of the host. Or NULL */
  uint32_t spins;  /* idle passes of a waiter before it yields its core */
  uint32_t napUs;  /* how long it naps at least, when it has yielded in vain; the proxies of a GPU
                      between two looks at what its kernels do, 0: not at all */
} tuttiTaskContext;

/* A step's connections, first those that it receives from. */
typedef struct {
  tuttiConn **conns;
  int nrecv, nsend;
} tuttiStepConns;

/* What a schedule says first; kept for operations that come again. The executor keeps there what
 * connections these steps have, which stay where they are as long as the communicator lives. Room
 * for what 16 ranks do that all talk to each other. */
#define TUTTI_KNOWN_STEPS 32
#define TUTTI_KNOWN_CONNS 48
typedef struct {
  uint64_t steps; /* of the schedule */
  size_t scratch; /* bytes that they need of scratch memory */
  tuttiStep first[TUTTI_KNOWN_STEPS];
  uint64_t found; /* so many of the next are known, which have so many connections */
  int nconns;
  tuttiStepConns conns[TUTTI_KNOWN_STEPS];
  tuttiConn *pool[TUTTI_KNOWN_CONNS];
} tuttiKnownSteps;

/* Copied for each operation: no more than the 256 bytes that compilers copy without a call. */
typedef struct tuttiTask {
  tuttiSchedule schedule;
  tuttiSignature signature;
  const void *sendbuff;
  void *recvbuff;
  tuttiScalar scalar;
  const void *scalarAt; /* on the device; NULL: `scalar` */
  int divide;           /* tuttiAvg: nranks */
  int channel;
  int round; /* of a group's messages on GPUs: how many this pair has had before in this direction
              */
  uint8_t type; /* tuttiDataType_t */
  uint8_t op;   /* tuttiRedOp_t; tuttiSum for PreMulSum */
  bool premul, inPlace;
  tuttiPlan plan; /* a copy: what the communicator keeps may be replaced within a group */
  const tuttiAllPairs *exchange; /* of a collective between all pairs: who sends what to whom; lives
                                    as long as the set of tasks */
  tuttiKnownSteps *known;        /* or NULL: ask the schedule; lives as long as the set of tasks */
  tuttiStream_t stream;
  const tuttiTaskContext *context;
  struct tuttiTask
      *next; /* runs after this one has ended (same communicator and channel), or NULL */
} tuttiTask;

/* The tasks of one call or group. */
typedef struct {
  tuttiTask *tasks;  /* in order of the calls, not linked by `next` in this order */
  tuttiTask **heads; /* of the chains that `next` makes of them */
  tuttiAllPairs *exchanges;
  int ntasks, nheads, nexchanges;
} tuttiTaskSet;

__END_DECLS

#endif

/* The communicator, as the files of src/comm share it. Nobody below this layer includes it. */
#ifndef TUTTI_COMM_COMM_H_
#define TUTTI_COMM_COMM_H_

#include <pthread.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/mem.h"
#include "bootstrap/bootstrap.h"
#include "collectives/graph.h"
#include "collectives/planner.h"
#include "collectives/signature.h"
#include "device/device.h"
#include "proxy/proxy.h"
#include "transport/transport.h"
#include "watch/watch.h"

/* ---- the operation record (record.c) ----------------------------------------------------------
 * What this rank's last operations were and which have ended. Written by the executing thread at
 * the cost of a few stores, read by the watch at any time: the flight recorder, the hang report and
 * the check for mismatched calls. */

#define TUTTI_RECORD_DEPTH 64u

typedef struct {
  tuttiAtomic64 entry[TUTTI_RECORD_DEPTH][3]; /* a tuttiSignature each */
  tuttiAtomic64 started; /* operations entered so far; number n is at entry[n % DEPTH] */
  tuttiAtomic64 ended;   /* operations done: all below it */
} tuttiRecord;

void tuttiRecordStart(tuttiRecord *r, const tuttiSignature *sig);
void tuttiRecordEnd(tuttiRecord *r); /* everything started has ended */

/* What one rank tells of itself: TUTTI_WATCH_STATE bytes at most. */
#define TUTTI_STATE_SIGS 4
typedef struct {
  uint64_t started, ended;               /* as in the record */
  tuttiSignature last[TUTTI_STATE_SIGS]; /* last[0] is the newest; started of them, at most 4 */
  uint64_t offer;                        /* of the rank's last shrink, see shrink.c; 0: none */
} tuttiRankState;

/* Copies the newest entries; safe against the writer. */
void tuttiRecordState(const tuttiRecord *r, tuttiRankState *out);
/* Checks bytes that came over a socket. */
bool tuttiRankStateParse(const void *bytes, size_t size, tuttiRankState *out);

/* ---- the communicator -------------------------------------------------------------------------*/

#define TUTTI_COMM_NAME 64

/* Options in force: config, else setting, else default. */
typedef struct {
  int blocking;                 /* 0 or 1 */
  int minChannels, maxChannels; /* 0: the planner decides */
  int timeoutMs;                /* 0: none */
  int trafficClass;
  int device;  /* a tuttiDevice_t */
  int ordinal; /* of the CUDA device; -1: the current one */
  char net[16];
  char name[TUTTI_COMM_NAME];
} tuttiOptions;

typedef struct {
  bool used;
  tuttiDataType_t type;
  tuttiScalarResidence_t residence;
  const void *device; /* tuttiScalarDevice: read when the operation runs */
  tuttiScalar scalar;
} tuttiPreMul;

typedef enum {
  tuttiCommStarting = 0, /* init is running */
  tuttiCommUsable = 1,
  tuttiCommFinalizing = 2, /* tuttiCommFinalize has run or runs */
  tuttiCommSuspended = 3,
} tuttiCommState;

#define TUTTI_PREPARED 8u /* kept of a communicator */

/* What all operations of one signature share, whatever their number. */
typedef struct {
  tuttiPlan plan; /* without channels: there is none yet */
  tuttiTask task; /* of channel 0; without number, buffers, stream and scalar, peer and direction */
} tuttiPrepared;

struct tuttiWorker;

typedef struct tuttiCommunicator {
  tuttiComm_t handle;
  int rank, nranks;
  tuttiOptions options;
  tuttiMemAccount memory;

  /* The first failure wins and stays; `failed` is its code. */
  tuttiAtomic32 failed;
  pthread_mutex_t failureLock;
  char failure[TUTTI_ERROR_TEXT];
  /* Trouble on a data connection: often the echo of a death elsewhere, whose cause the watch tells
   * a moment later. It becomes the failure if nothing better has come within a grace period. */
  char suspicion[TUTTI_ERROR_TEXT]; /* under failureLock */
  tuttiResult_t suspicionCode;
  tuttiAtomic64 suspectedAt; /* tuttiNow(); 0: none */

  tuttiBootstrap *bootstrap;
  tuttiWatch *watch;
  tuttiPeer *peers;
  tuttiGraph *graph;
  tuttiWires wires;
  tuttiAtomic32 state; /* tuttiCommState */
  const tuttiDevice *device;
  tuttiTaskHost host;
  tuttiPlanInput plan;
  tuttiPrepared prepared[TUTTI_PREPARED];

  /* Connections by [direction][shared][channel], each an array of nranks + 1 (shared send end at
   * nranks), made on first use. */
  tuttiConn **conns[2][2][TUTTI_CHANNELS];

  tuttiRecord record;
  uint64_t collectives;      /* sequence number of the last one */
  uint64_t *sent, *received; /* [nranks]: messages of each ordered pair */
  uint64_t stallAskAt;       /* ms of waiting at which the next question goes out */
  struct tuttiRegistration *registrations;
  struct tuttiWindow *windows;
  tuttiPreMul *premul; /* [npremul], index = op - tuttiNumOps */
  int npremul;
  uint32_t splits; /* names of split communicators */
  uint8_t shrinks;
  tuttiAtomic64 offer;   /* shrink.c: this rank leads a rendezvous there; 0: none */
  uint64_t *followed;    /* [nranks] the last offer of each that this rank took up */
  tuttiAtomic32 revoked; /* 1: tuttiCommRevoke has returned */
  tuttiAtomic32 aborted; /* 1: tuttiCommAbort holds it until it is freed */

  tuttiAtomic32 busy;         /* id of the thread that is in a collective, or 0 */
  struct tuttiWorker *worker; /* of a non-blocking communicator */
} tuttiCommunicator;

/* ---- handles (handle.c) -----------------------------------------------------------------------
 * A handle is a number, not an address: one that was destroyed is recognized for ever. */

/* Sets c->handle. */
tuttiResult_t tuttiHandleCreate(tuttiCommunicator *c);
/* The communicator of a handle, held until tuttiHandleLeave. `call` names the public function in
 * errors of this thread until it leaves. tuttiInvalidArgument for NULL and dead handles. */
tuttiResult_t tuttiHandleEnter(tuttiComm_t handle, const char *call, tuttiCommunicator **c);
/* The same for a call without a communicator. */
tuttiResult_t tuttiCallEnter(const char *call);
bool tuttiHandleLives(tuttiComm_t handle);
void tuttiHandleLeave(tuttiCommunicator *c);
/* `TUTTI_HELD tuttiCommunicator *c = NULL;` is left where its block ends, if it was entered. */
#define TUTTI_HELD __attribute__((cleanup(tuttiHandleLeaveAt)))
static inline void tuttiHandleLeaveAt(tuttiCommunicator **c) {
  if (*c) tuttiHandleLeave(*c);
}
/* Declares `c` and enters it, or returns the failure. */
#define TUTTI_ENTER(c, handle, call)                                                               \
  TUTTI_HELD tuttiCommunicator *(c) = NULL;                                                        \
  TUTTI_TRY(tuttiHandleEnter(handle, call, &(c)))
#define TUTTI_ENTER_READY(c, handle, call)                                                         \
  TUTTI_ENTER(c, handle, call);                                                                    \
  TUTTI_TRY(tuttiCommReady(c))
/* From now on no call gets in; returns when all that were in have left, but for the caller's own
 * hold. False if another thread is retiring it already. */
bool tuttiHandleRetire(tuttiCommunicator *c);
/* Frees the slot of a handle that was retired or never given out. */
void tuttiHandleFree(tuttiCommunicator *c);

/* ---- failure (failure.c) ----------------------------------------------------------------------*/

/* Makes `code` and this thread's last error the failure of `c`, and tells every other rank. Returns
 * `code`. */
tuttiResult_t tuttiCommFail(tuttiCommunicator *c, tuttiResult_t code);
/* The same for a text that came from elsewhere; `tell` says whether other ranks need to hear it. */
void tuttiCommFailText(tuttiCommunicator *c, tuttiResult_t code, const char *text, bool tell);
/* Tells every other rank that this one aborts, if there is a watch to tell it with. */
void tuttiCommTellAbort(tuttiCommunicator *c);
void tuttiCommSuspect(tuttiCommunicator *c, tuttiResult_t code, const char *text);
/* tuttiSuccess, or the failure, whose text becomes this thread's last error. */
tuttiResult_t tuttiCommFailure(void *comm);
/* Callbacks of executors, as is tuttiCommFailure. */
tuttiResult_t tuttiCommMismatch(void *comm, int peer, const tuttiSignature *mine,
                                const tuttiSignature *theirs);
tuttiResult_t tuttiCommStalled(void *comm, const tuttiSignature *mine, int peer, uint64_t waitedMs);
/* Waits for what(c), at most the timeout, then fails with "`late` within 5 s`why`". If `fails`, a
 * failure of `c` ends it, before or after. */
tuttiResult_t tuttiCommAwait(tuttiCommunicator *c, bool (*what)(tuttiCommunicator *c), bool fails,
                             const char *late, const char *why);
/* Success if operations may start: set up, not failed, not finalized. */
tuttiResult_t tuttiCommReady(const tuttiCommunicator *c);

/* ---- life (init.c, split.c) -------------------------------------------------------------------*/

/* Joins and sets everything up; undoes all of it on failure but the allocation of *c itself. */
tuttiResult_t tuttiCommSetup(tuttiCommunicator *c, const tuttiUniqueId *ids, int nids);
/* A new communicator in state "not set up", with a handle. */
tuttiResult_t tuttiCommNew(int rank, int nranks, const tuttiOptions *options,
                           tuttiCommunicator **out);
/* Frees everything, when the worker has ended; no other thread is inside. This thread's last error
 * stays. */
void tuttiCommFree(tuttiCommunicator *c, bool aborted);
/* Resolves a user's config (may be NULL) over `base` (may be NULL: settings), but for its name. */
tuttiResult_t tuttiOptionsResolve(const tuttiConfig_t *config, const tuttiOptions *base,
                                  tuttiOptions *out);

/* ---- operations (operation.c, group.c) --------------------------------------------------------*/

typedef struct tuttiOp {
  tuttiColl coll;
  const void *sendbuff;
  void *recvbuff;
  uint64_t count;
  tuttiDataType_t type;
  tuttiRedOp_t redop;
  int root; /* SendRecv: the peer */
  tuttiStream_t stream;
  bool sending; /* SendRecv */
  bool inPlace;
  tuttiColl recorded; /* what the signature says: coll, or tuttiCollSplit */
  tuttiPreMul premul; /* of redop at the call: its handle may be gone when the operation runs */
  tuttiCommunicator *comm; /* held by the caller while the operation runs */
  tuttiComm_t handle;      /* what a group keeps until its end, when it may be dead */
} tuttiOp;

/* Marks `c` as in use by this thread; refuses if it is in use by another. Vacate is for the thread
 * that occupies; it may be called more often than needed. */
tuttiResult_t tuttiCommOccupy(tuttiCommunicator *c);
void tuttiCommVacate(tuttiCommunicator *c);
/* What the planner expects of an operation, in us; for the thread that uses the communicator. */
float tuttiOpTime(const tuttiOp *op);
/* Runs operations together, to their end on this rank. */
tuttiResult_t tuttiOpsRun(const tuttiOp *ops, int nops);
/* Runs `op` now, or a copy of it with its group. */
tuttiResult_t tuttiOpSubmit(tuttiOp *op);
/* All-gathers `bytes` of plain host memory over the communicator, on any device, and waits for the
 * end. A collective like any other, for what ranks must tell each other in a split or the like. */
tuttiResult_t tuttiCommExchange(void *comm, void *all, size_t bytes);

/* Something that takes long and must not wait for its likes: an init or a split. Within a group
 * each gets a thread at tuttiGroupEnd, but jobs that use one communicator follow each other. */
typedef struct tuttiJob {
  tuttiResult_t (*run)(struct tuttiJob *job);
  void (*discard)(struct tuttiJob *job); /* frees it, run or not; NULL: tuttiFree does */
  tuttiComm_t uses;                      /* NULL: none */
  struct tuttiJob *next;
  struct tuttiJob *then; /* the next one on the same thread */
  bool leads;            /* is not the `then` of any */
  pthread_t thread;
  bool started;
  tuttiResult_t result;
  char text[TUTTI_ERROR_TEXT];
} tuttiJob;

/* Runs the job now, or queues it for the end of the group; frees it in the end. */
tuttiResult_t tuttiJobSubmit(tuttiJob *job);
/* The end of a public call that leads to a job: submits a copy of the `bytes` that begin with *job,
 * or lets the group fail with what the checks said. */
tuttiResult_t tuttiJobLaunch(tuttiResult_t checked, const tuttiJob *job, size_t bytes);
/* Makes this thread's outermost tuttiGroupEnd fail with `code` and this thread's last error. */
void tuttiGroupFail(tuttiResult_t code);
/* Opens a level of this thread's group. */
void tuttiGroupOpen(void);
/* Ends one level; if it was the outermost, runs what was collected, and returns the first failure.
 * tuttiInvalidUsage if none is open. */
tuttiResult_t tuttiGroupRun(void);
/* The same, but nothing runs: *us is what the planner expects of the operations, in us. It is set
 * only where the outermost level ends, and on success. */
tuttiResult_t tuttiGroupExpect(float *us);

/* ---- non-blocking communicators (worker.c) ----------------------------------------------------*/

/* Starts the worker, whose first work is begin(argument); it has not run after a failure. */
tuttiResult_t tuttiWorkerStart(tuttiCommunicator *c, void (*begin)(void *), void *argument);
/* Queues copies of operations, which run together, after all that were queued before. */
tuttiResult_t tuttiWorkerQueue(tuttiCommunicator *c, const tuttiOp *ops, int nops);
bool tuttiWorkerIdle(tuttiCommunicator *c);
/* Waits until it is, the communicator has failed or the timeout has passed. */
tuttiResult_t tuttiWorkerAwait(tuttiCommunicator *c);
void tuttiWorkerStop(tuttiCommunicator *c);

#endif

/* The communicator, as the files of src/comm and src/api share it. Nobody below these includes it.
 */
#ifndef TUTTI_COMM_COMMUNICATOR_H_
#define TUTTI_COMM_COMMUNICATOR_H_

#include <pthread.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/mem.h"
#include "bootstrap/bootstrap.h"
#include "collectives/signature.h"
#include "comm/crowd.h"
#include "comm/options.h"
#include "comm/record.h"
#include "device/device.h"
#include "proxy/proxy.h"
#include "ras/source.h"
#include "transport/transport.h"
#include "watch/watch.h"
#include "wireup/wireup.h"

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
  tuttiAllPairs exchange; /* where tuttiPlanExchanges says so */
  tuttiKnownSteps known;  /* of channel 0; without steps: not kept */
} tuttiPrepared;

struct tuttiWorker;
struct tuttiBirth;

/* A rank that has died. */
typedef struct tuttiDeath {
  struct tuttiDeath *next;
  int rank;
  char text[TUTTI_ERROR_TEXT];
} tuttiDeath;

/* What those who ask are told besides the record: comm/facts.c. */
typedef struct {
  tuttiRasSource source;
  uint64_t key;      /* of its unique id */
  tuttiAtomic32 met; /* 1: its ranks have met; TUTTI_PATHS_KNOWN: and the paths are known */
#define TUTTI_PATHS_KNOWN 2
  pthread_mutex_t lock;                       /* guards what follows but for the last two */
  uint64_t started, startedSince, phaseSince; /* since when record and life stand where they do */
  int phase;
  /* What the executor waits for. */
  uint64_t waitsAt; /* when that was told; 0: never */
  uint64_t waitsOf; /* operations started then */
  tuttiSignature in;
  uint32_t nwaits;
  uint64_t since[TUTTI_FACTS_WAITS];
  tuttiWaitFacts waits[TUTTI_FACTS_WAITS];
  /* What a one-sided wait is for. */
  uint64_t signalsAt; /* when that was told; 0: never, or it is over */
  tuttiSignalFacts signals;
  tuttiAtomic64 stalls;
  bool hangTold; /* of the executor's thread */
} tuttiTold;

/* Waits of one kind look now and then whether a rank that they wait for has left. By the clock:
 * there may be several, on several streams. */
typedef struct {
  uint64_t next;   /* no look before */
  int seen;        /* 1 + a rank that has, and may have said why; 0: none */
  uint64_t seenAt; /* when that was found */
} tuttiLeftLook;

typedef struct tuttiCommunicator {
  tuttiComm_t handle;
  int rank, nranks;
  tuttiOptions options;
  tuttiMemAccount memory;

  /* The first failure wins and stays; `failed` is its code. */
  tuttiAtomic32 failed;
  /* It failed because a rank, this or another, has ended it by a call; or that is suspected. */
  bool ended, suspectsEnd;
  pthread_mutex_t failureLock;
  char failure[TUTTI_ERROR_TEXT];
  /* Trouble on a data connection: often the echo of a death elsewhere, whose cause the watch tells
   * a moment later. It becomes the failure if nothing better has come within a grace period. */
  char suspicion[TUTTI_ERROR_TEXT]; /* under failureLock */
  tuttiResult_t suspicionCode;
  tuttiAtomic64 suspectedAt; /* tuttiNow(); 0: none */

  tuttiDeath *deaths;        /* see comm/deaths.c, whose lock guards both */
  struct tuttiBirth *births; /* communicators that are being made of this one */

  tuttiBootstrap *bootstrap;
  tuttiWatch *watch;
  tuttiWireup wireup;
  tuttiCommView view;
  tuttiAtomic32 state; /* tuttiCommState */
  const tuttiDevice *device;
  tuttiTaskContext context;
  tuttiCrowd crowd;                           /* guarded by crowd.c */
  int ranksOnCores;                           /* that share this one's, as crowd.h counts them */
  tuttiPrepared prepared[TUTTI_PREPARED + 1]; /* the last: of operations with wishes of their own */

  /* Connections by [direction][shared][channel], each an array of nranks + 1 (shared send endpoint
   * at nranks), made on first use. */
  tuttiConn **conns[2][2][TUTTI_CHANNELS];

  tuttiRecord record;
  tuttiTold told;
  uint64_t collectives;      /* sequence number of the last one */
  uint64_t *sent, *received; /* [nranks]: messages of each ordered pair */
  uint64_t stallAskAt;       /* ms of waiting at which the next question goes out */
  tuttiLeftLook leftOfOperations;
  tuttiLeftLook *leftOfSignals; /* [nranks]: several may be waited for at once */
  struct tuttiRegistration *registrations;
  struct tuttiWindowState *windows;
  struct tuttiDevCommMade *devComms;
  uint32_t windowsMade; /* counted alike on all ranks */
  struct tuttiRma
      *rma;          /* of one-sided operations, with the first window; NULL before, and on GPUs */
  uint64_t *awaited; /* [nranks][contexts][signals] that waits have taken; NULL before the first */
  tuttiPreMul *premul; /* [npremul], index = op - tuttiNumOps */
  int npremul;
  uint32_t splits; /* names of split communicators */
  uint8_t shrinks;
  /* 1: there has been a window, so that signals of one-sided operations have their place. */
  tuttiAtomic32 windowMet;
  tuttiAtomic64 offer;   /* shrink.c: this rank leads a rendezvous there; 0: none */
  uint64_t *followed;    /* [nranks] the last offer of each that this rank took up */
  tuttiAtomic32 revoked; /* 1: tuttiCommRevoke has returned */
  /* 1: somebody ends it, and holds it until it is freed: tuttiCommAbort, tuttiCommDestroy during
   * its init, or the init, which has failed. */
  tuttiAtomic32 ending;

  tuttiAtomic32 busy;         /* id of the thread that occupies it, or 0: see handle.c */
  uint32_t user, calls;       /* who occupied it last, how often in a row; guarded by busy */
  struct tuttiWorker *worker; /* of a non-blocking communicator */
} tuttiCommunicator;

#endif

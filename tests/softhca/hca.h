/* A software host channel adapter: what its files share.
 *
 * One lock, hca.lock, guards all objects of a process. Whoever holds it may move frames: the engine
 * thread, a thread that posts, and one that polls an empty completion queue. Copies from and to
 * memory of GPUs are made by threads of their own, which never take that lock (mover.c). Functions
 * whose comment does not say otherwise are called with the lock held. Times are CLOCK_MONOTONIC, in
 * nanoseconds. */
#pragma once

#include "driver.h"

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* verbs.h maps these names to inline functions; here the real ones are defined. */
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_get_device_list

#define SOFT_MAX_DEVICES 16
#define SOFT_MAX_PORTS   2
#define SOFT_MAX_GIDS    4
#define SOFT_MAX_PKEYS   4
#define SOFT_MAX_SGE     16
#define SOFT_MAX_INLINE  1024
#define SOFT_MAX_WR      16384
#define SOFT_MAX_CQE     (1 << 20)
#define SOFT_MAX_ATOMIC  16
#define SOFT_INDEX_BITS  12 /* a queue pair's number: its process's slot, then its index there */
#define SOFT_INDICES     (1u << SOFT_INDEX_BITS)
#define SOFT_MAX_MRS     16384
#define SOFT_PAYLOAD     131072    /* bytes of a message in one frame, at most */
#define SOFT_DIRECT      (4 << 20) /* the same, where a frame only says where the bytes are */
#define SOFT_MAX_CHUNKS  4096
#define SOFT_OFFLOAD     16384 /* bytes between host memory that are a mover's work, at least */
#define SOFT_MAX_MOVERS  8
#define SOFT_MAX_GPUS    16

/* ---- configuration (config.c) --------------------------------------------------------------- */

/* The table of a port's partition keys. */
typedef struct {
  uint64_t n;
  uint16_t key[SOFT_MAX_PKEYS];
} softPkeys;

typedef struct {
  uint64_t subnet;  /* prefix of the port's GIDs */
  uint64_t lid;     /* 0: one of its own */
  uint64_t gidByte; /* 0: the usual one */
  uint64_t gids;    /* rows of the table; 0: as many as usual */
  softPkeys pkeys;
  uint64_t mtu;          /* bytes */
  uint64_t speed;        /* of a lane, as in ibv_port_attr; 0: what fits gbps */
  uint64_t width;        /* lanes */
  double gbps;           /* 10^9 bytes per second; 0: as fast as it goes */
  uint64_t latency;      /* one way */
  uint64_t downAt, upAt; /* after the process opened its first device; 0: never */
  uint64_t downFrames;   /* ... or after so many frames; then upAt counts from there */
} softPortConfig;

typedef struct {
  char name[32];
  bool roce;
  uint64_t nports;
  uint64_t maxInline, maxCqe;
  uint64_t model;                                  /* its number among the vendor's parts */
  char pci[128];                                   /* its place, for softhca_sysfs alone */
  uint64_t numa;                                   /* the same; UINT64_MAX: not known */
  uint64_t removedAt, removedFrames, removedCalls; /* 0: never */
  softPortConfig ports[SOFT_MAX_PORTS];
} softDeviceConfig;

/* Something that goes wrong: with a probability, or the nth time. */
typedef struct {
  double p;
  uint64_t nth, count;
  uint64_t by;    /* how late */
  uint64_t least; /* bytes of a frame that is flipped */
  bool icrc;      /* a flipped bit is found */
} softFault;

typedef struct {
  softFault lost, late, flip, rnr, refuse, cut, completion, completionLost, completionAgain, poll;
} softFaults;

typedef struct {
  char fabric[32];    /* HCAs of one fabric, host and network namespace reach each other */
  char counters[128]; /* file for what each port sent; "": none */
  uint64_t seed;
  bool dmabuf, peermem; /* memory of GPUs can be registered: by dma-buf, by its address */
  bool direct;          /* between GPUs of this host without staging */
  bool offload;         /* movers copy memory of the host, too */
  uint64_t movers;      /* threads that copy from and to GPUs */
  uint64_t staging;     /* bytes of shared memory, in each direction of a stream */
  uint64_t reorder;     /* parts of messages are placed in any order, each this late at most */
  bool relaxing;        /* memory can be registered with relaxed ordering */
  uint64_t relaxed;     /* what is written there is placed in any order, this late at most */
  uint64_t invisible;   /* bytes in memory of GPUs show after a read, or up to this late */
  int ndevices;
  softDeviceConfig devices[SOFT_MAX_DEVICES];
  softFaults faults;
} softConfig;

/* Reads SOFTHCA_CONFIG and what SOFTHCA_MORE adds, or sets one InfiniBand device with one port. A
 * configuration that is wrong ends the process with a message: a test must not go on with another
 * network than it asked for. */
void softConfigRead(softConfig *config);

/* ---- frames (wire.c) ------------------------------------------------------------------------ */

enum softKind {
  SOFT_REQUEST = 1, /* a part of a message */
  SOFT_ACK,         /* all up to seq, but for reads and atomics */
  SOFT_RESPONSE,    /* a part of what a read returns, or an atomic's old value */
  SOFT_NAK,         /* seq failed: status says how */
  SOFT_RNR,         /* no receive request was there */
  SOFT_DROPPED, /* stands for the silence of a responder: a loss that the retry timer counts from */
  SOFT_ROOM,    /* chunks were freed that somebody waits for */
};

typedef struct {
  uint8_t kind, opcode, flags, attempt;
  uint8_t status;       /* enum ibv_wc_status of a NAK */
  uint8_t rnrTimer;     /* code of min_rnr_timer */
  uint16_t destination; /* softPortId of the port that the path leads to */
  uint16_t pkey;
  uint32_t toQpn, fromQpn;
  uint32_t seq;    /* 24 bits; counts messages */
  uint32_t length; /* of the payload */
  uint32_t chunk;  /* where it is in the stream's staging; 0: none */
  uint32_t imm, rkey;
  uint32_t total, offset; /* of the message's payload */
  uint64_t address;
  uint64_t operand, swap;
  uint64_t due; /* not to be looked at before this time: rate and latency */
} softFrame;

enum softFrameFlag {
  SOFT_LAST = 1,
  SOFT_SOLICITED = 2,
  SOFT_BY_ADDRESS = 4, /* the chunk holds a softDirect, not the payload */
};

/* Where the payload of a frame is in memory of a GPU, for a receiver who fetches it himself. */
typedef struct {
  int32_t pid;
  int32_t gpu;
  uint32_t slot, lkey; /* of the registration */
  uint64_t address;    /* in that process */
  uint64_t fromBase;   /* the same as an offset into what the handle stands for */
  cuIpcHandle handle;
} softDirect;

/* ---- staging (staging.c) -------------------------------------------------------------------- */

typedef struct {
  uint8_t *base;
  size_t size;
  uint32_t ringBytes;
  int writes;          /* which of the two rings is ours */
  uint64_t head, tail; /* bytes ever taken from it, given back to it */
  uint32_t newest, oldest, sizes[SOFT_MAX_CHUNKS];
  bool pinned; /* or about to be: a mover unmaps it */
} softStaging;

softStaging *softStagingCreate(uint32_t ringBytes, int *fd);
/* Maps what a peer sent; NULL if that is no segment as the other function makes them. */
softStaging *softStagingAccept(int fd, uint32_t ringBytes);
void softStagingUnmap(softStaging *staging);
/* Room for `length` bytes; NULL: none now, and its reader will say when there is (softChunkFree).
 */
uint8_t *softChunkTake(softStaging *staging, uint32_t length);
/* What a frame calls a chunk of our ring, and the chunk of the other ring that a frame names; NULL:
 * nothing can be there. */
uint32_t softChunkName(const softStaging *staging, const uint8_t *bytes);
uint8_t *softChunkFind(const softStaging *staging, uint32_t name, uint32_t length);
/* For a chunk of either ring. True: its writer is to be told. */
bool softChunkFree(const softStaging *staging, uint8_t *bytes);

typedef struct {
  uint8_t *bytes;
  size_t head, tail, cap;
} softBuffer;

/* A stream between two processes. The one who made it sends requests, the other one answers. */
typedef struct softConn {
  struct softConn *next;
  int fd;
  uint32_t slot; /* of the process that it was made to; of no meaning on the other side */
  bool outgoing, dead;
  softStaging *staging; /* NULL: its peer has not sent it yet */
  int users;            /* flights: while there are any, it stays */
  softBuffer in, out;
} softConn;

/* ---- frames under way (flight.c) ------------------------------------------------------------ */

typedef struct {
  uint64_t wrId;
  int nsge;
  struct ibv_sge sge[SOFT_MAX_SGE];
} softRecv;

enum softTask { SOFT_PLACE, SOFT_READ, SOFT_ATOMIC, SOFT_REFUSE, SOFT_NOT_READY };

/* A frame whose bytes are being copied, or that waits for its turn. */
typedef struct softFlight {
  struct softFlight *next;
  softConn *conn;
  softFrame frame;
  uint8_t *chunk;           /* of either ring; NULL: none */
  _Atomic uint32_t pending; /* copies under way */
  _Atomic bool failed;
  /* A responder's: */
  enum softTask task;
  bool started;
  uint64_t notBefore; /* it is placed then: other parts overtake it */
  bool takes;         /* a receive request is complete with it */
  softRecv recv;
  uint8_t status,
      localStatus; /* of SOFT_REFUSE: the sender's, and that of a request that is held */
  uint64_t value;  /* an atomic's old value */
  uint32_t offset; /* how much of a read has been answered */
} softFlight;

typedef struct {
  softFlight *first, *last;
} softFlights;

/* The conn's chunk of that name, if the frame names one, belongs to the flight. NULL: no memory. */
softFlight *softFlightNew(softConn *conn, const softFrame *frame, uint8_t *chunk);
void softFlightAppend(softFlights *list, softFlight *flight);
/* Takes the first out. */
softFlight *softFlightPop(softFlights *list);
static inline bool softFlightDone(const softFlight *flight) {
  return atomic_load_explicit(&flight->pending, memory_order_acquire) == 0;
}
/* Frees it, its chunk and its hold on the stream: at once, or when its copies are done. */
void softFlightDrop(softFlight *flight);
void softFlightsDrop(softFlights *list);
/* Hands its frame to its stream, which ends the flight; false: the frame is lost. */
bool softFlightSend(softFlight *flight, uint16_t portId);
/* Frees those that were dropped and whose copies are done; true: there was one. */
bool softFlightsReap(void);
/* Copies of some that a queue pair has dropped are under way. */
bool softFlightsLinger(uint32_t qpn);
/* Gives a chunk back that no flight has. */
void softRelease(softConn *conn, uint8_t *chunk);

/* ---- objects -------------------------------------------------------------------------------- */

typedef struct {
  struct ibv_device ibv;
  char beyond[1024]; /* providers' libraries look behind what they take for their own device */
  int index;
} softDevice;

typedef struct softEvent {
  struct softEvent *next;
  struct ibv_async_event event;
} softEvent;

typedef struct softContext {
  struct softContext *next;
  softDevice *device;
  softEvent *events;
  bool removed, portDown[SOFT_MAX_PORTS];
  struct verbs_context verbs; /* last: programs find it from its ibv_context */
} softContext;

typedef struct {
  struct ibv_mr ibv;
  struct ibv_pd *pd;
  uint64_t iova;
  unsigned access;
  int gpu;                 /* -1: memory of the host */
  _Atomic uint32_t copies; /* that movers have to make, or are making */
  bool exported;           /* other processes can open the handle */
  cuIpcHandle handle;
  cuPointer base; /* of the allocation that the handle stands for */
} softMr;

typedef struct softChannel {
  struct ibv_comp_channel ibv;
  struct softCq *first; /* those with an event that nobody fetched, through pendingNext */
} softChannel;

typedef struct softCq {
  struct ibv_cq_ex ibv; /* begins as struct ibv_cq does */
  struct ibv_wc *ring;
  struct softQpRef {
    uint32_t qpn, freed;
    uint64_t due;           /* of an entry that is late */
    bool solicited;         /* or an error */
  } * refs;                 /* per entry: send requests of which queue pair its polling frees */
  uint32_t cap, head, late; /* entries behind those of count that cannot be polled yet */
  bool listed;              /* in hca.lateCqs */
  struct softCq *lateNext;
  _Atomic uint32_t count;
  uint32_t fetched; /* completion events given out */
  bool armed, armedSolicited, overrun, ignoreOverrun;
  uint32_t pending;
  struct softCq *pendingNext;
  int users;
  struct ibv_wc polled; /* what the extended reading functions read */
} softCq;

typedef struct {
  softRecv *ring;
  uint32_t cap, head, tail, maxSge;
} softRecvQueue;

typedef struct {
  struct ibv_srq ibv;
  softRecvQueue queue;
  uint32_t limit;
  int users;
} softSrq;

typedef struct {
  uint64_t wrId;
  enum ibv_wr_opcode opcode;
  unsigned flags;
  uint32_t imm, rkey, total;
  uint64_t address, operand, swap;
  int nsge;
  struct ibv_sge sge[SOFT_MAX_SGE];
  uint8_t data[SOFT_MAX_INLINE]; /* with IBV_SEND_INLINE */
  bool acked;
  uint32_t sent, received; /* bytes of the message, of what came back */
} softSend;

typedef struct {
  uint32_t expected; /* seq */
  uint32_t offset;   /* of the message that is being received */
  bool holds;        /* a receive request is taken */
  bool refused;      /* nothing more is taken: a refusal is on its way through the flights */
  softRecv recv;
  softFlights flights;   /* in order, until they are placed and answered */
  softFlights departing; /* answers, until their bytes are there */
  int nreads;
  struct {
    uint32_t seq;
    uint64_t value;
  } atomics[SOFT_MAX_ATOMIC];
  uint32_t natomics;
} softResponder;

typedef struct softQp {
  struct softQp *next;
  struct ibv_qp_ex ibv; /* begins as struct ibv_qp does */
  struct ibv_qp_cap cap;
  struct ibv_qp_attr attr;
  bool sigAll;
  uint16_t destination; /* port that the path leads to; SOFT_NOWHERE */
  softSend *sq;
  uint32_t sqCap;
  uint32_t freed, done, next_, tail; /* send requests: polled, completed, to be sent, posted */
  uint32_t readsOut;
  uint8_t attempt, retries, rnrRetries;
  uint64_t resendAt; /* 0: nothing lost; else when the oldest request is sent again */
  bool rnrWait;
  bool cut;              /* nothing of it arrives any more */
  softFlights departing; /* requests, until their bytes are in the staging */
  softFlights arriving;  /* responses, until their bytes are in memory */
  softRecvQueue rq;
  softResponder in;
  pthread_mutex_t building; /* held from wr_start to wr_complete; not under hca.lock */
  softSend *built;
  int nbuilt;
  int buildError;
} softQp;

#define SOFT_NOWHERE 0xffff

typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t acked; /* events were acknowledged */
  softConfig config;
  softDevice devices[SOFT_MAX_DEVICES];
  softContext *contexts;
  softQp *qps;
  softQp *byIndex[SOFT_INDICES];
  uint32_t nextIndex;
  softMr *mrs[SOFT_MAX_MRS];
  uint8_t mrTurn[SOFT_MAX_MRS]; /* part of a key, so that a key is not soon used again */
  uint32_t nextMr;
  softConn *conns;
  softCq *lateCqs;     /* with entries that are late */
  softFlights dropped; /* with copies that are not done */
  bool gpus;           /* memory of a GPU was registered: staging is pinned */
  uint64_t portFrames[SOFT_MAX_DEVICES * SOFT_MAX_PORTS]; /* sent through it */
  uint64_t portTotals[SOFT_MAX_DEVICES * SOFT_MAX_PORTS]; /* frames since the process began */
  uint64_t portBytes[SOFT_MAX_DEVICES * SOFT_MAX_PORTS];  /* of payload, likewise */
  uint8_t portForced[SOFT_MAX_DEVICES * SOFT_MAX_PORTS];  /* control.h: 1 up, 2 down */
  uint64_t portFell[SOFT_MAX_DEVICES * SOFT_MAX_PORTS];   /* when, by their number; 0: it did not */
  uint64_t deviceFrames[SOFT_MAX_DEVICES], deviceGone[SOFT_MAX_DEVICES]; /* the same of devices */
  uint64_t deviceCalls[SOFT_MAX_DEVICES];
  uint64_t opened;
  uint64_t next; /* when softProgress has something to do again */
  uint64_t random;
  uint32_t slot;
  int listener, wake;
  int users; /* contexts that need the engine */
  long cores;
  bool stop;
  bool backlog; /* a stream took not all since the engine looked */
  pthread_t thread;
  _Atomic uint64_t polledAt; /* when a polling thread last looked at the streams */
  _Atomic int posting;       /* threads that want the lock to post, or to take completions */
} softHca;

extern softHca hca;

/* Takes the lock before those who look at empty queues and move frames meanwhile, again and again:
 * a doorbell waits for nobody who polls. */
static inline void softLockFirst(void) {
  enum { TRIES = 1000 };
  int tries = 0;
  atomic_fetch_add(&hca.posting, 1);
  while (pthread_mutex_trylock(&hca.lock) != 0) {
    if (++tries < TRIES) continue;
    pthread_mutex_lock(&hca.lock);
    break;
  }
  atomic_fetch_sub(&hca.posting, 1);
}

#define SOFT_CONTEXT(c)                                                                            \
  ((softContext *)((char *)(c)-offsetof(softContext, verbs) -                                      \
                   offsetof(struct verbs_context, context)))

static inline uint16_t softPortId(int device, int port) {
  return (uint16_t)(device * SOFT_MAX_PORTS + port - 1);
}

static inline int softDeviceOf(const struct ibv_context *context) {
  return ((const softDevice *)context->device)->index;
}

uint64_t softNow(void);
bool softStrikes(softFault *fault);  /* does it go wrong this time? */
uint64_t softRandom(uint64_t below); /* by the seed; 0 for below 0 */

/* ---- device.c ------------------------------------------------------------------------------- */

void softGid(int device, int port, int index, union ibv_gid *gid);
uint16_t softLid(int device, int port);
int softGidRows(int device, int port);
bool softPortUp(uint16_t portId);
/* Counts a command of the context's device, which may be the last one that it has. True: it has
 * gone away; commands fail with EIO, and only what gives something back works. Takes the lock. */
bool softRefuses(struct ibv_context *context);
/* A frame leaves through the port, which may be the last one that does. */
void softPortCount(uint16_t portId, size_t payload);
/* Queues an asynchronous event for the context that the element belongs to. */
void softRaise(struct ibv_context *context, enum ibv_event_type type, void *element);
/* Forgets events about an element that goes away and that nobody fetched. */
void softForget(struct ibv_context *context, const void *element);
/* Devices that go away and ports that go down or up by now. */
void softTimeline(uint64_t now);

/* ---- memory.c ------------------------------------------------------------------------------- */

softMr *softMrByKey(uint32_t key); /* NULL: there is none */
/* The registration, if key is one of pd and allows all of `access` to that range; else NULL. */
softMr *softMrFind(struct ibv_pd *pd, uint32_t key, uint64_t address, uint64_t length,
                   unsigned access);
/* Movers copy so much of that memory, and nobody who holds the lock. */
static inline bool softIsMovers(const softMr *mr, uint32_t length) {
  return mr->gpu >= 0 || (hca.config.offload && length >= SOFT_OFFLOAD);
}
/* Where an address of a registration is in this process, or on its GPU. */
static inline cuPointer softMrAt(const softMr *mr, uint64_t address) {
  return (uintptr_t)mr->ibv.addr + (address - mr->iova);
}
/* Copy `length` bytes, from offset on, out of a list to a buffer, and from a flight's payload into
 * a list whose keys must allow `access`; false where a key does not fit. What a GPU's memory is
 * part of is done when the flight is. */
bool softGather(softFlight *flight, struct ibv_pd *pd, const struct ibv_sge *sge, int nsge,
                uint32_t offset, void *to, uint32_t length);
bool softScatter(softFlight *flight, struct ibv_pd *pd, const struct ibv_sge *sge, int nsge,
                 uint32_t offset, unsigned access);
static inline uint64_t softSgeTotal(const struct ibv_sge *sge, int nsge) {
  uint64_t total = 0;
  for (int i = 0; i < nsge; i++)
    total += sge[i].length;
  return total;
}

/* ---- mover.c -------------------------------------------------------------------------------- */

enum softMove { SOFT_COPY, SOFT_TO_GPU, SOFT_GPU_ATOMIC, SOFT_PIN, SOFT_UNPIN };

/* What a mover is to do. */
typedef struct softJob {
  struct softJob *next;
  enum softMove move;
  int gpu; /* -1: between memory of the host */
  cuPointer to, from;
  size_t bytes;
  softDirect *direct;     /* `from` is there */
  softMr *mr;             /* counts it among its copies; may be NULL */
  softFlight *flight;     /* ... and it among its own */
  softStaging *staging;   /* to be pinned, or unpinned and unmapped */
  void *owned;            /* is freed when the job is done */
  _Atomic uint32_t *also; /* counts it, too */
} softJob;

/* Starts the movers, at the first registration of memory that they copy. 0 or an errno. */
int softMoverStart(void);
/* Waits until all is done that movers were given; without the lock. False: a copy does not end. */
bool softMoverDrain(void);
/* Waits until done(argument), which copies that end make true; the same. */
bool softMoverAwait(bool (*done)(uint32_t), uint32_t argument);
/* Ends them, after what they still have; without the lock. */
void softMoverStop(void);
/* Hands a job over. Those of one queue pair, which `qpn` is of, are done in order where they move
 * bytes in one direction between the same GPU and the host, or inside the host. */
void softMoverSubmit(const softJob *job, uint32_t qpn);

/* ---- hidden.c ------------------------------------------------------------------------------- */

/* Keeps a job, with its bytes, until a read passes or its time has come. */
void softHide(const softJob *job, uint32_t qpn);
/* Hands over the jobs of a GPU that were kept; of all GPUs for -1. */
void softReveal(int gpu);
/* Those whose time has come. */
void softRevealDue(uint64_t now);
/* Are all that were handed over done, of that GPU? */
bool softRevealed(int gpu);

/* ---- queue.c -------------------------------------------------------------------------------- */

typedef struct {
  struct ibv_wc wc;
  bool solicited;
  uint32_t freed; /* send requests of the queue pair up to this one are free once it is polled */
} softCompletion;
void softComplete(struct ibv_cq *cq, const softCompletion *completion);
/* Completions that were late and are due. */
void softCqReveal(uint64_t now);
void softCqForget(softCq *cq, uint32_t qpn);                 /* drops a queue pair's completions */
int softPollCq(struct ibv_cq *cq, int n, struct ibv_wc *wc); /* without the lock */
int softReqNotify(struct ibv_cq *cq, int solicited);         /* without the lock */
struct ibv_cq_ex *softCreateCqEx(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
int softPostSrqRecv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
/* Takes the next receive request of the queue pair; false: there is none. */
bool softTakeRecv(softQp *qp, softRecv *recv);
int softPutRecv(softRecvQueue *queue, const struct ibv_recv_wr *wr);

/* ---- qp.c ----------------------------------------------------------------------------------- */

struct ibv_qp *softCreateQpEx(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
/* Where the addresses of queue pairs lead to now that ports have others. */
void softQpResolve(void);
void softFlushRecv(softQp *qp, const softRecv *recv);
/* The queue pair fails: the rest of its requests are flushed. */
void softQpError(softQp *qp);
softQp *softQpFind(uint32_t qpn);
/* The partition key that the queue pair's packets have. */
static inline uint16_t softQpPkey(const softQp *qp) {
  const softDeviceConfig *d = &hca.config.devices[softDeviceOf(qp->ibv.qp_base.context)];
  return d->ports[qp->attr.port_num - 1].pkeys.key[qp->attr.pkey_index];
}
static inline bool softQpSends(const softQp *qp) {
  return qp->ibv.qp_base.state == IBV_QPS_RTS;
}

/* ---- post.c --------------------------------------------------------------------------------- */

int softPostSend(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int softPostRecv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int softEnqueue(softQp *qp, const softSend *request);
void softBuilders(softQp *qp);

/* ---- requester.c ---------------------------------------------------------------------------- */

/* Sends what the queue pair may send now; true if something was sent. */
bool softRequesterRun(softQp *qp, uint64_t now);
void softRequesterAnswer(softQp *qp, softConn *conn, const softFrame *frame, uint8_t *chunk);
void softRequesterStop(softQp *qp);
/* What was sent may be lost: the retry timer runs, if it does not yet. */
void softRequesterLost(softQp *qp);
void softRequesterFail(softQp *qp, enum ibv_wc_status status);

/* ---- responder.c ---------------------------------------------------------------------------- */

/* A request, with its chunk or NULL. */
void softResponderTake(softConn *conn, const softFrame *frame, uint8_t *chunk);
/* Goes on with what was taken, as copies end and there is room; true if anything moved. */
bool softResponderRun(softQp *qp);
/* The queue pair has failed or is reset: answers are all that is left to do. */
void softResponderStop(softQp *qp);

/* ---- rate.c --------------------------------------------------------------------------------- */

/* With the engine, without the lock. */
void softRateStart(void);
void softRateStop(void);
/* When what was sent has left the port. */
uint64_t softRateFree(uint16_t portId);
/* Sends bytes through a port; when they have left it. */
uint64_t softRateSend(uint16_t portId, double gbps, size_t bytes, uint64_t now);

/* ---- wire.c --------------------------------------------------------------------------------- */

/* Starts the engine with the process's first context, ends it with the last; without the lock. 0 or
 * an errno. */
int softEngineStart(void);
void softEngineStop(void);
void softEngineWake(void);
/* Moves what can be moved now; true if anything was. */
bool softProgress(void);
/* Somebody has to do something at this time, if not before. */
void softNext(uint64_t when);
/* Memory of a GPU was registered: from now on, staging is pinned. */
void softPinAll(void);
softConn *softConnTo(uint32_t slot); /* NULL: nobody is there */
bool softConnRoom(const softConn *conn);
void softConnFlush(softConn *conn);
/* Has the port sent so far ahead of its rate that it must wait? */
bool softPortBusy(uint16_t portId, uint64_t now);
/* Queues a frame, which leaves with the port's rate and latency; false without memory: it is lost.
 */
bool softConnSend(softConn *conn, softFrame *frame, uint16_t portId);

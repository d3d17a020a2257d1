/* A software host channel adapter: what its files share.
 *
 * One lock, hca.lock, guards all objects of a process. Whoever holds it may move frames: the engine
 * thread, a thread that posts, and one that polls an empty completion queue. Functions whose
 * comment does not say otherwise are called with the lock held. Times are CLOCK_MONOTONIC, in
 * nanoseconds. */
#pragma once

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
#define SOFT_GIDS        2
#define SOFT_MAX_SGE     16
#define SOFT_MAX_INLINE  256
#define SOFT_MAX_WR      16384
#define SOFT_MAX_CQE     (1 << 20)
#define SOFT_MAX_ATOMIC  16
#define SOFT_INDEX_BITS  12 /* a queue pair's number: its process's slot, then its index there */
#define SOFT_INDICES     (1u << SOFT_INDEX_BITS)
#define SOFT_MAX_MRS     16384
#define SOFT_PAYLOAD     32768 /* bytes of a message in one frame, at most */

/* ---- configuration (config.c) --------------------------------------------------------------- */

typedef struct {
  uint64_t subnet;       /* prefix of the port's GIDs */
  double gbps;           /* 10^9 bytes per second; 0: as fast as it goes */
  uint64_t latency;      /* one way */
  uint64_t downAt, upAt; /* after the process opened its first device; 0: never */
} softPortConfig;

typedef struct {
  char name[32];
  bool roce;
  int nports;
  uint64_t removedAt; /* 0: never */
  softPortConfig ports[SOFT_MAX_PORTS];
} softDeviceConfig;

/* What goes wrong, each with a probability. */
typedef struct {
  double lost, late, rnr, flip, refuse;
  uint64_t lateBy;
} softFaults;

typedef struct {
  char fabric[32]; /* HCAs of one fabric, host and network namespace reach each other */
  uint64_t seed;
  bool dmabuf;
  int ndevices;
  softDeviceConfig devices[SOFT_MAX_DEVICES];
  softFaults faults;
} softConfig;

/* Reads SOFTHCA_CONFIG, or sets one InfiniBand device with one port. A file that is wrong ends the
 * process with a message: a test must not go on with another network than it asked for. */
void softConfigRead(softConfig *config);

/* ---- frames (wire.c) ------------------------------------------------------------------------ */

enum softKind {
  SOFT_REQUEST = 1, /* a part of a message */
  SOFT_ACK,         /* all up to seq, but for reads and atomics */
  SOFT_RESPONSE,    /* a part of what a read returns, or an atomic's old value */
  SOFT_NAK,         /* seq failed: status says how */
  SOFT_RNR,         /* no receive request was there */
  SOFT_DROPPED, /* stands for the silence of a responder: a loss that the retry timer counts from */
};

typedef struct {
  uint8_t kind, opcode, flags, attempt;
  uint8_t status;       /* enum ibv_wc_status of a NAK */
  uint8_t rnrTimer;     /* code of min_rnr_timer */
  uint16_t destination; /* softPortId of the port that the path leads to */
  uint32_t toQpn, fromQpn;
  uint32_t seq;    /* 24 bits; counts messages */
  uint32_t length; /* payload that follows the frame */
  uint32_t imm, rkey;
  uint32_t total, offset; /* of the message's payload */
  uint32_t pad;
  uint64_t address;
  uint64_t operand, swap;
  uint64_t due; /* not to be looked at before this time: rate and latency */
} softFrame;

enum { SOFT_LAST = 1, SOFT_SOLICITED = 2, SOFT_IMM = 4 };

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
  softBuffer in, out;
} softConn;

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
  } * refs; /* per entry: send requests of which queue pair its polling frees */
  uint32_t cap, head;
  _Atomic uint32_t count;
  uint32_t fetched; /* completion events given out */
  bool armed, armedSolicited, overrun, ignoreOverrun;
  uint32_t pending;
  struct softCq *pendingNext;
  int users;
  struct ibv_wc polled; /* what the extended reading functions read */
} softCq;

typedef struct {
  uint64_t wrId;
  int nsge;
  struct ibv_sge sge[SOFT_MAX_SGE];
} softRecv;

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

/* What the responder does for a read, a frame at a time as the stream has room. */
typedef struct {
  softConn *conn; /* NULL: none */
  softFrame request;
  uint32_t offset;
} softReadJob;

typedef struct {
  uint32_t expected; /* seq */
  uint32_t offset;   /* of the message that is being received */
  bool holds;        /* a receive request is taken */
  softRecv recv;
  softReadJob reads[SOFT_MAX_ATOMIC]; /* oldest first */
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
  uint64_t portFree[SOFT_MAX_DEVICES][SOFT_MAX_PORTS]; /* when what was sent has left the port */
  uint64_t opened;
  uint64_t random;
  uint32_t slot;
  int listener, wake;
  int users; /* contexts that need the engine */
  bool stop;
  bool backlog; /* a stream took not all since the engine looked */
  pthread_t thread;
  _Atomic uint64_t polledAt; /* when a polling thread last looked at the streams */
} softHca;

extern softHca hca;

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
bool softChance(double probability); /* by the seed */

/* ---- device.c ------------------------------------------------------------------------------- */

void softGid(int device, int port, int index, union ibv_gid *gid);
uint16_t softLid(int device, int port);
bool softPortUp(uint16_t portId);
/* Queues an asynchronous event for the context that the element belongs to. */
void softRaise(struct ibv_context *context, enum ibv_event_type type, void *element);
/* Forgets events about an element that goes away and that nobody fetched. */
void softForget(struct ibv_context *context, const void *element);
/* Ports that go down or up by now; the time of the next such thing, or UINT64_MAX. */
uint64_t softTimeline(uint64_t now);

/* ---- memory.c ------------------------------------------------------------------------------- */

/* The one place where bytes move between frames and registered memory. */
void softCopy(void *to, const void *from, size_t length);
/* The registration, if key is one of pd and allows all of `access` to that range; else NULL. */
softMr *softMrFind(struct ibv_pd *pd, uint32_t key, uint64_t address, uint64_t length,
                   unsigned access);
/* Copies `length` bytes from offset on between a list and a buffer; false where a key does not fit.
 */
bool softGather(struct ibv_pd *pd, const struct ibv_sge *sge, int nsge, uint32_t offset, void *to,
                uint32_t length);
bool softScatter(struct ibv_pd *pd, const struct ibv_sge *sge, int nsge, uint32_t offset,
                 const void *from, uint32_t length);
static inline uint64_t softSgeTotal(const struct ibv_sge *sge, int nsge) {
  uint64_t total = 0;
  for (int i = 0; i < nsge; i++)
    total += sge[i].length;
  return total;
}

/* ---- queue.c -------------------------------------------------------------------------------- */

typedef struct {
  struct ibv_wc wc;
  bool solicited;
  uint32_t freed; /* send requests of the queue pair up to this one are free once it is polled */
} softCompletion;
void softComplete(struct ibv_cq *cq, const softCompletion *completion);
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
/* The queue pair fails: the rest of its requests are flushed. */
void softQpError(softQp *qp);
softQp *softQpFind(uint32_t qpn);
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
void softRequesterAnswer(softQp *qp, const softFrame *frame, const uint8_t *payload);
/* What was sent may be lost: the retry timer runs, if it does not yet. */
void softRequesterLost(softQp *qp);
void softRequesterFail(softQp *qp, enum ibv_wc_status status);

/* ---- responder.c ---------------------------------------------------------------------------- */

void softResponderTake(softConn *conn, const softFrame *frame, uint8_t *payload);
/* Goes on with reads as there is room, or to their end. */
bool softResponderRun(softQp *qp, bool toTheEnd);

/* ---- wire.c --------------------------------------------------------------------------------- */

/* Starts the engine with the process's first context, ends it with the last; without the lock. 0 or
 * an errno. */
int softEngineStart(void);
void softEngineStop(void);
void softEngineWake(void);
/* Moves what can be moved now; true if anything was. */
bool softProgress(void);
softConn *softConnTo(uint32_t slot); /* NULL: nobody is there */
bool softConnRoom(const softConn *conn);
void softConnFlush(softConn *conn);
/* Has the port sent so far ahead of its rate that it must wait? */
bool softPortBusy(uint16_t portId, uint64_t now);
/* Queues a frame, which leaves with the port's rate and latency. Its frame->length bytes of payload
 * are to be put where this points to, before anything else is sent; NULL without memory: it is
 * lost. */
uint8_t *softConnSend(softConn *conn, softFrame *frame, uint16_t portId);

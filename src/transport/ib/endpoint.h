/* What the files of NET/IB share; nobody else includes this. See endpoint.c for how data moves,
 * meet.c for how connections are made and mended, port.c for devices and ports. */
#ifndef TUTTI_TRANSPORT_IB_ENDPOINT_H_
#define TUTTI_TRANSPORT_IB_ENDPOINT_H_

#include <infiniband/verbs.h>
#include <pthread.h>

#include "base/blocks.h"
#include "base/gpu_memory.h"
#include "transport/fd_box.h"
#include "transport/ib/wire.h"
#include "transport/region.h"

/* What is called in libibverbs, which is loaded at run time; what posts and polls is inline in its
 * header. */
#define TUTTI_VERBS(X)                                                                             \
  X(getDeviceList, ibv_get_device_list)                                                            \
  X(freeDeviceList, ibv_free_device_list)                                                          \
  X(deviceName, ibv_get_device_name)                                                               \
  X(open, ibv_open_device)                                                                         \
  X(close, ibv_close_device)                                                                       \
  X(queryDevice, ibv_query_device)                                                                 \
  X(queryPort, ibv_query_port)                                                                     \
  X(queryGidTable, _ibv_query_gid_table)                                                           \
  X(allocPd, ibv_alloc_pd)                                                                         \
  X(deallocPd, ibv_dealloc_pd)                                                                     \
  X(regMr, ibv_reg_mr)                                                                             \
  X(deregMr, ibv_dereg_mr)                                                                         \
  X(createCq, ibv_create_cq)                                                                       \
  X(resizeCq, ibv_resize_cq)                                                                       \
  X(destroyCq, ibv_destroy_cq)                                                                     \
  X(createQp, ibv_create_qp)                                                                       \
  X(modifyQp, ibv_modify_qp)                                                                       \
  X(destroyQp, ibv_destroy_qp)                                                                     \
  X(getAsyncEvent, ibv_get_async_event)                                                            \
  X(ackAsyncEvent, ibv_ack_async_event)                                                            \
  X(statusText, ibv_wc_status_str)                                                                 \
  X(eventText, ibv_event_type_str)

typedef struct {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration */
#define X(member, function) __typeof__(function) *member;
  TUTTI_VERBS(X)
#undef X
  __typeof__(ibv_reg_mr_iova2) *regMrIova2; /* of rdma-core 28; NULL in older ones */
} tuttiVerbsTable;
extern tuttiVerbsTable tuttiVerbs; /* valid once tuttiVerbsLoad has found all */

/* One port that this communicator uses, with a context of its own: its events come here alone, and
 * nothing is left behind when the communicator ends. */
typedef struct {
  tuttiIbPort port;
  struct ibv_context *context;
  struct ibv_pd *pd;
  struct ibv_cq *cq;
  tuttiProxySource events; /* of the context */
  uint64_t model;          /* of the device, as a number */
  int cqe, mostCqe, qps;   /* size of cq, what the device allows, and queue pairs on it */
  uint64_t carried;        /* bytes of large payloads that have been acknowledged by way of it */
  bool gone;               /* the device was removed or has failed */
  /* GPUDirect RDMA, where the rail has passed its check: see gdr.c. */
  bool dmabuf;          /* driver, kernel and device do it by dma-buf */
  uint8_t reads;        /* port.gdrRead, if port.gdr is YES: a tuttiGdr */
  struct ibv_mr *probe; /* of the node's; NULL: payloads can't go from GPU memory by this rail */
  bool late;            /* nor yet: its port was down at init, so the check is to come */
  struct ibv_mr *flushMr;
  struct ibv_qp *loop; /* connected to itself */
  uint64_t loopPosted; /* requests on it, and on those before it */
  bool loopBroken;     /* it has failed, and a new one is due at loopRetry */
  uint64_t loopRetry;
  bool carries; /* it has written to GPU memory what no flush may leave out */
  bool ordered; /* the device promises to place writes of a queue pair in order */
  struct ibv_cq *loopCq;
} tuttiIbRail;

/* Memory of a GPU that rails reach, in blocks: one for the payloads of each connection. Zero: none.
 */
typedef struct {
  tuttiGpuMemory memory;
  struct ibv_mr *mr[TUTTI_IB_PORTS]; /* NULL: that rail does not reach it */
  tuttiBlocks blocks;
  tuttiMemAccount *account; /* that has it: NULL: none yet */
} tuttiIbSlab;

/* The memory of the rank's GPU that its rails reach. Zero: none, payloads are staged. */
typedef struct {
  tuttiIbSlab slab;
  uint32_t reaching; /* rails that took it, by bit; is not changed any more. 0: there is none */
  bool relaxed;      /* it is registered with relaxed ordering: see port.c */
  bool sends;        /* it is for what is sent, too: there is a rail that reads */
  bool full;         /* there was no block left, which has been said */

  tuttiGpuMemory probe; /* for the check at init and the flush */
  uint8_t *flushByte;
  bool flushes;                 /* what has come must be flushed before kernels may look */
  uint64_t asked, posted, done; /* numbers of flushes */
  uint64_t flushBy;             /* ... and is given up */
  uint32_t flushing;            /* rails of which flush `posted` is under way, by bit */

  struct {             /* the check of a rail whose port has come up */
    tuttiIbRail *rail; /* NULL: none is under way */
    struct ibv_mr *mr; /* of the pattern, and of as much that comes back */
    uint64_t *pattern, by;
  } check;
} tuttiIbGdr;

/* Memory of another GPU of the host, by which this rank's messages leave: see pxn.c. */
typedef struct {
  int lender; /* rank whose GPU it is */
  tuttiIbSlab slab;
} tuttiIbLoan;

/* What one rank keeps for all its NET/IB connections. */
typedef struct {
  tuttiCommView *view;
  int nrails;
  tuttiIbRail rails[TUTTI_IB_PORTS];
  tuttiIbHandle mine; /* as peers have it, but for `up`, which follows the rails */
  uint16_t pkey;      /* TUTTI_IB_PKEY at init: queue pairs made later must join those of peers */
  uint32_t changes;   /* counts ports that went up or down */
  tuttiAtomic32 down, broken; /* for other threads: ports that went down, by bit; connections that
                                 are being made anew */
  uint64_t stallLook;         /* when endpoints are looked at for completions that do not come */
  bool watched;
  struct tuttiIbEndpoint *endpoints; /* those that have had a turn of the proxy */
  uint64_t regionsSeen;
  tuttiRegionWatcher watcher; /* of the proxy: what is freed is deregistered at once */
  pthread_mutex_t regionLock;
  struct tuttiIbRegion *regions; /* memory of the user that is registered; under regionLock */
  bool refused;                  /* some was not, which has been said */
  /* Payloads that slots of the GPU are for, and those of them that took none. */
  struct {
    uint64_t sent, lent, came, placed;
  } large;
  char lost[TUTTI_SENTENCE]; /* the last device that went away before peers were told of it */
  size_t gpuLeft; /* bytes that TUTTI_MEM_LIMIT leaves on the GPU for payloads; SIZE_MAX: any */
  tuttiIbGdr gdr;
  tuttiFdBox box; /* where loans come in; zero or closed: nowhere */
  tuttiIbLoan *loans;
  int nloans;
} tuttiIbNode;

enum {
  TUTTI_IB_SENDS = 32, /* requests that a queue pair takes */
  TUTTI_IB_RECEIVES =
      64,               /* posted, where immediates tell what has come; beyond, the sender waits */
  TUTTI_IB_SIGNALED = 8 /* small ones of which one has a completion */
};

struct tuttiIbEndpoint;

/* Memory of the user and its registration with each rail, or with none if one refused: see
 * region.c. */
typedef struct tuttiIbRegion {
  tuttiRegion region;
  struct ibv_mr *mr[TUTTI_IB_PORTS];
  uint32_t uses; /* messages under way out of it or into it, and 1 while `region` is there */
  struct tuttiIbRegion *next;
} tuttiIbRegion;

/* One queue pair of an endpoint. */
typedef struct {
  struct tuttiIbEndpoint *end;
  struct ibv_qp *qp; /* NULL: not used now */
  tuttiIbPair pair;
  int rail; /* of this side */
  uint32_t psn;
  uint32_t rkey, dataRkey; /* of the peer's control block and payloads */
  uint32_t maxInline;      /* bytes */
  uint32_t posted, done;   /* requests, and those of them that are known to have left the queue */
  uint32_t unsignaled;     /* in a row */
  struct {
    uint64_t message; /* that it is the last request of */
    uint32_t posted;
  } signals[TUTTI_IB_SENDS];   /* the signaled requests that are under way */
  uint32_t first, last;        /* of these, counted modulo TUTTI_IB_SENDS */
  uint32_t receives, received; /* posted; and those of them that are known to be complete */
  uint64_t come;               /* recv, by immediates: messages whose share on it is there */
} tuttiIbQueuePair;

/* A queue pair that was stopped while its port was down, and is kept until that is back or the
 * endpoint is closed: ibv_destroy_qp may wait until the last packets have left the port
 * (soft-RoCE). */
typedef struct tuttiIbDeadQueuePair {
  struct ibv_qp *qp;
  int rail;
  struct tuttiIbDeadQueuePair *next;
} tuttiIbDeadQueuePair;

/* A message's descriptor as it is written to the receiver. The number stands first and last, so
 * that the descriptor is whole when both are there, in whichever direction a device copies it. */
typedef struct {
  tuttiAtomic64 first; /* number + 1 */
  uint64_t credit;     /* of the channel's other direction, as in tuttiIbControl */
  uint8_t inlined[TUTTI_INLINE_MAX];
  uint32_t bytes, where;
  tuttiSignature sig;
  tuttiAtomic64 last;
} tuttiIbDescriptor;

/* Where the reader wants the payload of a message, in memory of its own: see want.c. The number
 * stands first and last, as in a descriptor. */
typedef struct {
  tuttiAtomic64 first; /* number + 1 */
  uint64_t addr;
  uint32_t bytes, unused;
  uint32_t key[TUTTI_IB_PORTS]; /* by port of the receiver; 0: not by this one */
  tuttiAtomic64 last;
} tuttiIbWant;

/* What the endpoints write to each other besides payloads: the control block. It lies behind the
 * FIFO's posts; the sender's and the receiver's are alike, so each field is the
 * source of one and the target of the other. */
typedef struct {
  tuttiIbDescriptor descriptors[TUTTI_FIFO_DEPTH];
  /* By part, number + 1 of the message whose share of the payload has been written before. */
  tuttiAtomic64 shares[TUTTI_IB_QUEUE_PAIRS][TUTTI_FIFO_DEPTH];
  tuttiAtomic64 credit; /* to the sender: messages that the reader has taken; from credits[] */
  tuttiAtomic64 credits[TUTTI_IB_SENDS];
  tuttiIbWant wants[TUTTI_FIFO_DEPTH]; /* to the sender */
} tuttiIbControl;

typedef enum {
  TUTTI_IB_MEETING, /* send: dialling; recv: until the sender has come */
  TUTTI_IB_BROKEN,  /* send: an offer is to be made; recv: one is awaited */
  TUTTI_IB_OFFERED, /* send: the answer is awaited */
  TUTTI_IB_RUNNING
} tuttiIbState;

/* `meet` is first: that is how its listener knows the endpoint. Counters of messages:
 *   send: credit <= confirmed <= passed <= posted <= meet.known     recv: credit <= passed
 * but for posted, which goes back to what the receiver has when the queue pairs are new. */
typedef struct tuttiIbEndpoint {
  tuttiSocketEndpoint meet;
  tuttiIbNode *node;
  struct tuttiIbEndpoint *next,
      *reverse; /* of the node's endpoints; the channel's other direction, or NULL */
  bool listed;
  tuttiIbHandle theirs; /* the ports as the peer told last */
  /* All queue pairs join the channel's rail if it has one, as long as both its ports work. */
  bool railed;
  tuttiIbPair rail;
  tuttiIbState state;
  const tuttiIbSlab *slab;           /* that the FIFO's payloads are in; NULL: host memory */
  struct ibv_mr *mr[TUTTI_IB_PORTS]; /* of the FIFO, as far as it is host memory */
  size_t registered;                 /* bytes of that */
  tuttiIbControl *control;
  uint32_t epoch;               /* send: of the last offer */
  uint32_t avoid;               /* rails on which queue pairs have failed, by bit */
  uint64_t avoidUntil, avoidNs; /* when these are tried again, or were; how long that was then */
  uint32_t unfit;   /* rails whose devices have refused what this connection needs, by bit */
  uint32_t changes; /* node->changes when the queue pairs were made */
  bool relaxed;     /* recv: the FIFO is registered with relaxed ordering: see port.c */
  bool immediate;   /* what has come is told by completions, and no flag in memory is believed */
  bool ran;         /* it has had queue pairs that worked */
  tuttiWhere
      puts; /* send: where the payloads of puts go, which has been said; INLINE: nowhere yet */
  int nqps, nparts;
  tuttiIbQueuePair qps[TUTTI_IB_QUEUE_PAIRS];
  tuttiIbQueuePair
      *parts[TUTTI_IB_QUEUE_PAIRS]; /* those in use, by the part of a payload that they carry */
  tuttiIbDeadQueuePair *dead;
  tuttiIbHandshake in, out;
  size_t got;      /* of in */
  uint64_t credit; /* send: messages that the reader has taken; recv: those that it told of */
  uint64_t posted;
  /* recv: credit <= passed <= flushed <= arrived. What has arrived in GPU memory may be seen when
   * flush number `flush` is done; that covers the messages below flushTo. */
  uint64_t arrived, flushed, flushTo, flush;
  uint64_t joined;          /* recv: arrived, when the queue pairs were made */
  tuttiAtomic64 confirmed;  /* send: messages that are known to have arrived; all when the peer has
                               closed its end */
  tuttiAtomic32 confirming; /* send: somebody waits until all are confirmed */
  bool incurable;           /* `trouble` is no matter of ports and paths */
  /* What the payload is in, or recv: what the sender was told to write it to; NULL: the FIFO. */
  tuttiIbRegion *source[TUTTI_FIFO_DEPTH];
  uint64_t heard[TUTTI_FIFO_DEPTH];      /* send: number + 1 of wants that immediates told of */
  uint32_t wantPosted[TUTTI_FIFO_DEPTH]; /* recv: requests of parts[0] up to that of the want */
  const uint8_t *from[TUTTI_FIFO_DEPTH]; /* send: payload */
  uint32_t pending[TUTTI_FIFO_DEPTH];    /* send: parts that are not acknowledged, by bit */
  uint64_t measured;                     /* send: meet.carried when that was last looked at */
  uint64_t told;                         /* by completions and the peer, at the last look */
  uint32_t looks;    /* in a row at which there was nothing new, though it was awaited */
  bool gaveUp;       /* requests of the queue pairs have been given up, so one has failed */
  bool stalled;      /* recv: what memory has, no completion will tell of any more */
  uint64_t deadline; /* of making or mending the queue pairs; 0: they work */
  uint64_t retryAt;  /* send: no offer before */
  bool broken;       /* and counted in node->broken */
  char trouble[320]; /* what ended the last ones: "broke, by ..." */
} tuttiIbEndpoint;

static inline bool tuttiIbSends(const tuttiIbEndpoint *e) {
  return e->meet.fifo.direction == TUTTI_SEND;
}

/* Which of the two in a tuttiIbPair is this side's. */
static inline int tuttiIbSide(const tuttiIbEndpoint *e) {
  return tuttiIbSends(e) ? 0 : 1;
}

static inline struct ibv_mr *tuttiIbDataMr(const tuttiIbEndpoint *e, int rail) {
  return e->slab ? e->slab->mr[rail] : e->mr[rail];
}

/* ---- queue_pair.c */

/* What a queue pair is to be joined with. */
typedef struct {
  struct ibv_ah_attr address;
  enum ibv_mtu mtu;
  uint32_t qpn, psn;
} tuttiIbRemote;

/* These return an errno. Creates one on `cq` and moves it to INIT; *maxInline is what is wished,
 * then what it has; *call names what failed; *out is set as soon as it is to be destroyed. */
int tuttiIbQueuePairCreate(const tuttiIbRail *rail, struct ibv_cq *cq, uint16_t pkey,
                           unsigned access, struct ibv_qp **out, uint32_t *maxInline,
                           const char **call);
int tuttiIbQueuePairReceive(struct ibv_qp *qp, const tuttiIbRemote *remote); /* to RTR */
int tuttiIbQueuePairSend(struct ibv_qp *qp, uint32_t psn);                   /* to RTS */
/* Posts a receive for one immediate. */
int tuttiIbQueuePairAwait(struct ibv_qp *qp, uint64_t id);
/* How a rail with the address `from` reaches `to` of `theirs`; false: it has lost that address. */
bool tuttiIbAddress(const tuttiIbRail *rail, const tuttiIbGid *from, const tuttiIbPort *theirs,
                    const tuttiIbGid *to, uint8_t trafficClass, struct ibv_ah_attr *out);

/* ---- slab.c: all for the thread that opens and closes connections */

/* Divides memory that is there into so many blocks, and counts it. */
tuttiResult_t tuttiIbSlabDivide(const tuttiIbNode *node, tuttiIbSlab *slab, int nblocks,
                                size_t blockBytes);
/* Frees what there is of it; no queue pair knows it any more. May be called again. */
void tuttiIbSlabDrop(tuttiIbSlab *slab);

/* ---- gdr.c */

/* Finds out which rails read and write the memory of this rank's GPU: what the topology allows is
 * tried, and the answers go into the ports. Trouble of a rail is told in the log; the error is one
 * of the GPU itself. */
tuttiResult_t tuttiIbGdrOpen(tuttiIbNode *node, const tuttiPeer *mine);
/* The check alone, for who asks whether a rail works without using it: of host memory, and of that
 * of CUDA device `device`, for which rail->dmabuf says how it is registered. The sentence says why
 * it does not. Nothing is left behind but GPU memory, for further rails, until tuttiIbGdrClose. */
tuttiResult_t tuttiIbHostTry(tuttiIbNode *node, tuttiIbRail *rail, bool *works,
                             char why[TUTTI_GDR_SENTENCE]);
tuttiResult_t tuttiIbGpuTry(tuttiIbNode *node, tuttiIbRail *rail, int device, bool *works,
                            char why[TUTTI_GDR_SENTENCE]);
/* Makes the slab, for connections over the network with so many peers. No kernel may wait for this
 * rank yet. Fails where TUTTI_NET_GDR requires of a rail what it does not do, though it should. */
tuttiResult_t tuttiIbGdrAttach(tuttiIbNode *node, int npeers);
/* Undoes what these have made for the rail itself. */
void tuttiIbGdrDrop(tuttiIbRail *rail);
/* No queue pair is left that knows the memory. */
void tuttiIbGdrClose(tuttiIbNode *node);
/* For how many of so many connections it has blocks. */
int tuttiIbGdrRoom(const tuttiIbNode *node, int sends, int receives);
/* A block for the payloads of the connection that `conn` names; NULL: there is none, which may be
 * an error, or what it sends is to be staged. For the thread that opens and closes connections. */
tuttiResult_t tuttiIbGdrTake(tuttiIbNode *node, const tuttiConn *conn, uint8_t **block);
/* Sends a pattern from the beginning of `from`, which is `mr` to the rail, by the rail's NIC to the
 * memory of this rank's GPU. *why: NULL, or what is wrong. No kernel may wait for this rank yet. */
tuttiResult_t tuttiIbGdrCheckFrom(tuttiIbNode *node, tuttiIbRail *rail, const tuttiGpuMemory *from,
                                  const struct ibv_mr *mr, const char **why);
/* Sees to it that there is a flush that begins after this call; it is done when gdr.done is its
 * *number or more. Then all that had arrived before the call is visible to kernels. Failures are of
 * the device. */
tuttiResult_t tuttiIbFlushAsk(tuttiIbNode *node, uint64_t *number);
tuttiResult_t tuttiIbFlushPoll(tuttiIbNode *node);
/* All rails that reach the GPU promise to place writes in order. */
bool tuttiIbGdrOrdered(const tuttiIbNode *node);
/* Checks rails whose ports were down at init and have come up; at each turn of the node. */
void tuttiIbGdrCheckLate(tuttiIbNode *node, tuttiProxyTurn *turn);

/* ---- pxn.c */

/* Gets ready to lend and to borrow: says so in the peer record. It is no trouble if it can't. */
void tuttiIbPxnOpen(tuttiIbNode *node, tuttiPeer *self);
/* Lends and borrows what the view says, all ranks of a host at once. No kernel may wait for this
 * rank yet. Without a loan messages go from the own GPU, which is logged. */
tuttiResult_t tuttiIbPxnAttach(tuttiIbNode *node);
void tuttiIbPxnClose(tuttiIbNode *node);
/* Bytes of this rank's GPU that others borrow by what the view says. */
size_t tuttiIbPxnLent(const tuttiIbNode *node);
/* Of the memory that this rank borrows: a block for the payloads of `conn`, NULL if they do not go
 * by it; the loan of a block, or NULL. */
uint8_t *tuttiIbPxnTake(tuttiIbNode *node, const tuttiConn *conn);
tuttiIbLoan *tuttiIbPxnLoanOf(const tuttiIbNode *node, const uint8_t *block);

/* ---- region.c */

/* Registers all of `m`, which may be a part of an allocation, with the rail: by dma-buf or by the
 * plain address, which a peer memory module knows; NULL and errno: neither. Any thread. */
struct ibv_mr *tuttiIbRegisterGpu(const tuttiIbRail *rail, const tuttiGpuMemory *m, int access,
                                  bool relaxed);
/* As tuttiNet.reaches. */
bool tuttiIbReaches(void *node, const void *addr, size_t bytes);
/* A region that holds [addr, addr + bytes) and could be registered, or NULL, for one use; on host
 * memory registers it on first use. Forgets those that are gone. */
tuttiResult_t tuttiIbBorrow(tuttiIbNode *node, const void *addr, size_t bytes, tuttiIbRegion **r);
/* Deregisters those that are gone and not in use: their memory may be freed only for the kernel to
 * keep it until then. At each turn of the node, which a removal brings about. */
void tuttiIbForgetRegions(tuttiIbNode *node);
/* A use has ended; the last one of a region that is gone deregisters it. NULL is allowed. */
void tuttiIbReturn(tuttiIbRegion *region);
/* Forgets all; none is in use. */
void tuttiIbRegionsClose(tuttiIbNode *node);

/* ---- want.c */

/* Recv: tells the sender where the reader wants what has not come yet. */
void tuttiIbTellWants(tuttiIbEndpoint *e);
/* Recv: whether the sender was told a place for message m, of so many bytes. */
bool tuttiIbWasTold(const tuttiIbEndpoint *e, uint64_t m, size_t bytes);
/* Send: where the reader wants message m, if all queue pairs can write there; NULL: in its slot. */
const tuttiIbWant *tuttiIbWantOf(const tuttiIbEndpoint *e, uint64_t m);

/* ---- port.c */

/* Loads libibverbs on first use and fills tuttiVerbs; NULL, or what is missing and the remedy. */
const char *tuttiVerbsLoad(void);

/* Opens the ports that TUTTI_IB_HCA lets this rank use. None, or none that is up where another
 * network may be used: node->nrails is 0, and why (of TUTTI_SENTENCE bytes) says why. To be closed
 * also when it fails. */
tuttiResult_t tuttiIbNodeOpen(tuttiIbNode *node, char *why);
void tuttiIbNodeClose(tuttiIbNode *node);
/* Leaves out devices that have gone since, and says what may be expected of ports that are down;
 * the last step before peers are told of the ports. None is left because of that: node->nrails is
 * 0, and why says why. */
void tuttiIbNodeSettle(tuttiIbNode *node, char *why);
/* Reads what has happened to devices and ports; true if anything has. */
bool tuttiIbNodeEvents(tuttiIbNode *node);
/* The device was removed or has failed, so far as commands tell; its event may come later. For when
 * a command has failed. */
bool tuttiIbRailGone(const tuttiIbRail *rail);
/* The same by what the device says alone; for any thread. */
bool tuttiIbDeviceGone(const tuttiIbRail *rail);
#define TUTTI_IB_SILENT "it takes no commands any more"
/* The device has failed: its port counts as down for good. `why` is a clause. */
void tuttiIbRailLost(tuttiIbNode *node, tuttiIbRail *rail, const char *why);
/* The device promises that a queue pair's writes are placed one after the other; false also where
 * it does not say. */
bool tuttiIbOrdered(struct ibv_qp *qp);
/* The row in which the port has this address now; -1: none. */
int tuttiIbGidRow(const tuttiIbRail *rail, const tuttiIbGid *gid);
/* Whether memory is registered with relaxed ordering if all that is written there is told by
 * completions: `told`. Where none is written, it is. */
bool tuttiIbRelaxes(bool told);
/* What is written into host memory of this rank is told by completions on all its connections. */
bool tuttiIbHostTold(void);
/* Registers memory, `relaxed` as far as library and device take that; NULL and errno: not at all.
 */
struct ibv_mr *tuttiIbRegisterMr(const tuttiIbRail *rail, void *addr, size_t bytes, int access,
                                 bool relaxed);
/* The same for the peer to write to; the error names the remedy. */
tuttiResult_t tuttiIbRegister(tuttiIbNode *node, int rail, void *addr, size_t bytes, bool relaxed,
                              struct ibv_mr **mr);
void tuttiIbDeregister(struct ibv_mr *mr[TUTTI_IB_PORTS]); /* those that are there */
/* Device and kernel import dma-bufs. */
bool tuttiIbDmabuf(const tuttiIbRail *rail);
/* Registers `bytes` of the dma-buf `fd`, which stays the caller's, from `offset` on, as memory at
 * `address`, as tuttiIbRegisterMr; NULL and errno if it is refused. */
struct ibv_mr *tuttiIbRegisterDmabuf(const tuttiIbRail *rail, size_t offset, size_t bytes,
                                     uint64_t address, int fd, int access, bool relaxed);
/* What helps against errno `err` of a registration; returns buf. */
const char *tuttiIbRemedyText(int err, char *buf, size_t size);

/* ---- expose.c */

/* As of tuttiNet. */
void *tuttiIbExpose(void *node, void *base, size_t bytes, tuttiRmaKeys *keys);
void tuttiIbWithdraw(void *node, void *exposed);

/* ---- meet.c */

/* Makes or mends the connection as far as it goes now. */
tuttiResult_t tuttiIbMeetStep(tuttiIbEndpoint *e, tuttiProxyTurn *turn, bool *moved);
/* A queue pair of a running endpoint is no good any more: `why` is a clause for the error, should
 * it not be mended in time. */
void tuttiIbBreak(tuttiIbEndpoint *e, const tuttiIbQueuePair *q, const char *why);
/* As tuttiNet.tell. */
bool tuttiIbTell(void *end, tuttiProxyFacts *out);
/* Says of the connection, for node->broken, whether it is being made anew. */
void tuttiIbCountBroken(tuttiIbEndpoint *e, bool broken);
/* The queue pairs have carried a message: what was broken is mended. */
void tuttiIbWorks(tuttiIbEndpoint *e);
/* No queue pair of the endpoint reads or writes this side's memory any more. */
void tuttiIbQueuePairsStop(void *end);
void tuttiIbQueuePairsClose(tuttiIbEndpoint *e, bool forGood);

/* ---- endpoint.c */

/* Posts receives on a new queue pair, for which what has arrived so far is settled. */
void tuttiIbAwaitImmediates(tuttiIbQueuePair *q);
/* Sees to completions that do not come; at each turn of the node. */
void tuttiIbLookForStalls(tuttiIbNode *node);
/* Takes what the completion queues hold. */
void tuttiIbPoll(tuttiIbNode *node);
/* Send: the messages below `to` need nothing of this side any more. */
void tuttiIbPassTo(tuttiIbEndpoint *e, uint64_t to);
/* Recv: publishes the messages that have come. */
tuttiResult_t tuttiIbTakeMessages(tuttiIbEndpoint *e, bool *moved);

#endif

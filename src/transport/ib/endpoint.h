/* What the files of NET/IB share; nobody else includes this. See endpoint.c for how data moves,
 * meet.c for how connections are made and mended, port.c for devices and ports. */
#ifndef TUTTI_TRANSPORT_IB_ENDPOINT_H_
#define TUTTI_TRANSPORT_IB_ENDPOINT_H_

#include <infiniband/verbs.h>

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
} tuttiVerbsTable;
extern tuttiVerbsTable tuttiVerbs; /* valid once a node was opened */

/* One port that this communicator uses, with a context of its own: its events come here alone, and
 * nothing is left behind when the communicator ends. */
typedef struct {
  tuttiIbPort port;
  struct ibv_context *context;
  struct ibv_pd *pd;
  struct ibv_cq *cq;
  tuttiProxySource events; /* of the context */
  uint32_t megabits;
  int cqe, qps; /* size of cq, and queue pairs on it */
  bool gone;    /* the device was removed or has failed */
} tuttiIbRail;

/* What one rank keeps for all its NET/IB connections. */
typedef struct {
  tuttiCommView *view;
  int nrails;
  tuttiIbRail rails[TUTTI_IB_PORTS];
  tuttiIbHandle mine; /* as peers have it, but for `up`, which follows the rails */
  uint16_t pkey;      /* TUTTI_IB_PKEY at init: queue pairs made later must join those of peers */
  uint32_t changes;   /* counts ports that went up or down */
  bool watched;
  struct tuttiIbEndpoint *endpoints; /* those that have had a turn of the proxy */
  uint64_t regionsSeen;
  struct tuttiIbRegion *regions; /* memory of the user that is registered with rails */
  bool refused;                  /* some was not, which has been said */
} tuttiIbNode;

enum {
  TUTTI_IB_SENDS = 32,  /* requests that a queue pair takes */
  TUTTI_IB_SIGNALED = 8 /* small ones of which one has a completion */
};

struct tuttiIbEndpoint;

/* Memory of the user and its registration with each rail, or with none if one refused. */
typedef struct tuttiIbRegion {
  tuttiRegion region;
  struct ibv_mr *mr[TUTTI_IB_PORTS];
  uint32_t uses; /* messages under way out of it, and 1 while `region` is there */
  struct tuttiIbRegion *next;
} tuttiIbRegion;

/* One queue pair of an endpoint. */
typedef struct {
  struct tuttiIbEndpoint *end;
  struct ibv_qp *qp; /* NULL: not used now */
  /* Stopped while its port was down, and kept until that is back or the endpoint is closed:
   * ibv_destroy_qp may wait until the last packets have left the port (soft-RoCE). */
  struct ibv_qp *dead;
  tuttiIbPair pair;
  int rail;              /* of this side */
  uint32_t psn, rkey;    /* rkey: of the peer's FIFO */
  uint32_t maxInline;    /* bytes */
  uint32_t posted, done; /* requests, and those of them that are known to have left the queue */
  uint32_t unsignaled;   /* in a row */
  struct {
    uint64_t message; /* that it is the last request of */
    uint32_t posted;
  } signals[TUTTI_IB_SENDS]; /* the signaled requests that are under way */
  uint32_t first, last;      /* of these, counted modulo TUTTI_IB_SENDS */
} tuttiIbQueuePair;

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

/* What the endpoints write to each other besides payloads: the control block. It lies behind the
 * FIFO's credit, in its page; the sender's and the receiver's are alike, so each field is the
 * source of one and the target of the other. */
typedef struct {
  tuttiIbDescriptor descriptors[TUTTI_FIFO_DEPTH];
  /* By part, number + 1 of the message whose share of the payload has been written before. */
  tuttiAtomic64 shares[TUTTI_IB_QUEUE_PAIRS][TUTTI_FIFO_DEPTH];
  tuttiAtomic64 credit; /* to the sender: messages that the reader has taken; from credits[] */
  tuttiAtomic64 credits[TUTTI_IB_SENDS];
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
  tuttiIbHandle theirs;
  tuttiIbState state;
  struct ibv_mr *mr[TUTTI_IB_PORTS]; /* of the FIFO */
  tuttiIbControl *control;
  uint32_t epoch;   /* send: of the last offer */
  uint32_t avoid;   /* rails on which queue pairs have failed, by bit */
  uint32_t changes; /* node->changes when the queue pairs were made */
  int nqps, nparts;
  tuttiIbQueuePair qps[TUTTI_IB_QUEUE_PAIRS];
  tuttiIbQueuePair
      *parts[TUTTI_IB_QUEUE_PAIRS]; /* those in use, by the part of a payload that they carry */
  tuttiIbHandshake in, out;
  size_t got;      /* of in */
  uint64_t credit; /* send: messages that the reader has taken; recv: those that it told of */
  uint64_t posted;
  tuttiAtomic64 confirmed; /* send: messages that are known to have arrived; all when the peer has
                              closed its end */
  tuttiAtomic32 flush;     /* send: somebody waits until all are confirmed */
  bool incurable;          /* `trouble` is no matter of ports and paths */
  tuttiIbRegion *source[TUTTI_FIFO_DEPTH]; /* send: what the payload is in; NULL: the FIFO */
  const uint8_t *from[TUTTI_FIFO_DEPTH];   /* send: payload */
  uint32_t pending[TUTTI_FIFO_DEPTH];      /* send: parts that are not acknowledged, by bit */
  uint64_t deadline;                       /* of making or mending the queue pairs; 0: they work */
  uint64_t retryAt;                        /* send: no offer before */
  char trouble[320];                       /* what broke them last */
} tuttiIbEndpoint;

static inline bool tuttiIbSends(const tuttiIbEndpoint *e) {
  return e->meet.fifo.direction == TUTTI_SEND;
}

/* ---- port.c */

/* Opens the ports that TUTTI_IB_HCA lets this rank use. None: node->nrails is 0, and why (of
 * TUTTI_SENTENCE bytes) says why. To be closed also when it fails. */
tuttiResult_t tuttiIbNodeOpen(tuttiIbNode *node, char *why);
void tuttiIbNodeClose(tuttiIbNode *node);
/* Reads what has happened to devices and ports; true if anything has. */
bool tuttiIbNodeEvents(tuttiIbNode *node);
/* The row in which the port has this address now; -1: none. */
int tuttiIbGidRow(const tuttiIbRail *rail, const tuttiIbGid *gid);
/* Registers memory with a rail, for the peer to write to; the error names the remedy. */
tuttiResult_t tuttiIbRegister(tuttiIbNode *node, int rail, void *addr, size_t bytes,
                              struct ibv_mr **mr);
void tuttiIbDeregister(struct ibv_mr *mr[TUTTI_IB_PORTS]); /* those that are there */
/* Device and kernel import dma-bufs. */
bool tuttiIbDmabuf(const tuttiIbRail *rail);
/* A region that holds [addr, addr + bytes) and could be registered, or NULL, for one use; registers
 * it on first use. Forgets those that are gone. */
tuttiResult_t tuttiIbBorrow(tuttiIbNode *node, const void *addr, size_t bytes, tuttiIbRegion **r);
/* A use has ended; the last one of a region that is gone deregisters it. NULL is allowed. */
void tuttiIbReturn(tuttiIbRegion *region);

/* ---- meet.c */

/* Makes or mends the connection as far as it goes now. */
tuttiResult_t tuttiIbMeetStep(tuttiIbEndpoint *e, tuttiProxyTurn *turn, bool *moved);
/* A queue pair of a running endpoint is no good any more: `why` is a clause for the error, should
 * it not be mended in time. */
void tuttiIbBreak(tuttiIbEndpoint *e, const tuttiIbQueuePair *q, const char *why);
/* The queue pairs have carried a message: what was broken is mended. */
void tuttiIbWorks(tuttiIbEndpoint *e);
/* No queue pair of the endpoint reads or writes this side's memory any more. */
void tuttiIbQueuePairsStop(void *end);
void tuttiIbQueuePairsClose(tuttiIbEndpoint *e, bool forGood);

/* ---- endpoint.c */

/* Takes what the completion queues hold. */
void tuttiIbPoll(tuttiIbNode *node);
/* Send: the messages below `to` need nothing of this side any more. */
void tuttiIbPassTo(tuttiIbEndpoint *e, uint64_t to);
/* Recv: publishes the messages that have come. */
tuttiResult_t tuttiIbTakeMessages(tuttiIbEndpoint *e, bool *moved);

#endif

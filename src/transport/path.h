/* The path between two ranks: what connects them, at which cost, why, and why nothing better does.
 * Rows are filled at init, by src/wireup alone, and are read-only afterwards. They hold numbers
 * only; sentences are written when somebody wants to read them (tuttiPathText).
 *
 * Side 0 of a row is the rank with the lower number, side 1 the other; so a row is the same on both
 * ranks. */
#ifndef TUTTI_TRANSPORT_PATH_H_
#define TUTTI_TRANSPORT_PATH_H_

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

#define TUTTI_PATH_TRANSPORTS 4  /* most in the table of transports */
#define TUTTI_PATH_RAILS      16 /* most that a row tells; as many as a rank has ports */

/* Why a transport or a network connects two ranks, or does not. */
typedef struct {
  uint8_t code; /* from a list of its own, which has the sentences */
  uint8_t side; /* whose doing it is, where the sentence names one rank */
} tuttiReason;

/* What a queue pair joins: [0] of the sender, [1] of the receiver, as indexes into the ports and
 * addresses in their peer records. */
typedef struct {
  uint8_t port[2], gid[2];
  uint8_t
      gdr[2]; /* whether the port reads, [1]: writes, the memory of its rank's GPU: a tuttiGdr */
} tuttiRail;

/* The rail of one channel's messages to or from one peer. */
typedef struct {
  int32_t peer;
  uint8_t channel, direction; /* a tuttiDirection */
  tuttiRail rail;
} tuttiChannelRail;

/* How messages to a peer leave the host: by way of the memory of the GPU that is beside the peer's
 * rail, where the sender's is not (what NCCL calls PXN). */
typedef struct {
  int32_t lender; /* the rank whose GPU it is; -1: they go from the sender's own */
  tuttiRail rail; /* of the sender's and the receiver's ports; GDR of the lender's GPU */
} tuttiPxnWay;

struct tuttiTransport;
struct tuttiNet;

typedef struct tuttiPath {
  const struct tuttiTransport *transport; /* NULL: none connects these ranks */
  const struct tuttiNet *net;             /* the network that NET has asked last; NULL: none */
  const char *via;               /* the word of the log line: "SHM/direct", see tuttiPathVia */
  float latencyUs, bandwidthGBs; /* what the planner's cost model starts from */
  tuttiReason why[TUTTI_PATH_TRANSPORTS]; /* by place in the table, up to the transport's own */
  tuttiReason netWhy, netWhyNot;          /* of `net`, and of the network that was asked before */
  /* Capabilities: what the planner, executors and devices ask instead of comparing transports. */
  bool sharedFifos; /* a FIFO may have both ranks among its readers */
  bool direct;      /* either can dereference the other's memory */
  bool fetches;     /* the reader of a message can copy it straight out of the writer's memory */
  bool stores;      /* GPUs that store into each other's symmetric blocks */
  bool staged;      /* GPUs that meet in host memory which both have pinned */
  bool network;     /* a proxy moves the messages */
  bool oneFlow;     /* one connection has all of bandwidthGBs */
  /* RDMA: the rails of the first queue pairs, [0] where side 0 sends, [1] where side 1 does. */
  uint8_t nrails[2];
  tuttiRail rails[2][TUTTI_PATH_RAILS];
} tuttiPath;

/* Reasons and their sentences are one list, X(name, format and arguments...), of which these make
 * the enum and the body of a switch. The sentences may use what `explain` is given: a, b, path; and
 * who, the rank to which it is due. */
#define TUTTI_REASON_NAME(name, ...) name,
#define TUTTI_REASON_TEXT(name, ...)                                                               \
  case name:                                                                                       \
    snprintf(buf, size, __VA_ARGS__);                                                              \
    break;

__END_DECLS

#endif

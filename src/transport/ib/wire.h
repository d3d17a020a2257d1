/* What NET/IB says over its sockets, and how endpoints agree on ports and addresses: pure, without
 * verbs, so that it is tested and fuzzed anywhere.
 *
 * Each connection keeps the socket by which its endpoints met (socket/meet.c). Over it they
 * exchange handshakes of one size: the sender offers queue pairs, the receiver answers with its own
 * and with how many messages it has, and the sender goes on behind those. That is how a connection
 * begins, and also how it goes on over other ports or after a failure; each offer has a new epoch.
 * Each handshake tells of the ports as they are by then. The sender chooses which of them a queue
 * pair joins, and says so; the addresses follow from what the offer and its answer tell. */
#ifndef TUTTI_TRANSPORT_IB_WIRE_H_
#define TUTTI_TRANSPORT_IB_WIRE_H_

#include <sys/cdefs.h>

#include "topology/gdr.h"
#include "transport/socket/endpoint.h"

__BEGIN_DECLS

#define TUTTI_IB_PORTS       16
#define TUTTI_IB_GIDS        4 /* of a port that are told to peers */
#define TUTTI_IB_QUEUE_PAIRS 16

typedef enum { TUTTI_GID_IB, TUTTI_GID_ROCE1, TUTTI_GID_ROCE2, TUTTI_GID_TYPES } tuttiIbGidType;

typedef struct {
  uint8_t gid[16];
  uint16_t index; /* in the port's table */
  uint8_t type;   /* tuttiIbGidType */
  uint8_t forced; /* chosen by TUTTI_IB_GID_INDEX: any scope will do */
} tuttiIbGid;

/* One port of a device, as peers see it. */
typedef struct {
  char device[16];
  uint8_t port;
  uint8_t ethernet; /* RoCE; else InfiniBand */
  uint8_t mtu;      /* enum ibv_mtu: 1 (256 bytes) to 5 (4096 bytes) */
  uint8_t up;
  uint16_t lid;
  uint32_t megabits; /* of a port that was down at init: what may be expected of it */
  uint8_t ngids;
  uint8_t gdr, gdrRead;           /* tuttiGdr, of the rank's GPU: it writes there; it reads */
  uint8_t distance;               /* tuttiDistance from it; TUTTI_DISTANCE_COUNT: not known */
  tuttiIbGid gids[TUTTI_IB_GIDS]; /* best first */
} tuttiIbPort;

/* In tuttiPeer.net. */
typedef struct {
  tuttiSocketHandle socket;
  uint32_t megabits; /* of all ports that are up, or if none is, of all */
  int16_t nports;
  int16_t forced; /* TUTTI_NET names this network: no other will do */
  tuttiIbPort ports[TUTTI_IB_PORTS];
} tuttiIbHandle;

/* What NET/IB says where it cannot serve, also for those who judge a host without using it: the
 * library, how many devices there are, a device that cannot be opened, GPUDirect
 * RDMA that failed its check, locked memory. */
#define TUTTI_IB_NO_LIBRARY "%.200s; install rdma-core"
#define TUTTI_IB_NONE_ACTIVE                                                                       \
  "no port of %s%s is active (ibv_devinfo)" /* a device; TUTTI_IB_OTHERS */
#define TUTTI_IB_OTHERS(n) ((n) > 1 ? " and other RDMA devices" : "")
#define TUTTI_IB_NONE_USABLE                                                                       \
  "none of the %d RDMA devices here can be used (rights, kind, or TUTTI_IB_HCA)"
#define TUTTI_IB_NOT_OPENED "cannot open device %s: %s; see the rights on /dev/infiniband"
#define TUTTI_IB_GDR_BROKEN                                                                        \
  "no GPUDirect RDMA by %s port %d, though it should work: %s; payloads are staged in host "       \
  "memory or go by other ports"
#define TUTTI_IB_LOCKED_MEMORY                                                                     \
  "raise the limit on locked memory (ulimit -l, now %llu KiB; LimitMEMLOCK of the service, "       \
  "--ulimit memlock=-1 of the container) to unlimited"

/* What a queue pair joins; [0] of the sender, [1] of the receiver, as indexes into their handles.
 */
typedef struct {
  uint8_t port[2], gid[2];
} tuttiIbPair;

typedef enum {
  TUTTI_IB_OFFER,  /* sender: my queue pairs */
  TUTTI_IB_ANSWER, /* receiver: mine; go on with message `resume` */
  TUTTI_IB_AGAIN,  /* receiver: offer anew, something has broken here */
  TUTTI_IB_NEWS,   /* receiver: my ports have changed */
  TUTTI_IB_HANDSHAKE_COUNT
} tuttiIbHandshakeKind;

/* One queue pair. */
typedef struct {
  uint32_t qpn; /* 0: not used now */
  uint32_t psn;
  uint32_t rkey;     /* of the control block, on its port */
  uint32_t dataRkey; /* of the payloads */
  uint8_t port[2];   /* that it joins, as in tuttiIbPair */
  uint8_t unused[2];
} tuttiIbQueuePairInfo;

typedef struct {
  uint32_t magic; /* TUTTI_IB_MAGIC */
  uint32_t kind;  /* tuttiIbHandshakeKind */
  uint32_t epoch;
  int32_t nqps;
  uint64_t immediate;      /* 1: all that comes is told by completions (see below); else 0 */
  uint64_t resume, credit; /* answer: messages that have arrived; that the reader has taken */
  uint64_t control, data;  /* addresses in the FIFO */
  uint64_t small;          /* address of slots for payloads of up to smallBytes, which use rkey */
  uint64_t slotBytes, smallBytes;
  uint32_t failed; /* again: queue pairs that have failed there, by bit */
  int32_t nports;
  tuttiIbPort ports[TUTTI_IB_PORTS]; /* of who says it; `up`: this connection can use it */
  tuttiIbQueuePairInfo qps[TUTTI_IB_QUEUE_PAIRS];
} tuttiIbHandshake;
#define TUTTI_IB_MAGIC 0x74696264u

/* Where writes may be placed in any order, the last one of each share of a message, each credit and
 * each want carry 32 bits that the receiver's completion has: which of these it is, and a number's
 * low bits. The queue pair says whose share it is, and completions are in order. */
typedef enum { TUTTI_IB_SHARE, TUTTI_IB_CREDIT, TUTTI_IB_WANT } tuttiIbImmediateKind;
#define TUTTI_IB_IMMEDIATE_BITS 30
#define TUTTI_IB_IMMEDIATE_MASK ((UINT32_C(1) << TUTTI_IB_IMMEDIATE_BITS) - 1)
static inline uint32_t tuttiIbImmediate(tuttiIbImmediateKind kind, uint64_t number) {
  return (uint32_t)kind << TUTTI_IB_IMMEDIATE_BITS | ((uint32_t)number & TUTTI_IB_IMMEDIATE_MASK);
}
static inline tuttiIbImmediateKind tuttiIbImmediateKindOf(uint32_t immediate) {
  return (tuttiIbImmediateKind)(immediate >> TUTTI_IB_IMMEDIATE_BITS);
}
/* The number that an immediate means, which is not below `least`. */
static inline uint64_t tuttiIbImmediateNumber(uint32_t immediate, uint64_t least) {
  return least + ((immediate - (uint32_t)least) & TUTTI_IB_IMMEDIATE_MASK);
}

/* NULL, or what is wrong with what a peer said. Of the two sides, [0] is the peer, and ports are
 * how many they told of at init. An answer is compared with the `offer` it answers; NULL: it must
 * be no answer. */
const char *tuttiIbPortsCheck(const tuttiIbPort *ports, int n);
const char *tuttiIbHandshakeCheck(const tuttiIbHandshake *h, size_t slotBytes, const int nports[2],
                                  const tuttiIbHandshake *offer);

/* Chooses the addresses by which two ports reach each other, as indexes of their gids: same type
 * and family, RoCE v2 before v1, nothing link-local unless forced, the pair that shares most of its
 * prefix first. InfiniBand ports need the same link layer only, and are better in one subnet.
 * Returns how good the choice is; 0: none fits. */
int tuttiIbGidChoose(const tuttiIbPort *a, const tuttiIbPort *b, int *gidA, int *gidB);
/* What queue pair number `qp` joins, of ports that are usable (see below), and of these the ones
 * nearest to the GPUs, unless addresses show farther ones to reach better: each port the one
 * that its address is nearest to, and where that would leave ports out, as in one flat subnet, rail
 * k with rail k as far as addresses fit. False: the sender's port for it reaches none of the
 * receiver's. */
bool tuttiIbPairChoose(const tuttiIbHandle *send, const tuttiIbHandle *recv, int qp,
                       tuttiIbPair *pair);
/* The same for nqps queue pairs from number `first` on, without those for which it is false;
 * returns how many are left in pairs[nqps]. Costs little more than a single choice. */
int tuttiIbPairsChoose(const tuttiIbHandle *send, const tuttiIbHandle *recv, int first, int nqps,
                       tuttiIbPair *pairs);
/* How many queue pairs it takes for each port that is used to have one. */
int tuttiIbPairsFull(const tuttiIbHandle *send, const tuttiIbHandle *recv);

/* Whether connections by which the rank sends, or receives, use this port of its: those that are
 * up, if there are such, and of these the ones that read, or write, the memory of its GPU, if there
 * are such. */
bool tuttiIbPortUsable(const tuttiIbHandle *h, int port, bool sends);
/* Whether connections by which the rank receives would use this port of its, which is down, if it
 * were up, as far as can be told: it has an address that says which part of the network it is on,
 * and is to be checked for the memory of the GPU where the ports that are up reach that. */
bool tuttiIbPortLater(const tuttiIbHandle *h, int port);

/* Whether the list of TUTTI_IB_HCA allows this port: prefixes, or exact names after '=', with or
 * without ":port"; after '^' they exclude. */
bool tuttiIbPortAllowed(const char *list, const char *name, int port);

/* Whether nothing has changed that a connection depends on. */
bool tuttiIbPortSame(const tuttiIbPort *a, const tuttiIbPort *b);

/* Puts the better of a port's gids first, of which at most TUTTI_IB_GIDS are kept; drops empty
 * ones, and those of the wrong `family` ("", AF_INET, AF_INET6) or RoCE `version` (0: any). */
void tuttiIbPortAddGid(tuttiIbPort *port, const tuttiIbGid *gid, const char *family, int version);

/* Whether a port may tell peers this address of its table on RoCE: others are of no use to them,
 * unless TUTTI_IB_GID_INDEX says so. */
bool tuttiIbGidReaches(const tuttiIbGid *gid);

/* "10.0.0.1 (RoCE v2, index 1)" and "rxe0:1 up, 10.0.0.1 (RoCE v2, index 1), ..."; return buf. */
const char *tuttiIbGidText(const tuttiIbGid *gid, char *buf, size_t size);
const char *tuttiIbPortsText(const tuttiIbPort *ports, int n, char *buf, size_t size);

__END_DECLS

#endif

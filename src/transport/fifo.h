/* A connection: a one-directional FIFO of slots from one writer to one or more readers. One layout,
 * whatever moves the bytes: peers that map each other's memory share it; with a network in between
 * each side has its own, and the proxy moves slots from one to the other.
 *
 *   writer                                      reader r
 *   waits until every credit > n - DEPTH        waits until descriptor[n % DESCRIPTORS].seq == n +
 * 1 fills payload n, then descriptor n          reads descriptor n, then payload n descriptor n's
 * seq = n + 1    (release)     credit[r] = n + 1              (release)
 *
 * Everything about one message is in its slot descriptor of 128 bytes (the pair of cache lines that
 * x86 fetches together): number, size, signature, and the payload itself when it is small (protocol
 * LL). A larger payload is in the slot's data (protocol Simple), or stays where it is and the
 * descriptor holds its address (direct: the reader can dereference the writer's memory, or copy out
 * of it); the writer then leaves it untouched until its readers have given credit for it.
 *
 * Memory that ranks share has more descriptors than payloads: with messages that need no more a
 * writer gets so far ahead that it and its readers rarely meet at one descriptor. Where ranks share
 * cores there are more still, each with a small payload, so that they take turns less often. */
#ifndef TUTTI_TRANSPORT_FIFO_H_
#define TUTTI_TRANSPORT_FIFO_H_

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "base/backoff.h"
#include "collectives/signature.h"
#include "transport/remote.h"

#define TUTTI_FIFO_DEPTH       8u    /* payloads outside of their descriptors */
#define TUTTI_FIFO_DESCRIPTORS 32u   /* in shared memory, times 4 if ranks share cores */
#define TUTTI_SMALL_MAX        2048u /* most bytes of a payload that each descriptor has one of */
#define TUTTI_LINE             128
#define TUTTI_INLINE_MAX       80u
#define TUTTI_FETCH_MIN        8192u /* below, copying twice costs less than the system call */

/* Where the payload of a message is. */
typedef enum {
  TUTTI_WHERE_SLOT = 0,   /* in the slot's data */
  TUTTI_WHERE_INLINE = 1, /* in the descriptor */
  /* at `addr` in the writer's memory; from a network: where a receive was posted */
  TUTTI_WHERE_DIRECT = 2,
  TUTTI_WHERE_WINDOW = 3 /* from a network: in a window of the reader's, see rma_message.h */
} tuttiWhere;

typedef struct {
  tuttiAtomic64 seq; /* message number + 1, stored last */
  uint64_t addr;     /* TUTTI_WHERE_DIRECT */
  uint32_t bytes;
  uint32_t where;
  tuttiSignature sig;
  uint8_t inlined[TUTTI_INLINE_MAX];
} __attribute__((aligned(TUTTI_LINE))) tuttiSlotDescriptor;

typedef struct {
  tuttiAtomic64 credit;    /* messages this reader has taken */
  tuttiAtomic32 reading;   /* the reader is in the writer's memory */
  tuttiAtomic32 withdrawn; /* the writer has failed: its memory is no longer lent */
  tuttiAtomic32 fetches; /* the reader cannot dereference the writer's memory, but copy out of it */
  /* Where ranks sleep (tuttiBellSet); in a cache line that changes only when one does. */
  tuttiAtomic32 readerBell __attribute__((aligned(TUTTI_LINE / 2))); /* it waits for a message */
  tuttiAtomic32 writerBell;                                          /* for this reader's credit */
} __attribute__((aligned(TUTTI_LINE))) tuttiReader;

/* Where a reader wants the payload of a message that a network brings, if it has so many bytes.
 * Written by a CPU or by a kernel. */
typedef struct {
  tuttiAtomic64 seq; /* number + 1, stored last */
  uint64_t addr;
  uint32_t bytes, unused;
} tuttiPost;

typedef enum { TUTTI_RECV = 0, TUTTI_SEND = 1 } tuttiDirection;

struct tuttiTransport;

/* How the writer of a connection stores payloads in its slots, see device/cpu/stores.h. */
typedef struct {
  uint32_t left;   /* bytes until both ways are compared again */
  uint8_t streams; /* past the caches */
  uint8_t doubts;  /* comparisons in a row that spoke for the other way */
  uint8_t turn;    /* which way goes first */
} tuttiStoreWay;

/* One endpoint of a connection, private to one rank and used by one thread at a time. */
typedef struct tuttiConn {
  tuttiSlotDescriptor *descriptors; /* [ndescriptors] */
  tuttiReader *readers;             /* send: [nreaders]; recv: this reader's own, one */
  tuttiPost *posts;                 /* recv over a network: [TUTTI_FIFO_DEPTH] */
  uint8_t *data;                    /* TUTTI_FIFO_DEPTH * slotBytes */
  uint8_t *small;                   /* ndescriptors * smallBytes: payloads of no more than that */
  size_t slotBytes, smallBytes;     /* multiples of TUTTI_LINE */
  uint64_t next;                    /* number of the next message here */
  uint64_t ahead;                   /* recv: of the first that its reader has not looked ahead to */
  uint64_t credit;                  /* send: what the readers had taken at the last look */
  uint32_t ndescriptors;            /* a power of two */
  int32_t nreaders;                 /* send: 1, or all neighbours of a shared FIFO */
  int32_t peer;                     /* the other rank; -1 for the writer of a shared FIFO */
  int32_t channel;
  uint8_t direction;  /* tuttiDirection */
  uint8_t direct;     /* the reader can dereference the writer's memory */
  uint8_t registered; /* send: but only what tuttiRegionFind finds */
  uint8_t fetched;    /* send: tuttiConnFetched was true */
  uint8_t gpuData;    /* `data`, but not `small`, is memory of this rank's GPU: not for CPUs */
  uint8_t lends;      /* send, gpuData: kernels may send what tuttiNetReaches from where it is */
  uint8_t network;    /* a proxy moves the slots: call tuttiProxyKick after each publish/release */
  tuttiStoreWay stores; /* send */
  tuttiRemote writer;   /* recv: whose memory this reader can copy out of; pid 0: nobody's */
  const struct tuttiTransport *transport;
  void *endpoint; /* the transport's own state of this endpoint */
} tuttiConn;

/* Bytes of the descriptors and credits of a FIFO with n readers; its data follows, page-aligned or
 * not as its owner likes. */
static inline size_t tuttiFifoControlBytes(uint32_t descriptors, int nreaders) {
  return descriptors * sizeof(tuttiSlotDescriptor) + (size_t)nreaders * sizeof(tuttiReader);
}

/* A signature whose number was written a moment ago, in a word: a wider load would wait until that
 * store, and all before it, have left the core. */
static inline void tuttiSlotSign(tuttiSlotDescriptor *slot, const tuttiSignature *sig) {
  uint64_t seq = sig->seq;
  __asm__("" : "+r"(seq)); /* so the compiler loads it by itself */
  slot->sig.seq = seq;
  slot->sig.count = sig->count;
  slot->sig.root = sig->root;
  slot->sig.coll = sig->coll;
  slot->sig.type = sig->type;
  slot->sig.redop = sig->redop;
}

static inline tuttiSlotDescriptor *tuttiConnDescriptor(const tuttiConn *c) {
  return &c->descriptors[c->next & (c->ndescriptors - 1)];
}
/* Where a payload of so many bytes goes that is not in its descriptor, and how many there are. */
static inline uint8_t *tuttiConnData(const tuttiConn *c, size_t bytes) {
  if (bytes <= c->smallBytes) return c->small + (c->next & (c->ndescriptors - 1)) * c->smallBytes;
  return c->data + (size_t)(c->next % TUTTI_FIFO_DEPTH) * c->slotBytes;
}
static inline uint32_t tuttiConnDepth(const tuttiConn *c, size_t bytes) {
  return bytes <= TUTTI_INLINE_MAX || bytes <= c->smallBytes ? c->ndescriptors : TUTTI_FIFO_DEPTH;
}

/* Least of the credits: every message below it has been taken by all readers. */
static inline uint64_t tuttiConnCredit(const tuttiConn *c) {
  uint64_t least = tuttiLoadAcquire(&c->readers[0].credit);
  for (int r = 1; r < c->nreaders; r++) {
    uint64_t h = tuttiLoadAcquire(&c->readers[r].credit);
    if (h < least) least = h;
  }
  return least;
}

/* Send: every reader can copy out of this process's memory. */
static inline bool tuttiConnFetched(tuttiConn *c) {
  for (int r = 0; r < c->nreaders && !c->fetched; r++)
    if (tuttiLoadAcquire32(&c->readers[r].fetches) == 0) return false;
  c->fetched = true;
  return true;
}

/* Send: less than `depth` messages are under way. */
static inline bool tuttiConnRoom(tuttiConn *c, uint32_t depth) {
  if (c->next >= c->credit + depth) c->credit = tuttiConnCredit(c);
  return c->next < c->credit + depth;
}

/* Send: a message of any size may be written. Recv: a message is there. */
static inline bool tuttiConnReady(tuttiConn *c) {
  if (c->direction == TUTTI_RECV)
    return tuttiLoadAcquire(&tuttiConnDescriptor(c)->seq) == c->next + 1;
  return tuttiConnRoom(c, TUTTI_FIFO_DEPTH);
}

/* Send: publishes the slot that the caller has filled, and asks for the descriptor of the next
 * message: whatever this core does before that message then hides the way from the other core's
 * cache. Not if a reader may be about to read there. Recv: gives the slot back. */
static inline void tuttiConnAdvance(tuttiConn *c) {
  bool sends = c->direction == TUTTI_SEND;
  tuttiStoreRelease(sends ? &tuttiConnDescriptor(c)->seq : &c->readers[0].credit, c->next + 1);
  c->next++;
  if (!sends || c->next >= c->credit + c->ndescriptors) return;
  __builtin_prefetch(tuttiConnDescriptor(c), 1);
  __builtin_prefetch((const uint8_t *)tuttiConnDescriptor(c) + TUTTI_LINE / 2, 1);
}

/* Recv: asks for the descriptor behind this one, where the writer is ahead of its reader. */
static inline void tuttiConnLookAhead(const tuttiConn *c) {
  __builtin_prefetch(&c->descriptors[(c->next + 1) & (c->ndescriptors - 1)]);
}

/* Where the caller may sleep until the peer that it waits for rings: of several readers the one
 * that is farthest behind. NULL over a network, where nobody rings. */
static inline tuttiAtomic32 *tuttiConnBell(const tuttiConn *c) {
  if (c->network) return NULL;
  if (c->direction == TUTTI_RECV) return &c->readers[0].readerBell;
  uint64_t least = tuttiConnCredit(c);
  int r = 0;
  while (r < c->nreaders - 1 && tuttiLoadAcquire(&c->readers[r].credit) > least)
    r++;
  return &c->readers[r].writerBell;
}
/* Somebody sleeps until this endpoint advances, or did a moment ago. */
static inline bool tuttiConnSlept(const tuttiConn *c) {
  if (c->direction == TUTTI_RECV) return tuttiLoadRelaxed32(&c->readers[0].writerBell) != 0;
  uint32_t set = 0;
  for (int r = 0; r < c->nreaders; r++)
    set |= tuttiLoadRelaxed32(&c->readers[r].readerBell);
  return set != 0;
}

/* Recv over a network: the payload of message m, one of the next TUTTI_FIFO_DEPTH, may go straight
 * to `at` if it has `bytes`, and is then DIRECT there; what has begun to arrive stays in the slot.
 * A receive that a failed operation posted is forgotten with tuttiProxyHalt. */
static inline void tuttiConnPostReceive(tuttiConn *c, uint64_t m, void *at, size_t bytes) {
  tuttiPost *post = &c->posts[m % TUTTI_FIFO_DEPTH];
  post->addr = (uintptr_t)at;
  post->bytes = (uint32_t)bytes;
  tuttiStoreRelease(&post->seq, m + 1);
}
/* Recv over a network: its reader waits for the next message, and takes it from its slot. */
static inline void tuttiConnPostNone(tuttiConn *c) {
  tuttiConnPostReceive(c, c->next, NULL, 0);
}
/* Proxy: the reader has said where it wants message m, or that it has no place for it. */
static inline bool tuttiIsAsked(const tuttiConn *c, uint64_t m) {
  return tuttiLoadAcquire(&c->posts[m % TUTTI_FIFO_DEPTH].seq) == m + 1;
}
/* Proxy: where a receive is posted for message m of so many bytes; NULL: in its slot. */
static inline uint8_t *tuttiPosted(const tuttiConn *c, uint64_t m, size_t bytes) {
  const tuttiPost *post = &c->posts[m % TUTTI_FIFO_DEPTH];
  bool posted = tuttiLoadAcquire(&post->seq) == m + 1 && post->bytes == bytes;
  return posted ? (uint8_t *)(uintptr_t)post->addr : NULL;
}

/* A direct payload is lent until its reader gives credit for it. When the writer fails it cannot
 * wait for that, yet its user may free the memory as soon as the failed call returns; so between
 * threads the reader announces that it reads, and the writer withdraws. Each stores, then looks at
 * the other's word: at least one sees the other. A reader in another process may be killed or
 * stopped in mid-copy, so nobody waits for it: it looks for the withdrawal when it has copied, and
 * a copy that came too late is not used. */

/* Recv, before the payload is read: false if it was withdrawn. */
static inline bool tuttiConnBorrow(tuttiConn *c) {
  tuttiStoreSeqCst32(&c->readers[0].reading, 1);
  if (tuttiLoadSeqCst32(&c->readers[0].withdrawn) == 0) return true;
  tuttiStoreRelease32(&c->readers[0].reading, 0);
  return false;
}
/* Recv, after the payload was read. */
static inline void tuttiConnReturn(tuttiConn *c) {
  tuttiStoreRelease32(&c->readers[0].reading, 0);
}
/* Recv: what the writer lent is gone for good. Whatever was read before this call and is not, was
 * still lent when it was read. */
static inline bool tuttiConnWithdrawn(tuttiConn *c) {
  return tuttiFetchAddAcqRel32(&c->readers[0].withdrawn, 0) != 0;
}
/* Send: no thread reads lent memory any more when it returns, after a reader's step at most. */
static inline void tuttiConnWithdraw(tuttiConn *c) {
  for (int r = 0; r < c->nreaders; r++) {
    tuttiStoreSeqCst32(&c->readers[r].withdrawn, 1);
    while (tuttiLoadSeqCst32(&c->readers[r].reading) != 0) {
    }
  }
}

#endif

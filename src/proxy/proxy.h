/* The proxy: moves the slots of network connections. One short loop that never blocks: each
 * operation on its list advances as far as it can and returns. One proxy per communicator; two on
 * GPUs, where nobody else runs the loop: the other has the socket endpoints that receive
 * (tuttiCommView.receiver).
 *
 * Who runs the loop: while the CPU's executor waits, it runs it itself (tuttiProxyRun), which saves
 * the hand-over between threads; the proxy thread takes it up when nobody else does (data still
 * leaving after a call returned, peers connecting, CUDA communicators), and sleeps in poll(2),
 * using no CPU, when nothing can move. */
#ifndef TUTTI_PROXY_PROXY_H_
#define TUTTI_PROXY_PROXY_H_

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "tutti.h"

__BEGIN_DECLS

typedef struct tuttiProxy tuttiProxy;

/* What an operation says after each turn. */
typedef enum {
  TUTTI_PROXY_IDLE,    /* nothing to do until a FIFO or a descriptor changes */
  TUTTI_PROXY_WAITING, /* in the middle of work that a descriptor or the clock will let go on */
  TUTTI_PROXY_MOVED,   /* moved something: call again soon */
  TUTTI_PROXY_FAILED   /* failed, see tuttiProxyTurn: not called again */
} tuttiProxyState;

/* One pass of the loop, as its operations see it. */
typedef struct {
  bool eager;           /* try descriptors without waiting for their flags */
  bool attended;        /* by a caller that waits; else by the proxy's thread */
  uint64_t wake;        /* tuttiNow() clock; lowered to when an operation wants its next turn at the
                           latest, though no descriptor moves */
  tuttiResult_t result; /* of an operation that returns FAILED; its text is the last error */
  int polled; /* operations that wait for no descriptor but look for themselves add one each turn */
} tuttiProxyTurn;

static inline void tuttiProxyWakeBy(tuttiProxyTurn *turn, uint64_t when) {
  if (when < turn->wake) turn->wake = when;
}

/* What an operation tells of itself, if it is the endpoint of a connection. */
typedef struct {
  int32_t peer, channel;
  bool sends;
  bool busy;    /* messages are under way, or the connection is */
  bool atLeast; /* its rates were reached, and nobody knows whether by the link's limit */
  uint64_t written, taken; /* sent and acknowledged; or come and taken by the reader */
  char text[160];          /* how its sockets or queue pairs are; "" */
  /* kB/s of its link, and of all that it shared the NIC with meanwhile: see transport/meter.h. 0:
     not known. */
  uint32_t rate, allRate;
  char nic[2][24]; /* the sender's and the receiver's, if a rate is told: "mlx5_0:1", "eth0", "" */
} tuttiProxyFacts;

/* One thing the proxy keeps going. Its calls are made with the loop's lock held, so operations of
 * one proxy may touch each other, and must not call Add, Remove, Halt, Share or Destroy. */
typedef struct tuttiProxyOp {
  tuttiProxyState (*advance)(void *self, tuttiProxyTurn *turn); /* never blocks */
  void (*close)(void *self); /* by Remove, after the last advance: unwatches and frees */
  void *self;
  bool lazy; /* its work may wait until the next Enter, or some milliseconds, when callers leave */
  void (*halt)(void *self); /* by Halt: stops what touches the user's memory by itself */
  bool (*tell)(void *self, tuttiProxyFacts *out); /* by Tell; false: it is no endpoint */
} tuttiProxyOp;

/* For operations that own nothing, and for those that touch no memory of the user by themselves: no
 * call of a tuttiProxyOp is NULL. */
void tuttiProxyNothingToClose(void *self);
void tuttiProxyNothingToHalt(void *self);
bool tuttiProxyNothingToTell(void *self, tuttiProxyFacts *out);

/* A descriptor of an operation, and what is known of it. The proxy learns of changes from an
 * edge-triggered epoll set, one system call per pass however many descriptors there are, and sets
 * the flags; the operation clears a flag when the kernel says EAGAIN.
 *
 * With few operations and a caller that spins on the loop, asking epoll first would only add a
 * system call to each message: such passes are eager and try the sockets themselves. */
typedef struct tuttiProxySource {
  int fd; /* -1: none */
  bool readable, writable;
  bool hangup; /* the peer has closed or failed: keep reading until the end */
} tuttiProxySource;

/* `fail(ctx, code, text)` is called from whichever thread runs the loop, at most once per operation
 * and with the loop's lock held. The thread starts with the first operation. */
tuttiResult_t tuttiProxyCreate(tuttiProxy **proxy,
                               void (*fail)(void *ctx, tuttiResult_t code, const char *text),
                               void *ctx);
/* One thread for all proxies of the process for which this was called, also those of other
 * communicators: where there is no core for each. They hold each other up as operations of one
 * proxy do, and whoever enters one serves all. Does nothing once something has been added; nobody
 * else may use the proxy meanwhile. */
void tuttiProxyShare(tuttiProxy *proxy);
/* Ends the thread, if no other proxy has it; operations are dropped, not closed. NULL is allowed.
 */
void tuttiProxyDestroy(tuttiProxy *proxy);

/* Thread-safe. After Remove returns, the operation is not running and will not be called. */
tuttiResult_t tuttiProxyAdd(tuttiProxy *proxy, const tuttiProxyOp *op);
void tuttiProxyRemove(tuttiProxy *proxy, void *self);
/* After it returns no operation is running and none will be advanced: from then on nothing touches
 * memory of the user. For a communicator that has failed, before the call that failed returns. */
void tuttiProxyHalt(tuttiProxy *proxy);

/* What its endpoints tell, at most `max` of them, those first that are busy, then those that know a
 * rate; returns how many. Any thread, which waits a few milliseconds at most for whoever runs the
 * loop, and then gets 0. */
int tuttiProxyTell(tuttiProxy *proxy, tuttiProxyFacts *out, int max);

/* Starts and stops to hear of source->fd. Only from inside an operation's advance or close. */
tuttiResult_t tuttiProxyWatch(tuttiProxy *proxy, tuttiProxySource *source);
void tuttiProxyUnwatch(tuttiProxy *proxy, tuttiProxySource *source);

/* One pass over all operations by the calling thread, which has entered, unless another is at it.
 * True: moved something. */
bool tuttiProxyRun(tuttiProxy *proxy);
/* Sleeps for so long, or until the kernel has something to say of a descriptor that is watched; the
 * next pass asks for it. */
void tuttiProxyNap(tuttiProxy *proxy, uint32_t us);
/* Says that a FIFO changed; wakes the thread if it sleeps. Cheap when it does not. Freed: that the
 * change is only room for what may come, which does not keep the last one who leaves. */
void tuttiProxyKick(tuttiProxy *proxy);
void tuttiProxyFreed(tuttiProxy *proxy);
/* Between Enter and Leave the caller promises to run the loop itself, so that the thread stays
 * asleep; counted. The last Leave hands over what is still on its way. */
void tuttiProxyEnter(tuttiProxy *proxy);
void tuttiProxyLeave(tuttiProxy *proxy);

__END_DECLS

#endif

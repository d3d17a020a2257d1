/* The proxy: moves the slots of network connections. One short loop that never blocks: each
 * operation on its list advances as far as it can and returns. One proxy per communicator.
 *
 * Who runs the loop: while a host executor waits, it runs it itself (tuttiProxyRun), which saves
 * the hand-over between threads; the proxy thread takes it up when nobody else does (data still
 * leaving after a call returned, peers connecting, CUDA communicators), and sleeps in poll(2),
 * using no CPU, when nothing can move. */
#ifndef TUTTI_PROXY_PROXY_H_
#define TUTTI_PROXY_PROXY_H_

#include <stdbool.h>
#include <stdint.h>

#include "tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tuttiProxy tuttiProxy;

typedef enum {
  TUTTI_PROXY_IDLE,
  TUTTI_PROXY_MOVED,
  TUTTI_PROXY_DONE,
  TUTTI_PROXY_FAILED
} tuttiProxyState;

/* One thing the proxy keeps going. `advance` never blocks; on FAILED the thread's last error says
 * why, the operation is not called again, and the proxy calls its `fail` callback. */
typedef struct tuttiProxyOp {
  tuttiProxyState (*advance)(void *self);
  /* Descriptors to sleep on while idle. */
  void (*waitOn)(void *self, void (*add)(void *ctx, int fd, short events), void *ctx);
  void *self;
} tuttiProxyOp;

/* `fail(ctx, code, text)` is called from whichever thread runs the loop. The thread starts with the
 * first operation. */
tuttiResult_t tuttiProxyCreate(tuttiProxy **proxy,
                               void (*fail)(void *ctx, tuttiResult_t code, const char *text),
                               void *ctx);
/* Ends the thread; operations are dropped, not closed. NULL is allowed. */
void tuttiProxyDestroy(tuttiProxy *proxy);

/* Thread-safe. After Remove returns, the operation is not running and will not be called. */
tuttiResult_t tuttiProxyAdd(tuttiProxy *proxy, const tuttiProxyOp *op);
void tuttiProxyRemove(tuttiProxy *proxy, void *self);

/* One pass over all operations by the calling thread, unless another is at it. True: moved
 * something. */
bool tuttiProxyRun(tuttiProxy *proxy);
/* Says that a FIFO changed; wakes the thread if it sleeps. Cheap when it does not. */
void tuttiProxyKick(tuttiProxy *proxy);
/* Between Enter and Leave the caller promises to run the loop itself, so that the thread stays
 * asleep; counted. */
void tuttiProxyEnter(tuttiProxy *proxy);
void tuttiProxyLeave(tuttiProxy *proxy);

#ifdef __cplusplus
}
#endif

#endif

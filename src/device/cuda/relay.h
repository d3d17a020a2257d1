/* One-sided operations with GPUs that this one does not store to: by messages in the slots of a
 * connection (transport/rma_message.h). A kernel writes them in order of its stream; the receiver's
 * taker, a proxy of its own, since it waits for copies, puts what has come into the window and
 * counts the signal in host memory, where kernels wait for it. Takes no part in captures: all that
 * kernels need is there before the launch. */
#ifndef TUTTI_DEVICE_CUDA_RELAY_H_
#define TUTTI_DEVICE_CUDA_RELAY_H_

#include <sys/cdefs.h>

#include "base/pinned.h"
#include "collectives/task.h"
#include "kernels/onesided.h"
#include "proxy/proxy.h"
#include "transport/rma.h"
#include "transport/rma_net.h"

__BEGIN_DECLS

/* What the operation of one proxy knows, which keeps it looking while kernels have messages. */
typedef struct {
  struct tuttiCudaRelay *relay;
  uint64_t seen;      /* what kernels had told at its last turn */
  uint64_t busyUntil; /* tuttiNow() clock */
} tuttiCudaRelayServer;

#define TUTTI_RELAY_PROXIES 3 /* those that send, receive and take; the second may be missing */

/* Of one communicator. */
typedef struct tuttiCudaRelay {
  tuttiTaskContext *context;
  tuttiCommView *view;
  int device;
  bool any;       /* there are such GPUs */
  bool network;   /* some of them are reached by one */
  uint32_t napUs; /* of proxies between two looks; 0: none */
  tuttiKernelStatus *status, *statusOnDevice;
  tuttiRmaNet *net; /* NULL: before the first window, or there is no such GPU */
  tuttiStream_t copies;
  tuttiAtomic64 *arrived; /* [nranks][contexts][signals], pinned */
  size_t arrivedBytes;
  uint64_t *arrivedOnDevice;
  tuttiPinned pinned;
  tuttiRingTreeEndpoint *endpoints; /* GPU: [nranks] to send to */
  size_t endpointsBytes;            /* of these and guards */
  uint32_t *guards;                 /* GPU: [nranks] of these */
  uint8_t *opened;                  /* [nranks] that one is known to the GPU */
  bool *listening;                  /* [nranks] */
  tuttiAtomic64 busyUntil; /* tuttiNow() clock: after a launch, or a message; 0: none yet */
  tuttiCudaRelayServer servers[TUTTI_RELAY_PROXIES];
  int served;
} tuttiCudaRelay;

/* On the current device, before any kernel runs. Undone by Stop, after which no proxy has anything
 * to do with it, and which needs no CUDA, as that may have been shut down; then Close, when no
 * kernel runs any more. Both also after a failure. */
tuttiResult_t tuttiCudaRelayInit(tuttiCudaRelay *r, tuttiCommView *v, tuttiTaskContext *context,
                                 tuttiKernelStatus *status);
void tuttiCudaRelayStop(tuttiCudaRelay *r);
void tuttiCudaRelayClose(tuttiCudaRelay *r);

/* Whether operations with `peer` take this way. */
bool tuttiCudaRelays(const tuttiCudaRelay *r, int peer);

/* From now on peers may write to a window, as tuttiRmaWindowOpen; takes what comes of all. */
tuttiResult_t tuttiCudaRelayOpen(tuttiCudaRelay *r, uint32_t number, void *base, size_t size,
                                 tuttiRmaKeys *keys);
/* Nothing is being copied into it when it returns. */
void tuttiCudaRelayShut(tuttiCudaRelay *r, uint32_t number);

/* By a thread that has entered the device. Makes what the messages of a put need, before its
 * launch; then the launch, reported as of `counter` while it waits for room. */
tuttiResult_t tuttiCudaRelayPrepare(tuttiCudaRelay *r, int peer);
tuttiResult_t tuttiCudaRelayPut(tuttiCudaRelay *r, const tuttiRmaPut *put, uint32_t counter,
                                tuttiStream_t stream);
/* A kernel is about to be launched, or captured, that waits for signals of such peers. */
tuttiResult_t tuttiCudaRelayAnnounce(tuttiCudaRelay *r);
/* A server's turn. */
tuttiProxyState tuttiCudaRelayServe(void *server, tuttiProxyTurn *turn);

__END_DECLS

#endif

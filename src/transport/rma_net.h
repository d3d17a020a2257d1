/* One-sided operations by messages: over a network, see rma.h, and between GPUs that do not store
 * to each other. Each message of a connection of TUTTI_RMA_CHANNEL has a header that says where its
 * data goes (rma_message.h); the last of a put also counts a signal. An operation of one of the
 * receiver's proxies takes them out of their slots, and believes no header before it has checked
 * it. */
#ifndef TUTTI_TRANSPORT_RMA_NET_H_
#define TUTTI_TRANSPORT_RMA_NET_H_

#include <sys/cdefs.h>

#include "proxy/proxy.h"
#include "transport/rma.h"

__BEGIN_DECLS

typedef struct tuttiRmaNet tuttiRmaNet;

/* What it is part of. */
typedef struct {
  tuttiCommView *view;
  tuttiProxy *taker;                     /* who takes messages */
  tuttiAtomic64 *counters;               /* of this rank's area */
  size_t row, used;                      /* counters between ranks; of these, that there are */
  tuttiResult_t (*failure)(void *owner); /* of the communicator, with its text; for Send */
  /* Copies from a slot, waits until it is done, and may fail. */
  tuttiResult_t (*store)(void *owner, void *to, const void *from, size_t bytes);
  void *owner;
  /* How often the taker looks for messages while none come, as nobody tells it; 0: its proxy is
     told, or looks often enough. */
  uint64_t lookMs;
} tuttiRmaHome;

tuttiResult_t tuttiRmaNetCreate(const tuttiRmaHome *home, tuttiRmaNet **out);
/* Nothing is taken out of slots any more when it returns. NULL is allowed. */
void tuttiRmaNetFree(tuttiRmaNet *n);

/* As their likes in rma.h; nothing is being copied into a closed window. */
tuttiResult_t tuttiRmaNetWindowOpen(tuttiRmaNet *n, uint32_t number, void *base, size_t size,
                                    tuttiRmaKeys *keys);
void tuttiRmaNetWindowClose(tuttiRmaNet *n, uint32_t number);

/* From now on what comes from its peer is taken out of a connection that receives, which stays open
 * until Free. */
tuttiResult_t tuttiRmaNetListen(tuttiRmaNet *n, tuttiConn *conn);
/* Puts all of it into slots of a connection that sends, running the proxy while there is no room:
 * until the timeout, or a failure of the communicator. */
tuttiResult_t tuttiRmaNetSend(tuttiRmaNet *n, tuttiConn *conn, const tuttiRmaPut *put,
                              size_t counter);

__END_DECLS

#endif

/* One-sided operations on host memory: what the others of a communicator write to this rank without
 * a call of it, and how this rank writes to them.
 *
 * Each rank has an area in shared memory (a memfd, which its neighbours open through /proc when
 * they write first) with a word per window, which says that it is registered, and a counter per
 * (rank, context, signal), which that rank alone adds to. Data goes straight into the window:
 * threads of one process store, other processes of the host have the kernel copy
 * (process_vm_writev); the counter is added to behind it. A counter is never reset: who waits keeps
 * how much of it has been waited for.
 *
 * Over a network data and signals are messages of a connection of their own, of TUTTI_RMA_CHANNEL.
 * The network writes data into the window by itself where it can (rma_message.h); else the
 * receiver's proxy copies it out of a slot. Then that proxy adds to the counter. */
#ifndef TUTTI_TRANSPORT_RMA_H_
#define TUTTI_TRANSPORT_RMA_H_

#include <sys/cdefs.h>

#include "transport/rma_message.h"
#include "transport/transport.h"

__BEGIN_DECLS

#define TUTTI_RMA_WINDOWS 4096u /* live ones of a communicator that can be written to */

/* What a rank tells the others, who check it. */
typedef struct {
  tuttiPeerFd fd;
  uint8_t token[16];
} tuttiRmaCard;

typedef struct tuttiRma tuttiRma;

/* One put and its signal, or a signal alone (bytes 0). */
typedef struct {
  const void *data;
  size_t bytes;
  int peer;
  uint32_t window;   /* its number; 0: none */
  uint64_t at;       /* address in the peer's process */
  void *mapped;      /* where that is mapped in this process; NULL: it is not */
  uint64_t offset;   /* the same in the window */
  tuttiRmaKeys keys; /* of the peer's part of it, for networks */
  int context, signal;
} tuttiRmaPut;

/* What a communicator gives it. All ranks have as many contexts and signals. */
typedef struct {
  int contexts, signals;
  tuttiResult_t (*failure)(
      void *owner); /* of the communicator, whose text becomes the last error */
  void *owner;
} tuttiRmaWishes;

/* Makes this rank's side; *card is for the others. */
tuttiResult_t tuttiRmaCreate(tuttiCommView *v, const tuttiRmaWishes *wishes, tuttiRma **out,
                             tuttiRmaCard *card);
/* Takes a connection of TUTTI_RMA_CHANNEL, of either direction, which stays open until Free; with
 * each peer that only a network reaches there must be one to receive before others know of a first
 * window, and one to send before the first write. */
tuttiResult_t tuttiRmaConnect(tuttiRma *r, tuttiConn *conn);
bool tuttiRmaConnected(const tuttiRma *r, int peer); /* to send */
/* Takes the cards of all ranks. */
tuttiResult_t tuttiRmaMeet(tuttiRma *r, const tuttiRmaCard *cards);
/* Nobody is in this rank's memory any more when it returns. NULL is allowed. */
void tuttiRmaFree(tuttiRma *r);

/* From here on others may write to [base, base + size), under a number that all ranks know it by,
 * never 0 and never used again; until it is closed, after which no thread of this process is in it.
 * *keys, zero at first, are for the others. With more than TUTTI_RMA_WINDOWS open ones it may not
 * be opened: others are told when they put. */
tuttiResult_t tuttiRmaWindowOpen(tuttiRma *r, uint32_t number, void *base, size_t size,
                                 tuttiRmaKeys *keys);
void tuttiRmaWindowClose(tuttiRma *r, uint32_t number);

/* tuttiSuccess if this rank can write to `peer`; else why not, as the last error. */
tuttiResult_t tuttiRmaReach(tuttiRma *r, int peer);
/* Writes, then signals; the caller has checked the bounds, and that the peer can be reached. The
 * data may be changed when it returns. */
tuttiResult_t tuttiRmaWrite(tuttiRma *r, const tuttiRmaPut *put);
/* How many signals `peer` has sent to this rank since the beginning. Data that was put before the
 * last of them is there. */
uint64_t tuttiRmaArrived(const tuttiRma *r, int peer, int context, int signal);

__END_DECLS

#endif

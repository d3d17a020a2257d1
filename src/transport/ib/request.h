/* Requests to queue pairs: how they are added to a batch, and what their completions are known by.
 */
#ifndef TUTTI_TRANSPORT_IB_REQUEST_H_
#define TUTTI_TRANSPORT_IB_REQUEST_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/ib/endpoint.h"

/* ---- ids ------------------------------------------------------------------------------------- */

/* The queue pair, whether it is a receive, and a number: of a receive its own, of what is sent that
 * of the first signaled request from it on. A completion with a number that is behind has been
 * seen; one that is ahead speaks for those before it, too, as completions come in the order of the
 * requests. Twice as many numbers as requests of any kind can be under way, and more, so that none
 * is new and old at the same time. */
enum { TUTTI_IB_NUMBERS = 128, TUTTI_IB_RECEIVE = TUTTI_IB_NUMBERS };
_Static_assert(TUTTI_IB_NUMBERS >= 2 * TUTTI_IB_RECEIVES && TUTTI_IB_NUMBERS >= 2 * TUTTI_IB_SENDS,
               "see above");
_Static_assert(_Alignof(tuttiIbQueuePair) >= 8, "see tuttiIbRequestId");

/* Addresses of memory have at most 57 bits, of which the last three of a queue pair's are zero. */
static inline uint64_t tuttiIbRequestId(const tuttiIbQueuePair *q, bool receive, uint32_t number) {
  return (uint64_t)(uintptr_t)q << 5 | (receive ? TUTTI_IB_RECEIVE : 0) | number % TUTTI_IB_NUMBERS;
}

static inline tuttiIbQueuePair *tuttiIbRequestOf(uint64_t id) {
  return (tuttiIbQueuePair *)(uintptr_t)(id >> 8 << 3);
}

/* How many of those under way, of which number `first` is the oldest, have left their queue when
 * that with the id has; 0: it was among those before them. */
static inline uint32_t tuttiIbRequestsLeft(uint64_t id, uint32_t first, uint32_t underWay) {
  uint32_t ahead = ((uint32_t)id - first) % TUTTI_IB_NUMBERS;
  return ahead < underWay ? ahead + 1 : 0;
}

/* ---- batches --------------------------------------------------------------------------------- */

/* Requests for one queue pair that are handed over together. */
typedef struct {
  tuttiIbQueuePair *q;
  int n;
  struct ibv_send_wr wr[2 * TUTTI_FIFO_DEPTH + 1];
  struct ibv_sge sge[2 * TUTTI_FIFO_DEPTH + 1];
} tuttiIbBatch;

/* Room for n requests, and for one that only asks for a completion, of which some are kept. */
bool tuttiIbRoom(const tuttiIbQueuePair *q, uint32_t n);
bool tuttiIbRoomForProbe(const tuttiIbQueuePair *q);

/* Adds a write of [from, from + bytes), which has the key `lkey`, to `to` of key `rkey`. */
struct ibv_send_wr *tuttiIbAddWrite(tuttiIbBatch *b, const void *from, size_t bytes, uint32_t lkey,
                                    uint64_t to, uint32_t rkey);
/* Adds a write of a field of the control to the same field of the peer's, or to `field` there. */
struct ibv_send_wr *tuttiIbAddField(tuttiIbEndpoint *e, tuttiIbBatch *b, const void *from,
                                    size_t bytes, const void *field);
/* Makes it one that the peer has a completion of. */
void tuttiIbAddImmediate(struct ibv_send_wr *wr, tuttiIbImmediateKind kind, uint64_t number);
/* Asks for the completion of the request, the last one of message m; of those that need none
 * (`now` false), now and then. */
void tuttiIbAddSignal(tuttiIbBatch *b, struct ibv_send_wr *wr, uint64_t m, bool now);
/* Hands them over, if there are any; breaks the connection if they are refused. */
void tuttiIbPost(tuttiIbEndpoint *e, tuttiIbBatch *b);

#endif

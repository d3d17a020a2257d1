/* NET/IB: payloads that go to where their reader wants them.
 *
 * A kernel that will only store a large message posts the place (tuttiPost) some messages ahead. If
 * that lies in memory of the user that is registered, the receiver's proxy tells the sender: a
 * *want*, address and keys, written into the control block. The sender looks there when it posts
 * the message. If there is a want, and a key for each of its queue pairs, the payload is written to
 * that place, and the descriptor says so; else it goes to the slot, as when the want comes too
 * late. Nobody waits for a want.
 *
 * What the receiver does with it is settled by the descriptor alone, so a message that is sent once
 * more, over other queue pairs, may go another way than before. Nothing is written to the place any
 * more when the message has come: the sender then goes on behind it whatever happens. Until then
 * the region is in use, and stays registered. */
#include "transport/ib/request.h"

/* Whether the place for the last want in there may be used again: it is sent, or was copied. */
static bool isFree(const tuttiIbEndpoint *e, size_t i) {
  const tuttiIbQueuePair *q = e->parts[0];
  return sizeof(tuttiIbWant) <= q->maxInline || (int32_t)(q->done - e->wantPosted[i]) >= 0;
}

static void postWant(tuttiIbEndpoint *e, uint64_t m) {
  size_t i = m % TUTTI_FIFO_DEPTH;
  tuttiIbWant *want = &e->control->wants[i];
  tuttiIbBatch b = {.q = e->parts[0]};
  struct ibv_send_wr *wr = tuttiIbAddField(e, &b, want, sizeof *want, want);
  if (e->immediate) tuttiIbAddImmediate(wr, TUTTI_IB_WANT, m);
  tuttiIbAddSignal(&b, wr, 0, false);
  e->wantPosted[i] = b.q->posted;
  tuttiIbPost(e, &b);
}

/* Settles what is told of message m, for which `post` was made: nothing, if the memory is not
 * registered. */
static void tell(tuttiIbEndpoint *e, uint64_t m, const tuttiPost *post) {
  size_t i = m % TUTTI_FIFO_DEPTH;
  tuttiIbWant *want = &e->control->wants[i];
  const void *at = (const void *)(uintptr_t)post->addr; // NOLINT: an address of the GPU
  want->addr = post->addr;
  want->bytes = post->bytes;
  tuttiStoreRelaxed(&want->first, m + 1);
  tuttiStoreRelaxed(&want->last, m + 1);
  /* It is borrowed already if the sender was told by queue pairs that have failed. */
  if (!e->source[i] && tuttiIbBorrow(e->node, at, post->bytes, &e->source[i]) != tuttiSuccess)
    return;
  if (!e->source[i]) return;
  for (int port = 0; port < e->node->nrails; port++)
    want->key[port] = e->source[i]->mr[port] ? e->source[i]->mr[port]->rkey : 0;
  postWant(e, m);
}

void tuttiIbTellWants(tuttiIbEndpoint *e) {
  const tuttiConn *c = &e->meet.fifo;
  /* Until a message has come the sender's queue pair may not be ready to receive, and what it drops
   * is sent again after a second or so, with all that is behind it. */
  if (!c->gpuData || e->arrived == e->joined) return;
  uint64_t end = tuttiLoadAcquire(&c->readers->credit) + TUTTI_FIFO_DEPTH;
  for (uint64_t m = e->arrived; m < end && tuttiIbRoom(e->parts[0], 1); m++) {
    size_t i = m % TUTTI_FIFO_DEPTH;
    bool posted = tuttiLoadAcquire(&c->posts[i].seq) == m + 1;
    if (posted && tuttiLoadRelaxed(&e->control->wants[i].first) != m + 1 && isFree(e, i))
      tell(e, m, &c->posts[i]);
    if (e->state != TUTTI_IB_RUNNING) return;
  }
}

bool tuttiIbWasTold(const tuttiIbEndpoint *e, uint64_t m, size_t bytes) {
  size_t i = m % TUTTI_FIFO_DEPTH;
  const tuttiIbWant *want = &e->control->wants[i];
  return e->source[i] && tuttiLoadRelaxed(&want->first) == m + 1 && want->bytes == bytes;
}

const tuttiIbWant *tuttiIbWantOf(const tuttiIbEndpoint *e, uint64_t m) {
  size_t i = m % TUTTI_FIFO_DEPTH;
  const tuttiIbWant *want = &e->control->wants[i];
  if (tuttiLoadAcquire(&want->first) != m + 1) return NULL;
  bool whole = e->immediate ? e->heard[i] == m + 1 : tuttiLoadAcquire(&want->last) == m + 1;
  if (!whole || want->bytes != e->meet.payload[i]) return NULL;
  for (int p = 0; p < e->nparts; p++)
    if (want->key[e->parts[p]->pair.port[1]] == 0) return NULL;
  return want;
}

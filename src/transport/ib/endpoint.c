/* NET/IB: messages by RDMA writes over reliable connections.
 *
 * The payload of a message is written into the receiver's slot, its window (rma_message.h) or where
 * the reader wants it (want.c), from the sender's own slot or from memory that the user has
 * registered; then its descriptor, to where the receiver looks for it (see tuttiIbControl). A queue
 * pair carries out its writes in order, so the descriptor is the news. A large payload is cut into
 * one part per queue pair; those but the first are each followed by the message's number, too. The
 * receiver checks the descriptor before it copies it into the FIFO. The other way goes the number
 * of messages that the reader has taken, in a descriptor that goes there anyway or by itself.
 * Nobody but the sender's hardware says anything by completions.
 *
 * Of small messages one in TUTTI_IB_SIGNALED has a completion, and credit is given as soon as it is
 * posted: the control block keeps a copy. For others it is given when all parts are acknowledged.
 *
 * What has come is found by looking, by whoever waits for it; while something is under way and
 * nobody waits, the proxy's thread looks every LOOK_NS.
 *
 * A completion that a device loses is made good by the next one, and one that it repeats says
 * nothing new. Where none comes for STALL_LOOKS looks, a request that does nothing is posted, for
 * another completion; and if that does not help, or all others were given up, the queue pairs are
 * made anew (meet.c). */
#include "transport/ib/endpoint.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/settings.h"
#include "transport/ib/request.h"
#include "transport/symmetric.h"

enum { POLL_BATCH = 16, CREDIT_MESSAGES = 4, CREDIT_BYTES = 65536, LOOK_NS = 1000000 };
/* LONG_STALL_MS: where operations may wait for ever. */
enum { STALL_LOOK_MS = 250, STALL_LOOKS = 2, LONG_STALL_MS = 150000 };

/* ---- completions ---------------------------------------------------------------------------- */

/* All parts of messages below `n` have been acknowledged, or the reader has them. */
static void confirm(tuttiIbEndpoint *e, uint64_t n) {
  if (n > tuttiLoadRelaxed(&e->confirmed)) tuttiStoreRelease(&e->confirmed, n);
}

/* Message m uses no memory of the user any more. */
static void takeBack(tuttiIbEndpoint *e, uint64_t m) {
  tuttiIbReturn(e->source[m % TUTTI_FIFO_DEPTH]);
  e->source[m % TUTTI_FIFO_DEPTH] = NULL;
}

void tuttiIbPassTo(tuttiIbEndpoint *e, uint64_t to) {
  if (to <= e->meet.passed) return;
  for (; e->meet.passed < to; e->meet.passed++)
    takeBack(e, e->meet.passed);
  tuttiStoreRelease(&e->meet.fifo.readers->credit, to);
}

static void passHeads(tuttiIbEndpoint *e) {
  uint64_t passed = e->meet.passed;
  while (passed < e->posted && e->pending[passed % TUTTI_FIFO_DEPTH] == 0)
    passed++;
  tuttiIbPassTo(e, passed);
}

/* Part p of message m, which is still to be passed, has been acknowledged by way of q. */
static void partDone(tuttiIbEndpoint *e, const tuttiIbQueuePair *q, int p, uint64_t m) {
  size_t i = m % TUTTI_FIFO_DEPTH, begin, share;
  if (e->pending[i] & 1u << p && e->meet.payload[i] >= TUTTI_METER_PAYLOAD) {
    tuttiSocketShare(e->meet.payload[i], e->nparts, p, &begin, &share);
    e->meet.carried += share;
    e->node->rails[q->rail].carried += share;
  }
  e->pending[i] &= ~(1u << p);
}

/* The oldest signaled request has left its queue, and with it all before. */
static void sendDone(tuttiIbEndpoint *e, tuttiIbQueuePair *q) {
  uint32_t i = q->first++ % TUTTI_IB_SENDS;
  uint64_t m = q->signals[i].message;
  q->done = q->signals[i].posted;
  if (!tuttiIbSends(e)) return;
  bool held = m >= e->meet.passed; /* else its slot may have another message by now */
  for (int p = 0; p < e->nparts && held; p++)
    if (e->parts[p] == q) partDone(e, q, p, m);
  passHeads(e);
  if (e->parts[0] != q) return;
  confirm(e, m < e->meet.passed ? m + 1 : e->meet.passed);
  if (e->deadline && e->state == TUTTI_IB_RUNNING) tuttiIbWorks(e);
}

/* A status that new queue pairs may cure: a matter of ports and paths, not of what was asked for.
 */
static bool curable(enum ibv_wc_status status) {
  return status != IBV_WC_LOC_LEN_ERR && status != IBV_WC_LOC_PROT_ERR &&
         status != IBV_WC_LOC_ACCESS_ERR && status != IBV_WC_REM_ACCESS_ERR;
}

static void takeCredit(tuttiIbEndpoint *e, uint64_t taken);

/* Posts receives up to the full number. */
static void refill(tuttiIbQueuePair *q) {
  while (q->receives - q->received < TUTTI_IB_RECEIVES) {
    int err = tuttiIbQueuePairAwait(q->qp, tuttiIbRequestId(q, true, q->receives));
    if (err) {
      tuttiIbBreak(q->end, q, tuttiErrnoText(err));
      return;
    }
    q->receives++;
  }
}

void tuttiIbAwaitImmediates(tuttiIbQueuePair *q) {
  q->come = q->end->arrived;
  refill(q);
}

/* A share of a message, or a credit, has come with all that was sent before it on its queue pair.
 */
static void takeImmediate(tuttiIbQueuePair *q, uint32_t immediate) {
  tuttiIbEndpoint *e = q->end;
  tuttiIbImmediateKind kind = tuttiIbImmediateKindOf(immediate);
  if (tuttiIbSends(e) && kind == TUTTI_IB_CREDIT)
    takeCredit(e, tuttiIbImmediateNumber(immediate, e->credit));
  if (tuttiIbSends(e) && kind == TUTTI_IB_WANT) {
    uint64_t m = tuttiIbImmediateNumber(immediate, e->credit);
    e->heard[m % TUTTI_FIFO_DEPTH] = m + 1;
  }
  if (!tuttiIbSends(e) && kind == TUTTI_IB_SHARE) {
    /* All shares of messages that have arrived are there; and those are told in order. A queue pair
     * that has had none for long, as only large messages have one for it, knows an old number. */
    uint64_t least = q->come > e->arrived ? q->come : e->arrived;
    q->come = tuttiIbImmediateNumber(immediate, least) + 1;
  }
}

static void takeCompletion(const struct ibv_wc *wc) {
  tuttiIbQueuePair *q = tuttiIbRequestOf(wc->wr_id);
  bool receive = wc->wr_id & TUTTI_IB_RECEIVE;
  if (!q->qp || q->qp->qp_num != wc->qp_num) return; /* of an old one */
  uint32_t n = receive ? tuttiIbRequestsLeft(wc->wr_id, q->received, q->receives - q->received)
                       : tuttiIbRequestsLeft(wc->wr_id, q->first, q->last - q->first);
  if (receive) q->received += n;
  if (wc->status == IBV_WC_WR_FLUSH_ERR) { /* the one before it says why */
    q->end->gaveUp |= q->end->state == TUTTI_IB_RUNNING;
  } else if (wc->status != IBV_WC_SUCCESS) {
    if (!curable(wc->status)) q->end->incurable = true;
    tuttiIbBreak(q->end, q, tuttiVerbs.statusText(wc->status));
  } else if (receive && n > 0) {
    takeImmediate(q, ntohl(wc->imm_data));
    if (q->receives - q->received < TUTTI_IB_RECEIVES / 2) refill(q);
  } else {
    for (; !receive && n > 0; n--)
      sendDone(q->end, q);
  }
}

void tuttiIbPoll(tuttiIbNode *node) {
  struct ibv_wc wc[POLL_BATCH];
  for (int i = 0; i < node->nrails; i++) {
    tuttiIbRail *rail = &node->rails[i];
    int n;
    do {
      n = ibv_poll_cq(rail->cq, POLL_BATCH, wc);
      for (int c = 0; c < n; c++)
        takeCompletion(&wc[c]);
    } while (n == POLL_BATCH);
    if (n < 0) tuttiIbRailLost(node, rail, "its completions cannot be read");
  }
}

/* ---- sending -------------------------------------------------------------------------------- */

/* A kernel has left a message where nobody else can read it. */
static tuttiResult_t lentIsGone(const tuttiIbEndpoint *e, const void *addr, size_t bytes) {
  return TUTTI_FAIL(tuttiInvalidUsage,
                    "rank %d: a message to %s lies in memory of the user (%zu bytes at %p) that is "
                    "not registered any more: deregister and free it when all operations, and "
                    "graphs, that use it are done",
                    e->meet.view->rank, e->meet.who, bytes, addr);
}

/* Payload i is one that slots in GPU memory are for. */
static bool isLarge(const tuttiIbEndpoint *e, size_t i) {
  return e->meet.fifo.gpuData && e->meet.payload[i] > e->meet.fifo.smallBytes;
}

/* Prepares a message that the FIFO's writer has published. */
static tuttiResult_t prepare(tuttiIbEndpoint *e, uint64_t m) {
  tuttiSocketEndpoint *s = &e->meet;
  size_t i = m % TUTTI_FIFO_DEPTH;
  e->node->large.sent += isLarge(e, i);
  tuttiSlotDescriptor d; /* what goes on the wire is aligned for bytes */
  tuttiIbDescriptor *out = &e->control->descriptors[i];
  memcpy(&d, s->descriptors[i], sizeof d);
  tuttiStoreRelaxed(&out->first, m + 1);
  tuttiStoreRelaxed(&out->last, m + 1);
  out->bytes = d.bytes;
  out->where = d.where;
  out->sig = d.sig;
  size_t inlined = s->fifo.channel == TUTTI_RMA_CHANNEL ? sizeof(tuttiRmaHeader) : 0;
  memcpy(out->inlined, d.inlined, d.where == TUTTI_WHERE_INLINE ? d.bytes : inlined);
  bool small = d.bytes <= s->fifo.smallBytes;
  uint8_t *slot =
      small ? s->fifo.small + i * s->fifo.smallBytes : s->fifo.data + i * s->fifo.slotBytes;
  e->from[i] = slot;
  if (s->fifo.descriptors[i].where != TUTTI_WHERE_DIRECT) return tuttiSuccess;
  const void *addr = (const void *)(uintptr_t)s->fifo.descriptors[i].addr;
  TUTTI_TRY(tuttiIbBorrow(e->node, addr, d.bytes, &e->source[i]));
  if (e->source[i])
    e->from[i] = addr;
  else if (s->fifo.gpuData)
    return lentIsGone(e, addr, d.bytes);
  else
    memcpy(slot, addr, d.bytes);
  e->node->large.lent += isLarge(e, i);
  return tuttiSuccess;
}

/* What a put says of the receiver's window, whose message is m. */
static const tuttiRmaTarget *windowOf(const tuttiIbEndpoint *e, uint64_t m) {
  return (const tuttiRmaTarget *)e->meet.fifo.descriptors[m % TUTTI_FIFO_DEPTH].inlined;
}

static uint32_t windowKey(const tuttiRmaTarget *target, const tuttiIbQueuePair *q) {
  int port = q->pair.port[1];
  return port < TUTTI_RMA_KEYS ? target->keys.key[port] : 0;
}

/* The payloads of puts now go elsewhere than before. */
static void tellWhere(tuttiIbEndpoint *e, tuttiWhere where) {
  e->puts = where;
  if (where == TUTTI_WHERE_WINDOW)
    TUTTI_INFO(NET, "NET/IB: puts are written into the windows of %s", e->meet.who);
  else
    TUTTI_INFO(
        NET,
        "NET/IB: puts go through the slots of %s, which copies them: a port in use has no key "
        "of its window, or does not reach its GPU; see the log of that rank",
        e->meet.who);
}

/* Whether the receiver takes payloads in its windows: on a GPU where it has slots there, too, and
 * so none but ports that reach the GPU, and flushes what comes. */
static bool takesPuts(const tuttiIbEndpoint *e) {
  const tuttiPeer *peer = &e->meet.view->peers[e->meet.fifo.peer];
  return tuttiPeerGpu(peer) < 0 || e->in.smallBytes > 0;
}

/* Settles where the payload of message m goes: into the receiver's window, or where its reader
 * wants it, if all queue pairs can write there. Not for good, as others may take their place. */
static void settle(tuttiIbEndpoint *e, uint64_t m) {
  tuttiIbDescriptor *d = &e->control->descriptors[m % TUTTI_FIFO_DEPTH];
  if (d->where == TUTTI_WHERE_INLINE) return;
  if (e->meet.fifo.channel != TUTTI_RMA_CHANNEL) {
    d->where = tuttiIbWantOf(e, m) ? TUTTI_WHERE_DIRECT : TUTTI_WHERE_SLOT;
    return;
  }
  bool all = takesPuts(e);
  for (int p = 0; p < e->nparts; p++)
    all &= windowKey(windowOf(e, m), e->parts[p]) != 0;
  d->where = all ? TUTTI_WHERE_WINDOW : TUTTI_WHERE_SLOT;
  if (d->where != e->puts) tellWhere(e, d->where);
}

/* Where the payload of message m, of so many bytes, goes in the receiver's memory; and its key. */
static uint64_t targetOf(const tuttiIbEndpoint *e, const tuttiIbQueuePair *q, uint64_t m,
                         size_t bytes, uint32_t *rkey) {
  uint64_t i = m % TUTTI_FIFO_DEPTH;
  bool small = bytes <= e->in.smallBytes;
  if (e->control->descriptors[i].where == TUTTI_WHERE_WINDOW) {
    *rkey = windowKey(windowOf(e, m), q);
    return windowOf(e, m)->to;
  }
  if (e->control->descriptors[i].where == TUTTI_WHERE_DIRECT) {
    const tuttiIbWant *want = &e->control->wants[i];
    *rkey = want->key[q->pair.port[1]];
    return want->addr;
  }
  *rkey = small ? q->rkey : q->dataRkey;
  return small ? e->in.small + i * e->in.smallBytes : e->in.data + i * e->in.slotBytes;
}

/* The registration of what that payload is in here. */
static const struct ibv_mr *sourceOf(const tuttiIbEndpoint *e, uint64_t m, size_t bytes, int rail) {
  const tuttiIbRegion *user = e->source[m % TUTTI_FIFO_DEPTH];
  if (user) return user->mr[rail];
  return bytes <= e->meet.fifo.smallBytes ? e->mr[rail] : tuttiIbDataMr(e, rail);
}

/* Adds the share of part p in message m; NULL: it has none. */
static struct ibv_send_wr *addShare(tuttiIbEndpoint *e, tuttiIbBatch *b, int p, uint64_t m) {
  size_t i = m % TUTTI_FIFO_DEPTH, bytes = e->meet.payload[i], begin, share;
  tuttiSocketShare(bytes, e->nparts, p, &begin, &share);
  if (share == 0) return NULL;
  uint32_t rkey;
  uint64_t to = targetOf(e, b->q, m, bytes, &rkey);
  const struct ibv_mr *mr = sourceOf(e, m, bytes, b->q->rail);
  /* On a device that has gone nothing is registered any more, nor is it sent. */
  uint32_t lkey = mr ? mr->lkey : 0;
  struct ibv_send_wr *wr = tuttiIbAddWrite(b, e->from[i] + begin, share, lkey, to + begin, rkey);
  /* Inline is what the CPU copies, which can't read the GPU's memory. */
  bool cpu = !e->meet.fifo.gpuData || bytes <= e->meet.fifo.smallBytes;
  if (share <= b->q->maxInline && cpu) wr->send_flags |= IBV_SEND_INLINE;
  e->pending[i] |= 1u << p;
  return wr;
}

/* Posts the parts of message m that do not go with its descriptor. */
static void postShares(tuttiIbEndpoint *e, uint64_t m) {
  for (int p = 1; p < e->nparts && e->state == TUTTI_IB_RUNNING; p++) {
    tuttiIbBatch b = {.q = e->parts[p]};
    struct ibv_send_wr *last = addShare(e, &b, p, m);
    if (!last) continue;
    if (e->immediate) {
      tuttiIbAddImmediate(last, TUTTI_IB_SHARE, m);
    } else {
      tuttiAtomic64 *number = &e->control->shares[p][m % TUTTI_FIFO_DEPTH];
      tuttiStoreRelaxed(number, m + 1);
      last = tuttiIbAddField(e, &b, number, sizeof *number, number);
    }
    tuttiIbAddSignal(&b, last, m, true);
    tuttiIbPost(e, &b);
  }
}

/* Takes what the reader has said; a number that is being written, or that cannot be, counts for
 * nothing. It may have come by another connection, and shows nothing of this one's queue pairs. */
static void takeCredit(tuttiIbEndpoint *e, uint64_t taken) {
  if (taken <= e->credit || taken > e->posted) return;
  e->credit = taken;
  confirm(e, taken < e->meet.passed ? taken : e->meet.passed);
}

/* Adds message m's own part: its share of the payload, and the descriptor behind it. */
static void addMessage(tuttiIbEndpoint *e, tuttiIbBatch *b, uint64_t m) {
  tuttiIbDescriptor *d = &e->control->descriptors[m % TUTTI_FIFO_DEPTH];
  /* Unless much goes before it: then it might be late. If it is lost, it is written again. */
  if (e->reverse && m <= e->meet.passed && d->bytes < CREDIT_BYTES)
    d->credit = e->reverse->credit = tuttiLoadAcquire(&e->reverse->meet.fifo.readers->credit);
  /* New queue pairs are to show that they work. */
  bool now = addShare(e, b, 0, m) || e->deadline;
  struct ibv_send_wr *last = tuttiIbAddField(e, b, d, sizeof *d, d);
  if (e->immediate) tuttiIbAddImmediate(last, TUTTI_IB_SHARE, m);
  tuttiIbAddSignal(b, last, m, now);
}

/* Adds a write of nothing: when it is done, so is all before it. What has been written already is
 * not written once more, as that might be placed when its slot has another message. */
static void addProbe(tuttiIbEndpoint *e, tuttiIbBatch *b) {
  struct ibv_send_wr *wr = tuttiIbAddField(e, b, e->control, 0, e->control);
  wr->num_sge = 0;
  wr->send_flags = 0;
  tuttiIbAddSignal(b, wr, e->posted - 1, true);
}

/* Sets the meter's mark where all completions have been taken, and those of another large payload
 * are still to come. Before anything new is posted: what had run dry by then is no stretch. */
static void measure(tuttiIbEndpoint *e) {
  const tuttiIbRail *rails = e->node->rails;
  uint64_t all = 0;
  uint32_t used = 0;
  bool outstanding = false;
  if (e->meet.carried == e->measured) return;
  e->measured = e->meet.carried;
  for (uint64_t m = e->meet.passed; m < e->posted; m++)
    outstanding |= e->pending[m % TUTTI_FIFO_DEPTH] != 0 &&
                   e->meet.payload[m % TUTTI_FIFO_DEPTH] >= TUTTI_METER_PAYLOAD;
  if (!outstanding) {
    tuttiMeterBreak(&e->meet.meter);
    return;
  }
  for (int p = 0; p < e->nparts; p++) {
    uint32_t bit = 1u << e->parts[p]->rail;
    if (!(used & bit)) all += rails[e->parts[p]->rail].carried;
    used |= bit;
  }
  tuttiMeterMark(&e->meet.meter, tuttiNow(), e->meet.carried, all);
}

static tuttiResult_t advanceSend(tuttiIbEndpoint *e, bool *moved) {
  tuttiSocketEndpoint *s = &e->meet;
  uint64_t m = s->known, before = e->posted;
  if (!e->immediate) takeCredit(e, tuttiLoadAcquire(&e->control->credit));
  tuttiSocketLook(s, (e->credit < s->passed ? e->credit : s->passed) + TUTTI_FIFO_DEPTH);
  for (; m < s->known; m++)
    TUTTI_TRY(prepare(e, m));
  if (e->state != TUTTI_IB_RUNNING) {
    tuttiMeterBreak(&e->meet.meter);
    return tuttiSuccess;
  }
  measure(e);

  tuttiIbBatch b;
  b.q = e->parts[0];
  b.n = 0;
  for (; e->posted < s->known && tuttiIbRoom(b.q, 2); e->posted++) {
    settle(e, e->posted);
    postShares(e, e->posted);
    addMessage(e, &b, e->posted);
  }
  /* Somebody waits until nothing is left unconfirmed, and the last messages had no completion. */
  if (tuttiLoadRelaxed32(&e->confirming) && tuttiLoadRelaxed(&e->confirmed) < e->posted &&
      b.q->first == b.q->last && tuttiIbRoomForProbe(b.q))
    addProbe(e, &b);
  tuttiIbPost(e, &b);
  passHeads(e);
  *moved |= e->posted != before;
  return tuttiSuccess;
}

/* ---- completions that do not come ----------------------------------------------------------- */

/* Grows with each completion, and with what the peer has said. */
static uint64_t told(const tuttiIbEndpoint *e) {
  uint64_t n = e->arrived + e->credit;
  for (int p = 0; p < e->nparts; p++)
    n += e->parts[p]->first + e->parts[p]->received;
  return n;
}

/* Memory has what no immediate has told of: a credit, or the descriptor of the next message. */
static bool isUntold(const tuttiIbEndpoint *e) {
  if (!e->immediate) return false;
  if (tuttiIbSends(e)) {
    uint64_t credit = tuttiLoadAcquire(&e->control->credit);
    return credit > e->credit && credit <= e->posted;
  }
  const tuttiIbDescriptor *in = &e->control->descriptors[e->arrived % TUTTI_FIFO_DEPTH];
  return tuttiLoadAcquire(&in->last) == e->arrived + 1 &&
         tuttiLoadAcquire(&in->first) == e->arrived + 1;
}

/* A queue pair that a completion of is awaited; NULL: there is none. */
static tuttiIbQueuePair *awaited(const tuttiIbEndpoint *e) {
  for (int p = 0; p < e->nparts; p++)
    if (e->parts[p]->first != e->parts[p]->last) return e->parts[p];
  return e->nparts > 0 && isUntold(e) ? e->parts[0] : NULL;
}

/* Less than an operation may wait: what is left of that must do for new queue pairs. */
static uint64_t longStall(const tuttiIbEndpoint *e) {
  uint64_t ms = e->meet.view->timeoutMs ? e->meet.view->timeoutMs / 4 : LONG_STALL_MS;
  uint64_t looks = ms / STALL_LOOK_MS;
  return looks > 2 * STALL_LOOKS ? looks : 2 * STALL_LOOKS;
}

/* None is expected any more. */
static void endStall(tuttiIbEndpoint *e, const tuttiIbQueuePair *q) {
  char why[160];
  snprintf(why, sizeof why, "no completion has come for %.1f s%s",
           (double)e->looks * STALL_LOOK_MS / 1e3,
           e->gaveUp
               ? " but of requests that were given up: its device has lost that which says why"
               : ", which its device may have lost");
  tuttiIbBreak(e, q, why);
  e->stalled = !tuttiIbSends(e) && isUntold(e);
}

static void askAgain(tuttiIbEndpoint *e) {
  for (int p = 0; p < e->nparts && e->state == TUTTI_IB_RUNNING; p++) {
    tuttiIbBatch b = {.q = e->parts[p]};
    if (b.q->first == b.q->last || !tuttiIbRoomForProbe(b.q)) continue;
    addProbe(e, &b);
    tuttiIbPost(e, &b);
  }
}

/* Looks are counted, as this process may sleep or be stopped between them. */
static void lookForStall(tuttiIbEndpoint *e) {
  bool runs = e->state == TUTTI_IB_RUNNING;
  const tuttiIbQueuePair *q = runs ? awaited(e) : NULL;
  /* Who has closed its end mends nothing. */
  bool left = !runs && !tuttiIbSends(e) && e->meet.parts[0].closed && isUntold(e);
  uint64_t all = told(e);
  e->looks = (q || left) && all == e->told ? e->looks + 1 : 0;
  e->told = all;
  if (e->looks > (e->gaveUp || left ? STALL_LOOKS : longStall(e)))
    endStall(e, q);
  else if (e->looks >= STALL_LOOKS)
    askAgain(e);
}

void tuttiIbLookForStalls(tuttiIbNode *node) {
  uint64_t now = tuttiNow();
  if (now < node->stallLook || tuttiLoadRelaxed32(node->view->failed)) return;
  node->stallLook = now + STALL_LOOK_MS * UINT64_C(1000000);
  for (tuttiIbEndpoint *e = node->endpoints; e; e = e->next)
    lookForStall(e);
}

/* ---- receiving ------------------------------------------------------------------------------ */

/* All parts of message m, whose descriptor has come, are there. */
static bool complete(const tuttiIbEndpoint *e, uint64_t m) {
  size_t i = m % TUTTI_FIFO_DEPTH, begin, share;
  for (int p = 1; p < e->nparts; p++) {
    tuttiSocketShare(e->meet.payload[i], e->nparts, p, &begin, &share);
    bool there =
        e->immediate ? e->parts[p]->come > m : tuttiLoadAcquire(&e->control->shares[p][i]) == m + 1;
    if (share && !there) return false;
  }
  return true;
}

/* The descriptor of message m is there, and its slot is free. */
static bool descriptorCame(const tuttiIbEndpoint *e, uint64_t m) {
  const tuttiIbDescriptor *in = &e->control->descriptors[m % TUTTI_FIFO_DEPTH];
  bool came = e->immediate
                  ? e->nparts > 0 && e->parts[0]->come > m
                  : tuttiLoadAcquire(&in->last) == m + 1 && tuttiLoadAcquire(&in->first) == m + 1;
  return came && m < tuttiLoadAcquire(&e->meet.fifo.readers->credit) + TUTTI_FIFO_DEPTH;
}

/* Puts the descriptor of message m into its slot. One that says that the payload is where the
 * reader wants it is believed if the sender was told of that place. */
static tuttiResult_t takeDescriptor(tuttiIbEndpoint *e, uint64_t m, tuttiSlotDescriptor *d) {
  size_t i = m % TUTTI_FIFO_DEPTH;
  bool direct = d->where == TUTTI_WHERE_DIRECT && tuttiIbWasTold(e, m, d->bytes);
  if (direct) d->where = TUTTI_WHERE_SLOT; /* as long as its slot at most, like those there */
  TUTTI_TRY(tuttiSocketTakeDescriptor(&e->meet, m, d));
  if (!direct) return tuttiSuccess;
  e->meet.fifo.descriptors[i].where = TUTTI_WHERE_DIRECT;
  e->meet.fifo.descriptors[i].addr = e->control->wants[i].addr;
  return tuttiSuccess;
}

/* Counts the messages that have come, with all of their payload. */
static tuttiResult_t arrive(tuttiIbEndpoint *e) {
  for (; descriptorCame(e, e->arrived); e->arrived++) {
    const tuttiIbDescriptor *in = &e->control->descriptors[e->arrived % TUTTI_FIFO_DEPTH];
    tuttiSlotDescriptor d = {.bytes = in->bytes, .where = in->where, .sig = in->sig};
    tuttiStoreRelaxed(&d.seq, tuttiLoadAcquire(&in->first));
    memcpy(d.inlined, in->inlined, sizeof d.inlined);
    TUTTI_TRY(takeDescriptor(e, e->arrived, &d));
    if (e->reverse) takeCredit(e->reverse, in->credit); /* which checks it */
    if (!complete(e, e->arrived)) return tuttiSuccess;
    takeBack(e, e->arrived);
    size_t i = e->arrived % TUTTI_FIFO_DEPTH;
    e->node->large.came += isLarge(e, i);
    e->node->large.placed += e->meet.fifo.descriptors[i].where == TUTTI_WHERE_DIRECT;
  }
  return tuttiSuccess;
}

/* The payload of message m, which has arrived, is in the GPU's memory. */
static bool isInGpu(const tuttiIbEndpoint *e, uint64_t m) {
  const tuttiConn *fifo = &e->meet.fifo;
  uint64_t i = m % TUTTI_FIFO_DEPTH;
  return fifo->descriptors[i].where >= TUTTI_WHERE_DIRECT || e->meet.payload[i] > fifo->smallBytes;
}

/* Counts as flushed what needs no flush or has had one, and asks for the next. */
static tuttiResult_t flushArrived(tuttiIbEndpoint *e) {
  const tuttiIbGdr *g = &e->node->gdr;
  if (!e->meet.fifo.gpuData || !g->flushes) {
    e->flushed = e->arrived;
    return tuttiSuccess;
  }
  if (g->done >= e->flush && e->flushed < e->flushTo) e->flushed = e->flushTo;
  while (e->flushed < e->arrived && !isInGpu(e, e->flushed))
    e->flushed++;
  if (e->flushed == e->arrived || e->flushed < e->flushTo) return tuttiSuccess;
  e->flushTo = e->arrived;
  return tuttiIbFlushAsk(e->node, &e->flush);
}

tuttiResult_t tuttiIbTakeMessages(tuttiIbEndpoint *e, bool *moved) {
  tuttiSocketEndpoint *s = &e->meet;
  TUTTI_TRY(arrive(e));
  TUTTI_TRY(flushArrived(e));
  for (; s->passed < e->flushed; *moved = true) {
    tuttiSlotDescriptor *slot = &s->fifo.descriptors[s->passed % TUTTI_FIFO_DEPTH];
    s->passed++;
    tuttiStoreRelease(&slot->seq, s->passed);
  }
  return tuttiSuccess;
}

/* Tells the sender what the reader has taken and no descriptor has told, if it is worth a message.
 */
static void returnCredit(tuttiIbEndpoint *e) {
  uint64_t taken = tuttiLoadAcquire(&e->meet.fifo.readers->credit), owed = taken - e->credit;
  if (owed == 0 || !tuttiIbRoom(e->parts[0], 1)) return;
  if (owed < CREDIT_MESSAGES &&
      e->meet.fifo.descriptors[e->credit % TUTTI_FIFO_DEPTH].bytes < CREDIT_BYTES)
    return;
  tuttiIbBatch b = {.q = e->parts[0]};
  tuttiAtomic64 *told = &e->control->credits[b.q->posted % TUTTI_IB_SENDS];
  tuttiStoreRelaxed(told, taken);
  struct ibv_send_wr *wr = tuttiIbAddField(e, &b, told, sizeof *told, &e->control->credit);
  if (e->immediate) tuttiIbAddImmediate(wr, TUTTI_IB_CREDIT, taken);
  tuttiIbAddSignal(&b, wr, 0, false);
  e->credit = taken;
  tuttiIbPost(e, &b);
}

/* ---- the backend ---------------------------------------------------------------------------- */

/* The endpoint's first turn. Turns and closeEndpoint alone touch what is common to endpoints. */
static void list(tuttiIbEndpoint *e) {
  const tuttiConn *c = &e->meet.fifo;
  tuttiIbEndpoint *t = e->node->endpoints;
  while (t && (t->reverse || t->meet.fifo.direction == c->direction ||
               t->meet.fifo.peer != c->peer || t->meet.fifo.channel != c->channel))
    t = t->next;
  if (t) t->reverse = e;
  e->reverse = t;
  TUTTI_LINK(e->node->endpoints, e);
  e->listed = true;
}

static tuttiResult_t advance(tuttiIbEndpoint *e, tuttiProxyTurn *turn, bool *moved) {
  if (!e->listed) list(e);
  if (e->incurable)
    return TUTTI_FAIL(
        tuttiRemoteError, "rank %d: the RDMA connection with %s %s; %s", e->meet.view->rank,
        e->meet.who, e->trouble,
        e->meet.fifo.channel == TUTTI_RMA_CHANNEL
            ? "where a put goes to a window that the peer has deregistered, do that "
              "when all have written to it; else see dmesg on both hosts"
            : "see dmesg on both hosts, and report this if nothing there explains it");
  if (e->state != TUTTI_IB_RUNNING || e->meet.parts[0].source.readable ||
      e->changes != e->node->changes || e->avoid)
    TUTTI_TRY(tuttiIbMeetStep(e, turn, moved));
  if (tuttiIbSends(e)) return advanceSend(e, moved);
  if (e->state != TUTTI_IB_MEETING) TUTTI_TRY(tuttiIbTakeMessages(e, moved));
  if (e->state == TUTTI_IB_RUNNING) tuttiIbTellWants(e);
  if (e->state == TUTTI_IB_RUNNING) returnCredit(e);
  return tuttiSuccess;
}

static tuttiProxyState ibProgress(void *end, tuttiProxyTurn *turn) {
  tuttiIbEndpoint *e = end;
  bool moved = false, sends = tuttiIbSends(e);
  if (tuttiLoadRelaxed32(e->meet.view->failed)) return TUTTI_PROXY_IDLE;
  turn->result = advance(e, turn, &moved);
  if (turn->result != tuttiSuccess) return TUTTI_PROXY_FAILED;
  if (e->state == TUTTI_IB_RUNNING) turn->polled++;
  if (moved) return TUTTI_PROXY_MOVED;
  if (e->state == TUTTI_IB_MEETING) return sends ? TUTTI_PROXY_WAITING : TUTTI_PROXY_IDLE;
  if (e->state != TUTTI_IB_RUNNING) return TUTTI_PROXY_WAITING;
  bool flushing = tuttiLoadRelaxed32(&e->confirming) && tuttiLoadRelaxed(&e->confirmed) < e->posted;
  /* What is published may wait for the reader to make room, too. */
  const tuttiSlotDescriptor *next = &e->meet.fifo.descriptors[e->meet.passed % TUTTI_FIFO_DEPTH];
  bool waits = sends && tuttiLoadAcquire(&next->seq) == e->meet.passed + 1;
  if (!waits && !flushing) return TUTTI_PROXY_IDLE;
  if (!turn->eager) tuttiProxyWakeBy(turn, tuttiNow() + LOOK_NS);
  return TUTTI_PROXY_WAITING;
}

static bool ibDrained(void *end) {
  tuttiIbEndpoint *e = end;
  if (tuttiLoadAcquire32(e->meet.view->failed)) return true;
  uint64_t taken = tuttiLoadAcquire(&e->meet.fifo.readers->credit);
  if (tuttiCompareExchange32(&e->confirming, 0, 1)) tuttiProxyKick(e->meet.view->proxy);
  return tuttiLoadAcquire(&e->meet.fifo.descriptors[taken % TUTTI_FIFO_DEPTH].seq) != taken + 1 &&
         tuttiLoadAcquire(&e->confirmed) >= taken;
}

static void ibCloseEndpoint(void *end) {
  tuttiIbEndpoint *e = end;
  tuttiIbCountBroken(e, false);
  if (e->listed) TUTTI_UNLINK(e->node->endpoints, e);
  if (e->reverse) e->reverse->reverse = NULL;
  tuttiIbQueuePairsClose(e, true);
  if (tuttiIbSends(e)) tuttiIbPassTo(e, e->meet.known);
  for (uint64_t m = 0; m < TUTTI_FIFO_DEPTH; m++)
    takeBack(e, m);
  tuttiIbDeregister(e->mr);
  tuttiSocketEndpointFree(e); /* `meet` begins it */
}

static tuttiResult_t ibConnect(tuttiCommView *v, void *node, tuttiSocketListener *listener,
                               const tuttiNetHello *hello, tuttiConn *fifo, void **end) {
  _Static_assert(sizeof(tuttiIbEndpoint) + TUTTI_NET_CONTROL_BYTES + 512 <=
                     TUTTI_NET_ENDPOINT_BYTES,
                 "with its control block");
  _Static_assert(TUTTI_FIFO_DEPTH * (sizeof(tuttiSlotDescriptor) + sizeof(tuttiPost)) +
                         sizeof(tuttiReader) + sizeof(tuttiIbControl) <=
                     TUTTI_NET_CONTROL_BYTES,
                 "the control block has room there");
  tuttiIbEndpoint *e;
  TUTTI_TRY(
      tuttiAlloc((void **)&e, 1, sizeof *e, "the endpoint of a network connection", v->memory));
  e->node = node;
  e->slab = fifo->gpuData ? &e->node->gdr.slab : NULL;
  e->control = (tuttiIbControl *)(fifo->posts + TUTTI_FIFO_DEPTH);
  e->registered = tuttiNetHostBytes(v, fifo->gpuData != 0);
  memcpy(&e->theirs, v->peers[fifo->peer].net, sizeof e->theirs);
  const tuttiIbLoan *loan = fifo->gpuData ? tuttiIbPxnLoanOf(node, fifo->data) : NULL;
  const tuttiRail *rail =
      loan ? &v->pxn[fifo->peer].rail
           : tuttiChannelRailFind(v, fifo->peer, hello->channel, fifo->direction);
  e->railed = rail != NULL;
  if (loan) e->slab = &loan->slab;
  if (rail)
    e->rail =
        (tuttiIbPair){.port = {rail->port[0], rail->port[1]}, .gid = {rail->gid[0], rail->gid[1]}};
  tuttiSocketEndpointInit(&e->meet, v, listener, hello, fifo, 1);
  if (loan)
    TUTTI_INFO(NET,
               "rank %d -> rank %d [send] via NET/IB/%u/GDRDMA by rank %d, whose GPU is beside %s",
               v->rank, fifo->peer, e->rail.port[0], loan->lender,
               e->node->mine.ports[e->rail.port[0]].device);
  e->meet.windows = fifo->channel == TUTTI_RMA_CHANNEL;
  e->puts = TUTTI_WHERE_INLINE;
  fifo->registered = !fifo->gpuData;
  fifo->lends = fifo->gpuData && !loan; /* the NIC beside the other GPU is far from this one's */
  *end = e;
  return tuttiSuccess;
}

static bool readHandle(const tuttiPeer *peer, tuttiIbHandle *h) {
  memcpy(h, peer->net, sizeof *h);
  return tuttiAddressListValid(&h->socket.addresses) && h->megabits > 0 &&
         tuttiIbPortsCheck(h->ports, h->nports) == NULL;
}

#define IB_REASONS(X)                                                                              \
  X(IB_CONNECTS, "%s from %s to %s of host %.40s, %d and %d ports, %.3g Gb/s%s",                   \
    first->ethernet ? "RoCE" : "InfiniBand", first->device, second->device, b->host, from.nports,  \
    to.nports, (double)path->bandwidthGBs * 8, gdr)                                                \
  X(IB_NO_ADDRESS, "rank %d or rank %d has no valid RDMA address", a->rank, b->rank)               \
  X(IB_UNLIKE, "RoCE and InfiniBand do not meet")                                                  \
  X(IB_NO_GIDS, "no GIDs fit, rank %d: %.90s, rank %d: %.90s", a->rank, mine, b->rank, theirs)
enum { IB_REASONS(TUTTI_REASON_NAME) };

/* Why the NICs at both ends do not reach GPU memory; "" if they do. */
static void gdrText(const tuttiRail *rail, const tuttiPeer *from, const tuttiPeer *to, char *buf,
                    size_t size) {
  int worse = rail->gdr[1] > rail->gdr[0];
  tuttiGdr answer = (tuttiGdr)rail->gdr[worse];
  buf[0] = '\0';
  if (tuttiRailGdr(rail)) return;
  snprintf(buf, size, "; not GDRDMA: %s", tuttiGdrClauses[answer]);
  if (answer > TUTTI_GDR_YES) tuttiAppend(buf, size, " (rank %d)", worse ? to->rank : from->rank);
}

static void ibExplain(tuttiReason why, const tuttiPath *path, const tuttiPeer *a,
                      const tuttiPeer *b, char *buf, size_t size) {
  tuttiIbHandle from, to;
  char mine[2 * TUTTI_SENTENCE] = "", theirs[2 * TUTTI_SENTENCE] = "", gdr[128];
  if (!readHandle(a, &from) || !readHandle(b, &to)) why.code = IB_NO_ADDRESS;
  const tuttiRail *rail = &path->rails[tuttiPathTurned(a, b)][0];
  const tuttiIbPort *first = &from.ports[rail->port[0]], *second = &to.ports[rail->port[1]];
  gdrText(rail, a, b, gdr, sizeof gdr);
  if (why.code == IB_NO_GIDS) { /* a clause has not room for all of it */
    tuttiIbPortsText(from.ports, from.nports, mine, sizeof mine);
    tuttiIbPortsText(to.ports, to.nports, theirs, sizeof theirs);
    TUTTI_INFO(NET, "NET/IB: no GIDs fit: rank %d has %s; rank %d has %s", a->rank, mine, b->rank,
               theirs);
  }
  switch (why.code) { IB_REASONS(TUTTI_REASON_TEXT) }
}

static int ibPorts(const tuttiPeer *peer, tuttiNetPort *ports) {
  tuttiIbHandle h;
  if (!readHandle(peer, &h)) return 0;
  for (int i = 0; i < h.nports; i++) {
    const tuttiIbPort *p = &h.ports[i];
    ports[i] = (tuttiNetPort){.distance = p->distance,
                              .megabits = p->megabits,
                              .up = p->up,
                              .usable = p->up && tuttiIbPortUsable(&h, i, false),
                              .later = tuttiIbPortLater(&h, i)};
    snprintf(ports[i].name, sizeof ports[i].name, "%s:%u", p->device, p->port);
  }
  return h.nports;
}

static int ibJoin(const tuttiPeer *a, int portOfA, const tuttiPeer *b, int portOfB,
                  tuttiRail *rail) {
  tuttiIbPort p, q;
  int gid[2];
  memcpy(&p, a->net + offsetof(tuttiIbHandle, ports) + (size_t)portOfA * sizeof p, sizeof p);
  memcpy(&q, b->net + offsetof(tuttiIbHandle, ports) + (size_t)portOfB * sizeof q, sizeof q);
  int worth = tuttiIbGidChoose(&p, &q, &gid[0], &gid[1]);
  *rail = (tuttiRail){.port = {(uint8_t)portOfA, (uint8_t)portOfB},
                      .gid = {(uint8_t)gid[0], (uint8_t)gid[1]},
                      .gdr = {p.gdrRead, q.gdr}};
  return worth;
}

/* What the first queue pairs from `from` to `to` join. */
static void fillRails(const tuttiIbHandle *from, const tuttiIbHandle *to, tuttiPath *path,
                      int side) {
  tuttiIbPair pairs[TUTTI_PATH_RAILS];
  _Static_assert(TUTTI_PATH_RAILS >= TUTTI_IB_PORTS, "a rail for each port");
  int most = from->nports > to->nports ? from->nports : to->nports;
  path->nrails[side] = (uint8_t)tuttiIbPairsChoose(from, to, 0, most, pairs);
  for (int i = 0; i < path->nrails[side]; i++)
    path->rails[side][i] = (tuttiRail){
        .port = {pairs[i].port[0], pairs[i].port[1]},
        .gid = {pairs[i].gid[0], pairs[i].gid[1]},
        .gdr = {from->ports[pairs[i].port[0]].gdrRead, to->ports[pairs[i].port[1]].gdr},
    };
}

static tuttiNetAnswer ibCanConnect(const tuttiPeer *a, const tuttiPeer *b, tuttiPath *path,
                                   tuttiReason *why) {
  tuttiIbHandle mine, theirs;
  bool alike = false;
  *why = (tuttiReason){.code = IB_NO_ADDRESS};
  if (!readHandle(a, &mine) || !readHandle(b, &theirs)) return tuttiNetRefuses;
  for (int i = 0; i < mine.nports * theirs.nports; i++)
    alike |= mine.ports[i / theirs.nports].ethernet == theirs.ports[i % theirs.nports].ethernet;
  *why = (tuttiReason){.code = alike ? IB_NO_GIDS : IB_UNLIKE};
  if (!alike) return mine.forced || theirs.forced ? tuttiNetRefuses : tuttiNetPasses;
  fillRails(&mine, &theirs, path, 0);
  fillRails(&theirs, &mine, path, 1);
  if (path->nrails[0] == 0) return tuttiNetRefuses;
  *why = (tuttiReason){.code = IB_CONNECTS};
  uint32_t megabits = mine.megabits < theirs.megabits ? mine.megabits : theirs.megabits;
  path->via = "NET/IB";
  path->latencyUs = 3;
  path->bandwidthGBs = (float)megabits / 8000;
  path->oneFlow = true; /* it has queue pairs on all ports */
  return tuttiNetConnects;
}

static void ibTrouble(void *self, tuttiNetTrouble *out) {
  const tuttiIbNode *node = self;
  uint32_t down = tuttiLoadAcquire32(&node->down);
  out->broken = (uint16_t)tuttiLoadAcquire32(&node->broken);
  out->down = (uint16_t)__builtin_popcount(down);
  if (!down) return;
  const tuttiIbPort *first = &node->rails[__builtin_ctz(down)].port;
  snprintf(out->port, sizeof out->port, "%.15s:%u", first->device, first->port);
}

static void ibClose(void *self) {
  tuttiIbNode *node = self;
  if (node->large.sent + node->large.came > 0)
    TUTTI_INFO(NET,
               "NET/IB: of %" PRIu64 " large messages %" PRIu64
               " were sent from registered memory, of %" PRIu64 " that came %" PRIu64
               " were written to it",
               node->large.sent, node->large.lent, node->large.came, node->large.placed);
  tuttiRegionUnwatch(&node->watcher);
  tuttiIbNodeClose(node);
  tuttiFree(node);
}

/* How far the port is from the GPU; TUTTI_DISTANCE_COUNT where sysfs does not tell. */
static uint8_t distanceTo(const tuttiTopology *t, uint64_t gpu, const tuttiIbPort *port) {
  char bus[TUTTI_BUS_ID_TEXT];
  if (!t || !gpu) return TUTTI_DISTANCE_COUNT;
  int from = tuttiTopologyFind(t, tuttiBusIdText(gpu, bus, sizeof bus));
  int to = tuttiTopologyFind(t, port->device);
  if (from < 0 || to < 0 || t->nodes[to].busId == 0) return TUTTI_DISTANCE_COUNT;
  return (uint8_t)tuttiTopologyDistance(t, from, to);
}

static size_t gpuLeft(const tuttiCommView *v) {
  size_t taken = v->symmetric ? v->symmetric->taken : 0;
  if (v->memLimit == 0) return SIZE_MAX;
  return v->memLimit > taken ? v->memLimit - taken : 0;
}

static tuttiResult_t ibOpen(tuttiCommView *v, tuttiPeer *self, void **out, char *why) {
  tuttiIbNode *node;
  char ports[512];
  TUTTI_TRY(tuttiAlloc((void **)&node, 1, sizeof *node, "the RDMA devices", v->memory));
  node->view = v;
  pthread_mutex_init(&node->regionLock, NULL);
  node->gpuLeft = gpuLeft(v);
  node->pkey = (uint16_t)tuttiSettingInt(TUTTI_SETTING_IB_PKEY);
  tuttiResult_t result = tuttiIbNodeOpen(node, why);
  if (result == tuttiSuccess) result = tuttiIbGdrOpen(node, self);
  if (result == tuttiSuccess) tuttiIbNodeSettle(node, why);
  if (result != tuttiSuccess || node->nrails == 0) {
    ibClose(node);
    return result;
  }
  tuttiIbHandle *mine = &node->mine;
  _Static_assert(sizeof *mine <= TUTTI_NET_HANDLE, "the handle travels in the peer record");
  memcpy(&mine->socket, self->net, sizeof mine->socket);
  mine->nports = node->nrails;
  mine->forced = v->netName && *v->netName;
  uint32_t megabits = 0; /* of those that are down */
  for (int i = 0; i < node->nrails; i++) {
    tuttiIbPort *port = &node->rails[i].port;
    port->distance = distanceTo(v->topology, self->busId, port);
    mine->ports[i] = *port;
    *(port->up ? &mine->megabits : &megabits) += port->megabits;
  }
  if (mine->megabits == 0) mine->megabits = megabits;
  memcpy(self->net, mine, sizeof *mine);
  tuttiIbPxnOpen(node, self);
  TUTTI_INFO(NET, "NET/IB: using %s",
             tuttiIbPortsText(mine->ports, mine->nports, ports, sizeof ports));
  tuttiRegionWatch(&node->watcher, v->proxy);
  *out = node;
  return tuttiSuccess;
}

static tuttiResult_t ibAttach(tuttiCommView *v, void *node, int npeers) {
  (void)v;
  TUTTI_TRY(tuttiIbGdrAttach(node, npeers));
  return tuttiIbPxnAttach(node);
}

static int ibRoom(void *self, int sends, int receives) {
  const tuttiIbNode *node = self;
  int all = sends + receives, n = tuttiIbGdrRoom(node, sends, receives);
  for (int i = 0; i < node->nloans; i++)
    n += node->loans[i].slab.blocks.n;
  return n < all ? n : all;
}

static tuttiResult_t ibTakeData(void *node, const tuttiConn *conn, uint8_t **data) {
  *data = tuttiIbPxnTake(node, conn);
  return *data ? tuttiSuccess : tuttiIbGdrTake(node, conn, data);
}

static void ibGiveData(void *self, const uint8_t *data) {
  tuttiIbNode *node = self;
  tuttiIbLoan *loan = tuttiIbPxnLoanOf(node, data);
  tuttiBlocksGive(loan ? &loan->slab.blocks : &node->gdr.slab.blocks, data);
}

static tuttiProxyState ibServe(void *self, tuttiProxyTurn *turn) {
  tuttiIbNode *node = self;
  for (int i = 0; i < node->nrails && !node->watched; i++) {
    turn->result = tuttiProxyWatch(node->view->proxy, &node->rails[i].events);
    if (turn->result != tuttiSuccess) return TUTTI_PROXY_FAILED;
  }
  node->watched = true;
  tuttiIbForgetRegions(node);
  tuttiIbPoll(node); /* for the endpoints, whose turns follow */
  tuttiIbLookForStalls(node);
  tuttiIbGdrCheckLate(node, turn);
  turn->result = tuttiIbFlushPoll(node);
  if (turn->result != tuttiSuccess) return TUTTI_PROXY_FAILED;
  return tuttiIbNodeEvents(node) ? TUTTI_PROXY_MOVED : TUTTI_PROXY_IDLE;
}

const tuttiNet tuttiNetIb = {
    .name = "IB",
    .open = ibOpen,
    .canConnect = ibCanConnect,
    .explain = ibExplain,
    .ports = ibPorts,
    .join = ibJoin,
    .attach = ibAttach,
    .room = ibRoom,
    .takeData = ibTakeData,
    .giveData = ibGiveData,
    .reaches = tuttiIbReaches,
    .expose = tuttiIbExpose,
    .withdraw = tuttiIbWithdraw,
    .connect = ibConnect,
    .serve = ibServe,
    .progress = ibProgress,
    .drained = ibDrained,
    .haltEndpoint = tuttiIbQueuePairsStop,
    .tell = tuttiIbTell,
    .trouble = ibTrouble,
    .closeEndpoint = ibCloseEndpoint,
    .close = ibClose,
};

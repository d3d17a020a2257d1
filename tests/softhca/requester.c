/* The requester's half of a queue pair: sends messages, takes what comes back, repeats what got
 * lost.
 *
 * The streams below lose nothing, so nothing is repeated because somebody is slow: the retry timer
 * runs from a known loss on, that is when nobody is there, the peer's queue pair cannot receive, a
 * port is down, or the configuration says so. A process that is stopped answers late, as a real HCA
 * would go on answering for it, and one that died is found within timeout x (retry_cnt + 1). */
#include "hca.h"

#include <string.h>
#include <unistd.h>

static softSend *at(softQp *qp, uint32_t n) {
  return &qp->sq[n % qp->sqCap];
}
static uint32_t seqOf(const softQp *qp, uint32_t n) {
  return (qp->attr.sq_psn + n) & 0xffffff;
}

static bool isAtomic(const softSend *s) {
  return s->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || s->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}
static bool returns(const softSend *s) {
  return s->opcode == IBV_WR_RDMA_READ || isAtomic(s);
}

static uint16_t portOf(const softQp *qp) {
  return softPortId(softDeviceOf(qp->ibv.qp_base.context), qp->attr.port_num);
}

/* ---- completions ---------------------------------------------------------------------------- */

static void completeOldest(softQp *qp, enum ibv_wc_status status) {
  static const enum ibv_wc_opcode opcodes[] = {
      [IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
      [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
      [IBV_WR_SEND] = IBV_WC_SEND,
      [IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
      [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
      [IBV_WR_ATOMIC_CMP_AND_SWP] = IBV_WC_COMP_SWAP,
      [IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD,
  };
  const softSend *s = at(qp, qp->done++);
  if (status == IBV_WC_SUCCESS && !qp->sigAll && !(s->flags & IBV_SEND_SIGNALED)) return;
  softCompletion c = {.wc = {.wr_id = s->wrId,
                             .status = status,
                             .opcode = opcodes[s->opcode],
                             .byte_len = s->total,
                             .qp_num = qp->ibv.qp_base.qp_num},
                      .freed = qp->done};
  softComplete(qp->ibv.qp_base.send_cq, &c);
}

void softRequesterFail(softQp *qp, enum ibv_wc_status status) {
  if (qp->done != qp->tail) completeOldest(qp, status);
  softQpError(qp);
}

/* A frame of request n is still being copied out of memory: it was about to be sent again when the
 * answer to the first time came. */
static bool isRead(const softQp *qp, const softFlight *flight, uint32_t n) {
  for (; flight; flight = flight->next)
    if (flight->frame.kind == SOFT_REQUEST && flight->frame.fromQpn == qp->ibv.qp_base.qp_num &&
        flight->frame.seq == seqOf(qp, n) && !softFlightDone(flight))
      return true;
  return false;
}

/* Whoever gets a completion may write to that memory. */
static bool isComplete(softQp *qp, uint32_t n) {
  return at(qp, n)->acked && !isRead(qp, qp->departing.first, n) &&
         !isRead(qp, hca.dropped.first, n);
}

static void advance(softQp *qp) {
  uint32_t before = qp->done;
  while (qp->done != qp->tail && isComplete(qp, qp->done))
    completeOldest(qp, IBV_WC_SUCCESS);
  if ((int32_t)(qp->next_ - qp->done) < 0) qp->next_ = qp->done;
  if (qp->done == before) return;
  qp->retries = qp->attr.retry_cnt;
  qp->rnrRetries = qp->attr.rnr_retry;
}

static void acknowledge(softQp *qp, uint32_t upTo) { /* not including it */
  for (uint32_t n = qp->done; n != upTo; n++)
    if (!returns(at(qp, n))) at(qp, n)->acked = true;
  advance(qp);
}

/* Which request an answer is to; false: none that is open. */
static bool isOpen(const softQp *qp, const softFrame *f, uint32_t *n) {
  uint32_t distance = (f->seq - seqOf(qp, qp->done)) & 0xffffff;
  *n = qp->done + distance;
  return softQpSends(qp) && f->fromQpn == qp->attr.dest_qp_num && distance < qp->tail - qp->done;
}

/* Parts of answers whose bytes are in memory now. */
static bool arrive(softQp *qp) {
  bool moved = false;
  for (softFlight *flight; (flight = qp->arriving.first) && softFlightDone(flight);) {
    uint32_t n;
    softFlightPop(&qp->arriving);
    moved = true;
    bool open = isOpen(qp, &flight->frame, &n), failed = atomic_load(&flight->failed);
    bool last = flight->frame.flags & SOFT_LAST;
    softFlightDrop(flight);
    if (open && failed)
      softRequesterFail(qp, IBV_WC_LOC_PROT_ERR);
    else if (open && last) {
      at(qp, n)->acked = true;
      qp->readsOut--;
      acknowledge(qp, n);
    }
  }
  return moved;
}

/* ---- losses --------------------------------------------------------------------------------- */

void softRequesterLost(softQp *qp) {
  if (!softQpSends(qp) || qp->resendAt || qp->done == qp->tail) return;
  uint64_t timeout = qp->attr.timeout ? 4096ull << qp->attr.timeout : UINT64_MAX / 4;
  qp->resendAt = softNow() + timeout;
}

/* The timer has run out: all from the oldest request on is sent again, or the queue pair gives up.
 */
static bool resend(softQp *qp) {
  if (!qp->rnrWait && qp->retries == 0) {
    softRequesterFail(qp, IBV_WC_RETRY_EXC_ERR);
    return false;
  }
  if (!qp->rnrWait) qp->retries--;
  qp->rnrWait = false;
  qp->resendAt = 0;
  qp->attempt++;
  qp->readsOut = 0;
  for (uint32_t n = qp->done; n != qp->tail; n++)
    at(qp, n)->sent = at(qp, n)->received = 0;
  qp->next_ = qp->done;
  softRequesterStop(qp);
  return true;
}

void softRequesterStop(softQp *qp) {
  softFlightsDrop(&qp->departing);
  softFlightsDrop(&qp->arriving);
}

/* ---- sending -------------------------------------------------------------------------------- */

/* Does local memory fit all of the request's list? */
static bool listFits(softQp *qp, const softSend *s) {
  unsigned access = returns(s) ? IBV_ACCESS_LOCAL_WRITE : 0;
  if (s->flags & IBV_SEND_INLINE) return true;
  for (int i = 0; i < s->nsge; i++)
    if (s->sge[i].length &&
        !softMrFind(qp->ibv.qp_base.pd, s->sge[i].lkey, s->sge[i].addr, s->sge[i].length, access))
      return false;
  return true;
}

/* From memory of the host to memory of the host of the same process. */
static bool stays(const softQp *qp, const softSend *s, const softMr *mr, uint32_t length) {
  bool write = s->opcode == IBV_WR_RDMA_WRITE || s->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (!write || mr->gpu >= 0 || qp->attr.dest_qp_num >> SOFT_INDEX_BITS != hca.slot) return false;
  const softMr *to = softMrByKey(s->rkey);
  return to && to->gpu < 0 && softIsMovers(mr, length);
}

/* The registration whose bytes the receiver may fetch himself, beginning with those at
 * request->sent; *length: how many it has of them. NULL: the bytes go through staging. */
static const softMr *directly(const softQp *qp, const softSend *s, uint32_t *length) {
  uint32_t offset = s->sent;
  int i = 0;
  if ((s->flags & IBV_SEND_INLINE) || returns(s)) return NULL;
  for (; i < s->nsge && offset >= s->sge[i].length; i++)
    offset -= s->sge[i].length;
  if (i == s->nsge) return NULL;
  *length = s->sge[i].length - offset;
  const softMr *mr =
      softMrFind(qp->ibv.qp_base.pd, s->sge[i].lkey, s->sge[i].addr + offset, *length, 0);
  bool direct = hca.config.direct && !hca.config.invisible && mr && mr->gpu >= 0 && mr->exported;
  return direct || (mr && stays(qp, s, mr, *length)) ? mr : NULL;
}

static uint64_t addressAt(const softSend *s, uint32_t offset) {
  int i = 0;
  for (; offset >= s->sge[i].length; i++)
    offset -= s->sge[i].length;
  return s->sge[i].addr + offset;
}

static softFrame frameOf(const softQp *qp, const softSend *s, const softMr *direct,
                         uint32_t available) {
  uint32_t left = returns(s) ? 0 : s->total - s->sent, most = direct ? SOFT_DIRECT : SOFT_PAYLOAD;
  if (direct && available < most) most = available;
  softFrame f = {.kind = SOFT_REQUEST,
                 .opcode = (uint8_t)s->opcode,
                 .attempt = qp->attempt,
                 .destination = qp->destination,
                 .pkey = softQpPkey(qp),
                 .toQpn = qp->attr.dest_qp_num,
                 .fromQpn = qp->ibv.qp_base.qp_num,
                 .seq = seqOf(qp, qp->next_),
                 .length = left < most ? left : most,
                 .imm = s->imm,
                 .rkey = s->rkey,
                 .total = s->total,
                 .offset = s->sent,
                 .address = s->address,
                 .operand = s->operand,
                 .swap = s->swap};
  if (left <= most) f.flags |= SOFT_LAST;
  if (s->flags & IBV_SEND_SOLICITED) f.flags |= SOFT_SOLICITED;
  if (direct) f.flags |= SOFT_BY_ADDRESS;
  return f;
}

static void fill(softQp *qp, const softSend *s, softFlight *flight, const softMr *direct) {
  if (direct) {
    cuPointer address = softMrAt(direct, addressAt(s, s->sent));
    *(softDirect *)(void *)flight->chunk = (softDirect){.pid = getpid(),
                                                        .gpu = direct->gpu,
                                                        .slot = hca.slot,
                                                        .lkey = direct->ibv.lkey,
                                                        .address = address,
                                                        .fromBase = address - direct->base,
                                                        .handle = direct->handle};
  } else if (s->flags & IBV_SEND_INLINE) {
    memcpy(flight->chunk, s->data + s->sent, flight->frame.length);
  } else {
    softGather(flight, qp->ibv.qp_base.pd, s->sge, s->nsge, s->sent, flight->chunk,
               flight->frame.length);
  }
}

/* The next frame of a request, whose bytes are on their way into the staging; NULL: no room. */
static softFlight *prepare(softQp *qp, softConn *conn, const softSend *s) {
  uint32_t available = 0;
  const softMr *direct = directly(qp, s, &available);
  softFrame f = frameOf(qp, s, direct, available);
  uint32_t bytes = f.length && direct ? sizeof(softDirect) : f.length;
  uint8_t *chunk = bytes ? softChunkTake(conn->staging, bytes) : NULL;
  if (bytes && !chunk) return NULL;
  if (chunk) f.chunk = softChunkName(conn->staging, chunk);
  softFlight *flight = softFlightNew(conn, &f, chunk);
  if (!flight)
    softRelease(conn, chunk);
  else if (chunk)
    fill(qp, s, flight, direct);
  return flight;
}

/* One frame of the next request; false: it has to wait. */
static bool sendFrame(softQp *qp, softConn *conn) {
  softSend *s = at(qp, qp->next_);
  bool first = s->sent == 0;
  if ((first && (s->flags & IBV_SEND_FENCE) && qp->readsOut) ||
      (returns(s) && qp->readsOut >= qp->attr.max_rd_atomic))
    return false;
  if (!listFits(qp, s) || (isAtomic(s) && s->total != 8)) {
    /* Its error comes in its turn, when those before it are done. */
    if (qp->done == qp->next_)
      softRequesterFail(qp,
                        isAtomic(s) && s->total != 8 ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_PROT_ERR);
    return false;
  }
  softFlight *flight = prepare(qp, conn, s);
  if (!flight) return false;
  s->sent += flight->frame.length;
  if (returns(s)) qp->readsOut++;
  if (flight->frame.flags & SOFT_LAST) qp->next_++;
  softFlightAppend(&qp->departing, flight);
  return true;
}

/* What happens to a frame on the wire; false: it is lost there. */
static bool survives(softQp *qp, softFlight *flight) {
  softFaults *faults = &hca.config.faults;
  const softFrame *f = &flight->frame;
  qp->cut = qp->cut || softStrikes(&faults->cut);
  if (qp->cut || softStrikes(&faults->lost)) return false;
  if (!flight->chunk || (f->flags & SOFT_BY_ADDRESS) || f->length < faults->flip.least) return true;
  if (!softStrikes(&faults->flip)) return true;
  flight->chunk[softRandom(f->length)] ^= (uint8_t)(1 << softRandom(8));
  return !faults->flip.icrc; /* the receiver's check finds it, and drops the frame */
}

/* Sends the frames whose bytes are there. */
static bool depart(softQp *qp) {
  bool moved = false;
  for (softFlight *flight; (flight = qp->departing.first) && softFlightDone(flight);) {
    softConn *conn = flight->conn;
    softFlightPop(&qp->departing);
    moved = true;
    if (atomic_load(&flight->failed)) {
      softFlightDrop(flight);
      softRequesterFail(qp, IBV_WC_LOC_PROT_ERR);
      break;
    }
    if (!survives(qp, flight)) {
      softFlightDrop(flight);
      softRequesterLost(qp);
    } else if (!softFlightSend(flight, portOf(qp))) {
      softRequesterLost(qp);
    }
    if (!qp->departing.first) softConnFlush(conn);
  }
  return moved;
}

/* Prepares what there is room for. */
static bool sendMore(softQp *qp, uint64_t now) {
  bool moved = false;
  if (qp->next_ == qp->tail) return false;
  bool reachable = qp->destination != SOFT_NOWHERE && softPortUp(portOf(qp));
  softConn *conn = reachable ? softConnTo(qp->attr.dest_qp_num >> SOFT_INDEX_BITS) : NULL;
  if (!conn) {
    softRequesterLost(qp);
    return false;
  }
  while (softQpSends(qp) && qp->next_ != qp->tail && softConnRoom(conn) &&
         !softPortBusy(portOf(qp), now) && sendFrame(qp, conn))
    moved = depart(qp) || true;
  return moved;
}

bool softRequesterRun(softQp *qp, uint64_t now) {
  bool moved = arrive(qp);
  if (!softQpSends(qp)) return moved;
  if (qp->done != qp->tail && at(qp, qp->done)->acked) advance(qp); /* what was still being read */
  if (qp->resendAt && (now < qp->resendAt || !resend(qp))) return moved;
  moved = depart(qp) || moved;
  return sendMore(qp, now) || moved;
}

/* ---- answers -------------------------------------------------------------------------------- */

/* A part of what comes back; false: the chunk is nobody's. */
static bool response(softQp *qp, softConn *conn, uint32_t n, const softFrame *f, uint8_t *chunk) {
  softSend *s = at(qp, n);
  if (f->attempt != qp->attempt || s->acked || !returns(s) || f->offset != s->received)
    return false;
  softFlight *flight = softFlightNew(conn, f, chunk);
  if (!flight) {
    softRequesterLost(qp);
    return false;
  }
  s->received += f->length;
  softFlightAppend(&qp->arriving, flight);
  if (!softScatter(flight, qp->ibv.qp_base.pd, s->sge, s->nsge, f->offset, IBV_ACCESS_LOCAL_WRITE))
    atomic_store(&flight->failed, true);
  arrive(qp);
  return true;
}

static void notReady(softQp *qp, uint32_t n, const softFrame *f) {
  /* Of min_rnr_timer's codes, in units of 10 us. */
  static const uint32_t delays[32] = {65536, 1,    2,    3,     4,     6,     8,     12,
                                      16,    24,   32,   48,    64,    96,    128,   192,
                                      256,   384,  512,  768,   1024,  1536,  2048,  3072,
                                      4096,  6144, 8192, 12288, 16384, 24576, 32768, 49152};
  if (f->attempt != qp->attempt) return;
  acknowledge(qp, n);
  if (qp->rnrRetries == 0 && qp->done == n) {
    softRequesterFail(qp, IBV_WC_RNR_RETRY_EXC_ERR);
    return;
  }
  if (qp->rnrRetries > 0 && qp->rnrRetries < 7) qp->rnrRetries--;
  qp->rnrWait = true;
  qp->resendAt = softNow() + delays[f->rnrTimer & 31] * 10000ull;
}

/* false: the chunk is nobody's. */
static bool take(softQp *qp, softConn *conn, const softFrame *f, uint8_t *chunk) {
  uint32_t n;
  if (!isOpen(qp, f, &n)) return false;
  switch (f->kind) {
  case SOFT_ACK:
    acknowledge(qp, n + 1);
    break;
  case SOFT_RESPONSE:
    return response(qp, conn, n, f, chunk);
  case SOFT_RNR:
    notReady(qp, n, f);
    break;
  case SOFT_NAK:
    acknowledge(qp, n);
    if (qp->done == n) softRequesterFail(qp, (enum ibv_wc_status)f->status);
    break;
  case SOFT_DROPPED:
    if (f->attempt == qp->attempt) softRequesterLost(qp);
    break;
  default:
    break;
  }
  return false;
}

void softRequesterAnswer(softQp *qp, softConn *conn, const softFrame *f, uint8_t *chunk) {
  if (!take(qp, conn, f, chunk)) softRelease(conn, chunk);
}

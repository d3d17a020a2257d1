/* The responder's half of a queue pair: takes messages in order, checks and places them, answers.
 */
#include "hca.h"

#include <string.h>

static uint16_t portOf(const softQp *qp) {
  return softPortId(softDeviceOf(qp->ibv.qp_base.context), qp->attr.port_num);
}

/* An answer to a request, without payload; the caller may set more. */
static softFrame answerTo(const softFrame *request, enum softKind kind) {
  return (softFrame){.kind = (uint8_t)kind,
                     .opcode = request->opcode,
                     .attempt = request->attempt,
                     .toQpn = request->fromQpn,
                     .fromQpn = request->toQpn,
                     .seq = request->seq,
                     .total = request->total};
}

static void answer(softConn *conn, const softFrame *request, enum softKind kind) {
  softFrame f = answerTo(request, kind);
  softConnSend(conn, &f, request->destination);
}

/* ---- errors --------------------------------------------------------------------------------- */

static void completeRecv(softQp *qp, const softFrame *f, enum ibv_wc_status status) {
  struct ibv_qp *v = &qp->ibv.qp_base;
  bool write = f->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  bool imm = write || f->opcode == IBV_WR_SEND_WITH_IMM;
  softCompletion c = {.wc = {.wr_id = qp->in.recv.wrId,
                             .status = status,
                             .opcode = write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
                             .byte_len = f->total,
                             .imm_data = imm ? f->imm : 0,
                             .qp_num = v->qp_num,
                             .src_qp = f->fromQpn,
                             .wc_flags = imm ? IBV_WC_WITH_IMM : 0},
                      .solicited = f->flags & SOFT_SOLICITED,
                      .freed = qp->freed};
  qp->in.holds = false;
  softComplete(v->recv_cq, &c);
}

/* The request is refused and the connection is over, on both sides; what was asked before it is
 * answered first. `local` is how a receive request that was taken completes. */
static void refuse(softQp *qp, softConn *conn, const softFrame *f, enum ibv_wc_status remote,
                   enum ibv_wc_status local) {
  softFrame nak = answerTo(f, SOFT_NAK);
  nak.status = (uint8_t)remote;
  softResponderRun(qp, true);
  softConnSend(conn, &nak, f->destination);
  if (remote == IBV_WC_REM_ACCESS_ERR)
    softRaise(qp->ibv.qp_base.context, IBV_EVENT_QP_ACCESS_ERR, &qp->ibv.qp_base);
  else if (remote == IBV_WC_REM_INV_REQ_ERR && !qp->in.holds)
    softRaise(qp->ibv.qp_base.context, IBV_EVENT_QP_REQ_ERR, &qp->ibv.qp_base);
  if (qp->in.holds) completeRecv(qp, f, local);
  softQpError(qp);
}

static void notReady(softQp *qp, softConn *conn, const softFrame *f) {
  softFrame rnr = answerTo(f, SOFT_RNR);
  rnr.rnrTimer = qp->attr.min_rnr_timer;
  qp->in.offset = 0;
  softConnSend(conn, &rnr, f->destination);
}

/* ---- messages ------------------------------------------------------------------------------- */

static softMr *remoteMemory(softQp *qp, const softFrame *f, uint64_t length, unsigned access) {
  if ((qp->attr.qp_access_flags & access) != access) return NULL;
  return softMrFind(qp->ibv.qp_base.pd, f->rkey, f->address, length, access);
}

static char *memoryAt(const softMr *mr, uint64_t address) {
  return (char *)mr->ibv.addr + (address - mr->iova);
}

/* Has a receive request for the message, or says why not; false: the message ends here. */
static bool hold(softQp *qp, softConn *conn, const softFrame *f) {
  if (qp->in.holds) return true;
  if (!softChance(hca.config.faults.rnr) && softTakeRecv(qp, &qp->in.recv)) {
    qp->in.holds = true;
    return true;
  }
  notReady(qp, conn, f);
  return false;
}

static bool takeSend(softQp *qp, softConn *conn, const softFrame *f, const uint8_t *payload) {
  if (!hold(qp, conn, f)) return false;
  const softRecv *recv = &qp->in.recv;
  if (f->total > softSgeTotal(recv->sge, recv->nsge)) {
    refuse(qp, conn, f, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR);
    return false;
  }
  if (!softScatter(qp->ibv.qp_base.pd, recv->sge, recv->nsge, f->offset, payload, f->length)) {
    refuse(qp, conn, f, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR);
    return false;
  }
  if (f->flags & SOFT_LAST) completeRecv(qp, f, IBV_WC_SUCCESS);
  return true;
}

static bool takeWrite(softQp *qp, softConn *conn, const softFrame *f, const uint8_t *payload) {
  softMr *mr = f->total ? remoteMemory(qp, f, f->total, IBV_ACCESS_REMOTE_WRITE) : NULL;
  bool imm = f->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (f->total && !mr) {
    refuse(qp, conn, f, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR);
    return false;
  }
  if (imm && (f->flags & SOFT_LAST) && !hold(qp, conn, f)) return false;
  if (mr) softCopy(memoryAt(mr, f->address + f->offset), payload, f->length);
  if (imm && (f->flags & SOFT_LAST)) completeRecv(qp, f, IBV_WC_SUCCESS);
  return true;
}

/* ---- reads and atomics ---------------------------------------------------------------------- */

static bool takeRead(softQp *qp, softConn *conn, const softFrame *f) {
  softResponder *in = &qp->in;
  if (f->total && !remoteMemory(qp, f, f->total, IBV_ACCESS_REMOTE_READ)) {
    refuse(qp, conn, f, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR);
    return false;
  }
  if (in->nreads > 0 && in->reads[0].request.attempt != f->attempt) in->nreads = 0; /* in vain */
  if (in->nreads >= qp->attr.max_dest_rd_atomic) {
    refuse(qp, conn, f, IBV_WC_REM_INV_REQ_ERR, IBV_WC_WR_FLUSH_ERR);
    return false;
  }
  in->reads[in->nreads++] = (softReadJob){.conn = conn, .request = *f};
  return true;
}

static bool readFrame(softQp *qp, softReadJob *job) { /* true: it was the last one */
  const softFrame *request = &job->request;
  uint32_t left = request->total - job->offset;
  softFrame f = answerTo(request, SOFT_RESPONSE);
  f.offset = job->offset;
  f.length = left < SOFT_PAYLOAD ? left : SOFT_PAYLOAD;
  f.flags = left <= SOFT_PAYLOAD ? SOFT_LAST : 0;
  /* It may have been deregistered since the request came. */
  softMr *mr = left ? remoteMemory(qp, request, request->total, IBV_ACCESS_REMOTE_READ) : NULL;
  if (left && !mr) {
    f = answerTo(request, SOFT_NAK);
    f.status = IBV_WC_REM_ACCESS_ERR;
    softConnSend(job->conn, &f, request->destination);
    return true;
  }
  uint8_t *to = softConnSend(job->conn, &f, request->destination);
  if (to && mr) softCopy(to, memoryAt(mr, request->address + job->offset), f.length);
  job->offset += f.length;
  return f.flags & SOFT_LAST;
}

bool softResponderRun(softQp *qp, bool toTheEnd) {
  softResponder *in = &qp->in;
  bool moved = false;
  while (in->nreads > 0 &&
         (toTheEnd || (softConnRoom(in->reads[0].conn) &&
                       !softPortBusy(in->reads[0].request.destination, softNow())))) {
    moved = true;
    if (!readFrame(qp, &in->reads[0])) continue;
    in->nreads--;
    memmove(in->reads, in->reads + 1, (size_t)in->nreads * sizeof *in->reads);
  }
  return moved;
}

/* Answers come in the order of the requests: a read that is under way is finished first. */
static void answerAtomic(softQp *qp, softConn *conn, const softFrame *f, uint64_t value) {
  softFrame r = answerTo(f, SOFT_RESPONSE);
  r.flags = SOFT_LAST;
  r.length = sizeof value;
  softResponderRun(qp, true);
  uint8_t *to = softConnSend(conn, &r, f->destination);
  if (to) memcpy(to, &value, sizeof value);
}

static bool takeAtomic(softQp *qp, softConn *conn, const softFrame *f) {
  softMr *mr = remoteMemory(qp, f, 8, IBV_ACCESS_REMOTE_ATOMIC);
  if (!mr || f->address % 8) {
    refuse(qp, conn, f, mr ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR);
    return false;
  }
  uint64_t *word = (uint64_t *)(void *)memoryAt(mr, f->address), old = f->operand;
  if (f->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
    old = __atomic_fetch_add(word, f->operand, __ATOMIC_SEQ_CST);
  else
    __atomic_compare_exchange_n(word, &old, f->swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  uint32_t i = qp->in.natomics++ % SOFT_MAX_ATOMIC;
  qp->in.atomics[i].seq = f->seq;
  qp->in.atomics[i].value = old;
  answerAtomic(qp, conn, f, old);
  return true;
}

/* ---- order ---------------------------------------------------------------------------------- */

/* A message that was taken before: its answer was lost, or is on its way. */
static void repeat(softQp *qp, softConn *conn, const softFrame *f) {
  bool atomic = f->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || f->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  if (f->opcode == IBV_WR_RDMA_READ) {
    takeRead(qp, conn, f);
  } else if (!atomic) {
    if (f->flags & SOFT_LAST) answer(conn, f, SOFT_ACK);
  } else {
    for (uint32_t i = 0; i < SOFT_MAX_ATOMIC && i < qp->in.natomics; i++)
      if (qp->in.atomics[i].seq == f->seq) answerAtomic(qp, conn, f, qp->in.atomics[i].value);
  }
}

static bool takeMessage(softQp *qp, softConn *conn, const softFrame *f, const uint8_t *payload) {
  switch (f->opcode) {
  case IBV_WR_SEND:
  case IBV_WR_SEND_WITH_IMM:
    return takeSend(qp, conn, f, payload);
  case IBV_WR_RDMA_WRITE:
  case IBV_WR_RDMA_WRITE_WITH_IMM:
    return takeWrite(qp, conn, f, payload);
  case IBV_WR_RDMA_READ:
    return takeRead(qp, conn, f);
  default:
    return takeAtomic(qp, conn, f);
  }
}

void softResponderTake(softConn *conn, const softFrame *f, uint8_t *payload) {
  softQp *qp = softQpFind(f->toQpn);
  bool ready = qp && (qp->ibv.qp_base.state == IBV_QPS_RTR || qp->ibv.qp_base.state == IBV_QPS_RTS);
  if (!ready || qp->attr.dest_qp_num != f->fromQpn || portOf(qp) != f->destination ||
      !softPortUp(f->destination)) {
    answer(conn, f, SOFT_DROPPED);
    return;
  }
  uint32_t ahead = (f->seq - qp->in.expected) & 0xffffff;
  if (ahead >= 1u << 23) {
    repeat(qp, conn, f);
    return;
  }
  if (f->offset == 0) qp->in.offset = 0; /* perhaps for the second time */
  if (ahead > 0 || f->offset != qp->in.offset) {
    answer(conn, f, SOFT_DROPPED);
    return;
  }
  if (!takeMessage(qp, conn, f, payload)) return;
  qp->in.offset += f->length;
  if (!(f->flags & SOFT_LAST)) return;
  qp->in.expected = (qp->in.expected + 1) & 0xffffff;
  qp->in.offset = 0;
  if (f->opcode <= IBV_WR_SEND_WITH_IMM) answer(conn, f, SOFT_ACK);
}

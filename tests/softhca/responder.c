/* The responder's half of a queue pair: takes messages in order, checks and places them, answers.
 *
 * What was taken waits as flights, in order. Bytes for memory of a GPU are on their way from then
 * on; the rest happens when all before it is done: memory of the host is written, a read is begun,
 * a message is acknowledged and its receive request complete, an error is told. */
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
                     .total = request->total,
                     .destination = request->destination};
}

/* Answers come in the order of the requests, so behind those that wait for their bytes. */
static void answerWith(softQp *qp, softConn *conn, const softFrame *f, uint8_t *chunk) {
  softFlight *flight = softFlightNew(conn, f, chunk);
  if (flight) softFlightAppend(&qp->in.departing, flight);
}

static void answer(softQp *qp, softConn *conn, const softFrame *request, enum softKind kind) {
  softFrame f = answerTo(request, kind);
  answerWith(qp, conn, &f, NULL);
}

/* Nothing was taken, and nothing waits for it: as if the request had been lost. */
static void drop(softConn *conn, const softFrame *request) {
  softFrame f = answerTo(request, SOFT_DROPPED);
  softConnSend(conn, &f, request->destination);
}

/* ---- errors --------------------------------------------------------------------------------- */

static void completeRecv(softQp *qp, const softFrame *f, uint64_t wrId, enum ibv_wc_status status) {
  struct ibv_qp *v = &qp->ibv.qp_base;
  bool write = f->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  bool imm = write || f->opcode == IBV_WR_SEND_WITH_IMM;
  softCompletion c = {.wc = {.wr_id = wrId,
                             .status = status,
                             .opcode = write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
                             .byte_len = f->total,
                             .imm_data = imm ? f->imm : 0,
                             .qp_num = v->qp_num,
                             .src_qp = f->fromQpn,
                             .wc_flags = imm ? IBV_WC_WITH_IMM : 0},
                      .solicited = f->flags & SOFT_SOLICITED,
                      .freed = qp->freed};
  softComplete(v->recv_cq, &c);
}

/* The request is refused and the connection is over, on both sides. `local` is how a receive
 * request that was taken completes. */
static void refuse(softQp *qp, softFlight *flight, enum ibv_wc_status remote,
                   enum ibv_wc_status local) {
  softFrame nak = answerTo(&flight->frame, SOFT_NAK);
  bool held = qp->in.holds || flight->takes;
  nak.status = (uint8_t)remote;
  answerWith(qp, flight->conn, &nak, NULL);
  if (remote == IBV_WC_REM_ACCESS_ERR)
    softRaise(qp->ibv.qp_base.context, IBV_EVENT_QP_ACCESS_ERR, &qp->ibv.qp_base);
  else if (remote == IBV_WC_REM_INV_REQ_ERR && !held)
    softRaise(qp->ibv.qp_base.context, IBV_EVENT_QP_REQ_ERR, &qp->ibv.qp_base);
  if (held)
    completeRecv(qp, &flight->frame, flight->takes ? flight->recv.wrId : qp->in.recv.wrId, local);
  if (!flight->takes) qp->in.holds = false;
  softQpError(qp);
}

static void notReady(softQp *qp, const softFlight *flight) {
  softFrame rnr = answerTo(&flight->frame, SOFT_RNR);
  rnr.rnrTimer = qp->attr.min_rnr_timer;
  answerWith(qp, flight->conn, &rnr, NULL);
}

/* ---- taking messages ------------------------------------------------------------------------ */

static softMr *remoteMemory(softQp *qp, const softFrame *f, uint64_t length, unsigned access) {
  if ((qp->attr.qp_access_flags & access) != access) return NULL;
  return softMrFind(qp->ibv.qp_base.pd, f->rkey, f->address, length, access);
}

/* These say what is to become of a flight: it stays SOFT_PLACE, or changes into an error's. */

static void toRefuse(softFlight *flight, enum ibv_wc_status remote, enum ibv_wc_status local) {
  flight->task = SOFT_REFUSE;
  flight->status = (uint8_t)remote;
  flight->localStatus = (uint8_t)local;
}

/* Takes a receive request for the message, if it has none. */
static bool hold(softQp *qp, softFlight *flight) {
  if (qp->in.holds) return true;
  qp->in.holds = !softStrikes(&hca.config.faults.rnr) && softTakeRecv(qp, &qp->in.recv);
  if (!qp->in.holds) flight->task = SOFT_NOT_READY;
  return qp->in.holds;
}

/* With its last frame, the message's receive request is the flight's. */
static void handOver(softQp *qp, softFlight *flight) {
  flight->recv = qp->in.recv;
  flight->takes = flight->frame.flags & SOFT_LAST;
  if (flight->takes) qp->in.holds = false;
}

static void takeSend(softQp *qp, softFlight *flight) {
  const softRecv *recv = &qp->in.recv;
  if (!hold(qp, flight)) return;
  if (flight->frame.total > softSgeTotal(recv->sge, recv->nsge))
    toRefuse(flight, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR);
  else
    handOver(qp, flight);
}

static void takeWrite(softQp *qp, softFlight *flight) {
  const softFrame *f = &flight->frame;
  if (f->total && !remoteMemory(qp, f, f->total, IBV_ACCESS_REMOTE_WRITE))
    toRefuse(flight, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR);
  else if (f->opcode == IBV_WR_RDMA_WRITE_WITH_IMM && (f->flags & SOFT_LAST) && hold(qp, flight))
    handOver(qp, flight);
}

static void takeRead(softQp *qp, softFlight *flight) {
  const softFrame *f = &flight->frame;
  if (f->total && !remoteMemory(qp, f, f->total, IBV_ACCESS_REMOTE_READ))
    toRefuse(flight, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR);
  else if (qp->in.nreads >= qp->attr.max_dest_rd_atomic)
    toRefuse(flight, IBV_WC_REM_INV_REQ_ERR, IBV_WC_WR_FLUSH_ERR);
  else
    flight->task = SOFT_READ;
  if (flight->task == SOFT_READ) qp->in.nreads++;
}

static void takeAtomic(softQp *qp, softFlight *flight) {
  const softFrame *f = &flight->frame;
  if (!remoteMemory(qp, f, 8, IBV_ACCESS_REMOTE_ATOMIC))
    toRefuse(flight, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR);
  else if (f->address % 8)
    toRefuse(flight, IBV_WC_REM_INV_REQ_ERR, IBV_WC_WR_FLUSH_ERR);
  else
    flight->task = SOFT_ATOMIC;
}

static void takeMessage(softQp *qp, softFlight *flight) {
  flight->task = SOFT_PLACE;
  switch (flight->frame.opcode) {
  case IBV_WR_SEND:
  case IBV_WR_SEND_WITH_IMM:
    takeSend(qp, flight);
    break;
  case IBV_WR_RDMA_WRITE:
  case IBV_WR_RDMA_WRITE_WITH_IMM:
    takeWrite(qp, flight);
    break;
  case IBV_WR_RDMA_READ:
    takeRead(qp, flight);
    break;
  default:
    takeAtomic(qp, flight);
    break;
  }
}

/* ---- doing what was taken ------------------------------------------------------------------- */

static bool placesOnGpu(const softQp *qp, const softFlight *flight) {
  const softFrame *f = &flight->frame;
  bool send = f->opcode == IBV_WR_SEND || f->opcode == IBV_WR_SEND_WITH_IMM;
  for (int i = 0; send && i < flight->recv.nsge; i++) {
    const struct ibv_sge *sge = &flight->recv.sge[i];
    softMr *mr = softMrFind(qp->ibv.qp_base.pd, sge->lkey, sge->addr, 0, 0);
    if (mr && mr->gpu >= 0) return true;
  }
  softMr *mr = send ? NULL : softMrFind(qp->ibv.qp_base.pd, f->rkey, f->address, 0, 0);
  return mr && mr->gpu >= 0;
}

/* Puts the payload where it belongs, or begins to. */
static void place(softQp *qp, softFlight *flight) {
  const softFrame *f = &flight->frame;
  struct ibv_pd *pd = qp->ibv.qp_base.pd;
  bool placed;
  flight->started = true;
  if (f->opcode == IBV_WR_SEND || f->opcode == IBV_WR_SEND_WITH_IMM) {
    placed = softScatter(flight, pd, flight->recv.sge, flight->recv.nsge, f->offset,
                         IBV_ACCESS_LOCAL_WRITE);
    if (!placed) toRefuse(flight, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR);
    return;
  }
  struct ibv_sge whole = {.addr = f->address, .length = f->total, .lkey = f->rkey};
  placed = f->length == 0 || softScatter(flight, pd, &whole, 1, f->offset, IBV_ACCESS_REMOTE_WRITE);
  if (!placed) toRefuse(flight, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR);
}

/* A frame of what a read returns; false: there is no room for it now. */
static bool readFrame(softQp *qp, softFlight *flight) {
  const softFrame *request = &flight->frame;
  uint32_t left = request->total - flight->offset;
  softFrame f = answerTo(request, SOFT_RESPONSE);
  f.offset = flight->offset;
  f.length = left < SOFT_PAYLOAD ? left : SOFT_PAYLOAD;
  f.flags = left <= SOFT_PAYLOAD ? SOFT_LAST : 0;
  uint8_t *chunk = left ? softChunkTake(flight->conn->staging, f.length) : NULL;
  if (left && !chunk) return false;
  if (chunk) f.chunk = softChunkName(flight->conn->staging, chunk);
  softFlight *answer = softFlightNew(flight->conn, &f, chunk);
  if (!answer) {
    softRelease(flight->conn, chunk);
    return false;
  }
  struct ibv_sge whole = {
      .addr = request->address, .length = request->total, .lkey = request->rkey};
  /* It may have been deregistered since the request came. */
  if (left && !softGather(answer, qp->ibv.qp_base.pd, &whole, 1, f.offset, chunk, f.length)) {
    toRefuse(flight, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR);
    softFlightDrop(answer);
    return true;
  }
  softFlightAppend(&qp->in.departing, answer);
  flight->offset += f.length;
  return true;
}

/* Answers a read as far as there is room; true: to its end. */
static bool readOn(softQp *qp, softFlight *flight) {
  uint16_t port = flight->frame.destination;
  if (flight->conn->dead) return true;
  for (bool first = true; first || flight->offset < flight->frame.total; first = false)
    if (softPortBusy(port, softNow()) || !readFrame(qp, flight))
      return false;
    else if (flight->task == SOFT_REFUSE)
      break;
  return true;
}

static void doAtomic(softQp *qp, softFlight *flight) {
  const softFrame *f = &flight->frame;
  softMr *mr = remoteMemory(qp, f, 8, IBV_ACCESS_REMOTE_ATOMIC);
  flight->started = true;
  if (!mr) {
    toRefuse(flight, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR);
    return;
  }
  cuPointer at = softMrAt(mr, f->address);
  if (mr->gpu >= 0) {
    softMoverSubmit(
        &(softJob){.move = SOFT_GPU_ATOMIC, .gpu = mr->gpu, .to = at, .mr = mr, .flight = flight},
        f->toQpn);
    return;
  }
  uint64_t *word = (uint64_t *)(uintptr_t)at, old = f->operand; /* NOLINT: the ABI's integer */
  if (f->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
    old = __atomic_fetch_add(word, f->operand, __ATOMIC_SEQ_CST);
  else
    __atomic_compare_exchange_n(word, &old, f->swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  flight->value = old;
}

static void answerAtomic(softQp *qp, softConn *conn, const softFrame *f, uint64_t value) {
  softFrame r = answerTo(f, SOFT_RESPONSE);
  r.flags = SOFT_LAST;
  r.length = sizeof value;
  r.operand = value;
  answerWith(qp, conn, &r, NULL);
}

/* Reading from a GPU makes visible what was written there before; true when it is. */
static bool flushed(const softQp *qp, softFlight *flight) {
  softMr *mr = softMrFind(qp->ibv.qp_base.pd, flight->frame.rkey, flight->frame.address, 0, 0);
  if (!mr || mr->gpu < 0 || !hca.config.invisible) return true;
  softReveal(mr->gpu);
  return softRevealed(mr->gpu);
}

/* Parts of messages take their way through the network, the late ones longer. */
static bool isDue(const softFlight *flight) {
  if (flight->notBefore > softNow()) {
    softNext(flight->notBefore);
    return false;
  }
  return true;
}

/* The oldest flight's turn has come; false: it has to be asked again. */
static bool beginTurn(softQp *qp, softFlight *flight) {
  switch (flight->task) {
  case SOFT_PLACE:
    if (!isDue(flight)) return false;
    place(qp, flight);
    break;
  case SOFT_READ:
    if (!flushed(qp, flight)) return false;
    break;
  case SOFT_ATOMIC:
    if (!flushed(qp, flight)) return false;
    doAtomic(qp, flight);
    break;
  default:
    break;
  }
  flight->started = true;
  return true;
}

/* The oldest flight: true when all is done that has to be before it is answered. */
static bool ready(softQp *qp, softFlight *flight) {
  if (!flight->started && !beginTurn(qp, flight)) return false;
  if (flight->task == SOFT_READ && !readOn(qp, flight)) return false;
  if (!softFlightDone(flight)) return false;
  if (atomic_load(&flight->failed)) toRefuse(flight, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR);
  return true;
}

static void finishPlaced(softQp *qp, softFlight *flight) {
  const softFrame *f = &flight->frame;
  if (!(f->flags & SOFT_LAST)) return;
  if (flight->takes) completeRecv(qp, f, flight->recv.wrId, IBV_WC_SUCCESS);
  answer(qp, flight->conn, f, SOFT_ACK);
}

static void finishAtomic(softQp *qp, softFlight *flight) {
  uint32_t i = qp->in.natomics++ % SOFT_MAX_ATOMIC;
  qp->in.atomics[i].seq = flight->frame.seq;
  qp->in.atomics[i].value = flight->value;
  answerAtomic(qp, flight->conn, &flight->frame, flight->value);
}

static void finish(softQp *qp, softFlight *flight) {
  if (flight->frame.opcode == IBV_WR_RDMA_READ && qp->in.nreads > 0) qp->in.nreads--;
  switch (flight->task) {
  case SOFT_PLACE:
    finishPlaced(qp, flight);
    break;
  case SOFT_ATOMIC:
    finishAtomic(qp, flight);
    break;
  case SOFT_REFUSE:
    refuse(qp, flight, flight->status, flight->localStatus);
    break;
  case SOFT_NOT_READY:
    notReady(qp, flight);
    break;
  case SOFT_READ:
    break;
  }
}

/* In any order, as adaptive routing and relaxed ordering have it. */
static void startDue(softQp *qp) {
  for (softFlight *flight = qp->in.flights.first; flight; flight = flight->next)
    if (flight->task == SOFT_PLACE && !flight->started && isDue(flight)) place(qp, flight);
}

/* It is written to memory that was registered with relaxed ordering. */
static bool isRelaxed(const softQp *qp, const softFlight *flight) {
  const softFrame *f = &flight->frame;
  bool write = f->opcode == IBV_WR_RDMA_WRITE || f->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  softMr *mr = write ? softMrFind(qp->ibv.qp_base.pd, f->rkey, f->address, 0, 0) : NULL;
  return mr && (mr->access & IBV_ACCESS_RELAXED_ORDERING);
}

/* What is relaxed at its time, whatever came before; the rest in order, without a wait for that. */
static void startRelaxed(softQp *qp) {
  bool waits = false; /* for what is not relaxed */
  for (softFlight *flight = qp->in.flights.first; flight; flight = flight->next) {
    bool relaxed = isRelaxed(qp, flight);
    if (flight->task != SOFT_PLACE) return;
    if (!flight->started && (relaxed ? isDue(flight) : !waits)) place(qp, flight);
    waits |= !relaxed && !(flight->started && softFlightDone(flight));
  }
}

/* Starts what need not wait for its turn: bytes for a GPU, as long as all before them are on their
 * way there too. Movers keep them in order. */
static void startSome(softQp *qp) {
  for (softFlight *flight = qp->in.flights.first; flight; flight = flight->next) {
    if (flight->started) continue;
    if (flight->task != SOFT_PLACE || !placesOnGpu(qp, flight)) return;
    place(qp, flight);
  }
}

static bool depart(softQp *qp) {
  bool moved = false;
  for (softFlight *flight; (flight = qp->in.departing.first) && softFlightDone(flight);) {
    softFlightPop(&qp->in.departing);
    if (atomic_load(&flight->failed)) {
      flight->frame.kind = SOFT_NAK;
      flight->frame.status = IBV_WC_REM_OP_ERR;
      flight->frame.length = flight->frame.chunk = 0;
      softRelease(flight->conn, flight->chunk);
      flight->chunk = NULL;
    }
    softFlightSend(flight, flight->frame.destination);
    moved = true;
  }
  return moved;
}

bool softResponderRun(softQp *qp) {
  softResponder *in = &qp->in;
  bool moved = false;
  for (softFlight *flight; (flight = in->flights.first) && ready(qp, flight); moved = true) {
    softFlightPop(&in->flights);
    finish(qp, flight);
    softFlightDrop(flight);
  }
  if (hca.config.reorder)
    startDue(qp);
  else if (hca.config.relaxed)
    startRelaxed(qp);
  else
    startSome(qp);
  return depart(qp) || moved;
}

void softResponderStop(softQp *qp) {
  softResponder *in = &qp->in;
  for (softFlight *flight; (flight = in->flights.first);) {
    softFlightPop(&in->flights);
    if (flight->takes) softFlushRecv(qp, &flight->recv);
    softFlightDrop(flight);
  }
  if (in->holds) softFlushRecv(qp, &in->recv);
  in->holds = false;
  in->nreads = 0;
}

/* ---- order ---------------------------------------------------------------------------------- */

/* A message that was taken before: its answer was lost, or is on its way. */
static void repeat(softQp *qp, softConn *conn, const softFrame *f) {
  bool waits = false;
  for (softFlight *flight = qp->in.flights.first; flight; flight = flight->next) {
    if (flight->frame.seq != f->seq) continue;
    waits = true;
    flight->frame.attempt = f->attempt;
    flight->offset = 0; /* a read begins anew */
  }
  if (waits || !(f->flags & SOFT_LAST)) return;
  if (f->opcode == IBV_WR_RDMA_READ) {
    softFlight *flight = softFlightNew(conn, f, NULL);
    if (!flight) return;
    takeRead(qp, flight);
    softFlightAppend(&qp->in.flights, flight);
  } else if (f->opcode <= IBV_WR_SEND_WITH_IMM) {
    answer(qp, conn, f, SOFT_ACK);
  } else {
    for (uint32_t i = 0; i < SOFT_MAX_ATOMIC && i < qp->in.natomics; i++)
      if (qp->in.atomics[i].seq == f->seq) answerAtomic(qp, conn, f, qp->in.atomics[i].value);
  }
}

/* Is it the next frame? If not, it has been dealt with. */
static bool inTurn(softQp *qp, softConn *conn, const softFrame *f) {
  uint32_t ahead = (f->seq - qp->in.expected) & 0xffffff;
  if (ahead >= 1u << 23) {
    repeat(qp, conn, f);
    return false;
  }
  if (f->offset == 0) qp->in.offset = 0; /* perhaps for the second time */
  if (ahead == 0 && f->offset == qp->in.offset) return true;
  drop(conn, f);
  return false;
}

/* Members of the same partition meet, if one of them is a full one, which the highest bit says. */
static bool meet(uint16_t a, uint16_t b) {
  return ((a ^ b) & 0x7fff) == 0 && ((a | b) & 0x8000);
}

/* false: the chunk is nobody's. */
static bool take(softConn *conn, const softFrame *f, uint8_t *chunk) {
  softQp *qp = softQpFind(f->toQpn);
  bool able = qp && (qp->ibv.qp_base.state == IBV_QPS_RTR || qp->ibv.qp_base.state == IBV_QPS_RTS);
  if (!able || qp->attr.dest_qp_num != f->fromQpn || portOf(qp) != f->destination ||
      !softPortUp(f->destination) || !meet(f->pkey, softQpPkey(qp))) {
    drop(conn, f);
    return false;
  }
  if (qp->in.refused || !inTurn(qp, conn, f)) return false;
  softFlight *flight = softFlightNew(conn, f, chunk);
  if (!flight) {
    drop(conn, f);
    return false;
  }
  takeMessage(qp, flight);
  uint64_t late = hca.config.reorder                            ? hca.config.reorder
                  : hca.config.relaxed && isRelaxed(qp, flight) ? hca.config.relaxed
                                                                : 0;
  if (late) flight->notBefore = softNow() + softRandom(late);
  softFlightAppend(&qp->in.flights, flight);
  if (flight->task == SOFT_REFUSE) {
    qp->in.refused = true;
  } else if (flight->task == SOFT_NOT_READY) {
    qp->in.offset = 0;
  } else {
    bool last = f->flags & SOFT_LAST;
    qp->in.offset = last ? 0 : qp->in.offset + f->length;
    if (last) qp->in.expected = (qp->in.expected + 1) & 0xffffff;
  }
  softResponderRun(qp);
  return true;
}

void softResponderTake(softConn *conn, const softFrame *f, uint8_t *chunk) {
  if (!take(conn, f, chunk)) softRelease(conn, chunk);
}

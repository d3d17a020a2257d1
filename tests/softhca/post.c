/* Work requests, posted as lists or built by the calls of struct ibv_qp_ex. */
#include "hca.h"

#include <errno.h>
#include <string.h>

static softQp *own(struct ibv_qp *qp) {
  return (softQp *)((char *)qp - offsetof(softQp, ibv));
}

/* ---- lists ---------------------------------------------------------------------------------- */

static void copyInline(softSend *request, const struct ibv_sge *sge, int nsge) {
  uint8_t *to = request->data;
  for (int i = 0; i < nsge; i++) {
    memcpy(to, (const void *)(uintptr_t)sge[i].addr, sge[i].length); /* NOLINT: the ABI's integer */
    to += sge[i].length;
  }
}

static bool acceptable(const softQp *qp, const struct ibv_send_wr *wr, uint64_t total,
                       bool atomic) {
  bool inlined = wr->send_flags & IBV_SEND_INLINE, reads = wr->opcode == IBV_WR_RDMA_READ;
  if (wr->opcode > IBV_WR_ATOMIC_FETCH_AND_ADD || total > 1u << 30) return false;
  if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->cap.max_send_sge) return false;
  return !inlined || (total <= qp->cap.max_inline_data && !atomic && !reads);
}

/* Takes over one request; 0 or an errno. */
static int convert(const softQp *qp, const struct ibv_send_wr *wr, softSend *to) {
  uint64_t total = softSgeTotal(wr->sg_list, wr->num_sge);
  bool atomic =
      wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  if (!acceptable(qp, wr, total, atomic)) return EINVAL;
  to->wrId = wr->wr_id;
  to->opcode = wr->opcode;
  to->flags = wr->send_flags;
  to->imm = wr->imm_data;
  to->total = (uint32_t)total;
  to->rkey = atomic ? wr->wr.atomic.rkey : wr->wr.rdma.rkey;
  to->address = atomic ? wr->wr.atomic.remote_addr : wr->wr.rdma.remote_addr;
  to->operand = atomic ? wr->wr.atomic.compare_add : 0;
  to->swap = atomic ? wr->wr.atomic.swap : 0;
  to->nsge = wr->num_sge;
  if (wr->send_flags & IBV_SEND_INLINE)
    copyInline(to, wr->sg_list, wr->num_sge);
  else if (wr->num_sge > 0)
    memcpy(to->sge, wr->sg_list, (size_t)wr->num_sge * sizeof *wr->sg_list);
  return 0;
}

int softEnqueue(softQp *qp, const softSend *request) {
  if (qp->tail - qp->freed >= qp->cap.max_send_wr) return ENOMEM;
  softSend *to = &qp->sq[qp->tail++ % qp->sqCap];
  size_t used = request->flags & IBV_SEND_INLINE ? request->total : 0;
  memcpy(to, request, offsetof(softSend, data));
  memcpy(to->data, request->data, used);
  to->acked = false;
  to->sent = to->received = 0;
  return 0;
}

/* With the requests of a list in place: sends, or flushes them. */
static void kick(softQp *qp) {
  if (qp->ibv.qp_base.state == IBV_QPS_ERR) {
    softQpError(qp);
    return;
  }
  softRequesterRun(qp, softNow());
  if (hca.backlog || qp->next_ != qp->tail || qp->resendAt) softEngineWake();
}

static bool postable(const softQp *qp) {
  return qp->ibv.qp_base.state == IBV_QPS_RTS || qp->ibv.qp_base.state == IBV_QPS_ERR;
}

int softPostSend(struct ibv_qp *v, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
  softQp *qp = own(v);
  int error = 0;
  softLockFirst();
  for (; wr && !error; wr = error ? wr : wr->next) {
    softSend request;
    error = postable(qp) ? convert(qp, wr, &request) : EINVAL;
    if (!error) error = softEnqueue(qp, &request);
  }
  kick(qp);
  pthread_mutex_unlock(&hca.lock);
  if (error) *bad = wr;
  return error;
}

int softPostRecv(struct ibv_qp *v, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
  softQp *qp = own(v);
  int error = 0;
  softLockFirst();
  for (; wr; wr = wr->next) {
    bool can = v->state != IBV_QPS_RESET && !v->srq && qp->cap.max_recv_wr > 0;
    error = can ? softPutRecv(&qp->rq, wr) : EINVAL;
    if (error) break;
  }
  if (v->state == IBV_QPS_ERR) softQpError(qp);
  pthread_mutex_unlock(&hca.lock);
  if (error) *bad = wr;
  return error;
}

/* ---- built one by one ----------------------------------------------------------------------- */

static void start(struct ibv_qp_ex *ex) {
  softQp *qp = own(&ex->qp_base);
  pthread_mutex_lock(&qp->building);
  qp->nbuilt = 0;
  qp->buildError = 0;
}

static softSend *begin(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode) {
  softQp *qp = own(&ex->qp_base);
  if ((uint32_t)qp->nbuilt == qp->sqCap) {
    qp->buildError = ENOMEM;
    qp->nbuilt--; /* what the application goes on to set is thrown away in the end */
  }
  softSend *request = &qp->built[qp->nbuilt++];
  request->wrId = ex->wr_id;
  request->opcode = opcode;
  request->flags = ex->wr_flags & ~(unsigned)IBV_SEND_INLINE;
  request->nsge = 0;
  request->total = 0;
  request->imm = 0;
  return request;
}

static void remote(softSend *request, uint32_t rkey, uint64_t address) {
  request->rkey = rkey;
  request->address = address;
}

static void wrWrite(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address) {
  remote(begin(ex, IBV_WR_RDMA_WRITE), rkey, address);
}

static void wrWriteImm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address, __be32 imm) {
  softSend *request = begin(ex, IBV_WR_RDMA_WRITE_WITH_IMM);
  remote(request, rkey, address);
  request->imm = imm;
}

static void wrRead(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address) {
  remote(begin(ex, IBV_WR_RDMA_READ), rkey, address);
}

static void wrSend(struct ibv_qp_ex *ex) {
  begin(ex, IBV_WR_SEND);
}

static void wrSendImm(struct ibv_qp_ex *ex, __be32 imm) {
  begin(ex, IBV_WR_SEND_WITH_IMM)->imm = imm;
}

static void wrSwap(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address, uint64_t compare,
                   uint64_t swap) {
  softSend *request = begin(ex, IBV_WR_ATOMIC_CMP_AND_SWP);
  remote(request, rkey, address);
  request->operand = compare;
  request->swap = swap;
}

static void wrAdd(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t address, uint64_t add) {
  softSend *request = begin(ex, IBV_WR_ATOMIC_FETCH_AND_ADD);
  remote(request, rkey, address);
  request->operand = add;
}

static softSend *last(softQp *qp) {
  return qp->nbuilt ? &qp->built[qp->nbuilt - 1] : NULL;
}

static void setList(struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *list) {
  softQp *qp = own(&ex->qp_base);
  softSend *request = last(qp);
  if (!request || n > qp->cap.max_send_sge || softSgeTotal(list, (int)n) > 1u << 30) {
    qp->buildError = EINVAL;
    return;
  }
  memcpy(request->sge, list, n * sizeof *list);
  request->nsge = (int)n;
  request->total = (uint32_t)softSgeTotal(list, (int)n);
}

static void setOne(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t address, uint32_t length) {
  struct ibv_sge sge = {.addr = address, .length = length, .lkey = lkey};
  setList(ex, 1, &sge);
}

static void setInlineList(struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *list) {
  softQp *qp = own(&ex->qp_base);
  softSend *request = last(qp);
  size_t total = 0;
  for (size_t i = 0; i < n; i++) {
    if (!request || list[i].length > qp->cap.max_inline_data - total) {
      qp->buildError = EINVAL;
      return;
    }
    memcpy(request->data + total, list[i].addr, list[i].length);
    total += list[i].length;
  }
  if (!request) return;
  request->total = (uint32_t)total;
  request->flags |= IBV_SEND_INLINE;
}

static void setInline(struct ibv_qp_ex *ex, void *address, size_t length) {
  struct ibv_data_buf one = {.addr = address, .length = length};
  setInlineList(ex, 1, &one);
}

static int complete(struct ibv_qp_ex *ex) {
  softQp *qp = own(&ex->qp_base);
  int error = qp->buildError;
  softLockFirst();
  if (!error && !postable(qp)) error = EINVAL;
  if (!error && qp->tail - qp->freed + (uint32_t)qp->nbuilt > qp->cap.max_send_wr) error = ENOMEM;
  for (int i = 0; i < qp->nbuilt && !error; i++)
    error = softEnqueue(qp, &qp->built[i]);
  kick(qp);
  pthread_mutex_unlock(&hca.lock);
  pthread_mutex_unlock(&qp->building);
  return error;
}

static void cancel(struct ibv_qp_ex *ex) {
  pthread_mutex_unlock(&own(&ex->qp_base)->building);
}

void softBuilders(softQp *qp) {
  struct ibv_qp_ex *ex = &qp->ibv;
  ex->wr_start = start;
  ex->wr_complete = complete;
  ex->wr_abort = cancel;
  ex->wr_rdma_write = wrWrite;
  ex->wr_rdma_write_imm = wrWriteImm;
  ex->wr_rdma_read = wrRead;
  ex->wr_send = wrSend;
  ex->wr_send_imm = wrSendImm;
  ex->wr_atomic_cmp_swp = wrSwap;
  ex->wr_atomic_fetch_add = wrAdd;
  ex->wr_set_sge = setOne;
  ex->wr_set_sge_list = setList;
  ex->wr_set_inline_data = setInline;
  ex->wr_set_inline_data_list = setInlineList;
}

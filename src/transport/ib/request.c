#include "transport/ib/request.h"

#include <arpa/inet.h>

#include "base/error.h"

enum { PROBES = 4 }; /* requests that are kept for them */

bool tuttiIbRoomForProbe(const tuttiIbQueuePair *q) {
  return q->posted - q->done < TUTTI_IB_SENDS;
}

bool tuttiIbRoom(const tuttiIbQueuePair *q, uint32_t n) {
  return q->posted - q->done + n + PROBES <= TUTTI_IB_SENDS;
}

struct ibv_send_wr *tuttiIbAddWrite(tuttiIbBatch *b, const void *from, size_t bytes, uint32_t lkey,
                                    uint64_t to, uint32_t rkey) {
  int i = b->n++;
  tuttiIbQueuePair *q = b->q;
  b->sge[i] = (struct ibv_sge){(uintptr_t)from, (uint32_t)bytes, lkey};
  b->wr[i] = (struct ibv_send_wr){.wr_id = tuttiIbRequestId(q, false, q->last),
                                  .sg_list = &b->sge[i],
                                  .num_sge = 1,
                                  .opcode = IBV_WR_RDMA_WRITE,
                                  .wr.rdma = {to, rkey}};
  if (i > 0) b->wr[i - 1].next = &b->wr[i];
  q->posted++;
  return &b->wr[i];
}

struct ibv_send_wr *tuttiIbAddField(tuttiIbEndpoint *e, tuttiIbBatch *b, const void *from,
                                    size_t bytes, const void *field) {
  uint64_t offset = (uint64_t)((const uint8_t *)field - (const uint8_t *)e->control);
  struct ibv_send_wr *wr =
      tuttiIbAddWrite(b, from, bytes, e->mr[b->q->rail]->lkey, e->in.control + offset, b->q->rkey);
  if (bytes <= b->q->maxInline) wr->send_flags |= IBV_SEND_INLINE;
  return wr;
}

void tuttiIbAddImmediate(struct ibv_send_wr *wr, tuttiIbImmediateKind kind, uint64_t number) {
  wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  wr->imm_data = htonl(tuttiIbImmediate(kind, number));
}

void tuttiIbAddSignal(tuttiIbBatch *b, struct ibv_send_wr *wr, uint64_t m, bool now) {
  tuttiIbQueuePair *q = b->q;
  if (!now && ++q->unsignaled < TUTTI_IB_SIGNALED) return;
  wr->send_flags |= IBV_SEND_SIGNALED;
  q->signals[q->last % TUTTI_IB_SENDS].message = m;
  q->signals[q->last++ % TUTTI_IB_SENDS].posted = q->posted;
  q->unsignaled = 0;
}

void tuttiIbPost(tuttiIbEndpoint *e, tuttiIbBatch *b) {
  struct ibv_send_wr *bad;
  int err = b->n ? ibv_post_send(b->q->qp, b->wr, &bad) : 0;
  b->n = 0;
  if (err) tuttiIbBreak(e, b->q, tuttiErrnoText(err));
}

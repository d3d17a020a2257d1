/* Queue pairs: their life and states. */
#include "hca.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

softQp *softQpFind(uint32_t qpn) {
  softQp *qp = hca.byIndex[qpn % SOFT_INDICES];
  return qp && qp->ibv.qp_base.qp_num == qpn ? qp : NULL;
}

/* ---- create and destroy --------------------------------------------------------------------- */

/* What a new queue pair may not be; 0 or an errno. */
static int checkNew(const struct ibv_context *context, const struct ibv_qp_init_attr_ex *attr) {
  const struct ibv_qp_cap *cap = &attr->cap;
  uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  uint64_t ops = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                 IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
                 IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
  if (attr->qp_type != IBV_QPT_RC || (attr->comp_mask & ~known)) return EOPNOTSUPP;
  if ((attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) && (attr->send_ops_flags & ~ops))
    return EOPNOTSUPP;
  if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || !attr->pd || !attr->send_cq || !attr->recv_cq)
    return EINVAL;
  if (cap->max_send_wr > SOFT_MAX_WR || cap->max_recv_wr > SOFT_MAX_WR ||
      cap->max_send_sge > SOFT_MAX_SGE || cap->max_recv_sge > SOFT_MAX_SGE ||
      cap->max_inline_data > hca.config.devices[softDeviceOf(context)].maxInline)
    return EINVAL;
  return 0;
}

/* Gives the queue pair a number and makes it known; false: none is left. */
static bool publish(softQp *qp) {
  for (uint32_t n = 0; n < SOFT_INDICES; n++) {
    uint32_t index = hca.nextIndex++ % SOFT_INDICES;
    if (index == 0 || hca.byIndex[index]) continue;
    hca.byIndex[index] = qp;
    qp->ibv.qp_base.qp_num = hca.slot << SOFT_INDEX_BITS | index;
    qp->ibv.qp_base.handle = index;
    qp->next = hca.qps;
    hca.qps = qp;
    ((softCq *)qp->ibv.qp_base.send_cq)->users++;
    ((softCq *)qp->ibv.qp_base.recv_cq)->users++;
    if (qp->ibv.qp_base.srq) ((softSrq *)qp->ibv.qp_base.srq)->users++;
    return true;
  }
  return false;
}

static void freeQp(softQp *qp) {
  pthread_mutex_destroy(&qp->ibv.qp_base.mutex);
  pthread_cond_destroy(&qp->ibv.qp_base.cond);
  pthread_mutex_destroy(&qp->building);
  free(qp->sq);
  free(qp->built);
  free(qp->rq.ring);
  free(qp);
}

static softQp *allocateQp(const struct ibv_qp_init_attr_ex *attr) {
  softQp *qp = calloc(1, sizeof *qp);
  if (!qp) return NULL;
  qp->cap = attr->cap;
  qp->sqCap = attr->cap.max_send_wr ? attr->cap.max_send_wr : 1;
  qp->rq.cap = attr->cap.max_recv_wr ? attr->cap.max_recv_wr : 1;
  qp->rq.maxSge = attr->cap.max_recv_sge;
  qp->sq = calloc(qp->sqCap, sizeof *qp->sq);
  qp->built = calloc(qp->sqCap, sizeof *qp->built);
  qp->rq.ring = calloc(qp->rq.cap, sizeof *qp->rq.ring);
  pthread_mutex_init(&qp->building, NULL);
  pthread_mutex_init(&qp->ibv.qp_base.mutex, NULL);
  pthread_cond_init(&qp->ibv.qp_base.cond, NULL);
  if (qp->sq && qp->built && qp->rq.ring) return qp;
  freeQp(qp);
  return NULL;
}

struct ibv_qp *softCreateQpEx(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr) {
  int error = softRefuses(context) ? EIO : checkNew(context, attr);
  softQp *qp = error ? NULL : allocateQp(attr);
  if (!qp) {
    errno = error ? error : ENOMEM;
    return NULL;
  }
  struct ibv_qp *v = &qp->ibv.qp_base;
  v->context = context;
  v->qp_context = attr->qp_context;
  v->pd = attr->pd;
  v->send_cq = attr->send_cq;
  v->recv_cq = attr->recv_cq;
  v->srq = attr->srq;
  v->qp_type = attr->qp_type;
  v->state = IBV_QPS_RESET;
  qp->sigAll = attr->sq_sig_all;
  qp->destination = SOFT_NOWHERE;
  softBuilders(qp);
  pthread_mutex_lock(&hca.lock);
  bool published = publish(qp);
  pthread_mutex_unlock(&hca.lock);
  if (published) return v;
  freeQp(qp);
  errno = ENOMEM;
  return NULL;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
  struct ibv_qp_init_attr_ex ex = {.qp_context = attr->qp_context,
                                   .send_cq = attr->send_cq,
                                   .recv_cq = attr->recv_cq,
                                   .srq = attr->srq,
                                   .cap = attr->cap,
                                   .qp_type = attr->qp_type,
                                   .sq_sig_all = attr->sq_sig_all,
                                   .comp_mask = IBV_QP_INIT_ATTR_PD,
                                   .pd = pd};
  struct ibv_qp *qp = softCreateQpEx(pd->context, &ex);
  if (qp) attr->cap = ex.cap;
  return qp;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp) {
  return (struct ibv_qp_ex *)qp;
}

static softQp *own(struct ibv_qp *qp) {
  return (softQp *)((char *)qp - offsetof(softQp, ibv));
}

static void dropFlights(softQp *qp) {
  softRequesterStop(qp);
  softFlightsDrop(&qp->in.flights);
  softFlightsDrop(&qp->in.departing);
}

/* What the queue pair has dropped touches no memory any more. As with a real HCA, calls that stop a
 * queue pair return only then. */
static bool copied(uint32_t qpn) {
  pthread_mutex_lock(&hca.lock);
  bool lingers = softFlightsLinger(qpn);
  pthread_mutex_unlock(&hca.lock);
  return !lingers;
}

int ibv_destroy_qp(struct ibv_qp *v) {
  softQp *qp = own(v);
  pthread_mutex_lock(&hca.lock);
  for (softQp **at = &hca.qps; *at; at = &(*at)->next)
    if (*at == qp) {
      *at = qp->next;
      break;
    }
  hca.byIndex[v->qp_num % SOFT_INDICES] = NULL;
  softCqForget((softCq *)v->send_cq, v->qp_num);
  softCqForget((softCq *)v->recv_cq, v->qp_num);
  ((softCq *)v->send_cq)->users--;
  ((softCq *)v->recv_cq)->users--;
  if (v->srq) ((softSrq *)v->srq)->users--;
  softForget(v->context, v);
  dropFlights(qp);
  pthread_mutex_unlock(&hca.lock);
  softMoverAwait(copied, v->qp_num);
  freeQp(qp);
  return 0;
}

/* ---- states --------------------------------------------------------------------------------- */

typedef struct {
  enum ibv_qp_state from, to;
  int required, optional;
} Transition;

#define AV     IBV_QP_AV
#define ACCESS IBV_QP_ACCESS_FLAGS
#define RNR    IBV_QP_MIN_RNR_TIMER

/* Of reliable connections, after the InfiniBand specification, volume 1, "QP/EE transitions". Every
 * state may become RESET or ERR, with nothing but the state. */
static const Transition transitions[] = {
    {.from = IBV_QPS_RESET,
     .to = IBV_QPS_INIT,
     .required = IBV_QP_PKEY_INDEX | IBV_QP_PORT | ACCESS},
    {.from = IBV_QPS_INIT,
     .to = IBV_QPS_INIT,
     .optional = IBV_QP_PKEY_INDEX | IBV_QP_PORT | ACCESS},
    {.from = IBV_QPS_INIT,
     .to = IBV_QPS_RTR,
     .required =
         AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | RNR,
     .optional = ACCESS | IBV_QP_PKEY_INDEX},
    {.from = IBV_QPS_RTR,
     .to = IBV_QPS_RTS,
     .required = IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                 IBV_QP_MAX_QP_RD_ATOMIC,
     .optional = ACCESS | RNR},
    {.from = IBV_QPS_RTS, .to = IBV_QPS_RTS, .optional = ACCESS | RNR},
};

static bool allowed(enum ibv_qp_state from, enum ibv_qp_state to, int mask) {
  mask &= ~(IBV_QP_STATE | IBV_QP_CUR_STATE);
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return mask == 0;
  for (size_t i = 0; i < sizeof transitions / sizeof *transitions; i++) {
    const Transition *t = &transitions[i];
    if (t->from == from && t->to == to)
      return (mask & t->required) == t->required && !(mask & ~(t->required | t->optional));
  }
  return false;
}

/* Values of one byte, and the most that each may be. */
static const struct {
  int bit;
  size_t at;
  uint8_t most;
} limits[] = {
    {.bit = IBV_QP_MAX_QP_RD_ATOMIC,
     .at = offsetof(struct ibv_qp_attr, max_rd_atomic),
     .most = SOFT_MAX_ATOMIC},
    {.bit = IBV_QP_MAX_DEST_RD_ATOMIC,
     .at = offsetof(struct ibv_qp_attr, max_dest_rd_atomic),
     .most = SOFT_MAX_ATOMIC},
    {.bit = IBV_QP_TIMEOUT, .at = offsetof(struct ibv_qp_attr, timeout), .most = 31},
    {.bit = IBV_QP_RETRY_CNT, .at = offsetof(struct ibv_qp_attr, retry_cnt), .most = 7},
    {.bit = IBV_QP_RNR_RETRY, .at = offsetof(struct ibv_qp_attr, rnr_retry), .most = 7},
    {.bit = RNR, .at = offsetof(struct ibv_qp_attr, min_rnr_timer), .most = 31},
};

static bool withinLimits(const struct ibv_qp_attr *a, int mask) {
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
    if ((mask & limits[i].bit) && *((const uint8_t *)a + limits[i].at) > limits[i].most)
      return false;
  return true;
}

static bool validMtu(enum ibv_mtu mtu, const softPortConfig *port) {
  return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 && 128u << mtu <= port->mtu;
}

static bool validAddress(const softQp *qp, const softDeviceConfig *d,
                         const struct ibv_ah_attr *ah) {
  int device = softDeviceOf(qp->ibv.qp_base.context);
  if (!ah->is_global) return !d->roce; /* RoCE has no other addresses */
  return ah->grh.sgid_index < softGidRows(device, qp->attr.port_num);
}

static bool validValues(const softQp *qp, const struct ibv_qp_attr *a, int mask) {
  const softDeviceConfig *d = &hca.config.devices[softDeviceOf(qp->ibv.qp_base.context)];
  if (!withinLimits(a, mask)) return false;
  if ((mask & IBV_QP_PORT) && (a->port_num < 1 || a->port_num > (int)d->nports)) return false;
  int port = mask & IBV_QP_PORT ? a->port_num : qp->attr.port_num;
  if ((mask & IBV_QP_PKEY_INDEX) && a->pkey_index >= d->ports[port - 1].pkeys.n) return false;
  if ((mask & IBV_QP_PATH_MTU) && !validMtu(a->path_mtu, &d->ports[qp->attr.port_num - 1]))
    return false;
  return !(mask & AV) || validAddress(qp, d, &a->ah_attr);
}

/* The port that an address leads to from this one; SOFT_NOWHERE: packets get lost. */
static uint16_t resolve(const softQp *qp, const struct ibv_ah_attr *ah) {
  int own_ = softDeviceOf(qp->ibv.qp_base.context);
  const softPortConfig *from = &hca.config.devices[own_].ports[qp->attr.port_num - 1];
  bool roce = hca.config.devices[own_].roce;
  for (int device = 0; device < hca.config.ndevices; device++)
    for (int port = 1; port <= (int)hca.config.devices[device].nports; port++) {
      union ibv_gid gid;
      if (hca.config.devices[device].roce != roce) continue;
      if (hca.config.devices[device].ports[port - 1].subnet != from->subnet) continue;
      if (!roce && ah->dlid == softLid(device, port)) return softPortId(device, port);
      for (int i = 0; roce && i < softGidRows(device, port); i++) {
        softGid(device, port, i, &gid);
        if (memcmp(gid.raw, ah->grh.dgid.raw, sizeof gid.raw) == 0) return softPortId(device, port);
      }
    }
  return SOFT_NOWHERE;
}

void softQpResolve(void) {
  for (softQp *qp = hca.qps; qp; qp = qp->next) {
    enum ibv_qp_state state = qp->ibv.qp_base.state;
    if (state == IBV_QPS_RTR || state == IBV_QPS_RTS)
      qp->destination = resolve(qp, &qp->attr.ah_attr);
  }
}

static void store(softQp *qp, const struct ibv_qp_attr *from, int mask) {
  struct ibv_qp_attr *to = &qp->attr;
#define STORE(bit, member)                                                                         \
  if (mask & (bit)) to->member = from->member
  STORE(IBV_QP_PORT, port_num);
  STORE(IBV_QP_PKEY_INDEX, pkey_index);
  STORE(ACCESS, qp_access_flags);
  STORE(IBV_QP_PATH_MTU, path_mtu);
  STORE(IBV_QP_DEST_QPN, dest_qp_num);
  STORE(IBV_QP_RQ_PSN, rq_psn);
  STORE(IBV_QP_SQ_PSN, sq_psn);
  STORE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
  STORE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
  STORE(RNR, min_rnr_timer);
  STORE(IBV_QP_TIMEOUT, timeout);
  STORE(IBV_QP_RETRY_CNT, retry_cnt);
  STORE(IBV_QP_RNR_RETRY, rnr_retry);
  STORE(AV, ah_attr);
  if (mask & AV) qp->destination = resolve(qp, &from->ah_attr);
  to->rq_psn &= 0xffffff;
  to->sq_psn &= 0xffffff;
  if (mask & IBV_QP_RQ_PSN) qp->in.expected = to->rq_psn;
  if (mask & IBV_QP_RETRY_CNT) qp->retries = to->retry_cnt;
  if (mask & IBV_QP_RNR_RETRY) qp->rnrRetries = to->rnr_retry;
}

/* Back to what a new queue pair is; the application's requests are gone without completions. */
static void reset(softQp *qp) {
  struct ibv_qp *v = &qp->ibv.qp_base;
  softCqForget((softCq *)v->send_cq, v->qp_num);
  softCqForget((softCq *)v->recv_cq, v->qp_num);
  qp->freed = qp->done = qp->next_ = qp->tail = 0;
  qp->readsOut = 0;
  qp->resendAt = 0;
  qp->rnrWait = qp->cut = false;
  qp->rq.head = qp->rq.tail = 0;
  dropFlights(qp);
  memset(&qp->in, 0, sizeof qp->in);
  memset(&qp->attr, 0, sizeof qp->attr);
  qp->destination = SOFT_NOWHERE;
  v->state = IBV_QPS_RESET;
}

void softFlushRecv(softQp *qp, const softRecv *recv) {
  struct ibv_qp *v = &qp->ibv.qp_base;
  softCompletion c = {.wc = {.wr_id = recv->wrId,
                             .status = IBV_WC_WR_FLUSH_ERR,
                             .opcode = IBV_WC_RECV,
                             .qp_num = v->qp_num},
                      .freed = qp->freed};
  softComplete(v->recv_cq, &c);
}

void softQpError(softQp *qp) {
  struct ibv_qp *v = &qp->ibv.qp_base;
  if (v->state == IBV_QPS_RESET) return;
  bool first = v->state != IBV_QPS_ERR;
  v->state = IBV_QPS_ERR;
  qp->resendAt = 0;
  softResponderStop(qp);
  softRequesterStop(qp);
  for (; qp->done != qp->tail; qp->done++) {
    softCompletion c = {.wc = {.wr_id = qp->sq[qp->done % qp->sqCap].wrId,
                               .status = IBV_WC_WR_FLUSH_ERR,
                               .qp_num = v->qp_num},
                        .freed = qp->done + 1};
    softComplete(v->send_cq, &c);
  }
  qp->next_ = qp->tail;
  if (v->srq) {
    if (first) softRaise(v->context, IBV_EVENT_QP_LAST_WQE_REACHED, v);
    return;
  }
  while (qp->rq.head != qp->rq.tail)
    softFlushRecv(qp, &qp->rq.ring[qp->rq.head++ % qp->rq.cap]);
}

int ibv_modify_qp(struct ibv_qp *v, struct ibv_qp_attr *attr, int mask) {
  softQp *qp = own(v);
  if (softRefuses(v->context)) return EIO;
  pthread_mutex_lock(&hca.lock);
  enum ibv_qp_state to = mask & IBV_QP_STATE ? attr->qp_state : v->state;
  bool current = !(mask & IBV_QP_CUR_STATE) || attr->cur_qp_state == v->state;
  bool good = current && allowed(v->state, to, mask) && validValues(qp, attr, mask);
  if (good && to == IBV_QPS_RESET) {
    reset(qp);
  } else if (good && to == IBV_QPS_ERR) {
    softQpError(qp);
    if (v->state == IBV_QPS_RESET) v->state = IBV_QPS_ERR;
  } else if (good) {
    store(qp, attr, mask);
    v->state = to;
    /* Early, so that staging is pinned before programs keep their GPUs busy. */
    if ((mask & AV) && qp->destination != SOFT_NOWHERE)
      softConnTo(qp->attr.dest_qp_num >> SOFT_INDEX_BITS);
  }
  pthread_mutex_unlock(&hca.lock);
  if (good && (to == IBV_QPS_RESET || to == IBV_QPS_ERR)) softMoverAwait(copied, v->qp_num);
  return good ? 0 : EINVAL;
}

int ibv_query_qp(struct ibv_qp *v, struct ibv_qp_attr *attr, int mask,
                 struct ibv_qp_init_attr *init) {
  softQp *qp = own(v);
  (void)mask;
  pthread_mutex_lock(&hca.lock);
  *attr = qp->attr;
  attr->qp_state = attr->cur_qp_state = v->state;
  attr->cap = qp->cap;
  *init = (struct ibv_qp_init_attr){.qp_context = v->qp_context,
                                    .send_cq = v->send_cq,
                                    .recv_cq = v->recv_cq,
                                    .srq = v->srq,
                                    .cap = qp->cap,
                                    .qp_type = v->qp_type,
                                    .sq_sig_all = qp->sigAll};
  pthread_mutex_unlock(&hca.lock);
  return 0;
}

/* Whole messages are placed in order, and so are their bytes, unless the configuration says other.
 */
int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags) {
  (void)qp, (void)op;
  if (hca.config.reorder) return 0;
#ifdef IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS
  if (flags & IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS)
    return IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG | IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES;
#endif
  return flags == 0;
}

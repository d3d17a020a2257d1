/* Completion queues, their channels, shared receive queues. */
#include "hca.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---- channels ------------------------------------------------------------------------------- */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
  softChannel *channel = calloc(1, sizeof *channel);
  if (!channel) return NULL;
  channel->ibv.context = context;
  channel->ibv.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  if (channel->ibv.fd >= 0) return &channel->ibv;
  free(channel);
  return NULL;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
  if (channel->refcnt) return EBUSY;
  close(channel->fd);
  free(channel);
  return 0;
}

static void notify(softCq *cq) {
  softChannel *channel = (softChannel *)cq->ibv.channel;
  cq->armed = cq->armedSolicited = false;
  if (!channel) return;
  if (cq->pending++ == 0) {
    softCq **at = &channel->first;
    while (*at)
      at = &(*at)->pendingNext;
    cq->pendingNext = NULL;
    *at = cq;
  }
  eventfd_write(channel->ibv.fd, 1);
}

static void unlist(softChannel *channel, softCq *cq) {
  for (softCq **at = &channel->first; *at; at = &(*at)->pendingNext)
    if (*at == cq) {
      *at = cq->pendingNext;
      return;
    }
}

int ibv_get_cq_event(struct ibv_comp_channel *ibvChannel, struct ibv_cq **out, void **context) {
  softChannel *channel = (softChannel *)ibvChannel;
  for (eventfd_t one;;) {
    if (eventfd_read(ibvChannel->fd, &one)) return -1;
    pthread_mutex_lock(&hca.lock);
    softCq *cq = channel->first;
    if (cq) {
      if (--cq->pending == 0) channel->first = cq->pendingNext;
      cq->fetched++;
      *out = (struct ibv_cq *)&cq->ibv;
      *context = cq->ibv.cq_context;
    }
    pthread_mutex_unlock(&hca.lock);
    if (cq) return 0; /* else the queue went away after its event */
  }
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n) {
  pthread_mutex_lock(&hca.lock);
  cq->comp_events_completed += n;
  pthread_cond_broadcast(&hca.acked);
  pthread_mutex_unlock(&hca.lock);
}

/* ---- completion queues ---------------------------------------------------------------------- */

static int startPoll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr);
static int nextPoll(struct ibv_cq_ex *cq);
static void endPoll(struct ibv_cq_ex *cq) {
  (void)cq;
}

#define READER(type, function, member)                                                             \
  static type function(struct ibv_cq_ex *cq) {                                                     \
    return ((softCq *)cq)->polled.member;                                                          \
  }
READER(enum ibv_wc_opcode, readOpcode, opcode)
READER(uint32_t, readVendor, vendor_err)
READER(uint32_t, readLength, byte_len)
READER(__be32, readImm, imm_data)
READER(uint32_t, readQpn, qp_num)
READER(uint32_t, readSource, src_qp)
READER(unsigned, readFlags, wc_flags)
READER(uint32_t, readSlid, slid)
READER(uint8_t, readSl, sl)
READER(uint8_t, readPath, dlid_path_bits)

static bool mayHold(const struct ibv_context *context, uint32_t cqe) {
  return cqe >= 1 && cqe <= hca.config.devices[softDeviceOf(context)].maxCqe;
}

/* What a queue of so many entries has room for: repeated ones must not make it overrun. */
static uint32_t roomFor(uint32_t cqe) {
  const softFault *again = &hca.config.faults.completionAgain;
  return again->p > 0 || again->nth ? 2 * cqe : cqe;
}

struct ibv_cq_ex *softCreateCqEx(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr) {
  bool bad = !mayHold(context, attr->cqe) || attr->comp_vector > 0;
  bool removed = softRefuses(context);
  softCq *cq = bad || removed ? NULL : calloc(1, sizeof *cq);
  if (cq) cq->ring = calloc(roomFor(attr->cqe), sizeof *cq->ring);
  if (cq) cq->refs = calloc(roomFor(attr->cqe), sizeof *cq->refs);
  if (!cq || !cq->ring || !cq->refs) {
    if (cq) free(cq->ring), free(cq->refs);
    free(cq);
    errno = removed ? EIO : bad ? EINVAL : ENOMEM;
    return NULL;
  }
  cq->cap = roomFor(attr->cqe);
  cq->ignoreOverrun = (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) &&
                      (attr->flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN);
  struct ibv_cq_ex *v = &cq->ibv;
  v->context = context;
  v->channel = attr->channel;
  v->cq_context = attr->cq_context;
  v->cqe = (int)attr->cqe;
  v->start_poll = startPoll;
  v->next_poll = nextPoll;
  v->end_poll = endPoll;
  v->read_opcode = readOpcode;
  v->read_vendor_err = readVendor;
  v->read_byte_len = readLength;
  v->read_imm_data = readImm;
  v->read_qp_num = readQpn;
  v->read_src_qp = readSource;
  v->read_wc_flags = readFlags;
  v->read_slid = readSlid;
  v->read_sl = readSl;
  v->read_dlid_path_bits = readPath;
  pthread_mutex_init(&v->mutex, NULL);
  pthread_cond_init(&v->cond, NULL);
  pthread_mutex_lock(&hca.lock);
  if (v->channel) v->channel->refcnt++;
  pthread_mutex_unlock(&hca.lock);
  return v;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cqContext,
                             struct ibv_comp_channel *channel, int vector) {
  struct ibv_cq_init_attr_ex attr = {.cqe = cqe < 0 ? 0 : (uint32_t)cqe,
                                     .cq_context = cqContext,
                                     .channel = channel,
                                     .comp_vector = (uint32_t)vector};
  return (struct ibv_cq *)softCreateCqEx(context, &attr);
}

int ibv_resize_cq(struct ibv_cq *ibvCq, int cqe) {
  softCq *cq = (softCq *)ibvCq;
  if (cqe < 1 || !mayHold(ibvCq->context, (uint32_t)cqe)) return EINVAL;
  if (softRefuses(ibvCq->context)) return EIO;
  uint32_t cap = roomFor((uint32_t)cqe);
  struct ibv_wc *ring = calloc(cap, sizeof *ring);
  struct softQpRef *refs = calloc(cap, sizeof *refs);
  pthread_mutex_lock(&hca.lock);
  uint32_t n = cq->count + cq->late;
  bool fits = ring && refs && n <= cap;
  if (fits) {
    for (uint32_t i = 0; i < n; i++) {
      ring[i] = cq->ring[(cq->head + i) % cq->cap];
      refs[i] = cq->refs[(cq->head + i) % cq->cap];
    }
    struct ibv_wc *oldRing = cq->ring;
    struct softQpRef *oldRefs = cq->refs;
    cq->ring = ring, cq->refs = refs;
    cq->cap = cap, cq->head = 0;
    ibvCq->cqe = cqe;
    ring = oldRing, refs = oldRefs;
  }
  pthread_mutex_unlock(&hca.lock);
  free(ring);
  free(refs);
  return fits ? 0 : EINVAL;
}

int ibv_destroy_cq(struct ibv_cq *ibvCq) {
  softCq *cq = (softCq *)ibvCq;
  pthread_mutex_lock(&hca.lock);
  if (cq->users) {
    pthread_mutex_unlock(&hca.lock);
    return EBUSY;
  }
  softForget(ibvCq->context, cq);
  for (softCq **at = &hca.lateCqs; *at; at = &(*at)->lateNext)
    if (*at == cq) {
      *at = cq->lateNext;
      break;
    }
  if (ibvCq->channel) {
    if (cq->pending) unlist((softChannel *)ibvCq->channel, cq);
    ibvCq->channel->refcnt--;
  }
  while (ibvCq->comp_events_completed != cq->fetched)
    pthread_cond_wait(&hca.acked, &hca.lock);
  pthread_mutex_unlock(&hca.lock);
  pthread_mutex_destroy(&ibvCq->mutex);
  pthread_cond_destroy(&ibvCq->cond);
  free(cq->ring);
  free(cq->refs);
  free(cq);
  return 0;
}

static void show(softCq *cq, const struct softQpRef *ref) {
  atomic_fetch_add_explicit(&cq->count, 1, memory_order_release);
  if (cq->armed || (cq->armedSolicited && ref->solicited)) notify(cq);
}

/* Its entry comes when it is due, and those behind it not before. */
static void delay(softCq *cq, struct softQpRef *ref, uint64_t by) {
  const struct softQpRef *before = &cq->refs[(cq->head + cq->count + cq->late - 1) % cq->cap];
  ref->due = softNow() + by;
  if (cq->late && before->due > ref->due) ref->due = before->due;
  if (!cq->listed) {
    cq->lateNext = hca.lateCqs;
    hca.lateCqs = cq;
    cq->listed = true;
  }
  cq->late++;
  softNext(ref->due);
  softEngineWake();
}

/* Adds an entry, for which there is room. */
static void enter(softCq *cq, const softCompletion *completion) {
  softFault *fault = &hca.config.faults.completion;
  uint32_t at = (cq->head + cq->count + cq->late) % cq->cap;
  cq->ring[at] = completion->wc;
  cq->refs[at] = (struct softQpRef){.qpn = completion->wc.qp_num,
                                    .freed = completion->freed,
                                    .solicited = completion->solicited ||
                                                 completion->wc.status != IBV_WC_SUCCESS};
  bool late = softStrikes(fault);
  if (late || cq->late)
    delay(cq, &cq->refs[at], late ? fault->by : 0);
  else
    show(cq, &cq->refs[at]);
}

void softComplete(struct ibv_cq *ibvCq, const softCompletion *completion) {
  softCq *cq = (softCq *)ibvCq;
  if (cq->count + cq->late == cq->cap) {
    if (!cq->overrun && !cq->ignoreOverrun) softRaise(ibvCq->context, IBV_EVENT_CQ_ERR, cq);
    cq->overrun = true;
    return;
  }
  if (softStrikes(&hca.config.faults.completionLost)) return;
  enter(cq, completion);
  if (softStrikes(&hca.config.faults.completionAgain) && cq->count + cq->late < cq->cap)
    enter(cq, completion);
}

void softCqReveal(uint64_t now) {
  for (softCq **at = &hca.lateCqs; *at;) {
    softCq *cq = *at;
    while (cq->late && cq->refs[(cq->head + cq->count) % cq->cap].due <= now) {
      cq->late--;
      show(cq, &cq->refs[(cq->head + cq->count) % cq->cap]);
    }
    if (cq->late) {
      softNext(cq->refs[(cq->head + cq->count) % cq->cap].due);
      at = &cq->lateNext;
    } else {
      *at = cq->lateNext;
      cq->listed = false;
    }
  }
}

void softCqForget(softCq *cq, uint32_t qpn) {
  uint32_t kept = 0, shown = 0, count = cq->count;
  for (uint32_t i = 0; i < count + cq->late; i++) {
    uint32_t from = (cq->head + i) % cq->cap, to = (cq->head + kept) % cq->cap;
    if (cq->ring[from].qp_num == qpn) continue;
    cq->ring[to] = cq->ring[from];
    cq->refs[to] = cq->refs[from];
    kept++;
    if (i < count) shown++;
  }
  cq->late = kept - shown; /* with none, it leaves the list when that is looked at */
  atomic_store_explicit(&cq->count, shown, memory_order_release);
}

static int take(softCq *cq, int n, struct ibv_wc *wc) {
  int taken = 0;
  for (; taken < n && cq->count > 0; taken++) {
    softQp *qp = softQpFind(cq->refs[cq->head].qpn);
    wc[taken] = cq->ring[cq->head];
    if (qp && (int32_t)(cq->refs[cq->head].freed - qp->freed) > 0)
      qp->freed = cq->refs[cq->head].freed;
    cq->head = (cq->head + 1) % cq->cap;
    atomic_fetch_sub_explicit(&cq->count, 1, memory_order_relaxed);
  }
  return taken;
}

/* Under the lock; -1: the fault. */
static int takeUnlessItFails(softCq *cq, int n, struct ibv_wc *wc) {
  if (atomic_load(&cq->count) == 0) return 0;
  return softStrikes(&hca.config.faults.poll) ? -1 : take(cq, n, wc);
}

/* Whoever polls an empty queue moves frames himself: where cores are few, the engine thread would
 * have to wait for one. */
int softPollCq(struct ibv_cq *ibvCq, int n, struct ibv_wc *wc) {
  softCq *cq = (softCq *)ibvCq;
  int taken = 0;
  bool moved = true;
  if (atomic_load_explicit(&cq->count, memory_order_acquire) > 0) {
    softLockFirst();
    taken = takeUnlessItFails(cq, n, wc);
    pthread_mutex_unlock(&hca.lock);
  } else if (atomic_load(&hca.posting) == 0 && pthread_mutex_trylock(&hca.lock) == 0) {
    moved = softProgress();
    taken = takeUnlessItFails(cq, n, wc);
    pthread_mutex_unlock(&hca.lock);
    atomic_store_explicit(&hca.polledAt, softNow(), memory_order_relaxed);
  }
  if (!moved && !taken) sched_yield();
  return taken;
}

int softReqNotify(struct ibv_cq *ibvCq, int solicited) {
  softCq *cq = (softCq *)ibvCq;
  pthread_mutex_lock(&hca.lock);
  if (solicited)
    cq->armedSolicited = true;
  else
    cq->armed = true;
  pthread_mutex_unlock(&hca.lock);
  /* Nobody may poll from now on, so the engine must look at its sockets again. */
  atomic_store_explicit(&hca.polledAt, 0, memory_order_relaxed);
  softEngineWake();
  return 0;
}

static int nextPoll(struct ibv_cq_ex *v) {
  softCq *cq = (softCq *)v;
  int n = softPollCq((struct ibv_cq *)v, 1, &cq->polled);
  if (n <= 0) return n ? EIO : ENOENT;
  v->wr_id = cq->polled.wr_id;
  v->status = cq->polled.status;
  return 0;
}

static int startPoll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr) {
  return attr->comp_mask ? EINVAL : nextPoll(cq);
}

/* ---- receive requests ----------------------------------------------------------------------- */

int softPutRecv(softRecvQueue *queue, const struct ibv_recv_wr *wr) {
  if (wr->num_sge < 0 || (uint32_t)wr->num_sge > queue->maxSge) return EINVAL;
  if (queue->tail - queue->head == queue->cap) return ENOMEM;
  softRecv *recv = &queue->ring[queue->tail++ % queue->cap];
  recv->wrId = wr->wr_id;
  recv->nsge = wr->num_sge;
  if (wr->num_sge > 0) memcpy(recv->sge, wr->sg_list, (size_t)wr->num_sge * sizeof *wr->sg_list);
  return 0;
}

bool softTakeRecv(softQp *qp, softRecv *recv) {
  softSrq *srq = (softSrq *)qp->ibv.qp_base.srq;
  softRecvQueue *queue = srq ? &srq->queue : &qp->rq;
  if (queue->head == queue->tail) return false;
  *recv = queue->ring[queue->head++ % queue->cap];
  if (srq && srq->limit && queue->tail - queue->head < srq->limit) {
    srq->limit = 0;
    softRaise(srq->ibv.context, IBV_EVENT_SRQ_LIMIT_REACHED, srq);
  }
  return true;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr) {
  bool bad =
      attr->attr.max_wr < 1 || attr->attr.max_wr > SOFT_MAX_WR || attr->attr.max_sge > SOFT_MAX_SGE;
  softSrq *srq = bad ? NULL : calloc(1, sizeof *srq);
  if (srq) srq->queue.ring = calloc(attr->attr.max_wr, sizeof *srq->queue.ring);
  if (!srq || !srq->queue.ring) {
    free(srq);
    errno = bad ? EINVAL : ENOMEM;
    return NULL;
  }
  srq->ibv.context = pd->context;
  srq->ibv.srq_context = attr->srq_context;
  srq->ibv.pd = pd;
  srq->queue.cap = attr->attr.max_wr;
  srq->queue.maxSge = attr->attr.max_sge;
  pthread_mutex_init(&srq->ibv.mutex, NULL);
  pthread_cond_init(&srq->ibv.cond, NULL);
  return &srq->ibv;
}

int ibv_modify_srq(struct ibv_srq *ibvSrq, struct ibv_srq_attr *attr, int mask) {
  softSrq *srq = (softSrq *)ibvSrq;
  if (mask & IBV_SRQ_MAX_WR) return EOPNOTSUPP;
  pthread_mutex_lock(&hca.lock);
  bool fits = attr->srq_limit <= srq->queue.cap;
  if ((mask & IBV_SRQ_LIMIT) && fits) srq->limit = attr->srq_limit;
  pthread_mutex_unlock(&hca.lock);
  return fits ? 0 : EINVAL;
}

int ibv_query_srq(struct ibv_srq *ibvSrq, struct ibv_srq_attr *attr) {
  softSrq *srq = (softSrq *)ibvSrq;
  pthread_mutex_lock(&hca.lock);
  *attr = (struct ibv_srq_attr){
      .max_wr = srq->queue.cap, .max_sge = srq->queue.maxSge, .srq_limit = srq->limit};
  pthread_mutex_unlock(&hca.lock);
  return 0;
}

int ibv_destroy_srq(struct ibv_srq *ibvSrq) {
  softSrq *srq = (softSrq *)ibvSrq;
  pthread_mutex_lock(&hca.lock);
  bool used = srq->users > 0;
  if (!used) softForget(ibvSrq->context, srq);
  pthread_mutex_unlock(&hca.lock);
  if (used) return EBUSY;
  pthread_mutex_destroy(&ibvSrq->mutex);
  pthread_cond_destroy(&ibvSrq->cond);
  free(srq->queue.ring);
  free(srq);
  return 0;
}

int softPostSrqRecv(struct ibv_srq *ibvSrq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
  softSrq *srq = (softSrq *)ibvSrq;
  int error = 0;
  pthread_mutex_lock(&hca.lock);
  for (; wr; wr = wr->next) {
    error = softPutRecv(&srq->queue, wr);
    if (error) break;
  }
  pthread_mutex_unlock(&hca.lock);
  if (error) *bad = wr;
  return error;
}

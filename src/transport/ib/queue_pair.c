/* Queue pairs, from nothing to ready to send: what verbs ask for, and no more. */
#include <errno.h>
#include <string.h>

#include "base/settings.h"
#include "transport/ib/endpoint.h"

int tuttiIbQueuePairCreate(const tuttiIbRail *rail, struct ibv_cq *cq, uint16_t pkey,
                           unsigned access, struct ibv_qp **out, uint32_t *maxInline,
                           const char **call) {
  struct ibv_qp_init_attr init = {.send_cq = cq,
                                  .recv_cq = cq,
                                  .qp_type = IBV_QPT_RC,
                                  .cap = {.max_send_wr = TUTTI_IB_SENDS,
                                          .max_recv_wr = TUTTI_IB_RECEIVES,
                                          .max_send_sge = 1,
                                          .max_recv_sge = 1,
                                          .max_inline_data = *maxInline}};
  *call = "ibv_create_qp";
  struct ibv_qp *qp = tuttiVerbs.createQp(rail->pd, &init);
  if (!qp) {
    init.cap.max_inline_data = 0; /* not every device has it */
    qp = tuttiVerbs.createQp(rail->pd, &init);
  }
  if (!qp) return errno;
  *out = qp;
  *maxInline = init.cap.max_inline_data;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                             .pkey_index = pkey,
                             .port_num = rail->port.port,
                             .qp_access_flags = access};
  *call = "ibv_modify_qp to INIT";
  return tuttiVerbs.modifyQp(qp, &attr,
                             IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int tuttiIbQueuePairReceive(struct ibv_qp *qp, const tuttiIbRemote *remote) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                             .ah_attr = remote->address,
                             .path_mtu = remote->mtu,
                             .dest_qp_num = remote->qpn,
                             .rq_psn = remote->psn,
                             .max_dest_rd_atomic = 1,
                             .min_rnr_timer = 12};
  return tuttiVerbs.modifyQp(qp, &attr,
                             IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int tuttiIbQueuePairSend(struct ibv_qp *qp, uint32_t psn) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS,
                             .sq_psn = psn,
                             .timeout = (uint8_t)tuttiSettingInt(TUTTI_SETTING_IB_TIMEOUT),
                             .retry_cnt = (uint8_t)tuttiSettingInt(TUTTI_SETTING_IB_RETRY_CNT),
                             .rnr_retry = 7,
                             .max_rd_atomic = 1};
  return tuttiVerbs.modifyQp(qp, &attr,
                             IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                 IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
}

bool tuttiIbAddress(const tuttiIbRail *rail, const tuttiIbGid *from, const tuttiIbPort *theirs,
                    const tuttiIbGid *to, uint8_t trafficClass, struct ibv_ah_attr *out) {
  const tuttiIbPort *mine = &rail->port;
  *out = (struct ibv_ah_attr){.dlid = theirs->lid,
                              .sl = (uint8_t)tuttiSettingInt(TUTTI_SETTING_IB_SL),
                              .port_num = mine->port};
  /* Within one InfiniBand subnet the LID is all that is needed. */
  bool subnet = mine->ngids && theirs->ngids && memcmp(from->gid, to->gid, 8) == 0;
  if (!mine->ethernet && (subnet || !theirs->ngids)) return true;
  int row = tuttiIbGidRow(rail, from);
  out->is_global = 1;
  out->grh.sgid_index = (uint8_t)row;
  out->grh.hop_limit = 255;
  out->grh.traffic_class = trafficClass;
  memcpy(out->grh.dgid.raw, to->gid, sizeof to->gid);
  return row >= 0;
}

/* Without scatter entries: what an immediate tells of is written elsewhere. */
int tuttiIbQueuePairAwait(struct ibv_qp *qp, uint64_t id) {
  struct ibv_recv_wr *bad, wr = {.wr_id = id};
  return ibv_post_recv(qp, &wr, &bad);
}

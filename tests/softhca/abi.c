/* The rest of what programs link: texts, conversions, and names that need what this HCA has not. */
#include "hca.h"

#include <errno.h>
#include <stdlib.h>

/* ---- texts ---------------------------------------------------------------------------------- */

static const char *textOf(const char *const *texts, size_t n, int i) {
  return i >= 0 && (size_t)i < n && texts[i] ? texts[i] : "unknown";
}
#define TEXT_OF(texts, i) textOf(texts, sizeof(texts) / sizeof *(texts), (int)(i))

const char *ibv_wc_status_str(enum ibv_wc_status status) {
  static const char *const texts[] = {
      [IBV_WC_SUCCESS] = "success",
      [IBV_WC_LOC_LEN_ERR] = "local length error",
      [IBV_WC_LOC_QP_OP_ERR] = "local QP operation error",
      [IBV_WC_LOC_PROT_ERR] = "local protection error",
      [IBV_WC_WR_FLUSH_ERR] = "Work Request Flushed Error",
      [IBV_WC_BAD_RESP_ERR] = "bad response error",
      [IBV_WC_LOC_ACCESS_ERR] = "local access error",
      [IBV_WC_REM_INV_REQ_ERR] = "remote invalid request error",
      [IBV_WC_REM_ACCESS_ERR] = "remote access error",
      [IBV_WC_REM_OP_ERR] = "remote operation error",
      [IBV_WC_RETRY_EXC_ERR] = "transport retry counter exceeded",
      [IBV_WC_RNR_RETRY_EXC_ERR] = "RNR retry counter exceeded",
      [IBV_WC_FATAL_ERR] = "fatal error",
      [IBV_WC_GENERAL_ERR] = "general error",
  };
  return TEXT_OF(texts, status);
}

const char *ibv_event_type_str(enum ibv_event_type type) {
  static const char *const texts[] = {
      [IBV_EVENT_CQ_ERR] = "CQ error",
      [IBV_EVENT_QP_FATAL] = "local work queue catastrophic error",
      [IBV_EVENT_QP_REQ_ERR] = "invalid request local work queue error",
      [IBV_EVENT_QP_ACCESS_ERR] = "local access violation work queue error",
      [IBV_EVENT_COMM_EST] = "communication established",
      [IBV_EVENT_DEVICE_FATAL] = "local catastrophic error",
      [IBV_EVENT_PORT_ACTIVE] = "port active",
      [IBV_EVENT_PORT_ERR] = "port error",
      [IBV_EVENT_SRQ_LIMIT_REACHED] = "SRQ limit reached",
      [IBV_EVENT_QP_LAST_WQE_REACHED] = "last WQE reached",
  };
  return TEXT_OF(texts, type);
}

const char *ibv_port_state_str(enum ibv_port_state state) {
  return state == IBV_PORT_ACTIVE ? "active" : state == IBV_PORT_DOWN ? "down" : "unknown";
}

const char *ibv_node_type_str(enum ibv_node_type type) {
  return type == IBV_NODE_CA ? "InfiniBand channel adapter" : "unknown";
}

/* ---- what needs no device ------------------------------------------------------------------- */

/* Memory that a child shares until it writes is no problem: only this process touches it. */
int ibv_fork_init(void) {
  return 0;
}
enum ibv_fork_status ibv_is_fork_initialized(void) {
  return IBV_FORK_UNNEEDED;
}
int ibv_dontfork_range(void *base, size_t size) {
  (void)base, (void)size;
  return 0;
}
int ibv_dofork_range(void *base, size_t size) {
  (void)base, (void)size;
  return 0;
}

int ibv_read_sysfs_file(const char *folder, const char *file, char *buffer, size_t size) {
  (void)folder, (void)file, (void)buffer, (void)size;
  return -1; /* the kernel knows nothing of these devices */
}

const char *ibv_get_sysfs_path(void) {
  return "/sys";
}

/* Only drivers ask for it, and none is loaded. */
extern bool verbs_allow_disassociate_destroy;
bool verbs_allow_disassociate_destroy = false;

/* Names that libmlx5, libefa, librdmacm and perftest bind at their start, and whose features this
 * HCA has not: datagrams, multicast, import, ECE, the calls of kernel drivers. They fail as on a
 * device without the feature. No prototypes: no argument is looked at, and verbs.h's must not be in
 * sight. */
#include <errno.h>
#include <stddef.h>

#define LACKS_NULL(name)                                                                           \
  void *name(void);                                                                                \
  void *name(void) {                                                                               \
    errno = EOPNOTSUPP;                                                                            \
    return NULL;                                                                                   \
  }
#define LACKS(name)                                                                                \
  int name(void);                                                                                  \
  int name(void) {                                                                                 \
    return EOPNOTSUPP;                                                                             \
  }

LACKS(__verbs_log)
LACKS_NULL(_verbs_init_and_alloc_context)
LACKS(execute_ioctl)
LACKS(ibv_attach_mcast)
LACKS(ibv_cmd_advise_mr)
LACKS(ibv_cmd_alloc_dm)
LACKS(ibv_cmd_alloc_mw)
LACKS(ibv_cmd_alloc_pd)
LACKS(ibv_cmd_attach_mcast)
LACKS(ibv_cmd_close_xrcd)
LACKS(ibv_cmd_create_ah)
LACKS(ibv_cmd_create_counters)
LACKS(ibv_cmd_create_cq_ex)
LACKS(ibv_cmd_create_flow)
LACKS(ibv_cmd_create_flow_action_esp)
LACKS(ibv_cmd_create_qp_ex)
LACKS(ibv_cmd_create_qp_ex2)
LACKS(ibv_cmd_create_rwq_ind_table)
LACKS(ibv_cmd_create_srq)
LACKS(ibv_cmd_create_srq_ex)
LACKS(ibv_cmd_create_wq)
LACKS(ibv_cmd_dealloc_mw)
LACKS(ibv_cmd_dealloc_pd)
LACKS(ibv_cmd_dereg_mr)
LACKS(ibv_cmd_destroy_ah)
LACKS(ibv_cmd_destroy_counters)
LACKS(ibv_cmd_destroy_cq)
LACKS(ibv_cmd_destroy_flow)
LACKS(ibv_cmd_destroy_flow_action)
LACKS(ibv_cmd_destroy_qp)
LACKS(ibv_cmd_destroy_rwq_ind_table)
LACKS(ibv_cmd_destroy_srq)
LACKS(ibv_cmd_destroy_wq)
LACKS(ibv_cmd_detach_mcast)
LACKS(ibv_cmd_free_dm)
LACKS(ibv_cmd_get_context)
LACKS(ibv_cmd_modify_cq)
LACKS(ibv_cmd_modify_flow_action_esp)
LACKS(ibv_cmd_modify_qp)
LACKS(ibv_cmd_modify_qp_ex)
LACKS(ibv_cmd_modify_srq)
LACKS(ibv_cmd_modify_wq)
LACKS(ibv_cmd_open_qp)
LACKS(ibv_cmd_open_xrcd)
LACKS(ibv_cmd_query_context)
LACKS(ibv_cmd_query_device_any)
LACKS(ibv_cmd_query_mr)
LACKS(ibv_cmd_query_port)
LACKS(ibv_cmd_query_qp)
LACKS(ibv_cmd_query_srq)
LACKS(ibv_cmd_read_counters)
LACKS(ibv_cmd_reg_dm_mr)
LACKS(ibv_cmd_reg_dmabuf_mr)
LACKS(ibv_cmd_reg_mr)
LACKS(ibv_cmd_rereg_mr)
LACKS(ibv_cmd_resize_cq)
LACKS(ibv_copy_ah_attr_from_kern)
LACKS(ibv_copy_path_rec_from_kern)
LACKS(ibv_copy_qp_attr_from_kern)
LACKS_NULL(ibv_create_ah)
LACKS_NULL(ibv_create_ah_from_wc)
LACKS(ibv_destroy_ah)
LACKS(ibv_detach_mcast)
LACKS_NULL(ibv_import_device)
LACKS_NULL(ibv_import_mr)
LACKS_NULL(ibv_import_pd)
LACKS(ibv_query_ece)
LACKS(ibv_rereg_mr)
LACKS(ibv_resolve_eth_l2_from_gid)
LACKS(ibv_set_ece)
LACKS(verbs_init_cq)
LACKS_NULL(verbs_open_device)
LACKS(verbs_register_driver_34)
LACKS(verbs_set_ops)
LACKS(verbs_uninit_context)

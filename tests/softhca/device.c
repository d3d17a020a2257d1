/* Devices, their attributes, contexts and asynchronous events. */
#include "control.h"
#include "hca.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

softHca hca = {.lock = PTHREAD_MUTEX_INITIALIZER, .acked = PTHREAD_COND_INITIALIZER};

static pthread_once_t configured = PTHREAD_ONCE_INIT;

static uint64_t guidOf(int device) {
  return 0x0250540000000000 | (uint64_t)(device + 1) << 8;
}

static void configure(void) {
  softConfigRead(&hca.config);
  hca.random = hca.config.seed * 0x9e3779b97f4a7c15 + 1;
  for (int i = 0; i < hca.config.ndevices; i++) {
    softDevice *d = &hca.devices[i];
    d->index = i;
    d->ibv.node_type = IBV_NODE_CA;
    d->ibv.transport_type = IBV_TRANSPORT_IB;
    snprintf(d->ibv.name, sizeof d->ibv.name, "%s", hca.config.devices[i].name);
    snprintf(d->ibv.dev_name, sizeof d->ibv.dev_name, "uverbs%d", i);
  }
}

/* ---- the list ------------------------------------------------------------------------------- */

struct ibv_device **ibv_get_device_list(int *count) {
  pthread_once(&configured, configure);
  struct ibv_device **list = calloc((size_t)hca.config.ndevices + 1, sizeof *list);
  if (!list) return NULL;
  for (int i = 0; i < hca.config.ndevices; i++)
    list[i] = &hca.devices[i].ibv;
  if (count) *count = hca.config.ndevices;
  return list;
}

void ibv_free_device_list(struct ibv_device **list) {
  free(list);
}
const char *ibv_get_device_name(struct ibv_device *device) {
  return device->name;
}
int ibv_get_device_index(struct ibv_device *device) {
  return ((softDevice *)device)->index;
}

__be64 ibv_get_device_guid(struct ibv_device *device) {
  return htobe64(guidOf(((softDevice *)device)->index));
}

/* ---- contexts ------------------------------------------------------------------------------- */

static int queryPort(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr,
                     size_t size);
static int queryDeviceEx(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
                         struct ibv_device_attr_ex *attr, size_t size);

struct ibv_context *ibv_open_device(struct ibv_device *device) {
  softContext *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  struct ibv_context *v = &c->verbs.context;
  c->device = (softDevice *)device;
  c->verbs.sz = sizeof c->verbs;
  c->verbs.query_port = queryPort;
  c->verbs.query_device_ex = queryDeviceEx;
  c->verbs.create_qp_ex = softCreateQpEx;
  c->verbs.create_cq_ex = softCreateCqEx;
  v->device = device;
  v->abi_compat = __VERBS_ABI_IS_EXTENDED;
  v->ops.poll_cq = softPollCq;
  v->ops.req_notify_cq = softReqNotify;
  v->ops.post_send = softPostSend;
  v->ops.post_recv = softPostRecv;
  v->ops.post_srq_recv = softPostSrqRecv;
  v->num_comp_vectors = 1;
  pthread_mutex_init(&v->mutex, NULL);
  v->cmd_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  v->async_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  int error = v->cmd_fd < 0 || v->async_fd < 0 ? errno : softEngineStart();
  if (error) {
    if (v->cmd_fd >= 0) close(v->cmd_fd);
    if (v->async_fd >= 0) close(v->async_fd);
    free(c);
    errno = error;
    return NULL;
  }
  pthread_mutex_lock(&hca.lock);
  for (int port = 1; port <= (int)hca.config.devices[c->device->index].nports; port++)
    c->portDown[port - 1] = !softPortUp(softPortId(c->device->index, port)); /* no news */
  c->next = hca.contexts;
  hca.contexts = c;
  pthread_mutex_unlock(&hca.lock);
  if (softRefuses(v)) {
    ibv_close_device(v);
    errno = ENODEV;
    return NULL;
  }
  return v;
}

int ibv_close_device(struct ibv_context *context) {
  softContext *c = SOFT_CONTEXT(context);
  pthread_mutex_lock(&hca.lock);
  for (softContext **at = &hca.contexts; *at; at = &(*at)->next)
    if (*at == c) {
      *at = c->next;
      break;
    }
  while (c->events) {
    softEvent *e = c->events;
    c->events = e->next;
    free(e);
  }
  pthread_mutex_unlock(&hca.lock);
  softEngineStop();
  close(context->cmd_fd);
  close(context->async_fd);
  pthread_mutex_destroy(&context->mutex);
  free(c);
  return 0;
}

/* ---- attributes ----------------------------------------------------------------------------- */

static const softPortConfig *configOf(int device, int port) {
  return &hca.config.devices[device].ports[port - 1];
}

uint16_t softLid(int device, int port) {
  uint64_t lid = configOf(device, port)->lid;
  return (uint16_t)(lid ? lid : softPortId(device, port) + 1u);
}

int softGidRows(int device, int port) {
  int rows = (int)configOf(device, port)->gids;
  return rows ? rows : hca.config.devices[device].roce ? 2 : 1;
}

/* Of RoCE, as drivers fill it: pairs of version 1 and 2, of the link-local address, then of an IPv4
 * one. A table of two rows has the first and the last of these, one of a single row the last. */
static bool isVersion2(int rows, int index) {
  return rows == 1 || index % 2 == 1;
}
static bool isIpv4(int rows, int index) {
  return rows == 1 || (rows == 2 ? index == 1 : index >= 2);
}

void softGid(int device, int port, int index, union ibv_gid *gid) {
  int rows = softGidRows(device, port);
  memset(gid, 0, sizeof *gid);
  if (hca.config.devices[device].roce && isIpv4(rows, index)) {
    uint64_t byte = configOf(device, port)->gidByte;
    uint8_t v4[] = {
        0xff, 0xff, 10, (uint8_t)(100 + device), (uint8_t)port, byte ? (uint8_t)byte : 1};
    memcpy(gid->raw + 10, v4, sizeof v4);
    return;
  }
  uint64_t alias = hca.config.devices[device].roce ? 0 : (uint64_t)index << 16;
  alias |= configOf(device, port)->gidByte << 24;
  gid->global.subnet_prefix = htobe64(configOf(device, port)->subnet);
  gid->global.interface_id = htobe64(guidOf(device) | alias | (uint64_t)port);
}

/* ---- ports that fail ------------------------------------------------------------------------ */

/* When the port goes down, up again, and when its device goes away, as far as that is known; 0:
 * never. */
typedef struct {
  uint64_t down, up, removed;
} Fate;

static uint64_t later(uint64_t base, uint64_t by) {
  return base && by ? base + by : 0;
}

static Fate fateOf(uint16_t id) {
  int device = id / SOFT_MAX_PORTS;
  const softDeviceConfig *d = &hca.config.devices[device];
  const softPortConfig *p = &d->ports[id % SOFT_MAX_PORTS];
  uint64_t fell = hca.portFell[id];
  return (Fate){
      .down = p->downFrames ? fell : later(hca.opened, p->downAt),
      .up = later(p->downFrames ? fell : hca.opened, p->upAt),
      .removed = d->removedFrames || d->removedCalls ? hca.deviceGone[device]
                                                     : later(hca.opened, d->removedAt),
  };
}

void softPortCount(uint16_t id, size_t payload) {
  int device = id / SOFT_MAX_PORTS;
  const softDeviceConfig *d = &hca.config.devices[device];
  const softPortConfig *p = &d->ports[id % SOFT_MAX_PORTS];
  hca.portTotals[id]++;
  hca.portBytes[id] += payload;
  bool falls = ++hca.portFrames[id] == p->downFrames;
  bool goes = ++hca.deviceFrames[device] == d->removedFrames;
  if (falls) hca.portFell[id] = softNow();
  if (goes) hca.deviceGone[device] = softNow();
  if (falls || goes) softEngineWake();
}

bool softPortUp(uint16_t id) {
  if (id / SOFT_MAX_PORTS >= hca.config.ndevices) return false;
  uint64_t now = softNow();
  Fate f = fateOf(id);
  if (f.removed && now >= f.removed) return false;
  if (hca.portForced[id]) return hca.portForced[id] == 1;
  return !f.down || now < f.down || (f.up && now >= f.up);
}

void softHcaPort(int device, int port, int up) {
  pthread_mutex_lock(&hca.lock);
  hca.portForced[softPortId(device, port)] = up ? 1 : 2;
  if (hca.users > 0) {
    softTimeline(softNow()); /* the next change may come before the engine's turn */
    softEngineWake();
  }
  pthread_mutex_unlock(&hca.lock);
}

uint64_t softHcaFrames(int device, int port) {
  pthread_mutex_lock(&hca.lock);
  uint64_t frames = hca.portFrames[softPortId(device, port)];
  pthread_mutex_unlock(&hca.lock);
  return frames;
}

/* Lines of one process, written at once: others append to the same file. */
__attribute__((destructor)) static void writeCounters(void) {
  char lines[SOFT_MAX_DEVICES * SOFT_MAX_PORTS * 96];
  size_t n = 0;
  if (!hca.config.counters[0]) return;
  pthread_mutex_lock(&hca.lock); /* the engine may be running still */
  for (int id = 0; id < hca.config.ndevices * SOFT_MAX_PORTS; id++) {
    if (hca.portTotals[id] == 0) continue;
    n += (size_t)snprintf(lines + n, sizeof lines - n, "%d %s/%d %" PRIu64 " %" PRIu64 "\n",
                          (int)getpid(), hca.config.devices[id / SOFT_MAX_PORTS].name,
                          id % SOFT_MAX_PORTS + 1, hca.portTotals[id], hca.portBytes[id]);
  }
  pthread_mutex_unlock(&hca.lock);
  int fd = open(hca.config.counters, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0 || write(fd, lines, n) != (ssize_t)n)
    fprintf(stderr, "softhca: cannot write counters to %s: %s\n", hca.config.counters,
            strerror(errno));
  if (fd >= 0) close(fd);
}

bool softRefuses(struct ibv_context *context) {
  int device = softDeviceOf(context);
  pthread_mutex_lock(&hca.lock);
  if (++hca.deviceCalls[device] == hca.config.devices[device].removedCalls) {
    hca.deviceGone[device] = softNow();
    fprintf(stderr, "softhca: %s goes away\n", hca.config.devices[device].name);
    softEngineWake();
  }
  uint64_t gone = fateOf(softPortId(device, 1)).removed;
  pthread_mutex_unlock(&hca.lock);
  return gone && softNow() >= gone;
}

/* ---- attributes of ports and devices -------------------------------------------------------- */

/* Codes of ibv_port_attr: of lanes, and of the speed of each, which suits the rate if none is set.
 */
static uint8_t widthOf(const softPortConfig *p) {
  return p->width >= 12 ? 8 : p->width >= 8 ? 4 : p->width >= 4 ? 2 : p->width >= 2 ? 16 : 1;
}

static uint8_t speedOf(const softPortConfig *p) {
  static const struct {
    double gigabits;
    uint8_t code;
  } speeds[] = {{2.5, 1}, {5, 2}, {10, 4}, {14, 16}, {25, 32}, {50, 64}, {100, 128}};
  if (p->speed) return (uint8_t)p->speed;
  for (size_t i = 0; p->gbps > 0 && i < sizeof speeds / sizeof *speeds; i++)
    if (speeds[i].gigabits * (double)p->width >= p->gbps * 8) return speeds[i].code;
  return p->gbps > 0 ? 128 : 64;
}

static enum ibv_mtu mtuOf(const softPortConfig *p) {
  enum ibv_mtu mtu = IBV_MTU_256;
  while (mtu < IBV_MTU_4096 && 256u << mtu <= p->mtu)
    mtu++;
  return mtu;
}

static int queryPort(struct ibv_context *context, uint8_t port, struct ibv_port_attr *out,
                     size_t size) {
  int device = softDeviceOf(context);
  const softDeviceConfig *d = &hca.config.devices[device];
  if (port < 1 || port > (int)d->nports) return EINVAL;
  if (softRefuses(context)) return EIO;
  pthread_mutex_lock(&hca.lock);
  bool up = softPortUp(softPortId(device, port));
  pthread_mutex_unlock(&hca.lock);
  const softPortConfig *p = configOf(device, port);
  struct ibv_port_attr attr = {
      .state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN,
      .max_mtu = IBV_MTU_4096,
      .active_mtu = mtuOf(p),
      .gid_tbl_len = softGidRows(device, port),
      .port_cap_flags = d->roce ? IBV_PORT_IP_BASED_GIDS : 0,
      .max_msg_sz = 1u << 30,
      .pkey_tbl_len = (uint16_t)p->pkeys.n,
      .lid = d->roce ? 0 : softLid(device, port),
      .sm_lid = d->roce ? 0 : 1,
      .max_vl_num = 1,
      .active_width = widthOf(p),
      .active_speed = up ? speedOf(p) : 1, /* what links begin with */
      .phys_state = up ? 5 : 2,
      .link_layer = d->roce ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND,
  };
  memset(out, 0, size);
  memcpy(out, &attr, size < sizeof attr ? size : sizeof attr);
  return 0;
}

/* Programs of any age give room for the oldest layout at least. */
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr) {
  return queryPort(context, port, (struct ibv_port_attr *)attr,
                   offsetof(struct ibv_port_attr, port_cap_flags2));
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
  int device = softDeviceOf(context);
  if (softRefuses(context)) return EIO;
  *attr = (struct ibv_device_attr){
      .fw_ver = "1.0.0",
      .node_guid = htobe64(guidOf(device)),
      .sys_image_guid = htobe64(guidOf(device)),
      .vendor_part_id = (uint32_t)hca.config.devices[device].model,
      .max_mr_size = UINT64_MAX,
      .page_size_cap = 0xfffff000,
      .max_qp = SOFT_INDICES - 1,
      .max_qp_wr = SOFT_MAX_WR,
      .device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SYS_IMAGE_GUID,
      .max_sge = SOFT_MAX_SGE,
      .max_sge_rd = SOFT_MAX_SGE,
      .max_cq = 65536,
      .max_cqe = (int)hca.config.devices[device].maxCqe,
      .max_mr = SOFT_MAX_MRS - 1,
      .max_pd = 65536,
      .max_qp_rd_atom = SOFT_MAX_ATOMIC,
      .max_res_rd_atom = SOFT_MAX_ATOMIC * (SOFT_INDICES - 1),
      .max_qp_init_rd_atom = SOFT_MAX_ATOMIC,
      .atomic_cap = IBV_ATOMIC_HCA,
      .max_srq = 65536,
      .max_srq_wr = SOFT_MAX_WR,
      .max_srq_sge = SOFT_MAX_SGE,
      .max_pkeys = SOFT_MAX_PKEYS,
      .local_ca_ack_delay = 15,
      .phys_port_cnt = (uint8_t)hca.config.devices[device].nports,
  };
  return 0;
}

static int queryDeviceEx(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
                         struct ibv_device_attr_ex *attr, size_t size) {
  if (input && input->comp_mask) return EINVAL;
  if (size < sizeof attr->orig_attr) return EINVAL;
  memset(attr, 0, size);
  return ibv_query_device(context, &attr->orig_attr);
}

static bool gidExists(struct ibv_context *context, uint32_t port, uint32_t index) {
  const softDeviceConfig *d = &hca.config.devices[softDeviceOf(context)];
  return port >= 1 && port <= d->nports &&
         index < (uint32_t)softGidRows(softDeviceOf(context), (int)port);
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
  if (!gidExists(context, port, (uint32_t)index)) {
    errno = EINVAL;
    return -1;
  }
  softGid(softDeviceOf(context), port, index, gid);
  return 0;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
                      struct ibv_gid_entry *entry, uint32_t flags, size_t size) {
  int device = softDeviceOf(context);
  if (flags || size < sizeof *entry) return EOPNOTSUPP;
  if (!gidExists(context, port, index)) return EINVAL;
  *entry = (struct ibv_gid_entry){.gid_index = index, .port_num = port};
  bool version2 = isVersion2(softGidRows(device, (int)port), (int)index);
  entry->gid_type = !hca.config.devices[device].roce ? IBV_GID_TYPE_IB
                    : version2                       ? IBV_GID_TYPE_ROCE_V2
                                                     : IBV_GID_TYPE_ROCE_V1;
  softGid(device, (int)port, (int)index, &entry->gid);
  return 0;
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max,
                             uint32_t flags, size_t size) {
  size_t n = 0;
  if (flags || size < sizeof *entries) return -EOPNOTSUPP;
  if (softRefuses(context)) return -EIO;
  for (uint32_t port = 1; port <= SOFT_MAX_PORTS; port++)
    for (uint32_t i = 0; n < max && gidExists(context, port, i); i++) {
      /* The caller's rows may be longer than ours. */
      struct ibv_gid_entry *row = (struct ibv_gid_entry *)((char *)entries + n++ * size);
      _ibv_query_gid_ex(context, port, i, row, 0, sizeof *row);
    }
  return (ssize_t)n;
}

int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned index, int *type) {
  if (!gidExists(context, port, index)) {
    errno = EINVAL;
    return -1;
  }
  int device = softDeviceOf(context);
  bool version2 = isVersion2(softGidRows(device, port), (int)index);
  *type = hca.config.devices[device].roce && version2; /* as sysfs: 1 is v2 */
  return 0;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey) {
  int device = softDeviceOf(context);
  if (!gidExists(context, port, 0) || index < 0 ||
      (uint64_t)index >= configOf(device, port)->pkeys.n) {
    errno = EINVAL;
    return -1;
  }
  *pkey = htobe16(configOf(device, port)->pkeys.key[index]);
  return 0;
}

int ibv_get_pkey_index(struct ibv_context *context, uint8_t port, __be16 pkey) {
  __be16 key;
  for (int i = 0; ibv_query_pkey(context, port, i, &key) == 0; i++)
    if (key == pkey) return i;
  return -1;
}

/* ---- asynchronous events -------------------------------------------------------------------- */

/* Where the object counts the events that were acknowledged; NULL for events of ports and devices.
 */
static uint32_t *acknowledged(const struct ibv_async_event *event) {
  switch (event->event_type) {
  case IBV_EVENT_CQ_ERR:
    return &event->element.cq->async_events_completed;
  case IBV_EVENT_QP_FATAL:
  case IBV_EVENT_QP_REQ_ERR:
  case IBV_EVENT_QP_ACCESS_ERR:
  case IBV_EVENT_COMM_EST:
  case IBV_EVENT_SQ_DRAINED:
  case IBV_EVENT_QP_LAST_WQE_REACHED:
    return &event->element.qp->events_completed;
  case IBV_EVENT_SRQ_ERR:
  case IBV_EVENT_SRQ_LIMIT_REACHED:
    return &event->element.srq->events_completed;
  default:
    return NULL;
  }
}

void softRaise(struct ibv_context *context, enum ibv_event_type type, void *element) {
  softContext *c = SOFT_CONTEXT(context);
  softEvent *e = calloc(1, sizeof *e), **at = &c->events;
  if (!e) return;
  e->event.event_type = type;
  memcpy(&e->event.element, element ? (void *)&element : &(void *){NULL}, sizeof element);
  while (*at)
    at = &(*at)->next;
  *at = e;
  eventfd_write(context->async_fd, 1);
}

static void raisePort(softContext *c, int port, enum ibv_event_type type) {
  softRaise(&c->verbs.context, type, NULL);
  softEvent *last = c->events;
  while (last && last->next)
    last = last->next;
  if (last) last->event.element.port_num = port;
}

void softForget(struct ibv_context *context, const void *element) {
  softContext *c = SOFT_CONTEXT(context);
  eventfd_t one;
  for (softEvent **at = &c->events; *at;) {
    softEvent *e = *at;
    if (!acknowledged(&e->event) || (const void *)e->event.element.qp != element) {
      at = &e->next;
      continue;
    }
    *at = e->next;
    free(e);
    /* Another thread may be between its read and the lock; it will find no event, and go on. */
    int flags = fcntl(context->async_fd, F_GETFL);
    fcntl(context->async_fd, F_SETFL, flags | O_NONBLOCK);
    eventfd_read(context->async_fd, &one);
    fcntl(context->async_fd, F_SETFL, flags);
  }
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
  softContext *c = SOFT_CONTEXT(context);
  for (eventfd_t one;;) {
    if (eventfd_read(context->async_fd, &one)) return -1;
    pthread_mutex_lock(&hca.lock);
    softEvent *e = c->events;
    if (e) c->events = e->next;
    pthread_mutex_unlock(&hca.lock);
    if (!e) continue;
    *event = e->event;
    free(e);
    return 0;
  }
}

void ibv_ack_async_event(struct ibv_async_event *event) {
  pthread_mutex_lock(&hca.lock);
  uint32_t *count = acknowledged(event);
  if (count) ++*count;
  pthread_cond_broadcast(&hca.acked);
  pthread_mutex_unlock(&hca.lock);
}

/* With a value of the port's configuration that is another from now on; NULL: none. */
static void changePort(int device, int port, uint64_t *value, uint64_t to,
                       enum ibv_event_type type) {
  pthread_mutex_lock(&hca.lock);
  if (value) *value = to;
  softQpResolve();
  for (softContext *c = hca.contexts; c; c = c->next)
    if (c->device->index == device) raisePort(c, port, type);
  pthread_mutex_unlock(&hca.lock);
}

static softPortConfig *portOf(int device, int port) {
  return &hca.config.devices[device].ports[port - 1];
}

void softHcaLid(int device, int port, unsigned lid) {
  changePort(device, port, &portOf(device, port)->lid, lid, IBV_EVENT_LID_CHANGE);
}

void softHcaGid(int device, int port, unsigned byte) {
  changePort(device, port, &portOf(device, port)->gidByte, byte, IBV_EVENT_GID_CHANGE);
}

void softHcaManager(int device, int port) {
  changePort(device, port, NULL, 0, IBV_EVENT_SM_CHANGE);
}

void softHcaPkey(int device, int port, unsigned row, unsigned key) {
  pthread_mutex_lock(&hca.lock);
  portOf(device, port)->pkeys.key[row] = (uint16_t)key;
  pthread_mutex_unlock(&hca.lock);
  changePort(device, port, NULL, 0, IBV_EVENT_PKEY_CHANGE);
}

static void remove_(softContext *c) {
  c->removed = true;
  softRaise(&c->verbs.context, IBV_EVENT_DEVICE_FATAL, NULL);
  for (softQp *qp = hca.qps; qp; qp = qp->next)
    if (qp->ibv.qp_base.context == &c->verbs.context) softQpError(qp);
}

static void upcoming(uint64_t when, uint64_t now) {
  if (when > now) softNext(when);
}

void softTimeline(uint64_t now) {
  for (softContext *c = hca.contexts; c; c = c->next)
    for (uint64_t port = 1; port <= hca.config.devices[c->device->index].nports; port++) {
      uint16_t id = softPortId(c->device->index, (int)port);
      Fate f = fateOf(id);
      bool down = !softPortUp(id);
      if (f.removed && now >= f.removed && !c->removed) remove_(c);
      if (down != c->portDown[port - 1] && !c->removed)
        raisePort(c, (int)port, down ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE);
      c->portDown[port - 1] = down;
      upcoming(f.removed, now);
      upcoming(f.down, now);
      upcoming(f.up, now);
    }
}

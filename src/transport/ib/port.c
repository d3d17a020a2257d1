/* NET/IB: libibverbs, devices and their ports, memory that is registered with them. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/settings.h"
#include "transport/ib/endpoint.h"

enum { FIRST_CQE = 1024, MAX_GID_ROWS = 512 };

/* ---- the library ---------------------------------------------------------------------------- */

tuttiVerbsTable tuttiVerbs;
static char verbsMissing[TUTTI_SENTENCE];
/* ibv_reg_dmabuf_mr of rdma-core 34; NULL in older ones. */
static struct ibv_mr *(*regDmabuf)(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                                   int fd, int access);
/* ibv_query_qp_data_in_order of rdma-core 41; NULL in older ones. */
static int (*inOrder)(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t flags);

static void loadVerbs(void) {
#define SYMBOL(member, function) #function,
  static const char *const symbols[] = {TUTTI_VERBS(SYMBOL)};
  void **table = (void **)&tuttiVerbs;
  void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(verbsMissing, sizeof verbsMissing, TUTTI_IB_NO_LIBRARY, dlerror());
    return;
  }
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    table[i] = dlsym(library, symbols[i]);
    if (!table[i])
      snprintf(verbsMissing, sizeof verbsMissing,
               "libibverbs.so.1 has no %s; install rdma-core 32 or newer", symbols[i]);
  }
  *(void **)&regDmabuf = dlsym(library, "ibv_reg_dmabuf_mr");
  *(void **)&tuttiVerbs.regMrIova2 = dlsym(library, "ibv_reg_mr_iova2");
  *(void **)&inOrder = dlsym(library, "ibv_query_qp_data_in_order");
}

const char *tuttiVerbsLoad(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, loadVerbs);
  return verbsMissing[0] ? verbsMissing : NULL;
}

/* ---- which ports ---------------------------------------------------------------------------- */

static uint32_t megabitsOf(const struct ibv_port_attr *attr) {
  static const uint32_t lane[8] = {2500, 5000, 10000, 10000, 14000, 25000, 50000, 100000};
  static const uint32_t lanes[8] = {1, 4, 8, 12, 2, 1, 1, 1};
  int width = attr->active_width ? __builtin_ctz(attr->active_width) : 0;
  int speed = attr->active_speed ? __builtin_ctz(attr->active_speed) : 0;
  return lanes[width & 7] * lane[speed & 7];
}

/* ---- ports in use --------------------------------------------------------------------------- */

/* Puts the port's GIDs into its record, the best ones of a table that may have hundreds of rows. */
static void readGids(tuttiIbRail *rail) {
  tuttiIbPort *p = &rail->port;
  struct ibv_gid_entry rows[MAX_GID_ROWS];
  int forced = (int)tuttiSettingInt(TUTTI_SETTING_IB_GID_INDEX);
  ssize_t n = tuttiVerbs.queryGidTable(rail->context, rows, MAX_GID_ROWS, 0, sizeof *rows);
  p->ngids = 0;
  for (ssize_t i = 0; i < n; i++) {
    if (rows[i].port_num != p->port || (forced >= 0 && (int)rows[i].gid_index != forced)) continue;
    tuttiIbGid gid = {.index = (uint16_t)rows[i].gid_index,
                      .type = (uint8_t)rows[i].gid_type,
                      .forced = forced >= 0};
    memcpy(gid.gid, rows[i].gid.raw, sizeof gid.gid);
    tuttiIbPortAddGid(p, &gid, tuttiSettingString(TUTTI_SETTING_IB_ADDR_FAMILY),
                      (int)tuttiSettingInt(TUTTI_SETTING_IB_ROCE_VERSION));
  }
}

/* 0, or an errno. */
static int queryDevice(const tuttiIbRail *rail, struct ibv_port_attr *attr) {
  return tuttiVerbs.queryPort(rail->context, rail->port.port, (struct _compat_ibv_port_attr *)attr);
}

static int queryRail(const tuttiIbRail *rail, struct ibv_port_attr *attr) {
  return rail->gone ? EIO : queryDevice(rail, attr);
}

/* What commands of a device fail with that is not there any more, or has failed for good. */
static bool meansGone(int err) {
  return err == EIO || err == ENODEV || err == ENXIO;
}

/* The port is asked rather than the device, whose attributes the kernel knows by heart. */
bool tuttiIbRailGone(const tuttiIbRail *rail) {
  struct ibv_port_attr attr = {0};
  return meansGone(queryRail(rail, &attr));
}

bool tuttiIbDeviceGone(const tuttiIbRail *rail) {
  struct ibv_port_attr attr = {0};
  return meansGone(queryDevice(rail, &attr));
}

/* A device that goes away before peers were told of it is as good as one that was never there. */
static void leaveOut(tuttiIbNode *node, const char *device, const char *call, int err) {
  snprintf(node->lost, sizeof node->lost,
           "device %s was removed or has failed (%s: %s; see dmesg on this host)", device, call,
           tuttiErrnoText(err));
  TUTTI_WARN(NET, "NET/IB: %s, and is left out", node->lost);
}

int tuttiIbGidRow(const tuttiIbRail *rail, const tuttiIbGid *gid) {
  struct ibv_gid_entry rows[MAX_GID_ROWS];
  ssize_t n = tuttiVerbs.queryGidTable(rail->context, rows, MAX_GID_ROWS, 0, sizeof *rows);
  for (ssize_t i = 0; i < n; i++)
    if (rows[i].port_num == rail->port.port && rows[i].gid_type == gid->type &&
        (!gid->forced || rows[i].gid_index == gid->index) &&
        memcmp(rows[i].gid.raw, gid->gid, sizeof gid->gid) == 0)
      return (int)rows[i].gid_index;
  return -1;
}

static int portsUp(const tuttiIbNode *node) {
  int up = 0;
  for (int i = 0; i < node->nrails; i++)
    up += node->rails[i].port.up;
  return up;
}

/* Takes what may change of a port while it is in use, as far as it says. */
static void takeAttributes(tuttiIbRail *rail, const struct ibv_port_attr *attr) {
  tuttiIbPort *p = &rail->port;
  p->up = attr->state == IBV_PORT_ACTIVE;
  if (p->up) p->megabits = megabitsOf(attr);
  p->lid = attr->lid;
  if (attr->active_mtu >= IBV_MTU_256 && attr->active_mtu <= IBV_MTU_4096)
    p->mtu = (uint8_t)attr->active_mtu;
  readGids(rail);
}

/* Makes a rail of the port if it is one. */
static bool readPort(tuttiIbNode *node, tuttiIbRail *rail, const char *name) {
  struct ibv_port_attr attr = {0};
  int err = queryRail(rail, &attr);
  if (meansGone(err)) leaveOut(node, name, "ibv_query_port", err);
  if (err ||
      (attr.link_layer != IBV_LINK_LAYER_ETHERNET && attr.link_layer != IBV_LINK_LAYER_INFINIBAND))
    return false;
  snprintf(rail->port.device, sizeof rail->port.device, "%.15s", name);
  rail->port.ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
  rail->port.mtu = IBV_MTU_1024; /* one that is down may have none yet */
  rail->port.megabits = megabitsOf(&attr);
  takeAttributes(rail, &attr);
  return true;
}

/* Closes what there is of it. */
static void closeRail(tuttiIbNode *node, tuttiIbRail *rail) {
  tuttiIbGdrDrop(rail);
  if (node->watched) tuttiProxyUnwatch(node->view->proxy, &rail->events);
  if (rail->cq) tuttiVerbs.destroyCq(rail->cq);
  if (rail->pd) tuttiVerbs.deallocPd(rail->pd);
  tuttiForkCloseRemove(rail->context->async_fd);
  tuttiForkCloseRemove(rail->context->cmd_fd);
  tuttiVerbs.close(rail->context);
}

/* Nobody knows the rails by their numbers yet. */
static void removeRail(tuttiIbNode *node, int i) {
  closeRail(node, &node->rails[i]);
  node->nrails--;
  memmove(&node->rails[i], &node->rails[i + 1], (size_t)(node->nrails - i) * sizeof *node->rails);
}

/* Gives up the last port that is down for one more; false: all are up. */
static bool dropDownPort(tuttiIbNode *node) {
  int last = node->nrails - 1;
  while (last >= 0 && node->rails[last].port.up)
    last--;
  if (last < 0) return false;
  removeRail(node, last);
  return true;
}

/* Puts the port among the rails, whose order is that of devices. Of more than there is room for,
 * those that are up come first. False: its context is of no use. */
static bool addPort(tuttiIbNode *node, tuttiIbRail rail, const char *name) {
  int port = rail.port.port;
  if (!readPort(node, &rail, name)) return false;
  if (node->nrails == TUTTI_IB_PORTS && !(rail.port.up && dropDownPort(node))) {
    TUTTI_WARN(NET, "NET/IB: %s port %d is not used, as %d ports are the most; see TUTTI_IB_HCA",
               name, port, TUTTI_IB_PORTS);
    return false;
  }
  node->rails[node->nrails++] = rail;
  return true;
}

/* Adds the ports of a device that TUTTI_IB_HCA allows. */
static void openDevice(tuttiIbNode *node, struct ibv_device *device) {
  const char *list = tuttiSettingString(TUTTI_SETTING_IB_HCA);
  const char *name = tuttiVerbs.deviceName(device);
  struct ibv_device_attr attr = {.phys_port_cnt = UINT8_MAX};
  for (int port = 1; port <= attr.phys_port_cnt; port++) {
    if (!tuttiIbPortAllowed(list, name, port)) continue;
    struct ibv_context *context = tuttiVerbs.open(device);
    if (!context) {
      if (meansGone(errno))
        leaveOut(node, name, "ibv_open_device", errno);
      else
        TUTTI_WARN(NET, "NET/IB: " TUTTI_IB_NOT_OPENED, name, tuttiErrnoText(errno));
      return;
    }
    int err = tuttiVerbs.queryDevice(context, &attr);
    if (meansGone(err)) leaveOut(node, name, "ibv_query_device", err);
    if (err) attr.phys_port_cnt = 0;
    tuttiIbRail rail = {.context = context,
                        .port.port = (uint8_t)port,
                        .model = (uint64_t)attr.vendor_id << 32 | attr.vendor_part_id};
    if (port > attr.phys_port_cnt || !addPort(node, rail, name)) tuttiVerbs.close(context);
  }
}

/* Returns how many devices there are, allowed or not. */
static int openPorts(tuttiIbNode *node) {
  int n = 0;
  struct ibv_device **devices = tuttiVerbs.getDeviceList(&n);
  for (int i = 0; devices && i < n; i++)
    if (devices[i]->transport_type == IBV_TRANSPORT_IB) /* iWARP needs rdma_cm */
      openDevice(node, devices[i]);
  if (devices) tuttiVerbs.freeDeviceList(devices);
  return n;
}

const char *tuttiIbRemedyText(int err, char *buf, size_t size) {
  struct rlimit limit = {0};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (err != ENOMEM && err != EAGAIN && err != EPERM)
    snprintf(buf, size, "see dmesg on this host");
  else if (limit.rlim_cur == RLIM_INFINITY)
    snprintf(buf, size, "the host or its cgroup is out of memory (dmesg)");
  else
    snprintf(buf, size, TUTTI_IB_LOCKED_MEMORY, (unsigned long long)limit.rlim_cur / 1024);
  return buf;
}

/* `call` failed on a rail with errno `err`. */
static tuttiResult_t railFailed(const tuttiIbNode *node, const tuttiIbRail *rail, const char *call,
                                int err) {
  char remedy[192];
  return TUTTI_FAIL(tuttiSystemError, "rank %d: %s on %s port %u failed: %s; %s", node->view->rank,
                    call, rail->port.device, rail->port.port, tuttiErrnoText(err),
                    tuttiIbRemedyText(err, remedy, sizeof remedy));
}

/* ---- memory ---------------------------------------------------------------------------------
 *
 * With relaxed ordering a write may pass others on PCIe, which it need not wait for: faster on many
 * hosts, and virtual ones above all. Then a flag behind a payload may be there first, even one in
 * other memory, as far as this library wants to know. A completion is not: it is written in order,
 * behind all before. So that is for memory whose every write is told by completions:
 *
 *   the slab of the GPU, if all that receive there ask for immediates, which tuttiIbGdr.relaxed
 *   then makes them do for good; its blocks are for senders, too, which are only read;
 *   a receiver's FIFO, if it asks for them, as tuttiIbEndpoint.relaxed then does;
 *   windows, which are written by connections that receive in the same kind of memory;
 *   memory of the user that is only read.
 *
 * A sender's FIFO is not: credits come there, and an old one may not overwrite a new one. Nor is
 * what the check and the flush use: they are to find the GPU as strict traffic does. */

/* Immediates are no trouble where they are used anyway; to relax the rest, too, they are asked for.
 */
static bool isRelaxing(const char *mode) {
  const char *set = tuttiSettingString(TUTTI_SETTING_IB_PCI_RELAXED_ORDERING);
  return strcmp(strcmp(set, "2") == 0 ? "auto" : set, mode) == 0;
}

static bool isOrder(const char *order) {
  return strcmp(tuttiSettingString(TUTTI_SETTING_IB_ORDER), order) == 0;
}

bool tuttiIbRelaxes(bool told) {
  return told && !isRelaxing("0");
}

bool tuttiIbHostTold(void) {
  return isOrder("immediate") || (isOrder("auto") && isRelaxing("1"));
}

struct ibv_mr *tuttiIbRegisterMr(const tuttiIbRail *rail, void *addr, size_t bytes, int access,
                                 bool relaxed) {
  unsigned all = (unsigned)access | IBV_ACCESS_RELAXED_ORDERING;
  struct ibv_mr *mr = NULL;
  if (relaxed && tuttiVerbs.regMrIova2)
    mr = tuttiVerbs.regMrIova2(rail->pd, addr, bytes, (uintptr_t)addr, all);
  return mr ? mr : tuttiVerbs.regMr(rail->pd, addr, bytes, access);
}

tuttiResult_t tuttiIbRegister(tuttiIbNode *node, int rail, void *addr, size_t bytes, bool relaxed,
                              struct ibv_mr **mr) {
  char call[96];
  snprintf(call, sizeof call, "ibv_reg_mr of %zu bytes", bytes);
  *mr = tuttiIbRegisterMr(&node->rails[rail], addr, bytes,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, relaxed);
  return *mr ? tuttiSuccess : railFailed(node, &node->rails[rail], call, errno);
}

bool tuttiIbOrdered(struct ibv_qp *qp) {
  return inOrder && inOrder(qp, IBV_WR_RDMA_WRITE, 0) == 1;
}

/* No descriptor is bad in another way where it can be done. */
bool tuttiIbDmabuf(const tuttiIbRail *rail) {
  return regDmabuf && !regDmabuf(rail->pd, 0, 0, 0, -1, 0) && errno != EOPNOTSUPP &&
         errno != EPROTONOSUPPORT;
}

struct ibv_mr *tuttiIbRegisterDmabuf(const tuttiIbRail *rail, size_t offset, size_t bytes,
                                     uint64_t address, int fd, int access, bool relaxed) {
  int all = access | IBV_ACCESS_RELAXED_ORDERING;
  struct ibv_mr *mr = relaxed ? regDmabuf(rail->pd, offset, bytes, address, fd, all) : NULL;
  return mr ? mr : regDmabuf(rail->pd, offset, bytes, address, fd, access);
}

void tuttiIbDeregister(struct ibv_mr *mr[TUTTI_IB_PORTS]) {
  for (int i = 0; i < TUTTI_IB_PORTS; i++)
    if (mr[i]) tuttiVerbs.deregMr(mr[i]);
}

/* ---- opening and closing --------------------------------------------------------------------- */

void tuttiIbNodeClose(tuttiIbNode *node) {
  tuttiIbRegionsClose(node);
  tuttiIbPxnClose(node);
  tuttiIbGdrClose(node);
  for (; node->nrails > 0; node->nrails--)
    closeRail(node, &node->rails[node->nrails - 1]);
}

/* NULL, or the call that failed with errno `*err`. */
static const char *openRail(tuttiIbRail *rail, int *err) {
  struct ibv_device_attr device = {.max_cqe = INT_MAX};
  int fd = rail->context->async_fd;
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  tuttiForkCloseAdd(fd);
  tuttiForkCloseAdd(rail->context->cmd_fd);
  rail->events.fd = fd;
  rail->pd = tuttiVerbs.allocPd(rail->context);
  *err = errno;
  if (!rail->pd) return "ibv_alloc_pd";
  (void)tuttiVerbs.queryDevice(rail->context, &device);
  rail->mostCqe = device.max_cqe;
  rail->cqe = device.max_cqe < FIRST_CQE ? device.max_cqe : FIRST_CQE;
  rail->cq = tuttiVerbs.createCq(rail->context, rail->cqe, NULL, NULL, 0);
  *err = errno;
  return rail->cq ? NULL : "ibv_create_cq";
}

/* Opens the rails, but those of devices that go away meanwhile. */
static tuttiResult_t openRails(tuttiIbNode *node) {
  for (int i = 0, err; i < node->nrails;) {
    tuttiIbRail *rail = &node->rails[i];
    const char *call = openRail(rail, &err);
    if (call && !tuttiIbRailGone(rail)) return railFailed(node, rail, call, err);
    if (!call) {
      i++;
      continue;
    }
    leaveOut(node, rail->port.device, call, err);
    removeRail(node, i);
  }
  return tuttiSuccess;
}

/* Where no other network may be used, ports that are down are waited for as long as connections
 * wait for anything; else one must be up. */
static bool mayServe(const tuttiIbNode *node) {
  return node->view->netName && *node->view->netName ? node->nrails > 0 : portsUp(node) > 0;
}

/* What a port says of its speed while it is down is what its kind begins with. It is expected to
 * be as fast as others of its model. */
static void expectSpeeds(tuttiIbNode *node) {
  for (int i = 0; i < node->nrails; i++) {
    tuttiIbRail *rail = &node->rails[i];
    for (int j = 0; j < node->nrails && !rail->port.up; j++) {
      const tuttiIbRail *other = &node->rails[j];
      if (other->port.up && other->model == rail->model &&
          other->port.megabits > rail->port.megabits)
        rail->port.megabits = other->port.megabits;
    }
  }
}

void tuttiIbNodeSettle(tuttiIbNode *node, char *why) {
  bool any = false;
  for (int i = node->nrails - 1; i >= 0; i--) {
    if (!tuttiIbRailGone(&node->rails[i])) continue;
    leaveOut(node, node->rails[i].port.device, "ibv_query_port", EIO);
    removeRail(node, i);
    any = true;
  }
  expectSpeeds(node);
  if (!any || mayServe(node)) return;
  snprintf(why, TUTTI_SENTENCE, "%s", node->lost);
  tuttiIbNodeClose(node);
}

/* Why none of the devices, of which there are so many, serves. */
static void explainNone(const tuttiIbNode *node, int there, char *why) {
  if (node->lost[0])
    snprintf(why, TUTTI_SENTENCE, "%s", node->lost);
  else if (node->nrails == 0)
    snprintf(why, TUTTI_SENTENCE,
             there ? TUTTI_IB_NONE_USABLE : "this host has %d RDMA devices (see ibv_devices)",
             there);
  else
    snprintf(why, TUTTI_SENTENCE, TUTTI_IB_NONE_ACTIVE, node->rails[0].port.device,
             TUTTI_IB_OTHERS(there));
}

tuttiResult_t tuttiIbNodeOpen(tuttiIbNode *node, char *why) {
  if (tuttiSettingInt(TUTTI_SETTING_IB_DISABLE)) {
    snprintf(why, TUTTI_SENTENCE, "TUTTI_IB_DISABLE is set");
    return tuttiSuccess;
  }
  const char *missing = tuttiVerbsLoad();
  if (missing) {
    snprintf(why, TUTTI_SENTENCE, "%s", missing);
    return tuttiSuccess;
  }
  int there = openPorts(node);
  if (mayServe(node)) TUTTI_TRY(openRails(node));
  if (!mayServe(node)) {
    explainNone(node, there, why);
    tuttiIbNodeClose(node);
  } else if (portsUp(node) == 0) {
    TUTTI_WARN(NET,
               "NET/IB: " TUTTI_IB_NONE_ACTIVE "; connections wait for one, as no other network is "
               "allowed (TUTTI_NET)",
               node->rails[0].port.device, TUTTI_IB_OTHERS(there));
  }
  return tuttiSuccess;
}

/* ---- events --------------------------------------------------------------------------------- */

/* For those who may not look at the ports themselves. One that was never up is no trouble. */
static void tellDown(tuttiIbNode *node, const tuttiIbRail *rail) {
  uint32_t bit = 1u << (rail - node->rails), down = tuttiLoadRelaxed32(&node->down);
  tuttiStoreRelease32(&node->down, rail->port.up ? down & ~bit : down | bit);
}

/* Something has happened to the device; what is not about the port does no harm here, as a queue
 * pair's own trouble shows in its completions. Addresses come and go with cables and subnet
 * managers, so they are read anew. `down`: the port was, whatever it is by now. */
static void railEvent(tuttiIbNode *node, tuttiIbRail *rail, enum ibv_event_type type, bool down) {
  struct ibv_port_attr attr = {0};
  const tuttiIbPort *p = &rail->port;
  const tuttiIbPort before = *p;
  if (type == IBV_EVENT_DEVICE_FATAL) rail->gone = true;
  if (!down && queryRail(rail, &attr) == 0)
    takeAttributes(rail, &attr);
  else
    rail->port.up = false;
  if (tuttiIbPortSame(&before, p)) return;
  node->mine.ports[rail - node->rails] = *p;
  node->changes++;
  tellDown(node, rail);
  int left = portsUp(node);
  if (p->up && before.up)
    TUTTI_INFO(NET, "NET/IB: %s port %u has other addresses", p->device, p->port);
  else if (p->up)
    TUTTI_WARN(NET, "NET/IB: %s port %u is up and used; %d of %d ports are up", p->device, p->port,
               left, node->nrails);
  else
    TUTTI_WARN(NET, "NET/IB: %s port %u went down (%s); %d of %d ports are left, connections %s",
               p->device, p->port, tuttiVerbs.eventText(type), left, node->nrails,
               left ? "move to them" : "wait for it");
}

void tuttiIbRailLost(tuttiIbNode *node, tuttiIbRail *rail, const char *why) {
  if (rail->gone) return;
  TUTTI_WARN(NET, "NET/IB: device %s has failed: %s; see dmesg on this host", rail->port.device,
             why);
  railEvent(node, rail, IBV_EVENT_DEVICE_FATAL, true);
}

bool tuttiIbNodeEvents(tuttiIbNode *node) {
  bool any = false;
  for (int i = 0; i < node->nrails; i++) {
    tuttiIbRail *rail = &node->rails[i];
    struct ibv_async_event event;
    while (rail->events.readable && !rail->gone &&
           tuttiVerbs.getAsyncEvent(rail->context, &event) == 0) {
      enum ibv_event_type type = event.event_type;
      bool down = type == IBV_EVENT_PORT_ERR && event.element.port_num == rail->port.port;
      tuttiVerbs.ackAsyncEvent(&event);
      railEvent(node, rail, type, down);
      any = true;
    }
    if (rail->events.readable) railEvent(node, rail, IBV_EVENT_PORT_ACTIVE, false);
    rail->events.readable = false;
  }
  return any;
}

#include "doctor/view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "topology/internal.h"

const char *tuttiViewSetting(const tuttiView *v, const char *name) {
  const char *said = tuttiMachineAnswer(v->m, "setting.%s", name);
  return said ? said : "";
}

static int numberSetting(const tuttiView *v, const char *name, int missing) {
  const char *text = tuttiViewSetting(v, name);
  return text[0] ? atoi(text) : missing;
}

/* ---- GPUs ----------------------------------------------------------------------------------- */

static void viewGpus(tuttiView *v) {
  for (int i = 0; i < v->t->count && v->ngpus < TUTTI_VIEW_GPUS; i++) {
    const tuttiNode *n = &v->t->nodes[i];
    if (n->kind != tuttiNodeGpu) continue;
    tuttiViewGpu *gpu = &v->gpus[v->ngpus++];
    gpu->node = i;
    tuttiBusIdText(n->busId, gpu->bus, sizeof gpu->bus);
    const char *name = tuttiMachineAnswer(v->m, "nvml.%s.name", gpu->bus);
    snprintf(gpu->name, sizeof gpu->name, "%.95s", name ? name : "");
    gpu->driven = strcmp(n->driver, "nvidia") == 0;
    gpu->told = tuttiMachineAnswer(v->m, "nvml.%s.index", gpu->bus) != NULL;
  }
}

/* ---- ports ---------------------------------------------------------------------------------- */

/* "fe80:0000:...": 8 groups of 4 digits. */
static bool parseGid(const char *text, uint8_t gid[16]) {
  for (int i = 0; i < 8; i++) {
    char *end;
    unsigned long group = strtoul(text, &end, 16);
    if (end != text + 4 || group > 0xffff || *end != (i < 7 ? ':' : '\0')) return false;
    gid[2 * i] = (uint8_t)(group >> 8);
    gid[2 * i + 1] = (uint8_t)group;
    text = end + 1;
  }
  return true;
}

static tuttiIbGidType gidType(const tuttiView *v, const char *dir, const char *row, bool ethernet) {
  char path[PATH_MAX], text[32];
  snprintf(path, sizeof path, "%s/gid_attrs/types/%s", dir, row);
  if (!ethernet || !tuttiMachineRead(v->m, path, text, sizeof text)) return TUTTI_GID_IB;
  return strcmp(text, "RoCE v2") == 0 ? TUTTI_GID_ROCE2 : TUTTI_GID_ROCE1;
}

static tuttiResult_t viewGids(const tuttiView *v, tuttiViewPort *port) {
  char path[PATH_MAX], text[48];
  TUTTI_FREED tuttiName *rows = NULL;
  int n, forced = numberSetting(v, "IB_GID_INDEX", -1);
  snprintf(path, sizeof path, "%s/gids", port->dir);
  TUTTI_TRY(tuttiMachineList(v->m, path, &rows, &n));
  for (int i = 0; i < n; i++) {
    tuttiIbGid gid = {.index = (uint16_t)atoi(rows[i]), .forced = forced >= 0};
    snprintf(path, sizeof path, "%s/gids/%s", port->dir, rows[i]);
    if (!tuttiMachineRead(v->m, path, text, sizeof text) || !parseGid(text, gid.gid) ||
        (forced >= 0 && gid.index != forced))
      continue;
    gid.type = (uint8_t)gidType(v, port->dir, rows[i], port->ethernet);
    tuttiIbPortAddGid(&port->rail, &gid, tuttiViewSetting(v, "IB_ADDR_FAMILY"),
                      numberSetting(v, "IB_ROCE_VERSION", 0));
    if (port->net[0]) continue;
    snprintf(path, sizeof path, "%s/gid_attrs/ndevs/%s", port->dir, rows[i]);
    tuttiMachineRead(v->m, path, port->net, sizeof port->net);
  }
  return tuttiSuccess;
}

/* `device` is its name; `usable` whether the library serves its kind. */
static tuttiResult_t viewPort(const tuttiView *v, const char *device, bool usable,
                              tuttiViewPort *port) {
  char path[PATH_MAX], text[64];
  snprintf(port->dir, sizeof port->dir, "sys/class/infiniband/%.63s/ports/%d", device,
           port->number);
  snprintf(port->text, sizeof port->text, "%s", device);
  port->state = (int)tuttiMachineNumber(v->m, port->dir, "state", 0);
  port->phys = (int)tuttiMachineNumber(v->m, port->dir, "phys_state", 0);
  port->allowed = tuttiIbPortAllowed(tuttiViewSetting(v, "IB_HCA"), device, port->number) && usable;
  snprintf(path, sizeof path, "%s/rate", port->dir);
  tuttiMachineRead(v->m, path, port->rate, sizeof port->rate);
  port->gigabits = strtod(port->rate, NULL);
  snprintf(path, sizeof path, "%s/link_layer", port->dir);
  port->ethernet = tuttiMachineRead(v->m, path, text, sizeof text) && strcmp(text, "Ethernet") == 0;
  snprintf(port->rail.device, sizeof port->rail.device, "%.15s", device);
  port->rail.port = (uint8_t)port->number;
  port->rail.ethernet = port->ethernet;
  port->rail.up = port->state == TUTTI_PORT_ACTIVE;
  port->rail.lid = (uint16_t)tuttiMachineNumber(v->m, port->dir, "lid", 0);
  TUTTI_TRY(viewGids(v, port));
  snprintf(path, sizeof path, "sys/class/net/%.15s", port->net);
  port->mtu = port->net[0] ? tuttiMachineNumber(v->m, path, "mtu", 0) : 0;
  return tuttiSuccess;
}

/* ---- NICs ----------------------------------------------------------------------------------- */

static void readText(const tuttiView *v, const tuttiViewNic *nic, const char *file, char *buf,
                     size_t size) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "sys/class/infiniband/%s/%s", nic->name, file);
  tuttiMachineRead(v->m, path, buf, size);
}

static tuttiResult_t viewNic(tuttiView *v, const char *name) {
  char text[64], path[PATH_MAX];
  int node = tuttiTopologyFind(v->t, name), n;
  if (node < 0 || v->nnics == TUTTI_VIEW_NICS) return tuttiSuccess;
  tuttiViewNic *nic = &v->nics[v->nnics++];
  nic->node = node;
  snprintf(nic->name, sizeof nic->name, "%.63s", name);
  snprintf(nic->driver, sizeof nic->driver, "%s", v->t->nodes[node].driver);
  readText(v, nic, "fw_ver", nic->firmware, sizeof nic->firmware);
  readText(v, nic, "board_id", nic->board, sizeof nic->board);
  readText(v, nic, "hca_type", nic->hca, sizeof nic->hca);
  readText(v, nic, "node_type", text, sizeof text);
  nic->usable = text[0] == '\0' || text[0] == '1'; /* "1: CA": InfiniBand and RoCE */
  nic->physical = v->t->nodes[node].busId != 0;
  v->nphysical += nic->physical;
  TUTTI_FREED tuttiName *ports = NULL;
  snprintf(path, sizeof path, "sys/class/infiniband/%s/ports", nic->name);
  TUTTI_TRY(tuttiMachineList(v->m, path, &ports, &n));
  for (int i = 0; i < n && nic->nports < TUTTI_VIEW_PORTS; i++) {
    nic->ports[nic->nports].number = atoi(ports[i]);
    TUTTI_TRY(viewPort(v, name, nic->usable, &nic->ports[nic->nports++]));
  }
  for (int i = 0; i < nic->nports && nic->nports > 1; i++)
    snprintf(nic->ports[i].text, sizeof nic->ports[i].text, "%.63s port %d", name,
             nic->ports[i].number);
  return tuttiSuccess;
}

static tuttiResult_t viewNics(tuttiView *v) {
  TUTTI_FREED tuttiName *names = NULL;
  int n;
  TUTTI_TRY(tuttiMachineList(v->m, "sys/class/infiniband", &names, &n));
  for (int i = 0; i < n; i++)
    TUTTI_TRY(viewNic(v, names[i]));
  return tuttiSuccess;
}

bool tuttiViewNicUp(const tuttiViewNic *nic) {
  for (int i = 0; i < nic->nports; i++)
    if (nic->ports[i].allowed && nic->ports[i].state == TUTTI_PORT_ACTIVE) return true;
  return false;
}

int tuttiViewNearest(const tuttiView *v, int gpu, bool up) {
  int best = -1;
  for (int i = 0; i < v->nnics; i++) {
    const tuttiViewNic *nic = &v->nics[i];
    if (!nic->physical || !nic->usable || (up && !tuttiViewNicUp(nic))) continue;
    if (best < 0 || tuttiViewPairOf(v, gpu, i)->apart < tuttiViewPairOf(v, gpu, best)->apart)
      best = i;
  }
  return best;
}

/* ---- pairs ---------------------------------------------------------------------------------- */

tuttiViewModuleKind tuttiViewModules(const tuttiView *v) {
  char text[1024];
  if (!tuttiMachineRead(v->m, "proc/driver/nvidia/version", text, sizeof text))
    return TUTTI_MODULES_UNKNOWN;
  return strstr(text, "Open Kernel Module") ? TUTTI_MODULES_OPEN : TUTTI_MODULES_CLOSED;
}

bool tuttiViewKernelSince(const tuttiView *v, int major, int minor) {
  int x, y;
  const char *release = tuttiMachineAnswer(v->m, "host.release");
  if (!release || sscanf(release, "%d.%d", &x, &y) != 2) return true;
  return x > major || (x == major && y >= minor);
}

/* Whether GPU and NIC can do it by dma-buf, as far as anybody says: CUDA and libibverbs if they
 * were asked; else the kernel modules that are open have it, since Linux 5.12. */
static bool dmabufOf(const tuttiView *v, const tuttiViewGpu *gpu, const tuttiViewNic *nic) {
  const char *cuda = tuttiMachineAnswer(v->m, "cuda.%s.dmabuf", gpu->bus);
  const char *verbs = tuttiMachineAnswer(v->m, "verbs.%s.dmabuf", nic->name);
  bool exports = cuda ? cuda[0] == '1'
                      : tuttiViewModules(v) == TUTTI_MODULES_OPEN && tuttiViewKernelSince(v, 5, 12);
  return exports && verbs && verbs[0] == '1' && numberSetting(v, "DMABUF_ENABLE", 1);
}

static void viewPair(const tuttiView *v, const tuttiViewGpu *gpu, const tuttiViewNic *nic,
                     tuttiViewPair *pair) {
  char sysfs[PATH_MAX];
  const char *able = tuttiMachineAnswer(v->m, "cuda.%s.gdr", gpu->bus);
  const char *older = tuttiMachineAnswer(v->m, "cuda.%s.preampere", gpu->bus);
  const char *level = tuttiViewSetting(v, "NET_GDR_LEVEL");
  const char *read = tuttiViewSetting(v, "NET_GDR_READ");
  tuttiGdrQuestion q = {.gpu = v->t->nodes[gpu->node].busId,
                        .nic = nic->name,
                        .level = level[0] ? level : "PXB",
                        .read = read[0] ? read : "auto",
                        .able = !able || able[0] == '1',
                        .dmabuf = dmabufOf(v, gpu, nic),
                        .preAmpere = older && older[0] == '1'};
  pair->apart = tuttiTopologyDistance(v->t, gpu->node, nic->node);
  tuttiGdrAnswer answer = tuttiGdrDecide(v->t, tuttiMachinePath(v->m, "sys", sysfs), &q, pair->why);
  pair->answer = answer.write;
  pair->read = answer.read;
}

/* ---- the whole ------------------------------------------------------------------------------ */

tuttiResult_t tuttiViewMake(const tuttiMachine *m, tuttiView *v) {
  *v = (tuttiView){.m = m};
  const char *container = tuttiMachineAnswer(m, "host.container");
  v->container = container && strcmp(container, "none") != 0;
  TUTTI_TRY(tuttiMachineTopology(m, &v->t));
  viewGpus(v);
  TUTTI_TRY(viewNics(v));
  if (v->ngpus * v->nnics > 0)
    TUTTI_NEW(v->pairs, (size_t)v->ngpus * (size_t)v->nnics, "pairs of GPUs and NICs", NULL);
  for (int g = 0; g < v->ngpus; g++)
    for (int n = 0; n < v->nnics; n++)
      viewPair(v, &v->gpus[g], &v->nics[n], &v->pairs[g * v->nnics + n]);
  return tuttiSuccess;
}

void tuttiViewFree(tuttiView *v) {
  tuttiTopologyFree(v->t);
  tuttiFree(v->pairs);
  *v = (tuttiView){0};
}

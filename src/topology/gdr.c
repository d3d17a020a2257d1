#include "topology/gdr.h"

#include <limits.h>
#include <string.h>

#include "base/os.h"
#include "topology/internal.h"

/* Of a PCI function's configuration, of which only root can read more than the first 64 bytes. */
#define CONFIG_BYTES 4096
#define EXTENDED     0x100 /* where the extended capabilities begin */
#define ACS_ID       0x0d
#define ACS_CONTROL  6    /* from that capability's begin */
#define ACS_REDIRECT 0x0c /* of requests and completions between devices below */

#define CLAUSE(name, clause) clause,
const char *const tuttiGdrClauses[] = {TUTTI_GDR_ANSWERS(CLAUSE)};

/* The greatest distance that a level allows. NCCL, whose levels these are, has no NODE: its PHB is
 * one NUMA node. Of its old numbers those above 4 mean SYS, too. */
static tuttiDistance mostOf(const char *level) {
  static const char *const names[] = {"LOC", "PIX", "PXB", "PHB"};
  int i = 0;
  while (i < 4 && strcmp(level, names[i]) != 0 && level[0] != '0' + i)
    i++;
  return (tuttiDistance)(i < 3 ? TUTTI_DISTANCE_SELF + i : TUTTI_DISTANCE_NODE + i - 3);
}

/* What lets the NIC register the GPU's memory; NULL: nothing. nv_peer_mem is the older
 * nvidia_peermem. Which of its traces there are depends on versions and what a container shows. */
static const char *serverOf(const char *sysfs, const tuttiGdrQuestion *q) {
  static const char *const traces[][2] = {
      {"module/nvidia_peermem/version", "nvidia_peermem"},
      {"module/nv_peer_mem/version", "nv_peer_mem"},
      {"kernel/mm/memory_peers/nvidia-peermem/version", "nvidia_peermem"},
      {"kernel/mm/memory_peers/nv_mem/version", "the memory peer nv_mem"},
      {"kernel/mm/memory_peers/nv_mem_nc/version", "the memory peer nv_mem_nc"}};
  char version[64];
  for (size_t i = 0; q->able && !q->dmabuf && i < sizeof traces / sizeof *traces; i++)
    if (tuttiReadText(sysfs, traces[i][0], version, sizeof version)) return traces[i][1];
  return q->able && q->dmabuf ? "dma-buf" : NULL;
}

static bool readFunction(const char *sysfs, const tuttiNode *n, const char *file, char *buf,
                         size_t size) {
  char dir[PATH_MAX], name[TUTTI_BUS_ID_TEXT];
  tuttiBusIdText(n->busId, name, sizeof name);
  return snprintf(dir, sizeof dir, "%s/bus/pci/devices/%s", sysfs, name) < (int)sizeof dir &&
         tuttiReadText(dir, file, buf, size);
}

/* Whether a bridge sends what devices below it have for each other up to the root complex: 1 or 0;
 * -1 if this process may not know. */
static int redirects(const char *sysfs, const tuttiNode *bridge) {
  char config[CONFIG_BYTES + 1] = {0};
  int known = -1;
  (void)readFunction(sysfs, bridge, "config", config, sizeof config);
  for (int at = EXTENDED, next; at >= EXTENDED && at <= CONFIG_BYTES - 8; at = next) {
    uint32_t head; /* id, version, place of the next one, which must lie behind: no circles */
    memcpy(&head, config + at, sizeof head);
    if (head != 0) known = 0;
    if ((head & 0xffff) == ACS_ID) return (config[at + ACS_CONTROL] & ACS_REDIRECT) != 0;
    next = (int)(head >> 20) > at ? (int)(head >> 20) : 0;
  }
  return known;
}

/* Says in `detour` what makes traffic of the two go through the root complex although it need not,
 * and how that is mended; "" if nothing does. *unread: it may be so, but only root can see. */
static void findDetour(const tuttiTopology *t, const char *sysfs, int gpu, int nic, char *detour,
                       size_t size, bool *unread) {
  char type[32];
  bool below = tuttiTopologyDistance(t, gpu, nic) <= TUTTI_DISTANCE_PXB;
  /* Then the NIC's addresses mean something to the IOMMU alone; "identity" would let them pass. */
  if (readFunction(sysfs, &t->nodes[nic], "iommu_group/type", type, sizeof type) &&
      strncmp(type, "DMA", 3) == 0)
    snprintf(detour, size,
             "the IOMMU translates (group type %s), through the CPU: boot with iommu=pt", type);
  for (int a = gpu, b = nic; below && a != b && detour[0] == '\0';) {
    int *later = a > b ? &a : &b; /* see tuttiTopologyDistance */
    const tuttiNode *n = &t->nodes[*later];
    *later = n->parent;
    int up = n->class_ >> 8 == TUTTI_PCI_BRIDGE ? redirects(sysfs, n) : 0;
    *unread |= up < 0;
    if (up > 0)
      snprintf(
          detour, size,
          "ACS of the bridge %s redirects to the CPU: switch it off in the BIOS or by setpci -s "
          "%s ECAP_ACS+6.w=0",
          n->name, n->name);
  }
}

/* What decides, of one GPU and one NIC. */
typedef struct {
  const tuttiGdrQuestion *question;
  const char *server; /* see serverOf */
  tuttiDistance most; /* that they may be apart */
  bool known;         /* both are on the PCI tree; where not, the rest is not set */
  bool flat;          /* the GPU hangs on the root complex itself */
  tuttiDistance apart;
  char detour[256]; /* see findDetour */
  bool unread;
  bool crowded; /* the GPU shares PCI with others: there are some, and no NVLinks to them */
} gdrFacts;

static bool isCrowded(const tuttiTopology *t, int gpu) {
  int gpus = 0;
  for (int i = 0; i < t->count; i++) {
    if (t->nodes[i].kind == tuttiNodeNvlink && t->nodes[i].parent == gpu) return false;
    gpus += t->nodes[i].kind == tuttiNodeGpu;
  }
  return gpus > 1;
}

static void collectFacts(const tuttiTopology *t, const char *sysfs, const char *gpuBus,
                         const tuttiGdrQuestion *q, gdrFacts *f) {
  int gpu = tuttiTopologyFind(t, gpuBus), nic = tuttiTopologyFind(t, q->nic);
  *f = (gdrFacts){.question = q, .server = serverOf(sysfs, q), .most = mostOf(q->level)};
  f->known = gpu >= 0 && nic >= 0 && t->nodes[nic].busId != 0;
  if (!f->known) return;
  f->flat = t->nodes[t->nodes[gpu].parent].kind == tuttiNodeHostBridge;
  f->apart = tuttiTopologyDistance(t, gpu, nic);
  f->crowded = isCrowded(t, gpu);
  findDetour(t, sysfs, gpu, nic, f->detour, sizeof f->detour, &f->unread);
}

static tuttiGdr judge(const gdrFacts *f) {
  if (!f->known && f->most < TUTTI_DISTANCE_SYS) return TUTTI_GDR_NO_PATH;
  if (!f->server) return TUTTI_GDR_NO_DRIVER;
  if (!f->known) return TUTTI_GDR_YES; /* however far that is */
  if (f->apart > f->most) return TUTTI_GDR_FAR;
  if (f->detour[0] != '\0' && f->most < TUTTI_DISTANCE_PHB) return TUTTI_GDR_DETOUR;
  return TUTTI_GDR_YES;
}

/* Why what is sent is staged although the NIC could read it; NULL: it is not. A write is gone when
 * it has left, but a read waits for its answer, so a long way costs it more. Across sockets that is
 * so on any host; older GPUs that do all of their traffic over PCI are slow to answer, says NCCL,
 * whose rule that is (ncclTopoCheckGdr). */
static const char *stagesSends(const gdrFacts *f) {
  const tuttiGdrQuestion *q = f->question;
  if (strcmp(q->read, "0") == 0) return "TUTTI_NET_GDR_READ=0";
  if (strcmp(q->read, "1") == 0 || !f->known) return NULL;
  if (f->apart == TUTTI_DISTANCE_SYS)
    return "NICs are slow to read across sockets (TUTTI_NET_GDR_READ=1 lets them)";
  if (q->preAmpere && f->crowded)
    return "NICs are slow to read this GPU, which has no NVLinks (TUTTI_NET_GDR_READ=1 lets them)";
  return NULL;
}

/* What stands in the way, and what to do about it, where the answer is no. */
static const char *obstacle(const gdrFacts *f, tuttiGdr answer) {
  switch (answer) {
  case TUTTI_GDR_NO_PATH:
    return "no PCI path between them in sysfs (software? hidden /sys?); see TUTTI_TOPO_FILE";
  case TUTTI_GDR_NO_DRIVER:
    if (!f->question->able) return "this model of GPU does not support it";
    return "no dma-buf (open kernel modules of the NVIDIA driver, Linux 5.12, rdma-core "
           "34) and no module in its place: modprobe nvidia-peermem";
  case TUTTI_GDR_FAR:
    if (!f->flat) return "use a nearer NIC (TUTTI_IB_HCA), or raise the level";
    return "show the PCIe switches that a virtual machine hides in TUTTI_TOPO_FILE, or raise the "
           "level";
  default:
    return f->detour;
  }
}

tuttiGdrAnswer tuttiGdrDecide(const tuttiTopology *t, const char *sysfs, const tuttiGdrQuestion *q,
                              char why[TUTTI_GDR_SENTENCE]) {
  char bus[TUTTI_BUS_ID_TEXT];
  gdrFacts f;
  tuttiBusIdText(q->gpu, bus, sizeof bus);
  collectFacts(t, sysfs, bus, q, &f);
  tuttiGdr answer = judge(&f);
  const char *staged = answer == TUTTI_GDR_YES ? stagesSends(&f) : NULL;
  snprintf(why, TUTTI_GDR_SENTENCE,
           "%sGPUDirect RDMA from %.15s to GPU %s, distance %s, TUTTI_NET_GDR_LEVEL=%.8s: ",
           answer == TUTTI_GDR_YES ? "" : "no ", q->nic, bus,
           f.known ? tuttiDistanceTexts[f.apart] : "unknown", q->level);
  if (answer != TUTTI_GDR_YES)
    tuttiAppend(why, TUTTI_GDR_SENTENCE, "%s", obstacle(&f, answer));
  else
    tuttiAppend(why, TUTTI_GDR_SENTENCE, "by %s%s%s%s", f.server,
                f.detour[0] ? ", but slowly: " : "", f.detour,
                f.unread ? ", unless ACS redirects it, which only root can see" : "");
  if (staged) tuttiAppend(why, TUTTI_GDR_SENTENCE, "; what is sent is staged: %s", staged);
  return (tuttiGdrAnswer){.write = answer, .read = staged ? TUTTI_GDR_NO_READ : answer};
}

const char *tuttiGdrReason(const char *why) {
  const char *colon = strstr(why, ": "); /* those of bus ids have no space behind them */
  return colon ? colon + 2 : why;
}

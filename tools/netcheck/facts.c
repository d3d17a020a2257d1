/* What a communicator knows of its path, and a host of its devices: asked of the library. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "comm/handle.h"
#include "netcheck/netcheck.h"
#include "socket/socket.h"
#include "topology/topology.h"
#include "transport/ib/wire.h"

#ifdef TUTTI_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

#define COPY_BYTES ((size_t)32 << 20)

/* ---- rails ----------------------------------------------------------------------------------- */

static bool isIb(const tuttiPeer *peer, tuttiIbHandle *h) {
  memcpy(h, peer->net, sizeof *h);
  return strcmp(peer->netName, "IB") == 0 && tuttiIbPortsCheck(h->ports, h->nports) == NULL;
}

static bool isKnown(const netRails *rails, const uint8_t port[2]) {
  for (int i = 0; i < rails->n; i++)
    if (rails->rails[i].port[0] == port[0] && rails->rails[i].port[1] == port[1]) return true;
  return false;
}

/* `side`: which of the two ranks this one is; the pairs are those from rank 0 to rank 1. */
static void takePairs(const tuttiIbHandle ranks[2], const tuttiIbPair *pairs, int n, int side,
                      netRails *rails) {
  for (int i = 0; i < n && rails->n < NETCHECK_RAILS; i++) {
    const uint8_t port[2] = {pairs[i].port[side], pairs[i].port[!side]};
    if (isKnown(rails, port)) continue;
    for (int k = 0; k < 2; k++) {
      const tuttiIbPort *p = &ranks[k == 0 ? side : !side].ports[port[k]];
      rails->rails[rails->n].port[k] = port[k];
      rails->rails[rails->n].down[k] = !p->up;
      snprintf(rails->rails[rails->n].name[k], NETCHECK_NIC, "%.15s:%u", p->device, p->port);
    }
    rails->n++;
  }
}

bool netRailsFind(tuttiComm_t comm, int side, netRails *rails) {
  tuttiIbHandle ranks[2], up[2];
  tuttiIbPair pairs[NETCHECK_RAILS];
  TUTTI_HELD tuttiCommunicator *c = NULL;
  *rails = (netRails){0};
  if (tuttiHandleEnter(comm, __func__, &c) != tuttiSuccess) return false;
  bool both[2] = {isIb(&c->wireup.peers[0], &ranks[0]), isIb(&c->wireup.peers[1], &ranks[1])};
  rails->rdma = both[0] || both[1];
  if (!both[0] || !both[1]) return true;
  memcpy(up, ranks, sizeof up);
  for (int r = 0; r < 2; r++)
    for (int p = 0; p < up[r].nports; p++) {
      up[r].ports[p].up = 1;
      up[r].ports[p].gdr = TUTTI_GDR_NOT_ASKED;
    }
  int n = tuttiIbPairsChoose(&up[0], &up[1], 0, tuttiIbPairsFull(&up[0], &up[1]), pairs);
  takePairs(ranks, pairs, n, side, rails);
  return true;
}

/* The line rate that both ports have, in GB/s. */
static double lineRate(const tuttiPeer *mine, const tuttiPeer *theirs) {
  tuttiIbHandle a, b;
  if (!isIb(mine, &a) || !isIb(theirs, &b)) return 0;
  return (double)(a.megabits < b.megabits ? a.megabits : b.megabits) / 8000;
}

/* A rank uses the port and no other. */
static bool usesOnly(const tuttiPeer *peer, const char *hca) {
  tuttiIbHandle h;
  char name[NETCHECK_NIC];
  if (!isIb(peer, &h) || h.nports != 1) return false;
  snprintf(name, sizeof name, "%.15s:%u", h.ports[0].device, h.ports[0].port);
  return strcmp(name, hca) == 0;
}

bool netRailDescribe(netRail *rail, bool rdma) {
  TUTTI_HELD tuttiCommunicator *c = NULL;
  netRailReport *report = rail->report;
  if (tuttiHandleEnter(rail->comm, __func__, &c) != tuttiSuccess) return false;
  const tuttiPeer *mine = &c->wireup.peers[rail->side], *theirs = &c->wireup.peers[!rail->side];
  tuttiPath path = c->wireup.paths[!rail->side];
  int turned = tuttiPathTurned(mine, theirs);
  report->gpu = tuttiPeerGpu(mine);
  tuttiPathText(&path, mine, theirs, report->why);
  if (path.nrails[turned] > 0 && !(usesOnly(mine, rail->hca[0]) && usesOnly(theirs, rail->hca[1])))
    return false;
  if (path.nrails[turned] > 0) { /* by the number that the port has where all are used */
    tuttiRail only = path.rails[turned][0];
    report->line = lineRate(mine, theirs);
    report->worse = report->gpu >= 0 && !tuttiRailGdr(&only);
    only.port[0] = (uint8_t)rail->ports[0];
    tuttiPathOverRail(&path, mine, theirs, &only);
  } else {
    report->worse = rdma;
  }
  tuttiPathVia(&path, mine, theirs, report->via);
  return true;
}

/* ---- devices of this host -------------------------------------------------------------------- */

void netInterface(char name[NETCHECK_NIC]) {
  tuttiInterface found[TUTTI_MAX_INTERFACES];
  int n = 0;
  snprintf(name, NETCHECK_NIC, "?");
  if (tuttiInterfaces(found, TUTTI_MAX_INTERFACES, &n) == tuttiSuccess && n > 0)
    snprintf(name, NETCHECK_NIC, "%s", found[0].name);
}

/* The node of a NIC; NULL: sysfs does not tell. */
static const tuttiNode *nodeOf(const char *nic, const tuttiTopology **t) {
  char device[NETCHECK_NIC];
  snprintf(device, sizeof device, "%.*s", (int)strcspn(nic, ":"), nic);
  if (tuttiTopologyHost(true, t) != tuttiSuccess) return NULL;
  int at = tuttiTopologyFind(*t, device);
  return at >= 0 ? &(*t)->nodes[at] : NULL;
}

double netInterfaceRate(const char *name) {
  const tuttiTopology *t;
  const tuttiNode *node = nodeOf(name, &t);
  return node ? (double)node->linkGBs : 0;
}

double netPcieRate(const char *nic) {
  const tuttiTopology *t;
  const tuttiNode *node = nodeOf(nic, &t);
  double least = 0;
  for (int at = node ? node->parent : -1; at >= 0; at = t->nodes[at].parent) {
    const tuttiNode *up = &t->nodes[at];
    bool carries = up->kind == tuttiNodePci || up->kind == tuttiNodeSwitch;
    if (carries && up->linkGBs > 0 && (least == 0 || (double)up->linkGBs < least))
      least = (double)up->linkGBs;
  }
  return least;
}

#ifdef TUTTI_HAVE_CUDA

int netGpuNear(const char *nic) {
  const tuttiTopology *t;
  const tuttiNode *node = nodeOf(nic, &t);
  int gpus = 0, best = 0;
  tuttiDistance nearest = TUTTI_DISTANCE_COUNT;
  if (!node || cudaGetDeviceCount(&gpus) != cudaSuccess) return 0;
  for (int g = 0; g < gpus; g++) {
    char bus[TUTTI_BUS_ID_TEXT], name[TUTTI_BUS_ID_TEXT];
    uint64_t id;
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, g) != cudaSuccess || !tuttiBusIdParse(bus, &id))
      continue;
    int at = tuttiTopologyFind(t, tuttiBusIdText(id, name, sizeof name));
    tuttiDistance d =
        at >= 0 ? tuttiTopologyDistance(t, at, (int)(node - t->nodes)) : TUTTI_DISTANCE_COUNT;
    if (d >= nearest) continue;
    nearest = d;
    best = g;
  }
  return best;
}

#else

int netGpuNear(const char *nic) {
  (void)nic;
  return 0;
}

#endif

/* By the thread's own clock: others that use the core do not make it slower. */
static double ownSeconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double netCopyRate(void) {
  char *from = malloc(2 * COPY_BYTES);
  double best = 0;
  if (!from) return 0;
  memset(from, 1, 2 * COPY_BYTES);
  for (int i = 0; i < 3; i++) {
    double begin = ownSeconds();
    memcpy(from + COPY_BYTES, from, COPY_BYTES);
    __asm__ __volatile__("" ::"r"(from) : "memory"); /* nobody reads the copy */
    double rate = (double)COPY_BYTES * 1e-9 / (ownSeconds() - begin + 1e-9);
    if (rate > best) best = rate;
  }
  free(from);
  return best;
}

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "topo.h"
#include "transport/ib/wire.h"

/* The place of the n-th GPU among the nodes; -1: there are fewer. */
static int findGpu(const tuttiTopology *t, int n) {
  for (int i = 0; i < t->count; i++)
    if (t->nodes[i].kind == tuttiNodeGpu && n-- == 0) return i;
  return -1;
}

int tuttiTopoGpus(const tuttiTopology *t) {
  int n = 0;
  while (findGpu(t, n) >= 0)
    n++;
  return n;
}

/* Ports for the NICs of the host, one for each PCI function that is up, as they stand to a GPU. Of
 * the names of one function the last is the RDMA device's. */
static void addPorts(const tuttiTopology *t, int gpu, tuttiIbHandle *h) {
  for (int i = 0; i < t->count; i++) {
    const tuttiNode *n = &t->nodes[i];
    bool last = true;
    for (int j = i + 1; j < t->count; j++)
      last &= t->nodes[j].kind != tuttiNodeNic || t->nodes[j].busId != n->busId;
    if (n->kind != tuttiNodeNic || !n->up || !n->busId || !last || h->nports == TUTTI_IB_PORTS)
      continue;
    tuttiIbPort *p = &h->ports[h->nports++];
    *p = (tuttiIbPort){.port = 1,
                       .mtu = 5,
                       .up = 1,
                       .gdr = TUTTI_GDR_NOT_ASKED,
                       .megabits = (uint32_t)(n->linkGBs * 8000),
                       .distance = (uint8_t)tuttiTopologyDistance(t, gpu, i)};
    snprintf(p->device, sizeof p->device, "%.15s", n->name);
    h->megabits += p->megabits;
  }
  if (h->nports && !h->megabits) h->megabits = 1; /* the speed is not known */
}

void tuttiTopoPeer(const tuttiTopology *t, int host, int gpu, int rank, int nranks, tuttiPeer *p) {
  int node = findGpu(t, gpu);
  tuttiIbHandle h = {.socket.addresses.n = 1};
  h.socket.addresses.a[0].v4.sin_family = AF_INET;
  h.socket.addresses.a[0].v4.sin_port = 1;
  addPorts(t, node, &h);
  *p = (tuttiPeer){.rank = rank,
                   .nranks = nranks,
                   .device = tuttiDeviceCuda,
                   .cudaDevice = gpu,
                   .hostId = (uint64_t)host + 1,
                   .busId = t->nodes[node].busId,
                   .netName = "IB"};
  memcpy(p->net, &h, sizeof h);
  snprintf(p->host, sizeof p->host, "host%d", host);
}

/* What one host looks like: NUMA nodes, the PCI tree, NICs, GPUs and their NVLinks, from sysfs and
 * NVML or from an XML file. Pure data after detection. */
#ifndef TUTTI_TOPOLOGY_TOPOLOGY_H_
#define TUTTI_TOPOLOGY_TOPOLOGY_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/cdefs.h>

#include "tutti.h"

__BEGIN_DECLS

#define TUTTI_NODE_KINDS(X)                                                                        \
  X(System) X(Numa) X(Cpu) X(HostBridge) X(Switch) X(Pci) X(Nic) X(Gpu) X(Nvlink)
#define TUTTI_NODE_KIND(name) tuttiNode##name,
typedef enum { TUTTI_NODE_KINDS(TUTTI_NODE_KIND) tuttiNodeKindCount } tuttiNodeKind;
extern const char *const tuttiNodeKindNames[tuttiNodeKindCount];

/* How far apart two devices are, nearest first: the field's names, and what lies between them. */
#define TUTTI_DISTANCES(X)                                                                         \
  X(SELF, "one device")                                                                            \
  X(PIX, "at most one PCIe switch")                                                                \
  X(PXB, "several PCIe switches")                                                                  \
  X(PHB, "a host bridge of the CPU")                                                               \
  X(NODE, "two host bridges of one NUMA node")                                                     \
  X(SYS, "two CPU sockets")
#define TUTTI_DISTANCE(name, between) TUTTI_DISTANCE_##name,
typedef enum { TUTTI_DISTANCES(TUTTI_DISTANCE) TUTTI_DISTANCE_COUNT } tuttiDistance;
extern const char *const tuttiDistanceTexts[TUTTI_DISTANCE_COUNT]; /* "SYS (two CPU sockets)" */

typedef struct tuttiNode {
  tuttiNodeKind kind;
  int parent;     /* index in tuttiTopology.nodes; -1 for the system */
  char name[64];  /* "eth0", "mlx5_0", "numa0", "0000:3b:00.0" */
  uint64_t busId; /* domain << 24 | bus << 16 | device << 8 | function; 0 where there is none. Of
                     Nvlink, below its GPU: that of the other GPU, or 0 for NVSwitches */
  int class_;     /* PCI class */
  int vendor, device;
  int numa;           /* -1 unknown */
  float linkGBs;      /* PCI link or NIC speed, 0 unknown; a multiple of 0.001 */
  int up;             /* NIC: 1 with carrier, else 0 */
  int links, version; /* Nvlink: links that are up, and tenths of their version; 0 unknown */
  char driver[32];
  char cpus[128]; /* Numa: cpulist */
} tuttiNode;

typedef struct {
  tuttiNode *nodes; /* depth first: parents before children; nodes[0] is the system */
  int count, capacity;
  char host[64];
} tuttiTopology;

/* Detects the host whose sysfs is recorded at `sysfs`; NULL: this one, from /sys and NVML. What
 * cannot be read is left out; an unreadable tree gives one system, one NUMA node. */
tuttiResult_t tuttiTopologyDetect(const char *sysfs, tuttiTopology **out);
void tuttiTopologyFree(tuttiTopology *t);

/* XML in and out; the same topology comes back. Reading checks everything (sizes, depth, ranges,
 * unknown or hostile markup: no entities, at most 16 MiB, 65,536 nodes, depth 64) and fails with
 * tuttiInvalidArgument naming file and line. */
/* `asked`: see tuttiSaveFile. */
tuttiResult_t tuttiTopologyWriteXml(const tuttiTopology *t, const char *path, const char *asked);
tuttiResult_t tuttiTopologyParseXml(const char *text, size_t size, const char *name,
                                    tuttiTopology **out); /* see tuttiXmlParse */

tuttiDistance tuttiTopologyDistance(const tuttiTopology *t, int a, int b);
/* Between two GPUs: "NV18 (NVLink, NVSwitch)", or the text of their distance; returns buf. */
const char *tuttiTopologyPath(const tuttiTopology *t, uint64_t a, uint64_t b, char *buf, size_t n);
/* NVLinks join the GPU with an NVSwitch, or with every other GPU. */
bool tuttiTopologyLinked(const tuttiTopology *t, uint64_t gpu);
/* "0000:3b:00.0" to a bus id and back; a domain has 4 to 8 digits. False if `text` is else. */
bool tuttiBusIdParse(const char *text, uint64_t *busId);
#define TUTTI_BUS_ID_TEXT 32
const char *tuttiBusIdText(uint64_t busId, char *buf, size_t size);

/* Index of the node with this name, or -1. */
int tuttiTopologyFind(const tuttiTopology *t, const char *name);

/* The host of this process, valid for ever: detected, or read from TUTTI_TOPO_FILE, on first use,
 * and written to TUTTI_TOPO_DUMP_FILE if that is set. Ranks on host memory go without `nvlinks`:
 * NVML, which tells of them, takes its time, and leaves a thread and descriptors in the process. A
 * file has them anyhow, and one that is to be written asks for them. Thread-safe. */
tuttiResult_t tuttiTopologyHost(bool nvlinks, const tuttiTopology **out);

/* The tree as text for people. */
void tuttiTopologyPrint(const tuttiTopology *t, FILE *out);

__END_DECLS

#endif

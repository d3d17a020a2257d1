/* What one host looks like: NUMA nodes, the PCI tree, NICs (and, later, GPUs), from sysfs or from
 * an XML file. Pure data after detection. */
#ifndef TUTTI_TOPOLOGY_TOPOLOGY_H_
#define TUTTI_TOPOLOGY_TOPOLOGY_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/cdefs.h>

#include "topology/xml.h"
#include "tutti.h"

__BEGIN_DECLS

#define TUTTI_NODE_KINDS(X) X(System) X(Numa) X(Cpu) X(HostBridge) X(Switch) X(Pci) X(Nic) X(Gpu)
typedef enum {
#define X(name) tuttiNode##name,
  TUTTI_NODE_KINDS(X)
#undef X
      tuttiNodeKindCount
} tuttiNodeKind;
const char *tuttiNodeKindName(int kind);

/* How far apart two devices are, nearest first (the field's names: PIX, PXB, PHB, NODE, SYS). */
#define TUTTI_DISTANCES(X) X(SELF) X(PIX) X(PXB) X(PHB) X(NODE) X(SYS)
typedef enum {
#define X(name) TUTTI_DISTANCE_##name,
  TUTTI_DISTANCES(X)
#undef X
      TUTTI_DISTANCE_COUNT
} tuttiDistance;
const char *tuttiDistanceName(int distance);

typedef struct tuttiNode {
  tuttiNodeKind kind;
  int parent;      /* index in tuttiTopology.nodes; -1 for the system */
  char name[64];   /* "eth0", "mlx5_0", "numa0", "0000:3b:00.0" */
  uint64_t busId;  /* domain << 24 | bus << 16 | device << 8 | function; 0 where there is none */
  uint32_t class_; /* PCI class */
  uint32_t vendor, device;
  int numa;      /* -1 unknown */
  float linkGBs; /* PCI link or NIC speed, 0 unknown; a multiple of 0.001 */
  bool up;       /* NIC: carrier */
  char driver[32];
  char cpus[128]; /* Numa: cpulist */
} tuttiNode;

typedef struct {
  tuttiNode *nodes; /* depth first: parents before children; nodes[0] is the system */
  int count, capacity;
  char host[64];
} tuttiTopology;

/* Detects the host whose sysfs is at `sysfs` ("/sys", or a recorded tree in tests). What cannot be
 * read is left out; an unreadable tree gives one system, one NUMA node. */
tuttiResult_t tuttiTopologyDetect(const char *sysfs, tuttiTopology **out);
void tuttiTopologyFree(tuttiTopology *t);

/* XML in and out; the same topology comes back. Reading checks everything (sizes, depth, ranges,
 * unknown or hostile markup: no entities, at most 16 MiB, 65,536 nodes, depth 64) and fails with
 * tuttiInvalidArgument naming file and line. */
tuttiResult_t tuttiTopologyWriteXml(const tuttiTopology *t, const char *path);
tuttiResult_t tuttiTopologyParseXml(const char *text, size_t size, const char *name,
                                    tuttiTopology **out); /* from memory; `name` is for errors */
static inline tuttiResult_t tuttiTopologyReadXml(const char *path, tuttiTopology **out) {
  return tuttiTopologyParseXml(NULL, TUTTI_XML_FILE, path, out);
}

tuttiDistance tuttiTopologyDistance(const tuttiTopology *t, int a, int b);
/* Index of the node with this name, or -1. */
int tuttiTopologyFind(const tuttiTopology *t, const char *name);

/* Speed of the NIC `name` of this process's host in GB/s, 0 if it is unknown. The host's topology
 * is detected, or read from TUTTI_TOPO_FILE, on first use, and written to TUTTI_TOPO_DUMP_FILE if
 * that is set. Thread-safe. */
tuttiResult_t tuttiTopologyHostNic(const char *name, float *linkGBs);

/* The tree as text for people. */
void tuttiTopologyPrint(const tuttiTopology *t, FILE *out);

__END_DECLS

#endif

/* What the files that make topologies (detected, read) share, and those that make graphs (built,
 * read). */
#ifndef TUTTI_TOPOLOGY_INTERNAL_H_
#define TUTTI_TOPOLOGY_INTERNAL_H_

#include <sys/cdefs.h>

#include "topology/graph.h"
#include "topology/topology.h"

__BEGIN_DECLS

#define TUTTI_TOPOLOGY_MAX_NODES 65536

/* Appends a copy of *node; its index is then count - 1. */
tuttiResult_t tuttiTopologyAdd(tuttiTopology *t, const tuttiNode *node);

#define TUTTI_PCI_BRIDGE 0x0604 /* class and subclass */

/* Reads a small file of sysfs; false if it cannot be read or does not fit. */
bool tuttiReadText(const char *dir, const char *file, char *buf, size_t size);

/* "0000:3b:00.0" to a bus id and back; a domain has 4 to 8 digits. False if `text` is else. */
bool tuttiBusIdParse(const char *text, uint64_t *busId);
#define TUTTI_BUS_ID_TEXT 32
const char *tuttiBusIdText(uint64_t busId, char *buf, size_t size);

/* A graph whose hosts are numbered and whose rings and trees are all zero. Checks its arguments. */
tuttiResult_t tuttiGraphNew(const uint64_t *hostIds, int nranks, int nchannels, tuttiGraph **out);

/* Fills g->depth[channel]. *tree: false if the parents go round in a circle. All parents must be -1
 * or ranks. */
tuttiResult_t tuttiGraphMeasureTree(tuttiGraph *g, int channel, bool *tree);

__END_DECLS

#endif

/* Shared by the files that make topologies: detected (detect.c) and read (topology_xml.c). */
#ifndef TUTTI_TOPOLOGY_TOPOLOGY_INTERNAL_H_
#define TUTTI_TOPOLOGY_TOPOLOGY_INTERNAL_H_

#include <sys/cdefs.h>

#include "topology/topology.h"

__BEGIN_DECLS

#define TUTTI_TOPOLOGY_MAX_NODES 65536

/* An empty topology, host "". */
tuttiResult_t tuttiTopologyNew(tuttiTopology **out);
/* Appends a copy of *node; its index is then count - 1. */
tuttiResult_t tuttiTopologyAdd(tuttiTopology *t, const tuttiNode *node);

/* "0000:3b:00.0" to a bus id and back. False if `text` is anything else. */
bool tuttiBusIdParse(const char *text, uint64_t *busId);
#define TUTTI_BUS_ID_TEXT 32
const char *tuttiBusIdText(uint64_t busId, char *buf, size_t size);

__END_DECLS

#endif

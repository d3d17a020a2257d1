/* Shared by the files that make graphs: built (graph.c) and read (graph_xml.c). */
#ifndef TUTTI_TOPOLOGY_GRAPH_INTERNAL_H_
#define TUTTI_TOPOLOGY_GRAPH_INTERNAL_H_

#include <sys/cdefs.h>

#include "topology/graph.h"

__BEGIN_DECLS

/* A graph whose hosts are numbered and whose rings and trees are all zero. Checks its arguments. */
tuttiResult_t tuttiGraphNew(const uint64_t *hostIds, int nranks, int nchannels, tuttiGraph **out);

/* Fills g->depth[channel]. *tree: false if the parents go round in a circle. All parents must be -1
 * or ranks. */
tuttiResult_t tuttiGraphMeasureTree(tuttiGraph *g, int channel, bool *tree);

/* "parent/self/child,child", -1 where there is none; returns buf. */
#define TUTTI_GRAPH_TREE_TEXT 96
const char *tuttiGraphTreeText(const tuttiGraph *g, int channel, int rank, char *buf, size_t size);

__END_DECLS

#endif

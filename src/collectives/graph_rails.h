/* What the files of graphs share. */
#ifndef TUTTI_COLLECTIVES_GRAPH_RAILS_H_
#define TUTTI_COLLECTIVES_GRAPH_RAILS_H_

#include <stdbool.h>
#include <sys/cdefs.h>

#include "collectives/graph.h"

__BEGIN_DECLS

/* Fills the rings and parents of all channels, and their rails, of a graph over several hosts. */
tuttiResult_t tuttiGraphOverRails(tuttiGraph *g, const tuttiGraphRails *rails);

/* Parent of host h in the first or second tree over hosts, -1 at its root. */
int tuttiGraphHostParent(int h, int nhosts, bool second);

__END_DECLS

#endif

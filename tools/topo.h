/* What the files of `tutti topo` share. */
#ifndef TUTTI_TOOLS_TOPO_H_
#define TUTTI_TOOLS_TOPO_H_

#include <sys/cdefs.h>

#include "collectives/graph.h"

__BEGIN_DECLS

#define TUTTI_TOPO_PATHS 4096 /* most ranks, each with a record of more than a KiB */

/* Prints the paths from `rank` to all others of the graph, as init would find them in host memory
 * if every host were like this one and every rank a process; hosts[r] numbers the hosts. Nobody is
 * met. */
tuttiResult_t tuttiTopoPaths(const tuttiGraph *g, const uint64_t *hosts, int rank);

__END_DECLS

#endif

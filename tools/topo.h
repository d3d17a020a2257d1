/* What the files of `tutti topo` share. */
#ifndef TUTTI_TOOLS_TOPO_H_
#define TUTTI_TOOLS_TOPO_H_

#include <sys/cdefs.h>

#include "collectives/graph.h"
#include "wireup/rails.h"

__BEGIN_DECLS

#define TUTTI_TOPO_PATHS 4096 /* most ranks, each with a record of more than a KiB */

/* Prints the paths from `rank` to all others of the graph, as init would find them in host memory
 * if every host were like this one and every rank a process; hosts[r] numbers the hosts. Nobody is
 * met. */
tuttiResult_t tuttiTopoPaths(const tuttiGraph *g, const uint64_t *hosts, int rank);

/* GPUs of the topology. */
int tuttiTopoGpus(const tuttiTopology *t);
/* The record of a rank on the host's GPU number `gpu`, as far as rails are made from it: its NICs
 * are taken for RDMA devices without addresses. */
void tuttiTopoPeer(const tuttiTopology *t, int host, int gpu, int rank, int nranks, tuttiPeer *p);

/* Ranks on the GPUs of hosts that are all like one. */
typedef struct {
  tuttiPeer *peers; /* [nranks] */
  tuttiRails rails;
} tuttiTopoRails;

/* The ranks of each host, which come one after the other, are on its GPUs in their order. Fails if
 * these are too few, or there are no rails. To be freed also then. */
tuttiResult_t tuttiTopoRailed(const tuttiTopology *t, const uint64_t *hosts, int nranks,
                              tuttiTopoRails *out);
void tuttiTopoRailsFree(tuttiTopoRails *r);
/* "Rail 00 : host 0 mlx5_0" */
void tuttiTopoPrintRails(const tuttiTopoRails *r, const tuttiGraph *g);
/* Prints what each NIC sends and receives in collectives of so many bytes in all. */
tuttiResult_t tuttiTopoTraffic(const tuttiTopoRails *r, const tuttiGraph *g, size_t bytes);

__END_DECLS

#endif

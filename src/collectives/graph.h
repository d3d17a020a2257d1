/* Rings and double binary trees over the ranks of one communicator, per channel. Computed alike on
 * every rank from the same input; no communication. */
#ifndef TUTTI_COLLECTIVES_GRAPH_H_
#define TUTTI_COLLECTIVES_GRAPH_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/cdefs.h>

#include "collectives/schedule.h"
#include "tutti.h"

__BEGIN_DECLS

#define TUTTI_GRAPH_MAX_RANKS (1 << 20)
#define TUTTI_GRAPH_RAILS     16   /* most */
#define TUTTI_RAIL_NONE       0xff /* as a distance: the rank cannot use the rail */

/* What rings and trees that leave a host are built by: how far each rank is from the rails of its
 * host. A rail's number means the same part of the network on all hosts; of a host that has fewer
 * than others, some numbers mean the same NIC. */
typedef struct {
  int nrails;              /* 1 to TUTTI_GRAPH_RAILS */
  const uint8_t *distance; /* [nranks * nrails], by rank: less is nearer */
} tuttiGraphRails;

typedef struct {
  int nranks, nchannels, nhosts;
  int nrails;         /* 0: no matter of the graph */
  int perHost;        /* ranks of each host; 0: they have different numbers */
  int32_t *host;      /* [nranks]: dense host number of each rank, in order of first rank */
  int32_t *ring;      /* [nchannels * nranks]: rank at each position */
  int32_t *position;  /* [nchannels * nranks]: position of each rank */
  int32_t *parent;    /* [nchannels * nranks]: tree parent of each rank, -1 at the root */
  int32_t *depth;     /* [nchannels]: edges from the tree's root to its farthest rank */
  int32_t *treeRail;  /* [nchannels]: the rail of edges between hosts; -1: none in particular */
  int32_t *grid;      /* [2 * nranks]: for even and odd channels, host by host, ranks by place; with
                         perHost 0 just the ranks */
  int32_t *place;     /* [nranks]: where each rank is in the first of these */
  int32_t *placeRail; /* [nchannels * perHost]: the rail between ranks of the same place; -1: any */
  int32_t *entry; /* [nchannels * nhosts]: the rail by which the ring enters each host; as above */
} tuttiGraph;

/* hosts[r] tells hosts apart; any numbers of ranks per host. Rings visit each host once, its
 * ranks together, so that every host has one way in and one way out per channel; odd channels run
 * the other way round. Trees: even and odd channels are the two trees of a double binary tree over
 * hosts (Sanders, Speck, Träff: "Two-tree algorithms for full bandwidth broadcast, reduction and
 * scan", 2009), so that no host is an inner node in both; inside a host its ranks hang in a binary
 * tree below the one that talks to other hosts. No rank has more than TUTTI_MAX_FAN neighbours, and
 * none is an inner node of both trees.
 *
 * `rails`, of several hosts, or NULL: then channels take turns over the rails. Rings enter and
 * leave a host, and trees have the root of its ranks, at ranks that are nearest to the channel's
 * rail, the same rail at both ends; every so many channels as there are rails load all of them
 * alike (trees: twice as many, as each rail then carries both trees). */
tuttiResult_t tuttiGraphCreate(const uint64_t *hosts, int nranks, const tuttiGraphRails *rails,
                               int nchannels, tuttiGraph **out);
void tuttiGraphFree(tuttiGraph *g);

/* Hosts and places make a grid, which is what the hierarchical algorithm is for. */
static inline bool tuttiGraphIsGrid(const tuttiGraph *g) {
  return g->nhosts > 1 && g->perHost > 1;
}

/* The rail by which `from` sends to `to` on channel, where ring, tree or grid joins these ranks of
 * two hosts; -1: none in particular. */
int tuttiGraphRail(const tuttiGraph *g, int channel, int from, int to);

/* Numbers hosts in the order of their first ranks: fills host[nranks], returns how many in *nhosts.
 */
tuttiResult_t tuttiGraphHosts(const uint64_t *hostIds, int nranks, int32_t *host, int *nhosts);

/* Parent and children of `rank` in channel's tree turned so that `root` is its root (-1: as built).
 * Fills parent, nchildren, children of *s, and level, as built. */
void tuttiGraphTree(const tuttiGraph *g, int channel, int root, int rank, tuttiSchedule *s);

/* What the schedule of s->rank, with s->coll and s->algo, is told of the graph: its place in
 * channel's ring, in the grid that is its hierarchy, or in its tree, turned to `root` (-1: as
 * built). */
void tuttiGraphPlace(const tuttiGraph *g, int channel, int root, tuttiSchedule *s);

/* Rings and trees; not rails, so connections of a graph that is read take those of no channel.
 * `asked`: see tuttiSaveFile. */
tuttiResult_t tuttiGraphWriteXml(const tuttiGraph *g, const char *path, const char *asked);
/* Checks that it is for these ranks and hosts: rings are permutations, trees are trees within the
 * fan; tuttiInvalidArgument naming file and line otherwise. */
tuttiResult_t tuttiGraphParseXml(const char *text, size_t size, const char *name,
                                 const uint64_t *hostIds, int nranks, tuttiGraph **out);

/* A graph whose hosts are numbered and whose rings and trees are all zero. Checks its arguments. */
tuttiResult_t tuttiGraphNew(const uint64_t *hostIds, int nranks, int nchannels, tuttiGraph **out);

/* Fills g->depth[channel]; -1 if the parents go round in a circle. All must be -1 or ranks. */
tuttiResult_t tuttiGraphMeasureTree(tuttiGraph *g, int channel);

/* The log lines of `rank`: "Ring 00 : 0 1 2 3" and "Tree 00 : 1/2/3,4" (parent/self/children). */
void tuttiGraphLog(const tuttiGraph *g, int rank);
/* Rings and trees as text, and as one SVG picture with hosts as boxes. */
void tuttiGraphPrint(const tuttiGraph *g, FILE *out);
tuttiResult_t tuttiGraphWriteSvg(const tuttiGraph *g, const char *path, const char *asked);

__END_DECLS

#endif

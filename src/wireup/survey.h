/* The survey: what the planner needs of all paths of a communicator, in a few numbers. Made from
 * the peer records and the graph alone, so it is the same on every rank without another message;
 * and in time n, by pairs that every rank can name: neighbours in the ring, or in all rings where
 * these differ by rails, rank 0 with everyone, and all pairs of the few ranks for which there are
 * kernels between all pairs. It decides nothing (plan.h does). */
#ifndef TUTTI_WIREUP_SURVEY_H_
#define TUTTI_WIREUP_SURVEY_H_

#include <sys/cdefs.h>

#include "collectives/graph.h"
#include "transport/transport.h"

__BEGIN_DECLS

typedef struct {
  int nranks, nhosts, maxRanksPerHost;
  bool oversubscribed;               /* some ranks share fewer cores than they are */
  uint64_t cache;                    /* bytes: the least of the ranks'; 0: none knows */
  float intraLatencyUs, intraGBs;    /* worst path inside a host; 0: there is none */
  float interLatencyUs, interGBs;    /* worst path between hosts */
  bool oneFlow;                      /* every path between hosts has it, see tuttiPath */
  bool sharedFifos, direct, fetches; /* every path has it, see tuttiPath */
  tuttiRemoteCost fetch;             /* of copies that any path fetches; the least of all ranks' */
  bool network;                      /* some path is one */
  bool apart;                        /* networks alone join the ranks */
  bool throughHost;                  /* ... some two of a host without GPUDirect RDMA */
  bool gpu;                          /* ranks work on GPUs */
  /* Of GPUs, if these are no more than TUTTI_ALLPAIRS_MAX ranks; else none of it. */
  bool stores, staged; /* every path of all pairs has it */
  bool linked;         /* NVLinks join all of them */
  int sharers;         /* most ranks that share one of them */
  int blocks;          /* that a kernel may have on each of them; 0: any number */
} tuttiSurvey;

/* `paths` are those of `rank`. Fails if no transport connects two ranks that the graph joins, or
 * rank 0 and another. */
tuttiResult_t tuttiSurveyMake(const tuttiPeer *peers, const tuttiPath *paths, int rank,
                              const tuttiGraph *graph, tuttiSurvey *out);

__END_DECLS

#endif

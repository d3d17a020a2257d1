/* Wire-up: once, at the init of a communicator, its ranks learn of each other, and from that comes
 * everything that stays as it is: peer records, the table of paths, the graph, the survey, what the
 * planner is told. No messages but one all-gather; time and memory of a rank grow with the number
 * of ranks.
 *
 * In order: tuttiWireupStart, the device's `describe`, tuttiWireupMeet, tuttiWireupFinish; then
 * everything is read-only. Connections are made later, when they are first used. */
#ifndef TUTTI_WIREUP_WIREUP_H_
#define TUTTI_WIREUP_WIREUP_H_

#include <sys/cdefs.h>

#include "bootstrap/bootstrap.h"
#include "collectives/graph.h"
#include "collectives/planner.h"
#include "wireup/paths.h"
#include "wireup/pxn.h"
#include "wireup/rails.h"
#include "wireup/survey.h"

__BEGIN_DECLS

/* What the user wants of a communicator. */
typedef struct {
  tuttiDevice_t asked;
  tuttiDevice_t device;         /* that this rank has got of it; ranks must agree on both */
  int minChannels, maxChannels; /* 0: no wish */
} tuttiWireupWishes;

typedef struct {
  tuttiWireupWishes wishes;
  tuttiPeer *peers; /* [nranks] */
  tuttiPath *paths; /* [nranks] of this rank with each */
  tuttiRails rails; /* of all ranks */
  tuttiPxn pxn;
  tuttiGraph *graph;
  tuttiSurvey survey;
  tuttiPlanInput plan;
  char *graphText; /* of TUTTI_GRAPH_FILE, until there is a graph; or NULL */
  size_t graphSize;
} tuttiWireup;

/* Each goes on from where the one before has succeeded, in *w, which is zero at first. What
 * transports are to read of it goes into *v, of which the rest is set. */

/* Makes the tables and fills peers[v->rank] but for what the device and transports add. */
tuttiResult_t tuttiWireupStart(tuttiWireup *w, const tuttiWireupWishes *wishes, tuttiCommView *v);
/* Exchanges the peer records, which transports have completed, and checks them. */
tuttiResult_t tuttiWireupMeet(tuttiWireup *w, tuttiCommView *v, tuttiBootstrap *bootstrap,
                              tuttiWait wait);
/* Fills the rest from the peer records alone. */
tuttiResult_t tuttiWireupFinish(tuttiWireup *w, tuttiCommView *v);
/* Logs the graph and the paths of this rank's channels, at INFO. */
void tuttiWireupLog(const tuttiWireup *w, const tuttiCommView *v);
/* May be called at any time; nothing of it is in use any more. */
void tuttiWireupFree(tuttiWireup *w);

__END_DECLS

#endif

/* What a collective moves, found by going through the steps of all ranks' schedules: for tools and
 * tests that tell how it loads the rails. */
#ifndef TUTTI_COLLECTIVES_TRAFFIC_H_
#define TUTTI_COLLECTIVES_TRAFFIC_H_

#include <sys/cdefs.h>

#include "collectives/graph.h"

__BEGIN_DECLS

/* One collective over the first channels of a graph; without shared FIFOs. */
typedef struct {
  int coll, algo;
  int nchannels;
  int type;       /* of the elements, a tuttiDataType_t */
  uint64_t count; /* as in the signature */
  uint64_t chunk; /* elements, > 0 */
} tuttiTraffic;

/* Told of each message. */
typedef void (*tuttiTrafficSent)(void *context, int channel, int from, int to, uint64_t bytes);

/* `traffic->algo` must have a schedule for `traffic->coll`; one with a root has rank 0. */
void tuttiTrafficCount(const tuttiGraph *g, const tuttiTraffic *traffic, tuttiTrafficSent sent,
                       void *context);

__END_DECLS

#endif

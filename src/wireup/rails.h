/* Rails: what the NICs of GPU hosts are to the graph, found from the peer records alone, so alike
 * on every rank. A host's rails are the ports that are nearest to some rank of it; ports that are
 * farther from all, as those of storage, or much slower than others are none. One that is down is a
 * rail where it has an address and its rank no other that is as near. Rail k of one host is the one
 * that reaches rail k of the others best: in its subnet, or of the same name, or by turns.
 */
#ifndef TUTTI_WIREUP_RAILS_H_
#define TUTTI_WIREUP_RAILS_H_

#include <sys/cdefs.h>

#include "collectives/graph.h"
#include "transport/transport.h"

__BEGIN_DECLS

typedef struct {
  int nrails;                 /* of the host that has most; 0: no matter, see below */
  uint8_t *distance;          /* [nranks * nrails], as tuttiGraphRails has it */
  uint8_t *port;              /* [nranks * nrails]: in the rank's record; TUTTI_RAIL_NONE */
  tuttiChannelRail *channels; /* [nchannels] of this rank with its neighbours over the network */
  int nchannels;
} tuttiRails;

/* Fills *rails, which is zero, for ranks on the hosts hostIds[nranks]. None where ranks are not on
 * GPUs, where each has a host of its own, whose ports it uses all, or where some host has no port
 * that connections choose. To be freed also after a failure. */
tuttiResult_t tuttiRailsMake(const tuttiPeer *peers, const uint64_t *hostIds, int nranks,
                             tuttiRails *rails);
/* The rails of the connections that the graph makes for `rank`. */
tuttiResult_t tuttiRailsOfChannels(tuttiRails *rails, const tuttiPeer *peers,
                                   const tuttiGraph *graph, int rank);
void tuttiRailsFree(tuttiRails *rails);

__END_DECLS

#endif

/* What a transport or a network puts into its table where it has nothing to do, so that no entry is
 * NULL and no caller has to ask. Any thread; all but the void ones succeed. */
#ifndef TUTTI_TRANSPORT_STUB_H_
#define TUTTI_TRANSPORT_STUB_H_

#include <sys/cdefs.h>

#include "transport/net.h"

__BEGIN_DECLS

/* For tuttiTransport: nothing that peers need, that peers have, or that a connection holds. */
tuttiResult_t tuttiTransportNothingToPrepare(tuttiCommView *v, tuttiPeer *mine);
tuttiResult_t tuttiTransportNothingToAttach(tuttiCommView *v);
void tuttiTransportNothingToClose(tuttiCommView *v, tuttiConn *conn);
void tuttiTransportNothingToDetach(tuttiCommView *v);

/* For tuttiNet: nothing that all of its connections share, or that works by itself. */
tuttiResult_t tuttiNetNothingToOpen(tuttiCommView *v, tuttiPeer *mine, void **node, char *why);
int tuttiNetNoPorts(const tuttiPeer *peer, tuttiNetPort *ports);
int tuttiNetNoPortsToJoin(const tuttiPeer *a, int portOfA, const tuttiPeer *b, int portOfB,
                          tuttiRail *rail);
tuttiResult_t tuttiNetNoGpuToAttach(tuttiCommView *v, void *node, int npeers);
int tuttiNetNoRoom(void *node, int sends, int receives);
tuttiResult_t tuttiNetNoDataToTake(void *node, const tuttiConn *conn, uint8_t **data);
void tuttiNetNoDataToGive(void *node, const uint8_t *data);
bool tuttiNetReachesNothing(void *node, const void *addr, size_t bytes);
void *tuttiNetNothingToExpose(void *node, void *base, size_t bytes, tuttiRmaKeys *keys);
void tuttiNetNothingToWithdraw(void *node, void *exposed);
tuttiProxyState tuttiNetNothingToServe(void *node, tuttiProxyTurn *turn);
void tuttiNetNoTrouble(void *node, tuttiNetTrouble *out);
void tuttiNetNothingToClose(void *node);

__END_DECLS

#endif

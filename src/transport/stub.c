#include "transport/stub.h"

tuttiResult_t tuttiTransportNothingToPrepare(tuttiCommView *v, tuttiPeer *mine) {
  (void)v, (void)mine;
  return tuttiSuccess;
}

tuttiResult_t tuttiTransportNothingToAttach(tuttiCommView *v) {
  (void)v;
  return tuttiSuccess;
}

void tuttiTransportNothingToClose(tuttiCommView *v, tuttiConn *conn) {
  (void)v, (void)conn;
}

void tuttiTransportNothingToDetach(tuttiCommView *v) {
  (void)v;
}

tuttiResult_t tuttiNetNothingToOpen(tuttiCommView *v, tuttiPeer *mine, void **node, char *why) {
  (void)v, (void)mine, (void)node, (void)why;
  return tuttiSuccess;
}

int tuttiNetNoPorts(const tuttiPeer *peer, tuttiNetPort *ports) {
  (void)peer, (void)ports;
  return 0;
}

int tuttiNetNoPortsToJoin(const tuttiPeer *a, int portOfA, const tuttiPeer *b, int portOfB,
                          tuttiRail *rail) {
  (void)a, (void)portOfA, (void)b, (void)portOfB, (void)rail;
  return 0;
}

tuttiResult_t tuttiNetNoGpuToAttach(tuttiCommView *v, void *node, int npeers) {
  (void)node;
  return npeers > 0 && tuttiPeerGpu(&v->peers[v->rank]) >= 0
             ? tuttiNetWithoutGdr(v, TUTTI_NET_NO_NIC)
             : tuttiSuccess;
}

int tuttiNetNoRoom(void *node, int sends, int receives) {
  (void)node, (void)sends, (void)receives;
  return 0;
}

tuttiResult_t tuttiNetNoDataToTake(void *node, const tuttiConn *conn, uint8_t **data) {
  (void)node, (void)conn;
  *data = NULL;
  return tuttiSuccess;
}

void tuttiNetNoDataToGive(void *node, const uint8_t *data) {
  (void)node, (void)data;
}

bool tuttiNetReachesNothing(void *node, const void *addr, size_t bytes) {
  (void)node, (void)addr, (void)bytes;
  return false;
}

void *tuttiNetNothingToExpose(void *node, void *base, size_t bytes, tuttiRmaKeys *keys) {
  (void)node, (void)base, (void)bytes, (void)keys;
  return NULL;
}

void tuttiNetNothingToWithdraw(void *node, void *exposed) {
  (void)node, (void)exposed;
}

tuttiProxyState tuttiNetNothingToServe(void *node, tuttiProxyTurn *turn) {
  (void)node, (void)turn;
  return TUTTI_PROXY_IDLE;
}

void tuttiNetNoTrouble(void *node, tuttiNetTrouble *out) {
  (void)node, (void)out;
}

void tuttiNetNothingToClose(void *node) {
  (void)node;
}

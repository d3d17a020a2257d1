#include "transport/stub.h"

tuttiResult_t tuttiTransportNothingToPrepare(tuttiWires *w, tuttiPeer *mine) {
  (void)w, (void)mine;
  return tuttiSuccess;
}

tuttiResult_t tuttiTransportNothingToAttach(tuttiWires *w) {
  (void)w;
  return tuttiSuccess;
}

void tuttiTransportNothingToClose(tuttiWires *w, tuttiConn *conn) {
  (void)w, (void)conn;
}

void tuttiTransportNothingToDetach(tuttiWires *w) {
  (void)w;
}

tuttiResult_t tuttiNetNothingToOpen(tuttiWires *w, tuttiPeer *mine, void **node, char *why) {
  (void)w, (void)mine, (void)node, (void)why;
  return tuttiSuccess;
}

tuttiProxyState tuttiNetNothingToServe(void *node, tuttiProxyTurn *turn) {
  (void)node, (void)turn;
  return TUTTI_PROXY_IDLE;
}

void tuttiNetNothingToClose(void *node) {
  (void)node;
}

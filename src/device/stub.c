#include "device/stub.h"

const char *tuttiDeviceNothingToRefuse(const void *buffer) {
  (void)buffer;
  return NULL;
}

tuttiResult_t tuttiDeviceNothingToDescribe(int ordinal, tuttiWires *w, tuttiPeer *mine) {
  (void)ordinal, (void)w, (void)mine;
  return tuttiSuccess;
}

tuttiResult_t tuttiDeviceNothingToAttach(tuttiWires *w, tuttiTaskHost *host) {
  (void)w, (void)host;
  return tuttiSuccess;
}

void tuttiDeviceNothingToDetach(tuttiWires *w, tuttiTaskHost *host) {
  (void)w, (void)host;
}

tuttiResult_t tuttiDeviceNothingToDrain(tuttiTaskHost *host) {
  (void)host;
  return tuttiSuccess;
}

tuttiResult_t tuttiDeviceNothingToStage(tuttiTaskHost *host, void **memory, size_t *bytes,
                                        tuttiStream_t *stream) {
  (void)host;
  *memory = NULL;
  *bytes = 0;
  *stream = NULL;
  return tuttiSuccess;
}

tuttiResult_t tuttiDeviceNothingToSettle(tuttiTaskHost *host) {
  (void)host;
  return tuttiSuccess;
}

tuttiResult_t tuttiDeviceNothingToRegister(tuttiWires *w, tuttiTaskHost *host, void *buff,
                                           size_t size, void **window) {
  (void)w, (void)host, (void)buff, (void)size;
  *window = NULL;
  return tuttiSuccess;
}

void tuttiDeviceNothingToDeregister(void *window) {
  (void)window;
}

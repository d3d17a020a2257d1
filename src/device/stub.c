#include "device/stub.h"

const char *tuttiDeviceNothingToRefuse(const void *buffer) {
  (void)buffer;
  return NULL;
}

tuttiResult_t tuttiDeviceNothingToDescribe(int ordinal, tuttiCommView *v, tuttiPeer *mine) {
  (void)ordinal, (void)v, (void)mine;
  return tuttiSuccess;
}

tuttiResult_t tuttiDeviceNothingToAttach(tuttiCommView *v, tuttiTaskContext *context) {
  (void)v, (void)context;
  return tuttiSuccess;
}

void tuttiDeviceNothingToDetach(tuttiCommView *v, tuttiTaskContext *context) {
  (void)v, (void)context;
}

tuttiResult_t tuttiDeviceNothingToDrain(tuttiTaskContext *context) {
  (void)context;
  return tuttiSuccess;
}

tuttiResult_t tuttiDeviceNothingToStage(tuttiTaskContext *context, void **memory, size_t *bytes,
                                        tuttiStream_t *stream) {
  (void)context;
  *memory = NULL;
  *bytes = 0;
  *stream = NULL;
  return tuttiSuccess;
}

tuttiResult_t tuttiDeviceNothingStaged(tuttiTaskContext *context) {
  (void)context;
  return tuttiSuccess;
}

tuttiResult_t tuttiDeviceNothingToRegister(tuttiCommView *v, tuttiTaskContext *context, void *buff,
                                           size_t size, void **window) {
  (void)v, (void)context, (void)buff, (void)size;
  *window = NULL;
  return tuttiSuccess;
}

void tuttiDeviceNothingToDeregister(void *window) {
  (void)window;
}

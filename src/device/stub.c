#include "device/stub.h"

#include <stdio.h>

#include "base/error.h"

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
                                           size_t size, void **window, tuttiWindow_t *seen) {
  (void)v, (void)context, (void)buff, (void)size;
  *window = *seen = NULL;
  return tuttiSuccess;
}

void tuttiDeviceNothingToDeregister(void *window) {
  (void)window;
}

tuttiResult_t tuttiDeviceNothingToOpen(tuttiTaskContext *context, uint32_t number, void *base,
                                       size_t size, tuttiRmaKeys *keys) {
  (void)context, (void)number, (void)base, (void)size, (void)keys;
  return tuttiSuccess;
}

void tuttiDeviceNothingToShut(tuttiTaskContext *context, uint32_t number) {
  (void)context, (void)number;
}

void *tuttiDeviceNothingMapped(const void *window, int rank, char why[TUTTI_SENTENCE]) {
  (void)window, (void)rank;
  snprintf(why, TUTTI_SENTENCE, "the device maps no windows");
  return NULL;
}

bool tuttiDeviceNoKernels(const tuttiCommView *v, char why[TUTTI_SENTENCE]) {
  (void)v;
  snprintf(why, TUTTI_SENTENCE, "it is on host memory, where there are none");
  return false;
}

tuttiResult_t tuttiDeviceNoDevComm(tuttiCommView *v, tuttiTaskContext *context, size_t bytes,
                                   tuttiDevComm_t *out, void **made) {
  (void)context, (void)bytes, (void)out, (void)made;
  return TUTTI_FAIL(tuttiInternalError,
                    "memory for kernels has lost its way on rank %d; report this", v->rank);
}

tuttiResult_t tuttiDeviceNoPuts(tuttiTaskContext *context, const tuttiRmaPut *put,
                                tuttiStream_t stream) {
  (void)context, (void)stream;
  return TUTTI_FAIL(tuttiInternalError, "a put to rank %d has lost its way; report this",
                    put->peer);
}

tuttiResult_t tuttiDeviceNoSignals(tuttiTaskContext *context, const tuttiWaitSignalDesc_t *descs,
                                   int n, tuttiStream_t stream) {
  (void)context, (void)descs, (void)stream;
  return TUTTI_FAIL(tuttiInternalError, "a wait for %d signals has lost its way; report this", n);
}

/* What a device puts into its table where it has nothing to do, so that no entry is NULL and no
 * caller has to ask. Any thread; those that return a result succeed. */
#ifndef TUTTI_DEVICE_STUB_H_
#define TUTTI_DEVICE_STUB_H_

#include <sys/cdefs.h>

#include "device/device.h"

__BEGIN_DECLS

/* Every buffer will do. */
const char *tuttiDeviceNothingToRefuse(const void *buffer);
/* The peer record needs nothing, and the communicator no state of the device. */
tuttiResult_t tuttiDeviceNothingToDescribe(int ordinal, tuttiCommView *v, tuttiPeer *mine);
tuttiResult_t tuttiDeviceNothingToAttach(tuttiCommView *v, tuttiTaskContext *context);
void tuttiDeviceNothingToDetach(tuttiCommView *v, tuttiTaskContext *context);
/* What was run has ended when `run` returns. */
tuttiResult_t tuttiDeviceNothingToDrain(tuttiTaskContext *context);
/* Tasks work on any memory: *memory is NULL; and `run` waits. */
tuttiResult_t tuttiDeviceNothingToStage(tuttiTaskContext *context, void **memory, size_t *bytes,
                                        tuttiStream_t *stream);
tuttiResult_t tuttiDeviceNothingStaged(tuttiTaskContext *context);
/* Windows are of no use: *window is NULL. */
tuttiResult_t tuttiDeviceNothingToRegister(tuttiCommView *v, tuttiTaskContext *context, void *buff,
                                           size_t size, void **window, tuttiWindow_t *seen);
void tuttiDeviceNothingToDeregister(void *window);
tuttiResult_t tuttiDeviceNothingToOpen(tuttiTaskContext *context, uint32_t number, void *base,
                                       size_t size, tuttiRmaKeys *keys);
void tuttiDeviceNothingToShut(tuttiTaskContext *context, uint32_t number);
void *tuttiDeviceNothingMapped(const void *window, int rank, char why[TUTTI_SENTENCE]);
/* No kernels are served. */
bool tuttiDeviceNoKernels(const tuttiCommView *v, char why[TUTTI_SENTENCE]);
tuttiResult_t tuttiDeviceNoDevComm(tuttiCommView *v, tuttiTaskContext *context, size_t bytes,
                                   tuttiDevComm_t *out, void **made);
/* One-sided operations do not come this way: tuttiInternalError. */
tuttiResult_t tuttiDeviceNoPuts(tuttiTaskContext *context, const tuttiRmaPut *put,
                                tuttiStream_t stream);
tuttiResult_t tuttiDeviceNoSignals(tuttiTaskContext *context, const tuttiWaitSignalDesc_t *descs,
                                   int n, tuttiStream_t stream);

__END_DECLS

#endif

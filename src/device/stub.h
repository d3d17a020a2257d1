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
tuttiResult_t tuttiDeviceNothingToDescribe(int ordinal, tuttiWires *w, tuttiPeer *mine);
tuttiResult_t tuttiDeviceNothingToAttach(tuttiWires *w, tuttiTaskHost *host);
void tuttiDeviceNothingToDetach(tuttiWires *w, tuttiTaskHost *host);
/* What was run has ended when `run` returns. */
tuttiResult_t tuttiDeviceNothingToDrain(tuttiTaskHost *host);
/* Tasks work on any memory: *memory is NULL; and `run` waits. */
tuttiResult_t tuttiDeviceNothingToStage(tuttiTaskHost *host, void **memory, size_t *bytes,
                                        tuttiStream_t *stream);
tuttiResult_t tuttiDeviceNothingToSettle(tuttiTaskHost *host);
/* Windows are of no use: *window is NULL. */
tuttiResult_t tuttiDeviceNothingToRegister(tuttiWires *w, tuttiTaskHost *host, void *buff,
                                           size_t size, void **window);
void tuttiDeviceNothingToDeregister(void *window);

__END_DECLS

#endif

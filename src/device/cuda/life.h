/* A communicator's life on a GPU, from describing it to others to its end, and the thread that
 * listens to what its kernels report and ends them when it fails. Entries of tuttiDevice. */
#ifndef TUTTI_DEVICE_CUDA_LIFE_H_
#define TUTTI_DEVICE_CUDA_LIFE_H_

#include <sys/cdefs.h>

#include "collectives/task.h"
#include "transport/transport.h"

__BEGIN_DECLS

tuttiResult_t tuttiCudaDescribe(int ordinal, tuttiCommView *v, tuttiPeer *mine);
tuttiResult_t tuttiCudaAttach(tuttiCommView *v, tuttiTaskContext *context);
void tuttiCudaDetach(tuttiCommView *v, tuttiTaskContext *context);
tuttiResult_t tuttiCudaDrain(tuttiTaskContext *context);
tuttiResult_t tuttiCudaStage(tuttiTaskContext *context, void **memory, size_t *bytes,
                             tuttiStream_t *stream);
tuttiResult_t tuttiCudaWaitStaged(tuttiTaskContext *context);
tuttiResult_t tuttiCudaWindowRegister(tuttiCommView *v, tuttiTaskContext *context, void *buff,
                                      size_t size, void **window, tuttiWindow_t *seen);

__END_DECLS

#endif

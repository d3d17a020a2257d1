/* One-sided operations on GPUs: what a put, a signal and a wait for signals enqueue. For ranks
 * whose GPUs store into each other's memory, or by messages (relay.h). */
#ifndef TUTTI_DEVICE_CUDA_ONESIDED_H_
#define TUTTI_DEVICE_CUDA_ONESIDED_H_

#include <sys/cdefs.h>

#include "device/cuda/state.h"
#include "transport/rma.h"

__BEGIN_DECLS

/* Bytes to reserve for them behind the symmetric block. */
size_t tuttiCudaSignalBytes(const tuttiCommView *v);
/* On the current device, while no kernel of the communicator runs. */
tuttiResult_t tuttiCudaOneSidedInit(tuttiCuda *s, tuttiCommView *v);
/* Waits until all waits and the signals that are beside their streams have ended, but for those in
 * graphs, which s->graph or s->waits.captured tells of. The first failure of CUDA. */
cudaError_t tuttiCudaOneSidedAwait(const tuttiCuda *s);
/* Then; also after a failure. */
void tuttiCudaOneSidedClose(tuttiCuda *s);
/* What has been told of a wait since the last look, by the thread that listens to the kernels. */
void tuttiCudaSignalsHear(tuttiCuda *s);

/* Entries of tuttiDevice. */
tuttiResult_t tuttiCudaWindowOpen(tuttiTaskContext *context, uint32_t number, void *base,
                                  size_t size, tuttiRmaKeys *keys);
void tuttiCudaWindowClose(tuttiTaskContext *context, uint32_t number);
tuttiResult_t tuttiCudaPut(tuttiTaskContext *context, const tuttiRmaPut *put, tuttiStream_t stream);
tuttiResult_t tuttiCudaAwaitSignals(tuttiTaskContext *context, const tuttiWaitSignalDesc_t *descs,
                                    int n, tuttiStream_t stream);

__END_DECLS

#endif

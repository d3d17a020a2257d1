/* Launches on the user's streams, in the order that kernels of one communicator need, eager and
 * captured in graphs. */
#ifndef TUTTI_DEVICE_CUDA_LAUNCH_H_
#define TUTTI_DEVICE_CUDA_LAUNCH_H_

#include <sys/cdefs.h>

#include "device/cuda/state.h"

__BEGIN_DECLS

/* Stream `then` waits for what is on `first` so far. */
tuttiResult_t tuttiCudaOrder(tuttiCuda *s, cudaStream_t first, cudaStream_t then);
/* Enqueues the kernel of `plan` with s->args, or s->regions, on t's stream; nothing where nothing
 * is to be moved. */
tuttiResult_t tuttiCudaLaunch(tuttiCuda *s, const tuttiTask *t, const tuttiPlan *plan);
/* Enqueues a kernel that runs the n <= TUTTI_RINGTREE_TASKS schedules side by side, on the stream
 * of the first. */
tuttiResult_t tuttiCudaRunSchedules(tuttiCuda *s, const tuttiTask *tasks, int n);
/* Entries of tuttiDevice. */
tuttiResult_t tuttiCudaMark(tuttiTaskContext *context, tuttiStream_t stream, void *event);
tuttiResult_t tuttiCudaCopy(tuttiTaskContext *context, void *to, tuttiStream_t receiver,
                            const void *from, size_t bytes, tuttiStream_t stream);

__END_DECLS

#endif

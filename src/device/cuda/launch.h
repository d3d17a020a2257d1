/* Launches on the user's streams, in the order that kernels of one communicator need, eager and
 * captured in graphs. */
#ifndef TUTTI_DEVICE_CUDA_LAUNCH_H_
#define TUTTI_DEVICE_CUDA_LAUNCH_H_

#include <sys/cdefs.h>

#include "device/cuda/state.h"

__BEGIN_DECLS

/* Stream `then` waits for what is on `first` so far. */
tuttiResult_t tuttiCudaOrder(tuttiCuda *s, cudaStream_t first, cudaStream_t then);
/* Around each launch on the stream. Kernels of one communicator follow each other, whatever streams
 * they are on: they share FIFOs. So they do within a graph; a graph is ordered by its launch. */
tuttiResult_t tuttiCudaBegin(tuttiCuda *s, cudaStream_t stream, bool *capturing);
tuttiResult_t tuttiCudaEnd(tuttiCuda *s, cudaStream_t stream, bool capturing);
/* The capture that a stream is in. */
typedef struct {
  uint64_t id;
  struct CUgraph_st *graph;
  struct CUgraphNode_st *const *ends; /* [nends] what comes next on the stream follows them */
  size_t nends;
} tuttiCudaCapture;
tuttiResult_t tuttiCudaCaptureOf(cudaStream_t stream, tuttiCudaCapture *out);
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

#ifdef TUTTI_HAVE_CUDA

#include "device/cuda/launch.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "base/cuda.h"
#include "base/error.h"

tuttiResult_t tuttiCudaOrder(tuttiCuda *s, cudaStream_t first, cudaStream_t then) {
  if (first == then) return tuttiSuccess;
  CUDA_TRY(cudaEventRecord(s->joined, first));
  return CUDA_CHECK(cudaStreamWaitEvent(then, s->joined, 0));
}

/* *id tells captures apart. The runtime's call is not the same in all versions. */
static tuttiResult_t captureId(cudaStream_t stream, uint64_t *id) {
  enum cudaStreamCaptureStatus status;
  CUresult (*get)(CUstream stream, CUstreamCaptureStatus * status, cuuint64_t * id, CUgraph * graph,
                  const CUgraphNode **nodes, size_t *n) = tuttiCudaDriver("cuStreamGetCaptureInfo");
  if (get && get(stream, (CUstreamCaptureStatus *)&status, id, NULL, NULL, NULL) == CUDA_SUCCESS)
    return tuttiSuccess;
  return TUTTI_FAIL(tuttiUnhandledCudaError, "cuStreamGetCaptureInfo tells no id of a capture");
}

/* Around each launch on the stream. Kernels of one communicator follow each other, whatever streams
 * they are on: they share FIFOs. So they do within a graph; a graph is ordered by its launch. */
static tuttiResult_t begin(tuttiCuda *s, cudaStream_t stream, bool *capturing) {
  enum cudaStreamCaptureStatus status;
  uint64_t before = s->graph;
  CUDA_TRY(cudaStreamIsCapturing(stream, &status));
  *capturing = status != cudaStreamCaptureStatusNone;
  if (*capturing) TUTTI_TRY(captureId(stream, &s->graph));
  bool another = s->last[*capturing] != stream || stream == cudaStreamPerThread;
  if (another && (!*capturing || before == s->graph))
    CUDA_TRY(cudaStreamWaitEvent(stream, s->done[*capturing], 0)); /* never recorded: does not */
  return tuttiSuccess;
}

static tuttiResult_t end(tuttiCuda *s, cudaStream_t stream, bool capturing) {
  s->last[capturing] = stream;
  s->launched = true;
  /* Now, for the user may have destroyed the stream when another one has to wait. */
  return CUDA_CHECK(cudaEventRecord(s->done[capturing], stream));
}

tuttiResult_t tuttiCudaMark(tuttiTaskContext *context, tuttiStream_t stream, void *event) {
  tuttiCuda *s = context->device;
  bool capturing;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  TUTTI_TRY(tuttiCudaSwitch(s->device, &before)); /* whose stream NULL may be meant */
  TUTTI_TRY(begin(s, stream, &capturing));
  CUDA_TRY(cudaEventRecord(event, stream));
  return end(s, stream, capturing);
}

tuttiResult_t tuttiCudaCopy(tuttiTaskContext *context, void *to, tuttiStream_t receiver,
                            const void *from, size_t bytes, tuttiStream_t stream) {
  tuttiCuda *s = context->device;
  bool capturing;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  TUTTI_TRY(tuttiCudaSwitch(s->device, &before)); /* whose stream NULL may be meant */
  TUTTI_TRY(tuttiCudaOrder(s, receiver, stream));
  TUTTI_TRY(begin(s, stream, &capturing));
  CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
  TUTTI_TRY(end(s, stream, capturing));
  return tuttiCudaOrder(s, stream, receiver);
}

tuttiResult_t tuttiCudaLaunch(tuttiCuda *s, const tuttiTask *t, const tuttiPlan *plan) {
  bool capturing, regions = plan->kernel == tuttiKernelRegions;
  tuttiDataType_t type = tuttiCollReduces(t->schedule.coll) ? t->type : tuttiInt64;
  const tuttiLaunchShape shape = {.nblocks = plan->nblocks,
                                  .nthreads = plan->nthreads,
                                  .mayBeEarly = s->mayBeEarly,
                                  .stream = t->stream};
  if (!regions && s->args.loops == 0) return tuttiSuccess;
  TUTTI_TRY(begin(s, t->stream, &capturing));
  CUDA_TRY((cudaError_t)(regions ? tuttiRegionsLaunch(&s->regions, type, &shape)
                                 : tuttiAllPairsLaunch(&s->args, type, plan->proto, &shape)));
  return end(s, t->stream, capturing);
}

tuttiResult_t tuttiCudaRunSchedules(tuttiCuda *s, const tuttiTask *tasks, int n) {
  bool capturing;
  if (n == 0) return tuttiSuccess;
  TUTTI_TRY(begin(s, tasks[0].stream, &capturing));
  TUTTI_TRY(tuttiCudaRingTreeLaunch(&s->ringTree, tasks, n, capturing));
  return end(s, tasks[0].stream, capturing);
}

#endif

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

/* The runtime's call is not the same in all versions. */
static tuttiResult_t captureInfo(cudaStream_t stream, cuuint64_t *id, CUgraph *graph,
                                 const CUgraphNode **ends, size_t *nends) {
  CUstreamCaptureStatus status;
  CUresult (*get)(CUstream stream, CUstreamCaptureStatus * status, cuuint64_t * id, CUgraph * graph,
                  const CUgraphNode **nodes, size_t *n) = tuttiCudaDriver("cuStreamGetCaptureInfo");
  if (get && get(stream, &status, id, graph, ends, nends) == CUDA_SUCCESS) return tuttiSuccess;
  return TUTTI_FAIL(tuttiUnhandledCudaError, "cuStreamGetCaptureInfo tells nothing of a capture");
}

tuttiResult_t tuttiCudaCaptureOf(cudaStream_t stream, tuttiCudaCapture *out) {
  return captureInfo(stream, &out->id, &out->graph, (const CUgraphNode **)&out->ends, &out->nends);
}

tuttiResult_t tuttiCudaBegin(tuttiCuda *s, cudaStream_t stream, bool *capturing) {
  enum cudaStreamCaptureStatus status;
  uint64_t before = s->graph;
  CUDA_TRY(cudaStreamIsCapturing(stream, &status));
  *capturing = status != cudaStreamCaptureStatusNone;
  if (*capturing) {
    /* Tells captures apart. Not asked for the nodes that the stream follows: of those with an edge
     * that carries data, as behind a programmatic event of the user's, CUDA tells only with it. */
    TUTTI_TRY(captureInfo(stream, &s->graph, NULL, NULL, NULL));
  }
  bool another = s->last[*capturing] != stream || stream == cudaStreamPerThread;
  if (another && (!*capturing || before == s->graph))
    CUDA_TRY(cudaStreamWaitEvent(stream, s->done[*capturing], 0)); /* never recorded: does not */
  return tuttiSuccess;
}

tuttiResult_t tuttiCudaEnd(tuttiCuda *s, cudaStream_t stream, bool capturing) {
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
  TUTTI_TRY(tuttiCudaBegin(s, stream, &capturing));
  CUDA_TRY(cudaEventRecord(event, stream));
  return tuttiCudaEnd(s, stream, capturing);
}

tuttiResult_t tuttiCudaCopy(tuttiTaskContext *context, void *to, tuttiStream_t receiver,
                            const void *from, size_t bytes, tuttiStream_t stream) {
  tuttiCuda *s = context->device;
  bool capturing;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  TUTTI_TRY(tuttiCudaSwitch(s->device, &before)); /* whose stream NULL may be meant */
  TUTTI_TRY(tuttiCudaOrder(s, receiver, stream));
  TUTTI_TRY(tuttiCudaBegin(s, stream, &capturing));
  CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
  TUTTI_TRY(tuttiCudaEnd(s, stream, capturing));
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
  TUTTI_TRY(tuttiCudaBegin(s, t->stream, &capturing));
  CUDA_TRY((cudaError_t)(regions ? tuttiRegionsLaunch(&s->regions, type, &shape)
                                 : tuttiAllPairsLaunch(&s->args, type, plan->proto, &shape)));
  return tuttiCudaEnd(s, t->stream, capturing);
}

tuttiResult_t tuttiCudaRunSchedules(tuttiCuda *s, const tuttiTask *tasks, int n) {
  bool capturing;
  if (n == 0) return tuttiSuccess;
  TUTTI_TRY(tuttiCudaBegin(s, tasks[0].stream, &capturing));
  TUTTI_TRY(tuttiCudaRingTreeLaunch(&s->ringTree, tasks, n, capturing));
  return tuttiCudaEnd(s, tasks[0].stream, capturing);
}

#endif

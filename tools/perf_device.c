/* The memory that perf measures on: the host's, or a GPU's with a stream and graphs. */
#include <stdlib.h>
#include <string.h>

#include "perf.h"

/* GPU(call of the CUDA runtime, what it does): true if it succeeds; a failure is told on stderr.
 * Builds without CUDA leave the call out: no perfDevice of theirs is a GPU. */
#ifdef TUTTI_HAVE_CUDA
#include <cuda_runtime_api.h>

static bool good(cudaError_t err, const char *what) {
  return err == cudaSuccess || PERF_FAIL("%s: %s\n", what, cudaGetErrorString(err));
}

static int countGpus(void) {
  int n = 0;
  return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

#define GPU(call, what) good(call, what)
#else
#define GPU(call, what) ((void)(what), false)

static int countGpus(void) {
  return 0;
}
#endif

bool perfDeviceOpen(perfDevice *d, tuttiDevice_t kind, int localRank) {
  int gpus = kind == tuttiDeviceHost ? 0 : countGpus();
  *d = (perfDevice){.cuda = gpus > 0};
  if (gpus == 0) return true; /* the library says why if a GPU was asked for */
  d->gpu = localRank % gpus;
  return perfDeviceEnter(d) &&
         GPU(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking), "cudaStreamCreate");
}

bool perfDeviceEnter(const perfDevice *d) {
  return !d->cuda || GPU(cudaSetDevice(d->gpu), "cudaSetDevice");
}

void perfDeviceClose(perfDevice *d) {
  perfGraphFree(d);
  if (d->stream) (void)GPU(cudaStreamDestroy(d->stream), "cudaStreamDestroy");
}

void *perfDeviceAlloc(const perfDevice *d, size_t bytes) {
  void *memory = NULL;
  if (!d->cuda && posix_memalign(&memory, 4096, bytes) != 0)
    (void)PERF_FAIL("no %zu bytes of host memory\n", bytes);
  if (!d->cuda) return memory;
  if (!GPU(cudaMalloc(&memory, bytes), "cudaMalloc")) return NULL;
  static uint32_t noise[1 << 20]; /* real data costs more energy than zeros */
  for (size_t i = 0; i < sizeof noise / sizeof *noise; i++)
    noise[i] = (uint32_t)(i + bytes) * 2654435761u >> 2;
  for (size_t at = 0; at < bytes; at += sizeof noise) {
    size_t n = bytes - at < sizeof noise ? bytes - at : sizeof noise;
    if (!perfDeviceCopy(d, (char *)memory + at, noise, n)) return NULL;
  }
  return memory;
}

void perfDeviceFree(const perfDevice *d, void *memory) {
  if (d->cuda)
    (void)GPU(cudaFree(memory), "cudaFree");
  else
    free(memory);
}

bool perfDeviceCopy(const perfDevice *d, void *to, const void *from, size_t bytes) {
  if (d->cuda) /* a copy waits for the stream with a lock held that other ranks of its GPU need */
    return perfDeviceSync(d) &&
           GPU(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, d->stream), "cudaMemcpy") &&
           perfDeviceSync(d);
  memcpy(to, from, bytes);
  return true;
}

bool perfDeviceSync(const perfDevice *d) {
  return !d->cuda || GPU(cudaStreamSynchronize(d->stream), "the GPU");
}

void perfGraphFree(perfDevice *d) {
  if (d->graph) (void)GPU(cudaGraphExecDestroy(d->graph), "cudaGraphExecDestroy");
  d->graph = NULL;
}

bool perfGraphBegin(perfDevice *d) {
  return d->cuda &&
         GPU(cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal), "capture");
}

bool perfGraphEnd(perfDevice *d) {
  struct CUgraph_st *graph = NULL;
  (void)graph; /* without CUDA */
  if (!d->cuda || !GPU(cudaStreamEndCapture(d->stream, &graph), "end of capture")) return false;
  perfGraphFree(d);
  bool done = GPU(cudaGraphInstantiate(&d->graph, graph, 0), "cudaGraphInstantiate") &&
              GPU(cudaGraphUpload(d->graph, d->stream), "cudaGraphUpload");
  return GPU(cudaGraphDestroy(graph), "cudaGraphDestroy") && done;
}

bool perfGraphRun(const perfDevice *d) {
  return d->cuda && GPU(cudaGraphLaunch(d->graph, d->stream), "cudaGraphLaunch");
}

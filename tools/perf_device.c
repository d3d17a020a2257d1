/* The memory that perf measures on: the host's, or a GPU's with a stream and graphs. */
#include <stdlib.h>
#include <string.h>

#include "perf.h"

static void *perfHostAlloc(size_t bytes) {
  void *memory = NULL;
  return posix_memalign(&memory, 4096, bytes) == 0 ? memory : NULL;
}

#ifdef TUTTI_HAVE_CUDA
#include <cuda_runtime_api.h>

static bool good(cudaError_t err, const char *what) {
  if (err == cudaSuccess) return true;
  fprintf(stderr, PERF_COMMAND ": %s: %s\n", what, cudaGetErrorString(err));
  return false;
}

/* Rank on this host, as launchers tell it; else the rank itself. */
static int localRank(int rank) {
  static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID",
                                      "MPI_LOCALRANKID"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const char *value = getenv(names[i]);
    if (value != NULL) return atoi(value);
  }
  return rank;
}

bool perfDeviceOpen(perfDevice *d, tuttiDevice_t kind, int rank) {
  int n = 0;
  *d = (perfDevice){0};
  if (kind == tuttiDeviceHost) return true;
  d->cuda = cudaGetDeviceCount(&n) == cudaSuccess && n > 0;
  if (!d->cuda) return true; /* the library says why if a GPU was asked for */
  return good(cudaSetDevice(localRank(rank) % n), "cudaSetDevice") &&
         good(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking), "cudaStreamCreate");
}

void perfDeviceClose(perfDevice *d) {
  perfGraphFree(d);
  if (d->stream) cudaStreamDestroy(d->stream);
}

void *perfDeviceAlloc(const perfDevice *d, size_t bytes) {
  void *memory = NULL;
  if (!d->cuda) return perfHostAlloc(bytes);
  if (!good(cudaMalloc(&memory, bytes), "cudaMalloc")) return NULL;
  static uint32_t noise[1 << 20]; /* real data costs more energy than zeros */
  for (size_t i = 0; i < sizeof noise / sizeof *noise; i++)
    noise[i] = (uint32_t)(i + bytes) * 2654435761u >> 2;
  for (size_t at = 0; at < bytes; at += sizeof noise) {
    size_t n = bytes - at < sizeof noise ? bytes - at : sizeof noise;
    if (!good(cudaMemcpyAsync((char *)memory + at, noise, n, cudaMemcpyHostToDevice, d->stream),
              "cudaMemcpy"))
      return NULL;
  }
  return perfDeviceSync(d) ? memory : NULL;
}

void perfDeviceFree(const perfDevice *d, void *memory) {
  if (d->cuda)
    cudaFree(memory);
  else
    free(memory);
}

bool perfDeviceCopy(const perfDevice *d, void *to, const void *from, size_t bytes) {
  if (d->cuda)
    return good(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, d->stream), "cudaMemcpy") &&
           perfDeviceSync(d);
  memcpy(to, from, bytes);
  return true;
}

bool perfDeviceSync(const perfDevice *d) {
  return !d->cuda || good(cudaStreamSynchronize(d->stream), "the GPU");
}

void perfGraphFree(perfDevice *d) {
  if (d->graph) cudaGraphExecDestroy(d->graph);
  d->graph = NULL;
}

bool perfGraphBegin(perfDevice *d) {
  return good(cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal), "capture");
}

bool perfGraphEnd(perfDevice *d) {
  cudaGraph_t graph;
  if (!good(cudaStreamEndCapture(d->stream, &graph), "end of capture")) return false;
  perfGraphFree(d);
  bool done = good(cudaGraphInstantiate(&d->graph, graph, 0), "cudaGraphInstantiate") &&
              good(cudaGraphUpload(d->graph, d->stream), "cudaGraphUpload");
  cudaGraphDestroy(graph);
  return done;
}

bool perfGraphRun(const perfDevice *d) {
  return good(cudaGraphLaunch(d->graph, d->stream), "cudaGraphLaunch");
}

#else

bool perfDeviceOpen(perfDevice *d, tuttiDevice_t kind, int rank) {
  (void)kind, (void)rank;
  *d = (perfDevice){0};
  return true;
}
void perfDeviceClose(perfDevice *d) {
  (void)d;
}
void *perfDeviceAlloc(const perfDevice *d, size_t bytes) {
  (void)d;
  return perfHostAlloc(bytes);
}
void perfDeviceFree(const perfDevice *d, void *memory) {
  (void)d;
  free(memory);
}
bool perfDeviceCopy(const perfDevice *d, void *to, const void *from, size_t bytes) {
  (void)d;
  memcpy(to, from, bytes);
  return true;
}
bool perfDeviceSync(const perfDevice *d) {
  (void)d;
  return true;
}
void perfGraphFree(perfDevice *d) {
  (void)d;
}
bool perfGraphBegin(perfDevice *d) {
  (void)d;
  return false;
}
bool perfGraphEnd(perfDevice *d) {
  (void)d;
  return false;
}
bool perfGraphRun(const perfDevice *d) {
  (void)d;
  return false;
}

#endif

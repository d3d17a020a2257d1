/* Which kernel runs, and its launch. */
#ifdef TUTTI_HAVE_CUDA

#include <cuda_runtime_api.h>

#include "kernels/allpairs.h"
#include "kernels/kernels.h"
#include "kernels/onesided.h"
#include "kernels/ringtree.h"

#define OF_TYPE(type, like) [tutti##type] = &tuttiKernels##like,
static const tuttiKernels *const kernels[tuttiNumTypes] = {TUTTI_KERNELS_OF_TYPES(OF_TYPE)};

/* The checks of calls let none pass that is no type. */
static const tuttiKernels *kernelsOf(tuttiDataType_t type, bool reduces) {
  return reduces && type < tuttiNumTypes ? kernels[type] : &tuttiKernelsCopies;
}

static cudaError_t launch(const void *kernel, const void *args, const tuttiLaunchShape *shape) {
  uint32_t threads = (uint32_t)(shape->nblocks * shape->nthreads);
  cudaLaunchAttribute early = {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                               .val = {.programmaticStreamSerializationAllowed = 1}};
  cudaLaunchConfig_t config = {.gridDim = {(unsigned)shape->nblocks, 1, 1},
                               .blockDim = {(unsigned)shape->nthreads, 1, 1},
                               .stream = shape->stream,
                               .attrs = &early,
                               .numAttrs = shape->mayBeEarly && threads <= TUTTI_ALLPAIRS_EARLY};
  void *params[] = {(void *)args};
  return cudaLaunchKernelExC(&config, kernel, params);
}

static cudaError_t load(const void *kernel) {
  struct cudaFuncAttributes attributes;
  return kernel ? cudaFuncGetAttributes(&attributes, kernel) : cudaSuccess;
}

/* ---- all pairs ------------------------------------------------------------------------------- */

int tuttiAllPairsLaunch(const tuttiAllPairsArgs *args, tuttiDataType_t type, int proto,
                        const tuttiLaunchShape *shape) {
  if (proto == tuttiProtoLL128) return launch(tuttiKernelMessages, args, shape);
  bool reduces = args->combine || args->premul;
  tuttiLaunchShape simple = *shape;
  simple.nthreads = TUTTI_ALLPAIRS_SIMPLE_THREADS;
  return launch(kernelsOf(reduces ? type : tuttiInt64, true)->simple, args, &simple);
}

int tuttiRegionsLaunch(const tuttiRegionsArgs *args, tuttiDataType_t type,
                       const tuttiLaunchShape *shape) {
  const tuttiRegionsFront *front = args->isFew ? &args->few.front : &args->many.front;
  const tuttiKernels *of = kernelsOf(type, front->combine || front->premul);
  const void *kernel = args->isStaged   ? of->staged
                       : args->isRooted ? of->rooted[!args->isFew]
                                        : of->unrooted[!args->isFew];
  return launch(kernel, front, shape);
}

static cudaError_t loadAllPairs(const tuttiKernels *of) {
  const void *all[] = {of->simple,    of->unrooted[0], of->unrooted[1],
                       of->rooted[0], of->rooted[1],   of->staged};
  cudaError_t err = cudaSuccess;
  for (size_t i = 0; i < sizeof all / sizeof *all && err == cudaSuccess; i++)
    err = load(all[i]);
  return err;
}

/* Code for older GPUs, that a newer one runs too, does not wait for the kernel before. */
int tuttiAllPairsLoad(bool *early) {
  struct cudaFuncAttributes attributes;
  int driver = 0;
  cudaError_t err = cudaDriverGetVersion(&driver);
  if (err == cudaSuccess) err = cudaFuncGetAttributes(&attributes, tuttiKernelMessages);
  *early = err == cudaSuccess && attributes.ptxVersion >= 90 && driver >= 12030;
  for (int type = 0; type < tuttiNumTypes && err == cudaSuccess; type++)
    err = loadAllPairs(kernels[type]);
  return err == cudaSuccess ? loadAllPairs(&tuttiKernelsCopies) : err;
}

/* ---- schedules ------------------------------------------------------------------------------- */

int tuttiRingTreeLaunch(const tuttiRingTreeArgs *args, int ntasks, tuttiStream_t stream) {
  int nthreads = args->small ? (int)TUTTI_RINGTREE_LEAST : TUTTI_RINGTREE_THREADS;
  const tuttiLaunchShape shape = {.nblocks = ntasks, .nthreads = nthreads, .stream = stream};
  return launch(tuttiKernelRingTree, args, &shape);
}

int tuttiRingTreeLoad(void) {
  return load(tuttiKernelRingTree);
}

/* ---- one-sided operations -------------------------------------------------------------------- */

/* The kernel that carries it out, with its shape; sets the part of a thread block. */
static const void *putKernel(tuttiPutArgs *args, tuttiLaunchShape *shape) {
  uint64_t odd = ((uintptr_t)args->to | (uintptr_t)args->from | args->bytes) & 3;
  bool words = args->counter && args->bytes <= TUTTI_PUT_THREADS * 4 && !odd;
  uint64_t blocks = 1, threads = (args->bytes / (words ? 4 : 16) + 31) / 32 * 32;
  if (!args->counter) blocks = (args->bytes + TUTTI_PUT_PART - 1) / TUTTI_PUT_PART;
  if (blocks > TUTTI_PUT_BLOCKS) blocks = TUTTI_PUT_BLOCKS;
  if (threads > TUTTI_PUT_THREADS) threads = TUTTI_PUT_THREADS;
  args->part = (args->bytes + blocks * TUTTI_LINE - 1) / (blocks * TUTTI_LINE) * TUTTI_LINE;
  shape->nblocks = (int)blocks;
  shape->nthreads = threads ? (int)threads : 32;
  return words ? tuttiKernelPutWords : tuttiKernelPut;
}

int tuttiPutLaunch(const tuttiPutArgs *args, bool mayBeEarly, tuttiStream_t stream) {
  tuttiPutArgs sized = *args;
  tuttiLaunchShape shape = {.mayBeEarly = mayBeEarly, .stream = stream};
  const void *kernel = putKernel(&sized, &shape);
  return launch(kernel, &sized, &shape);
}

int tuttiPutAddNode(const tuttiPutArgs *args, struct CUgraph_st *graph,
                    struct CUgraphNode_st *const *after, size_t n, struct CUgraphNode_st **node) {
  tuttiPutArgs sized = *args;
  tuttiLaunchShape shape = {0};
  void *params[] = {&sized};
  struct cudaKernelNodeParams kernel = {.func = (void *)putKernel(&sized, &shape),
                                        .kernelParams = params};
  kernel.gridDim.x = (unsigned)shape.nblocks;
  kernel.blockDim.x = (unsigned)shape.nthreads;
  kernel.gridDim.y = kernel.gridDim.z = kernel.blockDim.y = kernel.blockDim.z = 1;
  return cudaGraphAddKernelNode(node, graph, after, n, &kernel);
}

int tuttiRelayLaunch(const tuttiRelayArgs *args, tuttiStream_t stream) {
  int threads = args->bytes <= TUTTI_RELAY_INLINE ? 64 : (int)TUTTI_PUT_THREADS;
  const tuttiLaunchShape shape = {.nblocks = 1, .nthreads = threads, .stream = stream};
  return launch(tuttiKernelRelay, args, &shape);
}

int tuttiAwaitLaunch(const tuttiAwaitArgs *args, bool mayBeEarly, tuttiStream_t stream) {
  const tuttiLaunchShape shape = {
      .nblocks = 1, .nthreads = TUTTI_AWAIT_MOST, .mayBeEarly = mayBeEarly, .stream = stream};
  return launch(tuttiKernelAwait, args, &shape);
}

int tuttiOneSidedLoad(void) {
  const void *all[] = {tuttiKernelPut, tuttiKernelPutWords, tuttiKernelRelay, tuttiKernelAwait};
  cudaError_t err = cudaSuccess;
  for (size_t i = 0; i < sizeof all / sizeof *all && err == cudaSuccess; i++)
    err = load(all[i]);
  return err;
}

#endif

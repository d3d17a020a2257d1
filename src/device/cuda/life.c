#include "device/cuda/life.h"

#ifdef TUTTI_HAVE_CUDA

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include "base/cuda.h"
#include "base/error.h"
#include "base/os.h"
#include "device/cuda/arguments.h"
#include "device/cuda/devcomm.h"
#include "device/cuda/onesided.h"
#include "device/cuda/state.h"
#include "transport/symmetric.h"

#define MONITOR_MS    20
#define BLOCKS_SPARED 4    /* multiprocessors: or two kernels might keep each other from the last */
#define STATUS_BYTES  4096 /* of s->status, in front of s->stage */

/* ---- the monitor ----------------------------------------------------------------------------- */

/* What the kernels have reported since the last look. */
static void hear(tuttiCuda *s, uint32_t *heard) {
  tuttiKernelStatus *status = s->status;
  uint32_t stalls = __atomic_load_n(&status->stalls, __ATOMIC_ACQUIRE);
  if (stalls == *heard) return;
  *heard = stalls;
  tuttiSignature sig = status->sig;
  s->context->stalled(s->context->comm, &sig, status->peer,
                      status->disagrees ? TUTTI_DISAGREES : status->waitedMs);
}

static void *monitorMain(void *arg) {
  tuttiCuda *s = arg;
  uint32_t heard = 0;
  struct pollfd stop = {.fd = s->stop, .events = POLLIN};
  while (poll(&stop, 1, MONITOR_MS) <= 0) {
    hear(s, &heard);
    tuttiCudaSignalsHear(s);
    /* What is only suspected is the failure when a kernel tells that it waits. */
    if (tuttiLoadAcquire32(s->context->failed))
      __atomic_store_n(&s->status->abort, 1, __ATOMIC_RELEASE);
  }
  return NULL;
}

/* ---- a communicator's life ------------------------------------------------------------------- */

/* Of the driver; the runtime does not know all of them. */
static bool hasAttribute(int device, CUdevice_attribute attribute) {
  CUresult (*get)(int *value, CUdevice_attribute attribute, CUdevice device) =
      tuttiCudaDriver("cuDeviceGetAttribute");
  int value = 0;
  return get && get(&value, attribute, device) == CUDA_SUCCESS && value;
}

static tuttiResult_t lookAround(int device, int32_t *reaches) {
  int n;
  *reaches = 1;
  CUDA_TRY(cudaGetDeviceCount(&n));
  for (int other = 0; other < n && *reaches; other++)
    if (other != device) CUDA_TRY(cudaDeviceCanAccessPeer(reaches, device, other));
  return tuttiSuccess;
}

/* Without an ordinal: the current device. */
tuttiResult_t tuttiCudaDescribe(int ordinal, tuttiCommView *v, tuttiPeer *mine) {
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  int device = ordinal, major;
  char bus[32];
  if (ordinal < 0) CUDA_TRY(cudaGetDevice(&device));
  TUTTI_TRY(tuttiCudaEnter(device, &before));
  mine->cudaDevice = device;
  v->gdr = hasAttribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
  v->dmabuf = hasAttribute(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
  CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  v->preAmpere = major < 8;
  CUDA_TRY(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
  (void)tuttiBusIdParse(bus, &mine->busId);
  mine->nvlink = tuttiTopologyLinked(v->topology, mine->busId);
  TUTTI_TRY(lookAround(device, &mine->reaches));
  CUDA_TRY(cudaDeviceGetAttribute(&mine->blocks, cudaDevAttrMultiProcessorCount, device));
  mine->blocks -= BLOCKS_SPARED;
  bool few = v->nranks <= TUTTI_ALLPAIRS_MAX;
  size_t bytes = few ? tuttiAllPairsLayOut(v->nranks, false).bytes : 0;
  if (mine->p2pDisabled) return tuttiSuccess;
  return tuttiSymmetricPrepare(v, mine, bytes, tuttiCudaSignalBytes(v));
}

/* The blocks of those whom this rank can store to; of all, for kernels between all pairs. */
static tuttiResult_t mapPeers(tuttiCommView *v) {
  if (v->stagedBytes) return tuttiSymmetricStage(v, sizeof(tuttiAllPairsHead));
  for (int p = 0; p < v->nranks; p++)
    if (v->paths[p].stores) TUTTI_TRY(tuttiSymmetricMap(v, p));
  return tuttiSuccess;
}

static tuttiResult_t startAllPairs(tuttiCuda *s, const tuttiCommView *v) {
  CUDA_TRY((cudaError_t)tuttiAllPairsLoad(&s->mayBeEarly));
  tuttiCudaArgsInit(s, v);
  return tuttiSuccess;
}

/* The memory is the process's rather than CUDA's: threads go on looking at it when a program that
 * ends without destroying the communicator, or resets the device, has undone all of CUDA. */
static tuttiResult_t makeStatus(tuttiCuda *s, tuttiCommView *v) {
  _Static_assert(sizeof *s->status <= STATUS_BYTES, "the stage lies behind it");
  TUTTI_TRY(tuttiMap((void **)&s->status, STATUS_BYTES + TUTTI_CUDA_STAGE_BYTES, -1,
                     "the reports of kernels", v->memory));
  TUTTI_TRY(
      tuttiPin(v->rank, s->device, s->status, STATUS_BYTES + TUTTI_CUDA_STAGE_BYTES, &s->pinned));
  s->stage = (uint8_t *)s->status + STATUS_BYTES;
  CUDA_TRY(cudaHostGetDevicePointer((void **)&s->statusOnDevice, s->status, 0));
  return tuttiSuccess;
}

static tuttiResult_t setUp(tuttiCuda *s, tuttiCommView *v) {
  TUTTI_NEW(s->rounds, 2 * (size_t)v->nranks, "rounds of messages", v->memory);
  /* Now, for a later allocation could wait for kernels that wait for this rank. */
  TUTTI_TRY(makeStatus(s, v));
  for (int i = 0; i < 2; i++)
    CUDA_TRY(cudaEventCreateWithFlags(&s->done[i], cudaEventDisableTiming));
  CUDA_TRY(cudaEventCreateWithFlags(&s->joined, cudaEventDisableTiming));
  CUDA_TRY(cudaStreamCreateWithFlags(&s->stageStream, cudaStreamNonBlocking));
  TUTTI_TRY(mapPeers(v));
  TUTTI_TRY(s->context->plan->allPairs
                ? startAllPairs(s, v)
                : tuttiCudaRingTreeInit(&s->ringTree, v, s->context, s->status, s->stageStream));
  TUTTI_TRY(tuttiCudaOneSidedInit(s, v));
  s->stop = eventfd(0, EFD_CLOEXEC);
  if (s->stop < 0)
    return TUTTI_FAIL(tuttiSystemError, "no eventfd: %s; raise the limit on open files (ulimit -n)",
                      tuttiErrnoText(errno));
  TUTTI_TRY(tuttiThreadStart(&s->monitor, "tutti-kernels", monitorMain, s));
  s->monitoring = true;
  return tuttiSuccess;
}

tuttiResult_t tuttiCudaAttach(tuttiCommView *v, tuttiTaskContext *context) {
  tuttiCuda *s;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  TUTTI_NEW(s, 1, "a communicator's CUDA state", v->memory);
  context->device = s;
  s->context = context;
  s->device = v->peers[v->rank].cudaDevice;
  s->stop = -1;
  TUTTI_TRY(tuttiCudaEnter(s->device, &before));
  return setUp(s, v);
}

/* Of graphs and of kernels of the user nobody knows when they run: the whole device is waited for,
 * unlike else, as that call would end all captures under way. */
static cudaError_t awaitLaunches(const tuttiCuda *s) {
  if (s->graph || s->waits.captured || s->servesKernels) return cudaDeviceSynchronize();
  cudaError_t err = s->launched ? cudaEventSynchronize(s->done[0]) : cudaSuccess;
  return err == cudaSuccess ? tuttiCudaOneSidedAwait(s) : err;
}

void tuttiCudaDetach(tuttiCommView *v, tuttiTaskContext *context) {
  tuttiCuda *s = context->device;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  if (s && s->status) __atomic_store_n(&s->status->abort, 1, __ATOMIC_RELEASE);
  if (s && s->monitoring) { /* also where CUDA has been shut down */
    eventfd_write(s->stop, 1);
    pthread_join(s->monitor, NULL);
  }
  if (s) tuttiCudaRelayStop(&s->relay);
  if (s) tuttiFdClose(&s->stop);
  if (s && tuttiCudaEnter(s->device, &before) == tuttiSuccess) {
    (void)awaitLaunches(s);
    tuttiCudaOneSidedClose(s);
    tuttiCudaDevCommsClose(s);
    tuttiCudaWindowsClose(&s->windows);
    tuttiCudaRingTreeClose(&s->ringTree, v);
    for (int i = 0; i < 2; i++)
      if (s->done[i]) cudaEventDestroy(s->done[i]);
    if (s->joined) cudaEventDestroy(s->joined);
    if (s->stageStream) cudaStreamDestroy(s->stageStream);
    tuttiUnpin(&s->pinned);
    if (s->status) tuttiUnmap(s->status, STATUS_BYTES + TUTTI_CUDA_STAGE_BYTES, v->memory);
    tuttiFree(s->rounds);
    tuttiFree(s);
  }
  tuttiSymmetricDetach(v);
  context->device = NULL;
}

/* The monitor ends the kernels of a communicator that fails. */
tuttiResult_t tuttiCudaDrain(tuttiTaskContext *context) {
  tuttiCuda *s = context->device;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  if (!s || !s->launched) return tuttiSuccess;
  TUTTI_TRY(tuttiCudaEnter(s->device, &before));
  return tuttiCudaCheck(awaitLaunches(s), "an operation on the GPU");
}

tuttiResult_t tuttiCudaStage(tuttiTaskContext *context, void **memory, size_t *bytes,
                             tuttiStream_t *stream) {
  tuttiCuda *s = context->device;
  *memory = s->stage;
  *bytes = TUTTI_CUDA_STAGE_BYTES;
  *stream = s->stageStream;
  return tuttiSuccess;
}

tuttiResult_t tuttiCudaWaitStaged(tuttiTaskContext *context) {
  tuttiCuda *s = context->device;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  TUTTI_TRY(tuttiCudaEnter(s->device, &before));
  return CUDA_CHECK(cudaStreamSynchronize(s->stageStream));
}

tuttiResult_t tuttiCudaWindowRegister(tuttiCommView *v, tuttiTaskContext *context, void *buff,
                                      size_t size, void **window, tuttiWindow_t *seen) {
  tuttiCuda *s = context->device;
  TUTTI_RESTORED tuttiCudaBefore before = {0};
  *window = *seen = NULL;
  bool exchanges = context->plan->allPairs, staged = context->plan->staged;
  bool kernels = v->lsaSize > 1 || v->nranks == 1;
  if ((staged && v->rmaContexts == 0) || (!exchanges && !kernels && v->rmaContexts == 0))
    return tuttiSuccess; /* no use */
  TUTTI_TRY(tuttiCudaEnter(s->device, &before));
  TUTTI_TRY(tuttiCudaWindowAdd(&s->windows, v, context, buff, size, s->device, s->stageStream,
                               (tuttiCudaWindow **)window));
  *seen = ((tuttiCudaWindow *)*window)->seen;
  return tuttiSuccess;
}

#endif

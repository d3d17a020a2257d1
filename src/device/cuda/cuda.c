/* CUDA as a device: its table, memory, and the run of tasks: one kernel per operation, enqueued on
 * the user's stream. */
#include "device/device.h"

#ifdef TUTTI_HAVE_CUDA

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "base/cuda.h"
#include "base/error.h"
#include "base/vmm.h"
#include "device/cuda/arguments.h"
#include "device/cuda/devcomm.h"
#include "device/cuda/launch.h"
#include "device/cuda/life.h"
#include "device/cuda/messages.h"
#include "device/cuda/onesided.h"
#include "device/cuda/state.h"
#include "transport/region.h"

/* ---- memory ---------------------------------------------------------------------------------- */

static tuttiResult_t release(void *ptr) {
  if (tuttiVmmFree(ptr) == cudaSuccess) return tuttiSuccess;
  return CUDA_CHECK(cudaFree(ptr));
}

/* Memory that others can map where they want it, for windows that kernels work on; where the driver
 * has none of that, plain memory. */
static tuttiResult_t cudaAllocate(void **ptr, size_t size) {
  void *p;
  uint64_t region;
  if (tuttiVmmAlloc(size, &p) != cudaSuccess) CUDA_TRY(cudaMalloc(&p, size));
  tuttiResult_t result = tuttiRegionAdd(p, size, &region);
  if (result != tuttiSuccess) {
    (void)release(p);
    return result;
  }
  *ptr = p;
  return tuttiSuccess;
}

/* Its region is the oldest one that begins there. */
static tuttiResult_t cudaRelease(void *ptr) {
  tuttiRegionRemove(tuttiRegionAt(ptr));
  return release(ptr);
}

static const char *cudaRefuse(const void *buffer) {
  struct cudaPointerAttributes a;
  if (cudaPointerGetAttributes(&a, buffer) != cudaSuccess) {
    cudaGetLastError();
    return "is no memory that CUDA knows";
  }
  return a.type == cudaMemoryTypeUnregistered
             ? "is plain host memory, which a GPU cannot reach; use cudaMalloc or cudaMallocHost, "
               "or a communicator on host memory (TUTTI_DEVICE=host)"
             : NULL;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* The channels of the collective that tasks[0] begins. */
static tuttiResult_t runSchedules(tuttiCuda *s, const tuttiTask *tasks, int n) {
  int k = 1;
  while (k < n && k < (int)TUTTI_RINGTREE_TASKS && tasks[k].context == tasks[0].context &&
         tasks[k].channel == k && !tuttiCudaIsMessage(s, &tasks[k]))
    k++;
  return tasks[0].schedule.count > 0 ? tuttiCudaRunSchedules(s, tasks, k) : tuttiSuccess;
}

/* Messages first, on every rank alike: ranks may have called in another order within the group. */
static tuttiResult_t runOf(tuttiCuda *s, tuttiTask *tasks, int n) {
  TUTTI_TRY(tuttiCudaRunMessages(s, tasks, n));
  for (int i = 0; i < n; i++) {
    const tuttiTask *t = &tasks[i];
    if (t->context->device != s || tuttiCudaIsMessage(s, t)) continue;
    if (t->plan.kernel != tuttiKernelSchedule) {
      tuttiCudaArgsCollective(s, t);
      TUTTI_TRY(tuttiCudaLaunch(s, t, &t->plan));
    } else if (t->channel == 0) {
      TUTTI_TRY(runSchedules(s, t, n - i));
    }
  }
  return tuttiSuccess;
}

static tuttiResult_t cudaRun(const tuttiTaskSet *set) {
  for (int i = 0; i < set->ntasks; i++) {
    tuttiCuda *s = set->tasks[i].context->device;
    bool done = false;
    for (int j = 0; j < i && !done; j++)
      done = set->tasks[j].context->device == s;
    if (done) continue;
    TUTTI_RESTORED tuttiCudaBefore before = {0};
    /* Schedules may open connections; kernels between all pairs are spared the time. */
    TUTTI_TRY((s->context->plan->allPairs ? tuttiCudaSwitch : tuttiCudaEnter)(s->device, &before));
    TUTTI_TRY(runOf(s, set->tasks + i, set->ntasks - i));
  }
  return tuttiSuccess;
}

/* In order of its stream: only the kernel knows what it is by then. */
static tuttiResult_t cudaReadLater(const void *scalar, tuttiDataType_t type, tuttiScalar *out,
                                   const void **later) {
  (void)type, (void)out;
  *later = scalar;
  return tuttiSuccess;
}

static const tuttiDevice table = {
    .name = "CUDA",
    .kind = tuttiDeviceCuda,
    .alloc = cudaAllocate,
    .free = cudaRelease,
    .run = cudaRun,
    .readScalar = cudaReadLater,
    .copy = tuttiCudaCopy,
    .mark = tuttiCudaMark,
    .refuse = cudaRefuse,
    .describe = tuttiCudaDescribe,
    .attach = tuttiCudaAttach,
    .detach = tuttiCudaDetach,
    .drain = tuttiCudaDrain,
    .stage = tuttiCudaStage,
    .waitStaged = tuttiCudaWaitStaged,
    .windowRegister = tuttiCudaWindowRegister,
    .windowDeregister = tuttiCudaWindowDrop,
    .windowOpen = tuttiCudaWindowOpen,
    .windowClose = tuttiCudaWindowClose,
    .windowPart = tuttiCudaWindowPart,
    .windowFlat = tuttiCudaWindowFlat,
    .servesKernels = tuttiCudaServesKernels,
    .devCommCreate = tuttiCudaDevCommCreate,
    .devCommDestroy = tuttiCudaDevCommDestroy,
    .put = tuttiCudaPut,
    .awaitSignals = tuttiCudaAwaitSignals,
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char missing[160];

static void look(void) {
  int n = 0;
  cudaError_t err = cudaGetDeviceCount(&n);
  /* Where there is a driver, a call that fails says why; host memory might not be what is meant. */
  if (err != cudaSuccess && (err == cudaErrorNoDevice || access("/dev/nvidiactl", F_OK) != 0))
    snprintf(missing, sizeof missing, "%s (%s)", cudaGetErrorString(err), cudaGetErrorName(err));
  else if (err == cudaSuccess && n == 0)
    snprintf(missing, sizeof missing, "the driver shows no GPU to this process");
}

const tuttiDevice *tuttiDeviceCudaTable(const char **why) {
  pthread_once(&once, look);
  *why = missing;
  return missing[0] ? NULL : &table;
}

int tuttiDeviceCudaOrdinal(int ordinal) {
  const char *why;
  int current;
  if (ordinal < 0 && tuttiDeviceCudaTable(&why) && cudaGetDevice(&current) == cudaSuccess)
    return current;
  return ordinal;
}

#else

int tuttiDeviceCudaOrdinal(int ordinal) {
  return ordinal;
}

const tuttiDevice *tuttiDeviceCudaTable(const char **why) {
  *why = "this build of tutti has no CUDA support (cmake found no CUDA compiler)";
  return NULL;
}

#endif

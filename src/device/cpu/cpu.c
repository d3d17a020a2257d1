/* Host memory as a device: pointers of the process, calls that return when the work is done. */
#include <string.h>

#include "base/error.h"
#include "device/cpu/executor.h"
#include "device/cpu/reduce.h"
#include "device/device.h"
#include "device/stub.h"
#include "transport/shareable.h"

static tuttiResult_t cpuFree(void *ptr) {
  tuttiShareableFree(ptr);
  return tuttiSuccess;
}

static tuttiResult_t cpuReadScalar(const void *scalar, tuttiDataType_t type, tuttiScalar *out,
                                   const void **later) {
  (void)later;
  unsigned size = (unsigned)tuttiTypeSize(type), spare = 64 - 8 * size;
  out->i = 0;
  if (type >= tuttiFloat16)
    out->f = tuttiFloatToDouble(type, scalar);
  else
    memcpy(&out->i, scalar, size); /* its first bytes are the low ones */
  if (type == tuttiInt8 || type == tuttiInt32)
    out->i = (uint64_t)((int64_t)(out->i << spare) >> spare);
  return tuttiSuccess;
}

static tuttiResult_t cpuRun(const tuttiTaskSet *set) {
  return set->nheads ? tuttiCpuRun(set->heads, set->nheads) : tuttiSuccess;
}

static tuttiResult_t cpuCopy(tuttiTaskContext *context, void *to, tuttiStream_t receiver,
                             const void *from, size_t bytes, tuttiStream_t stream) {
  (void)context, (void)receiver, (void)stream;
  memmove(to, from, bytes);
  return tuttiSuccess;
}

static tuttiResult_t cpuMark(tuttiTaskContext *context, tuttiStream_t stream, void *event) {
  (void)context, (void)stream;
  return TUTTI_FAIL(tuttiInvalidUsage,
                    "the launch completion event (%p) cannot be recorded: a communicator of host "
                    "memory launches nothing on a stream",
                    event);
}

const tuttiDevice tuttiDeviceCpuTable = {
    .name = "host",
    .kind = tuttiDeviceHost,
    .alloc = tuttiShareableAlloc,
    .free = cpuFree,
    .run = cpuRun,
    .readScalar = cpuReadScalar,
    .copy = cpuCopy,
    .mark = cpuMark,
    .refuse = tuttiDeviceNothingToRefuse,
    .describe = tuttiDeviceNothingToDescribe,
    .attach = tuttiDeviceNothingToAttach,
    .detach = tuttiDeviceNothingToDetach,
    .drain = tuttiDeviceNothingToDrain,
    .stage = tuttiDeviceNothingToStage,
    .waitStaged = tuttiDeviceNothingStaged,
    .windowRegister = tuttiDeviceNothingToRegister,
    .windowDeregister = tuttiDeviceNothingToDeregister,
    .windowOpen = tuttiDeviceNothingToOpen,
    .windowClose = tuttiDeviceNothingToShut,
    .windowPart = tuttiDeviceNothingMapped,
    .windowFlat = tuttiDeviceNothingMapped,
    .servesKernels = tuttiDeviceNoKernels,
    .devCommCreate = tuttiDeviceNoDevComm,
    .devCommDestroy = tuttiDeviceNothingToDeregister,
    .put = tuttiDeviceNoPuts,
    .awaitSignals = tuttiDeviceNoSignals,
};

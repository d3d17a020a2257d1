/* The public calls about memory and reductions. */
#include <stdint.h>

#include "comm/check.h"
#include "comm/communicator.h"
#include "comm/handle.h"
#include "comm/options.h"
#include "comm/premul.h"
#include "comm/registration.h"

/* The device that a communicator with default options has. */
static const tuttiDevice *memoryDevice(void) {
  tuttiOptions options;
  const char *why;
  const tuttiDevice *cuda = NULL;
  if (tuttiOptionsResolve(NULL, NULL, &options) == tuttiSuccess &&
      options.device != tuttiDeviceHost)
    cuda = tuttiDeviceCudaTable(&why);
  return cuda ? cuda : &tuttiDeviceCpuTable;
}

tuttiResult_t tuttiMemAlloc(void **ptr, size_t size) {
  TUTTI_TRY(tuttiCallEnter(__func__));
  TUTTI_TRY(tuttiCheckOutput("ptr", ptr));
  if (size == 0) {
    *ptr = NULL;
    return tuttiSuccess;
  }
  return memoryDevice()->alloc(ptr, size);
}

tuttiResult_t tuttiMemFree(void *ptr) {
  TUTTI_TRY(tuttiCallEnter(__func__));
  return ptr ? memoryDevice()->free(ptr) : tuttiSuccess;
}

tuttiResult_t tuttiCommRegister(const tuttiComm_t comm, void *buff, size_t size, void **handle) {
  TUTTI_ENTER_READY(c, comm, __func__);
  TUTTI_TRY(tuttiCheckRange(buff, size));
  TUTTI_TRY(tuttiCheckOutput("handle", handle));
  TUTTI_TRY(tuttiCheckMemory(c, "buff", buff));
  return tuttiRegistrationAdd(c, buff, size, handle);
}

tuttiResult_t tuttiCommDeregister(const tuttiComm_t comm, void *handle) {
  TUTTI_ENTER(c, comm, __func__);
  return tuttiRegistrationRemove(c, handle);
}

tuttiResult_t tuttiRedOpCreatePreMulSum(tuttiRedOp_t *op, void *scalar, tuttiDataType_t datatype,
                                        tuttiScalarResidence_t residence, tuttiComm_t comm) {
  TUTTI_ENTER_READY(c, comm, __func__);
  TUTTI_TRY(tuttiCheckOutput("op", op));
  TUTTI_TRY(tuttiCheckOutput("scalar", scalar));
  TUTTI_TRY(tuttiCheckType(datatype));
  if (residence != tuttiScalarDevice && residence != tuttiScalarHostImmediate)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument residence is %d; it must be tuttiScalarDevice or "
                      "tuttiScalarHostImmediate",
                      (int)residence);
  if ((uintptr_t)scalar & (tuttiTypeSize(datatype) - 1))
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument scalar (%p) is misaligned: %s needs a multiple of %zu bytes",
                      scalar, tuttiTypeName(datatype), tuttiTypeSize(datatype));
  if (residence == tuttiScalarDevice) TUTTI_TRY(tuttiCheckMemory(c, "scalar", scalar));
  const void *later = NULL; /* a scalar of the host is read at once */
  tuttiPreMul m = {.used = true, .type = datatype, .residence = residence, .device = scalar};
  if (residence == tuttiScalarHostImmediate)
    TUTTI_TRY(tuttiDeviceCpuTable.readScalar(scalar, datatype, &m.scalar, &later));
  return tuttiPreMulAdd(c, &m, op);
}

tuttiResult_t tuttiRedOpDestroy(tuttiRedOp_t op, tuttiComm_t comm) {
  TUTTI_ENTER(c, comm, __func__);
  if (tuttiPreMulRemove(c, op)) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "argument op is %d, no live handle of tuttiRedOpCreatePreMulSum of this "
                    "communicator",
                    (int)op);
}

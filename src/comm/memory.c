/* The public calls about memory and reductions. */
#include <stdint.h>

#include "comm/check.h"
#include "comm/comm.h"
#include "transport/region.h"

/* The device that a communicator with default options has. */
static const tuttiDevice *memoryDevice(void) {
  tuttiOptions options;
  const char *why;
  const tuttiDevice *cuda = NULL;
  if (tuttiOptionsResolve(NULL, NULL, &options) == tuttiSuccess &&
      options.device != tuttiDeviceHost)
    cuda = tuttiDeviceCudaTable(&why);
  return cuda ? cuda : &tuttiDeviceHostTable;
}

tuttiResult_t tuttiMemAlloc(void **ptr, size_t size) {
  tuttiErrorScope(__func__, NULL, 0, 0);
  TUTTI_TRY(tuttiCheckOutput("ptr", ptr));
  if (size == 0) {
    *ptr = NULL;
    return tuttiSuccess;
  }
  return memoryDevice()->alloc(ptr, size);
}

tuttiResult_t tuttiMemFree(void *ptr) {
  tuttiErrorScope(__func__, NULL, 0, 0);
  return ptr ? memoryDevice()->free(ptr) : tuttiSuccess;
}

/* Kernels and ranks of one process reach memory as it is, and other processes cannot reach memory
 * that was not made for sharing, but for windows: what is prepared is for the network alone. */
typedef struct tuttiRegistration {
  struct tuttiRegistration *next;
  uint64_t region; /* of host memory; 0: none */
} Registration;

static tuttiResult_t removeRegistration(tuttiCommunicator *c, void *handle) {
  for (Registration **at = &c->registrations; *at; at = &(*at)->next) {
    Registration *r = *at;
    if (r != handle) continue;
    *at = r->next;
    if (r->region) tuttiRegionRemove(r->region);
    tuttiFree(r);
    return tuttiSuccess;
  }
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "argument handle (%p) is no live handle of tuttiCommRegister of this "
                    "communicator",
                    handle);
}

void tuttiCommDeregisterAll(tuttiCommunicator *c) {
  while (c->registrations)
    removeRegistration(c, c->registrations);
}

tuttiResult_t tuttiCommRegister(const tuttiComm_t comm, void *buff, size_t size, void **handle) {
  TUTTI_ENTER_READY(c, comm, __func__);
  TUTTI_TRY(tuttiCheckRange(buff, size));
  TUTTI_TRY(tuttiCheckOutput("handle", handle));
  TUTTI_TRY(tuttiCheckMemory(c, "buff", buff));
  TUTTI_FRESH(Registration, r, 1, "a registration", &c->memory);
  if (c->device->kind == tuttiDeviceHost) TUTTI_TRY(tuttiRegionAdd(buff, size, &r->region));
  r->next = c->registrations;
  *handle = c->registrations = r;
  r = NULL;
  return tuttiSuccess;
}

tuttiResult_t tuttiCommDeregister(const tuttiComm_t comm, void *handle) {
  TUTTI_ENTER(c, comm, __func__);
  return removeRegistration(c, handle);
}

/* ---- PreMulSum ------------------------------------------------------------------------------- */

static tuttiResult_t addPreMul(tuttiCommunicator *c, const tuttiPreMul *m, tuttiRedOp_t *op) {
  int i = 0;
  while (i < c->npremul && c->premul[i].used)
    i++;
  TUTTI_TRY(
      tuttiGrow((void **)&c->premul, i, &c->npremul, sizeof *m, "reduction handles", &c->memory));
  c->premul[i] = *m;
  *op = (tuttiRedOp_t)(tuttiNumOps + i);
  return tuttiSuccess;
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
  tuttiPreMul m = {true, datatype, residence, scalar, {0}};
  if (residence == tuttiScalarHostImmediate)
    TUTTI_TRY(tuttiDeviceHostTable.readScalar(scalar, datatype, &m.scalar));
  return addPreMul(c, &m, op);
}

tuttiResult_t tuttiRedOpDestroy(tuttiRedOp_t op, tuttiComm_t comm) {
  TUTTI_ENTER(c, comm, __func__);
  int i = (int)op < 0 ? -1 : (int)op - tuttiNumOps;
  if (i < 0 || i >= c->npremul || !c->premul[i].used)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument op is %d, no live handle of tuttiRedOpCreatePreMulSum of this "
                      "communicator",
                      (int)op);
  c->premul[i].used = false;
  return tuttiSuccess;
}

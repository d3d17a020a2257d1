/* The public calls about memory and reductions. */
#include <inttypes.h>
#include <stdint.h>
#include <string.h>

#include "base/os.h"
#include "comm/comm.h"

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
  if (!ptr) return TUTTI_FAIL(tuttiInvalidArgument, "argument ptr is NULL");
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
 * that was not made for sharing, but for windows: there is nothing to prepare. */
typedef struct tuttiRegistration {
  struct tuttiRegistration *next;
} Registration;

static tuttiResult_t addRegistration(tuttiCommunicator *c, void *buff, void **handle) {
  Registration *r;
  const char *why = c->device->refuse ? c->device->refuse(buff) : NULL;
  if (why) return TUTTI_FAIL(tuttiInvalidArgument, "argument buff (%p) %s", buff, why);
  TUTTI_TRY(tuttiAlloc((void **)&r, 1, sizeof *r, "a registration", &c->memory));
  r->next = c->registrations;
  c->registrations = r;
  *handle = r;
  return tuttiSuccess;
}

static tuttiResult_t removeRegistration(tuttiCommunicator *c, void *handle) {
  for (Registration **at = &c->registrations; *at; at = &(*at)->next) {
    Registration *r = *at;
    if (r != handle) continue;
    *at = r->next;
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
  tuttiCommunicator *c;
  TUTTI_TRY(tuttiHandleEnter(comm, __func__, &c));
  tuttiResult_t result = tuttiCommReady(c);
  if (result == tuttiSuccess && (!buff || size == 0 || (uintptr_t)buff > UINTPTR_MAX - size))
    result = TUTTI_FAIL(tuttiInvalidArgument,
                        "arguments buff (%p) and size (%zu) describe no memory", buff, size);
  if (result == tuttiSuccess && !handle)
    result = TUTTI_FAIL(tuttiInvalidArgument, "argument handle is NULL");
  if (result == tuttiSuccess) result = addRegistration(c, buff, handle);
  tuttiHandleLeave(c);
  return result;
}

tuttiResult_t tuttiCommDeregister(const tuttiComm_t comm, void *handle) {
  tuttiCommunicator *c;
  TUTTI_TRY(tuttiHandleEnter(comm, __func__, &c));
  tuttiResult_t result = removeRegistration(c, handle);
  tuttiHandleLeave(c);
  return result;
}

/* ---- PreMulSum ------------------------------------------------------------------------------- */

static tuttiResult_t addPreMul(tuttiCommunicator *c, const tuttiPreMul *m, tuttiRedOp_t *op) {
  int i = 0;
  while (i < c->npremul && c->premul[i].used)
    i++;
  if (i == c->npremul) {
    int n = c->npremul ? c->npremul * 2 : 4;
    tuttiPreMul *table;
    TUTTI_TRY(
        tuttiAlloc((void **)&table, (size_t)n, sizeof *table, "reduction handles", &c->memory));
    if (c->npremul) memcpy(table, c->premul, (size_t)c->npremul * sizeof *table);
    tuttiFree(c->premul);
    c->premul = table;
    c->npremul = n;
  }
  c->premul[i] = *m;
  *op = (tuttiRedOp_t)(tuttiNumOps + i);
  return tuttiSuccess;
}

static tuttiResult_t checkPreMul(const tuttiCommunicator *c, const tuttiRedOp_t *op,
                                 const void *scalar, tuttiDataType_t type,
                                 tuttiScalarResidence_t residence) {
  TUTTI_TRY(tuttiCommReady(c));
  if (!op) return TUTTI_FAIL(tuttiInvalidArgument, "argument op is NULL");
  if (!scalar) return TUTTI_FAIL(tuttiInvalidArgument, "argument scalar is NULL");
  if ((int)type < 0 || type >= tuttiNumTypes)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument datatype is %d; it must be one of tuttiDataType_t, 0 to %d",
                      (int)type, tuttiNumTypes - 1);
  if (residence != tuttiScalarDevice && residence != tuttiScalarHostImmediate)
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument residence is %d; it must be tuttiScalarDevice or "
                      "tuttiScalarHostImmediate",
                      (int)residence);
  if ((uintptr_t)scalar % tuttiTypeSize(type))
    return TUTTI_FAIL(tuttiInvalidArgument,
                      "argument scalar (%p) is misaligned: %s needs a multiple of %zu bytes",
                      scalar, tuttiTypeName(type), tuttiTypeSize(type));
  return tuttiSuccess;
}

tuttiResult_t tuttiRedOpCreatePreMulSum(tuttiRedOp_t *op, void *scalar, tuttiDataType_t datatype,
                                        tuttiScalarResidence_t residence, tuttiComm_t comm) {
  tuttiCommunicator *c;
  TUTTI_TRY(tuttiHandleEnter(comm, __func__, &c));
  tuttiPreMul m = {true, datatype, residence, scalar, {0}};
  tuttiResult_t result = checkPreMul(c, op, scalar, datatype, residence);
  if (result == tuttiSuccess && residence == tuttiScalarHostImmediate)
    result = tuttiDeviceHostTable.readScalar(scalar, datatype, &m.scalar);
  if (result == tuttiSuccess) result = addPreMul(c, &m, op);
  tuttiHandleLeave(c);
  return result;
}

tuttiResult_t tuttiRedOpDestroy(tuttiRedOp_t op, tuttiComm_t comm) {
  tuttiCommunicator *c;
  TUTTI_TRY(tuttiHandleEnter(comm, __func__, &c));
  tuttiResult_t result = tuttiSuccess;
  int i = (int)op < 0 ? -1 : (int)op - tuttiNumOps;
  if (i < 0 || i >= c->npremul || !c->premul[i].used)
    result = TUTTI_FAIL(tuttiInvalidArgument,
                        "argument op is %d, no live handle of tuttiRedOpCreatePreMulSum of this "
                        "communicator",
                        (int)op);
  else
    c->premul[i].used = false;
  tuttiHandleLeave(c);
  return result;
}

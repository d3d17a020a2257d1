/* What public calls check of an argument: tuttiInvalidArgument, with the argument's name in the
 * error, if it is no good. Those that each operation needs are inline: it takes some 100 ns. */
#ifndef TUTTI_COMM_CHECK_H_
#define TUTTI_COMM_CHECK_H_

#include "comm/communicator.h"

/* `pointer`, which the call writes to, must not be NULL. */
tuttiResult_t tuttiCheckOutput(const char *argument, const void *pointer);

/* Arguments buff and size must describe memory: neither is 0, and it does not wrap. */
tuttiResult_t tuttiCheckRange(const void *buff, size_t size);

/* Argument datatype must be an element type. */
static inline tuttiResult_t tuttiCheckType(tuttiDataType_t type) {
  if ((int)type >= 0 && type < tuttiNumTypes) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument,
                    "argument datatype is %d; it must be one of tuttiDataType_t, 0 to %d",
                    (int)type, tuttiNumTypes - 1);
}

/* The device of `c` must be able to work on `buffer`. */
static inline tuttiResult_t tuttiCheckMemory(const tuttiCommunicator *c, const char *name,
                                             const void *buffer) {
  /* Host memory is not refused: no call through the table for the smallest operations. */
  const char *why = c->device->kind == tuttiDeviceHost ? NULL : c->device->refuse(buffer);
  if (why) return TUTTI_FAIL(tuttiInvalidArgument, "argument %s (%p) %s", name, buffer, why);
  return tuttiSuccess;
}

#endif

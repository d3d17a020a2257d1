#include "comm/check.h"

#include <stdint.h>

tuttiResult_t tuttiCheckOutput(const char *argument, const void *pointer) {
  if (pointer) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument, "argument %s is NULL", argument);
}

tuttiResult_t tuttiCheckRange(const void *buff, size_t size) {
  if (buff && size > 0 && (uintptr_t)buff <= UINTPTR_MAX - size) return tuttiSuccess;
  return TUTTI_FAIL(tuttiInvalidArgument, "arguments buff (%p) and size (%zu) describe no memory",
                    buff, size);
}

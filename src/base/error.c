#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

/* The public call this thread is in. */
typedef struct {
  const char *call, *comm;
  int rank, nranks;
} Scope;

static _Thread_local char lastText[TUTTI_ERROR_TEXT];
static _Thread_local Scope scope;

/* Ends a text that did not fit with "...", without leaving a part of a UTF-8 character. */
static void markTruncated(char *text, size_t size) {
  size_t end = size - sizeof("...");
  while (end > 0 && ((unsigned char)text[end] & 0xc0) == 0x80)
    end--;
  memcpy(text + end, "...", sizeof("..."));
}

tuttiResult_t tuttiErrorSet(tuttiResult_t code, const char *file, int line, const char *fmt, ...) {
  int savedErrno = errno;
  /* Not straight into lastText: the arguments may point there. */
  char text[TUTTI_ERROR_TEXT] = "";
  size_t used = 0;
  /* Names are bounded by their types: far shorter than text. */
  if (scope.call != NULL && scope.comm != NULL)
    used = (size_t)snprintf(text, sizeof(text), "%s (rank %d of %d, comm %s): ", scope.call,
                            scope.rank, scope.nranks, scope.comm);
  else if (scope.call != NULL)
    used = (size_t)snprintf(text, sizeof(text), "%s: ", scope.call);
  va_list args;
  va_start(args, fmt);
  if (vsnprintf(text + used, sizeof(text) - used, fmt, args) >= (int)(sizeof(text) - used))
    markTruncated(text, sizeof(text));
  va_end(args);
  memcpy(lastText, text, sizeof(text));
  if (tuttiLogEnabled(TUTTI_LOG_WARN, 0))
    tuttiLogWrite(TUTTI_LOG_WARN, "%s:%d %s", file, line, text);
  errno = savedErrno;
  return code;
}

tuttiResult_t tuttiErrorAdopt(tuttiResult_t code, const char *text) {
  size_t length = strnlen(text, sizeof(lastText));
  bool fits = length < sizeof(lastText);
  memmove(lastText, text, length + fits);
  if (!fits) markTruncated(lastText, sizeof(lastText));
  return code;
}

const char *tuttiErrorText(void) {
  return lastText;
}

void tuttiErrorClear(void) {
  lastText[0] = '\0';
}

void tuttiErrorScope(const char *call, const char *comm, int rank, int nranks) {
  scope = (Scope){call, comm, rank, nranks};
}

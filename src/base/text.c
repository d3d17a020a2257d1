#include "base/text.h"

#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ERRNO_TEXT 128

static _Thread_local char errnoText[ERRNO_TEXT];

const char *tuttiErrnoText(int err) {
  return strerror_r(err, errnoText, sizeof(errnoText)); /* GNU's: a constant, or the buffer */
}

static char hostname[HOST_NAME_MAX + 1];
static pthread_once_t hostnameOnce = PTHREAD_ONCE_INIT;

static void readHostname(void) {
  if (gethostname(hostname, sizeof(hostname)) != 0 || !hostname[0]) strcpy(hostname, "unknown");
  hostname[sizeof(hostname) - 1] = '\0';
  hostname[strcspn(hostname, ".")] = '\0';
}

const char *tuttiHostname(void) {
  pthread_once(&hostnameOnce, readHostname);
  return hostname;
}

void tuttiAppend(char *buf, size_t size, const char *fmt, ...) {
  size_t used = strlen(buf);
  va_list args;
  va_start(args, fmt);
  vsnprintf(buf + used, size - used, fmt, args);
  va_end(args);
}

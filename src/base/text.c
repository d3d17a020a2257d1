#include "base/text.h"

#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
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

/* Whether a character that starts with these bytes is shorter than written, a surrogate, or beyond
 * the last one. */
static bool noCharacter(unsigned char lead, unsigned char second) {
  if (lead == 0xe0) return second < 0xa0;
  if (lead == 0xed) return second > 0x9f;
  if (lead == 0xf0) return second < 0x90;
  return lead == 0xf4 && second > 0x8f;
}

/* Bytes of the UTF-8 character at `text`; 0 if it is none. */
static int utf8Length(const unsigned char *text) {
  unsigned char lead = text[0];
  int length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (lead > 0xf4) return 0;
  for (int i = 1; i < length; i++)
    if ((text[i] & 0xc0) != 0x80) return 0;
  if (length > 1 && noCharacter(lead, text[1])) return 0;
  return length;
}

void tuttiJsonString(FILE *out, const char *text) {
  putc('"', out);
  for (const unsigned char *c = (const unsigned char *)text; *c != '\0';) {
    int length = utf8Length(c);
    if (length == 0)
      fputs("\\ufffd", out);
    else if (*c == '"' || *c == '\\')
      fprintf(out, "\\%c", *c);
    else if (*c < 0x20 || *c == 0x7f)
      fprintf(out, "\\u%04x", *c);
    else
      fwrite(c, 1, (size_t)length, out);
    c += length > 0 ? length : 1;
  }
  putc('"', out);
}

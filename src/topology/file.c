#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/os.h"
#include "topology/xml.h"

tuttiResult_t tuttiXmlLoad(const char *path, char **text, size_t *size) {
  tuttiResult_t result = tuttiSuccess;
  char *buf = NULL;
  ssize_t used;
  struct stat st;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* no waiting for a FIFO's writer */
  if (fd < 0)
    return TUTTI_FAIL(tuttiInvalidArgument, "cannot open %s: %s", path, tuttiErrnoText(errno));
  if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
    result = TUTTI_FAIL(tuttiInvalidArgument, "%s is not a regular file", path);
  } else if (st.st_size > TUTTI_XML_MAX_BYTES) {
    result = TUTTI_FAIL(tuttiInvalidArgument, "%s has %lld bytes; at most %d are accepted", path,
                        (long long)st.st_size, TUTTI_XML_MAX_BYTES);
  } else {
    result = tuttiAlloc((void **)&buf, (size_t)st.st_size + 1, 1, path, NULL);
  }
  if (result != tuttiSuccess) goto done;
  used = tuttiReadAll(fd, buf, (size_t)st.st_size);
  if (used < 0) {
    result = TUTTI_FAIL(tuttiSystemError, "cannot read %s: %s", path, tuttiErrnoText(errno));
    tuttiFree(buf);
    goto done;
  }
  *text = buf;
  *size = (size_t)used;
done:
  close(fd);
  return result;
}

/* Writes all through fd, which it closes; 0 or an errno. */
static int writeAll(int fd, void (*write)(FILE *out, const void *object), const void *object) {
  FILE *out = fdopen(fd, "w");
  if (out == NULL) {
    int error = errno;
    close(fd);
    return error;
  }
  errno = 0;
  write(out, object);
  int error = fflush(out) != 0 || ferror(out) ? errno : 0;
  /* The stream is gone whatever fclose says; a network file system reports a full disk here. */
  if (fclose(out) != 0 && error == 0) error = errno;
  return error;
}

tuttiResult_t tuttiSaveFile(const char *path, const char *what,
                            void (*write)(FILE *out, const void *object), const void *object) {
  char temporary[PATH_MAX];
  struct stat st;
  bool direct = stat(path, &st) == 0 && !S_ISREG(st.st_mode);
  int length = snprintf(temporary, sizeof temporary, direct ? "%s" : "%s.XXXXXX", path);
  if (length >= (int)sizeof temporary)
    return TUTTI_FAIL(tuttiInvalidArgument, "cannot write %s: the path of %d bytes is too long",
                      what, length);
  int fd = direct ? open(path, O_WRONLY | O_CLOEXEC) : mkostemp(temporary, O_CLOEXEC);
  int error = fd < 0 ? errno : 0;
  if (error == 0 && !direct && fchmod(fd, 0644) != 0) error = errno;
  if (fd >= 0) {
    int written = writeAll(fd, write, object);
    if (error == 0) error = written;
  }
  if (error == 0 && !direct && rename(temporary, path) != 0) error = errno;
  if (error == 0) return tuttiSuccess;
  if (fd >= 0 && !direct) unlink(temporary);
  return TUTTI_FAIL(tuttiSystemError, "cannot write %s to %s: %s", what, path,
                    tuttiErrnoText(error));
}

void tuttiXmlPut(FILE *out, const char *name, const char *value) {
  fprintf(out, " %s=\"", name);
  for (const char *c = value; *c != '\0'; c++) {
    const char *escaped = *c == '&'   ? "&amp;"
                          : *c == '<' ? "&lt;"
                          : *c == '>' ? "&gt;"
                          : *c == '"' ? "&quot;"
                                      : NULL;
    if (escaped != NULL)
      fputs(escaped, out);
    else
      fputc(*c, out);
  }
  fputc('"', out);
}

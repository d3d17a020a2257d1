/* Reads a recording: files and links go into a directory of their own, which the topology can be
 * detected in as in /sys. All of it is checked: no name leaves that directory, no link leads out of
 * it, and sizes are bounded. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/os.h"
#include "doctor/machine.h"
#include "doctor/recording.h"

#define ROOM_BYTES (32ull << 20) /* all that a recording can take, and some more */

/* A link, which is made when all else is there: nothing is ever written through one. */
typedef struct {
  char dir[TUTTI_RECORDING_PATH], name[NAME_MAX + 1], target[TUTTI_RECORDING_PATH];
} recordedLink;

typedef struct {
  tuttiMachine *m;
  const char *file;                    /* name of the recording */
  int line, files;                     /* so far */
  char dir[TUTTI_RECORDING_PATH];      /* of the "at" in force */
  char open[NAME_MAX + 1];             /* the file that a line with a tab goes on with; "" */
  char text[TUTTI_RECORDING_TEXT + 1]; /* of that file */
  size_t length;
  int openLine;
  recordedLink *links;
  int nlinks, linksCapacity;
} reading;

static tuttiResult_t wrong(const reading *r, const char *what) {
  return TUTTI_FAIL(tuttiInvalidArgument, "%s:%d: %s", r->file, r->line, what);
}

/* ---- names ---------------------------------------------------------------------------------- */

static bool isName(const char *name, size_t length) {
  if (length == 0 || length > NAME_MAX || (length == 1 && name[0] == '.') ||
      (length == 2 && name[0] == '.' && name[1] == '.'))
    return false;
  for (size_t i = 0; i < length; i++)
    if ((unsigned char)name[i] <= ' ' || (unsigned char)name[i] >= 0x7f || name[i] == '/')
      return false;
  return true;
}

/* "a/b/c", none of it "." or "..". */
static bool isPath(const char *path) {
  for (const char *at = path;; at++) {
    size_t length = strcspn(at, "/");
    if (!isName(at, length)) return false;
    at += length;
    if (*at == '\0') return strlen(path) < TUTTI_RECORDING_PATH;
  }
}

/* A target is some "../", no more than `dir` is deep, and then a path. */
static bool staysInside(const char *dir, const char *target) {
  int depth = 1;
  for (const char *c = dir; *c; c++)
    depth += *c == '/';
  for (; strncmp(target, "../", 3) == 0; target += 3)
    depth--;
  return depth >= 0 && isPath(target);
}

/* ---- files ---------------------------------------------------------------------------------- */

static tuttiResult_t makeDir(const reading *r, const char *dir) {
  char path[PATH_MAX];
  tuttiMachinePath(r->m, dir, path);
  for (char *slash = path + strlen(r->m->root) + 1; slash != NULL;) {
    slash = strchr(slash, '/');
    if (slash) *slash = '\0';
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
      return TUTTI_FAIL(tuttiSystemError, "cannot make %s for the recording: %s", path,
                        tuttiErrnoText(errno));
    if (slash) *slash++ = '/';
  }
  return tuttiSuccess;
}

static tuttiResult_t makeFile(reading *r, const char *name, const void *text, size_t length) {
  char path[PATH_MAX], in[TUTTI_RECORDING_PATH + NAME_MAX + 2];
  snprintf(in, sizeof in, "%s/%s", r->dir, name);
  if (++r->files > TUTTI_RECORDING_FILES) return wrong(r, "too many files");
  TUTTI_TRY(makeDir(r, r->dir));
  TUTTI_CLOSED int fd =
      open(tuttiMachinePath(r->m, in, path), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0 && errno == EEXIST) return wrong(r, "this name is there already");
  if (fd < 0 || write(fd, text, length) != (ssize_t)length)
    return TUTTI_FAIL(tuttiSystemError, "cannot write %s for the recording: %s", path,
                      tuttiErrnoText(errno));
  return tuttiSuccess;
}

/* Writes the file that lines with a tab went on with. */
static tuttiResult_t closeOpen(reading *r) {
  if (r->open[0] == '\0') return tuttiSuccess;
  char name[NAME_MAX + 1];
  memcpy(name, r->open, sizeof name);
  r->open[0] = '\0';
  int line = r->line;
  r->line = r->openLine; /* for the error */
  TUTTI_TRY(makeFile(r, name, r->text, r->length));
  r->line = line;
  return tuttiSuccess;
}

static tuttiResult_t appendText(reading *r, const char *text) {
  size_t length = strlen(text);
  if (r->length + length + 1 > TUTTI_RECORDING_TEXT) return wrong(r, "this file is too long");
  memcpy(r->text + r->length, text, length);
  r->length += length;
  r->text[r->length++] = '\n';
  return tuttiSuccess;
}

/* ---- kinds of lines ------------------------------------------------------------------------- */

static tuttiResult_t onFile(reading *r, const char *name, const char *value) {
  snprintf(r->open, sizeof r->open, "%s", name);
  r->length = 0;
  r->openLine = r->line;
  return appendText(r, value);
}

/* "40:10 42:02 00 01": bytes from these offsets on. */
static tuttiResult_t onBytes(reading *r, const char *name, const char *value) {
  uint8_t bytes[TUTTI_RECORDING_TEXT] = {0};
  unsigned long at = 0, length = 0;
  for (const char *c = value; *c != '\0';) {
    char *end;
    unsigned long number = strtoul(c, &end, 16);
    if (end == c) return wrong(r, "bytes must be hexadecimal numbers");
    if (*end == ':') {
      at = number;
      c = end + 1;
      continue;
    }
    if (number > 0xff || at >= sizeof bytes) return wrong(r, "a byte is too large or too far");
    bytes[at++] = (uint8_t)number;
    if (at > length) length = at;
    c = end + strspn(end, " ");
  }
  return makeFile(r, name, bytes, length);
}

static tuttiResult_t onLink(reading *r, const char *name, const char *target) {
  if (!staysInside(r->dir, target)) return wrong(r, "a link must lead to a place inside");
  if (r->nlinks == TUTTI_RECORDING_FILES) return wrong(r, "too many links");
  TUTTI_TRY(makeDir(r, r->dir));
  TUTTI_TRY(tuttiGrow((void **)&r->links, r->nlinks, &r->linksCapacity, sizeof *r->links,
                      "links of a recording", NULL));
  recordedLink *l = &r->links[r->nlinks++];
  snprintf(l->dir, sizeof l->dir, "%s", r->dir);
  snprintf(l->name, sizeof l->name, "%s", name);
  snprintf(l->target, sizeof l->target, "%s", target);
  return tuttiSuccess;
}

static tuttiResult_t onDenied(reading *r, const char *name, const char *value) {
  tuttiMachine *m = r->m;
  (void)value;
  TUTTI_TRY(makeFile(r, name, "", 0));
  TUTTI_TRY(tuttiGrow((void **)&m->denied, m->ndenied, &m->deniedCapacity, sizeof *m->denied,
                      "names of a recording", NULL));
  size_t size = strlen(r->dir) + strlen(name) + 2;
  TUTTI_NEW(m->denied[m->ndenied], size, "a name of a recording", NULL);
  snprintf(m->denied[m->ndenied++], size, "%s/%s", r->dir, name);
  return tuttiSuccess;
}

static tuttiResult_t onAnswer(reading *r, const char *key, const char *value) {
  if (strlen(key) >= TUTTI_ANSWER_KEY || strlen(value) >= TUTTI_ANSWER_VALUE)
    return wrong(r, "an answer is too long");
  if (++r->files > TUTTI_RECORDING_FILES) return wrong(r, "too many answers");
  return tuttiMachineTell(r->m, value, "%s", key);
}

/* "NAME MARK VALUE". */
static tuttiResult_t onEntry(reading *r, char *line) {
  static const struct {
    const char *mark;
    tuttiResult_t (*take)(reading *r, const char *name, const char *value);
  } kinds[] = {{"=", onFile}, {":", onBytes}, {"->", onLink}, {"!", onDenied}};
  char *mark = strchr(line, ' ');
  if (r->dir[0] == '\0') return wrong(r, "'at DIRECTORY' must come first");
  if (mark == NULL || !isName(line, (size_t)(mark - line)))
    return wrong(r, "it must begin with a name and a space");
  *mark++ = '\0';
  size_t length = strcspn(mark, " ");
  const char *value = mark[length] ? mark + length + 1 : "";
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (strlen(kinds[i].mark) == length && strncmp(kinds[i].mark, mark, length) == 0)
      return kinds[i].take(r, line, value);
  return wrong(r, "after the name there must be one of = : -> !");
}

static tuttiResult_t onLine(reading *r, char *line) {
  if (line[0] == '\t' && r->open[0] != '\0') return appendText(r, line + 1);
  TUTTI_TRY(closeOpen(r));
  if (line[0] == '\0' || line[0] == '#') return tuttiSuccess;
  if (strncmp(line, "at ", 3) == 0) {
    if (!isPath(line + 3)) return wrong(r, "this is no path of a directory");
    snprintf(r->dir, sizeof r->dir, "%s", line + 3);
    return makeDir(r, r->dir);
  }
  if (strncmp(line, "? ", 2) != 0) return onEntry(r, line);
  char *equals = strstr(line, " =");
  if (equals == NULL || (equals[2] != ' ' && equals[2] != '\0'))
    return wrong(r, "an answer must be '? KEY = VALUE'");
  *equals = '\0';
  return onAnswer(r, line + 2, equals[2] ? equals + 3 : "");
}

/* ---- the whole ------------------------------------------------------------------------------ */

/* Where a link leads, as it is written: some of the kernel's lead to what no recording holds, and
 * becomes an empty directory here. */
static tuttiResult_t makeTarget(const reading *r, const recordedLink *l) {
  char path[2 * TUTTI_RECORDING_PATH], full[PATH_MAX];
  const char *target = l->target;
  snprintf(path, sizeof path, "%s", l->dir);
  for (; strncmp(target, "../", 3) == 0; target += 3) {
    char *slash = strrchr(path, '/');
    path[slash ? slash - path : 0] = '\0';
  }
  tuttiAppend(path, sizeof path, "%s%s", path[0] ? "/" : "", target);
  return access(tuttiMachinePath(r->m, path, full), F_OK) == 0 ? tuttiSuccess : makeDir(r, path);
}

static tuttiResult_t makeLinks(reading *r) {
  char in[TUTTI_RECORDING_PATH + NAME_MAX + 2], path[PATH_MAX];
  for (int i = 0; i < r->nlinks; i++)
    TUTTI_TRY(makeTarget(r, &r->links[i]));
  for (int i = 0; i < r->nlinks; i++) {
    const recordedLink *l = &r->links[i];
    snprintf(in, sizeof in, "%s/%s", l->dir, l->name);
    if (symlink(l->target, tuttiMachinePath(r->m, in, path)) != 0)
      return TUTTI_FAIL(errno == EEXIST ? tuttiInvalidArgument : tuttiSystemError,
                        "%s: the link %s cannot be made: %s", r->file, in, tuttiErrnoText(errno));
  }
  return tuttiSuccess;
}

static tuttiResult_t makeRoot(tuttiMachine *m) {
  /* In memory where there is room for that: it is hundreds of small files. */
  struct statvfs st;
  bool room = access("/dev/shm", W_OK | X_OK) == 0 && statvfs("/dev/shm", &st) == 0 &&
              (unsigned long long)st.f_bavail * st.f_bsize >= ROOM_BYTES;
  const char *dir = room ? "/dev/shm" : "/tmp";
  char root[64];
  snprintf(root, sizeof root, "%s/tutti-doctor-XXXXXX", dir);
  if (mkdtemp(root) == NULL)
    return TUTTI_FAIL(tuttiSystemError, "cannot make a directory in %s for the recording: %s", dir,
                      tuttiErrnoText(errno));
  snprintf(m->root, sizeof m->root, "%s", root);
  m->recorded = true;
  return tuttiSuccess;
}

static tuttiResult_t readLines(reading *r, char *text, size_t size) {
  if (memchr(text, '\0', size) != NULL) return wrong(r, "this is no text");
  for (char *line = text, *next; line != NULL; line = next) {
    next = strchr(line, '\n');
    if (next) *next++ = '\0';
    r->line++;
    if (r->line > 1)
      TUTTI_TRY(onLine(r, line));
    else if (strcmp(line, TUTTI_RECORDING_HEAD) != 0)
      return wrong(r, "a recording begins with '" TUTTI_RECORDING_HEAD "'");
  }
  TUTTI_TRY(closeOpen(r));
  return makeLinks(r);
}

tuttiResult_t tuttiMachineOpen(tuttiMachine *m, const char *recording) {
  *m = (tuttiMachine){0};
  TUTTI_FRESH(char, text, TUTTI_RECORDING_BYTES + 1, "a recording", NULL);
  TUTTI_FRESH(reading, r, 1, "a recording", NULL);
  TUTTI_CLOSED int fd = open(recording, O_RDONLY | O_CLOEXEC);
  ssize_t size = fd < 0 ? -1 : tuttiReadAll(fd, text, TUTTI_RECORDING_BYTES + 1);
  if (size < 0)
    return TUTTI_FAIL(tuttiInvalidArgument, "cannot read %s: %s", recording, tuttiErrnoText(errno));
  if (size > TUTTI_RECORDING_BYTES)
    return TUTTI_FAIL(tuttiInvalidArgument, "%s is longer than %d bytes", recording,
                      TUTTI_RECORDING_BYTES);
  *r = (reading){.m = m, .file = recording};
  TUTTI_TRY(makeRoot(m));
  tuttiResult_t result = readLines(r, text, (size_t)size);
  tuttiFree(r->links);
  return result;
}

#include "doctor/machine.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/os.h"

/* ---- files ---------------------------------------------------------------------------------- */

const char *tuttiMachinePath(const tuttiMachine *m, const char *path, char buf[PATH_MAX]) {
  int length = snprintf(buf, PATH_MAX, "%s/%s", m->root, path);
  if (length >= PATH_MAX) buf[0] = '\0'; /* which no file has */
  return buf;
}

static bool isDenied(const tuttiMachine *m, const char *path) {
  for (int i = 0; i < m->ndenied; i++)
    if (strcmp(m->denied[i], path) == 0) return true;
  return false;
}

bool tuttiMachineRead(const tuttiMachine *m, const char *path, char *buf, size_t size) {
  char full[PATH_MAX];
  buf[0] = '\0';
  return !isDenied(m, path) && tuttiReadFile(tuttiMachinePath(m, path, full), buf, size);
}

long tuttiMachineNumber(const tuttiMachine *m, const char *dir, const char *file, long missing) {
  char path[PATH_MAX], text[64], *end;
  if (snprintf(path, sizeof path, "%s/%s", dir, file) >= (int)sizeof path ||
      !tuttiMachineRead(m, path, text, sizeof text))
    return missing;
  errno = 0;
  long value = strtol(text, &end, strncmp(text, "0x", 2) == 0 ? 16 : 10);
  return end == text || errno ? missing : value;
}

int tuttiMachineAccess(const tuttiMachine *m, const char *path) {
  char full[PATH_MAX];
  struct stat st;
  if (isDenied(m, path)) return EACCES;
  if (stat(tuttiMachinePath(m, path, full), &st) != 0) return errno;
  return access(full, S_ISCHR(st.st_mode) ? R_OK | W_OK : R_OK) == 0 ? 0 : errno;
}

bool tuttiMachineLink(const tuttiMachine *m, const char *path, char *buf, size_t size) {
  char full[PATH_MAX], target[PATH_MAX];
  ssize_t n = readlink(tuttiMachinePath(m, path, full), target, sizeof target - 1);
  buf[0] = '\0';
  if (n <= 0) return false;
  target[n] = '\0';
  const char *slash = strrchr(target, '/');
  return snprintf(buf, size, "%s", slash ? slash + 1 : target) < (int)size;
}

tuttiResult_t tuttiMachineList(const tuttiMachine *m, const char *dir, tuttiName **names, int *n) {
  char full[PATH_MAX];
  struct dirent **entries;
  *n = 0;
  *names = NULL;
  int found = scandir(tuttiMachinePath(m, dir, full), &entries, NULL, versionsort);
  if (found <= 0) return tuttiSuccess;
  tuttiResult_t result =
      tuttiAlloc((void **)names, (size_t)found, sizeof **names, "names of a directory", NULL);
  for (int i = 0; i < found; i++) {
    if (result == tuttiSuccess && entries[i]->d_name[0] != '.')
      snprintf((*names)[(*n)++], sizeof **names, "%s", entries[i]->d_name);
    free(entries[i]);
  }
  free(entries);
  return result;
}

/* ---- answers -------------------------------------------------------------------------------- */

/* Index of the first answer whose key is not before `key`. */
static int placeOf(const tuttiMachine *m, const char *key) {
  int low = 0, high = m->nanswers;
  while (low < high) {
    int middle = (low + high) / 2;
    if (strcmp(m->answers[middle].key, key) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static const char *find(const tuttiMachine *m, const char *key) {
  int at = placeOf(m, key);
  return at < m->nanswers && strcmp(m->answers[at].key, key) == 0 ? m->answers[at].value : NULL;
}

const char *tuttiMachineAnswer(const tuttiMachine *m, const char *key, ...) {
  char text[TUTTI_ANSWER_KEY];
  va_list args;
  va_start(args, key);
  vsnprintf(text, sizeof text, key, args);
  va_end(args);
  return find(m, text);
}

bool tuttiMachineSaid(const tuttiMachine *m, const char *key, const char *value) {
  const char *said = find(m, key);
  return said && strcmp(said, value) == 0;
}

static void copyPrintable(char *to, size_t size, const char *from) {
  size_t i = 0;
  for (; i + 1 < size && from[i] != '\0'; i++)
    to[i] = (unsigned char)from[i] >= ' ' && from[i] != 0x7f ? from[i] : '?';
  to[i] = '\0';
}

tuttiResult_t tuttiMachineTell(tuttiMachine *m, const char *value, const char *key, ...) {
  char text[TUTTI_ANSWER_KEY];
  va_list args;
  va_start(args, key);
  vsnprintf(text, sizeof text, key, args);
  va_end(args);
  int at = placeOf(m, text);
  if (find(m, text) == NULL) {
    TUTTI_TRY(tuttiGrow((void **)&m->answers, m->nanswers, &m->answersCapacity, sizeof *m->answers,
                        "answers of a machine", NULL));
    memmove(&m->answers[at + 1], &m->answers[at], (size_t)(m->nanswers - at) * sizeof *m->answers);
    m->nanswers++;
    copyPrintable(m->answers[at].key, sizeof m->answers[at].key, text);
  }
  copyPrintable(m->answers[at].value, sizeof m->answers[at].value, value);
  return tuttiSuccess;
}

/* ---- life ----------------------------------------------------------------------------------- */

tuttiResult_t tuttiMachineAsk(tuttiMachine *m, bool live) {
  *m = (tuttiMachine){0};
  TUTTI_TRY(tuttiAskHost(m));
  TUTTI_TRY(tuttiAskNetwork(m));
  TUTTI_TRY(tuttiAskNvml(m));
  TUTTI_TRY(tuttiAskGpus(m));
  TUTTI_TRY(tuttiAskCuda(m));
  TUTTI_TRY(tuttiAskVerbs(m));
  if (live) TUTTI_TRY(tuttiTryPorts(m));
  return live ? tuttiTryCopies(m) : tuttiSuccess;
}

static int removeEntry(const char *path, const struct stat *st, int kind, struct FTW *at) {
  (void)st, (void)kind, (void)at;
  (void)remove(path);
  return 0;
}

void tuttiMachineClose(tuttiMachine *m) {
  if (m->recorded && m->root[0] != '\0') nftw(m->root, removeEntry, 16, FTW_DEPTH | FTW_PHYS);
  for (int i = 0; i < m->ndenied; i++)
    tuttiFree(m->denied[i]);
  tuttiFree(m->denied);
  tuttiFree(m->answers);
  *m = (tuttiMachine){0};
}

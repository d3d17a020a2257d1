/* `tutti trace merge`: the records of several ranks on one timeline. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "ras/report.h"
#include "tool.h"

#define COMMAND    "tutti trace"
#define MOST_BYTES ((size_t)256 << 20)

/* Adds what one file holds; false: it says why. */
static bool takeFile(const char *path, tuttiSnapshot *s) {
  char why[TUTTI_WHY];
  size_t size = 0;
  TUTTI_CLOSED int fd = tuttiOpenRegular(path, MOST_BYTES, &size, why);
  if (fd < 0) {
    fprintf(stderr, COMMAND ": %s%s\n", path, why);
    return false;
  }
  char *text = malloc(size + 1);
  ssize_t got = text ? tuttiReadAll(fd, text, size) : -1;
  bool taken = got > 0 && tuttiReportDumpTake(text, (size_t)got, s);
  if (!taken)
    fprintf(stderr, COMMAND ": %s is no record of tuttiCommDump of this version of tutti\n", path);
  free(text);
  return taken;
}

static bool writeTrace(const tuttiSnapshot *s, const char *into) {
  FILE *out = into ? fopen(into, "we") : stdout;
  if (!out) {
    fprintf(stderr, COMMAND ": cannot write %s: %s\n", into, strerror(errno));
    return false;
  }
  tuttiReportTrace(s, out);
  bool written = tuttiFlushed(out, COMMAND, into ? into : "the output");
  if (out != stdout && fclose(out) != 0) written = false;
  return written;
}

int tuttiToolTrace(int argc, char **argv) {
  const char *into = NULL;
  const tuttiOption table[] = {
      {.name = "output",
       .value = "FILE",
       .help = "write to this file, not to stdout",
       .text = &into},
  };
  int code = tuttiParseOptions(
      COMMAND,
      "Usage: tutti trace merge [OPTION]... FILE...\n"
      "Joins what tuttiCommDump has written on several ranks into one trace for Perfetto or\n"
      "chrome://tracing, all ranks on one clock.\n\n",
      table, sizeof table / sizeof table[0], "", argc, argv);
  if (code >= 0) return code;
  if (optind >= argc || strcmp(argv[optind], "merge") != 0)
    return tuttiUsage(COMMAND, "the word 'merge' is missing");
  if (optind + 1 >= argc) return tuttiUsage(COMMAND, "no file to merge");
  tuttiSnapshot s = {0};
  bool all = true;
  for (int i = optind + 1; i < argc && all; i++)
    all = takeFile(argv[i], &s);
  bool written = all && writeTrace(&s, into);
  tuttiSnapshotFree(&s);
  return written ? TUTTI_EXIT_OK : TUTTI_EXIT_FAILED;
}

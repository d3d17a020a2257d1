/* The commands of the `tutti` tool, and what they share. */
#ifndef TUTTI_TOOLS_TOOL_H_
#define TUTTI_TOOLS_TOOL_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/cdefs.h>

#include "base/text.h"

__BEGIN_DECLS

enum { TUTTI_EXIT_OK = 0, TUTTI_EXIT_FAILED = 1, TUTTI_EXIT_USAGE = 2, TUTTI_EXIT_BAD = 3 };

/* The commands. Each takes its own name as argv[0] and returns the exit code: 0, 1 on a failure, 2
 * on bad arguments. */
int tuttiToolPerf(int argc, char **argv);
int tuttiToolRun(int argc, char **argv);
int tuttiToolTopo(int argc, char **argv);
int tuttiToolEnv(int argc, char **argv);
int tuttiToolDoctor(int argc, char **argv);   /* also 3, on a warning */
int tuttiToolNetcheck(int argc, char **argv); /* also 3 for findings, 4 for wrong bytes */
int tuttiToolTrace(int argc, char **argv);
int tuttiToolStatus(int argc, char **argv); /* also 3, if something is wrong */

/* ---- words and numbers on the command line and in the output (text.c) ----------------------- */

/* Prints "COMMAND: TEXT" and where help is, on stderr; returns TUTTI_EXIT_USAGE. */
int tuttiUsage(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* One option, or with no name a heading of the help. The one of the pointers that is set says what
 * its value is and takes it. */
typedef struct {
  const char *name, *value; /* "ranks", "N"; no value: a flag */
  const char *help;         /* lines, the first without indentation */
  bool *flag;
  size_t *size;                  /* bytes, as of tuttiParseSize, not 0 */
  const char **text;             /* points into argv */
  int *number;                   /* within min and max, or the index of one of the words */
  const char *const *words;      /* [nwords] */
  int (*find)(const char *word); /* index of a word or of another name for it; -1: none */
  int min, max, nwords;
  bool all; /* "all" is a word too, and gives -1 */
} tuttiOption;

/* Takes all options out of argv and answers --help: `usage`, the options, `more`. Returns -1 with
 * optind at the first other argument, or the exit code. */
int tuttiParseOptions(const char *command, const char *usage, const tuttiOption *options, int n,
                      const char *more, int argc, char **argv);

/* A whole number within min and max. */
bool tuttiParseInt(const char *text, int64_t min, int64_t max, int64_t *out);
/* A number of bytes: digits and K, M, G or T (powers of 1024), then perhaps B or iB. */
bool tuttiParseSize(const char *text, size_t *out);

/* Flushes `out`; if that or an earlier write failed, says so on stderr and returns false. */
bool tuttiFlushed(FILE *out, const char *command, const char *name);

__END_DECLS

#endif

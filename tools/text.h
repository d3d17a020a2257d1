/* Words and numbers on the command line and in the output. */
#ifndef TUTTI_TOOLS_TEXT_H_
#define TUTTI_TOOLS_TEXT_H_

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

/* The word nearest to `word`, or NULL if none is close. words[n] in any order. */
const char *tuttiNearest(const char *word, const char *const *words, int n);

/* Prints "COMMAND: TEXT" and where help is, on stderr; returns TUTTI_EXIT_USAGE. */
int tuttiUsage(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Says why getopt_long returned '?' or ':', with the nearest option; returns TUTTI_EXIT_USAGE. For
 * use with opterr == 0 and a short option string that starts with ':'. */
int tuttiUsageOption(const char *command, const struct option *table, char *const *argv);

/* A whole number within min and max. */
bool tuttiParseInt(const char *text, int64_t min, int64_t max, int64_t *out);
/* A number of bytes: digits and K, M, G or T (powers of 1024), then perhaps B or iB. */
bool tuttiParseSize(const char *text, size_t *out);

/* A JSON string in quotes; what is not UTF-8 becomes U+FFFD. */
void tuttiJsonString(FILE *out, const char *text);

/* Flushes `out`; if that or an earlier write failed, says so on stderr and returns false. */
bool tuttiFlushed(FILE *out, const char *command, const char *name);

__END_DECLS

#endif

/* What is known of a job, in words: for people, as JSON with NCCL's keys and more, for Prometheus,
 * and as a trace for Perfetto; and as bytes for `tutti status`, which makes all of these itself. */
#ifndef TUTTI_RAS_REPORT_H_
#define TUTTI_RAS_REPORT_H_

#include <stdio.h>
#include <sys/cdefs.h>

#include "ras/facts.h"

__BEGIN_DECLS

/* The verdicts first, then the ranks. */
void tuttiReportText(const tuttiSnapshot *s, FILE *out);
void tuttiReportJson(const tuttiSnapshot *s, FILE *out);
void tuttiReportPrometheus(const tuttiSnapshot *s, FILE *out);
/* Chrome's trace event format: a process per rank, an event per operation that was stamped, all on
 * the clock of the first rank. */
void tuttiReportTrace(const tuttiSnapshot *s, FILE *out);
void tuttiReportFacts(const tuttiSnapshot *s, FILE *out);
/* A trace that tuttiReportDumpTake can read again: it holds the facts, too. */
void tuttiReportDump(const tuttiSnapshot *s, FILE *out);
/* That in the file `path`, as tuttiSaveFile does it; `asked`: what gave the path. */
tuttiResult_t tuttiReportSave(const tuttiSnapshot *s, const char *path, const char *asked);

/* One of these in memory, for free(); NULL: there was no memory. *bytes may be NULL. */
char *tuttiReportMakeSized(const tuttiSnapshot *s, void (*write)(const tuttiSnapshot *, FILE *),
                           size_t *bytes);
static inline char *tuttiReportMake(const tuttiSnapshot *s,
                                    void (*write)(const tuttiSnapshot *, FILE *)) {
  return tuttiReportMakeSized(s, write, NULL);
}

/* Adds to *s what tuttiReportFacts of this version has written, each rank only if it holds
 * together; false: these bytes are none of that, or not all. */
bool tuttiReportFactsTake(const void *bytes, size_t size, tuttiSnapshot *s);
/* The same of a dump, `text` of `size` bytes, which need not end with 0. */
bool tuttiReportDumpTake(const char *text, size_t size, tuttiSnapshot *s);

__END_DECLS

#endif

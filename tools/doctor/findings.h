/* What the doctor has found, in one list. */
#ifndef TUTTI_TOOLS_DOCTOR_FINDINGS_H_
#define TUTTI_TOOLS_DOCTOR_FINDINGS_H_

#include <stdbool.h>
#include <sys/cdefs.h>

#include "tutti.h"

__BEGIN_DECLS

/* Mildest first. A note is no fault; a warning costs speed or safety; with a failure something does
 * not work. */
#define TUTTI_SEVERITIES(X)        X(OK, "ok") X(NOTE, "note") X(WARNING, "warning") X(FAILURE, "failure")
#define TUTTI_SEVERITY(name, word) TUTTI_FOUND_##name,
typedef enum { TUTTI_SEVERITIES(TUTTI_SEVERITY) TUTTI_FOUND_COUNT } tuttiSeverity;
extern const char *const tuttiSeverityNames[TUTTI_FOUND_COUNT];

typedef struct {
  const char *id; /* "gpu.driver": which check, the same in all versions */
  tuttiSeverity severity;
  char subject[192];  /* which things: "mlx5_0, mlx5_3" */
  char sentence[768]; /* what is so, without a full stop */
  char remedy[384];   /* a command to type, or "": nothing is to be done here */
} tuttiFinding;

#define TUTTI_MOST_FINDINGS 256
typedef struct {
  tuttiFinding list[TUTTI_MOST_FINDINGS];
  int n, lost; /* those that there was no room for */
} tuttiFindings;

/* Adds one. What is the same but for its subject becomes one with both subjects. `id` and `remedy`
 * are literals or outlive the call; the id outlives the list. */
void tuttiFind(tuttiFindings *f, tuttiSeverity severity, const char *id, const char *subject,
               const char *remedy, const char *sentence, ...) __attribute__((format(printf, 6, 7)));
/* Whether there is one of this check. */
bool tuttiFound(const tuttiFindings *f, const char *id);
tuttiSeverity tuttiWorst(const tuttiFindings *f);
/* Worst first; among equals as they were found. */
void tuttiFindingsSort(tuttiFindings *f);

__END_DECLS

#endif

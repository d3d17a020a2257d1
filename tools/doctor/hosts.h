/* Several machines side by side: each sends its findings as lines, and the summary says in what
 * they differ. */
#ifndef TUTTI_TOOLS_DOCTOR_HOSTS_H_
#define TUTTI_TOOLS_DOCTOR_HOSTS_H_

#include <stdio.h>
#include <sys/cdefs.h>

#include "doctor/view.h"

__BEGIN_DECLS

#define TUTTI_HOST_BYTES 65536 /* of what one host sends */
#define TUTTI_MOST_HOSTS 1024

typedef struct {
  char name[128];
  char *text;        /* [TUTTI_HOST_BYTES], what it sent; it is taken apart in place */
  char trouble[160]; /* why there is nothing to be believed; "" */
  double skew;       /* seconds that its clock is ahead, where `timed` */
  bool timed;
} tuttiHostReport;

/* What one host sends: facts that should be alike on all, findings above ok, and the time. */
void tuttiHostLines(const tuttiView *v, const tuttiFindings *f, FILE *out);

/* Compares them and prints in what they differ, then what is the same on all; returns the worst. A
 * host whose lines are not what they should be is a failure of its own. */
tuttiSeverity tuttiHostsCompare(tuttiHostReport *hosts, int n, FILE *out);

/* Runs `tutti doctor` on the hosts of a list "h1,h2" by ssh, all at once, and compares them. False:
 * the list is no such list, and *wrong says why. */
bool tuttiHostsBySsh(const char *list, bool quick, FILE *out, tuttiSeverity *worst,
                     const char **wrong);

__END_DECLS

#endif

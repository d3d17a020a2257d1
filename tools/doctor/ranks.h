/* The doctor under mpirun, srun and torchrun. */
#ifndef TUTTI_TOOLS_DOCTOR_RANKS_H_
#define TUTTI_TOOLS_DOCTOR_RANKS_H_

#include <stdio.h>
#include <sys/cdefs.h>

#include "doctor/view.h"
#include "perf.h"

__BEGIN_DECLS

typedef struct {
  const perfPlace *place;
  tuttiComm_t comm; /* NULL: they have not met, or parted */
  bool looks;       /* this one at its host; the others of the host wait for it */
} tuttiRanks;

/* Every rank of the launcher calls it first. By their host ids, as not every launcher tells which
 * ranks share a host, the first of each host looks at it: alone, for several would find each other
 * where they measure. They meet as tutti's ranks do in host memory, so that this can fail too. */
tuttiResult_t tuttiRanksMeet(tuttiRanks *ranks);

/* Then every rank calls it, with what it has found, or with NULL if another rank looks at its host.
 * Rank 0 prints the comparison; *worst is that of all hosts there, and ok elsewhere. They part,
 * also on failure. */
tuttiResult_t tuttiHostsByRanks(tuttiRanks *ranks, const tuttiView *v, const tuttiFindings *f,
                                FILE *out, tuttiSeverity *worst);

/* Lets those that wait for this one fail, if they have not parted. */
void tuttiRanksLeave(tuttiRanks *ranks);

__END_DECLS

#endif

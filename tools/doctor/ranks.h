/* The doctor under mpirun, srun and torchrun. */
#ifndef TUTTI_TOOLS_DOCTOR_RANKS_H_
#define TUTTI_TOOLS_DOCTOR_RANKS_H_

#include <stdio.h>
#include <sys/cdefs.h>

#include "doctor/view.h"
#include "perf.h"

__BEGIN_DECLS

/* Every rank of the launcher calls it, with what it has found, or with NULL if another rank looks
 * at its host. Rank 0 prints the comparison; *worst is that of all hosts there, and ok elsewhere.
 * They meet as tutti's ranks do in host memory, so that this can fail too. */
tuttiResult_t tuttiHostsByRanks(const perfPlace *place, const tuttiView *v, const tuttiFindings *f,
                                FILE *out, tuttiSeverity *worst);

__END_DECLS

#endif

/* What the files of `tutti doctor` share. */
#ifndef TUTTI_TOOLS_DOCTOR_DOCTOR_H_
#define TUTTI_TOOLS_DOCTOR_DOCTOR_H_

#include <sys/cdefs.h>

#include "doctor/findings.h"

__BEGIN_DECLS

/* The exit code for the worst finding. */
#define TUTTI_EXIT_WARNED 3
int tuttiDoctorExit(tuttiSeverity worst);

__END_DECLS

#endif

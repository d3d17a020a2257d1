/* What the doctor has seen and found, as text for people, as JSON (docs/doctor.schema.json), and as
 * a script. */
#ifndef TUTTI_TOOLS_DOCTOR_PRINT_H_
#define TUTTI_TOOLS_DOCTOR_PRINT_H_

#include <stdio.h>
#include <sys/cdefs.h>

#include "doctor/view.h"

__BEGIN_DECLS

/* Machine, GPUs, NICs, every GPU with every NIC, then the findings, worst first. */
void tuttiDoctorText(const tuttiView *v, const tuttiFindings *f, FILE *out);
/* The findings alone. */
void tuttiDoctorFindings(const tuttiFindings *f, FILE *out);
void tuttiDoctorJson(const tuttiView *v, const tuttiFindings *f, FILE *out);
/* The remedies as a shell script, each with what it is for. What starts a container or needs a
 * value filled in is a comment. */
void tuttiDoctorScript(const tuttiFindings *f, FILE *out);

__END_DECLS

#endif

/* tutti doctor: what is wrong with a machine, before a job finds out. */
#include "doctor/doctor.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/settings.h"
#include "doctor/print.h"
#include "tool.h"

#define COMMAND "tutti doctor"

typedef struct {
  const char *from, *record;
  bool json, fix, quick;
} doctorOptions;

static const char usage[] =
    "Usage: tutti doctor [OPTION]...\n"
    "Looks at this machine and says what is wrong with it, and what to type: GPUs and their "
    "driver,\n"
    "RDMA devices, which NIC reaches which GPU's memory and why not, limits, interfaces, "
    "container.\n"
    "RDMA ports that are up are tried with a pattern that they send to themselves.\n"
    "It changes nothing and needs no root; what root alone can see is said.\n"
    "Exit status: 0 all is well, 3 a warning, 1 a failure, 2 bad arguments.\n"
    "\n";

static int parse(int argc, char **argv, doctorOptions *o) {
  const tuttiOption options[] = {
      {"json", NULL, "print one JSON object (docs/doctor.schema.json)", .flag = &o->json},
      {"fix", NULL, "print the remedies as a script; nothing is run", .flag = &o->fix},
      {"quick", NULL, "only look: try no device", .flag = &o->quick},
      {"record", "FILE",
       "write what is read of this machine to FILE, without\n"
       "serial numbers, GUIDs and addresses, to be sent to others",
       .text = &o->record},
      {"from", "FILE", "look at the machine of such a FILE instead", .text = &o->from},
  };
  int code = tuttiParseOptions(COMMAND, usage, options, sizeof options / sizeof options[0], "",
                               argc, argv);
  if (code >= 0) return code;
  if (o->json && o->fix) return tuttiUsage(COMMAND, "--json and --fix exclude each other");
  if (optind < argc) return tuttiUsage(COMMAND, "unexpected argument '%s'", argv[optind]);
  return -1;
}

int tuttiDoctorExit(tuttiSeverity worst) {
  if (worst == TUTTI_FOUND_FAILURE) return TUTTI_EXIT_FAILED;
  return worst == TUTTI_FOUND_WARNING ? TUTTI_EXIT_WARNED : TUTTI_EXIT_OK;
}

static tuttiResult_t examine(const tuttiMachine *m, const doctorOptions *o, tuttiSeverity *worst) {
  TUTTI_FRESH(tuttiView, view, 1, "a view of a machine", NULL);
  TUTTI_FRESH(tuttiFindings, findings, 1, "findings", NULL);
  tuttiResult_t result = tuttiViewMake(m, view);
  if (result == tuttiSuccess) {
    tuttiCheckAll(view, findings);
    *worst = tuttiWorst(findings);
    if (o->json)
      tuttiDoctorJson(view, findings, stdout);
    else if (o->fix)
      tuttiDoctorScript(findings, stdout);
    else
      tuttiDoctorText(view, findings, stdout);
  }
  tuttiViewFree(view);
  return result;
}

static tuttiResult_t run(const doctorOptions *o, tuttiSeverity *worst) {
  tuttiMachine m;
  tuttiResult_t result = tuttiSettingsLoad();
  if (result != tuttiSuccess) return result;
  result = o->from ? tuttiMachineOpen(&m, o->from) : tuttiMachineAsk(&m, !o->quick);
  if (result == tuttiSuccess && o->record)
    result = tuttiMachineRecord(&m, o->record);
  else if (result == tuttiSuccess)
    result = examine(&m, o, worst);
  tuttiMachineClose(&m);
  return result;
}

int tuttiToolDoctor(int argc, char **argv) {
  doctorOptions o = {0};
  tuttiSeverity worst = TUTTI_FOUND_OK;
  int code = parse(argc, argv, &o);
  if (code >= 0) return code;
  if (run(&o, &worst) != tuttiSuccess) {
    fprintf(stderr, COMMAND ": %s\n", tuttiErrorText());
    return TUTTI_EXIT_FAILED;
  }
  code = tuttiDoctorExit(worst);
  return tuttiFlushed(stdout, COMMAND, "the output") ? code : TUTTI_EXIT_FAILED;
}

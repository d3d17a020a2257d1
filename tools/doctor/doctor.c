/* tutti doctor: what is wrong with a machine, before a job finds out. */
#include "doctor/doctor.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/settings.h"
#include "doctor/hosts.h"
#include "doctor/print.h"
#include "doctor/ranks.h"
#include "tool.h"

#define COMMAND "tutti doctor"

typedef struct {
  const char *from, *record, *program, *hosts;
  bool json, fix, quick, lines;
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
      {"host", "H1,H2,...",
       "look at these hosts by ssh and print in what they differ;\n"
       "under mpirun, srun and torchrun the ranks' hosts are compared",
       .text = &o->hosts},
      {"program", "FILE", "say which libnccl.so.2 this program would load", .text = &o->program},
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
  if (o->hosts && (o->from || o->record || o->json || o->fix || o->program))
    return tuttiUsage(COMMAND, "--host goes with --quick only");
  if (o->from && o->program) return tuttiUsage(COMMAND, "--from and --program exclude each other");
  if (optind < argc) return tuttiUsage(COMMAND, "unexpected argument '%s'", argv[optind]);
  return -1;
}

int tuttiDoctorExit(tuttiSeverity worst) {
  if (worst == TUTTI_FOUND_FAILURE) return TUTTI_EXIT_FAILED;
  return worst == TUTTI_FOUND_WARNING ? TUTTI_EXIT_WARNED : TUTTI_EXIT_OK;
}

/* What the findings are printed as, unless ranks compare them. */
static void print(const tuttiView *v, const tuttiFindings *f, const doctorOptions *o) {
  if (o->json)
    tuttiDoctorJson(v, f, stdout);
  else if (o->fix)
    tuttiDoctorScript(f, stdout);
  else if (o->lines)
    tuttiHostLines(v, f, stdout);
  else
    tuttiDoctorText(v, f, stdout);
}

static void sayNotCompared(const tuttiRanks *ranks) {
  fprintf(stderr, COMMAND ": rank %d: the ranks cannot be compared: %s\n", ranks->place->rank,
          tuttiErrorText());
  tuttiErrorClear();
}

/* With the other ranks, if they have met; else alone. */
static void report(const tuttiView *v, const tuttiFindings *f, const doctorOptions *o,
                   tuttiRanks *ranks, tuttiSeverity *worst) {
  *worst = tuttiWorst(f);
  if (ranks->comm == NULL) {
    print(v, f, o);
  } else if (tuttiHostsByRanks(ranks, v, f, stdout, worst) != tuttiSuccess) {
    sayNotCompared(ranks);
    print(v, f, o);
    *worst = TUTTI_FOUND_FAILURE;
  }
}

static tuttiResult_t examine(const tuttiMachine *m, const doctorOptions *o, tuttiRanks *ranks,
                             tuttiSeverity *worst) {
  TUTTI_FRESH(tuttiView, view, 1, "a view of a machine", NULL);
  TUTTI_FRESH(tuttiFindings, findings, 1, "findings", NULL);
  tuttiResult_t result = tuttiViewMake(m, view);
  if (result == tuttiSuccess) {
    tuttiCheckAll(view, findings);
    report(view, findings, o, ranks, worst);
  }
  tuttiViewFree(view);
  return result;
}

static tuttiResult_t look(const doctorOptions *o, tuttiRanks *ranks, tuttiSeverity *worst) {
  tuttiMachine m;
  tuttiResult_t result = o->from ? tuttiMachineOpen(&m, o->from) : tuttiMachineAsk(&m, !o->quick);
  if (result == tuttiSuccess && !o->from) result = tuttiAskPrograms(&m, o->program);
  if (result == tuttiSuccess && o->record)
    result = tuttiMachineRecord(&m, o->record);
  else if (result == tuttiSuccess)
    result = examine(&m, o, ranks, worst);
  tuttiMachineClose(&m);
  return result;
}

/* False: there are others, and they cannot be met. */
static bool meet(tuttiRanks *ranks) {
  const perfPlace *place = ranks->place;
  if (!place->placed || place->nranks == 1 || tuttiRanksMeet(ranks) == tuttiSuccess) return true;
  sayNotCompared(ranks);
  return false;
}

/* Of the ranks of a host the first looks at it; if they cannot meet, the one that the launcher says
 * is the first. */
static int runRank(const doctorOptions *o, const perfPlace *place) {
  tuttiSeverity worst = TUTTI_FOUND_OK;
  tuttiRanks ranks = {.place = place, .looks = place->localRank == 0};
  tuttiResult_t result = tuttiSettingsLoad();
  bool met = result != tuttiSuccess || meet(&ranks);
  if (result == tuttiSuccess && ranks.looks)
    result = look(o, &ranks, &worst);
  else if (ranks.comm)
    result = tuttiHostsByRanks(&ranks, NULL, NULL, stdout, &worst);
  tuttiRanksLeave(&ranks);
  if (!met) worst = TUTTI_FOUND_FAILURE;
  if (result != tuttiSuccess) {
    fprintf(stderr, COMMAND ": %s\n", tuttiErrorText());
    return TUTTI_EXIT_FAILED;
  }
  return tuttiFlushed(stdout, COMMAND, "the output") ? tuttiDoctorExit(worst) : TUTTI_EXIT_FAILED;
}

static int runHosts(const doctorOptions *o) {
  tuttiSeverity worst;
  const char *wrong;
  if (!tuttiHostsBySsh(o->hosts, o->quick, stdout, &worst, &wrong))
    return tuttiUsage(COMMAND, "--host is '%s'; %s", o->hosts, wrong);
  return tuttiFlushed(stdout, COMMAND, "the output") ? tuttiDoctorExit(worst) : TUTTI_EXIT_FAILED;
}

int tuttiToolDoctor(int argc, char **argv) {
  const perfOptions launch = {.command = COMMAND};
  doctorOptions o = {0};
  perfPlace place = {.nranks = 1};
  if (argc == 3 && strcmp(argv[1], "--library") == 0) { /* of tuttiAskPrograms, not for people */
    tuttiDescribeLibrary(argv[2]);
    return tuttiFlushed(stdout, COMMAND, "the output") ? TUTTI_EXIT_OK : TUTTI_EXIT_FAILED;
  }
  if (argc > 1 && strcmp(argv[1], "--lines") == 0) { /* of tuttiHostsBySsh, neither */
    o.lines = true;
    argv[1] = argv[0];
    argv++;
    argc--;
  }
  int code = parse(argc, argv, &o);
  if (code >= 0) return code;
  if (o.hosts) return runHosts(&o);
  bool alone = o.from || o.record || o.json || o.fix || o.lines;
  if (!alone && (code = perfFindPlace(&launch, &place)) >= 0) return code;
  return runRank(&o, &place);
}

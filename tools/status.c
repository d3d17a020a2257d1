/* `tutti status`: what running jobs are doing, the verdict first. */
#include "status.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "ras/report.h"
#include "ras/verdict.h"
#include "tool.h"

#define WATCH_SECONDS 2

enum { AS_TEXT, AS_JSON, AS_PROMETHEUS, AS_TRACE };

typedef struct {
  const char *host, *port;
  bool json, watch, prometheus, trace;
  int timeout;
} options;

static void (*const writers[])(const tuttiSnapshot *,
                               FILE *) = {[AS_TEXT] = tuttiReportText,
                                          [AS_JSON] = tuttiReportJson,
                                          [AS_PROMETHEUS] = tuttiReportPrometheus,
                                          [AS_TRACE] = tuttiReportTrace};

static int formatOf(const options *o) {
  return o->json ? AS_JSON : o->prometheus ? AS_PROMETHEUS : o->trace ? AS_TRACE : AS_TEXT;
}

static bool isBad(const tuttiSnapshot *s) {
  for (int i = 0; i < s->ncomms; i++) {
    tuttiFinding findings[TUTTI_FINDINGS];
    int n = tuttiFindings(&s->comms[i], findings);
    for (int f = 0; f < n; f++)
      if (tuttiFindingIsBad(&findings[f])) return true;
  }
  return false;
}

/* What another program than tutti of this version says there, as it says it. */
static int relay(const options *o, int ms) {
  const char *text[] = {"client protocol 2", "status", NULL};
  const char *json[] = {"client protocol 2", "set format json", "status", NULL};
  const char *prometheus[] = {"client protocol 2", "prometheus", NULL};
  const char *trace[] = {"client protocol 2", "trace", NULL};
  const char *const *const lines[] = {text, json, prometheus, trace};
  char why[256];
  size_t bytes;
  char *got = tuttiStatusPort(o->host, o->port, lines[formatOf(o)], ms, &bytes, why);
  if (!got) {
    fprintf(stderr, "tutti status: %s\n", why);
    return TUTTI_EXIT_FAILED;
  }
  fwrite(got, 1, bytes, stdout);
  free(got);
  return TUTTI_EXIT_OK;
}

/* The facts of whoever answers there; false: none came. */
static bool askPort(const options *o, int ms, tuttiSnapshot *s) {
  char why[256], timeout[32];
  snprintf(timeout, sizeof timeout, "timeout %d", o->timeout);
  const char *const lines[] = {"client protocol 2", timeout, "facts", NULL};
  size_t bytes;
  char *got = tuttiStatusPort(o->host, o->port, lines, ms, &bytes, why);
  bool whole = got && tuttiReportFactsTake(got, bytes, s);
  free(got);
  return whole;
}

static int showOnce(const options *o) {
  tuttiSnapshot s = {0};
  int silent = 0, ms = 1000 * o->timeout + 1000, result = TUTTI_EXIT_OK;
  bool found = o->host ? askPort(o, ms, &s) : tuttiStatusHost(ms, &s, &silent);
  if (o->host && !found) {
    tuttiSnapshotFree(&s);
    return relay(o, ms);
  }
  if (!found) {
    fprintf(stderr,
            "tutti status: no process of this user on host %s runs tutti (in this network "
            "namespace), or TUTTI_RAS_ENABLE is 0 there; --host and --port ask elsewhere\n",
            tuttiHostname());
    return TUTTI_EXIT_FAILED;
  }
  if (silent > 0)
    fprintf(stderr,
            "tutti status: %d process%s not answered: overloaded, or of another version of "
            "tutti\n",
            silent, silent > 1 ? "es have" : " has");
  writers[formatOf(o)](&s, stdout);
  if (isBad(&s)) result = TUTTI_EXIT_BAD;
  tuttiSnapshotFree(&s);
  return result;
}

int tuttiToolStatus(int argc, char **argv) {
  options o = {.port = "28028", .timeout = 5};
  const tuttiOption table[] = {
      {.name = "host",
       .value = "H",
       .help = "ask whoever answers there, not this user's processes",
       .text = &o.host},
      {.name = "port", .value = "P", .help = "port of --host (28028)", .text = &o.port},
      {.name = "json", .help = "NCCL's RAS keys, and more", .flag = &o.json},
      {.name = "prometheus", .help = "counters in Prometheus' text format", .flag = &o.prometheus},
      {.name = "trace",
       .help = "the last operations for Perfetto or chrome://tracing",
       .flag = &o.trace},
      {.name = "watch", .help = "again every two seconds, until interrupted", .flag = &o.watch},
      {.name = "timeout",
       .value = "S",
       .help = "wait so many seconds for ranks (5)",
       .number = &o.timeout,
       .min = 1,
       .max = 3600},
  };
  int code = tuttiParseOptions(
      "tutti status",
      "Usage: tutti status [OPTION]...\n"
      "Says what this user's running jobs on this host are doing: the verdict first.\n\n",
      table, sizeof table / sizeof table[0],
      "\nExit code: 0, 1 if nobody answers, 2 on bad arguments, 3 if something is wrong with a "
      "job.\n",
      argc, argv);
  if (code >= 0) return code;
  if (optind < argc) return tuttiUsage("tutti status", "unexpected argument '%s'", argv[optind]);
  if (o.json + o.prometheus + o.trace > 1)
    return tuttiUsage("tutti status", "--json, --prometheus and --trace exclude each other");
  do {
    if (o.watch && isatty(STDOUT_FILENO)) fputs("\033[H\033[2J", stdout);
    code = showOnce(&o);
    if (!tuttiFlushed(stdout, "tutti status", "the output")) return TUTTI_EXIT_FAILED;
    if (o.watch) sleep(WATCH_SECONDS);
  } while (o.watch);
  return code;
}

/* The table, what is wrong in words, the verdict, and JSON lines; of the first host. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "netcheck/netcheck.h"
#include "tool.h"

#define FEW_HOSTS 8 /* of which all rails are shown */

static bool hasTable(const netOptions *o) {
  return o->json == NULL || strcmp(o->json, "-") != 0;
}

void netPrintHeader(const netJob *job, bool gpu) {
  if (!hasTable(job->options)) return;
  printf("# tutti %d.%d.%d netcheck: %d hosts (%s), %d rounds of pairs, %s memory\n", TUTTI_MAJOR,
         TUTTI_MINOR, TUTTI_PATCH, job->nhosts, job->place->launcher, netRounds(job->nhosts),
         gpu ? "GPU" : "host");
  for (int h = 0; h < job->nhosts; h++)
    printf("#   host %s: rank %d\n", job->hosts[h].name, job->hosts[h].rank);
  fflush(stdout);
}

void netPrintProgress(int round, int rounds) {
  if (isatty(STDERR_FILENO) != 1) return;
  fputs("\r\033[K", stderr);
  if (round < rounds) fprintf(stderr, "round %d of %d", round + 1, rounds);
  fflush(stderr);
}

/* ---- table ----------------------------------------------------------------------------------- */

static void place(char *text, size_t size, const netJudgement *j, const netRow *row, int side) {
  snprintf(text, size, "%s:%s", j->hosts[row->host[side]].name,
           row->nic[side][0] ? row->nic[side] : "-");
}

/* "-" where nothing was measured. */
static const char *number(char text[32], double value, int decimals) {
  snprintf(text, 32, "%.*f", decimals, value);
  return value > 0 ? text : "-";
}

static void printRow(const netJudgement *j, const netRow *row) {
  char from[112], to[112], alone[32], share[32], us[32], all[32], allShare[32];
  place(from, sizeof from, j, row, 0);
  place(to, sizeof to, j, row, 1);
  printf("%-24s %-24s %-18s %8s %6s %8s %8s %6s  %s\n", from, to, row->via[0] ? row->via : "-",
         number(alone, row->alone, row->alone < 1 ? 3 : 2),
         number(share, netShare(row, row->alone), 0), number(us, row->latencyUs, 1),
         number(all, row->together, row->together < 1 ? 3 : 2),
         number(allShare, netShare(row, row->together), 0), netFindingNames[row->found]);
  char reason[2 * NETCHECK_TEXT], remedy[NETCHECK_TEXT];
  netExplain(j, row, reason, remedy);
  if (reason[0]) printf("    %s%s%s\n", reason, remedy[0] ? "; " : "", remedy);
}

static void printTable(const netJob *job, const netJudgement *j, int findings) {
  bool all = job->options->all || job->nhosts <= FEW_HOSTS;
  if (all || findings > 0) {
    printf("#\n#%-23s %-24s %-18s %8s %6s %8s %8s %6s\n", "from", "to", "via", "GB/s", "line%",
           "us", "all", "line%");
    for (int i = 0; i < j->n; i++)
      if (all || j->rows[i].found != netFoundFine) printRow(j, &j->rows[i]);
  }
  printf("#\n");
}

/* What was slowest of those that are well, since they are not all shown. */
static void printVerdict(const netJudgement *j, int findings) {
  double slowest = 0, latency = 0;
  int wrong = 0;
  for (int i = 0; i < j->n; i++) {
    const netRow *row = &j->rows[i];
    wrong += row->found == netFoundWrong;
    if (row->alone > 0 && (slowest == 0 || row->alone < slowest)) slowest = row->alone;
    if (row->latencyUs > latency) latency = row->latencyUs;
  }
  printf("# Slowest: %.3g GB/s, %.1f us\n", slowest, latency);
  if (wrong > 0)
    printf("# Verdict: WRONG BYTES on %d of %d, findings on %d\n", wrong, j->n, findings);
  else if (findings > 0)
    printf("# Verdict: findings on %d of %d\n", findings, j->n);
  else
    printf("# Verdict: all %d are well (each rail, in each direction)\n", j->n);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void jsonPlace(FILE *out, const char *name, const netJudgement *j, const netRow *row,
                      int side) {
  const netHost *host = &j->hosts[row->host[side]];
  fprintf(out, "\"%s\":{\"host\":", name);
  tuttiJsonString(out, host->name);
  fprintf(out, ",\"rank\":%d,\"nic\":", host->rank);
  if (row->nic[side][0])
    tuttiJsonString(out, row->nic[side]);
  else
    fputs("null", out);
  fprintf(out, ",\"gpu\":");
  fprintf(out, row->gpu[side] < 0 ? "null" : "%d", row->gpu[side]);
  fputs("},", out);
}

/* null where it was not measured. */
static void jsonNumber(FILE *out, const char *name, double value) {
  fprintf(out, value > 0 ? "\"%s\":%.6g," : "\"%s\":null,", name, value);
}

static void jsonRow(FILE *out, const netJudgement *j, const netRow *row) {
  char reason[2 * NETCHECK_TEXT], remedy[NETCHECK_TEXT];
  netExplain(j, row, reason, remedy);
  fputc('{', out);
  jsonPlace(out, "from", j, row, 0);
  jsonPlace(out, "to", j, row, 1);
  fputs("\"via\":", out);
  if (row->via[0])
    tuttiJsonString(out, row->via);
  else
    fputs("null", out);
  fputc(',', out);
  jsonNumber(out, "line", row->line);
  jsonNumber(out, "alone", row->alone);
  jsonNumber(out, "all", row->together);
  jsonNumber(out, "latency", row->latencyUs);
  fprintf(out, "\"wrong\":%llu,\"found\":\"%s\",\"reason\":", (unsigned long long)row->wrong,
          netFindingNames[row->found]);
  tuttiJsonString(out, reason);
  fputs(",\"remedy\":", out);
  tuttiJsonString(out, remedy);
  fputs("}\n", out);
}

static bool printJson(const netOptions *o, const netJudgement *j) {
  FILE *out = hasTable(o) ? fopen(o->json, "we") : stdout;
  if (out == NULL) {
    fprintf(stderr, NETCHECK_COMMAND ": cannot write --json %s: %s\n", o->json, strerror(errno));
    return false;
  }
  for (int i = 0; i < j->n; i++)
    jsonRow(out, j, &j->rows[i]);
  bool good = tuttiFlushed(out, NETCHECK_COMMAND, hasTable(o) ? o->json : "the JSON lines");
  if (out != stdout && fclose(out) != 0 && good) {
    fprintf(stderr, NETCHECK_COMMAND ": cannot write %s: %s\n", o->json, strerror(errno));
    good = false;
  }
  return good;
}

bool netPrint(const netJob *job, const netJudgement *j) {
  int findings = 0;
  for (int i = 0; i < j->n; i++)
    findings += j->rows[i].found != netFoundFine;
  if (hasTable(job->options)) {
    printTable(job, j, findings);
    printVerdict(j, findings);
    if (!tuttiFlushed(stdout, NETCHECK_COMMAND, "the table")) return false;
  }
  return job->options->json == NULL || printJson(job->options, j);
}

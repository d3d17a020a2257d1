/* What rank 0 shows: the table, JSON lines, a progress bar. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "collectives/signature.h"
#include "perf.h"
#include "tool.h"

bool perfOutputOpen(perfOutput *out, const perfOptions *options, const perfPlace *place,
                    size_t rows) {
  *out = (perfOutput){.options = options, .place = place, .rows = rows};
  out->progress = isatty(STDERR_FILENO) == 1;
  out->table = options->json == NULL || strcmp(options->json, "-") != 0;
  if (options->json == NULL) return true;
  out->json = out->table ? fopen(options->json, "we") : stdout;
  return out->json != NULL ||
         PERF_FAIL("cannot write --json %s: %s\n", options->json, strerror(errno));
}

/* Once per failure: what is full stays full. */
static void flush(perfOutput *out) {
  const char *json = out->table ? out->options->json : "the JSON lines";
  out->failed = out->failed || (out->table && !tuttiFlushed(stdout, PERF_COMMAND, "the table")) ||
                (out->json != NULL && !tuttiFlushed(out->json, PERF_COMMAND, json));
}

/* ---- the table ------------------------------------------------------------------------------ */

void perfOutputHeader(perfOutput *out, int version, const perfIdentity *ranks) {
  const perfOptions *o = out->options;
  if (!out->table) return;
  printf("# %s %d.%d.%d perf: %d rank%s (%s), %s memory, %s%s\n", o->lib ? o->lib : "tutti",
         version / 10000, version / 100 % 100, version % 100, out->place->nranks,
         out->place->nranks == 1 ? "" : "s", out->place->launcher,
         ranks[0].device < 0 ? "host" : "CUDA", o->inPlace ? "in place" : "out of place",
         o->check ? ", checked" : "");
  for (int r = 0; r < out->place->nranks; r++) {
    printf("#   rank %4d  host %-16s pid %7d  device ", r, ranks[r].host, (int)ranks[r].pid);
    if (ranks[r].device < 0)
      puts("host");
    else
      printf("cuda:%d\n", (int)ranks[r].device);
  }
  flush(out);
}

void perfOutputCollective(perfOutput *out, const perfCollective *collective) {
  if (!out->table) return;
  printf("#\n# %s\n", collective->name);
  printf("#%13s %14s %11s %6s %5s %10s %8s %8s %8s\n", "size", "count", "type", "redop", "root",
         "time", "algbw", "busbw", "#wrong");
  printf("#%13s %14s %11s %6s %5s %10s %8s %8s\n", "(B)", "(elements)", "", "", "", "(us)",
         "(GB/s)", "(GB/s)");
  flush(out);
}

/* Two decimals, fewer for numbers that would not fit. */
static const char *format(char text[32], double value) {
  snprintf(text, 32, "%.*f", value < 1e5 ? 2 : value < 1e7 ? 1 : 0, value);
  return text;
}

static int rootOf(const perfRow *row) {
  return row->collective->fromRoot || row->collective->toRoot ? row->root : -1;
}

static const char *opOf(const perfRow *row) {
  return row->collective->reduces ? tuttiRedOpNames[row->op] : "none";
}

static void printRow(const perfResult *r, double algbw, double busbw, const char *wrong) {
  char time[32], alg[32], bus[32];
  printf("%14zu %14zu %11s %6s %5d %10s %8s %8s %8s\n", perfRowBytes(r->row), r->row->count,
         tuttiTypeNames[r->row->type], opOf(r->row), rootOf(r->row), format(time, r->seconds * 1e6),
         format(alg, algbw), format(bus, busbw), wrong);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

/* All strings are the tool's own and plain. */
static void printJson(const perfOutput *out, const perfResult *r, double algbw, double busbw,
                      const char *wrong) {
  fprintf(
      out->json,
      "{\"collective\":\"%s\",\"size\":%zu,\"count\":%zu,\"type\":\"%s\",\"redop\":\"%s\","
      "\"root\":%d,\"time\":%.3f,\"algbw\":%.6g,\"busbw\":%.6g,\"wrong\":%s,\"nranks\":%d,"
      "\"in_place\":%s,\"iters\":%d,\"checks\":%d,\"launcher\":\"%s\",\"version\":\"%d.%d.%d\"}\n",
      r->row->collective->name, perfRowBytes(r->row), r->row->count, tuttiTypeNames[r->row->type],
      opOf(r->row), rootOf(r->row), r->seconds * 1e6, algbw, busbw, wrong, r->row->nranks,
      r->row->inPlace ? "true" : "false", r->iters, out->options->check ? out->options->checks : 0,
      out->place->launcher, TUTTI_MAJOR, TUTTI_MINOR, TUTTI_PATCH);
}

/* ---- progress ------------------------------------------------------------------------------- */

#define CLEAR_LINE "\r\033[K"

void perfOutputProgress(const perfOutput *out, const perfRow *row, const char *phase) {
  static const char bar[] = "##############################";
  const int width = sizeof bar - 1;
  if (!out->progress) return;
  int full = out->rows > 0 ? (int)(out->done * (size_t)width / out->rows) : 0;
  fprintf(stderr, CLEAR_LINE "[%.*s%*s] %zu/%zu %s %s %zu B, %s", full, bar, width - full, "",
          out->done, out->rows, row->collective->name, tuttiTypeNames[row->type], perfRowBytes(row),
          phase);
  fflush(stderr);
}

static void clearProgress(const perfOutput *out) {
  if (out->progress) fputs(CLEAR_LINE, stderr);
}

/* ---- rows ----------------------------------------------------------------------------------- */

void perfOutputRow(perfOutput *out, const perfResult *r) {
  double algbw = r->seconds > 0 ? (double)perfRowBytes(r->row) / r->seconds * 1e-9 : 0;
  double busbw = algbw * perfBusFactor(r->row->collective, r->row->nranks);
  out->done++;
  out->busSum += busbw;
  out->wrong += r->wrong;
  clearProgress(out);
  char wrong[32] = "";
  if (out->options->check) snprintf(wrong, sizeof wrong, "%" PRIu64, r->wrong);
  if (out->table) printRow(r, algbw, busbw, wrong[0] != '\0' ? wrong : "N/A");
  if (out->json != NULL) printJson(out, r, algbw, busbw, wrong[0] != '\0' ? wrong : "null");
  flush(out);
}

int perfOutputClose(perfOutput *out, bool complete) {
  clearProgress(out);
  if (complete && out->table) {
    puts("#");
    if (out->options->check)
      printf("# Wrong elements   : %" PRIu64 "%s\n", out->wrong, out->wrong == 0 ? " (OK)" : "");
    printf("# Avg bus bandwidth: %.4g GB/s\n", out->done > 0 ? out->busSum / (double)out->done : 0);
    flush(out);
  }
  if (out->json != NULL && out->json != stdout && fclose(out->json) != 0 && !out->failed) {
    fprintf(stderr, PERF_COMMAND ": cannot write %s: %s\n", out->options->json, strerror(errno));
    out->failed = true;
  }
  if (out->wrong > 0) fprintf(stderr, PERF_COMMAND ": %" PRIu64 " wrong elements\n", out->wrong);
  return complete && !out->failed && out->wrong == 0 ? TUTTI_EXIT_OK : TUTTI_EXIT_FAILED;
}

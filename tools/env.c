/* tutti env: every setting with its value and where that came from. */
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/settings.h"
#include "text.h"
#include "tool.h"

#define COMMAND "tutti env"

static const char help[] =
    "Usage: tutti env [--json | --markdown]\n"
    "Lists every setting: variable, value in force, where it came from, default, meaning.\n"
    "A malformed setting is an error (exit code 1).\n"
    "\n"
    "  --json      one JSON object per line\n"
    "  --markdown  the reference page of the settings, whatever the environment holds\n"
    "  -h, --help  this text\n";

typedef enum { TABLE, JSON, MARKDOWN } form;

static const char *const typeNames[] = {
    [TUTTI_SETTING_INT] = "number",  [TUTTI_SETTING_BOOL] = "0 or 1",
    [TUTTI_SETTING_SIZE] = "size",   [TUTTI_SETTING_SECONDS] = "seconds",
    [TUTTI_SETTING_STRING] = "text",
};

/* A number as the user would write it. */
static void formatNumber(tuttiSettingType type, int64_t value, char *out, size_t size) {
  static const char units[] = " KMG";
  if (type == TUTTI_SETTING_SECONDS) {
    int n = snprintf(out, size, "%" PRId64, value / 1000);
    if (value % 1000 != 0) snprintf(out + n, size - (size_t)n, ".%03d", (int)(value % 1000));
    return;
  }
  int unit = 0;
  while (type == TUTTI_SETTING_SIZE && unit < 3 && value != 0 && value % 1024 == 0) {
    value /= 1024;
    unit++;
  }
  snprintf(out, size, "%" PRId64 "%.*s", value, unit > 0, units + unit);
}

typedef struct {
  const tuttiSettingRow *row;
  const char *value, *dflt, *origin;
  char variable[64], valueNumber[32], dfltNumber[32];
} shown;

static void show(tuttiSettingId id, bool withValue, shown *s) {
  const tuttiSettingRow *row = &tuttiSettingTable[id];
  s->row = row;
  s->value = "";
  s->origin = withValue ? tuttiSettingOrigin(id) : "";
  snprintf(s->variable, sizeof s->variable, "TUTTI_%s", row->name);
  if (row->type == TUTTI_SETTING_STRING) {
    s->dflt = row->dfltString;
    if (withValue) s->value = tuttiSettingString(id);
    return;
  }
  formatNumber(row->type, row->dflt, s->dfltNumber, sizeof s->dfltNumber);
  s->dflt = s->dfltNumber;
  if (withValue) {
    formatNumber(row->type, tuttiSettingInt(id), s->valueNumber, sizeof s->valueNumber);
    s->value = s->valueNumber;
  }
}

static const char *orUnset(const char *text) {
  return text[0] != '\0' ? text : "(unset)";
}

/* ---- the table ------------------------------------------------------------------------------ */

enum { COLUMNS = 4 };

static void columnsOf(const shown *s, const char *columns[COLUMNS]) {
  columns[0] = s->variable;
  columns[1] = orUnset(s->value);
  columns[2] = s->origin;
  columns[3] = orUnset(s->dflt);
}

static void printLine(const char *columns[COLUMNS], const int widths[COLUMNS],
                      const char *meaning) {
  for (int c = 0; c < COLUMNS; c++)
    printf("%-*s  ", widths[c], columns[c]);
  printf("%s\n", meaning);
}

static void printTable(void) {
  static const char *heads[COLUMNS] = {"VARIABLE", "VALUE", "ORIGIN", "DEFAULT"};
  const char *columns[COLUMNS];
  int widths[COLUMNS];
  shown s;
  for (int c = 0; c < COLUMNS; c++)
    widths[c] = (int)strlen(heads[c]);
  for (int id = 0; id < TUTTI_SETTING_COUNT; id++) {
    show((tuttiSettingId)id, true, &s);
    columnsOf(&s, columns);
    for (int c = 0; c < COLUMNS; c++) {
      int width = (int)strlen(columns[c]);
      if (width > widths[c]) widths[c] = width;
    }
  }
  printLine(heads, widths, "MEANING");
  for (int id = 0; id < TUTTI_SETTING_COUNT; id++) {
    show((tuttiSettingId)id, true, &s);
    columnsOf(&s, columns);
    printLine(columns, widths, s.row->help);
  }
}

/* ---- JSON and Markdown ---------------------------------------------------------------------- */

static void printJson(const shown *s) {
  const struct {
    const char *key, *value;
  } fields[] = {
      {"name", s->variable},
      {"value", s->value},
      {"origin", s->origin},
      {"default", s->dflt},
      {"type", typeNames[s->row->type]},
      {"nccl_name", s->row->ncclName},
      {"help", s->row->help},
  };
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    printf("%s\"%s\":", i == 0 ? "{" : ",", fields[i].key);
    tuttiJsonString(stdout, fields[i].value);
  }
  puts("}");
}

static void printCell(const char *text) {
  for (; *text != '\0'; text++) {
    if (*text == '|') putchar('\\');
    putchar(*text);
  }
}

static void printCode(const char *text) {
  fputs(" |", stdout);
  if (text[0] == '\0') return;
  fputs(" `", stdout);
  printCell(text);
  putchar('`');
}

static void printRange(const tuttiSettingRow *row) {
  char min[32], max[32];
  fputs(" | ", stdout);
  fputs(typeNames[row->type], stdout);
  if (row->type == TUTTI_SETTING_STRING || row->type == TUTTI_SETTING_BOOL) return;
  formatNumber(row->type, row->min, min, sizeof min);
  formatNumber(row->type, row->max, max, sizeof max);
  printf(", %s to %s", min, max);
}

static void printMarkdown(void) {
  puts("# Settings\n\n"
       "Generated by `tutti env --markdown` from `src/base/settings.def`.\n\n"
       "A setting is an environment variable. Where a setting has an NCCL name, that is read too,\n"
       "also from nccl.conf (`NCCL_CONF_FILE`, else `~/.nccl.conf`; `/etc/nccl.conf`);\n"
       "the TUTTI name wins. Sizes take K, M and G; seconds take decimals, or ms, s and m.\n"
       "`tutti env` shows the values in force.\n\n"
       "| Variable | Accepts | Default | Also read | Meaning |\n|---|---|---|---|---|");
  for (int id = 0; id < TUTTI_SETTING_COUNT; id++) {
    shown s;
    show((tuttiSettingId)id, false, &s);
    printf("| `%s`", s.variable);
    printRange(s.row);
    printCode(s.dflt);
    printCode(s.row->ncclName);
    fputs(" | ", stdout);
    printCell(s.row->help);
    puts(" |");
  }
}

static int print(form f) {
  if (f == MARKDOWN) {
    printMarkdown();
  } else {
    if (tuttiSettingsLoad() != tuttiSuccess) {
      fprintf(stderr, COMMAND ": %s\n", tuttiGetLastError(NULL));
      return TUTTI_EXIT_FAILED;
    }
    shown s;
    if (f == TABLE) printTable();
    for (int id = 0; f == JSON && id < TUTTI_SETTING_COUNT; id++) {
      show((tuttiSettingId)id, true, &s);
      printJson(&s);
    }
  }
  return tuttiFlushed(stdout, COMMAND, "the output") ? TUTTI_EXIT_OK : TUTTI_EXIT_FAILED;
}

int tuttiToolEnv(int argc, char **argv) {
  static const struct option table[] = {
      {"json", no_argument, NULL, 'j'},
      {"markdown", no_argument, NULL, 'm'},
      {"help", no_argument, NULL, 'h'},
      {NULL, 0, NULL, 0},
  };
  form f = TABLE;
  int c;
  opterr = 0;
  while ((c = getopt_long(argc, argv, ":h", table, NULL)) != -1) {
    switch (c) {
    case 'j':
    case 'm':
      if (f != TABLE) return tuttiUsage(COMMAND, "--json and --markdown exclude each other");
      f = c == 'j' ? JSON : MARKDOWN;
      break;
    case 'h':
      fputs(help, stdout);
      return tuttiFlushed(stdout, COMMAND, "the help") ? TUTTI_EXIT_OK : TUTTI_EXIT_FAILED;
    default:
      return tuttiUsageOption(COMMAND, table, argv);
    }
  }
  if (optind < argc) return tuttiUsage(COMMAND, "unexpected argument '%s'", argv[optind]);
  return print(f);
}
